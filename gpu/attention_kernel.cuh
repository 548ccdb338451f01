/* Variable-length attention, forward: the kernels. One source for nvcc and, through
 * device_simt.h, for g++.
 *
 * One thread block per (query tile, head). Which segment a tile belongs to is not told by the
 * host: with ROWS rows a tile, segment i starts at tile cu[i] / ROWS + i, which grows with i and
 * leaves every segment enough tiles, so a block finds its segment by bisection of cu_seqlens and
 * needs no longest length, no table and no workspace. A block walks the keys of its own segment
 * only, [cu[i], cu[i + 1]), and no other key is ever read: the tail of the last tile is filled
 * with zeros, not with the neighbour's values.
 *
 *   bf16  4 warps, 64 queries; each warp owns 16 rows, keeps its queries, logits and accumulators
 *         in registers and multiplies with mma.sync m16n8k16. K and V tiles of 64 keys are
 *         double-buffered with asynchronous copies, 16-byte chunks swizzled by the key's number so
 *         that ldmatrix meets no bank twice.
 *   fp32  4 warps, 32 queries, plain multiply-adds over K and V tiles in shared memory.
 *
 * Softmax is the online form. Its first tile holds key 0, which every row may see, so the running
 * maximum is finite from then on and no row needs a special case; a segment without keys never
 * enters the loop and leaves sum 0. Statements that keep memory or results right carry a tag,
 * [barrier], [mask], [bound], [guard] or [reset]: tests/gpu/mutate.awk removes them one by one
 * ([guard]: the condition only) and a test must fail for each; [work] marks conditions that only
 * save work.
 *
 * Included by attention.cu and by the CPU run after a device_*.h header. Offsets in tokens and
 * elements are 64-bit. Never validates cu_seqlens: the host does, before the launch. */
#ifndef PD_GPU_ATTENTION_KERNEL_CUH
#define PD_GPU_ATTENTION_KERNEL_CUH

#include "gpu/attention.h"

#ifndef PD_FLUSH_TILES
#define PD_FLUSH_TILES 1024 /* key tiles whose sums fp32 holds exactly: 255 * 64 * 1024 < 2^24 */
#endif

enum { DEV_THREADS = 128, DEV_LANES = 32 };

/* A block's work. */
struct dev_tile {
    int64_t first;  /* the segment's first token */
    int32_t length; /* its queries */
    int32_t keys;   /* its keys */
    int32_t row0;   /* this tile's first query, counted in the segment */
    uint32_t head, head_kv;
};

/* False: the block has no rows. Blocks are numbered backwards, so that the long rows of a causal
 * segment start first. */
template <int ROWS>
DEV_FUNCTION bool dev_find_tile(const struct pd_attention &a, struct dev_tile &t)
{
    uint32_t block = dev_grid_x() - 1 - dev_block_x(), low = 0, high = a.segment_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if ((uint32_t)a.cu_seqlens[middle] / ROWS + middle <= block)
            low = middle;
        else
            high = middle;
    }
    t.first = a.cu_seqlens[low];
    t.length = a.cu_seqlens[low + 1] - a.cu_seqlens[low];
    t.keys = a.seq_used ? a.seq_used[low] : t.length;
    if (t.keys > t.length)
        t.keys = t.length; // [bound]
    int64_t row0 = ((int64_t)block - (int64_t)((uint32_t)t.first / ROWS + low)) * ROWS;
    if (row0 < 0)
        return false; // [bound]
    if (row0 >= t.length)
        return false; // [bound]
    t.row0 = (int32_t)row0;
    t.head = dev_block_y();
    t.head_kv = t.head / (a.heads / a.heads_kv);
    return true;
}

/* Keys a tile has to walk: none behind its last row when causal. */
template <int ROWS, bool CAUSAL> DEV_FUNCTION int32_t dev_key_end(const struct dev_tile &t)
{
    int32_t diagonal = t.row0 + ROWS;
    return CAUSAL && diagonal < t.keys ? diagonal : t.keys; // [work]
}

DEV_FUNCTION uint32_t dev_load_pair(const uint16_t *from)
{
    return *(const uint32_t *)from;
}

/* ---- bf16 ---- */

enum { BF16_ROWS = 64, BF16_KEYS = 64, BF16_WARP_ROWS = 16 };

/* Bytes of one K or V tile in shared memory; four of them: K and V, twice. */
template <int D> struct bf16_shared {
    enum { TILE_BYTES = BF16_KEYS * D * 2, BYTES = 4 * TILE_BYTES };
};

/* Where 16-byte chunk `chunk` of key `key` lies in a tile. */
template <int D> DEV_FUNCTION unsigned char *bf16_chunk(unsigned char *tile, int key, int chunk)
{
    return tile + (key * (D / 8) + (chunk ^ (key & 7))) * 16;
}

/* Starts the copies of K and V of keys [key0, key0 + 64) into a buffer. */
template <int D>
DEV_FUNCTION void bf16_fetch(const struct pd_attention &a, const struct dev_tile &t, int32_t key0,
                             unsigned char *buffer)
{
    const uint16_t *k = (const uint16_t *)a.k + (int64_t)t.head_kv * D;
    const uint16_t *v = (const uint16_t *)a.v + (int64_t)t.head_kv * D;
    for (int i = (int)dev_thread(); i < BF16_KEYS * (D / 8); i += DEV_THREADS) {
        int key = i / (D / 8), chunk = i % (D / 8);
        int64_t token = t.first + key0 + key;
        bool inside = true;
        inside = key0 + key < t.keys; // [bound]
        dev_copy16(bf16_chunk<D>(buffer, key, chunk), k + token * a.k_stride + chunk * 8, inside);
        dev_copy16(bf16_chunk<D>(buffer + bf16_shared<D>::TILE_BYTES, key, chunk),
                   v + token * a.v_stride + chunk * 8, inside);
    }
}

/* A thread's share of a warp's 16 rows, in the layout of mma.sync: rows `row` and `row + 8`, and
 * in every 8 columns the pair 2 * (lane % 4). Index e of an accumulator is row + 8 * (e / 2),
 * column pair + e % 2. */
template <int D> struct bf16_rows {
    int32_t row;           /* counted in the segment */
    int32_t pair;          /* 0, 2, 4 or 6 */
    uint32_t q[D / 16][4]; /* queries, A operand */
    float acc[D / 8][4];   /* sums of weight * v */
    float top[2],
        sum[2]; /* running maximum of the logits; this thread's part of the sum of weights */
};

template <int D>
DEV_FUNCTION void bf16_load_queries(const struct pd_attention &a, const struct dev_tile &t,
                                    struct bf16_rows<D> &r)
{
    dev_undefined(r);
    int lane = (int)dev_thread() % DEV_LANES, warp = (int)dev_thread() / DEV_LANES;
    r.row = t.row0 + warp * BF16_WARP_ROWS + lane / 4;
    r.pair = lane % 4 * 2;
    for (int half = 0; half < 2; half++) {
        int32_t row = r.row + half * 8;
        if (row >= t.length)
            row = t.length - 1; // [bound] its result is not stored
        const uint16_t *q =
            (const uint16_t *)a.q + (t.first + row) * a.q_stride + (int64_t)t.head * D;
        for (int k = 0; k < D / 16; k++) {
            r.q[k][half] = dev_load_pair(q + k * 16 + r.pair);
            r.q[k][half + 2] = dev_load_pair(q + k * 16 + r.pair + 8);
        }
    }
}

template <int D> DEV_FUNCTION void bf16_clear(struct bf16_rows<D> &r)
{
    for (int n = 0; n < D / 8; n++)
        for (int e = 0; e < 4; e++)
            r.acc[n][e] = 0; // [reset]
    for (int half = 0; half < 2; half++)
        r.sum[half] = 0; // [reset]
}

/* s = q k^T over the tile's 64 keys. */
template <int D>
DEV_FUNCTION void bf16_logits(const struct bf16_rows<D> &r, unsigned char *keys,
                              float (&s)[BF16_KEYS / 8][4])
{
    int lane = (int)dev_thread() % DEV_LANES, matrix = lane / 8;
    dev_undefined(s);
    for (int n = 0; n < BF16_KEYS / 8; n++)
        for (int e = 0; e < 4; e++)
            s[n][e] = 0; // [reset]
    DEV_UNROLL
    for (int k = 0; k < D / 16; k++)
        DEV_UNROLL
    for (int n = 0; n < BF16_KEYS / 8; n += 2) {
        uint32_t b[4]; /* keys n*8..: k low, k high; keys n*8+8..: the same */
        dev_ldmatrix(b, bf16_chunk<D>(keys, n * 8 + matrix / 2 * 8 + lane % 8, k * 2 + matrix % 2));
        dev_mma(s[n], r.q[k], b);
        dev_mma(s[n + 1], r.q[k], b + 2);
    }
}

/* Keys past the segment's end and, when causal, behind the row weigh nothing. */
template <bool CAUSAL>
DEV_FUNCTION void bf16_mask(const struct dev_tile &t, int32_t key0, int32_t row0, int32_t pair,
                            float (&s)[BF16_KEYS / 8][4])
{
    DEV_UNROLL
    for (int n = 0; n < BF16_KEYS / 8; n++)
        DEV_UNROLL
    for (int e = 0; e < 4; e++) {
        int32_t key = key0 + n * 8 + pair + e % 2, row = row0 + e / 2 * 8;
        if (key >= t.keys)
            s[n][e] = -INFINITY; // [mask]
        if (CAUSAL && key > row)
            s[n][e] = -INFINITY; // [mask]
    }
}

/* The larger maximum of the four lanes that share a row. */
DEV_FUNCTION float dev_quad_max(float x)
{
    x = fmaxf(x, dev_shfl_xor(x, 1));
    return fmaxf(x, dev_shfl_xor(x, 2));
}

DEV_FUNCTION float dev_quad_sum(float x)
{
    x += dev_shfl_xor(x, 1);
    return x + dev_shfl_xor(x, 2);
}

/* Logits become weights 2^(scale * (s - top)); sums and accumulators follow the maximum. With
 * SUMS the maximum stays 0, so that sums of different flushes add up. */
template <int D, bool SUMS>
DEV_FUNCTION void bf16_softmax(float scale_log2, struct bf16_rows<D> &r,
                               float (&s)[BF16_KEYS / 8][4])
{
    DEV_UNROLL
    for (int half = 0; half < 2; half++) {
        float top = 0;
        if (!SUMS) {
            top = r.top[half];
            DEV_UNROLL
            for (int n = 0; n < BF16_KEYS / 8; n++)
                top = fmaxf(top, fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
            top = dev_quad_max(top);
            float rescale = dev_exp2((r.top[half] - top) * scale_log2);
            r.top[half] = top;
            r.sum[half] *= rescale;
            DEV_UNROLL
            for (int n = 0; n < D / 8; n++) {
                r.acc[n][half * 2] *= rescale;
                r.acc[n][half * 2 + 1] *= rescale;
            }
        }
        DEV_UNROLL
        for (int n = 0; n < BF16_KEYS / 8; n++)
            DEV_UNROLL
        for (int e = half * 2; e < half * 2 + 2; e++) {
            s[n][e] = dev_exp2(s[n][e] * scale_log2 - top * scale_log2);
            r.sum[half] += s[n][e];
        }
    }
}

/* acc += weights * v; the accumulators' layout of s is the A operand's of the next product. */
template <int D>
DEV_FUNCTION void bf16_values(struct bf16_rows<D> &r, unsigned char *values,
                              const float (&s)[BF16_KEYS / 8][4])
{
    int lane = (int)dev_thread() % DEV_LANES, matrix = lane / 8;
    DEV_UNROLL
    for (int k = 0; k < BF16_KEYS / 16; k++) {
        uint32_t p[4] = {dev_bf16x2(s[2 * k][0], s[2 * k][1]), dev_bf16x2(s[2 * k][2], s[2 * k][3]),
                         dev_bf16x2(s[2 * k + 1][0], s[2 * k + 1][1]),
                         dev_bf16x2(s[2 * k + 1][2], s[2 * k + 1][3])};
        DEV_UNROLL
        for (int n = 0; n < D / 8; n += 2) {
            uint32_t b[4]; /* columns n*8..: keys low, keys high; columns n*8+8..: the same */
            dev_ldmatrix_transposed(
                b, bf16_chunk<D>(values, k * 16 + matrix % 2 * 8 + lane % 8, n + matrix / 2));
            dev_mma(r.acc[n], p, b);
            dev_mma(r.acc[n + 1], p, b + 2);
        }
    }
}

/* Whole-number sums leave fp32 before they pass 2^24. */
template <int D>
DEV_FUNCTION void bf16_flush(const struct pd_attention &a, const struct dev_tile &t,
                             struct bf16_rows<D> &r)
{
    for (int half = 0; half < 2; half++) {
        int32_t row = r.row + half * 8;
        float sum = dev_quad_sum(r.sum[half]);
        if (row >= t.length)
            continue; // [bound]
        int64_t at = (t.first + row) * a.heads + t.head;
        if (r.pair == 0) // [guard]
            a.row_sum[at] += (int32_t)sum;
        for (int n = 0; n < D / 8; n++)
            for (int e = 0; e < 2; e++)
                a.sums[at * D + n * 8 + r.pair + e] += (int32_t)r.acc[n][half * 2 + e];
    }
    bf16_clear<D>(r); // [reset]
}

template <int D>
DEV_FUNCTION void bf16_store(const struct pd_attention &a, const struct dev_tile &t,
                             const struct bf16_rows<D> &r)
{
    for (int half = 0; half < 2; half++) {
        int32_t row = r.row + half * 8;
        float sum = dev_quad_sum(r.sum[half]);
        float inverse = 0;
        if (sum > 0) // [guard]
            inverse = 1.0f / sum;
        if (row >= t.length)
            continue; // [bound]
        uint16_t *out = (uint16_t *)a.out + (t.first + row) * a.out_stride + (int64_t)t.head * D;
        for (int n = 0; n < D / 8; n++)
            *(uint32_t *)(out + n * 8 + r.pair) =
                dev_bf16x2(r.acc[n][half * 2] * inverse, r.acc[n][half * 2 + 1] * inverse);
        if (a.lse && r.pair == 0)
            a.lse[(int64_t)t.head * a.tokens + t.first + row] =
                sum > 0 ? r.top[half] * a.scale + dev_log2(sum) * 0.693147181f : INFINITY;
    }
}

template <int D, bool CAUSAL, bool SUMS>
DEV_KERNEL(DEV_THREADS)
attention_bf16(const struct pd_attention a)
{
    unsigned char *shared = (unsigned char *)dev_shared();
    struct dev_tile t;
    struct bf16_rows<D> r;
    if (!dev_find_tile<BF16_ROWS>(a, t))
        return;
    float scale_log2 = a.scale * 1.44269504f;
    int32_t end = dev_key_end<BF16_ROWS, CAUSAL>(t);
    int32_t warp_row = t.row0 + (int32_t)dev_thread() / DEV_LANES * BF16_WARP_ROWS;
    int32_t seen_by_all =
        CAUSAL && warp_row + 1 < t.keys ? warp_row + 1 : t.keys; // [work] by its first row
    bf16_load_queries<D>(a, t, r);
    bf16_clear<D>(r);                // [reset]
    r.top[0] = r.top[1] = -INFINITY; // [reset]
    if (end > 0)
        bf16_fetch<D>(a, t, 0, shared);
    for (int32_t key0 = 0, tile = 0; key0 < end; key0 += BF16_KEYS, tile++) {
        unsigned char *buffer = shared + tile % 2 * 2 * bf16_shared<D>::TILE_BYTES;
        unsigned char *other = shared + (tile + 1) % 2 * 2 * bf16_shared<D>::TILE_BYTES;
        float s[BF16_KEYS / 8][4];
        dev_copy_wait(); // [barrier]
        dev_barrier();   // [barrier] this tile is there for all, the other buffer free
        if (key0 + BF16_KEYS < end)
            bf16_fetch<D>(a, t, key0 + BF16_KEYS, other);
        bf16_logits<D>(r, buffer, s);
        if (key0 + BF16_KEYS > seen_by_all)
            bf16_mask<CAUSAL>(t, key0, r.row, r.pair, s);
        bf16_softmax<D, SUMS>(scale_log2, r, s);
        bf16_values<D>(r, buffer + bf16_shared<D>::TILE_BYTES, s);
        if (SUMS && tile % PD_FLUSH_TILES == PD_FLUSH_TILES - 1)
            bf16_flush<D>(a, t, r);
    }
    if (SUMS)
        bf16_flush<D>(a, t, r);
    else
        bf16_store<D>(a, t, r);
}

/* ---- fp32 ---- */

enum { F32_ROWS = 32, F32_KEYS = 32, F32_COLUMNS = 8 /* threads that share a row */ };

/* Shared memory: q, k, v [32][D + 4] and the weights [32][33]; the odd strides keep banks apart. */
template <int D> struct f32_shared {
    float q[F32_ROWS][D + 4], k[F32_KEYS][D + 4], v[F32_KEYS][D + 4];
    float p[F32_ROWS][F32_KEYS + 4];
};

/* A thread's share: rows `row` and `row + 1` of the tile, keys column + 8 j, head
 * elements 4 * column + 32 i. */
template <int D> struct f32_rows {
    int row, column;
    float acc[2][D / 32][4];
    float top[2], sum[2];
};

/* Tokens [from, from + 32) of one head into shared memory; zeros past `limit`. */
template <int D>
DEV_FUNCTION void f32_fetch(const float *array, int64_t stride, int64_t first, int32_t from,
                            int32_t limit, float (*to)[D + 4])
{
    for (int i = (int)dev_thread(); i < F32_KEYS * D; i += DEV_THREADS) {
        int token = i / D, element = i % D;
        to[token][element] = 0; // [reset]
        if (from + token >= limit)
            continue; // [bound]
        to[token][element] = array[(first + from + token) * stride + element];
    }
}

template <int D, bool CAUSAL>
DEV_FUNCTION void f32_logits(const struct dev_tile &t, const struct f32_shared<D> &m,
                             const struct f32_rows<D> &r, int32_t key0, float scale_log2,
                             float (&s)[2][F32_KEYS / F32_COLUMNS])
{
    dev_undefined(s);
    for (int y = 0; y < 2; y++)
        for (int j = 0; j < F32_KEYS / F32_COLUMNS; j++)
            s[y][j] = 0; // [reset]
    for (int i = 0; i < D; i++)
        DEV_UNROLL
    for (int j = 0; j < F32_KEYS / F32_COLUMNS; j++) {
        float k = m.k[r.column + j * F32_COLUMNS][i];
        s[0][j] += m.q[r.row][i] * k;
        s[1][j] += m.q[r.row + 1][i] * k;
    }
    for (int y = 0; y < 2; y++)
        DEV_UNROLL
    for (int j = 0; j < F32_KEYS / F32_COLUMNS; j++) {
        int32_t key = key0 + r.column + j * F32_COLUMNS;
        s[y][j] *= scale_log2;
        if (key >= t.keys)
            s[y][j] = -INFINITY; // [mask]
        if (CAUSAL && key > t.row0 + r.row + y)
            s[y][j] = -INFINITY; // [mask]
    }
}

/* Logits become weights, shared among the threads of the row through m.p. */
template <int D>
DEV_FUNCTION void f32_softmax(struct f32_shared<D> &m, struct f32_rows<D> &r,
                              float (&s)[2][F32_KEYS / F32_COLUMNS])
{
    DEV_UNROLL
    for (int y = 0; y < 2; y++) {
        float top = r.top[y];
        for (int j = 0; j < F32_KEYS / F32_COLUMNS; j++)
            top = fmaxf(top, s[y][j]);
        top = dev_quad_max(top);
        top = fmaxf(top, dev_shfl_xor(top, 4));
        float rescale = dev_exp2(r.top[y] - top);
        r.top[y] = top;
        r.sum[y] *= rescale;
        DEV_UNROLL
        for (int i = 0; i < D / 32; i++)
            for (int e = 0; e < 4; e++)
                r.acc[y][i][e] *= rescale;
        for (int j = 0; j < F32_KEYS / F32_COLUMNS; j++) {
            float weight = dev_exp2(s[y][j] - top);
            r.sum[y] += weight;
            m.p[r.row + y][r.column + j * F32_COLUMNS] = weight;
        }
    }
}

template <int D> DEV_FUNCTION void f32_values(const struct f32_shared<D> &m, struct f32_rows<D> &r)
{
    for (int key = 0; key < F32_KEYS; key++) {
        float p0 = m.p[r.row][key], p1 = m.p[r.row + 1][key];
        DEV_UNROLL
        for (int i = 0; i < D / 32; i++)
            DEV_UNROLL
        for (int e = 0; e < 4; e++) {
            float v = m.v[key][i * 32 + r.column * 4 + e];
            r.acc[0][i][e] += p0 * v;
            r.acc[1][i][e] += p1 * v;
        }
    }
}

template <int D>
DEV_FUNCTION void f32_store(const struct pd_attention &a, const struct dev_tile &t,
                            const struct f32_rows<D> &r)
{
    for (int y = 0; y < 2; y++) {
        int32_t row = t.row0 + r.row + y;
        float sum = dev_quad_sum(r.sum[y]);
        sum += dev_shfl_xor(sum, 4);
        float inverse = 0;
        if (sum > 0) // [guard]
            inverse = 1.0f / sum;
        if (row >= t.length)
            continue; // [bound]
        float *out = (float *)a.out + (t.first + row) * a.out_stride + (int64_t)t.head * D;
        for (int i = 0; i < D / 32; i++)
            for (int e = 0; e < 4; e++)
                out[i * 32 + r.column * 4 + e] = r.acc[y][i][e] * inverse;
        if (a.lse && r.column == 0)
            a.lse[(int64_t)t.head * a.tokens + t.first + row] =
                sum > 0 ? (r.top[y] + dev_log2(sum)) * 0.693147181f : INFINITY;
    }
}

template <int D, bool CAUSAL> DEV_KERNEL(DEV_THREADS) attention_f32(const struct pd_attention a)
{
    struct f32_shared<D> &m = *(struct f32_shared<D> *)dev_shared();
    struct dev_tile t;
    struct f32_rows<D> r;
    if (!dev_find_tile<F32_ROWS>(a, t))
        return;
    dev_undefined(r);
    r.row = (int)dev_thread() / F32_COLUMNS * 2;
    r.column = (int)dev_thread() % F32_COLUMNS;
    for (int y = 0; y < 2; y++) {
        r.top[y] = -INFINITY; // [reset]
        r.sum[y] = 0;         // [reset]
        for (int i = 0; i < D / 32 * 4; i++)
            r.acc[y][i / 4][i % 4] = 0; // [reset]
    }
    int64_t kv = (int64_t)t.head_kv * D;
    f32_fetch<D>((const float *)a.q + (int64_t)t.head * D, a.q_stride, t.first, t.row0, t.length,
                 m.q);
    int32_t end = dev_key_end<F32_ROWS, CAUSAL>(t);
    for (int32_t key0 = 0; key0 < end; key0 += F32_KEYS) {
        float s[2][F32_KEYS / F32_COLUMNS];
        f32_fetch<D>((const float *)a.k + kv, a.k_stride, t.first, key0, t.keys, m.k);
        f32_fetch<D>((const float *)a.v + kv, a.v_stride, t.first, key0, t.keys, m.v);
        dev_barrier(); // [barrier] the tile is there for all
        f32_logits<D, CAUSAL>(t, m, r, key0, a.scale * 1.44269504f, s);
        f32_softmax<D>(m, r, s);
        dev_warp_sync(); // [barrier] the row's weights are there for its eight threads
        f32_values<D>(m, r);
        dev_barrier(); // [barrier] all have done with the tile
    }
    f32_store<D>(a, t, r);
}

/* ---- which kernel, how many blocks ---- */

struct dev_plan {
    uint32_t grid_x, grid_y, shared_bytes;
};

/* PD_EINVAL ATTENTION_SHAPE names the rule; the kernels rely on each of them. */
static int dev_plan_attention(const struct pd_attention *a, struct dev_plan *plan,
                              struct pd_error *error)
{
    bool bf16 = a->dtype == PD_ATTENTION_BF16, sums = a->sums != NULL;
    bool heads =
        a->heads > 0 && a->heads <= 65535 && a->heads_kv > 0 && a->heads % a->heads_kv == 0;
    bool dim =
        sums ? bf16 && a->head_dim == 64 && a->row_sum : a->head_dim == 64 || a->head_dim == 128;
    bool strides = (a->q_stride | a->k_stride | a->v_stride | a->out_stride) % 8 == 0;
    bool aligned =
        ((uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v | (uintptr_t)a->out) % 16 == 0;
    uint64_t rows = bf16 ? (uint64_t)BF16_ROWS : (uint64_t)F32_ROWS;
    uint64_t blocks = a->tokens / rows + a->segment_count;
    if (!heads || !dim || !strides || !aligned || a->segment_count == 0 || blocks > 0x7fffffffu ||
        !(a->scale > 0))
        return pd_error_set(
            error, PD_EINVAL, "ATTENTION_SHAPE",
            "attention: %u heads over %u KV heads, head dim %u, %u segments, %llu blocks: "
            "heads must be a multiple of KV heads and at most 65535, head dim 64 or 128 "
            "(64 in bf16 for sums), strides multiples of 8, arrays 16-byte aligned, scale positive",
            a->heads, a->heads_kv, a->head_dim, a->segment_count, (unsigned long long)blocks);
    plan->grid_x = (uint32_t)blocks;
    plan->grid_y = a->heads;
    if (bf16)
        plan->shared_bytes = a->head_dim == 64 ? (uint32_t)bf16_shared<64>::BYTES
                                               : (uint32_t)bf16_shared<128>::BYTES;
    else
        plan->shared_bytes = a->head_dim == 64 ? (uint32_t)sizeof(struct f32_shared<64>)
                                               : (uint32_t)sizeof(struct f32_shared<128>);
    return 0;
}

/* Calls LAUNCH(kernel) with the one kernel that fits a planned pd_attention. */
#define DEV_ATTENTION_KERNEL(a, LAUNCH)                                                        \
    ((a)->sums ? ((a)->causal ? LAUNCH((attention_bf16<64, true, true>))                       \
                              : LAUNCH((attention_bf16<64, false, true>)))                     \
     : (a)->dtype == PD_ATTENTION_BF16                                                         \
         ? ((a)->head_dim == 64 ? ((a)->causal ? LAUNCH((attention_bf16<64, true, false>))     \
                                               : LAUNCH((attention_bf16<64, false, false>)))   \
                                : ((a)->causal ? LAUNCH((attention_bf16<128, true, false>))    \
                                               : LAUNCH((attention_bf16<128, false, false>)))) \
         : ((a)->head_dim == 64 ? ((a)->causal ? LAUNCH((attention_f32<64, true>))             \
                                               : LAUNCH((attention_f32<64, false>)))           \
                                : ((a)->causal ? LAUNCH((attention_f32<128, true>))            \
                                               : LAUNCH((attention_f32<128, false>)))))

#endif
