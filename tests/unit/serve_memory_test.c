/* Batch memory: the budget holds, the right batches are evicted, nothing waits for ever, and an
 * evicted batch comes back byte for byte. */
#include "tests/unit/serve_bench.h"

#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What the batches of this bench take at most, and the slot a job of it has set aside. */
static void sizes_of(const struct serve_bench_options *options, uint64_t *largest, uint64_t *slot)
{
    struct serve_bench b;
    struct serve_bench_options plenty = *options;
    plenty.memory = 0;
    plenty.planned = 0;
    serve_bench_init(&b, &plenty);
    *largest = 0;
    *slot = pd_job_find(b.serve, 0, 7)->slot_bytes;
    uint64_t steps = options->packs / b.job.spec.step_packs;
    for (uint64_t step = 0; step < steps; step++)
        for (uint32_t r = 0; r < options->dp_size; r++)
            pd_ready_batch_unref(serve_get_ok(&b, serve_bench_key(&b, step, 0, r)));
    for (struct pd_entry *e = pd_entry_first(pd_job_find(b.serve, 0, 7)); e; e = pd_entry_next(e))
        *largest = e->box->bytes > *largest ? e->box->bytes : *largest;
    serve_bench_fini(&b);
}

/* A bench with room for so many batches beside the slot. */
static void bench_init(struct serve_bench *b, struct serve_bench_options options, uint64_t batches)
{
    uint64_t largest, slot;
    sizes_of(&options, &largest, &slot);
    options.memory = batches * largest + slot;
    serve_bench_init(b, &options);
}

static bool is_ready(struct serve_bench *b, uint64_t step, uint32_t dp_rank)
{
    struct pd_batch_key key = serve_bench_key(b, step, 0, dp_rank);
    pthread_mutex_lock(&b->serve->lock);
    struct pd_entry *entry = pd_entry_find(pd_job_find(b->serve, 0, 7), &key);
    bool ready = entry && entry->state == PD_ENTRY_READY;
    pthread_mutex_unlock(&b->serve->lock);
    return ready;
}

static void test_highest_unread_goes_first(void **state)
{
    (void)state;
    struct serve_bench b;
    bench_init(&b, (struct serve_bench_options){.packs = 16, .dp_size = 1, .rows = 2, .accum = 1},
               2);
    const uint64_t order[] = {1, 5, 3}; /* the third takes the slot */
    for (int i = 0; i < 3; i++)
        pd_ready_batch_unref(serve_get_ok(&b, serve_bench_key(&b, order[i], 0, 0)));
    pd_ready_batch_unref(serve_get_ok(&b, serve_bench_key(&b, 0, 0, 0)));
    assert_false(is_ready(&b, 5, 0));
    assert_true(is_ready(&b, 1, 0) && is_ready(&b, 3, 0) && is_ready(&b, 0, 0));
    struct pd_ready_batch *held = serve_get_ok(&b, serve_bench_key(&b, 3, 0, 0));
    pd_ready_batch_unref(serve_get_ok(&b, serve_bench_key(&b, 2, 0, 0)));
    assert_false(is_ready(&b, 1, 0)); /* 3 is held, so 1 is the highest */
    assert_true(is_ready(&b, 3, 0) && is_ready(&b, 0, 0) && is_ready(&b, 2, 0));
    pd_ready_batch_unref(held);
    struct pd_serve_gauges gauges;
    pd_serve_gauges(b.serve, &gauges);
    assert_int_equal(gauges.evicted_total, 2);
    serve_bench_fini(&b);
}

static void test_delivered_goes_before_unread(void **state)
{
    (void)state;
    struct serve_bench b;
    bench_init(&b, (struct serve_bench_options){.packs = 16, .dp_size = 2, .rows = 1, .accum = 1},
               5);
    serve_deliver(&b, serve_bench_key(&b, 0, 0, 0));
    serve_deliver(&b, serve_bench_key(&b, 0, 0, 1)); /* step 0 is complete */
    serve_deliver(&b, serve_bench_key(&b, 1, 0, 0)); /* step 1 is not */
    pd_ready_batch_unref(serve_get_ok(&b, serve_bench_key(&b, 1, 0, 1)));
    pd_ready_batch_unref(serve_get_ok(&b, serve_bench_key(&b, 6, 0, 0)));
    /* What each further build evicts; the fourth takes the slot. */
    const struct {
        uint64_t step;
        uint32_t dp_rank;
        int build;
    } gone[] = {{0, 0, 0}, {0, 1, 1}, {1, 0, 2}, {6, 0, 4}};
    for (int i = 0; i < 5; i++) {
        pd_ready_batch_unref(serve_get_ok(&b, serve_bench_key(&b, 2 + (uint64_t)i / 2, 0, i % 2)));
        for (int k = 0; k < 4; k++)
            assert_int_equal(is_ready(&b, gone[k].step, gone[k].dp_rank), gone[k].build > i);
    }
    assert_true(is_ready(&b, 1, 1));
    serve_bench_fini(&b);
}

/* With room for all: what every rank has received goes with the next build, what one has not
 * received stays. */
static void test_received_batches_are_kept_for_a_while(void **state)
{
    (void)state;
    struct serve_bench b;
    bench_init(&b, (struct serve_bench_options){.packs = 16, .dp_size = 2, .rows = 1, .accum = 1},
               32);
    serve_deliver(&b, serve_bench_key(&b, 0, 0, 0));
    serve_deliver(&b, serve_bench_key(&b, 0, 0, 1)); /* step 0 is complete */
    serve_deliver(&b, serve_bench_key(&b, 1, 0, 0)); /* step 1 is not */
    assert_true(is_ready(&b, 0, 0) && is_ready(&b, 0, 1) && is_ready(&b, 1, 0));
    b.serve->received_keep_bytes = 0;
    pd_ready_batch_unref(serve_get_ok(&b, serve_bench_key(&b, 2, 0, 0)));
    assert_false(is_ready(&b, 0, 0) || is_ready(&b, 0, 1));
    assert_false(is_ready(&b, 1, 0)); /* its reader has it */
    assert_true(is_ready(&b, 2, 0));
    serve_bench_fini(&b);
}

/* Who reads such a batch late makes them stay for longer. */
static void test_late_reader_makes_complete_steps_stay(void **state)
{
    (void)state;
    struct serve_bench b;
    bench_init(&b, (struct serve_bench_options){.packs = 16, .dp_size = 2, .rows = 1, .accum = 1},
               32);
    b.serve->received_keep_bytes = 0;
    serve_deliver(&b, serve_bench_key(&b, 0, 0, 0));
    serve_deliver(&b, serve_bench_key(&b, 0, 0, 1));
    pd_ready_batch_unref(serve_get_ok(&b, serve_bench_key(&b, 1, 0, 0)));
    assert_false(is_ready(&b, 0, 0) || is_ready(&b, 0, 1));
    pd_ready_batch_unref(serve_get_ok(&b, serve_bench_key(&b, 0, 0, 1))); /* it is built again */
    pd_ready_batch_unref(serve_get_ok(&b, serve_bench_key(&b, 2, 0, 0)));
    assert_true(is_ready(&b, 0, 1) && is_ready(&b, 2, 0));
    serve_bench_fini(&b);
}

static void test_evicted_batch_is_the_same_again(void **state)
{
    (void)state;
    struct serve_bench b;
    bench_init(&b, (struct serve_bench_options){.packs = 16, .dp_size = 1, .rows = 2, .accum = 1},
               2);
    struct pd_ready_batch *batch = serve_get_ok(&b, serve_bench_key(&b, 4, 0, 0));
    size_t header_bytes = batch->header_bytes, payload_bytes = batch->batch.payload_bytes;
    uint8_t *header = malloc(header_bytes), *payload = malloc(payload_bytes);
    assert_true(header && payload);
    memcpy(header, batch->header, header_bytes);
    memcpy(payload, batch->payload, payload_bytes);
    pd_ready_batch_unref(batch);
    for (uint64_t step = 0; step < 4; step++)
        pd_ready_batch_unref(serve_get_ok(&b, serve_bench_key(&b, step, 0, 0)));
    assert_false(is_ready(&b, 4, 0));
    batch = serve_get_ok(&b, serve_bench_key(&b, 4, 0, 0));
    assert_int_equal(batch->header_bytes, header_bytes);
    assert_memory_equal(batch->header, header, header_bytes);
    assert_int_equal(batch->batch.payload_bytes, payload_bytes);
    assert_memory_equal(batch->payload, payload, payload_bytes);
    pd_ready_batch_unref(batch);
    free(header);
    free(payload);
    serve_bench_fini(&b);
}

/* ---- nothing waits for ever ---- */

struct reader {
    struct serve_bench *bench;
    uint32_t dp_rank;
    uint64_t steps;
    pthread_t thread;
};

static void *read_all(void *arg)
{
    struct reader *reader = arg;
    for (uint64_t step = 0; step < reader->steps; step++)
        serve_deliver(reader->bench, serve_bench_key(reader->bench, step, 0, reader->dp_rank));
    return NULL;
}

static void test_memory_for_one_batch_and_four_ranks(void **state)
{
    (void)state;
    struct serve_bench_options options = {.packs = 160, .dp_size = 4, .rows = 1, .accum = 1};
    uint64_t largest, slot;
    sizes_of(&options, &largest, &slot);
    options.memory = largest;
    struct serve_bench b;
    serve_bench_init(&b, &options);
    struct reader readers[4];
    for (uint32_t r = 0; r < 4; r++) {
        readers[r] = (struct reader){.bench = &b, .dp_rank = r, .steps = 40};
        assert_int_equal(pthread_create(&readers[r].thread, NULL, read_all, &readers[r]), 0);
    }
    for (uint32_t r = 0; r < 4; r++)
        pthread_join(readers[r].thread, NULL);
    struct pd_served_totals totals;
    pd_serve_totals(b.serve, 0, &totals);
    assert_int_equal(totals.steps_complete, 40);
    assert_true(b.serve->used_peak_bytes <= largest);
    serve_bench_fini(&b);
}

static void test_waits_for_memory_and_says_so(void **state)
{
    (void)state;
    struct serve_bench_options options = {.packs = 16, .dp_size = 2, .rows = 1, .accum = 1};
    uint64_t largest, slot;
    sizes_of(&options, &largest, &slot);
    options.memory = largest;
    struct serve_bench b;
    serve_bench_init(&b, &options);
    struct pd_ready_batch *held = serve_get_ok(&b, serve_bench_key(&b, 0, 0, 0)), *batch;
    struct serve_rank rank;
    serve_rank_init(&rank, serve_bench_key(&b, 0, 0, 1));
    assert_int_equal(serve_rank_get(&b, &rank, &batch), PD_EAGAIN);
    struct pd_wait_info info;
    do {
        pd_serve_wait_info(b.serve, &rank.waiter.key, &info);
    } while (info.reason == PD_WAIT_BUILDING); /* until it has been measured */
    assert_int_equal(info.reason, PD_WAIT_MEMORY);
    assert_true(info.since_ns > 0);
    pd_ready_batch_unref(held);
    serve_rank_await(&rank, 1);
    assert_int_equal(serve_rank_get(&b, &rank, &batch), 0);
    pd_ready_batch_unref(batch);
    serve_rank_fini(&rank);
    serve_bench_fini(&b);
}

/* A rank that holds high steps in all general memory does not keep the lowest step of another from
 * being built. */
static void test_slot_for_the_lowest_step(void **state)
{
    (void)state;
    struct serve_bench_options options = {.packs = 24, .dp_size = 2, .rows = 1, .accum = 1};
    uint64_t largest, slot;
    sizes_of(&options, &largest, &slot);
    options.memory = slot + 3 * largest;
    struct serve_bench b;
    serve_bench_init(&b, &options);
    struct pd_ready_batch *held[64], *batch;
    uint32_t count = 0;
    struct serve_rank high, low;
    serve_rank_init(&high, serve_bench_key(&b, 11, 0, 0));
    serve_rank_init(&low, serve_bench_key(&b, 1, 0, 1));
    for (; b.serve->used_bytes + largest + slot <= options.memory; count++)
        held[count] = serve_get_ok(&b, serve_bench_key(&b, 4 + count, 0, 0));
    assert_true(count >= 2);
    batch = serve_get_ok(&b, serve_bench_key(&b, 0, 0, 1)); /* in the slot */
    assert_int_equal(serve_rank_get(&b, &high, &held[count]), PD_EAGAIN);
    struct pd_ready_batch *second;
    assert_int_equal(serve_rank_get(&b, &low, &second), PD_EAGAIN);
    pd_ready_batch_unref(batch);
    serve_rank_await(&low, 1); /* the slot again: the lowest first, though it asked last */
    assert_int_equal(serve_rank_woken(&high), 0);
    assert_int_equal(serve_rank_get(&b, &low, &second), 0);
    for (uint32_t i = 0; i < count; i++)
        pd_ready_batch_unref(held[i]);
    serve_rank_await(&high, 1);
    assert_int_equal(serve_rank_get(&b, &high, &batch), 0);
    pd_ready_batch_unref(batch);
    pd_ready_batch_unref(second);
    serve_rank_fini(&high);
    serve_rank_fini(&low);
    serve_bench_fini(&b);
}

static void test_batch_larger_than_memory(void **state)
{
    (void)state;
    struct serve_bench b;
    serve_bench_init(&b, &(struct serve_bench_options){
                             .packs = 16, .dp_size = 1, .rows = 4, .accum = 1, .memory = 10000});
    struct pd_ready_batch *batch;
    struct pd_error error;
    assert_int_equal(serve_get(&b, serve_bench_key(&b, 0, 0, 0), &batch, &error), PD_ELIMIT);
    assert_string_equal(error.reason, "JOB_TOO_LARGE");
    serve_bench_fini(&b);
}

/* ---- hints ---- */

static void await_idle(struct serve_bench *b, uint64_t built)
{
    struct pd_serve_gauges gauges;
    do
        pd_serve_gauges(b->serve, &gauges);
    while (gauges.built_total < built || gauges.building > 0);
    assert_int_equal(gauges.built_total, built);
}

static void test_prefetch_uses_spare_memory_only(void **state)
{
    (void)state;
    /* One thread, so that the hints are built one after the other. */
    struct serve_bench b;
    bench_init(&b,
               (struct serve_bench_options){
                   .packs = 16, .planned = 14, .dp_size = 1, .rows = 2, .accum = 1, .threads = 1},
               2);
    for (uint64_t step = 0; step < 20; step++) { /* those far beyond the plan are not kept */
        struct pd_batch_key key = serve_bench_key(&b, step, 0, 0);
        pd_serve_prefetch(b.serve, &key);
    }
    await_idle(&b, 2);
    assert_true(is_ready(&b, 0, 0) && is_ready(&b, 1, 0));
    assert_int_equal(pd_job_find(b.serve, 0, 7)->prefetch_count, 6); /* 2 .. 7 */
    serve_deliver(&b, serve_bench_key(&b, 0, 0, 0));                 /* its memory is spare now */
    await_idle(&b, 3);
    assert_true(is_ready(&b, 1, 0) && is_ready(&b, 2, 0) && !is_ready(&b, 0, 0));
    serve_deliver(&b, serve_bench_key(&b, 6, 0, 0)); /* asked for: before the hints */
    serve_bench_fini(&b);
}

/* ---- several jobs ---- */

static void test_two_jobs_share(void **state)
{
    (void)state;
    struct serve_bench_options options = {.packs = 32, .dp_size = 1, .rows = 1, .accum = 1};
    uint64_t largest, slot;
    sizes_of(&options, &largest, &slot);
    options.memory = 2 * slot + 2 * largest;
    struct serve_bench b;
    serve_bench_init(&b, &options);
    struct pd_job_info other = b.job;
    other.job_id = 8;
    pd_serve_job_opened(b.serve, &other);
    for (uint32_t idle = 9; idle < 40; idle++) { /* jobs nobody reads take nothing */
        struct pd_job_info unread = b.job;
        unread.job_id = idle;
        pd_serve_job_opened(b.serve, &unread);
    }
    for (uint64_t step = 0; step < 32; step++) {
        struct pd_batch_key key = serve_bench_key(&b, step, 0, 0);
        serve_deliver(&b, key);
        key.job_id = 8;
        serve_deliver(&b, key);
    }
    pd_serve_job_deleted(b.serve, 0, 8);
    serve_deliver(&b, serve_bench_key(&b, 3, 0, 0));
    serve_bench_fini(&b);
}

int main(void)
{
    pd_log_setup(PD_LOG_ERROR, PD_LOG_PLAIN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_highest_unread_goes_first),
        cmocka_unit_test(test_delivered_goes_before_unread),
        cmocka_unit_test(test_received_batches_are_kept_for_a_while),
        cmocka_unit_test(test_late_reader_makes_complete_steps_stay),
        cmocka_unit_test(test_evicted_batch_is_the_same_again),
        cmocka_unit_test(test_memory_for_one_batch_and_four_ranks),
        cmocka_unit_test(test_waits_for_memory_and_says_so),
        cmocka_unit_test(test_slot_for_the_lowest_step),
        cmocka_unit_test(test_batch_larger_than_memory),
        cmocka_unit_test(test_prefetch_uses_spare_memory_only),
        cmocka_unit_test(test_two_jobs_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
