/* Lane choice, cursors, ends and passes.
 *
 * The refill peeks, decides, consumes. Owner: the planner's thread. Invariant: the choice depends
 * on what was drawn before and on the records at their places, never on what happens to be
 * readable: a due lane without heads is reported, not passed over. It does not know the window. */
#include "packer/planner_lanes.h"

#include "base/check.h"

#include <stdlib.h>

static const struct pd_lane_rules *rules_of(const struct pd_lanes *lanes, uint32_t lane)
{
    return &lanes->rules->lanes[lanes->ordered ? 0 : lane];
}

int pd_lanes_init(struct pd_lanes *lanes, const struct pd_rules *rules)
{
    *lanes = (struct pd_lanes){.count = rules->lane_count,
                               .active_count = rules->lane_count,
                               .turn = rules->lane_count - 1,
                               .ordered = rules->merge == PD_MERGE_ORDERED,
                               .feed_end_at = PD_PLACE_NEVER,
                               .rules = rules};
    lanes->lane = calloc(lanes->count, sizeof *lanes->lane);
    if (!lanes->lane)
        return PD_ENOMEM;
    for (uint32_t i = 0; i < lanes->count; i++)
        lanes->lane[i] = (struct pd_lane){.end_at = PD_PLACE_NEVER,
                                          .first_block = PD_PLACE_NEVER,
                                          .weight = rules_of(lanes, i)->weight,
                                          .next = (i + 1) % lanes->count,
                                          .active = true};
    return 0;
}

void pd_lanes_fini(struct pd_lanes *lanes)
{
    free(lanes->lane);
    *lanes = (struct pd_lanes){0};
}

void pd_lanes_forget(struct pd_lanes *lanes)
{
    lanes->heads_left = 0;
}

/* A lane of weight 0 is drawn only when no other is active. */
static bool heavier(const struct pd_lane *a, const struct pd_lane *b)
{
    if ((a->weight > 0) != (b->weight > 0))
        return a->weight > 0;
    return a->deficit > b->deficit;
}

static uint32_t due_lane(const struct pd_lanes *lanes)
{
    if (lanes->ordered)
        return lanes->lane[lanes->turn].next;
    if (lanes->count == 1)
        return 0;
    uint32_t due = PD_LANE_NONE;
    for (uint32_t i = 0; i < lanes->count; i++)
        if (lanes->lane[i].active &&
            (due == PD_LANE_NONE || heavier(&lanes->lane[i], &lanes->lane[due])))
            due = i;
    return due;
}

static int read_heads(struct pd_lanes *lanes, const struct pd_supply *supply, uint32_t lane,
                      struct pd_cursor at)
{
    lanes->heads_left = 0;
    int count = supply->read(supply->ctx, lane, at, &lanes->heads);
    if (count < 0)
        return count;
    if (count > 0 && !pd_lanes_sound(lanes->heads, at))
        return PD_ECORRUPT;
    lanes->heads_left = (uint32_t)count;
    lanes->heads_lane = lane;
    return 0;
}

/* The lane's next head; *head is NULL where none is there. */
static int read_lane(struct pd_lanes *lanes, const struct pd_supply *supply, uint32_t lane,
                     const struct pd_head **head)
{
    struct pd_cursor at = lanes->lane[lane].cursor;
    *head = NULL;
    if (lanes->heads_left == 0 || lanes->heads_lane != lane) {
        int rc = read_heads(lanes, supply, lane, at);
        if (rc != 0 || lanes->heads_left == 0)
            return rc;
    }
    *head = lanes->heads;
    return pd_lanes_sound(*head, at) ? 0 : PD_ECORRUPT;
}

static void deactivate(struct pd_lanes *lanes, uint32_t lane)
{
    lanes->lane[lane].active = false;
    lanes->lane[lane].deficit = 0;
    lanes->active_count--;
    if (!lanes->ordered)
        return;
    PD_CHECK(lanes->lane[lanes->turn].next == lane);
    lanes->lane[lanes->turn].next = lanes->lane[lane].next;
}

bool pd_lanes_repeats(const struct pd_lanes *lanes, uint32_t lane)
{
    const struct pd_lane_rules *rules = rules_of(lanes, lane);
    return lanes->lane[lane].active && rules->on_end == PD_ON_END_REPEAT &&
           lanes->lane[lane].pass + 1 < rules->passes_max;
}

/* The due lane has no head left and its end is known. A pass that served nothing would repeat for
 * nothing. */
static void exhaust(struct pd_lanes *lanes, uint32_t lane)
{
    struct pd_lane *at = &lanes->lane[lane];
    if (pd_lanes_repeats(lanes, lane) && at->yielded) {
        at->pass++;
        at->cursor = (struct pd_cursor){0};
        lanes->heads_left = 0;
        at->yielded = false;
        return;
    }
    if (rules_of(lanes, lane)->on_end == PD_ON_END_STOP)
        lanes->stopped = true;
    deactivate(lanes, lane);
}

int pd_lanes_peek(struct pd_lanes *lanes, const struct pd_supply *supply, uint64_t limit,
                  const struct pd_head **head, uint32_t *lane)
{
    while (!lanes->stopped && lanes->active_count > 0) {
        uint32_t due = *lane = due_lane(lanes);
        struct pd_lane *at = &lanes->lane[due];
        int rc = read_lane(lanes, supply, due, head);
        if (rc != 0)
            return rc;
        if (*head && (*head)->block < at->end_at && (*head)->block < limit)
            return PD_DRAW_HEAD;
        if (at->end_at <= limit && at->end_at != PD_PLACE_NEVER)
            exhaust(lanes, due);
        else
            return limit != PD_PLACE_NEVER ? PD_DRAW_DRY : PD_DRAW_BLOCKED;
    }
    *lane = PD_LANE_NONE;
    if (lanes->stopped || (lanes->feed_end_at <= limit && lanes->feed_end_at != PD_PLACE_NEVER))
        return PD_DRAW_ENDED;
    return limit != PD_PLACE_NEVER ? PD_DRAW_DRY : PD_DRAW_BLOCKED;
}

/* Whether the lane has a head before the limit in its first pass: then *head is set. */
static int probe(struct pd_lanes *lanes, const struct pd_supply *supply, uint64_t limit,
                 uint32_t lane, const struct pd_head **head)
{
    const struct pd_lane *at = &lanes->lane[lane];
    *head = NULL;
    if (!at->active || at->pass > 0)
        return 0;
    int rc = read_lane(lanes, supply, lane, head);
    if (rc == 0 && *head && ((*head)->block >= at->end_at || (*head)->block >= limit))
        *head = NULL;
    return rc;
}

int pd_lanes_peek_any(struct pd_lanes *lanes, const struct pd_supply *supply, uint64_t limit,
                      const struct pd_head **head, uint32_t *lane)
{
    uint32_t best = PD_LANE_NONE;
    uint32_t at = lanes->ordered ? lanes->turn : lanes->count - 1;
    for (uint32_t i = 0; i < lanes->count && !lanes->stopped; i++) {
        at = (at + 1) % lanes->count;
        int rc = probe(lanes, supply, limit, at, head);
        if (rc != 0)
            return rc;
        if (!*head)
            continue;
        if (best == PD_LANE_NONE ||
            (!lanes->ordered && heavier(&lanes->lane[at], &lanes->lane[best])))
            best = at;
        if (lanes->ordered)
            break;
    }
    *lane = best;
    if (best == PD_LANE_NONE)
        return PD_DRAW_DRY;
    int rc = probe(lanes, supply, limit, best, head);
    return rc != 0 ? rc : *head ? PD_DRAW_HEAD : PD_ECORRUPT;
}

static void charge(struct pd_lanes *lanes, uint32_t lane, uint64_t slot_tokens)
{
    uint64_t weights = 0;
    for (uint32_t i = 0; i < lanes->count; i++) {
        struct pd_lane *at = &lanes->lane[i];
        if (!at->active)
            continue;
        weights += at->weight;
        at->deficit += (int64_t)(slot_tokens * at->weight);
    }
    lanes->lane[lane].deficit -= (int64_t)(slot_tokens * weights);
}

void pd_lanes_consume(struct pd_lanes *lanes, uint32_t lane, uint64_t slot_tokens, bool out_of_turn)
{
    PD_CHECK(lanes->heads_left > 0 && lanes->heads_lane == lane);
    struct pd_lane *at = &lanes->lane[lane];
    if (at->first_block == PD_PLACE_NEVER)
        at->first_block = lanes->heads->block;
    at->cursor.block = lanes->heads->block;
    at->cursor.index = lanes->heads->index + 1;
    at->yielded |= slot_tokens > 0;
    lanes->heads++;
    lanes->heads_left--;
    if (lanes->ordered)
        lanes->turn = lane;
    else if (lanes->count > 1 && !out_of_turn)
        charge(lanes, lane, slot_tokens);
}

int pd_lanes_run(struct pd_lanes *lanes, const struct pd_supply *supply, uint64_t limit,
                 struct pd_lanes_run *run)
{
    const struct pd_lane *lane = &lanes->lane[0];
    run->count = 0;
    if (lanes->count > 1 || lanes->stopped || !lane->active)
        return 0;
    int rc = lanes->heads_left > 0 ? 0 : read_heads(lanes, supply, 0, lane->cursor);
    *run = (struct pd_lanes_run){.heads = lanes->heads,
                                 .count = lanes->heads_left,
                                 .pass = lane->pass,
                                 .before = limit < lane->end_at ? limit : lane->end_at,
                                 .at = lane->cursor};
    return rc;
}

void pd_lanes_consume_run(struct pd_lanes *lanes, uint32_t count)
{
    PD_CHECK(count > 0 && count <= lanes->heads_left);
    struct pd_lane *at = &lanes->lane[0];
    const struct pd_head *last = &lanes->heads[count - 1];
    if (at->first_block == PD_PLACE_NEVER)
        at->first_block = lanes->heads->block;
    at->cursor.block = last->block;
    at->cursor.index = last->index + 1;
    at->yielded = true;
    lanes->heads += count;
    lanes->heads_left -= count;
    if (lanes->ordered)
        lanes->turn = 0;
}

int pd_lanes_reread(struct pd_lanes *lanes, const struct pd_supply *supply, uint32_t lane,
                    struct pd_cursor at, const struct pd_head **head)
{
    int rc = read_heads(lanes, supply, lane, at);
    if (rc != 0)
        return rc;
    *head = lanes->heads;
    bool same = lanes->heads_left > 0 && (*head)->block == at.block && (*head)->index == at.index;
    lanes->heads_left = 0; /* they do not start at the cursor */
    return same ? 0 : PD_ECORRUPT;
}

void pd_lanes_end(struct pd_lanes *lanes, uint32_t lane, uint64_t at)
{
    if (at < lanes->lane[lane].end_at)
        lanes->lane[lane].end_at = at;
}

void pd_lanes_end_all(struct pd_lanes *lanes, uint64_t at)
{
    for (uint32_t i = 0; i < lanes->count; i++)
        pd_lanes_end(lanes, i, at);
    if (at < lanes->feed_end_at)
        lanes->feed_end_at = at;
}

void pd_lanes_reweigh(struct pd_lanes *lanes, const uint32_t *weights)
{
    for (uint32_t i = 0; i < lanes->count; i++) {
        lanes->lane[i].weight = weights[i];
        lanes->lane[i].deficit = 0;
    }
}
