/* The arrays that do not travel with ARRAYS_CORE, rebuilt by the rules of the wire contract
 * (ArrayInfo): positions, segment_ids and labels by the packer's own functions, loss_weight and the
 * Megatron pair here. Boundaries come from the wire: nothing is written before they have been found
 * to cover the batch. The digests are compared afterwards, so a slip here cannot pass. */
#include "client/lib_batch.h"
#include "client/lib_error.h"
#include "packer/layout.h"

#include <stdlib.h>

struct derive {
    const struct packd_batch *batch;
    const int32_t *tokens, *cu_seqlens, *seq_lens, *sample_index;
    int32_t *positions, *segment_ids; /* derived or received or scratch */
    void *scratch;
};

static int bad(struct packd_error *error, const char *what)
{
    return pd_client_error(error, PACKD_ECORRUPT, "DERIVE",
                           "arrays that did not travel cannot be rebuilt: %s", what);
}

/* The int32 array `name` of exactly `count` elements, or NULL. */
static void *find(const struct packd_batch *batch, const char *name, enum packd_dtype dtype,
                  uint64_t count)
{
    const struct packd_array *array = packd_batch_array(batch, name);
    if (!array || array->dtype != dtype || array->bytes != count * 4)
        return NULL;
    return array->data;
}

static bool is_derived(const struct packd_batch *batch, const char *name)
{
    const struct packd_array *array = packd_batch_array(batch, name);
    return array && array->derived;
}

static int derive_ids(struct derive *d, struct packd_error *error)
{
    const struct packd_batch *b = d->batch;
    uint64_t T = (uint64_t)b->rows * b->width;
    bool positions = is_derived(b, "positions"), ids = is_derived(b, "segment_ids");
    d->segment_ids = find(b, "segment_ids", PACKD_DTYPE_INT32, T);
    d->positions = find(b, "positions", PACKD_DTYPE_INT32, T);
    if ((positions && !d->positions) || (ids && !d->segment_ids) || !d->segment_ids)
        return bad(error, "positions or segment_ids of an unexpected shape");
    if (!positions && !ids)
        return 0;
    int32_t *into_positions = d->positions, *into_ids = d->segment_ids;
    if (!positions || !ids) { /* one of the two was received: do not write over it */
        d->scratch = malloc(T * sizeof(int32_t));
        if (!d->scratch)
            return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory to rebuild arrays");
        if (!positions)
            into_positions = d->scratch;
        else
            into_ids = d->scratch;
    }
    if (pd_layout_derive(b->rows, b->width, b->n_segments, d->cu_seqlens, d->seq_lens,
                         d->sample_index, into_positions, into_ids) != 0)
        return bad(error, "cu_seqlens and seq_lens do not cover the batch");
    return 0;
}

static int derive_labels(const struct derive *d, struct packd_error *error)
{
    const struct packd_batch *b = d->batch;
    int32_t *labels = find(b, "labels", PACKD_DTYPE_INT32, (uint64_t)b->rows * b->width);
    if (!labels || !d->tokens)
        return bad(error, "labels or tokens of an unexpected shape");
    pd_layout_derive_labels(
        b->rows, b->width, d->tokens, d->segment_ids,
        b->labels == PACKD_LABELS_SHIFTED ? PD_LABELS_SHIFTED : PD_LABELS_UNSHIFTED, labels);
    return 0;
}

/* cu_seqlens starts at 0, never falls, ends at T and never crosses a row's end; lengths fit. */
static bool boundaries_ok(const struct derive *d)
{
    const struct packd_batch *b = d->batch;
    int64_t T = (int64_t)b->rows * b->width;
    if (d->cu_seqlens[0] != 0 || d->cu_seqlens[b->n_segments] != T)
        return false;
    for (uint32_t s = 0; s < b->n_segments; s++) {
        int64_t from = d->cu_seqlens[s], to = d->cu_seqlens[s + 1];
        if (from < 0 || to < from || to > T || d->seq_lens[s] < 0 || d->seq_lens[s] > to - from)
            return false;
        if (to > from && from / b->width != (to - 1) / b->width)
            return false;
    }
    return true;
}

static int derive_loss_weight(const struct derive *d, struct packd_error *error)
{
    const struct packd_batch *b = d->batch;
    uint64_t T = (uint64_t)b->rows * b->width;
    float *out = find(b, "loss_weight", PACKD_DTYPE_FLOAT32, T);
    const int32_t *labels = find(b, "labels", PACKD_DTYPE_INT32, T);
    if (!out || !labels)
        return bad(error, "loss_weight or labels of an unexpected shape");
    memset(out, 0, T * sizeof *out);
    for (uint32_t s = 0; s < b->n_segments; s++) {
        int32_t sample = d->sample_index[s];
        if (sample < 0)
            continue;
        if ((size_t)sample >= b->samples.count)
            return bad(error, "a sample_index outside the sample table");
        float weight = b->samples.loss_weights ? b->samples.loss_weights[sample] : 0;
        for (int32_t p = d->cu_seqlens[s]; p < d->cu_seqlens[s + 1]; p++)
            if (labels[p] != PD_LABEL_NONE)
                out[p] = weight;
    }
    return 0;
}

struct pair {
    int32_t *real, *padded; /* N + 1 entries each */
    uint64_t n, count;
};

static bool pair_put(struct pair *pair, int32_t real_tokens, int32_t padded_end)
{
    if (pair->count == pair->n)
        return false;
    pair->real[pair->count + 1] = pair->real[pair->count] + real_tokens;
    pair->padded[++pair->count] = padded_end;
    return true;
}

/* One row: its real segments, the last one up to the row's end; or the row as one segment. */
static bool pair_row(const struct derive *d, struct pair *pair, uint32_t *segment, int32_t row_end)
{
    const struct packd_batch *b = d->batch;
    uint64_t before = pair->count;
    while (*segment < b->n_segments && d->cu_seqlens[*segment] < row_end) {
        uint32_t s = (*segment)++;
        if (d->sample_index[s] >= 0 && !pair_put(pair, d->seq_lens[s], d->cu_seqlens[s + 1]))
            return false;
    }
    if (pair->count == before)
        return pair_put(pair, (int32_t)b->width, row_end);
    pair->padded[pair->count] = row_end;
    return true;
}

static int derive_pair(const struct derive *d, struct packd_error *error)
{
    const struct packd_batch *b = d->batch;
    const struct packd_array *real = packd_batch_array(b, "cu_seqlens_real");
    const struct packd_array *padded = packd_batch_array(b, "cu_seqlens_padded");
    if (!real || !padded || real->derived != padded->derived || real->bytes < 8 ||
        real->bytes != padded->bytes || real->dtype != PACKD_DTYPE_INT32 ||
        padded->dtype != PACKD_DTYPE_INT32)
        return bad(error, "cu_seqlens_real and cu_seqlens_padded do not make a pair");
    struct pair pair = {real->data, padded->data, real->bytes / 4 - 1, 0};
    pair.real[0] = pair.padded[0] = 0;
    uint32_t segment = 0;
    for (uint32_t row = 0; row < b->rows; row++)
        if (!pair_row(d, &pair, &segment, (int32_t)((row + 1) * b->width)))
            return bad(error, "more segments than cu_seqlens_real has");
    if (pair.count < pair.n && b->fixed_segments == 0)
        return bad(error, "fewer segments than cu_seqlens_real has");
    while (pair.count < pair.n)
        pair_put(&pair, 0, pair.padded[pair.count]);
    return 0;
}

static int derive_all(struct derive *d, struct packd_error *error)
{
    const struct packd_batch *b = d->batch;
    uint64_t T = (uint64_t)b->rows * b->width, S = b->n_segments;
    d->tokens = find(b, "tokens", PACKD_DTYPE_INT32, T);
    d->cu_seqlens = find(b, "cu_seqlens", PACKD_DTYPE_INT32, S + 1);
    d->seq_lens = find(b, "seq_lens", PACKD_DTYPE_INT32, S);
    d->sample_index = find(b, "sample_index", PACKD_DTYPE_INT32, S);
    if (!d->cu_seqlens || !d->seq_lens || !d->sample_index)
        return bad(error, "cu_seqlens, seq_lens or sample_index is lacking");
    if (!boundaries_ok(d))
        return bad(error, "cu_seqlens and seq_lens do not cover the batch");
    int rc = derive_ids(d, error);
    if (rc == 0 && is_derived(b, "labels"))
        rc = derive_labels(d, error);
    if (rc == 0 && is_derived(b, "loss_weight"))
        rc = derive_loss_weight(d, error);
    if (rc == 0 && (is_derived(b, "cu_seqlens_real") || is_derived(b, "cu_seqlens_padded")))
        rc = derive_pair(d, error);
    free(d->scratch);
    return rc;
}

int pd_client_derive(const struct packd_batch *batch, struct packd_error *error)
{
    for (size_t i = 0; i < batch->array_count; i++)
        if (batch->arrays[i].derived) {
            struct derive derive = {.batch = batch};
            return derive_all(&derive, error);
        }
    return 0;
}
