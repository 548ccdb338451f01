/* Block heads: the codec between struct pd_block_head and its bytes in the log, and the view of one
 * sample as the planner sees it.
 *
 * Door (any rpc thread) and sequencer encode; sequencer and assemble threads decode; a head has one
 * owner at a time. The encoding is a fixed header, the columns in a fixed order (each at a multiple
 * of 8 bytes, so that they can be read in place) and an XXH3-64 over all of it:
 *
 *   | header 72 | lengths | rejected | token_digests | ... | versions | digest 8 |
 *
 * Invariant: a head that decode accepts obeys pd_block_head_check, whatever the bytes were. It does
 * not know the log, the body's bytes or the wire. */
#include "server/block.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>
#include <xxhash.h>

#define HEAD_MAGIC 0x48424450u /* "PDBH" */
#define HEAD_VERSION 1
#define HEADER_BYTES 72u
#define DIGEST_BYTES 8u

_Static_assert(sizeof(struct pd_span) == 40, "spans are stored as they are");

enum column_kind {
    COLUMN_LENGTHS,
    COLUMN_REJECTED,
    COLUMN_TOKEN_DIGESTS,
    COLUMN_LABEL_DIGESTS,
    COLUMN_WEIGHTS,
    COLUMN_RUN_ENDS,
    COLUMN_RUNS,
    COLUMN_SPAN_ENDS,
    COLUMN_SPANS,
    COLUMN_KEY_ENDS,
    COLUMN_KEYS,
    COLUMN_GROUP_ENDS,
    COLUMN_GROUPS,
    COLUMN_VERSIONS,
    COLUMN_TENSORS, /* before what is counted by them */
    COLUMN_RAGGED_ENDS,
    COLUMN_SPAN_COUNTS,
    COLUMN_TENSOR_DIGESTS,
    COLUMN_COUNT
};

/* How many entries the columns that are not per sample have. */
struct totals {
    uint32_t runs, spans, key_bytes, group_bytes, tensors;
};

struct column {
    const void *data; /* NULL: the column is left out */
    size_t size_bytes;
};

static size_t aligned(size_t size)
{
    return (size + 7u) & ~(size_t)7u;
}

static uint32_t last_end(const uint32_t *ends, uint32_t count)
{
    return ends && count ? ends[count - 1] : 0;
}

static uint32_t ragged_count(const struct pd_block_head *head)
{
    uint32_t count = 0;
    for (uint32_t k = 0; head->tensors && k < head->tensor_count; k++)
        count += head->tensors[k].axis == PD_AXIS_RAGGED;
    return count;
}

static uint32_t run_count(const struct pd_block_head *head)
{
    uint32_t count = 0;
    for (uint32_t k = 0; head->tensors && k < head->tensor_count; k++)
        count += head->tensors[k].unit == PD_UNIT_RUN;
    return count;
}

static struct totals totals_of(const struct pd_block_head *head)
{
    return (struct totals){.runs = last_end(head->loss_run_ends, head->count),
                           .spans = last_end(head->span_ends, head->count),
                           .key_bytes = last_end(head->key_ends, head->count),
                           .group_bytes = last_end(head->group_ends, head->count),
                           .tensors = head->tensor_count};
}

static struct column column_of(const struct pd_block_head *head, struct totals totals,
                               enum column_kind kind)
{
    size_t count = head->count;
    switch (kind) {
    case COLUMN_LENGTHS:
        return (struct column){head->lengths, count * 4};
    case COLUMN_REJECTED:
        return (struct column){head->rejected, count};
    case COLUMN_TOKEN_DIGESTS:
        return (struct column){head->token_digests, count * 8};
    case COLUMN_LABEL_DIGESTS:
        return (struct column){head->label_digests, count * 8};
    case COLUMN_WEIGHTS:
        return (struct column){head->weights, count * 4};
    case COLUMN_RUN_ENDS:
        return (struct column){head->loss_run_ends, count * 4};
    case COLUMN_RUNS:
        return (struct column){head->loss_runs, (size_t)totals.runs * 4};
    case COLUMN_SPAN_ENDS:
        return (struct column){head->span_ends, count * 4};
    case COLUMN_SPANS:
        return (struct column){head->spans, (size_t)totals.spans * sizeof(struct pd_span)};
    case COLUMN_KEY_ENDS:
        return (struct column){head->key_ends, count * 4};
    case COLUMN_KEYS:
        return (struct column){head->keys, totals.key_bytes};
    case COLUMN_GROUP_ENDS:
        return (struct column){head->group_ends, count * 4};
    case COLUMN_GROUPS:
        return (struct column){head->groups, totals.group_bytes};
    case COLUMN_VERSIONS:
        return (struct column){head->versions, count * 8};
    case COLUMN_TENSORS:
        return (struct column){head->tensors,
                               (size_t)totals.tensors * sizeof(struct pd_tensor_spec)};
    case COLUMN_RAGGED_ENDS:
        return (struct column){head->ragged_ends, count * ragged_count(head) * 4};
    case COLUMN_SPAN_COUNTS:
        return (struct column){head->span_counts, (size_t)totals.spans * run_count(head) * 4};
    case COLUMN_TENSOR_DIGESTS:
        return (struct column){head->tensor_digests, count * totals.tensors * 8};
    case COLUMN_COUNT:
        break;
    }
    return (struct column){0};
}

/* The array of this kind in *head is `data`; the reverse of column_of. */
static void column_set(struct pd_block_head *head, enum column_kind kind, const void *data)
{
    void *at = (void *)(uintptr_t)data; /* heads are read only after decoding */
    switch (kind) {
    case COLUMN_LENGTHS:
        head->lengths = at;
        break;
    case COLUMN_REJECTED:
        head->rejected = at;
        break;
    case COLUMN_TOKEN_DIGESTS:
        head->token_digests = at;
        break;
    case COLUMN_LABEL_DIGESTS:
        head->label_digests = at;
        break;
    case COLUMN_WEIGHTS:
        head->weights = at;
        break;
    case COLUMN_RUN_ENDS:
        head->loss_run_ends = at;
        break;
    case COLUMN_RUNS:
        head->loss_runs = at;
        break;
    case COLUMN_SPAN_ENDS:
        head->span_ends = at;
        break;
    case COLUMN_SPANS:
        head->spans = at;
        break;
    case COLUMN_KEY_ENDS:
        head->key_ends = at;
        break;
    case COLUMN_KEYS:
        head->keys = at;
        break;
    case COLUMN_GROUP_ENDS:
        head->group_ends = at;
        break;
    case COLUMN_GROUPS:
        head->groups = at;
        break;
    case COLUMN_VERSIONS:
        head->versions = at;
        break;
    case COLUMN_TENSORS:
        head->tensors = at;
        break;
    case COLUMN_RAGGED_ENDS:
        head->ragged_ends = at;
        break;
    case COLUMN_SPAN_COUNTS:
        head->span_counts = at;
        break;
    case COLUMN_TENSOR_DIGESTS:
        head->tensor_digests = at;
        break;
    case COLUMN_COUNT:
        break;
    }
}

/* ---- rules ---- */

static bool ends_rise(const uint32_t *ends, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (ends[i] < ends[i - 1])
            return false;
    return true;
}

static uint32_t start_of(const uint32_t *ends, uint32_t index)
{
    return index ? ends[index - 1] : 0;
}

static const char *runs_fault(const struct pd_block_head *head)
{
    if (!head->loss_run_ends)
        return NULL;
    if (!ends_rise(head->loss_run_ends, head->count))
        return "loss run ends fall";
    for (uint32_t i = 0; i < head->count; i++) {
        uint64_t sum = 0;
        for (uint32_t r = start_of(head->loss_run_ends, i); r < head->loss_run_ends[i]; r++)
            sum += head->loss_runs[r];
        if (sum > head->lengths[i])
            return "loss runs are longer than their sample";
    }
    return NULL;
}

static bool span_holds(const struct pd_span *span)
{
    uint64_t cells = (uint64_t)span->grid_t * span->grid_h;
    bool grid = span->grid_t || span->grid_h || span->grid_w;
    if (grid && (cells > UINT32_MAX || cells * span->grid_w != span->patches || cells == 0))
        return false;
    if (span->merge && (uint64_t)span->length_tokens * span->merge != span->patches)
        return false;
    return span->length_tokens > 0 && span->view < PD_VIEWS_MAX && isfinite(span->t_scale) &&
           span->t_scale > 0;
}

static const char *spans_fault(const struct pd_block_head *head)
{
    if (!head->span_ends)
        return NULL;
    if (!ends_rise(head->span_ends, head->count))
        return "span ends fall";
    for (uint32_t i = 0; i < head->count; i++) {
        uint64_t free_from = 0, patches = 0;
        for (uint32_t s = start_of(head->span_ends, i); s < head->span_ends[i]; s++) {
            const struct pd_span *span = &head->spans[s];
            if (!span_holds(span))
                return "a span's grid, patches, length or view do not agree";
            if (span->offset_tokens < free_from)
                return "spans overlap or are not in order";
            free_from = (uint64_t)span->offset_tokens + span->length_tokens;
            patches += span->patches;
            if (free_from > head->lengths[i] || patches > UINT32_MAX)
                return "a span leaves its sample";
        }
    }
    return NULL;
}

static const char *samples_fault(const struct pd_block_head *head)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < head->count; i++) {
        bool rejected = head->rejected && head->rejected[i];
        if (head->rejected && head->rejected[i] > 1)
            return "a rejected flag is neither 0 nor 1";
        if (!rejected && head->lengths[i] == 0)
            return "a sample has no tokens";
        if (head->weights && !rejected && !(isfinite(head->weights[i]) && head->weights[i] >= 0))
            return "a weight is negative or not finite";
        tokens += head->lengths[i];
    }
    if (head->tensor_count == 0 && head->body_bytes != tokens * (head->has_labels ? 8 : 4))
        return "the body's size is not that of its columns";
    return NULL;
}

/* ---- tensors ---- */

/* The running ends of a ragged tensor's elements. */
static const uint32_t *ragged_ends(const struct pd_block_head *head, uint32_t tensor)
{
    const uint32_t *ends = head->ragged_ends;
    for (uint32_t k = 0; k < tensor; k++)
        if (head->tensors[k].axis == PD_AXIS_RAGGED)
            ends += head->count;
    return ends;
}

/* Elements that the sample's spans call for. */
static uint64_t spans_elements(const struct pd_block_head *head, uint32_t k, uint32_t index)
{
    uint32_t count;
    (void)pd_block_head_spans(head, index, &count);
    uint64_t elements = 0;
    for (uint32_t s = 0; s < count; s++)
        elements += pd_block_head_span_elements(head, k, index, s);
    return elements;
}

/* The entries of a tensor of unit RUN in span_counts; NULL where no sample has a span. */
static const uint32_t *span_counts(const struct pd_block_head *head, uint32_t tensor)
{
    uint32_t spans = last_end(head->span_ends, head->count);
    size_t at = 0;
    for (uint32_t k = 0; k < tensor; k++)
        if (head->tensors[k].unit == PD_UNIT_RUN)
            at += spans;
    return spans ? head->span_counts + at : NULL;
}

/* A span of another view has no elements in a tensor of unit RUN. */
static bool runs_hold(const struct pd_block_head *head, uint32_t k)
{
    const uint32_t *counts = span_counts(head, k);
    uint32_t spans = last_end(head->span_ends, head->count);
    for (uint32_t s = 0; s < spans; s++)
        if (counts[s] > 0 && !pd_tensor_has_view(&head->tensors[k], head->spans[s].view))
            return false;
    return true;
}

static const char *ragged_fault(const struct pd_block_head *head, uint32_t k)
{
    const struct pd_tensor_spec *tensor = &head->tensors[k];
    const uint32_t *ends = ragged_ends(head, k);
    if (!ends_rise(ends, head->count))
        return "ragged ends fall";
    if (tensor->unit == PD_UNIT_SAMPLE)
        return NULL;
    for (uint32_t i = 0; i < head->count; i++) {
        bool rejected = head->rejected && head->rejected[i];
        if (!rejected && spans_elements(head, k, i) != ends[i] - start_of(ends, i))
            return "a ragged tensor's elements are not those of its sample's spans";
    }
    if (tensor->unit == PD_UNIT_RUN && !runs_hold(head, k))
        return "a ragged tensor has elements of a span of another view";
    return NULL;
}

static const char *mask_fault(const struct pd_block_head *head, const struct pd_tensor_spec *tensor)
{
    if (tensor->pad_mask == PD_TENSOR_NONE)
        return NULL;
    uint32_t k = pd_block_head_tensor(head, tensor->pad_mask);
    const struct pd_tensor_spec *mask = k == PD_TENSOR_NONE ? NULL : &head->tensors[k];
    if (!mask || mask == tensor || mask->axis != tensor->axis || mask->unit != tensor->unit ||
        (mask->dtype != PD_DTYPE_BOOL && mask->dtype != PD_DTYPE_U8) || mask->rank > tensor->rank ||
        memcmp(mask->dims, tensor->dims, mask->rank * sizeof mask->dims[0]) != 0)
        return "a pad mask does not go with its tensor";
    return NULL;
}

static const char *tensor_fault(const struct pd_block_head *head, uint32_t k)
{
    const struct pd_tensor_spec *tensor = &head->tensors[k];
    const char *fault = pd_tensor_spec_fault(tensor);
    if (fault)
        return fault;
    if (tensor->number >= PD_TENSORS_MAX)
        return "a tensor's number is out of range";
    for (uint32_t other = 0; other < k; other++)
        if (head->tensors[other].number == tensor->number ||
            strcmp(head->tensors[other].name, tensor->name) == 0)
            return "a tensor is there twice";
    if (tensor->axis == PD_AXIS_RAGGED)
        fault = ragged_fault(head, k);
    return fault ? fault : mask_fault(head, tensor);
}

/* Bytes of a tensor's column; false where they pass 64 bits. */
static bool column_bytes(const struct pd_block_head *head, uint32_t k, uint64_t *bytes)
{
    const struct pd_tensor_spec *tensor = &head->tensors[k];
    uint64_t elements = head->count;
    if (tensor->axis == PD_AXIS_TOKEN)
        elements = head->token_offsets[head->count];
    else if (tensor->axis == PD_AXIS_RAGGED)
        elements = last_end(ragged_ends(head, k), head->count);
    return !__builtin_mul_overflow(elements, pd_tensor_element_bytes(tensor), bytes);
}

bool pd_block_head_derive(struct pd_block_head *head)
{
    head->token_offsets[0] = 0;
    for (uint32_t i = 0; i < head->count; i++)
        head->token_offsets[i + 1] = head->token_offsets[i] + head->lengths[i];
    if (head->tensor_count == 0)
        return true;
    head->tensor_offsets[0] = head->token_offsets[head->count] * (head->has_labels ? 8 : 4);
    for (uint32_t k = 0; k < head->tensor_count; k++) {
        uint64_t bytes;
        if (!column_bytes(head, k, &bytes) ||
            __builtin_add_overflow(head->tensor_offsets[k], bytes, &head->tensor_offsets[k + 1]))
            return false;
    }
    return true;
}

static const char *tensors_fault(const struct pd_block_head *head)
{
    if (head->tensor_count > PD_TENSORS_MAX)
        return "too many tensors";
    if ((head->tensor_count > 0) != (head->tensors != NULL) ||
        (head->tensor_count > 0) != (head->tensor_digests != NULL) ||
        (ragged_count(head) > 0) != (head->ragged_ends != NULL) ||
        (run_count(head) > 0 && totals_of(head).spans > 0) != (head->span_counts != NULL))
        return "a column of the tensors is missing";
    for (uint32_t k = 0; k < head->tensor_count; k++) {
        const char *fault = tensor_fault(head, k);
        if (fault)
            return fault;
    }
    return NULL;
}

static const char *head_fault(const struct pd_block_head *head)
{
    if (head->count == 0 || head->count > PD_BLOCK_SAMPLES_MAX)
        return "no samples, or too many";
    if (head->first_index >= head->count)
        return "first_index is behind the last sample";
    if (head->first_seq > UINT64_MAX - head->count)
        return "seq overflows";
    if (!head->lengths || !head->token_digests || head->has_labels != (head->label_digests != NULL))
        return "a column is missing";
    if (head->key_ends && !ends_rise(head->key_ends, head->count))
        return "key ends fall";
    if (head->group_ends && !ends_rise(head->group_ends, head->count))
        return "group ends fall";
    const char *fault = samples_fault(head);
    if (!fault)
        fault = runs_fault(head);
    if (!fault)
        fault = spans_fault(head);
    return fault ? fault : tensors_fault(head);
}

/* Fills the derived fields of a head without a fault. */
static const char *derive_fault(struct pd_block_head *head)
{
    if (!pd_block_head_derive(head) ||
        (head->tensor_count > 0 && head->tensor_offsets[head->tensor_count] != head->body_bytes))
        return "the body's size is not that of its tensors";
    return NULL;
}

int pd_block_head_check(const struct pd_block_head *head, struct pd_error *error)
{
    const char *fault = head_fault(head);
    if (!fault && head->tensor_count > 0 &&
        head->tensor_offsets[head->tensor_count] != head->body_bytes)
        fault = "the body's size is not that of its tensors";
    if (!fault)
        return 0;
    return pd_error_set(error, PD_EINVAL, "BAD_BLOCK", "block at seq %llu with %u samples: %s",
                        (unsigned long long)head->first_seq, head->count, fault);
}

/* ---- encode ---- */

size_t pd_block_head_size(const struct pd_block_head *head)
{
    struct totals totals = totals_of(head);
    size_t size = HEADER_BYTES + DIGEST_BYTES;
    for (int kind = 0; kind < COLUMN_COUNT; kind++) {
        struct column column = column_of(head, totals, kind);
        if (column.data)
            size += aligned(column.size_bytes);
    }
    return size;
}

static void put_header(const struct pd_block_head *head, struct totals totals, struct pd_buf *buf)
{
    uint32_t present = 0;
    for (int kind = 0; kind < COLUMN_COUNT; kind++)
        if (column_of(head, totals, kind).data)
            present |= 1u << kind;
    pd_buf_put_u32(buf, HEAD_MAGIC);
    pd_buf_put_u16(buf, HEAD_VERSION);
    pd_buf_put_u16(buf, head->has_labels);
    pd_buf_put_u32(buf, present);
    pd_buf_put_u32(buf, head->feed);
    pd_buf_put_u32(buf, head->lane);
    pd_buf_put_u32(buf, head->stream);
    pd_buf_put_u32(buf, head->source);
    pd_buf_put_u32(buf, head->count);
    pd_buf_put_u32(buf, head->first_index);
    pd_buf_put_u32(buf, totals.runs);
    pd_buf_put_u32(buf, totals.spans);
    pd_buf_put_u32(buf, totals.key_bytes);
    pd_buf_put_u32(buf, totals.group_bytes);
    pd_buf_put_u32(buf, totals.tensors);
    pd_buf_put_u64(buf, head->first_seq);
    pd_buf_put_u64(buf, head->body_bytes);
}

void pd_block_head_encode(const struct pd_block_head *head, struct pd_buf *buf)
{
    static const uint8_t zeros[8];
    struct totals totals = totals_of(head);
    size_t start = buf->size_bytes;
    put_header(head, totals, buf);
    for (int kind = 0; kind < COLUMN_COUNT; kind++) {
        struct column column = column_of(head, totals, kind);
        if (!column.data)
            continue;
        pd_buf_put(buf, column.data, column.size_bytes);
        pd_buf_put(buf, zeros, aligned(column.size_bytes) - column.size_bytes);
    }
    if (!buf->failed)
        pd_buf_put_u64(buf, XXH3_64bits(buf->data + start, buf->size_bytes - start));
}

/* ---- decode ---- */

static void read_header(struct pd_reader *reader, struct pd_block_head *head, uint32_t *present,
                        struct totals *totals)
{
    bool known = pd_reader_u32(reader) == HEAD_MAGIC;
    known = pd_reader_u16(reader) == HEAD_VERSION && known;
    uint16_t labels = pd_reader_u16(reader);
    *present = pd_reader_u32(reader);
    head->feed = pd_reader_u32(reader);
    head->lane = pd_reader_u32(reader);
    head->stream = pd_reader_u32(reader);
    head->source = pd_reader_u32(reader);
    head->count = pd_reader_u32(reader);
    head->first_index = pd_reader_u32(reader);
    totals->runs = pd_reader_u32(reader);
    totals->spans = pd_reader_u32(reader);
    totals->key_bytes = pd_reader_u32(reader);
    totals->group_bytes = pd_reader_u32(reader);
    totals->tensors = head->tensor_count = pd_reader_u32(reader);
    head->first_seq = pd_reader_u64(reader);
    head->body_bytes = pd_reader_u64(reader);
    head->has_labels = labels != 0;
    if (!known || totals->tensors > PD_TENSORS_MAX || labels > 1 || *present >> COLUMN_COUNT ||
        head->count == 0 || head->count > PD_BLOCK_SAMPLES_MAX)
        reader->failed = true;
}

/* Points the columns into the bytes; false where they do not fit exactly or the ends disagree with
 * the totals. */
static bool map_columns(struct pd_reader *reader, struct pd_block_head *head, uint32_t present,
                        struct totals totals)
{
    for (int kind = 0; kind < COLUMN_COUNT; kind++) {
        if (!(present & 1u << kind))
            continue;
        size_t size = aligned(column_of(head, totals, kind).size_bytes);
        const uint8_t *data = pd_reader_bytes(reader, size);
        if (!data)
            return false;
        column_set(head, kind, data);
    }
    struct totals found = totals_of(head);
    return pd_reader_done(reader) && memcmp(&found, &totals, sizeof totals) == 0 &&
           (!head->loss_run_ends || !totals.runs || head->loss_runs) &&
           (!head->span_ends || !totals.spans || head->spans) &&
           (!head->key_ends || !totals.key_bytes || head->keys) &&
           (!head->group_ends || !totals.group_bytes || head->groups);
}

static int decode_at(struct pd_block_head *head, const uint8_t *data, size_t size)
{
    struct pd_reader reader = pd_reader_of(data, size);
    struct totals totals;
    uint32_t present;
    read_header(&reader, head, &present, &totals);
    if (reader.failed || !map_columns(&reader, head, present, totals) || head_fault(head) ||
        derive_fault(head))
        return PD_ECORRUPT;
    return 0;
}

/* The bytes without the digest, or 0 where the digest is not theirs. */
static size_t digested_size(const uint8_t *data, size_t size)
{
    if (size < HEADER_BYTES + DIGEST_BYTES || size > UINT32_MAX)
        return 0;
    uint64_t digest;
    memcpy(&digest, data + size - DIGEST_BYTES, sizeof digest);
    return digest == XXH3_64bits(data, size - DIGEST_BYTES) ? size - DIGEST_BYTES : 0;
}

/* `copy`: the arena takes a copy of the bytes, and the head stands on its own. */
static int decode(struct pd_block_head *head, const uint8_t *data, size_t size, bool copy)
{
    *head = (struct pd_block_head){0};
    size_t content = digested_size(data, size);
    if (!content)
        return PD_ECORRUPT;
    uint32_t count, tensors;
    memcpy(&count, data + 28, sizeof count);
    memcpy(&tensors, data + 52, sizeof tensors);
    if (count > PD_BLOCK_SAMPLES_MAX || tensors > PD_TENSORS_MAX)
        return PD_ECORRUPT;
    size_t offsets = count + 1u + (tensors ? tensors + 1u : 0);
    uint64_t *arena = malloc(offsets * sizeof *arena + (copy ? content : 0));
    if (!arena)
        return PD_ENOMEM;
    if (copy)
        memcpy(arena + offsets, data, content);
    head->token_offsets = arena;
    head->tensor_offsets = tensors ? arena + count + 1 : NULL;
    int rc = decode_at(head, copy ? (const uint8_t *)(arena + offsets) : data, content);
    if (rc) {
        free(arena);
        *head = (struct pd_block_head){0};
        return rc;
    }
    head->arena = arena;
    return 0;
}

int pd_block_head_decode(struct pd_block_head *head, const void *data, size_t size)
{
    return decode(head, data, size, true);
}

int pd_block_head_map(struct pd_block_head *head, const void *data, size_t size)
{
    return decode(head, data, size, ((uintptr_t)data & 7u) != 0);
}

void pd_block_head_fini(struct pd_block_head *head)
{
    free(head->arena);
    *head = (struct pd_block_head){0};
}

/* A sample's key or group; NULL where it has none. */
static const uint8_t *text_of(const uint8_t *texts, const uint32_t *ends, uint32_t index,
                              uint32_t *size)
{
    uint32_t start = ends ? start_of(ends, index) : 0;
    *size = ends ? ends[index] - start : 0;
    return *size ? texts + start : NULL;
}

void pd_block_head_sample(const struct pd_block_head *head, uint32_t index, struct pd_head *out)
{
    PD_CHECK(index < head->count);
    *out = (struct pd_head){.block = head->position,
                            .index = index,
                            .stream = head->stream,
                            .seq = head->first_seq + index,
                            .length_tokens = head->lengths[index],
                            .source = head->source,
                            .weight = head->weights ? head->weights[index] : 1.0f};
    if (head->loss_run_ends) {
        uint32_t start = start_of(head->loss_run_ends, index);
        out->loss.count = head->loss_run_ends[index] - start;
        out->loss.lengths = out->loss.count ? head->loss_runs + start : NULL;
    }
    out->spans = pd_block_head_spans(head, index, &out->span_count);
    for (uint32_t s = 0; s < out->span_count; s++)
        out->patches += out->spans[s].patches;
    uint64_t bytes = 4 * (uint64_t)out->length_tokens;
    for (uint32_t k = 0; k < head->tensor_count; k++) {
        bytes += pd_block_head_extent(head, k, index).size_bytes;
        out->tensors |= 1ull << head->tensors[k].number;
    }
    if (head->versions)
        out->version = head->versions[index];
    out->key = text_of(head->keys, head->key_ends, index, &out->key_bytes);
    out->group = text_of(head->groups, head->group_ends, index, &out->group_bytes);
    if (head->tensor_count > 0)
        out->payload_bytes = bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
}

const struct pd_span *pd_block_head_spans(const struct pd_block_head *head, uint32_t index,
                                          uint32_t *count)
{
    *count = 0;
    if (!head->span_ends)
        return NULL;
    uint32_t start = start_of(head->span_ends, index);
    *count = head->span_ends[index] - start;
    return *count ? head->spans + start : NULL;
}

struct pd_tensor_extent pd_block_head_extent(const struct pd_block_head *head, uint32_t tensor,
                                             uint32_t index)
{
    PD_CHECK(tensor < head->tensor_count && index < head->count);
    const struct pd_tensor_spec *spec = &head->tensors[tensor];
    uint64_t first = index, elements = 1;
    if (spec->axis == PD_AXIS_TOKEN) {
        first = head->token_offsets[index];
        elements = head->lengths[index];
    } else if (spec->axis == PD_AXIS_RAGGED) {
        const uint32_t *ends = ragged_ends(head, tensor);
        first = start_of(ends, index);
        elements = ends[index] - first;
    }
    uint64_t bytes = pd_tensor_element_bytes(spec);
    return (struct pd_tensor_extent){
        .offset_bytes = head->tensor_offsets[tensor] + first * bytes,
        .size_bytes = elements * bytes,
        .elements = elements,
        .digest = head->tensor_digests[(size_t)tensor * head->count + index]};
}

uint64_t pd_block_head_span_elements(const struct pd_block_head *head, uint32_t tensor,
                                     uint32_t index, uint32_t span)
{
    PD_CHECK(tensor < head->tensor_count && index < head->count && head->span_ends);
    const struct pd_tensor_spec *spec = &head->tensors[tensor];
    uint32_t at = start_of(head->span_ends, index) + span;
    PD_CHECK(at < head->span_ends[index]);
    if (!pd_tensor_has_view(spec, head->spans[at].view))
        return 0;
    switch (spec->unit) {
    case PD_UNIT_PATCH:
        return head->spans[at].patches;
    case PD_UNIT_RUN:
        return span_counts(head, tensor)[at];
    default:
        return 1;
    }
}

uint32_t pd_block_head_tensor(const struct pd_block_head *head, uint32_t number)
{
    for (uint32_t k = 0; k < head->tensor_count; k++)
        if (head->tensors[k].number == number)
            return k;
    return PD_TENSOR_NONE;
}
