/* The probe on the CPU: closed forms, places, planted faults, no false alarm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gpu/attention.h"
#include "gpu/cpu_levels.h"
#include "gpu/probe_cases.h"
#include "gpu/probe_code.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLEAN_BATCHES = 10000, PLANTED_EACH = 200 };

static struct pd_case made;
static uint8_t kinds[PD_CASE_TOKENS_MAX];

/* The whole probe of the case, without any structural check. */
static struct pd_probe_result probe_case(void)
{
    struct pd_probe_result result;
    struct pd_error error;
    bool admitted;
    assert_int_equal(pd_probe_admit(&made.batch, kinds, &admitted, &error), 0);
    if (admitted) {
        pd_probe_cpu(&made.batch, made.positions, kinds);
        pd_probe_check_lengths(&made.batch, kinds);
    }
    pd_probe_report(&made.batch, kinds, &result);
    return result;
}

static uint32_t found_kinds(const struct pd_probe_result *result)
{
    uint32_t all = 0;
    for (uint32_t i = 0; i < PD_PROBE_KIND_COUNT; i++)
        all |= (result->kind_counts[i] > 0) << i;
    return all;
}

/* Two rows of 12: [5 real][3 real][4 pad] and [12 real]; segments 0..3. */
static void make_small(bool causal)
{
    static const int32_t cu[] = {0, 5, 8, 12, 24}, lens[] = {5, 3, 0, 12};
    static const int32_t ids[] = {1, 2, 0, 1};
    made.batch = (struct pd_probe_batch){.rows = 2,
                                         .width = 12,
                                         .segment_count = 4,
                                         .segment_ids = made.segment_ids,
                                         .positions = made.positions,
                                         .cu_seqlens = made.cu_seqlens,
                                         .seq_lens = made.seq_lens,
                                         .causal = causal};
    memcpy(made.cu_seqlens, cu, sizeof(cu));
    memcpy(made.seq_lens, lens, sizeof(lens));
    for (int s = 0; s < 4; s++)
        for (int32_t t = cu[s]; t < cu[s + 1]; t++) {
            made.segment_ids[t] = ids[s];
            made.positions[t] = t - cu[s];
        }
}

static void test_position_sums(void **state)
{
    (void)state;
    uint32_t sums[PD_CODE_BYTES] = {0};
    for (uint32_t count = 0; count < 300000; count++) {
        if (count < 70000 || count % 997 == 0 || count >= 299000)
            for (uint32_t i = 0; i < PD_CODE_BYTES; i++)
                assert_int_equal(pd_code_position_sum(count, i), sums[i]);
        for (uint32_t i = 0; i < PD_CODE_BYTES; i++)
            sums[i] += count >> (8 * i) & 255u;
    }
    assert_int_equal(pd_code_position_sum(1u << 20, 0), 4096u * 32640u);
}

static void test_values_fit_bf16(void **state)
{
    (void)state;
    uint64_t random = 3;
    for (int i = 0; i < 100000; i++) {
        uint64_t bits = pd_case_random(&random);
        int32_t value = pd_code_value((int32_t)bits, (uint32_t)(bits >> 32), (int32_t)(bits >> 16),
                                      (uint32_t)i % PD_CODE_WIDTH);
        assert_true((double)pd_bf16_to(pd_bf16_of((float)value)) == (double)value);
    }
}

static void test_small_batch_is_safe(void **state)
{
    (void)state;
    for (int causal = 0; causal < 2; causal++) {
        make_small(causal);
        struct pd_probe_result result = probe_case();
        assert_int_equal(result.violation_count, 0);
        assert_int_equal(result.listed, 0);
    }
}

/* Row, position, kind and the foreign segment of a violation are the right ones. */
static void test_places(void **state)
{
    (void)state;
    make_small(true);
    made.cu_seqlens[1] = 6; /* the first segment takes a token of the second */
    struct pd_probe_result result = probe_case();
    assert_int_equal(result.violation_count, 4); /* the length, that token, and two that miss it */
    assert_int_equal(result.violations[0].position, 0);
    assert_int_equal(result.violations[0].kind, PD_PROBE_LENGTH);
    assert_int_equal(result.violations[1].row, 0);
    assert_int_equal(result.violations[1].position, 5);
    assert_int_equal(result.violations[1].kind, PD_PROBE_FOREIGN);
    assert_int_equal(result.violations[1].segment, 2);
    assert_int_equal(result.violations[1].foreign_row, 0);
    assert_int_equal(result.violations[1].foreign_segment, 1);
    assert_int_equal(result.violations[2].kind, PD_PROBE_COUNT);
    assert_int_equal(result.violations[2].foreign_segment, -1);

    make_small(true);
    memmove(made.cu_seqlens + 3, made.cu_seqlens + 4, 4); /* padding of row 0 runs into row 1 */
    made.batch.segment_count = 3;
    made.seq_lens[2] = 0;
    result = probe_case();
    assert_int_equal(result.violations[0].row, 1);
    assert_int_equal(result.violations[0].position, 0);
    assert_int_equal(result.violations[0].kind, PD_PROBE_FOREIGN);
    assert_int_equal(result.violations[0].foreign_row, 0);
    assert_int_equal(result.violations[0].foreign_segment, 0);
}

/* With a full mask both sides of a merge see the other. */
static void test_full_mask_leak(void **state)
{
    (void)state;
    make_small(false);
    memmove(made.cu_seqlens + 1, made.cu_seqlens + 2, 3 * 4);
    memmove(made.seq_lens, made.seq_lens + 1, 3 * 4);
    made.seq_lens[0] = 8;
    made.batch.segment_count = 3;
    struct pd_probe_result result = probe_case();
    assert_int_equal(result.kind_counts[2], 8);
    assert_int_equal(result.violations[0].kind, PD_PROBE_FOREIGN);
    assert_int_equal(result.violations[0].foreign_segment, 2);
}

static void test_refusals(void **state)
{
    (void)state;
    struct pd_error error;
    bool admitted;
    make_small(true);
    made.batch.segment_count = 0;
    assert_int_equal(pd_probe_admit(&made.batch, kinds, &admitted, &error), PD_EINVAL);
    make_small(true);
    made.batch.segment_ids = NULL;
    assert_int_equal(pd_probe_admit(&made.batch, kinds, &admitted, &error), PD_EINVAL);
    make_small(true);
    made.batch.width = PD_PROBE_WIDTH_MAX + 1;
    assert_int_equal(pd_probe_admit(&made.batch, kinds, &admitted, &error), PD_ELIMIT);
    made.batch.rows = 4096;
    made.batch.width = PD_PROBE_WIDTH_MAX;
    assert_int_equal(pd_probe_admit(&made.batch, kinds, &admitted, &error), PD_ELIMIT);
}

/* Nothing a batch may hold leads outside its arrays, and no entry but a segment id can change
 * unnoticed (a one-token segment may carry any id: that they count up is the structural check's
 * rule). */
static void test_garbage(void **state)
{
    (void)state;
    uint64_t random = 11;
    for (int i = 0; i < 4000; i++) {
        struct pd_case_rules rules = pd_case_rules_random(&random, 256);
        pd_case_make(&made, &rules, &random);
        int32_t *arrays[] = {made.segment_ids, made.positions, made.cu_seqlens, made.seq_lens};
        uint32_t tokens = rules.rows * rules.width, segments = made.batch.segment_count;
        uint32_t sizes[] = {tokens, tokens, segments + 1, segments};
        uint32_t at = (uint32_t)pd_case_random(&random) % sizes[i % 4];
        int32_t value = (int32_t)pd_case_random(&random), kept = arrays[i % 4][at];
        arrays[i % 4][at] = i & 4 ? value : kept + (value & 1 ? 1 : -1);
        uint64_t violations = probe_case().violation_count;
        assert_true(violations > 0 || i % 4 == 0);
    }
}

/* What a safe slot is, looked up key by key: one row, positions 0, 1, 2, ..., one segment's
 * tokens and then its gap, or padding alone; with a full mask, keys up to the real length. */
static bool slot_is_safe(uint32_t s)
{
    const struct pd_probe_batch *b = &made.batch;
    int32_t first = b->cu_seqlens[s], end = b->cu_seqlens[s + 1], real = 0;
    if (first == end)
        return true;
    int32_t owner = b->segment_ids[first], width = (int32_t)b->width;
    while (first + real < end && owner > 0 && b->segment_ids[first + real] == owner)
        real++;
    for (int32_t t = first; t < end; t++)
        if (t / width != first / width || b->positions[t] != t - first ||
            (t >= first + real && b->segment_ids[t] != 0))
            return false;
    return owner <= width && (b->causal || pd_probe_used_of(b, s) == (real ? real : end - first));
}

static bool batch_is_safe(void)
{
    const struct pd_probe_batch *b = &made.batch;
    if (b->cu_seqlens[0] != 0 || b->cu_seqlens[b->segment_count] != (int32_t)(b->rows * b->width))
        return false;
    for (uint32_t s = 0; s < b->segment_count; s++)
        if (b->cu_seqlens[s + 1] < b->cu_seqlens[s])
            return false;
    for (uint32_t s = 0; s < b->segment_count; s++)
        if (!slot_is_safe(s))
            return false;
    return true;
}

/* Changes one entry of one array to another value that it might plausibly have. */
static void disturb(uint64_t *random)
{
    uint32_t tokens = made.batch.rows * made.batch.width, segments = made.batch.segment_count;
    int32_t *arrays[] = {made.segment_ids, made.positions, made.cu_seqlens, made.seq_lens};
    uint32_t sizes[] = {tokens, tokens, segments + 1, segments};
    uint32_t which = (uint32_t)(pd_case_random(random) % 4);
    uint32_t at = (uint32_t)(pd_case_random(random) % sizes[which]);
    uint32_t other = (uint32_t)(pd_case_random(random) % sizes[which]);
    arrays[which][at] = pd_case_random(random) % 2
                            ? arrays[which][other]
                            : arrays[which][at] + (int32_t)(pd_case_random(random) % 5) - 2;
}

/* The sums say what a look at every key says, on batches with none to three wrong entries. */
static void test_equals_the_definition(void **state)
{
    (void)state;
    uint64_t random = 1234;
    int safe = 0, rounds = 60000;
    for (int i = 0; i < rounds; i++) {
        struct pd_probe_result result;
        bool admitted;
        uint32_t tokens_max = i % 16 < 4 ? 400 : i % 2 ? 12 : 40; /* 400: runs of whole blocks */
        struct pd_case_rules rules = pd_case_rules_random(&random, tokens_max);
        pd_case_make(&made, &rules, &random);
        for (int changes = i % 4; changes > 0; changes--)
            disturb(&random);
        assert_int_equal(pd_probe_admit(&made.batch, kinds, &admitted, NULL), 0);
        if (admitted)
            pd_probe_cpu(&made.batch, made.positions, kinds);
        pd_probe_report(&made.batch, kinds, &result);
        if ((result.violation_count == 0) != batch_is_safe())
            fail_msg("round %d: the probe counts %d violations", i, (int)result.violation_count);
        safe += result.violation_count == 0;
    }
    printf("%d batches, %d of them safe: probe and definition agree\n", rounds, safe);
    assert_true(safe > rounds / 4 + 100); /* also some that were disturbed */
}

static void test_no_false_alarm(void **state)
{
    (void)state;
    uint64_t random = 20240901;
    uint32_t gaps = 0, full = 0;
    for (int i = 0; i < CLEAN_BATCHES; i++) {
        struct pd_case_rules rules = pd_case_rules_random(&random, 1024);
        pd_case_make(&made, &rules, &random);
        struct pd_probe_result result = probe_case();
        if (result.violation_count > 0)
            fail_msg("batch %d, row %u, position %u: %s", i, result.violations[0].row,
                     result.violations[0].position, pd_probe_kind_name(result.violations[0].kind));
        gaps += rules.seg_align > 1;
        full += !rules.causal;
    }
    printf("%d valid batches, %u with gaps, %u with a full mask: no alarm\n", CLEAN_BATCHES, gaps,
           full);
}

static void plant_all(void)
{
    uint64_t random = 77;
    for (int fault = 0; fault < PD_FAULT_COUNT; fault++)
        for (int planted = 0; planted < PLANTED_EACH;) {
            struct pd_case_rules rules = pd_case_rules_random(&random, 1024);
            rules.logged = true;
            pd_case_make(&made, &rules, &random);
            if (!pd_case_plant(&made, (enum pd_fault)fault, &random))
                continue;
            planted++;
            struct pd_probe_result result = probe_case();
            if (!(found_kinds(&result) & pd_fault_kinds((enum pd_fault)fault)))
                fail_msg("not found: %s, case %d", pd_fault_name((enum pd_fault)fault), planted);
        }
    printf("%d faults, %d batches each: all found\n", PD_FAULT_COUNT, PLANTED_EACH);
}

/* With every instruction set that this machine has. */
static void test_planted_faults(void **state)
{
    (void)state;
    enum pd_cpu_level machine = pd_cpu_level();
    for (int level = PD_CPU_BASE; level <= (int)machine; level++) {
        pd_cpu_level_limit((enum pd_cpu_level)level);
        printf("%s: ", pd_cpu_level_name(pd_cpu_level()));
        plant_all();
    }
}

/* A length that is wrong in all arrays alike is a valid batch: only the log knows better. */
static void test_wrong_length_needs_the_log(void **state)
{
    (void)state;
    uint64_t random = 5;
    int planted = 0;
    while (planted < 50) {
        struct pd_case_rules rules = pd_case_rules_random(&random, 512);
        rules.logged = true;
        pd_case_make(&made, &rules, &random);
        if (!pd_case_plant(&made, PD_FAULT_ALL_WRONG, &random))
            continue;
        planted++;
        struct pd_probe_result result = probe_case();
        assert_int_equal(found_kinds(&result), PD_PROBE_LOGGED);
        assert_int_equal(result.violation_count, 2); /* one segment too long, one too short */
        made.batch.logged_lens = NULL;
        assert_int_equal(probe_case().violation_count, 0);
    }
}

/* M-RoPE: no positions of one dimension are served. */
static void test_derived_positions(void **state)
{
    (void)state;
    static int32_t derived[PD_CASE_TOKENS_MAX];
    uint64_t random = 9;
    for (int i = 0; i < 2000; i++) {
        struct pd_case_rules rules = pd_case_rules_random(&random, 512);
        pd_case_make(&made, &rules, &random);
        pd_probe_derive_positions(&made.batch, derived);
        assert_memory_equal(derived, made.positions, (size_t)rules.rows * rules.width * 4);
    }
}

/* The running sums are the attention's own: the tiled kernel, with zero logits, gives the same
 * integers. */
static void check_sums(const struct pd_attention *a, const int32_t *sums, const int32_t *counts)
{
    for (uint32_t s = 0; s < a->segment_count; s++) {
        uint32_t want[PD_CODE_WIDTH] = {0};
        for (uint32_t t = (uint32_t)a->cu_seqlens[s]; t < (uint32_t)a->cu_seqlens[s + 1]; t++) {
            for (uint32_t i = 0; i < PD_CODE_WIDTH; i++)
                want[i] += (uint32_t)pd_code_value(made.segment_ids[t], t / made.batch.width,
                                                   made.positions[t], i);
            assert_memory_equal(sums + (size_t)t * PD_CODE_WIDTH, want, sizeof(want));
            assert_int_equal(counts[t], t - (uint32_t)a->cu_seqlens[s] + 1);
        }
    }
}

static void test_sums_are_attention(void **state)
{
    (void)state;
    static uint16_t values[2048 * PD_CODE_WIDTH], zeros[PD_CODE_WIDTH];
    static int32_t sums[2048 * PD_CODE_WIDTH], counts[2048];
    uint64_t random = 31;
    for (int i = 0; i < 20; i++) {
        struct pd_case_rules rules = pd_case_rules_random(&random, 2048);
        pd_case_make(&made, &rules, &random);
        uint32_t tokens = rules.rows * rules.width;
        for (uint32_t j = 0; j < tokens * PD_CODE_WIDTH; j++) {
            uint32_t t = j / PD_CODE_WIDTH;
            values[j] = pd_bf16_of((float)pd_code_value(made.segment_ids[t], t / rules.width,
                                                        made.positions[t], j % PD_CODE_WIDTH));
        }
        memset(sums, 0, sizeof(sums));
        memset(counts, 0, sizeof(counts));
        struct pd_attention a = {.q = zeros,
                                 .k = zeros,
                                 .v = values,
                                 .sums = sums,
                                 .row_sum = counts,
                                 .cu_seqlens = made.cu_seqlens,
                                 .tokens = tokens,
                                 .segment_count = made.batch.segment_count,
                                 .heads = 1,
                                 .heads_kv = 1,
                                 .head_dim = PD_CODE_WIDTH,
                                 .v_stride = PD_CODE_WIDTH,
                                 .dtype = PD_ATTENTION_BF16,
                                 .causal = true,
                                 .scale = 1};
        assert_int_equal(pd_attention_cpu(&a, NULL), 0);
        check_sums(&a, sums, counts);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_position_sums),
        cmocka_unit_test(test_values_fit_bf16),
        cmocka_unit_test(test_small_batch_is_safe),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_full_mask_leak),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_equals_the_definition),
        cmocka_unit_test(test_no_false_alarm),
        cmocka_unit_test(test_planted_faults),
        cmocka_unit_test(test_wrong_length_needs_the_log),
        cmocka_unit_test(test_derived_positions),
        cmocka_unit_test(test_sums_are_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
