/* The life of a call: operations in flight, references, the one status it ends with.
 *
 * Place in the flow: between gRPC's completion queue and the methods. Owning thread: the call's rpc
 * thread. Invariant: an operation is in flight exactly while it holds a reference; nothing of the
 * call is freed before gRPC has given all its tags back. It knows no method.
 *
 * The order that gRPC leaves open is fixed here: a status decided while a write is in flight is
 * sent when the write is done, so what was written before arrives before. RECV_CLOSE has a batch of
 * its own, since it always succeeds and would make its batch-mates look so too. */
#include "server/rpc/call.h"

#include "base/check.h"
#include "base/log.h"
#include "server/metrics.h"

#include <grpc/support/alloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_KEY "packd-error-bin"
#define FULL_RETRY_MS 1000 /* what is full drains no sooner than steps are trained on */

static struct pd_call *call_of(void *pointer)
{
    struct pd_call *call = pointer;

    PD_MAGIC_CHECK(call, PD_CALL_MAGIC);
    return call;
}

static grpc_status_code status_of(int code)
{
    switch (code) {
#define X(name, value, text, status) \
    case value:                      \
        return GRPC_STATUS_##status;
        PD_ERRORS(X)
#undef X
    }
    return GRPC_STATUS_UNKNOWN;
}

/* ---- references ---- */

static void count_end(const struct pd_call *call)
{
    grpc_status_code status = call->finishing ? call->status : GRPC_STATUS_CANCELLED;

    pd_metric_call_ended(call->method->path, (unsigned)status,
                         pd_clock_mono_ns() - call->started_ns);
}

static void count_open(struct pd_rpc *rpc, const struct pd_call *call, int amount)
{
    atomic_fetch_add(&rpc->calls_open[call->door], (unsigned)amount);
    if (call->method->anyone)
        atomic_fetch_add(&rpc->anyone_open[call->door], (unsigned)amount);
}

void pd_call_unref(struct pd_call *call)
{
    struct pd_rpc *rpc = call->thread->rpc;

    PD_CHECK(call->refs > 0);
    if (--call->refs > 0)
        return;
    count_end(call);
    if (call->method->fini)
        call->method->fini(call);
    pd_list_remove(&call->link);
    grpc_slice_unref(call->status_text);
    if (call->trailing_count > 0)
        grpc_slice_unref(call->trailing.value);
    grpc_call_unref(call->call);
    pd_peers_leave(rpc->peers, call->peer_slot);
    count_open(rpc, call, -1);
    call->magic = 0;
    free(call);
    pd_rpc_live_add(rpc, -1);
}

void pd_call_post(struct pd_call *call, struct pd_tag *tag)
{
    /* An empty batch completes at once with its tag: a doorbell and a mailbox in one. */
    grpc_call_error rc = grpc_call_start_batch(call->call, NULL, 0, tag, NULL);

    PD_CHECK(rc == GRPC_CALL_OK);
}

/* Starts a batch that holds a reference. */
static void start_batch(struct pd_call *call, const grpc_op *ops, size_t count, struct pd_tag *tag)
{
    call->refs++;
    grpc_call_error rc = grpc_call_start_batch(call->call, ops, count, tag, NULL);
    PD_CHECK(rc == GRPC_CALL_OK);
}

/* ---- reading ---- */

static void on_read(struct pd_tag *tag, bool ok)
{
    struct pd_call *call = call_of(PD_CONTAINER_OF(tag, struct pd_call, on_read));
    grpc_byte_buffer *buffer = call->incoming;

    call->reading = false;
    call->incoming = NULL;
    if (buffer && (!ok || pd_call_is_over(call))) {
        grpc_byte_buffer_destroy(buffer);
    } else if (buffer) {
        call->heard = true;
        call->method->message(call, buffer);
        if (!call->method->unary)
            pd_call_read(call);
    } else if (!pd_call_is_over(call) && !grpc_call_failed_before_recv_message(call->call)) {
        if (call->method->unary)
            (void)pd_call_fail_with(call, PD_EINVAL, "MALFORMED",
                                    "the call ended without a request");
        else if (call->method->half_close)
            call->method->half_close(call);
    }
    pd_call_unref(call);
}

void pd_call_read(struct pd_call *call)
{
    if (call->reading || call->hold_reads || pd_call_is_over(call))
        return;
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &call->incoming;
    call->reading = true;
    start_batch(call, &op, 1, &call->on_read);
}

/* ---- writing and ending ---- */

static size_t put_headers(struct pd_call *call, grpc_op *ops)
{
    if (call->headers_sent)
        return 0;
    call->headers_sent = true;
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    return 1;
}

static size_t put_status(struct pd_call *call, grpc_op *ops)
{
    call->status_sent = true;
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    ops[0].data.send_status_from_server.status = call->status;
    ops[0].data.send_status_from_server.status_details = &call->status_text;
    ops[0].data.send_status_from_server.trailing_metadata_count = call->trailing_count;
    ops[0].data.send_status_from_server.trailing_metadata = &call->trailing;
    return 1;
}

static void send_status(struct pd_call *call)
{
    grpc_op ops[2];

    if (call->status_sent || call->closed || call->writing)
        return;
    size_t count = put_headers(call, ops);
    count += put_status(call, ops + count);
    start_batch(call, ops, count, &call->on_status);
}

static void on_status(struct pd_tag *tag, bool ok)
{
    (void)ok;
    pd_call_unref(call_of(PD_CONTAINER_OF(tag, struct pd_call, on_status)));
}

static void on_write(struct pd_tag *tag, bool ok)
{
    struct pd_call *call = call_of(PD_CONTAINER_OF(tag, struct pd_call, on_write));

    call->writing = false;
    if (call->finishing)
        send_status(call);
    else if (ok && !call->closed && call->method->written)
        call->method->written(call);
    pd_call_unref(call);
}

bool pd_call_write(struct pd_call *call, grpc_byte_buffer *buffer)
{
    if (pd_call_is_over(call)) {
        grpc_byte_buffer_destroy(buffer);
        return false;
    }
    PD_CHECK(!call->writing);
    grpc_op ops[2];
    size_t count = put_headers(call, ops);
    ops[count] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
    ops[count].data.send_message.send_message = buffer;
    call->writing = true;
    call->write_since_ns = pd_rpc_patience_ns(call->thread);
    start_batch(call, ops, count + 1, &call->on_write);
    grpc_byte_buffer_destroy(buffer); /* the batch has its own references to the slices */
    return true;
}

bool pd_call_send(struct pd_call *call, const ProtobufCMessage *message)
{
    return pd_call_write(call, pd_message_pack(message));
}

/* What a finished or closed call no longer waits for. */
static void let_go(struct pd_call *call)
{
    if (call->method->closed)
        call->method->closed(call);
}

void pd_call_finish(struct pd_call *call)
{
    if (pd_call_is_over(call))
        return;
    call->finishing = true;
    call->status = GRPC_STATUS_OK;
    let_go(call);
    send_status(call);
}

void pd_call_reply(struct pd_call *call, const ProtobufCMessage *message)
{
    if (!pd_call_is_over(call) && pd_call_send(call, message))
        pd_call_finish(call);
}

static void put_detail(struct pd_call *call, Packd__V1__ErrorDetail *detail)
{
    size_t size = packd__v1__error_detail__get_packed_size(detail);
    grpc_slice value = grpc_slice_malloc(size);

    (void)packd__v1__error_detail__pack(detail, GRPC_SLICE_START_PTR(value));
    call->trailing =
        (grpc_metadata){.key = grpc_slice_from_static_string(ERROR_KEY), .value = value};
    call->trailing_count = 1;
}

void pd_call_fail_detail(struct pd_call *call, const struct pd_error *error,
                         Packd__V1__ErrorDetail *detail)
{
    if (pd_call_is_over(call))
        return;
    if (error->code == PD_EFULL && detail->retry_after_ms == 0)
        detail->retry_after_ms = FULL_RETRY_MS;
    detail->reason = (char *)error->reason;
    detail->text = (char *)error->text;
    detail->log_id = (char *)pd_log_id(call->thread->rpc->options.log);
    detail->incarnation = call->thread->rpc->incarnation;
    put_detail(call, detail);
    call->finishing = true;
    call->status = status_of(error->code);
    call->status_text = grpc_slice_from_copied_string(error->text);
    if (call->status == GRPC_STATUS_INTERNAL || call->status == GRPC_STATUS_DATA_LOSS)
        pd_log(PD_LOG_ERROR, "call_failed", "method=%s reason=%s text=\"%s\"", call->method->path,
               error->reason, error->text);
    let_go(call);
    send_status(call);
}

void pd_call_fail(struct pd_call *call, const struct pd_error *error)
{
    Packd__V1__ErrorDetail detail = PACKD__V1__ERROR_DETAIL__INIT;

    detail.seq = detail.step = detail.lowest_step = -1;
    pd_call_fail_detail(call, error, &detail);
}

int pd_call_fail_with(struct pd_call *call, int code, const char *reason, const char *format, ...)
{
    struct pd_error error = {0};
    char text[PD_TEXT_MAX];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    (void)pd_error_set(&error, code, reason, "%s", text);
    pd_call_fail(call, &error);
    return code;
}

void pd_call_fail_draining(struct pd_call *call)
{
    Packd__V1__ErrorDetail detail = PACKD__V1__ERROR_DETAIL__INIT;
    struct pd_error error = {0};

    detail.seq = detail.step = detail.lowest_step = -1;
    detail.retry_after_ms = 1000;
    (void)pd_error_set(&error, PD_EUNAVAIL, "DRAINING",
                       "the server is going down: try again later, or elsewhere");
    pd_call_fail_detail(call, &error, &detail);
}

/* ---- beginning and close ---- */

static void on_close(struct pd_tag *tag, bool ok)
{
    struct pd_call *call = call_of(PD_CONTAINER_OF(tag, struct pd_call, on_close));
    bool told = call->finishing;

    (void)ok;
    call->closed = true;
    if (!told)
        let_go(call);
    pd_call_unref(call); /* of the batch */
    pd_call_unref(call); /* the one of "not closed" */
}

static void post_close(struct pd_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};

    op.data.recv_close_on_server.cancelled = &call->cancelled;
    start_batch(call, &op, 1, &call->on_close);
}

static struct pd_call *make_call(struct pd_rpc_thread *thread, enum pd_door door, grpc_call *grpc,
                                 const struct pd_method *method)
{
    PD_CHECK(method->call_bytes >= sizeof(struct pd_call));
    struct pd_call *call = calloc(1, method->call_bytes);

    if (!call) {
        (void)grpc_call_cancel_with_status(grpc, GRPC_STATUS_RESOURCE_EXHAUSTED, "out of memory",
                                           NULL);
        grpc_call_unref(grpc);
        return NULL;
    }
    call->magic = PD_CALL_MAGIC;
    call->peer_slot = PD_NO_PEER;
    call->refs = 1;
    call->thread = thread;
    call->method = method;
    call->door = door;
    call->call = grpc;
    call->on_read.done = on_read;
    call->on_write.done = on_write;
    call->on_status.done = on_status;
    call->on_close.done = on_close;
    call->status_text = grpc_empty_slice();
    pd_list_push(&thread->calls, &call->link);
    pd_rpc_live_add(thread->rpc, 1);
    count_open(thread->rpc, call, 1);
    call->started_ns = pd_clock_mono_ns();
    call->open_since_ns = pd_rpc_patience_ns(thread);
    pd_metric_call_started(method->path);
    post_close(call);
    return call;
}

void pd_call_accept(struct pd_rpc_thread *thread, enum pd_door door, grpc_call *grpc,
                    const struct pd_method *method, const struct pd_principal_config *who,
                    uint32_t peer_slot)
{
    struct pd_call *call = make_call(thread, door, grpc, method);

    if (!call) {
        pd_peers_leave(thread->rpc->peers, peer_slot);
        return;
    }
    call->who = who;
    call->peer_slot = peer_slot;
    if (method->start)
        method->start(call);
    pd_call_read(call);
}

void pd_call_refuse(struct pd_rpc_thread *thread, enum pd_door door, grpc_call *grpc,
                    const struct pd_error *error)
{
    struct pd_call *call = make_call(thread, door, grpc, &pd_method_refused);

    if (call)
        pd_call_fail(call, error);
}

bool pd_call_may_use(struct pd_call *call, const char *feed)
{
    struct pd_error error;

    if (pd_access_feed(call->who, feed, &error) == 0)
        return true;
    pd_call_fail(call, &error);
    return false;
}
