/* The answering side of Ingest.Push: credit, and which message goes out when.
 *
 * Place in the flow: called by push.c whenever something has changed; writes at most one message,
 * the next one when that is written. Owning thread: the call's. Invariant: an Ack leaves only for
 * what the log has committed, behind the rejects that it covers; a block's bytes go back to the
 * pool when both are told. It reads no message. */
#include "server/rpc/push.h"
#include "server/rpc/waiting.h"

#include "base/arith.h"
#include "server/metrics.h"

#include <stdlib.h>
#include <string.h>

/* ---- credit ---- */

/* Whether the log takes more of this lane; else why and why_text say it. A block that has begun is
 * completed although its lane has had its share: others wait behind it. */
static bool lane_takes(struct push *push)
{
    struct pd_sequencer *sequencer = push_rpc(push)->options.sequencer;

    switch (pd_sequencer_accepts(sequencer, push->feed_index, push->lane, &push->why_text)) {
    case PD_SEQ_ACCEPTS:
        return true;
    case PD_SEQ_LANE_SHARE:
        push->why = PACKD__V1__LOG_STATE__LOG_LANE_SHARE;
        return push_rest(push) > 0;
    case PD_SEQ_STOPPED_FEED:
        push->why = PACKD__V1__LOG_STATE__LOG_HALTED;
        return false;
    case PD_SEQ_LOG_FULL:
        break;
    }
    push->why = PACKD__V1__LOG_STATE__LOG_FULL;
    if (pd_sequencer_stall(sequencer, push->feed_index, &push->stall)) {
        push->why = PACKD__V1__LOG_STATE__LOG_STALLED;
        push->why_text = "the log is full of steps that a job has not committed";
    }
    return false;
}

bool push_grant(struct push *push)
{
    struct pd_rpc *rpc = push_rpc(push);
    Packd__V1__LogState before = push->why;
    bool grew = false;

    push->why = PACKD__V1__LOG_STATE__LOG_OK;
    push->why_text = "";
    push->peer_full = false;
    if (atomic_load(&rpc->draining)) {
        push->why = PACKD__V1__LOG_STATE__LOG_DRAINING;
        push->why_text = "the server is going down";
    } else if (!lane_takes(push)) {
        pd_credit_stand_back(&push->credit);
    } else {
        grew = pd_credit_grant(&push->credit, push_rest(push)) || push->withheld;
        push->withheld = false;
        if (!grew && pd_credit_is_short(&push->credit, push_rest(push))) {
            push->why = PACKD__V1__LOG_STATE__LOG_INGEST_MEMORY;
            push->peer_full = pd_credit_host_is_full(&push->credit);
            push->why_text = push->peer_full
                                 ? "limits.peer_bytes is shared out among the calls of this host"
                                 : "memory.ingest is shared out among the open calls";
        }
    }
    return grew || push->why != before;
}

static const char *throttle_word(const struct push *push)
{
    switch (push->why) {
    case PACKD__V1__LOG_STATE__LOG_FULL:
        return "log_full";
    case PACKD__V1__LOG_STATE__LOG_STALLED:
        return "log_stalled";
    case PACKD__V1__LOG_STATE__LOG_LANE_SHARE:
        return "lane_share";
    case PACKD__V1__LOG_STATE__LOG_HALTED:
        return "halted";
    case PACKD__V1__LOG_STATE__LOG_INGEST_MEMORY:
        return push->peer_full ? "peer_bytes" : "ingest_memory";
    case PACKD__V1__LOG_STATE__LOG_DRAINING:
        return "draining";
    default:
        return "other";
    }
}

void push_note_throttled(struct push *push)
{
    uint64_t now_ns = pd_clock_mono_ns();
    const struct pd_credit *credit = &push->credit;
    bool short_of = push->withheld || credit->granted_bytes == credit->used_bytes ||
                    pd_credit_is_short(credit, push_rest(push));
    bool throttled = push->why != PACKD__V1__LOG_STATE__LOG_OK && !push->half_closed && short_of;

    if (throttled && push->throttled_since_ns > 0)
        pd_metric_add_set(PD_S_THROTTLED, push->feed_index, throttle_word(push),
                          now_ns - push->throttled_since_ns);
    push->throttled_since_ns = throttled ? now_ns : 0;
}

/* ---- what is told ---- */

static void send_response(struct push *push, Packd__V1__PushResponse *response)
{
    (void)pd_call_send(&push->call, &response->base);
}

uint64_t push_piece_bytes_max(const struct push *push)
{
    return pd_min_u64(push->rules.block_bytes_max, PD_RPC_PIECE_BYTES_MAX);
}

static uint64_t credit_told(const struct push *push)
{
    return push->withheld ? 0 : push->credit.granted_bytes;
}

static void send_welcome(struct push *push)
{
    Packd__V1__PushResponse response = PACKD__V1__PUSH_RESPONSE__INIT;
    Packd__V1__Welcome welcome = PACKD__V1__WELCOME__INIT;
    struct pd_rpc *rpc = push_rpc(push);

    push->welcome_due = false;
    push->withheld = true;
    (void)push_grant(push);
    /* What is told as the largest message can be sent with the first credit: a call that cannot
     * send would not be seen to need more. So the first credit is set apart even where it cannot be
     * told yet. */
    if (push->withheld)
        (void)pd_credit_grant(&push->credit, 0);
    uint64_t half = push->credit.granted_bytes / 2;
    welcome.log_id = (char *)pd_log_id(rpc->options.log);
    welcome.incarnation = rpc->incarnation;
    welcome.durability = rpc->options.config->durability == PD_DURABILITY_FSYNC
                             ? PACKD__V1__DURABILITY__DURABILITY_FSYNC
                             : PACKD__V1__DURABILITY__DURABILITY_PROCESS;
    welcome.next_seq = push->durable_seq;
    welcome.credit_bytes = credit_told(push);
    welcome.why = push->why;
    push->piece_bytes_told = pd_min_u64(push_piece_bytes_max(push), half);
    welcome.max_piece_bytes = push->piece_bytes_told;
    welcome.max_head_bytes = pd_min_u64(PD_RPC_HEAD_BYTES_MAX, half);
    welcome.max_block_bytes = push->rules.block_bytes_max;
    welcome.max_sample_bytes = push->rules.sample_bytes_max;
    welcome.max_block_samples = push->rules.block_samples_max;
    welcome.stream_ended = push->stream_was_ended;
    welcome.server_version = (char *)rpc->options.version;
    welcome.seq_len = push->rules.seq_len;
    welcome.vocab_size = push->rules.vocab_size;
    welcome.rejected = push->rejected_before;
    welcome.rejected_for = push->rejected_for;
    response.what_case = PACKD__V1__PUSH_RESPONSE__WHAT_WELCOME;
    response.welcome = &welcome;
    send_response(push, &response);
}

/* As in Welcome two messages fit into what the call may send now. What was told stays: a producer
 * whose credit is less later on sends less. */
static uint64_t raise_piece_bytes(struct push *push)
{
    uint64_t half = (push->credit.granted_bytes - push->credit.used_bytes) / 2;
    uint64_t bytes = pd_min_u64(push_piece_bytes_max(push), half);

    if (bytes > push->piece_bytes_told)
        push->piece_bytes_told = bytes;
    return push->piece_bytes_told;
}

static void send_ack(struct push *push)
{
    Packd__V1__PushResponse response = PACKD__V1__PUSH_RESPONSE__INIT;
    Packd__V1__Ack ack = PACKD__V1__ACK__INIT;
    Packd__V1__Stall stall;

    push->ack_due = false;
    (void)push_grant(push);
    ack.durable_seq = push->durable_seq;
    ack.credit_bytes = credit_told(push);
    ack.why = push->why;
    if (push->why == PACKD__V1__LOG_STATE__LOG_STALLED) {
        pd_waiting_stall(&stall, &push->stall);
        ack.stall = &stall;
    }
    ack.text = (char *)push->why_text;
    ack.duplicates = push->duplicates;
    ack.rejected = push->rejected;
    ack.max_piece_bytes = raise_piece_bytes(push);
    response.what_case = PACKD__V1__PUSH_RESPONSE__WHAT_ACK;
    response.ack = &ack;
    send_response(push, &response);
}

static void send_reject(struct push *push, const struct append *append,
                        const struct pd_door_reject *item)
{
    Packd__V1__PushResponse response = PACKD__V1__PUSH_RESPONSE__INIT;
    Packd__V1__Reject reject = PACKD__V1__REJECT__INIT;
    char text[240];

    reject.seq = append->first_seq + item->index;
    reject.reason = (char *)pd_door_reason_name(item->reason);
    reject.detail =
        (char *)pd_door_reject_text(&append->rejects, item, &push->rules, text, sizeof(text));
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

/* ---- appends that are done ---- */

void push_append_free(struct push *push, struct append *append)
{
    pd_list_remove(&append->link);
    push->append_count--;
    pd_credit_release(&push->credit, append->bytes);
    pd_door_rejects_fini(&append->rejects);
    free(append->refusals);
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
    push_append_free(push, append);
    push->call.hold_reads = false;
    pd_call_read(&push->call);
}

/* Tells the next reject of the append; those of duplicates were told when they came first. False:
 * there is none left. */
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

void push_output(struct push *push)
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

void push_fail_request(struct push *push, const struct pd_request *request)
{
    if (request->result == PD_ECLOSED)
        pd_call_fail_draining(&push->call);
    else
        pd_call_fail(&push->call, &request->error);
}
