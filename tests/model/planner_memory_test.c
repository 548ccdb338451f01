/* The planner's memory is O(W + L + shuffle buffer + lanes): flat however many samples pass through
 * it, and no larger than those terms.
 *
 * Counts the heap's bytes in use, at the start and ever after. PD_SAMPLES sets how many samples (2
 * million by default; 1.7 * 10^8 in the long run, of which the first shape takes 10^8). */
#include "base/check.h"
#include "packer/planner.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#define SPAN 1024
#define ENTRY_BYTES_MAX 160 /* per sample in the window or the buffer, all structures together */

/* An endless lane made on the fly: block n holds SPAN heads of random length; every 4,096th is far
 * too long. */
struct endless {
    struct pd_head heads[SPAN];
    uint64_t blocks; /* that exist */
    bool over;
};

static uint32_t length_of(uint64_t number, bool over)
{
    uint64_t x = (number + 1) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    if (over && number % 4096 == 0)
        return 30000;
    return 1 + (uint32_t)(x % 1000);
}

static int read_endless(void *ctx, uint32_t lane, struct pd_cursor at, const struct pd_head **heads)
{
    struct endless *lanes = ctx;
    uint64_t block = at.index >= SPAN ? at.block + 1 : at.block;
    uint32_t from = at.index >= SPAN ? 0 : at.index;
    if (block >= lanes->blocks)
        return 0;
    for (uint32_t i = from; i < SPAN; i++)
        lanes->heads[i] =
            (struct pd_head){.block = block,
                             .index = i,
                             .stream = lane,
                             .seq = block * SPAN + i,
                             .length_tokens = length_of(block * SPAN + i, lanes->over),
                             .weight = 1};
    *heads = lanes->heads + from;
    return (int)(SPAN - from);
}

static size_t heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

struct shape {
    const char *name;
    struct pd_rules rules;
    uint64_t share; /* of the samples, in percent */
};

static int run(const struct shape *shape, uint64_t samples)
{
    static struct endless lanes;
    const struct pd_rules *rules = &shape->rules;
    struct pd_supply supply = {&lanes, read_endless};
    struct pd_planner_stats stats;
    struct pd_pack pack = {0};
    struct pd_want want;
    struct pd_planner *planner;
    for (uint32_t i = 0; i < rules->window_samples; i++) /* the pack's memory is the caller's */
        PD_CHECK(pd_pack_push(&pack, &(struct pd_segment){.length_tokens = 1}) == 0);
    size_t before = heap_bytes(), settled = 0, most = 0;
    lanes.blocks = UINT64_MAX;
    lanes.over = rules->over_length == PD_OVER_SPLIT;
    PD_CHECK(pd_planner_new(rules, &planner, NULL) == 0);
    do {
        PD_CHECK(pd_planner_next(planner, &supply, &pack, &want) == 0);
        pd_planner_stats(planner, &stats);
        size_t now = heap_bytes() - before;
        if (stats.samples < samples / 10)
            settled = now > settled ? now : settled;
        most = now > most ? now : most;
    } while (stats.samples < samples);
    size_t shuffled = rules->order == PD_ORDER_SHUFFLE ? 2 * (size_t)rules->shuffle_samples : 0;
    size_t allowed = (rules->window_samples + shuffled) * ENTRY_BYTES_MAX +
                     (size_t)rules->seq_len * 16 + (size_t)rules->lane_count * 128 + 65536;
    printf("%s: %llu samples, %zu bytes after a tenth, %zu at most, %zu allowed\n", shape->name,
           (unsigned long long)stats.samples, settled, most, allowed);
    pd_planner_free(planner);
    pd_pack_fini(&pack);
    return most > settled || most > allowed;
}

int main(void)
{
    const char *text = getenv("PD_SAMPLES");
    uint64_t samples = text ? strtoull(text, NULL, 10) : 2000000;
    struct shape plain = {"one lane",
                          {.seq_len = 8192,
                           .window_samples = 1024,
                           .window_bytes = UINT64_MAX,
                           .seg_align = 1,
                           .lane_count = 1,
                           .lanes = {{.weight = 1}}},
                          60};
    struct shape shuffled = plain, ordered = plain;
    shuffled.name = "shuffled, split, two weighted lanes";
    shuffled.share = 20;
    shuffled.rules.order = PD_ORDER_SHUFFLE;
    shuffled.rules.shuffle_samples = 10000;
    shuffled.rules.shuffle_bytes = UINT64_MAX;
    shuffled.rules.over_length = PD_OVER_SPLIT;
    shuffled.rules.lane_count = 2;
    shuffled.rules.lanes[1].weight = 3;
    ordered.name = "ordered, 64 lanes";
    ordered.share = 1;
    ordered.rules.merge = PD_MERGE_ORDERED;
    ordered.rules.lane_count = 64;
    return run(&plain, samples * plain.share / 100) +
           run(&shuffled, samples * shuffled.share / 100) +
           run(&ordered, samples * ordered.share / 100);
}
