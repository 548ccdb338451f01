/* The sequencer's thread: takes requests from the mailbox in groups, and answers after the
 * commit.
 *
 *   mailbox ──> begin │ apply each │ plan │ idle flushes │ plan │ rows │ commit
 *                 │                └──> serve hears of it, then done() of each
 *                 └ any write fails: abort, state again from the log, all answer with that failure
 *
 * Owner: one thread; submit, accepts and stop may come from any. Invariant: memory runs ahead of
 * the log inside a group only. What requests mean is in the other files. */
#include "server/sequencer_state.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/metrics.h"
#include "server/sequencer_feeds.h"
#include "server/sequencer_jobs.h"
#include "server/sequencer_planning.h"
#include "server/sequencer_settings.h"
#include "server/sequencer_space.h"
#include "server/sequencer_streams.h"
#include "server/sequencer_tables.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#define SEQUENCER_MAGIC 0x70647371u
#define READER_CHECK_COMMITS 1024u
#define DISK_RETRY_NS 1000000000ull

int pd_seq_write_failed(struct pd_sequencer *seq, int rc, const struct pd_error *error)
{
    if (seq->group_rc == 0) {
        seq->group_rc = rc;
        seq->group_error = *error;
    }
    return rc;
}

int pd_seq_record(struct pd_sequencer *seq, enum pd_record_type type, uint32_t feed)
{
    struct pd_error error = {0};
    int rc = pd_log_append_record(seq->log, type, feed, &seq->body, &error);
    return rc ? pd_seq_write_failed(seq, rc, &error) : 0;
}

/* ---- one request ---- */

static int apply(struct pd_sequencer *seq, struct pd_request *request)
{
    switch (request->kind) {
    case PD_REQUEST_OPEN_STREAM:
        return pd_seq_open_stream(seq, (struct pd_request_open_stream *)request);
    case PD_REQUEST_APPEND:
        return pd_seq_append(seq, (struct pd_request_append *)request);
    case PD_REQUEST_END_STREAM:
        return pd_seq_end_stream(seq, (struct pd_request_end_stream *)request);
    case PD_REQUEST_CLOSE_STREAM:
        return pd_seq_close_stream(seq, (struct pd_request_close_stream *)request);
    case PD_REQUEST_END_FEED:
        return pd_seq_end_feed(seq, (struct pd_request_end_feed *)request);
    case PD_REQUEST_OPEN_JOB:
        return pd_seq_open_job(seq, (struct pd_request_open_job *)request);
    case PD_REQUEST_COMMIT:
        return pd_seq_commit_job(seq, (struct pd_request_commit *)request);
    case PD_REQUEST_DELIVERED:
        return pd_seq_delivered(seq, (struct pd_request_delivered *)request);
    case PD_REQUEST_FLUSH:
        return pd_seq_flush(seq, (struct pd_request_flush *)request);
    case PD_REQUEST_DELETE_JOB:
        return pd_seq_delete_job(seq, (struct pd_request_delete_job *)request);
    case PD_REQUEST_SKIP_STEPS:
        return pd_seq_skip_steps(seq, (struct pd_request_skip_steps *)request);
    case PD_REQUEST_SET_MIXTURE:
        return pd_seq_set_mixture(seq, (struct pd_request_set_mixture *)request);
    case PD_REQUEST_SKIP_SAMPLES:
        return pd_seq_skip_samples(seq, (struct pd_request_skip_samples *)request);
    case PD_REQUEST_DELETE_STREAM:
        return pd_seq_delete_stream(seq, (struct pd_request_delete_stream *)request);
    case PD_REQUEST_DELETE_FEED:
        return pd_seq_delete_feed(seq, (struct pd_request_delete_feed *)request);
    case PD_REQUEST_RELOAD:
        return pd_seq_reload(seq, (struct pd_request_reload *)request);
    case PD_REQUEST_STATUS:
        return 0; /* filled after the commit */
    }
    return pd_error_set(&request->error, PD_EINVAL, "BAD_REQUEST", "request of unknown kind %d",
                        (int)request->kind);
}

static void answer(struct pd_sequencer *seq, struct pd_request *request)
{
    if (request->kind == PD_REQUEST_STATUS)
        request->result = pd_seq_status(seq, (struct pd_request_status *)request);
    if (request->kind == PD_REQUEST_APPEND) {
        struct pd_request_append *append = (struct pd_request_append *)request;
        append->block->release(append->block);
        append->block = NULL;
    }
    request->done(request);
}

/* ---- the mailbox ---- */

int pd_sequencer_submit(struct pd_sequencer *seq, struct pd_request *request)
{
    PD_MAGIC_CHECK(seq, SEQUENCER_MAGIC);
    PD_CHECK(request->done);
    int rc = 0;
    request->result = 0;
    request->error = (struct pd_error){0};
    request->record = request->effective_pack = 0;
    pthread_mutex_lock(&seq->mutex);
    if (seq->stopping) {
        rc = PD_ECLOSED;
    } else if (seq->mailbox_count >= PD_SEQUENCER_REQUESTS_MAX) {
        rc = PD_EFULL;
    } else {
        if (seq->mailbox_count++ == 0)
            pthread_cond_signal(&seq->cond);
        pd_list_push(&seq->mailbox, &request->link);
    }
    pthread_mutex_unlock(&seq->mutex);
    return rc;
}

static void take_all(struct pd_sequencer *seq, struct pd_link *pending)
{
    while (!pd_list_empty(&seq->mailbox))
        pd_list_push(pending, pd_list_pop(&seq->mailbox));
    seq->mailbox_count = 0;
}

static void take_more(struct pd_sequencer *seq, struct pd_link *pending)
{
    pthread_mutex_lock(&seq->mutex);
    take_all(seq, pending);
    pthread_mutex_unlock(&seq->mutex);
}

static bool planning_left(const struct pd_sequencer *seq)
{
    for (uint32_t i = 0; i < seq->state.feed_count; i++) {
        const struct pd_seq_feed *feed = seq->state.feeds[i];
        if (feed->planner && feed->plan_wanted && !feed->log_short && !feed->ended)
            return true;
        if (feed->flush_wanted)
            return true;
        if (feed->gone == PD_SEQ_PURGING && !atomic_load(&seq->disk_full))
            return true;
        if (feed->config && (feed->trimming || feed->trim_wanted) && !atomic_load(&seq->disk_full))
            return true;
    }
    return false;
}

/* Waits until there is something to do; false: stopping and nothing is left. */
static bool wait_for_work(struct pd_sequencer *seq, struct pd_link *pending)
{
    bool ready = !pd_list_empty(pending) || planning_left(seq);
    pthread_mutex_lock(&seq->mutex);
    while (!ready && !seq->stopping && pd_list_empty(&seq->mailbox)) {
        if (seq->next_timer_ns == UINT64_MAX) {
            pthread_cond_wait(&seq->cond, &seq->mutex);
            continue;
        }
        struct timespec until = {.tv_sec = (time_t)(seq->next_timer_ns / 1000000000u),
                                 .tv_nsec = (long)(seq->next_timer_ns % 1000000000u)};
        ready = pthread_cond_timedwait(&seq->cond, &seq->mutex, &until) == ETIMEDOUT;
    }
    bool stopping = seq->stopping;
    take_all(seq, pending);
    pthread_mutex_unlock(&seq->mutex);
    return !stopping || !pd_list_empty(pending);
}

/* ---- groups ---- */

/* Applies requests until the group is large or old enough, or none is left. */
static void apply_some(struct pd_sequencer *seq, struct pd_link *pending, struct pd_link *applied)
{
    uint64_t started_ns = pd_clock_mono_ns();
    while (seq->group_rc == 0) {
        if (pd_list_empty(pending))
            take_more(seq, pending);
        struct pd_link *link = pd_list_pop(pending);
        if (!link)
            return;
        struct pd_request *request = PD_CONTAINER_OF(link, struct pd_request, link);
        request->result = apply(seq, request);
        pd_list_push(applied, link);
        if (pd_log_written_bytes(seq->log) >= seq->config->commit_bytes ||
            pd_clock_mono_ns() - started_ns >= seq->config->commit_ns)
            return;
    }
}

static void plan_feeds(struct pd_sequencer *seq)
{
    for (uint32_t i = 0; i < seq->state.feed_count && seq->group_rc == 0; i++)
        if (pd_seq_plan(seq, seq->state.feeds[i]) != 0)
            PD_CHECK(seq->group_rc != 0);
}

static int commit_group(struct pd_sequencer *seq)
{
    int rc = seq->group_rc ? seq->group_rc : pd_seq_rows_write(seq);
    if (rc)
        return rc;
    if (pd_log_written_bytes(seq->log) == 0) {
        pd_log_abort(seq->log);
        return 0;
    }
    uint64_t started_ns = pd_clock_mono_ns();
    struct pd_error error = {0};
    rc = pd_log_commit(seq->log, &error);
    if (rc)
        return pd_seq_write_failed(seq, rc, &error);
    pd_metric_observe(PD_M_COMMIT_SECONDS, pd_clock_mono_ns() - started_ns);
    pd_metric_add(PD_M_COMMITS, 1);
    if (++seq->commits % READER_CHECK_COMMITS == 0)
        pd_log_check_readers(seq->log);
    return 0;
}

/* Memory is ahead of the log: throws it away and reads the log again, as at start. */
static void rebuild(struct pd_sequencer *seq)
{
    struct pd_error error = {0};
    struct pd_seq_state old = seq->state;
    seq->file = seq->file_kept;
    seq->state = (struct pd_seq_state){0};
    pd_log_abort(seq->log);
    seq->group_rc = 0;
    int rc = pd_log_begin(seq->log, &error);
    if (!rc)
        rc = pd_seq_load(seq, &error);
    if (rc)
        pd_log_die(seq->log, "reading the state again after a failed commit", error.text);
    PD_CHECK(pd_log_written_bytes(seq->log) == 0);
    pd_log_abort(seq->log);
    pd_seq_state_carry(&seq->state, &old);
    pd_seq_state_fini(&old);
}

static void undo_group(struct pd_sequencer *seq, struct pd_link *applied)
{
    struct pd_error why = seq->group_error;
    pd_log(PD_LOG_WARN, "group_undone", "reason=%s text=\"%s\"", why.reason, why.text);
    rebuild(seq);
    PD_LIST_EACH(link, applied) {
        struct pd_request *request = PD_CONTAINER_OF(link, struct pd_request, link);
        request->result = why.code;
        request->error = why;
    }
    if (why.code == PD_EFULL) {
        seq->disk_full_since_ns = pd_clock_mono_ns();
        atomic_store(&seq->disk_full, true);
    }
}

/* ---- telling others ---- */

static void announce_jobs(struct pd_sequencer *seq, struct pd_seq_feed *feed)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < feed->job_count; i++) {
        struct pd_seq_job *job = feed->jobs[i];
        if (job->deleted) {
            pd_serve_job_deleted(seq->serve, feed->index, job->id);
            pd_seq_job_free(job);
            continue;
        }
        if (job->announce) {
            struct pd_job_info info = {.feed_index = feed->index,
                                       .job_id = job->id,
                                       .spec = job->spec,
                                       .generation = job->generation,
                                       .world = job->world,
                                       .loaded_steps = job->loaded_steps,
                                       .skipped = &job->skipped,
                                       .first_step = job->first_step,
                                       .first_pack = job->first_pack,
                                       .lowest_step = pd_seq_lowest_step(feed, job)};
            pd_serve_job_opened(seq->serve, &info);
            job->announce = false;
        }
        feed->jobs[kept++] = job;
    }
    feed->job_count = kept;
}

static void announce(struct pd_sequencer *seq)
{
    for (uint32_t i = 0; i < seq->state.feed_count; i++) {
        struct pd_seq_feed *feed = seq->state.feeds[i];
        if (!feed->config)
            continue;
        if (feed->reborn)
            pd_serve_feed_reset(seq->serve, feed->index);
        feed->reborn = false;
        announce_jobs(seq, feed);
        if (!feed->announce)
            continue;
        struct pd_feed_progress progress;
        pd_seq_progress(seq, feed, &progress);
        pd_serve_feed_advanced(seq->serve, feed->index, &progress);
        feed->announce = false;
    }
}

static void count_group(struct pd_sequencer *seq)
{
    for (uint32_t i = 0; i < seq->config->feed_count; i++) {
        const struct pd_seq_counts *counts = &seq->counts[i];
        pd_metric_add_feed(PD_F_INGEST_BLOCKS, i, counts->blocks);
        pd_metric_add_feed(PD_F_INGEST_SAMPLES, i, counts->samples);
        pd_metric_add_feed(PD_F_INGEST_TOKENS, i, counts->tokens);
        pd_metric_add_feed(PD_F_INGEST_BYTES, i, counts->bytes);
        pd_metric_add_feed(PD_F_INGEST_DUPLICATES, i, counts->duplicates);
        pd_metric_add_feed(PD_F_PACKS_PLANNED, i, counts->packs);
        pd_metric_add_set(PD_S_STEPS_SKIPPED, i, "operator", counts->skipped_by_operator);
        pd_metric_add_set(PD_S_STEPS_SKIPPED, i, "violation", counts->skipped_by_violation);
    }
}

/* A full disk is tried again after a while, and one that limits the log looked at; the timer sees
 * to it. */
static void check_disk(struct pd_sequencer *seq, uint64_t now_ns)
{
    uint64_t look_ns = pd_log_look(seq->log, 0);
    if (look_ns < seq->next_timer_ns)
        seq->next_timer_ns = look_ns;
    if (!atomic_load(&seq->disk_full))
        return;
    uint64_t due = seq->disk_full_since_ns + DISK_RETRY_NS;
    if (now_ns >= due)
        atomic_store(&seq->disk_full, false);
    else if (due < seq->next_timer_ns)
        seq->next_timer_ns = due;
}

static void work(struct pd_sequencer *seq, struct pd_link *pending, struct pd_link *applied)
{
    apply_some(seq, pending, applied);
    if (seq->group_rc == 0)
        plan_feeds(seq);
    if (seq->group_rc == 0 && pd_seq_feeds_idle(seq, pd_clock_mono_ns()) == 0 &&
        pd_seq_jobs_idle(seq, pd_clock_mono_ns()) == 0 && pd_seq_space_flush(seq) == 0)
        plan_feeds(seq); /* what a flush has made possible */
    if (seq->group_rc == 0 && !atomic_load(&seq->disk_full) && pd_seq_trim(seq) != 0)
        PD_CHECK(seq->group_rc != 0);
}

static void run_group(struct pd_sequencer *seq, struct pd_link *pending)
{
    struct pd_link applied;
    struct pd_error error = {0};
    pd_list_init(&applied);
    seq->group_rc = 0;
    seq->group_error = (struct pd_error){0};
    memset(seq->counts, 0, sizeof seq->counts);
    int rc = pd_log_begin(seq->log, &error);
    if (rc)
        pd_seq_write_failed(seq, rc, &error);
    else
        work(seq, pending, &applied);
    if (commit_group(seq) == 0) {
        count_group(seq);
        seq->file_kept = seq->file;
    } else {
        undo_group(seq, &applied);
    }
    check_disk(seq, pd_clock_mono_ns());
    pd_seq_space_tell(seq);
    announce(seq);
    for (struct pd_link *link; (link = pd_list_pop(&applied));)
        answer(seq, PD_CONTAINER_OF(link, struct pd_request, link));
}

/* ---- the thread ---- */

static void save_snapshots(struct pd_sequencer *seq)
{
    struct pd_error error = {0};
    seq->group_rc = 0;
    int rc = pd_log_begin(seq->log, &error);
    for (uint32_t i = 0; !rc && i < seq->state.feed_count; i++)
        if (seq->state.feeds[i]->planner)
            rc = pd_seq_snapshot(seq, seq->state.feeds[i]);
    if (!rc)
        rc = pd_log_commit(seq->log, &error);
    else
        pd_log_abort(seq->log);
    if (rc)
        pd_log(PD_LOG_WARN, "snapshot_not_saved",
               "text=\"%s\" effect=\"the next start replays more of the log\"",
               seq->group_rc ? seq->group_error.text : error.text);
}

static void *run(void *arg)
{
    struct pd_sequencer *seq = arg;
    struct pd_link pending;
    pd_list_init(&pending);
    while (wait_for_work(seq, &pending))
        run_group(seq, &pending);
    save_snapshots(seq);
    return NULL;
}

static int init_lock(struct pd_sequencer *seq)
{
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0)
        return PD_ENOMEM;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int failed = pthread_cond_init(&seq->cond, &attr);
    pthread_condattr_destroy(&attr);
    if (failed || pthread_mutex_init(&seq->mutex, NULL) != 0)
        return PD_ENOMEM;
    if (pthread_mutex_init(&seq->stall_mutex, NULL) != 0)
        return PD_ENOMEM;
    pd_list_init(&seq->mailbox);
    return 0;
}

/* Reads the log, joins it with the configuration, and writes what that changed. */
static int open_state(struct pd_sequencer *seq, struct pd_error *error)
{
    int rc = pd_log_begin(seq->log, error);
    if (!rc)
        rc = pd_seq_load(seq, error);
    for (uint32_t i = 0; !rc && i < seq->state.feed_count; i++) {
        struct pd_seq_feed *feed = seq->state.feeds[i];
        if (feed->planner)
            rc = pd_seq_settings_act(seq, feed, error);
        if (!rc && feed->planner)
            rc = pd_seq_feed_check_end(seq, feed, 0, error);
    }
    if (!rc)
        rc = pd_seq_rows_write(seq);
    if (rc) {
        if (seq->group_rc && error)
            *error = seq->group_error;
        pd_log_abort(seq->log);
        return rc;
    }
    return pd_log_commit(seq->log, error);
}

static int start_thread(struct pd_sequencer *seq, struct pd_error *error)
{
    int err = pthread_create(&seq->thread, NULL, run, seq);
    if (err)
        return pd_error_set(error, PD_ENOMEM, "NO_THREAD",
                            "cannot start the sequencer's thread: %s", strerror(err));
    pthread_setname_np(seq->thread, "sequencer");
    seq->started = true;
    return 0;
}

/* Nobody can read such a feed and no job frees it: the operator must hear of it. */
static void tell_unconfigured(const struct pd_sequencer *seq)
{
    for (uint32_t i = 0; i < seq->state.feed_count; i++) {
        const struct pd_seq_feed *feed = seq->state.feeds[i];
        if (!feed->config && feed->gone == PD_SEQ_HERE && feed->has_data)
            pd_log(PD_LOG_WARN, "feed_not_configured",
                   "feed=%s packs=%" PRIu64
                   " text=\"the log keeps its data and nobody can read it: name it in `feeds` "
                   "again, or remove it with `packctl delete-feed --feed %s`\"",
                   feed->name, feed->packs, feed->name);
    }
}

int pd_sequencer_start(const struct pd_config *config, struct pd_log *log, struct pd_serve *serve,
                       struct pd_sequencer **out, struct pd_error *error)
{
    struct pd_sequencer *seq = calloc(1, sizeof *seq);
    if (!seq || pd_seq_epochs_init(seq) != 0 || init_lock(seq) != 0) {
        if (seq)
            free(seq->stream_epochs);
        free(seq);
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory starting the sequencer");
    }
    seq->magic = SEQUENCER_MAGIC;
    seq->config = config;
    seq->log = log;
    seq->serve = serve;
    seq->next_timer_ns = UINT64_MAX;
    struct pd_error local = {0};
    int rc = pd_seq_space_start(seq);
    if (rc)
        pd_error_set(&local, rc, "NO_MEMORY", "out of memory starting the sequencer");
    else
        rc = open_state(seq, &local);
    if (!rc) {
        tell_unconfigured(seq);
        pd_seq_space_tell(seq);
        announce(seq);
        rc = start_thread(seq, &local);
    }
    if (rc) {
        if (error)
            *error = local;
        pd_sequencer_free(seq);
        return rc;
    }
    *out = seq;
    return 0;
}

void pd_sequencer_stop(struct pd_sequencer *seq)
{
    if (!seq || !seq->started)
        return;
    pthread_mutex_lock(&seq->mutex);
    seq->stopping = true;
    pthread_cond_signal(&seq->cond);
    pthread_mutex_unlock(&seq->mutex);
    pthread_join(seq->thread, NULL);
    seq->started = false;
}

void pd_sequencer_free(struct pd_sequencer *seq)
{
    if (!seq)
        return;
    PD_MAGIC_CHECK(seq, SEQUENCER_MAGIC);
    PD_CHECK(!seq->started);
    pd_seq_state_fini(&seq->state);
    pd_seq_space_stop(seq);
    pd_buf_fini(&seq->body);
    pd_buf_fini(&seq->row);
    pd_pack_fini(&seq->pack);
    pthread_mutex_destroy(&seq->stall_mutex);
    pthread_mutex_destroy(&seq->mutex);
    pthread_cond_destroy(&seq->cond);
    free(seq->stream_epochs);
    seq->magic = 0;
    free(seq);
}
