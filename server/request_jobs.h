/* What trainers and readers ask of the sequencer; see request.h. */
#ifndef PD_SERVER_REQUEST_JOBS_H
#define PD_SERVER_REQUEST_JOBS_H

#include "server/job_info.h"
#include "server/request.h"

/* PD_ENOTFOUND UNKNOWN_FEED; PD_EINVAL BAD_NAME; PD_EMISMATCH LOG_ID, STEP_PACKS (rows * dp_size *
 * accum != step_packs: what would fit), SEGMENT_MULTIPLE, SPEC_MISMATCH (field, both values),
 * REGROUP (another step_packs without `regroup`, not at the last commit, or where steps that are
 * left out or share packs would move); PD_ELIMIT STEP_TOO_LARGE, TOO_MANY_SEGMENTS,
 * BATCH_TOO_LARGE, COMMIT_TOO_RARE, TOO_MANY_JOBS; PD_EFENCED STALE_WORLD (a superseded world
 * token); PD_ERANGE STEP_NOT_PLANNED (resume_step is beyond the plan), STEP_TRIMMED (the step to
 * resume at is no longer in the log, the lowest that is is named); PD_ENOMEM NO_MEMORY; what
 * writing to the log says. */
struct pd_request_open_job {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1];
    struct pd_job_spec spec; /* wanted */
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

#endif
