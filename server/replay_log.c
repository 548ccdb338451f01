/* The reading half of server/log.h over the files of a repro.
 *
 * Place in the flow: linked instead of :log into packd_replay. One thread. Invariant: nothing that
 * is read is trusted: heads and packs are decoded as from the log, samples are checked against
 * their digests. Names of streams and sources are not in a repro: their numbers stand for them. Nor
 * are media and tensors: samples with them cannot be built again. */
#include "server/replay_log.h"

#include "base/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { PLAN, HEADS, BODIES, FILES };
static const char *const file_names[FILES] = {"plan.bin", "heads.bin", "bodies.bin"};

struct record {
    uint64_t a, b, size;
    const uint8_t *data;
};

struct file {
    uint8_t *bytes;
    size_t size;
    struct record *records;
    uint32_t count;
};

struct pd_log {
    struct file files[FILES];
    struct pd_block_head *heads; /* of files[HEADS].records; count 0 = not decoded yet */
};

struct pd_log_reader {
    struct pd_log *log;
    struct pd_error *error; /* of the bodies */
    struct pd_head sample;  /* lent to the check */
};

/* ---- files ---- */

static int read_file(const char *directory, const char *name, struct file *file,
                     struct pd_error *error)
{
    char path[4096];
    snprintf(path, sizeof path, "%.4000s/%s", directory, name);
    FILE *in = fopen(path, "rbe");
    long size = in && fseek(in, 0, SEEK_END) == 0 ? ftell(in) : -1;
    bool good = size >= 0 && fseek(in, 0, SEEK_SET) == 0;
    file->bytes = good ? malloc((size_t)size + 1) : NULL;
    good = file->bytes && fread(file->bytes, 1, (size_t)size, in) == (size_t)size;
    file->size = good ? (size_t)size : 0;
    int failed = errno;
    if (in)
        fclose(in);
    return good ? 0
                : pd_error_set(error, PD_EIO, "REPRO", "cannot read %.300s: %s", path,
                               strerror(failed));
}

static int split(struct file *file, const char *name, struct pd_error *error)
{
    struct pd_reader reader = pd_reader_of(file->bytes, file->size);
    uint32_t capacity = 0;
    while (pd_reader_left(&reader) > 0) {
        if (file->count == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            struct record *records = realloc(file->records, capacity * sizeof *records);
            if (!records)
                return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
            file->records = records;
        }
        struct record *record = &file->records[file->count++];
        record->a = pd_reader_u64(&reader);
        record->b = pd_reader_u64(&reader);
        record->size = pd_reader_u64(&reader);
        record->data =
            record->size <= pd_reader_left(&reader) ? pd_reader_bytes(&reader, record->size) : NULL;
        if (!record->data)
            return pd_error_set(error, PD_ECORRUPT, "REPRO", "%s is cut short", name);
    }
    return 0;
}

int pd_replay_log_open(const char *directory, struct pd_log **out, struct pd_error *error)
{
    struct pd_log *log = calloc(1, sizeof *log);
    int rc = log ? 0 : pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    for (int i = 0; !rc && i < FILES; i++) {
        rc = read_file(directory, file_names[i], &log->files[i], error);
        if (!rc)
            rc = split(&log->files[i], file_names[i], error);
    }
    if (!rc) {
        log->heads = calloc(log->files[HEADS].count + 1, sizeof *log->heads);
        if (!log->heads)
            rc = pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    }
    if (rc)
        pd_replay_log_close(log);
    else
        *out = log;
    return rc;
}

uint32_t pd_replay_log_packs(const struct pd_log *log)
{
    return log->files[PLAN].count;
}

void pd_replay_log_close(struct pd_log *log)
{
    if (!log)
        return;
    for (uint32_t i = 0; log->heads && i < log->files[HEADS].count; i++)
        pd_block_head_fini(&log->heads[i]);
    for (int i = 0; i < FILES; i++) {
        free(log->files[i].bytes);
        free(log->files[i].records);
    }
    free(log->heads);
    free(log);
}

static const struct record *find(const struct file *file, uint64_t a, uint64_t b, uint32_t *index)
{
    for (uint32_t i = 0; i < file->count; i++) {
        if (file->records[i].a == a && file->records[i].b == b) {
            *index = i;
            return &file->records[i];
        }
    }
    return NULL;
}

/* ---- server/log.h, the reading half ---- */

int pd_log_reader_new(struct pd_log *log, struct pd_log_reader **reader, struct pd_error *error)
{
    *reader = calloc(1, sizeof **reader);
    if (!*reader)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    (*reader)->log = log;
    return 0;
}

void pd_log_reader_free(struct pd_log_reader *reader)
{
    free(reader);
}

int pd_log_reader_begin(struct pd_log_reader *reader)
{
    (void)reader;
    return 0;
}

void pd_log_reader_end(struct pd_log_reader *reader)
{
    (void)reader;
}

int pd_log_lowest_pack(struct pd_log_reader *reader, uint32_t feed, uint64_t *number)
{
    (void)reader;
    (void)feed;
    *number = 0;
    return 0;
}

int pd_log_read_pack(struct pd_log_reader *reader, uint32_t feed, uint64_t number,
                     struct pd_pack *pack)
{
    const struct file *plan = &reader->log->files[PLAN];
    (void)feed;
    pd_pack_clear(pack);
    for (uint32_t i = 0; i < plan->count; i++)
        if (plan->records[i].b == number)
            return pd_pack_decode(pack, plan->records[i].data, plan->records[i].size);
    return PD_ENOTFOUND;
}

int pd_log_read_plan_facts(struct pd_log_reader *reader, uint32_t feed, uint64_t number,
                           struct pd_plan_facts *facts)
{
    (void)reader;
    (void)feed;
    (void)number;
    *facts = (struct pd_plan_facts){.planner_version = PD_PLANNER_VERSION};
    return 0;
}

int pd_log_read_head(struct pd_log_reader *reader, uint32_t feed, uint64_t block,
                     const struct pd_block_head **out)
{
    struct pd_log *log = reader->log;
    uint32_t index;
    const struct record *record = find(&log->files[HEADS], block, 0, &index);
    (void)feed;
    if (!record)
        return PD_ENOTFOUND;
    struct pd_block_head *head = &log->heads[index];
    int rc = head->count > 0 ? 0 : pd_block_head_decode(head, record->data, record->size);
    head->position = block;
    *out = head;
    return rc;
}

static int numbered(const char *what, uint32_t number, char name[PD_NAME_MAX + 1])
{
    snprintf(name, PD_NAME_MAX + 1, "%s-%u", what, number);
    return 0;
}

int pd_log_read_stream_name(struct pd_log_reader *reader, uint32_t feed, uint32_t stream,
                            char name[PD_NAME_MAX + 1])
{
    (void)reader;
    (void)feed;
    return numbered("stream", stream, name);
}

int pd_log_read_source_name(struct pd_log_reader *reader, uint32_t feed, uint32_t source,
                            char name[PD_NAME_MAX + 1])
{
    (void)reader;
    (void)feed;
    return numbered("source", source, name);
}

int pd_log_read_tensor(struct pd_log_reader *reader, uint32_t feed, uint32_t number,
                       struct pd_tensor_spec *spec)
{
    (void)reader;
    (void)feed;
    (void)number;
    *spec = (struct pd_tensor_spec){0};
    return PD_ENOTFOUND;
}

/* ---- bodies ---- */

static int missing(struct pd_log_reader *reader, const struct pd_segment *segment, const char *what)
{
    return pd_error_set(reader->error, PD_ECORRUPT, "SAMPLE_DAMAGED",
                        "sample %llu of stream number %u (block %llu, entry %u): %s",
                        (unsigned long long)segment->seq, segment->stream,
                        (unsigned long long)segment->block, segment->index, what);
}

static int head_of(struct pd_log_reader *reader, const struct pd_segment *segment,
                   const struct pd_block_head **head)
{
    int rc = pd_log_read_head(reader, 0, segment->block, head);
    if (rc == 0 && segment->index < (*head)->count &&
        (*head)->lengths[segment->index] == segment->sample_tokens &&
        segment->offset_tokens <= segment->sample_tokens &&
        segment->length_tokens <= segment->sample_tokens - segment->offset_tokens)
        return 0;
    return rc == PD_ENOMEM ? rc : missing(reader, segment, "its head is not in the repro");
}

/* The sample's tokens (column 0) or labels (1). */
static int copy_column(struct pd_log_reader *reader, const struct pd_segment *segment,
                       uint32_t column, uint64_t digest, int32_t *dst)
{
    uint32_t index;
    uint64_t bytes = (uint64_t)segment->sample_tokens * 4;
    const struct record *record =
        find(&reader->log->files[BODIES], segment->block, segment->index, &index);
    if (!record || record->size < (column + 1) * bytes)
        return missing(reader, segment, "its body is not in the repro");
    const uint8_t *at = record->data + column * bytes;
    if (XXH3_64bits(at, bytes) != digest)
        return missing(reader, segment, "its bytes do not have the digest taken at the door");
    memcpy(dst, at + (uint64_t)segment->offset_tokens * 4, (size_t)segment->length_tokens * 4);
    return 0;
}

static int bodies_tokens(void *ctx, const struct pd_segment *segment, int32_t *dst)
{
    const struct pd_block_head *head;
    int rc = head_of(ctx, segment, &head);
    return rc ? rc : copy_column(ctx, segment, 0, head->token_digests[segment->index], dst);
}

static int bodies_labels(void *ctx, const struct pd_segment *segment, int32_t *dst, bool *has)
{
    const struct pd_block_head *head;
    int rc = head_of(ctx, segment, &head);
    if (rc)
        return rc;
    *has = head->has_labels;
    return *has ? copy_column(ctx, segment, 1, head->label_digests[segment->index], dst) : 0;
}

static int bodies_loss(void *ctx, const struct pd_segment *segment, struct pd_loss_runs *runs)
{
    const struct pd_block_head *head;
    struct pd_head sample;
    int rc = head_of(ctx, segment, &head);
    if (rc)
        return rc;
    pd_block_head_sample(head, segment->index, &sample);
    *runs = sample.loss;
    return 0;
}

void pd_log_bodies(struct pd_log_reader *reader, uint32_t feed, enum pd_verify verify,
                   struct pd_bodies *bodies, struct pd_error *error)
{
    (void)feed;
    (void)verify;
    reader->error = error;
    *bodies = (struct pd_bodies){
        .ctx = reader, .tokens = bodies_tokens, .labels = bodies_labels, .loss = bodies_loss};
}

static int whole_head(void *ctx, const struct pd_segment *segment, const struct pd_head **out)
{
    struct pd_log_reader *reader = ctx;
    const struct pd_block_head *head;
    int rc = head_of(reader, segment, &head);
    if (rc)
        return rc;
    pd_block_head_sample(head, segment->index, &reader->sample);
    *out = &reader->sample;
    return 0;
}

void pd_log_check_heads(struct pd_log_reader *reader, uint32_t feed, struct pd_check_heads *heads,
                        struct pd_error *error)
{
    (void)feed;
    reader->error = error;
    *heads = (struct pd_check_heads){.ctx = reader, .head = whole_head};
}
