/* Assembling from a made-up log: totals, conservation, the same bytes again, damage and trimmed
 * steps. */
#include "server/assemble.h"

#include "packer/layout.h"
#include "proto/packd.pb-c.h"
#include "tests/unit/serve_log.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

struct bench {
    struct pd_feed_config feed;
    struct pd_job_spec spec;
    struct pd_log *log;
    struct pd_assembler *assembler;
};

static void bench_init(struct bench *b, const struct serve_log_options *options)
{
    memset(b, 0, sizeof *b);
    strcpy(b->feed.name, "default");
    b->feed.layout = (struct pd_layout_rules){.seq_len = options->seq_len,
                                              .seg_align = options->seg_align,
                                              .total_align = options->seg_align,
                                              .pad_segment = 64,
                                              .pad_id = 0,
                                              .cost = {24576, 1}};
    b->spec = (struct pd_job_spec){
        .name = "train", .step_packs = 12, .dp_size = 2, .rows = 3, .accum = 2};
    b->log = serve_log_new(options);
    struct pd_error error;
    assert_int_equal(pd_assembler_new(b->log, &b->assembler, &error), 0);
}

static void bench_fini(struct bench *b)
{
    pd_assembler_free(b->assembler);
    serve_log_free(b->log);
}

static struct pd_assemble_order order_of(const struct bench *b, uint64_t step, uint32_t micro,
                                         uint32_t dp_rank)
{
    uint32_t first = (uint32_t)step * b->spec.step_packs, left = b->log->pack_count - first;
    return (struct pd_assemble_order){
        .feed = &b->feed,
        .spec = &b->spec,
        .key = {.generation = 1, .step = step, .micro = micro, .dp_rank = dp_rank},
        .steps = {.config = &b->feed, .step_packs = b->spec.step_packs},
        .place = {.first_pack = first,
                  .pack_count = left < b->spec.step_packs ? left : b->spec.step_packs,
                  .part_first_pack = first,
                  .part_pack_count = left < b->spec.step_packs ? left : b->spec.step_packs},
    };
}

/* Builds one batch from nothing; PD_E*. */
static int make(struct bench *b, const struct pd_assemble_order *order,
                struct pd_ready_batch *ready, struct pd_check_finding *finding,
                struct pd_error *error)
{
    struct pd_step_facts facts;
    uint64_t bytes;
    memset(ready, 0, sizeof *ready);
    memset(error, 0, sizeof *error);
    assert_int_equal(pd_assembler_begin(b->assembler, error), 0);
    int rc = pd_assembler_step(b->assembler, order, &facts, error);
    if (rc == 0)
        rc = pd_assembler_measure(b->assembler, order, &facts, &bytes, error);
    if (rc == 0)
        rc = pd_assembler_build(b->assembler, ready, finding, error);
    pd_assembler_end(b->assembler);
    if (rc == 0)
        assert_int_equal(bytes, ready->batch.payload_bytes + ready->header_bytes);
    return rc;
}

static void make_ok(struct bench *b, const struct pd_assemble_order *order,
                    struct pd_ready_batch *ready)
{
    struct pd_check_finding finding;
    struct pd_error error;
    int rc = make(b, order, ready, &finding, &error);
    if (rc != 0)
        fail_msg("%s: %s", error.reason, error.text);
}

static void let_go(struct pd_ready_batch *ready)
{
    pd_ready_batch_clear(ready);
}

static void totals_add(Packd__V1__Totals *sum, const Packd__V1__Totals *one, double *weight,
                       int64_t *loss)
{
    sum->real_tokens += one->real_tokens;
    sum->tail_padding += one->tail_padding;
    sum->gap += one->gap;
    sum->row_padding += one->row_padding;
    sum->samples += one->samples;
    sum->segments += one->segments;
    sum->attention_cost += one->attention_cost;
    *loss += one->loss[0]->count;
    *weight += one->loss[0]->weight;
}

static void totals_equal(const Packd__V1__Totals *sum, double weight, int64_t loss,
                         const Packd__V1__Totals *step)
{
    assert_int_equal(sum->real_tokens, step->real_tokens);
    assert_int_equal(sum->tail_padding, step->tail_padding);
    assert_int_equal(sum->gap, step->gap);
    assert_int_equal(sum->row_padding, step->row_padding);
    assert_int_equal(sum->samples, step->samples);
    assert_int_equal(sum->segments, step->segments);
    assert_int_equal(sum->attention_cost, step->attention_cost);
    assert_int_equal(loss, step->loss[0]->count);
    assert_true(fabs(weight - step->loss[0]->weight) <= 1e-9 * fabs(weight));
}

/* Every batch of a step: its totals add up to the step's, which every batch states alike; positions
 * are all accounted for. */
static uint64_t step_check(struct bench *b, uint64_t step)
{
    Packd__V1__Totals sum = PACKD__V1__TOTALS__INIT;
    double weight = 0;
    int64_t loss = 0;
    uint64_t positions = 0;
    Packd__V1__BatchHeader *last = NULL;
    for (uint32_t micro = 0; micro < b->spec.accum; micro++) {
        for (uint32_t rank = 0; rank < b->spec.dp_size; rank++) {
            struct pd_assemble_order order = order_of(b, step, micro, rank);
            struct pd_ready_batch ready;
            make_ok(b, &order, &ready);
            Packd__V1__BatchHeader *m =
                packd__v1__batch_header__unpack(NULL, ready.header_bytes, ready.header);
            assert_non_null(m);
            totals_add(&sum, m->batch, &weight, &loss);
            positions += (uint64_t)m->rows * m->width;
            for (uint32_t i = 0; i < m->rows; i++) {
                uint64_t entry = ((uint64_t)micro * b->spec.dp_size + rank) * b->spec.rows + i;
                bool there = entry < order.place.pack_count;
                int64_t want = there ? (int64_t)(order.place.first_pack + entry) : -1;
                assert_int_equal(m->packs[i], want);
            }
            if (last)
                packd__v1__batch_header__free_unpacked(last, NULL);
            last = m;
            let_go(&ready);
        }
    }
    totals_equal(&sum, weight, loss, last->step_totals);
    assert_int_equal(positions, sum.real_tokens + sum.tail_padding + sum.gap + sum.row_padding);
    packd__v1__batch_header__free_unpacked(last, NULL);
    return sum.samples;
}

static void test_step_totals_are_sums(void **state)
{
    (void)state;
    uint64_t seed = (uint64_t)time(NULL);
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint32_t variant = 0; variant < 24; variant++) {
        struct serve_log_options options = {.seed = seed + variant,
                                            .packs = 31, /* two whole steps and one of 7 packs */
                                            .seq_len = 256,
                                            .seg_align = variant % 2 ? 8 : 1,
                                            .shortest = 1,
                                            .longest = 120,
                                            .streams = 3,
                                            .labels = variant % 4 >= 2,
                                            .masks = variant % 8 >= 4,
                                            .keys = true,
                                            .weights = true};
        struct bench b;
        bench_init(&b, &options);
        b.feed.layout.width = (enum pd_width)(variant % 3);
        b.feed.layout.loss = variant % 5 == 0 ? PD_LOSS_SAMPLE : PD_LOSS_TOKEN;
        b.feed.layout.labels = variant % 7 < 3 ? PD_LABELS_SHIFTED : PD_LABELS_UNSHIFTED;
        uint64_t samples = step_check(&b, 0) + step_check(&b, 1) + step_check(&b, 2), planned = 0;
        for (uint32_t i = 0; i < b.log->pack_count; i++)
            planned += b.log->packs[i].segment_count;
        assert_int_equal(samples, planned);
        bench_fini(&b);
    }
}

/* Another division of the same step among ranks leaves its totals as they were (with widths that do
 * not depend on it). */
static void test_totals_do_not_depend_on_the_world(void **state)
{
    (void)state;
    struct serve_log_options options = {.seed = 5,
                                        .packs = 24,
                                        .seq_len = 128,
                                        .seg_align = 1,
                                        .shortest = 3,
                                        .longest = 90,
                                        .streams = 2,
                                        .weights = true};
    struct bench b;
    bench_init(&b, &options);
    const uint32_t worlds[][3] = {{2, 3, 2}, {1, 12, 1}, {12, 1, 1}, {3, 1, 4}};
    uint8_t *first = NULL;
    size_t first_size = 0;
    for (size_t w = 0; w < 4; w++) {
        b.spec.dp_size = worlds[w][0];
        b.spec.rows = worlds[w][1];
        b.spec.accum = worlds[w][2];
        struct pd_assemble_order order = order_of(&b, 1, 0, 0);
        struct pd_ready_batch ready;
        make_ok(&b, &order, &ready);
        Packd__V1__BatchHeader *m =
            packd__v1__batch_header__unpack(NULL, ready.header_bytes, ready.header);
        assert_non_null(m);
        size_t size = packd__v1__totals__get_packed_size(m->step_totals);
        uint8_t *bytes = malloc(size);
        assert_non_null(bytes);
        packd__v1__totals__pack(m->step_totals, bytes);
        if (first) {
            assert_int_equal(size, first_size);
            assert_memory_equal(bytes, first, size);
            free(bytes);
        } else {
            first = bytes;
            first_size = size;
        }
        packd__v1__batch_header__free_unpacked(m, NULL);
        let_go(&ready);
    }
    free(first);
    bench_fini(&b);
}

static void test_rebuilt_batches_are_the_same_bytes(void **state)
{
    (void)state;
    struct serve_log_options options = {.seed = 9,
                                        .packs = 12,
                                        .seq_len = 256,
                                        .seg_align = 4,
                                        .shortest = 2,
                                        .longest = 99,
                                        .streams = 2,
                                        .labels = true,
                                        .masks = true,
                                        .keys = true};
    struct bench b;
    bench_init(&b, &options);
    struct pd_ready_batch first, other, again;
    struct pd_assemble_order order = order_of(&b, 0, 1, 1), another = order_of(&b, 0, 0, 0);
    make_ok(&b, &order, &first);
    make_ok(&b, &another, &other);
    make_ok(&b, &order, &again);
    assert_int_equal(first.header_bytes, again.header_bytes);
    assert_memory_equal(first.header, again.header, first.header_bytes);
    assert_int_equal(first.batch.payload_bytes, again.batch.payload_bytes);
    assert_memory_equal(first.payload, again.payload, first.batch.payload_bytes);
    let_go(&first);
    let_go(&other);
    let_go(&again);
    bench_fini(&b);
}

static void test_damaged_sample_is_named(void **state)
{
    (void)state;
    struct serve_log_options options = {.seed = 9,
                                        .packs = 12,
                                        .seq_len = 256,
                                        .seg_align = 1,
                                        .shortest = 2,
                                        .longest = 99,
                                        .streams = 2};
    struct bench b;
    bench_init(&b, &options);
    const struct pd_segment *segment = &b.log->packs[4].segments[1];
    b.log->damaged_stream = segment->stream;
    b.log->damaged_seq = segment->seq;
    b.log->damaged_reads = 1;
    struct pd_ready_batch ready;
    struct pd_check_finding finding;
    struct pd_error error;
    struct pd_assemble_order order = order_of(&b, 0, 0, 1); /* packs 3, 4, 5 */
    assert_int_equal(make(&b, &order, &ready, &finding, &error), PD_ECORRUPT);
    char seq[32];
    snprintf(seq, sizeof seq, "seq %llu ", (unsigned long long)segment->seq);
    assert_non_null(strstr(error.text, seq));
    assert_int_equal(finding.text[0], 0);
    make_ok(&b, &order, &ready); /* the damage is gone */
    let_go(&ready);
    bench_fini(&b);
}

static bool flip_segment_id(void *ctx, const struct pd_batch_key *key, struct pd_batch *batch,
                            uint8_t *payload)
{
    (void)ctx;
    (void)key;
    const struct pd_array *array = pd_batch_find(batch, "segment_ids");
    ((int32_t *)(void *)(payload + array->offset_bytes))[7] += 1;
    return false;
}

static void test_violation_is_found(void **state)
{
    (void)state;
    struct serve_log_options options = {.seed = 9,
                                        .packs = 12,
                                        .seq_len = 256,
                                        .seg_align = 1,
                                        .shortest = 20,
                                        .longest = 99,
                                        .streams = 2};
    struct bench b;
    bench_init(&b, &options);
    pd_assembler_set_corruption(b.assembler, flip_segment_id, NULL);
    struct pd_ready_batch ready;
    struct pd_check_finding finding;
    struct pd_error error;
    struct pd_assemble_order order = order_of(&b, 0, 0, 1);
    assert_int_equal(make(&b, &order, &ready, &finding, &error), PD_ECORRUPT);
    assert_string_equal(error.reason, "VIOLATION");
    assert_int_equal(finding.check, PD_CHECK_SEGMENT_IDS);
    assert_non_null(strstr(error.text, "segment_ids"));
    assert_null(ready.payload);
    bench_fini(&b);
}

static bool flip_token(void *ctx, const struct pd_batch_key *key, struct pd_batch *batch,
                       uint8_t *payload)
{
    (void)key;
    const struct pd_array *array = pd_batch_find(batch, "tokens");
    ((int32_t *)(void *)(payload + array->offset_bytes))[*(const uint32_t *)ctx] ^= 1;
    return false;
}

/* Every token of a batch, of whole samples and of parts, is compared with the log. */
static void test_changed_token_is_found(void **state)
{
    (void)state;
    struct serve_log_options options = {.seed = 9,
                                        .packs = 2,
                                        .seq_len = 256,
                                        .seg_align = 1,
                                        .shortest = 20,
                                        .longest = 99,
                                        .streams = 2};
    struct bench b;
    bench_init(&b, &options);
    /* The first sample of the first pack becomes its part without the last token. */
    struct pd_pack *pack = &b.log->packs[0];
    struct pd_segment *part = &pack->segments[0];
    part->length_tokens--;
    part->slot_tokens--;
    part->loss_tokens--;
    pack->used_slots--;
    uint32_t used = pack->used_slots, token, found = 0;
    pd_assembler_set_corruption(b.assembler, flip_token, &token);
    for (token = 0; token < used; token++) {
        struct pd_ready_batch ready;
        struct pd_check_finding finding;
        struct pd_error error;
        struct pd_assemble_order order = order_of(&b, 0, 0, 0);
        if (make(&b, &order, &ready, &finding, &error) != PD_ECORRUPT)
            fail_msg("token %u of %u: not found", token, used);
        assert_int_equal(finding.check, PD_CHECK_DIGEST);
        assert_true(finding.position <= token);
        found++;
    }
    assert_true(found > 200);
    bench_fini(&b);
}

static void test_trimmed_step(void **state)
{
    (void)state;
    struct serve_log_options options = {.seed = 9,
                                        .packs = 24,
                                        .seq_len = 256,
                                        .seg_align = 1,
                                        .shortest = 20,
                                        .longest = 99,
                                        .streams = 2};
    struct bench b;
    bench_init(&b, &options);
    b.log->trimmed_packs = 1;
    struct pd_ready_batch ready;
    struct pd_check_finding finding;
    struct pd_error error;
    struct pd_assemble_order order = order_of(&b, 0, 1, 1);
    assert_int_equal(make(&b, &order, &ready, &finding, &error), PD_ERANGE);
    assert_string_equal(error.reason, "STEP_TRIMMED");
    b.log->trimmed_packs = 0;
    b.log->lost_pack = order.place.first_pack + 1; /* above others: no trimming did that */
    assert_int_equal(make(&b, &order, &ready, &finding, &error), PD_ECORRUPT);
    assert_string_equal(error.reason, "CHECKSUM");
    bench_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step_totals_are_sums),
        cmocka_unit_test(test_totals_do_not_depend_on_the_world),
        cmocka_unit_test(test_rebuilt_batches_are_the_same_bytes),
        cmocka_unit_test(test_damaged_sample_is_named),
        cmocka_unit_test(test_violation_is_found),
        cmocka_unit_test(test_changed_token_is_found),
        cmocka_unit_test(test_trimmed_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
