/* Spans and tensors as columns of a block.
 *
 * Place in the flow: beside lib_block.c, which owns the block and its messages. Tensor data is
 * copied once, at put. Invariant: between two calls every column has its entries for exactly the
 * samples that were added; an add that fails, or is undone, leaves the sizes as they were. It does
 * not check what only the server can know: grids against a feed's positions, declarations against
 * earlier ones. */
#include "client/lib_media.h"

#include "base/check.h"
#include "base/name.h"
#include "client/lib_error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TENSOR_NAME_MAX 48
#define SPAN_BYTES_MAX 60        /* of one span in all columns */
#define DECLARATION_BYTES_MAX 96 /* of one tensor, its names left out */
#define COUNT_BYTES_MAX 5
#define NAME_FRAME_BYTES 4

enum span_column { VIEW, OFFSETS, LENGTHS, PATCHES, GRID_T, GRID_H, GRID_W, T_SCALE, SPAN_COLUMNS };

/* A tensor of the block: a copy of the first declaration, and the columns. */
struct tensor {
    struct packd_tensor spec; /* data, elements, run_counts unused */
    char name[TENSOR_NAME_MAX + 1], pad_mask[TENSOR_NAME_MAX + 1];
    uint8_t pad_value[8];
    uint64_t views;             /* bits of the block's views; 0 = all */
    char **span_views;          /* their names, in the block's table; as many as spec has */
    struct pd_buf data, counts; /* counts: uint32, ragged only; per sample, unit RUN per span */
};

struct marks {
    size_t counts, spans[SPAN_COLUMNS], data[PD_CLIENT_TENSORS_MAX],
        tensor_counts[PD_CLIENT_TENSORS_MAX];
    uint32_t view_count, tensor_count, merge;
    bool has_grids, has_spans;
};

struct pd_client_media {
    char views[PD_CLIENT_VIEWS_MAX][PD_NAME_MAX + 1];
    uint32_t view_count, merge;
    bool has_grids, has_spans;
    struct pd_buf counts; /* uint32: spans of each sample */
    struct pd_buf spans[SPAN_COLUMNS];
    struct tensor tensors[PD_CLIENT_TENSORS_MAX];
    uint32_t tensor_count;
    struct marks before; /* the last add */
    /* for the head */
    Packd__V1__Spans wire_spans;
    Packd__V1__TensorSpec wire[PD_CLIENT_TENSORS_MAX], *wire_list[PD_CLIENT_TENSORS_MAX];
    Packd__V1__LossDecl losses[PD_CLIENT_TENSORS_MAX];
    char *view_list[PD_CLIENT_VIEWS_MAX];
};

/* ---- a sample by itself ---------------------------------------------------------------------- */

static bool has_media(const struct packd_sample *sample)
{
    return sample->span_count > 0 || sample->tensor_count > 0;
}

static const char *view_of(const struct packd_span *span)
{
    return span->view ? span->view : "default";
}

static size_t element_bytes(const struct packd_tensor *tensor)
{
    size_t bytes = packd_dtype_bytes(tensor->dtype);
    for (uint32_t i = 0; i < tensor->ndim; i++)
        if (__builtin_mul_overflow(bytes, tensor->dims[i], &bytes))
            return SIZE_MAX;
    return bytes;
}

static int bad_tensor(struct packd_error *error, const struct packd_tensor *tensor,
                      const char *what)
{
    return pd_client_error(error, PACKD_EINVAL, "BAD_TENSOR", "tensor '%.48s': %s",
                           tensor->name ? tensor->name : "", what);
}

static int check_name(const struct packd_tensor *tensor, struct packd_error *error)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
    const char *name = tensor->name ? tensor->name : "";
    size_t size = strlen(name);
    if (size > 0 && size <= TENSOR_NAME_MAX && strspn(name, letters) == size)
        return 0;
    return pd_client_error(error, PACKD_EINVAL, "BAD_NAME",
                           "tensor '%.64s': a name has 1 to %d of [A-Za-z0-9_]", name,
                           TENSOR_NAME_MAX);
}

static int check_views(const struct packd_tensor *tensor, struct packd_error *error)
{
    struct pd_error why = {0};
    if (tensor->span_view_count > 0 && tensor->unit == PACKD_UNIT_SAMPLE)
        return bad_tensor(error, tensor, "span_views without a unit of spans");
    for (size_t i = 0; i < tensor->span_view_count; i++)
        if (pd_name_check("view", tensor->span_views[i], &why) != 0)
            return pd_client_error_from(error, &why);
    return 0;
}

static uint64_t run_total(const struct packd_sample *sample, const struct packd_tensor *tensor)
{
    uint64_t total = 0;
    for (size_t s = 0; s < sample->span_count; s++)
        total += tensor->run_counts[s];
    return total;
}

/* That data and counts are there, and as many as the declaration says. */
static int check_elements(const struct packd_sample *sample, const struct packd_tensor *tensor,
                          struct packd_error *error)
{
    size_t bytes = element_bytes(tensor);
    if (bytes == 0 || tensor->elements > UINT32_MAX || bytes > SIZE_MAX / 8 / UINT32_MAX)
        return bad_tensor(error, tensor, "a dim is 0, or it is too large");
    if (tensor->elements > 0 && !tensor->data)
        return bad_tensor(error, tensor, "data is NULL");
    if (tensor->axis == PACKD_AXIS_TOKEN && tensor->elements != sample->count)
        return bad_tensor(error, tensor, "a token tensor has one element per token");
    if (tensor->axis == PACKD_AXIS_SAMPLE && tensor->elements != 1)
        return bad_tensor(error, tensor, "a sample tensor has one element");
    if (tensor->axis != PACKD_AXIS_RAGGED || tensor->unit != PACKD_UNIT_RUN)
        return 0;
    if (!tensor->run_counts && sample->span_count > 0)
        return bad_tensor(error, tensor, "unit RUN needs run_counts");
    if (run_total(sample, tensor) != tensor->elements)
        return bad_tensor(error, tensor, "run_counts do not add up to elements");
    return 0;
}

static int check_tensor(const struct packd_sample *sample, size_t place, struct packd_error *error)
{
    const struct packd_tensor *tensor = &sample->tensors[place];
    int rc = check_name(tensor, error);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < place; i++)
        if (strcmp(sample->tensors[i].name, tensor->name) == 0)
            return bad_tensor(error, tensor, "it is there twice");
    if (packd_dtype_bytes(tensor->dtype) == 0)
        return bad_tensor(error, tensor, "dtype is none of enum packd_dtype");
    if (tensor->axis < PACKD_AXIS_TOKEN || tensor->axis > PACKD_AXIS_SAMPLE)
        return bad_tensor(error, tensor, "axis is none of enum packd_axis");
    if ((unsigned)tensor->unit > PACKD_UNIT_RUN ||
        (tensor->unit != PACKD_UNIT_SAMPLE && tensor->axis != PACKD_AXIS_RAGGED))
        return bad_tensor(error, tensor, "unit is for ragged tensors");
    if (tensor->ndim > 3 || (tensor->axis == PACKD_AXIS_TOKEN && tensor->ndim > 2))
        return bad_tensor(error, tensor, "more dims than 3 (token: 2)");
    if (tensor->align_input && tensor->axis != PACKD_AXIS_TOKEN)
        return bad_tensor(error, tensor, "align_input is for token tensors");
    if (tensor->pad_mask && (!tensor->is_loss || strlen(tensor->pad_mask) > TENSOR_NAME_MAX))
        return bad_tensor(error, tensor, "pad_mask is the name of a tensor, of a loss");
    rc = check_views(tensor, error);
    return rc != 0 ? rc : check_elements(sample, tensor, error);
}

int pd_client_media_check(const struct packd_sample *sample, struct packd_error *error)
{
    struct pd_error why = {0};
    if ((sample->span_count > 0 && !sample->spans) ||
        (sample->tensor_count > 0 && !sample->tensors))
        return pd_client_error(error, PACKD_EINVAL, "BAD_RANGE",
                               "a count of spans or tensors without an array");
    if (sample->span_count > sample->count)
        return pd_client_error(error, PACKD_EINVAL, "BAD_SPAN", "%zu spans in %zu tokens",
                               sample->span_count, sample->count);
    for (size_t s = 0; s < sample->span_count; s++)
        if (pd_name_check("view", view_of(&sample->spans[s]), &why) != 0)
            return pd_client_error_from(error, &why);
    uint32_t side = (uint32_t)lround(sqrt(sample->merge));
    if ((uint64_t)side * side != sample->merge)
        return pd_client_error(error, PACKD_EINVAL, "BAD_RANGE",
                               "merge is %u: expected the square of a whole number, or 0",
                               sample->merge);
    if (sample->tensor_count > PD_CLIENT_TENSORS_MAX)
        return pd_client_error(error, PACKD_ELIMIT, "TOO_MANY_TENSORS",
                               "%zu tensors: a sample has at most %d", sample->tensor_count,
                               PD_CLIENT_TENSORS_MAX);
    int rc = 0;
    for (size_t i = 0; i < sample->tensor_count && rc == 0; i++)
        rc = check_tensor(sample, i, error);
    return rc;
}

size_t pd_client_media_bytes(const struct packd_sample *sample)
{
    size_t bytes = 0;
    for (size_t i = 0; i < sample->tensor_count; i++)
        bytes += sample->tensors[i].elements * element_bytes(&sample->tensors[i]);
    return bytes;
}

/* ---- a sample and its block ------------------------------------------------------------------ */

static uint32_t tensor_find(const struct pd_client_media *media, const char *name)
{
    uint32_t i = 0;
    while (media && i < media->tensor_count && strcmp(media->tensors[i].name, name) != 0)
        i++;
    return i;
}

static uint32_t view_find(const struct pd_client_media *media, const char *name)
{
    uint32_t i = 0;
    while (media && i < media->view_count && strcmp(media->views[i], name) != 0)
        i++;
    return i;
}

static bool is_known_tensor(const struct pd_client_media *media, const char *name)
{
    return media && tensor_find(media, name) < media->tensor_count;
}

size_t pd_client_media_head_bytes(const struct pd_client_media *media,
                                  const struct packd_sample *sample)
{
    size_t bytes = sample->span_count * SPAN_BYTES_MAX + COUNT_BYTES_MAX;
    for (size_t s = 0; s < sample->span_count; s++)
        if (!media || view_find(media, view_of(&sample->spans[s])) == media->view_count)
            bytes += PD_NAME_MAX + NAME_FRAME_BYTES;
    for (size_t i = 0; i < sample->tensor_count; i++) {
        const struct packd_tensor *tensor = &sample->tensors[i];
        bytes += COUNT_BYTES_MAX * (1 + sample->span_count);
        if (is_known_tensor(media, tensor->name))
            continue;
        bytes += DECLARATION_BYTES_MAX + 2 * TENSOR_NAME_MAX +
                 tensor->span_view_count * (PD_NAME_MAX + NAME_FRAME_BYTES);
        uint64_t spans = media ? media->spans[LENGTHS].size_bytes / 4 : 0;
        uint64_t samples = media ? media->counts.size_bytes / 4 : 0;
        bytes += COUNT_BYTES_MAX * (size_t)(spans + samples); /* zeros for what was before */
    }
    return bytes;
}

/* The tensor's views among the block's; false: one is not there. */
static bool views_of(const struct pd_client_media *media, const struct packd_tensor *tensor,
                     uint64_t *bits)
{
    *bits = 0;
    for (size_t i = 0; i < tensor->span_view_count; i++) {
        uint32_t view = view_find(media, tensor->span_views[i]);
        if (view == media->view_count)
            return false;
        *bits |= UINT64_C(1) << view;
    }
    return true;
}

static bool same_pad(const struct tensor *known, const struct packd_tensor *tensor)
{
    uint8_t pad[8] = {0};
    if (tensor->pad_value)
        memcpy(pad, tensor->pad_value, packd_dtype_bytes(tensor->dtype));
    return memcmp(pad, known->pad_value, sizeof pad) == 0;
}

static bool same_declaration(const struct pd_client_media *media, const struct tensor *known,
                             const struct packd_tensor *tensor)
{
    uint64_t views;
    const struct packd_tensor *spec = &known->spec;
    return spec->dtype == tensor->dtype && spec->axis == tensor->axis &&
           spec->ndim == tensor->ndim &&
           memcmp(spec->dims, tensor->dims, tensor->ndim * sizeof tensor->dims[0]) == 0 &&
           spec->unit == tensor->unit && spec->align_input == tensor->align_input &&
           spec->is_loss == tensor->is_loss &&
           strcmp(known->pad_mask, tensor->pad_mask ? tensor->pad_mask : "") == 0 &&
           same_pad(known, tensor) && views_of(media, tensor, &views) && views == known->views;
}

/* Views that the sample would add; those named twice count twice, which is harmless. */
static size_t new_views(const struct pd_client_media *media, const struct packd_sample *sample)
{
    size_t count = 0;
    for (size_t s = 0; s < sample->span_count; s++)
        count += !media || view_find(media, view_of(&sample->spans[s])) == media->view_count;
    for (size_t i = 0; i < sample->tensor_count; i++)
        for (size_t v = 0; v < sample->tensors[i].span_view_count; v++)
            count +=
                !media || view_find(media, sample->tensors[i].span_views[v]) == media->view_count;
    return count;
}

/* Its elements are called for by spans: where these are, it cannot be lacking. */
static bool follows_spans(const struct packd_tensor *spec)
{
    return spec->unit == PACKD_UNIT_SPAN || spec->unit == PACKD_UNIT_PATCH;
}

/* Every tensor of the block that may not be lacking is in the sample. */
static bool covers(const struct pd_client_media *media, const struct packd_sample *sample)
{
    for (uint32_t k = 0; media && k < media->tensor_count; k++) {
        const struct packd_tensor *spec = &media->tensors[k].spec;
        bool found =
            spec->axis == PACKD_AXIS_RAGGED && !(follows_spans(spec) && sample->span_count > 0);
        for (size_t i = 0; i < sample->tensor_count && !found; i++)
            found = strcmp(sample->tensors[i].name, media->tensors[k].name) == 0;
        if (!found)
            return false;
    }
    return true;
}

bool pd_client_media_joins(const struct pd_client_media *media, uint32_t count,
                           const struct packd_sample *sample)
{
    uint32_t tensors = media ? media->tensor_count : 0;
    if (count == 0)
        return true;
    if (!covers(media, sample))
        return false;
    if (media && media->has_spans && sample->span_count > 0 && media->merge != sample->merge)
        return false;
    if ((media ? media->view_count : 0) + new_views(media, sample) > PD_CLIENT_VIEWS_MAX)
        return false;
    for (size_t i = 0; i < sample->tensor_count; i++) {
        const struct packd_tensor *tensor = &sample->tensors[i];
        uint32_t k = tensor_find(media, tensor->name);
        bool known = media && k < media->tensor_count;
        if (known && !same_declaration(media, &media->tensors[k], tensor))
            return false;
        if (!known && (tensor->axis != PACKD_AXIS_RAGGED || ++tensors > PD_CLIENT_TENSORS_MAX ||
                       (follows_spans(tensor) && media && media->has_spans)))
            return false;
    }
    return true;
}

/* ---- adding ---------------------------------------------------------------------------------- */

static void mark(struct pd_client_media *media)
{
    struct marks *before = &media->before;
    before->counts = media->counts.size_bytes;
    for (int c = 0; c < SPAN_COLUMNS; c++)
        before->spans[c] = media->spans[c].size_bytes;
    for (uint32_t k = 0; k < media->tensor_count; k++) {
        before->data[k] = media->tensors[k].data.size_bytes;
        before->tensor_counts[k] = media->tensors[k].counts.size_bytes;
    }
    before->view_count = media->view_count;
    before->tensor_count = media->tensor_count;
    before->merge = media->merge;
    before->has_grids = media->has_grids;
    before->has_spans = media->has_spans;
}

static void cut(struct pd_buf *buf, size_t size_bytes)
{
    buf->size_bytes = size_bytes;
    buf->failed = false;
}

static void tensor_fini(struct tensor *tensor)
{
    pd_buf_fini(&tensor->data);
    pd_buf_fini(&tensor->counts);
    free(tensor->span_views);
}

void pd_client_media_undo(struct pd_client_media *media)
{
    if (!media)
        return;
    struct marks *before = &media->before;
    cut(&media->counts, before->counts);
    for (int c = 0; c < SPAN_COLUMNS; c++)
        cut(&media->spans[c], before->spans[c]);
    for (uint32_t k = before->tensor_count; k < media->tensor_count; k++)
        tensor_fini(&media->tensors[k]);
    media->tensor_count = before->tensor_count;
    for (uint32_t k = 0; k < media->tensor_count; k++) {
        cut(&media->tensors[k].data, before->data[k]);
        cut(&media->tensors[k].counts, before->tensor_counts[k]);
    }
    media->view_count = before->view_count;
    media->merge = before->merge;
    media->has_grids = before->has_grids;
    media->has_spans = before->has_spans;
}

static void put_zeros(struct pd_buf *buf, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        pd_buf_put_u32(buf, 0);
}

static uint32_t view_add(struct pd_client_media *media, const char *name)
{
    uint32_t view = view_find(media, name);
    if (view < media->view_count)
        return view;
    PD_CHECK(view < PD_CLIENT_VIEWS_MAX);
    memcpy(media->views[view], name, strlen(name) + 1);
    media->view_count++;
    return view;
}

static void add_span(struct pd_client_media *media, const struct packd_span *span)
{
    bool grid = span->grid_t || span->grid_h || span->grid_w;
    uint32_t patches = span->patches;
    if (grid && patches == 0)
        patches = span->grid_t * span->grid_h * span->grid_w;
    pd_buf_put_u32(&media->spans[VIEW], view_add(media, view_of(span)));
    pd_buf_put_u32(&media->spans[OFFSETS], span->offset);
    pd_buf_put_u32(&media->spans[LENGTHS], span->length);
    pd_buf_put_u32(&media->spans[PATCHES], patches);
    pd_buf_put_u32(&media->spans[GRID_T], span->grid_t);
    pd_buf_put_u32(&media->spans[GRID_H], span->grid_h);
    pd_buf_put_u32(&media->spans[GRID_W], span->grid_w);
    pd_buf_put(&media->spans[T_SCALE], &span->t_scale, sizeof span->t_scale);
    media->has_grids = media->has_grids || grid;
    media->has_spans = true;
}

/* A place for a tensor that is new to the block: samples and spans before it have nothing. */
static struct tensor *tensor_new(struct pd_client_media *media, uint32_t count, uint64_t spans,
                                 const struct packd_tensor *spec)
{
    struct tensor *tensor = &media->tensors[media->tensor_count++];
    *tensor = (struct tensor){.spec = *spec};
    memcpy(tensor->name, spec->name, strlen(spec->name) + 1);
    if (spec->pad_mask)
        memcpy(tensor->pad_mask, spec->pad_mask, strlen(spec->pad_mask) + 1);
    if (spec->pad_value)
        memcpy(tensor->pad_value, spec->pad_value, packd_dtype_bytes(spec->dtype));
    tensor->span_views = calloc(spec->span_view_count + 1, sizeof *tensor->span_views);
    tensor->data.failed = !tensor->span_views;
    for (size_t v = 0; v < spec->span_view_count && tensor->span_views; v++) {
        uint32_t view = view_add(media, spec->span_views[v]);
        tensor->views |= UINT64_C(1) << view;
        tensor->span_views[v] = media->views[view];
    }
    if (spec->axis == PACKD_AXIS_RAGGED)
        put_zeros(&tensor->counts, spec->unit == PACKD_UNIT_RUN ? spans : count);
    return tensor;
}

static const struct packd_tensor *sample_tensor(const struct packd_sample *sample, const char *name)
{
    for (size_t i = 0; i < sample->tensor_count; i++)
        if (strcmp(sample->tensors[i].name, name) == 0)
            return &sample->tensors[i];
    return NULL;
}

static void add_elements(struct tensor *tensor, const struct packd_sample *sample)
{
    const struct packd_tensor *from = sample_tensor(sample, tensor->name);
    bool run = tensor->spec.unit == PACKD_UNIT_RUN;
    if (from)
        pd_buf_put(&tensor->data, from->data, from->elements * element_bytes(from));
    if (tensor->spec.axis != PACKD_AXIS_RAGGED)
        return;
    if (!from)
        put_zeros(&tensor->counts, run ? sample->span_count : 1);
    else if (run)
        pd_buf_put(&tensor->counts, from->run_counts, sample->span_count * 4);
    else
        pd_buf_put_u32(&tensor->counts, (uint32_t)from->elements);
}

static void add(struct pd_client_media *media, uint32_t count, const struct packd_sample *sample)
{
    uint64_t spans = media->spans[LENGTHS].size_bytes / 4;
    pd_buf_put_u32(&media->counts, (uint32_t)sample->span_count);
    for (size_t s = 0; s < sample->span_count; s++)
        add_span(media, &sample->spans[s]);
    if (sample->span_count > 0)
        media->merge = sample->merge;
    for (size_t i = 0; i < sample->tensor_count; i++)
        if (tensor_find(media, sample->tensors[i].name) == media->tensor_count)
            (void)tensor_new(media, count, spans, &sample->tensors[i]);
    for (uint32_t k = 0; k < media->tensor_count; k++)
        add_elements(&media->tensors[k], sample);
}

static bool failed(const struct pd_client_media *media)
{
    bool any = media->counts.failed;
    for (int c = 0; c < SPAN_COLUMNS; c++)
        any = any || media->spans[c].failed;
    for (uint32_t k = 0; k < media->tensor_count; k++)
        any = any || media->tensors[k].data.failed || media->tensors[k].counts.failed;
    return any;
}

int pd_client_media_add(struct pd_client_media **media, uint32_t count,
                        const struct packd_sample *sample)
{
    if (!*media && !has_media(sample))
        return 0;
    if (!*media) {
        *media = calloc(1, sizeof **media);
        if (!*media)
            return PACKD_ENOMEM;
        put_zeros(&(*media)->counts, count);
    }
    mark(*media);
    add(*media, count, sample);
    if (!failed(*media))
        return 0;
    bool none_before = (*media)->before.counts / 4 < count; /* the zeros failed already */
    pd_client_media_undo(*media);
    if (none_before) {
        pd_client_media_free(*media);
        *media = NULL;
    }
    return PACKD_ENOMEM;
}

void pd_client_media_free(struct pd_client_media *media)
{
    if (!media)
        return;
    pd_buf_fini(&media->counts);
    for (int c = 0; c < SPAN_COLUMNS; c++)
        pd_buf_fini(&media->spans[c]);
    for (uint32_t k = 0; k < media->tensor_count; k++)
        tensor_fini(&media->tensors[k]);
    free(media);
}

/* ---- head and body --------------------------------------------------------------------------- */

static uint32_t *numbers(struct pd_buf *buf)
{
    return (uint32_t *)(void *)buf->data;
}

static void spans_head(struct pd_client_media *media, uint32_t count, Packd__V1__BlockHead *head)
{
    Packd__V1__Spans *wire = &media->wire_spans;
    size_t n = media->spans[LENGTHS].size_bytes / 4;
    packd__v1__spans__init(wire);
    for (uint32_t i = 0; i < media->view_count; i++)
        media->view_list[i] = media->views[i];
    wire->n_views = media->view_count;
    wire->views = media->view_list;
    wire->n_counts = count;
    wire->counts = numbers(&media->counts);
    wire->n_view = wire->n_offsets = wire->n_lengths = wire->n_patches = wire->n_t_scale = n;
    wire->view = numbers(&media->spans[VIEW]);
    wire->offsets = numbers(&media->spans[OFFSETS]);
    wire->lengths = numbers(&media->spans[LENGTHS]);
    wire->patches = numbers(&media->spans[PATCHES]);
    wire->t_scale = (double *)(void *)media->spans[T_SCALE].data;
    if (media->has_grids) {
        wire->n_grid_t = wire->n_grid_h = wire->n_grid_w = n;
        wire->grid_t = numbers(&media->spans[GRID_T]);
        wire->grid_h = numbers(&media->spans[GRID_H]);
        wire->grid_w = numbers(&media->spans[GRID_W]);
    }
    wire->merge = media->merge;
    head->spans = wire;
}

static void tensor_head(struct pd_client_media *media, uint32_t k)
{
    struct tensor *tensor = &media->tensors[k];
    Packd__V1__TensorSpec *wire = &media->wire[k];
    packd__v1__tensor_spec__init(wire);
    wire->name = tensor->name;
    wire->dtype = (Packd__V1__DType)tensor->spec.dtype;
    wire->axis = (Packd__V1__Axis)tensor->spec.axis;
    wire->n_dims = tensor->spec.ndim;
    wire->dims = tensor->spec.dims;
    if (tensor->spec.pad_value)
        wire->pad_value =
            (ProtobufCBinaryData){packd_dtype_bytes(tensor->spec.dtype), tensor->pad_value};
    wire->n_counts = tensor->counts.size_bytes / 4;
    wire->counts = numbers(&tensor->counts);
    wire->unit = (Packd__V1__RaggedUnit)tensor->spec.unit;
    wire->span_views = tensor->span_views;
    wire->n_span_views = tensor->spec.span_view_count;
    wire->alignment = tensor->spec.align_input ? PACKD__V1__ALIGNMENT__ALIGN_INPUT
                                               : PACKD__V1__ALIGNMENT__ALIGN_TARGET;
    if (tensor->spec.is_loss) {
        packd__v1__loss_decl__init(&media->losses[k]);
        media->losses[k].pad_mask = tensor->pad_mask;
        wire->loss = &media->losses[k];
    }
    media->wire_list[k] = wire;
}

void pd_client_media_head(struct pd_client_media *media, uint32_t count, Packd__V1__BlockHead *head)
{
    if (!media)
        return;
    if (media->has_spans)
        spans_head(media, count, head);
    for (uint32_t k = 0; k < media->tensor_count; k++)
        tensor_head(media, k);
    head->n_tensors = media->tensor_count;
    head->tensors = media->wire_list;
}

size_t pd_client_media_columns(const struct pd_client_media *media)
{
    return media ? media->tensor_count : 0;
}

const struct pd_buf *pd_client_media_column(const struct pd_client_media *media, size_t column)
{
    return &media->tensors[column].data;
}

size_t pd_client_media_body_bytes(const struct pd_client_media *media)
{
    size_t bytes = 0;
    for (uint32_t k = 0; media && k < media->tensor_count; k++)
        bytes += media->tensors[k].data.size_bytes;
    return bytes;
}
