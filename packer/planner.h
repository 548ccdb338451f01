/* The planner: a pure function from an ordered log of heads and control records to packs 0, 1, ...
 *
 *   lanes (heads, in log order) ──refill──> [shuffle buffer] ──> window of W ──fit──> pack k
 *
 * Before each pack the window is refilled to min(window_samples, window_bytes); a pack is made only
 * when the window is full, or the feed has ended, or a flush allows a short window. So pack k
 * depends on the lanes' content and the control records alone: not on when heads arrived, how they
 * were cut into blocks, or how often the planner was called, saved and restored in between.
 *
 * No clock, no threads, no I/O, no floating point in any decision; O(W + L + shuffle buffer +
 * lanes) memory. Not thread-safe: one owner. */
#ifndef PD_PACKER_PLANNER_H
#define PD_PACKER_PLANNER_H

#include "packer/head.h"
#include "packer/plan.h"
#include "packer/tensor.h"

/* Bumped whenever the same input would give other packs; stored in snapshots, compared on
 * restore. */
#define PD_PLANNER_VERSION 1

#define PD_SEQ_LEN_MAX (1u << 20)
#define PD_WINDOW_SAMPLES_MAX (1u << 20)
#define PD_SHUFFLE_SAMPLES_MAX (1u << 26)
#define PD_LANE_WEIGHT_MAX 1000000u

enum pd_strategy {
    PD_STRATEGY_EXACT,
    PD_STRATEGY_SEQUENTIAL,
    PD_STRATEGY_NONE,
    PD_STRATEGY_BEST_FIT, /* comparison only, refused for a served feed */
};
enum pd_order { PD_ORDER_ARRIVAL, PD_ORDER_SHUFFLE };
enum pd_merge { PD_MERGE_ARRIVAL, PD_MERGE_ORDERED };
enum pd_over_length { PD_OVER_REJECT, PD_OVER_KEEP_HEAD, PD_OVER_KEEP_TAIL, PD_OVER_SPLIT };
enum pd_on_end { PD_ON_END_CONTINUE, PD_ON_END_STOP, PD_ON_END_REPEAT };

#define PD_LANES_MAX 4096
#define PD_LANES_WEIGHTED_MAX 16
#define PD_PRUNE_RULES_MAX 16
/* pd_want.lane when every lane has ended and only the feed's end is missing. */
#define PD_LANE_NONE UINT32_MAX

/* One FIFO the refill draws from: the whole feed, a source, or a declared stream. */
struct pd_lane_rules {
    uint32_t weight; /* share of slot tokens among lanes; 1 for a single lane or an ordered merge */
    enum pd_on_end on_end;
    uint32_t passes_max; /* with repeat: passes over the lane in all, >= 1 */
};

/* What samples of one source lose before they are cut or packed. */
struct pd_prune_rule {
    uint32_t source;
    struct pd_prune prune; /* all 0: nothing */
};

struct pd_rules {
    uint32_t seq_len;        /* L, 1 .. PD_SEQ_LEN_MAX */
    uint32_t window_samples; /* W, >= 1 */
    uint64_t window_bytes;   /* payload bytes the window may stand for; one sample always fits */
    enum pd_strategy strategy;
    enum pd_order order;
    uint32_t shuffle_samples;
    uint64_t shuffle_bytes;
    enum pd_merge merge;
    enum pd_over_length over_length;
    uint32_t seg_align;    /* >= 1; divides seq_len */
    uint32_t segments_max; /* real segments a pack, 0 = no cap */
    uint32_t patches_max;  /* vision patches a pack, 0 = no cap */
    uint64_t seed;
    uint32_t lane_count; /* >= 1 */
    /* The first lane_count of them; an ordered merge has up to PD_LANES_MAX lanes, all like
     * lanes[0]. */
    struct pd_lane_rules lanes[PD_LANES_WEIGHTED_MAX];
    /* In force from the first sample on; sources distinct. */
    uint32_t prune_count;
    struct pd_prune_rule prunes[PD_PRUNE_RULES_MAX];
};

/* The rules that a served feed may change, as pd_rules names them. */
struct pd_live_rules {
    uint32_t window_samples;
    uint64_t window_bytes;
    enum pd_strategy strategy;
    enum pd_order order;
    uint32_t shuffle_samples;
    uint64_t shuffle_bytes;
    enum pd_over_length over_length;
    uint32_t prune_count;
    struct pd_prune_rule prunes[PD_PRUNE_RULES_MAX];
};

/* Where heads come from: the server reads them from the log, tests from arrays.
 *
 * `at` is the lane's cursor as a rule; {0, 0} when a repeated lane starts its next pass; and below
 * the cursor when the head of a split sample is read again, part by part, or that of a sample that
 * a skip rule may fit (never below the lane's floor, see pd_planner_floors). With several lanes,
 * reads alternate between them. */
struct pd_supply {
    void *ctx;
    /* Heads of `lane` from `at` on, in order: sets *heads to `count` consecutive ones and returns
     * the count. They are borrowed until the next call. 0 = none at present (not "ended": that is a
     * control record). PD_E* = reading failed; the planner passes it on. */
    int (*read)(void *ctx, uint32_t lane, struct pd_cursor at, const struct pd_head **heads);
};

/* Everything that is not a head but may change a plan, in log order. `at` is its log position,
 * above every record before it.
 *
 * A FLUSH and an end act by that position. With a flush at F open, nothing at or behind F exists
 * for the refill (heads, ends): where the due lane has nothing before F the window may stay short;
 * only while it holds less than one pack do lanes that have heads stand in for that one. A flush
 * told before the planner gets there does nothing until it does.
 * WEIGHTS, SKIP, SKIP_RULE and RULES act between the refill and the fit of `from_pack`: what the
 * window holds then does not depend on waiting. SKIP drops the sample from window, shuffle buffer
 * and lanes; a split sample of which a part is in a pack already stays. SKIP_RULE does so with
 * every sample before `at` that the rule fits. With RULES, samples in the window stay as they came
 * in, and what order: shuffle has buffered drains by the same hash; pruning is for samples drawn
 * from their lane afterwards. */
enum pd_control_kind {
    PD_CONTROL_END_LANE, /* the lane has no heads at or after `at` */
    PD_CONTROL_END_FEED, /* no lane has; what is in the window is packed, then PD_EEND */
    PD_CONTROL_FLUSH,    /* until `packs` packs are made from a short window, or none is left */
    PD_CONTROL_WEIGHTS,  /* lane weights; not for an ordered merge */
    PD_CONTROL_SKIP,     /* leave out sample (stream, seq) */
    PD_CONTROL_SKIP_RULE,
    PD_CONTROL_RULES, /* other rules */
};

/* Samples for which everything that is set holds. */
struct pd_skip_rule {
    bool by_stream, by_source, by_group, by_key;
    uint32_t stream, source;
    uint64_t first_seq, last_seq; /* inclusive; 0 and UINT64_MAX: any */
    uint64_t group, key;          /* XXH3-64 of the bytes */
    uint64_t version_below;       /* 0 = any; a sample without version has version 0 */
};
#define PD_SKIP_RULES_MAX 64 /* that still have something to do */

struct pd_control {
    enum pd_control_kind kind;
    uint64_t at;
    uint32_t lane;
    uint64_t packs; /* FLUSH: 0 = all */
    uint64_t from_pack;
    uint32_t weights[PD_LANES_WEIGHTED_MAX];
    uint32_t stream;
    uint64_t seq;
    struct pd_skip_rule rule;
    struct pd_live_rules rules;
};

/* Why pd_planner_next gave PD_EAGAIN: what the refill wants. */
struct pd_want {
    uint32_t lane;
    uint32_t window_samples; /* in the window now */
    uint64_t window_tokens;
    uint32_t samples_needed; /* until the window is full, by count */
};

struct pd_planner_stats {
    uint64_t packs, samples, parts; /* emitted so far */
    uint64_t truncated_samples, truncated_tokens, split_samples, skipped_samples;
    /* Over-length under `reject`, or no cut could make it fit: left out. */
    uint64_t rejected_samples;
    /* Most samples that entered the window while one waited in it. Bounded: each pack takes the
     * oldest, or the oldest is younger than four windows; so at most (4 + most segments a pack) *
     * window_samples. */
    uint64_t age_max_samples;
    uint32_t window_samples;
    uint64_t window_tokens;
    uint64_t used_slots, real_tokens; /* of all packs emitted */
};

/* What pruning took away so far, and what it spares a model: its work on the samples that lost
 * something. */
struct pd_view_stats {
    uint64_t samples, spans; /* that lost something of the view; spans dropped whole */
    uint64_t tokens, patches;
    /* views of one sample are taken away one by one, in the order of their numbers */
    struct pd_work spared;
};
struct pd_prune_stats {
    uint64_t samples;         /* that lost something, those with nothing left included */
    uint64_t emptied_samples; /* nothing was left of them: left out */
    uint64_t tokens, patches;
    struct pd_work before, after;
    uint64_t seen_views; /* bit v: some sample drawn so far has a span of view v */
    struct pd_view_stats views[PD_VIEWS_MAX];
};

struct pd_planner;

/* PD_EINVAL with the rule named (seq_len not a multiple of seg_align, ...), PD_ENOMEM. */
int pd_rules_check(const struct pd_rules *rules, struct pd_error *error) PD_MUST_CHECK;
/* The same with other live rules. */
int pd_live_rules_check(const struct pd_rules *rules, const struct pd_live_rules *live,
                        struct pd_error *error) PD_MUST_CHECK;
struct pd_live_rules pd_live_rules_of(const struct pd_rules *rules);
void pd_live_rules_set(struct pd_rules *rules, const struct pd_live_rules *live);
int pd_planner_new(const struct pd_rules *rules, struct pd_planner **planner,
                   struct pd_error *error) PD_MUST_CHECK;
void pd_planner_free(struct pd_planner *planner);

/* Tells a control record; call in log order, before the planner is asked for a pack that could see
 * heads behind it. PD_EINVAL (a lane that does not exist, positions going backwards), PD_ENOMEM,
 * PD_ELIMIT (more than 4,096 open flushes or changes, or PD_SKIP_RULES_MAX rules). */
int pd_planner_control(struct pd_planner *planner, const struct pd_control *control) PD_MUST_CHECK;

/* Makes the next pack into *pack (cleared first). 0; PD_EAGAIN: the log does not hold enough yet,
 * *want says what is missing and the call may be repeated when more has come; PD_EEND: the feed has
 * ended and everything is packed; PD_ENOMEM or what supply->read returned: the planner must be
 * thrown away and restored. */
int pd_planner_next(struct pd_planner *planner, const struct pd_supply *supply,
                    struct pd_pack *pack, struct pd_want *want) PD_MUST_CHECK;

/* Why the pack made last is no fuller; way PD_PACK_UNKNOWN before the first. Walks the lanes. */
struct pd_pack_why pd_planner_why(const struct pd_planner *planner);

/* The rules in force at the next pack. */
const struct pd_rules *pd_planner_rules(const struct pd_planner *planner);
/* The first pack that a change told now can act on: its from_pack must not be lower. */
uint64_t pd_planner_change_pack(const struct pd_planner *planner);

/* What the log must keep: floors[i] is the lowest block of lane i that packs still to be made can
 * use, of window, buffer, cursor, and of a lane that will be repeated the first; every block of the
 * lane below it is in packs made before, or in none. `floors` has room for lane_count numbers.
 * Walks window and buffer: once per trim, not per pack. */
void pd_planner_floors(const struct pd_planner *planner, uint64_t *floors);
/* The block of the sample that has been in the window longest; UINT64_MAX: the window is empty. */
uint64_t pd_planner_oldest_block(const struct pd_planner *planner);
void pd_planner_stats(const struct pd_planner *planner, struct pd_planner_stats *stats);
/* The planner's own, to be read between its calls. */
const struct pd_prune_stats *pd_planner_prune_stats(const struct pd_planner *planner);
/* Views that some rule in force or told leaves out; bit v of view v. Those not in seen_views have
 * not been met yet. */
uint64_t pd_planner_pruned_views(const struct pd_planner *planner);
/* Where a lane, below lane_count, has got to. */
struct pd_lane_view {
    struct pd_cursor cursor; /* the next head to be drawn is there or behind it */
    int64_t deficit;         /* in slot tokens; the largest is due */
    uint32_t weight, pass;   /* pass: passes completed */
    bool ended, exhausted;   /* its end is known; nothing of it will be drawn any more */
};
void pd_planner_lane(const struct pd_planner *planner, uint32_t lane, struct pd_lane_view *view);

/* A self-contained, versioned, little-endian snapshot of the whole state (rules included); restore
 * gives a planner that goes on bit for bit. PD_ENOMEM; restore also PD_ECORRUPT (malformed) and
 * PD_EMISMATCH (another PD_PLANNER_VERSION). */
int pd_planner_save(const struct pd_planner *planner, struct pd_buf *buf) PD_MUST_CHECK;
int pd_planner_restore(const void *data, size_t size, struct pd_planner **planner,
                       struct pd_error *error) PD_MUST_CHECK;

#endif
