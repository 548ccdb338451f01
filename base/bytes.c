/* The little-endian buffer and reader. Values go through memcpy on little-endian machines (the only
 * ones packd builds for). */
#include "base/bytes.h"

#include <stdlib.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packd stores and sends little-endian");

void pd_buf_fini(struct pd_buf *buf)
{
    free(buf->data);
    *buf = (struct pd_buf){0};
}

void pd_buf_clear(struct pd_buf *buf)
{
    buf->size_bytes = 0;
    buf->failed = false;
}

uint8_t *pd_buf_extend(struct pd_buf *buf, size_t size)
{
    if (buf->failed || size > SIZE_MAX / 2 - buf->size_bytes) {
        buf->failed = true;
        return NULL;
    }
    size_t need = buf->size_bytes + size;
    if (need > buf->capacity_bytes || !buf->data) {
        size_t capacity = buf->capacity_bytes ? buf->capacity_bytes : 64;
        while (capacity < need)
            capacity *= 2;
        uint8_t *data = realloc(buf->data, capacity);
        if (!data) {
            buf->failed = true;
            return NULL;
        }
        buf->data = data;
        buf->capacity_bytes = capacity;
    }
    uint8_t *at = buf->data + buf->size_bytes;
    buf->size_bytes = need;
    return at;
}

void pd_buf_put(struct pd_buf *buf, const void *data, size_t size)
{
    uint8_t *at = pd_buf_extend(buf, size);
    if (at && size > 0)
        memcpy(at, data, size);
}

#define PUT(name, type)                                    \
    void pd_buf_put_##name(struct pd_buf *buf, type value) \
    {                                                      \
        pd_buf_put(buf, &value, sizeof value);             \
    }
PUT(u8, uint8_t)
PUT(u16, uint16_t)
PUT(u32, uint32_t)
PUT(u64, uint64_t)
PUT(f32, float)

void pd_buf_put_varint(struct pd_buf *buf, uint64_t value)
{
    uint8_t bytes[PD_VARINT_BYTES_MAX];
    pd_buf_put(buf, bytes, (size_t)(pd_varint_write(bytes, value) - bytes));
}

void pd_buf_put_string(struct pd_buf *buf, const char *data, size_t size)
{
    pd_buf_put_varint(buf, size);
    pd_buf_put(buf, data, size);
}

struct pd_reader pd_reader_of(const void *data, size_t size)
{
    const uint8_t *at = data ? data : (const uint8_t *)""; /* of nothing, too, there is an end */
    return (struct pd_reader){.at = at, .end = at + size};
}

const uint8_t *pd_reader_bytes(struct pd_reader *reader, size_t size)
{
    if (reader->failed || size > pd_reader_left(reader)) {
        reader->failed = true;
        return NULL;
    }
    const uint8_t *at = reader->at;
    reader->at += size;
    return at;
}

#define READ(name, type)                                           \
    type pd_reader_##name(struct pd_reader *reader)                \
    {                                                              \
        type value = 0;                                            \
        const uint8_t *at = pd_reader_bytes(reader, sizeof value); \
        if (at)                                                    \
            memcpy(&value, at, sizeof value);                      \
        return value;                                              \
    }
READ(u8, uint8_t)
READ(u16, uint16_t)
READ(u32, uint32_t)
READ(u64, uint64_t)
READ(f32, float)

uint64_t pd_reader_varint_long(struct pd_reader *reader)
{
    uint64_t value = 0;
    const uint8_t *at = reader->at;
    for (unsigned shift = 0; !reader->failed && at < reader->end && shift < 64; shift += 7) {
        uint8_t byte = *at++;
        if (shift == 63 && byte > 1)
            break;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            reader->at = at;
            return value;
        }
    }
    reader->failed = true;
    return 0;
}

const char *pd_reader_string(struct pd_reader *reader, size_t *size)
{
    uint64_t length = pd_reader_varint(reader);
    *size = 0;
    if (length > pd_reader_left(reader)) {
        reader->failed = true;
        return NULL;
    }
    *size = (size_t)length;
    return (const char *)pd_reader_bytes(reader, (size_t)length);
}
