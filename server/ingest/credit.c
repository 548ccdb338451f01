/* The arithmetic of ingest credit.
 *
 * Place in the flow: an rpc thread asks here before each Welcome and Ack, and counts here each
 * message it receives and each block the log has taken. Invariant, checked at each change:
 * reserved_bytes <= max_bytes, and of each budget taken_bytes <= shared_bytes and one block. What a
 * window gets ends at shared_bytes; only who owns the big place is granted more. It knows neither
 * blocks nor the log: whether the log takes more is the sequencer's word, asked by the caller. */
#include "server/ingest/credit.h"

#include "base/arith.h"
#include "base/check.h"

#include <inttypes.h>
#include <stdlib.h>

/* A window takes at most a quarter of what is left of the shared bytes; one that has not been used
 * yet, and may never be, a quarter of what is left of their first half. */
#define SHARE 4
/* Grants below this are not worth a message, unless nothing else is left. */
#define GRANT_MIN_BYTES 4096

static int make_hosts(struct pd_credit_pool *pool, const struct pd_credit_limits *limits)
{
    uint64_t block_bytes = pd_min_u64(limits->host_max_bytes / 2, pool->all.block_bytes);

    pool->hosts = calloc(limits->host_count, sizeof(*pool->hosts));
    if (!pool->hosts)
        return PD_ENOMEM;
    pool->host_count = limits->host_count;
    for (uint32_t i = 0; i < limits->host_count; i++)
        pool->hosts[i] = (struct pd_credit_budget){
            .shared_bytes = limits->host_max_bytes - block_bytes, .block_bytes = block_bytes};
    return 0;
}

int pd_credit_pool_init(struct pd_credit_pool *pool, const struct pd_credit_limits *limits)
{
    uint64_t max_bytes = limits->max_bytes;

    PD_CHECK(limits->calls_max >= 1);
    *pool = (struct pd_credit_pool){.max_bytes = max_bytes, .calls_max = limits->calls_max};
    pool->floor_bytes = max_bytes / 4 / limits->calls_max;
    pool->all.block_bytes = pd_min_u64(max_bytes / 2, limits->block_bytes_max);
    pool->all.shared_bytes =
        max_bytes - pool->floor_bytes * limits->calls_max - pool->all.block_bytes;
    if (limits->host_max_bytes > 0 && make_hosts(pool, limits) != 0)
        return PD_ENOMEM;
    if (pthread_mutex_init(&pool->lock, NULL) == 0)
        return 0;
    free(pool->hosts);
    return PD_ENOMEM;
}

void pd_credit_pool_fini(struct pd_credit_pool *pool)
{
    PD_CHECK(pool->calls == 0 && pool->reserved_bytes == 0);
    (void)pthread_mutex_destroy(&pool->lock);
    free(pool->hosts);
}

uint64_t pd_credit_block_bytes(const struct pd_credit_pool *pool)
{
    return pool->hosts ? pool->hosts[0].block_bytes : pool->all.block_bytes;
}

uint64_t pd_credit_reserved_bytes(struct pd_credit_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    uint64_t bytes = pool->reserved_bytes;
    pthread_mutex_unlock(&pool->lock);
    return bytes;
}

int pd_credit_open(struct pd_credit *credit, struct pd_credit_pool *pool, uint32_t host,
                   uint64_t window_bytes_max, struct pd_error *error)
{
    PD_CHECK(!pool->hosts || host < pool->host_count);
    *credit = (struct pd_credit){.pool = pool, .host = pool->hosts ? &pool->hosts[host] : NULL};
    credit->window_bytes_max = pd_min_u64(window_bytes_max, PD_CREDIT_WINDOW_MAX);
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

/* ---- budgets: under the lock ---- */

static uint64_t left(const struct pd_credit_budget *budget)
{
    return budget->shared_bytes - pd_min_u64(budget->taken_bytes, budget->shared_bytes);
}

/* Of the first half, for windows that may never be used. */
static uint64_t left_of_half(const struct pd_credit_budget *budget)
{
    uint64_t bytes = left(budget), half = budget->shared_bytes / 2;
    return bytes > half ? bytes - half : 0;
}

static uint64_t left_for_block(const struct pd_credit_budget *budget)
{
    uint64_t all = budget->shared_bytes + budget->block_bytes;
    return all - pd_min_u64(budget->taken_bytes, all);
}

/* The lesser of the pool's and the host's. */
static uint64_t least(const struct pd_credit *credit,
                      uint64_t of(const struct pd_credit_budget *budget))
{
    uint64_t pool = of(&credit->pool->all);
    return credit->host ? pd_min_u64(pool, of(credit->host)) : pool;
}

static void take(struct pd_credit_budget *budget, uint64_t more, uint64_t less)
{
    budget->taken_bytes += more - less;
    PD_CHECK(budget->taken_bytes <= budget->shared_bytes + budget->block_bytes);
}

/* The call's reservation goes from `before` to what it is now. */
static void account(const struct pd_credit *credit, uint64_t before)
{
    struct pd_credit_pool *pool = credit->pool;
    uint64_t above = above_floor(credit, reserved(credit));

    pool->reserved_bytes += reserved(credit) - before;
    take(&pool->all, above, above_floor(credit, before));
    if (credit->host)
        take(credit->host, above, above_floor(credit, before));
    PD_CHECK(pool->reserved_bytes <= pool->max_bytes);
}

/* Whether `bytes` are more than a window's share of what is left, so that only the owner of the big
 * place may have them. */
static bool is_big(const struct pd_credit *credit, const struct pd_credit_budget *budget,
                   uint64_t bytes)
{
    uint64_t mine = above_floor(credit, reserved(credit));
    return above_floor(credit, bytes) > (left(budget) + mine) / SHARE;
}

static bool may_be_big(const struct pd_credit *credit, const struct pd_credit_budget *budget,
                       uint64_t bytes)
{
    return !budget->big || budget->big == credit || !is_big(credit, budget, bytes);
}

static void be_big(const struct pd_credit *credit, struct pd_credit_budget *budget, uint64_t bytes)
{
    if (is_big(credit, budget, bytes))
        budget->big = credit;
}

static void be_small(const struct pd_credit *credit)
{
    if (credit->pool->all.big == credit)
        credit->pool->all.big = NULL;
    if (credit->host && credit->host->big == credit)
        credit->host->big = NULL;
}

/* ---- calls ---- */

void pd_credit_close(struct pd_credit *credit)
{
    struct pd_credit_pool *pool = credit->pool;
    uint64_t before = reserved(credit);

    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    credit->released_bytes = credit->granted_bytes;
    account(credit, before);
    be_small(credit);
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
    const struct pd_credit_pool *pool = credit->pool;
    uint64_t mine = above_floor(credit, reserved(credit));
    uint64_t unsent = credit->granted_bytes - credit->used_bytes;

    if (unused(credit))
        return reserved(credit);
    if (credit->granted_bytes == 0) {
        credit->window_bytes = PD_CREDIT_WINDOW_MIN;
        return pool->floor_bytes +
               pd_min_u64(PD_CREDIT_WINDOW_MIN, least(credit, left_of_half) / SHARE);
    }
    if (unsent < credit->window_bytes / 2 && mine <= credit->window_bytes)
        credit->window_bytes = pd_min_u64(credit->window_bytes * 2, credit->window_bytes_max);
    return pool->floor_bytes +
           pd_min_u64(credit->window_bytes, (least(credit, left) + mine) / SHARE);
}

/* Under the lock: what the call needs to complete a block that its window cannot, with the big
 * place of each budget in which that is more than a share; 0: none. */
static uint64_t block_target(struct pd_credit *credit, uint64_t block_rest_bytes)
{
    struct pd_credit_budget *all = &credit->pool->all, *host = credit->host;
    uint64_t unsent = credit->granted_bytes - credit->used_bytes;
    uint64_t need = block_rest_bytes > unsent ? block_rest_bytes - unsent : 0;
    uint64_t bytes = reserved(credit) + need;

    if (need == 0 || !may_be_big(credit, all, bytes) || (host && !may_be_big(credit, host, bytes)))
        return 0;
    be_big(credit, all, bytes);
    if (host)
        be_big(credit, host, bytes);
    return reserved(credit) + pd_min_u64(need, least(credit, left_for_block));
}

bool pd_credit_grant(struct pd_credit *credit, uint64_t block_rest_bytes)
{
    struct pd_credit_pool *pool = credit->pool;
    uint64_t before = reserved(credit);

    pthread_mutex_lock(&pool->lock);
    if (block_rest_bytes == 0 && before <= pool->floor_bytes + credit->window_bytes)
        be_small(credit);
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

bool pd_credit_host_is_full(const struct pd_credit *credit)
{
    pthread_mutex_lock(&credit->pool->lock);
    bool full = credit->host && left(credit->host) < left(&credit->pool->all);
    pthread_mutex_unlock(&credit->pool->lock);
    return full;
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
