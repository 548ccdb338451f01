/* Case generator, drivers and property checks. See planner_case.h. */
#include "tests/model/planner_case.h"

#include "base/check.h"
#include "tests/unit/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define STREAMS_MAX 8
#define HEADS_MAX 900

/* Keys and groups of samples. */
static const uint8_t names[3][1] = {{0x61}, {0x62}, {0x63}};

struct chance chance_of_seed(uint64_t seed)
{
    return (struct chance){.state = seed};
}

struct chance chance_of_bytes(const uint8_t *bytes, size_t size)
{
    return (struct chance){.bytes = bytes, .left = size, .from_bytes = true};
}

uint32_t chance_below(struct chance *chance, uint32_t bound)
{
    if (chance->from_bytes) {
        uint32_t value = 0;
        for (uint32_t have = 1; have < bound && chance->left > 0; have <<= 8, chance->left--) {
            value = value << 8 | *chance->bytes++;
            if (have > 0xffffff)
                break;
        }
        return value % bound;
    }
    return test_below(&chance->state, bound);
}

static bool one_in(struct chance *chance, uint32_t n)
{
    return chance_below(chance, n) == n - 1;
}

static uint32_t between(struct chance *chance, uint32_t low, uint32_t high)
{
    return low + chance_below(chance, high - low + 1);
}

/* ---- generator ---- */

static void make_lanes(struct pd_rules *r, struct chance *chance)
{
    r->merge = one_in(chance, 4) ? PD_MERGE_ORDERED : PD_MERGE_ARRIVAL;
    r->lane_count = one_in(chance, 2) ? 1 : between(chance, 1, 4);
    for (uint32_t i = 0; i < r->lane_count; i++) {
        r->lanes[i].weight = one_in(chance, 8) && i > 0 ? 0 : between(chance, 1, 9);
        r->lanes[i].on_end = one_in(chance, 4)   ? PD_ON_END_REPEAT
                             : one_in(chance, 8) ? PD_ON_END_STOP
                                                 : PD_ON_END_CONTINUE;
        r->lanes[i].passes_max = between(chance, 1, 3);
    }
}

static void make_rules(struct pd_rules *r, struct chance *chance)
{
    static const uint32_t sizes[] = {1, 2, 8, 16, 64, 120, 240, 1024};
    static const uint32_t aligns[] = {1, 1, 1, 2, 4, 8};
    *r = (struct pd_rules){.window_bytes = UINT64_MAX, .shuffle_bytes = UINT64_MAX};
    r->seq_len = sizes[chance_below(chance, PD_COUNT_OF(sizes))];
    do
        r->seg_align = aligns[chance_below(chance, PD_COUNT_OF(aligns))];
    while (r->seq_len % r->seg_align != 0 && !(chance->from_bytes && chance->left == 0));
    if (r->seq_len % r->seg_align != 0)
        r->seg_align = 1;
    r->window_samples = between(chance, 1, one_in(chance, 3) ? 4 : 60);
    if (one_in(chance, 4))
        r->window_bytes = 1 + chance_below(chance, 16 * r->seq_len);
    r->strategy = one_in(chance, 3) ? (enum pd_strategy)chance_below(chance, 4) : PD_STRATEGY_EXACT;
    r->order = one_in(chance, 3) ? PD_ORDER_SHUFFLE : PD_ORDER_ARRIVAL;
    r->shuffle_samples = between(chance, 1, 90);
    if (one_in(chance, 4))
        r->shuffle_bytes = 1 + chance_below(chance, 32 * r->seq_len);
    r->seed = chance_below(chance, 1000);
    r->over_length = (enum pd_over_length)chance_below(chance, 4);
    r->segments_max = one_in(chance, 4) ? between(chance, 1, 6) : 0;
    r->patches_max = one_in(chance, 4) ? between(chance, 1, 12) : 0;
    make_lanes(r, chance);
}

static void make_spans(struct pd_head *h, struct chance *chance)
{
    uint32_t count = chance_below(chance, 5), at = 0, made = 0;
    struct pd_span *spans = calloc(count + 1, sizeof *spans);
    PD_CHECK(spans);
    for (uint32_t i = 0; i < count && at < h->length_tokens; i++) {
        at += one_in(chance, 3) ? 0 : chance_below(chance, h->length_tokens - at);
        uint32_t length = 1 + chance_below(chance, (h->length_tokens - at + 1) / 2 + 1);
        if (at + length > h->length_tokens)
            break;
        spans[made++] = (struct pd_span){
            .offset_tokens = at, .length_tokens = length, .patches = chance_below(chance, 5)};
        h->patches += spans[made - 1].patches;
        at += length;
    }
    h->spans = spans;
    h->span_count = made;
}

static void make_runs(struct pd_head *h, struct chance *chance)
{
    uint32_t count = chance_below(chance, 6);
    uint32_t *runs = calloc(count + 1, sizeof *runs);
    PD_CHECK(runs);
    for (uint32_t i = 0; i < count; i++)
        runs[i] = chance_below(chance, h->length_tokens);
    h->loss = (struct pd_loss_runs){runs, count};
}

/* What lengths look like in one case. */
struct shape {
    uint32_t low, high, over_in;
    bool spans, runs, bytes;
};

static struct shape make_shape(const struct pd_rules *r, struct chance *chance)
{
    struct shape shape = {.over_in = one_in(chance, 3) ? 4 : 40};
    shape.high = between(chance, 1, r->seq_len);
    shape.low = one_in(chance, 2) ? 1 : between(chance, 1, shape.high);
    shape.spans = r->patches_max > 0 || one_in(chance, 3);
    shape.runs = one_in(chance, 3);
    shape.bytes = one_in(chance, 4);
    return shape;
}

static void make_head(struct pd_head *h, const struct planner_case *c, const struct shape *shape,
                      struct chance *chance)
{
    static const float weights[] = {1, 1, 1, 0, 0.5f, 3};
    h->length_tokens = between(chance, shape->low, shape->high);
    if (one_in(chance, shape->over_in))
        h->length_tokens = between(chance, c->rules.seq_len, 5 * c->rules.seq_len + 1);
    h->weight = weights[chance_below(chance, PD_COUNT_OF(weights))];
    h->source = h->stream % 3;
    if (shape->spans)
        make_spans(h, chance);
    if (shape->runs && one_in(chance, 2))
        make_runs(h, chance);
    if (shape->bytes)
        h->payload_bytes = chance_below(chance, 12 * h->length_tokens);
    h->version = h->seq % 4;
    h->group = names[h->seq / 5 % 3];
    h->group_bytes = h->seq % 5 != 0;
    h->key = names[h->seq / 3 % 3];
    h->key_bytes = h->seq % 7 != 0;
}

static struct model_record *new_record(struct planner_case *c)
{
    if (c->log.count == c->log.capacity) {
        c->log.capacity = c->log.capacity ? 2 * c->log.capacity : 64;
        c->log.records = realloc(c->log.records, c->log.capacity * sizeof *c->log.records);
        PD_CHECK(c->log.records);
    }
    struct model_record *record = &c->log.records[c->log.count++];
    *record = (struct model_record){0};
    return record;
}

static struct model_record *new_control(struct planner_case *c, enum pd_control_kind kind)
{
    struct model_record *record = new_record(c);
    record->is_control = true;
    record->control.kind = kind;
    return record;
}

struct maker {
    struct chance *chance;
    struct shape shape;
    uint64_t next_seq[STREAMS_MAX];
    bool ended[4];
};

static void make_block(struct planner_case *c, struct maker *maker)
{
    uint32_t lane = chance_below(maker->chance, c->rules.lane_count);
    uint32_t count = between(maker->chance, 1, 12);
    if (maker->ended[lane])
        return;
    struct model_record *record = new_record(c);
    record->lane = lane;
    record->heads = calloc(count, sizeof *record->heads);
    PD_CHECK(record->heads);
    record->head_count = count;
    for (uint32_t i = 0; i < count; i++) {
        struct pd_head *h = &record->heads[i];
        h->stream = lane + (one_in(maker->chance, 2) ? 4 : 0);
        h->seq = maker->next_seq[h->stream]++;
        make_head(h, c, &maker->shape, maker->chance);
    }
    c->head_count += count;
}

static void make_rule(struct pd_skip_rule *rule, const struct planner_case *c, struct maker *maker)
{
    struct chance *chance = maker->chance;
    uint32_t asks = 1 + chance_below(chance, 31);
    uint32_t lane = chance_below(chance, c->rules.lane_count);
    rule->last_seq = UINT64_MAX;
    rule->by_stream = asks & 1;
    rule->stream = lane + (one_in(chance, 2) ? 4 : 0);
    if (rule->by_stream && one_in(chance, 2)) {
        rule->first_seq = chance_below(chance, (uint32_t)maker->next_seq[rule->stream] + 1);
        rule->last_seq = rule->first_seq + chance_below(chance, 60);
    }
    rule->by_source = asks & 2;
    rule->source = chance_below(chance, 3);
    rule->version_below = asks & 4 ? 1 + chance_below(chance, 3) : 0;
    rule->by_group = asks & 8;
    rule->group = XXH3_64bits(names[chance_below(chance, 3)], 1);
    rule->by_key = asks & 16;
    rule->key = XXH3_64bits(names[chance_below(chance, 3)], 1);
}

static void make_change(struct planner_case *c, struct maker *maker)
{
    struct chance *chance = maker->chance;
    if (c->rules.merge == PD_MERGE_ARRIVAL && one_in(chance, 2)) {
        struct pd_control *w = &new_control(c, PD_CONTROL_WEIGHTS)->control;
        for (uint32_t i = 0; i < c->rules.lane_count; i++)
            w->weights[i] = i == 0 ? between(chance, 1, 9) : chance_below(chance, 5);
        c->has_weights = true;
        return;
    }
    if (one_in(chance, 4)) {
        struct pd_rules other;
        make_rules(&other, chance);
        new_control(c, PD_CONTROL_RULES)->control.rules = pd_live_rules_of(&other);
        c->has_rules = true;
        return;
    }
    c->has_skip = true;
    if (one_in(chance, 2)) {
        make_rule(&new_control(c, PD_CONTROL_SKIP_RULE)->control.rule, c, maker);
        return;
    }
    struct pd_control *skip = &new_control(c, PD_CONTROL_SKIP)->control;
    uint32_t lane = chance_below(chance, c->rules.lane_count);
    skip->stream = lane + (one_in(chance, 2) ? 4 : 0);
    uint64_t seen = maker->next_seq[skip->stream];
    uint64_t back = chance_below(chance, 40);
    skip->seq = back > seen + 10 ? 0 : seen + 10 - back;
}

static void make_record(struct planner_case *c, struct maker *maker)
{
    struct chance *chance = maker->chance;
    uint32_t kind = chance_below(chance, 24);
    if (kind == 1) {
        new_control(c, PD_CONTROL_FLUSH)->control.packs = chance_below(chance, 5);
    } else if (kind == 2 && one_in(chance, 4)) {
        uint32_t lane = chance_below(chance, c->rules.lane_count);
        new_control(c, PD_CONTROL_END_LANE)->control.lane = lane;
        maker->ended[lane] = true;
    } else if (kind == 3) {
        make_change(c, maker);
    } else {
        make_block(c, maker);
    }
}

void case_number(struct planner_case *c)
{
    for (size_t r = 0; r < c->log.count; r++) {
        struct model_record *record = &c->log.records[r];
        record->control.at = r + 1;
        for (uint32_t i = 0; i < record->head_count; i++) {
            record->heads[i].block = r + 1;
            record->heads[i].index = i;
        }
    }
}

void case_init(struct planner_case *c, struct chance *chance)
{
    *c = (struct planner_case){0};
    make_rules(&c->rules, chance);
    struct maker maker = {.chance = chance, .shape = make_shape(&c->rules, chance)};
    uint32_t records = one_in(chance, 4) ? chance_below(chance, 4) : chance_below(chance, 80);
    for (uint32_t i = 0; i < records && c->head_count < HEADS_MAX; i++)
        make_record(c, &maker);
    c->ends = !one_in(chance, 5);
    if (c->ends)
        new_control(c, PD_CONTROL_END_FEED);
    case_number(c);
}

static void record_free(struct model_record *record)
{
    free(record->heads);
}

void case_fini(struct planner_case *c)
{
    for (size_t r = 0; r < c->log.count; r++) {
        for (uint32_t i = 0; i < c->log.records[r].head_count; i++) {
            free((void *)c->log.records[r].heads[i].spans);
            free((void *)c->log.records[r].heads[i].loss.lengths);
        }
        record_free(&c->log.records[r]);
    }
    free(c->log.records);
}

void case_recut(struct planner_case *c, struct chance *chance)
{
    struct model_log old = c->log;
    c->log = (struct model_log){0};
    for (size_t r = 0; r < old.count; r++) {
        struct model_record *from = &old.records[r];
        if (from->is_control)
            *new_record(c) = *from;
        struct model_record *to = NULL;
        for (uint32_t i = 0; i < from->head_count; i++) {
            if (!to || one_in(chance, 3)) {
                to = new_record(c);
                to->lane = from->lane;
                to->heads = calloc(from->head_count, sizeof *to->heads);
                PD_CHECK(to->heads);
            }
            to->heads[to->head_count++] = from->heads[i];
        }
        record_free(from);
    }
    free(old.records);
    case_number(c);
}

/* ---- drivers ---- */

/* The log as the planner sees it: the first `visible` records, spans of a block or less. */
struct view {
    const struct planner_case *c;
    size_t visible;
    struct chance *chance;
    struct pd_head lent[16];
};

static int view_read(void *ctx, uint32_t lane, struct pd_cursor at, const struct pd_head **heads)
{
    struct view *view = ctx;
    for (size_t r = at.block ? at.block - 1 : 0; r < view->visible; r++) {
        const struct model_record *record = &view->c->log.records[r];
        uint32_t from = record->head_count && record->heads[0].block == at.block ? at.index : 0;
        if (record->is_control || record->lane != lane || from >= record->head_count)
            continue;
        uint32_t count = record->head_count - from;
        count = view->chance ? between(view->chance, 1, count) : count;
        memset(view->lent, 0xee, sizeof view->lent); /* what was lent before is gone */
        memcpy(view->lent, record->heads + from, count * sizeof *view->lent);
        *heads = view->lent;
        return (int)count;
    }
    return 0;
}

static struct pd_pack *packs_add(struct packs *packs)
{
    if (packs->count == packs->capacity) {
        packs->capacity = packs->capacity ? 2 * packs->capacity : 64;
        packs->pack = realloc(packs->pack, packs->capacity * sizeof *packs->pack);
        PD_CHECK(packs->pack);
    }
    packs->pack[packs->count] = (struct pd_pack){0};
    return &packs->pack[packs->count++];
}

void packs_fini(struct packs *packs)
{
    for (size_t i = 0; i < packs->count; i++)
        pd_pack_fini(&packs->pack[i]);
    free(packs->pack);
}

static struct pd_planner *restart(struct pd_planner *planner)
{
    struct pd_buf first = {0}, second = {0};
    struct pd_error error;
    PD_CHECK(pd_planner_save(planner, &first) == 0);
    pd_planner_free(planner);
    if (pd_planner_restore(first.data, first.size_bytes, &planner, &error) != 0)
        pd_panic(__FILE__, __LINE__, "%s", error.text);
    PD_CHECK(pd_planner_save(planner, &second) == 0);
    PD_CHECK(first.size_bytes == second.size_bytes &&
             memcmp(first.data, second.data, first.size_bytes) == 0);
    pd_buf_fini(&first);
    pd_buf_fini(&second);
    return planner;
}

struct run {
    struct view view;
    struct pd_planner *planner;
    struct packs packs;
    struct chance *chance;
    bool restarts;
};

/* One call; true when it made a pack. */
static bool run_next(struct run *run)
{
    struct pd_supply supply = {&run->view, view_read};
    struct pd_want want = {0};
    if (run->restarts && one_in(run->chance, 5))
        run->planner = restart(run->planner);
    struct pd_pack *pack = packs_add(&run->packs);
    run->packs.end = pd_planner_next(run->planner, &supply, pack, &want);
    run->packs.lane = want.lane;
    if (run->packs.end == 0)
        return true;
    PD_CHECK(run->packs.end == PD_EAGAIN || run->packs.end == PD_EEND);
    pd_pack_fini(pack);
    run->packs.count--;
    return false;
}

static void run_until_stuck(struct run *run)
{
    while (run_next(run))
        PD_CHECK(run->packs.count < 100000);
}

static void run_record(struct run *run, struct model_record *record, enum run_how how)
{
    if (record->is_control) {
        struct pd_control *control = &record->control;
        bool change = control->kind == PD_CONTROL_WEIGHTS || control->kind == PD_CONTROL_SKIP ||
                      control->kind == PD_CONTROL_SKIP_RULE || control->kind == PD_CONTROL_RULES;
        if (change && how == RUN_LIVE) {
            run_until_stuck(run);
            control->from_pack = pd_planner_change_pack(run->planner);
        }
        PD_CHECK(pd_planner_control(run->planner, control) == 0);
    }
    if (how == RUN_AT_ONCE)
        return;
    run->view.visible++;
    for (uint32_t calls = chance_below(run->chance, 4); calls > 0; calls--)
        run_next(run);
}

struct packs case_run(struct planner_case *c, struct chance *chance, enum run_how how,
                      bool restarts)
{
    struct run run = {.view = {.c = c, .chance = one_in(chance, 2) ? chance : NULL},
                      .chance = chance,
                      .restarts = restarts};
    struct pd_error error;
    if (pd_planner_new(&c->rules, &run.planner, &error) != 0)
        pd_panic(__FILE__, __LINE__, "%s", error.text);
    for (size_t r = 0; r < c->log.count; r++)
        run_record(&run, &c->log.records[r], how);
    run.view.visible = c->log.count;
    run_until_stuck(&run);
    pd_planner_stats(run.planner, &run.packs.stats);
    pd_planner_free(run.planner);
    return run.packs;
}

struct packs case_model(const struct planner_case *c, struct model_counts *counts)
{
    struct model *model = model_new(&c->rules, &c->log);
    struct packs packs = {0};
    do {
        packs.end = model_next(model, packs_add(&packs), &packs.lane);
    } while (packs.end == 0);
    pd_pack_fini(&packs.pack[--packs.count]);
    *counts = model_counts(model);
    model_free(model);
    return packs;
}

/* ---- comparison and properties ---- */

static char text[256];

static bool same_segment(const struct pd_segment *a, const struct pd_segment *b, bool places)
{
    return a->stream == b->stream && a->seq == b->seq && a->source == b->source &&
           a->pass == b->pass && a->part == b->part && a->part_count == b->part_count &&
           a->offset_tokens == b->offset_tokens && a->overlap_tokens == b->overlap_tokens &&
           a->length_tokens == b->length_tokens && a->slot_tokens == b->slot_tokens &&
           a->sample_tokens == b->sample_tokens && a->loss_tokens == b->loss_tokens &&
           a->sample_loss_tokens == b->sample_loss_tokens && a->patches == b->patches &&
           a->weight == b->weight && (!places || (a->block == b->block && a->index == b->index));
}

static const char *pack_differs(const struct pd_pack *a, const struct pd_pack *b, bool places)
{
    if (a->number != b->number || a->segment_count != b->segment_count ||
        a->used_slots != b->used_slots) {
        snprintf(text, sizeof text,
                 "pack %llu: %u segments, %u slots; pack %llu: %u segments, %u slots",
                 (unsigned long long)a->number, a->segment_count, a->used_slots,
                 (unsigned long long)b->number, b->segment_count, b->used_slots);
        return text;
    }
    for (uint32_t i = 0; i < a->segment_count; i++) {
        const struct pd_segment *s = &a->segments[i], *t = &b->segments[i];
        if (same_segment(s, t, places))
            continue;
        snprintf(text, sizeof text,
                 "pack %llu segment %u: %u/%llu part %u len %u; %u/%llu part %u len %u",
                 (unsigned long long)a->number, i, s->stream, (unsigned long long)s->seq, s->part,
                 s->length_tokens, t->stream, (unsigned long long)t->seq, t->part,
                 t->length_tokens);
        return text;
    }
    return NULL;
}

const char *packs_differ(const struct packs *a, const struct packs *b, bool places)
{
    for (size_t i = 0; i < a->count && i < b->count; i++) {
        const char *how = pack_differs(&a->pack[i], &b->pack[i], places);
        if (how)
            return how;
    }
    if (a->count == b->count && a->end == b->end && (a->end != PD_EAGAIN || a->lane == b->lane))
        return NULL;
    snprintf(text, sizeof text, "%zu packs, end %d, lane %d; %zu packs, end %d, lane %d", a->count,
             a->end, (int)a->lane, b->count, b->end, (int)b->lane);
    return text;
}

static const char *segment_unsound(const struct pd_rules *r, const struct pd_segment *s)
{
    if (s->length_tokens == 0 || s->slot_tokens < s->length_tokens ||
        s->slot_tokens - s->length_tokens >= r->seg_align || s->slot_tokens % r->seg_align != 0)
        return "a slot is not the aligned length";
    if ((uint64_t)s->offset_tokens + s->length_tokens > s->sample_tokens)
        return "a segment passes the end of its sample";
    if (s->loss_tokens >= s->length_tokens || s->loss_tokens > s->sample_loss_tokens)
        return "loss tokens do not fit the segment";
    return NULL;
}

static const char *pack_unsound(const struct pd_rules *r, const struct pd_pack *pack)
{
    uint64_t slots = 0, patches = 0;
    for (uint32_t i = 0; i < pack->segment_count; i++) {
        const char *why = segment_unsound(r, &pack->segments[i]);
        if (why)
            return why;
        slots += pack->segments[i].slot_tokens;
        patches += pack->segments[i].patches;
    }
    if (pack->segment_count == 0 || slots != pack->used_slots || slots > r->seq_len)
        return "a pack passes seq_len, or its sum is wrong";
    if (r->segments_max && pack->segment_count > r->segments_max)
        return "a pack passes max_segments";
    if (r->patches_max && patches > r->patches_max)
        return "a pack passes its patches";
    return r->strategy == PD_STRATEGY_NONE && pack->segment_count != 1 ? "none packs one" : NULL;
}

/* A sample's parts are looked up by (stream, pass, seq). */
struct seen {
    struct pd_segment last;
    uint64_t loss;
    bool any;
};

static const char *part_unsound(struct seen *seen, const struct pd_segment *s)
{
    if (!seen->any && s->part != 0)
        return "a sample does not start with part 0";
    if (seen->any && s->part != seen->last.part + 1)
        return "parts are repeated or out of order";
    uint64_t end = seen->any ? (uint64_t)seen->last.offset_tokens + seen->last.length_tokens : 0;
    if (s->part_count > 1 && s->offset_tokens + s->overlap_tokens != end)
        return "parts leave a gap or overlap by more than they say";
    seen->loss += s->loss_tokens;
    if (s->part + 1 == s->part_count && seen->loss != s->sample_loss_tokens)
        return "the parts' loss tokens do not add up to the sample's";
    if (s->part + 1 == s->part_count && s->part_count > 1 &&
        s->offset_tokens + s->length_tokens != s->sample_tokens)
        return "the last part does not reach the end";
    seen->last = *s;
    seen->any = true;
    return NULL;
}

static const char *samples_unsound(const struct planner_case *c, const struct packs *packs)
{
    enum { PASSES = 3 };
    const size_t seqs = c->head_count + 1, all = STREAMS_MAX * seqs * PASSES;
    struct seen *seen = calloc(all, sizeof *seen);
    const char *why = NULL;
    PD_CHECK(seen);
    for (size_t i = 0; i < packs->count && !why; i++)
        for (uint32_t k = 0; k < packs->pack[i].segment_count && !why; k++) {
            const struct pd_segment *s = &packs->pack[i].segments[k];
            why = part_unsound(&seen[(s->stream * seqs + s->seq) * PASSES + s->pass], s);
        }
    for (size_t i = 0; i < all && !why; i++)
        if (packs->end == PD_EEND && seen[i].any &&
            seen[i].last.part + 1 != seen[i].last.part_count)
            why = "a sample lost its last parts";
    bool once = packs->end == PD_EEND;
    for (uint32_t i = 0; i < c->rules.lane_count; i++)
        once = once && c->rules.lanes[i].on_end == PD_ON_END_CONTINUE;
    const struct pd_planner_stats *stats = &packs->stats;
    if (!why && once && c->ends &&
        stats->samples + stats->rejected_samples + stats->skipped_samples != c->head_count)
        why = "samples served and left out do not add up to samples pushed";
    free(seen);
    return why;
}

/* While a sample waits, each pack takes an older one, or it is younger than four windows. */
static bool too_old(const struct planner_case *c, const struct packs *packs)
{
    uint64_t most = 0;
    for (size_t i = 0; i < packs->count; i++)
        if (packs->pack[i].segment_count > most)
            most = packs->pack[i].segment_count;
    return packs->stats.age_max_samples > (4 + most) * c->rules.window_samples;
}

const char *packs_unsound(const struct planner_case *c, const struct packs *packs)
{
    struct pd_rules rules = c->rules;
    if (c->has_rules)
        rules.strategy = PD_STRATEGY_EXACT; /* which held for which pack the model knows */
    for (size_t i = 0; i < packs->count; i++) {
        const char *why = pack_unsound(&rules, &packs->pack[i]);
        if (why)
            return why;
    }
    if (!c->has_rules && too_old(c, packs))
        return "a sample waited longer than the age bound";
    return samples_unsound(c, packs);
}
