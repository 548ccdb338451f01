/* packd's own recvmsg: the frames of connections without TLS are looked at on their way to gRPC.
 *
 * libgrpc reads with recvmsg by its public name, and a program's own function of a name comes
 * before that of a library: so packd defines recvmsg, for all in its process. Sockets that no door
 * has accepted get the kernel's answer as it is; so does a connection whose first bytes are no
 * HTTP/2, as under TLS. */
#ifndef PD_SERVER_RPC_READ_PLAIN_H
#define PD_SERVER_RPC_READ_PLAIN_H

#include "base/err.h"
#include "server/rpc/rpc.h"

#include <stdint.h>
#include <sys/socket.h>

/* One for the process: places for descriptors below `descriptors_max`, of others nothing is looked
 * at. PD_ENOMEM. Main thread. */
int pd_read_plain_open(uint32_t descriptors_max, struct pd_error *error) PD_MUST_CHECK;
/* After gRPC has closed its connections; nothing is left where nothing was opened. */
void pd_read_plain_close(void);
/* The descriptor is a new connection's at this door; gRPC has not read from it yet. Any thread. */
void pd_read_plain_begin(int fd, enum pd_door door);

/* recvmsg(2), for libraries that call it. A connection that ends for its frames: ECONNRESET. */
ssize_t pd_recvmsg(int fd, struct msghdr *message, int flags) __asm__("recvmsg");

#endif
