/* safetensors files, written and read.
 *
 * Place in the flow: packctl writes each batch it fetches as one file and reads such files back.
 * Blocking file I/O on the caller's thread; no state outside the objects.
 *
 * Invariant of a read object: tensors lie in file order, from byte 0 of the data to its last byte,
 * without overlap or hole, and each one's size is that of its shape. Numbers are compared as 64
 * bits with every product and sum checked.
 *
 * It knows nothing of batches; metadata is text to it. JSON is jansson's. */
#include "client/safetensors.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define METADATA_KEY "__metadata__"
#define DATA_ALIGN 64
#define PREFIX_BYTES sizeof(uint64_t)

static bool shape_size(const struct pd_tensor *tensor, uint64_t *bytes)
{
    *bytes = pd_dtype_size_bytes(tensor->dtype);
    for (uint32_t i = 0; i < tensor->rank; i++)
        if (__builtin_mul_overflow(*bytes, tensor->shape[i], bytes))
            return false;
    return true;
}

/* ---- write ---- */

static int no_memory(struct pd_error *error)
{
    return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for a safetensors header");
}

static int check_name(const char *name, const json_t *there, struct pd_error *error)
{
    size_t size = name ? strnlen(name, PD_SAFETENSORS_NAME_MAX + 1) : 0;
    if (size == 0 || size > PD_SAFETENSORS_NAME_MAX || strcmp(name, METADATA_KEY) == 0)
        return pd_error_set(error, PD_EINVAL, "BAD_NAME",
                            "a tensor or metadata name of %zu bytes, expected 1 to %d and not %s",
                            size, PD_SAFETENSORS_NAME_MAX, METADATA_KEY);
    if (json_object_get(there, name))
        return pd_error_set(error, PD_EINVAL, "BAD_NAME", "the name '%s' is used twice", name);
    return 0;
}

static int check_tensor(const struct pd_tensor *tensor, struct pd_error *error)
{
    uint64_t bytes;
    if (pd_dtype_size_bytes(tensor->dtype) == 0)
        return pd_error_set(error, PD_EINVAL, "BAD_DTYPE", "tensor '%s' has no dtype of the format",
                            tensor->name);
    if (tensor->rank > PD_SAFETENSORS_RANK_MAX)
        return pd_error_set(error, PD_EINVAL, "BAD_SHAPE",
                            "tensor '%s' has %u dimensions, at most %d are allowed", tensor->name,
                            tensor->rank, PD_SAFETENSORS_RANK_MAX);
    for (uint32_t i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] > INT64_MAX)
            return pd_error_set(error, PD_EINVAL, "BAD_SHAPE",
                                "dimension %u of tensor '%s' is too large", i, tensor->name);
    if (!shape_size(tensor, &bytes) || bytes != tensor->size_bytes)
        return pd_error_set(error, PD_EINVAL, "BAD_SHAPE",
                            "tensor '%s' has %llu bytes, its shape says otherwise", tensor->name,
                            (unsigned long long)tensor->size_bytes);
    return 0;
}

static json_t *tensor_entry(const struct pd_tensor *tensor, uint64_t begin)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; shape && i < tensor->rank; i++)
        if (json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", pd_dtype_name(tensor->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin,
                     (json_int_t)begin + (json_int_t)tensor->size_bytes);
}

static int add_metadata(json_t *header, const struct pd_safetensors_content *content,
                        struct pd_error *error)
{
    if (content->metadata_count == 0)
        return 0;
    json_t *map = json_object();
    if (!map || json_object_set_new(header, METADATA_KEY, map) != 0)
        return no_memory(error);
    for (size_t i = 0; i < content->metadata_count; i++) {
        const struct pd_metadata *entry = &content->metadata[i];
        int rc = check_name(entry->key, map, error);
        if (rc != 0)
            return rc;
        if (json_object_set_new(map, entry->key, json_string(entry->value)) != 0)
            return pd_error_set(error, PD_EINVAL, "BAD_NAME",
                                "metadata entry %zu is not UTF-8, or memory is short", i);
    }
    return 0;
}

/* The places of the tensors in the file: larger elements first, else as given. */
static void order_tensors(const struct pd_safetensors_content *content, size_t *order)
{
    size_t count = 0;
    for (size_t size = 8; size > 0; size /= 2)
        for (size_t i = 0; i < content->tensor_count; i++)
            if (pd_dtype_size_bytes(content->tensors[i].dtype) == size)
                order[count++] = i;
    PD_CHECK(count == content->tensor_count);
}

static int add_tensors(json_t *header, const struct pd_safetensors_content *content,
                       const size_t *order, struct pd_error *error)
{
    uint64_t begin = 0, end;
    for (size_t k = 0; k < content->tensor_count; k++) {
        const struct pd_tensor *tensor = &content->tensors[order[k]];
        int rc = check_name(tensor->name, header, error);
        if (rc != 0)
            return rc;
        if (__builtin_add_overflow(begin, tensor->size_bytes, &end) || end > INT64_MAX)
            return pd_error_set(error, PD_ELIMIT, "TOO_LARGE",
                                "the tensors up to '%s' pass 2^63 bytes", tensor->name);
        if (json_object_set_new(header, tensor->name, tensor_entry(tensor, begin)) != 0)
            return pd_error_set(error, PD_EINVAL, "BAD_NAME",
                                "the name of tensor %zu is not UTF-8, or memory is short",
                                order[k]);
        begin = end;
    }
    return 0;
}

static int check_content(const struct pd_safetensors_content *content, struct pd_error *error)
{
    if (content->tensor_count > PD_SAFETENSORS_TENSORS_MAX ||
        content->metadata_count > PD_SAFETENSORS_TENSORS_MAX)
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY",
                            "%zu tensors and %zu metadata entries, at most %d of each",
                            content->tensor_count, content->metadata_count,
                            PD_SAFETENSORS_TENSORS_MAX);
    for (size_t i = 0; i < content->tensor_count; i++) {
        int rc = check_name(content->tensors[i].name, NULL, error);
        rc = rc != 0 ? rc : check_tensor(&content->tensors[i], error);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static bool write_bytes(FILE *file, const void *data, uint64_t size)
{
    return size == 0 || fwrite(data, 1, size, file) == size;
}

static bool write_parts(FILE *file, const char *text, size_t text_bytes,
                        const struct pd_safetensors_content *content, const size_t *order)
{
    static const char spaces[DATA_ALIGN + 1] =
        "                                                                ";
    uint64_t padding = (DATA_ALIGN - (PREFIX_BYTES + text_bytes) % DATA_ALIGN) % DATA_ALIGN;
    uint64_t header_bytes = text_bytes + padding;
    bool ok = write_bytes(file, &header_bytes, sizeof header_bytes) &&
              write_bytes(file, text, text_bytes) && write_bytes(file, spaces, padding);
    for (size_t k = 0; ok && k < content->tensor_count; k++)
        ok = write_bytes(file, content->tensors[order[k]].data,
                         content->tensors[order[k]].size_bytes);
    return ok;
}

static int write_with(FILE *file, const struct pd_safetensors_content *content, json_t *header,
                      const size_t *order, struct pd_error *error)
{
    int rc = add_metadata(header, content, error);
    rc = rc != 0 ? rc : add_tensors(header, content, order, error);
    if (rc != 0)
        return rc;
    char *text = json_dumps(header, JSON_COMPACT);
    if (!text)
        return no_memory(error);
    size_t text_bytes = strlen(text);
    if (text_bytes > PD_SAFETENSORS_HEADER_MAX - DATA_ALIGN)
        rc = pd_error_set(error, PD_ELIMIT, "TOO_LARGE",
                          "a header of %zu bytes, at most %u are allowed", text_bytes,
                          PD_SAFETENSORS_HEADER_MAX - DATA_ALIGN);
    else if (!write_parts(file, text, text_bytes, content, order))
        rc = pd_error_set(error, PD_EIO, "WRITE_FAILED", "writing failed: %s", strerror(errno));
    free(text);
    return rc;
}

int pd_safetensors_write(FILE *file, const struct pd_safetensors_content *content,
                         struct pd_error *error)
{
    int rc = check_content(content, error);
    if (rc != 0)
        return rc;
    json_t *header = json_object();
    size_t *order = calloc(content->tensor_count + 1, sizeof *order);
    if (header && order) {
        order_tensors(content, order);
        rc = write_with(file, content, header, order, error);
    } else {
        rc = no_memory(error);
    }
    json_decref(header);
    free(order);
    return rc;
}

static int save_failed(struct pd_error *error, const char *what, const char *path)
{
    return pd_error_set(error, PD_EIO, "WRITE_FAILED", "%s %s: %s", what, path, strerror(errno));
}

static int save_to(int fd, const char *temporary, const char *path,
                   const struct pd_safetensors_content *content, struct pd_error *error)
{
    FILE *file = fdopen(fd, "wb");
    if (!file) {
        close(fd);
        return save_failed(error, "opening", temporary);
    }
    int rc = pd_safetensors_write(file, content, error);
    if (fclose(file) != 0 && rc == 0)
        rc = save_failed(error, "writing", temporary);
    if (rc == 0 && rename(temporary, path) != 0)
        rc = save_failed(error, "renaming to", path);
    return rc;
}

/* A new file beside `path`, with the permissions the umask gives; its name goes into `temporary`.
 */
static int open_temporary(const char *path, char *temporary, size_t size)
{
    int fd = -1;
    for (int tries = 0; fd < 0 && tries < 16; tries++) {
        uint32_t random;
        if (getrandom(&random, sizeof random, 0) != sizeof random)
            return -1;
        snprintf(temporary, size, "%s.%08x.tmp", path, random);
        fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST)
            return -1;
    }
    return fd;
}

int pd_safetensors_save(const char *path, const struct pd_safetensors_content *content,
                        struct pd_error *error)
{
    size_t size = strlen(path) + sizeof ".00000000.tmp";
    char *temporary = calloc(1, size);
    if (!temporary)
        return no_memory(error);
    int fd = open_temporary(path, temporary, size);
    int rc = fd < 0 ? save_failed(error, "creating", temporary)
                    : save_to(fd, temporary, path, content, error);
    if (fd >= 0 && rc != 0)
        unlink(temporary);
    free(temporary);
    return rc;
}

/* ---- read ---- */

struct pd_safetensors {
    struct pd_safetensors_content content;
    struct pd_tensor *tensors;
    struct pd_metadata *metadata;
    json_t *header; /* holds the names and texts */
    void *bytes;    /* the file, where load read it; else NULL */
    const uint8_t *data;
    uint64_t data_bytes;
};

static int bad_header(struct pd_error *error, const char *name, const char *expected)
{
    return pd_error_set(error, PD_ECORRUPT, "BAD_HEADER", "the header's '%.64s' is not %s", name,
                        expected);
}

static bool to_u64(const json_t *value, uint64_t *number)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *number = (uint64_t)json_integer_value(value);
    return true;
}

static int read_shape(struct pd_tensor *tensor, const json_t *shape, struct pd_error *error)
{
    if (!json_is_array(shape))
        return bad_header(error, tensor->name, "a tensor with a shape");
    if (json_array_size(shape) > PD_SAFETENSORS_RANK_MAX)
        return pd_error_set(error, PD_ELIMIT, "BAD_SHAPE",
                            "tensor '%.64s' has %zu dimensions, at most %d are read", tensor->name,
                            json_array_size(shape), PD_SAFETENSORS_RANK_MAX);
    tensor->rank = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < tensor->rank; i++)
        if (!to_u64(json_array_get(shape, i), &tensor->shape[i]))
            return pd_error_set(error, PD_ECORRUPT, "BAD_SHAPE",
                                "dimension %u of tensor '%.64s' is no size", i, tensor->name);
    return 0;
}

static int read_offsets(const struct pd_safetensors *file, struct pd_tensor *tensor,
                        const json_t *offsets, struct pd_error *error)
{
    uint64_t begin, end, bytes;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !to_u64(json_array_get(offsets, 0), &begin) || !to_u64(json_array_get(offsets, 1), &end))
        return bad_header(error, tensor->name, "a tensor with two data_offsets");
    if (begin > end || end > file->data_bytes)
        return pd_error_set(
            error, PD_ECORRUPT, "BAD_OFFSETS",
            "tensor '%.64s' claims bytes %llu to %llu of %llu; the file may be cut short",
            tensor->name, (unsigned long long)begin, (unsigned long long)end,
            (unsigned long long)file->data_bytes);
    if (!shape_size(tensor, &bytes) || bytes != end - begin)
        return pd_error_set(error, PD_ECORRUPT, "BAD_SHAPE",
                            "tensor '%.64s' has %llu bytes, its shape says otherwise", tensor->name,
                            (unsigned long long)(end - begin));
    tensor->data = file->data + begin;
    tensor->size_bytes = bytes;
    return 0;
}

static int read_tensor(const struct pd_safetensors *file, struct pd_tensor *tensor,
                       const json_t *entry, struct pd_error *error)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (json_object_size(entry) != 3 || !dtype)
        return bad_header(error, tensor->name, "an object of dtype, shape and data_offsets");
    if (!pd_dtype_parse(dtype, &tensor->dtype))
        return pd_error_set(error, PD_EUNSUPPORTED, "BAD_DTYPE",
                            "tensor '%.64s' has dtype '%.16s', which is not read", tensor->name,
                            dtype);
    int rc = read_shape(tensor, json_object_get(entry, "shape"), error);
    return rc != 0 ? rc : read_offsets(file, tensor, json_object_get(entry, "data_offsets"), error);
}

static int read_metadata(struct pd_safetensors *file, json_t *map, struct pd_error *error)
{
    const char *key;
    json_t *value;
    if (!json_is_object(map))
        return bad_header(error, METADATA_KEY, "an object of strings");
    file->metadata = calloc(json_object_size(map) + 1, sizeof *file->metadata);
    if (!file->metadata)
        return no_memory(error);
    json_object_foreach(map, key, value)
    {
        if (!json_is_string(value))
            return bad_header(error, METADATA_KEY, "an object of strings");
        file->metadata[file->content.metadata_count++] =
            (struct pd_metadata){key, json_string_value(value)};
    }
    return 0;
}

static int read_entries(struct pd_safetensors *file, struct pd_error *error)
{
    const char *name;
    json_t *entry;
    if (json_object_size(file->header) > PD_SAFETENSORS_TENSORS_MAX)
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY", "%zu tensors, at most %d are read",
                            json_object_size(file->header), PD_SAFETENSORS_TENSORS_MAX);
    file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
    if (!file->tensors)
        return no_memory(error);
    json_object_foreach(file->header, name, entry)
    {
        bool metadata = strcmp(name, METADATA_KEY) == 0;
        struct pd_tensor *tensor = &file->tensors[file->content.tensor_count];
        tensor->name = name;
        int rc =
            metadata ? read_metadata(file, entry, error) : read_tensor(file, tensor, entry, error);
        if (rc != 0)
            return rc;
        file->content.tensor_count += !metadata;
    }
    return 0;
}

/* By place; empty tensors before the one that starts where they are. */
static int by_place(const void *a, const void *b)
{
    const struct pd_tensor *x = a, *y = b;
    if (x->data != y->data)
        return (const uint8_t *)x->data < (const uint8_t *)y->data ? -1 : 1;
    if (x->size_bytes != y->size_bytes)
        return x->size_bytes < y->size_bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Every byte of the data belongs to exactly one tensor. */
static int check_cover(struct pd_safetensors *file, struct pd_error *error)
{
    uint64_t at = 0;
    qsort(file->tensors, file->content.tensor_count, sizeof *file->tensors, by_place);
    for (size_t i = 0; i < file->content.tensor_count; i++) {
        const struct pd_tensor *tensor = &file->tensors[i];
        uint64_t begin = (uint64_t)((const uint8_t *)tensor->data - file->data);
        if (begin != at)
            return pd_error_set(error, PD_ECORRUPT, "BAD_OFFSETS",
                                "tensor '%.64s' starts at %llu, the one before it %s %llu",
                                tensor->name, (unsigned long long)begin,
                                begin < at ? "reaches to" : "ends at", (unsigned long long)at);
        at += tensor->size_bytes;
    }
    if (at != file->data_bytes)
        return pd_error_set(error, PD_ECORRUPT, "BAD_OFFSETS", "%llu bytes behind the last tensor",
                            (unsigned long long)(file->data_bytes - at));
    return 0;
}

static int read_header(struct pd_safetensors *file, const uint8_t *data, size_t size,
                       struct pd_error *error)
{
    uint64_t header_bytes;
    json_error_t json_error;
    if (size < PREFIX_BYTES)
        return pd_error_set(error, PD_ECORRUPT, "TRUNCATED", "%zu bytes are no safetensors file",
                            size);
    memcpy(&header_bytes, data, sizeof header_bytes);
    if (header_bytes > size - PREFIX_BYTES)
        return pd_error_set(error, PD_ECORRUPT, "TRUNCATED",
                            "a header of %llu bytes in a file of %zu",
                            (unsigned long long)header_bytes, size);
    if (header_bytes > PD_SAFETENSORS_HEADER_MAX)
        return pd_error_set(error, PD_ELIMIT, "TOO_LARGE",
                            "a header of %llu bytes, at most %u are read",
                            (unsigned long long)header_bytes, PD_SAFETENSORS_HEADER_MAX);
    file->data = data + PREFIX_BYTES + header_bytes;
    file->data_bytes = size - PREFIX_BYTES - header_bytes;
    if (header_bytes == 0 || data[PREFIX_BYTES] != '{')
        return bad_header(error, "start", "a brace");
    file->header = json_loadb((const char *)data + PREFIX_BYTES, header_bytes,
                              JSON_REJECT_DUPLICATES, &json_error);
    if (!file->header && json_error_code(&json_error) == json_error_out_of_memory)
        return no_memory(error);
    if (!file->header)
        return pd_error_set(error, PD_ECORRUPT, "BAD_HEADER",
                            "the header is no JSON: %s at byte %d", json_error.text,
                            json_error.position);
    return 0;
}

int pd_safetensors_parse(const void *data, size_t size, struct pd_safetensors **result,
                         struct pd_error *error)
{
    *result = NULL;
    struct pd_safetensors *file = calloc(1, sizeof *file);
    if (!file)
        return no_memory(error);
    int rc = read_header(file, data, size, error);
    rc = rc != 0 ? rc : read_entries(file, error);
    rc = rc != 0 ? rc : check_cover(file, error);
    if (rc != 0) {
        pd_safetensors_free(file);
        return rc;
    }
    file->content.tensors = file->tensors;
    file->content.metadata = file->metadata;
    *result = file;
    return 0;
}

static int read_failed(struct pd_error *error, const char *path)
{
    int code = errno == ENOENT ? PD_ENOTFOUND : PD_EIO;
    return pd_error_set(error, code, "READ_FAILED", "reading %s: %s", path, strerror(errno));
}

/* The whole of a regular file. */
static int read_all(int fd, const char *path, uint64_t bytes_max, void **bytes, size_t *size,
                    struct pd_error *error)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return read_failed(error, path);
    if (!S_ISREG(st.st_mode))
        return pd_error_set(error, PD_EINVAL, "READ_FAILED", "%s is no regular file", path);
    if ((uint64_t)st.st_size > bytes_max)
        return pd_error_set(error, PD_ELIMIT, "TOO_LARGE", "%s has %lld bytes, the limit is %llu",
                            path, (long long)st.st_size, (unsigned long long)bytes_max);
    size_t wanted = (size_t)st.st_size, got = 0;
    *bytes = aligned_alloc(DATA_ALIGN, (wanted / DATA_ALIGN + 1) * DATA_ALIGN);
    if (!*bytes)
        return no_memory(error);
    while (got < wanted) {
        ssize_t n = read(fd, (char *)*bytes + got, wanted - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return read_failed(error, path);
        if (n == 0)
            break; /* it became shorter meanwhile; the parser says so */
        got += (size_t)n;
    }
    *size = got;
    return 0;
}

int pd_safetensors_load(const char *path, uint64_t bytes_max, struct pd_safetensors **file,
                        struct pd_error *error)
{
    void *bytes = NULL;
    size_t size = 0;
    *file = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return read_failed(error, path);
    int rc = read_all(fd, path, bytes_max, &bytes, &size, error);
    close(fd);
    if (rc == 0) {
        rc = pd_safetensors_parse(bytes, size, file, error);
        if (rc != 0)
            (void)pd_error_prefix(error, rc, "%s", path);
    }
    if (rc != 0)
        free(bytes);
    else
        (*file)->bytes = bytes;
    return rc;
}

const struct pd_safetensors_content *pd_safetensors_content(const struct pd_safetensors *file)
{
    return &file->content;
}

const struct pd_tensor *pd_safetensors_find(const struct pd_safetensors *file, const char *name)
{
    for (size_t i = 0; i < file->content.tensor_count; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

const char *pd_safetensors_metadata(const struct pd_safetensors *file, const char *key)
{
    for (size_t i = 0; i < file->content.metadata_count; i++)
        if (strcmp(file->metadata[i].key, key) == 0)
            return file->metadata[i].value;
    return NULL;
}

void pd_safetensors_free(struct pd_safetensors *file)
{
    if (!file)
        return;
    free(file->tensors);
    free(file->metadata);
    json_decref(file->header);
    free(file->bytes);
    free(file);
}
