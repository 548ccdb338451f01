/* Calls of the stand-in for gRPC: a pair of ends that share one lock, and what each waits for.
 *
 * Every start of an operation, cancellation and half-close changes the pair and then looks at what
 * is waited for (`settle`): whatever can end does. So there is one place that says when
 * an operation ends:
 *
 *   RECV_MESSAGE   a message is there; NULL where none will come any more
 *   SEND_MESSAGE   there is room at the other end; not ok where nobody will read it
 *   RECV_STATUS    the status is there and every message before it has been read
 *   RECV_CLOSE     the server has sent its status, or the client is gone
 *
 * A call's end is its owner's; the pair is freed with the second end. Any thread. */
#include "tests/seam/calls.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* ---- batches ---- */

struct seam_batch {
    grpc_completion_queue *queue;
    void *tag;
    size_t left;
    bool ok;
};

/* Pair locked. */
static void op_end(struct seam_batch **slot, bool ok)
{
    struct seam_batch *batch = *slot;
    *slot = NULL;
    batch->ok &= ok;
    if (--batch->left > 0)
        return;
    seam_queue_end(batch->queue, batch->tag, batch->ok);
    free(batch);
}

/* ---- messages on their way ---- */

struct seam_message {
    struct seam_message *next;
    grpc_byte_buffer *buffer;
};

static void inbox_put(struct seam_inbox *inbox, grpc_byte_buffer *buffer)
{
    struct seam_message *message = calloc(1, sizeof *message);
    PD_CHECK(message);
    message->buffer = buffer;
    struct seam_message **at = &inbox->first;
    while (*at)
        at = &(*at)->next;
    *at = message;
    inbox->count++;
}

static grpc_byte_buffer *inbox_take(struct seam_inbox *inbox)
{
    struct seam_message *message = inbox->first;
    if (!message)
        return NULL;
    grpc_byte_buffer *buffer = message->buffer;
    inbox->first = message->next;
    inbox->count--;
    free(message);
    return buffer;
}

static void inbox_clear(struct seam_inbox *inbox)
{
    while (inbox->first)
        grpc_byte_buffer_destroy(inbox_take(inbox));
}

/* ---- metadata ---- */

static struct seam_metadata metadata_copy(const grpc_metadata *from, size_t count)
{
    struct seam_metadata copy = {.count = count, .items = calloc(count + 1, sizeof *copy.items)};
    PD_CHECK(copy.items);
    for (size_t i = 0; i < count; i++) {
        copy.items[i].key = grpc_slice_ref(from[i].key);
        copy.items[i].value = grpc_slice_ref(from[i].value);
    }
    return copy;
}

void seam_metadata_lend(const struct seam_metadata *from, grpc_metadata_array *to)
{
    to->count = to->capacity = from->count;
    to->metadata = calloc(from->count + 1, sizeof *to->metadata);
    PD_CHECK(to->metadata);
    for (size_t i = 0; i < from->count; i++)
        to->metadata[i] = from->items[i];
}

static void metadata_free(struct seam_metadata *metadata)
{
    for (size_t i = 0; i < metadata->count; i++) {
        grpc_slice_unref(metadata->items[i].key);
        grpc_slice_unref(metadata->items[i].value);
    }
    free(metadata->items);
}

/* ---- what ends now (pair locked) ---- */

static void settle_read(struct seam_pair *pair, struct grpc_call *end)
{
    struct seam_inbox *inbox = &pair->inbox[end->side];
    bool over = pair->cancelled || (end->side == SEAM_SERVER && pair->has_status);
    if (over)
        inbox_clear(inbox);
    if (!end->read || (inbox->count == 0 && !inbox->closed && !over))
        return;
    *end->read_to = inbox_take(inbox);
    op_end(&end->read, true);
}

static void settle_write(struct seam_pair *pair, struct grpc_call *end)
{
    struct seam_inbox *inbox = &pair->inbox[!end->side];
    bool lost = pair->cancelled || (end->side == SEAM_CLIENT && pair->has_status);
    if (!end->write || (!lost && inbox->count >= SEAM_MESSAGES_MAX))
        return;
    if (lost)
        grpc_byte_buffer_destroy(end->write_from);
    else
        inbox_put(inbox, end->write_from);
    end->write_from = NULL;
    op_end(&end->write, !lost);
}

static void settle_client(struct seam_pair *pair, struct grpc_call *client)
{
    if (client->headers && (pair->headers_sent || pair->has_status)) {
        *client->headers_to = (grpc_metadata_array){0};
        op_end(&client->headers, true);
    }
    if (!client->status || !pair->has_status || pair->inbox[SEAM_CLIENT].count > 0)
        return;
    *client->status_to.status = pair->status;
    *client->status_to.status_details = grpc_slice_ref(pair->status_text);
    seam_metadata_lend(&pair->trailing, client->status_to.trailing_metadata);
    pair->status_told = true;
    op_end(&client->status, true);
}

static void settle_server(struct seam_pair *pair, struct grpc_call *server)
{
    if (!server->close || (!pair->cancelled && !pair->has_status))
        return;
    *server->close_to = pair->cancelled;
    op_end(&server->close, true);
}

/* Twice: what one end reads makes room for what the other writes, and the other way round. */
static void settle(struct seam_pair *pair)
{
    for (int pass = 0; pass < 2; pass++)
        for (int side = 0; side < 2; side++) {
            settle_write(pair, &pair->ends[side]);
            settle_read(pair, &pair->ends[side]);
        }
    settle_client(pair, &pair->ends[SEAM_CLIENT]);
    settle_server(pair, &pair->ends[SEAM_SERVER]);
}

static void set_status(struct seam_pair *pair, grpc_status_code status, grpc_slice text)
{
    if (pair->has_status) {
        grpc_slice_unref(text);
        return;
    }
    pair->has_status = true;
    pair->status = status;
    pair->status_text = text;
    pair->inbox[SEAM_CLIENT].closed = true;
}

void seam_pair_cancel(struct seam_pair *pair, int side, grpc_status_code status, const char *text)
{
    pthread_mutex_lock(&pair->lock);
    if (side == SEAM_SERVER ? !pair->has_status : !pair->status_told) {
        set_status(pair, status, grpc_slice_from_copied_string(text ? text : ""));
        pair->cancelled = true;
        settle(pair);
    }
    pthread_mutex_unlock(&pair->lock);
}

/* ---- starting operations ---- */

static bool is_twice(const struct grpc_call *end, grpc_op_type op)
{
    switch (op) {
    case GRPC_OP_RECV_MESSAGE:
        return end->read != NULL;
    case GRPC_OP_SEND_MESSAGE:
        return end->write != NULL;
    case GRPC_OP_SEND_INITIAL_METADATA:
        return end->headers_begun;
    case GRPC_OP_SEND_STATUS_FROM_SERVER:
        return end->status_begun;
    default:
        return false;
    }
}

static void start_status(struct seam_pair *pair, const struct grpc_op_send_status_from_server *op)
{
    bool first = !pair->has_status;
    set_status(pair, op->status,
               op->status_details ? grpc_slice_ref(*op->status_details) : grpc_empty_slice());
    if (first)
        pair->trailing = metadata_copy(op->trailing_metadata, op->trailing_metadata_count);
}

/* Pair locked. What ends by itself is left in `now`. */
static void start_op(struct grpc_call *end, const grpc_op *op, struct seam_batch *batch)
{
    struct seam_pair *pair = end->pair;
    struct seam_batch *now = batch;
    switch (op->op) {
    case GRPC_OP_SEND_INITIAL_METADATA:
        end->headers_begun = true;
        if (end->side == SEAM_SERVER)
            pair->headers_sent = true;
        else
            pair->initial = metadata_copy(op->data.send_initial_metadata.metadata,
                                          op->data.send_initial_metadata.count);
        op_end(&now, !pair->cancelled);
        break;
    case GRPC_OP_SEND_MESSAGE:
        end->write = batch;
        end->write_from = seam_buffer_copy(op->data.send_message.send_message, pair->piece_bytes);
        break;
    case GRPC_OP_SEND_CLOSE_FROM_CLIENT:
        pair->inbox[SEAM_SERVER].closed = true;
        op_end(&now, true);
        break;
    case GRPC_OP_SEND_STATUS_FROM_SERVER:
        end->status_begun = true;
        start_status(pair, &op->data.send_status_from_server);
        op_end(&now, !pair->cancelled);
        break;
    case GRPC_OP_RECV_INITIAL_METADATA:
        end->headers = batch;
        end->headers_to = op->data.recv_initial_metadata.recv_initial_metadata;
        break;
    case GRPC_OP_RECV_MESSAGE:
        end->read = batch;
        end->read_to = op->data.recv_message.recv_message;
        break;
    case GRPC_OP_RECV_STATUS_ON_CLIENT:
        end->status = batch;
        end->status_to = op->data.recv_status_on_client;
        break;
    case GRPC_OP_RECV_CLOSE_ON_SERVER:
        end->close = batch;
        end->close_to = op->data.recv_close_on_server.cancelled;
        break;
    }
}

grpc_call_error grpc_call_start_batch(grpc_call *end, const grpc_op *ops, size_t count, void *tag,
                                      void *reserved)
{
    bool begins = false;
    PD_CHECK(!reserved);
    if (count == 0) { /* any thread, with nothing but the queue */
        seam_queue_begin(end->queue);
        seam_queue_end(end->queue, tag, true);
        return GRPC_CALL_OK;
    }
    struct seam_batch *batch = calloc(1, sizeof *batch);
    PD_CHECK(batch);
    *batch = (struct seam_batch){.queue = end->queue, .tag = tag, .left = count, .ok = true};
    pthread_mutex_lock(&end->pair->lock);
    for (size_t i = 0; i < count; i++)
        if (is_twice(end, ops[i].op)) {
            pthread_mutex_unlock(&end->pair->lock);
            free(batch);
            return GRPC_CALL_ERROR_TOO_MANY_OPERATIONS;
        }
    seam_queue_begin(end->queue);
    for (size_t i = 0; i < count; i++) {
        begins |= end->side == SEAM_CLIENT && ops[i].op == GRPC_OP_SEND_INITIAL_METADATA;
        start_op(end, &ops[i], batch);
    }
    settle(end->pair);
    pthread_mutex_unlock(&end->pair->lock);
    if (begins)
        seam_offer(end->pair);
    return GRPC_CALL_OK;
}

/* ---- ends ---- */

struct seam_pair *seam_pair_new(grpc_completion_queue *queue, const char *target, grpc_slice method)
{
    struct seam_pair *pair = calloc(1, sizeof *pair);
    PD_CHECK(pair && pthread_mutex_init(&pair->lock, NULL) == 0);
    pair->target = strdup(target);
    pair->method = grpc_slice_ref(method);
    pair->piece_bytes = SEAM_PIECE_BYTES;
    pair->refs = 1;
    for (int side = 0; side < 2; side++)
        pair->ends[side] = (struct grpc_call){.pair = pair, .side = side};
    pair->ends[SEAM_CLIENT].queue = queue;
    return pair;
}

void seam_pair_unref(struct seam_pair *pair)
{
    pthread_mutex_lock(&pair->lock);
    bool last = --pair->refs == 0;
    pthread_mutex_unlock(&pair->lock);
    if (!last)
        return;
    inbox_clear(&pair->inbox[SEAM_CLIENT]);
    inbox_clear(&pair->inbox[SEAM_SERVER]);
    metadata_free(&pair->initial);
    metadata_free(&pair->trailing);
    grpc_slice_unref(pair->status_text);
    grpc_slice_unref(pair->method);
    pthread_mutex_destroy(&pair->lock);
    free(pair->target);
    free(pair);
}

void grpc_call_unref(grpc_call *end)
{
    struct seam_pair *pair = end->pair;
    if (end->side == SEAM_CLIENT)
        seam_queue_time(end->queue, NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC));
    seam_pair_cancel(pair, end->side, GRPC_STATUS_CANCELLED, "let go");
    PD_CHECK(!end->read && !end->write && !end->headers && !end->status && !end->close);
    if (end->side == SEAM_SERVER)
        seam_call_left(pair);
    seam_pair_unref(pair);
}

grpc_call_error grpc_call_cancel_with_status(grpc_call *end, grpc_status_code status,
                                             const char *text, void *reserved)
{
    PD_CHECK(!reserved);
    seam_pair_cancel(end->pair, end->side, status, text);
    return GRPC_CALL_OK;
}

grpc_call_error grpc_call_cancel(grpc_call *end, void *reserved)
{
    return grpc_call_cancel_with_status(end, GRPC_STATUS_CANCELLED, "Cancelled", reserved);
}

int grpc_call_failed_before_recv_message(const grpc_call *end)
{
    struct seam_pair *pair = end->pair;
    pthread_mutex_lock(&pair->lock);
    bool failed = pair->cancelled;
    pthread_mutex_unlock(&pair->lock);
    return failed;
}

char *grpc_call_get_peer(grpc_call *end)
{
    (void)end;
    return strdup("ipv4:127.0.0.1:1");
}
