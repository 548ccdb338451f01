/* M-RoPE positions, segment by segment.
 *
 * Called by the layout for each real segment of a feed with `positions: mrope`. Pure, any thread.
 * Invariant: the first token of a segment has position 0 in every row, and no position of a token
 * is below that of the text before it. check.c finds the same positions its own way. */
#include "packer/mrope.h"

#include <math.h>

static int32_t clamp(int64_t position)
{
    return position > INT32_MAX ? INT32_MAX : (int32_t)position;
}

static void put(struct pd_mrope_rows rows, uint32_t at, int64_t t, int64_t h, int64_t w)
{
    rows.t[at] = clamp(t);
    rows.h[at] = clamp(h);
    rows.w[at] = clamp(w);
}

uint32_t pd_merge_side(uint32_t merge)
{
    uint32_t side = 1;
    while ((uint64_t)side * side < merge)
        side++;
    return merge <= 1 ? 1 : (uint64_t)side * side == merge ? side : 0;
}

bool pd_span_has_grid(const struct pd_span *span)
{
    uint32_t side = pd_merge_side(span->merge);
    if (side == 0 || span->grid_t == 0 || span->grid_h == 0 || span->grid_w == 0 ||
        span->grid_h % side != 0 || span->grid_w % side != 0)
        return false;
    unsigned __int128 tokens = (unsigned __int128)span->grid_t * (span->grid_h / side);
    return tokens * (span->grid_w / side) == span->length_tokens;
}

/* `count` tokens of text from `base`; returns the position behind them. */
static int64_t fill_text(struct pd_mrope_rows rows, uint32_t at, uint32_t count, int64_t base)
{
    for (uint32_t i = 0; i < count; i++)
        put(rows, at + i, base + i, base + i, base + i);
    return base + count;
}

/* Offset of frame i in time; at most 2^31, so that sums stay in range. */
static int64_t frame_offset(const struct pd_span *span, uint32_t frame)
{
    double offset = floor(frame * span->t_scale);
    return offset < 2147483648.0 ? (int64_t)offset : INT64_C(2147483648);
}

static int64_t fill_grid(struct pd_mrope_rows rows, const struct pd_span *span, int64_t base)
{
    uint32_t side = pd_merge_side(span->merge), at = span->offset_tokens;
    uint32_t height = span->grid_h / side, width = span->grid_w / side;
    for (uint32_t frame = 0; frame < span->grid_t; frame++) {
        int64_t t = base + frame_offset(span, frame);
        for (uint32_t y = 0; y < height; y++)
            for (uint32_t x = 0; x < width; x++)
                put(rows, at++, t, base + y, base + x);
    }
    int64_t last = frame_offset(span, span->grid_t - 1);
    last = height - 1 > last ? height - 1 : last;
    last = width - 1 > last ? width - 1 : last;
    return base + last + 1;
}

void pd_mrope_fill(const struct pd_span *spans, uint32_t span_count, uint32_t length, uint32_t gap,
                   struct pd_mrope_rows rows)
{
    uint32_t at = 0;
    int64_t next = 0;
    for (uint32_t i = 0; i < span_count; i++) {
        const struct pd_span *span = &spans[i];
        if (!pd_span_has_grid(span))
            continue;
        next = fill_text(rows, at, span->offset_tokens - at, next);
        next = fill_grid(rows, span, next);
        at = span->offset_tokens + span->length_tokens;
    }
    fill_text(rows, at, length + gap - at, next);
}
