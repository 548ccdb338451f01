/* The deterministic header of a batch: packd.v1 BatchHeader bytes, the same on every build of the
 * batch.
 *
 *   header_begin -> row, sample, sample, row, ... -> header_finish (size known) -> [payload filled]
 * -> header_pack (digests go in)
 *
 * The size is exact before a single payload byte exists, since array digests have a fixed width on
 * the wire; so the memory of a batch can be reserved in one go. One owner at a time; memory is kept
 * from batch to batch. */
#ifndef PD_SERVER_HEADER_H
#define PD_SERVER_HEADER_H

#include "base/err.h"
#include "packer/batch.h"
#include "packer/width.h"

#include <stddef.h>
#include <stdint.h>

/* Sums over all packs of a step, in pack order; they do not depend on who reads it, but for padding
 * with dynamic widths. */
struct pd_step_totals {
    struct pd_totals sums;
    uint64_t tail_tokens;        /* behind the last slot of rows that hold a sample */
    uint64_t row_padding_tokens; /* positions of rows that hold none */
    struct pd_tensor_total losses[PD_TENSORS_MAX]; /* as in struct pd_batch */
    uint32_t loss_count;
};

/* What the header says beyond its rows and samples. All borrowed until header_pack has returned. */
struct pd_header_facts {
    const char *feed, *job;
    uint64_t step;
    uint32_t micro, dp_rank;
    uint32_t step_packs, dp_size, accum;
    const struct pd_layout_rules *rules;
    const struct pd_batch *batch; /* measured; digests are read by header_pack */
    const struct pd_media *media; /* what the arrays between the built-in ones are of */
    const struct pd_step_totals *step_totals;
    const struct pd_width_report *width;
    uint32_t max_seqlen_real, max_seqlen_padded; /* longest steps of the Megatron pair */
    uint64_t config_digest, plan_digest;
    uint32_t planner_version;
};

/* One row of the sample table. Names and bytes are copied. */
struct pd_header_sample {
    const struct pd_segment *segment;
    const char *stream, *source; /* names; not looked at where pd_header_has_names */
    const uint8_t *key, *group;  /* NULL with size 0: none */
    size_t key_bytes, group_bytes;
    uint64_t version;
    uint64_t digest;   /* of the whole sample's tokens as pushed */
    float loss_weight; /* of each of its targets */
    /* No labels were pushed and every token behind the first is a target: labels can be derived. */
    bool plain_labels;
};

struct pd_header;

/* PD_ENOMEM. */
int pd_header_new(struct pd_header **header) PD_MUST_CHECK;
void pd_header_free(struct pd_header *header); /* NULL is allowed */

/* Forgets the last batch. */
void pd_header_begin(struct pd_header *header);
/* Adds a row of the batch: the number of its pack, or -1 for a row of padding alone. PD_ENOMEM. */
int pd_header_row(struct pd_header *header, int64_t pack) PD_MUST_CHECK;
/* Whether the names of the segment's stream and source came with one before. */
bool pd_header_has_names(const struct pd_header *header, const struct pd_segment *segment);
/* Adds a real segment of the current row. PD_ENOMEM. */
int pd_header_sample(struct pd_header *header, const struct pd_header_sample *sample) PD_MUST_CHECK;
/* Completes the message; *size_bytes is the exact length of its encoding. PD_EINTERNAL: rows or
 * samples are not those of the batch. */
int pd_header_finish(struct pd_header *header, const struct pd_header_facts *facts,
                     size_t *size_bytes) PD_MUST_CHECK;
/* Takes the array digests from facts->batch and writes size_bytes at dst. PD_EINTERNAL: the
 * encoding has another size (a digest of 0, which the encoding leaves out, shortens it); the batch
 * cannot be served then. */
int pd_header_pack(struct pd_header *header, uint8_t *dst, size_t size_bytes) PD_MUST_CHECK;

#endif
