/* Heads and plans as values: loss runs, encoding, totals. */
#include "packer/head.h"
#include "packer/plan.h"
#include "tests/unit/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_loss_runs_against_bits(void **state)
{
    uint64_t random = 42;
    (void)state;
    for (int round = 0; round < 300; round++) {
        uint32_t runs[8], count = (uint32_t)(test_random(&random) % 9), at = 0;
        bool on[64] = {false};
        for (uint32_t i = 0; i < count; i++) {
            runs[i] = (uint32_t)(test_random(&random) % 8);
            for (uint32_t k = 0; k < runs[i]; k++)
                on[at++] = i % 2 == 1;
        }
        struct pd_loss_runs loss = {runs, count};
        struct pd_loss_cursor cursor = {0};
        uint32_t whole = 0, steps = 0;
        for (uint32_t from = 0; from < 64; from += 4) {
            uint32_t want = 0;
            for (uint32_t k = from; k < from + 4; k++)
                want += on[k];
            assert_int_equal(pd_loss_runs_count(loss, from, from + 4), want);
            steps += pd_loss_runs_count_on(loss, &cursor, from, from + 4);
            whole += want;
        }
        assert_int_equal(steps, whole);
        assert_int_equal(pd_loss_runs_count(loss, 0, 64), whole);
        assert_int_equal(pd_loss_runs_count(loss, 9, 9), 0);
    }
}

static void test_no_runs_means_all(void **state)
{
    (void)state;
    assert_int_equal(pd_loss_runs_count((struct pd_loss_runs){NULL, 0}, 1, 10), 9);
    uint32_t none[1] = {UINT32_MAX};
    assert_int_equal(pd_loss_runs_count((struct pd_loss_runs){none, 1}, 1, UINT32_MAX), 0);
    uint32_t huge[3] = {1, UINT32_MAX, UINT32_MAX};
    assert_int_equal(pd_loss_runs_count((struct pd_loss_runs){huge, 3}, 0, 10), 9);
}

static struct pd_segment random_segment(uint64_t *random)
{
    struct pd_segment s = {.block = test_random(random) >> test_random(random) % 64,
                           .index = (uint32_t)test_random(random),
                           .stream = (uint32_t)test_random(random) >> test_random(random) % 32,
                           .seq = test_random(random),
                           .source = (uint32_t)(test_random(random) % 5),
                           .part_count = 1,
                           .length_tokens = 1 + (uint32_t)(test_random(random) % 9),
                           .weight = 1};
    s.slot_tokens = s.length_tokens + (uint32_t)(test_random(random) % 3);
    s.sample_tokens = s.length_tokens;
    s.loss_tokens = s.sample_loss_tokens = s.length_tokens - 1;
    if (test_random(random) % 2 == 0)
        s.pass = (uint32_t)(test_random(random) % 3);
    if (test_random(random) % 2 == 0) {
        s.part_count = 1 + (uint32_t)(test_random(random) % 4);
        s.part = (uint32_t)(test_random(random) % s.part_count);
        s.offset_tokens = (uint32_t)(test_random(random) % 1000);
        s.overlap_tokens = s.part > 0;
        s.sample_tokens = s.offset_tokens + s.length_tokens + (uint32_t)(test_random(random) % 9);
    }
    if (test_random(random) % 2 == 0) {
        s.loss_tokens = (uint32_t)(test_random(random) % s.length_tokens);
        s.sample_loss_tokens = s.loss_tokens + (uint32_t)(test_random(random) % 100);
        s.patches = (uint32_t)(test_random(random) % 3);
        s.weight = (float)(test_random(random) % 8) / 4;
    }
    return s;
}

static void assert_same(const struct pd_segment *a, const struct pd_segment *b)
{
    assert_true(a->block == b->block && a->index == b->index && a->stream == b->stream &&
                a->seq == b->seq && a->source == b->source && a->pass == b->pass);
    assert_true(a->part == b->part && a->part_count == b->part_count &&
                a->offset_tokens == b->offset_tokens && a->overlap_tokens == b->overlap_tokens &&
                a->length_tokens == b->length_tokens && a->slot_tokens == b->slot_tokens);
    assert_true(a->sample_tokens == b->sample_tokens && a->loss_tokens == b->loss_tokens &&
                a->sample_loss_tokens == b->sample_loss_tokens && a->patches == b->patches &&
                a->weight == b->weight);
}

static void test_packs_survive_their_encoding(void **state)
{
    uint64_t random = 7;
    struct pd_pack back = {0};
    (void)state;
    for (int round = 0; round < 200; round++) {
        struct pd_pack pack = {.number = test_random(&random) >> round % 64};
        struct pd_buf buf = {0};
        for (uint64_t i = test_random(&random) % 20; i > 0; i--) {
            struct pd_segment segment = random_segment(&random);
            assert_int_equal(pd_pack_push(&pack, &segment), 0);
        }
        pd_pack_encode(&pack, &buf);
        assert_false(buf.failed);
        assert_int_equal(pd_pack_decode(&back, buf.data, buf.size_bytes), 0);
        assert_true(back.number == pack.number && back.used_slots == pack.used_slots);
        assert_int_equal(back.segment_count, pack.segment_count);
        for (uint32_t i = 0; i < pack.segment_count; i++)
            assert_same(&back.segments[i], &pack.segments[i]);
        for (size_t size = 0; size < buf.size_bytes; size++)
            assert_int_equal(pd_pack_decode(&back, buf.data, size), PD_ECORRUPT);
        pd_buf_put_u8(&buf, 0);
        assert_int_equal(pd_pack_decode(&back, buf.data, buf.size_bytes), PD_ECORRUPT);
        pd_buf_fini(&buf);
        pd_pack_fini(&pack);
    }
    pd_pack_fini(&back);
}

/* Any bytes give an error or a pack that keeps the segments' own rules. */
static void test_damage_is_refused_or_sound(void **state)
{
    uint64_t random = 99;
    struct pd_pack pack = {0}, back = {0};
    struct pd_buf buf = {0};
    int decoded = 0;
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct pd_segment segment = random_segment(&random);
        assert_int_equal(pd_pack_push(&pack, &segment), 0);
    }
    pd_pack_encode(&pack, &buf);
    for (size_t at = 0; at < buf.size_bytes; at++)
        for (int bit = 0; bit < 8; bit++) {
            buf.data[at] ^= (uint8_t)(1 << bit);
            int rc = pd_pack_decode(&back, buf.data, buf.size_bytes);
            assert_true(rc == 0 || rc == PD_ECORRUPT);
            decoded += rc == 0;
            for (uint32_t i = 0; rc == 0 && i < back.segment_count; i++)
                assert_true(back.segments[i].length_tokens > 0 &&
                            back.segments[i].loss_tokens < back.segments[i].length_tokens);
            buf.data[at] ^= (uint8_t)(1 << bit);
        }
    assert_true(decoded > 0);
    pd_buf_fini(&buf);
    pd_pack_fini(&pack);
    pd_pack_fini(&back);
}

static void test_totals(void **state)
{
    struct pd_pack pack = {0};
    struct pd_totals totals = {0};
    struct pd_segment a = {.part_count = 1,
                           .length_tokens = 5,
                           .slot_tokens = 8,
                           .sample_tokens = 5,
                           .loss_tokens = 4,
                           .sample_loss_tokens = 4,
                           .weight = 2,
                           .patches = 3};
    struct pd_segment b = {.part = 1,
                           .part_count = 2,
                           .offset_tokens = 4,
                           .overlap_tokens = 1,
                           .length_tokens = 3,
                           .slot_tokens = 4,
                           .sample_tokens = 7,
                           .loss_tokens = 2,
                           .sample_loss_tokens = 6,
                           .weight = 3};
    (void)state;
    assert_int_equal(pd_pack_push(&pack, &a), 0);
    assert_int_equal(pd_pack_push(&pack, &b), 0);
    pd_totals_add(&totals, &pack, PD_LOSS_SAMPLE, (struct pd_cost){10, 1});
    assert_int_equal(totals.real_tokens, 8);
    assert_int_equal(totals.gap_tokens, 4);
    assert_int_equal(totals.overlap_tokens, 1);
    assert_int_equal(totals.loss_tokens, 6);
    assert_int_equal(totals.segments, 2);
    assert_int_equal(totals.samples, 1);
    assert_int_equal(totals.patches, 3);
    assert_int_equal(totals.attention_cost, 10 * 8 + 25 + 9);
    assert_int_equal(totals.longest_tokens, 5);
    assert_int_equal(totals.widest_slots, 12);
    assert_true(totals.loss_weight == 2.0 / 4 * 4 + 3.0 / 6 * 2);
    pd_totals_add(&totals, &pack, PD_LOSS_TOKEN, (struct pd_cost){UINT32_MAX, UINT32_MAX});
    assert_true(totals.loss_weight == 3 + 8 + 6);
    struct pd_segment none = {.part_count = 1, .length_tokens = 1, .weight = 5};
    assert_true(pd_segment_loss_weight(&none, PD_LOSS_SAMPLE) == 0);
    pack.segments[0].length_tokens = UINT32_MAX;
    pd_totals_add(&totals, &pack, PD_LOSS_TOKEN, (struct pd_cost){UINT32_MAX, UINT32_MAX});
    assert_true(totals.attention_cost == UINT64_MAX); /* saturates */
    pd_pack_fini(&pack);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_runs_against_bits),
        cmocka_unit_test(test_no_runs_means_all),
        cmocka_unit_test(test_packs_survive_their_encoding),
        cmocka_unit_test(test_damage_is_refused_or_sound),
        cmocka_unit_test(test_totals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
