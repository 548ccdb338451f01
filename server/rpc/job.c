/* Feed.OpenJob and Feed.Commit.
 *
 * Place in the flow: between the trainers and the sequencer, which decides. Owning thread: the
 * call's. What a spec must agree with is checked here only where the sequencer does not know it:
 * the caller's rank, the feed's label convention. */
#include "server/rpc/job_spec.h"
#include "server/rpc/unary.h"

#include "server/serve_view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define WORLD_TOKEN_MAX PD_NAME_MAX

static Packd__V1__LabelConvention labels_of(enum pd_labels labels)
{
    return labels == PD_LABELS_SHIFTED ? PACKD__V1__LABEL_CONVENTION__LABELS_SHIFTED
                                       : PACKD__V1__LABEL_CONVENTION__LABELS_UNSHIFTED;
}

static const char *width_of(enum pd_width width)
{
    return width == PD_WIDTH_STEP ? "step" : width == PD_WIDTH_BATCH ? "batch" : "fixed";
}

void pd_job_spec_fill(Packd__V1__JobSpec *out, const struct pd_job_spec *spec,
                      const struct pd_feed_config *feed)
{
    const struct pd_layout_rules *layout = &feed->layout;

    packd__v1__job_spec__init(out);
    out->step_packs = spec->step_packs;
    out->dp_size = spec->dp_size;
    out->rows = spec->rows;
    out->accum = spec->accum;
    out->kind = spec->kind == PD_JOB_READER ? PACKD__V1__JOB_KIND__JOB_READER
                                            : PACKD__V1__JOB_KIND__JOB_TRAINER;
    out->segment_multiple = spec->segment_multiple;
    out->commit_every = spec->commit_every;
    out->seq_len = layout->seq_len;
    out->width = (char *)width_of(layout->width);
    out->n_widths = layout->width_count;
    out->widths = (uint32_t *)layout->widths;
    out->pad_id = layout->pad_id;
    out->labels = labels_of(layout->labels);
    out->loss_weight = layout->loss == PD_LOSS_SAMPLE
                           ? PACKD__V1__LOSS_WEIGHT_POLICY__LOSS_WEIGHT_SAMPLE
                           : PACKD__V1__LOSS_WEIGHT_POLICY__LOSS_WEIGHT_TOKEN;
    out->seg_align = layout->seg_align;
    out->total_align = layout->total_align;
    out->pad_segment = layout->pad_segment;
    out->max_segments = layout->segments_max;
    out->fixed_segments = layout->fixed_segments;
    out->mrope = layout->positions == PD_POSITIONS_MROPE;
    out->max_batch_bytes = pd_layout_payload_max(layout, spec->rows);
    out->vocab_size = feed->vocab_size;
    out->last_step = feed->last_step == PD_LAST_STEP_DROP ? (char *)"drop" : (char *)"pad";
}

Packd__V1__StepRange **pd_skipped_fill(struct pd_arena *arena, struct pd_serve *serve,
                                       uint32_t feed_index, uint32_t job_id, uint64_t from,
                                       size_t *count)
{
    struct pd_step_ranges skipped = {0};

    *count = 0;
    if (pd_serve_job_skipped(serve, feed_index, job_id, &skipped) != 0)
        abort(); /* as in the arena */
    Packd__V1__StepRange **out = pd_arena_take(arena, (skipped.count + 1) * sizeof(*out));
    for (uint32_t i = 0; i < skipped.count; i++) {
        if (skipped.ranges[i].last < from)
            continue;
        Packd__V1__StepRange *range = out[(*count)++] = pd_arena_take(arena, sizeof(*range));
        packd__v1__step_range__init(range);
        range->first = skipped.ranges[i].first > from ? skipped.ranges[i].first : from;
        range->last = skipped.ranges[i].last;
    }
    pd_step_ranges_fini(&skipped);
    return out;
}

/* ---- OpenJob ---- */

static int check_shape(const Packd__V1__OpenJobRequest *wire, struct pd_job_spec *spec,
                       struct pd_error *error)
{
    uint64_t accum = wire->accum ? wire->accum : 1;
    uint64_t packs;

    if (wire->dp_size == 0 || wire->rows == 0)
        return pd_error_set(error, PD_EINVAL, "BAD_RANGE",
                            "dp_size is %u and rows is %u; both are at least 1", wire->dp_size,
                            wire->rows);
    if (__builtin_mul_overflow((uint64_t)wire->dp_size * wire->rows, accum, &packs) ||
        packs > INT32_MAX)
        return pd_error_set(error, PD_EINVAL, "BAD_RANGE",
                            "dp_size %u * rows %u * accum %" PRIu64 " is out of range",
                            wire->dp_size, wire->rows, accum);
    if (wire->dp_rank >= wire->dp_size)
        return pd_error_set(error, PD_EMISMATCH, "DP_RANK", "dp_rank %u; dp_size is %u",
                            wire->dp_rank, wire->dp_size);
    if ((unsigned)wire->kind > PACKD__V1__JOB_KIND__JOB_READER ||
        (unsigned)wire->arrays > PACKD__V1__ARRAYS__ARRAYS_CORE)
        return pd_error_set(error, PD_EINVAL, "BAD_RANGE",
                            "kind %d or arrays %d is no value of packd.v1 that this server knows",
                            (int)wire->kind, (int)wire->arrays);
    spec->step_packs = wire->step_packs ? wire->step_packs : (uint32_t)packs;
    spec->dp_size = wire->dp_size;
    spec->rows = wire->rows;
    spec->accum = (uint32_t)accum;
    spec->segment_multiple = wire->segment_multiple;
    spec->commit_every = wire->commit_every;
    spec->kind = wire->kind == PACKD__V1__JOB_KIND__JOB_READER ? PD_JOB_READER : PD_JOB_TRAINER;
    return 0;
}

static int check_texts(const struct pd_call *call, const Packd__V1__OpenJobRequest *wire,
                       const char *feed_name, struct pd_error *error)
{
    const struct pd_rpc_options *options = &call->thread->rpc->options;
    const struct pd_feed_config *feed = pd_config_feed(options->config, feed_name, NULL);

    if (!feed)
        return pd_error_set(error, PD_ENOTFOUND, "UNKNOWN_FEED", "there is no feed %s", feed_name);
    if (strlen(wire->world_token) > WORLD_TOKEN_MAX || strlen(wire->client) > 255)
        return pd_error_set(error, PD_EINVAL, "BAD_RANGE",
                            "world_token takes at most %d bytes, client 255", WORLD_TOKEN_MAX);
    if (wire->log_id[0] && strcmp(wire->log_id, pd_log_id(options->log)) != 0)
        return pd_error_set(error, PD_EMISMATCH, "LOG_ID",
                            "this server's log is %s, the checkpoint was trained on %.40s",
                            pd_log_id(options->log), wire->log_id);
    if (wire->labels != PACKD__V1__LABEL_CONVENTION__LABELS_UNSPECIFIED &&
        wire->labels != labels_of(feed->layout.labels))
        return pd_error_set(error, PD_EMISMATCH, "LABEL_CONVENTION",
                            "feed %s serves %s labels; the trainer expects the other kind",
                            feed_name,
                            feed->layout.labels == PD_LABELS_SHIFTED ? "shifted" : "unshifted");
    return 0;
}

static void note_rank(struct pd_rpc *rpc, const struct pd_request_open_job *request,
                      const Packd__V1__OpenJobRequest *wire)
{
    const struct pd_batch_key rank = {.feed_index = request->feed_index,
                                      .job_id = request->job_id,
                                      .generation = request->generation,
                                      .dp_rank = wire->dp_rank};
    pd_serve_rank_opened(rpc->options.serve, &rank, wire->client);
}

static void fail_trimmed(struct pd_call *call, const struct pd_request_open_job *request)
{
    Packd__V1__ErrorDetail detail = PACKD__V1__ERROR_DETAIL__INIT;

    detail.seq = -1;
    detail.step = (int64_t)request->resume_step + 1;
    detail.lowest_step = (int64_t)request->lowest_step;
    pd_call_fail_detail(call, &request->base.error, &detail);
}

static void on_job_opened(struct pd_ask *ask)
{
    if (ask->of.base.result == PD_ERANGE && !pd_call_is_over(ask->call)) {
        fail_trimmed(ask->call, &ask->of.open_job);
        pd_ask_free(ask);
        return;
    }
    if (!pd_unary_answered(ask))
        return;
    const struct pd_request_open_job *request = &ask->of.open_job;
    struct pd_rpc *rpc = ask->call->thread->rpc;
    const Packd__V1__OpenJobRequest *wire = (const void *)pd_unary_of(ask->call)->request;
    const struct pd_feed_config *feed = &rpc->options.config->feeds[request->feed_index];
    Packd__V1__OpenJobResponse response = PACKD__V1__OPEN_JOB_RESPONSE__INIT;
    Packd__V1__JobSpec spec;
    struct pd_arena arena = {0};

    note_rank(rpc, request, wire);
    pd_job_spec_fill(&spec, &request->spec, feed);
    spec.arrays = wire->arrays;
    spec.tokenizer_digest = (ProtobufCBinaryData){.data = (uint8_t *)request->tokenizer.bytes,
                                                  .len = request->tokenizer.size};
    response.log_id = (char *)pd_log_id(rpc->options.log);
    response.incarnation = rpc->incarnation;
    response.generation = request->generation;
    response.first_step = request->first_step;
    response.spec = &spec;
    response.committed_step = (int64_t)request->committed - 1;
    response.lowest_step = request->lowest_step;
    response.created = request->created;
    response.config_digest = pd_feed_config_digest(feed);
    response.planner_version = PD_PLANNER_VERSION;
    response.server_version = (char *)rpc->options.version;
    response.skipped = pd_skipped_fill(&arena, rpc->options.serve, request->feed_index,
                                       request->job_id, request->first_step, &response.n_skipped);
    pd_call_reply(ask->call, &response.base);
    pd_arena_fini(&arena);
    pd_ask_free(ask);
}

static void open_job(struct pd_call *call, grpc_byte_buffer *buffer)
{
    struct pd_unary *unary = pd_unary_of(call);
    struct pd_error error;

    if (!pd_unary_decode(call, &packd__v1__open_job_request__descriptor, buffer))
        return;
    const Packd__V1__OpenJobRequest *wire = (const void *)unary->request;
    if (atomic_load(&call->thread->rpc->draining)) {
        pd_call_fail_draining(call);
        return;
    }
    struct pd_ask *ask =
        pd_unary_ask(call, PD_REQUEST_OPEN_JOB, on_job_opened, wire->feed, wire->job);
    if (!ask)
        return;
    struct pd_request_open_job *request = &ask->of.open_job;
    if (check_shape(wire, &request->spec, &error) != 0 ||
        check_texts(call, wire, unary->feed, &error) != 0) {
        pd_call_fail(call, &error);
        pd_ask_free(ask);
        return;
    }
    memcpy(request->feed, unary->feed, sizeof(request->feed));
    memcpy(request->spec.name, unary->job, sizeof(request->spec.name));
    memcpy(request->world_token, wire->world_token, strlen(wire->world_token) + 1);
    if (wire->log_id[0])
        memcpy(request->log_id, pd_log_id(call->thread->rpc->options.log), sizeof(request->log_id));
    request->has_resume_step = wire->start_case == PACKD__V1__OPEN_JOB_REQUEST__START_RESUME_STEP;
    request->resume_step = request->has_resume_step ? wire->resume_step : 0;
    request->regroup = wire->regroup;
    request->from_start =
        wire->start_case == PACKD__V1__OPEN_JOB_REQUEST__START_FROM_START && wire->from_start;
    pd_unary_submit(ask);
}

/* ---- Commit ---- */

/* What the job holds now is the answer: a commit below it changes nothing. */
static void on_commit_facts(struct pd_ask *ask)
{
    if (!pd_unary_answered(ask))
        return;
    struct pd_unary *unary = pd_unary_of(ask->call);
    const Packd__V1__CommitRequest *wire = (const void *)unary->request;
    const struct pd_job_status *job =
        pd_status_job(pd_status_feed(&ask->of.status, unary->feed), unary->job);
    Packd__V1__CommitResponse response = PACKD__V1__COMMIT_RESPONSE__INIT;

    response.committed_step = job && job->committed > wire->step ? job->committed - 1 : wire->step;
    response.bytes_held = job ? job->bytes_held : 0;
    response.incarnation = ask->call->thread->rpc->incarnation;
    response.lowest_step = job ? job->lowest_step : 0;
    pd_call_reply(ask->call, &response.base);
    pd_ask_free(ask);
}

static void on_committed(struct pd_ask *ask)
{
    if (!pd_unary_answered(ask))
        return;
    struct pd_ask *facts = pd_ask_new(ask->call, PD_REQUEST_STATUS, on_commit_facts);
    if (facts)
        pd_unary_submit(facts);
    pd_ask_free(ask);
}

static void commit(struct pd_call *call, grpc_byte_buffer *buffer)
{
    struct pd_unary *unary = pd_unary_of(call);

    if (!pd_unary_decode(call, &packd__v1__commit_request__descriptor, buffer))
        return;
    const Packd__V1__CommitRequest *wire = (const void *)unary->request;
    if (!pd_unary_names(call, wire->feed, wire->job))
        return;
    const char *log_id = pd_log_id(call->thread->rpc->options.log);
    if (wire->log_id[0] && strcmp(wire->log_id, log_id) != 0) {
        (void)pd_call_fail_with(call, PD_EMISMATCH, "LOG_ID",
                                "this server's log is %s, the commit is for %.40s", log_id,
                                wire->log_id);
        return;
    }
    if (wire->fetched < 0 || (uint64_t)wire->fetched < wire->step) {
        (void)pd_call_fail_with(
            call, PD_EINVAL, "COMMIT_BEYOND_FETCHED",
            "step %" PRIu64 " cannot be committed: this client has received steps up to %" PRId64,
            wire->step, wire->fetched);
        return;
    }
    struct pd_ask *ask = pd_ask_new(call, PD_REQUEST_COMMIT, on_committed);
    if (!ask)
        return;
    struct pd_request_commit *request = &ask->of.commit;
    memcpy(request->feed, unary->feed, sizeof(request->feed));
    memcpy(request->job, unary->job, sizeof(request->job));
    request->generation = wire->generation;
    request->step = wire->step;
    request->fetched = (uint64_t)wire->fetched;
    pd_unary_submit(ask);
}

const struct pd_method pd_methods_job[] = {
    PD_UNARY("/packd.v1.Feed/OpenJob", open_job),
    PD_UNARY("/packd.v1.Feed/Commit", commit),
    {0},
};
