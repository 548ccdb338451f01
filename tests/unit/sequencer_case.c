/* The harness of the sequencer's tests and of the log's bench: see sequencer_case.h. The
 * stand-ins for serve only record. */
#include "tests/unit/sequencer_case.h"

#include "base/check.h"
#include "server/serve_view.h"
#include "tests/unit/scratch.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

/* ---- serve's stand-in ---- */

void pd_serve_feed_advanced(struct pd_serve *serve, uint32_t feed_index,
                            const struct pd_feed_progress *progress)
{
    pthread_mutex_lock(&serve->mutex);
    PD_CHECK(feed_index < PD_COUNT_OF(serve->progress));
    serve->progress[feed_index] = *progress;
    serve->told[feed_index]++;
    pthread_cond_broadcast(&serve->changed);
    pthread_mutex_unlock(&serve->mutex);
}

void pd_serve_job_opened(struct pd_serve *serve, const struct pd_job_info *job)
{
    pthread_mutex_lock(&serve->mutex);
    PD_CHECK(job->job_id < CASE_JOBS_MAX);
    serve->jobs[job->job_id] = *job;
    serve->opened++;
    pthread_mutex_unlock(&serve->mutex);
}

uint32_t pd_serve_job_calls(struct pd_serve *serve, uint32_t feed_index, uint32_t job_id)
{
    pthread_mutex_lock(&serve->mutex);
    PD_CHECK(feed_index < PD_COUNT_OF(serve->progress) && job_id < CASE_JOBS_MAX);
    uint32_t calls = serve->calls;
    pthread_mutex_unlock(&serve->mutex);
    return calls;
}

void pd_serve_job_deleted(struct pd_serve *serve, uint32_t feed_index, uint32_t job_id)
{
    pthread_mutex_lock(&serve->mutex);
    PD_CHECK(feed_index < PD_COUNT_OF(serve->progress) && job_id < CASE_JOBS_MAX);
    serve->deleted++;
    pthread_mutex_unlock(&serve->mutex);
}

void pd_serve_feed_reset(struct pd_serve *serve, uint32_t feed_index)
{
    pthread_mutex_lock(&serve->mutex);
    PD_CHECK(feed_index < PD_COUNT_OF(serve->progress));
    serve->progress[feed_index] = (struct pd_feed_progress){0};
    pthread_mutex_unlock(&serve->mutex);
}

/* ---- the case ---- */

void seq_case_config(struct seq_case *c, uint32_t feeds)
{
    *c = (struct seq_case){0};
    assert_int_equal(pd_config_default(&c->config), 0);
    c->config.log_max_bytes = 64u << 20;
    c->config.durability = PD_DURABILITY_PROCESS;
    for (uint32_t i = 1; i < feeds; i++) {
        struct pd_config extra;
        assert_int_equal(pd_config_default(&extra), 0);
        c->config.feeds = realloc(c->config.feeds, (i + 1) * sizeof *c->config.feeds);
        assert_non_null(c->config.feeds);
        c->config.feeds[i] = extra.feeds[0];
        extra.feed_count = 0;
        pd_config_fini(&extra);
        c->config.feed_count = i + 1;
    }
    for (uint32_t i = 0; i < feeds; i++) {
        struct pd_feed_config *feed = &c->config.feeds[i];
        snprintf(feed->name, sizeof feed->name, "feed%u", i);
        feed->rules.seq_len = feed->layout.seq_len = 64;
        feed->rules.window_samples = 16;
        feed->rules.lane_count = 1;
        feed->rules.lanes[0] = (struct pd_lane_rules){.weight = 1, .passes_max = 1};
    }
}

void seq_case_fini(struct seq_case *c)
{
    pd_config_fini(&c->config);
}

void seq_case_dir(struct seq_case *c, const char *name)
{
    static int number;
    snprintf(c->dir, sizeof c->dir, "%s/%s-%d", scratch_dir(), name, number++);
    assert_int_equal(mkdir(c->dir, 0700), 0);
}

int seq_case_start(struct seq_case *c, struct pd_error *error)
{
    struct pd_log_options options = {
        .path = c->dir, .max_bytes = c->config.log_max_bytes, .durability = c->config.durability};
    memset(&c->serve, 0, sizeof c->serve);
    pthread_mutex_init(&c->serve.mutex, NULL);
    pthread_cond_init(&c->serve.changed, NULL);
    int rc = pd_log_open(&options, &c->log, error);
    if (rc)
        return rc;
    rc = pd_sequencer_start(&c->config, c->log, &c->serve, &c->seq, error);
    if (!rc)
        rc = pd_log_reader_new(c->log, &c->reader, error);
    if (rc) {
        pd_sequencer_stop(c->seq);
        pd_sequencer_free(c->seq);
        c->seq = NULL;
        pd_log_close(c->log);
        c->log = NULL;
    }
    return rc;
}

void seq_case_stop(struct seq_case *c)
{
    pd_sequencer_stop(c->seq);
    pd_sequencer_free(c->seq);
    pd_log_reader_free(c->reader);
    pd_log_close(c->log);
    c->seq = NULL;
    c->reader = NULL;
    c->log = NULL;
    pthread_mutex_destroy(&c->serve.mutex);
    pthread_cond_destroy(&c->serve.changed);
}

void seq_case_copy(const struct seq_case *from, struct seq_case *to, const char *name)
{
    char path[600], buf[65536];
    to->config = from->config;
    seq_case_dir(to, name);
    snprintf(path, sizeof path, "%s/data.mdb", from->dir);
    int in = open(path, O_RDONLY);
    snprintf(path, sizeof path, "%s/data.mdb", to->dir);
    int out = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(in >= 0 && out >= 0);
    for (ssize_t size; (size = read(in, buf, sizeof buf)) > 0;)
        assert_int_equal(write(out, buf, (size_t)size), size);
    close(in);
    close(out);
}

/* ---- calls ---- */

static pthread_mutex_t call_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t call_done = PTHREAD_COND_INITIALIZER;
static struct pd_request *call_answered;

static void called(struct pd_request *request)
{
    pthread_mutex_lock(&call_mutex);
    call_answered = request;
    pthread_cond_signal(&call_done);
    pthread_mutex_unlock(&call_mutex);
}

int seq_call(struct seq_case *c, struct pd_request *request)
{
    request->done = called;
    call_answered = NULL;
    int rc = pd_sequencer_submit(c->seq, request);
    if (rc)
        return rc;
    pthread_mutex_lock(&call_mutex);
    while (call_answered != request)
        pthread_cond_wait(&call_done, &call_mutex);
    pthread_mutex_unlock(&call_mutex);
    return request->result;
}

int seq_open(struct seq_case *c, struct seq_stream *stream)
{
    struct pd_request_open_stream *open = &stream->open;
    *open = (struct pd_request_open_stream){.base.kind = PD_REQUEST_OPEN_STREAM};
    snprintf(open->feed, sizeof open->feed, "%s", stream->feed);
    snprintf(open->stream, sizeof open->stream, "%s", stream->name);
    snprintf(open->source, sizeof open->source, "%s", stream->source);
    snprintf(open->content_id, sizeof open->content_id, "%s", stream->content_id);
    snprintf(open->producer, sizeof open->producer, "test");
    return seq_call(c, &open->base);
}

/* ---- blocks ---- */

int32_t seq_token(const char *stream, uint64_t seq, uint32_t index)
{
    uint64_t hash = XXH3_64bits_withSeed(stream, strlen(stream), seq * 65537 + index);
    return (int32_t)(hash & 0x7fffffff);
}

struct owned_block {
    struct pd_block block;
    int32_t *body;
};

static _Atomic int blocks_alive;

int seq_blocks_alive(void)
{
    return atomic_load(&blocks_alive);
}

static void block_release(struct pd_block *block)
{
    struct owned_block *owned = PD_CONTAINER_OF(block, struct owned_block, block);
    free(owned->body);
    free(block->pieces);
    free(block->head.lengths);
    free(block->head.rejected);
    free(block->head.token_digests);
    free(block->head.label_digests);
    free(owned);
    atomic_fetch_sub(&blocks_alive, 1);
}

static void fill_column(const struct seq_stream *stream, const struct seq_block_spec *spec,
                        int32_t *body, int add, uint64_t *digests)
{
    for (uint32_t i = 0; i < spec->count; i++) {
        for (uint32_t t = 0; t < spec->lengths[i]; t++)
            body[t] = seq_token(stream->name, spec->first_seq + i, t) + add;
        digests[i] = XXH3_64bits(body, spec->lengths[i] * 4ull);
        body += spec->lengths[i];
    }
}

static void cut_pieces(struct pd_block *block, const uint8_t *body, uint32_t cut)
{
    uint64_t left = block->head.body_bytes;
    if (cut == 0)
        cut = left ? (uint32_t)left : 1;
    block->piece_count = (uint32_t)((left + cut - 1) / cut);
    block->pieces = calloc(block->piece_count ? block->piece_count : 1, sizeof *block->pieces);
    assert_non_null(block->pieces);
    for (uint32_t i = 0; i < block->piece_count; i++) {
        uint64_t size = left < cut ? left : cut;
        block->pieces[i] = (struct pd_piece){.data = body, .size_bytes = (size_t)size};
        body += size;
        left -= size;
    }
}

struct pd_block *seq_block(const struct seq_stream *stream, const struct seq_block_spec *spec)
{
    struct owned_block *owned = calloc(1, sizeof *owned);
    assert_non_null(owned);
    struct pd_block_head *head = &owned->block.head;
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < spec->count; i++)
        tokens += spec->lengths[i];
    head->stream = stream->open.stream_id;
    head->first_seq = spec->first_seq;
    head->count = spec->count;
    head->has_labels = spec->labels;
    head->body_bytes = tokens * (spec->labels ? 8 : 4);
    head->lengths = calloc(spec->count, 4);
    head->token_digests = calloc(spec->count, 8);
    owned->body = malloc(head->body_bytes ? head->body_bytes : 1);
    assert_true(head->lengths && head->token_digests && owned->body);
    memcpy(head->lengths, spec->lengths, spec->count * 4ull);
    fill_column(stream, spec, owned->body, 0, head->token_digests);
    if (spec->labels) {
        head->label_digests = calloc(spec->count, 8);
        assert_non_null(head->label_digests);
        fill_column(stream, spec, owned->body + tokens, 1, head->label_digests);
    }
    if (spec->rejected) {
        head->rejected = calloc(spec->count, 1);
        assert_non_null(head->rejected);
        memcpy(head->rejected, spec->rejected, spec->count);
    }
    cut_pieces(&owned->block, (const uint8_t *)owned->body, spec->cuts);
    owned->block.release = block_release;
    atomic_fetch_add(&blocks_alive, 1);
    return &owned->block;
}

int seq_push(struct seq_case *c, struct seq_stream *stream, const struct seq_block_spec *spec,
             struct pd_request_append *answer)
{
    *answer = (struct pd_request_append){.base.kind = PD_REQUEST_APPEND,
                                         .block = seq_block(stream, spec),
                                         .epoch = stream->open.epoch};
    return seq_call(c, &answer->base);
}

int seq_end(struct seq_case *c, struct seq_stream *stream, uint64_t next_seq)
{
    struct pd_request_end_stream request = {.base.kind = PD_REQUEST_END_STREAM,
                                            .feed_index = stream->open.feed_index,
                                            .stream_id = stream->open.stream_id,
                                            .epoch = stream->open.epoch,
                                            .next_seq = next_seq};
    return seq_call(c, &request.base);
}

int seq_end_feed(struct seq_case *c, const char *feed)
{
    struct pd_request_end_feed request = {.base.kind = PD_REQUEST_END_FEED};
    snprintf(request.feed, sizeof request.feed, "%s", feed);
    return seq_call(c, &request.base);
}

int seq_flush(struct seq_case *c, const char *feed, uint64_t packs)
{
    struct pd_request_flush request = {.base.kind = PD_REQUEST_FLUSH, .packs = packs};
    snprintf(request.feed, sizeof request.feed, "%s", feed);
    return seq_call(c, &request.base);
}

struct pd_request_open_job seq_job_request(const char *feed, const char *job, uint32_t dp_size,
                                           uint32_t rows, uint32_t accum, const char *token)
{
    struct pd_request_open_job request = {.base.kind = PD_REQUEST_OPEN_JOB,
                                          .spec = {.step_packs = dp_size * rows * accum,
                                                   .dp_size = dp_size,
                                                   .rows = rows,
                                                   .accum = accum,
                                                   .kind = PD_JOB_TRAINER}};
    snprintf(request.feed, sizeof request.feed, "%s", feed);
    snprintf(request.spec.name, sizeof request.spec.name, "%s", job);
    snprintf(request.world_token, sizeof request.world_token, "%s", token);
    return request;
}

int seq_commit(struct seq_case *c, const char *feed, const char *job, uint64_t generation,
               uint64_t step, uint64_t fetched, struct pd_error *error)
{
    struct pd_request_commit request = {
        .base.kind = PD_REQUEST_COMMIT, .generation = generation, .step = step, .fetched = fetched};
    snprintf(request.feed, sizeof request.feed, "%s", feed);
    snprintf(request.job, sizeof request.job, "%s", job);
    int rc = seq_call(c, &request.base);
    if (error)
        *error = request.base.error;
    return rc;
}

int seq_deliver(struct seq_case *c, uint32_t feed, uint32_t job, uint64_t step)
{
    struct pd_request_delivered request = {
        .base.kind = PD_REQUEST_DELIVERED, .feed_index = feed, .job_id = job, .step = step};
    return seq_call(c, &request.base);
}

int seq_say_delivered(struct seq_case *c, uint32_t feed, uint32_t job, uint64_t step)
{
    struct pd_request_delivered request = {.base.kind = PD_REQUEST_DELIVERED,
                                           .feed_index = feed,
                                           .job_id = job,
                                           .step = step,
                                           .said = true};
    return seq_call(c, &request.base);
}

struct pd_request_status seq_status(struct seq_case *c)
{
    struct pd_request_status request = {.base.kind = PD_REQUEST_STATUS};
    assert_int_equal(seq_call(c, &request.base), 0);
    return request;
}

/* ---- shorthands ---- */

void seq_start(struct seq_case *c)
{
    struct pd_error error = {0};
    if (seq_case_start(c, &error) != 0)
        fail_msg("start: %s: %s", error.reason, error.text);
}

void seq_new(struct seq_case *c, const char *name)
{
    seq_case_config(c, 1);
    seq_case_dir(c, name);
    seq_start(c);
}

void seq_finish(struct seq_case *c)
{
    seq_case_stop(c);
    seq_case_fini(c);
    assert_int_equal(seq_blocks_alive(), 0);
}

struct seq_stream seq_stream_of(const char *feed, const char *name)
{
    struct seq_stream stream = {.content_id = "v1"};
    snprintf(stream.feed, sizeof stream.feed, "%s", feed);
    snprintf(stream.name, sizeof stream.name, "%s", name);
    return stream;
}

int seq_push_lengths(struct seq_case *c, struct seq_stream *stream, uint64_t first_seq,
                     uint32_t count, uint32_t length, struct pd_request_append *answer)
{
    uint32_t lengths[512];
    assert_true(count <= 512);
    for (uint32_t i = 0; i < count; i++)
        lengths[i] = length;
    struct seq_block_spec spec = {
        .first_seq = first_seq, .count = count, .lengths = lengths, .cuts = 100};
    return seq_push(c, stream, &spec, answer);
}

struct pd_feed_progress seq_progress(struct seq_case *c, uint32_t feed_index)
{
    pthread_mutex_lock(&c->serve.mutex);
    struct pd_feed_progress progress = c->serve.progress[feed_index];
    pthread_mutex_unlock(&c->serve.mutex);
    return progress;
}
