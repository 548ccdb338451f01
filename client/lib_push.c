/* The producer's thread: keeps a Push call open and moves sealed blocks through it.
 *
 * Order: Hello, Welcome, then blocks from Welcome.next_seq on, as far as the credit goes, at last
 * EndOfStream and half-close. A block stays on the list until an Ack covers it; when the call
 * breaks, the next one starts at the first block the server lacks. Invariant: blocks leave the list
 * only from its front and only when durable, so nothing is dropped and the order is that of put.
 * Calls nothing of the user's. */
#include "client/lib_producer.h"

#include "base/arith.h"
#include "base/check.h"
#include "base/clock.h"
#include "client/lib_error.h"
#include "proto/packd.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define METHOD "/packd.v1.Ingest/Push"
#define PIECE_MAX_BYTES (960u * 1024)
#define MESSAGE_MAX_BYTES (1u << 20) /* of the server's: all are small */

/* How a call ended. */
enum session { SESSION_RETRY, SESSION_FINAL, SESSION_CLOSED };

int pd_push_seal(struct packd_producer *p)
{
    struct pd_client_block *block = p->open;
    if (!block)
        return 0;
    int rc = pd_client_block_seal(block);
    if (rc != 0)
        return rc;
    p->open = NULL;
    if (p->last)
        p->last->next = block;
    else
        p->first = block;
    p->last = block;
    if (!p->unsent)
        p->unsent = block;
    return 0;
}

void pd_push_wake(struct packd_producer *p)
{
    if (p->live)
        pd_stream_ring(p->live);
    pthread_cond_signal(&p->wake);
}

static void set_final(struct packd_producer *p, const struct packd_error *error)
{
    p->final = *error;
    pd_client_error_prefix(&p->final, "stream %s of feed %s", p->stream, p->feed);
    p->final.grpc_code = error->grpc_code;
    pthread_cond_broadcast(&p->changed);
}

/* ---- sending --------------------------------------------------------------------------------- */

static int write_request(struct pd_stream *stream, const Packd__V1__PushRequest *request)
{
    size_t bytes = packd__v1__push_request__get_packed_size(request);
    uint8_t *data = malloc(bytes);
    if (!data)
        return PACKD_ENOMEM;
    packd__v1__push_request__pack(request, data);
    pd_stream_write(stream, &(struct pd_rpc_part){data, bytes, free, data}, 1);
    return 0;
}

static int write_hello(struct packd_producer *p, struct pd_stream *stream)
{
    Packd__V1__Hello hello = PACKD__V1__HELLO__INIT;
    hello.feed = p->feed;
    hello.stream = p->stream;
    hello.source = p->source;
    hello.producer = p->producer;
    hello.content_id = p->content_id;
    hello.vocab_size = p->vocab_size;
    hello.tokenizer_digest = (ProtobufCBinaryData){p->tokenizer_digest_bytes, p->tokenizer_digest};
    hello.allow_shifted_looking_labels = p->allow_shifted_looking_labels;
    hello.log_id = p->stats.log_id;
    Packd__V1__PushRequest request = PACKD__V1__PUSH_REQUEST__INIT;
    request.what_case = PACKD__V1__PUSH_REQUEST__WHAT_HELLO;
    request.hello = &hello;
    return write_request(stream, &request);
}

static int write_end(struct packd_producer *p, struct pd_stream *stream)
{
    Packd__V1__EndOfStream end = PACKD__V1__END_OF_STREAM__INIT;
    end.next_seq = p->stats.next_seq;
    Packd__V1__PushRequest request = PACKD__V1__PUSH_REQUEST__INIT;
    request.what_case = PACKD__V1__PUSH_REQUEST__WHAT_END;
    request.end = &end;
    p->end_sent = true;
    return write_request(stream, &request);
}

/* The next piece of `unsent`, as large as limits and credit allow; false where credit lacks. */
static bool write_piece(struct packd_producer *p, struct pd_stream *stream)
{
    struct pd_client_block *block = p->unsent;
    size_t body = pd_client_block_body_bytes(block), offset = p->unsent_offset;
    size_t head = offset == 0 ? block->head.size_bytes : 0;
    uint64_t left = p->call_credit_bytes - p->call_sent_bytes;
    if (left <= head)
        return false;
    size_t piece = body - offset;
    if (piece > p->limits.piece_bytes)
        piece = p->limits.piece_bytes;
    if (piece > left - head)
        piece = (size_t)(left - head);
    uint8_t prefix[64];
    struct pd_rpc_part parts[PD_RPC_PARTS_MAX];
    size_t count = pd_client_block_message(block, offset, piece, prefix, parts);
    pd_stream_write(stream, parts, count);
    p->call_sent_bytes += head + piece;
    p->stats.bytes_sent += head + piece;
    p->unsent_offset += piece;
    if (p->unsent_offset == body) {
        p->unsent = block->next;
        p->unsent_offset = 0;
        p->stats.blocks_sent++;
    }
    return true;
}

/* Starts whatever write is due. PACKD_ENOMEM. */
static int send_next(struct packd_producer *p, struct pd_stream *stream)
{
    if (!p->call_welcomed || p->half_closed || pd_stream_writing(stream))
        return 0;
    if (p->open && pd_clock_mono_ns() >= p->open->opened_ns + p->linger_ns) {
        int rc = pd_push_seal(p);
        if (rc != 0)
            return rc;
    }
    if (p->unsent) {
        write_piece(p, stream);
        return 0;
    }
    if (p->open)
        return 0;
    if (p->end_wanted && !p->end_sent && !p->stats.stream_ended)
        return write_end(p, stream);
    if (p->closing) {
        p->half_closed = true;
        pd_stream_half_close(stream);
    }
    return 0;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void drop_durable(struct packd_producer *p)
{
    while (p->first && p->first->first_seq + p->first->count <= p->stats.durable_seq) {
        struct pd_client_block *block = p->first;
        if (block == p->unsent && p->unsent_offset > 0)
            break; /* half sent: its rest must follow */
        if (block == p->unsent)
            p->unsent = block->next;
        p->first = block->next;
        if (!p->first)
            p->last = NULL;
        p->stats.buffered_bytes -= pd_client_block_cost(block);
        pd_client_block_unref(block);
    }
    pthread_cond_broadcast(&p->changed);
}

static uint64_t or_default(uint64_t value, uint64_t fallback)
{
    return value ? value : fallback;
}

static void take_limits(struct packd_producer *p, const Packd__V1__Welcome *welcome)
{
    p->limits = (struct pd_client_limits){
        .piece_bytes = pd_min_u64(or_default(welcome->max_piece_bytes, 256 << 10), PIECE_MAX_BYTES),
        .head_bytes = pd_min_u64(or_default(welcome->max_head_bytes, 512 << 10), PIECE_MAX_BYTES),
        .block_bytes = or_default(welcome->max_block_bytes, 64 << 20),
        .sample_bytes = or_default(welcome->max_sample_bytes, 64 << 20),
        .block_samples = or_default(welcome->max_block_samples, 4096)};
    p->stats.seq_len = welcome->seq_len;
    p->stats.vocab_size = welcome->vocab_size;
    p->stats.max_sample_bytes = pd_min_u64(p->limits.sample_bytes, p->limits.block_bytes);
}

/* Where the server stands against what we hold. */
static int check_next_seq(struct packd_producer *p, const Packd__V1__Welcome *welcome,
                          struct packd_error *error)
{
    const char *server = pd_channel_server(p->channel);
    if (welcome->next_seq > INT64_MAX) /* seqs would wrap around */
        return pd_client_error(error, PACKD_EINTERNAL, "MALFORMED",
                               "packd at %s wants seq %" PRIu64 ": no stream comes that far",
                               server, welcome->next_seq);
    if (welcome->next_seq < p->stats.durable_seq)
        return pd_client_error(
            error, PACKD_ECORRUPT, "SAMPLES_LOST",
            "packd at %s wants seq %" PRIu64 " after it had acknowledged all below %" PRIu64
            ": it lost samples (durability `process` and a power cut?); push again from there",
            server, welcome->next_seq, p->stats.durable_seq);
    if (p->welcomed_once && welcome->next_seq > p->stats.next_seq)
        return pd_client_error(error, PACKD_EFENCED, "SEQ_AHEAD",
                               "packd at %s has samples up to seq %" PRIu64
                               ", this producer has put only those below %" PRIu64
                               ": somebody else pushes to the stream",
                               server, welcome->next_seq, p->stats.next_seq);
    if (p->welcomed_once && welcome->stream_ended && welcome->next_seq < p->stats.next_seq)
        return pd_client_error(error, PACKD_EINVAL, "STREAM_ENDED",
                               "packd at %s: the stream ended at seq %" PRIu64, server,
                               welcome->next_seq);
    return 0;
}

/* Why the credit is small, as a Welcome or an Ack has it. */
static void set_waiting(struct packd_producer *p, Packd__V1__LogState state, const char *text)
{
    p->stats.waiting[0] = 0;
    if (state == PACKD__V1__LOG_STATE__LOG_OK)
        return;
    const ProtobufCEnumValue *why =
        protobuf_c_enum_descriptor_get_value(&packd__v1__log_state__descriptor, (int)state);
    snprintf(p->stats.waiting, sizeof p->stats.waiting, "%s%s%.110s", why ? why->name : "LOG_STATE",
             text[0] ? ": " : "", text);
}

static int on_welcome(struct packd_producer *p, const Packd__V1__Welcome *welcome,
                      struct packd_error *error)
{
    int rc = check_next_seq(p, welcome, error);
    if (rc != 0)
        return rc;
    uint64_t refused = pd_min_u64(welcome->rejected, welcome->next_seq);
    if (!p->welcomed_once) {
        p->stats.next_seq = p->stats.first_seq = welcome->next_seq;
        snprintf(p->stats.log_id, sizeof p->stats.log_id, "%.39s", welcome->log_id);
        p->stats.rejected_before = refused;
        snprintf(p->stats.rejected_for, sizeof p->stats.rejected_for, "%.127s",
                 welcome->rejected_for);
    }
    /* Some of them in a call that broke before it told. */
    if (refused > p->stats.rejected_before + p->stats.rejected)
        p->stats.rejected = refused - p->stats.rejected_before;
    take_limits(p, welcome);
    p->welcomed_once = p->call_welcomed = true;
    p->stats.connected = true;
    p->stats.stream_ended = welcome->stream_ended;
    p->stats.durable_seq = welcome->next_seq;
    p->call_credit_bytes = welcome->credit_bytes;
    set_waiting(p, welcome->why, "");
    p->unsent = p->first;
    p->unsent_offset = 0;
    p->down_since_ns = 0;
    p->down.code = 0;
    p->backoff.attempts = 0;
    drop_durable(p);
    return 0;
}

static void on_ack(struct packd_producer *p, const Packd__V1__Ack *ack)
{
    if (ack->durable_seq > p->stats.durable_seq && ack->durable_seq <= p->stats.next_seq)
        p->stats.durable_seq = ack->durable_seq;
    if (ack->credit_bytes > p->call_credit_bytes)
        p->call_credit_bytes = ack->credit_bytes;
    uint64_t piece_bytes = pd_min_u64(ack->max_piece_bytes, PIECE_MAX_BYTES);
    if (piece_bytes > p->limits.piece_bytes)
        p->limits.piece_bytes = piece_bytes;
    if (ack->duplicates > p->call_duplicates) {
        p->stats.duplicates += ack->duplicates - p->call_duplicates;
        p->call_duplicates = ack->duplicates;
    }
    set_waiting(p, ack->why, ack->text);
    drop_durable(p);
}

static void on_reject(struct packd_producer *p, const Packd__V1__Reject *reject)
{
    p->stats.rejected += reject->count ? reject->count : 1;
    if (!p->on_reject)
        return;
    PD_CHECK(p->reject_tail - p->reject_head < PD_REJECTS_MAX);
    struct pd_producer_reject *at = &p->rejects[p->reject_tail++ % PD_REJECTS_MAX];
    at->seq = reject->seq;
    at->count = reject->count ? reject->count : 1;
    snprintf(at->reason, sizeof at->reason, "%s", reject->reason);
    snprintf(at->text, sizeof at->text, "%s", reject->detail);
    pthread_cond_broadcast(&p->changed);
}

static int on_response(struct packd_producer *p, const Packd__V1__PushResponse *response,
                       struct packd_error *error)
{
    switch (response->what_case) {
    case PACKD__V1__PUSH_RESPONSE__WHAT_WELCOME:
        if (!p->call_welcomed)
            return on_welcome(p, response->welcome, error);
        return 0;
    case PACKD__V1__PUSH_RESPONSE__WHAT_ACK:
        if (p->call_welcomed)
            on_ack(p, response->ack);
        return 0;
    case PACKD__V1__PUSH_RESPONSE__WHAT_REJECT:
        on_reject(p, response->reject);
        return 0;
    case PACKD__V1__PUSH_RESPONSE__WHAT_ENDED:
        p->stats.stream_ended = true;
        pthread_cond_broadcast(&p->changed);
        return 0;
    default:
        return 0; /* a newer server's message */
    }
}

static Packd__V1__PushResponse *unpack(struct pd_message *message)
{
    struct pd_buf flat = {0};
    const uint8_t *data;
    size_t bytes;
    Packd__V1__PushResponse *response = NULL;
    if (pd_message_bytes(message) <= MESSAGE_MAX_BYTES) {
        while (pd_message_next(message, &data, &bytes))
            pd_buf_put(&flat, data, bytes);
        if (!flat.failed)
            response = packd__v1__push_response__unpack(NULL, flat.size_bytes, flat.data);
    }
    pd_buf_fini(&flat);
    return response;
}

static int on_message(struct packd_producer *p, struct pd_message *message,
                      struct packd_error *error)
{
    Packd__V1__PushResponse *response = unpack(message);
    pd_message_free(message);
    if (!response)
        return pd_client_error(error, PACKD_EINTERNAL, "MALFORMED",
                               "packd at %s: Push: a message that could not be read",
                               pd_channel_server(p->channel));
    int rc = on_response(p, response, error);
    packd__v1__push_response__free_unpacked(response, NULL);
    return rc;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static uint64_t next_deadline(const struct packd_producer *p, uint64_t welcome_deadline_ns)
{
    uint64_t deadline =
        p->call_welcomed ? pd_clock_mono_ns() + UINT64_C(60000000000) : welcome_deadline_ns;
    if (p->call_welcomed && p->open && p->open->opened_ns + p->linger_ns < deadline)
        deadline = p->open->opened_ns + p->linger_ns;
    if (p->closing && p->close_deadline_ns < deadline)
        deadline = p->close_deadline_ns;
    return deadline;
}

/* Reads go on while there is room for what they may bring. */
static void read_next(struct packd_producer *p, struct pd_stream *stream)
{
    bool room = p->reject_tail - p->reject_head < PD_REJECTS_MAX;
    if (room && !pd_stream_reading(stream))
        pd_stream_read(stream);
}

/* Runs one call until it ends; lock held but while waiting. Returns 0 where it ended with OK. */
static int session_loop(struct packd_producer *p, struct pd_stream *stream,
                        struct pd_rpc_failure *failure, struct packd_error *error)
{
    uint64_t welcome_deadline = pd_clock_mono_ns() + PD_ATTEMPT_NS;
    int rc = write_hello(p, stream);
    for (;;) {
        uint64_t now = pd_clock_mono_ns();
        if (rc == 0 && p->closing && now >= p->close_deadline_ns)
            rc = pd_client_error(error, PACKD_ETIMEDOUT, "CLOSED", "closed before all was durable");
        if (rc == 0 && !p->call_welcomed && now >= welcome_deadline)
            rc = pd_client_error(error, PACKD_ETIMEDOUT, "NO_WELCOME",
                                 "packd at %s: Push: no answer to Hello within 10 s",
                                 pd_channel_server(p->channel));
        if (rc == 0)
            rc = send_next(p, stream);
        if (rc == PACKD_ENOMEM && error->code == 0)
            pd_client_error(error, rc, "NO_MEMORY", "no memory for a message");
        if (rc != 0)
            return rc;
        read_next(p, stream);
        uint64_t deadline = next_deadline(p, welcome_deadline);
        pthread_mutex_unlock(&p->lock);
        struct pd_message *message = NULL;
        enum pd_stream_event event = pd_stream_wait(stream, deadline, &message);
        pthread_mutex_lock(&p->lock);
        if (event == PD_STREAM_CLOSED)
            return pd_stream_failure(stream, failure, error);
        if (event == PD_STREAM_MESSAGE)
            rc = on_message(p, message, error);
    }
}

static void session_reset(struct packd_producer *p)
{
    p->call_welcomed = p->half_closed = p->end_sent = false;
    p->call_sent_bytes = p->call_credit_bytes = p->call_duplicates = 0;
    p->stats.connected = false;
}

static enum session session_run(struct packd_producer *p, struct packd_error *error,
                                uint64_t *retry_after_ms)
{
    struct pd_stream *stream;
    struct pd_rpc_failure failure = {0};
    session_reset(p);
    int rc = pd_stream_open(p->channel, METHOD, &stream, error);
    if (rc != 0)
        return SESSION_RETRY;
    p->live = stream;
    rc = session_loop(p, stream, &failure, error);
    p->live = NULL;
    p->stats.connected = false;
    bool over = p->half_closed && rc == 0;
    pthread_mutex_unlock(&p->lock);
    pd_stream_free(stream);
    pthread_mutex_lock(&p->lock);
    *retry_after_ms = failure.retry_after_ms;
    if (over)
        return SESSION_CLOSED;
    if (rc == 0)
        pd_client_error(error, PACKD_EUNAVAIL, "CALL_ENDED",
                        "packd at %s: Push: the server ended the call",
                        pd_channel_server(p->channel));
    return rc == 0 || pd_conn_retryable(error, &failure) ? SESSION_RETRY : SESSION_FINAL;
}

static void pause_until(struct packd_producer *p, uint64_t until_ns)
{
    while (pd_clock_mono_ns() < until_ns &&
           !(p->closing && pd_clock_mono_ns() >= p->close_deadline_ns)) {
        uint64_t at =
            p->closing && p->close_deadline_ns < until_ns ? p->close_deadline_ns : until_ns;
        pd_cond_wait_until(&p->wake, &p->lock, at);
    }
}

void *pd_push_run(void *pointer)
{
    struct packd_producer *p = pointer;
    PD_MAGIC_CHECK(p, PD_PRODUCER_MAGIC);
    pthread_mutex_lock(&p->lock);
    p->down_since_ns = pd_clock_mono_ns();
    while (!(p->closing && pd_clock_mono_ns() >= p->close_deadline_ns)) {
        struct packd_error error = {0};
        uint64_t retry_after_ms = 0;
        enum session end = session_run(p, &error, &retry_after_ms);
        if (end == SESSION_CLOSED)
            break;
        if (end == SESSION_FINAL) {
            set_final(p, &error);
            break;
        }
        if (p->down_since_ns == 0)
            p->down_since_ns = pd_clock_mono_ns();
        if (p->welcomed_once)
            p->stats.reconnects++;
        p->down = error;
        snprintf(p->stats.waiting, sizeof p->stats.waiting, "%s: %.110s",
                 error.reason[0] ? error.reason : packd_error_name(error.code), error.text);
        pthread_cond_broadcast(&p->changed);
        if (p->closing && !p->first && !p->open)
            break;
        pause_until(p, pd_clock_mono_ns() + pd_backoff_next_ns(&p->backoff, retry_after_ms));
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}
