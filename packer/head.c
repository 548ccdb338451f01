/* Arithmetic on the loss runs of a head.
 *
 * Used by the cutter (planner) and the layout; pure, any thread. Invariant: ranges past the runs'
 * end are off. It does not know that the first token of a segment is no target: callers leave that
 * one out. */
#include "packer/head.h"

static uint32_t overlap(uint64_t a_from, uint64_t a_to, uint32_t from, uint32_t to)
{
    uint64_t low = a_from > from ? a_from : from;
    uint64_t high = a_to < to ? a_to : to;
    return high > low ? (uint32_t)(high - low) : 0;
}

uint32_t pd_loss_runs_count_on(struct pd_loss_runs runs, struct pd_loss_cursor *cursor,
                               uint32_t from, uint32_t to)
{
    if (!runs.lengths)
        return to > from ? to - from : 0;
    uint32_t count = 0;
    while (cursor->run < runs.count) {
        uint64_t end = (uint64_t)cursor->start_tokens + runs.lengths[cursor->run];
        if (cursor->run & 1)
            count += overlap(cursor->start_tokens, end, from, to);
        if (end > to || end > UINT32_MAX)
            break;
        cursor->start_tokens = (uint32_t)end;
        cursor->run++;
    }
    return count;
}

uint32_t pd_loss_runs_count(struct pd_loss_runs runs, uint32_t from, uint32_t to)
{
    struct pd_loss_cursor cursor = {0};
    return pd_loss_runs_count_on(runs, &cursor, from, to);
}
