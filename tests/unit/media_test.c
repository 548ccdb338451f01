/* Images and tensors from plan to batch: what pruning, cutting, slicing and laying out make of
 * random samples, against a model that looks at every token and every element by itself.
 *
 * The property above all: a span is never split, and never separated from its patches, whatever the
 * policy, the rule and the caps (media_elements fails where one is). */
#include "tests/unit/media_case.h"

#include "base/check.h"
#include "tests/unit/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CASES 150

static uint64_t seed_now;

#define EXPECT(what)                                                                           \
    do {                                                                                       \
        if (!(what))                                                                           \
            fail_msg("seed %llu, line %d: %s", (unsigned long long)seed_now, __LINE__, #what); \
    } while (0)

static const void *array_of(const struct media_case *c, const char *name)
{
    const struct pd_array *array = pd_batch_find(&c->batch, name);
    EXPECT(array);
    return c->payload + array->offset_bytes;
}

/* Every segment of the batch with its first position. */
struct at {
    const struct pd_segment *segment;
    uint64_t position, number;
};

static uint32_t list_segments(const struct media_case *c, struct at *out)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < c->row_count; r++) {
        uint64_t at = (uint64_t)r * c->batch.width;
        for (uint32_t i = 0; c->rows[r] && i < c->rows[r]->segment_count; i++) {
            out[count] = (struct at){&c->rows[r]->segments[i], at, count};
            at += c->rows[r]->segments[i].slot_tokens;
            count++;
        }
    }
    return count;
}

/* ---- the plan against the samples ---- */

static bool is_target(const struct media_sample *s, uint32_t token)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < s->run_count; i++) {
        end += s->runs[i];
        if (token < end)
            return i % 2 == 1;
    }
    return s->run_count == 0;
}

static void check_segment_counts(const struct media_case *c, const struct pd_segment *segment)
{
    const struct media_sample *s = &c->samples[segment->seq];
    const struct media_element *elements[MEDIA_ELEMENTS_MAX];
    uint32_t tokens[MEDIA_TOKENS_MAX], count = media_tokens(c, segment, tokens), targets = 0;
    EXPECT(count == segment->length_tokens);
    for (uint32_t i = 1; i < count; i++)
        targets += is_target(s, tokens[i]);
    EXPECT(targets == segment->loss_tokens);
    EXPECT(!c->rules.patches_max || segment->patches <= c->rules.patches_max);
    if (s->has_tensors)
        EXPECT(media_elements(c, segment, MEDIA_PIXELS, elements) == segment->patches);
}

static void test_plans(void **state)
{
    (void)state;
    uint64_t from = test_seed(1);
    for (seed_now = from; seed_now < from + CASES; seed_now++) {
        struct media_case *c = media_case_new(seed_now);
        uint32_t covered[MEDIA_SAMPLES] = {0};
        for (uint32_t p = 0; p < c->pack_count; p++) {
            uint64_t patches = 0;
            for (uint32_t i = 0; i < c->packs[p].segment_count; i++) {
                const struct pd_segment *segment = &c->packs[p].segments[i];
                check_segment_counts(c, segment);
                patches += segment->patches;
                covered[segment->seq] += segment->length_tokens - segment->overlap_tokens;
            }
            EXPECT(!c->rules.patches_max || patches <= c->rules.patches_max);
        }
        uint64_t kept = 0, lost = 0;
        for (uint32_t i = 0; i < MEDIA_SAMPLES; i++) {
            struct pd_prune rule = {0};
            for (uint32_t k = 0; k < c->rules.prune_count; k++)
                if (c->rules.prunes[k].source == c->samples[i].head.source)
                    rule = c->rules.prunes[k].prune;
            uint32_t left = 0;
            for (uint32_t t = 0; t < c->samples[i].length; t++)
                left += media_kept(&c->samples[i], rule, t);
            kept += left;
            lost += c->samples[i].length - left;
            EXPECT(covered[i] <= left);
            if (c->rules.over_length == PD_OVER_SPLIT)
                EXPECT(covered[i] == left || covered[i] == 0);
        }
        EXPECT(c->prune_stats.tokens == lost);
        uint64_t by_view = 0;
        unsigned __int128 spared = 0;
        for (uint32_t v = 0; v < PD_VIEWS_MAX; v++) {
            by_view += c->prune_stats.views[v].tokens;
            spared += c->prune_stats.views[v].spared.pairs;
        }
        EXPECT(by_view == lost);
        EXPECT(spared == c->prune_stats.before.pairs - c->prune_stats.after.pairs);
        media_case_free(c);
    }
}

static void encode_packs(const struct media_case *c, struct pd_buf *buf)
{
    for (uint32_t i = 0; i < c->pack_count; i++)
        pd_pack_encode(&c->packs[i], buf);
    assert_false(buf->failed);
}

/* Rules, counts and the sample that is being split survive a snapshot; packs survive their
 * encoding. */
static void test_snapshots(void **state)
{
    (void)state;
    uint64_t from = test_seed(1);
    for (seed_now = from; seed_now < from + CASES; seed_now++) {
        struct media_case *c = media_case_new(seed_now);
        struct pd_buf once = {0}, again = {0}, pack = {0};
        struct pd_prune_stats stats = c->prune_stats;
        encode_packs(c, &once);
        media_plan(c, true);
        encode_packs(c, &again);
        EXPECT(once.size_bytes == again.size_bytes &&
               memcmp(once.data, again.data, once.size_bytes) == 0);
        EXPECT(stats.tokens == c->prune_stats.tokens && stats.samples == c->prune_stats.samples &&
               stats.before.pairs == c->prune_stats.before.pairs &&
               stats.seen_views == c->prune_stats.seen_views);
        struct pd_pack decoded = {0};
        pd_pack_encode(&c->packs[0], &pack);
        EXPECT(pd_pack_decode(&decoded, pack.data, pack.size_bytes) == 0);
        for (uint32_t i = 0; i < decoded.segment_count; i++)
            EXPECT(
                decoded.segments[i].prune.drop_views == c->packs[0].segments[i].prune.drop_views &&
                decoded.segments[i].prune.keep_frames == c->packs[0].segments[i].prune.keep_frames);
        pd_pack_fini(&decoded);
        pd_buf_fini(&once);
        pd_buf_fini(&again);
        pd_buf_fini(&pack);
        media_case_free(c);
    }
}

/* ---- the batch against the samples ---- */

static void expect_tokens(const struct media_case *c, const struct at *at)
{
    const struct media_sample *s = &c->samples[at->segment->seq];
    const int32_t *tokens = array_of(c, "tokens");
    uint32_t list[MEDIA_TOKENS_MAX], count = media_tokens(c, at->segment, list);
    for (uint32_t i = 0; i < count; i++)
        EXPECT(tokens[at->position + i] == s->tokens[list[i]]);
}

/* M-RoPE token by token: a token of a span knows its frame, row and column; all that matters of
 * what lies before is the largest position there. */
static void expect_mrope(const struct media_case *c, const struct at *at)
{
    const struct media_sample *s = &c->samples[at->segment->seq];
    const int32_t *positions = array_of(c, "positions");
    const uint64_t plane = (uint64_t)c->batch.rows * c->batch.width;
    uint32_t list[MEDIA_TOKENS_MAX], count = media_tokens(c, at->segment, list);
    int32_t max = -1, base = 0, inside = -1;
    for (uint32_t i = 0; i < count; i++) {
        int32_t found = -1, expected[3];
        for (uint32_t k = 0; k < s->span_count; k++)
            if (s->spans[k].grid_t > 0 && list[i] >= s->spans[k].offset_tokens &&
                list[i] < s->spans[k].offset_tokens + s->spans[k].length_tokens)
                found = (int32_t)k;
        if (found != inside || found < 0)
            base = max + 1;
        inside = found;
        expected[0] = expected[1] = expected[2] = base;
        if (found >= 0) {
            const struct pd_span *span = &s->spans[found];
            uint32_t side = span->merge == 4 ? 2 : 1, h = span->grid_h / side,
                     w = span->grid_w / side, local = list[i] - span->offset_tokens;
            bool thin = at->segment->prune.keep_frames > 1 && span->grid_t > 1;
            uint32_t step = thin ? at->segment->prune.keep_frames : 1;
            expected[0] += (int32_t)(local / (h * w) / step * (span->t_scale * step));
            expected[1] += (int32_t)(local / w % h);
            expected[2] += (int32_t)(local % w);
        }
        for (uint32_t k = 0; k < 3; k++) {
            EXPECT(positions[k * plane + at->position + i] == expected[k]);
            max = expected[k] > max ? expected[k] : max;
        }
    }
    for (uint32_t i = count; i < at->segment->slot_tokens; i++)
        for (uint32_t k = 0; k < 3; k++)
            EXPECT(positions[k * plane + at->position + i] == max + 1 + (int32_t)(i - count));
}

/* Ragged and sample tensors: the elements of all segments, one after the other. */
static void expect_rows(const struct media_case *c, uint32_t tensor, const struct at *list,
                        uint32_t segments)
{
    const struct pd_tensor_spec *spec = &c->specs[tensor];
    const uint8_t *data = array_of(c, spec->name);
    const struct media_element *elements[MEDIA_ELEMENTS_MAX];
    uint64_t item = pd_tensor_element_bytes(spec), at = 0;
    for (uint32_t n = 0; n < segments; n++) {
        uint32_t count = media_elements(c, list[n].segment, tensor, elements);
        for (uint32_t e = 0; e < count; e++, at++)
            for (uint64_t i = 0; i < item; i++)
                EXPECT(data[at * item + i] == media_byte(tensor, elements[e], i));
        bool lacking = spec->axis == PD_AXIS_SAMPLE && count == 0;
        for (uint64_t i = 0; lacking && i < item; i++)
            EXPECT(data[at * item + i] == (tensor == MEDIA_IS_PAD));
        at += lacking;
    }
    EXPECT(pd_batch_find(&c->batch, spec->name)->shape[0] == at);
}

static void expect_token_tensor(const struct media_case *c, uint32_t tensor, const struct at *at)
{
    const struct pd_tensor_spec *spec = &c->specs[tensor];
    const uint8_t *data = array_of(c, spec->name);
    const struct media_element *elements[MEDIA_ELEMENTS_MAX];
    uint64_t item = pd_tensor_element_bytes(spec);
    uint32_t count = media_elements(c, at->segment, tensor, elements);
    uint32_t shift = tensor == MEDIA_LOGP && c->layout.labels == PD_LABELS_SHIFTED;
    for (uint32_t p = 0; p < at->segment->slot_tokens; p++)
        for (uint64_t i = 0; i < item; i++) {
            uint8_t found = data[(at->position + p) * item + i];
            EXPECT(found == (p + shift < count ? media_byte(tensor, elements[p + shift], i)
                                               : spec->pad_value[i % 4]));
        }
}

static void expect_vision(const struct media_case *c, const struct at *list, uint32_t segments)
{
    const int32_t *cu = array_of(c, "vision_cu_seqlens");
    const int64_t *grid = array_of(c, "image_grid_thw");
    uint64_t image = 0, frame = 0;
    int64_t patches = 0;
    for (uint32_t n = 0; n < segments; n++) {
        const struct pd_segment *segment = list[n].segment;
        const struct media_sample *s = &c->samples[segment->seq];
        uint32_t tokens[MEDIA_TOKENS_MAX], count = media_tokens(c, segment, tokens);
        for (uint32_t k = 0; k < s->span_count; k++) {
            const struct pd_span *span = &s->spans[k];
            uint32_t left = 0;
            for (uint32_t i = 0; i < count; i++)
                left += tokens[i] >= span->offset_tokens &&
                        tokens[i] < span->offset_tokens + span->length_tokens;
            if (left == 0 || span->patches == 0)
                continue;
            uint32_t frames = left / (span->length_tokens / span->grid_t);
            EXPECT(grid[3 * image] == frames && grid[3 * image + 1] == span->grid_h &&
                   grid[3 * image + 2] == span->grid_w);
            image++;
            for (uint32_t i = 0; i < frames; i++) {
                patches += span->grid_h * span->grid_w;
                EXPECT(cu[++frame] == patches);
            }
        }
    }
    EXPECT(cu[0] == 0 && pd_batch_find(&c->batch, "vision_cu_seqlens")->shape[0] == frame + 1);
    EXPECT(pd_batch_find(&c->batch, "image_grid_thw")->shape[0] == image);
    EXPECT((uint64_t)patches == c->batch.totals.patches);
}

/* Valid steps of the action chunks, and that what is padding weighs nothing. */
static void expect_losses(const struct media_case *c, const struct at *list, uint32_t segments)
{
    const float *weights = array_of(c, "action_loss_weight");
    const struct media_element *elements[MEDIA_ELEMENTS_MAX];
    uint64_t valid_all = 0;
    double weight_all = 0;
    for (uint32_t n = 0; n < segments; n++) {
        uint32_t count = media_elements(c, list[n].segment, MEDIA_IS_PAD, elements), valid = 0;
        for (uint32_t i = 0; count > 0 && i < 4; i++)
            valid += media_byte(MEDIA_IS_PAD, elements[0], i) == 0;
        float weight = list[n].segment->weight;
        if (c->layout.loss == PD_LOSS_SAMPLE)
            weight = valid ? (float)((double)weight / valid) : 0;
        for (uint32_t i = 0; i < 4; i++) {
            bool counts = count > 0 && media_byte(MEDIA_IS_PAD, elements[0], i) == 0;
            EXPECT(weights[4 * n + i] == (counts ? weight : 0));
        }
        valid_all += valid;
        weight_all += (double)weight * valid;
    }
    EXPECT(c->batch.loss_count == 2 && c->batch.losses[1].number == MEDIA_ACTION);
    EXPECT(c->batch.losses[1].count == valid_all && c->batch.losses[1].weight == weight_all);
}

static void build(struct media_case *c, uint32_t first, uint32_t rows)
{
    struct pd_error error = {0};
    if (media_build(c, first, rows, &error) != 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed_now, error.text);
}

static void expect_batch(struct media_case *c)
{
    static struct at list[4 * 1024];
    struct pd_check_finding finding;
    uint32_t segments = list_segments(c, list);
    for (uint32_t n = 0; n < segments; n++) {
        expect_tokens(c, &list[n]);
        expect_token_tensor(c, MEDIA_REWARD, &list[n]);
        expect_token_tensor(c, MEDIA_LOGP, &list[n]);
        if (c->layout.positions == PD_POSITIONS_MROPE)
            expect_mrope(c, &list[n]);
    }
    for (uint32_t t = MEDIA_PIXELS; t < MEDIA_TENSORS; t++)
        expect_rows(c, t, list, segments);
    expect_vision(c, list, segments);
    expect_losses(c, list, segments);
    for (int with_plan = 0; with_plan < 2; with_plan++)
        if (media_check(c, with_plan, &finding) != 0)
            fail_msg("seed %llu: %s: row %u position %u: %s", (unsigned long long)seed_now,
                     pd_check_name(finding.check), finding.row, finding.position, finding.text);
}

static void test_batches(void **state)
{
    (void)state;
    uint64_t from = test_seed(1);
    for (seed_now = from; seed_now < from + CASES; seed_now++) {
        struct media_case *c = media_case_new(seed_now);
        for (uint32_t first = 0; first < c->pack_count; first += 3) {
            build(c, first, 1 + media_below(c, 4));
            expect_batch(c);
        }
        media_case_free(c);
    }
}

/* ---- one byte changed ---- */

/* Whether a change of this array's bytes is for the check to find: a tensor's own bytes are
 * compared with the log by the server. */
static bool is_checked(const struct media_case *c, const struct pd_array *array)
{
    for (uint32_t t = 0; t < MEDIA_TENSORS; t++)
        if (strcmp(array->name, c->specs[t].name) == 0)
            return t == MEDIA_IS_PAD;
    return array->size_bytes > 0 && strcmp(array->name, "tokens") != 0 &&
           strcmp(array->name, "labels") != 0;
}

static void test_changes_are_found(void **state)
{
    (void)state;
    uint64_t from = test_seed(1), changes = 0;
    for (seed_now = from; seed_now < from + CASES; seed_now++) {
        struct media_case *c = media_case_new(seed_now);
        struct pd_check_finding finding;
        build(c, 0, 3);
        for (uint32_t i = 0; i < c->batch.array_count; i++)
            c->batch.arrays[i].digest = 0;
        for (uint32_t i = 0; i < c->batch.array_count; i++) {
            const struct pd_array *array = &c->batch.arrays[i];
            if (!is_checked(c, array))
                continue;
            uint8_t *byte =
                c->payload + array->offset_bytes + media_below(c, (uint32_t)array->size_bytes);
            *byte ^= 1;
            changes++;
            if (media_check(c, true, &finding) != PD_ECORRUPT)
                fail_msg("seed %llu: a change of %s was not found", (unsigned long long)seed_now,
                         array->name);
            *byte ^= 1;
        }
        media_case_free(c);
    }
    assert_true(changes > CASES);
}

/* ---- copied once ---- */

static struct {
    const uint8_t *from, *to;
    uint64_t bytes;
    struct pd_bodies bodies;
} watched;

static int watched_tensor(void *ctx, const struct pd_segment *segment,
                          const struct pd_tensor_spec *spec, struct pd_elements which, void *dst)
{
    uint64_t bytes = which.count * pd_tensor_element_bytes(spec);
    EXPECT((uint8_t *)dst >= watched.from && (uint8_t *)dst + bytes <= watched.to);
    watched.bytes += bytes;
    return watched.bodies.tensor(ctx, segment, spec, which, dst);
}

/* Every element is fetched once, straight to its place. */
static void test_copied_once(void **state)
{
    (void)state;
    for (seed_now = 1; seed_now <= 20; seed_now++) {
        struct media_case *c = media_case_new(seed_now);
        const struct media_element *elements[MEDIA_ELEMENTS_MAX];
        static struct at list[4 * 1024];
        build(c, 0, 3);
        watched.bodies = media_bodies(c);
        struct pd_bodies bodies = watched.bodies;
        bodies.tensor = watched_tensor;
        watched.from = c->payload;
        watched.to = c->payload + c->batch.payload_bytes;
        watched.bytes = 0;
        struct pd_layout_input input = {.rules = &c->layout,
                                        .rows = c->rows,
                                        .row_count = c->row_count,
                                        .width = c->batch.width,
                                        .media = &c->media,
                                        .bodies = &bodies};
        assert_int_equal(pd_layout_fill(&input, &c->batch, c->payload), 0);
        uint64_t wanted = 0;
        uint32_t segments = list_segments(c, list);
        for (uint32_t n = 0; n < segments; n++)
            for (uint32_t t = 0; t < MEDIA_TENSORS; t++) {
                uint64_t count = media_elements(c, list[n].segment, t, elements);
                count -= t == MEDIA_LOGP && c->layout.labels == PD_LABELS_SHIFTED && count > 0;
                wanted += count * pd_tensor_element_bytes(&c->specs[t]);
            }
        EXPECT(watched.bytes == wanted);
        media_case_free(c);
    }
}

/* ---- windows, by hand ---- */

static void test_windows(void **state)
{
    (void)state;
    struct media_case *c = media_case_new(1);
    struct pd_span span = {.length_tokens = 15,
                           .patches = 60,
                           .grid_t = 1,
                           .grid_h = 6,
                           .grid_w = 10,
                           .merge = 4,
                           .t_scale = 1};
    struct media_sample *s = &c->samples[0];
    s->length = 20;
    s->span_count = 1;
    s->spans[0] = span;
    s->spans[0].offset_tokens = 2;
    s->run_count = 0;
    s->has_tensors = false;
    s->head = (struct pd_head){
        .length_tokens = 20, .weight = 1, .patches = 60, .spans = s->spans, .span_count = 1};
    struct pd_segment segment = {.part_count = 1,
                                 .length_tokens = 20,
                                 .slot_tokens = 20,
                                 .sample_tokens = 20,
                                 .loss_tokens = 19,
                                 .sample_loss_tokens = 19,
                                 .patches = 60,
                                 .weight = 1};
    pd_pack_clear(&c->packs[0]);
    assert_int_equal(pd_pack_push(&c->packs[0], &segment), 0);
    c->pack_count = 1;
    c->layout = (struct pd_layout_rules){
        .seq_len = 20, .seg_align = 1, .total_align = 1, .pad_segment = 8, .vision_window = 2};
    build(c, 0, 1);
    /* 3 x 5 tokens in tiles of 2 x 2: rows of tiles of 2 and 1, columns of 2, 2 and 1. */
    const int32_t index[] = {0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14};
    const int32_t cu[] = {0, 16, 32, 40, 48, 56, 60};
    assert_memory_equal(array_of(c, "vision_window_index"), index, sizeof index);
    assert_memory_equal(array_of(c, "vision_window_cu_seqlens"), cu, sizeof cu);
    assert_int_equal(pd_batch_find(&c->batch, "vision_window_cu_seqlens")->shape[0], 7);
    struct pd_check_finding finding;
    assert_int_equal(media_check(c, true, &finding), 0);
    media_case_free(c);
}

/* A plan that cuts a span is none of the sample's. */
static void test_foreign_segments(void **state)
{
    (void)state;
    struct pd_slice slice = {0};
    struct pd_span span = {.offset_tokens = 2, .length_tokens = 4, .patches = 4, .t_scale = 1};
    struct pd_head head = {.length_tokens = 10, .patches = 4, .spans = &span, .span_count = 1};
    struct pd_segment segment = {
        .length_tokens = 10, .sample_tokens = 10, .loss_tokens = 9, .patches = 4};
    assert_int_equal(pd_slice_make(&head, &segment, &slice), 0);
    segment.length_tokens = 5;
    segment.loss_tokens = 4;
    assert_int_equal(pd_slice_make(&head, &segment, &slice), PD_ECORRUPT); /* cuts the span */
    segment.length_tokens = 6;
    segment.loss_tokens = 5;
    assert_int_equal(pd_slice_make(&head, &segment, &slice), 0);
    segment.prune.drop_views = 2; /* a view that the sample does not have */
    assert_int_equal(pd_slice_make(&head, &segment, &slice), PD_ECORRUPT);
    segment.prune = (struct pd_prune){.drop_views = 1};
    segment.sample_tokens = segment.length_tokens = 6;
    segment.patches = 0;
    assert_int_equal(pd_slice_make(&head, &segment, &slice), 0);
    assert_int_equal(slice.token_run_count, 2);
    assert_int_equal(slice.tokens[1].from, 6);
    segment.loss_tokens = 4;
    assert_int_equal(pd_slice_make(&head, &segment, &slice), PD_ECORRUPT);
    pd_slice_fini(&slice);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_copied_once),
        cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_changes_are_found),
        cmocka_unit_test(test_foreign_segments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
