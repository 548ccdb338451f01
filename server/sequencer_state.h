/* What the parts of the sequencer share: the state in memory, a fold over the log's records, and
 * the functions that change it. Private to server/sequencer*.c; all of it belongs to the
 * sequencer's thread unless said otherwise.
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

/* ---- sequencer_rows.c ---- */

void pd_seq_stream_encode(const struct pd_seq_stream *stream, struct pd_buf *row);
int pd_seq_stream_decode(struct pd_seq_stream *stream, struct pd_reader row) PD_MUST_CHECK;
void pd_seq_job_encode(const struct pd_seq_job *job, struct pd_buf *row);
int pd_seq_job_decode(struct pd_seq_job *job, struct pd_reader row) PD_MUST_CHECK;
void pd_seq_feed_encode(const struct pd_seq_feed *feed, struct pd_buf *row);
int pd_seq_feed_decode(struct pd_seq_feed *feed, struct pd_reader row) PD_MUST_CHECK;
/* Writes every dirty row. */
int pd_seq_rows_write(struct pd_sequencer *seq) PD_MUST_CHECK;

/* ---- sequencer_names.c ---- */

/* Gives the block's views and tensors the feed's numbers; new ones are written. PD_EINVAL
 * BAD_TENSOR (another declaration than at its first use), PD_ELIMIT TOO_MANY_VIEWS,
 * TOO_MANY_TENSORS; what writing to the log says. */
int pd_seq_names_number(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_block *block,
                        struct pd_error *error) PD_MUST_CHECK;
/* The same for one view that a rule names. */
int pd_seq_view_number(struct pd_sequencer *seq, struct pd_seq_feed *feed, const char *name,
                       struct pd_error *error) PD_MUST_CHECK;
/* Rows of the tables, in order, for pd_log_scan_rows; ctx is the state. */
int pd_seq_view_load(void *ctx, uint32_t number, uint32_t view, struct pd_reader row);
int pd_seq_tensor_load(void *ctx, uint32_t number, uint32_t tensor, struct pd_reader row);

/* ---- sequencer_streams.c ---- */

/* The number of a source label, made when it is new and the feed has no fixed list. PD_EMISMATCH
 * UNKNOWN_SOURCE, PD_ELIMIT TOO_MANY_SOURCES; what writing to the log says. */
int pd_seq_source_number(struct pd_sequencer *seq, struct pd_seq_feed *feed, const char *source,
                         uint32_t *number, struct pd_error *error) PD_MUST_CHECK;

/* The table of epochs that any thread may read. PD_ENOMEM. */
int pd_seq_epochs_init(struct pd_sequencer *seq);
/* After streams were forgotten. */
void pd_seq_epochs_tell(struct pd_sequencer *seq);
int pd_seq_open_stream(struct pd_sequencer *seq, struct pd_request_open_stream *request);
int pd_seq_append(struct pd_sequencer *seq, struct pd_request_append *request);
int pd_seq_end_stream(struct pd_sequencer *seq, struct pd_request_end_stream *request);
int pd_seq_close_stream(struct pd_sequencer *seq, struct pd_request_close_stream *request);
/* The stream's row is written with the group. */
void pd_seq_stream_touch(struct pd_seq_state *state, struct pd_seq_stream *stream);
/* Takes stream; PD_ENOMEM. */
int pd_seq_stream_add(struct pd_seq_state *state, struct pd_seq_stream *stream) PD_MUST_CHECK;
/* The stream of this name, not a deleted one; NULL: none. */
struct pd_seq_stream *pd_seq_stream_find(const struct pd_seq_state *state, const char *name);
/* Nobody finds it by its name any more, and its call is fenced. */
void pd_seq_stream_forget(struct pd_seq_state *state, struct pd_seq_stream *stream);
/* The same for all streams of the feed of this number, which they leave. */
void pd_seq_streams_forget(struct pd_seq_state *state, uint32_t feed);

/* ---- sequencer_feeds.c ---- */

/* ---- sequencer_settings.c ---- */

/* Settings that shape batches, as key and value texts: recorded, compared at the next start. */
void pd_seq_settings_encode(const struct pd_feed_config *config, struct pd_buf *buf);
/* Those of a feed with data against those of the file: PD_EMISMATCH FIXED_KEY names a key that must
 * not change; what changed and may is noted in the feed. */
int pd_seq_settings_compare(struct pd_seq_feed *feed, const struct pd_buf *wanted,
                            struct pd_error *error) PD_MUST_CHECK;
/* Once the planner is there: writes the records of what was noted. */
int pd_seq_settings_act(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                        struct pd_error *error) PD_MUST_CHECK;
/* Sets the rules that settings name; the weights of their sources, returns how many there are. */
void pd_seq_settings_rules(const struct pd_seq_feed *feed, const struct pd_buf *settings,
                           struct pd_live_rules *live);
/* Gives the sources and views that pruning rules name their numbers, before a sample may bring
 * them. PD_ELIMIT TOO_MANY_VIEWS, TOO_MANY_SOURCES; what writing to the log says. */
int pd_seq_settings_names(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                          const struct pd_buf *settings, struct pd_error *error) PD_MUST_CHECK;
uint32_t pd_seq_settings_weights(const struct pd_buf *settings,
                                 uint32_t weights[PD_LANES_WEIGHTED_MAX]);
/* The feed as the file that was read last says it. */
const struct pd_feed_config *pd_seq_file_feed(const struct pd_sequencer *seq,
                                              const struct pd_feed_config *config);
/* Takes `settings` for the feed's, as a record. */
int pd_seq_settings_record(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                           struct pd_buf *settings, struct pd_error *error) PD_MUST_CHECK;
int pd_seq_reload(struct pd_sequencer *seq, struct pd_request_reload *request);
/* The control of a RULES record. */
void pd_seq_settings_replay(const struct pd_seq_feed *feed, struct pd_control *control,
                            struct pd_reader *body);

/* ---- sequencer_feeds.c: configuration ---- */

/* Joins configuration and log: new feeds are added, changed ones recorded or refused
 * (PD_EMISMATCH). */
int pd_seq_feeds_configure(struct pd_sequencer *seq, struct pd_error *error) PD_MUST_CHECK;
/* A feed without data for seq->config->feeds[index], under a free number. PD_ELIMIT
 * TOO_MANY_FEEDS. */
/* Whether there is no free number. */
bool pd_seq_feeds_full(const struct pd_seq_state *state);
int pd_seq_feed_make(struct pd_sequencer *seq, uint32_t index, struct pd_seq_feed **feed,
                     struct pd_error *error) PD_MUST_CHECK;
int pd_seq_end_feed(struct pd_sequencer *seq, struct pd_request_end_feed *request);
int pd_seq_flush(struct pd_sequencer *seq, struct pd_request_flush *request);
/* Writes a Flush and tells the planner. */
int pd_seq_flush_write(struct pd_sequencer *seq, struct pd_seq_feed *feed, uint64_t packs,
                       struct pd_error *error);
/* The end of the earliest step that a trainer waits for and that is not planned whole; 0 = none. */
uint64_t pd_seq_waited_pack(const struct pd_seq_feed *feed);
/* After a stream has ended: ends its lane, and the feed where all expected streams have. */
int pd_seq_feed_check_end(struct pd_sequencer *seq, struct pd_seq_feed *feed, uint32_t lane,
                          struct pd_error *error);
/* max_wait: flushes what trainers have waited for too long; sets seq->next_timer_ns. */
int pd_seq_feeds_idle(struct pd_sequencer *seq, uint64_t now_ns);

/* ---- sequencer_jobs.c ---- */

struct pd_job_steps pd_seq_job_steps(const struct pd_seq_feed *feed, const struct pd_seq_job *job);

int pd_seq_open_job(struct pd_sequencer *seq, struct pd_request_open_job *request);
int pd_seq_commit_job(struct pd_sequencer *seq, struct pd_request_commit *request);
int pd_seq_delivered(struct pd_sequencer *seq, struct pd_request_delivered *request);
int pd_seq_delete_job(struct pd_sequencer *seq, struct pd_request_delete_job *request);
/* The job of a request by names; PD_ENOTFOUND UNKNOWN_FEED, UNKNOWN_JOB. */
int pd_seq_job_named(struct pd_sequencer *seq, const char *feed_name, const char *name,
                     struct pd_seq_feed **feed, struct pd_seq_job **job,
                     struct pd_error *error) PD_MUST_CHECK;
/* Its ranks have what is below `step`, and whatever behind it is left out. */
void pd_seq_job_advance(struct pd_seq_job *job, uint64_t step);
void pd_seq_job_free(struct pd_seq_job *job);

/* ---- sequencer_skip.c ---- */

int pd_seq_skip_steps(struct pd_sequencer *seq, struct pd_request_skip_steps *request);

/* Writes the job as it is now as a record, and its row. */
int pd_seq_job_record(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_seq_job *job);

/* ---- sequencer_idle.c ---- */

/* Releases the jobs that have been silent for their feed's idle_release; lowers
 * seq->next_timer_ns. */
int pd_seq_jobs_idle(struct pd_sequencer *seq, uint64_t now_ns);
/* A sign of life: a job that was released holds again. */
int pd_seq_job_alive(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_seq_job *job);

/* ---- sequencer_regroup.c ---- */

/* Gives the job steps of request->spec.step_packs from its last commit on. PD_EMISMATCH REGROUP:
 * not asked for, or not there. */
int pd_seq_regroup(const struct pd_seq_feed *feed, struct pd_seq_job *job,
                   const struct pd_request_open_job *request, struct pd_error *error) PD_MUST_CHECK;

/* ---- sequencer_controls.c ---- */

int pd_seq_set_mixture(struct pd_sequencer *seq, struct pd_request_set_mixture *request);
int pd_seq_skip_samples(struct pd_sequencer *seq, struct pd_request_skip_samples *request);
/* Records weights, one a lane, and tells the planner; *pack is the first they act on. */
int pd_seq_mixture_write(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                         const uint32_t weights[PD_LANES_WEIGHTED_MAX], uint64_t *pack,
                         struct pd_error *error) PD_MUST_CHECK;
/* Appends a rule to a record's body, reads it back. */
void pd_seq_rule_encode(const struct pd_control *control, struct pd_buf *body);
void pd_seq_rule_decode(struct pd_control *control, struct pd_reader *body);

/* ---- sequencer_delete.c ---- */

int pd_seq_delete_stream(struct pd_sequencer *seq, struct pd_request_delete_stream *request);
int pd_seq_delete_feed(struct pd_sequencer *seq, struct pd_request_delete_feed *request);
/* Deletes some of what is left of a deleted feed. */
int pd_seq_purge(struct pd_sequencer *seq, struct pd_seq_feed *feed);

/* ---- sequencer_planning.c ---- */

/* Restores the planner from the newest usable snapshot (or makes a new one) and sets
 * replay_from. A feed that cannot be restored is stopped. */
int pd_seq_planner_load(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                        struct pd_error *error) PD_MUST_CHECK;
/* Replays one record of the feed. */
int pd_seq_planner_replay(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                          const struct pd_record *record);
/* Tells the planner a control record that is about to be written at the log's next position. */
int pd_seq_planner_control(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                           struct pd_control *control, struct pd_error *error);
/* Plans up to the horizon and writes plans, Horizon, and a snapshot when one is due. */
int pd_seq_plan(struct pd_sequencer *seq, struct pd_seq_feed *feed);
int pd_seq_snapshot(struct pd_sequencer *seq, struct pd_seq_feed *feed);
uint64_t pd_seq_horizon(const struct pd_seq_feed *feed);
/* Plans nothing more of this feed, loudly. */
void pd_seq_feed_stop(struct pd_seq_feed *feed, int code, const char *reason, const char *text);
void pd_seq_supply_fini(struct pd_seq_supply *supply);

/* How a snapshot begins; `floors` is at lane_count numbers, `planner` behind them. PD_ECORRUPT. */
struct pd_seq_snapshot_start {
    uint64_t packs, plan_digest;
    uint32_t lane_count;
    struct pd_reader floors;
};
int pd_seq_snapshot_start(struct pd_reader *reader,
                          struct pd_seq_snapshot_start *start) PD_MUST_CHECK;

/* ---- sequencer_space.c ---- */

int pd_seq_space_start(struct pd_sequencer *seq) PD_MUST_CHECK;
void pd_seq_space_stop(struct pd_sequencer *seq);
int pd_seq_space_init(struct pd_seq_feed *feed) PD_MUST_CHECK;
void pd_seq_space_fini(struct pd_seq_feed *feed);
/* Counts what is in the log; the planners are where they were. */
int pd_seq_space_load(struct pd_sequencer *seq, struct pd_error *error) PD_MUST_CHECK;
/* A block has been appended; its lane has been drawn from; a block has been deleted. */
int pd_seq_space_add(const struct pd_sequencer *seq, struct pd_seq_feed *feed,
                     const struct pd_log_block_facts *block) PD_MUST_CHECK;
void pd_seq_space_drawn(struct pd_seq_feed *feed);
void pd_seq_space_freed(void *seq, const struct pd_log_block_facts *block);
/* Whether there is room for the block; PD_EFULL LOG_FULL. */
int pd_seq_space_check(struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                       const struct pd_block *block, struct pd_error *error) PD_MUST_CHECK;
uint64_t pd_seq_feed_bytes(const struct pd_seq_feed *feed);
uint64_t pd_seq_unplanned_bytes(const struct pd_seq_feed *feed);
/* What the feed may use of its share: a slice is kept for plans, ends, commits and trims. */
uint64_t pd_seq_room_bytes(const struct pd_sequencer *seq, const struct pd_seq_feed *feed);
/* Whether the job's steps fit into what may be held, half of the room: those that are there
 * together (PD_ELIMIT STEP_TOO_LARGE), and those between two commits (COMMIT_TOO_RARE). By the
 * tokens of full packs; samples with labels, tensors or long heads hold more. */
int pd_seq_job_fits(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                    const struct pd_job_spec *spec, struct pd_error *error) PD_MUST_CHECK;
/* After each commit: who may add from now on, and what to do where nobody can. */
void pd_seq_space_tell(struct pd_sequencer *seq);
/* Writes the flushes that are due for lack of space. */
int pd_seq_space_flush(struct pd_sequencer *seq);

/* ---- sequencer_trim.c ---- */

/* One step of trimming each feed: raises lowest_pack, or deletes below it. */
int pd_seq_trim(struct pd_sequencer *seq);
/* The feed's part of the log's limit in force. */
uint64_t pd_seq_share_bytes(const struct pd_sequencer *seq, const struct pd_seq_feed *feed);
/* So many packs after the last one a snapshot is due. */
uint64_t pd_seq_snapshot_packs(const struct pd_sequencer *seq, const struct pd_seq_feed *feed);
int pd_seq_mark_add(struct pd_sequencer *seq, struct pd_seq_feed *feed, uint64_t position,
                    uint64_t packs, struct pd_error *error) PD_MUST_CHECK;
/* The lowest step that the job's retained commits can lead back to. */
uint64_t pd_seq_job_floor_step(const struct pd_seq_feed *feed, const struct pd_seq_job *job);
/* The first step that a commit could still be for: behind the last one, and what is left out. */
uint64_t pd_seq_job_done(const struct pd_seq_job *job);
/* Next step after the last one its ranks may have: until one is delivered after a restart, every
 * planned one counts. */
uint64_t pd_seq_job_reached(const struct pd_seq_feed *feed, const struct pd_seq_job *job);
/* The lowest step of the job that is still in the log. */
uint64_t pd_seq_lowest_step(const struct pd_seq_feed *feed, const struct pd_seq_job *job);
/* The trainer that holds most; NULL: none. */
struct pd_seq_job *pd_seq_slowest_job(const struct pd_seq_feed *feed);
/* Log bytes that the job holds, and that a step of it takes: means. */
void pd_seq_job_held(const struct pd_seq_feed *feed, const struct pd_seq_job *job,
                     uint64_t *bytes_held, uint64_t *bytes_per_step);
/* With the log full: where the slowest job has received every step there is, and more cannot be
 * planned, its oldest retained commit gives way, loudly; the last one never does. Else its trainer
 * and its producers would wait for each other, for good where it does not commit out of turn.
 * False: there is none to give, or no need. */
bool pd_seq_give_up_commit(const struct pd_sequencer *seq, struct pd_seq_feed *feed);
/* Whether a commit of the feed's slowest job, or of one that is configured and has not come, would
 * free space; *stall says which. */
bool pd_seq_stall_of(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                     struct pd_stall *stall);

/* ---- sequencer_status.c ---- */

void pd_seq_progress(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                     struct pd_feed_progress *progress);
int pd_seq_status(struct pd_sequencer *seq, struct pd_request_status *request);

#endif
