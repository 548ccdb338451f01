/* The collector's copy of the world, private to server/collect*.c. Main thread, but for what `lock`
 * guards. */
#ifndef PD_SERVER_COLLECT_STATE_H
#define PD_SERVER_COLLECT_STATE_H

#include "server/collect.h"
#include "server/history.h"
#include "server/serve_view.h"

#include <pthread.h>

/* A feed of the configuration, beside what the sequencer says of it. */
struct pd_collected_feed {
    struct pd_wait_info wait; /* of its planning; reason NONE: of nothing */
    bool halted;
    char halt_text[PD_TEXT_MAX];
    bool full;    /* no space for samples */
    bool stalled; /* full, and only stall.job's commit helps */
    struct pd_stall stall;
    struct pd_job_view *jobs; /* like status->feeds[].jobs; owned, ranks too; NULL: no memory */
    uint32_t job_count;
    struct pd_history history; /* of the feed that there is now */
    uint64_t renewed;          /* how often it has begun anew, as history has it */
};

struct pd_collector {
    uv_timer_t timer;
    uv_async_t bell;
    pthread_mutex_t lock; /* guards `arrived` */
    bool arrived;
    bool asked;
    bool running;
    struct pd_request_status request; /* with the sequencer while asked */
    struct pd_collector_sources sources;
    uint64_t started_wall_ns;
    /* the copy */
    struct pd_request_status status; /* the last answer; feed_count 0 before the first */
    uint64_t status_wall_ns;         /* 0 = never */
    struct pd_collected_feed feeds[PD_FEEDS_MAX]; /* by index of the configuration */
    struct pd_serve_gauges serve;
    struct pd_rpc_gauges rpc;
    struct pd_validation_info validator;
    uint64_t log_bytes;
    bool log_full;
    const char *readiness;
    struct pd_buf page; /* the JSON; empty: to be made anew */
};

/* The feed's status, or NULL before the first answer. */
const struct pd_feed_status *pd_collected_status(const struct pd_collector *collector,
                                                 uint32_t feed_index);
/* Steps of the job that are planned whole. */
uint64_t pd_collected_planned(const struct pd_collector *collector, uint32_t feed_index,
                              const struct pd_feed_status *feed, const struct pd_job_status *job);

/* collect_metrics.c: the families, as a collector of metrics.h. */
void pd_collect_metrics(void *collector, struct pd_metrics_writer *writer);
/* Tells the metrics every label value that code knows. */
void pd_collect_known_labels(const struct pd_config *config);
/* collect_page.c: the JSON into *json. */
void pd_collect_page(const struct pd_collector *collector, struct pd_buf *json);

#endif
