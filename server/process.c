/* Settings of the process. The allocator ones matter to the log: LMDB allocates and frees its dirty
 * pages in every transaction, and glibc would hand them back to the kernel each time. Main thread,
 * before other threads; undone by nothing but the end of the process. */
#include "server/process.h"

#include "base/check.h"
#include "base/log.h"
#include "base/units.h"
#include "server/metrics_process.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define MMAP_THRESHOLD_BYTES (32 << 20)
#define TRIM_THRESHOLD_BYTES (64 << 20)
#define ARENAS_MAX 2 /* each keeps what was freed in it; the default is eight a core */
#define FREE_BYTES_MAX (64u << 20)
/* Stacks of up to 24 threads and the allocator's arenas. */
#define THREADS_BYTES ((24u * 8 + ARENAS_MAX * 64) << 20)

static const char *build_text = "";

/* Printed behind the place of a panic: what one needs to read the core. Makes no allocation. */
static void panic_hook(void)
{
    char thread[16] = "?", line[256];
    pthread_getname_np(pthread_self(), thread, sizeof thread);
    int size = snprintf(line, sizeof line, "packd panic: %.150s thread=%s pid=%ld\n", build_text,
                        thread, (long)getpid());
    if (size > 0 && write(STDERR_FILENO, line, (size_t)size) < 0)
        return;
}

static void own_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
    sigaddset(set, SIGQUIT);
}

/* Every connection and log file is a descriptor; the soft limit is often 1,024. */
static void raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        pd_log(PD_LOG_WARN, "descriptors",
               "text=\"RLIMIT_NOFILE cannot be raised to its hard limit\"");
}

int pd_process_hold_descriptors(struct pd_error *error)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0)
            continue;
        if (open("/dev/null", O_RDWR) != fd) /* the lowest that is free */
            return pd_error_set(error, PD_EIO, "DESCRIPTORS",
                                "descriptor %d is closed and /dev/null cannot take its place: %s",
                                fd, strerror(errno));
    }
    return 0;
}

/* Resident bytes that no allocation explains: what the allocator holds free and has not given back,
 * and memory that is not its own. Where the kernel does not tell, all that is free. */
static uint64_t unexplained_bytes(void)
{
    struct mallinfo2 heap = mallinfo2();
    uint64_t resident = pd_process_anonymous_bytes(), used = heap.uordblks + heap.hblkhd;
    if (resident == 0)
        return heap.fordblks;
    return resident > used ? resident - used : 0;
}

/* What is free counts alike for glibc before and after its pages were given back, so it cannot say
 * whether there is anything to give: growth since the last time does. */
bool pd_process_give_back(void)
{
    static uint64_t left; /* unexplained at the last time, or less since */
    uint64_t now = unexplained_bytes();
    if (now < left)
        left = now;
    if (mallinfo2().fordblks <= FREE_BYTES_MAX || now - left <= FREE_BYTES_MAX)
        return false;
    malloc_trim(0);
    left = unexplained_bytes();
    return true;
}

int pd_process_check_room(uint64_t bytes, struct pd_error *error)
{
    struct rlimit limit;
    char wanted[24], allowed[24];
    uint64_t want = bytes + THREADS_BYTES;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return 0;
    void *room = mmap(NULL, want, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room != MAP_FAILED) {
        PD_CHECK(munmap(room, want) == 0);
        return 0;
    }
    return pd_error_set(error, PD_ENOMEM, "NO_ADDRESS_SPACE",
                        "ulimit -v allows %s in all, and beside the map of the log %s more may be "
                        "needed: raise it, or lower memory.batches and memory.ingest",
                        pd_units_format_bytes(limit.rlim_cur, allowed, sizeof allowed),
                        pd_units_format_bytes(want, wanted, sizeof wanted));
}

void pd_process_setup(const char *build)
{
    build_text = build;
    pd_panic_set_hook(panic_hook);
    mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
    mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES);
    mallopt(M_ARENA_MAX, ARENAS_MAX);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file as large as ulimit -f allows: the write says EFBIG */
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
    raise_descriptors();
}

void pd_process_block_signals(void)
{
    sigset_t set;
    own_signals(&set);
    PD_CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
}

void pd_process_unblock_signals(void)
{
    sigset_t set;
    own_signals(&set);
    PD_CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
}

void pd_process_unblock_ends(void)
{
    sigset_t set;
    own_signals(&set);
    sigdelset(&set, SIGHUP);
    PD_CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
}

int pd_process_log_setup(struct pd_error *error)
{
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    const char *level = getenv("PACKD_LOG_LEVEL"), *format = getenv("PACKD_LOG_FORMAT");
    int at = PD_LOG_INFO;
    if (level) {
        for (at = PD_LOG_DEBUG; at <= PD_LOG_ERROR && strcmp(levels[at], level) != 0; at++)
            ;
        if (at > PD_LOG_ERROR)
            return pd_error_set(error, PD_EINVAL, "BAD_VALUE",
                                "environment variable PACKD_LOG_LEVEL: '%.40s' is not possible "
                                "here; expected debug | "
                                "info | warn | error",
                                level);
    }
    if (format && strcmp(format, "plain") != 0 && strcmp(format, "json") != 0)
        return pd_error_set(error, PD_EINVAL, "BAD_VALUE",
                            "environment variable PACKD_LOG_FORMAT: '%.40s' is not possible here; "
                            "expected plain | json",
                            format);
    pd_log_setup((enum pd_log_level)at,
                 format && strcmp(format, "json") == 0 ? PD_LOG_JSON : PD_LOG_PLAIN);
    return 0;
}
