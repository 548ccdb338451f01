/* A library for LD_PRELOAD that makes one system call or allocation of a process fail, or writes
 * down the order of writes and syncs on the log's file. Set up by the environment:
 *
 *   PACKD_FAULT_DIR     files below this directory are watched (writes, syncs, maps)
 *   PACKD_FAULT_KIND    write | sync | mmap | alloc: which calls are counted
 *   PACKD_FAULT_AT      the nth of them fails; 0 = none
 *   PACKD_FAULT_ERRNO   with this errno
 *   PACKD_FAULT_REPORT  a file that gets "fired" when it does, and the count at a normal exit
 *   PACKD_FAULT_TRACE   a file that gets every write to data.mdb, every sync of it, and every write
 *                       to a file named "acks" (struct event and the bytes)
 *
 * Calls count from main on. An allocation counts where packd's own code asks for it: the caller
 * lies in the program itself and not in a library. A thread is left alone while
 * packd_fault_exempt(1). Any thread. Invariant: a call that is to fail has no effect. It does not
 * fail the calls of other processes, nor those inside libc. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { NONE, WRITE, SYNC, MMAP, ALLOC };
enum event_type { EVENT_WRITE = 1, EVENT_WRITE_SYNCED = 2, EVENT_SYNC = 3, EVENT_ACKS = 4 };

struct event {
    uint32_t type, size_bytes;
    uint64_t offset;
};

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void packd_fault_exempt(int on);

static struct {
    enum kind kind;
    uint64_t at;
    int error;
    const char *dir;
    int report_fd, trace_fd;
    uintptr_t program_from, program_to;
} setup = {.report_fd = -1, .trace_fd = -1};
static _Atomic uint64_t count;
static pthread_mutex_t trace_mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread int exempt __attribute__((tls_model("initial-exec")));

void packd_fault_exempt(int on)
{
    exempt = on;
}

/* ---- set-up ---- */

static int note_program(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X))
            continue;
        setup.program_from = info->dlpi_addr + part->p_vaddr;
        setup.program_to = setup.program_from + part->p_memsz;
    }
    return 1; /* the first is the program */
}

static int open_file(const char *variable, int flags)
{
    const char *path = getenv(variable);
    return path ? open(path, flags | O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
}

static enum kind kind_of(const char *text)
{
    static const char *const names[] = {"none", "write", "sync", "mmap", "alloc"};
    for (int i = 0; text && i < 5; i++)
        if (strcmp(text, names[i]) == 0)
            return (enum kind)i;
    return NONE;
}

__attribute__((constructor)) static void begin(void)
{
    const char *at = getenv("PACKD_FAULT_AT"), *error = getenv("PACKD_FAULT_ERRNO");
    dl_iterate_phdr(note_program, NULL);
    setup.dir = getenv("PACKD_FAULT_DIR");
    setup.at = at ? strtoull(at, NULL, 10) : 0;
    setup.error = error ? atoi(error) : EIO;
    setup.report_fd = open_file("PACKD_FAULT_REPORT", O_TRUNC);
    setup.trace_fd = open_file("PACKD_FAULT_TRACE", 0);
    atomic_store(&count, 0);
    setup.kind = kind_of(getenv("PACKD_FAULT_KIND"));
}

static void report(const char *text)
{
    if (setup.report_fd >= 0)
        (void)!syscall(SYS_write, setup.report_fd, text, strlen(text));
}

__attribute__((destructor)) static void end(void)
{
    char text[32];
    snprintf(text, sizeof text, "count %llu\n", (unsigned long long)atomic_load(&count));
    report(text);
}

static int (*program_main)(int, char **, char **);
static atomic_bool begun;

static int begin_main(int count_of_arguments, char **arguments, char **environment)
{
    atomic_store(&begun, true);
    return program_main(count_of_arguments, arguments, environment);
}

/* What runs before main, such as the CUDA runtime's own start, is not packd's. */
int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end);
int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end)
{
    int (*start)(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void),
                 void (*)(void), void *) = dlsym(RTLD_NEXT, "__libc_start_main");
    program_main = main;
    return start(begin_main, argc, argv, init, fini, rtld_fini, stack_end);
}

/* Counts a call; true where it is the one to fail. */
static bool fails(enum kind kind)
{
    if (setup.kind != kind || exempt || !atomic_load(&begun) ||
        atomic_fetch_add(&count, 1) + 1 != setup.at)
        return false;
    report("fired\n");
    errno = setup.error;
    return true;
}

/* ---- files ---- */

/* The name of a watched file; NULL: not watched. */
static const char *watched(int fd, char path[4096])
{
    char link[64];
    if (!setup.dir || fd < 0)
        return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, 4095);
    if (size <= 0)
        return NULL;
    path[size] = 0;
    size_t length = strlen(setup.dir);
    if (strncmp(path, setup.dir, length) != 0 || path[length] != '/')
        return NULL;
    return strrchr(path, '/') + 1;
}

static void put(const void *data, size_t size)
{
    while (size > 0) {
        long wrote = syscall(SYS_write, setup.trace_fd, data, size);
        if (wrote <= 0)
            _exit(99); /* a trace with a hole would prove nothing */
        data = (const char *)data + wrote;
        size -= (size_t)wrote;
    }
}

static void trace(enum event_type type, uint64_t offset, const struct iovec *parts, int part_count)
{
    struct event event = {.type = type, .offset = offset};
    for (int i = 0; i < part_count; i++)
        event.size_bytes += (uint32_t)parts[i].iov_len;
    pthread_mutex_lock(&trace_mutex);
    put(&event, sizeof event);
    for (int i = 0; i < part_count; i++)
        put(parts[i].iov_base, parts[i].iov_len);
    pthread_mutex_unlock(&trace_mutex);
}

/* Behind a call that wrote everything; what a file got that was opened with O_DSYNC is on disk. */
static void trace_write(int fd, const char *name, off_t offset, const struct iovec *parts,
                        int part_count)
{
    if (setup.trace_fd < 0 || !name)
        return;
    if (strcmp(name, "acks") == 0)
        trace(EVENT_ACKS, 0, parts, part_count);
    else if (strcmp(name, "data.mdb") == 0)
        trace(fcntl(fd, F_GETFL) & O_DSYNC ? EVENT_WRITE_SYNCED : EVENT_WRITE, (uint64_t)offset,
              parts, part_count);
}

/* One writev at an offset, or at the file's own where offset is -1. */
static ssize_t do_write(int fd, const struct iovec *parts, int part_count, off_t offset)
{
    char path[4096];
    const char *name = watched(fd, path);
    if (name && strcmp(name, "acks") != 0 && fails(WRITE))
        return -1;
    off_t at = offset < 0 && setup.trace_fd >= 0 && name ? lseek(fd, 0, SEEK_CUR) : offset;
    long rc = offset < 0 ? syscall(SYS_writev, fd, parts, part_count)
                         : syscall(SYS_pwritev, fd, parts, part_count, offset, 0);
    if (rc >= 0)
        trace_write(fd, name, at, parts, part_count);
    return rc;
}

ssize_t write(int fd, const void *data, size_t size)
{
    return do_write(fd, &(struct iovec){(void *)(uintptr_t)data, size}, 1, -1);
}

ssize_t writev(int fd, const struct iovec *parts, int count_parts)
{
    return do_write(fd, parts, count_parts, -1);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return do_write(fd, &(struct iovec){(void *)(uintptr_t)data, size}, 1, offset);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count_parts, off_t offset)
{
    return do_write(fd, parts, count_parts, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
    __attribute__((alias("pwrite")));
ssize_t pwritev64(int fd, const struct iovec *parts, int count_parts, off64_t offset)
    __attribute__((alias("pwritev")));

static int do_sync(int fd, long call)
{
    char path[4096];
    const char *name = watched(fd, path);
    if (name && fails(SYNC))
        return -1;
    long rc = syscall(call, fd);
    if (rc == 0 && setup.trace_fd >= 0 && name && strcmp(name, "data.mdb") == 0)
        trace(EVENT_SYNC, 0, NULL, 0);
    return (int)rc;
}

int fsync(int fd)
{
    return do_sync(fd, SYS_fsync);
}

int fdatasync(int fd)
{
    return do_sync(fd, SYS_fdatasync);
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    char path[4096];
    if (watched(fd, path) && fails(MMAP))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset);
}

void *mmap64(void *address, size_t size, int protection, int flags, int fd, off64_t offset)
    __attribute__((alias("mmap")));

/* ---- allocations ---- */

static bool alloc_fails(const void *caller)
{
    uintptr_t at = (uintptr_t)caller;
    return setup.kind == ALLOC && at >= setup.program_from && at < setup.program_to && fails(ALLOC);
}

void *malloc(size_t size)
{
    return alloc_fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void *calloc(size_t number, size_t size)
{
    return alloc_fails(__builtin_return_address(0)) ? NULL : __libc_calloc(number, size);
}

void *realloc(void *old, size_t size)
{
    return alloc_fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, size);
}

char *strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = alloc_fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}
