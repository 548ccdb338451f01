/* Walking over the input and turning it into samples.
 *
 * fts lists files in order of their names, so a directory always gives the same samples in the same
 * order: that makes the digest mean something and lets a broken push go on where it stopped. A bad
 * record stops the reader with its place, or is counted. Does not talk to a server. */
#include "client/reader.h"

#include "base/check.h"
#include "client/lib_error.h"
#include "client/reader_media.h"
#include "client/reader_record.h"
#include "client/reader_source.h"

#include <errno.h>
#include <fts.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <xxhash.h>

#define CHUNK_BYTES (256 * 1024)
#define TEXT_MAX_BYTES PD_READER_LINE_MAX_BYTES

enum kind { KIND_NONE, KIND_LINES, KIND_ARRAY, KIND_TEXT, KIND_MEDIA };

struct pd_input {
    struct pd_record record;
    bool skip_bad;
    struct pd_reader_counts counts;
    char last_bad[640];

    FTS *walk;         /* NULL with stdin */
    bool in_directory; /* the root is one */
    char *path;        /* of the file at hand; NULL: none */
    enum kind kind;

    struct pd_source source; /* KIND_LINES; else open only while a file is read */
    uint64_t line;
    char *chunk; /* CHUNK_BYTES */
    size_t chunk_at, chunk_end;
    struct pd_buf text; /* a line across chunks, or a file */

    struct pd_media_file *media; /* KIND_MEDIA: of the sample last handed out */
    json_t *array;               /* KIND_ARRAY */
    size_t element;
};

/* ---- files in order -------------------------------------------------------------------------- */

static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

static FTS *walk_open(const char *path, bool *is_directory, struct packd_error *error)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        pd_client_error(error, PACKD_EIO, "INPUT", "%s: %s", path, strerror(errno));
        return NULL;
    }
    *is_directory = S_ISDIR(info.st_mode);
    if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode)) {
        pd_client_error(error, PACKD_EIO, "INPUT", "%s: neither a file nor a directory", path);
        return NULL;
    }
    char *const roots[] = {(char *)(uintptr_t)path, NULL};
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name);
    if (!walk)
        pd_client_error(error, PACKD_EIO, "INPUT", "%s: %s", path, strerror(errno));
    return walk;
}

/* The next regular file: 1 and *entry, 0 at the end, PACKD_EIO. */
static int walk_next(FTS *walk, uint64_t *skipped, FTSENT **entry, struct packd_error *error)
{
    for (;;) {
        errno = 0;
        FTSENT *at = fts_read(walk);
        if (!at && errno != 0)
            return pd_client_error(error, PACKD_EIO, "INPUT", "reading directories: %s",
                                   strerror(errno));
        if (!at)
            return 0;
        if (at->fts_info == FTS_F) {
            *entry = at;
            return 1;
        }
        if (at->fts_info == FTS_ERR || at->fts_info == FTS_DNR || at->fts_info == FTS_NS)
            return pd_client_error(error, PACKD_EIO, "INPUT", "%s: %s", at->fts_path,
                                   strerror(at->fts_errno));
        if (at->fts_info != FTS_D && at->fts_info != FTS_DP && skipped)
            ++*skipped;
    }
}

static bool ends_with(const char *text, const char *end)
{
    size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

/* Of a .gz file, what is in it. */
static bool named(const char *path, const char *end)
{
    char gz[16];
    snprintf(gz, sizeof gz, "%s.gz", end);
    return ends_with(path, end) || ends_with(path, gz);
}

static bool is_compressed(const char *path)
{
    static const char *const ends[] = {".xz", ".bz2", ".zst", ".zip"};
    for (size_t i = 0; i < PD_COUNT_OF(ends); i++)
        if (ends_with(path, ends[i]))
            return true;
    return false;
}

/* Bytes of a UTF-8 byte order mark in front: 3, or 0. */
static size_t mark_bytes(const struct pd_buf *text)
{
    return text->size_bytes >= 3 && memcmp(text->data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Bytes at chunk_at: 1, 0 at the end, or negative. */
static int chunk_fill(struct pd_input *input, struct packd_error *error)
{
    if (input->chunk_at < input->chunk_end)
        return 1;
    ssize_t got = pd_source_read(&input->source, input->chunk, CHUNK_BYTES, error);
    input->chunk_at = 0;
    input->chunk_end = got > 0 ? (size_t)got : 0;
    input->counts.bytes += input->chunk_end;
    return got > 0 ? 1 : (int)got;
}

/* The next line into input->text, without its end: 1, 0 at the end, or negative. */
static int line_next(struct pd_input *input, struct packd_error *error)
{
    pd_buf_clear(&input->text);
    bool any = false;
    int rc;
    while ((rc = chunk_fill(input, error)) == 1) {
        any = true;
        char *from = input->chunk + input->chunk_at;
        size_t left = input->chunk_end - input->chunk_at;
        char *newline = memchr(from, '\n', left);
        size_t bytes = newline ? (size_t)(newline - from) : left;
        if (input->text.size_bytes + bytes > PD_READER_LINE_MAX_BYTES)
            return pd_client_error(error, PACKD_ELIMIT, "BAD_RECORD",
                                   "%s:%" PRIu64 ": a line of more than 1 GiB", input->path,
                                   input->line + 1);
        pd_buf_put(&input->text, from, bytes);
        input->chunk_at += bytes + (newline != NULL);
        if (newline)
            break;
    }
    if (rc < 0)
        return rc;
    if (input->text.failed)
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory for a line");
    if (input->line == 0 && mark_bytes(&input->text) > 0) {
        input->text.size_bytes -= 3;
        memmove(input->text.data, input->text.data + 3, input->text.size_bytes);
    }
    input->line += any;
    return any;
}

static bool is_blank(const struct pd_buf *text)
{
    for (size_t i = 0; i < text->size_bytes; i++)
        if (!strchr(" \t\r", text->data[i]) || text->data[i] == 0)
            return false;
    return true;
}

/* ---- opening one file ------------------------------------------------------------------------ */

static void file_close(struct pd_input *input)
{
    pd_source_close(&input->source);
    json_decref(input->array);
    pd_media_file_free(input->media);
    free(input->path);
    input->media = NULL;
    input->array = NULL;
    input->path = NULL;
    input->kind = KIND_NONE;
    input->line = input->element = input->chunk_at = input->chunk_end = 0;
}

static int read_whole(struct pd_input *input, struct packd_error *error)
{
    ssize_t got = 0;
    pd_buf_clear(&input->text);
    int rc = pd_source_open(&input->source, input->path, error);
    while (rc == 0 &&
           (got = pd_source_read(&input->source, input->chunk, CHUNK_BYTES, error)) > 0) {
        pd_buf_put(&input->text, input->chunk, (size_t)got);
        if (input->text.size_bytes > TEXT_MAX_BYTES)
            rc = pd_client_error(error, PACKD_ELIMIT, "BAD_RECORD", "%s: larger than 1 GiB",
                                 input->path);
    }
    pd_source_close(&input->source);
    if (rc == 0 && got < 0)
        rc = (int)got;
    if (rc == 0 && input->text.failed)
        rc = pd_client_error(error, PACKD_ENOMEM, "MEMORY", "%s: no memory for the file",
                             input->path);
    input->counts.bytes += input->text.size_bytes;
    return rc;
}

static bool has_nul(const struct pd_buf *text)
{
    size_t bytes = text->size_bytes < 4096 ? text->size_bytes : 4096;
    return bytes > 0 && memchr(text->data, 0, bytes);
}

/* A .json file: an array of records, JSON lines, or (in a directory) just text. */
static int open_json(struct pd_input *input, struct packd_error *error)
{
    json_error_t why;
    int rc = read_whole(input, error);
    if (rc != 0)
        return rc;
    size_t mark = mark_bytes(&input->text), skip = mark;
    while (skip < input->text.size_bytes && strchr(" \t\r\n", input->text.data[skip]) &&
           input->text.data[skip])
        skip++;
    bool array = skip < input->text.size_bytes && input->text.data[skip] == '[';
    if (array)
        input->array = json_loadb((const char *)input->text.data + mark,
                                  input->text.size_bytes - mark, JSON_ALLOW_NUL, &why);
    input->kind = KIND_ARRAY;
    if (input->array && (!input->in_directory || json_is_object(json_array_get(input->array, 0))))
        return 0;
    json_decref(input->array);
    input->array = NULL;
    if (input->in_directory) {
        input->kind = KIND_TEXT;
        return 0;
    }
    if (array)
        return pd_client_error(error, PACKD_EINVAL, "BAD_RECORD",
                               "%s:%d: %s; expected an array of objects", input->path, why.line,
                               why.text);
    input->kind = KIND_LINES;
    input->counts.bytes -= input->text.size_bytes;
    return pd_source_open(&input->source, input->path, error);
}

static int open_text(struct pd_input *input, struct packd_error *error)
{
    input->kind = KIND_TEXT;
    int rc = read_whole(input, error);
    if (rc != 0 || !has_nul(&input->text))
        return rc;
    if (!input->in_directory)
        return pd_client_error(error, PACKD_EINVAL, "BAD_RECORD",
                               "%s: binary data; expected text, .jsonl or .json", input->path);
    input->counts.skipped_files++;
    file_close(input);
    return 0;
}

static int open_file(struct pd_input *input, const char *path, struct packd_error *error)
{
    if (is_compressed(path) && !input->in_directory)
        return pd_client_error(error, PACKD_EINVAL, "BAD_RECORD",
                               "%s: compressed; unpack it, or pipe it to `push -`", path);
    if (is_compressed(path)) {
        input->counts.skipped_files++;
        return 0;
    }
    input->path = strdup(path);
    if (!input->path)
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory for a path");
    input->counts.files++;
    if (named(path, ".json"))
        return open_json(input, error);
    if (named(path, ".safetensors")) {
        input->kind = KIND_MEDIA;
        return 0;
    }
    if (!named(path, ".jsonl") && !named(path, ".ndjson"))
        return open_text(input, error);
    input->kind = KIND_LINES;
    return pd_source_open(&input->source, input->path, error);
}

/* ---- samples --------------------------------------------------------------------------------- */

/* A verdict on one record: 1 sample, 0 go on, or negative. */
static int settle(struct pd_input *input, int rc, struct packd_error *why,
                  struct packd_error *error)
{
    input->counts.records++;
    if (rc == 1) {
        input->counts.samples++;
        return 1;
    }
    if (rc == 0) {
        input->counts.empty_samples++;
        return 0;
    }
    if (input->kind == KIND_ARRAY)
        pd_client_error_prefix(why, "%s: element %zu", input->path, input->element - 1);
    else if (input->kind == KIND_MEDIA)
        pd_client_error_prefix(why, "%s", input->path);
    else
        pd_client_error_prefix(why, "%s:%" PRIu64, input->path, input->line);
    if (rc == PACKD_EINVAL && input->skip_bad) {
        input->counts.bad++;
        memcpy(input->last_bad, why->text, sizeof input->last_bad);
        return 0;
    }
    if (error)
        *error = *why;
    return rc;
}

static int next_line(struct pd_input *input, struct packd_sample *sample, struct packd_error *error)
{
    struct packd_error why = {0};
    int rc;
    while ((rc = line_next(input, error)) == 1) {
        if (is_blank(&input->text)) {
            input->counts.empty_lines++;
            continue;
        }
        rc = pd_record_parse(&input->record, (const char *)input->text.data, input->text.size_bytes,
                             sample, &why);
        rc = settle(input, rc, &why, error);
        if (rc != 0)
            return rc;
    }
    return rc;
}

static int next_element(struct pd_input *input, struct packd_sample *sample,
                        struct packd_error *error)
{
    struct packd_error why = {0};
    while (input->element < json_array_size(input->array)) {
        const json_t *value = json_array_get(input->array, input->element++);
        int rc = pd_record_take(&input->record, value, sample, &why);
        rc = settle(input, rc, &why, error);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* A whole file, once: its bytes become tokens. */
static int next_text(struct pd_input *input, struct packd_sample *sample, struct packd_error *error)
{
    struct pd_record *record = &input->record;
    if (input->element++ > 0)
        return 0;
    size_t bytes = input->text.size_bytes;
    pd_buf_clear(&record->tokens);
    uint8_t *to = pd_buf_extend(&record->tokens, bytes * 4);
    for (size_t i = 0; to && i < bytes; i++) {
        const uint32_t token = input->text.data[i];
        memcpy(to + i * 4, &token, sizeof token);
    }
    if (record->tokens.failed)
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "%s: no memory for its tokens",
                               input->path);
    *sample = (struct packd_sample){.tokens = (const int32_t *)(const void *)record->tokens.data,
                                    .count = bytes};
    if (!record->shown[0])
        snprintf(record->shown, sizeof record->shown, "whole files");
    return settle(input, bytes > 0, NULL, error);
}

/* A .safetensors file, once. */
static int next_media(struct pd_input *input, struct packd_sample *sample,
                      struct packd_error *error)
{
    struct packd_error why = {0};
    if (input->element++ > 0)
        return 0;
    int rc = pd_media_file_load(input->path, &input->media, sample, &why);
    if (!input->record.shown[0])
        snprintf(input->record.shown, sizeof input->record.shown, "whole files");
    input->counts.bytes += input->media ? pd_media_file_bytes(input->media) : 0;
    return settle(input, rc == 0 ? sample->count > 0 : rc, &why, error);
}

int pd_input_next(struct pd_input *input, struct packd_sample *sample, struct packd_error *error)
{
    for (;;) {
        int rc = 0;
        if (input->kind == KIND_LINES)
            rc = next_line(input, sample, error);
        else if (input->kind == KIND_ARRAY)
            rc = next_element(input, sample, error);
        else if (input->kind == KIND_TEXT)
            rc = next_text(input, sample, error);
        else if (input->kind == KIND_MEDIA)
            rc = next_media(input, sample, error);
        if (rc != 0)
            return rc;
        FTSENT *entry = NULL;
        file_close(input);
        if (!input->walk)
            return 0;
        rc = walk_next(input->walk, &input->counts.skipped_files, &entry, error);
        if (rc <= 0)
            return rc;
        rc = open_file(input, entry->fts_path, error);
        if (rc != 0)
            return rc;
    }
}

/* ---- open and close -------------------------------------------------------------------------- */

static int open_root(struct pd_input *input, const char *path, const char *stdin_name,
                     struct packd_error *error)
{
    if (strcmp(path, "-") != 0) {
        input->walk = walk_open(path, &input->in_directory, error);
        return input->walk ? 0 : PACKD_EIO;
    }
    input->path = strdup(stdin_name ? stdin_name : "stdin");
    if (!input->path)
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory");
    pd_source_open_stdin(&input->source, input->path);
    input->kind = KIND_LINES;
    input->counts.files = 1;
    return 0;
}

int pd_input_open(const char *path, const struct pd_reader_options *options, struct pd_input **out,
                  struct packd_error *error)
{
    struct pd_input *input = calloc(1, sizeof *input);
    if (!input)
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory for a reader");
    input->skip_bad = options->skip_bad;
    input->source.stop = options->stop;
    input->chunk = malloc(CHUNK_BYTES);
    int rc = input->chunk ? pd_record_init(&input->record, options->field, error)
                          : pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory");
    if (rc == 0)
        rc = open_root(input, path, options->stdin_name, error);
    if (rc != 0)
        pd_input_close(input);
    else
        *out = input;
    return rc;
}

void pd_input_close(struct pd_input *input)
{
    if (!input)
        return;
    file_close(input);
    if (input->walk)
        fts_close(input->walk);
    pd_record_fini(&input->record);
    pd_buf_fini(&input->text);
    free(input->chunk);
    free(input);
}

const struct pd_reader_counts *pd_input_counts(const struct pd_input *input)
{
    return &input->counts;
}

const char *pd_input_fields(const struct pd_input *input)
{
    return input->record.shown;
}

const char *pd_input_last_bad(const struct pd_input *input)
{
    return input->last_bad;
}

/* ---- digest ---------------------------------------------------------------------------------- */

static int digest_file(XXH3_state_t *state, const char *path, struct packd_error *error)
{
    static _Thread_local char chunk[CHUNK_BYTES];
    FILE *file = fopen(path, "rb");
    size_t got;
    if (!file)
        return pd_client_error(error, PACKD_EIO, "INPUT", "%s: %s", path, strerror(errno));
    while ((got = fread(chunk, 1, sizeof chunk, file)) > 0)
        XXH3_64bits_update(state, chunk, got);
    int rc = ferror(file)
                 ? pd_client_error(error, PACKD_EIO, "INPUT", "%s: %s", path, strerror(errno))
                 : 0;
    fclose(file);
    return rc;
}

/* Of a single file only the bytes count; of a directory names below it, too. */
int pd_input_digest(const char *path, uint64_t *digest, struct packd_error *error)
{
    bool directory = false;
    FTS *walk = walk_open(path, &directory, error);
    if (!walk)
        return PACKD_EIO;
    XXH3_state_t *state = XXH3_createState();
    FTSENT *entry = NULL;
    int rc = state ? 0 : pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory");
    if (state)
        XXH3_64bits_reset(state);
    while (rc == 0 && (rc = walk_next(walk, NULL, &entry, error)) == 1) {
        const char *below = entry->fts_path + strlen(path);
        below += strspn(below, "/"); /* DIR and DIR/ are the same */
        if (directory)
            XXH3_64bits_update(state, below, strlen(below) + 1);
        rc = digest_file(state, entry->fts_path, error);
    }
    if (rc == 0)
        *digest = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    fts_close(walk);
    return rc;
}
