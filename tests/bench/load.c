/* Raw clients, for packd and for the bare pipe alike: gRPC C core, one connection and one thread a
 * stream, nothing done to the bytes. So both servers are asked for the same by the same code.
 *
 *   load packd|pipe ADDRESS PRODUCERS RANKS SAMPLE_BYTES MIB [LATENCY_BATCHES]
 *
 * Producers send MIB in all, in messages of 512 KiB; ranks take everything meanwhile. Then one rank
 * takes LATENCY_BATCHES more, each asked for after a pause in which it can be made ready. Prints
 * one JSON object: seconds until all was acked and taken, bytes each way, latencies in
 * microseconds. A packd must have a feed `default`, fresh. */
#include "tests/bench/load.h"

#include "base/check.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct load load;

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double percentile_us(uint64_t *values, uint32_t count, double part)
{
    uint32_t at = (uint32_t)((double)count * part);
    return count ? (double)values[at < count ? at : count - 1] / 1e3 : 0;
}

static void print_result(uint64_t started_ns, uint64_t pushed_ns, uint64_t taken_ns,
                         const struct load_stream *probe)
{
    double seconds = (double)((pushed_ns > taken_ns ? pushed_ns : taken_ns) - started_ns) / 1e9;
    printf("{\"seconds\": %.4f, \"push_seconds\": %.4f, \"mb_s\": %.2f, \"in_bytes\": %llu, "
           "\"out_bytes\": %llu, \"batches\": %llu",
           seconds, (double)(pushed_ns - started_ns) / 1e9, (double)load.bytes / seconds / 1e6,
           (unsigned long long)load.bytes, (unsigned long long)atomic_load(&load.taken_bytes),
           (unsigned long long)atomic_load(&load.batches));
    if (probe->latency_count > 0) {
        uint64_t *values = probe->latencies_ns;
        uint32_t count = probe->latency_count;
        qsort(values, count, sizeof *values, by_value);
        printf(", \"latency\": {\"batches\": %u, \"bytes\": %llu, \"p50_us\": %.1f, \"p99_us\": "
               "%.1f, \"p999_us\": %.1f}",
               count, (unsigned long long)(probe->taken_bytes / probe->batches),
               percentile_us(values, count, 0.5), percentile_us(values, count, 0.99),
               percentile_us(values, count, 0.999));
    }
    printf("}\n");
}

static struct load_stream *start(uint32_t count, void *(*run)(void *))
{
    struct load_stream *streams = calloc(count, sizeof *streams);
    PD_CHECK(streams);
    for (uint32_t i = 0; i < count; i++) {
        streams[i].load = &load;
        streams[i].number = i;
        PD_CHECK(pthread_create(&streams[i].thread, NULL, run, &streams[i]) == 0);
    }
    return streams;
}

static void join(struct load_stream *streams, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        pthread_join(streams[i].thread, NULL);
}

static void measure_latency(struct load_stream *probe, uint32_t batches)
{
    *probe = (struct load_stream){.load = &load, .latency_wanted = batches};
    if (batches == 0)
        return;
    probe->latencies_ns = calloc(batches, sizeof *probe->latencies_ns);
    PD_CHECK(probe->latencies_ns);
    load.protocol->take(probe);
}

int main(int argc, char **argv)
{
    if (argc < 7) {
        fprintf(stderr, "usage: load packd|pipe ADDRESS PRODUCERS RANKS SAMPLE_BYTES MIB "
                        "[LATENCY_BATCHES]\n");
        return 2;
    }
    load.protocol = strcmp(argv[1], "pipe") == 0 ? &load_pipe : &load_packd;
    load.address = argv[2];
    load.producers = (uint32_t)atoi(argv[3]);
    load.ranks = (uint32_t)atoi(argv[4]);
    load.sample_tokens = (uint32_t)atoi(argv[5]) / 4;
    /* Without producers the ranks take what a former run has pushed. */
    uint32_t shares = load.producers > 0 ? load.producers : 1;
    load.messages = (uint64_t)atoi(argv[6]) * (1u << 20) / LOAD_BODY_BYTES / shares;
    load.bytes = load.messages * shares * LOAD_BODY_BYTES;
    PD_CHECK(load.sample_tokens > 0 && load.messages > 0 && load.ranks > 0);
    grpc_init();
    load_fill_body(&load);
    load.protocol->open(&load);
    uint64_t started_ns = pd_clock_mono_ns();
    struct load_stream *producers = start(load.producers, load.protocol->push);
    struct load_stream *ranks = start(load.ranks, load.protocol->take);
    join(producers, load.producers);
    uint64_t pushed_ns = pd_clock_mono_ns();
    load.protocol->pushed(&load);
    join(ranks, load.ranks);
    uint64_t taken_ns = pd_clock_mono_ns();
    struct load_stream probe;
    measure_latency(&probe, argc > 7 ? (uint32_t)atoi(argv[7]) : 0);
    print_result(started_ns, pushed_ns, taken_ns, &probe);
    return 0;
}
