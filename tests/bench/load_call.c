/* A bidirectional call of gRPC C core as one thread uses it: at most one read and one write under
 * way, and a wait for either. Also the count of what has arrived. It knows no protocol. */
#include "tests/bench/load.h"

#include "base/check.h"
#include "base/clock.h"
#include "tests/bench/pipe.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TAG_BEGUN = 1, TAG_INITIAL, TAG_STATUS, TAG_READ, TAG_WRITTEN };

static void start_op(struct load_call *call, grpc_op op, intptr_t tag)
{
    PD_CHECK(grpc_call_start_batch(call->call, &op, 1, (void *)tag, NULL) == GRPC_CALL_OK);
}

static grpc_channel *connect_to(const char *address)
{
    grpc_arg args[] = {PIPE_ARGS, pipe_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1)};
    grpc_channel_args list = {.num_args = PD_COUNT_OF(args), .args = args};
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create(address, credentials, &list);
    grpc_channel_credentials_release(credentials);
    return channel;
}

static void begin(struct load_call *call, const char *address, const char *method)
{
    *call = (struct load_call){.channel = connect_to(address),
                               .cq = grpc_completion_queue_create_for_next(NULL)};
    call->call = grpc_channel_create_call(call->channel, NULL, 0, call->cq,
                                          grpc_slice_from_static_string(method), NULL,
                                          gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    start_op(call,
             (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA,
                       .flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY},
             TAG_BEGUN);
    start_op(call,
             (grpc_op){.op = GRPC_OP_RECV_INITIAL_METADATA,
                       .data.recv_initial_metadata.recv_initial_metadata = &call->initial},
             TAG_INITIAL);
}

void load_call_open(struct load_call *call, const char *address, const char *method)
{
    begin(call, address, method);
    start_op(call,
             (grpc_op){.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                       .data.recv_status_on_client = {.trailing_metadata = &call->trailing,
                                                      .status = &call->status,
                                                      .status_details = &call->details}},
             TAG_STATUS);
}

void load_call_write(struct load_call *call, grpc_slice *slices, size_t count)
{
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(slices, count);
    for (size_t i = 0; i < count; i++)
        grpc_slice_unref(slices[i]);
    PD_CHECK(!call->writing);
    call->writing = true;
    start_op(call, (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = buffer},
             TAG_WRITTEN);
    grpc_byte_buffer_destroy(buffer);
}

void load_call_read(struct load_call *call)
{
    if (call->reading || call->over)
        return;
    call->reading = true;
    start_op(
        call,
        (grpc_op){.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &call->received},
        TAG_READ);
}

/* All of a small message; of a large one only the first slice, which is enough to see its kind, and
 * its whole length in *bytes. */
static grpc_slice flatten(grpc_byte_buffer *buffer)
{
    grpc_byte_buffer_reader reader;
    PD_CHECK(grpc_byte_buffer_reader_init(&reader, buffer));
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    grpc_byte_buffer_destroy(buffer);
    return all;
}

bool load_call_wait(struct load_call *call, grpc_slice *message)
{
    *message = grpc_empty_slice();
    for (;;) {
        gpr_timespec until =
            gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(100, GPR_TIMESPAN));
        grpc_event event = grpc_completion_queue_next(call->cq, until, NULL);
        if (event.type != GRPC_OP_COMPLETE)
            return false;
        switch ((intptr_t)event.tag) {
        case TAG_WRITTEN:
            call->writing = false;
            return true;
        case TAG_READ:
            call->reading = false;
            if (!call->received)
                continue; /* the status follows */
            *message = flatten(call->received);
            call->received = NULL;
            return true;
        case TAG_STATUS:
            call->over = true;
            if (call->status != GRPC_STATUS_OK && call->status != GRPC_STATUS_CANCELLED) {
                char *text = grpc_slice_to_c_string(call->details);
                fprintf(stderr, "load: a call ended with %d: %s\n", (int)call->status, text);
                exit(1);
            }
            return true;
        default:
            continue;
        }
    }
}

void load_call_close(struct load_call *call)
{
    grpc_slice message;
    (void)grpc_call_cancel(call->call, NULL);
    while (!call->over || call->reading || call->writing) {
        (void)load_call_wait(call, &message);
        grpc_slice_unref(message);
    }
    grpc_call_unref(call->call);
    grpc_channel_destroy(call->channel);
}

grpc_slice load_unary(const char *address, const char *method, grpc_slice request)
{
    struct load_call call;
    grpc_slice reply = grpc_empty_slice(), message;
    load_call_open(&call, address, method);
    load_call_write(&call, &request, 1);
    start_op(&call, (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT}, TAG_BEGUN);
    load_call_read(&call);
    while (!call.over || call.reading) {
        if (load_call_wait(&call, &message) && GRPC_SLICE_LENGTH(message) > 0)
            reply = grpc_slice_ref(message);
        grpc_slice_unref(message);
    }
    grpc_call_unref(call.call);
    grpc_channel_destroy(call.channel);
    return reply;
}

/* ---- what has arrived ---- */

bool load_took(struct load_stream *stream, uint64_t bytes)
{
    stream->taken_bytes += bytes;
    stream->batches++;
    if (stream->latency_wanted > 0) {
        stream->latencies_ns[stream->latency_count++] = pd_clock_mono_ns() - stream->asked_ns;
        return stream->latency_count == stream->latency_wanted;
    }
    atomic_fetch_add(&stream->load->taken_bytes, bytes);
    atomic_fetch_add(&stream->load->batches, 1);
    return false;
}

void load_ask(struct load_stream *stream)
{
    if (stream->latency_wanted == 0)
        return;
    struct timespec pause = {.tv_nsec = LOAD_PAUSE_NS};
    nanosleep(&pause, NULL);
    stream->asked_ns = pd_clock_mono_ns();
}
