/* Block heads from anything: decode comes back with a head that obeys the rules, or refuses;
 * what it accepts encodes to bytes that give the same head.
 *
 * The input is tried as it is, with a digest that fits behind it, and as the columns behind a
 * header made of small numbers, since random bytes rarely get past a digest or add up. */
#include "server/block.h"

#include "base/check.h"

#include <stdlib.h>
#include <xxhash.h>

#define HEADER_BYTES 72u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_again(const struct pd_block_head *head)
{
    struct pd_buf buf = {0};
    struct pd_block_head again;
    pd_block_head_encode(head, &buf);
    PD_CHECK(!buf.failed && buf.size_bytes == pd_block_head_size(head));
    PD_CHECK(pd_block_head_decode(&again, buf.data, buf.size_bytes) == 0);
    PD_CHECK(again.count == head->count && again.first_seq == head->first_seq &&
             again.body_bytes == head->body_bytes && again.first_index == head->first_index);
    PD_CHECK(memcmp(again.lengths, head->lengths, head->count * 4ull) == 0);
    PD_CHECK(again.token_offsets[again.count] == head->token_offsets[head->count]);
    pd_block_head_fini(&again);
    pd_buf_fini(&buf);
}

static void check_accepted(struct pd_block_head *head)
{
    struct pd_error error;
    uint64_t runs = 0, patches = 0;
    PD_CHECK(pd_block_head_check(head, &error) == 0);
    for (uint32_t i = 0; i < head->count; i++) {
        struct pd_head sample;
        pd_block_head_sample(head, i, &sample);
        for (uint32_t r = 0; r < sample.loss.count; r++)
            runs += sample.loss.lengths[r];
        for (uint32_t s = 0; s < sample.span_count; s++)
            patches += sample.spans[s].patches;
    }
    for (uint32_t k = 0; k < head->tensor_count; k++) {
        struct pd_tensor_extent last = pd_block_head_extent(head, k, head->count - 1);
        PD_CHECK(last.offset_bytes + last.size_bytes == head->tensor_offsets[k + 1]);
    }
    PD_CHECK(runs <= head->token_offsets[head->count]);
    PD_CHECK(patches <= (uint64_t)UINT32_MAX * head->count);
    check_again(head);
    pd_block_head_fini(head);
}

static void try_bytes(const uint8_t *data, size_t size)
{
    struct pd_block_head head;
    int rc = pd_block_head_decode(&head, data, size);
    PD_CHECK(rc == 0 || rc == PD_ECORRUPT);
    if (rc == 0)
        check_accepted(&head);
    rc = pd_block_head_map(&head, data, size);
    PD_CHECK(rc == 0 || rc == PD_ECORRUPT);
    if (rc == 0)
        check_accepted(&head);
}

static void try_digested(struct pd_buf *buf)
{
    pd_buf_put_u64(buf, XXH3_64bits(buf->data, buf->size_bytes));
    PD_CHECK(!buf->failed);
    try_bytes(buf->data, buf->size_bytes);
}

/* Header fields from the first bytes, each small enough to be plausible; the columns are the
 * rest. */
static void put_header(struct pd_buf *buf, const uint8_t *data)
{
    uint32_t present =
        0x5u | data[0] | (uint32_t)data[1] << 8; /* lengths and token digests always */
    pd_buf_put_u32(buf, 0x48424450u);
    pd_buf_put_u16(buf, 1);
    pd_buf_put_u16(buf, (present >> 3) & 1u);
    pd_buf_put_u32(buf, present & 0x3ffffu);
    for (int i = 0; i < 4; i++)
        pd_buf_put_u32(buf, data[2]);
    pd_buf_put_u32(buf, 1 + data[3] % 4u);
    pd_buf_put_u32(buf, data[4] % 4u);
    for (int i = 0; i < 4; i++)
        pd_buf_put_u32(buf, data[5 + i] % 16u);
    pd_buf_put_u32(buf, 0);
    pd_buf_put_u64(buf, data[9]);
    pd_buf_put_u64(buf, data[10]); /* the body's size: set by set_body_bytes */
}

/* What the lengths, the first column, add up to. */
static void set_body_bytes(struct pd_buf *buf)
{
    uint32_t count, length;
    uint16_t labels;
    uint64_t bytes = 0;
    memcpy(&labels, buf->data + 6, sizeof labels);
    memcpy(&count, buf->data + 28, sizeof count);
    for (uint32_t i = 0; i < count; i++) {
        if (HEADER_BYTES + 4 * (i + 1) > buf->size_bytes)
            return;
        memcpy(&length, buf->data + HEADER_BYTES + 4 * i, sizeof length);
        bytes += (uint64_t)length * (labels ? 8 : 4);
    }
    memcpy(buf->data + 64, &bytes, sizeof bytes);
}

/* A head with spans and tensors that is in order, its bytes changed where the input says. */
static void try_changed(const uint8_t *data, size_t size)
{
    static uint32_t lengths[] = {6, 4}, span_ends[] = {2, 3}, ragged_ends[] = {9, 12, 8, 13};
    static uint32_t span_counts[] = {1, 7, 5};
    static uint64_t token_digests[2], tensor_digests[6], token_offsets[3], tensor_offsets[4];
    static struct pd_span spans[] = {
        {.length_tokens = 2, .patches = 8, .grid_t = 1, .grid_h = 4, .grid_w = 2, .t_scale = 1},
        {.offset_tokens = 3, .length_tokens = 1, .patches = 1, .view = 1, .t_scale = 2},
        {.offset_tokens = 1, .length_tokens = 3, .patches = 3, .merge = 1, .t_scale = 1}};
    static struct pd_tensor_spec tensors[] = {{.name = "patches",
                                               .dtype = PD_DTYPE_F16,
                                               .axis = PD_AXIS_RAGGED,
                                               .unit = PD_UNIT_PATCH,
                                               .rank = 1,
                                               .dims = {2},
                                               .pad_mask = PD_TENSOR_NONE},
                                              {.name = "jpeg",
                                               .axis = PD_AXIS_RAGGED,
                                               .unit = PD_UNIT_RUN,
                                               .number = 4,
                                               .pad_mask = PD_TENSOR_NONE},
                                              {.name = "state",
                                               .dtype = PD_DTYPE_F32,
                                               .axis = PD_AXIS_SAMPLE,
                                               .rank = 1,
                                               .dims = {3},
                                               .number = 2,
                                               .pad_mask = PD_TENSOR_NONE}};
    struct pd_block_head head = {.count = 2,
                                 .lengths = lengths,
                                 .token_digests = token_digests,
                                 .span_ends = span_ends,
                                 .spans = spans,
                                 .tensor_count = 3,
                                 .tensors = tensors,
                                 .ragged_ends = ragged_ends,
                                 .span_counts = span_counts,
                                 .tensor_digests = tensor_digests,
                                 .token_offsets = token_offsets,
                                 .tensor_offsets = tensor_offsets};
    struct pd_buf buf = {0};
    struct pd_error error;
    PD_CHECK(pd_block_head_derive(&head));
    head.body_bytes = tensor_offsets[3];
    PD_CHECK(pd_block_head_check(&head, &error) == 0);
    pd_block_head_encode(&head, &buf);
    buf.size_bytes -= 8;
    for (size_t i = 0; i + 2 < size; i += 3)
        buf.data[(data[i] | (size_t)data[i + 1] << 8) % buf.size_bytes] = data[i + 2];
    try_digested(&buf);
    pd_buf_fini(&buf);
}

/* Columns of small numbers, so that lengths, ends and offsets can agree. */
static void put_columns(struct pd_buf *buf, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (i % 3 == 2)
            pd_buf_put_u8(buf, data[i]);
        else
            pd_buf_put_u32(buf, data[i] % 8u);
    }
    while (buf->size_bytes % 8)
        pd_buf_put_u8(buf, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pd_buf buf = {0};
    try_bytes(data, size);
    pd_buf_put(&buf, data, size);
    try_digested(&buf);
    if (size > 11) {
        pd_buf_clear(&buf);
        put_header(&buf, data);
        PD_CHECK(buf.size_bytes == HEADER_BYTES);
        put_columns(&buf, data + 11, size - 11);
        set_body_bytes(&buf);
        try_digested(&buf);
    }
    pd_buf_fini(&buf);
    try_changed(data, size < 24 ? size : 24);
    return 0;
}
