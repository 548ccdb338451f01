/* How much one peer may ask for at a time: its open calls, and the calls it begins in a second.
 *
 * A peer is a host address, all its ports together; Unix sockets are one peer. The table is
 * bounded: where it is full of peers with open calls, those that are not in it share one entry. Any
 * thread. */
#ifndef PD_SERVER_RPC_PEERS_H
#define PD_SERVER_RPC_PEERS_H

#include "base/err.h"

#include <stdint.h>

struct pd_peers;

#define PD_NO_PEER UINT32_MAX /* a call that is not counted */
#define PD_PEERS_MAX 8192u    /* slots; a power of two */

/* 0: no limit. PD_ENOMEM. */
int pd_peers_new(uint32_t calls_max, uint32_t rate_max, struct pd_peers **peers,
                 struct pd_error *error) PD_MUST_CHECK;
void pd_peers_free(struct pd_peers *peers);
/* Counts a call that begins. *slot, below PD_PEERS_MAX, is its host's until all calls of that have
 * left, and is to be given to pd_peers_leave when the call is over. PD_ELIMIT,
 * TOO_MANY_CALLS: the peer has limits.peer_calls open, or began limits.peer_rate of them within
 * this second; nothing is counted then. `now_ns` is monotonic. */
int pd_peers_enter(struct pd_peers *peers, const char *peer, uint64_t now_ns, uint32_t *slot,
                   struct pd_error *error) PD_MUST_CHECK;
/* Nothing for PD_NO_PEER. */
void pd_peers_leave(struct pd_peers *peers, uint32_t slot);

#endif
