/* Collects the pieces of one block without copying them.
 *
 * Place in the flow: between Push's messages and the door. Invariant: every piece points into a
 * byte buffer that the block keeps. When full: the door's block limit bounds the body; the credit
 * bounds all blocks together. */
#include "server/rpc/push_block.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct push_block {
    struct pd_block block; /* first: the sequencer gives this pointer back */
    Packd__V1__BlockHead *wire;
    grpc_byte_buffer **buffers;
    uint32_t buffer_count, buffer_capacity;
    uint32_t piece_capacity;
    uint64_t have_bytes;
    uint64_t charged_bytes;
};

int push_block_new(Packd__V1__BlockHead *head, struct push_block **out, struct pd_error *error)
{
    struct push_block *block = calloc(1, sizeof(*block));

    if (!block) {
        packd__v1__block_head__free_unpacked(head, NULL);
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for a block");
    }
    block->wire = head;
    *out = block;
    return 0;
}

static void drop_head(struct push_block *block)
{
    if (block->wire)
        packd__v1__block_head__free_unpacked(block->wire, NULL);
    block->wire = NULL;
}

void push_block_free(struct push_block *block)
{
    if (!block)
        return;
    drop_head(block);
    for (uint32_t i = 0; i < block->buffer_count; i++)
        grpc_byte_buffer_destroy(block->buffers[i]);
    free(block->buffers);
    free(block->block.pieces);
    pd_block_head_fini(&block->block.head);
    free(block);
}

static void release(struct pd_block *block) /* any thread */
{
    push_block_free(PD_CONTAINER_OF(block, struct push_block, block));
}

uint64_t push_block_rest(const struct push_block *block)
{
    return block->wire->body_bytes - block->have_bytes;
}

uint64_t push_block_charged(const struct push_block *block)
{
    return block->charged_bytes;
}

void push_block_charge(struct push_block *block, uint64_t bytes)
{
    block->charged_bytes += bytes;
}

/* Room for `more` entries behind `count`. */
static bool grow(void **items, uint32_t *capacity, uint32_t count, uint32_t more, size_t size)
{
    if (count + more <= *capacity)
        return true;
    uint32_t wanted = *capacity * 2 > count + more ? *capacity * 2 : count + more;
    void *larger = realloc(*items, (size_t)wanted * size);
    if (!larger)
        return false;
    *items = larger;
    *capacity = wanted;
    return true;
}

int push_block_add(struct push_block *block, grpc_byte_buffer *buffer,
                   const struct pd_piece *pieces, uint32_t piece_count, struct pd_wire_range range,
                   struct pd_error *error)
{
    if (range.size_bytes > push_block_rest(block)) {
        grpc_byte_buffer_destroy(buffer);
        return pd_error_set(error, PD_EINVAL, "PIECE_UNEXPECTED",
                            "a piece of %zu bytes; head.body_bytes leaves room for %" PRIu64,
                            range.size_bytes, push_block_rest(block));
    }
    if (!grow((void **)&block->buffers, &block->buffer_capacity, block->buffer_count, 1,
              sizeof(*block->buffers)) ||
        !grow((void **)&block->block.pieces, &block->piece_capacity, block->block.piece_count,
              piece_count, sizeof(*block->block.pieces))) {
        grpc_byte_buffer_destroy(buffer);
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for a block's pieces");
    }
    block->buffers[block->buffer_count++] = buffer;
    block->block.piece_count +=
        pd_wire_cut(pieces, piece_count, range, block->block.pieces + block->block.piece_count);
    block->have_bytes += range.size_bytes;
    return 0;
}

int push_block_finish(struct push_block *block, const struct pd_door_rules *rules,
                      struct pd_block **out, struct pd_door_rejects *rejects,
                      struct pd_error *error)
{
    PD_CHECK(push_block_rest(block) == 0);
    int rc = pd_door_make(block->wire, rules, &block->block, rejects, error);
    if (rc == 0 && pd_block_head_size(&block->block.head) > PD_BLOCK_HEAD_BYTES_MAX) {
        rc = pd_error_set(error, PD_ELIMIT, "HEAD_TOO_LARGE",
                          "the head of a block of %u samples takes %zu bytes in the log, at most "
                          "%u may: push smaller blocks",
                          block->block.head.count, pd_block_head_size(&block->block.head),
                          PD_BLOCK_HEAD_BYTES_MAX);
        pd_door_rejects_fini(rejects);
    }
    if (rc != 0) {
        push_block_free(block);
        return rc;
    }
    drop_head(block);
    block->block.release = release;
    *out = &block->block;
    return 0;
}
