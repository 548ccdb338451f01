/* Numeric types, and the named tensors of a feed: what one element is and what it belongs to.
 *
 *   axis     elements of a sample                 served as
 *   token    one per token                        [R, W, dims...], cut, pruned and padded with them
 *   ragged   any number: of the sample as a       concatenated, with <name>_cu_seqlens (one entry
 *            whole, or so many per span           per sample; unit RUN: one per span)
 *   sample   one                                  stacked
 *
 * A feed numbers its tensors and its views in the order of their first use; the numbers are in the
 * log and never change. Plain values; pure. */
#ifndef PD_PACKER_TENSOR_H
#define PD_PACKER_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values are stored (block heads, tables): never renumber. */
enum pd_dtype {
    PD_DTYPE_U8,
    PD_DTYPE_I32,
    PD_DTYPE_I64,
    PD_DTYPE_F16,
    PD_DTYPE_BF16,
    PD_DTYPE_F32,
    PD_DTYPE_BOOL, /* one byte, 0 or 1 */
    PD_DTYPE_I8,
    PD_DTYPE_U16,
    PD_DTYPE_I16,
    PD_DTYPE_U32,
    PD_DTYPE_U64,
    PD_DTYPE_F64
};
size_t pd_dtype_size_bytes(enum pd_dtype dtype); /* 0 for a value outside the enum */
/* safetensors' names: "U8", "I32", "BF16", "BOOL", ...; "?" for a value outside the enum */
const char *pd_dtype_name(enum pd_dtype dtype);
bool pd_dtype_parse(const char *name,
                    enum pd_dtype *dtype); /* the reverse; false for any other name */

#define PD_TENSORS_MAX 64 /* of a feed, and of a block */
#define PD_VIEWS_MAX 64   /* of a feed, and of a block */
#define PD_TENSOR_NAME_MAX 48
#define PD_TENSOR_RANK_MAX 3
#define PD_TENSOR_NONE 0xffu
#define PD_ELEMENT_BYTES_MAX (1u << 30)

/* Values are stored: never renumber. */
enum pd_axis { PD_AXIS_TOKEN, PD_AXIS_RAGGED, PD_AXIS_SAMPLE };
/* Whose the elements of a ragged tensor are. SPAN: one per span; PATCH: span.patches per span; RUN:
 * any number per span (the bytes of a JPEG), as the producer counted them. All three over the
 * sample's spans of the tensor's views, in order. */
enum pd_unit { PD_UNIT_SAMPLE, PD_UNIT_SPAN, PD_UNIT_PATCH, PD_UNIT_RUN };
/* TARGET: element i describes token i as a target and moves with the labels. INPUT: it stays with
 * the tokens. Of token tensors; others have TARGET. */
enum pd_alignment { PD_ALIGN_TARGET, PD_ALIGN_INPUT };

/* A tensor's declaration; as stored in block heads. What is not used is 0. */
struct pd_tensor_spec {
    char name[PD_TENSOR_NAME_MAX + 1]; /* [A-Za-z0-9_]{1,48}, filled up with 0 */
    uint8_t dtype;                     /* enum pd_dtype */
    uint8_t axis;                      /* enum pd_axis */
    uint8_t unit;                      /* enum pd_unit; SAMPLE unless ragged */
    uint8_t alignment;                 /* enum pd_alignment */
    uint8_t rank;                      /* of one element; token: at most 2 */
    uint8_t is_loss;                   /* a training target with a total of its own */
    /* is_loss: number of the BOOL or U8 tensor of the same axis whose dims are a prefix of this
     * one's, and in which other than 0 means padding. PD_TENSOR_NONE: every element counts. */
    uint8_t pad_mask;
    uint32_t dims[PD_TENSOR_RANK_MAX]; /* of one element; each >= 1 up to rank */
    uint32_t number;                   /* in the feed, < PD_TENSORS_MAX */
    uint8_t pad_value[8];              /* one scalar, in the dtype's own little-endian bytes */
    uint64_t views; /* units of spans: bit v = the spans of view v; 0 = all spans */
};

/* Scalars in one element: the product of its dims, 1 for none. */
uint64_t pd_tensor_scalars(const struct pd_tensor_spec *spec);
/* Bytes of one element. */
uint64_t pd_tensor_element_bytes(const struct pd_tensor_spec *spec);
/* Whether the fields are what they may be: name, enums, dims within the limits, an element of at
 * most PD_ELEMENT_BYTES_MAX. NULL, or what is wrong. */
const char *pd_tensor_spec_fault(const struct pd_tensor_spec *spec);
/* The first field in which two declarations of one name differ, or NULL; `number` is not one. */
const char *pd_tensor_spec_differs(const struct pd_tensor_spec *a, const struct pd_tensor_spec *b);
/* "F32 [8,3], axis sample", for people; returns text. */
const char *pd_tensor_spec_text(const struct pd_tensor_spec *spec, char *text, size_t size);
/* Whether spans of this view have elements in the tensor; units of spans. */
static inline bool pd_tensor_has_view(const struct pd_tensor_spec *spec, uint32_t view)
{
    return spec->views == 0 || (spec->views >> view & 1) != 0;
}

#endif
