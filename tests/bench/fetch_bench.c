/* The C side of python_bench.py: fetches every batch of a job as its only rank, adds up the tokens,
 * prints how long that took.
 *
 *   fetch_bench SERVER JOB ROWS
 *
 * The clock runs from the first call of next to the end of the feed; opening is left out, as it is
 * on the other side. One JSON object on stdout. */
#include <packd.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static int64_t sum_tokens(const struct packd_batch *batch)
{
    const int32_t *tokens = packd_batch_array(batch, "tokens")->data;
    int64_t sum = 0;
    for (uint64_t i = 0; i < (uint64_t)batch->rows * batch->width; i++)
        sum += tokens[i];
    return sum;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return fprintf(stderr, "fetch_bench SERVER JOB ROWS\n"), 2;
    struct packd_error error = {0};
    struct packd_job *job;
    struct packd_job_options options = {.server = argv[1],
                                        .job = argv[2],
                                        .dp_size = 1,
                                        .rows = (uint32_t)atoi(argv[3]),
                                        .kind = PACKD_KIND_READER};
    if (packd_job_open(&options, &job, &error))
        return fprintf(stderr, "%s\n", error.text), 1;
    const struct packd_batch *batch;
    int64_t sum = 0;
    int rc;
    double from = seconds_now(), cpu_from = cpu_seconds();
    while ((rc = packd_job_next(job, PACKD_TIMEOUT_DEFAULT, &batch, &error)) == 0) {
        sum += sum_tokens(batch);
        packd_batch_release(batch);
    }
    double took = seconds_now() - from, cpu = cpu_seconds() - cpu_from;
    struct packd_job_info info;
    packd_job_info(job, &info);
    packd_job_close(job);
    if (rc != PACKD_EEND)
        return fprintf(stderr, "%s\n", error.text), 1;
    printf("{\"seconds\": %.6f, \"cpu_seconds\": %.6f, \"batches\": %" PRIu64
           ", \"payload_bytes\": %" PRIu64 ", \"sum\": %" PRId64 "}\n",
           took, cpu, info.batches, info.payload_bytes, sum);
    return 0;
}
