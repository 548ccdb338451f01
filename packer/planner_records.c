/* Three bounded arrays and their order.
 *
 * Control records come in through the planner, the refill and the fit ask. Owner: the planner's
 * thread. Invariant: flushes by place, changes in log order, skips by (stream, seq) without
 * repeats. When full, the record is refused (PD_ELIMIT) and its writer must wait. */
#include "packer/planner_records.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

void pd_records_fini(struct pd_records *records)
{
    free(records->flushes);
    free(records->changes);
    free(records->skips);
    *records = (struct pd_records){0};
}

/* Room for one more item of `size` bytes; the array may move. */
static int reserve(void **items, uint32_t count, uint32_t *capacity, size_t size)
{
    if (count == PD_RECORDS_MAX)
        return PD_ELIMIT;
    if (count < *capacity)
        return 0;
    uint32_t grown = *capacity ? 2 * *capacity : 16;
    void *moved = realloc(*items, grown * size);
    if (!moved)
        return PD_ENOMEM;
    *items = moved;
    *capacity = grown;
    return 0;
}

int pd_records_add_flush(struct pd_records *records, const struct pd_flush *flush)
{
    void *items = records->flushes;
    int rc = reserve(&items, records->flush_count, &records->flush_capacity, sizeof *flush);
    records->flushes = items;
    if (rc == 0)
        records->flushes[records->flush_count++] = *flush;
    return rc;
}

int pd_records_add_change(struct pd_records *records, const struct pd_change *change)
{
    void *items = records->changes;
    int rc = reserve(&items, records->change_count, &records->change_capacity, sizeof *change);
    records->changes = items;
    if (rc == 0)
        records->changes[records->change_count++] = *change;
    return rc;
}

static bool before(struct pd_skip a, struct pd_skip b)
{
    return a.stream != b.stream ? a.stream < b.stream : a.seq < b.seq;
}

/* First skip that is not before `skip`. */
static uint32_t lower_bound(const struct pd_records *records, struct pd_skip skip)
{
    uint32_t low = 0, high = records->skip_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (before(records->skips[middle], skip))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool pd_records_skips(const struct pd_records *records, uint32_t stream, uint64_t seq)
{
    if (records->skip_count == 0)
        return false;
    struct pd_skip skip = {stream, seq};
    uint32_t at = lower_bound(records, skip);
    return at < records->skip_count && !before(skip, records->skips[at]);
}

int pd_records_add_skip(struct pd_records *records, struct pd_skip skip)
{
    if (pd_records_skips(records, skip.stream, skip.seq))
        return 0;
    void *items = records->skips;
    int rc = reserve(&items, records->skip_count, &records->skip_capacity, sizeof skip);
    records->skips = items;
    if (rc != 0)
        return rc;
    uint32_t at = lower_bound(records, skip);
    memmove(&records->skips[at + 1], &records->skips[at], (records->skip_count - at) * sizeof skip);
    records->skips[at] = skip;
    records->skip_count++;
    return 0;
}

void pd_records_retire(struct pd_records *records, uint32_t stream, uint64_t seq)
{
    if (records->skip_count == 0)
        return;
    uint32_t from = lower_bound(records, (struct pd_skip){stream, 0});
    uint32_t to = lower_bound(records, (struct pd_skip){stream, seq});
    to += to < records->skip_count && records->skips[to].stream == stream &&
          records->skips[to].seq == seq;
    memmove(&records->skips[from], &records->skips[to],
            (records->skip_count - to) * sizeof *records->skips);
    records->skip_count -= to - from;
}

void pd_records_pop_flush(struct pd_records *records)
{
    PD_CHECK(records->flush_count > 0);
    records->flush_count--;
    memmove(records->flushes, records->flushes + 1,
            records->flush_count * sizeof *records->flushes);
}

void pd_records_flushed(struct pd_records *records)
{
    PD_CHECK(records->flush_count > 0);
    struct pd_flush *flush = &records->flushes[0];
    flush->made++;
    if (flush->packs > 0 && flush->made >= flush->packs)
        pd_records_pop_flush(records);
}

void pd_records_pop_change(struct pd_records *records, uint32_t index)
{
    PD_CHECK(index < records->change_count);
    records->change_count--;
    memmove(&records->changes[index], &records->changes[index + 1],
            (records->change_count - index) * sizeof *records->changes);
}
