/* Planning: feeds the planner with heads and controls, and writes what it makes.
 *
 *   heads in the log ──supply──> pd_planner ──packs──> plans(feed, pack) + Horizon{packs, digest}
 *
 * How far to plan is decided here once and recorded; replay obeys the records: it tells the
 * planner the same controls in the same order and asks for packs exactly where they were asked
 * for, so the same plans come out, and the digest in each Horizon proves it. Sequencer thread
 * (and the start-up code). Invariant: nobody plans past the last Horizon but the group that
 * writes the next one. It sees heads, never bodies. */
#include "server/sequencer_planning.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/metrics.h"
#include "server/sequencer_jobs.h"
#include "server/sequencer_settings.h"
#include "server/sequencer_space.h"

#include <stdio.h>
#include <stdlib.h>

#define SNAPSHOT_VERSION 2 /* 1: without lane floors */
#define SUPPLY_CACHE_BYTES (16ull << 20)
/* tokens, positions, segment_ids, labels, loss_weight: the payload that a position becomes */
#define POSITION_BYTES 20u

/* ---- heads for the planner ---- */

static uint64_t head_bytes(const struct pd_block_head *head)
{
    return pd_block_head_size(head) + 8ull * (head->count + 1);
}

static void drop_head(struct pd_seq_supply *supply, uint32_t lane)
{
    struct pd_block_head *head = &supply->lanes[lane];
    if (head->count == 0)
        return;
    supply->cached_bytes -= head_bytes(head);
    pd_block_head_fini(head);
}

void pd_seq_supply_fini(struct pd_seq_supply *supply)
{
    for (uint32_t lane = 0; lane < supply->lane_count; lane++)
        drop_head(supply, lane);
    free(supply->lanes);
    supply->lanes = NULL;
    supply->lane_count = 0;
}

/* The block of `lane` at or behind `from`, cached. */
static int load_head(struct pd_seq_supply *supply, uint32_t lane, uint64_t from)
{
    drop_head(supply, lane);
    for (uint32_t other = 0;
         supply->cached_bytes > SUPPLY_CACHE_BYTES && other < supply->lane_count; other++)
        drop_head(supply, other);
    struct pd_block_head *head = &supply->lanes[lane];
    int rc = pd_log_next_head(supply->log, supply->feed, lane, from, supply->limit, head,
                              &supply->error);
    if (!rc)
        supply->cached_bytes += head_bytes(head);
    return rc;
}

/* Entries from `index` on that may be planned, into supply->heads. */
static int list_heads(struct pd_seq_supply *supply, const struct pd_block_head *head,
                      uint32_t index)
{
    uint32_t count = 0;
    if (index < head->first_index)
        index = head->first_index;
    for (; index < head->count && count < PD_COUNT_OF(supply->heads); index++)
        if (!head->rejected || !head->rejected[index])
            pd_block_head_sample(head, index, &supply->heads[count++]);
    return (int)count;
}

static int supply_read(void *ctx, uint32_t lane, struct pd_cursor at, const struct pd_head **heads)
{
    struct pd_seq_supply *supply = ctx;
    if (lane >= supply->lane_count)
        return PD_EINVAL;
    *heads = supply->heads;
    const struct pd_block_head *head = &supply->lanes[lane];
    for (;;) {
        if (head->count == 0 || head->position != at.block || at.index >= head->count) {
            bool used_up = head->count > 0 && head->position == at.block;
            int rc = load_head(supply, lane, used_up ? at.block + 1 : at.block);
            if (rc)
                return rc == PD_ENOTFOUND ? 0 : rc;
            if (head->position != at.block)
                at = (struct pd_cursor){.block = head->position};
        }
        int count = at.index < head->count ? list_heads(supply, head, at.index) : 0;
        if (count > 0)
            return count;
        at.index = head->count; /* nothing left in this block: on to the next */
    }
}

/* ---- making and stopping ---- */

void pd_seq_feed_stop(struct pd_seq_feed *feed, int code, const char *reason, const char *text)
{
    pd_error_set(&feed->stop, code, reason, "feed '%s' plans nothing more: %s", feed->name, text);
    pd_log(PD_LOG_ERROR, "feed_stopped", "feed=%s reason=%s packs=%llu text=\"%s\"", feed->name,
           reason, (unsigned long long)feed->packs, text);
    pd_planner_free(feed->planner);
    feed->planner = NULL;
    feed->stopped = true;
    feed->waiting = false;
    feed->announce = true;
}

/* What a planner call returned: PD_ENOMEM undoes the group, anything else stops the feed. */
static int planner_failed(struct pd_sequencer *seq, struct pd_seq_feed *feed, int rc,
                          const char *text)
{
    if (rc == PD_ENOMEM) {
        struct pd_error error = {0};
        pd_error_set(&error, rc, "NO_MEMORY", "out of memory planning feed '%s'", feed->name);
        return pd_seq_write_failed(seq, rc, &error);
    }
    pd_seq_feed_stop(feed, rc, rc == PD_ECORRUPT ? "LOG_DAMAGED" : pd_err_name(rc), text);
    return 0;
}

static int supply_init(struct pd_sequencer *seq, struct pd_seq_feed *feed)
{
    struct pd_seq_supply *supply = &feed->supply;
    supply->log = seq->log;
    supply->feed = feed->number;
    supply->limit = UINT64_MAX;
    supply->lanes = calloc(feed->lane_count, sizeof *supply->lanes);
    supply->lane_count = supply->lanes ? feed->lane_count : 0;
    return supply->lanes ? 0 : PD_ENOMEM;
}

/* ---- snapshots ---- */

static int put_floors(const struct pd_seq_feed *feed, struct pd_buf *buf)
{
    uint64_t *floors = calloc(feed->lane_count, sizeof *floors);
    if (!floors)
        return PD_ENOMEM;
    pd_planner_floors(feed->planner, floors);
    pd_buf_put_u32(buf, feed->lane_count);
    for (uint32_t lane = 0; lane < feed->lane_count; lane++)
        pd_buf_put_u64(buf, floors[lane]);
    free(floors);
    return 0;
}

int pd_seq_snapshot_start(struct pd_reader *reader, struct pd_seq_snapshot_start *start)
{
    uint32_t version = pd_reader_u32(reader);
    start->packs = pd_reader_u64(reader);
    start->plan_digest = pd_reader_u64(reader);
    start->lane_count = pd_reader_u32(reader);
    if (reader->failed || version != SNAPSHOT_VERSION || start->lane_count > PD_LANES_MAX)
        return PD_ECORRUPT;
    start->floors = *reader;
    (void)pd_reader_bytes(reader, start->lane_count * sizeof(uint64_t));
    return reader->failed ? PD_ECORRUPT : 0;
}

int pd_seq_snapshot(struct pd_sequencer *seq, struct pd_seq_feed *feed)
{
    struct pd_error error = {0};
    struct pd_buf buf = {0};
    uint64_t position = pd_log_next_position(seq->log);
    pd_buf_put_u32(&buf, SNAPSHOT_VERSION);
    pd_buf_put_u64(&buf, feed->packs);
    pd_buf_put_u64(&buf, feed->plan_digest);
    int rc = put_floors(feed, &buf);
    if (!rc)
        rc = pd_planner_save(feed->planner, &buf);
    if (rc)
        pd_error_set(&error, rc, "NO_MEMORY", "out of memory saving the planner of feed '%s'",
                     feed->name);
    else
        rc = pd_log_put_snapshot(seq->log, feed->number, position, &buf, &error);
    if (!rc)
        rc = pd_seq_mark_add(seq, feed, position, feed->packs, &error);
    feed->snapshot_bytes = buf.size_bytes;
    pd_buf_fini(&buf);
    if (rc)
        return pd_seq_write_failed(seq, rc, &error);
    feed->snapshot_packs = feed->packs;
    feed->trim_wanted = true;
    return 0;
}

static int restore(struct pd_seq_feed *feed, const struct pd_buf *buf, struct pd_error *error)
{
    struct pd_reader reader = pd_reader_of(buf->data, buf->size_bytes);
    struct pd_seq_snapshot_start start;
    if (pd_seq_snapshot_start(&reader, &start) != 0)
        return pd_error_set(error, PD_ECORRUPT, "SNAPSHOT",
                            "a snapshot of another version, or a malformed one");
    int rc = pd_planner_restore(reader.at, pd_reader_left(&reader), &feed->planner, error);
    if (rc)
        return rc;
    feed->packs = start.packs;
    feed->plan_digest = start.plan_digest;
    feed->snapshot_packs = start.packs;
    feed->snapshot_bytes = buf->size_bytes;
    return 0;
}

/* The newest snapshot that can be used; PD_ENOTFOUND: none. */
static int restore_newest(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                          struct pd_error *error)
{
    uint64_t before = UINT64_MAX;
    for (;;) {
        struct pd_buf buf = {0};
        uint64_t position = 0;
        int rc = pd_log_get_snapshot(seq->log, feed->number, before, &position, &buf, error);
        if (!rc)
            rc = restore(feed, &buf, error);
        pd_buf_fini(&buf);
        if (rc == 0)
            feed->replay_from = position;
        if (rc != PD_ECORRUPT && rc != PD_EMISMATCH)
            return rc;
        pd_log(PD_LOG_WARN, "snapshot_unusable", "feed=%s position=%llu text=\"%s\"", feed->name,
               (unsigned long long)position, error->text);
        before = position;
    }
}

struct mark_scan {
    struct pd_sequencer *seq;
    struct pd_seq_feed *feed;
};

static int load_mark(void *ctx, uint64_t position, struct pd_reader reader)
{
    struct mark_scan *scan = ctx;
    struct pd_seq_snapshot_start start;
    if (scan->feed->mark_count == PD_SEQ_MARKS_MAX || pd_seq_snapshot_start(&reader, &start) != 0)
        return 0;
    scan->feed->marks[scan->feed->mark_count++] =
        (struct pd_seq_mark){.position = position, .packs = start.packs};
    return 0;
}

/* A trim that was cut short goes on. */
static int load_marks(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_error *error)
{
    struct mark_scan scan = {.seq = seq, .feed = feed};
    feed->mark_count = 0;
    feed->records_trimmed = 0;
    feed->trimming = feed->lowest_pack > 0;
    feed->trim_wanted = true;
    return pd_log_scan_snapshots(seq->log, feed->number, load_mark, &scan, error);
}

/* With the rules that were in force at pack 0: changes come from the records. */
static int first_planner(struct pd_seq_feed *feed, struct pd_error *error)
{
    struct pd_rules rules = feed->config->rules;
    struct pd_live_rules live = pd_live_rules_of(&rules);
    uint32_t weights[PD_LANES_WEIGHTED_MAX];
    pd_seq_settings_rules(feed, &feed->first_settings, &live);
    pd_live_rules_set(&rules, &live);
    uint32_t count = pd_seq_settings_weights(&feed->first_settings, weights);
    for (uint32_t i = 0; i < count && i < rules.lane_count; i++)
        if (rules.merge == PD_MERGE_ARRIVAL)
            rules.lanes[i].weight = weights[i];
    return pd_planner_new(&rules, &feed->planner, error);
}

int pd_seq_planner_load(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_error *error)
{
    feed->packs = 0;
    feed->plan_digest = 0;
    feed->snapshot_packs = 0;
    feed->replay_from = 0;
    int rc = supply_init(seq, feed);
    if (!rc)
        rc = pd_seq_space_init(feed);
    if (rc)
        return pd_error_set(error, rc, "NO_MEMORY", "out of memory");
    rc = load_marks(seq, feed, error);
    if (!rc)
        rc = restore_newest(seq, feed, error);
    feed->plan_wanted = true;
    if (rc != PD_ENOTFOUND)
        return rc;
    if (feed->lowest_pack == 0)
        return first_planner(feed, error);
    pd_seq_feed_stop(feed, PD_ECORRUPT, "LOG_DAMAGED",
                     "none of its snapshots can be used, and the log before them has been trimmed");
    return 0;
}

/* ---- controls ---- */

static const char *limit_reason(enum pd_control_kind kind)
{
    if (kind == PD_CONTROL_FLUSH)
        return "TOO_MANY_FLUSHES";
    return kind == PD_CONTROL_SKIP || kind == PD_CONTROL_SKIP_RULE ? "TOO_MANY_SKIPS"
                                                                   : "TOO_MANY_CHANGES";
}

int pd_seq_planner_control(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                           struct pd_control *control, struct pd_error *error)
{
    if (!feed->planner) {
        if (feed->stopped)
            return pd_error_set(error, feed->stop.code, feed->stop.reason, "%s", feed->stop.text);
        return 0;
    }
    control->at = pd_log_next_position(seq->log);
    int rc = pd_planner_control(feed->planner, control);
    if (rc == PD_ELIMIT)
        return pd_error_set(error, rc, limit_reason(control->kind),
                            "feed '%s' has as many records of this kind as may wait for their pack "
                            "or sample; try again when more has been packed",
                            feed->name);
    if (rc)
        return pd_error_set(error, rc, "PLANNER",
                            "feed '%s': the planner refused a control record (%s)", feed->name,
                            pd_err_text(rc));
    return 0;
}

/* ---- plans ---- */

/* Where a trainer counts as being. After a restart it may wait for the first step that was not
 * planned whole: that one, and the next, may be planned whatever has been delivered since. */
static uint64_t job_pack(const struct pd_seq_feed *feed, const struct pd_seq_job *job,
                         uint64_t ahead)
{
    uint64_t steps_done = job->delivered > job->first_step ? job->delivered - job->first_step : 0;
    uint64_t pack = job->first_pack + steps_done * job->spec.step_packs + ahead;
    if (job->delivered_known || feed->loaded_packs < job->first_pack)
        return pack;
    struct pd_job_steps steps = pd_seq_job_steps(feed, job);
    uint64_t whole = pd_job_steps_planned(&steps, feed->loaded_packs, false);
    uint64_t floor = pd_job_step_end(&steps, whole + 1);
    return floor > pack ? floor : pack;
}

/* Packs of two steps and, with balance, of a block of them: the step behind the one delivered last
 * is then always within reach, and the next one. */
static uint64_t least_ahead(const struct pd_seq_feed *feed, const struct pd_seq_job *job)
{
    struct pd_job_steps steps = pd_seq_job_steps(feed, job);
    uint32_t together = pd_job_steps_together(&steps);
    return (uint64_t)(together > 1 ? together + 2 : 2) * job->spec.step_packs;
}

uint64_t pd_seq_horizon(const struct pd_seq_feed *feed)
{
    uint64_t ahead =
        feed->config->plan_ahead_bytes / ((uint64_t)feed->config->rules.seq_len * POSITION_BYTES);
    if (ahead < 2)
        ahead = 2;
    for (uint32_t i = 0; i < feed->job_count; i++) {
        const struct pd_seq_job *job = feed->jobs[i];
        if (!job->deleted && ahead < least_ahead(feed, job))
            ahead = least_ahead(feed, job);
    }
    uint64_t horizon = ahead;
    for (uint32_t i = 0; i < feed->job_count; i++) {
        const struct pd_seq_job *job = feed->jobs[i];
        if (job->deleted || job->released || job->spec.kind != PD_JOB_TRAINER)
            continue;
        uint64_t pack = job_pack(feed, job, ahead);
        if (pack > horizon)
            horizon = pack;
    }
    return horizon;
}

/* The next pack from the planner, numbered and added to the chain; its encoding is in seq->body. */
static int next_pack(struct pd_sequencer *seq, struct pd_seq_feed *feed)
{
    struct pd_supply supply = {.ctx = &feed->supply, .read = supply_read};
    int rc = pd_planner_next(feed->planner, &supply, &seq->pack, &feed->want);
    if (rc)
        return rc;
    PD_CHECK(seq->pack.number == feed->packs);
    pd_buf_clear(&seq->body);
    pd_pack_encode(&seq->pack, &seq->body);
    if (seq->body.failed)
        return PD_ENOMEM;
    feed->plan_digest =
        pd_plan_digest_next(feed->plan_digest, seq->body.data, seq->body.size_bytes);
    feed->packs++;
    return 0;
}

static int write_pack(struct pd_sequencer *seq, struct pd_seq_feed *feed)
{
    struct pd_error error = {0};
    struct pd_plan_facts facts = {.plan_digest = feed->plan_digest,
                                  .config_digest = feed->config_digest,
                                  .planner_version = PD_PLANNER_VERSION,
                                  .why = pd_planner_why(feed->planner)};
    int rc = pd_log_put_pack(seq->log, feed->number, feed->packs - 1, &facts, &seq->body, &error);
    feed->plan_bytes += pd_log_plan_bytes(&seq->body);
    return rc ? pd_seq_write_failed(seq, rc, &error) : 0;
}

/* Plans take from what is kept of the log, and of the feed's share, but leave half of that for
 * commits. */
static bool log_has_room(struct pd_sequencer *seq, const struct pd_seq_feed *feed)
{
    uint64_t max = pd_log_limit_bytes(seq->log), share = pd_seq_share_bytes(seq, feed);
    return pd_log_used_now_bytes(seq->log) < max - max / PD_SEQ_RESERVE_PART / 2 &&
           pd_seq_feed_bytes(feed) < share - share / PD_SEQ_RESERVE_PART / 2;
}

/* Packs up to `target`; what stopped it before is in the feed's flags. */
static int make_packs(struct pd_sequencer *seq, struct pd_seq_feed *feed, uint64_t target)
{
    int rc = 0;
    feed->log_short = false;
    while (rc == 0 && feed->packs < target) {
        if (!log_has_room(seq, feed)) {
            feed->log_short = true;
            feed->announce = true;
            return 0;
        }
        rc = next_pack(seq, feed);
        if (!rc)
            rc = write_pack(seq, feed);
        if (seq->group_rc)
            return rc;
    }
    if (rc == PD_EAGAIN || rc == PD_EEND || rc == 0) {
        bool waiting = rc == PD_EAGAIN, ended = rc == PD_EEND;
        feed->announce =
            feed->announce || waiting || waiting != feed->waiting || ended != feed->ended;
        feed->waiting = waiting;
        feed->ended = ended;
        return 0;
    }
    return planner_failed(seq, feed, rc,
                          feed->supply.error.text[0] ? feed->supply.error.text : pd_err_text(rc));
}

static int write_horizon(struct pd_sequencer *seq, struct pd_seq_feed *feed)
{
    pd_buf_clear(&seq->body);
    pd_buf_put_u64(&seq->body, feed->packs);
    pd_buf_put_u64(&seq->body, feed->plan_digest);
    feed->dirty = true;
    return pd_seq_record(seq, PD_RECORD_HORIZON, feed->number);
}

int pd_seq_plan(struct pd_sequencer *seq, struct pd_seq_feed *feed)
{
    if (!feed->planner || !feed->plan_wanted || feed->ended)
        return 0;
    uint64_t before = feed->packs, started_ns = pd_clock_mono_ns();
    uint64_t target = pd_seq_horizon(feed), slice = before + PD_SEQ_PLAN_PACKS_MAX;
    uint64_t snapshot = feed->snapshot_packs + pd_seq_snapshot_packs(seq, feed);
    if (slice > snapshot && snapshot > before)
        slice = snapshot;
    bool was_waiting = feed->waiting;
    int rc = make_packs(seq, feed, target < slice ? target : slice);
    if (rc)
        return rc;
    pd_seq_space_drawn(feed);
    feed->plan_wanted = feed->log_short || (target > slice && feed->packs == slice);
    if (feed->waiting && (!was_waiting || feed->packs > before))
        feed->waiting_since_wall_ns = pd_clock_wall_ns();
    if (feed->packs == before)
        return 0;
    seq->counts[feed->index].packs += feed->packs - before;
    feed->announce = true;
    pd_metric_observe(PD_M_PLAN_SECONDS, pd_clock_mono_ns() - started_ns);
    rc = write_horizon(seq, feed);
    if (!rc && feed->planner && feed->packs >= snapshot)
        rc = pd_seq_snapshot(seq, feed);
    return rc;
}

/* ---- replay ---- */

static int diverged(struct pd_seq_feed *feed, uint64_t packs, uint64_t digest)
{
    char text[200];
    snprintf(text, sizeof text,
             "its first %llu packs were planned with digest %016llx, planning them again gives "
             "%llu packs and %016llx; "
             "the log or this version of the planner is not the one that made them",
             (unsigned long long)packs, (unsigned long long)digest, (unsigned long long)feed->packs,
             (unsigned long long)feed->plan_digest);
    pd_seq_feed_stop(feed, PD_EMISMATCH, "DIVERGED", text);
    return 0;
}

static int replay_horizon(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                          const struct pd_record *record)
{
    struct pd_reader body = pd_reader_of(record->body, record->size_bytes);
    uint64_t packs = pd_reader_u64(&body), digest = pd_reader_u64(&body);
    int rc = 0;
    feed->supply.limit = record->position;
    while (rc == 0 && feed->packs < packs)
        rc = next_pack(seq, feed);
    feed->supply.limit = UINT64_MAX;
    if (rc == PD_EAGAIN || rc == PD_EEND ||
        (rc == 0 && (feed->packs != packs || feed->plan_digest != digest)))
        return diverged(feed, packs, digest);
    return rc ? planner_failed(seq, feed, rc, feed->supply.error.text) : 0;
}

static int replay_control(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                          struct pd_control control)
{
    int rc = pd_planner_control(feed->planner, &control);
    return rc ? planner_failed(seq, feed, rc, "the planner refuses a control record of the log")
              : 0;
}

int pd_seq_planner_replay(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                          const struct pd_record *record)
{
    struct pd_reader body = pd_reader_of(record->body, record->size_bytes);
    struct pd_control control = {.at = record->position};
    switch (record->type) {
    case PD_RECORD_END_LANE:
        control.kind = PD_CONTROL_END_LANE;
        control.lane = pd_reader_u32(&body);
        return replay_control(seq, feed, control);
    case PD_RECORD_END_FEED:
        control.kind = PD_CONTROL_END_FEED;
        return replay_control(seq, feed, control);
    case PD_RECORD_FLUSH:
        control.kind = PD_CONTROL_FLUSH;
        control.packs = pd_reader_u64(&body);
        return replay_control(seq, feed, control);
    case PD_RECORD_HORIZON:
        return replay_horizon(seq, feed, record);
    case PD_RECORD_MIXTURE:
        control.kind = PD_CONTROL_WEIGHTS;
        control.from_pack = pd_reader_u64(&body);
        for (uint32_t i = 0; i < PD_LANES_WEIGHTED_MAX; i++)
            control.weights[i] = pd_reader_u32(&body);
        return replay_control(seq, feed, control);
    case PD_RECORD_RULES:
        pd_seq_settings_replay(feed, &control, &body);
        return replay_control(seq, feed, control);
    case PD_RECORD_SKIP_SAMPLES:
    case PD_RECORD_DELETE_STREAM:
        pd_seq_rule_decode(&control, &body);
        return replay_control(seq, feed, control);
    default:
        return 0; /* blocks reach the planner through the supply; the rest does not concern it */
    }
}
