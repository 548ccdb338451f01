/* The refill: from the lanes, over the shuffle buffer, through the over-length policy, into the
 * window.
 *
 * First half of making a pack; the fit is the second. Owner: the planner's thread. Invariant: what
 * is drawn depends on the log's order and the records' places; where the next sample is not there
 * yet, the refill stops and goes on later exactly where it was. It makes no pack.
 *
 *   lane head ──> pruned, left out (skipped, over-length, nothing left)   counted
 *             ──> entry ──> [shuffle buffer] ──> window
 *                                            └─> pending ──> part, part, ... ──> window (split)
 */
#include "packer/planner_skip.h"
#include "packer/planner_state.h"
#include "packer/planner_window_lists.h"

enum admit { ADMIT_WHOLE, ADMIT_CUT, ADMIT_SPLIT, LEAVE_SKIPPED, LEAVE_REJECTED, LEAVE_EMPTIED };

enum step { STEP_TOOK = PD_REFILL_BLOCKED + 1 };

static uint64_t bytes_of_part(uint64_t sample_bytes, uint32_t part_tokens, uint32_t sample_tokens)
{
    return (uint64_t)((unsigned __int128)sample_bytes * part_tokens / sample_tokens);
}

static uint32_t slot_of(const struct pd_rules *rules, uint32_t tokens)
{
    if (rules->seg_align == 1)
        return tokens;
    return (tokens + rules->seg_align - 1) / rules->seg_align * rules->seg_align;
}

/* Field by field: this runs for every sample, and a literal would be built elsewhere and copied. */
static void entry_fill(struct pd_entry *restrict entry, const struct pd_head *restrict head,
                       uint32_t lane, uint32_t pass)
{
    struct pd_segment *segment = &entry->segment;
    segment->block = head->block;
    segment->index = head->index;
    segment->stream = head->stream;
    segment->seq = head->seq;
    segment->source = head->source;
    segment->pass = pass;
    segment->part = 0;
    segment->part_count = 1;
    segment->offset_tokens = 0;
    segment->overlap_tokens = 0;
    segment->length_tokens = head->length_tokens;
    segment->slot_tokens = head->length_tokens;
    segment->sample_tokens = head->length_tokens;
    segment->loss_tokens = 0;
    segment->sample_loss_tokens = 0;
    segment->patches = head->patches;
    segment->weight = head->weight;
    segment->prune = (struct pd_prune){0};
    entry->payload_bytes = pd_head_bytes(head);
    entry->lane = lane;
    entry->cuttable = false;
    entry->dropped = false;
}

static void entry_whole(const struct pd_rules *rules, struct pd_entry *entry,
                        const struct pd_head *head)
{
    uint32_t targets = head->length_tokens - 1;
    if (head->loss.lengths)
        targets = pd_loss_runs_count(head->loss, 1, head->length_tokens);
    entry->segment.loss_tokens = entry->segment.sample_loss_tokens = targets;
    entry->segment.slot_tokens = slot_of(rules, head->length_tokens);
}

static void entry_apply_cut(struct pd_entry *entry, const struct pd_cut *cut)
{
    struct pd_segment *segment = &entry->segment;
    entry->payload_bytes =
        bytes_of_part(entry->payload_bytes, cut->length_tokens, segment->sample_tokens);
    segment->offset_tokens = cut->offset_tokens;
    segment->overlap_tokens = cut->overlap_tokens;
    segment->length_tokens = cut->length_tokens;
    segment->patches = cut->patches;
    segment->loss_tokens = cut->loss_tokens;
}

static int admit_over(const struct pd_rules *rules, const struct pd_head *head,
                      struct pd_entry *entry, uint64_t *slots)
{
    struct pd_cut_room room = pd_planner_room(rules);
    struct pd_split_sums sums;
    struct pd_cut cut;
    switch (rules->over_length) {
    case PD_OVER_REJECT:
        return LEAVE_REJECTED;
    case PD_OVER_KEEP_HEAD:
        if (!pd_cut_keep_head(head, room, &cut))
            return LEAVE_REJECTED;
        break;
    case PD_OVER_KEEP_TAIL:
        if (!pd_cut_keep_tail(head, room, &cut))
            return LEAVE_REJECTED;
        break;
    case PD_OVER_SPLIT:
        if (!pd_split_measure(head, room, rules->seg_align, &sums))
            return LEAVE_REJECTED;
        entry->segment.part_count = sums.parts;
        entry->segment.sample_loss_tokens = sums.loss_tokens;
        entry->cuttable = true;
        *slots = sums.slot_tokens;
        return ADMIT_SPLIT;
    }
    entry_apply_cut(entry, &cut);
    entry->segment.sample_loss_tokens = cut.loss_tokens;
    *slots = entry->segment.slot_tokens = slot_of(rules, cut.length_tokens);
    return ADMIT_CUT;
}

static bool is_pruned(const struct pd_entry *entry)
{
    return entry->segment.prune.drop_views != 0 || entry->segment.prune.keep_frames != 0;
}

/* The head as its source's rule leaves it, in planner->pruned; *head moves there where that is
 * another one. */
static int prune(struct pd_planner *planner, const struct pd_head **head)
{
    const struct pd_head *pushed = *head;
    if (planner->rules.prune_count == 0 || pushed->span_count == 0)
        return 0;
    const struct pd_prune *rule = pd_prune_rule_of(&planner->rules, pushed->source);
    if (!rule || !pd_prune_touches(pushed, *rule))
        return 0;
    *head = &planner->pruned.head;
    return pd_prune_head(pushed, *rule, &planner->pruned);
}

/* What becomes of a head, an enum admit, or PD_ENOMEM: *entry is filled unless it is left out;
 * *slots is what it will take in packs. *head moves to the pruned one. */
static int admit(struct pd_planner *planner, const struct pd_head **head, uint32_t lane,
                 struct pd_entry *entry, uint64_t *slots)
{
    const struct pd_rules *rules = &planner->rules;
    const struct pd_head *pushed = *head;
    if ((planner->records.skip_count > 0 || planner->records.rule_count > 0) &&
        pd_skip_fits(&planner->records, pushed))
        return LEAVE_SKIPPED;
    int rc = prune(planner, head);
    if (rc != 0)
        return rc;
    entry_fill(entry, *head, lane, planner->lanes.lane[lane].pass);
    if (*head != pushed)
        entry->segment.prune = planner->pruned.applied;
    if ((*head)->length_tokens == 0)
        return LEAVE_EMPTIED;
    if (!pd_cut_fits(*head, pd_planner_room(rules)))
        return admit_over(rules, *head, entry, slots);
    entry_whole(rules, entry, *head);
    *slots = entry->segment.slot_tokens;
    return ADMIT_WHOLE;
}

/* A head as pushed, as admitted, and what became of it. */
struct admitted {
    const struct pd_head *pushed, *head;
    const struct pd_entry *entry;
    int how;
};

static void count_admit(struct pd_planner *planner, const struct admitted *admitted)
{
    struct pd_planner_stats *stats = &planner->stats;
    if (admitted->how == ADMIT_CUT) {
        stats->truncated_samples++;
        stats->truncated_tokens +=
            admitted->head->length_tokens - admitted->entry->segment.length_tokens;
    }
    stats->split_samples += admitted->how == ADMIT_SPLIT;
    stats->skipped_samples += admitted->how == LEAVE_SKIPPED;
    stats->rejected_samples += admitted->how == LEAVE_REJECTED;
    if (admitted->how != LEAVE_SKIPPED && admitted->head != admitted->pushed)
        pd_prune_count(&planner->prune_stats, admitted->pushed, &planner->pruned);
}

/* The head is used up, whatever became of it. */
static void consume(struct pd_planner *planner, const struct pd_head *head, uint32_t lane,
                    uint64_t slots, bool out_of_turn)
{
    uint32_t rule = planner->lanes.ordered ? 0 : lane;
    if (planner->records.skip_count > 0 && planner->rules.lanes[rule].on_end != PD_ON_END_REPEAT)
        pd_records_retire(&planner->records, head->stream, head->seq);
    if (head->span_count > 0)
        pd_prune_see(&planner->prune_stats, head);
    pd_lanes_consume(&planner->lanes, lane, slots, out_of_turn);
}

struct drawn {
    const struct pd_head *head;
    uint32_t lane;
    bool out_of_turn;
};

static int refill_of(int draw)
{
    switch (draw) {
    case PD_DRAW_DRY:
        return PD_REFILL_SHORT;
    case PD_DRAW_ENDED:
        return PD_REFILL_ENDED;
    default:
        return PD_REFILL_BLOCKED;
    }
}

/* The next head. STEP_TOOK, a reason to stop, or an error. While a flush is open and not even one
 * pack's worth is left, lanes that do have heads before it stand in for the due one: everything
 * before a flush gets packed. */
static int draw(struct pd_planner *planner, const struct pd_supply *supply, struct drawn *drawn)
{
    uint64_t limit = pd_records_limit(&planner->records);
    drawn->out_of_turn = false;
    int rc = pd_lanes_peek(&planner->lanes, supply, limit, &drawn->head, &drawn->lane);
    bool low = planner->window.keys < planner->window.key_max && planner->shuffle.count == 0;
    if (rc == PD_DRAW_DRY && low) {
        drawn->out_of_turn = true;
        rc = pd_lanes_peek_any(&planner->lanes, supply, limit, &drawn->head, &drawn->lane);
    }
    if (rc < 0)
        return rc;
    return rc == PD_DRAW_HEAD ? (int)STEP_TOOK : refill_of(rc);
}

static bool window_has_room(const struct pd_window *window, const struct pd_rules *rules,
                            uint64_t payload_bytes)
{
    return window->count == 0 || window->payload_bytes + payload_bytes <= rules->window_bytes;
}

static void start_pending(struct pd_planner *planner, const struct pd_entry *entry,
                          const struct pd_head *head)
{
    planner->pending = (struct pd_pending){.active = true, .entry = *entry, .head = head};
}

/* One part of the pending sample into the window. */
static int take_part(struct pd_planner *planner, const struct pd_supply *supply)
{
    struct pd_pending *pending = &planner->pending;
    struct pd_segment *sample = &pending->entry.segment;
    if (!pending->head) {
        struct pd_cursor at = {sample->block, sample->index};
        int rc = pd_lanes_reread(&planner->lanes, supply, pending->entry.lane, at, &pending->head);
        if (rc == 0 && is_pruned(&pending->entry)) {
            rc = pd_prune_head(pending->head, sample->prune, &planner->pruned);
            pending->head = &planner->pruned.head;
        }
        if (rc != 0)
            return rc;
        if (pending->head->length_tokens != sample->sample_tokens)
            return PD_ECORRUPT;
    }
    struct pd_split split = pending->split;
    struct pd_cut cut;
    if (pd_split_done(&split, pending->head) || split.part >= sample->part_count ||
        !pd_split_next(&split, pending->head, pd_planner_room(&planner->rules), &cut))
        return PD_ECORRUPT;
    struct pd_entry *entry = &planner->window.entries[pd_window_slot(&planner->window)];
    *entry = pending->entry;
    entry->cuttable = false;
    entry_apply_cut(entry, &cut);
    entry->segment.part = pending->split.part;
    entry->segment.slot_tokens = slot_of(&planner->rules, cut.length_tokens);
    if (!window_has_room(&planner->window, &planner->rules, entry->payload_bytes))
        return PD_REFILL_FULL;
    pd_window_insert(&planner->window);
    pending->split = split;
    pending->active = !pd_split_done(&split, pending->head);
    return STEP_TOOK;
}

/* What heads of a run are read ahead of: enough for the memory behind the caches. */
#define AHEAD 12

static void fetch_ahead(const struct pd_lanes_run *run, uint32_t taken)
{
    if (taken + AHEAD >= run->count)
        return;
    const char *head = (const char *)&run->heads[taken + AHEAD];
    __builtin_prefetch(head);
    __builtin_prefetch(head + 64);
}

/* Whether the next head of a run goes into the window just as it is. */
static bool goes_in(const struct pd_rules *rules, const struct pd_window *window,
                    const struct pd_lanes_run *run, const struct pd_head *head)
{
    return pd_lanes_sound(head, run->at) && head->block < run->before &&
           (head->span_count == 0 || rules->prune_count == 0) &&
           pd_cut_fits(head, pd_planner_room(rules)) &&
           window_has_room(window, rules, pd_head_bytes(head));
}

/* As many heads of the only lane as go into the window just as they are: take_next without its
 * questions, once per head. The head at which it stops is for take_next. 0, or an error. */
static int take_run(struct pd_planner *planner, const struct pd_supply *supply)
{
    struct pd_window window = planner->window;
    const struct pd_rules *rules = &planner->rules;
    struct pd_lanes_run run;
    uint32_t taken = 0, most = pd_window_room(&window);
    if (planner->records.skip_count > 0 || planner->records.rule_count > 0)
        return 0;
    int rc = pd_lanes_run(&planner->lanes, supply, pd_records_limit(&planner->records), &run);
    for (most = most < run.count ? most : run.count; taken < most; taken++) {
        const struct pd_head *head = &run.heads[taken];
        fetch_ahead(&run, taken);
        if (!goes_in(rules, &window, &run, head))
            break;
        struct pd_entry *entry = &window.entries[pd_window_slot(&window)];
        entry_fill(entry, head, 0, run.pass);
        entry_whole(rules, entry, head);
        pd_window_insert_whole(&window);
        if (head->span_count > 0)
            pd_prune_see(&planner->prune_stats, head);
        run.at = (struct pd_cursor){head->block, head->index + 1};
    }
    if (taken == 0)
        return rc;
    planner->window = window;
    pd_lanes_consume_run(&planner->lanes, taken);
    return 0;
}

/* One head from its lane straight into the window. */
static int take_next(struct pd_planner *planner, const struct pd_supply *supply, uint32_t *lane)
{
    struct drawn drawn;
    int rc = draw(planner, supply, &drawn);
    *lane = drawn.lane;
    if (rc != STEP_TOOK)
        return rc;
    struct pd_entry *entry = &planner->window.entries[pd_window_slot(&planner->window)];
    uint64_t slots = 0;
    struct admitted admitted = {drawn.head, drawn.head, entry, 0};
    admitted.how = admit(planner, &admitted.head, drawn.lane, entry, &slots);
    if (admitted.how < 0)
        return admitted.how;
    if (admitted.how <= ADMIT_CUT) {
        if (!window_has_room(&planner->window, &planner->rules, entry->payload_bytes))
            return PD_REFILL_FULL;
        pd_window_insert(&planner->window);
    }
    if (admitted.how == ADMIT_SPLIT)
        start_pending(planner, entry, admitted.head);
    if (admitted.how != ADMIT_WHOLE || admitted.head != drawn.head)
        count_admit(planner, &admitted);
    consume(planner, drawn.head, drawn.lane, slots, drawn.out_of_turn);
    return STEP_TOOK;
}

/* Heads into the shuffle buffer until it holds its target. 0, or why it does not. */
static int fill_shuffle(struct pd_planner *planner, const struct pd_supply *supply, uint32_t *lane)
{
    struct pd_shuffle *shuffle = &planner->shuffle;
    while (shuffle->count < pd_shuffle_target(shuffle, &planner->rules)) {
        struct drawn drawn;
        int rc = draw(planner, supply, &drawn);
        *lane = drawn.lane;
        if (rc != STEP_TOOK)
            return rc;
        struct pd_entry entry;
        uint64_t slots = 0;
        struct admitted admitted = {drawn.head, drawn.head, &entry, 0};
        admitted.how = admit(planner, &admitted.head, drawn.lane, &entry, &slots);
        if (admitted.how < 0)
            return admitted.how;
        if (admitted.how <= ADMIT_SPLIT) {
            if (shuffle->count > 0 &&
                shuffle->payload_bytes + entry.payload_bytes > planner->rules.shuffle_bytes)
                return 0;
            rc = pd_shuffle_push(shuffle, &entry);
            if (rc != 0)
                return rc;
        }
        count_admit(planner, &admitted);
        consume(planner, drawn.head, drawn.lane, slots, drawn.out_of_turn);
    }
    return 0;
}

/* One sample from the shuffle buffer into the window. */
static int take_shuffled(struct pd_planner *planner, const struct pd_supply *supply, uint32_t *lane)
{
    struct pd_shuffle *shuffle = &planner->shuffle;
    bool drains = planner->rules.order != PD_ORDER_SHUFFLE; /* it was shuffled before */
    int rc = drains ? 0 : fill_shuffle(planner, supply, lane);
    if (rc < 0 || rc == PD_REFILL_BLOCKED)
        return rc;
    if (shuffle->count == 0)
        return rc;
    uint32_t slot = pd_shuffle_pick(shuffle, planner->rules.seed);
    const struct pd_entry *leaving = &shuffle->entries[slot];
    if (leaving->dropped) {
        planner->stats.skipped_samples++;
    } else if (leaving->cuttable) {
        start_pending(planner, leaving, NULL);
    } else {
        if (!window_has_room(&planner->window, &planner->rules, leaving->payload_bytes))
            return PD_REFILL_FULL;
        planner->window.entries[pd_window_slot(&planner->window)] = *leaving;
        pd_window_insert(&planner->window);
    }
    pd_shuffle_remove(shuffle, slot);
    return STEP_TOOK;
}

int pd_refill(struct pd_planner *planner, const struct pd_supply *supply, uint32_t *lane)
{
    *lane = PD_LANE_NONE;
    while (pd_window_room(&planner->window) > 0) {
        bool shuffled = planner->rules.order == PD_ORDER_SHUFFLE || planner->shuffle.count > 0;
        int rc = 0;
        if (!shuffled && !planner->pending.active)
            rc = take_run(planner, supply);
        if (rc != 0)
            return rc;
        if (pd_window_room(&planner->window) == 0)
            break;
        rc = planner->pending.active ? take_part(planner, supply)
             : shuffled              ? take_shuffled(planner, supply, lane)
                                     : take_next(planner, supply, lane);
        if (rc != STEP_TOOK)
            return rc;
    }
    return PD_REFILL_FULL;
}
