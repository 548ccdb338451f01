/* A second planner, written for plainness: arrays, linear scans, a bit per token, the whole log in
 * sight from the start.
 *
 * It states what the planner must do and shares no code with it beyond the public types. O(n^2) and
 * worse; tests only. */
#ifndef PD_TESTS_MODEL_PLANNER_MODEL_H
#define PD_TESTS_MODEL_PLANNER_MODEL_H

#include "packer/planner.h"

#include <stddef.h>

/* One record of the log: a block of heads for a lane, or a control record. Its place is its number
 * + 1. */
struct model_record {
    bool is_control;
    struct pd_control control;
    uint32_t lane;
    struct pd_head *heads;
    uint32_t head_count;
};

struct model_log {
    struct model_record *records;
    size_t count, capacity;
};

struct model;

struct model *model_new(const struct pd_rules *rules, const struct model_log *log);
void model_free(struct model *model);
/* Like pd_planner_next: 0, PD_EAGAIN or PD_EEND. *lane is the lane waited for. */
int model_next(struct model *model, struct pd_pack *pack, uint32_t *lane);
/* Counts that conservation needs: samples left out, and samples and parts still in window, buffer
 * and pending. */
struct model_counts {
    uint64_t rejected, skipped, truncated, split;
};
struct model_counts model_counts(const struct model *model);

#endif
