/* Ingest credit: the budget holds whatever the calls do, nobody starves for good, and overrun is
 * seen. */
#include "server/ingest/credit.h"
#include "tests/unit/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1024u * 1024u)
#define CALLS_MAX 4096u
#define HOSTS 5u

static uint64_t seed;

static uint32_t below(uint32_t bound)
{
    return test_below(&seed, bound);
}

static void pool_with_hosts(struct pd_credit_pool *pool, uint64_t bytes, uint64_t host_bytes)
{
    const struct pd_credit_limits limits = {.max_bytes = bytes,
                                            .block_bytes_max = 64 * MIB,
                                            .host_max_bytes = host_bytes,
                                            .host_count = HOSTS,
                                            .calls_max = CALLS_MAX};
    assert_int_equal(pd_credit_pool_init(pool, &limits), 0);
}

static void pool_of(struct pd_credit_pool *pool, uint64_t bytes)
{
    pool_with_hosts(pool, bytes, 0);
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
    assert_int_equal(pd_credit_open(&credit, &pool, 0, UINT64_MAX, &error), 0);
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
        assert_int_equal(pd_credit_open(&credits[i], &pool, 0, UINT64_MAX, &error), 0);
        assert_true(pd_credit_grant(&credits[i], 0));
        assert_true(unsent(&credits[i]) >= pool.floor_bytes);
        for (int tick = 0; tick < 3; tick++)
            assert_false(pd_credit_is_short(&credits[i], 0) && pd_credit_grant(&credits[i], 0));
    }
    assert_int_equal(pd_credit_open(&credits[CALLS_MAX], &pool, 0, UINT64_MAX, &error), PD_ELIMIT);
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
    assert_int_equal(pd_credit_open(&credit, &pool, 0, UINT64_MAX, &error), 0);
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

enum { PRODUCERS = 40 };

/* What the calls of a host have reserved, above floors of their own. */
static uint64_t reserved_of_host(const struct producer *producers, uint32_t host)
{
    uint64_t bytes = 0;
    for (uint32_t i = host; i < PRODUCERS; i += HOSTS)
        bytes += producers[i].credit.granted_bytes - producers[i].credit.released_bytes;
    return bytes;
}

/* Many producers with blocks of up to the largest size, in a small budget: the sums hold (the pool
 * checks its own at each step) and each goes on. */
static void large_blocks_within(uint64_t host_bytes)
{
    struct pd_credit_pool pool;
    struct producer producers[PRODUCERS] = {0};
    struct pd_error error;

    pool_with_hosts(&pool, 64 * MIB, host_bytes);
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        assert_int_equal(pd_credit_open(&producers[i].credit, &pool, i % HOSTS, UINT64_MAX, &error),
                         0);
        (void)pd_credit_grant(&producers[i].credit, 0);
    }
    for (uint32_t round = 0; round < 200000; round++) {
        struct producer *producer = &producers[below(PRODUCERS)];
        if (producer->rest == 0)
            producer->rest =
                below(3) ? 1 + below(MIB) : 1 + below((uint32_t)pd_credit_block_bytes(&pool));
        produce(producer);
        assert_true(pd_credit_reserved_bytes(&pool) <= 64 * MIB);
        for (uint32_t host = 0; host_bytes > 0 && host < HOSTS; host++)
            assert_true(reserved_of_host(producers, host) <=
                        host_bytes + PRODUCERS / HOSTS * pool.floor_bytes);
    }
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        if (producers[i].blocks < 5)
            fail_msg("producer %u completed %u blocks", i, producers[i].blocks);
        pd_credit_close(&producers[i].credit);
    }
    assert_int_equal(pd_credit_reserved_bytes(&pool), 0);
    pd_credit_pool_fini(&pool);
}

static void large_blocks_complete(void **state)
{
    (void)state;
    large_blocks_within(0);
}

static void large_blocks_complete_within_their_host(void **state)
{
    (void)state;
    large_blocks_within(4 * MIB);
    large_blocks_within(20 * MIB);
}

/* Calls that have used their windows up, each with a block begun. */
struct crowd {
    struct pd_credit_pool pool;
    struct pd_credit credits[200];
    uint32_t count;
};

static void make_crowd(struct crowd *crowd, uint32_t count)
{
    struct pd_error error;
    pool_of(&crowd->pool, 64 * MIB);
    crowd->count = count;
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(pd_credit_open(&crowd->credits[i], &crowd->pool, 0, UINT64_MAX, &error),
                         0);
        for (int n = 0; n < 4; n++) {
            (void)pd_credit_grant(&crowd->credits[i], 0);
            use(&crowd->credits[i], unsent(&crowd->credits[i]));
        }
    }
}

static void end_crowd(struct crowd *crowd)
{
    for (uint32_t i = 0; i < crowd->count; i++)
        pd_credit_close(&crowd->credits[i]);
    assert_int_equal(pd_credit_reserved_bytes(&crowd->pool), 0);
    pd_credit_pool_fini(&crowd->pool);
}

/* As many blocks are under way at once as there is room for. */
static void blocks_fill_their_room(void **state)
{
    const uint64_t block = MIB / 2;
    struct crowd crowd;
    uint32_t whole = 0;

    (void)state;
    make_crowd(&crowd, 200);
    for (uint32_t i = 0; i < crowd.count; i++) {
        (void)pd_credit_grant(&crowd.credits[i], block);
        whole += unsent(&crowd.credits[i]) >= block;
    }
    print_message("%u blocks at once\n", whole);
    assert_true(whole >= crowd.pool.all.block_bytes / block);
    end_crowd(&crowd);
}

/* One that does not fit stands in line: small ones that come later do not pass it, and once it
 * stands back they do. */
static void a_large_block_has_its_turn(void **state)
{
    const uint64_t block = MIB / 2;
    struct crowd crowd;

    (void)state;
    make_crowd(&crowd, 100);
    uint64_t largest = pd_credit_block_bytes(&crowd.pool);
    struct pd_credit *first = &crowd.credits[0], *large = &crowd.credits[1],
                     *later = &crowd.credits[2];
    assert_true(pd_credit_grant(first, block));
    assert_false(pd_credit_grant(large, largest));
    for (uint32_t i = 2; i < crowd.count; i++)
        assert_false(pd_credit_grant(&crowd.credits[i], block));
    pd_credit_stand_back(large);
    assert_true(pd_credit_grant(later, block));
    assert_false(pd_credit_grant(large, largest));
    use(first, block);
    pd_credit_release(first, held(first));
    pd_credit_close(later);
    crowd.credits[2] = crowd.credits[--crowd.count];
    assert_true(pd_credit_grant(large, largest));
    assert_true(unsent(large) >= largest);
    end_crowd(&crowd);
}

static void complete_largest_block(struct pd_credit *credit)
{
    uint64_t rest = pd_credit_block_bytes(credit->pool);
    while (rest > 0) {
        uint64_t bytes = unsent(credit) < rest ? unsent(credit) : rest;
        use(credit, bytes);
        rest -= bytes;
        bool grew = pd_credit_grant(credit, rest);
        assert_true(grew || rest == 0 || unsent(credit) > 0);
    }
    pd_credit_release(credit, held(credit));
}

/* A host whose calls hold all that it may have, one of them in the middle of its largest block:
 * another host's call completes such a block all the same; and one more of the first host gets its
 * floor, and its turn. */
static void a_full_host_hurts_no_other(void **state)
{
    enum { GREEDY = 8 };
    struct pd_credit_pool pool;
    struct pd_credit greedy[GREEDY], late, other;
    struct pd_error error;

    (void)state;
    pool_with_hosts(&pool, 256 * MIB, 16 * MIB);
    assert_int_equal(pd_credit_block_bytes(&pool), 8 * MIB);
    for (uint32_t i = 0; i < GREEDY; i++) {
        assert_int_equal(pd_credit_open(&greedy[i], &pool, 1, UINT64_MAX, &error), 0);
        for (int n = 0; n < 64; n++) { /* received, and never in the log */
            (void)pd_credit_grant(&greedy[i], 0);
            use(&greedy[i], unsent(&greedy[i]));
        }
    }
    assert_true(pd_credit_grant(&greedy[0], pd_credit_block_bytes(&pool)));
    assert_true(pd_credit_host_is_full(&greedy[0]));
    assert_false(pd_credit_grant(&greedy[1], pd_credit_block_bytes(&pool)));
    assert_true(pool.reserved_bytes <= 16 * MIB + GREEDY * pool.floor_bytes);
    assert_int_equal(pd_credit_open(&other, &pool, 2, UINT64_MAX, &error), 0);
    assert_true(pd_credit_grant(&other, 0));
    assert_true(unsent(&other) >= MIB);
    complete_largest_block(&other);
    assert_int_equal(pd_credit_open(&late, &pool, 1, UINT64_MAX, &error), 0);
    assert_true(pd_credit_grant(&late, 0));
    assert_true(unsent(&late) >= pool.floor_bytes);
    pd_credit_close(&greedy[0]);
    use(&late, unsent(&late));
    (void)pd_credit_grant(&late, pd_credit_block_bytes(&pool));
    assert_true(unsent(&late) < pd_credit_block_bytes(&pool)); /* the other is in line */
    assert_true(pd_credit_grant(&greedy[1], pd_credit_block_bytes(&pool)));
    assert_true(unsent(&greedy[1]) >= pd_credit_block_bytes(&pool));
    use(&late, unsent(&late));
    assert_false(pd_credit_grant(&late, pd_credit_block_bytes(&pool)));
    pd_credit_close(&greedy[1]);
    pd_credit_release(&late, held(&late));
    complete_largest_block(&late);
    for (uint32_t i = 2; i < GREEDY; i++)
        pd_credit_close(&greedy[i]);
    pd_credit_close(&late);
    pd_credit_close(&other);
    pd_credit_pool_fini(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_single_producer_grows),
        cmocka_unit_test(idle_calls_cost_little),
        cmocka_unit_test(overrun_is_refused),
        cmocka_unit_test(large_blocks_complete),
        cmocka_unit_test(large_blocks_complete_within_their_host),
        cmocka_unit_test(blocks_fill_their_room),
        cmocka_unit_test(a_large_block_has_its_turn),
        cmocka_unit_test(a_full_host_hurts_no_other),
    };
    seed = test_seed(0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
