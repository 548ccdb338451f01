/* `load`'s side of packd.v1: Push, OpenJob, Fetch, EndFeed, by the letter of the contract and with
 * nothing beyond it. A head is encoded once but for its first_seq; small messages are read with
 * protobuf-c. */
#include "tests/bench/load.h"

#include "base/arith.h"
#include "base/bytes.h"
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

/* ---- the job ---- */

#define JOB_NAME_BYTES 24

static const char *job_name(uint32_t job, char name[JOB_NAME_BYTES])
{
    snprintf(name, JOB_NAME_BYTES, "load-%u", job);
    return name;
}

/* Its generation. */
static uint64_t open_job(struct load *load, const char *job, uint32_t ranks, bool reader)
{
    Packd__V1__OpenJobRequest request = PACKD__V1__OPEN_JOB_REQUEST__INIT;
    request.feed = "default";
    request.job = (char *)(uintptr_t)job;
    request.dp_size = ranks;
    request.rows = load->rows;
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
    uint64_t generation = response->generation;
    packd__v1__open_job_response__free_unpacked(response, NULL);
    grpc_slice_unref(reply);
    return generation;
}

static void packd_open(struct load *load)
{
    char name[JOB_NAME_BYTES];
    for (uint32_t job = 0; job < load->jobs; job++)
        load->generations[job] = open_job(load, job_name(job, name), load->ranks, false);
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
    uint8_t *columns; /* every head but for first_seq, its first field */
    size_t columns_bytes;
    uint64_t sent, next_seq, durable_seq;
    uint64_t used_bytes, credit_bytes;
    size_t body_at;                      /* sent of the block that is under way */
    size_t piece_bytes, piece_bytes_max; /* by Welcome; by the Acks since */
};

/* The columns of the spans: one image a sample, behind the text. */
struct images {
    uint32_t *counts, *offsets, *lengths, *patches, *grid_t, *grid_h, *grid_w;
};

static uint32_t *column(uint32_t count)
{
    uint32_t *values = malloc(count * sizeof *values);
    PD_CHECK(values);
    return values;
}

static struct images images_of(const struct load_body *body)
{
    uint32_t n = body->samples;
    struct images images = {column(n), column(n), column(n), column(n),
                            column(n), column(n), column(n)};
    for (uint32_t i = 0; i < n; i++) {
        images.counts[i] = images.grid_t[i] = 1;
        images.offsets[i] = LOAD_TEXT_TOKENS;
        images.lengths[i] = body->lengths[i] - LOAD_TEXT_TOKENS;
        images.grid_h[i] = body->grids[i][0];
        images.grid_w[i] = body->grids[i][1];
        images.patches[i] = images.grid_h[i] * images.grid_w[i];
    }
    return images;
}

static void free_images(struct images *images)
{
    free(images->counts);
    free(images->offsets);
    free(images->lengths);
    free(images->patches);
    free(images->grid_t);
    free(images->grid_h);
    free(images->grid_w);
}

static void encode_head(struct push *push, const Packd__V1__BlockHead *head)
{
    push->columns_bytes = protobuf_c_message_get_packed_size(&head->base);
    push->columns = malloc(push->columns_bytes);
    PD_CHECK(push->columns && head->first_seq == 0); /* 0: not written */
    protobuf_c_message_pack(&head->base, push->columns);
}

static void encode_media(struct push *push, Packd__V1__BlockHead *head)
{
    uint32_t patch_dims[] = {LOAD_PATCH_VALUES};
    uint32_t action_dims[] = {LOAD_ACTION_STEPS, LOAD_ACTION_VALUES};
    Packd__V1__TensorSpec patches = PACKD__V1__TENSOR_SPEC__INIT;
    Packd__V1__TensorSpec action = PACKD__V1__TENSOR_SPEC__INIT;
    Packd__V1__TensorSpec *tensors[] = {&patches, &action};
    Packd__V1__Spans spans = PACKD__V1__SPANS__INIT;
    struct images images = images_of(&push->stream->load->body);
    size_t n = head->n_lengths;
    patches.name = "pixel_values";
    patches.dtype = PACKD__V1__DTYPE__DTYPE_BFLOAT16;
    patches.axis = PACKD__V1__AXIS__AXIS_RAGGED;
    patches.unit = PACKD__V1__RAGGED_UNIT__RAGGED_PATCH;
    patches.n_dims = PD_COUNT_OF(patch_dims), patches.dims = patch_dims;
    patches.n_counts = n, patches.counts = images.patches;
    action.name = "action";
    action.dtype = PACKD__V1__DTYPE__DTYPE_FLOAT32;
    action.axis = PACKD__V1__AXIS__AXIS_SAMPLE;
    action.n_dims = PD_COUNT_OF(action_dims), action.dims = action_dims;
    spans.n_counts = n, spans.counts = images.counts;
    spans.n_offsets = n, spans.offsets = images.offsets;
    spans.n_lengths = n, spans.lengths = images.lengths;
    spans.n_patches = n, spans.patches = images.patches;
    spans.n_grid_t = n, spans.grid_t = images.grid_t;
    spans.n_grid_h = n, spans.grid_h = images.grid_h;
    spans.n_grid_w = n, spans.grid_w = images.grid_w;
    spans.merge = LOAD_MERGE;
    head->spans = &spans;
    head->n_tensors = PD_COUNT_OF(tensors), head->tensors = tensors;
    encode_head(push, head);
    free_images(&images);
}

static void encode_columns(struct push *push)
{
    const struct load *load = push->stream->load;
    Packd__V1__BlockHead head = PACKD__V1__BLOCK_HEAD__INIT;
    head.n_lengths = load->body.samples;
    head.lengths = load->body.lengths;
    head.body_bytes = load->body.size;
    if (load->media)
        encode_media(push, &head);
    else
        encode_head(push, &head);
}

static size_t head_bytes(const struct push *push)
{
    return 1 + pd_varint_bytes(push->next_seq) + push->columns_bytes;
}

/* PushRequest{block: SampleBlock{head, body}}, up to the bytes of the body's first piece. */
static grpc_slice block_prefix(const struct push *push, size_t piece_bytes)
{
    uint8_t bytes[48], *at = bytes;
    size_t head = head_bytes(push), body = 1 + pd_varint_bytes(piece_bytes);
    *at++ = 0x12;
    at = pd_varint_write(at, 1 + pd_varint_bytes(head) + head + body + piece_bytes);
    *at++ = 0x0a;
    at = pd_varint_write(at, head);
    *at++ = 0x08;
    at = pd_varint_write(at, push->next_seq);
    size_t size = (size_t)(at - bytes);
    grpc_slice slice = grpc_slice_malloc(size + push->columns_bytes + body);
    at = GRPC_SLICE_START_PTR(slice);
    memcpy(at, bytes, size);
    memcpy(at + size, push->columns, push->columns_bytes);
    at += size + push->columns_bytes;
    *at++ = 0x7a;
    pd_varint_write(at, piece_bytes);
    return slice;
}

/* PushRequest{chunk: BlockChunk{body}}, likewise. */
static grpc_slice chunk_prefix(size_t piece_bytes)
{
    uint8_t bytes[24], *at = bytes;
    *at++ = 0x1a;
    at = pd_varint_write(at, 1 + pd_varint_bytes(piece_bytes) + piece_bytes);
    *at++ = 0x7a;
    at = pd_varint_write(at, piece_bytes);
    return grpc_slice_from_copied_buffer((const char *)bytes, (size_t)(at - bytes));
}

/* The next piece of the block that is under way, or of the next block: as large as the credit
 * allows, and worth a message. */
static void send_piece(struct push *push)
{
    const struct load_body *body = &push->stream->load->body;
    uint64_t rest = body->size - push->body_at, head = push->body_at == 0 ? head_bytes(push) : 0;
    uint64_t credit = push->credit_bytes - push->used_bytes;
    if (push->stream->call.writing || push->sent == push->stream->load->messages ||
        credit < head + pd_min_u64(rest, push->piece_bytes))
        return;
    size_t piece = pd_min_u64(pd_min_u64(rest, push->piece_bytes_max), credit - head);
    uint64_t cost = head + piece;
    grpc_slice slices[2] = {push->body_at == 0 ? block_prefix(push, piece) : chunk_prefix(piece),
                            grpc_slice_from_static_buffer(body->bytes + push->body_at, piece)};
    load_call_write(&push->stream->call, slices, 2);
    push->used_bytes += cost;
    push->body_at += piece;
    if (push->body_at < body->size)
        return;
    push->body_at = 0;
    push->next_seq += body->samples;
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
        push->piece_bytes = push->piece_bytes_max = response->welcome->max_piece_bytes;
        break;
    case PACKD__V1__PUSH_RESPONSE__WHAT_ACK:
        push->credit_bytes = response->ack->credit_bytes;
        push->durable_seq = response->ack->durable_seq;
        if (response->ack->max_piece_bytes > push->piece_bytes_max)
            push->piece_bytes_max = response->ack->max_piece_bytes;
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
    uint64_t samples = push.stream->load->messages * push.stream->load->body.samples;
    grpc_slice message;
    encode_columns(&push);
    say_hello(push.stream);
    while (push.durable_seq < samples) {
        load_call_read(call);
        send_piece(&push);
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

static void open_fetch(struct load_stream *stream, const char *job, uint64_t generation,
                       uint64_t credit)
{
    const struct load *load = stream->load;
    Packd__V1__FetchOpen open = PACKD__V1__FETCH_OPEN__INIT;
    Packd__V1__FetchRequest request = PACKD__V1__FETCH_REQUEST__INIT;
    open.feed = "default";
    open.job = (char *)(uintptr_t)job;
    open.log_id = (char *)(uintptr_t)load->log_id;
    open.generation = generation;
    open.dp_rank = stream->number % load->ranks;
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
    struct load *load = take.stream->load;
    uint32_t job = take.stream->number / load->ranks;
    char name[JOB_NAME_BYTES];
    grpc_slice message;
    if (take.stream->latency_wanted > 0) {
        uint64_t generation = open_job(load, "latency", 1, true);
        load_ask(take.stream);
        open_fetch(take.stream, "latency", generation, 1);
    } else {
        open_fetch(take.stream, job_name(job, name), load->generations[job], LOAD_CREDIT);
    }
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

const struct load_protocol load_packd = {packd_open, packd_push, packd_take, packd_pushed,
                                         say_hello};
