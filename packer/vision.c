/* Boundaries, grids and windows of images and videos.
 *
 * Called by the layout for each span of a batch, once to measure and once to write. Pure, any
 * thread. Invariant: both cu_seqlens are strictly increasing and end at the number of patches, and
 * the window index is a permutation of the merged tokens that never leaves its frame. */
#include "packer/vision.h"

#include "packer/mrope.h"

/* A span as the tower sees it. */
struct shape {
    uint32_t frames;
    uint32_t height, width; /* of a frame, in merged tokens */
    uint32_t grid[3];
    uint64_t frame_patches;
};

static bool grid_gives_patches(const struct pd_span *span)
{
    unsigned __int128 product = (unsigned __int128)span->grid_t * span->grid_h * span->grid_w;
    return span->grid_t > 0 && product == span->patches;
}

/* Whether frames are squares of merged tokens, which windows can cut. */
static bool has_windows(const struct pd_span *span)
{
    return grid_gives_patches(span) && pd_span_has_grid(span);
}

static struct shape shape_of(const struct pd_span *span)
{
    struct shape shape = {.frames = 1,
                          .height = 1,
                          .width = span->length_tokens,
                          .grid = {1, 1, span->patches},
                          .frame_patches = span->patches};
    if (grid_gives_patches(span)) {
        shape.frames = shape.grid[0] = span->grid_t;
        shape.grid[1] = span->grid_h;
        shape.grid[2] = span->grid_w;
        shape.frame_patches = span->patches / span->grid_t;
    }
    if (has_windows(span)) {
        uint32_t side = pd_merge_side(span->merge);
        shape.height = span->grid_h / side;
        shape.width = span->grid_w / side;
    }
    return shape;
}

static uint64_t windows_across(uint32_t tokens, uint32_t window)
{
    return ((uint64_t)tokens + window - 1) / window;
}

void pd_vision_measure(const struct pd_span *span, uint32_t window, struct pd_vision_sizes *sizes)
{
    if (span->patches == 0)
        return;
    struct shape shape = shape_of(span);
    sizes->images++;
    sizes->frames += shape.frames;
    sizes->patches += span->patches;
    sizes->tokens += span->length_tokens;
    if (window == 0)
        return;
    sizes->windows += has_windows(span) ? shape.frames * windows_across(shape.height, window) *
                                              windows_across(shape.width, window)
                                        : 1;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void put_window(struct pd_vision_out *out, uint64_t first, const struct shape *shape,
                       uint32_t y, uint32_t x)
{
    uint32_t y_end = y + smaller(out->window, shape->height - y);
    uint32_t x_end = x + smaller(out->window, shape->width - x);
    uint64_t per_token = shape->frame_patches / ((uint64_t)shape->height * shape->width);
    uint64_t patches = (uint64_t)(y_end - y) * (x_end - x) * per_token;
    for (uint32_t row = y; row < y_end; row++)
        for (uint32_t column = x; column < x_end; column++)
            out->window_index[out->done.tokens++] =
                (int32_t)(first + (uint64_t)row * shape->width + column);
    uint64_t v = out->done.windows++;
    out->window_cu[v + 1] = out->window_cu[v] + (int32_t)patches;
}

static void put_frame_windows(struct pd_vision_out *out, const struct shape *shape)
{
    uint64_t first = out->done.tokens;
    for (uint32_t y = 0; y < shape->height; y += smaller(out->window, shape->height - y))
        for (uint32_t x = 0; x < shape->width; x += smaller(out->window, shape->width - x))
            put_window(out, first, shape, y, x);
}

/* A span without a grid: one window, tokens as they come. */
static void put_one_window(struct pd_vision_out *out, const struct pd_span *span)
{
    for (uint32_t i = 0; i < span->length_tokens; i++, out->done.tokens++)
        out->window_index[out->done.tokens] = (int32_t)out->done.tokens;
    uint64_t v = out->done.windows++;
    out->window_cu[v + 1] = out->window_cu[v] + (int32_t)span->patches;
}

void pd_vision_put(const struct pd_span *span, struct pd_vision_out *out)
{
    if (span->patches == 0)
        return;
    struct shape shape = shape_of(span);
    for (uint32_t i = 0; i < 3; i++)
        out->grid_thw[3 * out->done.images + i] = shape.grid[i];
    out->done.images++;
    for (uint32_t i = 0; i < shape.frames; i++) {
        uint64_t f = out->done.frames++;
        out->cu_seqlens[f + 1] = out->cu_seqlens[f] + (int32_t)shape.frame_patches;
    }
    out->done.patches += span->patches;
    if (out->window == 0)
        return;
    if (!has_windows(span)) {
        put_one_window(out, span);
        return;
    }
    for (uint32_t frame = 0; frame < shape.frames; frame++)
        put_frame_windows(out, &shape);
}
