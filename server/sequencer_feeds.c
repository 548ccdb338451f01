/* Feeds: their configuration in the log, their ends, their flushes.
 *
 * What shapes batches is recorded as key and value texts when a feed is made, and compared at
 * every start: a feed with data keeps its settings. Sequencer thread (and the start-up code).
 * Invariant: an end or a flush is a record before the planner hears of it takes effect. It does
 * not plan. */
#include "server/sequencer_state.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- settings ---- */

static void put_setting(struct pd_buf *buf, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void put_setting(struct pd_buf *buf, const char *key, const char *format, ...)
{
    char value[256];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(value, sizeof value, format, args);
    va_end(args);
    PD_CHECK(size >= 0 && (size_t)size < sizeof value);
    pd_buf_put_string(buf, key, strlen(key));
    pd_buf_put_string(buf, value, (size_t)size);
}

/* Lists become one text: "a:7:0:1,b:3:2:4". */
static void put_list(struct pd_buf *buf, const char *key, const struct pd_buf *list)
{
    pd_buf_put_string(buf, key, strlen(key));
    pd_buf_put_string(buf, (const char *)list->data, list->size_bytes);
    buf->failed = buf->failed || list->failed;
}

static void put_streams(struct pd_buf *buf, const struct pd_feed_config *config)
{
    struct pd_buf list = {0};
    for (uint32_t i = 0; i < config->stream_count; i++) {
        pd_buf_put(&list, config->streams[i], strlen(config->streams[i]));
        pd_buf_put(&list, ",", 1);
    }
    put_list(buf, "streams", &list);
    pd_buf_fini(&list);
}

static void put_sources(struct pd_buf *buf, const struct pd_feed_config *config)
{
    struct pd_buf list = {0};
    for (uint32_t i = 0; i < config->source_count; i++) {
        const struct pd_source_config *source = &config->sources[i];
        char text[PD_NAME_MAX + 64];
        int size = snprintf(text, sizeof text, "%s:%u:%d:%u,", source->name, source->lane.weight,
                            (int)source->lane.on_end, source->lane.passes_max);
        pd_buf_put(&list, text, (size_t)size);
    }
    put_list(buf, "sources", &list);
    pd_buf_fini(&list);
}

static void put_layout(struct pd_buf *buf, const struct pd_layout_rules *layout)
{
    char widths[16 * 12] = "";
    size_t at = 0;
    for (uint32_t i = 0; i < layout->width_count && i < 16; i++)
        at += (size_t)snprintf(widths + at, sizeof widths - at, "%u,", layout->widths[i]);
    put_setting(buf, "total_align", "%u", layout->total_align);
    put_setting(buf, "pad_segment", "%u", layout->pad_segment);
    put_setting(buf, "pad_id", "%d", layout->pad_id);
    put_setting(buf, "labels", "%s", layout->labels == PD_LABELS_SHIFTED ? "shifted" : "unshifted");
    put_setting(buf, "loss_weight", "%s", layout->loss == PD_LOSS_SAMPLE ? "sample" : "token");
    put_setting(buf, "cost", "%u,%u", layout->cost.alpha, layout->cost.beta);
    put_setting(buf, "width", "%d", (int)layout->width);
    put_setting(buf, "widths", "%s", widths);
    put_setting(buf, "fixed_segments", "%u", layout->fixed_segments);
}

void pd_seq_settings_encode(const struct pd_feed_config *config, struct pd_buf *buf)
{
    const struct pd_rules *rules = &config->rules;
    put_setting(buf, "seq_len", "%u", rules->seq_len);
    put_setting(buf, "window", "%u", rules->window_samples);
    put_setting(buf, "window_bytes", "%" PRIu64, rules->window_bytes);
    put_setting(buf, "strategy", "%d", (int)rules->strategy);
    put_setting(buf, "order", "%d", (int)rules->order);
    put_setting(buf, "shuffle_samples", "%u", rules->shuffle_samples);
    put_setting(buf, "shuffle_bytes", "%" PRIu64, rules->shuffle_bytes);
    put_setting(buf, "merge", "%s", rules->merge == PD_MERGE_ORDERED ? "ordered" : "arrival");
    put_setting(buf, "over_length", "%d", (int)rules->over_length);
    put_setting(buf, "seg_align", "%u", rules->seg_align);
    put_setting(buf, "max_segments", "%u", rules->segments_max);
    put_setting(buf, "max_patches", "%u", rules->patches_max);
    put_setting(buf, "seed", "%" PRIu64, rules->seed);
    put_setting(buf, "epochs", "%u", config->epochs);
    if (config->balance == PD_BALANCE_COST)
        put_setting(buf, "balance", "cost, %" PRIu64 " bytes", config->balance_bytes);
    else
        put_setting(buf, "balance", "off");
    put_setting(buf, "last_step", "%s", config->last_step == PD_LAST_STEP_DROP ? "drop" : "pad");
    put_layout(buf, &config->layout);
    put_sources(buf, config);
    put_streams(buf, config);
    put_setting(buf, "stream_count", "%u", config->streams_to_end);
    put_setting(buf, "positions", "%s",
                config->layout.positions == PD_POSITIONS_MROPE ? "mrope" : "1d");
}

struct text {
    const char *data;
    size_t size;
};

static struct text next_text(struct pd_reader *reader)
{
    struct text text;
    text.data = pd_reader_string(reader, &text.size);
    return text;
}

static bool text_is(struct text text, const char *other)
{
    return text.data && text.size == strlen(other) && memcmp(text.data, other, text.size) == 0;
}

/* Ends of a feed may be declared later, as long as no lane hangs on the list. */
static bool may_change(const struct pd_feed_config *config, struct text key)
{
    return config->rules.merge == PD_MERGE_ARRIVAL &&
           (text_is(key, "streams") || text_is(key, "stream_count"));
}

/* A setting as the configuration's file says it: the log has choices as numbers. */
static struct text in_words(struct text key, struct text value)
{
    if (value.size != 1)
        return value;
    const char *word =
        pd_feed_choice_name(key.data, key.size, (uint32_t)((uint8_t)value.data[0] - (uint8_t)'0'));
    return word ? (struct text){.data = word, .size = strlen(word)} : value;
}

/* The settings of a feed with data against those in the file. */
static int compare_settings(const struct pd_seq_feed *feed, const struct pd_buf *wanted,
                            struct pd_error *error)
{
    struct pd_reader old = pd_reader_of(feed->settings.data, feed->settings.size_bytes);
    struct pd_reader new = pd_reader_of(wanted->data, wanted->size_bytes);
    while (pd_reader_left(&old) > 0 && pd_reader_left(&new) > 0) {
        struct text key = next_text(&old), value = next_text(&old);
        struct text new_key = next_text(&new), new_value = next_text(&new);
        if (old.failed || new.failed || key.size != new_key.size ||
            memcmp(key.data, new_key.data, key.size) != 0)
            return pd_error_set(error, PD_EMISMATCH, "SETTINGS_FORMAT",
                                "feed '%s' was recorded with other keys than this version has",
                                feed->name);
        bool same =
            value.size == new_value.size && memcmp(value.data, new_value.data, value.size) == 0;
        value = in_words(key, value);
        new_value = in_words(key, new_value);
        if (!same && !may_change(feed->config, key))
            return pd_error_set(
                error, PD_EMISMATCH, "FIXED_KEY",
                "feed '%s' has data: %.*s is '%.*s' in the log and '%.*s' in the configuration; "
                "put the old value back or use another feed name",
                feed->name, (int)key.size, key.data, (int)(value.size < 120 ? value.size : 120),
                value.data, (int)(new_value.size < 120 ? new_value.size : 120), new_value.data);
    }
    return 0;
}

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

/* Takes `settings` for the feed's, as a record. */
static int record_settings(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                           struct pd_buf *settings, struct pd_error *error)
{
    struct pd_buf swap = feed->settings;
    feed->settings = *settings;
    *settings = swap;
    feed->config_digest = pd_feed_config_digest(feed->config);
    feed->dirty = true;
    pd_buf_clear(&seq->body);
    pd_buf_put_string(&seq->body, feed->name, strlen(feed->name));
    pd_buf_put_u64(&seq->body, feed->config_digest);
    pd_buf_put_string(&seq->body, (const char *)feed->settings.data, feed->settings.size_bytes);
    return pd_log_append_record(seq->log, PD_RECORD_FEED, feed->number, &seq->body, error);
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
    int rc = set_sources(seq, feed, error);
    return rc ? rc : record_settings(seq, feed, settings, error);
}

static int add_feed(struct pd_sequencer *seq, const struct pd_feed_config *config,
                    struct pd_seq_feed **out, struct pd_error *error)
{
    struct pd_seq_state *state = &seq->state;
    struct pd_seq_feed **feeds = realloc(state->feeds, (state->feed_count + 1) * sizeof *feeds);
    if (!feeds)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    state->feeds = feeds;
    struct pd_seq_feed *feed = calloc(1, sizeof *feed);
    if (!feed)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    feed->number = state->feed_count;
    memcpy(feed->name, config->name, sizeof feed->name);
    state->feeds[state->feed_count++] = feed;
    *out = feed;
    return 0;
}

static int configure_feed(struct pd_sequencer *seq, uint32_t index, struct pd_error *error)
{
    const struct pd_feed_config *config = &seq->config->feeds[index];
    struct pd_seq_feed *feed = pd_seq_feed_find(&seq->state, config->name);
    int rc = feed ? 0 : add_feed(seq, config, &feed, error);
    if (rc)
        return rc;
    feed->index = index;
    feed->config = config;
    pd_log_set_feed_number(seq->log, index, feed->number);
    struct pd_buf settings = {0};
    pd_seq_settings_encode(config, &settings);
    bool same = feed->settings.size_bytes == settings.size_bytes && !settings.failed &&
                memcmp(feed->settings.data, settings.data, settings.size_bytes) == 0;
    if (settings.failed)
        rc = pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    else if (!same && (feed->has_data || feed->stream_count > 0))
        rc = compare_settings(feed, &settings, error);
    if (!rc && !same)
        rc = feed->has_data || feed->stream_count > 0 ? record_settings(seq, feed, &settings, error)
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
        uint64_t step = job->delivered;
        if (!job->delivered_known && feed->packs > job->first_pack)
            step = pd_job_steps_planned(&steps, feed->packs, false);
        uint64_t end = pd_job_step_end(&steps, step);
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
