/* Zero bytes in text of the wire: found in every string field at every depth, named, and nothing
 * else is taken for one. Seeded; the seed is printed. */
#include "server/ingest/strings.h"

#include "proto/packd.pb-c.h"
#include "tests/unit/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#define MESSAGE_MAX 4096

/* A head with spans and tensors, and with zeros in a key. */
static size_t pack_head(uint8_t *out, const char *view, const char *tensor, const char *mask)
{
    uint32_t lengths[] = {3};
    ProtobufCBinaryData key = {.len = 3, .data = (uint8_t *)"\0k\0"};
    Packd__V1__Spans spans = PACKD__V1__SPANS__INIT;
    Packd__V1__LossDecl loss = PACKD__V1__LOSS_DECL__INIT;
    Packd__V1__TensorSpec spec = PACKD__V1__TENSOR_SPEC__INIT;
    Packd__V1__TensorSpec *specs[] = {&spec};
    Packd__V1__BlockHead head = PACKD__V1__BLOCK_HEAD__INIT;
    char *views[] = {(char *)(uintptr_t) "front", (char *)(uintptr_t)view};
    spans.n_views = 2;
    spans.views = views;
    loss.pad_mask = (char *)(uintptr_t)mask;
    spec.name = (char *)(uintptr_t)tensor;
    spec.loss = &loss;
    head.n_lengths = 1;
    head.lengths = lengths;
    head.n_keys = 1;
    head.keys = &key;
    head.spans = &spans;
    head.n_tensors = 1;
    head.tensors = specs;
    assert_true(packd__v1__block_head__get_packed_size(&head) < MESSAGE_MAX);
    return packd__v1__block_head__pack(&head, out);
}

/* Makes the text `mark` of a packed message one with a zero byte in its middle. */
static void cut_text(uint8_t *message, size_t size, const char *mark)
{
    uint8_t *at = memmem(message, size, mark, strlen(mark));
    assert_non_null(at);
    at[strlen(mark) / 2] = 0;
}

static void test_every_field(void **unused)
{
    (void)unused;
    static const struct {
        const char *mark, *named;
    } cases[] = {{"wrist", "Spans.views"},
                 {"reward", "TensorSpec.name"},
                 {"reward_pad", "LossDecl.pad_mask"}};
    const ProtobufCMessageDescriptor *type = &packd__v1__block_head__descriptor;
    uint8_t message[MESSAGE_MAX];
    struct pd_error error;
    size_t size = pack_head(message, "wrist", "reward", "pad_of_it");
    assert_int_equal(pd_strings_check(type, message, size, &error),
                     0); /* zeros of a key are fine */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size = pack_head(message, "wrist", i == 1 ? "reward" : "action", "reward_pad");
        cut_text(message, size, cases[i].mark);
        assert_int_equal(pd_strings_check(type, message, size, &error), PD_EINVAL);
        assert_string_equal(error.reason, "MALFORMED");
        assert_non_null(strstr(error.text, cases[i].named));
        assert_non_null(strstr(error.text, "is zero"));
    }
}

/* Whatever the bytes are, what is cut short ends the look: each read is inside (ASan sees it). */
static void test_any_bytes(void **unused)
{
    (void)unused;
    uint64_t seed = test_seed(0);
    uint8_t message[MESSAGE_MAX];
    size_t size = pack_head(message, "wrist", "reward", "reward_pad");
    for (int i = 0; i < 20000; i++) {
        size_t part = test_below(&seed, (uint32_t)size + 1);
        uint8_t *bytes = malloc(part + (part == 0));
        assert_non_null(bytes);
        memcpy(bytes, message, part);
        for (uint32_t k = test_below(&seed, 4); k > 0 && part > 0; k--)
            bytes[test_below(&seed, (uint32_t)part)] = (uint8_t)test_below(&seed, 256);
        struct pd_error error;
        int rc = pd_strings_check(&packd__v1__block_head__descriptor, bytes, part, &error);
        assert_true(rc == 0 || rc == PD_EINVAL);
        free(bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field),
        cmocka_unit_test(test_any_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
