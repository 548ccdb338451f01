/* How much of the disk the log may count on: the limit in force.
 *
 *   file of the log   [ pages in use or free | taken ahead: reserve ]  disk: [ what others leave ]
 *                                            ^ high-water mark      ^ backed_bytes
 *
 * LMDB frees nothing without writing: on a disk without a page left no trim could be committed. So
 * blocks are taken from the disk ahead of the high-water mark (fallocate past the end of the file,
 * whose size stays), a quarter of the file and LEAST_BYTES, in pages that any later commit can use.
 * The limit is eight ninths of what is backed and still free on the disk, or of what is backed
 * alone once the disk has refused; never more than max_bytes. The other ninth is what LMDB's free
 * pages take. Appends stop at 15/16 of the limit, as below max_bytes, so deleting and committing
 * always have room. Sequencer thread, but for pd_log_limit_bytes (any). Invariant: a refusal
 * changes the limit and nothing else. It does not decide what is trimmed. */
#include "server/log_internal.h"

#include "base/arith.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The file of a full log is so much larger than the log's limit, at most. */
#define FREE_PAGES_PART 8u
#define RESERVE_PART 4u /* of the high-water mark, taken ahead of it */
#define LEAST_BYTES (8ull << 20)
#define SMALLEST_BYTES (256ull << 10) /* less is not asked for */
/* LMDB takes 64 bytes for each reader and as much again for its locks; a file larger than the
 * readers alone has all of it. */
#define SLOTS_BYTES_LEAST ((off_t)PD_LOG_READERS_MAX * 64)
#define SLOTS_BYTES (SLOTS_BYTES_LEAST + 1024)
#define LOOK_NS 1000000000ull
#define SAY_NS 60000000000ull

uint64_t pd_log_limit_bytes(const struct pd_log *log)
{
    return atomic_load_explicit(&log->limit_bytes, memory_order_relaxed);
}

bool pd_log_limited(const struct pd_log *log)
{
    return pd_log_limit_bytes(log) < log->max_bytes;
}

const char *pd_log_advice(const struct pd_log *log)
{
    return pd_log_limited(log) ? "free space on the log's disk" : "raise log.max_bytes";
}

/* What the file of a full log takes. */
static uint64_t file_bytes_max(const struct pd_log *log)
{
    return log->max_bytes + log->max_bytes / FREE_PAGES_PART;
}

static uint64_t high_water_bytes(const struct pd_log *log)
{
    MDB_envinfo info;
    return mdb_env_info(log->env, &info) ? 0 : ((uint64_t)info.me_last_pgno + 1) * log->page_bytes;
}

/* Of data.mdb's disk, wherever its directory may be by now; false: unknown. */
static bool ask_disk(const struct pd_log *log, uint64_t *free_bytes)
{
    struct statvfs fs;
    int fd;
    if (mdb_env_get_fd(log->env, &fd) != 0 || fstatvfs(fd, &fs) != 0)
        return false;
    *free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    return true;
}

/* 0 where it is not known. */
static uint64_t disk_free_bytes(const struct pd_log *log)
{
    uint64_t bytes = 0;
    return ask_disk(log, &bytes) ? bytes : 0;
}

/* Up to where `ulimit -f` lets the file grow. */
static uint64_t file_limit_bytes(void)
{
    struct rlimit limit;
    bool limited = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    return limited ? limit.rlim_cur : UINT64_MAX;
}

bool pd_log_space_lacks(const struct pd_log *log, uint64_t room_bytes)
{
    struct stat file;
    uint64_t free_bytes;
    int fd;
    if (ask_disk(log, &free_bytes) && free_bytes < room_bytes)
        return true;
    return mdb_env_get_fd(log->env, &fd) == 0 && fstat(fd, &file) == 0 &&
           (uint64_t)file.st_size + room_bytes > file_limit_bytes();
}

/* A file system that cannot promise space: what is free there now has to do. */
static int promise_nothing(struct pd_log *log, uint64_t end)
{
    if (!log->unreserved)
        pd_log(PD_LOG_WARN, "log_not_reserved",
               "path=\"%s\" text=\"the file system cannot reserve space for the log: should others "
               "fill the disk, trimming waits for space too\"",
               log->path);
    log->unreserved = true;
    return disk_free_bytes(log) >= end - log->backed_bytes ? 0 : PD_EFULL;
}

/* Takes the blocks from backed_bytes to `end`, or none of them. */
static int take(struct pd_log *log, uint64_t end)
{
    int fd;
    if (end > file_limit_bytes() || mdb_env_get_fd(log->env, &fd) != 0)
        return PD_EFULL;
    if (log->unreserved)
        return promise_nothing(log, end);
    int rc;
    do
        rc = fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)log->backed_bytes,
                       (off_t)(end - log->backed_bytes));
    while (rc != 0 && errno == EINTR);
    if (rc == 0) {
        log->backed_bytes = end;
        return 0;
    }
    return errno == EOPNOTSUPP || errno == ENOSYS ? promise_nothing(log, end) : PD_EFULL;
}

/* At least to `low`, better so much further that the next commits need not ask. */
static void extend(struct pd_log *log, uint64_t low)
{
    uint64_t ask = low + low / FREE_PAGES_PART + LEAST_BYTES;
    log->refused = take(log, pd_min_u64(ask, file_bytes_max(log))) != 0 && take(log, low) != 0;
    if (!log->refused)
        return;
    uint64_t part = low - log->backed_bytes;
    for (part /= 2; part >= SMALLEST_BYTES; part /= 2)
        (void)take(log, (log->backed_bytes + part) & ~4095ull);
}

static void say(struct pd_log *log, uint64_t limit, uint64_t now_ns)
{
    char max[24], in_force[24], left[24];
    bool was = log->said_ns > 0;
    if (limit < log->max_bytes && (!was || now_ns - log->said_ns >= SAY_NS)) {
        log->said_ns = now_ns;
        pd_log(PD_LOG_WARN, "log_limited_by_disk",
               "path=\"%s\" max_bytes=%s limit=%s free=%s text=\"no space left on the disk of the "
               "log for all of log.max_bytes: the limit in force is what the disk can hold; free "
               "space there, or lower log.max_bytes\"",
               log->path, pd_units_format_bytes(log->max_bytes, max, sizeof max),
               pd_units_format_bytes(limit, in_force, sizeof in_force),
               pd_units_format_bytes(disk_free_bytes(log), left, sizeof left));
    } else if (limit == log->max_bytes && was) {
        log->said_ns = 0;
        pd_log(PD_LOG_INFO, "log_limit_lifted", "path=\"%s\" limit=%s", log->path,
               pd_units_format_bytes(limit, in_force, sizeof in_force));
    }
}

static void set_limit(struct pd_log *log, uint64_t now_ns)
{
    uint64_t capacity = log->backed_bytes;
    if (capacity < file_bytes_max(log) && (!log->refused || log->unreserved))
        capacity += disk_free_bytes(log);
    capacity = pd_min_u64(capacity, file_limit_bytes());
    uint64_t limit =
        capacity < file_bytes_max(log) ? capacity - capacity / (FREE_PAGES_PART + 1) : UINT64_MAX;
    limit = pd_min_u64(limit, log->max_bytes);
    atomic_store_explicit(&log->limit_bytes, limit, memory_order_relaxed);
    say(log, limit, now_ns);
}

/* Without reservations the file itself is all that is backed. */
static void note_file(struct pd_log *log, uint64_t high)
{
    if (log->unreserved && high > log->backed_bytes)
        log->backed_bytes = high;
}

uint64_t pd_log_look(struct pd_log *log, uint64_t growth_bytes)
{
    uint64_t high = high_water_bytes(log), now_ns = pd_clock_mono_ns();
    uint64_t after = high + growth_bytes;
    uint64_t low = pd_min_u64(after + after / RESERVE_PART + LEAST_BYTES, file_bytes_max(log));
    bool due = now_ns - log->looked_ns >= LOOK_NS;
    note_file(log, high);
    if (due || (low > log->backed_bytes && !log->refused)) {
        log->looked_ns = now_ns;
        log->refused = false;
        if (low > log->backed_bytes)
            extend(log, (low + 4095) & ~4095ull);
        set_limit(log, now_ns);
    }
    return pd_log_limited(log) ? log->looked_ns + LOOK_NS : UINT64_MAX;
}

/* The slots of readers are written through a map: one without a block of its own is a SIGBUS on a
 * full disk, so they are taken before LMDB maps them. Closing any descriptor of the file would end
 * LMDB's lock on it: it stays open. */
int pd_log_space_slots(struct pd_log *log, struct pd_error *error)
{
    char path[4096];
    struct stat file;
    snprintf(path, sizeof path, "%s/lock.mdb", log->path);
    log->slots_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (log->slots_fd < 0 || fstat(log->slots_fd, &file) != 0)
        return pd_log_system_error(error, "cannot open", path, errno);
    off_t size = file.st_size > SLOTS_BYTES_LEAST ? file.st_size : SLOTS_BYTES;
    int rc;
    do
        rc = fallocate(log->slots_fd, FALLOC_FL_KEEP_SIZE, 0, size);
    while (rc != 0 && errno == EINTR);
    if (rc == 0)
        return 0;
    if (errno == ENOSPC || errno == EDQUOT)
        return pd_log_system_error(error, "no space for", path, errno);
    pd_log(PD_LOG_DEBUG, "reader_slots_not_reserved", "path=\"%s\"", path);
    return 0;
}

void pd_log_space_open(struct pd_log *log)
{
    (void)pd_log_look(log, 0);
}
