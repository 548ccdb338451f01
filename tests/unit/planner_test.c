/* The planner's rules one by one: lengths at the edge, ends, flushes, lanes, changes, shuffle,
 * splits, snapshots. */
#include "tests/unit/planner_feed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void push_many(struct feed *feed, uint32_t lane, uint32_t length, int count)
{
    for (int i = 0; i < count; i++)
        feed_push(feed, lane, length);
}

/* Asks for packs until the planner stops; returns why. */
static int drain(struct feed *feed)
{
    int rc;
    while ((rc = feed_next(feed)) == 0)
        ;
    return rc;
}

/* ---- lengths and ends ---- */

static void test_exact_length_and_one_more(void **state)
{
    static const struct {
        enum pd_over_length policy;
        uint64_t packs, samples, parts, truncated, split, rejected;
    } want[] = {
        {PD_OVER_REJECT, 2, 2, 2, 0, 0, 1},
        {PD_OVER_KEEP_HEAD, 3, 3, 3, 1, 0, 0},
        {PD_OVER_KEEP_TAIL, 3, 3, 3, 1, 0, 0},
        {PD_OVER_SPLIT, 3, 3, 4, 0, 1, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct pd_rules rules = feed_rules();
        struct feed feed;
        rules.over_length = want[i].policy;
        feed_init(&feed, &rules);
        feed_push(&feed, 0, 1000);
        feed_push(&feed, 0, 1001);
        feed_push(&feed, 0, 998); /* leaves room for the two tokens of the split's second part */
        assert_int_equal(feed_end(&feed), 0);
        assert_int_equal(drain(&feed), PD_EEND);
        struct pd_planner_stats stats = feed_stats(&feed);
        assert_int_equal(stats.packs, want[i].packs);
        assert_int_equal(stats.samples, want[i].samples);
        assert_int_equal(stats.parts, want[i].parts);
        assert_int_equal(stats.truncated_samples, want[i].truncated);
        assert_int_equal(stats.truncated_tokens, want[i].truncated);
        assert_int_equal(stats.split_samples, want[i].split);
        assert_int_equal(stats.rejected_samples, want[i].rejected);
        feed_fini(&feed);
    }
}

static void test_empty_and_tiny_feeds_end(void **state)
{
    (void)state;
    for (int samples = 0; samples < 4; samples++) {
        struct pd_rules rules = feed_rules();
        struct feed feed;
        feed_init(&feed, &rules);
        assert_int_equal(feed_next(&feed), PD_EAGAIN); /* empty is not finished */
        push_many(&feed, 0, 10, samples);
        assert_int_equal(feed_next(&feed), PD_EAGAIN);
        assert_int_equal(feed_end(&feed), 0);
        assert_int_equal(drain(&feed), PD_EEND);
        assert_int_equal(feed_stats(&feed).samples, samples);
        assert_int_equal(feed_stats(&feed).packs, samples > 0);
        assert_int_equal(feed_next(&feed), PD_EEND);
        feed_fini(&feed);
    }
}

static void test_single_tokens_fill_to_the_last(void **state)
{
    struct pd_rules rules = feed_rules();
    struct feed feed;
    (void)state;
    rules.seq_len = 8;
    feed_init(&feed, &rules);
    push_many(&feed, 0, 1, 16);
    assert_int_equal(feed_end(&feed), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(feed_next(&feed), 0);
        assert_int_equal(feed.pack.used_slots, 8);
    }
    assert_int_equal(feed_next(&feed), PD_EEND);
    feed_fini(&feed);
}

/* Eight samples of 7 in packs of 8: sum over cap is only a lower bound, the cap is hard. */
static void test_cap_is_hard(void **state)
{
    struct pd_rules rules = feed_rules();
    struct feed feed;
    (void)state;
    rules.seq_len = 8;
    feed_init(&feed, &rules);
    push_many(&feed, 0, 7, 8);
    assert_int_equal(feed_end(&feed), 0);
    assert_int_equal(drain(&feed), PD_EEND);
    assert_int_equal(feed_stats(&feed).packs, 8);
    feed_fini(&feed);
}

static void test_all_lanes_ended_is_not_the_end(void **state)
{
    struct pd_rules rules = feed_rules();
    struct feed feed;
    (void)state;
    feed_init(&feed, &rules);
    push_many(&feed, 0, 10, 5);
    assert_int_equal(feed_end_lane(&feed, 0), 0);
    assert_int_equal(feed_next(&feed), PD_EAGAIN);
    assert_int_equal(feed.want.lane, PD_LANE_NONE);
    assert_int_equal(feed.want.window_samples, 5);
    assert_int_equal(feed.want.samples_needed, 59);
    assert_int_equal(feed_end(&feed), 0);
    assert_int_equal(feed_next(&feed), 0);
    assert_int_equal(feed_next(&feed), PD_EEND);
    feed_fini(&feed);
}

static void test_rules_are_refused_by_name(void **state)
{
    struct pd_rules rules = feed_rules();
    struct pd_planner *planner;
    struct pd_error error;
    (void)state;
    rules.seg_align = 7;
    assert_int_equal(pd_planner_new(&rules, &planner, &error), PD_EINVAL);
    assert_non_null(strstr(error.text, "seg_align is 7"));
    rules = feed_rules();
    rules.seq_len = PD_SEQ_LEN_MAX + 1;
    assert_int_equal(pd_rules_check(&rules, &error), PD_EINVAL);
    rules = feed_rules();
    rules.lanes[0].weight = 0;
    assert_int_equal(pd_rules_check(&rules, &error), PD_EINVAL);
    rules = feed_rules();
    rules.lane_count = PD_LANES_WEIGHTED_MAX + 1;
    assert_int_equal(pd_rules_check(&rules, &error), PD_EINVAL);
    rules.merge = PD_MERGE_ORDERED;
    assert_int_equal(pd_rules_check(&rules, &error), 0);
}

/* ---- strategies and constraints ---- */

static void test_sequential_keeps_order(void **state)
{
    struct pd_rules rules = feed_rules();
    struct feed feed;
    struct feed_random random = {7};
    uint64_t next = 0;
    int rc;
    (void)state;
    rules.strategy = PD_STRATEGY_SEQUENTIAL;
    feed_init(&feed, &rules);
    for (int i = 0; i < 500; i++)
        feed_push(&feed, 0, 1 + (uint32_t)(feed_random(&random) % 1000));
    assert_int_equal(feed_end(&feed), 0);
    while ((rc = feed_next(&feed)) == 0)
        for (uint32_t i = 0; i < feed.pack.segment_count; i++)
            assert_int_equal(feed.pack.segments[i].seq, next++);
    assert_int_equal(rc, PD_EEND);
    assert_int_equal(next, 500);
    feed_fini(&feed);
}

static void test_alignment_counts_in_the_fit(void **state)
{
    struct pd_rules rules = feed_rules();
    struct feed feed;
    (void)state;
    rules.seq_len = 64;
    rules.seg_align = 16;
    feed_init(&feed, &rules);
    push_many(&feed, 0, 17, 4); /* slots of 32 */
    assert_int_equal(feed_end(&feed), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(feed_next(&feed), 0);
        assert_int_equal(feed.pack.segment_count, 2);
        assert_int_equal(feed.pack.used_slots, 64);
        assert_int_equal(feed.pack.segments[1].slot_tokens, 32);
    }
    assert_int_equal(feed_next(&feed), PD_EEND);
    feed_fini(&feed);
}

static void test_patches_and_segments_are_caps(void **state)
{
    struct pd_rules rules = feed_rules();
    struct pd_span image = {.length_tokens = 10, .patches = 5};
    struct feed feed;
    int rc;
    (void)state;
    rules.patches_max = 12;
    rules.segments_max = 3;
    feed_init(&feed, &rules);
    for (int i = 0; i < 40; i++) {
        struct pd_head *head = feed_push(&feed, 0, 20);
        if (i % 2 == 0) {
            head->spans = &image;
            head->span_count = 1;
            head->patches = 5;
        }
    }
    struct pd_head *head = feed_push(&feed, 0, 20);
    head->patches = 13; /* fits no pack: left out and counted, the feed goes on */
    assert_int_equal(feed_end(&feed), 0);
    while ((rc = feed_next(&feed)) == 0) {
        uint32_t patches = 0;
        for (uint32_t i = 0; i < feed.pack.segment_count; i++)
            patches += feed.pack.segments[i].patches;
        assert_in_range(patches, 0, 12);
        assert_in_range(feed.pack.segment_count, 1, 3);
    }
    assert_int_equal(rc, PD_EEND);
    assert_int_equal(feed_stats(&feed).samples, 40);
    assert_int_equal(feed_stats(&feed).rejected_samples, 1);
    feed_fini(&feed);
}

/* ---- flushes ---- */

static void test_flush_acts_by_its_place(void **state)
{
    struct pd_rules rules = feed_rules();
    struct feed feed;
    (void)state;
    feed_init(&feed, &rules);
    push_many(&feed, 0, 100, 25);
    assert_int_equal(feed_flush(&feed, 0), 0);
    push_many(&feed, 0, 300, 30); /* behind the flush: not to be mixed with what is before it */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(feed_next(&feed), 0);
        for (uint32_t k = 0; k < feed.pack.segment_count; k++)
            assert_int_equal(feed.pack.segments[k].length_tokens, 100);
    }
    assert_int_equal(feed_stats(&feed).samples, 25);
    assert_int_equal(feed_next(&feed), PD_EAGAIN); /* done: the window fills up again */
    assert_int_equal(feed.want.window_samples, 30);
    feed_fini(&feed);
}

static void test_flush_of_some_packs(void **state)
{
    struct pd_rules rules = feed_rules();
    struct feed feed;
    (void)state;
    feed_init(&feed, &rules);
    push_many(&feed, 0, 100, 40);
    assert_int_equal(feed_flush(&feed, 2), 0);
    assert_int_equal(feed_next(&feed), 0);
    feed_restart(&feed);
    assert_int_equal(feed_next(&feed), 0);
    assert_int_equal(feed_next(&feed), PD_EAGAIN);
    assert_int_equal(feed_stats(&feed).samples, 20);
    assert_int_equal(feed.want.window_samples, 20);
    feed_fini(&feed);
}

/* What max_wait writes: single packs from a window far below W. */
static void test_short_windows_still_fill(void **state)
{
    struct pd_rules rules = feed_rules();
    struct feed feed;
    struct feed_random random = {11};
    (void)state;
    rules.seq_len = 8192;
    rules.window_samples = 1024;
    feed_init(&feed, &rules);
    for (int i = 0; i < 100; i++)
        feed_push(&feed, 0, feed_log_normal(&random, 8192));
    for (int i = 0; i < 500; i++) {
        assert_int_equal(feed_flush(&feed, 1), 0);
        assert_int_equal(feed_next(&feed), 0);
        for (uint32_t k = feed.pack.segment_count; k > 0; k--)
            feed_push(&feed, 0, feed_log_normal(&random, 8192));
    }
    struct pd_planner_stats stats = feed_stats(&feed);
    assert_in_range(stats.window_samples, 1, 100);
    assert_true(stats.used_slots * 100 > stats.packs * 8192 * 99);
    feed_fini(&feed);
}

/* ---- lanes ---- */

static struct pd_rules two_lanes(uint32_t a, uint32_t b)
{
    struct pd_rules rules = feed_rules();
    rules.lane_count = 2;
    rules.lanes[0] = (struct pd_lane_rules){.weight = a, .passes_max = 1};
    rules.lanes[1] = (struct pd_lane_rules){.weight = b, .passes_max = 1};
    return rules;
}

static void count_slots(const struct pd_pack *pack, uint64_t *slots)
{
    for (uint32_t i = 0; i < pack->segment_count; i++)
        slots[pack->segments[i].stream] += pack->segments[i].slot_tokens;
}

/* 99 of 100 arrivals are of lane 1, yet lane 0 has 7 tenths of the slots while it lasts; then it is
 * waited for, by name. */
static void test_busy_lane_neither_starves_nor_floods(void **state)
{
    struct pd_rules rules = two_lanes(7, 3);
    struct feed feed;
    uint64_t slots[FEED_LANES] = {0};
    (void)state;
    feed_init(&feed, &rules);
    for (int i = 0; i < 2000; i++)
        push_many(&feed, i % 100 == 0 ? 0 : 1, 50, i % 100 == 0 ? 20 : 1);
    int rc;
    while ((rc = feed_next(&feed)) == 0)
        count_slots(&feed.pack, slots);
    assert_int_equal(rc, PD_EAGAIN);
    assert_int_equal(feed.want.lane, 0);
    uint64_t all = slots[0] + slots[1];
    assert_true(all > 20000);
    assert_true(slots[0] * 1000 > all * 690 && slots[0] * 1000 < all * 710);
    feed_fini(&feed);
}

static void test_flush_lets_another_lane_stand_in(void **state)
{
    struct pd_rules rules = two_lanes(1, 1);
    struct feed feed;
    (void)state;
    feed_init(&feed, &rules);
    push_many(&feed, 1, 100, 200);
    assert_int_equal(feed_next(&feed), PD_EAGAIN);
    assert_int_equal(feed.want.lane, 0);
    assert_int_equal(feed_flush(&feed, 1), 0);
    assert_int_equal(feed_next(&feed), 0); /* one pack's worth, not a window's */
    assert_int_equal(feed.pack.used_slots, 1000);
    assert_int_equal(feed_next(&feed), PD_EAGAIN);
    assert_in_range(feed.want.window_samples, 0, 10);
    assert_int_equal(feed_flush(&feed, 0), 0); /* everything */
    assert_int_equal(drain(&feed), PD_EAGAIN);
    assert_int_equal(feed_stats(&feed).samples, 200);
    push_many(&feed, 0, 100,
              64); /* nobody was credited meanwhile: no flood when the lane is back */
    push_many(&feed, 1, 100, 64);
    assert_int_equal(feed_next(&feed), 0);
    uint64_t slots[FEED_LANES] = {0};
    count_slots(&feed.pack, slots);
    assert_in_range(slots[0], 400, 600);
    feed_fini(&feed);
}

static void test_on_end(void **state)
{
    static const struct {
        enum pd_on_end on_end;
        uint32_t passes, samples;
    } want[] = {{PD_ON_END_CONTINUE, 1, 240}, {PD_ON_END_STOP, 1, 81}, {PD_ON_END_REPEAT, 4, 360}};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct pd_rules rules = two_lanes(1, 1);
        struct feed feed;
        rules.lanes[0].on_end = want[i].on_end;
        rules.lanes[0].passes_max = want[i].passes;
        feed_init(&feed, &rules);
        push_many(&feed, 0, 50, 40);
        push_many(&feed, 1, 50, 200);
        assert_int_equal(feed_end_lane(&feed, 0), 0);
        if (want[i].on_end != PD_ON_END_STOP)
            assert_int_equal(feed_end(&feed), 0);
        assert_int_equal(drain(&feed), PD_EEND);
        assert_in_range(feed_stats(&feed).samples, want[i].samples - 1, want[i].samples);
        feed_fini(&feed);
    }
}

static void test_repeat_runs_exactly_max_passes(void **state)
{
    struct pd_rules rules = feed_rules();
    struct feed feed;
    uint32_t seen[3][100] = {{0}};
    int rc;
    (void)state;
    rules.lanes[0] = (struct pd_lane_rules){1, PD_ON_END_REPEAT, 3};
    feed_init(&feed, &rules);
    for (uint32_t i = 0; i < 100; i++)
        feed_push(&feed, 0, 1 + i);
    assert_int_equal(feed_end(&feed), 0);
    while ((rc = feed_next(&feed)) == 0) {
        for (uint32_t i = 0; i < feed.pack.segment_count; i++)
            seen[feed.pack.segments[i].pass][feed.pack.segments[i].seq]++;
        uint64_t floor;
        pd_planner_floors(feed.planner, &floor);
        if (feed_stats(&feed).samples < 50)
            assert_int_equal(floor, 1); /* passes to come */
        feed_restart(&feed);
    }
    assert_int_equal(rc, PD_EEND);
    for (int pass = 0; pass < 3; pass++)
        for (int i = 0; i < 100; i++)
            assert_int_equal(seen[pass][i], 1);
    feed_fini(&feed);
}

static void test_repeat_of_nothing_ends(void **state)
{
    struct pd_rules rules = feed_rules();
    struct feed feed;
    (void)state;
    rules.lanes[0] = (struct pd_lane_rules){1, PD_ON_END_REPEAT, UINT32_MAX};
    feed_init(&feed, &rules);
    push_many(&feed, 0, 1001, 10); /* all refused: the next pass would serve as little */
    assert_int_equal(feed_end(&feed), 0);
    assert_int_equal(feed_next(&feed), PD_EEND);
    assert_int_equal(feed_stats(&feed).rejected_samples, 10);
    feed_fini(&feed);
}

/* Two runs whose producers raced differently. */
static void test_ordered_merge_ignores_the_race(void **state)
{
    struct feed_random random = {3};
    struct pd_buf plans[2] = {{0}};
    (void)state;
    for (int run = 0; run < 2; run++) {
        struct pd_rules rules = feed_rules();
        struct feed feed;
        int left[3] = {90, 150, 33};
        rules.merge = PD_MERGE_ORDERED;
        rules.lane_count = 3;
        feed_init(&feed, &rules);
        while (left[0] + left[1] + left[2] > 0) {
            uint32_t lane = (uint32_t)(feed_random(&random) % 3);
            if (left[lane] > 0)
                feed_push(&feed, lane, 40 + (uint32_t)feed.seq[lane] * 7 % 300);
            left[lane] -= left[lane] > 0;
            if (left[lane] == 0)
                assert_int_equal(feed_end_lane(&feed, lane), 0);
        }
        assert_int_equal(feed_end(&feed), 0);
        while (feed_next(&feed) == 0)
            for (uint32_t i = 0; i < feed.pack.segment_count; i++) {
                feed.pack.segments[i].block = 0; /* places differ, content must not */
                pd_segment_encode(&feed.pack.segments[i], &plans[run]);
            }
        assert_int_equal(feed_stats(&feed).samples, 273);
        feed_fini(&feed);
    }
    assert_int_equal(plans[0].size_bytes, plans[1].size_bytes);
    assert_memory_equal(plans[0].data, plans[1].data, plans[0].size_bytes);
    pd_buf_fini(&plans[0]);
    pd_buf_fini(&plans[1]);
}

static void test_weights_act_from_their_pack(void **state)
{
    struct pd_rules rules = two_lanes(1, 1);
    struct feed feed;
    uint64_t before[FEED_LANES] = {0}, after[FEED_LANES] = {0};
    (void)state;
    rules.window_samples = 20;
    feed_init(&feed, &rules);
    push_many(&feed, 0, 50, 2000);
    push_many(&feed, 1, 50, 2000);
    assert_int_equal(feed_tell(&feed, (struct pd_control){.kind = PD_CONTROL_WEIGHTS,
                                                          .from_pack = 30,
                                                          .weights = {1, 9}}),
                     0);
    for (int i = 0; i < 80; i++) {
        assert_int_equal(feed_next(&feed), 0);
        count_slots(&feed.pack, i < 30 ? before : after);
    }
    assert_in_range(before[0] * 100 / (before[0] + before[1]), 49, 51);
    assert_in_range(after[0] * 100 / (after[0] + after[1]), 10,
                    12); /* the window in between had half */
    feed_fini(&feed);
}

/* ---- skips ---- */

static void test_skips(void **state)
{
    struct pd_rules rules = feed_rules();
    struct feed feed;
    int rc;
    (void)state;
    rules.over_length = PD_OVER_SPLIT;
    feed_init(&feed, &rules);
    push_many(&feed, 0, 400, 10);
    feed_push(&feed, 0, 2500); /* seq 10 */
    push_many(&feed, 0, 400, 70);
    static const uint64_t seqs[] = {0, 7, 10, 79, 10};
    for (int i = 0; i < 5; i++)
        assert_int_equal(
            feed_tell(&feed, (struct pd_control){.kind = PD_CONTROL_SKIP, .seq = seqs[i]}), 0);
    assert_int_equal(feed_end(&feed), 0);
    while ((rc = feed_next(&feed)) == 0)
        for (uint32_t i = 0; i < feed.pack.segment_count; i++)
            for (int k = 0; k < 5; k++)
                assert_int_not_equal(feed.pack.segments[i].seq, seqs[k]);
    assert_int_equal(rc, PD_EEND);
    assert_int_equal(feed_stats(&feed).skipped_samples, 4);
    assert_int_equal(feed_stats(&feed).samples, 77);
    feed_fini(&feed);
}

static void test_records_are_bounded(void **state)
{
    struct pd_rules rules = feed_rules();
    struct feed feed;
    (void)state;
    feed_init(&feed, &rules);
    for (int i = 0; i < 4096; i++)
        assert_int_equal(feed_flush(&feed, 1), 0);
    assert_int_equal(feed_flush(&feed, 1), PD_ELIMIT);
    assert_int_equal(feed_end_lane(&feed, 1), PD_EINVAL);
    struct pd_control late = {.kind = PD_CONTROL_END_FEED, .at = 3};
    assert_int_equal(pd_planner_control(feed.planner, &late), PD_EINVAL);
    feed_fini(&feed);
}

/* ---- window, shuffle ---- */

static void test_window_is_bounded_in_bytes(void **state)
{
    struct pd_rules rules = feed_rules();
    struct feed feed;
    (void)state;
    rules.window_bytes = 10000;
    feed_init(&feed, &rules);
    for (int i = 0; i < 30; i++)
        feed_push(&feed, 0, 10)->payload_bytes = i % 10 == 9 ? 20000 : 2500;
    assert_int_equal(feed_next(&feed), 0);
    assert_int_equal(feed.pack.segment_count, 4);
    assert_int_equal(feed_end(&feed), 0);
    assert_int_equal(drain(&feed), PD_EEND);
    assert_int_equal(feed_stats(&feed).samples, 30); /* larger than the budget: alone, but served */
    feed_fini(&feed);
}

/* Length grows with arrival and comes in long episodes; packs must show neither. */
static void test_shuffle_mixes_beyond_the_window(void **state)
{
    struct pd_rules rules = feed_rules();
    struct feed feed;
    int64_t previous = 0, jumps = 0, pairs = 0;
    uint64_t first = UINT64_MAX;
    (void)state;
    rules.order = PD_ORDER_SHUFFLE;
    rules.shuffle_samples = 4000;
    rules.seed = 5;
    feed_init(&feed, &rules);
    for (uint32_t i = 0; i < 16000; i++)
        feed_push(&feed, 0, 20 + i / 200);
    while (feed_next(&feed) == 0)
        for (uint32_t i = 0; i < feed.pack.segment_count; i++) {
            int64_t seq = (int64_t)feed.pack.segments[i].seq;
            if (feed_stats(&feed).samples > 6000) {
                jumps += seq > previous ? seq - previous : previous - seq;
                pairs++;
            }
            first = first == UINT64_MAX ? (uint64_t)seq : first;
            previous = seq;
        }
    assert_true(first < 128); /* starts without waiting for a full buffer */
    assert_true(pairs > 4000);
    assert_true(jumps / pairs >
                1500); /* neighbours come from far apart: the buffer's size, not W = 64 */
    feed_fini(&feed);
}

static void test_seed_decides_the_order(void **state)
{
    struct pd_buf plan[3] = {{0}};
    (void)state;
    for (int run = 0; run < 3; run++) {
        struct pd_rules rules = feed_rules();
        struct feed feed;
        rules.order = PD_ORDER_SHUFFLE;
        rules.shuffle_samples = 200;
        rules.seed = run / 2;
        feed_init(&feed, &rules);
        for (uint32_t i = 0; i < 1000; i++)
            feed_push(&feed, 0, 50 + i % 90);
        while (feed_next(&feed) == 0)
            pd_pack_encode(&feed.pack, &plan[run]);
        feed_fini(&feed);
    }
    assert_int_equal(plan[0].size_bytes, plan[1].size_bytes);
    assert_memory_equal(plan[0].data, plan[1].data, plan[0].size_bytes);
    assert_true(plan[2].size_bytes != plan[0].size_bytes ||
                memcmp(plan[0].data, plan[2].data, plan[0].size_bytes) != 0);
    for (int run = 0; run < 3; run++)
        pd_buf_fini(&plan[run]);
}

/* ---- snapshots ---- */

static void test_snapshots_are_not_trusted(void **state)
{
    struct pd_rules rules = two_lanes(2, 1);
    struct feed feed;
    struct pd_buf buf = {0};
    struct pd_planner *planner;
    struct pd_error error;
    (void)state;
    rules.order = PD_ORDER_SHUFFLE;
    rules.shuffle_samples = 20;
    feed_init(&feed, &rules);
    push_many(&feed, 0, 300, 100);
    push_many(&feed, 1, 200, 100);
    assert_int_equal(feed_flush(&feed, 9), 0);
    assert_int_equal(feed_next(&feed), 0);
    assert_int_equal(pd_planner_save(feed.planner, &buf), 0);
    for (size_t size = 0; size < buf.size_bytes; size++) {
        assert_int_equal(pd_planner_restore(buf.data, size, &planner, &error), PD_ECORRUPT);
        assert_null(planner);
    }
    buf.data[4]++;
    assert_int_equal(pd_planner_restore(buf.data, buf.size_bytes, &planner, &error), PD_EMISMATCH);
    pd_buf_fini(&buf);
    feed_fini(&feed);
}

/* Reading fails in the middle of a refill: the error comes through. */
static int read_broken(void *ctx, uint32_t lane, struct pd_cursor at, const struct pd_head **heads)
{
    (void)lane;
    (void)heads;
    return at.block > 3 ? PD_EIO
                        : ((int (*)(struct pd_cursor, const struct pd_head **))ctx)(at, heads);
}

static int one_head(struct pd_cursor at, const struct pd_head **heads)
{
    static struct pd_head head;
    head = (struct pd_head){.block = at.block + 1, .length_tokens = 5, .weight = 1};
    *heads = &head;
    return 1;
}

static int zero_head(struct pd_cursor at, const struct pd_head **heads)
{
    static const struct pd_head head = {.block = 1};
    (void)at;
    *heads = &head;
    return 1;
}

static void test_supply_errors_come_through(void **state)
{
    struct pd_rules rules = feed_rules();
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct pd_supply supply = {i == 0 ? (void *)one_head : (void *)zero_head, read_broken};
        struct pd_planner *planner;
        struct pd_pack pack = {0};
        struct pd_want want;
        assert_int_equal(pd_planner_new(&rules, &planner, NULL), 0);
        assert_int_equal(pd_planner_next(planner, &supply, &pack, &want),
                         i == 0 ? PD_EIO : PD_ECORRUPT);
        pd_planner_free(planner);
        pd_pack_fini(&pack);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_length_and_one_more),
        cmocka_unit_test(test_empty_and_tiny_feeds_end),
        cmocka_unit_test(test_single_tokens_fill_to_the_last),
        cmocka_unit_test(test_cap_is_hard),
        cmocka_unit_test(test_all_lanes_ended_is_not_the_end),
        cmocka_unit_test(test_rules_are_refused_by_name),
        cmocka_unit_test(test_sequential_keeps_order),
        cmocka_unit_test(test_alignment_counts_in_the_fit),
        cmocka_unit_test(test_patches_and_segments_are_caps),
        cmocka_unit_test(test_flush_acts_by_its_place),
        cmocka_unit_test(test_flush_of_some_packs),
        cmocka_unit_test(test_short_windows_still_fill),
        cmocka_unit_test(test_busy_lane_neither_starves_nor_floods),
        cmocka_unit_test(test_flush_lets_another_lane_stand_in),
        cmocka_unit_test(test_on_end),
        cmocka_unit_test(test_repeat_runs_exactly_max_passes),
        cmocka_unit_test(test_repeat_of_nothing_ends),
        cmocka_unit_test(test_ordered_merge_ignores_the_race),
        cmocka_unit_test(test_weights_act_from_their_pack),
        cmocka_unit_test(test_skips),
        cmocka_unit_test(test_records_are_bounded),
        cmocka_unit_test(test_window_is_bounded_in_bytes),
        cmocka_unit_test(test_shuffle_mixes_beyond_the_window),
        cmocka_unit_test(test_seed_decides_the_order),
        cmocka_unit_test(test_snapshots_are_not_trusted),
        cmocka_unit_test(test_supply_errors_come_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
