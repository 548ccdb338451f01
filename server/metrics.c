/* Metrics: atomics that any thread adds to, and their printing for Prometheus.
 *
 * Every counter and histogram of the tables exists from the start at 0. Labels are added by
 * compare-and-swap into fixed slots and never removed, so adding takes no lock. A render reads each
 * atomic once; histograms derive their count from their buckets, so that they agree within a line
 * set. Rendering and collectors belong to the main thread. Does not keep history, and knows nothing
 * of HTTP (http.c). */
#include "server/metrics.h"

#include "base/check.h"
#include "base/clock.h"
#include "server/metrics_process.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define LABELS_MAX 64
#define LABEL_BYTES_MAX 63
#define COLLECTORS_MAX 8
#define BUCKETS 18

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

struct histogram {
    _Atomic uint64_t buckets[BUCKETS + 1]; /* not cumulative; the last is +Inf */
    _Atomic uint64_t sum_ns;
};

static const uint64_t bucket_ns[BUCKETS] = {
    100000,     250000,     500000,      1000000,     2500000,     5000000,
    10000000,   25000000,   50000000,    100000000,   250000000,   500000000,
    1000000000, 2500000000, 5000000000u, 10000000000, 30000000000, 60000000000,
};

static _Atomic uint64_t counters[PD_COUNTER_COUNT];
static struct labelled labelled_counters[PD_LABELLED_COUNT];
static struct labelled heartbeats;
static struct histogram histograms[PD_HISTOGRAM_COUNT];

static struct {
    void (*collect)(void *ctx, struct pd_metrics_writer *writer);
    void *ctx;
} collectors[COLLECTORS_MAX];
static size_t collector_count;
static char build_labels[200] = "version=\"unknown\"";

struct family_row {
    const char *name, *type, *label, *help;
};

static const struct family_row counter_rows[] = {
#define X(id, name, help) {name, "counter", "", help},
    PD_COUNTERS(X)
#undef X
};
static const struct family_row labelled_rows[] = {
#define X(id, name, label, help) {name, "counter", label, help},
    PD_LABELLED_COUNTERS(X)
#undef X
};
static const struct family_row histogram_rows[] = {
#define X(id, name, help) {name, "histogram", "", help},
    PD_HISTOGRAMS(X)
#undef X
};
static const struct family_row collected_rows[] = {
#define X(id, name, type, labels, help) {name, type, labels, help},
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

void pd_metric_observe(enum pd_histogram histogram, uint64_t duration_ns)
{
    size_t bucket = 0;
    while (bucket < BUCKETS && duration_ns > bucket_ns[bucket])
        bucket++;
    atomic_fetch_add_explicit(&histograms[histogram].buckets[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histograms[histogram].sum_ns, duration_ns, memory_order_relaxed);
}

/* ---- writing: main thread ---- */

struct pd_metrics_writer {
    struct pd_buf *out;
    bool openmetrics;
};

static void put(struct pd_metrics_writer *writer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void put(struct pd_metrics_writer *writer, const char *format, ...)
{
    char line[600];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    PD_CHECK(size >= 0 && (size_t)size < sizeof line);
    pd_buf_put(writer->out, line, (size_t)size);
}

static bool ends_with(const char *text, size_t length, const char *end)
{
    size_t size = strlen(end);
    return length >= size && memcmp(text + length - size, end, size) == 0;
}

/* OpenMetrics calls a family of counters by its name without _total, and wants the unit said. */
void pd_metrics_family(struct pd_metrics_writer *writer, const char *name, const char *type,
                       const char *help)
{
    int length = (int)strlen(name);
    if (writer->openmetrics && strcmp(type, "counter") == 0 &&
        ends_with(name, (size_t)length, "_total"))
        length -= 6;
    put(writer, "# HELP %.*s %s\n# TYPE %.*s %s\n", length, name, help, length, name, type);
    if (!writer->openmetrics)
        return;
    if (ends_with(name, (size_t)length, "_seconds"))
        put(writer, "# UNIT %.*s seconds\n", length, name);
    else if (ends_with(name, (size_t)length, "_bytes"))
        put(writer, "# UNIT %.*s bytes\n", length, name);
}

void pd_metrics_collected(struct pd_metrics_writer *writer, enum pd_collected family)
{
    const struct family_row *row = &collected_rows[family];
    pd_metrics_family(writer, row->name, row->type, row->help);
}

const char *pd_metrics_collected_name(enum pd_collected family)
{
    return collected_rows[family].name;
}

/* Whole numbers as such, so that counters stay exact to 2^53; others with the fewest digits that
 * read back. */
static void put_number(struct pd_metrics_writer *writer, double value)
{
    char text[40];
    if (value == floor(value) && fabs(value) < 9007199254740992.0) {
        put(writer, "%.0f", value);
        return;
    }
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    put(writer, "%s", text);
}

void pd_metrics_sample(struct pd_metrics_writer *writer, const char *name, const char *labels,
                       double value)
{
    put(writer, "%s%s%s%s ", name, *labels ? "{" : "", labels, *labels ? "}" : "");
    put_number(writer, value);
    pd_buf_put(writer->out, "\n", 1);
}

const char *pd_metrics_escape(const char *value, char *out, size_t size)
{
    size_t used = 0;
    for (; *value && used + 3 <= size; value++) {
        if (*value == '\\' || *value == '"' || *value == '\n')
            out[used++] = '\\';
        out[used++] = *value == '\n' ? 'n' : *value;
    }
    out[used] = '\0';
    return out;
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

void pd_metrics_build(const char *version, const char *cuda)
{
    snprintf(build_labels, sizeof build_labels, "version=\"%.40s\",cuda=\"%.20s\"", version, cuda);
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

/* "le" in its canonical form: 0.001, 1.0, 60.0. */
static void put_histogram(struct pd_metrics_writer *writer, const char *name,
                          struct histogram *histogram)
{
    uint64_t count = 0;
    for (size_t i = 0; i <= BUCKETS; i++) {
        count += atomic_load_explicit(&histogram->buckets[i], memory_order_relaxed);
        if (i == BUCKETS) {
            put(writer, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, count);
            continue;
        }
        double bound = (double)bucket_ns[i] / 1e9;
        put(writer,
            bound == floor(bound) ? "%s_bucket{le=\"%.1f\"} %" PRIu64 "\n"
                                  : "%s_bucket{le=\"%g\"} %" PRIu64 "\n",
            name, bound, count);
    }
    put(writer, "%s_sum ", name);
    put_number(writer,
               (double)atomic_load_explicit(&histogram->sum_ns, memory_order_relaxed) / 1e9);
    put(writer, "\n%s_count %" PRIu64 "\n", name, count);
}

static void put_own(struct pd_metrics_writer *writer)
{
    for (size_t i = 0; i < PD_COUNTER_COUNT; i++) {
        pd_metrics_family(writer, counter_rows[i].name, counter_rows[i].type, counter_rows[i].help);
        pd_metrics_sample(writer, counter_rows[i].name, "",
                          (double)pd_metric_value((enum pd_counter)i));
    }
    for (size_t i = 0; i < PD_LABELLED_COUNT; i++) {
        pd_metrics_family(writer, labelled_rows[i].name, labelled_rows[i].type,
                          labelled_rows[i].help);
        put_labelled(writer, labelled_rows[i].name, labelled_rows[i].label, &labelled_counters[i],
                     1);
    }
    for (size_t i = 0; i < PD_HISTOGRAM_COUNT; i++) {
        pd_metrics_family(writer, histogram_rows[i].name, histogram_rows[i].type,
                          histogram_rows[i].help);
        put_histogram(writer, histogram_rows[i].name, &histograms[i]);
    }
    static const char heartbeat[] = "packd_thread_heartbeat_timestamp_seconds";
    pd_metrics_family(writer, heartbeat, "gauge", "When the thread last went through its loop.");
    put_labelled(writer, heartbeat, "thread", &heartbeats, 1e-9);
    pd_metrics_family(writer, "packd_build_info", "gauge", "Always 1; the build is in the labels.");
    pd_metrics_sample(writer, "packd_build_info", build_labels, 1);
}

int pd_metrics_render(struct pd_buf *out, bool openmetrics)
{
    struct pd_metrics_writer writer = {.out = out, .openmetrics = openmetrics};
    put_own(&writer);
    for (size_t i = 0; i < collector_count; i++)
        collectors[i].collect(collectors[i].ctx, &writer);
    pd_metrics_process(&writer);
    if (openmetrics)
        put(&writer, "# EOF\n");
    return out->failed ? PD_ENOMEM : 0;
}

/* ---- the reference page ---- */

static void put_rows(FILE *out, const struct family_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        fprintf(out, "| `%s` | %s | %s | %s |\n", rows[i].name, rows[i].type, rows[i].label,
                rows[i].help);
}

int pd_metrics_reference(FILE *out)
{
    fputs("# Metrics\n\nMade from the tables in `server/metrics.h` by `bazel run "
          "//server:reference -- metrics`; a test compares "
          "the two.\n\n`GET /metrics` on the HTTP address: Prometheus text 0.0.4, or OpenMetrics "
          "1.0 where the scraper asks for "
          "it. Counters start at 0\nwith the process. Figures of the planner are read from it "
          "every second, so that a scrape "
          "waits for nobody.\n\nPadding rate over five minutes:\n\n"
          "    sum by (feed) (rate(packd_pack_tokens_total{kind!=\"real\"}[5m])) / sum by (feed) "
          "(rate(packd_pack_tokens_total[5m]))\n\n"
          "| name | type | labels | meaning |\n| --- | --- | --- | --- |\n",
          out);
    put_rows(out, counter_rows, PD_COUNT_OF(counter_rows));
    put_rows(out, labelled_rows, PD_COUNT_OF(labelled_rows));
    put_rows(out, collected_rows, PD_COUNT_OF(collected_rows));
    put_rows(out, histogram_rows, PD_COUNT_OF(histogram_rows));
    fputs("| `packd_thread_heartbeat_timestamp_seconds` | gauge | thread | When the thread last "
          "went through its loop. |\n"
          "| `packd_build_info` | gauge | version, cuda | Always 1; the build is in the "
          "labels. |\n"
          "| `packd_memory_anonymous_bytes` | gauge |  | Resident memory without mapped files: "
          "what the budgets are about. |\n"
          "| `process_*` | | | The usual ones of a Prometheus client: CPU seconds, memory, "
          "descriptors, threads, start time. |\n\n"
          "Histograms have the buckets",
          out);
    for (size_t i = 0; i < BUCKETS; i++)
        fprintf(out, "%s %g", i ? "," : "", (double)bucket_ns[i] / 1e9);
    fputs(" seconds.\n", out);
    return ferror(out) ? PD_EIO : 0;
}
