/* Trimming: how much of the log each feed must keep, and giving the rest back.
 *
 *   jobs ──retained commits──> lowest pack any job may still ask for
 *                                └──> the newest snapshot at or below it ──> lane floors
 *
 * A feed is trimmed to a snapshot: from there its plans can be made again, and every block of a
 * lane below the snapshot's floor of that lane is in packs before it. Two groups do it: the first
 * makes `lowest_pack` durable and tells serve, which then serves nothing below; the later ones
 * delete, at most PD_SEQ_TRIM_BYTES each. Sequencer thread. Invariant: nothing at or above what
 * lowest_pack stands for is ever deleted; deletion goes on after a restart by itself. Trimming has
 * no effect on any plan, so it is no record. */
#include "server/sequencer_space.h"

#include "base/check.h"
#include "base/log.h"
#include "server/metrics.h"
#include "server/sequencer_feeds.h"
#include "server/sequencer_jobs.h"
#include "server/sequencer_planning.h"

#include <stdio.h>
#include <stdlib.h>

/* The newest snapshots stay whatever is committed: a damaged one must not be the end. */
#define SNAPSHOTS_KEPT 2u
/* A snapshot is taken at least so often over the feed's share of the log ... */
#define SNAPSHOT_SHARE_PART 64u
/* ... but writes no more than a sixteenth of what has been planned since, where that leaves at
 * least this part of the share between two. */
#define SNAPSHOT_COST 16u
#define SNAPSHOT_SHARE_MAX_PART 16u
#define TOKEN_BYTES 4u

/* ---- marks: the snapshots there are ---- */

uint64_t pd_seq_share_bytes(const struct pd_sequencer *seq, const struct pd_seq_feed *feed)
{
    return pd_config_feed_bytes(seq->config, feed->config);
}

uint64_t pd_seq_snapshot_packs(const struct pd_sequencer *seq, const struct pd_seq_feed *feed)
{
    uint64_t share = pd_seq_share_bytes(seq, feed);
    uint64_t pack_bytes = (uint64_t)feed->config->rules.seq_len * TOKEN_BYTES;
    uint64_t bytes = share / SNAPSHOT_SHARE_PART, usual = PD_SEQ_SNAPSHOT_PACKS * pack_bytes;
    uint64_t least = feed->snapshot_bytes * SNAPSHOT_COST, most = share / SNAPSHOT_SHARE_MAX_PART;
    if (bytes > usual)
        bytes = usual;
    if (least > most)
        least = most;
    if (bytes < least)
        bytes = least;
    return bytes / pack_bytes > 0 ? bytes / pack_bytes : 1;
}

/* Every other one of those between the oldest and the newest goes. */
static int thin(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_error *error)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < feed->mark_count; i++) {
        if (i % 2 == 1 && i + SNAPSHOTS_KEPT < feed->mark_count) {
            int rc = pd_log_delete_snapshot(seq->log, feed->number, feed->marks[i].position, error);
            if (rc)
                return rc;
            continue;
        }
        feed->marks[kept++] = feed->marks[i];
    }
    feed->mark_count = kept;
    return 0;
}

int pd_seq_mark_add(struct pd_sequencer *seq, struct pd_seq_feed *feed, uint64_t position,
                    uint64_t packs, struct pd_error *error)
{
    if (feed->mark_count > 0 && feed->marks[feed->mark_count - 1].position == position)
        feed->mark_count--;
    if (feed->mark_count == PD_SEQ_MARKS_MAX) {
        int rc = thin(seq, feed, error);
        if (rc)
            return rc;
    }
    feed->marks[feed->mark_count++] = (struct pd_seq_mark){.position = position, .packs = packs};
    return 0;
}

/* ---- what jobs hold ---- */

static const struct pd_job_config *retain_of(const struct pd_seq_feed *feed, const char *name)
{
    static const struct pd_job_config usual = {.retain_commits = 3};
    for (uint32_t i = 0; i < feed->config->job_count; i++)
        if (strcmp(feed->config->jobs[i].name, name) == 0)
            return &feed->config->jobs[i];
    return &usual;
}

static bool job_known(const struct pd_seq_feed *feed, const char *name)
{
    for (uint32_t i = 0; i < feed->job_count; i++)
        if (!feed->jobs[i]->deleted && strcmp(feed->jobs[i]->spec.name, name) == 0)
            return true;
    return false;
}

/* Which of the job's commits is the oldest to be kept; there is one. Times are those in the
 * records: no clock is read. */
static uint32_t oldest_commit(const struct pd_seq_job *job, const struct pd_job_config *retain)
{
    uint32_t last = job->commit_count - 1;
    uint32_t commits = retain->retain_commits ? retain->retain_commits : 1;
    uint32_t oldest = job->commit_count > commits ? job->commit_count - commits : 0;
    uint64_t last_ns = job->commits[last].wall_ns;
    while (oldest > 0 && retain->retain_ns > 0 &&
           job->commits[oldest].wall_ns + retain->retain_ns > last_ns)
        oldest--;
    return oldest;
}

uint64_t pd_seq_job_floor_step(const struct pd_seq_feed *feed, const struct pd_seq_job *job)
{
    if (job->commit_count == 0)
        return job->first_step;
    const struct pd_job_config *retain = retain_of(feed, job->spec.name);
    uint64_t floor = job->commits[oldest_commit(job, retain)].step + 1;
    uint64_t step_bytes =
        (uint64_t)job->spec.step_packs * feed->config->rules.seq_len * TOKEN_BYTES;
    uint64_t kept = (retain->retain_bytes + step_bytes - 1) / step_bytes;
    uint64_t by_bytes = job->committed > kept ? job->committed - kept : 0;
    if (retain->retain_bytes > 0 && by_bytes < floor)
        floor = by_bytes;
    if (floor < job->first_step)
        floor = job->first_step;
    return pd_step_ranges_pass(&job->skipped, floor > job->given_up ? floor : job->given_up);
}

uint64_t pd_seq_job_done(const struct pd_seq_job *job)
{
    return pd_step_ranges_pass(&job->skipped, job->committed);
}

uint64_t pd_seq_job_reached(const struct pd_seq_feed *feed, const struct pd_seq_job *job)
{
    if (job->delivered_known || feed->packs <= job->first_pack)
        return job->delivered;
    struct pd_job_steps steps = pd_seq_job_steps(feed, job);
    return pd_job_steps_planned(&steps, feed->packs, false);
}

static uint64_t job_floor_pack(const struct pd_seq_feed *feed, const struct pd_seq_job *job)
{
    struct pd_job_steps steps = pd_seq_job_steps(feed, job);
    return pd_job_step_needs(&steps, pd_seq_job_floor_step(feed, job));
}

uint64_t pd_seq_lowest_step(const struct pd_seq_feed *feed, const struct pd_seq_job *job)
{
    struct pd_job_steps steps = pd_seq_job_steps(feed, job);
    return pd_job_steps_lowest(&steps, feed->lowest_pack);
}

struct pd_seq_job *pd_seq_slowest_job(const struct pd_seq_feed *feed)
{
    struct pd_seq_job *slowest = NULL;
    for (uint32_t i = 0; i < feed->job_count; i++) {
        struct pd_seq_job *job = feed->jobs[i];
        if (job->deleted || job->released || job->spec.kind != PD_JOB_TRAINER)
            continue;
        if (!slowest || job_floor_pack(feed, job) < job_floor_pack(feed, slowest))
            slowest = job;
    }
    return slowest;
}

/* A job of the configuration that has not come yet: it holds what there is. NULL: none. */
static const char *awaited_job(const struct pd_seq_feed *feed)
{
    for (uint32_t i = 0; i < feed->config->job_count; i++)
        if (!job_known(feed, feed->config->jobs[i].name))
            return feed->config->jobs[i].name;
    return NULL;
}

/* The lowest pack that must stay. */
static uint64_t floor_pack(const struct pd_seq_feed *feed)
{
    if (awaited_job(feed))
        return feed->lowest_pack;
    const struct pd_seq_job *slowest = pd_seq_slowest_job(feed);
    return slowest ? job_floor_pack(feed, slowest) : feed->lowest_pack;
}

/* ---- first: where to ---- */

/* Index of the newest snapshot at or below `pack`, of those that may be the oldest one kept; or
 * UINT32_MAX. */
static uint32_t mark_at(const struct pd_seq_feed *feed, uint64_t pack)
{
    for (uint32_t i = feed->mark_count; i-- > 0;)
        if (feed->marks[i].packs <= pack && i + SNAPSHOTS_KEPT <= feed->mark_count)
            return i;
    return UINT32_MAX;
}

static int raise_floor(struct pd_sequencer *seq, struct pd_seq_feed *feed)
{
    struct pd_error error = {0};
    uint32_t mark = mark_at(feed, floor_pack(feed));
    feed->trim_wanted = false;
    if (mark == UINT32_MAX || feed->marks[mark].packs <= feed->lowest_pack)
        return 0;
    feed->lowest_pack = feed->marks[mark].packs;
    feed->dirty = true;
    feed->trimming = true;
    for (uint32_t i = 0; i < feed->job_count; i++)
        feed->jobs[i]->announce = true;
    int rc = pd_log_put_lowest_pack(seq->log, feed->number, feed->lowest_pack, &error);
    return rc ? pd_seq_write_failed(seq, rc, &error) : 0;
}

/* ---- then: deleting ---- */

/* The floors of lanes in the snapshot at marks[index]; PD_ECORRUPT where it is damaged. */
static int read_floors(struct pd_sequencer *seq, struct pd_seq_feed *feed, uint32_t index,
                       uint64_t *floors)
{
    struct pd_buf buf = {0};
    struct pd_error error = {0};
    uint64_t position;
    int rc = pd_log_get_snapshot(seq->log, feed->number, feed->marks[index].position + 1, &position,
                                 &buf, &error);
    if (!rc) {
        struct pd_seq_snapshot_start start;
        struct pd_reader reader = pd_reader_of(buf.data, buf.size_bytes);
        rc = pd_seq_snapshot_start(&reader, &start);
        if (!rc && (start.lane_count != feed->lane_count || start.packs > feed->lowest_pack))
            rc = PD_ECORRUPT;
        for (uint32_t lane = 0; !rc && lane < feed->lane_count; lane++)
            floors[lane] = pd_reader_u64(&start.floors);
    }
    pd_buf_fini(&buf);
    return rc;
}

static int delete_some(struct pd_sequencer *seq, struct pd_seq_feed *feed, uint32_t mark,
                       const uint64_t *floors, struct pd_error *error)
{
    uint64_t budget = PD_SEQ_TRIM_BYTES, freed = 0;
    int rc = pd_log_trim_plans(seq->log, feed->number, feed->lowest_pack, &budget, &freed, error);
    feed->plan_bytes -= freed < feed->plan_bytes ? freed : feed->plan_bytes;
    for (uint32_t lane = 0; !rc && lane < feed->lane_count; lane++)
        rc = pd_log_trim_lane(seq->log, feed->number, lane, floors[lane], &budget,
                              pd_seq_space_freed, seq, error);
    if (!rc)
        rc = pd_log_trim_records(seq->log, feed->number, &feed->records_trimmed,
                                 feed->marks[mark].position, &budget, error);
    for (uint32_t i = 0; !rc && i < mark; i++)
        rc = pd_log_delete_snapshot(seq->log, feed->number, feed->marks[i].position, error);
    if (rc)
        return rc;
    memmove(feed->marks, feed->marks + mark, (feed->mark_count - mark) * sizeof *feed->marks);
    feed->mark_count -= mark;
    return 0;
}

static int trim_feed(struct pd_sequencer *seq, struct pd_seq_feed *feed)
{
    struct pd_error error = {0};
    uint32_t mark = UINT32_MAX;
    for (uint32_t i = 0; i < feed->mark_count && feed->marks[i].packs <= feed->lowest_pack; i++)
        if (i + SNAPSHOTS_KEPT <= feed->mark_count)
            mark = i;
    uint64_t *floors = calloc(feed->lane_count ? feed->lane_count : 1, sizeof *floors);
    int rc = floors ? 0 : PD_ENOMEM;
    if (!rc && mark != UINT32_MAX)
        rc = read_floors(seq, feed, mark, floors);
    feed->trimming = false;
    if (rc == PD_ECORRUPT) {
        pd_log(PD_LOG_WARN, "trim_put_off",
               "feed=%s text=\"the snapshot at position %llu cannot "
               "be used; the next one will do\"",
               feed->name, (unsigned long long)feed->marks[mark].position);
        rc = 0;
    } else if (!rc && mark != UINT32_MAX) {
        rc = delete_some(seq, feed, mark, floors, &error);
        feed->trimming = rc == PD_EAGAIN;
    }
    free(floors);
    if (rc == 0 || rc == PD_EAGAIN)
        return 0;
    if (!error.code)
        pd_error_set(&error, rc, "NO_MEMORY", "out of memory trimming feed '%s'", feed->name);
    return pd_seq_write_failed(seq, rc, &error);
}

int pd_seq_trim(struct pd_sequencer *seq)
{
    for (uint32_t i = 0; i < seq->state.feed_count; i++) {
        struct pd_seq_feed *feed = seq->state.feeds[i];
        if (feed->gone == PD_SEQ_PURGING && pd_seq_purge(seq, feed) != 0)
            return seq->group_rc;
        if (!feed->config)
            continue;
        int rc = feed->trimming ? trim_feed(seq, feed) : 0;
        if (rc)
            return rc;
        if (feed->trim_wanted && !feed->trimming)
            rc = raise_floor(seq, feed);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- what it costs to wait for a commit ---- */

/* The step behind the oldest commit above what the job holds from; the last commit is the
 * highest. */
static uint64_t next_kept(const struct pd_seq_job *job, uint64_t floor)
{
    for (uint32_t i = 0; i < job->commit_count; i++)
        if (job->commits[i].step + 1 > floor)
            return job->commits[i].step + 1;
    return job->committed;
}

/* Its ranks have been sent every step there is: they wait for one that is not planned yet. */
static bool has_received_all(const struct pd_seq_feed *feed, const struct pd_seq_job *job)
{
    struct pd_job_steps steps = pd_seq_job_steps(feed, job);
    uint64_t done = pd_seq_job_done(job);
    uint64_t next = job->delivered > done ? job->delivered : done;
    return next >= pd_job_steps_planned(&steps, feed->packs, false);
}

bool pd_seq_give_up_commit(struct pd_seq_feed *feed)
{
    struct pd_seq_job *job = pd_seq_slowest_job(feed);
    if (!job || !(feed->waiting || feed->log_short) || feed->trimming || feed->trim_wanted ||
        awaited_job(feed) || !has_received_all(feed, job))
        return false;
    uint64_t floor = pd_seq_job_floor_step(feed, job);
    if (job->committed == 0 || floor >= pd_seq_job_done(job))
        return false;
    job->given_up = next_kept(job, floor);
    feed->trim_wanted = true;
    pd_metric_add_feed(PD_F_COMMITS_GIVEN_UP, feed->index, 1);
    pd_log(PD_LOG_WARN, "retained_commit_given_up",
           "feed=%s job=%s oldest_kept=%llu last=%llu text=\"the log has no room for what "
           "jobs.retain asks for; raise log.max_bytes, commit more often or retain less\"",
           feed->name, job->spec.name, (unsigned long long)job->given_up - 1,
           (unsigned long long)job->committed - 1);
    return true;
}

/* Log bytes a pack stands for, a mean over what is held. */
static uint64_t pack_bytes(const struct pd_seq_feed *feed)
{
    uint64_t packs = feed->packs - feed->lowest_pack;
    return packs ? (pd_seq_feed_bytes(feed) - pd_seq_unplanned_bytes(feed)) / packs : 0;
}

void pd_seq_job_held(const struct pd_seq_feed *feed, const struct pd_seq_job *job,
                     uint64_t *bytes_held, uint64_t *bytes_per_step)
{
    uint64_t from = job_floor_pack(feed, job), bytes = pack_bytes(feed);
    *bytes_per_step = bytes * job->spec.step_packs;
    bool holds = job->spec.kind == PD_JOB_TRAINER && !job->released;
    *bytes_held = holds && feed->packs > from ? (feed->packs - from) * bytes : 0;
}

bool pd_seq_stall_of(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                     struct pd_stall *stall)
{
    const struct pd_seq_job *job = pd_seq_slowest_job(feed);
    const char *awaited = awaited_job(feed);
    *stall = (struct pd_stall){0};
    if (feed->trimming ||
        (!awaited && (!job || pd_seq_job_reached(feed, job) <= pd_seq_job_floor_step(feed, job))))
        return false;
    snprintf(stall->feed, sizeof stall->feed, "%s", feed->name);
    snprintf(stall->job, sizeof stall->job, "%s", awaited ? awaited : job->spec.name);
    if (awaited) {
        stall->bytes_held = (feed->packs - feed->lowest_pack) * pack_bytes(feed);
    } else {
        stall->first_step = pd_seq_job_floor_step(feed, job);
        pd_seq_job_held(feed, job, &stall->bytes_held, &stall->bytes_per_step);
    }
    stall->bytes_max = pd_seq_room_bytes(seq, feed);
    uint64_t used = pd_seq_feed_bytes(feed);
    stall->bytes_left = used < stall->bytes_max ? stall->bytes_max - used : 0;
    return true;
}
