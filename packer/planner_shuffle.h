/* The shuffle buffer: a bag of samples before the window, drawn from by a seeded hash.
 *
 * Before sample n leaves, the bag is filled to min(W + n, shuffle_samples), less where its payload
 * would pass shuffle_bytes; sample n is slot hash(seed, n) mod size, and the last slot takes its
 * place. Nothing waits for a full bag, yet it mixes far once it has grown. Memory
 * O(shuffle_samples). Owner: the planner's thread. */
#ifndef PD_PACKER_PLANNER_SHUFFLE_H
#define PD_PACKER_PLANNER_SHUFFLE_H

#include "packer/planner.h"
#include "packer/planner_window.h"

struct pd_shuffle {
    struct pd_entry *entries;
    uint32_t count, capacity;
    uint64_t payload_bytes;
    uint64_t left; /* samples that ever left: the n of the hash */
};

void pd_shuffle_fini(struct pd_shuffle *shuffle);
/* How many samples it should hold now. */
uint32_t pd_shuffle_target(const struct pd_shuffle *shuffle, const struct pd_rules *rules);
int pd_shuffle_push(struct pd_shuffle *shuffle, const struct pd_entry *entry) PD_MUST_CHECK;
/* The slot of the sample that leaves next; the bag must not be empty. */
uint32_t pd_shuffle_pick(const struct pd_shuffle *shuffle, uint64_t seed);
void pd_shuffle_remove(struct pd_shuffle *shuffle, uint32_t slot);

#endif
