/* Copy 1 of the copy budget: between the transport and the log nothing copies a block's body. The
 * door, through which 9 KiB a visual token pass, may not even allocate as much: every allocation of
 * the process is counted while it works. */
#include "server/ingest/door.h"

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

static uint64_t allocated_bytes;

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

static void test_door_leaves_the_body_where_it_is(void **unused)
{
    (void)unused;
    const struct pd_door_rules rules = {.seq_len = 4096,
                                        .sample_bytes_max = 64 << 20,
                                        .block_bytes_max = 64 << 20,
                                        .block_samples_max = SAMPLES};
    static struct pd_piece pieces[1024];
    Packd__V1__BlockHead head;
    Packd__V1__Spans spans;
    Packd__V1__TensorSpec tensor;
    struct pd_door_rejects rejects;
    struct pd_error error = {0};
    describe(&head, &spans, &tensor);
    uint8_t *body = calloc(1, head.body_bytes);
    assert_non_null(body);
    uint32_t count = 0;
    for (uint64_t at = 0; at < head.body_bytes; at += SLICE_BYTES, count++) {
        uint64_t left = head.body_bytes - at;
        pieces[count] = (struct pd_piece){.data = body + at,
                                          .size_bytes = left < SLICE_BYTES ? left : SLICE_BYTES};
    }
    struct pd_block block = {.pieces = pieces, .piece_count = count};
    allocated_bytes = 0;
    assert_int_equal(pd_door_check(&head, &rules, &error), 0);
    assert_int_equal(pd_door_make(&head, &rules, &block, &rejects, &error), 0);
    print_message("a body of %llu bytes: the door allocated %llu\n",
                  (unsigned long long)head.body_bytes, (unsigned long long)allocated_bytes);
    assert_true(allocated_bytes > 0 && allocated_bytes < head.body_bytes / 100);
    assert_int_equal(rejects.samples, 0);
    assert_ptr_equal(block.pieces[0].data, body); /* what the log will copy from */
    struct pd_tensor_extent last = pd_block_head_extent(&block.head, 0, SAMPLES - 1);
    assert_int_equal(last.offset_bytes + last.size_bytes, head.body_bytes);
    pd_door_rejects_fini(&rejects);
    pd_block_head_fini(&block.head);
    free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_door_leaves_the_body_where_it_is)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
