/* One bidirectional call, driven by one thread through a completion queue of its own.
 *
 * At most one read and one write are in flight. The tags are the enum below: one call per queue, so
 * a number says everything. Invariant: `ops` counts what the queue still owes; the call is freed
 * when it owes nothing. The bell is an empty batch, which completes at once; `bell_pending` keeps
 * it to one. */
#include "client/lib_rpc_priv.h"

#include "base/check.h"
#include "client/lib_error.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum tag {
    TAG_SEND_METADATA = 1,
    TAG_RECV_METADATA,
    TAG_READ,
    TAG_WRITE,
    TAG_CLOSE,
    TAG_STATUS,
    TAG_BELL
};

struct pd_message {
    grpc_byte_buffer *buffer;
    grpc_byte_buffer_reader reader;
    grpc_slice current;
};

struct pd_stream {
    struct pd_channel *channel;
    const char *method; /* static */
    grpc_completion_queue *queue;
    grpc_call *call;
    struct pd_rpc_status status;
    grpc_byte_buffer *incoming;
    unsigned ops; /* in flight, the bell left out */
    bool reading, writing, finished;
    atomic_bool bell_pending;
};

/* ---- messages -------------------------------------------------------------------------------- */

static struct pd_message *message_of(grpc_byte_buffer *buffer)
{
    struct pd_message *message = calloc(1, sizeof *message);
    if (message && grpc_byte_buffer_reader_init(&message->reader, buffer)) {
        message->buffer = buffer;
        message->current = grpc_empty_slice();
        return message;
    }
    free(message);
    grpc_byte_buffer_destroy(buffer);
    return NULL;
}

size_t pd_message_bytes(const struct pd_message *message)
{
    return grpc_byte_buffer_length(message->buffer);
}

bool pd_message_next(struct pd_message *message, const uint8_t **data, size_t *bytes)
{
    grpc_slice_unref(message->current);
    message->current = grpc_empty_slice();
    if (!grpc_byte_buffer_reader_next(&message->reader, &message->current))
        return false;
    *data = GRPC_SLICE_START_PTR(message->current);
    *bytes = GRPC_SLICE_LENGTH(message->current);
    return true;
}

void pd_message_free(struct pd_message *message)
{
    if (!message)
        return;
    grpc_slice_unref(message->current);
    grpc_byte_buffer_reader_destroy(&message->reader);
    grpc_byte_buffer_destroy(message->buffer);
    free(message);
}

/* ---- the call -------------------------------------------------------------------------------- */

static void start(struct pd_stream *stream, const grpc_op *op, enum tag tag)
{
    grpc_call_error rc =
        grpc_call_start_batch(stream->call, op, op ? 1 : 0, (void *)(intptr_t)tag, NULL);
    PD_CHECK(rc == GRPC_CALL_OK);
    if (tag != TAG_BELL)
        stream->ops++;
}

static void start_metadata(struct pd_stream *stream)
{
    grpc_metadata metadata[1];
    grpc_op op = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    op.data.send_initial_metadata.count = pd_rpc_metadata(stream->channel, metadata);
    op.data.send_initial_metadata.metadata = metadata;
    start(stream, &op, TAG_SEND_METADATA);
    if (op.data.send_initial_metadata.count > 0)
        grpc_slice_unref(metadata[0].value);
    op = (grpc_op){.op = GRPC_OP_RECV_INITIAL_METADATA};
    op.data.recv_initial_metadata.recv_initial_metadata = &stream->status.initial;
    start(stream, &op, TAG_RECV_METADATA);
}

int pd_stream_open(struct pd_channel *channel, const char *method, struct pd_stream **out,
                   struct packd_error *error)
{
    struct pd_stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory for a call to packd at %s",
                               channel->server);
    stream->channel = channel;
    stream->method = method;
    stream->queue = grpc_completion_queue_create_for_next(NULL);
    stream->call =
        pd_rpc_call_new(channel, stream->queue, method, gpr_inf_future(GPR_CLOCK_REALTIME));
    pd_rpc_status_init(&stream->status);
    start_metadata(stream);
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    op.data.recv_status_on_client.trailing_metadata = &stream->status.trailing;
    op.data.recv_status_on_client.status = &stream->status.code;
    op.data.recv_status_on_client.status_details = &stream->status.details;
    start(stream, &op, TAG_STATUS);
    *out = stream;
    return 0;
}

void pd_stream_read(struct pd_stream *stream)
{
    PD_CHECK(!stream->reading);
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &stream->incoming;
    stream->reading = true;
    start(stream, &op, TAG_READ);
}

bool pd_stream_reading(const struct pd_stream *stream)
{
    return stream->reading;
}

static grpc_slice slice_of(const struct pd_rpc_part *part)
{
    if (!part->release)
        return grpc_slice_from_copied_buffer(part->data, part->bytes);
    return grpc_slice_new_with_user_data((void *)(uintptr_t)part->data, part->bytes, part->release,
                                         part->owner);
}

void pd_stream_write(struct pd_stream *stream, const struct pd_rpc_part *parts, size_t count)
{
    PD_CHECK(!stream->writing && count <= PD_RPC_PARTS_MAX);
    grpc_slice slices[PD_RPC_PARTS_MAX];
    for (size_t i = 0; i < count; i++)
        slices[i] = slice_of(&parts[i]);
    grpc_byte_buffer *message = grpc_raw_byte_buffer_create(slices, count);
    for (size_t i = 0; i < count; i++)
        grpc_slice_unref(slices[i]);
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};
    op.data.send_message.send_message = message;
    stream->writing = true;
    start(stream, &op, TAG_WRITE);
    grpc_byte_buffer_destroy(message);
}

bool pd_stream_writing(const struct pd_stream *stream)
{
    return stream->writing;
}

void pd_stream_half_close(struct pd_stream *stream)
{
    PD_CHECK(!stream->writing);
    grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    start(stream, &op, TAG_CLOSE);
}

void pd_stream_cancel(struct pd_stream *stream)
{
    grpc_call_cancel(stream->call, NULL);
}

void pd_stream_ring(struct pd_stream *stream)
{
    if (!atomic_exchange(&stream->bell_pending, true))
        start(stream, NULL, TAG_BELL);
}

/* What a completed operation means; TIMEOUT stands for: nothing the caller has to know. */
static enum pd_stream_event completed(struct pd_stream *stream, enum tag tag, bool ok,
                                      struct pd_message **message)
{
    switch (tag) {
    case TAG_BELL:
        atomic_store(&stream->bell_pending, false);
        return PD_STREAM_BELL;
    case TAG_WRITE:
        stream->writing = false;
        return ok ? PD_STREAM_WRITTEN : PD_STREAM_TIMEOUT;
    case TAG_READ:
        stream->reading = false;
        if (!ok || !stream->incoming)
            return PD_STREAM_TIMEOUT;
        *message = message_of(stream->incoming);
        stream->incoming = NULL;
        if (*message)
            return PD_STREAM_MESSAGE;
        pd_stream_cancel(stream); /* out of memory: what came is lost, so the call is */
        return PD_STREAM_TIMEOUT;
    case TAG_STATUS:
        stream->finished = true;
        return PD_STREAM_TIMEOUT;
    default:
        return PD_STREAM_TIMEOUT;
    }
}

enum pd_stream_event pd_stream_wait(struct pd_stream *stream, uint64_t deadline_ns,
                                    struct pd_message **message)
{
    for (;;) {
        /* The status may overtake a message that is being read, never one that has been. */
        if (stream->finished && !stream->reading)
            return PD_STREAM_CLOSED;
        grpc_event event =
            grpc_completion_queue_next(stream->queue, pd_rpc_time(deadline_ns), NULL);
        if (event.type != GRPC_OP_COMPLETE)
            return PD_STREAM_TIMEOUT;
        enum tag tag = (enum tag)(intptr_t)event.tag;
        if (tag != TAG_BELL)
            stream->ops--;
        enum pd_stream_event seen = completed(stream, tag, event.success, message);
        if (seen != PD_STREAM_TIMEOUT)
            return seen;
    }
}

int pd_stream_failure(struct pd_stream *stream, struct pd_rpc_failure *failure,
                      struct packd_error *error)
{
    PD_CHECK(stream->finished);
    return pd_rpc_status_error(stream->channel, stream->method, &stream->status, failure, error);
}

void pd_stream_free(struct pd_stream *stream)
{
    if (!stream)
        return;
    if (!stream->finished)
        pd_stream_cancel(stream);
    grpc_completion_queue_shutdown(stream->queue);
    grpc_event event;
    while ((event = grpc_completion_queue_next(stream->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC),
                                               NULL))
               .type != GRPC_QUEUE_SHUTDOWN)
        if ((enum tag)(intptr_t)event.tag != TAG_BELL)
            stream->ops--;
    PD_CHECK(stream->ops == 0);
    grpc_byte_buffer_destroy(stream->incoming);
    grpc_call_unref(stream->call);
    grpc_completion_queue_destroy(stream->queue);
    pd_rpc_status_fini(&stream->status);
    free(stream);
}
