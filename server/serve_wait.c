/* What a rank waits for, in the words of serve.h: worked out when somebody asks, never stored.
 *
 * Place in the flow: pd_serve_get and pd_serve_wait_info, for Waiting messages and status. Under
 * serve's lock.
 *
 * It only reads: the sequencer's last word on the feed, the job's place in it, and the state of the
 * entry. */
#include "server/serve_state.h"

#include <stdio.h>
#include <string.h>

/* A step is planned and its batch is not there. */
static void wait_for_build(const struct pd_entry *entry, struct pd_wait_info *info)
{
    info->reason = entry && entry->state == PD_ENTRY_QUEUED && entry->no_memory ? PD_WAIT_MEMORY
                                                                                : PD_WAIT_BUILDING;
    info->since_ns = entry ? entry->since_unix_ns : 0;
}

/* The planner stopped on its own although samples are there: two steps or more lie planned beyond
 * what every rank has received. */
static bool at_horizon(const struct pd_serve_job *job)
{
    return job->steps_planned >= job->delivered.next_complete + 2;
}

static enum pd_wait_reason plan_reason(const struct pd_serve_feed *feed,
                                       const struct pd_serve_job *job)
{
    const struct pd_feed_progress *progress = &feed->progress;
    if (progress->stopped)
        return PD_WAIT_STOPPED;
    uint32_t streams = progress->streams_open + progress->streams_ended;
    uint32_t to_come = feed->config->streams_to_end > feed->config->stream_count
                           ? feed->config->streams_to_end
                           : feed->config->stream_count;
    if (!progress->waiting && streams > 0 && at_horizon(job))
        return PD_WAIT_HORIZON;
    if (progress->end_declared)
        return PD_WAIT_SAMPLES; /* the rest is being planned */
    if (streams == 0)
        return PD_WAIT_NO_STREAMS;
    if (progress->streams_open == 0 && progress->streams_ended >= to_come)
        return PD_WAIT_ALL_STREAMS_ENDED;
    return PD_WAIT_SAMPLES;
}

static void wait_for_plan(const struct pd_serve *serve, const struct pd_serve_job *job,
                          uint64_t step, struct pd_wait_info *info)
{
    const struct pd_serve_feed *feed = &serve->feeds[job->info.feed_index];
    const struct pd_feed_progress *progress = &feed->progress;
    struct pd_job_steps steps = pd_job_steps_of(serve, job);
    uint64_t end = pd_job_step_end(&steps, step);
    info->packs_missing = end > progress->packs_planned ? end - progress->packs_planned : 0;
    info->reason = plan_reason(feed, job);
    info->since_ns = progress->waiting_since_ns;
    if (info->reason != PD_WAIT_SAMPLES || !progress->waiting)
        return;
    info->samples_needed = progress->want.samples_needed;
    memcpy(info->streams, progress->want_streams, sizeof info->streams);
    info->streams[sizeof info->streams - 1] = 0;
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
