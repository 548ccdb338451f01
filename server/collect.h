/* The collector: what the modules own, gathered for /metrics and the status page.
 *
 *   every second: PD_REQUEST_STATUS ──> sequencer ──done──> mutex + bell ──> main: the copy
 *                 short reads of serve, log, rpc, validation ─────────────────> the copy
 *   at scrape:    the copy, and atomics; no lock of the data path
 *
 * At most one status request is in flight, so nobody ever waits for the sequencer, whatever that is
 * doing. Main thread but for the request's done. */
#ifndef PD_SERVER_COLLECT_H
#define PD_SERVER_COLLECT_H

#include "server/rpc/rpc.h"
#include "server/validate.h"
#include "server/watch.h"

#include <uv.h>

struct pd_collector;

/* All borrowed until pd_collector_stop. */
struct pd_collector_sources {
    const struct pd_config *config;
    struct pd_log *log;
    struct pd_serve *serve;
    struct pd_sequencer *sequencer;
    struct pd_rpc *rpc;
    struct pd_validation *validation;
    struct pd_watch *watch;
    /* Why no work is taken, static; "ready" where it is. Main thread; once a second. */
    const char *(*readiness)(void *ctx);
    void *ctx;
};

/* Made before the sequencer and freed after it has stopped, since a request may be on its way.
 * PD_ENOMEM; PD_EIO LOOP: libuv has no handle left. */
int pd_collector_new(uv_loop_t *loop, struct pd_collector **collector,
                     struct pd_error *error) PD_MUST_CHECK;
/* Registers with the metrics and begins to ask, at once and every second. */
void pd_collector_start(struct pd_collector *collector, const struct pd_collector_sources *sources);
/* Asks no more and forgets the sources. */
void pd_collector_stop(struct pd_collector *collector);
/* Closes its libuv handles; run the loop once more before pd_collector_free. */
void pd_collector_close(struct pd_collector *collector);
void pd_collector_free(struct pd_collector *collector);
/* What the status page draws, as JSON; made at most once a second. It is appended to *json, which
 * fails where memory is short. */
void pd_collector_page(struct pd_collector *collector, struct pd_buf *json);

#endif
