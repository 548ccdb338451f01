/* Attention over random numbers, held against the oracle.
 *
 * The rule of FlashAttention's own tests: the error against fp64 may be at most twice that of a
 * plain evaluation in the operands' precision. For bf16 that is the oracle with its weights and
 * its output rounded to bf16; for fp32 the same with a float's rounding. Everything outside the
 * segments is NaN, so that a key or value fetched from a neighbour poisons the result instead of
 * changing it a little. */
#include "tests/gpu/attention_cases.h"

#include "gpu/probe_cases.h"
#include "tests/gpu/guarded.h"

#include <math.h>
#include <string.h>

/* Roughly normal, within 4: sum of uniform numbers. */
static float random_value(uint64_t *state)
{
    uint64_t bits = pd_case_random(state);
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)(bits >> (16 * i) & 0xffff) / 65536.0 - 0.5;
    return (float)(sum * 2.0);
}

static size_t element_bytes(enum pd_attention_dtype dtype)
{
    return dtype == PD_ATTENTION_F32 ? 4 : 2;
}

static void put_value(enum pd_attention_dtype dtype, void *array, size_t index, float value)
{
    uint16_t bits = pd_bf16_of(value);
    if (dtype == PD_ATTENTION_F32)
        memcpy((float *)array + index, &value, 4);
    else
        memcpy((uint16_t *)array + index, &bits, 2);
}

static double get_value(enum pd_attention_dtype dtype, const void *array, size_t index)
{
    if (dtype == PD_ATTENTION_F32)
        return (double)((const float *)array)[index];
    return (double)pd_bf16_to(((const uint16_t *)array)[index]);
}

/* [tokens, heads * dim], random inside [lead, end), NaN outside. */
static struct guarded random_array(const struct pd_attention *a, uint32_t heads, uint32_t lead,
                                   uint32_t end, uint64_t *state)
{
    size_t width = (size_t)heads * a->head_dim;
    struct guarded made = guarded_new(a->tokens * width * element_bytes(a->dtype));
    for (uint32_t t = 0; t < a->tokens; t++)
        for (size_t i = 0; i < width; i++)
            put_value(a->dtype, made.data, t * width + i,
                      t >= lead && t < end ? random_value(state) : NAN);
    return made;
}

static void compare(const struct pd_attention *a, const int32_t *cu, uint32_t segments,
                    const double *exact, const double *exact_lse, const double *rounded,
                    struct attention_error *result)
{
    size_t width = (size_t)a->heads * a->head_dim;
    double plain = 0, grain = 0;
    for (uint32_t t = 0; t < a->tokens; t++) {
        bool covered = (int32_t)t >= cu[0] && (int32_t)t < cu[segments];
        for (size_t i = t * width; i < (t + 1) * width; i++) {
            double out = get_value(a->dtype, a->out, i);
            if (!covered || isnan(out)) {
                result->strayed |= covered || !isnan(out);
                continue;
            }
            double low = a->dtype == PD_ATTENTION_F32
                             ? (double)(float)rounded[i]
                             : (double)pd_bf16_to(pd_bf16_of((float)rounded[i]));
            plain = fmax(plain, fabs(low - exact[i]));
            grain = fmax(grain, fabs(exact[i]));
            result->error = fmax(result->error, fabs(out - exact[i]));
        }
        for (uint32_t h = 0; h < a->heads && covered; h++) {
            size_t at = (size_t)h * a->tokens + t;
            double gap = isinf(exact_lse[at]) ? (isinf(a->lse[at]) ? 0 : 1)
                                              : fabs((double)a->lse[at] - exact_lse[at]);
            result->lse_error = fmax(result->lse_error, gap / (1 + fmin(fabs(exact_lse[at]), 100)));
        }
    }
    /* fp32 has no coarser operand to round: allow the length of the sums, in units of float's
     * epsilon */
    result->bound = 2 * plain + (a->dtype == PD_ATTENTION_F32 ? grain * 32 * 1.2e-7 : 0) + 1e-7;
}

struct attention_error attention_case(struct pd_backend *backend,
                                      const struct attention_shape *shape, uint64_t seed)
{
    struct attention_error result = {.rc = 0};
    struct guarded cu_memory = guarded_new((shape->segments + 1) * 4);
    int32_t *cu = (int32_t *)(void *)cu_memory.data;
    cu[0] = (int32_t)shape->lead;
    for (uint32_t i = 0; i < shape->segments; i++)
        cu[i + 1] = cu[i] + shape->lengths[i];
    uint32_t end = (uint32_t)cu[shape->segments];
    struct pd_attention a = {.tokens = end + shape->tail,
                             .segment_count = shape->segments,
                             .cu_seqlens = cu,
                             .seq_used = shape->used,
                             .heads = shape->heads,
                             .heads_kv = shape->heads_kv,
                             .head_dim = shape->head_dim,
                             .dtype = shape->dtype,
                             .causal = shape->causal,
                             .scale = 1.0f / sqrtf((float)shape->head_dim)};
    pd_attention_pack(&a);
    size_t cells = (size_t)a.tokens * a.heads * a.head_dim, rows = (size_t)a.tokens * a.heads;
    struct guarded q = random_array(&a, a.heads, shape->lead, end, &seed);
    struct guarded k = random_array(&a, a.heads_kv, shape->lead, end, &seed);
    struct guarded v = random_array(&a, a.heads_kv, shape->lead, end, &seed);
    struct guarded out = guarded_new(cells * element_bytes(a.dtype));
    struct guarded lse = guarded_new(rows * 4);
    double *exact = calloc(cells * 2 + rows, sizeof(double));
    a.q = q.data;
    a.k = k.data;
    a.v = v.data;
    a.out = out.data;
    a.lse = (float *)(void *)lse.data;
    memset(out.data, 0xff, cells * element_bytes(a.dtype)); /* NaN */
    result.rc = exact ? backend->attention(backend, &a, &result.text) : PD_ENOMEM;
    if (result.rc == 0) {
        pd_attention_ref(&a, false, exact, exact + 2 * cells);
        pd_attention_ref(&a, a.dtype == PD_ATTENTION_BF16, exact + cells, NULL);
        compare(&a, cu, shape->segments, exact, exact + 2 * cells, exact + cells, &result);
    }
    free(exact);
    guarded_free(&q);
    guarded_free(&k);
    guarded_free(&v);
    guarded_free(&out);
    guarded_free(&lse);
    guarded_free(&cu_memory);
    return result;
}
