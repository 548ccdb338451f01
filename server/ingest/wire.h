/* Finds what a PushRequest consists of without decoding or flattening it: a tag scanner over the
 * memory pieces of one message.
 *
 *   message: | tag 2, len | tag 1, len | head ... | tag 15, len | body ......................... |
 *            '-- .block               '-- BlockHead             '-- stays where it is, in pieces
 *
 * Offsets count from the start of the message. Nothing in the message is trusted; nothing is
 * allocated. Pure, any thread. */
#ifndef PD_SERVER_INGEST_WIRE_H
#define PD_SERVER_INGEST_WIRE_H

#include "base/err.h"
#include "server/block.h"

#include <stddef.h>
#include <stdint.h>

/* The field numbers of PushRequest.what. */
enum pd_wire_kind {
    PD_WIRE_HELLO = 1,
    PD_WIRE_BLOCK = 2,
    PD_WIRE_CHUNK = 3,
    PD_WIRE_END = 4,
};

struct pd_wire_range {
    size_t offset_bytes;
    size_t size_bytes;
};

struct pd_wire_push {
    enum pd_wire_kind kind;
    struct pd_wire_range inner; /* the sub-message: Hello, SampleBlock, BlockChunk or EndOfStream */
    struct pd_wire_range head;  /* PD_WIRE_BLOCK: the serialised BlockHead */
    struct pd_wire_range body;  /* PD_WIRE_BLOCK, PD_WIRE_CHUNK: the payload field's content; empty
                                   where it is left out */
};

/* PD_EINVAL MALFORMED: a varint that does not end, a length that leaves the message, a wrong wire
 * type, a field twice, a field behind the payload, more or less than one field in PushRequest.
 * Unknown fields before the payload are passed over. */
int pd_wire_push_split(const struct pd_piece *pieces, uint32_t piece_count,
                       struct pd_wire_push *push, struct pd_error *error) PD_MUST_CHECK;

/* Cuts a range into pieces that point into the same memory, at most piece_count of them; returns
 * how many. `range` lies inside the message. */
uint32_t pd_wire_cut(const struct pd_piece *pieces, uint32_t piece_count,
                     struct pd_wire_range range, struct pd_piece *out);
/* The range as one run of bytes: in place where it lies in one piece, else copied to `scratch`
 * (range.size_bytes of room). */
const uint8_t *pd_wire_flat(const struct pd_piece *pieces, uint32_t piece_count,
                            struct pd_wire_range range, uint8_t *scratch);

#endif
