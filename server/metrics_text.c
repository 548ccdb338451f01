/* The exposition's text, line by line into a buffer. Main thread. It knows the two formats and no
 * metric. */
#include "server/metrics_text.h"

#include "base/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void pd_metrics_put(struct pd_metrics_writer *writer, const char *format, ...)
{
    char line[600];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    PD_CHECK(size >= 0 && (size_t)size < sizeof line);
    pd_buf_put(writer->out, line, (size_t)size);
}

static bool ends_with(const char *text, size_t length, const char *end)
{
    size_t size = strlen(end);
    return length >= size && memcmp(text + length - size, end, size) == 0;
}

/* OpenMetrics calls a family of counters by its name without _total, and wants the unit said. */
void pd_metrics_family(struct pd_metrics_writer *writer, const char *name, const char *type,
                       const char *help)
{
    int length = (int)strlen(name);
    if (writer->openmetrics && strcmp(type, "counter") == 0 &&
        ends_with(name, (size_t)length, "_total"))
        length -= 6;
    pd_metrics_put(writer, "# HELP %.*s %s\n# TYPE %.*s %s\n", length, name, help, length, name,
                   type);
    if (!writer->openmetrics)
        return;
    if (ends_with(name, (size_t)length, "_seconds"))
        pd_metrics_put(writer, "# UNIT %.*s seconds\n", length, name);
    else if (ends_with(name, (size_t)length, "_bytes"))
        pd_metrics_put(writer, "# UNIT %.*s bytes\n", length, name);
}

void pd_metrics_put_number(struct pd_metrics_writer *writer, double value)
{
    char text[40];
    if (value == floor(value) && fabs(value) < 9007199254740992.0) {
        pd_metrics_put(writer, "%.0f", value);
        return;
    }
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    pd_metrics_put(writer, "%s", text);
}

void pd_metrics_sample(struct pd_metrics_writer *writer, const char *name, const char *labels,
                       double value)
{
    pd_metrics_put(writer, "%s%s%s%s ", name, *labels ? "{" : "", labels, *labels ? "}" : "");
    pd_metrics_put_number(writer, value);
    pd_buf_put(writer->out, "\n", 1);
}

const char *pd_metrics_escape(const char *value, char *out, size_t size)
{
    size_t used = 0;
    for (; *value && used + 3 <= size; value++) {
        if (*value == '\\' || *value == '"' || *value == '\n')
            out[used++] = '\\';
        out[used++] = *value == '\n' ? 'n' : *value;
    }
    out[used] = '\0';
    return out;
}

const char *pd_metrics_bound(uint64_t bound, char *text, size_t size)
{
    bool whole = bound % 1000000000u == 0;
    snprintf(text, size, whole ? "%.1f" : "%g", (double)bound / 1e9);
    return text;
}
