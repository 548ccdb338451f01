/* The planner against the plain one, and against itself: other block boundaries, other rhythms of
 * calls, save and restore at any point. Seeds are printed; PACKD_TEST_SEED runs one, PD_CASES that
 * many. */
#include "tests/model/planner_case.h"

#include <stdio.h>
#include <stdlib.h>

static int failures;

static void expect_none(uint64_t seed, const char *what, const char *why)
{
    if (!why)
        return;
    printf("seed %llu, %s: %s\n", (unsigned long long)seed, what, why);
    failures++;
}

static void compare(uint64_t seed, const char *what, struct packs got, const struct packs *want,
                    bool places)
{
    expect_none(seed, what, packs_differ(&got, want, places));
    packs_fini(&got);
}

static const char *counts_differ(const struct pd_planner_stats *stats, struct model_counts counts)
{
    return stats->rejected_samples != counts.rejected     ? "rejected_samples"
           : stats->skipped_samples != counts.skipped     ? "skipped_samples"
           : stats->truncated_samples != counts.truncated ? "truncated_samples"
           : stats->split_samples != counts.split         ? "split_samples"
                                                          : NULL;
}

struct seen_kinds {
    uint64_t packs, segments, splits, skips, truncated, blocked, ended;
};

static void run_case(uint64_t seed, struct seen_kinds *kinds)
{
    struct chance chance = chance_of_seed(seed);
    struct planner_case c;
    case_init(&c, &chance);
    struct packs live = case_run(&c, &chance, RUN_LIVE, false);
    struct model_counts counts;
    struct packs model = case_model(&c, &counts);
    expect_none(seed, "model", packs_differ(&live, &model, true));
    expect_none(seed, "property", packs_unsound(&c, &live));
    expect_none(seed, "count", counts_differ(&live.stats, counts));
    compare(seed, "other rhythm", case_run(&c, &chance, RUN_AGAIN, false), &live, true);
    compare(seed, "restarts", case_run(&c, &chance, RUN_AGAIN, true), &live, true);
    compare(seed, "all at once", case_run(&c, &chance, RUN_AT_ONCE, false), &live, true);
    compare(seed, "all at once, restarts", case_run(&c, &chance, RUN_AT_ONCE, true), &live, true);
    case_recut(&c, &chance);
    compare(seed, "other blocks", case_run(&c, &chance, RUN_AT_ONCE, true), &live, false);
    kinds->packs += live.count;
    kinds->segments += live.stats.parts;
    kinds->splits += live.stats.split_samples;
    kinds->skips += live.stats.skipped_samples;
    kinds->truncated += live.stats.truncated_samples;
    kinds->blocked += live.end == PD_EAGAIN;
    kinds->ended += live.end == PD_EEND;
    packs_fini(&live);
    packs_fini(&model);
    case_fini(&c);
}

int main(void)
{
    const char *seed = getenv("PACKD_TEST_SEED"), *cases = getenv("PD_CASES");
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 1;
    uint64_t count = seed ? 1 : cases ? strtoull(cases, NULL, 10) : 400;
    struct seen_kinds kinds = {0};
    for (uint64_t i = 0; i < count && failures < 5; i++)
        run_case(first + i, &kinds);
    printf(
        "seeds %llu to %llu: %llu packs, %llu segments, %llu split, %llu truncated, %llu skipped, "
        "%llu ended, %llu waiting; %d failures\n",
        (unsigned long long)first, (unsigned long long)(first + count - 1),
        (unsigned long long)kinds.packs, (unsigned long long)kinds.segments,
        (unsigned long long)kinds.splits, (unsigned long long)kinds.truncated,
        (unsigned long long)kinds.skips, (unsigned long long)kinds.ended,
        (unsigned long long)kinds.blocked, failures);
    bool all_kinds = kinds.splits && kinds.truncated && kinds.skips && kinds.ended && kinds.blocked;
    return failures > 0 || (!seed && !all_kinds);
}
