/* What the kernel says of this process. Each value comes from /proc or a system call at scrape
 * time; nothing is kept. Main thread. */
#include "server/metrics_process.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void one(struct pd_metrics_writer *writer, const char *name, const char *type,
                const char *help, double value)
{
    pd_metrics_family(writer, name, type, help);
    pd_metrics_sample(writer, name, "", value);
}

/* The fields of /proc/self/stat behind the command name: [0] is the state. */
#define FIELD_THREADS 17
#define FIELD_START_TICKS 19
#define FIELD_VIRTUAL 20
#define FIELD_RESIDENT 21
#define FIELDS 22

static bool read_stat(double fields[FIELDS])
{
    char text[1024];
    FILE *file = fopen("/proc/self/stat", "re");
    size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    text[size] = '\0';
    char *at = strrchr(text, ')');
    if (!at)
        return false;
    char *rest = NULL;
    int count = 0;
    for (char *word = strtok_r(at + 1, " ", &rest); word && count < FIELDS;
         word = strtok_r(NULL, " ", &rest))
        fields[count++] = strtod(word, NULL);
    return count == FIELDS;
}

/* The number behind `name` in a file of "name value" lines, or -1. */
static double read_line(const char *path, const char *name)
{
    char line[256];
    double value = -1;
    FILE *file = fopen(path, "re");
    while (file && value < 0 && fgets(line, sizeof line, file)) {
        if (strncmp(line, name, strlen(name)) == 0)
            value = strtod(line + strlen(name), NULL);
    }
    if (file)
        fclose(file);
    return value;
}

static double count_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return -1;
    double count = -3; /* ".", "..", and the one of this listing */
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static void put_stat(struct pd_metrics_writer *writer)
{
    double fields[FIELDS];
    if (!read_stat(fields))
        return;
    double boot = read_line("/proc/stat", "btime ");
    one(writer, "process_threads", "gauge", "Threads.", fields[FIELD_THREADS]);
    one(writer, "process_virtual_memory_bytes", "gauge", "Virtual memory.", fields[FIELD_VIRTUAL]);
    one(writer, "process_resident_memory_bytes", "gauge",
        "Resident memory, mapped log pages included.",
        fields[FIELD_RESIDENT] * (double)sysconf(_SC_PAGESIZE));
    if (boot >= 0)
        one(writer, "process_start_time_seconds", "gauge",
            "Start of the process, in seconds since 1970.",
            boot + fields[FIELD_START_TICKS] / (double)sysconf(_SC_CLK_TCK));
}

static void put_limit(struct pd_metrics_writer *writer, int resource, const char *name,
                      const char *help)
{
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        one(writer, name, "gauge", help, (double)limit.rlim_cur);
}

uint64_t pd_process_anonymous_bytes(void)
{
    double kib = read_line("/proc/self/status", "RssAnon:");
    return kib > 0 ? (uint64_t)kib * 1024 : 0;
}

void pd_metrics_process(struct pd_metrics_writer *writer)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        one(writer, "process_cpu_seconds_total", "counter", "User and system CPU time.",
            (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    put_stat(writer);
    put_limit(writer, RLIMIT_AS, "process_virtual_memory_max_bytes", "Most virtual memory.");
    put_limit(writer, RLIMIT_NOFILE, "process_max_fds", "Most open file descriptors.");
    double descriptors = count_descriptors();
    if (descriptors >= 0)
        one(writer, "process_open_fds", "gauge", "Open file descriptors.", descriptors);
    uint64_t anonymous_bytes = pd_process_anonymous_bytes();
    if (anonymous_bytes > 0)
        one(writer, "packd_memory_anonymous_bytes", "gauge",
            "Resident memory without mapped files: what the budgets are about.",
            (double)anonymous_bytes);
}
