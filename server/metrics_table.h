/* The metrics: every family that packd exports, as tables. metrics.c makes numbers, text and
 * docs/METRICS.md of them; metrics.h has the functions.
 *
 * Names follow Prometheus: base units, _total on counters. Each label has a closed set of values,
 * or one bounded by the configuration; none is ever a sample, a producer or an address. */
#ifndef PD_SERVER_METRICS_TABLE_H
#define PD_SERVER_METRICS_TABLE_H

/* id, name, help. Without labels. */
#define PD_COUNTERS(X)                                                        \
    X(PD_M_COMMITS, "packd_log_commits_total", "Log transactions committed.") \
    X(PD_M_BATCHES_BUILT, "packd_batches_built_total",                        \
      "Batches assembled, checked and published.")                            \
    X(PD_M_BATCHES_REBUILT, "packd_batches_rebuilt_total",                    \
      "Batches built a second time, because the first build failed a check.") \
    X(PD_M_BATCHES_EVICTED, "packd_batches_evicted_total",                    \
      "Ready batches dropped to free memory.")                                \
    X(PD_M_FETCH_BYTES, "packd_fetch_bytes_total", "Payload bytes handed to gRPC.")

/* One label each: id, name, label, help. Values come from a closed set in code and are told at the
 * start (pd_metric_add_labelled with 0), so that they are exported as 0. */
#define PD_LABELLED_COUNTERS(X)                                                                 \
    X(PD_M_INGEST_REJECTED, "packd_ingest_rejected_total", "reason",                            \
      "Samples refused at the door.")                                                           \
    X(PD_M_CONNECTIONS_REFUSED, "packd_connections_refused_total", "reason",                    \
      "Connections closed at once: limit (limits.connections, or the 32 of another address), "  \
      "peer "                                                                                   \
      "(limits.peer_connections), descriptors (the process has none left), memory (the kernel " \
      "had none); and ended later: "                                                            \
      "header_block (HTTP/2 headers without an end), resets (more than 1,000 streams reset in " \
      "a second), pings (more than 5,000 in one), streams (more than 256 opened in a second "   \
      "while the address has all calls it serves).")                                            \
    X(PD_M_VIOLATIONS, "packd_validation_violations_total", "check",                            \
      "Violations found, by structural rule or kind of the probe's, each build counted.")

/* A number a feed: id, name, help. */
#define PD_FEED_COUNTERS(X)                                                                      \
    X(PD_F_INGEST_SAMPLES, "packd_ingest_samples_total", "Samples stored in the log.")           \
    X(PD_F_INGEST_TOKENS, "packd_ingest_tokens_total", "Tokens stored in the log.")              \
    X(PD_F_INGEST_BYTES, "packd_ingest_bytes_total", "Body bytes of samples stored in the log.") \
    X(PD_F_INGEST_BLOCKS, "packd_ingest_blocks_total", "Blocks stored in the log.")              \
    X(PD_F_INGEST_DUPLICATES, "packd_ingest_duplicate_samples_total",                            \
      "Samples pushed again and dropped: their seq was in the log.")                             \
    X(PD_F_PACKS_PLANNED, "packd_packs_planned_total", "Packs planned by this process.")         \
    X(PD_F_LOG_FULL_FLUSHES, "packd_log_full_flushes_total",                                     \
      "Flushes because the log had no room for a whole window.")                                 \
    X(PD_F_COMMITS_GIVEN_UP, "packd_retained_commits_given_up_total",                            \
      "Commits that can no longer be gone back to, though jobs.retain asks for them: the log "   \
      "had no room.")                                                                            \
    X(PD_F_JOBS_RELEASED, "packd_jobs_released_total",                                           \
      "Jobs that stopped holding the log after idle_release.")                                   \
    X(PD_F_FULL_STEP_REAL, "packd_full_step_real_tokens_total",                                  \
      "Real positions served, without the last, partly filled step of each job.")                \
    X(PD_F_FULL_STEP_ALL, "packd_full_step_positions_total",                                     \
      "All positions served, without the last, partly filled step of each job.")                 \
    X(PD_F_SAVED, "packd_saved_positions_total",                                                 \
      "Positions that dynamic widths spared against width_bound.")                               \
    X(PD_F_OVERLAP, "packd_overlap_tokens_total",                                                \
      "Tokens served a second time because a sample was split.")                                 \
    X(PD_F_LOSS, "packd_loss_tokens_total", "Loss targets served.")                              \
    X(PD_F_SAMPLES, "packd_serve_samples_total", "Samples served.")                              \
    X(PD_F_BATCHES, "packd_serve_batches_total", "Batches delivered whole for the first time.")  \
    X(PD_F_REREADS, "packd_serve_rereads_total", "Batches delivered again.")                     \
    X(PD_F_STEPS, "packd_serve_steps_total", "Steps of which every batch has been delivered.")

/* A number a feed and word of a set: id, name, label, words, help. Those named _seconds are kept in
 * nanoseconds. */
#define PD_FEED_SETS(X)                                                                           \
    X(PD_S_WAITED, "packd_serve_waited_seconds_total", "waits_for",                               \
      "samples source stream end_feed plan horizon log_full build memory self_test halted "       \
      "diverged credit",                                                                          \
      "Time that fetches stood waiting, each rank's added up, by what they waited for: samples, " \
      "source, stream and end_feed are the producers' to end, credit the trainer's own.")         \
    X(PD_S_THROTTLED, "packd_ingest_throttled_seconds_total", "reason",                           \
      "log_full log_stalled lane_share ingest_memory peer_bytes halted draining",                 \
      "Time that producers stood without credit, each call's added up; lane_share: what they "    \
      "sent "                                                                                     \
      "waits to be planned, since trainers are slower.")                                          \
    X(PD_S_STEPS_SKIPPED, "packd_steps_skipped_total", "cause", "operator violation",             \
      "Steps left out of jobs, by an operator or for a violation.")                               \
    X(PD_S_COMPUTE, "packd_compute_units_total", "layout", "packed padded",                       \
      "Predicted compute of what was served, in units of the feed's cost model: packed, as it "   \
      "is; padded, had each sample had a row of seq_len to itself. Saved = 1 - packed / padded.")

/* Distributions with fixed buckets: id, name, buckets, help. Observed in nanoseconds, or in parts
 * of 10^9 where the name says ratio. */
#define PD_HISTOGRAMS(X)                                                                      \
    X(PD_M_APPEND_SECONDS, "packd_ingest_append_duration_seconds", SECONDS,                   \
      "Time from a whole block to its durable record.")                                       \
    X(PD_M_PLAN_SECONDS, "packd_plan_duration_seconds", SECONDS, "Time of one planning run.") \
    X(PD_M_COMMIT_SECONDS, "packd_log_commit_duration_seconds", SECONDS,                      \
      "Time of one log commit, with its fsync where durability asks for one.")                \
    X(PD_M_BUILD_SECONDS, "packd_assemble_duration_seconds", SECONDS,                         \
      "Time to assemble and check a batch.")                                                  \
    X(PD_M_CHECK_SECONDS, "packd_validation_duration_seconds", SECONDS,                       \
      "Time of the checks of one batch.")                                                     \
    X(PD_M_PROBE_SECONDS, "packd_probe_duration_seconds", SECONDS,                            \
      "Time of the attention probe of one batch.")                                            \
    X(PD_M_WAIT_SECONDS, "packd_serve_wait_seconds", SECONDS,                                 \
      "Time a trainer waited for a batch that was not ready.")                                \
    X(PD_M_FETCH_SECONDS, "packd_fetch_duration_seconds", SECONDS,                            \
      "Time from a ready batch's turn to its last byte handed over.")                         \
    X(PD_M_OCCUPANCY, "packd_pack_occupancy_ratio", RATIO,                                    \
      "Real positions of a row over its width.")

/* Families whose values some module owns, copied by the collector: id, name, type, labels for the
 * reference, help. */
#define PD_COLLECTED(X)                                                                            \
    X(PD_C_PACK_TOKENS, "packd_pack_tokens_total", "counter",                                      \
      "feed, kind: real, gap, tail, row_padding; source where producers name one",                 \
      "Positions served, each batch once, by what they hold; padding rate = all but real / all. "  \
      "A row's tail is shared out among its sources by their real positions.")                     \
    X(PD_C_WINDOW_SAMPLES, "packd_window_samples", "gauge", "feed",                                \
      "Samples in the planner's window.")                                                          \
    X(PD_C_WINDOW_TOKENS, "packd_window_tokens", "gauge", "feed",                                  \
      "Tokens in the planner's window.")                                                           \
    X(PD_C_WINDOW_OLDEST, "packd_window_oldest_sample_timestamp_seconds", "gauge", "feed",         \
      "When the sample longest in the window was pushed, not before the start of this process; 0 " \
      "where the window is empty.")                                                                \
    X(PD_C_FEED_PACKS, "packd_feed_packs", "gauge", "feed", "Packs of the feed planned so far.")   \
    X(PD_C_HORIZON, "packd_feed_horizon_packs", "gauge", "feed", "Packs that may be planned now.") \
    X(PD_C_FEED_WAITING, "packd_feed_waiting_since_timestamp_seconds", "gauge", "feed",            \
      "Since when the planner has waited for samples; 0 while it does not.")                       \
    X(PD_C_FEED_ENDED, "packd_feed_ended", "gauge", "feed",                                        \
      "1 once the feed has ended and is planned to its end.")                                      \
    X(PD_C_FEED_HALTED, "packd_feed_halted", "gauge", "feed",                                      \
      "1 where a violation or damage has stopped the feed.")                                       \
    X(PD_C_LAST_INGEST, "packd_feed_last_ingest_timestamp_seconds", "gauge", "feed",               \
      "When the newest block came; 0 = none yet.")                                                 \
    X(PD_C_STREAMS, "packd_streams", "gauge", "feed, state: open, ended", "Streams known.")        \
    X(PD_C_TRUNCATED, "packd_truncated_samples_total", "counter", "feed",                          \
      "Samples cut to seq_len.")                                                                   \
    X(PD_C_TRUNCATED_TOKENS, "packd_truncated_tokens_total", "counter", "feed",                    \
      "Tokens that cutting to seq_len left out.")                                                  \
    X(PD_C_SPLIT, "packd_split_samples_total", "counter", "feed", "Samples split into parts.")     \
    X(PD_C_SKIPPED, "packd_skipped_samples_total", "counter", "feed",                              \
      "Samples left out by SkipSamples.")                                                          \
    X(PD_C_PRUNED_SAMPLES, "packd_pruned_samples_total", "counter", "feed",                        \
      "Samples that a pruning rule changed.")                                                      \
    X(PD_C_PRUNED_TOKENS, "packd_pruned_tokens_total", "counter", "feed, view",                    \
      "Tokens that pruning left out, by view.")                                                    \
    X(PD_C_TOO_LONG, "packd_too_long_samples_total", "counter", "feed",                            \
      "Samples left out because no cut makes them fit.")                                           \
    X(PD_C_FEED_LOG, "packd_feed_log_bytes", "gauge", "feed",                                      \
      "Bytes of the log in the feed's samples, plans and snapshots.")                              \
    X(PD_C_FEED_UNPLANNED, "packd_feed_unplanned_bytes", "gauge", "feed",                          \
      "Bytes of the log in samples that are in no pack yet; the rest is held for jobs.")           \
    X(PD_C_FEED_LOG_MAX, "packd_feed_log_max_bytes", "gauge", "feed",                              \
      "The feed's share of what the log may use.")                                                 \
    X(PD_C_LOG_STALLED, "packd_log_stalled", "gauge", "feed",                                      \
      "1 where the log is nearly full and only a job's commit can free space.")                    \
    X(PD_C_JOB_PLANNED, "packd_job_planned_step", "gauge", "feed, job_name",                       \
      "Next step after the highest planned.")                                                      \
    X(PD_C_JOB_DELIVERED, "packd_job_delivered_step", "gauge", "feed, job_name",                   \
      "Next step after the highest delivered whole.")                                              \
    X(PD_C_JOB_COMMITTED, "packd_job_committed_step", "gauge", "feed, job_name",                   \
      "Next step after the highest committed.")                                                    \
    X(PD_C_JOB_LAG, "packd_job_lag_steps", "gauge", "feed, job_name",                              \
      "Steps planned and not yet delivered.")                                                      \
    X(PD_C_JOB_COMMIT_TIME, "packd_job_commit_timestamp_seconds", "gauge", "feed, job_name",       \
      "When the job last committed; 0 = never.")                                                   \
    X(PD_C_JOB_HELD, "packd_job_held_bytes", "gauge", "feed, job_name",                            \
      "Bytes of the log that are kept for the job's uncommitted and retained steps.")              \
    X(PD_C_JOB_WAITING, "packd_job_waiting_ranks", "gauge", "feed, job_name",                      \
      "Ranks of the job that wait for a batch now.")                                               \
    X(PD_C_JOB_GENERATION, "packd_job_generation", "gauge", "feed, job_name",                      \
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
    X(PD_C_LOG_MAX, "packd_log_max_bytes", "gauge", "",                                            \
      "What the log may use: log.max_bytes, or less where its disk cannot hold that.")             \
    X(PD_C_LOG_INCARNATION, "packd_log_incarnation", "gauge", "",                                  \
      "How often the log has been opened.")                                                        \
    X(PD_C_CONNECTIONS, "packd_connections", "gauge", "door: main, admin, health",                 \
      "gRPC connections open.")                                                                    \
    X(PD_C_CONNECTIONS_MAX, "packd_connections_max", "gauge", "",                                  \
      "What `listen` may have of them: limits.connections.")                                       \
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

#endif
