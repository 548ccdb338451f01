/* What the frames of an HTTP/2 connection may ask of gRPC.
 *
 *   recvmsg ──bytes──> pd_frames_take: hops from frame header to frame header ──> gRPC
 *                       a header block too long, too many streams given up ──> the connection ends
 *
 * libgrpc keeps a header block until its last frame has come, however long it is, and every stream
 * that a client opens and resets until its call was looked at: from one connection both take memory
 * without a bound, and no channel argument gives one. It reads with recvmsg by its public name, and
 * a program's own function of a name comes before that of a library: so packd defines recvmsg, for
 * all in its process. Sockets that no door has accepted get the kernel's answer as it is; so does a
 * connection whose first bytes are no HTTP/2, as under TLS. */
#ifndef PD_SERVER_RPC_FRAMES_H
#define PD_SERVER_RPC_FRAMES_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* HEADERS and its CONTINUATIONs; gRPC takes 8 KiB of metadata. */
#define PD_FRAMES_BLOCK_BYTES_MAX (64u << 10)
/* Streams that a connection may give up within a second. */
#define PD_FRAMES_RESETS_MAX 1000u

/* How far the frames of a connection were read. Zeroed memory is its beginning. */
struct pd_frames {
    uint8_t header[9];
    uint8_t header_bytes;
    bool begun, foreign; /* foreign: no HTTP/2, and not looked at any more */
    uint32_t skip_bytes; /* to the next frame header */
    uint32_t block_bytes;
    uint32_t resets; /* since second_ns */
    uint64_t second_ns;
};

/* The next bytes of a connection. NULL, or what is wrong with them: "header_block", "resets". One
 * thread at a time. */
const char *pd_frames_take(struct pd_frames *frames, const uint8_t *bytes, size_t size,
                           uint64_t now_ns) PD_MUST_CHECK;

/* One for the process: places for descriptors below `descriptors_max`, of others nothing is looked
 * at. PD_ENOMEM. Main thread. */
int pd_frames_open(uint32_t descriptors_max, struct pd_error *error) PD_MUST_CHECK;
/* After gRPC has closed its connections; nothing is left where nothing was opened. */
void pd_frames_close(void);
/* The descriptor is a new connection's, that gRPC has not read from yet. Any thread. */
void pd_frames_begin(int fd);

/* recvmsg(2), for libraries that call it. */
ssize_t pd_recvmsg(int fd, struct msghdr *message, int flags) __asm__("recvmsg");

#endif
