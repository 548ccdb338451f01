/* A feed's settings as the log has them: key and value texts, made when the feed is made and again
 * when the file has changed.
 *
 *   file ──encode──> texts ──compare──> same:    what is set live stays (SetMixture)
 *                                       fixed:   refused on a feed with data, both values named
 *                                       live:    a record that acts behind the horizon
 *
 * Start-up code and sequencer thread. Invariant: what has been planned and laid out comes out the
 * same whatever the file says, so every key that shapes a batch of a plan is fixed; what only
 * decides about plans to come may change. To add a live rule: a row in `live_rules`. A key that an
 * older log does not have counts as the default. */
#include "server/sequencer_settings.h"

#include "base/check.h"
#include "base/log.h"
#include "server/sequencer_planning.h"
#include "server/sequencer_streams.h"
#include "server/sequencer_tables.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- encode ---- */

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

/* "libero:right_wrist,": one pair after the other. */
static void put_drop_views(struct pd_buf *buf, const struct pd_feed_config *config)
{
    struct pd_buf list = {0};
    for (uint32_t i = 0; i < config->drop_views_count; i++) {
        const struct pd_drop_view *drop = &config->drop_views[i];
        char text[2 * PD_NAME_MAX + 8];
        int size = snprintf(text, sizeof text, "%s:%s,", drop->source, drop->view);
        pd_buf_put(&list, text, (size_t)size);
    }
    put_list(buf, "drop_views", &list);
    pd_buf_fini(&list);
}

static void put_keep_frames(struct pd_buf *buf, const struct pd_feed_config *config)
{
    struct pd_buf list = {0};
    for (uint32_t i = 0; i < config->keep_frames_count; i++) {
        char text[PD_NAME_MAX + 16];
        int size = snprintf(text, sizeof text, "%s:%u,", config->keep_frames[i].source,
                            config->keep_frames[i].every);
        pd_buf_put(&list, text, (size_t)size);
    }
    put_list(buf, "keep_frames", &list);
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
    put_setting(buf, "width_bound", "%u", config->layout.width_bound);
    put_setting(buf, "vision_window", "%u", config->layout.vision_window);
    put_drop_views(buf, config);
    put_keep_frames(buf, config);
}

/* ---- looking into them ---- */

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

static bool same_text(struct text a, struct text b)
{
    return a.size == b.size && a.data && b.data && memcmp(a.data, b.data, a.size) == 0;
}

/* The value of a key; data NULL: there is none. */
static struct text value_of(const struct pd_buf *settings, struct text key)
{
    struct pd_reader reader = pd_reader_of(settings->data, settings->size_bytes);
    while (pd_reader_left(&reader) > 0 && !reader.failed) {
        struct text name = next_text(&reader), value = next_text(&reader);
        if (!reader.failed && same_text(name, key))
            return value;
    }
    return (struct text){0};
}

static struct text value_named(const struct pd_buf *settings, const char *key)
{
    return value_of(settings, (struct text){.data = key, .size = strlen(key)});
}

static uint64_t number_of(struct text text)
{
    char digits[24] = "";
    memcpy(digits, text.data, text.size < sizeof digits - 1 ? text.size : sizeof digits - 1);
    return strtoull(digits, NULL, 10);
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

/* ---- live rules ---- */

#define LIVE(key, member)                                                                      \
    {                                                                                          \
        key, offsetof(struct pd_live_rules, member), sizeof((struct pd_live_rules *)0)->member \
    }
static const struct {
    const char *key;
    size_t offset, size;
} live_rules[] = {
    LIVE("window", window_samples),
    LIVE("window_bytes", window_bytes),
    LIVE("strategy", strategy),
    LIVE("order", order),
    LIVE("shuffle_samples", shuffle_samples),
    LIVE("shuffle_bytes", shuffle_bytes),
    LIVE("over_length", over_length),
};

static bool is_live(struct text key)
{
    for (size_t i = 0; i < PD_COUNT_OF(live_rules); i++)
        if (text_is(key, live_rules[i].key))
            return true;
    return text_is(key, "drop_views") || text_is(key, "keep_frames");
}

/* ---- pruning rules ---- */

/* The next "name:value," of a list. */
static bool next_pair(struct pd_reader *reader, struct text *name, struct text *value)
{
    const char *at = (const char *)reader->at, *end = (const char *)reader->end;
    const char *colon = at < end ? memchr(at, ':', (size_t)(end - at)) : NULL;
    const char *comma = colon ? memchr(colon, ',', (size_t)(end - colon)) : NULL;
    if (!comma)
        return false;
    *name = (struct text){.data = at, .size = (size_t)(colon - at)};
    *value = (struct text){.data = colon + 1, .size = (size_t)(comma - colon - 1)};
    reader->at = (const uint8_t *)comma + 1;
    return true;
}

static struct pd_reader list_named(const struct pd_buf *settings, const char *key)
{
    struct text list = value_named(settings, key);
    return pd_reader_of(list.data, list.data ? list.size : 0);
}

/* The rule of a source, made where it is new; NULL: there are too many, or the source has no number
 * yet, so that no sample can have it. */
static struct pd_prune *rule_of(const struct pd_seq_feed *feed, struct text source,
                                struct pd_live_rules *live)
{
    uint32_t number = 0, i = 0;
    while (number < feed->source_count && !text_is(source, feed->sources[number]))
        number++;
    if (number == feed->source_count)
        return NULL;
    while (i < live->prune_count && live->prunes[i].source != number + 1)
        i++;
    if (i == PD_PRUNE_RULES_MAX)
        return NULL;
    if (i == live->prune_count)
        live->prunes[live->prune_count++] = (struct pd_prune_rule){.source = number + 1};
    return &live->prunes[i].prune;
}

static void prune_rules(const struct pd_seq_feed *feed, const struct pd_buf *settings,
                        struct pd_live_rules *live)
{
    struct pd_reader drops = list_named(settings, "drop_views");
    struct pd_reader frames = list_named(settings, "keep_frames");
    struct text source, value;
    live->prune_count = 0;
    memset(live->prunes, 0, sizeof live->prunes);
    while (next_pair(&drops, &source, &value)) {
        struct pd_prune *rule = rule_of(feed, source, live);
        for (uint32_t v = 0; rule && v < feed->view_count; v++)
            if (text_is(value, feed->views[v]))
                rule->drop_views |= UINT64_C(1) << v;
    }
    while (next_pair(&frames, &source, &value)) {
        struct pd_prune *rule = rule_of(feed, source, live);
        if (rule)
            rule->keep_frames = (uint32_t)number_of(value);
    }
}

static void copy_name(char name[PD_NAME_MAX + 1], struct text text)
{
    size_t size = text.size < PD_NAME_MAX ? text.size : PD_NAME_MAX;
    memcpy(name, text.data, size);
    name[size] = 0;
}

int pd_seq_settings_names(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                          const struct pd_buf *settings, struct pd_error *error)
{
    static const char *const keys[] = {"drop_views", "keep_frames"};
    int rc = 0;
    for (size_t k = 0; k < PD_COUNT_OF(keys); k++) {
        struct pd_reader list = list_named(settings, keys[k]);
        struct text source, value;
        char name[PD_NAME_MAX + 1];
        uint32_t number;
        while (rc == 0 && next_pair(&list, &source, &value)) {
            copy_name(name, source);
            rc = pd_seq_source_number(seq, feed, name, &number, error);
            copy_name(name, value);
            if (rc == 0 && k == 0)
                rc = pd_seq_view_number(seq, feed, name, error);
        }
    }
    return rc;
}

void pd_seq_settings_rules(const struct pd_seq_feed *feed, const struct pd_buf *settings,
                           struct pd_live_rules *live)
{
    for (size_t i = 0; i < PD_COUNT_OF(live_rules); i++) {
        struct text value = value_named(settings, live_rules[i].key);
        uint64_t number = value.data ? number_of(value) : 0;
        if (value.data) /* little-endian, as base/bytes.c asserts */
            memcpy((char *)live + live_rules[i].offset, &number, live_rules[i].size);
    }
    prune_rules(feed, settings, live);
}

/* The weight behind the name in "name:weight:on_end:passes,", and where the entry's rest begins. */
static bool next_source(struct pd_reader *reader, struct text *name, uint32_t *weight,
                        struct text *rest)
{
    const char *at = (const char *)reader->at, *end = (const char *)reader->end;
    const char *colon = at < end ? memchr(at, ':', (size_t)(end - at)) : NULL;
    const char *second = colon ? memchr(colon + 1, ':', (size_t)(end - colon - 1)) : NULL;
    const char *comma = second ? memchr(second, ',', (size_t)(end - second)) : NULL;
    if (!comma)
        return false;
    *name = (struct text){.data = at, .size = (size_t)(colon - at)};
    *weight =
        (uint32_t)number_of((struct text){.data = colon + 1, .size = (size_t)(second - colon - 1)});
    *rest = (struct text){.data = second, .size = (size_t)(comma - second)};
    reader->at = (const uint8_t *)comma + 1;
    return true;
}

uint32_t pd_seq_settings_weights(const struct pd_buf *settings,
                                 uint32_t weights[PD_LANES_WEIGHTED_MAX])
{
    struct text sources = value_named(settings, "sources"), name, rest;
    struct pd_reader reader = pd_reader_of(sources.data, sources.size);
    uint32_t count = 0;
    memset(weights, 0, PD_LANES_WEIGHTED_MAX * sizeof *weights);
    while (count < PD_LANES_WEIGHTED_MAX && next_source(&reader, &name, &weights[count], &rest))
        count++;
    return count;
}

/* Whether two lists of sources differ in nothing but weights. */
static bool only_weights_differ(struct text a, struct text b)
{
    struct pd_reader readers[2] = {pd_reader_of(a.data, a.size), pd_reader_of(b.data, b.size)};
    struct text names[2], rests[2];
    uint32_t weight;
    while (next_source(&readers[0], &names[0], &weight, &rests[0]))
        if (!next_source(&readers[1], &names[1], &weight, &rests[1]) ||
            !same_text(names[0], names[1]) || !same_text(rests[0], rests[1]))
            return false;
    return pd_reader_left(&readers[0]) == 0 && pd_reader_left(&readers[1]) == 0;
}

/* ---- compare ---- */

/* Ends of a feed may be declared later, as long as no lane hangs on the list. */
static bool may_change(const struct pd_seq_feed *feed, struct text key, struct text old,
                       struct text new)
{
    bool arrival = feed->config->rules.merge == PD_MERGE_ARRIVAL;
    if (is_live(key))
        return true;
    if (text_is(key, "sources"))
        return arrival && only_weights_differ(old, new);
    return arrival && (text_is(key, "streams") || text_is(key, "stream_count"));
}

static int refuse(const struct pd_seq_feed *feed, struct text key, struct text old, struct text new,
                  struct pd_error *error)
{
    old = in_words(key, old);
    new = in_words(key, new);
    return pd_error_set(
        error, PD_EMISMATCH, "FIXED_KEY",
        "feed '%s' has data: %.*s is '%.*s' in the log and '%.*s' in the configuration; "
        "put the old value back or use another feed name",
        feed->name, (int)key.size, key.data, (int)(old.size < 120 ? old.size : 120), old.data,
        (int)(new.size < 120 ? new.size : 120), new.data);
}

static bool differs(const struct pd_seq_feed *feed, const struct pd_buf *wanted,
                    const struct pd_buf *defaults, const char *key)
{
    struct text old = value_named(&feed->settings, key);
    return !same_text(old.data ? old : value_named(defaults, key), value_named(wanted, key));
}

static int compare(struct pd_seq_feed *feed, const struct pd_buf *wanted,
                   const struct pd_buf *defaults, struct pd_error *error)
{
    bool cap_follows = differs(feed, wanted, defaults, "fixed_segments");
    struct pd_reader reader = pd_reader_of(wanted->data, wanted->size_bytes);
    while (pd_reader_left(&reader) > 0) {
        struct text key = next_text(&reader), new = next_text(&reader);
        struct text old = value_of(&feed->settings, key);
        if (!old.data)
            old = value_of(defaults, key);
        /* The key that was changed is the one to name. */
        if (same_text(old, new) || (cap_follows && text_is(key, "max_segments")))
            continue;
        if (!may_change(feed, key, old, new))
            return refuse(feed, key, old, new, error);
        feed->rules_changed |= is_live(key);
        feed->weights_changed |= text_is(key, "sources");
    }
    return 0;
}

int pd_seq_settings_compare(struct pd_seq_feed *feed, const struct pd_buf *wanted,
                            struct pd_error *error)
{
    struct pd_config usual;
    struct pd_buf defaults = {0};
    if (pd_config_default(&usual) != 0)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    pd_seq_settings_encode(&usual.feeds[0], &defaults);
    int rc = defaults.failed ? pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory")
                             : compare(feed, wanted, &defaults, error);
    pd_buf_fini(&defaults);
    pd_config_fini(&usual);
    return rc;
}

/* ---- taking effect ---- */

const struct pd_feed_config *pd_seq_file_feed(const struct pd_sequencer *seq,
                                              const struct pd_feed_config *config)
{
    const struct pd_feed_config *feed =
        seq->file ? pd_config_feed(seq->file, config->name, NULL) : NULL;
    return feed ? feed : config;
}

int pd_seq_settings_record(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                           struct pd_buf *settings, struct pd_error *error)
{
    int rc = pd_seq_settings_names(seq, feed, settings, error);
    if (rc)
        return rc;
    struct pd_buf swap = feed->settings;
    feed->settings = *settings;
    *settings = swap;
    feed->config_digest = pd_feed_config_digest(pd_seq_file_feed(seq, feed->config));
    feed->dirty = true;
    pd_buf_clear(&seq->body);
    pd_buf_put_string(&seq->body, feed->name, strlen(feed->name));
    pd_buf_put_u64(&seq->body, feed->config_digest);
    pd_buf_put_string(&seq->body, (const char *)feed->settings.data, feed->settings.size_bytes);
    return pd_log_append_record(seq->log, PD_RECORD_FEED, feed->number, &seq->body, error);
}

static int write_rules(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_error *error)
{
    struct pd_control control = {.kind = PD_CONTROL_RULES,
                                 .from_pack = pd_planner_change_pack(feed->planner),
                                 .rules = pd_live_rules_of(pd_planner_rules(feed->planner))};
    pd_seq_settings_rules(feed, &feed->settings, &control.rules);
    int rc = pd_seq_planner_control(seq, feed, &control, error);
    if (rc)
        return rc;
    pd_log(PD_LOG_INFO, "feed_reconfigured", "feed=%s from_pack=%" PRIu64, feed->name,
           control.from_pack);
    pd_buf_clear(&seq->body);
    pd_buf_put_u64(&seq->body, control.from_pack);
    pd_buf_put_string(&seq->body, (const char *)feed->settings.data, feed->settings.size_bytes);
    return pd_seq_record(seq, PD_RECORD_RULES, feed->number);
}

void pd_seq_settings_replay(const struct pd_seq_feed *feed, struct pd_control *control,
                            struct pd_reader *body)
{
    size_t size;
    control->kind = PD_CONTROL_RULES;
    control->from_pack = pd_reader_u64(body);
    control->rules = pd_live_rules_of(pd_planner_rules(feed->planner));
    const char *texts = pd_reader_string(body, &size);
    const struct pd_buf settings = {.data = (uint8_t *)(uintptr_t)texts,
                                    .size_bytes = texts ? size : 0};
    pd_seq_settings_rules(feed, &settings, &control->rules);
}

int pd_seq_settings_act(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_error *error)
{
    int rc = 0;
    if (feed->planner && !feed->ended && feed->rules_changed)
        rc = write_rules(seq, feed, error);
    if (!rc && feed->planner && !feed->ended && feed->weights_changed) {
        uint32_t weights[PD_LANES_WEIGHTED_MAX];
        uint64_t pack;
        pd_seq_settings_weights(&feed->settings, weights);
        rc = pd_seq_mixture_write(seq, feed, weights, &pack, error);
    }
    feed->rules_changed = feed->weights_changed = false;
    return rc;
}

/* ---- reload ---- */

static int note_changes(struct pd_seq_feed *feed, const struct pd_config *file,
                        struct pd_error *error)
{
    struct pd_buf settings = {0};
    const struct pd_feed_config *config = pd_config_feed(file, feed->name, NULL);
    if (!config)
        return 0;
    pd_seq_settings_encode(config, &settings);
    int rc = settings.failed ? pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory")
                             : pd_seq_settings_compare(feed, &settings, error);
    pd_buf_fini(&settings);
    return rc;
}

static int take_file(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_error *error)
{
    struct pd_buf settings = {0};
    pd_seq_settings_encode(pd_seq_file_feed(seq, feed->config), &settings);
    int rc = settings.failed ? pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory")
                             : pd_seq_settings_record(seq, feed, &settings, error);
    pd_buf_fini(&settings);
    return rc ? rc : pd_seq_settings_act(seq, feed, error);
}

/* Every feed is looked at before anything is written; a failure after that undoes the group. */
int pd_seq_reload(struct pd_sequencer *seq, struct pd_request_reload *request)
{
    struct pd_error *error = &request->base.error;
    const struct pd_config *before = seq->file;
    int rc = 0;
    for (uint32_t i = 0; i < seq->state.feed_count && !rc; i++)
        if (seq->state.feeds[i]->config)
            rc = note_changes(seq->state.feeds[i], request->config, error);
    seq->file = rc ? before : request->config;
    for (uint32_t i = 0; i < seq->state.feed_count; i++) {
        struct pd_seq_feed *feed = seq->state.feeds[i];
        bool changed = feed->rules_changed || feed->weights_changed;
        if (!rc && feed->config && changed) {
            rc = take_file(seq, feed, error);
            request->changed++;
        }
        feed->rules_changed = feed->weights_changed = false;
    }
    if (rc && seq->file != before) {
        seq->file = before;
        return seq->group_rc ? rc : pd_seq_write_failed(seq, rc, error);
    }
    return rc;
}
