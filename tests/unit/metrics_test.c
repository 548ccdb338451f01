/* Metrics: values, labels, histograms, both text formats line by line, collectors, the reference
 * page. */
#include "server/metrics.h"

#include "base/check.h"
#include "tests/unit/reference_page.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static char *rendered(bool openmetrics)
{
    struct pd_buf buf = {0};
    assert_int_equal(pd_metrics_render(&buf, openmetrics), 0);
    pd_buf_put_u8(&buf, 0);
    assert_false(buf.failed);
    return (char *)buf.data;
}

static void has(const char *text, const char *line)
{
    if (!strstr(text, line))
        fail_msg("'%s' is missing in\n%s", line, text);
}

static void test_everything_starts_at_zero(void **state)
{
    (void)state;
    static const char *const feeds[] = {"a", "b"};
    pd_metrics_feeds(feeds, PD_COUNT_OF(feeds));
    pd_metrics_method("/packd.v1.Feed/Fetch");
    pd_metrics_method("/packd.v1.Feed/Fetch");
    char *text = rendered(false);
#define X(id, name, help) has(text, "\n" name " 0\n");
    PD_COUNTERS(X)
#undef X
#define X(id, name, buckets, help) has(text, "\n" name "_count 0\n");
    PD_HISTOGRAMS(X)
#undef X
#define X(id, name, label, help) has(text, "# TYPE " name " counter\n");
    PD_LABELLED_COUNTERS(X)
#undef X
#define X(id, name, help) has(text, "\n" name "{feed=\"b\"} 0\n");
    PD_FEED_COUNTERS(X)
#undef X
    has(text, "packd_serve_waited_seconds_total{feed=\"a\",waits_for=\"samples\"} 0\n");
    has(text, "packd_serve_waited_seconds_total{feed=\"b\",waits_for=\"credit\"} 0\n");
    has(text,
        "grpc_server_started_total{grpc_service=\"packd.v1.Feed\",grpc_method=\"Fetch\"} 0\n");
    has(text, "grpc_server_handled_total{grpc_service=\"packd.v1.Feed\",grpc_method=\"Fetch\","
              "grpc_code=\"DataLoss\"} 0\n");
    has(text, "process_open_fds ");
    has(text, "process_cpu_seconds_total ");
    has(text, "process_resident_memory_bytes ");
    has(text, "process_start_time_seconds ");
    has(text, "packd_memory_anonymous_bytes ");
    free(text);
}

static void test_labels(void **state)
{
    (void)state;
    char label[40];
    pd_metric_add_labelled(PD_M_INGEST_REJECTED, "TOKEN_RANGE", 3);
    pd_metric_add_labelled(PD_M_INGEST_REJECTED, "TOKEN_RANGE", 4);
    pd_metric_add_labelled(PD_M_INGEST_REJECTED, "a\"b\\c\nd", 1);
    for (int i = 0; i < 100; i++) {
        snprintf(label, sizeof label, "label_%d", i);
        pd_metric_add_labelled(PD_M_VIOLATIONS, label, 1);
    }
    char *text = rendered(false);
    has(text, "packd_ingest_rejected_total{reason=\"TOKEN_RANGE\"} 7\n");
    has(text, "packd_ingest_rejected_total{reason=\"a\\\"b\\\\c\\nd\"} 1\n");
    has(text, "packd_validation_violations_total{check=\"label_63\"} 1\n");
    assert_null(strstr(text, "label_64"));
    has(text, "packd_validation_violations_total{check=\"other\"} 36\n");
    free(text);
}

static void test_histogram(void **state)
{
    (void)state;
    pd_metric_observe(PD_M_PLAN_SECONDS, 0);
    pd_metric_observe(PD_M_PLAN_SECONDS, 100000);        /* on a bound: le */
    pd_metric_observe(PD_M_PLAN_SECONDS, 100001);        /* behind it */
    pd_metric_observe(PD_M_PLAN_SECONDS, 120000000000u); /* past all */
    char *text = rendered(false);
    has(text, "packd_plan_duration_seconds_bucket{le=\"0.0001\"} 2\n");
    has(text, "packd_plan_duration_seconds_bucket{le=\"0.00025\"} 3\n");
    has(text, "packd_plan_duration_seconds_bucket{le=\"1.0\"} 3\n");
    has(text, "packd_plan_duration_seconds_bucket{le=\"60.0\"} 3\n");
    has(text, "packd_plan_duration_seconds_bucket{le=\"+Inf\"} 4\n");
    has(text, "packd_plan_duration_seconds_sum 120.000200001\n");
    has(text, "packd_plan_duration_seconds_count 4\n");
    free(text);
}

static void test_ratios(void **state)
{
    (void)state;
    pd_metric_observe(PD_M_OCCUPANCY, 1000000000);
    pd_metric_observe(PD_M_OCCUPANCY, 995000001);
    char *text = rendered(false);
    has(text, "packd_pack_occupancy_ratio_bucket{le=\"0.995\"} 0\n");
    has(text, "packd_pack_occupancy_ratio_bucket{le=\"0.999\"} 1\n");
    has(text, "packd_pack_occupancy_ratio_bucket{le=\"1.0\"} 2\n");
    free(text);
}

static void test_feeds_and_sets(void **state)
{
    (void)state;
    pd_metric_add_feed(PD_F_INGEST_TOKENS, 1, 70);
    pd_metric_add_feed(PD_F_INGEST_TOKENS, 1, 7);
    pd_metric_add_set(PD_S_WAITED, 0, "samples", 2500000000);
    pd_metric_add_set(PD_S_WAITED, 0, "no such word", 1000000000);
    pd_metric_add_set(PD_S_COMPUTE, 1, "padded", 12);
    assert_int_equal(pd_metric_feed_value(PD_F_INGEST_TOKENS, 1), 77);
    char *text = rendered(false);
    has(text, "packd_ingest_tokens_total{feed=\"a\"} 0\n");
    has(text, "packd_ingest_tokens_total{feed=\"b\"} 77\n");
    has(text, "packd_serve_waited_seconds_total{feed=\"a\",waits_for=\"samples\"} 2.5\n");
    has(text, "packd_serve_waited_seconds_total{feed=\"a\",waits_for=\"other\"} 1\n");
    has(text, "packd_serve_waited_seconds_total{feed=\"b\",waits_for=\"samples\"} 0\n");
    has(text, "packd_compute_units_total{feed=\"b\",layout=\"padded\"} 12\n");
    free(text);
}

static void test_calls(void **state)
{
    (void)state;
    pd_metric_call_started("/packd.v1.Feed/Fetch");
    pd_metric_call_ended("/packd.v1.Feed/Fetch", 10, 30000000);
    pd_metric_call_started("/from/anywhere");
    pd_metric_call_ended("/from/anywhere", 12, 1);
    char *text = rendered(true);
#define FETCH "grpc_service=\"packd.v1.Feed\",grpc_method=\"Fetch\""
#define UNKNOWN "grpc_service=\"unknown\",grpc_method=\"unknown\""
    has(text, "grpc_server_started_total{" FETCH "} 1\n");
    has(text, "grpc_server_handled_total{" FETCH ",grpc_code=\"Aborted\"} 1\n");
    has(text, "grpc_server_handled_total{" FETCH ",grpc_code=\"OK\"} 0\n");
    has(text, "grpc_server_handling_seconds_bucket{" FETCH ",le=\"0.025\"} 0\n");
    has(text, "grpc_server_handling_seconds_bucket{" FETCH ",le=\"0.1\"} 1\n");
    has(text, "grpc_server_handling_seconds_sum{" FETCH "} 0.03\n");
    has(text, "grpc_server_started_total{" UNKNOWN "} 1\n");
    has(text, "grpc_server_handled_total{" UNKNOWN ",grpc_code=\"Unimplemented\"} 1\n");
    assert_null(strstr(text, "anywhere"));
    free(text);
}

static size_t series_in(const char *text)
{
    size_t series = 0;
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL)
        series += *line != '#';
    return series;
}

/* In CPU time of this thread, so that a busy machine changes little. */
static void test_cost_of_a_scrape(void **state)
{
    (void)state;
    static char paths[30][40];
    for (size_t i = 0; i < PD_COUNT_OF(paths); i++) {
        snprintf(paths[i], sizeof paths[i], "/packd.v1.Test/Method%zu", i);
        pd_metrics_method(paths[i]);
    }
    struct timespec before, after;
    size_t series = 0;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    for (int i = 0; i < 20; i++) {
        char *text = rendered(i % 2);
        series = series_in(text);
        free(text);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    double ms = ((double)(after.tv_sec - before.tv_sec) * 1e3 +
                 (double)(after.tv_nsec - before.tv_nsec) / 1e6) /
                20;
    print_message("a scrape of %zu series takes %.3f ms of CPU\n", series, ms);
    assert_true(series > 1000);
#if !defined PD_ASAN && !defined PD_TSAN
    assert_true(ms * 1000 / (double)series <= 5);
#endif
}

static void *add_many(void *arg)
{
    (void)arg;
    for (int i = 0; i < 20000; i++) {
        char label[16];
        snprintf(label, sizeof label, "c%d", i % 10);
        pd_metric_add(PD_M_COMMITS, 1);
        pd_metric_add_labelled(PD_M_INGEST_REJECTED, label, 1);
        pd_metric_observe(PD_M_CHECK_SECONDS, 1000);
        pd_metric_heartbeat("worker");
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t threads[4];
    for (size_t i = 0; i < PD_COUNT_OF(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, NULL), 0);
    for (size_t i = 0; i < PD_COUNT_OF(threads); i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(pd_metric_value(PD_M_COMMITS), 80000);
    char *text = rendered(false);
    for (int i = 0; i < 10; i++) {
        char line[64];
        snprintf(line, sizeof line, "packd_ingest_rejected_total{reason=\"c%d\"} 8000\n", i);
        has(text, line);
    }
    has(text, "packd_validation_duration_seconds_count 80000\n");
    has(text, "packd_thread_heartbeat_timestamp_seconds{thread=\"worker\"} 1");
    free(text);
}

static void collect(void *ctx, struct pd_metrics_writer *writer)
{
    double *value = ctx;
    char label[32];
    pd_metrics_collected(writer, PD_C_PACK_TOKENS);
    pd_metrics_sample(writer, pd_metrics_collected_name(PD_C_PACK_TOKENS),
                      "feed=\"a\",kind=\"real\"", *value);
    pd_metrics_collected(writer, PD_C_LOG_BYTES);
    pd_metrics_sample(writer, pd_metrics_collected_name(PD_C_LOG_BYTES), "", 0.1);
    assert_string_equal(pd_metrics_escape("x\"\"\"\"", label, 6), "x\\\"\\\"");
}

static void test_collectors(void **state)
{
    (void)state;
    double value = 123456789012345;
    pd_metrics_register(collect, &value);
    char *text = rendered(false);
    has(text, "# TYPE packd_pack_tokens_total "
              "counter\npackd_pack_tokens_total{feed=\"a\",kind=\"real\"} 123456789012345\n");
    has(text, "# TYPE packd_log_bytes gauge\npackd_log_bytes 0.1\n");
    free(text);
    text = rendered(true);
    has(text, "# TYPE packd_pack_tokens counter\npackd_pack_tokens_total{feed=\"a\",kind=\"real\"} "
              "123456789012345\n");
    has(text, "# TYPE packd_log_bytes gauge\n# UNIT packd_log_bytes bytes\npackd_log_bytes 0.1\n");
    free(text);
    pd_metrics_unregister_all();
    text = rendered(false);
    assert_null(strstr(text, "packd_pack_tokens_total"));
    free(text);
}

/* The family a sample line belongs to, by the type's suffixes. */
static bool belongs(const char *line, size_t name_size, const char *family, const char *type,
                    bool openmetrics)
{
    static const char *const suffixes[] = {"_bucket", "_sum", "_count"};
    size_t size = strlen(family);
    if (name_size < size || memcmp(line, family, size) != 0)
        return false;
    const char *rest = line + size;
    size_t rest_size = name_size - size;
    if (strcmp(type, "counter") == 0 && openmetrics)
        return rest_size == 6 && memcmp(rest, "_total", 6) == 0;
    for (size_t i = 0; strcmp(type, "histogram") == 0 && i < PD_COUNT_OF(suffixes); i++) {
        if (rest_size == strlen(suffixes[i]) && memcmp(rest, suffixes[i], rest_size) == 0)
            return true;
    }
    return rest_size == 0;
}

/* A lint of the exposition: every line is a comment of a new family or a sample of the family that
 * is open; no family twice; units are suffixes; values are numbers; the end is where it belongs. */
static void lint(char *text, bool openmetrics)
{
    char family[100] = "", type[20] = "", seen[200][100];
    size_t families = 0;
    bool ended = false;
    char *rest = NULL;
    assert_int_equal(text[strlen(text) - 1], '\n');
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char name[100], value[100];
        assert_false(ended);
        if (strcmp(line, "# EOF") == 0) {
            ended = true;
        } else if (sscanf(line, "# HELP %99s %99s", name, value) == 2) {
            for (size_t i = 0; i < families; i++)
                assert_string_not_equal(seen[i], name);
            snprintf(family, sizeof family, "%s", name);
            snprintf(seen[families++], sizeof seen[0], "%s", name);
            type[0] = '\0';
        } else if (sscanf(line, "# TYPE %99s %99s", name, value) == 2) {
            assert_string_equal(name, family);
            snprintf(type, sizeof type, "%.19s", value);
        } else if (sscanf(line, "# UNIT %99s %99s", name, value) == 2) {
            assert_string_equal(name, family);
            assert_true(openmetrics && strlen(name) > strlen(value));
            assert_string_equal(name + strlen(name) - strlen(value), value);
        } else {
            size_t size = strcspn(line, "{ ");
            if (!type[0] || !belongs(line, size, family, type, openmetrics))
                fail_msg("'%s' stands under family '%s' of type '%s'", line, family, type);
            char *end, *number = strrchr(line, ' ') + 1;
            assert_true(strtod(number, &end) >= 0 && *end == '\0');
            if (strcmp(type, "counter") == 0)
                assert_non_null(strstr(line, "_total"));
        }
    }
    assert_true(families > 20);
    assert_int_equal(ended, openmetrics);
}

static void test_lint(void **state)
{
    (void)state;
    double value = 5;
    pd_metrics_register(collect, &value);
    char *text = rendered(false);
    lint(text, false);
    free(text);
    text = rendered(true);
    lint(text, true);
    free(text);
    pd_metrics_unregister_all();
}

static void test_reference_page_is_current(void **state)
{
    (void)state;
    expect_current("docs/METRICS.md", "metrics", pd_metrics_reference);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_starts_at_zero),
        cmocka_unit_test(test_labels),
        cmocka_unit_test(test_histogram),
        cmocka_unit_test(test_ratios),
        cmocka_unit_test(test_feeds_and_sets),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_collectors),
        cmocka_unit_test(test_lint),
        cmocka_unit_test(test_reference_page_is_current),
        cmocka_unit_test(test_cost_of_a_scrape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
