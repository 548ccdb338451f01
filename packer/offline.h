/* Packing with the whole set in sight, for comparison only: first-fit-decreasing and
 * best-fit-decreasing.
 *
 * `packctl plan` and the benchmark set the planner's packs beside these. Pure; O(n log n) and O(n)
 * time, O(n + seq_len) memory. Any thread. */
#ifndef PD_PACKER_OFFLINE_H
#define PD_PACKER_OFFLINE_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum pd_offline { PD_OFFLINE_FFD, PD_OFFLINE_BFD };

/* Packs lengths[0 .. count) into packs of seq_len; ties keep the input's order. *packs is how many
 * it took, pack_of[i] (may be NULL) the pack of item i. PD_EINVAL: seq_len 0 or above 2^20, or a
 * length of 0 or above seq_len. PD_ENOMEM. count below 2^31. */
int pd_offline_pack(enum pd_offline how, const uint32_t *lengths, size_t count, uint32_t seq_len,
                    uint32_t *pack_of, size_t *packs) PD_MUST_CHECK;

/* No packing of these lengths can take fewer packs: the best of ceil(sum / seq_len) and the
 * dual-feasible bounds of Fekete and Schepers for k = 1 .. 20 (k = 1 counts items above half a
 * pack). Lengths as for pd_offline_pack. */
size_t pd_offline_lower_bound(const uint32_t *lengths, size_t count, uint32_t seq_len);

/* The share of positions that can be filled, in parts per million: by the lower bound, and where
 * lengths hardly vary (standard deviation below a sixteenth of the mean) by floor(seq_len / mean)
 * samples a pack, which small runs may pass by a few hundredths of a point. Told beside a fill so
 * that nobody chases what arithmetic forbids. 1,000,000 for an empty set. */
uint32_t pd_offline_ceiling_ppm(const uint32_t *lengths, size_t count, uint32_t seq_len);

#endif
