/* How much one peer may ask for at a time: its open calls, and the calls it begins in a second.
 *
 * A peer is a host address, all its ports together; Unix sockets are one peer. What counts as a
 * call is the owner's: connections.c counts connections in a table of its own. The table is
 * bounded: a peer for which every place that its hash leads to is taken (by one with open calls, or
 * one that began some within this second) shares entry 0 with all others like it. Any thread. */
#ifndef PD_SERVER_RPC_PEERS_H
#define PD_SERVER_RPC_PEERS_H

#include "base/err.h"

#include <stdint.h>

struct pd_peers;

#define PD_NO_PEER UINT32_MAX /* a call that is not counted */
#define PD_PEERS_MAX 8192u    /* slots; a power of two */

/* A peer's most open calls, and most begun within a second; 0: no limit. PD_ENOMEM. */
int pd_peers_new(uint32_t calls_max, uint32_t rate_max, struct pd_peers **peers,
                 struct pd_error *error) PD_MUST_CHECK;
void pd_peers_free(struct pd_peers *peers);
/* Counts a call that begins. *slot, below PD_PEERS_MAX, is its host's until all calls of that have
 * left (0: of all hosts that share it), and is to be given to pd_peers_leave when the call is over.
 * PD_ELIMIT TOO_MANY_CALLS: the peer has calls_max open, or began rate_max of them within this
 * second; nothing is counted then, and *slot is PD_NO_PEER. `now_ns` is monotonic. */
int pd_peers_enter(struct pd_peers *peers, const char *peer, uint64_t now_ns, uint32_t *slot,
                   struct pd_error *error) PD_MUST_CHECK;
/* Nothing for PD_NO_PEER. */
void pd_peers_leave(struct pd_peers *peers, uint32_t slot);

#endif
