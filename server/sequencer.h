/* The sequencer: the only writer of durable state. One thread, one mailbox, one LMDB transaction
 * per group of requests.
 *
 *   rpc, serve, main ──pd_request──> mailbox ──> [begin; apply each; plan; commit]
 *                                                 └──> serve hears of it, then done() of each
 *
 * Nothing leaves before the commit: acks, plans and job records are told only once they are in
 * the log. A request's `done` runs on the sequencer's thread and must only post somewhere else.
 * A group is closed at log.commit_bytes or log.commit_ms, or when the mailbox is empty. If a
 * commit fails for lack of space, the whole group is undone, memory is rebuilt from the log as
 * at start-up, and the requests answer PD_EFULL.
 *
 * When full: the mailbox holds at most PD_SEQUENCER_REQUESTS_MAX requests (each call has one in
 * flight; the bytes of blocks are bounded by ingest credit), more are refused with PD_EFULL. */
#ifndef PD_SERVER_SEQUENCER_H
#define PD_SERVER_SEQUENCER_H

#include "base/list.h"
#include "server/block.h"
#include "server/config.h"
#include "server/log.h"
#include "server/serve.h"

#define PD_SEQUENCER_REQUESTS_MAX 65536

enum pd_request_kind {
    PD_REQUEST_OPEN_STREAM,
    PD_REQUEST_APPEND,
    PD_REQUEST_END_STREAM,
    PD_REQUEST_CLOSE_STREAM,
    PD_REQUEST_END_FEED,
    PD_REQUEST_OPEN_JOB,
    PD_REQUEST_COMMIT,
    PD_REQUEST_DELIVERED,
    PD_REQUEST_FLUSH,
    PD_REQUEST_DELETE_JOB,
    PD_REQUEST_SKIP_STEPS,
    PD_REQUEST_SET_MIXTURE,
    PD_REQUEST_SKIP_SAMPLES,
    PD_REQUEST_DELETE_STREAM,
    PD_REQUEST_DELETE_FEED,
    PD_REQUEST_RELOAD,
    PD_REQUEST_STATUS,
};

/* The common head of every request: embed it first, fill `kind` and `done`, keep the memory
 * until done has run. */
struct pd_request {
    struct pd_link link;
    enum pd_request_kind kind;
    void (*done)(struct pd_request *request); /* sequencer thread, after the commit */
    int result;                               /* 0 or PD_E* */
    uint64_t record;         /* position of the record that a control call wrote; 0 = none */
    uint64_t effective_pack; /* the first pack it can act on, where it changes plans */
    struct pd_error error;   /* filled where result != 0 */
};

/* What a producer says its tokens were made with; size 0: not stated. The first one stated is the
 * feed's. */
#define PD_TOKENIZER_MAX 64
struct pd_tokenizer {
    uint8_t bytes[PD_TOKENIZER_MAX];
    uint8_t size;
};

/* Hello. PD_ENOTFOUND UNKNOWN_FEED; PD_EEXIST CONTENT_CHANGED (another content_id, both named),
 * SOURCE_CHANGED, STREAM_IN_OTHER_FEED; PD_EMISMATCH UNKNOWN_SOURCE, STREAM_NOT_DECLARED,
 * FEED_ENDED, TOKENIZER_MISMATCH; PD_EINVAL BAD_NAME; PD_ELIMIT TOO_MANY_STREAMS, TOO_MANY_SOURCES.
 * A newer call on a stream fences the older: its appends get PD_EFENCED. */
struct pd_request_open_stream {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1], stream[PD_NAME_MAX + 1], source[PD_NAME_MAX + 1];
    char producer[256], content_id[256];
    struct pd_tokenizer tokenizer;
    /* out */
    uint32_t feed_index, stream_id, lane, source_id;
    uint64_t epoch;    /* of this call on the stream; carried by its appends */
    uint64_t next_seq; /* first seq not in the log */
    bool ended;
};

/* `count` samples of a block from `index` on were refused for one reason. */
struct pd_refusal {
    uint32_t index, count;
    const char *reason; /* static, at most PD_REASON_MAX - 1 bytes */
};

/* One block; takes block (released after the commit, or on failure). Leading duplicates are
 * dropped and counted. PD_EINVAL SEQ_GAP (the expected seq is named); PD_EFENCED; PD_EMISMATCH
 * STREAM_ENDED, FEED_ENDED; PD_EFULL LOG_FULL; PD_ELIMIT HEAD_TOO_LARGE, TOO_MANY_VIEWS,
 * TOO_MANY_TENSORS; PD_EINVAL BAD_TENSOR, BAD_BLOCK. */
struct pd_request_append {
    struct pd_request base;
    struct pd_block *block; /* taken */
    uint64_t epoch;
    /* Why samples of the block were refused, ascending by index; borrowed until done. */
    const struct pd_refusal *refusals;
    uint32_t refusal_count;
    /* out */
    uint64_t durable_seq; /* every seq below it is in the log */
    uint32_t duplicates;
};

struct pd_request_end_stream {
    struct pd_request base;
    uint32_t feed_index, stream_id;
    uint64_t epoch;
    uint64_t next_seq; /* must be the stream's, else PD_EINVAL SEQ_GAP */
};

/* The call that opened the stream is gone: it counts as connected no longer, unless a newer one
 * has it. Never fails. */
struct pd_request_close_stream {
    struct pd_request base;
    uint32_t stream_id;
    uint64_t epoch;
};

struct pd_request_end_feed {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1];
};

/* PD_ENOTFOUND UNKNOWN_FEED; PD_EMISMATCH SPEC_MISMATCH (field, both values), STEP_PACKS (rows *
 * dp_size * accum != step_packs: what would fit), LOG_ID, SEGMENT_MULTIPLE; PD_EFENCED
 * STALE_WORLD (a superseded world token); PD_ELIMIT BATCH_TOO_LARGE, STEP_TOO_LARGE,
 * COMMIT_TOO_RARE, TOO_MANY_JOBS; PD_EMISMATCH REGROUP (another step_packs without `regroup`, or
 * not at the last commit); PD_ERANGE STEP_TRIMMED (the step to resume at is no longer in the log,
 * the lowest that is is named); PD_EINVAL BAD_NAME, BAD_RANGE; PD_ENOTFOUND UNKNOWN_FEED. */
struct pd_request_open_job {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1];
    struct pd_job_spec spec; /* wanted; serve.h */
    char world_token[PD_NAME_MAX + 1];
    char log_id[33]; /* of the caller's state, or "" */
    bool has_resume_step;
    uint64_t resume_step; /* last step in the caller's checkpoint; it gets resume_step + 1 first */
    bool from_start;      /* begin at the lowest step, whatever has been committed */
    bool regroup;         /* spec.step_packs may be another than the job's */
    /* out */
    uint32_t feed_index, job_id;
    uint64_t generation, first_step;
    uint64_t committed;            /* next step after the last commit: 0 = none */
    uint64_t lowest_step;          /* the lowest that the log holds; also set with STEP_TRIMMED */
    bool created;                  /* by this request */
    struct pd_tokenizer tokenizer; /* the feed's */
};

/* PD_EFENCED; PD_EINVAL COMMIT_BEYOND_FETCHED; PD_ENOTFOUND. */
struct pd_request_commit {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1], job[PD_NAME_MAX + 1];
    uint64_t generation, step, fetched;
};

/* This step was delivered whole for the first time: moves the horizon. Or, where `said`, one of the
 * job's ranks says that it has it, for it asks for the next: believed of steps that were planned
 * when the log was read, whose delivery nobody here has seen. */
struct pd_request_delivered {
    struct pd_request base;
    uint32_t feed_index, job_id;
    uint64_t step;
    bool said;
};

struct pd_request_flush {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1];
    uint64_t packs; /* 0 = all */
};

/* PD_EMISMATCH IN_USE: fetches are open, and not `force`. */
struct pd_request_delete_job {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1], job[PD_NAME_MAX + 1];
    bool force;
};

/* Leaves planned steps of a job out, as a new generation of the same world. Nothing is written
 * where all of them are out already. PD_ENOTFOUND; PD_EINVAL BAD_RANGE; PD_EMISMATCH STEP_PLANNED
 * (the last one is not planned); PD_ERANGE STEP_TRIMMED; PD_ELIMIT TOO_MANY_SKIPS; PD_EFENCED:
 * `only_at` is set and the job has gone on to another generation. */
struct pd_request_skip_steps {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1], job[PD_NAME_MAX + 1];
    uint64_t first, last; /* both are left out */
    char why[256];
    uint64_t only_at; /* a generation; 0 = whatever it is */
    /* out */
    uint64_t generation, next_step;
    uint64_t lowest_step; /* with STEP_TRIMMED */
};

/* New weights for all sources of a feed; nothing is written where they are in force already.
 * PD_ENOTFOUND; PD_EINVAL BAD_MIXTURE (a source left out or named twice, no sources, all weights
 * 0), BAD_RANGE; PD_EMISMATCH UNKNOWN_SOURCE, FEED_ENDED; PD_ELIMIT TOO_MANY_CHANGES. */
struct pd_source_weight {
    const char *source;
    uint64_t weight;
};
struct pd_request_set_mixture {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1];
    const struct pd_source_weight *weights; /* borrowed until done */
    size_t weight_count;
};

/* Leaves out samples that are in the log and in no pack yet: those for which everything that is set
 * holds. PD_ENOTFOUND UNKNOWN_FEED, UNKNOWN_STREAM; PD_EMISMATCH UNKNOWN_SOURCE, FEED_ENDED;
 * PD_EINVAL BAD_RANGE; PD_ELIMIT TOO_MANY_SKIPS. */
struct pd_request_skip_samples {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1], stream[PD_NAME_MAX + 1], source[PD_NAME_MAX + 1]; /* "" = any */
    struct pd_skip_rule rule; /* stream and source are filled in from the names */
    char why[256];
};

/* Ends the stream where it is and forgets its name; its samples that are in no pack yet are left
 * out. PD_ENOTFOUND UNKNOWN_FEED, UNKNOWN_STREAM; PD_EMISMATCH IN_USE: a producer is connected, and
 * not `force`; PD_ELIMIT TOO_MANY_SKIPS. */
struct pd_request_delete_stream {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1], stream[PD_NAME_MAX + 1];
    bool force;
};

/* Forgets everything of the feed; the configured one starts anew, one that the log alone knows is
 * gone. PD_ENOTFOUND; PD_EMISMATCH IN_USE; PD_ELIMIT TOO_MANY_FEEDS (others are still being
 * deleted). */
struct pd_request_delete_feed {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1];
    bool force;
};

/* The configuration read again: planning rules and weights of its feeds, as at a start; other keys
 * act at the next start. All or nothing. PD_EMISMATCH FIXED_KEY; PD_ELIMIT TOO_MANY_CHANGES. */
struct pd_request_reload {
    struct pd_request base;
    /* Where the request succeeds, borrowed until another one does or the sequencer is freed. */
    const struct pd_config *config;
    uint32_t changed; /* out: feeds that plan otherwise from now on */
};

/* A copy of everything Status shows that the sequencer owns. */
struct pd_stream_status {
    char name[PD_NAME_MAX + 1], source[PD_NAME_MAX + 1], producer[256], content_id[256];
    uint64_t next_seq, samples, tokens, blocks, duplicates, rejected;
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

/* A job whose uncommitted steps fill the log. */
struct pd_stall {
    char feed[PD_NAME_MAX + 1], job[PD_NAME_MAX + 1];
    uint64_t first_step; /* the lowest it holds */
    uint64_t bytes_held, bytes_per_step, bytes_max;
    uint64_t bytes_left; /* until the log is full */
};

struct pd_sequencer;

/* Opens the state from the log (replays what the snapshot does not hold) and starts the thread.
 * Feeds of the configuration that are not in the log are added; a fixed key changed on a feed
 * with data is PD_EMISMATCH naming the key and both values. */
int pd_sequencer_start(const struct pd_config *config, struct pd_log *log, struct pd_serve *serve,
                       struct pd_sequencer **sequencer, struct pd_error *error) PD_MUST_CHECK;
/* Any thread. PD_ECLOSED once stopping, PD_EFULL; then done is not called and the request (and
 * its block) still belong to the caller. */
int pd_sequencer_submit(struct pd_sequencer *sequencer, struct pd_request *request) PD_MUST_CHECK;
/* Finishes what is queued, writes a snapshot, joins the thread. Requests submitted later get
 * PD_ECLOSED. */
void pd_sequencer_stop(struct pd_sequencer *sequencer);
/* Whether credit may be granted for a lane of a feed; the door asks before each grant. */
enum pd_seq_accept {
    PD_SEQ_ACCEPTS,
    PD_SEQ_LANE_SHARE,   /* the lane has its part of the log in samples that are not planned */
    PD_SEQ_LOG_FULL,     /* no space, in the log or in the feed's share of it */
    PD_SEQ_STOPPED_FEED, /* planning has stopped for good */
};
/* Any thread; *why says it in words (static). */
enum pd_seq_accept pd_sequencer_accepts(const struct pd_sequencer *sequencer, uint32_t feed_index,
                                        uint32_t lane, const char **why);
/* Some feed, or this one, takes no further samples for lack of space. Any thread. */
bool pd_sequencer_log_full(const struct pd_sequencer *sequencer);
bool pd_sequencer_feed_full(const struct pd_sequencer *sequencer, uint32_t feed_index);
/* True where the log is nearly full and a commit of stall->job would free space; once the feed is
 * full, nothing else can. Any thread. */
bool pd_sequencer_stall(struct pd_sequencer *sequencer, uint32_t feed_index,
                        struct pd_stall *stall);
/* False once a newer Hello has the stream, or it was deleted. Any thread. */
bool pd_sequencer_owns(const struct pd_sequencer *sequencer, uint32_t stream_id, uint64_t epoch);
void pd_sequencer_free(struct pd_sequencer *sequencer);

#endif
