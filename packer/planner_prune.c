/* Rules by source, and statistics by view.
 *
 * Asked for each sample with spans; rules change at a pack's border only. Owner: the planner's
 * thread. Invariant: what the views spared adds up to what
 * the samples did. Counting never decides anything. */
#include "packer/planner_prune.h"

#include "base/check.h"

const struct pd_prune *pd_prune_rule_of(const struct pd_rules *rules, uint32_t source)
{
    for (uint32_t i = 0; i < rules->prune_count; i++)
        if (rules->prunes[i].source == source)
            return &rules->prunes[i].prune;
    return NULL;
}

/* The work that a sample of `tokens` spares by losing `lost` of them. */
static void spare(struct pd_work *work, uint64_t tokens, uint64_t lost)
{
    uint64_t left = tokens - lost;
    work->positions += lost;
    work->pairs += (unsigned __int128)tokens * tokens - (unsigned __int128)left * left;
}

void pd_prune_count(struct pd_prune_stats *stats, const struct pd_head *pushed,
                    const struct pd_pruned *pruned)
{
    struct pd_view_loss losses[PD_VIEWS_MAX];
    uint32_t count = pd_prune_losses(pushed, pruned, losses);
    uint64_t tokens = pushed->length_tokens;
    for (uint32_t i = 0; i < count; i++) {
        struct pd_view_stats *view = &stats->views[losses[i].view];
        view->samples++;
        view->spans += losses[i].spans;
        view->tokens += losses[i].tokens;
        view->patches += losses[i].patches;
        spare(&view->spared, tokens, losses[i].tokens);
        tokens -= losses[i].tokens;
    }
    stats->samples++;
    stats->emptied_samples += pruned->head.length_tokens == 0;
    stats->tokens += pushed->length_tokens - pruned->head.length_tokens;
    stats->patches += pushed->patches - pruned->head.patches;
    pd_work_add(&stats->before, pushed->length_tokens, 1);
    pd_work_add(&stats->after, pruned->head.length_tokens, 1);
}

/* ---- bytes ---- */

static void put_work(struct pd_buf *buf, const struct pd_work *work)
{
    pd_buf_put_varint(buf, work->positions);
    pd_buf_put_varint(buf, (uint64_t)work->pairs);
    pd_buf_put_varint(buf, (uint64_t)(work->pairs >> 64));
}

static struct pd_work get_work(struct pd_reader *reader)
{
    struct pd_work work = {.positions = pd_reader_varint(reader)};
    work.pairs = pd_reader_varint(reader);
    work.pairs |= (unsigned __int128)pd_reader_varint(reader) << 64;
    return work;
}

void pd_prune_stats_save(const struct pd_prune_stats *stats, struct pd_buf *buf)
{
    const uint64_t sums[] = {stats->samples, stats->emptied_samples, stats->tokens, stats->patches,
                             stats->seen_views};
    for (size_t i = 0; i < PD_COUNT_OF(sums); i++)
        pd_buf_put_varint(buf, sums[i]);
    put_work(buf, &stats->before);
    put_work(buf, &stats->after);
    for (uint32_t v = 0; v < PD_VIEWS_MAX; v++) {
        const struct pd_view_stats *view = &stats->views[v];
        pd_buf_put_varint(buf, view->samples);
        if (view->samples == 0)
            continue;
        pd_buf_put_varint(buf, view->spans);
        pd_buf_put_varint(buf, view->tokens);
        pd_buf_put_varint(buf, view->patches);
        put_work(buf, &view->spared);
    }
}

void pd_prune_stats_load(struct pd_reader *reader, struct pd_prune_stats *stats)
{
    uint64_t *const sums[] = {&stats->samples, &stats->emptied_samples, &stats->tokens,
                              &stats->patches, &stats->seen_views};
    for (size_t i = 0; i < PD_COUNT_OF(sums); i++)
        *sums[i] = pd_reader_varint(reader);
    stats->before = get_work(reader);
    stats->after = get_work(reader);
    for (uint32_t v = 0; v < PD_VIEWS_MAX; v++) {
        struct pd_view_stats *view = &stats->views[v];
        view->samples = pd_reader_varint(reader);
        if (view->samples == 0)
            continue;
        view->spans = pd_reader_varint(reader);
        view->tokens = pd_reader_varint(reader);
        view->patches = pd_reader_varint(reader);
        view->spared = get_work(reader);
    }
}
