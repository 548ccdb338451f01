/* A small feed for planner tests: lanes in memory, one place counter, the planner under test. Tests
 * only. */
#ifndef PD_TESTS_UNIT_PLANNER_FEED_H
#define PD_TESTS_UNIT_PLANNER_FEED_H

#include "packer/planner.h"

#include <stddef.h>

#define FEED_LANES 8

struct feed_lane {
    struct pd_head *heads;
    size_t count, capacity;
};

struct feed {
    struct feed_lane lanes[FEED_LANES];
    uint64_t place; /* of the last record */
    uint64_t seq[FEED_LANES];
    struct pd_planner *planner;
    struct pd_pack pack;
    struct pd_want want;
    size_t reads;
};

/* exact, one lane, window 64, seq_len 1000, no byte limit. */
struct pd_rules feed_rules(void);
void feed_init(struct feed *feed, const struct pd_rules *rules);
void feed_fini(struct feed *feed);
/* One head of a block of its own; stream = lane. Returns it for more settings, valid until the next
 * push to the lane. */
struct pd_head *feed_push(struct feed *feed, uint32_t lane, uint32_t length_tokens);
int feed_tell(struct feed *feed, struct pd_control control); /* sets `at` */
int feed_flush(struct feed *feed, uint64_t packs);
int feed_end(struct feed *feed);
int feed_end_lane(struct feed *feed, uint32_t lane);
/* The next pack into feed->pack. */
int feed_next(struct feed *feed);
struct pd_planner_stats feed_stats(const struct feed *feed);
/* Saves and restores the planner. */
void feed_restart(struct feed *feed);

/* Numbers from a seed; log_normal is the share of a pack, median 1/16, sigma 1. */
struct feed_random {
    uint64_t state;
};
uint64_t feed_random(struct feed_random *random);
uint32_t feed_log_normal(struct feed_random *random, uint32_t seq_len);

#endif
