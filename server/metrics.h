/* Metrics: the tables of metrics_table.h as numbers that any thread adds to, printed for Prometheus
 * by the main thread.
 *
 * Counters and histograms are added to where things happen; what some module owns is copied by the
 * collector once a second. A scrape reads atomics and that copy, and takes no lock. */
#ifndef PD_SERVER_METRICS_H
#define PD_SERVER_METRICS_H

#include "base/bytes.h"
#include "base/err.h"
#include "server/metrics_table.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum pd_collected {
#define X(id, name, type, labels, help) id,
    PD_COLLECTED(X)
#undef X
        PD_COLLECTED_COUNT
};
enum pd_counter {
#define X(id, name, help) id,
    PD_COUNTERS(X)
#undef X
        PD_COUNTER_COUNT
};
enum pd_labelled_counter {
#define X(id, name, label, help) id,
    PD_LABELLED_COUNTERS(X)
#undef X
        PD_LABELLED_COUNT
};
enum pd_feed_counter {
#define X(id, name, help) id,
    PD_FEED_COUNTERS(X)
#undef X
        PD_FEED_COUNTER_COUNT
};
enum pd_feed_set {
#define X(id, name, label, words, help) id,
    PD_FEED_SETS(X)
#undef X
        PD_FEED_SET_COUNT
};
enum pd_histogram {
#define X(id, name, buckets, help) id,
    PD_HISTOGRAMS(X)
#undef X
        PD_HISTOGRAM_COUNT
};

#define PD_METRICS_FEEDS_MAX 64

/* The feeds' names, borrowed, by index; at start. Their numbers are exported from then on. */
void pd_metrics_feeds(const char *const *names, uint32_t count);

/* Any thread; lock-free. */
void pd_metric_add(enum pd_counter counter, uint64_t amount);
uint64_t pd_metric_value(enum pd_counter counter);
/* `label` must be a short string of a closed set (a reason, a check, a view), copied: at most 64 of
 * them and 63 bytes each, then "other". Adding 0 makes it known. */
void pd_metric_add_labelled(enum pd_labelled_counter counter, const char *label, uint64_t amount);
void pd_metric_add_feed(enum pd_feed_counter counter, uint32_t feed_index, uint64_t amount);
uint64_t pd_metric_feed_value(enum pd_feed_counter counter, uint32_t feed_index);
/* `word` is one of the set's; any other counts under "other". */
void pd_metric_add_set(enum pd_feed_set set, uint32_t feed_index, const char *word,
                       uint64_t amount);
/* A duration in nanoseconds, or a ratio in parts of 10^9. */
void pd_metric_observe(enum pd_histogram histogram, uint64_t value);
/* "This thread has just gone through its loop": packd_thread_heartbeat_timestamp_seconds{thread}.
 * `thread` as label above. */
void pd_metric_heartbeat(const char *thread);

/* gRPC calls, under the names that every gRPC dashboard knows. Paths ("/packd.v1.Feed/Fetch") are
 * told at start and borrowed, at most PD_METRICS_METHODS_MAX; a call of another path counts as
 * method "unknown". `code` is gRPC's number of the status. */
#define PD_METRICS_METHODS_MAX 40
void pd_metrics_method(const char *path);
void pd_metric_call_started(const char *path);
void pd_metric_call_ended(const char *path, unsigned code, uint64_t duration_ns);

/* At scrape: a collector writes further families, each opened once and its samples behind it. Main
 * thread. */
struct pd_metrics_writer;
void pd_metrics_family(struct pd_metrics_writer *writer, const char *name, const char *type,
                       const char *help);
void pd_metrics_collected(struct pd_metrics_writer *writer, enum pd_collected family);
const char *pd_metrics_collected_name(enum pd_collected family);
/* labels: "" or `feed="a",kind="real"` with values already escaped by pd_metrics_escape; the
 * sample's name is the family's. */
void pd_metrics_sample(struct pd_metrics_writer *writer, const char *name, const char *labels,
                       double value);
/* Copies `value` with backslash, quote and newline escaped, cut to what fits; returns out. */
const char *pd_metrics_escape(const char *value, char *out, size_t size);
/* At most 8 collectors, at start; they run in this order in every render. */
void pd_metrics_register(void (*collect)(void *ctx, struct pd_metrics_writer *writer), void *ctx);
/* Forgets them, before what they read is taken down. */
void pd_metrics_unregister_all(void);
/* packd_build_info's labels; static strings, at start. */
void pd_metrics_build(const char *version, const char *revision, const char *cuda);

/* The whole exposition in Prometheus text format 0.0.4 (or OpenMetrics 1.0), appended to *out. Main
 * thread. PD_ENOMEM. */
int pd_metrics_render(struct pd_buf *out, bool openmetrics) PD_MUST_CHECK;
/* docs/METRICS.md, from the tables. PD_EIO. */
int pd_metrics_reference(FILE *out) PD_MUST_CHECK;

#endif
