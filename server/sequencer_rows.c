/* Rows of the log's tables: streams, jobs and feeds to bytes and back.
 *
 * The rows are caches of the fold over the records, written in the same transaction, so that a
 * start need not read the whole log. Sequencer thread. Invariant: what decode accepts is within
 * the limits of the structs; seals have found damage before. */
#include "server/sequencer_tables.h"

#include "server/sequencer_settings.h"

#include <stdlib.h>

#define JOB_VERSION 4 /* 1 had no commit_every, 2 neither world nor skipped steps, 3 ended there */
#define STREAM_VERSION 4 /* 1 ended with `ended`, 2 with the times, 3 with `deleted` */
#define FEED_VERSION \
    6 /* 1 ended with the lanes, 2 the refusals, 3 lowest_pack, 4 the weights, 5 settings */

static void put_text(struct pd_buf *row, const char *text)
{
    pd_buf_put_string(row, text, strlen(text));
}

static void get_text(struct pd_reader *row, char *text, size_t capacity)
{
    size_t size;
    const char *data = pd_reader_string(row, &size);
    text[0] = 0;
    if (!data || size >= capacity) {
        row->failed = true;
        return;
    }
    memcpy(text, data, size);
    text[size] = 0;
}

static int row_done(const struct pd_reader *row)
{
    return pd_reader_done(row) ? 0 : PD_ECORRUPT;
}

/* ---- streams (the name comes first: readers look there) ---- */

void pd_seq_stream_encode(const struct pd_seq_stream *stream, struct pd_buf *row)
{
    put_text(row, stream->name);
    pd_buf_put_u8(row, STREAM_VERSION);
    put_text(row, stream->source);
    put_text(row, stream->producer);
    put_text(row, stream->content_id);
    pd_buf_put_u32(row, stream->feed);
    pd_buf_put_u32(row, stream->source_id);
    pd_buf_put_u32(row, stream->lane);
    pd_buf_put_u64(row, stream->next_seq);
    pd_buf_put_u64(row, stream->samples);
    pd_buf_put_u64(row, stream->tokens);
    pd_buf_put_u64(row, stream->bytes);
    pd_buf_put_u64(row, stream->rejected);
    pd_buf_put_u8(row, stream->ended);
    pd_buf_put_u64(row, stream->blocks);
    pd_buf_put_u64(row, stream->log_bytes);
    pd_buf_put_u64(row, stream->last_wall_ns);
    pd_buf_put_u8(row, stream->deleted);
    put_text(row, stream->rejected_for);
}

int pd_seq_stream_decode(struct pd_seq_stream *stream, struct pd_reader row)
{
    get_text(&row, stream->name, sizeof stream->name);
    uint8_t version = pd_reader_u8(&row);
    if (version < 1 || version > STREAM_VERSION)
        return PD_ECORRUPT;
    get_text(&row, stream->source, sizeof stream->source);
    get_text(&row, stream->producer, sizeof stream->producer);
    get_text(&row, stream->content_id, sizeof stream->content_id);
    stream->feed = pd_reader_u32(&row);
    stream->source_id = pd_reader_u32(&row);
    stream->lane = pd_reader_u32(&row);
    stream->next_seq = pd_reader_u64(&row);
    stream->samples = pd_reader_u64(&row);
    stream->tokens = pd_reader_u64(&row);
    stream->bytes = pd_reader_u64(&row);
    stream->rejected = pd_reader_u64(&row);
    stream->ended = pd_reader_u8(&row) != 0;
    if (version > 1) {
        stream->blocks = pd_reader_u64(&row);
        stream->log_bytes = pd_reader_u64(&row);
        stream->last_wall_ns = pd_reader_u64(&row);
    }
    if (version > 2)
        stream->deleted = pd_reader_u8(&row) != 0;
    if (version > 3)
        get_text(&row, stream->rejected_for, sizeof stream->rejected_for);
    return row_done(&row);
}

/* ---- jobs ---- */

static void put_spec(struct pd_buf *row, const struct pd_job_spec *spec)
{
    put_text(row, spec->name);
    pd_buf_put_u32(row, spec->step_packs);
    pd_buf_put_u32(row, spec->dp_size);
    pd_buf_put_u32(row, spec->rows);
    pd_buf_put_u32(row, spec->accum);
    pd_buf_put_u32(row, spec->segment_multiple);
    pd_buf_put_u8(row, spec->kind == PD_JOB_READER);
    pd_buf_put_u32(row, spec->commit_every);
}

static void get_spec(struct pd_reader *row, uint8_t version, struct pd_job_spec *spec)
{
    get_text(row, spec->name, sizeof spec->name);
    spec->step_packs = pd_reader_u32(row);
    spec->dp_size = pd_reader_u32(row);
    spec->rows = pd_reader_u32(row);
    spec->accum = pd_reader_u32(row);
    spec->segment_multiple = pd_reader_u32(row);
    spec->kind = pd_reader_u8(row) ? PD_JOB_READER : PD_JOB_TRAINER;
    if (version > 1)
        spec->commit_every = pd_reader_u32(row);
    if (spec->step_packs == 0)
        row->failed = true;
}

void pd_seq_job_encode(const struct pd_seq_job *job, struct pd_buf *row)
{
    pd_buf_put_u8(row, JOB_VERSION);
    put_spec(row, &job->spec);
    pd_buf_put_u64(row, job->generation);
    pd_buf_put_u64(row, job->first_pack);
    pd_buf_put_u64(row, job->world_first_step);
    pd_buf_put_u64(row, job->committed);
    pd_buf_put_u32(row, job->token_count);
    for (uint32_t i = 0; i < job->token_count; i++)
        put_text(row, job->tokens[i]);
    pd_buf_put_u32(row, job->commit_count);
    for (uint32_t i = 0; i < job->commit_count; i++) {
        pd_buf_put_u64(row, job->commits[i].step);
        pd_buf_put_u64(row, job->commits[i].wall_ns);
    }
    pd_buf_put_u64(row, job->world);
    pd_step_ranges_encode(&job->skipped, row);
    pd_buf_put_u64(row, job->first_step);
    pd_buf_put_u8(row, job->released);
}

int pd_seq_job_decode(struct pd_seq_job *job, struct pd_reader row)
{
    uint8_t version = pd_reader_u8(&row);
    if (version < 1 || version > JOB_VERSION)
        return PD_ECORRUPT;
    get_spec(&row, version, &job->spec);
    job->generation = pd_reader_u64(&row);
    job->first_pack = pd_reader_u64(&row);
    job->world_first_step = pd_reader_u64(&row);
    job->committed = pd_reader_u64(&row);
    job->token_count = pd_reader_u32(&row);
    if (job->token_count > PD_SEQ_TOKENS_MAX)
        return PD_ECORRUPT;
    for (uint32_t i = 0; i < job->token_count; i++)
        get_text(&row, job->tokens[i], sizeof job->tokens[i]);
    job->commit_count = pd_reader_u32(&row);
    if (job->commit_count > PD_SEQ_COMMITS_MAX)
        return PD_ECORRUPT;
    for (uint32_t i = 0; i < job->commit_count; i++) {
        job->commits[i].step = pd_reader_u64(&row);
        job->commits[i].wall_ns = pd_reader_u64(&row);
    }
    job->world = version > 2 ? pd_reader_u64(&row) : job->generation;
    int rc = version > 2 ? pd_step_ranges_decode(&job->skipped, &row) : 0;
    if (version > 3) {
        job->first_step = pd_reader_u64(&row);
        job->released = pd_reader_u8(&row) != 0;
    }
    return rc ? rc : row_done(&row);
}

/* ---- feeds ---- */

static void encode_feed(const struct pd_seq_feed *feed, struct pd_buf *row)
{
    pd_buf_put_u8(row, FEED_VERSION);
    put_text(row, feed->name);
    pd_buf_put_u64(row, feed->config_digest);
    pd_buf_put_string(row, (const char *)feed->settings.data, feed->settings.size_bytes);
    pd_buf_put_u32(row, feed->next_job_id);
    pd_buf_put_u8(row, feed->has_data);
    pd_buf_put_u8(row, feed->end_declared);
    pd_buf_put_u64(row, feed->packs);
    pd_buf_put_u64(row, feed->plan_digest);
    pd_buf_put_string(row, (const char *)feed->lane_ended, feed->lane_count);
    pd_buf_put_u8(row, (uint8_t)feed->refusal_count);
    for (uint32_t i = 0; i < feed->refusal_count; i++) {
        put_text(row, feed->refusals[i].reason);
        pd_buf_put_u64(row, feed->refusals[i].count);
    }
    pd_buf_put_u64(row, feed->lowest_pack);
    pd_buf_put_u8(row, (uint8_t)feed->gone);
    for (uint32_t i = 0; i < PD_LANES_WEIGHTED_MAX; i++)
        pd_buf_put_u32(row, feed->weights[i]);
    pd_buf_put_string(row, (const char *)feed->first_settings.data,
                      feed->first_settings.size_bytes);
    pd_buf_put_string(row, (const char *)feed->tokenizer.bytes, feed->tokenizer.size);
}

static void get_refusals(struct pd_seq_feed *feed, struct pd_reader *row)
{
    feed->refusal_count = pd_reader_u8(row);
    if (feed->refusal_count > PD_REFUSAL_REASONS_MAX) {
        feed->refusal_count = 0;
        row->failed = true;
    }
    for (uint32_t i = 0; i < feed->refusal_count; i++) {
        get_text(row, feed->refusals[i].reason, sizeof feed->refusals[i].reason);
        feed->refusals[i].count = pd_reader_u64(row);
    }
}

static void get_live(struct pd_seq_feed *feed, struct pd_reader *row)
{
    uint8_t gone = pd_reader_u8(row);
    feed->gone = (enum pd_seq_gone)gone;
    for (uint32_t i = 0; i < PD_LANES_WEIGHTED_MAX; i++)
        feed->weights[i] = pd_reader_u32(row);
    if (gone > PD_SEQ_PURGED)
        row->failed = true;
}

static void get_tokenizer(struct pd_tokenizer *tokenizer, struct pd_reader *row)
{
    size_t size;
    const char *bytes = pd_reader_string(row, &size);
    if (!bytes || size > sizeof tokenizer->bytes) {
        row->failed = true;
        return;
    }
    memcpy(tokenizer->bytes, bytes, size);
    tokenizer->size = (uint8_t)size;
}

static int copy_lanes(struct pd_seq_feed *feed, const char *lanes, size_t count)
{
    feed->lane_ended = calloc(count ? count : 1, 1);
    if (!feed->lane_ended)
        return PD_ENOMEM;
    memcpy(feed->lane_ended, lanes, count);
    feed->lane_count = (uint32_t)count;
    return 0;
}

int pd_seq_feed_decode(struct pd_seq_feed *feed, struct pd_reader row)
{
    uint8_t version = pd_reader_u8(&row);
    if (version < 1 || version > FEED_VERSION)
        return PD_ECORRUPT;
    get_text(&row, feed->name, sizeof feed->name);
    feed->config_digest = pd_reader_u64(&row);
    size_t settings_size, lanes;
    const char *settings = pd_reader_string(&row, &settings_size);
    feed->next_job_id = pd_reader_u32(&row);
    feed->has_data = pd_reader_u8(&row) != 0;
    feed->end_declared = pd_reader_u8(&row) != 0;
    feed->packs = pd_reader_u64(&row);
    feed->plan_digest = pd_reader_u64(&row);
    const char *ended = pd_reader_string(&row, &lanes);
    if (version > 1)
        get_refusals(feed, &row);
    if (version > 2)
        feed->lowest_pack = pd_reader_u64(&row);
    if (version > 3)
        get_live(feed, &row);
    size_t first_size = settings_size;
    const char *first = version > 4 ? pd_reader_string(&row, &first_size) : settings;
    if (version > 5)
        get_tokenizer(&feed->tokenizer, &row);
    if (!pd_reader_done(&row) || !settings || !first || !ended || lanes > PD_LANES_MAX)
        return PD_ECORRUPT;
    pd_buf_put(&feed->settings, settings, settings_size);
    pd_buf_put(&feed->first_settings, first, first_size);
    if (feed->settings.failed || feed->first_settings.failed)
        return PD_ENOMEM;
    if (version < 4) /* nobody could set them otherwise */
        pd_seq_settings_weights(&feed->settings, feed->weights);
    return copy_lanes(feed, ended, lanes);
}

/* ---- writing ---- */

static int write_row(struct pd_sequencer *seq, enum pd_table table, uint32_t a, uint32_t b)
{
    struct pd_error error = {0};
    int rc = pd_log_put_row(seq->log, table, a, b, &seq->row, &error);
    return rc ? pd_seq_write_failed(seq, rc, &error) : 0;
}

static int write_jobs(struct pd_sequencer *seq, struct pd_seq_feed *feed)
{
    for (uint32_t i = 0; i < feed->job_count; i++) {
        struct pd_seq_job *job = feed->jobs[i];
        if (!job->dirty || job->deleted)
            continue;
        pd_buf_clear(&seq->row);
        pd_seq_job_encode(job, &seq->row);
        int rc = write_row(seq, PD_TABLE_JOBS, feed->number, job->id);
        if (rc)
            return rc;
        job->dirty = false;
    }
    return 0;
}

static int write_feed(struct pd_sequencer *seq, struct pd_seq_feed *feed)
{
    if (feed->dirty) {
        pd_buf_clear(&seq->row);
        encode_feed(feed, &seq->row);
        int rc = write_row(seq, PD_TABLE_FEEDS, feed->number, 0);
        if (rc)
            return rc;
        feed->dirty = false;
    }
    return write_jobs(seq, feed);
}

int pd_seq_rows_write(struct pd_sequencer *seq)
{
    struct pd_seq_state *state = &seq->state;
    while (state->dirty_count > 0) {
        struct pd_seq_stream *stream = state->streams[state->dirty_streams[state->dirty_count - 1]];
        pd_buf_clear(&seq->row);
        pd_seq_stream_encode(stream, &seq->row);
        int rc = write_row(seq, PD_TABLE_STREAMS, stream->id, 0);
        if (rc)
            return rc;
        stream->dirty = false;
        state->dirty_count--;
    }
    for (uint32_t i = 0; i < state->feed_count; i++) {
        int rc = write_feed(seq, state->feeds[i]);
        if (rc)
            return rc;
    }
    return 0;
}
