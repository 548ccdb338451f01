/* What the frames of an HTTP/2 connection may ask of gRPC.
 *
 *   recvmsg  (read_plain.h) ──bytes──┐
 *                                    ├──> pd_frames_take: hops from frame header to frame header
 *   SSL_read (read_tls.h) ───bytes───┘    a header block too long, too many streams given up:
 *                                         the connection ends
 *
 * libgrpc keeps a header block until its last frame has come, however long it is; every stream that
 * a client opens and resets, until its call was looked at; the answer to every PING, until it is
 * sent; and every stream, if only to be refused, of a client that does not acknowledge how many it
 * may open, or, as it seems from outside, does so too early. From one connection each takes memory
 * without a bound, and no channel argument gives one. So packd reads along, in the functions by
 * which libgrpc gets a connection's bytes. */
#ifndef PD_SERVER_RPC_FRAMES_H
#define PD_SERVER_RPC_FRAMES_H

#include "base/err.h"
#include "server/rpc/rpc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* HEADERS and its CONTINUATIONs; gRPC takes 8 KiB of metadata. */
#define PD_FRAMES_BLOCK_BYTES_MAX (64u << 10)
/* Streams that a connection may give up within a second. */
#define PD_FRAMES_RESETS_MAX 1000u
/* PING frames of a connection within a second, their answers with them. */
#define PD_FRAMES_PINGS_MAX 5000u
/* Streams that a connection may open within a second while its door has all calls it serves. */
#define PD_FRAMES_CROWDED_MAX 256u

/* How far the frames of a connection were read. Its beginning: all zero but for `door`. */
struct pd_frames {
    int door; /* PD_DOORS: nobody knows which, so it is held to what any is */
    uint8_t header[9];
    uint8_t header_bytes;
    bool begun, foreign; /* foreign: no HTTP/2, and not looked at any more */
    uint32_t skip_bytes; /* to the next frame header */
    uint32_t block_bytes;
    uint32_t resets, pings, opened; /* since second_ns */
    uint64_t second_ns;
};

/* The next bytes of a connection. NULL, or what is wrong with them: "header_block", "resets",
 * "pings", "streams". One thread at a time. */
const char *pd_frames_take(struct pd_frames *frames, const uint8_t *bytes, size_t size,
                           uint64_t now_ns) PD_MUST_CHECK;

/* Counts and logs that a connection ends for what pd_frames_take found `wrong` with it; `over` says
 * which way it came, "plain" or "tls". Any thread. */
void pd_frames_tell(const char *wrong, const char *over);

/* A call is refused at this time since the door has all it serves: for the next second its
 * connections are held to PD_FRAMES_CROWDED_MAX. Any thread. */
void pd_frames_crowd(enum pd_door door, uint64_t now_ns);

#endif
