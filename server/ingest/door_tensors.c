/* The door's checks of named tensors.
 *
 * Place in the flow: called by door.c for a block's tensor table, then sample by sample; the
 * caller's thread. Invariant: the declarations it makes have no fault (pd_tensor_spec_fault), and
 * an accepted sample's elements are those that its spans call for. Of the values only booleans are
 * looked at: floats are the producer's. It does not know what the feed's tensors were declared as
 * before: the sequencer compares. */
#include "server/ingest/door_parts.h"

#include "base/check.h"
#include "base/digest.h"

#include <stdio.h>

static const enum pd_dtype dtypes[] = {
    [PACKD__V1__DTYPE__DTYPE_BOOL] = PD_DTYPE_BOOL,
    [PACKD__V1__DTYPE__DTYPE_UINT8] = PD_DTYPE_U8,
    [PACKD__V1__DTYPE__DTYPE_INT8] = PD_DTYPE_I8,
    [PACKD__V1__DTYPE__DTYPE_UINT16] = PD_DTYPE_U16,
    [PACKD__V1__DTYPE__DTYPE_INT16] = PD_DTYPE_I16,
    [PACKD__V1__DTYPE__DTYPE_UINT32] = PD_DTYPE_U32,
    [PACKD__V1__DTYPE__DTYPE_INT32] = PD_DTYPE_I32,
    [PACKD__V1__DTYPE__DTYPE_UINT64] = PD_DTYPE_U64,
    [PACKD__V1__DTYPE__DTYPE_INT64] = PD_DTYPE_I64,
    [PACKD__V1__DTYPE__DTYPE_FLOAT16] = PD_DTYPE_F16,
    [PACKD__V1__DTYPE__DTYPE_BFLOAT16] = PD_DTYPE_BF16,
    [PACKD__V1__DTYPE__DTYPE_FLOAT32] = PD_DTYPE_F32,
    [PACKD__V1__DTYPE__DTYPE_FLOAT64] = PD_DTYPE_F64,
};

/* ---- the table ---- */

static int bad(struct pd_error *error, const Packd__V1__TensorSpec *wire, const char *what)
{
    return pd_error_set(error, PD_EINVAL, "BAD_TENSOR", "head.tensors: '%.48s': %s", wire->name,
                        what);
}

static bool ends_with(const char *name, const char *suffix)
{
    size_t size = strlen(name), tail = strlen(suffix);

    return size >= tail && strcmp(name + size - tail, suffix) == 0;
}

/* Arrays that a batch makes of a tensor: two that are called alike could not be served together.
 * `__metadata__` is what a safetensors file calls its own. */
static bool is_made(const char *name)
{
    return ends_with(name, "_cu_seqlens") || ends_with(name, "_sample_index") ||
           ends_with(name, "_loss_weight") || strncmp(name, "vision_", 7) == 0 ||
           strcmp(name, "__metadata__") == 0;
}

/* Arrays that a batch has by itself or makes of a tensor or of spans. */
static int check_name(const Packd__V1__TensorSpec *wire, struct pd_error *error)
{
    static const char *const built_in[] = {
        "tokens",         "positions",     "segment_ids", "seq_lens",        "sample_index",
        "labels",         "loss_weight",   "cu_seqlens",  "cu_seqlens_real", "cu_seqlens_padded",
        "image_grid_thw", "video_grid_thw"};
    size_t size = strlen(wire->name);
    size_t good =
        strspn(wire->name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");

    if (size == 0 || size > PD_TENSOR_NAME_MAX || good != size)
        return pd_error_set(error, PD_EINVAL, "BAD_NAME",
                            "head.tensors: the name '%.64s' has %zu bytes; expected 1 to %d of "
                            "[A-Za-z0-9_]",
                            wire->name, size, PD_TENSOR_NAME_MAX);
    bool reserved = is_made(wire->name);
    for (size_t i = 0; i < PD_COUNT_OF(built_in); i++)
        reserved = reserved || strcmp(wire->name, built_in[i]) == 0;
    if (reserved)
        return pd_error_set(error, PD_EINVAL, "RESERVED_NAME",
                            "head.tensors: '%s' is the name of an array that batches have of "
                            "themselves or make of a tensor; choose another",
                            wire->name);
    return 0;
}

/* The wire's declaration as the log keeps it, numbered by its place; views that are not there stay
 * out. */
static struct pd_tensor_spec spec_of(const Packd__V1__TensorSpec *wire, uint32_t place,
                                     const struct door_views *views)
{
    struct pd_tensor_spec spec = {.number = place, .pad_mask = PD_TENSOR_NONE};

    memcpy(spec.name, wire->name, strnlen(wire->name, PD_TENSOR_NAME_MAX));
    spec.dtype = (uint8_t)dtypes[wire->dtype];
    spec.axis = (uint8_t)(wire->axis - PACKD__V1__AXIS__AXIS_TOKEN);
    spec.unit = (uint8_t)wire->unit;
    spec.alignment = (uint8_t)wire->alignment;
    spec.is_loss = wire->loss != NULL;
    spec.rank = (uint8_t)wire->n_dims;
    for (size_t i = 0; i < wire->n_dims; i++)
        spec.dims[i] = wire->dims[i];
    if (wire->pad_value.len > 0)
        memcpy(spec.pad_value, wire->pad_value.data, wire->pad_value.len);
    for (size_t i = 0; i < wire->n_span_views; i++) {
        uint32_t view = door_views_find(views, wire->span_views[i]);
        spec.views |= view < views->count ? 1ull << view : 0;
    }
    return spec;
}

/* What spec_of relies on. */
static int check_ranges(const Packd__V1__TensorSpec *wire, struct pd_error *error)
{
    if (wire->dtype < PACKD__V1__DTYPE__DTYPE_BOOL || wire->dtype > PACKD__V1__DTYPE__DTYPE_FLOAT64)
        return bad(error, wire, "dtype is none of DType");
    if (wire->axis < PACKD__V1__AXIS__AXIS_TOKEN || wire->axis > PACKD__V1__AXIS__AXIS_SAMPLE)
        return bad(error, wire, "axis is none of Axis");
    if (wire->unit < PACKD__V1__RAGGED_UNIT__RAGGED_SAMPLE ||
        wire->unit > PACKD__V1__RAGGED_UNIT__RAGGED_RUN)
        return bad(error, wire, "unit is none of RaggedUnit");
    if (wire->alignment < PACKD__V1__ALIGNMENT__ALIGN_TARGET ||
        wire->alignment > PACKD__V1__ALIGNMENT__ALIGN_INPUT)
        return bad(error, wire, "alignment is none of Alignment");
    if (wire->n_dims > PD_TENSOR_RANK_MAX)
        return bad(error, wire, "more than 3 dims");
    size_t size = pd_dtype_size_bytes(dtypes[wire->dtype]);
    if (wire->pad_value.len != 0 && wire->pad_value.len != size)
        return bad(error, wire, "pad_value is not one scalar of the dtype");
    if (dtypes[wire->dtype] == PD_DTYPE_BOOL && wire->pad_value.len > 0 &&
        wire->pad_value.data[0] > 1)
        return bad(error, wire, "pad_value of a BOOL tensor is neither 0 nor 1");
    if (wire->n_span_views > 0 && wire->unit == PACKD__V1__RAGGED_UNIT__RAGGED_SAMPLE)
        return bad(error, wire, "span_views without a unit of spans");
    return 0;
}

static int check_counts(const Packd__V1__TensorSpec *wire, const Packd__V1__BlockHead *head,
                        struct pd_error *error)
{
    char name[PD_TENSOR_NAME_MAX + 24];
    bool ragged = wire->axis == PACKD__V1__AXIS__AXIS_RAGGED;
    bool run = wire->unit == PACKD__V1__RAGGED_UNIT__RAGGED_RUN;

    if (!ragged && wire->n_counts > 0)
        return bad(error, wire, "counts are for ragged tensors only");
    (void)snprintf(name, sizeof(name), "tensors['%s'].counts", wire->name);
    return door_check_column(name, wire->n_counts, run ? door_wire_spans(head) : head->n_lengths,
                             run ? "span" : "sample", error);
}

static int check_span_views(const Packd__V1__TensorSpec *wire, struct door_views *views,
                            struct pd_error *error)
{
    for (size_t i = 0; i < wire->n_span_views; i++) {
        int rc = pd_name_check("a tensor's span_views", wire->span_views[i], error);
        if (rc == 0)
            rc = door_views_add(views, wire->span_views[i], error);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int check_one(const Packd__V1__BlockHead *head, size_t place, struct door_views *views,
                     struct pd_error *error)
{
    const Packd__V1__TensorSpec *wire = head->tensors[place];
    int rc;

    if ((rc = check_name(wire, error)) != 0 || (rc = check_ranges(wire, error)) != 0 ||
        (rc = check_counts(wire, head, error)) != 0 ||
        (rc = check_span_views(wire, views, error)) != 0)
        return rc;
    for (size_t i = 0; i < place; i++)
        if (strcmp(head->tensors[i]->name, wire->name) == 0)
            return bad(error, wire, "it is there twice");
    struct pd_tensor_spec spec = spec_of(wire, (uint32_t)place, views);
    const char *fault = pd_tensor_spec_fault(&spec);
    return fault ? bad(error, wire, fault) : 0;
}

/* The place of the tensor's pad mask, or n_tensors. */
static size_t mask_place(const Packd__V1__BlockHead *head, const Packd__V1__TensorSpec *wire)
{
    size_t i = 0;

    while (i < head->n_tensors && strcmp(head->tensors[i]->name, wire->loss->pad_mask) != 0)
        i++;
    return i;
}

static int check_mask(const Packd__V1__BlockHead *head, const Packd__V1__TensorSpec *wire,
                      struct pd_error *error)
{
    if (!wire->loss || !wire->loss->pad_mask[0])
        return 0;
    size_t place = mask_place(head, wire);
    const Packd__V1__TensorSpec *mask = place < head->n_tensors ? head->tensors[place] : NULL;
    if (!mask)
        return bad(error, wire, "loss.pad_mask is no tensor of this block");
    if (mask == wire)
        return bad(error, wire, "loss.pad_mask is the tensor itself");
    if (mask->dtype != PACKD__V1__DTYPE__DTYPE_BOOL && mask->dtype != PACKD__V1__DTYPE__DTYPE_UINT8)
        return bad(error, wire, "loss.pad_mask is neither a BOOL nor a UINT8 tensor");
    if (mask->axis != wire->axis || mask->unit != wire->unit)
        return bad(error, wire, "loss.pad_mask has another axis or unit");
    if (mask->n_dims > wire->n_dims ||
        (mask->n_dims > 0 &&
         memcmp(mask->dims, wire->dims, mask->n_dims * sizeof(*mask->dims)) != 0))
        return bad(error, wire, "the dims of loss.pad_mask do not begin its own");
    return 0;
}

/* The views that spans and tensors name together. Of a block whose spans were checked. */
static int collect_views(const Packd__V1__BlockHead *wire, struct door_views *views,
                         struct pd_error *error)
{
    *views = (struct door_views){0};
    for (size_t i = 0; wire->spans && i < wire->spans->n_views; i++)
        views->names[views->count++] = wire->spans->views[i];
    if (door_wire_spans(wire) > 0 && views->count == 0)
        views->names[views->count++] = "default";
    views->of_spans = views->count;
    for (size_t k = 0; k < wire->n_tensors; k++) {
        int rc = check_span_views(wire->tensors[k], views, error);
        if (rc != 0)
            return rc;
    }
    return 0;
}

int door_check_tensors(const Packd__V1__BlockHead *wire, struct pd_error *error)
{
    struct door_views views;

    if (wire->n_tensors > PD_TENSORS_MAX)
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY_TENSORS",
                            "head.tensors has %zu entries; at most %d tensors are possible",
                            wire->n_tensors, PD_TENSORS_MAX);
    int rc = collect_views(wire, &views, error);
    for (size_t k = 0; k < wire->n_tensors && rc == 0; k++)
        rc = check_one(wire, k, &views, error);
    for (size_t k = 0; k < wire->n_tensors && rc == 0; k++)
        rc = check_mask(wire, wire->tensors[k], error);
    return rc;
}

/* ---- sizes ---- */

static uint64_t element_bytes(const Packd__V1__TensorSpec *wire)
{
    uint64_t bytes = pd_dtype_size_bytes(dtypes[wire->dtype]);

    for (size_t i = 0; i < wire->n_dims; i++)
        bytes *= wire->dims[i];
    return bytes;
}

bool door_tensors_bytes(const Packd__V1__BlockHead *wire, uint64_t tokens, uint64_t *bytes)
{
    *bytes = 0;
    for (size_t k = 0; k < wire->n_tensors; k++) {
        const Packd__V1__TensorSpec *tensor = wire->tensors[k];
        uint64_t elements = wire->n_lengths, column;
        if (tensor->axis == PACKD__V1__AXIS__AXIS_TOKEN)
            elements = tokens;
        if (tensor->axis == PACKD__V1__AXIS__AXIS_RAGGED) {
            elements = 0;
            for (size_t i = 0; i < tensor->n_counts; i++)
                elements += tensor->counts[i];
            if (elements > UINT32_MAX)
                return false;
        }
        if (__builtin_mul_overflow(elements, element_bytes(tensor), &column) ||
            __builtin_add_overflow(*bytes, column, bytes))
            return false;
    }
    return true;
}

/* ---- one sample after the other ---- */

void door_start_tensors(struct making *making, uint64_t columns_bytes)
{
    const Packd__V1__BlockHead *wire = making->wire;
    struct pd_body body = making->tokens;

    PD_CHECK(collect_views(wire, &making->views, NULL) == 0);
    making->tensor_count = (uint32_t)wire->n_tensors;
    pd_body_skip(&body, columns_bytes);
    for (uint32_t k = 0; k < making->tensor_count; k++) {
        const Packd__V1__TensorSpec *tensor = wire->tensors[k];
        struct pd_tensor_spec *spec = &making->tensors[k];
        *spec = spec_of(tensor, k, &making->views);
        if (tensor->loss && tensor->loss->pad_mask[0])
            spec->pad_mask = (uint8_t)mask_place(wire, tensor);
        making->ragged_count += spec->axis == PD_AXIS_RAGGED;
        making->run_count += spec->unit == PD_UNIT_RUN;
        making->tensor_bodies[k] = body;
        uint64_t elements = wire->n_lengths;
        if (spec->axis == PD_AXIS_TOKEN)
            for (size_t i = elements = 0; i < wire->n_lengths; i++)
                elements += wire->lengths[i];
        if (spec->axis == PD_AXIS_RAGGED)
            for (size_t i = elements = 0; i < tensor->n_counts; i++)
                elements += tensor->counts[i];
        pd_body_skip(&body, elements * pd_tensor_element_bytes(spec));
    }
}

/* Elements of the sample in tensor k, as the wire's counts say; the sample's spans begin at
 * `span_at` in the columns. */
static uint64_t elements_of(const struct making *making, uint32_t k, uint32_t index,
                            uint32_t span_at)
{
    const Packd__V1__TensorSpec *wire = making->wire->tensors[k];
    const struct pd_tensor_spec *spec = &making->tensors[k];
    uint64_t elements = 0;

    if (spec->axis == PD_AXIS_TOKEN)
        return making->wire->lengths[index];
    if (spec->axis == PD_AXIS_SAMPLE)
        return 1;
    if (wire->n_counts == 0)
        return 0;
    if (spec->unit != PD_UNIT_RUN)
        return wire->counts[index];
    for (uint32_t s = 0; s < door_sample_spans(making, index); s++)
        elements += wire->counts[span_at + s];
    return elements;
}

uint64_t door_sample_tensor_bytes(const struct making *making, uint32_t index)
{
    uint64_t bytes = 0;

    for (uint32_t k = 0; k < making->tensor_count; k++)
        bytes += elements_of(making, k, index, making->span_at) *
                 pd_tensor_element_bytes(&making->tensors[k]);
    return bytes;
}

/* What the sample's spans call for in a tensor of unit SPAN or PATCH. */
static uint64_t called_for(const struct making *making, const struct pd_tensor_spec *spec,
                           uint32_t index)
{
    uint32_t count;
    const struct pd_span *spans = door_spans_of(making, index, &count);
    uint64_t elements = 0;

    for (uint32_t s = 0; s < count; s++)
        if (pd_tensor_has_view(spec, spans[s].view))
            elements += spec->unit == PD_UNIT_PATCH ? spans[s].patches : 1;
    return elements;
}

/* A tensor of unit RUN has nothing for spans of other views. */
static void check_run(struct making *making, uint32_t k, uint32_t index)
{
    const Packd__V1__TensorSpec *wire = making->wire->tensors[k];
    uint32_t count;
    const struct pd_span *spans = door_spans_of(making, index, &count);
    uint32_t first = making->span_count - count;

    for (uint32_t s = 0; wire->n_counts > 0 && s < count; s++) {
        uint32_t elements = wire->counts[making->span_places[first + s]];
        if (elements > 0 && !pd_tensor_has_view(&making->tensors[k], spans[s].view))
            door_refuse(making, index,
                        (struct pd_door_reject){.reason = PD_DOOR_BAD_RAGGED,
                                                .detail = PD_DOOR_RAGGED_VIEW,
                                                .tensor = (uint8_t)k,
                                                .at = s,
                                                .found = elements});
    }
}

static void check_elements(struct making *making, uint32_t k, uint32_t index, uint64_t elements)
{
    const struct pd_tensor_spec *spec = &making->tensors[k];

    if (spec->unit == PD_UNIT_SAMPLE || door_refused(making, index))
        return;
    if (spec->unit == PD_UNIT_RUN) {
        check_run(making, k, index);
        return;
    }
    uint64_t expected = called_for(making, spec, index);
    if (elements != expected)
        door_refuse(making, index,
                    (struct pd_door_reject){.reason = PD_DOOR_BAD_RAGGED,
                                            .detail = PD_DOOR_RAGGED_COUNT,
                                            .tensor = (uint8_t)k,
                                            .found = (int64_t)elements,
                                            .expected = (int64_t)expected});
}

static void check_booleans(struct making *making, uint32_t k, uint32_t index, struct pd_body body,
                           uint64_t size)
{
    uint64_t before = 0;

    while (size > 0) {
        size_t run;
        const uint8_t *data = pd_body_run(&body, (size_t)size, &run);
        uint8_t all = 0;
        for (size_t i = 0; i < run; i++)
            all |= data[i];
        for (size_t i = 0; all > 1 && i < run; i++) {
            if (data[i] <= 1)
                continue;
            door_refuse(making, index,
                        (struct pd_door_reject){.reason = PD_DOOR_BAD_VALUE,
                                                .tensor = (uint8_t)k,
                                                .at = (uint32_t)(before + i),
                                                .found = data[i]});
            return;
        }
        if (run == 0)
            return;
        before += run;
        size -= run;
    }
}

static uint64_t digest(struct pd_body *body, uint64_t size)
{
    struct pd_digest_stream stream;
    size_t run;
    const uint8_t *data = size > 0 ? pd_body_run(body, (size_t)size, &run) : NULL;

    if (!data || run == size)
        return pd_digest(data, data ? run : 0);
    pd_digest_begin(&stream);
    while (data) {
        pd_digest_add(&stream, data, run);
        size -= run;
        data = size > 0 ? pd_body_run(body, (size_t)size, &run) : NULL;
    }
    return pd_digest_end(&stream);
}

void door_take_tensors(struct making *making, uint32_t index)
{
    uint32_t span_at = making->span_at - door_sample_spans(making, index);
    uint32_t *ends = making->ragged_ends;

    for (uint32_t k = 0; k < making->tensor_count; k++) {
        const struct pd_tensor_spec *spec = &making->tensors[k];
        struct pd_body *body = &making->tensor_bodies[k];
        uint64_t elements = elements_of(making, k, index, span_at);
        uint64_t size = elements * pd_tensor_element_bytes(spec);
        check_elements(making, k, index, elements);
        if (spec->dtype == PD_DTYPE_BOOL)
            check_booleans(making, k, index, *body, size);
        making->tensor_digests[(size_t)k * making->count + index] = digest(body, size);
        if (spec->axis != PD_AXIS_RAGGED)
            continue;
        ends[index] = (uint32_t)elements + (index > 0 ? ends[index - 1] : 0);
        ends += making->count;
    }
}

void door_fill_span_counts(const struct making *making, uint32_t *counts)
{
    for (uint32_t k = 0; k < making->tensor_count; k++) {
        const Packd__V1__TensorSpec *wire = making->wire->tensors[k];
        if (making->tensors[k].unit != PD_UNIT_RUN || making->span_count == 0)
            continue;
        for (uint32_t s = 0; s < making->span_count; s++)
            counts[s] = wire->n_counts > 0 ? wire->counts[making->span_places[s]] : 0;
        counts += making->span_count;
    }
}
