/* The layout against a model that decides each position by itself, over random cases. */
#include "tests/unit/layout_case.h"

#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#define NO PD_LABEL_NONE

/* ---- the model ---- */

/* What one position is. */
struct place {
    const struct pd_segment *segment; /* NULL on padding */
    uint32_t id;                      /* 1, 2, ...; 0 on padding */
    uint32_t inside;                  /* position within the slot, or within the padding */
};

static struct place place_of(const struct layout_case *c, uint32_t row, uint32_t position)
{
    const struct pd_pack *pack = c->rows[row];
    for (uint32_t i = 0; pack && i < pack->segment_count; i++) {
        if (position < pack->segments[i].slot_tokens)
            return (struct place){&pack->segments[i], i + 1, position};
        position -= pack->segments[i].slot_tokens;
    }
    return (struct place){NULL, 0, position};
}

static bool is_real(struct place p)
{
    return p.segment && p.inside < p.segment->length_tokens;
}

static int32_t model_position(const struct layout_case *c, struct place p)
{
    uint32_t piece = c->rules.pad_segment;
    while (piece % c->rules.seg_align != 0)
        piece--;
    return (int32_t)(p.segment ? p.inside : p.inside % piece);
}

/* The label that target `i` of the segment carries, NO where it is none. */
static int32_t model_target(const struct layout_case *c, const struct pd_segment *segment,
                            uint32_t i)
{
    const struct case_sample *s = &c->samples[segment->seq];
    if (i == 0 || i >= segment->length_tokens || !s->on[segment->offset_tokens + i])
        return NO;
    return (s->has_labels ? s->labels : s->tokens)[segment->offset_tokens + i];
}

static int32_t model_label(const struct layout_case *c, struct place p)
{
    if (!is_real(p))
        return NO;
    return model_target(c, p.segment, p.inside + (c->rules.labels == PD_LABELS_SHIFTED));
}

static float model_weight(const struct layout_case *c, struct place p)
{
    if (model_label(c, p) == NO)
        return 0;
    const struct case_sample *s = &c->samples[p.segment->seq];
    uint32_t targets = 0;
    for (uint32_t i = 1; i < s->length; i++)
        targets += s->on[i];
    return c->rules.loss == PD_LOSS_SAMPLE ? s->weight / (float)targets : s->weight;
}

static void compare_positions(const struct layout_case *c)
{
    const int32_t *tokens = case_array(c, "tokens"), *positions = case_array(c, "positions");
    const int32_t *ids = case_array(c, "segment_ids"), *labels = case_array(c, "labels");
    const float *weights = case_array(c, "loss_weight");
    for (uint32_t row = 0; row < c->batch.rows; row++) {
        for (uint32_t position = 0; position < c->batch.width; position++) {
            size_t at = (size_t)row * c->batch.width + position;
            struct place p = place_of(c, row, position);
            int32_t token =
                is_real(p) ? c->samples[p.segment->seq].tokens[p.segment->offset_tokens + p.inside]
                           : c->rules.pad_id;
            assert_int_equal(tokens[at], token);
            assert_int_equal(positions[at], model_position(c, p));
            assert_int_equal(ids[at], is_real(p) ? (int32_t)p.id : 0);
            assert_int_equal(labels[at], model_label(c, p));
            float weight = model_weight(c, p);
            assert_memory_equal(&weights[at], &weight, sizeof weight);
        }
    }
}

/* The segment arrays, from the model's positions: a segment begins wherever a position is 0. */
static void compare_segments(const struct layout_case *c)
{
    const int32_t *cu = case_array(c, "cu_seqlens"), *lens = case_array(c, "seq_lens");
    const int32_t *index = case_array(c, "sample_index");
    uint32_t total = c->batch.rows * c->batch.width, s = 0, longest = 0;
    int32_t sample = 0;
    for (uint32_t at = 0, end; at < total; at = end, s++) {
        struct place p = place_of(c, at / c->batch.width, at % c->batch.width);
        uint32_t real = 0;
        for (end = at; end < total; end++) {
            struct place q = place_of(c, end / c->batch.width, end % c->batch.width);
            if (end > at && model_position(c, q) == 0)
                break;
            real += is_real(q);
        }
        longest = end - at > longest ? end - at : longest;
        assert_true(s < c->batch.segment_count);
        assert_int_equal(cu[s], at);
        assert_int_equal(lens[s], real);
        assert_int_equal(index[s], p.segment ? sample++ : -1);
    }
    assert_int_equal(sample, c->batch.real_segment_count);
    assert_int_equal(longest, c->batch.max_seqlen);
    if (c->rules.fixed_segments == 0)
        assert_int_equal(s, c->batch.segment_count);
    for (; s < c->batch.segment_count; s++)
        assert_true(cu[s] == (int32_t)total && lens[s] == 0 && index[s] == -1);
    assert_int_equal(cu[s], total);
}

/* The pair, from segment ids: entry n ends before the next place where another sample begins. */
static void compare_pair(const struct layout_case *c)
{
    const int32_t *real = case_array(c, "cu_seqlens_real"),
                  *padded = case_array(c, "cu_seqlens_padded");
    uint32_t n = 0, width = c->batch.width;
    int32_t sum = 0;
    for (uint32_t row = 0; row < c->batch.rows; row++) {
        bool empty = !place_of(c, row, 0).segment;
        for (uint32_t position = 0; position < width; position++) {
            struct place p = place_of(c, row, position);
            if (position == 0 || (p.segment && p.inside == 0)) {
                assert_true(n < c->batch.megatron_count);
                assert_int_equal(padded[n], row * width + position);
                assert_int_equal(real[n], sum);
                n++;
            }
            sum += empty || is_real(p);
        }
    }
    if (c->rules.fixed_segments == 0)
        assert_int_equal(n, c->batch.megatron_count);
    for (; n <= c->batch.megatron_count; n++)
        assert_true(real[n] == sum && padded[n] == (int32_t)(c->batch.rows * width));
}

static void compare_totals(const struct layout_case *c)
{
    uint64_t real = 0, gap = 0, tail = 0, row_padding = 0, targets = 0;
    for (uint32_t row = 0; row < c->batch.rows; row++) {
        for (uint32_t position = 0; position < c->batch.width; position++) {
            struct place p = place_of(c, row, position);
            real += is_real(p);
            gap += p.segment && !is_real(p);
            tail += !p.segment && place_of(c, row, 0).segment;
            row_padding += !place_of(c, row, 0).segment;
            targets += model_label(c, p) != NO;
        }
    }
    assert_int_equal(real, c->batch.totals.real_tokens);
    assert_int_equal(gap, c->batch.totals.gap_tokens);
    assert_int_equal(tail, c->batch.tail_tokens);
    assert_int_equal(row_padding, c->batch.row_padding_tokens);
    assert_int_equal(targets, c->batch.totals.loss_tokens);
}

/* Bytes between arrays are zero, and the digests that the check takes are those of the arrays. */
static void compare_table(const struct layout_case *c)
{
    const uint8_t *bytes = c->payload;
    uint64_t at = 0, digests[PD_ARRAYS_MAX];
    struct pd_check_finding finding;
    struct pd_check_input input = case_check_input(c, true);
    input.digests = digests;
    assert_int_equal(pd_check_batch(&input, &finding), 0);
    for (uint32_t i = 0; i < c->batch.array_count; i++) {
        const struct pd_array *array = &c->batch.arrays[i];
        for (; at < array->offset_bytes; at++)
            assert_int_equal(bytes[at], 0);
        at += array->size_bytes;
        assert_int_equal(array->digest, digests[i]);
        assert_int_equal(array->digest,
                         XXH3_64bits(bytes + array->offset_bytes, array->size_bytes));
    }
    for (; at < c->batch.payload_bytes; at++)
        assert_int_equal(bytes[at], 0);
    assert_true(c->batch.payload_bytes <= pd_layout_payload_max(&c->rules, c->batch.rows));
}

/* What a reader of the core arrays rebuilds is what was laid out. */
static void compare_derived(const struct layout_case *c)
{
    size_t total = (size_t)c->batch.rows * c->batch.width;
    int32_t *positions = malloc(total * sizeof *positions), *ids = malloc(total * sizeof *ids);
    int32_t *labels = malloc(total * sizeof *labels);
    assert_true(positions && ids && labels);
    assert_int_equal(pd_layout_derive(c->batch.rows, c->batch.width, c->batch.segment_count,
                                      case_array(c, "cu_seqlens"), case_array(c, "seq_lens"),
                                      case_array(c, "sample_index"), positions, ids),
                     0);
    assert_memory_equal(positions, case_array(c, "positions"), total * sizeof *positions);
    assert_memory_equal(ids, case_array(c, "segment_ids"), total * sizeof *ids);
    bool all_plain = true;
    for (uint32_t i = 0; i < c->sample_count; i++)
        all_plain = all_plain && !c->samples[i].has_labels && c->samples[i].run_count == 0;
    pd_layout_derive_labels(c->batch.rows, c->batch.width, case_array(c, "tokens"), ids,
                            c->rules.labels, labels);
    if (all_plain)
        assert_memory_equal(labels, case_array(c, "labels"), total * sizeof *labels);
    free(positions);
    free(ids);
    free(labels);
}

static void test_against_model(void **state)
{
    (void)state;
    uint64_t from = test_seed(1);
    for (uint64_t seed = from; seed < from + 1500; seed++) {
        uint64_t random = seed;
        struct layout_case *c = case_new();
        struct pd_error error = {0};
        case_randomise(c, &random);
        if (seed % 4 == 0)
            case_make_plain(c);
        if (case_build(c, &error) != 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, error.text);
        compare_positions(c);
        compare_segments(c);
        compare_pair(c);
        compare_totals(c);
        compare_table(c);
        compare_derived(c);
        case_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
