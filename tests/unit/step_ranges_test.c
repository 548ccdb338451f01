/* Ranges of steps against a plain array of flags; limits; the encoding and its damage. */
#include "server/step_ranges.h"

#include "tests/unit/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define SEED 20241130ull
#define STEPS 200u

static void check_against(const struct pd_step_ranges *set, const bool *flags)
{
    uint64_t least = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        assert_true(set->ranges[i].first >= least && set->ranges[i].first <= set->ranges[i].last);
        least = set->ranges[i].last + 2;
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t pass = step;
        while (pass < STEPS && flags[pass])
            pass++;
        assert_int_equal(pd_step_ranges_pass(set, step), pass);
        assert_int_equal(pd_step_ranges_cover(set, step, step), flags[step]);
        if (step > 0)
            assert_int_equal(pd_step_ranges_cover(set, step - 1, step),
                             flags[step] && flags[step - 1]);
    }
}

static void test_against_flags(void **state)
{
    uint64_t random = SEED;
    (void)state;
    print_message("seed %llu\n", (unsigned long long)SEED);
    for (int run = 0; run < 40; run++) {
        struct pd_step_ranges set = {0};
        bool flags[STEPS] = {0};
        for (int i = 0; i < 25; i++) {
            uint32_t first = (uint32_t)(test_random(&random) % STEPS);
            uint32_t last = first + (uint32_t)(test_random(&random) % 12);
            last = last < STEPS ? last : STEPS - 1;
            assert_int_equal(pd_step_ranges_add(&set, first, last), 0);
            for (uint32_t step = first; step <= last; step++)
                flags[step] = true;
            check_against(&set, flags);
        }
        uint32_t below = (uint32_t)(test_random(&random) % STEPS);
        uint64_t kept = pd_step_ranges_pass(&set, below);
        pd_step_ranges_forget(&set, below);
        assert_true(set.count == 0 || set.ranges[0].last >= below);
        assert_int_equal(pd_step_ranges_pass(&set, below), kept);
        pd_step_ranges_fini(&set);
    }
}

static void test_full(void **state)
{
    struct pd_step_ranges set = {0};
    (void)state;
    for (uint64_t i = 0; i < PD_STEP_RANGES_MAX; i++)
        assert_int_equal(pd_step_ranges_add(&set, 3 * i, 3 * i), 0);
    assert_int_equal(pd_step_ranges_add(&set, 30000, 30001), PD_ELIMIT);
    assert_int_equal(set.count, PD_STEP_RANGES_MAX);
    assert_int_equal(pd_step_ranges_add(&set, 1, 2), 0); /* joins two: room again */
    assert_int_equal(set.count, PD_STEP_RANGES_MAX - 1);
    assert_int_equal(pd_step_ranges_add(&set, 30000, 30001), 0);
    pd_step_ranges_forget(&set, 3000);
    assert_int_equal(set.count, 1);
    pd_step_ranges_fini(&set);
}

static void test_encoding(void **state)
{
    struct pd_step_ranges set = {0}, back = {0}, copy = {0};
    struct pd_buf buf = {0};
    (void)state;
    assert_int_equal(pd_step_ranges_add(&set, 5, 9), 0);
    assert_int_equal(pd_step_ranges_add(&set, 20, 20), 0);
    pd_step_ranges_encode(&set, &buf);
    struct pd_reader reader = pd_reader_of(buf.data, buf.size_bytes);
    assert_int_equal(pd_step_ranges_decode(&back, &reader), 0);
    assert_true(pd_reader_done(&reader));
    assert_int_equal(back.count, 2);
    assert_int_equal(pd_step_ranges_pass(&back, 7), 10);
    assert_int_equal(pd_step_ranges_copy(&copy, &back), 0);
    assert_int_equal(pd_step_ranges_pass(&copy, 20), 21);
    pd_step_ranges_fini(&back);
    for (size_t size = 0; size < buf.size_bytes; size++) {
        reader = pd_reader_of(buf.data, size);
        assert_int_equal(pd_step_ranges_decode(&back, &reader), PD_ECORRUPT);
        pd_step_ranges_fini(&back);
    }
    buf.data[4] = 30; /* the first range would end before it begins */
    reader = pd_reader_of(buf.data, buf.size_bytes);
    assert_int_equal(pd_step_ranges_decode(&back, &reader), PD_ECORRUPT);
    pd_step_ranges_fini(&back);
    pd_step_ranges_fini(&copy);
    pd_step_ranges_fini(&set);
    pd_buf_fini(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_flags),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_encoding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
