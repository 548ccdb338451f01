/* The planner's state as bytes, and back.
 *
 *   "PDPS" | version u32 | rules | next pack, stats | lanes | window (by arrival) | solver |
 *   shuffle buffer | pending | records
 *   [| changed, skip rules [| pruning rules, what they took away]]
 *
 * The sequencer saves every few thousand packs and at a clean stop. Owner: the planner's thread.
 * Invariant: restore gives a planner that goes on bit for bit, or refuses: nothing read here is
 * trusted, everything the planner asserts later is checked first. Lists and sets are rebuilt from
 * the entries, never stored. */
#include "packer/planner_state.h"

#include <stdlib.h>

#define SNAPSHOT_MAGIC 0x53504450u
#define DEFICIT_MAX (INT64_C(1) << 58)

static void put(struct pd_buf *buf, uint64_t value)
{
    pd_buf_put_varint(buf, value);
}

static uint32_t get32(struct pd_reader *reader)
{
    return pd_reader_varint32(reader);
}

static uint64_t get(struct pd_reader *reader)
{
    return pd_reader_varint(reader);
}

/* Marks the snapshot as malformed unless `ok`. */
static bool expect(struct pd_reader *reader, bool ok)
{
    if (!ok)
        reader->failed = true;
    return !reader->failed;
}

static uint32_t rule_lanes(const struct pd_rules *rules)
{
    return rules->merge == PD_MERGE_ORDERED ? 1 : rules->lane_count;
}

static void put_rules(struct pd_buf *buf, const struct pd_rules *r)
{
    const uint64_t values[] = {r->seq_len,     r->window_samples,  r->window_bytes,  r->strategy,
                               r->order,       r->shuffle_samples, r->shuffle_bytes, r->merge,
                               r->over_length, r->seg_align,       r->segments_max,  r->patches_max,
                               r->seed,        r->lane_count};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        put(buf, values[i]);
    for (uint32_t i = 0; i < rule_lanes(r); i++) {
        put(buf, r->lanes[i].weight);
        put(buf, r->lanes[i].on_end);
        put(buf, r->lanes[i].passes_max);
    }
}

static void get_rules(struct pd_reader *reader, struct pd_rules *r)
{
    r->seq_len = get32(reader);
    r->window_samples = get32(reader);
    r->window_bytes = get(reader);
    r->strategy = (enum pd_strategy)get32(reader);
    r->order = (enum pd_order)get32(reader);
    r->shuffle_samples = get32(reader);
    r->shuffle_bytes = get(reader);
    r->merge = (enum pd_merge)get32(reader);
    r->over_length = (enum pd_over_length)get32(reader);
    r->seg_align = get32(reader);
    r->segments_max = get32(reader);
    r->patches_max = get32(reader);
    r->seed = get(reader);
    r->lane_count = get32(reader);
    uint32_t lanes = rule_lanes(r);
    for (uint32_t i = 0; i < lanes && i < PD_LANES_WEIGHTED_MAX; i++) {
        r->lanes[i].weight = get32(reader);
        r->lanes[i].on_end = (enum pd_on_end)get32(reader);
        r->lanes[i].passes_max = get32(reader);
    }
}

static void put_stats(struct pd_buf *buf, const struct pd_planner_stats *s)
{
    const uint64_t values[] = {s->packs,
                               s->samples,
                               s->parts,
                               s->truncated_samples,
                               s->truncated_tokens,
                               s->split_samples,
                               s->skipped_samples,
                               s->rejected_samples,
                               s->age_max_samples,
                               s->used_slots,
                               s->real_tokens};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        put(buf, values[i]);
}

static void get_stats(struct pd_reader *reader, struct pd_planner_stats *s)
{
    uint64_t *const values[] = {&s->packs,
                                &s->samples,
                                &s->parts,
                                &s->truncated_samples,
                                &s->truncated_tokens,
                                &s->split_samples,
                                &s->skipped_samples,
                                &s->rejected_samples,
                                &s->age_max_samples,
                                &s->used_slots,
                                &s->real_tokens};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        *values[i] = get(reader);
}

static void put_lanes(struct pd_buf *buf, const struct pd_lanes *lanes)
{
    put(buf, lanes->turn);
    put(buf, lanes->stopped);
    put(buf, lanes->feed_end_at);
    for (uint32_t i = 0; i < lanes->count; i++) {
        const struct pd_lane *lane = &lanes->lane[i];
        put(buf, lane->cursor.block);
        put(buf, lane->cursor.index);
        put(buf, lane->end_at);
        put(buf, lane->first_block);
        pd_buf_put_u64(buf, (uint64_t)lane->deficit);
        put(buf, lane->weight);
        put(buf, lane->pass);
        put(buf, lane->active | lane->yielded << 1);
    }
}

static void get_lane(struct pd_reader *reader, struct pd_lane *lane)
{
    lane->cursor.block = get(reader);
    lane->cursor.index = get32(reader);
    lane->end_at = get(reader);
    lane->first_block = get(reader);
    lane->deficit = (int64_t)pd_reader_u64(reader);
    lane->weight = get32(reader);
    lane->pass = get32(reader);
    uint32_t flags = get32(reader);
    lane->active = flags & 1;
    lane->yielded = flags >> 1 & 1;
    expect(reader, flags <= 3 && lane->weight <= PD_LANE_WEIGHT_MAX &&
                       lane->deficit <= DEFICIT_MAX && lane->deficit >= -DEFICIT_MAX);
}

/* The turn's ring leads from each lane to the next active one. */
static void link_turns(struct pd_lanes *lanes)
{
    uint32_t next = lanes->turn;
    for (uint32_t i = 0; i < 2 * lanes->count; i++) {
        uint32_t at = (2 * lanes->count - 1 - i) % lanes->count;
        lanes->lane[at].next = next;
        if (lanes->lane[at].active)
            next = at;
    }
}

static void get_lanes(struct pd_reader *reader, struct pd_lanes *lanes)
{
    lanes->turn = get32(reader);
    lanes->stopped = get(reader) != 0;
    lanes->feed_end_at = get(reader);
    lanes->active_count = 0;
    for (uint32_t i = 0; i < lanes->count && !reader->failed; i++) {
        get_lane(reader, &lanes->lane[i]);
        lanes->active_count += lanes->lane[i].active;
    }
    bool turn_ok = lanes->turn < lanes->count &&
                   (lanes->active_count == 0 || !lanes->ordered || lanes->lane[lanes->turn].active);
    if (expect(reader, turn_ok) && lanes->ordered)
        link_turns(lanes);
}

static void put_entry(struct pd_buf *buf, const struct pd_entry *entry)
{
    pd_segment_encode(&entry->segment, buf);
    put(buf, entry->payload_bytes);
    put(buf, entry->lane);
    put(buf, entry->cuttable | entry->dropped << 1);
}

static bool get_entry(struct pd_reader *reader, const struct pd_rules *rules,
                      struct pd_entry *entry)
{
    *entry = (struct pd_entry){0};
    if (!expect(reader, pd_segment_decode(&entry->segment, reader)))
        return false;
    entry->payload_bytes = get(reader);
    entry->lane = get32(reader);
    uint32_t flags = get32(reader);
    entry->cuttable = flags & 1;
    entry->dropped = flags >> 1 & 1;
    const struct pd_segment *s = &entry->segment;
    bool fits = s->slot_tokens <= rules->seq_len && s->slot_tokens % rules->seg_align == 0 &&
                (rules->patches_max == 0 || s->patches <= rules->patches_max);
    return expect(reader, flags <= 3 && entry->lane < rules->lane_count &&
                              entry->payload_bytes < UINT64_MAX >> 24 && (fits || entry->cuttable));
}

static void put_window(struct pd_buf *buf, const struct pd_window *window, bool with_bins)
{
    put(buf, window->count);
    put(buf, window->entered);
    put(buf, window->mean_fixed);
    put(buf, window->square_fixed);
    for (uint32_t slot = window->oldest; slot != PD_SLOT_NONE; slot = window->nodes[slot].newer) {
        put_entry(buf, &window->entries[slot]);
        put(buf, pd_window_age(window, slot));
        put(buf, with_bins ? (uint32_t)(window->nodes[slot].bin + 1) : 0);
    }
}

/* Inserting in the stored order rebuilds every list. */
static int get_window(struct pd_reader *reader, const struct pd_rules *rules,
                      struct pd_window *window)
{
    uint32_t count = get32(reader);
    uint64_t last = UINT64_MAX, key_max = window->key_max;
    uint64_t entered = get(reader);
    uint64_t mean = get(reader);
    uint64_t square = get(reader);
    expect(reader, count <= PD_WINDOW_SAMPLES_MAX && mean <= key_max << 16 &&
                       square <= key_max * key_max << 16);
    if (!reader->failed && pd_window_grow(window, count) != 0)
        return PD_ENOMEM;
    for (uint32_t i = 0; i < count && !reader->failed; i++) {
        uint32_t slot = pd_window_slot(window);
        struct pd_entry *entry = &window->entries[slot];
        if (!get_entry(reader, rules, entry))
            return 0;
        uint64_t age = get32(reader);
        uint32_t bin = get32(reader);
        if (!expect(reader, age < entered && age < last && !entry->cuttable && !entry->dropped &&
                                bin <= PD_WINDOW_SAMPLES_MAX))
            return 0;
        last = age;
        window->entered = entered - age - 1;
        pd_window_insert(window);
        window->nodes[slot].bin = bin - 1;
        expect(reader, bin == 0 || !pd_window_dormant(window, slot));
    }
    window->entered = entered;
    window->mean_fixed = mean;
    window->square_fixed = square;
    return 0;
}

static int get_solver(struct pd_reader *reader, const struct pd_rules *rules,
                      struct pd_solver *solver, struct pd_window *window)
{
    uint32_t packs_left = get32(reader), bin_count = get32(reader);
    expect(reader, packs_left <= PD_SOLVER_PACKS && bin_count <= PD_WINDOW_SAMPLES_MAX);
    for (uint32_t slot = window->oldest; slot != PD_SLOT_NONE; slot = window->nodes[slot].newer) {
        uint32_t bin = window->nodes[slot].bin;
        expect(reader, bin == PD_BIN_NONE || bin < bin_count);
    }
    uint32_t bins = bin_count > window->capacity ? bin_count : window->capacity;
    if (!reader->failed && pd_solver_grow(solver, bins) != 0)
        return PD_ENOMEM;
    if (reader->failed)
        return 0;
    pd_solver_rebuild(solver, window, bin_count, packs_left);
    for (uint32_t i = 0; i < bin_count; i++)
        expect(reader,
               solver->bins[i].used_keys <= window->key_max &&
                   (rules->segments_max == 0 || solver->bins[i].count <= rules->segments_max));
    return 0;
}

static void put_shuffle(struct pd_buf *buf, const struct pd_shuffle *shuffle)
{
    put(buf, shuffle->count);
    put(buf, shuffle->left);
    for (uint32_t i = 0; i < shuffle->count; i++)
        put_entry(buf, &shuffle->entries[i]);
}

static int get_shuffle(struct pd_reader *reader, const struct pd_rules *rules,
                       struct pd_shuffle *shuffle)
{
    uint32_t count = get32(reader);
    shuffle->left = get(reader);
    expect(reader, count <= PD_SHUFFLE_SAMPLES_MAX); /* it may have been larger before */
    for (uint32_t i = 0; i < count && !reader->failed; i++) {
        struct pd_entry entry;
        if (!get_entry(reader, rules, &entry))
            return 0;
        int rc = pd_shuffle_push(shuffle, &entry);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static void put_pending(struct pd_buf *buf, const struct pd_pending *pending)
{
    const struct pd_split *split = &pending->split;
    put(buf, pending->active);
    if (!pending->active)
        return;
    put_entry(buf, &pending->entry);
    put(buf, split->offset_tokens);
    put(buf, split->overlap_tokens);
    put(buf, split->span);
    put(buf, split->part);
    put(buf, split->loss.run);
    put(buf, split->loss.start_tokens);
}

static void get_pending(struct pd_reader *reader, const struct pd_rules *rules,
                        struct pd_pending *pending)
{
    struct pd_split *split = &pending->split;
    pending->active = get(reader) != 0;
    if (!pending->active || !get_entry(reader, rules, &pending->entry))
        return;
    split->offset_tokens = get32(reader);
    split->overlap_tokens = get32(reader);
    split->span = get32(reader);
    split->part = get32(reader);
    split->loss.run = get32(reader);
    split->loss.start_tokens = get32(reader);
    const struct pd_segment *sample = &pending->entry.segment;
    expect(reader, pending->entry.cuttable && split->overlap_tokens <= 1 &&
                       split->offset_tokens < sample->sample_tokens &&
                       split->part < sample->part_count);
}

static void put_rule(struct pd_buf *buf, uint64_t at, const struct pd_skip_rule *rule)
{
    put(buf, at);
    put(buf, rule->by_stream | rule->by_source << 1 | rule->by_group << 2 | rule->by_key << 3);
    put(buf, rule->stream);
    put(buf, rule->source);
    put(buf, rule->first_seq);
    put(buf, rule->last_seq);
    pd_buf_put_u64(buf, rule->group);
    pd_buf_put_u64(buf, rule->key);
    put(buf, rule->version_below);
}

static void get_rule(struct pd_reader *reader, uint64_t *at, struct pd_skip_rule *rule)
{
    *at = get(reader);
    uint32_t flags = get32(reader);
    expect(reader, flags <= 15);
    rule->by_stream = flags & 1;
    rule->by_source = flags >> 1 & 1;
    rule->by_group = flags >> 2 & 1;
    rule->by_key = flags >> 3 & 1;
    rule->stream = get32(reader);
    rule->source = get32(reader);
    rule->first_seq = get(reader);
    rule->last_seq = get(reader);
    rule->group = pd_reader_u64(reader);
    rule->key = pd_reader_u64(reader);
    rule->version_below = get(reader);
}

static void put_prune(struct pd_buf *buf, const struct pd_prune_rule *rule)
{
    put(buf, rule->source);
    put(buf, rule->prune.drop_views);
    put(buf, rule->prune.keep_frames);
}

static struct pd_prune_rule get_prune(struct pd_reader *reader)
{
    struct pd_prune_rule rule = {.source = get32(reader)};
    rule.prune.drop_views = get(reader);
    rule.prune.keep_frames = get32(reader);
    return rule;
}

static void put_prunes(struct pd_buf *buf, const struct pd_prune_rule *rules, uint32_t count)
{
    put(buf, count);
    for (uint32_t i = 0; i < count; i++)
        put_prune(buf, &rules[i]);
}

/* How many there are; none where the bytes do not hold them. */
static uint32_t get_prunes(struct pd_reader *reader, struct pd_prune_rule *rules)
{
    uint32_t count = get32(reader);
    if (!expect(reader, count <= PD_PRUNE_RULES_MAX))
        return 0;
    for (uint32_t i = 0; i < count; i++)
        rules[i] = get_prune(reader);
    return count;
}

static void put_live(struct pd_buf *buf, const struct pd_live_rules *live)
{
    put(buf, live->window_samples);
    put(buf, live->window_bytes);
    put(buf, live->strategy);
    put(buf, live->order);
    put(buf, live->shuffle_samples);
    put(buf, live->shuffle_bytes);
    put(buf, live->over_length);
    put_prunes(buf, live->prunes, live->prune_count);
}

static void get_live(struct pd_reader *reader, struct pd_live_rules *live)
{
    live->window_samples = get32(reader);
    live->window_bytes = get(reader);
    live->strategy = (enum pd_strategy)get32(reader);
    live->order = (enum pd_order)get32(reader);
    live->shuffle_samples = get32(reader);
    live->shuffle_bytes = get(reader);
    live->over_length = (enum pd_over_length)get32(reader);
    live->prune_count = get_prunes(reader, live->prunes);
}

static bool has_pruning(const struct pd_planner *planner)
{
    const struct pd_prune_stats *stats = &planner->prune_stats;
    return planner->rules.prune_count > 0 || stats->samples > 0 || stats->seen_views != 0;
}

static void put_pruning(struct pd_buf *buf, const struct pd_planner *planner)
{
    const struct pd_rules *rules = &planner->rules;
    const struct pd_prune_stats *stats = &planner->prune_stats;
    if (!has_pruning(planner))
        return;
    put_prunes(buf, rules->prunes, rules->prune_count);
    pd_prune_stats_save(stats, buf);
}

static void get_pruning(struct pd_reader *reader, struct pd_planner *planner)
{
    struct pd_rules *rules = &planner->rules;
    if (reader->failed || pd_reader_left(reader) == 0)
        return;
    rules->prune_count = get_prunes(reader, rules->prunes);
    pd_prune_stats_load(reader, &planner->prune_stats);
    expect(reader, pd_rules_check(rules, NULL) == 0);
}

static void put_records(struct pd_buf *buf, const struct pd_records *records, uint32_t lanes)
{
    put(buf, records->last_at);
    put(buf, records->flush_count);
    put(buf, records->change_count);
    put(buf, records->skip_count);
    for (uint32_t i = 0; i < records->flush_count; i++) {
        put(buf, records->flushes[i].at);
        put(buf, records->flushes[i].packs);
        put(buf, records->flushes[i].made);
    }
    for (uint32_t i = 0; i < records->change_count; i++) {
        const struct pd_change *change = &records->changes[i];
        put(buf, change->kind);
        put(buf, change->from_pack);
        put(buf, change->stream);
        put(buf, change->seq);
        for (uint32_t j = 0; change->kind == PD_CONTROL_WEIGHTS && j < lanes; j++)
            put(buf, change->weights[j]);
        if (change->kind == PD_CONTROL_SKIP_RULE)
            put_rule(buf, change->at, &change->rule);
        if (change->kind == PD_CONTROL_RULES)
            put_live(buf, &change->rules);
    }
    for (uint32_t i = 0; i < records->skip_count; i++) {
        put(buf, records->skips[i].stream);
        put(buf, records->skips[i].seq);
    }
}

static int get_flush(struct pd_reader *reader, struct pd_records *records)
{
    struct pd_flush flush = {0};
    flush.at = get(reader);
    flush.packs = get(reader);
    flush.made = get(reader);
    bool later =
        records->flush_count == 0 || records->flushes[records->flush_count - 1].at <= flush.at;
    bool open = flush.packs == 0 || flush.made < flush.packs;
    if (!expect(reader, later && open && flush.at <= records->last_at))
        return 0;
    return pd_records_add_flush(records, &flush);
}

static int get_change(struct pd_reader *reader, struct pd_records *records,
                      const struct pd_rules *rules)
{
    struct pd_change change = {0};
    change.kind = (enum pd_control_kind)get32(reader);
    change.from_pack = get(reader);
    change.stream = get32(reader);
    change.seq = get(reader);
    bool weights = change.kind == PD_CONTROL_WEIGHTS && rules->merge != PD_MERGE_ORDERED;
    uint64_t sum = 0;
    for (uint32_t j = 0; weights && j < rules->lane_count; j++) {
        change.weights[j] = get32(reader);
        sum += change.weights[j];
        expect(reader, change.weights[j] <= PD_LANE_WEIGHT_MAX);
    }
    if (change.kind == PD_CONTROL_SKIP_RULE)
        get_rule(reader, &change.at, &change.rule);
    if (change.kind == PD_CONTROL_RULES)
        get_live(reader, &change.rules);
    bool other = change.kind == PD_CONTROL_SKIP || change.kind == PD_CONTROL_SKIP_RULE;
    bool live = change.kind == PD_CONTROL_RULES && !reader->failed &&
                pd_live_rules_check(rules, &change.rules, NULL) == 0;
    if (!expect(reader, weights ? sum > 0 : other || live))
        return 0;
    return pd_records_add_change(records, &change);
}

static int get_skip(struct pd_reader *reader, struct pd_records *records)
{
    struct pd_skip skip = {0};
    skip.stream = get32(reader);
    skip.seq = get(reader);
    return reader->failed ? 0 : pd_records_add_skip(records, skip);
}

static int get_records(struct pd_reader *reader, const struct pd_rules *rules,
                       struct pd_records *records)
{
    records->last_at = get(reader);
    uint32_t flushes = get32(reader), changes = get32(reader), skips = get32(reader);
    int rc = 0;
    expect(reader, flushes <= PD_RECORDS_MAX && changes <= PD_RECORDS_MAX &&
                       (uint64_t)skips + changes <= 2 * PD_RECORDS_MAX);
    for (uint32_t i = 0; i < flushes && rc == 0 && !reader->failed; i++)
        rc = get_flush(reader, records);
    for (uint32_t i = 0; i < changes && rc == 0 && !reader->failed; i++)
        rc = get_change(reader, records, rules);
    for (uint32_t i = 0; i < skips && rc == 0 && !reader->failed; i++)
        rc = get_skip(reader, records);
    return rc;
}

/* Behind everything else, and only where there are any: snapshots without it are complete too. */
static void put_open_rules(struct pd_buf *buf, const struct pd_planner *planner)
{
    const struct pd_records *records = &planner->records;
    if (records->rule_count == 0 && !planner->changed && !has_pruning(planner))
        return;
    put(buf, planner->changed);
    put(buf, records->rule_count);
    for (uint32_t i = 0; i < records->rule_count; i++)
        put_rule(buf, records->rules[i].at, &records->rules[i].rule);
}

static void get_open_rules(struct pd_reader *reader, struct pd_planner *planner)
{
    struct pd_records *records = &planner->records;
    if (reader->failed || pd_reader_left(reader) == 0)
        return;
    uint32_t changed = get32(reader), count = get32(reader);
    planner->changed = changed;
    expect(reader, changed <= 1 && count <= PD_SKIP_RULES_MAX &&
                       (changed + count > 0 || pd_reader_left(reader) > 0));
    for (uint32_t i = 0; i < count && !reader->failed; i++) {
        struct pd_open_rule *open = &records->rules[records->rule_count++];
        get_rule(reader, &open->at, &open->rule);
    }
}

int pd_planner_save(const struct pd_planner *planner, struct pd_buf *buf)
{
    bool bins = planner->solver.packs_left > 0;
    pd_buf_put_u32(buf, SNAPSHOT_MAGIC);
    pd_buf_put_u32(buf, PD_PLANNER_VERSION);
    put_rules(buf, &planner->rules);
    put(buf, planner->next_pack);
    put_stats(buf, &planner->stats);
    put_lanes(buf, &planner->lanes);
    put_window(buf, &planner->window, bins);
    put(buf, planner->solver.packs_left);
    put(buf, bins ? planner->solver.bin_count : 0);
    put_shuffle(buf, &planner->shuffle);
    put_pending(buf, &planner->pending);
    put_records(buf, &planner->records, rule_lanes(&planner->rules));
    put_open_rules(buf, planner);
    put_pruning(buf, planner);
    return buf->failed ? PD_ENOMEM : 0;
}

/* The state after the rules, into a fresh planner. */
static int get_state(struct pd_reader *reader, struct pd_planner *planner)
{
    const struct pd_rules *rules = &planner->rules;
    planner->next_pack = get(reader);
    get_stats(reader, &planner->stats);
    get_lanes(reader, &planner->lanes);
    int rc = reader->failed ? 0 : get_window(reader, rules, &planner->window);
    if (rc == 0 && !reader->failed)
        rc = get_solver(reader, rules, &planner->solver, &planner->window);
    if (rc == 0 && !reader->failed)
        rc = get_shuffle(reader, rules, &planner->shuffle);
    if (rc == 0 && !reader->failed)
        get_pending(reader, rules, &planner->pending);
    if (rc == 0 && !reader->failed)
        rc = get_records(reader, rules, &planner->records);
    if (rc == 0)
        get_open_rules(reader, planner);
    if (rc != 0)
        return rc == PD_ENOMEM ? PD_ENOMEM : PD_ECORRUPT;
    get_pruning(reader, planner);
    return pd_reader_done(reader) ? 0 : PD_ECORRUPT;
}

int pd_planner_restore(const void *data, size_t size, struct pd_planner **planner,
                       struct pd_error *error)
{
    struct pd_reader reader = pd_reader_of(data, size);
    struct pd_rules rules = {0};
    *planner = NULL;
    uint32_t magic = pd_reader_u32(&reader);
    uint32_t version = pd_reader_u32(&reader);
    if (magic != SNAPSHOT_MAGIC || reader.failed)
        return pd_error_set(error, PD_ECORRUPT, "SNAPSHOT", "these bytes are no planner snapshot");
    if (version != PD_PLANNER_VERSION)
        return pd_error_set(error, PD_EMISMATCH, "PLANNER_VERSION",
                            "the snapshot is of planner version %u, this is version %u", version,
                            PD_PLANNER_VERSION);
    get_rules(&reader, &rules);
    if (reader.failed || pd_rules_check(&rules, NULL) != 0)
        return pd_error_set(error, PD_ECORRUPT, "SNAPSHOT",
                            "the rules in the planner snapshot are damaged");
    int rc = pd_planner_new(&rules, planner, error);
    if (rc != 0)
        return rc;
    rc = get_state(&reader, *planner);
    if (rc == 0)
        return 0;
    pd_planner_free(*planner);
    *planner = NULL;
    return pd_error_set(error, rc, "SNAPSHOT", "the planner snapshot of %zu bytes is damaged",
                        size);
}
