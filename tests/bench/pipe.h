/* What the bare pipe and its clients share: channel arguments, as packd sets them, and the methods.
 *
 *   /pipe/In    messages of any bytes ──> LMDB, one record each; back: 8 bytes little-endian, the
 *               number of this call's messages that are committed
 *   /pipe/Out   request: 16 bytes, rank and ranks (u32), credit (u64); each later one 8 bytes, more
 *               credit. Back: record rank, rank + ranks, ... as they are committed */
#ifndef PD_TESTS_BENCH_PIPE_H
#define PD_TESTS_BENCH_PIPE_H

#include <grpc/grpc.h>

#define PIPE_IN "/pipe/In"
#define PIPE_OUT "/pipe/Out"
#define PIPE_MESSAGE_BYTES_MAX (4 << 20)
#define PIPE_LOOKAHEAD_BYTES (512 << 10)
#define PIPE_FRAME_BYTES (1 << 20)

static inline grpc_arg pipe_arg(const char *key, int value)
{
    return (grpc_arg){
        .type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

#define PIPE_ARGS                                                              \
    pipe_arg(GRPC_ARG_HTTP2_BDP_PROBE, 0),                                     \
        pipe_arg(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, PIPE_LOOKAHEAD_BYTES), \
        pipe_arg(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, PIPE_FRAME_BYTES),             \
        pipe_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, PIPE_MESSAGE_BYTES_MAX), \
        pipe_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, PIPE_MESSAGE_BYTES_MAX)

#endif
