/* The planner's calls: make, tell, ask for the next pack.
 *
 *   next:  refill ──> changes due at this pack ──> fit ──> pack k
 *
 * The heart of the sequencer; one owner, one thread. Invariant: pack k depends on the lanes'
 * content and the records' places alone. A change acts between refill and fit, the only moment at
 * which the window's content does not depend on how often the caller had to wait. It does not read
 * the log: the supply does. */
#include "base/arith.h"
#include "base/check.h"
#include "packer/planner_fit.h"
#include "packer/planner_skip.h"
#include "packer/planner_state.h"

#include <stdlib.h>

#define RETIRE_PACKS 16u /* so often it is looked whether skip rules are done */

static int planner_init(struct pd_planner *planner, const struct pd_rules *rules)
{
    planner->magic = PD_PLANNER_MAGIC;
    planner->rules = *rules;
    int rc =
        pd_window_init(&planner->window, rules->seq_len, rules->seg_align, rules->window_samples);
    if (rc == 0)
        rc = pd_solver_init(&planner->solver, &planner->window);
    if (rc == 0)
        rc = pd_lanes_init(&planner->lanes, &planner->rules);
    return rc;
}

int pd_planner_new(const struct pd_rules *rules, struct pd_planner **planner,
                   struct pd_error *error)
{
    *planner = NULL;
    int rc = pd_rules_check(rules, error);
    if (rc != 0)
        return rc;
    struct pd_planner *made = calloc(1, sizeof *made);
    if (made && planner_init(made, rules) == 0) {
        *planner = made;
        return 0;
    }
    pd_planner_free(made);
    return pd_error_set(error, PD_ENOMEM, "NO_MEMORY",
                        "no memory for a planner of window %u and seq_len %u",
                        rules->window_samples, rules->seq_len);
}

void pd_planner_free(struct pd_planner *planner)
{
    if (!planner)
        return;
    PD_MAGIC_CHECK(planner, PD_PLANNER_MAGIC);
    pd_window_fini(&planner->window);
    pd_solver_fini(&planner->solver);
    pd_lanes_fini(&planner->lanes);
    pd_shuffle_fini(&planner->shuffle);
    pd_records_fini(&planner->records);
    pd_pruned_fini(&planner->pruned);
    planner->magic = 0;
    free(planner);
}

static int add_weights(struct pd_planner *planner, const struct pd_control *control)
{
    struct pd_change change = {.kind = PD_CONTROL_WEIGHTS, .from_pack = control->from_pack};
    uint64_t sum = 0;
    if (planner->lanes.ordered)
        return PD_EINVAL;
    for (uint32_t i = 0; i < planner->lanes.count; i++) {
        change.weights[i] = control->weights[i];
        sum += control->weights[i];
        if (control->weights[i] > PD_LANE_WEIGHT_MAX)
            return PD_EINVAL;
    }
    return sum > 0 ? pd_records_add_change(&planner->records, &change) : PD_EINVAL;
}

static int add_skip_rule(struct pd_planner *planner, const struct pd_control *control)
{
    uint32_t rules = planner->records.rule_count;
    for (uint32_t i = 0; i < planner->records.change_count; i++)
        rules += planner->records.changes[i].kind == PD_CONTROL_SKIP_RULE;
    if (rules >= PD_SKIP_RULES_MAX)
        return PD_ELIMIT;
    return pd_records_add_change(&planner->records,
                                 &(struct pd_change){.kind = PD_CONTROL_SKIP_RULE,
                                                     .from_pack = control->from_pack,
                                                     .at = control->at,
                                                     .rule = control->rule});
}

static int add_record(struct pd_planner *planner, const struct pd_control *control)
{
    switch (control->kind) {
    case PD_CONTROL_END_LANE:
        if (control->lane >= planner->lanes.count)
            return PD_EINVAL;
        pd_lanes_end(&planner->lanes, control->lane, control->at);
        return 0;
    case PD_CONTROL_END_FEED:
        pd_lanes_end_all(&planner->lanes, control->at);
        return 0;
    case PD_CONTROL_FLUSH:
        return pd_records_add_flush(&planner->records,
                                    &(struct pd_flush){.at = control->at, .packs = control->packs});
    case PD_CONTROL_WEIGHTS:
        return add_weights(planner, control);
    case PD_CONTROL_SKIP:
        if (planner->records.skip_count + planner->records.change_count >= PD_RECORDS_MAX)
            return PD_ELIMIT;
        return pd_records_add_change(&planner->records,
                                     &(struct pd_change){.kind = PD_CONTROL_SKIP,
                                                         .from_pack = control->from_pack,
                                                         .stream = control->stream,
                                                         .seq = control->seq});
    case PD_CONTROL_SKIP_RULE:
        return add_skip_rule(planner, control);
    case PD_CONTROL_RULES:
        if (pd_live_rules_check(&planner->rules, &control->rules, NULL) != 0)
            return PD_EINVAL;
        return pd_records_add_change(&planner->records,
                                     &(struct pd_change){.kind = PD_CONTROL_RULES,
                                                         .from_pack = control->from_pack,
                                                         .rules = control->rules});
    }
    return PD_EINVAL;
}

int pd_planner_control(struct pd_planner *planner, const struct pd_control *control)
{
    PD_MAGIC_CHECK(planner, PD_PLANNER_MAGIC);
    if (control->at < planner->records.last_at || control->at == PD_PLACE_NEVER)
        return PD_EINVAL;
    int rc = add_record(planner, control);
    if (rc == 0)
        planner->records.last_at = control->at;
    return rc;
}

/* What lies in the window was chosen by the old rules and stays; the paper is made anew. */
static int apply_live_rules(struct pd_planner *planner, const struct pd_live_rules *live)
{
    int rc = pd_window_grow(&planner->window, live->window_samples);
    if (rc == 0)
        rc = pd_solver_grow(&planner->solver, planner->window.capacity);
    if (rc != 0)
        return rc;
    planner->window.limit = live->window_samples;
    pd_live_rules_set(&planner->rules, live);
    pd_solver_void(&planner->solver);
    return 0;
}

static int apply_change(struct pd_planner *planner, const struct pd_supply *supply,
                        const struct pd_change *change)
{
    if (change->kind == PD_CONTROL_RULES)
        return apply_live_rules(planner, &change->rules);
    if (change->kind != PD_CONTROL_WEIGHTS)
        return pd_skip_apply(planner, supply, change);
    pd_lanes_reweigh(&planner->lanes, change->weights);
    return 0;
}

/* Changes that act from this pack on, in log order. Once a pack: where they empty the window it is
 * filled again, perhaps much later, and what has been told meanwhile must not act in between. */
static int apply_changes(struct pd_planner *planner, const struct pd_supply *supply)
{
    struct pd_records *records = &planner->records;
    uint32_t i = 0;
    if (planner->changed)
        return 0;
    planner->changed = true;
    while (i < records->change_count) {
        struct pd_change change = records->changes[i];
        if (change.from_pack > planner->next_pack) {
            i++;
            continue;
        }
        int rc = apply_change(planner, supply, &change);
        if (rc != 0)
            return rc;
        pd_records_pop_change(records, i);
    }
    if (records->rule_count > 0 && planner->next_pack % RETIRE_PACKS == 0)
        pd_skip_retire(planner);
    return 0;
}

static void tell_want(const struct pd_planner *planner, uint32_t lane, struct pd_want *want)
{
    *want = (struct pd_want){
        .lane = lane,
        .window_samples = planner->window.count,
        .window_tokens = planner->window.keys * planner->window.align,
        .samples_needed = pd_window_room(&planner->window),
    };
}

/* Refills until there is something to fit. An enum pd_refill other than BLOCKED, PD_EAGAIN, PD_EEND
 * or an error. */
static int settle_window(struct pd_planner *planner, const struct pd_supply *supply,
                         struct pd_want *want)
{
    for (;;) {
        uint32_t lane;
        int how = pd_refill(planner, supply, &lane);
        if (how < 0)
            return how;
        if (how == PD_REFILL_BLOCKED) {
            tell_want(planner, lane, want);
            return PD_EAGAIN;
        }
        if (planner->window.count == 0) {
            if (how == PD_REFILL_ENDED)
                return PD_EEND;
            pd_records_pop_flush(&planner->records);
            continue;
        }
        int rc = apply_changes(planner, supply);
        if (rc != 0)
            return rc;
        if (planner->window.count > 0)
            return how;
    }
}

static uint64_t ended_at(const struct pd_lanes *lanes)
{
    uint64_t last = 0;
    for (uint32_t i = 0; i < lanes->count; i++)
        if (lanes->lane[i].end_at != PD_PLACE_NEVER && lanes->lane[i].end_at > last)
            last = lanes->lane[i].end_at;
    return last;
}

/* Of the pack just fitted, while the flush that kept its window short is still open. */
static struct pd_pack_why why_closed(const struct pd_planner *planner, int how,
                                     const struct pd_pack *pack, bool capped)
{
    const struct pd_rules *rules = &planner->rules;
    bool in_order =
        rules->strategy == PD_STRATEGY_SEQUENTIAL || rules->strategy == PD_STRATEGY_NONE;
    bool more = rules->strategy == PD_STRATEGY_NONE || planner->window.count > 0;
    struct pd_pack_why why = {.way = PD_PACK_BEST};
    if (how == PD_REFILL_SHORT)
        why = (struct pd_pack_why){PD_PACK_FLUSH, pd_records_limit(&planner->records)};
    else if (how == PD_REFILL_ENDED)
        why = (struct pd_pack_why){PD_PACK_END, ended_at(&planner->lanes)};
    if (in_order && (more || how == PD_REFILL_FULL))
        why.way = PD_PACK_SEQUENTIAL;
    if (capped && rules->strategy != PD_STRATEGY_NONE)
        why.way = PD_PACK_CAPPED;
    if (pack->used_slots == rules->seq_len)
        why.way = PD_PACK_EXACT;
    return why;
}

int pd_planner_next(struct pd_planner *planner, const struct pd_supply *supply,
                    struct pd_pack *pack, struct pd_want *want)
{
    bool capped;
    PD_MAGIC_CHECK(planner, PD_PLANNER_MAGIC);
    pd_pack_clear(pack);
    pd_lanes_forget(&planner->lanes);
    planner->pending.head = NULL;
    int how = settle_window(planner, supply, want);
    if (how < 0)
        return how;
    int rc = pd_fit_next(&planner->rules, &planner->window, &planner->solver, pack, &planner->stats,
                         &capped);
    if (rc != 0)
        return rc;
    PD_CHECK(pack->segment_count > 0 && pack->used_slots <= planner->rules.seq_len);
    planner->why = why_closed(planner, how, pack, capped);
    pack->number = planner->next_pack++;
    planner->changed = false;
    planner->stats.packs++;
    if (how == PD_REFILL_SHORT)
        pd_records_flushed(&planner->records);
    return 0;
}

/* A lane that is repeated has been read to its end before. */
static uint64_t drawn_to(const struct pd_lane *lane)
{
    return lane->pass > 0 && lane->end_at != PD_PLACE_NEVER ? lane->end_at : lane->cursor.block;
}

struct pd_pack_why pd_planner_why(const struct pd_planner *planner)
{
    struct pd_pack_why why = planner->why;
    PD_MAGIC_CHECK(planner, PD_PLANNER_MAGIC);
    if (why.way == PD_PACK_UNKNOWN || why.filled_to > 0)
        return why;
    for (uint32_t i = 0; i < planner->lanes.count; i++)
        if (drawn_to(&planner->lanes.lane[i]) > why.filled_to)
            why.filled_to = drawn_to(&planner->lanes.lane[i]);
    return why;
}

const struct pd_rules *pd_planner_rules(const struct pd_planner *planner)
{
    return &planner->rules;
}

uint64_t pd_planner_change_pack(const struct pd_planner *planner)
{
    return planner->next_pack + planner->changed;
}

static void hold(uint64_t *floors, const struct pd_entry *entry)
{
    floors[entry->lane] = pd_min_u64(floors[entry->lane], entry->segment.block);
}

void pd_planner_floors(const struct pd_planner *planner, uint64_t *floors)
{
    const struct pd_window *window = &planner->window;
    for (uint32_t i = 0; i < planner->lanes.count; i++) {
        const struct pd_lane *lane = &planner->lanes.lane[i];
        floors[i] = lane->cursor.block;
        if (pd_lanes_repeats(&planner->lanes, i))
            floors[i] = pd_min_u64(floors[i], lane->first_block);
    }
    if (planner->pending.active)
        hold(floors, &planner->pending.entry);
    for (uint32_t slot = pd_window_oldest(window); slot != PD_SLOT_NONE;
         slot = window->nodes[slot].newer)
        hold(floors, &window->entries[slot]);
    for (uint32_t i = 0; i < planner->shuffle.count; i++)
        hold(floors, &planner->shuffle.entries[i]);
}

uint64_t pd_planner_oldest_block(const struct pd_planner *planner)
{
    const struct pd_window *window = &planner->window;
    uint32_t oldest = pd_window_oldest(window);
    return oldest == PD_SLOT_NONE ? UINT64_MAX : window->entries[oldest].segment.block;
}

void pd_planner_stats(const struct pd_planner *planner, struct pd_planner_stats *stats)
{
    *stats = planner->stats;
    stats->window_samples = planner->window.count;
    stats->window_tokens = planner->window.keys * planner->window.align;
}

const struct pd_prune_stats *pd_planner_prune_stats(const struct pd_planner *planner)
{
    return &planner->prune_stats;
}

static uint64_t dropped_views(const struct pd_prune_rule *rules, uint32_t count)
{
    uint64_t views = 0;
    for (uint32_t i = 0; i < count; i++)
        views |= rules[i].prune.drop_views;
    return views;
}

uint64_t pd_planner_pruned_views(const struct pd_planner *planner)
{
    const struct pd_records *records = &planner->records;
    uint64_t views = dropped_views(planner->rules.prunes, planner->rules.prune_count);
    for (uint32_t i = 0; i < records->change_count; i++)
        if (records->changes[i].kind == PD_CONTROL_RULES)
            views |= dropped_views(records->changes[i].rules.prunes,
                                   records->changes[i].rules.prune_count);
    return views;
}

void pd_planner_lane(const struct pd_planner *planner, uint32_t lane, struct pd_lane_view *view)
{
    PD_CHECK(lane < planner->lanes.count);
    const struct pd_lane *at = &planner->lanes.lane[lane];
    *view = (struct pd_lane_view){.cursor = at->cursor,
                                  .deficit = at->deficit,
                                  .weight = at->weight,
                                  .pass = at->pass,
                                  .ended = at->end_at != PD_PLACE_NEVER,
                                  .exhausted = !at->active};
}
