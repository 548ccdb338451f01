/* The digest of every array, taken once, in step with the check of its contents.
 *
 * Place in the flow: check.c lets the digests of the arrays of a value a position follow its walk
 * over the segments, a few KiB behind, while what it has compared is still in the cache; those of
 * all others are taken at the end. Pure, any thread, no allocation.
 *
 * Invariant: a digest is of the whole array as it lies in the payload, and of nothing else. */
#include "packer/check_scan.h"

#include <string.h>

#define LAG_POSITIONS 2048 /* five arrays of 8 KiB: within the nearest caches */
#define ITEM_BYTES 4

void pd_scan_digest_begin(struct pd_scan *scan)
{
    static const char *const names[] = {"tokens", "labels", "positions", "segment_ids",
                                        "loss_weight"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct pd_array *array = pd_batch_find(scan->batch, names[i]);
        if (array->rank != 2) /* planes of positions lie one behind the other */
            continue;
        pd_digest_begin(&scan->streams[scan->stream_count]);
        scan->streamed[scan->stream_count++] = array;
    }
}

static void follow(struct pd_scan *scan, uint64_t position)
{
    size_t size_bytes = (size_t)(position - scan->digested) * ITEM_BYTES;
    for (uint32_t i = 0; i < scan->stream_count; i++)
        pd_digest_add(&scan->streams[i],
                      scan->payload + scan->streamed[i]->offset_bytes + scan->digested * ITEM_BYTES,
                      size_bytes);
    scan->digested = position;
}

void pd_scan_digest_to(struct pd_scan *scan, uint64_t position)
{
    if (position - scan->digested >= LAG_POSITIONS)
        follow(scan, position);
}

static uint64_t digest_of(const struct pd_scan *scan, const struct pd_array *array)
{
    for (uint32_t i = 0; i < scan->stream_count; i++)
        if (scan->streamed[i] == array)
            return pd_digest_end(&scan->streams[i]);
    return pd_digest(scan->payload + array->offset_bytes, array->size_bytes);
}

int pd_scan_digests(struct pd_scan *scan)
{
    follow(scan, (uint64_t)scan->batch->rows * scan->batch->width);
    for (uint32_t i = 0; i < scan->batch->array_count; i++) {
        const struct pd_array *array = &scan->batch->arrays[i];
        uint64_t digest = digest_of(scan, array);
        if (scan->digests)
            scan->digests[i] = digest;
        if (array->digest != 0 && array->digest != digest)
            return pd_scan_report(scan, PD_CHECK_DIGEST, 0, (int64_t)array->digest, (int64_t)digest,
                                  "%.*s has digest %016llx, its bytes give %016llx",
                                  PD_ARRAY_NAME_MAX, array->name, (unsigned long long)array->digest,
                                  (unsigned long long)digest);
    }
    return 0;
}
