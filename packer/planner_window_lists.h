/* Into the window and out of it. Header only: both run once per sample. Owner's thread. */
#ifndef PD_PACKER_PLANNER_WINDOW_LISTS_H
#define PD_PACKER_PLANNER_WINDOW_LISTS_H

#include "base/check.h"
#include "packer/planner_window.h"

/* In loops over a copy of the window that no call is given, its numbers stay in registers. */
#define PD_WINDOW_INLINE static inline __attribute__((always_inline))

#define PD_WINDOW_MEAN_SHIFT 10 /* the running mean looks back over about 2^10 entries */

/* Makes entries[pd_window_slot()], whatever it is, the newest entry. */
void pd_window_insert(struct pd_window *window);
/* Takes an entry out; entries[slot] stays readable until the next insert. */
void pd_window_remove(struct pd_window *window, uint32_t slot);
/* `slot` is about to leave: the part behind it, if it waited for it, may be chosen now. */
void pd_window_wake(struct pd_window *window, uint32_t slot, uint32_t next) __attribute__((cold));

/* Into the fifo of its size, between these two links. */
static inline void pd_window_enqueue(struct pd_window *window, uint32_t slot, uint32_t key,
                                     struct pd_fifo_link between)
{
    uint32_t link = window->key_max + slot;
    window->links[link] = between;
    window->links[between.older].newer = link;
    window->links[between.newer].older = link;
    pd_bits_set(&window->sizes, key);
}

static inline void pd_window_dequeue(struct pd_window *window, uint32_t slot, uint32_t key)
{
    struct pd_fifo_link link = window->links[window->key_max + slot];
    window->links[link.older].newer = link.newer;
    window->links[link.newer].older = link.older;
    pd_bits_clear_if(&window->sizes, key, link.older == link.newer); /* only its end is left */
}

/* Exact means of the first 2^PD_WINDOW_MEAN_SHIFT keys and their squares, exponential ones
 * afterwards. */
static inline void pd_window_mean_update(struct pd_window *window, uint64_t key)
{
    int64_t mean = (int64_t)window->mean_fixed, square = (int64_t)window->square_fixed;
    int64_t mean_change = (int64_t)(key << 16) - mean;
    int64_t square_change = (int64_t)(key * key << 16) - square;
    if (window->entered >> PD_WINDOW_MEAN_SHIFT) {
        mean_change >>= PD_WINDOW_MEAN_SHIFT;
        square_change >>= PD_WINDOW_MEAN_SHIFT;
    } else {
        mean_change /= (int64_t)(window->entered + 1);
        square_change /= (int64_t)(window->entered + 1);
    }
    window->mean_fixed = (uint64_t)(mean + mean_change);
    window->square_fixed = (uint64_t)(square + square_change);
}

/* entries[slot], the place of pd_window_slot, to the end of the arrival list. */
PD_WINDOW_INLINE void pd_window_enter(struct pd_window *window, uint32_t slot, uint32_t key)
{
    struct pd_node *nodes = window->nodes;
    uint32_t newest = nodes[0].older;
    PD_CHECK(slot != PD_SLOT_NONE && key > 0 && key <= window->key_max);
    window->free = nodes[slot].newer;
    nodes[slot] = (struct pd_node){(uint32_t)window->entered, key, newest, PD_SLOT_NONE};
    nodes[newest].newer = slot;
    nodes[0].older = slot;
    window->places[slot].bin = PD_BIN_NONE;
    pd_window_mean_update(window, key);
    window->entered++;
    window->count++;
    window->keys += key;
    window->payload_bytes += window->entries[slot].payload_bytes;
}

/* Makes entries[pd_window_slot()], a sample that is not split, the newest entry. */
PD_WINDOW_INLINE void pd_window_insert_whole(struct pd_window *window)
{
    uint32_t slot = window->free;
    uint32_t key = pd_window_key_of(window, window->entries[slot].segment.slot_tokens);
    pd_window_enter(window, slot, key);
    pd_window_enqueue(window, slot, key, (struct pd_fifo_link){window->links[key].older, key});
}

/* The rest of an entry that is in no fifo any more; entries[slot] stays readable until the next
 * insert. */
PD_WINDOW_INLINE void pd_window_leave(struct pd_window *window, uint32_t slot)
{
    struct pd_node *nodes = window->nodes, node = nodes[slot];
    nodes[node.older].newer = node.newer;
    nodes[node.newer].older = node.older;
    nodes[slot].newer = window->free;
    window->free = slot;
    window->count--;
    window->keys -= node.key;
    window->payload_bytes -= window->entries[slot].payload_bytes;
}

#endif
