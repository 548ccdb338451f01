/* The Admin calls that write: Flush, EndFeed, DeleteJob, and Drain.
 *
 * Place in the flow: between operators and the sequencer; each is one request and its answer.
 * Owning thread: the call's. */
#include "server/rpc/unary.h"

#include <string.h>

static void copy_feed(char to[PD_NAME_MAX + 1], const struct pd_call *call)
{
    const struct pd_unary *unary = PD_CONTAINER_OF(call, struct pd_unary, call);

    memcpy(to, unary->feed, PD_NAME_MAX + 1);
}

static void copy_job(char to[PD_NAME_MAX + 1], const struct pd_call *call)
{
    const struct pd_unary *unary = PD_CONTAINER_OF(call, struct pd_unary, call);

    memcpy(to, unary->job, PD_NAME_MAX + 1);
}

/* ---- Flush ---- */

static void on_flushed(struct pd_ask *ask)
{
    Packd__V1__FlushResponse response = PACKD__V1__FLUSH_RESPONSE__INIT;

    if (!pd_unary_answered(ask))
        return;
    pd_call_reply(ask->call, &response.base);
    pd_ask_free(ask);
}

static void flush(struct pd_call *call, grpc_byte_buffer *buffer)
{
    if (!pd_unary_decode(call, &packd__v1__flush_request__descriptor, buffer))
        return;
    const Packd__V1__FlushRequest *wire = (const void *)pd_unary_of(call)->request;
    bool all = wire->what_case == PACKD__V1__FLUSH_REQUEST__WHAT_ALL && wire->all;
    bool some = wire->what_case == PACKD__V1__FLUSH_REQUEST__WHAT_PACKS && wire->packs > 0;
    if (!all && !some) {
        (void)pd_call_fail_with(call, PD_EINVAL, "BAD_RANGE",
                                "FlushRequest takes packs (at least 1) or all");
        return;
    }
    if (!pd_unary_names(call, wire->feed, NULL))
        return;
    struct pd_ask *ask = pd_ask_new(call, PD_REQUEST_FLUSH, on_flushed);
    if (!ask)
        return;
    copy_feed(ask->of.flush.feed, call);
    ask->of.flush.packs = all ? 0 : wire->packs;
    pd_unary_submit(ask);
}

/* ---- EndFeed ---- */

static void on_ended(struct pd_ask *ask)
{
    if (!pd_unary_answered(ask))
        return;
    Packd__V1__EndFeedResponse response = PACKD__V1__END_FEED_RESPONSE__INIT;
    struct pd_unary *unary = pd_unary_of(ask->call);
    response.already = unary->a != 0;
    response.samples = unary->b;
    pd_call_reply(ask->call, &response.base);
    pd_ask_free(ask);
}

/* Before the end: whether it had been declared, and how many samples there are. */
static void on_end_facts(struct pd_ask *ask)
{
    if (!pd_unary_answered(ask))
        return;
    struct pd_unary *unary = pd_unary_of(ask->call);
    const struct pd_feed_status *feed = pd_status_feed(&ask->of.status, unary->feed);
    for (uint32_t i = 0; feed && i < feed->stream_count; i++)
        unary->b += feed->streams[i].samples;
    unary->a = feed && feed->end_declared;
    struct pd_ask *end = pd_ask_new(ask->call, PD_REQUEST_END_FEED, on_ended);
    if (end) {
        copy_feed(end->of.end_feed.feed, ask->call);
        pd_unary_submit(end);
    }
    pd_ask_free(ask);
}

static void end_feed(struct pd_call *call, grpc_byte_buffer *buffer)
{
    if (!pd_unary_decode(call, &packd__v1__end_feed_request__descriptor, buffer))
        return;
    const Packd__V1__EndFeedRequest *wire = (const void *)pd_unary_of(call)->request;
    if (!pd_unary_names(call, wire->feed, NULL))
        return;
    struct pd_ask *ask = pd_ask_new(call, PD_REQUEST_STATUS, on_end_facts);
    if (ask)
        pd_unary_submit(ask);
}

/* ---- DeleteJob ---- */

static void on_deleted(struct pd_ask *ask)
{
    Packd__V1__DeleteResponse response = PACKD__V1__DELETE_RESPONSE__INIT;

    if (!pd_unary_answered(ask))
        return;
    pd_call_reply(ask->call, &response.base);
    pd_ask_free(ask);
}

static void delete_job(struct pd_call *call, grpc_byte_buffer *buffer)
{
    if (!pd_unary_decode(call, &packd__v1__delete_job_request__descriptor, buffer))
        return;
    const Packd__V1__DeleteJobRequest *wire = (const void *)pd_unary_of(call)->request;
    if (!pd_unary_names(call, wire->feed, wire->job))
        return;
    struct pd_ask *ask = pd_ask_new(call, PD_REQUEST_DELETE_JOB, on_deleted);
    if (!ask)
        return;
    copy_feed(ask->of.delete_job.feed, call);
    copy_job(ask->of.delete_job.job, call);
    pd_unary_submit(ask);
}

/* ---- Drain ---- */

static void drain(struct pd_call *call, grpc_byte_buffer *buffer)
{
    Packd__V1__DrainResponse response = PACKD__V1__DRAIN_RESPONSE__INIT;
    struct pd_rpc *rpc = call->thread->rpc;

    if (!pd_unary_decode(call, &packd__v1__drain_request__descriptor, buffer))
        return;
    const Packd__V1__DrainRequest *wire = (const void *)pd_unary_of(call)->request;
    bool undo = wire->undo;
    atomic_store(&rpc->draining, !undo);
    if (rpc->options.on_drain)
        rpc->options.on_drain(rpc->options.ctx, undo);
    response.state =
        undo ? PACKD__V1__SERVER_STATE__STATE_SERVING : PACKD__V1__SERVER_STATE__STATE_DRAINING;
    response.push_calls = atomic_load(&rpc->push_calls);
    response.fetch_calls = atomic_load(&rpc->fetch_calls);
    pd_call_reply(call, &response.base);
}

const struct pd_method pd_methods_admin[] = {
    PD_UNARY("/packd.v1.Admin/Flush", flush),
    PD_UNARY("/packd.v1.Admin/EndFeed", end_feed),
    PD_UNARY("/packd.v1.Admin/DeleteJob", delete_job),
    PD_UNARY("/packd.v1.Admin/Drain", drain),
    {0},
};
