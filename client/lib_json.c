/* Messages as JSON, from protobuf-c's descriptors, so that a field added to the contract shows up
 * by itself. Walks descriptors only; knows no message of ours. */
#include "client/lib_json.h"

#include "base/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static void put(struct pd_buf *out, const char *text)
{
    pd_buf_put(out, text, strlen(text));
}

size_t pd_utf8_length(const uint8_t *data, size_t bytes)
{
    static const uint32_t lowest[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (bytes == 0)
        return 0;
    uint8_t first = data[0];
    size_t length = first < 0x80       ? 1
                    : first >> 5 == 6  ? 2
                    : first >> 4 == 14 ? 3
                    : first >> 3 == 30 ? 4
                                       : 0;
    if (length == 0 || length > bytes)
        return 0;
    uint32_t point = length == 1 ? first : first & (0xffu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if (data[i] >> 6 != 2)
            return 0;
        point = point << 6 | (data[i] & 0x3f);
    }
    bool surrogate = point >= 0xd800 && point <= 0xdfff;
    return point < lowest[length] || point > 0x10ffff || surrogate ? 0 : length;
}

static void put_escape(struct pd_buf *out, uint8_t byte)
{
    char text[8];
    const char *special = byte == '"'    ? "\\\""
                          : byte == '\\' ? "\\\\"
                          : byte == '\n' ? "\\n"
                                         : NULL;
    if (!special) {
        snprintf(text, sizeof text, "\\u%04x", byte);
        special = text;
    }
    put(out, special);
}

void pd_json_string(const char *text, size_t bytes, struct pd_buf *out)
{
    const uint8_t *data = (const uint8_t *)text;
    pd_buf_put_u8(out, '"');
    for (size_t at = 0; at < bytes;) {
        size_t length = pd_utf8_length(data + at, bytes - at);
        if (length == 0)
            put(out, "\xef\xbf\xbd");
        else if (data[at] < 0x20 || data[at] == '"' || data[at] == '\\' || data[at] == 0x7f)
            put_escape(out, data[at]);
        else
            pd_buf_put(out, data + at, length);
        at += length ? length : 1;
    }
    pd_buf_put_u8(out, '"');
}

static bool is_text(const ProtobufCBinaryData *bytes)
{
    for (size_t at = 0; at < bytes->len;) {
        size_t length = pd_utf8_length(bytes->data + at, bytes->len - at);
        if (length == 0 || bytes->data[at] < 0x20 || bytes->data[at] == 0x7f)
            return false;
        at += length;
    }
    return true;
}

static void put_bytes(struct pd_buf *out, const ProtobufCBinaryData *bytes)
{
    static const char digits[] = "0123456789abcdef";
    if (is_text(bytes)) {
        pd_json_string((const char *)bytes->data, bytes->len, out);
        return;
    }
    put(out, "{\"hex\": \"");
    for (size_t i = 0; i < bytes->len; i++) {
        pd_buf_put_u8(out, (uint8_t)digits[bytes->data[i] >> 4]);
        pd_buf_put_u8(out, (uint8_t)digits[bytes->data[i] & 15]);
    }
    put(out, "\"}");
}

static void put_double(struct pd_buf *out, double value, int digits)
{
    char text[40];
    if (isfinite(value))
        snprintf(text, sizeof text, "%.*g", digits, value);
    put(out, isfinite(value) ? text : "null");
}

static void put_enum(struct pd_buf *out, const ProtobufCEnumDescriptor *descriptor, int value)
{
    char text[24];
    const ProtobufCEnumValue *known = protobuf_c_enum_descriptor_get_value(descriptor, value);
    snprintf(text, sizeof text, "%d", value);
    if (known)
        pd_json_string(known->name, strlen(known->name), out);
    else
        put(out, text);
}

static size_t element_bytes(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 4;
    }
}

static void put_number(struct pd_buf *out, ProtobufCType type, const void *at)
{
    char text[40];
    switch (type) {
    case PROTOBUF_C_TYPE_FIXED64:
        snprintf(text, sizeof text, "\"%016" PRIx64 "\"", *(const uint64_t *)at);
        break;
    case PROTOBUF_C_TYPE_UINT64:
        snprintf(text, sizeof text, "%" PRIu64, *(const uint64_t *)at);
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        snprintf(text, sizeof text, "%" PRId64, *(const int64_t *)at);
        break;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        snprintf(text, sizeof text, "%" PRIu32, *(const uint32_t *)at);
        break;
    default:
        snprintf(text, sizeof text, "%" PRId32, *(const int32_t *)at);
    }
    put(out, text);
}

static void put_value(struct pd_buf *out, const ProtobufCFieldDescriptor *field, const void *at)
{
    const char *string;
    const ProtobufCMessage *message;
    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL:
        put(out, *(const protobuf_c_boolean *)at ? "true" : "false");
        return;
    case PROTOBUF_C_TYPE_ENUM:
        put_enum(out, field->descriptor, *(const int *)at);
        return;
    case PROTOBUF_C_TYPE_FLOAT:
        put_double(out, (double)*(const float *)at, 9);
        return;
    case PROTOBUF_C_TYPE_DOUBLE:
        put_double(out, *(const double *)at, 17);
        return;
    case PROTOBUF_C_TYPE_STRING:
        string = *(char *const *)at;
        pd_json_string(string ? string : "", string ? strlen(string) : 0, out);
        return;
    case PROTOBUF_C_TYPE_BYTES:
        put_bytes(out, at);
        return;
    case PROTOBUF_C_TYPE_MESSAGE:
        message = *(ProtobufCMessage *const *)at;
        if (message)
            pd_json_message(message, out);
        else
            put(out, "null");
        return;
    default:
        put_number(out, field->type, at);
    }
}

static void put_repeated(struct pd_buf *out, const ProtobufCFieldDescriptor *field,
                         const uint8_t *message)
{
    size_t count = *(const size_t *)(const void *)(message + field->quantifier_offset);
    const uint8_t *data = *(uint8_t *const *)(const void *)(message + field->offset);
    size_t step = element_bytes(field->type);
    put(out, "[");
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            put(out, ", ");
        put_value(out, field, data + i * step);
    }
    put(out, "]");
}

/* The member of a oneof that is not the one set. */
static bool is_absent(const ProtobufCFieldDescriptor *field, const uint8_t *message)
{
    if (!(field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF))
        return false;
    return *(const uint32_t *)(const void *)(message + field->quantifier_offset) != field->id;
}

void pd_json_message(const ProtobufCMessage *message, struct pd_buf *out)
{
    const uint8_t *base = (const uint8_t *)message;
    const char *separator = "";
    put(out, "{");
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        if (is_absent(field, base))
            continue;
        put(out, separator);
        pd_json_string(field->name, strlen(field->name), out);
        put(out, ": ");
        if (field->label == PROTOBUF_C_LABEL_REPEATED)
            put_repeated(out, field, base);
        else
            put_value(out, field, base + field->offset);
        separator = ", ";
    }
    put(out, "}");
}
