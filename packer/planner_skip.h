/* Samples that a record leaves out: one by (stream, seq), or all that a rule fits. Owner: the
 * planner's thread. */
#ifndef PD_PACKER_PLANNER_SKIP_H
#define PD_PACKER_PLANNER_SKIP_H

#include "packer/planner_state.h"

/* Between refill and fit, once. PD_ENOMEM, PD_ECORRUPT, or what supply->read returned. */
int pd_skip_apply(struct pd_planner *planner, const struct pd_supply *supply,
                  const struct pd_change *change) PD_MUST_CHECK;
/* Whether a head that comes from its lane is left out. */
bool pd_skip_fits(const struct pd_records *records, const struct pd_head *head);
/* Forgets rules that no lane has a sample for any more. */
void pd_skip_retire(struct pd_planner *planner);

#endif
