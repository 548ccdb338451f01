/* Where the steps of a job lie in the plan of its feed: the one answer for serving, planning ahead,
 * Status and Explain.
 *
 *   balance: off    step k is packs first_pack + k*P ... + (k+1)*P - 1, as soon as they are planned
 *   balance: cost   step k is part of a few steps (packer/balance.h), which share the packs in that
 *                   place and are there together, once all of them are planned
 *
 * A job that was regrouped to another P begins anew there: its steps keep their numbers, the first
 * of them is the one behind the commit at which it was regrouped, and those before it are no longer
 * its steps. Arithmetic on numbers that are in the log or in the configuration. Any thread. */
#ifndef PD_SERVER_JOB_STEPS_H
#define PD_SERVER_JOB_STEPS_H

#include "packer/balance.h"
#include "server/config.h"

/* With balance: cost, a job's P is at most this: the packs of a part are sorted in memory. */
#define PD_BALANCED_STEP_PACKS_MAX 16384u

struct pd_job_steps {
    const struct pd_feed_config *config; /* borrowed */
    uint64_t first_step;                 /* 0, or where the job was regrouped */
    uint64_t first_pack;                 /* of that step */
    uint32_t step_packs;                 /* P, >= 1 */
};

/* One planned step. */
struct pd_step_place {
    uint64_t first_pack; /* of the step: entry j is this + j with balance: off */
    /* of the step: P, or fewer in the last one, which rows of padding complete */
    uint32_t pack_count;
    struct pd_balance_part part; /* counted from the first step; steps is 0 with balance: off */
    uint64_t part_first_pack;    /* of the packs that the part's steps share ... */
    uint32_t part_pack_count;    /* ... and their number; the step's own with balance: off */
};

/* How many steps can be served once `packs` packs of the feed are planned; `ended`: no more come,
 * and last_step says what becomes of a partly filled one. */
uint64_t pd_job_steps_planned(const struct pd_job_steps *job, uint64_t packs, bool ended);
/* How many packs the feed must have for that step to be there, unless it ends; UINT64_MAX where the
 * number is out of reach. */
uint64_t pd_job_step_end(const struct pd_job_steps *job, uint64_t step);
/* `step` must be one of those planned with the same arguments. */
struct pd_step_place pd_job_step_place(const struct pd_job_steps *job, uint64_t packs,
                                       uint64_t step);
/* The lowest pack that building `step` reads: its first one or, with balance, its part's first. */
uint64_t pd_job_step_needs(const struct pd_job_steps *job, uint64_t step);
/* The lowest step that can be built where packs below `lowest_pack` are gone. */
uint64_t pd_job_steps_lowest(const struct pd_job_steps *job, uint64_t lowest_pack);
/* Whether the packs before `step` are those of the steps before it: with balance, where a part
 * begins. Else *next is the next such step. */
bool pd_job_step_splits(const struct pd_job_steps *job, uint64_t step, uint64_t *next);
/* Steps that wait for each other: 1 with balance: off. */
uint32_t pd_job_steps_together(const struct pd_job_steps *job);
struct pd_balance_rules pd_job_balance(const struct pd_job_steps *job);

#endif
