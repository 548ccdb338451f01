/* Random valid batches, and the ways to break them.
 *
 * Used by the self-test at start and by the tests of every backend. The layout written here
 * follows the batch contract and shares no code with the packer's layout. A fault changes as
 * little as the mistake it stands for would: a boundary that is off by one moves one entry of
 * cu_seqlens and nothing else. Pure. */
#include "gpu/probe_cases.h"

#include "base/check.h"

uint64_t pd_case_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint32_t below(uint64_t *state, uint32_t bound)
{
    return (uint32_t)(pd_case_random(state) % bound);
}

struct pd_case_rules pd_case_rules_random(uint64_t *state, uint32_t tokens_max)
{
    struct pd_case_rules rules = {.rows = 1 + below(state, 4)};
    rules.seg_align = 1u << below(state, 4);
    while (rules.seg_align > tokens_max / rules.rows)
        rules.seg_align /= 2;
    uint32_t units = tokens_max / rules.rows / rules.seg_align;
    rules.width = (1 + below(state, units)) * rules.seg_align;
    rules.pad_segment = 1 + below(state, 2 * rules.width);
    rules.length_max = 1 + below(state, rules.width);
    rules.causal = below(state, 2) == 0;
    rules.logged = below(state, 2) == 0;
    return rules;
}

/* Appends a segment: `length` real tokens in a slot; length 0 is padding. */
static uint32_t put_segment(struct pd_case *made, uint32_t at, int32_t id, uint32_t length,
                            uint32_t slot)
{
    uint32_t s = made->batch.segment_count++;
    made->seq_lens[s] = made->logged_lens[s] = (int32_t)length;
    for (uint32_t i = 0; i < slot; i++) {
        made->segment_ids[at + i] = i < length ? id : 0;
        made->positions[at + i] = (int32_t)i;
    }
    made->cu_seqlens[s + 1] = (int32_t)(at + slot);
    return at + slot;
}

static void put_row(struct pd_case *made, const struct pd_case_rules *rules, uint32_t row,
                    uint64_t *state)
{
    uint32_t at = row * rules->width, end = at + rules->width;
    int32_t id = 1;
    bool full = below(state, 3) != 0; /* else stop early: a tail of padding */
    while (at < end && (full || below(state, 4) != 0)) {
        uint32_t bound = rules->length_max < end - at ? rules->length_max : end - at;
        uint32_t length = 1 + below(state, bound);
        uint32_t slot = (length + rules->seg_align - 1) / rules->seg_align * rules->seg_align;
        at = put_segment(made, at, id++, length, slot < end - at ? slot : end - at);
    }
    while (at < end)
        at = put_segment(made, at, 0, 0,
                         rules->pad_segment < end - at ? rules->pad_segment : end - at);
}

void pd_case_make(struct pd_case *made, const struct pd_case_rules *rules, uint64_t *state)
{
    PD_CHECK((uint64_t)rules->rows * rules->width <= PD_CASE_TOKENS_MAX);
    made->batch = (struct pd_probe_batch){
        .rows = rules->rows,
        .width = rules->width,
        .segment_ids = made->segment_ids,
        .positions = made->positions,
        .cu_seqlens = made->cu_seqlens,
        .seq_lens = made->seq_lens,
        .logged_lens = rules->logged ? made->logged_lens : NULL,
        .causal = rules->causal,
    };
    made->cu_seqlens[0] = 0;
    for (uint32_t row = 0; row < rules->rows; row++)
        put_row(made, rules, row, state);
}

static const char *const fault_names[PD_FAULT_COUNT] = {
#define X(name, text, kinds) text,
    PD_FAULTS(X)
#undef X
};
static const uint32_t fault_kinds[PD_FAULT_COUNT] = {
#define X(name, text, kinds) (kinds),
    PD_FAULTS(X)
#undef X
};

const char *pd_fault_name(enum pd_fault fault)
{
    return fault_names[fault];
}

uint32_t pd_fault_kinds(enum pd_fault fault)
{
    return fault_kinds[fault];
}

static uint32_t slot_of(const struct pd_case *made, uint32_t s)
{
    return (uint32_t)(made->cu_seqlens[s + 1] - made->cu_seqlens[s]);
}

static uint32_t row_of(const struct pd_case *made, uint32_t s)
{
    return (uint32_t)made->cu_seqlens[s] / made->batch.width;
}

static bool real(const struct pd_case *made, uint32_t s)
{
    return made->seq_lens[s] > 0;
}

/* Can segments s and s + 1 be mistaken for one? Both in one row, both real unless `pad` follows. */
static bool pair_fits(const struct pd_case *made, enum pd_fault fault, uint32_t s)
{
    if (s + 1 >= made->batch.segment_count || !real(made, s))
        return false;
    bool same_row = row_of(made, s) == row_of(made, s + 1);
    switch (fault) {
    case PD_FAULT_PAD_JOINED:
        return same_row && !real(made, s + 1);
    case PD_FAULT_ROW_START:
        return !same_row;
    case PD_FAULT_ALL_WRONG: /* without gaps, so that the moved token makes a valid batch */
        return same_row && real(made, s + 1) && slot_of(made, s + 1) > 1 &&
               slot_of(made, s) == (uint32_t)made->seq_lens[s] && made->batch.logged_lens;
    default:
        return same_row && real(made, s + 1);
    }
}

static bool segment_fits(const struct pd_case *made, enum pd_fault fault, uint32_t s)
{
    switch (fault) {
    case PD_FAULT_UNRESET:
        return real(made, s) && s > 0 && row_of(made, s - 1) == row_of(made, s);
    case PD_FAULT_SWAPPED:
    case PD_FAULT_SPLIT:
        return made->seq_lens[s] > 1;
    case PD_FAULT_SEGMENT_ID:
        return made->seq_lens[s] > 2;
    case PD_FAULT_SEQ_LEN:
        return real(made, s);
    case PD_FAULT_SHORT_CU:
    case PD_FAULT_LATE_CU:
    case PD_FAULT_BACKWARDS:
    case PD_FAULT_OUTSIDE:
        return true;
    default:
        return pair_fits(made, fault, s);
    }
}

static void remove_boundary(struct pd_case *made, uint32_t entry)
{
    uint32_t count = made->batch.segment_count--;
    for (uint32_t i = entry; i < count; i++) {
        made->cu_seqlens[i] = made->cu_seqlens[i + 1];
        made->seq_lens[i - 1] = made->seq_lens[i];
        made->logged_lens[i - 1] = made->logged_lens[i];
    }
}

static void add_boundary(struct pd_case *made, uint32_t s, int32_t at)
{
    for (uint32_t i = ++made->batch.segment_count; i > s + 1; i--) {
        made->cu_seqlens[i] = made->cu_seqlens[i - 1];
        made->seq_lens[i - 1] = made->seq_lens[i - 2];
        made->logged_lens[i - 1] = made->logged_lens[i - 2];
    }
    made->cu_seqlens[s + 1] = at;
}

/* The row of segment s loses all its inner boundaries. */
static void join_row(struct pd_case *made, uint32_t s)
{
    uint32_t row = row_of(made, s), first = s;
    while (first > 0 && row_of(made, first - 1) == row)
        first--;
    while (first + 1 < made->batch.segment_count && row_of(made, first + 1) == row)
        remove_boundary(made, first + 1);
}

/* Token moves from segment s + 1 to segment s in every array, as if lengths had been counted
 * wrongly. */
static void move_token(struct pd_case *made, uint32_t s)
{
    uint32_t at = (uint32_t)made->cu_seqlens[s + 1]++;
    made->segment_ids[at] = made->segment_ids[at - 1];
    made->positions[at] = made->positions[at - 1] + 1;
    made->seq_lens[s]++;
    made->seq_lens[s + 1]--;
    for (uint32_t i = at + 1; i < (uint32_t)made->cu_seqlens[s + 2]; i++)
        made->positions[i]--;
}

static void swap_positions(struct pd_case *made, uint32_t s, uint64_t *state)
{
    uint32_t length = (uint32_t)made->seq_lens[s], a = below(state, length - 1);
    uint32_t b = a + 1 + below(state, length - 1 - a);
    int32_t *positions = made->positions + made->cu_seqlens[s], kept = positions[a];
    positions[a] = positions[b];
    positions[b] = kept;
}

static void break_segment(struct pd_case *made, enum pd_fault fault, uint32_t s, uint64_t *state)
{
    uint32_t count = made->batch.segment_count, first = (uint32_t)made->cu_seqlens[s];
    switch (fault) {
    case PD_FAULT_BOUNDARY:
        made->cu_seqlens[s + 1] += slot_of(made, s + 1) > 1 && below(state, 2) ? 1 : -1;
        break;
    case PD_FAULT_MERGED:
    case PD_FAULT_PAD_JOINED:
    case PD_FAULT_ROW_START:
        remove_boundary(made, s + 1);
        break;
    case PD_FAULT_SHORT_CU:
        made->cu_seqlens[count]--;
        break;
    case PD_FAULT_LATE_CU:
        made->cu_seqlens[0]++;
        break;
    case PD_FAULT_UNRESET:
        for (uint32_t i = 0; i < slot_of(made, s); i++)
            made->positions[first + i] += made->positions[first - 1] + 1;
        break;
    case PD_FAULT_SWAPPED:
        swap_positions(made, s, state);
        break;
    case PD_FAULT_ONE_SEQUENCE:
        join_row(made, s);
        break;
    case PD_FAULT_SPLIT:
        add_boundary(made, s, (int32_t)(first + 1 + below(state, (uint32_t)made->seq_lens[s] - 1)));
        break;
    case PD_FAULT_SEGMENT_ID:
        made->segment_ids[first + 1 + below(state, (uint32_t)made->seq_lens[s] - 2)]++;
        break;
    case PD_FAULT_BACKWARDS:
        made->cu_seqlens[s + 1] = made->cu_seqlens[s] - 1;
        break;
    case PD_FAULT_OUTSIDE:
        made->cu_seqlens[count] += 1 + (int32_t)below(state, 1 << 20);
        break;
    case PD_FAULT_SEQ_LEN:
        made->seq_lens[s]--;
        break;
    case PD_FAULT_ALL_WRONG:
        move_token(made, s);
        break;
    case PD_FAULT_COUNT:
        break;
    }
}

bool pd_case_plant(struct pd_case *made, enum pd_fault fault, uint64_t *state)
{
    uint32_t count = made->batch.segment_count, start = below(state, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t s = (start + i) % count;
        if (!segment_fits(made, fault, s))
            continue;
        break_segment(made, fault, s, state);
        return true;
    }
    return false;
}
