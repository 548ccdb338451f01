/* What serve tells of itself: totals, ranks and what they wait for, gauges, halts; for Status,
 * metrics and the page. Any thread; each call takes serve's lock for a few loads and hands out
 * copies. */
#ifndef PD_SERVER_SERVE_VIEW_H
#define PD_SERVER_SERVE_VIEW_H

#include "server/serve.h"

/* Counters of served positions, for status: of a feed since the start of the process, or since it
 * began anew. */
struct pd_served_totals {
    uint64_t batches, rereads, steps_complete;
    uint64_t real_tokens, gap_tokens, tail_tokens, row_padding_tokens, overlap_tokens;
    uint64_t saved_positions; /* by dynamic widths, against width_bound */
    uint64_t samples, segments, loss_tokens;
    uint64_t bytes;
    /* the same without the job's last, partly filled step: real, and all positions */
    uint64_t full_step_real_tokens, full_step_positions;
};
void pd_serve_totals(struct pd_serve *serve, uint32_t feed_index, struct pd_served_totals *totals);

/* ---- ranks: who of a job's present generation has come ---- */

#define PD_RANKS_MAX 256 /* those below it are told */
#define PD_CLIENT_MAX 255

/* The rank has opened the job; `client` is free text, cut to PD_CLIENT_MAX. Ignored where the job
 * has gone on to another generation. */
void pd_serve_rank_opened(struct pd_serve *serve, const struct pd_batch_key *rank,
                          const char *client);
/* The rank's open fetches: change is 1 or -1. Ignored likewise. */
void pd_serve_rank_calls(struct pd_serve *serve, const struct pd_batch_key *rank, int change);
/* Open fetches of the job's present generation, of all ranks; 0 where there is no such job. */
uint32_t pd_serve_job_calls(struct pd_serve *serve, uint32_t feed_index, uint32_t job_id);

struct pd_rank_view {
    uint32_t dp_rank, calls;
    uint64_t delivered; /* next step after the highest one received whole in this generation */
    bool waiting;
    struct pd_wait_info wait; /* of the lowest batch it waits for */
    uint32_t wait_micro;
    char client[PD_CLIENT_MAX + 1];
};
struct pd_job_view {
    struct pd_served_totals totals; /* of all generations since the start of the process */
    uint64_t ready_batches, lowest_step;
    struct pd_rank_view *ranks; /* ascending; owned, free() it */
    uint32_t rank_count;
};
/* PD_ENOTFOUND: no such job; PD_ENOMEM. */
int pd_serve_job_view(struct pd_serve *serve, uint32_t feed_index, uint32_t job_id,
                      struct pd_job_view *view) PD_MUST_CHECK;
/* What planning of the feed waits for; reason NONE: nothing. */
void pd_serve_feed_wait(struct pd_serve *serve, uint32_t feed_index, struct pd_wait_info *info);

struct pd_serve_gauges {
    uint64_t ready_bytes, ready_bytes_max, ready_batches, waiters, building, built_total,
        evicted_total, violations_total, probed_total,
        rebuilt_total, /* of built_total: with the attention probe; at the second try */
        halted_feeds;  /* feeds stopped by a violation: the daemon is not ready then */
};
void pd_serve_gauges(struct pd_serve *serve, struct pd_serve_gauges *gauges);
/* Where the newest repro lies; "": none was saved. */
#define PD_REPRO_PATH_MAX 512
void pd_serve_repro(struct pd_serve *serve, char path[PD_REPRO_PATH_MAX]);
/* Whether a violation has halted the feed; *error then says which. */
bool pd_serve_halted(struct pd_serve *serve, uint32_t feed_index, struct pd_error *error);

#endif
