/* Log lines: one line an event on stderr, `time level event key=value ...`, or JSON. No payloads.
 * Any thread.
 *
 *   pd_log(PD_LOG_INFO, "listening", "grpc=%s http=%s", a, b);
 *
 * `format` must print key=value pairs separated by blanks; values with blanks are quoted by the
 * caller ("text=\"...\""). One write(2) a line, so lines of several threads do not mix. Each event
 * name is limited to 20 lines a second; what was dropped is said in the next line that passes. */
#ifndef PD_BASE_LOG_H
#define PD_BASE_LOG_H

#include "base/err.h"

enum pd_log_level { PD_LOG_DEBUG, PD_LOG_INFO, PD_LOG_WARN, PD_LOG_ERROR };

enum pd_log_format { PD_LOG_PLAIN, PD_LOG_JSON };

/* Set at start-up before threads exist. Defaults: INFO; plain. */
void pd_log_setup(enum pd_log_level level, enum pd_log_format format);
void pd_log(enum pd_log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
