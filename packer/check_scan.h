/* What one run of the structural check knows, for the files of check.c. */
#ifndef PD_PACKER_CHECK_SCAN_H
#define PD_PACKER_CHECK_SCAN_H

#include "base/digest.h"
#include "packer/check.h"

#define PD_SCAN_STREAMS 5 /* arrays of one value a position */

/* The check's arguments, views of the arrays, and what it has counted itself. */
struct pd_scan {
    const struct pd_layout_rules *rules;
    const struct pd_batch *batch;
    const struct pd_pack *const *rows;
    const struct pd_media *media; /* NULL: none is claimed, or a client that cannot know */
    const struct pd_check_heads *heads;
    const struct pd_check_tokens *log_tokens; /* NULL: not compared */
    const uint8_t *payload;
    struct pd_check_finding *finding;
    uint32_t media_first, media_count; /* arrays between the built-in ones */
    uint32_t planes;                   /* of positions: 1, or 3 with M-RoPE */
    const int32_t *tokens, *positions, *segment_ids, *labels;
    const float *loss_weight;
    const int32_t *cu, *seq_lens, *sample_index, *cu_real, *cu_padded;
    uint32_t used; /* segments that cover positions: S without the empty ones of fixed_segments */
    struct pd_totals seen;
    uint64_t tail_tokens, row_padding_tokens;
    uint32_t max_seqlen;
    uint64_t *digests; /* NULL, or where each array's goes */
    struct pd_digest_stream streams[PD_SCAN_STREAMS];
    const struct pd_array *streamed[PD_SCAN_STREAMS];
    uint32_t stream_count;
    uint64_t digested; /* positions that the streams have passed */
};

/* Fills the finding and gives PD_ECORRUPT; `place` is a position of the flattened batch. */
int pd_scan_report(struct pd_scan *scan, enum pd_check check, uint64_t place, int64_t expected,
                   int64_t found, const char *format, ...) __attribute__((format(printf, 6, 7)));

/* Positions of three planes over one real segment: `at` is its first position, `planned` NULL
 * without a plan. */
int pd_scan_mrope(struct pd_scan *scan, const struct pd_segment *planned, uint64_t at,
                  uint32_t slot, uint32_t length);
/* The arrays between the built-in ones: all of them. */
int pd_scan_media(struct pd_scan *scan);
/* Those of named tensors, with a plan and heads; boundaries have been found in order. */
int pd_scan_tensors(struct pd_scan *scan);
/* Digests, for check.c: behind the table; with everything below `position` in order; at the end. */
void pd_scan_digest_begin(struct pd_scan *scan);
void pd_scan_digest_to(struct pd_scan *scan, uint64_t position);
int pd_scan_digests(struct pd_scan *scan);

#endif
