/* What computes: the CPU, a CUDA device, or (in tests) the kernels' source on the CPU. One small
 * table of functions each.
 *
 * A backend belongs to one thread, the validator's. Errors: PD_EDEVICE where a device failed,
 * PD_ENOMEM, PD_EINVAL for a shape it does not have. */
#ifndef PD_GPU_BACKEND_H
#define PD_GPU_BACKEND_H

#include "gpu/attention.h"
#include "gpu/validator.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pd_backend {
    const char *name; /* "cpu", "cuda", "simt" */
    char device[96];  /* for people */
    bool is_device;   /* its verdicts of guilt are confirmed on the CPU; it can be retired */
    struct pd_validator_memory memory;
    /* One attention over host arrays; waits. For the self-test: may allocate. */
    int (*attention)(struct pd_backend *self, const struct pd_attention *attention,
                     struct pd_error *error);
    /* Starts the probe of an admitted batch in slot 0 or 1; the arrays stay borrowed until
     * collected. */
    int (*submit)(struct pd_backend *self, uint32_t slot, const struct pd_probe_batch *batch,
                  const int32_t *positions, struct pd_error *error);
    /* Waits for the slot; or-s the kinds of all tokens into kinds[T]. */
    int (*collect)(struct pd_backend *self, uint32_t slot, uint8_t *kinds, struct pd_error *error);
    void (*free)(struct pd_backend *self);
};

int pd_backend_cpu_new(struct pd_backend **backend, struct pd_error *error) PD_MUST_CHECK;
/* PD_EUNAVAIL CUDA_ABSENT, PD_EDEVICE CUDA_FAILED, PD_ENOMEM: see pd_validator_new. */
int pd_backend_cuda_new(const struct pd_validator_limits *limits, struct pd_backend **backend,
                        struct pd_error *error) PD_MUST_CHECK;

/* A validator over a backend that was made elsewhere; takes *backend (NULL: "off") and nulls it,
 * also on error. */
int pd_validator_adopt(struct pd_backend **backend, const struct pd_validator_limits *limits,
                       const struct pd_validator_notice *notice, struct pd_validator **validator,
                       struct pd_error *error) PD_MUST_CHECK;

/* The self-test of one backend (selftest.c). PD_EINTERNAL SELFTEST_FAILED with report->failure;
 * else what the backend returned. */
int pd_selftest_run(struct pd_backend *backend, struct pd_selftest_report *report,
                    struct pd_error *error) PD_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
