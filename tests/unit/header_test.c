/* The deterministic header: what goes in comes out, the same bytes whatever was built before. */
#include "server/header.h"

#include "packer/layout.h"
#include "proto/packd.pb-c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Two rows of 32: samples of 10 and 22, then a row of padding. */
struct small_batch {
    struct pd_layout_rules rules;
    struct pd_segment segments[2];
    struct pd_pack pack;
    struct pd_batch batch;
    struct pd_step_totals step;
    struct pd_width_report width;
    struct pd_header_facts facts;
};

static void small_batch_init(struct small_batch *b)
{
    memset(b, 0, sizeof *b);
    b->rules = (struct pd_layout_rules){.seq_len = 32,
                                        .seg_align = 1,
                                        .total_align = 1,
                                        .pad_segment = 16,
                                        .pad_id = -7,
                                        .labels = PD_LABELS_SHIFTED,
                                        .loss = PD_LOSS_SAMPLE,
                                        .cost = {0, 1}};
    b->segments[0] = (struct pd_segment){.block = 1,
                                         .stream = 9,
                                         .seq = 5,
                                         .source = 2,
                                         .part_count = 1,
                                         .length_tokens = 10,
                                         .slot_tokens = 10,
                                         .sample_tokens = 10,
                                         .loss_tokens = 9,
                                         .sample_loss_tokens = 9,
                                         .weight = 1.5f};
    b->segments[1] = b->segments[0];
    b->segments[1].stream = 4;
    b->segments[1].seq = 6;
    b->segments[1].length_tokens = b->segments[1].slot_tokens = 22;
    b->segments[1].sample_tokens = 40;
    b->segments[1].loss_tokens = b->segments[1].sample_loss_tokens = 21;
    b->pack = (struct pd_pack){
        .number = 11, .segments = b->segments, .segment_count = 2, .used_slots = 32};
    const struct pd_pack *rows[2] = {&b->pack, NULL};
    struct pd_error error;
    struct pd_layout_input input = {.rules = &b->rules, .rows = rows, .row_count = 2, .width = 32};
    assert_int_equal(pd_layout_measure(&input, &b->batch, &error), 0);
    b->step.sums.real_tokens = 1234;
    b->step.sums.loss_tokens = 1000;
    b->step.sums.loss_weight = 2.25;
    b->step.tail_tokens = 3;
    b->step.row_padding_tokens = 64;
    b->width = (struct pd_width_report){
        .bound_tokens = 200, .saved_positions = 336, .varlen = true, .reason = "because"};
    b->facts = (struct pd_header_facts){.feed = "default",
                                        .job = "train",
                                        .step = 77,
                                        .micro = 1,
                                        .dp_rank = 3,
                                        .step_packs = 16,
                                        .dp_size = 4,
                                        .accum = 2,
                                        .rules = &b->rules,
                                        .batch = &b->batch,
                                        .step_totals = &b->step,
                                        .width = &b->width,
                                        .max_seqlen_real = 32,
                                        .max_seqlen_padded = 32,
                                        .config_digest = 0xc0ffee,
                                        .plan_digest = 0xdead,
                                        .planner_version = 3};
    for (uint32_t i = 0; i < b->batch.array_count; i++)
        b->batch.arrays[i].digest = 0x1111111111111111u * (i + 1);
}

static uint8_t *make(struct pd_header *header, struct small_batch *b, bool plain, size_t *size)
{
    pd_header_begin(header);
    assert_int_equal(pd_header_row(header, 11), 0);
    struct pd_header_sample sample = {.segment = &b->segments[0],
                                      .stream = "web",
                                      .source = "src",
                                      .key = (const uint8_t *)"k1",
                                      .key_bytes = 2,
                                      .digest = 0xabc,
                                      .loss_weight = 0.25f,
                                      .plain_labels = plain};
    assert_int_equal(pd_header_sample(header, &sample), 0);
    sample.segment = &b->segments[1];
    sample.stream = "code";
    sample.key = NULL;
    sample.key_bytes = 0;
    assert_int_equal(pd_header_sample(header, &sample), 0);
    assert_int_equal(pd_header_row(header, -1), 0);
    assert_int_equal(pd_header_finish(header, &b->facts, size), 0);
    uint8_t *bytes = malloc(*size);
    assert_non_null(bytes);
    assert_int_equal(pd_header_pack(header, bytes, *size), 0);
    return bytes;
}

static void test_fields(void **state)
{
    (void)state;
    struct small_batch b;
    small_batch_init(&b);
    struct pd_header *header;
    assert_int_equal(pd_header_new(&header), 0);
    size_t size;
    uint8_t *bytes = make(header, &b, true, &size);
    Packd__V1__BatchHeader *m = packd__v1__batch_header__unpack(NULL, size, bytes);
    assert_non_null(m);
    assert_int_equal(m->format, 1);
    assert_string_equal(m->feed, "default");
    assert_string_equal(m->job, "train");
    assert_int_equal(m->step, 77);
    assert_int_equal(m->rows, 2);
    assert_int_equal(m->width, 32);
    assert_int_equal(m->step_packs, 16);
    assert_int_equal(m->pad_id, -7);
    assert_int_equal(m->labels, PACKD__V1__LABEL_CONVENTION__LABELS_SHIFTED);
    assert_int_equal(m->loss_weight, PACKD__V1__LOSS_WEIGHT_POLICY__LOSS_WEIGHT_SAMPLE);
    assert_int_equal(m->n_packs, 2);
    assert_int_equal(m->packs[0], 11);
    assert_int_equal(m->packs[1], -1);
    assert_int_equal(m->payload_bytes, b.batch.payload_bytes);
    assert_int_equal(m->plan_digest, 0xdead);
    assert_int_equal(m->config_digest, 0xc0ffee);
    assert_int_equal(m->batch->real_tokens, 32);
    assert_int_equal(m->batch->row_padding, 32);
    assert_int_equal(m->batch->attention_cost, 10 * 10 + 22 * 22);
    assert_int_equal(m->step_totals->real_tokens, 1234);
    assert_int_equal(m->step_totals->n_loss, 1);
    assert_string_equal(m->step_totals->loss[0]->name, "tokens");
    assert_int_equal(m->step_totals->loss[0]->count, 1000);
    assert_true(m->step_totals->loss[0]->weight == 2.25);
    packd__v1__batch_header__free_unpacked(m, NULL);
    free(bytes);
    pd_header_free(header);
}

static void test_sample_table(void **state)
{
    (void)state;
    struct small_batch b;
    small_batch_init(&b);
    struct pd_header *header;
    assert_int_equal(pd_header_new(&header), 0);
    size_t size;
    uint8_t *bytes = make(header, &b, true, &size);
    Packd__V1__BatchHeader *m = packd__v1__batch_header__unpack(NULL, size, bytes);
    assert_non_null(m);
    const Packd__V1__SampleTable *t = m->samples;
    assert_int_equal(t->n_streams, 2);
    assert_string_equal(t->streams[0], "web");
    assert_string_equal(t->streams[1], "code");
    assert_int_equal(t->n_stream, 2);
    assert_int_equal(t->stream[1], 1);
    assert_int_equal(t->n_sources, 1);
    assert_int_equal(t->n_source, 0); /* all 0 */
    assert_int_equal(t->n_part, 0);
    assert_int_equal(t->n_version, 0);
    assert_int_equal(t->n_group, 0);
    assert_int_equal(t->n_key, 2);
    assert_memory_equal(t->key[0].data, "k1", 2);
    assert_int_equal(t->key[1].len, 0);
    assert_int_equal(t->seq[0], 5);
    assert_int_equal(t->length[1], 22);
    assert_int_equal(t->flags[0], PACKD__V1__SAMPLE_FLAG__SAMPLE_WHOLE);
    assert_int_equal(t->flags[1], PACKD__V1__SAMPLE_FLAG__SAMPLE_CUT);
    assert_int_equal(t->digest[0], 0xabc);
    assert_true(t->loss_weights[1] == 0.25f);
    assert_int_equal(t->loss_tokens[1], 21);
    packd__v1__batch_header__free_unpacked(m, NULL);
    free(bytes);
    pd_header_free(header);
}

/* Derivable arrays are a suffix of the payload, core_bytes is where it begins, and pushed labels
 * are never derivable. */
static void check_core(const Packd__V1__BatchHeader *m, bool plain)
{
    bool behind = false;
    uint64_t core = m->payload_bytes;
    for (size_t i = 0; i < m->n_arrays; i++) {
        assert_false(behind && !m->arrays[i]->derivable);
        if (m->arrays[i]->derivable && !behind)
            core = m->arrays[i]->offset;
        behind = behind || m->arrays[i]->derivable;
        if (!plain)
            assert_false(m->arrays[i]->derivable && strcmp(m->arrays[i]->name, "labels") == 0);
        assert_false(m->arrays[i]->derivable && strcmp(m->arrays[i]->name, "tokens") == 0);
        assert_int_equal(m->arrays[i]->xxh3_64, 0x1111111111111111u * (i + 1));
    }
    assert_true(behind);
    assert_int_equal(m->core_bytes, core);
}

static void test_core_arrays(void **state)
{
    (void)state;
    struct small_batch b;
    small_batch_init(&b);
    struct pd_header *header;
    assert_int_equal(pd_header_new(&header), 0);
    for (int plain = 0; plain < 2; plain++) {
        size_t size;
        uint8_t *bytes = make(header, &b, plain, &size);
        Packd__V1__BatchHeader *m = packd__v1__batch_header__unpack(NULL, size, bytes);
        assert_non_null(m);
        check_core(m, plain);
        packd__v1__batch_header__free_unpacked(m, NULL);
        free(bytes);
    }
    pd_header_free(header);
}

static void test_same_bytes_after_other_batches(void **state)
{
    (void)state;
    struct small_batch b;
    small_batch_init(&b);
    struct pd_header *fresh, *used;
    assert_int_equal(pd_header_new(&fresh), 0);
    assert_int_equal(pd_header_new(&used), 0);
    pd_header_begin(used);
    struct pd_segment other = b.segments[0];
    for (uint32_t i = 0; i < 3000; i++) {
        other.stream = 100 + i % 700;
        struct pd_header_sample sample = {.segment = &other,
                                          .stream = "another",
                                          .source = "x",
                                          .group = (const uint8_t *)"gg",
                                          .group_bytes = 2,
                                          .version = i};
        assert_int_equal(pd_header_sample(used, &sample), 0);
    }
    size_t size, again;
    uint8_t *bytes = make(fresh, &b, true, &size), *other_bytes = make(used, &b, true, &again);
    assert_int_equal(size, again);
    assert_memory_equal(bytes, other_bytes, size);
    free(bytes);
    free(other_bytes);
    pd_header_free(fresh);
    pd_header_free(used);
}

static void test_wrong_counts_are_refused(void **state)
{
    (void)state;
    struct small_batch b;
    small_batch_init(&b);
    struct pd_header *header;
    assert_int_equal(pd_header_new(&header), 0);
    size_t size;
    pd_header_begin(header);
    assert_int_equal(pd_header_finish(header, &b.facts, &size), PD_EINTERNAL);
    uint8_t *bytes = make(header, &b, true, &size);
    b.batch.arrays[0].digest = 0; /* left out on the wire: another size */
    assert_int_equal(pd_header_pack(header, bytes, size), PD_EINTERNAL);
    free(bytes);
    pd_header_free(header);
    pd_header_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_sample_table),
        cmocka_unit_test(test_core_arrays),
        cmocka_unit_test(test_same_bytes_after_other_batches),
        cmocka_unit_test(test_wrong_counts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
