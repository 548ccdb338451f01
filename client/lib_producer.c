/* The caller's side of a producer: options, put, and waiting for the thread in lib_push.c.
 *
 * put copies the sample into the open block and returns; it waits only while more than buffer_bytes
 * are taken and not yet durable. Every wait ends at its deadline with a text that says what the
 * server or the connection is doing. Refused samples are handed to the caller's function here, on
 * the caller's thread, with no lock held. */
#include "client/lib_producer.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/name.h"
#include "client/lib_error.h"
#include "client/lib_tls.h"
#include "proto/packd.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define TIMEOUT_MS 60000

/* ---- open and free --------------------------------------------------------------------------- */

static int check_options(const struct packd_producer_options *options, struct packd_error *error)
{
    struct pd_error why = {0};
    if (!options->stream)
        return pd_client_error(error, PACKD_EINVAL, "BAD_NAME", "options.stream is required");
    if (pd_name_check("stream", options->stream, &why) != 0 ||
        (options->feed && pd_name_check("feed", options->feed, &why) != 0) ||
        (options->source && pd_name_check("source", options->source, &why) != 0))
        return pd_client_error_from(error, &why);
    if (options->content_id && strlen(options->content_id) > 255)
        return pd_client_error(error, PACKD_EINVAL, "BAD_RANGE",
                               "content_id has %zu bytes: at most 255",
                               strlen(options->content_id));
    if (options->tokenizer_digest_bytes > 64)
        return pd_client_error(error, PACKD_EINVAL, "BAD_RANGE",
                               "tokenizer_digest has %zu bytes: at most 64",
                               options->tokenizer_digest_bytes);
    return 0;
}

static void list_free(struct pd_client_block *block)
{
    while (block) {
        struct pd_client_block *next = block->next;
        pd_client_block_unref(block);
        block = next;
    }
}

static void producer_free(struct packd_producer *p)
{
    pd_channel_free(p->channel);
    list_free(p->first);
    list_free(p->open);
    pthread_cond_destroy(&p->changed);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->feed);
    free(p->stream);
    free(p->source);
    free(p->producer);
    free(p->content_id);
    free(p->tokenizer_digest);
    free(p->rejects);
    p->magic = 0;
    free(p);
}

static bool copy_options(struct packd_producer *p, const struct packd_producer_options *options)
{
    char self[160];
    p->feed = pd_conn_copy(options->feed, "default");
    p->stream = pd_conn_copy(options->stream, "");
    p->source = pd_conn_copy(options->source, "");
    p->producer = pd_conn_copy(options->producer, pd_conn_self(self, sizeof self));
    p->content_id = pd_conn_copy(options->content_id, "");
    p->tokenizer_digest_bytes = options->tokenizer_digest_bytes;
    p->tokenizer_digest = malloc(options->tokenizer_digest_bytes + 1);
    p->rejects = calloc(PD_REJECTS_MAX, sizeof *p->rejects);
    p->channel = pd_channel_new(options->server, options->token, &options->tls);
    if (!p->feed || !p->stream || !p->source || !p->producer || !p->content_id ||
        !p->tokenizer_digest || !p->rejects || !p->channel)
        return false;
    if (options->tokenizer_digest_bytes > 0)
        memcpy(p->tokenizer_digest, options->tokenizer_digest, options->tokenizer_digest_bytes);
    if (options->log_id)
        snprintf(p->stats.log_id, sizeof p->stats.log_id, "%s", options->log_id);
    p->vocab_size = options->vocab_size;
    p->allow_shifted_looking_labels = options->allow_shifted_looking_labels;
    p->buffer_bytes = options->buffer_bytes ? options->buffer_bytes : (size_t)64 << 20;
    p->block_bytes = options->block_bytes ? options->block_bytes : (size_t)512 << 10;
    p->linger_ns = UINT64_C(1000000) * (options->linger_ms ? options->linger_ms : 20);
    p->timeout_ms = options->timeout_ms;
    p->on_reject = options->on_reject;
    p->ctx = options->ctx;
    return true;
}

static struct packd_producer *producer_new(const struct packd_producer_options *options)
{
    struct packd_producer *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->magic = PD_PRODUCER_MAGIC;
    pthread_mutex_init(&p->lock, NULL);
    pd_cond_init(&p->changed);
    pd_cond_init(&p->wake);
    if (copy_options(p, options))
        return p;
    producer_free(p);
    return NULL;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void deliver_rejects(struct packd_producer *p)
{
    bool was_full = p->reject_tail - p->reject_head == PD_REJECTS_MAX;
    while (p->reject_head != p->reject_tail) {
        struct pd_producer_reject at = p->rejects[p->reject_head++ % PD_REJECTS_MAX];
        struct packd_reject reject = {at.seq, at.count, at.reason, at.text};
        pthread_mutex_unlock(&p->lock);
        p->on_reject(p->ctx, &reject);
        pthread_mutex_lock(&p->lock);
    }
    if (was_full)
        pd_push_wake(p);
}

static int timed_out(struct packd_producer *p, const char *what, struct packd_error *error)
{
    const char *server = pd_channel_server(p->channel);
    uint64_t now = pd_clock_mono_ns();
    uint64_t pending = p->stats.next_seq - p->stats.durable_seq;
    if (p->down_since_ns && p->down.code)
        pd_client_error(error, PACKD_ETIMEDOUT, "NOT_CONNECTED",
                        "packd at %s: stream %s of feed %s: %s: no connection for %.1f s, %" PRIu64
                        " samples wait; last: %s",
                        server, p->stream, p->feed, what, (double)(now - p->down_since_ns) / 1e9,
                        pending, p->down.text);
    else if (p->down_since_ns)
        pd_client_error(error, PACKD_ETIMEDOUT, "NOT_CONNECTED",
                        "packd at %s: stream %s of feed %s: %s: no answer yet", server, p->stream,
                        p->feed, what);
    else
        pd_client_error(error, PACKD_ETIMEDOUT, "NOT_DURABLE",
                        "packd at %s: stream %s of feed %s: %s: %" PRIu64
                        " samples (%zu bytes) are not acknowledged yet%s%s",
                        server, p->stream, p->feed, what, pending, p->stats.buffered_bytes,
                        p->stats.waiting[0] ? "; the server says " : "", p->stats.waiting);
    if (error)
        error->grpc_code = p->down_since_ns ? p->down.grpc_code : 0;
    return PACKD_ETIMEDOUT;
}

/* Waits, lock held, until done(p, arg). */
static int wait_for(struct packd_producer *p, bool (*done)(struct packd_producer *, uint64_t),
                    uint64_t arg, uint64_t deadline_ns, const char *what, struct packd_error *error)
{
    for (;;) {
        deliver_rejects(p);
        if (done(p, arg))
            return 0;
        if (p->final.code) {
            if (error)
                *error = p->final;
            return p->final.code;
        }
        if (p->stopped)
            return pd_client_error(error, PACKD_ECANCELED, "STOPPED",
                                   "%s: the producer has been stopped", what);
        if (p->interrupted) {
            p->interrupted = false;
            return pd_client_error(error, PACKD_ECANCELED, "INTERRUPTED", "%s: interrupted", what);
        }
        if (pd_clock_mono_ns() >= deadline_ns)
            return timed_out(p, what, error);
        pd_cond_wait_until(&p->changed, &p->lock, deadline_ns);
    }
}

static bool is_welcomed(struct packd_producer *p, uint64_t arg)
{
    (void)arg;
    return p->welcomed_once;
}

static bool is_durable(struct packd_producer *p, uint64_t seq)
{
    return p->stats.durable_seq >= seq;
}

static bool is_ended(struct packd_producer *p, uint64_t arg)
{
    (void)arg;
    return p->stats.stream_ended;
}

static bool has_room(struct packd_producer *p, uint64_t bytes)
{
    return !p->final.code &&
           (p->stats.buffered_bytes == 0 || p->stats.buffered_bytes + bytes <= p->buffer_bytes);
}

/* ---- the interface --------------------------------------------------------------------------- */

int packd_producer_open(const struct packd_producer_options *options, struct packd_producer **out,
                        struct packd_error *error)
{
    int rc = check_options(options, error);
    if (rc == 0)
        rc = pd_connection_check(options->server, options->token, &options->tls, error);
    if (rc != 0)
        return rc;
    struct packd_producer *p = producer_new(options);
    if (!p)
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory for a producer");
    if (pthread_create(&p->thread, NULL, pd_push_run, p) != 0) {
        producer_free(p);
        return pd_client_error(error, PACKD_ENOMEM, "THREAD", "no thread for a producer");
    }
    uint64_t deadline = pd_conn_deadline_ns(PACKD_TIMEOUT_DEFAULT, p->timeout_ms, TIMEOUT_MS);
    pthread_mutex_lock(&p->lock);
    rc = wait_for(p, is_welcomed, 0, deadline, "open", error);
    pthread_mutex_unlock(&p->lock);
    if (rc != 0) {
        (void)packd_producer_close(p, 0, NULL);
        return rc;
    }
    *out = p;
    return 0;
}

/* An open block the sample may join. PACKD_ENOMEM. */
static int open_block(struct packd_producer *p, const struct packd_sample *sample)
{
    if (p->open && !pd_client_block_fits(p->open, sample, &p->limits, p->block_bytes)) {
        int rc = pd_push_seal(p);
        if (rc != 0)
            return rc;
        pd_push_wake(p);
    }
    if (p->open)
        return 0;
    p->open = pd_client_block_new(p->stats.next_seq, sample->labels != NULL);
    if (!p->open)
        return PACKD_ENOMEM;
    p->open->opened_ns = pd_clock_mono_ns();
    return 0;
}

/* Takes a checked sample for which there is room; lock held. */
static int take(struct packd_producer *p, const struct packd_sample *sample)
{
    int rc = open_block(p, sample);
    if (rc != 0)
        return rc;
    bool fresh = p->open->count == 0;
    size_t before = pd_client_block_cost(p->open);
    rc = pd_client_block_add(p->open, sample);
    if (rc != 0 && fresh) {
        pd_client_block_unref(p->open);
        p->open = NULL;
    }
    if (rc != 0)
        return rc;
    p->stats.next_seq++;
    p->stats.buffered_bytes += pd_client_block_cost(p->open) - before;
    if (pd_client_block_body_bytes(p->open) >= p->block_bytes)
        rc = pd_push_seal(p);
    if (fresh || !p->open)
        pd_push_wake(p);
    return 0; /* a block that could not be sealed now is sealed later */
}

static int put_one(struct packd_producer *p, const struct packd_sample *sample,
                   uint64_t deadline_ns, struct packd_error *error)
{
    if (p->stats.stream_ended || p->end_wanted)
        return pd_client_error(error, PACKD_EINVAL, "STREAM_ENDED",
                               "packd at %s: stream %s has ended at seq %" PRIu64,
                               pd_channel_server(p->channel), p->stream, p->stats.next_seq);
    int rc = pd_client_sample_check(sample, &p->limits, error);
    if (rc != 0) {
        pd_client_error_prefix(error, "stream %s, sample that would be seq %" PRIu64, p->stream,
                               p->stats.next_seq);
        return rc;
    }
    rc = wait_for(p, has_room, pd_client_sample_bytes(sample), deadline_ns, "put", error);
    if (rc != 0)
        return rc;
    rc = take(p, sample);
    if (rc != 0)
        pd_client_error(error, rc, "NO_MEMORY", "no memory for a sample of %zu tokens",
                        sample->count);
    return rc;
}

int packd_producer_put_many(struct packd_producer *p, const struct packd_sample *samples,
                            size_t count, int64_t timeout_ms, size_t *taken,
                            struct packd_error *error)
{
    PD_MAGIC_CHECK(p, PD_PRODUCER_MAGIC);
    uint64_t deadline = pd_conn_deadline_ns(timeout_ms, p->timeout_ms, TIMEOUT_MS);
    int rc = 0;
    size_t i = 0;
    pthread_mutex_lock(&p->lock);
    while (i < count && (rc = put_one(p, &samples[i], deadline, error)) == 0)
        i++;
    pthread_mutex_unlock(&p->lock);
    if (taken)
        *taken = i;
    return rc;
}

int packd_producer_put(struct packd_producer *p, const struct packd_sample *sample,
                       int64_t timeout_ms, struct packd_error *error)
{
    return packd_producer_put_many(p, sample, 1, timeout_ms, NULL, error);
}

/* Seals and waits until all that was put is durable; lock held. */
static int flush_locked(struct packd_producer *p, uint64_t deadline_ns, struct packd_error *error)
{
    if (pd_push_seal(p) != 0)
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory for a block's head");
    pd_push_wake(p);
    return wait_for(p, is_durable, p->stats.next_seq, deadline_ns, "flush", error);
}

int packd_producer_flush(struct packd_producer *p, int64_t timeout_ms, struct packd_error *error)
{
    PD_MAGIC_CHECK(p, PD_PRODUCER_MAGIC);
    uint64_t deadline = pd_conn_deadline_ns(timeout_ms, p->timeout_ms, TIMEOUT_MS);
    pthread_mutex_lock(&p->lock);
    int rc = flush_locked(p, deadline, error);
    pthread_mutex_unlock(&p->lock);
    return rc;
}

int packd_producer_end_stream(struct packd_producer *p, int64_t timeout_ms,
                              struct packd_error *error)
{
    PD_MAGIC_CHECK(p, PD_PRODUCER_MAGIC);
    uint64_t deadline = pd_conn_deadline_ns(timeout_ms, p->timeout_ms, TIMEOUT_MS);
    pthread_mutex_lock(&p->lock);
    int rc = flush_locked(p, deadline, error);
    if (rc == 0) {
        p->end_wanted = true;
        pd_push_wake(p);
        rc = wait_for(p, is_ended, 0, deadline, "end_stream", error);
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}

int packd_producer_end_feed(struct packd_producer *p, int64_t timeout_ms, bool *already,
                            struct packd_error *error)
{
    PD_MAGIC_CHECK(p, PD_PRODUCER_MAGIC);
    uint64_t deadline = pd_conn_deadline_ns(timeout_ms, p->timeout_ms, TIMEOUT_MS);
    int rc = packd_producer_flush(p, timeout_ms, error);
    if (rc != 0)
        return rc;
    Packd__V1__EndFeedRequest request = PACKD__V1__END_FEED_REQUEST__INIT;
    request.feed = p->feed;
    ProtobufCMessage *reply = NULL;
    rc = pd_conn_call(p->channel, "/packd.v1.Admin/EndFeed", &request.base,
                      &packd__v1__end_feed_response__descriptor, deadline, &reply, error);
    if (rc != 0) {
        pd_client_error_prefix(error, "feed %s", p->feed);
        return rc;
    }
    if (already)
        *already = ((Packd__V1__EndFeedResponse *)(void *)reply)->already;
    protobuf_c_message_free_unpacked(reply, NULL);
    return 0;
}

uint64_t packd_producer_next_seq(struct packd_producer *p)
{
    struct packd_producer_stats stats;
    packd_producer_stats(p, &stats);
    return stats.next_seq;
}

void packd_producer_stats(struct packd_producer *p, struct packd_producer_stats *stats)
{
    PD_MAGIC_CHECK(p, PD_PRODUCER_MAGIC);
    pthread_mutex_lock(&p->lock);
    *stats = p->stats;
    stats->credit_bytes = p->call_credit_bytes - p->call_sent_bytes;
    pthread_mutex_unlock(&p->lock);
}

void packd_producer_interrupt(struct packd_producer *p)
{
    PD_MAGIC_CHECK(p, PD_PRODUCER_MAGIC);
    pthread_mutex_lock(&p->lock);
    p->interrupted = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

void packd_producer_stop(struct packd_producer *p)
{
    PD_MAGIC_CHECK(p, PD_PRODUCER_MAGIC);
    pthread_mutex_lock(&p->lock);
    p->stopped = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pd_channel_cancel(p->channel);
}

int packd_producer_close(struct packd_producer *p, int64_t timeout_ms, struct packd_error *error)
{
    if (!p)
        return 0;
    PD_MAGIC_CHECK(p, PD_PRODUCER_MAGIC);
    int rc = 0;
    uint64_t deadline = pd_conn_deadline_ns(timeout_ms, p->timeout_ms, TIMEOUT_MS);
    pthread_mutex_lock(&p->lock);
    if (p->stats.durable_seq < p->stats.next_seq || p->final.code)
        rc = flush_locked(p, deadline, error);
    p->closing = true;
    p->close_deadline_ns = rc == 0 ? pd_clock_mono_ns() + UINT64_C(2000000000) : pd_clock_mono_ns();
    if (!p->welcomed_once || timeout_ms == 0)
        p->close_deadline_ns = pd_clock_mono_ns();
    pd_push_wake(p);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_mutex_lock(&p->lock);
    deliver_rejects(p);
    pthread_mutex_unlock(&p->lock);
    producer_free(p);
    return rc;
}
