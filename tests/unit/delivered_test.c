/* Delivered accounting against a plain table of what has arrived, and at its limits. */
#include "server/delivered.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static bool mark(struct pd_delivered *d, uint64_t step, uint32_t index, uint32_t count,
                 bool *complete)
{
    bool first;
    assert_int_equal(pd_delivered_mark(d, step, index, count, &first, complete), 0);
    return first;
}

static void test_against_a_table(void **state)
{
    (void)state;
    unsigned seed = (unsigned)time(NULL);
    print_message("seed %u\n", seed);
    enum { STEPS = 60, COUNT = 70 };
    static bool table[STEPS][COUNT];
    static uint32_t left[STEPS];
    struct pd_delivered d = {0};
    memset(table, 0, sizeof table);
    for (int i = 0; i < STEPS; i++)
        left[i] = COUNT;
    for (int n = 0; n < 40000; n++) {
        uint32_t step = (uint32_t)rand_r(&seed) % STEPS, index = (uint32_t)rand_r(&seed) % COUNT;
        bool complete;
        assert_int_equal(mark(&d, 1000 + step, index, COUNT, &complete), !table[step][index]);
        left[step] -= !table[step][index];
        assert_int_equal(complete, !table[step][index] && left[step] == 0);
        table[step][index] = true;
        assert_int_equal(pd_delivered_complete(&d, 1000 + step), left[step] == 0);
        bool all = true;
        for (uint32_t i = index % 7; i < COUNT; i += 7)
            all = all && table[step][i];
        assert_int_equal(pd_delivered_some(&d, 1000 + step, index % 7, 7, COUNT), all);
    }
    uint32_t open = 0;
    for (int i = 0; i < STEPS; i++)
        open += left[i] > 0;
    assert_true(d.node_count <= 2 * open + 1);
    pd_delivered_clear(&d);
    assert_int_equal(d.node_count, 0);
}

static void test_in_order_takes_one_node(void **state)
{
    (void)state;
    struct pd_delivered d = {0};
    bool complete;
    for (uint64_t step = 0; step < 200000; step++) {
        assert_true(mark(&d, step, 0, 2, &complete));
        assert_false(complete);
        assert_true(mark(&d, step, 1, 2, &complete));
        assert_true(complete);
        assert_true(d.node_count <= 2);
    }
    assert_int_equal(d.next_complete, 200000);
    assert_int_equal(d.given_up, 0);
    assert_false(mark(&d, 12, 1, 2, &complete));
    pd_delivered_clear(&d);
}

static void test_too_many_open_steps(void **state)
{
    (void)state;
    struct pd_delivered d = {0};
    bool complete;
    for (uint64_t step = 0; step < PD_DELIVERED_NODES_MAX + 10; step++)
        assert_true(mark(&d, step, 0, 2, &complete));
    assert_int_equal(d.node_count, PD_DELIVERED_NODES_MAX);
    assert_int_equal(d.given_up, 10);
    assert_int_equal(d.floor, 10);
    assert_false(mark(&d, 9, 1, 2, &complete)); /* given up: as if read again */
    assert_false(complete);
    assert_true(mark(&d, 10, 1, 2, &complete));
    assert_true(complete);
    pd_delivered_clear(&d);
}

static void test_bitmaps_are_bounded_in_bytes(void **state)
{
    (void)state;
    struct pd_delivered d = {0};
    bool complete;
    for (uint64_t step = 0; step < 300; step++) {
        assert_true(mark(&d, step, 5, 1u << 20, &complete));
        assert_true(d.bitmap_bytes <= PD_DELIVERED_BYTES_MAX);
    }
    assert_true(d.given_up > 0);
    pd_delivered_clear(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_a_table),
        cmocka_unit_test(test_in_order_takes_one_node),
        cmocka_unit_test(test_too_many_open_steps),
        cmocka_unit_test(test_bitmaps_are_bounded_in_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
