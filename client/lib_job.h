/* The inside of a trainer's job, shared by the caller's side (lib_job.c) and the thread
 * (lib_fetch.c).
 *
 *   wire -> batch being received (T) -> ready list (at most `capacity`) -> next() -> the user
 *           cursor: the next batch to receive          info.next_*: the next one to return
 *
 * Credit granted to the server + batches ready <= capacity, so memory is bounded whatever the
 * server does. `lock` guards everything marked G; T belongs to the thread; the rest is fixed after
 * open. */
#ifndef PD_CLIENT_LIB_JOB_H
#define PD_CLIENT_LIB_JOB_H

#include "client/lib_batch.h"
#include "client/lib_conn.h"

#define PD_SKIPPED_MAX 1000

struct pd_cursor_at {
    uint64_t step;
    uint32_t micro;
};

struct packd_job {
    uint32_t magic;
    struct packd_job_options options; /* strings are copies */
    struct pd_channel *channel;
    struct pd_pool *pool;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;  /* for callers */
    pthread_cond_t wake;     /* for the thread, while it has no stream */
    pthread_mutex_t opening; /* one OpenJob at a time; taken before `lock` */

    struct pd_stream *live;               /* G: to ring; NULL between calls */
    struct pd_client_batch *first, *last; /* G: ready */
    uint32_t ready, capacity;             /* G */
    uint64_t largest_bytes;               /* G: of the largest batch so far */
    struct packd_job_info info;           /* G */
    struct pd_cursor_at cursor;           /* G: written by the thread */
    uint64_t until_step;                  /* with steps_max */
    struct {
        uint64_t first, last;
    } skipped[PD_SKIPPED_MAX];                /* G */
    uint32_t skipped_count;                   /* G */
    struct packd_waiting waiting;             /* G */
    uint64_t waiting_serial;                  /* G: moves when the reason changes */
    struct packd_commit_needed commit_needed; /* G */
    uint64_t commit_needed_serial;            /* G */
    uint64_t auto_commit_after_ns;            /* caller's: the last one failed, not before this */
    uint64_t told_waiting, told_commit;       /* G: serials the callbacks have seen */
    struct packd_end end;                     /* G */
    bool limit_reached;                       /* G: behind until_step */
    bool closing, interrupted;                /* G */
    struct packd_error final;                 /* G: code 0 while all is well */
    struct packd_error down;                  /* G */
    uint64_t down_since_ns;                   /* G: 0 while a call is open */

    struct pd_client_batch *incoming; /* T */
    uint32_t outstanding;             /* T: credit granted, batches not yet complete */
    unsigned damaged;                 /* T: tries of the batch at the cursor that came in damaged */
    struct pd_backoff backoff;        /* T */
};

#define PD_JOB_MAGIC 0x706a6f62u

void *pd_fetch_run(void *job);
/* OpenJob, at first (`again` false) or anew; takes both locks itself. */
int pd_job_reopen(struct packd_job *job, bool again, uint64_t deadline_ns,
                  struct packd_error *error);
/* A batch has so many bytes: sets how many like the largest so far may be here at once
 * (prefetch_batches, or fewer where their bytes are too many). What was granted before a larger one
 * came may pass prefetch_bytes once. Lock held. */
void pd_job_expect(struct packd_job *job, uint64_t batch_bytes);
/* Wakes the thread; lock held. */
void pd_fetch_wake(struct packd_job *job);

#endif
