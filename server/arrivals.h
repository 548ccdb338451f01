/* When log positions were written, roughly: marks of (position, wall clock), some a minute. Plain
 * memory, zeroed is empty; one owner. When full: every other mark goes, and they come half as
 * often. */
#ifndef PD_SERVER_ARRIVALS_H
#define PD_SERVER_ARRIVALS_H

#include <stdint.h>

#define PD_ARRIVALS_MAX 256u

struct pd_arrivals {
    struct {
        uint64_t position, wall_ns;
    } marks[PD_ARRIVALS_MAX]; /* ascending */
    uint32_t count;
    uint64_t interval_ns;
};

/* Marks at or above `position`, of a group that was undone, go. */
void pd_arrivals_note(struct pd_arrivals *arrivals, uint64_t position, uint64_t wall_ns);
/* When the last mark at or below `position` was set; 0: none is. */
uint64_t pd_arrivals_time(const struct pd_arrivals *arrivals, uint64_t position);

#endif
