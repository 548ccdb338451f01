/* Admin.Status: the sequencer's copy of what it owns, with serve's and the rpc side's counters.
 *
 * Place in the flow: operators, dashboards and packctl look here. Owning thread: the call's. An
 * answer is made in one arena and freed when it is serialised. Nothing here changes anything.
 * Invariant: an answer is one message that every client takes; what does not fit is on further
 * pages, cut between feeds and between jobs, each of which is far smaller than a message. */
#include "server/metrics_process.h"
#include "server/rpc/arena.h"
#include "server/rpc/job_spec.h"
#include "server/rpc/unary.h"
#include "server/rpc/waiting.h"

#include "server/serve_view.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS_MAX 1000
#define LANES_MAX 256
#define PAGE_BYTES_MAX (PD_RPC_SEND_BYTES_MAX - 1024) /* next_page, a name that goes on */
#define PART_BYTES 8                                  /* tag and length of a feed or job */
#define PAGE_TEXT_MAX (PD_NAME_MAX + 12)

/* Where a page begins: "FEED", or "FEED/ID" with the jobs of that id or above; "": the first. */
struct page {
    char feed[PD_NAME_MAX + 1];
    bool jobs_only;
    uint32_t job_id;
};

/* One answer in the making. */
struct report {
    struct pd_arena arena;
    struct pd_rpc *rpc;
    const Packd__V1__StatusRequest *wire;
    struct page page;
    uint64_t room_bytes; /* left in it */
    uint32_t parts;      /* feeds and jobs in it */
    char *next_page;     /* NULL: everything is in it */
};

/* ---- pages ---- */

/* False: it is no next_page. */
static bool page_parse(const char *text, struct page *page)
{
    size_t size = strcspn(text, "/");
    char *end = NULL;

    *page = (struct page){.jobs_only = text[size] == '/'};
    if (size > PD_NAME_MAX || (size == 0 && page->jobs_only))
        return false;
    memcpy(page->feed, text, size);
    if (!page->jobs_only)
        return true;
    unsigned long id =
        isdigit((unsigned char)text[size + 1]) ? strtoul(text + size + 1, &end, 10) : ULONG_MAX;
    page->job_id = (uint32_t)id;
    return id <= UINT32_MAX && *end == '\0';
}

/* Whether the part goes into this answer: the first one does, so that pages come to an end. */
static bool take_room(struct report *report, const ProtobufCMessage *part)
{
    uint64_t bytes = protobuf_c_message_get_packed_size(part) + PART_BYTES;

    if (report->parts > 0 && bytes > report->room_bytes)
        return false;
    report->room_bytes -= bytes < report->room_bytes ? bytes : report->room_bytes;
    report->parts++;
    return true;
}

/* The next page begins with this feed, or with its job `id`. */
static void set_next(struct report *report, const char *feed, const uint32_t *job_id)
{
    report->next_page = pd_arena_take(&report->arena, PAGE_TEXT_MAX);
    if (job_id)
        (void)snprintf(report->next_page, PAGE_TEXT_MAX, "%.*s/%" PRIu32, PD_NAME_MAX, feed,
                       *job_id);
    else
        (void)snprintf(report->next_page, PAGE_TEXT_MAX, "%.*s", PD_NAME_MAX, feed);
}

/* ---- parts of several messages ---- */

static Packd__V1__ServedPositions *served_of(struct report *report,
                                             const struct pd_served_totals *totals)
{
    Packd__V1__ServedPositions *served = pd_arena_take(&report->arena, sizeof(*served));

    packd__v1__served_positions__init(served);
    served->real = totals->real_tokens;
    served->tail = totals->tail_tokens;
    served->gap = totals->gap_tokens;
    served->row_padding = totals->row_padding_tokens;
    served->saved = totals->saved_positions;
    return served;
}

static Packd__V1__Waiting *waiting_of(struct report *report, const struct pd_wait_info *info,
                                      uint32_t micro)
{
    struct pd_waiting *waiting = pd_arena_take(&report->arena, sizeof(*waiting));

    pd_waiting_make(waiting, info, micro, report->rpc->incarnation);
    return &waiting->message;
}

/* ---- jobs ---- */

static void fill_ranks(struct report *report, Packd__V1__JobStatus *out,
                       const struct pd_job_view *view)
{
    out->ranks = pd_arena_take(&report->arena, (view->rank_count + 1) * sizeof(*out->ranks));
    for (uint32_t i = 0; i < view->rank_count; i++) {
        const struct pd_rank_view *from = &view->ranks[i];
        Packd__V1__RankStatus *rank = pd_arena_take(&report->arena, sizeof(*rank));
        packd__v1__rank_status__init(rank);
        rank->dp_rank = from->dp_rank;
        rank->calls = from->calls;
        rank->delivered_step = (int64_t)from->delivered - 1;
        rank->client = pd_arena_take(&report->arena, sizeof(from->client));
        memcpy(rank->client, from->client, sizeof(from->client));
        if (from->waiting)
            rank->waiting = waiting_of(report, &from->wait, from->wait_micro);
        out->ranks[out->n_ranks++] = rank;
    }
}

/* What serve counts of the job; nothing where the job has just gone. */
static void fill_serving(struct report *report, Packd__V1__JobStatus *out, uint32_t feed_index,
                         uint32_t job_id)
{
    struct pd_job_view view;

    if (pd_serve_job_view(report->rpc->options.serve, feed_index, job_id, &view) != 0)
        return;
    out->served = served_of(report, &view.totals);
    out->batches_served = view.totals.batches;
    out->bytes_served = view.totals.bytes;
    out->ready_batches = view.ready_batches;
    out->skipped = pd_skipped_fill(&report->arena, report->rpc->options.serve, feed_index, job_id,
                                   0, &out->n_skipped);
    fill_ranks(report, out, &view);
    free(view.ranks);
}

static void fill_job(struct report *report, Packd__V1__JobStatus *out,
                     const struct pd_feed_status *feed, const struct pd_job_status *job,
                     const struct pd_feed_config *config)
{
    struct pd_job_steps steps = {.config = config,
                                 .first_step = job->first_step,
                                 .first_pack = job->first_pack,
                                 .step_packs = job->spec.step_packs};
    uint64_t planned =
        steps.step_packs ? pd_job_steps_planned(&steps, feed->packs_planned, feed->ended) : 0;

    packd__v1__job_status__init(out);
    out->spec = pd_arena_take(&report->arena, sizeof(*out->spec));
    pd_job_spec_fill(out->spec, &job->spec, config);
    out->spec->tokenizer_digest = (ProtobufCBinaryData){.data = (uint8_t *)feed->tokenizer.bytes,
                                                        .len = feed->tokenizer.size};
    out->name = (char *)job->name;
    out->generation = job->generation;
    out->planned_step = (int64_t)planned - 1;
    out->delivered_step = (int64_t)job->delivered - 1;
    out->committed_step = (int64_t)job->committed - 1;
    out->lowest_step = job->lowest_step;
    out->bytes_held = job->bytes_held;
    out->bytes_per_step = job->bytes_per_step;
    out->lag_steps = planned > job->delivered ? planned - job->delivered : 0;
    out->last_commit_unix_ms = job->committed_wall_ns / 1000000u;
    out->end_step = feed->ended ? (int64_t)planned - 1 : -1;
    out->started = steps.step_packs != 0;
    out->released = job->released;
}

/* The feed's jobs of id `first` or above, in the order of their ids, as many as fit. */
static void fill_jobs(struct report *report, Packd__V1__FeedStatus *out,
                      const struct pd_feed_status *feed, uint32_t first)
{
    uint32_t index;
    const struct pd_feed_config *config =
        pd_config_feed(report->rpc->options.config, feed->name, &index);

    out->jobs = pd_arena_take(&report->arena, (feed->job_count + 1) * sizeof(*out->jobs));
    for (uint32_t i = 0; config && i < feed->job_count; i++) {
        const struct pd_job_status *from = &feed->jobs[i];
        if ((report->wire->job[0] && strcmp(report->wire->job, from->name) != 0) ||
            from->job_id < first)
            continue;
        Packd__V1__JobStatus *job = pd_arena_take(&report->arena, sizeof(*job));
        fill_job(report, job, feed, from, config);
        fill_serving(report, job, index, from->job_id);
        if (!take_room(report, &job->base)) {
            set_next(report, feed->name, &from->job_id);
            return;
        }
        out->jobs[out->n_jobs++] = job;
    }
}

/* ---- streams ---- */

static int by_name(const void *a, const void *b)
{
    const struct pd_stream_status *const *left = a, *const *right = b;

    return strcmp((*left)->name, (*right)->name);
}

static void fill_stream(Packd__V1__StreamStatus *out, const struct pd_stream_status *stream)
{
    packd__v1__stream_status__init(out);
    out->name = (char *)stream->name;
    out->source = (char *)stream->source;
    out->producer = (char *)stream->producer;
    out->next_seq = stream->next_seq;
    out->ended = stream->ended;
    out->connected = stream->connected;
    out->content_id = (char *)stream->content_id;
    out->held_bytes = stream->log_bytes;
    out->last_unix_ms = stream->last_wall_ns / 1000000u;
    out->rejected = stream->rejected;
    out->rejected_for = (char *)stream->rejected_for;
}

/* A page of streams in the order of their names. */
static void fill_streams(struct report *report, Packd__V1__FeedStatus *out,
                         const struct pd_feed_status *feed)
{
    uint32_t limit = report->wire->max_streams;
    const struct pd_stream_status **sorted = pd_arena_take(
        &report->arena, (feed->stream_count + 1) * sizeof(const struct pd_stream_status *));

    limit = limit == 0 || limit > STREAMS_MAX ? STREAMS_MAX : limit;
    out->streams = pd_arena_take(&report->arena, (limit + 1) * sizeof(*out->streams));
    uint32_t count = 0;
    for (uint32_t i = 0; i < feed->stream_count; i++)
        if (!feed->streams[i].deleted)
            sorted[count++] = &feed->streams[i];
    qsort(sorted, count, sizeof(*sorted), by_name);
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(sorted[i]->name, report->wire->streams_after) <= 0)
            continue;
        if (out->n_streams == limit) {
            out->streams_more = true;
            return;
        }
        Packd__V1__StreamStatus *stream = pd_arena_take(&report->arena, sizeof(*stream));
        fill_stream(stream, sorted[i]);
        out->streams[out->n_streams++] = stream;
    }
}

static void fill_rejects(struct report *report, Packd__V1__IngestCounters *ingest,
                         const struct pd_feed_status *feed)
{
    ingest->rejects =
        pd_arena_take(&report->arena, (feed->refusal_count + 1) * sizeof(*ingest->rejects));
    for (uint32_t i = 0; i < feed->refusal_count; i++) {
        Packd__V1__ReasonCount *count = pd_arena_take(&report->arena, sizeof(*count));
        packd__v1__reason_count__init(count);
        count->reason = (char *)feed->refusals[i].reason;
        count->count = feed->refusals[i].count;
        ingest->rejects[ingest->n_rejects++] = count;
    }
}

static void fill_ingest(struct report *report, Packd__V1__FeedStatus *out,
                        const struct pd_feed_status *feed)
{
    Packd__V1__IngestCounters *ingest = pd_arena_take(&report->arena, sizeof(*ingest));

    packd__v1__ingest_counters__init(ingest);
    for (uint32_t i = 0; i < feed->stream_count; i++) {
        const struct pd_stream_status *stream = &feed->streams[i];
        ingest->samples += stream->samples;
        ingest->tokens += stream->tokens;
        ingest->bytes += stream->bytes;
        ingest->blocks += stream->blocks;
        ingest->duplicates += stream->duplicates;
        out->streams_total += !stream->deleted;
        out->streams_ended += stream->ended && !stream->deleted;
    }
    fill_rejects(report, ingest, feed);
    ingest->cut = feed->planner.truncated_samples;
    ingest->split = feed->planner.split_samples;
    ingest->skipped = feed->planner.skipped_samples;
    ingest->pruned = feed->prune ? feed->prune->stats.samples : 0;
    out->ingest = ingest;
}

static void fill_lanes(struct report *report, Packd__V1__FeedStatus *out,
                       const struct pd_feed_status *feed)
{
    out->lanes = pd_arena_take(&report->arena, (feed->lane_count + 1) * sizeof(*out->lanes));
    for (uint32_t i = 0; i < feed->lane_count && i < LANES_MAX; i++) {
        const struct pd_lane_status *from = &feed->lanes[i];
        Packd__V1__LaneStatus *lane = pd_arena_take(&report->arena, sizeof(*lane));
        packd__v1__lane_status__init(lane);
        lane->name = (char *)from->name;
        lane->weight = from->weight;
        lane->deficit = from->deficit;
        lane->position = from->drawn;
        lane->end = from->samples;
        lane->epoch = from->pass;
        lane->ended = from->ended;
        lane->unplanned_bytes = from->unplanned_bytes;
        out->lanes[out->n_lanes++] = lane;
    }
}

static int64_t saved_ppm(const struct pd_work *spared, const struct pd_work *before,
                         struct pd_cost cost)
{
    unsigned __int128 all = pd_work_cost(before, cost), less = pd_work_cost(spared, cost);
    return pd_saving_ppm(all, all > less ? all - less : 0);
}

static const struct pd_cost attention = {.alpha = 0, .beta = 1};

static void fill_view(struct report *report, Packd__V1__Pruning *out,
                      const struct pd_prune_status *prune, uint32_t number)
{
    const struct pd_view_stats *from = &prune->stats.views[number];
    Packd__V1__ViewStatus *view = pd_arena_take(&report->arena, sizeof(*view));
    packd__v1__view_status__init(view);
    view->name = (char *)prune->views[number];
    view->dropped = prune->dropped_views >> number & 1;
    view->seen = prune->stats.seen_views >> number & 1;
    view->samples = from->samples;
    view->spans = from->spans;
    view->tokens = from->tokens;
    view->patches = from->patches;
    view->attention_saved_ppm = saved_ppm(&from->spared, &prune->stats.before, attention);
    out->views[out->n_views++] = view;
}

static void fill_pruning(struct report *report, Packd__V1__FeedStatus *out,
                         const struct pd_prune_status *prune, struct pd_cost cost)
{
    if (!prune)
        return;
    const struct pd_prune_stats *stats = &prune->stats;
    const struct pd_work spared = {stats->before.positions - stats->after.positions,
                                   stats->before.pairs - stats->after.pairs};
    Packd__V1__Pruning *pruning = pd_arena_take(&report->arena, sizeof(*pruning));
    packd__v1__pruning__init(pruning);
    pruning->samples = stats->samples;
    pruning->emptied_samples = stats->emptied_samples;
    pruning->tokens = stats->tokens;
    pruning->patches = stats->patches;
    pruning->attention_saved_ppm = saved_ppm(&spared, &stats->before, attention);
    pruning->cost_saved_ppm = saved_ppm(&spared, &stats->before, cost);
    pruning->views = pd_arena_take(&report->arena, PD_VIEWS_MAX * sizeof(*pruning->views));
    for (uint32_t v = 0; v < PD_VIEWS_MAX; v++)
        if (stats->views[v].samples > 0 || prune->dropped_views >> v & 1)
            fill_view(report, pruning, prune, v);
    out->pruning = pruning;
}

static void fill_serving_of_feed(struct report *report, Packd__V1__FeedStatus *out, uint32_t index)
{
    struct pd_serve *serve = report->rpc->options.serve;
    struct pd_served_totals totals;
    struct pd_wait_info wait;

    pd_serve_totals(serve, index, &totals);
    out->served = served_of(report, &totals);
    pd_serve_feed_wait(serve, index, &wait);
    if (wait.reason == PD_WAIT_NONE)
        return;
    struct pd_waiting *waiting = pd_arena_take(&report->arena, sizeof(*waiting));
    pd_waiting_make_feed(waiting, &wait, report->rpc->incarnation);
    out->waiting = &waiting->message;
}

/* A feed that a violation has halted says so, whatever planning does. */
static void fill_violation(struct report *report, Packd__V1__FeedStatus *out, uint32_t feed_index,
                           bool configured)
{
    struct pd_error error;

    if (!configured || !pd_serve_halted(report->rpc->options.serve, feed_index, &error))
        return;
    size_t size = strlen(error.text) + 1;
    out->halted = memcpy(pd_arena_take(&report->arena, size), error.text, size);
}

/* All but its jobs. */
static void fill_feed(struct report *report, Packd__V1__FeedStatus *out,
                      const struct pd_feed_status *feed)
{
    uint32_t index = 0;
    const struct pd_feed_config *config =
        pd_config_feed(report->rpc->options.config, feed->name, &index);

    packd__v1__feed_status__init(out);
    out->name = (char *)feed->name;
    out->plan_digest = feed->plan_digest;
    out->planned_packs = feed->packs_planned;
    out->horizon_pack = feed->horizon_packs;
    out->lowest_pack = feed->lowest_pack;
    out->window_samples = feed->planner.window_samples;
    out->window_tokens = feed->planner.window_tokens;
    out->end_requested = feed->end_declared;
    out->ended = feed->ended;
    if (feed->stopped)
        out->halted = (char *)feed->stop.text;
    fill_violation(report, out, index, config != NULL);
    out->packed_samples = feed->planner.samples;
    out->packed_tokens = feed->planner.real_tokens;
    fill_ingest(report, out, feed);
    fill_lanes(report, out, feed);
    out->log_bytes = feed->log_bytes;
    if (report->wire->streams)
        fill_streams(report, out, feed);
    if (!config)
        return;
    out->config_digest = pd_feed_config_digest(config);
    out->log_max_bytes = pd_config_feed_bytes(report->rpc->options.config, config,
                                              pd_log_limit_bytes(report->rpc->options.log));
    fill_pruning(report, out, feed->prune, config->layout.cost);
    fill_serving_of_feed(report, out, index);
}

static bool is_tested(const struct pd_rpc *rpc)
{
    struct pd_validation_info info;

    pd_validation_info(rpc->options.validation, &info);
    return info.tested;
}

static void fill_server(struct report *report, Packd__V1__StatusResponse *out)
{
    struct pd_rpc *rpc = report->rpc;
    bool ready = pd_rpc_is_ready(rpc);
    const char *fault = atomic_load(&rpc->fault);

    out->server_version = (char *)rpc->options.version;
    out->log_id = (char *)pd_log_id(rpc->options.log);
    out->incarnation = rpc->incarnation;
    out->ready = ready;
    out->state = atomic_load(&rpc->stopping)   ? PACKD__V1__SERVER_STATE__STATE_STOPPING
                 : atomic_load(&rpc->draining) ? PACKD__V1__SERVER_STATE__STATE_DRAINING
                 : !ready && !fault            ? PACKD__V1__SERVER_STATE__STATE_STARTING
                 : is_tested(rpc)              ? PACKD__V1__SERVER_STATE__STATE_SERVING
                                               : PACKD__V1__SERVER_STATE__STATE_SELF_TEST;
    out->not_ready = (char *)(ready                         ? ""
                              : atomic_load(&rpc->draining) ? "draining"
                              : fault                       ? fault
                                                            : "starting");
    out->started_unix_ms = rpc->started_wall_ns / 1000000u;
    out->now_unix_ms = pd_clock_wall_ns() / 1000000u;
    out->durability = rpc->options.config->durability == PD_DURABILITY_FSYNC
                          ? PACKD__V1__DURABILITY__DURABILITY_FSYNC
                          : PACKD__V1__DURABILITY__DURABILITY_PROCESS;
    out->planner_version = PD_PLANNER_VERSION;
    out->push_calls = atomic_load(&rpc->push_calls);
    out->fetch_calls = atomic_load(&rpc->fetch_calls);
}

/* Of the feeds that are full. */
static void fill_stalls(struct report *report, Packd__V1__LogStatus *out,
                        const struct pd_request_status *status)
{
    const struct pd_rpc_options *options = &report->rpc->options;

    out->stalls = pd_arena_take(&report->arena, (status->feed_count + 1) * sizeof(*out->stalls));
    for (uint32_t i = 0; i < status->feed_count; i++) {
        uint32_t index = 0;
        struct pd_stall *stall = pd_arena_take(&report->arena, sizeof(*stall));
        if (!pd_config_feed(options->config, status->feeds[i].name, &index) ||
            !pd_sequencer_feed_full(options->sequencer, index) ||
            !pd_sequencer_stall(options->sequencer, index, stall))
            continue;
        out->stalls[out->n_stalls] = pd_arena_take(&report->arena, sizeof(**out->stalls));
        pd_waiting_stall(out->stalls[out->n_stalls++], stall);
        out->state = PACKD__V1__LOG_STATE__LOG_STALLED;
    }
}

static void fill_log(struct report *report, Packd__V1__StatusResponse *out,
                     const struct pd_request_status *status)
{
    const struct pd_rpc_options *options = &report->rpc->options;

    out->log = pd_arena_take(&report->arena, sizeof(*out->log));
    packd__v1__log_status__init(out->log);
    out->log->bytes = pd_log_used_bytes(options->log);
    out->log->max_bytes = pd_log_limit_bytes(options->log);
    out->log->configured_bytes = options->config->log_max_bytes;
    out->log->records = status->records;
    out->log->state = pd_sequencer_log_full(options->sequencer) ? PACKD__V1__LOG_STATE__LOG_FULL
                                                                : PACKD__V1__LOG_STATE__LOG_OK;
    for (uint32_t i = 0; i < status->feed_count; i++) {
        const struct pd_feed_status *feed = &status->feeds[i];
        out->log->planned_held_bytes += feed->log_bytes - feed->unplanned_bytes;
        out->log->unplanned_bytes += feed->unplanned_bytes;
        if (feed->snapshot_packs > out->log->snapshot_pack)
            out->log->snapshot_pack = feed->snapshot_packs;
    }
    fill_stalls(report, out->log, status);
}

static void fill_memory(struct report *report, Packd__V1__StatusResponse *out,
                        const struct pd_serve_gauges *gauges)
{
    out->memory = pd_arena_take(&report->arena, sizeof(*out->memory));
    packd__v1__memory_status__init(out->memory);
    out->memory->batches_bytes = gauges->ready_bytes;
    out->memory->batches_max_bytes = gauges->ready_bytes_max;
    out->memory->ingest_bytes = pd_credit_reserved_bytes(&report->rpc->credit);
    out->memory->ingest_max_bytes = report->rpc->credit.max_bytes;
    out->memory->anonymous_bytes = pd_process_anonymous_bytes();
}

static void fill_validator(struct report *report, Packd__V1__StatusResponse *out,
                           const struct pd_serve_gauges *gauges)
{
    const struct pd_rpc_options *options = &report->rpc->options;
    struct pd_validation_info *info = pd_arena_take(&report->arena, sizeof(*info));
    Packd__V1__ValidatorStatus *validator = pd_arena_take(&report->arena, sizeof(*validator));

    packd__v1__validator_status__init(validator);
    pd_validation_info(options->validation, info);
    validator->backend = strcmp(info->backend, "off") == 0 ? (char *)"none" : info->backend;
    validator->device = info->device;
    validator->self_test_passed = info->tested && info->passed;
    validator->fraction = options->config->validate_fraction;
    validator->structural = gauges->built_total;
    validator->probed = gauges->probed_total;
    validator->violations = gauges->violations_total;
    validator->rebuilt = gauges->rebuilt_total;
    validator->retired = info->retired;
    validator->repro = pd_arena_take(&report->arena, PD_REPRO_PATH_MAX);
    pd_serve_repro(options->serve, validator->repro);
    out->validator = validator;
}

static void fill_resources(struct report *report, Packd__V1__StatusResponse *out,
                           const struct pd_request_status *status)
{
    struct pd_serve_gauges gauges;

    pd_serve_gauges(report->rpc->options.serve, &gauges);
    fill_log(report, out, status);
    fill_memory(report, out, &gauges);
    fill_validator(report, out, &gauges);
}

/* One feed with its jobs, or, where the page before ended among them, the jobs that are left. */
static void add_feed(struct report *report, Packd__V1__StatusResponse *out,
                     const struct pd_feed_status *from, bool goes_on)
{
    Packd__V1__FeedStatus *feed = pd_arena_take(&report->arena, sizeof(*feed));

    if (goes_on) {
        packd__v1__feed_status__init(feed);
        feed->name = (char *)from->name;
    } else {
        fill_feed(report, feed, from);
    }
    if (!goes_on && !take_room(report, &feed->base)) {
        set_next(report, from->name, NULL);
        return;
    }
    out->feeds[out->n_feeds++] = feed;
    fill_jobs(report, feed, from, goes_on ? report->page.job_id : 0);
}

/* The feeds that were asked for and that the caller may see, from the page's on. False: the page's
 * is not among them. */
static bool fill_feeds(struct report *report, Packd__V1__StatusResponse *out,
                       const struct pd_request_status *status,
                       const struct pd_principal_config *who)
{
    bool begun = report->page.feed[0] == '\0';

    out->feeds = pd_arena_take(&report->arena, (status->feed_count + 1) * sizeof(*out->feeds));
    for (uint32_t i = 0; i < status->feed_count && !report->next_page; i++) {
        const char *name = status->feeds[i].name;
        if ((report->wire->feed[0] && strcmp(report->wire->feed, name) != 0) ||
            !pd_access_has_feed(who, name))
            continue;
        bool first = !begun && strcmp(report->page.feed, name) == 0;
        begun = begun || first;
        if (begun)
            add_feed(report, out, &status->feeds[i], first && report->page.jobs_only);
    }
    return begun;
}

static void answer_status(struct pd_call *call, const struct pd_request_status *status)
{
    Packd__V1__StatusResponse response = PACKD__V1__STATUS_RESPONSE__INIT;
    struct report report = {.rpc = call->thread->rpc,
                            .wire = (const void *)pd_unary_of(call)->request};
    uint32_t bytes_max = report.wire->max_bytes;
    bool begun = page_parse(report.wire->page, &report.page);

    bytes_max = bytes_max == 0 || bytes_max > PAGE_BYTES_MAX ? PAGE_BYTES_MAX : bytes_max;
    fill_server(&report, &response);
    fill_resources(&report, &response, status);
    size_t server_bytes = packd__v1__status_response__get_packed_size(&response);
    report.room_bytes = bytes_max > server_bytes ? bytes_max - server_bytes : 0;
    begun = begun && fill_feeds(&report, &response, status, call->who);
    if (report.next_page)
        response.next_page = report.next_page;
    if (!begun)
        (void)pd_call_fail_with(call, PD_EINVAL, "BAD_RANGE",
                                "page is '%.80s'; expected next_page of an answer to the same "
                                "question: ask for the first page again",
                                report.wire->page);
    else if (report.wire->feed[0] && response.n_feeds == 0)
        (void)pd_call_fail_with(call, PD_ENOTFOUND, "UNKNOWN_FEED", "there is no feed %.64s",
                                report.wire->feed);
    else
        pd_call_reply(call, &response.base);
    pd_arena_fini(&report.arena);
}

static void on_status(struct pd_ask *ask)
{
    if (!pd_unary_answered(ask))
        return;
    answer_status(ask->call, &ask->of.status);
    pd_ask_free(ask);
}

static void status(struct pd_call *call, grpc_byte_buffer *buffer)
{
    if (!pd_unary_decode(call, &packd__v1__status_request__descriptor, buffer))
        return;
    const Packd__V1__StatusRequest *wire = (const void *)pd_unary_of(call)->request;
    if (wire->feed[0] && !pd_call_may_use(call, wire->feed))
        return;
    struct pd_ask *ask = pd_ask_new(call, PD_REQUEST_STATUS, on_status);
    if (ask)
        pd_unary_submit(ask);
}

const struct pd_method pd_methods_status[] = {
    PD_UNARY("/packd.v1.Admin/Status", status),
    {0},
};
