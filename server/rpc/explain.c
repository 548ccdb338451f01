/* Admin.Explain: the packs of one step, or why it is not there.
 *
 * Place in the flow: packs are read from the log in a short read transaction on the rpc thread,
 * through a reader that the thread keeps. Owning thread: the call's. An answer is made in one arena
 * and freed when it is serialised. Nothing here changes anything. */
#include "server/rpc/arena.h"
#include "server/rpc/unary.h"
#include "server/rpc/waiting.h"
#include "server/step_order.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define EXPLAIN_SAMPLES_MAX 20000 /* of one answer: about 1 MiB */

struct explanation {
    struct pd_arena arena;
    struct pd_rpc *rpc;
    struct pd_log_reader *reader;
    const Packd__V1__ExplainRequest *wire;
    const struct pd_job_status *job;
    const struct pd_feed_config *feed;
    uint32_t feed_index;
    struct pd_job_steps steps;
    struct pd_step_place place; /* of the step, once it is planned */
    Packd__V1__ExplainResponse response;
    size_t samples;
    struct pd_totals totals; /* of the packs so far; attention_cost is the sum of n*n */
    uint64_t tail_tokens, row_padding_tokens;
};

/* The index of a stream's name in the table, added where it is new. */
static int name_of(struct explanation *of, bool source, uint32_t number, char ***names,
                   size_t *count, uint32_t *numbers)
{
    for (size_t i = 0; i < *count; i++)
        if (numbers[i] == number)
            return (int)i;
    char *name = pd_arena_take(&of->arena, PD_NAME_MAX + 1);
    int rc = source ? pd_log_read_source_name(of->reader, of->feed_index, number, name)
                    : pd_log_read_stream_name(of->reader, of->feed_index, number, name);
    if (rc != 0 && !source)
        (void)snprintf(name, PD_NAME_MAX + 1, "%u", number);
    (*names)[*count] = name;
    numbers[*count] = number;
    return (int)(*count)++;
}

static Packd__V1__SampleTable *samples_of(struct explanation *of, const struct pd_pack *pack)
{
    struct pd_arena *arena = &of->arena;
    size_t n = pack->segment_count;
    Packd__V1__SampleTable *table = pd_arena_take(arena, sizeof(*table));
    uint32_t *streams = pd_arena_take(arena, (n + 1) * 4),
             *sources = pd_arena_take(arena, (n + 1) * 4);

    packd__v1__sample_table__init(table);
    table->streams = pd_arena_take(arena, (n + 1) * sizeof(char *));
    table->sources = pd_arena_take(arena, (n + 1) * sizeof(char *));
    table->n_stream = table->n_source = table->n_seq = table->n_part = table->n_epoch =
        table->n_offset = table->n_length = table->n_loss_tokens = n;
    table->stream = pd_arena_take(arena, n * 4 + 4);
    table->source = pd_arena_take(arena, n * 4 + 4);
    table->seq = pd_arena_take(arena, n * 8 + 8);
    table->part = pd_arena_take(arena, n * 4 + 4);
    table->epoch = pd_arena_take(arena, n * 4 + 4);
    table->offset = pd_arena_take(arena, n * 4 + 4);
    table->length = pd_arena_take(arena, n * 4 + 4);
    table->loss_tokens = pd_arena_take(arena, n * 4 + 4);
    for (size_t i = 0; i < n; i++) {
        const struct pd_segment *segment = &pack->segments[i];
        table->stream[i] = (uint32_t)name_of(of, false, segment->stream, &table->streams,
                                             &table->n_streams, streams);
        table->source[i] = (uint32_t)name_of(of, true, segment->source, &table->sources,
                                             &table->n_sources, sources);
        table->seq[i] = segment->seq;
        table->part[i] = segment->part;
        table->epoch[i] = segment->pass;
        table->offset[i] = segment->offset_tokens;
        table->length[i] = segment->length_tokens;
        table->loss_tokens[i] = segment->loss_tokens;
    }
    return table;
}

static Packd__V1__PackWay way_of(enum pd_pack_way way)
{
    static const Packd__V1__PackWay ways[PD_PACK_WAYS] = {
        [PD_PACK_UNKNOWN] = PACKD__V1__PACK_WAY__PACK_UNSPECIFIED,
        [PD_PACK_EXACT] = PACKD__V1__PACK_WAY__PACK_EXACT,
        [PD_PACK_BEST] = PACKD__V1__PACK_WAY__PACK_BEST,
        [PD_PACK_FLUSH] = PACKD__V1__PACK_WAY__PACK_FLUSH,
        [PD_PACK_END] = PACKD__V1__PACK_WAY__PACK_END,
        [PD_PACK_CAPPED] = PACKD__V1__PACK_WAY__PACK_CAPPED,
        [PD_PACK_SEQUENTIAL] = PACKD__V1__PACK_WAY__PACK_SEQUENTIAL,
    };
    return ways[way];
}

/* What closed the pack. Of plans that do not say so it is known whether they are full. */
static void explain_why(const struct explanation *of, const struct pd_pack *pack,
                        Packd__V1__ExplainPack *out)
{
    struct pd_plan_facts facts;
    if (pack->used_slots == of->feed->rules.seq_len)
        out->way = PACKD__V1__PACK_WAY__PACK_EXACT;
    if (pd_log_read_plan_facts(of->reader, of->feed_index, pack->number, &facts) != 0 ||
        facts.why.way == PD_PACK_UNKNOWN)
        return;
    out->way = way_of(facts.why.way);
    out->record = facts.why.filled_to;
}

static Packd__V1__ExplainPack *explain_pack(struct explanation *of, uint32_t entry,
                                            const struct pd_pack *pack)
{
    const struct pd_job_spec *spec = &of->job->spec;
    Packd__V1__ExplainPack *out = pd_arena_take(&of->arena, sizeof(*out));
    struct pd_totals totals = {0};

    packd__v1__explain_pack__init(out);
    out->micro = entry / (spec->dp_size * spec->rows);
    out->dp_rank = entry / spec->rows % spec->dp_size;
    out->row = entry % spec->rows;
    if (!pack) {
        of->row_padding_tokens += of->feed->rules.seq_len;
        out->pack = -1;
        out->way = PACKD__V1__PACK_WAY__PACK_ROW_PADDING;
        return out;
    }
    pd_totals_add(&totals, pack, of->feed->layout.loss, of->feed->layout.cost);
    out->pack = (int64_t)pack->number;
    explain_why(of, pack, out);
    out->tokens = totals.real_tokens;
    out->gap = totals.gap_tokens;
    out->tail = of->feed->rules.seq_len - pack->used_slots;
    out->cost = totals.attention_cost;
    out->samples = samples_of(of, pack);
    pd_totals_add(&of->totals, pack, of->feed->layout.loss,
                  (struct pd_cost){.alpha = 0, .beta = 1});
    of->tail_tokens += out->tail;
    of->samples += pack->segment_count;
    return out;
}

/* The packs of the step from the first entry asked for on, as far as an answer goes. */
static int explain_packs(struct explanation *of, const struct pd_step_order *order)
{
    uint32_t step_packs = of->job->spec.step_packs;
    uint32_t limit = of->wire->max_entries ? of->wire->max_entries : UINT32_MAX;
    struct pd_pack pack = {0};
    int rc = 0;

    of->response.packs =
        pd_arena_take(&of->arena, ((size_t)step_packs + 1) * sizeof(*of->response.packs));
    of->response.packs_total = step_packs;
    for (uint32_t entry = of->wire->first_entry;
         entry < step_packs && of->response.n_packs < limit && of->samples < EXPLAIN_SAMPLES_MAX;
         entry++) {
        bool there = entry < of->place.pack_count;
        if (there)
            rc = pd_log_read_pack(of->reader, of->feed_index,
                                  pd_step_order_pack(order, &of->place, entry), &pack);
        if (rc != 0)
            break;
        of->response.packs[of->response.n_packs++] = explain_pack(of, entry, there ? &pack : NULL);
    }
    pd_pack_fini(&pack);
    return rc;
}

/* Of the whole step, where the answer holds all its packs; padding as with width: fixed. */
static void explain_totals(struct explanation *of)
{
    Packd__V1__Totals *out = pd_arena_take(&of->arena, sizeof(*out));
    Packd__V1__LossTotal *loss = pd_arena_take(&of->arena, sizeof(*loss));

    if (of->response.n_packs != of->response.packs_total)
        return;
    packd__v1__totals__init(out);
    packd__v1__loss_total__init(loss);
    loss->name = (char *)"tokens";
    loss->count = (int64_t)of->totals.loss_tokens;
    loss->weight = of->totals.loss_weight;
    out->loss = pd_arena_take(&of->arena, sizeof(*out->loss));
    out->loss[0] = loss;
    out->n_loss = 1;
    out->real_tokens = of->totals.real_tokens;
    out->tail_padding = of->tail_tokens;
    out->gap = of->totals.gap_tokens;
    out->row_padding = of->row_padding_tokens;
    out->overlap_tokens = of->totals.overlap_tokens;
    out->samples = of->totals.samples;
    out->segments = of->totals.segments;
    out->attention_cost = of->totals.attention_cost;
    out->patches = of->totals.patches;
    of->response.totals = out;
}

static void explain_facts(struct explanation *of, uint64_t last_pack)
{
    struct pd_plan_facts facts;

    if (pd_log_read_plan_facts(of->reader, of->feed_index, last_pack, &facts) != 0)
        return;
    of->response.plan_digest = facts.plan_digest;
    of->response.config_digest = facts.config_digest;
    of->response.planner_version = facts.planner_version;
}

/* Everything that is read from the log, in one transaction. */
static int explain_from_log(struct explanation *of)
{
    struct pd_step_order order = {0};
    uint64_t failed;
    int rc =
        pd_step_order_load(&order, of->reader, of->feed_index, &of->steps, &of->place, &failed);
    if (rc == 0)
        rc = explain_packs(of, &order);
    if (rc == 0)
        explain_totals(of);
    if (rc == 0)
        explain_facts(of, of->place.part_first_pack + of->place.part_pack_count - 1);
    pd_step_order_fini(&order);
    return rc;
}

/* What would be in the step is told nevertheless. */
static bool is_skipped(const struct explanation *of)
{
    struct pd_batch_key key = {
        .feed_index = of->feed_index, .job_id = of->job->job_id, .step = of->wire->step};

    pd_serve_pass_skipped(of->rpc->options.serve, &key);
    return key.step != of->wire->step;
}

static int explain_planned(struct pd_call *call, struct explanation *of)
{
    struct pd_rpc_thread *thread = call->thread;
    uint64_t step = of->wire->step;
    struct pd_error error;

    of->response.state = is_skipped(of)              ? PACKD__V1__STEP_STATE__STEP_SKIPPED
                         : step < of->job->committed ? PACKD__V1__STEP_STATE__STEP_COMMITTED
                         : step < of->job->delivered ? PACKD__V1__STEP_STATE__STEP_DELIVERED
                                                     : PACKD__V1__STEP_STATE__STEP_PLANNED;
    int rc = thread->reader ? 0 : pd_log_reader_new(of->rpc->options.log, &thread->reader, &error);
    of->reader = thread->reader;
    if (rc == 0)
        rc = pd_log_reader_begin(of->reader);
    if (rc != 0)
        return rc;
    of->response.balance_block = of->place.part.block;
    of->response.balance_steps = of->place.part.steps;
    rc = explain_from_log(of);
    pd_log_reader_end(of->reader);
    return rc;
}

/* Without packs: why the step is not there. */
static void explain_absent(struct explanation *of, int rc, const struct pd_error *error)
{
    of->response.text = (char *)error->text;
    if (rc == PD_EAGAIN) {
        struct pd_waiting *waiting = pd_arena_take(&of->arena, sizeof(*waiting));
        struct pd_batch_key key = {.feed_index = of->feed_index,
                                   .job_id = of->job->job_id,
                                   .generation = of->job->generation,
                                   .step = of->wire->step};
        struct pd_wait_info info = {0};
        pd_serve_wait_info(of->rpc->options.serve, &key, &info);
        pd_waiting_make(waiting, &info, 0, of->rpc->incarnation);
        of->response.state = PACKD__V1__STEP_STATE__STEP_NOT_PLANNED;
        of->response.waiting = &waiting->message;
        return;
    }
    of->response.state = strcmp(error->reason, "STEP_TRIMMED") == 0
                             ? PACKD__V1__STEP_STATE__STEP_TRIMMED
                             : PACKD__V1__STEP_STATE__STEP_NEVER;
}

static void answer_explain(struct pd_call *call, struct explanation *of)
{
    struct pd_error error = {0};

    packd__v1__explain_response__init(&of->response);
    int rc = pd_serve_step_place(of->rpc->options.serve, of->feed_index, of->job->job_id,
                                 of->wire->step, &of->steps, &of->place, &error);
    if (rc == PD_ENOTFOUND) {
        pd_call_fail(call, &error);
        return;
    }
    if (rc != 0)
        explain_absent(of, rc, &error);
    else if ((rc = explain_planned(call, of)) != 0) {
        (void)pd_call_fail_with(call, rc, "CHECKSUM",
                                "the packs of step %" PRIu64 " cannot be read from the log: %s",
                                of->wire->step, pd_err_text(rc));
        return;
    }
    pd_call_reply(call, &of->response.base);
}

static void on_explain_facts(struct pd_ask *ask)
{
    if (!pd_unary_answered(ask))
        return;
    struct pd_call *call = ask->call;
    const struct pd_unary *unary = pd_unary_of(call);
    struct explanation of = {.rpc = call->thread->rpc, .wire = (const void *)unary->request};
    const struct pd_feed_status *feed = pd_status_feed(&ask->of.status, unary->feed);

    of.job = pd_status_job(feed, unary->job);
    of.feed = pd_config_feed(of.rpc->options.config, unary->feed, &of.feed_index);
    if (!feed || !of.feed)
        (void)pd_call_fail_with(call, PD_ENOTFOUND, "UNKNOWN_FEED", "there is no feed %s",
                                unary->feed);
    else if (!of.job || of.job->spec.step_packs == 0)
        (void)pd_call_fail_with(call, PD_ENOTFOUND, "UNKNOWN_JOB",
                                "feed %s has no job %s that was opened", unary->feed, unary->job);
    else
        answer_explain(call, &of);
    pd_arena_fini(&of.arena);
    pd_ask_free(ask);
}

static void explain(struct pd_call *call, grpc_byte_buffer *buffer)
{
    if (!pd_unary_decode(call, &packd__v1__explain_request__descriptor, buffer))
        return;
    const Packd__V1__ExplainRequest *wire = (const void *)pd_unary_of(call)->request;
    if (!pd_unary_names(call, wire->feed, wire->job))
        return;
    struct pd_ask *ask = pd_ask_new(call, PD_REQUEST_STATUS, on_explain_facts);
    if (ask)
        pd_unary_submit(ask);
}

const struct pd_method pd_methods_explain[] = {
    PD_UNARY("/packd.v1.Admin/Explain", explain),
    {0},
};
