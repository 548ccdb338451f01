/* The layout: packs and sample bytes become the arrays of a batch.
 *
 * Two steps: pd_layout_measure does the arithmetic (sizes, offsets, totals) from the packs alone;
 * pd_layout_fill writes the payload, fetching each segment's bytes straight into its place, so that
 * a token is copied once on its way from the log. Pure; no state. */
#ifndef PD_PACKER_LAYOUT_H
#define PD_PACKER_LAYOUT_H

#include "packer/batch.h"
#include "packer/head.h"

/* Elements of a tensor, counted among those that a segment carries. */
struct pd_elements {
    uint64_t first, count;
};

/* Where bytes come from: the server reads them from the log, tests from arrays. Every call returns
 * 0 or PD_E*, which pd_layout_fill passes on. */
struct pd_bodies {
    void *ctx;
    /* Copies tokens [offset, offset + length) of the segment's sample to dst. */
    int (*tokens)(void *ctx, const struct pd_segment *segment, int32_t *dst);
    /* The same for pushed labels, per token as a target. Sets *has to false and copies nothing
     * where the sample was pushed without labels. NULL: no sample has labels. */
    int (*labels)(void *ctx, const struct pd_segment *segment, int32_t *dst, bool *has);
    /* The loss runs of the segment's whole sample; borrowed until the next call. NULL: every token
     * of every sample is a target. */
    int (*loss)(void *ctx, const struct pd_segment *segment, struct pd_loss_runs *runs);
    /* The spans of the segment, offsets counted from its first token; borrowed until the next call.
     * NULL: no sample has spans. */
    int (*spans)(void *ctx, const struct pd_segment *segment, const struct pd_span **spans,
                 uint32_t *count);
    /* How many elements of a tensor the segment carries; *has: whether its sample has the tensor at
     * all. NULL, like the next three: there are no tensors. */
    int (*elements)(void *ctx, const struct pd_segment *segment, const struct pd_tensor_spec *spec,
                    uint64_t *count, bool *has);
    /* The same span by span, for unit RUN: an entry for each span of the tensor's views in the
     * segment; borrowed until the next call. */
    int (*runs)(void *ctx, const struct pd_segment *segment, const struct pd_tensor_spec *spec,
                const uint32_t **elements, uint32_t *count);
    /* Copies `count` of them from element `first` on to dst. */
    int (*tensor)(void *ctx, const struct pd_segment *segment, const struct pd_tensor_spec *spec,
                  struct pd_elements which, void *dst);
    /* How many bytes of them are 0: for pad masks. */
    int (*zeros)(void *ctx, const struct pd_segment *segment, const struct pd_tensor_spec *spec,
                 struct pd_elements which, uint64_t *count);
};

/* PD_EINVAL with the rule named: R or widths of 0, seq_len not a multiple of total_align,
 * total_align not of seg_align, ... */
int pd_layout_rules_check(const struct pd_layout_rules *rules,
                          struct pd_error *error) PD_MUST_CHECK;

/* The width W of a batch or a step whose widest row uses `widest_slots`: seq_len with
 * PD_WIDTH_FIXED, else the smallest allowed one. */
uint32_t pd_layout_width(const struct pd_layout_rules *rules, uint32_t widest_slots);

/* The most segments a row can have with up to segments_max real ones (0: as many as fit), padding
 * segments counted. */
uint64_t pd_layout_row_segments_max(const struct pd_layout_rules *rules, uint32_t segments_max);

/* The most payload bytes a batch of `rows` rows can take under these rules. */
uint64_t pd_layout_payload_max(const struct pd_layout_rules *rules, uint32_t rows);

/* What a batch is made of. */
struct pd_layout_input {
    const struct pd_layout_rules *rules;
    const struct pd_pack *const *rows; /* rows[i] NULL or without segments: all padding */
    uint32_t row_count;
    uint32_t width;               /* from pd_layout_width */
    const struct pd_media *media; /* NULL: tokens alone */
    const struct pd_bodies *bodies;
};

/* Sizes, offsets and totals of a batch. Reads no bytes but those of pad masks. PD_EINVAL: a row
 * wider than `width` (ROW_TOO_WIDE), a pack that breaks the rules (BAD_PACK), no rows or a width
 * that the rules do not allow (BAD_SHAPE), rules that pd_layout_rules_check refuses. PD_ELIMIT:
 * more segments than fixed_segments, T >= 2^31, more elements than int32 offsets can say
 * (TOO_MANY_ELEMENTS). What a pd_bodies call returned, with reason BODIES. */
int pd_layout_measure(const struct pd_layout_input *input, struct pd_batch *batch,
                      struct pd_error *error) PD_MUST_CHECK;

/* Adds what one pack gives to the totals of tensors declared as losses: losses[i] is of the i-th
 * such tensor of `media`. What a pd_bodies call returned. */
int pd_layout_losses_add(const struct pd_layout_input *input, const struct pd_pack *pack,
                         struct pd_tensor_total *losses) PD_MUST_CHECK;

/* Writes batch->payload_bytes at `payload` (64-byte aligned; alignment gaps between arrays are
 * zeroed); *batch was measured with the same input. Takes no digests: the check of what was written
 * does, or pd_batch_digest. What a pd_bodies call returned. */
int pd_layout_fill(const struct pd_layout_input *input, const struct pd_batch *batch,
                   void *payload) PD_MUST_CHECK;

/* For a reader who asked for the `core` arrays: rebuilds positions and segment_ids [R,W] from
 * cu_seqlens [S+1], seq_lens [S] and sample_index [S] (-1 = padding). PD_ECORRUPT: the boundaries
 * do not cover R*W positions row by row, or a length does not fit its slot; the outputs are then
 * not to be used. Nothing is written outside them. */
int pd_layout_derive(uint32_t rows, uint32_t width, uint32_t segment_count,
                     const int32_t *cu_seqlens, const int32_t *seq_lens,
                     const int32_t *sample_index, int32_t *positions,
                     int32_t *segment_ids) PD_MUST_CHECK;
/* Plain labels [R,W] from tokens, where neither labels nor loss runs were pushed (the header says
 * so). Boundaries come from segment_ids, never from positions: with M-RoPE those may repeat a 0. */
void pd_layout_derive_labels(uint32_t rows, uint32_t width, const int32_t *tokens,
                             const int32_t *segment_ids, enum pd_labels convention,
                             int32_t *labels);

#endif
