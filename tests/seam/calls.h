/* The two halves of the stand-in for gRPC that calls are made of: calls.c has the calls, server.c
 * brings them together. Nothing else includes this. */
#ifndef PD_TESTS_SEAM_CALLS_H
#define PD_TESTS_SEAM_CALLS_H

#include "tests/seam/seam.h"

#include <pthread.h>

enum { SEAM_CLIENT, SEAM_SERVER };

struct seam_batch;
struct seam_message;

/* One end. Of each operation in flight: its batch (NULL: none), and where its result goes. */
struct grpc_call {
    struct seam_pair *pair;
    int side;
    grpc_completion_queue *queue; /* fixed once the end is handed out */
    bool headers_begun, status_begun;
    struct seam_batch *read, *write, *headers, *status, *close;
    grpc_byte_buffer **read_to, *write_from;
    grpc_metadata_array *headers_to;
    struct grpc_op_recv_status_on_client status_to;
    int *close_to;
};

struct seam_inbox {
    struct seam_message *first;
    size_t count;
    bool closed; /* nothing follows */
};

struct seam_metadata {
    grpc_metadata *items; /* with a reference to each slice */
    size_t count;
};

struct seam_pair {
    pthread_mutex_t lock; /* guards all but what is fixed */
    unsigned refs;        /* one an end, one a list */
    struct grpc_call ends[2];
    struct seam_inbox inbox[2]; /* of each side: what it has still to read */
    bool headers_sent, has_status, status_told, cancelled;
    grpc_status_code status;
    grpc_slice status_text;
    struct seam_metadata initial, trailing;
    char *target; /* fixed */
    grpc_slice method;
    size_t piece_bytes;
    struct grpc_server *server; /* server.c's: NULL before the call is taken */
    struct seam_pair *next;
};

/* ---- calls.c ---- */
struct seam_pair *seam_pair_new(grpc_completion_queue *queue, const char *target,
                                grpc_slice method);
void seam_pair_unref(struct seam_pair *pair);
/* Ends the call for both, on behalf of one side: what it has been told, or has told, stands. */
void seam_pair_cancel(struct seam_pair *pair, int side, grpc_status_code status, const char *text);
/* The slices stay the pair's. */
void seam_metadata_lend(const struct seam_metadata *from, grpc_metadata_array *to);

/* ---- server.c ---- */
/* The client has begun: to the server at the pair's target, or UNAVAILABLE. */
void seam_offer(struct seam_pair *pair);
/* The server's end is let go of. */
void seam_call_left(struct seam_pair *pair);

/* gRPC's own header declares these without a prototype. */
grpc_channel_credentials *grpc_insecure_credentials_create(void);
grpc_server_credentials *grpc_insecure_server_credentials_create(void);

#endif
