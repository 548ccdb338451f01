/* Raw clients, for packd and for the bare pipe alike: gRPC C core, one connection and one thread a
 * stream, nothing done to the bytes. So both servers are asked for the same by the same code.
 *
 *   load packd|pipe ADDRESS [--producers N] [--ranks N] [--jobs N] [--rows N]
 *        [--sample BYTES | --media] [--mib N] [--latency BATCHES] [--hold]
 *
 * Producers send N MiB in all, in messages of at most 512 KiB; the ranks of each job take
 * everything meanwhile. Then one rank takes BATCHES more, each asked for after a pause in which it
 * can be made ready. Prints one JSON object: seconds until all was acked and taken, bytes each way,
 * latencies in microseconds. A packd must have a feed `default`, fresh; with --media one of
 * M-RoPE positions and the media token 9.
 *
 * With --hold the producers only begin their calls: "held" is printed once all are answered, and
 * they stay open until stdin ends. */
#include "tests/bench/load.h"

#include "base/check.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct load load;

static void print_result(uint64_t started_ns, uint64_t pushed_ns, uint64_t taken_ns,
                         const struct load_stream *probe)
{
    double seconds = (double)((pushed_ns > taken_ns ? pushed_ns : taken_ns) - started_ns) / 1e9;
    printf("{\"seconds\": %.4f, \"push_seconds\": %.4f, \"mb_s\": %.2f, \"in_bytes\": %llu, "
           "\"out_bytes\": %llu, \"batches\": %llu",
           seconds, (double)(pushed_ns - started_ns) / 1e9, (double)load.bytes / seconds / 1e6,
           (unsigned long long)load.bytes, (unsigned long long)atomic_load(&load.taken_bytes),
           (unsigned long long)atomic_load(&load.batches));
    uint64_t blocks = load.bytes / load.body.size;
    printf(", \"samples\": %llu, \"tokens\": %llu, \"latency_bytes\": %llu, \"latency_us\": [",
           (unsigned long long)(blocks * load.body.samples),
           (unsigned long long)(blocks * load.body.tokens),
           (unsigned long long)(probe->batches ? probe->taken_bytes / probe->batches : 0));
    for (uint32_t i = 0; i < probe->latency_count; i++)
        printf("%s%.1f", i ? ", " : "", (double)probe->latencies_ns[i] / 1e3);
    printf("]}\n");
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

static void hold(void)
{
    struct load_stream *streams = calloc(load.producers, sizeof *streams);
    PD_CHECK(streams);
    for (uint32_t i = 0; i < load.producers; i++) {
        struct load_call *call = &streams[i].call;
        grpc_slice message = grpc_empty_slice();
        streams[i].load = &load;
        streams[i].number = i;
        load.protocol->greet(&streams[i]);
        load_call_read(call);
        while (GRPC_SLICE_LENGTH(message) == 0 && !call->over)
            (void)load_call_wait(call, &message);
        PD_CHECK(!call->over);
        grpc_slice_unref(message);
    }
    puts("held");
    fflush(stdout);
    while (getchar() != EOF)
        ;
}

static uint32_t number_of(const char *text)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (*text == 0 || *end != 0 || value > UINT32_MAX) {
        fprintf(stderr, "load: '%s' is not a number\n", text);
        exit(2);
    }
    return (uint32_t)value;
}

static void parse(int argc, char **argv)
{
    uint32_t sample_bytes = 4096;
    const struct {
        const char *name;
        uint32_t *value;
    } options[] = {{"--producers", &load.producers},
                   {"--ranks", &load.ranks},
                   {"--jobs", &load.jobs},
                   {"--rows", &load.rows},
                   {"--sample", &sample_bytes},
                   {"--mib", &load.mib},
                   {"--latency", &load.latency_batches}};
    load.producers = load.ranks = load.jobs = 1;
    load.rows = 4;
    load.mib = 256;
    load.protocol = argc > 1 && strcmp(argv[1], "pipe") == 0    ? &load_pipe
                    : argc > 1 && strcmp(argv[1], "packd") == 0 ? &load_packd
                                                                : NULL;
    load.address = argc > 2 ? argv[2] : NULL;
    bool good = load.protocol && load.address;
    for (int i = 3; i < argc && good; i++) {
        size_t at = 0;
        bool *flag = strcmp(argv[i], "--media") == 0  ? &load.media
                     : strcmp(argv[i], "--hold") == 0 ? &load.hold
                                                      : NULL;
        if (flag) {
            *flag = true;
            continue;
        }
        while (at < PD_COUNT_OF(options) && strcmp(argv[i], options[at].name) != 0)
            at++;
        good = at < PD_COUNT_OF(options) && i + 1 < argc;
        if (good)
            *options[at].value = number_of(argv[++i]);
    }
    load.sample_tokens = sample_bytes / 4;
    if (!good || !load.ranks || !load.rows || !load.jobs || load.jobs > LOAD_JOBS_MAX ||
        !load.sample_tokens || load.producers > 10000) {
        fprintf(stderr,
                "usage: load packd|pipe ADDRESS [--producers N] [--ranks N] [--jobs N] "
                "[--rows N] [--sample BYTES | --media] [--mib N] [--latency BATCHES] [--hold]\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    grpc_init();
    if (load.hold) {
        hold();
        return 0;
    }
    load_fill_body(&load);
    /* Without producers the ranks take what a former run has pushed. */
    uint32_t shares = load.producers > 0 ? load.producers : 1;
    load.messages = load.mib * (uint64_t)(1u << 20) / load.body.size / shares;
    load.bytes = load.messages * shares * load.body.size;
    PD_CHECK(load.messages > 0);
    load.protocol->open(&load);
    uint64_t started_ns = pd_clock_mono_ns();
    struct load_stream *producers = start(load.producers, load.protocol->push);
    struct load_stream *takers = start(load.ranks * load.jobs, load.protocol->take);
    join(producers, load.producers);
    uint64_t pushed_ns = pd_clock_mono_ns();
    load.protocol->pushed(&load);
    join(takers, load.ranks * load.jobs);
    uint64_t taken_ns = pd_clock_mono_ns();
    struct load_stream probe;
    measure_latency(&probe, load.latency_batches);
    print_result(started_ns, pushed_ns, taken_ns, &probe);
    return 0;
}
