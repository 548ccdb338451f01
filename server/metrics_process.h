/* The process_* families that every Prometheus client exports, read from /proc at scrape. Main
 * thread. */
#ifndef PD_SERVER_METRICS_PROCESS_H
#define PD_SERVER_METRICS_PROCESS_H

#include "server/metrics.h"

/* Families whose values cannot be had are left out. */
void pd_metrics_process(struct pd_metrics_writer *writer);

/* Resident memory without mapped files, from /proc; 0 where it cannot be had. Any thread. */
uint64_t pd_process_anonymous_bytes(void);

#endif
