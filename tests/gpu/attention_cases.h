/* Attention over random numbers, held against the oracle: what the tests of the CPU backend, of
 * the kernel on the SIMT machine and of a device have in common. */
#ifndef PD_TESTS_GPU_ATTENTION_CASES_H
#define PD_TESTS_GPU_ATTENTION_CASES_H

#include "gpu/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct attention_shape {
    const int32_t *lengths; /* of the segments */
    uint32_t segments;
    const int32_t *used; /* keys of each segment, or NULL */
    uint32_t lead,
        tail; /* tokens before the first and behind the last segment, which must stay untouched */
    uint32_t heads, heads_kv, head_dim;
    enum pd_attention_dtype dtype;
    bool causal;
};

/* Outcome of one case. */
struct attention_error {
    double error;     /* max |out - fp64| */
    double bound;     /* 2 x the same of a plain evaluation in the operands' precision */
    double lse_error; /* max |lse - fp64|, relative to 1 + |lse| */
    bool strayed;     /* wrote where it must not, or left a query unwritten */
    int rc;
    struct pd_error text;
};

/* Runs one case. Arrays end at unmapped pages; tokens outside every segment hold NaN. */
struct attention_error attention_case(struct pd_backend *backend,
                                      const struct attention_shape *shape, uint64_t seed);

#ifdef __cplusplus
}
#endif

#endif
