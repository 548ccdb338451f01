/* A gRPC server in which nothing happens: every call is answered with an empty message and OK, by
 * two threads with a queue each and packd's channel arguments. What a flood does to it is the
 * library's part of what the same flood does to packd.
 *
 *   empty_server     prints the address it has bound, and ends by a signal
 *
 * A call is freed when both its answer and its close are told. */
#include "base/check.h"
#include "tests/bench/pipe.h"

#include <grpc/grpc_security.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define QUEUES 2
#define ACCEPTS 32

struct call;
struct tag {
    void (*done)(struct call *call, bool ok);
    struct call *call;
};

struct call {
    grpc_call *call;
    grpc_completion_queue *cq;
    grpc_call_details details;
    grpc_metadata_array metadata;
    struct tag accepted, answered, closed;
    int cancelled, open; /* open: tags to come */
};

static grpc_server *server;

static void release(struct call *call, bool ok)
{
    (void)ok;
    if (--call->open > 0)
        return;
    grpc_metadata_array_destroy(&call->metadata);
    grpc_call_details_destroy(&call->details);
    grpc_call_unref(call->call);
    free(call);
}

static void answer(struct call *call)
{
    grpc_slice nothing = grpc_empty_slice();
    grpc_byte_buffer *message = grpc_raw_byte_buffer_create(&nothing, 1);
    grpc_op close = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                     .data.recv_close_on_server.cancelled = &call->cancelled};
    grpc_op ops[] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = message},
        {.op = GRPC_OP_SEND_STATUS_FROM_SERVER,
         .data.send_status_from_server.status = GRPC_STATUS_OK},
    };
    call->open = 2;
    PD_CHECK(grpc_call_start_batch(call->call, &close, 1, &call->closed, NULL) == GRPC_CALL_OK);
    PD_CHECK(grpc_call_start_batch(call->call, ops, 3, &call->answered, NULL) == GRPC_CALL_OK);
    grpc_byte_buffer_destroy(message);
}

static void accept_one(grpc_completion_queue *cq);

static void on_accepted(struct call *call, bool ok)
{
    if (!ok)
        return;
    accept_one(call->cq);
    answer(call);
}

static void accept_one(grpc_completion_queue *cq)
{
    struct call *call = calloc(1, sizeof *call);
    PD_CHECK(call);
    call->cq = cq;
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    call->accepted = (struct tag){on_accepted, call};
    call->answered = call->closed = (struct tag){release, call};
    PD_CHECK(grpc_server_request_call(server, &call->call, &call->details, &call->metadata, cq, cq,
                                      &call->accepted) == GRPC_CALL_OK);
}

static void *serve_queue(void *cq)
{
    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        struct tag *tag = event.tag;
        if (event.type != GRPC_OP_COMPLETE)
            return NULL;
        tag->done(tag->call, event.success != 0);
    }
}

int main(void)
{
    grpc_completion_queue *queues[QUEUES];
    pthread_t threads[QUEUES];
    grpc_arg args[] = {PIPE_ARGS};
    grpc_channel_args list = {.num_args = PD_COUNT_OF(args), .args = args};
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    grpc_init();
    server = grpc_server_create(&list, NULL);
    for (int i = 0; i < QUEUES; i++) {
        queues[i] = grpc_completion_queue_create_for_next(NULL);
        grpc_server_register_completion_queue(server, queues[i], NULL);
    }
    int port = grpc_server_add_http2_port(server, "127.0.0.1:0", credentials);
    PD_CHECK(port != 0);
    grpc_server_start(server);
    for (int i = 0; i < QUEUES; i++) {
        for (int n = 0; n < ACCEPTS; n++)
            accept_one(queues[i]);
        PD_CHECK(pthread_create(&threads[i], NULL, serve_queue, queues[i]) == 0);
    }
    printf("127.0.0.1:%d\n", port);
    fflush(stdout);
    pthread_join(threads[0], NULL);
}
