/* Bytes of samples out of the log, as a plan asks for them.
 *
 * Place: called by the layout and the check while a batch is built, on the thread that owns the
 * reader, inside its transaction. packer/slice.h says which tokens and elements a segment carries;
 * here they are copied from the map to their place, each byte once.
 *
 * Invariant: bytes leave only after the digest taken at the door has been found again: over the
 * bytes just copied where the segment carries the whole column of its sample, else over the sample
 * as it lies in the log. The one exception is a caller who asked to find the digest of whole
 * columns himself. It knows nothing of rows and padding. */
#include "server/log_internal.h"

#include "base/digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES 4096

void pd_log_segment_fini(struct pd_log_segment *segment)
{
    pd_slice_fini(&segment->slice);
    free(segment->of_spans);
    *segment = (struct pd_log_segment){0};
}

static int damaged(struct pd_log_reader *reader, const struct pd_segment *segment, const char *what)
{
    struct pd_log_segment *at = pd_log_reader_segment(reader);
    char stream[PD_NAME_MAX + 1] = "?";
    if (pd_log_read_stream_name(reader, at->feed, segment->stream, stream) != 0)
        memcpy(stream, "?", 2);
    return pd_error_set(at->error, PD_ECORRUPT, "SAMPLE_DAMAGED",
                        "sample %llu of stream '%s' (block %llu, entry %u): %s",
                        (unsigned long long)segment->seq, stream,
                        (unsigned long long)segment->block, segment->index, what);
}

/* ---- which segment ---- */

static bool same_segment(const struct pd_segment *a, const struct pd_segment *b)
{
    return a->block == b->block && a->index == b->index && a->part == b->part &&
           a->offset_tokens == b->offset_tokens && a->length_tokens == b->length_tokens &&
           a->loss_tokens == b->loss_tokens && a->patches == b->patches &&
           a->sample_tokens == b->sample_tokens && a->stream == b->stream && a->seq == b->seq &&
           a->prune.drop_views == b->prune.drop_views &&
           a->prune.keep_frames == b->prune.keep_frames;
}

/* The head of the segment's block, once it is certain that the segment lies in it. */
static int find_head(struct pd_log_reader *reader, const struct pd_segment *segment,
                     const struct pd_block_head **out)
{
    const struct pd_block_head *head;
    uint32_t feed = pd_log_reader_segment(reader)->feed;
    int rc = pd_log_read_head(reader, feed, segment->block, &head);
    if (rc == PD_ENOTFOUND || rc == PD_ECORRUPT)
        return damaged(reader, segment,
                       rc == PD_ENOTFOUND ? "its block is not in the log"
                                          : "the head of its block is damaged");
    if (rc)
        return rc;
    if (segment->index >= head->count || head->stream != segment->stream ||
        head->first_seq + segment->index != segment->seq)
        return damaged(reader, segment, "the plan does not agree with the head of its block");
    *out = head;
    return 0;
}

/* Makes the reader's segment this one. */
static int open_segment(struct pd_log_reader *reader, const struct pd_segment *segment,
                        struct pd_log_segment **out)
{
    struct pd_log_segment *at = pd_log_reader_segment(reader);
    *out = at;
    if (at->known && same_segment(&at->of, segment))
        return 0;
    at->known = false;
    int rc = find_head(reader, segment, &at->head);
    if (rc)
        return rc;
    pd_block_head_sample(at->head, segment->index, &at->pushed);
    rc = pd_slice_make(&at->pushed, segment, &at->slice);
    if (rc == PD_ECORRUPT)
        return damaged(reader, segment, "the plan does not agree with the head of its block");
    at->of = *segment;
    at->known = rc == 0;
    return rc;
}

/* ---- copying ---- */

/* The whole sample's bytes in one column of the body. */
struct column {
    const char *name;
    uint64_t offset_bytes, size_bytes, digest;
};

/* `same`: whether the digest was found again; rc of having looked. */
static int verdict(struct pd_log_reader *reader, const struct pd_segment *segment,
                   const struct column *column, int rc, bool same)
{
    if (rc != PD_ECORRUPT && (rc != 0 || same))
        return rc;
    char text[192];
    snprintf(text, sizeof text, "its stored %s %s", column->name,
             rc ? "are incomplete" : "no longer have the digest taken when they were pushed");
    return damaged(reader, segment, text);
}

static int verify(struct pd_log_reader *reader, const struct pd_segment *segment,
                  const struct column *column)
{
    uint64_t digest = 0;
    int rc = pd_log_digest_body(reader, segment->block, column->offset_bytes, column->size_bytes,
                                &digest);
    return verdict(reader, segment, column, rc, digest == column->digest);
}

/* Tokens or labels: int32, run by run. */
static int copy_tokens(struct pd_log_reader *reader, const struct pd_segment *segment,
                       const struct column *column, enum pd_verify when, int32_t *dst)
{
    const struct pd_slice *slice = &pd_log_reader_segment(reader)->slice;
    uint64_t done = 0;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < slice->token_run_count; i++) {
        const struct pd_token_run *run = &slice->tokens[i];
        rc =
            pd_log_read_body(reader, segment->block, column->offset_bytes + (uint64_t)run->from * 4,
                             (size_t)run->count * 4, dst + done);
        done += run->count;
    }
    if (rc == 0 && done < slice->sample_tokens)
        return verify(reader, segment, column);
    bool same = rc == 0 &&
                (when == PD_VERIFY_LATER || pd_digest(dst, column->size_bytes) == column->digest);
    return verdict(reader, segment, column, rc, same);
}

static int read_tokens(struct pd_log_reader *reader, const struct pd_segment *segment,
                       enum pd_verify when, int32_t *dst)
{
    struct pd_log_segment *at;
    int rc = open_segment(reader, segment, &at);
    if (rc)
        return rc;
    struct column column = {.name = "tokens",
                            .offset_bytes = at->head->token_offsets[segment->index] * 4,
                            .size_bytes = (uint64_t)at->slice.sample_tokens * 4,
                            .digest = at->head->token_digests[segment->index]};
    return copy_tokens(reader, segment, &column, when, dst);
}

static int bodies_tokens(void *ctx, const struct pd_segment *segment, int32_t *dst)
{
    return read_tokens(ctx, segment, PD_VERIFY_COPIES, dst);
}

static int bodies_tokens_later(void *ctx, const struct pd_segment *segment, int32_t *dst)
{
    return read_tokens(ctx, segment, PD_VERIFY_LATER, dst);
}

static int bodies_labels(void *ctx, const struct pd_segment *segment, int32_t *dst, bool *has)
{
    struct pd_log_reader *reader = ctx;
    struct pd_log_segment *at;
    int rc = open_segment(reader, segment, &at);
    if (rc)
        return rc;
    *has = at->head->has_labels;
    if (!*has)
        return 0;
    const uint64_t *offsets = at->head->token_offsets;
    struct column column = {.name = "labels",
                            .offset_bytes =
                                (offsets[segment->index] + offsets[at->head->count]) * 4,
                            .size_bytes = (uint64_t)at->slice.sample_tokens * 4,
                            .digest = at->head->label_digests[segment->index]};
    return copy_tokens(reader, segment, &column, PD_VERIFY_COPIES, dst);
}

static int bodies_loss(void *ctx, const struct pd_segment *segment, struct pd_loss_runs *runs)
{
    struct pd_log_segment *at;
    int rc = open_segment(ctx, segment, &at);
    if (rc == 0)
        *runs = at->slice.loss;
    return rc;
}

static int bodies_spans(void *ctx, const struct pd_segment *segment, const struct pd_span **spans,
                        uint32_t *count)
{
    struct pd_log_segment *at;
    int rc = open_segment(ctx, segment, &at);
    if (rc == 0) {
        *spans = at->slice.spans;
        *count = at->slice.span_count;
    }
    return rc;
}

/* ---- tensors ---- */

/* Elements of each span of the sample, for unit RUN. */
static int read_of_spans(struct pd_log_segment *at, uint32_t tensor)
{
    uint32_t spans = at->pushed.span_count;
    if (spans > at->of_spans_capacity) {
        uint32_t *bigger = reallocarray(at->of_spans, spans, sizeof *bigger);
        if (!bigger)
            return PD_ENOMEM;
        at->of_spans = bigger;
        at->of_spans_capacity = spans;
    }
    for (uint32_t i = 0; i < spans; i++)
        at->of_spans[i] = (uint32_t)pd_block_head_span_elements(at->head, tensor, at->of.index, i);
    return 0;
}

/* The tensor's elements of the segment into slice.runs; *extent is the whole sample's. */
static int open_tensor(struct pd_log_reader *reader, const struct pd_segment *segment,
                       const struct pd_tensor_spec *spec, struct pd_tensor_extent *extent,
                       uint64_t *count, bool *has)
{
    struct pd_log_segment *at;
    int rc = open_segment(reader, segment, &at);
    *count = 0;
    *has = false;
    if (rc)
        return rc;
    uint32_t tensor = pd_block_head_tensor(at->head, spec->number);
    if (tensor == PD_TENSOR_NONE)
        return 0;
    if (pd_tensor_spec_differs(&at->head->tensors[tensor], spec))
        return damaged(reader, segment, "its tensor is not declared as the feed's is");
    *has = true;
    *extent = pd_block_head_extent(at->head, tensor, segment->index);
    struct pd_pushed_elements pushed = {.count = extent->elements};
    if (spec->unit == PD_UNIT_RUN) {
        rc = read_of_spans(at, tensor);
        pushed.of_spans = at->of_spans;
    }
    if (rc == 0)
        rc = pd_slice_elements(&at->slice, spec, pushed, count);
    return rc == PD_ECORRUPT ? damaged(reader, segment, "a tensor's elements are not its spans'")
                             : rc;
}

static int bodies_elements(void *ctx, const struct pd_segment *segment,
                           const struct pd_tensor_spec *spec, uint64_t *count, bool *has)
{
    struct pd_tensor_extent extent;
    return open_tensor(ctx, segment, spec, &extent, count, has);
}

static int bodies_runs(void *ctx, const struct pd_segment *segment,
                       const struct pd_tensor_spec *spec, const uint32_t **elements,
                       uint32_t *count)
{
    struct pd_tensor_extent extent;
    uint64_t all;
    bool has;
    int rc = open_tensor(ctx, segment, spec, &extent, &all, &has);
    const struct pd_slice *slice = &pd_log_reader_segment(ctx)->slice;
    *elements = slice->span_elements;
    *count = rc == 0 && has ? slice->span_element_count : 0;
    return rc;
}

typedef int part_fn(void *ctx, struct pd_log_reader *reader, uint64_t block, uint64_t offset,
                    uint64_t size);

/* The bytes of some of the segment's elements, run by run. */
static int for_each_part(struct pd_log_reader *reader, const struct pd_segment *segment,
                         const struct pd_tensor_extent *extent, struct pd_elements which,
                         part_fn *part, void *ctx)
{
    const struct pd_slice *slice = &pd_log_reader_segment(reader)->slice;
    uint64_t item = extent->elements ? extent->size_bytes / extent->elements : 0, at = 0;
    uint64_t from = which.first, to = which.first + which.count;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < slice->run_count && at < to; i++) {
        const struct pd_element_run *run = &slice->runs[i];
        uint64_t low = at > from ? at : from;
        uint64_t high = at + run->count < to ? at + run->count : to;
        if (low < high)
            rc = part(ctx, reader, segment->block,
                      extent->offset_bytes + (run->from + (low - at)) * item, (high - low) * item);
        at += run->count;
    }
    return rc;
}

struct copy {
    uint8_t *start, *at;
};

static int copy_part(void *ctx, struct pd_log_reader *reader, uint64_t block, uint64_t offset,
                     uint64_t size)
{
    struct copy *copy = ctx;
    int rc = pd_log_read_body(reader, block, offset, size, copy->at);
    copy->at += size;
    return rc;
}

/* A tensor's bytes of the whole sample. */
struct tensor_body {
    struct pd_tensor_extent extent;
    struct column column;
    char name[80];
    bool there;
};

static int open_body(struct pd_log_reader *reader, const struct pd_segment *segment,
                     const struct pd_tensor_spec *spec, struct tensor_body *body)
{
    uint64_t count;
    int rc = open_tensor(reader, segment, spec, &body->extent, &count, &body->there);
    if (rc != 0 || !body->there)
        return rc;
    snprintf(body->name, sizeof body->name, "elements of %s", spec->name);
    body->column = (struct column){.name = body->name,
                                   .offset_bytes = body->extent.offset_bytes,
                                   .size_bytes = body->extent.size_bytes,
                                   .digest = body->extent.digest};
    return 0;
}

static int read_tensor(struct pd_log_reader *reader, const struct pd_segment *segment,
                       const struct pd_tensor_spec *spec, struct pd_elements which,
                       enum pd_verify when, void *dst)
{
    struct tensor_body body;
    struct copy copy = {dst, dst};
    int rc = open_body(reader, segment, spec, &body);
    if (rc != 0 || !body.there)
        return rc;
    rc = for_each_part(reader, segment, &body.extent, which, copy_part, &copy);
    uint64_t copied = (uint64_t)(copy.at - copy.start);
    if (rc == 0 && copied < body.extent.size_bytes)
        return verify(reader, segment, &body.column);
    bool same =
        rc == 0 && (when == PD_VERIFY_LATER || pd_digest(dst, copied) == body.extent.digest);
    return verdict(reader, segment, &body.column, rc, same);
}

static int bodies_tensor(void *ctx, const struct pd_segment *segment,
                         const struct pd_tensor_spec *spec, struct pd_elements which, void *dst)
{
    return read_tensor(ctx, segment, spec, which, PD_VERIFY_COPIES, dst);
}

static int bodies_tensor_later(void *ctx, const struct pd_segment *segment,
                               const struct pd_tensor_spec *spec, struct pd_elements which,
                               void *dst)
{
    return read_tensor(ctx, segment, spec, which, PD_VERIFY_LATER, dst);
}

static int count_zeros(void *ctx, struct pd_log_reader *reader, uint64_t block, uint64_t offset,
                       uint64_t size)
{
    uint64_t *zeros = ctx;
    uint8_t chunk[CHUNK_BYTES];
    int rc = 0;
    while (rc == 0 && size > 0) {
        size_t part = size < sizeof chunk ? (size_t)size : sizeof chunk;
        rc = pd_log_read_body(reader, block, offset, part, chunk);
        for (size_t i = 0; rc == 0 && i < part; i++)
            *zeros += chunk[i] == 0;
        offset += part;
        size -= part;
    }
    return rc;
}

static int bodies_zeros(void *ctx, const struct pd_segment *segment,
                        const struct pd_tensor_spec *spec, struct pd_elements which,
                        uint64_t *zeros)
{
    struct pd_log_reader *reader = ctx;
    struct tensor_body body;
    *zeros = 0;
    int rc = open_body(reader, segment, spec, &body);
    if (rc != 0 || !body.there)
        return rc;
    rc = for_each_part(reader, segment, &body.extent, which, count_zeros, zeros);
    return rc == 0 ? verify(reader, segment, &body.column)
                   : verdict(reader, segment, &body.column, rc, false);
}

void pd_log_bodies(struct pd_log_reader *reader, uint32_t feed, enum pd_verify verify,
                   struct pd_bodies *bodies, struct pd_error *error)
{
    bool later = verify == PD_VERIFY_LATER;
    struct pd_log_segment *segment = pd_log_reader_segment(reader);
    segment->feed = feed;
    segment->error = error;
    segment->known = false;
    *bodies = (struct pd_bodies){.ctx = reader,
                                 .tokens = later ? bodies_tokens_later : bodies_tokens,
                                 .labels = bodies_labels,
                                 .loss = bodies_loss,
                                 .spans = bodies_spans,
                                 .elements = bodies_elements,
                                 .runs = bodies_runs,
                                 .tensor = later ? bodies_tensor_later : bodies_tensor,
                                 .zeros = bodies_zeros};
}

/* ---- for the check ---- */

static int heads_head(void *ctx, const struct pd_segment *segment, const struct pd_head **head)
{
    struct pd_log_segment *at;
    int rc = open_segment(ctx, segment, &at);
    *head = &at->pushed;
    return rc;
}

static int heads_pushed(void *ctx, const struct pd_segment *segment,
                        const struct pd_tensor_spec *spec, uint64_t *count, bool *has)
{
    struct pd_log_segment *at;
    int rc = open_segment(ctx, segment, &at);
    uint32_t tensor = rc == 0 ? pd_block_head_tensor(at->head, spec->number) : PD_TENSOR_NONE;
    *has = tensor != PD_TENSOR_NONE;
    *count = *has ? pd_block_head_extent(at->head, tensor, segment->index).elements : 0;
    return rc;
}

static int heads_pushed_of_span(void *ctx, const struct pd_segment *segment,
                                const struct pd_tensor_spec *spec, uint32_t span, uint64_t *count)
{
    struct pd_log_segment *at;
    int rc = open_segment(ctx, segment, &at);
    uint32_t tensor = rc == 0 ? pd_block_head_tensor(at->head, spec->number) : PD_TENSOR_NONE;
    *count = 0;
    if (tensor != PD_TENSOR_NONE && span < at->pushed.span_count)
        *count = pd_block_head_span_elements(at->head, tensor, segment->index, span);
    return rc;
}

void pd_log_check_heads(struct pd_log_reader *reader, uint32_t feed, struct pd_check_heads *heads,
                        struct pd_error *error)
{
    struct pd_log_segment *segment = pd_log_reader_segment(reader);
    segment->feed = feed;
    segment->error = error;
    segment->known = false;
    *heads = (struct pd_check_heads){.ctx = reader,
                                     .head = heads_head,
                                     .pushed = heads_pushed,
                                     .pushed_of_span = heads_pushed_of_span};
}
