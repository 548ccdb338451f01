/* Serving's tables, private to server/serve*.c. Everything here is guarded by serve->lock unless
 * said otherwise.
 *
 *   serve ── feeds[] ── jobs ──┬── entries    (step, micro, dp_rank) -> a batch that is wanted,
 *                              │              building, ready or failed; its waiters
 *                              ├── tasks      the queued entries, as they are to be built
 *                              ├── steps      totals of a step, computed once for its entries
 *                              └── delivered  what ranks have received whole
 *
 *   entry ──> box ──> payload, header         box: the batch in memory, one reference of the table
 *                                             and `holds` of readers
 *
 * The lock is never held while a waiter's ready runs, while memory is freed, while the log is read
 * or a line is logged: such work is collected in a struct pd_after and done once the lock is
 * released. */
#ifndef PD_SERVER_SERVE_STATE_H
#define PD_SERVER_SERVE_STATE_H

#include "server/assemble.h"
#include "server/delivered.h"
#include "server/serve_view.h"

#include <pthread.h>
#include <stdatomic.h>
#include <uv/tree.h>

#define PD_ASSEMBLE_THREADS_MAX 64
#define PD_SERVE_MAGIC 0x73657276u
#define PD_BOX_MAGIC 0x62617463u
/* A woken waiter's batch is kept so long. */
#define PD_CLAIM_NS UINT64_C(5000000000)
/* A failed build is answered from memory so long, then tried again. */
#define PD_FAILURE_HOLD_NS UINT64_C(1000000000)
/* Of each job: queued hints, more are dropped; failed entries, the lowest goes; totals of steps no
 * batch needs at present, the oldest goes. */
#define PD_PREFETCH_MAX 1024
#define PD_FAILED_MAX 256
#define PD_IDLE_STEPS_MAX 128

enum pd_entry_state {
    PD_ENTRY_UNPLANNED, /* its step is not whole yet */
    PD_ENTRY_QUEUED,    /* in tasks */
    PD_ENTRY_BUILDING,  /* an assemble thread has it */
    PD_ENTRY_READY,     /* box */
    PD_ENTRY_FAILED,    /* failure */
};

enum pd_facts_state { PD_FACTS_UNKNOWN, PD_FACTS_COMPUTING, PD_FACTS_KNOWN };

struct pd_step {
    RB_ENTRY(pd_step) tree;
    struct pd_link idle; /* in job->idle_steps while entry_count is 0 */
    uint64_t number;
    uint32_t entry_count;
    enum pd_facts_state state;
    struct pd_step_facts facts; /* when KNOWN */
};

struct pd_box {
    struct pd_ready_batch ready;
    uint32_t magic;
    struct pd_link dead; /* in an after-list */
    struct pd_serve *serve;
    struct pd_entry *entry;        /* NULL: no longer in the table */
    struct pd_serve_job *slot_job; /* whose reserved slot it fills (a reference), or NULL */
    uint64_t bytes;                /* what it counts against the budget */
    bool full_step;                /* its step is not the partly filled last one */
    atomic_uint holds;             /* readers; 0 -> 1 and 1 -> 0 under the lock, else atomic */
};

struct pd_entry {
    RB_ENTRY(pd_entry) tree;
    RB_ENTRY(pd_entry) task;
    struct pd_serve_job *job;
    struct pd_step *step;
    struct pd_batch_key key;
    enum pd_entry_state state;
    bool asked;     /* somebody waits; changes only while not in tasks */
    bool prefetch;  /* hinted at; kept although nobody waits */
    bool abandoned; /* out of the tables while BUILDING: its thread frees it */
    bool no_memory; /* queued because admission failed */
    bool reserved;  /* memory for it is set aside */
    bool in_slot;   /* that memory is the job's slot */
    bool delivered; /* at least once */
    struct pd_link waiters;
    uint32_t claims; /* woken waiters that have not come back */
    uint64_t claims_until_ns;
    uint64_t bytes;         /* exact, once measured; 0 = not yet */
    uint64_t since_unix_ns; /* when it was queued */
    uint64_t failed_ns;
    struct pd_error *failure;
    struct pd_box *box;
};

RB_HEAD(pd_entries, pd_entry);
RB_HEAD(pd_tasks, pd_entry);
RB_HEAD(pd_steps, pd_step);

struct pd_serve_job {
    struct pd_link in_feed, turn;
    uint32_t refs;           /* the table, abandoned entries, boxes in its slot */
    struct pd_job_info info; /* skipped: its own */
    struct pd_step_ranges skipped;
    /* next step after the highest of which a batch was handed out to the present world, or may have
     * been */
    uint64_t handed_end;
    /* a step is about to be left out: nothing from hold_step on is built or handed out */
    bool skipping;
    uint64_t hold_step;
    struct pd_entries entries;
    struct pd_tasks tasks;
    struct pd_steps steps;
    struct pd_link idle_steps;
    uint32_t idle_step_count, prefetch_count, failed_count;
    uint64_t steps_planned; /* whole ones, and the padded last one */
    uint64_t ready_bytes, ready_batches;
    uint64_t slot_bytes; /* its largest batch */
    bool slot_busy;
    struct pd_delivered delivered;
    struct pd_served_totals totals;
    struct pd_rank *ranks; /* of this generation, by dp_rank; NULL: none has come */
    uint32_t calls;        /* open fetches of this generation, of all ranks */
};

/* A rank as Status shows it. */
struct pd_rank {
    bool opened;
    uint32_t calls;
    uint64_t delivered;
    char client[PD_CLIENT_MAX + 1];
};

struct pd_serve_feed {
    const struct pd_feed_config *config;
    struct pd_feed_progress progress;
    uint32_t log_number; /* of what is served: from DeleteFeed until it is told, not the log's */
    struct pd_link jobs;
    bool halted;
    struct pd_error halt;
    struct pd_served_totals totals;
};

struct pd_worker {
    struct pd_serve *serve;
    uint32_t index;
    pthread_t thread;
    struct pd_assembler *assembler;
};

struct pd_serve {
    uint32_t magic;
    const struct pd_config *config;
    struct pd_log *log;
    pthread_mutex_t lock;
    pthread_cond_t work; /* tasks, memory, facts, stop */
    bool stopping;
    struct pd_serve_feed *feeds;
    uint32_t feed_count;
    struct pd_link turns; /* all jobs; the one whose turn it is first */
    uint64_t budget_bytes;
    uint64_t received_keep_bytes; /* ready batches above it: those that were received go */
    uint64_t late_keep_bytes;     /* what it becomes with the first late reader */
    uint64_t used_bytes;          /* batches alive and reservations */
    uint64_t used_peak_bytes;
    bool starved; /* a task waits for memory: freeing some must ring `work` */
    struct pd_serve_gauges gauges;
    uint32_t boxes; /* alive */
    struct pd_worker workers[PD_ASSEMBLE_THREADS_MAX];
    uint32_t worker_count; /* started */
    struct pd_serve_hooks hooks;
    char repro_path[PD_REPRO_PATH_MAX];
};

/* Work for after the lock. */
struct pd_after {
    struct pd_link wake; /* waiters */
    struct pd_link dead; /* boxes */
    const char *halted;  /* the feed that was halted, or NULL; then what to say of it: */
    char halt_text[PD_TEXT_MAX];
    char halt_repro[PD_REPRO_PATH_MAX];
};
void pd_after_init(struct pd_after *after);
void pd_after_run(struct pd_after *after);

/* ---- serve_table.c: jobs, steps, entries ---- */

struct pd_serve_job *pd_job_find(struct pd_serve *serve, uint32_t feed_index, uint32_t job_id);
/* NULL: no memory. */
struct pd_serve_job *pd_job_add(struct pd_serve *serve, const struct pd_job_info *info);
/* Wakes all waiters and drops all entries and totals. */
void pd_job_reset(struct pd_serve *serve, struct pd_serve_job *job, struct pd_after *after);
void pd_job_remove(struct pd_serve *serve, struct pd_serve_job *job, struct pd_after *after);
void pd_job_unref(struct pd_serve_job *job);
/* Takes the feed's progress over: sets steps_planned. */
void pd_job_plan(struct pd_serve *serve, struct pd_serve_job *job);
struct pd_job_steps pd_job_steps_of(const struct pd_serve *serve, const struct pd_serve_job *job);
/* Where a planned step lies in the plan. */
struct pd_step_place pd_job_place(const struct pd_serve *serve, const struct pd_serve_job *job,
                                  uint64_t step);

/* Nothing of the step leaves serve at present: it, or one before it, is about to be left out. */
static inline bool pd_job_holds(const struct pd_serve_job *job, uint64_t step)
{
    return job->skipping && step >= job->hold_step;
}
/* Holds the steps from `step` on until the job's next generation; what there is of them goes, and
 * its waiters ask again. */
void pd_job_hold(struct pd_serve *serve, struct pd_serve_job *job, uint64_t step,
                 struct pd_after *after);

/* Sets the size of the job's slot anew: its largest payload with the usual header, or a batch of
 * `measured_bytes` where that is larger. */
void pd_job_slot(const struct pd_serve *serve, struct pd_serve_job *job, uint64_t measured_bytes);

struct pd_entry *pd_entry_find(struct pd_serve_job *job, const struct pd_batch_key *key);
/* The first entry at or after (step, 0, 0). */
struct pd_entry *pd_entry_from(struct pd_serve_job *job, uint64_t step);
struct pd_entry *pd_entry_next(struct pd_entry *entry);
struct pd_entry *pd_entry_prev(struct pd_entry *entry);
struct pd_entry *pd_entry_first(struct pd_serve_job *job);
struct pd_entry *pd_entry_last(struct pd_serve_job *job);
/* UNPLANNED, without waiters. NULL: no memory. */
struct pd_entry *pd_entry_add(struct pd_serve_job *job, const struct pd_batch_key *key);
/* Out of the tables: waiters are woken, its box leaves the table; freed unless a thread is building
 * it. */
void pd_entry_drop(struct pd_serve *serve, struct pd_entry *entry, struct pd_after *after);
/* Into tasks / out of them. */
void pd_entry_queue(struct pd_serve *serve, struct pd_entry *entry);
void pd_entry_unqueue(struct pd_entry *entry);
void pd_entry_fail(struct pd_serve *serve, struct pd_entry *entry, const struct pd_error *error,
                   struct pd_after *after);
/* Waiters out of the entry into the after-list; with `claims` the batch is kept for them. */
void pd_entry_wake(struct pd_serve *serve, struct pd_entry *entry, bool claims,
                   struct pd_after *after);
void pd_entry_free(struct pd_entry *entry);
struct pd_entry *pd_task_first(struct pd_serve_job *job);
struct pd_entry *pd_task_next(struct pd_entry *entry);

/* ---- serve_memory.c: budget, eviction, references ---- */

/* Reserves entry->bytes, evicting where the entry's rank allows it. */
bool pd_memory_admit(struct pd_serve *serve, struct pd_entry *entry, struct pd_after *after);
/* Gives a reservation back. */
void pd_memory_release(struct pd_serve *serve, struct pd_entry *entry);
/* The box leaves the table; it dies now, or with its last reader. */
void pd_box_detach(struct pd_serve *serve, struct pd_box *box, struct pd_after *after);
void pd_box_free(struct pd_box *box);

/* ---- serve_build.c: the assemble threads ---- */

int pd_workers_start(struct pd_serve *serve, struct pd_error *error) PD_MUST_CHECK;
void pd_workers_join(struct pd_serve *serve);

/* ---- serve_view.c: ranks, views ---- */

/* A batch of the rank has arrived for the first time. */
void pd_rank_delivered(struct pd_serve_job *job, const struct pd_batch_key *key);

/* ---- serve_wait.c ---- */

/* What planning of a feed waits for. */
void pd_wait_fill_feed(const struct pd_serve_feed *feed, struct pd_wait_info *info);
/* Why the batch is not there yet. `entry` may be NULL. */
void pd_wait_fill(const struct pd_serve *serve, const struct pd_serve_job *job,
                  const struct pd_entry *entry, uint64_t step, struct pd_wait_info *info);

#endif
