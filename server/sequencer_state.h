/* What the parts of the sequencer share: the state in memory, a fold over the log's records. What
 * each part does with it is in its own header (sequencer_streams.h, ...). Private to
 * server/sequencer*.c; all of it belongs to the sequencer's thread unless said otherwise.
 *
 *   sequencer.c           mailbox, thread, groups, answers after the commit
 *   sequencer_load.c      the state from the log: tables, snapshots, replay
 *   sequencer_streams.c   OpenStream, Append, EndStream, CloseStream
 *   sequencer_feeds.c     feeds of configuration and log, EndFeed, Flush, feeds that end alone
 *   sequencer_settings.c  settings in the log, which of them may change
 *   sequencer_jobs.c      OpenJob, Commit, Delivered, DeleteJob
 *   sequencer_idle.c      jobs that fall silent
 *   sequencer_regroup.c   another P
 *   sequencer_skip.c      SkipSteps
 *   sequencer_controls.c  SetMixture, SkipSamples
 *   sequencer_delete.c    DeleteStream, DeleteFeed
 *   sequencer_planning.c  heads for the planner, horizon, plans, snapshots, stops
 *   sequencer_space.c     bytes in the log, who may add to them, what is done when they run out
 *   sequencer_trim.c      what jobs hold, and deleting the rest
 *   sequencer_names.c     numbers of views and tensors
 *   sequencer_rows.c      rows of the tables: encode and decode
 *   sequencer_status.c    copies for Status, progress for serve
 *
 * Functions returning int: 0 or PD_E*. A write that failed is reported through
 * pd_seq_write_failed, which marks the whole group as undone. */
#ifndef PD_SERVER_SEQUENCER_STATE_H
#define PD_SERVER_SEQUENCER_STATE_H

#include "server/arrivals.h"
#include "server/job_steps.h"
#include "server/log_writer.h"
#include "server/sequencer.h"
#include "server/step_ranges.h"

#include <pthread.h>
#include <stdatomic.h>

#define PD_SEQ_STREAMS_MAX 65536u
#define PD_SEQ_JOBS_MAX 1024u
#define PD_SEQ_SOURCES_MAX 4096u
#define PD_SEQ_TOKENS_MAX 64u
#define PD_SEQ_COMMITS_MAX 64u
#define PD_SEQ_SNAPSHOT_PACKS 4096u
#define PD_SEQ_MARKS_MAX 128u           /* snapshots of a feed; then they are thinned */
#define PD_SEQ_TRIM_BYTES (64ull << 20) /* a transaction deletes about so much */
#define PD_SEQ_PLAN_PACKS_MAX \
    1024u /* a group plans at most so many packs of a feed; the next group goes on */
#define PD_SEQ_RESERVE_PART 16u /* 1/16 of the log is kept for plans, ends and commits */

#define PD_SEQ_NO_FEED UINT32_MAX /* of a stream whose feed was deleted */

struct pd_seq_stream {
    uint32_t id, feed, source_id, lane; /* feed: number in the log */
    char name[PD_NAME_MAX + 1], source[PD_NAME_MAX + 1];
    char producer[256], content_id[256];
    uint64_t next_seq, samples, tokens, bytes, rejected; /* bytes: of accepted samples */
    char rejected_for[PD_REJECTED_FOR_MAX];              /* "": none, or all before rows kept it */
    uint64_t blocks, log_bytes, last_wall_ns;
    bool ended;
    bool deleted; /* its name is free again; the number stays, for packs that name it */
    bool dirty;   /* its row is older than this */
    /* not in the log */
    uint64_t epoch; /* of the newest Hello; 0 = none since the start */
    bool connected; /* that Hello's call is still there */
    uint64_t duplicates;
};

struct pd_seq_commit {
    uint64_t step, wall_ns;
};

struct pd_seq_job {
    uint32_t id;
    struct pd_job_spec spec;
    uint64_t generation;
    uint64_t first_step; /* 0, or the step at which it was regrouped: those before it are gone */
    uint64_t first_pack; /* of that step */
    uint64_t world_first_step; /* where the ranks of the current token began */
    uint64_t world;            /* the generation it began with; SkipSteps raises generation alone */
    struct pd_step_ranges skipped;
    uint64_t committed;                              /* next step after the last commit; 0 = none */
    char tokens[PD_SEQ_TOKENS_MAX][PD_NAME_MAX + 1]; /* oldest first; the last is the current one */
    uint32_t token_count;
    struct pd_seq_commit commits[PD_SEQ_COMMITS_MAX]; /* oldest first */
    uint32_t commit_count;
    bool released; /* silent for idle_release: holds nothing until it is opened again */
    bool dirty, announce, deleted;
    /* not in the log */
    /* Next step after the highest one known to be wholly delivered to its current world. */
    uint64_t delivered;
    /* False after a restart until the job receives a step: it may be anywhere. */
    bool delivered_known;
    uint64_t active_ns;    /* monotonic: the last sign of life, or the start */
    uint64_t loaded_steps; /* of its world, planned when the log was read: delivered, perhaps */
    /* Commits below this step are no longer retained: the log had no room for them. */
    uint64_t given_up;
};

/* Heads of one feed for the planner: the block last read of each lane. */
struct pd_seq_supply {
    struct pd_log *log;
    uint32_t feed;
    uint64_t limit;              /* records at and behind it do not exist yet: replay sets it */
    struct pd_block_head *lanes; /* count 0 = none */
    uint32_t lane_count;
    uint64_t cached_bytes;
    struct pd_head heads[256];
    struct pd_error error; /* of the last failed read */
};

/* A snapshot in the log. */
struct pd_seq_mark {
    uint64_t position, packs;
};

/* Neighbouring blocks of a lane that the planner has not drawn from. */
struct pd_seq_chunk {
    uint64_t last; /* position of the last one */
    uint64_t bytes, samples;
};
struct pd_seq_lane {
    uint64_t bytes; /* of its blocks in the log */
    uint64_t unplanned_bytes, unplanned_samples;
    struct pd_seq_chunk *chunks; /* oldest first: `count` from `first` on */
    uint32_t first, count, capacity;
};

/* What became of a deleted feed: its data is on its way out; it is out, the number is free. */
enum pd_seq_gone { PD_SEQ_HERE, PD_SEQ_PURGING, PD_SEQ_PURGED };

struct pd_seq_feed {
    uint32_t number, index; /* in the log; in the configuration, UINT32_MAX = no longer there */
    char name[PD_NAME_MAX + 1];
    const struct pd_feed_config
        *config; /* NULL: no longer in the configuration; kept, not served */
    uint64_t config_digest;
    struct pd_buf settings;              /* of the file, as recorded: key and value texts */
    struct pd_buf first_settings;        /* those that the feed was made with */
    bool rules_changed, weights_changed; /* in the file since the last start; to act yet */
    char (*sources)[PD_NAME_MAX + 1];    /* source s is sources[s - 1] */
    uint32_t source_count;
    char views[PD_VIEWS_MAX][PD_NAME_MAX + 1]; /* by number, as spans and tensors use it */
    uint32_t view_count;
    struct pd_tensor_spec tensors[PD_TENSORS_MAX]; /* by number */
    uint32_t tensor_count;
    uint8_t *lane_ended;
    uint32_t lane_count;
    uint32_t stream_count, streams_ended;
    struct pd_refusal_count refusals[PD_REFUSAL_REASONS_MAX];
    uint32_t refusal_count;
    uint32_t next_job_id;
    struct pd_seq_job **jobs;
    uint32_t job_count;
    bool has_data, end_declared, dirty;
    struct pd_tokenizer tokenizer;
    uint32_t weights[PD_LANES_WEIGHTED_MAX]; /* of its sources, as set last */
    enum pd_seq_gone gone;
    bool reborn;                 /* serve has still to hear that the feed before it is gone */
    uint64_t packs, plan_digest; /* as of the last Horizon */
    /* trimming */
    uint64_t lowest_pack;                       /* packs below it are gone, or going */
    struct pd_seq_mark marks[PD_SEQ_MARKS_MAX]; /* oldest first */
    uint32_t mark_count;
    uint64_t records_trimmed; /* its records below are gone */
    uint64_t snapshot_bytes;  /* of the newest */
    bool trim_wanted, trimming;
    /* space */
    struct pd_seq_lane *lanes; /* NULL: not in the configuration */
    uint64_t plan_bytes;
    bool stalled, hopeless; /* told */
    bool flush_wanted;      /* packs from a short window are the only way on */
    /* planning */
    struct pd_planner *planner;
    struct pd_seq_supply supply;
    uint64_t replay_from, snapshot_packs;
    uint64_t loaded_packs; /* planned when the log was read */
    bool plan_wanted, ended, waiting, stopped, log_short, announce;
    struct pd_want want;
    uint64_t waiting_since_wall_ns;
    struct pd_error stop;
    /* max_wait */
    uint64_t short_since_ns; /* monotonic; 0 = no trainer waits */
    uint64_t short_pack;     /* the pack it waits for, exclusive end */
    bool appended_since_flush;
    struct pd_arrivals arrivals; /* of its blocks */
};

struct pd_seq_state {
    struct pd_seq_feed **feeds; /* by number */
    uint32_t feed_count;
    struct pd_seq_stream **streams; /* by id */
    uint32_t stream_count, stream_capacity;
    uint32_t *streams_by_name; /* ids, ascending by name; without deleted ones */
    uint32_t name_count;
    uint32_t *dirty_streams; /* ids of those whose row is to be written */
    uint32_t dirty_count;
};

/* What a group adds to the metrics once it is committed. */
struct pd_seq_counts {
    uint64_t blocks, samples, tokens, bytes, duplicates, packs;
    uint64_t skipped_by_operator, skipped_by_violation; /* steps */
};

/* What the other threads see of a feed's space. */
struct pd_seq_door {
    _Atomic uint8_t *accepts; /* enum pd_seq_accept, by lane */
    uint32_t lane_count;
    _Atomic bool full;
    struct pd_stall stall; /* under stall_mutex; job "" = none */
};

struct pd_sequencer {
    uint32_t magic;
    const struct pd_config *config;
    const struct pd_config *file;      /* as read last; NULL = config */
    const struct pd_config *file_kept; /* that as of the last commit */
    struct pd_log *log;
    struct pd_serve *serve;
    struct pd_seq_state state;
    uint64_t next_epoch;
    /* the open group */
    int group_rc; /* first write that failed */
    struct pd_error group_error;
    struct pd_seq_counts counts[PD_FEEDS_MAX]; /* by index of the feed */
    struct pd_buf body, row;                   /* scratch */
    struct pd_pack pack;
    uint64_t next_timer_ns; /* monotonic; UINT64_MAX = none */
    uint32_t commits;
    /* any thread */
    struct pd_seq_door doors[PD_FEEDS_MAX]; /* by index */
    /* By number of the stream: the epoch of its row, for those that wait without a word. */
    _Atomic uint64_t *stream_epochs;
    _Atomic bool disk_full;
    pthread_mutex_t stall_mutex;
    uint64_t disk_full_since_ns;
    /* mailbox */
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    struct pd_link mailbox;
    uint32_t mailbox_count;
    bool stopping;
};

/* ---- sequencer.c ---- */

/* Marks the group as failed and returns rc, for `return pd_seq_write_failed(...)`. */
int pd_seq_write_failed(struct pd_sequencer *seq, int rc, const struct pd_error *error);
/* Appends a record with seq->body. */
int pd_seq_record(struct pd_sequencer *seq, enum pd_record_type type, uint32_t feed);

/* ---- sequencer_load.c ---- */

/* Fills an empty state inside an open transaction and leaves the feeds ready to plan. Writes
 * only where the configuration has changed. */
int pd_seq_load(struct pd_sequencer *seq, struct pd_error *error) PD_MUST_CHECK;
void pd_seq_state_fini(struct pd_seq_state *state);
void pd_seq_feed_free(struct pd_seq_feed *feed);
/* What is not in the log (epochs, deliveries) from the state that is given up. */
void pd_seq_state_carry(struct pd_seq_state *to, const struct pd_seq_state *from);
struct pd_seq_feed *pd_seq_feed_find(struct pd_seq_state *state, const char *name);
struct pd_seq_feed *pd_seq_feed_at_index(struct pd_seq_state *state, uint32_t index);
/* The feed of a request by name, served ones only; PD_ENOTFOUND UNKNOWN_FEED. */
int pd_seq_feed_named(struct pd_sequencer *seq, const char *name, struct pd_seq_feed **feed,
                      struct pd_error *error) PD_MUST_CHECK;

/* ---- sequencer_status.c ---- */

void pd_seq_progress(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                     struct pd_feed_progress *progress);
int pd_seq_status(struct pd_sequencer *seq, struct pd_request_status *request);

#endif
