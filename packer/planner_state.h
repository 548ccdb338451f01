/* The planner's whole state, for the files that make it up: planner.c (calls), planner_refill.c,
 * planner_snapshot.c. */
#ifndef PD_PACKER_PLANNER_STATE_H
#define PD_PACKER_PLANNER_STATE_H

#include "packer/planner.h"
#include "packer/planner_cut.h"
#include "packer/planner_lanes.h"
#include "packer/planner_prune.h"
#include "packer/planner_records.h"
#include "packer/planner_shuffle.h"
#include "packer/planner_solver.h"
#include "packer/planner_window.h"

#define PD_PLANNER_MAGIC 0x70616e4cu

/* A sample that enters the window part by part. Its head is read again in every call. */
struct pd_pending {
    bool active;
    struct pd_entry entry;
    struct pd_split split;
    const struct pd_head *head; /* valid during one call of the planner, or NULL */
};

struct pd_planner {
    uint32_t magic;
    struct pd_rules rules;
    uint64_t next_pack;
    bool changed; /* the changes due at next_pack have acted, and left the window empty */
    struct pd_window window;
    struct pd_solver solver;
    struct pd_lanes lanes;
    struct pd_shuffle shuffle;
    struct pd_records records;
    struct pd_pending pending;
    struct pd_pruned pruned; /* the head admitted last, or the pending one's */
    struct pd_pack_why why;  /* of the pack made last; filled_to 0: the window was full */
    struct pd_planner_stats stats;
    struct pd_prune_stats prune_stats;
};

enum pd_refill {
    PD_REFILL_FULL,    /* by count or by bytes */
    PD_REFILL_SHORT,   /* the oldest flush has nothing more for it */
    PD_REFILL_ENDED,   /* the feed has nothing more for it */
    PD_REFILL_BLOCKED, /* *lane must bring more first */
};

/* Fills the window. An enum pd_refill, or a negative error after which the planner is of no use. */
int pd_refill(struct pd_planner *planner, const struct pd_supply *supply,
              uint32_t *lane) PD_MUST_CHECK;

static inline struct pd_cut_room pd_planner_room(const struct pd_rules *rules)
{
    return (struct pd_cut_room){rules->seq_len, rules->patches_max};
}

#endif
