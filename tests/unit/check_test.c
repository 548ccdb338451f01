/* The structural check: no false alarm on thousands of good batches, and a finding of the right
 * name for every change of one element of any array.
 *
 * Bug reports that a case answers are named by their place in the list of known bugs ("C.2.19"). */
#include "tests/unit/layout_case.h"

#include "packer/check.h"

#include "base/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BIT(check) (1u << (check))

static struct layout_case *random_case(uint64_t seed)
{
    uint64_t random = seed;
    struct layout_case *c = case_new();
    struct pd_error error = {0};
    case_randomise(c, &random);
    if (case_build(c, &error) != 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, error.text);
    return c;
}

static int check(const struct layout_case *c, bool with_plan, struct pd_check_finding *finding)
{
    struct pd_check_input input = case_check_input(c, with_plan);
    return pd_check_batch(&input, finding);
}

static void test_no_false_alarm(void **state)
{
    (void)state;
    uint64_t from = test_seed(1);
    for (uint64_t seed = from; seed < from + 5000; seed++) {
        struct layout_case *c = random_case(seed);
        struct pd_check_finding finding = {0};
        for (int with_plan = 0; with_plan < 2; with_plan++)
            if (check(c, with_plan, &finding) != 0)
                fail_msg("seed %llu: %s: row %u, position %u: %s", (unsigned long long)seed,
                         pd_check_name(finding.check), finding.row, finding.position, finding.text);
        case_free(c);
    }
}

/* ---- one element changed ---- */

/* Which findings name a change of the array rightly. Arrays over positions have one owner each; a
 * moved boundary may also show as a length that no longer fits its slot, or as positions that do
 * not restart where it says. */
static const struct {
    const char *name;
    unsigned rightly;
} owners[] = {
    {"tokens", BIT(PD_CHECK_PADDING)},
    {"cu_seqlens", BIT(PD_CHECK_CU_SEQLENS) | BIT(PD_CHECK_SEQ_LENS) | BIT(PD_CHECK_POSITIONS) |
                       BIT(PD_CHECK_PADDING) | BIT(PD_CHECK_PLAN)},
    {"seq_lens", BIT(PD_CHECK_SEQ_LENS) | BIT(PD_CHECK_SAMPLE_INDEX) | BIT(PD_CHECK_PADDING) |
                     BIT(PD_CHECK_PLAN) | BIT(PD_CHECK_SEGMENT_IDS)},
    {"sample_index", BIT(PD_CHECK_SAMPLE_INDEX)},
    {"labels", BIT(PD_CHECK_LABELS) | BIT(PD_CHECK_PADDING) | BIT(PD_CHECK_LOSS_WEIGHT) |
                   BIT(PD_CHECK_PLAN) | BIT(PD_CHECK_TOTALS)},
    {"positions", BIT(PD_CHECK_POSITIONS)},
    {"segment_ids", BIT(PD_CHECK_SEGMENT_IDS)},
    /* Without a plan, the weight of a segment's only target is known from the total alone. */
    {"loss_weight", BIT(PD_CHECK_LOSS_WEIGHT) | BIT(PD_CHECK_PADDING) | BIT(PD_CHECK_TOTALS)},
    {"cu_seqlens_real", BIT(PD_CHECK_MEGATRON)},
    {"cu_seqlens_padded", BIT(PD_CHECK_MEGATRON)},
};

/* Another value for the element: next to it, zero, the mark of no label, an extreme, or one flipped
 * bit. */
static uint32_t other_value(uint32_t value, uint64_t *random)
{
    static const uint32_t extremes[] = {0,         1,           UINT32_MAX,
                                        INT32_MAX, 0x80000000u, (uint32_t)PD_LABEL_NONE};
    for (;;) {
        uint32_t other;
        switch (test_below(random, 4)) {
        case 0:
            other = value + 1;
            break;
        case 1:
            other = value - 1;
            break;
        case 2:
            other = extremes[test_below(random, PD_COUNT_OF(extremes))];
            break;
        default:
            other = value ^ (1u << test_below(random, 32));
        }
        if (other != value)
            return other;
    }
}

/* The segment that holds a token at this position, by the plan, or NULL. */
static const struct pd_segment *segment_at(const struct layout_case *c, size_t at)
{
    const struct pd_pack *pack = c->rows[at / c->batch.width];
    uint32_t position = (uint32_t)(at % c->batch.width);
    for (uint32_t i = 0; pack && i < pack->segment_count; i++) {
        if (position < pack->segments[i].slot_tokens)
            return position < pack->segments[i].length_tokens ? &pack->segments[i] : NULL;
        position -= pack->segments[i].slot_tokens;
    }
    return NULL;
}

struct mutation {
    uint32_t array;
    size_t at;
    uint32_t before, after;
    bool with_plan;
};

enum outcome { MUST_BE_FOUND, STAYS_VALID, EITHER };

/* Few changes leave a batch valid: another token of a sample, and another label where there is one;
 * the structural check does not know the content of samples, the digests do. Without a plan,
 * another weight on the only target of a segment shows in the total alone, where it may be too
 * small to count. */
static enum outcome expected_outcome(const struct layout_case *c, const struct mutation *m)
{
    const char *name = owners[m->array].name;
    const struct pd_segment *segment = NULL;
    if (strcmp(name, "tokens") == 0)
        return segment_at(c, m->at) ? STAYS_VALID : MUST_BE_FOUND;
    if (strcmp(name, "labels") == 0 && m->before != (uint32_t)PD_LABEL_NONE)
        return m->after != (uint32_t)PD_LABEL_NONE ? STAYS_VALID : MUST_BE_FOUND;
    if (strcmp(name, "loss_weight") == 0 && !m->with_plan)
        segment = segment_at(c, m->at);
    bool has_label = segment && ((int32_t *)case_array(c, "labels"))[m->at] != PD_LABEL_NONE;
    float after;
    memcpy(&after, &m->after, sizeof after);
    bool allowed = isfinite(after) && after >= 0;
    return has_label && segment->loss_tokens == 1 && allowed ? EITHER : MUST_BE_FOUND;
}

static void judge(const struct layout_case *c, const struct mutation *m, int rc,
                  const struct pd_check_finding *finding, uint64_t seed)
{
    enum outcome expected = expected_outcome(c, m);
    bool rightly = rc == 0 || owners[m->array].rightly & BIT(finding->check);
    bool good = rightly && (expected == EITHER || (rc == 0) == (expected == STAYS_VALID));
    if (!good)
        fail_msg("seed %llu: %s[%zu] %d -> %d, %s plan: %s: %s", (unsigned long long)seed,
                 owners[m->array].name, m->at, (int32_t)m->before, (int32_t)m->after,
                 m->with_plan ? "with" : "without",
                 rc == 0 ? "not found" : pd_check_name(finding->check), finding->text);
    if (rc != 0)
        assert_true(finding->row < c->batch.rows && finding->position < c->batch.width);
}

static void mutate(struct layout_case *c, uint32_t array, bool with_plan, uint64_t *random,
                   uint64_t seed)
{
    const struct pd_array *table = &c->batch.arrays[array];
    assert_string_equal(table->name, owners[array].name);
    size_t count = table->size_bytes / 4;
    if (count == 0)
        return;
    uint32_t *values = case_array(c, table->name);
    struct mutation m = {
        .array = array, .at = test_below(random, (uint32_t)count), .with_plan = with_plan};
    m.before = values[m.at];
    m.after = other_value(m.before, random);
    struct pd_check_finding finding = {0};
    values[m.at] = m.after;
    int rc = check(c, with_plan, &finding);
    values[m.at] = m.before;
    judge(c, &m, rc, &finding, seed);
}

static void forget_digests(struct layout_case *c)
{
    for (uint32_t i = 0; i < c->batch.array_count; i++)
        c->batch.arrays[i].digest = 0;
}

/* Without digests, so that the rules alone must find it. */
static void test_mutations(void **state)
{
    (void)state;
    uint64_t from = test_seed(1);
    for (uint64_t seed = from; seed < from + 400; seed++) {
        struct layout_case *c = random_case(seed);
        uint64_t random = seed;
        forget_digests(c);
        for (uint32_t array = 0; array < PD_COUNT_OF(owners); array++)
            for (int i = 0; i < 40; i++)
                mutate(c, array, i % 2, &random, seed);
        case_free(c);
    }
}

/* With digests, every change of every byte is found, samples' own content too. */
static void test_digest_finds_content(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed < 100; seed++) {
        struct layout_case *c = random_case(seed);
        uint64_t random = seed;
        for (uint32_t array = 0; array < c->batch.array_count; array++) {
            const struct pd_array *table = &c->batch.arrays[array];
            if (table->size_bytes == 0)
                continue;
            uint8_t *bytes = (uint8_t *)c->payload + table->offset_bytes;
            size_t at = test_below(&random, (uint32_t)table->size_bytes);
            struct pd_check_finding finding;
            bytes[at] ^= (uint8_t)(1u << test_below(&random, 8));
            assert_int_equal(check(c, true, &finding), PD_ECORRUPT);
            case_build(c, NULL);
        }
        case_free(c);
    }
}

/* ---- by hand ---- */

/* Rows of 8: 3 + 2 + padding, and 4 + 4. */
static struct layout_case *two_rows(void)
{
    struct layout_case *c = case_new();
    static const uint32_t lengths[] = {3, 2, 4, 4};
    for (uint32_t i = 0; i < 4; i++)
        case_put(c, i / 2, case_sample(c, lengths[i], 10 * (int32_t)i, 2, NULL, NULL, 0), 0,
                 lengths[i], 0, 1);
    assert_int_equal(case_build(c, NULL), 0);
    forget_digests(c);
    return c;
}

static void expect_finding(const struct layout_case *c, bool with_plan, enum pd_check expected,
                           uint32_t row, uint32_t position)
{
    struct pd_check_finding finding = {0};
    assert_int_equal(check(c, with_plan, &finding), PD_ECORRUPT);
    if (finding.check != expected || finding.row != row || finding.position != position)
        fail_msg("found %s at row %u, position %u (%s), expected %s at %u, %u",
                 pd_check_name(finding.check), finding.row, finding.position, finding.text,
                 pd_check_name(expected), row, position);
    assert_true(finding.text[0] != 0);
}

#define MUTATED(array, type, at, value, with_plan, check, row, position) \
    do {                                                                 \
        struct layout_case *c = two_rows();                              \
        ((type *)case_array(c, array))[at] = (value);                    \
        expect_finding(c, with_plan, check, row, position);              \
        case_free(c);                                                    \
    } while (0)

static void test_places(void **state)
{
    (void)state;
    MUTATED("tokens", int32_t, 6, 1, false, PD_CHECK_PADDING, 0, 6);
    MUTATED("positions", int32_t, 3, 3, false, PD_CHECK_POSITIONS, 0, 3); /* C.1.8: runs on */
    MUTATED("positions", int32_t, 5, 2, false, PD_CHECK_POSITIONS, 0, 5); /* padding restarts too */
    MUTATED("segment_ids", int32_t, 12, 1, false, PD_CHECK_SEGMENT_IDS, 1,
            4); /* C.1.1: merged with its neighbour */
    MUTATED("segment_ids", int32_t, 7, 2, false, PD_CHECK_SEGMENT_IDS, 0, 7);
    MUTATED("labels", int32_t, 3, 12, false, PD_CHECK_LABELS, 0,
            3); /* C.6.41: predicts across a boundary */
    MUTATED("labels", int32_t, 7, 0, false, PD_CHECK_PADDING, 0, 7);
    MUTATED("loss_weight", float, 1, 0, true, PD_CHECK_LOSS_WEIGHT, 0, 1);
    MUTATED("loss_weight", float, 1, NAN, false, PD_CHECK_LOSS_WEIGHT, 0, 1);
    MUTATED("loss_weight", float, 3, -0.0f, false, PD_CHECK_LOSS_WEIGHT, 0, 3);
    MUTATED("cu_seqlens", int32_t, 0, 1, false, PD_CHECK_CU_SEQLENS, 0, 1);
    MUTATED("cu_seqlens", int32_t, 5, 15, false, PD_CHECK_CU_SEQLENS, 1,
            7); /* C.2.19: does not reach T */
    MUTATED("cu_seqlens", int32_t, 1, 2, false, PD_CHECK_SEQ_LENS, 0, 0);
    MUTATED("cu_seqlens", int32_t, 2, 3, false, PD_CHECK_CU_SEQLENS, 0,
            3); /* C.2.17: a zero-length segment */
    MUTATED("cu_seqlens", int32_t, 3, 9, false, PD_CHECK_CU_SEQLENS, 0,
            5); /* C.1.2: across the row's end */
    MUTATED("seq_lens", int32_t, 0, 2, false, PD_CHECK_SEQ_LENS, 0, 0);
    MUTATED("seq_lens", int32_t, 1, 3, false, PD_CHECK_SEQ_LENS, 0, 3);
    MUTATED("sample_index", int32_t, 2, 2, false, PD_CHECK_SAMPLE_INDEX, 0, 5);
    MUTATED("cu_seqlens_real", int32_t, 2, 8, false, PD_CHECK_MEGATRON, 0, 7);
    MUTATED("cu_seqlens_padded", int32_t, 2, 5, false, PD_CHECK_MEGATRON, 0, 7); /* C.1.13 */
}

/* C.6.42: shifted twice, or not at all: labels laid out for one convention fail under the other. */
static void test_wrong_convention(void **state)
{
    (void)state;
    struct layout_case *c = two_rows();
    c->rules.labels = PD_LABELS_SHIFTED;
    expect_finding(c, true, PD_CHECK_LABELS, 0, 2);
    case_free(c);
}

/* Every number of the header, one up: found, as what it is. */
static void test_header_numbers(void **state)
{
    (void)state;
    struct layout_case *c = two_rows();
    struct pd_batch good = c->batch;
    struct pd_batch *b = &c->batch;
    struct pd_check_finding finding;
#define OFF(change, name)                                        \
    do {                                                         \
        change;                                                  \
        assert_int_equal(check(c, true, &finding), PD_ECORRUPT); \
        assert_string_equal(pd_check_name(finding.check), name); \
        *b = good;                                               \
    } while (0)
    OFF(b->max_seqlen++, "max_seqlen");
    OFF(b->max_seqlen = 3, "max_seqlen");
    OFF(b->real_segment_count++, "totals"); /* C.1.15 */
    OFF(b->tail_tokens--, "totals");
    OFF(b->row_padding_tokens++, "totals");
    OFF(b->totals.real_tokens++, "totals");
    OFF(b->totals.gap_tokens++, "totals");
    OFF(b->totals.overlap_tokens++, "totals");
    OFF(b->totals.loss_tokens--, "totals"); /* C.6.43: the divisor of the loss */
    OFF(b->totals.loss_weight = nextafter(b->totals.loss_weight, 100), "totals");
    OFF(b->totals.loss_weight = NAN, "totals");
    OFF(b->totals.segments++, "totals");
    OFF(b->totals.samples++, "totals");
    OFF(b->totals.patches++, "totals");
    OFF(b->totals.attention_cost++, "totals");
    OFF(b->totals.longest_tokens++, "totals");
    OFF(b->totals.widest_slots++, "totals");
    OFF(b->rows++, "shape");
    OFF(b->rows = 0, "shape");
    OFF(b->width = 0, "shape");
    OFF(b->width = UINT32_MAX, "shape");
    OFF(b->segment_count++, "shape");
    OFF(b->segment_count = UINT32_MAX, "shape");
    OFF(b->megatron_count--, "shape");
    OFF(b->array_count--, "shape");
    OFF(b->array_count = UINT32_MAX, "shape");
    OFF(b->payload_bytes -= 64, "shape");
    OFF(b->payload_bytes += 64, "shape");
    OFF(b->payload_bytes = 0, "shape");
    OFF(b->arrays[4].name[0] = 'x', "shape");
    OFF(memset(b->arrays[4].name, 'l', sizeof b->arrays[4].name), "shape");
    OFF(b->arrays[4].dtype = PD_DTYPE_F32, "shape");
    OFF(b->arrays[4].dtype = 99, "shape");
    OFF(b->arrays[4].rank = UINT32_MAX, "shape");
    OFF(b->arrays[4].shape[1]++, "shape");
    OFF(b->arrays[4].offset_bytes += 64, "shape");
    OFF(b->arrays[4].offset_bytes = UINT64_MAX, "shape");
    OFF(b->arrays[4].size_bytes = UINT64_MAX, "shape");
    OFF(b->arrays[4].digest = 1, "digest");
#undef OFF
    assert_int_equal(check(c, true, &finding), 0);
    case_free(c);
}

/* A batch that is sound in itself but is not the planned one. */
static void test_other_plan(void **state)
{
    (void)state;
    struct layout_case *c = two_rows(), *other = two_rows();
    struct pd_check_finding finding;
    struct pd_segment *segments = other->packs[1].segments;
    const struct pd_pack *swapped[] = {other->rows[1], other->rows[0]};
    struct pd_check_input input = case_check_input(c, true);
    input.rows = swapped;
    assert_int_equal(pd_check_batch(&input, &finding), PD_ECORRUPT);
    assert_int_equal(finding.check, PD_CHECK_PLAN);
    const struct pd_pack *missing[] = {other->rows[0], NULL};
    input.rows = missing;
    assert_int_equal(pd_check_batch(&input, &finding), PD_ECORRUPT);
    assert_int_equal(finding.check, PD_CHECK_PLAN);
    segments[1].loss_tokens = 2;
    expect_finding(other, true, PD_CHECK_PLAN, 1, 4);
    segments[1].loss_tokens = 3;
    segments[1].weight = 1;
    expect_finding(other, true, PD_CHECK_LOSS_WEIGHT, 1, 5);
    segments[1].weight = NAN;
    expect_finding(other, true, PD_CHECK_LOSS_WEIGHT, 1, 5);
    segments[1].weight = 2;
    other->packs[1].segment_count = 1;
    expect_finding(other, true, PD_CHECK_PLAN, 1, 4);
    case_free(c);
    case_free(other);
}

/* Rules the batch was not made by. */
static void test_other_rules(void **state)
{
    (void)state;
    struct layout_case *c = two_rows();
    const struct pd_layout_rules good = c->rules;
    struct pd_check_finding finding;
#define UNDER(change, name)                                      \
    do {                                                         \
        change;                                                  \
        assert_int_equal(check(c, true, &finding), PD_ECORRUPT); \
        assert_string_equal(pd_check_name(finding.check), name); \
        c->rules = good;                                         \
    } while (0)
    UNDER(c->rules.seg_align = 2, "cu_seqlens"); /* C.8.51: odd lengths under context parallelism */
    UNDER(c->rules.seg_align = 0, "shape");
    UNDER(c->rules.total_align = 0, "shape");
    UNDER(c->rules.total_align = 16, "shape");
    UNDER(c->rules.seq_len = 16, "shape");
    UNDER(c->rules.pad_segment = 2, "padding");
    UNDER(c->rules.pad_id = 1, "padding");
    UNDER(c->rules.fixed_segments = 6, "shape");
    UNDER(c->rules.segments_max = 1, "plan");
    UNDER(c->rules.cost.beta = 7, "totals");
    UNDER(c->rules.loss = PD_LOSS_SAMPLE, "loss_weight");
#undef UNDER
    case_free(c);
}

/* A width the rules do not give for rows of 5 and 8 positions. */
static void test_width(void **state)
{
    (void)state;
    struct layout_case *c = case_new();
    c->rules.seq_len = 24;
    c->rules.total_align = 4;
    case_put(c, 0, case_sample(c, 5, 0, 1, NULL, NULL, 0), 0, 5, 0, 1);
    struct pd_check_finding finding;
    for (uint32_t width = 8; width <= 24; width += 4) {
        c->width = width;
        c->rules.width = PD_WIDTH_STEP;
        c->rules.width_count = 0;
        assert_int_equal(case_build(c, NULL), 0);
        assert_int_equal(check(c, true, &finding), 0);
        c->rules.width_count = 2;
        c->rules.widths[0] = 4;
        c->rules.widths[1] = 16;
        assert_int_equal(check(c, true, &finding), width == 16 || width == 24 ? 0 : PD_ECORRUPT);
        c->rules.width = PD_WIDTH_BATCH;
        assert_int_equal(check(c, true, &finding), width == 16 ? 0 : PD_ECORRUPT);
        c->rules.width_count = 0;
        assert_int_equal(check(c, true, &finding), width == 8 ? 0 : PD_ECORRUPT);
        c->rules.width = PD_WIDTH_FIXED;
        assert_int_equal(check(c, true, &finding), width == 24 ? 0 : PD_ECORRUPT);
    }
    case_free(c);
}

/* The least width of the list, not just any of it. */
static void test_width_of_list(void **state)
{
    (void)state;
    struct layout_case *c = case_new();
    c->rules.seq_len = 24;
    c->rules.width_count = 2;
    c->rules.widths[0] = 8;
    c->rules.widths[1] = 16;
    case_put(c, 0, case_sample(c, 5, 0, 1, NULL, NULL, 0), 0, 5, 0, 1);
    struct pd_check_finding finding;
    for (uint32_t width = 8; width <= 24; width += 8) {
        c->width = width;
        c->rules.width = PD_WIDTH_STEP;
        assert_int_equal(case_build(c, NULL), 0);
        assert_int_equal(check(c, true, &finding), 0);
        c->rules.width = PD_WIDTH_BATCH;
        assert_int_equal(check(c, true, &finding), width == 8 ? 0 : PD_ECORRUPT);
    }
    case_free(c);
}

/* Gaps hide a planned length that differs, and a slot that could be shorter. */
static void test_plan_behind_gaps(void **state)
{
    (void)state;
    struct layout_case *c = case_new();
    c->rules.seg_align = c->rules.total_align = 4;
    case_put(c, 0, case_sample(c, 3, 0, 1, NULL, NULL, 0), 0, 3, 0, 1);
    assert_int_equal(case_build(c, NULL), 0);
    struct pd_segment *segment = &c->packs[0].segments[0];
    segment->length_tokens = 4;
    expect_finding(c, true, PD_CHECK_PLAN, 0, 0);
    segment->length_tokens = 3;
    segment->slot_tokens = 8;
    expect_finding(c, true, PD_CHECK_PLAN, 0, 0);
    segment->slot_tokens = 4;
    case_put(c, 0, 0, 0, 3, 0, 1); /* planned, but not there */
    expect_finding(c, true, PD_CHECK_PLAN, 0, 0);
    case_free(c);
}

/* Two targets of a segment agree on a weight that is none. */
static void test_bad_weights_alike(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -1};
    for (size_t i = 0; i < PD_COUNT_OF(bad); i++) {
        struct layout_case *c = two_rows();
        float *weights = case_array(c, "loss_weight");
        weights[1] = weights[2] = bad[i];
        expect_finding(c, false, PD_CHECK_LOSS_WEIGHT, 0, 1);
        case_free(c);
    }
}

/* Padding before a sample: each array is sound in itself. */
static void test_padding_first(void **state)
{
    (void)state;
    struct layout_case *c = case_new();
    case_put(c, 0, case_sample(c, 5, 10, 1, NULL, NULL, 0), 0, 5, 0, 1);
    assert_int_equal(case_build(c, NULL), 0);
    forget_digests(c);
    memcpy(case_array(c, "tokens"), (int32_t[]){0, 0, 0, 10, 11, 12, 13, 14}, 32);
    memcpy(case_array(c, "positions"), (int32_t[]){0, 1, 2, 0, 1, 2, 3, 4}, 32);
    memcpy(case_array(c, "segment_ids"), (int32_t[]){0, 0, 0, 1, 1, 1, 1, 1}, 32);
    memcpy(case_array(c, "labels"), (int32_t[]){-100, -100, -100, -100, 11, 12, 13, 14}, 32);
    memcpy(case_array(c, "loss_weight"), (float[]){0, 0, 0, 0, 1, 1, 1, 1}, 32);
    memcpy(case_array(c, "cu_seqlens"), (int32_t[]){0, 3, 8}, 12);
    memcpy(case_array(c, "seq_lens"), (int32_t[]){0, 5}, 8);
    memcpy(case_array(c, "sample_index"), (int32_t[]){-1, 0}, 8);
    expect_finding(c, true, PD_CHECK_SEQ_LENS, 0, 3);
    case_free(c);
}

/* An empty entry of the pair where only fixed_segments may have one. */
static void test_pair_too_long(void **state)
{
    (void)state;
    struct layout_case *c = two_rows();
    c->rules.fixed_segments = c->batch.segment_count;
    assert_int_equal(case_build(c, NULL), 0);
    struct pd_check_finding finding;
    assert_int_equal(check(c, true, &finding), 0);
    c->rules.fixed_segments = 0;
    expect_finding(c, true, PD_CHECK_MEGATRON, 0, 0);
    case_free(c);
}

static void test_bytes_between_arrays(void **state)
{
    (void)state;
    struct layout_case *c = two_rows();
    const struct pd_array *lens = pd_batch_find(&c->batch, "seq_lens");
    ((uint8_t *)c->payload)[lens->offset_bytes + lens->size_bytes] = 1;
    expect_finding(c, true, PD_CHECK_SHAPE, 0, 0);
    case_free(c);
}

static void test_misaligned_payload(void **state)
{
    (void)state;
    struct layout_case *c = two_rows();
    struct pd_check_finding finding;
    c->batch.payload_bytes -= 1;
    struct pd_check_input input = case_check_input(c, false);
    input.payload = (char *)c->payload + 1;
    assert_int_equal(pd_check_batch(&input, &finding), PD_ECORRUPT);
    assert_int_equal(finding.check, PD_CHECK_SHAPE);
    case_free(c);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(pd_check_name(PD_CHECK_SHAPE), "shape");
    assert_string_equal(pd_check_name(PD_CHECK_DIGEST), "digest");
    assert_string_equal(pd_check_name(PD_CHECK_COUNT), "unknown");
    for (unsigned i = 0; i < PD_CHECK_COUNT; i++)
        assert_true(pd_check_name((enum pd_check)i)[0] != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_false_alarm),
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_digest_finds_content),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_wrong_convention),
        cmocka_unit_test(test_header_numbers),
        cmocka_unit_test(test_other_plan),
        cmocka_unit_test(test_other_rules),
        cmocka_unit_test(test_width),
        cmocka_unit_test(test_bytes_between_arrays),
        cmocka_unit_test(test_misaligned_payload),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_width_of_list),
        cmocka_unit_test(test_plan_behind_gaps),
        cmocka_unit_test(test_bad_weights_alike),
        cmocka_unit_test(test_padding_first),
        cmocka_unit_test(test_pair_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
