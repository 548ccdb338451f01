/* The arithmetic of ingest credit.
 *
 * Place in the flow: an rpc thread asks here before each Welcome and Ack, and counts here each
 * message it receives and each block the log has taken. Invariant, checked at each change:
 * reserved_bytes <= max_bytes, and of each budget window_bytes <= shared_bytes and large_bytes <=
 * block_bytes. What is released counts as large bytes first. It knows neither blocks nor the log:
 * whether the log takes more is the sequencer's word, asked by the caller. */
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
    *credit = (struct pd_credit){.pool = pool, .share_count = pool->hosts ? 2 : 1};
    credit->shares[0].budget = &pool->all;
    credit->shares[1].budget = pool->hosts ? &pool->hosts[host] : NULL;
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
    return budget->shared_bytes - budget->window_bytes;
}

/* Of the first half, for windows that may never be used. */
static uint64_t left_of_half(const struct pd_credit_budget *budget)
{
    uint64_t bytes = left(budget), half = budget->shared_bytes / 2;
    return bytes > half ? bytes - half : 0;
}

static uint64_t left_in_all(const struct pd_credit_budget *budget)
{
    return left(budget) + budget->block_bytes - budget->large_bytes;
}

/* What the call's window has of a budget. */
static uint64_t window_of(const struct pd_credit *credit, const struct pd_credit_share *share)
{
    return above_floor(credit, reserved(credit)) - share->large_bytes;
}

/* What its window may have of it. */
static uint64_t window_share(const struct pd_credit *credit, const struct pd_credit_share *share)
{
    uint64_t mine = window_of(credit, share);
    uint64_t bytes = (left(share->budget) + mine) / SHARE;
    return bytes > mine ? bytes : mine;
}

/* The call's reservation becomes what `bytes` makes of it, with so many large ones in a share. */
static void count_in(const struct pd_credit *credit, struct pd_credit_share *share, uint64_t bytes,
                     uint64_t large_bytes)
{
    struct pd_credit_budget *budget = share->budget;
    uint64_t above = above_floor(credit, bytes);

    PD_CHECK(large_bytes <= above);
    budget->window_bytes += above - large_bytes - window_of(credit, share);
    budget->large_bytes += large_bytes - share->large_bytes;
    PD_CHECK(budget->window_bytes <= budget->shared_bytes);
    PD_CHECK(budget->large_bytes <= budget->block_bytes);
    share->large_bytes = large_bytes;
}

static void count_all(struct pd_credit *credit, uint64_t bytes)
{
    struct pd_credit_pool *pool = credit->pool;
    pool->reserved_bytes += bytes - reserved(credit);
    PD_CHECK(pool->reserved_bytes <= pool->max_bytes);
}

/* The large bytes first: those that wait for them cannot go on without. */
static void give_back(struct pd_credit *credit, uint64_t released)
{
    uint64_t bytes = reserved(credit) - released;
    uint64_t less = above_floor(credit, reserved(credit)) - above_floor(credit, bytes);

    for (uint32_t i = 0; i < credit->share_count; i++)
        count_in(credit, &credit->shares[i], bytes,
                 credit->shares[i].large_bytes - pd_min_u64(credit->shares[i].large_bytes, less));
    count_all(credit, bytes);
    credit->released_bytes += released;
}

static void leave_line(struct pd_credit *credit)
{
    for (uint32_t i = 0; i < credit->share_count; i++)
        if (credit->shares[i].budget->line == credit)
            credit->shares[i].budget->line = NULL;
}

/* ---- calls ---- */

void pd_credit_close(struct pd_credit *credit)
{
    struct pd_credit_pool *pool = credit->pool;

    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    give_back(credit, reserved(credit));
    leave_line(credit);
    pool->calls--;
    pthread_mutex_unlock(&pool->lock);
    credit->pool = NULL;
}

void pd_credit_stand_back(struct pd_credit *credit)
{
    pthread_mutex_lock(&credit->pool->lock);
    leave_line(credit);
    pthread_mutex_unlock(&credit->pool->lock);
}

static bool unused(const struct pd_credit *credit)
{
    return credit->used_bytes == 0 && credit->granted_bytes > 0;
}

/* Under the lock: what the call's reservation should be, by its window and what is left. */
static uint64_t window_target(struct pd_credit *credit)
{
    uint64_t mine = above_floor(credit, reserved(credit));
    uint64_t unsent = credit->granted_bytes - credit->used_bytes;
    uint64_t most;

    if (unused(credit))
        return reserved(credit);
    if (credit->granted_bytes == 0) {
        most = credit->window_bytes = PD_CREDIT_WINDOW_MIN;
        for (uint32_t i = 0; i < credit->share_count; i++)
            most = pd_min_u64(most, left_of_half(credit->shares[i].budget) / SHARE);
        return credit->pool->floor_bytes + most;
    }
    if (unsent < credit->window_bytes / 2 && mine <= credit->window_bytes)
        credit->window_bytes = pd_min_u64(credit->window_bytes * 2, credit->window_bytes_max);
    most = credit->window_bytes;
    for (uint32_t i = 0; i < credit->share_count; i++)
        most = pd_min_u64(most, window_share(credit, &credit->shares[i]));
    return credit->pool->floor_bytes + most;
}

/* Under the lock: with a reservation of `bytes`, how many of them are large ones in a share. */
static uint64_t large_of(const struct pd_credit *credit, const struct pd_credit_share *share,
                         uint64_t bytes)
{
    uint64_t above = above_floor(credit, bytes), window = window_share(credit, share);
    uint64_t large = above > window ? above - window : 0;
    return large > share->large_bytes ? large : share->large_bytes;
}

/* Under the lock: all that the call needs to complete a block for which its window is too small.
 * False: nothing, since it must wait for others. */
static bool grant_block(struct pd_credit *credit, uint64_t block_rest_bytes)
{
    uint64_t unsent = credit->granted_bytes - credit->used_bytes;
    uint64_t bytes = reserved(credit) + block_rest_bytes - unsent;
    bool fits = true;

    for (uint32_t i = 0; i < credit->share_count; i++)
        if (credit->shares[i].budget->line &&
            large_of(credit, &credit->shares[i], bytes) > credit->shares[i].large_bytes)
            return false;
    for (uint32_t i = 0; i < credit->share_count; i++) {
        struct pd_credit_share *share = &credit->shares[i];
        uint64_t more = large_of(credit, share, bytes) - share->large_bytes;
        if (more <= share->budget->block_bytes - share->budget->large_bytes)
            continue;
        share->budget->line = credit;
        fits = false;
    }
    if (!fits)
        return false;
    for (uint32_t i = 0; i < credit->share_count; i++)
        count_in(credit, &credit->shares[i], bytes, large_of(credit, &credit->shares[i], bytes));
    count_all(credit, bytes);
    credit->granted_bytes += block_rest_bytes - unsent;
    return true;
}

static bool grant_window(struct pd_credit *credit, uint64_t target)
{
    uint64_t before = reserved(credit), unsent = credit->granted_bytes - credit->used_bytes;

    if (target <= before || (target - before < GRANT_MIN_BYTES && unsent >= GRANT_MIN_BYTES &&
                             credit->granted_bytes > 0))
        return false;
    for (uint32_t i = 0; i < credit->share_count; i++)
        count_in(credit, &credit->shares[i], target, credit->shares[i].large_bytes);
    count_all(credit, target);
    credit->granted_bytes += target - before;
    return true;
}

bool pd_credit_grant(struct pd_credit *credit, uint64_t block_rest_bytes)
{
    uint64_t unsent = credit->granted_bytes - credit->used_bytes;

    pthread_mutex_lock(&credit->pool->lock);
    leave_line(credit);
    uint64_t target = window_target(credit), before = reserved(credit);
    uint64_t more = target > before ? target - before : 0;
    bool grew = block_rest_bytes > unsent + more && grant_block(credit, block_rest_bytes);
    grew = grew || grant_window(credit, target);
    pthread_mutex_unlock(&credit->pool->lock);
    return grew;
}

bool pd_credit_is_short(const struct pd_credit *credit, uint64_t block_rest_bytes)
{
    uint64_t unsent = credit->granted_bytes - credit->used_bytes;

    return !unused(credit) && (unsent < credit->window_bytes / 2 || unsent < block_rest_bytes);
}

bool pd_credit_host_is_full(const struct pd_credit *credit)
{
    pthread_mutex_lock(&credit->pool->lock);
    const struct pd_credit_budget *host = credit->shares[1].budget;
    bool full = host && left_in_all(host) < left_in_all(&credit->pool->all);
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
    PD_CHECK(bytes <= credit->used_bytes - credit->released_bytes);
    pthread_mutex_lock(&credit->pool->lock);
    give_back(credit, bytes);
    pthread_mutex_unlock(&credit->pool->lock);
}
