/* The checks on a feed's planning rules, each refusal naming the rule and its value.
 *
 * Called before a planner is made and when a snapshot is restored. Pure, any thread. It refuses
 * what the planner cannot honour; what a configuration may say beyond that is the configuration's
 * business. */
#include "packer/planner_state.h"

#include <string.h>

#define REASON "RULES"

static int refuse(struct pd_error *error, const char *rule, uint64_t value, const char *expected)
{
    return pd_error_set(error, PD_EINVAL, REASON, "%s is %llu, expected %s", rule,
                        (unsigned long long)value, expected);
}

static int check_choices(const struct pd_rules *rules, struct pd_error *error)
{
    if ((unsigned)rules->strategy > PD_STRATEGY_BEST_FIT)
        return refuse(error, "strategy", (uint64_t)rules->strategy, "a known strategy");
    if ((unsigned)rules->order > PD_ORDER_SHUFFLE)
        return refuse(error, "order", (uint64_t)rules->order, "arrival or shuffle");
    if ((unsigned)rules->merge > PD_MERGE_ORDERED)
        return refuse(error, "merge", (uint64_t)rules->merge, "arrival or ordered");
    if ((unsigned)rules->over_length > PD_OVER_SPLIT)
        return refuse(error, "over_length", (uint64_t)rules->over_length, "a known policy");
    return 0;
}

static int check_sizes(const struct pd_rules *rules, struct pd_error *error)
{
    if (rules->seq_len < 1 || rules->seq_len > PD_SEQ_LEN_MAX)
        return refuse(error, "seq_len", rules->seq_len, "1 to 1048576");
    if (rules->window_samples < 1 || rules->window_samples > PD_WINDOW_SAMPLES_MAX)
        return refuse(error, "window", rules->window_samples, "1 to 1048576");
    if (rules->window_bytes < 1)
        return refuse(error, "window_bytes", rules->window_bytes, "1 or more");
    if (rules->seg_align < 1 || rules->seq_len % rules->seg_align != 0)
        return pd_error_set(error, PD_EINVAL, REASON,
                            "seg_align is %u, expected a divisor of seq_len (%u)", rules->seg_align,
                            rules->seq_len);
    if (rules->order != PD_ORDER_SHUFFLE)
        return 0;
    if (rules->shuffle_samples < 1 || rules->shuffle_samples > PD_SHUFFLE_SAMPLES_MAX)
        return refuse(error, "shuffle_samples", rules->shuffle_samples, "1 to 67108864");
    if (rules->shuffle_bytes < 1)
        return refuse(error, "shuffle_bytes", rules->shuffle_bytes, "1 or more");
    return 0;
}

static int check_lane(const struct pd_lane_rules *lane, uint32_t number, struct pd_error *error)
{
    if ((unsigned)lane->on_end > PD_ON_END_REPEAT)
        return refuse(error, "on_end", (uint64_t)lane->on_end, "continue, stop or repeat");
    if (lane->weight > PD_LANE_WEIGHT_MAX)
        return pd_error_set(error, PD_EINVAL, REASON, "weight of lane %u is %u, expected 0 to %u",
                            number, lane->weight, PD_LANE_WEIGHT_MAX);
    if (lane->on_end == PD_ON_END_REPEAT && lane->passes_max < 1)
        return refuse(error, "max_passes", lane->passes_max, "1 or more");
    return 0;
}

static int check_lanes(const struct pd_rules *rules, struct pd_error *error)
{
    bool ordered = rules->merge == PD_MERGE_ORDERED;
    uint32_t most = ordered ? PD_LANES_MAX : PD_LANES_WEIGHTED_MAX;
    if (rules->lane_count < 1 || rules->lane_count > most)
        return pd_error_set(error, PD_EINVAL, REASON, "there are %u lanes, expected 1 to %u",
                            rules->lane_count, most);
    uint32_t count = ordered ? 1 : rules->lane_count;
    uint64_t weights = 0;
    for (uint32_t i = 0; i < count; i++) {
        int rc = check_lane(&rules->lanes[i], i, error);
        if (rc != 0)
            return rc;
        weights += rules->lanes[i].weight;
    }
    return weights > 0 ? 0 : refuse(error, "sum of weights", weights, "1 or more");
}

static int check_prunes(const struct pd_rules *rules, struct pd_error *error)
{
    if (rules->prune_count > PD_PRUNE_RULES_MAX)
        return refuse(error, "number of pruning rules", rules->prune_count, "at most 16");
    for (uint32_t i = 0; i < rules->prune_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (rules->prunes[i].source == rules->prunes[j].source)
                return refuse(error, "source with two pruning rules", rules->prunes[i].source,
                              "one rule each");
    return 0;
}

struct pd_live_rules pd_live_rules_of(const struct pd_rules *rules)
{
    struct pd_live_rules live = {.window_samples = rules->window_samples,
                                 .window_bytes = rules->window_bytes,
                                 .strategy = rules->strategy,
                                 .order = rules->order,
                                 .shuffle_samples = rules->shuffle_samples,
                                 .shuffle_bytes = rules->shuffle_bytes,
                                 .over_length = rules->over_length,
                                 .prune_count = rules->prune_count};
    memcpy(live.prunes, rules->prunes, sizeof live.prunes);
    return live;
}

void pd_live_rules_set(struct pd_rules *rules, const struct pd_live_rules *live)
{
    rules->window_samples = live->window_samples;
    rules->window_bytes = live->window_bytes;
    rules->strategy = live->strategy;
    rules->order = live->order;
    rules->shuffle_samples = live->shuffle_samples;
    rules->shuffle_bytes = live->shuffle_bytes;
    rules->over_length = live->over_length;
    rules->prune_count = live->prune_count;
    memcpy(rules->prunes, live->prunes, sizeof rules->prunes);
}

int pd_live_rules_check(const struct pd_rules *rules, const struct pd_live_rules *live,
                        struct pd_error *error)
{
    struct pd_rules changed = *rules;
    pd_live_rules_set(&changed, live);
    return pd_rules_check(&changed, error);
}

int pd_rules_check(const struct pd_rules *rules, struct pd_error *error)
{
    int rc = check_choices(rules, error);
    if (rc == 0)
        rc = check_sizes(rules, error);
    if (rc == 0)
        rc = check_lanes(rules, error);
    return rc == 0 ? check_prunes(rules, error) : rc;
}
