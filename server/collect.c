/* The collector's cache and its families.
 *
 * Invariant: `asked` is true exactly while the request belongs to the sequencer; only then may its
 * thread touch it, and `done` hands it back under the mutex. The cached status is the main thread's
 * alone. Families are written whole, one after the other, as OpenMetrics wants them. */
#include "server/collect.h"

#include "base/check.h"
#include "base/clock.h"
#include "server/metrics.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PERIOD_MS 1000
#define LABELS_BYTES 300

struct pd_collector {
    uv_timer_t timer;
    uv_async_t bell;
    pthread_mutex_t lock; /* guards `arrived` */
    bool arrived;
    bool asked;
    bool running;
    struct pd_request_status request; /* with the sequencer while asked */
    struct pd_request_status cache;   /* the last answer; feed_count 0 before the first */
    uint64_t cached_wall_ns;          /* 0 = never */
    struct pd_collector_sources sources;
};

/* ---- asking ---- */

/* Sequencer thread. */
static void on_status(struct pd_request *request)
{
    struct pd_collector *collector = PD_CONTAINER_OF(request, struct pd_collector, request.base);
    pthread_mutex_lock(&collector->lock);
    collector->arrived = true;
    pthread_mutex_unlock(&collector->lock);
    uv_async_send(&collector->bell);
}

static void ask(struct pd_collector *collector)
{
    if (collector->asked)
        return;
    collector->request =
        (struct pd_request_status){.base = {.kind = PD_REQUEST_STATUS, .done = on_status}};
    collector->asked = true;
    if (pd_sequencer_submit(collector->sources.sequencer, &collector->request.base) != 0)
        collector->asked = false; /* full or stopping: the cache stays as old as its time says */
}

static void take_answer(struct pd_collector *collector)
{
    pthread_mutex_lock(&collector->lock);
    bool arrived = collector->arrived;
    collector->arrived = false;
    pthread_mutex_unlock(&collector->lock);
    if (!arrived)
        return;
    collector->asked = false;
    if (collector->request.base.result != 0) {
        pd_status_fini(&collector->request);
        return;
    }
    pd_status_fini(&collector->cache);
    collector->cache = collector->request;
    collector->cached_wall_ns = pd_clock_wall_ns();
    pd_metric_heartbeat("sequencer");
}

static void on_bell(uv_async_t *bell)
{
    take_answer(bell->data);
}

static void on_timer(uv_timer_t *timer)
{
    pd_metric_heartbeat("main");
    ask(timer->data);
}

/* ---- families ---- */

/* `feed="a"`, with further labels behind it. */
static const char *feed_labels(const char *feed, const char *more, char labels[LABELS_BYTES])
{
    snprintf(labels, LABELS_BYTES, "feed=\"%s\"%s%s", feed, *more ? "," : "", more);
    return labels;
}

static void put_totals(struct pd_metrics_writer *writer, const struct pd_collector *collector,
                       enum pd_collected family, size_t offset_bytes)
{
    const struct pd_config *config = collector->sources.config;
    pd_metrics_collected(writer, family);
    for (uint32_t i = 0; i < config->feed_count; i++) {
        struct pd_served_totals totals = {0};
        char labels[LABELS_BYTES];
        uint64_t value;
        pd_serve_totals(collector->sources.serve, i, &totals);
        memcpy(&value, (const char *)&totals + offset_bytes, sizeof value);
        pd_metrics_sample(writer, pd_metrics_collected_name(family),
                          feed_labels(config->feeds[i].name, "", labels), (double)value);
    }
}

static void put_pack_tokens(struct pd_metrics_writer *writer, const struct pd_collector *collector)
{
    const struct pd_config *config = collector->sources.config;
    pd_metrics_collected(writer, PD_C_PACK_TOKENS);
    for (uint32_t i = 0; i < config->feed_count; i++) {
        struct pd_served_totals totals = {0};
        pd_serve_totals(collector->sources.serve, i, &totals);
        const struct {
            const char *kind;
            uint64_t value;
        } kinds[] = {
            {"kind=\"real\"", totals.real_tokens},
            {"kind=\"gap\"", totals.gap_tokens},
            {"kind=\"tail\"", totals.tail_tokens},
            {"kind=\"row_padding\"", totals.row_padding_tokens},
        };
        for (size_t k = 0; k < PD_COUNT_OF(kinds); k++) {
            char labels[LABELS_BYTES];
            pd_metrics_sample(writer, pd_metrics_collected_name(PD_C_PACK_TOKENS),
                              feed_labels(config->feeds[i].name, kinds[k].kind, labels),
                              (double)kinds[k].value);
        }
    }
}

static void put_served(struct pd_metrics_writer *writer, const struct pd_collector *collector)
{
    static const struct {
        enum pd_collected family;
        size_t offset_bytes;
    } rows[] = {
        {PD_C_FULL_STEP_REAL, offsetof(struct pd_served_totals, full_step_real_tokens)},
        {PD_C_FULL_STEP_ALL, offsetof(struct pd_served_totals, full_step_positions)},
        {PD_C_SAVED, offsetof(struct pd_served_totals, saved_positions)},
        {PD_C_OVERLAP, offsetof(struct pd_served_totals, overlap_tokens)},
        {PD_C_LOSS, offsetof(struct pd_served_totals, loss_tokens)},
        {PD_C_SAMPLES, offsetof(struct pd_served_totals, samples)},
        {PD_C_BATCHES, offsetof(struct pd_served_totals, batches)},
        {PD_C_REREADS, offsetof(struct pd_served_totals, rereads)},
        {PD_C_STEPS, offsetof(struct pd_served_totals, steps_complete)},
    };
    put_pack_tokens(writer, collector);
    for (size_t i = 0; i < PD_COUNT_OF(rows); i++)
        put_totals(writer, collector, rows[i].family, rows[i].offset_bytes);
}

static double feed_value(const struct pd_feed_status *feed, enum pd_collected family)
{
    switch (family) {
    case PD_C_WINDOW_SAMPLES:
        return feed->planner.window_samples;
    case PD_C_WINDOW_TOKENS:
        return (double)feed->planner.window_tokens;
    case PD_C_FEED_PACKS:
        return (double)feed->packs_planned;
    case PD_C_HORIZON:
        return (double)feed->horizon_packs;
    case PD_C_FEED_WAITING:
        return feed->waiting ? (double)feed->waiting_since_ns / 1e9 : 0;
    case PD_C_FEED_ENDED:
        return feed->ended;
    case PD_C_TRUNCATED:
        return (double)feed->planner.truncated_samples;
    case PD_C_SPLIT:
        return (double)feed->planner.split_samples;
    default:
        pd_panic(__FILE__, __LINE__, "family %d is not one of a feed", (int)family);
    }
}

static void put_streams(struct pd_metrics_writer *writer, const struct pd_request_status *status)
{
    char labels[LABELS_BYTES];
    pd_metrics_collected(writer, PD_C_STREAMS);
    for (uint32_t i = 0; i < status->feed_count; i++) {
        const struct pd_feed_status *feed = &status->feeds[i];
        uint32_t ended = 0;
        for (uint32_t s = 0; s < feed->stream_count; s++)
            ended += feed->streams[s].ended;
        const char *name = pd_metrics_collected_name(PD_C_STREAMS);
        pd_metrics_sample(writer, name, feed_labels(feed->name, "state=\"open\"", labels),
                          feed->stream_count - ended);
        pd_metrics_sample(writer, name, feed_labels(feed->name, "state=\"ended\"", labels), ended);
    }
}

static void put_jobs(struct pd_metrics_writer *writer, const struct pd_request_status *status,
                     enum pd_collected family)
{
    pd_metrics_collected(writer, family);
    for (uint32_t i = 0; i < status->feed_count; i++) {
        for (uint32_t j = 0; j < status->feeds[i].job_count; j++) {
            const struct pd_job_status *job = &status->feeds[i].jobs[j];
            char labels[LABELS_BYTES], name[80];
            snprintf(name, sizeof name, "job=\"%s\"", job->name);
            uint64_t value = family == PD_C_JOB_COMMITTED   ? job->committed
                             : family == PD_C_JOB_DELIVERED ? job->delivered
                                                            : job->generation;
            pd_metrics_sample(writer, pd_metrics_collected_name(family),
                              feed_labels(status->feeds[i].name, name, labels), (double)value);
        }
    }
}

/* What the sequencer said last. */
static void put_planner(struct pd_metrics_writer *writer, const struct pd_collector *collector)
{
    static const enum pd_collected rows[] = {
        PD_C_WINDOW_SAMPLES, PD_C_WINDOW_TOKENS, PD_C_FEED_PACKS, PD_C_HORIZON,
        PD_C_FEED_WAITING,   PD_C_FEED_ENDED,    PD_C_TRUNCATED,  PD_C_SPLIT,
    };
    const struct pd_request_status *status = &collector->cache;
    for (size_t r = 0; r < PD_COUNT_OF(rows); r++) {
        pd_metrics_collected(writer, rows[r]);
        for (uint32_t i = 0; i < status->feed_count; i++) {
            char labels[LABELS_BYTES];
            pd_metrics_sample(writer, pd_metrics_collected_name(rows[r]),
                              feed_labels(status->feeds[i].name, "", labels),
                              feed_value(&status->feeds[i], rows[r]));
        }
    }
    put_streams(writer, status);
    put_jobs(writer, status, PD_C_JOB_COMMITTED);
    put_jobs(writer, status, PD_C_JOB_DELIVERED);
    put_jobs(writer, status, PD_C_JOB_GENERATION);
}

static void put_gauge(struct pd_metrics_writer *writer, enum pd_collected family, uint64_t value)
{
    pd_metrics_collected(writer, family);
    pd_metrics_sample(writer, pd_metrics_collected_name(family), "", (double)value);
}

static void put_validator(struct pd_metrics_writer *writer, struct pd_validation *validation)
{
    struct pd_validation_info info;
    char labels[LABELS_BYTES], device[140];
    pd_validation_info(validation, &info);
    snprintf(labels, sizeof labels, "backend=\"%s\",device=\"%s\"", info.backend,
             pd_metrics_escape(info.device, device, sizeof device));
    pd_metrics_collected(writer, PD_C_VALIDATOR);
    pd_metrics_sample(writer, pd_metrics_collected_name(PD_C_VALIDATOR), labels, info.passed);
    pd_metrics_collected(writer, PD_C_PROBED);
    for (int b = 0; b < PD_PROBED_BACKENDS; b++)
        for (int r = 0; r < PD_PROBED_RESULTS; r++) {
            snprintf(labels, sizeof labels, "backend=\"%s\",result=\"%s\"", pd_probed_backends[b],
                     pd_probed_results[r]);
            pd_metrics_sample(writer, pd_metrics_collected_name(PD_C_PROBED), labels,
                              (double)info.counts[b][r]);
        }
}

static void put_gauges(struct pd_metrics_writer *writer, const struct pd_collector *collector)
{
    const struct pd_collector_sources *sources = &collector->sources;
    struct pd_serve_gauges serve = {0};
    struct pd_rpc_gauges rpc = {0};
    pd_serve_gauges(sources->serve, &serve);
    pd_rpc_gauges(sources->rpc, &rpc);
    put_gauge(writer, PD_C_STATUS_TIME, collector->cached_wall_ns / 1000000000u);
    put_gauge(writer, PD_C_READY_BYTES, serve.ready_bytes);
    put_gauge(writer, PD_C_READY_MAX, serve.ready_bytes_max);
    put_gauge(writer, PD_C_READY_BATCHES, serve.ready_batches);
    put_gauge(writer, PD_C_BUILDING, serve.building);
    put_gauge(writer, PD_C_WAITERS, serve.waiters);
    put_gauge(writer, PD_C_LOG_BYTES, pd_log_used_bytes(sources->log));
    put_gauge(writer, PD_C_LOG_MAX, sources->config->log_max_bytes);
    put_gauge(writer, PD_C_LOG_INCARNATION, pd_log_incarnation(sources->log));
    put_gauge(writer, PD_C_PUSH_CALLS, rpc.push_calls);
    put_gauge(writer, PD_C_FETCH_CALLS, rpc.fetch_calls);
    put_gauge(writer, PD_C_INGEST_RESERVED, rpc.ingest_reserved_bytes);
    put_gauge(writer, PD_C_INGEST_MAX, rpc.ingest_max_bytes);
    put_validator(writer, sources->validation);
    put_gauge(writer, PD_C_READY, sources->ready(sources->ctx));
}

static void collect(void *ctx, struct pd_metrics_writer *writer)
{
    const struct pd_collector *collector = ctx;
    put_served(writer, collector);
    put_planner(writer, collector);
    put_gauges(writer, collector);
}

/* ---- the page ---- */

static void put_line(struct pd_buf *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void put_line(struct pd_buf *text, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (size > 0)
        pd_buf_put(text, line, (size_t)size < sizeof line ? (size_t)size : sizeof line - 1);
}

void pd_collector_page(struct pd_collector *collector, struct pd_buf *text)
{
    for (uint32_t i = 0; i < collector->cache.feed_count; i++) {
        const struct pd_feed_status *feed = &collector->cache.feeds[i];
        put_line(text,
                 "feed %s: %" PRIu64 " packs planned, %u samples in the window, %u streams%s%s\n",
                 feed->name, feed->packs_planned, feed->planner.window_samples, feed->stream_count,
                 feed->waiting ? ", waiting for samples" : "", feed->ended ? ", ended" : "");
        for (uint32_t j = 0; j < feed->job_count; j++)
            put_line(text, "  job %s: next step to commit %" PRIu64 ", delivered to %" PRIu64 "\n",
                     feed->jobs[j].name, feed->jobs[j].committed, feed->jobs[j].delivered);
    }
}

/* ---- life ---- */

int pd_collector_new(uv_loop_t *loop, struct pd_collector **result, struct pd_error *error)
{
    struct pd_collector *collector = calloc(1, sizeof *collector);
    if (!collector)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for the collector");
    PD_CHECK(pthread_mutex_init(&collector->lock, NULL) == 0);
    PD_CHECK(uv_timer_init(loop, &collector->timer) == 0 &&
             uv_async_init(loop, &collector->bell, on_bell) == 0);
    collector->timer.data = collector->bell.data = collector;
    *result = collector;
    return 0;
}

void pd_collector_start(struct pd_collector *collector, const struct pd_collector_sources *sources)
{
    collector->sources = *sources;
    collector->running = true;
    pd_metrics_register(collect, collector);
    uv_timer_start(&collector->timer, on_timer, 0, PERIOD_MS);
}

void pd_collector_stop(struct pd_collector *collector)
{
    uv_timer_stop(&collector->timer);
    pd_metrics_unregister_all();
    collector->running = false;
}

void pd_collector_close(struct pd_collector *collector)
{
    PD_CHECK(!collector->running);
    take_answer(collector);
    PD_CHECK(!collector->asked); /* the sequencer has stopped: it keeps no request */
    uv_close((uv_handle_t *)&collector->timer, NULL);
    uv_close((uv_handle_t *)&collector->bell, NULL);
}

void pd_collector_free(struct pd_collector *collector)
{
    if (!collector)
        return;
    pd_status_fini(&collector->cache);
    pthread_mutex_destroy(&collector->lock);
    free(collector);
}
