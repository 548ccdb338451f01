/* Ingest.Push: one call carries one stream.
 *
 *   Hello ──> open the stream ──> Welcome ──> [block ──door──> append ──> Reject ..., Ack]*
 *   ──> EndOfStream ──> StreamEnded; a block is a SampleBlock and its BlockChunks
 *
 * Place in the flow: between the producers and the sequencer. Owning thread: the call's. Invariant:
 * bytes are counted against the credit from the moment a message is taken until the log has the
 * block (and its rejects are told), so memory.ingest bounds all calls together. Appends are
 * answered in order; an Ack leaves only for what the log has committed.
 *
 * When full: without credit the producer waits, and the Ack says why; with APPENDS_MAX blocks on
 * the way the next message is not read. A call that sends more than it was granted ends with
 * CREDIT. */
#include "server/rpc/push.h"

#include "base/check.h"
#include "server/ingest/strings.h"
#include "server/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define APPENDS_MAX 16
#define HELLO_BYTES_MAX 16384
/* Messages of very many tiny slices cost more to keep than their bytes; they are copied into one.
 */
#define SLICES_FREE 64
#define SLICE_BYTES_MIN 64

/* ---- appends ---- */

static void on_appended(struct pd_ask *ask)
{
    struct push *push = push_of(ask->call);
    struct append *append = ask->context;

    if (pd_call_is_over(&push->call)) {
        push_append_free(push, append);
        return;
    }
    if (ask->of.base.result != 0) {
        push_fail_request(push,
                          &ask->of.base); /* frees the appends that are done; this one is not */
        push_append_free(push, append);
        return;
    }
    append->done = true;
    pd_metric_observe(PD_M_APPEND_SECONDS, pd_clock_mono_ns() - append->since_ns);
    push_output(push);
}

/* NULL: none, or no memory. */
static struct pd_refusal *refusals_of(const struct pd_door_rejects *rejects)
{
    struct pd_refusal *refusals =
        rejects->count > 0 ? calloc(rejects->count, sizeof(*refusals)) : NULL;

    for (uint32_t i = 0; refusals && i < rejects->count; i++)
        refusals[i] = (struct pd_refusal){
            .index = rejects->items[i].index,
            .count = rejects->items[i].count,
            .reason = pd_door_reason_name((enum pd_door_reason)rejects->items[i].reason)};
    return refusals;
}

static void submit_append(struct push *push, struct pd_block *block,
                          struct pd_door_rejects *rejects, uint64_t bytes)
{
    struct append *append = calloc(1, sizeof(*append));
    struct pd_refusal *refusals = refusals_of(rejects);
    struct pd_ask *ask = append && (refusals || rejects->count == 0)
                             ? pd_ask_new(&push->call, PD_REQUEST_APPEND, on_appended)
                             : NULL;

    if (!ask) {
        free(append);
        free(refusals);
        block->release(block);
        pd_door_rejects_fini(rejects);
        pd_credit_release(&push->credit, bytes);
        (void)pd_call_fail_with(&push->call, PD_ENOMEM, "NO_MEMORY", "no memory for a request");
        return;
    }
    *append = (struct append){.ask = ask,
                              .first_seq = block->head.first_seq,
                              .count = block->head.count,
                              .bytes = bytes,
                              .since_ns = pd_clock_mono_ns(),
                              .rejects = *rejects,
                              .refusals = refusals};
    ask->context = append;
    ask->of.append.block = block;
    ask->of.append.epoch = push->epoch;
    ask->of.append.refusals = refusals;
    ask->of.append.refusal_count = rejects->count;
    pd_list_push(&push->appends, &append->link);
    push->append_count++;
    push->call.hold_reads = push->append_count >= APPENDS_MAX;
    if (block->head.first_seq + block->head.count > push->next_seq)
        push->next_seq = block->head.first_seq + block->head.count;
    if (pd_ask_submit(ask) != 0) {
        block->release(block);
        push_append_free(push, append);
    }
}

/* ---- messages ---- */

/* All pieces are there. */
static void finish_block(struct push *push)
{
    struct push_block *block = push->block;
    uint64_t bytes = push_block_charged(block);
    struct pd_block *out;
    struct pd_door_rejects rejects;
    struct pd_error error;

    push->block = NULL;
    if (push_block_finish(block, &push->rules, &out, &rejects, &error) != 0) {
        pd_credit_release(&push->credit, bytes);
        pd_call_fail(&push->call, &error);
        return;
    }
    out->head.feed = push->feed_index;
    out->head.lane = push->lane;
    out->head.stream = push->stream_id;
    out->head.source = push->source_id;
    submit_append(push, out, &rejects, bytes);
}

/* Counts a message's head and piece and checks their sizes. */
static int charge(struct push *push, const struct pd_wire_push *found, struct pd_error *error)
{
    if (found->head.size_bytes > PD_RPC_HEAD_BYTES_MAX)
        return pd_error_set(error, PD_ELIMIT, "HEAD_TOO_LARGE",
                            "a head of %zu bytes; max_head_bytes is %u", found->head.size_bytes,
                            PD_RPC_HEAD_BYTES_MAX);
    if (found->body.size_bytes > push_piece_bytes_max(push))
        return pd_error_set(error, PD_ELIMIT, "PIECE_TOO_LARGE",
                            "a piece of %zu bytes; max_piece_bytes is %" PRIu64,
                            found->body.size_bytes, push_piece_bytes_max(push));
    if (push->withheld)
        return pd_error_set(error, PD_ELIMIT, "CREDIT",
                            "a block, with 0 bytes granted: wait for an Ack that grants some");
    return pd_credit_use(&push->credit, found->head.size_bytes + found->body.size_bytes, error);
}

static void fail_gap(struct push *push, uint64_t found, const char *what)
{
    Packd__V1__ErrorDetail detail = PACKD__V1__ERROR_DETAIL__INIT;
    struct pd_error error;
    char expected_text[24], found_text[24];

    (void)snprintf(expected_text, sizeof(expected_text), "%" PRIu64, push->next_seq);
    (void)snprintf(found_text, sizeof(found_text), "%" PRIu64, found);
    detail.expected = expected_text;
    detail.found = found_text;
    detail.seq = (int64_t)push->next_seq;
    detail.step = detail.lowest_step = -1;
    (void)pd_error_set(&error, PD_EINVAL, "SEQ_GAP", "%s is %s; expected seq %s", what, found_text,
                       expected_text);
    pd_call_fail_detail(&push->call, &error, &detail);
}

/* A block's head, decoded and checked as a whole; NULL: the call has failed. */
static Packd__V1__BlockHead *take_head(struct push *push, const struct pd_piece *pieces,
                                       uint32_t count, struct pd_wire_range range)
{
    uint8_t *scratch = malloc(range.size_bytes + 1);
    struct pd_error error;

    if (!scratch) {
        (void)pd_call_fail_with(&push->call, PD_ENOMEM, "NO_MEMORY",
                                "no memory for a head of %zu bytes", range.size_bytes);
        return NULL;
    }
    const uint8_t *flat = pd_wire_flat(pieces, count, range, scratch);
    Packd__V1__BlockHead *head = packd__v1__block_head__unpack(NULL, range.size_bytes, flat);
    int rc = head ? pd_strings_check(head->base.descriptor, flat, range.size_bytes, &error)
                  : pd_error_set(&error, PD_EINVAL, "MALFORMED", "%zu bytes are not a BlockHead",
                                 range.size_bytes);
    free(scratch);
    if (!head) {
        pd_call_fail(&push->call, &error);
        return NULL;
    }
    if (rc != 0 || pd_door_check(head, &push->rules, &error) != 0) {
        pd_call_fail(&push->call, &error);
    } else if (head->first_seq > push->next_seq) {
        fail_gap(push, head->first_seq, "head.first_seq");
    } else {
        return head;
    }
    packd__v1__block_head__free_unpacked(head, NULL);
    return NULL;
}

static void add_piece(struct push *push, grpc_byte_buffer *buffer, const struct pd_piece *pieces,
                      uint32_t count, const struct pd_wire_push *found)
{
    struct pd_error error;

    push_block_charge(push->block, found->head.size_bytes + found->body.size_bytes);
    if (push_block_add(push->block, buffer, pieces, count, found->body, &error) != 0)
        pd_call_fail(&push->call, &error);
    else if (push_block_rest(push->block) == 0)
        finish_block(push);
    else if (pd_credit_is_short(&push->credit, push_rest(push)) && push_grant(push))
        push->ack_due = true;
}

/* SampleBlock: takes buffer. */
static void take_block(struct push *push, grpc_byte_buffer *buffer, const struct pd_piece *pieces,
                       uint32_t count, const struct pd_wire_push *found)
{
    struct pd_error error;
    Packd__V1__BlockHead *head = NULL;
    int rc = charge(push, found, &error);

    if (rc != 0)
        pd_call_fail(&push->call, &error);
    else
        head = take_head(push, pieces, count, found->head);
    if (head && push_block_new(head, &push->block, &error) != 0) {
        pd_call_fail(&push->call, &error);
        head = NULL;
    }
    if (!head) {
        grpc_byte_buffer_destroy(buffer);
        return;
    }
    add_piece(push, buffer, pieces, count, found);
}

/* BlockChunk: takes buffer. */
static void take_chunk(struct push *push, grpc_byte_buffer *buffer, const struct pd_piece *pieces,
                       uint32_t count, const struct pd_wire_push *found)
{
    struct pd_error error;

    if (!push->block)
        (void)pd_call_fail_with(&push->call, PD_EINVAL, "PIECE_UNEXPECTED",
                                "BlockChunk without an open block");
    else if (found->body.size_bytes == 0)
        (void)pd_call_fail_with(&push->call, PD_EINVAL, "MALFORMED", "BlockChunk without a body");
    else if (charge(push, found, &error) != 0)
        pd_call_fail(&push->call, &error);
    else {
        add_piece(push, buffer, pieces, count, found);
        return;
    }
    grpc_byte_buffer_destroy(buffer);
}

static void on_ended(struct pd_ask *ask)
{
    struct push *push = push_of(ask->call);

    if (ask->of.base.result != 0 && !pd_call_is_over(&push->call))
        push_fail_request(push, &ask->of.base);
    push->state = ENDED;
    push->ended_due = true;
    push_output(push);
    pd_ask_free(ask);
}

static void take_end(struct push *push, const Packd__V1__EndOfStream *end)
{
    if (push->state != STREAMING) {
        (void)pd_call_fail_with(&push->call, PD_EINVAL, "STREAM_ENDED", "EndOfStream came twice");
        return;
    }
    if (end->next_seq != push->next_seq) {
        fail_gap(push, end->next_seq, "EndOfStream.next_seq");
        return;
    }
    struct pd_ask *ask = pd_ask_new(&push->call, PD_REQUEST_END_STREAM, on_ended);
    if (!ask)
        return;
    ask->of.end_stream.feed_index = push->feed_index;
    ask->of.end_stream.stream_id = push->stream_id;
    ask->of.end_stream.epoch = push->epoch;
    ask->of.end_stream.next_seq = end->next_seq;
    push->state = ENDING;
    if (pd_ask_submit(ask) != 0)
        pd_ask_free(ask);
}

/* ---- the method ---- */

/* Hello and EndOfStream: small, decoded by protobuf-c as a whole. */
static void take_small(struct push *push, grpc_byte_buffer *buffer,
                       const struct pd_wire_push *found)
{
    if (found->inner.size_bytes > HELLO_BYTES_MAX) {
        grpc_byte_buffer_destroy(buffer);
        (void)pd_call_fail_with(&push->call, PD_EINVAL, "MALFORMED", "Hello of %zu bytes",
                                found->inner.size_bytes);
        return;
    }
    Packd__V1__PushRequest *request =
        (void *)pd_message_unpack(&push->call, &packd__v1__push_request__descriptor, buffer);
    if (!request)
        return;
    if (found->kind == PD_WIRE_HELLO)
        push_take_hello(push, request->hello);
    else
        take_end(push, request->end);
    packd__v1__push_request__free_unpacked(request, NULL);
}

/* Whether a message of this kind may come now; else the call has failed. */
static bool is_expected(struct push *push, enum pd_wire_kind kind)
{
    if ((kind == PD_WIRE_HELLO) != (push->state == AWAIT_HELLO))
        (void)pd_call_fail_with(&push->call, PD_EINVAL, "HELLO_EXPECTED",
                                "the first message of Push is Hello, and no other one");
    else if (push->state == OPENING)
        (void)pd_call_fail_with(&push->call, PD_ELIMIT, "CREDIT",
                                "wait for Welcome: nothing is granted yet");
    else if (push->state > STREAMING && kind != PD_WIRE_END)
        (void)pd_call_fail_with(&push->call, PD_EINVAL, "STREAM_ENDED",
                                "a block behind EndOfStream");
    else if (push->block && kind != PD_WIRE_CHUNK)
        (void)pd_call_fail_with(&push->call, PD_EINVAL, "BLOCK_INCOMPLETE",
                                "another message came with %" PRIu64 " bytes of the block missing",
                                push_block_rest(push->block));
    return !pd_call_is_over(&push->call);
}

/* Takes buffer. */
static void dispatch(struct push *push, grpc_byte_buffer *buffer, const struct pd_piece *pieces,
                     uint32_t count)
{
    struct pd_wire_push found;
    struct pd_error error;

    if (pd_wire_push_split(pieces, count, &found, &error) != 0)
        pd_call_fail(&push->call, &error);
    if (pd_call_is_over(&push->call) || !is_expected(push, found.kind)) {
        grpc_byte_buffer_destroy(buffer);
        return;
    }
    switch (found.kind) {
    case PD_WIRE_HELLO:
    case PD_WIRE_END:
        take_small(push, buffer, &found);
        return;
    case PD_WIRE_BLOCK:
        take_block(push, buffer, pieces, count, &found);
        return;
    case PD_WIRE_CHUNK:
        take_chunk(push, buffer, pieces, count, &found);
        return;
    }
}

/* A message whose slices are tiny, as one slice; else the message itself. */
static grpc_byte_buffer *compact(grpc_byte_buffer *buffer)
{
    size_t size = grpc_byte_buffer_length(buffer);
    uint32_t count = pd_message_piece_count(buffer);

    if (count <= SLICES_FREE || size / count >= SLICE_BYTES_MIN)
        return buffer;
    grpc_slice slice = grpc_slice_malloc(size);
    uint8_t *at = GRPC_SLICE_START_PTR(slice);
    const grpc_slice_buffer *slices = &buffer->data.raw.slice_buffer;
    for (size_t i = 0; i < slices->count; i++) {
        memcpy(at, GRPC_SLICE_START_PTR(slices->slices[i]), GRPC_SLICE_LENGTH(slices->slices[i]));
        at += GRPC_SLICE_LENGTH(slices->slices[i]);
    }
    grpc_byte_buffer_destroy(buffer);
    buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

static void message(struct pd_call *call, grpc_byte_buffer *buffer)
{
    struct push *push = push_of(call);

    push->message_ns = pd_rpc_patience_ns(push->call.thread);
    if (push->stopping) {
        grpc_byte_buffer_destroy(buffer);
        return;
    }
    buffer = compact(buffer);
    uint32_t count = pd_message_piece_count(buffer);
    struct pd_piece *pieces = malloc((count + 1) * sizeof(*pieces));
    if (!pieces) {
        grpc_byte_buffer_destroy(buffer);
        (void)pd_call_fail_with(call, PD_ENOMEM, "NO_MEMORY", "no memory for a message");
        return;
    }
    pd_message_pieces(buffer, pieces);
    dispatch(push, buffer, pieces, count);
    free(pieces);
    push_output(push);
}

static void half_close(struct pd_call *call)
{
    struct push *push = push_of(call);

    if (push->state == AWAIT_HELLO)
        (void)pd_call_fail_with(call, PD_EINVAL, "HELLO_EXPECTED", "Push ended before Hello");
    else if (push->block)
        (void)pd_call_fail_with(call, PD_EINVAL, "BLOCK_INCOMPLETE",
                                "Push ended with %" PRIu64 " bytes of a block missing",
                                push_block_rest(push->block));
    push->half_closed = true;
    push_output(push);
}

static void written(struct pd_call *call)
{
    push_output(push_of(call));
}

static void tick(struct pd_call *call)
{
    struct push *push = push_of(call);
    bool short_of = pd_credit_is_short(&push->credit, push_rest(push));
    uint64_t unsent = push->credit.granted_bytes - push->credit.used_bytes;

    if (push->state != STREAMING)
        return;
    if (push->append_count == 0 &&
        !pd_sequencer_owns(push_rpc(push)->options.sequencer, push->stream_id, push->epoch)) {
        (void)pd_call_fail_with(call, PD_EFENCED, "FENCED",
                                "another call has opened this stream since, or it was deleted");
        return;
    }
    if (push->block && unsent >= push_block_rest(push->block) &&
        pd_rpc_is_stalled(call->thread, push->message_ns)) {
        (void)pd_call_fail_with(
            call, PD_ELIMIT, "STALL",
            "an open block made no progress for limits.stall, although there was credit");
        return;
    }
    if (!push->half_closed &&
        (short_of || push->why != PACKD__V1__LOG_STATE__LOG_OK ||
         atomic_load(&push_rpc(push)->draining)) &&
        push_grant(push))
        push->ack_due = true;
    push_note_throttled(push);
    push_output(push);
}

static void start(struct pd_call *call)
{
    struct push *push = push_of(call);

    pd_list_init(&push->appends);
    push->why_text = "";
    push->message_ns = pd_rpc_patience_ns(push->call.thread);
    atomic_fetch_add(&call->thread->rpc->push_calls, 1);
}

/* What is on its way to the log is still acked; then the call ends UNAVAILABLE. */
static void stop(struct pd_call *call)
{
    struct push *push = push_of(call);

    push->stopping = true;
    if (push->state == AWAIT_HELLO)
        pd_call_fail_draining(call);
    push_output(push);
}

/* Appends that the sequencer still holds are freed when it answers. */
static void closed(struct pd_call *call)
{
    struct push *push = push_of(call);

    if (push->state >= STREAMING)
        push_close_stream(push);
    if (push->block) {
        pd_credit_release(&push->credit, push_block_charged(push->block));
        push_block_free(push->block);
        push->block = NULL;
    }
    for (struct pd_link *at = push->appends.next; at != &push->appends;) {
        struct append *append = PD_CONTAINER_OF(at, struct append, link);
        at = at->next;
        if (append->done)
            push_append_free(push, append);
    }
}

static void fini(struct pd_call *call)
{
    struct push *push = push_of(call);

    PD_CHECK(push->append_count == 0);
    pd_credit_close(&push->credit);
    atomic_fetch_sub(&call->thread->rpc->push_calls, 1);
}

const struct pd_method pd_methods_push[] = {
    {.path = "/packd.v1.Ingest/Push",
     .call_bytes = sizeof(struct push),
     .start = start,
     .message = message,
     .half_close = half_close,
     .written = written,
     .tick = tick,
     .stop = stop,
     .closed = closed,
     .fini = fini},
    {0},
};
