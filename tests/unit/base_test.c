/* The base: errors, bytes, names, units, lists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/err.h"
#include "base/list.h"
#include "base/name.h"
#include "base/units.h"

static void test_errors(void **state)
{
    (void)state;
    assert_string_equal(pd_err_name(PD_EINVAL), "PD_EINVAL");
    assert_string_equal(pd_err_name(-12345), "PD_E?");
    struct pd_error error = {0};
    assert_int_equal(pd_error_set(&error, PD_EFULL, "LOG_FULL", "log has %d pages", 7), PD_EFULL);
    assert_string_equal(error.text, "log has 7 pages");
    assert_int_equal(pd_error_prefix(&error, error.code, "feed '%s'", "a"), PD_EFULL);
    assert_string_equal(error.text, "feed 'a': log has 7 pages");
    assert_string_equal(error.reason, "LOG_FULL");
    for (int i = 0; i < 40; i++)
        pd_error_prefix(&error, error.code, "a rather long prefix that repeats");
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
    assert_int_equal(pd_error_set(NULL, PD_EIO, "X", "y"), PD_EIO);
}

static void test_bytes_round_trip(void **state)
{
    (void)state;
    struct pd_buf buf = {0};
    const uint64_t varints[] = {0, 1, 127, 128, 300, UINT32_MAX, UINT64_MAX};
    pd_buf_put_u8(&buf, 200);
    pd_buf_put_u16(&buf, 60000);
    pd_buf_put_u32(&buf, 4000000000u);
    pd_buf_put_u64(&buf, UINT64_MAX - 1);
    pd_buf_put_f32(&buf, 1.5f);
    for (size_t i = 0; i < PD_COUNT_OF(varints); i++)
        pd_buf_put_varint(&buf, varints[i]);
    pd_buf_put_string(&buf, "abc", 3);
    assert_false(buf.failed);

    struct pd_reader reader = pd_reader_of(buf.data, buf.size_bytes);
    assert_int_equal(pd_reader_u8(&reader), 200);
    assert_int_equal(pd_reader_u16(&reader), 60000);
    assert_int_equal(pd_reader_u32(&reader), 4000000000u);
    assert_true(pd_reader_u64(&reader) == UINT64_MAX - 1);
    assert_true(pd_reader_f32(&reader) == 1.5f);
    for (size_t i = 0; i < PD_COUNT_OF(varints); i++)
        assert_true(pd_reader_varint(&reader) == varints[i]);
    size_t size;
    assert_memory_equal(pd_reader_string(&reader, &size), "abc", 3);
    assert_int_equal(size, 3);
    assert_true(pd_reader_done(&reader));
    assert_int_equal(pd_reader_u32(&reader), 0);
    assert_true(reader.failed);

    for (size_t cut = 0; cut < buf.size_bytes; cut++) {
        reader = pd_reader_of(buf.data, cut);
        while (pd_reader_left(&reader) > 0 && !reader.failed)
            pd_reader_string(&reader, &size);
        assert_true(reader.at <= reader.end);
    }
    pd_buf_fini(&buf);
}

/* Room for nothing is room, and nothing can be read to its end. */
static void test_bytes_of_nothing(void **state)
{
    struct pd_buf buf = {0};
    (void)state;
    assert_non_null(pd_buf_extend(&buf, 0));
    assert_false(buf.failed);
    assert_int_equal(buf.size_bytes, 0);
    pd_buf_fini(&buf);
    struct pd_reader reader = pd_reader_of(NULL, 0);
    assert_true(pd_reader_done(&reader));
    assert_int_equal(pd_reader_left(&reader), 0);
    assert_int_equal(pd_reader_u8(&reader), 0);
    assert_true(reader.failed);
}

static void test_varint_too_long(void **state)
{
    (void)state;
    const uint8_t endless[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01};
    struct pd_reader reader = pd_reader_of(endless, sizeof endless);
    assert_true(pd_reader_varint(&reader) == 0);
    assert_true(reader.failed);
    const uint8_t above[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02};
    reader = pd_reader_of(above, sizeof above);
    pd_reader_varint(&reader);
    assert_true(reader.failed);
}

static void test_names(void **state)
{
    (void)state;
    struct pd_error error;
    char longest[PD_NAME_MAX + 2];
    memset(longest, 'a', sizeof longest);
    longest[PD_NAME_MAX] = '\0';
    assert_int_equal(pd_name_check("feed", "Web_2-x", &error), 0);
    assert_int_equal(pd_name_check("feed", longest, &error), 0);
    longest[PD_NAME_MAX] = 'a';
    longest[PD_NAME_MAX + 1] = '\0';
    assert_int_equal(pd_name_check("feed", longest, &error), PD_EINVAL);
    assert_int_equal(pd_name_check("feed", "", &error), PD_EINVAL);
    assert_int_equal(pd_name_check("stream", "a/b", &error), PD_EINVAL);
    assert_string_equal(error.reason, "BAD_NAME");
    assert_non_null(strstr(error.text, "stream"));
    assert_non_null(strstr(error.text, "0x2f"));
}

static void expect_utf8(const char *bytes, const char *expected)
{
    char text[64];
    snprintf(text, sizeof text, "%s", bytes);
    pd_text_make_utf8(text);
    assert_string_equal(text, expected);
}

/* Whatever a client sent and a text repeats, and wherever the buffer ends: the text is UTF-8. */
static void test_texts_are_utf8(void **state)
{
    (void)state;
    expect_utf8("", "");
    expect_utf8("a\u00e9\u20ac\U0001f600z", "a\u00e9\u20ac\U0001f600z");
    expect_utf8("a\xe2\x82", "a");
    expect_utf8("a\xf0\x9f\x98", "a");
    expect_utf8("a\xff\x80z\xc3", "a??z");
    expect_utf8("\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80", "?????????");
    expect_utf8("\xe2(\xa1", "?(?");
    struct pd_error error;
    char euros[3 * PD_TEXT_MAX + 1];
    for (size_t i = 0; i < PD_TEXT_MAX; i++)
        memcpy(euros + 3 * i, "\u20ac", 4);
    for (size_t ahead = 0; ahead < 3; ahead++) {
        (void)pd_error_set(&error, PD_EINVAL, "BAD_NAME", "%.*s%s", (int)ahead, "ab", euros);
        size_t size = strlen(error.text), put = ahead < 2 ? ahead : 2;
        assert_true((size - put) % 3 == 0 && size + 3 >= sizeof error.text - 1);
        (void)pd_error_prefix(&error, PD_EINVAL, "%s", "where");
        assert_true((strlen(error.text) - put - strlen("where: ")) % 3 == 0);
    }
}

static void test_units(void **state)
{
    (void)state;
    struct pd_error error;
    uint64_t value;
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"0", 0},           {"512", 512}, {"1KiB", 1024}, {"16GiB", 16ull << 30},
                 {"4 MiB", 4 << 20}, {"2KB", 2000}};
    for (size_t i = 0; i < PD_COUNT_OF(sizes); i++) {
        assert_int_equal(pd_units_parse_bytes(sizes[i].text, &value, &error), 0);
        assert_true(value == sizes[i].bytes);
    }
    static const char *const bad_sizes[] = {
        "", "-1", "GiB", "1.5GiB", "1gib", "99999999999999999999", "20000000TiB", "5s"};
    for (size_t i = 0; i < PD_COUNT_OF(bad_sizes); i++)
        assert_int_equal(pd_units_parse_bytes(bad_sizes[i], &value, &error), PD_EINVAL);
    assert_int_equal(pd_units_parse_duration("5ms", &value, &error), 0);
    assert_true(value == 5000000);
    assert_int_equal(pd_units_parse_duration("0", &value, &error), 0);
    assert_int_equal(pd_units_parse_duration("5", &value, &error), PD_EINVAL);
    assert_string_equal(error.reason, "BAD_DURATION");
    char text[40];
    assert_string_equal(pd_units_format_bytes(1536, text, sizeof text), "1.5KiB");
    assert_string_equal(pd_units_format_bytes(100, text, sizeof text), "100B");
    assert_string_equal(pd_units_format_count(1234567, text, sizeof text), "1,234,567");
    assert_string_equal(pd_units_format_count(12, text, sizeof text), "12");
}

static void test_list(void **state)
{
    (void)state;
    struct item {
        int value;
        struct pd_link link;
    } items[4];
    struct pd_link list;
    pd_list_init(&list);
    assert_null(pd_list_pop(&list));
    for (int i = 0; i < 4; i++) {
        items[i].value = i;
        pd_list_push(&list, &items[i].link);
    }
    pd_list_remove(&items[2].link);
    int expected[] = {0, 1, 3}, at = 0;
    for (struct pd_link *link; (link = pd_list_pop(&list));)
        assert_int_equal(PD_CONTAINER_OF(link, struct item, link)->value, expected[at++]);
    assert_int_equal(at, 3);
    assert_true(pd_list_empty(&list));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),          cmocka_unit_test(test_bytes_round_trip),
        cmocka_unit_test(test_varint_too_long), cmocka_unit_test(test_names),
        cmocka_unit_test(test_units),           cmocka_unit_test(test_list),
        cmocka_unit_test(test_texts_are_utf8),  cmocka_unit_test(test_bytes_of_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
