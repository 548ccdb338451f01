/* Marks of time over log positions, for ages that nobody decides by: metrics and the status page.
 * The log itself holds no times but those of commits, so what a daemon did not see itself has
 * none. */
#include "server/arrivals.h"

#define INTERVAL_MIN_NS 1000000000u

static void thin(struct pd_arrivals *arrivals)
{
    for (uint32_t i = 0; i < PD_ARRIVALS_MAX / 2; i++)
        arrivals->marks[i] = arrivals->marks[2 * i];
    arrivals->count = PD_ARRIVALS_MAX / 2;
    arrivals->interval_ns *= 2;
}

void pd_arrivals_note(struct pd_arrivals *arrivals, uint64_t position, uint64_t wall_ns)
{
    if (arrivals->interval_ns == 0)
        arrivals->interval_ns = INTERVAL_MIN_NS;
    while (arrivals->count > 0 && arrivals->marks[arrivals->count - 1].position >= position)
        arrivals->count--; /* of a group that was undone: those positions are given anew */
    uint32_t count = arrivals->count;
    if (count > 0 && wall_ns < arrivals->marks[count - 1].wall_ns + arrivals->interval_ns)
        return;
    if (count == PD_ARRIVALS_MAX)
        thin(arrivals);
    arrivals->marks[arrivals->count].position = position;
    arrivals->marks[arrivals->count++].wall_ns = wall_ns;
}

uint64_t pd_arrivals_time(const struct pd_arrivals *arrivals, uint64_t position)
{
    uint32_t low = 0, high = arrivals->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (arrivals->marks[middle].position <= position)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 ? arrivals->marks[low - 1].wall_ns : 0;
}
