/* From a batch's vision arrays to what the attention probe takes.
 *
 * Place in the flow: the validate thread calls this behind the decoder's probe. Invariant: segment
 * ids come from image_grid_thw (and vision_window_index), boundaries from the cu_seqlens that a
 * kernel would use: a mistake in one cannot hide in the other. Keeps no state. */
#include "server/validate_vision.h"

#include <stdlib.h>
#include <string.h>

static const struct pd_array *find(const struct pd_ready_batch *ready, const char *name)
{
    return pd_batch_find(&ready->batch, name);
}

static const void *view(const struct pd_ready_batch *ready, const struct pd_array *array)
{
    return ready->payload + array->offset_bytes;
}

/* Patches of all grids; 0 where they are none, or more than a row of the probe holds. */
static uint64_t patches_of(const int64_t *grids, uint64_t images)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < images; i++) {
        unsigned __int128 patches = 1;
        for (uint32_t k = 0; k < 3; k++) {
            if (grids[3 * i + k] < 1 || grids[3 * i + k] > PD_PROBE_WIDTH_MAX)
                return 0;
            patches *= (uint64_t)grids[3 * i + k];
        }
        if (patches + sum > PD_PROBE_WIDTH_MAX)
            return 0;
        sum += (uint64_t)patches;
    }
    return sum;
}

/* Ids and lengths of `segments` segments over `patches` positions. */
static int alloc(struct pd_vision_probe *probe, const struct pd_ready_batch *ready,
                 const struct pd_array *cu, uint64_t patches)
{
    uint64_t segments = cu->shape[0] - 1;
    probe->segment_ids = calloc(patches, sizeof *probe->segment_ids);
    probe->lengths = calloc(segments, sizeof *probe->lengths);
    if (!probe->segment_ids || !probe->lengths)
        return PD_ENOMEM;
    probe->batch = (struct pd_probe_batch){.rows = 1,
                                           .width = (uint32_t)patches,
                                           .segment_count = (uint32_t)segments,
                                           .segment_ids = probe->segment_ids,
                                           .cu_seqlens = view(ready, cu),
                                           .seq_lens = probe->lengths};
    return 1;
}

static void fill_frames(struct pd_vision_probe *probe, const int64_t *grids, uint64_t images)
{
    uint32_t frame = 0, at = 0;
    for (uint64_t i = 0; i < images; i++)
        for (int64_t t = 0; t < grids[3 * i] && frame < probe->batch.segment_count; t++, frame++) {
            probe->lengths[frame] = (int32_t)(grids[3 * i + 1] * grids[3 * i + 2]);
            for (int32_t k = 0; k < probe->lengths[frame]; k++)
                probe->segment_ids[at++] = (int32_t)frame + 1;
        }
}

/* Number of the window of each merged token, from 1; false where the grids do not divide into
 * tokens of this side, or make another number of tokens. */
static bool number_windows(const int64_t *grids, uint64_t images, int64_t side, int64_t window,
                           int32_t *windows, uint64_t tokens)
{
    uint64_t at = 0;
    int32_t base = 0;
    for (uint64_t i = 0; i < images; i++) {
        int64_t height = grids[3 * i + 1] / side, width = grids[3 * i + 2] / side;
        int64_t across = (width + window - 1) / window, down = (height + window - 1) / window;
        uint64_t left = (uint64_t)(grids[3 * i] * height * width);
        if (grids[3 * i + 1] % side || grids[3 * i + 2] % side || left > tokens - at)
            return false;
        for (int64_t t = 0; t < grids[3 * i]; t++, base += (int32_t)(across * down))
            for (int64_t y = 0; y < height; y++)
                for (int64_t x = 0; x < width; x++)
                    windows[at++] = base + (int32_t)(y / window * across + x / window) + 1;
    }
    return at == tokens;
}

static int fill_windows(struct pd_vision_probe *probe, const int64_t *grids, uint64_t images,
                        const int32_t *index, uint64_t tokens, uint32_t window)
{
    uint32_t merge = tokens > 0 && probe->batch.width % tokens == 0
                         ? (uint32_t)(probe->batch.width / tokens)
                         : 0;
    int64_t side = 1;
    while (side * side < merge)
        side++;
    int32_t *windows = calloc(tokens ? tokens : 1, sizeof *windows);
    if (!windows)
        return PD_ENOMEM;
    bool known = merge > 0 && side * side == merge &&
                 number_windows(grids, images, side, window, windows, tokens);
    for (uint64_t r = 0; known && r < tokens; r++) {
        known = index[r] >= 0 && (uint64_t)index[r] < tokens;
        int32_t id = known ? windows[index[r]] : 0;
        for (uint32_t k = 0; known && k < merge; k++)
            probe->segment_ids[r * merge + k] = id;
        if (known && id >= 1 && (uint32_t)id <= probe->batch.segment_count)
            probe->lengths[id - 1] += (int32_t)merge;
    }
    free(windows);
    return known;
}

int pd_vision_probe_make(const struct pd_ready_batch *ready, enum pd_vision_tower tower,
                         uint32_t window, struct pd_vision_probe *probe)
{
    bool windows = tower == PD_VISION_WINDOWS;
    const struct pd_array *grid = find(ready, "image_grid_thw");
    const struct pd_array *index = find(ready, "vision_window_index");
    const struct pd_array *cu =
        find(ready, windows ? "vision_window_cu_seqlens" : "vision_cu_seqlens");
    *probe = (struct pd_vision_probe){0};
    if (!grid || !cu || cu->shape[0] < 2 || (windows && (!index || window == 0)))
        return 0;
    const int64_t *grids = view(ready, grid);
    uint64_t patches = patches_of(grids, grid->shape[0]);
    if (patches == 0)
        return 0;
    int rc = alloc(probe, ready, cu, patches);
    if (rc == 1 && windows)
        rc =
            fill_windows(probe, grids, grid->shape[0], view(ready, index), index->shape[0], window);
    else if (rc == 1)
        fill_frames(probe, grids, grid->shape[0]);
    if (rc != 1)
        pd_vision_probe_fini(probe);
    return rc;
}

void pd_vision_probe_fini(struct pd_vision_probe *probe)
{
    free(probe->segment_ids);
    free(probe->lengths);
    *probe = (struct pd_vision_probe){0};
}
