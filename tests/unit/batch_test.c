/* The array table: places, sizes, names, limits, digests. */
#include "packer/batch.h"

#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_dtypes(void **state)
{
    (void)state;
    static const struct {
        enum pd_dtype dtype;
        const char *name;
        size_t size_bytes;
    } known[] = {{PD_DTYPE_U8, "U8", 1},     {PD_DTYPE_I32, "I32", 4},   {PD_DTYPE_I64, "I64", 8},
                 {PD_DTYPE_F16, "F16", 2},   {PD_DTYPE_BF16, "BF16", 2}, {PD_DTYPE_F32, "F32", 4},
                 {PD_DTYPE_BOOL, "BOOL", 1}, {PD_DTYPE_I8, "I8", 1},     {PD_DTYPE_U16, "U16", 2},
                 {PD_DTYPE_I16, "I16", 2},   {PD_DTYPE_U32, "U32", 4},   {PD_DTYPE_U64, "U64", 8},
                 {PD_DTYPE_F64, "F64", 8}};
    enum pd_dtype dtype;
    for (size_t i = 0; i < PD_COUNT_OF(known); i++) {
        assert_string_equal(pd_dtype_name(known[i].dtype), known[i].name);
        assert_int_equal(pd_dtype_size_bytes(known[i].dtype), known[i].size_bytes);
        assert_true(pd_dtype_parse(known[i].name, &dtype));
        assert_int_equal(dtype, known[i].dtype);
    }
    assert_string_equal(pd_dtype_name((enum pd_dtype)99), "?");
    assert_int_equal(pd_dtype_size_bytes((enum pd_dtype)99), 0);
    assert_false(pd_dtype_parse("F8_E4M3", &dtype));
    assert_false(pd_dtype_parse("", &dtype));
}

static void test_table(void **state)
{
    (void)state;
    static struct pd_batch batch;
    memset(&batch, 0, sizeof batch);
    const uint64_t rows[] = {2, 9}, pixels[] = {3, 1, 2, 5}, none[] = {0};
    assert_int_equal(pd_batch_array_add(&batch, "a", PD_DTYPE_I32, 2, rows), 0);
    assert_int_equal(pd_batch_array_add(&batch, "b", PD_DTYPE_BF16, 4, pixels), 0);
    assert_int_equal(pd_batch_array_add(&batch, "empty", PD_DTYPE_I64, 1, none), 0);
    assert_int_equal(pd_batch_array_add(&batch, "scalar", PD_DTYPE_F32, 0, NULL), 0);
    assert_int_equal(batch.arrays[0].size_bytes, 72);
    assert_int_equal(batch.arrays[1].offset_bytes, 128);
    assert_int_equal(batch.arrays[1].size_bytes, 60);
    assert_int_equal(batch.arrays[2].offset_bytes, 192);
    assert_int_equal(batch.arrays[2].size_bytes, 0);
    assert_int_equal(batch.arrays[3].offset_bytes, 192);
    assert_int_equal(batch.arrays[3].size_bytes, 4);
    assert_int_equal(batch.payload_bytes, 256);
    assert_ptr_equal(pd_batch_find(&batch, "b"), &batch.arrays[1]);
    assert_null(pd_batch_find(&batch, "bb"));
    assert_null(pd_batch_find(&batch, ""));
}

/* C.7.47: sizes are 64 bits wide, and what does not fit them is refused. */
static void test_limits(void **state)
{
    (void)state;
    static struct pd_batch batch;
    memset(&batch, 0, sizeof batch);
    char name[PD_ARRAY_NAME_MAX + 2];
    memset(name, 'n', sizeof name);
    name[PD_ARRAY_NAME_MAX + 1] = 0;
    const uint64_t one[] = {1}, large[] = {225304, 9728}, huge[] = {1ULL << 62},
                   edge[] = {UINT64_MAX - 64};
    assert_int_equal(pd_batch_array_add(&batch, name, PD_DTYPE_U8, 1, one), PD_EINVAL);
    assert_int_equal(pd_batch_array_add(&batch, "", PD_DTYPE_U8, 1, one), PD_EINVAL);
    assert_int_equal(pd_batch_array_add(&batch, "a", (enum pd_dtype)99, 1, one), PD_EINVAL);
    assert_int_equal(pd_batch_array_add(&batch, "a", PD_DTYPE_U8, 5, one), PD_EINVAL);
    assert_int_equal(pd_batch_array_add(&batch, "a", PD_DTYPE_I32, 1, huge), PD_ELIMIT);
    assert_int_equal(batch.array_count, 0);
    name[PD_ARRAY_NAME_MAX] = 0;
    assert_int_equal(pd_batch_array_add(&batch, name, PD_DTYPE_U8, 1, one), 0);
    assert_int_equal(pd_batch_array_add(&batch, name, PD_DTYPE_U8, 1, one), PD_EINVAL);
    assert_int_equal(pd_batch_array_add(&batch, "large", PD_DTYPE_I32, 2, large), 0);
    assert_true(pd_batch_find(&batch, "large")->size_bytes == 4ULL * 225304 * 9728);
    assert_int_equal(pd_batch_array_add(&batch, "edge", PD_DTYPE_U8, 1, edge), PD_ELIMIT);
    assert_int_equal(batch.array_count, 2);
    for (char i = 0; batch.array_count < PD_ARRAYS_MAX; i++)
        assert_int_equal(
            pd_batch_array_add(&batch, (char[]){'A', (char)('0' + i), 0}, PD_DTYPE_U8, 1, one), 0);
    assert_int_equal(pd_batch_array_add(&batch, "last", PD_DTYPE_U8, 1, one), PD_ELIMIT);
}

/* A digest covers its array, all of it, and nothing else. */
static void test_digests(void **state)
{
    (void)state;
    static struct pd_batch batch, again;
    memset(&batch, 0, sizeof batch);
    const uint64_t shape[] = {13};
    assert_int_equal(pd_batch_array_add(&batch, "a", PD_DTYPE_I32, 1, shape), 0);
    assert_int_equal(pd_batch_array_add(&batch, "b", PD_DTYPE_I32, 1, shape), 0);
    uint8_t payload[128] = {0};
    pd_batch_digest(&batch, payload);
    assert_int_equal(batch.arrays[0].digest, batch.arrays[1].digest);
    for (size_t i = 0; i < sizeof payload; i++) {
        again = batch;
        payload[i] = 1;
        pd_batch_digest(&again, payload);
        payload[i] = 0;
        assert_int_equal(again.arrays[0].digest != batch.arrays[0].digest, i < 52);
        assert_int_equal(again.arrays[1].digest != batch.arrays[1].digest, i >= 64 && i < 64 + 52);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_digests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
