/* See core_server.h. Each queue keeps ACCEPTS requests posted: one that is taken posts the next
 * before its own ops start. Nothing is ever shut down. */
#include "tests/bench/core_server.h"

#include "base/check.h"
#include "tests/bench/pipe.h"

#include <grpc/grpc_security.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUEUES 2
#define ACCEPTS 32

static struct {
    grpc_server *server;
    size_t call_bytes;
    void (*on_call)(void *call);
} core;

void core_call_free(struct core_call *call)
{
    grpc_metadata_array_destroy(&call->metadata);
    grpc_call_details_destroy(&call->details);
    grpc_call_unref(call->call);
    free(call);
}

static void accept_one(grpc_completion_queue *cq);

static void on_accepted(void *accepted, bool ok)
{
    struct core_call *call = accepted;
    if (!ok)
        return;
    accept_one(call->cq);
    core.on_call(call);
}

static void accept_one(grpc_completion_queue *cq)
{
    struct core_call *call = calloc(1, core.call_bytes);
    PD_CHECK(call);
    call->cq = cq;
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    call->accepted = (struct core_tag){on_accepted, call};
    PD_CHECK(grpc_server_request_call(core.server, &call->call, &call->details, &call->metadata, cq,
                                      cq, &call->accepted) == GRPC_CALL_OK);
}

static void *serve_queue(void *cq)
{
    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        struct core_tag *tag = event.tag;
        if (event.type != GRPC_OP_COMPLETE)
            return NULL;
        tag->done(tag->call, event.success != 0);
    }
}

void core_server_start(const char *address, size_t call_bytes, void (*on_call)(void *call))
{
    grpc_completion_queue *queues[QUEUES];
    grpc_arg args[] = {PIPE_ARGS};
    grpc_channel_args list = {.num_args = PD_COUNT_OF(args), .args = args};
    grpc_init();
    core.server = grpc_server_create(&list, NULL);
    core.call_bytes = call_bytes;
    core.on_call = on_call;
    for (int i = 0; i < QUEUES; i++) {
        queues[i] = grpc_completion_queue_create_for_next(NULL);
        grpc_server_register_completion_queue(core.server, queues[i], NULL);
    }
    int port =
        grpc_server_add_http2_port(core.server, address, grpc_insecure_server_credentials_create());
    PD_CHECK(port != 0);
    grpc_server_start(core.server);
    for (int i = 0; i < QUEUES; i++) {
        pthread_t thread;
        for (int n = 0; n < ACCEPTS; n++)
            accept_one(queues[i]);
        PD_CHECK(pthread_create(&thread, NULL, serve_queue, queues[i]) == 0);
    }
    if (strncmp(address, "unix:", 5) == 0)
        printf("%s\n", address);
    else
        printf("127.0.0.1:%d\n", port);
    fflush(stdout);
}
