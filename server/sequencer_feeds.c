/* Feeds: their configuration in the log, their ends, their flushes.
 *
 * At every start the configuration is joined with what the log has of each feed
 * (sequencer_settings.c says what may differ). Sequencer thread (and the start-up code). Invariant:
 * an end or a flush is a record before the planner hears of it takes effect. It does not plan. */
#include "server/sequencer_feeds.h"

#include "base/check.h"
#include "base/log.h"
#include "server/sequencer_jobs.h"
#include "server/sequencer_planning.h"
#include "server/sequencer_settings.h"
#include "server/sequencer_space.h"

#include <stdlib.h>

/* ---- configuration and log ---- */

static uint32_t lanes_of(const struct pd_feed_config *config)
{
    return config->rules.lane_count ? config->rules.lane_count : 1;
}

/* Sources of the configuration get the first numbers. */
static int set_sources(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_error *error)
{
    const struct pd_feed_config *config = feed->config;
    free(feed->sources);
    feed->source_count = 0;
    feed->sources = calloc(config->source_count ? config->source_count : 1, sizeof *feed->sources);
    if (!feed->sources)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    for (uint32_t i = 0; i < config->source_count; i++) {
        memcpy(feed->sources[i], config->sources[i].name, sizeof feed->sources[i]);
        feed->source_count = i + 1;
        pd_buf_clear(&seq->row);
        pd_buf_put_string(&seq->row, feed->sources[i], strlen(feed->sources[i]));
        int rc = pd_log_put_row(seq->log, PD_TABLE_SOURCES, feed->number, i + 1, &seq->row, error);
        if (rc)
            return rc;
    }
    return 0;
}

/* A feed without data follows the file: everything about it starts anew. */
static int reset_feed(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_buf *settings,
                      struct pd_error *error)
{
    uint32_t lanes = lanes_of(feed->config);
    uint8_t *ended = calloc(lanes, 1);
    if (!ended)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    free(feed->lane_ended);
    feed->lane_ended = ended;
    feed->lane_count = lanes;
    pd_seq_settings_weights(settings, feed->weights);
    pd_buf_clear(&feed->first_settings);
    pd_buf_put(&feed->first_settings, settings->data, settings->size_bytes);
    if (feed->first_settings.failed)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    int rc = set_sources(seq, feed, error);
    return rc ? rc : pd_seq_settings_record(seq, feed, settings, error);
}

/* That of a deleted feed, or the next one. */
static uint32_t free_number(const struct pd_seq_state *state)
{
    for (uint32_t i = 0; i < state->feed_count; i++)
        if (state->feeds[i]->gone == PD_SEQ_PURGED)
            return i;
    return state->feed_count;
}

bool pd_seq_feeds_full(const struct pd_seq_state *state)
{
    return free_number(state) == PD_LOG_FEEDS_MAX;
}

static int add_feed(struct pd_sequencer *seq, const struct pd_feed_config *config,
                    struct pd_seq_feed **out, struct pd_error *error)
{
    struct pd_seq_state *state = &seq->state;
    uint32_t number = free_number(state);
    if (pd_seq_feeds_full(state))
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY_FEEDS",
                            "the log has %u feeds, deleted ones that are still being removed "
                            "included",
                            number);
    struct pd_seq_feed **feeds = realloc(state->feeds, (state->feed_count + 1) * sizeof *feeds);
    if (!feeds)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    state->feeds = feeds;
    struct pd_seq_feed *feed = calloc(1, sizeof *feed);
    if (!feed)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    feed->number = number;
    memcpy(feed->name, config->name, sizeof feed->name);
    if (number < state->feed_count)
        pd_seq_feed_free(state->feeds[number]);
    else
        state->feed_count++;
    state->feeds[number] = feed;
    *out = feed;
    return pd_log_put_lowest_pack(seq->log, number, 0, error);
}

static void join_config(struct pd_sequencer *seq, struct pd_seq_feed *feed, uint32_t index)
{
    feed->index = index;
    feed->config = &seq->config->feeds[index];
    pd_log_set_feed_number(seq->log, index, feed->number);
}

int pd_seq_feed_make(struct pd_sequencer *seq, uint32_t index, struct pd_seq_feed **out,
                     struct pd_error *error)
{
    struct pd_buf settings = {0};
    struct pd_seq_feed *feed = NULL;
    int rc = add_feed(seq, &seq->config->feeds[index], &feed, error);
    if (rc)
        return rc;
    join_config(seq, feed, index);
    pd_seq_settings_encode(pd_seq_file_feed(seq, feed->config), &settings);
    rc = settings.failed ? pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory")
                         : reset_feed(seq, feed, &settings, error);
    pd_buf_fini(&settings);
    *out = feed;
    return rc;
}

static int configure_feed(struct pd_sequencer *seq, uint32_t index, struct pd_error *error)
{
    const struct pd_feed_config *config = &seq->config->feeds[index];
    struct pd_seq_feed *feed = pd_seq_feed_find(&seq->state, config->name);
    int rc = feed ? 0 : add_feed(seq, config, &feed, error);
    if (rc)
        return rc;
    join_config(seq, feed, index);
    struct pd_buf settings = {0};
    pd_seq_settings_encode(pd_seq_file_feed(seq, config), &settings);
    bool same = feed->settings.size_bytes == settings.size_bytes && !settings.failed &&
                memcmp(feed->settings.data, settings.data, settings.size_bytes) == 0;
    if (settings.failed)
        rc = pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    else if (!same && (feed->has_data || feed->stream_count > 0))
        rc = pd_seq_settings_compare(feed, &settings, error);
    if (!rc && !same)
        rc = feed->has_data || feed->stream_count > 0
                 ? pd_seq_settings_record(seq, feed, &settings, error)
                 : reset_feed(seq, feed, &settings, error);
    pd_buf_fini(&settings);
    return rc;
}

int pd_seq_feeds_configure(struct pd_sequencer *seq, struct pd_error *error)
{
    if (seq->config->feed_count > PD_LOG_FEEDS_MAX)
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY_FEEDS",
                            "%u feeds are configured, at most %u can be", seq->config->feed_count,
                            PD_LOG_FEEDS_MAX);
    for (uint32_t i = 0; i < seq->config->feed_count; i++) {
        int rc = configure_feed(seq, i, error);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- ends ---- */

static int end_feed(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_error *error)
{
    struct pd_control control = {.kind = PD_CONTROL_END_FEED};
    int rc = pd_seq_planner_control(seq, feed, &control, error);
    if (rc)
        return rc;
    pd_buf_clear(&seq->body);
    rc = pd_seq_record(seq, PD_RECORD_END_FEED, feed->number);
    if (rc)
        return rc;
    feed->end_declared = true;
    feed->dirty = true;
    feed->plan_wanted = true;
    feed->announce = true;
    return 0;
}

int pd_seq_end_feed(struct pd_sequencer *seq, struct pd_request_end_feed *request)
{
    struct pd_seq_feed *feed = NULL;
    int rc = pd_seq_feed_named(seq, request->feed, &feed, &request->base.error);
    if (rc || feed->end_declared)
        return rc;
    request->base.record = pd_log_next_position(seq->log);
    return end_feed(seq, feed, &request->base.error);
}

static int end_lane(struct pd_sequencer *seq, struct pd_seq_feed *feed, uint32_t lane,
                    struct pd_error *error)
{
    struct pd_control control = {.kind = PD_CONTROL_END_LANE, .lane = lane};
    int rc = pd_seq_planner_control(seq, feed, &control, error);
    if (rc)
        return rc;
    pd_buf_clear(&seq->body);
    pd_buf_put_u32(&seq->body, lane);
    rc = pd_seq_record(seq, PD_RECORD_END_LANE, feed->number);
    if (rc)
        return rc;
    feed->lane_ended[lane] = 1;
    feed->dirty = true;
    feed->plan_wanted = true;
    return 0;
}

static uint32_t streams_expected(const struct pd_feed_config *config)
{
    return config->stream_count > 0 ? config->stream_count : config->streams_to_end;
}

/* A declared stream is its lane. A source's lane has ended only when no further stream can be
 * opened on it: all expected ones are known. */
static bool lane_is_over(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                         uint32_t lane)
{
    const struct pd_feed_config *config = feed->config;
    bool by_source = config->rules.merge != PD_MERGE_ORDERED && config->source_count > 0;
    if (config->rules.merge != PD_MERGE_ORDERED && !by_source)
        return false;
    if (by_source &&
        (streams_expected(config) == 0 || feed->stream_count < streams_expected(config)))
        return false;
    bool opened = false;
    for (uint32_t i = 0; i < seq->state.stream_count; i++) {
        const struct pd_seq_stream *stream = seq->state.streams[i];
        if (stream->feed != feed->number || stream->lane != lane)
            continue;
        if (!stream->ended)
            return false;
        opened = true;
    }
    return opened || by_source;
}

static int end_lanes(struct pd_sequencer *seq, struct pd_seq_feed *feed, uint32_t lane,
                     struct pd_error *error)
{
    bool ordered = feed->config->rules.merge == PD_MERGE_ORDERED;
    uint32_t from = ordered ? lane : 0, to = ordered ? lane + 1 : feed->lane_count;
    for (uint32_t i = from; i < to; i++) {
        if (feed->lane_ended[i] || !lane_is_over(seq, feed, i))
            continue;
        int rc = end_lane(seq, feed, i, error);
        if (rc)
            return rc;
    }
    return 0;
}

int pd_seq_feed_check_end(struct pd_sequencer *seq, struct pd_seq_feed *feed, uint32_t lane,
                          struct pd_error *error)
{
    if (feed->end_declared || !feed->config)
        return 0;
    int rc = end_lanes(seq, feed, lane, error);
    uint32_t expected = streams_expected(feed->config);
    if (rc || expected == 0 || feed->streams_ended < expected)
        return rc;
    return end_feed(seq, feed, error);
}

/* ---- flushes ---- */

int pd_seq_flush_write(struct pd_sequencer *seq, struct pd_seq_feed *feed, uint64_t packs,
                       struct pd_error *error)
{
    struct pd_control control = {.kind = PD_CONTROL_FLUSH, .packs = packs};
    int rc = pd_seq_planner_control(seq, feed, &control, error);
    if (rc)
        return rc;
    pd_buf_clear(&seq->body);
    pd_buf_put_u64(&seq->body, packs);
    rc = pd_seq_record(seq, PD_RECORD_FLUSH, feed->number);
    feed->plan_wanted = true;
    feed->appended_since_flush = false;
    return rc;
}

int pd_seq_flush(struct pd_sequencer *seq, struct pd_request_flush *request)
{
    struct pd_seq_feed *feed = NULL;
    int rc = pd_seq_feed_named(seq, request->feed, &feed, &request->base.error);
    if (rc)
        return rc;
    if (feed->end_declared)
        return pd_error_set(&request->base.error, PD_EMISMATCH, "FEED_ENDED",
                            "feed '%s' has ended: everything will be packed anyway", feed->name);
    request->base.record = pd_log_next_position(seq->log);
    request->base.effective_pack = feed->packs;
    return pd_seq_flush_write(seq, feed, request->packs, &request->base.error);
}

uint64_t pd_seq_waited_pack(const struct pd_seq_feed *feed)
{
    uint64_t earliest = 0;
    for (uint32_t i = 0; i < feed->job_count; i++) {
        const struct pd_seq_job *job = feed->jobs[i];
        if (job->deleted || job->released || job->spec.kind != PD_JOB_TRAINER)
            continue;
        struct pd_job_steps steps = pd_seq_job_steps(feed, job);
        uint64_t end = pd_job_step_end(&steps, pd_seq_job_reached(feed, job));
        if (end > feed->packs && (earliest == 0 || end < earliest))
            earliest = end;
    }
    return earliest;
}

static bool may_flush(const struct pd_seq_feed *feed)
{
    return feed->config && feed->config->max_wait_ns > 0 && feed->planner && feed->waiting &&
           !feed->end_declared && (feed->want.window_samples > 0 || feed->appended_since_flush);
}

/* When the flush is due, or UINT64_MAX. */
static uint64_t flush_due(struct pd_seq_feed *feed, uint64_t now_ns)
{
    uint64_t pack = may_flush(feed) ? pd_seq_waited_pack(feed) : 0;
    if (pack == 0) {
        feed->short_since_ns = 0;
        return UINT64_MAX;
    }
    if (feed->short_since_ns == 0 || feed->short_pack != pack)
        feed->short_since_ns = now_ns;
    feed->short_pack = pack;
    return feed->short_since_ns + feed->config->max_wait_ns;
}

int pd_seq_feeds_idle(struct pd_sequencer *seq, uint64_t now_ns)
{
    seq->next_timer_ns = UINT64_MAX;
    for (uint32_t i = 0; i < seq->state.feed_count; i++) {
        struct pd_seq_feed *feed = seq->state.feeds[i];
        uint64_t due = flush_due(feed, now_ns);
        if (due <= now_ns) {
            struct pd_error error = {0};
            int rc = pd_seq_flush_write(seq, feed, feed->short_pack - feed->packs, &error);
            if (seq->group_rc)
                return seq->group_rc;
            if (rc)
                pd_log(PD_LOG_WARN, "max_wait_flush_failed", "feed=%s reason=%s", feed->name,
                       error.reason);
            feed->short_since_ns = now_ns;
            due = now_ns + feed->config->max_wait_ns;
        }
        if (due < seq->next_timer_ns)
            seq->next_timer_ns = due;
    }
    return 0;
}
