/* Metrics: one table in code, updated with atomics from any thread, printed for Prometheus by the
 * main thread.
 *
 * Counters and histograms below are added to where things happen; gauges that some module owns are
 * read at scrape time by the collector functions registered at start. A scrape takes no lock of the
 * data path beyond those collectors' short ones. */
#ifndef PD_SERVER_METRICS_H
#define PD_SERVER_METRICS_H

#include "base/bytes.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* id, name, help. Counters without labels; they start at 0 and are always exported. */
#define PD_COUNTERS(X)                                                                 \
    X(PD_M_INGEST_SAMPLES, "packd_ingest_samples_total", "Samples stored in the log.") \
    X(PD_M_INGEST_TOKENS, "packd_ingest_tokens_total", "Tokens stored in the log.")    \
    X(PD_M_INGEST_BYTES, "packd_ingest_bytes_total", "Body bytes of samples stored in the log.")  \
    X(PD_M_INGEST_BLOCKS, "packd_ingest_blocks_total", "Blocks stored in the log.")    \
    X(PD_M_INGEST_DUPLICATES, "packd_ingest_duplicate_samples_total",                  \
      "Samples pushed again and dropped: their seq was in the log.")                   \
    X(PD_M_COMMITS, "packd_log_commits_total", "Log transactions committed.")          \
    X(PD_M_PACKS_PLANNED, "packd_packs_planned_total", "Packs planned.")               \
    X(PD_M_BATCHES_BUILT, "packd_batches_built_total",                                 \
      "Batches assembled, checked and published.")                                     \
    X(PD_M_BATCHES_REBUILT, "packd_batches_rebuilt_total",                             \
      "Batches built a second time, because the first build failed a check.")          \
    X(PD_M_BATCHES_EVICTED, "packd_batches_evicted_total",                             \
      "Ready batches dropped to free memory.")                                         \
    X(PD_M_FETCH_BYTES, "packd_fetch_bytes_total", "Payload bytes handed to gRPC.")    \
    X(PD_M_RPC_CONNECTED, "packd_rpc_calls_total", "gRPC calls accepted.")             \
    X(PD_M_RPC_REFUSED, "packd_rpc_calls_refused_total",                               \
      "gRPC calls ended by an error of the caller.")

/* One label each, from a closed set given at start or in code. */
#define PD_LABELLED_COUNTERS(X)                                                                   \
    X(PD_M_INGEST_REJECTED, "packd_ingest_rejected_total", "reason",                              \
      "Samples refused at the door.")                                                             \
    X(PD_M_VIOLATIONS, "packd_validation_violations_total", "check",                              \
      "Violations found, by structural rule or kind of the probe's, each build counted.")         \
    X(PD_M_STEPS_SKIPPED, "packd_steps_skipped_total", "cause",                                   \
      "Steps left out of jobs, by an operator or for a violation.")                               \
    X(PD_M_GRPC_HANDLED, "packd_grpc_handled_total", "code", "gRPC calls ended, by status code.")

/* Seconds, fixed buckets. */
#define PD_HISTOGRAMS(X)                                                                           \
    X(PD_M_BUILD_SECONDS, "packd_assemble_duration_seconds",                                       \
      "Time to assemble and check a batch.")                                                       \
    X(PD_M_CHECK_SECONDS, "packd_validation_duration_seconds", "Time of the checks of one batch.") \
    X(PD_M_WAIT_SECONDS, "packd_serve_wait_seconds",                                               \
      "Time a trainer waited for a batch that was not ready.")                                     \
    X(PD_M_PROBE_SECONDS, "packd_probe_duration_seconds",                                          \
      "Time of the attention probe of one batch.")                                                 \
    X(PD_M_COMMIT_SECONDS, "packd_log_commit_duration_seconds", "Time of one log commit.")         \
    X(PD_M_PLAN_SECONDS, "packd_plan_duration_seconds", "Time of one planning run.")

/* Families whose values some module owns: read at scrape time by collectors. id, name, type, labels
 * for the reference, help. */
#define PD_COLLECTED(X)                                                                            \
    X(PD_C_PACK_TOKENS, "packd_pack_tokens_total", "counter",                                      \
      "feed, kind: real, gap, tail, row_padding",                                                  \
      "Positions served, each batch once, by what they hold; padding rate = all but real / all.")  \
    X(PD_C_FULL_STEP_REAL, "packd_full_step_real_tokens_total", "counter", "feed",                 \
      "Real positions served, without the last, partly filled step of each job.")                  \
    X(PD_C_FULL_STEP_ALL, "packd_full_step_positions_total", "counter", "feed",                    \
      "All positions served, without the last, partly filled step of each job.")                   \
    X(PD_C_SAVED, "packd_saved_positions_total", "counter", "feed",                               \
      "Positions that dynamic widths spared against width_bound.")                                 \
    X(PD_C_OVERLAP, "packd_overlap_tokens_total", "counter", "feed",                               \
      "Tokens served a second time because a sample was split.")                                   \
    X(PD_C_LOSS, "packd_loss_tokens_total", "counter", "feed", "Loss targets served.")             \
    X(PD_C_SAMPLES, "packd_serve_samples_total", "counter", "feed", "Samples served.")             \
    X(PD_C_BATCHES, "packd_serve_batches_total", "counter", "feed",                                \
      "Batches delivered whole for the first time.")                                               \
    X(PD_C_REREADS, "packd_serve_rereads_total", "counter", "feed", "Batches delivered again.")    \
    X(PD_C_STEPS, "packd_serve_steps_total", "counter", "feed",                                    \
      "Steps of which every batch has been delivered.")                                            \
    X(PD_C_WINDOW_SAMPLES, "packd_window_samples", "gauge", "feed",                                \
      "Samples in the planner's window.")                                                          \
    X(PD_C_WINDOW_TOKENS, "packd_window_tokens", "gauge", "feed",                                  \
      "Tokens in the planner's window.")                                                           \
    X(PD_C_FEED_PACKS, "packd_feed_packs", "gauge", "feed", "Packs of the feed planned so far.")   \
    X(PD_C_HORIZON, "packd_feed_horizon_packs", "gauge", "feed", "Packs that may be planned now.") \
    X(PD_C_FEED_WAITING, "packd_feed_waiting_since_timestamp_seconds", "gauge", "feed",            \
      "Since when the planner has waited for samples; 0 while it does not.")                       \
    X(PD_C_FEED_ENDED, "packd_feed_ended", "gauge", "feed",                                        \
      "1 once the feed has ended and is planned to its end.")                                      \
    X(PD_C_STREAMS, "packd_streams", "gauge", "feed, state: open, ended", "Streams known.")        \
    X(PD_C_TRUNCATED, "packd_truncated_samples_total", "counter", "feed",                          \
      "Samples cut to seq_len.")                                                                   \
    X(PD_C_SPLIT, "packd_split_samples_total", "counter", "feed", "Samples split into parts.")     \
    X(PD_C_JOB_COMMITTED, "packd_job_committed_step", "gauge", "feed, job",                        \
      "Next step after the highest committed.")                                                    \
    X(PD_C_JOB_DELIVERED, "packd_job_delivered_step", "gauge", "feed, job",                        \
      "Next step after the highest delivered whole.")                                              \
    X(PD_C_JOB_GENERATION, "packd_job_generation", "gauge", "feed, job",                           \
      "Generation of the job's world.")                                                            \
    X(PD_C_STATUS_TIME, "packd_status_timestamp_seconds", "gauge", "",                             \
      "When the planner's figures above were read from the sequencer.")                            \
    X(PD_C_READY_BYTES, "packd_ready_bytes", "gauge", "", "Memory in finished batches.")           \
    X(PD_C_READY_MAX, "packd_ready_max_bytes", "gauge", "",                                        \
      "What finished batches may take: memory.batches.")                                           \
    X(PD_C_READY_BATCHES, "packd_ready_batches", "gauge", "", "Finished batches in memory.")       \
    X(PD_C_BUILDING, "packd_building_batches", "gauge", "", "Batches being built.")                \
    X(PD_C_WAITERS, "packd_serve_waiters", "gauge", "", "Fetches that wait for a batch.")          \
    X(PD_C_LOG_BYTES, "packd_log_bytes", "gauge", "", "Bytes of the log in use.")                  \
    X(PD_C_LOG_MAX, "packd_log_max_bytes", "gauge", "", "What the log may use: log.max_bytes.")    \
    X(PD_C_LOG_INCARNATION, "packd_log_incarnation", "gauge", "",                                  \
      "How often the log has been opened.")                                                        \
    X(PD_C_PUSH_CALLS, "packd_push_calls", "gauge", "", "Push calls open.")                        \
    X(PD_C_FETCH_CALLS, "packd_fetch_calls", "gauge", "", "Fetch calls open.")                     \
    X(PD_C_INGEST_RESERVED, "packd_ingest_reserved_bytes", "gauge", "",                            \
      "Credit granted to producers and not used yet.")                                             \
    X(PD_C_INGEST_MAX, "packd_ingest_max_bytes", "gauge", "",                                      \
      "Sum that credits may reach: memory.ingest.")                                                \
    X(PD_C_PROBED, "packd_validation_batches_total", "counter", "backend, result",                 \
      "Batches chosen for the attention probe: passed, violation, no_cpu_time, too_large, "        \
      "failed.")                                                                                   \
    X(PD_C_VALIDATOR, "packd_validator_info", "gauge", "backend, device",                          \
      "1 once the validator's self-test has passed, 0 before and where it failed.")                \
    X(PD_C_READY, "packd_ready", "gauge", "", "1 while /readyz answers 200.")

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
enum pd_histogram {
#define X(id, name, help) id,
    PD_HISTOGRAMS(X)
#undef X
        PD_HISTOGRAM_COUNT
};

/* Any thread; lock-free. */
void pd_metric_add(enum pd_counter counter, uint64_t amount);
uint64_t pd_metric_value(enum pd_counter counter);
/* `label` must be a short string of a closed set (a reason, a check, a code), copied: at most 64 of
 * them and 63 bytes each, then "other". */
void pd_metric_add_labelled(enum pd_labelled_counter counter, const char *label, uint64_t amount);
void pd_metric_observe(enum pd_histogram histogram, uint64_t duration_ns);
/* "This thread has just gone through its loop": packd_thread_heartbeat_timestamp_seconds{thread}.
 * `thread` as label above. */
void pd_metric_heartbeat(const char *thread);

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
void pd_metrics_build(const char *version, const char *cuda);

/* The whole exposition in Prometheus text format 0.0.4 (or OpenMetrics 1.0), appended to *out. Main
 * thread. PD_ENOMEM. */
int pd_metrics_render(struct pd_buf *out, bool openmetrics) PD_MUST_CHECK;
/* docs/METRICS.md, from the tables above. PD_EIO. */
int pd_metrics_reference(FILE *out) PD_MUST_CHECK;

#endif
