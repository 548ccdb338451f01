/* Serving: the public calls. Each takes the lock once, looks, moves entries, and leaves; waking and
 * freeing follow outside the lock.
 *
 *   get ──> refused (fenced, trimmed, past the end, halted, ...)
 *       ──> ready: one more reader
 *       ──> else: the waiter joins the entry, and the entry the tasks once its step is planned
 *
 * Threads: rpc threads get, cancel and report deliveries; the sequencer tells progress and jobs;
 * assemble threads build (serve_build.c). None of them waits here for anything but the lock.
 *
 * Invariant: a rank past the end gets the same answer whatever it asked: steps_planned of a feed
 * that has ended is final, and it is the same number for all ranks. Fenced waiters are woken in the
 * call that fences them. */
#include "server/serve.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/metrics.h"
#include "server/serve_state.h"

#include <stdlib.h>
#include <string.h>

/* Ready batches take so much before those that have been received go: memory that is used
 * again while it is in a cache. Where such batches are read late, this part of memory.batches. */
#define RECEIVED_KEEP_BYTES (16u << 20)
#define LATE_PART 16

/* ---- life ---- */

static int locks_init(struct pd_serve *serve)
{
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0)
        return PD_ENOMEM;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int rc = pthread_cond_init(&serve->work, &attr);
    pthread_condattr_destroy(&attr);
    if (rc != 0)
        return PD_ENOMEM;
    if (pthread_mutex_init(&serve->lock, NULL) == 0)
        return 0;
    pthread_cond_destroy(&serve->work);
    return PD_ENOMEM;
}

int pd_serve_new(const struct pd_config *config, struct pd_log *log, struct pd_serve **out,
                 struct pd_error *error)
{
    struct pd_serve *serve = calloc(1, sizeof *serve);
    struct pd_serve_feed *feeds = calloc(config->feed_count, sizeof *feeds);
    if (!serve || !feeds || locks_init(serve) != 0) {
        free(serve);
        free(feeds);
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for serving");
    }
    serve->magic = PD_SERVE_MAGIC;
    serve->config = config;
    serve->log = log;
    serve->feeds = feeds;
    serve->feed_count = config->feed_count;
    serve->budget_bytes = config->memory_batches_bytes;
    serve->received_keep_bytes = serve->late_keep_bytes = RECEIVED_KEEP_BYTES;
    if (serve->budget_bytes / LATE_PART > RECEIVED_KEEP_BYTES)
        serve->late_keep_bytes = serve->budget_bytes / LATE_PART;
    pd_list_init(&serve->turns);
    for (uint32_t i = 0; i < serve->feed_count; i++) {
        feeds[i].config = &config->feeds[i];
        pd_list_init(&feeds[i].jobs);
    }
    *out = serve;
    return 0;
}

struct pd_serve_hooks *pd_serve_hooks(struct pd_serve *serve)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    PD_CHECK(serve->worker_count == 0);
    return &serve->hooks;
}

int pd_serve_start(struct pd_serve *serve, struct pd_error *error)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    int rc = pd_workers_start(serve, error);
    if (rc != 0)
        pd_serve_stop(serve);
    return rc;
}

static void wake_job(struct pd_serve *serve, struct pd_serve_job *job, struct pd_after *after)
{
    for (struct pd_entry *e = pd_entry_first(job); e; e = pd_entry_next(e))
        pd_entry_wake(serve, e, false, after);
}

void pd_serve_stop(struct pd_serve *serve)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    struct pd_after after;
    pd_after_init(&after);
    pthread_mutex_lock(&serve->lock);
    serve->stopping = true;
    PD_LIST_EACH(link, &serve->turns)
        wake_job(serve, PD_CONTAINER_OF(link, struct pd_serve_job, turn), &after);
    pthread_cond_broadcast(&serve->work);
    pthread_mutex_unlock(&serve->lock);
    pd_after_run(&after);
    pd_workers_join(serve);
}

void pd_serve_free(struct pd_serve *serve)
{
    if (!serve)
        return;
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    PD_CHECK(serve->worker_count == 0);
    struct pd_after after;
    pd_after_init(&after);
    while (!pd_list_empty(&serve->turns))
        pd_job_remove(serve, PD_CONTAINER_OF(serve->turns.next, struct pd_serve_job, turn), &after);
    pd_after_run(&after);
    PD_CHECK(serve->boxes == 0); /* every reader has let go */
    pthread_cond_destroy(&serve->work);
    pthread_mutex_destroy(&serve->lock);
    free(serve->feeds);
    serve->magic = 0;
    free(serve);
}

/* ---- what the sequencer tells ---- */

/* Entries whose step has been planned join the tasks; those past the end are told. */
static void job_advance(struct pd_serve *serve, struct pd_serve_job *job, struct pd_after *after)
{
    uint64_t before = job->steps_planned;
    bool ended = serve->feeds[job->info.feed_index].progress.ended;
    pd_job_plan(serve, job);
    struct pd_entry *entry = pd_entry_from(job, before);
    while (entry && (ended || entry->key.step < job->steps_planned)) {
        struct pd_entry *next = pd_entry_next(entry);
        bool planned = entry->key.step < job->steps_planned;
        if (entry->state == PD_ENTRY_UNPLANNED && planned && !pd_job_holds(job, entry->key.step))
            pd_entry_queue(serve, entry);
        else if (entry->state == PD_ENTRY_UNPLANNED && !planned)
            pd_entry_drop(serve, entry, after);
        entry = next;
    }
}

void pd_serve_feed_advanced(struct pd_serve *serve, uint32_t feed_index,
                            const struct pd_feed_progress *progress)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    PD_CHECK(feed_index < serve->feed_count);
    struct pd_serve_feed *feed = &serve->feeds[feed_index];
    struct pd_after after;
    pd_after_init(&after);
    pthread_mutex_lock(&serve->lock);
    bool moved = progress->packs_planned != feed->progress.packs_planned ||
                 progress->ended != feed->progress.ended;
    feed->progress = *progress;
    feed->log_number = pd_log_feed_number(serve->log, feed_index);
    if (moved)
        PD_LIST_EACH(link, &feed->jobs)
            job_advance(serve, PD_CONTAINER_OF(link, struct pd_serve_job, in_feed), &after);
    pthread_mutex_unlock(&serve->lock);
    pd_after_run(&after);
}

/* Steps below lowest_step are no longer in the log: nothing of them is served, nobody waits for
 * them. */
static void job_trim(struct pd_serve *serve, struct pd_serve_job *job, struct pd_after *after)
{
    struct pd_entry *entry = pd_entry_first(job);
    while (entry && entry->key.step < job->info.lowest_step) {
        struct pd_entry *next = pd_entry_next(entry);
        pd_entry_drop(serve, entry, after);
        entry = next;
    }
}

/* Takes over what the sequencer says of the job. */
static void job_inform(struct pd_serve_job *job, const struct pd_job_info *info)
{
    static const struct pd_step_ranges none;
    if (job->info.world != info->world)
        job->handed_end = 0;
    job->info = *info;
    job->info.skipped = NULL;
    /* without them its ranks would get steps that the others leave out */
    PD_CHECK(pd_step_ranges_copy(&job->skipped, info->skipped ? info->skipped : &none) == 0);
}

void pd_serve_job_opened(struct pd_serve *serve, const struct pd_job_info *info)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    PD_CHECK(info->feed_index < serve->feed_count);
    PD_CHECK(info->spec.rows > 0 && info->spec.dp_size > 0 && info->spec.accum > 0);
    PD_CHECK((uint64_t)info->spec.rows * info->spec.dp_size * info->spec.accum ==
             info->spec.step_packs);
    struct pd_after after;
    pd_after_init(&after);
    pthread_mutex_lock(&serve->lock);
    struct pd_serve_job *job = pd_job_find(serve, info->feed_index, info->job_id);
    bool other_world = !job || job->info.generation != info->generation;
    if (job && other_world)
        pd_job_reset(serve, job, &after);
    if (!job)
        job = pd_job_add(serve, info);
    PD_CHECK(job); /* a job lost here would never be served: end rather than hang its ranks */
    job_inform(job, info);
    if (other_world) /* else the log was trimmed: what has been measured stays */
        pd_job_slot(serve, job, 0);
    job_trim(serve, job, &after);
    pd_job_plan(serve, job);
    pthread_cond_broadcast(&serve->work);
    pthread_mutex_unlock(&serve->lock);
    pd_after_run(&after);
}

void pd_serve_feed_reset(struct pd_serve *serve, uint32_t feed_index)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    PD_CHECK(feed_index < serve->feed_count);
    struct pd_serve_feed *feed = &serve->feeds[feed_index];
    struct pd_after after;
    pd_after_init(&after);
    pthread_mutex_lock(&serve->lock);
    while (!pd_list_empty(&feed->jobs))
        pd_job_remove(serve, PD_CONTAINER_OF(feed->jobs.next, struct pd_serve_job, in_feed),
                      &after);
    serve->gauges.halted_feeds -= feed->halted;
    feed->halted = false;
    feed->progress = (struct pd_feed_progress){0};
    feed->totals = (struct pd_served_totals){0};
    feed->log_number = pd_log_feed_number(serve->log, feed_index);
    pthread_cond_broadcast(&serve->work);
    pthread_mutex_unlock(&serve->lock);
    pd_after_run(&after);
    if (serve->hooks.renewed)
        serve->hooks.renewed(serve->hooks.renewed_ctx, feed_index);
}

void pd_serve_job_deleted(struct pd_serve *serve, uint32_t feed_index, uint32_t job_id)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    struct pd_after after;
    pd_after_init(&after);
    pthread_mutex_lock(&serve->lock);
    struct pd_serve_job *job = pd_job_find(serve, feed_index, job_id);
    if (job)
        pd_job_remove(serve, job, &after);
    pthread_cond_broadcast(&serve->work);
    pthread_mutex_unlock(&serve->lock);
    pd_after_run(&after);
}

/* ---- get ---- */

static int refuse_key(const struct pd_serve_job *job, const struct pd_batch_key *key,
                      uint64_t *bound, struct pd_error *error)
{
    const struct pd_job_spec *spec = &job->info.spec;
    if (key->generation != job->info.generation)
        return pd_error_set(error, PD_EFENCED, "FENCED",
                            "job %s is at generation %llu, this call belongs to generation %llu",
                            spec->name, (unsigned long long)job->info.generation,
                            (unsigned long long)key->generation);
    if (key->dp_rank >= spec->dp_size)
        return pd_error_set(error, PD_EMISMATCH, "DP_RANK",
                            "dp_rank %u, job %s has dp_size %u: 0 to %u", key->dp_rank, spec->name,
                            spec->dp_size, spec->dp_size - 1);
    if (key->micro >= spec->accum)
        return pd_error_set(error, PD_EMISMATCH, "MICRO", "micro %u, job %s has accum %u: 0 to %u",
                            key->micro, spec->name, spec->accum, spec->accum - 1);
    if (key->step >= job->info.lowest_step)
        return 0;
    *bound = job->info.lowest_step;
    return pd_error_set(error, PD_ERANGE, "STEP_TRIMMED",
                        "step %llu of job %s is no longer in the log, the lowest is %llu",
                        (unsigned long long)key->step, spec->name, (unsigned long long)*bound);
}

/* 0 where the key names a batch that exists or will. */
static int admit_key(struct pd_serve *serve, const struct pd_batch_key *key,
                     struct pd_serve_job **out, uint64_t *last_step, struct pd_error *error)
{
    if (serve->stopping)
        return pd_error_set(error, PD_ECLOSED, "STOPPING", "the server is stopping");
    struct pd_serve_job *job = pd_job_find(serve, key->feed_index, key->job_id);
    if (!job)
        return pd_error_set(
            error, PD_ENOTFOUND, "UNKNOWN_JOB",
            "the job (number %u of feed number %u) is gone: it was deleted; OpenJob "
            "makes it anew",
            key->job_id, key->feed_index);
    int rc = refuse_key(job, key, last_step, error);
    const struct pd_serve_feed *feed = &serve->feeds[key->feed_index];
    if (rc == 0 && feed->halted) {
        *error = feed->halt;
        return feed->halt.code;
    }
    if (rc == 0 && feed->progress.ended && key->step >= job->steps_planned) {
        *last_step = job->steps_planned;
        return pd_error_set(error, PD_EEND, "END_OF_FEED", "job %s has %llu steps",
                            job->info.spec.name, (unsigned long long)job->steps_planned);
    }
    *out = job;
    return rc;
}

/* Moves the key to the first batch behind the steps that are left out; true where it moved. */
static bool pass_skipped(const struct pd_serve_job *job, struct pd_batch_key *key)
{
    uint64_t step = pd_step_ranges_pass(&job->skipped, key->step);
    if (step == key->step)
        return false;
    key->step = step;
    key->micro = 0;
    return true;
}

void pd_serve_pass_skipped(struct pd_serve *serve, struct pd_batch_key *key)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    pthread_mutex_lock(&serve->lock);
    const struct pd_serve_job *job = pd_job_find(serve, key->feed_index, key->job_id);
    if (job)
        pass_skipped(job, key);
    pthread_mutex_unlock(&serve->lock);
}

static void observe_wait(struct pd_waiter *waiter)
{
    if (waiter->since_ns > 0)
        pd_metric_observe(PD_M_WAIT_SECONDS, pd_clock_mono_ns() - waiter->since_ns);
    waiter->since_ns = 0;
}

static struct pd_ready_batch *take_ready(struct pd_entry *entry, struct pd_waiter *waiter)
{
    if (waiter->claims && entry->claims > 0)
        entry->claims--;
    waiter->claims = false;
    observe_wait(waiter);
    if (entry->job->handed_end <= entry->key.step)
        entry->job->handed_end = entry->key.step + 1;
    atomic_fetch_add_explicit(&entry->box->holds, 1, memory_order_relaxed);
    return &entry->box->ready;
}

static bool failure_holds(const struct pd_entry *entry)
{
    return entry->state == PD_ENTRY_FAILED &&
           pd_clock_mono_ns() - entry->failed_ns < PD_FAILURE_HOLD_NS;
}

/* The waiter joins the entry, the entry the tasks where its step is planned. */
static void join(struct pd_serve *serve, struct pd_entry *entry, struct pd_waiter *waiter)
{
    waiter->registered = true;
    waiter->claims = false;
    if (waiter->since_ns == 0)
        waiter->since_ns = pd_clock_mono_ns();
    pd_list_push(&entry->waiters, &waiter->link);
    serve->gauges.waiters++;
    bool planned = entry->key.step < entry->job->steps_planned;
    if (planned && !pd_job_holds(entry->job, entry->key.step) &&
        entry->state != PD_ENTRY_BUILDING && !(entry->state == PD_ENTRY_QUEUED && entry->asked))
        pd_entry_queue(serve, entry);
}

/* A batch that has been received is read once more: ranks have peers that lag behind, or a run went
 * back. */
static void note_late(struct pd_serve *serve, const struct pd_serve_job *job,
                      const struct pd_batch_key *key)
{
    const struct pd_job_spec *spec = &job->info.spec;
    uint32_t count = spec->dp_size * spec->accum;
    if (pd_delivered_some(&job->delivered, key->step, key->micro * spec->dp_size + key->dp_rank,
                          count, count))
        serve->received_keep_bytes = serve->late_keep_bytes;
}

static int get_locked(struct pd_serve *serve, struct pd_waiter *waiter,
                      struct pd_ready_batch **batch, struct pd_wait_info *info, uint64_t *last_step,
                      struct pd_error *error)
{
    struct pd_serve_job *job = NULL;
    int rc = admit_key(serve, &waiter->key, &job, last_step, error);
    if (rc != 0)
        return rc;
    note_late(serve, job, &waiter->key);
    struct pd_entry *entry = pd_entry_find(job, &waiter->key);
    if (!entry)
        entry = pd_entry_add(job, &waiter->key);
    if (!entry)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for a waiting call");
    if (entry->state == PD_ENTRY_READY) {
        *batch = take_ready(entry, waiter);
        return 0;
    }
    if (failure_holds(entry)) {
        *error = *entry->failure;
        return error->code;
    }
    join(serve, entry, waiter);
    pd_wait_fill(serve, job, entry, entry->key.step, info);
    return PD_EAGAIN;
}

int pd_serve_get(struct pd_serve *serve, struct pd_waiter *waiter, struct pd_ready_batch **batch,
                 struct pd_wait_info *info, uint64_t *last_step, struct pd_error *error)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    struct pd_error unused;
    *batch = NULL;
    *last_step = 0;
    pthread_mutex_lock(&serve->lock);
    PD_CHECK(!waiter->registered);
    int rc = get_locked(serve, waiter, batch, info, last_step, error ? error : &unused);
    pthread_mutex_unlock(&serve->lock);
    return rc;
}

void pd_serve_wait_info(struct pd_serve *serve, const struct pd_batch_key *key,
                        struct pd_wait_info *info)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    *info = (struct pd_wait_info){.step = key->step};
    pthread_mutex_lock(&serve->lock);
    struct pd_serve_job *job = pd_job_find(serve, key->feed_index, key->job_id);
    if (job)
        pd_wait_fill(serve, job, pd_entry_find(job, key), key->step, info);
    pthread_mutex_unlock(&serve->lock);
}

/* A queued entry that lost a waiter: out of the tasks, or back in at the place it now has. */
static void reconsider(struct pd_serve *serve, struct pd_entry *entry, struct pd_after *after)
{
    if (!pd_list_empty(&entry->waiters) || entry->state == PD_ENTRY_BUILDING)
        return;
    if (!entry->prefetch)
        pd_entry_drop(serve, entry, after);
    else if (entry->state == PD_ENTRY_QUEUED)
        pd_entry_queue(serve, entry);
}

static void give_claim_up(struct pd_serve *serve, struct pd_entry *entry)
{
    if (entry->claims > 0 && --entry->claims == 0 && serve->starved)
        pthread_cond_broadcast(&serve->work);
}

bool pd_serve_cancel(struct pd_serve *serve, struct pd_waiter *waiter)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    struct pd_after after;
    pd_after_init(&after);
    pthread_mutex_lock(&serve->lock);
    bool registered = waiter->registered;
    struct pd_serve_job *job = pd_job_find(serve, waiter->key.feed_index, waiter->key.job_id);
    struct pd_entry *entry = job ? pd_entry_find(job, &waiter->key) : NULL;
    if (registered) {
        PD_CHECK(entry);
        pd_list_remove(&waiter->link);
        serve->gauges.waiters--;
        reconsider(serve, entry, &after);
    } else if (waiter->claims && entry) {
        give_claim_up(serve, entry);
    }
    waiter->registered = waiter->claims = false;
    waiter->since_ns = 0;
    pthread_mutex_unlock(&serve->lock);
    pd_after_run(&after);
    return registered;
}

void pd_serve_prefetch(struct pd_serve *serve, const struct pd_batch_key *key)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    struct pd_error error;
    uint64_t last_step;
    struct pd_serve_job *job = NULL;
    struct pd_batch_key wanted = *key;
    pthread_mutex_lock(&serve->lock);
    int rc = admit_key(serve, key, &job, &last_step, &error);
    if (rc == 0 && pass_skipped(job, &wanted))
        rc = admit_key(serve, &wanted, &job, &last_step, &error);
    /* Of what is not planned only the very next step: it bounds the hints that wait. */
    if (rc == 0 && wanted.step <= job->steps_planned && !pd_job_holds(job, wanted.step) &&
        job->prefetch_count < PD_PREFETCH_MAX && !pd_entry_find(job, &wanted)) {
        struct pd_entry *entry = pd_entry_add(job, &wanted);
        if (entry) {
            entry->prefetch = true;
            job->prefetch_count++;
            if (wanted.step < job->steps_planned)
                pd_entry_queue(serve, entry);
        }
    }
    pthread_mutex_unlock(&serve->lock);
}

/* ---- delivered ---- */

static void count_first(struct pd_served_totals *totals, const struct pd_box *box)
{
    const struct pd_batch *batch = &box->ready.batch;
    totals->batches++;
    totals->real_tokens += batch->totals.real_tokens;
    totals->gap_tokens += batch->totals.gap_tokens;
    totals->tail_tokens += batch->tail_tokens;
    totals->row_padding_tokens += batch->row_padding_tokens;
    totals->overlap_tokens += batch->totals.overlap_tokens;
    totals->saved_positions += box->ready.saved_positions;
    totals->samples += batch->totals.samples;
    totals->segments += batch->real_segment_count;
    totals->loss_tokens += batch->totals.loss_tokens;
    totals->bytes += batch->payload_bytes;
    if (!box->full_step)
        return;
    totals->full_step_real_tokens += batch->totals.real_tokens;
    totals->full_step_positions += (uint64_t)batch->rows * batch->width;
}

/* What mark() has to say once the lock is released. */
struct notes {
    char job[PD_NAME_MAX + 1];
    bool uncounted, given_up;
    uint64_t floor;
};

static void say(const struct notes *notes, uint64_t step)
{
    if (notes->uncounted)
        pd_log(PD_LOG_ERROR, "delivery_uncounted", "job=%s step=%llu text=\"no memory\"",
               notes->job, (unsigned long long)step);
    if (notes->given_up)
        pd_log(PD_LOG_WARN, "delivery_given_up",
               "job=%s floor=%llu text=\"too many steps are partly delivered; the lowest no longer "
               "count\"",
               notes->job, (unsigned long long)notes->floor);
}

/* Marks the batch; returns whether it is the first complete delivery. */
static bool mark(struct pd_serve_job *job, const struct pd_box *box, bool *step_complete,
                 struct notes *notes)
{
    const struct pd_batch_key *key = &box->ready.key;
    const struct pd_job_spec *spec = &job->info.spec;
    uint64_t given_up = job->delivered.given_up;
    bool first = false;
    int rc =
        pd_delivered_mark(&job->delivered, key->step, key->micro * spec->dp_size + key->dp_rank,
                          spec->dp_size * spec->accum, &first, step_complete);
    notes->uncounted = rc != 0;
    notes->given_up = job->delivered.given_up != given_up;
    notes->floor = job->delivered.floor;
    if (notes->uncounted || notes->given_up)
        memcpy(notes->job, spec->name, sizeof notes->job);
    return first;
}

void pd_serve_delivered(struct pd_serve *serve, const struct pd_ready_batch *batch,
                        bool *step_complete)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    const struct pd_box *box = PD_CONTAINER_OF(batch, struct pd_box, ready);
    const struct pd_batch_key *key = &batch->key;
    struct notes notes = {0};
    *step_complete = false;
    pthread_mutex_lock(&serve->lock);
    struct pd_served_totals *totals = &serve->feeds[key->feed_index].totals;
    struct pd_serve_job *job = pd_job_find(serve, key->feed_index, key->job_id);
    bool current = job && job->info.generation == key->generation;
    bool first = current && mark(job, box, step_complete, &notes);
    if (first) {
        count_first(totals, box);
        count_first(&job->totals, box);
        pd_rank_delivered(job, key);
    } else {
        totals->rereads++;
    }
    totals->steps_complete += *step_complete;
    if (box->entry)
        box->entry->delivered = true;
    if (serve->starved)
        pthread_cond_broadcast(&serve->work);
    pthread_mutex_unlock(&serve->lock);
    pd_metric_add_feed(PD_F_REREADS, key->feed_index, !first);
    pd_metric_add_feed(PD_F_STEPS, key->feed_index, *step_complete);
    if (first && serve->hooks.served)
        serve->hooks.served(serve->hooks.served_ctx, batch, box->full_step);
    say(&notes, key->step);
}
