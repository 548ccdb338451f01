/* The cost model: what a segment, a row and a whole set cost a transformer, and what packing saves
 * of it.
 *
 * A layer's time is alpha * n + beta * n^2 for a segment of n positions: alpha stands for
 * everything that works on one position at a time (projections, MLP), beta for attention, which
 * works on pairs. Only the ratio matters: n = alpha / beta is where attention takes as long as the
 * rest. Shorter rows are in the linear regime, longer ones in the quadratic regime.
 *
 * Integers only, saturating: a sum that no longer fits stays at the largest value. Pure, any
 * thread. */
#ifndef PD_PACKER_COST_H
#define PD_PACKER_COST_H

#include <stdint.h>

#define PD_PPM 1000000u

struct pd_cost {
    uint32_t alpha; /* per token */
    uint32_t beta;  /* per token pair */
};

/* Positions and pairs of positions that a set of segments makes a model look at. Zeroed memory is
 * no work. */
struct pd_work {
    uint64_t positions;      /* sum of n */
    unsigned __int128 pairs; /* sum of n^2 */
};

enum pd_regime { PD_REGIME_LINEAR, PD_REGIME_QUADRATIC };

uint64_t pd_add_saturating(uint64_t a, uint64_t b);

/* alpha*n + beta*n^2 of one segment. */
uint64_t pd_cost_segment(struct pd_cost cost, uint64_t tokens);

/* Adds `times` segments of `tokens` positions each. */
void pd_work_add(struct pd_work *work, uint64_t tokens, uint64_t times);
/* Adds a row's padding as it is served: segments of pad_segment positions (>= 1) and a rest. */
void pd_work_add_padding(struct pd_work *work, uint64_t tokens, uint64_t pad_segment);
unsigned __int128 pd_work_cost(const struct pd_work *work, struct pd_cost cost);

/* (before - after) / before in parts per million, negative where `after` is more; 0 where before is
 * 0. Not below -PD_PPM * 1000. */
int64_t pd_saving_ppm(unsigned __int128 before, unsigned __int128 after);

/* The cost of one layer of a transformer with this hidden size and an MLP of four times its width:
 * 24 h^2 operations a token and 4 h a pair, so alpha : beta = 6 h : 1. The number of layers
 * multiplies both. `hidden` up to 2^29. */
struct pd_cost pd_cost_of_model(uint32_t hidden);
/* Operations (multiply and add apart) of one forward pass with that many layers over the work. */
unsigned __int128 pd_work_operations(const struct pd_work *work, uint32_t hidden, uint32_t layers);

/* The share of attention in the cost of one segment of `tokens`, in parts per million; 0 for a cost
 * of nothing. */
uint32_t pd_cost_quadratic_ppm(struct pd_cost cost, uint64_t tokens);
/* Quadratic where attention is more than half of it. */
enum pd_regime pd_cost_regime(struct pd_cost cost, uint64_t tokens);
/* The length from which on a segment is in the quadratic regime, UINT64_MAX for beta 0. */
uint64_t pd_cost_crossover_tokens(struct pd_cost cost);

/* How much faster, in thousandths, it gets where the time is cut by so many parts per million,
 * rounded: 468,085 -> 1,880. UINT64_MAX for a cut of everything; a negative saving gives less than
 * 1,000. */
uint64_t pd_speedup_milli(int64_t time_cut_ppm);

/* What a sample of `tokens` keeps when a view with this share of its tokens, or of so many tokens,
 * is dropped; never less than one. */
struct pd_view_drop {
    uint32_t share_ppm; /* up to PD_PPM; used where tokens is 0 */
    uint32_t tokens;
};
uint32_t pd_view_kept_tokens(struct pd_view_drop drop, uint32_t tokens);

#endif
