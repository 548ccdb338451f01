/* Receiving batches: whatever the layout makes comes out of its core arrays again, bit for bit; a
 * header that lies is refused; any damaged byte is found. */
#include "client/lib_batch.h"
#include "tests/unit/layout_case.h"

#include "base/check.h"
#include "tests/unit/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define ROUNDS 300
#define SEGMENTS_MAX CASE_SAMPLES_MAX

static uint64_t seed;

/* A header for a built case, with memory of its own. */
struct headed {
    Packd__V1__BatchHeader header;
    Packd__V1__ArrayInfo infos[PD_ARRAYS_MAX], *list[PD_ARRAYS_MAX];
    Packd__V1__Totals totals;
    Packd__V1__SampleTable samples;
    char *streams[1];
    int64_t packs[CASE_ROWS_MAX];
    uint32_t stream[SEGMENTS_MAX];
    float weights[SEGMENTS_MAX];
    uint8_t *packed;
    size_t packed_bytes;
};

static bool is_derivable(const char *name)
{
    static const char *const names[] = {"positions",   "segment_ids",     "labels",
                                        "loss_weight", "cu_seqlens_real", "cu_seqlens_padded"};
    for (size_t i = 0; i < PD_COUNT_OF(names); i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static void head_arrays(struct headed *h, const struct layout_case *c)
{
    h->header.core_bytes = c->batch.payload_bytes;
    for (uint32_t i = c->batch.array_count; i-- > 0;) {
        const struct pd_array *a = &c->batch.arrays[i];
        packd__v1__array_info__init(&h->infos[i]);
        h->infos[i].name = (char *)(uintptr_t)a->name;
        h->infos[i].dtype = a->dtype == PD_DTYPE_F32 ? PACKD__V1__DTYPE__DTYPE_FLOAT32
                                                     : PACKD__V1__DTYPE__DTYPE_INT32;
        h->infos[i].n_shape = a->rank;
        h->infos[i].shape = (uint64_t *)(uintptr_t)a->shape;
        h->infos[i].offset = a->offset_bytes;
        h->infos[i].bytes = a->size_bytes;
        h->infos[i].xxh3_64 = a->digest;
        h->infos[i].derivable = is_derivable(a->name);
        if (h->infos[i].derivable)
            h->header.core_bytes = a->offset_bytes;
        h->list[i] = &h->infos[i];
    }
    h->header.n_arrays = c->batch.array_count;
    h->header.arrays = h->list;
}

static void head_samples(struct headed *h, const struct layout_case *c)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < c->row_count; r++)
        for (uint32_t s = 0; c->rows[r] && s < c->rows[r]->segment_count; s++)
            h->weights[count++] = pd_segment_loss_weight(&c->rows[r]->segments[s], c->rules.loss);
    h->streams[0] = (char *)(uintptr_t) "s";
    h->samples.n_streams = 1;
    h->samples.streams = h->streams;
    h->samples.n_stream = h->samples.n_loss_weights = count;
    h->samples.stream = h->stream;
    h->samples.loss_weights = h->weights;
    assert_int_equal(count, c->batch.real_segment_count);
}

static struct headed *head(const struct layout_case *c)
{
    struct headed *h = calloc(1, sizeof *h);
    packd__v1__batch_header__init(&h->header);
    packd__v1__totals__init(&h->totals);
    packd__v1__sample_table__init(&h->samples);
    head_arrays(h, c);
    head_samples(h, c);
    h->header.format = 1;
    h->header.rows = c->batch.rows;
    h->header.width = c->batch.width;
    h->header.payload_bytes = c->batch.payload_bytes;
    h->header.n_packs = c->batch.rows;
    h->header.packs = h->packs;
    h->header.batch = h->header.step_totals = &h->totals;
    h->header.samples = &h->samples;
    h->header.n_segments = c->batch.segment_count;
    h->header.n_real_segments = c->batch.real_segment_count;
    h->header.fixed_segments = c->rules.fixed_segments;
    h->header.labels = c->rules.labels == PD_LABELS_SHIFTED
                           ? PACKD__V1__LABEL_CONVENTION__LABELS_SHIFTED
                           : PACKD__V1__LABEL_CONVENTION__LABELS_UNSHIFTED;
    h->packed_bytes = packd__v1__batch_header__get_packed_size(&h->header);
    h->packed = malloc(h->packed_bytes);
    packd__v1__batch_header__pack(&h->header, h->packed);
    return h;
}

static void unhead(struct headed *h)
{
    free(h->packed);
    free(h);
}

/* Header bytes in, in pieces; then the payload's first `bytes`, in pieces. */
static int receive(struct pd_pool *pool, const uint8_t *header, size_t header_bytes,
                   const void *payload, uint64_t bytes, struct pd_client_batch **out,
                   struct packd_error *error)
{
    Packd__V1__BatchBegin begin = PACKD__V1__BATCH_BEGIN__INIT;
    size_t piece = 1 + test_below(&seed, (uint32_t)header_bytes);
    begin.deterministic = (ProtobufCBinaryData){piece, (uint8_t *)(uintptr_t)header};
    begin.payload_bytes = bytes;
    begin.header_bytes = header_bytes;
    struct pd_client_batch *batch = NULL;
    int rc = pd_client_batch_begin(pool, &begin, UINT64_C(1) << 26, &batch, error);
    if (rc == 0 && piece < header_bytes)
        rc = pd_client_batch_header(batch, header + piece, header_bytes - piece, error);
    for (uint64_t at = 0; rc == 0 && at < bytes;) {
        uint64_t size = 1 + test_below(&seed, 5000);
        if (size > bytes - at)
            size = bytes - at;
        uint8_t *to = pd_client_batch_room(batch, size, error);
        assert_non_null(to);
        memcpy(to, (const uint8_t *)payload + at, size);
        at += size;
    }
    if (rc == 0) {
        assert_true(pd_client_batch_complete(batch));
        assert_null(pd_client_batch_room(batch, 1, error));
        rc = pd_client_batch_finish(batch, error);
    }
    if (rc != 0 && batch)
        pd_client_batch_free(batch);
    *out = rc == 0 ? batch : NULL;
    return rc;
}

static struct layout_case *random_case(void)
{
    struct layout_case *c = case_new();
    struct pd_error error = {0};
    case_randomise(c, &seed);
    case_make_plain(c);
    if (case_build(c, &error) != 0)
        fail_msg("%s", error.text);
    return c;
}

static void test_core_gives_the_whole_payload(void **state)
{
    (void)state;
    struct pd_pool_memory memory = {0};
    struct pd_pool *pool = pd_pool_new(&memory, 2);
    for (int round = 0; round < ROUNDS; round++) {
        struct layout_case *c = random_case();
        struct headed *h = head(c);
        struct pd_client_batch *batch = NULL;
        struct packd_error error = {0};
        assert_true(h->header.core_bytes < c->batch.payload_bytes);
        if (receive(pool, h->packed, h->packed_bytes, c->payload, h->header.core_bytes, &batch,
                    &error) != 0)
            fail_msg("round %d: %s", round, error.text);
        const struct packd_batch *view = &batch->view;
        assert_memory_equal(view->payload, c->payload, c->batch.payload_bytes);
        assert_int_equal((uintptr_t)view->payload % 4096, 0);
        assert_int_equal(view->header.size, h->packed_bytes);
        assert_memory_equal(view->header.data, h->packed, h->packed_bytes);
        assert_true(packd_batch_array(view, "labels")->derived);
        assert_false(packd_batch_array(view, "tokens")->derived);
        assert_null(packd_batch_array(view, "no such"));
        packd_batch_release(view);
        unhead(h);
        case_free(c);
    }
    pd_pool_unref(pool);
}

static void test_damage_is_found(void **state)
{
    (void)state;
    struct pd_pool_memory memory = {0};
    struct pd_pool *pool = pd_pool_new(&memory, 0);
    struct layout_case *c = random_case();
    struct headed *h = head(c);
    for (int round = 0; round < 200; round++) {
        uint32_t which = test_below(&seed, c->batch.array_count);
        const struct pd_array *array = &c->batch.arrays[which];
        bool core = test_below(&seed, 2);
        if (array->size_bytes == 0 || (core && h->infos[which].derivable))
            continue;
        uint8_t *byte = (uint8_t *)c->payload + array->offset_bytes +
                        test_below(&seed, (uint32_t)array->size_bytes);
        uint8_t bit = (uint8_t)(1u << test_below(&seed, 8));
        *byte ^= bit;
        struct pd_client_batch *batch = NULL;
        struct packd_error error = {0};
        int rc = receive(pool, h->packed, h->packed_bytes, c->payload,
                         core ? h->header.core_bytes : h->header.payload_bytes, &batch, &error);
        assert_int_equal(rc, PACKD_ECORRUPT);
        assert_true(strcmp(error.reason, "DIGEST") == 0 || strcmp(error.reason, "DERIVE") == 0);
        *byte ^= bit;
    }
    unhead(h);
    case_free(c);
    pd_pool_unref(pool);
}

/* Bytes of a header changed at random: an error or a batch, never more. */
static unsigned try_damaged_headers(struct pd_pool *pool)
{
    struct layout_case *c = random_case();
    struct headed *h = head(c);
    unsigned refused = 0;
    for (int round = 0; round < 50; round++) {
        uint8_t *copy = malloc(h->packed_bytes);
        memcpy(copy, h->packed, h->packed_bytes);
        for (uint32_t i = 0; i < 1 + test_below(&seed, 3); i++)
            copy[test_below(&seed, (uint32_t)h->packed_bytes)] = (uint8_t)test_random(&seed);
        struct pd_client_batch *batch = NULL;
        struct packd_error error = {0};
        int rc =
            receive(pool, copy, h->packed_bytes, c->payload, h->header.core_bytes, &batch, &error);
        assert_true(rc == 0 || rc == PACKD_ECORRUPT || rc == PACKD_ENOMEM);
        assert_true(rc == 0 || error.text[0]);
        refused += rc != 0;
        pd_client_batch_free(batch);
        free(copy);
    }
    unhead(h);
    case_free(c);
    return refused;
}

static void test_headers_are_not_trusted(void **state)
{
    (void)state;
    struct pd_pool_memory memory = {0};
    struct pd_pool *pool = pd_pool_new(&memory, 1);
    unsigned refused = 0;
    for (int round = 0; round < 40; round++)
        refused += try_damaged_headers(pool);
    assert_true(refused > 500);
    pd_pool_unref(pool);
}

struct counted {
    unsigned live, made;
};

static void *counted_alloc(void *ctx, size_t bytes, size_t alignment)
{
    struct counted *counted = ctx;
    counted->live++;
    counted->made++;
    return aligned_alloc(alignment, bytes);
}

static void counted_free(void *ctx, void *memory, size_t bytes)
{
    struct counted *counted = ctx;
    assert_true(bytes > 0);
    counted->live--;
    free(memory);
}

static void test_pool_reuses_and_outlives(void **state)
{
    (void)state;
    struct counted counted = {0};
    struct pd_pool_memory memory = {counted_alloc, counted_free, &counted};
    struct pd_pool *pool = pd_pool_new(&memory, 1);
    size_t a_bytes, b_bytes;
    void *a = pd_pool_get(pool, 100000, &a_bytes), *b = pd_pool_get(pool, 100000, &b_bytes);
    assert_int_equal(counted.made, 2);
    pd_pool_put(pool, a, a_bytes);
    assert_ptr_equal(pd_pool_get(pool, 90000, &a_bytes), a);
    assert_int_equal(counted.made, 2);
    pd_pool_put(pool, a, a_bytes);
    a = pd_pool_get(pool, 10, &a_bytes); /* not a large one for a small need */
    assert_int_equal(counted.made, 3);
    pd_pool_unref(pool);
    pd_pool_put(pool, a, a_bytes);
    assert_int_equal(counted.live, 2);
    pd_pool_put(pool, b, b_bytes);
    assert_int_equal(counted.live, 0);
}

int main(void)
{
    seed = test_seed(0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_core_gives_the_whole_payload),
        cmocka_unit_test(test_damage_is_found),
        cmocka_unit_test(test_headers_are_not_trusted),
        cmocka_unit_test(test_pool_reuses_and_outlives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
