/* Channels, status and unary calls on gRPC C core.
 *
 * One channel per object of the library, created lazily connected, plain or with TLS, and with a
 * bearer token where the caller has one. Every unary call has a completion queue of its own (65 us,
 * next to a network round trip), so any thread may make one. Retries are the caller's: gRPC's own
 * are off, as it would buffer requests for them. */
#include "client/lib_rpc_priv.h"

#include "base/check.h"
#include "base/clock.h"
#include "client/lib_conn.h"
#include "client/lib_error.h"
#include "client/lib_tls.h"
#include "proto/packd.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_DETAIL_MAX_BYTES (16 * 1024)

struct pd_rpc_active {
    struct pd_rpc_active *next;
    grpc_call *call;
};

const char *pd_rpc_status_name(int grpc_code)
{
    static const char *const names[] = {"OK",
                                        "CANCELLED",
                                        "UNKNOWN",
                                        "INVALID_ARGUMENT",
                                        "DEADLINE_EXCEEDED",
                                        "NOT_FOUND",
                                        "ALREADY_EXISTS",
                                        "PERMISSION_DENIED",
                                        "RESOURCE_EXHAUSTED",
                                        "FAILED_PRECONDITION",
                                        "ABORTED",
                                        "OUT_OF_RANGE",
                                        "UNIMPLEMENTED",
                                        "INTERNAL",
                                        "UNAVAILABLE",
                                        "DATA_LOSS",
                                        "UNAUTHENTICATED"};
    if (grpc_code < 0 || (size_t)grpc_code >= PD_COUNT_OF(names))
        return "UNKNOWN";
    return names[grpc_code];
}

/* NULL fields stay out; a file that vanished since it was checked makes the handshake fail. */
static grpc_channel_credentials *credentials_create(const struct packd_tls *tls, const char *server)
{
    if (!pd_tls_is_on(tls, server))
        return grpc_insecure_credentials_create();
    char *ca = tls->ca ? pd_tls_read(tls->ca) : NULL;
    char *cert = tls->cert ? pd_tls_read(tls->cert) : NULL;
    char *key = tls->key ? pd_tls_read(tls->key) : NULL;
    grpc_ssl_pem_key_cert_pair pair = {.private_key = key, .cert_chain = cert};
    grpc_channel_credentials *credentials =
        grpc_ssl_credentials_create(ca, cert && key ? &pair : NULL, NULL, NULL);
    free(ca);
    free(cert);
    free(key);
    return credentials ? credentials : grpc_insecure_credentials_create();
}

static grpc_channel *channel_create(const char *server, const struct packd_tls *tls)
{
    /* Pings find a dead peer on an idle connection; the server allows one every 10 s. The proxy of
     * the environment is for the internet, not for a daemon of the cluster. */
    grpc_arg args[] = {
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_ENABLE_RETRIES, .value.integer = 0},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_ENABLE_HTTP_PROXY, .value.integer = 0},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_KEEPALIVE_TIME_MS, .value.integer = 30000},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_KEEPALIVE_TIMEOUT_MS, .value.integer = 10000},
        {.type = GRPC_ARG_INTEGER,
         .key = GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
         .value.integer = 50},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, .value.integer = 5000},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, .value.integer = 1000},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, .value.integer = 1},
        {.type = GRPC_ARG_INTEGER,
         .key = GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
         .value.integer = 4 << 20},
        {.type = GRPC_ARG_STRING,
         .key = GRPC_SSL_TARGET_NAME_OVERRIDE_ARG,
         .value.string = (char *)tls->server_name},
    };
    const grpc_channel_args list = {PD_COUNT_OF(args) - (tls->server_name ? 0 : 1), args};
    grpc_channel_credentials *credentials = credentials_create(tls, server);
    grpc_channel *channel = grpc_channel_create(server, credentials, &list);
    grpc_channel_credentials_release(credentials);
    return channel;
}

struct pd_channel *pd_channel_new(const char *server, const char *token,
                                  const struct packd_tls *tls)
{
    struct pd_channel *channel = calloc(1, sizeof *channel);
    if (!channel)
        return NULL;
    struct packd_tls resolved = pd_tls_resolve(tls);
    server = pd_option_or_env(server, "PACKD_SERVER", PACKD_DEFAULT_SERVER);
    token = pd_option_or_env(token, "PACKD_TOKEN", NULL);
    channel->server = strdup(server);
    if (token && asprintf(&channel->authorization, "Bearer %s", token) < 0)
        channel->authorization = NULL;
    if (!channel->server || (token && !channel->authorization)) {
        free(channel->server);
        free(channel->authorization);
        free(channel);
        return NULL;
    }
    pthread_mutex_init(&channel->lock, NULL);
    pd_cond_init(&channel->cancel);
    grpc_init();
    channel->channel = channel_create(server, &resolved);
    return channel;
}

void pd_channel_free(struct pd_channel *channel)
{
    if (!channel)
        return;
    PD_CHECK(!channel->active);
    grpc_channel_destroy(channel->channel);
    grpc_shutdown();
    pthread_cond_destroy(&channel->cancel);
    pthread_mutex_destroy(&channel->lock);
    free(channel->server);
    free(channel->authorization);
    free(channel);
}

const char *pd_channel_server(const struct pd_channel *channel)
{
    return channel->server;
}

void pd_channel_cancel(struct pd_channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    channel->cancelled = true;
    for (struct pd_rpc_active *at = channel->active; at; at = at->next)
        grpc_call_cancel(at->call, NULL);
    pthread_cond_broadcast(&channel->cancel);
    pthread_mutex_unlock(&channel->lock);
}

bool pd_channel_cancelled(struct pd_channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    bool cancelled = channel->cancelled;
    pthread_mutex_unlock(&channel->lock);
    return cancelled;
}

void pd_channel_sleep(struct pd_channel *channel, uint64_t ns)
{
    uint64_t until = pd_clock_mono_ns() + ns;
    pthread_mutex_lock(&channel->lock);
    while (!channel->cancelled && pd_clock_mono_ns() < until)
        pd_cond_wait_until(&channel->cancel, &channel->lock, until);
    pthread_mutex_unlock(&channel->lock);
}

static void active_add(struct pd_channel *channel, struct pd_rpc_active *active)
{
    pthread_mutex_lock(&channel->lock);
    active->next = channel->active;
    channel->active = active;
    if (channel->cancelled)
        grpc_call_cancel(active->call, NULL);
    pthread_mutex_unlock(&channel->lock);
}

static void active_remove(struct pd_channel *channel, struct pd_rpc_active *active)
{
    pthread_mutex_lock(&channel->lock);
    struct pd_rpc_active **at = &channel->active;
    while (*at != active)
        at = &(*at)->next;
    *at = active->next;
    pthread_mutex_unlock(&channel->lock);
}

gpr_timespec pd_rpc_time(uint64_t deadline_ns)
{
    uint64_t now = pd_clock_mono_ns();
    uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    if (left > (uint64_t)INT64_MAX / 2)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                        gpr_time_from_nanos((int64_t)left, GPR_TIMESPAN));
}

size_t pd_rpc_metadata(const struct pd_channel *channel, grpc_metadata metadata[1])
{
    if (!channel->authorization)
        return 0;
    memset(metadata, 0, sizeof *metadata);
    metadata->key = grpc_slice_from_static_string("authorization");
    metadata->value = grpc_slice_from_copied_string(channel->authorization);
    return 1;
}

/* The status of a finished call as an error, with the detail of its trailing metadata. */
static Packd__V1__ErrorDetail *detail_find(const grpc_metadata_array *trailing)
{
    for (size_t i = 0; i < trailing->count; i++) {
        const grpc_metadata *at = &trailing->metadata[i];
        if (grpc_slice_str_cmp(at->key, "packd-error-bin") != 0)
            continue;
        size_t bytes = GRPC_SLICE_LENGTH(at->value);
        if (bytes > ERROR_DETAIL_MAX_BYTES)
            return NULL;
        return packd__v1__error_detail__unpack(NULL, bytes, GRPC_SLICE_START_PTR(at->value));
    }
    return NULL;
}

int pd_rpc_status_error(const struct pd_channel *channel, const char *method,
                        const struct pd_rpc_status *status, struct pd_rpc_failure *failure,
                        struct packd_error *error)
{
    int grpc_code = (int)status->code;
    *failure = (struct pd_rpc_failure){.transport = true};
    if (grpc_code == 0)
        return 0;
    Packd__V1__ErrorDetail *detail = detail_find(&status->trailing);
    char *text = grpc_slice_to_c_string(status->details);
    const char *reason = "TRANSPORT";
    if (detail) {
        failure->retry_after_ms = detail->retry_after_ms;
        failure->transport = !detail->reason[0];
        if (detail->reason[0])
            reason = detail->reason;
    }
    const char *call = strrchr(method, '/');
    int code = pd_client_code_of_grpc(grpc_code);
    const char *said = detail && detail->text[0] ? detail->text : text;
    pd_client_error(error, code, reason, "packd at %s: %s: %s%s%s", channel->server,
                    call ? call + 1 : method, pd_rpc_status_name(grpc_code), said[0] ? ": " : "",
                    said);
    if (error)
        error->grpc_code = grpc_code;
    gpr_free(text);
    if (detail)
        packd__v1__error_detail__free_unpacked(detail, NULL);
    return code;
}

void pd_rpc_status_init(struct pd_rpc_status *status)
{
    *status = (struct pd_rpc_status){.code = GRPC_STATUS_UNKNOWN, .details = grpc_empty_slice()};
    grpc_metadata_array_init(&status->initial);
    grpc_metadata_array_init(&status->trailing);
}

void pd_rpc_status_fini(struct pd_rpc_status *status)
{
    grpc_metadata_array_destroy(&status->initial);
    grpc_metadata_array_destroy(&status->trailing);
    grpc_slice_unref(status->details);
}

grpc_call *pd_rpc_call_new(struct pd_channel *channel, grpc_completion_queue *queue,
                           const char *method, gpr_timespec deadline)
{
    grpc_slice name = grpc_slice_from_copied_string(method);
    grpc_call *call = grpc_channel_create_call(channel->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                               queue, name, NULL, deadline, NULL);
    grpc_slice_unref(name);
    return call;
}

static int append_message(grpc_byte_buffer *message, struct pd_buf *reply)
{
    grpc_byte_buffer_reader reader;
    grpc_slice slice;
    if (!grpc_byte_buffer_reader_init(&reader, message))
        return PACKD_ECORRUPT;
    while (grpc_byte_buffer_reader_next(&reader, &slice)) {
        pd_buf_put(reply, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
        grpc_slice_unref(slice);
    }
    grpc_byte_buffer_reader_destroy(&reader);
    return reply->failed ? PACKD_ENOMEM : 0;
}

struct unary {
    grpc_completion_queue *queue;
    struct pd_rpc_status status;
    grpc_byte_buffer *request, *reply;
    struct pd_rpc_active active;
};

/* Runs the call to its end: with a deadline on it, that end comes. */
static void unary_run(struct pd_channel *channel, struct unary *unary)
{
    grpc_metadata metadata[1];
    grpc_op ops[6] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},  {.op = GRPC_OP_SEND_MESSAGE},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT}, {.op = GRPC_OP_RECV_INITIAL_METADATA},
        {.op = GRPC_OP_RECV_MESSAGE},           {.op = GRPC_OP_RECV_STATUS_ON_CLIENT}};
    size_t count = pd_rpc_metadata(channel, metadata);
    ops[0].data.send_initial_metadata.count = count;
    ops[0].data.send_initial_metadata.metadata = metadata;
    ops[1].data.send_message.send_message = unary->request;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &unary->status.initial;
    ops[4].data.recv_message.recv_message = &unary->reply;
    ops[5].data.recv_status_on_client.trailing_metadata = &unary->status.trailing;
    ops[5].data.recv_status_on_client.status = &unary->status.code;
    ops[5].data.recv_status_on_client.status_details = &unary->status.details;
    grpc_call_error rc =
        grpc_call_start_batch(unary->active.call, ops, PD_COUNT_OF(ops), unary, NULL);
    PD_CHECK(rc == GRPC_CALL_OK);
    active_add(channel, &unary->active);
    grpc_event event =
        grpc_completion_queue_next(unary->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    PD_CHECK(event.type == GRPC_OP_COMPLETE);
    active_remove(channel, &unary->active);
    if (count > 0)
        grpc_slice_unref(metadata[0].value);
}

static void queue_drain(grpc_completion_queue *queue)
{
    grpc_completion_queue_shutdown(queue);
    while (grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
           GRPC_QUEUE_SHUTDOWN)
        ;
    grpc_completion_queue_destroy(queue);
}

int pd_rpc_unary(struct pd_channel *channel, const char *method, const void *request,
                 size_t request_bytes, uint64_t deadline_ns, struct pd_buf *reply,
                 struct pd_rpc_failure *failure, struct packd_error *error)
{
    struct unary unary = {.queue = grpc_completion_queue_create_for_next(NULL)};
    pd_rpc_status_init(&unary.status);
    grpc_slice slice = grpc_slice_from_copied_buffer(request, request_bytes);
    unary.request = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    unary.active.call = pd_rpc_call_new(channel, unary.queue, method, pd_rpc_time(deadline_ns));
    unary_run(channel, &unary);
    int rc = pd_rpc_status_error(channel, method, &unary.status, failure, error);
    if (rc == 0 && unary.reply)
        rc = append_message(unary.reply, reply);
    else if (rc == 0)
        rc = PACKD_ECORRUPT;
    if (rc != 0 && unary.status.code == GRPC_STATUS_OK)
        pd_client_error(error, rc, "REPLY", "packd at %s: the reply to %s could not be read",
                        channel->server, method);
    grpc_byte_buffer_destroy(unary.request);
    grpc_byte_buffer_destroy(unary.reply);
    grpc_call_unref(unary.active.call);
    pd_rpc_status_fini(&unary.status);
    queue_drain(unary.queue);
    return rc;
}
