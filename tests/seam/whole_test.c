/* Everything at once, in one process that sanitizers see whole: producers, the ranks of a job that
 * commits, a reader, an operator who changes weights and leaves steps out, a scraper. Then a daemon
 * that ends while everybody is at work, and clients that close without a word.
 *
 * What must hold whatever the threads did: no sample twice in a job, none lost but with a step that
 * was left out, every rank ends at the same step, the daemon ends with 0. Seen from the clients'
 * public library alone. A failed check in a thread ends the process. */
#include "base/check.h"
#include "base/clock.h"
#include "client/include/packd.h"
#include "tests/seam/daemon.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define PRODUCERS 3
#define RANKS 4
#define SAMPLES 1500 /* of each producer */
#define TOKENS_MAX 60
#define TIMEOUT_MS 120000
#define LEFT_OUT 20 /* this step and the next one */
#define BATCH_SAMPLES_MAX (64 / 3)

#define FEED                                         \
    "log: {max_bytes: 64MiB, durability: process}\n" \
    "memory: {batches: 8MiB, ingest: 8MiB}\n"        \
    "limits: {max_sample_bytes: 1MiB}\n"             \
    "threads: {rpc: 2}\n"                            \
    "validate: {fraction: 0.2}\n"                    \
    "feeds:\n"                                       \
    "  - name: default\n"                            \
    "    seq_len: 64\n"                              \
    "    window: 32\n"                               \
    "    plan_ahead: 64KiB\n"                        \
    "    jobs: [{name: train, retain: {commits: 1}}]\n"

static const char one_source[] = FEED;
static const char mixture[] =
    FEED "    sources: {s0: {weight: 3}, s1: {weight: 1}, s2: {weight: 2}}\n";

#define NEED(rc, error)                                                           \
    do {                                                                          \
        if ((rc) != 0)                                                            \
            pd_panic(__FILE__, __LINE__, "%s: %s", (error).reason, (error).text); \
    } while (0)

struct rank {
    pthread_t thread;
    uint32_t number;
    bool reader;
    uint8_t *seen; /* [PRODUCERS][SAMPLES] */
    uint64_t batches, last_step;
    uint32_t of_left_out; /* batches it had before their step was left out */
};

static atomic_bool over; /* the operator and the scraper end */

/* ---- producers ---- */

static void *produce(void *number)
{
    uint32_t at = *(uint32_t *)number;
    char stream[8], source[8];
    int32_t tokens[TOKENS_MAX];
    struct packd_error error = {0};
    struct packd_producer *producer;
    snprintf(stream, sizeof stream, "p%u", at);
    snprintf(source, sizeof source, "s%u", at);
    const struct packd_producer_options options = {.server = seam_daemon_address(),
                                                   .stream = stream,
                                                   .source = source,
                                                   .block_bytes = 4096,
                                                   .linger_ms = 1,
                                                   .timeout_ms = TIMEOUT_MS};
    NEED(packd_producer_open(&options, &producer, &error), error);
    for (uint32_t i = 0; i < SAMPLES; i++) {
        size_t count = 3 + (i * 7 + at) % (TOKENS_MAX - 2);
        for (size_t k = 0; k < count; k++)
            tokens[k] = (int32_t)(i + k);
        const struct packd_sample sample = {.tokens = tokens, .count = count};
        NEED(packd_producer_put(producer, &sample, PACKD_TIMEOUT_DEFAULT, &error), error);
    }
    NEED(packd_producer_end_stream(producer, PACKD_TIMEOUT_DEFAULT, &error), error);
    NEED(packd_producer_close(producer, PACKD_TIMEOUT_DEFAULT, &error), error);
    return NULL;
}

/* ---- ranks ---- */

static void note_samples(struct rank *rank, const struct packd_batch *batch)
{
    const struct packd_samples *samples = &batch->samples;
    for (size_t i = 0; i < samples->count; i++) {
        const char *stream = samples->streams[samples->stream ? samples->stream[i] : 0];
        uint32_t producer = (uint32_t)(stream[1] - '0');
        uint64_t seq = samples->seq ? samples->seq[i] : 0;
        PD_CHECK(stream[0] == 'p' && producer < PRODUCERS && seq < SAMPLES);
        uint8_t *seen = &rank->seen[producer * SAMPLES + seq];
        if (*seen)
            pd_panic(__FILE__, __LINE__, "sample %" PRIu64 " of %s came twice to rank %u", seq,
                     stream, rank->number);
        *seen = 1;
    }
}

static void *train(void *arg)
{
    struct rank *rank = arg;
    struct packd_error error = {0};
    struct packd_job *job;
    const struct packd_batch *batch;
    const struct packd_job_options options = {.server = seam_daemon_address(),
                                              .job = rank->reader ? "look" : "train",
                                              .kind = rank->reader ? PACKD_KIND_READER
                                                                   : PACKD_KIND_TRAINER,
                                              .world_token = "w",
                                              .dp_size = rank->reader ? 1 : RANKS,
                                              .dp_rank = rank->number,
                                              .auto_commit = rank->reader ? 0 : 8,
                                              .timeout_ms = TIMEOUT_MS};
    int rc;
    NEED(packd_job_open(&options, &job, &error), error);
    while ((rc = packd_job_next(job, PACKD_TIMEOUT_DEFAULT, &batch, &error)) == 0) {
        PD_CHECK(rank->batches == 0 || batch->step > rank->last_step);
        note_samples(rank, batch);
        rank->last_step = batch->step;
        rank->batches++;
        rank->of_left_out += batch->step == LEFT_OUT || batch->step == LEFT_OUT + 1;
        packd_batch_release(batch);
    }
    if (rc != PACKD_EEND)
        NEED(rc, error);
    struct packd_end end;
    packd_job_end(job, &end);
    PD_CHECK(end.ended && rank->batches > 0 && rank->last_step <= (uint64_t)end.last_step);
    rank->last_step = (uint64_t)end.last_step;
    packd_job_close(job);
    return NULL;
}

/* ---- operator and scraper ---- */

/* The outcome may be a refusal (the job is not there yet, the feed has ended): it must come. */
static void steer(struct packd_admin *admin, unsigned turn)
{
    struct packd_error error = {0};
    char *json = NULL;
    struct packd_source_weight weights[] = {{"s0", 1 + turn % 3}, {"s1", 2}, {"s2", 1}};
    int rc = packd_admin_status(admin, NULL, NULL, true, NULL, TIMEOUT_MS, &json, &error);
    NEED(rc, error);
    packd_free(json);
    rc = packd_admin_set_mixture(admin, NULL, weights, PRODUCERS, TIMEOUT_MS, NULL, &error);
    PD_CHECK(rc == 0 || error.reason[0]);
    rc = packd_admin_explain(admin, NULL, "train", turn, 0, TIMEOUT_MS, NULL, &error);
    PD_CHECK(rc == 0 || error.reason[0]);
    rc = packd_admin_flush(admin, NULL, 1, TIMEOUT_MS, NULL, &error);
    PD_CHECK(rc == 0 || error.reason[0]);
}

/* Ranks must pass over what is left out while they are under way. */
static void leave_out(struct packd_admin *admin, atomic_uint *left_out)
{
    struct packd_error error = {0};
    if (packd_admin_skip_steps(admin, NULL, "train", LEFT_OUT, LEFT_OUT + 1, "test", TIMEOUT_MS,
                               NULL, &error) == 0)
        atomic_store(left_out, 2);
}

static void *operate(void *left_out)
{
    struct packd_error error = {0};
    struct packd_admin *admin;
    const struct packd_admin_options options = {.server = seam_daemon_address()};
    NEED(packd_admin_open(&options, &admin, &error), error);
    for (unsigned turn = 0; !atomic_load(&over); turn++) {
        steer(admin, turn);
        if (atomic_load((atomic_uint *)left_out) == 0)
            leave_out(admin, left_out);
        usleep(5000);
    }
    packd_admin_close(admin);
    return NULL;
}

static void get(const char *path)
{
    const char *colon = strrchr(seam_daemon_http(), ':');
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
    char text[4096];
    ssize_t got, all = 0;
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    PD_CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    int size = snprintf(text, sizeof text,
                        "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path);
    PD_CHECK(send(fd, text, (size_t)size, MSG_NOSIGNAL) == size);
    while ((got = recv(fd, text, sizeof text, 0)) > 0)
        all += got;
    PD_CHECK(got == 0 && all > 0);
    close(fd);
}

static void *scrape(void *unused)
{
    (void)unused;
    while (!atomic_load(&over)) {
        get("/metrics");
        get("/status.json");
        get("/readyz");
        usleep(5000);
    }
    return NULL;
}

/* ---- the tests ---- */

/* The ranks together, and how many samples no rank has seen. */
static uint32_t missing(const struct rank *ranks, uint32_t count)
{
    uint32_t lost = 0;
    for (uint32_t i = 0; i < PRODUCERS * SAMPLES; i++) {
        uint32_t times = 0;
        for (uint32_t r = 0; r < count; r++)
            times += ranks[r].seen[i];
        assert_true(times <= 1);
        lost += times == 0;
    }
    return lost;
}

static void start_rank(struct rank *rank, uint32_t number, bool reader)
{
    *rank = (struct rank){.number = number, .reader = reader};
    rank->seen = calloc(PRODUCERS, SAMPLES);
    assert_non_null(rank->seen);
    assert_int_equal(pthread_create(&rank->thread, NULL, train, rank), 0);
}

static void test_everything_at_once(void **state)
{
    pthread_t producers[PRODUCERS], operator_thread, scraper;
    uint32_t numbers[PRODUCERS];
    struct rank ranks[RANKS], reader;
    atomic_uint left_out = 0;
    struct packd_error error = {0};
    struct packd_admin *admin;
    (void)state;
    seam_daemon_start(mixture);
    atomic_store(&over, false);
    for (uint32_t i = 0; i < RANKS; i++)
        start_rank(&ranks[i], i, false);
    start_rank(&reader, 0, true);
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&producers[i], NULL, produce, &numbers[i]), 0);
    }
    assert_int_equal(pthread_create(&operator_thread, NULL, operate, &left_out), 0);
    assert_int_equal(pthread_create(&scraper, NULL, scrape, NULL), 0);
    for (uint32_t i = 0; i < PRODUCERS; i++)
        pthread_join(producers[i], NULL);
    const struct packd_admin_options options = {.server = seam_daemon_address()};
    NEED(packd_admin_open(&options, &admin, &error), error);
    NEED(packd_admin_end_feed(admin, NULL, TIMEOUT_MS, NULL, &error), error);
    packd_admin_close(admin);
    for (uint32_t i = 0; i < RANKS; i++)
        pthread_join(ranks[i].thread, NULL);
    pthread_join(reader.thread, NULL);
    atomic_store(&over, true);
    pthread_join(operator_thread, NULL);
    pthread_join(scraper, NULL);

    for (uint32_t i = 1; i < RANKS; i++)
        assert_int_equal(ranks[i].last_step, ranks[0].last_step);
    uint32_t lost = missing(ranks, RANKS);
    print_message("%" PRIu64 " steps, %u left out with %u samples\n", ranks[0].last_step + 1,
                  atomic_load(&left_out), lost);
    uint32_t batches = 2 * RANKS; /* that were not delivered */
    for (uint32_t i = 0; i < RANKS; i++)
        batches -= ranks[i].of_left_out;
    assert_true(batches == 0 || atomic_load(&left_out) > 0);
    assert_in_range(lost, batches, batches * BATCH_SAMPLES_MAX);
    for (uint32_t i = 0; i < RANKS; i++)
        free(ranks[i].seen);
    free(reader.seen);
    assert_int_equal(seam_daemon_stop(), 0);
}

/* Pushes until the daemon is gone, then gives up what is not durable. */
static void *produce_until_the_end(void *unused)
{
    struct packd_error error = {0};
    struct packd_producer *producer;
    const struct packd_producer_options options = {.server = seam_daemon_address(),
                                                   .stream = "p0",
                                                   .block_bytes = 4096,
                                                   .buffer_bytes = 1 << 16,
                                                   .linger_ms = 1,
                                                   .timeout_ms = TIMEOUT_MS};
    const int32_t tokens[TOKENS_MAX] = {1};
    const struct packd_sample sample = {.tokens = tokens, .count = TOKENS_MAX};
    (void)unused;
    NEED(packd_producer_open(&options, &producer, &error), error);
    while (!atomic_load(&over)) {
        int rc = packd_producer_put(producer, &sample, 50, &error);
        PD_CHECK(rc == 0 || rc == PACKD_ETIMEDOUT);
    }
    (void)packd_producer_close(producer, 0, &error);
    return NULL;
}

static void *train_until_the_end(void *fetched)
{
    struct packd_error error = {0};
    struct packd_job *job;
    const struct packd_batch *batch;
    const struct packd_job_options options = {.server = seam_daemon_address(),
                                              .job = "train",
                                              .dp_size = 1,
                                              .auto_commit = 4,
                                              .timeout_ms = TIMEOUT_MS};
    NEED(packd_job_open(&options, &job, &error), error);
    while (!atomic_load(&over)) {
        int rc = packd_job_next(job, 50, &batch, &error);
        PD_CHECK(rc == 0 || rc == PACKD_ETIMEDOUT);
        if (rc == 0) {
            packd_batch_release(batch);
            atomic_fetch_add((atomic_uint *)fetched, 1);
        }
    }
    packd_job_close(job);
    return NULL;
}

static void test_a_daemon_that_ends_in_the_middle(void **state)
{
    pthread_t producer, trainer;
    atomic_uint fetched = 0;
    (void)state;
    seam_daemon_start(one_source);
    atomic_store(&over, false);
    assert_int_equal(pthread_create(&producer, NULL, produce_until_the_end, NULL), 0);
    assert_int_equal(pthread_create(&trainer, NULL, train_until_the_end, &fetched), 0);
    for (uint64_t until_ns = pd_clock_mono_ns() + TIMEOUT_MS * 1000000ull;
         atomic_load(&fetched) < 50; usleep(1000))
        assert_true(pd_clock_mono_ns() < until_ns);
    assert_int_equal(seam_daemon_stop(), 0);
    atomic_store(&over, true);
    pthread_join(producer, NULL);
    pthread_join(trainer, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_everything_at_once),
                                       cmocka_unit_test(test_a_daemon_that_ends_in_the_middle)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
