/* The plain planner. See planner_model.h; sections follow the planner's documentation: lanes,
 * cutting, refill, fit. */
#include "tests/model/planner_model_state.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define NEVER UINT64_MAX

enum { FULL = 100, SHORT, ENDED, BLOCKED, MORE };

static void *zeroed(size_t count, size_t size)
{
    void *memory = calloc(count + 1, size);
    PD_CHECK(memory);
    return memory;
}

static void bag_init(struct bag *bag, size_t capacity)
{
    bag->item = zeroed(capacity, sizeof *bag->item);
    bag->capacity = capacity;
}

/* ---- the log ---- */

static void add_control(struct model *m, const struct pd_control *c)
{
    switch (c->kind) {
    case PD_CONTROL_END_LANE:
        if (c->at < m->lanes[c->lane].end)
            m->lanes[c->lane].end = c->at;
        break;
    case PD_CONTROL_END_FEED:
        for (uint32_t i = 0; i < m->rules.lane_count; i++)
            if (c->at < m->lanes[i].end)
                m->lanes[i].end = c->at;
        if (c->at < m->feed_end)
            m->feed_end = c->at;
        break;
    case PD_CONTROL_FLUSH:
        m->flushes[m->flush_count++] = *c;
        break;
    default:
        m->changes[m->change_count++] = *c;
    }
}

struct model *model_new(const struct pd_rules *rules, const struct model_log *log)
{
    struct model *m = zeroed(1, sizeof *m);
    m->rules = *rules;
    m->feed_end = NEVER;
    m->lanes = zeroed(rules->lane_count, sizeof *m->lanes);
    m->flushes = zeroed(log->count, sizeof *m->flushes);
    m->flush_made = zeroed(log->count, sizeof *m->flush_made);
    m->changes = zeroed(log->count, sizeof *m->changes);
    m->skips = zeroed(log->count, sizeof *m->skips);
    m->rules_in_force = zeroed(log->count, sizeof *m->rules_in_force);
    bag_init(&m->window, 256); /* more than any rules of the cases ask for */
    bag_init(&m->buffer, 256);
    m->last_lane = rules->lane_count - 1;
    for (uint32_t i = 0; i < rules->lane_count; i++) {
        struct lane *lane = &m->lanes[i];
        *lane = (struct lane){.end = NEVER, .active = true};
        lane->weight = rules->merge == PD_MERGE_ORDERED ? 1 : rules->lanes[i].weight;
        size_t heads = 0;
        for (size_t r = 0; r < log->count; r++)
            heads += log->records[r].lane == i ? log->records[r].head_count : 0;
        lane->heads = zeroed(heads, sizeof *lane->heads);
    }
    for (size_t r = 0; r < log->count; r++) {
        const struct model_record *record = &log->records[r];
        if (record->is_control)
            add_control(m, &record->control);
        for (uint32_t i = 0; !record->is_control && i < record->head_count; i++) {
            struct lane *lane = &m->lanes[record->lane];
            lane->heads[lane->count++] = &record->heads[i];
        }
    }
    return m;
}

void model_free(struct model *m)
{
    for (uint32_t i = 0; i < m->rules.lane_count; i++)
        free(m->lanes[i].heads);
    free(m->lanes);
    free(m->flushes);
    free(m->flush_made);
    free(m->changes);
    free(m->skips);
    free(m->rules_in_force);
    free(m->window.item);
    free(m->buffer.item);
    free(m);
}

struct model_counts model_counts(const struct model *m)
{
    return m->counts;
}

static void bag_add(struct bag *bag, const struct item *item)
{
    PD_CHECK(bag->count < bag->capacity);
    bag->item[bag->count++] = *item;
}

void model_bag_remove(struct bag *bag, size_t at)
{
    memmove(&bag->item[at], &bag->item[at + 1], (bag->count - at - 1) * sizeof *bag->item);
    bag->count--;
}

/* ---- cutting ---- */

static bool inside_span(const struct pd_head *h, uint64_t token)
{
    for (uint32_t i = 0; i < h->span_count; i++)
        if (token >= h->spans[i].offset_tokens &&
            token < (uint64_t)h->spans[i].offset_tokens + h->spans[i].length_tokens)
            return true;
    return false;
}

/* A cut between token c - 1 and token c splits no span. */
static bool clean_cut(const struct pd_head *h, uint64_t c)
{
    for (uint32_t i = 0; i < h->span_count; i++)
        if (c > h->spans[i].offset_tokens &&
            c < (uint64_t)h->spans[i].offset_tokens + h->spans[i].length_tokens)
            return false;
    return true;
}

static uint32_t patches_in(const struct pd_head *h, uint64_t from, uint64_t to)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < h->span_count; i++)
        if (h->spans[i].offset_tokens >= from && h->spans[i].offset_tokens < to)
            sum += h->spans[i].patches;
    return sum;
}

static bool piece_ok(const struct model *m, const struct pd_head *h, uint64_t from, uint64_t to)
{
    return to - from <= m->rules.seq_len && clean_cut(h, from) && clean_cut(h, to) &&
           (m->rules.patches_max == 0 || patches_in(h, from, to) <= m->rules.patches_max);
}

static bool is_target(const struct pd_head *h, uint32_t token)
{
    uint64_t start = 0;
    if (!h->loss.lengths)
        return true;
    for (uint32_t run = 0; run < h->loss.count; run++) {
        if (token < start + h->loss.lengths[run])
            return run % 2 == 1;
        start += h->loss.lengths[run];
    }
    return false;
}

static uint32_t targets_in(const struct pd_head *h, uint32_t from, uint32_t to)
{
    uint32_t count = 0;
    for (uint32_t token = from + 1; token < to; token++)
        count += is_target(h, token);
    return count;
}

static uint32_t slot_of(const struct model *m, uint32_t tokens)
{
    while (tokens % m->rules.seg_align != 0)
        tokens++;
    return tokens;
}

static void set_piece(const struct model *m, struct item *item, uint32_t from, uint32_t to)
{
    const struct pd_head *h = item->head;
    uint64_t whole = h->payload_bytes ? h->payload_bytes : 4 * (uint64_t)h->length_tokens;
    bool all = from == 0 && to == h->length_tokens;
    item->s.offset_tokens = from;
    item->s.length_tokens = to - from;
    item->s.slot_tokens = slot_of(m, to - from);
    item->s.loss_tokens = targets_in(h, from, to);
    item->s.patches = all ? h->patches : patches_in(h, from, to);
    item->bytes = whole * (to - from) / h->length_tokens;
}

/* The next part of a split from *at on; false when it cannot be made. */
static bool next_part(const struct model *m, const struct pd_head *h, uint32_t *at,
                      uint32_t *repeat, uint32_t *from, uint32_t *to, uint32_t *overlap)
{
    uint32_t n = h->length_tokens;
    for (;;) {
        uint64_t end = (uint64_t)*at + m->rules.seq_len < n ? *at + m->rules.seq_len : n;
        while (end > *at && !piece_ok(m, h, *at, end))
            end--;
        if (*repeat && end <= (uint64_t)*at + 1) {
            ++*at;
            *repeat = 0;
            continue;
        }
        if (end == *at)
            return false;
        bool join = false;
        if (end < n) {
            uint64_t text = end;
            while (text > *at && inside_span(h, text - 1))
                text--;
            join = text >= (uint64_t)*at + 2;
            end = join ? text : end;
        }
        *from = *at;
        *to = (uint32_t)end;
        *overlap = *repeat;
        *at = join ? *to - 1 : *to;
        *repeat = join;
        return true;
    }
}

enum verdict { REJECTED, WHOLE, SPLIT };

static enum verdict cut_sample(struct model *m, struct item *item, uint64_t *slots)
{
    const struct pd_head *h = item->head;
    uint32_t n = h->length_tokens, from = 0, to = n, at = 0, repeat = 0, overlap;
    bool fits =
        n <= m->rules.seq_len && (m->rules.patches_max == 0 || h->patches <= m->rules.patches_max);
    if (!fits && m->rules.over_length == PD_OVER_REJECT)
        return REJECTED;
    if (!fits && m->rules.over_length == PD_OVER_SPLIT) {
        *slots = 0;
        item->s.part_count = item->s.sample_loss_tokens = 0;
        while (at + repeat < n) {
            if (!next_part(m, h, &at, &repeat, &from, &to, &overlap))
                return REJECTED;
            item->s.part_count++;
            item->s.sample_loss_tokens += targets_in(h, from, to);
            *slots += slot_of(m, to - from);
        }
        return SPLIT;
    }
    if (!fits && m->rules.over_length == PD_OVER_KEEP_HEAD) {
        to = n < m->rules.seq_len ? n : m->rules.seq_len;
        while (to > 0 && !piece_ok(m, h, 0, to))
            to--;
    } else if (!fits) {
        from = n < m->rules.seq_len ? 0 : n - m->rules.seq_len;
        while (from < n && !piece_ok(m, h, from, n))
            from++;
    }
    if (to <= from)
        return REJECTED;
    m->counts.truncated += !fits;
    set_piece(m, item, from, to);
    item->s.sample_loss_tokens = item->s.loss_tokens;
    *slots = item->s.slot_tokens;
    return WHOLE;
}

/* ---- lanes ---- */

static const struct pd_lane_rules *lane_rules(const struct model *m, uint32_t lane)
{
    return &m->rules.lanes[m->rules.merge == PD_MERGE_ORDERED ? 0 : lane];
}

static const struct pd_head *lane_head(const struct model *m, uint32_t lane, uint64_t limit)
{
    const struct lane *l = &m->lanes[lane];
    if (l->at == l->count)
        return NULL;
    const struct pd_head *h = l->heads[l->at];
    return h->block < l->end && h->block < limit ? h : NULL;
}

/* Best of the lanes for which ok is set; lane_count for none. */
static uint32_t pick_lane(const struct model *m, const bool *ok)
{
    uint32_t n = m->rules.lane_count, best = n;
    if (m->rules.merge == PD_MERGE_ORDERED) {
        for (uint32_t i = 1; i <= n; i++)
            if (ok[(m->last_lane + i) % n])
                return (m->last_lane + i) % n;
        return n;
    }
    for (int paused = 0; paused < 2 && best == n; paused++)
        for (uint32_t i = 0; i < n; i++)
            if (ok[i] && (m->lanes[i].weight == 0) == paused &&
                (best == n || m->lanes[i].deficit > m->lanes[best].deficit))
                best = i;
    return best;
}

static uint64_t flush_limit(const struct model *m)
{
    return m->flush_count ? m->flushes[0].at : NEVER;
}

static void lane_over(struct model *m, uint32_t lane)
{
    struct lane *l = &m->lanes[lane];
    const struct pd_lane_rules *rules = lane_rules(m, lane);
    if (rules->on_end == PD_ON_END_REPEAT && l->pass + 1 < rules->passes_max && l->yielded) {
        l->pass++;
        l->at = 0;
        l->yielded = false;
        return;
    }
    l->active = false;
    l->deficit = 0;
    if (rules->on_end == PD_ON_END_STOP)
        m->stopped = true;
}

static int draw_due(struct model *m, uint32_t *lane)
{
    uint64_t limit = flush_limit(m);
    bool ok[PD_LANES_MAX];
    for (;;) {
        for (uint32_t i = 0; i < m->rules.lane_count; i++)
            ok[i] = m->lanes[i].active;
        *lane = m->stopped ? m->rules.lane_count : pick_lane(m, ok);
        if (*lane == m->rules.lane_count) {
            *lane = PD_LANE_NONE;
            if (m->stopped || (m->feed_end != NEVER && m->feed_end < limit))
                return ENDED;
            return limit != NEVER ? SHORT : BLOCKED;
        }
        if (lane_head(m, *lane, limit))
            return MORE;
        if (m->lanes[*lane].end == NEVER || m->lanes[*lane].end > limit)
            return limit != NEVER ? SHORT : BLOCKED;
        lane_over(m, *lane);
    }
}

static uint64_t window_slots(const struct model *m)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < m->window.count; i++)
        sum += m->window.item[i].s.slot_tokens;
    return sum;
}

static int draw(struct model *m, uint32_t *lane, bool *out_of_turn)
{
    int how = draw_due(m, lane);
    *out_of_turn = false;
    if (how != SHORT || m->buffer.count > 0 || window_slots(m) >= m->rules.seq_len || m->stopped)
        return how;
    bool ok[PD_LANES_MAX];
    for (uint32_t i = 0; i < m->rules.lane_count; i++)
        ok[i] = m->lanes[i].active && m->lanes[i].pass == 0 && lane_head(m, i, flush_limit(m));
    uint32_t other = pick_lane(m, ok);
    if (other == m->rules.lane_count)
        return SHORT;
    *lane = other;
    *out_of_turn = true;
    return MORE;
}

static void used_up(struct model *m, uint32_t lane, uint64_t slots, bool out_of_turn)
{
    int64_t weights = 0;
    m->lanes[lane].at++;
    m->lanes[lane].yielded |= slots > 0;
    m->last_lane = lane;
    if (out_of_turn)
        return;
    for (uint32_t i = 0; i < m->rules.lane_count; i++)
        if (m->lanes[i].active) {
            m->lanes[i].deficit += (int64_t)slots * m->lanes[i].weight;
            weights += m->lanes[i].weight;
        }
    m->lanes[lane].deficit -= (int64_t)slots * weights;
}

/* ---- refill ---- */

static bool bytes_fit(const uint8_t *bytes, uint32_t size, uint64_t digest)
{
    return size > 0 && XXH3_64bits(bytes, size) == digest;
}

static bool rule_fits(const struct pd_control *c, const struct pd_head *h)
{
    const struct pd_skip_rule *r = &c->rule;
    if (h->block >= c->at)
        return false;
    if (r->by_stream && h->stream != r->stream)
        return false;
    if (r->by_source && h->source != r->source)
        return false;
    if (h->seq < r->first_seq || h->seq > r->last_seq)
        return false;
    if (r->version_below > 0 && h->version >= r->version_below)
        return false;
    if (r->by_group && !bytes_fit(h->group, h->group_bytes, r->group))
        return false;
    return !r->by_key || bytes_fit(h->key, h->key_bytes, r->key);
}

static bool skipped(const struct model *m, const struct pd_head *h)
{
    for (size_t i = 0; i < m->skip_count; i++)
        if (m->skips[i].stream == h->stream && m->skips[i].seq == h->seq)
            return true;
    for (size_t i = 0; i < m->rule_count; i++)
        if (rule_fits(&m->rules_in_force[i], h))
            return true;
    return false;
}

static struct item item_of(const struct model *m, const struct pd_head *h, uint32_t lane)
{
    struct item item = {.head = h, .lane = lane, .bin = -1};
    item.s.block = h->block;
    item.s.index = h->index;
    item.s.stream = h->stream;
    item.s.seq = h->seq;
    item.s.source = h->source;
    item.s.pass = m->lanes[lane].pass;
    item.s.part_count = 1;
    item.s.sample_tokens = h->length_tokens;
    item.s.weight = h->weight;
    item.bytes = h->payload_bytes ? h->payload_bytes : 4 * (uint64_t)h->length_tokens;
    return item;
}

static bool room_for(const struct model *m, uint64_t bytes)
{
    uint64_t sum = bytes;
    for (size_t i = 0; i < m->window.count; i++)
        sum += m->window.item[i].bytes;
    return m->window.count == 0 || sum <= m->rules.window_bytes;
}

static uint64_t running_mean(uint64_t mean, int64_t value, uint64_t before)
{
    int64_t change = value * 65536 - (int64_t)mean;
    if (before < 1024)
        change /= (int64_t)before + 1;
    else /* rounds down */
        change = change >= 0 ? change / 1024 : -((-change + 1023) / 1024);
    return (uint64_t)((int64_t)mean + change);
}

static void enter(struct model *m, struct item item)
{
    int64_t key = item.s.slot_tokens / m->rules.seg_align;
    m->mean_fixed = running_mean(m->mean_fixed, key, m->entered);
    m->square_fixed = running_mean(m->square_fixed, key * key, m->entered);
    item.entered = m->entered++;
    item.bin = -1;
    bag_add(&m->window, &item);
}

static void begin_split(struct model *m, const struct item *item)
{
    m->pending = *item;
    m->has_pending = true;
    m->split_at = m->split_repeat = m->split_part = 0;
}

static int enter_part(struct model *m)
{
    uint32_t at = m->split_at, repeat = m->split_repeat, from, to, overlap;
    struct item item = m->pending;
    PD_CHECK(next_part(m, item.head, &at, &repeat, &from, &to, &overlap));
    set_piece(m, &item, from, to);
    item.s.overlap_tokens = overlap;
    item.s.part = m->split_part;
    item.to_split = false;
    if (!room_for(m, item.bytes))
        return FULL;
    enter(m, item);
    m->split_at = at;
    m->split_repeat = repeat;
    m->split_part++;
    m->has_pending = at + repeat < item.head->length_tokens;
    return MORE;
}

/* One head to the buffer (or the window). FULL: its bytes do not fit there now. */
static int take_head(struct model *m, bool to_buffer, uint32_t *lane)
{
    bool out_of_turn;
    int how = draw(m, lane, &out_of_turn);
    if (how != MORE)
        return how;
    const struct pd_head *h = lane_head(m, *lane, NEVER);
    struct model_counts before = m->counts;
    struct item item = item_of(m, h, *lane);
    uint64_t slots = 0, bytes = 0;
    enum verdict verdict = skipped(m, h) ? REJECTED : cut_sample(m, &item, &slots);
    if (verdict == REJECTED) {
        m->counts.skipped += skipped(m, h);
        m->counts.rejected += !skipped(m, h);
        used_up(m, *lane, 0, out_of_turn);
        return MORE;
    }
    item.to_split = verdict == SPLIT;
    for (size_t i = 0; i < m->buffer.count; i++)
        bytes += m->buffer.item[i].bytes;
    bool fits = to_buffer ? m->buffer.count == 0 || bytes + item.bytes <= m->rules.shuffle_bytes
                          : item.to_split || room_for(m, item.bytes);
    if (!fits) {
        m->counts = before;
        return FULL;
    }
    m->counts.split += item.to_split;
    if (to_buffer)
        bag_add(&m->buffer, &item);
    else if (item.to_split)
        begin_split(m, &item);
    else
        enter(m, item);
    used_up(m, *lane, slots, out_of_turn);
    return MORE;
}

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static int take_shuffled(struct model *m, uint32_t *lane)
{
    uint64_t target = m->rules.window_samples + m->left;
    target = target < m->rules.shuffle_samples ? target : m->rules.shuffle_samples;
    int how = MORE;
    while (m->rules.order == PD_ORDER_SHUFFLE && m->buffer.count < target && how == MORE)
        how = take_head(m, true, lane);
    if (how == BLOCKED || m->buffer.count == 0)
        return how;
    size_t at = mix(mix(m->rules.seed) ^ m->left) % m->buffer.count;
    struct item item = m->buffer.item[at];
    if (item.dropped)
        m->counts.skipped++;
    else if (item.to_split)
        begin_split(m, &item);
    else if (room_for(m, item.bytes))
        enter(m, item);
    else
        return FULL;
    m->buffer.item[at] = m->buffer.item[--m->buffer.count];
    m->left++;
    return MORE;
}

static int refill(struct model *m, uint32_t *lane)
{
    while (m->window.count < m->rules.window_samples) {
        int how = m->has_pending ? enter_part(m)
                  : m->rules.order == PD_ORDER_SHUFFLE || m->buffer.count > 0
                      ? take_shuffled(m, lane)
                      : take_head(m, false, lane);
        if (how != MORE)
            return how;
    }
    return FULL;
}

/* ---- changes ---- */

static bool is_of(const struct item *item, const struct pd_control *c)
{
    return item->s.stream == c->stream && item->s.seq == c->seq;
}

/* True when some part of the sample is in a pack already: each pass that shows up must be
 * complete. */
static bool partly_packed(const struct model *m, const struct pd_control *c)
{
    for (size_t i = 0; i < m->window.count; i++) {
        const struct item *item = &m->window.item[i];
        uint32_t present = 0, made = item->s.part_count;
        if (!is_of(item, c))
            continue;
        if (m->has_pending && is_of(&m->pending, c) && m->pending.s.pass == item->s.pass)
            made = m->split_part;
        for (size_t j = 0; j < m->window.count; j++)
            present += is_of(&m->window.item[j], c) && m->window.item[j].s.pass == item->s.pass;
        if (present != made)
            return true;
    }
    if (!m->has_pending || !is_of(&m->pending, c))
        return false;
    uint32_t present = 0;
    for (size_t j = 0; j < m->window.count; j++)
        present += is_of(&m->window.item[j], c) && m->window.item[j].s.pass == m->pending.s.pass;
    return present != m->split_part;
}

/* Takes the sample out of window and pending, unless a part of it is packed. */
static void take_out(struct model *m, const struct pd_control *c)
{
    if (!partly_packed(m, c)) {
        bool counted_pending = false;
        for (size_t i = m->window.count; i-- > 0;)
            if (is_of(&m->window.item[i], c)) {
                m->counts.skipped += m->window.item[i].s.part == 0;
                model_bag_remove(&m->window, i);
            }
        if (m->has_pending && is_of(&m->pending, c)) {
            counted_pending = m->split_part == 0;
            m->has_pending = false;
        }
        m->counts.skipped += counted_pending;
        m->paper_left = 0;
    }
}

static void skip(struct model *m, const struct pd_control *c)
{
    take_out(m, c);
    for (size_t i = 0; i < m->buffer.count; i++)
        if (is_of(&m->buffer.item[i], c))
            m->buffer.item[i].dropped = true;
    m->skips[m->skip_count++] = *c;
}

/* As one skip for each sample that the rule fits. */
static void skip_rule(struct model *m, const struct pd_control *c)
{
    struct pd_control *each = zeroed(m->window.count + 1, sizeof *each);
    size_t count = 0;
    for (size_t i = 0; i < m->window.count; i++)
        if (rule_fits(c, m->window.item[i].head))
            each[count++] = (struct pd_control){.stream = m->window.item[i].s.stream,
                                                .seq = m->window.item[i].s.seq};
    if (m->has_pending && rule_fits(c, m->pending.head))
        each[count++] = (struct pd_control){.stream = m->pending.s.stream, .seq = m->pending.s.seq};
    for (size_t i = 0; i < count; i++)
        take_out(m, &each[i]);
    free(each);
    for (size_t i = 0; i < m->buffer.count; i++)
        if (rule_fits(c, m->buffer.item[i].head))
            m->buffer.item[i].dropped = true;
    m->rules_in_force[m->rule_count++] = *c;
}

static void changes(struct model *m)
{
    m->changed = true;
    for (size_t i = 0; i < m->change_count; i++) {
        struct pd_control *c = &m->changes[i];
        if (c->from_pack > m->packs)
            continue;
        if (c->kind == PD_CONTROL_SKIP)
            skip(m, c);
        if (c->kind == PD_CONTROL_SKIP_RULE)
            skip_rule(m, c);
        if (c->kind == PD_CONTROL_RULES) {
            pd_live_rules_set(&m->rules, &c->rules);
            m->paper_left = 0;
        }
        for (uint32_t l = 0; c->kind == PD_CONTROL_WEIGHTS && l < m->rules.lane_count; l++) {
            m->lanes[l].weight = c->weights[l];
            m->lanes[l].deficit = 0;
        }
        c->from_pack = NEVER;
    }
}

static void flush_over(struct model *m)
{
    m->flush_count--;
    memmove(m->flushes, m->flushes + 1, m->flush_count * sizeof *m->flushes);
    memmove(m->flush_made, m->flush_made + 1, m->flush_count * sizeof *m->flush_made);
}

int model_next(struct model *m, struct pd_pack *pack, uint32_t *lane)
{
    int how;
    pd_pack_clear(pack);
    do {
        how = refill(m, lane);
        if (how == BLOCKED)
            return PD_EAGAIN;
        if (m->window.count == 0 && how == ENDED)
            return PD_EEND;
        if (m->window.count == 0)
            flush_over(m);
        else if (!m->changed) /* only now is what the window holds settled */
            changes(m);
    } while (m->window.count == 0);
    model_fit(m, pack);
    m->changed = false;
    pack->number = m->packs++;
    if (how == SHORT && m->flushes[0].packs > 0 && ++m->flush_made[0] >= m->flushes[0].packs)
        flush_over(m);
    return 0;
}
