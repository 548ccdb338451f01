/* The cases of media_case.h. The bodies go through packer/slice.h as the log's do; everything else
 * is looked up token by token. */
#include "tests/unit/media_case.h"

#include "base/check.h"
#include "tests/unit/random.h"

#include <stdlib.h>
#include <string.h>

#define VIEWS 3

uint32_t media_below(struct media_case *c, uint32_t bound)
{
    return test_below(&c->random, bound);
}

static const struct pd_tensor_spec specs[MEDIA_TENSORS] = {
    [MEDIA_REWARD] = {.name = "reward",
                      .dtype = PD_DTYPE_F32,
                      .axis = PD_AXIS_TOKEN,
                      .alignment = PD_ALIGN_INPUT,
                      .rank = 1,
                      .dims = {2},
                      .pad_value = {7, 8, 9, 10},
                      .pad_mask = PD_TENSOR_NONE},
    [MEDIA_LOGP] = {.name = "logp",
                    .dtype = PD_DTYPE_F32,
                    .axis = PD_AXIS_TOKEN,
                    .alignment = PD_ALIGN_TARGET,
                    .is_loss = 1,
                    .pad_mask = PD_TENSOR_NONE},
    [MEDIA_PIXELS] = {.name = "pixel_values",
                      .dtype = PD_DTYPE_U8,
                      .axis = PD_AXIS_RAGGED,
                      .unit = PD_UNIT_PATCH,
                      .rank = 1,
                      .dims = {3},
                      .pad_mask = PD_TENSOR_NONE},
    [MEDIA_BOX] = {.name = "box",
                   .dtype = PD_DTYPE_I32,
                   .axis = PD_AXIS_RAGGED,
                   .unit = PD_UNIT_SPAN,
                   .rank = 1,
                   .dims = {4},
                   .views = 5,
                   .pad_mask = PD_TENSOR_NONE},
    [MEDIA_JPEG] = {.name = "jpeg",
                    .dtype = PD_DTYPE_U8,
                    .axis = PD_AXIS_RAGGED,
                    .unit = PD_UNIT_RUN,
                    .views = 2,
                    .pad_mask = PD_TENSOR_NONE},
    [MEDIA_NOTES] = {.name = "notes",
                     .dtype = PD_DTYPE_U8,
                     .axis = PD_AXIS_RAGGED,
                     .pad_mask = PD_TENSOR_NONE},
    [MEDIA_ACTION] = {.name = "action",
                      .dtype = PD_DTYPE_F32,
                      .axis = PD_AXIS_SAMPLE,
                      .rank = 2,
                      .dims = {4, 2},
                      .is_loss = 1,
                      .pad_mask = MEDIA_IS_PAD},
    [MEDIA_IS_PAD] = {.name = "action_is_pad",
                      .dtype = PD_DTYPE_BOOL,
                      .axis = PD_AXIS_SAMPLE,
                      .rank = 1,
                      .dims = {4},
                      .pad_mask = PD_TENSOR_NONE},
};

uint8_t media_byte(uint32_t tensor, const struct media_element *element, uint64_t i)
{
    if (tensor == MEDIA_IS_PAD)
        return i >= element->seed % 5u;
    return (uint8_t)(element->seed + i);
}

/* ---- samples ---- */

static void add_element(struct media_case *c, struct media_sample *s, uint32_t tensor,
                        int32_t token, int32_t span, int32_t frame)
{
    uint32_t n = s->counts[tensor]++;
    PD_CHECK(n < MEDIA_ELEMENTS_MAX);
    s->elements[tensor][n] =
        (struct media_element){token, span, frame, (uint8_t)media_below(c, 256)};
}

static void add_span_elements(struct media_case *c, struct media_sample *s, uint32_t i)
{
    const struct pd_span *span = &s->spans[i];
    uint32_t frames = span->grid_t > 0 ? span->grid_t : 1;
    for (uint32_t p = 0; p < span->patches; p++)
        add_element(c, s, MEDIA_PIXELS, -1, (int32_t)i, (int32_t)(p / (span->patches / frames)));
    if (span->view != 1)
        add_element(c, s, MEDIA_BOX, -1, (int32_t)i, -1);
    s->of_spans[i] = span->view == 1 ? media_below(c, 20) : 0;
    for (uint32_t k = 0; k < s->of_spans[i]; k++)
        add_element(c, s, MEDIA_JPEG, -1, (int32_t)i, -1);
}

static void add_span(struct media_case *c, struct media_sample *s)
{
    uint32_t side = 1 + media_below(c, 2), t = media_below(c, 3) ? 1 : 1 + media_below(c, 5);
    uint32_t h = side * (1 + media_below(c, 4)), w = side * (1 + media_below(c, 4));
    struct pd_span *span = &s->spans[s->span_count++];
    *span = (struct pd_span){.offset_tokens = s->length,
                             .view = media_below(c, VIEWS),
                             .patches = t * h * w,
                             .length_tokens = t * h * w / (side * side),
                             .grid_t = t,
                             .grid_h = h,
                             .grid_w = w,
                             .merge = side * side,
                             .t_scale = 0.5 * (1 + media_below(c, 6))};
    if (media_below(c, 6) == 0) { /* state tokens: no patches, no grid */
        span->grid_t = span->grid_h = span->grid_w = span->patches = span->merge = 0;
        span->t_scale = 1;
    }
    s->length += span->length_tokens;
}

static void make_sample(struct media_case *c, uint32_t number)
{
    struct media_sample *s = &c->samples[number];
    uint32_t spans = media_below(c, 3) ? media_below(c, MEDIA_SPANS_MAX) : 0;
    s->length = media_below(c, 3) ? media_below(c, 12) : 0;
    for (uint32_t i = 0; i < spans && s->length + 100 < MEDIA_TOKENS_MAX; i++) {
        add_span(c, s);
        s->length += media_below(c, 3) ? media_below(c, 9) : 0;
    }
    s->length += s->length == 0;
    for (uint32_t i = 0; i < s->length; i++)
        s->tokens[i] = (int32_t)media_below(c, 1u << 30);
    s->run_count = media_below(c, 2) ? 1 + media_below(c, 7) : 0;
    for (uint32_t i = 0, left = s->length; i < s->run_count; i++, left -= s->runs[i - 1])
        s->runs[i] = media_below(c, left / 2 + 2) % (left + 1);
    s->has_tensors = media_below(c, 4) > 0;
    for (uint32_t t = 0; t < MEDIA_TENSORS; t++) {
        s->elements[t] = calloc(MEDIA_ELEMENTS_MAX, sizeof **s->elements);
        PD_CHECK(s->elements[t]);
    }
    for (uint32_t i = 0; i < s->length; i++) {
        add_element(c, s, MEDIA_REWARD, (int32_t)i, -1, -1);
        add_element(c, s, MEDIA_LOGP, (int32_t)i, -1, -1);
    }
    for (uint32_t i = 0; i < s->span_count; i++)
        add_span_elements(c, s, i);
    for (uint32_t i = media_below(c, 9); i > 0; i--)
        add_element(c, s, MEDIA_NOTES, -1, -1, -1);
    add_element(c, s, MEDIA_ACTION, -1, -1, -1);
    add_element(c, s, MEDIA_IS_PAD, -1, -1, -1);
    s->head = (struct pd_head){.block = 1 + number,
                               .seq = number,
                               .source = 1 + media_below(c, 2),
                               .length_tokens = s->length,
                               .weight = 0.25f * (float)media_below(c, 9),
                               .spans = s->span_count ? s->spans : NULL,
                               .span_count = s->span_count,
                               .loss = {s->run_count ? s->runs : NULL, s->run_count}};
    for (uint32_t i = 0; i < s->span_count; i++)
        s->head.patches += s->spans[i].patches;
    s->head.payload_bytes = 4 * s->length + 3 * s->head.patches;
}

/* ---- plan ---- */

static int read_heads(void *ctx, uint32_t lane, struct pd_cursor at, const struct pd_head **heads)
{
    struct media_case *c = ctx;
    (void)lane;
    uint64_t from = at.block > 0 ? at.block - 1 + (at.index > 0) : 0;
    *heads = &c->heads[from < MEDIA_SAMPLES ? from : 0];
    return from < MEDIA_SAMPLES ? (int)(MEDIA_SAMPLES - from) : 0;
}

static void random_rules(struct media_case *c)
{
    uint32_t align = 1 + media_below(c, 3);
    c->rules = (struct pd_rules){.seq_len = align * (10 + media_below(c, 120)),
                                 .window_samples = 1 + media_below(c, 12),
                                 .window_bytes = 1 << 20,
                                 .order = media_below(c, 4) ? PD_ORDER_ARRIVAL : PD_ORDER_SHUFFLE,
                                 .shuffle_samples = 8,
                                 .shuffle_bytes = 1 << 20,
                                 .over_length = (enum pd_over_length)media_below(c, 4),
                                 .seg_align = align,
                                 .segments_max = media_below(c, 3) ? 0 : 2,
                                 .patches_max = media_below(c, 2) ? 0 : 40 + media_below(c, 200),
                                 .lane_count = 1,
                                 .lanes = {{.weight = 1}}};
    for (uint32_t source = 1; source <= 2; source++)
        if (media_below(c, 3))
            c->rules.prunes[c->rules.prune_count++] =
                (struct pd_prune_rule){source, {media_below(c, 1 << VIEWS), media_below(c, 4)}};
    c->layout = (struct pd_layout_rules){
        .seq_len = c->rules.seq_len,
        .seg_align = align,
        .total_align = align,
        .pad_segment = align + media_below(c, 20),
        .pad_id = -5,
        .labels = media_below(c, 2) ? PD_LABELS_SHIFTED : PD_LABELS_UNSHIFTED,
        .loss = media_below(c, 2) ? PD_LOSS_SAMPLE : PD_LOSS_TOKEN,
        .cost = {0, 1},
        .width = media_below(c, 2) ? PD_WIDTH_BATCH : PD_WIDTH_FIXED,
        .positions = media_below(c, 3) ? PD_POSITIONS_MROPE : PD_POSITIONS_1D,
        .vision_window = media_below(c, 2) ? 1 + media_below(c, 3) : 0};
}

/* The same planner from its own bytes. */
static void save_and_restore(struct pd_planner **planner)
{
    struct pd_buf buf = {0};
    struct pd_error error;
    PD_CHECK(pd_planner_save(*planner, &buf) == 0);
    pd_planner_free(*planner);
    PD_CHECK(pd_planner_restore(buf.data, buf.size_bytes, planner, &error) == 0);
    pd_buf_fini(&buf);
}

void media_plan(struct media_case *c, bool restore)
{
    struct pd_planner *planner;
    struct pd_supply supply = {c, read_heads};
    struct pd_want want;
    struct pd_error error;
    PD_CHECK(pd_planner_new(&c->rules, &planner, &error) == 0);
    PD_CHECK(pd_planner_control(planner, &(struct pd_control){.kind = PD_CONTROL_END_FEED,
                                                              .at = MEDIA_SAMPLES + 1}) == 0);
    c->pack_count = 0;
    for (int rc = 0; rc != PD_EEND; c->pack_count++) {
        PD_CHECK(c->pack_count < MEDIA_PACKS_MAX);
        if (restore)
            save_and_restore(&planner);
        rc = pd_planner_next(planner, &supply, &c->packs[c->pack_count], &want);
        PD_CHECK(rc == 0 || rc == PD_EEND);
    }
    c->pack_count--;
    pd_planner_stats(planner, &c->stats);
    c->prune_stats = *pd_planner_prune_stats(planner);
    pd_planner_free(planner);
}

struct media_case *media_case_new(uint64_t seed)
{
    struct media_case *c = calloc(1, sizeof *c);
    PD_CHECK(c);
    c->random = seed;
    random_rules(c);
    for (uint32_t i = 0; i < MEDIA_SAMPLES; i++)
        make_sample(c, i);
    for (uint32_t i = 0; i < MEDIA_SAMPLES; i++)
        c->heads[i] = c->samples[i].head;
    memcpy(c->specs, specs, sizeof specs);
    for (uint32_t t = 0; t < MEDIA_TENSORS; t++)
        c->specs[t].number = t;
    c->media = (struct pd_media){true, MEDIA_TENSORS, c->specs};
    media_plan(c, false);
    return c;
}

void media_case_free(struct media_case *c)
{
    for (uint32_t i = 0; i < MEDIA_SAMPLES; i++)
        for (uint32_t t = 0; t < MEDIA_TENSORS; t++)
            free(c->samples[i].elements[t]);
    for (uint32_t i = 0; i < MEDIA_PACKS_MAX; i++)
        pd_pack_fini(&c->packs[i]);
    pd_slice_fini(&c->slice);
    free(c->payload);
    free(c);
}

/* ---- token by token ---- */

bool media_kept(const struct media_sample *sample, struct pd_prune rule, uint32_t token)
{
    for (uint32_t i = 0; i < sample->span_count; i++) {
        const struct pd_span *span = &sample->spans[i];
        if (token < span->offset_tokens || token >= span->offset_tokens + span->length_tokens)
            continue;
        if (rule.drop_views >> span->view & 1)
            return false;
        if (rule.keep_frames < 2 || span->grid_t < 2)
            return true;
        uint32_t frame_tokens = span->length_tokens / span->grid_t;
        return (token - span->offset_tokens) / frame_tokens % rule.keep_frames == 0;
    }
    return true;
}

uint32_t media_tokens(const struct media_case *c, const struct pd_segment *segment, uint32_t *out)
{
    const struct media_sample *s = &c->samples[segment->seq];
    uint32_t count = 0, number = 0;
    for (uint32_t token = 0; token < s->length; token++) {
        if (!media_kept(s, segment->prune, token))
            continue;
        if (number >= segment->offset_tokens &&
            number < segment->offset_tokens + segment->length_tokens)
            out[count++] = token;
        number++;
    }
    return count;
}

/* Tokens of a span's frame (-1: of all that are left) among those of the segment. */
static uint32_t tokens_of(const struct media_sample *s, const struct media_element *e,
                          struct pd_prune rule, const uint32_t *tokens, uint32_t count,
                          uint32_t *wanted)
{
    const struct pd_span *span = &s->spans[e->span];
    uint32_t frames = span->grid_t > 0 ? span->grid_t : 1, found = 0;
    uint32_t frame_tokens = span->length_tokens / frames;
    *wanted = 0;
    for (uint32_t i = 0; i < span->length_tokens; i++) {
        uint32_t token = span->offset_tokens + i;
        if (!media_kept(s, rule, token) ||
            (e->frame >= 0 && i / frame_tokens != (uint32_t)e->frame))
            continue;
        (*wanted)++;
        for (uint32_t k = 0; k < count; k++)
            found += tokens[k] == token;
    }
    return found;
}

uint32_t media_elements(const struct media_case *c, const struct pd_segment *segment,
                        uint32_t tensor, const struct media_element **out)
{
    const struct media_sample *s = &c->samples[segment->seq];
    uint32_t tokens[MEDIA_TOKENS_MAX], count = media_tokens(c, segment, tokens), number = 0;
    for (uint32_t i = 0; s->has_tensors && i < s->counts[tensor]; i++) {
        const struct media_element *e = &s->elements[tensor][i];
        bool in = e->token < 0 && e->span < 0 && segment->part == 0;
        for (uint32_t k = 0; e->token >= 0 && k < count; k++)
            in = in || tokens[k] == (uint32_t)e->token;
        if (e->span >= 0) {
            uint32_t wanted, found = tokens_of(s, e, segment->prune, tokens, count, &wanted);
            PD_CHECK(found == 0 || found == wanted); /* a span is never split */
            in = found > 0;
        }
        if (in)
            out[number++] = e;
    }
    return number;
}

/* ---- bodies, as the log gives them ---- */

static int open_slice(struct media_case *c, const struct pd_segment *segment)
{
    return pd_slice_make(&c->samples[segment->seq].head, segment, &c->slice);
}

static int give_tokens(void *ctx, const struct pd_segment *segment, int32_t *dst)
{
    struct media_case *c = ctx;
    int rc = open_slice(c, segment);
    for (uint32_t i = 0; rc == 0 && i < c->slice.token_run_count; i++) {
        const struct pd_token_run *run = &c->slice.tokens[i];
        memcpy(dst, c->samples[segment->seq].tokens + run->from, run->count * sizeof *dst);
        dst += run->count;
    }
    return rc;
}

static int give_loss(void *ctx, const struct pd_segment *segment, struct pd_loss_runs *runs)
{
    struct media_case *c = ctx;
    int rc = open_slice(c, segment);
    *runs = c->slice.loss;
    return rc;
}

static int give_spans(void *ctx, const struct pd_segment *segment, const struct pd_span **spans,
                      uint32_t *count)
{
    struct media_case *c = ctx;
    int rc = open_slice(c, segment);
    *spans = c->slice.spans;
    *count = c->slice.span_count;
    return rc;
}

static int give_elements(void *ctx, const struct pd_segment *segment,
                         const struct pd_tensor_spec *spec, uint64_t *count, bool *has)
{
    struct media_case *c = ctx;
    const struct media_sample *s = &c->samples[segment->seq];
    int rc = open_slice(c, segment);
    *has = s->has_tensors;
    *count = 0;
    if (rc != 0 || !*has)
        return rc;
    struct pd_pushed_elements pushed = {s->counts[spec->number], s->of_spans};
    return pd_slice_elements(&c->slice, spec, pushed, count);
}

static int give_runs(void *ctx, const struct pd_segment *segment, const struct pd_tensor_spec *spec,
                     const uint32_t **elements, uint32_t *count)
{
    struct media_case *c = ctx;
    uint64_t all;
    bool has;
    int rc = give_elements(ctx, segment, spec, &all, &has);
    *elements = c->slice.span_elements;
    *count = has ? c->slice.span_element_count : 0;
    return rc;
}

/* Calls put for each element asked for. */
static int for_elements(struct media_case *c, const struct pd_segment *segment,
                        const struct pd_tensor_spec *spec, struct pd_elements which,
                        void (*put)(void *to, uint32_t tensor, const struct media_element *e),
                        void *to)
{
    uint64_t all, at = 0;
    bool has;
    int rc = give_elements(c, segment, spec, &all, &has);
    for (uint32_t i = 0; rc == 0 && i < c->slice.run_count; i++)
        for (uint64_t k = 0; k < c->slice.runs[i].count; k++, at++)
            if (at >= which.first && at < which.first + which.count)
                put(to, spec->number,
                    &c->samples[segment->seq].elements[spec->number][c->slice.runs[i].from + k]);
    return rc;
}

static void put_bytes(void *to, uint32_t tensor, const struct media_element *e)
{
    uint8_t **at = to;
    for (uint64_t i = 0; i < pd_tensor_element_bytes(&specs[tensor]); i++)
        *(*at)++ = media_byte(tensor, e, i);
}

static void put_zeros(void *to, uint32_t tensor, const struct media_element *e)
{
    for (uint64_t i = 0; i < pd_tensor_element_bytes(&specs[tensor]); i++)
        *(uint64_t *)to += media_byte(tensor, e, i) == 0;
}

static int give_tensor(void *ctx, const struct pd_segment *segment,
                       const struct pd_tensor_spec *spec, struct pd_elements which, void *dst)
{
    uint8_t *at = dst;
    return for_elements(ctx, segment, spec, which, put_bytes, &at);
}

static int give_zeros(void *ctx, const struct pd_segment *segment,
                      const struct pd_tensor_spec *spec, struct pd_elements which, uint64_t *count)
{
    *count = 0;
    return for_elements(ctx, segment, spec, which, put_zeros, count);
}

struct pd_bodies media_bodies(struct media_case *c)
{
    return (struct pd_bodies){.ctx = c,
                              .tokens = give_tokens,
                              .loss = give_loss,
                              .spans = give_spans,
                              .elements = give_elements,
                              .runs = give_runs,
                              .tensor = give_tensor,
                              .zeros = give_zeros};
}

static int give_head(void *ctx, const struct pd_segment *segment, const struct pd_head **head)
{
    *head = &((struct media_case *)ctx)->samples[segment->seq].head;
    return 0;
}

static int give_pushed(void *ctx, const struct pd_segment *segment,
                       const struct pd_tensor_spec *spec, uint64_t *count, bool *has)
{
    const struct media_sample *s = &((struct media_case *)ctx)->samples[segment->seq];
    *has = s->has_tensors;
    *count = *has ? s->counts[spec->number] : 0;
    return 0;
}

static int give_pushed_of_span(void *ctx, const struct pd_segment *segment,
                               const struct pd_tensor_spec *spec, uint32_t span, uint64_t *count)
{
    (void)spec;
    *count = ((struct media_case *)ctx)->samples[segment->seq].of_spans[span];
    return 0;
}

struct pd_check_heads media_heads(struct media_case *c)
{
    return (struct pd_check_heads){c, give_head, give_pushed, give_pushed_of_span};
}

int media_build(struct media_case *c, uint32_t first, uint32_t rows, struct pd_error *error)
{
    struct pd_bodies bodies = media_bodies(c);
    uint32_t widest = 0;
    c->row_count = rows;
    for (uint32_t r = 0; r < rows; r++) {
        c->rows[r] = first + r < c->pack_count ? &c->packs[first + r] : NULL;
        if (c->rows[r] && c->rows[r]->used_slots > widest)
            widest = c->rows[r]->used_slots;
    }
    struct pd_layout_input input = {.rules = &c->layout,
                                    .rows = c->rows,
                                    .row_count = rows,
                                    .width = pd_layout_width(&c->layout, widest),
                                    .media = &c->media,
                                    .bodies = &bodies};
    int rc = pd_layout_measure(&input, &c->batch, error);
    if (rc != 0)
        return rc;
    free(c->payload);
    c->payload = aligned_alloc(PD_ARRAY_ALIGN, c->batch.payload_bytes);
    PD_CHECK(c->payload);
    memset(c->payload, 0xA5, c->batch.payload_bytes);
    rc = pd_layout_fill(&input, &c->batch, c->payload);
    if (rc == 0)
        pd_batch_digest(&c->batch, c->payload);
    return rc;
}

int media_check(struct media_case *c, bool with_plan, struct pd_check_finding *finding)
{
    struct pd_check_heads heads = media_heads(c);
    struct pd_check_input input = {.rules = &c->layout,
                                   .batch = &c->batch,
                                   .payload = c->payload,
                                   .rows = with_plan ? c->rows : NULL,
                                   .media = with_plan ? &c->media : NULL,
                                   .heads = with_plan ? &heads : NULL};
    return pd_check_batch(&input, finding);
}
