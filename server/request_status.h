/* What the sequencer tells Status: copies, owned by the request; see request.h. */
#ifndef PD_SERVER_REQUEST_STATUS_H
#define PD_SERVER_REQUEST_STATUS_H

#include "server/config.h"
#include "server/job_info.h"
#include "server/request.h"

/* A copy of everything Status shows that the sequencer owns. */
struct pd_stream_status {
    char name[PD_NAME_MAX + 1], source[PD_NAME_MAX + 1], producer[256], content_id[256];
    uint64_t next_seq, samples, tokens, blocks, duplicates, rejected;
    char rejected_for[PD_REJECTED_FOR_MAX];
    uint64_t bytes;        /* of the bodies of accepted samples */
    uint64_t log_bytes;    /* pages of the log that its blocks take, refused samples included */
    uint64_t last_wall_ns; /* when its newest block came; 0 = none */
    bool ended, connected, deleted;
};
struct pd_job_status {
    char name[PD_NAME_MAX + 1];
    uint32_t job_id;
    struct pd_job_spec spec;
    /* next step after the highest committed / wholly delivered */
    uint64_t generation, committed, delivered;
    uint64_t first_step, first_pack, lowest_step;
    uint64_t committed_wall_ns;          /* when the last commit came; 0 = none */
    uint64_t bytes_held, bytes_per_step; /* means */
    bool released;                       /* by idle_release: it holds nothing */
};
#define PD_REFUSAL_REASONS_MAX 16 /* of a feed; those beyond count under "other" */
struct pd_refusal_count {
    char reason[PD_REASON_MAX];
    uint64_t count;
};
struct pd_lane_status {
    char name[PD_NAME_MAX + 1]; /* of its source or declared stream; "feed" */
    uint32_t weight, pass;
    int64_t deficit;
    uint64_t samples, drawn; /* there are, and drawn from them; refused ones included */
    uint64_t unplanned_bytes;
    bool ended;
};
/* What pruning did, and the names behind its views. */
struct pd_prune_status {
    struct pd_prune_stats stats;
    uint64_t dropped_views; /* that rules name; bit v of view v */
    char views[PD_VIEWS_MAX][PD_NAME_MAX + 1];
};
struct pd_feed_status {
    char name[PD_NAME_MAX + 1];
    uint64_t packs_planned, horizon_packs, plan_digest;
    struct pd_tokenizer tokenizer;
    uint64_t lowest_pack;     /* still in the log */
    bool end_declared, ended; /* EndFeed is in the log; everything is planned */
    struct pd_planner_stats planner;
    struct pd_prune_status *prune; /* NULL: no rule, and nothing lost so far */
    uint64_t
        oldest_wall_ns;  /* when the sample longest in the window came; 0 = before this process */
    struct pd_want want; /* what the refill waits for, when it does */
    bool waiting;
    uint64_t waiting_since_ns; /* wall clock */
    bool stopped;              /* planning has stopped for good; stop says why */
    struct pd_error stop;
    uint64_t log_bytes, unplanned_bytes; /* of its blocks, plans and snapshots; not drawn yet */
    struct pd_lane_status *lanes;
    uint32_t lane_count;
    struct pd_stream_status *streams; /* ascending by name, then deleted ones */
    uint32_t stream_count;
    struct pd_refusal_count refusals[PD_REFUSAL_REASONS_MAX];
    uint32_t refusal_count;
    uint64_t snapshot_packs; /* packs in the newest snapshot of its planner */
    struct pd_job_status *jobs;
    uint32_t job_count;
};
struct pd_request_status {
    struct pd_request base;
    /* out, owned by the request; pd_status_fini */
    struct pd_feed_status *feeds;
    uint32_t feed_count;
    uint64_t records; /* of the log, blocks included */
};
void pd_status_fini(struct pd_request_status *status);

#endif
