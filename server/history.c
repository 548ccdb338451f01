/* A ring of cumulative sums, from which rates over any time up to an hour are differences. The
 * collector fills it each second. */
#include "server/history.h"

#include "base/check.h"

#define SECOND_NS 1000000000u

const struct pd_history_mark *pd_history_at(const struct pd_history *history, uint32_t i)
{
    PD_CHECK(i < history->count);
    return &history
                ->marks[(history->next + PD_HISTORY_MARKS - history->count + i) % PD_HISTORY_MARKS];
}

void pd_history_note(struct pd_history *history, const struct pd_history_mark *mark)
{
    history->now = *mark;
    if (history->count > 0 && mark->at_ns - pd_history_at(history, history->count - 1)->at_ns <
                                  (uint64_t)PD_HISTORY_STEP_S * SECOND_NS)
        return;
    history->marks[history->next] = *mark;
    history->next = (history->next + 1) % PD_HISTORY_MARKS;
    history->count += history->count < PD_HISTORY_MARKS;
}

bool pd_history_before(const struct pd_history *history, uint64_t age_s,
                       struct pd_history_mark *mark)
{
    if (history->count == 0)
        return false;
    uint32_t i = history->count - 1;
    while (i > 0 && history->now.at_ns - pd_history_at(history, i)->at_ns < age_s * SECOND_NS)
        i--;
    *mark = *pd_history_at(history, i);
    return true;
}
