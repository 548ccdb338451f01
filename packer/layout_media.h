/* The part of the layout beyond tokens: vision arrays, named tensors, their loss totals. For
 * layout.c alone. */
#ifndef PD_PACKER_LAYOUT_MEDIA_H
#define PD_PACKER_LAYOUT_MEDIA_H

#include "packer/layout.h"

/* Appends the arrays to the table and sums up batch->losses; batch->rows, width and
 * real_segment_count are set. Errors as pd_layout_measure. */
int pd_layout_media_measure(const struct pd_layout_input *input, struct pd_batch *batch,
                            struct pd_error *error) PD_MUST_CHECK;
/* Writes them. What a pd_bodies call returned. */
int pd_layout_media_fill(const struct pd_layout_input *input, const struct pd_batch *batch,
                         void *payload) PD_MUST_CHECK;

#endif
