/* Requests to the sequencer and their way back: done() on the sequencer's thread rings the call's
 * queue with the ask's own tag.
 *
 * Place in the flow: between the methods and the sequencer. Owning thread: the call's, but for
 * on_done. It knows no request's meaning. */
#include "server/rpc/ask.h"

#include <stdlib.h>
#include <string.h>

static void on_done(struct pd_request *request)
{
    struct pd_ask *ask = PD_CONTAINER_OF(request, struct pd_ask, of.base);

    pd_call_post(ask->call, &ask->tag);
}

static void on_tag(struct pd_tag *tag, bool ok)
{
    struct pd_ask *ask = PD_CONTAINER_OF(tag, struct pd_ask, tag);

    (void)ok;
    ask->answered(ask);
}

struct pd_ask *pd_ask_new(struct pd_call *call, enum pd_request_kind kind,
                          void (*answered)(struct pd_ask *ask))
{
    struct pd_ask *ask = calloc(1, sizeof(*ask));

    if (!ask) {
        (void)pd_call_fail_with(call, PD_ENOMEM, "NO_MEMORY", "no memory for a request");
        return NULL;
    }
    pd_call_ref(call);
    ask->call = call;
    ask->tag.done = on_tag;
    ask->answered = answered;
    ask->of.base.kind = kind;
    ask->of.base.done = on_done;
    return ask;
}

int pd_ask_submit(struct pd_ask *ask)
{
    int rc = pd_sequencer_submit(ask->call->thread->rpc->options.sequencer, &ask->of.base);

    if (rc == PD_ECLOSED)
        pd_call_fail_draining(ask->call);
    else if (rc != 0)
        (void)pd_call_fail_with(ask->call, rc, "TOO_MANY_CALLS",
                                "too many requests are waiting for the log");
    return rc;
}

void pd_ask_free(struct pd_ask *ask)
{
    struct pd_call *call = ask->call;

    if (ask->of.base.kind == PD_REQUEST_STATUS)
        pd_status_fini(&ask->of.status);
    free(ask);
    pd_call_unref(call);
}

const struct pd_feed_status *pd_status_feed(const struct pd_request_status *status,
                                            const char *name)
{
    for (uint32_t i = 0; i < status->feed_count; i++)
        if (strcmp(status->feeds[i].name, name) == 0)
            return &status->feeds[i];
    return NULL;
}

const struct pd_job_status *pd_status_job(const struct pd_feed_status *feed, const char *name)
{
    for (uint32_t i = 0; feed && i < feed->job_count; i++)
        if (strcmp(feed->jobs[i].name, name) == 0)
            return &feed->jobs[i];
    return NULL;
}
