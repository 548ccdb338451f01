/* Space: how much of its share of the log a feed uses, lane by lane, and who may add to it.
 *
 *   a lane's blocks, oldest first:   [ drawn by the planner: held | not drawn yet: unplanned ]
 *
 * Unplanned bytes of a lane may reach its part of half the feed's share; then its producers get no
 * credit, unless the planner waits for just this lane: that one may use what is free. So a lane
 * that runs ahead never takes the room of the one that is due. Held bytes take what is left; when
 * they take it all, commits free space, and where no commit can, what the window holds is flushed.
 * Sequencer thread, but for pd_sequencer_accepts, _log_full and _stall (any). Invariant: the counts
 * are a fold over the blocks in the log; they decide about credit and never about a plan. It
 * deletes nothing. */
#include "server/sequencer_space.h"

#include "base/arith.h"
#include "base/check.h"
#include "base/log.h"
#include "server/metrics.h"
#include "server/sequencer_feeds.h"
#include "server/sequencer_jobs.h"
#include "server/sequencer_streams.h"

#include <inttypes.h>
#include <stdlib.h>

/* Blocks not drawn yet are counted in chunks of at least this part of the feed's share: their
 * number is bounded by it. */
#define CHUNK_PART 8192u
/* Credit in flight that a full log, or lane, must still be able to take: at most this part of
 * it. */
#define AHEAD_PART 8u
/* A flush for lack of space makes packs for about this part of it. */
#define FLUSH_PART 8u

/* ---- the counts ---- */

int pd_seq_space_init(struct pd_seq_feed *feed)
{
    feed->lanes = calloc(feed->lane_count, sizeof *feed->lanes);
    return feed->lanes ? 0 : PD_ENOMEM;
}

void pd_seq_space_fini(struct pd_seq_feed *feed)
{
    for (uint32_t i = 0; feed->lanes && i < feed->lane_count; i++)
        free(feed->lanes[i].chunks);
    free(feed->lanes);
    feed->lanes = NULL;
}

static struct pd_seq_chunk *chunk_add(struct pd_seq_lane *lane)
{
    if (lane->first > 0 && lane->first + lane->count == lane->capacity) {
        memmove(lane->chunks, lane->chunks + lane->first, lane->count * sizeof *lane->chunks);
        lane->first = 0;
    }
    if (lane->count == lane->capacity) {
        uint32_t capacity = lane->capacity ? lane->capacity * 2 : 8;
        struct pd_seq_chunk *chunks = realloc(lane->chunks, capacity * sizeof *chunks);
        if (!chunks)
            return NULL;
        lane->chunks = chunks;
        lane->capacity = capacity;
    }
    struct pd_seq_chunk *chunk = &lane->chunks[lane->first + lane->count++];
    *chunk = (struct pd_seq_chunk){0};
    return chunk;
}

int pd_seq_space_add(const struct pd_sequencer *seq, struct pd_seq_feed *feed,
                     const struct pd_log_block_facts *block)
{
    struct pd_seq_lane *lane = &feed->lanes[block->lane];
    uint64_t grain = pd_seq_share_bytes(seq, feed) / CHUNK_PART;
    struct pd_seq_chunk *chunk =
        lane->count > 0 ? &lane->chunks[lane->first + lane->count - 1] : NULL;
    if (!chunk || chunk->bytes >= grain)
        chunk = chunk_add(lane);
    if (!chunk)
        return PD_ENOMEM;
    uint64_t samples = block->count - block->first_index;
    chunk->last = block->position;
    chunk->bytes += block->held_bytes;
    chunk->samples += samples;
    lane->bytes += block->held_bytes;
    lane->unplanned_bytes += block->held_bytes;
    lane->unplanned_samples += samples;
    return 0;
}

/* The first chunk of the lane has been drawn from to its end. */
static void chunk_drop(struct pd_seq_lane *lane)
{
    const struct pd_seq_chunk *chunk = &lane->chunks[lane->first++];
    lane->count--;
    lane->unplanned_bytes -= chunk->bytes;
    lane->unplanned_samples -= chunk->samples;
}

void pd_seq_space_drawn(struct pd_seq_feed *feed)
{
    for (uint32_t i = 0; feed->planner && i < feed->lane_count; i++) {
        struct pd_seq_lane *lane = &feed->lanes[i];
        struct pd_lane_view view;
        if (lane->count == 0)
            continue;
        pd_planner_lane(feed->planner, i, &view);
        bool all = view.pass > 0 || view.exhausted;
        uint64_t behind = view.cursor.block + (view.cursor.index > 0);
        while (lane->count > 0 && (all || lane->chunks[lane->first].last < behind))
            chunk_drop(lane);
    }
}

void pd_seq_space_freed(void *ctx, const struct pd_log_block_facts *block)
{
    struct pd_sequencer *seq = ctx;
    struct pd_seq_feed *feed = seq->state.feeds[block->feed];
    if (feed->lanes && block->lane < feed->lane_count)
        feed->lanes[block->lane].bytes -=
            pd_min_u64(feed->lanes[block->lane].bytes, block->held_bytes);
    if (block->stream >= seq->state.stream_count)
        return;
    struct pd_seq_stream *stream = seq->state.streams[block->stream];
    stream->log_bytes -= pd_min_u64(stream->log_bytes, block->held_bytes);
    pd_seq_stream_touch(&seq->state, stream);
}

static int load_block(void *ctx, const struct pd_record *record)
{
    struct pd_sequencer *seq = ctx;
    struct pd_log_block_facts block;
    if (record->type != PD_RECORD_BLOCK || record->feed >= seq->state.feed_count)
        return 0;
    struct pd_seq_feed *feed = seq->state.feeds[record->feed];
    if (!feed->lanes)
        return 0;
    int rc = pd_log_block_facts(record, &block);
    return rc || block.lane >= feed->lane_count ? PD_ECORRUPT : pd_seq_space_add(seq, feed, &block);
}

int pd_seq_space_load(struct pd_sequencer *seq, struct pd_error *error)
{
    int rc = pd_log_scan_records(seq->log, 0, load_block, seq, error);
    if (rc && !error->code)
        pd_error_set(error, rc, rc == PD_ENOMEM ? "NO_MEMORY" : "LOG_DAMAGED",
                     "the blocks of the log cannot be counted: %s", pd_err_text(rc));
    for (uint32_t i = 0; !rc && i < seq->state.feed_count; i++) {
        struct pd_seq_feed *feed = seq->state.feeds[i];
        if (!feed->lanes)
            continue;
        pd_seq_space_drawn(feed);
        rc = pd_log_plans_bytes(seq->log, feed->number, &feed->plan_bytes, error);
    }
    return rc;
}

uint64_t pd_seq_unplanned_bytes(const struct pd_seq_feed *feed)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; feed->lanes && i < feed->lane_count; i++)
        bytes += feed->lanes[i].unplanned_bytes;
    return bytes;
}

uint64_t pd_seq_feed_bytes(const struct pd_seq_feed *feed)
{
    uint64_t bytes = feed->plan_bytes + feed->mark_count * pd_log_value_bytes(feed->snapshot_bytes);
    for (uint32_t i = 0; feed->lanes && i < feed->lane_count; i++)
        bytes += feed->lanes[i].bytes;
    return bytes;
}

/* ---- who may add ---- */

uint64_t pd_seq_room_bytes(const struct pd_sequencer *seq, const struct pd_seq_feed *feed)
{
    uint64_t share = pd_seq_share_bytes(seq, feed);
    return share - share / PD_SEQ_RESERVE_PART;
}

static uint64_t ahead_bytes(const struct pd_sequencer *seq, uint64_t of)
{
    return pd_min_u64(seq->config->memory_ingest_bytes, of / AHEAD_PART);
}

/* What every lane can count on, and the one that is due alone may take of the last room. */
static uint64_t lane_least_bytes(const struct pd_sequencer *seq, const struct pd_seq_feed *feed)
{
    uint64_t least = PD_LANE_BLOCKS_BYTES + seq->config->max_sample_bytes;
    return feed->lane_count > 1 ? pd_min_u64(least, pd_seq_room_bytes(seq, feed) / AHEAD_PART) : 0;
}

static bool is_due(const struct pd_seq_feed *feed, uint32_t lane)
{
    return feed->waiting && (feed->want.lane == lane || feed->want.lane == PD_LANE_NONE);
}

/* Whether the log as a whole is used up to less than parts / of, with what may be on its way. */
static bool log_has_left(const struct pd_sequencer *seq, uint32_t parts, uint32_t of)
{
    uint64_t max = seq->config->log_max_bytes, room = max - max / PD_SEQ_RESERVE_PART;
    return pd_log_used_bytes(seq->log) + ahead_bytes(seq, max) <= room / of * parts;
}

static bool feed_has_left(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                          uint64_t kept_bytes, uint32_t parts, uint32_t of)
{
    uint64_t room = pd_seq_room_bytes(seq, feed);
    return pd_seq_feed_bytes(feed) + kept_bytes <= room / of * parts;
}

static enum pd_seq_accept lane_accepts(const struct pd_sequencer *seq,
                                       const struct pd_seq_feed *feed, uint32_t lane)
{
    uint64_t ahead = ahead_bytes(seq, pd_seq_room_bytes(seq, feed));
    uint64_t least = lane_least_bytes(seq, feed);
    bool due = is_due(feed, lane);
    /* Alone, a lane gives room back before it is gone; of several, the one that is due takes the
     * last of it. */
    uint64_t kept = due && feed->lane_count > 1 ? least / 2 : ahead + least;
    if (feed->stopped)
        return PD_SEQ_STOPPED_FEED;
    if (!log_has_left(seq, 1, 1) || !feed_has_left(seq, feed, kept, 1, 1))
        return PD_SEQ_LOG_FULL;
    uint64_t share = pd_config_lane_bytes(seq->config, feed->config);
    bool over = feed->lanes[lane].unplanned_bytes + ahead_bytes(seq, share) > share;
    return over && !due ? PD_SEQ_LANE_SHARE : PD_SEQ_ACCEPTS;
}

int pd_seq_space_check(struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                       const struct pd_block *block, struct pd_error *error)
{
    uint64_t max = seq->config->log_max_bytes, limit = max - max / PD_SEQ_RESERVE_PART;
    uint64_t used = pd_log_used_now_bytes(seq->log), need = pd_log_block_bytes(block);
    bool last_room = is_due(feed, block->head.lane) || feed->lane_count == 1;
    uint64_t kept = pd_log_block_held_bytes(block) + (last_room ? 0 : lane_least_bytes(seq, feed));
    if (used + need > limit)
        return pd_error_set(error, PD_EFULL, "LOG_FULL",
                            "the log is full: %" PRIu64 " of %" PRIu64
                            " bytes are used and the block needs %" PRIu64 " more",
                            used, limit, need);
    if (!feed_has_left(seq, feed, kept, 1, 1))
        return pd_error_set(error, PD_EFULL, "LOG_FULL",
                            "feed '%s' has used up its space in the log: %" PRIu64 " of %" PRIu64
                            " bytes, and the block needs %" PRIu64 " more",
                            feed->name, pd_seq_feed_bytes(feed), pd_seq_room_bytes(seq, feed),
                            kept);
    return 0;
}

int pd_seq_job_fits(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                    const struct pd_job_spec *spec, struct pd_error *error)
{
    struct pd_job_steps steps = {.config = feed->config, .step_packs = spec->step_packs};
    uint64_t step = (uint64_t)spec->step_packs * feed->config->rules.seq_len * sizeof(int32_t);
    uint64_t half = pd_seq_room_bytes(seq, feed) / 2, together = pd_job_steps_together(&steps);
    if (together * step > half)
        return pd_error_set(
            error, PD_ELIMIT, "STEP_TOO_LARGE",
            "job '%s': %" PRIu64 " steps of %u packs are there together and take %" PRIu64
            " bytes of the log, and feed '%s' can hold %" PRIu64 "; raise log.max_bytes, %s",
            spec->name, together, spec->step_packs, together * step, feed->name, half,
            together > 1 ? "lower balance_bytes or use fewer packs a step"
                         : "or use fewer packs a step");
    if (spec->kind == PD_JOB_TRAINER && spec->commit_every * step > half)
        return pd_error_set(error, PD_ELIMIT, "COMMIT_TOO_RARE",
                            "job '%s' means to commit every %u steps of at least %" PRIu64
                            " bytes, and feed '%s' can hold %" PRIu64
                            " bytes: commit at least every %" PRIu64
                            " steps, or raise log.max_bytes",
                            spec->name, spec->commit_every, step, feed->name, half, half / step);
    return 0;
}

/* ---- told to others ---- */

int pd_seq_space_start(struct pd_sequencer *seq)
{
    for (uint32_t i = 0; i < seq->config->feed_count; i++) {
        const struct pd_rules *rules = &seq->config->feeds[i].rules;
        seq->doors[i].lane_count = rules->lane_count ? rules->lane_count : 1;
        seq->doors[i].accepts = calloc(seq->doors[i].lane_count, sizeof *seq->doors[i].accepts);
        if (!seq->doors[i].accepts)
            return PD_ENOMEM;
    }
    return 0;
}

void pd_seq_space_stop(struct pd_sequencer *seq)
{
    for (uint32_t i = 0; i < PD_FEEDS_MAX; i++)
        free(seq->doors[i].accepts);
}

/* A commit can free space, or nothing can: said once. */
static void tell_stall(struct pd_seq_feed *feed, const struct pd_stall *stall)
{
    if (stall->job[0] && !feed->stalled)
        pd_log(PD_LOG_WARN, "log_stalled",
               "feed=%s job=%s first_step=%llu bytes_held=%llu text=\"the log is full of "
               "steps that the job has not committed\"",
               stall->feed, stall->job, (unsigned long long)stall->first_step,
               (unsigned long long)stall->bytes_held);
    feed->stalled = stall->job[0] != 0;
}

static bool lane_waits_for_room(const struct pd_sequencer *seq, const struct pd_seq_feed *feed)
{
    uint32_t lane = feed->want.lane;
    return feed->waiting && lane != PD_LANE_NONE && feed->lanes[lane].bytes > 0 &&
           lane_accepts(seq, feed, lane) == PD_SEQ_LOG_FULL;
}

/* The log has no room for what the planner waits for, and every job has committed what it has
 * received: more room only comes from plans made of what is there. */
static void check_stuck(struct pd_sequencer *seq, struct pd_seq_feed *feed)
{
    const struct pd_seq_job *job = pd_seq_slowest_job(feed);
    bool stuck = job && !feed->end_declared && !feed->trimming && !feed->trim_wanted &&
                 lane_waits_for_room(seq, feed) && !feed->stalled;
    if (stuck) {
        struct pd_job_steps steps = pd_seq_job_steps(feed, job);
        stuck = job->delivered <= pd_seq_job_done(job) &&
                pd_job_steps_planned(&steps, feed->packs, false) <= pd_seq_job_done(job);
    }
    feed->flush_wanted = stuck && feed->want.window_samples > 0 && pd_seq_waited_pack(feed) > 0;
    bool hopeless = stuck && !feed->flush_wanted;
    if (hopeless && !feed->hopeless)
        pd_log(
            PD_LOG_ERROR, "log_too_small",
            "feed=%s job=%s bytes=%llu bytes_max=%llu text=\"the log has no room for the samples "
            "that the next step needs, and no commit can free any: raise log.max_bytes or the "
            "feed's log_share, or use smaller steps\"",
            feed->name, job->spec.name, (unsigned long long)pd_seq_feed_bytes(feed),
            (unsigned long long)pd_seq_room_bytes(seq, feed));
    feed->hopeless = hopeless;
}

static void publish(struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                    const struct pd_stall *stall, bool full)
{
    struct pd_seq_door *door = &seq->doors[feed->index];
    PD_CHECK(door->lane_count == feed->lane_count);
    for (uint32_t i = 0; i < feed->lane_count; i++)
        atomic_store(&door->accepts[i], (uint8_t)lane_accepts(seq, feed, i));
    atomic_store(&door->full, full);
    pthread_mutex_lock(&seq->stall_mutex);
    door->stall = *stall;
    pthread_mutex_unlock(&seq->stall_mutex);
}

/* Whether the lane the planner waits for, or without one every lane, has no room. */
static bool feed_is_full(const struct pd_sequencer *seq, const struct pd_seq_feed *feed)
{
    uint32_t lane = feed->waiting && feed->want.lane != PD_LANE_NONE ? feed->want.lane : 0;
    return lane_accepts(seq, feed, lane) == PD_SEQ_LOG_FULL;
}

static void check_feed(struct pd_sequencer *seq, struct pd_seq_feed *feed)
{
    struct pd_stall stall = {0}, none = {0};
    bool full = feed_is_full(seq, feed);
    bool near = !log_has_left(seq, 3, 4) ||
                !feed_has_left(seq, feed, ahead_bytes(seq, pd_seq_room_bytes(seq, feed)), 3, 4);
    if (near)
        (void)pd_seq_stall_of(seq, feed, &stall);
    if (full && pd_seq_give_up_commit(feed))
        stall = none; /* it is the log's turn, not the job's */
    tell_stall(feed, full ? &stall : &none);
    check_stuck(seq, feed);
    publish(seq, feed, &stall, full);
}

void pd_seq_space_tell(struct pd_sequencer *seq)
{
    for (uint32_t i = 0; i < seq->state.feed_count; i++)
        if (seq->state.feeds[i]->lanes)
            check_feed(seq, seq->state.feeds[i]);
}

/* Up to the step that is waited for, and enough that trimming gives back a part of the room at
 * once. */
static uint64_t flush_packs(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                            uint64_t waited_pack)
{
    uint64_t pack_bytes = (uint64_t)feed->config->rules.seq_len * sizeof(int32_t);
    uint64_t packs = pd_seq_room_bytes(seq, feed) / FLUSH_PART / pack_bytes;
    return packs > waited_pack - feed->packs ? packs : waited_pack - feed->packs;
}

int pd_seq_space_flush(struct pd_sequencer *seq)
{
    for (uint32_t i = 0; i < seq->state.feed_count; i++) {
        struct pd_seq_feed *feed = seq->state.feeds[i];
        struct pd_error error = {0};
        if (!feed->flush_wanted)
            continue;
        feed->flush_wanted = false;
        uint64_t pack = pd_seq_waited_pack(feed);
        if (!feed->planner || !feed->waiting || pack == 0)
            continue;
        uint64_t packs = flush_packs(seq, feed, pack);
        pd_log(
            PD_LOG_WARN, "log_full_flush",
            "feed=%s packs=%llu text=\"the log has no room for a whole window, so packs are made "
            "from a short one; raise log.max_bytes, or lower window or window_bytes\"",
            feed->name, (unsigned long long)packs);
        pd_metric_add_feed(PD_F_LOG_FULL_FLUSHES, feed->index, 1);
        int rc = pd_seq_flush_write(seq, feed, packs, &error);
        if (seq->group_rc)
            return seq->group_rc;
        if (rc)
            pd_log(PD_LOG_WARN, "log_full_flush_failed", "feed=%s reason=%s", feed->name,
                   error.reason);
    }
    return 0;
}

/* ---- any thread ---- */

bool pd_sequencer_log_full(const struct pd_sequencer *seq)
{
    bool full = atomic_load(&seq->disk_full);
    for (uint32_t i = 0; !full && i < seq->config->feed_count; i++)
        full = atomic_load(&seq->doors[i].full);
    return full;
}

bool pd_sequencer_feed_full(const struct pd_sequencer *seq, uint32_t feed_index)
{
    return atomic_load(&seq->disk_full) ||
           (feed_index < PD_FEEDS_MAX && atomic_load(&seq->doors[feed_index].full));
}

enum pd_seq_accept pd_sequencer_accepts(const struct pd_sequencer *seq, uint32_t feed_index,
                                        uint32_t lane, const char **why)
{
    static const char *const words[] = {
        [PD_SEQ_ACCEPTS] = "",
        [PD_SEQ_LANE_SHARE] = "this lane is far enough ahead of the planner",
        [PD_SEQ_LOG_FULL] = "the log is full",
        [PD_SEQ_STOPPED_FEED] = "planning of this feed has stopped, see its status"};
    enum pd_seq_accept accepts = PD_SEQ_STOPPED_FEED;
    if (feed_index < PD_FEEDS_MAX && lane < seq->doors[feed_index].lane_count)
        accepts = (enum pd_seq_accept)atomic_load(&seq->doors[feed_index].accepts[lane]);
    if (accepts != PD_SEQ_STOPPED_FEED && atomic_load(&seq->disk_full))
        accepts = PD_SEQ_LOG_FULL;
    *why = words[accepts];
    return accepts;
}

bool pd_sequencer_stall(struct pd_sequencer *seq, uint32_t feed_index, struct pd_stall *stall)
{
    *stall = (struct pd_stall){0};
    if (feed_index >= PD_FEEDS_MAX)
        return false;
    pthread_mutex_lock(&seq->stall_mutex);
    *stall = seq->doors[feed_index].stall;
    pthread_mutex_unlock(&seq->stall_mutex);
    return stall->job[0] != 0;
}
