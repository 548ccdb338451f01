/* What a feed has served over the last hour: cumulative sums, one mark every ten seconds. Plain
 * memory, zeroed is empty; one owner. When full: the oldest mark goes. */
#ifndef PD_SERVER_HISTORY_H
#define PD_SERVER_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#define PD_HISTORY_STEP_S 10u
#define PD_HISTORY_MARKS (3600u / PD_HISTORY_STEP_S + 1)

struct pd_history_mark {
    uint64_t at_ns;           /* monotonic */
    uint64_t real, positions; /* served */
    uint64_t pushed;          /* tokens */
};

struct pd_history {
    struct pd_history_mark marks[PD_HISTORY_MARKS]; /* a ring */
    uint32_t next, count;
    struct pd_history_mark now; /* the newest sums, whether they became a mark or not */
};

/* `mark` becomes the newest, and a mark where the last one is PD_HISTORY_STEP_S old. */
void pd_history_note(struct pd_history *history, const struct pd_history_mark *mark);
/* The youngest mark that is at least `age_s` older than the newest sums, or else the oldest there
 * is. False: there is none. */
bool pd_history_before(const struct pd_history *history, uint64_t age_s,
                       struct pd_history_mark *mark);
/* Mark i of count, oldest first. */
const struct pd_history_mark *pd_history_at(const struct pd_history *history, uint32_t i);

#endif
