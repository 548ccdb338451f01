/* Admin.Status: the sequencer's copy of what it owns, with serve's and the rpc side's counters.
 *
 * Place in the flow: operators, dashboards and packctl look here. Owning thread: the call's. An
 * answer is made in one arena and freed when it is serialised. Nothing here changes anything. */
#include "server/metrics_process.h"
#include "server/rpc/arena.h"
#include "server/rpc/job_spec.h"
#include "server/rpc/unary.h"
#include "server/rpc/waiting.h"

#include "server/serve_view.h"

#include <stdlib.h>
#include <string.h>

#define STREAMS_MAX 1000
#define LANES_MAX 256

/* One answer in the making. */
struct report {
    struct pd_arena arena;
    struct pd_rpc *rpc;
    const Packd__V1__StatusRequest *wire;
};

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

static void fill_jobs(struct report *report, Packd__V1__FeedStatus *out,
                      const struct pd_feed_status *feed, const struct pd_feed_config *config,
                      uint32_t feed_index)
{
    out->jobs = pd_arena_take(&report->arena, (feed->job_count + 1) * sizeof(*out->jobs));
    for (uint32_t i = 0; i < feed->job_count; i++) {
        if (report->wire->job[0] && strcmp(report->wire->job, feed->jobs[i].name) != 0)
            continue;
        Packd__V1__JobStatus *job = pd_arena_take(&report->arena, sizeof(*job));
        fill_job(report, job, feed, &feed->jobs[i], config);
        fill_serving(report, job, feed_index, feed->jobs[i].job_id);
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
    fill_jobs(report, out, feed, config, index);
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

static void answer_status(struct pd_call *call, const struct pd_request_status *status)
{
    Packd__V1__StatusResponse response = PACKD__V1__STATUS_RESPONSE__INIT;
    struct report report = {.rpc = call->thread->rpc,
                            .wire = (const void *)pd_unary_of(call)->request};

    fill_server(&report, &response);
    fill_resources(&report, &response, status);
    response.feeds =
        pd_arena_take(&report.arena, (status->feed_count + 1) * sizeof(*response.feeds));
    for (uint32_t i = 0; i < status->feed_count; i++) {
        if ((report.wire->feed[0] && strcmp(report.wire->feed, status->feeds[i].name) != 0) ||
            !pd_access_has_feed(call->who, status->feeds[i].name))
            continue;
        Packd__V1__FeedStatus *feed = pd_arena_take(&report.arena, sizeof(*feed));
        fill_feed(&report, feed, &status->feeds[i]);
        response.feeds[response.n_feeds++] = feed;
    }
    if (report.wire->feed[0] && response.n_feeds == 0)
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
