/* What a trainer gets out of libpackd, the C client: the ceiling that other clients over it (the
 * Python package) are held against in the same run.
 *
 *   client_bench push  SERVER MIB SAMPLE_TOKENS     one producer, then the feed's end
 *   client_bench fetch SERVER JOB ROWS [core|all]   one rank, every batch from the first step, each
 *                                                   released at once
 *
 * Prints one JSON object: seconds, MB/s of payload (fetch: of all arrays, as the trainer sees them),
 * tokens/s, and for fetch microseconds a batch. A job of its own for each fetch run. */
#include "base/check.h"
#include "base/clock.h"

#include <packd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUT_AT_ONCE 64

static int failed(const struct packd_error *error)
{
    fprintf(stderr, "client_bench: %s\n", error->text);
    return 1;
}

static int push(const char *server, uint64_t mib, uint32_t sample_tokens)
{
    struct packd_error error = {0};
    struct packd_producer *producer;
    struct packd_producer_options options = {.server = server, .stream = "client-bench"};
    struct packd_sample samples[PUT_AT_ONCE];
    int32_t *tokens = calloc(sample_tokens, sizeof *tokens);
    uint64_t count = mib * (1u << 20) / 4 / sample_tokens;
    PD_CHECK(tokens && sample_tokens > 0);
    for (uint32_t i = 0; i < sample_tokens; i++)
        tokens[i] = (int32_t)((i * 2654435761u) >> 16);
    for (int i = 0; i < PUT_AT_ONCE; i++)
        samples[i] = (struct packd_sample){.tokens = tokens, .count = sample_tokens};
    if (packd_producer_open(&options, &producer, &error) != 0)
        return failed(&error);
    uint64_t started_ns = pd_clock_mono_ns();
    for (uint64_t done = 0; done < count;) {
        size_t taken, part = count - done < PUT_AT_ONCE ? count - done : PUT_AT_ONCE;
        if (packd_producer_put_many(producer, samples, part, PACKD_TIMEOUT_DEFAULT, &taken,
                                    &error) != 0)
            return failed(&error);
        done += taken;
    }
    if (packd_producer_end_feed(producer, PACKD_TIMEOUT_DEFAULT, NULL, &error) != 0)
        return failed(&error);
    double seconds = (double)(pd_clock_mono_ns() - started_ns) / 1e9;
    double bytes = (double)count * sample_tokens * 4;
    printf("{\"seconds\": %.4f, \"mb_s\": %.2f, \"tokens_s\": %.0f, \"samples\": %llu}\n", seconds,
           bytes / seconds / 1e6, bytes / 4 / seconds, (unsigned long long)count);
    free(tokens);
    return packd_producer_close(producer, 0, &error) != 0 ? failed(&error) : 0;
}

static int fetch(const char *server, const char *name, uint32_t rows, bool all)
{
    struct packd_error error = {0};
    struct packd_job *job;
    const struct packd_batch *batch;
    struct packd_job_options options = {.server = server,
                                        .job = name,
                                        .world_token = name,
                                        .dp_size = 1,
                                        .rows = rows,
                                        .start = PACKD_START_FIRST,
                                        .arrays = all ? PACKD_ARRAYS_ALL : PACKD_ARRAYS_CORE};
    uint64_t bytes = 0, received = 0, tokens = 0, batches = 0;
    int rc;
    if (packd_job_open(&options, &job, &error) != 0)
        return failed(&error);
    uint64_t started_ns = pd_clock_mono_ns();
    while ((rc = packd_job_next(job, PACKD_TIMEOUT_DEFAULT, &batch, &error)) == 0) {
        bytes += batch->payload_bytes;
        received += batch->received_bytes;
        tokens += batch->batch_totals.real_tokens;
        batches++;
        packd_batch_release(batch);
    }
    double seconds = (double)(pd_clock_mono_ns() - started_ns) / 1e9;
    packd_job_close(job);
    if (rc != PACKD_EEND)
        return failed(&error);
    printf("{\"seconds\": %.4f, \"mb_s\": %.2f, \"received_mb_s\": %.2f, \"tokens_s\": %.0f, "
           "\"batches\": %llu, \"us_a_batch\": %.1f}\n",
           seconds, (double)bytes / seconds / 1e6, (double)received / seconds / 1e6,
           (double)tokens / seconds, (unsigned long long)batches,
           batches ? seconds * 1e6 / (double)batches : 0);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "push") == 0)
        return push(argv[2], strtoull(argv[3], NULL, 10), (uint32_t)strtoul(argv[4], NULL, 10));
    if ((argc == 5 || argc == 6) && strcmp(argv[1], "fetch") == 0)
        return fetch(argv[2], argv[3], (uint32_t)strtoul(argv[4], NULL, 10),
                     argc == 6 && strcmp(argv[5], "all") == 0);
    fprintf(stderr, "usage: client_bench push SERVER MIB SAMPLE_TOKENS\n"
                    "       client_bench fetch SERVER JOB ROWS [core|all]\n");
    return 2;
}
