/* Building blocks: samples go in as columns, messages come out without another copy of the body.
 *
 * Tokens and labels are the two big columns and are copied once, at put. A message is made of a
 * short hand-written prefix (field tags and lengths), the head for the first one, and one or two
 * runs of the body; gRPC takes head and body as slices that hold a reference on the block. Masks
 * arrive as bytes and are kept as runs. Does no I/O. */
#include "client/lib_block.h"

#include "base/bytes.h"
#include "base/check.h"
#include "client/lib_error.h"
#include "proto/packd.pb-c.h"

#include <math.h>
#include <stdlib.h>

#define KEY_MAX_BYTES 255
#define COLUMN_BYTES_MAX 48 /* of one sample in all columns of the head, keys and runs left out */
#define RUN_BYTES_MAX 5
#define TAG(field, type) ((uint8_t)((field) << 3 | (type)))
#define TYPE_BYTES 2

struct pd_client_block *pd_client_block_new(uint64_t first_seq, bool has_labels)
{
    struct pd_client_block *block = calloc(1, sizeof *block);
    if (!block)
        return NULL;
    atomic_init(&block->refs, 1);
    block->first_seq = first_seq;
    block->has_labels = has_labels;
    block->head_bound = 64;
    return block;
}

void pd_client_block_unref(void *pointer)
{
    struct pd_client_block *block = pointer;
    if (!block || atomic_fetch_sub(&block->refs, 1) != 1)
        return;
    struct pd_buf *const bufs[] = {&block->tokens,      &block->labels,    &block->lengths,
                                   &block->mask_counts, &block->mask_runs, &block->weights,
                                   &block->key_sizes,   &block->key_data,  &block->group_sizes,
                                   &block->group_data,  &block->versions,  &block->head};
    for (size_t i = 0; i < PD_COUNT_OF(bufs); i++)
        pd_buf_fini(bufs[i]);
    pd_client_media_free(block->media);
    free(block);
}

/* Runs of a mask, off first; NULL `out` only counts. An all-on mask has 0 runs. */
static uint32_t mask_runs(const uint8_t *mask, size_t count, struct pd_buf *out)
{
    uint32_t runs = 0;
    size_t at = 0;
    bool on = false;
    if (!memchr(mask, 0, count))
        return 0;
    while (at < count) {
        size_t from = at;
        while (at < count && (mask[at] != 0) == on)
            at++;
        if (out)
            pd_buf_put_u32(out, (uint32_t)(at - from));
        runs++;
        on = !on;
    }
    return runs;
}

/* `block` NULL: any. */
static size_t sample_head_bytes(const struct pd_client_block *block,
                                const struct packd_sample *sample)
{
    size_t bytes = COLUMN_BYTES_MAX + sample->key.size + sample->group.size +
                   pd_client_media_head_bytes(block ? block->media : NULL, sample);
    if (sample->loss_mask)
        bytes += (size_t)RUN_BYTES_MAX * mask_runs(sample->loss_mask, sample->count, NULL);
    return bytes;
}

static size_t sample_body_bytes(const struct packd_sample *sample)
{
    return sample->count * 4 * (sample->labels ? 2 : 1) + pd_client_media_bytes(sample);
}

size_t pd_client_sample_bytes(const struct packd_sample *sample)
{
    return sample_body_bytes(sample) + COLUMN_BYTES_MAX + sample->key.size + sample->group.size;
}

int pd_client_sample_check(const struct packd_sample *sample, const struct pd_client_limits *limits,
                           struct packd_error *error)
{
    if (sample->count == 0 || !sample->tokens)
        return pd_client_error(error, PACKD_EINVAL, "EMPTY_SAMPLE",
                               "the sample has no tokens; leave it out");
    if (sample->has_weight && !(isfinite(sample->weight) && sample->weight >= 0))
        return pd_client_error(error, PACKD_EINVAL, "BAD_WEIGHT",
                               "weight %g: expected a finite number of at least 0",
                               (double)sample->weight);
    if (sample->key.size > KEY_MAX_BYTES || sample->group.size > KEY_MAX_BYTES)
        return pd_client_error(error, PACKD_EINVAL, "KEY_TOO_LONG",
                               "key of %zu and group of %zu bytes: at most %d each",
                               sample->key.size, sample->group.size, KEY_MAX_BYTES);
    int rc = pd_client_media_check(sample, error);
    if (rc != 0)
        return rc;
    uint64_t most =
        limits->sample_bytes < limits->block_bytes ? limits->sample_bytes : limits->block_bytes;
    if (sample->count > UINT32_MAX || sample_body_bytes(sample) > most)
        return pd_client_error(
            error, PACKD_ELIMIT, "TOO_LARGE",
            "sample of %zu tokens (%zu bytes): the server takes at most %llu bytes", sample->count,
            sample_body_bytes(sample), (unsigned long long)most);
    if (64 + sample_head_bytes(NULL, sample) > limits->head_bytes)
        return pd_client_error(error, PACKD_ELIMIT, "HEAD_TOO_LARGE",
                               "loss_mask changes too often, or too many spans: they take more "
                               "than %llu bytes",
                               (unsigned long long)limits->head_bytes);
    return 0;
}

bool pd_client_block_fits(const struct pd_client_block *block, const struct packd_sample *sample,
                          const struct pd_client_limits *limits, size_t target_bytes)
{
    if (block->count == 0)
        return block->has_labels == (sample->labels != NULL);
    size_t body = pd_client_block_body_bytes(block) + sample_body_bytes(sample);
    return block->has_labels == (sample->labels != NULL) && block->count < limits->block_samples &&
           body <= limits->block_bytes && body <= target_bytes &&
           block->head_bound + sample_head_bytes(block, sample) <= limits->head_bytes &&
           pd_client_media_joins(block->media, block->count, sample);
}

#define COLUMNS 11

static void columns(struct pd_client_block *block, struct pd_buf *list[COLUMNS])
{
    struct pd_buf *const all[COLUMNS] = {
        &block->tokens,      &block->labels,     &block->lengths,   &block->mask_counts,
        &block->mask_runs,   &block->weights,    &block->key_sizes, &block->key_data,
        &block->group_sizes, &block->group_data, &block->versions};
    memcpy(list, all, sizeof all);
}

static void add_columns(struct pd_client_block *block, const struct packd_sample *sample)
{
    pd_buf_put(&block->tokens, sample->tokens, sample->count * 4);
    if (sample->labels)
        pd_buf_put(&block->labels, sample->labels, sample->count * 4);
    pd_buf_put_u32(&block->lengths, (uint32_t)sample->count);
    uint32_t runs =
        sample->loss_mask ? mask_runs(sample->loss_mask, sample->count, &block->mask_runs) : 0;
    pd_buf_put_u32(&block->mask_counts, runs);
    pd_buf_put_f32(&block->weights, sample->has_weight ? sample->weight : 1);
    pd_buf_put_u32(&block->key_sizes, (uint32_t)sample->key.size);
    pd_buf_put(&block->key_data, sample->key.data, sample->key.size);
    pd_buf_put_u32(&block->group_sizes, (uint32_t)sample->group.size);
    pd_buf_put(&block->group_data, sample->group.data, sample->group.size);
    pd_buf_put_u64(&block->versions, sample->version);
    block->has_masks |= runs > 0;
    block->has_weights |= sample->has_weight && sample->weight != 1;
    block->has_keys |= sample->key.size > 0;
    block->has_groups |= sample->group.size > 0;
    block->has_versions |= sample->version != 0;
}

int pd_client_block_add(struct pd_client_block *block, const struct packd_sample *sample)
{
    struct pd_buf *list[COLUMNS];
    size_t sizes[COLUMNS];
    size_t head_bytes = sample_head_bytes(block, sample);
    if (pd_client_media_add(&block->media, block->count, sample) != 0)
        return PACKD_ENOMEM;
    columns(block, list);
    for (size_t i = 0; i < COLUMNS; i++)
        sizes[i] = list[i]->size_bytes;
    add_columns(block, sample);
    bool failed = false;
    for (size_t i = 0; i < COLUMNS; i++)
        failed |= list[i]->failed;
    if (failed) {
        for (size_t i = 0; i < COLUMNS; i++) {
            list[i]->size_bytes = sizes[i];
            list[i]->failed = false;
        }
        pd_client_media_undo(block->media);
        return PACKD_ENOMEM;
    }
    block->head_bound += head_bytes;
    block->count++;
    return 0;
}

/* Views of a bytes column for protobuf-c; NULL: out of memory. */
static ProtobufCBinaryData *binary_column(const struct pd_client_block *block,
                                          const struct pd_buf *sizes, const struct pd_buf *data)
{
    ProtobufCBinaryData *column = calloc(block->count, sizeof *column);
    const uint32_t *size = (const uint32_t *)(const void *)sizes->data;
    size_t at = 0;
    for (uint32_t i = 0; column && i < block->count; i++) {
        column[i] = (ProtobufCBinaryData){size[i], data->data ? data->data + at : NULL};
        at += size[i];
    }
    return column;
}

static void head_columns(struct pd_client_block *block, Packd__V1__BlockHead *head)
{
    head->first_seq = block->first_seq;
    head->n_lengths = block->count;
    head->lengths = (uint32_t *)(void *)block->lengths.data;
    head->body_bytes = pd_client_block_body_bytes(block);
    head->has_labels = block->has_labels;
    if (block->has_masks) {
        head->n_mask_run_counts = block->count;
        head->mask_run_counts = (uint32_t *)(void *)block->mask_counts.data;
        head->n_mask_runs = block->mask_runs.size_bytes / 4;
        head->mask_runs = (uint32_t *)(void *)block->mask_runs.data;
    }
    if (block->has_weights) {
        head->n_weights = block->count;
        head->weights = (float *)(void *)block->weights.data;
    }
    if (block->has_versions) {
        head->n_versions = block->count;
        head->versions = (uint64_t *)(void *)block->versions.data;
    }
}

int pd_client_block_seal(struct pd_client_block *block)
{
    PD_CHECK(block->count > 0 && block->head.size_bytes == 0);
    Packd__V1__BlockHead head = PACKD__V1__BLOCK_HEAD__INIT;
    head_columns(block, &head);
    pd_client_media_head(block->media, block->count, &head);
    if (block->has_keys) {
        head.keys = binary_column(block, &block->key_sizes, &block->key_data);
        head.n_keys = head.keys ? block->count : 0;
    }
    if (block->has_groups) {
        head.groups = binary_column(block, &block->group_sizes, &block->group_data);
        head.n_groups = head.groups ? block->count : 0;
    }
    bool complete = (!block->has_keys || head.keys) && (!block->has_groups || head.groups);
    uint8_t *at = complete
                      ? pd_buf_extend(&block->head, packd__v1__block_head__get_packed_size(&head))
                      : NULL;
    if (at)
        packd__v1__block_head__pack(&head, at);
    free(head.keys);
    free(head.groups);
    return at ? 0 : PACKD_ENOMEM;
}

size_t pd_client_block_body_bytes(const struct pd_client_block *block)
{
    return block->tokens.size_bytes + block->labels.size_bytes +
           pd_client_media_body_bytes(block->media);
}

size_t pd_client_block_cost(const struct pd_client_block *block)
{
    return pd_client_block_body_bytes(block) + (size_t)block->count * COLUMN_BYTES_MAX +
           block->key_data.size_bytes + block->group_data.size_bytes;
}

/* ---- messages -------------------------------------------------------------------------------- */

static uint8_t *put_bytes_field(uint8_t *at, unsigned field, size_t bytes)
{
    *at++ = TAG(field, TYPE_BYTES);
    return pd_varint_write(at, bytes);
}

static size_t bytes_field_size(size_t bytes)
{
    return 1 + pd_varint_bytes(bytes) + bytes;
}

static struct pd_rpc_part lent(struct pd_client_block *block, const void *data, size_t bytes)
{
    atomic_fetch_add(&block->refs, 1);
    return (struct pd_rpc_part){data, bytes, pd_client_block_unref, block};
}

/* The body's columns in order. */
static const struct pd_buf *body_column(const struct pd_client_block *block, size_t column)
{
    if (column < 2)
        return column == 0 ? &block->tokens : &block->labels;
    return pd_client_media_column(block->media, column - 2);
}

/* Body bytes [offset, offset + piece) as one run for each column they touch. */
static size_t body_parts(struct pd_client_block *block, size_t offset, size_t piece,
                         struct pd_rpc_part *parts)
{
    size_t count = 0, columns = 2 + pd_client_media_columns(block->media);
    for (size_t c = 0; c < columns && piece > 0; c++) {
        const struct pd_buf *column = body_column(block, c);
        if (offset >= column->size_bytes) {
            offset -= column->size_bytes;
            continue;
        }
        size_t left = column->size_bytes - offset, bytes = piece < left ? piece : left;
        parts[count++] = lent(block, column->data + offset, bytes);
        piece -= bytes;
        offset = 0;
    }
    return count;
}

size_t pd_client_block_message(struct pd_client_block *block, size_t offset, size_t piece,
                               uint8_t prefix[64], struct pd_rpc_part parts[PD_RPC_PARTS_MAX])
{
    enum { FIELD_BLOCK = 2, FIELD_CHUNK = 3, FIELD_HEAD = 1, FIELD_BODY = 15 };
    size_t head = block->head.size_bytes, count = 0;
    uint8_t *at = prefix;
    if (offset > 0) { /* PushRequest{chunk = 3: BlockChunk{body = 15}} */
        at = put_bytes_field(at, FIELD_CHUNK, bytes_field_size(piece));
        at = put_bytes_field(at, FIELD_BODY, piece);
        parts[count++] = (struct pd_rpc_part){prefix, (size_t)(at - prefix), NULL, NULL};
        return count + body_parts(block, offset, piece, parts + count);
    }
    /* PushRequest{block = 2: SampleBlock{head = 1, body = 15}} */
    at = put_bytes_field(at, FIELD_BLOCK, bytes_field_size(head) + bytes_field_size(piece));
    at = put_bytes_field(at, FIELD_HEAD, head);
    parts[count++] = (struct pd_rpc_part){prefix, (size_t)(at - prefix), NULL, NULL};
    parts[count++] = lent(block, block->head.data, head);
    uint8_t *body = at;
    at = put_bytes_field(at, FIELD_BODY, piece);
    parts[count++] = (struct pd_rpc_part){body, (size_t)(at - body), NULL, NULL};
    return count + body_parts(block, offset, piece, parts + count);
}
