/* Memory of one answer: many small parts, freed together. Owner's thread only; zeroed memory is an
 * empty arena. */
#ifndef PD_SERVER_RPC_ARENA_H
#define PD_SERVER_RPC_ARENA_H

#include <stddef.h>
#include <stdlib.h>

struct pd_arena {
    struct pd_arena_part {
        struct pd_arena_part *next;
        max_align_t data[];
    } * parts;
};

/* Zeroed memory, never NULL: an answer that does not fit into memory ends the process, as
 * everywhere in gRPC. */
static inline void *pd_arena_take(struct pd_arena *arena, size_t size)
{
    struct pd_arena_part *part = calloc(1, sizeof(*part) + size);

    if (!part)
        abort();
    part->next = arena->parts;
    arena->parts = part;
    return part->data;
}

static inline void pd_arena_fini(struct pd_arena *arena)
{
    while (arena->parts) {
        struct pd_arena_part *next = arena->parts->next;
        free(arena->parts);
        arena->parts = next;
    }
}

#endif
