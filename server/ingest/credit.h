/* Ingest credit: which call may have how many bytes on the way or in memory.
 *
 *   per call, cumulative:   released <= used <= granted
 *   used: bytes received; released: bytes that left memory again; reserved = granted - released,
 *   and the sum of it over all calls never passes memory.ingest
 *
 *   |<------------------------------- memory.ingest -------------------------------->|
 *   | floor x calls_max | shared, for windows that grow with use          | one block |
 *
 * Every call may always reserve `floor`. What lies above comes from the shared part: a window that
 * starts at one message (less where many calls are open: then a stream costs its floor until it is
 * used) and doubles while the call uses it up, but never more than a share of what is left, so the
 * last caller still finds something. The last part is for blocks that are larger than that share (a
 * block is held until it is whole): whoever has begun one gets all that it lacks, or nothing yet.
 * As many blocks are under way there as fit; the first one that does not fit stands in line, and
 * none is begun before it: those under way have what they need and end, so its turn comes.
 *
 * Where the calls of one client host are bounded (limits.peer_bytes), each host has a budget of its
 * own, divided in the same way into shared bytes and those for blocks; a reservation above the
 * floor must fit into both. So one host's calls share what one host may have, and stand in line of
 * their host; in the pool's only where that is what they lack. The floors come on top: no call can
 * be starved by its neighbours.
 *
 * Granted bytes cannot be taken back: a call that falls idle keeps its window until it closes. When
 * full: calls get no more than their floor, and the answer says INGEST_MEMORY and whose budget it
 * is.
 *
 * The pool has its own lock, any thread; a pd_credit belongs to its call's thread. */
#ifndef PD_SERVER_INGEST_CREDIT_H
#define PD_SERVER_INGEST_CREDIT_H

#include "base/err.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define PD_CREDIT_WINDOW_MIN (2u << 20) /* a message with the largest head and piece */
#define PD_CREDIT_WINDOW_MAX (16u << 20)

struct pd_credit;

/* What calls have reserved above their floors, in two parts. */
struct pd_credit_budget {
    uint64_t shared_bytes, window_bytes; /* for windows, and what they have of it */
    uint64_t block_bytes, large_bytes;   /* for what blocks lack, the largest of them too */
    const struct pd_credit *line;        /* the call whose block did not fit, or NULL */
};

struct pd_credit_pool {
    pthread_mutex_t lock;
    uint64_t max_bytes;
    uint64_t floor_bytes; /* of each call */
    uint32_t calls, calls_max;
    uint64_t reserved_bytes; /* sum over calls */
    struct pd_credit_budget all;
    struct pd_credit_budget *hosts; /* NULL: hosts are not bounded */
    uint32_t host_count;
};

/* Of one call, in the budget of all or of its host. */
struct pd_credit_share {
    struct pd_credit_budget *budget;
    uint64_t large_bytes; /* of what it has reserved above its floor */
};

struct pd_credit {
    struct pd_credit_pool *pool;
    struct pd_credit_share shares[2]; /* of all; of its host, where hosts are bounded */
    uint32_t share_count;
    uint64_t granted_bytes, used_bytes, released_bytes;
    uint64_t window_bytes, window_bytes_max;
};

struct pd_credit_limits {
    uint64_t max_bytes;
    uint64_t block_bytes_max;
    uint64_t host_max_bytes; /* 0: hosts are not bounded */
    uint32_t host_count;     /* of numbers that pd_credit_open may be given */
    uint32_t calls_max;      /* >= 1 */
};
/* The floors take a quarter of max_bytes; the block part is half of it, at most block_bytes_max,
 * and of a host's bytes likewise. PD_ENOMEM. */
int pd_credit_pool_init(struct pd_credit_pool *pool,
                        const struct pd_credit_limits *limits) PD_MUST_CHECK;
void pd_credit_pool_fini(struct pd_credit_pool *pool);
/* The largest body that some call can always complete. */
uint64_t pd_credit_block_bytes(const struct pd_credit_pool *pool);
uint64_t pd_credit_reserved_bytes(struct pd_credit_pool *pool);

/* PD_ELIMIT TOO_MANY_CALLS. Nothing is granted yet. `host` is the number of the client's host,
 * below host_count where hosts are bounded: for as long as one of its calls is open it stands for
 * no other one, but for 0, which hosts without a number of their own share (peers.h). The call's
 * window grows up to `window_bytes_max`, within PD_CREDIT_WINDOW_MIN and _MAX. */
int pd_credit_open(struct pd_credit *credit, struct pd_credit_pool *pool, uint32_t host,
                   uint64_t window_bytes_max, struct pd_error *error) PD_MUST_CHECK;
/* Returns all that is reserved; nothing of this call may be in memory any more. */
void pd_credit_close(struct pd_credit *credit);

/* Raises granted_bytes as far as window, pool and the rest of an open block allow.
 * `block_rest_bytes`: body bytes of the open block still to come, 0 = no block is open. True where
 * granted_bytes grew. */
bool pd_credit_grant(struct pd_credit *credit, uint64_t block_rest_bytes);
/* Lets others go first, for a call that is not asked about for a while. */
void pd_credit_stand_back(struct pd_credit *credit);
/* True where the call holds less than half of its window, or cannot complete its block: worth
 * another grant. */
bool pd_credit_is_short(const struct pd_credit *credit, uint64_t block_rest_bytes);
/* True where the host's budget is what keeps the call from more, not the pool's. */
bool pd_credit_host_is_full(const struct pd_credit *credit);
/* Bytes have arrived. PD_ELIMIT CREDIT: more than granted; they are not counted. */
int pd_credit_use(struct pd_credit *credit, uint64_t bytes, struct pd_error *error) PD_MUST_CHECK;
/* Bytes have left memory. */
void pd_credit_release(struct pd_credit *credit, uint64_t bytes);

#endif
