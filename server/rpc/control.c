/* The Admin calls that steer what is served: SkipSteps.
 *
 * Place in the flow: between operators and the sequencer, which checks and records; each call is one
 * request and its answer. Owning thread: the call's. Here is only what the wire adds: names, sizes
 * of texts, the detail of an error. */
#include "server/rpc/unary.h"

#include <string.h>

/* `why`, kept in the log. False: the call has failed. */
static bool copy_why(struct pd_call *call, char to[256], const char *why)
{
    if (strlen(why) > 255) {
        (void)pd_call_fail_with(call, PD_EINVAL, "BAD_RANGE", "`why` takes at most 255 bytes");
        return false;
    }
    memcpy(to, why, strlen(why) + 1);
    return true;
}

/* ---- SkipSteps ---- */

static void on_skipped(struct pd_ask *ask)
{
    const struct pd_request_skip_steps *request = &ask->of.skip_steps;
    Packd__V1__SkipStepsResponse response = PACKD__V1__SKIP_STEPS_RESPONSE__INIT;

    if (request->base.result == PD_ERANGE && !pd_call_is_over(ask->call)) {
        Packd__V1__ErrorDetail detail = PACKD__V1__ERROR_DETAIL__INIT;
        detail.seq = -1;
        detail.step = (int64_t)request->last;
        detail.lowest_step = (int64_t)request->lowest_step;
        pd_call_fail_detail(ask->call, &request->base.error, &detail);
        pd_ask_free(ask);
        return;
    }
    if (!pd_unary_answered(ask))
        return;
    response.record = request->base.record;
    response.generation = request->generation;
    response.next_step = request->next_step;
    pd_call_reply(ask->call, &response.base);
    pd_ask_free(ask);
}

static void skip_steps(struct pd_call *call, grpc_byte_buffer *buffer)
{
    if (!pd_unary_decode(call, &packd__v1__skip_steps_request__descriptor, buffer))
        return;
    const struct pd_unary *unary = pd_unary_of(call);
    const Packd__V1__SkipStepsRequest *wire = (const void *)unary->request;
    if (!pd_unary_names(call, wire->feed, wire->job))
        return;
    struct pd_ask *ask = pd_ask_new(call, PD_REQUEST_SKIP_STEPS, on_skipped);
    if (!ask)
        return;
    struct pd_request_skip_steps *request = &ask->of.skip_steps;
    if (!copy_why(call, request->why, wire->why)) {
        pd_ask_free(ask);
        return;
    }
    memcpy(request->feed, unary->feed, sizeof(request->feed));
    memcpy(request->job, unary->job, sizeof(request->job));
    request->first = wire->first;
    request->last = wire->last;
    pd_unary_submit(ask);
}

const struct pd_method pd_methods_control[] = {
    PD_UNARY("/packd.v1.Admin/SkipSteps", skip_steps),
    {0},
};
