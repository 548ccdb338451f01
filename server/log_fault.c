/* A page of the log's maps that a file cannot give (cut off, unreadable or full disk) arrives as
 * SIGBUS or SIGSEGV in whoever touches it; so does what lies behind the map, where a damaged page
 * gives a value a length that no page has, and what LMDB itself does with damaged pages. This turns
 * each into a line that names the file, and an exit, in place of a silent death.
 *
 * Place: installed when a log is opened, for the whole process, where nobody else handles these
 * signals. Runs on the thread that faulted, with system calls alone. Faults anywhere else are
 * left to the default: they kill the process as they always do. */
#include "server/log_internal.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#define LINE_MAX_BYTES 4352
/* LMDB's sizes have 32 bits: a damaged one reaches no further than this past its page, and a
 * damaged offset, of 16 bits, less. */
#define REACH_BYTES (UINT64_C(1) << 32)

/* /proc/self/maps line by line, without the heap. */
struct lines {
    int fd;
    char buf[8192];
    size_t at, filled;
};

static bool next_line(struct lines *lines, char line[LINE_MAX_BYTES])
{
    size_t size = 0;
    for (;;) {
        if (lines->at == lines->filled) {
            ssize_t got = read(lines->fd, lines->buf, sizeof lines->buf);
            if (got <= 0)
                return false;
            lines->at = 0;
            lines->filled = (size_t)got;
        }
        char byte = lines->buf[lines->at++];
        if (byte == '\n') {
            line[size] = 0;
            return true;
        }
        if (size + 1 < LINE_MAX_BYTES)
            line[size++] = byte;
    }
}

static const char *read_hex(const char *at, uint64_t *value)
{
    for (*value = 0;; at++) {
        unsigned digit = (unsigned char)*at;
        if (digit >= '0' && digit <= '9')
            digit -= '0';
        else if (digit >= 'a' && digit <= 'f')
            digit -= 'a' - 10;
        else
            return at;
        *value = *value << 4 | digit;
    }
}

struct range {
    uint64_t from, to, offset;
    const char *path; /* NULL: none */
};

/* "from-to perms offset dev inode path" */
static struct range read_range(const char *line)
{
    struct range range = {.path = strchr(line, '/')};
    const char *at = read_hex(line, &range.from);
    at = *at ? read_hex(at + 1, &range.to) : at;
    at = *at ? strchr(at + 1, ' ') : NULL; /* behind perms */
    if (at)
        (void)read_hex(at + 1, &range.offset);
    return range;
}

static void put_text(char *out, size_t *size, const char *text)
{
    while (*text && *size + 1 < LINE_MAX_BYTES)
        out[(*size)++] = *text++;
}

static void put_number(char *out, size_t *size, uint64_t value)
{
    char digits[24];
    size_t at = sizeof digits;
    digits[--at] = 0;
    do
        digits[--at] = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    put_text(out, size, digits + at);
}

/* `place`: NULL where the address tells none. */
static _Noreturn void report(const char *path, const uint64_t *place)
{
    static char line[LINE_MAX_BYTES];
    size_t size = 0;
    put_text(line, &size, "ERROR log_fault path=\"");
    put_text(line, &size, path);
    put_text(line, &size, "\"");
    if (place) {
        put_text(line, &size, " offset=");
        put_number(line, &size, *place);
    }
    put_text(
        line, &size,
        " text=\"a page of the log cannot be read or written: the file was cut off or damaged, or "
        "the disk failed or is full\"\n");
    if (write(STDERR_FILENO, line, size) < 0)
        _exit(PD_LOG_EXIT_FAILED + 1);
    _exit(PD_LOG_EXIT_FAILED);
}

/* Where the thread was; 0 on machines that this does not know. */
static uint64_t program_counter(const void *context)
{
    const ucontext_t *at = context;
#if defined(__x86_64__)
    return (uint64_t)at->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return at->uc_mcontext.pc;
#else
    (void)at;
    return 0;
#endif
}

/* Whether the address is in a map of a log's file or, where nothing else is mapped, in the reach of
 * one, or the fault is in LMDB's own code, which believes its pages. */
static bool is_of_log(uint64_t address, uint64_t pc, char log[LINE_MAX_BYTES], uint64_t *place,
                      bool *reached)
{
    static struct lines lines;
    static char line[LINE_MAX_BYTES];
    bool elsewhere = false, in_lmdb = false;
    lines.fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    while (lines.fd >= 0 && next_line(&lines, line)) {
        struct range range = read_range(line);
        bool inside = address >= range.from && address < range.to;
        bool of_log = range.path && (strstr(range.path, "/data.mdb") ||
                                     (inside && strstr(range.path, "/lock.mdb")));
        if (of_log && (*log == 0 || inside)) {
            memcpy(log, line, LINE_MAX_BYTES);
            *place = address - range.from + range.offset;
            *reached = address >= range.from && address < range.to + REACH_BYTES;
        }
        elsewhere |= inside && !of_log;
        bool code = pc >= range.from && pc < range.to;
        in_lmdb |= code && range.path && strstr(range.path, "/liblmdb");
    }
    if (lines.fd >= 0)
        close(lines.fd);
    *reached = *reached && !elsewhere;
    return *log && (*reached || in_lmdb);
}

static void fault(int signal_number, siginfo_t *info, void *context)
{
    static char log[LINE_MAX_BYTES];
    uint64_t place = 0;
    bool reached = false;
    if (is_of_log((uint64_t)(uintptr_t)info->si_addr, program_counter(context), log, &place,
                  &reached))
        report(strchr(log, '/'), reached ? &place : NULL);
    signal(signal_number, SIG_DFL); /* on return the access faults again */
}

static void watch(int signal_number)
{
    struct sigaction old, action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    if (sigaction(signal_number, NULL, &old) == 0 && !(old.sa_flags & SA_SIGINFO) &&
        old.sa_handler == SIG_DFL)
        sigaction(signal_number, &action, NULL);
}

void pd_log_watch_faults(void)
{
    watch(SIGBUS);
    watch(SIGSEGV);
}
