/* The JSON behind the status page, from the collector's copy.
 *
 * Place in the flow: made at most once a second, when somebody looks. Owning thread: main. Bounded:
 * PD_PAGE_STREAMS_MAX streams and lanes, and PD_PAGE_RANKS_MAX ranks of a job are listed, the
 * number of all is said beside. Texts of producers are free; the page shows them as text, never as
 * markup. */
#include "server/collect_state.h"

#include "base/check.h"
#include "base/clock.h"
#include "server/rpc/waiting.h"
#include "server/version.h"

#include <jansson.h>
#include <string.h>

#define PD_PAGE_STREAMS_MAX 200
#define PD_PAGE_RANKS_MAX 64
#define PD_PAGE_LANES_MAX 64
#define NOW_S 60
#define RATE_S 10

static json_t *number(uint64_t value)
{
    return json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value);
}

static void set_number(json_t *object, const char *name, uint64_t value)
{
    json_object_set_new(object, name, number(value));
}

static void set_text(json_t *object, const char *name, const char *text)
{
    json_object_set_new(object, name, json_stringn_nocheck(text, strlen(text)));
}

/* Free text of a producer may be no UTF-8: the odd bytes become '?'. */
static void set_free_text(json_t *object, const char *name, const char *text)
{
    char clean[256];
    size_t size = 0;
    json_t *value = json_string(text);
    for (; !value && text[size] && size < sizeof clean; size++)
        clean[size] = (signed char)text[size] < 0 ? '?' : text[size];
    json_object_set_new(object, name, value ? value : json_stringn_nocheck(clean, size));
}

/* ---- waits ---- */

static json_t *wait_json(const struct pd_wait_info *info)
{
    struct pd_waiting waiting = {0};
    if (info->reason == PD_WAIT_NONE)
        return json_null();
    pd_waiting_make_feed(&waiting, info, 0);
    json_t *wait = json_object();
    set_text(wait, "for", pd_waiting_label(info->reason));
    set_text(wait, "text", waiting.text);
    set_number(wait, "since_ms", info->since_ns / 1000000u);
    set_text(wait, "streams", info->streams);
    return wait;
}

/* ---- jobs ---- */

static json_t *ranks_json(const struct pd_job_view *view)
{
    json_t *ranks = json_array();
    for (uint32_t i = 0; i < view->rank_count && i < PD_PAGE_RANKS_MAX; i++) {
        const struct pd_rank_view *from = &view->ranks[i];
        json_t *rank = json_object();
        set_number(rank, "rank", from->dp_rank);
        set_number(rank, "calls", from->calls);
        set_number(rank, "delivered", from->delivered);
        set_free_text(rank, "client", from->client);
        json_object_set_new(rank, "wait", from->waiting ? wait_json(&from->wait) : json_null());
        json_array_append_new(ranks, rank);
    }
    return ranks;
}

static json_t *job_json(const struct pd_collector *collector, uint32_t feed_index,
                        const struct pd_feed_status *feed, uint32_t index)
{
    const struct pd_collected_feed *own = &collector->feeds[feed_index];
    const struct pd_job_status *from = &feed->jobs[index];
    json_t *job = json_object();
    set_text(job, "name", from->name);
    json_object_set_new(job, "reader", json_boolean(from->spec.kind == PD_JOB_READER));
    set_number(job, "step_packs", from->spec.step_packs);
    set_number(job, "dp_size", from->spec.dp_size);
    set_number(job, "planned", pd_collected_planned(collector, feed_index, feed, from));
    set_number(job, "delivered", from->delivered);
    set_number(job, "committed", from->committed);
    set_number(job, "commit_ms", from->committed_wall_ns / 1000000u);
    set_number(job, "held", from->bytes_held);
    set_number(job, "generation", from->generation);
    if (index < own->job_count) {
        set_number(job, "rank_count", own->jobs[index].rank_count);
        json_object_set_new(job, "ranks", ranks_json(&own->jobs[index]));
    }
    return job;
}

/* ---- streams ---- */

static json_t *stream_json(const struct pd_stream_status *from)
{
    json_t *stream = json_object();
    set_text(stream, "name", from->name);
    set_text(stream, "source", from->source);
    set_free_text(stream, "producer", from->producer);
    set_number(stream, "next_seq", from->next_seq);
    set_number(stream, "tokens", from->tokens);
    set_number(stream, "rejected", from->rejected);
    set_number(stream, "last_ms", from->last_wall_ns / 1000000u);
    json_object_set_new(stream, "ended", json_boolean(from->ended));
    json_object_set_new(stream, "connected", json_boolean(from->connected));
    return stream;
}

/* Those still open first: with many, the ended ones are left out. */
static json_t *streams_json(const struct pd_feed_status *feed)
{
    json_t *streams = json_array();
    for (int ended = 0; ended <= 1; ended++)
        for (uint32_t i = 0; i < feed->stream_count; i++)
            if (feed->streams[i].ended == (ended == 1) &&
                json_array_size(streams) < PD_PAGE_STREAMS_MAX)
                json_array_append_new(streams, stream_json(&feed->streams[i]));
    return streams;
}

/* ---- lanes ---- */

static json_t *lane_json(const struct pd_collector *collector, uint32_t feed_index, uint32_t lane,
                         const struct pd_lane_status *from)
{
    const char *why = "";
    json_t *object = json_object();
    bool accepts = pd_sequencer_accepts(collector->sources.sequencer, feed_index, lane, &why) ==
                   PD_SEQ_ACCEPTS;
    set_text(object, "name", from->name);
    set_number(object, "unplanned", from->unplanned_bytes);
    set_text(object, "throttled", accepts ? "" : why);
    return object;
}

static json_t *lanes_json(const struct pd_collector *collector, uint32_t feed_index,
                          const struct pd_feed_status *feed)
{
    json_t *lanes = json_array();
    for (uint32_t i = 0; i < feed->lane_count && i < PD_PAGE_LANES_MAX; i++)
        json_array_append_new(lanes, lane_json(collector, feed_index, i, &feed->lanes[i]));
    return lanes;
}

/* ---- padding and rates ---- */

/* Padding between two marks; null where nothing was served. */
static json_t *rate_json(const struct pd_history_mark *from, const struct pd_history_mark *to)
{
    uint64_t all = to->positions - from->positions, real = to->real - from->real;
    return all ? json_real((double)(all - real) / (double)all) : json_null();
}

static json_t *rate_since(const struct pd_history *history, uint64_t age_s)
{
    struct pd_history_mark from;
    return pd_history_before(history, age_s, &from) ? rate_json(&from, &history->now) : json_null();
}

static void set_speeds(json_t *feed, const struct pd_history *history)
{
    struct pd_history_mark from;
    double in = 0, out = 0;
    if (pd_history_before(history, RATE_S, &from) && history->now.at_ns > from.at_ns) {
        double seconds = (double)(history->now.at_ns - from.at_ns) / 1e9;
        in = (double)(history->now.pushed - from.pushed) / seconds;
        out = (double)(history->now.real - from.real) / seconds;
    }
    json_object_set_new(feed, "in_per_s", json_real(in));
    json_object_set_new(feed, "out_per_s", json_real(out));
}

/* [[seconds ago, rate or null], ...], one a mark. */
static json_t *points_json(const struct pd_history *history)
{
    json_t *points = json_array();
    for (uint32_t i = 1; i < history->count; i++) {
        const struct pd_history_mark *from = pd_history_at(history, i - 1),
                                     *to = pd_history_at(history, i);
        json_array_append_new(
            points, json_pack("[I,o]", (json_int_t)((history->now.at_ns - to->at_ns) / 1000000000u),
                              rate_json(from, to)));
    }
    return points;
}

static json_t *padding_json(const struct pd_history *history)
{
    const struct pd_history_mark nothing = {0};
    json_t *padding = json_object();
    json_object_set_new(padding, "now", rate_since(history, NOW_S));
    json_object_set_new(padding, "hour", rate_since(history, 3600));
    json_object_set_new(padding, "all", rate_json(&nothing, &history->now));
    json_object_set_new(padding, "points", points_json(history));
    return padding;
}

/* ---- rows ---- */

/* {pack, step, micro, rank, width, count, segments: [[length, slot, source, merged], ...]} */
static json_t *row_json(const struct pd_watch_row *from)
{
    json_t *row = json_object(), *segments = json_array();
    json_object_set_new(row, "pack", json_integer(from->pack));
    set_number(row, "step", from->step);
    set_number(row, "micro", from->micro);
    set_number(row, "rank", from->dp_rank);
    set_number(row, "width", from->width);
    set_number(row, "count", from->segment_count);
    for (uint32_t i = 0; i < from->shown; i++) {
        const struct pd_watch_segment *s = &from->segments[i];
        json_array_append_new(segments, json_pack("[i,i,i,i]", (int)s->length, (int)s->slot_tokens,
                                                  (int)s->source, (int)s->merged));
    }
    json_object_set_new(row, "segments", segments);
    return row;
}

static json_t *rows_json(const struct pd_collector *collector, uint32_t feed_index)
{
    struct pd_watch_row rows[PD_WATCH_ROWS_MAX];
    uint32_t count = pd_watch_rows(collector->sources.watch, feed_index, rows);
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(list, row_json(&rows[i]));
    return list;
}

static json_t *sources_json(const struct pd_collector *collector, uint32_t feed_index)
{
    json_t *sources = json_array();
    for (uint32_t slot = 0; slot < PD_WATCH_SLOTS; slot++) {
        const char *name = pd_watch_source(collector->sources.watch, feed_index, slot);
        json_array_append_new(sources, name ? json_string(name) : json_null());
    }
    return sources;
}

/* ---- feeds ---- */

static void set_planning(json_t *feed, const struct pd_feed_status *from)
{
    set_number(feed, "window_samples", from->planner.window_samples);
    set_number(feed, "window_tokens", from->planner.window_tokens);
    set_number(feed, "packs", from->packs_planned);
    set_number(feed, "horizon", from->horizon_packs);
    set_number(feed, "streams_total", from->stream_count);
    json_object_set_new(feed, "ended", json_boolean(from->ended));
    json_object_set_new(feed, "end_asked", json_boolean(from->end_declared));
}

static json_t *rejects_json(const struct pd_feed_status *from)
{
    json_t *rejects = json_object();
    for (uint32_t i = 0; i < from->refusal_count; i++)
        set_number(rejects, from->refusals[i].reason, from->refusals[i].count);
    return rejects;
}

static void set_status(json_t *feed, const struct pd_collector *collector, uint32_t feed_index,
                       const struct pd_feed_status *from)
{
    json_t *jobs = json_array();
    set_planning(feed, from);
    set_number(feed, "log_bytes", from->log_bytes);
    set_number(feed, "unplanned_bytes", from->unplanned_bytes);
    json_object_set_new(feed, "lanes", lanes_json(collector, feed_index, from));
    if (from->stopped)
        set_text(feed, "halted", from->stop.text);
    json_object_set_new(feed, "rejects", rejects_json(from));
    for (uint32_t i = 0; i < from->job_count; i++)
        json_array_append_new(jobs, job_json(collector, feed_index, from, i));
    json_object_set_new(feed, "jobs", jobs);
    json_object_set_new(feed, "streams", streams_json(from));
}

static json_t *feed_json(const struct pd_collector *collector, uint32_t feed_index)
{
    const struct pd_config *config = collector->sources.config;
    const struct pd_collected_feed *own = &collector->feeds[feed_index];
    const struct pd_feed_status *status = pd_collected_status(collector, feed_index);
    json_t *feed = json_object();
    set_text(feed, "name", config->feeds[feed_index].name);
    set_number(feed, "seq_len", config->feeds[feed_index].layout.seq_len);
    set_number(feed, "log_max_bytes",
               pd_config_feed_bytes(config, &config->feeds[feed_index],
                                    pd_log_limit_bytes(collector->sources.log)));
    json_object_set_new(feed, "padding", padding_json(&own->history));
    set_speeds(feed, &own->history);
    json_object_set_new(feed, "sources", sources_json(collector, feed_index));
    json_object_set_new(feed, "rows", rows_json(collector, feed_index));
    json_object_set_new(feed, "wait", wait_json(&own->wait));
    json_object_set_new(feed, "full", json_boolean(own->full));
    set_text(feed, "stalled_by", own->stalled ? own->stall.job : "");
    if (status)
        set_status(feed, collector, feed_index, status);
    if (own->halted)
        set_text(feed, "halted", own->halt_text);
    return feed;
}

/* ---- the daemon ---- */

static json_t *validator_json(const struct pd_collector *collector)
{
    const struct pd_validation_info *info = &collector->validator;
    uint64_t counts[PD_PROBED_BACKENDS][PD_PROBED_RESULTS], skipped = 0;
    json_t *validator = json_object();
    pd_validation_counts(collector->sources.validation, counts);
    for (int b = 0; b < PD_PROBED_BACKENDS; b++) {
        skipped += counts[b][PD_PROBED_NO_CPU_TIME] + counts[b][PD_PROBED_TOO_LARGE];
    }
    set_text(validator, "backend", info->backend);
    set_text(validator, "device", info->device);
    set_free_text(validator, "retired", info->retired);
    json_object_set_new(validator, "tested", json_boolean(info->tested));
    json_object_set_new(validator, "passed", json_boolean(info->passed));
    set_number(validator, "checked", collector->serve.built_total);
    set_number(validator, "probed", collector->serve.probed_total);
    set_number(validator, "unprobed", skipped);
    set_number(validator, "rebuilt", collector->serve.rebuilt_total);
    set_number(validator, "violations", collector->serve.violations_total);
    return validator;
}

static void set_daemon(json_t *root, const struct pd_collector *collector)
{
    set_text(root, "version", PD_VERSION);
    set_text(root, "log_id", pd_log_id(collector->sources.log));
    set_text(root, "readiness", collector->readiness);
    set_number(root, "now_ms", pd_clock_wall_ns() / 1000000u);
    set_number(root, "started_ms", collector->started_wall_ns / 1000000u);
    set_number(root, "status_ms", collector->status_wall_ns / 1000000u);
    json_object_set_new(
        root, "log",
        json_pack("{s:o,s:o,s:o,s:b}", "bytes", number(collector->log_bytes), "max_bytes",
                  number(pd_log_limit_bytes(collector->sources.log)), "configured_bytes",
                  number(collector->sources.config->log_max_bytes), "full", collector->log_full));
    json_object_set_new(root, "memory",
                        json_pack("{s:o,s:o,s:o,s:o}", "batches",
                                  number(collector->serve.ready_bytes), "batches_max",
                                  number(collector->serve.ready_bytes_max), "ingest",
                                  number(collector->rpc.ingest_reserved_bytes), "ingest_max",
                                  number(collector->rpc.ingest_max_bytes)));
    set_number(root, "push_calls", collector->rpc.push_calls);
    set_number(root, "fetch_calls", collector->rpc.fetch_calls);
    json_object_set_new(root, "validator", validator_json(collector));
}

static int put_piece(const char *data, size_t size, void *buf)
{
    pd_buf_put(buf, data, size);
    return 0;
}

void pd_collect_page(const struct pd_collector *collector, struct pd_buf *json)
{
    json_t *root = json_object(), *feeds = json_array();
    set_daemon(root, collector);
    for (uint32_t i = 0; i < collector->sources.config->feed_count; i++)
        json_array_append_new(feeds, feed_json(collector, i));
    json_object_set_new(root, "feeds", feeds);
    json->failed |=
        json_dump_callback(root, put_piece, json, JSON_COMPACT | JSON_REAL_PRECISION(6)) != 0;
    json_decref(root);
}
