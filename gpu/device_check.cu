// The check of a device, for device_check.sh: is it right, does it find every fault, how fast is
// it?
//
//   1. attention against the fp64 oracle: lengths at every tile edge, head dims, types, masks; 64 k
//   2. the probe against the CPU's, byte for byte, on valid and on faulty batches; the self-test
//   3. TFLOP/s by length, head dim and mask; the shapes also go to a file for device_check_torch.py
//   4. time saved by varlen over padded batches, beside the cost model's prediction
//   5. microseconds and GB/s of the probe
//
// One main with the CUDA runtime, no other library. Exit status 0: everything was right; 1:
// something was wrong; 2: there is no device. Speeds are printed, never judged.
#include "gpu/backend.h"
#include "gpu/launch.h"
#include "gpu/probe_cases.h"
#include "tests/gpu/attention_cases.h"

#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int failures;

static void need(cudaError_t status, const char *what)
{
    if (status == cudaSuccess)
        return;
    printf("FAIL %s: %s\n", what, cudaGetErrorString(status));
    exit(1);
}

static void need_code(int rc, const struct pd_error *error)
{
    if (rc == 0)
        return;
    printf("FAIL %s: %s\n", error->reason, error->text);
    exit(1);
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

// ---- 1. attention ----

struct worst {
    double ratio, error, bound, lse;
    int cases, bad;
};

static void check_case(struct pd_backend *backend, const struct attention_shape *shape,
                       uint64_t seed, struct worst *worst)
{
    struct attention_error e = attention_case(backend, shape, seed);
    bool good = e.rc == 0 && !e.strayed && e.error <= e.bound && e.lse_error < 2e-5;
    worst->cases++;
    worst->lse = fmax(worst->lse, e.lse_error);
    if (e.error / e.bound > worst->ratio) {
        worst->ratio = e.error / e.bound;
        worst->error = e.error;
        worst->bound = e.bound;
    }
    if (good)
        return;
    worst->bad++;
    failures++;
    printf("FAIL length %d, head dim %u, %s, %s mask, %u/%u heads: rc %d %s, error %.3g of %.3g, "
           "lse %.3g, "
           "strayed %d\n",
           shape->lengths[0], shape->head_dim, shape->dtype == PD_ATTENTION_F32 ? "fp32" : "bf16",
           shape->causal ? "causal" : "full", shape->heads, shape->heads_kv, e.rc,
           e.rc ? e.text.text : "", e.error, e.bound, e.lse_error, e.strayed);
}

static void check_attention(struct pd_backend *backend)
{
    static const int32_t edges[] = {1,  2,  7,   15,  16,  17,  31,  32,  33,  48,  63,  64,
                                    65, 96, 127, 128, 129, 191, 192, 193, 255, 256, 257, 511};
    printf("\n1. attention against fp64 (error at most twice that of a plain evaluation in the "
           "same precision)\n");
    printf("   %-5s %-9s %-6s %6s %10s %10s %10s\n", "dtype", "head dim", "mask", "cases", "error",
           "allowed", "lse error");
    for (int variant = 0; variant < 8; variant++) {
        struct worst worst = {};
        struct attention_shape shape = {};
        shape.segments = 4;
        shape.head_dim = variant & 2 ? 128 : 64;
        shape.dtype = variant & 4 ? PD_ATTENTION_F32 : PD_ATTENTION_BF16;
        shape.causal = variant & 1;
        for (int i = 0; i < (int)(sizeof(edges) / sizeof(*edges)); i++)
            for (int used_too = 0; used_too < 2; used_too++) {
                int32_t lengths[] = {edges[i], 0, 70, 1}, used[] = {edges[i] - 1, 0, 69, 9};
                shape.lengths = lengths;
                shape.used = used_too ? used : NULL;
                shape.lead = i % 2 ? 66 : 0;
                shape.tail = (uint32_t)i % 2;
                shape.heads = 4;
                shape.heads_kv = 1u << i % 3;
                check_case(backend, &shape, 100 + (uint64_t)i, &worst);
            }
        printf("   %-5s %-9u %-6s %6d %10.2e %10.2e %10.1e%s\n", variant & 4 ? "fp32" : "bf16",
               shape.head_dim, shape.causal ? "causal" : "full", worst.cases, worst.error,
               worst.bound, worst.lse, worst.bad ? "  FAIL" : "");
    }
}

// The last rows of one segment of 65,544 keys.
static void check_64k(struct pd_backend *backend)
{
    enum { N = 1024 * 64 + 8, DIM = 64, ROWS = 8 };
    static const int32_t cu[] = {0, N};
    static double exact[ROWS * DIM];
    uint16_t *q = (uint16_t *)malloc((size_t)N * DIM * 2),
             *out = (uint16_t *)malloc((size_t)N * DIM * 2);
    for (size_t i = 0; i < (size_t)N * DIM; i++)
        q[i] = pd_bf16_of(sinf((float)i * 0.37f) * 2);
    struct pd_attention a = {};
    a.q = a.k = a.v = q;
    a.out = out;
    a.cu_seqlens = cu;
    a.segment_count = 1;
    a.tokens = N;
    a.heads = a.heads_kv = 1;
    a.head_dim = DIM;
    a.dtype = PD_ATTENTION_BF16;
    a.causal = true;
    a.scale = 0.125f;
    pd_attention_pack(&a);
    struct pd_error error;
    double gap = 0, plain = 0;
    need_code(backend->attention(backend, &a, &error), &error);
    pd_attention_ref_rows(&a, 0, N - ROWS, N, exact);
    for (size_t i = 0; i < ROWS * DIM; i++) {
        plain = fmax(plain, fabs((double)pd_bf16_to(pd_bf16_of((float)exact[i])) - exact[i]));
        gap = fmax(gap, fabs((double)pd_bf16_to(out[(size_t)(N - ROWS) * DIM + i]) - exact[i]));
    }
    bool good = gap <= 2 * plain + 1e-4;
    failures += !good;
    printf("   %d keys: error %.2e, one rounding of the output %.2e%s\n", N, gap, plain,
           good ? "" : "  FAIL");
    free(q);
    free(out);
}

// ---- 2. the probe ----

static struct pd_case made;
static uint8_t kinds[PD_CASE_TOKENS_MAX], expected[PD_CASE_TOKENS_MAX];

// All kinds the device finds; a difference to the CPU is a failure.
static uint32_t probe_both(struct pd_backend *backend)
{
    struct pd_error error;
    uint32_t tokens = made.batch.rows * made.batch.width, all = 0;
    bool admitted;
    need_code(pd_probe_admit(&made.batch, kinds, &admitted, &error), &error);
    memcpy(expected, kinds, tokens);
    if (admitted) {
        need_code(backend->submit(backend, 0, &made.batch, made.positions, &error), &error);
        need_code(backend->collect(backend, 0, kinds, &error), &error);
        pd_probe_cpu(&made.batch, made.positions, expected);
        failures += memcmp(kinds, expected, tokens) != 0;
        pd_probe_check_lengths(&made.batch, kinds);
    }
    for (uint32_t t = 0; t < tokens; t++)
        all |= kinds[t];
    return all;
}

static void check_probe(struct pd_backend *backend)
{
    enum { CLEAN = 3000, PLANTED = 50 };
    uint64_t random = 99;
    int alarms = 0, before = failures;
    for (int i = 0; i < CLEAN; i++) {
        struct pd_case_rules rules = pd_case_rules_random(&random, 4096);
        pd_case_make(&made, &rules, &random);
        alarms += probe_both(backend) != 0;
    }
    printf("\n2. probe: %d valid batches, %d false alarms%s\n", CLEAN, alarms,
           alarms ? "  FAIL" : "");
    failures += alarms;
    for (int fault = 0; fault < PD_FAULT_COUNT; fault++) {
        int planted = 0, found = 0;
        while (planted < PLANTED) {
            struct pd_case_rules rules = pd_case_rules_random(&random, 4096);
            rules.logged = true;
            pd_case_make(&made, &rules, &random);
            if (!pd_case_plant(&made, (enum pd_fault)fault, &random))
                continue;
            planted++;
            found += (probe_both(backend) & pd_fault_kinds((enum pd_fault)fault)) != 0;
        }
        failures += planted - found;
        printf("   %-45s found %d of %d%s\n", pd_fault_name((enum pd_fault)fault), found, planted,
               found == planted ? "" : "  FAIL");
    }
    printf("   verdicts equal to the CPU's, byte for byte: %s\n",
           failures == before ? "yes" : "NO  FAIL");
}

static void check_selftest(void)
{
    const struct pd_validator_limits limits = {8192, 8192};
    struct pd_validator *validator;
    struct pd_selftest_report report;
    struct pd_error error;
    need_code(pd_validator_new("cuda", &limits, NULL, &validator, NULL, &error), &error);
    int rc = pd_validator_selftest(validator, &report, &error);
    bool good = rc == 0 && strcmp(report.backend, "cuda") == 0;
    failures += !good;
    printf("   self-test on %s: %u dense cases, %u interference cases, %u of %u faults, %.0f ms%s "
           "%s\n",
           report.backend, report.dense_cases, report.interference_cases, report.faults_found,
           report.faults_planted, report.seconds * 1e3, good ? "" : "  FAIL", rc ? error.text : "");
    pd_validator_free(validator);
}

// ---- 3. speed ----

// One attention on the device, its arrays filled with small random numbers.
struct bench {
    struct pd_attention a;
    void *arrays[4];
    int32_t *cu;
};

static void *random_device_array(size_t elements)
{
    uint16_t *host = (uint16_t *)malloc(elements * 2);
    void *device;
    uint64_t state = elements;
    for (size_t i = 0; i < elements; i += 4) {
        uint64_t bits = pd_case_random(&state);
        for (size_t j = i; j < i + 4 && j < elements; j++, bits >>= 16)
            host[j] = pd_bf16_of((float)(bits & 0xffff) * (1.0f / 32768.0f) - 1.0f);
    }
    need(cudaMalloc(&device, elements * 2), "allocate");
    need(cudaMemcpy(device, host, elements * 2, cudaMemcpyHostToDevice), "copy");
    free(host);
    return device;
}

// `segments` segments of `length` tokens each; hidden size 2,048.
static struct bench bench_new(uint32_t segments, uint32_t length, uint32_t head_dim, bool causal)
{
    struct bench b = {};
    b.a.heads = b.a.heads_kv = 2048 / head_dim;
    b.a.head_dim = head_dim;
    b.a.dtype = PD_ATTENTION_BF16;
    b.a.causal = causal;
    b.a.scale = 1.0f / sqrtf((float)head_dim);
    b.a.segment_count = segments;
    b.a.tokens = segments * length;
    pd_attention_pack(&b.a);
    for (int i = 0; i < 4; i++)
        b.arrays[i] = random_device_array((size_t)b.a.tokens * 2048);
    int32_t *cu = (int32_t *)malloc((segments + 1) * sizeof(*cu));
    for (uint32_t i = 0; i <= segments; i++)
        cu[i] = (int32_t)(i * length);
    need(cudaMalloc((void **)&b.cu, (segments + 1) * sizeof(*cu)), "allocate");
    need(cudaMemcpy(b.cu, cu, (segments + 1) * sizeof(*cu), cudaMemcpyHostToDevice), "copy");
    free(cu);
    b.a.q = b.arrays[0];
    b.a.k = b.arrays[1];
    b.a.v = b.arrays[2];
    b.a.out = b.arrays[3];
    b.a.cu_seqlens = b.cu;
    return b;
}

static void bench_free(struct bench *b)
{
    for (int i = 0; i < 4; i++)
        cudaFree(b->arrays[i]);
    cudaFree(b->cu);
}

// Seconds per run: the median of five groups of runs, each at least 10 ms, after a warm-up.
template <class Run> static double time_runs(Run run)
{
    cudaEvent_t start, end;
    float ms = 0;
    double groups[5];
    int runs = 1;
    need(cudaEventCreate(&start), "event");
    need(cudaEventCreate(&end), "event");
    for (int group = -1; group < 5;) {
        need(cudaEventRecord(start), "event");
        for (int i = 0; i < runs; i++)
            run();
        need(cudaEventRecord(end), "event");
        need(cudaEventSynchronize(end), "kernel");
        need(cudaEventElapsedTime(&ms, start, end), "event");
        if (ms < 10 && runs < 100000)
            runs *= ms < 1 ? 8 : 2;
        else if (++group > 0)
            groups[group - 1] = ms * 1e-3 / runs;
        if (group == 5)
            break;
    }
    cudaEventDestroy(start);
    cudaEventDestroy(end);
    for (int i = 1; i < 5; i++)
        for (int j = i; j > 0 && groups[j] < groups[j - 1]; j--) {
            double kept = groups[j];
            groups[j] = groups[j - 1];
            groups[j - 1] = kept;
        }
    return groups[2];
}

static double attention_seconds(const struct bench *b)
{
    struct pd_error error;
    return time_runs([&] { need_code(pd_attention_launch(&b->a, NULL, &error), &error); });
}

static void measure_attention(const char *shapes_path)
{
    enum { TOKENS = 32768 };
    FILE *shapes = fopen(shapes_path, "w");
    printf(
        "\n3. attention forward, bf16, %d tokens, hidden size 2048, TFLOP/s (causal counts half)\n",
        TOKENS);
    printf("   %8s %12s %12s %12s %12s\n", "length", "d64 full", "d64 causal", "d128 full",
           "d128 causal");
    for (uint32_t length = 512; length <= TOKENS; length *= 2) {
        printf("   %8u", length);
        for (int variant = 0; variant < 4; variant++) {
            uint32_t dim = variant & 2 ? 128 : 64;
            bool causal = variant & 1;
            struct bench b = bench_new(TOKENS / length, length, dim, causal);
            double seconds = attention_seconds(&b);
            double flop = 4.0 * length * (double)TOKENS * 2048 / (causal ? 2 : 1);
            printf(" %12.1f", flop / seconds * 1e-12);
            fflush(stdout);
            if (shapes)
                fprintf(shapes, "%u %u %d %d %.9f\n", length, dim, (int)causal, TOKENS, seconds);
            bench_free(&b);
        }
        printf("\n");
    }
    if (shapes)
        fclose(shapes);
}

// ---- 4. padding ----

static void measure_padding(void)
{
    enum { TOKENS = 65536 };
    static const uint32_t lengths[] = {4096, 8192, 32768};
    static const double paddings[] = {0.03, 0.10, 0.25, 0.50, 0.75, 0.90};
    const double alpha = 24576, beta = 1; // the packer's default cost model: alpha n + beta n^2
    printf("\n4. time saved by varlen over padded rows, causal, d128 (attention alone; the models: "
           "beta n^2 for the\n"
           "   attention, alpha n + beta n^2 with %g and %g for a whole step)\n",
           alpha, beta);
    printf("   %8s %9s %12s %12s %10s %12s %12s\n", "length", "padding", "padded, ms", "varlen, ms",
           "saved", "model attn", "model step");
    for (int i = 0; i < 3; i++) {
        uint32_t rows = TOKENS / lengths[i];
        struct bench padded = bench_new(rows, lengths[i], 128, true);
        double whole = attention_seconds(&padded);
        bench_free(&padded);
        for (int j = 0; j < 6; j++) {
            uint32_t real = (uint32_t)lround(lengths[i] * (1 - paddings[j]));
            double l = lengths[i], n = real;
            struct bench varlen = bench_new(rows, real, 128, true);
            double part = attention_seconds(&varlen);
            bench_free(&varlen);
            printf("   %8u %8.0f%% %12.3f %12.3f %9.2f%% %11.2f%% %11.2f%%\n", lengths[i],
                   paddings[j] * 100, whole * 1e3, part * 1e3, (1 - part / whole) * 100,
                   (1 - n * n / (l * l)) * 100,
                   (1 - (alpha * n + beta * n * n) / (alpha * l + beta * l * l)) * 100);
        }
    }
}

// ---- 5. the probe's speed ----

// One row of `tokens` in segments of 512.
static void make_probe_batch(struct pd_probe_batch *batch, uint32_t tokens)
{
    uint32_t segments = tokens / 512;
    int32_t *ids = (int32_t *)malloc(tokens * 4u), *positions = (int32_t *)malloc(tokens * 4u);
    int32_t *cu = (int32_t *)malloc((segments + 1) * 4u), *lens = (int32_t *)malloc(segments * 4u);
    for (uint32_t t = 0; t < tokens; t++) {
        ids[t] = (int32_t)(t / 512) + 1;
        positions[t] = (int32_t)(t % 512);
    }
    for (uint32_t i = 0; i <= segments; i++)
        cu[i] = (int32_t)(i * 512);
    for (uint32_t i = 0; i < segments; i++)
        lens[i] = 512;
    memset(batch, 0, sizeof(*batch));
    batch->rows = 1;
    batch->width = tokens;
    batch->segment_count = segments;
    batch->segment_ids = ids;
    batch->positions = positions;
    batch->cu_seqlens = cu;
    batch->seq_lens = lens;
    batch->causal = true;
}

static void free_probe_batch(struct pd_probe_batch *batch)
{
    free((void *)batch->segment_ids);
    free((void *)batch->positions);
    free((void *)batch->cu_seqlens);
    free((void *)batch->seq_lens);
}

static double kernels_seconds(const struct pd_probe_batch *batch)
{
    uint32_t tokens = batch->rows * batch->width, segments = batch->segment_count;
    struct pd_probe_launch p = {};
    struct pd_error error;
    int32_t *arrays;
    need(cudaMalloc((void **)&arrays, (2 * (size_t)tokens + segments + 1) * 4), "allocate");
    need(cudaMalloc(&p.workspace, pd_probe_workspace_bytes(tokens)), "allocate");
    need(cudaMalloc((void **)&p.kinds, tokens), "allocate");
    need(cudaMemcpy(arrays, batch->segment_ids, tokens * 4u, cudaMemcpyHostToDevice), "copy");
    need(cudaMemcpy(arrays + tokens, batch->positions, tokens * 4u, cudaMemcpyHostToDevice),
         "copy");
    need(cudaMemcpy(arrays + 2 * (size_t)tokens, batch->cu_seqlens, (segments + 1) * 4u,
                    cudaMemcpyHostToDevice),
         "copy");
    p.segment_ids = arrays;
    p.positions = arrays + tokens;
    p.cu_seqlens = arrays + 2 * (size_t)tokens;
    p.rows = batch->rows;
    p.width = batch->width;
    p.segment_count = segments;
    p.causal = true;
    double seconds = time_runs([&] { need_code(pd_probe_launch(&p, NULL, &error), &error); });
    cudaFree(arrays);
    cudaFree(p.workspace);
    cudaFree(p.kinds);
    return seconds;
}

// Seconds per batch with two in flight, copies and verdicts included.
static double pipeline_seconds(const struct pd_probe_batch *batch)
{
    const struct pd_validator_limits limits = {batch->rows * batch->width, batch->segment_count};
    struct pd_validator *v;
    struct pd_probe_result result;
    struct pd_error error;
    need_code(pd_validator_new("cuda", &limits, NULL, &v, NULL, &error), &error);
    need_code(pd_validator_submit(v, batch, &error), &error);
    int batches = 0;
    double start = seconds_now(), end = start;
    while (end - start < 0.3) {
        need_code(pd_validator_submit(v, batch, &error), &error);
        need_code(pd_validator_collect(v, &result, &error), &error);
        failures += result.violation_count != 0;
        batches++;
        end = seconds_now();
    }
    need_code(pd_validator_collect(v, &result, &error), &error);
    pd_validator_free(v);
    return (end - start) / batches;
}

static void measure_probe(void)
{
    // device memory moved per token: ids and positions twice, values written and read, sums
    // cleared, added to and read
    const double token_bytes = 2 * 8 + 2 * 128 + 4 * 260;
    printf("\n5. probe, segments of 512, causal\n");
    printf("   %10s %14s %10s %12s %18s %12s\n", "tokens", "kernels, us", "GB/s", "Mtok/s",
           "with copies, us", "Mtok/s");
    for (uint32_t tokens = 8192; tokens <= 524288; tokens *= 4) {
        struct pd_probe_batch batch;
        make_probe_batch(&batch, tokens);
        double kernels = kernels_seconds(&batch), whole = pipeline_seconds(&batch);
        printf("   %10u %14.1f %10.0f %12.0f %18.1f %12.0f\n", tokens, kernels * 1e6,
               token_bytes * tokens / kernels * 1e-9, tokens / kernels * 1e-6, whole * 1e6,
               tokens / whole * 1e-6);
        free_probe_batch(&batch);
    }
}

int main(int argc, char **argv)
{
    const struct pd_validator_limits limits = {PD_CASE_TOKENS_MAX, PD_CASE_TOKENS_MAX};
    struct pd_backend *backend;
    struct pd_error error;
    double start = seconds_now();
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (pd_backend_cuda_new(&limits, &backend, &error) != 0) {
        printf("no device to check: %s\n", error.text);
        return 2;
    }
    printf("device: %s, CUDA runtime %d.%d\n", backend->device, CUDART_VERSION / 1000,
           CUDART_VERSION % 1000 / 10);
    check_attention(backend);
    check_64k(backend);
    check_probe(backend);
    check_selftest();
    backend->free(backend);
    measure_attention(argc > 1 ? argv[1] : "/dev/null");
    measure_padding();
    measure_probe();
    printf("\n%s: %d failures, %.0f s\n", failures ? "FAIL" : "PASS", failures,
           seconds_now() - start);
    return failures > 0;
}
