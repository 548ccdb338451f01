/* The steps of a job that have been left out (SkipSteps): a few ranges of numbers.
 *
 *   [first, last]   ascending, disjoint, never adjacent: neighbours are one range
 *
 * When full (PD_STEP_RANGES_MAX), a further range is refused; those of steps that the log no longer
 * holds can be forgotten. Zeroed memory is an empty set. Owner's thread or lock. */
#ifndef PD_SERVER_STEP_RANGES_H
#define PD_SERVER_STEP_RANGES_H

#include "base/bytes.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define PD_STEP_RANGES_MAX 1000u

struct pd_step_range {
    uint64_t first, last; /* both are left out */
};

struct pd_step_ranges {
    struct pd_step_range *ranges; /* owned */
    uint32_t count, capacity;
};

void pd_step_ranges_fini(struct pd_step_ranges *set);
/* first <= last < UINT64_MAX. PD_ENOMEM, PD_ELIMIT; the set is then as before. */
int pd_step_ranges_add(struct pd_step_ranges *set, uint64_t first, uint64_t last) PD_MUST_CHECK;
/* Whether every step of the range is in the set. */
bool pd_step_ranges_cover(const struct pd_step_ranges *set, uint64_t first, uint64_t last);
/* How many steps are in the set. */
uint64_t pd_step_ranges_steps(const struct pd_step_ranges *set);
/* The first step at or behind `step` that is not in the set. */
uint64_t pd_step_ranges_pass(const struct pd_step_ranges *set, uint64_t step);
/* Drops ranges that lie wholly below `step`. */
void pd_step_ranges_forget(struct pd_step_ranges *set, uint64_t step);
/* Replaces *to, keeping its memory. PD_ENOMEM: *to is as before. */
int pd_step_ranges_copy(struct pd_step_ranges *to, const struct pd_step_ranges *from) PD_MUST_CHECK;

void pd_step_ranges_encode(const struct pd_step_ranges *set, struct pd_buf *buf);
/* Into an empty set. PD_ECORRUPT where it is not what encode wrote, PD_ENOMEM. */
int pd_step_ranges_decode(struct pd_step_ranges *set, struct pd_reader *reader) PD_MUST_CHECK;

#endif
