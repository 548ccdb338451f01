/* Control records that have been told and still have something to do: open flushes, changes that
 * wait for their pack, skips that wait for their sample. At most PD_RECORDS_MAX of each. Owner: the
 * planner's thread. */
#ifndef PD_PACKER_PLANNER_RECORDS_H
#define PD_PACKER_PLANNER_RECORDS_H

#include "packer/planner.h"

#define PD_RECORDS_MAX 4096

struct pd_flush {
    uint64_t at;
    uint64_t packs; /* 0 = all */
    uint64_t made;
};

/* Acts between the refill and the fit of pack `from_pack`: by then the window is settled, however
 * often the refill had to wait. */
struct pd_change {
    enum pd_control_kind kind; /* WEIGHTS, SKIP, SKIP_RULE or RULES */
    uint64_t from_pack;
    uint32_t weights[PD_LANES_WEIGHTED_MAX];
    uint32_t stream;
    uint64_t seq;
    uint64_t at; /* SKIP_RULE: its place */
    struct pd_skip_rule rule;
    struct pd_live_rules rules;
};

/* A rule in force: it fits samples before `at` alone. */
struct pd_open_rule {
    uint64_t at;
    struct pd_skip_rule rule;
};

struct pd_skip {
    uint32_t stream;
    uint64_t seq;
};

struct pd_records {
    struct pd_flush *flushes;                     /* by place */
    struct pd_change *changes;                    /* in log order */
    struct pd_skip *skips;                        /* by (stream, seq) */
    struct pd_open_rule rules[PD_SKIP_RULES_MAX]; /* in log order */
    uint32_t flush_count, change_count, skip_count, rule_count;
    uint32_t flush_capacity, change_capacity, skip_capacity;
    uint64_t last_at; /* place of the last record told */
};

void pd_records_fini(struct pd_records *records);
/* PD_ENOMEM, PD_ELIMIT. */
int pd_records_add_flush(struct pd_records *records, const struct pd_flush *flush) PD_MUST_CHECK;
int pd_records_add_change(struct pd_records *records, const struct pd_change *change) PD_MUST_CHECK;
int pd_records_add_skip(struct pd_records *records, struct pd_skip skip) PD_MUST_CHECK;

/* Place of the oldest open flush, UINT64_MAX for none. */
static inline uint64_t pd_records_limit(const struct pd_records *records)
{
    return records->flush_count ? records->flushes[0].at : UINT64_MAX;
}
/* The oldest flush made a pack from a short window: it is done once it has made all it may. */
void pd_records_flushed(struct pd_records *records);
void pd_records_pop_flush(struct pd_records *records);
void pd_records_pop_change(struct pd_records *records, uint32_t index);

bool pd_records_skips(const struct pd_records *records, uint32_t stream, uint64_t seq);
/* The stream was read up to seq, for the last time: skips up to there are done. */
void pd_records_retire(struct pd_records *records, uint32_t stream, uint64_t seq);

#endif
