/* Steps left out, as ranges.
 *
 * The sequencer keeps one set a job, durable in the job's row; serve keeps a copy, so that Fetch
 * passes over them. Sets are short, so everything is a walk or a binary search over one array. It
 * does not know what a step is. */
#include "server/step_ranges.h"

#include "base/check.h"

#include <stdlib.h>

void pd_step_ranges_fini(struct pd_step_ranges *set)
{
    free(set->ranges);
    *set = (struct pd_step_ranges){0};
}

static int reserve(struct pd_step_ranges *set, uint32_t count)
{
    if (count <= set->capacity)
        return 0;
    uint32_t capacity = set->capacity ? set->capacity : 4;
    while (capacity < count)
        capacity *= 2;
    struct pd_step_range *ranges = realloc(set->ranges, capacity * sizeof *ranges);
    if (!ranges)
        return PD_ENOMEM;
    set->ranges = ranges;
    set->capacity = capacity;
    return 0;
}

/* The first range that ends at or behind `step`; count where there is none. */
static uint32_t at_or_behind(const struct pd_step_ranges *set, uint64_t step)
{
    uint32_t low = 0, high = set->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (set->ranges[middle].last < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int pd_step_ranges_add(struct pd_step_ranges *set, uint64_t first, uint64_t last)
{
    PD_CHECK(first <= last && last < UINT64_MAX);
    /* Those that touch the new one, or are next to it, become part of it. */
    uint32_t from = at_or_behind(set, first > 0 ? first - 1 : 0), to = from;
    while (to < set->count && set->ranges[to].first <= last + 1)
        to++;
    if (from == to && set->count == PD_STEP_RANGES_MAX)
        return PD_ELIMIT;
    if (from == to && reserve(set, set->count + 1) != 0)
        return PD_ENOMEM;
    struct pd_step_range range = {first, last};
    if (from < to && set->ranges[from].first < first)
        range.first = set->ranges[from].first;
    if (from < to && set->ranges[to - 1].last > last)
        range.last = set->ranges[to - 1].last;
    memmove(&set->ranges[from + 1], &set->ranges[to], (set->count - to) * sizeof range);
    set->ranges[from] = range;
    set->count = set->count - (to - from) + 1;
    return 0;
}

bool pd_step_ranges_cover(const struct pd_step_ranges *set, uint64_t first, uint64_t last)
{
    uint32_t at = at_or_behind(set, last);
    return at < set->count && set->ranges[at].first <= first;
}

uint64_t pd_step_ranges_steps(const struct pd_step_ranges *set)
{
    uint64_t steps = 0;
    for (uint32_t i = 0; i < set->count; i++)
        steps += set->ranges[i].last - set->ranges[i].first + 1;
    return steps;
}

uint64_t pd_step_ranges_pass(const struct pd_step_ranges *set, uint64_t step)
{
    uint32_t at = at_or_behind(set, step);
    return at < set->count && set->ranges[at].first <= step ? set->ranges[at].last + 1 : step;
}

void pd_step_ranges_forget(struct pd_step_ranges *set, uint64_t step)
{
    uint32_t gone = at_or_behind(set, step);
    if (gone == 0)
        return;
    set->count -= gone;
    memmove(set->ranges, set->ranges + gone, set->count * sizeof *set->ranges);
}

int pd_step_ranges_copy(struct pd_step_ranges *to, const struct pd_step_ranges *from)
{
    if (reserve(to, from->count) != 0)
        return PD_ENOMEM;
    if (from->count > 0)
        memcpy(to->ranges, from->ranges, from->count * sizeof *from->ranges);
    to->count = from->count;
    return 0;
}

void pd_step_ranges_encode(const struct pd_step_ranges *set, struct pd_buf *buf)
{
    pd_buf_put_u32(buf, set->count);
    for (uint32_t i = 0; i < set->count; i++) {
        pd_buf_put_u64(buf, set->ranges[i].first);
        pd_buf_put_u64(buf, set->ranges[i].last);
    }
}

int pd_step_ranges_decode(struct pd_step_ranges *set, struct pd_reader *reader)
{
    uint32_t count = pd_reader_u32(reader);
    uint64_t least = 0;
    if (reader->failed || count > PD_STEP_RANGES_MAX)
        return PD_ECORRUPT;
    if (reserve(set, count) != 0)
        return PD_ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        struct pd_step_range range = {.first = pd_reader_u64(reader)};
        range.last = pd_reader_u64(reader);
        if (reader->failed || range.first < least || range.last < range.first ||
            range.last > UINT64_MAX - 2)
            return PD_ECORRUPT;
        set->ranges[set->count++] = range;
        least = range.last + 2; /* one step between two ranges is not in the set */
    }
    return 0;
}
