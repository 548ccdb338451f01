/* The tag scanner of PushRequest against protobuf-c: it finds what protobuf-c packed, at any cut of
 * the message, and refuses what is malformed. */
#include "proto/packd.pb-c.h"
#include "server/ingest/wire.h"
#include "tests/unit/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_MAX 4096

static uint64_t seed;

static uint32_t random_below(uint32_t bound)
{
    return test_below(&seed, bound);
}

/* A message in separately allocated pieces, so that a read outside one shows under ASan. */
struct cut {
    struct pd_piece pieces[MESSAGE_MAX + 4];
    uint32_t count;
};

static void cut_up(struct cut *cut, const uint8_t *data, size_t size)
{
    cut->count = 0;
    while (size > 0 || random_below(4) == 0) {
        size_t step = random_below(3) == 0 ? random_below(40) : random_below(6);
        step = step > size ? size : step;
        uint8_t *copy = malloc(step + (step == 0));
        assert_non_null(copy);
        memcpy(copy, data, step);
        cut->pieces[cut->count++] = (struct pd_piece){.data = copy, .size_bytes = step};
        data += step;
        size -= step;
        if (cut->count == MESSAGE_MAX)
            break;
    }
}

static void cut_free(struct cut *cut)
{
    for (uint32_t i = 0; i < cut->count; i++)
        free((void *)(uintptr_t)cut->pieces[i].data);
}

static size_t pack(const Packd__V1__PushRequest *request, uint8_t *out)
{
    size_t size = packd__v1__push_request__get_packed_size(request);

    assert_true(size <= MESSAGE_MAX);
    return packd__v1__push_request__pack(request, out);
}

static size_t pack_block(uint8_t *out, uint32_t samples, size_t body)
{
    Packd__V1__PushRequest request = PACKD__V1__PUSH_REQUEST__INIT;
    Packd__V1__SampleBlock block = PACKD__V1__SAMPLE_BLOCK__INIT;
    Packd__V1__BlockHead head = PACKD__V1__BLOCK_HEAD__INIT;
    uint32_t lengths[200];
    uint8_t bytes[1000];

    for (uint32_t i = 0; i < samples; i++)
        lengths[i] = random_below(100000);
    for (size_t i = 0; i < body; i++)
        bytes[i] = (uint8_t)random_below(256);
    head.lengths = lengths;
    head.n_lengths = samples;
    head.first_seq = random_below(1000);
    block.head = &head;
    block.body = (ProtobufCBinaryData){.data = bytes, .len = body};
    request.what_case = PACKD__V1__PUSH_REQUEST__WHAT_BLOCK;
    request.block = &block;
    return pack(&request, out);
}

/* Range as protobuf-c would see it: decoded from the flat message. */
static void check_block(const uint8_t *data, size_t size)
{
    struct cut cut;
    struct pd_wire_push push;
    struct pd_error error = {0};
    struct pd_piece body[MESSAGE_MAX + 4];
    uint8_t scratch[MESSAGE_MAX], joined[MESSAGE_MAX];
    size_t at = 0;

    cut_up(&cut, data, size);
    Packd__V1__PushRequest *expected = packd__v1__push_request__unpack(NULL, size, data);
    assert_non_null(expected);
    assert_int_equal(pd_wire_push_split(cut.pieces, cut.count, &push, &error), 0);
    assert_int_equal(push.kind, PD_WIRE_BLOCK);
    assert_int_equal(push.body.size_bytes, expected->block->body.len);
    uint32_t count = pd_wire_cut(cut.pieces, cut.count, push.body, body);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(joined + at, body[i].data, body[i].size_bytes);
        at += body[i].size_bytes;
    }
    assert_int_equal(at, expected->block->body.len);
    assert_memory_equal(joined, expected->block->body.data, at);
    const uint8_t *flat = pd_wire_flat(cut.pieces, cut.count, push.head, scratch);
    Packd__V1__BlockHead *head = packd__v1__block_head__unpack(NULL, push.head.size_bytes, flat);
    assert_non_null(head);
    assert_int_equal(head->n_lengths, expected->block->head->n_lengths);
    assert_memory_equal(head->lengths, expected->block->head->lengths, head->n_lengths * 4);
    assert_int_equal(head->first_seq, expected->block->head->first_seq);
    packd__v1__block_head__free_unpacked(head, NULL);
    packd__v1__push_request__free_unpacked(expected, NULL);
    cut_free(&cut);
}

static void finds_blocks_at_any_cut(void **state)
{
    uint8_t data[MESSAGE_MAX];

    (void)state;
    for (int i = 0; i < 3000; i++)
        check_block(data, pack_block(data, 1 + random_below(199),
                                     random_below(3) ? random_below(1000) : 0));
}

static int split_flat(const uint8_t *data, size_t size, struct pd_wire_push *push,
                      struct pd_error *error)
{
    uint8_t *copy = malloc(size + 1);
    struct pd_piece piece = {.data = copy, .size_bytes = size};

    assert_non_null(copy);
    memcpy(copy, data, size);
    int rc = pd_wire_push_split(&piece, 1, push, error);
    free(copy);
    return rc;
}

static void finds_small_messages(void **state)
{
    Packd__V1__PushRequest request = PACKD__V1__PUSH_REQUEST__INIT;
    Packd__V1__Hello hello = PACKD__V1__HELLO__INIT;
    Packd__V1__EndOfStream end = PACKD__V1__END_OF_STREAM__INIT;
    struct pd_wire_push push;
    struct pd_error error;
    uint8_t data[MESSAGE_MAX];

    (void)state;
    hello.stream = (char *)"web-1";
    request.what_case = PACKD__V1__PUSH_REQUEST__WHAT_HELLO;
    request.hello = &hello;
    assert_int_equal(split_flat(data, pack(&request, data), &push, &error), 0);
    assert_int_equal(push.kind, PD_WIRE_HELLO);
    assert_int_equal(push.inner.size_bytes, packd__v1__hello__get_packed_size(&hello));
    request.what_case = PACKD__V1__PUSH_REQUEST__WHAT_END;
    request.end = &end; /* an empty sub-message */
    assert_int_equal(split_flat(data, pack(&request, data), &push, &error), 0);
    assert_int_equal(push.kind, PD_WIRE_END);
    assert_int_equal(push.inner.size_bytes, 0);
}

static void refuses(const char *what, const uint8_t *data, size_t size)
{
    struct pd_wire_push push;
    struct pd_error error = {0};

    if (split_flat(data, size, &push, &error) != PD_EINVAL ||
        strcmp(error.reason, "MALFORMED") != 0)
        fail_msg("%s: not refused as MALFORMED", what);
}

#define REFUSES(what, ...)                     \
    do {                                       \
        const uint8_t bytes[] = {__VA_ARGS__}; \
        refuses(what, bytes, sizeof(bytes));   \
    } while (0)

static void refuses_what_is_malformed(void **state)
{
    (void)state;
    refuses("empty message", (const uint8_t *)"", 0);
    REFUSES("unknown field", 0x2a, 0);
    REFUSES("wrong wire type", 0x08, 1);
    REFUSES("field number 0", 0x02, 0);
    REFUSES("length behind the end", 0x12, 5, 0x0a, 0);
    REFUSES("varint without an end", 0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0xff, 1);
    REFUSES("huge length", 0x1a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01);
    REFUSES("block without head", 0x12, 3, 0x7a, 1, 0);
    REFUSES("head twice", 0x12, 4, 0x0a, 0, 0x0a, 0);
    REFUSES("body twice", 0x12, 8, 0x0a, 0, 0x7a, 1, 0, 0x7a, 1, 0);
    REFUSES("field behind the body", 0x12, 8, 0x0a, 0, 0x7a, 2, 0, 0, 0x20, 1);
    REFUSES("body as a varint", 0x1a, 2, 0x78, 1);
    REFUSES("inner length behind the inner end", 0x1a, 2, 0x7a, 5, 1, 2, 3);
    REFUSES("group", 0x1a, 2, 0x0b, 0x0c);
    REFUSES("two fields", 0x1a, 3, 0x7a, 1, 0, 0x22, 0);
}

static void passes_over_unknown_fields(void **state)
{
    /* chunk { 3: varint, 4: fixed64, 5: "ab", 6: fixed32, body: 9 } */
    const uint8_t bytes[] = {0x1a, 23,   0x18, 0x96, 1,   0x21, 1, 2, 3, 4, 5,    6, 7,
                             8,    0x2a, 2,    'a',  'b', 0x35, 1, 2, 3, 4, 0x7a, 1, 9};
    struct pd_wire_push push;
    struct pd_error error;
    uint8_t shorter[sizeof(bytes)];

    (void)state;
    memcpy(shorter, bytes, sizeof(bytes));
    shorter[1] = sizeof(bytes) - 2;
    assert_int_equal(split_flat(shorter, sizeof(bytes), &push, &error), 0);
    assert_int_equal(push.kind, PD_WIRE_CHUNK);
    assert_int_equal(push.body.size_bytes, 1);
    assert_int_equal(push.body.offset_bytes, sizeof(bytes) - 1);
}

/* Every prefix of a good message, and every byte of it changed: refused, or a range inside the
 * message. */
static void survives_every_change(void **state)
{
    uint8_t data[MESSAGE_MAX];
    size_t size = pack_block(data, 20, 60);
    struct pd_wire_push push;
    struct pd_error error;

    (void)state;
    for (size_t n = 0; n < size; n++)
        refuses("prefix", data, n);
    for (size_t n = 0; n < size; n++)
        for (int bit = 0; bit < 8; bit++) {
            data[n] ^= (uint8_t)(1 << bit);
            if (split_flat(data, size, &push, &error) == 0) {
                assert_true(push.body.offset_bytes + push.body.size_bytes <= size);
                assert_true(push.head.offset_bytes + push.head.size_bytes <= size);
            }
            data[n] ^= (uint8_t)(1 << bit);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_blocks_at_any_cut),   cmocka_unit_test(finds_small_messages),
        cmocka_unit_test(refuses_what_is_malformed), cmocka_unit_test(passes_over_unknown_fields),
        cmocka_unit_test(survives_every_change),
    };

    seed = test_seed(0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
