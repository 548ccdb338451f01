/* The client's door to gRPC: a channel, unary calls, and one bidirectional stream.
 *
 * No gRPC type leaves lib_rpc*.c. A stream belongs to one thread, which alone may call its
 * functions; only pd_stream_ring may come from others, under a lock that also guards the stream's
 * life.
 *
 * Bytes go out without a copy: a part of a write may lend memory that pd_rpc_part.release hands
 * back on any thread. Bytes come in as the transport's slices: pd_message walks over them. */
#ifndef PD_CLIENT_LIB_RPC_H
#define PD_CLIENT_LIB_RPC_H

#include "base/bytes.h"
#include "client/include/packd.h"

#include <pthread.h>

/* "UNAVAILABLE"; "CODE_17" style numbers never occur: unknown codes give "UNKNOWN". */
const char *pd_rpc_status_name(int grpc_code);

struct pd_channel;

/* Connects lazily; the environment stands behind options that are NULL. All of them were checked
 * before (pd_connection_check). NULL: out of memory. Counts gRPC's users: free must follow. */
struct pd_channel *pd_channel_new(const char *server, const char *token,
                                  const struct packd_tls *tls);
void pd_channel_free(struct pd_channel *channel);
const char *pd_channel_server(const struct pd_channel *channel);
/* Ends the unary calls that run now, and those begun later, with PACKD_ECANCELED. Any thread. */
void pd_channel_cancel(struct pd_channel *channel);
bool pd_channel_cancelled(struct pd_channel *channel);
/* A pause that pd_channel_cancel ends. */
void pd_channel_sleep(struct pd_channel *channel, uint64_t ns);

/* What the server said when a call failed. */
struct pd_rpc_failure {
    bool transport; /* no reason came with it: the connection, a proxy, or no packd */
    uint64_t retry_after_ms;
};

/* One request, one reply (appended to *reply). error is filled with "packd at SERVER: METHOD: ...".
 * deadline_ns: pd_clock_mono_ns. Any thread. */
int pd_rpc_unary(struct pd_channel *channel, const char *method, const void *request,
                 size_t request_bytes, uint64_t deadline_ns, struct pd_buf *reply,
                 struct pd_rpc_failure *failure, struct packd_error *error);

/* ---- stream ---------------------------------------------------------------------------------- */

struct pd_message; /* one received message */

size_t pd_message_bytes(const struct pd_message *message);
/* The next run of bytes in place, borrowed until the next call; false at the end. */
bool pd_message_next(struct pd_message *message, const uint8_t **data, size_t *bytes);
void pd_message_free(struct pd_message *message);

/* Of one message: its prefixes and head, and as many columns as a block's body may have. */
#define PD_RPC_PARTS_MAX 70

struct pd_rpc_part {
    const void *data;
    size_t bytes;
    void (*release)(void *owner); /* NULL: copy the bytes now. Called once, on any thread */
    void *owner;
};

enum pd_stream_event {
    PD_STREAM_TIMEOUT,
    PD_STREAM_MESSAGE, /* *message is the caller's */
    PD_STREAM_WRITTEN, /* the write is taken: another one may follow */
    PD_STREAM_BELL,
    PD_STREAM_CLOSED /* no event will follow; pd_stream_failure tells why */
};

struct pd_stream;

int pd_stream_open(struct pd_channel *channel, const char *method, struct pd_stream **out,
                   struct packd_error *error);
/* Asks for one message; none may be asked for already. */
void pd_stream_read(struct pd_stream *stream);
bool pd_stream_reading(const struct pd_stream *stream);
/* One message of these parts (at most 5); none may be under way. */
void pd_stream_write(struct pd_stream *stream, const struct pd_rpc_part *parts, size_t count);
bool pd_stream_writing(const struct pd_stream *stream);
/* No write follows. */
void pd_stream_half_close(struct pd_stream *stream);
/* Ends the call; CLOSED follows. */
void pd_stream_cancel(struct pd_stream *stream);
enum pd_stream_event pd_stream_wait(struct pd_stream *stream, uint64_t deadline_ns,
                                    struct pd_message **message);
/* After CLOSED: 0 where the call ended with OK, else the code, with error filled. */
int pd_stream_failure(struct pd_stream *stream, struct pd_rpc_failure *failure,
                      struct packd_error *error);
/* Cancels what runs, waits for its end, frees. */
void pd_stream_free(struct pd_stream *stream);
/* Makes pd_stream_wait return PD_STREAM_BELL soon; rings while one is pending are one. */
void pd_stream_ring(struct pd_stream *stream);

#endif
