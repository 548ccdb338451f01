/* The layout against cases written out by hand; layout_model_test.c has the model.
 *
 * Bug reports that a case answers are named by their place in the list of known bugs ("C.1.1"). */
#include "tests/unit/layout_case.h"

#include "base/check.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NO PD_LABEL_NONE

static void expect_i32(const struct layout_case *c, const char *name, size_t count,
                       const int32_t *values)
{
    const struct pd_array *array = pd_batch_find(&c->batch, name);
    assert_non_null(array);
    assert_int_equal(array->dtype, PD_DTYPE_I32);
    assert_int_equal(array->size_bytes, count * sizeof *values);
    assert_int_equal(array->offset_bytes % 64, 0);
    const int32_t *found = case_array(c, name);
    for (size_t i = 0; i < count; i++)
        if (found[i] != values[i])
            fail_msg("%s[%zu] is %d, expected %d", name, i, found[i], values[i]);
}

static void expect_f32(const struct layout_case *c, const char *name, size_t count,
                       const float *values)
{
    const struct pd_array *array = pd_batch_find(&c->batch, name);
    assert_non_null(array);
    assert_int_equal(array->dtype, PD_DTYPE_F32);
    assert_int_equal(array->size_bytes, count * sizeof *values);
    const float *found = case_array(c, name);
    for (size_t i = 0; i < count; i++)
        if (memcmp(&found[i], &values[i], sizeof values[i]) != 0)
            fail_msg("%s[%zu] is %g, expected %g", name, i, (double)found[i], (double)values[i]);
}

#define INTS(...)                                                   \
    sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), (int32_t[]) \
    {                                                               \
        __VA_ARGS__                                                 \
    }
#define FLOATS(...)                                           \
    sizeof((float[]){__VA_ARGS__}) / sizeof(float), (float[]) \
    {                                                         \
        __VA_ARGS__                                           \
    }

static uint32_t plain(struct layout_case *c, uint32_t length, int32_t first)
{
    return case_sample(c, length, first, 1, NULL, NULL, 0);
}

static void build(struct layout_case *c)
{
    struct pd_error error = {0};
    if (case_build(c, &error) != 0)
        fail_msg("%s: %s", error.reason, error.text);
}

/* Two rows, two samples each: lengths 3, 2 and 4, 4 in rows of 8. */
static struct layout_case *two_rows(enum pd_labels labels)
{
    struct layout_case *c = case_new();
    c->rules.labels = labels;
    c->rules.pad_id = 9;
    case_put(c, 0, plain(c, 3, 10), 0, 3, 0, 1);
    case_put(c, 0, plain(c, 2, 20), 0, 2, 0, 1);
    case_put(c, 1, plain(c, 4, 30), 0, 4, 0, 1);
    case_put(c, 1, plain(c, 4, 40), 0, 4, 0, 1);
    build(c);
    return c;
}

/* C.1.1, C.1.2: boundaries of the flattened batch, row starts included. C.1.8: positions restart.
 * C.1.13: both offset arrays. C.1.15: padding is told apart from samples (n_real_segments). C.2.19:
 * every position is covered. */
static void test_unshifted(void **state)
{
    (void)state;
    struct layout_case *c = two_rows(PD_LABELS_UNSHIFTED);
    expect_i32(c, "tokens", INTS(10, 11, 12, 20, 21, 9, 9, 9, 30, 31, 32, 33, 40, 41, 42, 43));
    expect_i32(c, "positions", INTS(0, 1, 2, 0, 1, 0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3));
    expect_i32(c, "segment_ids", INTS(1, 1, 1, 2, 2, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2));
    expect_i32(c, "labels", INTS(NO, 11, 12, NO, 21, NO, NO, NO, NO, 31, 32, 33, NO, 41, 42, 43));
    expect_f32(c, "loss_weight", FLOATS(0, 1, 1, 0, 1, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1));
    expect_i32(c, "cu_seqlens", INTS(0, 3, 5, 8, 12, 16));
    expect_i32(c, "seq_lens", INTS(3, 2, 0, 4, 4));
    expect_i32(c, "sample_index", INTS(0, 1, -1, 2, 3));
    expect_i32(c, "cu_seqlens_real", INTS(0, 3, 5, 9, 13));
    expect_i32(c, "cu_seqlens_padded", INTS(0, 3, 8, 12, 16));
    assert_int_equal(c->batch.segment_count, 5);
    assert_int_equal(c->batch.real_segment_count, 4);
    assert_int_equal(c->batch.megatron_count, 4);
    assert_int_equal(c->batch.max_seqlen, 4);
    assert_int_equal(c->batch.tail_tokens, 3);
    assert_int_equal(c->batch.row_padding_tokens, 0);
    assert_int_equal(c->batch.totals.real_tokens, 13);
    assert_int_equal(c->batch.totals.loss_tokens, 9);
    assert_true(c->batch.totals.loss_weight == 9);
    assert_int_equal(c->batch.totals.attention_cost, 2 * 13 + 9 + 4 + 16 + 16);
    case_free(c);
}

/* C.6.41: the last token of a sample predicts nothing. C.6.42: the convention is a rule, and the
 * number of targets does not depend on it. */
static void test_shifted(void **state)
{
    (void)state;
    struct layout_case *c = two_rows(PD_LABELS_SHIFTED);
    expect_i32(c, "labels", INTS(11, 12, NO, 21, NO, NO, NO, NO, 31, 32, 33, NO, 41, 42, 43, NO));
    expect_f32(c, "loss_weight", FLOATS(1, 1, 0, 1, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 0));
    assert_int_equal(c->batch.totals.loss_tokens, 9);
    case_free(c);
}

static void test_array_order(void **state)
{
    (void)state;
    static const char *const names[] = {
        "tokens",    "cu_seqlens",  "seq_lens",    "sample_index",    "labels",
        "positions", "segment_ids", "loss_weight", "cu_seqlens_real", "cu_seqlens_padded"};
    struct layout_case *c = two_rows(PD_LABELS_UNSHIFTED);
    assert_int_equal(c->batch.array_count, 10);
    for (size_t i = 0; i < 10; i++)
        assert_string_equal(c->batch.arrays[i].name, names[i]);
    assert_int_equal(c->batch.payload_bytes, 10 * 64);
    assert_null(pd_batch_find(&c->batch, "attention_mask")); /* C.1.4 */
    case_free(c);
}

/* Pushed labels and runs, seen as targets: off 2, on 2, off to the end. */
static struct layout_case *masked(enum pd_labels labels, enum pd_loss_policy loss)
{
    struct layout_case *c = case_new();
    c->rules.labels = labels;
    c->rules.loss = loss;
    c->rules.seq_len = 10;
    uint32_t a = case_sample(c, 5, 10, 3, (int32_t[]){50, 51, 52, 53, 54}, (uint32_t[]){2, 2}, 2);
    uint32_t b = case_sample(c, 4, 20, 1, NULL, (uint32_t[]){0, 2, 1, 1}, 4);
    case_put(c, 0, a, 0, 5, 0, 1);
    case_put(c, 0, b, 0, 4, 0, 1);
    build(c);
    return c;
}

static void test_masks(void **state)
{
    (void)state;
    struct layout_case *c = masked(PD_LABELS_UNSHIFTED, PD_LOSS_TOKEN);
    expect_i32(c, "labels", INTS(NO, NO, 52, 53, NO, NO, 21, NO, 23, NO));
    expect_f32(c, "loss_weight", FLOATS(0, 0, 3, 3, 0, 0, 1, 0, 1, 0));
    assert_true(c->batch.totals.loss_weight == 8);
    case_free(c);
    c = masked(PD_LABELS_SHIFTED, PD_LOSS_TOKEN);
    expect_i32(c, "labels", INTS(NO, 52, 53, NO, NO, 21, NO, 23, NO, NO));
    expect_f32(c, "loss_weight", FLOATS(0, 3, 3, 0, 0, 1, 0, 1, 0, 0));
    case_free(c);
    c = masked(PD_LABELS_UNSHIFTED, PD_LOSS_SAMPLE);
    expect_f32(c, "loss_weight", FLOATS(0, 0, 1.5f, 1.5f, 0, 0, 0.5f, 0, 0.5f, 0));
    assert_true(c->batch.totals.loss_weight == 4);
    case_free(c);
}

/* A sample of 7 in parts of 4 and 4 that overlap by one token: each target once, the weight of the
 * whole sample. */
static void test_split(void **state)
{
    (void)state;
    for (int shifted = 0; shifted < 2; shifted++) {
        struct layout_case *c = case_new();
        c->rules.labels = shifted ? PD_LABELS_SHIFTED : PD_LABELS_UNSHIFTED;
        c->rules.loss = PD_LOSS_SAMPLE;
        c->rules.seq_len = 4;
        uint32_t sample =
            case_sample(c, 7, 10, 3, (int32_t[]){50, 51, 52, 53, 54, 55, 56}, NULL, 0);
        case_put(c, 0, sample, 0, 4, 0, 2);
        case_put(c, 1, sample, 3, 4, 1, 2);
        build(c);
        expect_i32(c, "tokens", INTS(10, 11, 12, 13, 13, 14, 15, 16));
        if (shifted)
            expect_i32(c, "labels", INTS(51, 52, 53, NO, 54, 55, 56, NO));
        else
            expect_i32(c, "labels", INTS(NO, 51, 52, 53, NO, 54, 55, 56));
        const float *weight = case_array(c, "loss_weight");
        assert_true(weight[1] == 0.5f && weight[6] == 0.5f);
        assert_true(c->batch.totals.loss_weight == 3);
        assert_int_equal(c->batch.totals.overlap_tokens, 1);
        assert_int_equal(c->batch.totals.samples, 1);
        case_free(c);
    }
}

/* Gaps of seg_align 4 inside the slots; the padding behind them starts anew. */
static void test_gaps(void **state)
{
    (void)state;
    struct layout_case *c = case_new();
    c->rules.seq_len = 16;
    c->rules.seg_align = 4;
    c->rules.total_align = 8;
    c->rules.pad_id = 7;
    case_put(c, 0, plain(c, 3, 10), 0, 3, 0, 1);
    case_put(c, 0, plain(c, 5, 20), 0, 5, 0, 1);
    build(c);
    expect_i32(c, "tokens", INTS(10, 11, 12, 7, 20, 21, 22, 23, 24, 7, 7, 7, 7, 7, 7, 7));
    expect_i32(c, "positions", INTS(0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3));
    expect_i32(c, "segment_ids", INTS(1, 1, 1, 0, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0));
    expect_i32(c, "labels", INTS(NO, 11, 12, NO, NO, 21, 22, 23, 24, NO, NO, NO, NO, NO, NO, NO));
    expect_i32(c, "cu_seqlens", INTS(0, 4, 12, 16));
    expect_i32(c, "seq_lens", INTS(3, 5, 0));
    expect_i32(c, "cu_seqlens_real", INTS(0, 3, 8));
    expect_i32(c, "cu_seqlens_padded", INTS(0, 4, 16));
    assert_int_equal(c->batch.totals.gap_tokens, 4);
    assert_int_equal(c->batch.tail_tokens, 4);
    case_free(c);
}

/* TransformerEngine's own picture of the pair: aaa1 bb22 cccc3 -> [0,3,5,9] and [0,4,8,13], here
 * with slots of 4 and a tail. */
static void test_pair(void **state)
{
    (void)state;
    struct layout_case *c = case_new();
    c->rules.seq_len = 16;
    c->rules.seg_align = 4;
    c->rules.total_align = 4;
    case_put(c, 0, plain(c, 3, 0), 0, 3, 0, 1);
    case_put(c, 0, plain(c, 2, 0), 0, 2, 0, 1);
    case_put(c, 0, plain(c, 4, 0), 0, 4, 0, 1);
    build(c);
    expect_i32(c, "cu_seqlens_real", INTS(0, 3, 5, 9));
    expect_i32(c, "cu_seqlens_padded", INTS(0, 4, 8, 16));
    case_free(c);
}

/* Padding in pieces of at most pad_segment, each a multiple of seg_align; a row without samples
 * counts whole in the pair. */
static void test_padding_cuts(void **state)
{
    (void)state;
    struct layout_case *c = case_new();
    c->rules.seq_len = 12;
    c->rules.seg_align = 2;
    c->rules.total_align = 2;
    c->rules.pad_segment = 5; /* pieces of 4 */
    case_put(c, 1, plain(c, 1, 10), 0, 1, 0, 1);
    build(c);
    expect_i32(c, "positions",
               INTS(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1));
    expect_i32(c, "cu_seqlens", INTS(0, 4, 8, 12, 14, 18, 22, 24));
    expect_i32(c, "seq_lens", INTS(0, 0, 0, 1, 0, 0, 0));
    expect_i32(c, "sample_index", INTS(-1, -1, -1, 0, -1, -1, -1));
    expect_i32(c, "cu_seqlens_real", INTS(0, 12, 13));
    expect_i32(c, "cu_seqlens_padded", INTS(0, 12, 24));
    assert_int_equal(c->batch.max_seqlen, 4);
    assert_int_equal(c->batch.row_padding_tokens, 12);
    assert_int_equal(c->batch.tail_tokens, 10);
    case_free(c);
}

/* A batch of padding alone: NULL rows and empty packs are the same thing. */
static void test_rows_of_padding(void **state)
{
    (void)state;
    struct layout_case *c = case_new();
    c->row_count = 2;
    c->rows[1] = &c->packs[1];
    build(c);
    expect_i32(c, "tokens", INTS(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    expect_i32(c, "cu_seqlens", INTS(0, 8, 16));
    expect_i32(c, "seq_lens", INTS(0, 0));
    expect_i32(c, "cu_seqlens_padded", INTS(0, 8, 16));
    assert_int_equal(c->batch.real_segment_count, 0);
    assert_int_equal(c->batch.totals.loss_tokens, 0);
    assert_int_equal(c->batch.row_padding_tokens, 16);
    c->rules.width = PD_WIDTH_BATCH;
    build(c);
    assert_int_equal(c->batch.width, 1);
    case_free(c);
}

/* C.1.9: one sample fills the row; the last boundary is the total, and there is no padding segment
 * of length 0. */
static void test_full_row(void **state)
{
    (void)state;
    struct layout_case *c = case_new();
    case_put(c, 0, plain(c, 8, 1), 0, 8, 0, 1);
    build(c);
    expect_i32(c, "cu_seqlens", INTS(0, 8));
    expect_i32(c, "seq_lens", INTS(8));
    expect_i32(c, "cu_seqlens_padded", INTS(0, 8));
    assert_int_equal(c->batch.max_seqlen, 8);
    case_free(c);
}

/* C.2.16, C.2.17: samples of one token are segments of one position, without a target; nothing has
 * length 0. */
static void test_tiny(void **state)
{
    (void)state;
    for (int shifted = 0; shifted < 2; shifted++) {
        struct layout_case *c = case_new();
        c->rules.labels = shifted ? PD_LABELS_SHIFTED : PD_LABELS_UNSHIFTED;
        c->rules.seq_len = 3;
        for (int i = 0; i < 3; i++)
            case_put(c, 0, plain(c, 1, 10 + i), 0, 1, 0, 1);
        build(c);
        expect_i32(c, "cu_seqlens", INTS(0, 1, 2, 3));
        expect_i32(c, "labels", INTS(NO, NO, NO));
        expect_f32(c, "loss_weight", FLOATS(0, 0, 0));
        assert_int_equal(c->batch.max_seqlen, 1);
        case_free(c);
    }
}

/* C.1.12: boundaries come from lengths, whatever the tokens are: here all equal to each other and
 * to pad_id. */
static void test_equal_tokens(void **state)
{
    (void)state;
    struct layout_case *c = case_new();
    c->rules.pad_id = 5;
    for (int i = 0; i < 3; i++) {
        uint32_t sample = plain(c, 2, 5);
        c->samples[sample].tokens[1] = 5;
        case_put(c, 0, sample, 0, 2, 0, 1);
    }
    build(c);
    expect_i32(c, "tokens", INTS(5, 5, 5, 5, 5, 5, 5, 5));
    expect_i32(c, "segment_ids", INTS(1, 1, 2, 2, 3, 3, 0, 0));
    expect_i32(c, "cu_seqlens", INTS(0, 2, 4, 6, 8));
    case_free(c);
}

static void test_fixed_segments(void **state)
{
    (void)state;
    struct layout_case *c = case_new();
    c->rules.fixed_segments = 6;
    case_put(c, 0, plain(c, 3, 10), 0, 3, 0, 1);
    case_put(c, 0, plain(c, 4, 20), 0, 4, 0, 1);
    build(c);
    expect_i32(c, "cu_seqlens", INTS(0, 3, 7, 8, 8, 8, 8));
    expect_i32(c, "seq_lens", INTS(3, 4, 0, 0, 0, 0));
    expect_i32(c, "sample_index", INTS(0, 1, -1, -1, -1, -1));
    expect_i32(c, "cu_seqlens_real", INTS(0, 3, 7, 7, 7, 7, 7));
    expect_i32(c, "cu_seqlens_padded", INTS(0, 3, 8, 8, 8, 8, 8));
    assert_int_equal(c->batch.segment_count, 6);
    assert_int_equal(c->batch.real_segment_count, 2);
    struct pd_error error;
    c->rules.fixed_segments = 3;
    assert_int_equal(case_build(c, &error), 0);
    c->rules.fixed_segments = 2;
    assert_int_equal(case_build(c, &error), PD_ELIMIT);
    assert_string_equal(error.reason, "TOO_MANY_SEGMENTS");
    case_free(c);
}

static void test_width(void **state)
{
    (void)state;
    struct pd_layout_rules rules = {
        .seq_len = 96, .seg_align = 2, .total_align = 8, .pad_segment = 8};
    assert_int_equal(pd_layout_width(&rules, 1), 96);
    for (rules.width = PD_WIDTH_STEP; rules.width <= PD_WIDTH_BATCH; rules.width++) {
        rules.width_count = 0;
        assert_int_equal(pd_layout_width(&rules, 0), 8);
        assert_int_equal(pd_layout_width(&rules, 8), 8);
        assert_int_equal(pd_layout_width(&rules, 10), 16);
        assert_int_equal(pd_layout_width(&rules, 96), 96);
        rules.width_count = 2;
        rules.widths[0] = 16;
        rules.widths[1] = 64;
        assert_int_equal(pd_layout_width(&rules, 0), 16);
        assert_int_equal(pd_layout_width(&rules, 16), 16);
        assert_int_equal(pd_layout_width(&rules, 18), 64);
        assert_int_equal(pd_layout_width(&rules, 66), 96); /* above the last entry: seq_len */
    }
}

/* C.3.22: 21 in a row of 20 is refused with both numbers, 20 passes. */
static void test_too_wide(void **state)
{
    (void)state;
    struct layout_case *c = case_new();
    struct pd_error error;
    c->rules.seq_len = 20;
    case_put(c, 0, plain(c, 10, 0), 0, 10, 0, 1);
    case_put(c, 0, plain(c, 10, 0), 0, 10, 0, 1);
    build(c);
    case_put(c, 0, plain(c, 1, 0), 0, 1, 0, 1);
    assert_int_equal(case_build(c, &error), PD_EINVAL);
    assert_string_equal(error.reason, "ROW_TOO_WIDE");
    assert_non_null(strstr(error.text, "21"));
    assert_non_null(strstr(error.text, "20"));
    case_free(c);
}

static void test_bad_packs(void **state)
{
    (void)state;
    struct layout_case *c = case_new();
    struct pd_error error;
    case_put(c, 0, plain(c, 4, 0), 0, 4, 0, 1);
    case_put(c, 0, plain(c, 3, 0), 0, 3, 0, 1);
    struct pd_segment *segment = &c->packs[0].segments[1], good = *segment;
    segment->length_tokens = 0; /* C.2.17: a zero length never becomes a segment */
    assert_int_equal(case_build(c, &error), PD_EINVAL);
    *segment = good;
    segment->slot_tokens = 4;
    assert_int_equal(case_build(c, &error), PD_EINVAL);
    *segment = good;
    segment->length_tokens = UINT32_MAX; /* rounds up past 32 bits */
    segment->slot_tokens = 0;
    c->rules.seg_align = c->rules.total_align = 2;
    assert_int_equal(case_build(c, &error), PD_EINVAL);
    c->rules.seg_align = c->rules.total_align = 1;
    *segment = good;
    c->packs[0].used_slots = 5;
    assert_int_equal(case_build(c, &error), PD_EINVAL);
    assert_string_equal(error.reason, "BAD_PACK");
    c->packs[0].used_slots = 7;
    c->rules.segments_max = 1;
    assert_int_equal(case_build(c, &error), PD_EINVAL);
    c->rules.segments_max = 2;
    assert_int_equal(case_build(c, &error), 0);
    c->width = 9;
    assert_int_equal(case_build(c, &error), PD_EINVAL);
    case_free(c);
}

/* C.7.47, C.7.48: offsets are int32, so T stays below 2^31; one row fewer is measured in 64 bits.
 */
static void test_int32_limit(void **state)
{
    (void)state;
    struct pd_layout_rules rules = {
        .seq_len = 1u << 20, .seg_align = 1, .total_align = 1, .pad_segment = 1024};
    const struct pd_pack **rows = calloc(2048, sizeof *rows);
    struct pd_batch batch;
    struct pd_error error;
    assert_non_null(rows);
    struct pd_layout_input input = {
        .rules = &rules, .rows = rows, .row_count = 2048, .width = 1u << 20};
    assert_int_equal(pd_layout_measure(&input, &batch, &error), PD_ELIMIT);
    input.row_count = 2047;
    assert_int_equal(pd_layout_measure(&input, &batch, &error), 0);
    assert_int_equal(batch.segment_count, 2047 * 1024);
    assert_true(batch.payload_bytes > 5ULL * 2047 * 4 << 20);
    assert_true(batch.payload_bytes <= pd_layout_payload_max(&rules, 2047));
    free(rows);
}

/* C.6.43: totals of micro-batches add up to those of one big batch, so gradient accumulation has
 * one divisor. */
static void test_totals_add_up(void **state)
{
    (void)state;
    struct layout_case *small = case_new(), *other = case_new(), *both = case_new();
    case_put(small, 0, plain(small, 2, 0), 0, 2, 0, 1);
    case_put(other, 0, plain(other, 4, 0), 0, 4, 0, 1);
    case_put(both, 0, plain(both, 2, 0), 0, 2, 0, 1);
    case_put(both, 1, plain(both, 4, 0), 0, 4, 0, 1);
    build(small);
    build(other);
    build(both);
    assert_int_equal(small->batch.totals.loss_tokens, 1);
    assert_int_equal(other->batch.totals.loss_tokens, 3);
    assert_int_equal(both->batch.totals.loss_tokens, 4);
    assert_true(both->batch.totals.loss_weight ==
                small->batch.totals.loss_weight + other->batch.totals.loss_weight);
    case_free(small);
    case_free(other);
    case_free(both);
}

static void test_rules_check(void **state)
{
    (void)state;
    const struct pd_layout_rules good = {.seq_len = 96,
                                         .seg_align = 4,
                                         .total_align = 8,
                                         .pad_segment = 4,
                                         .width_count = 2,
                                         .widths = {16, 64}};
    struct pd_layout_rules rules = good;
    struct pd_error error;
    assert_int_equal(pd_layout_rules_check(&rules, &error), 0);
#define REFUSED(change, why)                                                \
    do {                                                                    \
        rules = good;                                                       \
        change;                                                             \
        assert_int_equal(pd_layout_rules_check(&rules, &error), PD_EINVAL); \
        assert_string_equal(error.reason, why);                             \
    } while (0)
    REFUSED(rules.seq_len = 0, "BAD_SEQ_LEN");
    REFUSED(rules.seq_len = 100, "BAD_ALIGN");
    REFUSED(rules.seg_align = 0, "BAD_ALIGN");
    REFUSED(rules.total_align = 0, "BAD_ALIGN");
    REFUSED(rules.total_align = 6, "BAD_ALIGN");
    REFUSED(rules.pad_segment = 0, "BAD_PAD_SEGMENT");
    REFUSED(rules.pad_segment = 3, "BAD_PAD_SEGMENT");
    REFUSED(rules.labels = 2, "BAD_LABELS");
    REFUSED(rules.loss = 2, "BAD_LOSS_WEIGHT");
    REFUSED(rules.width = 3, "BAD_WIDTH");
    REFUSED(rules.width_count = 17, "BAD_WIDTHS");
    REFUSED(rules.widths[1] = 16, "BAD_WIDTHS");
    REFUSED(rules.widths[1] = 20, "BAD_WIDTHS");
    REFUSED(rules.widths[1] = 104, "BAD_WIDTHS");
#undef REFUSED
}

static void test_body_errors_pass(void **state)
{
    (void)state;
    struct layout_case *c = two_rows(PD_LABELS_UNSHIFTED);
    c->body_error = PD_ECORRUPT;
    struct pd_error error;
    assert_int_equal(case_build(c, &error), PD_ECORRUPT);
    case_free(c);
}

/* The same case twice, over memory of other content, is the same payload byte for byte. */
static void test_deterministic(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed < 50; seed++) {
        uint64_t random = seed;
        struct layout_case *c = case_new();
        case_randomise(c, &random);
        build(c);
        struct pd_bodies bodies = case_bodies(c);
        uint64_t size = c->batch.payload_bytes;
        void *other = aligned_alloc(PD_ARRAY_ALIGN, size);
        assert_non_null(other);
        memset(other, 0x5A, size);
        struct pd_layout_input input = case_input(c, &bodies);
        assert_int_equal(pd_layout_fill(&input, &c->batch, other), 0);
        assert_memory_equal(other, c->payload, size);
        free(other);
        case_free(c);
    }
}

/* The bound on the payload is reached, not only kept: as many one-token samples as max_segments
 * allows. */
static void test_payload_max(void **state)
{
    (void)state;
    for (uint32_t cap = 0; cap < 4; cap++) {
        struct layout_case *c = case_new();
        c->rules.segments_max = cap;
        c->rules.seq_len = 256;
        c->rules.seg_align = c->rules.total_align = 2;
        c->rules.pad_segment = 3;
        for (uint32_t row = 0; row < 3; row++)
            for (uint32_t i = 0; i < (cap > 0 ? cap : 128); i++)
                case_put(c, row, plain(c, 1, 0), 0, 1, 0, 1);
        build(c);
        assert_int_equal(c->batch.payload_bytes, pd_layout_payload_max(&c->rules, 3));
        case_free(c);
    }
}

/* What a damaged or hostile server could send: refused, and nothing written outside the outputs. */
static void test_derive_refuses(void **state)
{
    (void)state;
    static const struct {
        int32_t cu[4], lens[3], index[3];
    } bad[] = {
        {{1, 3, 4, 8}, {2, 1, 4}, {0, 1, 2}},
        {{0, 3, 4, 9}, {3, 1, 4}, {0, 1, 2}},
        {{0, 3, 4, 7}, {3, 1, 3}, {0, 1, 2}},
        {{0, 5, 6, 8}, {5, 1, 2}, {0, 1, 2}},
        {{0, 4, 3, 8}, {4, 1, 4}, {0, 1, 2}},
        {{0, 4, 4, 8}, {4, 0, 4}, {0, -1, 2}},
        {{0, 3, 4, 8}, {4, 1, 4}, {0, 1, 2}},
        {{0, 3, 4, 8}, {3, -1, 4}, {0, -1, 2}},
        {{0, 3, 4, 8}, {3, 0, 4}, {0, 1, 2}},
        {{0, 3, 4, 8}, {3, 1, 4}, {0, 1, -1}},
        {{0, INT32_MIN, INT32_MAX, 8}, {3, 1, 4}, {0, 1, 2}},
        {{0, 4, 8, 8}, {4, 4, 1}, {0, 1, 2}},
    };
    for (size_t i = 0; i < PD_COUNT_OF(bad); i++) {
        int32_t *positions = malloc(8 * sizeof *positions), *ids = malloc(8 * sizeof *ids);
        assert_true(positions && ids);
        assert_int_equal(
            pd_layout_derive(2, 4, 3, bad[i].cu, bad[i].lens, bad[i].index, positions, ids),
            PD_ECORRUPT);
        free(positions);
        free(ids);
    }
    static const int32_t zero[2] = {0, 0};
    assert_int_equal(pd_layout_derive(0, 0, 1, zero, zero, zero, NULL, NULL), 0);
}

/* Bytes go to their place at once: every pointer handed to the bodies lies in the payload. */
static struct {
    const uint8_t *from, *to;
    uint64_t bytes;
} watched;

static int watched_tokens(void *ctx, const struct pd_segment *segment, int32_t *dst)
{
    size_t size = segment->length_tokens * sizeof *dst;
    assert_true((uint8_t *)dst >= watched.from && (uint8_t *)dst + size <= watched.to);
    watched.bytes += size;
    return case_bodies(ctx).tokens(ctx, segment, dst);
}

static int watched_labels(void *ctx, const struct pd_segment *segment, int32_t *dst, bool *has)
{
    size_t size = segment->length_tokens * sizeof *dst;
    assert_true((uint8_t *)dst >= watched.from && (uint8_t *)dst + size <= watched.to);
    return case_bodies(ctx).labels(ctx, segment, dst, has);
}

static void test_copied_once(void **state)
{
    (void)state;
    for (int shifted = 0; shifted < 2; shifted++) {
        struct layout_case *c =
            masked(shifted ? PD_LABELS_SHIFTED : PD_LABELS_UNSHIFTED, PD_LOSS_TOKEN);
        struct pd_bodies bodies = case_bodies(c);
        bodies.tokens = watched_tokens;
        bodies.labels = watched_labels;
        watched.from = c->payload;
        watched.to = watched.from + c->batch.payload_bytes;
        watched.bytes = 0;
        struct pd_layout_input input = case_input(c, &bodies);
        assert_int_equal(pd_layout_fill(&input, &c->batch, c->payload), 0);
        assert_int_equal(watched.bytes, 4 * c->batch.totals.real_tokens);
        case_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unshifted),
        cmocka_unit_test(test_shifted),
        cmocka_unit_test(test_array_order),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_pair),
        cmocka_unit_test(test_padding_cuts),
        cmocka_unit_test(test_rows_of_padding),
        cmocka_unit_test(test_full_row),
        cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_equal_tokens),
        cmocka_unit_test(test_fixed_segments),
        cmocka_unit_test(test_width),
        cmocka_unit_test(test_too_wide),
        cmocka_unit_test(test_bad_packs),
        cmocka_unit_test(test_int32_limit),
        cmocka_unit_test(test_totals_add_up),
        cmocka_unit_test(test_rules_check),
        cmocka_unit_test(test_body_errors_pass),
        cmocka_unit_test(test_deterministic),
        cmocka_unit_test(test_payload_max),
        cmocka_unit_test(test_derive_refuses),
        cmocka_unit_test(test_copied_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
