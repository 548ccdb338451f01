/* SkipSteps: planned steps of a job that are left out.
 *
 *   operator, or serve on a violation ──> SkipSteps{job, generation, first, last, why}
 *     ──> generation + 1: ranks are fenced, open the job again, and pass over them
 *
 * Packs keep their steps and steps their numbers: the record only names what nobody gets. The world
 * stays, so its token goes on being the current one. Sequencer thread. Invariant: what is left out
 * was planned; a trainer's place is never a step that is left out, or planning would wait for
 * it. */
#include "server/sequencer_jobs.h"

#include "base/log.h"
#include "server/sequencer_space.h"

static int check_planned(const struct pd_seq_feed *feed, const struct pd_seq_job *job,
                         struct pd_request_skip_steps *request)
{
    struct pd_error *error = &request->base.error;
    struct pd_job_steps steps = pd_seq_job_steps(feed, job);
    uint64_t planned = pd_job_steps_planned(&steps, feed->packs, feed->ended);
    if (request->last >= planned)
        return pd_error_set(error, PD_EMISMATCH, "STEP_PLANNED",
                            "job '%s': steps %llu to %llu are to be left out, but only those below "
                            "%llu are planned",
                            request->job, (unsigned long long)request->first,
                            (unsigned long long)request->last, (unsigned long long)planned);
    request->lowest_step = pd_seq_lowest_step(feed, job);
    if (request->last < request->lowest_step)
        return pd_error_set(error, PD_ERANGE, "STEP_TRIMMED",
                            "job '%s': step %llu is no longer in the log, the lowest that is is "
                            "%llu: nobody can get it",
                            request->job, (unsigned long long)request->last,
                            (unsigned long long)request->lowest_step);
    return 0;
}

static int check(const struct pd_seq_feed *feed, const struct pd_seq_job *job,
                 struct pd_request_skip_steps *request)
{
    struct pd_error *error = &request->base.error;
    if (request->only_at > 0 && request->only_at != job->generation)
        return pd_error_set(error, PD_EFENCED, "FENCED",
                            "job '%s' has gone on from generation %llu to %llu", request->job,
                            (unsigned long long)request->only_at,
                            (unsigned long long)job->generation);
    if (request->first > request->last)
        return pd_error_set(error, PD_EINVAL, "BAD_RANGE",
                            "job '%s': first %llu is above last %llu", request->job,
                            (unsigned long long)request->first, (unsigned long long)request->last);
    return check_planned(feed, job, request);
}

static int add_range(const struct pd_seq_feed *feed, struct pd_seq_job *job,
                     const struct pd_request_skip_steps *request, struct pd_error *error)
{
    int rc = pd_step_ranges_add(&job->skipped, request->first, request->last);
    if (rc == PD_ELIMIT) { /* those of trimmed steps say nothing any more */
        pd_step_ranges_forget(&job->skipped, pd_seq_lowest_step(feed, job));
        rc = pd_step_ranges_add(&job->skipped, request->first, request->last);
    }
    if (rc == PD_ELIMIT)
        return pd_error_set(error, rc, "TOO_MANY_SKIPS",
                            "job '%s' leaves out %u ranges of steps already; join them, or commit "
                            "so that the log is trimmed",
                            request->job, job->skipped.count);
    return rc ? pd_error_set(error, rc, "NO_MEMORY", "out of memory") : 0;
}

static int write_record(struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                        const struct pd_seq_job *job, struct pd_request_skip_steps *request)
{
    pd_buf_clear(&seq->body);
    pd_buf_put_u32(&seq->body, job->id);
    pd_buf_put_u64(&seq->body, job->generation);
    pd_buf_put_u64(&seq->body, request->first);
    pd_buf_put_u64(&seq->body, request->last);
    pd_buf_put_string(&seq->body, request->why, strlen(request->why));
    request->base.record = pd_log_next_position(seq->log);
    return pd_seq_record(seq, PD_RECORD_SKIP_STEPS, feed->number);
}

static void take_effect(struct pd_seq_feed *feed, struct pd_seq_job *job,
                        const struct pd_request_skip_steps *request)
{
    job->generation++;
    pd_seq_job_advance(job, job->delivered);
    job->dirty = job->announce = true;
    feed->plan_wanted = true;
    pd_log(PD_LOG_WARN, "steps_skipped",
           "feed=%s job=%s first=%llu last=%llu generation=%llu why=\"%s\"", feed->name,
           job->spec.name, (unsigned long long)request->first, (unsigned long long)request->last,
           (unsigned long long)job->generation, request->why);
}

int pd_seq_skip_steps(struct pd_sequencer *seq, struct pd_request_skip_steps *request)
{
    struct pd_error *error = &request->base.error;
    struct pd_seq_feed *feed = NULL;
    struct pd_seq_job *job = NULL;
    int rc = pd_seq_job_named(seq, request->feed, request->job, &feed, &job, error);
    if (!rc)
        rc = check(feed, job, request);
    if (rc)
        return rc;
    uint64_t before = pd_step_ranges_steps(&job->skipped);
    bool there = pd_step_ranges_cover(&job->skipped, request->first, request->last);
    if (!there)
        rc = add_range(feed, job, request, error);
    if (rc)
        return rc;
    if (!there)
        take_effect(feed, job, request);
    request->generation = job->generation;
    request->next_step = pd_step_ranges_pass(&job->skipped, request->last);
    if (there)
        return 0;
    uint64_t after = pd_step_ranges_steps(&job->skipped);
    struct pd_seq_counts *counts = &seq->counts[feed->index];
    *(request->only_at ? &counts->skipped_by_violation : &counts->skipped_by_operator) +=
        after > before ? after - before : 0;
    return write_record(seq, feed, job, request);
}
