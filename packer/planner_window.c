/* The window's lists and sums.
 *
 * Refill inserts, fit removes; between them nothing else touches it. Owner: the planner's thread.
 * Invariant: an entry is in the arrival list, and in the fifo of its size unless dormant; `sizes`
 * has k exactly where fifo k is not empty. It decides nothing. */
#include "packer/planner_window_lists.h"

#include <stdlib.h>

/* Slots from `first` on, before those that are free already. */
static void free_list_fill(struct pd_window *window, uint32_t first)
{
    for (uint32_t i = first; i <= window->capacity; i++)
        window->nodes[i].newer = i < window->capacity ? i + 1 : window->free;
    window->free = first;
}

int pd_window_init(struct pd_window *window, uint32_t seq_len, uint32_t align, uint32_t capacity)
{
    uint32_t key_max = seq_len / align;
    *window = (struct pd_window){.align = align, .key_max = key_max, .free = PD_SLOT_NONE};
    bool bits = pd_bits_init(&window->sizes, key_max);
    if (!bits || pd_window_grow(window, capacity) != 0) {
        pd_window_fini(window);
        return PD_ENOMEM;
    }
    window->limit = capacity;
    window->nodes[0] = (struct pd_node){.older = PD_SLOT_NONE, .newer = PD_SLOT_NONE};
    for (uint32_t k = 0; k <= key_max; k++)
        window->links[k] = (struct pd_fifo_link){k, k};
    return 0;
}

/* `count` elements of `width` bytes; as it was, and *failed set, where memory is short. */
static void *lengthen(void *array, size_t count, size_t width, bool *failed)
{
    void *longer = realloc(array, count * width);
    if (longer)
        return longer;
    *failed = true;
    return array;
}

int pd_window_grow(struct pd_window *window, uint32_t capacity)
{
    uint32_t before = window->capacity;
    size_t count = (size_t)capacity + 1;
    bool failed = false;
    if (capacity <= before)
        return 0;
    window->nodes = lengthen(window->nodes, count, sizeof *window->nodes, &failed);
    window->entries = lengthen(window->entries, count, sizeof *window->entries, &failed);
    window->places = lengthen(window->places, count, sizeof *window->places, &failed);
    window->chosen = lengthen(window->chosen, count, sizeof *window->chosen, &failed);
    window->links =
        lengthen(window->links, window->key_max + count, sizeof *window->links, &failed);
    if (failed)
        return PD_ENOMEM;
    window->capacity = capacity;
    free_list_fill(window, before + 1);
    return 0;
}

void pd_window_fini(struct pd_window *window)
{
    free(window->nodes);
    free(window->entries);
    free(window->places);
    free(window->chosen);
    free(window->links);
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
static bool part_waits(const struct pd_window *window, uint32_t slot)
{
    uint32_t newest = window->nodes[0].older;
    return newest != PD_SLOT_NONE &&
           follows(&window->entries[newest].segment, &window->entries[slot].segment);
}

void pd_window_insert(struct pd_window *window)
{
    uint32_t slot = window->free, link = window->key_max + slot;
    const struct pd_segment *segment = &window->entries[slot].segment;
    if (segment->part == 0 || !part_waits(window, slot)) {
        pd_window_insert_whole(window);
        return;
    }
    pd_window_enter(window, slot, pd_window_key_of(window, segment->slot_tokens));
    window->links[link] = (struct pd_fifo_link){link, link};
}

/* Behind the last entry of this size that is not newer than the part that wakes up. */
static struct pd_fifo_link fifo_place(const struct pd_window *window, uint32_t slot)
{
    uint32_t link = window->links[window->nodes[slot].key].older;
    while (link > window->key_max &&
           pd_window_age(window, link - window->key_max) < pd_window_age(window, slot))
        link = window->links[link].older;
    return (struct pd_fifo_link){link, window->links[link].newer};
}

void pd_window_wake(struct pd_window *window, uint32_t slot, uint32_t next)
{
    if (next == PD_SLOT_NONE || !pd_window_dormant(window, next))
        return;
    if (follows(&window->entries[slot].segment, &window->entries[next].segment))
        pd_window_enqueue(window, next, window->nodes[next].key, fifo_place(window, next));
}

void pd_window_remove(struct pd_window *window, uint32_t slot)
{
    if (!pd_window_dormant(window, slot))
        pd_window_dequeue(window, slot, window->nodes[slot].key);
    if (window->entries[slot].segment.part_count > 1)
        pd_window_wake(window, slot, window->nodes[slot].newer);
    pd_window_leave(window, slot);
}
