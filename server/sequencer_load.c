/* The state in memory from the log: at start, and again after a commit that failed.
 *
 * Tables give streams, jobs and feeds as of the last commit; each feed's planner comes from its
 * newest snapshot and the records behind it. Start-up thread, then sequencer thread. Invariant:
 * load reads; only pd_seq_feeds_configure writes, and only where the configuration asks for it. */
#include "server/sequencer_state.h"

#include "base/check.h"
#include "base/clock.h"
#include "server/sequencer_feeds.h"
#include "server/sequencer_jobs.h"
#include "server/sequencer_planning.h"
#include "server/sequencer_space.h"
#include "server/sequencer_streams.h"
#include "server/sequencer_tables.h"

#include <stdlib.h>

/* ---- lookups ---- */

struct pd_seq_feed *pd_seq_feed_find(struct pd_seq_state *state, const char *name)
{
    for (uint32_t i = 0; i < state->feed_count; i++)
        if (state->feeds[i]->gone == PD_SEQ_HERE && strcmp(state->feeds[i]->name, name) == 0)
            return state->feeds[i];
    return NULL;
}

struct pd_seq_feed *pd_seq_feed_at_index(struct pd_seq_state *state, uint32_t index)
{
    for (uint32_t i = 0; i < state->feed_count; i++)
        if (state->feeds[i]->config && state->feeds[i]->index == index)
            return state->feeds[i];
    return NULL;
}

int pd_seq_feed_named(struct pd_sequencer *seq, const char *name, struct pd_seq_feed **out,
                      struct pd_error *error)
{
    struct pd_seq_feed *feed = pd_seq_feed_find(&seq->state, name);
    if (!feed || !feed->config)
        return pd_error_set(error, PD_ENOTFOUND, "UNKNOWN_FEED",
                            "there is no feed '%.64s' in the configuration", name);
    *out = feed;
    return 0;
}

/* ---- freeing and carrying over ---- */

void pd_seq_feed_free(struct pd_seq_feed *feed)
{
    pd_planner_free(feed->planner);
    pd_seq_supply_fini(&feed->supply);
    pd_seq_space_fini(feed);
    pd_buf_fini(&feed->settings);
    pd_buf_fini(&feed->first_settings);
    for (uint32_t i = 0; i < feed->job_count; i++)
        pd_seq_job_free(feed->jobs[i]);
    free(feed->jobs);
    free(feed->sources);
    free(feed->lane_ended);
    free(feed);
}

void pd_seq_state_fini(struct pd_seq_state *state)
{
    for (uint32_t i = 0; i < state->feed_count; i++)
        pd_seq_feed_free(state->feeds[i]);
    for (uint32_t i = 0; i < state->stream_count; i++)
        free(state->streams[i]);
    free(state->feeds);
    free(state->streams);
    free(state->streams_by_name);
    free(state->dirty_streams);
    *state = (struct pd_seq_state){0};
}

/* What is in the log has been announced after the commit that put it there. */
static void carry_job(struct pd_seq_job *to, const struct pd_seq_job *from)
{
    to->announce = false;
    pd_seq_job_advance(to, from->delivered);
    to->delivered_known = from->delivered_known;
    to->loaded_steps = from->loaded_steps;
    to->given_up = from->given_up;
    to->active_ns = from->active_ns;
}

static void carry_jobs(struct pd_seq_feed *to, const struct pd_seq_feed *from)
{
    for (uint32_t i = 0; i < to->job_count; i++) {
        for (uint32_t k = 0; k < from->job_count; k++)
            if (from->jobs[k]->id == to->jobs[i]->id)
                carry_job(to->jobs[i], from->jobs[k]);
    }
}

void pd_seq_state_carry(struct pd_seq_state *to, const struct pd_seq_state *from)
{
    for (uint32_t i = 0; i < to->stream_count && i < from->stream_count; i++) {
        to->streams[i]->epoch = from->streams[i]->epoch;
        to->streams[i]->connected = from->streams[i]->connected;
        to->streams[i]->duplicates = from->streams[i]->duplicates;
    }
    for (uint32_t i = 0; i < to->feed_count && i < from->feed_count; i++) {
        struct pd_seq_feed *feed = to->feeds[i];
        carry_jobs(feed, from->feeds[i]);
        feed->loaded_packs = from->feeds[i]->loaded_packs;
        feed->waiting_since_wall_ns = from->feeds[i]->waiting_since_wall_ns;
        feed->short_since_ns = from->feeds[i]->short_since_ns;
        feed->short_pack = from->feeds[i]->short_pack;
        feed->appended_since_flush = true;
        feed->arrivals = from->feeds[i]->arrivals;
    }
}

/* ---- tables ---- */

static int load_feed(void *ctx, uint32_t number, uint32_t zero, struct pd_reader row)
{
    struct pd_seq_state *state = ctx;
    (void)zero;
    if (number != state->feed_count)
        return PD_ECORRUPT;
    struct pd_seq_feed **feeds = realloc(state->feeds, (state->feed_count + 1) * sizeof *feeds);
    if (!feeds)
        return PD_ENOMEM;
    state->feeds = feeds;
    struct pd_seq_feed *feed = calloc(1, sizeof *feed);
    if (!feed)
        return PD_ENOMEM;
    feed->number = number;
    feed->index = UINT32_MAX;
    feed->appended_since_flush = true;
    state->feeds[state->feed_count++] = feed;
    return pd_seq_feed_decode(feed, row);
}

static int load_source(void *ctx, uint32_t number, uint32_t source, struct pd_reader row)
{
    struct pd_seq_state *state = ctx;
    size_t size;
    const char *name = pd_reader_string(&row, &size);
    if (number >= state->feed_count || !name || size > PD_NAME_MAX || source > PD_SEQ_SOURCES_MAX)
        return PD_ECORRUPT;
    struct pd_seq_feed *feed = state->feeds[number];
    if (source != feed->source_count + 1)
        return PD_ECORRUPT;
    void *sources = realloc(feed->sources, source * sizeof *feed->sources);
    if (!sources)
        return PD_ENOMEM;
    feed->sources = sources;
    memcpy(feed->sources[source - 1], name, size);
    feed->sources[source - 1][size] = 0;
    feed->source_count = source;
    return 0;
}

static int load_stream(void *ctx, uint32_t id, uint32_t zero, struct pd_reader row)
{
    struct pd_seq_state *state = ctx;
    (void)zero;
    struct pd_seq_stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return PD_ENOMEM;
    stream->id = id;
    int rc = pd_seq_stream_decode(stream, row);
    bool at_home =
        stream->feed < state->feed_count || (stream->deleted && stream->feed == PD_SEQ_NO_FEED);
    if (!rc && (id != state->stream_count || !at_home))
        rc = PD_ECORRUPT;
    if (!rc)
        rc = pd_seq_stream_add(state, stream);
    if (rc)
        free(stream);
    return rc;
}

static int load_job(void *ctx, uint32_t number, uint32_t id, struct pd_reader row)
{
    struct pd_seq_state *state = ctx;
    if (number >= state->feed_count)
        return PD_ECORRUPT;
    struct pd_seq_feed *feed = state->feeds[number];
    struct pd_seq_job **jobs = realloc(feed->jobs, (feed->job_count + 1) * sizeof *jobs);
    if (!jobs)
        return PD_ENOMEM;
    feed->jobs = jobs;
    struct pd_seq_job *job = calloc(1, sizeof *job);
    if (!job)
        return PD_ENOMEM;
    job->id = id;
    job->announce = true;
    job->active_ns = pd_clock_mono_ns();
    feed->jobs[feed->job_count++] = job;
    int rc = pd_seq_job_decode(job, row);
    pd_seq_job_advance(job, job->committed);
    return rc;
}

static int load_tables(struct pd_sequencer *seq, struct pd_error *error)
{
    static const struct {
        enum pd_table table;
        const char *name;
        int (*each)(void *ctx, uint32_t a, uint32_t b, struct pd_reader row);
    } tables[] = {{PD_TABLE_FEEDS, "feeds", load_feed},
                  {PD_TABLE_SOURCES, "sources", load_source},
                  {PD_TABLE_VIEWS, "views", pd_seq_view_load},
                  {PD_TABLE_TENSORS, "tensors", pd_seq_tensor_load},
                  {PD_TABLE_STREAMS, "streams", load_stream},
                  {PD_TABLE_JOBS, "jobs", load_job}};
    for (size_t i = 0; i < PD_COUNT_OF(tables); i++) {
        int rc = pd_log_scan_rows(seq->log, tables[i].table, tables[i].each, &seq->state, error);
        if (rc && !error->code)
            return pd_error_set(error, rc, rc == PD_ENOMEM ? "NO_MEMORY" : "LOG_DAMAGED",
                                "table '%s' of the log cannot be read: %s", tables[i].name,
                                pd_err_text(rc));
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- replay ---- */

static int replay_record(void *ctx, const struct pd_record *record)
{
    struct pd_sequencer *seq = ctx;
    if (record->feed >= seq->state.feed_count)
        return PD_ECORRUPT;
    struct pd_seq_feed *feed = seq->state.feeds[record->feed];
    if (!feed->planner || record->position < feed->replay_from)
        return 0;
    int rc = pd_seq_planner_replay(seq, feed, record);
    return seq->group_rc ? seq->group_rc : rc;
}

/* What the tables say was planned, before the planners are restored over it. */
struct planned {
    uint64_t packs, digest;
};

static int load_planners(struct pd_sequencer *seq, struct planned *planned, uint64_t *from,
                         struct pd_error *error)
{
    *from = UINT64_MAX;
    for (uint32_t i = 0; i < seq->state.feed_count; i++) {
        struct pd_seq_feed *feed = seq->state.feeds[i];
        planned[i] = (struct planned){.packs = feed->packs, .digest = feed->plan_digest};
        if (!feed->config)
            continue;
        int rc = pd_seq_planner_load(seq, feed, error);
        if (rc)
            return rc;
        if (feed->replay_from < *from)
            *from = feed->replay_from;
    }
    return 0;
}

/* Whatever is planned may have been delivered before the process began. */
static void note_loaded(struct pd_seq_feed *feed)
{
    feed->loaded_packs = feed->packs;
    for (uint32_t i = 0; feed->config && i < feed->job_count; i++) {
        struct pd_job_steps steps = pd_seq_job_steps(feed, feed->jobs[i]);
        feed->jobs[i]->loaded_steps = pd_job_steps_planned(&steps, feed->packs, true);
    }
}

/* A stopped feed keeps what was planned; a replayed one must have come to the same place. */
static void check_planned(struct pd_sequencer *seq, const struct planned *planned)
{
    for (uint32_t i = 0; i < seq->state.feed_count; i++) {
        struct pd_seq_feed *feed = seq->state.feeds[i];
        if (feed->planner &&
            (feed->packs != planned[i].packs || feed->plan_digest != planned[i].digest))
            pd_seq_feed_stop(
                feed, PD_EMISMATCH, "DIVERGED",
                "replaying the log does not end where the table of feeds says it does");
        feed->packs = planned[i].packs;
        feed->plan_digest = planned[i].digest;
        note_loaded(feed);
    }
}

static int replay(struct pd_sequencer *seq, struct pd_error *error)
{
    struct planned *planned =
        calloc(seq->state.feed_count ? seq->state.feed_count : 1, sizeof *planned);
    if (!planned)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    uint64_t from;
    int rc = load_planners(seq, planned, &from, error);
    if (!rc && from != UINT64_MAX) {
        rc = pd_log_scan_records(seq->log, from, replay_record, seq, error);
        if (rc && !error->code)
            rc = pd_error_set(error, rc, "LOG_DAMAGED", "the log's records cannot be replayed: %s",
                              pd_err_text(rc));
    }
    if (!rc)
        check_planned(seq, planned);
    free(planned);
    return rc;
}

int pd_seq_load(struct pd_sequencer *seq, struct pd_error *error)
{
    int rc = load_tables(seq, error);
    if (!rc)
        rc = pd_seq_feeds_configure(seq, error);
    if (!rc)
        rc = replay(seq, error);
    if (!rc)
        rc = pd_seq_space_load(seq, error);
    for (uint32_t i = 0; i < seq->state.feed_count; i++)
        seq->state.feeds[i]->announce = true;
    return rc;
}
