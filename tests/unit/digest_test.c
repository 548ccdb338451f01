/* Digests: the values of the system's XXH3-64 at every size, in one block and in parts. */
#include "base/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <xxhash.h>

#define SIZE_MAX_BYTES 20000u

static uint8_t bytes[SIZE_MAX_BYTES];

static void test_blocks(void **unused)
{
    (void)unused;
    for (size_t size = 0; size <= SIZE_MAX_BYTES; size += size < 2100 ? 1 : 997)
        assert_int_equal(pd_digest(bytes, size), XXH3_64bits(bytes, size));
}

/* Parts below and above the size at which another body takes over, in any order. */
static void test_parts(void **unused)
{
    (void)unused;
    unsigned seed = 7;
    for (int round = 0; round < 400; round++) {
        size_t size = (size_t)rand_r(&seed) % (SIZE_MAX_BYTES + 1), at = 0;
        struct pd_digest_stream stream;
        pd_digest_begin(&stream);
        while (at < size) {
            size_t part = (size_t)rand_r(&seed) % (round % 2 ? 300 : 5000);
            part = part < size - at ? part : size - at;
            pd_digest_add(&stream, bytes + at, part);
            at += part;
            assert_int_equal(pd_digest_end(&stream), XXH3_64bits(bytes, at));
        }
        assert_int_equal(pd_digest_end(&stream), XXH3_64bits(bytes, size));
    }
}

int main(void)
{
    unsigned seed = 1;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)rand_r(&seed);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks), cmocka_unit_test(test_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
