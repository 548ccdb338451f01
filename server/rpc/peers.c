/* Open calls and new calls a second, by peer.
 *
 * Place in the flow: asked by rpc.c for each accepted call, before anything else is spent on it.
 * Any rpc thread; one lock, a leaf. Invariant: the sum over the table is the number of calls that
 * have entered and not left. Entry 0 is shared by peers that found no place. */
#include "server/rpc/peers.h"

#include "base/check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define PROBES_MAX 16u
#define SECOND_NS 1000000000u

struct peer {
    uint64_t host; /* hash of its address, never 0; 0: free */
    uint32_t calls, begun;
    uint64_t second_ns; /* when `begun` began to count */
};

struct pd_peers {
    uint32_t calls_max, rate_max;
    pthread_mutex_t lock;
    struct peer table[PD_PEERS_MAX];
};

int pd_peers_new(uint32_t calls_max, uint32_t rate_max, struct pd_peers **out,
                 struct pd_error *error)
{
    struct pd_peers *peers = calloc(1, sizeof(*peers));
    if (!peers || pthread_mutex_init(&peers->lock, NULL) != 0) {
        free(peers);
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for the table of peers");
    }
    peers->calls_max = calls_max;
    peers->rate_max = rate_max;
    *out = peers;
    return 0;
}

void pd_peers_free(struct pd_peers *peers)
{
    if (!peers)
        return;
    (void)pthread_mutex_destroy(&peers->lock);
    free(peers);
}

/* "ipv4:10.0.0.1:4711" without its port. */
static uint64_t host_of(const char *peer)
{
    const char *colon = strrchr(peer, ':');
    size_t size =
        strncmp(peer, "unix:", 5) == 0 || !colon ? strlen("unix:") : (size_t)(colon - peer);
    return XXH3_64bits(peer, size < strlen(peer) ? size : strlen(peer)) | 1;
}

/* The peer's entry, or one that nobody needs now, or the shared one. */
static uint32_t find(struct pd_peers *peers, uint64_t host, uint64_t now_ns)
{
    uint32_t unused = 0;
    for (uint32_t probe = 0; probe < PROBES_MAX; probe++) {
        uint32_t at = (uint32_t)(host + probe) & (PD_PEERS_MAX - 1);
        const struct peer *peer = &peers->table[at];
        if (at == 0)
            continue;
        if (peer->host == host)
            return at;
        if (unused == 0 && peer->calls == 0 && now_ns - peer->second_ns >= SECOND_NS)
            unused = at;
    }
    if (unused > 0)
        peers->table[unused] = (struct peer){.host = host, .second_ns = now_ns};
    return unused;
}

static int count(struct pd_peers *peers, struct peer *peer, uint64_t now_ns, struct pd_error *error)
{
    if (now_ns - peer->second_ns >= SECOND_NS) {
        peer->second_ns = now_ns;
        peer->begun = 0;
    }
    if (peers->calls_max > 0 && peer->calls >= peers->calls_max)
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY_CALLS",
                            "this client has %u calls open, limits.peer_calls is %u", peer->calls,
                            peers->calls_max);
    if (peers->rate_max > 0 && peer->begun >= peers->rate_max)
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY_CALLS",
                            "this client began %u calls within a second, limits.peer_rate is %u",
                            peer->begun, peers->rate_max);
    peer->begun++;
    peer->calls++;
    return 0;
}

int pd_peers_enter(struct pd_peers *peers, const char *peer, uint64_t now_ns, uint32_t *slot,
                   struct pd_error *error)
{
    uint64_t host = host_of(peer);
    pthread_mutex_lock(&peers->lock);
    *slot = find(peers, host, now_ns);
    int rc = count(peers, &peers->table[*slot], now_ns, error);
    pthread_mutex_unlock(&peers->lock);
    if (rc != 0)
        *slot = PD_NO_PEER;
    return rc;
}

void pd_peers_leave(struct pd_peers *peers, uint32_t slot)
{
    if (slot == PD_NO_PEER)
        return;
    pthread_mutex_lock(&peers->lock);
    PD_CHECK(slot < PD_PEERS_MAX && peers->table[slot].calls > 0);
    peers->table[slot].calls--;
    pthread_mutex_unlock(&peers->lock);
}
