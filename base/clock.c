/* The two clocks. */
#include "base/clock.h"

#include <time.h>

static uint64_t read_clock(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

uint64_t pd_clock_mono_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t pd_clock_wall_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}
