/* Time, for everything but the planner (which has none): monotonic for waiting, wall for people.
 * Any thread. */
#ifndef PD_BASE_CLOCK_H
#define PD_BASE_CLOCK_H

#include <stdint.h>

uint64_t pd_clock_mono_ns(void);
/* Nanoseconds since 1970-01-01 UTC. */
uint64_t pd_clock_wall_ns(void);

#endif
