/* Where steps lie in the plan: balance: off against plain arithmetic, balance: cost against its
 * rules, while packs come one by one. */
#include "server/job_steps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct pd_feed_config feed_of(enum pd_balance balance, enum pd_last_step last_step)
{
    return (struct pd_feed_config){.rules = {.seq_len = 100, .seed = 9},
                                   .balance = balance,
                                   .balance_bytes = 400 * 4 * 6, /* six steps of four packs */
                                   .last_step = last_step};
}

static void test_off(void **state)
{
    (void)state;
    for (int last = PD_LAST_STEP_PAD; last <= PD_LAST_STEP_DROP; last++) {
        struct pd_feed_config feed = feed_of(PD_BALANCE_OFF, (enum pd_last_step)last);
        struct pd_job_steps job = {.config = &feed, .first_pack = 7, .step_packs = 4};
        for (uint64_t packs = 0; packs < 60; packs++) {
            uint64_t have = packs > 7 ? packs - 7 : 0, whole = have / 4;
            bool padded = last == PD_LAST_STEP_PAD && have % 4 > 0;
            assert_int_equal(pd_job_steps_planned(&job, packs, false), whole);
            assert_int_equal(pd_job_steps_planned(&job, packs, true), whole + padded);
            for (uint64_t step = 0; step < whole + padded; step++) {
                struct pd_step_place place = pd_job_step_place(&job, packs, step);
                assert_int_equal(place.part.steps, 0);
                assert_int_equal(place.first_pack, 7 + 4 * step);
                assert_int_equal(place.pack_count, step < whole ? 4 : have % 4);
                assert_int_equal(place.part_first_pack, place.first_pack);
                assert_int_equal(place.part_pack_count, place.pack_count);
                assert_int_equal(pd_job_step_end(&job, step), 7 + 4 * (step + 1));
            }
        }
        assert_int_equal(pd_job_steps_together(&job), 1);
        assert_true(pd_job_step_end(&job, UINT64_MAX / 4) == UINT64_MAX);
    }
}

/* Steps come in parts of 1, 1, 2, 4, 6 and 2, 6, 6 and 4, ... and stay where they are. */
static void test_cost(void **state)
{
    const uint32_t parts[] = {1, 1, 2, 4, 6, 2, 6, 6, 4, 6, 6, 4};
    struct pd_feed_config feed = feed_of(PD_BALANCE_COST, PD_LAST_STEP_PAD);
    struct pd_job_steps job = {.config = &feed, .first_pack = 3, .step_packs = 4};
    uint64_t first = 0;
    (void)state;
    assert_int_equal(pd_job_steps_together(&job), 6);
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        uint64_t begin = 3 + 4 * first, end = begin + 4 * parts[p];
        for (uint64_t packs = begin; packs < end; packs++) {
            assert_int_equal(pd_job_steps_planned(&job, packs, false), first);
            assert_int_equal(pd_job_steps_planned(&job, packs, true),
                             first + (packs - begin + 3) / 4);
        }
        assert_int_equal(pd_job_steps_planned(&job, end, false), first + parts[p]);
        for (uint64_t step = first; step < first + parts[p]; step++) {
            assert_int_equal(pd_job_step_end(&job, step), end);
            for (uint64_t packs = end; packs < end + 9; packs++) {
                struct pd_step_place place = pd_job_step_place(&job, packs, step);
                assert_int_equal(place.part.first_step, first);
                assert_int_equal(place.part.steps, parts[p]);
                assert_int_equal(place.part_first_pack, begin);
                assert_int_equal(place.part_pack_count, end - begin);
                assert_int_equal(place.first_pack, 3 + 4 * step);
                assert_int_equal(place.pack_count, 4);
            }
        }
        first += parts[p];
    }
}

/* A feed that ends inside a part: its whole steps, then what is left. */
static void test_end_inside_a_part(void **state)
{
    struct pd_feed_config feed = feed_of(PD_BALANCE_COST, PD_LAST_STEP_PAD);
    struct pd_job_steps job = {.config = &feed, .first_pack = 0, .step_packs = 4};
    uint64_t packs = 4 * 10 + 3; /* part 8 .. 13 has steps 8, 9 and three packs of 10 */
    (void)state;
    assert_int_equal(pd_job_steps_planned(&job, packs, false), 8);
    assert_int_equal(pd_job_steps_planned(&job, packs, true), 11);
    struct pd_step_place place = pd_job_step_place(&job, packs, 10);
    assert_int_equal(place.pack_count, 3);
    assert_int_equal(place.part_first_pack, 32);
    assert_int_equal(place.part_pack_count, 11);
    feed.last_step = PD_LAST_STEP_DROP;
    assert_int_equal(pd_job_steps_planned(&job, packs, true), 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_cost),
        cmocka_unit_test(test_end_inside_a_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
