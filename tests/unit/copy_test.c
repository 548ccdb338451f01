/* The copy budget: a payload byte, of a token or of a tensor with 9 KiB a visual token, is copied
 * once into the log and once into the batch. Every call of memcpy and memmove of the code that is
 * linked in is counted. The door may not even allocate as much as it looks at. */
#include "server/assemble.h"
#include "server/ingest/door.h"
#include "server/log_writer.h"
#include "tests/unit/sequencer_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SAMPLES 8u
#define SPAN_TOKENS 128u
#define PATCH_BYTES 2304u /* four patches a token: 9,216 bytes */
#define SLICE_BYTES 16384u

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

void *__real_memcpy(void *to, const void *from, size_t size);
void *__real_memmove(void *to, const void *from, size_t size);
void *__wrap_memcpy(void *to, const void *from, size_t size);
void *__wrap_memmove(void *to, const void *from, size_t size);

static uint64_t allocated_bytes, copied_bytes;

void *__wrap_malloc(size_t size)
{
    allocated_bytes += size;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    allocated_bytes += count * size;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    allocated_bytes += size;
    return __real_realloc(old, size);
}

void *__wrap_memcpy(void *to, const void *from, size_t size)
{
    copied_bytes += size;
    return __real_memcpy(to, from, size);
}

void *__wrap_memmove(void *to, const void *from, size_t size)
{
    copied_bytes += size;
    return __real_memmove(to, from, size);
}

/* What was copied is `bytes`, and no more than a hundredth beside them: heads, rows, labels. */
static void check_copied_once(const char *step, uint64_t bytes)
{
    print_message("%s: %llu bytes of %llu copied\n", step, (unsigned long long)copied_bytes,
                  (unsigned long long)bytes);
    assert_true(copied_bytes >= bytes && copied_bytes < bytes + bytes / 100);
}

/* Samples of one image each, with raw patches. */
static void describe(Packd__V1__BlockHead *head, Packd__V1__Spans *spans,
                     Packd__V1__TensorSpec *tensor)
{
    static uint32_t lengths[SAMPLES], ones[SAMPLES], zeros[SAMPLES], patches[SAMPLES], dims[1];
    static Packd__V1__TensorSpec *list[1];
    packd__v1__block_head__init(head);
    packd__v1__spans__init(spans);
    packd__v1__tensor_spec__init(tensor);
    for (uint32_t i = 0; i < SAMPLES; i++) {
        lengths[i] = SPAN_TOKENS;
        ones[i] = 1;
        patches[i] = SPAN_TOKENS * 4;
    }
    dims[0] = PATCH_BYTES;
    spans->counts = ones;
    spans->offsets = zeros;
    spans->lengths = lengths;
    spans->patches = patches;
    spans->n_counts = spans->n_offsets = spans->n_lengths = spans->n_patches = SAMPLES;
    spans->merge = 4;
    tensor->name = (char *)(uintptr_t) "pixel_values";
    tensor->dtype = PACKD__V1__DTYPE__DTYPE_UINT8;
    tensor->axis = PACKD__V1__AXIS__AXIS_RAGGED;
    tensor->unit = PACKD__V1__RAGGED_UNIT__RAGGED_PATCH;
    tensor->dims = dims;
    tensor->n_dims = 1;
    tensor->counts = patches;
    tensor->n_counts = SAMPLES;
    list[0] = tensor;
    head->lengths = lengths;
    head->n_lengths = SAMPLES;
    head->spans = spans;
    head->tensors = list;
    head->n_tensors = 1;
    head->body_bytes = SAMPLES * SPAN_TOKENS * (4ull + 4 * PATCH_BYTES);
}

/* A block as it comes through the door. */
struct pushed {
    Packd__V1__BlockHead head;
    Packd__V1__Spans spans;
    Packd__V1__TensorSpec tensor;
    struct pd_piece pieces[1024];
    uint8_t *body;
    struct pd_block block;
};

static void push(struct pushed *p)
{
    const struct pd_door_rules rules = {.seq_len = 4096,
                                        .sample_bytes_max = 64 << 20,
                                        .block_bytes_max = 64 << 20,
                                        .block_samples_max = SAMPLES};
    struct pd_door_rejects rejects;
    struct pd_error error = {0};
    describe(&p->head, &p->spans, &p->tensor);
    p->body = calloc(1, p->head.body_bytes);
    assert_non_null(p->body);
    uint32_t count = 0;
    for (uint64_t at = 0; at < p->head.body_bytes; at += SLICE_BYTES, count++) {
        uint64_t left = p->head.body_bytes - at;
        p->pieces[count] = (struct pd_piece){.data = p->body + at,
                                             .size_bytes = left < SLICE_BYTES ? left : SLICE_BYTES};
    }
    p->block = (struct pd_block){.pieces = p->pieces, .piece_count = count};
    allocated_bytes = copied_bytes = 0;
    assert_int_equal(pd_door_check(&p->head, &rules, &error), 0);
    assert_int_equal(pd_door_make(&p->head, &rules, &p->block, &rejects, &error), 0);
    assert_int_equal(rejects.samples, 0);
    pd_door_rejects_fini(&rejects);
}

static void let_go(struct pushed *p)
{
    pd_block_head_fini(&p->block.head);
    free(p->body);
}

static void test_door_leaves_the_body_where_it_is(void **unused)
{
    (void)unused;
    static struct pushed p;
    push(&p);
    print_message("a body of %llu bytes: the door allocated %llu\n",
                  (unsigned long long)p.head.body_bytes, (unsigned long long)allocated_bytes);
    assert_true(allocated_bytes > 0 && allocated_bytes < p.head.body_bytes / 100);
    /* Only what a digest keeps of each slice: up to 256 bytes, taken up and moved. */
    print_message("and copied %llu\n", (unsigned long long)copied_bytes);
    assert_true(copied_bytes <= p.block.piece_count * UINT64_C(1024));
    assert_ptr_equal(p.block.pieces[0].data, p.body); /* what the log will copy from */
    struct pd_tensor_extent last = pd_block_head_extent(&p.block.head, 0, SAMPLES - 1);
    assert_int_equal(last.offset_bytes + last.size_bytes, p.head.body_bytes);
    let_go(&p);
}

/* ---- log and batch ---- */

/* The block, and all of its samples in pack 0. */
static void write_log(struct pd_log *log, struct pushed *p)
{
    struct pd_error error = {0};
    struct pd_buf row = {0};
    struct pd_pack pack = {0};
    assert_int_equal(pd_log_begin(log, &error), 0);
    pd_buf_put_string(&row, "camera", 6);
    assert_int_equal(pd_log_put_row(log, PD_TABLE_STREAMS, 0, 0, &row, &error), 0);
    pd_buf_clear(&row);
    pd_buf_put(&row, &p->block.head.tensors[0], sizeof p->block.head.tensors[0]);
    assert_int_equal(pd_log_put_row(log, PD_TABLE_TENSORS, 0, 0, &row, &error), 0);
    copied_bytes = 0;
    assert_int_equal(pd_log_append_block(log, &p->block, &error), 0);
    check_copied_once("wire to log", p->head.body_bytes);
    for (uint32_t i = 0; i < SAMPLES; i++)
        assert_int_equal(pd_pack_push(&pack, &(struct pd_segment){.block = p->block.head.position,
                                                                  .index = i,
                                                                  .seq = i,
                                                                  .part_count = 1,
                                                                  .length_tokens = SPAN_TOKENS,
                                                                  .slot_tokens = SPAN_TOKENS,
                                                                  .sample_tokens = SPAN_TOKENS,
                                                                  .patches = SPAN_TOKENS * 4,
                                                                  .weight = 1}),
                         0);
    pd_buf_clear(&row);
    pd_pack_encode(&pack, &row);
    struct pd_plan_facts facts = {.plan_digest = pd_plan_digest_next(0, row.data, row.size_bytes)};
    assert_int_equal(pd_log_put_pack(log, 0, 0, &facts, &row, &error), 0);
    assert_int_equal(pd_log_commit(log, &error), 0);
    pd_pack_fini(&pack);
    pd_buf_fini(&row);
}

static void build(struct pd_assembler *assembler, struct pd_ready_batch *ready)
{
    static const struct pd_feed_config feed = {.layout = {.seq_len = SAMPLES * SPAN_TOKENS,
                                                          .seg_align = 1,
                                                          .total_align = 1,
                                                          .pad_segment = SPAN_TOKENS}};
    static const struct pd_job_spec spec = {
        .name = "train", .step_packs = 1, .dp_size = 1, .rows = 1, .accum = 1};
    const struct pd_assemble_order order = {
        .feed = &feed,
        .spec = &spec,
        .key = {.generation = 1},
        .steps = {.config = &feed, .step_packs = 1},
        .place = {.pack_count = 1, .part_pack_count = 1},
    };
    struct pd_step_facts facts;
    struct pd_check_finding finding;
    struct pd_error error = {0};
    uint64_t bytes;
    assert_int_equal(pd_assembler_begin(assembler, &error), 0);
    int rc = pd_assembler_step(assembler, &order, &facts, &error);
    if (rc == 0)
        rc = pd_assembler_measure(assembler, &order, &facts, &bytes, &error);
    if (rc == 0)
        rc = pd_assembler_build(assembler, ready, &finding, &error);
    if (rc != 0)
        fail_msg("%s: %s", error.reason, error.text);
    pd_assembler_end(assembler);
}

static void test_payload_is_copied_twice(void **unused)
{
    (void)unused;
    static struct pushed p;
    struct seq_case c = {0};
    struct pd_error error = {0};
    struct pd_assembler *assembler;
    struct pd_ready_batch ready = {0};
    push(&p);
    seq_case_dir(&c, "copies");
    struct pd_log_options options = {
        .path = c.dir, .max_bytes = 64u << 20, .durability = PD_DURABILITY_PROCESS};
    assert_int_equal(pd_log_open(&options, &c.log, &error), 0);
    write_log(c.log, &p);
    assert_int_equal(pd_assembler_new(c.log, &assembler, &error), 0);
    copied_bytes = 0;
    build(assembler, &ready);
    check_copied_once("log to batch, with every check", p.head.body_bytes);
    const struct pd_array *patches = pd_batch_find(&ready.batch, "pixel_values");
    assert_non_null(patches);
    assert_int_equal(patches->size_bytes, (uint64_t)SAMPLES * SPAN_TOKENS * 4 * PATCH_BYTES);
    pd_ready_batch_clear(&ready);
    pd_assembler_free(assembler);
    pd_log_close(c.log);
    let_go(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_door_leaves_the_body_where_it_is),
                                       cmocka_unit_test(test_payload_is_copied_twice)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
