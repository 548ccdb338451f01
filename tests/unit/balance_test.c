/* Balance: blocks and parts by hand, conservation and causality on random packs (seeds printed),
 * and equal work on the long length laws. */
#include "packer/balance.h"
#include "packer/cost.h"
#include "tests/unit/planner_feed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct pd_balance_rules balance_of(uint64_t seed, uint32_t step_packs, uint32_t steps_max)
{
    return (struct pd_balance_rules){
        .seed = seed, .step_packs = step_packs, .steps_max = steps_max};
}

/* Blocks of 1, 1, 2, 4, 8, 16, 16, ... steps, each cut into parts of at most steps_max. */
static void test_parts(void **state)
{
    const uint32_t sizes[] = {1, 1, 2, 4, 8, 16, 16, 16};
    (void)state;
    for (uint32_t most = 1; most <= PD_BALANCE_STEPS_MAX; most++) {
        struct pd_balance_rules b = balance_of(0, 3, most);
        uint64_t step = 0;
        for (uint64_t block = 0; block < 300; block++) {
            uint32_t left = sizes[block < 7 ? block : 7];
            while (left > 0) {
                uint32_t steps = left < most ? left : most;
                for (uint32_t i = 0; i < steps; i++) {
                    struct pd_balance_part part = pd_balance_part_of(&b, step + i);
                    assert_int_equal(part.block, block);
                    assert_int_equal(part.first_step, step);
                    assert_int_equal(part.steps, steps);
                }
                step += steps;
                left -= steps;
            }
        }
    }
}

static void test_steps_max(void **state)
{
    (void)state;
    assert_int_equal(pd_balance_steps_max(1000, 10, 10), 10);
    assert_int_equal(pd_balance_steps_max(999, 10, 10), 9);
    assert_int_equal(pd_balance_steps_max(99, 10, 10), 1); /* never less than one */
    assert_int_equal(pd_balance_steps_max(0, 10, 10), 1);
    assert_int_equal(pd_balance_steps_max(UINT64_MAX, 1, 1), PD_BALANCE_STEPS_MAX);
    /* the longest law: 64 ranks of 128 k positions fill 16 steps of the default 1 GiB */
    assert_int_equal(pd_balance_steps_max(1ull << 30, 4 * 131072, 64), PD_BALANCE_STEPS_MAX);
}

struct made {
    uint64_t *costs;
    uint32_t *order;
    uint32_t count;
};

static struct made make(struct feed_random *random, uint32_t count)
{
    struct made made = {.costs = calloc(count + 1, sizeof *made.costs),
                        .order = calloc(count + 1, sizeof *made.order),
                        .count = count};
    assert_true(made.costs && made.order);
    for (uint32_t i = 0; i < count; i++)
        made.costs[i] = feed_random(random) % 50;
    return made;
}

static void drop(struct made *made)
{
    free(made->costs);
    free(made->order);
}

/* Packs of the part that go before this one when sorted by (cost, number). */
static uint32_t rank_in(const struct made *made, uint32_t first, uint32_t count, uint32_t pack)
{
    uint32_t below = 0;
    for (uint32_t i = first; i < first + count; i++)
        below +=
            made->costs[i] < made->costs[pack] || (made->costs[i] == made->costs[pack] && i < pack);
    return below;
}

/* Each step of [first, first + count) is P neighbours by (cost, number) of those packs. */
static void assert_runs(const struct made *made, uint32_t first, uint32_t count, uint32_t width)
{
    for (uint32_t at = first; at < first + count; at += width) {
        uint32_t lowest = rank_in(made, first, count, made->order[at]);
        assert_int_equal(lowest % width, 0);
        for (uint32_t i = 0; i < width; i++) {
            assert_in_range(made->order[at + i], first, first + count - 1);
            assert_int_equal(rank_in(made, first, count, made->order[at + i]), lowest + i);
        }
    }
}

static void assert_parts(const struct pd_balance_rules *b, const struct made *made)
{
    uint32_t at = 0;
    while (at < made->count) {
        struct pd_balance_part part = pd_balance_part_of(b, at / b->step_packs);
        uint32_t there = part.steps * b->step_packs, left = made->count - at;
        there = there < left ? there : left;
        uint32_t whole = there - there % b->step_packs;
        if (whole > 0)
            assert_runs(made, at, whole, b->step_packs);
        if (there > whole)
            assert_runs(made, at + whole, there - whole, there - whole);
        at += there;
    }
}

static void test_random(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct feed_random random = {seed};
        struct pd_balance_rules b = balance_of(seed, 1 + (uint32_t)(feed_random(&random) % 9),
                                               1 + (uint32_t)(feed_random(&random) % 16));
        struct made made = make(&random, (uint32_t)(feed_random(&random) % 600));
        uint8_t *seen = calloc(made.count + 1, 1);
        assert_non_null(seen);
        uint32_t put = pd_balance_order(&b, made.costs, made.count, true, made.order);
        if (put != made.count)
            fail_msg("seed %lu: %u of %u packs", (unsigned long)seed, put, made.count);
        for (uint32_t i = 0; i < put; i++) {
            assert_true(made.order[i] < made.count);
            assert_int_equal(seen[made.order[i]]++, 0);
        }
        assert_parts(&b, &made);
        free(seen);
        drop(&made);
    }
}

/* What is served while more packs come is what the whole feed gives: nothing served changes. */
static void test_prefix(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct feed_random random = {seed};
        struct pd_balance_rules b = balance_of(7, 1 + (uint32_t)(feed_random(&random) % 4),
                                               1 + (uint32_t)(feed_random(&random) % 16));
        struct made made = make(&random, 200);
        uint32_t *early = calloc(made.count, sizeof *early), last = 0;
        assert_non_null(early);
        pd_balance_order(&b, made.costs, made.count, true, made.order);
        for (uint32_t count = 0; count <= made.count; count++) {
            uint32_t put = pd_balance_order(&b, made.costs, count, false, early);
            if (put < last || memcmp(early, made.order, put * sizeof *early) != 0)
                fail_msg("seed %lu: another order after %u packs", (unsigned long)seed, count);
            assert_true(put + b.steps_max * b.step_packs > count);
            last = put;
        }
        free(early);
        drop(&made);
    }
}

static void test_seed_moves_runs_only(void **state)
{
    struct feed_random random = {99};
    struct made made = make(&random, 48 * 4);
    uint32_t *other = calloc(made.count, sizeof *other), moved = 0;
    struct pd_balance_rules b = balance_of(1, 4, 16);
    (void)state;
    assert_non_null(other);
    pd_balance_order(&b, made.costs, made.count, true, made.order);
    b.seed = 2;
    pd_balance_order(&b, made.costs, made.count, true, other);
    for (uint32_t step = 32; step < 48; step++) {
        bool found = false;
        for (uint32_t s = 32; s < 48; s++)
            found |= memcmp(other + step * 4, made.order + s * 4, 16) == 0;
        assert_true(found);
        moved += memcmp(other + step * 4, made.order + step * 4, 16) != 0;
    }
    assert_true(moved >= 8);
    free(other);
    drop(&made);
}

/* The same packs make a step whatever the world: the order is not told, and entry j goes to
 * (j / (dp*rows), (j / rows) % dp, j % rows). */
static void test_worlds(void **state)
{
    const struct pd_world worlds[] = {{8, 1, 1}, {2, 2, 2}, {4, 1, 2}, {1, 8, 1}, {1, 1, 8}};
    struct feed_random random = {5};
    struct made made = make(&random, 64 * 8);
    struct pd_balance_rules b = balance_of(3, 8, 16);
    uint64_t costs[64 * 8];
    (void)state;
    pd_balance_order(&b, made.costs, made.count, true, made.order);
    for (uint32_t i = 0; i < made.count; i++)
        costs[i] = made.costs[made.order[i]];
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
        struct pd_imbalance got = pd_imbalance_of(costs, made.count, worlds[w]);
        assert_int_equal(got.steps, 64);
        assert_true(got.micro_ppm >= got.step_ppm && got.step_ppm >= PD_PPM);
        if (worlds[w].dp_size == 1)
            assert_int_equal(got.micro_ppm, PD_PPM);
    }
    drop(&made);
}

static void test_imbalance(void **state)
{
    const uint64_t costs[] = {1, 3, 3, 1, /* second step */ 0, 0, 4, 4, /* not whole */ 9};
    struct pd_imbalance got = pd_imbalance_of(costs, 9, (struct pd_world){2, 1, 2});
    (void)state;
    assert_int_equal(got.steps, 2);
    assert_int_equal(got.step_ppm, 1000000);
    assert_int_equal(got.micro_ppm, (1500000 + 1500000 + 1000000 + 1000000) / 4);
    got = pd_imbalance_of(costs, 3, (struct pd_world){2, 1, 2});
    assert_int_equal(got.steps, 0);
}

/* ---- equal work on the long laws ---- */

/* A job's first steps are in short blocks and less equal: as many steps as make 1,024 micro-steps
 * dilute them. */
enum { MICRO_STEPS = 1024 };

struct law {
    const char *name;
    uint32_t seq_len;
    double median, sigma; /* log-normal, as shares of the pack */
    struct pd_world world;
};

static double normal(struct feed_random *random)
{
    double u = ((double)(feed_random(random) >> 11) + 0.5) / 9007199254740992.0;
    double v = ((double)(feed_random(random) >> 11) + 0.5) / 9007199254740992.0;
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static uint32_t draw(const struct law *law, struct feed_random *random)
{
    double length = law->median * exp(law->sigma * normal(random)) * law->seq_len;
    return length < 1 ? 1 : length > law->seq_len ? law->seq_len : (uint32_t)length;
}

/* An endless lane: heads are made as the planner moves on, and forgotten behind it. */
struct endless {
    const struct law *law;
    struct feed_random random;
    struct pd_head heads[512];
    uint64_t next; /* block of the next head to make */
};

static int read_endless(void *ctx, uint32_t lane, struct pd_cursor at, const struct pd_head **heads)
{
    struct endless *from = ctx;
    uint64_t want = at.block + (at.index > 0);
    (void)lane;
    *heads = from->heads;
    if (want < from->next) {
        *heads = from->heads + (want - (from->next - 512));
        return (int)(from->next - want);
    }
    for (int i = 0; i < 512; i++, from->next++)
        from->heads[i] = (struct pd_head){.block = from->next,
                                          .seq = from->next,
                                          .length_tokens = draw(from->law, &from->random),
                                          .weight = 1};
    return 512;
}

/* Packs of the served strategy on this law: cost and payload. */
static struct made plan_law(const struct law *law, uint32_t packs)
{
    const struct pd_cost cost = {.alpha = 24576, .beta = 1};
    struct endless from = {.law = law, .random = {law->seq_len + law->world.dp_size}};
    struct pd_supply supply = {&from, read_endless};
    struct pd_rules rules = feed_rules();
    struct pd_planner *planner;
    struct pd_pack pack = {0};
    struct pd_want want;
    struct made made = make(&from.random, packs);
    rules.seq_len = law->seq_len;
    rules.window_samples = 2048;
    assert_int_equal(pd_planner_new(&rules, &planner, NULL), 0);
    for (uint32_t i = 0; i < packs; i++) {
        struct pd_totals totals = {0};
        assert_int_equal(pd_planner_next(planner, &supply, &pack, &want), 0);
        pd_totals_add(&totals, &pack, PD_LOSS_TOKEN, cost);
        made.costs[i] = totals.attention_cost;
    }
    pd_pack_fini(&pack);
    pd_planner_free(planner);
    return made;
}

static struct pd_imbalance measure(const struct made *made, const uint32_t *order,
                                   struct pd_world world)
{
    uint64_t *costs = calloc(made->count, sizeof *costs);
    assert_non_null(costs);
    for (uint32_t i = 0; costs && i < made->count; i++)
        costs[i] = made->costs[order ? order[i] : i];
    struct pd_imbalance got = pd_imbalance_of(costs, made->count, world);
    free(costs);
    return got;
}

static void check_law(const struct law *law)
{
    uint32_t step_packs = law->world.dp_size * law->world.rows * law->world.accum;
    struct made made = plan_law(law, MICRO_STEPS * law->world.dp_size * law->world.rows);
    uint32_t steps_max = pd_balance_steps_max(1ull << 30, 4ull * law->seq_len, step_packs);
    struct pd_balance_rules b = balance_of(1, step_packs, steps_max);
    struct pd_imbalance off = measure(&made, NULL, law->world);
    assert_int_equal(pd_balance_order(&b, made.costs, made.count, true, made.order), made.count);
    struct pd_imbalance on = measure(&made, made.order, law->world);
    print_message("%s R=%u M=%u: max/mean per micro-step %.3f -> %.3f, per step %.3f -> %.3f\n",
                  law->name, law->world.dp_size, law->world.accum, (double)off.micro_ppm / 1e6,
                  (double)on.micro_ppm / 1e6, (double)off.step_ppm / 1e6,
                  (double)on.step_ppm / 1e6);
    /* Whole steps of P packs: counts are equal per rank. */
    assert_int_equal(on.steps, MICRO_STEPS / law->world.accum);
    assert_true(on.micro_ppm <= 1050000);
    assert_true(on.step_ppm <= 1050000);
    drop(&made);
}

static void test_laws(void **state)
{
    const struct law laws[] = {
        {"8k log-normal", 8192, 1.0 / 16, 1, {8, 1, 1}},
        {"8k log-normal", 8192, 1.0 / 16, 1, {64, 1, 1}},
        {"8k log-normal", 8192, 1.0 / 16, 1, {64, 1, 8}},
        {"32k log-normal", 32768, 1.0 / 16, 1, {8, 1, 1}},
        {"32k log-normal", 32768, 1.0 / 16, 1, {64, 1, 1}},
        {"32k log-normal", 32768, 1.0 / 16, 1, {64, 1, 4}},
        {"128k log-normal", 131072, 1.0 / 16, 1, {8, 1, 1}},
        {"128k log-normal", 131072, 1.0 / 16, 1, {64, 1, 1}},
        {"128k heavy tail", 131072, 1.0 / 64, 1.5, {8, 1, 1}},
        {"128k heavy tail", 131072, 1.0 / 64, 1.5, {64, 1, 8}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof laws / sizeof *laws; i++)
        check_law(&laws[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_steps_max),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_seed_moves_runs_only),
        cmocka_unit_test(test_worlds),
        cmocka_unit_test(test_imbalance),
        cmocka_unit_test(test_laws),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
