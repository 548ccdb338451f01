/* Whole-set packing and its bounds: against brute force on tiny sets, and the reference figures of
 * the length lists. */
#include "packer/offline.h"
#include "tests/unit/planner_feed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define LIST_MAX 12000

struct list {
    uint32_t length[LIST_MAX];
    size_t count;
    uint64_t sum;
};

static void read_list(struct list *list, const char *name)
{
    char path[256], line[64];
    snprintf(path, sizeof path, "tests/data/%s.lengths.txt", name);
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("%s is missing", path);
    *list = (struct list){.count = 0};
    while (file && fgets(line, sizeof line, file) && list->count < LIST_MAX) {
        list->length[list->count] = (uint32_t)strtoul(line, NULL, 10);
        list->sum += list->length[list->count++];
    }
    if (file)
        fclose(file);
}

/* Every item in one pack, no pack over the cap, packs numbered without a hole. */
static void assert_packed(const uint32_t *length, const uint32_t *pack_of, size_t count,
                          uint32_t seq_len, size_t packs)
{
    uint64_t *used = calloc(packs + 1, sizeof *used);
    assert_non_null(used);
    for (size_t i = 0; used && i < count; i++) {
        assert_true(pack_of[i] < packs);
        used[pack_of[i]] += length[i];
    }
    for (size_t p = 0; used && p < packs; p++)
        assert_in_range(used[p], 1, seq_len);
    free(used);
}

static size_t naive(bool best, const uint32_t *length, size_t count, uint32_t seq_len)
{
    uint32_t sorted[64], used[64];
    size_t packs = 0;
    for (size_t i = 0; i < count; i++) {
        size_t at = i;
        for (; at > 0 && sorted[at - 1] < length[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = length[i];
    }
    for (size_t i = 0; i < count; i++) {
        size_t chosen = packs;
        for (size_t p = 0; p < packs; p++)
            if (used[p] + sorted[i] <= seq_len &&
                (chosen == packs || (best && used[p] > used[chosen])))
                chosen = p;
        if (chosen == packs)
            used[packs++] = 0;
        used[chosen] += sorted[i];
    }
    return packs;
}

static size_t optimum(const uint32_t *length, size_t count, uint32_t seq_len, uint32_t *room,
                      size_t packs, size_t best)
{
    if (packs >= best)
        return best;
    if (count == 0)
        return packs;
    for (size_t p = 0; p <= packs; p++) {
        if (p == packs)
            room[p] = seq_len;
        if (room[p] < *length)
            continue;
        room[p] -= *length;
        best = optimum(length + 1, count - 1, seq_len, room, p == packs ? packs + 1 : packs, best);
        room[p] += *length;
    }
    return best;
}

static void test_against_plain_packing(void **state)
{
    struct feed_random random = {1234};
    (void)state;
    for (int round = 0; round < 2000; round++) {
        uint32_t length[64], pack_of[64], room[64];
        size_t count = feed_random(&random) % (round % 2 ? 9 : 60), packs;
        uint32_t seq_len = 1 + (uint32_t)(feed_random(&random) % 200);
        for (size_t i = 0; i < count; i++)
            length[i] = 1 + (uint32_t)(feed_random(&random) % seq_len);
        for (int how = PD_OFFLINE_FFD; how <= PD_OFFLINE_BFD; how++) {
            assert_int_equal(
                pd_offline_pack((enum pd_offline)how, length, count, seq_len, pack_of, &packs), 0);
            assert_int_equal(packs, naive(how == PD_OFFLINE_BFD, length, count, seq_len));
            assert_packed(length, pack_of, count, seq_len, packs);
        }
        if (count < 9) {
            size_t least = optimum(length, count, seq_len, room, 0, count + 1);
            size_t bound = pd_offline_lower_bound(length, count, seq_len);
            assert_true(bound <= least && least <= packs);
            assert_in_range(pd_offline_ceiling_ppm(length, count, seq_len), 1, 1000000);
        }
    }
}

static void test_bad_input(void **state)
{
    const uint32_t zero[] = {5, 0}, over[] = {5, 11};
    size_t packs;
    (void)state;
    assert_int_equal(pd_offline_pack(PD_OFFLINE_FFD, zero, 2, 10, NULL, &packs), PD_EINVAL);
    assert_int_equal(pd_offline_pack(PD_OFFLINE_BFD, over, 2, 10, NULL, &packs), PD_EINVAL);
    assert_int_equal(pd_offline_pack(PD_OFFLINE_BFD, over, 1, 0, NULL, &packs), PD_EINVAL);
    assert_int_equal(pd_offline_pack(PD_OFFLINE_BFD, over, 0, 10, NULL, &packs), 0);
    assert_int_equal(packs, 0);
}

/* The whole list through the planner, end included. */
static size_t planned(const struct list *list, enum pd_strategy strategy, uint64_t *used)
{
    struct pd_rules rules = feed_rules();
    struct feed feed;
    rules.seq_len = 4096;
    rules.window_samples = 1024;
    rules.strategy = strategy;
    feed_init(&feed, &rules);
    for (size_t i = 0; i < list->count; i++)
        feed_push(&feed, 0, list->length[i]);
    assert_int_equal(feed_end(&feed), 0);
    while (feed_next(&feed) == 0)
        ;
    struct pd_planner_stats stats = feed_stats(&feed);
    assert_int_equal(stats.samples, list->count);
    *used = stats.used_slots;
    feed_fini(&feed);
    return stats.packs;
}

static void test_reference_figures(void **state)
{
    static struct list list;
    size_t ffd, bfd;
    uint64_t used;
    (void)state;
    read_list(&list, "seed_packing");
    assert_int_equal(list.count, 2000);
    assert_int_equal(pd_offline_lower_bound(list.length, list.count, 4096), 210);
    assert_int_equal(pd_offline_pack(PD_OFFLINE_FFD, list.length, list.count, 4096, NULL, &ffd), 0);
    assert_int_equal(pd_offline_pack(PD_OFFLINE_BFD, list.length, list.count, 4096, NULL, &bfd), 0);
    assert_in_range(ffd, 210, 211);
    size_t exact = planned(&list, PD_STRATEGY_EXACT, &used);
    assert_true(exact <= ffd);
    assert_int_equal(used, list.sum);
    double before = 100 - 100.0 * (double)list.sum / (2000.0 * 4096);
    double after = 100 - 100.0 * (double)list.sum / ((double)exact * 4096);
    print_message("seed_packing: ffd %zu, bfd %zu, exact %zu packs; padding %.2f %% -> %.3f %%\n",
                  ffd, bfd, exact, before, after);
    assert_true(before > 89.4 && before < 89.6);
    assert_true(after < 0.6);
    assert_int_equal(planned(&list, PD_STRATEGY_NONE, &used), 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_plain_packing),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_reference_figures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
