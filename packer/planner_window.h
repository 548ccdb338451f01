/* The window: the candidates of the next pack, by arrival and by length.
 *
 *   arrival   oldest -> ... -> newest                  (list through nodes)
 *   fifo[k]   oldest -> ... -> newest of slot size k   (list through nodes; keys are slots in
 *                                                      units of seg_align)
 *   sizes     the set of k with a fifo
 *
 * A part of a split sample whose predecessor is still in the window is *dormant*: in the arrival
 * list, in no fifo, so parts leave in order. Every list is in arrival order, so the lists are a
 * function of the entries alone. Memory O(W + L). Owner's thread. */
#ifndef PD_PACKER_PLANNER_WINDOW_H
#define PD_PACKER_PLANNER_WINDOW_H

#include "packer/plan.h"
#include "packer/planner_bits.h"

#define PD_SLOT_NONE UINT32_MAX
#define PD_SLOT_DORMANT (UINT32_MAX - 1)
#define PD_BIN_NONE UINT32_MAX

/* A sample, or a part of one, as it will stand in a pack. */
struct pd_entry {
    struct pd_segment segment;
    uint64_t payload_bytes;
    uint32_t lane;
    bool cuttable; /* in the shuffle buffer only: to be split when it leaves */
    bool dropped;  /* in the shuffle buffer only: skipped by a record, leaves into nothing */
};

/* 32 bytes, so that a window of 1,024 stays in the first-level cache. */
struct pd_node {
    uint32_t entered; /* how many entered the window before it, modulo 2^32 */
    uint32_t key;
    uint32_t fifo_older, fifo_newer; /* fifo_older is PD_SLOT_DORMANT outside the fifos */
    uint32_t older, newer;
    uint32_t bin, bin_next; /* of the solver */
};

struct pd_fifo {
    uint32_t oldest, newest;
};

struct pd_window {
    uint32_t align, key_max;
    uint32_t capacity; /* places there are */
    uint32_t limit;    /* entries the refill stops at; more stay where it was lowered */
    struct pd_node *nodes;
    struct pd_entry *entries; /* beside nodes: the fit never reads them */
    struct pd_fifo *fifos;
    struct pd_bits sizes;
    uint32_t free, oldest, newest, count;
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
/* Makes entries[pd_window_slot()] the newest entry. */
void pd_window_insert(struct pd_window *window);
/* Takes an entry out; entries[slot] stays readable until the next insert. */
void pd_window_remove(struct pd_window *window, uint32_t slot);

/* How many entered after it. */
static inline uint32_t pd_window_age(const struct pd_window *window, uint32_t slot)
{
    return (uint32_t)window->entered - window->nodes[slot].entered - 1;
}
static inline bool pd_window_dormant(const struct pd_window *window, uint32_t slot)
{
    return window->nodes[slot].fifo_older == PD_SLOT_DORMANT;
}
/* Oldest entry of size `key`, PD_SLOT_NONE for none. */
static inline uint32_t pd_window_first(const struct pd_window *window, uint32_t key)
{
    return window->fifos[key].oldest;
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
