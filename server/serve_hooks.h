/* What serve calls of others while a batch is built and handed out. None of them is called under
 * serve's lock; a hook that is NULL is left out. */
#ifndef PD_SERVER_SERVE_HOOKS_H
#define PD_SERVER_SERVE_HOOKS_H

#include "base/name.h"
#include "packer/check.h"
#include "server/ready_batch.h"

struct pd_assemble_order;

/* A further check between the structural one and publishing: the attention probe. Called on
 * assemble threads, several at a time, before the batch is visible to anybody; fills
 * batch->validator and batch->probed. 0: passed, or not chosen to be probed. PD_ECORRUPT with
 * *finding: a violation, handled like a structural one. Any other code: the batch cannot be served,
 * waiters get the code. */
typedef int pd_validate_fn(void *ctx, struct pd_ready_batch *batch,
                           struct pd_check_finding *finding);

/* Saves what is needed to look into a batch that failed its checks twice, before its feed is
 * halted: called on the assemble thread. The path of what was saved into `path` ("" where nothing
 * could be). */
typedef void pd_repro_fn(void *ctx, const struct pd_assemble_order *order,
                         const struct pd_check_finding *finding, char *path, size_t size);

/* Hears of each batch at its first complete delivery, on the thread that reported it; the batch is
 * borrowed. `full_step`: its step is not the job's last, partly filled one. Must be quick. */
typedef void pd_served_fn(void *ctx, const struct pd_ready_batch *batch, bool full_step);

/* Hears that the feed begins anew, empty: on the sequencer's thread, once nothing of the one before
 * can count any more but batches that are being reported. */
typedef void pd_renewed_fn(void *ctx, uint32_t feed_index);

/* A step that serve wants left out, because a batch of it cannot be served and nothing of it has
 * been handed out (validate.on_violation: skip_step). */
struct pd_skip_order {
    uint32_t feed_index, job_id;
    uint64_t generation, step;
    char job[PD_NAME_MAX + 1], why[256];
};
/* Asks for it, on an assemble thread. 0: the job's next generation will come without the step, or
 * pd_serve_skip_failed will be called. Else nothing was begun. Until then no batch of the step, or
 * of one behind it, leaves serve. NULL: the feed stops instead. */
typedef int pd_skip_fn(void *ctx, const struct pd_skip_order *order);

/* Of tests alone: called on the assemble thread with the batch as laid out; may change anything in
 * *batch and its payload. True: this batch goes to the validator without the structural check. */
typedef bool pd_corrupt_fn(void *ctx, const struct pd_batch_key *key, struct pd_batch *batch,
                           uint8_t *payload);

/* Each with the ctx it is called with. */
struct pd_serve_hooks {
    pd_validate_fn *validate;
    void *validate_ctx;
    pd_repro_fn *repro;
    void *repro_ctx;
    pd_served_fn *served;
    void *served_ctx;
    pd_renewed_fn *renewed;
    void *renewed_ctx;
    pd_skip_fn *skip;
    void *skip_ctx;
    pd_corrupt_fn *corrupt;
    void *corrupt_ctx;
};

#endif
