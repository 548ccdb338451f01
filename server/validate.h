/* The validate thread: runs the attention probe over finished batches before anybody may see them.
 *
 *   assemble x M ──pd_validation_probe, waits──> queue ──> pd_validator on its thread ──> verdict
 *
 * Which batches are probed is decided by validate.fraction from the batch's key, so a rebuilt batch
 * is treated alike; on the CPU the probe may take validate.cpu_share of a core, batches beyond that
 * are served without it (and say so in their delivery part). The self-test runs first; batches wait
 * for it, chosen or not. If it fails, now or when it is asked for again, no batch passes until one
 * has succeeded (backend off: there is no self-test, and every batch passes).
 *
 * When full: each assemble thread has at most one batch in the queue. */
#ifndef PD_SERVER_VALIDATE_H
#define PD_SERVER_VALIDATE_H

#include "gpu/validator.h"
#include "server/serve.h"

struct pd_validation;

/* Starts the thread. With validate.backend cuda it waits for the device: PD_EUNAVAIL, PD_EDEVICE
 * where there is none that works. With auto a missing device is logged, not an error. PD_ENOMEM,
 * PD_EIO. */
int pd_validation_start(const struct pd_config *config, struct pd_validation **validation,
                        struct pd_error *error) PD_MUST_CHECK;
/* A pd_validate_fn with the validation as ctx: any thread but the validate thread. PD_EDEVICE: the
 * self-test has failed, or there is no validator; for every batch, chosen or not. */
int pd_validation_probe(void *validation, struct pd_ready_batch *batch,
                        struct pd_check_finding *finding);
/* The self-test once more, between two batches. One at a time; zeroed but for `done`. */
struct pd_selftest_order {
    void (*done)(struct pd_selftest_order *order); /* validate thread; must only post */
    int result;                                    /* 0: passed, or what the self-test said */
    struct pd_error error;
    struct pd_selftest_report report;
    char device[64];
};
/* 0: done will run. PD_EUNAVAIL STARTING: the first self-test has not ended. PD_EDEVICE: there is
 * no validator. PD_EUNSUPPORTED: backend off. PD_EFULL SELFTEST_RUNNING: another one is asked for.
 * Where it fails nothing is served from then on, as at start. Any thread. */
int pd_validation_selftest(struct pd_validation *validation, struct pd_selftest_order *order,
                           struct pd_error *error) PD_MUST_CHECK;
/* After the assemble threads have ended; joins the thread and frees. */
void pd_validation_stop(struct pd_validation *validation);

/* Batches chosen for the probe, by the backend in use and by what became of them: passed,
 * violation; or served without a verdict (no_cpu_time, too_large); or failed, where the probe gave
 * none. */
#define PD_PROBED_BACKENDS 2
enum pd_probed {
    PD_PROBED_PASSED,
    PD_PROBED_VIOLATION,
    PD_PROBED_NO_CPU_TIME,
    PD_PROBED_TOO_LARGE,
    PD_PROBED_FAILED,
    PD_PROBED_RESULTS
};
extern const char *const pd_probed_backends[PD_PROBED_BACKENDS];
extern const char *const pd_probed_results[PD_PROBED_RESULTS];

/* A copy for status and metrics; any thread. */
struct pd_validation_info {
    char backend[16], device[64]; /* "" until the validator exists */
    char retired[160];            /* why the device was given up; "": it was not */
    bool tested, passed;          /* the self-test */
};
void pd_validation_info(struct pd_validation *validation, struct pd_validation_info *info);
/* Takes no lock; any thread. */
void pd_validation_counts(struct pd_validation *validation,
                          uint64_t counts[PD_PROBED_BACKENDS][PD_PROBED_RESULTS]);

#endif
