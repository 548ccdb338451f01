/* The window: the candidates of the next pack, by arrival and by length.
 *
 *   arrival   nodes[0]  <-> oldest <-> ... <-> newest <-> nodes[0]
 *   fifo k    links[k]  <-> oldest <-> ... <-> newest <-> links[k]   of slot size k; sizes are
 *                                                                    slots in units of seg_align
 *   sizes     the set of k with entries in fifo k
 *
 * Places are numbered from 1; the entry in place s has links[key_max + s]. Both lists are rings
 * closed by a link of no entry, so that entries come and go without asking where in the list they
 * are: with some 1,000 entries on as many sizes, whether a fifo is empty is as good as random, and
 * a branch on it is missed every other time.
 *
 * A part of a split sample whose predecessor is still in the window is *dormant*: in the arrival
 * list, in no fifo, so parts leave in order. Every list is in arrival order, so the lists are a
 * function of the entries alone. Memory O(W + L). Owner's thread. */
#ifndef PD_PACKER_PLANNER_WINDOW_H
#define PD_PACKER_PLANNER_WINDOW_H

#include "packer/plan.h"
#include "packer/planner_bits.h"

#define PD_SLOT_NONE 0u
#define PD_BIN_NONE UINT32_MAX

/* A sample, or a part of one, as it will stand in a pack. */
struct pd_entry {
    struct pd_segment segment;
    uint64_t payload_bytes;
    uint32_t lane;
    bool cuttable; /* in the shuffle buffer only: to be split when it leaves */
    bool dropped;  /* in the shuffle buffer only: skipped by a record, leaves into nothing */
};

/* 16 bytes, so that a window of 1,024 leaves room in the first-level cache. */
struct pd_node {
    uint32_t entered; /* how many entered the window before it, modulo 2^32 */
    uint32_t key;
    uint32_t older, newer; /* in order of arrival; free places: `newer` is the next free one */
};

/* In a fifo; numbers of links. An entry outside the fifos is linked to itself. */
struct pd_fifo_link {
    uint32_t older, newer;
};

/* Of the solver. */
struct pd_place {
    uint32_t bin, bin_next;
};

struct pd_window {
    uint32_t align, key_max;
    uint32_t capacity;        /* places there are */
    uint32_t limit;           /* entries the refill stops at; more stay where it was lowered */
    struct pd_node *nodes;    /* capacity + 1 each */
    struct pd_entry *entries; /* beside nodes: the fit reads them when it has chosen */
    struct pd_place *places;
    uint32_t *chosen;           /* by the fit at work */
    struct pd_fifo_link *links; /* key_max + capacity + 1 */
    struct pd_bits sizes;
    uint32_t free, count;
    uint64_t keys, payload_bytes; /* sums over the entries */
    uint64_t entered;             /* entries that ever came in */
    uint64_t mean_fixed;          /* running mean of keys, times 65,536 */
    uint64_t square_fixed;        /* running mean of their squares, times 65,536 */
};

/* PD_ENOMEM. align divides seq_len. */
int pd_window_init(struct pd_window *window, uint32_t seq_len, uint32_t align,
                   uint32_t capacity) PD_MUST_CHECK;
void pd_window_fini(struct pd_window *window);

/* At least `capacity` places. PD_ENOMEM: as before. */
int pd_window_grow(struct pd_window *window, uint32_t capacity) PD_MUST_CHECK;
/* How many entries the refill may still put in. */
static inline uint32_t pd_window_room(const struct pd_window *window)
{
    return window->count < window->limit ? window->limit - window->count : 0;
}

/* The slot the next insert will use: fill entries[slot], then insert. The window must not be
 * full. */
static inline uint32_t pd_window_slot(const struct pd_window *window)
{
    return window->free;
}
/* PD_SLOT_NONE: the window is empty. */
static inline uint32_t pd_window_oldest(const struct pd_window *window)
{
    return window->nodes[0].newer;
}
/* How many entered after it. */
static inline uint32_t pd_window_age(const struct pd_window *window, uint32_t slot)
{
    return (uint32_t)window->entered - window->nodes[slot].entered - 1;
}
static inline bool pd_window_dormant(const struct pd_window *window, uint32_t slot)
{
    return window->links[window->key_max + slot].newer == window->key_max + slot;
}
/* The slot of a link, PD_SLOT_NONE for the one that closes a fifo. */
static inline uint32_t pd_window_linked(const struct pd_window *window, uint32_t link)
{
    return link > window->key_max ? link - window->key_max : PD_SLOT_NONE;
}
/* Oldest entry of size `key`, PD_SLOT_NONE for none. */
static inline uint32_t pd_window_first(const struct pd_window *window, uint32_t key)
{
    return pd_window_linked(window, window->links[key].newer);
}
/* The entry behind it in its fifo, PD_SLOT_NONE for none. */
static inline uint32_t pd_window_next_of_size(const struct pd_window *window, uint32_t slot)
{
    return pd_window_linked(window, window->links[window->key_max + slot].newer);
}
static inline uint32_t pd_window_key_of(const struct pd_window *window, uint32_t tokens)
{
    return window->align == 1 ? tokens : (tokens + window->align - 1) / window->align;
}
static inline uint32_t pd_window_mean(const struct pd_window *window)
{
    return (uint32_t)(window->mean_fixed >> 16);
}

#endif
