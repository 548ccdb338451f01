/* Samples as .safetensors files.
 *
 * Place in the flow: the reader's way for files of this name; the sample goes on to the producer.
 * One thread. Invariant: everything a sample points to is in the file's memory or in its JSON. It
 * checks shapes and words; what spans and tensors mean is checked by libpackd and the server. */
#include "client/reader_media.h"

#include "base/check.h"
#include "client/lib_error.h"
#include "client/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX (1u << 30)
#define TENSORS_MAX 64

struct pd_media_file {
    struct pd_safetensors *content;
    json_t *json;             /* NULL: no metadata */
    int32_t *tokens, *labels; /* converted, where the file has int64 */
    struct packd_span *spans;
    struct packd_tensor tensors[TENSORS_MAX];
    uint32_t *run_counts[TENSORS_MAX];
    const char **views[TENSORS_MAX];
    size_t tensor_count;
};

static int bad(struct packd_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int bad(struct packd_error *error, const char *format, ...)
{
    char text[240];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return pd_client_error(error, PACKD_EINVAL, "BAD_RECORD", "%s", text);
}

static int no_memory(struct packd_error *error)
{
    return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory for a sample");
}

void pd_media_file_free(struct pd_media_file *file)
{
    if (!file)
        return;
    for (size_t i = 0; i < TENSORS_MAX; i++) {
        free(file->run_counts[i]);
        free(file->views[i]);
    }
    free(file->spans);
    free(file->tokens);
    free(file->labels);
    json_decref(file->json);
    pd_safetensors_free(file->content);
    free(file);
}

uint64_t pd_media_file_bytes(const struct pd_media_file *file)
{
    const struct pd_safetensors_content *content = pd_safetensors_content(file->content);
    uint64_t bytes = 0;
    for (size_t i = 0; i < content->tensor_count; i++)
        bytes += content->tensors[i].size_bytes;
    return bytes;
}

/* ---- the JSON -------------------------------------------------------------------------------- */

/* An unsigned number below 2^32 at `key`, or `fallback` where it is left out. */
static int get_u32(const json_t *object, const char *key, uint32_t fallback, uint32_t *out,
                   struct packd_error *error)
{
    const json_t *value = json_object_get(object, key);
    json_int_t number = value ? json_integer_value(value) : fallback;
    if (value && (!json_is_integer(value) || number < 0 || number > UINT32_MAX))
        return bad(error, "metadata packd: %s is no whole number from 0 to 4294967295", key);
    *out = (uint32_t)number;
    return 0;
}

/* Refuses keys that are not in the list. */
static int known_keys(const json_t *object, const char *what, const char *const *keys,
                      struct packd_error *error)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return bad(error, "metadata packd: %s is no object", what);
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        size_t i = 0;
        while (keys[i] && strcmp(keys[i], key) != 0)
            i++;
        if (!keys[i])
            return bad(error, "metadata packd: %s has an unknown key '%.60s'", what, key);
    }
    return 0;
}

/* The place of a word in a list, or `fallback` where it is left out. */
static int get_word(const json_t *object, const char *key, const char *const *words, int fallback,
                    int *out, struct packd_error *error)
{
    const json_t *value = json_object_get(object, key);
    const char *word = json_string_value(value);
    *out = fallback;
    if (!value)
        return 0;
    for (int i = 0; word && words[i]; i++)
        if (strcmp(words[i], word) == 0) {
            *out = i;
            return 0;
        }
    return bad(error, "metadata packd: %s is '%.40s', which it cannot be", key, word ? word : "?");
}

static int take_grid(const json_t *object, struct packd_span *span, struct packd_error *error)
{
    const json_t *grid = json_object_get(object, "grid");
    uint32_t *const to[] = {&span->grid_t, &span->grid_h, &span->grid_w};
    if (!grid)
        return 0;
    if (json_array_size(grid) != 3)
        return bad(error, "metadata packd: grid is no list of t, h, w");
    for (size_t i = 0; i < 3; i++) {
        json_int_t number = json_integer_value(json_array_get(grid, i));
        if (number < 1 || number > UINT32_MAX)
            return bad(error, "metadata packd: grid holds no numbers above 0");
        *to[i] = (uint32_t)number;
    }
    return 0;
}

static int take_span(const json_t *object, struct packd_span *span, struct packd_error *error)
{
    static const char *const keys[] = {"view",    "offset", "length", "patches",
                                       "t_scale", "grid",   NULL};
    int rc = known_keys(object, "a span", keys, error);
    if (rc != 0)
        return rc;
    const json_t *t_scale = json_object_get(object, "t_scale");
    if (t_scale && !json_is_number(t_scale))
        return bad(error, "metadata packd: t_scale is no number");
    *span = (struct packd_span){.view = json_string_value(json_object_get(object, "view")),
                                .t_scale = json_number_value(t_scale)};
    if ((rc = get_u32(object, "offset", 0, &span->offset, error)) != 0 ||
        (rc = get_u32(object, "length", 0, &span->length, error)) != 0 ||
        (rc = get_u32(object, "patches", 0, &span->patches, error)) != 0)
        return rc;
    return take_grid(object, span, error);
}

static int take_spans(struct pd_media_file *file, struct packd_sample *sample,
                      struct packd_error *error)
{
    const json_t *list = json_object_get(file->json, "spans");
    size_t count = json_array_size(list);
    if (list && !json_is_array(list))
        return bad(error, "metadata packd: spans is no list");
    file->spans = calloc(count + 1, sizeof *file->spans);
    if (!file->spans)
        return no_memory(error);
    for (size_t i = 0; i < count; i++) {
        int rc = take_span(json_array_get(list, i), &file->spans[i], error);
        if (rc != 0)
            return rc;
    }
    sample->spans = file->spans;
    sample->span_count = count;
    return get_u32(file->json, "merge", 0, &sample->merge, error);
}

static struct packd_bytes bytes_of(const json_t *text)
{
    return (struct packd_bytes){json_string_length(text), (const uint8_t *)json_string_value(text)};
}

static int take_metadata(struct pd_media_file *file, struct packd_sample *sample,
                         struct packd_error *error)
{
    static const char *const keys[] = {"weight", "key",   "group",   "version",
                                       "merge",  "spans", "tensors", NULL};
    const char *text = pd_safetensors_metadata(file->content, "packd");
    json_error_t why;
    if (!text)
        return 0;
    file->json = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    if (!file->json)
        return bad(error, "metadata packd: %.120s", why.text);
    int rc = known_keys(file->json, "it", keys, error);
    if (rc != 0)
        return rc;
    const json_t *weight = json_object_get(file->json, "weight");
    const json_t *version = json_object_get(file->json, "version");
    if ((weight && !json_is_number(weight)) || (version && json_integer_value(version) < 0))
        return bad(error, "metadata packd: weight or version is no number of at least 0");
    sample->has_weight = weight != NULL;
    sample->weight = (float)json_number_value(weight);
    sample->version = (uint64_t)json_integer_value(version);
    sample->key = bytes_of(json_object_get(file->json, "key"));
    sample->group = bytes_of(json_object_get(file->json, "group"));
    return take_spans(file, sample, error);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static enum packd_dtype dtype_of(enum pd_dtype dtype)
{
    static const enum packd_dtype to[] = {
        [PD_DTYPE_U8] = PACKD_DTYPE_UINT8,      [PD_DTYPE_I32] = PACKD_DTYPE_INT32,
        [PD_DTYPE_I64] = PACKD_DTYPE_INT64,     [PD_DTYPE_F16] = PACKD_DTYPE_FLOAT16,
        [PD_DTYPE_BF16] = PACKD_DTYPE_BFLOAT16, [PD_DTYPE_F32] = PACKD_DTYPE_FLOAT32,
        [PD_DTYPE_BOOL] = PACKD_DTYPE_BOOL,     [PD_DTYPE_I8] = PACKD_DTYPE_INT8,
        [PD_DTYPE_U16] = PACKD_DTYPE_UINT16,    [PD_DTYPE_I16] = PACKD_DTYPE_INT16,
        [PD_DTYPE_U32] = PACKD_DTYPE_UINT32,    [PD_DTYPE_U64] = PACKD_DTYPE_UINT64,
        [PD_DTYPE_F64] = PACKD_DTYPE_FLOAT64};
    return to[dtype];
}

static int take_counts(struct pd_media_file *file, const json_t *list, struct packd_error *error)
{
    size_t at = file->tensor_count, count = json_array_size(list);
    file->run_counts[at] = calloc(count + 1, sizeof(uint32_t));
    if (!file->run_counts[at])
        return no_memory(error);
    for (size_t i = 0; i < count; i++) {
        json_int_t number = json_integer_value(json_array_get(list, i));
        if (number < 0 || number > UINT32_MAX)
            return bad(error, "metadata packd: run_counts holds no numbers of at least 0");
        file->run_counts[at][i] = (uint32_t)number;
    }
    return 0;
}

static int take_views(struct pd_media_file *file, const json_t *list, struct packd_tensor *tensor,
                      struct packd_error *error)
{
    size_t at = file->tensor_count, count = json_array_size(list);
    file->views[at] = calloc(count + 1, sizeof(char *));
    if (!file->views[at])
        return no_memory(error);
    for (size_t i = 0; i < count; i++) {
        file->views[at][i] = json_string_value(json_array_get(list, i));
        if (!file->views[at][i])
            return bad(error, "metadata packd: views holds no names");
    }
    tensor->span_views = file->views[at];
    tensor->span_view_count = count;
    return 0;
}

/* What the metadata says of the tensor. */
static int take_declaration(struct pd_media_file *file, const json_t *object, size_t span_count,
                            struct packd_tensor *tensor, struct packd_error *error)
{
    static const char *const keys[] = {"axis",  "unit", "run_counts", "views",
                                       "align", "loss", "pad_mask",   NULL};
    static const char *const axes[] = {"token", "ragged", "sample", NULL};
    static const char *const units[] = {"sample", "span", "patch", "run", NULL};
    static const char *const aligns[] = {"target", "input", NULL};
    int axis, unit, align;
    int rc = known_keys(object, tensor->name, keys, error);
    if (rc != 0 || (rc = get_word(object, "unit", units, PACKD_UNIT_SAMPLE, &unit, error)) != 0 ||
        (rc = get_word(object, "axis", axes, json_object_get(object, "unit") ? 1 : 2, &axis,
                       error)) != 0 ||
        (rc = get_word(object, "align", aligns, 0, &align, error)) != 0)
        return rc;
    tensor->axis = (enum packd_axis)(axis + PACKD_AXIS_TOKEN);
    tensor->unit = (enum packd_unit)unit;
    tensor->align_input = align == 1;
    tensor->is_loss = json_is_true(json_object_get(object, "loss"));
    tensor->pad_mask = json_string_value(json_object_get(object, "pad_mask"));
    const json_t *counts = json_object_get(object, "run_counts");
    if (unit == PACKD_UNIT_RUN && json_array_size(counts) != span_count)
        return bad(error, "metadata packd: run_counts of %.48s has %zu entries for %zu spans",
                   tensor->name, json_array_size(counts), span_count);
    rc = take_counts(file, counts, error);
    tensor->run_counts = file->run_counts[file->tensor_count];
    return rc != 0 ? rc : take_views(file, json_object_get(object, "views"), tensor, error);
}

/* The first dimension of token and ragged tensors counts elements. */
static int take_shape(const struct pd_tensor *from, struct packd_tensor *tensor,
                      struct packd_error *error)
{
    uint32_t first = tensor->axis != PACKD_AXIS_SAMPLE;
    if (from->rank < first || from->rank - first > 3)
        return bad(error, "tensor %.48s has %u dimensions; expected %u to %u", tensor->name,
                   from->rank, first, first + 3);
    tensor->elements = first ? (size_t)from->shape[0] : 1;
    tensor->ndim = from->rank - first;
    for (uint32_t i = 0; i < tensor->ndim; i++) {
        if (from->shape[first + i] > UINT32_MAX)
            return bad(error, "tensor %.48s is too large", tensor->name);
        tensor->dims[i] = (uint32_t)from->shape[first + i];
    }
    return 0;
}

static int take_tensor(struct pd_media_file *file, const struct pd_tensor *from, size_t span_count,
                       struct packd_error *error)
{
    if (file->tensor_count == TENSORS_MAX)
        return bad(error, "more than %d named tensors", TENSORS_MAX);
    struct packd_tensor *tensor = &file->tensors[file->tensor_count];
    const json_t *said = json_object_get(json_object_get(file->json, "tensors"), from->name);
    *tensor = (struct packd_tensor){.name = from->name,
                                    .dtype = dtype_of(from->dtype),
                                    .axis = PACKD_AXIS_SAMPLE,
                                    .data = from->data};
    int rc = said ? take_declaration(file, said, span_count, tensor, error) : 0;
    if (rc == 0)
        rc = take_shape(from, tensor, error);
    file->tensor_count++;
    return rc;
}

/* tokens or labels as int32: in place, or converted. */
static int take_ids(const struct pd_tensor *from, size_t count, int32_t **room, const int32_t **out,
                    struct packd_error *error)
{
    if (from->rank != 1 || (count > 0 && from->shape[0] != count) ||
        (from->dtype != PD_DTYPE_I32 && from->dtype != PD_DTYPE_I64))
        return bad(error, "%.20s: expected int32 or int64 with one dimension%s", from->name,
                   count > 0 ? ", as long as tokens" : "");
    count = (size_t)from->shape[0];
    *room = malloc(count * 4 + 1);
    if (!*room)
        return no_memory(error);
    for (size_t i = 0; i < count; i++) {
        int64_t wide = 0;
        if (from->dtype == PD_DTYPE_I32) {
            memcpy(*room + i, (const uint8_t *)from->data + 4 * i, 4);
            continue;
        }
        memcpy(&wide, (const uint8_t *)from->data + 8 * i, 8);
        if (wide < INT32_MIN || wide > INT32_MAX)
            return bad(error, "%.20s: entry %zu is %lld, which is no int32", from->name, i,
                       (long long)wide);
        (*room)[i] = (int32_t)wide;
    }
    *out = *room;
    return 0;
}

static int take_mask(const struct pd_tensor *from, struct packd_sample *sample,
                     struct packd_error *error)
{
    if (from->rank != 1 || from->shape[0] != sample->count ||
        (from->dtype != PD_DTYPE_U8 && from->dtype != PD_DTYPE_BOOL))
        return bad(error, "loss_mask: expected bool or uint8, as long as tokens");
    sample->loss_mask = from->data;
    return 0;
}

static int take_all(struct pd_media_file *file, struct packd_sample *sample,
                    struct packd_error *error)
{
    const struct pd_safetensors_content *content = pd_safetensors_content(file->content);
    const struct pd_tensor *tokens = pd_safetensors_find(file->content, "tokens");
    if (!tokens)
        return bad(error, "no tensor 'tokens'");
    int rc = take_ids(tokens, 0, &file->tokens, &sample->tokens, error);
    sample->count = rc == 0 ? (size_t)tokens->shape[0] : 0;
    if (rc == 0)
        rc = take_metadata(file, sample, error);
    for (size_t i = 0; i < content->tensor_count && rc == 0; i++) {
        const struct pd_tensor *from = &content->tensors[i];
        if (strcmp(from->name, "labels") == 0)
            rc = take_ids(from, sample->count, &file->labels, &sample->labels, error);
        else if (strcmp(from->name, "loss_mask") == 0)
            rc = take_mask(from, sample, error);
        else if (from != tokens)
            rc = take_tensor(file, from, sample->span_count, error);
    }
    sample->tensors = file->tensors;
    sample->tensor_count = file->tensor_count;
    return rc;
}

int pd_media_file_load(const char *path, struct pd_media_file **out, struct packd_sample *sample,
                       struct packd_error *error)
{
    struct pd_error why = {0};
    struct pd_media_file *file = calloc(1, sizeof *file);
    if (!file)
        return no_memory(error);
    *sample = (struct packd_sample){0};
    int rc = pd_safetensors_load(path, FILE_BYTES_MAX, &file->content, &why);
    if (rc == PD_ECORRUPT || rc == PD_EUNSUPPORTED)
        rc = bad(error, "%s", why.text);
    else if (rc != 0)
        rc = pd_client_error_from(error, &why);
    else
        rc = take_all(file, sample, error);
    if (rc != 0) {
        pd_media_file_free(file);
        return rc;
    }
    *out = file;
    return 0;
}
