/* What the allocator keeps after a flood: it is given back once, not again and again, and again
 * after the next flood. */
#include "server/metrics_process.h"
#include "server/process.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1u << 20)
#define PIECES 24000
#define PIECE_BYTES 8000u
#define KEPT_EACH 50 /* what stays in use keeps the heap from shrinking as a whole */

static void flood(char *pieces[PIECES])
{
    for (int i = 0; i < PIECES; i++) {
        if (pieces[i])
            continue;
        pieces[i] = malloc(PIECE_BYTES);
        assert_non_null(pieces[i]);
        memset(pieces[i], 1, PIECE_BYTES);
    }
    for (int i = 0; i < PIECES; i++) {
        if (i % KEPT_EACH == 0)
            continue;
        free(pieces[i]);
        pieces[i] = NULL;
    }
}

static void test_memory_is_given_back_once(void **state)
{
    (void)state;
    static char *pieces[PIECES];
    assert_false(pd_process_give_back());
    uint64_t before_bytes = pd_process_anonymous_bytes();
    for (int turn = 0; turn < 3; turn++) {
        flood(pieces);
        assert_true(pd_process_anonymous_bytes() > before_bytes + 128 * MIB);
        assert_true(pd_process_give_back());
        assert_true(pd_process_anonymous_bytes() < before_bytes + 64 * MIB);
        for (int i = 0; i < 3; i++)
            assert_false(pd_process_give_back());
    }
    for (int i = 0; i < PIECES; i++)
        free(pieces[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_given_back_once),
    };
    pd_process_setup("process_test");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
