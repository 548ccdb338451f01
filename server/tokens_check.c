/* Served tokens against the log.
 *
 * Place in the flow: the last part of the structural check, on an assemble thread, over the very
 * bytes that would be served. Invariant: a segment passes only where its served bytes have the
 * digest of the door, or equal bytes that were just verified against it. Labels are compared by
 * packer/check.h alone (places and counts). Keeps no state. */
#include "server/tokens_check.h"

#include "base/digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int differs(const struct pd_segment *segment, uint32_t row, uint64_t position,
                   struct pd_check_finding *finding)
{
    *finding = (struct pd_check_finding){
        .check = PD_CHECK_DIGEST, .row = row, .position = (uint32_t)position};
    snprintf(finding->text, sizeof finding->text,
             "the %u tokens from here are not those of sample seq %llu of stream number %u",
             segment->length_tokens, (unsigned long long)segment->seq, segment->stream);
    return PD_ECORRUPT;
}

/* 0 with *same: the verdict. */
static int compare(struct pd_log_reader *reader, uint32_t feed_index,
                   const struct pd_bodies *bodies, const struct pd_segment *segment,
                   const int32_t *served, bool *same)
{
    size_t size_bytes = (size_t)segment->length_tokens * 4;
    if (segment->length_tokens == segment->sample_tokens) {
        const struct pd_block_head *head;
        int rc = pd_log_read_head(reader, feed_index, segment->block, &head);
        if (rc == 0 && segment->index >= head->count)
            rc = PD_ECORRUPT;
        *same = rc == 0 && pd_digest(served, size_bytes) == head->token_digests[segment->index];
        return rc;
    }
    int32_t *logged = malloc(size_bytes);
    int rc = logged ? bodies->tokens(bodies->ctx, segment, logged) : PD_ENOMEM;
    *same = rc == 0 && memcmp(served, logged, size_bytes) == 0;
    free(logged);
    return rc;
}

int pd_tokens_check(struct pd_log_reader *reader, uint32_t feed_index,
                    const struct pd_bodies *bodies, const struct pd_batch *batch,
                    const struct pd_pack *const *rows, const uint8_t *payload,
                    struct pd_check_finding *finding)
{
    const struct pd_array *array = pd_batch_find(batch, "tokens");
    const int32_t *tokens = (const int32_t *)(const void *)(payload + array->offset_bytes);
    for (uint32_t row = 0; row < batch->rows; row++) {
        uint64_t at = 0;
        for (uint32_t i = 0; rows[row] && i < rows[row]->segment_count; i++) {
            const struct pd_segment *segment = &rows[row]->segments[i];
            bool same = false;
            int rc = compare(reader, feed_index, bodies, segment,
                             tokens + (uint64_t)row * batch->width + at, &same);
            if (rc != 0)
                return rc;
            if (!same)
                return differs(segment, row, at, finding);
            at += segment->slot_tokens;
        }
    }
    return 0;
}
