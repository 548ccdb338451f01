/* The Admin calls that write: Flush, EndFeed and Drain; and SelfTest.
 *
 * Place in the flow: between operators and the sequencer (SelfTest: the validate thread); each is
 * one request and its answer.
 * Owning thread: the call's. */
#include "server/rpc/unary.h"

#include "server/validate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void copy_feed(char to[PD_NAME_MAX + 1], const struct pd_call *call)
{
    const struct pd_unary *unary = PD_CONTAINER_OF(call, struct pd_unary, call);

    memcpy(to, unary->feed, PD_NAME_MAX + 1);
}

/* ---- Flush ---- */

static void on_flushed(struct pd_ask *ask)
{
    Packd__V1__FlushResponse response = PACKD__V1__FLUSH_RESPONSE__INIT;

    if (!pd_unary_answered(ask))
        return;
    response.record = ask->of.base.record;
    response.effective_pack = ask->of.base.effective_pack;
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
    struct pd_ask *ask = pd_unary_ask(call, PD_REQUEST_FLUSH, on_flushed, wire->feed, NULL);
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
    response.record = ask->of.base.record;
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

/* ---- SelfTest ---- */

/* What the validate thread works on, as the ask's context. The ask carries no request: it is here
 * for its tag and its reference to the call. */
struct selftest {
    struct pd_selftest_order order;
    struct pd_ask *ask;
};

static void on_selftest(struct pd_selftest_order *order)
{
    struct pd_ask *ask = PD_CONTAINER_OF(order, struct selftest, order)->ask;

    pd_call_post(ask->call, &ask->tag);
}

/* The self-test stops at its first failure, whose text begins with the name of its part. */
static void fill_case(Packd__V1__SelfTestCase *out, const char *name, uint32_t done, uint32_t good,
                      const char *failure, char text[64])
{
    packd__v1__self_test_case__init(out);
    out->name = (char *)name;
    out->passed = done > 0 && done == good && strncmp(failure, name, strlen(name)) != 0;
    (void)snprintf(text, 64, "%u of %u", good, done);
    out->text = text;
}

static void on_tested(struct pd_ask *ask)
{
    const struct pd_selftest_order *order = &((struct selftest *)ask->context)->order;
    const struct pd_selftest_report *report = &order->report;
    Packd__V1__SelfTestResponse response = PACKD__V1__SELF_TEST_RESPONSE__INIT;
    Packd__V1__SelfTestCase cases[4], *list[4] = {&cases[0], &cases[1], &cases[2], &cases[3]};
    char texts[4][64];

    fill_case(&cases[0], "dense", report->dense_cases, report->dense_cases, report->failure,
              texts[0]);
    fill_case(&cases[1], "interference", report->interference_cases, report->interference_cases,
              report->failure, texts[1]);
    fill_case(&cases[2], "faults", report->faults_planted, report->faults_found, report->failure,
              texts[2]);
    fill_case(&cases[3], "clean", report->clean_batches,
              report->clean_batches - report->false_alarms, report->failure, texts[3]);
    cases[0].micros = (uint64_t)(report->dense_seconds * 1e6);
    cases[1].micros = (uint64_t)(report->interference_seconds * 1e6);
    cases[2].micros = (uint64_t)(report->faults_seconds * 1e6);
    cases[3].micros = (uint64_t)(report->clean_seconds * 1e6);
    response.passed = order->result == 0;
    response.backend = (char *)report->backend;
    response.device = (char *)order->device;
    response.cases = list;
    response.n_cases = PD_COUNT_OF(list);
    if (!pd_call_is_over(ask->call))
        pd_call_reply(ask->call, &response.base);
    free(ask->context);
    pd_ask_free(ask);
}

/* On the backend in use; another one would need its own buffers beside it. */
static void self_test(struct pd_call *call, grpc_byte_buffer *buffer)
{
    struct pd_validation *validation = call->thread->rpc->options.validation;
    struct pd_validation_info info;
    struct pd_error error = {0};

    if (!pd_unary_decode(call, &packd__v1__self_test_request__descriptor, buffer))
        return;
    const Packd__V1__SelfTestRequest *wire = (const void *)pd_unary_of(call)->request;
    pd_validation_info(validation, &info);
    if (wire->backend[0] && strcmp(wire->backend, info.backend) != 0) {
        (void)pd_call_fail_with(
            call, PD_EUNSUPPORTED, "UNSUPPORTED",
            "the backend in use is %s; packctl selftest --backend tests another", info.backend);
        return;
    }
    struct selftest *test = calloc(1, sizeof(*test));
    struct pd_ask *ask = test ? pd_ask_new(call, PD_REQUEST_FLUSH, on_tested) : NULL;
    int rc = ask ? 0 : PD_ENOMEM;
    if (!test)
        (void)pd_call_fail_with(call, PD_ENOMEM, "NO_MEMORY", "no memory for a self-test");
    if (rc == 0) {
        *test = (struct selftest){.order = {.done = on_selftest}, .ask = ask};
        ask->context = test;
        rc = pd_validation_selftest(validation, &test->order, &error);
        if (rc == 0)
            return;
        pd_call_fail(call, &error);
        pd_ask_free(ask);
    }
    free(test);
}

const struct pd_method pd_methods_admin[] = {
    PD_UNARY("/packd.v1.Admin/Flush", flush),
    PD_UNARY("/packd.v1.Admin/EndFeed", end_feed),
    PD_UNARY("/packd.v1.Admin/Drain", drain),
    PD_UNARY("/packd.v1.Admin/SelfTest", self_test),
    {0},
};
