/* Blocks, parts, sorted runs, and a measure of the result.
 *
 * Between the plan (packs in order) and the steps of a job. Pure, any thread. Invariant: a part's
 * order is a permutation of its packs, so each pack is in exactly one step. It never changes a
 * pack: caps are the planner's and stay as they are. */
#include "packer/balance.h"

#include "base/check.h"
#include "packer/cost.h"

#include <stdlib.h>

#define DOUBLING_BLOCKS 5 /* 1, 1, 2, 4, 8; then all of PD_BALANCE_STEPS_MAX */

uint32_t pd_balance_steps_max(uint64_t block_bytes, uint64_t pack_bytes, uint32_t step_packs)
{
    PD_CHECK(pack_bytes > 0 && step_packs > 0);
    uint64_t steps = block_bytes / pack_bytes / step_packs;
    return steps == 0 ? 1 : steps < PD_BALANCE_STEPS_MAX ? (uint32_t)steps : PD_BALANCE_STEPS_MAX;
}

/* The whole block that a step lies in. */
static struct pd_balance_part block_of(uint64_t step)
{
    struct pd_balance_part block = {.steps = PD_BALANCE_STEPS_MAX};
    if (step >= PD_BALANCE_STEPS_MAX) {
        block.block = step / PD_BALANCE_STEPS_MAX + DOUBLING_BLOCKS - 1;
        block.first_step = step - step % PD_BALANCE_STEPS_MAX;
        return block;
    }
    while (step >> block.block != 0)
        block.block++;
    block.first_step = step == 0 ? 0 : 1u << (block.block - 1);
    block.steps = step == 0 ? 1 : (uint32_t)block.first_step;
    return block;
}

struct pd_balance_part pd_balance_part_of(const struct pd_balance_rules *balance, uint64_t step)
{
    struct pd_balance_part part = block_of(step);
    uint32_t steps_max = balance->steps_max;
    PD_CHECK(steps_max >= 1 && steps_max <= PD_BALANCE_STEPS_MAX);
    uint32_t before = (uint32_t)(step - part.first_step) / steps_max * steps_max;
    part.first_step += before;
    part.steps = part.steps - before < steps_max ? part.steps - before : steps_max;
    return part;
}

/* A well-mixed function of a counter (the finaliser of splitmix64). */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* runs[i]: which run, counted by rising cost, is step i of the part. */
static void permute_runs(uint64_t seed, const struct pd_balance_part *part, uint32_t steps,
                         uint32_t *runs)
{
    uint64_t state = mix(mix(mix(seed) ^ part->block) ^ part->first_step);
    for (uint32_t i = 0; i < steps; i++)
        runs[i] = i;
    for (uint32_t i = steps; i > 1; i--) {
        state = mix(state);
        uint32_t other = (uint32_t)(state % i), run = runs[i - 1];
        runs[i - 1] = runs[other];
        runs[other] = run;
    }
}

static int by_cost(const void *a, const void *b, void *ctx)
{
    const uint64_t *costs = ctx;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    if (costs[i] != costs[j])
        return costs[i] < costs[j] ? -1 : 1;
    return i < j ? -1 : i > j;
}

static void sort_by_cost(uint32_t *order, uint32_t count, const uint64_t *costs)
{
    qsort_r(order, count, sizeof *order, by_cost, (void *)(uintptr_t)costs);
}

/* Moves run runs[i] to place i, one pack of each run at a time. */
static void place_runs(const uint32_t *runs, uint32_t steps, uint32_t step_packs, uint32_t *order)
{
    for (uint32_t k = 0; k < step_packs; k++) {
        uint32_t sorted[PD_BALANCE_STEPS_MAX];
        for (uint32_t i = 0; i < steps; i++)
            sorted[i] = order[(uint64_t)i * step_packs + k];
        for (uint32_t i = 0; i < steps; i++)
            order[(uint64_t)i * step_packs + k] = sorted[runs[i]];
    }
}

void pd_balance_sort(const struct pd_balance_rules *balance, const struct pd_balance_part *part,
                     const uint64_t *costs, uint32_t count, uint32_t *order)
{
    uint32_t runs[PD_BALANCE_STEPS_MAX], step_packs = balance->step_packs;
    uint32_t steps = count / step_packs, whole = steps * step_packs;
    PD_CHECK(step_packs <= PD_BALANCE_STEP_PACKS_MAX && count <= part->steps * step_packs);
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    sort_by_cost(order, whole, costs);
    sort_by_cost(order + whole, count - whole, costs);
    permute_runs(balance->seed, part, steps, runs);
    place_runs(runs, steps, step_packs, order);
}

uint32_t pd_balance_order(const struct pd_balance_rules *balance, const uint64_t *costs,
                          uint32_t count, bool ended, uint32_t *order)
{
    uint32_t put = 0;
    while (put < count) {
        struct pd_balance_part part = pd_balance_part_of(balance, put / balance->step_packs);
        uint64_t all = (uint64_t)part.steps * balance->step_packs;
        uint32_t there = count - put < all ? count - put : (uint32_t)all;
        if (there < all && !ended)
            break;
        pd_balance_sort(balance, &part, costs + put, there, order + put);
        for (uint32_t i = 0; i < there; i++)
            order[put + i] += put;
        put += there;
    }
    return put;
}

/* largest / mean of `count` sums, in parts per million; equal where all are 0. */
static uint64_t max_over_mean_ppm(const uint64_t *sums, uint32_t count)
{
    unsigned __int128 all = 0;
    uint64_t largest = 0;
    for (uint32_t i = 0; i < count; i++) {
        all += sums[i];
        largest = sums[i] > largest ? sums[i] : largest;
    }
    return all == 0 ? PD_PPM : (uint64_t)((unsigned __int128)largest * count * PD_PPM / all);
}

/* The sums of one micro-step over ranks; added to *ranks too. */
static void add_micro(const uint64_t *costs, struct pd_world world, uint64_t *micro,
                      uint64_t *ranks)
{
    for (uint32_t rank = 0; rank < world.dp_size; rank++) {
        micro[rank] = 0;
        for (uint32_t row = 0; row < world.rows; row++)
            micro[rank] = pd_add_saturating(micro[rank], costs[(uint64_t)rank * world.rows + row]);
        ranks[rank] = pd_add_saturating(ranks[rank], micro[rank]);
    }
}

struct pd_imbalance pd_imbalance_of(const uint64_t *costs, uint64_t count, struct pd_world world)
{
    uint64_t micro_packs = (uint64_t)world.dp_size * world.rows;
    struct pd_imbalance sum = {.steps = count / (micro_packs * world.accum)};
    uint64_t *ranks = calloc(2 * (size_t)world.dp_size, sizeof *ranks);
    if (!ranks || sum.steps == 0) {
        free(ranks);
        return (struct pd_imbalance){0};
    }
    for (uint64_t step = 0; step < sum.steps; step++) {
        for (uint32_t rank = 0; rank < world.dp_size; rank++)
            ranks[rank] = 0;
        for (uint32_t micro = 0; micro < world.accum; micro++, costs += micro_packs) {
            add_micro(costs, world, ranks + world.dp_size, ranks);
            sum.micro_ppm += max_over_mean_ppm(ranks + world.dp_size, world.dp_size);
        }
        sum.step_ppm += max_over_mean_ppm(ranks, world.dp_size);
    }
    free(ranks);
    sum.step_ppm /= sum.steps;
    sum.micro_ppm /= sum.steps * world.accum;
    return sum;
}
