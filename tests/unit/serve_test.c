/* Serving: waiting, sharing, fencing, the end of a feed, damage, accounting. Memory has a test of
 * its own. */
#include "tests/unit/serve_bench.h"

#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- waiting ---- */

static void test_ready_after_and_before(void **state)
{
    (void)state;
    struct serve_gate gate = SERVE_GATE_INIT;
    struct serve_bench b;
    serve_bench_init(&b, &(struct serve_bench_options){.packs = 8,
                                                       .dp_size = 2,
                                                       .rows = 2,
                                                       .accum = 1,
                                                       .hooks.validate = serve_gate_validate,
                                                       .hooks.validate_ctx = &gate});
    struct serve_rank rank;
    serve_rank_init(&rank, serve_bench_key(&b, 0, 0, 1));
    struct pd_ready_batch *batch, *again;
    assert_int_equal(serve_rank_get(&b, &rank, &batch), PD_EAGAIN);
    assert_null(batch);
    serve_gate_await(&gate, 1);
    assert_int_equal(serve_rank_woken(&rank), 0);
    serve_gate_open(&gate);
    serve_rank_await(&rank, 1);
    assert_int_equal(serve_rank_get(&b, &rank, &batch), 0);
    assert_int_equal(serve_rank_get(&b, &rank, &again), 0);
    assert_ptr_equal(batch, again); /* a peer shares the memory */
    assert_string_equal(batch->validator, "gate");
    assert_true(batch->probed);
    assert_int_equal(batch->builds, 1);
    assert_int_equal(serve_rank_woken(&rank), 1);
    pd_ready_batch_ref(batch);
    pd_ready_batch_unref(batch);
    pd_ready_batch_unref(batch);
    pd_ready_batch_unref(again);
    serve_rank_fini(&rank);
    serve_bench_fini(&b);
}

static void test_waits_for_the_plan(void **state)
{
    (void)state;
    struct serve_bench b;
    serve_bench_init(&b, &(struct serve_bench_options){
                             .packs = 8, .planned = 3, .dp_size = 2, .rows = 2, .accum = 1});
    struct serve_rank ranks[2];
    struct pd_ready_batch *batch;
    for (uint32_t r = 0; r < 2; r++) {
        serve_rank_init(&ranks[r], serve_bench_key(&b, 0, 0, r));
        assert_int_equal(serve_rank_get(&b, &ranks[r], &batch), PD_EAGAIN);
    }
    serve_bench_advance(&b, 4, false);
    for (uint32_t r = 0; r < 2; r++) {
        serve_rank_await(&ranks[r], 1);
        assert_int_equal(serve_rank_get(&b, &ranks[r], &batch), 0);
        pd_ready_batch_unref(batch);
        serve_rank_fini(&ranks[r]);
    }
    serve_bench_fini(&b);
}

static void test_one_build_for_all_who_ask(void **state)
{
    (void)state;
    struct serve_gate gate = SERVE_GATE_INIT;
    struct serve_bench b;
    serve_bench_init(&b, &(struct serve_bench_options){.packs = 4,
                                                       .dp_size = 1,
                                                       .rows = 4,
                                                       .accum = 1,
                                                       .hooks.validate = serve_gate_validate,
                                                       .hooks.validate_ctx = &gate});
    struct serve_rank ranks[16];
    struct pd_ready_batch *batches[16];
    for (int i = 0; i < 16; i++) {
        serve_rank_init(&ranks[i], serve_bench_key(&b, 0, 0, 0));
        assert_int_equal(serve_rank_get(&b, &ranks[i], &batches[i]), PD_EAGAIN);
        if (i == 7)
            serve_gate_await(&gate, 1); /* the others join while it is being built */
    }
    serve_gate_open(&gate);
    for (int i = 0; i < 16; i++) {
        serve_rank_await(&ranks[i], 1);
        assert_int_equal(serve_rank_get(&b, &ranks[i], &batches[i]), 0);
        assert_ptr_equal(batches[i], batches[0]);
    }
    struct pd_serve_gauges gauges;
    pd_serve_gauges(b.serve, &gauges);
    assert_int_equal(gauges.built_total, 1);
    assert_int_equal(gauges.waiters, 0);
    for (int i = 0; i < 16; i++) {
        pd_ready_batch_unref(batches[i]);
        serve_rank_fini(&ranks[i]);
    }
    serve_bench_fini(&b);
}

static void test_cancel(void **state)
{
    (void)state;
    struct serve_bench b;
    serve_bench_init(&b, &(struct serve_bench_options){
                             .packs = 8, .planned = 1, .dp_size = 1, .rows = 2, .accum = 1});
    struct serve_rank left, right;
    struct pd_ready_batch *batch;
    serve_rank_init(&left, serve_bench_key(&b, 0, 0, 0));
    serve_rank_init(&right, serve_bench_key(&b, 0, 0, 0));
    assert_int_equal(serve_rank_get(&b, &left, &batch), PD_EAGAIN);
    assert_int_equal(serve_rank_get(&b, &right, &batch), PD_EAGAIN);
    assert_true(pd_serve_cancel(b.serve, &left.waiter));
    assert_false(pd_serve_cancel(b.serve, &left.waiter));
    serve_bench_advance(&b, 2, false);
    serve_rank_await(&right, 1);
    assert_int_equal(serve_rank_woken(&left), 0);
    assert_false(pd_serve_cancel(b.serve, &right.waiter)); /* too late: ready has run */
    assert_int_equal(serve_rank_get(&b, &left, &batch), 0);
    pd_ready_batch_unref(batch);
    serve_rank_fini(&left);
    serve_rank_fini(&right);
    serve_bench_fini(&b);
}

static void test_stop_wakes(void **state)
{
    (void)state;
    struct serve_bench b;
    serve_bench_init(&b, &(struct serve_bench_options){
                             .packs = 8, .planned = 1, .dp_size = 1, .rows = 2, .accum = 1});
    struct serve_rank rank;
    struct pd_ready_batch *batch;
    serve_rank_init(&rank, serve_bench_key(&b, 3, 0, 0));
    assert_int_equal(serve_rank_get(&b, &rank, &batch), PD_EAGAIN);
    pd_serve_stop(b.serve);
    serve_rank_await(&rank, 1);
    assert_int_equal(serve_rank_get(&b, &rank, &batch), PD_ECLOSED);
    serve_rank_fini(&rank);
    serve_bench_fini(&b);
}

/* ---- who may ask for what ---- */

static void test_refusals(void **state)
{
    (void)state;
    struct serve_bench b;
    serve_bench_init(
        &b, &(struct serve_bench_options){.packs = 8, .dp_size = 2, .rows = 2, .accum = 1});
    struct pd_ready_batch *batch;
    struct pd_error error;
    assert_int_equal(serve_get(&b, serve_bench_key(&b, 0, 0, 2), &batch, &error), PD_EMISMATCH);
    assert_string_equal(error.reason, "DP_RANK");
    assert_int_equal(serve_get(&b, serve_bench_key(&b, 0, 1, 0), &batch, &error), PD_EMISMATCH);
    assert_string_equal(error.reason, "MICRO");
    struct pd_batch_key key = serve_bench_key(&b, 0, 0, 0);
    key.job_id = 99;
    assert_int_equal(serve_get(&b, key, &batch, &error), PD_ENOTFOUND);
    b.job.lowest_step = 1;
    pd_serve_job_opened(b.serve, &b.job);
    assert_int_equal(serve_get(&b, serve_bench_key(&b, 0, 0, 0), &batch, &error), PD_ERANGE);
    assert_string_equal(error.reason, "STEP_TRIMMED");
    b.log->trimmed_packs = 5; /* trimmed since the job was opened */
    assert_int_equal(serve_get(&b, serve_bench_key(&b, 1, 0, 0), &batch, &error), PD_ERANGE);
    assert_string_equal(error.reason, "STEP_TRIMMED");
    serve_bench_fini(&b);
}

static void test_fencing(void **state)
{
    (void)state;
    struct serve_gate gate = SERVE_GATE_INIT;
    struct serve_bench b;
    serve_bench_init(&b, &(struct serve_bench_options){.packs = 8,
                                                       .planned = 4,
                                                       .dp_size = 2,
                                                       .rows = 2,
                                                       .accum = 1,
                                                       .hooks.validate = serve_gate_validate,
                                                       .hooks.validate_ctx = &gate});
    struct serve_rank building, unplanned;
    struct pd_ready_batch *batch, *held;
    serve_rank_init(&building, serve_bench_key(&b, 0, 0, 0));
    serve_rank_init(&unplanned, serve_bench_key(&b, 1, 0, 0));
    assert_int_equal(serve_rank_get(&b, &building, &batch), PD_EAGAIN);
    assert_int_equal(serve_rank_get(&b, &unplanned, &batch), PD_EAGAIN);
    serve_gate_await(&gate, 1);
    b.job.generation = 2; /* another division of the same step */
    b.job.spec.dp_size = 1;
    b.job.spec.rows = 4;
    pd_serve_job_opened(b.serve, &b.job);
    serve_rank_await(&building, 1);
    serve_rank_await(&unplanned, 1);
    assert_int_equal(serve_rank_get(&b, &building, &batch), PD_EFENCED);
    assert_int_equal(serve_rank_get(&b, &unplanned, &batch), PD_EFENCED);
    serve_gate_open(&gate);
    held = serve_get_ok(&b, serve_bench_key(&b, 0, 0, 0));
    assert_int_equal(held->batch.rows, 4);
    b.job.generation = 3;
    pd_serve_job_opened(b.serve, &b.job);
    assert_int_equal(held->batch.arrays[0].size_bytes,
                     4 * 256 * 4); /* a reader keeps what it has */
    bool complete;
    pd_serve_delivered(b.serve, held, &complete); /* a late delivery of a fenced world */
    assert_false(complete);
    struct pd_served_totals totals;
    pd_serve_totals(b.serve, 0, &totals);
    assert_int_equal(totals.batches, 0);
    pd_ready_batch_unref(held);
    serve_rank_fini(&building);
    serve_rank_fini(&unplanned);
    serve_bench_fini(&b);
}

static void test_deleted_job(void **state)
{
    (void)state;
    struct serve_bench b;
    serve_bench_init(&b, &(struct serve_bench_options){
                             .packs = 8, .planned = 2, .dp_size = 2, .rows = 2, .accum = 1});
    struct serve_rank rank;
    struct pd_ready_batch *batch;
    serve_rank_init(&rank, serve_bench_key(&b, 0, 0, 0));
    assert_int_equal(serve_rank_get(&b, &rank, &batch), PD_EAGAIN);
    pd_serve_job_deleted(b.serve, 0, b.job.job_id);
    serve_rank_await(&rank, 1);
    assert_int_equal(serve_rank_get(&b, &rank, &batch), PD_ENOTFOUND);
    serve_rank_fini(&rank);
    serve_bench_fini(&b);
}

/* ---- the end ---- */

static void check_end(struct serve_bench *b, uint64_t steps)
{
    for (uint32_t r = 0; r < b->job.spec.dp_size; r++) {
        for (uint64_t beyond = 0; beyond < 3; beyond++) {
            struct serve_rank rank;
            struct pd_ready_batch *batch;
            struct pd_wait_info info;
            struct pd_error error;
            uint64_t last_step = 12345;
            serve_rank_init(&rank, serve_bench_key(b, steps + beyond, 0, r));
            assert_int_equal(
                pd_serve_get(b->serve, &rank.waiter, &batch, &info, &last_step, &error), PD_EEND);
            assert_int_equal(last_step, steps);
            serve_rank_fini(&rank);
        }
    }
}

static void test_last_step(void **state)
{
    (void)state;
    for (int drop = 0; drop < 2; drop++) {
        struct serve_bench b;
        serve_bench_init(&b, &(struct serve_bench_options){.packs = 11,
                                                           .ended = false,
                                                           .dp_size = 2,
                                                           .rows = 2,
                                                           .accum = 1,
                                                           .last_step = drop ? PD_LAST_STEP_DROP
                                                                             : PD_LAST_STEP_PAD});
        struct serve_rank waits[2];
        struct pd_ready_batch *batch;
        for (uint32_t r = 0; r < 2; r++) {
            serve_rank_init(&waits[r], serve_bench_key(&b, 2, 0, r));
            assert_int_equal(serve_rank_get(&b, &waits[r], &batch), PD_EAGAIN);
        }
        serve_bench_advance(&b, 11, true); /* 2 steps of 4 and 3 packs */
        for (uint32_t r = 0; r < 2; r++) {
            serve_rank_await(&waits[r], 1);
            assert_int_equal(serve_rank_get(&b, &waits[r], &batch), drop ? PD_EEND : 0);
            if (!drop) {
                assert_int_equal(batch->batch.row_padding_tokens, r == 1 ? 256 : 0);
                pd_ready_batch_unref(batch);
            }
            serve_rank_fini(&waits[r]);
        }
        check_end(&b, drop ? 2 : 3);
        serve_bench_fini(&b);
    }
}

static void test_empty_feed(void **state)
{
    (void)state;
    struct serve_bench b;
    serve_bench_init(&b, &(struct serve_bench_options){
                             .packs = 0, .ended = true, .dp_size = 2, .rows = 2, .accum = 1});
    check_end(&b, 0);
    serve_bench_fini(&b);
}

/* A job that begins inside the feed counts its steps from its first pack. */
static void test_first_pack(void **state)
{
    (void)state;
    struct serve_bench b;
    serve_bench_init(&b, &(struct serve_bench_options){
                             .packs = 11, .ended = true, .dp_size = 1, .rows = 2, .accum = 2});
    b.job.first_pack = 6;
    b.job.generation = 2;
    pd_serve_job_opened(b.serve, &b.job);
    struct pd_job_steps steps;
    struct pd_step_place place;
    struct pd_error error;
    assert_int_equal(pd_serve_step_place(b.serve, 0, 7, 1, &steps, &place, &error), 0);
    assert_int_equal(place.first_pack, 10);
    assert_int_equal(place.pack_count, 1);
    assert_int_equal(pd_serve_step_place(b.serve, 0, 7, 2, &steps, &place, &error), PD_ERANGE);
    assert_int_equal(pd_serve_step_place(b.serve, 0, 8, 2, &steps, &place, &error), PD_ENOTFOUND);
    check_end(&b, 2);
    serve_bench_fini(&b);
}

/* ---- damage ---- */

struct corruption {
    uint64_t step;
    atomic_int times;
};

static bool corrupt_positions(void *ctx, const struct pd_batch_key *key, struct pd_batch *batch,
                              uint8_t *payload)
{
    struct corruption *corruption = ctx;
    if (key->step != corruption->step || atomic_fetch_sub(&corruption->times, 1) <= 0)
        return false;
    const struct pd_array *array = pd_batch_find(batch, "positions");
    ((int32_t *)(void *)(payload + array->offset_bytes))[3] = 99;
    return false;
}

static void test_violation_once(void **state)
{
    (void)state;
    struct corruption corruption = {.step = 1, .times = 1};
    struct serve_bench b;
    serve_bench_init(&b, &(struct serve_bench_options){.packs = 8,
                                                       .dp_size = 1,
                                                       .rows = 2,
                                                       .accum = 1,
                                                       .hooks.corrupt = corrupt_positions,
                                                       .hooks.corrupt_ctx = &corruption});
    struct pd_ready_batch *batch = serve_get_ok(&b, serve_bench_key(&b, 1, 0, 0));
    assert_int_equal(batch->builds, 2);
    const struct pd_array *array = pd_batch_find(&batch->batch, "positions");
    assert_int_equal(((int32_t *)(void *)(batch->payload + array->offset_bytes))[3], 3);
    pd_ready_batch_unref(batch);
    struct pd_serve_gauges gauges;
    pd_serve_gauges(b.serve, &gauges);
    assert_int_equal(gauges.rebuilt_total, 1);
    char repro[PD_REPRO_PATH_MAX];
    struct pd_error error;
    pd_serve_repro(b.serve, repro);
    assert_string_equal(repro, "");
    assert_false(pd_serve_halted(b.serve, 0, &error));
    assert_int_equal(gauges.violations_total, 0);
    serve_bench_fini(&b);
}

static void name_repro(void *ctx, const struct pd_assemble_order *order,
                       const struct pd_check_finding *finding, char *path, size_t size)
{
    atomic_fetch_add((atomic_int *)ctx, 1);
    snprintf(path, size, "%s-%llu", pd_check_finding_name(finding),
             (unsigned long long)order->key.step);
}

static void test_violation_halts(void **state)
{
    (void)state;
    atomic_int repros = 0;
    struct corruption corruption = {.step = 1, .times = 1000};
    struct serve_bench b;
    serve_bench_init(&b, &(struct serve_bench_options){.packs = 8,
                                                       .planned = 6,
                                                       .dp_size = 1,
                                                       .rows = 2,
                                                       .accum = 1,
                                                       .hooks.corrupt = corrupt_positions,
                                                       .hooks.corrupt_ctx = &corruption,
                                                       .hooks.repro = name_repro,
                                                       .hooks.repro_ctx = &repros});
    struct pd_ready_batch *batch = serve_get_ok(&b, serve_bench_key(&b, 0, 0, 0));
    struct serve_rank waits;
    struct pd_ready_batch *none;
    serve_rank_init(&waits, serve_bench_key(&b, 3, 0, 0));
    assert_int_equal(serve_rank_get(&b, &waits, &none), PD_EAGAIN);
    struct pd_error error;
    assert_int_equal(serve_get(&b, serve_bench_key(&b, 1, 0, 0), &none, &error), PD_ECORRUPT);
    assert_non_null(strstr(error.text, "positions"));
    serve_rank_await(&waits, 1); /* everyone is told */
    assert_int_equal(serve_rank_get(&b, &waits, &none), PD_ECORRUPT);
    assert_int_equal(serve_get(&b, serve_bench_key(&b, 0, 0, 0), &none, &error), PD_ECORRUPT);
    assert_string_equal(error.reason, "HALTED");
    assert_non_null(strstr(error.text, "positions"));
    struct pd_wait_info info;
    struct pd_batch_key key = serve_bench_key(&b, 2, 0, 0);
    pd_serve_wait_info(b.serve, &key, &info);
    assert_int_equal(info.reason, PD_WAIT_STOPPED);
    struct pd_serve_gauges gauges;
    pd_serve_gauges(b.serve, &gauges);
    assert_int_equal(gauges.violations_total, 1);
    char repro[PD_REPRO_PATH_MAX];
    pd_serve_repro(b.serve, repro);
    assert_string_equal(repro, "positions-1");
    assert_int_equal(atomic_load(&repros), 1);
    assert_true(pd_serve_halted(b.serve, 0, &error));
    assert_string_equal(error.reason, "HALTED");
    assert_int_equal(gauges.halted_feeds, 1);
    assert_int_equal(gauges.ready_batches, 0);
    pd_ready_batch_unref(batch);
    serve_rank_fini(&waits);
    serve_bench_fini(&b);
}

static int refuse_step_2(void *ctx, struct pd_ready_batch *batch, struct pd_check_finding *finding)
{
    atomic_int *calls = ctx;
    if (batch->key.step != 2)
        return 0;
    atomic_fetch_add(calls, 1);
    finding->check = PD_CHECK_CU_SEQLENS;
    strcpy(finding->text, "a foreign key shows");
    return PD_ECORRUPT;
}

static void test_validator_halts(void **state)
{
    (void)state;
    atomic_int calls = 0;
    struct serve_bench b;
    serve_bench_init(&b, &(struct serve_bench_options){.packs = 8,
                                                       .dp_size = 1,
                                                       .rows = 2,
                                                       .accum = 1,
                                                       .hooks.validate = refuse_step_2,
                                                       .hooks.validate_ctx = &calls});
    serve_deliver(&b, serve_bench_key(&b, 1, 0, 0));
    struct pd_ready_batch *batch;
    struct pd_error error;
    assert_int_equal(serve_get(&b, serve_bench_key(&b, 2, 0, 0), &batch, &error), PD_ECORRUPT);
    assert_non_null(strstr(error.text, "cu_seqlens"));
    assert_int_equal(calls, 2);
    serve_bench_fini(&b);
}

static void test_damaged_sample(void **state)
{
    (void)state;
    struct serve_bench b;
    serve_bench_init(
        &b, &(struct serve_bench_options){.packs = 8, .dp_size = 1, .rows = 2, .accum = 1});
    const struct pd_segment *segment = &b.log->packs[3].segments[0];
    b.log->damaged_stream = segment->stream;
    b.log->damaged_seq = segment->seq;
    b.log->damaged_reads = 1000;
    struct pd_ready_batch *batch;
    struct pd_error error;
    char name[64];
    snprintf(name, sizeof name, "seq %llu of stream stream-%u", (unsigned long long)segment->seq,
             segment->stream);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(serve_get(&b, serve_bench_key(&b, 1, 0, 0), &batch, &error), PD_ECORRUPT);
        assert_string_equal(error.reason, "CHECKSUM");
        assert_non_null(strstr(error.text, name));
    }
    serve_deliver(&b, serve_bench_key(&b, 0, 0, 0)); /* the others are served */
    serve_deliver(&b, serve_bench_key(&b, 2, 0, 0));
    serve_bench_fini(&b);
}

/* ---- accounting ---- */

static void test_delivered_totals(void **state)
{
    (void)state;
    struct serve_bench b;
    serve_bench_init(&b, &(struct serve_bench_options){
                             .packs = 11, .ended = true, .dp_size = 2, .rows = 1, .accum = 2});
    uint64_t completes = 0;
    for (uint64_t step = 0; step < 3; step++)
        for (uint32_t i = 0; i < 8; i++) /* each batch twice: two peers */
            completes += serve_deliver(&b, serve_bench_key(&b, step, i / 4, i / 2 % 2));
    assert_int_equal(completes, 3);
    struct pd_served_totals totals;
    pd_serve_totals(b.serve, 0, &totals);
    uint64_t real = 0, segments = 0, full = 0;
    for (uint32_t p = 0; p < b.log->pack_count; p++) {
        for (uint32_t s = 0; s < b.log->packs[p].segment_count; s++)
            real += b.log->packs[p].segments[s].length_tokens;
        segments += b.log->packs[p].segment_count;
        full = p == 7 ? real : full;
    }
    assert_int_equal(totals.batches, 12);
    assert_int_equal(totals.rereads, 12);
    assert_int_equal(totals.steps_complete, 3);
    assert_int_equal(totals.real_tokens, real);
    assert_int_equal(totals.segments, segments);
    assert_int_equal(totals.samples, segments);
    assert_int_equal(totals.row_padding_tokens, 256);
    assert_int_equal(totals.real_tokens + totals.gap_tokens + totals.tail_tokens +
                         totals.row_padding_tokens,
                     12 * 256);
    assert_int_equal(totals.full_step_positions, 8 * 256);
    assert_int_equal(totals.full_step_real_tokens, full);
    b.job.generation = 2; /* a new world counts anew */
    pd_serve_job_opened(b.serve, &b.job);
    serve_deliver(&b, serve_bench_key(&b, 0, 0, 0));
    pd_serve_totals(b.serve, 0, &totals);
    assert_int_equal(totals.batches, 13);
    serve_bench_fini(&b);
}

/* A job's own view: totals across generations, its ranks in the present one. */
static void test_job_view(void **state)
{
    (void)state;
    struct serve_bench b;
    struct pd_job_view view;
    struct pd_job_info info;
    struct pd_error error;
    serve_bench_init(&b, &(struct serve_bench_options){
                             .packs = 16, .planned = 8, .dp_size = 2, .rows = 1, .accum = 2});
    assert_int_equal(pd_serve_job_named(b.serve, 0, b.job.spec.name, &info, &error), 0);
    assert_int_equal(info.job_id, b.job.job_id);
    assert_int_equal(pd_serve_job_named(b.serve, 0, "nobody", &info, &error), PD_ENOTFOUND);
    assert_string_equal(error.reason, "UNKNOWN_JOB");
    struct pd_batch_key one = serve_bench_key(&b, 0, 0, 1);
    pd_serve_rank_opened(b.serve, &one, "host-1");
    pd_serve_rank_calls(b.serve, &one, 1);
    pd_serve_rank_calls(b.serve, &one, 1);
    pd_serve_rank_calls(b.serve, &one, -1);
    serve_deliver(&b, serve_bench_key(&b, 0, 0, 1));
    assert_int_equal(pd_serve_job_view(b.serve, 0, b.job.job_id, &view), 0);
    assert_int_equal(view.rank_count, 1);
    assert_int_equal(view.ranks[0].dp_rank, 1);
    assert_int_equal(view.ranks[0].calls, 1);
    assert_int_equal(pd_serve_job_calls(b.serve, 0, b.job.job_id), 1);
    assert_int_equal(view.ranks[0].delivered, 0); /* one of its two batches */
    assert_string_equal(view.ranks[0].client, "host-1");
    assert_false(view.ranks[0].waiting);
    assert_int_equal(view.totals.batches, 1);
    free(view.ranks);
    serve_deliver(&b, serve_bench_key(&b, 0, 1, 1)); /* rank 0 has nothing yet */
    struct serve_rank waits;
    struct pd_ready_batch *batch;
    serve_rank_init(&waits, serve_bench_key(&b, 2, 1, 1));
    assert_int_equal(serve_rank_get(&b, &waits, &batch), PD_EAGAIN);
    assert_int_equal(pd_serve_job_view(b.serve, 0, b.job.job_id, &view), 0);
    assert_int_equal(view.ranks[0].delivered, 1);
    assert_true(view.ranks[0].waiting);
    assert_int_equal(view.ranks[0].wait.step, 2);
    assert_int_equal(view.ranks[0].wait_micro, 1);
    assert_int_equal(view.ready_batches, 2);
    assert_true(view.totals.bytes > 2 * 256 * 4);
    free(view.ranks);
    assert_true(pd_serve_cancel(b.serve, &waits.waiter));
    serve_rank_fini(&waits);
    b.job.generation++;
    b.job.lowest_step = 1;
    pd_serve_job_opened(b.serve, &b.job);
    pd_serve_rank_calls(b.serve, &one, -1); /* of the old world: nobody's */
    assert_int_equal(pd_serve_job_calls(b.serve, 0, b.job.job_id), 0);
    assert_int_equal(pd_serve_job_view(b.serve, 0, b.job.job_id, &view), 0);
    assert_int_equal(view.rank_count, 0);
    assert_int_equal(view.ready_batches, 0);
    assert_int_equal(view.totals.batches, 2);
    assert_int_equal(view.lowest_step, 1);
    free(view.ranks);
    /* a trimmed step names the lowest */
    struct pd_waiter waiter = {.key = serve_bench_key(&b, 0, 0, 1)};
    struct pd_wait_info wait;
    uint64_t bound = 0;
    waiter.key.generation = b.job.generation;
    assert_int_equal(pd_serve_get(b.serve, &waiter, &batch, &wait, &bound, &error), PD_ERANGE);
    assert_string_equal(error.reason, "STEP_TRIMMED");
    assert_int_equal(bound, 1);
    serve_bench_fini(&b);
}

static void test_totals_of_a_step_are_computed_once(void **state)
{
    (void)state;
    struct serve_bench b;
    serve_bench_init(&b, &(struct serve_bench_options){
                             .packs = 64, .dp_size = 8, .rows = 2, .accum = 2, .threads = 4});
    struct serve_rank ranks[16];
    struct pd_ready_batch *batch;
    for (uint32_t i = 0; i < 16; i++) {
        serve_rank_init(&ranks[i], serve_bench_key(&b, 1, i / 8, i % 8));
        assert_int_equal(serve_rank_get(&b, &ranks[i], &batch), PD_EAGAIN);
    }
    for (uint32_t i = 0; i < 16; i++) {
        serve_rank_await(&ranks[i], 1);
        assert_int_equal(serve_rank_get(&b, &ranks[i], &batch), 0);
        pd_ready_batch_unref(batch);
        serve_rank_fini(&ranks[i]);
    }
    /* The step once, and each batch its rows; the one that read the step has them. */
    assert_int_equal(b.log->pack_reads, 32 + 32 - 2);
    serve_bench_fini(&b);
}

/* ---- reasons ---- */

static enum pd_wait_reason reason_of(struct serve_bench *b, uint64_t step,
                                     struct pd_wait_info *info)
{
    struct pd_batch_key key = serve_bench_key(b, step, 0, 0);
    pd_serve_wait_info(b->serve, &key, info);
    return info->reason;
}

static void test_wait_reasons(void **state)
{
    (void)state;
    struct serve_bench b;
    struct pd_wait_info info;
    serve_bench_init(&b, &(struct serve_bench_options){
                             .packs = 40, .planned = 5, .dp_size = 2, .rows = 2, .accum = 1});
    struct pd_feed_progress *p = &b.progress;
    p->waiting = true;
    p->waiting_since_ns = 42;
    p->want.samples_needed = 17;
    strcpy(p->want_streams, "a,b");
    serve_bench_advance(&b, 5, false);
    assert_int_equal(reason_of(&b, 2, &info), PD_WAIT_SAMPLES);
    assert_int_equal(info.samples_needed, 17);
    assert_string_equal(info.streams, "a,b");
    assert_int_equal(info.packs_missing, 7);
    assert_int_equal(info.since_ns, 42);
    p->streams_open = 0;
    p->streams_ended = 3;
    serve_bench_advance(&b, 5, false);
    assert_int_equal(reason_of(&b, 1, &info), PD_WAIT_ALL_STREAMS_ENDED);
    assert_int_equal(info.packs_missing, 3);
    p->streams_ended = 0;
    serve_bench_advance(&b, 5, false);
    assert_int_equal(reason_of(&b, 1, &info), PD_WAIT_STREAM);
    p->streams_open = 1;
    p->want_unseen = true;
    serve_bench_advance(&b, 5, false);
    assert_int_equal(reason_of(&b, 1, &info), PD_WAIT_STREAM);
    p->want_unseen = false;
    p->log_full = true;
    serve_bench_advance(&b, 5, false);
    assert_int_equal(reason_of(&b, 1, &info), PD_WAIT_LOG_FULL);
    p->log_full = false;
    b.feed.rules.lane_count = 2;
    strcpy(p->want_source, "web");
    serve_bench_advance(&b, 5, false);
    assert_int_equal(reason_of(&b, 1, &info), PD_WAIT_LANE);
    assert_string_equal(info.source, "web");
    pd_serve_feed_wait(b.serve, 0, &info);
    assert_int_equal(info.reason, PD_WAIT_LANE);
    p->waiting = false;
    serve_bench_advance(&b, 20, false); /* 5 steps */
    assert_int_equal(reason_of(&b, 5, &info), PD_WAIT_PLAN);
    p->at_horizon = true;
    serve_bench_advance(&b, 20, false);
    assert_int_equal(reason_of(&b, 5, &info), PD_WAIT_HORIZON);
    assert_string_equal(info.streams, "");
    p->end_declared = true; /* the end makes no pack beyond the horizon */
    serve_bench_advance(&b, 20, false);
    assert_int_equal(reason_of(&b, 5, &info), PD_WAIT_HORIZON);
    assert_int_equal(reason_of(&b, 0, &info), PD_WAIT_BUILDING);
    serve_deliver(&b, serve_bench_key(&b, 0, 0, 0));
    assert_int_equal(reason_of(&b, 0, &info), PD_WAIT_NONE);
    p->stopped = true;
    serve_bench_advance(&b, 20, false);
    assert_int_equal(reason_of(&b, 5, &info), PD_WAIT_STOPPED);
    assert_int_equal(reason_of(&b, 0, &info), PD_WAIT_NONE); /* what is planned is served */
    strcpy(p->stop_reason, "DIVERGED");
    serve_bench_advance(&b, 20, false);
    assert_int_equal(reason_of(&b, 5, &info), PD_WAIT_DIVERGED);
    p->stopped = false;
    serve_bench_advance(&b, 20, true);
    assert_int_equal(reason_of(&b, 5, &info), PD_WAIT_NONE);
    serve_bench_fini(&b);
}

int main(void)
{
    pd_log_setup(PD_LOG_ERROR, PD_LOG_PLAIN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ready_after_and_before),
        cmocka_unit_test(test_waits_for_the_plan),
        cmocka_unit_test(test_one_build_for_all_who_ask),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_stop_wakes),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_fencing),
        cmocka_unit_test(test_deleted_job),
        cmocka_unit_test(test_last_step),
        cmocka_unit_test(test_empty_feed),
        cmocka_unit_test(test_first_pack),
        cmocka_unit_test(test_violation_once),
        cmocka_unit_test(test_violation_halts),
        cmocka_unit_test(test_validator_halts),
        cmocka_unit_test(test_damaged_sample),
        cmocka_unit_test(test_delivered_totals),
        cmocka_unit_test(test_job_view),
        cmocka_unit_test(test_totals_of_a_step_are_computed_once),
        cmocka_unit_test(test_wait_reasons),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
