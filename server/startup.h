/* The log's replay, and what HTTP tells meanwhile. Main thread. */
#ifndef PD_SERVER_STARTUP_H
#define PD_SERVER_STARTUP_H

#include "base/bytes.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/sequencer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <uv.h>

/* The first members are the caller's, the rest is pd_startup_run's. */
struct pd_startup {
    const struct pd_config *config;
    struct pd_log *log;
    struct pd_serve *serve;
    void (*before_end)(void); /* on the replay's thread, once the log is read */
    struct pd_sequencer *sequencer;
    pthread_t thread;
    uv_async_t bell;
    uv_timer_t timer;
    unsigned open_handles;
    struct pd_error error;
    int rc;
    atomic_bool over; /* then the rest may be read */
};
/* pd_sequencer_start on a thread of its own, while `loop` turns and answers, SIGTERM and its like
 * too; the supervisor is told that the start goes on. Returns what that returned, with
 * startup->sequencer set where it is 0; PD_EIO: no thread or handle. */
int pd_startup_run(struct pd_startup *startup, uv_loop_t *loop,
                   struct pd_error *error) PD_MUST_CHECK;

/* "record 120 of 4711" of the pass over the log that runs or ran last, "" before any; returns
 * text. */
const char *pd_startup_progress(const struct pd_log *log, char *text, size_t size);
/* /status.json: {version, readiness, starting, now_ms, feeds: []}, `starting` the progress. */
void pd_startup_page(const struct pd_log *log, const char *readiness, struct pd_buf *json);
/* packd_ready 0; for pd_metrics_register, until the collector takes over. */
void pd_startup_metrics(void *unused, struct pd_metrics_writer *writer);

#endif
