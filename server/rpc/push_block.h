/* A block while its pieces arrive, and its way into an append request. Internal to Ingest.Push.
 *
 *   messages: | head, piece 0 | piece 1 | piece 2 |
 *   each message's byte buffer is kept as long as the log may read its body
 *
 * The call's thread, until the block is given to the sequencer, which releases it on its own
 * thread. */
#ifndef PD_SERVER_RPC_PUSH_BLOCK_H
#define PD_SERVER_RPC_PUSH_BLOCK_H

#include "server/block.h"
#include "server/ingest/door.h"
#include "server/ingest/wire.h"

#include <grpc/byte_buffer.h>

struct push_block;

/* The block takes `head`. PD_ENOMEM. */
int push_block_new(Packd__V1__BlockHead *head, struct push_block **block,
                   struct pd_error *error) PD_MUST_CHECK;
void push_block_free(struct push_block *block); /* NULL is allowed */
/* Body bytes still to come. */
uint64_t push_block_rest(const struct push_block *block);
/* Bytes that this block's messages have used of the credit so far; add counts more. */
uint64_t push_block_charged(const struct push_block *block);
void push_block_charge(struct push_block *block, uint64_t bytes);
/* Adds the body piece at `range` of a message; takes buffer (also on failure). PD_EINVAL
 * PIECE_UNEXPECTED: past body_bytes; PD_ENOMEM. */
int push_block_add(struct push_block *block, grpc_byte_buffer *buffer,
                   const struct pd_piece *pieces, uint32_t piece_count, struct pd_wire_range range,
                   struct pd_error *error) PD_MUST_CHECK;
/* Through the door: the whole block as the log takes it. The block is used up (also on failure);
 * *out is to be released, *rejects to be given to pd_door_rejects_fini. PD_ENOMEM, PD_ELIMIT
 * HEAD_TOO_LARGE. */
int push_block_finish(struct push_block *block, const struct pd_door_rules *rules,
                      struct pd_block **out, struct pd_door_rejects *rejects,
                      struct pd_error *error) PD_MUST_CHECK;

#endif
