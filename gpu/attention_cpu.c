/* The CPU backend of the attention: fp32 in tiles, vectorised by the compiler.
 *
 * For each segment and head, TILE_Q queries meet TILE_K keys at a time. The key tile is
 * transposed once, so that a vector lane is a key when logits are made and an element of the head
 * when values are added: no lane ever has to be summed across, hence no reordering and the same
 * bits on every run. Softmax is the online form: a running maximum and sum per row, the
 * accumulator rescaled when the maximum rises. Keys past the segment's end and queries past it
 * are zeros in the tile; such keys are masked to -inf.
 *
 * In production it serves the self-test of nodes without a GPU and stands behind every device
 * verdict; the probe itself uses probe_cpu.c. Any thread; tiles live on the stack. Does not
 * validate cu_seqlens. */
#include "gpu/attention.h"
#include "gpu/cpu_levels.h"

#include <math.h>
#include <string.h>

enum { TILE_Q = 64, TILE_K = 64, ROWS = 4, LANES = 16, DIM_MAX = PD_ATTENTION_DIM_MAX };
enum { STRIDE = DIM_MAX + LANES }; /* not a power of two: rows would share a cache's sets */

/* What one (segment, head, query tile) works on. */
struct tile {
    float q[TILE_Q][STRIDE];   /* scaled by scale * log2(e) */
    float kt[DIM_MAX][TILE_K]; /* key tile, transposed */
    float v[TILE_K][STRIDE];
    float p[TILE_Q][TILE_K]; /* logits, then weights */
    float acc[TILE_Q][STRIDE];
    float top[TILE_Q], sum[TILE_Q];
};

struct job {
    const struct pd_attention *a;
    uint32_t segment, head, head_kv;
    int64_t first;  /* the segment's first token */
    int32_t length; /* its queries */
    int32_t keys;   /* its keys */
    int32_t row0;   /* the tile's first query */
};

/* 2^x for x <= 0, within 2 ulp; 0 below -126 and for -inf. Whole part into the exponent, a
 * polynomial for the rest. */
PD_CPU_BODY float exp2_fast(float x)
{
    float bounded = x < -127.0f ? -127.0f : x;
    int32_t whole = (int32_t)(bounded - 0.5f); /* rounds half away from zero: bounded <= 0 */
    float f = bounded - (float)whole;
    float y = 1.535336188e-4f;
    y = y * f + 1.339887440e-3f;
    y = y * f + 9.618437357e-3f;
    y = y * f + 5.550332420e-2f;
    y = y * f + 2.402264791e-1f;
    y = y * f + 6.931472028e-1f;
    y = y * f + 1.0f;
    int32_t bits = (whole + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return whole <= -127 ? 0.0f : y * power;
}

PD_CPU_BODY void load_row(const struct pd_attention *a, const void *array, int64_t at, float *row)
{
    if (a->dtype == PD_ATTENTION_F32) {
        memcpy(row, (const float *)array + at, a->head_dim * sizeof(float));
        return;
    }
    const uint16_t *bits = (const uint16_t *)array + at;
    for (uint32_t i = 0; i < a->head_dim; i++) {
        uint32_t wide = (uint32_t)bits[i] << 16;
        memcpy(&row[i], &wide, 4);
    }
}

PD_CPU_BODY void load_queries(const struct job *job, struct tile *tile)
{
    const struct pd_attention *a = job->a;
    float factor = a->scale * 1.44269504088896f;
    memset(tile->q, 0, sizeof(tile->q));
    memset(tile->acc, 0, sizeof(tile->acc));
    for (int32_t r = 0; r < TILE_Q; r++) {
        tile->top[r] = -INFINITY;
        tile->sum[r] = 0;
        if (job->row0 + r >= job->length)
            continue;
        load_row(a, a->q,
                 (job->first + job->row0 + r) * a->q_stride + (int64_t)job->head * a->head_dim,
                 tile->q[r]);
        for (uint32_t i = 0; i < a->head_dim; i++)
            tile->q[r][i] *= factor;
    }
}

PD_CPU_BODY void load_keys(const struct job *job, int32_t key0, struct tile *tile)
{
    const struct pd_attention *a = job->a;
    float row[DIM_MAX];
    for (int32_t j = 0; j < TILE_K; j++) {
        memset(row, 0, a->head_dim * sizeof(float));
        memset(tile->v[j], 0, a->head_dim * sizeof(float));
        if (key0 + j < job->keys) {
            int64_t token = job->first + key0 + j, at = (int64_t)job->head_kv * a->head_dim;
            load_row(a, a->k, token * a->k_stride + at, row);
            load_row(a, a->v, token * a->v_stride + at, tile->v[j]);
        }
        for (uint32_t i = 0; i < a->head_dim; i++)
            tile->kt[i][j] = row[i];
    }
}

/* Vectors as wide as one register with AVX, and without. */
typedef float wide_t __attribute__((vector_size(32), aligned(4), may_alias));
typedef float narrow_t __attribute__((vector_size(16), aligned(4), may_alias));

/* out[rows][columns] += left[rows][inner] * right[inner][columns]; strides in floats. rows a
 * multiple of ROWS, columns of LANES. */
struct product {
    const float *left, *right;
    float *out;
    uint32_t left_stride, right_stride, out_stride;
    uint32_t rows, inner, columns;
};

/* Rows r to r + 3, two vectors of columns from c on: the eight sums stay in registers while each
 * element of `right` is used four times. */
#define DEFINE_MULTIPLY(name, vector_t)                                          \
    PD_CPU_BODY void name(const struct product *p, uint32_t r, uint32_t c)       \
    {                                                                            \
        const float *left = p->left + r * p->left_stride, *right = p->right + c; \
        float *out = p->out + r * p->out_stride + c;                             \
        vector_t sums[ROWS][2];                                                  \
        for (uint32_t y = 0; y < ROWS; y++)                                      \
            memcpy(sums[y], out + y * p->out_stride, sizeof(sums[y]));           \
        for (uint32_t i = 0; i < p->inner; i++, right += p->right_stride) {      \
            const vector_t *columns = (const vector_t *)right;                   \
            vector_t first = columns[0], second = columns[1];                    \
            _Pragma("GCC unroll 4") for (uint32_t y = 0; y < ROWS; y++)          \
            {                                                                    \
                sums[y][0] += left[i + y * p->left_stride] * first;              \
                sums[y][1] += left[i + y * p->left_stride] * second;             \
            }                                                                    \
        }                                                                        \
        for (uint32_t y = 0; y < ROWS; y++)                                      \
            memcpy(out + y * p->out_stride, sums[y], sizeof(sums[y]));           \
    }
DEFINE_MULTIPLY(multiply_wide, wide_t)
DEFINE_MULTIPLY(multiply_narrow, narrow_t)

PD_CPU_BODY void multiply(bool wide, struct product p)
{
    for (uint32_t r = 0; r < p.rows; r += ROWS)
        for (uint32_t c = 0; c < p.columns; c += wide ? LANES : LANES / 2)
            if (wide)
                multiply_wide(&p, r, c);
            else
                multiply_narrow(&p, r, c);
}

/* p = q k^T. */
PD_CPU_BODY void make_logits(struct tile *tile, bool wide, uint32_t rows, uint32_t dim)
{
    memset(tile->p, 0, sizeof(tile->p));
    multiply(wide, (struct product){.left = (const float *)tile->q,
                                    .right = (const float *)tile->kt,
                                    .out = (float *)tile->p,
                                    .left_stride = STRIDE,
                                    .right_stride = TILE_K,
                                    .out_stride = TILE_K,
                                    .rows = rows,
                                    .inner = dim,
                                    .columns = TILE_K});
}

/* acc += p v. */
PD_CPU_BODY void add_values(struct tile *tile, bool wide, uint32_t rows, uint32_t dim)
{
    multiply(wide, (struct product){.left = (const float *)tile->p,
                                    .right = (const float *)tile->v,
                                    .out = (float *)tile->acc,
                                    .left_stride = TILE_K,
                                    .right_stride = STRIDE,
                                    .out_stride = STRIDE,
                                    .rows = rows,
                                    .inner = TILE_K,
                                    .columns = dim});
}

PD_CPU_BODY void mask_row(const struct job *job, int32_t key0, int32_t r, float *p)
{
    int32_t end = job->keys;
    if (job->a->causal && job->row0 + r + 1 < end)
        end = job->row0 + r + 1;
    for (int32_t j = end > key0 ? end - key0 : 0; j < TILE_K; j++)
        p[j] = -INFINITY;
}

/* Logits of one row become weights; the row's sum and accumulator follow the maximum. Every row
 * has seen key 0 in its first tile, so the maximum is finite. */
PD_CPU_BODY void softmax_row(struct tile *tile, int32_t r, uint32_t dim, bool sums)
{
    float *p = tile->p[r], top = sums ? 0.0f : tile->top[r], sum = 0, lanes[LANES];
    for (int32_t x = 0; x < LANES; x++)
        lanes[x] = top;
    for (int32_t j = 0; j < TILE_K && !sums; j += LANES)
        for (int32_t x = 0; x < LANES; x++)
            lanes[x] = lanes[x] > p[j + x] ? lanes[x] : p[j + x];
    for (int32_t x = 0; x < LANES; x++)
        top = top > lanes[x] ? top : lanes[x];
    for (int32_t j = 0; j < TILE_K; j++)
        p[j] = exp2_fast(p[j] - top);
    for (int32_t x = 0; x < LANES; x++)
        lanes[x] = p[x] + p[x + 16] + p[x + 32] + p[x + 48];
    for (int32_t x = 0; x < LANES; x++)
        sum += lanes[x];
    float rescale = sums ? 1.0f : exp2_fast(tile->top[r] - top);
    tile->sum[r] = tile->sum[r] * rescale + sum;
    tile->top[r] = top;
    for (uint32_t i = 0; i < dim && rescale != 1.0f; i++)
        tile->acc[r][i] *= rescale;
}

/* Moves whole-number sums out of fp32 before they leave its exact range. */
PD_CPU_BODY void flush_sums(const struct job *job, struct tile *tile)
{
    const struct pd_attention *a = job->a;
    for (int32_t r = 0; r < TILE_Q && job->row0 + r < job->length; r++) {
        int64_t at = (job->first + job->row0 + r) * a->heads + job->head;
        for (uint32_t i = 0; i < a->head_dim; i++)
            a->sums[at * a->head_dim + i] += (int32_t)tile->acc[r][i];
        a->row_sum[at] += (int32_t)tile->sum[r];
    }
    memset(tile->acc, 0, sizeof(tile->acc));
    memset(tile->sum, 0, sizeof(tile->sum));
}

PD_CPU_BODY void store_tile(const struct job *job, struct tile *tile)
{
    const struct pd_attention *a = job->a;
    for (int32_t r = 0; r < TILE_Q && job->row0 + r < job->length; r++) {
        int64_t token = job->first + job->row0 + r;
        int64_t at = token * a->out_stride + (int64_t)job->head * a->head_dim;
        float inverse = tile->sum[r] > 0 ? 1.0f / tile->sum[r] : 0.0f;
        for (uint32_t i = 0; i < a->head_dim; i++) {
            float value = tile->acc[r][i] * inverse;
            if (a->dtype == PD_ATTENTION_F32)
                ((float *)a->out)[at + i] = value;
            else
                ((uint16_t *)a->out)[at + i] = pd_bf16_of(value);
        }
        if (a->lse)
            a->lse[(int64_t)job->head * a->tokens + token] =
                tile->sum[r] > 0 ? (tile->top[r] + log2f(tile->sum[r])) * 0.693147180559945f
                                 : INFINITY;
    }
}

PD_CPU_BODY void run_tile(const struct job *job)
{
    struct tile tile;
    uint32_t dim = job->a->head_dim;
    bool sums = job->a->sums != NULL, wide = pd_cpu_level() != PD_CPU_BASE;
    int32_t end = job->keys, rows = job->length - job->row0;
    if (job->a->causal && job->row0 + TILE_Q < end)
        end = job->row0 + TILE_Q;
    rows = rows < TILE_Q ? (rows + ROWS - 1) / ROWS * ROWS : TILE_Q;
    load_queries(job, &tile);
    for (int32_t key0 = 0; key0 < end; key0 += TILE_K) {
        load_keys(job, key0, &tile);
        make_logits(&tile, wide, (uint32_t)rows, dim);
        for (int32_t r = 0; r < rows; r++) {
            mask_row(job, key0, r, tile.p[r]);
            softmax_row(&tile, r, dim, sums);
        }
        add_values(&tile, wide, (uint32_t)rows, dim);
        if (sums && (key0 / TILE_K) % 1024 == 1023)
            flush_sums(job, &tile);
    }
    if (sums)
        flush_sums(job, &tile);
    else
        store_tile(job, &tile);
}

void pd_attention_cpu_tile(const struct job *job);
PD_CPU_CLONES(pd_attention_cpu_tile, run_tile, (const struct job *job), (job))

static int check_shape(const struct pd_attention *a, struct pd_error *error)
{
    bool heads = a->heads > 0 && a->heads_kv > 0 && a->heads % a->heads_kv == 0;
    bool dim = a->head_dim > 0 && a->head_dim % LANES == 0 && a->head_dim <= DIM_MAX;
    bool sums = !a->sums || (a->dtype == PD_ATTENTION_BF16 && a->row_sum);
    if (heads && dim && sums)
        return 0;
    return pd_error_set(
        error, PD_EINVAL, "ATTENTION_SHAPE",
        "attention: %u heads over %u KV heads, head dim %u: heads must be a multiple of "
        "KV heads, head dim one of %d up to %d, and sums need bf16 and row_sum",
        a->heads, a->heads_kv, a->head_dim, LANES, DIM_MAX);
}

int pd_attention_cpu(const struct pd_attention *a, struct pd_error *error)
{
    int rc = check_shape(a, error);
    for (uint32_t s = 0; rc == 0 && s < a->segment_count; s++) {
        struct job job = {.a = a,
                          .segment = s,
                          .first = a->cu_seqlens[s],
                          .length = a->cu_seqlens[s + 1] - a->cu_seqlens[s]};
        job.keys = a->seq_used && a->seq_used[s] < job.length ? a->seq_used[s] : job.length;
        for (job.head = 0; job.head < a->heads; job.head++) {
            job.head_kv = job.head / (a->heads / a->heads_kv);
            for (job.row0 = 0; job.row0 < job.length; job.row0 += TILE_Q)
                pd_attention_cpu_tile(&job);
        }
    }
    return rc;
}
