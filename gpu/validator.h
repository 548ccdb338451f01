/* The validator: probes batches on the GPU where there is one, on the CPU otherwise.
 *
 * One thread owns a validator (packd: the validate thread); with the CUDA backend that thread
 * owns the CUDA context too. No CUDA call is made before pd_validator_new, so fork first.
 *
 *     pd_validator_new -> selftest -> { probe | submit ... collect }* -> free
 *
 * A device that fails, or that reports a violation the CPU cannot confirm, is retired: the
 * validator goes on with the CPU, says so once through `notice`, and pd_validator_backend answers
 * "cpu" from then on. No call ever serves a verdict the CPU disagrees with. */
#ifndef PD_GPU_VALIDATOR_H
#define PD_GPU_VALIDATOR_H

#include "gpu/probe.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pd_validator;

/* Buffers are made for these at start, so that no batch allocates. */
struct pd_validator_limits {
    uint32_t tokens_max;   /* T of the largest batch */
    uint32_t segments_max; /* S of the largest batch */
};

/* Called at most once, on the owner's thread, from inside submit, collect, probe or selftest:
 * `what` is "DEVICE_ERROR" or "DEVICE_DISAGREES", `text` the reason in words. */
struct pd_validator_notice {
    void (*retired)(void *ctx, const char *what, const char *text); /* may be NULL */
    void *ctx;
};

/* Bytes a validator will take: on the host (pinned where it feeds a device) and on the device. */
struct pd_validator_memory {
    uint64_t host_bytes, device_bytes;
};

/* `backend`: "auto" (cuda where it works, else cpu), "cuda", "cpu" or "off" (every probe is
 * answered with PD_EUNSUPPORTED). With "auto" `fallback`, which may be NULL, says why the device
 * was not taken (code 0: it was). notice may be NULL; it is copied. PD_EINVAL BACKEND_UNKNOWN:
 * another name. PD_EINVAL LIMITS: 0, or more than the probe can hold. PD_EUNAVAIL CUDA_ABSENT:
 * "cuda" and the build has none, or no driver or device is there (the driver may also be too old
 * for the runtime). PD_EDEVICE CUDA_FAILED: a device that does not work. PD_ENOMEM. */
int pd_validator_new(const char *backend, const struct pd_validator_limits *limits,
                     const struct pd_validator_notice *notice, struct pd_validator **validator,
                     struct pd_error *fallback, struct pd_error *error) PD_MUST_CHECK;
void pd_validator_free(struct pd_validator *validator); /* NULL is allowed */

/* What this build has: "static" (the CUDA runtime is part of it) or "none". */
const char *pd_validator_cuda(void);
/* "cuda", "cpu" or "off": what answers now. */
const char *pd_validator_backend(const struct pd_validator *validator);
/* "NVIDIA H200 (sm_90)"; "x86-64-v3" and the like for the CPU; "" when off. */
const char *pd_validator_device(const struct pd_validator *validator);
struct pd_validator_memory pd_validator_memory(const struct pd_validator *validator);

/* Probes one batch and waits. 0 with result->violation_count: the verdict. PD_EINVAL, PD_ELIMIT:
 * as pd_probe_admit, or over the limits. PD_EUNSUPPORTED PROBE_OFF: backend "off". PD_EAGAIN:
 * batches submitted earlier must be collected first. */
int pd_validator_probe(struct pd_validator *validator, const struct pd_probe_batch *batch,
                       struct pd_probe_result *result, struct pd_error *error) PD_MUST_CHECK;

/* The same in two halves, so that one batch is copied to the device while another is computed: at
 * most PD_VALIDATOR_DEPTH batches are in flight, collected in the order they were submitted. The
 * batch's arrays stay borrowed until collected; the struct itself is copied. submit: errors as
 * pd_validator_probe, and PD_EFULL: collect first. collect: PD_EEND: nothing in flight. */
#define PD_VALIDATOR_DEPTH 2
int pd_validator_submit(struct pd_validator *validator, const struct pd_probe_batch *batch,
                        struct pd_error *error) PD_MUST_CHECK;
int pd_validator_collect(struct pd_validator *validator, struct pd_probe_result *result,
                         struct pd_error *error) PD_MUST_CHECK;

/* What the self-test did; the texts are for people. */
struct pd_selftest_report {
    uint32_t dense_cases;            /* attention against the fp64 dense reference */
    double dense_error, dense_bound; /* the worst case: max |out - fp64|, and what it may be */
    uint32_t interference_cases; /* one set of segments re-randomised, the others bit-identical */
    uint32_t faults_planted, faults_found; /* by the probe, without the structural check */
    uint32_t clean_batches, false_alarms;
    double seconds;
    /* of it: each part's own */
    double dense_seconds, interference_seconds, faults_seconds, clean_seconds;
    char backend[16];
    char failure[240]; /* the first thing that failed; "" */
};

/* Random logits against a dense reference, non-interference and planted faults, on the backend in
 * use; takes well under a second. 0: passed. PD_EDEVICE or PD_EINTERNAL SELFTEST_FAILED:
 * report->failure says what; a device that fails is retired, and the CPU's self-test decides.
 * PD_ENOMEM. PD_EUNSUPPORTED PROBE_OFF. PD_EAGAIN: batches are in flight. */
int pd_validator_selftest(struct pd_validator *validator, struct pd_selftest_report *report,
                          struct pd_error *error) PD_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
