/* Planted faults.
 *
 * Place in the flow: the assembler's hook between layout and check, on an assemble thread. The
 * attention faults are those of the probe's self-test, planted into a copy of the batch's arrays
 * and copied back; the others change one value each. Test builds only. */
#include "server/fault.h"

#include "base/check.h"
#include "base/log.h"
#include "gpu/probe_cases.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a fault may touch; T positions, S segments. */
struct view {
    struct pd_batch *batch;
    int32_t *tokens, *labels, *positions, *segment_ids, *cu, *seq_lens, *sample_index;
    float *loss_weight;
    uint32_t positions_count, segments;
};

/* One fault that is not the probe's. Returns whether the batch had a place for it. */
struct change {
    const char *name;
    bool (*make)(struct view *view);
};

static struct {
    const char *name;
    bool unchecked, chosen; /* chosen: `batch` is the one whose builds are damaged */
    uint32_t feed;
    uint64_t step;
    struct pd_batch_key batch;
    int times;
    pthread_mutex_t lock; /* builds of one step run side by side */
} wanted = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *array_at(struct pd_batch *batch, uint8_t *payload, const char *name)
{
    const struct pd_array *array = pd_batch_find(batch, name);
    PD_CHECK(array);
    return payload + array->offset_bytes;
}

static struct view view_of(struct pd_batch *batch, uint8_t *payload)
{
    return (struct view){.batch = batch,
                         .tokens = array_at(batch, payload, "tokens"),
                         .labels = array_at(batch, payload, "labels"),
                         .positions = array_at(batch, payload, "positions"),
                         .segment_ids = array_at(batch, payload, "segment_ids"),
                         .cu = array_at(batch, payload, "cu_seqlens"),
                         .seq_lens = array_at(batch, payload, "seq_lens"),
                         .sample_index = array_at(batch, payload, "sample_index"),
                         .loss_weight = array_at(batch, payload, "loss_weight"),
                         .positions_count = batch->rows * batch->width,
                         .segments = batch->segment_count};
}

/* The first padding position, or positions_count. */
static uint32_t first_padding(const struct view *view)
{
    uint32_t t = 0;
    while (t < view->positions_count && view->segment_ids[t] != 0)
        t++;
    return t;
}

static bool change_token(struct view *view)
{
    view->tokens[view->cu[1] - 1] ^= 1;
    return true;
}

/* A token of the sample before becomes a target at the start of the second segment. */
static bool label_across(struct view *view)
{
    if (view->segments < 2)
        return false;
    view->labels[view->cu[1]] = view->tokens[view->cu[1]];
    return true;
}

static bool drop_label(struct view *view)
{
    uint32_t t = 0;
    while (t < view->positions_count && view->labels[t] == PD_LABEL_NONE)
        t++;
    if (t == view->positions_count)
        return false;
    view->labels[t] = PD_LABEL_NONE;
    view->loss_weight[t] = 0;
    return true;
}

static bool weigh_padding(struct view *view)
{
    uint32_t t = first_padding(view);
    if (t == view->positions_count)
        return false;
    view->loss_weight[t] = 1;
    return true;
}

static bool fill_padding(struct view *view)
{
    uint32_t t = first_padding(view);
    if (t == view->positions_count)
        return false;
    view->tokens[t] += 7;
    return true;
}

static bool count_tokens_wrongly(struct view *view)
{
    view->batch->totals.real_tokens++;
    return true;
}

static bool count_targets_wrongly(struct view *view)
{
    view->batch->totals.loss_tokens--;
    return true;
}

static bool swap_samples(struct view *view)
{
    if (view->segments < 2 || view->sample_index[1] < 0)
        return false;
    view->sample_index[0] = 1;
    view->sample_index[1] = 0;
    return true;
}

static bool understate_longest(struct view *view)
{
    view->batch->max_seqlen--;
    return true;
}

static bool move_array(struct view *view)
{
    view->batch->arrays[view->batch->array_count - 1].offset_bytes += PD_ARRAY_ALIGN;
    return true;
}

static const struct change changes[] = {
    {"token changed", change_token},
    {"label across a boundary", label_across},
    {"label lost", drop_label},
    {"padding with a loss weight", weigh_padding},
    {"padding that is not pad_id", fill_padding},
    {"wrong total of tokens", count_tokens_wrongly},
    {"wrong total of targets", count_targets_wrongly},
    {"samples swapped in sample_index", swap_samples},
    {"max_seqlen too small", understate_longest},
    {"array past the payload", move_array},
};

/* ---- the probe's faults ---- */

static void resize(struct pd_batch *batch, const char *name, uint32_t entries)
{
    for (uint32_t i = 0; i < batch->array_count; i++)
        if (strcmp(batch->arrays[i].name, name) == 0) {
            batch->arrays[i].shape[0] = entries;
            batch->arrays[i].size_bytes = 4 * (uint64_t)entries;
        }
}

static void case_from(struct pd_case *made, const struct view *view)
{
    uint32_t t = view->positions_count, s = view->segments;
    made->batch = (struct pd_probe_batch){.rows = view->batch->rows,
                                          .width = view->batch->width,
                                          .segment_count = s,
                                          .segment_ids = made->segment_ids,
                                          .positions = made->positions,
                                          .cu_seqlens = made->cu_seqlens,
                                          .seq_lens = made->seq_lens,
                                          .logged_lens = made->logged_lens,
                                          .causal = true};
    memcpy(made->segment_ids, view->segment_ids, 4 * (size_t)t);
    memcpy(made->positions, view->positions, 4 * (size_t)t);
    memcpy(made->cu_seqlens, view->cu, 4 * ((size_t)s + 1));
    memcpy(made->seq_lens, view->seq_lens, 4 * (size_t)s);
    memcpy(made->logged_lens, view->seq_lens, 4 * (size_t)s);
}

/* Whether the arrays of `segments` entries have room for so many where they lie. */
static bool has_room(const struct pd_batch *batch, uint32_t segments)
{
    const struct pd_array *cu = pd_batch_find(batch, "cu_seqlens");
    const struct pd_array *next = pd_batch_find(batch, "seq_lens");
    const struct pd_array *index = pd_batch_find(batch, "sample_index");
    return cu->offset_bytes + 4 * ((uint64_t)segments + 1) <= next->offset_bytes &&
           next->offset_bytes + 4 * (uint64_t)segments <= index->offset_bytes;
}

static bool plant(struct view *view, enum pd_fault fault)
{
    bool planted = false;
    uint64_t random = 1;
    struct pd_case *made = malloc(sizeof *made);
    PD_CHECK(made && view->positions_count <= PD_CASE_TOKENS_MAX);
    case_from(made, view);
    if (pd_case_plant(made, fault, &random) && has_room(view->batch, made->batch.segment_count)) {
        uint32_t s = made->batch.segment_count;
        memcpy(view->segment_ids, made->segment_ids, 4 * (size_t)view->positions_count);
        memcpy(view->positions, made->positions, 4 * (size_t)view->positions_count);
        memcpy(view->cu, made->cu_seqlens, 4 * ((size_t)s + 1));
        memcpy(view->seq_lens, made->seq_lens, 4 * (size_t)s);
        view->batch->segment_count = s;
        resize(view->batch, "cu_seqlens", s + 1);
        resize(view->batch, "seq_lens", s);
        resize(view->batch, "sample_index", s);
        planted = true;
    }
    free(made);
    return planted;
}

/* ---- the hook ---- */

static const struct change *change_named(const char *name)
{
    for (size_t i = 0; i < PD_COUNT_OF(changes); i++)
        if (strcmp(changes[i].name, name) == 0)
            return &changes[i];
    return NULL;
}

static enum pd_fault fault_named(const char *name)
{
    int fault = 0;
    while (fault < PD_FAULT_COUNT && strcmp(pd_fault_name((enum pd_fault)fault), name) != 0)
        fault++;
    return (enum pd_fault)fault;
}

/* The first batch of the step that has a place for the fault is the one damaged from then on. */
static bool is_chosen(const struct pd_batch_key *key)
{
    const struct pd_batch_key *batch = &wanted.batch;
    return !wanted.chosen || (key->job_id == batch->job_id && key->micro == batch->micro &&
                              key->dp_rank == batch->dp_rank);
}

static bool corrupt_locked(const struct pd_batch_key *key, struct pd_batch *batch, uint8_t *payload)
{
    if (wanted.times <= 0 || !is_chosen(key))
        return false;
    struct view view = view_of(batch, payload);
    const struct change *change = change_named(wanted.name);
    if (!(change ? change->make(&view) : plant(&view, fault_named(wanted.name)))) {
        pd_log(PD_LOG_WARN, "fault_not_planted", "fault=\"%s\" step=%llu", wanted.name,
               (unsigned long long)key->step);
        return false;
    }
    wanted.chosen = true;
    wanted.batch = *key;
    wanted.times--;
    pd_log(PD_LOG_WARN, "fault_planted", "fault=\"%s\" step=%llu", wanted.name,
           (unsigned long long)key->step);
    return wanted.unchecked;
}

static bool corrupt(void *ctx, const struct pd_batch_key *key, struct pd_batch *batch,
                    uint8_t *payload)
{
    (void)ctx;
    if (key->feed_index != wanted.feed || key->step != wanted.step)
        return false;
    pthread_mutex_lock(&wanted.lock);
    bool unchecked = corrupt_locked(key, batch, payload);
    pthread_mutex_unlock(&wanted.lock);
    return unchecked;
}

static uint64_t number_of(const char *variable, uint64_t without)
{
    const char *text = getenv(variable);
    return text ? strtoull(text, NULL, 10) : without;
}

void pd_fault_install(const struct pd_config *config, struct pd_serve *serve)
{
    wanted.name = getenv("PACKD_TEST_FAULT");
    if (!wanted.name)
        return;
    wanted.feed = (uint32_t)number_of("PACKD_TEST_FAULT_FEED", 0);
    wanted.step = number_of("PACKD_TEST_FAULT_STEP", 0);
    wanted.unchecked = getenv("PACKD_TEST_FAULT_UNCHECKED") != NULL;
    wanted.times = (int)number_of("PACKD_TEST_FAULT_TIMES", 1);
    if (wanted.feed >= config->feed_count ||
        (!change_named(wanted.name) && fault_named(wanted.name) == PD_FAULT_COUNT)) {
        fprintf(stderr, "packd: no fault \"%s\" for feed number %u\n", wanted.name, wanted.feed);
        exit(2);
    }
    pd_serve_hooks(serve)->corrupt = corrupt;
}
