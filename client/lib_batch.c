/* Receiving one batch: the header is parsed and checked, the payload lands in one allocation.
 *
 * Copies: gRPC's slices -> payload, once, done by the caller into pd_client_batch_room. The views
 * handed to the user point into that payload and into the parsed header, which lives as long.
 * Invariant: once the header is complete, every array lies inside the payload, in ascending order,
 * and what travels is its first expected_bytes. */
#include "client/lib_batch.h"

#include "base/check.h"
#include "base/digest.h"
#include "client/lib_error.h"
#include "client/lib_json.h"

#include <stdlib.h>

#define MAGIC 0x70626174u
#define ARRAYS_MAX 256
#define NDIM_MAX 8
#define ALIGN 64

static int bad_header(const struct pd_client_batch *batch, struct packd_error *error,
                      const char *what)
{
    const Packd__V1__BatchHeader *h = batch->parsed;
    return pd_client_error(error, PACKD_ECORRUPT, "BATCH_HEADER",
                           "the header of step %llu micro %u breaks the contract: %s",
                           h ? (unsigned long long)h->step : 0, h ? h->micro : 0, what);
}

size_t packd_dtype_bytes(enum packd_dtype dtype)
{
    static const uint8_t bytes[] = {0, 1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
    return (unsigned)dtype < PD_COUNT_OF(bytes) ? bytes[dtype] : 0;
}

const char *packd_dtype_name(enum packd_dtype dtype)
{
    static const char *const names[] = {"?",   "BOOL", "U8",  "I8",  "U16",  "I16", "U32",
                                        "I32", "U64",  "I64", "F16", "BF16", "F32", "F64"};
    return (unsigned)dtype < PD_COUNT_OF(names) ? names[dtype] : names[0];
}

/* ---- checking the header --------------------------------------------------------------------- */

/* Bytes of an array of this shape; false where that overflows. */
static bool shape_bytes(const Packd__V1__ArrayInfo *info, uint64_t *bytes)
{
    uint64_t product = packd_dtype_bytes((enum packd_dtype)info->dtype);
    for (size_t i = 0; i < info->n_shape; i++)
        if (__builtin_mul_overflow(product, info->shape[i], &product))
            return false;
    *bytes = product;
    return true;
}

static bool is_derivable_name(const char *name)
{
    static const char *const names[] = {"positions",   "segment_ids",     "labels",
                                        "loss_weight", "cu_seqlens_real", "cu_seqlens_padded"};
    for (size_t i = 0; i < PD_COUNT_OF(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* One entry of the array table; *end moves to the end of the array. NULL: fine. */
static const char *check_array(const Packd__V1__BatchHeader *h, const Packd__V1__ArrayInfo *info,
                               uint64_t *end)
{
    uint64_t bytes;
    if (!info->name[0] || info->n_shape > NDIM_MAX)
        return "an array without a name, or of too many dimensions";
    if (packd_dtype_bytes((enum packd_dtype)info->dtype) == 0)
        return "an array of unknown dtype";
    if (!shape_bytes(info, &bytes) || bytes != info->bytes)
        return "an array whose bytes are not those of its shape";
    if (info->offset % ALIGN != 0 || info->offset < *end || info->offset > h->payload_bytes ||
        info->bytes > h->payload_bytes - info->offset)
        return "an array outside the payload, unaligned, or over another one";
    if (info->derivable && !is_derivable_name(info->name))
        return "an array marked derivable for which there is no rule";
    if (info->derivable ? info->offset < h->core_bytes : info->offset + info->bytes > h->core_bytes)
        return "an array on the wrong side of core_bytes";
    *end = info->offset + info->bytes;
    return NULL;
}

static const char *check_samples(const Packd__V1__BatchHeader *h)
{
    const Packd__V1__SampleTable *t = h->samples;
    const size_t counts[] = {t->n_stream,       t->n_seq,        t->n_part,    t->n_epoch,
                             t->n_source,       t->n_group,      t->n_version, t->n_key,
                             t->n_offset,       t->n_length,     t->n_digest,  t->n_flags,
                             t->n_loss_weights, t->n_loss_tokens};
    for (size_t i = 0; i < PD_COUNT_OF(counts); i++)
        if (counts[i] != 0 && counts[i] != h->n_real_segments)
            return "a column of the sample table is not one per segment";
    if (h->n_real_segments > 0 && t->n_stream == 0 && t->n_streams == 0)
        return "the sample table names no stream";
    for (size_t i = 0; i < t->n_stream; i++)
        if (t->stream[i] >= t->n_streams)
            return "a stream number outside the sample table's names";
    for (size_t i = 0; i < t->n_source; i++)
        if (t->source[i] >= t->n_sources)
            return "a source number outside the sample table's names";
    return NULL;
}

/* What images and tensors take of the payload: the job's bound is for the built-in arrays, as
 * tensors are what producers make them. */
static uint64_t media_bytes(const Packd__V1__BatchHeader *h)
{
    static const char *const core[] = {"tokens", "cu_seqlens", "seq_lens", "sample_index"};
    uint64_t sum = 0;
    for (size_t i = 0; i < h->n_arrays; i++) {
        bool built_in = is_derivable_name(h->arrays[i]->name);
        for (size_t k = 0; k < PD_COUNT_OF(core); k++)
            built_in = built_in || strcmp(h->arrays[i]->name, core[k]) == 0;
        uint64_t bytes = h->arrays[i]->bytes;
        if (!built_in && bytes <= h->payload_bytes) /* checked against the shape later */
            sum += bytes + ALIGN;
    }
    return sum < h->payload_bytes ? sum : h->payload_bytes;
}

static const char *check_parsed(const struct pd_client_batch *batch)
{
    const Packd__V1__BatchHeader *h = batch->parsed;
    if (h->format != 1)
        return "an unknown format";
    if (h->rows == 0 || h->width == 0 || (uint64_t)h->rows * h->width > INT32_MAX)
        return "rows or width";
    if (!h->batch || !h->step_totals || !h->samples || h->n_packs != h->rows)
        return "totals, the sample table or a pack number is lacking";
    if (h->n_real_segments > h->n_segments ||
        (h->fixed_segments == 0 && h->n_segments > (uint64_t)h->rows * h->width))
        return "the number of segments";
    if (h->payload_bytes - media_bytes(h) > batch->payload_max_bytes ||
        h->core_bytes > h->payload_bytes)
        return "payload_bytes is more than the job's largest batch, or less than core_bytes";
    if (batch->expected_bytes != h->payload_bytes && batch->expected_bytes != h->core_bytes)
        return "the bytes announced are neither payload_bytes nor core_bytes";
    if (h->n_arrays > ARRAYS_MAX)
        return "too many arrays";
    const char *wrong = check_samples(h);
    uint64_t end = 0;
    for (size_t i = 0; !wrong && i < h->n_arrays; i++)
        wrong = check_array(h, h->arrays[i], &end);
    return wrong;
}

/* ---- views ----------------------------------------------------------------------------------- */

static struct packd_totals totals_view(const Packd__V1__Totals *t, struct packd_loss_total *losses)
{
    struct packd_totals view = {
        .real_tokens = t->real_tokens,
        .tail_padding = t->tail_padding,
        .gap = t->gap,
        .row_padding = t->row_padding,
        .overlap_tokens = t->overlap_tokens,
        .samples = t->samples,
        .segments = t->segments,
        .attention_cost = t->attention_cost,
        .patches = t->patches,
        .loss = losses,
        .loss_count = t->n_loss,
    };
    for (size_t i = 0; i < t->n_loss; i++)
        losses[i] =
            (struct packd_loss_total){t->loss[i]->name, t->loss[i]->count, t->loss[i]->weight};
    if (t->n_loss > 0) {
        view.loss_tokens = losses[0].count;
        view.loss_weight = losses[0].weight;
    }
    return view;
}

_Static_assert(sizeof(struct packd_bytes) == sizeof(ProtobufCBinaryData) &&
                   offsetof(struct packd_bytes, size) == offsetof(ProtobufCBinaryData, len) &&
                   offsetof(struct packd_bytes, data) == offsetof(ProtobufCBinaryData, data),
               "a bytes column is handed out as it was parsed");

static struct packd_samples samples_view(const Packd__V1__BatchHeader *h)
{
    const Packd__V1__SampleTable *t = h->samples;
    return (struct packd_samples){
        .count = h->n_real_segments,
        .streams = (const char *const *)t->streams,
        .stream_names = t->n_streams,
        .sources = (const char *const *)t->sources,
        .source_names = t->n_sources,
        .stream = t->n_stream ? t->stream : NULL,
        .seq = t->n_seq ? t->seq : NULL,
        .part = t->n_part ? t->part : NULL,
        .epoch = t->n_epoch ? t->epoch : NULL,
        .source = t->n_source ? t->source : NULL,
        .version = t->n_version ? t->version : NULL,
        .key = t->n_key ? (const struct packd_bytes *)(const void *)t->key : NULL,
        .group = t->n_group ? (const struct packd_bytes *)(const void *)t->group : NULL,
        .offset = t->n_offset ? t->offset : NULL,
        .length = t->n_length ? t->length : NULL,
        .digest = t->n_digest ? t->digest : NULL,
        .flags = t->n_flags ? t->flags : NULL,
        .loss_weights = t->n_loss_weights ? t->loss_weights : NULL,
        .loss_tokens = t->n_loss_tokens ? t->loss_tokens : NULL,
    };
}

static void view_header(struct pd_client_batch *batch)
{
    const Packd__V1__BatchHeader *h = batch->parsed;
    struct packd_batch *v = &batch->view;
    v->feed = h->feed;
    v->job = h->job;
    v->step = h->step;
    v->micro = h->micro;
    v->dp_rank = h->dp_rank;
    v->rows = h->rows;
    v->width = h->width;
    v->step_packs = h->step_packs;
    v->dp_size = h->dp_size;
    v->accum = h->accum;
    v->n_segments = h->n_segments;
    v->n_real_segments = h->n_real_segments;
    v->max_seqlen = h->max_seqlen;
    v->max_seqlen_real = h->max_seqlen_real;
    v->max_seqlen_padded = h->max_seqlen_padded;
    v->fixed_segments = h->fixed_segments;
    v->pad_id = h->pad_id;
    v->labels = (enum packd_labels)h->labels;
    v->loss_weight_policy = (enum packd_loss)h->loss_weight;
    v->packs = h->packs;
    v->batch_totals = totals_view(h->batch, batch->losses);
    v->step_totals = totals_view(h->step_totals, batch->losses + h->batch->n_loss);
    v->samples = samples_view(h);
    v->config_digest = h->config_digest;
    v->plan_digest = h->plan_digest;
    v->planner_version = h->planner_version;
    v->width_bound = h->width_bound;
    v->saved_positions = h->saved_positions;
    v->attention_path = (enum packd_attention)h->attention_path;
    v->attention_why = h->attention_why;
    v->payload_bytes = h->payload_bytes;
    v->received_bytes = batch->expected_bytes;
    v->header = (struct packd_bytes){batch->header.size_bytes, batch->header.data};
}

static void view_arrays(struct pd_client_batch *batch)
{
    const Packd__V1__BatchHeader *h = batch->parsed;
    bool core = batch->expected_bytes < h->payload_bytes;
    for (size_t i = 0; i < h->n_arrays; i++) {
        const Packd__V1__ArrayInfo *info = h->arrays[i];
        batch->arrays[i] = (struct packd_array){
            .name = info->name,
            .dtype = (enum packd_dtype)info->dtype,
            .ndim = (uint32_t)info->n_shape,
            .shape = info->shape,
            .data = (uint8_t *)batch->view.payload + info->offset,
            .offset = info->offset,
            .bytes = info->bytes,
            .digest = info->xxh3_64,
            .derived = core && info->derivable,
        };
    }
    batch->view.arrays = batch->arrays;
    batch->view.array_count = h->n_arrays;
}

static void view_delivery(struct pd_client_batch *batch)
{
    const Packd__V1__Delivery *d = batch->delivery;
    batch->view.delivery = (struct packd_delivery){.backend = "", .device = ""};
    if (d)
        batch->view.delivery = (struct packd_delivery){
            .incarnation = d->incarnation,
            .generation = d->generation,
            .verdict = (int)d->verdict,
            .backend = d->backend,
            .device = d->device,
            .planned_unix_ms = d->planned_unix_ms,
            .built_unix_ms = d->built_unix_ms,
            .validated_unix_ms = d->validated_unix_ms,
            .sent_unix_ms = d->sent_unix_ms,
            .builds = d->builds,
            .first = d->first,
        };
}

/* ---- the steps ------------------------------------------------------------------------------- */

static int header_done(struct pd_client_batch *batch, struct packd_error *error)
{
    batch->parsed =
        packd__v1__batch_header__unpack(NULL, batch->header.size_bytes, batch->header.data);
    if (!batch->parsed)
        return bad_header(batch, error, "it cannot be read");
    const char *wrong = check_parsed(batch);
    if (wrong)
        return bad_header(batch, error, wrong);
    const Packd__V1__BatchHeader *h = batch->parsed;
    batch->arrays = calloc(h->n_arrays + 1, sizeof *batch->arrays);
    batch->losses = calloc(h->batch->n_loss + h->step_totals->n_loss + 1, sizeof *batch->losses);
    batch->view.payload = pd_pool_get(batch->pool, h->payload_bytes, &batch->payload_capacity);
    if (!batch->arrays || !batch->losses || !batch->view.payload)
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory for a batch of %llu bytes",
                               (unsigned long long)h->payload_bytes);
    view_header(batch);
    view_arrays(batch);
    view_delivery(batch);
    return 0;
}

int pd_client_batch_begin(struct pd_pool *pool, Packd__V1__BatchBegin *begin,
                          uint64_t payload_max_bytes, struct pd_client_batch **out,
                          struct packd_error *error)
{
    struct pd_client_batch *batch = calloc(1, sizeof *batch);
    if (!batch)
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory for a batch");
    batch->magic = MAGIC;
    batch->pool = pool;
    batch->payload_max_bytes = payload_max_bytes;
    batch->expected_bytes = begin->payload_bytes;
    batch->header_bytes = begin->header_bytes ? begin->header_bytes : begin->deterministic.len;
    batch->delivery = begin->delivery;
    begin->delivery = NULL;
    int rc = 0;
    if (batch->header_bytes > PD_HEADER_MAX_BYTES)
        rc = bad_header(batch, error, "it is longer than 64 MiB");
    else
        rc = pd_client_batch_header(batch, begin->deterministic.data, begin->deterministic.len,
                                    error);
    if (rc != 0)
        pd_client_batch_free(batch);
    else
        *out = batch;
    return rc;
}

bool pd_client_batch_header_complete(const struct pd_client_batch *batch)
{
    return batch->parsed != NULL;
}

int pd_client_batch_header(struct pd_client_batch *batch, const void *data, size_t bytes,
                           struct packd_error *error)
{
    if (batch->parsed || bytes > batch->header_bytes - batch->header.size_bytes)
        return bad_header(batch, error, "it is longer than announced");
    pd_buf_put(&batch->header, data, bytes);
    if (batch->header.failed)
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory for a batch's header");
    return batch->header.size_bytes == batch->header_bytes ? header_done(batch, error) : 0;
}

uint8_t *pd_client_batch_room(struct pd_client_batch *batch, size_t bytes,
                              struct packd_error *error)
{
    if (!batch->parsed || bytes > batch->expected_bytes - batch->received_bytes) {
        pd_client_error(error, PACKD_ECORRUPT, "BATCH_PAYLOAD",
                        "payload bytes before the header's end, or behind the payload's");
        return NULL;
    }
    uint8_t *at = (uint8_t *)batch->view.payload + batch->received_bytes;
    batch->received_bytes += bytes;
    return at;
}

bool pd_client_batch_complete(const struct pd_client_batch *batch)
{
    return batch->parsed && batch->received_bytes == batch->expected_bytes;
}

static int verify(const struct packd_batch *view, struct packd_error *error)
{
    for (size_t i = 0; i < view->array_count; i++) {
        const struct packd_array *array = &view->arrays[i];
        uint64_t found = pd_digest(array->data, array->bytes);
        if (found != array->digest)
            return pd_client_error(error, PACKD_ECORRUPT, "DIGEST",
                                   "array %s (%s) has digest %016llx, the header says %016llx",
                                   array->name, array->derived ? "derived here" : "received",
                                   (unsigned long long)found, (unsigned long long)array->digest);
    }
    return 0;
}

/* The bytes between and behind the arrays that did not travel are zero, as in a whole payload. */
static void clear_rest(struct pd_client_batch *batch)
{
    if (batch->expected_bytes < batch->view.payload_bytes)
        memset((uint8_t *)batch->view.payload + batch->expected_bytes, 0,
               batch->view.payload_bytes - batch->expected_bytes);
}

int pd_client_batch_finish(struct pd_client_batch *batch, struct packd_error *error)
{
    PD_CHECK(pd_client_batch_complete(batch));
    clear_rest(batch);
    int rc = pd_client_derive(&batch->view, error);
    return rc != 0 ? rc : verify(&batch->view, error);
}

void pd_client_batch_free(struct pd_client_batch *batch)
{
    if (!batch)
        return;
    PD_MAGIC_CHECK(batch, MAGIC);
    if (batch->view.payload)
        pd_pool_put(batch->pool, batch->view.payload, batch->payload_capacity);
    if (batch->parsed)
        packd__v1__batch_header__free_unpacked(batch->parsed, NULL);
    if (batch->delivery)
        packd__v1__delivery__free_unpacked(batch->delivery, NULL);
    pd_buf_fini(&batch->header);
    free(batch->arrays);
    free(batch->losses);
    batch->magic = 0;
    free(batch);
}

/* ---- the interface --------------------------------------------------------------------------- */

void packd_batch_release(const struct packd_batch *view)
{
    if (view)
        pd_client_batch_free(PD_CONTAINER_OF((uintptr_t)view, struct pd_client_batch, view));
}

const struct packd_array *packd_batch_array(const struct packd_batch *view, const char *name)
{
    for (size_t i = 0; i < view->array_count; i++)
        if (strcmp(view->arrays[i].name, name) == 0)
            return &view->arrays[i];
    return NULL;
}

char *packd_batch_header_json(const struct packd_batch *view)
{
    const struct pd_client_batch *batch =
        PD_CONTAINER_OF((uintptr_t)view, struct pd_client_batch, view);
    struct pd_buf json = {0};
    pd_json_message(&batch->parsed->base, &json);
    pd_buf_put_u8(&json, 0);
    if (json.failed)
        pd_buf_fini(&json);
    return (char *)json.data;
}

void packd_free(void *memory)
{
    free(memory);
}
