/* A slice: which of a sample's bytes, as pushed, one segment of a plan carries.
 *
 *   as pushed   |-- text --|== image ==|-- text --|== image ==|-- text --|
 *   pruned      |-- text --|           |-- text --|== image ==|-- text --|
 *   segment                          |--|== image ==|-|    <- cut of the pruned one
 *   slice       token runs in the sample as pushed, spans counted from the segment's first token,
 *               and for each tensor the runs of its elements
 *
 * The one place that joins plan and head; whoever copies bytes asks here. Pure; one owner. */
#ifndef PD_PACKER_SLICE_H
#define PD_PACKER_SLICE_H

#include "packer/prune.h"
#include "packer/tensor.h"

/* Consecutive elements of a tensor, among those that the sample was pushed with. */
struct pd_element_run {
    uint64_t from, count;
};

/* Zeroed memory is an empty one; its memory is kept from call to call. */
struct pd_slice {
    struct pd_token_run *tokens; /* ascending; together the segment's tokens in order */
    uint32_t token_run_count;
    struct pd_span *spans; /* offsets from the segment's first token; grids after pruning */
    struct pd_span_origin *origins;
    uint32_t span_count;
    struct pd_loss_runs loss; /* of the whole sample as pruned */
    uint32_t sample_tokens;   /* length of the sample as pushed */
    uint32_t part;            /* of the segment */
    const struct pd_head *pushed;
    struct pd_pruned pruned;
    uint32_t token_run_capacity, span_capacity;
    struct pd_element_run *runs; /* of pd_slice_elements */
    uint32_t run_count, run_capacity;
    uint32_t *span_elements; /* likewise: of each span of the tensor's views, unit RUN */
    uint32_t span_element_count, span_element_capacity;
};
void pd_slice_fini(struct pd_slice *slice);

/* `pushed` is the head of the segment's sample as the log has it and must outlive *slice.
 * PD_ENOMEM; PD_ECORRUPT: the segment is none of that sample: lengths, patches, loss targets or
 * rule do not agree, or it cuts a span. */
int pd_slice_make(const struct pd_head *pushed, const struct pd_segment *segment,
                  struct pd_slice *slice) PD_MUST_CHECK;

/* Elements of a tensor that the whole sample was pushed with. */
struct pd_pushed_elements {
    uint64_t count;
    const uint32_t *of_spans; /* unit RUN: of each span of the sample, 0 for views that have none */
};

/* Fills slice->runs with the elements of a tensor that the segment carries, and *count with their
 * sum:
 *
 *   token axis   those of its tokens
 *   sample axis  the element, with part 0
 *   ragged       unit SAMPLE: all, with part 0; others: those of its spans; a thinned span keeps
 *                its whole run
 *
 * PD_ECORRUPT: pushed.count is not what the head says; PD_ENOMEM. */
int pd_slice_elements(struct pd_slice *slice, const struct pd_tensor_spec *spec,
                      struct pd_pushed_elements pushed, uint64_t *count) PD_MUST_CHECK;

#endif
