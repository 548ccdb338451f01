/* The cost model: the figures people quote, saturation, and the work of real length lists. */
#include "packer/cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define L 4096u

static void test_segment(void **state)
{
    const struct pd_cost seven_b = {.alpha = 24576, .beta = 1};
    (void)state;
    assert_int_equal(pd_cost_segment(seven_b, 0), 0);
    assert_int_equal(pd_cost_segment(seven_b, 1), 24577);
    assert_int_equal(pd_cost_segment(seven_b, 1000), 24576ull * 1000 + 1000000);
    assert_int_equal(pd_cost_segment((struct pd_cost){0, 3}, 5), 75);
}

static void test_saturation(void **state)
{
    const struct pd_cost most = {UINT32_MAX, UINT32_MAX};
    struct pd_work work = {0};
    (void)state;
    assert_true(pd_cost_segment(most, 1u << 20) == UINT64_MAX);
    assert_true(pd_add_saturating(UINT64_MAX - 3, 4) == UINT64_MAX);
    assert_int_equal(pd_add_saturating(1, 2), 3);
    pd_work_add(&work, UINT64_MAX, UINT64_MAX);
    pd_work_add(&work, 7, 1);
    assert_true(work.positions == UINT64_MAX);
    assert_true(work.pairs == ~(unsigned __int128)0);
    assert_true(pd_work_cost(&work, most) == ~(unsigned __int128)0);
    assert_int_equal(pd_saving_ppm(~(unsigned __int128)0, ~(unsigned __int128)0 / 4), 750000);
}

static void test_saving(void **state)
{
    (void)state;
    assert_int_equal(pd_saving_ppm(0, 0), 0);
    assert_int_equal(pd_saving_ppm(0, 5), 0);
    assert_int_equal(pd_saving_ppm(200, 50), 750000);
    assert_int_equal(pd_saving_ppm(50, 100), -1000000);
    assert_int_equal(pd_saving_ppm(1, UINT64_MAX), -1000000000);
}

/* 1.88 times the throughput is 46.8 % less time, not 88 %. */
static void test_time(void **state)
{
    (void)state;
    assert_int_equal(pd_speedup_milli(468085), 1880);
    assert_int_equal(pd_speedup_milli(500000), 2000);
    assert_int_equal(pd_speedup_milli(0), 1000);
    assert_int_equal(pd_speedup_milli(-1000000), 500);
    assert_true(pd_speedup_milli(1000000) == UINT64_MAX);
}

static void test_model(void **state)
{
    struct pd_cost cost = pd_cost_of_model(4096);
    struct pd_work work = {0};
    (void)state;
    assert_int_equal(cost.alpha, 24576);
    assert_int_equal(cost.beta, 1);
    assert_int_equal(pd_cost_regime(cost, 24576), PD_REGIME_LINEAR);
    assert_int_equal(pd_cost_regime(cost, 24577), PD_REGIME_QUADRATIC);
    assert_int_equal(pd_cost_crossover_tokens(cost), 24577);
    assert_int_equal(pd_cost_quadratic_ppm(cost, 24576), 500000);
    assert_int_equal(pd_cost_quadratic_ppm(cost, 8192), 250000);
    assert_int_equal(pd_cost_quadratic_ppm((struct pd_cost){0}, 8192), 0);
    assert_int_equal(pd_cost_regime((struct pd_cost){0, 1}, 1), PD_REGIME_QUADRATIC);
    assert_true(pd_cost_crossover_tokens((struct pd_cost){1, 0}) == UINT64_MAX);
    /* 2 layers of width 8 over 3 tokens: 24 * 64 * 3 + 4 * 8 * 9 operations each */
    pd_work_add(&work, 3, 1);
    assert_int_equal((uint64_t)pd_work_operations(&work, 8, 2), 2 * (24 * 64 * 3 + 4 * 8 * 9));
}

/* Half of the tokens are visual, half of those go: three quarters stay, 9/16 of the pairs. */
static void test_view(void **state)
{
    const struct pd_view_drop half_of_half = {.share_ppm = PD_PPM / 2 / 2};
    struct pd_work before = {0}, after = {0};
    (void)state;
    for (uint32_t n = 4; n <= L; n += 4) {
        pd_work_add(&before, n, 1);
        pd_work_add(&after, pd_view_kept_tokens(half_of_half, n), 1);
    }
    assert_int_equal(pd_saving_ppm(before.pairs, after.pairs), 437500);
    assert_int_equal(pd_saving_ppm(before.positions, after.positions), 250000);
    assert_int_equal(pd_view_kept_tokens((struct pd_view_drop){.tokens = 256}, 1000), 744);
    assert_int_equal(pd_view_kept_tokens((struct pd_view_drop){.tokens = 256}, 256), 1);
    assert_int_equal(pd_view_kept_tokens((struct pd_view_drop){.share_ppm = PD_PPM}, 9), 1);
}

static void test_padding(void **state)
{
    struct pd_work work = {0};
    (void)state;
    pd_work_add_padding(&work, 2500, 1024);
    assert_int_equal(work.positions, 2500);
    assert_int_equal((uint64_t)work.pairs, 2 * 1024 * 1024 + 452 * 452);
}

/* Varlen over rows padded to 4,096: what the two regimes save on a list. */
static void list_savings(const char *name, double *padding, double *linear, double *quadratic)
{
    struct pd_work padded = {0}, varlen = {0};
    char path[256], line[64];
    uint64_t tokens = 0, rows = 0;
    snprintf(path, sizeof path, "tests/data/%s.lengths.txt", name);
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("%s is missing", path);
    while (file && fgets(line, sizeof line, file)) {
        uint64_t length = strtoull(line, NULL, 10);
        pd_work_add(&padded, L, 1);
        pd_work_add(&varlen, length, 1);
        tokens += length;
        rows++;
    }
    if (file)
        fclose(file);
    *padding = 1 - (double)tokens / (double)(rows * L);
    *linear = (double)pd_saving_ppm(padded.positions, varlen.positions) / PD_PPM;
    *quadratic = (double)pd_saving_ppm(padded.pairs, varlen.pairs) / PD_PPM;
    print_message("%s: padding %.4f, linear %.4f, quadratic %.4f\n", name, *padding, *linear,
                  *quadratic);
}

static void test_lists(void **state)
{
    double padding, linear, quadratic;
    (void)state;
    list_savings("seed_low_padding", &padding, &linear, &quadratic);
    assert_true(padding > 0.0225 && padding < 0.0235);
    assert_true(linear > padding - 0.02 && linear < padding + 0.02);
    list_savings("seed_high_padding", &padding, &linear, &quadratic);
    assert_true(padding > 0.8985 && padding < 0.8995);
    assert_true(linear > padding - 0.02 && linear < padding + 0.02);
    assert_true(quadratic > padding);
    assert_true(quadratic > 0.9890 && quadratic < 0.9900);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_segment), cmocka_unit_test(test_saturation),
        cmocka_unit_test(test_saving),  cmocka_unit_test(test_time),
        cmocka_unit_test(test_model),   cmocka_unit_test(test_view),
        cmocka_unit_test(test_padding), cmocka_unit_test(test_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
