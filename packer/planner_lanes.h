/* The lanes: which one the refill draws from next, and where each has got to.
 *
 *   weighted  every draw of s slot tokens credits each active lane with s * its weight and debits
 *             the drawn one with s * (sum of weights); the lane with the largest deficit is due,
 *             the lower number on a tie
 *   ordered   active lanes take turns, one sample each
 *
 * A lane keeps a cursor, never a backlog. Everything acts by its place in the log: `limit` is the
 * place of the oldest open flush, and nothing at or behind it (heads, ends) exists for the draw
 * until that flush is done. Owner: the planner's thread. */
#ifndef PD_PACKER_PLANNER_LANES_H
#define PD_PACKER_PLANNER_LANES_H

#include "packer/planner.h"

#define PD_PLACE_NEVER UINT64_MAX

struct pd_lane {
    struct pd_cursor cursor;
    uint64_t end_at;      /* place of its end, PD_PLACE_NEVER while open */
    uint64_t first_block; /* of its first head, PD_PLACE_NEVER before */
    int64_t deficit;
    uint32_t weight;
    uint32_t pass;
    uint32_t next; /* the next active lane in turn */
    bool active;   /* not yet exhausted for good */
    bool yielded;  /* this pass gave something that was served */
};

struct pd_lanes {
    struct pd_lane *lane; /* owned, `count` of them */
    uint32_t count, active_count;
    uint32_t turn; /* ordered: the lane drawn last; its `next` is due */
    bool ordered;
    bool stopped; /* a lane with on_end stop has run out */
    uint64_t feed_end_at;
    const struct pd_rules *rules; /* borrowed from the planner */

    /* The heads of heads_lane from its cursor on, as last read; valid during one call of the
     * planner. */
    const struct pd_head *heads;
    uint32_t heads_left, heads_lane;
};

enum pd_draw {
    PD_DRAW_HEAD, /* *head of *lane is next */
    PD_DRAW_DRY,  /* *lane is due and has nothing before the open flush */
    /* *lane is due and has nothing at present; PD_LANE_NONE: all have ended, the feed has not */
    PD_DRAW_BLOCKED,
    PD_DRAW_ENDED, /* nothing will come */
};

int pd_lanes_init(struct pd_lanes *lanes, const struct pd_rules *rules) PD_MUST_CHECK;
void pd_lanes_fini(struct pd_lanes *lanes);

/* At the start of a planner call: heads read before are no longer valid. */
void pd_lanes_forget(struct pd_lanes *lanes);

/* What is next, an enum pd_draw, or the error of supply->read; PD_ECORRUPT for a head that breaks
 * the supply's contract. */
int pd_lanes_peek(struct pd_lanes *lanes, const struct pd_supply *supply, uint64_t limit,
                  const struct pd_head **head, uint32_t *lane) PD_MUST_CHECK;
/* The common case in few instructions: heads of a feed's only lane that are surely next where they
 * lie before `before`; count 0 where pd_lanes_peek has to be asked. Each one's order and length are
 * the caller's to check with pd_lanes_sound. */
struct pd_lanes_run {
    const struct pd_head *heads;
    uint32_t count, pass;
    uint64_t before;
    struct pd_cursor at;
};
/* 0, or the errors of pd_lanes_peek. */
int pd_lanes_run(struct pd_lanes *lanes, const struct pd_supply *supply, uint64_t limit,
                 struct pd_lanes_run *run) PD_MUST_CHECK;
static inline bool pd_lanes_sound(const struct pd_head *head, struct pd_cursor at)
{
    bool in_order = head->block > at.block || (head->block == at.block && head->index >= at.index);
    return in_order && head->length_tokens > 0;
}
/* The first `count` heads of such a run, one or more, are used up; all were served. */
void pd_lanes_consume_run(struct pd_lanes *lanes, uint32_t count);
/* The same out of turn: among lanes in their first pass that do have a head before the limit.
 * PD_DRAW_HEAD or PD_DRAW_DRY. */
int pd_lanes_peek_any(struct pd_lanes *lanes, const struct pd_supply *supply, uint64_t limit,
                      const struct pd_head **head, uint32_t *lane) PD_MUST_CHECK;
/* The head just peeked at is used up. slot_tokens is what it will take in packs, 0 where it was
 * left out. Out of turn, nobody is credited. */
void pd_lanes_consume(struct pd_lanes *lanes, uint32_t lane, uint64_t slot_tokens,
                      bool out_of_turn);
/* Reads one head again, at `at`. 0, PD_ECORRUPT where it is not there any more, or supply->read's
 * error. */
int pd_lanes_reread(struct pd_lanes *lanes, const struct pd_supply *supply, uint32_t lane,
                    struct pd_cursor at, const struct pd_head **head) PD_MUST_CHECK;

void pd_lanes_end(struct pd_lanes *lanes, uint32_t lane, uint64_t at);
void pd_lanes_end_all(struct pd_lanes *lanes, uint64_t at);
/* New weights; deficits start again from 0. */
void pd_lanes_reweigh(struct pd_lanes *lanes, const uint32_t *weights);
/* Whether the lane has passes to come, for which its heads must be kept. */
bool pd_lanes_repeats(const struct pd_lanes *lanes, uint32_t lane);

#endif
