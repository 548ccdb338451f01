/* M-RoPE: positions in three rows (time, height, width), as Qwen2-VL and Qwen2.5-VL define them.
 *
 *   text   equal in the three rows, counting up
 *   span   base = the position the next text token would have; the token of frame i, merged row y,
 *          merged column x has (base + floor(i * t_scale), base + y, base + x)
 *   text behind a span goes on at the largest position so far + 1
 *
 *   "a b [image 1x2x2, merge 1] c"     t 0 1  2 2 2 2  4
 *                                      h 0 1  2 2 3 3  4
 *                                      w 0 1  2 3 2 3  4
 *
 * Built for each segment by itself, from its own spans after pruning and cutting; a span without a
 * grid counts as text. Tokens of a span come frame by frame, in each frame row by row. Pure. */
#ifndef PD_PACKER_MROPE_H
#define PD_PACKER_MROPE_H

#include "packer/head.h"

#include <stdbool.h>

/* Where the three rows of one segment lie. */
struct pd_mrope_rows {
    int32_t *t, *h, *w;
};

/* Writes positions of tokens 0 .. length - 1, and of `gap` further positions as if they were text.
 * `spans` are those of the segment, offsets counted from its first token; each lies inside it.
 * Positions stop at INT32_MAX. */
void pd_mrope_fill(const struct pd_span *spans, uint32_t span_count, uint32_t length, uint32_t gap,
                   struct pd_mrope_rows rows);

/* The side of the square of patches that makes one token: 1 for a merge of 0 or 1, 2 for 4; 0 where
 * `merge` is no square. */
uint32_t pd_merge_side(uint32_t merge);
/* Whether the grid describes the span's tokens: all three above 0, the side divides height and
 * width, and their product gives the span's length. */
bool pd_span_has_grid(const struct pd_span *span);

#endif
