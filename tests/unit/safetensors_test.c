/* safetensors: a file written out by hand, round trips, every kind of malformed header, failing
 * writes and failing memory. */
#include "client/safetensors.h"

#include "base/check.h"
#include "tests/unit/scratch.h"

#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const int32_t tokens[6] = {1, 2, 3, 4, 5, 6};
static const uint8_t flags[3] = {7, 8, 9};
static const int64_t ids[2] = {-1, INT64_MIN};
static const struct pd_tensor three[] = {
    {.name = "flags",
     .dtype = PD_DTYPE_U8,
     .rank = 1,
     .shape = {3},
     .data = flags,
     .size_bytes = 3},
    {.name = "tokens",
     .dtype = PD_DTYPE_I32,
     .rank = 2,
     .shape = {2, 3},
     .data = tokens,
     .size_bytes = 24},
    {.name = "ids", .dtype = PD_DTYPE_I64, .rank = 1, .shape = {2}, .data = ids, .size_bytes = 16},
    {.name = "none",
     .dtype = PD_DTYPE_F32,
     .rank = 2,
     .shape = {0, 5},
     .data = NULL,
     .size_bytes = 0},
};
static const struct pd_metadata pairs[] = {{"step", "12"},
                                           {"text", "quote \" newline \n \xc3\xa9"}};
static const struct pd_safetensors_content content = {three, 4, pairs, 2};

static char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", scratch_dir(), name);
    return path;
}

/* The file image of some content. */
static char *image_of(const struct pd_safetensors_content *of, size_t *size)
{
    char *image = NULL;
    struct pd_error error;
    FILE *file = open_memstream(&image, size);
    assert_non_null(file);
    assert_int_equal(pd_safetensors_write(file, of, &error), 0);
    assert_int_equal(fclose(file), 0);
    return image;
}

/* Byte for byte: larger elements first, data at a multiple of 64. */
static void test_written_out(void **state)
{
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"k\":\"v\"},\"b\":{\"dtype\":\"I32\","
                                 "\"shape\":[2],\"data_offsets\":[0,8]},"
                                 "\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[8,9]}}";
    const struct pd_tensor two[] = {
        {.name = "a", .dtype = PD_DTYPE_U8, .rank = 0, .data = flags, .size_bytes = 1},
        {.name = "b",
         .dtype = PD_DTYPE_I32,
         .rank = 1,
         .shape = {2},
         .data = tokens,
         .size_bytes = 8},
    };
    const struct pd_metadata one[] = {{"k", "v"}};
    size_t size, text = strlen(header), data = (8 + text + 63) / 64 * 64;
    char *image = image_of(&(struct pd_safetensors_content){two, 2, one, 1}, &size);
    uint64_t header_bytes;
    memcpy(&header_bytes, image, 8);
    assert_int_equal(header_bytes, data - 8);
    assert_memory_equal(image + 8, header, text);
    for (size_t i = 8 + text; i < data; i++)
        assert_int_equal(image[i], ' ');
    assert_int_equal(size, data + 9);
    assert_memory_equal(image + data, tokens, 8);
    assert_int_equal(image[data + 8], 7);
    free(image);
}

static void expect_content(const struct pd_safetensors *file)
{
    const struct pd_safetensors_content *found = pd_safetensors_content(file);
    assert_int_equal(found->tensor_count, 4);
    assert_int_equal(found->metadata_count, 2);
    for (size_t i = 0; i < 4; i++) {
        const struct pd_tensor *tensor = pd_safetensors_find(file, three[i].name);
        assert_non_null(tensor);
        assert_int_equal(tensor->dtype, three[i].dtype);
        assert_int_equal(tensor->rank, three[i].rank);
        assert_memory_equal(tensor->shape, three[i].shape, sizeof tensor->shape);
        assert_int_equal(tensor->size_bytes, three[i].size_bytes);
        if (tensor->size_bytes > 0)
            assert_memory_equal(tensor->data, three[i].data, tensor->size_bytes);
    }
    assert_string_equal(pd_safetensors_metadata(file, "step"), "12");
    assert_string_equal(pd_safetensors_metadata(file, "text"), pairs[1].value);
    assert_null(pd_safetensors_metadata(file, "tokens"));
    assert_null(pd_safetensors_find(file, "__metadata__"));
}

static void test_round_trip(void **state)
{
    (void)state;
    struct pd_error error;
    struct pd_safetensors *file;
    assert_int_equal(pd_safetensors_save(path_of("a"), &content, &error), 0);
    assert_int_equal(pd_safetensors_load(path_of("a"), 1 << 20, &file, &error), 0);
    expect_content(file);
    for (size_t i = 0; i < 4; i++) {
        const struct pd_tensor *tensor = &pd_safetensors_content(file)->tensors[i];
        assert_int_equal((uintptr_t)tensor->data % pd_dtype_size_bytes(tensor->dtype), 0);
    }
    pd_safetensors_free(file);
    size_t one, two;
    char *a = image_of(&content, &one), *b = image_of(&content, &two);
    assert_int_equal(one, two);
    assert_memory_equal(a, b, one);
    free(a);
    free(b);
    assert_int_equal(unlink(path_of("a")), 0);
}

static void test_empty(void **state)
{
    (void)state;
    size_t size;
    struct pd_safetensors *file;
    char *image = image_of(&(struct pd_safetensors_content){0}, &size);
    assert_int_equal(size, 64);
    assert_int_equal(pd_safetensors_parse(image, size, &file, NULL), 0);
    assert_int_equal(pd_safetensors_content(file)->tensor_count, 0);
    pd_safetensors_free(file);
    pd_safetensors_free(NULL);
    free(image);
}

/* ---- refused on writing ---- */

static void refuse_tensor(struct pd_tensor tensor, const char *reason)
{
    char *image = NULL;
    size_t size;
    struct pd_error error;
    FILE *file = open_memstream(&image, &size);
    assert_non_null(file);
    assert_int_equal(
        pd_safetensors_write(file, &(struct pd_safetensors_content){&tensor, 1, NULL, 0}, &error),
        PD_EINVAL);
    assert_string_equal(error.reason, reason);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(size, 0);
    free(image);
}

static void test_bad_content(void **state)
{
    (void)state;
    char long_name[PD_SAFETENSORS_NAME_MAX + 2];
    memset(long_name, 'n', sizeof long_name);
    long_name[sizeof long_name - 1] = 0;
    struct pd_tensor good = three[1];
    const struct {
        const char *name, *reason;
    } names[] = {{"", "BAD_NAME"},
                 {NULL, "BAD_NAME"},
                 {"__metadata__", "BAD_NAME"},
                 {long_name, "BAD_NAME"},
                 {"\xff", "BAD_NAME"}};
    for (size_t i = 0; i < PD_COUNT_OF(names); i++) {
        struct pd_tensor bad = good;
        bad.name = names[i].name;
        refuse_tensor(bad, names[i].reason);
    }
    struct pd_tensor bad = good;
    bad.dtype = (enum pd_dtype)99;
    refuse_tensor(bad, "BAD_DTYPE");
    bad = good;
    bad.size_bytes = 20;
    refuse_tensor(bad, "BAD_SHAPE");
    bad = good;
    bad.rank = 9;
    refuse_tensor(bad, "BAD_SHAPE");
    bad = good;
    bad.shape[0] = bad.shape[1] = 1ULL << 33;
    refuse_tensor(bad, "BAD_SHAPE");
    bad = good;
    bad.shape[0] = 1ULL << 63; /* no bytes, but no number of the format either */
    bad.shape[1] = bad.size_bytes = 0;
    refuse_tensor(bad, "BAD_SHAPE");
}

static void test_names_twice(void **state)
{
    (void)state;
    const struct pd_tensor twice[] = {three[1], three[1]};
    const struct pd_metadata keys[] = {{"a", "1"}, {"a", "2"}}, ill[] = {{"a", "\xc0\x80"}};
    struct pd_error error;
    char *image = NULL;
    size_t size;
    FILE *file = open_memstream(&image, &size);
    assert_non_null(file);
    assert_int_equal(
        pd_safetensors_write(file, &(struct pd_safetensors_content){twice, 2, NULL, 0}, &error),
        PD_EINVAL);
    assert_int_equal(
        pd_safetensors_write(file, &(struct pd_safetensors_content){three, 1, keys, 2}, &error),
        PD_EINVAL);
    assert_int_equal(
        pd_safetensors_write(file, &(struct pd_safetensors_content){three, 1, ill, 1}, &error),
        PD_EINVAL);
    assert_string_equal(error.reason, "BAD_NAME");
    assert_int_equal(fclose(file), 0);
    free(image);
}

/* ---- refused on reading ---- */

static int parse_text(const char *header, size_t data_bytes, struct pd_error *error)
{
    uint64_t header_bytes = strlen(header);
    size_t size = 8 + header_bytes + data_bytes;
    char *image = calloc(1, size); /* exact, so that a read behind it shows under ASan */
    assert_non_null(image);
    memcpy(image, &header_bytes, 8);
    memcpy(image + 8, header, header_bytes);
    struct pd_safetensors *file;
    int rc = pd_safetensors_parse(image, size, &file, error);
    assert_int_equal(rc == 0, file != NULL);
    pd_safetensors_free(file);
    free(image);
    return rc;
}

#define T(dtype, shape, offsets) \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_malformed(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        int code;
        const char *reason;
    } cases[] = {
        {"{\"a\":" T("I32", "[2]", "[0,8]") "}", 8, 0, NULL},
        {"{\"a\":" T("I32", "[2]", "[4,12]") ",\"b\":" T("F32", "[]", "[0,4]") "}", 12, 0, NULL},
        {"{\"a\":" T("I32", "[2]", "[0,8]") ",\"e\":" T("U8", "[0]", "[8,8]") "}   ", 8, 0, NULL},
        {"", 0, PD_ECORRUPT, "BAD_HEADER"},
        {"[]", 0, PD_ECORRUPT, "BAD_HEADER"},
        {" {}", 0, PD_ECORRUPT, "BAD_HEADER"},
        {"{", 0, PD_ECORRUPT, "BAD_HEADER"},
        {"{} x", 0, PD_ECORRUPT, "BAD_HEADER"},
        {"{\"a\":1}", 0, PD_ECORRUPT, "BAD_HEADER"},
        {"{\"a\":{}}", 0, PD_ECORRUPT, "BAD_HEADER"},
        {"{\"\\u0000\":1}", 0, PD_ECORRUPT, "BAD_HEADER"},
        {"{\"a\":" T("I32", "[2]", "[0,8]") ",\"a\":" T("I32", "[2]", "[0,8]") "}", 8, PD_ECORRUPT,
         "BAD_HEADER"},
        {"{\"a\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8, PD_ECORRUPT,
         "BAD_HEADER"},
        {"{\"a\":{\"dtype\":\"I32\",\"shape\":[2],\"offsets\":[0,8]}}", 8, PD_ECORRUPT,
         "BAD_HEADER"},
        {"{\"a\":{\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, PD_ECORRUPT,
         "BAD_HEADER"},
        {"{\"a\":" T("I32", "2", "[0,8]") "}", 8, PD_ECORRUPT, "BAD_HEADER"},
        {"{\"a\":" T("I32", "[2]", "[0,8,9]") "}", 8, PD_ECORRUPT, "BAD_HEADER"},
        {"{\"a\":" T("I32", "[2]", "[0,8.0]") "}", 8, PD_ECORRUPT, "BAD_HEADER"},
        {"{\"a\":" T("I32", "[2]", "[-8,0]") "}", 8, PD_ECORRUPT, "BAD_HEADER"},
        {"{\"a\":" T("I32", "[2]", "[0,99999999999999999999]") "}", 8, PD_ECORRUPT, "BAD_HEADER"},
        {"{\"a\":" T("F8_E4M3", "[1]", "[0,8]") "}", 8, PD_EUNSUPPORTED, "BAD_DTYPE"},
        {"{\"a\":" T("I32", "[-2]", "[0,8]") "}", 8, PD_ECORRUPT, "BAD_SHAPE"},
        {"{\"a\":" T("I32", "[2.0]", "[0,8]") "}", 8, PD_ECORRUPT, "BAD_SHAPE"},
        {"{\"a\":" T("I32", "[[2]]", "[0,8]") "}", 8, PD_ECORRUPT, "BAD_SHAPE"},
        {"{\"a\":" T("I32", "[3]", "[0,8]") "}", 8, PD_ECORRUPT, "BAD_SHAPE"},
        {"{\"a\":" T("U8", "[4294967296,4294967296]", "[0,0]") "}", 0, PD_ECORRUPT, "BAD_SHAPE"},
        {"{\"a\":" T("I32", "[9223372036854775807,2]", "[0,8]") "}", 8, PD_ECORRUPT, "BAD_SHAPE"},
        {"{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, PD_ELIMIT, "BAD_SHAPE"},
        {"{\"a\":" T("I32", "[2]", "[0,8]") "}", 7, PD_ECORRUPT, "BAD_OFFSETS"},
        {"{\"a\":" T("I32", "[2]", "[0,8]") "}", 9, PD_ECORRUPT, "BAD_OFFSETS"},
        {"{\"a\":" T("I32", "[2]", "[8,0]") "}", 8, PD_ECORRUPT, "BAD_OFFSETS"},
        {"{\"a\":" T("I32", "[2]", "[9223372036854775800,9223372036854775807]") "}", 8, PD_ECORRUPT,
         "BAD_OFFSETS"},
        {"{\"a\":" T("I32", "[2]", "[0,8]") ",\"b\":" T("I32", "[2]", "[4,12]") "}", 12,
         PD_ECORRUPT, "BAD_OFFSETS"},
        {"{\"a\":" T("I32", "[2]", "[0,8]") ",\"b\":" T("I32", "[2]", "[0,8]") "}", 8, PD_ECORRUPT,
         "BAD_OFFSETS"},
        {"{\"a\":" T("I32", "[2]", "[0,8]") ",\"b\":" T("I32", "[1]", "[12,16]") "}", 16,
         PD_ECORRUPT, "BAD_OFFSETS"},
        {"{\"__metadata__\":{\"a\":1}}", 0, PD_ECORRUPT, "BAD_HEADER"},
        {"{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, PD_ECORRUPT, "BAD_HEADER"},
        {"{\"__metadata__\":\"a\"}", 0, PD_ECORRUPT, "BAD_HEADER"},
    };
    for (size_t i = 0; i < PD_COUNT_OF(cases); i++) {
        struct pd_error error = {0};
        int rc = parse_text(cases[i].header, cases[i].data_bytes, &error);
        if (rc != cases[i].code || (rc != 0 && strcmp(error.reason, cases[i].reason) != 0))
            fail_msg("%s: %s %s: %s", cases[i].header, pd_err_name(rc), error.reason, error.text);
    }
}

static void test_deep_nesting(void **state)
{
    (void)state;
    static char header[400001];
    memset(header, '[', sizeof header - 1);
    memcpy(header, "{\"a\":", 5);
    struct pd_error error;
    assert_int_equal(parse_text(header, 0, &error), PD_ECORRUPT);
}

/* Every prefix of a good file is refused. */
static void test_cut_short(void **state)
{
    (void)state;
    size_t size;
    char *image = image_of(&content, &size);
    for (size_t cut = 0; cut < size; cut++) {
        char *part = malloc(cut > 0 ? cut : 1);
        assert_non_null(part);
        memcpy(part, image, cut);
        struct pd_safetensors *file;
        struct pd_error error;
        assert_int_equal(pd_safetensors_parse(part, cut, &file, &error), PD_ECORRUPT);
        free(part);
    }
    free(image);
}

static void test_header_length(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {1, 1000, UINT64_MAX, UINT64_MAX - 8, 1ULL << 63};
    for (size_t i = 0; i < PD_COUNT_OF(lengths); i++) {
        struct pd_safetensors *file;
        struct pd_error error;
        assert_int_equal(pd_safetensors_parse(&lengths[i], 8, &file, &error), PD_ECORRUPT);
        assert_string_equal(error.reason, "TRUNCATED");
    }
}

/* ---- files ---- */

static void test_load_errors(void **state)
{
    (void)state;
    struct pd_error error;
    struct pd_safetensors *file;
    assert_int_equal(pd_safetensors_load(path_of("absent"), 100, &file, &error), PD_ENOTFOUND);
    assert_int_equal(pd_safetensors_load(scratch_dir(), 100, &file, &error), PD_EINVAL);
    assert_int_equal(pd_safetensors_save(path_of("a"), &content, &error), 0);
    assert_int_equal(pd_safetensors_load(path_of("a"), 100, &file, &error), PD_ELIMIT);
    assert_int_equal(truncate(path_of("a"), 100), 0);
    assert_int_equal(pd_safetensors_load(path_of("a"), 100, &file, &error), PD_ECORRUPT);
    assert_non_null(strstr(error.text, path_of("a")));
    assert_int_equal(unlink(path_of("a")), 0);
}

static size_t files_in_directory(void)
{
    size_t count = 0;
    DIR *dir = opendir(scratch_dir());
    assert_non_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* A save that fails leaves what was there, and nothing else. */
static void test_save_fails_whole(void **state)
{
    (void)state;
    struct pd_error error;
    struct pd_safetensors *file;
    struct pd_tensor bad = three[1];
    bad.size_bytes = 1;
    assert_int_equal(pd_safetensors_save(path_of("a"), &content, &error), 0);
    assert_int_equal(pd_safetensors_save(
                         path_of("a"), &(struct pd_safetensors_content){&bad, 1, NULL, 0}, &error),
                     PD_EINVAL);
    assert_int_equal(files_in_directory(), 1);
    assert_int_equal(pd_safetensors_load(path_of("a"), 1 << 20, &file, &error), 0);
    expect_content(file);
    pd_safetensors_free(file);
    assert_int_equal(mkdir(path_of("b"), 0700), 0);
    assert_int_equal(pd_safetensors_save(path_of("b"), &content, &error),
                     PD_EIO); /* a directory is in the way */
    assert_string_equal(error.reason, "WRITE_FAILED");
    assert_int_equal(files_in_directory(), 2);
    assert_int_equal(pd_safetensors_save(path_of("no/such"), &content, &error), PD_EIO);
    assert_int_equal(rmdir(path_of("b")), 0);
    assert_int_equal(unlink(path_of("a")), 0);
}

static void test_full_disk(void **state)
{
    (void)state;
    struct pd_error error;
    FILE *file = fopen("/dev/full", "wb");
    if (!file)
        skip();
    assert_int_equal(setvbuf(file, NULL, _IONBF, 0), 0);
    assert_int_equal(pd_safetensors_write(file, &content, &error), PD_EIO);
    assert_string_equal(error.reason, "WRITE_FAILED");
    fclose(file);
}

/* ---- failing memory ---- */

static long allocations_left;

static void *failing_malloc(size_t size)
{
    return allocations_left-- > 0 ? malloc(size) : NULL;
}

/* jansson's nth allocation fails, for every n: an error, never a crash or a leak, and then it
 * works. */
static void test_nth_allocation_fails(void **state)
{
    (void)state;
    struct pd_error error;
    size_t size;
    char *image = image_of(&content, &size);
    json_set_alloc_funcs(failing_malloc, free);
    long n = 0;
    for (int rc = -1; rc != 0; n++) {
        char *out = NULL;
        size_t out_size;
        FILE *file = open_memstream(&out, &out_size);
        allocations_left = n;
        rc = pd_safetensors_write(file, &content, &error);
        assert_true(rc == 0 || rc == PD_ENOMEM || rc == PD_EINVAL);
        assert_int_equal(fclose(file), 0);
        if (rc == 0)
            assert_memory_equal(out, image, size);
        free(out);
    }
    assert_true(n > 20);
    n = 0;
    for (int rc = -1; rc != 0; n++) {
        struct pd_safetensors *file;
        allocations_left = n;
        rc = pd_safetensors_parse(image, size, &file, &error);
        assert_true(rc == 0 || rc == PD_ENOMEM || rc == PD_ECORRUPT);
        pd_safetensors_free(file);
    }
    assert_true(n > 20);
    json_set_alloc_funcs(malloc, free);
    free(image);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_written_out),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_bad_content),
        cmocka_unit_test(test_names_twice),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_deep_nesting),
        cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_header_length),
        cmocka_unit_test(test_load_errors),
        cmocka_unit_test(test_save_fails_whole),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_nth_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
