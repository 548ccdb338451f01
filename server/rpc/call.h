/* One gRPC call as a small state machine; internal to server/rpc.
 *
 *   accept ──> pd_call ──message, half_close, written, tick──> the method's functions
 *                 ^                                             └─ _write, _reply, _fail ──> client
 *                 └── pd_call_post: another thread's event, as a tag on the call's own queue
 *
 * A call stays on the thread whose queue accepted it; all its functions run there and need no lock.
 * At most one read and one write are in flight. `refs` counts the operations in flight, the events
 * that other threads still owe, and one until the call is closed; the last one frees. Since a queue
 * is shut down only when no call is left, posting to a call that holds a reference is always
 * safe. */
#ifndef PD_SERVER_RPC_CALL_H
#define PD_SERVER_RPC_CALL_H

#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "proto/packd.pb-c.h"
#include "server/ingest/credit.h"
#include "server/rpc/access.h"
#include "server/rpc/connections.h"
#include "server/rpc/peers.h"
#include "server/rpc/rpc.h"

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <protobuf-c/protobuf-c.h>
#include <pthread.h>
#include <stdatomic.h>

/* Largest payload field of one message in either direction. */
#define PD_RPC_PIECE_BYTES_MAX ((1u << 20) - 1024)
#define PD_RPC_HEAD_BYTES_MAX ((1u << 20) - 1024)
/* Head, piece and framing. */
#define PD_RPC_RECEIVE_BYTES_MAX (2u << 20)
/* No message of ours is larger: what clients take that set no limit of their own. */
#define PD_RPC_SEND_BYTES_MAX (4u << 20)
#define PD_RPC_CHUNK_BYTES_MAX (1u << 20)
#define PD_RPC_TICK_NS 100000000u
/* Calls that `listen` serves at a time beside limits.push_calls. */
#define PD_RPC_OTHER_CALLS_MAX 4096u
/* Calls that `listen_admin` and `listen_health` serve at a time, each. */
#define PD_RPC_SIDE_CALLS_MAX 1024u
/* Calls of methods that anyone may call, for each door: they take no place from those who are
 * asked who they are. */
#define PD_RPC_ANYONE_CALLS_MAX 1024u

/* Embedded wherever an event is waited for; the queue hands the pointer back. Its owner holds a
 * call reference meanwhile. */
struct pd_tag {
    void (*done)(struct pd_tag *tag, bool ok);
};

struct pd_call;

struct pd_method {
    const char *path;
    size_t call_bytes; /* of the struct that begins with struct pd_call */
    bool unary;        /* one request: read for it, and no more after it */
    bool anyone;       /* its callers are not asked who they are: health and reflection */
    /* All may be NULL but message. None is called once the call is finished, closed or failed, but
     * closed and fini. */
    void (*start)(struct pd_call *call);
    void (*message)(struct pd_call *call, grpc_byte_buffer *buffer); /* takes buffer */
    void (*half_close)(struct pd_call *call);
    void (*written)(struct pd_call *call);
    void (*tick)(struct pd_call *call);   /* every PD_RPC_TICK_NS */
    void (*stop)(struct pd_call *call);   /* the server goes down: end soon; NULL: ends by itself */
    void (*closed)(struct pd_call *call); /* no further message in either direction: let go of what
                                             is waited for */
    void (*fini)(struct pd_call *call);
};

#define PD_CALL_MAGIC 0x70644341u

struct pd_call {
    uint32_t magic;
    unsigned refs;
    struct pd_link link; /* thread->calls */
    struct pd_rpc_thread *thread;
    const struct pd_method *method;
    enum pd_door door;
    const struct pd_principal_config *who; /* NULL: nobody was asked */
    uint32_t peer_slot;                    /* to leave by; PD_NO_PEER: not counted */
    grpc_call *call;
    struct pd_tag on_read, on_write, on_status, on_close;
    grpc_byte_buffer *incoming; /* of the read in flight */
    int cancelled;              /* of RECV_CLOSE */
    bool reading, writing, headers_sent;
    bool finishing; /* a status is decided */
    bool status_sent, closed;
    bool stop_told;
    bool heard;      /* a message has come */
    bool hold_reads; /* the method takes no further message now: pd_call_read does nothing */
    uint64_t write_since_ns, open_since_ns; /* pd_rpc_patience_ns */
    uint64_t started_ns;
    grpc_status_code status;
    grpc_slice status_text;
    grpc_metadata trailing;
    size_t trailing_count;
};

struct pd_rpc_thread {
    struct pd_rpc *rpc;
    uint32_t index;
    grpc_completion_queue *cq;
    pthread_t thread;
    bool started;
    struct pd_link calls;
    struct pd_log_reader *reader; /* for Explain; made when first needed */
    uint64_t tick_at_ns;
    uint64_t lost_ns; /* in all, by which ticks came late */
};

/* A clock for limits.stall: it stands while the thread does not run (a stopped process, a machine
 * that was suspended), for which no peer is to blame. */
uint64_t pd_rpc_patience_ns(const struct pd_rpc_thread *thread);
/* Whether limits.stall is over since that time. */
bool pd_rpc_is_stalled(const struct pd_rpc_thread *thread, uint64_t since_ns);

struct pd_shutdown_tag {
    struct pd_tag tag;
    struct pd_rpc *rpc;
};

struct pd_rpc {
    struct pd_rpc_options options;
    grpc_server *servers[PD_DOORS]; /* NULL: no such listener */
    struct pd_access *access;
    struct pd_peers *peers;
    struct pd_connections *connections;
    struct pd_rpc_thread *threads;
    uint32_t thread_count;
    char *addresses[PD_DOORS][PD_LISTEN_MAX];
    struct pd_tls *tls[PD_DOORS][PD_LISTEN_MAX]; /* of the same address; NULL: plain */
    uint32_t address_counts[PD_DOORS];
    uint64_t incarnation, started_wall_ns;
    struct pd_credit_pool credit;
    atomic_bool serving, draining, stopping;
    _Atomic(const char *) fault; /* NULL: none */
    atomic_uint push_calls, fetch_calls;
    atomic_uint calls_open[PD_DOORS];  /* those that are being refused, too */
    atomic_uint anyone_open[PD_DOORS]; /* of these, methods that anyone may call */
    struct pd_shutdown_tag on_shutdown[PD_DOORS];
    /* Guards what follows: pd_rpc_stop waits for both. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t live; /* calls and posted accepts */
    uint32_t servers_down;
};

/* ---- rpc.c ---- */
void pd_rpc_live_add(struct pd_rpc *rpc, int amount);
bool pd_rpc_is_ready(struct pd_rpc *rpc);

/* Calls that a door serves at a time. */
static inline uint32_t pd_rpc_calls_max(const struct pd_rpc *rpc, enum pd_door door)
{
    return door == PD_DOOR_MAIN ? rpc->options.config->push_calls_max + PD_RPC_OTHER_CALLS_MAX
                                : PD_RPC_SIDE_CALLS_MAX;
}

/* ---- listeners.c ---- */
/* Makes the servers and binds their addresses; rpc->addresses has them as bound. */
int pd_listeners_make(struct pd_rpc *rpc, struct pd_error *error) PD_MUST_CHECK;
int pd_listeners_bind(struct pd_rpc *rpc, struct pd_error *error) PD_MUST_CHECK;

/* ---- methods.c ---- */
/* The method with this path; an unknown one gives the method that answers UNIMPLEMENTED. Never
 * NULL. */
const struct pd_method *pd_method_find(const char *path, size_t size);
/* Tells the metrics of all of them; before threads exist. */
void pd_methods_tell_metrics(void);
extern const struct pd_method pd_method_refused; /* does nothing: the call has failed already */
extern const struct pd_method pd_methods_push[], pd_methods_fetch[], pd_methods_job[],
    pd_methods_admin[], pd_methods_control[], pd_methods_explain[], pd_methods_status[],
    pd_methods_health[], pd_methods_reflection[]; /* each ends with path NULL */

/* ---- call.c: the owner thread only, but for pd_call_post ---- */
/* Takes the gRPC call; on failure it is cancelled. */
void pd_call_accept(struct pd_rpc_thread *thread, enum pd_door door, grpc_call *call,
                    const struct pd_method *method, const struct pd_principal_config *who,
                    uint32_t peer_slot);
/* Takes the gRPC call and ends it with the error, whatever its method is. */
void pd_call_refuse(struct pd_rpc_thread *thread, enum pd_door door, grpc_call *call,
                    const struct pd_error *error);
/* False: the feed is none of the caller's, and the call has failed with NOT_ALLOWED. */
bool pd_call_may_use(struct pd_call *call, const char *feed);
static inline void pd_call_ref(struct pd_call *call)
{
    call->refs++;
}
void pd_call_unref(struct pd_call *call);
/* Any thread: puts `tag` into the call's queue, once. The caller owns a reference that the tag's
 * done hands on or drops. */
void pd_call_post(struct pd_call *call, struct pd_tag *tag);
/* Posts the next read, unless one is in flight or the call is over. */
void pd_call_read(struct pd_call *call);
/* Sends one message and takes `buffer`; none may be in flight. False: the call is over, the buffer
 * is gone. */
bool pd_call_write(struct pd_call *call, grpc_byte_buffer *buffer);
bool pd_call_send(struct pd_call *call, const ProtobufCMessage *message);
/* True where a message may be written now. */
static inline bool pd_call_can_write(const struct pd_call *call)
{
    return !call->writing && !call->finishing && !call->closed;
}
static inline bool pd_call_is_over(const struct pd_call *call)
{
    return call->finishing || call->closed;
}
/* Ends the call: OK, or a status made from the error. The first status decided stands. Messages
 * already given to write go out first. */
void pd_call_finish(struct pd_call *call);
void pd_call_fail(struct pd_call *call, const struct pd_error *error);
/* As pd_call_fail, with further fields of ErrorDetail; reason and text are taken from the error. */
void pd_call_fail_detail(struct pd_call *call, const struct pd_error *error,
                         Packd__V1__ErrorDetail *detail);
int pd_call_fail_with(struct pd_call *call, int code, const char *reason, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* UNAVAILABLE, DRAINING. */
void pd_call_fail_draining(struct pd_call *call);
/* The one response of a unary call, and OK. */
void pd_call_reply(struct pd_call *call, const ProtobufCMessage *message);

/* ---- message.c ---- */
/* A serialised message as a byte buffer. */
grpc_byte_buffer *pd_message_pack(const ProtobufCMessage *message);
/* Decodes a whole message; NULL where it is malformed (or memory is short), and the call has failed
 * with MALFORMED. Takes buffer. Free with protobuf_c_message_free_unpacked. */
ProtobufCMessage *pd_message_unpack(struct pd_call *call, const ProtobufCMessageDescriptor *type,
                                    grpc_byte_buffer *buffer);
/* The slices of a buffer as pieces that point into it. */
uint32_t pd_message_piece_count(const grpc_byte_buffer *buffer);
void pd_message_pieces(const grpc_byte_buffer *buffer, struct pd_piece *pieces);

/* "" means the feed "default". PD_EINVAL BAD_NAME. */
int pd_name_copy(char to[PD_NAME_MAX + 1], const char *what, const char *from,
                 struct pd_error *error) PD_MUST_CHECK;
int pd_feed_name_copy(char to[PD_NAME_MAX + 1], const char *from,
                      struct pd_error *error) PD_MUST_CHECK;

#endif
