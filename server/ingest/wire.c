/* The tag scanner of PushRequest.
 *
 * Place in the flow: first thing that looks at a pushed message; what it finds goes to protobuf-c
 * (the head) and to the door (the body's pieces). Owning thread: the caller's. Invariant: a range
 * it returns lies inside the message. It decodes no field and copies no payload.
 *
 * A message of 1 MiB arrives in some eighty slices, so every read may meet the end of a piece. */
#include "server/ingest/wire.h"

#include <string.h>

#define BODY_FIELD 15
#define HEAD_FIELD 1

enum wire_type { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

/* Reads the message as one run of bytes, up to `end`. */
struct cursor {
    const struct pd_piece *pieces;
    uint32_t piece_count;
    uint32_t piece;  /* the one that is read now */
    size_t in_piece; /* bytes of it that are read */
    size_t at;       /* offset in the message */
    size_t end;      /* of what may be read */
    bool failed;
};

static struct cursor cursor_of(const struct pd_piece *pieces, uint32_t piece_count)
{
    struct cursor cursor = {.pieces = pieces, .piece_count = piece_count};

    for (uint32_t i = 0; i < piece_count; i++)
        cursor.end += pieces[i].size_bytes;
    return cursor;
}

static void pass_used_pieces(struct cursor *cursor)
{
    while (cursor->piece < cursor->piece_count &&
           cursor->in_piece == cursor->pieces[cursor->piece].size_bytes) {
        cursor->piece++;
        cursor->in_piece = 0;
    }
}

static uint8_t next_byte(struct cursor *cursor)
{
    if (cursor->failed || cursor->at >= cursor->end) {
        cursor->failed = true;
        return 0;
    }
    pass_used_pieces(cursor);
    cursor->at++;
    return cursor->pieces[cursor->piece].data[cursor->in_piece++];
}

static void skip(struct cursor *cursor, uint64_t size)
{
    if (cursor->failed || size > cursor->end - cursor->at) {
        cursor->failed = true;
        return;
    }
    cursor->at += (size_t)size;
    while (size > 0) {
        pass_used_pieces(cursor);
        size_t left = cursor->pieces[cursor->piece].size_bytes - cursor->in_piece;
        size_t step = size < left ? (size_t)size : left;
        cursor->in_piece += step;
        size -= step;
    }
}

static uint64_t next_varint(struct cursor *cursor)
{
    uint64_t value = 0;

    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t byte = next_byte(cursor);
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return value;
    }
    cursor->failed = true;
    return 0;
}

/* The field number, with its wire type in *type; 0 where no valid tag is there. */
static uint32_t next_tag(struct cursor *cursor, enum wire_type *type)
{
    uint64_t tag = next_varint(cursor);

    *type = (enum wire_type)(tag & 7);
    if (tag > UINT32_MAX || tag >> 3 == 0)
        cursor->failed = true;
    return cursor->failed ? 0 : (uint32_t)(tag >> 3);
}

/* A length-delimited field's content; the cursor stands behind it afterwards. */
static struct pd_wire_range next_range(struct cursor *cursor)
{
    uint64_t size = next_varint(cursor);
    struct pd_wire_range range = {.offset_bytes = cursor->at};

    skip(cursor, size);
    range.size_bytes = cursor->failed ? 0 : (size_t)size;
    return range;
}

static void skip_field(struct cursor *cursor, enum wire_type type)
{
    switch (type) {
    case VARINT:
        (void)next_varint(cursor);
        return;
    case FIXED64:
        skip(cursor, 8);
        return;
    case BYTES:
        (void)next_range(cursor);
        return;
    case FIXED32:
        skip(cursor, 4);
        return;
    }
    cursor->failed = true; /* groups do not occur in proto3 */
}

static int malformed(struct pd_error *error, const struct cursor *cursor, const char *what)
{
    return pd_error_set(error, PD_EINVAL, "MALFORMED", "PushRequest: %s, near byte %zu of %zu",
                        what, cursor->at, cursor->end);
}

/* The fields of a SampleBlock or a BlockChunk: anything, but the payload once and last, and a
 * block's head once before it. */
static int split_inner(struct cursor *cursor, struct pd_wire_push *push, struct pd_error *error)
{
    bool has_head = false;

    while (cursor->at < cursor->end) {
        enum wire_type type;
        uint32_t field = next_tag(cursor, &type);
        if (field == BODY_FIELD && type == BYTES) {
            push->body = next_range(cursor);
            if (!cursor->failed && cursor->at != cursor->end)
                return malformed(error, cursor,
                                 "a field stands behind `body`, which must be the last one");
        } else if (field == HEAD_FIELD && push->kind == PD_WIRE_BLOCK && type == BYTES &&
                   !has_head) {
            push->head = next_range(cursor);
            has_head = true;
        } else if (field == BODY_FIELD || (field == HEAD_FIELD && push->kind == PD_WIRE_BLOCK)) {
            return malformed(error, cursor,
                             "`head` or `body` occurs twice or with a wrong wire type");
        } else {
            skip_field(cursor, type);
        }
        if (cursor->failed)
            return malformed(error, cursor, "a field is cut off or not readable");
    }
    if (push->kind == PD_WIRE_BLOCK && !has_head)
        return malformed(error, cursor, "SampleBlock without `head`");
    return 0;
}

int pd_wire_push_split(const struct pd_piece *pieces, uint32_t piece_count,
                       struct pd_wire_push *push, struct pd_error *error)
{
    struct cursor cursor = cursor_of(pieces, piece_count);
    enum wire_type type;
    uint32_t field = next_tag(&cursor, &type);

    *push = (struct pd_wire_push){0};
    if (cursor.failed || field > PD_WIRE_END || type != BYTES)
        return malformed(error, &cursor, "expected one of hello, block, chunk, end");
    push->kind = (enum pd_wire_kind)field;

    struct cursor inner = cursor; /* next_range passes over what `inner` reads once more */
    push->inner = next_range(&cursor);
    if (cursor.failed)
        return malformed(error, &cursor, "the message is cut off");
    if (cursor.at != cursor.end)
        return malformed(error, &cursor, "bytes behind the one field that a PushRequest has");
    if (push->kind != PD_WIRE_BLOCK && push->kind != PD_WIRE_CHUNK)
        return 0;
    (void)next_varint(&inner);
    return split_inner(&inner, push, error);
}

uint32_t pd_wire_cut(const struct pd_piece *pieces, uint32_t piece_count,
                     struct pd_wire_range range, struct pd_piece *out)
{
    uint32_t count = 0;
    size_t start = 0; /* offset of piece i in the message */

    for (uint32_t i = 0; i < piece_count && range.size_bytes > 0; i++) {
        size_t end = start + pieces[i].size_bytes;
        if (range.offset_bytes < end) {
            size_t from = range.offset_bytes - start;
            size_t size = end - range.offset_bytes;
            if (size > range.size_bytes)
                size = range.size_bytes;
            out[count++] = (struct pd_piece){.data = pieces[i].data + from, .size_bytes = size};
            range.offset_bytes += size;
            range.size_bytes -= size;
        }
        start = end;
    }
    return count;
}

const uint8_t *pd_wire_flat(const struct pd_piece *pieces, uint32_t piece_count,
                            struct pd_wire_range range, uint8_t *scratch)
{
    size_t start = 0, done = 0;

    for (uint32_t i = 0; i < piece_count && done < range.size_bytes; i++) {
        size_t end = start + pieces[i].size_bytes;
        size_t at = range.offset_bytes + done;
        if (at < end) {
            size_t size = end - at;
            if (size >= range.size_bytes && done == 0)
                return pieces[i].data + (at - start);
            if (size > range.size_bytes - done)
                size = range.size_bytes - done;
            memcpy(scratch + done, pieces[i].data + (at - start), size);
            done += size;
        }
        start = end;
    }
    return scratch;
}
