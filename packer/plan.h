/* A plan: which samples, and which part of each, make up pack k. The output of the planner, the
 * input of the layout.
 *
 * A pack is one row of at most seq_len positions:
 *
 *   |<- slot ->|<-- slot -->|<- slot ->|<- tail ->|
 *   [ tokens  g][ tokens    ][ tokens g][ padding  ]        g = gap left by seg_align
 *
 * Plain values, fixed little-endian encoding (the log stores it, plan_digest is taken over it).
 * Pure. */
#ifndef PD_PACKER_PLAN_H
#define PD_PACKER_PLAN_H

#include "base/bytes.h"
#include "base/err.h"
#include "packer/cost.h"

#include <stdbool.h>
#include <stdint.h>

/* What is left out of a sample by rule. All 0: nothing. */
struct pd_prune {
    uint64_t drop_views;  /* bit v: spans of view number v are left out */
    uint32_t keep_frames; /* n > 1: of spans with more than one frame, frames 0, n, 2n, ... stay */
};

/* One sample's place (or the place of one part of it) in a pack. Tokens are counted in the sample
 * as pruned. */
struct pd_segment {
    uint64_t block; /* where the sample lies in the log ... */
    uint32_t index; /* ... and which one of the block it is */
    uint32_t stream;
    uint64_t seq;
    uint32_t source;
    uint32_t pass;          /* 0, or how often the lane had been repeated before */
    uint32_t part;          /* 0, or the number of the part of a split sample */
    uint32_t part_count;    /* parts of the sample, 1 unless split */
    uint32_t offset_tokens; /* first token taken; parts of a split sample overlap by one token */
    /* 1: its first token is also the last of the part before; 0 for part 0, or where media stood at
     * the cut */
    uint32_t overlap_tokens;
    uint32_t length_tokens;      /* real tokens taken, >= 1 */
    uint32_t slot_tokens;        /* length rounded up to seg_align */
    uint32_t sample_tokens;      /* length of the whole sample, pruned */
    uint32_t loss_tokens;        /* targets in this segment: never its first token */
    uint32_t sample_loss_tokens; /* targets of the whole sample as served, over all its parts */
    uint32_t patches;
    float weight;
    struct pd_prune prune; /* what of a rule changed the sample */
};

struct pd_pack {
    uint64_t number;             /* of the feed, from 0 */
    struct pd_segment *segments; /* owned by the pack */
    uint32_t segment_count;
    uint32_t segment_capacity;
    uint32_t used_slots; /* sum of slot_tokens, <= seq_len */
};

/* What closed a pack. Values are stored beside the plan: never renumber. */
enum pd_pack_way {
    PD_PACK_UNKNOWN,    /* of a pack planned before this was kept */
    PD_PACK_EXACT,      /* filled to the brim */
    PD_PACK_BEST,       /* nothing in the window filled it exactly */
    PD_PACK_FLUSH,      /* the window was short: a flush */
    PD_PACK_END,        /* the window was short: the feed has nothing more for it */
    PD_PACK_CAPPED,     /* the cap on segments or patches */
    PD_PACK_SEQUENTIAL, /* order: strategies sequential and none */
};
#define PD_PACK_WAYS (PD_PACK_SEQUENTIAL + 1)

/* Told for people: part of no digest. */
struct pd_pack_why {
    enum pd_pack_way way;
    /* Log position that the window had been filled up to: of the record that kept it short, or else
     * of the block furthest behind that was drawn from. 0 where the way is unknown. */
    uint64_t filled_to;
};

/* Sums over packs; index order is pack order, then segment order. */
struct pd_totals {
    uint64_t real_tokens;    /* sum of length_tokens */
    uint64_t gap_tokens;     /* sum of slot - length */
    uint64_t overlap_tokens; /* real positions that repeat the last token of the part before */
    uint64_t loss_tokens;
    /* sum over segments of (float32 weight of one target, as served) * loss_tokens, in float64 */
    double loss_weight;
    uint64_t segments;
    uint64_t samples; /* segments with part 0 */
    uint64_t patches;
    uint64_t attention_cost; /* sum over segments of alpha*n + beta*n^2, saturating */
    uint32_t longest_tokens; /* longest segment */
    uint32_t widest_slots;   /* largest used_slots */
};

enum pd_loss_policy { PD_LOSS_TOKEN, PD_LOSS_SAMPLE };

/* The float32 that each target of the segment carries in loss_weight: its weight (token), or weight
 * / sample_loss_tokens (sample). */
float pd_segment_loss_weight(const struct pd_segment *segment, enum pd_loss_policy policy);

/* Adds the pack's sums to *totals. */
void pd_totals_add(struct pd_totals *totals, const struct pd_pack *pack, enum pd_loss_policy policy,
                   struct pd_cost cost);

/* Makes room for `count` more segments. PD_ENOMEM: as before. */
int pd_pack_reserve(struct pd_pack *pack, uint32_t count) PD_MUST_CHECK;
/* Appends a segment; PD_ENOMEM. */
int pd_pack_push(struct pd_pack *pack, const struct pd_segment *segment) PD_MUST_CHECK;
/* Empties the pack and keeps its memory; fini frees it. Zeroed memory is an empty pack. */
void pd_pack_clear(struct pd_pack *pack);
void pd_pack_fini(struct pd_pack *pack);

/* One segment's encoding, as packs and snapshots hold it; decode gives false where it is
 * malformed. */
void pd_segment_encode(const struct pd_segment *segment, struct pd_buf *buf);
bool pd_segment_decode(struct pd_segment *segment, struct pd_reader *reader) PD_MUST_CHECK;

/* Appends the pack's fixed encoding; buf->failed tells of a failed allocation. */
void pd_pack_encode(const struct pd_pack *pack, struct pd_buf *buf);
/* Reads what encode wrote into an empty or used pack. PD_ECORRUPT where it is malformed,
 * PD_ENOMEM. */
int pd_pack_decode(struct pd_pack *pack, const void *data, size_t size) PD_MUST_CHECK;

#endif
