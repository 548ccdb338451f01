/* What the parts of Ingest.Push share: the call's state and the functions that cross files.
 *
 *   push_open.c   Hello, opening the stream
 *   push.c        messages into blocks and appends, the method
 *   push_reply.c  credit, and what is told when: Welcome, Reject, Ack, StreamEnded, the end
 *
 * All on the call's thread. */
#ifndef PD_SERVER_RPC_PUSH_H
#define PD_SERVER_RPC_PUSH_H

#include "server/rpc/ask.h"
#include "server/rpc/push_block.h"

enum push_state { AWAIT_HELLO, OPENING, STREAMING, ENDING, ENDED };

struct push {
    struct pd_call call;
    enum push_state state;
    const struct pd_feed_config *feed;
    struct pd_door_rules rules;
    uint32_t feed_index, stream_id, lane, source_id;
    uint64_t epoch;
    bool stream_was_ended;
    uint64_t rejected_before; /* by earlier calls, and why */
    char rejected_for[PD_REJECTED_FOR_MAX];
    uint64_t next_seq; /* expected next, with what is on the way */
    uint64_t durable_seq;
    uint64_t duplicates, rejected;
    uint64_t piece_bytes_told; /* the largest piece, by Welcome or a later Ack */
    struct pd_credit credit;
    bool withheld;            /* none of it has been told yet: the lane takes nothing */
    struct push_block *block; /* whose pieces are arriving, or NULL */
    uint64_t message_ns;      /* when the last message came, by pd_rpc_patience_ns */
    struct pd_link appends;   /* on their way, oldest first */
    uint32_t append_count;
    Packd__V1__LogState why; /* as told last */
    const char *why_text;
    bool peer_full;        /* with LOG_INGEST_MEMORY: for limits.peer_bytes */
    struct pd_stall stall; /* with LOG_STALLED */
    /* monotonic: without credit since, counted up to then; 0 = it has some */
    uint64_t throttled_since_ns;
    bool welcome_due, ack_due, ended_due, half_closed, stopping;
};

/* A block in the sequencer's hands. */
struct append {
    struct pd_link link;
    struct pd_ask *ask;
    bool done;
    uint64_t first_seq;
    uint32_t count;
    uint64_t bytes;    /* charged */
    uint64_t since_ns; /* monotonic: submitted */
    struct pd_door_rejects rejects;
    struct pd_refusal *refusals; /* the same for the sequencer; NULL: none */
    uint32_t reject_at;          /* next one to tell */
};

static inline struct push *push_of(struct pd_call *call)
{
    return PD_CONTAINER_OF(call, struct push, call);
}

static inline struct pd_rpc *push_rpc(const struct push *push)
{
    return push->call.thread->rpc;
}

/* Body bytes of the open block still to come, 0 without one. */
static inline uint64_t push_rest(const struct push *push)
{
    return push->block ? push_block_rest(push->block) : 0;
}

/* Largest body field of one message that is taken, whatever was told. */
uint64_t push_piece_bytes_max(const struct push *push);

/* Counts the time that the call stands without credit, by reason. */
void push_note_throttled(struct push *push);
/* Grants what may be granted and notes why it is not more. True where the credit grew or the reason
 * changed. */
bool push_grant(struct push *push);
/* Writes the next message that is due; called whenever something has changed. */
void push_output(struct push *push);
/* Takes the append off the list and its bytes off the credit; drops its reference to the call. */
void push_append_free(struct push *push, struct append *append);
/* Tells the sequencer that the call no longer has the stream. */
void push_close_stream(struct push *push);
/* Ends the call with what the sequencer answered. */
void push_fail_request(struct push *push, const struct pd_request *request);

/* The first message. */
void push_take_hello(struct push *push, const Packd__V1__Hello *hello);

#endif
