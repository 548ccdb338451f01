/* Serving's views for Status, metrics and Explain: copies of what the tables say, and the ranks
 * that have come to a job.
 *
 * Place in the flow: rpc threads and the main thread ask, under serve's lock for the time of a
 * copy. Invariant: a rank's record belongs to the job's present generation and goes with it. It
 * changes nothing that serving depends on. */
#include "base/check.h"
#include "server/serve_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- ranks ---- */

static uint32_t ranks_of(const struct pd_serve_job *job)
{
    return job->info.spec.dp_size < PD_RANKS_MAX ? job->info.spec.dp_size : PD_RANKS_MAX;
}

/* The rank's record; NULL: of another generation, above PD_RANKS_MAX, or no memory for a view. */
static struct pd_rank *rank_take(struct pd_serve *serve, const struct pd_batch_key *key)
{
    struct pd_serve_job *job = pd_job_find(serve, key->feed_index, key->job_id);
    if (!job || job->info.generation != key->generation || key->dp_rank >= ranks_of(job))
        return NULL;
    if (!job->ranks)
        job->ranks = calloc(ranks_of(job), sizeof *job->ranks);
    return job->ranks ? &job->ranks[key->dp_rank] : NULL;
}

void pd_serve_rank_opened(struct pd_serve *serve, const struct pd_batch_key *key,
                          const char *client)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    pthread_mutex_lock(&serve->lock);
    struct pd_rank *rank = rank_take(serve, key);
    if (rank) {
        rank->opened = true;
        snprintf(rank->client, sizeof rank->client, "%s", client);
    }
    pthread_mutex_unlock(&serve->lock);
}

void pd_serve_rank_calls(struct pd_serve *serve, const struct pd_batch_key *key, int change)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    PD_CHECK(change == 1 || change == -1);
    pthread_mutex_lock(&serve->lock);
    struct pd_serve_job *job = pd_job_find(serve, key->feed_index, key->job_id);
    if (job && job->info.generation == key->generation && (change > 0 || job->calls > 0))
        job->calls += (uint32_t)change;
    struct pd_rank *rank = rank_take(serve, key);
    if (rank && (change > 0 || rank->calls > 0))
        rank->calls += (uint32_t)change;
    pthread_mutex_unlock(&serve->lock);
}

uint32_t pd_serve_job_calls(struct pd_serve *serve, uint32_t feed_index, uint32_t job_id)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    pthread_mutex_lock(&serve->lock);
    const struct pd_serve_job *job = pd_job_find(serve, feed_index, job_id);
    uint32_t calls = job ? job->calls : 0;
    pthread_mutex_unlock(&serve->lock);
    return calls;
}

void pd_rank_delivered(struct pd_serve_job *job, const struct pd_batch_key *key)
{
    const struct pd_job_spec *spec = &job->info.spec;
    if (!job->ranks || key->dp_rank >= ranks_of(job))
        return;
    struct pd_rank *rank = &job->ranks[key->dp_rank];
    if (key->step + 1 > rank->delivered &&
        pd_delivered_some(&job->delivered, key->step, key->dp_rank, spec->dp_size,
                          spec->dp_size * spec->accum))
        rank->delivered = key->step + 1;
}

/* ---- a job ---- */

/* What each rank waits for: the lowest entry with a waiter is met first. */
static void view_waits(const struct pd_serve *serve, struct pd_serve_job *job,
                       struct pd_job_view *view)
{
    for (struct pd_entry *e = pd_entry_first(job); e; e = pd_entry_next(e)) {
        for (uint32_t i = 0; !pd_list_empty(&e->waiters) && i < view->rank_count; i++) {
            struct pd_rank_view *rank = &view->ranks[i];
            if (rank->dp_rank != e->key.dp_rank || rank->waiting)
                continue;
            rank->waiting = true;
            rank->wait_micro = e->key.micro;
            pd_wait_fill(serve, job, e, e->key.step, &rank->wait);
        }
    }
}

static int view_ranks(const struct pd_serve *serve, struct pd_serve_job *job,
                      struct pd_job_view *view)
{
    if (!job->ranks)
        return 0;
    view->ranks = calloc(ranks_of(job), sizeof *view->ranks);
    if (!view->ranks)
        return PD_ENOMEM;
    for (uint32_t i = 0; i < ranks_of(job); i++) {
        const struct pd_rank *rank = &job->ranks[i];
        if (!rank->opened && rank->calls == 0)
            continue;
        struct pd_rank_view *out = &view->ranks[view->rank_count++];
        out->dp_rank = i;
        out->calls = rank->calls;
        out->delivered = rank->delivered;
        memcpy(out->client, rank->client, sizeof out->client);
    }
    view_waits(serve, job, view);
    return 0;
}

int pd_serve_job_view(struct pd_serve *serve, uint32_t feed_index, uint32_t job_id,
                      struct pd_job_view *view)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    *view = (struct pd_job_view){0};
    pthread_mutex_lock(&serve->lock);
    struct pd_serve_job *job = pd_job_find(serve, feed_index, job_id);
    int rc = job ? view_ranks(serve, job, view) : PD_ENOTFOUND;
    if (rc == 0) {
        view->totals = job->totals;
        view->ready_batches = job->ready_batches;
        view->lowest_step = job->info.lowest_step;
    }
    pthread_mutex_unlock(&serve->lock);
    return rc;
}

int pd_serve_job_named(struct pd_serve *serve, uint32_t feed_index, const char *name,
                       struct pd_job_info *info, struct pd_error *error)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    PD_CHECK(feed_index < serve->feed_count);
    int rc = PD_ENOTFOUND;
    pthread_mutex_lock(&serve->lock);
    PD_LIST_EACH(link, &serve->feeds[feed_index].jobs) {
        const struct pd_serve_job *job = PD_CONTAINER_OF(link, struct pd_serve_job, in_feed);
        if (strcmp(job->info.spec.name, name) == 0) {
            *info = job->info;
            rc = 0;
        }
    }
    pthread_mutex_unlock(&serve->lock);
    return rc == 0 ? 0
                   : pd_error_set(error, rc, "UNKNOWN_JOB",
                                  "feed %s has no job %.64s: call OpenJob first",
                                  serve->feeds[feed_index].config->name, name);
}

int pd_serve_job_skipped(struct pd_serve *serve, uint32_t feed_index, uint32_t job_id,
                         struct pd_step_ranges *skipped)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    pthread_mutex_lock(&serve->lock);
    const struct pd_serve_job *job = pd_job_find(serve, feed_index, job_id);
    int rc = job ? pd_step_ranges_copy(skipped, &job->skipped) : 0;
    pthread_mutex_unlock(&serve->lock);
    return rc;
}

void pd_serve_feed_wait(struct pd_serve *serve, uint32_t feed_index, struct pd_wait_info *info)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    PD_CHECK(feed_index < serve->feed_count);
    *info = (struct pd_wait_info){0};
    pthread_mutex_lock(&serve->lock);
    const struct pd_serve_feed *feed = &serve->feeds[feed_index];
    if (!feed->progress.ended)
        pd_wait_fill_feed(feed, info);
    pthread_mutex_unlock(&serve->lock);
}

/* ---- totals, gauges, places ---- */

void pd_serve_totals(struct pd_serve *serve, uint32_t feed_index, struct pd_served_totals *totals)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    PD_CHECK(feed_index < serve->feed_count);
    pthread_mutex_lock(&serve->lock);
    *totals = serve->feeds[feed_index].totals;
    pthread_mutex_unlock(&serve->lock);
}

void pd_serve_repro(struct pd_serve *serve, char path[PD_REPRO_PATH_MAX])
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    pthread_mutex_lock(&serve->lock);
    memcpy(path, serve->repro_path, PD_REPRO_PATH_MAX);
    pthread_mutex_unlock(&serve->lock);
}

bool pd_serve_halted(struct pd_serve *serve, uint32_t feed_index, struct pd_error *error)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    PD_CHECK(feed_index < serve->feed_count);
    pthread_mutex_lock(&serve->lock);
    const struct pd_serve_feed *feed = &serve->feeds[feed_index];
    bool halted = feed->halted;
    if (halted)
        *error = feed->halt;
    pthread_mutex_unlock(&serve->lock);
    return halted;
}

void pd_serve_gauges(struct pd_serve *serve, struct pd_serve_gauges *gauges)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    pthread_mutex_lock(&serve->lock);
    *gauges = serve->gauges;
    gauges->ready_bytes_max = serve->budget_bytes;
    pthread_mutex_unlock(&serve->lock);
}

static int step_place_locked(struct pd_serve *serve, const struct pd_serve_job *job, uint64_t step,
                             struct pd_job_steps *steps, struct pd_step_place *place,
                             struct pd_error *error)
{
    const char *name = job->info.spec.name;
    if (step < job->info.lowest_step)
        return pd_error_set(error, PD_ERANGE, "STEP_TRIMMED",
                            "step %llu of job %s is no longer in the log, the lowest is %llu",
                            (unsigned long long)step, name,
                            (unsigned long long)job->info.lowest_step);
    if (step >= job->steps_planned && serve->feeds[job->info.feed_index].progress.ended)
        return pd_error_set(error, PD_ERANGE, "PAST_END", "job %s has %llu steps", name,
                            (unsigned long long)job->steps_planned);
    if (step >= job->steps_planned)
        return pd_error_set(error, PD_EAGAIN, "NOT_PLANNED",
                            "step %llu of job %s is not planned yet", (unsigned long long)step,
                            name);
    *steps = pd_job_steps_of(serve, job);
    *place = pd_job_place(serve, job, step);
    return 0;
}

int pd_serve_step_place(struct pd_serve *serve, uint32_t feed_index, uint32_t job_id, uint64_t step,
                        struct pd_job_steps *steps, struct pd_step_place *place,
                        struct pd_error *error)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    pthread_mutex_lock(&serve->lock);
    struct pd_serve_job *job = pd_job_find(serve, feed_index, job_id);
    int rc =
        job ? step_place_locked(serve, job, step, steps, place, error)
            : pd_error_set(error, PD_ENOTFOUND, "UNKNOWN_JOB", "there is no job number %u", job_id);
    pthread_mutex_unlock(&serve->lock);
    return rc;
}
