/* What a vision tower needs beside its patches: where one image or frame ends, the grids, and the
 * windows of Qwen2.5-VL's window attention.
 *
 *   vision_cu_seqlens         int32 [F+1]  patches, one segment per image or frame
 *   image_grid_thw            int64 [I,3]  per span with patches: time, height, width in patches
 *   vision_window_index       int32 [M]    the merged tokens, reordered window by window
 *   vision_window_cu_seqlens  int32 [V+1]  patches, one segment per window
 *
 * Spans in token order. A merged token is `merge` patches, those of one token of the decoder. A
 * window is a square of `window` x `window` merged tokens of one frame, smaller at its right and
 * lower edge; windows row by row, tokens in a window row by row. A span whose grid does not give
 * its patches is one image and one window in itself, with the grid (1, 1, patches). Pure. */
#ifndef PD_PACKER_VISION_H
#define PD_PACKER_VISION_H

#include "packer/head.h"

/* Sizes of the arrays over some spans; zeroed memory is none. */
struct pd_vision_sizes {
    uint64_t images;  /* I */
    uint64_t frames;  /* F */
    uint64_t patches; /* the last entries of both cu_seqlens */
    uint64_t windows; /* V */
    uint64_t tokens;  /* M */
};

/* Where the next entries go; the cu_seqlens start with a 0 that the caller has written. Pointers of
 * the window arrays are NULL where `window` is 0. */
struct pd_vision_out {
    uint32_t window;
    int32_t *cu_seqlens;
    int64_t *grid_thw;
    int32_t *window_index, *window_cu;
    struct pd_vision_sizes done;
};

/* Adds one span; nothing where it has no patches. */
void pd_vision_measure(const struct pd_span *span, uint32_t window, struct pd_vision_sizes *sizes);
/* Writes its entries behind those that are there. */
void pd_vision_put(const struct pd_span *span, struct pd_vision_out *out);

#endif
