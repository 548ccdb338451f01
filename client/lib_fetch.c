/* The job's thread: keeps a Fetch call open, receives batches ahead of the caller, re-opens the job
 * when the call breaks.
 *
 * Messages of a batch are never interleaved with others, so one batch at a time is `incoming`. A
 * chunk's bytes are copied from gRPC's slices to their place, and nowhere else. The cursor moves
 * when a batch is complete and verified; whatever breaks, the next call starts at the cursor. A
 * moved generation (another world, skipped steps) drops what is ready, back to what was returned.
 * Calls nothing of the user's but memory_alloc. */
#include "client/lib_job.h"

#include "base/check.h"
#include "base/clock.h"
#include "client/lib_error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define METHOD "/packd.v1.Feed/Fetch"
#define MESSAGE_MAX_BYTES (2u << 20) /* of one that is no chunk: a header of 1 MiB and a little */
#define DAMAGED_MAX 2
#define QUIET_NS UINT64_C(60000000000)

enum session { SESSION_RETRY, SESSION_FENCED, SESSION_FINAL, SESSION_DONE };

void pd_fetch_wake(struct packd_job *job)
{
    if (job->live)
        pd_stream_ring(job->live);
    pthread_cond_signal(&job->wake);
}

/* ---- reading messages ------------------------------------------------------------------------ */

/* Walks over a message's slices byte by byte or run by run. */
struct scan {
    struct pd_message *message;
    const uint8_t *at;
    size_t here;  /* bytes at `at` */
    size_t total; /* bytes left in the message */
};

static bool scan_fill(struct scan *scan)
{
    while (scan->here == 0)
        if (!pd_message_next(scan->message, &scan->at, &scan->here))
            return false;
    return true;
}

static int scan_u8(struct scan *scan)
{
    if (!scan_fill(scan))
        return -1;
    scan->here--;
    scan->total--;
    return *scan->at++;
}

static bool scan_varint(struct scan *scan, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        int byte = scan_u8(scan);
        if (byte < 0)
            return false;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

static bool scan_copy(struct scan *scan, uint8_t *to, size_t bytes)
{
    while (bytes > 0) {
        if (!scan_fill(scan))
            return false;
        size_t run = scan->here < bytes ? scan->here : bytes;
        memcpy(to, scan->at, run);
        scan->at += run;
        scan->here -= run;
        scan->total -= run;
        to += run;
        bytes -= run;
    }
    return true;
}

static int malformed(struct packd_error *error, const char *what)
{
    return pd_client_error(error, PACKD_ECORRUPT, "MALFORMED", "a message of Fetch: %s", what);
}

/* FetchResponse{chunk = 2: BatchChunk{data = 15}}, its first tag already read. */
static int on_chunk(struct packd_job *job, struct scan *scan, struct packd_error *error)
{
    uint64_t length;
    if (!scan_varint(scan, &length) || length != scan->total)
        return malformed(error, "the length of a chunk");
    if (length == 0)
        return 0;
    if (scan_u8(scan) != 0x7a || !scan_varint(scan, &length) || length != scan->total)
        return malformed(error, "a chunk holds more than data");
    if (!job->incoming)
        return malformed(error, "a chunk without a batch");
    uint8_t *to = pd_client_batch_room(job->incoming, length, error);
    if (!to)
        return PACKD_ECORRUPT;
    return scan_copy(scan, to, length) ? 0 : malformed(error, "a chunk is cut short");
}

static Packd__V1__FetchResponse *unpack(struct scan *scan, int first_byte)
{
    if (scan->total > MESSAGE_MAX_BYTES)
        return NULL;
    size_t bytes = scan->total + 1;
    uint8_t *flat = malloc(bytes);
    Packd__V1__FetchResponse *response = NULL;
    if (flat) {
        flat[0] = (uint8_t)first_byte;
        if (scan_copy(scan, flat + 1, bytes - 1))
            response = packd__v1__fetch_response__unpack(NULL, bytes, flat);
    }
    free(flat);
    return response;
}

/* ---- what messages mean ---------------------------------------------------------------------- */

/* The step behind the skipped ones that `step` is in, at most `until`; `step` itself where it is in
 * none. */
static uint64_t behind_skipped(const struct packd_job *job, uint64_t step, uint64_t until)
{
    for (uint32_t i = 0; i < job->skipped_count; i++)
        if (step >= job->skipped[i].first && step <= job->skipped[i].last)
            return job->skipped[i].last < until ? job->skipped[i].last + 1 : until;
    return job->skipped_count == PD_SKIPPED_MAX ? until : step; /* the list may go on */
}

/* Moves the cursor over steps that have been skipped, up to `step`; false where one has not. */
static bool pass_skipped(struct packd_job *job, uint64_t step)
{
    while (job->cursor.step < step) {
        uint64_t next = behind_skipped(job, job->cursor.step, step);
        if (next == job->cursor.step)
            return false;
        job->cursor.step = next;
        job->cursor.micro = 0;
    }
    return true;
}

static int check_identity(struct packd_job *job, struct packd_error *error)
{
    const struct packd_batch *b = &job->incoming->view;
    const struct packd_job_options *o = &job->options;
    const struct packd_spec *spec = &job->info.spec;
    if (strcmp(b->feed, o->feed) != 0 || strcmp(b->job, o->job) != 0 || b->dp_rank != o->dp_rank ||
        b->rows != spec->rows || b->dp_size != spec->dp_size || b->accum != spec->accum ||
        b->step_packs != spec->step_packs || b->width > spec->seq_len)
        return pd_client_error(error, PACKD_ECORRUPT, "WRONG_BATCH",
                               "a batch of feed %s, job %s, dp_rank %u/%u, rows %u, width %u came",
                               b->feed, b->job, b->dp_rank, b->dp_size, b->rows, b->width);
    bool expected =
        pass_skipped(job, b->step) && b->step == job->cursor.step && b->micro == job->cursor.micro;
    if (!expected)
        return pd_client_error(error, PACKD_ECORRUPT, "WRONG_BATCH",
                               "step %" PRIu64 " micro %u came, step %" PRIu64
                               " micro %u was expected",
                               b->step, b->micro, job->cursor.step, job->cursor.micro);
    pd_job_expect(job, b->payload_bytes);
    return 0;
}

static void wait_over(struct packd_job *job)
{
    if (job->waiting.waiting)
        job->waiting_serial++;
    job->waiting = (struct packd_waiting){0};
}

/* The incoming batch is whole: verify it (unlocked, it is long), hand it on. */
static int batch_done(struct packd_job *job, struct packd_error *error)
{
    struct pd_client_batch *batch = job->incoming;
    pthread_mutex_unlock(&job->lock);
    int rc = pd_client_batch_finish(batch, error);
    pthread_mutex_lock(&job->lock);
    if (rc != 0)
        return rc;
    job->incoming = NULL;
    job->outstanding -= job->outstanding > 0;
    job->damaged = 0;
    job->info.received_bytes += batch->expected_bytes;
    batch->next = NULL;
    if (job->last)
        job->last->next = batch;
    else
        job->first = batch;
    job->last = batch;
    job->ready++;
    if (++job->cursor.micro == job->info.spec.accum) {
        job->cursor.micro = 0;
        job->cursor.step++;
    }
    wait_over(job);
    pthread_cond_broadcast(&job->changed);
    return 0;
}

/* After header or payload bytes: what is complete now? */
static int progress(struct packd_job *job, struct packd_error *error)
{
    return pd_client_batch_complete(job->incoming) ? batch_done(job, error) : 0;
}

static uint64_t payload_max(const struct packd_job *job)
{
    return job->info.spec.max_batch_bytes ? job->info.spec.max_batch_bytes : UINT64_C(4) << 30;
}

static int on_begin(struct packd_job *job, Packd__V1__BatchBegin *begin, struct packd_error *error)
{
    if (job->incoming)
        return malformed(error, "a batch begins before the last one has ended");
    int rc = pd_client_batch_begin(job->pool, begin, payload_max(job), &job->incoming, error);
    if (rc != 0 || !pd_client_batch_header_complete(job->incoming))
        return rc;
    rc = check_identity(job, error);
    return rc != 0 ? rc : progress(job, error);
}

static int on_header(struct packd_job *job, const Packd__V1__HeaderChunk *chunk,
                     struct packd_error *error)
{
    if (!job->incoming)
        return malformed(error, "a piece of a header without a batch");
    int rc = pd_client_batch_header(job->incoming, chunk->data.data, chunk->data.len, error);
    if (rc != 0 || !pd_client_batch_header_complete(job->incoming))
        return rc;
    rc = check_identity(job, error);
    return rc != 0 ? rc : progress(job, error);
}

/* Names with commas; what does not fit is left out, whole. */
static void join(char *to, size_t size, char *const *names, size_t count)
{
    size_t at = 0;
    to[0] = 0;
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(names[i]);
        if (at + length + 2 > size)
            return;
        at += (size_t)snprintf(to + at, size - at, "%s%s", at ? "," : "", names[i]);
    }
}

static void need_commit(struct packd_job *job, uint64_t steps_left, const Packd__V1__Stall *stall)
{
    job->commit_needed = (struct packd_commit_needed){.needed = true, .steps_left = steps_left};
    if (stall) {
        job->commit_needed.first_step = stall->first_step;
        job->commit_needed.bytes_held = stall->bytes_held;
        job->commit_needed.bytes_per_step = stall->bytes_per_step;
        job->commit_needed.bytes_max = stall->bytes_max;
    }
    job->commit_needed_serial++;
    pthread_cond_broadcast(&job->changed);
}

static void on_waiting(struct packd_job *job, const Packd__V1__Waiting *w)
{
    struct packd_waiting now = {.waiting = true,
                                .reason = (int)w->reason,
                                .step = w->step,
                                .micro = w->micro,
                                .streams_total = w->streams_total,
                                .samples_needed = w->samples_needed,
                                .tokens_needed = w->tokens_needed,
                                .packs_missing = w->packs_missing,
                                .since_unix_ms = w->since_unix_ms};
    const ProtobufCEnumValue *name =
        protobuf_c_enum_descriptor_get_value(&packd__v1__wait_reason__descriptor, (int)w->reason);
    snprintf(now.reason_name, sizeof now.reason_name, "%s", name ? name->name : "WAIT_OTHER");
    snprintf(now.text, sizeof now.text, "%s", w->text);
    join(now.streams, sizeof now.streams, w->streams, w->n_streams);
    join(now.sources, sizeof now.sources, w->sources, w->n_sources);
    bool changed = !job->waiting.waiting || job->waiting.reason != now.reason ||
                   strcmp(job->waiting.streams, now.streams) != 0 ||
                   strcmp(job->waiting.sources, now.sources) != 0;
    job->waiting = now;
    if (changed) {
        job->waiting_serial++;
        pthread_cond_broadcast(&job->changed);
    }
    if (changed && w->reason == PACKD__V1__WAIT_REASON__WAIT_COMMIT)
        need_commit(job, 0, w->stall); /* the hint is given once a stall; a commit may not end it */
}

static int on_end(struct packd_job *job, const Packd__V1__EndOfFeed *end, struct packd_error *error)
{
    if (job->incoming)
        return malformed(error, "the feed ends inside a batch");
    uint64_t steps = (uint64_t)end->last_step + 1;
    if (job->cursor.step < steps && (!pass_skipped(job, steps) || job->cursor.micro != 0))
        return pd_client_error(error, PACKD_ECORRUPT, "WRONG_BATCH",
                               "the feed ends at step %" PRId64 ", but step %" PRIu64
                               " micro %u has not come",
                               end->last_step, job->cursor.step, job->cursor.micro);
    job->end = (struct packd_end){true,         end->last_step,         end->packs,
                                  end->samples, end->row_padding_packs, end->dropped_packs};
    wait_over(job);
    pthread_cond_broadcast(&job->changed);
    return 0;
}

static int on_response(struct packd_job *job, Packd__V1__FetchResponse *response,
                       struct packd_error *error)
{
    switch (response->what_case) {
    case PACKD__V1__FETCH_RESPONSE__WHAT_BEGIN:
        return on_begin(job, response->begin, error);
    case PACKD__V1__FETCH_RESPONSE__WHAT_HEADER:
        return on_header(job, response->header, error);
    case PACKD__V1__FETCH_RESPONSE__WHAT_WAITING:
        on_waiting(job, response->waiting);
        return 0;
    case PACKD__V1__FETCH_RESPONSE__WHAT_COMMIT_NEEDED:
        need_commit(job, response->commit_needed->steps_left, response->commit_needed->stall);
        return 0;
    case PACKD__V1__FETCH_RESPONSE__WHAT_END:
        return on_end(job, response->end, error);
    default:
        return 0; /* a newer server's message */
    }
}

static int on_message(struct packd_job *job, struct pd_message *message, struct packd_error *error)
{
    struct scan scan = {.message = message, .total = pd_message_bytes(message)};
    int first = scan_u8(&scan), rc;
    if (first < 0)
        return 0; /* empty: nothing is set */
    if (first == 0x12) {
        rc = on_chunk(job, &scan, error);
        return rc != 0 || !job->incoming ? rc : progress(job, error);
    }
    Packd__V1__FetchResponse *response = unpack(&scan, first);
    if (!response)
        return malformed(error, "it cannot be read");
    rc = on_response(job, response, error);
    packd__v1__fetch_response__free_unpacked(response, NULL);
    return rc;
}

/* ---- writing --------------------------------------------------------------------------------- */

static int write_request(struct pd_stream *stream, const Packd__V1__FetchRequest *request,
                         struct packd_error *error)
{
    size_t bytes = packd__v1__fetch_request__get_packed_size(request);
    uint8_t *data = malloc(bytes);
    if (!data)
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory for a message");
    packd__v1__fetch_request__pack(request, data);
    pd_stream_write(stream, &(struct pd_rpc_part){data, bytes, free, data}, 1);
    return 0;
}

static int write_open(struct packd_job *job, struct pd_stream *stream, struct packd_error *error)
{
    Packd__V1__FetchOpen open = PACKD__V1__FETCH_OPEN__INIT;
    Packd__V1__FetchRequest request = PACKD__V1__FETCH_REQUEST__INIT;
    open.feed = (char *)(uintptr_t)job->options.feed;
    open.job = (char *)(uintptr_t)job->options.job;
    open.log_id = job->info.log_id;
    open.generation = job->info.generation;
    open.dp_rank = job->options.dp_rank;
    open.first_step = job->cursor.step;
    open.first_micro = job->cursor.micro;
    if (job->until_step != UINT64_MAX) {
        open.until_case = PACKD__V1__FETCH_OPEN__UNTIL_LAST_STEP;
        open.last_step = job->until_step;
    }
    open.arrays = job->options.arrays == PACKD_ARRAYS_CORE ? PACKD__V1__ARRAYS__ARRAYS_CORE
                                                           : PACKD__V1__ARRAYS__ARRAYS_ALL;
    open.credit_batches = job->outstanding = job->capacity - job->ready;
    request.what_case = PACKD__V1__FETCH_REQUEST__WHAT_OPEN;
    request.open = &open;
    return write_request(stream, &request, error);
}

/* Grants what has become free. */
static int write_credit(struct packd_job *job, struct pd_stream *stream, struct packd_error *error)
{
    uint32_t used = job->ready + job->outstanding;
    if (used >= job->capacity || job->end.ended || pd_stream_writing(stream))
        return 0;
    Packd__V1__FetchCredit credit = PACKD__V1__FETCH_CREDIT__INIT;
    Packd__V1__FetchRequest request = PACKD__V1__FETCH_REQUEST__INIT;
    credit.batches = job->capacity - used;
    job->outstanding += credit.batches;
    request.what_case = PACKD__V1__FETCH_REQUEST__WHAT_CREDIT;
    request.credit = &credit;
    return write_request(stream, &request, error);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void drop_incoming(struct packd_job *job)
{
    pd_client_batch_free(job->incoming);
    job->incoming = NULL;
}

/* Back to the first batch that has not been returned. */
static void drop_ready(struct packd_job *job)
{
    while (job->first) {
        struct pd_client_batch *batch = job->first;
        job->first = batch->next;
        pd_client_batch_free(batch);
    }
    job->last = NULL;
    job->ready = 0;
    job->cursor = (struct pd_cursor_at){job->info.next_step, job->info.next_micro};
    job->end.ended = false;
}

/* Runs one call to its end; lock held but while waiting. 0: it ended with OK. */
static int session_loop(struct packd_job *job, struct pd_stream *stream,
                        struct pd_rpc_failure *failure, struct packd_error *error)
{
    int rc = write_open(job, stream, error);
    for (;;) {
        if (rc == 0 && job->closing)
            rc = pd_client_error(error, PACKD_ECANCELED, "CLOSED", "closed");
        if (rc == 0)
            rc = write_credit(job, stream, error);
        if (rc != 0)
            return rc;
        if (!pd_stream_reading(stream))
            pd_stream_read(stream);
        pthread_mutex_unlock(&job->lock);
        struct pd_message *message = NULL;
        enum pd_stream_event event =
            pd_stream_wait(stream, pd_clock_mono_ns() + QUIET_NS, &message);
        pthread_mutex_lock(&job->lock);
        if (event == PD_STREAM_CLOSED)
            return pd_stream_failure(stream, failure, error);
        if (event != PD_STREAM_MESSAGE)
            continue;
        job->down_since_ns = 0;
        job->backoff.attempts = 0;
        rc = on_message(job, message, error);
        pd_message_free(message);
    }
}

/* The call's end, as the thread sees it. */
static enum session judge(struct packd_job *job, int rc, const struct pd_rpc_failure *failure,
                          struct packd_error *error)
{
    if (job->end.ended)
        return SESSION_DONE;
    if (rc == 0 && job->cursor.step > job->until_step) {
        job->limit_reached = true;
        return SESSION_DONE;
    }
    if (rc == 0) {
        pd_client_error(error, PACKD_EUNAVAIL, "CALL_ENDED",
                        "packd at %s: Fetch: the server ended the call",
                        pd_channel_server(job->channel));
        return SESSION_RETRY;
    }
    if (error->code == PACKD_EFENCED)
        return SESSION_FENCED;
    if (error->code == PACKD_ECORRUPT && error->grpc_code == 0)
        return ++job->damaged < DAMAGED_MAX ? SESSION_RETRY : SESSION_FINAL;
    if (error->code == PACKD_ENOMEM)
        return SESSION_FINAL;
    return pd_conn_retryable(error, failure) ? SESSION_RETRY : SESSION_FINAL;
}

static enum session session_run(struct packd_job *job, struct packd_error *error,
                                uint64_t *retry_after_ms)
{
    struct pd_stream *stream;
    struct pd_rpc_failure failure = {0};
    if (pd_stream_open(job->channel, METHOD, &stream, error) != 0)
        return SESSION_RETRY;
    job->live = stream;
    int rc = session_loop(job, stream, &failure, error);
    job->live = NULL;
    drop_incoming(job);
    pthread_mutex_unlock(&job->lock);
    pd_stream_free(stream);
    pthread_mutex_lock(&job->lock);
    *retry_after_ms = failure.retry_after_ms;
    enum session end = judge(job, rc, &failure, error);
    pthread_cond_broadcast(&job->changed);
    return end;
}

static void set_final(struct packd_job *job, const struct packd_error *error)
{
    job->final = *error;
    pd_client_error_prefix(&job->final, "job %s of feed %s, dp_rank %u, step %" PRIu64,
                           job->options.job, job->options.feed, job->options.dp_rank,
                           job->cursor.step);
    pthread_cond_broadcast(&job->changed);
}

/* The generation moved. With a world token the server knows whether this world goes on. */
static bool fenced(struct packd_job *job, struct packd_error *error)
{
    drop_ready(job);
    if (job->options.world_token[0])
        return true;
    pd_client_error_prefix(error, "the job moved to a newer generation (another world, or skipped "
                                  "steps) and this reader has no world token to follow it");
    set_final(job, error);
    return false;
}

/* OpenJob again; false where that ends everything. Lock held outside the call. */
static bool reopen(struct packd_job *job)
{
    struct packd_error error = {0};
    pthread_mutex_unlock(&job->lock);
    int rc = pd_job_reopen(job, true, pd_clock_mono_ns() + PD_ATTEMPT_NS, &error);
    pthread_mutex_lock(&job->lock);
    if (rc == 0 || job->closing)
        return rc == 0;
    job->down = error;
    pthread_cond_broadcast(&job->changed);
    if (rc != PACKD_ETIMEDOUT && rc != PACKD_EUNAVAIL)
        set_final(job, &error);
    return false;
}

static void pause_for(struct packd_job *job, uint64_t pause_ns)
{
    uint64_t until = pd_clock_mono_ns() + pause_ns;
    while (!job->closing && pd_clock_mono_ns() < until)
        pd_cond_wait_until(&job->wake, &job->lock, until);
}

/* Waits until there is room for a batch: a call must grant at least one. */
static void wait_for_room(struct packd_job *job)
{
    while (!job->closing && job->ready >= job->capacity)
        pd_cond_wait_until(&job->wake, &job->lock, pd_clock_mono_ns() + QUIET_NS);
}

void *pd_fetch_run(void *pointer)
{
    struct packd_job *job = pointer;
    PD_MAGIC_CHECK(job, PD_JOB_MAGIC);
    bool open = true; /* by the caller */
    pthread_mutex_lock(&job->lock);
    job->down_since_ns = pd_clock_mono_ns();
    for (;;) {
        wait_for_room(job);
        if (job->closing || job->final.code)
            break;
        if (!open && !(open = reopen(job)))
            continue;
        struct packd_error error = {0};
        uint64_t retry_after_ms = 0;
        enum session end = session_run(job, &error, &retry_after_ms);
        if (end == SESSION_DONE || job->closing)
            break;
        open = false;
        if (end == SESSION_FINAL)
            set_final(job, &error);
        if (end == SESSION_FENCED && fenced(job, &error))
            continue;
        if (job->down_since_ns == 0)
            job->down_since_ns = pd_clock_mono_ns();
        job->down = error;
        wait_over(job);
        pause_for(job, job->final.code ? 0 : pd_backoff_next_ns(&job->backoff, retry_after_ms));
    }
    pthread_mutex_unlock(&job->lock);
    return NULL;
}
