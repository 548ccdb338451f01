/* What others may know of the sequencer's state: progress for serve after each commit, copies
 * for Status.
 *
 * Sequencer thread. Invariant: everything handed out is a copy of committed state. It changes
 * nothing. */
#include "server/sequencer_state.h"

#include "server/sequencer_planning.h"
#include "server/sequencer_space.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- progress ---- */

/* Adds a name to a comma separated list; false: it was full and ends in "..." now. */
static bool add_name(char *list, size_t capacity, const char *name)
{
    size_t size = strlen(list), need = strlen(name) + (size > 0);
    bool fits = size + need + 4 < capacity;
    if (fits)
        snprintf(list + size, capacity - size, "%s%s", size ? "," : "", name);
    else
        snprintf(list + size, capacity - size, "...");
    return fits;
}

/* Open streams of the lane that the refill wants; with one lane these are all open ones. */
static void name_streams(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                         struct pd_feed_progress *progress)
{
    bool room = true, count = feed->lane_count > 1;
    if (!count)
        progress->want_streams_total = feed->stream_count - feed->streams_ended;
    for (uint32_t i = 0; i < seq->state.stream_count && (room || count); i++) {
        const struct pd_seq_stream *stream = seq->state.streams[i];
        if (stream->feed != feed->number || stream->lane != feed->want.lane || stream->ended)
            continue;
        progress->want_streams_total += count;
        if (room)
            room = add_name(progress->want_streams, sizeof progress->want_streams, stream->name);
    }
}

static void name_wanted(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                        struct pd_feed_progress *progress)
{
    const struct pd_feed_config *config = feed->config;
    name_streams(seq, feed, progress);
    if (!config)
        return;
    if (config->rules.merge == PD_MERGE_ORDERED && feed->want.lane < config->stream_count) {
        /* A lane that is wanted has not ended: without an open stream, its one was never opened. */
        progress->want_unseen = progress->want_streams_total == 0;
        progress->want_streams_total = 1;
        snprintf(progress->want_streams, sizeof progress->want_streams, "%s",
                 config->streams[feed->want.lane]);
    } else if (config->source_count > 0 && feed->want.lane < feed->source_count) {
        snprintf(progress->want_source, sizeof progress->want_source, "%s",
                 feed->sources[feed->want.lane]);
    }
}

void pd_seq_progress(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                     struct pd_feed_progress *progress)
{
    *progress = (struct pd_feed_progress){
        .packs_planned = feed->packs,
        .ended = feed->ended,
        .waiting = feed->waiting,
        .want = feed->want,
        .waiting_since_ns = feed->waiting ? feed->waiting_since_wall_ns : 0,
        .streams_open = feed->stream_count - feed->streams_ended,
        .streams_ended = feed->streams_ended,
        .end_declared = feed->end_declared,
        .at_horizon = feed->packs >= pd_seq_horizon(feed),
        .log_full = feed->log_short || pd_sequencer_feed_full(seq, feed->index),
        .stopped = feed->stopped};
    if (feed->stopped)
        memcpy(progress->stop_reason, feed->stop.reason, sizeof progress->stop_reason);
    if (feed->waiting)
        name_wanted(seq, feed, progress);
}

/* ---- Status ---- */

static void copy_stream(const struct pd_seq_stream *stream, struct pd_stream_status *status)
{
    memcpy(status->name, stream->name, sizeof status->name);
    memcpy(status->source, stream->source, sizeof status->source);
    memcpy(status->producer, stream->producer, sizeof status->producer);
    memcpy(status->content_id, stream->content_id, sizeof status->content_id);
    status->next_seq = stream->next_seq;
    status->samples = stream->samples;
    status->tokens = stream->tokens;
    status->bytes = stream->bytes;
    status->blocks = stream->blocks;
    status->log_bytes = stream->log_bytes;
    status->last_wall_ns = stream->last_wall_ns;
    status->duplicates = stream->duplicates;
    status->rejected = stream->rejected;
    memcpy(status->rejected_for, stream->rejected_for, sizeof status->rejected_for);
    status->ended = stream->ended;
    status->connected = stream->connected;
    status->deleted = stream->deleted;
}

static int copy_streams(const struct pd_seq_state *state, const struct pd_seq_feed *feed,
                        struct pd_feed_status *status)
{
    status->streams = calloc(feed->stream_count ? feed->stream_count : 1, sizeof *status->streams);
    if (!status->streams)
        return PD_ENOMEM;
    for (uint32_t i = 0; i < state->name_count; i++) {
        const struct pd_seq_stream *stream = state->streams[state->streams_by_name[i]];
        if (stream->feed == feed->number)
            copy_stream(stream, &status->streams[status->stream_count++]);
    }
    for (uint32_t i = 0; i < state->stream_count; i++) {
        const struct pd_seq_stream *stream = state->streams[i];
        if (stream->feed == feed->number && stream->deleted)
            copy_stream(stream, &status->streams[status->stream_count++]);
    }
    return 0;
}

static const char *lane_name(const struct pd_seq_feed *feed, uint32_t lane)
{
    if (feed->config->rules.merge == PD_MERGE_ORDERED)
        return feed->config->streams[lane];
    return feed->config->source_count > 0 ? feed->config->sources[lane].name : "feed";
}

static void copy_lane(const struct pd_seq_feed *feed, uint32_t lane, struct pd_lane_status *status)
{
    const struct pd_seq_lane *space = &feed->lanes[lane];
    const struct pd_block_head *head = &feed->supply.lanes[lane];
    struct pd_lane_view view = {0};
    snprintf(status->name, sizeof status->name, "%s", lane_name(feed, lane));
    if (feed->planner)
        pd_planner_lane(feed->planner, lane, &view);
    status->weight = feed->config->source_count > 0 ? view.weight : 0;
    status->pass = view.pass;
    status->deficit = view.deficit;
    status->ended = view.ended;
    status->unplanned_bytes = space->unplanned_bytes;
    /* The block that the planner is in counts by what it has not taken yet. */
    bool inside = head->count > 0 && head->position == view.cursor.block && view.pass == 0;
    uint64_t left = inside && view.cursor.index > 0 && view.cursor.index < head->count
                        ? head->count - view.cursor.index
                        : 0;
    status->drawn = status->samples - space->unplanned_samples - left;
}

static int copy_lanes(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                      struct pd_feed_status *status)
{
    status->lanes = calloc(feed->lane_count, sizeof *status->lanes);
    if (!status->lanes)
        return PD_ENOMEM;
    status->lane_count = feed->lane_count;
    for (uint32_t i = 0; i < seq->state.stream_count; i++) {
        const struct pd_seq_stream *stream = seq->state.streams[i];
        if (stream->feed == feed->number)
            status->lanes[stream->lane].samples += stream->next_seq;
    }
    for (uint32_t i = 0; i < feed->lane_count; i++)
        copy_lane(feed, i, &status->lanes[i]);
    return 0;
}

static int copy_jobs(const struct pd_seq_feed *feed, struct pd_feed_status *status)
{
    status->jobs = calloc(feed->job_count ? feed->job_count : 1, sizeof *status->jobs);
    if (!status->jobs)
        return PD_ENOMEM;
    for (uint32_t i = 0; i < feed->job_count; i++) {
        const struct pd_seq_job *job = feed->jobs[i];
        struct pd_job_status *copy = &status->jobs[status->job_count++];
        memcpy(copy->name, job->spec.name, sizeof copy->name);
        copy->job_id = job->id;
        copy->spec = job->spec;
        copy->generation = job->generation;
        copy->committed = job->committed;
        copy->delivered = job->delivered;
        copy->released = job->released;
        copy->first_step = job->first_step;
        copy->first_pack = job->first_pack;
        copy->lowest_step = pd_seq_lowest_step(feed, job);
        pd_seq_job_held(feed, job, &copy->bytes_held, &copy->bytes_per_step);
        if (job->commit_count > 0)
            copy->committed_wall_ns = job->commits[job->commit_count - 1].wall_ns;
    }
    return 0;
}

static int copy_prune(const struct pd_seq_feed *feed, struct pd_feed_status *status)
{
    if (!feed->planner)
        return 0;
    const struct pd_prune_stats *stats = pd_planner_prune_stats(feed->planner);
    uint64_t dropped = pd_planner_pruned_views(feed->planner);
    if (stats->samples == 0 && dropped == 0)
        return 0;
    status->prune = calloc(1, sizeof *status->prune);
    if (!status->prune)
        return PD_ENOMEM;
    status->prune->stats = *stats;
    status->prune->dropped_views = dropped;
    memcpy(status->prune->views, feed->views, sizeof status->prune->views);
    return 0;
}

static int copy_feed(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                     struct pd_feed_status *status)
{
    memcpy(status->name, feed->name, sizeof status->name);
    status->packs_planned = feed->packs;
    status->horizon_packs = pd_seq_horizon(feed);
    status->plan_digest = feed->plan_digest;
    status->tokenizer = feed->tokenizer;
    status->lowest_pack = feed->lowest_pack;
    status->snapshot_packs = feed->snapshot_packs;
    memcpy(status->refusals, feed->refusals, sizeof status->refusals);
    status->refusal_count = feed->refusal_count;
    status->end_declared = feed->end_declared;
    status->ended = feed->ended;
    status->stopped = feed->stopped;
    status->stop = feed->stop;
    status->waiting = feed->waiting;
    status->want = feed->want;
    status->waiting_since_ns = feed->waiting ? feed->waiting_since_wall_ns : 0;
    if (feed->planner) {
        pd_planner_stats(feed->planner, &status->planner);
        status->oldest_wall_ns =
            pd_arrivals_time(&feed->arrivals, pd_planner_oldest_block(feed->planner));
    }
    status->log_bytes = pd_seq_feed_bytes(feed);
    status->unplanned_bytes = pd_seq_unplanned_bytes(feed);
    int rc = copy_lanes(seq, feed, status);
    if (!rc)
        rc = copy_streams(&seq->state, feed, status);
    if (!rc)
        rc = copy_prune(feed, status);
    return rc ? rc : copy_jobs(feed, status);
}

int pd_seq_status(struct pd_sequencer *seq, struct pd_request_status *request)
{
    int rc = 0;
    request->feeds = calloc(seq->config->feed_count, sizeof *request->feeds);
    request->feed_count = 0;
    request->records = pd_log_next_position(seq->log) - 1; /* positions begin at 1 */
    if (!request->feeds)
        rc = PD_ENOMEM;
    for (uint32_t i = 0; !rc && i < seq->config->feed_count; i++) {
        const struct pd_seq_feed *feed = pd_seq_feed_at_index(&seq->state, i);
        if (feed)
            rc = copy_feed(seq, feed, &request->feeds[request->feed_count++]);
    }
    if (rc) {
        pd_status_fini(request);
        return pd_error_set(&request->base.error, rc, "NO_MEMORY", "out of memory");
    }
    return 0;
}

void pd_status_fini(struct pd_request_status *status)
{
    for (uint32_t i = 0; i < status->feed_count; i++) {
        free(status->feeds[i].lanes);
        free(status->feeds[i].streams);
        free(status->feeds[i].prune);
        free(status->feeds[i].jobs);
    }
    free(status->feeds);
    status->feeds = NULL;
    status->feed_count = 0;
}
