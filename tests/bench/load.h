/* The parts of `load`: load.c (what is run), load_body.c (what is sent), load_call.c (a
 * bidirectional call, blocking), and one protocol each in load_packd.c and load_pipe.c. */
#ifndef PD_TESTS_BENCH_LOAD_H
#define PD_TESTS_BENCH_LOAD_H

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define LOAD_BODY_BYTES (512u << 10)
#define LOAD_WINDOW_BYTES (16u << 20) /* unacked bytes of a producer, at most */
#define LOAD_CREDIT 4                 /* batches on their way to a rank */
#define LOAD_PAUSE_NS 20000000        /* before a batch whose latency is measured is asked for */
#define LOAD_JOBS_MAX 1000

struct load;
struct load_stream;

/* What every message carries, at most LOAD_BODY_BYTES: the arrays of a block of samples. */
struct load_body {
    uint8_t *bytes;
    size_t size;
    uint32_t *lengths; /* tokens, a sample */
    uint32_t samples, tokens;
    uint32_t (*grids)[2]; /* patches, height and width, of a sample's one image; with media */
};
#define LOAD_TEXT_TOKENS 24 /* before the image, with media */
#define LOAD_MERGE 4        /* patches a visual token */
#define LOAD_PATCH_VALUES 1176
#define LOAD_PATCH_BYTES (2 * LOAD_PATCH_VALUES) /* bfloat16: 9,408 bytes a visual token */
#define LOAD_ACTION_STEPS 50
#define LOAD_ACTION_VALUES 32 /* float32, a step */
#define LOAD_MEDIA_TOKEN 9

struct load_protocol {
    void (*open)(struct load *load);
    void *(*push)(void *stream);       /* a producer's thread */
    void *(*take)(void *stream);       /* a rank's */
    void (*pushed)(struct load *load); /* everything is acked */
    /* Begins a producer's call and says what the server answers at once. */
    void (*greet)(struct load_stream *stream);
};
extern const struct load_protocol load_packd, load_pipe;

struct load {
    const struct load_protocol *protocol;
    const char *address;
    uint32_t producers, ranks, jobs, rows, sample_tokens, mib, latency_batches;
    bool hold;
    bool media;        /* samples as those of a vision-language-action feed */
    uint64_t messages; /* a producer */
    uint64_t bytes;    /* pushed in all */
    struct load_body body;
    _Atomic uint64_t taken_bytes, batches;
    char log_id[40];
    uint64_t generations[LOAD_JOBS_MAX];
};

/* One call of one thread. */
struct load_call {
    grpc_channel *channel;
    grpc_completion_queue *cq;
    grpc_call *call;
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice details;
    grpc_byte_buffer *received;
    bool reading, writing, over;
};

struct load_stream {
    struct load *load;
    uint32_t number;
    pthread_t thread;
    struct load_call call;
    uint64_t taken_bytes, batches;
    /* of the one that measures latency */
    uint32_t latency_wanted, latency_count;
    uint64_t *latencies_ns, asked_ns;
};

/* Samples around `sample_tokens` long, or with media: text, one image, its patches, an action. */
void load_fill_body(struct load *load);
/* Counts a whole batch or record. True: the last one was wanted. */
bool load_took(struct load_stream *stream, uint64_t bytes);
/* In the latency run: pauses, and notes the time at which the next batch is asked for. */
void load_ask(struct load_stream *stream);

void load_call_open(struct load_call *call, const char *address, const char *method);
/* Takes the slices; no other write may be under way. */
void load_call_write(struct load_call *call, grpc_slice *slices, size_t count);
void load_call_read(struct load_call *call);
/* Waits for something to end: a write (writing becomes false), a read (*message, to be unreffed;
 * reading becomes false), or the call (over). False: nothing within 100 ms. */
bool load_call_wait(struct load_call *call, grpc_slice *message);
void load_call_close(struct load_call *call);
/* A unary call; the reply is the caller's. Ends the process where it fails. */
grpc_slice load_unary(const char *address, const char *method, grpc_slice request);

#endif
