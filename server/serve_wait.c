/* What a rank waits for, in the words of serve.h: worked out when somebody asks, never stored.
 *
 * Place in the flow: pd_serve_get and pd_serve_wait_info, for Waiting messages and status. Under
 * serve's lock.
 *
 * It only reads: the sequencer's last word on the feed, the job's place in it, and the state of the
 * entry. */
#include "server/serve_state.h"

#include <string.h>

/* A step is planned and its batch is not there. */
static void wait_for_build(const struct pd_entry *entry, struct pd_wait_info *info)
{
    info->reason = entry && entry->state == PD_ENTRY_QUEUED && entry->no_memory ? PD_WAIT_MEMORY
                                                                                : PD_WAIT_BUILDING;
    info->since_ns = entry ? entry->since_unix_ns : 0;
}

/* The planner has asked for samples and found none. */
static enum pd_wait_reason sample_reason(const struct pd_serve_feed *feed)
{
    const struct pd_feed_progress *progress = &feed->progress;
    uint32_t streams = progress->streams_open + progress->streams_ended;
    uint32_t to_come = feed->config->streams_to_end > feed->config->stream_count
                           ? feed->config->streams_to_end
                           : feed->config->stream_count;
    if (streams == 0 || progress->want_unseen)
        return PD_WAIT_STREAM;
    if (progress->streams_open == 0)
        return streams < to_come ? PD_WAIT_STREAM : PD_WAIT_ALL_STREAMS_ENDED;
    if (progress->log_full)
        return PD_WAIT_LOG_FULL;
    return feed->config->rules.lane_count > 1 ? PD_WAIT_LANE : PD_WAIT_SAMPLES;
}

static enum pd_wait_reason plan_reason(const struct pd_serve_feed *feed)
{
    const struct pd_feed_progress *progress = &feed->progress;
    if (feed->halted)
        return PD_WAIT_STOPPED;
    if (progress->stopped)
        return strcmp(progress->stop_reason, "DIVERGED") == 0 ? PD_WAIT_DIVERGED : PD_WAIT_STOPPED;
    if (progress->waiting)
        return sample_reason(feed);
    if (progress->at_horizon)
        return PD_WAIT_HORIZON;
    return progress->log_full ? PD_WAIT_LOG_FULL : PD_WAIT_PLAN;
}

void pd_wait_fill_feed(const struct pd_serve_feed *feed, struct pd_wait_info *info)
{
    const struct pd_feed_progress *progress = &feed->progress;
    info->reason = plan_reason(feed);
    info->since_ns = progress->waiting_since_ns;
    if (!progress->waiting || progress->stopped)
        return;
    info->samples_needed = progress->want.samples_needed;
    info->streams_total = progress->want_streams_total;
    memcpy(info->streams, progress->want_streams, sizeof info->streams);
    memcpy(info->source, progress->want_source, sizeof info->source);
}

static void wait_for_plan(const struct pd_serve *serve, const struct pd_serve_job *job,
                          uint64_t step, struct pd_wait_info *info)
{
    const struct pd_serve_feed *feed = &serve->feeds[job->info.feed_index];
    struct pd_job_steps steps = pd_job_steps_of(serve, job);
    uint64_t end = pd_job_step_end(&steps, step), planned = feed->progress.packs_planned;
    info->packs_missing = end > planned ? end - planned : 0;
    pd_wait_fill_feed(feed, info);
}

void pd_wait_fill(const struct pd_serve *serve, const struct pd_serve_job *job,
                  const struct pd_entry *entry, uint64_t step, struct pd_wait_info *info)
{
    const struct pd_serve_feed *feed = &serve->feeds[job->info.feed_index];
    *info = (struct pd_wait_info){.step = step};
    if (feed->halted)
        info->reason = PD_WAIT_STOPPED;
    else if (entry && entry->state == PD_ENTRY_READY)
        info->reason = PD_WAIT_NONE;
    else if (step < job->steps_planned)
        wait_for_build(entry, info);
    else if (!feed->progress.ended)
        wait_for_plan(serve, job, step, info);
}
