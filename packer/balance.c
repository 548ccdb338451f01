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

struct pd_balance_block pd_balance_block_at(uint64_t number)
{
    struct pd_balance_block block = {.number = number, .steps = PD_BALANCE_STEPS_MAX};
    if (number >= DOUBLING_BLOCKS) {
        block.first_step = (number - DOUBLING_BLOCKS + 1) * PD_BALANCE_STEPS_MAX;
    } else if (number == 0) {
        block.steps = 1;
    } else {
        block.steps = 1u << (number - 1);
        block.first_step = block.steps;
    }
    return block;
}

struct pd_balance_block pd_balance_block_of(uint64_t step)
{
    if (step >= PD_BALANCE_STEPS_MAX)
        return pd_balance_block_at(step / PD_BALANCE_STEPS_MAX + DOUBLING_BLOCKS - 1);
    uint64_t number = 0;
    while (step >> number != 0)
        number++;
    return pd_balance_block_at(number);
}

static uint64_t payload_bytes(const struct pd_balance_pack *packs, uint32_t count)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum = pd_add_saturating(sum, packs[i].payload_bytes);
    return sum;
}

/* The part that begins at part->first_step: as many whole steps as fit. False: that is not known
 * before more is planned. */
static bool fill_part(const struct pd_balance *balance, const struct pd_balance_block *block,
                      const struct pd_balance_packs *packs, struct pd_balance_part *part)
{
    uint32_t step_packs = balance->step_packs;
    uint64_t bytes = 0;
    for (uint32_t step = part->first_step; step < block->steps; step++) {
        uint32_t at = step * step_packs;
        if (packs->count - at < step_packs)
            return packs->ended;
        bytes = pd_add_saturating(bytes, payload_bytes(packs->packs + at, step_packs));
        if (part->steps > 0 && bytes > balance->block_bytes)
            return true;
        part->steps++;
        part->pack_count += step_packs;
    }
    return true;
}

int pd_balance_part_of(const struct pd_balance *balance, const struct pd_balance_block *block,
                       const struct pd_balance_packs *packs, uint32_t step,
                       struct pd_balance_part *part)
{
    PD_CHECK(step < block->steps && balance->step_packs > 0);
    PD_CHECK(packs->count <= (uint64_t)block->steps * balance->step_packs);
    *part = (struct pd_balance_part){0};
    for (;;) {
        uint32_t left = packs->count - part->first_pack;
        if (left == 0 && packs->ended)
            return PD_EEND;
        if (!fill_part(balance, block, packs, part))
            return PD_EAGAIN;
        if (part->steps == 0) { /* the feed ends inside this step */
            part->steps = 1;
            part->pack_count = left;
        }
        if (step - part->first_step < part->steps)
            return 0;
        *part = (struct pd_balance_part){.first_step = part->first_step + part->steps,
                                         .first_pack = part->first_pack + part->pack_count};
    }
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
static void permute_runs(uint64_t seed, uint64_t block, const struct pd_balance_part *part,
                         uint32_t *runs)
{
    uint64_t state = mix(mix(mix(seed) ^ block) ^ part->first_step);
    for (uint32_t i = 0; i < part->steps; i++)
        runs[i] = i;
    for (uint32_t i = part->steps; i > 1; i--) {
        state = mix(state);
        uint32_t other = (uint32_t)(state % i), run = runs[i - 1];
        runs[i - 1] = runs[other];
        runs[other] = run;
    }
}

static int by_cost(const void *a, const void *b, void *ctx)
{
    const struct pd_balance_pack *packs = ctx;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    if (packs[i].cost != packs[j].cost)
        return packs[i].cost < packs[j].cost ? -1 : 1;
    return i < j ? -1 : i > j;
}

/* Moves run runs[i] to place i, cycle by cycle, through one pack at a time of each run. */
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

void pd_balance_sort(const struct pd_balance *balance, const struct pd_balance_block *block,
                     const struct pd_balance_part *part, const struct pd_balance_pack *packs,
                     uint32_t *order)
{
    uint32_t runs[PD_BALANCE_STEPS_MAX];
    PD_CHECK(part->steps >= 1 && part->steps <= PD_BALANCE_STEPS_MAX);
    for (uint32_t i = 0; i < part->pack_count; i++)
        order[i] = i;
    qsort_r(order, part->pack_count, sizeof *order, by_cost, (void *)(uintptr_t)packs);
    if (part->steps == 1)
        return;
    PD_CHECK(part->pack_count == part->steps * balance->step_packs);
    permute_runs(balance->seed, block->number, part, runs);
    place_runs(runs, part->steps, balance->step_packs, order);
}

/* The parts of one block; returns how many packs were put. */
static uint32_t order_block(const struct pd_balance *balance, const struct pd_balance_block *block,
                            const struct pd_balance_packs *packs, uint32_t first_pack,
                            uint32_t *order)
{
    struct pd_balance_part part;
    uint32_t put = 0;
    for (uint32_t step = 0; step < block->steps; step += part.steps) {
        if (pd_balance_part_of(balance, block, packs, step, &part) != 0)
            break;
        pd_balance_sort(balance, block, &part, packs->packs + part.first_pack, order + put);
        for (uint32_t i = 0; i < part.pack_count; i++)
            order[put + i] += first_pack + part.first_pack;
        put += part.pack_count;
    }
    return put;
}

uint32_t pd_balance_order(const struct pd_balance *balance, const struct pd_balance_pack *packs,
                          uint32_t count, bool ended, uint32_t *order)
{
    uint32_t put = 0;
    for (uint64_t number = 0; put < count; number++) {
        struct pd_balance_block block = pd_balance_block_at(number);
        uint32_t first = put, left = count - put;
        uint64_t most = (uint64_t)block.steps * balance->step_packs;
        struct pd_balance_packs planned = {.packs = packs + first,
                                           .count = (uint32_t)(left < most ? left : most),
                                           .ended = ended && left <= most};
        uint32_t got = order_block(balance, &block, &planned, first, order + put);
        put += got;
        if (got < planned.count)
            break;
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
