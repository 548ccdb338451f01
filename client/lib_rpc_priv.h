/* What the two gRPC files of the client share. Nothing else may include this. */
#ifndef PD_CLIENT_LIB_RPC_PRIV_H
#define PD_CLIENT_LIB_RPC_PRIV_H

#include "client/lib_rpc.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>

struct pd_channel {
    grpc_channel *channel;
    char *server;
    char *authorization; /* NULL: none */
    pthread_mutex_t lock;
    pthread_cond_t cancel;        /* signalled with `cancelled` */
    struct pd_rpc_active *active; /* unary calls under way, guarded by lock */
    bool cancelled;               /* guarded by lock */
};

struct pd_rpc_status {
    grpc_status_code code;
    grpc_slice details;
    grpc_metadata_array initial, trailing;
};

void pd_rpc_status_init(struct pd_rpc_status *status);
void pd_rpc_status_fini(struct pd_rpc_status *status);
/* 0 for OK, else the error's code. */
int pd_rpc_status_error(const struct pd_channel *channel, const char *method,
                        const struct pd_rpc_status *status, struct pd_rpc_failure *failure,
                        struct packd_error *error);
gpr_timespec pd_rpc_time(uint64_t deadline_ns);
/* The credentials of a call, 0 or 1 entries; the value is to be unref'd by the caller. */
size_t pd_rpc_metadata(const struct pd_channel *channel, grpc_metadata metadata[1]);
grpc_call *pd_rpc_call_new(struct pd_channel *channel, grpc_completion_queue *queue,
                           const char *method, gpr_timespec deadline);

#endif
