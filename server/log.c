/* The log's life: opening (lock, environment, identity), closing, keys, seals, and what happens
 * when LMDB or the disk fails.
 *
 * Place: below the sequencer, which alone writes (log_writer.c), and the readers of assemble and
 * explain (log_reader.c). Owner: main opens and closes. Invariants: one process holds the
 * directory's lock; the map is address space, several times max_bytes, and packd's own count of
 * pages is the limit (log_space.c). It does not know what records mean. */
#include "server/log_internal.h"

#include "base/check.h"
#include "base/log.h"
#include "base/units.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define MAP_FACTOR 4
#define MAP_MIN_BYTES (256ull << 20)

const char *const pd_log_db_names[PD_DB_COUNT] = {"records",   "heads",   "bodies", "plans",
                                                  "streams",   "sources", "feeds",  "jobs",
                                                  "snapshots", "meta",    "views",  "tensors"};

/* ---- keys and seals ---- */

static void key_put_u32(struct pd_log_key *key, uint32_t value)
{
    value = htobe32(value);
    memcpy(key->bytes + key->size_bytes, &value, sizeof value);
    key->size_bytes += sizeof value;
}

static void key_put_u64(struct pd_log_key *key, uint64_t value)
{
    value = htobe64(value);
    memcpy(key->bytes + key->size_bytes, &value, sizeof value);
    key->size_bytes += sizeof value;
}

struct pd_log_key pd_log_key_position(uint64_t position)
{
    struct pd_log_key key = {0};
    key_put_u64(&key, position);
    return key;
}

struct pd_log_key pd_log_key_head(uint32_t feed, uint32_t lane, uint64_t position)
{
    struct pd_log_key key = {0};
    key_put_u32(&key, feed);
    key_put_u32(&key, lane);
    key_put_u64(&key, position);
    return key;
}

struct pd_log_key pd_log_key_piece(uint64_t position, uint32_t piece)
{
    struct pd_log_key key = {0};
    key_put_u64(&key, position);
    key_put_u32(&key, piece);
    return key;
}

struct pd_log_key pd_log_key_plan(uint32_t feed, uint64_t pack)
{
    struct pd_log_key key = {0};
    key_put_u32(&key, feed);
    key_put_u64(&key, pack);
    return key;
}

struct pd_log_key pd_log_key_row(uint32_t a, uint32_t b)
{
    struct pd_log_key key = {0};
    key_put_u32(&key, a);
    key_put_u32(&key, b);
    return key;
}

struct pd_log_key pd_log_key_snapshot(uint32_t feed, uint64_t position, uint32_t piece)
{
    struct pd_log_key key = {0};
    key_put_u32(&key, feed);
    key_put_u64(&key, position);
    key_put_u32(&key, piece);
    return key;
}

struct pd_log_key pd_log_key_text(const char *text)
{
    struct pd_log_key key = {.size_bytes = strlen(text)};
    PD_CHECK(key.size_bytes <= PD_LOG_KEY_MAX);
    memcpy(key.bytes, text, key.size_bytes);
    return key;
}

struct pd_log_key pd_log_key_lowest(uint32_t feed)
{
    struct pd_log_key key = pd_log_key_text("lowest");
    key_put_u32(&key, feed);
    return key;
}

uint32_t pd_log_key_u32(const MDB_val *key, size_t offset)
{
    uint32_t value = 0;
    if (offset + sizeof value <= key->mv_size)
        memcpy(&value, (const uint8_t *)key->mv_data + offset, sizeof value);
    return be32toh(value);
}

uint64_t pd_log_key_u64(const MDB_val *key, size_t offset)
{
    uint64_t value = 0;
    if (offset + sizeof value <= key->mv_size)
        memcpy(&value, (const uint8_t *)key->mv_data + offset, sizeof value);
    return be64toh(value);
}

uint64_t pd_log_seal(enum pd_log_db db, const MDB_val *key, const void *data, size_t size)
{
    uint64_t seed = XXH3_64bits_withSeed(key->mv_data, key->mv_size, (uint64_t)db + 1);
    return XXH3_64bits_withSeed(data, size, seed);
}

static void key_text(const MDB_val *key, char *text, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < key->mv_size && at + 3 < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%02x", ((const uint8_t *)key->mv_data)[i]);
}

int pd_log_unseal(enum pd_log_db db, const MDB_val *key, const MDB_val *value,
                  struct pd_reader *content, struct pd_error *error)
{
    uint64_t seal;
    if (value->mv_size >= sizeof seal) {
        size_t size = value->mv_size - sizeof seal;
        memcpy(&seal, (const uint8_t *)value->mv_data + size, sizeof seal);
        if (seal == pd_log_seal(db, key, value->mv_data, size)) {
            *content = pd_reader_of(value->mv_data, size);
            return 0;
        }
    }
    char text[2 * PD_LOG_KEY_MAX + 4] = "";
    key_text(key, text, sizeof text);
    return pd_error_set(error, PD_ECORRUPT, "LOG_DAMAGED",
                        "the value at key %s of table '%s' (%zu bytes) does not have its digest",
                        text, pd_log_db_names[db], value->mv_size);
}

int pd_log_get_sealed(struct pd_log *log, MDB_txn *txn, enum pd_log_db db, struct pd_log_key key,
                      struct pd_reader *content, struct pd_error *error)
{
    MDB_val k = {key.size_bytes, key.bytes}, value;
    int rc = mdb_get(txn, log->dbs[db], &k, &value);
    if (rc == MDB_NOTFOUND)
        return PD_ENOTFOUND;
    if (rc)
        return pd_log_failed(log, rc, "read", error);
    return pd_log_unseal(db, &k, &value, content, error);
}

/* ---- failures ---- */

void pd_log_die(const struct pd_log *log, const char *what, const char *why)
{
    pd_log(PD_LOG_ERROR, "log_failed",
           "path=\"%s\" what=\"%s\" reason=\"%s\" text=\"the log can no longer be trusted; "
           "packd stops here; what was committed is read again at the next start, and a damaged "
           "file stays damaged: put a backup in its place\"",
           log->path, what, why);
    _exit(PD_LOG_EXIT_FAILED);
}

int pd_log_failed(struct pd_log *log, int rc, const char *what, struct pd_error *error)
{
    switch (rc) {
    case MDB_MAP_FULL:
    case MDB_TXN_FULL:
        return pd_error_set(error, PD_EFULL, "LOG_FULL", "the log in '%s' is full (%s: %s)",
                            log->path, what, mdb_strerror(rc));
    case ENOMEM:
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory in the log (%s)", what);
    case MDB_READERS_FULL:
        return pd_error_set(error, PD_ELIMIT, "READERS", "more than %d readers of the log",
                            PD_LOG_READERS_MAX);
    default:
        pd_log_die(log, what, mdb_strerror(rc));
    }
}

void pd_log_assert_failed(MDB_env *env, const char *text)
{
    pd_log_die(mdb_env_get_userctx(env), "lmdb check", text);
}

/* ---- counting ---- */

uint64_t pd_log_count_bytes(struct pd_log *log, MDB_txn *txn)
{
    uint64_t pages = 2;                     /* the meta pages */
    for (MDB_dbi dbi = 0; dbi < 2; dbi++) { /* LMDB's own: free list and root */
        MDB_stat stat;
        if (mdb_stat(txn, dbi, &stat) == 0)
            pages += stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages;
    }
    for (int db = 0; db < PD_DB_COUNT; db++) {
        MDB_stat stat;
        if (mdb_stat(txn, log->dbs[db], &stat) == 0)
            pages += stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages;
    }
    return pages * log->page_bytes;
}

uint64_t pd_log_used_bytes(const struct pd_log *log)
{
    return atomic_load_explicit(&log->used_bytes, memory_order_relaxed);
}

void pd_log_set_feed_number(struct pd_log *log, uint32_t index, uint32_t number)
{
    PD_CHECK(index < PD_LOG_FEEDS_MAX);
    atomic_store_explicit(&log->feed_numbers[index], number + 1, memory_order_release);
}

uint32_t pd_log_feed_number(struct pd_log *log, uint32_t index)
{
    uint32_t number = 0;
    if (index < PD_LOG_FEEDS_MAX)
        number = atomic_load_explicit(&log->feed_numbers[index], memory_order_acquire);
    return number ? number - 1 : index;
}

/* ---- opening ---- */

int pd_log_system_error(struct pd_error *error, const char *what, const char *path, int err)
{
    int code = err == ENOSPC || err == EDQUOT || err == EFBIG ? PD_EFULL : PD_EIO;
    return pd_error_set(error, code, code == PD_EFULL ? "NO_SPACE" : "LOG_IO", "%s '%s': %s", what,
                        path, strerror(err));
}

static int make_directory(const char *path, struct pd_error *error)
{
    if (mkdir(path, 0700) == 0 || errno == EEXIST)
        return 0;
    const char *what = errno == ENOENT ? "cannot make the log directory (its parent is missing: "
                                         "mkdir -p)"
                                       : "cannot make the log directory";
    return pd_log_system_error(error, what, path, errno);
}

static int lock_held(int fd, const char *path, struct pd_error *error)
{
    char holder[32] = "";
    ssize_t size = pread(fd, holder, sizeof holder - 1, 0);
    holder[size > 0 ? size : 0] = 0;
    holder[strcspn(holder, "\n")] = 0;
    close(fd);
    return pd_error_set(
        error, PD_EEXIST, "LOG_IN_USE",
        "the log in '%s' is in use by process %s; stop it or choose another --data-dir", path,
        holder[0] ? holder : "unknown");
}

/* The lock lives as long as the descriptor; the pid in it is for people. */
static int take_lock(struct pd_log *log, struct pd_error *error)
{
    char path[4096], pid[32];
    if ((size_t)snprintf(path, sizeof path, "%s/LOCK", log->path) >= sizeof path)
        return pd_error_set(error, PD_EINVAL, "BAD_PATH", "the log's path is too long: '%s'",
                            log->path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return pd_log_system_error(error, "cannot open", path, errno);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK)
            return lock_held(fd, log->path, error);
        int err = errno;
        close(fd);
        return pd_log_system_error(error, "cannot lock", path, err);
    }
    int size = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, pid, (size_t)size, 0) != size)
        pd_log(PD_LOG_WARN, "lock_pid_not_written", "path=\"%s\"", path);
    log->lock_fd = fd;
    return 0;
}

/* Whether data.mdb begins as LMDB's files do: magic and version behind the first page's header. */
static bool data_is_lmdb(const char *dir)
{
    static const uint32_t begins[] = {0xBEEFC0DE, 1};
    uint32_t found[2] = {0};
    char path[4096];
    snprintf(path, sizeof path, "%s/data.mdb", dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool same = fd >= 0 && pread(fd, found, sizeof found, 16) == (ssize_t)sizeof found &&
                memcmp(found, begins, sizeof found) == 0;
    if (fd >= 0)
        close(fd);
    return same;
}

const char *pd_log_culprit(const char *dir, int rc)
{
    if (rc != EISDIR && rc != MDB_INVALID && rc != MDB_VERSION_MISMATCH)
        return "";
    return data_is_lmdb(dir) ? "/lock.mdb" : "/data.mdb";
}

static int open_error(struct pd_log *log, int rc, const char *what, struct pd_error *error)
{
    char limit[32];
    switch (rc) {
    case MDB_VERSION_MISMATCH:
    case MDB_INVALID:
        return pd_error_set(error, PD_EMISMATCH, "LOG_FORMAT",
                            "'%s%s' is not a log of this version (%s)", log->path,
                            pd_log_culprit(log->path, rc), mdb_strerror(rc));
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_PANIC:
        return pd_error_set(error, PD_ECORRUPT, "LOG_DAMAGED", "'%s/data.mdb' is damaged (%s: %s)",
                            log->path, what, mdb_strerror(rc));
    case ENOMEM:
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY",
                            "cannot open the log in '%s': %s; its map takes %d x log.max_bytes "
                            "(%s) of address space: lower log.max_bytes, or raise the limit "
                            "(ulimit -v; LimitAS= of a unit)",
                            log->path, mdb_strerror(rc), MAP_FACTOR,
                            pd_units_format_bytes(log->max_bytes, limit, sizeof limit));
    default:
        return pd_error_set(error, rc == ENOSPC || rc == MDB_MAP_FULL ? PD_EFULL : PD_EIO, "LOG_IO",
                            "cannot open the log in '%s' (%s): %s", log->path, what,
                            mdb_strerror(rc));
    }
}

static int open_environment(struct pd_log *log, struct pd_error *error)
{
    uint64_t map =
        log->max_bytes > UINT64_MAX / 2 / MAP_FACTOR ? log->max_bytes : log->max_bytes * MAP_FACTOR;
    if (map < MAP_MIN_BYTES)
        map = MAP_MIN_BYTES;
    map = (map + 4095) & ~4095ull;
    int rc = mdb_env_create(&log->env);
    if (rc)
        return open_error(log, rc, "create", error);
    mdb_env_set_userctx(log->env, log);
    mdb_env_set_assert(log->env, pd_log_assert_failed);
    rc = mdb_env_set_mapsize(log->env, (size_t)map);
    if (!rc)
        rc = mdb_env_set_maxdbs(log->env, PD_DB_COUNT);
    if (!rc)
        rc = mdb_env_set_maxreaders(log->env, PD_LOG_READERS_MAX);
    unsigned flags = MDB_NOTLS | (log->durability == PD_DURABILITY_PROCESS ? MDB_NOSYNC : 0);
    char lock[4096];
    snprintf(lock, sizeof lock, "%s/lock.mdb", log->path);
    bool fresh = access(lock, F_OK) != 0;
    int failed = rc ? 0 : pd_log_space_slots(log, error);
    if (!rc && !failed)
        rc = mdb_env_open(log->env, log->path, flags, 0600);
    if ((rc || failed) && fresh) /* a log that did not begin must not look like one that is gone */
        (void)unlink(lock);
    return rc ? open_error(log, rc, "open", error) : failed;
}

/* LOCK may be removed under a process that holds it; its data is locked as well. The lock goes with
 * LMDB's descriptor. */
static int lock_data(struct pd_log *log, struct pd_error *error)
{
    int fd, rc = mdb_env_get_fd(log->env, &fd);
    if (rc)
        return open_error(log, rc, "info", error);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    if (errno != EWOULDBLOCK)
        return pd_log_system_error(error, "cannot lock the data in", log->path, errno);
    return pd_error_set(error, PD_EEXIST, "LOG_IN_USE",
                        "the log in '%s' is in use by another process, although its LOCK was "
                        "removed; stop it or choose another --data-dir",
                        log->path);
}

/* LMDB would begin an empty log where its file is gone; only what was made beside it tells. */
static int check_present(const struct pd_log *log, struct pd_error *error)
{
    char data[4096], lock[4096];
    struct stat file;
    snprintf(data, sizeof data, "%s/data.mdb", log->path);
    snprintf(lock, sizeof lock, "%s/lock.mdb", log->path);
    bool gone = stat(data, &file) != 0 ? errno == ENOENT : file.st_size == 0;
    if (!gone || stat(lock, &file) != 0)
        return 0;
    return pd_error_set(error, PD_ECORRUPT, "LOG_MISSING",
                        "'%s' held a log (lock.mdb is there) and data.mdb is missing or empty: put "
                        "it back, or remove lock.mdb to begin an empty log",
                        log->path);
}

int pd_log_check_file(struct pd_log *log, struct pd_error *error)
{
    MDB_envinfo info;
    MDB_stat stat;
    struct stat file;
    mdb_filehandle_t fd;
    int rc = mdb_env_info(log->env, &info);
    if (!rc)
        rc = mdb_env_stat(log->env, &stat);
    if (!rc)
        rc = mdb_env_get_fd(log->env, &fd);
    if (rc)
        return open_error(log, rc, "info", error);
    log->page_bytes = stat.ms_psize;
    uint64_t need = ((uint64_t)info.me_last_pgno + 1) * stat.ms_psize;
    if (fstat(fd, &file) != 0)
        return pd_log_system_error(error, "cannot stat the log in", log->path, errno);
    if ((uint64_t)file.st_size < need)
        return pd_error_set(
            error, PD_ECORRUPT, "LOG_TRUNCATED",
            "'%s/data.mdb' has %llu bytes where its pages need %llu: it was cut off", log->path,
            (unsigned long long)file.st_size, (unsigned long long)need);
    return 0;
}

static int write_identity(struct pd_log *log, const uint8_t id[16], struct pd_error *error)
{
    struct pd_buf buf = {0};
    pd_buf_put_u32(&buf, PD_LOG_FORMAT);
    pd_buf_put(&buf, id, 16);
    pd_buf_put_u64(&buf, log->incarnation);
    int rc = buf.failed ? pd_log_failed(log, ENOMEM, "identity", error)
                        : pd_log_put_sealed(log, PD_DB_META, pd_log_key_text("log"), buf.data,
                                            buf.size_bytes, 0, error);
    pd_buf_fini(&buf);
    return rc;
}

/* A record where the next one is to go would end the process at the first append. */
static int check_next_position(struct pd_log *log, struct pd_error *error)
{
    MDB_cursor *cursor;
    MDB_val key, value;
    int rc = mdb_cursor_open(log->txn, log->dbs[PD_DB_RECORDS], &cursor);
    if (rc)
        return pd_log_failed(log, rc, "cursor", error);
    rc = mdb_cursor_get(cursor, &key, &value, MDB_LAST);
    mdb_cursor_close(cursor);
    if (rc == MDB_NOTFOUND)
        return 0;
    if (rc)
        return pd_log_failed(log, rc, "read", error);
    uint64_t last = pd_log_key_u64(&key, 0);
    if (last < log->next_position)
        return 0;
    return pd_error_set(error, PD_ECORRUPT, "LOG_DAMAGED",
                        "the log in '%s' holds a record at position %llu and says that %llu is the "
                        "next one's",
                        log->path, (unsigned long long)last,
                        (unsigned long long)log->next_position);
}

static int read_identity(struct pd_log *log, uint8_t id[16], struct pd_error *error)
{
    struct pd_reader meta;
    int rc = pd_log_get_sealed(log, log->txn, PD_DB_META, pd_log_key_text("log"), &meta, error);
    if (rc == PD_ENOTFOUND) {
        if (getrandom(id, 16, 0) != 16)
            return pd_log_system_error(error, "no random bytes for", log->path, errno);
        return 0;
    }
    if (rc)
        return rc;
    uint32_t format = pd_reader_u32(&meta);
    if (format != PD_LOG_FORMAT)
        return pd_error_set(error, PD_EMISMATCH, "LOG_FORMAT",
                            "the log in '%s' has format %u, this packd reads format %u", log->path,
                            format, PD_LOG_FORMAT);
    const uint8_t *bytes = pd_reader_bytes(&meta, 16);
    log->incarnation = pd_reader_u64(&meta);
    if (!pd_reader_done(&meta))
        return pd_error_set(error, PD_ECORRUPT, "LOG_DAMAGED",
                            "the identity of the log in '%s' is malformed", log->path);
    memcpy(id, bytes, 16);
    rc = pd_log_get_sealed(log, log->txn, PD_DB_META, pd_log_key_text("next"), &meta, error);
    if (rc != 0 && rc != PD_ENOTFOUND)
        return rc;
    log->next_position = rc == 0 ? pd_reader_u64(&meta) : 1;
    return check_next_position(log, error);
}

static int open_tables(struct pd_log *log, struct pd_error *error)
{
    int rc = mdb_txn_begin(log->env, NULL, 0, &log->txn);
    for (int db = PD_DB_COUNT - 1; db >= 0 && !rc; db--)
        rc = mdb_dbi_open(log->txn, pd_log_db_names[db], MDB_CREATE, &log->dbs[db]);
    return rc ? open_error(log, rc, "tables", error) : 0;
}

/* The counts of LMDB's meta page have no digest: what cannot be is damage. */
static int check_counts(struct pd_log *log, struct pd_error *error)
{
    MDB_envinfo info;
    uint64_t sum = 0;
    int rc = mdb_env_info(log->env, &info);
    if (rc)
        return open_error(log, rc, "info", error);
    uint64_t pages = (uint64_t)info.me_last_pgno + 1;
    for (int db = -2; db < PD_DB_COUNT; db++) {
        MDB_stat stat;
        rc = mdb_stat(log->txn, db < 0 ? (MDB_dbi)(db + 2) : log->dbs[db], &stat);
        if (rc)
            return open_error(log, rc, "counts", error);
        const uint64_t counts[] = {stat.ms_branch_pages, stat.ms_leaf_pages,
                                   stat.ms_overflow_pages};
        for (int i = 0; i < 3; i++) {
            uint64_t count = counts[i];
            sum += count <= pages ? count : pages + 1;
        }
    }
    if (sum <= pages)
        return 0;
    return pd_error_set(
        error, PD_ECORRUPT, "LOG_DAMAGED",
        "'%s/data.mdb' is damaged: its tables count more pages than the %llu it has", log->path,
        (unsigned long long)pages);
}

static int open_identity(struct pd_log *log, struct pd_error *error)
{
    uint8_t id[16] = {0};
    log->next_position = 1;
    int rc = read_identity(log, id, error);
    log->incarnation++;
    log->committed_position = 0; /* the first commit writes it */
    if (!rc)
        rc = write_identity(log, id, error);
    if (!rc)
        rc = pd_log_commit(log, error);
    for (int i = 0; i < 16; i++)
        snprintf(log->id + 2 * i, 3, "%02x", id[i]);
    return rc;
}

int pd_log_open(const struct pd_log_options *options, struct pd_log **out, struct pd_error *error)
{
    /* LMDB allocates and frees its dirty pages in every transaction; with glibc's defaults the heap
     * goes back to the system each time, at three quarters of the rate. */
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
    struct pd_log *log = calloc(1, sizeof *log);
    if (!log)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory opening the log");
    log->magic = PD_LOG_MAGIC;
    log->lock_fd = log->slots_fd = -1;
    log->max_bytes = options->max_bytes;
    log->durability = options->durability;
    log->path = strdup(options->path);
    int rc = log->path
                 ? make_directory(log->path, error)
                 : pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory opening the log");
    if (!rc)
        rc = take_lock(log, error);
    if (!rc)
        rc = check_present(log, error);
    pd_log_watch_faults();
    if (!rc)
        rc = open_environment(log, error);
    if (!rc)
        rc = pd_log_check_file(log, error);
    if (!rc)
        rc = lock_data(log, error);
    if (!rc) {
        pd_log_check_readers(log);
        pd_log_space_open(log);
        rc = open_tables(log, error);
    }
    if (!rc)
        rc = check_counts(log, error);
    if (!rc)
        rc = open_identity(log, error);
    if (rc) {
        pd_log_close(log);
        return rc;
    }
    *out = log;
    return 0;
}

void pd_log_close(struct pd_log *log)
{
    if (!log)
        return;
    PD_MAGIC_CHECK(log, PD_LOG_MAGIC);
    if (log->txn)
        mdb_txn_abort(log->txn);
    if (log->env) {
        if (log->durability == PD_DURABILITY_PROCESS && log->page_bytes &&
            mdb_env_sync(log->env, 1) != 0)
            pd_log(PD_LOG_WARN, "log_sync_failed", "path=\"%s\"", log->path);
        mdb_env_close(log->env);
    }
    if (log->slots_fd >= 0)
        close(log->slots_fd);
    if (log->lock_fd >= 0)
        close(log->lock_fd);
    pd_buf_fini(&log->scratch);
    free(log->path);
    log->magic = 0;
    free(log);
}

const char *pd_log_id(const struct pd_log *log)
{
    return log->id;
}

uint64_t pd_log_incarnation(const struct pd_log *log)
{
    return log->incarnation;
}

void pd_log_check_readers(struct pd_log *log)
{
    int dead = 0;
    if (mdb_reader_check(log->env, &dead) == 0 && dead > 0)
        pd_log(PD_LOG_INFO, "log_readers_freed", "path=\"%s\" dead=%d", log->path, dead);
}
