/* The structural check: every rule of the batch contract, exactly, on the bytes that will be
 * served. O(T), no allocation.
 *
 * Written apart from the layout on purpose: it shares no code with it, so that a mistake in one is
 * found by the other. Pure. */
#ifndef PD_PACKER_CHECK_H
#define PD_PACKER_CHECK_H

#include "packer/batch.h"
#include "packer/head.h"

/* One rule each; the names are metric labels (packd_validation_violations_total{check}). */
#define PD_CHECKS(X)                                                                              \
    X(PD_CHECK_SHAPE, "shape") /* array table: names, dtypes, shapes, offsets, bounds */          \
    X(PD_CHECK_CU_SEQLENS,                                                                        \
      "cu_seqlens") /* starts at 0, strictly increasing, ends at T, row starts included */        \
    X(PD_CHECK_SEQ_LENS, "seq_lens")       /* within the slot, 0 exactly for padding */           \
    X(PD_CHECK_SEGMENT_IDS, "segment_ids") /* 1, 2, ... in a row; 0 on padding and gaps */        \
    X(PD_CHECK_POSITIONS, "positions")     /* 0, 1, ... in every segment, padding segments too */ \
    X(PD_CHECK_PADDING,                                                                           \
      "padding") /* pad_id, -100 and 0 on padding and gaps; pad segments short enough */          \
    X(PD_CHECK_LABELS, "labels")           /* first (or last) is -100, never across a boundary */ \
    X(PD_CHECK_LOSS_WEIGHT, "loss_weight") /* finite, >= 0, 0 exactly where there is no label */  \
    X(PD_CHECK_MEGATRON, "megatron_pair")  /* cu_seqlens_real and _padded, real <= padded */      \
    X(PD_CHECK_SAMPLE_INDEX, "sample_index") /* counts up over real segments, -1 on padding */    \
    X(PD_CHECK_MAX_SEQLEN, "max_seqlen")                                                          \
    X(PD_CHECK_TOTALS, "totals") /* recounted from the arrays */                                  \
    X(PD_CHECK_PLAN, "plan")     /* lengths, order and loss counts as planned */                  \
    X(PD_CHECK_VISION,                                                                            \
      "vision") /* boundaries, grids and windows of images: those of the plan's spans */          \
    X(PD_CHECK_TENSORS, "tensors") /* boundaries, padding and loss weights of named tensors */    \
    X(PD_CHECK_DIGEST,                                                                            \
      "digest") /* array digests; sample bytes against the log's digests (the server's part) */   \
    X(PD_CHECK_PROBE, "attention_probe") /* a token sees what it must not (gpu/, not found here) */

enum pd_check {
#define X(name, label) name,
    PD_CHECKS(X)
#undef X
        PD_CHECK_COUNT
};

const char *pd_check_name(enum pd_check check);

struct pd_check_finding {
    enum pd_check check;
    uint32_t row, position; /* in the batch; 0 where it has no place */
    int64_t expected, found;
    const char
        *kind; /* NULL, or a static name more telling than the rule's: a kind of the probe's */
    char text[160];
};

/* The finding's kind, or its rule: what metrics and logs call it. */
const char *pd_check_finding_name(const struct pd_check_finding *finding);

/* What the log says about the samples of a plan, as they were pushed. */
struct pd_check_heads {
    void *ctx;
    /* Spans of the segment's whole sample; borrowed until the next call. */
    int (*head)(void *ctx, const struct pd_segment *segment, const struct pd_head **head);
    /* Elements of a tensor that the whole sample has; *has: whether it has the tensor. */
    int (*pushed)(void *ctx, const struct pd_segment *segment, const struct pd_tensor_spec *spec,
                  uint64_t *count, bool *has);
    /* Those of span number `span` of the sample, for unit RUN. */
    int (*pushed_of_span)(void *ctx, const struct pd_segment *segment,
                          const struct pd_tensor_spec *spec, uint32_t span, uint64_t *count);
};

/* Whether a segment's tokens, where they are served, are those of the log. */
struct pd_check_tokens {
    void *ctx;
    int (*compare)(void *ctx, const struct pd_segment *segment, const int32_t *served, bool *same);
};

struct pd_check_input {
    const struct pd_layout_rules *rules;
    const struct pd_batch *batch;
    const void *payload;
    /* The plan the batch claims to follow (rows[i] NULL for an all-padding row), or NULL to check
     * the arrays alone, as a client does; what only a plan can tell (samples, overlap, patches,
     * places of images) is then not compared. */
    const struct pd_pack *const *rows;
    const struct pd_media *media; /* with a plan: what else the batch must carry; NULL: nothing */
    const struct pd_check_heads *heads;   /* needed with media, and with M-RoPE and a plan */
    const struct pd_check_tokens *tokens; /* with a plan; NULL: they are not compared */
    /* NULL, or room for batch->array_count digests: those of the bytes that were checked. They
     * count only where the check returned 0. */
    uint64_t *digests;
};

/* The first violation into *finding and PD_ECORRUPT; 0 where every rule holds; what a call of
 * `heads` or `tokens` returned, with an empty text. Nothing in `batch` or `payload` is trusted but
 * this: `batch->payload_bytes` bytes at `payload` are readable. An array's digest of 0 is one not
 * taken yet: it is not compared. */
int pd_check_batch(const struct pd_check_input *input,
                   struct pd_check_finding *finding) PD_MUST_CHECK;

#endif
