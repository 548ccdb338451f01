/* Feed.Fetch: batches of one dp_rank, in (step, micro) order, as credit allows.
 *
 *   FetchOpen ──> job by name ──────> [get ──> BatchBegin, chunks ──> delivered]* ──> EndOfFeed, OK
 *                                       └── not ready: Waiting now, at each change and every 2 s
 *
 * Place in the flow: between the clients and serve. Owning thread: the call's. Invariant: the
 * messages of a batch are not interleaved with others; a batch counts as delivered when the write
 * of its last piece has completed, not before. Payload and header are sent from the batch's memory:
 * each slice holds a reference to the batch and drops it on whatever thread gRPC lets go of it. It
 * builds nothing and decides no order. */
#include "server/rpc/ask.h"
#include "server/rpc/waiting.h"

#include "base/bytes.h"
#include "base/check.h"
#include "server/metrics.h"
#include "server/serve_view.h"

#include <inttypes.h>
#include <string.h>

#define WAITING_EVERY_NS 2000000000u
#define CORE_BYTES_FIELD 13 /* of BatchHeader */
#define PREFIX_BYTES_MAX 24 /* two tags, two lengths */

/* Field numbers in FetchResponse and of its payload fields, as they appear on the wire. */
enum { TAG_BEGIN = 0x0a, TAG_CHUNK = 0x12, TAG_HEADER = 0x2a, TAG_FIRST = 0x0a, TAG_DATA = 0x7a };

enum fetch_state { AWAIT_OPEN, STREAMING, ENDING };

struct fetch {
    struct pd_call call;
    enum fetch_state state;
    char feed[PD_NAME_MAX + 1], job[PD_NAME_MAX + 1];
    struct pd_batch_key key; /* the batch that is sent or comes next */
    uint32_t accum;
    bool core, has_last_step;
    uint64_t last_step;
    uint64_t credit_batches;
    uint64_t no_credit_since_ns; /* monotonic; 0 = there is credit, or nothing is wanted */
    /* the batch on its way */
    struct pd_ready_batch *batch;
    size_t header_sent;
    uint64_t payload_sent, payload_bytes;
    bool begun;
    /* the wait */
    struct pd_waiter waiter;
    struct pd_tag on_ready;
    bool waiting; /* the waiter is registered, or its event is on the way: holds a reference */
    struct pd_wait_info told; /* the last one sent in this wait; reason NONE: none */
    uint64_t told_ns;
    uint64_t wait_since_wall_ns; /* when this wait began */
    const char *waits_for;       /* in the metrics' word; NULL: it does not stand waiting */
    uint64_t waits_since_ns;     /* monotonic: its time is counted up to then */
    uint64_t begun_ns;           /* monotonic: when the batch's turn came */
    bool counted;                /* among the rank's calls */
    bool commit_needed_told;
    bool said_reached; /* that all before the step waited for has been received */
    uint64_t end_step; /* ENDING: steps the job has */
    Packd__V1__FetchOpen *open;
};

static void advance(struct fetch *fetch);

static struct fetch *fetch_of(struct pd_call *call)
{
    return PD_CONTAINER_OF(call, struct fetch, call);
}

/* ---- messages ---- */

static void send_response(struct fetch *fetch, Packd__V1__FetchResponse *response)
{
    (void)pd_call_send(&fetch->call, &response->base);
}

static void unref_batch(void *batch)
{
    pd_ready_batch_unref(batch);
}

static grpc_slice batch_slice(struct pd_ready_batch *batch, const uint8_t *data, size_t size)
{
    pd_ready_batch_ref(batch);
    return grpc_slice_new_with_user_data((void *)(uintptr_t)data, size, unref_batch, batch);
}

/* FetchResponse{outer: Message{inner: data}} and `rest` bytes of further fields behind data:
 * everything before data. */
static grpc_slice framing(uint8_t outer, uint8_t inner, size_t data, size_t rest)
{
    uint8_t bytes[PREFIX_BYTES_MAX], *at = bytes;

    *at++ = outer;
    at = pd_varint_write(at, 1 + pd_varint_bytes(data) + data + rest);
    *at++ = inner;
    at = pd_varint_write(at, data);
    return grpc_slice_from_copied_buffer((const char *)bytes, (size_t)(at - bytes));
}

static void write_slices(struct fetch *fetch, grpc_slice *slices, size_t count)
{
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(slices, count);

    for (size_t i = 0; i < count; i++)
        grpc_slice_unref(slices[i]);
    (void)pd_call_write(&fetch->call, buffer);
}

/* A piece of the header or the payload, at most PD_RPC_CHUNK_BYTES_MAX, as a message of its own. */
static size_t send_piece(struct fetch *fetch, uint8_t outer, const uint8_t *data, uint64_t left)
{
    size_t size = left < PD_RPC_CHUNK_BYTES_MAX ? (size_t)left : PD_RPC_CHUNK_BYTES_MAX;
    grpc_slice slices[2] = {framing(outer, TAG_DATA, size, 0),
                            batch_slice(fetch->batch, data, size)};

    write_slices(fetch, slices, 2);
    return size;
}

static void fill_delivery(const struct fetch *fetch, Packd__V1__Delivery *delivery)
{
    const struct pd_rpc *rpc = fetch->call.thread->rpc;
    const struct pd_ready_batch *batch = fetch->batch;

    delivery->log_id = (char *)pd_log_id(rpc->options.log);
    delivery->incarnation = rpc->incarnation;
    delivery->generation = batch->key.generation;
    delivery->verdict =
        batch->probed ? PACKD__V1__VERDICT__VERDICT_PROBED : PACKD__V1__VERDICT__VERDICT_STRUCTURAL;
    delivery->backend = batch->validator[0] ? (char *)batch->validator : (char *)"none";
    delivery->built_unix_ms = batch->built_unix_ns / 1000000u;
    delivery->validated_unix_ms = delivery->built_unix_ms;
    delivery->sent_unix_ms = pd_clock_wall_ns() / 1000000u;
    delivery->builds = batch->builds;
    delivery->server_version = (char *)rpc->options.version;
}

/* BatchBegin: the header (or its first piece) from the batch's memory, and the fields behind it
 * packed by protobuf-c. */
static void send_begin(struct fetch *fetch)
{
    Packd__V1__BatchBegin begin = PACKD__V1__BATCH_BEGIN__INIT;
    Packd__V1__Delivery delivery = PACKD__V1__DELIVERY__INIT;
    struct pd_ready_batch *batch = fetch->batch;
    size_t first =
        batch->header_bytes < PD_RPC_CHUNK_BYTES_MAX ? batch->header_bytes : PD_RPC_CHUNK_BYTES_MAX;

    fill_delivery(fetch, &delivery);
    begin.delivery = &delivery;
    begin.payload_bytes = fetch->payload_bytes;
    begin.header_bytes = batch->header_bytes;
    size_t rest = packd__v1__batch_begin__get_packed_size(&begin);
    grpc_slice slices[3] = {framing(TAG_BEGIN, TAG_FIRST, first, rest),
                            batch_slice(batch, batch->header, first), grpc_slice_malloc(rest)};
    (void)packd__v1__batch_begin__pack(&begin, GRPC_SLICE_START_PTR(slices[2]));
    fetch->begun = true;
    fetch->header_sent = first;
    write_slices(fetch, slices, 3);
}

static void send_next_piece(struct fetch *fetch)
{
    struct pd_ready_batch *batch = fetch->batch;

    if (!fetch->begun) {
        send_begin(fetch);
    } else if (fetch->header_sent < batch->header_bytes) {
        fetch->header_sent += send_piece(fetch, TAG_HEADER, batch->header + fetch->header_sent,
                                         batch->header_bytes - fetch->header_sent);
    } else {
        size_t size = send_piece(fetch, TAG_CHUNK, batch->payload + fetch->payload_sent,
                                 fetch->payload_bytes - fetch->payload_sent);
        fetch->payload_sent += size;
        pd_metric_add(PD_M_FETCH_BYTES, size);
    }
}

static bool all_sent(const struct fetch *fetch)
{
    return fetch->begun && fetch->header_sent == fetch->batch->header_bytes &&
           fetch->payload_sent == fetch->payload_bytes;
}

/* ---- waiting ---- */

/* Counts the time since the last look for what was waited for, and notes what is now (NULL:
 * nothing). */
static void note_wait(struct fetch *fetch, const char *waits_for)
{
    uint64_t now_ns = pd_clock_mono_ns();

    if (fetch->waits_for)
        pd_metric_add_set(PD_S_WAITED, fetch->key.feed_index, fetch->waits_for,
                          now_ns - fetch->waits_since_ns);
    fetch->waits_for = waits_for;
    fetch->waits_since_ns = now_ns;
}

/* Nothing is built before the self-test is over, and only the validator knows of it. */
static void mind_self_test(const struct fetch *fetch, struct pd_wait_info *info)
{
    struct pd_validation_info validation;

    if (info->reason != PD_WAIT_BUILDING)
        return;
    pd_validation_info(fetch->call.thread->rpc->options.validation, &validation);
    if (!validation.tested)
        info->reason = PD_WAIT_SELF_TEST;
}

static void tell_waiting(struct fetch *fetch, const struct pd_wait_info *info)
{
    Packd__V1__FetchResponse response = PACKD__V1__FETCH_RESPONSE__INIT;
    struct pd_waiting waiting;
    struct pd_stall stall;
    struct pd_sequencer *sequencer = fetch->call.thread->rpc->options.sequencer;

    if (fetch->told.reason == PD_WAIT_NONE)
        fetch->wait_since_wall_ns = info->since_ns ? info->since_ns : pd_clock_wall_ns();
    pd_waiting_make(&waiting, info, fetch->key.micro, fetch->call.thread->rpc->incarnation);
    waiting.message.since_unix_ms = fetch->wait_since_wall_ns / 1000000u;
    if ((info->reason == PD_WAIT_SAMPLES || info->reason == PD_WAIT_LOG_FULL) &&
        pd_sequencer_feed_full(sequencer, fetch->key.feed_index) &&
        pd_sequencer_stall(sequencer, fetch->key.feed_index, &stall))
        pd_waiting_make_commit(&waiting, &stall);
    response.what_case = PACKD__V1__FETCH_RESPONSE__WHAT_WAITING;
    response.waiting = &waiting.message;
    fetch->told = *info;
    fetch->told_ns = pd_clock_mono_ns();
    send_response(fetch, &response);
}

static void tell_no_credit(struct fetch *fetch)
{
    Packd__V1__FetchResponse response = PACKD__V1__FETCH_RESPONSE__INIT;
    struct pd_waiting waiting;
    uint64_t ago_ns = pd_clock_mono_ns() - fetch->no_credit_since_ns;

    pd_waiting_make_credit(&waiting, fetch->key.step, fetch->key.micro, pd_clock_wall_ns() - ago_ns,
                           fetch->call.thread->rpc->incarnation);
    response.what_case = PACKD__V1__FETCH_RESPONSE__WHAT_WAITING;
    response.waiting = &waiting.message;
    fetch->told_ns = pd_clock_mono_ns();
    send_response(fetch, &response);
}

static bool wait_changed(const struct fetch *fetch, const struct pd_wait_info *info)
{
    return fetch->told.reason != info->reason || strcmp(fetch->told.streams, info->streams) != 0 ||
           strcmp(fetch->told.source, info->source) != 0;
}

static void ready(struct pd_waiter *waiter) /* any thread */
{
    struct fetch *fetch = PD_CONTAINER_OF(waiter, struct fetch, waiter);

    pd_call_post(&fetch->call, &fetch->on_ready);
}

static void on_ready(struct pd_tag *tag, bool ok)
{
    struct fetch *fetch = PD_CONTAINER_OF(tag, struct fetch, on_ready);

    (void)ok;
    fetch->waiting = false;
    if (pd_call_is_over(&fetch->call))
        (void)pd_serve_cancel(fetch->call.thread->rpc->options.serve, &fetch->waiter);
    else
        advance(fetch);
    pd_call_unref(&fetch->call);
}

static void let_waiter_go(struct fetch *fetch)
{
    if (!fetch->waiting || !pd_serve_cancel(fetch->call.thread->rpc->options.serve, &fetch->waiter))
        return; /* or its event is on the way */
    fetch->waiting = false;
    pd_call_unref(&fetch->call);
}

/* ---- from batch to batch ---- */

/* BatchHeader.core_bytes, or the whole payload where the header names none. */
static uint64_t core_bytes(const struct pd_ready_batch *batch)
{
    struct pd_reader reader = pd_reader_of(batch->header, batch->header_bytes);

    while (pd_reader_left(&reader) > 0 && !reader.failed) {
        uint64_t tag = pd_reader_varint(&reader);
        uint64_t value =
            tag % 8 == 1 || tag % 8 == 5 ? (tag % 8 == 1 ? 8 : 4) : pd_reader_varint(&reader);
        if (tag == CORE_BYTES_FIELD << 3 && value > 0 && value <= batch->batch.payload_bytes)
            return value;
        if (tag % 8 != 0)
            (void)pd_reader_bytes(&reader, value);
    }
    return batch->batch.payload_bytes;
}

static struct pd_batch_key next_key(const struct fetch *fetch)
{
    struct pd_batch_key key = fetch->key;

    if (++key.micro == fetch->accum) {
        key.micro = 0;
        key.step++;
    }
    return key;
}

static void begin_batch(struct fetch *fetch, struct pd_ready_batch *batch)
{
    struct pd_batch_key next = next_key(fetch);

    note_wait(fetch, NULL);
    fetch->begun_ns = fetch->waits_since_ns;
    fetch->batch = batch;
    fetch->begun = false;
    fetch->header_sent = 0;
    fetch->payload_sent = 0;
    fetch->payload_bytes = fetch->core ? core_bytes(batch) : batch->batch.payload_bytes;
    fetch->credit_batches--;
    fetch->told = (struct pd_wait_info){0};
    if (!fetch->has_last_step || next.step <= fetch->last_step)
        pd_serve_prefetch(fetch->call.thread->rpc->options.serve, &next);
    send_next_piece(fetch);
}

static void on_delivered(struct pd_ask *ask)
{
    pd_ask_free(ask);
}

/* The step is whole at its readers for the first time, or this rank says that it has it. */
static void report_step(struct fetch *fetch, uint64_t step, bool said)
{
    struct pd_ask *ask = pd_ask_new(&fetch->call, PD_REQUEST_DELIVERED, on_delivered);

    if (!ask)
        return;
    ask->of.delivered.feed_index = fetch->key.feed_index;
    ask->of.delivered.job_id = fetch->key.job_id;
    ask->of.delivered.step = step;
    ask->of.delivered.said = said;
    if (pd_ask_submit(ask) != 0)
        pd_ask_free(ask);
}

static void end_batch(struct fetch *fetch)
{
    bool step_complete = false;

    pd_metric_observe(PD_M_FETCH_SECONDS, pd_clock_mono_ns() - fetch->begun_ns);
    pd_serve_delivered(fetch->call.thread->rpc->options.serve, fetch->batch, &step_complete);
    pd_ready_batch_unref(fetch->batch);
    fetch->batch = NULL;
    if (step_complete)
        report_step(fetch, fetch->key.step, false);
    fetch->key = next_key(fetch);
}

static void on_end_facts(struct pd_ask *ask);

/* Past the end: what EndOfFeed says about the feed is the sequencer's to tell. */
static void begin_end(struct fetch *fetch, uint64_t steps)
{
    struct pd_ask *ask = pd_ask_new(&fetch->call, PD_REQUEST_STATUS, on_end_facts);

    fetch->state = ENDING;
    fetch->end_step = steps;
    if (ask && pd_ask_submit(ask) != 0)
        pd_ask_free(ask);
}

/* With what the call is about; `lowest` only where the step is trimmed. */
static void fail_named(struct fetch *fetch, const struct pd_error *error, uint64_t lowest)
{
    Packd__V1__ErrorDetail detail = PACKD__V1__ERROR_DETAIL__INIT;

    detail.feed = fetch->feed;
    detail.job = fetch->job;
    detail.seq = -1;
    detail.step = (int64_t)fetch->key.step;
    detail.lowest_step = error->code == PD_ERANGE ? (int64_t)lowest : -1;
    pd_call_fail_detail(&fetch->call, error, &detail);
}

/* `bound` is what pd_serve_get said beside the error. */
static void fail_get(struct fetch *fetch, int rc, uint64_t bound, const struct pd_error *error)
{
    if (rc == PD_ECLOSED)
        pd_call_fail_draining(&fetch->call);
    else if (error->code != 0)
        fail_named(fetch, error, bound);
    else
        (void)pd_call_fail_with(&fetch->call, rc, rc == PD_EFENCED ? "FENCED" : "INTERNAL",
                                "step %" PRIu64 " of job %s: %s", fetch->key.step, fetch->job,
                                pd_err_text(rc));
}

/* Waiting for a step that is not planned: what lies before it, the rank has. A packd that has been
 * restarted knows it from here alone. */
static void say_reached(struct fetch *fetch, const struct pd_wait_info *info)
{
    if (fetch->said_reached || info->packs_missing == 0 || fetch->key.step == 0)
        return;
    fetch->said_reached = true;
    report_step(fetch, fetch->key.step - 1, true);
}

static void get(struct fetch *fetch)
{
    struct pd_ready_batch *batch = NULL;
    struct pd_wait_info info = {0};
    struct pd_error error = {0};
    uint64_t steps = 0;

    fetch->waiter.key = fetch->key;
    fetch->waiter.ready = ready;
    /* Before the call: ready may run on another thread before get has returned. */
    fetch->waiting = true;
    pd_call_ref(&fetch->call);
    int rc = pd_serve_get(fetch->call.thread->rpc->options.serve, &fetch->waiter, &batch, &info,
                          &steps, &error);
    if (rc == PD_EAGAIN) {
        mind_self_test(fetch, &info);
        say_reached(fetch, &info);
        note_wait(fetch, pd_waiting_label(info.reason));
        if (wait_changed(fetch, &info))
            tell_waiting(fetch, &info);
        return;
    }
    fetch->waiting = false;
    if (rc == 0)
        begin_batch(fetch, batch);
    else if (rc == PD_EEND)
        begin_end(fetch, steps);
    else
        fail_get(fetch, rc, steps, &error);
    pd_call_unref(&fetch->call);
}

/* Between batches: the job's uncommitted steps fill the log. Said once, until that has changed. */
static bool tell_commit_needed(struct fetch *fetch)
{
    Packd__V1__FetchResponse response = PACKD__V1__FETCH_RESPONSE__INIT;
    Packd__V1__CommitNeeded needed = PACKD__V1__COMMIT_NEEDED__INIT;
    Packd__V1__Stall message;
    struct pd_stall stall;
    struct pd_sequencer *sequencer = fetch->call.thread->rpc->options.sequencer;
    bool mine = pd_sequencer_stall(sequencer, fetch->key.feed_index, &stall) &&
                strcmp(stall.job, fetch->job) == 0;

    if (!mine || fetch->commit_needed_told) {
        fetch->commit_needed_told = mine;
        return false;
    }
    fetch->commit_needed_told = true;
    pd_waiting_stall(&message, &stall);
    needed.stall = &message;
    needed.steps_left = stall.bytes_per_step ? stall.bytes_left / stall.bytes_per_step : 0;
    response.what_case = PACKD__V1__FETCH_RESPONSE__WHAT_COMMIT_NEEDED;
    response.commit_needed = &needed;
    send_response(fetch, &response);
    return true;
}

/* Does what can be done now; called whenever something has changed. */
static void advance(struct fetch *fetch)
{
    struct pd_call *call = &fetch->call;

    if (fetch->state != STREAMING || !pd_call_can_write(call))
        return;
    if (fetch->batch) {
        if (!all_sent(fetch)) {
            send_next_piece(fetch);
            return;
        }
        end_batch(fetch);
        if (pd_call_is_over(call))
            return;
    }
    pd_serve_pass_skipped(call->thread->rpc->options.serve, &fetch->key);
    if (fetch->has_last_step && fetch->key.step > fetch->last_step) {
        pd_call_finish(call);
        return;
    }
    if (atomic_load(&call->thread->rpc->stopping)) {
        pd_call_fail_draining(call);
        return;
    }
    if (fetch->credit_batches == 0) {
        if (fetch->no_credit_since_ns == 0)
            fetch->no_credit_since_ns = fetch->told_ns = pd_clock_mono_ns();
        note_wait(fetch, "credit");
        return;
    }
    fetch->no_credit_since_ns = 0;
    if (tell_commit_needed(fetch))
        return;
    if (!fetch->waiting)
        get(fetch);
}

static void on_end_facts(struct pd_ask *ask)
{
    struct fetch *fetch = fetch_of(ask->call);
    Packd__V1__FetchResponse response = PACKD__V1__FETCH_RESPONSE__INIT;
    Packd__V1__EndOfFeed end = PACKD__V1__END_OF_FEED__INIT;
    const struct pd_feed_status *feed =
        ask->of.base.result == 0 ? pd_status_feed(&ask->of.status, fetch->feed) : NULL;
    const struct pd_job_status *job = pd_status_job(feed, fetch->job);

    end.last_step = (int64_t)fetch->end_step - 1;
    if (feed && job) {
        uint64_t steps = fetch->end_step - job->first_step;
        uint64_t served = steps * job->spec.step_packs;
        uint64_t packs =
            feed->packs_planned > job->first_pack ? feed->packs_planned - job->first_pack : 0;
        end.packs = feed->packs_planned;
        end.samples = feed->planner.samples;
        end.row_padding_packs = served > packs ? served - packs : 0;
        end.dropped_packs = packs > served ? packs - served : 0;
    }
    response.what_case = PACKD__V1__FETCH_RESPONSE__WHAT_END;
    response.end = &end;
    if (pd_call_can_write(&fetch->call)) {
        send_response(fetch, &response);
        pd_call_finish(&fetch->call);
    }
    pd_ask_free(ask);
}

/* ---- opening ---- */

static int check_open(struct fetch *fetch, const struct pd_job_info *job, struct pd_error *error)
{
    const Packd__V1__FetchOpen *open = fetch->open;

    if (open->generation != job->generation)
        return pd_error_set(error, PD_EFENCED, "FENCED",
                            "job %s is at generation %" PRIu64 ", this call at %" PRIu64
                            ": call OpenJob again, with the same world_token",
                            fetch->job, job->generation, open->generation);
    if (open->dp_rank >= job->spec.dp_size)
        return pd_error_set(error, PD_EMISMATCH, "DP_RANK", "dp_rank %u; job %s has dp_size %u",
                            open->dp_rank, fetch->job, job->spec.dp_size);
    if (open->first_micro >= job->spec.accum)
        return pd_error_set(error, PD_EMISMATCH, "MICRO", "first_micro %u; job %s has accum %u",
                            open->first_micro, fetch->job, job->spec.accum);
    return 0;
}

/* Serve has known the job since before OpenJob was answered. */
static void look_up(struct fetch *fetch)
{
    const struct pd_rpc_options *options = &fetch->call.thread->rpc->options;
    struct pd_error error;
    struct pd_job_info job;
    int rc = 0;

    if (!pd_config_feed(options->config, fetch->feed, &fetch->key.feed_index))
        rc = pd_error_set(&error, PD_ENOTFOUND, "UNKNOWN_FEED", "there is no feed %s", fetch->feed);
    if (rc == 0)
        rc = pd_serve_job_named(options->serve, fetch->key.feed_index, fetch->job, &job, &error);
    if (rc == 0)
        rc = check_open(fetch, &job, &error);
    if (rc != 0) {
        fail_named(fetch, &error, 0);
        return;
    }
    fetch->key.job_id = job.job_id;
    fetch->accum = job.spec.accum;
    fetch->state = STREAMING;
    fetch->counted = true;
    pd_serve_rank_calls(options->serve, &fetch->key, 1);
    advance(fetch);
}

static void take_open(struct fetch *fetch, Packd__V1__FetchOpen *open)
{
    struct pd_call *call = &fetch->call;
    struct pd_error error;

    fetch->open = open;
    if (pd_feed_name_copy(fetch->feed, open->feed, &error) != 0 ||
        pd_name_copy(fetch->job, "job", open->job, &error) != 0) {
        pd_call_fail(call, &error);
        return;
    }
    if (!pd_call_may_use(call, fetch->feed))
        return;
    fetch->key.generation = open->generation;
    fetch->key.step = open->first_step;
    fetch->key.micro = open->first_micro;
    fetch->key.dp_rank = open->dp_rank;
    fetch->core = open->arrays == PACKD__V1__ARRAYS__ARRAYS_CORE;
    fetch->has_last_step = open->until_case == PACKD__V1__FETCH_OPEN__UNTIL_LAST_STEP;
    fetch->last_step = open->last_step;
    fetch->credit_batches = open->credit_batches;
    if (open->log_id[0] && strcmp(open->log_id, pd_log_id(call->thread->rpc->options.log)) != 0) {
        (void)pd_call_fail_with(call, PD_EMISMATCH, "LOG_ID",
                                "this server's log is %s, the call is for %s",
                                pd_log_id(call->thread->rpc->options.log), open->log_id);
        return;
    }
    if (open->credit_batches == 0 ||
        (fetch->has_last_step && fetch->last_step < open->first_step)) {
        (void)pd_call_fail_with(call, PD_EINVAL, "BAD_RANGE",
                                "credit_batches is at least 1, last_step at least first_step");
        return;
    }
    look_up(fetch);
}

/* ---- the method ---- */

static void start(struct pd_call *call)
{
    fetch_of(call)->on_ready.done = on_ready;
    atomic_fetch_add(&call->thread->rpc->fetch_calls, 1);
}

static void message(struct pd_call *call, grpc_byte_buffer *buffer)
{
    struct fetch *fetch = fetch_of(call);
    Packd__V1__FetchRequest *request =
        (void *)pd_message_unpack(call, &packd__v1__fetch_request__descriptor, buffer);

    if (!request)
        return;
    if (fetch->state == AWAIT_OPEN && request->what_case == PACKD__V1__FETCH_REQUEST__WHAT_OPEN) {
        Packd__V1__FetchOpen *open = request->open;
        request->what_case = PACKD__V1__FETCH_REQUEST__WHAT__NOT_SET;
        request->open = NULL;
        take_open(fetch, open);
    } else if (fetch->state != AWAIT_OPEN &&
               request->what_case == PACKD__V1__FETCH_REQUEST__WHAT_CREDIT) {
        fetch->credit_batches += request->credit->batches;
        advance(fetch);
    } else {
        (void)pd_call_fail_with(
            call, PD_EINVAL, "OPEN_EXPECTED",
            "the first message of Fetch is FetchOpen, all others are FetchCredit");
    }
    packd__v1__fetch_request__free_unpacked(request, NULL);
}

/* A client that will grant nothing more: what it has granted is still sent. */
static void half_close(struct pd_call *call)
{
    if (fetch_of(call)->state == AWAIT_OPEN)
        (void)pd_call_fail_with(call, PD_EINVAL, "OPEN_EXPECTED", "Fetch ended before FetchOpen");
}

static void written(struct pd_call *call)
{
    advance(fetch_of(call));
}

static void tick(struct pd_call *call)
{
    struct fetch *fetch = fetch_of(call);
    uint64_t now_ns = pd_clock_mono_ns();

    bool due = now_ns - fetch->told_ns >= WAITING_EVERY_NS;

    note_wait(fetch, fetch->waits_for);
    if (fetch->state != STREAMING || fetch->batch || !pd_call_can_write(call) ||
        tell_commit_needed(fetch))
        return;
    if (fetch->no_credit_since_ns != 0) {
        if (due)
            tell_no_credit(fetch);
    } else if (fetch->waiting) {
        struct pd_wait_info info = {0};
        pd_serve_wait_info(call->thread->rpc->options.serve, &fetch->key, &info);
        mind_self_test(fetch, &info);
        if (info.reason != PD_WAIT_NONE)
            fetch->waits_for = pd_waiting_label(info.reason);
        if (info.reason != PD_WAIT_NONE && (due || wait_changed(fetch, &info)))
            tell_waiting(fetch, &info);
    }
}

/* A batch on its way is completed first. */
static void stop(struct pd_call *call)
{
    struct fetch *fetch = fetch_of(call);

    if (!fetch->batch && fetch->state != ENDING)
        pd_call_fail_draining(call);
}

static void closed(struct pd_call *call)
{
    struct fetch *fetch = fetch_of(call);

    let_waiter_go(fetch);
    note_wait(fetch, NULL);
    if (fetch->counted)
        pd_serve_rank_calls(call->thread->rpc->options.serve, &fetch->key, -1);
    if (fetch->batch)
        pd_ready_batch_unref(fetch->batch);
    fetch->batch = NULL;
}

static void fini(struct pd_call *call)
{
    struct fetch *fetch = fetch_of(call);

    if (fetch->open)
        packd__v1__fetch_open__free_unpacked(fetch->open, NULL);
    atomic_fetch_sub(&call->thread->rpc->fetch_calls, 1);
}

const struct pd_method pd_methods_fetch[] = {
    {.path = "/packd.v1.Feed/Fetch",
     .call_bytes = sizeof(struct fetch),
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
