/* Eight threads over one small budget: readers of two jobs, worlds that rise, cancelled waits,
 * hints, a feed that grows. Run it under TSan.
 *
 * Every batch a reader gets must be the one it asked for, byte for byte what the first build of it
 * gave. */
#include "tests/unit/serve_bench.h"

#include "base/log.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include <cmocka.h>

enum { STEPS = 40, RANKS = 2, MICROS = 2, JOBS = 2, READERS = 6, ROUNDS = 300 };

struct stress {
    struct serve_bench bench;
    atomic_uint_fast64_t generation[JOBS];
    atomic_uint_fast64_t digests[STEPS][MICROS][RANKS];
    atomic_bool done;
    atomic_uint_fast64_t got, fenced, cancelled;
};

struct actor {
    struct stress *stress;
    unsigned seed;
    pthread_t thread;
};

static struct pd_batch_key random_key(struct actor *actor)
{
    uint32_t job = (uint32_t)rand_r(&actor->seed) % JOBS;
    return (struct pd_batch_key){.job_id = 7 + job,
                                 .generation = actor->stress->generation[job],
                                 .step = (uint64_t)rand_r(&actor->seed) % STEPS,
                                 .micro = (uint32_t)rand_r(&actor->seed) % MICROS,
                                 .dp_rank = (uint32_t)rand_r(&actor->seed) % RANKS};
}

/* Headers differ by the job's name, so only payloads are compared across jobs. */
static void check_batch(struct stress *stress, const struct pd_batch_key *key,
                        struct pd_ready_batch *batch)
{
    PD_CHECK(memcmp(&batch->key, key, sizeof *key) == 0);
    uint64_t digest = XXH3_64bits(batch->payload, batch->batch.payload_bytes), none = 0;
    if (!atomic_compare_exchange_strong(&stress->digests[key->step][key->micro][key->dp_rank],
                                        &none, digest))
        PD_CHECK(none == digest);
}

static void take(struct actor *actor, struct pd_ready_batch *batch, const struct pd_batch_key *key)
{
    struct stress *stress = actor->stress;
    check_batch(stress, key, batch);
    bool complete;
    pd_ready_batch_ref(batch);
    pd_ready_batch_unref(batch);
    if (rand_r(&actor->seed) % 4 != 0)
        pd_serve_delivered(stress->bench.serve, batch, &complete);
    pd_ready_batch_unref(batch);
    stress->got++;
}

/* One call of a reader: waits, gives up, or is refused. */
static void read_one(struct actor *actor)
{
    struct stress *stress = actor->stress;
    struct pd_batch_key key = random_key(actor);
    struct serve_rank rank;
    serve_rank_init(&rank, key);
    struct pd_ready_batch *batch;
    uint32_t waits = 0;
    int rc;
    while ((rc = serve_rank_get(&stress->bench, &rank, &batch)) == PD_EAGAIN) {
        waits++;
        if (rand_r(&actor->seed) % 8 == 0) {
            stress->cancelled++;
            if (!pd_serve_cancel(stress->bench.serve, &rank.waiter))
                serve_rank_await(&rank, waits);
            serve_rank_fini(&rank);
            return;
        }
        serve_rank_await(&rank, waits);
    }
    PD_CHECK(rc == 0 || rc == PD_EFENCED);
    if (rc == 0)
        take(actor, batch, &key);
    stress->fenced += rc == PD_EFENCED;
    serve_rank_fini(&rank);
}

static void *read_many(void *arg)
{
    struct actor *actor = arg;
    for (int i = 0; i < ROUNDS; i++) {
        read_one(actor);
        struct pd_batch_key hint = random_key(actor);
        pd_serve_prefetch(actor->stress->bench.serve, &hint);
    }
    return NULL;
}

/* Worlds rise now and then; status is read all the time. */
static void *operate(void *arg)
{
    struct actor *actor = arg;
    struct stress *stress = actor->stress;
    struct pd_job_info job = stress->bench.job;
    uint64_t next_rise = 50;
    while (!stress->done) {
        struct pd_serve_gauges gauges;
        struct pd_served_totals totals;
        struct pd_wait_info info;
        struct pd_batch_key key = random_key(actor);
        pd_serve_gauges(stress->bench.serve, &gauges);
        pd_serve_totals(stress->bench.serve, 0, &totals);
        pd_serve_wait_info(stress->bench.serve, &key, &info);
        PD_CHECK(gauges.ready_bytes <= gauges.ready_bytes_max);
        uint32_t which = (uint32_t)rand_r(&actor->seed) % JOBS;
        sched_yield();
        if (stress->got < next_rise)
            continue;
        next_rise = stress->got + 150;
        job.job_id = 7 + which;
        job.generation = stress->generation[which] + 1;
        pd_serve_job_opened(stress->bench.serve, &job);
        stress->generation[which] = job.generation;
    }
    return NULL;
}

static void *grow(void *arg)
{
    struct actor *actor = arg;
    struct serve_bench *bench = &actor->stress->bench;
    for (uint64_t packs = bench->progress.packs_planned; packs <= bench->log->pack_count; packs++) {
        serve_bench_advance(bench, packs, packs == bench->log->pack_count);
        for (int i = 0; i < 500 && !actor->stress->done; i++)
            sched_yield();
    }
    return NULL;
}

static void test_stress(void **state)
{
    (void)state;
    unsigned seed = (unsigned)time(NULL);
    print_message("seed %u\n", seed);
    static struct stress stress;
    serve_bench_init(&stress.bench, &(struct serve_bench_options){.packs = STEPS * RANKS * MICROS,
                                                                  .planned = 8,
                                                                  .dp_size = RANKS,
                                                                  .rows = 1,
                                                                  .accum = MICROS,
                                                                  .memory = 250000,
                                                                  .threads = 3});
    struct pd_job_info other = stress.bench.job;
    other.job_id = 8;
    pd_serve_job_opened(stress.bench.serve, &other);
    stress.generation[0] = stress.generation[1] = 1;
    struct actor actors[READERS + 2];
    for (unsigned i = 0; i < READERS + 2; i++) {
        actors[i] = (struct actor){.stress = &stress, .seed = seed + i};
        void *(*run)(void *) = i < READERS ? read_many : i == READERS ? operate : grow;
        assert_int_equal(pthread_create(&actors[i].thread, NULL, run, &actors[i]), 0);
    }
    for (unsigned i = 0; i < READERS; i++)
        pthread_join(actors[i].thread, NULL);
    stress.done = true;
    pthread_join(actors[READERS].thread, NULL);
    pthread_join(actors[READERS + 1].thread, NULL);
    struct pd_serve_gauges gauges;
    pd_serve_gauges(stress.bench.serve, &gauges);
    print_message("got %llu, fenced %llu, cancelled %llu, built %llu, evicted %llu\n",
                  (unsigned long long)stress.got, (unsigned long long)stress.fenced,
                  (unsigned long long)stress.cancelled, (unsigned long long)gauges.built_total,
                  (unsigned long long)gauges.evicted_total);
    assert_int_equal(gauges.waiters, 0);
    assert_true(gauges.evicted_total > 0);
    assert_int_equal(stress.got + stress.fenced + stress.cancelled, READERS * ROUNDS);
    serve_bench_fini(&stress.bench);
    assert_true(stress.got > 0);
}

int main(void)
{
    pd_log_setup(PD_LOG_ERROR, PD_LOG_PLAIN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
