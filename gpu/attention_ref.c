/* The oracle: attention from its definition, in fp64, one query at a time.
 *
 * Every faster version (attention_cpu.c, attention_kernel.cuh on a device and on the CPU) is
 * compared with this one, so it is written to be read, not to be fast: two passes over a query's
 * keys, no tiles, no running maximum. pd_attention_weights goes one step further back, to the
 * full matrix with a mask that is looked up entry by entry; it is what "no sample attends to
 * another" means. Any thread, no allocation. */
#include "gpu/attention.h"

#include "base/arith.h"

#include <math.h>
#include <string.h>

uint16_t pd_bf16_of(float value)
{
    uint32_t bits = pd_float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float pd_bf16_to(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

void pd_attention_pack(struct pd_attention *attention)
{
    attention->q_stride = attention->out_stride = (int64_t)attention->heads * attention->head_dim;
    attention->k_stride = attention->v_stride = (int64_t)attention->heads_kv * attention->head_dim;
}

/* head_dim elements from `at` on, widened. */
static void load(const struct pd_attention *attention, const void *array, int64_t at, double *row)
{
    for (uint32_t i = 0; i < attention->head_dim; i++)
        row[i] = attention->dtype == PD_ATTENTION_F32
                     ? (double)((const float *)array)[at + i]
                     : (double)pd_bf16_to(((const uint16_t *)array)[at + i]);
}

static double dot(uint32_t n, const double *a, const double *b)
{
    double sums[4] = {0}; /* four chains; head_dim is a multiple of four */
    for (uint32_t i = 0; i < n; i += 4)
        for (uint32_t j = 0; j < 4; j++)
            sums[j] += a[i + j] * b[i + j];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* One query over the keys [first, end): its output and lse. Two passes: the maximum, then the
 * weights. */
static double query_row(const struct pd_attention *attention, uint32_t head, int64_t query,
                        int64_t first, int64_t end, bool round_weights, double *out)
{
    uint32_t group = attention->heads / attention->heads_kv, dim = attention->head_dim;
    int64_t kv = (int64_t)(head / group) * dim;
    double q[PD_ATTENTION_DIM_MAX], row[PD_ATTENTION_DIM_MAX], top = -INFINITY, sum = 0;
    double scale = (double)attention->scale;
    load(attention, attention->q, query * attention->q_stride + (int64_t)head * dim, q);
    memset(out, 0, dim * sizeof(*out));
    for (int64_t key = first; key < end; key++) {
        load(attention, attention->k, key * attention->k_stride + kv, row);
        top = fmax(top, scale * dot(dim, q, row));
    }
    for (int64_t key = first; key < end; key++) {
        load(attention, attention->k, key * attention->k_stride + kv, row);
        double weight = exp(scale * dot(dim, q, row) - top);
        sum += weight;
        if (round_weights)
            weight = (double)pd_bf16_to(pd_bf16_of((float)weight));
        load(attention, attention->v, key * attention->v_stride + kv, row);
        for (uint32_t i = 0; i < dim; i++)
            out[i] += weight * row[i];
    }
    for (uint32_t i = 0; i < dim && first < end; i++)
        out[i] /= sum;
    return first < end ? top + log(sum) : INFINITY;
}

static int64_t key_end(const struct pd_attention *attention, uint32_t segment, int64_t query)
{
    int64_t first = attention->cu_seqlens[segment], end = attention->cu_seqlens[segment + 1];
    if (attention->seq_used && first + attention->seq_used[segment] < end)
        end = first + attention->seq_used[segment];
    return attention->causal && query + 1 < end ? query + 1 : end;
}

void pd_attention_ref(const struct pd_attention *attention, bool round_weights, double *out,
                      double *lse)
{
    uint32_t dim = attention->head_dim;
    for (uint32_t s = 0; s < attention->segment_count; s++)
        for (int64_t t = attention->cu_seqlens[s]; t < attention->cu_seqlens[s + 1]; t++)
            for (uint32_t h = 0; h < attention->heads; h++) {
                double value =
                    query_row(attention, h, t, attention->cu_seqlens[s], key_end(attention, s, t),
                              round_weights, out + (t * attention->heads + h) * dim);
                if (lse)
                    lse[(int64_t)h * attention->tokens + t] = value;
            }
}

void pd_attention_ref_rows(const struct pd_attention *attention, uint32_t head, uint32_t first,
                           uint32_t end, double *out)
{
    for (uint32_t s = 0; s < attention->segment_count; s++)
        for (uint32_t t = first; t < end; t++)
            if ((int64_t)t >= attention->cu_seqlens[s] && (int64_t)t < attention->cu_seqlens[s + 1])
                query_row(attention, head, t, attention->cu_seqlens[s], key_end(attention, s, t),
                          false, out + (size_t)(t - first) * attention->head_dim);
}

/* Turns a row of logits into softmax weights over the allowed entries. */
static void softmax_row(uint32_t n, const uint8_t *allowed, double *row)
{
    double top = -INFINITY, sum = 0;
    for (uint32_t s = 0; s < n; s++)
        if (!allowed || allowed[s])
            top = fmax(top, row[s]);
    for (uint32_t s = 0; s < n; s++) {
        row[s] = !allowed || allowed[s] ? exp(row[s] - top) : 0.0;
        sum += row[s];
    }
    for (uint32_t s = 0; s < n && sum > 0; s++)
        row[s] /= sum;
}

void pd_attention_weights(uint32_t n, uint32_t head_dim, const float *q, const float *k,
                          float scale, const uint8_t *allowed, double *weights)
{
    for (uint32_t t = 0; t < n; t++) {
        double *row = weights + (size_t)t * n;
        for (uint32_t s = 0; s < n; s++) {
            double sum = 0;
            for (uint32_t i = 0; i < head_dim; i++)
                sum += (double)q[(size_t)t * head_dim + i] * (double)k[(size_t)s * head_dim + i];
            row[s] = sum * (double)scale;
        }
        softmax_row(n, allowed ? allowed + (size_t)t * n : NULL, row);
    }
}

void pd_attention_block_mask(uint32_t tokens, uint32_t width, const int32_t *segment_ids,
                             const int32_t *positions, bool causal, uint8_t *allowed)
{
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t s = 0; s < tokens; s++)
            allowed[(size_t)t * tokens + s] = t / width == s / width && segment_ids[t] > 0 &&
                                              segment_ids[t] == segment_ids[s] &&
                                              (!causal || positions[s] <= positions[t]);
}
