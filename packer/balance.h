/* Balance: which packs of a job make which step, so that the ranks of a step have equal work.
 *
 * Attention is quadratic: packs of equally many tokens may differ twofold in work. So the packs of
 * a block of steps are sorted by cost, each step is a run of P = step_packs neighbours, and the
 * runs are permuted by (seed, block): neighbours in cost meet in one step, ranks wait for nobody,
 * and steps do not come in the order of their cost.
 *
 *   steps of the job   0 | 1 | 2 3 | 4 5 6 7 | 8 .. 15 | 16 .. 31 | 32 .. 47 | ...
 *   block              0 | 1 |  2  |    3    |    4    |    5     |    6     | ...
 *   part (steps_max 6)                         8 .. 13 | 16 .. 21 | ...
 *                                              14, 15  | 22 .. 27 | ...
 *                                                      | 28 .. 31 | ...
 *
 * Where the payload of a block passes block_bytes it falls into parts of as many steps as fit,
 * never less than one. A pack counts with its full payload for that, which packs reach but for a
 * thousandth: so where a part begins and ends follows from the step's number alone, and a job can
 * go on anywhere with no more than the packs of one part.
 *
 * A pure function of (costs of the part's packs, P, steps_max, seed, block). Nothing here knows
 * dp_size, rows or accum: another world size leaves every step as it is. Any thread. */
#ifndef PD_PACKER_BALANCE_H
#define PD_PACKER_BALANCE_H

#include <stdbool.h>
#include <stdint.h>

#define PD_BALANCE_STEPS_MAX 16
#define PD_BALANCE_STEP_PACKS_MAX (1u << 26)

struct pd_balance_rules {
    uint64_t seed;
    uint32_t step_packs; /* P, 1 .. PD_BALANCE_STEP_PACKS_MAX */
    uint32_t steps_max;  /* of a part, 1 .. PD_BALANCE_STEPS_MAX */
};

/* Steps that are sorted together. */
struct pd_balance_part {
    uint64_t block;
    uint64_t first_step; /* of the job */
    uint32_t steps;
};

/* steps_max: how many steps of P packs of pack_bytes (>= 1) block_bytes hold; at least one. */
uint32_t pd_balance_steps_max(uint64_t block_bytes, uint64_t pack_bytes, uint32_t step_packs);

struct pd_balance_part pd_balance_part_of(const struct pd_balance_rules *balance, uint64_t step);

/* order[i], i < count: which of the part's packs (0 = its first) is entry i of its steps, step
 * after step. costs[i] is of the part's pack i. `count` is steps * P; less only where the feed ends
 * in this part: its whole steps are balanced, the packs left over make the last step. */
void pd_balance_sort(const struct pd_balance_rules *balance, const struct pd_balance_part *part,
                     const uint64_t *costs, uint32_t count, uint32_t *order);

/* The same for all packs of a job: order[i] is entry i of its pack order. Packs of a part that is
 * not planned whole, and does not hold the end, are left out; returns how many were put. */
uint32_t pd_balance_order(const struct pd_balance_rules *balance, const uint64_t *costs,
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
