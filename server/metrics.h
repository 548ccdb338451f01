/* Metrics: one table in code, updated with atomics from any thread, printed for Prometheus by the main thread.
 *
 * Counters and histograms below are added to where things happen; gauges that some module owns are read at scrape time by the collector
 * functions registered at start. A scrape takes no lock of the data path beyond those collectors' short ones. */
#ifndef PD_SERVER_METRICS_H
#define PD_SERVER_METRICS_H

#include "base/bytes.h"
#include "base/err.h"

#include <stdint.h>

/* id, name, help. Counters without labels; they start at 0 and are always exported. */
#define PD_COUNTERS(X)                                                                             \
    X(PD_M_INGEST_SAMPLES, "packd_ingest_samples_total", "Samples stored in the log.")             \
    X(PD_M_INGEST_TOKENS, "packd_ingest_tokens_total", "Tokens stored in the log.")                \
    X(PD_M_INGEST_BYTES, "packd_ingest_bytes_total", "Body bytes stored in the log.")              \
    X(PD_M_INGEST_BLOCKS, "packd_ingest_blocks_total", "Blocks stored in the log.")                \
    X(PD_M_INGEST_DUPLICATES, "packd_ingest_duplicate_samples_total",                              \
      "Samples pushed again and dropped: their seq was in the log.")                               \
    X(PD_M_COMMITS, "packd_log_commits_total", "Log transactions committed.")                      \
    X(PD_M_PACKS_PLANNED, "packd_packs_planned_total", "Packs planned.")                           \
    X(PD_M_BATCHES_BUILT, "packd_batches_built_total", "Batches assembled, checked and published.") \
    X(PD_M_BATCHES_EVICTED, "packd_batches_evicted_total", "Ready batches dropped to free memory.") \
    X(PD_M_FETCH_BYTES, "packd_fetch_bytes_total", "Payload bytes handed to gRPC.")                \
    X(PD_M_RPC_CONNECTED, "packd_rpc_calls_total", "gRPC calls accepted.")                         \
    X(PD_M_RPC_REFUSED, "packd_rpc_calls_refused_total", "gRPC calls ended by an error of the caller.")

/* One label each, from a closed set given at start or in code. */
#define PD_LABELLED_COUNTERS(X)                                                                    \
    X(PD_M_INGEST_REJECTED, "packd_ingest_rejected_total", "reason", "Samples refused at the door.") \
    X(PD_M_VIOLATIONS, "packd_validation_violations_total", "check", "Structural violations found, by rule.") \
    X(PD_M_GRPC_HANDLED, "packd_grpc_handled_total", "code", "gRPC calls ended, by status code.")

/* Seconds, fixed buckets. */
#define PD_HISTOGRAMS(X)                                                                           \
    X(PD_M_BUILD_SECONDS, "packd_assemble_duration_seconds", "Time to assemble and check a batch.") \
    X(PD_M_CHECK_SECONDS, "packd_validation_duration_seconds", "Time of the checks of one batch.") \
    X(PD_M_WAIT_SECONDS, "packd_serve_wait_seconds", "Time a trainer waited for a batch that was not ready.") \
    X(PD_M_COMMIT_SECONDS, "packd_log_commit_duration_seconds", "Time of one log commit.")         \
    X(PD_M_PLAN_SECONDS, "packd_plan_duration_seconds", "Time of one planning run.")

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
enum pd_histogram {
#define X(id, name, help) id,
    PD_HISTOGRAMS(X)
#undef X
        PD_HISTOGRAM_COUNT
};

/* Any thread; lock-free. */
void pd_metric_add(enum pd_counter counter, uint64_t amount);
uint64_t pd_metric_value(enum pd_counter counter);
/* `label` must be a short string of a closed set (a reason, a check, a code): at most 64 of them, then "other". */
void pd_metric_add_labelled(enum pd_labelled_counter counter, const char *label, uint64_t amount);
void pd_metric_observe(enum pd_histogram histogram, uint64_t duration_ns);

/* At scrape: writes further families through pd_metrics_family and pd_metrics_sample. Main thread. */
struct pd_metrics_writer;
void pd_metrics_family(struct pd_metrics_writer *writer, const char *name, const char *type, const char *help);
/* labels: "" or `feed="a",kind="real"` with values already escaped by pd_metrics_escape. */
void pd_metrics_sample(struct pd_metrics_writer *writer, const char *name, const char *labels, double value);
void pd_metrics_register(void (*collect)(void *ctx, struct pd_metrics_writer *writer), void *ctx);

/* The whole exposition in Prometheus text format 0.0.4 (or OpenMetrics 1.0). PD_ENOMEM. */
int pd_metrics_render(struct pd_buf *out, int openmetrics) PD_MUST_CHECK;

#endif
