/* The families whose values some module owns, from the collector's copy.
 *
 * Place in the flow: called by pd_metrics_render on the main thread. Families are written whole,
 * one after the other, as OpenMetrics wants them. It takes no lock: everything comes from the copy
 * or from atomics. */
#include "server/collect_state.h"

#include "base/check.h"
#include "gpu/probe.h"
#include "packer/check.h"
#include "server/ingest/door.h"

#include <stdio.h>
#include <string.h>

#define LABELS_BYTES 300

/* ---- known labels ---- */

void pd_collect_known_labels(const struct pd_config *config)
{
    const char *names[PD_FEEDS_MAX];
    for (uint32_t i = 0; i < config->feed_count; i++)
        names[i] = config->feeds[i].name;
    pd_metrics_feeds(names, config->feed_count);
#define X(name) pd_metric_add_labelled(PD_M_INGEST_REJECTED, #name, 0);
    PD_DOOR_REASONS(X)
#undef X
    static const char *const refused[] = {"limit",        "peer",   "descriptors", "memory",
                                          "header_block", "resets", "pings",       "streams"};
    for (size_t i = 0; i < PD_COUNT_OF(refused); i++)
        pd_metric_add_labelled(PD_M_CONNECTIONS_REFUSED, refused[i], 0);
    for (int check = 0; check < PD_CHECK_COUNT; check++)
        if (check != PD_CHECK_PROBE) /* its kinds stand for it */
            pd_metric_add_labelled(PD_M_VIOLATIONS, pd_check_name((enum pd_check)check), 0);
    for (int bit = 0; bit < PD_PROBE_KIND_COUNT; bit++)
        pd_metric_add_labelled(PD_M_VIOLATIONS, pd_probe_kind_name((enum pd_probe_kind)(1 << bit)),
                               0);
}

/* ---- samples ---- */

static void put(struct pd_metrics_writer *writer, enum pd_collected family, const char *labels,
                double value)
{
    pd_metrics_sample(writer, pd_metrics_collected_name(family), labels, value);
}

static void put_gauge(struct pd_metrics_writer *writer, enum pd_collected family, double value)
{
    pd_metrics_collected(writer, family);
    put(writer, family, "", value);
}

static double seconds(uint64_t wall_ns)
{
    return (double)(wall_ns / 1000000u) / 1e3;
}

/* ---- feeds ---- */

/* When the sample longest in the window came: what came before this process counts from its
 * start. */
static double oldest(const struct pd_collector *collector, const struct pd_feed_status *feed)
{
    if (feed->planner.window_samples == 0)
        return 0;
    return seconds(feed->oldest_wall_ns ? feed->oldest_wall_ns : collector->started_wall_ns);
}

static uint64_t last_ingest(const struct pd_feed_status *feed)
{
    uint64_t last_ns = 0;
    for (uint32_t i = 0; i < feed->stream_count; i++)
        if (feed->streams[i].last_wall_ns > last_ns)
            last_ns = feed->streams[i].last_wall_ns;
    return last_ns;
}

static double feed_value(const struct pd_collector *collector, uint32_t feed_index,
                         const struct pd_feed_status *feed, enum pd_collected family)
{
    const struct pd_config *config = collector->sources.config;
    const struct pd_collected_feed *own = &collector->feeds[feed_index];
    switch (family) {
    case PD_C_WINDOW_SAMPLES:
        return feed->planner.window_samples;
    case PD_C_WINDOW_TOKENS:
        return (double)feed->planner.window_tokens;
    case PD_C_WINDOW_OLDEST:
        return oldest(collector, feed);
    case PD_C_FEED_PACKS:
        return (double)feed->packs_planned;
    case PD_C_HORIZON:
        return (double)feed->horizon_packs;
    case PD_C_FEED_WAITING:
        return feed->waiting ? seconds(feed->waiting_since_ns) : 0;
    case PD_C_FEED_ENDED:
        return feed->ended;
    case PD_C_FEED_HALTED:
        return own->halted || feed->stopped;
    case PD_C_LAST_INGEST:
        return seconds(last_ingest(feed));
    case PD_C_TRUNCATED:
        return (double)feed->planner.truncated_samples;
    case PD_C_TRUNCATED_TOKENS:
        return (double)feed->planner.truncated_tokens;
    case PD_C_SPLIT:
        return (double)feed->planner.split_samples;
    case PD_C_SKIPPED:
        return (double)feed->planner.skipped_samples;
    case PD_C_PRUNED_SAMPLES:
        return feed->prune ? (double)feed->prune->stats.samples : 0;
    case PD_C_TOO_LONG:
        return (double)feed->planner.rejected_samples;
    case PD_C_FEED_LOG:
        return (double)feed->log_bytes;
    case PD_C_FEED_UNPLANNED:
        return (double)feed->unplanned_bytes;
    case PD_C_FEED_LOG_MAX:
        return (double)pd_config_feed_bytes(config, &config->feeds[feed_index],
                                            pd_log_limit_bytes(collector->sources.log));
    case PD_C_LOG_STALLED:
        return own->stalled;
    default:
        pd_panic(__FILE__, __LINE__, "family %d is not one of a feed", (int)family);
    }
}

static void put_feeds(struct pd_metrics_writer *writer, const struct pd_collector *collector,
                      enum pd_collected family)
{
    const struct pd_config *config = collector->sources.config;
    pd_metrics_collected(writer, family);
    for (uint32_t i = 0; i < config->feed_count; i++) {
        const struct pd_feed_status *feed = pd_collected_status(collector, i);
        char labels[LABELS_BYTES];
        if (!feed)
            continue;
        snprintf(labels, sizeof labels, "feed=\"%s\"", feed->name);
        put(writer, family, labels, feed_value(collector, i, feed, family));
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
        snprintf(labels, sizeof labels, "feed=\"%s\",state=\"open\"", feed->name);
        put(writer, PD_C_STREAMS, labels, feed->stream_count - ended);
        snprintf(labels, sizeof labels, "feed=\"%s\",state=\"ended\"", feed->name);
        put(writer, PD_C_STREAMS, labels, ended);
    }
}

/* Views that rules name or samples have. */
static void put_pruned(struct pd_metrics_writer *writer, const struct pd_request_status *status)
{
    pd_metrics_collected(writer, PD_C_PRUNED_TOKENS);
    for (uint32_t i = 0; i < status->feed_count; i++) {
        const struct pd_prune_status *prune = status->feeds[i].prune;
        uint64_t known = prune ? prune->dropped_views | prune->stats.seen_views : 0;
        for (uint32_t view = 0; view < PD_VIEWS_MAX; view++) {
            char labels[LABELS_BYTES];
            if (!(known >> view & 1) || !prune->views[view][0])
                continue;
            snprintf(labels, sizeof labels, "feed=\"%s\",view=\"%s\"", status->feeds[i].name,
                     prune->views[view]);
            put(writer, PD_C_PRUNED_TOKENS, labels, (double)prune->stats.views[view].tokens);
        }
    }
}

/* ---- jobs ---- */

static uint32_t waiting_ranks(const struct pd_collected_feed *feed, uint32_t job)
{
    uint32_t waiting = 0;
    for (uint32_t i = 0; job < feed->job_count && i < feed->jobs[job].rank_count; i++)
        waiting += feed->jobs[job].ranks[i].waiting;
    return waiting;
}

static double job_value(const struct pd_collector *collector, uint32_t feed_index,
                        const struct pd_feed_status *feed, uint32_t index, enum pd_collected family)
{
    const struct pd_job_status *job = &feed->jobs[index];
    uint64_t planned = pd_collected_planned(collector, feed_index, feed, job);
    switch (family) {
    case PD_C_JOB_PLANNED:
        return (double)planned;
    case PD_C_JOB_DELIVERED:
        return (double)job->delivered;
    case PD_C_JOB_COMMITTED:
        return (double)job->committed;
    case PD_C_JOB_LAG:
        return planned > job->delivered ? (double)(planned - job->delivered) : 0;
    case PD_C_JOB_COMMIT_TIME:
        return seconds(job->committed_wall_ns);
    case PD_C_JOB_HELD:
        return (double)job->bytes_held;
    case PD_C_JOB_WAITING:
        return waiting_ranks(&collector->feeds[feed_index], index);
    case PD_C_JOB_GENERATION:
        return (double)job->generation;
    default:
        pd_panic(__FILE__, __LINE__, "family %d is not one of a job", (int)family);
    }
}

static void put_jobs(struct pd_metrics_writer *writer, const struct pd_collector *collector,
                     enum pd_collected family)
{
    pd_metrics_collected(writer, family);
    for (uint32_t i = 0; i < collector->sources.config->feed_count; i++) {
        const struct pd_feed_status *feed = pd_collected_status(collector, i);
        for (uint32_t j = 0; feed && j < feed->job_count; j++) {
            char labels[LABELS_BYTES];
            snprintf(labels, sizeof labels, "feed=\"%s\",job_name=\"%s\"", feed->name,
                     feed->jobs[j].name);
            put(writer, family, labels, job_value(collector, i, feed, j, family));
        }
    }
}

/* ---- the rest ---- */

static void put_validator(struct pd_metrics_writer *writer, const struct pd_collector *collector)
{
    const struct pd_validation_info *info = &collector->validator;
    uint64_t counts[PD_PROBED_BACKENDS][PD_PROBED_RESULTS];
    char labels[LABELS_BYTES], device[140];
    snprintf(labels, sizeof labels, "backend=\"%s\",device=\"%s\"", info->backend,
             pd_metrics_escape(info->device, device, sizeof device));
    pd_metrics_collected(writer, PD_C_VALIDATOR);
    put(writer, PD_C_VALIDATOR, labels, info->passed);
    pd_metrics_collected(writer, PD_C_PROBED);
    pd_validation_counts(collector->sources.validation, counts);
    for (int b = 0; b < PD_PROBED_BACKENDS; b++)
        for (int r = 0; r < PD_PROBED_RESULTS; r++) {
            snprintf(labels, sizeof labels, "backend=\"%s\",result=\"%s\"", pd_probed_backends[b],
                     pd_probed_results[r]);
            put(writer, PD_C_PROBED, labels, (double)counts[b][r]);
        }
}

static void put_connections(struct pd_metrics_writer *writer, const struct pd_rpc_gauges *rpc)
{
    static const char *const labels[PD_DOORS] = {"door=\"main\"", "door=\"admin\"",
                                                 "door=\"health\""};
    pd_metrics_collected(writer, PD_C_CONNECTIONS);
    for (int door = 0; door < PD_DOORS; door++)
        put(writer, PD_C_CONNECTIONS, labels[door], rpc->connections[door]);
    put_gauge(writer, PD_C_CONNECTIONS_MAX, rpc->connections_max);
}

static void put_gauges(struct pd_metrics_writer *writer, const struct pd_collector *collector)
{
    const struct pd_collector_sources *sources = &collector->sources;
    put_gauge(writer, PD_C_STATUS_TIME, seconds(collector->status_wall_ns));
    put_gauge(writer, PD_C_READY_BYTES, (double)collector->serve.ready_bytes);
    put_gauge(writer, PD_C_READY_MAX, (double)collector->serve.ready_bytes_max);
    put_gauge(writer, PD_C_READY_BATCHES, (double)collector->serve.ready_batches);
    put_gauge(writer, PD_C_BUILDING, (double)collector->serve.building);
    put_gauge(writer, PD_C_WAITERS, (double)collector->serve.waiters);
    put_gauge(writer, PD_C_LOG_BYTES, (double)collector->log_bytes);
    put_gauge(writer, PD_C_LOG_MAX, (double)pd_log_limit_bytes(sources->log));
    put_gauge(writer, PD_C_LOG_INCARNATION, (double)pd_log_incarnation(sources->log));
    put_connections(writer, &collector->rpc);
    put_gauge(writer, PD_C_PUSH_CALLS, (double)collector->rpc.push_calls);
    put_gauge(writer, PD_C_FETCH_CALLS, (double)collector->rpc.fetch_calls);
    put_gauge(writer, PD_C_INGEST_RESERVED, (double)collector->rpc.ingest_reserved_bytes);
    put_gauge(writer, PD_C_INGEST_MAX, (double)collector->rpc.ingest_max_bytes);
    put_validator(writer, collector);
    put_gauge(writer, PD_C_READY, strcmp(collector->readiness, "ready") == 0);
}

void pd_collect_metrics(void *ctx, struct pd_metrics_writer *writer)
{
    static const enum pd_collected feeds[] = {
        PD_C_WINDOW_SAMPLES, PD_C_WINDOW_TOKENS, PD_C_WINDOW_OLDEST,    PD_C_FEED_PACKS,
        PD_C_HORIZON,        PD_C_FEED_WAITING,  PD_C_FEED_ENDED,       PD_C_FEED_HALTED,
        PD_C_LAST_INGEST,    PD_C_TRUNCATED,     PD_C_TRUNCATED_TOKENS, PD_C_SPLIT,
        PD_C_PRUNED_SAMPLES, PD_C_SKIPPED,       PD_C_TOO_LONG,         PD_C_FEED_LOG,
        PD_C_FEED_UNPLANNED, PD_C_FEED_LOG_MAX,  PD_C_LOG_STALLED,
    };
    static const enum pd_collected jobs[] = {
        PD_C_JOB_PLANNED,     PD_C_JOB_DELIVERED, PD_C_JOB_COMMITTED, PD_C_JOB_LAG,
        PD_C_JOB_COMMIT_TIME, PD_C_JOB_HELD,      PD_C_JOB_WAITING,   PD_C_JOB_GENERATION,
    };
    const struct pd_collector *collector = ctx;
    pd_watch_put_tokens(collector->sources.watch, writer);
    for (size_t i = 0; i < PD_COUNT_OF(feeds); i++)
        put_feeds(writer, collector, feeds[i]);
    put_streams(writer, &collector->status);
    put_pruned(writer, &collector->status);
    for (size_t i = 0; i < PD_COUNT_OF(jobs); i++)
        put_jobs(writer, collector, jobs[i]);
    put_gauges(writer, collector);
}
