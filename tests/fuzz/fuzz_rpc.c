/* Every method of the daemon, asked with anything: the whole daemon runs on threads of this process
 * behind the stand-in for gRPC, so a request takes the same way as from the wire, through slices,
 * scanner or protobuf-c, checks, sequencer and serve.
 *
 * An input is a method, metadata and up to MESSAGES_MAX messages; then the call is half-closed and
 * its answers are read. Calls that wait for something are let go of after a moment. Each call must
 * end, with a status that exists and, where it is packd's own refusal, with a reason. What one
 * input changes (jobs, streams, a feed's end), later ones find. */
#include "tests/fuzz/wire.h"
#include "tests/seam/daemon.h"
#include "tests/seam/seam.h"

#include "base/check.h"
#include "client/include/packd.h"
#include "proto/health.pb-c.h"
#include "proto/packd.pb-c.h"
#include "proto/reflection.pb-c.h"

#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGES_MAX 4
#define PATIENCE_NS 3000000          /* for what may wait for something */
#define END_NS UINT64_C(60000000000) /* after a cancellation there is nothing to wait for */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ProtobufCServiceDescriptor *const services[] = {
    &packd__v1__ingest__descriptor,        &packd__v1__feed__descriptor,
    &packd__v1__admin__descriptor,         &packd__v1__feed__descriptor,
    &grpc__health__v1__health__descriptor, &grpc__reflection__v1__server_reflection__descriptor};

static grpc_channel *channel;

enum { ON_BEGUN = 1, ON_SENT, ON_READ, ON_STATUS };

struct ask {
    grpc_completion_queue *queue;
    grpc_call *call;
    grpc_metadata_array headers, trailing;
    grpc_status_code status;
    grpc_slice text;
    grpc_byte_buffer *reply;
    unsigned owed; /* events that will come */
    uint32_t left; /* messages to send; then the half-close */
    bool closed, over, cancelled;
};

/* ---- the daemon, once, with a few samples and a job in it ---- */

static void push_some(void)
{
    struct packd_error error = {0};
    struct packd_producer *producer;
    const struct packd_producer_options options = {.server = seam_daemon_address(), .stream = "p0"};
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7};
    PD_CHECK(packd_producer_open(&options, &producer, &error) == 0);
    for (int i = 0; i < 100; i++)
        PD_CHECK(packd_producer_put(producer, &(struct packd_sample){.tokens = tokens, .count = 7},
                                    PACKD_TIMEOUT_DEFAULT, &error) == 0);
    PD_CHECK(packd_producer_close(producer, PACKD_TIMEOUT_DEFAULT, &error) == 0);
}

static void open_job(void)
{
    struct packd_error error = {0};
    struct packd_job *job;
    const struct packd_batch *batch;
    const struct packd_job_options options = {
        .server = seam_daemon_address(), .job = "train", .dp_size = 1};
    PD_CHECK(packd_job_open(&options, &job, &error) == 0);
    PD_CHECK(packd_job_next(job, PACKD_TIMEOUT_DEFAULT, &batch, &error) == 0);
    packd_batch_release(batch);
    packd_job_close(job);
}

static void set_up(void)
{
    setenv("PACKD_LOG_LEVEL", "error", 1);
    seam_daemon_start("log: {max_bytes: 64MiB, durability: process}\n"
                      "memory: {batches: 8MiB, ingest: 8MiB}\n"
                      "limits: {max_sample_bytes: 1MiB}\n"
                      "threads: {rpc: 1}\n"
                      "validate: {backend: off}\n"
                      "feeds:\n"
                      "  - {name: default, seq_len: 16, window: 4}\n"
                      "  - {name: other, seq_len: 32, window: 4, positions: mrope}\n");
    push_some();
    open_job();
    grpc_channel_credentials *plain = grpc_insecure_credentials_create();
    channel = grpc_channel_create(seam_daemon_address(), plain, NULL);
    grpc_channel_credentials_release(plain);
}

/* ---- one call ---- */

static void start(struct ask *ask, const grpc_op *ops, size_t count, intptr_t tag)
{
    PD_CHECK(grpc_call_start_batch(ask->call, ops, count, (void *)tag, NULL) == GRPC_CALL_OK);
    ask->owed++;
}

static void start_read(struct ask *ask)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &ask->reply;
    start(ask, &op, 1, ON_READ);
}

static void begin(struct ask *ask, const char *path, struct fuzz_source *source)
{
    grpc_metadata metadata = {.key = grpc_slice_from_static_string("authorization"),
                              .value = grpc_slice_from_static_string("Bearer x")};
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_RECV_INITIAL_METADATA}};
    grpc_slice method = grpc_slice_from_copied_string(path);
    *ask = (struct ask){.queue = grpc_completion_queue_create_for_next(NULL)};
    ask->call = grpc_channel_create_call(channel, NULL, 0, ask->queue, method, NULL,
                                         gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_slice_unref(method);
    ops[0].data.send_initial_metadata.count = fuzz_number(source, 8) == 7;
    ops[0].data.send_initial_metadata.metadata = &metadata;
    ops[1].data.recv_initial_metadata.recv_initial_metadata = &ask->headers;
    start(ask, &ops[0], 1, ON_BEGUN);
    start(ask, &ops[1], 1, ON_BEGUN);
    grpc_slice_unref(metadata.key);
    grpc_slice_unref(metadata.value);
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    op.data.recv_status_on_client.status = &ask->status;
    op.data.recv_status_on_client.status_details = &ask->text;
    op.data.recv_status_on_client.trailing_metadata = &ask->trailing;
    start(ask, &op, 1, ON_STATUS);
    start_read(ask);
}

/* The next message, or the half-close. */
static void send_next(struct ask *ask, const ProtobufCMessageDescriptor *type,
                      struct fuzz_source *source)
{
    if (ask->left-- == 0) {
        ask->closed = true;
        start(ask, &(grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT}, 1, ON_BEGUN);
        return;
    }
    struct pd_buf message = {0};
    fuzz_message(&message, type, source);
    grpc_slice slice =
        grpc_slice_from_copied_buffer((const char *)message.data, message.size_bytes);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};
    op.data.send_message.send_message = buffer;
    start(ask, &op, 1, ON_SENT);
    grpc_byte_buffer_destroy(buffer);
    grpc_slice_unref(slice);
    pd_buf_fini(&message);
}

static void on_reply(struct ask *ask)
{
    bool more = ask->reply && !ask->over;
    grpc_byte_buffer_destroy(ask->reply);
    ask->reply = NULL;
    if (more)
        start_read(ask);
}

/* Until nothing is owed. */
static void carry_out(struct ask *ask, const ProtobufCMessageDescriptor *type,
                      struct fuzz_source *source)
{
    send_next(ask, type, source);
    while (ask->owed > 0) {
        uint64_t wait_ns = ask->cancelled ? END_NS : PATIENCE_NS;
        gpr_timespec until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                          gpr_time_from_nanos((int64_t)wait_ns, GPR_TIMESPAN));
        grpc_event event = grpc_completion_queue_next(ask->queue, until, NULL);
        if (event.type != GRPC_OP_COMPLETE) {
            PD_CHECK(!ask->cancelled); /* else: a call that does not end */
            ask->cancelled = true;
            (void)grpc_call_cancel(ask->call, NULL);
            continue;
        }
        ask->owed--;
        if ((intptr_t)event.tag == ON_STATUS)
            ask->over = true;
        if ((intptr_t)event.tag == ON_SENT && event.success && !ask->closed)
            send_next(ask, type, source);
        if ((intptr_t)event.tag == ON_READ)
            on_reply(ask);
    }
}

/* packd's own refusals carry a reason that programs can read. */
static void check_status(const struct ask *ask)
{
    PD_CHECK(ask->status <= GRPC_STATUS_UNAUTHENTICATED && ask->status != GRPC_STATUS_UNKNOWN);
    if (ask->status == GRPC_STATUS_OK || ask->cancelled)
        return;
    PD_CHECK(ask->trailing.count == 1);
    grpc_slice value = ask->trailing.metadata[0].value;
    Packd__V1__ErrorDetail *detail = packd__v1__error_detail__unpack(NULL, GRPC_SLICE_LENGTH(value),
                                                                     GRPC_SLICE_START_PTR(value));
    PD_CHECK(detail && detail->reason[0] && detail->text[0]);
    packd__v1__error_detail__free_unpacked(detail, NULL);
}

static void finish(struct ask *ask)
{
    grpc_slice_unref(ask->text);
    grpc_metadata_array_destroy(&ask->headers);
    grpc_metadata_array_destroy(&ask->trailing);
    grpc_call_unref(ask->call);
    grpc_completion_queue_shutdown(ask->queue);
    grpc_event event =
        grpc_completion_queue_next(ask->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    PD_CHECK(event.type == GRPC_QUEUE_SHUTDOWN);
    grpc_completion_queue_destroy(ask->queue);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_source source = {.data = data, .size = size};
    struct ask ask;
    char path[200];
    if (!channel)
        set_up();
    const ProtobufCServiceDescriptor *service =
        services[fuzz_number(&source, PD_COUNT_OF(services))];
    const ProtobufCMethodDescriptor *method =
        &service->methods[fuzz_number(&source, service->n_methods)];
    if (strcmp(method->name, "Drain") == 0) /* then nothing else would be taken */
        return 0;
    snprintf(path, sizeof path, "/%s/%s", service->name, method->name);
    begin(&ask, path, &source);
    ask.left = fuzz_number(&source, MESSAGES_MAX + 1);
    carry_out(&ask, method->input, &source);
    check_status(&ask);
    finish(&ask);
    return 0;
}
