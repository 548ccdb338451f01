/* The cases of layout_case.h. Everything about a sample is kept token by token, so that nothing
 * here repeats the layout's arithmetic on runs. */
#include "tests/unit/layout_case.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

struct layout_case *case_new(void)
{
    struct layout_case *c = calloc(1, sizeof *c);
    PD_CHECK(c);
    c->rules = (struct pd_layout_rules){
        .seq_len = 8, .seg_align = 1, .total_align = 1, .pad_segment = 1024, .cost = {2, 1}};
    return c;
}

void case_free(struct layout_case *c)
{
    for (uint32_t i = 0; i < c->sample_count; i++) {
        free(c->samples[i].tokens);
        free(c->samples[i].labels);
        free(c->samples[i].on);
        free(c->samples[i].runs);
    }
    for (uint32_t r = 0; r < CASE_ROWS_MAX; r++)
        pd_pack_fini(&c->packs[r]);
    free(c->payload);
    free(c);
}

static void *copy_of(const void *data, size_t size)
{
    void *copy = malloc(size > 0 ? size : 1);
    PD_CHECK(copy);
    if (size > 0)
        memcpy(copy, data, size);
    return copy;
}

uint32_t case_sample(struct layout_case *c, uint32_t length, int32_t first, float weight,
                     const int32_t *labels, const uint32_t *runs, uint32_t run_count)
{
    PD_CHECK(c->sample_count < CASE_SAMPLES_MAX);
    struct case_sample *s = &c->samples[c->sample_count];
    *s = (struct case_sample){.length = length, .weight = weight, .run_count = run_count};
    s->tokens = calloc(length, sizeof *s->tokens);
    s->on = calloc(length, sizeof *s->on);
    PD_CHECK(s->tokens && s->on);
    for (uint32_t i = 0; i < length; i++) {
        s->tokens[i] = first + (int32_t)i;
        s->on[i] = run_count == 0;
    }
    for (uint32_t i = 0, at = 0; i < run_count; i++)
        for (uint32_t k = 0; k < runs[i]; k++, at++)
            if (at < length)
                s->on[at] = i % 2 == 1;
    s->has_labels = labels != NULL;
    s->labels = labels ? copy_of(labels, length * sizeof *labels) : NULL;
    s->runs = copy_of(runs, run_count * sizeof *runs);
    return c->sample_count++;
}

static uint32_t targets_in(const struct case_sample *s, uint32_t offset, uint32_t length)
{
    uint32_t count = 0;
    for (uint32_t i = 1; i < length; i++)
        count += s->on[offset + i];
    return count;
}

void case_put(struct layout_case *c, uint32_t row, uint32_t sample, uint32_t offset,
              uint32_t length, uint32_t part, uint32_t part_count)
{
    const struct case_sample *s = &c->samples[sample];
    uint32_t slot = length;
    while (slot % c->rules.seg_align != 0)
        slot++;
    struct pd_segment segment = {
        .seq = sample,
        .part = part,
        .part_count = part_count,
        .offset_tokens = offset,
        .overlap_tokens = part > 0,
        .length_tokens = length,
        .slot_tokens = slot,
        .sample_tokens = s->length,
        .loss_tokens = targets_in(s, offset, length),
        .sample_loss_tokens = targets_in(s, 0, s->length),
        .patches = sample % 3,
        .weight = s->weight,
    };
    uint32_t used = c->packs[row].used_slots;
    PD_CHECK(pd_pack_push(&c->packs[row], &segment) == 0);
    c->packs[row].used_slots = used + slot;
    c->packs[row].number = row;
    c->rows[row] = &c->packs[row];
    if (row >= c->row_count)
        c->row_count = row + 1;
}

/* A sample of random tokens, with or without labels and runs. */
static uint32_t random_sample(struct layout_case *c, uint64_t *state, uint32_t length)
{
    static const float weights[] = {1, 1, 1, 0.5f, 0, 3.25f, 1e-30f, 0.1f};
    uint32_t runs[12], run_count = 0;
    if (test_below(state, 2) == 0) {
        run_count = 1 + test_below(state, 12);
        for (uint32_t i = 0; i < run_count; i++)
            runs[i] = test_below(state, length / 3 + 2);
    }
    uint32_t index =
        case_sample(c, length, 0, weights[test_below(state, 8)], NULL, runs, run_count);
    struct case_sample *s = &c->samples[index];
    for (uint32_t i = 0; i < length; i++)
        s->tokens[i] = (int32_t)test_below(state, 50000);
    if (test_below(state, 3) == 0) {
        s->has_labels = true;
        s->labels = calloc(length, sizeof *s->labels);
        PD_CHECK(s->labels);
        for (uint32_t i = 0; i < length; i++)
            s->labels[i] = s->on[i] ? (int32_t)test_below(state, 50000) : PD_LABEL_NONE;
    }
    return index;
}

/* One segment of at most `room` positions: a whole sample, a cut one, or a later part of a split
 * one. */
static void random_segment(struct layout_case *c, uint64_t *state, uint32_t row, uint32_t room)
{
    uint32_t length = 1 + test_below(state, test_below(state, 3) == 0 ? room : room / 4 + 1);
    uint32_t before = test_below(state, 4) == 0 ? test_below(state, 20) : 0;
    uint32_t behind = test_below(state, 4) == 0 ? test_below(state, 20) : 0;
    uint32_t sample = random_sample(c, state, before + length + behind);
    bool split = (before > 0 || behind > 0) && test_below(state, 2) == 0;
    case_put(c, row, sample, before, length, split && before > 0, split ? 2 : 1);
}

static void random_row(struct layout_case *c, uint64_t *state, uint32_t row)
{
    uint32_t kind = test_below(state, 8), width = c->rules.seq_len;
    c->row_count = row + 1;
    c->rows[row] = kind == 0 ? NULL : &c->packs[row]; /* kind 1: a pack without segments */
    if (kind <= 1)
        return;
    uint32_t stop = kind == 2 ? width : test_below(state, width + 1);
    do {
        random_segment(c, state, row, width - c->packs[row].used_slots);
    } while (c->packs[row].used_slots < stop);
}

static void random_rules(struct pd_layout_rules *rules, uint64_t *state)
{
    static const uint32_t aligns[] = {1, 1, 1, 2, 3, 8};
    memset(rules, 0, sizeof *rules);
    rules->seg_align = aligns[test_below(state, 6)];
    rules->total_align = rules->seg_align * (1 + test_below(state, 3));
    rules->seq_len =
        rules->total_align * (1 + test_below(state, test_below(state, 6) == 0 ? 200 : 20));
    rules->pad_segment = rules->seg_align + test_below(state, 40);
    rules->pad_id = (int32_t)test_below(state, 3);
    rules->labels = test_below(state, 2) ? PD_LABELS_SHIFTED : PD_LABELS_UNSHIFTED;
    rules->loss = test_below(state, 2) ? PD_LOSS_SAMPLE : PD_LOSS_TOKEN;
    rules->cost = (struct pd_cost){test_below(state, 30000), test_below(state, 4)};
    rules->width = (enum pd_width)test_below(state, 3);
    if (test_below(state, 3) == 0) {
        uint32_t width = 0;
        while (rules->width_count < 4) {
            width += rules->total_align * (1 + test_below(state, 8));
            if (width > rules->seq_len)
                break;
            rules->widths[rules->width_count++] = width;
        }
    }
}

void case_randomise(struct layout_case *c, uint64_t *state)
{
    random_rules(&c->rules, state);
    uint32_t rows = 1 + test_below(state, 5);
    for (uint32_t row = 0; row < rows; row++)
        random_row(c, state, row);
    if (test_below(state, 4) == 0)
        c->rules.fixed_segments = rows * c->rules.seq_len + test_below(state, 10);
    if (c->rules.width == PD_WIDTH_STEP && test_below(state, 2) == 0)
        c->width =
            pd_layout_width(&c->rules, c->rules.seq_len); /* another batch of the step is wider */
}

void case_make_plain(struct layout_case *c)
{
    for (uint32_t i = 0; i < c->sample_count; i++) {
        struct case_sample *s = &c->samples[i];
        s->run_count = 0;
        s->has_labels = false;
        for (uint32_t k = 0; k < s->length; k++)
            s->on[k] = true;
    }
    for (uint32_t r = 0; r < c->row_count; r++) {
        for (uint32_t k = 0; k < c->packs[r].segment_count; k++) {
            struct pd_segment *segment = &c->packs[r].segments[k];
            segment->loss_tokens = segment->length_tokens - 1;
            segment->sample_loss_tokens = segment->sample_tokens - 1;
        }
    }
}

static int give_tokens(void *ctx, const struct pd_segment *segment, int32_t *dst)
{
    const struct layout_case *c = ctx;
    memcpy(dst, c->samples[segment->seq].tokens + segment->offset_tokens,
           segment->length_tokens * sizeof *dst);
    return c->body_error;
}

static int give_labels(void *ctx, const struct pd_segment *segment, int32_t *dst, bool *has)
{
    const struct layout_case *c = ctx;
    const struct case_sample *s = &c->samples[segment->seq];
    *has = s->has_labels;
    if (s->has_labels)
        memcpy(dst, s->labels + segment->offset_tokens, segment->length_tokens * sizeof *dst);
    return 0;
}

static int give_loss(void *ctx, const struct pd_segment *segment, struct pd_loss_runs *runs)
{
    const struct case_sample *s = &((struct layout_case *)ctx)->samples[segment->seq];
    *runs = (struct pd_loss_runs){s->run_count > 0 ? s->runs : NULL, s->run_count};
    return 0;
}

struct pd_bodies case_bodies(struct layout_case *c)
{
    return (struct pd_bodies){
        .ctx = c, .tokens = give_tokens, .labels = give_labels, .loss = give_loss};
}

int case_build(struct layout_case *c, struct pd_error *error)
{
    uint32_t widest = 0;
    for (uint32_t r = 0; r < c->row_count; r++)
        if (c->packs[r].used_slots > widest)
            widest = c->packs[r].used_slots;
    uint32_t width = c->width > 0 ? c->width : pd_layout_width(&c->rules, widest);
    struct pd_bodies bodies = case_bodies(c);
    struct pd_layout_input input = case_input(c, &bodies);
    input.width = width;
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

struct pd_layout_input case_input(const struct layout_case *c, const struct pd_bodies *bodies)
{
    return (struct pd_layout_input){.rules = &c->rules,
                                    .rows = c->rows,
                                    .row_count = c->row_count,
                                    .width = c->batch.width,
                                    .bodies = bodies};
}

void *case_array(const struct layout_case *c, const char *name)
{
    const struct pd_array *array = pd_batch_find(&c->batch, name);
    PD_CHECK(array);
    return (uint8_t *)c->payload + array->offset_bytes;
}
