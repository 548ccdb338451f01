/* What a job's ranks have received whole: each batch of a step is counted once, and a step once,
 * when its last batch has arrived.
 *
 *   steps   0 ....... floor      closed: whatever comes counts as read again
 *           [ranges]             complete steps, neighbours merged
 *           [bitmaps]            open steps: one bit a batch
 *
 * In the normal course this is one range and a few bitmaps. When full (65,536 nodes or 16 MiB of
 * bitmaps: one rank is that far behind the others, or steps are read with gaps), the lowest node is
 * given up: floor moves behind it, its missing batches will count as read again and its step never
 * as complete; `given_up` counts these steps. Owner's lock. */
#ifndef PD_SERVER_DELIVERED_H
#define PD_SERVER_DELIVERED_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv/tree.h>

#define PD_DELIVERED_NODES_MAX 65536
#define PD_DELIVERED_BYTES_MAX (16u << 20)

struct pd_delivered_node;
RB_HEAD(pd_delivered_nodes, pd_delivered_node);

/* Zeroed memory is an empty record. */
struct pd_delivered {
    struct pd_delivered_nodes nodes;
    uint64_t floor;
    uint32_t node_count;
    size_t bitmap_bytes;
    uint64_t given_up;      /* open steps that were given up */
    uint64_t next_complete; /* 1 + the highest complete step; 0 = none */
};

/* Batch `index` of the `count` batches of a step has arrived. *first: it had not before; *complete:
 * with it, the step is. PD_ENOMEM: nothing was recorded. */
int pd_delivered_mark(struct pd_delivered *delivered, uint64_t step, uint32_t index, uint32_t count,
                      bool *first, bool *complete) PD_MUST_CHECK;
/* Every stride-th batch of the step from `index` on has arrived (those of one rank, where batches
 * are numbered rank by rank within a micro-step), or the step is closed. */
bool pd_delivered_some(const struct pd_delivered *delivered, uint64_t step, uint32_t index,
                       uint32_t stride, uint32_t count);
/* Every batch of the step has arrived, or the step is closed. */
bool pd_delivered_complete(const struct pd_delivered *delivered, uint64_t step);
/* Forgets everything: a new generation. */
void pd_delivered_clear(struct pd_delivered *delivered);

#endif
