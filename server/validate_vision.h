/* The vision tower's batches, for the attention probe: patches as positions, images or windows as
 * segments. */
#ifndef PD_SERVER_VALIDATE_VISION_H
#define PD_SERVER_VALIDATE_VISION_H

#include "gpu/probe.h"
#include "server/serve.h"

/* A batch of one row for the probe; free with pd_vision_probe_fini. */
struct pd_vision_probe {
    struct pd_probe_batch batch;
    int32_t *segment_ids, *lengths;
};

enum pd_vision_tower {
    PD_VISION_FRAMES,  /* vision_cu_seqlens against the grids */
    PD_VISION_WINDOWS, /* vision_window_cu_seqlens against grids and vision_window_index */
    PD_VISION_TOWERS
};

/* Mask from one array, values from the others, as for the decoder. 1: *probe is ready; 0: the batch
 * has no such tower, or one that the probe cannot hold or the arrays do not describe (images of
 * several merge sizes); PD_ENOMEM. `window` is the feed's vision_window. The batch passed the
 * structural check; nothing in it is trusted beyond the table's bounds. */
int pd_vision_probe_make(const struct pd_ready_batch *ready, enum pd_vision_tower tower,
                         uint32_t window, struct pd_vision_probe *probe);
void pd_vision_probe_fini(struct pd_vision_probe *probe);

#endif
