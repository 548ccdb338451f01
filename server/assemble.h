/* Assembling: from a step's place in the plan to one finished, checked batch with its header.
 *
 *   begin ─> step ─────> measure ─────> build ───────────────────────────────> end
 *            once a step  exact bytes    lay out ─> check ─> digests ─> header
 *
 * begin opens a short read transaction and end closes it; what measure has read is used by the
 * build that follows it. One thread owns an assembler (each assemble thread of serve.h has one). It
 * knows nothing of tables, waiters or memory budgets. */
#ifndef PD_SERVER_ASSEMBLE_H
#define PD_SERVER_ASSEMBLE_H

#include "packer/check.h"
#include "server/config.h"
#include "server/header.h"
#include "server/job_steps.h"
#include "server/serve.h"

/* Which batch, and where its step lies in the plan. Borrowed during the call. */
struct pd_assemble_order {
    const struct pd_feed_config *feed;
    const struct pd_job_spec *spec;
    struct pd_batch_key key;
    struct pd_job_steps steps;
    struct pd_step_place place;
};

/* What all batches of a step share; a function of the plan alone. */
struct pd_step_facts {
    struct pd_step_totals totals;
    uint32_t widest_slots; /* over all packs of the step */
    bool vision;           /* some segment has patches */
    uint64_t tensors;      /* bit k: some sample has the feed's tensor number k */
    uint64_t config_digest, plan_digest;
    uint32_t planner_version;
};

struct pd_assembler;

/* PD_ENOMEM; what pd_log_reader_new says. */
int pd_assembler_new(struct pd_log *log, struct pd_assembler **assembler,
                     struct pd_error *error) PD_MUST_CHECK;
void pd_assembler_free(struct pd_assembler *assembler); /* NULL is allowed */

/* What pd_log_reader_begin says. Nothing to end after a failure. */
int pd_assembler_begin(struct pd_assembler *assembler, struct pd_error *error) PD_MUST_CHECK;
void pd_assembler_end(struct pd_assembler *assembler);

/* Reads all packs of the step. PD_ERANGE STEP_TRIMMED: one is no longer in the log. PD_ECORRUPT,
 * PD_ENOMEM, PD_EIO: from the log. */
int pd_assembler_step(struct pd_assembler *assembler, const struct pd_assemble_order *order,
                      struct pd_step_facts *facts, struct pd_error *error) PD_MUST_CHECK;

/* Reads the batch's packs and heads; *bytes is what the batch will take: payload and header,
 * exactly. Errors as above, and what pd_layout_measure says. */
int pd_assembler_measure(struct pd_assembler *assembler, const struct pd_assemble_order *order,
                         const struct pd_step_facts *facts, uint64_t *bytes,
                         struct pd_error *error) PD_MUST_CHECK;

/* Builds the batch measured last into *ready: batch, payload (pd_ready_batch_clear), header
 * (likewise), built_ns. On failure nothing is left in it. PD_ECORRUPT VIOLATION: a structural rule
 * does not hold, and *finding says which (finding->text is "" in every other case). PD_ECORRUPT
 * with another reason: damage in the log, the sample is named. PD_ENOMEM. */
int pd_assembler_build(struct pd_assembler *assembler, struct pd_ready_batch *ready,
                       struct pd_check_finding *finding, struct pd_error *error) PD_MUST_CHECK;

/* Of tests alone: damages what later builds have laid out, before it is checked. */
void pd_assembler_set_corruption(struct pd_assembler *assembler, pd_corrupt_fn *corrupt, void *ctx);

/* Gives back what a build put into *batch: payload and header, both NULL afterwards. Any thread. */
void pd_ready_batch_clear(struct pd_ready_batch *batch);

#endif
