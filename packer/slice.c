/* From a segment of a plan and the head of its sample to runs of tokens and elements.
 *
 * Used by the log's reading side for each segment of a batch. Pure; the owner of a slice is its
 * only user. Invariant: the token runs add up to the segment's length, every span of the segment
 * lies whole inside it, and a span's elements are all there or none of them. It copies no bytes and
 * verifies none. */
#include "packer/slice.h"

#include "base/grow.h"

#include <stdlib.h>

void pd_slice_fini(struct pd_slice *slice)
{
    pd_pruned_fini(&slice->pruned);
    free(slice->tokens);
    free(slice->spans);
    free(slice->origins);
    free(slice->runs);
    free(slice->span_elements);
    *slice = (struct pd_slice){0};
}

static int reserve(struct pd_slice *slice, uint32_t token_runs, uint32_t spans)
{
    if (token_runs > slice->token_run_capacity) {
        if (!pd_grow(&slice->tokens, token_runs, sizeof *slice->tokens))
            return PD_ENOMEM;
        slice->token_run_capacity = token_runs;
    }
    if (spans > slice->span_capacity) {
        if (!pd_grow(&slice->spans, spans, sizeof *slice->spans) ||
            !pd_grow(&slice->origins, spans, sizeof *slice->origins))
            return PD_ENOMEM;
        slice->span_capacity = spans;
    }
    return 0;
}

/* The kept runs between two tokens of the pruned sample. */
static void cut_tokens(struct pd_slice *slice, uint32_t from, uint32_t to)
{
    const struct pd_pruned *pruned = &slice->pruned;
    uint32_t at = 0;
    slice->token_run_count = 0;
    for (uint32_t i = 0; i < pruned->kept_count && at < to; i++) {
        const struct pd_token_run *run = &pruned->kept[i];
        uint32_t low = at > from ? at : from;
        uint32_t high = at + run->count < to ? at + run->count : to;
        if (low < high)
            slice->tokens[slice->token_run_count++] =
                (struct pd_token_run){run->from + (low - at), high - low};
        at += run->count;
    }
}

/* The spans inside; false where one is cut, or their patches are not the plan's. */
static bool cut_spans(struct pd_slice *slice, const struct pd_segment *segment)
{
    const struct pd_pruned *pruned = &slice->pruned;
    const uint64_t from = segment->offset_tokens, to = from + segment->length_tokens;
    uint64_t patches = 0;
    slice->span_count = 0;
    for (uint32_t i = 0; i < pruned->head.span_count; i++) {
        const struct pd_span *span = &pruned->spans[i];
        uint64_t end = (uint64_t)span->offset_tokens + span->length_tokens;
        if (end <= from || span->offset_tokens >= to)
            continue;
        if (span->offset_tokens < from || end > to)
            return false;
        slice->spans[slice->span_count] = *span;
        slice->spans[slice->span_count].offset_tokens -= segment->offset_tokens;
        slice->origins[slice->span_count++] = pruned->origins[i];
        patches += span->patches;
    }
    return patches == segment->patches;
}

int pd_slice_make(const struct pd_head *pushed, const struct pd_segment *segment,
                  struct pd_slice *slice)
{
    int rc = pd_prune_head(pushed, segment->prune, &slice->pruned);
    const struct pd_pruned *pruned = &slice->pruned;
    if (rc == 0)
        rc = reserve(slice, pruned->kept_count, pruned->head.span_count);
    if (rc != 0)
        return rc;
    slice->pushed = pushed;
    slice->loss = pruned->head.loss;
    slice->sample_tokens = pushed->length_tokens;
    slice->part = segment->part;
    uint64_t end = (uint64_t)segment->offset_tokens + segment->length_tokens;
    if (segment->length_tokens == 0 || pruned->head.length_tokens != segment->sample_tokens ||
        end > segment->sample_tokens || pruned->applied.drop_views != segment->prune.drop_views ||
        pruned->applied.keep_frames != segment->prune.keep_frames)
        return PD_ECORRUPT;
    cut_tokens(slice, segment->offset_tokens, (uint32_t)end);
    if (!cut_spans(slice, segment) || pd_loss_runs_count(slice->loss, segment->offset_tokens + 1,
                                                         (uint32_t)end) != segment->loss_tokens)
        return PD_ECORRUPT;
    return 0;
}

/* ---- elements ---- */

/* Appends a run, joined to the last one where they touch. */
static int add_run(struct pd_slice *slice, uint64_t from, uint64_t count)
{
    struct pd_element_run *last = slice->run_count ? &slice->runs[slice->run_count - 1] : NULL;
    if (count == 0)
        return 0;
    if (last && last->from + last->count == from) {
        last->count += count;
        return 0;
    }
    if (slice->run_count == slice->run_capacity) {
        uint32_t capacity = slice->run_capacity ? 2 * slice->run_capacity : 16;
        if (!pd_grow(&slice->runs, capacity, sizeof *slice->runs))
            return PD_ENOMEM;
        slice->run_capacity = capacity;
    }
    slice->runs[slice->run_count++] = (struct pd_element_run){from, count};
    return 0;
}

static int token_elements(struct pd_slice *slice, uint64_t pushed_count)
{
    if (pushed_count != slice->sample_tokens)
        return PD_ECORRUPT;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < slice->token_run_count; i++)
        rc = add_run(slice, slice->tokens[i].from, slice->tokens[i].count);
    return rc;
}

/* Elements of span number `i` of the sample as pushed. */
static uint64_t elements_of(const struct pd_slice *slice, const struct pd_tensor_spec *spec,
                            const struct pd_pushed_elements *pushed, uint32_t i)
{
    const struct pd_span *span = &slice->pushed->spans[i];
    if (!pd_tensor_has_view(spec, span->view))
        return 0;
    if (spec->unit == PD_UNIT_RUN)
        return pushed->of_spans ? pushed->of_spans[i] : 0;
    return spec->unit == PD_UNIT_SPAN ? 1 : span->patches;
}

/* Patches of the frames that are left of a thinned span. */
static int frame_elements(struct pd_slice *slice, uint32_t span, uint64_t first)
{
    const struct pd_span *pushed = &slice->pushed->spans[slice->origins[span].span];
    uint64_t frame = pushed->patches / pushed->grid_t;
    uint64_t step = slice->origins[span].frame_step;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < slice->spans[span].grid_t; i++)
        rc = add_run(slice, first + i * step * frame, frame);
    return rc;
}

static int note_span(struct pd_slice *slice, uint64_t count)
{
    if (slice->span_element_count == slice->span_element_capacity) {
        uint32_t capacity = slice->span_element_capacity ? 2 * slice->span_element_capacity : 16;
        if (!pd_grow(&slice->span_elements, capacity, sizeof *slice->span_elements))
            return PD_ENOMEM;
        slice->span_element_capacity = capacity;
    }
    slice->span_elements[slice->span_element_count++] = (uint32_t)count;
    return 0;
}

/* Those of span k of the segment; the span's first element as pushed is `first`. */
static int span_elements(struct pd_slice *slice, const struct pd_tensor_spec *spec, uint32_t k,
                         uint64_t first, uint64_t count)
{
    if (!pd_tensor_has_view(spec, slice->spans[k].view))
        return 0;
    if (spec->unit == PD_UNIT_PATCH && slice->origins[k].frame_step > 1)
        return frame_elements(slice, k, first);
    int rc = spec->unit == PD_UNIT_RUN ? note_span(slice, count) : 0;
    return rc == 0 ? add_run(slice, first, count) : rc;
}

static int ragged_elements(struct pd_slice *slice, const struct pd_tensor_spec *spec,
                           const struct pd_pushed_elements *pushed)
{
    uint64_t first = 0;
    int rc = 0;
    for (uint32_t i = 0, k = 0; rc == 0 && i < slice->pushed->span_count; i++) {
        uint64_t count = elements_of(slice, spec, pushed, i);
        if (k < slice->span_count && slice->origins[k].span == i)
            rc = span_elements(slice, spec, k++, first, count);
        first += count;
    }
    return rc == 0 && first != pushed->count ? PD_ECORRUPT : rc;
}

int pd_slice_elements(struct pd_slice *slice, const struct pd_tensor_spec *spec,
                      struct pd_pushed_elements pushed, uint64_t *count)
{
    slice->run_count = slice->span_element_count = 0;
    *count = 0;
    int rc;
    if (spec->axis == PD_AXIS_TOKEN)
        rc = token_elements(slice, pushed.count);
    else if (spec->axis == PD_AXIS_RAGGED && spec->unit != PD_UNIT_SAMPLE)
        rc = ragged_elements(slice, spec, &pushed);
    else if (spec->axis == PD_AXIS_SAMPLE && pushed.count != 1)
        rc = PD_ECORRUPT;
    else
        rc = slice->part == 0 ? add_run(slice, 0, pushed.count) : 0;
    for (uint32_t i = 0; i < slice->run_count; i++)
        *count += slice->runs[i].count;
    return rc;
}
