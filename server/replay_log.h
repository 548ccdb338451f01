/* A saved repro as a log that can only be read: it stands in for server/log.c, so that the very
 * code that assembles batches in the daemon builds the batch again. */
#ifndef PD_SERVER_REPLAY_LOG_H
#define PD_SERVER_REPLAY_LOG_H

#include "server/log.h"

/* Reads plan.bin, heads.bin and bodies.bin of a repro's directory. Pack `n` of this log is entry n
 * of the step. PD_EIO: a file cannot be read; PD_ECORRUPT: it is cut short; PD_ENOMEM. */
int pd_replay_log_open(const char *directory, struct pd_log **log,
                       struct pd_error *error) PD_MUST_CHECK;
/* Packs of the step that were saved. */
uint32_t pd_replay_log_packs(const struct pd_log *log);
void pd_replay_log_close(struct pd_log *log);

#endif
