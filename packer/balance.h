/* Balance: which packs of a job make which step, so that the ranks of a step have equal work.
 *
 * Attention is quadratic: packs of equally many tokens may differ twofold in work. So the packs of
 * a block of steps are sorted by cost, each step is a run of P = step_packs neighbours, and the
 * runs are permuted by (seed, block): neighbours in cost meet in one step, ranks wait for nobody,
 * and steps do not come in the order of their cost.
 *
 *   steps of the job   0 | 1 | 2 3 | 4 5 6 7 | 8 .. 15 | 16 .. 31 | 32 .. 47 | ...
 *   block              0 | 1 |  2  |    3    |    4    |    5     |    6     | ...
 *
 * Where the payload of a block passes block_bytes it falls into parts, each as many steps as fit,
 * never less than one: which ones depends on the packs of that block alone, so no state goes from
 * block to block, and a job goes on anywhere from the packs of one block.
 *
 * A pure function of (packs of the block, P, block_bytes, seed, block number). Nothing here knows
 * dp_size, rows or accum: another world size leaves every step as it is. Integers only, any thread.
 */
#ifndef PD_PACKER_BALANCE_H
#define PD_PACKER_BALANCE_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define PD_BALANCE_STEPS_MAX 16

struct pd_balance {
    uint64_t seed;
    uint64_t block_bytes; /* payload bytes of a part; one step always fits */
    uint32_t step_packs;  /* P, 1 .. 2^26 */
};

struct pd_balance_block {
    uint64_t number;
    uint64_t first_step; /* of the job */
    uint32_t steps;      /* 1 .. PD_BALANCE_STEPS_MAX */
};

/* One planned pack, in the job's pack order. */
struct pd_balance_pack {
    uint64_t cost;
    uint64_t payload_bytes;
};

/* The planned packs of a block, from its first one on. */
struct pd_balance_packs {
    const struct pd_balance_pack *packs; /* borrowed */
    uint32_t count;                      /* up to steps * P */
    bool ended;                          /* the feed ends behind them */
};

/* Steps that are sorted together. */
struct pd_balance_part {
    uint32_t first_step; /* counted from the block's first */
    uint32_t steps;
    uint32_t first_pack; /* counted from the block's first */
    uint32_t pack_count; /* steps * P; less in a last, partly filled step, a part of its own */
};

/* The block that a step of the job lies in; by number. */
struct pd_balance_block pd_balance_block_of(uint64_t step);
struct pd_balance_block pd_balance_block_at(uint64_t number);

/* The part that holds `step` (counted from the block's first). PD_EAGAIN: not all of it is planned
 * yet; PD_EEND: the feed ends before it. */
int pd_balance_part_of(const struct pd_balance *balance, const struct pd_balance_block *block,
                       const struct pd_balance_packs *packs, uint32_t step,
                       struct pd_balance_part *part) PD_MUST_CHECK;

/* order[i], i < part->pack_count: which of the part's packs (0 = the part's first) is entry i of
 * its steps, step after step. `packs` are the part's. */
void pd_balance_sort(const struct pd_balance *balance, const struct pd_balance_block *block,
                     const struct pd_balance_part *part, const struct pd_balance_pack *packs,
                     uint32_t *order);

/* All packs of a job in the order of its steps: order[i] is entry i of the job's pack order. Packs
 * of a part that is not planned whole, and is not the end, are left out; returns how many were put.
 */
uint32_t pd_balance_order(const struct pd_balance *balance, const struct pd_balance_pack *packs,
                          uint32_t count, bool ended, uint32_t *order);

/* How equal the ranks of a world are: the mean over steps of the largest rank's cost over the mean
 * rank's, in parts per million (1,000,000 is equal work). costs[i] is entry i of the job's pack
 * order; only whole steps count. */
struct pd_world {
    uint32_t dp_size, rows, accum; /* each >= 1; P is their product */
};
struct pd_imbalance {
    uint64_t steps;
    uint64_t step_ppm;  /* a rank's work summed over its micro-steps: ranks wait once a step */
    uint64_t micro_ppm; /* each micro-step by itself: ranks wait at each */
};
struct pd_imbalance pd_imbalance_of(const uint64_t *costs, uint64_t count, struct pd_world world);

#endif
