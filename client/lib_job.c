/* The caller's side of a job: options, next, commit, and what can be looked at meanwhile.
 *
 * next only takes from the ready list, which the thread in lib_fetch.c fills; callbacks run here,
 * on the caller's thread, without a lock. Every wait ends at its deadline with a text that says
 * what the server waits for, or since when it has not answered. */
#include "client/lib_job.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/name.h"
#include "client/lib_error.h"
#include "client/lib_tls.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define TIMEOUT_MS 60000
#define WORLD_TOKEN_MAX_BYTES 64
#define PREFETCH_MAX 1024
#define AUTO_COMMIT_PART 4 /* of auto_commit steps: at most so few at once */
#define AUTO_COMMIT_MS 5000
#define AUTO_COMMIT_RETRY_NS UINT64_C(1000000000)

/* ---- open and free --------------------------------------------------------------------------- */

static int check_options(const struct packd_job_options *o, struct packd_error *error)
{
    struct pd_error why = {0};
    if (!o->job)
        return pd_client_error(error, PACKD_EINVAL, "BAD_NAME", "options.job is required");
    if (pd_name_check("job", o->job, &why) != 0 ||
        (o->feed && pd_name_check("feed", o->feed, &why) != 0))
        return pd_client_error_from(error, &why);
    if (o->dp_size == 0 || o->dp_rank >= o->dp_size)
        return pd_client_error(error, PACKD_EINVAL, "DP_RANK",
                               "dp_rank %u of dp_size %u: expected 0 <= dp_rank < dp_size",
                               o->dp_rank, o->dp_size);
    if (o->world_token && strlen(o->world_token) > WORLD_TOKEN_MAX_BYTES)
        return pd_client_error(error, PACKD_EINVAL, "BAD_RANGE",
                               "world_token has %zu bytes: at most %d", strlen(o->world_token),
                               WORLD_TOKEN_MAX_BYTES);
    if (o->memory_alloc && !o->memory_free)
        return pd_client_error(error, PACKD_EINVAL, "BAD_RANGE",
                               "memory_alloc is given without memory_free");
    return 0;
}

static void options_free(struct packd_job_options *o)
{
    const char *const texts[] = {o->server, o->token,  o->feed,       o->job,
                                 o->client, o->log_id, o->world_token};
    for (size_t i = 0; i < PD_COUNT_OF(texts); i++)
        free((void *)(uintptr_t)texts[i]);
}

static bool copy_options(struct packd_job *job, const struct packd_job_options *o)
{
    char self[160];
    job->options = *o;
    struct packd_job_options *c = &job->options;
    c->server =
        pd_conn_copy(pd_option_or_env(o->server, "PACKD_SERVER", NULL), PACKD_DEFAULT_SERVER);
    c->token = o->token ? strdup(o->token) : NULL;
    c->feed = pd_conn_copy(o->feed, "default");
    c->job = pd_conn_copy(o->job, "");
    c->client = pd_conn_copy(o->client, pd_conn_self(self, sizeof self));
    c->world_token = pd_conn_copy(o->world_token, "");
    c->log_id = pd_conn_copy(o->log_id, "");
    if (!c->server || (o->token && !c->token) || !c->feed || !c->job || !c->client ||
        !c->world_token || !c->log_id)
        return false;
    c->rows = o->rows ? o->rows : 1;
    c->accum = o->accum ? o->accum : 1;
    c->segment_multiple = o->segment_multiple ? o->segment_multiple : 1;
    c->prefetch_batches = o->prefetch_batches ? o->prefetch_batches : 2;
    if (c->prefetch_batches > PREFETCH_MAX)
        c->prefetch_batches = PREFETCH_MAX;
    c->prefetch_bytes = o->prefetch_bytes ? o->prefetch_bytes : (size_t)1 << 30;
    snprintf(job->info.log_id, sizeof job->info.log_id, "%.39s", c->log_id);
    return true;
}

static void job_free(struct packd_job *job)
{
    while (job->first) {
        struct pd_client_batch *batch = job->first;
        job->first = batch->next;
        pd_client_batch_free(batch);
    }
    pd_channel_free(job->channel);
    pd_pool_unref(job->pool);
    pthread_cond_destroy(&job->changed);
    pthread_cond_destroy(&job->wake);
    pthread_mutex_destroy(&job->lock);
    pthread_mutex_destroy(&job->opening);
    options_free(&job->options);
    job->magic = 0;
    free(job);
}

static struct packd_job *job_new(const struct packd_job_options *o)
{
    struct packd_job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    job->magic = PD_JOB_MAGIC;
    pthread_mutex_init(&job->lock, NULL);
    pthread_mutex_init(&job->opening, NULL);
    pd_cond_init(&job->changed);
    pd_cond_init(&job->wake);
    bool ok = copy_options(job, o);
    struct pd_pool_memory memory = {o->memory_alloc, o->memory_free, o->memory_ctx};
    job->pool = ok ? pd_pool_new(&memory, job->options.prefetch_batches + 1) : NULL;
    job->channel = job->pool ? pd_channel_new(job->options.server, o->token, &o->tls) : NULL;
    if (job->channel)
        return job;
    job_free(job);
    return NULL;
}

int packd_job_open(const struct packd_job_options *options, struct packd_job **out,
                   struct packd_error *error)
{
    int rc = check_options(options, error);
    if (rc == 0)
        rc = pd_connection_check(options->server, options->token, &options->tls, error);
    if (rc != 0)
        return rc;
    struct packd_job *job = job_new(options);
    if (!job)
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory for a job");
    uint64_t deadline = pd_conn_deadline_ns(PACKD_TIMEOUT_DEFAULT, options->timeout_ms, TIMEOUT_MS);
    rc = pd_job_reopen(job, false, deadline, error);
    if (rc == 0 && pthread_create(&job->thread, NULL, pd_fetch_run, job) != 0)
        rc = pd_client_error(error, PACKD_ENOMEM, "THREAD", "no thread for a job");
    if (rc != 0)
        job_free(job);
    else
        *out = job;
    return rc;
}

void packd_job_stop(struct packd_job *job)
{
    PD_MAGIC_CHECK(job, PD_JOB_MAGIC);
    pthread_mutex_lock(&job->lock);
    job->closing = true;
    pd_fetch_wake(job);
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
    pd_channel_cancel(job->channel);
}

void packd_job_close(struct packd_job *job)
{
    if (!job)
        return;
    packd_job_stop(job);
    pthread_join(job->thread, NULL);
    job_free(job);
}

/* ---- next ------------------------------------------------------------------------------------ */

/* What has changed since the last call, told with no lock held. */
static void tell(struct packd_job *job)
{
    if (job->told_waiting != job->waiting_serial) {
        job->told_waiting = job->waiting_serial;
        struct packd_waiting waiting = job->waiting;
        if (job->options.on_waiting && waiting.waiting) {
            pthread_mutex_unlock(&job->lock);
            job->options.on_waiting(job->options.ctx, &waiting);
            pthread_mutex_lock(&job->lock);
        }
    }
    if (job->told_commit != job->commit_needed_serial) {
        job->told_commit = job->commit_needed_serial;
        struct packd_commit_needed needed = job->commit_needed;
        if (job->options.on_commit_needed && needed.needed) {
            pthread_mutex_unlock(&job->lock);
            job->options.on_commit_needed(job->options.ctx, &needed);
            pthread_mutex_lock(&job->lock);
        }
    }
}

static void take_ready(struct packd_job *job, const struct packd_batch **out)
{
    struct pd_client_batch *batch = job->first;
    const struct packd_batch *view = &batch->view;
    job->first = batch->next;
    if (!job->first)
        job->last = NULL;
    job->ready--;
    bool whole = view->micro + 1 == job->info.spec.accum;
    if (whole)
        job->info.returned_step = (int64_t)view->step;
    job->info.next_step = whole ? view->step + 1 : view->step;
    job->info.next_micro = whole ? 0 : view->micro + 1;
    job->info.batches++;
    job->info.payload_bytes += view->payload_bytes;
    pd_fetch_wake(job);
    *out = view;
}

static int end_reached(struct packd_job *job, struct packd_error *error)
{
    if (job->limit_reached)
        return pd_client_error(error, PACKD_EEND, "STEP_LIMIT",
                               "job %s: all %" PRIu64 " steps asked for have been returned",
                               job->options.job, job->options.steps_max);
    return pd_client_error(error, PACKD_EEND, "END_OF_FEED",
                           "feed %s has ended: step %" PRId64 " was the last of job %s",
                           job->options.feed, job->end.last_step, job->options.job);
}

static int timed_out(struct packd_job *job, struct packd_error *error)
{
    char where[240];
    snprintf(where, sizeof where,
             "packd at %s: job %s of feed %s, dp_rank %u: step %" PRIu64 " micro %u",
             pd_channel_server(job->channel), job->options.job, job->options.feed,
             job->options.dp_rank, job->info.next_step, job->info.next_micro);
    const struct packd_waiting *w = &job->waiting;
    if (job->down_since_ns) {
        pd_client_error(error, PACKD_ETIMEDOUT, "NOT_CONNECTED", "%s: no answer for %.1f s%s%s",
                        where, (double)(pd_clock_mono_ns() - job->down_since_ns) / 1e9,
                        job->down.code ? "; last: " : "", job->down.text);
        if (error)
            error->grpc_code = job->down.grpc_code;
        return PACKD_ETIMEDOUT;
    }
    if (!w->waiting)
        return pd_client_error(error, PACKD_ETIMEDOUT, "NOT_READY",
                               "%s: not here yet; the server has not said why", where);
    double seconds = ((double)pd_clock_wall_ns() / 1e6 - (double)w->since_unix_ms) / 1e3;
    return pd_client_error(
        error, PACKD_ETIMEDOUT, w->reason_name, "%s: %s, begun %.1f s ago%s%s%s%s%s%s", where,
        w->reason_name, w->since_unix_ms && seconds > 0 ? seconds : 0.0,
        w->streams[0] ? "; streams " : "", w->streams, w->sources[0] ? "; sources " : "",
        w->sources, w->text[0] ? "; " : "", w->text);
}

/* One look: 1 where there is a batch, 0 where waiting goes on, else the error's code. */
static int look(struct packd_job *job, const struct packd_batch **out, uint64_t deadline_ns,
                struct packd_error *error)
{
    tell(job);
    if (job->closing)
        return pd_client_error(error, PACKD_ECANCELED, "STOPPED", "next: the job has been stopped");
    if (job->first) {
        take_ready(job, out);
        return 1;
    }
    if (job->end.ended || job->limit_reached)
        return end_reached(job, error);
    if (job->final.code) {
        if (error)
            *error = job->final;
        return job->final.code;
    }
    if (job->interrupted) {
        job->interrupted = false;
        return pd_client_error(error, PACKD_ECANCELED, "INTERRUPTED", "next: interrupted");
    }
    return pd_clock_mono_ns() >= deadline_ns ? timed_out(job, error) : 0;
}

/* options.auto_commit, in groups of some steps unless the log fills up. One that fails is made up
 * for by a later one; a world that is over hears of it from the fetch. */
static void auto_commit(struct packd_job *job)
{
    int64_t behind = job->options.auto_commit;
    if (behind == 0 || job->options.dp_rank != 0 || job->options.kind == PACKD_KIND_READER ||
        pd_clock_mono_ns() < job->auto_commit_after_ns)
        return;
    struct packd_job_info info;
    struct packd_commit_needed needed;
    packd_job_info(job, &info);
    packd_job_commit_needed(job, &needed);
    int64_t step = info.returned_step - behind;
    int64_t group = needed.needed ? 1 : 1 + behind / AUTO_COMMIT_PART;
    if (step < (int64_t)info.first_step || step < info.committed_step + group)
        return;
    if (packd_job_commit(job, (uint64_t)step, AUTO_COMMIT_MS, NULL) != 0)
        job->auto_commit_after_ns = pd_clock_mono_ns() + AUTO_COMMIT_RETRY_NS;
}

int packd_job_next(struct packd_job *job, int64_t timeout_ms, const struct packd_batch **batch,
                   struct packd_error *error)
{
    PD_MAGIC_CHECK(job, PD_JOB_MAGIC);
    uint64_t deadline = pd_conn_deadline_ns(timeout_ms, job->options.timeout_ms, TIMEOUT_MS);
    int rc;
    auto_commit(job);
    pthread_mutex_lock(&job->lock);
    while ((rc = look(job, batch, deadline, error)) == 0)
        pd_cond_wait_until(&job->changed, &job->lock, deadline);
    pthread_mutex_unlock(&job->lock);
    return rc > 0 ? 0 : rc;
}

/* ---- commit ---------------------------------------------------------------------------------- */

static int commit_once(struct packd_job *job, uint64_t step, uint64_t deadline_ns,
                       struct packd_error *error)
{
    Packd__V1__CommitRequest request = PACKD__V1__COMMIT_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    char log_id[sizeof job->info.log_id];
    request.feed = (char *)(uintptr_t)job->options.feed;
    request.job = (char *)(uintptr_t)job->options.job;
    request.step = step;
    request.log_id = log_id;
    pthread_mutex_lock(&job->lock);
    request.generation = job->info.generation;
    request.fetched = job->info.returned_step;
    if (request.fetched < (int64_t)job->info.first_step - 1)
        request.fetched = (int64_t)job->info.first_step - 1; /* as the loaded checkpoint says */
    memcpy(log_id, job->info.log_id, sizeof log_id);
    pthread_mutex_unlock(&job->lock);
    if (request.fetched < 0 || step > (uint64_t)request.fetched)
        return pd_client_error(error, PACKD_EINVAL, "COMMIT_BEYOND_FETCHED",
                               "step %" PRIu64
                               " has not been returned completely; the highest is %" PRId64,
                               step, request.fetched);
    int rc = pd_conn_call(job->channel, "/packd.v1.Feed/Commit", &request.base,
                          &packd__v1__commit_response__descriptor, deadline_ns, &reply, error);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&job->lock);
    job->info.committed_step =
        (int64_t)((Packd__V1__CommitResponse *)(void *)reply)->committed_step;
    job->info.lowest_step = ((Packd__V1__CommitResponse *)(void *)reply)->lowest_step;
    job->commit_needed.needed = false;
    pthread_mutex_unlock(&job->lock);
    protobuf_c_message_free_unpacked(reply, NULL);
    return 0;
}

int packd_job_commit(struct packd_job *job, uint64_t step, int64_t timeout_ms,
                     struct packd_error *error)
{
    PD_MAGIC_CHECK(job, PD_JOB_MAGIC);
    struct packd_error own = {0};
    uint64_t deadline = pd_conn_deadline_ns(timeout_ms, job->options.timeout_ms, TIMEOUT_MS);
    int rc = commit_once(job, step, deadline, &own);
    if (rc == PACKD_EFENCED && job->options.world_token[0]) {
        rc = pd_job_reopen(job, true, deadline, &own); /* STALE_WORLD where this world is over */
        if (rc == 0)
            rc = commit_once(job, step, deadline, &own);
    }
    if (rc != 0) {
        pd_client_error_prefix(&own, "job %s of feed %s: commit of step %" PRIu64, job->options.job,
                               job->options.feed, step);
        if (error)
            *error = own;
    }
    return rc;
}

/* ---- looking --------------------------------------------------------------------------------- */

#define COPY_LOCKED(job, to, from)          \
    do {                                    \
        PD_MAGIC_CHECK(job, PD_JOB_MAGIC);  \
        pthread_mutex_lock(&(job)->lock);   \
        *(to) = (job)->from;                \
        pthread_mutex_unlock(&(job)->lock); \
    } while (0)

void packd_job_info(struct packd_job *job, struct packd_job_info *info)
{
    COPY_LOCKED(job, info, info);
}

void packd_job_waiting(struct packd_job *job, struct packd_waiting *waiting)
{
    COPY_LOCKED(job, waiting, waiting);
}

void packd_job_commit_needed(struct packd_job *job, struct packd_commit_needed *needed)
{
    COPY_LOCKED(job, needed, commit_needed);
}

void packd_job_end(struct packd_job *job, struct packd_end *end)
{
    COPY_LOCKED(job, end, end);
}

void packd_job_interrupt(struct packd_job *job)
{
    PD_MAGIC_CHECK(job, PD_JOB_MAGIC);
    pthread_mutex_lock(&job->lock);
    job->interrupted = true;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
}
