/* `load`'s side of the bare pipe (pipe.h). A producer keeps its window full; a rank takes every
 * record that is its own. */
#include "tests/bench/load.h"
#include "tests/bench/pipe.h"

#include "base/check.h"

#include <string.h>

static void pipe_open(struct load *load)
{
    (void)load;
}

static void *pipe_push(void *arg)
{
    struct load_stream *stream = arg;
    const struct load *load = stream->load;
    struct load_call *call = &stream->call;
    uint64_t sent = 0, acked = 0;
    grpc_slice message;
    load_call_open(call, load->address, PIPE_IN);
    while (acked < load->messages) {
        load_call_read(call);
        if (!call->writing && sent < load->messages &&
            (sent + 1 - acked) * load->body.size <= LOAD_WINDOW_BYTES) {
            grpc_slice body = grpc_slice_from_static_buffer(load->body.bytes, load->body.size);
            load_call_write(call, &body, 1);
            sent++;
        }
        if (load_call_wait(call, &message) && GRPC_SLICE_LENGTH(message) == 8)
            memcpy(&acked, GRPC_SLICE_START_PTR(message), 8);
        grpc_slice_unref(message);
        PD_CHECK(!call->over);
    }
    load_call_close(call);
    return NULL;
}

static void pipe_greet(struct load_stream *stream)
{
    grpc_slice record = grpc_slice_from_static_string("hello");
    load_call_open(&stream->call, stream->load->address, PIPE_IN);
    load_call_write(&stream->call, &record, 1);
}

static void ask(struct load_call *call, uint64_t *credit)
{
    if (call->writing || *credit == 0)
        return;
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)credit, 8);
    *credit = 0;
    load_call_write(call, &slice, 1);
}

static void begin(struct load_stream *stream)
{
    bool probe = stream->latency_wanted > 0;
    uint32_t open[4] = {stream->number % stream->load->ranks, probe ? 1 : stream->load->ranks,
                        probe ? 1 : LOAD_CREDIT, 0};
    load_call_open(&stream->call, stream->load->address, PIPE_OUT);
    load_ask(stream);
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)open, sizeof open);
    load_call_write(&stream->call, &slice, 1);
}

static void *pipe_take(void *arg)
{
    struct load_stream *stream = arg;
    struct load *load = stream->load;
    struct load_call *call = &stream->call;
    uint64_t credit = 0;
    grpc_slice message;
    bool enough = false;
    begin(stream);
    while (!enough && (stream->latency_wanted > 0 ||
                       atomic_load(&load->taken_bytes) < load->bytes * load->jobs)) {
        load_call_read(call);
        ask(call, &credit);
        if (load_call_wait(call, &message) && GRPC_SLICE_LENGTH(message) > 0) {
            enough = load_took(stream, GRPC_SLICE_LENGTH(message));
            load_ask(stream);
            credit++;
        }
        grpc_slice_unref(message);
        PD_CHECK(!call->over);
    }
    load_call_close(call);
    return NULL;
}

const struct load_protocol load_pipe = {pipe_open, pipe_push, pipe_take, pipe_open, pipe_greet};
