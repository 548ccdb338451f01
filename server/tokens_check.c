/* Served tokens and tensors against the log.
 *
 * Place in the flow: parts of the structural check, on an assemble thread, over the very bytes that
 * would be served. Invariant: a segment passes only where its served bytes have the digest of the
 * door, or equal bytes that were just verified against it. Where elements lie in a tensor's array
 * is what packer/check.c has proved: they are counted on from one segment to the next. Labels are
 * compared by packer/check.h alone (places and counts). Keeps no state. */
#include "server/tokens_check.h"

#include "base/digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A segment and its place. */
struct place {
    const struct pd_segment *segment;
    uint32_t row;
    uint64_t position; /* in the row */
    uint64_t number;   /* of the batch's real segments */
};

static int differs(const struct place *place, const char *tensor, struct pd_check_finding *finding)
{
    const struct pd_segment *segment = place->segment;
    *finding = (struct pd_check_finding){
        .check = PD_CHECK_DIGEST, .row = place->row, .position = (uint32_t)place->position};
    snprintf(
        finding->text, sizeof finding->text,
        "%s of the %u positions from here are not those of sample seq %llu of stream number %u",
        tensor, segment->length_tokens, (unsigned long long)segment->seq, segment->stream);
    return PD_ECORRUPT;
}

static int head_of(const struct pd_tokens_check *check, const struct pd_segment *segment,
                   const struct pd_block_head **head)
{
    int rc = pd_log_read_head(check->reader, check->feed_index, segment->block, head);
    return rc == 0 && segment->index >= (*head)->count ? PD_ECORRUPT : rc;
}

/* Cut or pruned tokens are compared with the log's. Whole ones that are not as they were pushed,
 * too: the log then says first whether its own still are. */
static int compare_tokens(void *ctx, const struct pd_segment *segment, const int32_t *served,
                          bool *same)
{
    const struct pd_tokens_check *check = ctx;
    size_t size_bytes = (size_t)segment->length_tokens * 4;
    const struct pd_block_head *head;
    int rc = head_of(check, segment, &head);
    if (rc != 0)
        return rc;
    *same = segment->length_tokens == head->lengths[segment->index] &&
            pd_digest(served, size_bytes) == head->token_digests[segment->index];
    if (*same)
        return 0;
    int32_t *logged = malloc(size_bytes);
    rc = logged ? check->bodies->tokens(check->bodies->ctx, segment, logged) : PD_ENOMEM;
    *same = rc == 0 && memcmp(served, logged, size_bytes) == 0;
    free(logged);
    return rc;
}

struct pd_check_tokens pd_tokens_check_tokens(struct pd_tokens_check *check)
{
    return (struct pd_check_tokens){.ctx = check, .compare = compare_tokens};
}

/* ---- tensors ---- */

/* The served elements `which` of the segment, at `served`. */
static int compare_elements(const struct pd_tokens_check *check, const struct pd_segment *segment,
                            const struct pd_tensor_spec *spec, struct pd_elements which,
                            const uint8_t *served, bool *same)
{
    size_t size_bytes = (size_t)(which.count * pd_tensor_element_bytes(spec));
    const struct pd_block_head *head;
    int rc = head_of(check, segment, &head);
    uint32_t tensor = rc == 0 ? pd_block_head_tensor(head, spec->number) : PD_TENSOR_NONE;
    if (tensor == PD_TENSOR_NONE)
        return rc != 0 ? rc : PD_ECORRUPT;
    struct pd_tensor_extent extent = pd_block_head_extent(head, tensor, segment->index);
    *same = size_bytes == extent.size_bytes && pd_digest(served, size_bytes) == extent.digest;
    if (*same)
        return 0;
    uint8_t *logged = malloc(size_bytes);
    rc = logged ? check->bodies->tensor(check->bodies->ctx, segment, spec, which, logged)
                : PD_ENOMEM;
    *same = rc == 0 && memcmp(served, logged, size_bytes) == 0;
    free(logged);
    return rc;
}

/* Element of the array where the segment's begin; *done counts those of a ragged tensor. */
static uint64_t first_element(const struct pd_tokens_check *check, const struct place *place,
                              const struct pd_tensor_spec *spec, uint64_t count, uint64_t *done)
{
    uint64_t first = *done;
    *done += count;
    if (spec->axis == PD_AXIS_TOKEN)
        return (uint64_t)place->row * check->batch->width + place->position;
    return spec->axis == PD_AXIS_SAMPLE ? place->number : first;
}

static int check_tensor(const struct pd_tokens_check *check, const struct place *place,
                        const struct pd_tensor_spec *spec, uint64_t *done,
                        struct pd_check_finding *finding)
{
    const struct pd_array *array = pd_batch_find(check->batch, spec->name);
    struct pd_elements which = {0};
    bool has, same = true;
    int rc = check->bodies->elements(check->bodies->ctx, place->segment, spec, &which.count, &has);
    if (rc != 0 || which.count == 0)
        return rc;
    uint64_t at = first_element(check, place, spec, which.count, done);
    if (spec->axis == PD_AXIS_TOKEN && spec->alignment == PD_ALIGN_TARGET &&
        check->rules->labels == PD_LABELS_SHIFTED) {
        which.first = 1; /* target i stands at position i - 1 */
        which.count--;
    }
    if (which.count > 0)
        rc = compare_elements(
            check, place->segment, spec, which,
            check->payload + array->offset_bytes + at * pd_tensor_element_bytes(spec), &same);
    return rc == 0 && !same ? differs(place, spec->name, finding) : rc;
}

int pd_tokens_check_tensors(const struct pd_tokens_check *check, struct pd_check_finding *finding)
{
    uint64_t done[PD_TENSORS_MAX] = {0};
    struct place place = {0};
    int rc = 0;
    if (check->media->tensor_count == 0)
        return 0;
    for (; rc == 0 && place.row < check->batch->rows; place.row++) {
        const struct pd_pack *pack = check->rows[place.row];
        place.position = 0;
        for (uint32_t i = 0; rc == 0 && pack && i < pack->segment_count; i++) {
            place.segment = &pack->segments[i];
            for (uint32_t t = 0; rc == 0 && t < check->media->tensor_count; t++)
                rc = check_tensor(check, &place, &check->media->tensors[t], &done[t], finding);
            place.position += place.segment->slot_tokens;
            place.number++;
        }
    }
    return rc;
}
