/* Looks for zero bytes in the string fields of a message, as its descriptor tells them.
 *
 * Place in the flow: behind protobuf-c, over the bytes that it has just unpacked, so that no name
 * is taken for a shorter one. Invariant: reads inside the bytes it is given, whatever they are;
 * what cannot be read ends the look. It knows no message by name and decodes no value. */
#include "server/ingest/strings.h"

#include "base/bytes.h"

/* No message of packd.v1 lies deeper in another one; a deeper one would not be looked at. */
#define DEPTH_MAX 8

enum wire_type { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static int check(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t size,
                 unsigned depth, struct pd_error *error);

static int check_text(const ProtobufCMessageDescriptor *type, const ProtobufCFieldDescriptor *field,
                      const uint8_t *data, size_t size, struct pd_error *error)
{
    const uint8_t *zero = memchr(data, 0, size);
    return !zero ? 0
                 : pd_error_set(
                       error, PD_EINVAL, "MALFORMED",
                       "%s.%s: byte %zu of its %zu is zero; expected text without zero bytes",
                       type->short_name, field->name, (size_t)(zero - data), size);
}

static int check_field(const ProtobufCMessageDescriptor *type, uint32_t number, const uint8_t *data,
                       size_t size, unsigned depth, struct pd_error *error)
{
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field(type, number);
    if (field && field->type == PROTOBUF_C_TYPE_STRING)
        return check_text(type, field, data, size, error);
    if (field && field->type == PROTOBUF_C_TYPE_MESSAGE)
        return check(field->descriptor, data, size, depth + 1, error);
    return 0;
}

static int check(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t size,
                 unsigned depth, struct pd_error *error)
{
    struct pd_reader reader = pd_reader_of(data, size);
    int rc = 0;
    while (rc == 0 && depth < DEPTH_MAX && !reader.failed && pd_reader_left(&reader) > 0) {
        uint64_t tag = pd_reader_varint(&reader);
        switch (tag & 7) {
        case VARINT:
            (void)pd_reader_varint(&reader);
            break;
        case FIXED64:
            (void)pd_reader_bytes(&reader, 8);
            break;
        case FIXED32:
            (void)pd_reader_bytes(&reader, 4);
            break;
        case BYTES: {
            size_t part;
            const char *at = pd_reader_string(&reader, &part);
            if (at && tag >> 3 <= UINT32_MAX)
                rc = check_field(type, (uint32_t)(tag >> 3), (const uint8_t *)at, part, depth,
                                 error);
            break;
        }
        default: /* groups do not occur in proto3 */
            return 0;
        }
    }
    return rc;
}

int pd_strings_check(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t size,
                     struct pd_error *error)
{
    return check(type, data, size, 0, error);
}
