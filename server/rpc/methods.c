/* The table of methods: a path finds its state machine; anything else is answered UNIMPLEMENTED
 * with a text.
 *
 * Place in the flow: asked once for each accepted call. Immutable; any thread. */
#include "server/metrics.h"
#include "server/rpc/unary.h"

#include <string.h>

/* Does not wait for a request, so that it answers calls of any shape. */
static void refuse(struct pd_call *call)
{
    (void)pd_call_fail_with(call, PD_EUNSUPPORTED, "UNKNOWN_METHOD",
                            "this server has no such method; grpc reflection lists what it offers");
}

static void ignore(struct pd_call *call, grpc_byte_buffer *buffer)
{
    (void)call;
    grpc_byte_buffer_destroy(buffer);
}

const struct pd_method pd_method_refused = {
    .path = "refused", .call_bytes = sizeof(struct pd_call), .unary = true, .message = ignore};

static const struct pd_method unknown = {.path = "unknown",
                                         .call_bytes = sizeof(struct pd_call),
                                         .unary = true,
                                         .start = refuse,
                                         .message = ignore};

static const struct pd_method *const tables[] = {
    pd_methods_push,   pd_methods_fetch,   pd_methods_job,
    pd_methods_admin,  pd_methods_control, pd_methods_explain,
    pd_methods_status, pd_methods_health,  pd_methods_reflection,
};

const struct pd_method *pd_method_find(const char *path, size_t size)
{
    for (size_t t = 0; t < PD_COUNT_OF(tables); t++)
        for (const struct pd_method *method = tables[t]; method->path; method++)
            if (strlen(method->path) == size && memcmp(method->path, path, size) == 0)
                return method;
    return &unknown;
}

void pd_methods_tell_metrics(void)
{
    for (size_t t = 0; t < PD_COUNT_OF(tables); t++)
        for (const struct pd_method *method = tables[t]; method->path; method++)
            pd_metrics_method(method->path);
}
