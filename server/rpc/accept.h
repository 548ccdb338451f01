/* Whom gRPC accepts: every connection that it would take passes here first.
 *
 * libgrpc has no say-so for the connections of a port, and ends a listener for good at the first
 * error of accept, be it want of descriptors or a client that left early. It calls accept4 by its
 * public name, and a program's own function of a name comes before that of a library: so packd
 * defines accept4, for all in its process. Sockets that are not gRPC's get the kernel's answer as
 * it is. For gRPC's, the answer is a connection that has a place (connections.h), or EAGAIN. */
#ifndef PD_SERVER_RPC_ACCEPT_H
#define PD_SERVER_RPC_ACCEPT_H

#include "base/err.h"
#include "server/rpc/connections.h"

/* One for the process. Notes the listening sockets that are there already as not gRPC's. Borrows
 * `connections` until pd_accept_close. PD_EIO: /proc/self/fd cannot be read, or there is no
 * descriptor for the spare. Main thread. */
int pd_accept_open(struct pd_connections *connections, struct pd_error *error) PD_MUST_CHECK;
/* The listening sockets that have come since belong to this door. Before gRPC accepts there. PD_EIO
 * as above; PD_ELIMIT: more sockets than the addresses of a configuration have. */
int pd_accept_learn(enum pd_door door, struct pd_error *error) PD_MUST_CHECK;
/* Refuses what a listener has in its queue since accept failed there; for rpc.c, each tick. */
void pd_accept_unstick(void);
/* After gRPC has closed its listeners; nothing is left where nothing was opened. */
void pd_accept_close(void);

/* accept4(2), for libraries that call it. */
int pd_accept4(int listener, struct sockaddr *peer, socklen_t *peer_bytes,
               int flags) __asm__("accept4");

#endif
