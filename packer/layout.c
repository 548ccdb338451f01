/* The layout: packs and sample bytes become the arrays of a batch.
 *
 * Place in the flow: the planner (or a plan read from the log) gives packs; an assemble thread
 * measures a batch of them, gets memory of that size, and fills it. Pure functions of their
 * arguments, any thread.
 *
 * Two coordinates. A *position* is a place in a row. A *target* is a token of a segment, numbered
 * from 0 inside it, seen as something to predict. Labels and loss weights of target i lie at
 * position i with unshifted labels and at position i - 1 with shifted ones; so both are written
 * through a pointer that is moved by that shift once, and nothing below it knows the convention.
 * Target 0 is never predicted.
 *
 * Invariant: every position of every [R,W] array is written exactly once per call, apart from
 * labels, whose masked targets are overwritten; no byte of the payload stays as it was. Each row is
 * written from its pack alone.
 *
 * It does not decide a width for a step, does not check what it made (check.c does, sharing no
 * code), and does not know where bytes come from. Media are layout_media.c's. */
#include "packer/layout.h"

#include "base/check.h"
#include "packer/layout_media.h"
#include "packer/layout_runs.h"
#include "packer/mrope.h"

#include <string.h>

/* The fixed order of arrays. What a reader may rebuild stands behind what it cannot, so that the
 * core payload is a prefix of the whole one; labels, which only sometimes can be rebuilt, stand
 * between. check.c holds its own copy of this table on purpose. */
enum {
    TOKENS,
    CU_SEQLENS,
    SEQ_LENS,
    SAMPLE_INDEX,
    LABELS,
    POSITIONS,
    SEGMENT_IDS,
    LOSS_WEIGHT,
    CU_REAL,
    CU_PADDED,
};

enum shape_kind { SHAPE_ROWS, SHAPE_S, SHAPE_S1, SHAPE_N1 };

#define HEAD_ARRAYS LABELS /* those in front of vision arrays and tensors */

static const struct {
    const char *name;
    enum pd_dtype dtype;
    enum shape_kind shape;
} specs[] = {
    [TOKENS] = {"tokens", PD_DTYPE_I32, SHAPE_ROWS},
    [CU_SEQLENS] = {"cu_seqlens", PD_DTYPE_I32, SHAPE_S1},
    [SEQ_LENS] = {"seq_lens", PD_DTYPE_I32, SHAPE_S},
    [SAMPLE_INDEX] = {"sample_index", PD_DTYPE_I32, SHAPE_S},
    [LABELS] = {"labels", PD_DTYPE_I32, SHAPE_ROWS},
    [POSITIONS] = {"positions", PD_DTYPE_I32, SHAPE_ROWS},
    [SEGMENT_IDS] = {"segment_ids", PD_DTYPE_I32, SHAPE_ROWS},
    [LOSS_WEIGHT] = {"loss_weight", PD_DTYPE_F32, SHAPE_ROWS},
    [CU_REAL] = {"cu_seqlens_real", PD_DTYPE_I32, SHAPE_N1},
    [CU_PADDED] = {"cu_seqlens_padded", PD_DTYPE_I32, SHAPE_N1},
};

/* ---- rules ---- */

static int rules_refuse(struct pd_error *error, const char *reason, const char *what,
                        uint32_t value, const char *expected, uint32_t bound)
{
    return pd_error_set(error, PD_EINVAL, reason, "%s is %u, expected %s %u", what, value, expected,
                        bound);
}

static int check_widths(const struct pd_layout_rules *rules, struct pd_error *error)
{
    if (rules->width_count > PD_COUNT_OF(rules->widths))
        return rules_refuse(error, "BAD_WIDTHS", "the number of widths", rules->width_count,
                            "at most", (uint32_t)PD_COUNT_OF(rules->widths));
    uint32_t before = 0;
    for (uint32_t i = 0; i < rules->width_count; i++) {
        uint32_t width = rules->widths[i];
        if (width <= before)
            return rules_refuse(error, "BAD_WIDTHS", "an entry of widths", width,
                                "ascending, above", before);
        if (width % rules->total_align != 0)
            return rules_refuse(error, "BAD_WIDTHS", "an entry of widths", width,
                                "a multiple of total_align", rules->total_align);
        if (width > rules->seq_len)
            return rules_refuse(error, "BAD_WIDTHS", "an entry of widths", width, "at most seq_len",
                                rules->seq_len);
        before = width;
    }
    return 0;
}

int pd_layout_rules_check(const struct pd_layout_rules *rules, struct pd_error *error)
{
    if (rules->seq_len == 0 || rules->seq_len > INT32_MAX)
        return rules_refuse(error, "BAD_SEQ_LEN", "seq_len", rules->seq_len, "1 to", INT32_MAX);
    if (rules->seg_align == 0)
        return rules_refuse(error, "BAD_ALIGN", "seg_align", 0, "at least", 1);
    if (rules->total_align == 0 || rules->total_align % rules->seg_align != 0)
        return rules_refuse(error, "BAD_ALIGN", "total_align", rules->total_align,
                            "a multiple of seg_align", rules->seg_align);
    if (rules->seq_len % rules->total_align != 0)
        return rules_refuse(error, "BAD_ALIGN", "seq_len", rules->seq_len,
                            "a multiple of total_align", rules->total_align);
    if (rules->pad_segment == 0 || rules->pad_segment < rules->seg_align)
        return rules_refuse(
            error, "BAD_PAD_SEGMENT", "pad_segment", rules->pad_segment,
            "at least seg_align, so that padding keeps the alignment:", rules->seg_align);
    if ((unsigned)rules->labels > PD_LABELS_SHIFTED)
        return rules_refuse(error, "BAD_LABELS", "labels", rules->labels, "at most",
                            PD_LABELS_SHIFTED);
    if ((unsigned)rules->loss > PD_LOSS_SAMPLE)
        return rules_refuse(error, "BAD_LOSS_WEIGHT", "loss_weight", rules->loss, "at most",
                            PD_LOSS_SAMPLE);
    if ((unsigned)rules->width > PD_WIDTH_BATCH)
        return rules_refuse(error, "BAD_WIDTH", "width", rules->width, "at most", PD_WIDTH_BATCH);
    if ((unsigned)rules->positions > PD_POSITIONS_MROPE)
        return rules_refuse(error, "BAD_POSITIONS", "positions", rules->positions, "at most",
                            PD_POSITIONS_MROPE);
    return check_widths(rules, error);
}

static uint64_t round_up(uint64_t value, uint32_t step)
{
    return (value + step - 1) / step * step;
}

/* Every padding segment but the last of a tail: the longest one that keeps seg_align. */
static uint32_t pad_step(const struct pd_layout_rules *rules)
{
    return rules->pad_segment - rules->pad_segment % rules->seg_align;
}

static uint32_t pad_count(const struct pd_layout_rules *rules, uint32_t positions)
{
    uint32_t step = pad_step(rules);
    return positions / step + (positions % step != 0);
}

uint32_t pd_layout_width(const struct pd_layout_rules *rules, uint32_t widest_slots)
{
    if (rules->width == PD_WIDTH_FIXED || widest_slots >= rules->seq_len)
        return rules->seq_len;
    for (uint32_t i = 0; i < rules->width_count; i++)
        if (rules->widths[i] >= widest_slots)
            return rules->widths[i];
    if (rules->width_count > 0)
        return rules->seq_len;
    return (uint32_t)round_up(widest_slots > 0 ? widest_slots : 1, rules->total_align);
}

/* ---- measure ---- */

static int add_array(const struct pd_layout_rules *rules, struct pd_batch *batch, size_t i,
                     struct pd_error *error)
{
    const uint64_t shapes[][2] = {
        [SHAPE_ROWS] = {batch->rows, batch->width},
        [SHAPE_S] = {batch->segment_count},
        [SHAPE_S1] = {(uint64_t)batch->segment_count + 1},
        [SHAPE_N1] = {(uint64_t)batch->megatron_count + 1},
    };
    const uint64_t planes[] = {3, batch->rows, batch->width};
    bool mrope = i == POSITIONS && rules->positions == PD_POSITIONS_MROPE;
    uint32_t rank = specs[i].shape == SHAPE_ROWS ? 2 : 1;
    int rc = pd_batch_array_add(batch, specs[i].name, specs[i].dtype, mrope ? 3 : rank,
                                mrope ? planes : shapes[specs[i].shape]);
    if (rc != 0)
        return pd_error_set(error, rc, "BAD_SHAPE",
                            "array %s of %u x %u positions cannot be described", specs[i].name,
                            batch->rows, batch->width);
    return 0;
}

/* Builds the array table from R, W, S and N, and from what the media take. Positions that cannot be
 * rebuilt stand in front of those arrays that can. */
static int make_table(const struct pd_layout_input *input, struct pd_batch *batch,
                      struct pd_error *error)
{
    bool mrope = input->rules->positions == PD_POSITIONS_MROPE;
    int rc = 0;
    batch->array_count = 0;
    batch->payload_bytes = 0;
    for (size_t i = 0; rc == 0 && i < HEAD_ARRAYS; i++)
        rc = add_array(input->rules, batch, i, error);
    if (rc == 0 && input->media)
        rc = pd_layout_media_measure(input, batch, error);
    if (rc == 0 && mrope)
        rc = add_array(input->rules, batch, POSITIONS, error);
    for (size_t i = HEAD_ARRAYS; rc == 0 && i < PD_COUNT_OF(specs); i++)
        if (i != POSITIONS || !mrope)
            rc = add_array(input->rules, batch, i, error);
    return rc;
}

static uint32_t real_max(const struct pd_layout_rules *rules, uint32_t segments_max)
{
    uint32_t fit = rules->seq_len / rules->seg_align;
    return segments_max > 0 && segments_max < fit ? segments_max : fit;
}

uint64_t pd_layout_row_segments_max(const struct pd_layout_rules *rules, uint32_t segments_max)
{
    /* Each further real segment adds one and takes away at most one padding segment, so the most
     * segments come with as many real ones as fit, each of the shortest slot. */
    uint32_t real = real_max(rules, segments_max);
    return (uint64_t)real + pad_count(rules, rules->seq_len - real * rules->seg_align);
}

uint64_t pd_layout_payload_max(const struct pd_layout_rules *rules, uint32_t rows)
{
    uint32_t real = real_max(rules, rules->segments_max);
    uint64_t per_row = pd_layout_row_segments_max(rules, rules->segments_max);
    uint64_t segments = rules->fixed_segments > 0 ? rules->fixed_segments : per_row * rows;
    uint64_t megatron = rules->fixed_segments > 0 ? rules->fixed_segments : (uint64_t)real * rows;
    uint64_t total = 0;
    for (size_t i = 0; i < PD_COUNT_OF(specs); i++) {
        const uint64_t items[] = {
            [SHAPE_ROWS] = (uint64_t)rows * rules->seq_len,
            [SHAPE_S] = segments,
            [SHAPE_S1] = segments + 1,
            [SHAPE_N1] = megatron + 1,
        };
        uint64_t bytes = items[specs[i].shape] * pd_dtype_size_bytes(specs[i].dtype);
        bytes *= i == POSITIONS && rules->positions == PD_POSITIONS_MROPE ? 3 : 1;
        total += (bytes + PD_ARRAY_ALIGN - 1) / PD_ARRAY_ALIGN * PD_ARRAY_ALIGN;
    }
    return total;
}

static int check_row(const struct pd_layout_rules *rules, const struct pd_pack *pack, uint32_t row,
                     uint32_t width, struct pd_error *error)
{
    uint64_t slots = 0;
    if (rules->segments_max > 0 && pack->segment_count > rules->segments_max)
        return pd_error_set(
            error, PD_EINVAL, "BAD_PACK", "pack %llu has %u segments, max_segments is %u",
            (unsigned long long)pack->number, pack->segment_count, rules->segments_max);
    for (uint32_t i = 0; i < pack->segment_count; i++) {
        const struct pd_segment *s = &pack->segments[i];
        slots += s->slot_tokens;
        if (s->length_tokens == 0 || s->slot_tokens != round_up(s->length_tokens, rules->seg_align))
            return pd_error_set(
                error, PD_EINVAL, "BAD_PACK",
                "pack %llu, segment %u: length %u in a slot of %u, expected at least 1, rounded "
                "up to seg_align %u",
                (unsigned long long)pack->number, i, s->length_tokens, s->slot_tokens,
                rules->seg_align);
    }
    if (slots > width)
        return pd_error_set(error, PD_EINVAL, "ROW_TOO_WIDE",
                            "row %u (pack %llu) uses %llu positions, the width is %u", row,
                            (unsigned long long)pack->number, (unsigned long long)slots, width);
    if (slots != pack->used_slots)
        return pd_error_set(error, PD_EINVAL, "BAD_PACK",
                            "pack %llu says it uses %u positions, its segments take %llu",
                            (unsigned long long)pack->number, pack->used_slots,
                            (unsigned long long)slots);
    return 0;
}

static bool is_empty(const struct pd_pack *pack)
{
    return !pack || pack->segment_count == 0;
}

/* The steps of cu_seqlens that one row adds. */
static void measure_row(const struct pd_layout_rules *rules, const struct pd_pack *pack,
                        struct pd_batch *batch, uint64_t *segments)
{
    uint32_t used = 0;
    if (is_empty(pack)) {
        batch->megatron_count++;
        batch->row_padding_tokens += batch->width;
    } else {
        used = pack->used_slots;
        batch->megatron_count += pack->segment_count;
        batch->real_segment_count += pack->segment_count;
        batch->tail_tokens += batch->width - used;
        *segments += pack->segment_count;
        for (uint32_t i = 0; i < pack->segment_count; i++)
            if (pack->segments[i].slot_tokens > batch->max_seqlen)
                batch->max_seqlen = pack->segments[i].slot_tokens;
        pd_totals_add(&batch->totals, pack, rules->loss, rules->cost);
    }
    uint32_t left = batch->width - used;
    uint32_t longest_pad = left < pad_step(rules) ? left : pad_step(rules);
    *segments += pad_count(rules, left);
    if (longest_pad > batch->max_seqlen)
        batch->max_seqlen = longest_pad;
}

/* S, with fixed_segments filled up. */
static int settle_segments(const struct pd_layout_rules *rules, uint64_t segments,
                           struct pd_batch *batch, struct pd_error *error)
{
    uint32_t fixed = rules->fixed_segments;
    if (fixed > 0 && segments > fixed)
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY_SEGMENTS",
                            "the batch has %llu segments, fixed_segments allows %u",
                            (unsigned long long)segments, fixed);
    batch->segment_count = fixed > 0 ? fixed : (uint32_t)segments;
    if (fixed > 0)
        batch->megatron_count = fixed;
    return 0;
}

static int check_shape(const struct pd_layout_input *input, struct pd_error *error)
{
    const struct pd_layout_rules *rules = input->rules;
    uint32_t rows = input->row_count, width = input->width;
    if (rows == 0 || width == 0 || width > rules->seq_len || width % rules->total_align != 0)
        return pd_error_set(
            error, PD_EINVAL, "BAD_SHAPE",
            "%u rows of %u positions, expected at least one row and a multiple of total_align %u "
            "up to seq_len %u",
            rows, width, rules->total_align, rules->seq_len);
    if ((uint64_t)rows * width > INT32_MAX)
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY_POSITIONS",
                            "%u rows of %u positions do not fit int32 offsets; use fewer rows",
                            rows, width);
    return 0;
}

int pd_layout_measure(const struct pd_layout_input *input, struct pd_batch *batch,
                      struct pd_error *error)
{
    const struct pd_layout_rules *rules = input->rules;
    memset(batch, 0, sizeof *batch);
    int rc = pd_layout_rules_check(rules, error);
    if (rc == 0)
        rc = check_shape(input, error);
    if (rc != 0)
        return rc;
    batch->rows = input->row_count;
    batch->width = input->width;
    uint64_t segments = 0;
    for (uint32_t r = 0; r < input->row_count; r++) {
        const struct pd_pack *pack = input->rows[r];
        rc = is_empty(pack) ? 0 : check_row(rules, pack, r, input->width, error);
        if (rc != 0)
            return rc;
        measure_row(rules, pack, batch, &segments);
    }
    rc = settle_segments(rules, segments, batch, error);
    return rc != 0 ? rc : make_table(input, batch, error);
}

/* ---- fill ---- */

/* Where the fill writes: typed views of the payload, and how far it has come in the segment arrays.
 */
struct out {
    const struct pd_layout_rules *rules;
    const struct pd_bodies *bodies;
    int32_t *tokens, *positions, *segment_ids, *labels;
    float *loss_weight;
    int32_t *cu_seqlens, *seq_lens, *sample_index, *cu_real, *cu_padded;
    uint32_t planes; /* of positions, each of plane_positions entries */
    size_t plane_positions;
    uint32_t segment, real_segment, megatron; /* next entries */
};

/* Positions without media: of one slot, or one padding segment; every plane of them. */
static void fill_positions(struct out *out, size_t at, uint32_t count)
{
    for (uint32_t plane = 0; plane < out->planes; plane++)
        pd_fill_count_up(out->positions + plane * out->plane_positions + at, count);
}

/* Those of a real segment's slot. */
static int fill_slot_positions(struct out *out, const struct pd_segment *segment, size_t at)
{
    const struct pd_span *spans = NULL;
    uint32_t count = 0;
    int rc = 0;
    if (out->planes > 1 && out->bodies->spans)
        rc = out->bodies->spans(out->bodies->ctx, segment, &spans, &count);
    if (rc != 0)
        return rc;
    if (count == 0) {
        fill_positions(out, at, segment->slot_tokens);
        return 0;
    }
    int32_t *t = out->positions + at;
    pd_mrope_fill(
        spans, count, segment->length_tokens, segment->slot_tokens - segment->length_tokens,
        (struct pd_mrope_rows){t, t + out->plane_positions, t + 2 * out->plane_positions});
    return 0;
}

static void clear_loss(struct out *out, size_t at, size_t count)
{
    pd_fill_value(out->labels + at, count, PD_LABEL_NONE);
    memset(out->loss_weight + at, 0, count * sizeof *out->loss_weight);
}

static void put_segment(struct out *out, uint32_t slot, uint32_t length, int32_t sample)
{
    uint32_t s = out->segment++;
    out->cu_seqlens[s + 1] = out->cu_seqlens[s] + (int32_t)slot;
    out->seq_lens[s] = (int32_t)length;
    out->sample_index[s] = sample;
}

/* A row of the Megatron pair that ends at `end`. */
static void put_megatron(struct out *out, uint32_t length, size_t end)
{
    uint32_t n = out->megatron++;
    out->cu_real[n + 1] = out->cu_real[n] + (int32_t)length;
    out->cu_padded[n + 1] = (int32_t)end;
}

/* -100 on targets [from, to) of the sample as far as they lie in the segment. */
static void mask_targets(int32_t *targets, const struct pd_segment *segment, uint64_t from,
                         uint64_t to)
{
    uint64_t first = segment->offset_tokens, end = first + segment->length_tokens;
    /* Target 0 is masked by the caller; where it lies may belong to another segment. */
    from = from > first ? from : first + 1;
    to = to < end ? to : end;
    if (from < to)
        pd_fill_value(targets + (from - first), to - from, PD_LABEL_NONE);
}

static void mask_by_runs(int32_t *targets, const struct pd_segment *segment,
                         struct pd_loss_runs runs)
{
    if (runs.count == 0)
        return;
    uint64_t end = (uint64_t)segment->offset_tokens + segment->length_tokens, at = 0;
    for (uint32_t i = 0; i < runs.count && at < end; i++) {
        uint64_t next = at + runs.lengths[i];
        if (i % 2 == 0)
            mask_targets(targets, segment, at, next);
        at = next;
    }
    mask_targets(targets, segment, at, end);
}

/* Targets 1 .. length - 1 of the segment, from its pushed labels or its tokens, masked. */
static int fill_targets(struct out *out, const struct pd_segment *segment, const int32_t *tokens,
                        int32_t *targets)
{
    const struct pd_bodies *bodies = out->bodies;
    bool has = false;
    int rc = bodies->labels ? bodies->labels(bodies->ctx, segment, targets, &has) : 0;
    if (rc != 0)
        return rc;
    if (!has)
        memcpy(targets + 1, tokens + 1, (segment->length_tokens - 1) * sizeof *targets);
    struct pd_loss_runs runs = {0};
    rc = bodies->loss ? bodies->loss(bodies->ctx, segment, &runs) : 0;
    if (rc == 0)
        mask_by_runs(targets, segment, runs);
    return rc;
}

/* Labels and weights of one slot. */
static int fill_loss(struct out *out, const struct pd_segment *segment, size_t at)
{
    uint32_t length = segment->length_tokens;
    size_t shift = out->rules->labels == PD_LABELS_SHIFTED ? 1 : 0;
    /* With shifted labels, pushed ones are fetched one place to the left of the slot: the label of
     * target 0 falls on the place before it, whose value is put back. That place is inside the
     * payload, as labels are not its first array; this way nothing is moved. */
    int32_t *targets = out->labels + at - shift;
    int32_t before = targets[0];
    int rc = fill_targets(out, segment, out->tokens + at, targets);
    targets[0] = before;
    if (rc != 0)
        return rc;
    out->labels[at + (shift ? length - 1 : 0)] = PD_LABEL_NONE;
    pd_fill_weights(out->loss_weight + at, out->labels + at, length,
                    pd_segment_loss_weight(segment, out->rules->loss));
    clear_loss(out, at + length, segment->slot_tokens - length);
    return 0;
}

static int fill_segment(struct out *out, const struct pd_segment *segment, int32_t id, size_t at)
{
    uint32_t length = segment->length_tokens, gap = segment->slot_tokens - length;
    int rc = out->bodies->tokens(out->bodies->ctx, segment, out->tokens + at);
    if (rc == 0)
        rc = fill_slot_positions(out, segment, at);
    if (rc != 0)
        return rc;
    pd_fill_value(out->tokens + at + length, gap, out->rules->pad_id);
    pd_fill_value(out->segment_ids + at, length, id);
    pd_fill_value(out->segment_ids + at + length, gap, 0);
    put_segment(out, segment->slot_tokens, length, (int32_t)out->real_segment++);
    return fill_loss(out, segment, at);
}

static void fill_padding(struct out *out, size_t at, uint32_t count)
{
    pd_fill_value(out->tokens + at, count, out->rules->pad_id);
    pd_fill_value(out->segment_ids + at, count, 0);
    clear_loss(out, at, count);
    for (uint32_t left = count, step; left > 0; left -= step, at += step) {
        step = left < pad_step(out->rules) ? left : pad_step(out->rules);
        fill_positions(out, at, step);
        put_segment(out, step, 0, -1);
    }
}

static int fill_row(struct out *out, const struct pd_pack *pack, size_t at, uint32_t width)
{
    size_t end = at + width;
    if (is_empty(pack)) {
        put_megatron(out, width, end);
        fill_padding(out, at, width);
        return 0;
    }
    for (uint32_t i = 0; i < pack->segment_count; i++) {
        const struct pd_segment *segment = &pack->segments[i];
        int rc = fill_segment(out, segment, (int32_t)i + 1, at);
        if (rc != 0)
            return rc;
        at += segment->slot_tokens;
        put_megatron(out, segment->length_tokens, i + 1 < pack->segment_count ? at : end);
    }
    fill_padding(out, at, (uint32_t)(end - at));
    return 0;
}

/* The empty entries of fixed_segments. */
static void fill_fixed(struct out *out, const struct pd_batch *batch)
{
    while (out->segment < batch->segment_count)
        put_segment(out, 0, 0, -1);
    while (out->megatron < batch->megatron_count)
        put_megatron(out, 0, (size_t)batch->rows * batch->width);
}

/* Zeroes what lies between the arrays, so that equal batches are equal byte for byte. */
static void zero_between(const struct pd_batch *batch, uint8_t *bytes)
{
    for (uint32_t i = 0; i < batch->array_count; i++) {
        const struct pd_array *array = &batch->arrays[i];
        uint64_t end = array->offset_bytes + array->size_bytes;
        uint64_t next = i + 1 < batch->array_count ? array[1].offset_bytes : batch->payload_bytes;
        memset(bytes + end, 0, next - end);
    }
}

static void *view(const struct pd_batch *batch, void *payload, int index)
{
    const struct pd_array *array = pd_batch_find(batch, specs[index].name);
    PD_CHECK(array);
    return (uint8_t *)payload + array->offset_bytes;
}

int pd_layout_fill(const struct pd_layout_input *input, const struct pd_batch *batch, void *payload)
{
    PD_CHECK((uintptr_t)payload % PD_ARRAY_ALIGN == 0);
    PD_CHECK(batch->rows == input->row_count && batch->width == input->width);
    struct out out = {
        .rules = input->rules,
        .bodies = input->bodies,
        .tokens = view(batch, payload, TOKENS),
        .positions = view(batch, payload, POSITIONS),
        .segment_ids = view(batch, payload, SEGMENT_IDS),
        .labels = view(batch, payload, LABELS),
        .loss_weight = view(batch, payload, LOSS_WEIGHT),
        .cu_seqlens = view(batch, payload, CU_SEQLENS),
        .seq_lens = view(batch, payload, SEQ_LENS),
        .sample_index = view(batch, payload, SAMPLE_INDEX),
        .cu_real = view(batch, payload, CU_REAL),
        .cu_padded = view(batch, payload, CU_PADDED),
        .planes = input->rules->positions == PD_POSITIONS_MROPE ? 3 : 1,
        .plane_positions = (size_t)batch->rows * batch->width,
    };
    zero_between(batch, payload);
    out.cu_seqlens[0] = out.cu_real[0] = out.cu_padded[0] = 0;
    for (uint32_t r = 0; r < batch->rows; r++) {
        int rc = fill_row(&out, input->rows[r], (size_t)r * batch->width, batch->width);
        if (rc != 0)
            return rc;
    }
    fill_fixed(&out, batch);
    PD_CHECK(out.segment == batch->segment_count && out.megatron == batch->megatron_count);
    return input->media ? pd_layout_media_fill(input, batch, payload) : 0;
}

/* ---- derive ---- */

static void derive_segment(int32_t *positions, int32_t *segment_ids, uint32_t slot, uint32_t length,
                           int32_t id)
{
    pd_fill_count_up(positions, slot);
    pd_fill_value(segment_ids, length, id);
    pd_fill_value(segment_ids + length, slot - length, 0);
}

int pd_layout_derive(uint32_t rows, uint32_t width, uint32_t segment_count,
                     const int32_t *cu_seqlens, const int32_t *seq_lens,
                     const int32_t *sample_index, int32_t *positions, int32_t *segment_ids)
{
    int64_t total = (int64_t)rows * width, at = 0;
    int32_t id = 0;
    if (cu_seqlens[0] != 0)
        return PD_ECORRUPT;
    for (uint32_t s = 0; s < segment_count; s++) {
        int64_t end = cu_seqlens[s + 1], slot = end - at;
        if (slot == 0 && at == total && seq_lens[s] == 0)
            continue; /* an empty entry of fixed_segments */
        /* A slot ends in the row it starts in. */
        if (slot <= 0 || end > total || at / width != (end - 1) / width)
            return PD_ECORRUPT;
        if (seq_lens[s] < 0 || seq_lens[s] > slot || (seq_lens[s] == 0) != (sample_index[s] < 0))
            return PD_ECORRUPT;
        id = at % width == 0 ? 0 : id;
        id += seq_lens[s] > 0;
        derive_segment(positions + at, segment_ids + at, (uint32_t)slot, (uint32_t)seq_lens[s], id);
        at = end;
    }
    return at == total ? 0 : PD_ECORRUPT;
}

/* One row. A token is predicted where the token before it belongs to the same segment. */
static void derive_row(uint32_t width, const int32_t *tokens, const int32_t *ids, size_t shift,
                       int32_t *labels)
{
    labels[shift ? width - 1 : 0] = PD_LABEL_NONE;
    for (uint32_t i = 1; i < width; i++)
        labels[i - shift] = ids[i] != 0 && ids[i] == ids[i - 1] ? tokens[i] : PD_LABEL_NONE;
}

void pd_layout_derive_labels(uint32_t rows, uint32_t width, const int32_t *tokens,
                             const int32_t *segment_ids, enum pd_labels convention, int32_t *labels)
{
    size_t shift = convention == PD_LABELS_SHIFTED ? 1 : 0;
    for (uint32_t r = 0; r < rows; r++) {
        size_t at = (size_t)r * width;
        derive_row(width, tokens + at, segment_ids + at, shift, labels + at);
    }
}
