/* Writes the wire form directly, as a decoder meets it: protobuf-c could not pack what is wrong on
 * purpose. Pure; one thread. */
#include "tests/fuzz/wire.h"

#include "base/check.h"

#include <string.h>

#define DEPTH_MAX 5
#define MESSAGE_BYTES_MAX 60000
#define TEXT_MAX 300

uint32_t fuzz_number(struct fuzz_source *source, uint32_t bound)
{
    return source->at < source->size ? source->data[source->at++] % bound : 0;
}

static void put_varint(struct pd_buf *to, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        pd_buf_put_u8(to, (uint8_t)(value | 0x80));
    pd_buf_put_u8(to, (uint8_t)value);
}

/* Mostly small, now and then the end of a range. */
static uint64_t integer(struct fuzz_source *source)
{
    static const uint64_t ends[] = {0x7fffffff,         0x80000000, 0xffffffff, 0x7fffffffffffffff,
                                    0x8000000000000000, UINT64_MAX, 4096,       1 << 20};
    uint32_t kind = fuzz_number(source, 256);
    if (kind < 200)
        return kind % 8;
    return kind < 224 ? ends[kind % 8] : (uint64_t)fuzz_number(source, 256) << kind % 32;
}

static void put_text(struct pd_buf *to, struct fuzz_source *source, bool text)
{
    static const char *const names[] = {"default", "train", "p0", "default", "w",
                                        "other",   "",      "s0", "a/b",     "train"};
    char bytes[TEXT_MAX];
    uint32_t kind = fuzz_number(source, 64);
    size_t size = kind == 63 ? sizeof bytes : fuzz_number(source, 40);
    if (text && kind < 56) {
        const char *name = names[kind % PD_COUNT_OF(names)];
        put_varint(to, strlen(name));
        pd_buf_put(to, name, strlen(name));
        return;
    }
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)fuzz_number(source, 256);
    put_varint(to, size);
    pd_buf_put(to, bytes, size);
}

static void put_fields(struct pd_buf *to, const ProtobufCMessageDescriptor *type,
                       struct fuzz_source *source, int depth);

static void put_nested(struct pd_buf *to, const ProtobufCMessageDescriptor *type,
                       struct fuzz_source *source, int depth)
{
    struct pd_buf inner = {0};
    if (depth < DEPTH_MAX)
        put_fields(&inner, type, source, depth + 1);
    put_varint(to, inner.size_bytes);
    pd_buf_put(to, inner.data, inner.size_bytes);
    pd_buf_fini(&inner);
}

/* A number that takes 4, 8 or as many bytes as it needs. Returns the wire type. */
static uint32_t put_scalar(struct pd_buf *to, ProtobufCType type, struct fuzz_source *source)
{
    static const double reals[] = {0, 1, -1, 0.5, 1e300, -1e-300, 1e308 * 10, 0};
    uint64_t value = integer(source);
    switch (type) {
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
        pd_buf_put_u32(to, (uint32_t)value);
        return 5;
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
        pd_buf_put_u64(to, value);
        return 1;
    case PROTOBUF_C_TYPE_FLOAT:
        pd_buf_put(to, &(float){(float)reals[value % 5]}, 4);
        return 5;
    case PROTOBUF_C_TYPE_DOUBLE:
        pd_buf_put(to, &reals[value % PD_COUNT_OF(reals)], 8);
        return 1;
    default:
        put_varint(to, value);
        return 0;
    }
}

static bool has_length(ProtobufCType type)
{
    return type == PROTOBUF_C_TYPE_STRING || type == PROTOBUF_C_TYPE_BYTES ||
           type == PROTOBUF_C_TYPE_MESSAGE;
}

static void put_value(struct pd_buf *to, const ProtobufCFieldDescriptor *field,
                      struct fuzz_source *source, int depth)
{
    if (has_length(field->type)) {
        put_varint(to, (uint64_t)field->id << 3 | 2);
        if (field->type == PROTOBUF_C_TYPE_MESSAGE)
            put_nested(to, field->descriptor, source, depth);
        else
            put_text(to, source, field->type == PROTOBUF_C_TYPE_STRING);
        return;
    }
    struct pd_buf value = {0};
    uint32_t wire = put_scalar(&value, field->type, source);
    put_varint(to, (uint64_t)field->id << 3 | wire);
    pd_buf_put(to, value.data, value.size_bytes);
    pd_buf_fini(&value);
}

/* A repeated number as one run, as proto3 has it. */
static void put_packed(struct pd_buf *to, const ProtobufCFieldDescriptor *field,
                       struct fuzz_source *source, uint32_t count)
{
    struct pd_buf run = {0};
    for (uint32_t i = 0; i < count; i++)
        (void)put_scalar(&run, field->type, source);
    put_varint(to, (uint64_t)field->id << 3 | 2);
    put_varint(to, run.size_bytes);
    pd_buf_put(to, run.data, run.size_bytes);
    pd_buf_fini(&run);
}

static void put_fields(struct pd_buf *to, const ProtobufCMessageDescriptor *type,
                       struct fuzz_source *source, int depth)
{
    bool one_of = type->n_fields > 0 && type->fields[0].flags & PROTOBUF_C_FIELD_FLAG_ONEOF;
    if (one_of) { /* the types of streams: mostly one field of many */
        put_value(to, &type->fields[fuzz_number(source, type->n_fields)], source, depth);
        if (fuzz_number(source, 16) != 15)
            return;
    }
    for (unsigned i = 0; i < type->n_fields && to->size_bytes < MESSAGE_BYTES_MAX; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        uint32_t count = fuzz_number(source, 4);
        if (field->label != PROTOBUF_C_LABEL_REPEATED)
            count = count > 0;
        if (count > 0 && field->label == PROTOBUF_C_LABEL_REPEATED && !has_length(field->type))
            put_packed(to, field, source, count);
        else
            for (uint32_t k = 0; k < count; k++)
                put_value(to, field, source, depth);
    }
}

void fuzz_message(struct pd_buf *to, const ProtobufCMessageDescriptor *type,
                  struct fuzz_source *source)
{
    uint32_t kind = fuzz_number(source, 16);
    size_t from = to->size_bytes;
    if (kind == 0) {
        for (uint32_t left = fuzz_number(source, 256); left > 0; left--)
            pd_buf_put_u8(to, (uint8_t)fuzz_number(source, 256));
        return;
    }
    put_fields(to, type, source, 0);
    PD_CHECK(!to->failed);
    size_t size = to->size_bytes - from;
    if (kind == 1 && size > 0)
        to->data[from + fuzz_number(source, 256) % size] ^= (uint8_t)(1 + fuzz_number(source, 255));
}
