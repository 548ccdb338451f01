/* The report of `packctl plan`: reference figures of the length lists, conservation of the
 * assignment, edges, and stopping half-way. */
#include "packer/report.h"
#include "tests/unit/planner_feed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LIST_MAX 12000

struct list {
    uint32_t length[LIST_MAX];
    size_t count;
};

static struct list list;

static void read_list(const char *name)
{
    char path[256], line[64];
    snprintf(path, sizeof path, "tests/data/%s.lengths.txt", name);
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("%s is missing", path);
    list.count = 0;
    while (file && fgets(line, sizeof line, file) && list.count < LIST_MAX)
        list.length[list.count++] = (uint32_t)strtoul(line, NULL, 10);
    if (file)
        fclose(file);
}

static struct pd_report_options defaults(void)
{
    return (struct pd_report_options){.seq_len = 4096,
                                      .window_samples = 1024,
                                      .seg_align = 1,
                                      .pad_segment = 1024,
                                      .cost = {24576, 1},
                                      .world = {8, 1, 1},
                                      .balance_bytes = 1 << 30,
                                      .assign = PD_REPORT_EXACT};
}

static struct pd_report make(const struct pd_report_options *options)
{
    struct pd_report report;
    struct pd_error error = {0};
    int rc = pd_report_make(options, list.length, list.count, &report, &error);
    if (rc != 0)
        fail_msg("%d: %s", rc, error.text);
    return report;
}

/* An assignment: sums per pack, tokens per sample. */
struct placed {
    uint64_t used[LIST_MAX], got[LIST_MAX], packs, parts;
    uint64_t stop_after;
};

static struct placed placed;

static int take_place(void *ctx, const struct pd_report_place *place)
{
    struct placed *into = ctx;
    assert_true(place->pack < LIST_MAX && place->sample < list.count);
    assert_true(place->offset_tokens + place->length_tokens <= list.length[place->sample]);
    into->used[place->pack] += place->length_tokens;
    into->got[place->sample] += place->length_tokens;
    into->packs = place->pack + 1 > into->packs ? place->pack + 1 : into->packs;
    return ++into->parts == into->stop_after ? PD_EIO : 0;
}

static void test_seed_packing(void **state)
{
    struct pd_report_options options = defaults();
    (void)state;
    read_list("seed_packing");
    options.ctx = &placed;
    options.place = take_place;
    for (enum pd_report_strategy s = 0; s < PD_REPORT_STRATEGIES; s++) {
        placed = (struct placed){.packs = 0};
        options.assign = s;
        struct pd_report r = make(&options);
        assert_int_equal(r.lower_bound, 210);
        assert_int_equal(r.rows[PD_REPORT_NONE].packs, 2000);
        assert_in_range(r.rows[PD_REPORT_FFD].packs, 210, 211);
        assert_true(r.rows[PD_REPORT_EXACT].packs <= r.rows[PD_REPORT_FFD].packs);
        assert_in_range(r.rows[PD_REPORT_EXACT].padding_before_ppm, 894500, 895499);
        assert_true(r.rows[PD_REPORT_EXACT].padding_after_ppm < 6000);
        assert_true(r.pack);
        assert_int_equal(placed.packs, r.rows[s].packs);
        assert_int_equal(placed.parts, 2000);
        for (size_t i = 0; i < list.count; i++)
            assert_int_equal(placed.got[i], list.length[i]);
        for (uint64_t p = 0; p < placed.packs; p++)
            assert_in_range(placed.used[p], 1, 4096);
    }
}

static void test_low_and_high(void **state)
{
    struct pd_report_options options = defaults();
    (void)state;
    read_list("seed_low_padding");
    struct pd_report r = make(&options);
    assert_in_range(r.rows[PD_REPORT_EXACT].padding_before_ppm, 22500, 23499);
    assert_in_range(r.varlen_linear_ppm, 22500, 23499);   /* the padding rate itself */
    assert_int_equal(r.rows[PD_REPORT_EXACT].packs, 256); /* no two fit into one pack */
    assert_int_equal(r.lower_bound, 256);
    assert_false(r.pack);
    assert_true(r.gain_ppm < PD_REPORT_GAIN_LEAST_PPM);
    read_list("seed_high_padding");
    r = make(&options);
    assert_in_range(r.rows[PD_REPORT_EXACT].padding_before_ppm, 898500, 899499);
    assert_in_range(r.varlen_linear_ppm, 879000, 919000);
    assert_in_range(r.rows[PD_REPORT_EXACT].saving_linear_ppm, 879000, 919000);
    assert_in_range(r.varlen_quadratic_ppm, 989000, 989999);
    assert_true(r.rows[PD_REPORT_EXACT].saving_quadratic_ppm >
                r.rows[PD_REPORT_EXACT].padding_before_ppm);
    assert_true(r.pack);
}

static void test_reject(void **state)
{
    struct pd_report_options options = defaults();
    (void)state;
    list = (struct list){.length = {4096, 4097, 1}, .count = 3};
    struct pd_report r = make(&options);
    assert_int_equal(r.rejected_samples, 1);
    assert_int_equal(r.parts, 2);
    assert_int_equal(r.served_tokens, 4097);
    assert_int_equal(r.rows[PD_REPORT_EXACT].packs, 2);
    assert_int_equal(r.rows[PD_REPORT_FFD].packs, 2);
    options.over_length = PD_OVER_KEEP_HEAD;
    r = make(&options);
    assert_int_equal(r.rejected_samples, 0);
    assert_int_equal(r.truncated_samples, 1);
    assert_int_equal(r.truncated_tokens, 1);
    options.over_length = PD_OVER_SPLIT;
    r = make(&options);
    assert_int_equal(r.split_samples, 1);
    assert_int_equal(r.parts, 4);
    assert_int_equal(r.served_tokens, 4096 + 4097 + 1 + 1); /* parts overlap by one token */
}

static void test_nothing(void **state)
{
    struct pd_report_options options = defaults();
    (void)state;
    list.count = 0;
    struct pd_report r = make(&options);
    assert_int_equal(r.lower_bound, 0);
    assert_int_equal(r.rows[PD_REPORT_EXACT].packs, 0);
    assert_int_equal(r.rows[PD_REPORT_EXACT].padding_after_ppm, 0);
    assert_int_equal(r.ceiling_ppm, 1000000);
    assert_false(r.pack);
    list = (struct list){.length = {9}, .count = 1};
    r = make(&options);
    assert_int_equal(r.rows[PD_REPORT_EXACT].packs, 1);
    assert_int_equal(r.off.steps, 0);
    list = (struct list){.length = {5000}, .count = 1}; /* all refused */
    r = make(&options);
    assert_int_equal(r.rows[PD_REPORT_EXACT].packs, 0);
    assert_int_equal(r.suggested_seq_len, 8192);
}

static void test_view(void **state)
{
    struct pd_report_options options = defaults();
    struct feed_random random = {17};
    (void)state;
    for (list.count = 0; list.count < 500; list.count++)
        list.length[list.count] = 4 * (1 + (uint32_t)(feed_random(&random) % 500));
    options.views[0] = (struct pd_view_drop){.share_ppm = 250000}; /* half of a visual half */
    options.views[1] = (struct pd_view_drop){.tokens = 2000};
    options.view_count = 2;
    struct pd_report r = make(&options);
    assert_int_equal(r.views[0].quadratic_cut_ppm, 437500);
    assert_int_equal(r.views[0].linear_cut_ppm, 250000);
    assert_in_range(r.views[0].cut_ppm, 250000, 437500);
    assert_true(r.views[0].packs < r.rows[PD_REPORT_EXACT].packs);
    assert_int_equal(r.views[1].tokens, 500);
    assert_int_equal(r.views[1].packs, 1);
}

static void test_align_and_ranks(void **state)
{
    struct pd_report_options options = defaults();
    struct feed_random random = {3};
    (void)state;
    for (list.count = 0; list.count < LIST_MAX; list.count++)
        list.length[list.count] = feed_log_normal(&random, 4096);
    struct pd_report plain = make(&options);
    options.seg_align = 64;
    struct pd_report aligned = make(&options);
    assert_true(aligned.rows[PD_REPORT_EXACT].packs > plain.rows[PD_REPORT_EXACT].packs);
    assert_true(aligned.rows[PD_REPORT_FFD].padding_after_ppm >
                plain.rows[PD_REPORT_FFD].padding_after_ppm);
    options.seg_align = 1;
    options.cost = (struct pd_cost){0, 1};
    options.world = (struct pd_world){4, 2, 2};
    struct pd_report ranks = make(&options);
    assert_int_equal(ranks.off.steps, ranks.rows[PD_REPORT_EXACT].packs / 16);
    assert_int_equal(ranks.balanced.steps, ranks.off.steps);
    assert_true(ranks.balanced.micro_ppm < ranks.off.micro_ppm);
    assert_int_equal(ranks.regime, PD_REGIME_QUADRATIC);
    assert_int_equal(plain.regime, PD_REGIME_LINEAR);
}

static void test_histogram(void **state)
{
    struct pd_report_options options = defaults();
    struct feed_random random = {8};
    (void)state;
    for (uint32_t span = 1; span <= 1u << 21; span *= 8) {
        uint64_t samples = 0, tokens = 0;
        for (list.count = 0; list.count < 300; list.count++)
            list.length[list.count] = 1 + (uint32_t)(feed_random(&random) % span);
        list.length[0] = span;
        options.over_length = PD_OVER_SPLIT;
        struct pd_report r = make(&options);
        assert_in_range(r.bin_count, 1, PD_REPORT_BINS_MAX);
        for (uint32_t i = 0; i < r.bin_count; i++) {
            samples += r.bins[i].samples;
            tokens += r.bins[i].tokens;
            assert_true(i == 0 || r.bins[i].lowest == r.bins[i - 1].highest + 1);
            assert_true(r.bins[i].lowest <= r.bins[i].highest);
        }
        assert_int_equal(r.bins[0].lowest, r.shortest);
        assert_int_equal(r.bins[r.bin_count - 1].highest, r.longest);
        assert_int_equal(samples, list.count);
        assert_int_equal(tokens, r.tokens);
    }
}

/* A longer seq_len or window is suggested only where it buys something. */
static void test_suggestions(void **state)
{
    struct pd_report_options options = defaults();
    (void)state;
    read_list("seed_low_padding");
    assert_int_equal(make(&options).suggested_seq_len, 4096);
    read_list("seed_packing");
    struct pd_report r = make(&options);
    assert_in_range(r.suggested_seq_len, 1024, 4096);
    assert_true(r.suggested_padding_ppm < 5000);
    assert_in_range(r.suggested_window, 64, 1024);
    options.seg_align = 48;
    options.seq_len = 4800;
    assert_int_equal(make(&options).suggested_seq_len % 48, 0);
}

static bool stop_at(void *ctx, const char *doing, uint64_t done, uint64_t all)
{
    int *left = ctx;
    (void)done;
    (void)all;
    assert_non_null(doing);
    return --*left < 0;
}

static void test_stopping(void **state)
{
    struct pd_report_options options = defaults();
    struct pd_report r;
    struct pd_error error;
    int rc = PD_ECANCELED, calls = 0;
    (void)state;
    read_list("seed_high_padding");
    options.views[0] = (struct pd_view_drop){.tokens = 1};
    options.view_count = 1;
    options.progress = stop_at;
    for (; rc == PD_ECANCELED; calls++) {
        int left = calls;
        options.ctx = &left;
        rc = pd_report_make(&options, list.length, list.count, &r, &error);
    }
    assert_int_equal(rc, 0);
    assert_true(calls > PD_REPORT_STRATEGIES);
    placed = (struct placed){.stop_after = 7};
    options.ctx = &placed;
    options.progress = NULL;
    options.place = take_place;
    assert_int_equal(pd_report_make(&options, list.length, list.count, &r, &error), PD_EIO);
    options.assign = PD_REPORT_BFD;
    placed = (struct placed){.stop_after = 7};
    assert_int_equal(pd_report_make(&options, list.length, list.count, &r, &error), PD_EIO);
    assert_int_equal(placed.parts, 7);
}

static void test_bad_options(void **state)
{
    struct pd_report_options options = defaults();
    struct pd_report r;
    struct pd_error error;
    (void)state;
    list = (struct list){.length = {3, 0}, .count = 2};
    assert_int_equal(pd_report_make(&options, list.length, 2, &r, &error), PD_EINVAL);
    assert_string_equal(error.reason, "BAD_LENGTH");
    options.seg_align = 3;
    assert_int_equal(pd_report_make(&options, list.length, 1, &r, &error), PD_EINVAL);
    assert_string_equal(error.reason, "RULES");
    options = defaults();
    options.world = (struct pd_world){1 << 20, 1 << 20, 1 << 20};
    assert_int_equal(pd_report_make(&options, list.length, 1, &r, &error), PD_EINVAL);
    options.world = (struct pd_world){1, 0, 1};
    assert_int_equal(pd_report_make(&options, list.length, 1, &r, &error), PD_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seed_packing), cmocka_unit_test(test_low_and_high),
        cmocka_unit_test(test_reject),       cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_view),         cmocka_unit_test(test_align_and_ranks),
        cmocka_unit_test(test_histogram),    cmocka_unit_test(test_suggestions),
        cmocka_unit_test(test_stopping),     cmocka_unit_test(test_bad_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
