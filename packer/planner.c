/* The planner's calls: make, tell, ask for the next pack.
 *
 *   next:  refill ──> changes due at this pack ──> fit ──> pack k
 *
 * The heart of the sequencer; one owner, one thread. Invariant: pack k depends on the lanes' content and the records' places alone. A change acts
 * between refill and fit, the only moment at which the window's content does not depend on how often the caller had to wait. It does not
 * read the log: the supply does. */
#include "base/check.h"
#include "packer/planner_fit.h"
#include "packer/planner_state.h"

#include <stdlib.h>

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

static bool same_sample(const struct pd_segment *segment, const struct pd_change *skip)
{
    return segment->stream == skip->stream && segment->seq == skip->seq;
}

/* Entries of the sample in the window, and how many it should have there if none of it is in a pack yet. */
struct found {
    uint32_t present, expected;
};

static struct found find_sample(const struct pd_planner *planner, const struct pd_change *skip)
{
    const struct pd_window *window = &planner->window;
    const struct pd_pending *pending = &planner->pending;
    struct found found = {0};
    uint32_t last_pass = 0;
    for (uint32_t slot = window->oldest; slot != PD_SLOT_NONE; slot = window->nodes[slot].newer) {
        const struct pd_segment *segment = &window->entries[slot].segment;
        if (!same_sample(segment, skip))
            continue;
        if (found.present++ == 0 || segment->pass != last_pass)
            found.expected += segment->part_count;
        last_pass = segment->pass;
    }
    if (!pending->active || !same_sample(&pending->entry.segment, skip))
        return found;
    if (found.present > 0 && pending->entry.segment.pass == last_pass)
        found.expected -= pending->entry.segment.part_count;
    found.expected += pending->split.part;
    return found;
}

static void drop_entries(struct pd_planner *planner, const struct pd_change *skip)
{
    struct pd_window *window = &planner->window;
    uint32_t slot = window->oldest;
    while (slot != PD_SLOT_NONE) {
        uint32_t newer = window->nodes[slot].newer;
        const struct pd_segment *segment = &window->entries[slot].segment;
        if (same_sample(segment, skip)) {
            planner->stats.skipped_samples += segment->part == 0;
            pd_window_remove(window, slot);
        }
        slot = newer;
    }
    if (planner->pending.active && same_sample(&planner->pending.entry.segment, skip)) {
        planner->stats.skipped_samples += planner->pending.split.part == 0;
        planner->pending = (struct pd_pending){0};
    }
}

/* A sample that is partly packed already stays whole; any other place it may have reached forgets it. */
static int apply_skip(struct pd_planner *planner, const struct pd_change *skip)
{
    struct found found = find_sample(planner, skip);
    if (found.present == found.expected) {
        drop_entries(planner, skip);
        pd_solver_void(&planner->solver);
    }
    for (uint32_t i = 0; i < planner->shuffle.count; i++)
        if (same_sample(&planner->shuffle.entries[i].segment, skip))
            planner->shuffle.entries[i].dropped = true;
    return pd_records_add_skip(&planner->records, (struct pd_skip){skip->stream, skip->seq});
}

/* Changes that act from this pack on, in log order. */
static int apply_changes(struct pd_planner *planner)
{
    struct pd_records *records = &planner->records;
    uint32_t i = 0;
    while (i < records->change_count) {
        struct pd_change change = records->changes[i];
        if (change.from_pack > planner->next_pack) {
            i++;
            continue;
        }
        if (change.kind == PD_CONTROL_WEIGHTS)
            pd_lanes_reweigh(&planner->lanes, change.weights);
        else if (apply_skip(planner, &change) != 0)
            return PD_ENOMEM;
        pd_records_pop_change(records, i);
    }
    return 0;
}

static void tell_want(const struct pd_planner *planner, uint32_t lane, struct pd_want *want)
{
    *want = (struct pd_want){
        .lane = lane,
        .window_samples = planner->window.count,
        .window_tokens = planner->window.keys * planner->window.align,
        .samples_needed = planner->window.capacity - planner->window.count,
    };
}

/* Refills until there is something to fit. An enum pd_refill other than BLOCKED, PD_EAGAIN, PD_EEND or an error. */
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
        int rc = apply_changes(planner);
        if (rc != 0)
            return rc;
        if (planner->window.count > 0)
            return how;
    }
}

int pd_planner_next(struct pd_planner *planner, const struct pd_supply *supply,
                    struct pd_pack *pack, struct pd_want *want)
{
    PD_MAGIC_CHECK(planner, PD_PLANNER_MAGIC);
    pd_pack_clear(pack);
    pd_lanes_forget(&planner->lanes);
    planner->pending.head = NULL;
    int how = settle_window(planner, supply, want);
    if (how < 0)
        return how;
    int rc =
        pd_fit_next(&planner->rules, &planner->window, &planner->solver, pack, &planner->stats);
    if (rc != 0)
        return rc;
    PD_CHECK(pack->segment_count > 0 && pack->used_slots <= planner->rules.seq_len);
    pack->number = planner->next_pack++;
    planner->stats.packs++;
    if (how == PD_REFILL_SHORT)
        pd_records_flushed(&planner->records);
    return 0;
}

static uint64_t lower(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t pd_planner_lowest_block(const struct pd_planner *planner)
{
    const struct pd_window *window = &planner->window;
    uint64_t lowest = planner->pending.active ? planner->pending.entry.segment.block : UINT64_MAX;
    for (uint32_t slot = window->oldest; slot != PD_SLOT_NONE; slot = window->nodes[slot].newer)
        lowest = lower(lowest, window->entries[slot].segment.block);
    for (uint32_t i = 0; i < planner->shuffle.count; i++)
        lowest = lower(lowest, planner->shuffle.entries[i].segment.block);
    for (uint32_t i = 0; i < planner->lanes.count; i++)
        if (pd_lanes_repeats(&planner->lanes, i))
            lowest = lower(lowest, planner->lanes.lane[i].first_block);
    return lowest;
}

static void hold(uint64_t *floors, const struct pd_entry *entry)
{
    floors[entry->lane] = lower(floors[entry->lane], entry->segment.block);
}

void pd_planner_floors(const struct pd_planner *planner, uint64_t *floors)
{
    const struct pd_window *window = &planner->window;
    for (uint32_t i = 0; i < planner->lanes.count; i++) {
        const struct pd_lane *lane = &planner->lanes.lane[i];
        floors[i] = lane->cursor.block;
        if (pd_lanes_repeats(&planner->lanes, i))
            floors[i] = lower(floors[i], lane->first_block);
    }
    if (planner->pending.active)
        hold(floors, &planner->pending.entry);
    for (uint32_t slot = window->oldest; slot != PD_SLOT_NONE; slot = window->nodes[slot].newer)
        hold(floors, &window->entries[slot]);
    for (uint32_t i = 0; i < planner->shuffle.count; i++)
        hold(floors, &planner->shuffle.entries[i]);
}

uint64_t pd_planner_oldest_block(const struct pd_planner *planner)
{
    const struct pd_window *window = &planner->window;
    return window->oldest == PD_SLOT_NONE ? UINT64_MAX : window->entries[window->oldest].segment.block;
}

void pd_planner_stats(const struct pd_planner *planner, struct pd_planner_stats *stats)
{
    *stats = planner->stats;
    stats->window_samples = planner->window.count;
    stats->window_tokens = planner->window.keys * planner->window.align;
}
