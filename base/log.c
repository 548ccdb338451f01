/* Log lines to stderr. A small table of event names with a token count a second keeps a repeated
 * event from flooding the log; its mutex is held for the table only. Does not rotate, buffer or
 * block on anything but stderr itself. */
#include "base/log.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 2048
#define EVENTS_MAX 64
#define LINES_PER_SECOND 20

static enum pd_log_level level_min = PD_LOG_INFO;
static enum pd_log_format line_format = PD_LOG_PLAIN;

static struct {
    pthread_mutex_t lock;
    struct {
        const char *event;
        uint64_t second;
        unsigned count, dropped;
    } rows[EVENTS_MAX];
} rate = {.lock = PTHREAD_MUTEX_INITIALIZER};

void pd_log_setup(enum pd_log_level level, enum pd_log_format format)
{
    level_min = level;
    line_format = format;
}

/* False when this event has had its lines for the second; *dropped is what was held back before
 * this line. A full table lets lines pass. */
static bool rate_allows(const char *event, unsigned *dropped)
{
    uint64_t second = pd_clock_mono_ns() / 1000000000ull;
    bool allowed = true;
    *dropped = 0;
    pthread_mutex_lock(&rate.lock);
    for (unsigned i = 0; i < EVENTS_MAX; i++) {
        if (rate.rows[i].event && strcmp(rate.rows[i].event, event) != 0)
            continue;
        rate.rows[i].event = event;
        if (rate.rows[i].second != second) {
            rate.rows[i].second = second;
            rate.rows[i].count = 0;
        }
        allowed = ++rate.rows[i].count <= LINES_PER_SECOND;
        if (allowed) {
            *dropped = rate.rows[i].dropped;
            rate.rows[i].dropped = 0;
        } else {
            rate.rows[i].dropped++;
        }
        break;
    }
    pthread_mutex_unlock(&rate.lock);
    return allowed;
}

static size_t put_time(char *line, size_t size)
{
    uint64_t now = pd_clock_wall_ns();
    time_t seconds = (time_t)(now / 1000000000ull);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    size_t used = strftime(line, size, "%Y-%m-%dT%H:%M:%S", &tm);
    return used + (size_t)snprintf(line + used, size - used, ".%03uZ",
                                   (unsigned)(now / 1000000ull % 1000));
}

/* Copies text as the inside of a JSON string. */
static size_t put_escaped(char *out, size_t size, const char *text)
{
    size_t used = 0;
    for (; *text && used + 7 < size; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            used += (size_t)snprintf(out + used, size - used, "\\%c", c);
        else if (c < 0x20)
            used += (size_t)snprintf(out + used, size - used, "\\u%04x", c);
        else
            out[used++] = (char)c;
    }
    out[used] = '\0';
    return used;
}

static size_t format_line(char *line, enum pd_log_level level, const char *event, const char *text)
{
    static const char *const names[] = {"DEBUG", "INFO", "WARN", "ERROR"};
    char when[40];
    put_time(when, sizeof when);
    if (line_format == PD_LOG_PLAIN)
        return (size_t)snprintf(line, LINE_MAX_BYTES, "%s %-5s %s%s%s\n", when, names[level], event,
                                *text ? " " : "", text);
    char escaped[LINE_MAX_BYTES - 200];
    put_escaped(escaped, sizeof escaped, text);
    return (size_t)snprintf(line, LINE_MAX_BYTES,
                            "{\"time\":\"%s\",\"severity\":\"%s\",\"component\":\"packd\","
                            "\"event\":\"%s\",\"message\":\"%s\"}\n",
                            when, names[level], event, escaped);
}

void pd_log(enum pd_log_level level, const char *event, const char *format, ...)
{
    unsigned dropped;
    if (level < level_min || !rate_allows(event, &dropped))
        return;
    char text[LINE_MAX_BYTES / 2];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (dropped > 0 && used >= 0 && (size_t)used < sizeof text)
        snprintf(text + used, sizeof text - (size_t)used, " dropped_lines=%u", dropped);
    for (char *c = text; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = ' ';
    }
    char line[LINE_MAX_BYTES];
    size_t size = format_line(line, level, event, text);
    if (size >= sizeof line) {
        size = sizeof line - 1;
        line[size - 1] = '\n';
    }
    if (write(STDERR_FILENO, line, size) < 0)
        return;
}
