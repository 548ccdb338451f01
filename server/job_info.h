/* What the sequencer tells serve: jobs, and how far a feed's plan has come. Plain values, copied.
 */
#ifndef PD_SERVER_JOB_INFO_H
#define PD_SERVER_JOB_INFO_H

#include "base/err.h"
#include "base/name.h"
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

#endif
