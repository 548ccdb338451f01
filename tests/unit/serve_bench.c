/* Shared parts of the tests of serving. Waits have deadlines of 20 s, so that a lost wake-up fails
 * a test and does not hang it. */
#include "tests/unit/serve_bench.h"

#include "base/check.h"

#include <string.h>
#include <time.h>

#define SEQ_LEN 256

static void feed_init(struct pd_feed_config *feed, const struct serve_bench_options *options)
{
    strcpy(feed->name, "default");
    feed->last_step = options->last_step;
    feed->layout = (struct pd_layout_rules){.seq_len = SEQ_LEN,
                                            .seg_align = 1,
                                            .total_align = 1,
                                            .pad_segment = 64,
                                            .cost = {24576, 1}};
}

static struct pd_log *log_make(const struct serve_bench_options *options)
{
    struct serve_log_options log = {.seed = options->seed ? options->seed : 1,
                                    .packs = options->packs,
                                    .seq_len = SEQ_LEN,
                                    .seg_align = 1,
                                    .shortest = 10,
                                    .longest = 90,
                                    .streams = 3};
    return serve_log_new(&log);
}

void serve_bench_init(struct serve_bench *b, const struct serve_bench_options *options)
{
    memset(b, 0, sizeof *b);
    feed_init(&b->feed, options);
    b->log = log_make(options);
    b->config = (struct pd_config){
        .memory_batches_bytes = options->memory ? options->memory : 64u << 20,
        .assemble_threads = options->threads ? options->threads : 2,
        .feeds = &b->feed,
        .feed_count = 1,
    };
    struct pd_error error;
    PD_CHECK(pd_serve_new(&b->config, b->log, &b->serve, &error) == 0);
    *pd_serve_hooks(b->serve) = options->hooks;
    PD_CHECK(pd_serve_start(b->serve, &error) == 0);
    b->job = (struct pd_job_info){.job_id = 7, .generation = 1};
    strcpy(b->job.spec.name, "train");
    b->job.spec.dp_size = options->dp_size;
    b->job.spec.rows = options->rows;
    b->job.spec.accum = options->accum;
    b->job.spec.step_packs = options->dp_size * options->rows * options->accum;
    b->progress.streams_open = 3;
    serve_bench_advance(b, options->planned ? options->planned : options->packs, options->ended);
    pd_serve_job_opened(b->serve, &b->job);
}

void serve_bench_fini(struct serve_bench *b)
{
    pd_serve_stop(b->serve);
    PD_CHECK(b->serve->used_peak_bytes <= b->serve->budget_bytes);
    pd_serve_free(b->serve);
    serve_log_free(b->log);
}

void serve_bench_advance(struct serve_bench *b, uint64_t packs, bool ended)
{
    b->progress.packs_planned = packs;
    b->progress.ended = ended;
    pd_serve_feed_advanced(b->serve, 0, &b->progress);
}

struct pd_batch_key serve_bench_key(const struct serve_bench *b, uint64_t step, uint32_t micro,
                                    uint32_t dp_rank)
{
    return (struct pd_batch_key){.job_id = b->job.job_id,
                                 .generation = b->job.generation,
                                 .step = step,
                                 .micro = micro,
                                 .dp_rank = dp_rank};
}

/* ---- ranks ---- */

static void rank_ready(struct pd_waiter *waiter)
{
    struct serve_rank *rank = PD_CONTAINER_OF(waiter, struct serve_rank, waiter);
    pthread_mutex_lock(&rank->lock);
    rank->woken++;
    pthread_cond_signal(&rank->cond);
    pthread_mutex_unlock(&rank->lock);
}

void serve_rank_init(struct serve_rank *rank, struct pd_batch_key key)
{
    memset(rank, 0, sizeof *rank);
    pthread_mutex_init(&rank->lock, NULL);
    pthread_cond_init(&rank->cond, NULL);
    rank->waiter.key = key;
    rank->waiter.ready = rank_ready;
}

void serve_rank_fini(struct serve_rank *rank)
{
    pthread_mutex_destroy(&rank->lock);
    pthread_cond_destroy(&rank->cond);
}

static void wait_a_second(pthread_cond_t *cond, pthread_mutex_t *lock)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    pthread_cond_timedwait(cond, lock, &until);
}

void serve_rank_await(struct serve_rank *rank, uint32_t times)
{
    pthread_mutex_lock(&rank->lock);
    for (int second = 0; rank->woken < times; second++) {
        PD_CHECK(second < 20 || rank->woken >= times);
        wait_a_second(&rank->cond, &rank->lock);
    }
    pthread_mutex_unlock(&rank->lock);
}

uint32_t serve_rank_woken(struct serve_rank *rank)
{
    pthread_mutex_lock(&rank->lock);
    uint32_t woken = rank->woken;
    pthread_mutex_unlock(&rank->lock);
    return woken;
}

int serve_rank_get(struct serve_bench *b, struct serve_rank *rank, struct pd_ready_batch **batch)
{
    struct pd_wait_info info;
    struct pd_error error;
    uint64_t last_step;
    return pd_serve_get(b->serve, &rank->waiter, batch, &info, &last_step, &error);
}

int serve_get(struct serve_bench *b, struct pd_batch_key key, struct pd_ready_batch **batch,
              struct pd_error *error)
{
    struct serve_rank rank;
    serve_rank_init(&rank, key);
    struct pd_wait_info info;
    uint64_t last_step;
    int rc;
    uint32_t waits = 0;
    while ((rc = pd_serve_get(b->serve, &rank.waiter, batch, &info, &last_step, error)) ==
           PD_EAGAIN)
        serve_rank_await(&rank, ++waits);
    serve_rank_fini(&rank);
    return rc;
}

struct pd_ready_batch *serve_get_ok(struct serve_bench *b, struct pd_batch_key key)
{
    struct pd_ready_batch *batch;
    struct pd_error error;
    int rc = serve_get(b, key, &batch, &error);
    if (rc != 0)
        pd_panic(__FILE__, __LINE__, "%s: %s", error.reason, error.text);
    PD_CHECK(memcmp(&batch->key, &key, sizeof key) == 0);
    return batch;
}

bool serve_deliver(struct serve_bench *b, struct pd_batch_key key)
{
    bool complete;
    struct pd_ready_batch *batch = serve_get_ok(b, key);
    pd_serve_delivered(b->serve, batch, &complete);
    pd_ready_batch_unref(batch);
    return complete;
}

/* ---- gate ---- */

int serve_gate_validate(void *ctx, struct pd_ready_batch *batch, struct pd_check_finding *finding)
{
    (void)finding;
    struct serve_gate *gate = ctx;
    pthread_mutex_lock(&gate->lock);
    gate->inside++;
    pthread_cond_broadcast(&gate->cond);
    while (!gate->open)
        pthread_cond_wait(&gate->cond, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
    strcpy(batch->validator, "gate");
    batch->probed = true;
    return 0;
}

void serve_gate_open(struct serve_gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->open = true;
    pthread_cond_broadcast(&gate->cond);
    pthread_mutex_unlock(&gate->lock);
}

void serve_gate_await(struct serve_gate *gate, uint32_t inside)
{
    pthread_mutex_lock(&gate->lock);
    for (int second = 0; gate->inside < inside; second++) {
        PD_CHECK(second < 20 || gate->inside >= inside);
        wait_a_second(&gate->cond, &gate->lock);
    }
    pthread_mutex_unlock(&gate->lock);
}
