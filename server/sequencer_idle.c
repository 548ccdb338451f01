/* idle_release: a job that nobody has used for long lets go of the log.
 *
 * A call, a delivery, a commit and an open fetch are signs of life. Without one for the feed's
 * idle_release a trainer's job is released by a record, and holds nothing from there on: neither
 * the log nor the horizon. Whoever opens the job again, or goes on with it, makes it hold what is
 * left, by a record too. Sequencer thread. Invariant: off by default; a clock decides when the
 * record is written, only the record decides what is held. */
#include "server/sequencer_jobs.h"

#include "base/clock.h"
#include "base/log.h"
#include "server/metrics.h"
#include "server/sequencer_space.h"
#include "server/serve_view.h"

static int release(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_seq_job *job,
                   uint64_t silent_ns)
{
    uint64_t held, per_step;
    pd_seq_job_held(feed, job, &held, &per_step);
    pd_log(PD_LOG_WARN, "job_released",
           "feed=%s job=%s silent_s=%llu bytes_held=%llu next_step=%llu text=\"the job has been "
           "silent for idle_release and holds the log no longer\"",
           feed->name, job->spec.name, (unsigned long long)(silent_ns / 1000000000u),
           (unsigned long long)held, (unsigned long long)job->committed);
    pd_metric_add_feed(PD_F_JOBS_RELEASED, feed->index, 1);
    pd_buf_clear(&seq->body);
    pd_buf_put_u32(&seq->body, job->id);
    job->released = true;
    job->dirty = true;
    feed->trim_wanted = true;
    feed->plan_wanted = true;
    return pd_seq_record(seq, PD_RECORD_RELEASE_JOB, feed->number);
}

/* When the job is due, UINT64_MAX: not at all. */
static uint64_t due_ns(struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                       struct pd_seq_job *job, uint64_t now_ns)
{
    if (job->deleted || job->released || job->spec.kind != PD_JOB_TRAINER)
        return UINT64_MAX;
    if (pd_serve_job_calls(seq->serve, feed->index, job->id) > 0)
        job->active_ns = now_ns;
    return job->active_ns + feed->config->idle_release_ns;
}

int pd_seq_jobs_idle(struct pd_sequencer *seq, uint64_t now_ns)
{
    for (uint32_t i = 0; i < seq->state.feed_count; i++) {
        struct pd_seq_feed *feed = seq->state.feeds[i];
        if (!feed->config || feed->config->idle_release_ns == 0)
            continue;
        for (uint32_t k = 0; k < feed->job_count; k++) {
            struct pd_seq_job *job = feed->jobs[k];
            uint64_t due = due_ns(seq, feed, job, now_ns);
            int rc = due <= now_ns ? release(seq, feed, job, now_ns - job->active_ns) : 0;
            if (rc)
                return rc;
            if (due > now_ns && due < seq->next_timer_ns)
                seq->next_timer_ns = due;
        }
    }
    return 0;
}

int pd_seq_job_alive(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_seq_job *job)
{
    job->active_ns = pd_clock_mono_ns();
    if (!job->released)
        return 0;
    job->released = false;
    pd_log(PD_LOG_INFO, "job_holds_again", "feed=%s job=%s next_step=%llu lowest_step=%llu",
           feed->name, job->spec.name, (unsigned long long)job->committed,
           (unsigned long long)pd_seq_lowest_step(feed, job));
    return pd_seq_job_record(seq, feed, job);
}
