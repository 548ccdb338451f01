/* The validator: backends by name, limits, two batches in flight, and devices that fail, lie or
 * cannot compute. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gpu/backend.h"
#include "gpu/probe_cases.h"
#include "tests/gpu/backend_simt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct pd_validator_limits limits = {.tokens_max = 1024, .segments_max = 1024};
static struct pd_case good, bad;

/* How a device may go wrong. */
enum lie {
    HONEST,
    FAIL_SUBMIT,
    FAIL_COLLECT,
    ACCUSE_THE_INNOCENT,
    ACCUSE_ANOTHER,
    LEAK,
    WRONG_NUMBERS,
    BLIND
};

struct fake {
    struct pd_backend base;
    struct pd_backend *cpu;
    enum lie lie;
    int *freed;
};

static int fake_attention(struct pd_backend *self, const struct pd_attention *a,
                          struct pd_error *error)
{
    struct fake *fake = (struct fake *)self;
    static const int32_t one[] = {0, 192};
    struct pd_attention wrong = *a;
    if (fake->lie == LEAK) { /* the last token of each row of the batch sees everything */
        wrong.cu_seqlens = one;
        wrong.segment_count = 1;
        wrong.seq_used = NULL;
    }
    if (fake->lie == WRONG_NUMBERS)
        wrong.scale *= 1.2f;
    return fake->cpu->attention(fake->cpu, &wrong, error);
}

static int fake_submit(struct pd_backend *self, uint32_t slot, const struct pd_probe_batch *batch,
                       const int32_t *positions, struct pd_error *error)
{
    struct fake *fake = (struct fake *)self;
    if (fake->lie == FAIL_SUBMIT)
        return pd_error_set(error, PD_EDEVICE, "CUDA_FAILED", "the device has left");
    return fake->cpu->submit(fake->cpu, slot, batch, positions, error);
}

static int fake_collect(struct pd_backend *self, uint32_t slot, uint8_t *kinds,
                        struct pd_error *error)
{
    struct fake *fake = (struct fake *)self;
    if (fake->lie == FAIL_COLLECT)
        return pd_error_set(error, PD_EDEVICE, "CUDA_FAILED", "the device has left");
    if (fake->lie == BLIND)
        return 0;
    int rc = fake->cpu->collect(fake->cpu, slot, kinds, error);
    if (fake->lie == ACCUSE_THE_INNOCENT || fake->lie == ACCUSE_ANOTHER)
        kinds[3] |= PD_PROBE_FOREIGN;
    return rc;
}

static void fake_free(struct pd_backend *self)
{
    struct fake *fake = (struct fake *)self;
    fake->cpu->free(fake->cpu);
    ++*fake->freed;
    free(fake);
}

static struct pd_backend *fake_new(enum lie lie, int *freed)
{
    struct fake *fake = calloc(1, sizeof(*fake));
    assert_non_null(fake);
    assert_int_equal(pd_backend_cpu_new(&fake->cpu, NULL), 0);
    fake->base = (struct pd_backend){.name = "fake",
                                     .device = "a device",
                                     .is_device = true,
                                     .attention = fake_attention,
                                     .submit = fake_submit,
                                     .collect = fake_collect,
                                     .free = fake_free};
    fake->lie = lie;
    fake->freed = freed;
    return &fake->base;
}

struct heard {
    int times;
    char what[32], text[200];
};

static void hear(void *ctx, const char *what, const char *text)
{
    struct heard *heard = ctx;
    heard->times++;
    snprintf(heard->what, sizeof(heard->what), "%s", what);
    snprintf(heard->text, sizeof(heard->text), "%s", text);
}

static struct pd_validator *adopt(struct pd_backend *backend, struct heard *heard)
{
    struct pd_validator *v;
    struct pd_validator_notice notice = {hear, heard};
    assert_int_equal(pd_validator_adopt(&backend, &limits, &notice, &v, NULL), 0);
    assert_null(backend);
    return v;
}

static int make_cases(void **state)
{
    (void)state;
    uint64_t random = 42;
    struct pd_case_rules rules = {
        .rows = 2, .width = 256, .seg_align = 1, .pad_segment = 64, .length_max = 60};
    rules.causal = true;
    pd_case_make(&good, &rules, &random);
    pd_case_make(&bad, &rules, &random);
    return !pd_case_plant(&bad, PD_FAULT_MERGED, &random);
}

static void test_names(void **state)
{
    (void)state;
    struct pd_validator *v;
    struct pd_error error, fallback;
    struct pd_probe_result result;
    assert_int_equal(pd_validator_new("gpu", &limits, NULL, &v, NULL, &error), PD_EINVAL);
    assert_string_equal(error.reason, "BACKEND_UNKNOWN");
    assert_int_equal(pd_validator_new("cpu", &limits, NULL, &v, NULL, &error), 0);
    assert_string_equal(pd_validator_backend(v), "cpu");
    assert_true(strlen(pd_validator_device(v)) > 0);
    assert_int_equal(pd_validator_probe(v, &good.batch, &result, &error), 0);
    assert_int_equal(result.violation_count, 0);
    pd_validator_free(v);
    assert_int_equal(pd_validator_new("off", &limits, NULL, &v, NULL, &error), 0);
    assert_string_equal(pd_validator_backend(v), "off");
    assert_int_equal(pd_validator_probe(v, &good.batch, &result, &error), PD_EUNSUPPORTED);
    assert_string_equal(error.reason, "PROBE_OFF");
    pd_validator_free(v);
    assert_int_equal(pd_validator_new("auto", &limits, NULL, &v, &fallback, &error), 0);
    bool cuda = strcmp(pd_validator_backend(v), "cuda") == 0;
    assert_true(cuda ? fallback.code == 0 : strcmp(pd_validator_backend(v), "cpu") == 0);
    if (!cuda)
        printf("auto took the CPU: %s\n", fallback.text);
    pd_validator_free(v);
    pd_validator_free(NULL);
    int rc = pd_validator_new("cuda", &limits, NULL, &v, NULL, &error);
    assert_int_equal(rc, cuda ? 0 : PD_EUNAVAIL); /* asked for by name: no silent CPU */
    if (rc == 0)
        pd_validator_free(v);
}

static void test_limits(void **state)
{
    (void)state;
    struct pd_validator *v;
    struct pd_error error;
    struct pd_probe_result result;
    assert_int_equal(
        pd_validator_new("cpu", &(struct pd_validator_limits){0, 1}, NULL, &v, NULL, &error),
        PD_EINVAL);
    assert_int_equal(
        pd_validator_new("cpu", &(struct pd_validator_limits){100, 100}, NULL, &v, NULL, &error),
        0);
    assert_int_equal(pd_validator_probe(v, &good.batch, &result, &error), PD_ELIMIT);
    assert_string_equal(error.reason, "PROBE_LIMIT");
    assert_true(pd_validator_memory(v).host_bytes >= 100 * 5 * PD_VALIDATOR_DEPTH);
    pd_validator_free(v);
}

static void test_two_in_flight(void **state)
{
    (void)state;
    struct pd_validator *v;
    struct pd_error error;
    struct pd_probe_result result;
    assert_int_equal(pd_validator_new("cpu", &limits, NULL, &v, NULL, &error), 0);
    assert_int_equal(pd_validator_collect(v, &result, &error), PD_EEND);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(pd_validator_submit(v, &bad.batch, &error), 0);
        assert_int_equal(pd_validator_probe(v, &good.batch, &result, &error), PD_EAGAIN);
        assert_int_equal(pd_validator_submit(v, &good.batch, &error), 0);
        assert_int_equal(pd_validator_submit(v, &good.batch, &error), PD_EFULL);
        assert_int_equal(pd_validator_collect(v, &result, &error), 0);
        assert_true(result.violation_count > 0);
        assert_int_equal(pd_validator_collect(v, &result, &error), 0);
        assert_int_equal(result.violation_count, 0);
    }
    pd_validator_free(v);
}

/* Whatever a device does, the verdict is the CPU's, the notice comes once and the device is freed
 * once. */
static void test_devices_that_fail(void **state)
{
    (void)state;
    static const struct {
        enum lie lie;
        const char *what; /* NULL: keeps its place */
    } cases[] = {{HONEST, NULL},
                 {FAIL_SUBMIT, "DEVICE_ERROR"},
                 {FAIL_COLLECT, "DEVICE_ERROR"},
                 {ACCUSE_THE_INNOCENT, "DEVICE_DISAGREES"}};
    for (int i = 0; i < 4; i++) {
        int freed = 0;
        struct heard heard = {0};
        struct pd_validator *v = adopt(fake_new(cases[i].lie, &freed), &heard);
        struct pd_probe_result result;
        for (int round = 0; round < 3; round++) {
            assert_int_equal(pd_validator_submit(v, &good.batch, NULL), 0);
            assert_int_equal(pd_validator_submit(v, &bad.batch, NULL), 0);
            assert_int_equal(pd_validator_collect(v, &result, NULL), 0);
            assert_int_equal(result.violation_count, 0);
            assert_int_equal(pd_validator_collect(v, &result, NULL), 0);
            assert_true(result.violation_count > 0);
        }
        assert_int_equal(heard.times, cases[i].what != NULL);
        assert_int_equal(freed, cases[i].what != NULL);
        assert_string_equal(heard.what, cases[i].what ? cases[i].what : "");
        assert_string_equal(pd_validator_backend(v), cases[i].what ? "cpu" : "fake");
        pd_validator_free(v);
        assert_int_equal(freed, 1);
    }
}

static void test_accusing_another(void **state)
{
    (void)state;
    int freed = 0;
    struct heard heard = {0};
    struct pd_validator *v = adopt(fake_new(ACCUSE_ANOTHER, &freed), &heard);
    struct pd_probe_result result;
    assert_int_equal(pd_validator_probe(v, &bad.batch, &result, NULL), 0);
    assert_true(result.violation_count > 0);
    for (uint32_t i = 0; i < result.listed; i++)
        assert_false(result.violations[i].row == 0 && result.violations[i].position == 3);
    assert_string_equal(heard.what, "DEVICE_DISAGREES");
    pd_validator_free(v);
}

/* The self-test tells a sound backend from one that leaks, one that is inexact and one that sees
 * nothing; a device that fails is replaced by the CPU, a CPU that failed would be an error. */
static void test_selftest(void **state)
{
    (void)state;
    static const enum lie lies[] = {HONEST,      LEAK, WRONG_NUMBERS, BLIND, ACCUSE_THE_INNOCENT,
                                    FAIL_COLLECT};
    for (int i = 0; i < 6; i++) {
        int freed = 0;
        struct heard heard = {0};
        struct pd_selftest_report report;
        struct pd_error error;
        struct pd_validator *v = adopt(fake_new(lies[i], &freed), &heard);
        assert_int_equal(pd_validator_selftest(v, &report, &error), 0);
        assert_string_equal(report.backend, lies[i] == HONEST ? "fake" : "cpu");
        assert_int_equal(heard.times, lies[i] != HONEST);
        if (heard.times)
            printf("retired: %s\n", heard.text);
        assert_int_equal(report.faults_found, report.faults_planted);
        assert_true(report.faults_planted >= PD_FAULT_COUNT);
        assert_true(report.dense_cases > 0 && report.interference_cases > 0);
        pd_validator_free(v);

        struct pd_backend *alone = fake_new(lies[i], &freed);
        int rc = pd_selftest_run(alone, &report, &error);
        assert_int_equal(rc, lies[i] == HONEST         ? 0
                             : lies[i] == FAIL_COLLECT ? PD_EDEVICE
                                                       : PD_EINTERNAL);
        alone->free(alone);
    }
}

static void test_selftest_of_the_kernels(void **state)
{
    (void)state;
    struct heard heard = {0};
    struct pd_selftest_report report;
    struct pd_validator *v = adopt(pd_backend_simt_new(), &heard);
    assert_int_equal(pd_validator_selftest(v, &report, NULL), 0);
    assert_string_equal(report.backend, "simt");
    assert_int_equal(heard.times, 0);
    printf("simt: dense error %.2g of %.2g, %u interference cases, %u faults found, %.1f s\n",
           report.dense_error, report.dense_bound, report.interference_cases, report.faults_found,
           report.seconds);
    pd_validator_free(v);
}

/* M-RoPE: a batch that serves no positions of one dimension. */
static void test_without_positions(void **state)
{
    (void)state;
    struct pd_validator *v;
    struct pd_probe_result result;
    struct pd_probe_batch a = good.batch, b = bad.batch;
    a.positions = b.positions = NULL;
    assert_int_equal(pd_validator_new("cpu", &limits, NULL, &v, NULL, NULL), 0);
    assert_int_equal(pd_validator_probe(v, &a, &result, NULL), 0);
    assert_int_equal(result.violation_count, 0);
    assert_int_equal(pd_validator_probe(v, &b, &result, NULL), 0);
    assert_true(result.violation_count > 0);
    pd_validator_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_two_in_flight),
        cmocka_unit_test(test_devices_that_fail),
        cmocka_unit_test(test_accusing_another),
        cmocka_unit_test(test_selftest),
        cmocka_unit_test(test_selftest_of_the_kernels),
        cmocka_unit_test(test_without_positions),
    };
    return cmocka_run_group_tests(tests, make_cases, NULL);
}
