/* What unary methods share. Owning thread: the call's. */
#include "server/rpc/unary.h"

bool pd_unary_decode(struct pd_call *call, const ProtobufCMessageDescriptor *type,
                     grpc_byte_buffer *buffer)
{
    struct pd_unary *unary = pd_unary_of(call);

    unary->request = pd_message_unpack(call, type, buffer);
    return unary->request != NULL;
}

bool pd_unary_names(struct pd_call *call, const char *feed, const char *job)
{
    struct pd_unary *unary = pd_unary_of(call);
    struct pd_error error;

    if (pd_feed_name_copy(unary->feed, feed, &error) == 0 &&
        (!job || pd_name_copy(unary->job, "job", job, &error) == 0))
        return pd_call_may_use(call, unary->feed);
    pd_call_fail(call, &error);
    return false;
}

struct pd_ask *pd_unary_ask(struct pd_call *call, enum pd_request_kind kind,
                            void (*answered)(struct pd_ask *ask), const char *feed, const char *job)
{
    return pd_unary_names(call, feed, job) ? pd_ask_new(call, kind, answered) : NULL;
}

void pd_unary_submit(struct pd_ask *ask)
{
    if (pd_ask_submit(ask) != 0)
        pd_ask_free(ask);
}

bool pd_unary_answered(struct pd_ask *ask)
{
    const struct pd_request *request = &ask->of.base;

    if (request->result == 0 && !pd_call_is_over(ask->call))
        return true;
    if (request->result == PD_ECLOSED)
        pd_call_fail_draining(ask->call);
    else if (request->result != 0)
        pd_call_fail(ask->call, &request->error);
    pd_ask_free(ask);
    return false;
}

void pd_unary_stop(struct pd_call *call)
{
    if (!pd_unary_of(call)->request)
        pd_call_fail_draining(call);
}

void pd_unary_fini(struct pd_call *call)
{
    struct pd_unary *unary = pd_unary_of(call);

    if (unary->request)
        protobuf_c_message_free_unpacked(unary->request, NULL);
}
