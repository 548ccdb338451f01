/* The log of tests of serving: blocks of made-up samples in arrays, packed next-fit.
 *
 * Everything is written in serve_log_new and only read afterwards, apart from the atomics that
 * inject damage; so any number of readers may use it at once, as they may use the log. */
#include "tests/unit/serve_log.h"

#include "base/check.h"
#include "tests/unit/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define BLOCK_SAMPLES 16

struct pd_log_reader {
    struct pd_log *log;
    bool open;
    struct pd_error *error; /* of the bodies handed out last */
    struct pd_head sample;  /* asked for last by the check */
};

/* Token `i` of a sample as pushed; its label where labels were pushed. */
static int32_t token_of(uint32_t stream, uint64_t seq, uint32_t i)
{
    uint64_t mix = ((uint64_t)stream << 40) ^ (seq << 16) ^ i;
    return (int32_t)(XXH3_64bits(&mix, sizeof mix) % 50000) + 1;
}

static int32_t label_of(uint32_t stream, uint64_t seq, uint32_t i)
{
    int32_t token = token_of(stream, seq, i);
    return token % 7 == 0 ? PD_LABEL_NONE : token + 1;
}

static void *zeroed(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    PD_CHECK(memory);
    return memory;
}

static uint64_t token_digest(uint32_t stream, uint64_t seq, uint32_t length)
{
    int32_t *tokens = zeroed(length, sizeof *tokens);
    for (uint32_t i = 0; i < length; i++)
        tokens[i] = token_of(stream, seq, i);
    uint64_t digest = XXH3_64bits(tokens, length * sizeof *tokens);
    free(tokens);
    return digest;
}

static void block_extras(const struct pd_log *log, struct pd_block_head *head, uint32_t number)
{
    head->has_labels = log->options.labels && number % 3 == 2;
    if (log->options.masks && number % 2 == 1) {
        head->loss_run_ends = zeroed(head->count, sizeof *head->loss_run_ends);
        head->loss_runs = zeroed(head->count * 2, sizeof *head->loss_runs);
        for (uint32_t i = 0; i < head->count; i++) {
            head->loss_runs[2 * i] = head->lengths[i] / 3; /* off, then on to the end */
            head->loss_runs[2 * i + 1] = head->lengths[i] - head->lengths[i] / 3;
            head->loss_run_ends[i] = 2 * (i + 1);
        }
    }
    if (log->options.keys && number % 2 == 0) {
        head->keys = zeroed(head->count, 3);
        head->key_ends = zeroed(head->count, sizeof *head->key_ends);
        for (uint32_t i = 0; i < head->count; i++) {
            memcpy(head->keys + i * 3, "key", 3);
            head->key_ends[i] = 3 * (i + 1);
        }
    }
}

static void block_make(struct pd_log *log, uint32_t number, uint64_t *state)
{
    const struct serve_log_options *o = &log->options;
    struct pd_block_head *head = &log->heads[number];
    head->position = number + 1;
    head->stream = number % o->streams;
    head->source = 1;
    head->count = BLOCK_SAMPLES;
    head->first_seq = (uint64_t)(number / o->streams) * BLOCK_SAMPLES;
    head->lengths = zeroed(head->count, sizeof *head->lengths);
    head->token_digests = zeroed(head->count, sizeof *head->token_digests);
    head->weights = zeroed(head->count, sizeof *head->weights);
    for (uint32_t i = 0; i < head->count; i++) {
        head->lengths[i] =
            o->shortest + (uint32_t)(test_random(state) % (o->longest - o->shortest + 1));
        head->weights[i] = o->weights ? 0.5f + (float)(test_random(state) % 4) * 0.5f : 1.0f;
        head->token_digests[i] = token_digest(head->stream, head->first_seq + i, head->lengths[i]);
    }
    block_extras(log, head, number);
}

static struct pd_loss_runs runs_of(const struct pd_block_head *head, uint32_t index)
{
    if (!head->loss_run_ends)
        return (struct pd_loss_runs){0};
    uint32_t from = index > 0 ? head->loss_run_ends[index - 1] : 0;
    return (struct pd_loss_runs){head->loss_runs + from, head->loss_run_ends[index] - from};
}

/* Targets of a whole sample by the definition: allowed by the runs, and by the labels where there
 * are any. */
static uint32_t targets_of(const struct pd_block_head *head, uint32_t index)
{
    struct pd_loss_runs runs = runs_of(head, index);
    uint32_t count = 0;
    for (uint32_t i = 1; i < head->lengths[index]; i++) {
        bool on = runs.count == 0 || i >= runs.lengths[0];
        if (head->has_labels)
            on = on && label_of(head->stream, head->first_seq + index, i) != PD_LABEL_NONE;
        count += on;
    }
    return count;
}

static struct pd_segment segment_of(const struct pd_log *log, uint32_t block, uint32_t index)
{
    const struct pd_block_head *head = &log->heads[block];
    uint32_t length = head->lengths[index], align = log->options.seg_align;
    uint32_t targets = targets_of(head, index);
    return (struct pd_segment){
        .block = head->position,
        .index = index,
        .stream = head->stream,
        .seq = head->first_seq + index,
        .source = head->source,
        .part_count = 1,
        .length_tokens = length,
        .slot_tokens = (length + align - 1) / align * align,
        .sample_tokens = length,
        .loss_tokens = targets,
        .sample_loss_tokens = targets,
        .weight = head->weights[index],
    };
}

static void pack_all(struct pd_log *log, uint64_t *state)
{
    const struct serve_log_options *o = &log->options;
    uint32_t pack = 0;
    while (true) {
        log->heads = reallocarray(log->heads, log->block_count + 1, sizeof *log->heads);
        PD_CHECK(log->heads);
        log->heads[log->block_count] = (struct pd_block_head){0};
        block_make(log, log->block_count, state);
        for (uint32_t i = 0; i < BLOCK_SAMPLES; i++) {
            struct pd_segment segment = segment_of(log, log->block_count, i);
            if (log->packs[pack].used_slots + segment.slot_tokens > o->seq_len)
                pack++;
            if (pack == o->packs) {
                log->block_count++;
                return;
            }
            log->packs[pack].number = pack;
            PD_CHECK(pd_pack_push(&log->packs[pack], &segment) == 0);
        }
        log->block_count++;
    }
}

struct pd_log *serve_log_new(const struct serve_log_options *options)
{
    struct pd_log *log = zeroed(1, sizeof *log);
    log->options = *options;
    log->pack_count = options->packs;
    log->packs = zeroed(options->packs, sizeof *log->packs);
    log->damaged_stream = UINT32_MAX;
    uint64_t state = options->seed;
    if (options->packs > 0)
        pack_all(log, &state);
    return log;
}

void serve_log_free(struct pd_log *log)
{
    for (uint32_t i = 0; i < log->pack_count; i++)
        pd_pack_fini(&log->packs[i]);
    for (uint32_t i = 0; i < log->block_count; i++) {
        struct pd_block_head *head = &log->heads[i];
        void *owned[] = {head->lengths,   head->token_digests, head->weights, head->loss_run_ends,
                         head->loss_runs, head->keys,          head->key_ends};
        for (size_t k = 0; k < PD_COUNT_OF(owned); k++)
            free(owned[k]);
    }
    free(log->packs);
    free(log->heads);
    free(log);
}

/* ---- server/log.h, the reading half ---- */

int pd_log_reader_new(struct pd_log *log, struct pd_log_reader **reader, struct pd_error *error)
{
    (void)error;
    *reader = zeroed(1, sizeof **reader);
    (*reader)->log = log;
    return 0;
}

void pd_log_reader_free(struct pd_log_reader *reader)
{
    PD_CHECK(!reader->open);
    free(reader);
}

int pd_log_reader_begin(struct pd_log_reader *reader)
{
    PD_CHECK(!reader->open);
    reader->open = true;
    return 0;
}

void pd_log_reader_end(struct pd_log_reader *reader)
{
    PD_CHECK(reader->open);
    reader->open = false;
}

uint32_t pd_log_feed_number(struct pd_log *log, uint32_t feed)
{
    PD_CHECK(feed == 0);
    return log->feed_number;
}

static int find_pack(struct pd_log_reader *reader, uint64_t number)
{
    PD_CHECK(reader->open);
    bool there = reader->log->feed_number == 0 && number < reader->log->pack_count &&
                 number >= reader->log->trimmed_packs;
    bool lost = number > 0 && number == reader->log->lost_pack;
    return there && !lost ? 0 : PD_ENOTFOUND;
}

int pd_log_lowest_pack(struct pd_log_reader *reader, uint32_t feed, uint64_t *number)
{
    (void)feed;
    *number = reader->log->feed_number ? 0 : (uint64_t)reader->log->trimmed_packs;
    return *number < reader->log->pack_count ? 0 : PD_ENOTFOUND;
}

int pd_log_read_pack(struct pd_log_reader *reader, uint32_t feed, uint64_t number,
                     struct pd_pack *pack)
{
    (void)feed;
    reader->log->pack_reads++;
    pd_pack_clear(pack);
    int rc = find_pack(reader, number);
    if (rc != 0)
        return rc;
    const struct pd_pack *from = &reader->log->packs[number];
    pack->number = number;
    for (uint32_t i = 0; i < from->segment_count && rc == 0; i++)
        rc = pd_pack_push(pack, &from->segments[i]);
    return rc;
}

int pd_log_read_plan_facts(struct pd_log_reader *reader, uint32_t feed, uint64_t number,
                           struct pd_plan_facts *facts)
{
    (void)feed;
    *facts = (struct pd_plan_facts){
        .plan_digest = 0x1000 + number, .config_digest = 77, .planner_version = 1};
    return find_pack(reader, number);
}

int pd_log_read_head(struct pd_log_reader *reader, uint32_t feed, uint64_t block,
                     const struct pd_block_head **head)
{
    (void)feed;
    PD_CHECK(reader->open);
    if (block == 0 || block > reader->log->block_count)
        return PD_ENOTFOUND;
    *head = &reader->log->heads[block - 1];
    return 0;
}

static int copy_name(const char *prefix, uint32_t number, char name[PD_NAME_MAX + 1])
{
    snprintf(name, PD_NAME_MAX + 1, "%s-%u", prefix, number);
    return 0;
}

int pd_log_read_stream_name(struct pd_log_reader *reader, uint32_t feed, uint32_t stream,
                            char name[PD_NAME_MAX + 1])
{
    (void)feed;
    PD_CHECK(reader->open);
    return copy_name("stream", stream, name);
}

int pd_log_read_source_name(struct pd_log_reader *reader, uint32_t feed, uint32_t source,
                            char name[PD_NAME_MAX + 1])
{
    (void)feed;
    PD_CHECK(reader->open);
    return copy_name("source", source, name);
}

int pd_log_read_tensor(struct pd_log_reader *reader, uint32_t feed, uint32_t number,
                       struct pd_tensor_spec *spec)
{
    (void)feed;
    (void)number;
    PD_CHECK(reader->open);
    *spec = (struct pd_tensor_spec){0};
    return PD_ENOTFOUND; /* this log has text alone */
}

static int body_tokens(void *ctx, const struct pd_segment *segment, int32_t *dst)
{
    struct pd_log_reader *reader = ctx;
    struct pd_log *log = reader->log;
    for (uint32_t i = 0; i < segment->length_tokens; i++)
        dst[i] = token_of(segment->stream, segment->seq, segment->offset_tokens + i);
    if (segment->stream != log->damaged_stream || segment->seq != log->damaged_seq)
        return 0;
    if (atomic_fetch_sub(&log->damaged_reads, 1) <= 0)
        return 0;
    dst[0] ^= 1;
    return pd_error_set(reader->error, PD_ECORRUPT, "CHECKSUM",
                        "sample seq %llu of stream stream-%u does not match its digest",
                        (unsigned long long)segment->seq, segment->stream);
}

static const struct pd_block_head *head_of(const struct pd_log_reader *reader,
                                           const struct pd_segment *segment)
{
    return &reader->log->heads[segment->block - 1];
}

static int body_labels(void *ctx, const struct pd_segment *segment, int32_t *dst, bool *has)
{
    *has = head_of(ctx, segment)->has_labels;
    for (uint32_t i = 0; *has && i < segment->length_tokens; i++)
        dst[i] = label_of(segment->stream, segment->seq, segment->offset_tokens + i);
    return 0;
}

static int body_loss(void *ctx, const struct pd_segment *segment, struct pd_loss_runs *runs)
{
    *runs = runs_of(head_of(ctx, segment), segment->index);
    return 0;
}

void pd_log_bodies(struct pd_log_reader *reader, uint32_t feed, enum pd_verify verify,
                   struct pd_bodies *bodies, struct pd_error *error)
{
    (void)feed;
    (void)verify;
    reader->error = error;
    *bodies = (struct pd_bodies){
        .ctx = reader, .tokens = body_tokens, .labels = body_labels, .loss = body_loss};
}

static int plain_head(void *ctx, const struct pd_segment *segment, const struct pd_head **head)
{
    struct pd_log_reader *reader = ctx;
    pd_block_head_sample(head_of(reader, segment), segment->index, &reader->sample);
    *head = &reader->sample;
    return 0;
}

void pd_log_check_heads(struct pd_log_reader *reader, uint32_t feed, struct pd_check_heads *heads,
                        struct pd_error *error)
{
    (void)feed;
    reader->error = error;
    *heads = (struct pd_check_heads){.ctx = reader, .head = plain_head};
}
