/* One fetched batch: the structural check, the file, the line of JSON.
 *
 * The check is the packer's own, fed with what came over the wire: the arrays at their places, the
 * rules the server stated in the job's spec, the totals of the header. */
#include "client/packctl_batch.h"

#include "base/check.h"
#include "client/lib_error.h"
#include "client/lib_json.h"
#include "client/safetensors.h"
#include "packer/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

void ctl_fetch_totals_add(struct ctl_fetch_totals *totals, const struct packd_batch *batch)
{
    const struct packd_totals *t = &batch->batch_totals;
    totals->batches++;
    totals->samples += t->samples;
    totals->segments += t->segments;
    totals->real += t->real_tokens;
    totals->tail += t->tail_padding;
    totals->gap += t->gap;
    totals->row_padding += t->row_padding;
    totals->overlap += t->overlap_tokens;
    totals->loss_tokens += t->loss_tokens;
    totals->payload_bytes += batch->payload_bytes;
    totals->received_bytes += batch->received_bytes;
}

/* ---- check ----------------------------------------------------------------------------------- */

static struct pd_layout_rules rules_of(const struct packd_spec *spec)
{
    struct pd_layout_rules rules = {
        .seq_len = spec->seq_len,
        .seg_align = spec->seg_align,
        .total_align = spec->total_align,
        .pad_segment = spec->pad_segment,
        .pad_id = spec->pad_id,
        .labels = spec->labels == PACKD_LABELS_SHIFTED ? PD_LABELS_SHIFTED : PD_LABELS_UNSHIFTED,
        .loss = spec->loss_weight == PACKD_LOSS_SAMPLE ? PD_LOSS_SAMPLE : PD_LOSS_TOKEN,
        .cost = {.alpha = 0, .beta = 1}, /* headers state the sum of n*n */
        .width = strcmp(spec->width, "step") == 0    ? PD_WIDTH_STEP
                 : strcmp(spec->width, "batch") == 0 ? PD_WIDTH_BATCH
                                                     : PD_WIDTH_FIXED,
        .width_count = spec->width_count,
        .fixed_segments = spec->fixed_segments,
        .segments_max = spec->max_segments,
        .positions = spec->mrope ? PD_POSITIONS_MROPE : PD_POSITIONS_1D,
    };
    memcpy(rules.widths, spec->widths, sizeof rules.widths);
    return rules;
}

/* Any dtype that libpackd lets through has its counterpart. */
static enum pd_dtype dtype_of(enum packd_dtype dtype)
{
    switch (dtype) {
    case PACKD_DTYPE_UINT8:
        return PD_DTYPE_U8;
    case PACKD_DTYPE_INT32:
        return PD_DTYPE_I32;
    case PACKD_DTYPE_INT64:
        return PD_DTYPE_I64;
    case PACKD_DTYPE_FLOAT16:
        return PD_DTYPE_F16;
    case PACKD_DTYPE_BFLOAT16:
        return PD_DTYPE_BF16;
    case PACKD_DTYPE_FLOAT32:
        return PD_DTYPE_F32;
    case PACKD_DTYPE_BOOL:
        return PD_DTYPE_BOOL;
    case PACKD_DTYPE_INT8:
        return PD_DTYPE_I8;
    case PACKD_DTYPE_UINT16:
        return PD_DTYPE_U16;
    case PACKD_DTYPE_INT16:
        return PD_DTYPE_I16;
    case PACKD_DTYPE_UINT32:
        return PD_DTYPE_U32;
    case PACKD_DTYPE_UINT64:
        return PD_DTYPE_U64;
    case PACKD_DTYPE_FLOAT64:
        return PD_DTYPE_F64;
    }
    return PD_DTYPE_U8;
}

/* false: more arrays or dimensions than the check knows. */
static bool table_of(const struct packd_batch *b, struct pd_batch *to)
{
    if (b->array_count > PD_ARRAYS_MAX)
        return false;
    for (size_t i = 0; i < b->array_count; i++) {
        const struct packd_array *from = &b->arrays[i];
        struct pd_array *array = &to->arrays[i];
        if (from->ndim > PD_COUNT_OF(array->shape) || strlen(from->name) > PD_ARRAY_NAME_MAX)
            return false;
        snprintf(array->name, sizeof array->name, "%s", from->name);
        array->dtype = dtype_of(from->dtype);
        array->rank = from->ndim;
        memcpy(array->shape, from->shape, from->ndim * sizeof array->shape[0]);
        array->offset_bytes = from->offset;
        array->size_bytes = from->bytes;
        array->digest = from->digest;
    }
    to->array_count = (uint32_t)b->array_count;
    to->payload_bytes = b->payload_bytes;
    return true;
}

/* Two figures the header does not state, from the boundaries: longest segment, widest row. */
static void measure(const struct packd_batch *b, struct pd_totals *totals)
{
    const struct packd_array *cu = packd_batch_array(b, "cu_seqlens");
    const struct packd_array *lens = packd_batch_array(b, "seq_lens");
    if (!cu || !lens || cu->bytes != (b->n_segments + (uint64_t)1) * 4 ||
        lens->bytes != (uint64_t)b->n_segments * 4)
        return; /* the check will say so */
    for (uint32_t s = 0; s < b->n_segments; s++) {
        int32_t end = ((const int32_t *)cu->data)[s + 1], length = ((const int32_t *)lens->data)[s];
        if (length <= 0 || end <= 0)
            continue;
        uint32_t used = ((uint32_t)end - 1) % b->width + 1;
        if ((uint32_t)length > totals->longest_tokens)
            totals->longest_tokens = (uint32_t)length;
        if (used > totals->widest_slots)
            totals->widest_slots = used;
    }
}

int ctl_batch_check(const struct packd_spec *spec, const struct packd_batch *b, char *text,
                    size_t size)
{
    const struct packd_totals *t = &b->batch_totals;
    const struct packd_array *real = packd_batch_array(b, "cu_seqlens_real");
    struct pd_layout_rules rules = rules_of(spec);
    struct pd_batch batch = {
        .rows = b->rows,
        .width = b->width,
        .segment_count = b->n_segments,
        .real_segment_count = b->n_real_segments,
        .megatron_count = real && real->bytes >= 4 ? (uint32_t)(real->bytes / 4 - 1) : 0,
        .max_seqlen = b->max_seqlen,
        .totals = {.real_tokens = t->real_tokens,
                   .gap_tokens = t->gap,
                   .overlap_tokens = t->overlap_tokens,
                   .loss_tokens = (uint64_t)t->loss_tokens,
                   .loss_weight = t->loss_weight,
                   .segments = t->segments,
                   .samples = t->samples,
                   .patches = t->patches,
                   .attention_cost = t->attention_cost},
        .tail_tokens = t->tail_padding,
        .row_padding_tokens = t->row_padding,
    };
    struct pd_check_finding finding = {0};
    measure(b, &batch.totals);
    if (!table_of(b, &batch)) {
        snprintf(text, size, "more arrays or dimensions than the check knows");
        return PACKD_ECORRUPT;
    }
    struct pd_check_input input = {.rules = &rules, .batch = &batch, .payload = b->payload};
    if (pd_check_batch(&input, &finding) == 0)
        return 0;
    snprintf(text, size, "%s at row %u, position %u: %s", pd_check_name(finding.check), finding.row,
             finding.position, finding.text);
    return PACKD_ECORRUPT;
}

/* ---- file ------------------------------------------------------------------------------------ */

static int fill_tensors(const struct packd_batch *b, struct pd_tensor *tensors,
                        struct packd_error *error)
{
    for (size_t i = 0; i < b->array_count; i++) {
        const struct packd_array *from = &b->arrays[i];
        if (from->ndim > PD_SAFETENSORS_RANK_MAX)
            return pd_client_error(error, PACKD_EUNSUPPORTED, "BAD_RANK",
                                   "array %s: a file holds at most %d dimensions, it has %u",
                                   from->name, PD_SAFETENSORS_RANK_MAX, from->ndim);
        tensors[i] = (struct pd_tensor){.name = from->name,
                                        .dtype = dtype_of(from->dtype),
                                        .rank = from->ndim,
                                        .data = from->data,
                                        .size_bytes = from->bytes};
        memcpy(tensors[i].shape, from->shape, from->ndim * sizeof from->shape[0]);
    }
    return 0;
}

int ctl_batch_write(const struct packd_batch *b, const char *path, struct packd_error *error)
{
    struct pd_error why = {0};
    struct pd_tensor *tensors = calloc(b->array_count + 1, sizeof *tensors);
    char *json = packd_batch_header_json(b);
    struct pd_metadata metadata = {.key = "packd", .value = json};
    struct pd_safetensors_content content = {tensors, b->array_count, &metadata, 1};
    int rc = tensors && json ? fill_tensors(b, tensors, error)
                             : pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory");
    if (rc == 0 && pd_safetensors_save(path, &content, &why) != 0)
        rc = pd_client_error_from(error, &why);
    free(tensors);
    packd_free(json);
    return rc;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_string(const char *text)
{
    struct pd_buf buf = {0};
    pd_json_string(text, strlen(text), &buf);
    if (!buf.failed)
        fwrite(buf.data, 1, buf.size_bytes, stdout);
    pd_buf_fini(&buf);
}

void ctl_batch_print_json(const struct packd_batch *b, const char *path, bool checked)
{
    const struct packd_totals *t = &b->batch_totals;
    static const char *const verdicts[] = {"none", "structural", "probed"};
    int verdict = b->delivery.verdict >= 0 && b->delivery.verdict <= 2 ? b->delivery.verdict : 0;
    printf("{\"type\": \"batch\", \"step\": %" PRIu64 ", \"micro\": %u, \"dp_rank\": %u, "
           "\"rows\": %u, \"width\": %u, \"samples\": %" PRIu64 ", \"segments\": %" PRIu64
           ", \"real_tokens\": %" PRIu64 ", \"tail_padding\": %" PRIu64 ", \"gap\": %" PRIu64
           ", \"row_padding\": %" PRIu64 ", \"overlap_tokens\": %" PRIu64
           ", \"loss_tokens\": %" PRId64 ", \"loss_weight\": %.17g",
           b->step, b->micro, b->dp_rank, b->rows, b->width, t->samples, t->segments,
           t->real_tokens, t->tail_padding, t->gap, t->row_padding, t->overlap_tokens,
           t->loss_tokens, t->loss_weight);
    printf(", \"payload_bytes\": %" PRIu64 ", \"received_bytes\": %" PRIu64
           ", \"header_digest\": \"%016" PRIx64 "\", \"plan_digest\": \"%016" PRIx64
           "\", \"verdict\": \"%s\", \"backend\": ",
           b->payload_bytes, b->received_bytes,
           (uint64_t)XXH3_64bits(b->header.data, b->header.size), b->plan_digest,
           verdicts[verdict]);
    put_string(b->delivery.backend);
    printf(", \"first_delivery\": %s, \"checked\": %s, \"packs\": [",
           b->delivery.first ? "true" : "false", checked ? "true" : "false");
    for (uint32_t i = 0; i < b->rows; i++)
        printf("%s%" PRId64, i ? ", " : "", b->packs[i]);
    printf("], \"path\": ");
    put_string(path);
    printf("}\n");
    fflush(stdout);
}
