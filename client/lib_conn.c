/* Rules of reconnection in one place: which failures are final, how long to pause. */
#include "client/lib_conn.h"

#include "base/check.h"
#include "base/clock.h"
#include "client/lib_error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BACKOFF_FIRST_MS ((uint64_t)50)
#define BACKOFF_MAX_MS ((uint64_t)2000)

static bool reason_in(const char *reason, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(reason, list[i]) == 0)
            return true;
    return false;
}

bool pd_conn_retryable(const struct packd_error *error, const struct pd_rpc_failure *failure)
{
    static const char *const passing[] = {"STALL", "TOO_MANY_CALLS"};
    switch (error->code) {
    case PACKD_EUNAVAIL:
    case PACKD_ETIMEDOUT:
    case PACKD_ECANCELED:
    case PACKD_EINTERNAL:
        return true;
    case PACKD_ELIMIT:
        return failure->transport || failure->retry_after_ms > 0 ||
               reason_in(error->reason, passing, PD_COUNT_OF(passing));
    default:
        return failure->retry_after_ms > 0;
    }
}

uint64_t pd_backoff_next_ns(struct pd_backoff *backoff, uint64_t retry_after_ms)
{
    if (backoff->seed == 0)
        backoff->seed = (uint32_t)pd_clock_mono_ns() | 1;
    uint64_t pause = BACKOFF_MAX_MS;
    if (backoff->attempts < 6 && (BACKOFF_FIRST_MS << backoff->attempts) < pause)
        pause = BACKOFF_FIRST_MS << backoff->attempts;
    if (backoff->attempts < 6)
        backoff->attempts++;
    backoff->seed = backoff->seed * 1664525u + 1013904223u;
    pause = pause * 3 / 4 + (backoff->seed >> 16) % (pause / 4 + 1);
    if (pause < retry_after_ms && retry_after_ms <= 60000)
        pause = retry_after_ms;
    return pause * 1000000;
}

uint64_t pd_conn_deadline_ns(int64_t timeout_ms, int64_t object_ms, int64_t fallback_ms)
{
    int64_t ms = timeout_ms;
    if (ms < 0)
        ms = object_ms > 0 ? object_ms : fallback_ms;
    const int64_t most_ms = INT64_C(1000) * 3600 * 24 * 365;
    if (ms > most_ms)
        ms = most_ms;
    return pd_clock_mono_ns() + (uint64_t)ms * 1000000;
}

void pd_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    PD_CHECK(pthread_cond_init(cond, &attr) == 0);
    pthread_condattr_destroy(&attr);
}

int pd_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns)
{
    struct timespec at = {.tv_sec = (time_t)(deadline_ns / 1000000000),
                          .tv_nsec = (long)(deadline_ns % 1000000000)};
    return pthread_cond_timedwait(cond, lock, &at);
}

const char *pd_conn_self(char *buf, size_t size)
{
    char host[128] = "?";
    gethostname(host, sizeof host - 1);
    snprintf(buf, size, "%s:%d", host, (int)getpid());
    return buf;
}

char *pd_conn_copy(const char *text, const char *fallback)
{
    return strdup(text ? text : fallback);
}

static int call_once(struct pd_channel *channel, const char *method, const struct pd_buf *request,
                     const ProtobufCMessageDescriptor *reply_type, uint64_t deadline_ns,
                     ProtobufCMessage **reply, struct pd_rpc_failure *failure,
                     struct packd_error *error)
{
    struct pd_buf bytes = {0};
    uint64_t attempt = pd_clock_mono_ns() + PD_ATTEMPT_NS;
    int rc = pd_rpc_unary(channel, method, request->data, request->size_bytes,
                          attempt < deadline_ns ? attempt : deadline_ns, &bytes, failure, error);
    if (rc == 0) {
        *reply = protobuf_c_message_unpack(reply_type, NULL, bytes.size_bytes, bytes.data);
        if (!*reply)
            rc = pd_client_error(error, PACKD_ECORRUPT, "REPLY",
                                 "packd at %s: the reply to %s could not be read",
                                 pd_channel_server(channel), method);
    }
    pd_buf_fini(&bytes);
    return rc;
}

int pd_conn_call(struct pd_channel *channel, const char *method, const ProtobufCMessage *request,
                 const ProtobufCMessageDescriptor *reply_type, uint64_t deadline_ns,
                 ProtobufCMessage **reply, struct packd_error *error)
{
    struct pd_buf bytes = {0};
    struct pd_backoff backoff = {0};
    struct packd_error last = {0};
    pd_buf_extend(&bytes, protobuf_c_message_get_packed_size(request));
    if (bytes.failed)
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory for a request");
    if (bytes.size_bytes > 0)
        protobuf_c_message_pack(request, bytes.data);
    int rc;
    for (;;) {
        struct pd_rpc_failure failure = {0};
        rc = call_once(channel, method, &bytes, reply_type, deadline_ns, reply, &failure, &last);
        if (rc == 0 || !pd_conn_retryable(&last, &failure) || pd_channel_cancelled(channel))
            break;
        uint64_t pause = pd_backoff_next_ns(&backoff, failure.retry_after_ms);
        if (pd_clock_mono_ns() + pause >= deadline_ns) {
            last.code = rc = PACKD_ETIMEDOUT;
            break;
        }
        pd_channel_sleep(channel, pause);
    }
    if (rc != 0 && error)
        *error = last;
    pd_buf_fini(&bytes);
    return rc;
}
