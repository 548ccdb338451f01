/* A page of the log's map that the file cannot give (cut off, unreadable disk) arrives as SIGBUS
 * or SIGSEGV in whoever touches it. This turns it into one line that names file and offset, and
 * an exit, in place of a silent death.
 *
 * Place: installed when a log is opened, for the whole process, where nobody else handles these
 * signals. Runs on the thread that faulted, with system calls alone. Faults anywhere else are
 * left to the default: they kill the process as they always do. */
#include "server/log_internal.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#define LINE_MAX_BYTES 4352

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

/* "from-to perms offset dev inode path": the path and the place in it, where the line's range
 * holds the address. */
static const char *match(const char *line, uint64_t address, uint64_t *place)
{
    uint64_t from, to, offset;
    const char *at = read_hex(line, &from);
    at = *at ? read_hex(at + 1, &to) : at;
    const char *path = strchr(at, '/');
    if (*at != ' ' || address < from || address >= to || !path)
        return NULL;
    at = strchr(at + 1, ' ');
    if (!at)
        return NULL;
    read_hex(at + 1, &offset);
    *place = address - from + offset;
    return path;
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

static _Noreturn void report(const char *path, uint64_t place)
{
    static char line[LINE_MAX_BYTES];
    size_t size = 0;
    put_text(line, &size, "ERROR log_fault path=\"");
    put_text(line, &size, path);
    put_text(line, &size, "\" offset=");
    put_number(line, &size, place);
    put_text(
        line, &size,
        " text=\"a page of the log cannot be read: the file was cut off or the disk failed\"\n");
    if (write(STDERR_FILENO, line, size) < 0)
        _exit(PD_LOG_EXIT_FAILED + 1);
    _exit(PD_LOG_EXIT_FAILED);
}

static void fault(int signal_number, siginfo_t *info, void *context)
{
    static struct lines lines;
    static char line[LINE_MAX_BYTES];
    (void)context;
    lines.fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    while (lines.fd >= 0 && next_line(&lines, line)) {
        uint64_t place;
        const char *path = match(line, (uint64_t)(uintptr_t)info->si_addr, &place);
        if (path && strstr(path, "/data.mdb"))
            report(path, place);
    }
    if (lines.fd >= 0)
        close(lines.fd);
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
