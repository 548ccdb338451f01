/* What the two halves of the plain planner share: planner_model.c (lanes, cutting, refill) and
 * planner_model_fit.c (the fit). */
#ifndef PD_TESTS_MODEL_PLANNER_MODEL_STATE_H
#define PD_TESTS_MODEL_PLANNER_MODEL_STATE_H

#include "tests/model/planner_model.h"

struct item {
    struct pd_segment s;
    const struct pd_head *head;
    uint64_t bytes, entered;
    uint32_t lane;
    long bin;
    bool to_split, dropped;
};

struct bag {
    struct item *item;
    size_t count, capacity;
};

struct lane {
    const struct pd_head **heads;
    size_t count, at;
    uint64_t end;
    int64_t deficit;
    uint32_t weight, pass;
    bool active, yielded;
};

struct model {
    struct pd_rules rules;
    struct lane *lanes;
    uint32_t last_lane;
    bool stopped;
    uint64_t feed_end;
    struct pd_control *flushes, *changes, *skips, *rules_in_force;
    size_t flush_count, change_count, skip_count, rule_count;
    uint64_t *flush_made;
    struct bag window, buffer;
    uint64_t left, entered, packs, mean_fixed, square_fixed;
    struct item pending;
    bool has_pending;
    uint32_t split_at, split_repeat, split_part;
    int paper_left;
    bool changed; /* the changes of this pack have acted */
    struct model_counts counts;
};

/* Takes the next pack's items out of the window (not empty). */
void model_fit(struct model *m, struct pd_pack *pack);
void model_bag_remove(struct bag *bag, size_t at);

#endif
