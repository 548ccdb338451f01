/* Serving while a feed is deleted: what is built of it goes nowhere, and who waits is told. */
#include "tests/unit/serve_bench.h"

#include "base/clock.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void await_built(struct serve_bench *b)
{
    struct pd_serve_gauges gauges;
    uint64_t until_ns = pd_clock_mono_ns() + UINT64_C(20000000000);
    do {
        pd_serve_gauges(b->serve, &gauges);
        assert_true(pd_clock_mono_ns() < until_ns);
    } while (gauges.building > 0);
}

/* From DeleteFeed until serve hears of it the log has another feed under the name: what is read
 * then is neither served nor taken for damage, and nothing is begun. */
static void test_a_feed_that_is_being_deleted(void **state)
{
    (void)state;
    struct serve_gate gate = SERVE_GATE_INIT;
    struct serve_bench b;
    serve_bench_init(&b, &(struct serve_bench_options){.packs = 8,
                                                       .dp_size = 1,
                                                       .rows = 2,
                                                       .accum = 1,
                                                       .hooks.validate = serve_gate_validate,
                                                       .hooks.validate_ctx = &gate});
    struct serve_rank ranks[3];
    struct pd_ready_batch *batch;
    for (uint32_t i = 0; i < 2; i++) {
        serve_rank_init(&ranks[i], serve_bench_key(&b, i, 0, 0));
        assert_int_equal(serve_rank_get(&b, &ranks[i], &batch), PD_EAGAIN);
    }
    serve_gate_await(&gate, 2); /* all that there is has been read of both */
    b.log->feed_number = 1;
    serve_gate_open(&gate);
    await_built(&b);
    uint64_t reads = b.log->pack_reads;
    serve_rank_init(&ranks[2], serve_bench_key(&b, 2, 0, 0));
    assert_int_equal(serve_rank_get(&b, &ranks[2], &batch), PD_EAGAIN);
    await_built(&b);
    assert_int_equal(b.log->pack_reads, reads);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(serve_rank_woken(&ranks[i]), 0);
    pd_serve_feed_reset(b.serve, 0);
    struct pd_serve_gauges gauges;
    pd_serve_gauges(b.serve, &gauges);
    assert_int_equal(gauges.violations_total, 0);
    assert_int_equal(gauges.built_total, 0);
    for (uint32_t i = 0; i < 3; i++) {
        serve_rank_await(&ranks[i], 1);
        assert_int_equal(serve_rank_get(&b, &ranks[i], &batch), PD_ENOTFOUND);
        serve_rank_fini(&ranks[i]);
    }
    b.log->feed_number = 0; /* as if the new feed had packs of its own */
    serve_bench_advance(&b, 8, false);
    b.job.job_id = 8;
    pd_serve_job_opened(b.serve, &b.job);
    pd_ready_batch_unref(serve_get_ok(&b, serve_bench_key(&b, 0, 0, 0)));
    serve_bench_fini(&b);
}

/* The same with builds that read after the number has changed: what they miss is no damage. */
static void test_a_deleted_feed_is_not_damaged(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 200; seed++) {
        struct serve_bench b;
        serve_bench_init(&b, &(struct serve_bench_options){
                                 .seed = seed, .packs = 64, .dp_size = 4, .rows = 4, .accum = 1});
        struct serve_rank ranks[4];
        struct pd_ready_batch *batch = NULL;
        for (uint32_t r = 0; r < 4; r++) {
            serve_rank_init(&ranks[r], serve_bench_key(&b, seed % 4, 0, r));
            assert_int_equal(serve_rank_get(&b, &ranks[r], &batch), PD_EAGAIN);
        }
        while (b.log->pack_reads < seed % 16) /* of the 16 that the step's totals take */
            sched_yield();
        b.log->feed_number = 1;
        pd_serve_feed_reset(b.serve, 0);
        struct pd_serve_gauges gauges;
        await_built(&b);
        pd_serve_gauges(b.serve, &gauges);
        assert_int_equal(gauges.violations_total, 0);
        for (uint32_t r = 0; r < 4; r++) {
            serve_rank_await(&ranks[r], 1);
            assert_int_equal(serve_rank_get(&b, &ranks[r], &batch), PD_ENOTFOUND);
            serve_rank_fini(&ranks[r]);
        }
        serve_bench_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_feed_that_is_being_deleted),
        cmocka_unit_test(test_a_deleted_feed_is_not_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
