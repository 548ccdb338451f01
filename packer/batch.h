/* A batch in memory: one contiguous little-endian payload and the table of arrays in it.
 *
 *   payload, each array at a multiple of 64 bytes:
 *   | tokens [R,W] | cu_seqlens [S+1] | seq_lens [S] | sample_index [S]
 *   | vision arrays | tensors | positions [3,R,W], with M-RoPE
 *   | labels [R,W] | positions [R,W], without | segment_ids [R,W] | loss_weight [R,W]
 *   | cu_seqlens_real [N+1] | cu_seqlens_padded [N+1] |
 *
 *   vision arrays  where a segment of the step has patches: packer/vision.h says what they are
 *   tensors        NAME; of a ragged one NAME_cu_seqlens, one entry a segment, or of unit RUN one a
 *                  span with NAME_sample_index beside it; of a loss NAME_loss_weight
 *
 * The order is fixed: what a reader may rebuild stands behind what it cannot, so that the core
 * payload of the wire is a prefix of the whole one.
 *
 * R rows (packs), W positions a row, T = R*W, S segments (real ones and padding segments), N the
 * rows of the Megatron pair. The meaning of every array is in DESIGN's batch contract and in
 * proto/packd.proto (ArrayInfo). Plain values; pure. */
#ifndef PD_PACKER_BATCH_H
#define PD_PACKER_BATCH_H

#include "packer/plan.h"
#include "packer/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PD_ARRAY_ALIGN 64
#define PD_ARRAY_NAME_MAX 64
#define PD_ARRAYS_MAX 128
#define PD_LABEL_NONE (-100)

struct pd_array {
    char name[PD_ARRAY_NAME_MAX + 1];
    enum pd_dtype dtype;
    uint32_t rank;
    uint64_t shape[4];
    uint64_t offset_bytes; /* in the payload, a multiple of PD_ARRAY_ALIGN */
    uint64_t size_bytes;
    uint64_t digest; /* XXH3-64 of its bytes; 0 until the check or pd_batch_digest has taken it */
};

enum pd_labels { PD_LABELS_UNSHIFTED, PD_LABELS_SHIFTED };
enum pd_width { PD_WIDTH_FIXED, PD_WIDTH_STEP, PD_WIDTH_BATCH };
enum pd_positions { PD_POSITIONS_1D, PD_POSITIONS_MROPE };

/* The part of a feed's configuration that decides how a batch looks. */
struct pd_layout_rules {
    uint32_t seq_len;
    uint32_t seg_align, total_align; /* >= 1 */
    uint32_t pad_segment;            /* longest padding segment, >= 1 */
    int32_t pad_id;
    enum pd_labels labels;
    enum pd_loss_policy loss;
    struct pd_cost cost;
    enum pd_width width;
    uint32_t widths[16]; /* ascending; with step and batch: round up to one of them, else to
                            total_align */
    uint32_t width_count;
    /* 0, or S and N of every batch: cu_seqlens padded with T, seq_lens with 0, sample_index with
     * -1, the Megatron pair with its last values. */
    uint32_t fixed_segments;
    uint32_t segments_max; /* real segments a row, 0 = no cap; makes pd_layout_payload_max tight */
    enum pd_positions positions;
    uint32_t width_bound;   /* what dynamic widths are compared with, 0 = seq_len */
    uint32_t vision_window; /* side of a window of the vision tower in merged tokens, 0 = none */
};

/* What the batches of a step carry beside tokens: a function of the step's packs and heads, the
 * same for all its batches. All 0: nothing. */
struct pd_media {
    bool vision; /* some segment of the step has patches */
    uint32_t tensor_count;
    const struct pd_tensor_spec *tensors; /* those that some sample of the step has, by number */
};

/* Of a tensor that is declared as a loss, over a batch or a step. */
struct pd_tensor_total {
    uint32_t number;
    uint64_t count; /* elements (of a pad mask: its entries) that are no padding */
    double weight;  /* sum of their weights, in index order */
};

/* What a batch is: everything of the deterministic header that comes from the packs. Array pointers
 * below are into the payload. */
struct pd_batch {
    uint32_t rows, width;
    uint32_t segment_count; /* S, padding segments included (and empty ones with fixed_segments) */
    uint32_t real_segment_count; /* n_real_segments */
    uint32_t megatron_count; /* N: real segments and all-padding rows (fixed_segments where that is
                                set) */
    uint32_t max_seqlen;     /* longest step of cu_seqlens, padding segments included */
    struct pd_totals totals; /* of this batch */
    uint64_t tail_tokens;    /* padding behind the last slot of rows that hold a sample */
    uint64_t row_padding_tokens;                   /* positions of rows that hold none */
    struct pd_tensor_total losses[PD_TENSORS_MAX]; /* of tensors declared as a loss, by number */
    uint32_t loss_count;
    struct pd_array arrays[PD_ARRAYS_MAX];
    uint32_t array_count;
    uint64_t payload_bytes; /* end of the last array, rounded up to PD_ARRAY_ALIGN */
};

/* The array called `name`, or NULL. */
const struct pd_array *pd_batch_find(const struct pd_batch *batch, const char *name);
/* Appends an array to the table, behind the last one, and moves payload_bytes. PD_EINVAL: a name
 * that is empty, too long or there already, more than 4 dimensions; PD_ELIMIT: the table is full or
 * the size overflows. */
int pd_batch_array_add(struct pd_batch *batch, const char *name, enum pd_dtype dtype, uint32_t rank,
                       const uint64_t *shape) PD_MUST_CHECK;
/* Fills the digest of every array from the payload. */
void pd_batch_digest(struct pd_batch *batch, const void *payload);

#endif
