/* Block heads: what is encoded comes back, in place and copied; no damaged byte passes unseen;
 * impossible heads are refused. */
#include "server/block.h"

#include "base/check.h"
#include "tests/unit/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <xxhash.h>

#include <cmocka.h>

#define SEED 31337ull
#define SAMPLES_MAX 24
#define TENSORS 7

static uint64_t random_state = SEED;

static uint32_t below(uint32_t bound)
{
    return test_below(&random_state, bound);
}

/* A head with arrays of its own, every column present or not. */
struct made {
    struct pd_block_head head;
    uint32_t lengths[SAMPLES_MAX], run_ends[SAMPLES_MAX], span_ends[SAMPLES_MAX],
        key_ends[SAMPLES_MAX], group_ends[SAMPLES_MAX];
    uint8_t rejected[SAMPLES_MAX], keys[SAMPLES_MAX * 8], groups[SAMPLES_MAX * 8];
    uint64_t token_digests[SAMPLES_MAX], label_digests[SAMPLES_MAX], versions[SAMPLES_MAX];
    float weights[SAMPLES_MAX];
    uint32_t runs[SAMPLES_MAX * 4];
    struct pd_span spans[SAMPLES_MAX * 3];
    struct pd_tensor_spec tensors[TENSORS];
    uint32_t ragged_ends[TENSORS * SAMPLES_MAX], span_counts[SAMPLES_MAX * 3];
    uint64_t tensor_digests[TENSORS * SAMPLES_MAX], token_offsets[SAMPLES_MAX + 1],
        tensor_offsets[TENSORS + 1];
};

static void make_runs(struct made *m, uint32_t i)
{
    uint32_t at = i ? m->run_ends[i - 1] : 0, left = m->lengths[i];
    for (uint32_t count = below(4); count > 0; count--) {
        m->runs[at] = below(left + 1);
        left -= m->runs[at++];
    }
    m->run_ends[i] = at;
}

static void make_spans(struct made *m, uint32_t i)
{
    uint32_t at = i ? m->span_ends[i - 1] : 0, from = 0;
    for (uint32_t count = below(3); count > 0 && from < m->lengths[i]; count--) {
        struct pd_span *span = &m->spans[at++];
        span->offset_tokens = from + below(m->lengths[i] - from);
        span->length_tokens = 1 + below(m->lengths[i] - span->offset_tokens);
        span->patches = below(10);
        span->view = below(3);
        span->t_scale = 1 + below(8) / 4.0;
        if (below(2)) {
            span->merge = 1 + below(4);
            span->grid_t = span->length_tokens;
            span->grid_h = span->merge;
            span->grid_w = 1;
            span->patches = span->length_tokens * span->merge;
        }
        from = span->offset_tokens + span->length_tokens;
    }
    m->span_ends[i] = at;
}

static void make_sample(struct made *m, uint32_t i)
{
    m->rejected[i] = below(5) == 0;
    m->lengths[i] = m->rejected[i] ? below(3) : 1 + below(300);
    m->token_digests[i] = random_state;
    m->label_digests[i] = ~random_state;
    m->versions[i] = below(1000);
    m->weights[i] = (float)below(100) / 8;
    make_runs(m, i);
    make_spans(m, i);
    uint32_t key = i ? m->key_ends[i - 1] : 0, group = i ? m->group_ends[i - 1] : 0;
    for (uint32_t k = 0; k < 8; k++) {
        m->keys[key + k] = (uint8_t)below(256);
        m->groups[group + k] = (uint8_t)below(256);
    }
    m->key_ends[i] = key + below(9);
    m->group_ends[i] = group + below(9);
}

/* One of each axis and unit, and a loss with its pad mask. */
static const struct pd_tensor_spec tensor_specs[TENSORS] = {
    {.name = "advantage", .dtype = PD_DTYPE_F32, .axis = PD_AXIS_TOKEN, .pad_mask = PD_TENSOR_NONE},
    {.name = "pixels",
     .dtype = PD_DTYPE_BF16,
     .axis = PD_AXIS_RAGGED,
     .unit = PD_UNIT_PATCH,
     .rank = 1,
     .dims = {12},
     .views = 5,
     .pad_mask = PD_TENSOR_NONE},
    {.name = "jpeg_bytes",
     .dtype = PD_DTYPE_I64,
     .axis = PD_AXIS_RAGGED,
     .unit = PD_UNIT_SPAN,
     .pad_mask = PD_TENSOR_NONE},
    {.name = "jpeg",
     .dtype = PD_DTYPE_U8,
     .axis = PD_AXIS_RAGGED,
     .unit = PD_UNIT_RUN,
     .views = 3,
     .pad_mask = PD_TENSOR_NONE},
    {.name = "words", .dtype = PD_DTYPE_U8, .axis = PD_AXIS_RAGGED, .pad_mask = PD_TENSOR_NONE},
    {.name = "action_is_pad",
     .dtype = PD_DTYPE_BOOL,
     .axis = PD_AXIS_SAMPLE,
     .rank = 1,
     .dims = {8},
     .pad_mask = PD_TENSOR_NONE},
    {.name = "action",
     .dtype = PD_DTYPE_F32,
     .axis = PD_AXIS_SAMPLE,
     .rank = 2,
     .dims = {8, 3},
     .is_loss = 1,
     .pad_mask = 33},
};

static uint32_t elements_of(const struct made *m, const struct pd_tensor_spec *spec, uint32_t i)
{
    uint32_t spans, elements = 0;
    const struct pd_span *span = pd_block_head_spans(&m->head, i, &spans);
    if (spec->unit == PD_UNIT_SAMPLE)
        return below(50);
    for (uint32_t s = 0; s < spans; s++) {
        if (spec->views != 0 && !(spec->views & 1ull << span[s].view))
            continue;
        if (spec->unit == PD_UNIT_RUN)
            elements += m->span_counts[span + s - m->spans];
        else
            elements += spec->unit == PD_UNIT_PATCH ? span[s].patches : 1;
    }
    return elements;
}

static void make_tensors(struct made *m)
{
    struct pd_block_head *head = &m->head;
    uint32_t at = 0;
    head->tensor_count = TENSORS;
    head->tensors = m->tensors;
    head->tensor_digests = m->tensor_digests;
    head->tensor_offsets = m->tensor_offsets;
    head->ragged_ends = m->ragged_ends;
    uint32_t spans = head->span_ends ? head->span_ends[head->count - 1] : 0;
    head->span_counts = spans ? m->span_counts : NULL;
    for (uint32_t s = 0; s < spans; s++)
        m->span_counts[s] = m->spans[s].view < 2 ? below(40) : 0;
    for (uint32_t k = 0; k < TENSORS; k++) {
        m->tensors[k] = tensor_specs[k];
        m->tensors[k].number = k == 5 ? 33 : k;
        for (uint32_t i = 0; i < head->count; i++) {
            m->tensor_digests[k * head->count + i] = ((uint64_t)below(1000) << 32) + i;
            if (tensor_specs[k].axis != PD_AXIS_RAGGED)
                continue;
            m->ragged_ends[at] =
                (i ? m->ragged_ends[at - 1] : 0) + elements_of(m, &m->tensors[k], i);
            at++;
        }
    }
    assert_true(pd_block_head_derive(head));
    head->body_bytes = m->tensor_offsets[TENSORS];
}

static void make(struct made *m)
{
    memset(m, 0, sizeof *m);
    struct pd_block_head *head = &m->head;
    uint64_t tokens = 0;
    head->count = 1 + below(SAMPLES_MAX);
    for (uint32_t i = 0; i < head->count; i++) {
        make_sample(m, i);
        tokens += m->lengths[i];
    }
    head->feed = below(5);
    head->lane = below(5);
    head->stream = below(1000);
    head->source = below(5);
    head->first_seq = (uint64_t)below(1000) << 32;
    head->first_index = below(head->count);
    head->has_labels = below(2);
    head->body_bytes = tokens * (head->has_labels ? 8 : 4);
    head->lengths = m->lengths;
    head->token_digests = m->token_digests;
    head->label_digests = head->has_labels ? m->label_digests : NULL;
    head->rejected = m->rejected;
    head->weights = below(2) ? m->weights : NULL;
    head->versions = below(2) ? m->versions : NULL;
    if (below(2)) {
        head->loss_run_ends = m->run_ends;
        head->loss_runs = m->runs;
    }
    if (below(2)) {
        head->span_ends = m->span_ends;
        head->spans = m->spans;
    }
    if (below(2)) {
        head->key_ends = m->key_ends;
        head->keys = m->keys;
    }
    if (below(2)) {
        head->group_ends = m->group_ends;
        head->groups = m->groups;
    }
    head->token_offsets = m->token_offsets;
    if (below(2))
        make_tensors(m);
}

static void same_column(const void *a, const void *b, size_t size)
{
    assert_int_equal(a != NULL, b != NULL);
    if (a)
        assert_memory_equal(a, b, size);
}

static void same_sample(const struct pd_block_head *a, const struct pd_block_head *b, uint32_t i)
{
    struct pd_head x, y;
    pd_block_head_sample(a, i, &x);
    pd_block_head_sample(b, i, &y);
    assert_int_equal(x.seq, a->first_seq + i);
    assert_int_equal(x.seq, y.seq);
    assert_int_equal(x.length_tokens, y.length_tokens);
    assert_int_equal(x.patches, y.patches);
    assert_int_equal(x.payload_bytes, y.payload_bytes);
    assert_int_equal(x.tensors, y.tensors);
    for (uint32_t k = 0; k < a->tensor_count; k++) {
        struct pd_tensor_extent p = pd_block_head_extent(a, k, i);
        struct pd_tensor_extent q = pd_block_head_extent(b, k, i);
        assert_memory_equal(&p, &q, sizeof p);
    }
    assert_true(x.weight == y.weight);
    assert_int_equal(x.loss.count, y.loss.count);
    same_column(x.loss.lengths, y.loss.lengths, x.loss.count * 4ull);
    assert_int_equal(x.span_count, y.span_count);
    same_column(x.spans, y.spans, x.span_count * sizeof *x.spans);
}

static void same(const struct pd_block_head *a, const struct pd_block_head *b)
{
    size_t count = a->count;
    uint64_t offset = 0;
    assert_int_equal(a->count, b->count);
    assert_int_equal(a->feed, b->feed);
    assert_int_equal(a->lane, b->lane);
    assert_int_equal(a->stream, b->stream);
    assert_int_equal(a->source, b->source);
    assert_int_equal(a->first_seq, b->first_seq);
    assert_int_equal(a->first_index, b->first_index);
    assert_int_equal(a->has_labels, b->has_labels);
    assert_int_equal(a->body_bytes, b->body_bytes);
    same_column(a->lengths, b->lengths, count * 4);
    same_column(a->rejected, b->rejected, count);
    same_column(a->token_digests, b->token_digests, count * 8);
    same_column(a->label_digests, b->label_digests, count * 8);
    same_column(a->weights, b->weights, count * 4);
    same_column(a->versions, b->versions, count * 8);
    assert_int_equal(a->tensor_count, b->tensor_count);
    same_column(a->tensors, b->tensors, a->tensor_count * sizeof *a->tensors);
    same_column(a->key_ends, b->key_ends, count * 4);
    same_column(a->group_ends, b->group_ends, count * 4);
    if (a->key_ends)
        assert_memory_equal(a->keys, b->keys, a->key_ends[count - 1]);
    if (a->group_ends)
        assert_memory_equal(a->groups, b->groups, a->group_ends[count - 1]);
    for (uint32_t i = 0; i < count; i++) {
        same_sample(a, b, i);
        assert_int_equal(b->token_offsets[i], offset);
        offset += a->lengths[i];
    }
    assert_int_equal(b->token_offsets[count], offset);
}

static void test_round_trip(void **unused)
{
    (void)unused;
    print_message("seed %llu\n", SEED);
    for (int round = 0; round < 3000; round++) {
        struct made m;
        struct pd_buf buf = {0};
        struct pd_block_head out;
        struct pd_error error = {0};
        make(&m);
        assert_int_equal(pd_block_head_check(&m.head, &error), 0);
        pd_block_head_encode(&m.head, &buf);
        assert_false(buf.failed);
        assert_int_equal(buf.size_bytes, pd_block_head_size(&m.head));
        assert_int_equal(pd_block_head_decode(&out, buf.data, buf.size_bytes), 0);
        same(&m.head, &out);
        pd_block_head_fini(&out);
        assert_int_equal(pd_block_head_map(&out, buf.data, buf.size_bytes), 0);
        assert_true((uint8_t *)out.lengths > buf.data &&
                    (uint8_t *)out.lengths < buf.data + buf.size_bytes);
        same(&m.head, &out);
        pd_block_head_fini(&out);
        uint8_t *odd = malloc(buf.size_bytes + 1); /* at any address, too */
        assert_non_null(odd);
        memcpy(odd + 1, buf.data, buf.size_bytes);
        assert_int_equal(pd_block_head_map(&out, odd + 1, buf.size_bytes), 0);
        same(&m.head, &out);
        pd_block_head_fini(&out);
        free(odd);
        pd_buf_fini(&buf);
    }
}

/* Every byte, every length: refused by the digest. */
static void test_damage(void **unused)
{
    (void)unused;
    for (int round = 0; round < 20; round++) {
        struct made m;
        struct pd_buf buf = {0};
        struct pd_block_head out;
        make(&m);
        pd_block_head_encode(&m.head, &buf);
        for (size_t i = 0; i < buf.size_bytes; i++) {
            uint8_t flip = (uint8_t)(1u << below(8));
            buf.data[i] ^= flip;
            assert_int_equal(pd_block_head_decode(&out, buf.data, buf.size_bytes), PD_ECORRUPT);
            buf.data[i] ^= flip;
        }
        for (size_t size = 0; size < buf.size_bytes; size++)
            assert_int_equal(pd_block_head_decode(&out, buf.data, size), PD_ECORRUPT);
        pd_buf_fini(&buf);
    }
}

/* Damage with a digest that fits: the rules must hold whatever the bytes are. */
static void test_forged(void **unused)
{
    (void)unused;
    uint32_t accepted = 0, refused = 0;
    for (int round = 0; round < 20000; round++) {
        struct made m;
        struct pd_buf buf = {0};
        struct pd_block_head out;
        struct pd_error error;
        make(&m);
        pd_block_head_encode(&m.head, &buf);
        size_t content = buf.size_bytes - 8;
        for (uint32_t changes = 1 + below(3); changes > 0; changes--)
            buf.data[below(2) ? below(72) : below((uint32_t)content)] = (uint8_t)below(256);
        uint64_t digest = XXH3_64bits(buf.data, content);
        memcpy(buf.data + content, &digest, sizeof digest);
        int rc = pd_block_head_decode(&out, buf.data, buf.size_bytes);
        assert_true(rc == 0 || rc == PD_ECORRUPT);
        if (rc == 0) {
            assert_int_equal(pd_block_head_check(&out, &error), 0);
            for (uint32_t i = 0; i < out.count; i++) {
                struct pd_head sample;
                pd_block_head_sample(&out, i, &sample);
            }
            pd_block_head_fini(&out);
        }
        accepted += rc == 0;
        refused += rc != 0;
        pd_buf_fini(&buf);
    }
    assert_true(accepted > 100 && refused > 100);
}

static void refused(struct made *m, const char *text)
{
    struct pd_error error = {0};
    assert_int_equal(pd_block_head_check(&m->head, &error), PD_EINVAL);
    assert_string_equal(error.reason, "BAD_BLOCK");
    if (!strstr(error.text, text))
        fail_msg("'%s' does not say '%s'", error.text, text);
    struct pd_buf buf = {0};
    struct pd_block_head out;
    pd_block_head_encode(&m->head, &buf);
    assert_int_equal(pd_block_head_decode(&out, buf.data, buf.size_bytes), PD_ECORRUPT);
    pd_buf_fini(&buf);
}

static void make_full(struct made *m)
{
    do
        make(m);
    while (!m->head.weights || !m->head.loss_run_ends || !m->head.span_ends || m->head.count < 3 ||
           m->rejected[1] || m->span_ends[1] == m->span_ends[0] ||
           m->run_ends[1] == m->run_ends[0]);
}

static void test_rules(void **unused)
{
    (void)unused;
    struct made m;
    make_full(&m);
    m.head.first_index = m.head.count;
    refused(&m, "first_index");
    make_full(&m);
    m.head.first_seq = UINT64_MAX - 1;
    refused(&m, "seq overflows");
    make_full(&m);
    m.lengths[1] = 0;
    refused(&m, "no tokens");
    make_full(&m);
    m.weights[1] = -1;
    refused(&m, "weight");
    make_full(&m);
    m.weights[1] = NAN;
    refused(&m, "weight");
    make_full(&m);
    m.head.body_bytes -= 4;
    refused(&m, "body's size");
    make_full(&m);
    m.runs[m.run_ends[0]] += m.lengths[1] + 1;
    refused(&m, "runs are longer");
    make_full(&m);
    m.spans[m.span_ends[0]].length_tokens += m.lengths[1];
    refused(&m, "span");
    make_full(&m);
    m.rejected[1] = 2;
    refused(&m, "rejected flag");
    make_full(&m);
    m.span_ends[1] = 0;
    m.span_ends[0] = 1;
    refused(&m, "span ends fall");
}

static void make_with_tensors(struct made *m)
{
    do
        make_full(m);
    while (m->head.tensor_count == 0 || m->spans[m->span_ends[0]].view == 1);
}

static void test_tensor_rules(void **unused)
{
    (void)unused;
    struct made m;
    make_with_tensors(&m);
    m.head.body_bytes++;
    refused(&m, "body's size");
    make_with_tensors(&m);
    m.tensors[0].dtype = 99;
    refused(&m, "dtype");
    make_with_tensors(&m);
    m.tensors[0].name[3] = '-';
    refused(&m, "name");
    make_with_tensors(&m);
    m.tensors[6].dims[1] = 0;
    refused(&m, "dims");
    make_with_tensors(&m);
    m.tensors[0].unit = PD_UNIT_SPAN;
    refused(&m, "unit");
    make_with_tensors(&m);
    m.tensors[2].number = m.tensors[1].number;
    refused(&m, "twice");
    make_with_tensors(&m);
    m.tensors[6].pad_mask = 7;
    refused(&m, "pad mask");
    make_with_tensors(&m);
    m.tensors[5].dims[0] = 9;
    refused(&m, "pad mask");
    make_with_tensors(&m);
    m.ragged_ends[m.head.count - 1] += 1;
    if (!m.rejected[m.head.count - 1])
        refused(&m, "elements");
    make_with_tensors(&m);
    m.span_counts[m.span_ends[0]] += 1;
    refused(&m, "elements");
    make_with_tensors(&m);
    m.ragged_ends[0] = UINT32_MAX;
    refused(&m, "ragged ends fall");
    make_with_tensors(&m);
    m.spans[m.span_ends[0]].t_scale = NAN;
    refused(&m, "grid");
    make_with_tensors(&m);
    m.spans[m.span_ends[0]].grid_w += 2;
    m.spans[m.span_ends[0]].grid_h = 0;
    refused(&m, "grid");
}

/* Where each sample's bytes lie, worked out column by column. */
static void test_extents(void **unused)
{
    (void)unused;
    for (int round = 0; round < 300; round++) {
        struct made m;
        make_with_tensors(&m);
        uint64_t at = m.token_offsets[m.head.count] * (m.head.has_labels ? 8 : 4);
        uint32_t ragged = 0;
        for (uint32_t k = 0; k < TENSORS; k++) {
            assert_int_equal(pd_block_head_tensor(&m.head, m.tensors[k].number), k);
            for (uint32_t i = 0; i < m.head.count; i++) {
                struct pd_tensor_extent extent = pd_block_head_extent(&m.head, k, i);
                static const uint32_t bytes[TENSORS] = {4, 24, 8, 1, 1, 8, 96};
                uint64_t elements = k == 0 ? m.lengths[i] : 1;
                if (m.tensors[k].axis == PD_AXIS_RAGGED) {
                    elements = m.ragged_ends[ragged] - (i ? m.ragged_ends[ragged - 1] : 0);
                    ragged++;
                }
                uint32_t spans, of_spans = 0;
                (void)pd_block_head_spans(&m.head, i, &spans);
                for (uint32_t s = 0; m.tensors[k].unit != PD_UNIT_SAMPLE && s < spans; s++)
                    of_spans += pd_block_head_span_elements(&m.head, k, i, s);
                if (m.tensors[k].unit != PD_UNIT_SAMPLE)
                    assert_int_equal(of_spans, extent.elements);
                assert_int_equal(extent.offset_bytes, at);
                assert_int_equal(extent.elements, elements);
                assert_int_equal(extent.size_bytes, elements * bytes[k]);
                assert_int_equal(extent.digest, m.tensor_digests[k * m.head.count + i]);
                at += extent.size_bytes;
            }
        }
        assert_int_equal(at, m.head.body_bytes);
        assert_int_equal(pd_block_head_tensor(&m.head, 50), PD_TENSOR_NONE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),   cmocka_unit_test(test_damage),
        cmocka_unit_test(test_forged),       cmocka_unit_test(test_rules),
        cmocka_unit_test(test_tensor_rules), cmocka_unit_test(test_extents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
