/* What is forgotten: a stream, a whole feed.
 *
 *   DeleteStream   its end, and a rule that leaves out what is in no pack yet; the name is free
 *   DeleteFeed     the feed's number is given up, a new one starts under its name where that is
 *                  configured; what the old one holds in the log goes a part at a time, then its
 *                  number may be used again
 *
 * Sequencer thread. Invariant: a number names one feed's data at a time; job numbers go on, so that
 * a call of an old job never meets a new one. Packs that name a deleted stream can still be
 * explained: its row stays. */
#include "server/sequencer_feeds.h"

#include "base/log.h"
#include "server/sequencer_jobs.h"
#include "server/sequencer_planning.h"
#include "server/sequencer_settings.h"
#include "server/sequencer_space.h"
#include "server/sequencer_streams.h"
#include "server/serve_view.h"

#include <stdlib.h>

/* ---- DeleteStream ---- */

static int check_stream(const struct pd_seq_stream *stream, const struct pd_seq_feed *feed,
                        const struct pd_request_delete_stream *request, struct pd_error *error)
{
    if (!stream || stream->feed != feed->number)
        return pd_error_set(error, PD_ENOTFOUND, "UNKNOWN_STREAM", "feed '%s' has no stream '%s'",
                            feed->name, request->stream);
    if (stream->connected && !request->force)
        return pd_error_set(error, PD_EMISMATCH, "IN_USE",
                            "a producer (%s) is connected to stream '%s'; end it, or delete with "
                            "`force`",
                            stream->producer, stream->name);
    return 0;
}

int pd_seq_delete_stream(struct pd_sequencer *seq, struct pd_request_delete_stream *request)
{
    struct pd_error *error = &request->base.error;
    struct pd_seq_feed *feed = NULL;
    int rc = pd_seq_feed_named(seq, request->feed, &feed, error);
    if (rc)
        return rc;
    struct pd_seq_stream *stream = pd_seq_stream_find(&seq->state, request->stream);
    rc = check_stream(stream, feed, request, error);
    if (rc)
        return rc;
    struct pd_control control = {
        .kind = PD_CONTROL_SKIP_RULE,
        .from_pack = feed->planner ? pd_planner_change_pack(feed->planner) : feed->packs,
        .rule = {.by_stream = true, .stream = stream->id, .last_seq = UINT64_MAX}};
    rc = pd_seq_planner_control(seq, feed, &control, error);
    if (rc)
        return rc;
    request->base.record = pd_log_next_position(seq->log);
    pd_buf_clear(&seq->body);
    pd_seq_rule_encode(&control, &seq->body);
    rc = pd_seq_record(seq, PD_RECORD_DELETE_STREAM, feed->number);
    if (rc)
        return rc;
    feed->streams_ended += !stream->ended;
    stream->ended = true;
    feed->announce = feed->plan_wanted = true;
    pd_seq_stream_forget(&seq->state, stream);
    pd_seq_epochs_tell(seq);
    return pd_seq_feed_check_end(seq, feed, stream->lane, error);
}

/* ---- DeleteFeed ---- */

static int check_unused(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                        struct pd_error *error)
{
    uint32_t producers = 0, calls = 0;
    for (uint32_t i = 0; i < seq->state.stream_count; i++)
        producers +=
            seq->state.streams[i]->feed == feed->number && seq->state.streams[i]->connected;
    for (uint32_t i = 0; i < feed->job_count; i++)
        if (!feed->jobs[i]->deleted)
            calls += pd_serve_job_calls(seq->serve, feed->index, feed->jobs[i]->id);
    if (producers == 0 && calls == 0)
        return 0;
    return pd_error_set(
        error, PD_EMISMATCH, "IN_USE",
        "feed '%s' has %u connected producers and %u open fetch calls; end them, or "
        "delete it with `force`",
        feed->name, producers, calls);
}

/* Rows that name the old number; its streams are known by their own. */
static int delete_rows(struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                       struct pd_error *error)
{
    int rc = 0;
    for (uint32_t i = 0; !rc && i < feed->job_count; i++)
        if (!feed->jobs[i]->deleted)
            rc = pd_log_delete_row(seq->log, PD_TABLE_JOBS, feed->number, feed->jobs[i]->id, error);
    for (uint32_t i = 1; !rc && i <= feed->source_count; i++)
        rc = pd_log_delete_row(seq->log, PD_TABLE_SOURCES, feed->number, i, error);
    return rc;
}

/* The jobs go with the announcement of the new feed: serve knows them by the feed's index. */
static void move_jobs(struct pd_seq_feed *from, struct pd_seq_feed *to)
{
    to->jobs = from->jobs;
    to->job_count = from->job_count;
    to->next_job_id = from->next_job_id;
    from->jobs = NULL;
    from->job_count = 0;
    for (uint32_t i = 0; i < to->job_count; i++)
        to->jobs[i]->deleted = true;
}

static void retire(struct pd_seq_feed *feed)
{
    pd_planner_free(feed->planner);
    feed->planner = NULL;
    pd_seq_space_fini(feed);
    feed->config = NULL;
    feed->index = UINT32_MAX;
    feed->gone = PD_SEQ_PURGING;
    feed->source_count = 0;
    feed->waiting = feed->trimming = feed->trim_wanted = feed->announce = false;
    feed->dirty = true;
}

/* Of a feed that the configuration does not name serve knows nothing: its jobs go with it. */
static void drop_jobs(struct pd_seq_feed *feed)
{
    for (uint32_t i = 0; i < feed->job_count; i++)
        pd_seq_job_free(feed->jobs[i]);
    feed->job_count = 0;
}

static int replace(struct pd_sequencer *seq, struct pd_seq_feed *old, struct pd_error *error)
{
    struct pd_seq_feed *feed = NULL;
    uint32_t index = old->index;
    bool configured = old->config != NULL;
    pd_seq_streams_forget(&seq->state, old->number);
    pd_seq_epochs_tell(seq);
    int rc = delete_rows(seq, old, error);
    if (rc)
        return rc;
    retire(old);
    if (!configured) {
        drop_jobs(old);
        return 0;
    }
    rc = pd_seq_feed_make(seq, index, &feed, error);
    if (rc)
        return rc;
    move_jobs(old, feed);
    rc = pd_seq_planner_load(seq, feed, error);
    feed->announce = feed->reborn = true;
    return rc;
}

int pd_seq_delete_feed(struct pd_sequencer *seq, struct pd_request_delete_feed *request)
{
    struct pd_error *error = &request->base.error;
    struct pd_seq_feed *feed = pd_seq_feed_find(&seq->state, request->feed);
    int rc = feed ? 0
                  : pd_error_set(error, PD_ENOTFOUND, "UNKNOWN_FEED",
                                 "neither the configuration nor the log has a feed '%.64s'",
                                 request->feed);
    if (!rc && feed->config && !request->force)
        rc = check_unused(seq, feed, error);
    if (!rc && feed->config && pd_seq_feeds_full(&seq->state))
        rc = pd_error_set(error, PD_ELIMIT, "TOO_MANY_FEEDS",
                          "feeds that were deleted before are still being removed; try again");
    if (rc)
        return rc;
    pd_log(PD_LOG_WARN, "feed_deleted", "feed=%s packs=%llu jobs=%u streams=%u", feed->name,
           (unsigned long long)feed->packs, feed->job_count, feed->stream_count);
    request->base.record = pd_log_next_position(seq->log);
    pd_buf_clear(&seq->body);
    pd_buf_put_string(&seq->body, feed->name, strlen(feed->name));
    rc = pd_seq_record(seq, PD_RECORD_DELETE_FEED, feed->number);
    if (!rc)
        rc = replace(seq, feed, error);
    /* Half of it may be done: the group is undone, whatever failed. */
    return rc && !seq->group_rc ? pd_seq_write_failed(seq, rc, error) : rc;
}

/* ---- what is left of it ---- */

static int delete_snapshot(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                           struct pd_error *error)
{
    struct pd_buf buf = {0};
    uint64_t position;
    int rc = pd_log_get_snapshot(seq->log, feed->number, UINT64_MAX, &position, &buf, error);
    pd_buf_fini(&buf);
    if (rc == 0 || rc == PD_ECORRUPT)
        return pd_log_delete_snapshot(seq->log, feed->number, position, error);
    return rc;
}

static int purge_some(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_error *error)
{
    uint64_t budget = PD_SEQ_TRIM_BYTES, freed = 0;
    int rc = pd_log_trim_plans(seq->log, feed->number, UINT64_MAX, &budget, &freed, error);
    for (uint32_t lane = 0; !rc && lane < feed->lane_count; lane++)
        rc = pd_log_trim_lane(seq->log, feed->number, lane, UINT64_MAX, &budget, pd_seq_space_freed,
                              seq, error);
    if (!rc)
        rc = pd_log_trim_records(seq->log, feed->number, &feed->records_trimmed,
                                 pd_log_next_position(seq->log), &budget, error);
    while (!rc)
        rc = delete_snapshot(seq, feed, error);
    return rc == PD_ENOTFOUND ? 0 : rc;
}

int pd_seq_purge(struct pd_sequencer *seq, struct pd_seq_feed *feed)
{
    struct pd_error error = {0};
    int rc = purge_some(seq, feed, &error);
    if (rc == PD_EAGAIN)
        return 0;
    if (rc)
        return pd_seq_write_failed(seq, rc, &error);
    feed->gone = PD_SEQ_PURGED;
    feed->dirty = true;
    pd_log(PD_LOG_INFO, "feed_purged", "feed=%s", feed->name);
    return 0;
}
