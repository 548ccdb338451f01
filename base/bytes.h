/* Bytes in fixed little-endian form: a growing buffer to write, a bounded reader to read.
 *
 * Both carry a sticky failure flag, so that a codec is a straight list of calls and one test at the
 * end. Nothing here trusts its input. Owner's thread only. */
#ifndef PD_BASE_BYTES_H
#define PD_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct pd_buf {
    uint8_t *data; /* owned */
    size_t size_bytes;
    size_t capacity_bytes;
    bool failed; /* an allocation failed or the limit was passed: the content is not to be used */
};

/* Zeroed memory is an empty buffer. fini frees and empties; clear keeps the memory. */
void pd_buf_fini(struct pd_buf *buf);
void pd_buf_clear(struct pd_buf *buf);
/* Room for `size` more bytes: a pointer to them, counted as written, or NULL (and failed). */
uint8_t *pd_buf_extend(struct pd_buf *buf, size_t size);
void pd_buf_put(struct pd_buf *buf, const void *data, size_t size);
void pd_buf_put_u8(struct pd_buf *buf, uint8_t value);
void pd_buf_put_u16(struct pd_buf *buf, uint16_t value);
void pd_buf_put_u32(struct pd_buf *buf, uint32_t value);
void pd_buf_put_u64(struct pd_buf *buf, uint64_t value);
void pd_buf_put_f32(struct pd_buf *buf, float value);
/* LEB128, at most PD_VARINT_BYTES_MAX bytes. */
#define PD_VARINT_BYTES_MAX 10
void pd_buf_put_varint(struct pd_buf *buf, uint64_t value);
/* The same to memory that has room for it; returns where it ends. */
static inline uint8_t *pd_varint_write(uint8_t *at, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}
/* How many bytes it takes. */
static inline size_t pd_varint_bytes(uint64_t value)
{
    size_t count = 1;
    for (; value >= 0x80; value >>= 7)
        count++;
    return count;
}
/* varint length, then the bytes. */
void pd_buf_put_string(struct pd_buf *buf, const char *data, size_t size);

struct pd_reader {
    const uint8_t *at; /* borrowed */
    const uint8_t *end;
    bool failed; /* a read went past the end or was malformed; every later read gives zeros */
};

struct pd_reader pd_reader_of(const void *data, size_t size);
uint8_t pd_reader_u8(struct pd_reader *reader);
uint16_t pd_reader_u16(struct pd_reader *reader);
uint32_t pd_reader_u32(struct pd_reader *reader);
uint64_t pd_reader_u64(struct pd_reader *reader);
float pd_reader_f32(struct pd_reader *reader);
/* Of any length, for pd_reader_varint. */
uint64_t pd_reader_varint_long(struct pd_reader *reader);
static inline uint64_t pd_reader_varint(struct pd_reader *reader)
{
    if (!reader->failed && reader->at < reader->end && *reader->at < 0x80)
        return *reader->at++;
    return pd_reader_varint_long(reader);
}
/* The same, failed where it takes more than 32 bits. */
static inline uint32_t pd_reader_varint32(struct pd_reader *reader)
{
    uint64_t value = pd_reader_varint(reader);
    if (value > UINT32_MAX)
        reader->failed = true;
    return (uint32_t)value;
}
/* The next `size` bytes in place, or NULL (and failed). */
const uint8_t *pd_reader_bytes(struct pd_reader *reader, size_t size);
/* A varint-counted string in place; *size is its length. NULL (and failed) when it does not fit. */
const char *pd_reader_string(struct pd_reader *reader, size_t *size);
static inline size_t pd_reader_left(const struct pd_reader *reader)
{
    return (size_t)(reader->end - reader->at);
}
/* True when all was read and nothing failed. */
static inline bool pd_reader_done(const struct pd_reader *reader)
{
    return !reader->failed && reader->at == reader->end;
}

#endif
