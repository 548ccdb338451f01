/* The window's lists and sums.
 *
 * Refill inserts, fit removes; between them nothing else touches it. Owner: the planner's thread.
 * Invariant: an entry is in the arrival list, and in the fifo of its size unless dormant; `sizes`
 * has k exactly where fifo k is not empty. It decides nothing. */
#include "packer/planner_window.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* Kept out of the callers that run for every sample: parts of a split are rare. */
#define RARE __attribute__((noinline, cold))

#define MEAN_SHIFT 10 /* the running mean looks back over about 2^10 entries */

/* Slots from `first` on, before those that are free already. */
static void free_list_fill(struct pd_window *window, uint32_t first)
{
    for (uint32_t i = first; i < window->capacity; i++)
        window->nodes[i].newer = i + 1 < window->capacity ? i + 1 : window->free;
    window->free = first;
}

int pd_window_init(struct pd_window *window, uint32_t seq_len, uint32_t align, uint32_t capacity)
{
    uint32_t key_max = seq_len / align;
    *window = (struct pd_window){.align = align,
                                 .key_max = key_max,
                                 .capacity = capacity,
                                 .limit = capacity,
                                 .free = PD_SLOT_NONE,
                                 .oldest = PD_SLOT_NONE,
                                 .newest = PD_SLOT_NONE};
    window->nodes = calloc(capacity, sizeof *window->nodes);
    window->entries = calloc(capacity, sizeof *window->entries);
    window->fifos = malloc(((size_t)key_max + 1) * sizeof *window->fifos);
    bool bits = pd_bits_init(&window->sizes, key_max);
    if (!window->nodes || !window->entries || !window->fifos || !bits) {
        pd_window_fini(window);
        return PD_ENOMEM;
    }
    for (uint32_t k = 0; k <= key_max; k++)
        window->fifos[k] = (struct pd_fifo){PD_SLOT_NONE, PD_SLOT_NONE};
    free_list_fill(window, 0);
    return 0;
}

int pd_window_grow(struct pd_window *window, uint32_t capacity)
{
    uint32_t before = window->capacity;
    if (capacity <= before)
        return 0;
    struct pd_node *nodes = realloc(window->nodes, capacity * sizeof *nodes);
    if (!nodes)
        return PD_ENOMEM;
    window->nodes = nodes;
    struct pd_entry *entries = realloc(window->entries, capacity * sizeof *entries);
    if (!entries)
        return PD_ENOMEM;
    window->entries = entries;
    memset(&nodes[before], 0, (capacity - before) * sizeof *nodes);
    memset(&entries[before], 0, (capacity - before) * sizeof *entries);
    window->capacity = capacity;
    free_list_fill(window, before);
    return 0;
}

void pd_window_fini(struct pd_window *window)
{
    free(window->nodes);
    free(window->entries);
    free(window->fifos);
    pd_bits_fini(&window->sizes);
    *window = (struct pd_window){0};
}

/* The next part of the same sample in the same pass. Parts enter one after the other. */
static bool follows(const struct pd_segment *part, const struct pd_segment *next)
{
    return next->part == part->part + 1 && next->block == part->block &&
           next->index == part->index && next->stream == part->stream && next->pass == part->pass;
}

/* Whether the part that is about to enter has the part before it in the window: then that one is
 * the newest. */
RARE static bool part_waits(const struct pd_window *window, uint32_t slot)
{
    return window->newest != PD_SLOT_NONE &&
           follows(&window->entries[window->newest].segment, &window->entries[slot].segment);
}

static void fifo_append(struct pd_window *window, uint32_t slot, uint32_t key)
{
    struct pd_node *node = &window->nodes[slot];
    struct pd_fifo *fifo = &window->fifos[key];
    uint32_t newest = fifo->newest;
    fifo->newest = slot;
    node->fifo_older = newest;
    node->fifo_newer = PD_SLOT_NONE;
    if (newest != PD_SLOT_NONE) {
        window->nodes[newest].fifo_newer = slot;
        return;
    }
    fifo->oldest = slot;
    pd_bits_set(&window->sizes, key);
}

/* Behind `before`, which is PD_SLOT_NONE for the front. */
static void fifo_insert(struct pd_window *window, uint32_t slot, uint32_t before)
{
    struct pd_node *node = &window->nodes[slot];
    struct pd_fifo *fifo = &window->fifos[node->key];
    uint32_t after = before == PD_SLOT_NONE ? fifo->oldest : window->nodes[before].fifo_newer;
    if (fifo->oldest == PD_SLOT_NONE)
        pd_bits_set(&window->sizes, node->key);
    node->fifo_older = before;
    node->fifo_newer = after;
    *(before == PD_SLOT_NONE ? &fifo->oldest : &window->nodes[before].fifo_newer) = slot;
    *(after == PD_SLOT_NONE ? &fifo->newest : &window->nodes[after].fifo_older) = slot;
}

/* The last entry of this size that is not newer than the part that wakes up. */
static uint32_t fifo_place(const struct pd_window *window, uint32_t slot)
{
    const struct pd_node *node = &window->nodes[slot];
    uint32_t before = window->fifos[node->key].newest;
    while (before != PD_SLOT_NONE && pd_window_age(window, before) < pd_window_age(window, slot))
        before = window->nodes[before].fifo_older;
    return before;
}

static void fifo_unlink(struct pd_window *window, uint32_t slot)
{
    const struct pd_node *node = &window->nodes[slot];
    struct pd_fifo *fifo = &window->fifos[node->key];
    uint32_t before = node->fifo_older, after = node->fifo_newer;
    if (before != PD_SLOT_NONE)
        window->nodes[before].fifo_newer = after;
    else
        fifo->oldest = after;
    if (after != PD_SLOT_NONE)
        window->nodes[after].fifo_older = before;
    else
        fifo->newest = before;
    if (before == PD_SLOT_NONE && after == PD_SLOT_NONE)
        pd_bits_clear(&window->sizes, node->key);
}

/* Exact means of the first 2^MEAN_SHIFT keys and their squares, exponential ones afterwards. */
static void means_update(struct pd_window *window, uint64_t key)
{
    int64_t mean = (int64_t)window->mean_fixed, square = (int64_t)window->square_fixed;
    int64_t mean_change = (int64_t)(key << 16) - mean;
    int64_t square_change = (int64_t)(key * key << 16) - square;
    if (window->entered >> MEAN_SHIFT) {
        mean_change >>= MEAN_SHIFT;
        square_change >>= MEAN_SHIFT;
    } else {
        mean_change /= (int64_t)(window->entered + 1);
        square_change /= (int64_t)(window->entered + 1);
    }
    window->mean_fixed = (uint64_t)(mean + mean_change);
    window->square_fixed = (uint64_t)(square + square_change);
}

void pd_window_insert(struct pd_window *window)
{
    uint32_t slot = window->free;
    PD_CHECK(slot != PD_SLOT_NONE);
    struct pd_node *node = &window->nodes[slot];
    struct pd_entry *entry = &window->entries[slot];
    uint32_t key = pd_window_key_of(window, entry->segment.slot_tokens);
    PD_CHECK(key > 0 && key <= window->key_max);
    window->free = node->newer;
    node->entered = (uint32_t)window->entered;
    node->key = key;
    node->older = window->newest;
    node->newer = PD_SLOT_NONE;
    node->bin = PD_BIN_NONE;
    bool dormant = entry->segment.part > 0 && part_waits(window, slot);
    node->fifo_older = PD_SLOT_DORMANT;
    *(window->newest == PD_SLOT_NONE ? &window->oldest : &window->nodes[window->newest].newer) =
        slot;
    window->newest = slot;
    means_update(window, key);
    window->entered++;
    window->count++;
    window->keys += key;
    window->payload_bytes += entry->payload_bytes;
    if (!dormant)
        fifo_append(window, slot, key);
}

/* The part behind `slot`, if it waited for it, may be chosen now. */
RARE static void wake_follower(struct pd_window *window, uint32_t slot, uint32_t next)
{
    if (next == PD_SLOT_NONE || !pd_window_dormant(window, next))
        return;
    if (!follows(&window->entries[slot].segment, &window->entries[next].segment))
        return;
    fifo_insert(window, next, fifo_place(window, next));
}

void pd_window_remove(struct pd_window *window, uint32_t slot)
{
    struct pd_node *node = &window->nodes[slot];
    uint32_t older = node->older, newer = node->newer;
    if (!pd_window_dormant(window, slot))
        fifo_unlink(window, slot);
    *(older == PD_SLOT_NONE ? &window->oldest : &window->nodes[older].newer) = newer;
    *(newer == PD_SLOT_NONE ? &window->newest : &window->nodes[newer].older) = older;
    window->count--;
    window->keys -= node->key;
    window->payload_bytes -= window->entries[slot].payload_bytes;
    if (window->entries[slot].segment.part_count > 1)
        wake_follower(window, slot, newer);
    node->newer = window->free;
    window->free = slot;
}
