/* gRPC C core's place taken inside one process: what packd uses of it, without a network.
 *
 *   client call ──messages, half-close──> pair ──> server call       every operation completes in a
 *               <──messages, status─────                             queue, as gRPC's do
 *
 * Linked before libgrpc (an executable's own symbols win), so daemon and client library run as they
 * are, on code that sanitizers see: gRPC itself is not built with them, and would hide races behind
 * its locks and report others of its own. A message is copied on its way and arrives in pieces of
 * at most SEAM_PIECE_BYTES, as from HTTP/2 frames; SEAM_MESSAGES_MAX may be on their way, then
 * a write waits for its reader. There is no TLS, no compression, and nobody but this process.
 *
 * Locks, in order: addresses, server, pair, queue. */
#ifndef PD_TESTS_SEAM_H
#define PD_TESTS_SEAM_H

#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/time.h>
#include <stdbool.h>

#define SEAM_PIECE_BYTES 16384
#define SEAM_MESSAGES_MAX 4

/* ---- slices.c ---- */
/* The same bytes in new slices, of at most `piece_bytes` each. */
grpc_byte_buffer *seam_buffer_copy(const grpc_byte_buffer *from, size_t piece_bytes);

/* ---- queue.c ---- */
/* An operation that will be told by seam_queue_end, once. */
void seam_queue_begin(grpc_completion_queue *queue);
void seam_queue_end(grpc_completion_queue *queue, void *tag, bool ok);
/* The call whose deadline those who wait at this queue keep; NULL: none. */
void seam_queue_time(grpc_completion_queue *queue, grpc_call *call, gpr_timespec deadline);

/* True where the real library is loaded, too: then some function is missing here. */
bool seam_has_real_grpc(void);

#endif
