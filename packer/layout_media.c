/* Vision arrays and named tensors of a batch.
 *
 * Place in the flow: layout.c calls measure while it builds the array table and fill while it
 * writes the payload. Pure functions of their arguments, any thread.
 *
 * Invariant: arrays follow the batch's real segments, row by row; a segment's elements of a tensor
 * are exactly those that packer/slice.h gives it, copied once, straight to their place. Loss
 * weights are written last, from the pad masks as served, so that they cannot disagree with them.
 *
 * It does not know how a sample was pruned or cut, and never reads a tensor to learn its size. */
#include "packer/layout_media.h"

#include "base/check.h"
#include "packer/vision.h"

#include <stdio.h>
#include <string.h>

/* A real segment and its place in the batch. */
struct place {
    const struct pd_segment *segment;
    uint32_t number; /* row of the sample table */
    uint64_t at;     /* first position, of the flattened batch */
};

typedef int visit_fn(void *ctx, const struct place *place);

/* Every real segment in batch order, until one call does not return 0. */
static int for_each(const struct pd_layout_input *input, visit_fn *visit, void *ctx)
{
    struct place place = {0};
    int rc = 0;
    for (uint32_t row = 0; rc == 0 && row < input->row_count; row++) {
        const struct pd_pack *pack = input->rows[row];
        place.at = (uint64_t)row * input->width;
        for (uint32_t i = 0; rc == 0 && pack && i < pack->segment_count; i++) {
            place.segment = &pack->segments[i];
            rc = visit(ctx, &place);
            place.at += place.segment->slot_tokens;
            place.number++;
        }
    }
    return rc;
}

static const struct pd_tensor_spec *spec_of(const struct pd_media *media, uint32_t number)
{
    for (uint32_t i = 0; i < media->tensor_count; i++)
        if (media->tensors[i].number == number)
            return &media->tensors[i];
    return NULL;
}

/* ---- losses ---- */

/* Elements of a segment that a loss counts: each target or input once. */
static struct pd_elements counted(const struct pd_tensor_spec *spec,
                                  const struct pd_segment *segment, uint64_t count)
{
    bool target = spec->axis == PD_AXIS_TOKEN && spec->alignment == PD_ALIGN_TARGET;
    uint64_t first = spec->axis != PD_AXIS_TOKEN ? 0 : (target || segment->overlap_tokens ? 1 : 0);
    first = first < count ? first : count;
    return (struct pd_elements){first, count - first};
}

/* The weight of each of `valid` entries of a segment. */
static float entry_weight(const struct pd_segment *segment, enum pd_loss_policy policy,
                          uint64_t valid)
{
    if (policy == PD_LOSS_TOKEN)
        return segment->weight;
    return valid > 0 ? (float)((double)segment->weight / (double)valid) : 0;
}

/* Entries of the segment that count for the loss `spec`. */
static int count_valid(const struct pd_layout_input *input, const struct pd_segment *segment,
                       const struct pd_tensor_spec *spec, uint64_t *valid)
{
    const struct pd_bodies *bodies = input->bodies;
    bool has;
    *valid = 0;
    int rc = bodies->elements(bodies->ctx, segment, spec, valid, &has);
    if (rc != 0)
        return rc;
    struct pd_elements which = counted(spec, segment, *valid);
    *valid = which.count;
    const struct pd_tensor_spec *mask = spec_of(input->media, spec->pad_mask);
    if (!mask || which.count == 0)
        return 0;
    uint64_t masked;
    rc = bodies->elements(bodies->ctx, segment, mask, &masked, &has);
    if (rc != 0 || masked != which.first + which.count)
        return rc != 0 ? rc : PD_ECORRUPT; /* one element of the mask for each */
    return bodies->zeros(bodies->ctx, segment, mask, which, valid);
}

int pd_layout_losses_add(const struct pd_layout_input *input, const struct pd_pack *pack,
                         struct pd_tensor_total *losses)
{
    const struct pd_media *media = input->media;
    for (uint32_t i = 0; i < pack->segment_count; i++) {
        struct pd_tensor_total *loss = losses;
        for (uint32_t t = 0; t < media->tensor_count; t++) {
            const struct pd_tensor_spec *spec = &media->tensors[t];
            if (!spec->is_loss)
                continue;
            uint64_t valid;
            int rc = count_valid(input, &pack->segments[i], spec, &valid);
            if (rc != 0)
                return rc;
            float weight = entry_weight(&pack->segments[i], input->rules->loss, valid);
            loss->number = spec->number;
            loss->count += valid;
            loss->weight += (double)weight * (double)valid;
            loss++;
        }
    }
    return 0;
}

/* ---- measure ---- */

struct sizes {
    const struct pd_layout_input *input;
    struct pd_vision_sizes vision;
    uint64_t elements[PD_TENSORS_MAX]; /* of the ragged ones */
    uint64_t runs[PD_TENSORS_MAX];     /* spans of those of unit RUN */
};

static int measure_ragged(struct sizes *sizes, uint32_t t, const struct place *place)
{
    const struct pd_bodies *bodies = sizes->input->bodies;
    const struct pd_tensor_spec *spec = &sizes->input->media->tensors[t];
    uint64_t count = 0;
    bool has;
    int rc = bodies->elements(bodies->ctx, place->segment, spec, &count, &has);
    if (rc == 0 && __builtin_add_overflow(sizes->elements[t], count, &sizes->elements[t]))
        rc = PD_ELIMIT;
    if (rc != 0 || spec->unit != PD_UNIT_RUN)
        return rc;
    const uint32_t *of_spans;
    uint32_t spans;
    rc = bodies->runs(bodies->ctx, place->segment, spec, &of_spans, &spans);
    sizes->runs[t] += rc == 0 ? spans : 0;
    return rc;
}

static int measure_segment(void *ctx, const struct place *place)
{
    struct sizes *sizes = ctx;
    const struct pd_media *media = sizes->input->media;
    const struct pd_bodies *bodies = sizes->input->bodies;
    const struct pd_span *spans = NULL;
    uint32_t span_count = 0;
    int rc = media->vision && bodies->spans
                 ? bodies->spans(bodies->ctx, place->segment, &spans, &span_count)
                 : 0;
    for (uint32_t i = 0; rc == 0 && i < span_count; i++)
        pd_vision_measure(&spans[i], sizes->input->rules->vision_window, &sizes->vision);
    for (uint32_t t = 0; rc == 0 && t < media->tensor_count; t++)
        if (media->tensors[t].axis == PD_AXIS_RAGGED)
            rc = measure_ragged(sizes, t, place);
    return rc;
}

static int too_many(struct pd_error *error, const char *name, uint64_t count)
{
    return pd_error_set(error, PD_ELIMIT, "TOO_MANY_ELEMENTS",
                        "%s has %llu entries in one batch, int32 offsets reach to %d; use fewer "
                        "rows or max_patches",
                        name, (unsigned long long)count, INT32_MAX);
}

static int add_array(struct pd_batch *batch, const char *name, enum pd_dtype dtype, uint32_t rank,
                     const uint64_t *shape, struct pd_error *error)
{
    int rc = pd_batch_array_add(batch, name, dtype, rank, shape);
    if (rc == 0)
        return 0;
    bool full = batch->array_count >= PD_ARRAYS_MAX;
    return pd_error_set(error, rc, full ? "TOO_MANY_ARRAYS" : "BAD_SHAPE",
                        "array %s cannot be described: %s", name, pd_err_text(rc));
}

static int add_vision(const struct sizes *sizes, struct pd_batch *batch, struct pd_error *error)
{
    const struct pd_vision_sizes *v = &sizes->vision;
    uint32_t window = sizes->input->rules->vision_window;
    if (v->patches > INT32_MAX || v->tokens > INT32_MAX)
        return too_many(error, "vision_cu_seqlens", v->patches);
    int rc =
        add_array(batch, "vision_cu_seqlens", PD_DTYPE_I32, 1, (uint64_t[]){v->frames + 1}, error);
    if (rc == 0)
        rc = add_array(batch, "image_grid_thw", PD_DTYPE_I64, 2, (uint64_t[]){v->images, 3}, error);
    if (rc == 0 && window > 0)
        rc = add_array(batch, "vision_window_index", PD_DTYPE_I32, 1, (uint64_t[]){v->tokens},
                       error);
    if (rc == 0 && window > 0)
        rc = add_array(batch, "vision_window_cu_seqlens", PD_DTYPE_I32, 1,
                       (uint64_t[]){v->windows + 1}, error);
    return rc;
}

/* The axes in front of an element's own: returns how many. */
static uint32_t leading(const struct pd_batch *batch, const struct pd_tensor_spec *spec,
                        uint64_t elements, uint64_t shape[4])
{
    if (spec->axis == PD_AXIS_TOKEN) {
        shape[0] = batch->rows;
        shape[1] = batch->width;
        return 2;
    }
    shape[0] = spec->axis == PD_AXIS_SAMPLE ? batch->real_segment_count : elements;
    return 1;
}

static void array_name(char name[PD_ARRAY_NAME_MAX + 1], const char *tensor, const char *suffix)
{
    snprintf(name, PD_ARRAY_NAME_MAX + 1, "%.*s%s", PD_TENSOR_NAME_MAX, tensor, suffix);
}

static int add_tensor(const struct sizes *sizes, uint32_t t, struct pd_batch *batch,
                      struct pd_error *error)
{
    const struct pd_tensor_spec *spec = &sizes->input->media->tensors[t];
    char name[PD_ARRAY_NAME_MAX + 1];
    uint64_t shape[4];
    if (sizes->elements[t] > INT32_MAX)
        return too_many(error, spec->name, sizes->elements[t]);
    uint32_t lead = leading(batch, spec, sizes->elements[t], shape);
    for (uint32_t i = 0; i < spec->rank; i++)
        shape[lead + i] = spec->dims[i];
    array_name(name, spec->name, "");
    int rc = add_array(batch, name, spec->dtype, lead + spec->rank, shape, error);
    bool by_span = spec->unit == PD_UNIT_RUN;
    uint64_t entries = by_span ? sizes->runs[t] : batch->real_segment_count;
    array_name(name, spec->name, "_cu_seqlens");
    if (rc == 0 && spec->axis == PD_AXIS_RAGGED)
        rc = add_array(batch, name, PD_DTYPE_I32, 1, (uint64_t[]){entries + 1}, error);
    array_name(name, spec->name, "_sample_index");
    if (rc == 0 && by_span)
        rc = add_array(batch, name, PD_DTYPE_I32, 1, (uint64_t[]){entries}, error);
    const struct pd_tensor_spec *mask = spec_of(sizes->input->media, spec->pad_mask);
    for (uint32_t i = 0; mask && i < mask->rank; i++)
        shape[lead + i] = mask->dims[i];
    array_name(name, spec->name, "_loss_weight");
    if (rc == 0 && spec->is_loss)
        rc = add_array(batch, name, PD_DTYPE_F32, lead + (mask ? mask->rank : 0), shape, error);
    return rc;
}

int pd_layout_media_measure(const struct pd_layout_input *input, struct pd_batch *batch,
                            struct pd_error *error)
{
    const struct pd_media *media = input->media;
    struct sizes sizes = {.input = input};
    int rc = for_each(input, measure_segment, &sizes);
    for (uint32_t row = 0; rc == 0 && row < input->row_count; row++)
        if (input->rows[row])
            rc = pd_layout_losses_add(input, input->rows[row], batch->losses);
    if (rc != 0)
        return pd_error_set(error, rc, "BODIES", "spans and tensors cannot be read: %s",
                            pd_err_text(rc));
    for (uint32_t t = 0; t < media->tensor_count; t++)
        if (media->tensors[t].is_loss)
            batch->losses[batch->loss_count++].number = media->tensors[t].number;
    if (media->vision)
        rc = add_vision(&sizes, batch, error);
    for (uint32_t t = 0; rc == 0 && t < media->tensor_count; t++)
        rc = add_tensor(&sizes, t, batch, error);
    return rc;
}

/* ---- fill ---- */

struct tensor_out {
    const struct pd_tensor_spec *spec;
    uint8_t *data;
    int32_t *cu;         /* of a ragged one */
    int32_t *samples;    /* of unit RUN */
    uint64_t done, runs; /* of a ragged one: elements and spans written */
    uint64_t item_bytes; /* of one element */
    bool is_mask;        /* of another tensor: what is lacking is padding */
};

struct out {
    const struct pd_layout_input *input;
    const struct pd_batch *batch;
    uint8_t *payload;
    struct pd_vision_out vision;
    struct tensor_out tensors[PD_TENSORS_MAX];
};

static void *view(const struct out *out, const char *tensor, const char *suffix)
{
    char name[PD_ARRAY_NAME_MAX + 1];
    array_name(name, tensor, suffix);
    const struct pd_array *array = pd_batch_find(out->batch, name);
    PD_CHECK(array);
    return out->payload + array->offset_bytes;
}

/* `count` elements of padding. */
static void fill_pad(const struct tensor_out *tensor, uint64_t first, uint64_t count)
{
    uint8_t *at = tensor->data + first * tensor->item_bytes;
    uint64_t bytes = count * tensor->item_bytes;
    size_t scalar = pd_dtype_size_bytes(tensor->spec->dtype);
    if (tensor->is_mask) {
        memset(at, 1, bytes);
        return;
    }
    static const uint8_t zeros[8];
    memset(at, 0, bytes);
    if (memcmp(tensor->spec->pad_value, zeros, scalar) == 0)
        return;
    for (uint64_t i = 0; i < bytes; i += scalar)
        memcpy(at + i, tensor->spec->pad_value, scalar);
}

static bool moves_left(const struct out *out, const struct pd_tensor_spec *spec)
{
    return spec->axis == PD_AXIS_TOKEN && spec->alignment == PD_ALIGN_TARGET &&
           out->input->rules->labels == PD_LABELS_SHIFTED;
}

/* Boundaries of the spans of one segment. */
static int put_runs(struct out *out, struct tensor_out *tensor, const struct place *place)
{
    const struct pd_bodies *bodies = out->input->bodies;
    const uint32_t *of_spans;
    uint32_t spans;
    int rc = bodies->runs(bodies->ctx, place->segment, tensor->spec, &of_spans, &spans);
    for (uint32_t i = 0; rc == 0 && i < spans; i++) {
        uint64_t n = tensor->runs++;
        tensor->cu[n + 1] = tensor->cu[n] + (int32_t)of_spans[i];
        tensor->samples[n] = (int32_t)place->number;
    }
    return rc;
}

/* The elements of one tensor and one segment to their place. Token tensors were filled with padding
 * before. */
static int fill_tensor(struct out *out, struct tensor_out *tensor, const struct place *place)
{
    const struct pd_bodies *bodies = out->input->bodies;
    struct pd_elements which = {0};
    bool has;
    int rc = bodies->elements(bodies->ctx, place->segment, tensor->spec, &which.count, &has);
    if (rc != 0)
        return rc;
    uint64_t at = place->at;
    if (tensor->spec->axis == PD_AXIS_RAGGED) {
        at = tensor->done;
        tensor->done += which.count;
        if (tensor->samples)
            rc = put_runs(out, tensor, place);
        else
            tensor->cu[place->number + 1] = (int32_t)tensor->done;
    } else if (tensor->spec->axis == PD_AXIS_SAMPLE) {
        at = place->number;
        if (which.count == 0)
            fill_pad(tensor, at, 1);
    }
    if (which.count > 0 && moves_left(out, tensor->spec)) {
        which.first = 1;
        which.count--;
    }
    if (rc != 0 || which.count == 0)
        return rc;
    return bodies->tensor(bodies->ctx, place->segment, tensor->spec, which,
                          tensor->data + at * tensor->item_bytes);
}

static int fill_segment(void *ctx, const struct place *place)
{
    struct out *out = ctx;
    const struct pd_media *media = out->input->media;
    const struct pd_bodies *bodies = out->input->bodies;
    const struct pd_span *spans = NULL;
    uint32_t span_count = 0;
    int rc = media->vision && bodies->spans
                 ? bodies->spans(bodies->ctx, place->segment, &spans, &span_count)
                 : 0;
    for (uint32_t i = 0; rc == 0 && i < span_count; i++)
        pd_vision_put(&spans[i], &out->vision);
    for (uint32_t t = 0; rc == 0 && t < media->tensor_count; t++)
        rc = fill_tensor(out, &out->tensors[t], place);
    return rc;
}

static void open_vision(struct out *out)
{
    struct pd_vision_out *vision = &out->vision;
    vision->window = out->input->rules->vision_window;
    vision->cu_seqlens = view(out, "vision_cu_seqlens", "");
    vision->grid_thw = view(out, "image_grid_thw", "");
    vision->cu_seqlens[0] = 0;
    if (vision->window == 0)
        return;
    vision->window_index = view(out, "vision_window_index", "");
    vision->window_cu = view(out, "vision_window_cu_seqlens", "");
    vision->window_cu[0] = 0;
}

static void open_tensor(struct out *out, uint32_t t)
{
    const struct pd_media *media = out->input->media;
    struct tensor_out *tensor = &out->tensors[t];
    *tensor = (struct tensor_out){.spec = &media->tensors[t],
                                  .data = view(out, media->tensors[t].name, ""),
                                  .item_bytes = pd_tensor_element_bytes(&media->tensors[t])};
    for (uint32_t i = 0; i < media->tensor_count; i++)
        tensor->is_mask = tensor->is_mask || (media->tensors[i].is_loss &&
                                              media->tensors[i].pad_mask == tensor->spec->number);
    if (tensor->spec->axis == PD_AXIS_TOKEN)
        fill_pad(tensor, 0, (uint64_t)out->batch->rows * out->batch->width);
    if (tensor->spec->axis != PD_AXIS_RAGGED)
        return;
    tensor->cu = view(out, tensor->spec->name, "_cu_seqlens");
    tensor->cu[0] = 0;
    if (tensor->spec->unit == PD_UNIT_RUN)
        tensor->samples = view(out, tensor->spec->name, "_sample_index");
}

/* ---- loss weights: from what has been written ---- */

struct weights_out {
    struct out *out;
    const struct tensor_out *tensor;
    const uint8_t *mask; /* as served, or NULL */
    uint64_t done;       /* elements of a ragged tensor behind which the next segment's lie */
    uint64_t entries;    /* of one element in the mask */
    float *weights;
};

static void weigh(struct weights_out *w, const struct place *place, uint64_t at, uint64_t count)
{
    uint64_t from = at * w->entries, to = (at + count) * w->entries, valid = 0;
    for (uint64_t i = from; i < to; i++)
        valid += !w->mask || w->mask[i] == 0;
    float weight = entry_weight(place->segment, w->out->input->rules->loss, valid);
    for (uint64_t i = from; i < to; i++)
        w->weights[i] = !w->mask || w->mask[i] == 0 ? weight : 0;
}

static int weigh_segment(void *ctx, const struct place *place)
{
    struct weights_out *w = ctx;
    const struct pd_bodies *bodies = w->out->input->bodies;
    const struct pd_tensor_spec *spec = w->tensor->spec;
    uint64_t count = 0, at = place->at;
    bool has;
    int rc = bodies->elements(bodies->ctx, place->segment, spec, &count, &has);
    if (rc != 0)
        return rc;
    struct pd_elements which = counted(spec, place->segment, count);
    if (spec->axis == PD_AXIS_TOKEN)
        at += which.first - (which.count > 0 && moves_left(w->out, spec) ? 1 : 0);
    else
        at = spec->axis == PD_AXIS_SAMPLE ? place->number : w->done;
    w->done += count;
    weigh(w, place, at, which.count);
    return 0;
}

static int fill_weights(struct out *out, const struct tensor_out *tensor)
{
    const struct pd_tensor_spec *spec = tensor->spec;
    const struct pd_tensor_spec *mask = spec_of(out->input->media, spec->pad_mask);
    char name[PD_ARRAY_NAME_MAX + 1];
    array_name(name, spec->name, "_loss_weight");
    const struct pd_array *array = pd_batch_find(out->batch, name);
    PD_CHECK(array);
    struct weights_out weights = {.out = out,
                                  .tensor = tensor,
                                  .mask = mask ? view(out, mask->name, "") : NULL,
                                  .entries = mask ? pd_tensor_scalars(mask) : 1,
                                  .weights = (void *)(out->payload + array->offset_bytes)};
    memset(weights.weights, 0, array->size_bytes);
    return for_each(out->input, weigh_segment, &weights);
}

int pd_layout_media_fill(const struct pd_layout_input *input, const struct pd_batch *batch,
                         void *payload)
{
    const struct pd_media *media = input->media;
    struct out out = {.input = input, .batch = batch, .payload = payload};
    if (media->vision)
        open_vision(&out);
    for (uint32_t t = 0; t < media->tensor_count; t++)
        open_tensor(&out, t);
    int rc = for_each(input, fill_segment, &out);
    for (uint32_t t = 0; rc == 0 && t < media->tensor_count; t++)
        if (media->tensors[t].is_loss)
            rc = fill_weights(&out, &out.tensors[t]);
    return rc;
}
