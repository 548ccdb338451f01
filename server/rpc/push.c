/* Ingest.Push: one call carries one stream.
 *
 *   Hello ──> open the stream ──> Welcome ──> [SampleBlock, BlockChunk ... ──door──> append ──> Reject ..., Ack]* ──> EndOfStream
 *
 * Place in the flow: between the producers and the sequencer. Owning thread: the call's. Invariant: bytes are counted against the credit from the moment a
 * message is taken until the log has the block (and its rejects are told), so memory.ingest bounds all calls together. Appends are answered in order; an Ack
 * leaves only for what the log has committed.
 *
 * When full: without credit the producer waits, and the Ack says why; with APPENDS_MAX blocks on the way the next message is not read. A call that sends more
 * than it was granted ends with CREDIT. */
#include "server/rpc/ask.h"
#include "server/rpc/push_block.h"

#include "base/check.h"
#include "server/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define APPENDS_MAX 16
#define BLOCK_SAMPLES_MAX 16384
#define HELLO_BYTES_MAX 16384
#define TEXT_MAX 255
/* Messages of very many tiny slices cost more to keep than their bytes; they are copied into one. */
#define SLICES_FREE 64
#define SLICE_BYTES_MIN 64

enum push_state { AWAIT_HELLO, OPENING, STREAMING, ENDING, ENDED };

struct push {
    struct pd_call call;
    enum push_state state;
    const struct pd_feed_config *feed;
    struct pd_door_rules rules;
    uint32_t feed_index, stream_id, lane, source_id;
    uint64_t epoch;
    bool stream_was_ended;
    uint64_t next_seq; /* expected next, with what is on the way */
    uint64_t durable_seq;
    uint64_t duplicates, rejected;
    struct pd_credit credit;
    struct push_block *block; /* whose pieces are arriving, or NULL */
    uint64_t message_ns;      /* when the last message came */
    struct pd_link appends;   /* on their way, oldest first */
    uint32_t append_count;
    Packd__V1__LogState why; /* as told last */
    const char *why_text;
    bool welcome_due, ack_due, ended_due, half_closed, stopping;
};

/* A block in the sequencer's hands. */
struct append {
    struct pd_link link;
    struct pd_ask *ask;
    bool done;
    uint64_t first_seq;
    uint32_t count;
    uint64_t bytes; /* charged */
    struct pd_door_rejects rejects;
    uint32_t reject_at; /* next one to tell */
};

static void output(struct push *push);

static struct push *push_of(struct pd_call *call)
{
    return PD_CONTAINER_OF(call, struct push, call);
}

static struct pd_rpc *rpc_of(const struct push *push)
{
    return push->call.thread->rpc;
}

static void fail(struct push *push, const struct pd_error *error)
{
    pd_call_fail(&push->call, error);
}

/* ---- credit ---- */

static uint64_t block_rest(const struct push *push)
{
    return push->block ? push_block_rest(push->block) : 0;
}

/* Grants what may be granted and notes why it is not more. True where the credit grew or the reason changed. */
static bool grant(struct push *push)
{
    struct pd_rpc *rpc = rpc_of(push);
    Packd__V1__LogState before = push->why;
    bool grew = false;

    push->why = PACKD__V1__LOG_STATE__LOG_OK;
    push->why_text = "";
    if (atomic_load(&rpc->draining)) {
        push->why = PACKD__V1__LOG_STATE__LOG_DRAINING;
        push->why_text = "the server is going down";
    } else if (!pd_sequencer_accepts(rpc->options.sequencer, push->feed_index, &push->why_text)) {
        push->why = PACKD__V1__LOG_STATE__LOG_FULL;
    } else {
        grew = pd_credit_grant(&push->credit, block_rest(push));
        if (!grew && pd_credit_is_short(&push->credit, block_rest(push))) {
            push->why = PACKD__V1__LOG_STATE__LOG_INGEST_MEMORY;
            push->why_text = "memory.ingest is shared out among the open calls";
        }
    }
    return grew || push->why != before;
}

/* ---- what is told ---- */

static void send_response(struct push *push, Packd__V1__PushResponse *response)
{
    (void)pd_call_send(&push->call, &response->base);
}

static uint64_t piece_bytes_max(const struct push *push)
{
    uint64_t block = push->rules.block_bytes_max;

    return block < PD_RPC_PIECE_BYTES_MAX ? block : PD_RPC_PIECE_BYTES_MAX;
}

static void send_welcome(struct push *push)
{
    Packd__V1__PushResponse response = PACKD__V1__PUSH_RESPONSE__INIT;
    Packd__V1__Welcome welcome = PACKD__V1__WELCOME__INIT;
    struct pd_rpc *rpc = rpc_of(push);

    push->welcome_due = false;
    (void)grant(push);
    welcome.log_id = (char *)pd_log_id(rpc->options.log);
    welcome.incarnation = rpc->incarnation;
    welcome.durability = rpc->options.config->durability == PD_DURABILITY_FSYNC ? PACKD__V1__DURABILITY__DURABILITY_FSYNC
                                                                                : PACKD__V1__DURABILITY__DURABILITY_PROCESS;
    welcome.next_seq = push->durable_seq;
    welcome.credit_bytes = push->credit.granted_bytes;
    welcome.why = push->why;
    welcome.max_piece_bytes = piece_bytes_max(push);
    welcome.max_head_bytes = PD_RPC_HEAD_BYTES_MAX;
    welcome.max_block_bytes = push->rules.block_bytes_max;
    welcome.max_sample_bytes = push->rules.sample_bytes_max;
    welcome.max_block_samples = push->rules.block_samples_max;
    welcome.stream_ended = push->stream_was_ended;
    welcome.server_version = (char *)rpc->options.version;
    welcome.seq_len = push->rules.seq_len;
    welcome.vocab_size = push->rules.vocab_size;
    response.what_case = PACKD__V1__PUSH_RESPONSE__WHAT_WELCOME;
    response.welcome = &welcome;
    send_response(push, &response);
}

static void send_ack(struct push *push)
{
    Packd__V1__PushResponse response = PACKD__V1__PUSH_RESPONSE__INIT;
    Packd__V1__Ack ack = PACKD__V1__ACK__INIT;

    push->ack_due = false;
    (void)grant(push);
    ack.durable_seq = push->durable_seq;
    ack.credit_bytes = push->credit.granted_bytes;
    ack.why = push->why;
    ack.text = (char *)push->why_text;
    ack.duplicates = push->duplicates;
    ack.rejected = push->rejected;
    response.what_case = PACKD__V1__PUSH_RESPONSE__WHAT_ACK;
    response.ack = &ack;
    send_response(push, &response);
}

static void send_reject(struct push *push, const struct append *append, const struct pd_door_reject *item)
{
    Packd__V1__PushResponse response = PACKD__V1__PUSH_RESPONSE__INIT;
    Packd__V1__Reject reject = PACKD__V1__REJECT__INIT;
    char text[200];

    reject.seq = append->first_seq + item->index;
    reject.reason = (char *)pd_door_reason_name(item->reason);
    reject.detail = (char *)pd_door_reject_text(item, &push->rules, text, sizeof(text));
    reject.count = item->count;
    push->rejected += item->count;
    pd_metric_add_labelled(PD_M_INGEST_REJECTED, reject.reason, item->count);
    response.what_case = PACKD__V1__PUSH_RESPONSE__WHAT_REJECT;
    response.reject = &reject;
    send_response(push, &response);
}

static void send_ended(struct push *push)
{
    Packd__V1__PushResponse response = PACKD__V1__PUSH_RESPONSE__INIT;
    Packd__V1__StreamEnded ended = PACKD__V1__STREAM_ENDED__INIT;

    push->ended_due = false;
    ended.next_seq = push->next_seq;
    response.what_case = PACKD__V1__PUSH_RESPONSE__WHAT_ENDED;
    response.ended = &ended;
    send_response(push, &response);
}

/* ---- appends ---- */

static void append_free(struct push *push, struct append *append)
{
    pd_list_remove(&append->link);
    push->append_count--;
    pd_credit_release(&push->credit, append->bytes);
    pd_door_rejects_fini(&append->rejects);
    pd_ask_free(append->ask);
    free(append);
}

/* The oldest append is in the log and its rejects are told: its bytes are free again. */
static void retire(struct push *push, struct append *append)
{
    const struct pd_request_append *request = &append->ask->of.append;

    if (request->durable_seq > push->durable_seq)
        push->durable_seq = request->durable_seq;
    push->duplicates += request->duplicates;
    push->ack_due = true;
    append_free(push, append);
    push->call.hold_reads = false;
    pd_call_read(&push->call);
}

/* Tells the next reject of the append; those of duplicates were told when they came first. False: there is none left. */
static bool tell_reject(struct push *push, struct append *append)
{
    uint32_t duplicates = append->ask->of.append.duplicates;

    while (append->reject_at < append->rejects.count) {
        struct pd_door_reject item = append->rejects.items[append->reject_at++];
        if (item.index + item.count <= duplicates)
            continue;
        if (item.index < duplicates) {
            item.count -= duplicates - item.index;
            item.index = duplicates;
        }
        send_reject(push, append, &item);
        return true;
    }
    return false;
}

/* Retires what is done, as far as it can be told. True: a message was written. */
static bool settle_appends(struct push *push)
{
    while (!pd_list_empty(&push->appends)) {
        struct append *append = PD_CONTAINER_OF(push->appends.next, struct append, link);
        if (!append->done)
            return false;
        if (tell_reject(push, append))
            return true;
        retire(push, append);
    }
    return false;
}

/* Writes the next message that is due; called whenever something has changed. */
static void output(struct push *push)
{
    struct pd_call *call = &push->call;

    if (!pd_call_can_write(call))
        return;
    if (push->welcome_due)
        send_welcome(push);
    else if (settle_appends(push))
        return;
    else if (push->ack_due)
        send_ack(push);
    else if (push->ended_due)
        send_ended(push);
    else if (push->append_count > 0 || push->state == OPENING || push->state == ENDING)
        return;
    else if (push->stopping)
        pd_call_fail_draining(call);
    else if (push->half_closed)
        pd_call_finish(call);
}

static void fail_append(struct push *push, const struct pd_request *request)
{
    if (request->result == PD_ECLOSED)
        pd_call_fail_draining(&push->call);
    else
        fail(push, &request->error);
}

static void on_appended(struct pd_ask *ask)
{
    struct push *push = push_of(ask->call);
    struct append *append = ask->context;

    if (pd_call_is_over(&push->call)) {
        append_free(push, append);
        return;
    }
    if (ask->of.base.result != 0) {
        fail_append(push, &ask->of.base); /* frees the appends that are done; this one is not */
        append_free(push, append);
        return;
    }
    append->done = true;
    output(push);
}

static void submit_append(struct push *push, struct pd_block *block, struct pd_door_rejects *rejects,
                          uint64_t bytes)
{
    struct append *append = calloc(1, sizeof(*append));
    struct pd_ask *ask = append ? pd_ask_new(&push->call, PD_REQUEST_APPEND, on_appended) : NULL;

    if (!ask) {
        free(append);
        block->release(block);
        pd_door_rejects_fini(rejects);
        pd_credit_release(&push->credit, bytes);
        (void)pd_call_fail_with(&push->call, PD_ENOMEM, "MEMORY", "no memory for a request");
        return;
    }
    *append = (struct append){.ask = ask, .first_seq = block->head.first_seq, .count = block->head.count,
                              .bytes = bytes, .rejects = *rejects};
    ask->context = append;
    ask->of.append.block = block;
    ask->of.append.epoch = push->epoch;
    pd_list_push(&push->appends, &append->link);
    push->append_count++;
    push->call.hold_reads = push->append_count >= APPENDS_MAX;
    if (block->head.first_seq + block->head.count > push->next_seq)
        push->next_seq = block->head.first_seq + block->head.count;
    if (pd_ask_submit(ask) != 0) {
        block->release(block);
        append_free(push, append);
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
        fail(push, &error);
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
        return pd_error_set(error, PD_ELIMIT, "HEAD_TOO_LARGE", "a head of %zu bytes; max_head_bytes is %u",
                            found->head.size_bytes, PD_RPC_HEAD_BYTES_MAX);
    if (found->body.size_bytes > piece_bytes_max(push))
        return pd_error_set(error, PD_ELIMIT, "PIECE_TOO_LARGE", "a piece of %zu bytes; max_piece_bytes is %" PRIu64,
                            found->body.size_bytes, piece_bytes_max(push));
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
    (void)pd_error_set(&error, PD_EINVAL, "SEQ_GAP", "%s is %s; expected seq %s", what, found_text, expected_text);
    pd_call_fail_detail(&push->call, &error, &detail);
}

/* A block's head, decoded and checked as a whole; NULL: the call has failed. */
static Packd__V1__BlockHead *take_head(struct push *push, const struct pd_piece *pieces, uint32_t count,
                                       struct pd_wire_range range)
{
    uint8_t *scratch = malloc(range.size_bytes + 1);
    struct pd_error error;

    if (!scratch) {
        (void)pd_call_fail_with(&push->call, PD_ENOMEM, "MEMORY", "no memory for a head of %zu bytes", range.size_bytes);
        return NULL;
    }
    const uint8_t *flat = pd_wire_flat(pieces, count, range, scratch);
    Packd__V1__BlockHead *head = packd__v1__block_head__unpack(NULL, range.size_bytes, flat);
    free(scratch);
    if (!head) {
        (void)pd_call_fail_with(&push->call, PD_EINVAL, "MALFORMED", "%zu bytes are not a BlockHead", range.size_bytes);
        return NULL;
    }
    if (pd_door_check(head, &push->rules, &error) != 0) {
        fail(push, &error);
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
        fail(push, &error);
    else if (push_block_rest(push->block) == 0)
        finish_block(push);
    else if (pd_credit_is_short(&push->credit, block_rest(push)) && grant(push))
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
        fail(push, &error);
    else
        head = take_head(push, pieces, count, found->head);
    if (head && push_block_new(head, &push->block, &error) != 0) {
        fail(push, &error);
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
        (void)pd_call_fail_with(&push->call, PD_EINVAL, "PIECE_UNEXPECTED", "BlockChunk without an open block");
    else if (found->body.size_bytes == 0)
        (void)pd_call_fail_with(&push->call, PD_EINVAL, "MALFORMED", "BlockChunk without a body");
    else if (charge(push, found, &error) != 0)
        fail(push, &error);
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
        fail_append(push, &ask->of.base);
    push->state = ENDED;
    push->ended_due = true;
    output(push);
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

/* ---- Hello ---- */

static void set_rules(struct push *push, const Packd__V1__Hello *hello)
{
    const struct pd_config *config = rpc_of(push)->options.config;
    const struct pd_feed_config *feed = push->feed;
    uint64_t block = pd_credit_block_bytes(&rpc_of(push)->credit);

    push->rules = (struct pd_door_rules){
        .seq_len = feed->rules.seq_len,
        .reject_over_length = feed->rules.over_length == PD_OVER_REJECT,
        .vocab_size = feed->vocab_size,
        .sample_bytes_max = config->max_sample_bytes < block ? config->max_sample_bytes : block,
        .block_bytes_max = block,
        .block_samples_max = BLOCK_SAMPLES_MAX,
        .check_shifted = feed->check_shifted_labels && !hello->allow_shifted_looking_labels,
    };
}

static int check_hello(struct push *push, const Packd__V1__Hello *hello, const char *feed,
                       struct pd_error *error)
{
    const char *log_id = pd_log_id(rpc_of(push)->options.log);

    push->feed = pd_config_feed(rpc_of(push)->options.config, feed, &push->feed_index);
    if (!push->feed)
        return pd_error_set(error, PD_ENOTFOUND, "UNKNOWN_FEED", "there is no feed %s", feed);
    if (hello->log_id[0] && strcmp(hello->log_id, log_id) != 0)
        return pd_error_set(error, PD_EMISMATCH, "LOG_ID", "this server's log is %s, Hello expects %s", log_id, hello->log_id);
    if (hello->vocab_size && push->feed->vocab_size && hello->vocab_size != push->feed->vocab_size)
        return pd_error_set(error, PD_EMISMATCH, "VOCAB_MISMATCH", "feed %s has vocab_size %u, Hello states %u", feed,
                            push->feed->vocab_size, hello->vocab_size);
    if (strlen(hello->producer) > TEXT_MAX || strlen(hello->content_id) > TEXT_MAX || hello->tokenizer_digest.len > 64)
        return pd_error_set(error, PD_EINVAL, "BAD_RANGE", "producer and content_id take at most %d bytes, tokenizer_digest 64", TEXT_MAX);
    return 0;
}

static void on_opened(struct pd_ask *ask)
{
    struct push *push = push_of(ask->call);
    const struct pd_request_open_stream *request = &ask->of.open_stream;

    if (request->base.result != 0 && !pd_call_is_over(&push->call)) {
        fail_append(push, &request->base);
    } else if (!pd_call_is_over(&push->call)) {
        push->stream_id = request->stream_id;
        push->lane = request->lane;
        push->source_id = request->source_id;
        push->epoch = request->epoch;
        push->next_seq = push->durable_seq = request->next_seq;
        push->stream_was_ended = request->ended;
        push->state = STREAMING;
        push->welcome_due = true;
        output(push);
        pd_call_read(&push->call);
    }
    pd_ask_free(ask);
}

static void take_hello(struct push *push, const Packd__V1__Hello *hello)
{
    struct pd_ask *ask = pd_ask_new(&push->call, PD_REQUEST_OPEN_STREAM, on_opened);
    struct pd_error error;

    if (!ask)
        return;
    struct pd_request_open_stream *request = &ask->of.open_stream;
    const char *source = hello->source[0] ? hello->source : "default";
    if (atomic_load(&rpc_of(push)->draining)) {
        pd_call_fail_draining(&push->call);
    } else if (pd_feed_name_copy(request->feed, hello->feed, &error) != 0 ||
               pd_name_copy(request->stream, "stream", hello->stream, &error) != 0 ||
               pd_name_copy(request->source, "source", source, &error) != 0 ||
               check_hello(push, hello, request->feed, &error) != 0 ||
               pd_credit_open(&push->credit, &rpc_of(push)->credit, &error) != 0) {
        fail(push, &error);
    } else {
        set_rules(push, hello);
        (void)snprintf(request->producer, sizeof(request->producer), "%s", hello->producer);
        (void)snprintf(request->content_id, sizeof(request->content_id), "%s", hello->content_id);
        push->state = OPENING;
        if (pd_ask_submit(ask) == 0)
            return;
    }
    pd_ask_free(ask);
}

/* ---- the method ---- */

/* Hello and EndOfStream: small, decoded by protobuf-c as a whole. */
static void take_small(struct push *push, grpc_byte_buffer *buffer, const struct pd_wire_push *found)
{
    if (found->inner.size_bytes > HELLO_BYTES_MAX) {
        grpc_byte_buffer_destroy(buffer);
        (void)pd_call_fail_with(&push->call, PD_EINVAL, "MALFORMED", "Hello of %zu bytes", found->inner.size_bytes);
        return;
    }
    Packd__V1__PushRequest *request =
        (void *)pd_message_unpack(&push->call, &packd__v1__push_request__descriptor, buffer);
    if (!request)
        return;
    if (found->kind == PD_WIRE_HELLO)
        take_hello(push, request->hello);
    else
        take_end(push, request->end);
    packd__v1__push_request__free_unpacked(request, NULL);
}

/* Whether a message of this kind may come now; else the call has failed. */
static bool is_expected(struct push *push, enum pd_wire_kind kind)
{
    if ((kind == PD_WIRE_HELLO) != (push->state == AWAIT_HELLO))
        (void)pd_call_fail_with(&push->call, PD_EINVAL, "HELLO_EXPECTED", "the first message of Push is Hello, and no other one");
    else if (push->state == OPENING)
        (void)pd_call_fail_with(&push->call, PD_ELIMIT, "CREDIT", "wait for Welcome: nothing is granted yet");
    else if (push->state > STREAMING && kind != PD_WIRE_END)
        (void)pd_call_fail_with(&push->call, PD_EINVAL, "STREAM_ENDED", "a block behind EndOfStream");
    else if (push->block && kind != PD_WIRE_CHUNK)
        (void)pd_call_fail_with(&push->call, PD_EINVAL, "BLOCK_INCOMPLETE", "another message came with %" PRIu64 " bytes of the block missing",
                                push_block_rest(push->block));
    return !pd_call_is_over(&push->call);
}

/* Takes buffer. */
static void dispatch(struct push *push, grpc_byte_buffer *buffer, const struct pd_piece *pieces, uint32_t count)
{
    struct pd_wire_push found;
    struct pd_error error;

    if (pd_wire_push_split(pieces, count, &found, &error) != 0)
        fail(push, &error);
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

    push->message_ns = pd_clock_mono_ns();
    if (push->stopping) {
        grpc_byte_buffer_destroy(buffer);
        return;
    }
    buffer = compact(buffer);
    uint32_t count = pd_message_piece_count(buffer);
    struct pd_piece *pieces = malloc((count + 1) * sizeof(*pieces));
    if (!pieces) {
        grpc_byte_buffer_destroy(buffer);
        (void)pd_call_fail_with(call, PD_ENOMEM, "MEMORY", "no memory for a message");
        return;
    }
    pd_message_pieces(buffer, pieces);
    dispatch(push, buffer, pieces, count);
    free(pieces);
    output(push);
}

static void half_close(struct pd_call *call)
{
    struct push *push = push_of(call);

    if (push->state == AWAIT_HELLO)
        (void)pd_call_fail_with(call, PD_EINVAL, "HELLO_EXPECTED", "Push ended before Hello");
    else if (push->block)
        (void)pd_call_fail_with(call, PD_EINVAL, "BLOCK_INCOMPLETE", "Push ended with %" PRIu64 " bytes of a block missing",
                                push_block_rest(push->block));
    push->half_closed = true;
    output(push);
}

static void written(struct pd_call *call)
{
    output(push_of(call));
}

static void tick(struct pd_call *call)
{
    struct push *push = push_of(call);
    bool short_of = pd_credit_is_short(&push->credit, block_rest(push));
    uint64_t unsent = push->credit.granted_bytes - push->credit.used_bytes;
    uint64_t quiet_ns = pd_clock_mono_ns() - push->message_ns;

    if (push->state != STREAMING)
        return;
    if (push->block && unsent >= push_block_rest(push->block) && quiet_ns > rpc_of(push)->options.config->stall_ns) {
        (void)pd_call_fail_with(call, PD_ELIMIT, "STALL", "an open block made no progress for limits.stall, although there was credit");
        return;
    }
    if (!push->half_closed && (short_of || push->why != PACKD__V1__LOG_STATE__LOG_OK || atomic_load(&rpc_of(push)->draining)) &&
        grant(push))
        push->ack_due = true;
    output(push);
}

static void start(struct pd_call *call)
{
    struct push *push = push_of(call);

    pd_list_init(&push->appends);
    push->why_text = "";
    push->message_ns = pd_clock_mono_ns();
    atomic_fetch_add(&call->thread->rpc->push_calls, 1);
}

/* What is on its way to the log is still acked; then the call ends UNAVAILABLE. */
static void stop(struct pd_call *call)
{
    struct push *push = push_of(call);

    push->stopping = true;
    if (push->state == AWAIT_HELLO)
        pd_call_fail_draining(call);
    output(push);
}

/* Appends that the sequencer still holds are freed when it answers. */
static void closed(struct pd_call *call)
{
    struct push *push = push_of(call);

    if (push->block) {
        pd_credit_release(&push->credit, push_block_charged(push->block));
        push_block_free(push->block);
        push->block = NULL;
    }
    for (struct pd_link *at = push->appends.next; at != &push->appends;) {
        struct append *append = PD_CONTAINER_OF(at, struct append, link);
        at = at->next;
        if (append->done)
            append_free(push, append);
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
