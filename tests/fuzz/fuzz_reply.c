/* libpackd against a server that answers anything: a thread of this process is the server, behind
 * the stand-in for gRPC, so replies take the same way as from the wire.
 *
 * An input says what the client does (an operator's calls, a producer, a trainer) and what comes
 * back for each of its calls: messages, a status, a detail of any kind. Half of the replies that
 * open something are good ones, else nothing behind them would be reached. The client must come
 * back in time, with a result that exists, and a text where it failed. */
#include "tests/fuzz/wire.h"
#include "tests/seam/seam.h"

#include "base/check.h"
#include "client/include/packd.h"
#include "proto/packd.pb-c.h"

#include <grpc/support/time.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLIES_MAX 5
#define OPEN_MS 20
#define STEP_MS 3

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
    pthread_mutex_t lock; /* guards source */
    struct fuzz_source source;
    grpc_server *server;
    grpc_completion_queue *queue;
    char address[40];
} peer = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the server's side of one call ---- */

struct answer {
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    const ProtobufCMessageDescriptor *type; /* of replies */
    grpc_byte_buffer *request;
    uint32_t left; /* replies to send; then the status */
    bool unary, opened, ending, cancelled;
    unsigned owed;
    struct event {
        struct answer *answer;
        enum { ON_NEW, ON_READ, ON_SENT, ON_END } kind;
    } on_new, on_read, on_sent, on_end;
};

static uint32_t number(uint32_t bound)
{
    pthread_mutex_lock(&peer.lock);
    uint32_t value = fuzz_number(&peer.source, bound);
    pthread_mutex_unlock(&peer.lock);
    return value;
}

static void start(struct answer *answer, const grpc_op *ops, size_t count, struct event *event)
{
    PD_CHECK(grpc_call_start_batch(answer->call, ops, count, event, NULL) == GRPC_CALL_OK);
    answer->owed++;
}

static void post_accept(void)
{
    struct answer *answer = calloc(1, sizeof *answer);
    PD_CHECK(answer);
    answer->on_new = (struct event){answer, ON_NEW};
    answer->on_read = (struct event){answer, ON_READ};
    answer->on_sent = (struct event){answer, ON_SENT};
    answer->on_end = (struct event){answer, ON_END};
    answer->owed = 1;
    PD_CHECK(grpc_server_request_call(peer.server, &answer->call, &answer->details,
                                      &answer->metadata, peer.queue, peer.queue,
                                      &answer->on_new) == GRPC_CALL_OK);
}

static const ProtobufCMessageDescriptor *reply_type(const char *path)
{
    const ProtobufCServiceDescriptor *const services[] = {&packd__v1__ingest__descriptor,
                                                          &packd__v1__feed__descriptor,
                                                          &packd__v1__admin__descriptor};
    for (size_t i = 0; i < PD_COUNT_OF(services); i++)
        for (unsigned k = 0; k < services[i]->n_methods; k++)
            if (strcmp(strrchr(path, '/') + 1, services[i]->methods[k].name) == 0)
                return services[i]->methods[k].output;
    pd_panic(__FILE__, __LINE__, "the client calls %s", path);
}

/* What lets a client go on; false: there is no such reply of this type. */
static bool put_good(struct pd_buf *to, const ProtobufCMessageDescriptor *type)
{
    Packd__V1__JobSpec spec = PACKD__V1__JOB_SPEC__INIT;
    Packd__V1__OpenJobResponse opened = PACKD__V1__OPEN_JOB_RESPONSE__INIT;
    Packd__V1__Welcome welcome = PACKD__V1__WELCOME__INIT;
    Packd__V1__PushResponse push = PACKD__V1__PUSH_RESPONSE__INIT;
    const ProtobufCMessage *good = NULL;
    if (type == &packd__v1__open_job_response__descriptor) {
        spec.step_packs = spec.dp_size = spec.rows = spec.accum = 1;
        spec.seq_len = 64;
        spec.max_batch_bytes = 1 << 16;
        opened.spec = &spec;
        good = &opened.base;
    } else if (type == &packd__v1__push_response__descriptor) {
        welcome.credit_bytes = 1 << 20;
        push.what_case = PACKD__V1__PUSH_RESPONSE__WHAT_WELCOME;
        push.welcome = &welcome;
        good = &push.base;
    }
    if (!good)
        return false;
    size_t size = protobuf_c_message_get_packed_size(good);
    uint8_t *bytes = pd_buf_extend(to, size);
    PD_CHECK(bytes);
    (void)protobuf_c_message_pack(good, bytes);
    return true;
}

static void send_reply(struct answer *answer)
{
    struct pd_buf message = {0};
    bool good = !answer->opened && number(2) == 0;
    if (!good || !put_good(&message, answer->type)) {
        pthread_mutex_lock(&peer.lock);
        fuzz_message(&message, answer->type, &peer.source);
        pthread_mutex_unlock(&peer.lock);
    }
    grpc_slice slice =
        grpc_slice_from_copied_buffer((const char *)message.data, message.size_bytes);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_MESSAGE}, {.op = GRPC_OP_SEND_INITIAL_METADATA}};
    ops[0].data.send_message.send_message = buffer;
    start(answer, ops, answer->opened ? 1 : 2, &answer->on_sent);
    answer->opened = true;
    grpc_byte_buffer_destroy(buffer);
    grpc_slice_unref(slice);
    pd_buf_fini(&message);
}

/* OK, or any status with any detail or none. */
static void send_status(struct answer *answer)
{
    struct pd_buf detail = {0};
    uint32_t code = number(3) ? number(17) : 0;
    grpc_metadata trailing = {.key = grpc_slice_from_static_string("packd-error-bin")};
    grpc_slice text = grpc_slice_from_copied_string("a text \\xff");
    grpc_op op = {.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    pthread_mutex_lock(&peer.lock);
    fuzz_message(&detail, &packd__v1__error_detail__descriptor, &peer.source);
    pthread_mutex_unlock(&peer.lock);
    trailing.value = grpc_slice_from_copied_buffer((const char *)detail.data, detail.size_bytes);
    op.data.send_status_from_server.status = (grpc_status_code)code;
    op.data.send_status_from_server.status_details = &text;
    op.data.send_status_from_server.trailing_metadata = &trailing;
    op.data.send_status_from_server.trailing_metadata_count = number(4) > 0;
    answer->ending = true;
    start(answer, &op, 1, &answer->on_sent);
    grpc_slice_unref(trailing.value);
    grpc_slice_unref(text);
    pd_buf_fini(&detail);
}

/* A stream that is left open now and then: the client's own time must end it. */
static void go_on(struct answer *answer)
{
    if (answer->ending || answer->cancelled)
        return;
    if (answer->left-- > 0)
        send_reply(answer);
    else if (answer->unary || number(8) > 0)
        send_status(answer);
}

static void read_next(struct answer *answer)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &answer->request;
    start(answer, &op, 1, &answer->on_read);
}

static void begin(struct answer *answer)
{
    static int cancelled; /* nobody looks */
    char *path = grpc_slice_to_c_string(answer->details.method);
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    op.data.recv_close_on_server.cancelled = &cancelled;
    answer->type = reply_type(path);
    answer->unary = !strstr(path, "/Push") && !strstr(path, "/Fetch");
    answer->left = answer->unary ? number(8) > 0 : number(REPLIES_MAX + 1);
    free(path);
    start(answer, &op, 1, &answer->on_end);
    read_next(answer);
    go_on(answer);
}

static void on_read(struct answer *answer)
{
    bool more = answer->request != NULL;
    grpc_byte_buffer_destroy(answer->request);
    answer->request = NULL;
    if (more && !answer->ending)
        read_next(answer);
}

static void answer_free(struct answer *answer)
{
    grpc_call_details_destroy(&answer->details);
    grpc_metadata_array_destroy(&answer->metadata);
    grpc_call_unref(answer->call);
    free(answer);
}

static void *serve(void *unused)
{
    (void)unused;
    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(peer.queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        struct event *what = event.tag;
        struct answer *answer = what->answer;
        answer->owed--;
        if (what->kind == ON_NEW) {
            post_accept();
            begin(answer);
        } else if (what->kind == ON_READ) {
            on_read(answer);
        } else if (what->kind == ON_SENT && event.success) {
            go_on(answer);
        } else if (what->kind == ON_END) {
            answer->cancelled = true;
        }
        if (answer->owed == 0)
            answer_free(answer);
    }
    return NULL;
}

static void set_up(void)
{
    pthread_t thread;
    grpc_server_credentials *plain = grpc_insecure_server_credentials_create();
    PD_CHECK(!seam_has_real_grpc());
    peer.server = grpc_server_create(NULL, NULL);
    peer.queue = grpc_completion_queue_create_for_next(NULL);
    int port = grpc_server_add_http2_port(peer.server, "127.0.0.1:0", plain);
    snprintf(peer.address, sizeof peer.address, "127.0.0.1:%d", port);
    post_accept();
    PD_CHECK(pthread_create(&thread, NULL, serve, NULL) == 0);
}

/* ---- the clients ---- */

static void check(int rc, const struct packd_error *error)
{
    if (rc > 0 || (rc < 0 && strcmp(packd_error_name(rc), "PACKD_E?") == 0))
        pd_panic(__FILE__, __LINE__, "result %d: %s", rc, error->text);
    PD_CHECK(rc == 0 || (error->code == rc && error->text[0] && error->reason[0]));
}

static void operate(uint32_t which)
{
    struct packd_error error = {0};
    struct packd_admin *admin;
    char *json = NULL;
    const struct packd_admin_options options = {.server = peer.address, .timeout_ms = OPEN_MS};
    const struct packd_source_weight weight = {"s", 1};
    int rc = packd_admin_open(&options, &admin, &error);
    check(rc, &error);
    switch (which % 6) {
    case 0:
        rc = packd_admin_status(admin, NULL, NULL, true, NULL, OPEN_MS, &json, &error);
        break;
    case 1:
        rc = packd_admin_explain(admin, NULL, "train", 1, 0, OPEN_MS, &json, &error);
        break;
    case 2:
        rc = packd_admin_skip_steps(admin, NULL, "train", 1, 2, "x", OPEN_MS, &json, &error);
        break;
    case 3:
        rc = packd_admin_set_mixture(admin, NULL, &weight, 1, OPEN_MS, &json, &error);
        break;
    case 4:
        rc = packd_admin_commit(admin, NULL, "train", 1, OPEN_MS, &json, &error);
        break;
    default:
        rc = packd_admin_delete_job(admin, NULL, "train", true, OPEN_MS, &json, &error);
    }
    check(rc, &error);
    PD_CHECK(rc != 0 || (json && json[0] == '{'));
    packd_free(json);
    packd_admin_close(admin);
}

static void on_reject(void *ctx, const struct packd_reject *reject)
{
    (void)ctx;
    PD_CHECK(reject->reason && reject->text);
}

static void produce(void)
{
    struct packd_error error = {0};
    struct packd_producer *producer;
    struct packd_producer_stats stats;
    const int32_t tokens[] = {1, 2, 3};
    const struct packd_sample sample = {.tokens = tokens, .count = 3};
    const struct packd_producer_options options = {.server = peer.address,
                                                   .stream = "p0",
                                                   .linger_ms = 1,
                                                   .timeout_ms = OPEN_MS,
                                                   .on_reject = on_reject};
    int rc = packd_producer_open(&options, &producer, &error);
    check(rc, &error);
    if (rc != 0)
        return;
    for (int i = 0; i < 3; i++)
        check(packd_producer_put(producer, &sample, STEP_MS, &error), &error);
    check(packd_producer_flush(producer, STEP_MS, &error), &error);
    check(packd_producer_end_stream(producer, STEP_MS, &error), &error);
    packd_producer_stats(producer, &stats);
    PD_CHECK(stats.durable_seq <= stats.next_seq);
    check(packd_producer_close(producer, 0, &error), &error);
}

static void train(void)
{
    struct packd_error error = {0};
    struct packd_job *job;
    const struct packd_batch *batch;
    const struct packd_job_options options = {.server = peer.address,
                                              .job = "train",
                                              .dp_size = 1,
                                              .world_token = "w",
                                              .timeout_ms = OPEN_MS};
    int rc = packd_job_open(&options, &job, &error);
    check(rc, &error);
    if (rc != 0)
        return;
    for (int i = 0; i < 3 && (rc == 0 || rc == PACKD_ETIMEDOUT); i++) {
        rc = packd_job_next(job, STEP_MS, &batch, &error);
        check(rc, &error);
        if (rc == 0)
            packd_batch_release(batch);
    }
    check(packd_job_commit(job, 0, STEP_MS, &error), &error);
    packd_job_close(job);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!peer.server)
        set_up();
    if (size < 2)
        return 0;
    pthread_mutex_lock(&peer.lock);
    peer.source = (struct fuzz_source){.data = data + 2, .size = size - 2};
    pthread_mutex_unlock(&peer.lock);
    if (data[0] % 4 < 2)
        operate(data[1]);
    else if (data[0] % 4 == 2)
        produce();
    else
        train();
    pthread_mutex_lock(&peer.lock); /* a call that is still being answered reads no more of it */
    peer.source = (struct fuzz_source){0};
    pthread_mutex_unlock(&peer.lock);
    return 0;
}
