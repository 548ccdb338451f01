/* The validate thread: good batches of every layout pass, damaged ones are found without the
 * structural check, fraction and `off` are obeyed, many callers at a time, stop during the
 * self-test. */
#include "server/validate.h"
#include "tests/unit/layout_case.h"

#include "base/check.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define SEED 7

static struct pd_config config_of(const char *backend, double fraction)
{
    struct pd_config config;
    assert_int_equal(pd_config_default(&config), 0);
    snprintf(config.validate_backend, sizeof config.validate_backend, "%s", backend);
    config.validate_fraction = fraction;
    config.validate_cpu_share = 1;
    return config;
}

static struct pd_validation *started(const struct pd_config *config)
{
    struct pd_validation *validation = NULL;
    struct pd_error error = {0};
    if (pd_validation_start(config, &validation, &error) != 0)
        fail_msg("%s", error.text);
    return validation;
}

/* The case's batch as serve hands it over. */
static struct pd_ready_batch batch_of(const struct layout_case *c, uint64_t step)
{
    return (struct pd_ready_batch){.key = {.step = step}, .batch = c->batch, .payload = c->payload};
}

static struct layout_case *random_case(uint64_t *state)
{
    struct pd_error error = {0};
    for (;;) {
        struct layout_case *c = case_new();
        case_randomise(c, state);
        if (case_build(c, &error) == 0)
            return c;
        case_free(c);
    }
}

static void test_good_batches_pass(void **state)
{
    (void)state;
    uint64_t random = SEED;
    struct pd_config config = config_of("cpu", 1);
    struct pd_validation *validation = started(&config);
    for (int i = 0; i < 200; i++) {
        struct layout_case *c = random_case(&random);
        struct pd_ready_batch batch = batch_of(c, (uint64_t)i);
        struct pd_check_finding finding = {0};
        if (pd_validation_probe(validation, &batch, &finding) != 0)
            fail_msg("case %d: %s", i, finding.text);
        assert_true(batch.probed);
        assert_string_equal(batch.validator, "cpu");
        case_free(c);
    }
    struct pd_validation_info info;
    pd_validation_info(validation, &info);
    assert_true(info.tested && info.passed);
    assert_string_equal(info.backend, "cpu");
    pd_validation_stop(validation);
    pd_config_fini(&config);
}

/* One row of two samples, 40 and 24 tokens, full. */
static struct layout_case *two_samples(void)
{
    struct layout_case *c = case_new();
    struct pd_error error = {0};
    c->rules = (struct pd_layout_rules){
        .seq_len = 64, .seg_align = 1, .total_align = 1, .pad_segment = 64};
    c->row_count = 1;
    case_put(c, 0, case_sample(c, 40, 1, 1, NULL, NULL, 0), 0, 40, 0, 1);
    case_put(c, 0, case_sample(c, 24, 100, 1, NULL, NULL, 0), 0, 24, 0, 1);
    if (case_build(c, &error) != 0)
        fail_msg("%s", error.text);
    return c;
}

static void test_faults_are_found(void **state)
{
    (void)state;
    static const struct {
        const char *array;
        size_t index;
        int32_t value;
        const char *kind;
    } faults[] = {
        {"cu_seqlens", 1, 41, "probe_foreign"},   {"cu_seqlens", 1, 39, "probe_"},
        {"cu_seqlens", 2, 63, "probe_uncovered"}, {"cu_seqlens", 2, 1000, "probe_bounds"},
        {"positions", 41, 40, "probe_count"},     {"segment_ids", 50, 1, "probe_"},
        {"seq_lens", 0, 39, "probe_length"},
    };
    struct pd_config config = config_of("cpu", 1);
    struct pd_validation *validation = started(&config);
    for (size_t i = 0; i < PD_COUNT_OF(faults); i++) {
        struct layout_case *c = two_samples();
        struct pd_ready_batch batch = batch_of(c, i);
        struct pd_check_finding finding = {0};
        ((int32_t *)case_array(c, faults[i].array))[faults[i].index] = faults[i].value;
        assert_int_equal(pd_validation_probe(validation, &batch, &finding), PD_ECORRUPT);
        const char *name = pd_check_finding_name(&finding);
        if (strncmp(name, faults[i].kind, strlen(faults[i].kind)) != 0 ||
            !strstr(finding.text, name) || finding.check != PD_CHECK_PROBE)
            fail_msg("%s[%zu] = %d: '%s' (%s)", faults[i].array, faults[i].index, faults[i].value,
                     finding.text, name);
        case_free(c);
    }
    uint64_t counts[PD_PROBED_BACKENDS][PD_PROBED_RESULTS];
    pd_validation_counts(validation, counts);
    assert_int_equal(counts[0][PD_PROBED_VIOLATION], PD_COUNT_OF(faults));
    assert_int_equal(counts[0][PD_PROBED_PASSED], 0);
    pd_validation_stop(validation);
    pd_config_fini(&config);
}

/* How many of 2,000 steps are probed, and that asking again gives the same. */
static unsigned probed_count(const struct pd_config *config, struct pd_validation *validation)
{
    struct layout_case *c = two_samples();
    unsigned count = 0;
    (void)config;
    for (uint64_t step = 0; step < 2000; step++) {
        struct pd_check_finding finding = {0};
        struct pd_ready_batch batch = batch_of(c, step), again = batch;
        assert_int_equal(pd_validation_probe(validation, &batch, &finding), 0);
        assert_int_equal(pd_validation_probe(validation, &again, &finding), 0);
        assert_int_equal(batch.probed, again.probed);
        count += batch.probed;
    }
    case_free(c);
    return count;
}

static void test_fraction(void **state)
{
    (void)state;
    static const struct {
        const char *backend;
        double fraction;
        unsigned low, high;
    } cases[] = {
        {"cpu", 0, 0, 0}, {"cpu", 0.25, 400, 600}, {"cpu", 1, 2000, 2000}, {"off", 1, 0, 0}};
    for (size_t i = 0; i < PD_COUNT_OF(cases); i++) {
        struct pd_config config = config_of(cases[i].backend, cases[i].fraction);
        struct pd_validation *validation = started(&config);
        unsigned count = probed_count(&config, validation);
        assert_in_range(count, cases[i].low, cases[i].high);
        pd_validation_stop(validation);
        pd_config_fini(&config);
    }
}

static void *ask_many(void *arg)
{
    struct layout_case *c = two_samples();
    for (uint64_t step = 0; step < 300; step++) {
        struct pd_ready_batch batch = batch_of(c, step);
        struct pd_check_finding finding = {0};
        PD_CHECK(pd_validation_probe(arg, &batch, &finding) == 0 && batch.probed);
    }
    case_free(c);
    return NULL;
}

static void test_many_callers(void **state)
{
    (void)state;
    pthread_t threads[4];
    struct pd_config config = config_of("cpu", 1);
    struct pd_validation *validation = started(&config);
    for (size_t i = 0; i < PD_COUNT_OF(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask_many, validation), 0);
    for (size_t i = 0; i < PD_COUNT_OF(threads); i++)
        pthread_join(threads[i], NULL);
    pd_validation_stop(validation);
    pd_config_fini(&config);
}

/* Every self-test fails while set; linked in place of the validator's own (see BUILD). */
static atomic_bool fails;
int __real_pd_validator_selftest(struct pd_validator *validator, struct pd_selftest_report *report,
                                 struct pd_error *error);
int __wrap_pd_validator_selftest(struct pd_validator *validator, struct pd_selftest_report *report,
                                 struct pd_error *error);
int __wrap_pd_validator_selftest(struct pd_validator *validator, struct pd_selftest_report *report,
                                 struct pd_error *error)
{
    return atomic_load(&fails) ? pd_error_set(error, PD_EINTERNAL, "SELFTEST_FAILED", "as asked")
                               : __real_pd_validator_selftest(validator, report, error);
}

/* Asks 200 batches, all of which must give `expected`. */
static void expect_all(struct pd_validation *validation, int expected)
{
    struct layout_case *c = two_samples();
    for (uint64_t step = 0; step < 200; step++) {
        struct pd_ready_batch batch = batch_of(c, step);
        struct pd_check_finding finding = {0};
        assert_int_equal(pd_validation_probe(validation, &batch, &finding), expected);
    }
    case_free(c);
}

struct order {
    struct pd_selftest_order base;
    sem_t done;
};

static void order_done(struct pd_selftest_order *base)
{
    sem_post(&PD_CONTAINER_OF(base, struct order, base)->done);
}

static void test_again(struct pd_validation *validation, bool passes)
{
    struct order order = {.base.done = order_done};
    struct pd_validation_info info;
    struct pd_error error;
    struct timespec until;
    assert_int_equal(sem_init(&order.done, 0, 0), 0);
    assert_int_equal(pd_validation_selftest(validation, &order.base, &error), 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    assert_int_equal(sem_timedwait(&order.done, &until), 0);
    assert_int_equal(order.base.result == 0, passes);
    sem_destroy(&order.done);
    pd_validation_info(validation, &info);
    assert_true(info.tested && info.passed == passes);
}

/* Whether a batch is chosen or not: nothing passes after a self-test that failed. */
static void test_a_failed_self_test_stops_everything(void **state)
{
    (void)state;
    static const double fractions[] = {0, 0.5};
    for (size_t i = 0; i < PD_COUNT_OF(fractions); i++) {
        struct pd_validation_info info;
        struct pd_config config = config_of("cpu", fractions[i]);
        atomic_store(&fails, true);
        struct pd_validation *validation = started(&config);
        expect_all(validation, PD_EDEVICE);
        pd_validation_info(validation, &info);
        assert_true(info.tested && !info.passed);
        atomic_store(&fails, false);
        test_again(validation, true);
        expect_all(validation, 0);
        atomic_store(&fails, true);
        test_again(validation, false);
        expect_all(validation, PD_EDEVICE);
        atomic_store(&fails, false);
        pd_validation_stop(validation);
        pd_config_fini(&config);
    }
    struct pd_config off = config_of("off", 1);
    atomic_store(&fails, true);
    struct pd_validation *validation = started(&off);
    expect_all(validation, 0);
    pd_validation_stop(validation);
    pd_config_fini(&off);
    atomic_store(&fails, false);
}

static void test_stop_at_once(void **state)
{
    (void)state;
    struct pd_config config = config_of("auto", 1);
    pd_validation_stop(started(&config));
    pd_config_fini(&config);
}

int main(void)
{
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_batches_pass),
        cmocka_unit_test(test_faults_are_found),
        cmocka_unit_test(test_fraction),
        cmocka_unit_test(test_many_callers),
        cmocka_unit_test(test_a_failed_self_test_stops_everything),
        cmocka_unit_test(test_stop_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
