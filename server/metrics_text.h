/* The exposition's text: families, samples, numbers, in Prometheus 0.0.4 or OpenMetrics 1.0.
 * Private to server/metrics*.c; main thread. */
#ifndef PD_SERVER_METRICS_TEXT_H
#define PD_SERVER_METRICS_TEXT_H

#include "server/metrics.h"

struct pd_metrics_writer {
    struct pd_buf *out;
    bool openmetrics;
};

void pd_metrics_put(struct pd_metrics_writer *writer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Whole numbers as such, so that counters stay exact to 2^53; others with the fewest digits that
 * read back. */
void pd_metrics_put_number(struct pd_metrics_writer *writer, double value);
/* The bound of a bucket in its canonical form: 0.001, 1.0, 60.0; parts of 10^9. Returns text. */
const char *pd_metrics_bound(uint64_t bound, char *text, size_t size);
/* The families of gRPC calls. */
void pd_metrics_calls(struct pd_metrics_writer *writer);
/* Their rows of docs/METRICS.md. */
void pd_metrics_calls_reference(FILE *out);

#endif
