/* A library for LD_PRELOAD that gives a process another clock, a slow disk and a small one. What it
 * does is set while the process runs, through a file that both sides map:
 *
 *   PACKD_HOSTILE_FILE   struct controls
 *   PACKD_HOSTILE_DIR    files below this directory lie on the disk
 *
 * Any thread. Invariant: CLOCK_MONOTONIC is never touched, and a write that is refused has no
 * effect. It does not reach the calls of other processes, nor those inside libc. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct controls {
    _Atomic int64_t clock_offset_ns; /* added to CLOCK_REALTIME */
    _Atomic uint64_t sync_held;      /* while not 0, no fsync or fdatasync on the disk returns */
    _Atomic uint64_t syncs_waiting;  /* told: how many are held now */
    _Atomic uint64_t sync_sleep_ns;  /* each takes so much longer */
    _Atomic uint64_t disk_bytes;     /* no file grows past this: ENOSPC; 0: no limit */
    _Atomic uint64_t refused;        /* told: writes and reservations that were refused */
    /* data.mdb has a disk of so many bytes: ENOSPC where it would take more blocks; 0: no limit */
    _Atomic uint64_t quota_bytes;
    _Atomic uint64_t quota_silent; /* EDQUOT, and fstatvfs does not tell */
    _Atomic uint64_t no_reserve;   /* fallocate is EOPNOTSUPP */
};

static struct controls nothing, *controls = &nothing;
static const char *directory;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("PACKD_HOSTILE_FILE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *map = mmap(NULL, sizeof *controls, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        abort();
    controls = map;
    directory = getenv("PACKD_HOSTILE_DIR");
}

/* ---- clock ---- */

int clock_gettime(clockid_t id, struct timespec *out)
{
    int rc = (int)syscall(SYS_clock_gettime, id, out);
    if (rc != 0 || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE))
        return rc;
    int64_t ns =
        out->tv_sec * INT64_C(1000000000) + out->tv_nsec + atomic_load(&controls->clock_offset_ns);
    out->tv_sec = ns / 1000000000;
    out->tv_nsec = ns % 1000000000;
    if (out->tv_nsec < 0) {
        out->tv_nsec += 1000000000;
        out->tv_sec--;
    }
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

/* ---- disk ---- */

static bool on_disk(int fd)
{
    char link[64], path[4096];
    if (!directory || fd < 0)
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    size_t length = strlen(directory);
    return size > (ssize_t)length && memcmp(path, directory, length) == 0 && path[length] == '/';
}

static int slow_sync(int fd, long call)
{
    struct timespec pause = {.tv_nsec = 1000000};
    if (on_disk(fd)) {
        uint64_t sleep_ns = atomic_load(&controls->sync_sleep_ns);
        struct timespec sleep = {(time_t)(sleep_ns / 1000000000), (long)(sleep_ns % 1000000000)};
        nanosleep(&sleep, NULL);
        atomic_fetch_add(&controls->syncs_waiting, 1);
        while (atomic_load(&controls->sync_held))
            nanosleep(&pause, NULL);
        atomic_fetch_sub(&controls->syncs_waiting, 1);
    }
    return (int)syscall(call, fd);
}

int fsync(int fd)
{
    return slow_sync(fd, SYS_fsync);
}

int fdatasync(int fd)
{
    return slow_sync(fd, SYS_fdatasync);
}

/* One block a bit: what of data.mdb has been taken from the small disk. Calls of one thread. */
#define BLOCK_BYTES UINT64_C(4096)
static uint8_t blocks[1 << 15];
static _Atomic uint64_t taken_bytes;

/* Takes the blocks of [from, end) that are not taken yet, all or none. */
static bool take_blocks(uint64_t from, uint64_t end)
{
    uint64_t first = from / BLOCK_BYTES, last = (end + BLOCK_BYTES - 1) / BLOCK_BYTES, fresh = 0;
    if (last > sizeof blocks * 8)
        return false;
    for (uint64_t i = first; i < last; i++)
        fresh += !(blocks[i / 8] >> i % 8 & 1);
    if (taken_bytes + fresh * BLOCK_BYTES > controls->quota_bytes)
        return false;
    for (uint64_t i = first; i < last; i++)
        blocks[i / 8] |= (uint8_t)(1u << i % 8);
    taken_bytes += fresh * BLOCK_BYTES;
    return true;
}

/* Whether the disk has no room for [from, end) of a file; errno says why. */
static bool refuses(int fd, uint64_t from, uint64_t end)
{
    uint64_t most = atomic_load(&controls->disk_bytes);
    if ((most == 0 && controls->quota_bytes == 0) || !on_disk(fd) ||
        ((most == 0 || end <= most) && (controls->quota_bytes == 0 || take_blocks(from, end))))
        return false;
    atomic_fetch_add(&controls->refused, 1);
    errno = controls->quota_silent ? EDQUOT : ENOSPC;
    return true;
}

int fallocate(int fd, int mode, off_t from, off_t size)
{
    if (controls->no_reserve && on_disk(fd)) {
        errno = EOPNOTSUPP;
        return -1;
    }
    if (mode == FALLOC_FL_KEEP_SIZE && refuses(fd, (uint64_t)from, (uint64_t)(from + size)))
        return -1;
    return (int)syscall(SYS_fallocate, fd, mode, from, size);
}

int fallocate64(int fd, int mode, off64_t from, off64_t size) __attribute__((alias("fallocate")));

int fstatvfs(int fd, struct statvfs *out)
{
    struct statfs fs;
    if (syscall(SYS_fstatfs, fd, &fs) != 0)
        return -1;
    *out = (struct statvfs){.f_bsize = (unsigned long)fs.f_bsize,
                            .f_frsize = (unsigned long)fs.f_frsize,
                            .f_blocks = fs.f_blocks,
                            .f_bfree = fs.f_bfree,
                            .f_bavail = fs.f_bavail};
    uint64_t quota = controls->quota_bytes, left = quota > taken_bytes ? quota - taken_bytes : 0;
    if (quota > 0 && !controls->quota_silent)
        out->f_bavail = out->f_bfree = left / out->f_frsize;
    return 0;
}

int fstatvfs64(int fd, struct statvfs64 *out) __attribute__((alias("fstatvfs")));

static ssize_t do_write(int fd, const struct iovec *parts, int part_count, off_t offset)
{
    uint64_t end = (uint64_t)offset;
    for (int i = 0; i < part_count; i++)
        end += parts[i].iov_len;
    if (refuses(fd, (uint64_t)offset, end))
        return -1;
    return syscall(SYS_pwritev, fd, parts, part_count, offset, 0);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return do_write(fd, &(struct iovec){(void *)(uintptr_t)data, size}, 1, offset);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    return do_write(fd, parts, count, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    off_t at = (controls->disk_bytes > 0 || controls->quota_bytes > 0) && on_disk(fd)
                   ? lseek(fd, 0, SEEK_CUR)
                   : -1;
    if (at < 0)
        return syscall(SYS_writev, fd, parts, count);
    ssize_t wrote = do_write(fd, parts, count, at);
    if (wrote > 0)
        lseek(fd, wrote, SEEK_CUR);
    return wrote;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
    __attribute__((alias("pwrite")));
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset)
    __attribute__((alias("pwritev")));
