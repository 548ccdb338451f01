/* A bare C-core server for measurements: two threads with a completion queue each, as packd has on
 * a machine of two cores, packd's channel arguments, calls accepted ahead. One a process; it ends
 * by a signal.
 *
 *   accepted ──> on_call(call): starts ops with tags of its own ──> tag->done(tag->call, ok)
 *
 * on_call and done run on the thread of the call's queue. */
#ifndef PD_TESTS_BENCH_CORE_SERVER_H
#define PD_TESTS_BENCH_CORE_SERVER_H

#include <grpc/grpc.h>
#include <stdbool.h>
#include <stddef.h>

/* What an op's completion calls; lives as long as the op does. */
struct core_tag {
    void (*done)(void *call, bool ok);
    void *call;
};

/* The first member of a user's call. */
struct core_call {
    grpc_call *call;
    grpc_completion_queue *cq;
    grpc_call_details details;
    grpc_metadata_array metadata;
    struct core_tag accepted;
};

/* Binds `address` ("127.0.0.1:0" or "unix:PATH"), starts the threads and prints what was bound, one
 * line. A call is `call_bytes` of zeroes that begin with a struct core_call; from on_call on it is
 * the user's. Ends the process when the address cannot be bound. */
void core_server_start(const char *address, size_t call_bytes, void (*on_call)(void *call));

/* Frees the call and its memory; no op of it may be under way. */
void core_call_free(struct core_call *call);

#endif
