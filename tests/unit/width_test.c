/* Width against a bound, and the attention path, in figures worked out by hand. */
#include "packer/width.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const struct pd_layout_rules rules = {
    .seq_len = 400, .seg_align = 1, .total_align = 1, .pad_segment = 1024};

static void test_dynamic_width(void **state)
{
    (void)state;
    struct pd_segment segments[] = {{.slot_tokens = 60}, {.slot_tokens = 40}, {.slot_tokens = 90}};
    struct pd_pack first = {.segments = segments, .segment_count = 2, .used_slots = 100};
    struct pd_pack second = {.segments = segments + 2, .segment_count = 1, .used_slots = 90};
    const struct pd_pack *rows[] = {&first, &second, NULL};
    struct pd_batch batch = {.rows = 3, .width = 100, .real_segment_count = 3, .max_seqlen = 100};
    struct pd_width_report report;
    pd_width_report_make(&rules, 200, (struct pd_cost){0, 1}, &batch, rows, &report);
    assert_int_equal(report.bound_tokens, 200);
    assert_int_equal(report.saved_positions, 300);
    /* 60^2 + 40^2 + 90^2 + 10^2 + 100^2 = 23,400 of 3 * 200^2 = 120,000 */
    assert_int_equal(report.varlen_saving_ppm, 805000);
    assert_true(report.varlen);
    assert_string_equal(report.reason,
                        "3 segments of up to 100 cost 80.5 % less than 3 rows of 200");
    pd_width_report_make(&rules, 0, (struct pd_cost){0, 1}, &batch, rows, &report);
    assert_int_equal(report.bound_tokens, 400);
    assert_int_equal(report.saved_positions, 900);
}

/* One sample fills the row: nothing to gain. */
static void test_full_row(void **state)
{
    (void)state;
    struct pd_segment segment = {.slot_tokens = 400};
    struct pd_pack pack = {.segments = &segment, .segment_count = 1, .used_slots = 400};
    const struct pd_pack *rows[] = {&pack};
    struct pd_batch batch = {.rows = 1, .width = 400, .real_segment_count = 1, .max_seqlen = 400};
    struct pd_width_report report;
    pd_width_report_make(&rules, 200, (struct pd_cost){24576, 1}, &batch, rows, &report);
    assert_int_equal(report.saved_positions, 0);
    assert_int_equal(report.varlen_saving_ppm, 0);
    assert_false(report.varlen);
}

/* With short rows the linear part is all there is: splitting attention gains nothing. */
static void test_linear_regime(void **state)
{
    (void)state;
    struct pd_segment segments[] = {{.slot_tokens = 200}, {.slot_tokens = 200}};
    struct pd_pack pack = {.segments = segments, .segment_count = 2, .used_slots = 400};
    const struct pd_pack *rows[] = {&pack};
    struct pd_batch batch = {.rows = 1, .width = 400, .real_segment_count = 2, .max_seqlen = 200};
    struct pd_width_report report;
    pd_width_report_make(&rules, 0, (struct pd_cost){24576, 1}, &batch, rows, &report);
    assert_in_range(report.varlen_saving_ppm, 1, PD_VARLEN_LEAST_PPM);
    assert_false(report.varlen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dynamic_width),
        cmocka_unit_test(test_full_row),
        cmocka_unit_test(test_linear_regime),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
