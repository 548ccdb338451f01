/* What skips do to the samples that have left their lanes, and to those still there.
 *
 *   window, pending ──> taken out
 *   shuffle buffer  ──> marked, leaves into nothing
 *   lanes           ──> left out by the refill
 *
 * Called between refill and fit, when what the window holds is settled. Owner: the planner's
 * thread. Invariant: a sample of which a part is in a pack already stays whole. The window keeps no
 * keys, groups or versions: where a rule asks for them, heads are read again. */
#include "packer/planner_skip.h"
#include "packer/planner_window_lists.h"

#include <xxhash.h>

static bool same_sample(const struct pd_segment *segment, struct pd_skip skip)
{
    return segment->stream == skip.stream && segment->seq == skip.seq;
}

/* Entries of the sample in the window, and how many it should have there if none of it is in a pack
 * yet. */
struct found {
    uint32_t present, expected;
};

static struct found find_sample(const struct pd_planner *planner, struct pd_skip skip)
{
    const struct pd_window *window = &planner->window;
    const struct pd_pending *pending = &planner->pending;
    struct found found = {0};
    uint32_t last_pass = 0;
    for (uint32_t slot = pd_window_oldest(window); slot != PD_SLOT_NONE;
         slot = window->nodes[slot].newer) {
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

static void drop_entries(struct pd_planner *planner, struct pd_skip skip)
{
    struct pd_window *window = &planner->window;
    uint32_t slot = pd_window_oldest(window);
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

/* A sample that is partly packed already stays whole. */
static void drop_whole(struct pd_planner *planner, struct pd_skip skip)
{
    struct found found = find_sample(planner, skip);
    if (found.present == found.expected) {
        drop_entries(planner, skip);
        pd_solver_void(&planner->solver);
    }
}

/* Any other place the sample may have reached forgets it. */
static int apply_one(struct pd_planner *planner, struct pd_skip skip)
{
    drop_whole(planner, skip);
    for (uint32_t i = 0; i < planner->shuffle.count; i++)
        if (same_sample(&planner->shuffle.entries[i].segment, skip))
            planner->shuffle.entries[i].dropped = true;
    return pd_records_add_skip(&planner->records, skip);
}

/* ---- rules ---- */

static bool fits_segment(const struct pd_open_rule *open, uint64_t block, uint32_t stream,
                         uint64_t seq, uint32_t source)
{
    const struct pd_skip_rule *rule = &open->rule;
    return block < open->at && (!rule->by_stream || stream == rule->stream) &&
           (!rule->by_source || source == rule->source) && seq >= rule->first_seq &&
           seq <= rule->last_seq;
}

static bool asks_head(const struct pd_skip_rule *rule)
{
    return rule->by_group || rule->by_key || rule->version_below > 0;
}

static bool fits_head(const struct pd_skip_rule *rule, const struct pd_head *head)
{
    return (rule->version_below == 0 || head->version < rule->version_below) &&
           (!rule->by_group || (head->group_bytes > 0 &&
                                XXH3_64bits(head->group, head->group_bytes) == rule->group)) &&
           (!rule->by_key ||
            (head->key_bytes > 0 && XXH3_64bits(head->key, head->key_bytes) == rule->key));
}

bool pd_skip_fits(const struct pd_records *records, const struct pd_head *head)
{
    if (pd_records_skips(records, head->stream, head->seq))
        return true;
    for (uint32_t i = 0; i < records->rule_count; i++) {
        const struct pd_open_rule *open = &records->rules[i];
        if (fits_segment(open, head->block, head->stream, head->seq, head->source) &&
            fits_head(&open->rule, head))
            return true;
    }
    return false;
}

/* 1 where the rule fits the sample behind an entry, 0 where not, or an error. */
static int fits_entry(struct pd_planner *planner, const struct pd_supply *supply,
                      const struct pd_open_rule *open, const struct pd_entry *entry)
{
    const struct pd_segment *segment = &entry->segment;
    if (!fits_segment(open, segment->block, segment->stream, segment->seq, segment->source))
        return 0;
    if (!asks_head(&open->rule))
        return 1;
    const struct pd_head *head;
    struct pd_cursor at = {segment->block, segment->index};
    int rc = pd_lanes_reread(&planner->lanes, supply, entry->lane, at, &head);
    return rc != 0 ? rc : fits_head(&open->rule, head);
}

/* The entry after `slot` that belongs to another sample. */
static uint32_t next_sample(const struct pd_window *window, uint32_t slot)
{
    const struct pd_segment *segment = &window->entries[slot].segment;
    struct pd_skip sample = {segment->stream, segment->seq};
    while (slot != PD_SLOT_NONE && same_sample(&window->entries[slot].segment, sample))
        slot = window->nodes[slot].newer;
    return slot;
}

static int apply_to_window(struct pd_planner *planner, const struct pd_supply *supply,
                           const struct pd_open_rule *open)
{
    struct pd_window *window = &planner->window;
    uint32_t slot = pd_window_oldest(window);
    while (slot != PD_SLOT_NONE) {
        const struct pd_segment *segment = &window->entries[slot].segment;
        bool whole = segment->part_count == 1;
        uint32_t next = whole ? window->nodes[slot].newer : next_sample(window, slot);
        int fits = fits_entry(planner, supply, open, &window->entries[slot]);
        if (fits < 0)
            return fits;
        if (fits > 0 && !whole)
            drop_whole(planner, (struct pd_skip){segment->stream, segment->seq});
        if (fits > 0 && whole) {
            planner->stats.skipped_samples++;
            pd_window_remove(window, slot);
            pd_solver_void(&planner->solver);
        }
        slot = next;
    }
    return 0;
}

static int apply_rule(struct pd_planner *planner, const struct pd_supply *supply,
                      const struct pd_change *change)
{
    struct pd_open_rule open = {.at = change->at, .rule = change->rule};
    int rc = apply_to_window(planner, supply, &open), fits = 0;
    if (rc == 0 && planner->pending.active)
        fits = fits_entry(planner, supply, &open, &planner->pending.entry);
    if (fits > 0) {
        const struct pd_segment *segment = &planner->pending.entry.segment;
        drop_whole(planner, (struct pd_skip){segment->stream, segment->seq});
    }
    planner->pending.head = NULL; /* what was borrowed may have moved */
    for (uint32_t i = 0; rc == 0 && fits >= 0 && i < planner->shuffle.count; i++) {
        fits = fits_entry(planner, supply, &open, &planner->shuffle.entries[i]);
        planner->shuffle.entries[i].dropped |= fits > 0;
    }
    if (rc == 0 && fits >= 0)
        planner->records.rules[planner->records.rule_count++] = open;
    return rc != 0 ? rc : fits < 0 ? fits : 0;
}

int pd_skip_apply(struct pd_planner *planner, const struct pd_supply *supply,
                  const struct pd_change *change)
{
    if (change->kind == PD_CONTROL_SKIP_RULE)
        return apply_rule(planner, supply, change);
    return apply_one(planner, (struct pd_skip){change->stream, change->seq});
}

/* Whether the lane may still give a sample from before `at`. */
static bool lane_needs(const struct pd_lanes *lanes, uint32_t lane, uint64_t at)
{
    return lanes->lane[lane].active &&
           (lanes->lane[lane].cursor.block < at || pd_lanes_repeats(lanes, lane));
}

void pd_skip_retire(struct pd_planner *planner)
{
    struct pd_records *records = &planner->records;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < records->rule_count; i++) {
        uint32_t lane = 0;
        while (lane < planner->lanes.count &&
               !lane_needs(&planner->lanes, lane, records->rules[i].at))
            lane++;
        if (lane < planner->lanes.count)
            records->rules[kept++] = records->rules[i];
    }
    records->rule_count = kept;
}
