/* Files, directories and pipes as samples: order, counts, places of errors, digests. */
#include "client/reader.h"

#include "base/check.h"
#include "tests/unit/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

static const char *path_of(const char *name)
{
    static char paths[8][512];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", scratch_dir(), name);
    return path;
}

static void write_file(const char *name, const char *data, size_t size)
{
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}

static void write_gz(const char *name, const char *text)
{
    gzFile file = gzopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(gzputs(file, text), (int)strlen(text));
    assert_int_equal(gzclose(file), Z_OK);
}

/* Samples as "length,length,..."; the result of the last next. */
static int lengths(struct pd_input *input, char *out, size_t size, struct packd_error *error)
{
    struct packd_sample sample;
    int rc;
    out[0] = 0;
    while ((rc = pd_input_next(input, &sample, error)) == 1) {
        size_t at = strlen(out);
        snprintf(out + at, size - at, "%s%zu", at ? "," : "", sample.count);
    }
    return rc;
}

static struct pd_reader_counts expect(const char *name, bool skip_bad, int result,
                                      const char *expected, const char *text)
{
    struct pd_input *input;
    struct packd_error error = {0};
    struct pd_reader_options options = {.skip_bad = skip_bad};
    char got[512];
    assert_int_equal(pd_input_open(path_of(name), &options, &input, &error), 0);
    assert_int_equal(lengths(input, got, sizeof got, &error), result);
    assert_string_equal(got, expected);
    if (text && !strstr(error.text, text))
        fail_msg("\"%s\" lacks \"%s\"", error.text, text);
    struct pd_reader_counts counts = *pd_input_counts(input);
    pd_input_close(input);
    return counts;
}

static void test_lines(void **state)
{
    (void)state;
    write_text("a.jsonl", "{\"text\": \"abc\"}\n\n  \r\n{\"text\": \"\"}\r\n{\"text\": \"de\"}");
    struct pd_reader_counts c = expect("a.jsonl", false, 0, "3,2", NULL);
    assert_int_equal(c.empty_lines, 2);
    assert_int_equal(c.empty_samples, 1);
    assert_int_equal(c.samples, 2);
    assert_int_equal(c.records, 3);
    assert_int_equal(c.bytes, 49);

    write_text("b.jsonl", "{\"text\": \"abc\"}\n{\"text\": 5}\nnonsense\n{\"text\": \"de\"}\n");
    expect("b.jsonl", false, PACKD_EINVAL, "3", "b.jsonl:2: field text is an integer");
    c = expect("b.jsonl", true, 0, "3,2", NULL);
    assert_int_equal(c.bad, 2);
    write_text("empty.jsonl", "");
    expect("empty.jsonl", false, 0, "", NULL);
}

static void test_long_lines_cross_buffers(void **state)
{
    (void)state;
    size_t size = 700000;
    char *text = malloc(2 * size);
    memset(text, 'x', 2 * size);
    memcpy(text, "{\"text\": \"", 10);
    memcpy(text + size - 3, "\"}\n", 3);
    memcpy(text + size, "{\"text\": \"", 10);
    memcpy(text + 2 * size - 3, "\"}\n", 3);
    write_file("long.jsonl", text, 2 * size);
    expect("long.jsonl", false, 0, "699987,699987", NULL);
    free(text);
}

static void test_arrays(void **state)
{
    (void)state;
    write_text("a.json", " [{\"text\": \"abc\"}, {\"text\": \"de\"}]");
    expect("a.json", false, 0, "3,2", NULL);
    write_text("lines.json", "{\"text\": \"abc\"}\n{\"text\": \"de\"}\n");
    expect("lines.json", false, 0, "3,2", NULL);
    write_text("bad.json", "[{\"text\": \"abc\"}, 7, {\"text\": \"de\"}]");
    expect("bad.json", false, PACKD_EINVAL, "3",
           "bad.json: element 1: an integer: expected an object");
    assert_int_equal(expect("bad.json", true, 0, "3,2", NULL).bad, 1);
    write_text("broken.json", "[{\"text\": \"abc\"},\n oops]");
    expect("broken.json", false, PACKD_EINVAL, "", "broken.json:2:");
}

static void test_directory(void **state)
{
    (void)state;
    assert_int_equal(mkdir(path_of("d"), 0777), 0);
    assert_int_equal(mkdir(path_of("d/sub"), 0777), 0);
    write_text("d/b.txt", "four");
    write_text("d/a.txt", "one");
    write_text("d/c.jsonl", "{\"text\": \"x\"}\n{\"text\": \"xy\"}\n");
    write_text("d/sub/z", "twelve bytes");
    write_text("d/sub/package.json", "{\"name\": 1}");
    write_text("d/e.txt", "");
    write_text("d/f.xz", "whatever");
    write_gz("d/h.jsonl.gz", "{\"text\": \"seven b\"}\n");
    write_gz("d/i.gz", "nineteen bytes long");
    write_file("d/g.bin", "a\0b", 3);
    assert_int_equal(symlink("a.txt", path_of("d/link")), 0);
    struct pd_reader_counts c = expect("d", false, 0, "3,4,1,2,7,19,11,12", NULL);
    assert_int_equal(c.skipped_files, 3);
    assert_int_equal(c.empty_samples, 1);

    uint64_t one = 0, two = 0, three = 0;
    struct packd_error error = {0};
    assert_int_equal(pd_input_digest(path_of("d"), &one, &error), 0);
    assert_int_equal(pd_input_digest(path_of("d/"), &two, &error), 0);
    assert_true(one == two);
    assert_int_equal(rename(path_of("d/a.txt"), path_of("d/A.txt")), 0);
    assert_int_equal(pd_input_digest(path_of("d"), &three, &error), 0);
    assert_true(one != three);
    assert_int_equal(pd_input_digest(path_of("d/b.txt"), &one, &error), 0);
    write_text("other", "four");
    assert_int_equal(pd_input_digest(path_of("other"), &two, &error), 0);
    assert_true(one == two);
}

static void test_refused(void **state)
{
    (void)state;
    struct pd_input *input;
    struct packd_error error = {0};
    struct pd_reader_options options = {0};
    assert_int_equal(pd_input_open(path_of("nowhere"), &options, &input, &error), PACKD_EIO);
    assert_non_null(strstr(error.text, "nowhere: No such file"));
    write_file("x.bin", "a\0b", 3);
    expect("x.bin", false, PACKD_EINVAL, "", "binary data");
    write_text("x.zst", "zzz");
    expect("x.zst", false, PACKD_EINVAL, "", "compressed");
    write_gz("cut.gz", "some text that is packed and then cut short");
    assert_int_equal(truncate(path_of("cut.gz"), 30), 0);
    expect("cut.gz", false, PACKD_EIO, "", "cut.gz: the compressed data end too early");
    uint64_t digest;
    assert_int_equal(pd_input_digest(path_of("nowhere"), &digest, &error), PACKD_EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),   cmocka_unit_test(test_long_lines_cross_buffers),
        cmocka_unit_test(test_arrays),  cmocka_unit_test(test_directory),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
