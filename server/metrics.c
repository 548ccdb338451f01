/* Metrics: atomics that any thread adds to, and their printing for Prometheus.
 *
 * Every number of the tables exists from the start at 0. Labels of open sets are added by
 * compare-and-swap into fixed slots and never removed, so adding takes no lock. A render reads each
 * atomic once; histograms derive their count from their buckets, so that they agree within a line
 * set. Rendering and collectors belong to the main thread. Does not keep history, and knows nothing
 * of HTTP (http.c). */
#include "server/metrics.h"

#include "base/check.h"
#include "base/clock.h"
#include "server/metrics_process.h"
#include "server/metrics_text.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define LABELS_MAX 64
#define LABEL_BYTES_MAX 63
#define COLLECTORS_MAX 8
#define BUCKETS_MAX 18
#define WORDS_MAX 16
#define WORD_BYTES_MAX 24

/* One label value and its number; free while label is NULL. */
struct slot {
    _Atomic(char *) label;
    _Atomic uint64_t value;
};

/* Slots fill in order; the last entry is "other". */
struct labelled {
    struct slot slots[LABELS_MAX];
    _Atomic uint64_t other;
};

struct buckets {
    uint64_t bounds[BUCKETS_MAX]; /* in parts of 10^9 */
    size_t count;
};

struct histogram {
    _Atomic uint64_t
        buckets[BUCKETS_MAX + 1]; /* not cumulative; the one behind the last bound is +Inf */
    _Atomic uint64_t sum;
};

/* The values of a set for one feed; the last is "other". */
struct set_values {
    _Atomic uint64_t values[WORDS_MAX + 1];
};

static const struct buckets buckets_SECONDS = {{100000, 250000, 500000, 1000000, 2500000, 5000000,
                                                10000000, 25000000, 50000000, 100000000, 250000000,
                                                500000000, 1000000000, 2500000000, 5000000000u,
                                                10000000000, 30000000000, 60000000000},
                                               18};
static const struct buckets buckets_RATIO = {{250000000, 500000000, 750000000, 900000000, 950000000,
                                              980000000, 990000000, 995000000, 999000000,
                                              1000000000},
                                             10};

static _Atomic uint64_t counters[PD_COUNTER_COUNT];
static struct labelled labelled_counters[PD_LABELLED_COUNT];
static struct labelled heartbeats;
static struct histogram histograms[PD_HISTOGRAM_COUNT];
static _Atomic uint64_t feed_counters[PD_FEED_COUNTER_COUNT][PD_METRICS_FEEDS_MAX];
static struct set_values feed_sets[PD_FEED_SET_COUNT][PD_METRICS_FEEDS_MAX];
static const char *feed_names[PD_METRICS_FEEDS_MAX];
static uint32_t feed_count;

static struct {
    void (*collect)(void *ctx, struct pd_metrics_writer *writer);
    void *ctx;
} collectors[COLLECTORS_MAX];
static size_t collector_count;
static char build_labels[200] = "version=\"unknown\"";

struct family_row {
    const char *name, *type, *label, *help;
    const char *words;             /* of a set */
    const struct buckets *buckets; /* of a histogram */
};

static const struct family_row counter_rows[] = {
#define X(id, name, help) {name, "counter", "", help, NULL, NULL},
    PD_COUNTERS(X)
#undef X
};
static const struct family_row labelled_rows[] = {
#define X(id, name, label, help) {name, "counter", label, help, NULL, NULL},
    PD_LABELLED_COUNTERS(X)
#undef X
};
static const struct family_row feed_rows[] = {
#define X(id, name, help) {name, "counter", "feed", help, NULL, NULL},
    PD_FEED_COUNTERS(X)
#undef X
};
static const struct family_row set_rows[] = {
#define X(id, name, label, words, help) {name, "counter", label, help, words, NULL},
    PD_FEED_SETS(X)
#undef X
};
static const struct family_row histogram_rows[] = {
#define X(id, name, buckets, help) {name, "histogram", "", help, NULL, &buckets_##buckets},
    PD_HISTOGRAMS(X)
#undef X
};
static const struct family_row collected_rows[] = {
#define X(id, name, type, labels, help) {name, type, labels, help, NULL, NULL},
    PD_COLLECTED(X)
#undef X
};

/* ---- adding: any thread ---- */

void pd_metric_add(enum pd_counter counter, uint64_t amount)
{
    atomic_fetch_add_explicit(&counters[counter], amount, memory_order_relaxed);
}

uint64_t pd_metric_value(enum pd_counter counter)
{
    return atomic_load_explicit(&counters[counter], memory_order_relaxed);
}

/* Claims a free slot for `label`; false when another thread was first (the caller looks again). */
static bool claim(struct slot *slot, const char *label, bool *no_memory)
{
    char *copy = strndup(label, LABEL_BYTES_MAX), *expected = NULL;
    *no_memory = !copy;
    if (copy && atomic_compare_exchange_strong(&slot->label, &expected, copy))
        return true;
    free(copy);
    return false;
}

/* The number behind `label`; `other` where the table or the memory is full. */
static _Atomic uint64_t *labelled_value(struct labelled *table, const char *label)
{
    for (size_t i = 0; i < LABELS_MAX; i++) {
        struct slot *slot = &table->slots[i];
        const char *found = atomic_load_explicit(&slot->label, memory_order_acquire);
        bool no_memory = false;
        if (!found && claim(slot, label, &no_memory))
            return &slot->value;
        if (no_memory)
            break;
        found = atomic_load_explicit(&slot->label, memory_order_acquire);
        if (strncmp(found, label, LABEL_BYTES_MAX) == 0)
            return &slot->value;
    }
    return &table->other;
}

void pd_metric_add_labelled(enum pd_labelled_counter counter, const char *label, uint64_t amount)
{
    atomic_fetch_add_explicit(labelled_value(&labelled_counters[counter], label), amount,
                              memory_order_relaxed);
}

void pd_metric_heartbeat(const char *thread)
{
    atomic_store_explicit(labelled_value(&heartbeats, thread), pd_clock_wall_ns(),
                          memory_order_relaxed);
}

void pd_metric_observe(enum pd_histogram histogram, uint64_t value)
{
    const struct buckets *buckets = histogram_rows[histogram].buckets;
    size_t bucket = 0;
    while (bucket < buckets->count && value > buckets->bounds[bucket])
        bucket++;
    atomic_fetch_add_explicit(&histograms[histogram].buckets[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histograms[histogram].sum, value, memory_order_relaxed);
}

void pd_metric_add_feed(enum pd_feed_counter counter, uint32_t feed_index, uint64_t amount)
{
    PD_CHECK(feed_index < PD_METRICS_FEEDS_MAX);
    atomic_fetch_add_explicit(&feed_counters[counter][feed_index], amount, memory_order_relaxed);
}

uint64_t pd_metric_feed_value(enum pd_feed_counter counter, uint32_t feed_index)
{
    PD_CHECK(feed_index < PD_METRICS_FEEDS_MAX);
    return atomic_load_explicit(&feed_counters[counter][feed_index], memory_order_relaxed);
}

/* Copies the word at *at, which moves behind it; false at the end. */
static bool next_word(const char **at, char word[WORD_BYTES_MAX])
{
    size_t length = strcspn(*at, " ");
    if (length == 0)
        return false;
    PD_CHECK(length < WORD_BYTES_MAX);
    memcpy(word, *at, length);
    word[length] = '\0';
    *at += length + ((*at)[length] == ' ');
    return true;
}

/* The word's place in the set, WORDS_MAX where it is none of it. */
static size_t word_index(const char *words, const char *word)
{
    char known[WORD_BYTES_MAX];
    for (size_t index = 0; next_word(&words, known); index++) {
        PD_CHECK(index < WORDS_MAX);
        if (strcmp(known, word) == 0)
            return index;
    }
    return WORDS_MAX;
}

void pd_metric_add_set(enum pd_feed_set set, uint32_t feed_index, const char *word, uint64_t amount)
{
    PD_CHECK(feed_index < PD_METRICS_FEEDS_MAX);
    size_t index = word_index(set_rows[set].words, word);
    atomic_fetch_add_explicit(&feed_sets[set][feed_index].values[index], amount,
                              memory_order_relaxed);
}

/* ---- writing: main thread ---- */

void pd_metrics_collected(struct pd_metrics_writer *writer, enum pd_collected family)
{
    const struct family_row *row = &collected_rows[family];
    pd_metrics_family(writer, row->name, row->type, row->help);
}

const char *pd_metrics_collected_name(enum pd_collected family)
{
    return collected_rows[family].name;
}

void pd_metrics_register(void (*collect)(void *ctx, struct pd_metrics_writer *writer), void *ctx)
{
    PD_CHECK(collector_count < COLLECTORS_MAX);
    collectors[collector_count].collect = collect;
    collectors[collector_count++].ctx = ctx;
}

void pd_metrics_unregister_all(void)
{
    collector_count = 0;
}

void pd_metrics_build(const char *version, const char *revision, const char *cuda)
{
    snprintf(build_labels, sizeof build_labels,
             "version=\"%.40s\",revision=\"%.60s\",cuda=\"%.20s\"", version, revision, cuda);
}

void pd_metrics_feeds(const char *const *names, uint32_t count)
{
    PD_CHECK(count <= PD_METRICS_FEEDS_MAX);
    for (uint32_t i = 0; i < count; i++)
        feed_names[i] = names[i];
    feed_count = count;
}

static void put_family(struct pd_metrics_writer *writer, const struct family_row *row)
{
    pd_metrics_family(writer, row->name, row->type, row->help);
}

static void put_labelled(struct pd_metrics_writer *writer, const char *name, const char *label,
                         struct labelled *table, double scale)
{
    char value[2 * LABEL_BYTES_MAX + 1], labels[200];
    for (size_t i = 0; i < LABELS_MAX; i++) {
        const char *found = atomic_load_explicit(&table->slots[i].label, memory_order_acquire);
        if (!found)
            break;
        snprintf(labels, sizeof labels, "%s=\"%s\"", label,
                 pd_metrics_escape(found, value, sizeof value));
        pd_metrics_sample(writer, name, labels,
                          (double)atomic_load(&table->slots[i].value) * scale);
    }
    uint64_t other = atomic_load(&table->other);
    snprintf(labels, sizeof labels, "%s=\"other\"", label);
    if (other > 0)
        pd_metrics_sample(writer, name, labels, (double)other * scale);
}

static void put_feed_counter(struct pd_metrics_writer *writer, size_t row)
{
    char labels[100];
    put_family(writer, &feed_rows[row]);
    for (uint32_t i = 0; i < feed_count; i++) {
        snprintf(labels, sizeof labels, "feed=\"%.64s\"", feed_names[i]);
        pd_metrics_sample(writer, feed_rows[row].name, labels,
                          (double)pd_metric_feed_value((enum pd_feed_counter)row, i));
    }
}

static void put_set_value(struct pd_metrics_writer *writer, const struct family_row *row,
                          uint32_t feed_index, const char *word, uint64_t value)
{
    bool seconds = strstr(row->name, "_seconds") != NULL;
    char labels[200];
    snprintf(labels, sizeof labels, "feed=\"%.64s\",%s=\"%s\"", feed_names[feed_index], row->label,
             word);
    pd_metrics_sample(writer, row->name, labels, (double)value / (seconds ? 1e9 : 1));
}

static void put_set(struct pd_metrics_writer *writer, size_t set)
{
    const struct family_row *row = &set_rows[set];
    put_family(writer, row);
    for (uint32_t i = 0; i < feed_count; i++) {
        const struct set_values *values = &feed_sets[set][i];
        const char *at = row->words;
        char word[WORD_BYTES_MAX];
        for (size_t w = 0; next_word(&at, word); w++)
            put_set_value(writer, row, i, word, atomic_load(&values->values[w]));
        uint64_t other = atomic_load(&values->values[WORDS_MAX]);
        if (other > 0)
            put_set_value(writer, row, i, "other", other);
    }
}

static void put_histogram(struct pd_metrics_writer *writer, size_t index)
{
    const struct family_row *row = &histogram_rows[index];
    struct histogram *histogram = &histograms[index];
    uint64_t count = 0;
    char bound[40];
    put_family(writer, row);
    for (size_t i = 0; i <= row->buckets->count; i++) {
        count += atomic_load_explicit(&histogram->buckets[i], memory_order_relaxed);
        pd_metrics_put(writer, "%s_bucket{le=\"%s\"} %" PRIu64 "\n", row->name,
                       i == row->buckets->count
                           ? "+Inf"
                           : pd_metrics_bound(row->buckets->bounds[i], bound, sizeof bound),
                       count);
    }
    pd_metrics_put(writer, "%s_sum ", row->name);
    pd_metrics_put_number(
        writer, (double)atomic_load_explicit(&histogram->sum, memory_order_relaxed) / 1e9);
    pd_metrics_put(writer, "\n%s_count %" PRIu64 "\n", row->name, count);
}

static void put_own(struct pd_metrics_writer *writer)
{
    for (size_t i = 0; i < PD_COUNTER_COUNT; i++) {
        put_family(writer, &counter_rows[i]);
        pd_metrics_sample(writer, counter_rows[i].name, "",
                          (double)pd_metric_value((enum pd_counter)i));
    }
    for (size_t i = 0; i < PD_LABELLED_COUNT; i++) {
        put_family(writer, &labelled_rows[i]);
        put_labelled(writer, labelled_rows[i].name, labelled_rows[i].label, &labelled_counters[i],
                     1);
    }
    for (size_t i = 0; i < PD_FEED_COUNTER_COUNT; i++)
        put_feed_counter(writer, i);
    for (size_t i = 0; i < PD_FEED_SET_COUNT; i++)
        put_set(writer, i);
    for (size_t i = 0; i < PD_HISTOGRAM_COUNT; i++)
        put_histogram(writer, i);
    static const char heartbeat[] = "packd_thread_heartbeat_timestamp_seconds";
    pd_metrics_family(writer, heartbeat, "gauge", "When the thread last went through its loop.");
    put_labelled(writer, heartbeat, "thread", &heartbeats, 1e-9);
    pd_metrics_family(writer, "packd_build_info", "gauge", "Always 1; the build is in the labels.");
    pd_metrics_sample(writer, "packd_build_info", build_labels, 1);
    pd_metrics_calls(writer);
}

int pd_metrics_render(struct pd_buf *out, bool openmetrics)
{
    struct pd_metrics_writer writer = {.out = out, .openmetrics = openmetrics};
    put_own(&writer);
    for (size_t i = 0; i < collector_count; i++)
        collectors[i].collect(collectors[i].ctx, &writer);
    pd_metrics_process(&writer);
    if (openmetrics)
        pd_metrics_put(&writer, "# EOF\n");
    return out->failed ? PD_ENOMEM : 0;
}

/* ---- the reference page ---- */

/* "feed, kind: real, gap": of a set, the words behind its label. */
static void put_row(FILE *out, const struct family_row *row)
{
    fprintf(out, "| `%s` | %s | %s", row->name, row->type, row->words ? "feed, " : "");
    fputs(row->label, out);
    for (const char *at = row->words ? row->words : ""; *at; at++) {
        if (at == row->words)
            fputs(": ", out);
        if (*at == ' ')
            fputs(", ", out);
        else
            fputc(*at, out);
    }
    fprintf(out, " | %s |\n", row->help);
}

static void put_rows(FILE *out, const struct family_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        put_row(out, &rows[i]);
}

static void put_buckets(FILE *out, const struct buckets *buckets)
{
    for (size_t i = 0; i < buckets->count; i++)
        fprintf(out, "%s %g", i ? "," : "", (double)buckets->bounds[i] / 1e9);
}

int pd_metrics_reference(FILE *out)
{
    fputs(
        "# Metrics\n\nMade from the tables in `server/metrics_table.h` by `bazel run "
        "//server:reference -- metrics`; a test compares "
        "the two.\n\n`GET /metrics` on the HTTP address: Prometheus text 0.0.4, or OpenMetrics "
        "1.0 where the scraper asks for "
        "it. Counters start at 0\nwith the process. What a module owns is copied once a second, so "
        "that a scrape waits for nobody and "
        "takes no lock.\n\nPadding rate over five minutes:\n\n"
        "    sum by (feed) (rate(packd_pack_tokens_total{kind!=\"real\"}[5m])) / sum by (feed) "
        "(rate(packd_pack_tokens_total[5m]))\n\n"
        "| name | type | labels | meaning |\n| --- | --- | --- | --- |\n",
        out);
    put_rows(out, feed_rows, PD_COUNT_OF(feed_rows));
    put_rows(out, set_rows, PD_COUNT_OF(set_rows));
    put_rows(out, counter_rows, PD_COUNT_OF(counter_rows));
    put_rows(out, labelled_rows, PD_COUNT_OF(labelled_rows));
    put_rows(out, collected_rows, PD_COUNT_OF(collected_rows));
    put_rows(out, histogram_rows, PD_COUNT_OF(histogram_rows));
    pd_metrics_calls_reference(out);
    fputs("| `packd_thread_heartbeat_timestamp_seconds` | gauge | thread | When the thread last "
          "went through its loop. |\n"
          "| `packd_build_info` | gauge | version, revision, cuda | Always 1; the build is in the "
          "labels. |\n"
          "| `packd_memory_anonymous_bytes` | gauge |  | Resident memory without mapped files: "
          "what the budgets are about. |\n"
          "| `process_*` | | | The usual ones of a Prometheus client: CPU seconds, memory, "
          "descriptors, threads, start time. |\n\n"
          "Histograms of durations have the buckets",
          out);
    put_buckets(out, &buckets_SECONDS);
    fputs(" seconds, those of ratios", out);
    put_buckets(out, &buckets_RATIO);
    fputs(".\n", out);
    return ferror(out) ? PD_EIO : 0;
}
