/* Serving: which batches exist, which are being built, who waits for which, and what has been
 * delivered.
 *
 *   sequencer ──feed_advanced, job_opened──> serve <──get, delivered── rpc threads
 *                                              │ ^
 *                                        tasks v │ publish
 *                                         assemble x M: plan -> layout -> check -> digest -> header
 *
 * One mutex guards the tables; nothing is called back while it is held. waiter->ready follows, on
 * the thread that made it true, and must only post elsewhere. A batch is immutable and
 * reference-counted: it dies when the last reader (a waiter, a gRPC slice) lets go.
 *
 * When full: ready batches may take memory.batches bytes. Before a build starts its payload bound
 * is reserved; if that does not fit, ready batches nobody holds are evicted, highest step first;
 * the lowest step asked for of each job is always built (one largest-batch slot a job is
 * reserved). */
#ifndef PD_SERVER_SERVE_H
#define PD_SERVER_SERVE_H

#include "base/list.h"
#include "server/config.h"
#include "server/job_info.h"
#include "server/job_steps.h"
#include "server/serve_hooks.h"

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
/* Its hooks, all NULL at first; to be filled in before pd_serve_start. */
struct pd_serve_hooks *pd_serve_hooks(struct pd_serve *serve);
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
/* Sequencer thread: the feed starts anew, under the log's present number for it. What there is of
 * its jobs goes, their waiters get PD_ENOTFOUND; a violation no longer halts it. */
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
