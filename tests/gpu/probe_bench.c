/* How fast the CPU validates: tokens per second of the probe on one core, by segment length and
 * mask, and the self-test's time. Each figure is the best of five rounds of at least a tenth of a
 * second of the thread's own CPU time, so that other load on the machine counts little. */
#include "gpu/cpu_levels.h"
#include "gpu/probe_cases.h"
#include "gpu/validator.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* One row of 8,192 tokens in segments of this length. */
static void make_batch(struct pd_case *made, int32_t length, bool causal)
{
    uint32_t width = PD_CASE_TOKENS_MAX, segments = width / (uint32_t)length;
    made->batch = (struct pd_probe_batch){.rows = 1,
                                          .width = width,
                                          .segment_count = segments,
                                          .segment_ids = made->segment_ids,
                                          .positions = made->positions,
                                          .cu_seqlens = made->cu_seqlens,
                                          .seq_lens = made->seq_lens,
                                          .causal = causal};
    for (uint32_t t = 0; t < width; t++) {
        made->segment_ids[t] = (int32_t)t / length + 1;
        made->positions[t] = (int32_t)t % length;
    }
    for (uint32_t i = 0; i <= segments; i++)
        made->cu_seqlens[i] = (int32_t)i * length;
    for (uint32_t i = 0; i < segments; i++)
        made->seq_lens[i] = length;
}

static double tokens_per_second(struct pd_validator *v, const struct pd_probe_batch *batch)
{
    double best = 0;
    for (int round = 0; round < 5; round++) {
        double start = seconds_now(), end = start;
        uint64_t tokens = 0;
        struct pd_probe_result result;
        while (end - start < 0.1) {
            if (pd_validator_probe(v, batch, &result, NULL) != 0 || result.violation_count != 0)
                abort();
            tokens += (uint64_t)batch->rows * batch->width;
            end = seconds_now();
        }
        double rate = (double)tokens / (end - start);
        best = rate > best ? rate : best;
    }
    return best;
}

int main(void)
{
    static struct pd_case made;
    static const int32_t lengths[] = {16, 64, 512, 4096, 8192};
    const struct pd_validator_limits limits = {PD_CASE_TOKENS_MAX, PD_CASE_TOKENS_MAX};
    struct pd_validator *v;
    struct pd_selftest_report report;
    if (pd_validator_new("cpu", &limits, NULL, &v, NULL, NULL) != 0)
        return 1;
    printf("probe on the CPU (%s), one core, batches of %d tokens\n", pd_validator_device(v),
           PD_CASE_TOKENS_MAX);
    printf("%10s %16s %16s\n", "segment", "causal, Mtok/s", "full, Mtok/s");
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        double rate[2];
        for (int causal = 0; causal < 2; causal++) {
            make_batch(&made, lengths[i], causal);
            rate[causal] = tokens_per_second(v, &made.batch);
        }
        printf("%10d %16.1f %16.1f\n", lengths[i], rate[1] * 1e-6, rate[0] * 1e-6);
    }
    if (pd_validator_selftest(v, &report, NULL) != 0)
        return 1;
    printf("self-test: %.0f ms\n", report.seconds * 1e3);
    pd_validator_free(v);
    return 0;
}
