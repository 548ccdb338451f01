/* Steps as ranges of packs.
 *
 * Asked by serve (what is there, what to build), the sequencer (how far to plan, what a trainer
 * waits for), Status and Explain. Pure, any thread. Invariant: a step that is there stays as it is
 * while more packs are planned. Which pack is which entry of a balanced step takes the packs'
 * costs: that is step_order.c. */
#include "server/job_steps.h"

#include "base/check.h"

#define TOKEN_BYTES 4 /* payload of a position without tensors */

static bool balanced(const struct pd_job_steps *job)
{
    return job->config->balance == PD_BALANCE_COST;
}

struct pd_balance_rules pd_job_balance(const struct pd_job_steps *job)
{
    uint64_t pack_bytes = TOKEN_BYTES * (uint64_t)job->config->rules.seq_len;
    return (struct pd_balance_rules){
        .seed = job->config->rules.seed,
        .step_packs = job->step_packs,
        .steps_max = pd_balance_steps_max(job->config->balance_bytes, pack_bytes, job->step_packs)};
}

uint32_t pd_job_steps_together(const struct pd_job_steps *job)
{
    return balanced(job) ? pd_job_balance(job).steps_max : 1;
}

/* The steps that are there together with the job's n-th one: itself, or its part. Numbers here
 * count from the job's first step. */
static struct pd_balance_part together_with(const struct pd_job_steps *job, uint64_t n)
{
    if (!balanced(job))
        return (struct pd_balance_part){.first_step = n, .steps = 1};
    struct pd_balance_rules balance = pd_job_balance(job);
    return pd_balance_part_of(&balance, n);
}

/* Steps before the job's first have no place: they count as that one. */
static uint64_t number_of(const struct pd_job_steps *job, uint64_t step)
{
    return step > job->first_step ? step - job->first_step : 0;
}

uint64_t pd_job_steps_planned(const struct pd_job_steps *job, uint64_t packs, bool ended)
{
    uint64_t have = packs > job->first_pack ? packs - job->first_pack : 0;
    uint64_t whole = have / job->step_packs;
    bool rest = have % job->step_packs != 0;
    if (ended)
        return job->first_step + whole + (rest && job->config->last_step == PD_LAST_STEP_PAD);
    return job->first_step + together_with(job, whole).first_step;
}

uint64_t pd_job_step_end(const struct pd_job_steps *job, uint64_t step)
{
    uint64_t end;
    struct pd_balance_part part = together_with(job, number_of(job, step));
    if (__builtin_add_overflow(part.first_step, (uint64_t)part.steps, &end) ||
        __builtin_mul_overflow(end, (uint64_t)job->step_packs, &end) ||
        __builtin_add_overflow(end, job->first_pack, &end))
        return UINT64_MAX;
    return end;
}

uint64_t pd_job_step_needs(const struct pd_job_steps *job, uint64_t step)
{
    return job->first_pack + together_with(job, number_of(job, step)).first_step * job->step_packs;
}

bool pd_job_step_splits(const struct pd_job_steps *job, uint64_t step, uint64_t *next)
{
    struct pd_balance_part part = together_with(job, number_of(job, step));
    bool begins = job->first_step + part.first_step == step;
    *next = begins ? step : job->first_step + part.first_step + part.steps;
    return begins;
}

uint64_t pd_job_steps_lowest(const struct pd_job_steps *job, uint64_t lowest_pack)
{
    if (lowest_pack <= job->first_pack)
        return job->first_step;
    uint64_t n = (lowest_pack - job->first_pack + job->step_packs - 1) / job->step_packs;
    struct pd_balance_part part = together_with(job, n);
    return job->first_step + (part.first_step < n ? part.first_step + part.steps : n);
}

/* Packs there are from `first` on, at most `most`. */
static uint32_t packs_from(uint64_t packs, uint64_t first, uint64_t most)
{
    PD_CHECK(first < packs);
    return (uint32_t)(packs - first < most ? packs - first : most);
}

struct pd_step_place pd_job_step_place(const struct pd_job_steps *job, uint64_t packs,
                                       uint64_t step)
{
    PD_CHECK(step >= job->first_step);
    uint64_t n = step - job->first_step;
    struct pd_step_place place = {.part = together_with(job, n)};
    uint32_t step_packs = job->step_packs;
    place.first_pack = job->first_pack + n * step_packs;
    place.pack_count = packs_from(packs, place.first_pack, step_packs);
    place.part_first_pack = job->first_pack + place.part.first_step * step_packs;
    place.part_pack_count =
        packs_from(packs, place.part_first_pack, (uint64_t)place.part.steps * step_packs);
    if (!balanced(job))
        place.part = (struct pd_balance_part){0};
    return place;
}
