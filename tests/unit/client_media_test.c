/* Spans and tensors from the producer's calls through blocks, messages and the door: what was put
 * is what the stored block says, whichever samples shared it. */
#include "client/lib_block.h"
#include "server/ingest/door.h"

#include "base/check.h"
#include "tests/unit/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#include <cmocka.h>

static uint64_t seed;

static uint32_t below(uint32_t bound)
{
    return test_below(&seed, bound);
}

#define TOKENS_MAX 60
#define SPANS_MAX 4
#define TENSORS 6
#define BYTES_MAX 4096
#define SAMPLES 40

/* A sample with memory of its own. */
struct made {
    int32_t tokens[TOKENS_MAX];
    struct packd_span spans[SPANS_MAX];
    uint32_t runs[SPANS_MAX];
    uint8_t data[TENSORS][BYTES_MAX];
    struct packd_tensor tensors[TENSORS];
    struct packd_sample sample;
};

static const char *const views[] = {"front", "left_wrist", "right-wrist"};
static const char *const wrists[] = {"left_wrist", "right-wrist"};

static void make_spans(struct made *m)
{
    uint32_t at = below(5), count = below(SPANS_MAX + 1), i = 0;
    for (; i < count; i++) {
        uint32_t h = 1 + below(2), w = 1 + below(3);
        if (at + h * w > m->sample.count)
            break;
        m->spans[i] = (struct packd_span){.view = views[below(3)],
                                          .offset = at,
                                          .length = h * w,
                                          .grid_t = 1,
                                          .grid_h = 2 * h,
                                          .grid_w = 2 * w,
                                          .t_scale = below(3) / 2.0};
        if (below(2))
            m->spans[i].patches = 4 * h * w;
        at += h * w + below(4);
    }
    m->sample.spans = m->spans;
    m->sample.span_count = i;
    m->sample.merge = 4;
}

static bool is_wrist(const struct packd_span *span)
{
    return strcmp(span->view, "front") != 0;
}

static size_t put_tensor(struct made *m, size_t k, struct packd_tensor tensor)
{
    size_t bytes = packd_dtype_bytes(tensor.dtype) * tensor.elements;
    for (uint32_t d = 0; d < tensor.ndim; d++)
        bytes *= tensor.dims[d];
    assert_true(bytes <= BYTES_MAX);
    for (size_t i = 0; i < bytes; i++)
        m->data[k][i] = (uint8_t)below(tensor.dtype == PACKD_DTYPE_BOOL ? 2 : 256);
    tensor.data = m->data[k];
    m->tensors[m->sample.tensor_count++] = tensor;
    return bytes;
}

/* `kind`: 0 nothing, 1 robot (sample tensors), 2 token tensor; ragged ones join any. */
static void make_tensors(struct made *m, uint32_t kind)
{
    static const uint32_t pad = 0x3f800000;
    size_t patches = 0, wrist_spans = 0, run_total = 0;
    for (size_t s = 0; s < m->sample.span_count; s++) {
        bool wrist = is_wrist(&m->spans[s]);
        patches += wrist ? 4 * m->spans[s].length : 0;
        wrist_spans += wrist;
        run_total += m->runs[s] = below(30);
    }
    if (below(2))
        put_tensor(m, 0,
                   (struct packd_tensor){.name = "pixels",
                                         .dtype = PACKD_DTYPE_BFLOAT16,
                                         .axis = PACKD_AXIS_RAGGED,
                                         .unit = PACKD_UNIT_PATCH,
                                         .ndim = 1,
                                         .dims = {3},
                                         .elements = patches,
                                         .span_views = wrists,
                                         .span_view_count = 2});
    if (below(2))
        put_tensor(m, 1,
                   (struct packd_tensor){.name = "jpeg",
                                         .dtype = PACKD_DTYPE_UINT8,
                                         .axis = PACKD_AXIS_RAGGED,
                                         .unit = PACKD_UNIT_RUN,
                                         .elements = run_total,
                                         .run_counts = m->runs});
    if (below(2))
        put_tensor(m, 2,
                   (struct packd_tensor){.name = "exposure",
                                         .dtype = PACKD_DTYPE_FLOAT64,
                                         .axis = PACKD_AXIS_RAGGED,
                                         .unit = PACKD_UNIT_SPAN,
                                         .elements = wrist_spans,
                                         .span_views = wrists,
                                         .span_view_count = 2});
    if (kind == 1) {
        put_tensor(m, 3,
                   (struct packd_tensor){.name = "action",
                                         .dtype = PACKD_DTYPE_FLOAT32,
                                         .axis = PACKD_AXIS_SAMPLE,
                                         .ndim = 2,
                                         .dims = {4, 2},
                                         .elements = 1,
                                         .is_loss = true,
                                         .pad_mask = "action_is_pad"});
        put_tensor(m, 4,
                   (struct packd_tensor){.name = "action_is_pad",
                                         .dtype = PACKD_DTYPE_BOOL,
                                         .axis = PACKD_AXIS_SAMPLE,
                                         .ndim = 1,
                                         .dims = {4},
                                         .elements = 1});
    }
    if (kind == 2)
        put_tensor(m, 5,
                   (struct packd_tensor){.name = "advantages",
                                         .dtype = PACKD_DTYPE_FLOAT32,
                                         .axis = PACKD_AXIS_TOKEN,
                                         .elements = m->sample.count,
                                         .align_input = true,
                                         .pad_value = &pad});
    m->sample.tensors = m->tensors;
}

static void make(struct made *m, uint32_t kind)
{
    memset(m, 0, sizeof *m);
    m->sample = (struct packd_sample){.tokens = m->tokens, .count = 10 + below(TOKENS_MAX - 10)};
    for (size_t i = 0; i < m->sample.count; i++)
        m->tokens[i] = (int32_t)below(1000);
    if (below(4))
        make_spans(m);
    make_tensors(m, kind);
}

/* ---- through messages and door ---- */

struct stored {
    struct pd_block block;
    struct pd_door_rejects rejects;
    struct pd_buf body;
};

static const struct pd_door_rules rules = {.seq_len = 1000,
                                           .sample_bytes_max = 1 << 20,
                                           .block_bytes_max = 1 << 24,
                                           .block_samples_max = 1000,
                                           .mrope = true};

static void store(struct pd_client_block *block, struct stored *to)
{
    Packd__V1__BlockHead *head = NULL;
    struct pd_error error = {0};
    static struct pd_piece pieces[1 << 16];
    size_t total = pd_client_block_body_bytes(block), piece;
    memset(to, 0, sizeof *to);
    for (size_t offset = 0; offset < total; offset += piece) {
        uint8_t prefix[64];
        struct pd_rpc_part parts[PD_RPC_PARTS_MAX];
        struct pd_buf message = {0};
        piece = 1 + below(4000);
        piece = piece < total - offset ? piece : total - offset;
        size_t count = pd_client_block_message(block, offset, piece, prefix, parts);
        for (size_t i = 0; i < count; i++) {
            pd_buf_put(&message, parts[i].data, parts[i].bytes);
            if (parts[i].release)
                parts[i].release(parts[i].owner);
        }
        Packd__V1__PushRequest *request =
            packd__v1__push_request__unpack(NULL, message.size_bytes, message.data);
        assert_non_null(request);
        if (offset == 0) {
            head = request->block->head;
            request->block->head = NULL;
            pd_buf_put(&to->body, request->block->body.data, request->block->body.len);
        } else {
            pd_buf_put(&to->body, request->chunk->body.data, request->chunk->body.len);
        }
        packd__v1__push_request__free_unpacked(request, NULL);
        pd_buf_fini(&message);
    }
    uint32_t count = 0;
    for (size_t at = 0; at < total; at += pieces[count++].size_bytes) {
        size_t size = 1 + below(700);
        size = size < total - at ? size : total - at;
        pieces[count] = (struct pd_piece){.data = to->body.data + at, .size_bytes = size};
    }
    to->block = (struct pd_block){.pieces = pieces, .piece_count = count};
    if (pd_door_check(head, &rules, &error) != 0 ||
        pd_door_make(head, &rules, &to->block, &to->rejects, &error) != 0)
        fail_msg("%s: %s", error.reason, error.text);
    assert_int_equal(pd_block_head_check(&to->block.head, &error), 0);
    packd__v1__block_head__free_unpacked(head, NULL);
}

static void stored_fini(struct stored *to)
{
    pd_door_rejects_fini(&to->rejects);
    pd_block_head_fini(&to->block.head);
    pd_buf_fini(&to->body);
}

static uint32_t place_of(const struct pd_block_head *head, const char *name)
{
    uint32_t k = 0;
    while (k < head->tensor_count && strcmp(head->tensors[k].name, name) != 0)
        k++;
    return k;
}

static void check_spans(const struct stored *stored, uint32_t i, const struct packd_sample *sample)
{
    uint32_t count;
    const struct pd_span *spans = pd_block_head_spans(&stored->block.head, i, &count);
    assert_int_equal(count, sample->span_count);
    for (uint32_t s = 0; s < count; s++) {
        const struct packd_span *put = &sample->spans[s];
        assert_int_equal(spans[s].offset_tokens, put->offset);
        assert_int_equal(spans[s].length_tokens, put->length);
        assert_int_equal(spans[s].patches, 4 * put->length);
        assert_int_equal(spans[s].grid_h, put->grid_h);
        assert_int_equal(spans[s].grid_w, put->grid_w);
        assert_int_equal(spans[s].merge, 4);
        assert_true(spans[s].t_scale == (put->t_scale == 0 ? 1 : put->t_scale));
        assert_string_equal(stored->block.views[spans[s].view], put->view);
    }
}

static void check_tensor(const struct stored *stored, uint32_t i, const struct packd_sample *sample,
                         const struct packd_tensor *put)
{
    const struct pd_block_head *head = &stored->block.head;
    uint32_t k = place_of(head, put->name);
    assert_true(k < head->tensor_count);
    struct pd_tensor_extent extent = pd_block_head_extent(head, k, i);
    assert_int_equal(extent.elements, put->elements);
    assert_memory_equal(stored->body.data + extent.offset_bytes, put->data, extent.size_bytes);
    assert_int_equal(extent.digest, XXH3_64bits(put->data, extent.size_bytes));
    const struct pd_tensor_spec *spec = &head->tensors[k];
    assert_int_equal(spec->rank, put->ndim);
    assert_int_equal(spec->is_loss, put->is_loss);
    assert_int_equal(spec->alignment == PD_ALIGN_INPUT, put->align_input);
    if (put->pad_mask)
        assert_string_equal(head->tensors[spec->pad_mask].name, put->pad_mask);
    if (put->pad_value)
        assert_memory_equal(spec->pad_value, put->pad_value, 4);
    for (uint32_t v = 0; v < stored->block.view_count && put->span_view_count > 0; v++)
        assert_int_equal(spec->views >> v & 1, strcmp(stored->block.views[v], "front") != 0);
    if (put->unit == PACKD_UNIT_RUN)
        for (uint32_t s = 0; s < sample->span_count; s++)
            assert_int_equal(pd_block_head_span_elements(head, k, i, s), put->run_counts[s]);
}

static void check_sample(const struct stored *stored, uint32_t i, const struct packd_sample *sample)
{
    const struct pd_block_head *head = &stored->block.head;
    struct pd_head planned;
    uint64_t bytes = sample->count * 4;
    check_spans(stored, i, sample);
    for (size_t t = 0; t < sample->tensor_count; t++)
        check_tensor(stored, i, sample, &sample->tensors[t]);
    for (uint32_t k = 0; k < head->tensor_count; k++)
        bytes += pd_block_head_extent(head, k, i).size_bytes;
    pd_block_head_sample(head, i, &planned);
    assert_int_equal(pd_head_bytes(&planned), bytes);
    uint32_t targets = pd_loss_runs_count(planned.loss, 0, planned.length_tokens);
    uint32_t media = 0;
    for (size_t s = 0; s < sample->span_count; s++)
        media += sample->spans[s].length;
    assert_int_equal(targets, sample->count - media); /* no labels pushed: -100 on spans */
}

static const struct pd_client_limits limits = {1 << 19, 1 << 19, 1 << 22, 1 << 22, 1000};

static void test_round_trip(void **unused)
{
    (void)unused;
    static struct made made[SAMPLES];
    uint64_t shared = 0;
    for (int round = 0; round < 150; round++) {
        uint32_t mixed = below(3), from = 0;
        struct pd_client_block *block = pd_client_block_new(0, false);
        for (uint32_t i = 0; i < SAMPLES; i++) {
            struct packd_error error;
            struct stored stored;
            make(&made[i], below(8) == 0 ? below(3) : mixed);
            if (pd_client_sample_check(&made[i].sample, &limits, &error) != 0)
                fail_msg("%s", error.text);
            bool fits = pd_client_block_fits(block, &made[i].sample, &limits, 1 << 20);
            if (fits) {
                assert_int_equal(pd_client_block_add(block, &made[i].sample), 0);
                shared += block->count > 1;
            }
            if (fits && i + 1 < SAMPLES)
                continue;
            assert_int_equal(pd_client_block_seal(block), 0);
            assert_true(block->head.size_bytes <= block->head_bound);
            store(block, &stored);
            if (stored.rejects.samples > 0) {
                char text[240];
                fail_msg("%s", pd_door_reject_text(&stored.rejects, stored.rejects.items, &rules,
                                                   text, sizeof text));
            }
            for (uint32_t s = 0; s < block->count; s++)
                check_sample(&stored, s, &made[from + s].sample);
            from += block->count;
            stored_fini(&stored);
            pd_client_block_unref(block);
            block = pd_client_block_new(from, false);
            if (!fits)
                assert_int_equal(pd_client_block_add(block, &made[i].sample), 0);
        }
        pd_client_block_unref(block);
    }
    assert_true(shared > 1000); /* joining is the rule */
}

/* ---- refused before anything is sent ---- */

static void refused(const struct packd_sample *sample, const char *reason, const char *text)
{
    struct packd_error error;
    assert_int_not_equal(pd_client_sample_check(sample, &limits, &error), 0);
    assert_string_equal(error.reason, reason);
    if (!strstr(error.text, text))
        fail_msg("'%s' does not say '%s'", error.text, text);
}

static void test_refusals(void **unused)
{
    (void)unused;
    static const int32_t tokens[4] = {1, 2, 3, 4};
    static const float data[16];
    static const uint32_t runs[] = {3};
    struct packd_span span = {.offset = 1, .length = 1};
    const struct packd_tensor good = {.name = "x",
                                      .dtype = PACKD_DTYPE_FLOAT32,
                                      .axis = PACKD_AXIS_TOKEN,
                                      .data = data,
                                      .elements = 4};
    struct packd_tensor tensors[2] = {good, good};
    struct packd_sample sample = {.tokens = tokens,
                                  .count = 4,
                                  .spans = &span,
                                  .span_count = 1,
                                  .tensors = tensors,
                                  .tensor_count = 1};
    struct packd_error error;
    assert_int_equal(pd_client_sample_check(&sample, &limits, &error), 0);
    tensors[0].elements = 3;
    refused(&sample, "BAD_TENSOR", "one element per token");
    tensors[0] = good;
    tensors[0].name = "a-b";
    refused(&sample, "BAD_NAME", "a-b");
    tensors[0] = good;
    tensors[0].data = NULL;
    refused(&sample, "BAD_TENSOR", "data is NULL");
    tensors[0] = good;
    tensors[0].unit = PACKD_UNIT_SPAN;
    refused(&sample, "BAD_TENSOR", "unit");
    tensors[0] = good;
    tensors[0].axis = PACKD_AXIS_RAGGED;
    tensors[0].unit = PACKD_UNIT_RUN;
    tensors[0].run_counts = runs;
    refused(&sample, "BAD_TENSOR", "add up");
    tensors[0] = good;
    sample.tensor_count = 2;
    refused(&sample, "BAD_TENSOR", "twice");
    sample.tensor_count = 1;
    sample.merge = 5;
    refused(&sample, "BAD_RANGE", "merge is 5");
    sample.merge = 0;
    span.view = "no spaces";
    refused(&sample, "BAD_NAME", "view name");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_refusals),
    };
    seed = test_seed(0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
