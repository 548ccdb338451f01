/* A block: the samples of one SampleBlock on their way from the door into the log, and its head
 * as the log keeps it.
 *
 *   wire ──door: parse, check, digest──> pd_block ──mailbox──> sequencer ──> log
 *                                        (body still in the
 *                                         transport's memory)
 *   log: heads[(feed, lane, position)] = encoded head, bodies[(position, piece)] = <= 1 MiB each
 *
 * The body is not copied before the log writes it: `pieces` point into memory that the transport
 * keeps until `release`. */
#ifndef PD_SERVER_BLOCK_H
#define PD_SERVER_BLOCK_H

#include "base/bytes.h"
#include "base/err.h"
#include "base/list.h"
#include "base/name.h"
#include "packer/head.h"
#include "packer/tensor.h"

#include <stddef.h>
#include <stdint.h>

#define PD_PIECE_BYTES_MAX (1u << 20)
#define PD_BLOCK_SAMPLES_MAX (1u << 16)
/* An encoded head is one log record: a block whose head would be larger is refused
 * (HEAD_TOO_LARGE). */
#define PD_BLOCK_HEAD_BYTES_MAX (1u << 20)

/* The columnar head. Arrays have `count` entries unless said otherwise; NULL = the default for
 * every sample. All owned by the head (decode and the door allocate them in one arena).
 *
 * Body, without gaps:
 *   | tokens int32, all samples | labels int32 | tensor 0, all samples | tensor 1 ... |
 *   tensor of axis token: one element per token; sample: one per sample; ragged: as ragged_ends
 *
 * A sample that was refused keeps its place (its seq is used up) and its bytes in the body, but
 * is flagged and never planned; it has no spans here. */
struct pd_block_head {
    uint64_t position; /* log position, set by the log */
    uint32_t feed, lane, stream, source;
    uint64_t first_seq;   /* seq of entry 0 */
    uint32_t count;       /* <= PD_BLOCK_SAMPLES_MAX */
    uint32_t first_index; /* entries below were duplicates when it was appended: never planned */
    bool has_labels;
    uint64_t body_bytes;
    uint32_t *lengths;       /* tokens */
    uint8_t *rejected;       /* 1 = refused; NULL = none */
    uint64_t *token_digests; /* XXH3-64 of the sample's token bytes as pushed */
    uint64_t *label_digests; /* of its label bytes; NULL without labels */
    float *weights;
    /* Running end of each sample's runs in loss_runs; NULL = no sample has runs. The runs are as in
     * pd_loss_runs, one sample after the other; a sample without entries is fully on. */
    uint32_t *loss_run_ends;
    uint32_t *loss_runs;
    uint32_t *span_ends; /* running end of each sample's spans; NULL = no sample has one */
    struct pd_span *spans;
    /* The block's tensors in body order, distinct. Their numbers, pad masks and views (and the
     * spans' views) are the feed's once the sequencer has numbered them. */
    uint32_t tensor_count;          /* <= PD_TENSORS_MAX */
    struct pd_tensor_spec *tensors; /* tensor_count */
    /* Running end of each sample's elements: `count` entries for each ragged tensor, in table
     * order. NULL = no tensor is ragged. */
    uint32_t *ragged_ends;
    /* Elements of each span of the block: span_ends' last entries for each tensor of unit RUN, in
     * table order. NULL = there is none, or no span. */
    uint32_t *span_counts;
    uint64_t *tensor_digests; /* XXH3-64 of sample i's bytes of tensor k: entry k * count + i */
    /* Running ends in bytes of `keys`, `groups`; NULL = no sample has one. */
    uint32_t *key_ends, *group_ends;
    uint8_t *keys, *groups;
    uint64_t *versions;
    /* Derived: first token of each sample in the body's token column, count + 1 entries. */
    uint64_t *token_offsets;
    /* Derived: first byte of each tensor's column in the body, tensor_count + 1 entries; the last
     * is body_bytes. NULL without tensors. */
    uint64_t *tensor_offsets;
    void *arena; /* owns the arrays */
};

struct pd_piece {
    const uint8_t *data;
    size_t size_bytes;
};

struct pd_block {
    struct pd_block_head head;
    struct pd_piece *pieces; /* the body's bytes in order, any cut */
    uint32_t piece_count;
    /* Between door and sequencer, which numbers views and tensors by the feed's tables: the names
     * that span.view and the bits of tensor.views stand for, at most PD_VIEWS_MAX; tensor.number is
     * the place in the table. In the head's arena. */
    char (*views)[PD_NAME_MAX + 1];
    uint32_t view_count;
    /* Gives the memory back to the transport and frees the block. */
    void (*release)(struct pd_block *block);
    void *owner;
};

/* Whether the head says nothing impossible: counts, lengths, runs and spans inside their
 * samples, finite weights, a body that holds the columns. PD_EINVAL BAD_BLOCK names what is
 * wrong. decode applies the same rules. */
int pd_block_head_check(const struct pd_block_head *head, struct pd_error *error) PD_MUST_CHECK;
/* Bytes that encode would append. */
size_t pd_block_head_size(const struct pd_block_head *head);
/* The head's fixed, versioned encoding with a digest of its own; position is not part of it (it
 * is the key). */
void pd_block_head_encode(const struct pd_block_head *head, struct pd_buf *buf);
/* PD_ECORRUPT where the bytes are not what encode wrote (digest, counts, bounds: nothing is
 * trusted), PD_ENOMEM. */
int pd_block_head_decode(struct pd_block_head *head, const void *data, size_t size) PD_MUST_CHECK;
/* The same without copying: the arrays point into `data`, which must outlive the head, where
 * that is aligned to 8 bytes. */
int pd_block_head_map(struct pd_block_head *head, const void *data, size_t size) PD_MUST_CHECK;
void pd_block_head_fini(struct pd_block_head *head);

/* Fills token_offsets and tensor_offsets (both allocated) from the other fields. False: the sizes
 * overflow. The last offset is what body_bytes has to be. */
bool pd_block_head_derive(struct pd_block_head *head) PD_MUST_CHECK;

/* Entry `index` as the planner sees it; pointers into the head. */
void pd_block_head_sample(const struct pd_block_head *head, uint32_t index, struct pd_head *out);

/* The spans of a sample, ascending; *count of them, NULL for none. Into the head. */
const struct pd_span *pd_block_head_spans(const struct pd_block_head *head, uint32_t index,
                                          uint32_t *count);

/* Where a sample's bytes of a tensor lie in the body: `elements` of them from offset_bytes on, one
 * after the other. */
struct pd_tensor_extent {
    uint64_t offset_bytes, size_bytes;
    uint64_t elements;
    uint64_t digest; /* XXH3-64 of the bytes as pushed */
};
struct pd_tensor_extent pd_block_head_extent(const struct pd_block_head *head, uint32_t tensor,
                                             uint32_t index);
/* How many of a ragged tensor's elements belong to span number `span` of the sample: 0 for a view
 * that is not the tensor's. Their sum over the sample's spans is the extent's `elements`. Not for
 * unit SAMPLE. */
uint64_t pd_block_head_span_elements(const struct pd_block_head *head, uint32_t tensor,
                                     uint32_t index, uint32_t span);
/* The place in `tensors` of the feed's tensor of this number, or PD_TENSOR_NONE: the block's
 * samples do not have it. */
uint32_t pd_block_head_tensor(const struct pd_block_head *head, uint32_t number);

#endif
