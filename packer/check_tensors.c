/* The structural check of named tensors: which arrays there are, how many elements each segment
 * has, padding, loss weights and their totals.
 *
 * Place in the flow: the last part of the media stage of the check, with a plan and heads alone.
 * Pure, any thread, no allocation. Written apart from the layout: what a segment carries is counted
 * from the head as pushed. It does not compare a tensor's bytes with the log. */
#include "packer/check_scan.h"

#include <stdio.h>
#include <string.h>

/* One tensor of the batch. */
struct tensor {
    const struct pd_tensor_spec *spec, *mask;
    const struct pd_array *array, *cu_array, *samples_array, *weight_array, *mask_array;
    const uint8_t *data, *mask_data;
    const int32_t *cu, *samples;
    uint64_t done, runs; /* of a ragged one: elements and spans that segments have accounted for */
    const float *weights;
    uint64_t item_bytes, entries; /* of one element; of one element in the mask, or 1 */
    bool is_mask, moved;          /* another one's pad mask; one place to the left of its token */
    struct pd_tensor_total seen;
};

static int fault(struct pd_scan *scan, const struct tensor *tensor, const char *what,
                 uint64_t place, int64_t expected, int64_t found)
{
    return pd_scan_report(scan, PD_CHECK_TENSORS, place, expected, found,
                          "%s: %s is %lld, expected %lld", tensor->spec->name, what,
                          (long long)found, (long long)expected);
}

static const struct pd_tensor_spec *find_spec(const struct pd_media *media, uint32_t number)
{
    for (uint32_t i = 0; i < media->tensor_count; i++)
        if (media->tensors[i].number == number)
            return &media->tensors[i];
    return NULL;
}

/* The array at place *next of the table must be NAME + suffix of this shape. */
struct want {
    const char *suffix;
    enum pd_dtype dtype;
    uint32_t rank;
    uint64_t shape[5];
};

static int take_array(struct pd_scan *scan, const struct tensor *tensor, uint32_t *next,
                      const struct want *want, const struct pd_array **array)
{
    char name[PD_ARRAY_NAME_MAX + 1];
    snprintf(name, sizeof name, "%s%s", tensor->spec->name, want->suffix);
    if (*next >= scan->media_first + scan->media_count ||
        strcmp(scan->batch->arrays[*next].name, name) != 0)
        return pd_scan_report(scan, PD_CHECK_SHAPE, 0, 0, 0, "%s is missing, or not at its place",
                              name);
    *array = &scan->batch->arrays[(*next)++];
    bool same = (*array)->dtype == want->dtype && (*array)->rank == want->rank;
    for (uint32_t i = 0; same && i < want->rank; i++)
        same = (*array)->shape[i] == want->shape[i];
    if (!same)
        return pd_scan_report(scan, PD_CHECK_SHAPE, 0, want->rank, (*array)->rank,
                              "%s has another dtype or shape than its declaration", name);
    return 0;
}

static void append_dims(struct want *want, const struct pd_tensor_spec *spec)
{
    for (uint32_t i = 0; spec && i < spec->rank; i++)
        want->shape[want->rank++] = spec->dims[i];
}

/* Elements of the whole batch: as the boundaries say, for a ragged one. */
static uint64_t total_elements(const struct pd_scan *scan, const struct tensor *tensor,
                               uint32_t next)
{
    if (tensor->spec->axis == PD_AXIS_SAMPLE)
        return scan->seen.segments;
    return scan->batch->arrays[next].rank > 0 ? scan->batch->arrays[next].shape[0] : 0;
}

/* One boundary a segment, or for unit RUN one a span, with the row of the sample table beside
 * it. */
static int take_boundaries(struct pd_scan *scan, struct tensor *tensor, uint32_t *next)
{
    struct want cu = {"_cu_seqlens", PD_DTYPE_I32, 1, {scan->seen.segments + 1}};
    struct want samples = {"_sample_index", PD_DTYPE_I32, 1, {0}};
    bool by_span = tensor->spec->unit == PD_UNIT_RUN;
    if (by_span && *next + 1 < scan->media_first + scan->media_count)
        samples.shape[0] = scan->batch->arrays[*next + 1].shape[0];
    if (by_span)
        cu.shape[0] = samples.shape[0] + 1;
    int rc = take_array(scan, tensor, next, &cu, &tensor->cu_array);
    if (rc == 0 && by_span)
        rc = take_array(scan, tensor, next, &samples, &tensor->samples_array);
    return rc;
}

static int open_tensor(struct pd_scan *scan, const struct pd_tensor_spec *spec, uint32_t *next,
                       struct tensor *tensor)
{
    const struct pd_media *media = scan->media;
    *tensor = (struct tensor){.spec = spec, .mask = find_spec(media, spec->pad_mask)};
    for (uint32_t i = 0; i < media->tensor_count; i++)
        tensor->is_mask |= media->tensors[i].is_loss && media->tensors[i].pad_mask == spec->number;
    tensor->moved = spec->axis == PD_AXIS_TOKEN && spec->alignment == PD_ALIGN_TARGET &&
                    scan->rules->labels == PD_LABELS_SHIFTED;
    struct want lead = {.dtype = spec->dtype, .suffix = "", .rank = 1};
    lead.shape[0] = total_elements(scan, tensor, *next);
    if (spec->axis == PD_AXIS_TOKEN)
        lead = (struct want){.dtype = spec->dtype,
                             .suffix = "",
                             .rank = 2,
                             .shape = {scan->batch->rows, scan->batch->width}};
    struct want want = lead, weights = lead;
    append_dims(&want, spec);
    int rc = take_array(scan, tensor, next, &want, &tensor->array);
    if (rc == 0 && spec->axis == PD_AXIS_RAGGED)
        rc = take_boundaries(scan, tensor, next);
    append_dims(&weights, tensor->mask);
    weights.suffix = "_loss_weight";
    weights.dtype = PD_DTYPE_F32;
    if (rc == 0 && spec->is_loss)
        rc = take_array(scan, tensor, next, &weights, &tensor->weight_array);
    if (rc != 0 || !tensor->mask)
        return rc;
    tensor->mask_array = pd_batch_find(scan->batch, tensor->mask->name);
    uint64_t elements = tensor->mask_array ? tensor->mask_array->shape[0] : 0;
    if (!tensor->mask_array || elements != tensor->array->shape[0] ||
        tensor->mask_array->size_bytes / pd_tensor_element_bytes(tensor->mask) !=
            tensor->array->size_bytes / pd_tensor_element_bytes(spec))
        return pd_scan_report(scan, PD_CHECK_SHAPE, 0, 0, (int64_t)elements,
                              "the pad mask of %s has other elements", spec->name);
    return 0;
}

/* ---- elements ---- */

/* Elements of a span of the sample that is left in the segment, as `left` of its frames are. */
static int span_elements(struct pd_scan *scan, const struct tensor *tensor,
                         const struct pd_segment *segment, uint32_t span, uint64_t patches,
                         uint64_t *count)
{
    *count = tensor->spec->unit == PD_UNIT_SPAN ? 1 : patches;
    if (tensor->spec->unit != PD_UNIT_RUN)
        return 0;
    return scan->heads->pushed_of_span(scan->heads->ctx, segment, tensor->spec, span, count);
}

/* The next span of unit RUN ends `count` elements on and is of sample `number`. */
static int check_run(struct pd_scan *scan, struct tensor *tensor, uint64_t number, uint64_t count)
{
    if (!tensor->samples)
        return 0;
    uint64_t n = tensor->runs++;
    if (n >= tensor->samples_array->shape[0] || (uint64_t)tensor->samples[n] != number)
        return fault(scan, tensor, "the sample of a span", 0, (int64_t)number,
                     n < tensor->samples_array->shape[0] ? tensor->samples[n] : -1);
    uint64_t found = (uint64_t)tensor->cu[n + 1] - (uint64_t)tensor->cu[n];
    return found == count ? 0
                          : fault(scan, tensor, "the number of elements of a span", 0,
                                  (int64_t)count, (int64_t)found);
}

/* Elements of the sample's spans that are left in the segment. */
static int count_ragged(struct pd_scan *scan, struct tensor *tensor,
                        const struct pd_segment *segment, uint64_t number, uint64_t *count)
{
    const struct pd_head *head;
    int rc = scan->heads->head(scan->heads->ctx, segment, &head);
    const struct pd_prune *rule = &segment->prune;
    uint64_t removed = 0, from = segment->offset_tokens, to = from + segment->length_tokens;
    for (uint32_t i = 0; rc == 0 && i < head->span_count; i++) {
        const struct pd_span *span = &head->spans[i];
        uint64_t at = span->offset_tokens - removed, tokens = span->length_tokens,
                 patches = span->patches, elements;
        bool divides = span->grid_t > 1 && tokens % span->grid_t == 0 &&
                       patches % span->grid_t == 0 && rule->keep_frames > 1;
        if (span->view < 64 && (rule->drop_views >> span->view & 1)) {
            removed += tokens;
            continue;
        }
        if (divides) {
            uint64_t left = (span->grid_t + (uint64_t)rule->keep_frames - 1) / rule->keep_frames;
            removed += tokens - tokens / span->grid_t * left;
            patches = patches / span->grid_t * left;
        }
        if (at < from || at >= to || !pd_tensor_has_view(tensor->spec, span->view))
            continue;
        rc = span_elements(scan, tensor, segment, i, patches, &elements);
        if (rc == 0)
            rc = check_run(scan, tensor, number, elements);
        *count += rc == 0 ? elements : 0;
    }
    return rc;
}

static int count_elements(struct pd_scan *scan, struct tensor *tensor,
                          const struct pd_segment *segment, uint64_t number, uint64_t *count)
{
    const struct pd_tensor_spec *spec = tensor->spec;
    uint64_t pushed;
    bool has;
    *count = 0;
    int rc = scan->heads->pushed(scan->heads->ctx, segment, spec, &pushed, &has);
    if (rc != 0 || !has)
        return rc;
    if (spec->axis == PD_AXIS_TOKEN)
        *count = segment->length_tokens;
    else if (spec->axis == PD_AXIS_RAGGED && spec->unit != PD_UNIT_SAMPLE)
        return count_ragged(scan, tensor, segment, number, count);
    else
        *count = segment->part == 0 ? pushed : 0;
    return 0;
}

/* Elements [from, to) hold padding. */
static int check_pad(struct pd_scan *scan, const struct tensor *tensor, uint64_t from, uint64_t to)
{
    size_t scalar = pd_dtype_size_bytes(tensor->spec->dtype);
    uint8_t pad[8];
    memset(pad, 1, sizeof pad);
    if (!tensor->is_mask)
        memcpy(pad, tensor->spec->pad_value, sizeof pad);
    for (uint64_t i = from * tensor->item_bytes; i < to * tensor->item_bytes; i += scalar)
        if (memcmp(tensor->data + i, pad, scalar) != 0)
            return fault(scan, tensor, "a padding element",
                         tensor->spec->axis == PD_AXIS_TOKEN ? i / tensor->item_bytes : 0, pad[0],
                         tensor->data[i]);
    return 0;
}

/* ---- losses ---- */

static bool same_float(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Entries of elements [at, at + count) weigh what the segment gives them where the mask lets
 * them. */
static int check_weights(struct pd_scan *scan, struct tensor *tensor,
                         const struct pd_segment *segment, uint64_t at, uint64_t count)
{
    uint64_t from = at * tensor->entries, to = (at + count) * tensor->entries, valid = 0;
    for (uint64_t i = from; i < to; i++)
        valid += !tensor->mask_data || tensor->mask_data[i] == 0;
    float weight = segment->weight;
    if (scan->rules->loss == PD_LOSS_SAMPLE)
        weight = valid > 0 ? (float)((double)segment->weight / (double)valid) : 0;
    for (uint64_t i = from; i < to; i++) {
        bool counts = !tensor->mask_data || tensor->mask_data[i] == 0;
        if (!same_float(tensor->weights[i], counts ? weight : 0))
            return fault(scan, tensor, "a loss weight",
                         tensor->spec->axis == PD_AXIS_TOKEN ? i / tensor->entries : 0, counts,
                         tensor->weights[i] != 0);
    }
    tensor->seen.count += valid;
    tensor->seen.weight += (double)weight * (double)valid;
    return 0;
}

/* No weight on elements [from, to). */
static int check_weightless(struct pd_scan *scan, const struct tensor *tensor, uint64_t from,
                            uint64_t to)
{
    for (uint64_t i = from * tensor->entries; i < to * tensor->entries; i++)
        if (!same_float(tensor->weights[i], 0))
            return fault(scan, tensor, "the loss weight of what does not count", from, 0, 1);
    return 0;
}

/* ---- segments ---- */

/* Where a segment lies: row of the sample table, positions. */
struct place {
    const struct pd_segment *segment;
    uint64_t number, at, end; /* end: of its slot, or of the row behind the last one */
};

static int check_token_segment(struct pd_scan *scan, struct tensor *tensor,
                               const struct place *place, uint64_t count)
{
    const struct pd_segment *segment = place->segment;
    bool target = tensor->spec->alignment == PD_ALIGN_TARGET;
    uint64_t served = count > 0 && tensor->moved ? count - 1 : count;
    int rc = check_pad(scan, tensor, place->at + served, place->end);
    if (rc != 0 || !tensor->weights)
        return rc;
    uint64_t skip = target || segment->overlap_tokens ? 1 : 0;
    uint64_t counted = count > skip ? count - skip : 0;
    uint64_t first = place->at + (tensor->moved ? 0 : skip);
    rc = check_weightless(scan, tensor, place->at, counted > 0 ? first : place->end);
    if (rc == 0 && counted > 0)
        rc = check_weightless(scan, tensor, first + counted, place->end);
    return rc == 0 ? check_weights(scan, tensor, segment, first, counted) : rc;
}

static int check_segment(struct pd_scan *scan, struct tensor *tensor, const struct place *place)
{
    uint64_t count, at = place->number;
    int rc = count_elements(scan, tensor, place->segment, place->number, &count);
    if (rc != 0)
        return rc;
    if (tensor->spec->axis == PD_AXIS_TOKEN)
        return check_token_segment(scan, tensor, place, count);
    if (tensor->spec->axis == PD_AXIS_SAMPLE && count == 0)
        rc = check_pad(scan, tensor, at, at + 1);
    if (tensor->spec->axis == PD_AXIS_RAGGED) {
        at = tensor->done;
        tensor->done += count;
        uint64_t end = tensor->samples ? tensor->done : (uint64_t)tensor->cu[place->number + 1];
        uint64_t found = end - at;
        if (found != count)
            return fault(scan, tensor, "the number of elements of a segment", place->at,
                         (int64_t)count, (int64_t)found);
    }
    if (rc != 0 || !tensor->weights)
        return rc;
    if (count == 0 && tensor->spec->axis == PD_AXIS_SAMPLE)
        rc = check_weightless(scan, tensor, at, at + 1);
    return rc == 0 ? check_weights(scan, tensor, place->segment, at, count) : rc;
}

static int check_row(struct pd_scan *scan, struct tensor *tensor, uint32_t row, uint64_t *number)
{
    const struct pd_pack *pack = scan->rows[row];
    uint64_t at = (uint64_t)row * scan->batch->width, row_end = at + scan->batch->width;
    uint32_t count = pack ? pack->segment_count : 0;
    int rc = 0;
    if (count == 0 && tensor->spec->axis == PD_AXIS_TOKEN) {
        rc = check_pad(scan, tensor, at, row_end);
        return rc == 0 && tensor->weights ? check_weightless(scan, tensor, at, row_end) : rc;
    }
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        const struct pd_segment *segment = &pack->segments[i];
        struct place place = {segment, (*number)++, at, at + segment->slot_tokens};
        at = place.end;
        place.end = i + 1 == count ? row_end : at;
        rc = check_segment(scan, tensor, &place);
    }
    return rc;
}

static int check_total(struct pd_scan *scan, const struct tensor *tensor, uint32_t loss)
{
    const struct pd_batch *batch = scan->batch;
    const struct pd_tensor_total *told = &batch->losses[loss];
    if (loss >= batch->loss_count || told->number != tensor->spec->number)
        return fault(scan, tensor, "the number of loss totals", 0, loss + 1, batch->loss_count);
    if (told->count != tensor->seen.count)
        return pd_scan_report(scan, PD_CHECK_TOTALS, 0, (int64_t)tensor->seen.count,
                              (int64_t)told->count, "%s counts %llu, expected %llu",
                              tensor->spec->name, (unsigned long long)told->count,
                              (unsigned long long)tensor->seen.count);
    if (memcmp(&told->weight, &tensor->seen.weight, sizeof told->weight) != 0)
        return pd_scan_report(scan, PD_CHECK_TOTALS, 0, 0, 0, "%s weighs %.17g, expected %.17g",
                              tensor->spec->name, told->weight, tensor->seen.weight);
    return 0;
}

/* The table is proved when this runs: data, boundaries and weights have their full length. */
static void open_views(const struct pd_scan *scan, struct tensor *tensor)
{
    tensor->data = scan->payload + tensor->array->offset_bytes;
    tensor->item_bytes = pd_tensor_element_bytes(tensor->spec);
    tensor->entries = tensor->mask ? pd_tensor_scalars(tensor->mask) : 1;
    if (tensor->cu_array)
        tensor->cu = (const void *)(scan->payload + tensor->cu_array->offset_bytes);
    if (tensor->samples_array)
        tensor->samples = (const void *)(scan->payload + tensor->samples_array->offset_bytes);
    if (!tensor->weight_array)
        return;
    tensor->weights = (const void *)(scan->payload + tensor->weight_array->offset_bytes);
    if (tensor->mask)
        tensor->mask_data = scan->payload + tensor->mask_array->offset_bytes;
}

static int check_tensor(struct pd_scan *scan, struct tensor *tensor, uint32_t *loss)
{
    uint64_t number = 0;
    int rc = 0;
    open_views(scan, tensor);
    for (uint32_t row = 0; rc == 0 && row < scan->batch->rows; row++)
        rc = check_row(scan, tensor, row, &number);
    if (rc == 0 && tensor->cu && tensor->done != tensor->array->shape[0])
        rc = fault(scan, tensor, "the number of elements", 0, (int64_t)tensor->done,
                   (int64_t)tensor->array->shape[0]);
    if (rc == 0 && tensor->samples && tensor->runs != tensor->samples_array->shape[0])
        rc = fault(scan, tensor, "the number of spans", 0, (int64_t)tensor->runs,
                   (int64_t)tensor->samples_array->shape[0]);
    return rc == 0 && tensor->spec->is_loss ? check_total(scan, tensor, (*loss)++) : rc;
}

int pd_scan_tensors(struct pd_scan *scan)
{
    const struct pd_media *media = scan->media;
    uint32_t next = scan->media_first, loss = 0;
    if (media->vision)
        next += scan->rules->vision_window > 0 ? 4 : 2;
    uint32_t first = next;
    struct tensor tensor;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < media->tensor_count; i++)
        rc = open_tensor(scan, &media->tensors[i], &next, &tensor);
    if (rc == 0 && next != scan->media_first + scan->media_count)
        rc = pd_scan_report(scan, PD_CHECK_SHAPE, 0, next, scan->media_first + scan->media_count,
                            "there are more arrays than the step's tensors need");
    next = first;
    for (uint32_t i = 0; rc == 0 && i < media->tensor_count; i++) {
        rc = open_tensor(scan, &media->tensors[i], &next, &tensor);
        if (rc == 0)
            rc = check_tensor(scan, &tensor, &loss);
    }
    if (rc == 0 && loss != scan->batch->loss_count)
        rc = pd_scan_report(scan, PD_CHECK_TOTALS, 0, loss, scan->batch->loss_count,
                            "there are %u loss totals, expected %u", scan->batch->loss_count, loss);
    return rc;
}
