/* Messages between protobuf-c and gRPC's byte buffers.
 *
 * Place in the flow: used by every method. Pure but for memory; any thread. Only small messages
 * pass here: payload fields go through server/ingest/wire.h (in) and fetch.c (out), which do not
 * copy them. */
#include "server/rpc/call.h"

#include "server/ingest/strings.h"

#include <stdlib.h>
#include <string.h>

grpc_byte_buffer *pd_message_pack(const ProtobufCMessage *message)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    grpc_slice slice = grpc_slice_malloc(size);

    (void)protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

uint32_t pd_message_piece_count(const grpc_byte_buffer *buffer)
{
    return (uint32_t)buffer->data.raw.slice_buffer.count;
}

void pd_message_pieces(const grpc_byte_buffer *buffer, struct pd_piece *pieces)
{
    const grpc_slice_buffer *slices = &buffer->data.raw.slice_buffer;

    for (size_t i = 0; i < slices->count; i++)
        pieces[i] = (struct pd_piece){.data = GRPC_SLICE_START_PTR(slices->slices[i]),
                                      .size_bytes = GRPC_SLICE_LENGTH(slices->slices[i])};
}

/* One run of bytes: the only slice in place, or a copy in *copy. */
static const uint8_t *flat(const grpc_byte_buffer *buffer, size_t size, uint8_t **copy)
{
    const grpc_slice_buffer *slices = &buffer->data.raw.slice_buffer;

    if (slices->count == 1)
        return GRPC_SLICE_START_PTR(slices->slices[0]);
    uint8_t *at = *copy = malloc(size + 1);
    for (size_t i = 0; at && i < slices->count; i++) {
        memcpy(at, GRPC_SLICE_START_PTR(slices->slices[i]), GRPC_SLICE_LENGTH(slices->slices[i]));
        at += GRPC_SLICE_LENGTH(slices->slices[i]);
    }
    return *copy;
}

ProtobufCMessage *pd_message_unpack(struct pd_call *call, const ProtobufCMessageDescriptor *type,
                                    grpc_byte_buffer *buffer)
{
    size_t size = grpc_byte_buffer_length((grpc_byte_buffer *)buffer);
    uint8_t *copy = NULL;
    const uint8_t *data = flat(buffer, size, &copy);
    ProtobufCMessage *message = data ? protobuf_c_message_unpack(type, NULL, size, data) : NULL;
    struct pd_error error;
    int rc = message ? pd_strings_check(type, data, size, &error)
                     : pd_error_set(&error, PD_EINVAL, "MALFORMED", "%zu bytes are not a %s", size,
                                    type->name);

    free(copy);
    grpc_byte_buffer_destroy(buffer);
    if (rc == 0)
        return message;
    pd_call_fail(call, &error);
    if (message)
        protobuf_c_message_free_unpacked(message, NULL);
    return NULL;
}

int pd_name_copy(char to[PD_NAME_MAX + 1], const char *what, const char *from,
                 struct pd_error *error)
{
    int rc = pd_name_check(what, from, error);

    if (rc == 0)
        memcpy(to, from, strlen(from) + 1);
    return rc;
}

int pd_feed_name_copy(char to[PD_NAME_MAX + 1], const char *from, struct pd_error *error)
{
    return pd_name_copy(to, "feed", from[0] != '\0' ? from : "default", error);
}
