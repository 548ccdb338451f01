/* libpackd's own promises, against the stand-in server that client_test.py has set up:
 *
 *     client_api ADDRESS SCENARIO
 *
 * deadlines, interrupts, bounded buffers, batches that outlive their job, callbacks on the caller's
 * thread. Ends with 0, or a failed check names the line. */
#include "client/include/packd.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPECT(ok)                                                           \
    do {                                                                     \
        if (!(ok)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #ok); \
            exit(1);                                                         \
        }                                                                    \
    } while (0)

static const char *address;
static struct packd_error error;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static struct packd_job_options job_options(void)
{
    return (struct packd_job_options){
        .server = address, .job = "train", .dp_size = 1, .rows = 2, .timeout_ms = 10000};
}

/* No answer may take longer, however busy the machine is. */
#define CEILING_S 30

/* Until the main thread, which calls libpackd, sleeps in that call. */
static void await_caller_sleeps(void)
{
    char state = 0;
    for (double from = now_s(); state != 'S' && now_s() - from < CEILING_S; usleep(1000)) {
        FILE *file = fopen("/proc/self/stat", "r");
        EXPECT(file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
        fclose(file);
    }
    EXPECT(state == 'S');
}

static void *interrupt_job(void *job)
{
    await_caller_sleeps();
    packd_job_interrupt(job);
    return NULL;
}

/* The server never sends a batch. */
static void waiting(void)
{
    struct packd_job_options options = job_options();
    struct packd_job *job;
    const struct packd_batch *batch;
    pthread_t thread;
    EXPECT(packd_job_open(&options, &job, &error) == 0);
    double from = now_s();
    EXPECT(packd_job_next(job, 0, &batch, &error) == PACKD_ETIMEDOUT);
    EXPECT(now_s() - from < CEILING_S);
    EXPECT(packd_job_next(job, 300, &batch, &error) == PACKD_ETIMEDOUT);
    EXPECT(now_s() - from >= 0.3 && now_s() - from < CEILING_S);
    EXPECT(strcmp(error.reason, "WAIT_SAMPLES") == 0 && strstr(error.text, address));
    EXPECT(strstr(error.text, "job train of feed default") && strstr(error.text, "step 0"));
    struct packd_waiting waits;
    packd_job_waiting(job, &waits);
    EXPECT(waits.waiting && strcmp(waits.streams, "slow") == 0);
    EXPECT(pthread_create(&thread, NULL, interrupt_job, job) == 0);
    EXPECT(packd_job_next(job, 30000, &batch, &error) == PACKD_ECANCELED);
    pthread_join(thread, NULL);
    EXPECT(packd_job_next(job, 50, &batch, &error) == PACKD_ETIMEDOUT);
    from = now_s();
    packd_job_close(job);
    EXPECT(now_s() - from < CEILING_S);
}

static pthread_t caller;
static unsigned waits_seen;

static void on_waiting(void *ctx, const struct packd_waiting *waits)
{
    EXPECT(pthread_equal(pthread_self(), caller));
    EXPECT(ctx == &waits_seen && waits->waiting);
    waits_seen++;
}

static void callbacks(void)
{
    struct packd_job_options options = job_options();
    struct packd_job *job;
    const struct packd_batch *batch;
    caller = pthread_self();
    options.on_waiting = on_waiting;
    options.ctx = &waits_seen;
    EXPECT(packd_job_open(&options, &job, &error) == 0);
    EXPECT(packd_job_next(job, 500, &batch, &error) == PACKD_ETIMEDOUT);
    EXPECT(waits_seen == 1);
    packd_job_close(job);
}

static int live;

static void *count_alloc(void *ctx, size_t bytes, size_t alignment)
{
    (void)ctx;
    __atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
    return aligned_alloc(alignment, bytes);
}

static void count_free(void *ctx, void *memory, size_t bytes)
{
    EXPECT(ctx == &live && bytes > 0);
    __atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
    free(memory);
}

/* Six steps, then the end of the feed. */
static void batches(void)
{
    struct packd_job_options options = job_options();
    struct packd_job *job;
    struct packd_job_info info;
    struct packd_end end;
    const struct packd_batch *kept[6], *none;
    options.memory_alloc = count_alloc;
    options.memory_free = count_free;
    options.memory_ctx = &live;
    EXPECT(packd_job_open(&options, &job, &error) == 0);
    EXPECT(packd_job_commit(job, 0, 1000, &error) == PACKD_EINVAL);
    EXPECT(strcmp(error.reason, "COMMIT_BEYOND_FETCHED") == 0);
    for (unsigned i = 0; i < 6; i++)
        EXPECT(packd_job_next(job, 10000, &kept[i], &error) == 0 && kept[i]->step == i);
    for (unsigned i = 0; i < 2; i++) {
        EXPECT(packd_job_next(job, 10000, &none, &error) == PACKD_EEND);
        EXPECT(strcmp(error.reason, "END_OF_FEED") == 0);
    }
    EXPECT(packd_job_commit(job, 5, 5000, &error) == 0);
    EXPECT(packd_job_commit(job, 6, 5000, &error) == PACKD_EINVAL);
    packd_job_info(job, &info);
    packd_job_end(job, &end);
    EXPECT(info.committed_step == 5 && info.returned_step == 5 && info.next_step == 6);
    EXPECT(info.received_bytes < info.payload_bytes && end.ended && end.last_step == 5);
    packd_job_close(job);
    for (unsigned i = 0; i < 6; i++) {
        const struct packd_array *tokens = packd_batch_array(kept[i], "tokens");
        const struct packd_array *cu = packd_batch_array(kept[i], "cu_seqlens");
        EXPECT(tokens && tokens->ndim == 2 && tokens->shape[0] == 2 && !tokens->derived);
        EXPECT(((const int32_t *)cu->data)[kept[i]->n_segments] == 128);
        EXPECT((uintptr_t)kept[i]->payload % 4096 == 0);
        char *json = packd_batch_header_json(kept[i]);
        EXPECT(json && strstr(json, "\"cu_seqlens_padded\""));
        packd_free(json);
        packd_batch_release(kept[i]);
    }
    EXPECT(live == 0);
}

static void *interrupt_producer(void *producer)
{
    await_caller_sleeps();
    packd_producer_interrupt(producer);
    return NULL;
}

/* The server grants no credit. */
static void no_credit(void)
{
    static int32_t tokens[500];
    struct packd_sample samples[100];
    struct packd_producer_options options = {
        .server = address, .stream = "s", .buffer_bytes = 20000, .block_bytes = 4000};
    struct packd_producer *producer;
    struct packd_producer_stats stats;
    pthread_t thread;
    size_t taken = 0;
    for (size_t i = 0; i < 100; i++)
        samples[i] = (struct packd_sample){.tokens = tokens, .count = 500};
    EXPECT(packd_producer_open(&options, &producer, &error) == 0);
    EXPECT(packd_producer_put_many(producer, samples, 100, 200, &taken, &error) == PACKD_ETIMEDOUT);
    EXPECT(taken >= 8 && taken <= 10 && strstr(error.text, address));
    packd_producer_stats(producer, &stats);
    EXPECT(stats.buffered_bytes <= 20000 && stats.next_seq == taken && stats.durable_seq == 0);
    EXPECT(pthread_create(&thread, NULL, interrupt_producer, producer) == 0);
    EXPECT(packd_producer_flush(producer, 30000, &error) == PACKD_ECANCELED);
    pthread_join(thread, NULL);
    double from = now_s();
    EXPECT(packd_producer_end_feed(producer, 200, NULL, &error) == PACKD_ETIMEDOUT);
    EXPECT(packd_producer_close(producer, 0, &error) == PACKD_ETIMEDOUT);
    EXPECT(now_s() - from < CEILING_S);
}

static void small_puts(void)
{
    struct packd_producer_options options = {
        .server = address, .stream = "s", .buffer_bytes = 4000};
    struct packd_producer *producer;
    struct packd_producer_stats stats;
    EXPECT(packd_producer_open(&options, &producer, &error) == 0);
    for (int32_t i = 0; i < 5000; i++) {
        struct packd_sample sample = {.tokens = &i, .count = 1};
        EXPECT(packd_producer_put(producer, &sample, PACKD_TIMEOUT_DEFAULT, &error) == 0);
    }
    struct packd_sample bad = {.tokens = NULL, .count = 0};
    EXPECT(packd_producer_put(producer, &bad, 0, &error) == PACKD_EINVAL);
    EXPECT(strstr(error.text, "seq 5000") && packd_producer_next_seq(producer) == 5000);
    EXPECT(packd_producer_end_stream(producer, PACKD_TIMEOUT_DEFAULT, &error) == 0);
    packd_producer_stats(producer, &stats);
    EXPECT(stats.durable_seq == 5000 && stats.stream_ended && stats.buffered_bytes == 0);
    EXPECT(packd_producer_put(producer, &bad, 0, &error) == PACKD_EINVAL);
    EXPECT(strcmp(error.reason, "STREAM_ENDED") == 0);
    EXPECT(packd_producer_close(producer, PACKD_TIMEOUT_DEFAULT, &error) == 0);
}

/* One sample, and no flush: linger sends it. */
static void linger(void)
{
    struct packd_producer_options options = {.server = address, .stream = "s"};
    struct packd_producer *producer;
    struct packd_producer_stats stats = {0};
    int32_t token = 7;
    struct packd_sample sample = {.tokens = &token, .count = 1};
    EXPECT(packd_producer_open(&options, &producer, &error) == 0);
    EXPECT(packd_producer_put(producer, &sample, 0, &error) == 0);
    for (double from = now_s(); stats.durable_seq == 0 && now_s() - from < 10; usleep(1000))
        packd_producer_stats(producer, &stats);
    EXPECT(stats.durable_seq == 1);
    EXPECT(packd_producer_close(producer, 1000, &error) == 0);
}

static void bad_options(void)
{
    struct packd_job_options job = job_options();
    struct packd_producer_options producer = {.server = address};
    struct packd_job *j;
    struct packd_producer *p;
    EXPECT(packd_producer_open(&producer, &p, &error) == PACKD_EINVAL);
    producer.stream = "no blanks";
    EXPECT(packd_producer_open(&producer, &p, &error) == PACKD_EINVAL);
    EXPECT(strcmp(error.reason, "BAD_NAME") == 0);
    job.dp_rank = 1;
    EXPECT(packd_job_open(&job, &j, &error) == PACKD_EINVAL &&
           strcmp(error.reason, "DP_RANK") == 0);
    job = job_options();
    job.job = NULL;
    EXPECT(packd_job_open(&job, &j, NULL) == PACKD_EINVAL);
    job = job_options();
    job.server = "127.0.0.1:1";
    job.timeout_ms = 300;
    double from = now_s();
    EXPECT(packd_job_open(&job, &j, &error) == PACKD_ETIMEDOUT && now_s() - from < CEILING_S);
    EXPECT(strstr(error.text, "127.0.0.1:1") && error.grpc_code == 14);
    producer =
        (struct packd_producer_options){.server = job.server, .stream = "s", .timeout_ms = 300};
    from = now_s();
    EXPECT(packd_producer_open(&producer, &p, &error) == PACKD_ETIMEDOUT &&
           now_s() - from < CEILING_S);
    EXPECT(strstr(error.text, "127.0.0.1:1") && error.grpc_code == 14);
    EXPECT(packd_producer_close(NULL, 0, NULL) == 0);
    packd_job_close(NULL);
    packd_batch_release(NULL);
    packd_admin_close(NULL);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } scenarios[] = {{"waiting", waiting},        {"callbacks", callbacks},   {"batches", batches},
                     {"no_credit", no_credit},    {"small_puts", small_puts}, {"linger", linger},
                     {"bad_options", bad_options}};
    if (argc != 3)
        return 2;
    address = argv[1];
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++)
        if (strcmp(scenarios[i].name, argv[2]) == 0) {
            scenarios[i].run();
            return 0;
        }
    return 2;
}
