/* Serving: which batches exist, which are being built, who waits for which, and what has been
 * delivered.
 *
 *   sequencer ──feed_advanced, job_opened──> serve <──get, delivered── rpc threads
 *                                              │ ^
 *                                        tasks v │ publish
 *                                         assemble x M: plan -> layout -> check -> digest -> header
 *
 * One mutex guards the tables; nothing is called back while it is held except waiter->ready, which
 * must only post elsewhere. A batch is immutable and reference-counted: it dies when the last
 * reader (a waiter, a gRPC slice) lets go.
 *
 * When full: ready batches may take memory.batches bytes. Before a build starts its payload bound
 * is reserved; if that does not fit, ready batches nobody holds are evicted, highest step first;
 * the lowest step asked for of each job is always built (one largest-batch slot a job is
 * reserved). */
#ifndef PD_SERVER_SERVE_H
#define PD_SERVER_SERVE_H

#include "base/err.h"
#include "base/list.h"
#include "base/name.h"
#include "packer/batch.h"
#include "packer/check.h"
#include "server/config.h"
#include "server/job_steps.h"
#include "server/log.h"
#include "server/step_ranges.h"

enum pd_arrays { PD_ARRAYS_ALL, PD_ARRAYS_CORE };
enum pd_job_kind { PD_JOB_TRAINER, PD_JOB_READER };

/* What every rank of a job must agree on. */
struct pd_job_spec {
    char name[PD_NAME_MAX + 1];
    uint32_t step_packs; /* P = dp_size * rows * accum */
    uint32_t dp_size, rows, accum;
    uint32_t segment_multiple; /* 0 = not asked */
    uint32_t commit_every;     /* steps between commits, as intended; 0 = not stated. May differ */
    enum pd_job_kind kind;
};

/* A job as serve knows it; job_steps.h says which packs make step k. */
struct pd_job_info {
    uint32_t feed_index, job_id;
    struct pd_job_spec spec;
    uint64_t generation;
    uint64_t first_step, first_pack; /* where its steps of this size begin */
    uint64_t world;                  /* the generation that the present world began with */
    uint64_t loaded_steps; /* of the world: those below may have been delivered before the start */
    uint64_t lowest_step;  /* below it: trimmed, or of another size */
    const struct pd_step_ranges *skipped; /* left out; of the caller, NULL in copies given out */
};

/* What the sequencer knows of a feed after a commit. */
struct pd_feed_progress {
    uint64_t packs_planned;
    bool ended;   /* no further pack will ever come */
    bool waiting; /* for samples */
    struct pd_want want;
    uint64_t waiting_since_ns; /* wall clock */
    uint32_t streams_open, streams_ended;
    bool end_declared;
    bool at_horizon; /* nothing more is planned until a trainer has received more */
    bool log_full;   /* producers get no credit, or plans find no room */
    /* planning has stopped for good (damaged head, DIVERGED): none behind packs_planned comes */
    bool stopped;
    char stop_reason[PD_REASON_MAX]; /* then */
    char want_streams[256]; /* names the refill waits for, comma separated, cut with "..." */
    uint32_t want_streams_total;
    bool want_unseen; /* the one stream it waits for is declared and was never opened */
    char want_source[PD_NAME_MAX + 1]; /* with `sources`: the one whose turn it is */
};

struct pd_batch_key {
    uint32_t feed_index, job_id;
    uint64_t generation;
    uint64_t step;
    uint32_t micro, dp_rank;
};

/* A finished batch. Immutable after publish. */
struct pd_ready_batch {
    struct pd_batch_key key;
    struct pd_batch batch;
    uint8_t *payload; /* 64-byte aligned, batch.payload_bytes */
    uint8_t *header;  /* the serialised deterministic BatchHeader: byte-identical for every build */
    size_t header_bytes;
    uint64_t saved_positions; /* against width_bound */
    uint64_t built_ns;        /* monotonic: time it took to build and check */
    uint64_t checked_ns;      /* of it: the structural check */
    /* delivery part */
    /* backend of the attention probe: "cpu", "cuda", or "" where it did not run */
    char validator[8];
    bool probed;
    uint32_t builds;        /* 1; 2 where the first build failed a check */
    uint64_t built_unix_ns; /* wall clock, when it was published */
};

enum pd_wait_reason {
    PD_WAIT_NONE,
    PD_WAIT_SAMPLES,           /* the window is not full: the streams named must send more */
    PD_WAIT_LANE,              /* with several lanes: the one whose turn it is has nothing */
    PD_WAIT_STREAM,            /* a declared stream, or any stream at all, has never been opened */
    PD_WAIT_ALL_STREAMS_ENDED, /* ALL_STREAMS_ENDED_FEED_OPEN: someone must end the feed */
    PD_WAIT_PLAN,              /* samples are there, planning is under way */
    PD_WAIT_HORIZON,           /* plan_ahead is used up: no trainer has received enough */
    PD_WAIT_LOG_FULL,          /* the log is full: no credit for producers, no room for plans */
    PD_WAIT_BUILDING,          /* planned; being built */
    PD_WAIT_MEMORY,            /* planned; waits for batch memory */
    PD_WAIT_SELF_TEST,         /* planned; the validator's self-test runs first (rpc says this) */
    PD_WAIT_STOPPED,           /* the feed is halted by a violation, or its log is damaged */
    PD_WAIT_DIVERGED,          /* planning again gave another plan */
};

struct pd_wait_info {
    enum pd_wait_reason reason;
    uint64_t step;
    uint64_t samples_needed; /* an estimate by the window's count; 0 = unknown */
    uint64_t packs_missing;  /* until the step is whole */
    uint64_t since_ns;       /* wall clock */
    char streams[256];
    uint32_t streams_total; /* streams names the first ones */
    char source[PD_NAME_MAX + 1];
};

/* A place in the queue for one batch. Embed it zeroed, fill key and ready; it is registered from
 * PD_EAGAIN until ready has run or pd_serve_cancel returned true. Once ready has run the batch is
 * kept from eviction for this waiter (5 s): call get for the same key, or cancel to give it up. */
struct pd_waiter {
    struct pd_link link;
    struct pd_batch_key key;
    /* Any thread, without serve's lock: something changed, call pd_serve_get again. Must only post.
     * Runs once a registration. */
    void (*ready)(struct pd_waiter *waiter);
    bool registered, claims; /* serve's */
    uint64_t since_ns;       /* serve's: monotonic, of the first registration for this key */
};

struct pd_serve;

int pd_serve_new(const struct pd_config *config, struct pd_log *log, struct pd_serve **serve,
                 struct pd_error *error) PD_MUST_CHECK;
/* A further check between the structural one and publishing: the attention probe. Called on
 * assemble threads, several at a time, before the batch is visible to anybody; fills
 * batch->validator and batch->probed. 0: passed, or not chosen to be probed. PD_ECORRUPT with
 * *finding: a violation, handled like a structural one. Any other code: the batch cannot be served,
 * waiters get the code. Set before pd_serve_start. */
typedef int pd_validate_fn(void *ctx, struct pd_ready_batch *batch,
                           struct pd_check_finding *finding);
void pd_serve_set_validator(struct pd_serve *serve, pd_validate_fn *validate, void *ctx);
/* Saves what is needed to look into a batch that failed its checks twice, before its feed is
 * halted: called on the assemble thread, without serve's lock. The path of what was saved into
 * `path` ("" where nothing could be). NULL: nothing is saved. Set before pd_serve_start. */
struct pd_assemble_order;
typedef void pd_repro_fn(void *ctx, const struct pd_assemble_order *order,
                         const struct pd_check_finding *finding, char *path, size_t size);
void pd_serve_set_repro(struct pd_serve *serve, pd_repro_fn *save, void *ctx);
/* Hears of each batch at its first complete delivery, on the thread that reported it, without
 * serve's lock; the batch is borrowed. `full_step`: its step is not the job's last, partly filled
 * one. Must be quick. NULL: nobody listens. Set before pd_serve_start. */
typedef void pd_served_fn(void *ctx, const struct pd_ready_batch *batch, bool full_step);
void pd_serve_set_served(struct pd_serve *serve, pd_served_fn *served, void *ctx);
/* A step that serve wants left out, because a batch of it cannot be served and nothing of it has
 * been handed out (validate.on_violation: skip_step). */
struct pd_skip_order {
    uint32_t feed_index, job_id;
    uint64_t generation, step;
    char job[PD_NAME_MAX + 1], why[256];
};
/* Asks for it: an assemble thread, without serve's lock. 0: the job's next generation will come
 * without the step, or pd_serve_skip_failed will be called. Else nothing was begun. Until then no
 * batch of the step, or of one behind it, leaves serve. Set before pd_serve_start; NULL: the feed
 * stops instead. */
typedef int pd_skip_fn(void *ctx, const struct pd_skip_order *order);
void pd_serve_set_skip(struct pd_serve *serve, pd_skip_fn *skip, void *ctx);
/* The step was not left out: its feed is halted, unless the job has gone on to another generation.
 * Any thread. */
void pd_serve_skip_failed(struct pd_serve *serve, const struct pd_skip_order *order,
                          const struct pd_error *error);
/* Starts the assemble threads (named "assemble-N") / stops and joins them; get answers PD_ECLOSED
 * from then on, waiters are woken. PD_ENOMEM, PD_EIO. free: after stop, when every batch has been
 * let go. */
int pd_serve_start(struct pd_serve *serve, struct pd_error *error) PD_MUST_CHECK;
void pd_serve_stop(struct pd_serve *serve);
void pd_serve_free(struct pd_serve *serve);

/* Sequencer thread, after each commit that changed the feed. */
void pd_serve_feed_advanced(struct pd_serve *serve, uint32_t feed_index,
                            const struct pd_feed_progress *progress);
/* Sequencer thread: a job was opened or its generation rose: the old generation's waiters are woken
 * and get PD_EFENCED. */
void pd_serve_job_opened(struct pd_serve *serve, const struct pd_job_info *job);
/* Sequencer thread: the feed starts anew (its jobs have been deleted, or are about to be). A
 * violation no longer halts it. */
void pd_serve_feed_reset(struct pd_serve *serve, uint32_t feed_index);
void pd_serve_job_deleted(struct pd_serve *serve, uint32_t feed_index, uint32_t job_id);

/* Asks for a batch. 0: *batch holds a new reference. PD_EAGAIN: the waiter is registered and *info
 * says what is waited for. PD_EEND: past the end of the feed, *last_step is the job's last step + 1
 * (0 = the feed was empty), the same for every rank. PD_EFENCED: an older generation. PD_EMISMATCH
 * DP_RANK, MICRO: out of the spec. PD_ERANGE STEP_TRIMMED, *last_step is the lowest there is.
 * PD_ECORRUPT: the batch cannot be built (CHECKSUM: the sample is named) or the feed is halted
 * (HALTED: the check is named). PD_ENOTFOUND: no such job. PD_ELIMIT JOB_TOO_LARGE: the batch is
 * larger than memory.batches. PD_ECLOSED: stopping. PD_ENOMEM, PD_EIO. */
int pd_serve_get(struct pd_serve *serve, struct pd_waiter *waiter, struct pd_ready_batch **batch,
                 struct pd_wait_info *info, uint64_t *last_step,
                 struct pd_error *error) PD_MUST_CHECK;
/* Moves the key on where its step is left out (SkipSteps): to the first batch of the next one that
 * is not. */
void pd_serve_pass_skipped(struct pd_serve *serve, struct pd_batch_key *key);
/* Only what is waited for, without registering: for repeated Waiting messages. */
void pd_serve_wait_info(struct pd_serve *serve, const struct pd_batch_key *key,
                        struct pd_wait_info *info);
/* True: the waiter was registered and is out now, ready will not run. False: ready has run or is
 * about to; the batch is no longer kept for it. */
bool pd_serve_cancel(struct pd_serve *serve, struct pd_waiter *waiter);
/* A hint that this batch will be asked for soon; builds it when memory allows. */
void pd_serve_prefetch(struct pd_serve *serve, const struct pd_batch_key *key);

void pd_ready_batch_ref(struct pd_ready_batch *batch);
/* Any thread, also inside gRPC's slice destroy. */
void pd_ready_batch_unref(struct pd_ready_batch *batch);

/* A reader has received this batch whole. The first time for (job, generation, step, micro,
 * dp_rank) it is counted in the padding metrics; *step_complete is set when with it every batch of
 * the step has been delivered (the caller then tells the sequencer). */
void pd_serve_delivered(struct pd_serve *serve, const struct pd_ready_batch *batch,
                        bool *step_complete);

/* What serve knows under the job's name: PD_ENOTFOUND UNKNOWN_JOB. Any thread. */
int pd_serve_job_named(struct pd_serve *serve, uint32_t feed_index, const char *name,
                       struct pd_job_info *info, struct pd_error *error) PD_MUST_CHECK;

/* Appends the job's skipped steps to an empty set; nothing where there is no such job.
 * PD_ENOMEM. */
int pd_serve_job_skipped(struct pd_serve *serve, uint32_t feed_index, uint32_t job_id,
                         struct pd_step_ranges *skipped) PD_MUST_CHECK;

/* Where a job's step lies in the plan, for Explain. PD_ENOTFOUND, PD_ERANGE, PD_EAGAIN (not planned
 * yet). */
int pd_serve_step_place(struct pd_serve *serve, uint32_t feed_index, uint32_t job_id, uint64_t step,
                        struct pd_job_steps *steps, struct pd_step_place *place,
                        struct pd_error *error) PD_MUST_CHECK;

#endif
