/* The arithmetic of ingest credit.
 *
 * Place in the flow: an rpc thread asks here before each Welcome and Ack, and counts here each
 * message it receives and each block the log has taken. Invariant, checked at each change:
 * reserved_bytes <= max_bytes, and taken_bytes <= shared_bytes while nobody owns the big place. It
 * knows neither blocks nor the log: whether the log takes more is the sequencer's word, asked by
 * the caller. */
#include "server/ingest/credit.h"

#include "base/check.h"

#include <inttypes.h>

/* A window takes at most a quarter of what is left of the shared bytes; one that has not been used
 * yet, and may never be, a quarter of what is left of their first half. */
#define SHARE 4
/* Grants below this are not worth a message, unless nothing else is left. */
#define GRANT_MIN_BYTES 4096

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

int pd_credit_pool_init(struct pd_credit_pool *pool, uint64_t max_bytes, uint32_t calls_max,
                        uint64_t block_bytes_max)
{
    PD_CHECK(calls_max >= 1);
    *pool = (struct pd_credit_pool){.max_bytes = max_bytes, .calls_max = calls_max};
    pool->floor_bytes = max_bytes / 4 / calls_max;
    pool->block_bytes = min_u64(max_bytes / 2, block_bytes_max);
    pool->shared_bytes = max_bytes - pool->floor_bytes * calls_max - pool->block_bytes;
    return pthread_mutex_init(&pool->lock, NULL) == 0 ? 0 : PD_ENOMEM;
}

void pd_credit_pool_fini(struct pd_credit_pool *pool)
{
    PD_CHECK(pool->calls == 0 && pool->reserved_bytes == 0);
    (void)pthread_mutex_destroy(&pool->lock);
}

uint64_t pd_credit_block_bytes(const struct pd_credit_pool *pool)
{
    return pool->block_bytes;
}

uint64_t pd_credit_reserved_bytes(struct pd_credit_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    uint64_t bytes = pool->reserved_bytes;
    pthread_mutex_unlock(&pool->lock);
    return bytes;
}

int pd_credit_open(struct pd_credit *credit, struct pd_credit_pool *pool, uint64_t window_bytes_max,
                   struct pd_error *error)
{
    *credit = (struct pd_credit){.pool = pool};
    credit->window_bytes_max = min_u64(window_bytes_max, PD_CREDIT_WINDOW_MAX);
    if (credit->window_bytes_max < PD_CREDIT_WINDOW_MIN)
        credit->window_bytes_max = PD_CREDIT_WINDOW_MIN;
    pthread_mutex_lock(&pool->lock);
    bool taken = pool->calls < pool->calls_max;
    if (taken)
        pool->calls++;
    pthread_mutex_unlock(&pool->lock);
    if (!taken)
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY_CALLS",
                            "%u Push calls are open; limits.push_calls allows no more",
                            pool->calls_max);
    return 0;
}

static uint64_t above_floor(const struct pd_credit *credit, uint64_t reserved)
{
    return reserved > credit->pool->floor_bytes ? reserved - credit->pool->floor_bytes : 0;
}

static uint64_t reserved(const struct pd_credit *credit)
{
    return credit->granted_bytes - credit->released_bytes;
}

/* Under the lock: the call's reservation goes from `before` to what it is now. */
static void account(const struct pd_credit *credit, uint64_t before)
{
    struct pd_credit_pool *pool = credit->pool;

    pool->reserved_bytes += reserved(credit) - before;
    pool->taken_bytes += above_floor(credit, reserved(credit)) - above_floor(credit, before);
    PD_CHECK(pool->reserved_bytes <= pool->max_bytes);
}

void pd_credit_close(struct pd_credit *credit)
{
    struct pd_credit_pool *pool = credit->pool;
    uint64_t before = reserved(credit);

    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    credit->released_bytes = credit->granted_bytes;
    account(credit, before);
    if (pool->big == credit)
        pool->big = NULL;
    pool->calls--;
    pthread_mutex_unlock(&pool->lock);
    credit->pool = NULL;
}

static bool unused(const struct pd_credit *credit)
{
    return credit->used_bytes == 0 && credit->granted_bytes > 0;
}

/* Under the lock: what the call's reservation should be, by its window and what is left. */
static uint64_t window_target(struct pd_credit *credit)
{
    struct pd_credit_pool *pool = credit->pool;
    uint64_t left = pool->shared_bytes - min_u64(pool->taken_bytes, pool->shared_bytes);
    uint64_t mine = above_floor(credit, reserved(credit));
    uint64_t unsent = credit->granted_bytes - credit->used_bytes;

    if (unused(credit))
        return reserved(credit);
    if (credit->granted_bytes == 0) {
        uint64_t half = pool->shared_bytes / 2;
        credit->window_bytes = PD_CREDIT_WINDOW_MIN;
        return pool->floor_bytes +
               min_u64(PD_CREDIT_WINDOW_MIN, left > half ? (left - half) / SHARE : 0);
    }
    if (unsent < credit->window_bytes / 2 && mine <= credit->window_bytes)
        credit->window_bytes = min_u64(credit->window_bytes * 2, credit->window_bytes_max);
    return pool->floor_bytes + min_u64(credit->window_bytes, (left + mine) / SHARE);
}

/* Under the lock: takes the big place for a block that the window cannot complete. The rest it may
 * reach then. */
static uint64_t block_target(struct pd_credit *credit, uint64_t block_rest_bytes)
{
    struct pd_credit_pool *pool = credit->pool;
    uint64_t unsent = credit->granted_bytes - credit->used_bytes;

    if (block_rest_bytes <= unsent || (pool->big && pool->big != credit))
        return 0;
    pool->big = credit;
    uint64_t room = pool->shared_bytes + pool->block_bytes -
                    min_u64(pool->taken_bytes, pool->shared_bytes + pool->block_bytes);
    return reserved(credit) + min_u64(block_rest_bytes - unsent, room);
}

bool pd_credit_grant(struct pd_credit *credit, uint64_t block_rest_bytes)
{
    struct pd_credit_pool *pool = credit->pool;
    uint64_t before = reserved(credit);

    pthread_mutex_lock(&pool->lock);
    if (pool->big == credit && block_rest_bytes == 0 &&
        before <= pool->floor_bytes + credit->window_bytes)
        pool->big = NULL;
    uint64_t target = window_target(credit);
    uint64_t unsent = credit->granted_bytes - credit->used_bytes;
    if (target <= before || block_rest_bytes > unsent + (target - before)) {
        uint64_t larger = block_target(credit, block_rest_bytes);
        target = larger > target ? larger : target;
    }
    bool worth = target > before && (target - before >= GRANT_MIN_BYTES ||
                                     unsent < GRANT_MIN_BYTES || credit->granted_bytes == 0);
    if (worth) {
        credit->granted_bytes += target - before;
        account(credit, before);
    }
    pthread_mutex_unlock(&pool->lock);
    return worth;
}

bool pd_credit_is_short(const struct pd_credit *credit, uint64_t block_rest_bytes)
{
    uint64_t unsent = credit->granted_bytes - credit->used_bytes;

    return !unused(credit) && (unsent < credit->window_bytes / 2 || unsent < block_rest_bytes);
}

int pd_credit_use(struct pd_credit *credit, uint64_t bytes, struct pd_error *error)
{
    if (bytes > credit->granted_bytes - credit->used_bytes)
        return pd_error_set(error, PD_ELIMIT, "CREDIT",
                            "%" PRIu64 " bytes received, with %" PRIu64 " of %" PRIu64
                            " granted bytes used before: wait for an Ack that grants more",
                            bytes, credit->used_bytes, credit->granted_bytes);
    credit->used_bytes += bytes;
    return 0;
}

void pd_credit_release(struct pd_credit *credit, uint64_t bytes)
{
    uint64_t before = reserved(credit);

    PD_CHECK(bytes <= credit->used_bytes - credit->released_bytes);
    pthread_mutex_lock(&credit->pool->lock);
    credit->released_bytes += bytes;
    account(credit, before);
    pthread_mutex_unlock(&credit->pool->lock);
}
