/* The structural check of images and tensors: positions of M-RoPE, boundaries and windows of the
 * vision tower, boundaries, padding and loss weights of named tensors.
 *
 * Place in the flow: a stage of check.c, behind those that have proved the table, the segments and
 * the plan. Pure, any thread, no allocation.
 *
 * Written from the contract, apart from the layout, the pruning and the vision arithmetic: what a
 * segment keeps of its sample is worked out here from the spans as pushed and the plan's rule.
 * Without a plan (a client) the arrays are compared with each other alone. It does not look at the
 * bytes of tensors, which are the server's to compare with the log. */
#include "base/arith.h"
#include "packer/check_scan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int fault(struct pd_scan *scan, enum pd_check check, const char *what, uint64_t entry,
                 int64_t expected, int64_t found)
{
    return pd_scan_report(scan, check, 0, expected, found, "%s[%llu] is %lld, expected %lld", what,
                          (unsigned long long)entry, (long long)found, (long long)expected);
}

/* ---- what a segment keeps of its sample's spans ---- */

struct kept_span {
    uint64_t first, tokens; /* place in the segment */
    uint64_t patches;
    uint32_t frames, step;
    const struct pd_span *pushed;
};

/* A walk over the spans of one sample. */
struct walk {
    const struct pd_head *head;
    const struct pd_segment *segment;
    uint32_t next;
    uint64_t removed; /* tokens before `next` that the rule took away */
};

static bool is_thinned(const struct pd_prune *rule, const struct pd_span *span)
{
    bool divides = span->grid_t > 1 && span->length_tokens % span->grid_t == 0 &&
                   span->patches % span->grid_t == 0;
    return divides && rule->keep_frames > 1;
}

/* Frames 0, n, 2n, ... below grid_t. */
static uint32_t frames_kept(uint32_t frames, uint32_t n)
{
    return frames / n + (frames % n != 0);
}

/* The next span that is left of the sample, in or behind the segment; 0 at the end, negative where
 * the segment cuts one. */
static int walk_next(struct walk *walk, struct kept_span *kept)
{
    const struct pd_segment *segment = walk->segment;
    const struct pd_prune *rule = &segment->prune;
    while (walk->next < walk->head->span_count) {
        const struct pd_span *span = &walk->head->spans[walk->next++];
        uint64_t at = span->offset_tokens - walk->removed;
        if (span->view < 64 && rule->drop_views & UINT64_C(1) << span->view) {
            walk->removed += span->length_tokens;
            continue;
        }
        *kept = (struct kept_span){.tokens = span->length_tokens,
                                   .patches = span->patches,
                                   .frames = span->grid_t,
                                   .step = 1,
                                   .pushed = span};
        if (is_thinned(rule, span)) {
            kept->frames = frames_kept(span->grid_t, rule->keep_frames);
            kept->step = rule->keep_frames;
            kept->tokens = span->length_tokens / span->grid_t * (uint64_t)kept->frames;
            kept->patches = span->patches / span->grid_t * (uint64_t)kept->frames;
            walk->removed += span->length_tokens - kept->tokens;
        }
        uint64_t from = segment->offset_tokens, to = from + segment->length_tokens;
        if (at + kept->tokens <= from)
            continue;
        if (at >= to)
            return 0;
        if (at < from || at + kept->tokens > to)
            return PD_ECORRUPT;
        kept->first = at - from;
        return 1;
    }
    return 0;
}

static int open_walk(const struct pd_scan *scan, const struct pd_segment *segment,
                     struct walk *walk)
{
    *walk = (struct walk){.segment = segment};
    return scan->heads->head(scan->heads->ctx, segment, &walk->head);
}

/* Height and width of a frame in tokens; false where the grid does not say how tokens lie. */
static bool frame_of(const struct kept_span *kept, uint64_t *height, uint64_t *width)
{
    const struct pd_span *span = kept->pushed;
    uint64_t merge = span->merge > 0 ? span->merge : 1;
    uint64_t side = (uint64_t)llround(sqrt((double)merge));
    if (side * side != merge || span->grid_t == 0 || span->grid_h == 0 || span->grid_w == 0 ||
        span->grid_h % side || span->grid_w % side)
        return false;
    *height = span->grid_h / side;
    *width = span->grid_w / side;
    uint64_t frame = *height * *width;
    return span->length_tokens % frame == 0 && span->length_tokens / frame == span->grid_t;
}

/* ---- M-RoPE ---- */

struct rope {
    uint64_t at, plane; /* first position of the segment, size of a plane */
    int64_t next;       /* of the next token of text */
};

static int32_t limited(int64_t position)
{
    return position < INT32_MAX ? (int32_t)position : INT32_MAX;
}

static int expect_token(struct pd_scan *scan, const struct rope *rope, uint64_t token,
                        const int64_t expected[3])
{
    static const char *const names[] = {"t", "h", "w"};
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t place = rope->at + token;
        int32_t found = scan->positions[i * rope->plane + place];
        if (found != limited(expected[i]))
            return pd_scan_report(scan, PD_CHECK_POSITIONS, place, limited(expected[i]), found,
                                  "positions (%s) is %d, expected %d", names[i], found,
                                  limited(expected[i]));
    }
    return 0;
}

/* Text up to, not including, token `to`. */
static int expect_text(struct pd_scan *scan, struct rope *rope, uint64_t from, uint64_t to)
{
    int rc = 0;
    for (; rc == 0 && from < to; from++, rope->next++)
        rc = expect_token(scan, rope, from, (int64_t[]){rope->next, rope->next, rope->next});
    return rc;
}

static int expect_image(struct pd_scan *scan, struct rope *rope, const struct kept_span *kept,
                        uint64_t height, uint64_t width)
{
    const double scale =
        kept->step > 1 ? kept->pushed->t_scale * kept->step : kept->pushed->t_scale;
    int64_t highest = rope->next;
    for (uint64_t i = 0; i < kept->tokens; i++) {
        uint64_t frame = i / (height * width), y = i / width % height, x = i % width;
        double time = floor((double)frame * scale);
        int64_t t = time < 2147483648.0 ? (int64_t)time : INT64_C(2147483648);
        const int64_t expected[3] = {rope->next + t, rope->next + (int64_t)y,
                                     rope->next + (int64_t)x};
        int rc = expect_token(scan, rope, kept->first + i, expected);
        if (rc != 0)
            return rc;
        for (uint32_t k = 0; k < 3; k++)
            highest = expected[k] > highest ? expected[k] : highest;
    }
    rope->next = highest + 1;
    return 0;
}

static int cut_span(struct pd_scan *scan, uint64_t place)
{
    return pd_scan_report(scan, PD_CHECK_PLAN, place, 0, 1, "the segment cuts a media span");
}

static int mrope_by_plan(struct pd_scan *scan, const struct pd_segment *planned, struct rope *rope,
                         uint32_t slot)
{
    struct walk walk;
    struct kept_span kept;
    uint64_t token = 0, height, width;
    int rc = open_walk(scan, planned, &walk), more = 0;
    while (rc == 0 && (more = walk_next(&walk, &kept)) > 0) {
        if (!frame_of(&kept, &height, &width))
            continue;
        rc = expect_text(scan, rope, token, kept.first);
        if (rc == 0)
            rc = expect_image(scan, rope, &kept, height, width);
        token = kept.first + kept.tokens;
    }
    if (rc == 0 && more < 0)
        return cut_span(scan, rope->at);
    return rc == 0 ? expect_text(scan, rope, token, slot) : rc;
}

/* Without a plan: a segment starts at 0, nothing is negative, and a gap counts up like text. */
static int mrope_alone(struct pd_scan *scan, struct rope *rope, uint32_t slot, uint32_t length)
{
    int rc = expect_token(scan, rope, 0, (int64_t[]){0, 0, 0});
    for (uint32_t i = 0; rc == 0 && i < length; i++)
        for (uint32_t p = 0; rc == 0 && p < 3; p++) {
            int32_t found = scan->positions[p * rope->plane + rope->at + i];
            rope->next = found >= rope->next ? (int64_t)found + 1 : rope->next;
            if (found < 0)
                rc = pd_scan_report(scan, PD_CHECK_POSITIONS, rope->at + i, 0, found,
                                    "positions is %d, expected at least 0", found);
        }
    return rc == 0 ? expect_text(scan, rope, length, slot) : rc;
}

int pd_scan_mrope(struct pd_scan *scan, const struct pd_segment *planned, uint64_t at,
                  uint32_t slot, uint32_t length)
{
    struct rope rope = {.at = at, .plane = (uint64_t)scan->batch->rows * scan->batch->width};
    if (planned && scan->heads)
        return mrope_by_plan(scan, planned, &rope, slot);
    return mrope_alone(scan, &rope, slot, length);
}

/* ---- the arrays ---- */

static const struct pd_array *media_array(const struct pd_scan *scan, const char *name)
{
    const struct pd_array *array = pd_batch_find(scan->batch, name);
    bool between = array && array >= &scan->batch->arrays[scan->media_first] &&
                   array < &scan->batch->arrays[scan->media_first + scan->media_count];
    return between ? array : NULL;
}

static const void *bytes_of(const struct pd_scan *scan, const struct pd_array *array)
{
    return scan->payload + array->offset_bytes;
}

/* Boundaries from 0 up to `end`; `strictly`: none is empty. */
static int check_cu(struct pd_scan *scan, enum pd_check check, const struct pd_array *array,
                    uint64_t entries, bool strictly, uint64_t end)
{
    if (array->dtype != PD_DTYPE_I32 || array->rank != 1 || array->shape[0] != entries)
        return pd_scan_report(scan, check, 0, (int64_t)entries, (int64_t)array->shape[0],
                              "%s is not int32 with %llu entries", array->name,
                              (unsigned long long)entries);
    const int32_t *cu = bytes_of(scan, array);
    if (cu[0] != 0)
        return fault(scan, check, array->name, 0, 0, cu[0]);
    for (uint64_t i = 1; i < entries; i++)
        if (cu[i] < cu[i - 1] || (strictly && cu[i] == cu[i - 1]))
            return fault(scan, check, array->name, i, (int64_t)cu[i - 1] + strictly, cu[i]);
    if ((uint64_t)cu[entries - 1] != end)
        return fault(scan, check, array->name, entries - 1, (int64_t)end, cu[entries - 1]);
    return 0;
}

/* ---- vision ---- */

struct vision {
    const struct pd_array *grid_array, *cu_array, *index_array, *windows_array;
    const int64_t *grid;
    const int32_t *cu, *index, *windows;
    uint64_t images, frames, patches; /* as the grids say */
    uint64_t image, token, window;    /* how far the plan's spans have come */
};

static int open_vision(struct pd_scan *scan, struct vision *v)
{
    v->cu_array = media_array(scan, "vision_cu_seqlens");
    v->grid_array = media_array(scan, "image_grid_thw");
    v->index_array = media_array(scan, "vision_window_index");
    v->windows_array = media_array(scan, "vision_window_cu_seqlens");
    if (!v->cu_array || !v->grid_array || !v->index_array != !v->windows_array)
        return pd_scan_report(scan, PD_CHECK_SHAPE, 0, 0, 0, "a vision array is missing");
    if (v->grid_array->dtype != PD_DTYPE_I64 || v->grid_array->rank != 2 ||
        v->grid_array->shape[1] != 3 || v->cu_array->rank != 1 ||
        (v->index_array && (v->index_array->dtype != PD_DTYPE_I32 || v->index_array->rank != 1 ||
                            v->windows_array->rank != 1)))
        return pd_scan_report(scan, PD_CHECK_SHAPE, 0, 0, 0, "a vision array has another shape");
    v->grid = bytes_of(scan, v->grid_array);
    v->cu = bytes_of(scan, v->cu_array);
    v->images = v->grid_array->shape[0];
    v->index = v->index_array ? bytes_of(scan, v->index_array) : NULL;
    v->windows = v->index_array ? bytes_of(scan, v->windows_array) : NULL;
    return 0;
}

/* One segment of cu_seqlens per frame of each grid. */
static int check_frames(struct pd_scan *scan, struct vision *v)
{
    for (uint64_t i = 0; i < v->images; i++) {
        const int64_t *g = &v->grid[3 * i];
        for (uint32_t k = 0; k < 3; k++)
            if (g[k] < 1 || g[k] > INT32_MAX)
                return fault(scan, PD_CHECK_VISION, "image_grid_thw", 3 * i + k, 1, g[k]);
        unsigned __int128 patches = (unsigned __int128)g[0] * (uint64_t)g[1] * (uint64_t)g[2];
        if (patches + v->patches > INT32_MAX)
            return fault(scan, PD_CHECK_VISION, "image_grid_thw", 3 * i, INT32_MAX, g[0]);
        for (int64_t frame = 0; frame < g[0]; frame++) {
            v->frames++;
            v->patches += (uint64_t)(g[1] * g[2]);
            if (v->frames >= v->cu_array->shape[0])
                return fault(scan, PD_CHECK_VISION, "vision_cu_seqlens", v->frames, 1, 0);
            if ((uint64_t)v->cu[v->frames] != v->patches)
                return fault(scan, PD_CHECK_VISION, "vision_cu_seqlens", v->frames,
                             (int64_t)v->patches, v->cu[v->frames]);
        }
    }
    int rc = check_cu(scan, PD_CHECK_VISION, v->cu_array, v->frames + 1, true, v->patches);
    if (rc != 0 || !v->index)
        return rc;
    uint64_t entries = v->windows_array->shape[0];
    if (entries == 0)
        return fault(scan, PD_CHECK_VISION, "vision_window_cu_seqlens", 0, 1, 0);
    return check_cu(scan, PD_CHECK_VISION, v->windows_array, entries, true, v->patches);
}

/* One window: `count` tokens of it in ascending order, all of the tile (tile_y, tile_x) of a frame
 * whose tokens start at `first`. */
struct tile {
    uint64_t first, width, tokens; /* of the frame */
    uint64_t y, x;                 /* of the tile, in tiles */
    uint64_t count;
    uint64_t patches; /* of one token */
};

static int check_tile(struct pd_scan *scan, struct vision *v, const struct tile *tile)
{
    const uint64_t side = scan->rules->vision_window;
    int64_t before = -1;
    if (v->window + 1 >= v->windows_array->shape[0] ||
        v->token + tile->count > v->index_array->shape[0])
        return fault(scan, PD_CHECK_VISION, "vision_window_cu_seqlens", v->window + 1, 1, 0);
    int64_t patches = (int64_t)v->windows[v->window + 1] - v->windows[v->window];
    if (patches != (int64_t)(tile->count * tile->patches))
        return fault(scan, PD_CHECK_VISION, "vision_window_cu_seqlens", v->window + 1,
                     (int64_t)(tile->count * tile->patches), patches);
    for (uint64_t i = 0; i < tile->count; i++, v->token++) {
        int64_t token = v->index[v->token];
        uint64_t local = (uint64_t)(token - (int64_t)tile->first);
        if (token <= before || token < (int64_t)tile->first || local >= tile->tokens ||
            local / tile->width / side != tile->y || local % tile->width / side != tile->x)
            return fault(scan, PD_CHECK_VISION, "vision_window_index", v->token, before + 1, token);
        before = token;
    }
    v->window++;
    return 0;
}

static int check_windows(struct pd_scan *scan, struct vision *v, const struct kept_span *kept,
                         uint64_t height, uint64_t width)
{
    const uint64_t side = scan->rules->vision_window;
    int rc = 0;
    for (uint32_t frame = 0; frame < kept->frames; frame++) {
        struct tile tile = {.first = v->token, .width = width, .tokens = height * width};
        tile.patches = kept->patches / kept->tokens;
        for (tile.y = 0; tile.y * side < height; tile.y++)
            for (tile.x = 0; rc == 0 && tile.x * side < width; tile.x++) {
                tile.count = pd_min_u64(side, height - tile.y * side) *
                             pd_min_u64(side, width - tile.x * side);
                rc = check_tile(scan, v, &tile);
            }
    }
    return rc;
}

/* A span whose grid says nothing: one window, its tokens in order. */
static int check_one_window(struct pd_scan *scan, struct vision *v, const struct kept_span *kept)
{
    if (v->window + 1 >= v->windows_array->shape[0] ||
        v->token + kept->tokens > v->index_array->shape[0] ||
        (uint64_t)(v->windows[v->window + 1] - v->windows[v->window]) != kept->patches)
        return fault(scan, PD_CHECK_VISION, "vision_window_cu_seqlens", v->window + 1,
                     (int64_t)kept->patches, 0);
    for (uint64_t i = 0; i < kept->tokens; i++, v->token++)
        if ((uint64_t)v->index[v->token] != v->token)
            return fault(scan, PD_CHECK_VISION, "vision_window_index", v->token, (int64_t)v->token,
                         v->index[v->token]);
    v->window++;
    return 0;
}

/* The next image of the batch is this span. */
static int check_span(struct pd_scan *scan, struct vision *v, const struct kept_span *kept)
{
    if (kept->patches == 0)
        return 0;
    if (v->image == v->images)
        return fault(scan, PD_CHECK_VISION, "image_grid_thw", 3 * v->image, 1, 0);
    const struct pd_span *span = kept->pushed;
    unsigned __int128 patches = (unsigned __int128)span->grid_t * span->grid_h * span->grid_w;
    bool gridded = span->grid_t > 0 && patches == span->patches;
    const int64_t expected[3] = {gridded ? kept->frames : 1, gridded ? span->grid_h : 1,
                                 gridded ? span->grid_w : (int64_t)kept->patches};
    for (uint32_t k = 0; k < 3; k++)
        if (v->grid[3 * v->image + k] != expected[k])
            return fault(scan, PD_CHECK_VISION, "image_grid_thw", 3 * v->image + k, expected[k],
                         v->grid[3 * v->image + k]);
    v->image++;
    uint64_t height, width;
    if (!v->index)
        return 0;
    return gridded && frame_of(kept, &height, &width) ? check_windows(scan, v, kept, height, width)
                                                      : check_one_window(scan, v, kept);
}

static int vision_segment(struct pd_scan *scan, struct vision *v, const struct pd_segment *segment)
{
    struct walk walk;
    struct kept_span kept;
    int rc = open_walk(scan, segment, &walk), more = 0;
    while (rc == 0 && (more = walk_next(&walk, &kept)) > 0)
        rc = check_span(scan, v, &kept);
    return rc == 0 && more < 0 ? cut_span(scan, 0) : rc;
}

static int vision_by_plan(struct pd_scan *scan, struct vision *v)
{
    int rc = 0;
    if (!v->index != (scan->rules->vision_window == 0))
        return pd_scan_report(scan, PD_CHECK_SHAPE, 0, 0, 0, "window arrays against the rules");
    for (uint32_t row = 0; rc == 0 && row < scan->batch->rows; row++)
        for (uint32_t i = 0; rc == 0 && scan->rows[row] && i < scan->rows[row]->segment_count; i++)
            rc = vision_segment(scan, v, &scan->rows[row]->segments[i]);
    if (rc == 0 && v->image != v->images)
        rc = fault(scan, PD_CHECK_VISION, "image_grid_thw", 3 * v->image, (int64_t)v->image,
                   (int64_t)v->images);
    if (rc == 0 && v->index &&
        (v->window + 1 != v->windows_array->shape[0] || v->token != v->index_array->shape[0]))
        rc = fault(scan, PD_CHECK_VISION, "vision_window_index", v->token, (int64_t)v->token,
                   (int64_t)v->index_array->shape[0]);
    return rc;
}

static int check_vision(struct pd_scan *scan)
{
    struct vision vision = {0};
    int rc = open_vision(scan, &vision);
    if (rc == 0)
        rc = check_frames(scan, &vision);
    return rc == 0 && scan->media ? vision_by_plan(scan, &vision) : rc;
}

/* ---- all of it ---- */

/* Every NAME_cu_seqlens leads over the elements of NAME. */
static int check_ragged(struct pd_scan *scan, const struct pd_array *array)
{
    static const char suffix[] = "_cu_seqlens";
    char name[PD_ARRAY_NAME_MAX + 1];
    size_t length = strlen(array->name), base = length - (sizeof suffix - 1);
    if (length < sizeof suffix || strcmp(array->name + base, suffix) != 0 ||
        strncmp(array->name, "vision_", 7) == 0)
        return 0;
    snprintf(name, sizeof name, "%.*s", (int)base, array->name);
    const struct pd_array *data = media_array(scan, name);
    if (!data || data->rank == 0)
        return pd_scan_report(scan, PD_CHECK_SHAPE, 0, 0, 0, "%s has no array %s", array->name,
                              name);
    size_t room = sizeof name - base;
    snprintf(name + base, room, "%s", "_sample_index");
    const struct pd_array *samples = media_array(scan, name);
    uint64_t entries = samples && samples->rank == 1 ? samples->shape[0] : scan->seen.segments;
    return check_cu(scan, PD_CHECK_TENSORS, array, entries + 1, false, data->shape[0]);
}

int pd_scan_media(struct pd_scan *scan)
{
    bool vision = scan->media ? scan->media->vision : media_array(scan, "image_grid_thw") != NULL;
    int rc = vision ? check_vision(scan) : 0;
    for (uint32_t i = 0; rc == 0 && i < scan->media_count; i++)
        rc = check_ragged(scan, &scan->batch->arrays[scan->media_first + i]);
    return rc == 0 && scan->media ? pd_scan_tensors(scan) : rc;
}
