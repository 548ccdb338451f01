/* Pruning: one head and one rule give a smaller head, and the runs of tokens it keeps.
 *
 * Called by the planner for each sample with spans that a rule touches, and by whoever reads such a
 * sample's bytes from the log later. Pure; the owner of a pd_pruned is its only user. Invariant:
 * the kept runs, the spans and the loss runs describe the same tokens, and a span keeps all of its
 * frames' tokens and patches or none of a frame's. It does not know names of views or sources. */
#include "packer/prune.h"

#include "base/grow.h"

#include <stdlib.h>

void pd_pruned_fini(struct pd_pruned *pruned)
{
    free(pruned->spans);
    free(pruned->origins);
    free(pruned->kept);
    free(pruned->loss);
    *pruned = (struct pd_pruned){0};
}

static bool drops(struct pd_prune rule, const struct pd_span *span)
{
    return span->view < 64 && (rule.drop_views >> span->view & 1) != 0;
}

/* Whether frames of the span are left out. */
static bool thins(struct pd_prune rule, const struct pd_span *span)
{
    return rule.keep_frames > 1 && span->grid_t > 1 && span->length_tokens % span->grid_t == 0 &&
           span->patches % span->grid_t == 0;
}

bool pd_prune_touches(const struct pd_head *head, struct pd_prune rule)
{
    for (uint32_t i = 0; i < head->span_count; i++)
        if (drops(rule, &head->spans[i]) || thins(rule, &head->spans[i]))
            return true;
    return false;
}

/* Frames left of a thinned span. */
static uint32_t frames_left(struct pd_prune rule, const struct pd_span *span)
{
    return (span->grid_t - 1) / rule.keep_frames + 1;
}

/* ---- memory ---- */

/* Room for the most that the rule can leave. */
static int reserve(const struct pd_head *pushed, struct pd_prune rule, struct pd_pruned *pruned)
{
    uint64_t kept = (uint64_t)pushed->span_count + 1;
    for (uint32_t i = 0; i < pushed->span_count; i++)
        if (thins(rule, &pushed->spans[i]))
            kept += frames_left(rule, &pushed->spans[i]);
    uint64_t loss = pushed->loss.lengths ? pushed->loss.count + 2 * kept + 2 : 0;
    if (loss > UINT32_MAX)
        return PD_ELIMIT;
    if (pushed->span_count > pruned->span_capacity) {
        if (!pd_grow(&pruned->spans, pushed->span_count, sizeof *pruned->spans) ||
            !pd_grow(&pruned->origins, pushed->span_count, sizeof *pruned->origins))
            return PD_ENOMEM;
        pruned->span_capacity = pushed->span_count;
    }
    if (kept > pruned->kept_capacity) {
        if (!pd_grow(&pruned->kept, (uint32_t)kept, sizeof *pruned->kept))
            return PD_ENOMEM;
        pruned->kept_capacity = (uint32_t)kept;
    }
    if (loss > pruned->loss_capacity) {
        if (!pd_grow(&pruned->loss, (uint32_t)loss, sizeof *pruned->loss))
            return PD_ENOMEM;
        pruned->loss_capacity = (uint32_t)loss;
    }
    return 0;
}

/* ---- tokens and spans ---- */

static void keep(struct pd_pruned *pruned, uint32_t from, uint32_t count)
{
    if (count == 0)
        return;
    struct pd_token_run *last = pruned->kept_count ? &pruned->kept[pruned->kept_count - 1] : NULL;
    if (last && last->from + last->count == from)
        last->count += count;
    else
        pruned->kept[pruned->kept_count++] = (struct pd_token_run){from, count};
    pruned->head.length_tokens += count;
}

static void add_span(struct pd_pruned *pruned, const struct pd_span *span, uint32_t number,
                     uint32_t frame_step)
{
    uint32_t i = pruned->head.span_count++;
    pruned->spans[i] = *span;
    pruned->origins[i] = (struct pd_span_origin){number, frame_step};
    pruned->head.patches += span->patches;
}

static void thin_span(struct pd_pruned *pruned, struct pd_prune rule, const struct pd_span *pushed,
                      uint32_t number)
{
    struct pd_span span = *pushed;
    uint32_t tokens = pushed->length_tokens / pushed->grid_t;
    span.offset_tokens = pruned->head.length_tokens;
    span.grid_t = frames_left(rule, pushed);
    span.length_tokens = span.grid_t * tokens;
    span.patches = pushed->patches / pushed->grid_t * span.grid_t;
    span.t_scale = pushed->t_scale * rule.keep_frames;
    for (uint32_t frame = 0; frame < span.grid_t; frame++)
        keep(pruned, pushed->offset_tokens + frame * rule.keep_frames * tokens, tokens);
    pruned->applied.keep_frames = rule.keep_frames;
    add_span(pruned, &span, number, rule.keep_frames);
}

static void keep_span(struct pd_pruned *pruned, const struct pd_span *pushed, uint32_t number)
{
    struct pd_span span = *pushed;
    span.offset_tokens = pruned->head.length_tokens;
    keep(pruned, pushed->offset_tokens, pushed->length_tokens);
    add_span(pruned, &span, number, 1);
}

static void prune_tokens(const struct pd_head *pushed, struct pd_prune rule,
                         struct pd_pruned *pruned)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < pushed->span_count; i++) {
        const struct pd_span *span = &pushed->spans[i];
        keep(pruned, at, span->offset_tokens - at);
        at = span->offset_tokens + span->length_tokens;
        if (drops(rule, span))
            pruned->applied.drop_views |= UINT64_C(1) << span->view;
        else if (thins(rule, span))
            thin_span(pruned, rule, span, i);
        else
            keep_span(pruned, span, i);
    }
    keep(pruned, at, pushed->length_tokens - at);
}

/* ---- loss runs ---- */

static void loss_add(struct pd_pruned *pruned, bool on, uint32_t count)
{
    struct pd_loss_runs *runs = &pruned->head.loss;
    if (count == 0)
        return;
    if (runs->count == 0)
        pruned->loss[runs->count++] = 0;
    if (((runs->count - 1) & 1) == (uint32_t)on)
        pruned->loss[runs->count - 1] += count;
    else
        pruned->loss[runs->count++] = count;
}

/* The runs over the kept tokens; behind the last run everything is off. */
static void prune_loss(struct pd_loss_runs pushed, struct pd_pruned *pruned)
{
    uint32_t run = 0;
    uint64_t run_end = pushed.count ? pushed.lengths[0] : UINT64_MAX;
    pruned->head.loss.lengths = pruned->loss;
    for (uint32_t i = 0; i < pruned->kept_count; i++) {
        uint64_t at = pruned->kept[i].from, end = at + pruned->kept[i].count;
        while (at < end) {
            while (run_end <= at)
                run_end += ++run < pushed.count ? pushed.lengths[run] : UINT64_MAX / 2;
            uint64_t next = run_end < end ? run_end : end;
            loss_add(pruned, run < pushed.count && (run & 1), (uint32_t)(next - at));
            at = next;
        }
    }
}

static uint32_t estimate_payload(const struct pd_head *pushed, const struct pd_head *left)
{
    uint64_t tokens = 4 * (uint64_t)pushed->length_tokens;
    uint64_t rest = pushed->payload_bytes > tokens ? pushed->payload_bytes - tokens : 0;
    if (pushed->payload_bytes == 0 || left->length_tokens == 0)
        return 0;
    uint64_t part = pushed->patches ? rest * left->patches / pushed->patches
                                    : rest * left->length_tokens / pushed->length_tokens;
    uint64_t sum = 4 * (uint64_t)left->length_tokens + part;
    return sum < pushed->payload_bytes ? (uint32_t)sum : pushed->payload_bytes;
}

int pd_prune_head(const struct pd_head *pushed, struct pd_prune rule, struct pd_pruned *pruned)
{
    int rc = reserve(pushed, rule, pruned);
    if (rc != 0)
        return rc;
    pruned->head = *pushed;
    pruned->head.length_tokens = pruned->head.patches = pruned->head.span_count = 0;
    pruned->head.loss = (struct pd_loss_runs){0};
    pruned->head.spans = pruned->spans;
    pruned->applied = (struct pd_prune){0};
    pruned->kept_count = 0;
    prune_tokens(pushed, rule, pruned);
    if (pushed->loss.lengths)
        prune_loss(pushed->loss, pruned);
    pruned->head.payload_bytes = estimate_payload(pushed, &pruned->head);
    return 0;
}

/* ---- counting ---- */

static void add_loss(struct pd_view_loss *by_view, const struct pd_span *pushed,
                     const struct pd_span *left)
{
    struct pd_view_loss *loss = &by_view[pushed->view];
    loss->spans += !left;
    loss->tokens += pushed->length_tokens - (left ? left->length_tokens : 0);
    loss->patches += pushed->patches - (left ? left->patches : 0);
}

uint32_t pd_prune_losses(const struct pd_head *pushed, const struct pd_pruned *pruned,
                         struct pd_view_loss *losses)
{
    struct pd_view_loss by_view[64] = {0};
    for (uint32_t i = 0, k = 0; i < pushed->span_count; i++) {
        bool stays = k < pruned->head.span_count && pruned->origins[k].span == i;
        if (pushed->spans[i].view < 64)
            add_loss(by_view, &pushed->spans[i], stays ? &pruned->spans[k] : NULL);
        k += stays;
    }
    uint32_t count = 0;
    for (uint32_t view = 0; view < 64; view++) {
        by_view[view].view = view;
        if (by_view[view].tokens > 0)
            losses[count++] = by_view[view];
    }
    return count;
}
