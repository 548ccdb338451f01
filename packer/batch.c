/* The array table of a batch: names, sizes, places in the payload, digests.
 *
 * Used by the layout, which makes the table, and by everyone who reads it (check, wire, files,
 * client). Any thread; a batch belongs to whoever holds it.
 *
 * Invariant: arrays lie in table order, each at the first multiple of PD_ARRAY_ALIGN behind the one
 * before, so the table follows from names, dtypes and shapes alone. It knows nothing of what the
 * arrays mean; that is layout.c and, independently, check.c. */
#include "packer/batch.h"

#include "base/check.h"
#include "base/digest.h"

#include <string.h>

const struct pd_array *pd_batch_find(const struct pd_batch *batch, const char *name)
{
    uint32_t count = batch->array_count < PD_ARRAYS_MAX ? batch->array_count : PD_ARRAYS_MAX;
    for (uint32_t i = 0; i < count; i++)
        if (strncmp(batch->arrays[i].name, name, sizeof batch->arrays[i].name) == 0)
            return &batch->arrays[i];
    return NULL;
}

static bool align_up(uint64_t value, uint64_t *aligned)
{
    if (__builtin_add_overflow(value, PD_ARRAY_ALIGN - 1, aligned))
        return false;
    *aligned -= *aligned % PD_ARRAY_ALIGN;
    return true;
}

/* Size of an array in bytes; false where it does not fit 64 bits. */
static bool shape_bytes(enum pd_dtype dtype, uint32_t rank, const uint64_t *shape, uint64_t *bytes)
{
    *bytes = pd_dtype_size_bytes(dtype);
    for (uint32_t i = 0; i < rank; i++)
        if (__builtin_mul_overflow(*bytes, shape[i], bytes))
            return false;
    return true;
}

int pd_batch_array_add(struct pd_batch *batch, const char *name, enum pd_dtype dtype, uint32_t rank,
                       const uint64_t *shape)
{
    size_t name_bytes = strnlen(name, PD_ARRAY_NAME_MAX + 1);
    if (name_bytes == 0 || name_bytes > PD_ARRAY_NAME_MAX ||
        rank > PD_COUNT_OF(batch->arrays->shape))
        return PD_EINVAL;
    if (pd_dtype_size_bytes(dtype) == 0 || pd_batch_find(batch, name))
        return PD_EINVAL;
    if (batch->array_count >= PD_ARRAYS_MAX)
        return PD_ELIMIT;
    struct pd_array array = {.dtype = dtype, .rank = rank};
    memcpy(array.name, name, name_bytes);
    for (uint32_t i = 0; i < rank; i++)
        array.shape[i] = shape[i];
    uint64_t end;
    if (!shape_bytes(dtype, rank, shape, &array.size_bytes) ||
        !align_up(batch->payload_bytes, &array.offset_bytes) ||
        __builtin_add_overflow(array.offset_bytes, array.size_bytes, &end) || !align_up(end, &end))
        return PD_ELIMIT;
    batch->arrays[batch->array_count++] = array;
    batch->payload_bytes = end;
    return 0;
}

void pd_batch_digest(struct pd_batch *batch, const void *payload)
{
    const uint8_t *bytes = payload;
    for (uint32_t i = 0; i < batch->array_count; i++) {
        struct pd_array *array = &batch->arrays[i];
        array->digest = pd_digest(bytes + array->offset_bytes, array->size_bytes);
    }
}
