/* What of a sample can be served: the over-length policies as arithmetic on one head.
 *
 * A cut never falls inside a media span. Parts of a split overlap by one text token, whose target
 * belongs to the part before; where media stands on both sides of a cut there is no text to repeat
 * and the parts only touch. Pure values, no state kept. */
#ifndef PD_PACKER_PLANNER_CUT_H
#define PD_PACKER_PLANNER_CUT_H

#include "base/err.h"
#include "packer/head.h"

#include <stdbool.h>

/* The room one pack offers to one sample. */
struct pd_cut_room {
    uint32_t tokens;
    uint32_t patches; /* 0 = no cap */
};

/* The piece [offset, offset + length) of a sample. */
struct pd_cut {
    uint32_t offset_tokens, length_tokens;
    uint32_t overlap_tokens; /* 0 or 1 */
    uint32_t patches;
    uint32_t loss_tokens; /* targets in it, its first token left out */
};

/* A split in progress; zeroed memory is the start. Plain numbers: a snapshot can hold it. */
struct pd_split {
    uint32_t offset_tokens;  /* where the next part starts */
    uint32_t overlap_tokens; /* of the next part */
    uint32_t span;           /* first span not in an earlier part */
    uint32_t part;           /* number of the next part */
    struct pd_loss_cursor loss;
};

/* What a split will give, before its first part is made. */
struct pd_split_sums {
    uint32_t parts;
    uint32_t loss_tokens;
    uint64_t slot_tokens;
};

static inline bool pd_cut_fits(const struct pd_head *head, struct pd_cut_room room)
{
    return head->length_tokens <= room.tokens &&
           (room.patches == 0 || head->patches <= room.patches);
}

/* The longest piece from the front, or up to the end. False: a span that must be kept whole leaves
 * nothing to serve. */
bool pd_cut_keep_head(const struct pd_head *head, struct pd_cut_room room, struct pd_cut *cut);
bool pd_cut_keep_tail(const struct pd_head *head, struct pd_cut_room room, struct pd_cut *cut);

/* The next part. False: the span at its start is larger than a pack. */
bool pd_split_next(struct pd_split *split, const struct pd_head *head, struct pd_cut_room room,
                   struct pd_cut *cut);
static inline bool pd_split_done(const struct pd_split *split, const struct pd_head *head)
{
    return split->offset_tokens + split->overlap_tokens >= head->length_tokens;
}
/* Runs through the whole split. False: some part cannot be made, so none is. */
bool pd_split_measure(const struct pd_head *head, struct pd_cut_room room, uint32_t align,
                      struct pd_split_sums *sums);

#endif
