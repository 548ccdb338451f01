/* Metrics of gRPC calls: started, ended by status, and how long they took, by service and method.
 *
 * A row for each method told at the start, and one for all others. Adding is lock-free from any
 * thread; rows are told before threads exist. It knows no gRPC. */
#include "base/check.h"
#include "server/metrics_text.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#define CODES 17

static const char *const codes[CODES] = {
    "OK",       "Canceled",        "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",   "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",      "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated",
};

/* Fewer than durations of our own have: each method has them. */
static const uint64_t bounds[] = {1000000,   5000000,    25000000,    100000000,
                                  500000000, 2500000000, 10000000000, 60000000000};
#define BUCKETS PD_COUNT_OF(bounds)

/* rows[row_count] counts the calls of unknown methods. */
static struct {
    const char *path;
    _Atomic uint64_t started, ended[CODES], buckets[BUCKETS + 1], sum_ns;
} rows[PD_METRICS_METHODS_MAX + 1];
static size_t row_count;

void pd_metrics_method(const char *path)
{
    for (size_t i = 0; i < row_count; i++)
        if (strcmp(rows[i].path, path) == 0)
            return;
    PD_CHECK(row_count < PD_METRICS_METHODS_MAX);
    rows[row_count++].path = path;
}

static size_t row_of(const char *path)
{
    size_t i = 0;
    while (i < row_count && strcmp(rows[i].path, path) != 0)
        i++;
    return i;
}

void pd_metric_call_started(const char *path)
{
    atomic_fetch_add_explicit(&rows[row_of(path)].started, 1, memory_order_relaxed);
}

void pd_metric_call_ended(const char *path, unsigned code, uint64_t duration_ns)
{
    size_t row = row_of(path), bucket = 0;
    while (bucket < BUCKETS && duration_ns > bounds[bucket])
        bucket++;
    atomic_fetch_add_explicit(&rows[row].ended[code < CODES ? code : 2], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&rows[row].buckets[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&rows[row].sum_ns, duration_ns, memory_order_relaxed);
}

/* ---- writing ---- */

static const struct {
    const char *name, *type, *labels, *help;
} families[] = {
    {"grpc_server_started_total", "counter", "grpc_service, grpc_method", "gRPC calls accepted."},
    {"grpc_server_handled_total", "counter", "grpc_service, grpc_method, grpc_code",
     "gRPC calls ended, by status."},
    {"grpc_server_handling_seconds", "histogram", "grpc_service, grpc_method",
     "Time from a gRPC call's start to its end; streams live long."},
};

/* "/packd.v1.Feed/Fetch" as labels of service and method. */
static const char *labels_of(size_t row, char labels[200])
{
    const char *path = row < row_count ? rows[row].path : "/unknown/unknown";
    const char *method = strrchr(path, '/');
    snprintf(labels, 200, "grpc_service=\"%.*s\",grpc_method=\"%.60s\"", (int)(method - path - 1),
             path + 1, method + 1);
    return labels;
}

static void open_family(struct pd_metrics_writer *writer, size_t family)
{
    pd_metrics_family(writer, families[family].name, families[family].type, families[family].help);
}

/* Statuses of packd's own services are known; of others, and of unknown methods, OK alone. */
static bool is_known(size_t row, size_t code)
{
    return code == 0 || (row < row_count && strncmp(rows[row].path, "/packd.", 7) == 0);
}

static void put_handled(struct pd_metrics_writer *writer, size_t row)
{
    char labels[200], with_code[260];
    labels_of(row, labels);
    for (size_t code = 0; code < CODES; code++) {
        uint64_t value = atomic_load(&rows[row].ended[code]);
        if (value == 0 && !is_known(row, code))
            continue;
        snprintf(with_code, sizeof with_code, "%s,grpc_code=\"%s\"", labels, codes[code]);
        pd_metrics_sample(writer, families[1].name, with_code, (double)value);
    }
}

static void put_seconds(struct pd_metrics_writer *writer, size_t row)
{
    const char *name = families[2].name;
    char labels[200], bound[40];
    uint64_t count = 0;
    labels_of(row, labels);
    for (size_t i = 0; i <= BUCKETS; i++) {
        count += atomic_load_explicit(&rows[row].buckets[i], memory_order_relaxed);
        pd_metrics_put(writer, "%s_bucket{%s,le=\"%s\"} %" PRIu64 "\n", name, labels,
                       i == BUCKETS ? "+Inf" : pd_metrics_bound(bounds[i], bound, sizeof bound),
                       count);
    }
    pd_metrics_put(writer, "%s_sum{%s} ", name, labels);
    pd_metrics_put_number(writer, (double)atomic_load(&rows[row].sum_ns) / 1e9);
    pd_metrics_put(writer, "\n%s_count{%s} %" PRIu64 "\n", name, labels, count);
}

void pd_metrics_calls(struct pd_metrics_writer *writer)
{
    char labels[200];
    open_family(writer, 0);
    for (size_t row = 0; row <= row_count; row++)
        pd_metrics_sample(writer, families[0].name, labels_of(row, labels),
                          (double)atomic_load(&rows[row].started));
    open_family(writer, 1);
    for (size_t row = 0; row <= row_count; row++)
        put_handled(writer, row);
    open_family(writer, 2);
    for (size_t row = 0; row <= row_count; row++)
        put_seconds(writer, row);
}

void pd_metrics_calls_reference(FILE *out)
{
    for (size_t i = 0; i < PD_COUNT_OF(families); i++)
        fprintf(out, "| `%s` | %s | %s | %s |\n", families[i].name, families[i].type,
                families[i].labels, families[i].help);
}
