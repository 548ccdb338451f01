/* The Admin calls that steer what is planned and served: SkipSteps, SetMixture, SkipSamples,
 * DeleteJob, DeleteStream, DeleteFeed.
 *
 * Place in the flow: between operators and the sequencer, which checks and records; each call is
 * one request and its answer. Owning thread: the call's. Here is only what the wire adds: names,
 * sizes of texts, the detail of an error. */
#include "server/rpc/unary.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* `why`, kept in the log; lines of text quote it, so its own quotes become single ones. False: the
 * call has failed. */
static bool copy_why(struct pd_call *call, char to[256], const char *why)
{
    if (strlen(why) > 255) {
        (void)pd_call_fail_with(call, PD_EINVAL, "BAD_RANGE", "`why` takes at most 255 bytes");
        return false;
    }
    memcpy(to, why, strlen(why) + 1);
    for (char *quote = to; (quote = strchr(quote, '"'));)
        *quote = '\'';
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
    struct pd_ask *ask =
        pd_unary_ask(call, PD_REQUEST_SKIP_STEPS, on_skipped, wire->feed, wire->job);
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

/* ---- SetMixture ---- */

static void on_mixed(struct pd_ask *ask)
{
    Packd__V1__SetMixtureResponse response = PACKD__V1__SET_MIXTURE_RESPONSE__INIT;

    free(ask->context);
    if (!pd_unary_answered(ask))
        return;
    response.record = ask->of.base.record;
    response.effective_pack = ask->of.base.effective_pack;
    pd_call_reply(ask->call, &response.base);
    pd_ask_free(ask);
}

static void set_mixture(struct pd_call *call, grpc_byte_buffer *buffer)
{
    if (!pd_unary_decode(call, &packd__v1__set_mixture_request__descriptor, buffer))
        return;
    const struct pd_unary *unary = pd_unary_of(call);
    const Packd__V1__SetMixtureRequest *wire = (const void *)unary->request;
    if (!pd_unary_names(call, wire->feed, NULL))
        return;
    if (wire->n_weights > PD_LANES_WEIGHTED_MAX) {
        (void)pd_call_fail_with(call, PD_EINVAL, "BAD_MIXTURE",
                                "%zu sources are named, a feed has at most %d", wire->n_weights,
                                PD_LANES_WEIGHTED_MAX);
        return;
    }
    struct pd_ask *ask = pd_ask_new(call, PD_REQUEST_SET_MIXTURE, on_mixed);
    struct pd_source_weight *weights = ask ? calloc(wire->n_weights + 1, sizeof(*weights)) : NULL;
    if (ask && !weights) {
        (void)pd_call_fail_with(call, PD_ENOMEM, "NO_MEMORY", "no memory for a request");
        pd_ask_free(ask);
    }
    if (!weights)
        return;
    for (size_t i = 0; i < wire->n_weights; i++)
        weights[i] = (struct pd_source_weight){.source = wire->weights[i]->source,
                                               .weight = wire->weights[i]->weight};
    memcpy(ask->of.set_mixture.feed, unary->feed, sizeof(unary->feed));
    ask->of.set_mixture.weights = weights;
    ask->of.set_mixture.weight_count = wire->n_weights;
    ask->context = weights;
    if (pd_ask_submit(ask) != 0) {
        free(weights);
        pd_ask_free(ask);
    }
}

/* ---- SkipSamples ---- */

static void on_samples_skipped(struct pd_ask *ask)
{
    Packd__V1__SkipSamplesResponse response = PACKD__V1__SKIP_SAMPLES_RESPONSE__INIT;

    if (!pd_unary_answered(ask))
        return;
    response.record = ask->of.base.record;
    response.effective_pack = ask->of.base.effective_pack;
    pd_call_reply(ask->call, &response.base);
    pd_ask_free(ask);
}

static int fill_names(struct pd_request_skip_samples *request,
                      const Packd__V1__SkipSamplesRequest *wire, struct pd_error *error)
{
    int rc = wire->stream[0] ? pd_name_copy(request->stream, "stream", wire->stream, error) : 0;

    if (rc == 0 && wire->source[0])
        rc = pd_name_copy(request->source, "source", wire->source, error);
    return rc;
}

static int fill_rule(struct pd_skip_rule *rule, const Packd__V1__SkipSamplesRequest *wire,
                     struct pd_error *error)
{
    bool lower = wire->lower_case == PACKD__V1__SKIP_SAMPLES_REQUEST__LOWER_FIRST_SEQ;
    bool upper = wire->upper_case == PACKD__V1__SKIP_SAMPLES_REQUEST__UPPER_LAST_SEQ;

    if ((lower || upper) && !wire->stream[0])
        return pd_error_set(error, PD_EINVAL, "BAD_RANGE",
                            "first_seq and last_seq need a stream: numbers count per stream");
    rule->first_seq = lower ? wire->first_seq : 0;
    rule->last_seq = upper ? wire->last_seq : UINT64_MAX;
    rule->by_group = wire->group.len > 0;
    rule->group = rule->by_group ? XXH3_64bits(wire->group.data, wire->group.len) : 0;
    rule->by_key = wire->key.len > 0;
    rule->key = rule->by_key ? XXH3_64bits(wire->key.data, wire->key.len) : 0;
    rule->version_below = wire->version_below;
    return 0;
}

static void skip_samples(struct pd_call *call, grpc_byte_buffer *buffer)
{
    struct pd_error error;

    if (!pd_unary_decode(call, &packd__v1__skip_samples_request__descriptor, buffer))
        return;
    const struct pd_unary *unary = pd_unary_of(call);
    const Packd__V1__SkipSamplesRequest *wire = (const void *)unary->request;
    struct pd_ask *ask =
        pd_unary_ask(call, PD_REQUEST_SKIP_SAMPLES, on_samples_skipped, wire->feed, NULL);
    if (!ask)
        return;
    struct pd_request_skip_samples *request = &ask->of.skip_samples;
    memcpy(request->feed, unary->feed, sizeof(request->feed));
    if (fill_names(request, wire, &error) != 0 || fill_rule(&request->rule, wire, &error) != 0) {
        pd_call_fail(call, &error);
        pd_ask_free(ask);
    } else if (!copy_why(call, request->why, wire->why)) {
        pd_ask_free(ask);
    } else {
        pd_unary_submit(ask);
    }
}

/* ---- DeleteJob, DeleteStream, DeleteFeed ---- */

static void on_deleted(struct pd_ask *ask)
{
    Packd__V1__DeleteResponse response = PACKD__V1__DELETE_RESPONSE__INIT;

    if (!pd_unary_answered(ask))
        return;
    response.record = ask->of.base.record;
    pd_call_reply(ask->call, &response.base);
    pd_ask_free(ask);
}

static void delete_job(struct pd_call *call, grpc_byte_buffer *buffer)
{
    if (!pd_unary_decode(call, &packd__v1__delete_job_request__descriptor, buffer))
        return;
    const struct pd_unary *unary = pd_unary_of(call);
    const Packd__V1__DeleteJobRequest *wire = (const void *)unary->request;
    struct pd_ask *ask =
        pd_unary_ask(call, PD_REQUEST_DELETE_JOB, on_deleted, wire->feed, wire->job);
    if (!ask)
        return;
    memcpy(ask->of.delete_job.feed, unary->feed, sizeof(unary->feed));
    memcpy(ask->of.delete_job.job, unary->job, sizeof(unary->job));
    ask->of.delete_job.force = wire->force;
    pd_unary_submit(ask);
}

static void delete_stream(struct pd_call *call, grpc_byte_buffer *buffer)
{
    struct pd_error error;

    if (!pd_unary_decode(call, &packd__v1__delete_stream_request__descriptor, buffer))
        return;
    const struct pd_unary *unary = pd_unary_of(call);
    const Packd__V1__DeleteStreamRequest *wire = (const void *)unary->request;
    struct pd_ask *ask = pd_unary_ask(call, PD_REQUEST_DELETE_STREAM, on_deleted, wire->feed, NULL);
    if (!ask)
        return;
    struct pd_request_delete_stream *request = &ask->of.delete_stream;
    if (pd_name_copy(request->stream, "stream", wire->stream, &error) != 0) {
        pd_call_fail(call, &error);
        pd_ask_free(ask);
        return;
    }
    memcpy(request->feed, unary->feed, sizeof(request->feed));
    request->force = wire->force;
    pd_unary_submit(ask);
}

static void delete_feed(struct pd_call *call, grpc_byte_buffer *buffer)
{
    if (!pd_unary_decode(call, &packd__v1__delete_feed_request__descriptor, buffer))
        return;
    const struct pd_unary *unary = pd_unary_of(call);
    const Packd__V1__DeleteFeedRequest *wire = (const void *)unary->request;
    struct pd_ask *ask = pd_unary_ask(call, PD_REQUEST_DELETE_FEED, on_deleted, wire->feed, NULL);
    if (!ask)
        return;
    memcpy(ask->of.delete_feed.feed, unary->feed, sizeof(unary->feed));
    ask->of.delete_feed.force = wire->force;
    pd_unary_submit(ask);
}

const struct pd_method pd_methods_control[] = {
    PD_UNARY("/packd.v1.Admin/SkipSteps", skip_steps),
    PD_UNARY("/packd.v1.Admin/SetMixture", set_mixture),
    PD_UNARY("/packd.v1.Admin/SkipSamples", skip_samples),
    PD_UNARY("/packd.v1.Admin/DeleteJob", delete_job),
    PD_UNARY("/packd.v1.Admin/DeleteStream", delete_stream),
    PD_UNARY("/packd.v1.Admin/DeleteFeed", delete_feed),
    {0},
};
