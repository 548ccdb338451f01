/* See planner_feed.h. */
#include "tests/unit/planner_feed.h"

#include "base/check.h"
#include "tests/unit/random.h"

#include <math.h>
#include <stdlib.h>

struct pd_rules feed_rules(void)
{
    return (struct pd_rules){.seq_len = 1000,
                             .window_samples = 64,
                             .window_bytes = UINT64_MAX,
                             .shuffle_bytes = UINT64_MAX,
                             .seg_align = 1,
                             .lane_count = 1,
                             .lanes = {{.weight = 1, .passes_max = 1}}};
}

void feed_init(struct feed *feed, const struct pd_rules *rules)
{
    struct pd_error error;
    *feed = (struct feed){0};
    if (pd_planner_new(rules, &feed->planner, &error) != 0)
        pd_panic(__FILE__, __LINE__, "%s", error.text);
}

void feed_fini(struct feed *feed)
{
    for (int i = 0; i < FEED_LANES; i++)
        free(feed->lanes[i].heads);
    pd_planner_free(feed->planner);
    pd_pack_fini(&feed->pack);
}

struct pd_head *feed_push(struct feed *feed, uint32_t lane, uint32_t length_tokens)
{
    struct feed_lane *at = &feed->lanes[lane];
    if (at->count == at->capacity) {
        at->capacity = at->capacity ? 2 * at->capacity : 64;
        at->heads = realloc(at->heads, at->capacity * sizeof *at->heads);
        PD_CHECK(at->heads);
    }
    struct pd_head *head = &at->heads[at->count++];
    *head = (struct pd_head){.block = ++feed->place,
                             .stream = lane,
                             .seq = feed->seq[lane]++,
                             .source = lane,
                             .length_tokens = length_tokens,
                             .weight = 1};
    return head;
}

int feed_tell(struct feed *feed, struct pd_control control)
{
    control.at = ++feed->place;
    return pd_planner_control(feed->planner, &control);
}

int feed_flush(struct feed *feed, uint64_t packs)
{
    return feed_tell(feed, (struct pd_control){.kind = PD_CONTROL_FLUSH, .packs = packs});
}

int feed_end(struct feed *feed)
{
    return feed_tell(feed, (struct pd_control){.kind = PD_CONTROL_END_FEED});
}

int feed_end_lane(struct feed *feed, uint32_t lane)
{
    return feed_tell(feed, (struct pd_control){.kind = PD_CONTROL_END_LANE, .lane = lane});
}

static int read_lane(void *ctx, uint32_t lane, struct pd_cursor at, const struct pd_head **heads)
{
    struct feed *feed = ctx;
    const struct feed_lane *from = &feed->lanes[lane];
    size_t low = 0, high = from->count;
    feed->reads++;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const struct pd_head *head = &from->heads[middle];
        if (head->block < at.block || (head->block == at.block && head->index < at.index))
            low = middle + 1;
        else
            high = middle;
    }
    *heads = from->heads + low;
    return (int)(from->count - low);
}

int feed_next(struct feed *feed)
{
    struct pd_supply supply = {feed, read_lane};
    return pd_planner_next(feed->planner, &supply, &feed->pack, &feed->want);
}

struct pd_planner_stats feed_stats(const struct feed *feed)
{
    struct pd_planner_stats stats;
    pd_planner_stats(feed->planner, &stats);
    return stats;
}

void feed_restart(struct feed *feed)
{
    struct pd_buf buf = {0};
    struct pd_error error;
    PD_CHECK(pd_planner_save(feed->planner, &buf) == 0);
    pd_planner_free(feed->planner);
    if (pd_planner_restore(buf.data, buf.size_bytes, &feed->planner, &error) != 0)
        pd_panic(__FILE__, __LINE__, "%s", error.text);
    pd_buf_fini(&buf);
}

uint64_t feed_random(struct feed_random *random)
{
    return test_random(&random->state);
}

uint32_t feed_log_normal(struct feed_random *random, uint32_t seq_len)
{
    double u = ((double)(feed_random(random) >> 11) + 0.5) / 9007199254740992.0;
    double v = ((double)(feed_random(random) >> 11) + 0.5) / 9007199254740992.0;
    double share = exp(sqrt(-2 * log(u)) * cos(2 * M_PI * v)) / 16;
    double tokens = floor(share * seq_len);
    return tokens < 1 ? 1 : tokens > seq_len ? seq_len : (uint32_t)tokens;
}
