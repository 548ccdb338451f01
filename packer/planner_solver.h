/* Best-fit-decreasing over the window, for lengths that hardly vary.
 *
 * Where they do not, no pair fills the rest exactly, and picking the best next one pack at a time
 * wastes the small ones. So the whole window is packed on paper, and the fullest of those packs
 * leaves; a paper is good for a few packs, then it is drawn up again with what has entered since. A
 * sample older than PD_SOLVER_AGE windows goes first whatever its pack looks like. O(W) a paper,
 * O(W + L) memory. Planner's thread. */
#ifndef PD_PACKER_PLANNER_SOLVER_H
#define PD_PACKER_PLANNER_SOLVER_H

#include "packer/planner_window.h"

#define PD_SOLVER_AGE 4   /* windows of arrivals */
#define PD_SOLVER_PACKS 4 /* packs taken from one paper */

struct pd_bin {
    uint32_t used_keys;   /* 0 once it has left */
    uint32_t first, last; /* its entries, linked through pd_node.bin_next */
    uint32_t count;
    uint32_t next; /* with the same used_keys */
};

struct pd_solver {
    struct pd_bits levels; /* used_keys that some open bin has */
    uint32_t *bucket;      /* a bin with this many used_keys, others through `next` */
    struct pd_bin *bins;   /* bin_capacity of them */
    uint32_t bin_capacity;
    uint32_t bin_count;
    uint32_t packs_left; /* until the next paper */
};

int pd_solver_init(struct pd_solver *solver, const struct pd_window *window) PD_MUST_CHECK;
/* At least so many bins: as many as the window has places, or had when its paper was made.
 * PD_ENOMEM. */
int pd_solver_grow(struct pd_solver *solver, uint32_t bin_capacity) PD_MUST_CHECK;
void pd_solver_fini(struct pd_solver *solver);
/* The bin that leaves next: entries from bins[b].first on. segments_max 0 = no cap. The window must
 * not be empty. */
uint32_t pd_solver_choose(struct pd_solver *solver, struct pd_window *window,
                          uint32_t segments_max);
/* The bin has left the window. */
void pd_solver_took(struct pd_solver *solver, uint32_t bin);
/* The window changed in another way: draw up a new paper before the next choice. */
static inline void pd_solver_void(struct pd_solver *solver)
{
    solver->packs_left = 0;
}
/* Rebuilds the bins from pd_node.bin (restore); the window's entries carry numbers below
 * bin_count. */
void pd_solver_rebuild(struct pd_solver *solver, struct pd_window *window, uint32_t bin_count,
                       uint32_t packs_left);

#endif
