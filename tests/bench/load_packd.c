/* `load`'s side of packd.v1: Push, OpenJob, Fetch, EndFeed, by the letter of the contract and with
 * nothing beyond it. Heads are encoded here, since each has another first_seq; small messages are
 * read with protobuf-c. */
#include "tests/bench/load.h"

#include "base/check.h"
#include "proto/packd.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static grpc_slice pack(const ProtobufCMessage *message)
{
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(message));
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    return slice;
}

static uint8_t *put_varint(uint8_t *at, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

static size_t varint_bytes(uint64_t value)
{
    size_t count = 1;
    for (; value >= 0x80; value >>= 7)
        count++;
    return count;
}

/* ---- the job ---- */

static void open_job(struct load *load, const char *job, uint32_t ranks, bool reader)
{
    Packd__V1__OpenJobRequest request = PACKD__V1__OPEN_JOB_REQUEST__INIT;
    request.feed = "default";
    request.job = (char *)(uintptr_t)job;
    request.dp_size = ranks;
    request.rows = LOAD_ROWS;
    request.accum = 1;
    request.arrays = PACKD__V1__ARRAYS__ARRAYS_CORE;
    request.world_token = "load";
    request.kind = reader ? PACKD__V1__JOB_KIND__JOB_READER : request.kind;
    request.start_case = PACKD__V1__OPEN_JOB_REQUEST__START_FROM_START;
    request.from_start = 1;
    grpc_slice reply = load_unary(load->address, "/packd.v1.Feed/OpenJob", pack(&request.base));
    Packd__V1__OpenJobResponse *response = packd__v1__open_job_response__unpack(
        NULL, GRPC_SLICE_LENGTH(reply), GRPC_SLICE_START_PTR(reply));
    PD_CHECK(response);
    snprintf(load->log_id, sizeof load->log_id, "%s", response->log_id);
    load->generation = response->generation;
    packd__v1__open_job_response__free_unpacked(response, NULL);
    grpc_slice_unref(reply);
}

static void packd_open(struct load *load)
{
    open_job(load, "load", load->ranks, false);
}

static void packd_pushed(struct load *load)
{
    Packd__V1__EndFeedRequest request = PACKD__V1__END_FEED_REQUEST__INIT;
    request.feed = "default";
    grpc_slice_unref(load_unary(load->address, "/packd.v1.Admin/EndFeed", pack(&request.base)));
}

/* ---- Push ---- */

struct push {
    struct load_stream *stream;
    uint8_t *columns; /* lengths and body_bytes of every head, encoded */
    size_t columns_bytes;
    uint64_t sent, next_seq, durable_seq;
    uint64_t used_bytes, credit_bytes;
};

static void encode_columns(struct push *push)
{
    const struct load *load = push->stream->load;
    size_t packed = 0;
    for (uint32_t i = 0; i < load->length_count; i++)
        packed += varint_bytes(load->lengths[i]);
    uint8_t *at = push->columns = malloc(packed + 32);
    PD_CHECK(at);
    *at++ = 0x12; /* lengths */
    at = put_varint(at, packed);
    for (uint32_t i = 0; i < load->length_count; i++)
        at = put_varint(at, load->lengths[i]);
    *at++ = 0x18; /* body_bytes */
    at = put_varint(at, LOAD_BODY_BYTES);
    push->columns_bytes = (size_t)(at - push->columns);
}

static size_t head_bytes(const struct push *push)
{
    return 1 + varint_bytes(push->next_seq) + push->columns_bytes;
}

/* PushRequest{block: SampleBlock{head, body}}, up to the body's bytes. */
static grpc_slice block_prefix(const struct push *push)
{
    uint8_t bytes[48], *at = bytes;
    size_t head = head_bytes(push), body = 1 + varint_bytes(LOAD_BODY_BYTES);
    *at++ = 0x12;
    at = put_varint(at, 1 + varint_bytes(head) + head + body + LOAD_BODY_BYTES);
    *at++ = 0x0a;
    at = put_varint(at, head);
    *at++ = 0x08;
    at = put_varint(at, push->next_seq);
    size_t size = (size_t)(at - bytes);
    grpc_slice slice = grpc_slice_malloc(size + push->columns_bytes + body);
    at = GRPC_SLICE_START_PTR(slice);
    memcpy(at, bytes, size);
    memcpy(at + size, push->columns, push->columns_bytes);
    at += size + push->columns_bytes;
    *at++ = 0x7a;
    put_varint(at, LOAD_BODY_BYTES);
    return slice;
}

static void send_block(struct push *push)
{
    const struct load *load = push->stream->load;
    uint64_t cost = head_bytes(push) + LOAD_BODY_BYTES;
    if (push->stream->call.writing || push->sent == load->messages ||
        push->used_bytes + cost > push->credit_bytes)
        return;
    grpc_slice slices[2] = {block_prefix(push),
                            grpc_slice_from_static_buffer(load->body, LOAD_BODY_BYTES)};
    load_call_write(&push->stream->call, slices, 2);
    push->used_bytes += cost;
    push->next_seq += load->length_count;
    push->sent++;
}

static void take_answer(struct push *push, grpc_slice message)
{
    Packd__V1__PushResponse *response = packd__v1__push_response__unpack(
        NULL, GRPC_SLICE_LENGTH(message), GRPC_SLICE_START_PTR(message));
    PD_CHECK(response);
    switch (response->what_case) {
    case PACKD__V1__PUSH_RESPONSE__WHAT_WELCOME:
        PD_CHECK(response->welcome->next_seq == 0);
        push->credit_bytes = response->welcome->credit_bytes;
        break;
    case PACKD__V1__PUSH_RESPONSE__WHAT_ACK:
        push->credit_bytes = response->ack->credit_bytes;
        push->durable_seq = response->ack->durable_seq;
        break;
    default:
        fprintf(stderr, "load: packd refuses samples\n");
        exit(1);
    }
    packd__v1__push_response__free_unpacked(response, NULL);
}

static void say_hello(struct load_stream *stream)
{
    char name[32];
    Packd__V1__Hello hello = PACKD__V1__HELLO__INIT;
    Packd__V1__PushRequest request = PACKD__V1__PUSH_REQUEST__INIT;
    snprintf(name, sizeof name, "load-%u", stream->number);
    hello.feed = "default";
    hello.stream = name;
    request.what_case = PACKD__V1__PUSH_REQUEST__WHAT_HELLO;
    request.hello = &hello;
    grpc_slice slice = pack(&request.base);
    load_call_open(&stream->call, stream->load->address, "/packd.v1.Ingest/Push");
    load_call_write(&stream->call, &slice, 1);
}

static void *packd_push(void *arg)
{
    struct push push = {.stream = arg};
    struct load_call *call = &push.stream->call;
    uint64_t samples = push.stream->load->messages * push.stream->load->length_count;
    grpc_slice message;
    encode_columns(&push);
    say_hello(push.stream);
    while (push.durable_seq < samples) {
        load_call_read(call);
        send_block(&push);
        if (load_call_wait(call, &message) && GRPC_SLICE_LENGTH(message) > 0)
            take_answer(&push, message);
        grpc_slice_unref(message);
        PD_CHECK(!call->over);
    }
    load_call_close(call);
    free(push.columns);
    return NULL;
}

/* ---- Fetch ---- */

enum { TAG_BEGIN = 0x0a, TAG_CHUNK = 0x12, TAG_END = 0x22 };

static void open_fetch(struct load_stream *stream, const char *job, uint64_t credit)
{
    const struct load *load = stream->load;
    Packd__V1__FetchOpen open = PACKD__V1__FETCH_OPEN__INIT;
    Packd__V1__FetchRequest request = PACKD__V1__FETCH_REQUEST__INIT;
    open.feed = "default";
    open.job = (char *)(uintptr_t)job;
    open.log_id = (char *)(uintptr_t)load->log_id;
    open.generation = load->generation;
    open.dp_rank = stream->number;
    open.credit_batches = (uint32_t)credit;
    open.arrays = PACKD__V1__ARRAYS__ARRAYS_CORE;
    request.what_case = PACKD__V1__FETCH_REQUEST__WHAT_OPEN;
    request.open = &open;
    grpc_slice slice = pack(&request.base);
    load_call_open(&stream->call, load->address, "/packd.v1.Feed/Fetch");
    load_call_write(&stream->call, &slice, 1);
}

static void give_credit(struct load_stream *stream, uint64_t *credit)
{
    if (stream->call.writing || *credit == 0)
        return;
    Packd__V1__FetchCredit batches = PACKD__V1__FETCH_CREDIT__INIT;
    Packd__V1__FetchRequest request = PACKD__V1__FETCH_REQUEST__INIT;
    batches.batches = (uint32_t)*credit;
    request.what_case = PACKD__V1__FETCH_REQUEST__WHAT_CREDIT;
    request.credit = &batches;
    grpc_slice slice = pack(&request.base);
    *credit = 0;
    load_call_write(&stream->call, &slice, 1);
}

static uint64_t read_varint(const uint8_t **at, const uint8_t *end)
{
    uint64_t value = 0;
    for (unsigned shift = 0; *at < end && shift < 64; shift += 7) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
    return value;
}

/* BatchChunk.data's length: FetchResponse{chunk: {data}}. */
static uint64_t chunk_bytes(const uint8_t *at, size_t size)
{
    const uint8_t *end = at + size;
    at++;
    (void)read_varint(&at, end);
    at++;
    return read_varint(&at, end);
}

static uint64_t core_bytes(grpc_slice message)
{
    Packd__V1__FetchResponse *response = packd__v1__fetch_response__unpack(
        NULL, GRPC_SLICE_LENGTH(message), GRPC_SLICE_START_PTR(message));
    PD_CHECK(response && response->what_case == PACKD__V1__FETCH_RESPONSE__WHAT_BEGIN);
    uint64_t bytes = response->begin->payload_bytes;
    packd__v1__fetch_response__free_unpacked(response, NULL);
    return bytes;
}

struct take {
    struct load_stream *stream;
    uint64_t want_bytes, got_bytes, credit;
    bool ended;
};

static void take_message(struct take *take, grpc_slice message)
{
    const uint8_t *bytes = GRPC_SLICE_START_PTR(message);
    switch (bytes[0]) {
    case TAG_BEGIN:
        take->want_bytes = core_bytes(message);
        take->got_bytes = 0;
        break;
    case TAG_CHUNK:
        take->got_bytes += chunk_bytes(bytes, GRPC_SLICE_LENGTH(message));
        break;
    case TAG_END:
        take->ended = true;
        return;
    default:
        return; /* a wait, more of a header */
    }
    if (take->got_bytes < take->want_bytes)
        return;
    take->ended = load_took(take->stream, take->got_bytes);
    load_ask(take->stream);
    take->credit++;
}

static void *packd_take(void *arg)
{
    struct take take = {.stream = arg};
    struct load_call *call = &take.stream->call;
    bool probe = take.stream->latency_wanted > 0;
    grpc_slice message;
    if (probe)
        open_job(take.stream->load, "latency", 1, true);
    load_ask(take.stream);
    open_fetch(take.stream, probe ? "latency" : "load", probe ? 1 : LOAD_CREDIT);
    while (!take.ended) {
        load_call_read(call);
        give_credit(take.stream, &take.credit);
        if (load_call_wait(call, &message) && GRPC_SLICE_LENGTH(message) > 0)
            take_message(&take, message);
        grpc_slice_unref(message);
        PD_CHECK(!call->over || take.ended);
    }
    load_call_close(call);
    return NULL;
}

const struct load_protocol load_packd = {packd_open, packd_push, packd_take, packd_pushed};
