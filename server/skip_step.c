/* One SkipSteps request on serve's behalf.
 *
 * Place in the flow: an assemble thread asks, the sequencer's thread answers. The request names the
 * generation in which the violation was found, so it is void where the job has gone on. It decides
 * nothing: whether the step may be left out is serve's to know. */
#include "server/skip_step.h"

#include <stdlib.h>

struct ask {
    struct pd_request_skip_steps request;
    struct pd_skip_order order;
    struct pd_serve *serve;
};

static void on_done(struct pd_request *base)
{
    struct ask *ask = PD_CONTAINER_OF(base, struct ask, request.base);
    if (base->result != 0)
        pd_serve_skip_failed(ask->serve, &ask->order, &base->error);
    free(ask);
}

int pd_skip_step_ask(void *ctx, const struct pd_skip_order *order)
{
    const struct pd_skip_step *skip_step = ctx;
    struct ask *ask = calloc(1, sizeof *ask);
    if (!ask)
        return PD_ENOMEM;
    ask->order = *order;
    ask->serve = skip_step->serve;
    struct pd_request_skip_steps *request = &ask->request;
    request->base.kind = PD_REQUEST_SKIP_STEPS;
    request->base.done = on_done;
    memcpy(request->feed, skip_step->config->feeds[order->feed_index].name, sizeof request->feed);
    memcpy(request->job, order->job, sizeof request->job);
    memcpy(request->why, order->why, sizeof request->why);
    request->first = request->last = order->step;
    request->only_at = order->generation;
    int rc = pd_sequencer_submit(skip_step->sequencer, &request->base);
    if (rc != 0)
        free(ask);
    return rc;
}
