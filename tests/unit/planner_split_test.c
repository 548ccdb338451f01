/* Samples longer than a pack: parts that keep order and predict each target once, cuts that leave
 * media whole. */
#include "tests/unit/planner_feed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* Asks for packs until the planner stops; returns why. */
static int drain(struct feed *feed)
{
    int rc;
    while ((rc = feed_next(feed)) == 0)
        ;
    return rc;
}

static void test_split_predicts_each_target_once(void **state)
{
    struct pd_rules rules = feed_rules();
    static const uint32_t runs[] = {10, 500, 3, 4000};
    struct feed feed;
    uint64_t loss = 0, overlap = 0, end = 0;
    double weight = 0;
    uint32_t part = 0;
    int rc;
    (void)state;
    rules.over_length = PD_OVER_SPLIT;
    feed_init(&feed, &rules);
    struct pd_head *head = feed_push(&feed, 0, 3333);
    head->loss = (struct pd_loss_runs){runs, 4};
    head->weight = 0.75f;
    for (int i = 0; i < 30; i++)
        feed_push(&feed, 0, 300);
    assert_int_equal(feed_end(&feed), 0);
    while ((rc = feed_next(&feed)) == 0)
        for (uint32_t i = 0; i < feed.pack.segment_count; i++) {
            const struct pd_segment *s = &feed.pack.segments[i];
            if (s->seq != 0)
                continue;
            assert_int_equal(s->part, part++); /* in order, whatever fits better */
            assert_int_equal(s->part_count, 4);
            assert_int_equal(s->offset_tokens + s->overlap_tokens, end);
            end = s->offset_tokens + s->length_tokens;
            loss += s->loss_tokens;
            overlap += s->overlap_tokens;
            weight += (double)pd_segment_loss_weight(s, PD_LOSS_SAMPLE) * s->loss_tokens;
            assert_int_equal(s->sample_loss_tokens, 3333 - 13);
            feed_restart(&feed);
        }
    assert_int_equal(rc, PD_EEND);
    assert_int_equal(end, 3333);
    assert_int_equal(overlap, 3);
    assert_int_equal(loss, 3333 - 13);
    assert_true(weight > 0.75 * (1 - 1e-6) && weight < 0.75 * (1 + 1e-6));
    feed_fini(&feed);
}

static void test_cuts_leave_media_whole(void **state)
{
    static const struct pd_span spans[] = {
        {.offset_tokens = 100, .length_tokens = 950, .patches = 4},
        {.offset_tokens = 1500, .length_tokens = 1000, .patches = 7},
        {.offset_tokens = 2600, .length_tokens = 500, .patches = 9}};
    (void)state;
    for (int policy = PD_OVER_KEEP_HEAD; policy <= PD_OVER_SPLIT; policy++) {
        struct pd_rules rules = feed_rules();
        struct feed feed;
        uint32_t patches = 0;
        rules.over_length = (enum pd_over_length)policy;
        feed_init(&feed, &rules);
        struct pd_head *head = feed_push(&feed, 0, 3300);
        head->spans = spans;
        head->span_count = 3;
        head->patches = 20;
        assert_int_equal(feed_end(&feed), 0);
        while (feed_next(&feed) == 0)
            for (uint32_t i = 0; i < feed.pack.segment_count; i++) {
                const struct pd_segment *s = &feed.pack.segments[i];
                uint32_t inside = 0;
                for (int k = 0; k < 3; k++) {
                    uint32_t from = spans[k].offset_tokens, to = from + spans[k].length_tokens;
                    bool whole =
                        s->offset_tokens <= from && to <= s->offset_tokens + s->length_tokens;
                    bool apart =
                        s->offset_tokens >= to || s->offset_tokens + s->length_tokens <= from;
                    assert_true(whole || apart);
                    inside += whole ? spans[k].patches : 0;
                }
                assert_int_equal(s->patches, inside);
                patches += inside;
            }
        assert_int_equal(patches, policy == PD_OVER_SPLIT       ? 20
                                  : policy == PD_OVER_KEEP_TAIL ? 9
                                                                : 0);
        feed_fini(&feed);
    }
}

static void test_media_larger_than_a_pack_is_left_out(void **state)
{
    static const struct pd_span span = {.length_tokens = 1001, .patches = 1};
    struct pd_rules rules = feed_rules();
    struct feed feed;
    (void)state;
    rules.over_length = PD_OVER_SPLIT;
    feed_init(&feed, &rules);
    struct pd_head *head = feed_push(&feed, 0, 3000);
    head->spans = &span;
    head->span_count = 1;
    feed_push(&feed, 0, 5);
    assert_int_equal(feed_end(&feed), 0);
    assert_int_equal(drain(&feed), PD_EEND);
    assert_int_equal(feed_stats(&feed).rejected_samples, 1);
    assert_int_equal(feed_stats(&feed).samples, 1);
    feed_fini(&feed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_predicts_each_target_once),
        cmocka_unit_test(test_cuts_leave_media_whole),
        cmocka_unit_test(test_media_larger_than_a_pack_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
