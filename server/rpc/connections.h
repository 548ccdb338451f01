/* Which connections are open, by door and by client host, and whether there is room for one more.
 *
 *   accept.c ──admit──> counted, and watched by a second descriptor of the same socket
 *   gRPC shuts the socket down ──> the kernel tells the second one ──look──> it is ending
 *   gRPC closes its descriptor ──look──> forgotten
 *
 * gRPC does not say when a connection ends, but it shuts the socket down before it closes it, and
 * that is seen by whoever holds another descriptor of it. So a connection costs two descriptors,
 * and a place is free again at the latest one tick after gRPC has closed. Any thread; one lock, a
 * leaf but for that of the hosts. */
#ifndef PD_SERVER_RPC_CONNECTIONS_H
#define PD_SERVER_RPC_CONNECTIONS_H

#include "base/err.h"
#include "server/config.h"
#include "server/rpc/rpc.h"

#include <sys/socket.h>

struct pd_connections;

/* Places for connections: `listen` shares limits.connections, of which one host may have
 * limits.peer_connections; Admin's and the probes' own addresses have PD_DOOR_CONNECTIONS each,
 * apart from those. PD_EINVAL DESCRIPTORS: RLIMIT_NOFILE does not carry limits.connections;
 * PD_ENOMEM; PD_EIO: no descriptor for the watch. */
#define PD_DOOR_CONNECTIONS 32u
int pd_connections_new(const struct pd_config *config, struct pd_connections **connections,
                       struct pd_error *error) PD_MUST_CHECK;
void pd_connections_free(struct pd_connections *connections); /* NULL is allowed */

/* Counts the connection `fd`, just accepted from `peer`. NULL: it has a place until its socket is
 * shut down and `fd` closed; else why there is none: "limit" (the door is full), "peer" (its host
 * has as many as one may have), "descriptors" (the process has none left to watch it with). */
const char *pd_connections_admit(struct pd_connections *connections, enum pd_door door, int fd,
                                 const struct sockaddr *peer) PD_MUST_CHECK;
/* Forgets those that have ended. */
void pd_connections_look(struct pd_connections *connections);
/* Those open at a door, and the most there may be. */
uint32_t pd_connections_open(struct pd_connections *connections, enum pd_door door);
uint32_t pd_connections_max(const struct pd_connections *connections, enum pd_door door);
/* "10.0.0.1:4711", "[2001:db8::1]:4711", "unix"; returns text. */
const char *pd_connections_name(const struct sockaddr *peer, char *text, size_t size);

#endif
