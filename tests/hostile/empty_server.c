/* A gRPC server in which nothing happens: every call is answered with an empty message and OK, with
 * packd's threads and channel arguments. What a flood does to it is the library's part of what the
 * same flood does to packd.
 *
 *   empty_server     prints the address it has bound, and ends by a signal
 *
 * A call is freed when both its answer and its close are told. */
#include "base/check.h"
#include "tests/bench/core_server.h"

#include <unistd.h>

struct call {
    struct core_call base;
    struct core_tag answered, closed;
    int cancelled, open; /* open: tags to come */
};

static void on_told(void *op_of, bool ok)
{
    struct call *call = op_of;
    (void)ok;
    if (--call->open == 0)
        core_call_free(&call->base);
}

static void on_call(void *accepted)
{
    struct call *call = accepted;
    grpc_slice nothing = grpc_empty_slice();
    grpc_byte_buffer *message = grpc_raw_byte_buffer_create(&nothing, 1);
    grpc_op close = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                     .data.recv_close_on_server.cancelled = &call->cancelled};
    grpc_op answer[] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = message},
        {.op = GRPC_OP_SEND_STATUS_FROM_SERVER,
         .data.send_status_from_server.status = GRPC_STATUS_OK},
    };
    grpc_call *core = call->base.call;
    call->answered = call->closed = (struct core_tag){on_told, call};
    call->open = 2;
    PD_CHECK(grpc_call_start_batch(core, &close, 1, &call->closed, NULL) == GRPC_CALL_OK);
    PD_CHECK(grpc_call_start_batch(core, answer, 3, &call->answered, NULL) == GRPC_CALL_OK);
    grpc_byte_buffer_destroy(message);
}

int main(void)
{
    core_server_start("127.0.0.1:0", sizeof(struct call), on_call);
    for (;;)
        pause();
}
