/* Ingest credit: the budget holds whatever the calls do, nobody starves for good, and overrun is
 * seen. */
#include "server/ingest/credit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB (1024u * 1024u)
#define CALLS_MAX 4096u

static uint64_t seed;

static uint32_t below(uint32_t bound)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % bound;
}

static void pool_of(struct pd_credit_pool *pool, uint64_t bytes)
{
    assert_int_equal(pd_credit_pool_init(pool, bytes, CALLS_MAX, 64 * MIB), 0);
}

static uint64_t unsent(const struct pd_credit *credit)
{
    return credit->granted_bytes - credit->used_bytes;
}

static uint64_t held(const struct pd_credit *credit)
{
    return credit->used_bytes - credit->released_bytes;
}

static void use(struct pd_credit *credit, uint64_t bytes)
{
    struct pd_error error;

    assert_int_equal(pd_credit_use(credit, bytes, &error), 0);
}

/* One producer gets a message at once, and a window that grows as it is used. */
static void a_single_producer_grows(void **state)
{
    struct pd_credit_pool pool;
    struct pd_credit credit;
    struct pd_error error;

    (void)state;
    pool_of(&pool, 256 * MIB);
    assert_int_equal(pd_credit_open(&credit, &pool, UINT64_MAX, &error), 0);
    assert_true(pd_credit_grant(&credit, 0));
    assert_true(unsent(&credit) >= MIB + 4096);
    for (int i = 0; i < 20; i++) {
        use(&credit, unsent(&credit));
        (void)pd_credit_grant(&credit, 0);
        pd_credit_release(&credit, held(&credit));
        (void)pd_credit_grant(&credit, 0);
    }
    assert_true(unsent(&credit) >= 8 * MIB &&
                unsent(&credit) <= PD_CREDIT_WINDOW_MAX + pool.floor_bytes);
    pd_credit_close(&credit);
    pd_credit_pool_fini(&pool);
}

/* 4,096 calls fit; one more is refused; idle ones leave the larger part of the budget to those that
 * push. */
static void idle_calls_cost_little(void **state)
{
    struct pd_credit_pool pool;
    struct pd_credit *credits = calloc(CALLS_MAX + 1, sizeof(*credits));
    struct pd_error error;

    (void)state;
    assert_non_null(credits);
    pool_of(&pool, 256 * MIB);
    for (uint32_t i = 0; i < CALLS_MAX; i++) {
        assert_int_equal(pd_credit_open(&credits[i], &pool, UINT64_MAX, &error), 0);
        assert_true(pd_credit_grant(&credits[i], 0));
        assert_true(unsent(&credits[i]) >= pool.floor_bytes);
        for (int tick = 0; tick < 3; tick++)
            assert_false(pd_credit_is_short(&credits[i], 0) && pd_credit_grant(&credits[i], 0));
    }
    assert_int_equal(pd_credit_open(&credits[CALLS_MAX], &pool, UINT64_MAX, &error), PD_ELIMIT);
    assert_string_equal(error.reason, "TOO_MANY_CALLS");
    assert_true(pd_credit_reserved_bytes(&pool) <= 160 * MIB);
    struct pd_credit *active = &credits[CALLS_MAX - 1];
    for (int i = 0; i < 20; i++) {
        use(active, unsent(active));
        (void)pd_credit_grant(active, 0);
        pd_credit_release(active, held(active));
        (void)pd_credit_grant(active, 0);
    }
    assert_true(unsent(active) >= 4 * MIB);
    for (uint32_t i = 0; i < CALLS_MAX; i++)
        pd_credit_close(&credits[i]);
    pd_credit_pool_fini(&pool);
    free(credits);
}

static void overrun_is_refused(void **state)
{
    struct pd_credit_pool pool;
    struct pd_credit credit;
    struct pd_error error;

    (void)state;
    pool_of(&pool, 16 * MIB);
    assert_int_equal(pd_credit_open(&credit, &pool, UINT64_MAX, &error), 0);
    assert_int_equal(pd_credit_use(&credit, 1, &error), PD_ELIMIT);
    assert_true(pd_credit_grant(&credit, 0));
    use(&credit, unsent(&credit));
    assert_int_equal(pd_credit_use(&credit, 1, &error), PD_ELIMIT);
    assert_string_equal(error.reason, "CREDIT");
    pd_credit_close(&credit);
    pd_credit_pool_fini(&pool);
}

/* A producer in the middle of a block: it is held until it is whole. */
struct producer {
    struct pd_credit credit;
    uint64_t rest;   /* of the open block */
    uint64_t block;  /* its bytes that are held */
    uint32_t blocks; /* completed */
};

/* Sends what the credit allows; a whole block is in the log at once. */
static void produce(struct producer *producer)
{
    uint64_t bytes =
        unsent(&producer->credit) < producer->rest ? unsent(&producer->credit) : producer->rest;

    if (bytes > 0 && below(4) == 0)
        bytes = 1 + below((uint32_t)bytes);
    use(&producer->credit, bytes);
    producer->rest -= bytes;
    producer->block += bytes;
    if (producer->rest == 0 && producer->block > 0) {
        pd_credit_release(&producer->credit, producer->block);
        producer->block = 0;
        producer->blocks++;
    }
    (void)pd_credit_grant(&producer->credit, producer->rest);
}

/* Many producers with blocks of up to the largest size, in a small budget: the sum holds (the pool
 * checks it at each step) and each goes on. */
static void large_blocks_complete(void **state)
{
    enum { PRODUCERS = 40 };
    struct pd_credit_pool pool;
    struct producer producers[PRODUCERS] = {0};
    struct pd_error error;

    (void)state;
    pool_of(&pool, 64 * MIB);
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        assert_int_equal(pd_credit_open(&producers[i].credit, &pool, UINT64_MAX, &error), 0);
        (void)pd_credit_grant(&producers[i].credit, 0);
    }
    for (uint32_t round = 0; round < 200000; round++) {
        struct producer *producer = &producers[below(PRODUCERS)];
        if (producer->rest == 0)
            producer->rest =
                below(3) ? 1 + below(MIB) : 1 + below((uint32_t)pd_credit_block_bytes(&pool));
        produce(producer);
        assert_true(pd_credit_reserved_bytes(&pool) <= 64 * MIB);
    }
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        if (producers[i].blocks < 5)
            fail_msg("producer %u completed %u blocks", i, producers[i].blocks);
        pd_credit_close(&producers[i].credit);
    }
    assert_int_equal(pd_credit_reserved_bytes(&pool), 0);
    pd_credit_pool_fini(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_single_producer_grows),
        cmocka_unit_test(idle_calls_cost_little),
        cmocka_unit_test(overrun_is_refused),
        cmocka_unit_test(large_blocks_complete),
    };
    const char *given = getenv("PD_SEED");

    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    printf("seed %" PRIu64 "\n", seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
