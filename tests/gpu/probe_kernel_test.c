/* The probe as kernels, on the SIMT machine: the same verdicts as the CPU's probe, byte for byte.
 * */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gpu/probe_cases.h"
#include "tests/gpu/backend_simt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLEAN_BATCHES = 200, TOKENS_MAX = 512, PLANTED_EACH = 3 };

static struct pd_backend *simt;
static struct pd_case made;
static uint8_t kinds[PD_CASE_TOKENS_MAX], expected[PD_CASE_TOKENS_MAX];

static int make_simt(void **state)
{
    (void)state;
    simt = pd_backend_simt_new();
    return simt == NULL;
}

static int free_simt(void **state)
{
    (void)state;
    simt->free(simt);
    return 0;
}

/* All kinds found by the kernels, after a comparison with the CPU's. */
static uint32_t probe_both(int round)
{
    struct pd_error error;
    uint32_t tokens = made.batch.rows * made.batch.width, all = 0;
    bool admitted;
    assert_int_equal(pd_probe_admit(&made.batch, kinds, &admitted, &error), 0);
    memcpy(expected, kinds, tokens);
    if (admitted) {
        pd_backend_simt_set_order(simt, (enum simt_order)(round % 3), (uint64_t)round);
        assert_int_equal(simt->submit(simt, 0, &made.batch, made.positions, &error), 0);
        assert_int_equal(simt->collect(simt, 0, kinds, &error), 0);
        pd_probe_cpu(&made.batch, made.positions, expected);
        assert_memory_equal(kinds, expected, tokens);
        pd_probe_check_lengths(&made.batch, kinds);
    }
    for (uint32_t t = 0; t < tokens; t++)
        all |= kinds[t];
    return all;
}

static void test_no_false_alarm(void **state)
{
    (void)state;
    uint64_t random = 4711;
    for (int i = 0; i < CLEAN_BATCHES; i++) {
        struct pd_case_rules rules = pd_case_rules_random(&random, TOKENS_MAX);
        pd_case_make(&made, &rules, &random);
        assert_int_equal(probe_both(i), 0);
    }
    printf("%d valid batches of at most %d tokens: no alarm\n", CLEAN_BATCHES, TOKENS_MAX);
}

static void test_planted_faults(void **state)
{
    (void)state;
    uint64_t random = 815;
    for (int fault = 0; fault < PD_FAULT_COUNT; fault++)
        for (int planted = 0; planted < PLANTED_EACH;) {
            struct pd_case_rules rules = pd_case_rules_random(&random, 256);
            rules.logged = true;
            pd_case_make(&made, &rules, &random);
            if (!pd_case_plant(&made, (enum pd_fault)fault, &random))
                continue;
            if (!(probe_both(planted++) & pd_fault_kinds((enum pd_fault)fault)))
                fail_msg("not found: %s", pd_fault_name((enum pd_fault)fault));
        }
    printf("%d faults, %d batches each: all found, as by the CPU\n", PD_FAULT_COUNT, PLANTED_EACH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_false_alarm),
        cmocka_unit_test(test_planted_faults),
    };
    return cmocka_run_group_tests(tests, make_simt, free_simt);
}
