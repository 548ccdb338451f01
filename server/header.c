/* The deterministic header: columns collected row by row, then one protobuf-c message over them.
 *
 * Place in the flow: an assemble thread adds rows and samples while it reads the plan and the
 * heads, learns the header's size, and packs it once the array digests exist. Each assemble thread
 * owns one.
 *
 * Invariant: the bytes are a function of plan, heads and configuration alone. protobuf-c writes
 * fields in the order of their numbers; names are numbered in the order of their first use; a
 * column whose entries all have the default is left out; nothing here looks at a clock, an address
 * or an earlier batch.
 *
 * It does not compute totals (plan.c, layout.c, assemble.c do) and does not read the log. */
#include "server/header.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/grow.h"
#include "base/name.h"
#include "packer/layout.h"
#include "proto/packd.pb-c.h"

#include <stdlib.h>
#include <string.h>

#define HEADER_FORMAT 1
#define HEADER_MAGIC 0x68656164u
#define DIGEST_UNKNOWN 1 /* any value but 0 has the same size on the wire */

/* Names by their numbers, in the order of first use. */
struct names {
    uint32_t *numbers;
    char (*texts)[PD_NAME_MAX + 1];
    char **pointers; /* into texts, made at finish */
    uint32_t count, capacity;
};

/* The sample table, one entry per real segment. */
struct columns {
    uint32_t count, capacity;
    uint32_t *stream, *part, *epoch, *source, *offset, *length, *flags, *loss_tokens;
    uint64_t *seq, *version, *digest;
    float *loss_weight;
    ProtobufCBinaryData *key, *group; /* data is an offset into `bytes` until finish */
};

struct pd_header {
    uint32_t magic;
    struct columns columns;
    struct names streams, sources;
    struct pd_buf bytes; /* keys and groups */
    int64_t *packs;
    uint32_t row_count, row_capacity;
    bool plain_labels;
    const struct pd_batch *batch; /* borrowed between finish and pack */
    Packd__V1__BatchHeader message;
    Packd__V1__SampleTable table;
    Packd__V1__Totals totals, step_totals;
    /* "tokens", then one per tensor declared as a loss */
    Packd__V1__LossTotal loss[1 + PD_TENSORS_MAX], step_loss[1 + PD_TENSORS_MAX];
    Packd__V1__LossTotal *loss_list[1 + PD_TENSORS_MAX], *step_loss_list[1 + PD_TENSORS_MAX];
    Packd__V1__LossDecl loss_decls[PD_TENSORS_MAX];
    Packd__V1__ArrayInfo arrays[PD_ARRAYS_MAX], *array_list[PD_ARRAYS_MAX];
};

int pd_header_new(struct pd_header **header)
{
    *header = calloc(1, sizeof **header);
    if (!*header)
        return PD_ENOMEM;
    (*header)->magic = HEADER_MAGIC;
    return 0;
}

static void names_fini(struct names *names)
{
    free(names->numbers);
    free(names->texts);
    free(names->pointers);
}

void pd_header_free(struct pd_header *header)
{
    if (!header)
        return;
    PD_MAGIC_CHECK(header, HEADER_MAGIC);
    struct columns *columns = &header->columns;
    void *owned[] = {columns->stream, columns->part,    columns->epoch,  columns->source,
                     columns->offset, columns->length,  columns->flags,  columns->loss_tokens,
                     columns->seq,    columns->version, columns->digest, columns->loss_weight,
                     columns->key,    columns->group,   header->packs};
    for (size_t i = 0; i < PD_COUNT_OF(owned); i++)
        free(owned[i]);
    names_fini(&header->streams);
    names_fini(&header->sources);
    pd_buf_fini(&header->bytes);
    free(header);
}

void pd_header_begin(struct pd_header *header)
{
    PD_MAGIC_CHECK(header, HEADER_MAGIC);
    header->columns.count = 0;
    header->streams.count = header->sources.count = 0;
    header->row_count = 0;
    header->plain_labels = true;
    header->batch = NULL;
    pd_buf_clear(&header->bytes);
}

#define GROW(array, capacity) pd_grow(&(array), (capacity), sizeof *(array))

static bool names_grow(struct names *names)
{
    uint32_t capacity = names->capacity ? names->capacity * 2 : 16;
    if (!GROW(names->numbers, capacity) || !GROW(names->texts, capacity) ||
        !GROW(names->pointers, capacity))
        return false;
    names->capacity = capacity;
    return true;
}

static bool names_find(const struct names *names, uint32_t number, uint32_t *index)
{
    *index = names->count;
    while (*index > 0)
        if (names->numbers[--*index] == number)
            return true;
    return false;
}

static int names_add(struct names *names, uint32_t number, const char *text, uint32_t *index)
{
    if (names_find(names, number, index))
        return 0;
    if (names->count == names->capacity && !names_grow(names))
        return PD_ENOMEM;
    *index = names->count++;
    names->numbers[*index] = number;
    strncpy(names->texts[*index], text, PD_NAME_MAX);
    names->texts[*index][PD_NAME_MAX] = 0;
    return 0;
}

int pd_header_row(struct pd_header *header, int64_t pack)
{
    PD_MAGIC_CHECK(header, HEADER_MAGIC);
    if (header->row_count == header->row_capacity) {
        uint32_t capacity = header->row_capacity ? header->row_capacity * 2 : 16;
        if (!GROW(header->packs, capacity))
            return PD_ENOMEM;
        header->row_capacity = capacity;
    }
    header->packs[header->row_count++] = pack;
    return 0;
}

static bool columns_grow(struct columns *c)
{
    uint32_t capacity = c->capacity ? c->capacity * 2 : 256;
    if (!GROW(c->stream, capacity) || !GROW(c->part, capacity) || !GROW(c->epoch, capacity) ||
        !GROW(c->source, capacity) || !GROW(c->offset, capacity) || !GROW(c->length, capacity) ||
        !GROW(c->flags, capacity) || !GROW(c->loss_tokens, capacity) || !GROW(c->seq, capacity) ||
        !GROW(c->version, capacity) || !GROW(c->digest, capacity) ||
        !GROW(c->loss_weight, capacity) || !GROW(c->key, capacity) || !GROW(c->group, capacity))
        return false;
    c->capacity = capacity;
    return true;
}

/* Copies bytes behind the others; the place is kept as an offset, as the buffer may still move. */
static int bytes_add(struct pd_header *header, const uint8_t *data, size_t size,
                     ProtobufCBinaryData *out)
{
    size_t at = header->bytes.size_bytes;
    if (size > 0)
        pd_buf_put(&header->bytes, data, size);
    *out = (ProtobufCBinaryData){.len = size, .data = (uint8_t *)(uintptr_t)at};
    return header->bytes.failed ? PD_ENOMEM : 0;
}

bool pd_header_has_names(const struct pd_header *header, const struct pd_segment *segment)
{
    uint32_t index;
    return names_find(&header->streams, segment->stream, &index) &&
           names_find(&header->sources, segment->source, &index);
}

int pd_header_sample(struct pd_header *header, const struct pd_header_sample *sample)
{
    PD_MAGIC_CHECK(header, HEADER_MAGIC);
    struct columns *c = &header->columns;
    if (c->count == c->capacity && !columns_grow(c))
        return PD_ENOMEM;
    const struct pd_segment *segment = sample->segment;
    uint32_t i = c->count;
    int rc = names_add(&header->streams, segment->stream, sample->stream, &c->stream[i]);
    if (rc == 0)
        rc = names_add(&header->sources, segment->source, sample->source, &c->source[i]);
    if (rc == 0)
        rc = bytes_add(header, sample->key, sample->key_bytes, &c->key[i]);
    if (rc == 0)
        rc = bytes_add(header, sample->group, sample->group_bytes, &c->group[i]);
    if (rc != 0)
        return rc;
    bool whole = segment->length_tokens == segment->sample_tokens;
    bool pruned = segment->prune.drop_views != 0 || segment->prune.keep_frames != 0;
    c->seq[i] = segment->seq;
    c->part[i] = segment->part;
    c->epoch[i] = segment->pass;
    c->offset[i] = segment->offset_tokens;
    c->length[i] = segment->length_tokens;
    c->flags[i] =
        (whole ? PACKD__V1__SAMPLE_FLAG__SAMPLE_WHOLE : PACKD__V1__SAMPLE_FLAG__SAMPLE_CUT) |
        (pruned ? PACKD__V1__SAMPLE_FLAG__SAMPLE_PRUNED : 0);
    c->loss_tokens[i] = segment->loss_tokens;
    c->version[i] = sample->version;
    c->digest[i] = sample->digest;
    c->loss_weight[i] = sample->loss_weight;
    header->plain_labels = header->plain_labels && sample->plain_labels;
    c->count++;
    return 0;
}

/* ---- finish: the message over the columns ---- */

static bool all_zero(const void *column, size_t size_bytes)
{
    const uint8_t *bytes = column;
    return size_bytes == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, size_bytes - 1) == 0);
}

/* An entry count for a column: 0 where every entry has the default. */
static size_t column_count(const void *column, uint32_t count, size_t item_bytes)
{
    return all_zero(column, count * item_bytes) ? 0 : count;
}

#define COLUMN(field, column)                                                  \
    do {                                                                       \
        table->field = (column);                                               \
        table->n_##field = column_count((column), c->count, sizeof *(column)); \
    } while (0)

/* Turns offsets into pointers; 0 where no entry has bytes. */
static size_t bytes_column(struct pd_header *header, ProtobufCBinaryData *column)
{
    bool any = false;
    for (uint32_t i = 0; i < header->columns.count; i++) {
        any = any || column[i].len > 0;
        column[i].data = column[i].len > 0 ? header->bytes.data + (uintptr_t)column[i].data : NULL;
    }
    return any ? header->columns.count : 0;
}

static char **names_list(struct names *names)
{
    for (uint32_t i = 0; i < names->count; i++)
        names->pointers[i] = names->texts[i];
    return names->pointers;
}

static void fill_table(struct pd_header *header)
{
    struct columns *c = &header->columns;
    Packd__V1__SampleTable *table = &header->table;
    packd__v1__sample_table__init(table);
    table->n_streams = header->streams.count;
    table->streams = names_list(&header->streams);
    table->n_sources = header->sources.count;
    table->sources = names_list(&header->sources);
    COLUMN(stream, c->stream);
    COLUMN(seq, c->seq);
    COLUMN(part, c->part);
    COLUMN(epoch, c->epoch);
    COLUMN(source, c->source);
    COLUMN(version, c->version);
    COLUMN(offset, c->offset);
    COLUMN(length, c->length);
    COLUMN(digest, c->digest);
    COLUMN(flags, c->flags);
    COLUMN(loss_weights, c->loss_weight);
    COLUMN(loss_tokens, c->loss_tokens);
    table->group = c->group;
    table->n_group = bytes_column(header, c->group);
    table->key = c->key;
    table->n_key = bytes_column(header, c->key);
}

struct totals_parts {
    Packd__V1__Totals *message;
    Packd__V1__LossTotal *loss, **list;
    const struct pd_media *media;
    const struct pd_tensor_total *losses; /* loss_count of them */
    uint32_t loss_count;
};

static const struct pd_tensor_spec *spec_of(const struct pd_media *media, uint32_t number)
{
    for (uint32_t i = 0; media && i < media->tensor_count; i++)
        if (media->tensors[i].number == number)
            return &media->tensors[i];
    return NULL;
}

/* One total for each tensor declared as a loss, by name, behind that of the tokens. */
static void fill_losses(struct totals_parts parts)
{
    for (uint32_t i = 0; i < parts.loss_count; i++) {
        const struct pd_tensor_spec *spec = spec_of(parts.media, parts.losses[i].number);
        Packd__V1__LossTotal *loss = &parts.loss[1 + i];
        packd__v1__loss_total__init(loss);
        loss->name = spec ? (char *)spec->name : (char *)"";
        loss->count = (int64_t)parts.losses[i].count;
        loss->weight = parts.losses[i].weight;
        parts.list[1 + i] = loss;
    }
    for (uint32_t i = 2; i <= parts.loss_count; i++) /* few: insertion */
        for (uint32_t k = i; k > 1 && strcmp(parts.list[k - 1]->name, parts.list[k]->name) > 0;
             k--) {
            Packd__V1__LossTotal *before = parts.list[k - 1];
            parts.list[k - 1] = parts.list[k];
            parts.list[k] = before;
        }
}

static void fill_totals(struct totals_parts parts, const struct pd_totals *sums,
                        uint64_t tail_tokens, uint64_t row_padding_tokens)
{
    packd__v1__totals__init(parts.message);
    packd__v1__loss_total__init(parts.loss);
    parts.message->real_tokens = sums->real_tokens;
    parts.message->tail_padding = tail_tokens;
    parts.message->gap = sums->gap_tokens;
    parts.message->row_padding = row_padding_tokens;
    parts.message->overlap_tokens = sums->overlap_tokens;
    parts.message->samples = sums->samples;
    parts.message->segments = sums->segments;
    parts.message->attention_cost = sums->attention_cost;
    parts.message->patches = sums->patches;
    parts.loss->name = (char *)"tokens";
    parts.loss->count = (int64_t)sums->loss_tokens;
    parts.loss->weight = sums->loss_weight;
    parts.list[0] = parts.loss;
    fill_losses(parts);
    parts.message->n_loss = 1 + parts.loss_count;
    parts.message->loss = parts.list;
}

/* Whether a reader can rebuild the array bit for bit from those that are always sent. */
static bool derivable(const struct pd_array *array, bool plain_labels)
{
    static const char *const always[] = {"segment_ids", "loss_weight", "cu_seqlens_real",
                                         "cu_seqlens_padded"};
    for (size_t i = 0; i < PD_COUNT_OF(always); i++)
        if (strcmp(array->name, always[i]) == 0)
            return true;
    if (strcmp(array->name, "positions") == 0)
        return array->rank == 2; /* M-RoPE positions come from media grids */
    return plain_labels && strcmp(array->name, "labels") == 0;
}

static Packd__V1__DType wire_dtype(enum pd_dtype dtype)
{
    switch (dtype) {
    case PD_DTYPE_U8:
        return PACKD__V1__DTYPE__DTYPE_UINT8;
    case PD_DTYPE_I32:
        return PACKD__V1__DTYPE__DTYPE_INT32;
    case PD_DTYPE_I64:
        return PACKD__V1__DTYPE__DTYPE_INT64;
    case PD_DTYPE_F16:
        return PACKD__V1__DTYPE__DTYPE_FLOAT16;
    case PD_DTYPE_BF16:
        return PACKD__V1__DTYPE__DTYPE_BFLOAT16;
    case PD_DTYPE_F32:
        return PACKD__V1__DTYPE__DTYPE_FLOAT32;
    case PD_DTYPE_BOOL:
        return PACKD__V1__DTYPE__DTYPE_BOOL;
    case PD_DTYPE_I8:
        return PACKD__V1__DTYPE__DTYPE_INT8;
    case PD_DTYPE_U16:
        return PACKD__V1__DTYPE__DTYPE_UINT16;
    case PD_DTYPE_I16:
        return PACKD__V1__DTYPE__DTYPE_INT16;
    case PD_DTYPE_U32:
        return PACKD__V1__DTYPE__DTYPE_UINT32;
    case PD_DTYPE_U64:
        return PACKD__V1__DTYPE__DTYPE_UINT64;
    case PD_DTYPE_F64:
        return PACKD__V1__DTYPE__DTYPE_FLOAT64;
    }
    return PACKD__V1__DTYPE__DTYPE_UNSPECIFIED;
}

static Packd__V1__Axis wire_axis(const struct pd_tensor_spec *spec)
{
    switch (spec->axis) {
    case PD_AXIS_TOKEN:
        return PACKD__V1__AXIS__AXIS_TOKEN;
    case PD_AXIS_RAGGED:
        return PACKD__V1__AXIS__AXIS_RAGGED;
    default:
        return PACKD__V1__AXIS__AXIS_SAMPLE;
    }
}

/* Axis and loss of the array that is a named tensor. */
static void describe_tensor(struct pd_header *header, const struct pd_media *media,
                            Packd__V1__ArrayInfo *info)
{
    for (uint32_t i = 0; media && i < media->tensor_count; i++) {
        const struct pd_tensor_spec *spec = &media->tensors[i];
        if (strcmp(spec->name, info->name) != 0)
            continue;
        info->axis = wire_axis(spec);
        if (!spec->is_loss)
            return;
        const struct pd_tensor_spec *mask = spec_of(media, spec->pad_mask);
        Packd__V1__LossDecl *decl = &header->loss_decls[i];
        packd__v1__loss_decl__init(decl);
        if (mask)
            decl->pad_mask = (char *)mask->name;
        info->loss = decl;
        return;
    }
}

/* The array table. Only the run of derivable arrays at the payload's end is marked, so that a core
 * payload is a prefix. */
static void fill_arrays(struct pd_header *header, const struct pd_batch *batch,
                        const struct pd_media *media)
{
    Packd__V1__BatchHeader *message = &header->message;
    for (uint32_t i = 0; i < batch->array_count; i++) {
        const struct pd_array *array = &batch->arrays[i];
        Packd__V1__ArrayInfo *info = &header->arrays[i];
        packd__v1__array_info__init(info);
        info->name = (char *)array->name;
        info->dtype = wire_dtype(array->dtype);
        info->n_shape = array->rank;
        info->shape = (uint64_t *)array->shape;
        info->offset = array->offset_bytes;
        info->bytes = array->size_bytes;
        info->xxh3_64 = DIGEST_UNKNOWN;
        describe_tensor(header, media, info);
        header->array_list[i] = info;
    }
    message->n_arrays = batch->array_count;
    message->arrays = header->array_list;
    message->core_bytes = batch->payload_bytes;
    for (uint32_t i = batch->array_count; i-- > 0;) {
        if (!derivable(&batch->arrays[i], header->plain_labels))
            break;
        header->arrays[i].derivable = true;
        message->core_bytes = batch->arrays[i].offset_bytes;
    }
}

static void fill_identity(Packd__V1__BatchHeader *message, const struct pd_header_facts *facts)
{
    message->format = HEADER_FORMAT;
    message->feed = (char *)facts->feed;
    message->job = (char *)facts->job;
    message->step = facts->step;
    message->micro = facts->micro;
    message->dp_rank = facts->dp_rank;
    message->step_packs = facts->step_packs;
    message->dp_size = facts->dp_size;
    message->accum = facts->accum;
    message->config_digest = facts->config_digest;
    message->plan_digest = facts->plan_digest;
    message->planner_version = facts->planner_version;
}

static void fill_shape(Packd__V1__BatchHeader *message, const struct pd_header_facts *facts)
{
    const struct pd_layout_rules *rules = facts->rules;
    const struct pd_batch *batch = facts->batch;
    message->rows = batch->rows;
    message->width = batch->width;
    message->payload_bytes = batch->payload_bytes;
    message->n_segments = batch->segment_count;
    message->n_real_segments = batch->real_segment_count;
    message->max_seqlen = batch->max_seqlen;
    message->max_seqlen_real = facts->max_seqlen_real;
    message->max_seqlen_padded = facts->max_seqlen_padded;
    message->fixed_segments = rules->fixed_segments;
    message->width_bound = facts->width->bound_tokens;
    message->saved_positions = facts->width->saved_positions;
    message->attention_path = facts->width->varlen ? PACKD__V1__ATTENTION_PATH__ATTENTION_VARLEN
                                                   : PACKD__V1__ATTENTION_PATH__ATTENTION_FIXED;
    message->attention_why = (char *)facts->width->reason;
    message->pad_id = rules->pad_id;
    message->labels = rules->labels == PD_LABELS_SHIFTED
                          ? PACKD__V1__LABEL_CONVENTION__LABELS_SHIFTED
                          : PACKD__V1__LABEL_CONVENTION__LABELS_UNSHIFTED;
    message->loss_weight = rules->loss == PD_LOSS_SAMPLE
                               ? PACKD__V1__LOSS_WEIGHT_POLICY__LOSS_WEIGHT_SAMPLE
                               : PACKD__V1__LOSS_WEIGHT_POLICY__LOSS_WEIGHT_TOKEN;
}

int pd_header_finish(struct pd_header *header, const struct pd_header_facts *facts,
                     size_t *size_bytes)
{
    PD_MAGIC_CHECK(header, HEADER_MAGIC);
    const struct pd_batch *batch = facts->batch;
    if (header->row_count != batch->rows || header->columns.count != batch->real_segment_count ||
        batch->array_count > PD_ARRAYS_MAX)
        return PD_EINTERNAL;
    Packd__V1__BatchHeader *message = &header->message;
    packd__v1__batch_header__init(message);
    fill_identity(message, facts);
    fill_shape(message, facts);
    fill_arrays(header, batch, facts->media);
    const struct pd_step_totals *step = facts->step_totals;
    fill_totals((struct totals_parts){&header->totals, header->loss, header->loss_list,
                                      facts->media, batch->losses, batch->loss_count},
                &batch->totals, batch->tail_tokens, batch->row_padding_tokens);
    fill_totals((struct totals_parts){&header->step_totals, header->step_loss,
                                      header->step_loss_list, facts->media, step->losses,
                                      step->loss_count},
                &step->sums, step->tail_tokens, step->row_padding_tokens);
    fill_table(header);
    message->n_packs = header->row_count;
    message->packs = header->packs;
    message->batch = &header->totals;
    message->step_totals = &header->step_totals;
    message->samples = &header->table;
    header->batch = batch;
    *size_bytes = packd__v1__batch_header__get_packed_size(message);
    return 0;
}

int pd_header_pack(struct pd_header *header, uint8_t *dst, size_t size_bytes)
{
    PD_MAGIC_CHECK(header, HEADER_MAGIC);
    PD_CHECK(header->batch);
    for (uint32_t i = 0; i < header->batch->array_count; i++)
        header->arrays[i].xxh3_64 = header->batch->arrays[i].digest;
    if (packd__v1__batch_header__get_packed_size(&header->message) != size_bytes)
        return PD_EINTERNAL;
    packd__v1__batch_header__pack(&header->message, dst);
    return 0;
}
