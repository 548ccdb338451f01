/* Payload memory: one allocation per batch, used again when a batch is released.
 *
 * Shared by a job and the batches it has handed out, so that batches may outlive it. Keeps at most
 * `spare_max` free allocations. Any thread. */
#ifndef PD_CLIENT_LIB_POOL_H
#define PD_CLIENT_LIB_POOL_H

#include <stddef.h>

#define PD_POOL_ALIGN 4096

struct pd_pool;

struct pd_pool_memory {
    void *(*alloc)(void *ctx, size_t bytes, size_t alignment); /* NULL: the C library's */
    void (*free)(void *ctx, void *memory, size_t bytes);
    void *ctx;
};

/* One reference, the caller's. NULL: out of memory. */
struct pd_pool *pd_pool_new(const struct pd_pool_memory *memory, unsigned spare_max);
void pd_pool_unref(struct pd_pool *pool);
/* At least `bytes`, aligned; *capacity goes back with pd_pool_put. Takes a reference. NULL: out of
 * memory. */
void *pd_pool_get(struct pd_pool *pool, size_t bytes, size_t *capacity);
void pd_pool_put(struct pd_pool *pool, void *memory, size_t capacity);

#endif
