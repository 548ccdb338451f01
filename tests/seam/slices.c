/* Slices, byte buffers and metadata arrays of the stand-in for gRPC. Any thread; a slice's owner is
 * counted as gRPC counts it, and the last one to let go calls the destructor. */
#include "tests/seam/seam.h"

#include "base/check.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct grpc_slice_refcount {
    atomic_size_t refs;
    void (*destroy)(void *user);
    void *user;
};

static void *allocated(size_t bytes)
{
    void *memory = calloc(1, bytes);
    PD_CHECK(memory);
    return memory;
}

/* ---- slices ---- */

grpc_slice grpc_slice_new_with_user_data(void *bytes, size_t length, void (*destroy)(void *),
                                         void *user)
{
    struct grpc_slice_refcount *refcount = allocated(sizeof *refcount);
    refcount->refs = 1;
    refcount->destroy = destroy;
    refcount->user = user;
    return (grpc_slice){.refcount = refcount, .data.refcounted = {length, bytes}};
}

grpc_slice grpc_slice_malloc(size_t length)
{
    uint8_t *bytes = allocated(length + 1); /* exact but for one byte: an overrun shows */
    return grpc_slice_new_with_user_data(bytes, length, free, bytes);
}

grpc_slice grpc_slice_from_copied_buffer(const char *from, size_t length)
{
    grpc_slice slice = grpc_slice_malloc(length);
    if (length > 0)
        memcpy(GRPC_SLICE_START_PTR(slice), from, length);
    return slice;
}

grpc_slice grpc_slice_from_copied_string(const char *text)
{
    return grpc_slice_from_copied_buffer(text, strlen(text));
}

/* Nobody counts its users: it may be dropped without unref. */
static struct grpc_slice_refcount *uncounted(void)
{
    return (struct grpc_slice_refcount *)1; /* as gRPC has it */
}

grpc_slice grpc_slice_from_static_string(const char *text)
{
    return (grpc_slice){.refcount = uncounted(),
                        .data.refcounted = {strlen(text), (uint8_t *)(uintptr_t)text}};
}

grpc_slice grpc_empty_slice(void)
{
    return (grpc_slice){0};
}

grpc_slice grpc_slice_ref(grpc_slice slice)
{
    if (slice.refcount && slice.refcount != uncounted())
        atomic_fetch_add_explicit(&slice.refcount->refs, 1, memory_order_relaxed);
    return slice;
}

void grpc_slice_unref(grpc_slice slice)
{
    struct grpc_slice_refcount *refcount = slice.refcount;
    if (!refcount || refcount == uncounted() ||
        atomic_fetch_sub_explicit(&refcount->refs, 1, memory_order_acq_rel) > 1)
        return;
    refcount->destroy(refcount->user);
    free(refcount);
}

char *grpc_slice_to_c_string(grpc_slice slice)
{
    size_t length = GRPC_SLICE_LENGTH(slice);
    char *text = allocated(length + 1);
    if (length > 0)
        memcpy(text, GRPC_SLICE_START_PTR(slice), length);
    return text;
}

int grpc_slice_str_cmp(grpc_slice slice, const char *text)
{
    size_t length = strlen(text);
    if (GRPC_SLICE_LENGTH(slice) != length)
        return GRPC_SLICE_LENGTH(slice) < length ? -1 : 1;
    return memcmp(GRPC_SLICE_START_PTR(slice), text, length);
}

/* ---- byte buffers ---- */

static grpc_byte_buffer *buffer_of(size_t count)
{
    grpc_byte_buffer *buffer = allocated(sizeof *buffer);
    grpc_slice_buffer *slices = &buffer->data.raw.slice_buffer;
    buffer->type = GRPC_BB_RAW;
    slices->base_slices = slices->slices = allocated((count > 0 ? count : 1) * sizeof(grpc_slice));
    slices->capacity = count;
    return buffer;
}

static void buffer_add(grpc_byte_buffer *buffer, grpc_slice slice)
{
    grpc_slice_buffer *slices = &buffer->data.raw.slice_buffer;
    PD_CHECK(slices->count < slices->capacity);
    slices->slices[slices->count++] = slice;
    slices->length += GRPC_SLICE_LENGTH(slice);
}

grpc_byte_buffer *grpc_raw_byte_buffer_create(grpc_slice *slices, size_t count)
{
    grpc_byte_buffer *buffer = buffer_of(count);
    for (size_t i = 0; i < count; i++)
        buffer_add(buffer, grpc_slice_ref(slices[i]));
    return buffer;
}

void grpc_byte_buffer_destroy(grpc_byte_buffer *buffer)
{
    if (!buffer)
        return;
    grpc_slice_buffer *slices = &buffer->data.raw.slice_buffer;
    for (size_t i = 0; i < slices->count; i++)
        grpc_slice_unref(slices->slices[i]);
    free(slices->base_slices);
    free(buffer);
}

size_t grpc_byte_buffer_length(grpc_byte_buffer *buffer)
{
    return buffer->data.raw.slice_buffer.length;
}

static void copy_out(const grpc_slice_buffer *from, uint8_t *to)
{
    for (size_t i = 0; i < from->count; i++) {
        size_t length = GRPC_SLICE_LENGTH(from->slices[i]);
        if (length > 0)
            memcpy(to, GRPC_SLICE_START_PTR(from->slices[i]), length);
        to += length;
    }
}

grpc_byte_buffer *seam_buffer_copy(const grpc_byte_buffer *from, size_t piece_bytes)
{
    const grpc_slice_buffer *slices = &from->data.raw.slice_buffer;
    size_t left = slices->length;
    uint8_t *bytes = allocated(left + 1), *at = bytes;
    copy_out(slices, bytes);
    grpc_byte_buffer *copy = buffer_of(left / piece_bytes + 1);
    do {
        size_t now = left < piece_bytes ? left : piece_bytes;
        buffer_add(copy, grpc_slice_from_copied_buffer((const char *)at, now));
        at += now;
        left -= now;
    } while (left > 0);
    free(bytes);
    return copy;
}

int grpc_byte_buffer_reader_init(grpc_byte_buffer_reader *reader, grpc_byte_buffer *buffer)
{
    *reader = (grpc_byte_buffer_reader){.buffer_in = buffer, .buffer_out = buffer};
    return 1;
}

int grpc_byte_buffer_reader_next(grpc_byte_buffer_reader *reader, grpc_slice *slice)
{
    const grpc_slice_buffer *slices = &reader->buffer_out->data.raw.slice_buffer;
    if (reader->current.index >= slices->count)
        return 0;
    *slice = grpc_slice_ref(slices->slices[reader->current.index++]);
    return 1;
}

void grpc_byte_buffer_reader_destroy(grpc_byte_buffer_reader *reader)
{
    (void)reader;
}

/* ---- metadata: the slices belong to the call ---- */

void grpc_metadata_array_init(grpc_metadata_array *array)
{
    *array = (grpc_metadata_array){0};
}

void grpc_metadata_array_destroy(grpc_metadata_array *array)
{
    free(array->metadata);
}

void grpc_call_details_init(grpc_call_details *details)
{
    *details = (grpc_call_details){.method = grpc_empty_slice(), .host = grpc_empty_slice()};
}

void grpc_call_details_destroy(grpc_call_details *details)
{
    grpc_slice_unref(details->method);
    grpc_slice_unref(details->host);
}
