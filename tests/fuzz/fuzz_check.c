/* The structural check on anything: it must come back, whatever the table and the payload say, and
 * what it passes must be sound.
 *
 * An input is either a good batch with changes (byte 0 even) or header, table and payload from the
 * input itself (odd). The payload lies in memory of its exact size, so that a read behind it shows
 * under ASan. */
#include "tests/unit/layout_case.h"

#include "packer/check.h"

#include "base/bytes.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t below(struct pd_reader *in, uint32_t bound)
{
    return pd_reader_u16(in) % bound;
}

/* What passed the check can be rebuilt by a reader, and comes out the same. */
static void check_passed(const struct pd_batch *batch, const uint8_t *payload)
{
    size_t bytes = (size_t)batch->rows * batch->width * sizeof(int32_t);
    int32_t *positions = malloc(bytes), *ids = malloc(bytes);
    PD_CHECK(positions && ids);
#define VIEW(name) \
    ((const int32_t *)(const void *)(payload + pd_batch_find(batch, name)->offset_bytes))
    PD_CHECK(pd_layout_derive(batch->rows, batch->width, batch->segment_count, VIEW("cu_seqlens"),
                              VIEW("seq_lens"), VIEW("sample_index"), positions, ids) == 0);
    PD_CHECK(memcmp(positions, VIEW("positions"), bytes) == 0);
    PD_CHECK(memcmp(ids, VIEW("segment_ids"), bytes) == 0);
#undef VIEW
    free(positions);
    free(ids);
}

static void run(const struct pd_layout_rules *rules, const struct pd_batch *batch,
                const uint8_t *payload, const struct pd_pack *const *rows)
{
    struct pd_check_finding finding = {.check = PD_CHECK_COUNT};
    int rc = pd_check_batch(
        &(struct pd_check_input){.rules = rules, .batch = batch, .payload = payload, .rows = rows},
        &finding);
    PD_CHECK(rc == 0 ||
             (rc == PD_ECORRUPT && finding.check < PD_CHECK_COUNT && finding.text[0] != 0));
    if (rc == 0)
        check_passed(batch, payload);
}

/* One field of the header or the table. */
static void change_header(struct pd_batch *batch, struct pd_reader *in)
{
    struct pd_array *array = &batch->arrays[below(in, 11)];
    uint32_t what = below(in, 14);
    uint64_t value = pd_reader_u64(in);
    uint32_t *const small[] = {&batch->rows,           &batch->width,
                               &batch->segment_count,  &batch->real_segment_count,
                               &batch->megatron_count, &batch->max_seqlen,
                               &batch->array_count,    &array->rank};
    uint64_t *const large[] = {&array->shape[0], &array->shape[1], &array->offset_bytes,
                               &array->size_bytes};
    if (what < PD_COUNT_OF(small))
        *small[what] = (uint32_t)value;
    else if (what < PD_COUNT_OF(small) + PD_COUNT_OF(large))
        *large[what - PD_COUNT_OF(small)] = value;
    else if (what == 12)
        memcpy(array->name, &value, sizeof value);
    else
        array->dtype = (enum pd_dtype)(value % 8);
}

static void changed_batch(struct pd_reader *in)
{
    struct layout_case *c = case_new();
    uint64_t random = pd_reader_u16(in);
    case_randomise(c, &random);
    PD_CHECK(case_build(c, NULL) == 0);
    for (uint32_t i = 0; i < c->batch.array_count; i++)
        c->batch.arrays[i].digest = 0;
    struct pd_batch batch = c->batch;
    while (!in->failed && pd_reader_left(in) > 0) {
        if (pd_reader_u8(in) % 8 == 0) {
            change_header(&batch, in);
            continue;
        }
        const struct pd_array *array = &c->batch.arrays[below(in, c->batch.array_count)];
        if (array->size_bytes > 0)
            ((uint32_t *)case_array(c, array->name))[below(in, (uint32_t)(array->size_bytes / 4))] =
                pd_reader_u32(in);
    }
    uint8_t *exact = malloc(c->batch.payload_bytes);
    PD_CHECK(exact);
    memcpy(exact, c->payload, c->batch.payload_bytes);
    run(&c->rules, &batch, exact, c->rows);
    run(&c->rules, &batch, exact, NULL);
    free(exact);
    case_free(c);
}

static void free_table(struct pd_batch *batch, struct pd_reader *in)
{
    batch->rows = below(in, 4);
    batch->width = below(in, 20);
    batch->segment_count = below(in, 20);
    batch->megatron_count = below(in, 8);
    const uint64_t segments = batch->segment_count, pairs = batch->megatron_count + 1ULL;
    const struct {
        const char *name;
        uint64_t count;
    } arrays[] = {
        {"tokens", 0},
        {"cu_seqlens", segments + 1},
        {"seq_lens", segments},
        {"sample_index", segments},
        {"labels", 0},
        {"positions", 0},
        {"segment_ids", 0},
        {"loss_weight", 0},
        {"cu_seqlens_real", pairs},
        {"cu_seqlens_padded", pairs},
    };
    for (size_t i = 0; i < PD_COUNT_OF(arrays); i++) {
        bool flat = arrays[i].count > 0 || i == 2 || i == 3;
        const uint64_t shape[] = {flat ? arrays[i].count : batch->rows, batch->width};
        enum pd_dtype dtype = i == 7 ? PD_DTYPE_F32 : PD_DTYPE_I32;
        PD_CHECK(pd_batch_array_add(batch, arrays[i].name, dtype, flat ? 1 : 2, shape) == 0);
    }
}

static void any_batch(struct pd_reader *in)
{
    static struct pd_batch batch;
    memset(&batch, 0, sizeof batch);
    struct pd_layout_rules rules = {.seq_len = below(in, 20),
                                    .seg_align = below(in, 4),
                                    .total_align = below(in, 4),
                                    .pad_segment = below(in, 9),
                                    .labels = (enum pd_labels)below(in, 2),
                                    .width = (enum pd_width)below(in, 3),
                                    .fixed_segments = below(in, 2) * 10,
                                    .width_count = below(in, 20),
                                    .cost = {UINT32_MAX, UINT32_MAX}};
    free_table(&batch, in);
    for (uint32_t changes = below(in, 3); changes > 0; changes--)
        change_header(&batch, in);
    size_t size = pd_reader_left(in);
    batch.payload_bytes = pd_reader_u8(in) % 4 == 0 ? size : batch.payload_bytes;
    uint8_t *payload = malloc(batch.payload_bytes > 0 ? batch.payload_bytes : 1);
    PD_CHECK(payload);
    memset(payload, 0, batch.payload_bytes);
    size = pd_reader_left(in) < batch.payload_bytes ? pd_reader_left(in) : batch.payload_bytes;
    if (size > 0)
        memcpy(payload, in->at, size);
    run(&rules, &batch, payload, NULL);
    free(payload);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pd_reader in = pd_reader_of(data, size);
    if (pd_reader_u8(&in) % 2 == 0)
        changed_batch(&in);
    else
        any_batch(&in);
    return 0;
}
