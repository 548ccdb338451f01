/* The fit: which entries of the window make up the next pack, and out they go. Planner's thread. */
#ifndef PD_PACKER_PLANNER_FIT_H
#define PD_PACKER_PLANNER_FIT_H

#include "packer/planner.h"
#include "packer/planner_solver.h"
#include "packer/planner_window.h"

/* Takes at least one entry out of the window (not empty) into *pack and counts it in *stats;
 * *capped: it was a cap on segments or patches that let no more in. PD_ENOMEM. */
int pd_fit_next(const struct pd_rules *rules, struct pd_window *window, struct pd_solver *solver,
                struct pd_pack *pack, struct pd_planner_stats *stats, bool *capped) PD_MUST_CHECK;

#endif
