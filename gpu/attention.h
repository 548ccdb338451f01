/* Variable-length attention, forward: one description for the fp64 oracle, the CPU backend, the
 * CUDA kernel and its run on the CPU.
 *
 *   q   [tokens, heads, head_dim]       out [tokens, heads, head_dim]
 *   k,v [tokens, heads_kv, head_dim]    query head h reads KV head h / (heads / heads_kv)
 *
 * Segment i is tokens [cu_seqlens[i], cu_seqlens[i+1]); its queries see its own keys only: those
 * up to themselves when causal, and of these the first seq_used[i]. A query that sees no key gets
 * 0 and lse = +inf. Tokens outside every segment are not written. cu_seqlens must be ascending
 * within [0, tokens]: see pd_probe_admit. */
#ifndef PD_GPU_ATTENTION_H
#define PD_GPU_ATTENTION_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum pd_attention_dtype { PD_ATTENTION_F32, PD_ATTENTION_BF16 };

struct pd_attention {
    const void *q, *k, *v; /* of `dtype`; 16-byte aligned */
    void *out;             /* of `dtype`; NULL where only sums are wanted */
    float *lse;            /* [heads, tokens] log of the row's sum of exp(scale * q.k), or NULL */

    /* The debug path, bf16 and head_dim 64: unnormalised sums over the row's keys of exp(scale *
     * q.k) * v, without subtracting a maximum, flushed to 32-bit integers every 2^16 keys. Exact
     * where logits are 0 and v is whole numbers of at most 255. Added to what is there: start
     * from zeros. NULL: not wanted. */
    int32_t *sums;    /* [tokens, heads, head_dim] */
    int32_t *row_sum; /* [tokens, heads] sum of exp(scale * q.k) */

    const int32_t *cu_seqlens; /* [segment_count + 1] */
    const int32_t *seq_used;   /* [segment_count] keys of each segment, or NULL: all */
    uint32_t segment_count, tokens;
    uint32_t heads, heads_kv, head_dim; /* head_dim 64 or 128 on a device */
    /* elements from one token to the next, a multiple of 8 on a device; 0 repeats one token */
    int64_t q_stride, k_stride, v_stride, out_stride;
    enum pd_attention_dtype dtype;
    bool causal;
    float scale; /* usually 1 / sqrt(head_dim) */
};

/* Dense strides for these heads and head_dim. */
void pd_attention_pack(struct pd_attention *attention);

/* bf16 as its 16 bits; round to nearest even. */
uint16_t pd_bf16_of(float value);
float pd_bf16_to(uint16_t bits);

/* The oracle: fp64, one row at a time, from the definition. out[tokens, heads, head_dim] and
 * lse[heads, tokens] (NULL: not wanted); attention->out and ->lse are not used. With
 * `round_weights` the weights are rounded to bf16 before they meet v, as a kernel with bf16
 * operands must: the baseline its error is measured against. Any thread, no allocation; head_dim
 * a multiple of 4, at most 256. */
#define PD_ATTENTION_DIM_MAX 256
void pd_attention_ref(const struct pd_attention *attention, bool round_weights, double *out,
                      double *lse);
/* The same for tokens [first, end) of one head alone: out[end - first, head_dim]. */
void pd_attention_ref_rows(const struct pd_attention *attention, uint32_t head, uint32_t first,
                           uint32_t end, double *out);

/* Softmax weights of one head with a dense mask: weights[n, n] = softmax(scale * q k^T) over the
 * keys with allowed[n, n] != 0 (NULL: all). A row without keys is all 0. q, k [n, head_dim]. */
void pd_attention_weights(uint32_t n, uint32_t head_dim, const float *q, const float *k,
                          float scale, const uint8_t *allowed, double *weights);

/* The block mask of a packed batch: allowed[t, s] where both have the same batch row and segment
 * id and, when causal, position[s] <= position[t]. Padding and gaps (id 0) see nothing. [tokens,
 * tokens] bytes. */
void pd_attention_block_mask(uint32_t tokens, uint32_t width, const int32_t *segment_ids,
                             const int32_t *positions, bool causal, uint8_t *allowed);

/* The CPU backend: tiled fp32, vectorised by the compiler, for either dtype (bf16 is widened;
 * weights stay fp32). The same call gives the same bits. Any thread; no allocation, 192 KiB of
 * stack. PD_EINVAL ATTENTION_SHAPE: heads not a multiple of heads_kv, a head_dim not a multiple
 * of 16 or above 256, sums asked for with fp32. */
int pd_attention_cpu(const struct pd_attention *attention, struct pd_error *error) PD_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
