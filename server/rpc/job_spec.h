/* A job's spec as the wire tells it: what was agreed on, and what follows from the feed's
 * configuration. */
#ifndef PD_SERVER_RPC_JOB_SPEC_H
#define PD_SERVER_RPC_JOB_SPEC_H

#include "proto/packd.pb-c.h"
#include "server/config.h"
#include "server/rpc/arena.h"
#include "server/serve.h"

/* Fills *out; its pointers are into `feed`. */
void pd_job_spec_fill(Packd__V1__JobSpec *out, const struct pd_job_spec *spec,
                      const struct pd_feed_config *feed);

/* The job's skipped steps from `from` on; *count of them, in the arena. */
Packd__V1__StepRange **pd_skipped_fill(struct pd_arena *arena, struct pd_serve *serve,
                                       uint32_t feed_index, uint32_t job_id, uint64_t from,
                                       size_t *count);

#endif
