/* The pruning rules in force, and the count of what they take away. Owner: the planner's thread. */
#ifndef PD_PACKER_PLANNER_PRUNE_H
#define PD_PACKER_PLANNER_PRUNE_H

#include "packer/planner.h"
#include "packer/prune.h"

/* The rule of a source, or NULL. */
const struct pd_prune *pd_prune_rule_of(const struct pd_rules *rules, uint32_t source);
/* Counts a sample that lost something. */
void pd_prune_count(struct pd_prune_stats *stats, const struct pd_head *pushed,
                    const struct pd_pruned *pruned);
static inline void pd_prune_see(struct pd_prune_stats *stats, const struct pd_head *pushed)
{
    for (uint32_t i = 0; i < pushed->span_count; i++)
        stats->seen_views |= UINT64_C(1) << (pushed->spans[i].view & 63);
}

void pd_prune_stats_save(const struct pd_prune_stats *stats, struct pd_buf *buf);
void pd_prune_stats_load(struct pd_reader *reader, struct pd_prune_stats *stats);

#endif
