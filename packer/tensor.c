/* Numeric types and declarations of tensors.
 *
 * Used by the door, which makes declarations from the wire, by the log's block heads and by the
 * layout. Any thread; keeps no state. Invariant: a declaration without a fault has an element size
 * that fits every sum made of it. It does not know where a tensor's bytes lie. */
#include "packer/tensor.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(struct pd_tensor_spec) == 88, "declarations are stored as they are");

static const struct {
    const char *name;
    size_t size_bytes;
} dtypes[] = {
    [PD_DTYPE_U8] = {"U8", 1},     [PD_DTYPE_I32] = {"I32", 4},   [PD_DTYPE_I64] = {"I64", 8},
    [PD_DTYPE_F16] = {"F16", 2},   [PD_DTYPE_BF16] = {"BF16", 2}, [PD_DTYPE_F32] = {"F32", 4},
    [PD_DTYPE_BOOL] = {"BOOL", 1}, [PD_DTYPE_I8] = {"I8", 1},     [PD_DTYPE_U16] = {"U16", 2},
    [PD_DTYPE_I16] = {"I16", 2},   [PD_DTYPE_U32] = {"U32", 4},   [PD_DTYPE_U64] = {"U64", 8},
    [PD_DTYPE_F64] = {"F64", 8},
};

size_t pd_dtype_size_bytes(enum pd_dtype dtype)
{
    return (size_t)dtype < PD_COUNT_OF(dtypes) ? dtypes[dtype].size_bytes : 0;
}

const char *pd_dtype_name(enum pd_dtype dtype)
{
    return (size_t)dtype < PD_COUNT_OF(dtypes) ? dtypes[dtype].name : "?";
}

bool pd_dtype_parse(const char *name, enum pd_dtype *dtype)
{
    for (size_t i = 0; i < PD_COUNT_OF(dtypes); i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *dtype = (enum pd_dtype)i;
            return true;
        }
    }
    return false;
}

uint64_t pd_tensor_scalars(const struct pd_tensor_spec *spec)
{
    uint64_t scalars = 1;
    for (uint32_t i = 0; i < spec->rank; i++)
        scalars *= spec->dims[i];
    return scalars;
}

uint64_t pd_tensor_element_bytes(const struct pd_tensor_spec *spec)
{
    return pd_tensor_scalars(spec) * pd_dtype_size_bytes(spec->dtype);
}

static bool name_holds(const char name[PD_TENSOR_NAME_MAX + 1])
{
    size_t size = strnlen(name, PD_TENSOR_NAME_MAX + 1);
    for (size_t i = 0; i < size; i++) {
        char c = name[i];
        bool good = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        if (!good && c != '_')
            return false;
    }
    for (size_t i = size; i <= PD_TENSOR_NAME_MAX; i++)
        if (name[i] != 0)
            return false;
    return size > 0 && size <= PD_TENSOR_NAME_MAX;
}

static bool dims_hold(const struct pd_tensor_spec *spec)
{
    uint64_t bytes = pd_dtype_size_bytes(spec->dtype);
    for (uint32_t i = 0; i < PD_TENSOR_RANK_MAX; i++) {
        if ((i < spec->rank) != (spec->dims[i] > 0))
            return false;
        if (i < spec->rank)
            bytes = spec->dims[i] <= PD_ELEMENT_BYTES_MAX ? bytes * spec->dims[i] : UINT32_MAX;
        if (bytes > PD_ELEMENT_BYTES_MAX)
            return false;
    }
    return true;
}

const char *pd_tensor_spec_fault(const struct pd_tensor_spec *spec)
{
    if (!name_holds(spec->name))
        return "a tensor's name is not [A-Za-z0-9_]{1,48}";
    if (pd_dtype_size_bytes(spec->dtype) == 0 || spec->axis > PD_AXIS_SAMPLE ||
        spec->unit > PD_UNIT_RUN || spec->alignment > PD_ALIGN_INPUT || spec->is_loss > 1)
        return "a tensor's dtype, axis, unit or alignment is none";
    if (spec->rank > PD_TENSOR_RANK_MAX ||
        (spec->axis == PD_AXIS_TOKEN && spec->rank >= PD_TENSOR_RANK_MAX))
        return "a tensor has too many dims";
    if (!dims_hold(spec))
        return "a tensor's dims are 0, or its element is too large";
    if ((spec->unit != PD_UNIT_SAMPLE && spec->axis != PD_AXIS_RAGGED) ||
        (spec->views != 0 && spec->unit == PD_UNIT_SAMPLE) ||
        (spec->alignment != PD_ALIGN_TARGET && spec->axis != PD_AXIS_TOKEN))
        return "a tensor's unit, views or alignment does not go with its axis";
    if (spec->pad_mask != PD_TENSOR_NONE && (!spec->is_loss || spec->pad_mask >= PD_TENSORS_MAX))
        return "a tensor's pad mask is out of range, or it is no loss";
    return NULL;
}

const char *pd_tensor_spec_differs(const struct pd_tensor_spec *a, const struct pd_tensor_spec *b)
{
    if (a->dtype != b->dtype)
        return "dtype";
    if (a->axis != b->axis)
        return "axis";
    if (a->rank != b->rank || memcmp(a->dims, b->dims, sizeof a->dims) != 0)
        return "dims";
    if (memcmp(a->pad_value, b->pad_value, sizeof a->pad_value) != 0)
        return "pad_value";
    if (a->unit != b->unit)
        return "unit";
    if (a->views != b->views)
        return "span_views";
    if (a->alignment != b->alignment)
        return "alignment";
    return a->is_loss != b->is_loss || a->pad_mask != b->pad_mask ? "loss" : NULL;
}

const char *pd_tensor_spec_text(const struct pd_tensor_spec *spec, char *text, size_t size)
{
    static const char *const axes[] = {"token", "ragged", "sample"};
    static const char *const units[] = {"", " per span", " per patch", " in runs per span"};
    char dims[48] = "";
    size_t at = 0;
    for (uint32_t i = 0; i < spec->rank; i++)
        at += (size_t)snprintf(dims + at, sizeof dims - at, "%s%u", i ? "," : "", spec->dims[i]);
    snprintf(text, size, "%s [%s], axis %s%s%s", pd_dtype_name(spec->dtype), dims,
             spec->axis < PD_COUNT_OF(axes) ? axes[spec->axis] : "?",
             spec->unit < PD_COUNT_OF(units) ? units[spec->unit] : "?",
             spec->is_loss ? ", a loss" : "");
    return text;
}
