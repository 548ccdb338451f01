/* Balance: blocks and parts by hand, conservation and causality on random packs (seeds printed),
 * and equal work on the long length laws. */
#include "packer/balance.h"
#include "packer/cost.h"
#include "tests/unit/planner_feed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_blocks(void **state)
{
    const uint32_t steps[] = {1, 1, 2, 4, 8, 16, 16, 16};
    uint64_t step = 0;
    (void)state;
    for (uint64_t number = 0; number < 2000; number++) {
        struct pd_balance_block block = pd_balance_block_at(number);
        assert_int_equal(block.number, number);
        assert_int_equal(block.steps, steps[number < 7 ? number : 7]);
        assert_int_equal(block.first_step, step);
        for (uint32_t i = 0; i < block.steps; i++)
            assert_int_equal(pd_balance_block_of(step + i).number, number);
        step += block.steps;
    }
}

struct made {
    struct pd_balance_pack *packs;
    uint32_t *order;
    uint32_t count;
};

static struct made make(struct feed_random *random, uint32_t count)
{
    struct made made = {.packs = calloc(count + 1, sizeof *made.packs),
                        .order = calloc(count + 1, sizeof *made.order),
                        .count = count};
    assert_true(made.packs && made.order);
    for (uint32_t i = 0; i < count; i++)
        made.packs[i] = (struct pd_balance_pack){.cost = feed_random(random) % 50,
                                                 .payload_bytes = feed_random(random) % 100};
    return made;
}

static void drop(struct made *made)
{
    free(made->packs);
    free(made->order);
}

/* A plain reading of the rule, step by step. */
static void naive_order(const struct pd_balance *b, const struct made *made, uint32_t *sizes)
{
    uint32_t at = 0, step = 0;
    while (at < made->count) {
        struct pd_balance_block block = pd_balance_block_of(step);
        uint32_t end = (uint32_t)block.first_step + block.steps, taken = 0;
        uint64_t bytes = 0;
        for (; step + taken < end && at + (taken + 1) * b->step_packs <= made->count; taken++) {
            for (uint32_t i = 0; i < b->step_packs; i++)
                bytes += made->packs[at + taken * b->step_packs + i].payload_bytes;
            if (taken > 0 && bytes > b->block_bytes)
                break;
        }
        uint32_t packs = taken ? taken * b->step_packs : made->count - at;
        taken = taken ? taken : 1;
        for (uint32_t i = 0; i < taken; i++)
            sizes[step + i] = packs;
        step += taken;
        at += packs;
    }
}

/* Each run is P neighbours by (cost, number): no pack of a part lies, by rank, between two packs of
 * another of its steps. */
static void assert_runs(const struct pd_balance *b, const struct made *made, const uint32_t *sizes)
{
    uint32_t at = 0, step = 0;
    while (at < made->count) {
        uint32_t size = sizes[step], steps = (size + b->step_packs - 1) / b->step_packs;
        for (uint32_t i = 0; i < size; i++)
            assert_in_range(made->order[at + i], at, at + size - 1);
        for (uint32_t s = 0; s < steps; s++) {
            const uint32_t *entry = made->order + at + s * b->step_packs;
            uint32_t width = size < b->step_packs ? size : b->step_packs, below = 0;
            for (uint32_t i = 1; i < width; i++) {
                uint64_t left = made->packs[entry[i - 1]].cost, right = made->packs[entry[i]].cost;
                assert_true(left < right || (left == right && entry[i - 1] < entry[i]));
            }
            for (uint32_t i = at; i < at + size; i++)
                below += made->packs[i].cost < made->packs[entry[0]].cost ||
                         (made->packs[i].cost == made->packs[entry[0]].cost && i < entry[0]);
            assert_int_equal(below % width, 0);
        }
        at += size;
        step += steps;
    }
}

static void test_random(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct feed_random random = {seed};
        struct pd_balance b = {.seed = seed,
                               .block_bytes = 50 + feed_random(&random) % 3000,
                               .step_packs = 1 + (uint32_t)(feed_random(&random) % 9)};
        struct made made = make(&random, (uint32_t)(feed_random(&random) % 600));
        uint32_t *sizes = calloc(made.count + 1, sizeof *sizes);
        uint8_t *seen = calloc(made.count + 1, 1);
        assert_true(sizes && seen);
        uint32_t put = pd_balance_order(&b, made.packs, made.count, true, made.order);
        if (put != made.count)
            fail_msg("seed %lu: %u of %u packs", (unsigned long)seed, put, made.count);
        for (uint32_t i = 0; i < put; i++) {
            assert_true(made.order[i] < made.count);
            assert_int_equal(seen[made.order[i]]++, 0);
        }
        naive_order(&b, &made, sizes);
        assert_runs(&b, &made, sizes);
        free(sizes);
        free(seen);
        drop(&made);
    }
}

/* What is served while more packs come is what the whole feed gives: nothing served changes later.
 */
static void test_prefix(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct feed_random random = {seed};
        struct pd_balance b = {.seed = 7,
                               .block_bytes = 50 + feed_random(&random) % 2000,
                               .step_packs = 1 + (uint32_t)(feed_random(&random) % 4)};
        struct made made = make(&random, 200);
        uint32_t *early = calloc(made.count, sizeof *early), last = 0;
        assert_non_null(early);
        pd_balance_order(&b, made.packs, made.count, true, made.order);
        for (uint32_t count = 0; count <= made.count; count++) {
            uint32_t put = pd_balance_order(&b, made.packs, count, false, early);
            if (put < last || memcmp(early, made.order, put * sizeof *early) != 0)
                fail_msg("seed %lu: another order after %u packs", (unsigned long)seed, count);
            last = put;
        }
        assert_true(last + PD_BALANCE_STEPS_MAX * b.step_packs > made.count);
        free(early);
        drop(&made);
    }
}

static void test_part_edges(void **state)
{
    const struct pd_balance_pack packs[32] = {{.cost = 1, .payload_bytes = 10}};
    struct pd_balance b = {.block_bytes = 1000, .step_packs = 4};
    struct pd_balance_block block = pd_balance_block_at(4); /* 8 steps */
    struct pd_balance_part part;
    (void)state;
    struct pd_balance_packs planned = {.packs = packs, .count = 31};
    assert_int_equal(pd_balance_part_of(&b, &block, &planned, 0, &part), PD_EAGAIN);
    planned.count = 32;
    assert_int_equal(pd_balance_part_of(&b, &block, &planned, 7, &part), 0);
    assert_int_equal(part.first_step, 0);
    assert_int_equal(part.steps, 8);
    assert_int_equal(part.pack_count, 32);
    planned = (struct pd_balance_packs){.packs = packs, .count = 9, .ended = true};
    assert_int_equal(pd_balance_part_of(&b, &block, &planned, 1, &part), 0);
    assert_int_equal(part.steps, 2);
    assert_int_equal(pd_balance_part_of(&b, &block, &planned, 2, &part), 0);
    assert_int_equal(part.first_pack, 8);
    assert_int_equal(part.pack_count, 1);
    assert_int_equal(pd_balance_part_of(&b, &block, &planned, 3, &part), PD_EEND);
    b.block_bytes = 0; /* never less than one step */
    planned = (struct pd_balance_packs){.packs = packs, .count = 8};
    assert_int_equal(pd_balance_part_of(&b, &block, &planned, 1, &part), PD_EAGAIN);
    assert_int_equal(pd_balance_part_of(&b, &block, &planned, 0, &part), 0);
    assert_int_equal(part.pack_count, 4);
    struct pd_balance_pack heavy[12];
    for (int i = 0; i < 12; i++)
        heavy[i] = (struct pd_balance_pack){.cost = 1, .payload_bytes = 1};
    planned = (struct pd_balance_packs){.packs = heavy, .count = 12};
    assert_int_equal(pd_balance_part_of(&b, &block, &planned, 1, &part), 0);
    assert_int_equal(part.first_step, 1);
    assert_int_equal(part.steps, 1);
}

static void test_seed_moves_runs_only(void **state)
{
    struct feed_random random = {99};
    struct made made = make(&random, 48 * 4);
    uint32_t *other = calloc(made.count, sizeof *other), moved = 0;
    struct pd_balance b = {.seed = 1, .block_bytes = UINT64_MAX, .step_packs = 4};
    (void)state;
    assert_non_null(other);
    pd_balance_order(&b, made.packs, made.count, true, made.order);
    b.seed = 2;
    pd_balance_order(&b, made.packs, made.count, true, other);
    for (uint32_t block = 32; block < 48; block += 16)
        for (uint32_t step = block; step < block + 16; step++) {
            bool found = false;
            for (uint32_t s = block; s < block + 16; s++)
                found |= memcmp(other + step * 4, made.order + s * 4, 16) == 0;
            assert_true(found);
            moved += memcmp(other + step * 4, made.order + step * 4, 16) != 0;
        }
    assert_true(moved >= 8);
    free(other);
    drop(&made);
}

/* The same packs make a step whatever the world: the order is not told, and entry j goes to (j /
 * (dp*rows), (j / rows) % dp, j % rows). */
static void test_worlds(void **state)
{
    const struct pd_world worlds[] = {{8, 1, 1}, {2, 2, 2}, {4, 1, 2}, {1, 8, 1}, {1, 1, 8}};
    struct feed_random random = {5};
    struct made made = make(&random, 64 * 8);
    struct pd_balance b = {.seed = 3, .block_bytes = UINT64_MAX, .step_packs = 8};
    uint64_t costs[64 * 8];
    (void)state;
    pd_balance_order(&b, made.packs, made.count, true, made.order);
    for (uint32_t i = 0; i < made.count; i++)
        costs[i] = made.packs[made.order[i]].cost;
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
        made.packs[i] = (struct pd_balance_pack){.cost = totals.attention_cost,
                                                 .payload_bytes = 4 * totals.real_tokens};
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
        costs[i] = made->packs[order ? order[i] : i].cost;
    struct pd_imbalance got = pd_imbalance_of(costs, made->count, world);
    free(costs);
    return got;
}

static void check_law(const struct law *law)
{
    uint32_t step_packs = law->world.dp_size * law->world.rows * law->world.accum;
    struct made made = plan_law(law, MICRO_STEPS * law->world.dp_size * law->world.rows);
    struct pd_balance b = {.seed = 1, .block_bytes = 1ull << 30, .step_packs = step_packs};
    struct pd_imbalance off = measure(&made, NULL, law->world);
    assert_int_equal(pd_balance_order(&b, made.packs, made.count, true, made.order), made.count);
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
        cmocka_unit_test(test_blocks),     cmocka_unit_test(test_random),
        cmocka_unit_test(test_prefix),     cmocka_unit_test(test_part_edges),
        cmocka_unit_test(test_seed_moves_runs_only), cmocka_unit_test(test_worlds),
        cmocka_unit_test(test_imbalance),  cmocka_unit_test(test_laws),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
