/* Blocks: what goes in comes out of the messages, whatever the pieces; limits hold. */
#include "client/lib_block.h"

#include "base/check.h"
#include "proto/packd.pb-c.h"
#include "tests/unit/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t seed;

static uint32_t below(uint32_t bound)
{
    return test_below(&seed, bound);
}

#define LENGTH_MAX 40
#define COUNT_MAX 200

struct made {
    int32_t tokens[LENGTH_MAX], labels[LENGTH_MAX];
    uint8_t mask[LENGTH_MAX];
    char key[300], group[300];
    struct packd_sample sample;
};

static void make(struct made *m, bool labels)
{
    size_t count = 1 + below(LENGTH_MAX);
    bool all_on = below(2);
    for (size_t i = 0; i < count; i++) {
        m->tokens[i] = (int32_t)below(1000);
        m->labels[i] = (int32_t)below(1000) - 1;
        m->mask[i] = all_on || below(2);
    }
    size_t key = below(3) ? 0 : below(256), group = below(4) ? 0 : below(20);
    memset(m->key, 'k', sizeof m->key);
    memset(m->group, 'g', sizeof m->group);
    m->sample = (struct packd_sample){
        .tokens = m->tokens,
        .count = count,
        .labels = labels ? m->labels : NULL,
        .loss_mask = below(2) ? m->mask : NULL,
        .has_weight = below(2),
        .weight = (float)below(8) / 4,
        .key = {key, (const uint8_t *)m->key},
        .group = {group, (const uint8_t *)m->group},
        .version = below(3) ? 0 : below(100),
    };
}

static const struct pd_client_limits wide = {1 << 19, 1 << 19, 1 << 22, 1 << 22, COUNT_MAX};

/* The messages of a block, taken apart again: its head, and its body in one buffer. */
static Packd__V1__BlockHead *take_apart(struct pd_client_block *block, struct pd_buf *body)
{
    Packd__V1__BlockHead *head = NULL;
    size_t total = pd_client_block_body_bytes(block), offset = 0;
    while (offset < total) {
        size_t piece = 1 + below(300);
        if (piece > total - offset)
            piece = total - offset;
        uint8_t prefix[64];
        struct pd_rpc_part parts[PD_RPC_PARTS_MAX];
        struct pd_buf message = {0};
        size_t count = pd_client_block_message(block, offset, piece, prefix, parts);
        assert_true(count <= PD_RPC_PARTS_MAX);
        for (size_t i = 0; i < count; i++) {
            pd_buf_put(&message, parts[i].data, parts[i].bytes);
            if (parts[i].release)
                parts[i].release(parts[i].owner);
        }
        Packd__V1__PushRequest *request =
            packd__v1__push_request__unpack(NULL, message.size_bytes, message.data);
        assert_non_null(request);
        ProtobufCBinaryData bytes;
        if (offset == 0) {
            assert_int_equal(request->what_case, PACKD__V1__PUSH_REQUEST__WHAT_BLOCK);
            head = request->block->head;
            request->block->head = NULL;
            bytes = request->block->body;
        } else {
            assert_int_equal(request->what_case, PACKD__V1__PUSH_REQUEST__WHAT_CHUNK);
            bytes = request->chunk->body;
        }
        assert_int_equal(bytes.len, piece);
        pd_buf_put(body, bytes.data, bytes.len);
        packd__v1__push_request__free_unpacked(request, NULL);
        pd_buf_fini(&message);
        offset += piece;
    }
    return head;
}

static void check_mask(const struct packd_sample *sample, const uint32_t *runs, uint32_t count)
{
    if (count == 0) {
        for (size_t i = 0; sample->loss_mask && i < sample->count; i++)
            assert_true(sample->loss_mask[i]);
        return;
    }
    size_t at = 0;
    for (uint32_t r = 0; r < count; r++) {
        assert_true(r == 0 || runs[r] > 0);
        for (uint32_t i = 0; i < runs[r]; i++)
            assert_int_equal(sample->loss_mask[at++] != 0, r % 2);
    }
    assert_int_equal(at, sample->count);
}

static void check_sample(const Packd__V1__BlockHead *head, uint32_t i,
                         const struct packd_sample *sample)
{
    assert_int_equal(head->lengths[i], sample->count);
    assert_true(head->n_weights == 0 || head->n_weights == head->n_lengths);
    float weight = head->n_weights ? head->weights[i] : 1;
    assert_true(weight == (sample->has_weight ? sample->weight : 1));
    assert_int_equal(head->n_keys ? head->keys[i].len : 0, sample->key.size);
    assert_int_equal(head->n_groups ? head->groups[i].len : 0, sample->group.size);
    assert_int_equal(head->n_versions ? head->versions[i] : 0, sample->version);
}

static void test_round_trip(void **state)
{
    (void)state;
    static struct made made[COUNT_MAX];
    for (int round = 0; round < 200; round++) {
        bool labels = below(2);
        uint32_t count = 1 + below(COUNT_MAX);
        struct pd_client_block *block = pd_client_block_new(77, labels);
        for (uint32_t i = 0; i < count; i++) {
            make(&made[i], labels);
            assert_int_equal(pd_client_sample_check(&made[i].sample, &wide, NULL), 0);
            assert_true(pd_client_block_fits(block, &made[i].sample, &wide, 1 << 22));
            assert_int_equal(pd_client_block_add(block, &made[i].sample), 0);
        }
        assert_int_equal(pd_client_block_seal(block), 0);
        assert_true(block->head.size_bytes <= block->head_bound);
        struct pd_buf body = {0};
        Packd__V1__BlockHead *head = take_apart(block, &body);
        assert_int_equal(head->first_seq, 77);
        assert_int_equal(head->n_lengths, count);
        assert_int_equal(head->body_bytes, body.size_bytes);
        assert_int_equal(head->has_labels, labels);
        size_t at = 0, runs = 0;
        for (uint32_t i = 0; i < count; i++) {
            const struct packd_sample *sample = &made[i].sample;
            check_sample(head, i, sample);
            assert_memory_equal(body.data + at, sample->tokens, sample->count * 4);
            if (labels)
                assert_memory_equal(body.data + block->tokens.size_bytes + at, sample->labels,
                                    sample->count * 4);
            at += sample->count * 4;
            uint32_t owned = head->n_mask_run_counts ? head->mask_run_counts[i] : 0;
            check_mask(sample, head->mask_runs + runs, owned);
            runs += owned;
        }
        assert_int_equal(runs, head->n_mask_runs);
        packd__v1__block_head__free_unpacked(head, NULL);
        pd_buf_fini(&body);
        pd_client_block_unref(block);
    }
}

static void test_limits(void **state)
{
    (void)state;
    static struct made m;
    make(&m, false);
    m.sample.loss_mask = NULL;
    struct pd_client_limits limits = wide;
    struct pd_client_block *block = pd_client_block_new(0, false);
    assert_int_equal(pd_client_block_add(block, &m.sample), 0);
    size_t body = pd_client_block_body_bytes(block);
    assert_true(pd_client_block_fits(block, &m.sample, &limits, 2 * body));
    assert_false(pd_client_block_fits(block, &m.sample, &limits, 2 * body - 1));
    limits.block_bytes = 2 * body - 1;
    assert_false(pd_client_block_fits(block, &m.sample, &limits, 1 << 22));
    limits = wide;
    limits.block_samples = 1;
    assert_false(pd_client_block_fits(block, &m.sample, &limits, 1 << 22));
    limits = wide;
    limits.head_bytes = block->head_bound + 1;
    assert_false(pd_client_block_fits(block, &m.sample, &limits, 1 << 22));
    m.sample.labels = m.labels;
    assert_false(pd_client_block_fits(block, &m.sample, &wide, 1 << 22));
    pd_client_block_unref(block);
}

static void expect_refused(const struct packd_sample *sample, const struct pd_client_limits *limits,
                           int code, const char *reason)
{
    struct packd_error error = {0};
    assert_int_equal(pd_client_sample_check(sample, limits, &error), code);
    assert_string_equal(error.reason, reason);
    assert_int_equal(error.code, code);
}

static void test_bad_samples(void **state)
{
    (void)state;
    static struct made m;
    static uint8_t mask[4096];
    static int32_t many[4096];
    make(&m, false);
    struct packd_sample s = m.sample;
    s.count = 0;
    expect_refused(&s, &wide, PACKD_EINVAL, "EMPTY_SAMPLE");
    s = m.sample;
    s.has_weight = true;
    const float weights[] = {-1, NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < PD_COUNT_OF(weights); i++) {
        s.weight = weights[i];
        expect_refused(&s, &wide, PACKD_EINVAL, "BAD_WEIGHT");
    }
    s = m.sample;
    s.key.size = 256;
    expect_refused(&s, &wide, PACKD_EINVAL, "KEY_TOO_LONG");
    struct pd_client_limits small = wide;
    small.sample_bytes = m.sample.count * 4 - 1;
    expect_refused(&m.sample, &small, PACKD_ELIMIT, "TOO_LARGE");
    for (size_t i = 0; i < sizeof mask; i++)
        mask[i] = i % 2;
    s = (struct packd_sample){.tokens = many, .count = PD_COUNT_OF(many), .loss_mask = mask};
    small = wide;
    small.head_bytes = 4096;
    expect_refused(&s, &small, PACKD_ELIMIT, "HEAD_TOO_LARGE");
    assert_int_equal(pd_client_sample_check(&s, &wide, NULL), 0);
}

int main(void)
{
    seed = test_seed(0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_bad_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
