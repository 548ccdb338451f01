/* The pool of payload memory. A fresh allocation of many MiB costs page faults on every batch,
 * pinned memory far more; so released ones wait here, largest use first come. */
#include "client/lib_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#define SPARES_MAX 64

struct spare {
    void *memory;
    size_t capacity;
};

struct pd_pool {
    atomic_uint refs;
    struct pd_pool_memory memory;
    pthread_mutex_t lock;
    unsigned spare_max, spare_count; /* count guarded by lock */
    struct spare spares[SPARES_MAX]; /* guarded by lock */
};

static void *memory_alloc(const struct pd_pool_memory *memory, size_t bytes)
{
    if (memory->alloc)
        return memory->alloc(memory->ctx, bytes, PD_POOL_ALIGN);
    return aligned_alloc(PD_POOL_ALIGN, bytes);
}

static void memory_free(const struct pd_pool_memory *memory, void *at, size_t bytes)
{
    if (memory->alloc)
        memory->free(memory->ctx, at, bytes);
    else
        free(at);
}

struct pd_pool *pd_pool_new(const struct pd_pool_memory *memory, unsigned spare_max)
{
    struct pd_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    atomic_init(&pool->refs, 1);
    pool->memory = *memory;
    pool->spare_max = spare_max < SPARES_MAX ? spare_max : SPARES_MAX;
    pthread_mutex_init(&pool->lock, NULL);
    return pool;
}

void pd_pool_unref(struct pd_pool *pool)
{
    if (!pool || atomic_fetch_sub(&pool->refs, 1) != 1)
        return;
    for (unsigned i = 0; i < pool->spare_count; i++)
        memory_free(&pool->memory, pool->spares[i].memory, pool->spares[i].capacity);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

/* A spare that holds `bytes` without wasting more than as much again; lock held. */
static void *take_spare(struct pd_pool *pool, size_t bytes, size_t *capacity)
{
    for (unsigned i = 0; i < pool->spare_count; i++) {
        struct spare spare = pool->spares[i];
        if (spare.capacity < bytes || spare.capacity / 2 > bytes)
            continue;
        pool->spares[i] = pool->spares[--pool->spare_count];
        *capacity = spare.capacity;
        return spare.memory;
    }
    return NULL;
}

void *pd_pool_get(struct pd_pool *pool, size_t bytes, size_t *capacity)
{
    size_t rounded = (bytes + PD_POOL_ALIGN) / PD_POOL_ALIGN * PD_POOL_ALIGN;
    pthread_mutex_lock(&pool->lock);
    void *memory = take_spare(pool, rounded, capacity);
    pthread_mutex_unlock(&pool->lock);
    if (!memory) {
        memory = memory_alloc(&pool->memory, rounded);
        *capacity = rounded;
    }
    if (memory)
        atomic_fetch_add(&pool->refs, 1);
    return memory;
}

void pd_pool_put(struct pd_pool *pool, void *memory, size_t capacity)
{
    pthread_mutex_lock(&pool->lock);
    bool kept = pool->spare_count < pool->spare_max;
    if (kept)
        pool->spares[pool->spare_count++] = (struct spare){memory, capacity};
    pthread_mutex_unlock(&pool->lock);
    if (!kept)
        memory_free(&pool->memory, memory, capacity);
    pd_pool_unref(pool);
}
