/* Unary methods: one request, one answer, perhaps after the sequencer has been asked. */
#ifndef PD_SERVER_RPC_UNARY_H
#define PD_SERVER_RPC_UNARY_H

#include "server/rpc/ask.h"

/* The call of a unary method: what it needs from its request until the answer. */
struct pd_unary {
    struct pd_call call;
    ProtobufCMessage *request; /* decoded; freed with the call */
    /* names from the request, checked */
    char feed[PD_NAME_MAX + 1], job[PD_NAME_MAX + 1];
    uint64_t a, b; /* the method's own */
};

static inline struct pd_unary *pd_unary_of(struct pd_call *call)
{
    return PD_CONTAINER_OF(call, struct pd_unary, call);
}

/* Decodes the request into unary->request. False: the call has failed. Takes buffer. */
bool pd_unary_decode(struct pd_call *call, const ProtobufCMessageDescriptor *type,
                     grpc_byte_buffer *buffer);
/* Copies and checks names into unary->feed and ->job (job NULL: none). False: the call has failed.
 */
bool pd_unary_names(struct pd_call *call, const char *feed, const char *job);
/* The beginning that such methods share: pd_unary_names, then pd_ask_new. NULL: the call has
 * failed. */
struct pd_ask *pd_unary_ask(struct pd_call *call, enum pd_request_kind kind,
                            void (*answered)(struct pd_ask *ask), const char *feed,
                            const char *job);
/* Submits; on failure the ask is freed (the call has failed). */
void pd_unary_submit(struct pd_ask *ask);
/* True: the ask succeeded and the call is still there. Else the call has failed where it had to;
 * the ask is freed. */
bool pd_unary_answered(struct pd_ask *ask);
/* Ends calls that have not sent their request; others end by themselves. */
void pd_unary_stop(struct pd_call *call);
void pd_unary_fini(struct pd_call *call);

#define PD_UNARY(method_path, on_message)                                          \
    {                                                                              \
        .path = method_path, .call_bytes = sizeof(struct pd_unary), .unary = true, \
        .message = on_message, .stop = pd_unary_stop, .fini = pd_unary_fini        \
    }

#endif
