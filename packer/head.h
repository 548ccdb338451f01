/* The head of a sample: everything the planner may know. Bodies (the tokens) never come here.
 *
 * A head is made once, at the door, and stays in the log beside the body. All planning (cutting,
 * splitting, alignment, totals) is arithmetic on heads, so every total of a step is exact before a
 * single token has been read.
 *
 *   block 7 (one log record):  sample 0 | sample 1 | sample 2 ...
 *                                pd_head.block = 7, .index = 0, 1, 2
 *
 * Plain values; pointers are borrowed as the function that hands out the head says. */
#ifndef PD_PACKER_HEAD_H
#define PD_PACKER_HEAD_H

#include <stdint.h>

/* A media span inside a sample: `length` token positions from `offset`. It is atomic: no cut may
 * fall inside.
 *
 * The door has checked: inside its sample, ascending, not overlapping; with a grid, grid_t * grid_h
 * * grid_w == patches, and with `merge` also patches == length * merge; in a feed with M-RoPE
 * positions the grid is there and sqrt(merge) divides its height and width. */
struct pd_span {
    uint32_t offset_tokens;
    uint32_t length_tokens; /* >= 1 */
    uint32_t patches;       /* vision patches behind it, 0 for none */
    uint32_t view; /* number in the feed's table of views, < PD_VIEWS_MAX (packer/tensor.h) */
    uint32_t grid_t, grid_h, grid_w; /* in patches: time, height, width; all 0 where not given */
    uint32_t merge;                  /* patches per token, a square; 0: not stated, stands for 1 */
    /* time offset of grid row i is floor(i * t_scale); finite, > 0, 1 unless pushed */
    double t_scale;
};

/* Loss targets of a sample as runs, alternating off and on, starting with off: {2, 3} = off off on
 * on on, off to the end. */
struct pd_loss_runs {
    const uint32_t *lengths; /* NULL with count 0: every token is a target */
    uint32_t count;
};

struct pd_head {
    uint64_t block;         /* log position of its block */
    uint32_t index;         /* its place in the block, from 0 */
    uint32_t stream;        /* stream number, see the log's stream table */
    uint64_t seq;           /* dense per stream, from 0 */
    uint32_t length_tokens; /* >= 1 */
    uint32_t source;        /* source number, 0 = none */
    float weight;           /* >= 0, finite; 1 unless pushed */
    uint32_t patches;       /* sum over its spans */
    uint32_t payload_bytes; /* tokens and tensors; 0 stands for 4 per token */
    uint32_t span_count;
    struct pd_loss_runs loss;
    const struct pd_span *spans; /* by offset, not overlapping; NULL for none */
    uint64_t tensors;            /* bit k: its block carries the feed's tensor number k */
    /* What a producer may call the sample by; looked at by skip rules alone. 0 bytes, 0 = none. */
    const uint8_t *key, *group;
    uint32_t key_bytes, group_bytes;
    uint64_t version;
};

/* A place in a lane: the next head to read is (block, index) or, where that block is used up, the
 * first of the next block. */
struct pd_cursor {
    uint64_t block;
    uint32_t index;
};

/* How far a walk over the runs has come; zeroed memory is the start. */
struct pd_loss_cursor {
    uint32_t run;          /* the run reached */
    uint32_t start_tokens; /* its first token */
};

/* Targets among tokens [from, to) of a sample, by its runs. Token 0 of a segment is never a target;
 * the caller leaves it out. */
uint32_t pd_loss_runs_count(struct pd_loss_runs runs, uint32_t from, uint32_t to);

/* The same for a walk of ascending, disjoint ranges: the whole walk costs one pass over the
 * runs. */
uint32_t pd_loss_runs_count_on(struct pd_loss_runs runs, struct pd_loss_cursor *cursor,
                               uint32_t from, uint32_t to);

/* Bytes that the sample stands for in a budget. */
static inline uint64_t pd_head_bytes(const struct pd_head *head)
{
    return head->payload_bytes ? head->payload_bytes : 4 * (uint64_t)head->length_tokens;
}

#endif
