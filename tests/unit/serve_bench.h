/* What the tests of serving share: a feed with one job over a made-up log, waiters that really
 * wait, a gate that holds builds back. */
#ifndef PD_TESTS_SERVE_BENCH_H
#define PD_TESTS_SERVE_BENCH_H

#include "server/serve_state.h"
#include "tests/unit/serve_log.h"

struct serve_bench_options {
    uint64_t seed;
    uint32_t packs;   /* in the log */
    uint32_t planned; /* told to serve at once; 0 = all */
    bool ended;
    uint32_t dp_size, rows, accum;
    enum pd_last_step last_step;
    uint64_t memory;  /* bytes; 0 = plenty */
    uint32_t threads; /* 0 = 2 */
    struct pd_serve_hooks hooks;
};

struct serve_bench {
    struct pd_config config;
    struct pd_feed_config feed;
    struct pd_log *log;
    struct pd_serve *serve;
    struct pd_job_info job;
    struct pd_feed_progress progress;
};

void serve_bench_init(struct serve_bench *bench, const struct serve_bench_options *options);
void serve_bench_fini(struct serve_bench *bench);
/* Tells serve how far the feed is planned. */
void serve_bench_advance(struct serve_bench *bench, uint64_t packs, bool ended);
struct pd_batch_key serve_bench_key(const struct serve_bench *bench, uint64_t step, uint32_t micro,
                                    uint32_t dp_rank);

/* A waiter with a condition of its own. */
struct serve_rank {
    struct pd_waiter waiter;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    uint32_t woken; /* times ready has run */
};
void serve_rank_init(struct serve_rank *rank, struct pd_batch_key key);
void serve_rank_fini(struct serve_rank *rank);
/* Waits until ready has run `times` times; fails after 20 s. */
void serve_rank_await(struct serve_rank *rank, uint32_t times);
uint32_t serve_rank_woken(struct serve_rank *rank);
/* One call of pd_serve_get. */
int serve_rank_get(struct serve_bench *bench, struct serve_rank *rank,
                   struct pd_ready_batch **batch);
/* Gets, waiting as long as it takes; any result but PD_EAGAIN. */
int serve_get(struct serve_bench *bench, struct pd_batch_key key, struct pd_ready_batch **batch,
              struct pd_error *error);
/* The same, and it must succeed. */
struct pd_ready_batch *serve_get_ok(struct serve_bench *bench, struct pd_batch_key key);
/* Gets the batch, reports it as delivered, lets it go. Returns whether its step is complete. */
bool serve_deliver(struct serve_bench *bench, struct pd_batch_key key);

/* A validator that holds every batch back until it is opened. */
struct serve_gate {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool open;
    uint32_t inside; /* batches that came to it, in all */
};
#define SERVE_GATE_INIT                                               \
    {                                                                 \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0 \
    }
int serve_gate_validate(void *gate, struct pd_ready_batch *batch, struct pd_check_finding *finding);
void serve_gate_open(struct serve_gate *gate);
void serve_gate_await(struct serve_gate *gate, uint32_t inside);

#endif
