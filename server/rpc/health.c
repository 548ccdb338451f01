/* grpc.health.v1.Health: Check and Watch.
 *
 * Place in the flow: load balancers and probes ask here. Owning thread: the call's. The whole
 * server ("") and every packd service are SERVING while packd is ready; health and reflection
 * themselves as long as they answer. A change reaches watchers at the next tick, at most 100 ms
 * later. */
#include "proto/health.pb-c.h"
#include "server/rpc/unary.h"

#include <string.h>

typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_status;

#define SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

struct watch {
    struct pd_call call;
    Grpc__Health__V1__HealthCheckRequest *request;
    serving_status told;
    bool any_told;
};

static serving_status status_of_service(struct pd_rpc *rpc, const char *service)
{
    static const char *const packd[] = {"", "packd.v1.Ingest", "packd.v1.Feed", "packd.v1.Admin"};
    static const char *const always[] = {"grpc.health.v1.Health",
                                         "grpc.reflection.v1.ServerReflection",
                                         "grpc.reflection.v1alpha.ServerReflection"};

    for (size_t i = 0; i < PD_COUNT_OF(packd); i++)
        if (strcmp(service, packd[i]) == 0)
            return pd_rpc_is_ready(rpc) ? SERVING : NOT_SERVING;
    for (size_t i = 0; i < PD_COUNT_OF(always); i++)
        if (strcmp(service, always[i]) == 0)
            return SERVING;
    return SERVICE_UNKNOWN;
}

static void check(struct pd_call *call, grpc_byte_buffer *buffer)
{
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;

    if (!pd_unary_decode(call, &grpc__health__v1__health_check_request__descriptor, buffer))
        return;
    const Grpc__Health__V1__HealthCheckRequest *request = (const void *)pd_unary_of(call)->request;
    response.status = status_of_service(call->thread->rpc, request->service);
    if (response.status == SERVICE_UNKNOWN)
        (void)pd_call_fail_with(call, PD_ENOTFOUND, "UNKNOWN_SERVICE", "there is no service %.200s",
                                request->service);
    else
        pd_call_reply(call, &response.base);
}

static struct watch *watch_of(struct pd_call *call)
{
    return PD_CONTAINER_OF(call, struct watch, call);
}

static void watch_tell(struct pd_call *call)
{
    struct watch *watch = watch_of(call);
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;

    if (!watch->request || !pd_call_can_write(call))
        return;
    response.status = status_of_service(call->thread->rpc, watch->request->service);
    if (watch->any_told && watch->told == response.status)
        return;
    watch->any_told = true;
    watch->told = response.status;
    (void)pd_call_send(call, &response.base);
}

static void watch_message(struct pd_call *call, grpc_byte_buffer *buffer)
{
    struct watch *watch = watch_of(call);

    watch->request = (void *)pd_message_unpack(
        call, &grpc__health__v1__health_check_request__descriptor, buffer);
    watch_tell(call);
}

/* The last state is told first; the write in flight, if any, goes out before the status. */
static void watch_stop(struct pd_call *call)
{
    watch_tell(call);
    pd_call_fail_draining(call);
}

static void watch_fini(struct pd_call *call)
{
    struct watch *watch = watch_of(call);

    if (watch->request)
        grpc__health__v1__health_check_request__free_unpacked(watch->request, NULL);
}

const struct pd_method pd_methods_health[] = {
    {.path = "/grpc.health.v1.Health/Check",
     .call_bytes = sizeof(struct pd_unary),
     .unary = true,
     .anyone = true,
     .message = check,
     .stop = pd_unary_stop,
     .fini = pd_unary_fini},
    {.path = "/grpc.health.v1.Health/Watch",
     .call_bytes = sizeof(struct watch),
     .unary = true, /* one request */
     .anyone = true,
     .message = watch_message,
     .written = watch_tell,
     .tick = watch_tell,
     .stop = watch_stop,
     .fini = watch_fini},
    {0},
};
