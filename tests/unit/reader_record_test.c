/* Records: which fields, what is refused, and with which words. */
#include "client/reader_record.h"

#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int parse(struct pd_record *record, const char *text, struct packd_sample *sample,
                 struct packd_error *error)
{
    return pd_record_parse(record, text, strlen(text), sample, error);
}

/* The sample's tokens as text. */
static const char *as_text(const struct packd_sample *sample)
{
    static char text[256];
    for (size_t i = 0; i < sample->count; i++)
        text[i] = (char)sample->tokens[i];
    text[sample->count] = 0;
    return text;
}

static void expect_text(const char *field, const char *json, const char *text, const char *shown)
{
    struct pd_record record;
    struct packd_sample sample;
    struct packd_error error = {0};
    assert_int_equal(pd_record_init(&record, field, &error), 0);
    if (parse(&record, json, &sample, &error) != 1)
        fail_msg("%s: %s", json, error.text);
    assert_string_equal(as_text(&sample), text);
    assert_string_equal(record.shown, shown);
    pd_record_fini(&record);
}

static void test_fields(void **state)
{
    (void)state;
    expect_text(NULL, "{\"id\": \"x\", \"text\": \"hello\"}", "hello", "text");
    expect_text(NULL, "{\"id\": \"x\", \"content\": \"hello\"}", "hello", "content");
    expect_text(NULL, "{\"q\": \"a\", \"n\": 3, \"r\": \"b\", \"key\": \"k\"}", "a\nb", "q + r");
    expect_text("r,q", "{\"q\": \"a\", \"r\": \"b\"}", "b\na", "r + q");
    expect_text("q", "{\"q\": \"a\", \"text\": \"b\"}", "a", "q");
    expect_text(NULL, "{\"q\": \"a\", \"r\": \"\"}", "a\n", "q + r");
    expect_text("ids", "{\"ids\": [65, 66], \"text\": \"b\"}", "AB", "ids");
    expect_text(NULL, "{\"input_ids\": [65]}", "A", "input_ids");
    expect_text(NULL, "{\"text\": \"\\u00e4\"}", "\xc3\xa4", "text");
}

static void test_spans(void **state)
{
    (void)state;
    struct pd_record record = {0};
    struct packd_sample sample;
    struct packd_error error = {0};
    assert_int_equal(parse(&record,
                           "{\"tokens\": [1, 2, 3], \"spans\": [{\"offset\": 0, \"length\": 1}, "
                           "{\"view\": \"top\", \"offset\": 1, \"length\": 2, \"grid_t\": 1, "
                           "\"grid_h\": 2, \"grid_w\": 4}]}",
                           &sample, &error),
                     1);
    assert_int_equal(sample.span_count, 2);
    assert_null(sample.spans[0].view);
    assert_string_equal(sample.spans[1].view, "top");
    assert_int_equal(sample.spans[1].offset, 1);
    assert_int_equal(sample.spans[1].grid_w, 4);
    static const char *const wrong[] = {
        "{\"tokens\": [1], \"spans\": 3}", "{\"tokens\": [1], \"spans\": [3]}",
        "{\"tokens\": [1], \"spans\": [{\"offset\": 0}]}",
        "{\"tokens\": [1], \"spans\": [{\"offset\": -1, \"length\": 1}]}",
        "{\"tokens\": [1], \"spans\": [{\"view\": 1, \"offset\": 0, \"length\": 1}]}"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(parse(&record, wrong[i], &sample, &error), PACKD_EINVAL);
    pd_record_fini(&record);
}

static void test_first_record_decides(void **state)
{
    (void)state;
    struct pd_record record;
    struct packd_sample sample;
    struct packd_error error = {0};
    assert_int_equal(pd_record_init(&record, NULL, &error), 0);
    assert_int_equal(parse(&record, "{\"q\": \"a\", \"r\": \"b\"}", &sample, &error), 1);
    assert_int_equal(parse(&record, "{\"r\": \"c\", \"z\": \"d\"}", &sample, &error), 1);
    assert_string_equal(as_text(&sample), "c");
    assert_int_equal(parse(&record, "{\"z\": \"d\"}", &sample, &error), PACKD_EINVAL);
    assert_string_equal(error.reason, "BAD_RECORD");
    assert_non_null(strstr(error.text, "q + r"));
    assert_int_equal(parse(&record, "{\"q\": \"\"}", &sample, &error), 0);
    pd_record_fini(&record);
    assert_int_equal(pd_record_init(&record, NULL, &error), 0);
    assert_int_equal(parse(&record, "{\"tokens\": [1]}", &sample, &error), 1);
    assert_int_equal(parse(&record, "{\"text\": \"a\"}", &sample, &error), PACKD_EINVAL);
    assert_non_null(strstr(error.text, "no field tokens; the record has text (the first record"));
    pd_record_fini(&record);
}

static void test_columns(void **state)
{
    (void)state;
    struct pd_record record;
    struct packd_sample s;
    struct packd_error error = {0};
    assert_int_equal(pd_record_init(&record, NULL, &error), 0);
    assert_int_equal(parse(&record,
                           "{\"tokens\": [1, 2, 2147483647], \"labels\": [-100, 2, 3], "
                           "\"loss_mask\": [0, true, 1], \"weight\": 2.5, \"key\": \"k\\u0000z\", "
                           "\"group\": 12, \"version\": 7}",
                           &s, &error),
                     1);
    assert_int_equal(s.tokens[2], INT32_MAX);
    assert_int_equal(s.labels[0], -100);
    assert_memory_equal(s.loss_mask, ((uint8_t[]){0, 1, 1}), 3);
    assert_true(s.has_weight && s.weight == 2.5f && s.version == 7);
    assert_int_equal(s.key.size, 3);
    assert_memory_equal(s.group.data, "12", 2);
    assert_int_equal(parse(&record, "{\"tokens\": [9], \"labels\": null}", &s, &error), 1);
    assert_true(!s.labels && !s.loss_mask && !s.has_weight && s.key.size == 0 && s.version == 0);
    pd_record_fini(&record);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json, *text;
    } cases[] = {
        {"", "not a JSON object"},
        {"{\"tokens\": [1]", "not a JSON object"},
        {"[1]", "an array: expected an object"},
        {"{}", "neither tokens nor input_ids"},
        {"{\"n\": 1}", "neither tokens nor input_ids"},
        {"{\"tokens\": [1.5]}", "tokens[0] is a number: expected an integer"},
        {"{\"tokens\": [1, null]}", "tokens[1] is null"},
        {"{\"tokens\": [-1]}", "tokens[0] is -1: expected 0 to 2147483647"},
        {"{\"tokens\": [2147483648]}", "tokens[0] is 2147483648"},
        {"{\"tokens\": [1], \"labels\": [-1]}",
         "labels[0] is -1: expected 0 to 2147483647, or -100"},
        {"{\"tokens\": [1], \"labels\": [1, 2]}", "of 2 entries: expected an array of 1"},
        {"{\"tokens\": [1], \"labels\": \"x\"}", "labels is a string"},
        {"{\"tokens\": [1], \"loss_mask\": [2]}", "loss_mask[0] is an integer: expected 0, 1"},
        {"{\"tokens\": [1], \"loss_mask\": []}", "loss_mask is an array of 0 entries"},
        {"{\"tokens\": [1], \"weight\": -1}", "weight is an integer (-1)"},
        {"{\"tokens\": [1], \"weight\": 1e300}", "weight is a number"},
        {"{\"tokens\": [1], \"weight\": \"1\"}", "weight is a string"},
        {"{\"tokens\": [1], \"key\": []}", "key is an array"},
        {"{\"tokens\": [1], \"version\": -1}", "version is an integer"},
    };
    for (size_t i = 0; i < PD_COUNT_OF(cases); i++) {
        struct pd_record record;
        struct packd_sample sample;
        struct packd_error error = {0};
        assert_int_equal(pd_record_init(&record, NULL, &error), 0);
        assert_int_equal(parse(&record, cases[i].json, &sample, &error), PACKD_EINVAL);
        assert_string_equal(error.reason, "BAD_RECORD");
        if (!strstr(error.text, cases[i].text))
            fail_msg("%s: \"%s\" lacks \"%s\"", cases[i].json, error.text, cases[i].text);
        pd_record_fini(&record);
    }
    struct pd_record record;
    struct packd_error error = {0};
    const char *const fields[] = {"", ",", "a,", "a,,b"};
    for (size_t i = 0; i < PD_COUNT_OF(fields); i++)
        assert_int_equal(pd_record_init(&record, fields[i], &error), PACKD_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_first_record_decides),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
