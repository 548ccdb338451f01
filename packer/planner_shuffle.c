/* The bag's array and its hash.
 *
 * Between the lanes and the window, with order: shuffle. Owner: the planner's thread. Invariant:
 * which sample leaves depends on the seed, on how many left before and on the bag's content alone.
 * It does not read lanes or cut samples. */
#include "packer/planner_shuffle.h"

#include "base/check.h"

#include <stdlib.h>

/* A well-mixed function of a counter (the finaliser of splitmix64). */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

void pd_shuffle_fini(struct pd_shuffle *shuffle)
{
    free(shuffle->entries);
    *shuffle = (struct pd_shuffle){0};
}

uint32_t pd_shuffle_target(const struct pd_shuffle *shuffle, const struct pd_rules *rules)
{
    uint64_t grown = rules->window_samples + shuffle->left;
    return grown < rules->shuffle_samples ? (uint32_t)grown : rules->shuffle_samples;
}

int pd_shuffle_push(struct pd_shuffle *shuffle, const struct pd_entry *entry)
{
    if (shuffle->count == shuffle->capacity) {
        uint32_t capacity = shuffle->capacity ? 2 * shuffle->capacity : 256;
        struct pd_entry *entries =
            realloc(shuffle->entries, (size_t)capacity * sizeof *shuffle->entries);
        if (!entries)
            return PD_ENOMEM;
        shuffle->entries = entries;
        shuffle->capacity = capacity;
    }
    shuffle->entries[shuffle->count++] = *entry;
    shuffle->payload_bytes += entry->payload_bytes;
    return 0;
}

uint32_t pd_shuffle_pick(const struct pd_shuffle *shuffle, uint64_t seed)
{
    PD_CHECK(shuffle->count > 0);
    return (uint32_t)(mix(mix(seed) ^ shuffle->left) % shuffle->count);
}

void pd_shuffle_remove(struct pd_shuffle *shuffle, uint32_t slot)
{
    PD_CHECK(slot < shuffle->count);
    shuffle->payload_bytes -= shuffle->entries[slot].payload_bytes;
    shuffle->entries[slot] = shuffle->entries[--shuffle->count];
    shuffle->left++;
}
