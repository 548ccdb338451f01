/* What no digest covers: LMDB's own page headers, the number of the next record, the file's name
 * and its locks. Each is refused by name, or ends the process with a line, never with a signal. */
#include "tests/unit/sequencer_case.h"

#include "base/check.h"
#include "server/log_inspect.h"
#include "server/log_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGE 4096
#define HEADER_BYTES 32 /* of a page, with the first offsets of its nodes */
#define DAMAGES 60

static int try_open(const char *dir, struct pd_log **log, struct pd_error *error)
{
    struct pd_log_options options = {
        .path = dir, .max_bytes = 64u << 20, .durability = PD_DURABILITY_FSYNC};
    return pd_log_open(&options, log, error);
}

/* Rows of many sizes, some of them with pages of their own, and a few records. */
static void fill(const char *dir)
{
    struct pd_log *log;
    struct pd_error error;
    assert_int_equal(try_open(dir, &log, &error), 0);
    assert_int_equal(pd_log_begin(log, &error), 0);
    for (uint32_t i = 0; i < 300; i++) {
        struct pd_buf row = {0};
        for (uint32_t k = 0; k < i * 37 % 9000; k++)
            pd_buf_put_u8(&row, (uint8_t)(i + k));
        assert_int_equal(pd_log_put_row(log, PD_TABLE_STREAMS, i, 0, &row, &error), 0);
        assert_int_equal(pd_log_append_record(log, PD_RECORD_FLUSH, 0, &row, &error), 0);
        pd_buf_fini(&row);
    }
    assert_int_equal(pd_log_commit(log, &error), 0);
    pd_log_close(log);
}

static void path_of(const char *dir, const char *name, char path[600])
{
    snprintf(path, 600, "%s/%s", dir, name);
}

/* ---- page headers ---- */

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Three bytes in the headers of pages, the first pages not among them. */
static void damage_headers(const char *dir, uint64_t seed)
{
    char path[600];
    struct stat file;
    path_of(dir, "data.mdb", path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && fstat(fd, &file) == 0);
    for (int i = 0; i < 3; i++) {
        uint8_t byte = (uint8_t)draw(&seed);
        off_t page = 2 + (off_t)(draw(&seed) % (uint64_t)(file.st_size / PAGE - 2));
        off_t at = page * PAGE + (off_t)(draw(&seed) % HEADER_BYTES);
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
}

/* The test library's handlers are in place. */
static void default_signals(void)
{
    const int fatal[] = {SIGBUS, SIGSEGV, SIGABRT, SIGFPE, SIGILL};
    for (size_t i = 0; i < PD_COUNT_OF(fatal); i++)
        signal(fatal[i], SIG_DFL);
}

static void verify(const char *dir)
{
    struct pd_log *log;
    struct pd_error error = {0};
    struct pd_log_findings findings;
    default_signals();
    if (pd_log_inspect_open(dir, &log, &error) != 0)
        return;
    if (pd_log_inspect_verify(log, &findings, &error) != 0)
        PD_CHECK(error.text[0]);
    pd_log_inspect_close(log);
}

static void use(const char *dir)
{
    struct pd_log *log;
    struct pd_error error = {0};
    struct pd_buf row = {0};
    default_signals();
    if (try_open(dir, &log, &error) != 0)
        return;
    pd_buf_put_u64(&row, 1);
    for (uint32_t i = 0; i < 300; i += 7) {
        int rc = pd_log_begin(log, &error);
        rc = rc ? rc : pd_log_put_row(log, PD_TABLE_STREAMS, i, 0, &row, &error);
        rc = rc ? rc : pd_log_append_record(log, PD_RECORD_FLUSH, 0, &row, &error);
        if (rc != 0 || pd_log_commit(log, &error) != 0)
            break;
    }
    _exit(0); /* what the damage has done to LMDB's own memory is nobody's any more */
}

static void test_page_headers(void **unused)
{
    (void)unused;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* its handler of SIGSEGV comes first */
#endif
    struct seq_case c = {0};
    char text[1024], path[600];
    int refused = 0;
    seq_case_dir(&c, "headers");
    fill(c.dir);
    path_of(c.dir, "data.mdb", path);
    struct stat file;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && fstat(fd, &file) == 0);
    uint8_t *whole = malloc((size_t)file.st_size);
    assert_non_null(whole);
    assert_int_equal(read(fd, whole, (size_t)file.st_size), file.st_size);
    close(fd);
    for (uint64_t seed = 1; seed <= DAMAGES; seed++) {
        for (int reader = 0; reader < 2; reader++) {
            fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
            assert_true(fd >= 0);
            assert_int_equal(write(fd, whole, (size_t)file.st_size), file.st_size);
            close(fd);
            damage_headers(c.dir, seed * 0x9e3779b97f4a7c15);
            int status = seq_child_says(c.dir, reader ? verify : use, text);
            if (status != 0 && status != 74)
                fail_msg("seed %d, %s: status %d: %s", (int)seed, reader ? "verify" : "use", status,
                         text);
            refused += status == 74;
            if (status == 74)
                assert_non_null(strstr(text, c.dir)); /* the line names the file */
        }
    }
    assert_true(refused > 0);
    free(whole);
}

/* ---- the number of the next record ---- */

static void test_next_position(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    struct pd_log *log;
    seq_case_dir(&c, "next");
    fill(c.dir);
    assert_int_equal(try_open(c.dir, &log, &error), 0);
    uint64_t low = pd_log_next_position(log) - 3;
    assert_int_equal(pd_log_begin(log, &error), 0);
    int rc =
        pd_log_put_sealed(log, PD_DB_META, pd_log_key_text("next"), &low, sizeof low, 0, &error);
    assert_int_equal(rc, 0);
    assert_int_equal(mdb_txn_commit(log->txn), 0); /* without the log's own number */
    log->txn = NULL;
    pd_log_close(log);
    assert_int_equal(try_open(c.dir, &log, &error), PD_ECORRUPT);
    assert_string_equal(error.reason, "LOG_DAMAGED");
    assert_non_null(strstr(error.text, "next"));
}

/* ---- the file's name and its locks ---- */

static void commit_removed(const char *dir)
{
    struct pd_log *log;
    struct pd_error error = {0};
    char path[600];
    PD_CHECK(try_open(dir, &log, &error) == 0);
    path_of(dir, "data.mdb", path);
    PD_CHECK(unlink(path) == 0);
    PD_CHECK(pd_log_begin(log, &error) == 0);
    PD_CHECK(pd_log_append_record(log, PD_RECORD_FLUSH, 0, NULL, &error) == 0);
    (void)!pd_log_commit(log, &error);
    _exit(1);
}

static void test_removed(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    char text[1024];
    seq_case_dir(&c, "removed");
    fill(c.dir);
    assert_int_equal(seq_child_says(c.dir, commit_removed, text), 74);
    assert_non_null(strstr(text, "was removed"));
}

static void test_lock_removed(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    struct pd_log *log, *second;
    char path[600];
    seq_case_dir(&c, "lock");
    assert_int_equal(try_open(c.dir, &log, &error), 0);
    path_of(c.dir, "LOCK", path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(try_open(c.dir, &second, &error), PD_EEXIST);
    assert_string_equal(error.reason, "LOG_IN_USE");
    pd_log_close(log);
    assert_int_equal(try_open(c.dir, &second, &error), 0);
    pd_log_close(second);
}

static void read_lock_cut_off(const char *dir)
{
    struct pd_log *log;
    struct pd_log_reader *reader;
    struct pd_error error = {0};
    char path[600];
    default_signals();
    PD_CHECK(try_open(dir, &log, &error) == 0);
    path_of(dir, "lock.mdb", path);
    PD_CHECK(truncate(path, 0) == 0);
    PD_CHECK(pd_log_reader_new(log, &reader, &error) == 0);
    (void)!pd_log_reader_begin(reader);
    _exit(1);
}

static void test_lock_cut_off(void **unused)
{
    (void)unused;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* the sanitizer's handlers come first */
#endif
    struct seq_case c = {0};
    char text[1024];
    seq_case_dir(&c, "lockcut");
    fill(c.dir);
    assert_int_equal(seq_child_says(c.dir, read_lock_cut_off, text), 74);
    assert_non_null(strstr(text, "log_fault"));
    assert_non_null(strstr(text, "/lock.mdb"));
    assert_non_null(strstr(text, "cut off"));
}

/* The log's calls land here; the flag makes the disk full. */
static bool disk_full;

int fallocate(int fd, int mode, off_t from, off_t size)
{
    if (!disk_full)
        return (int)syscall(SYS_fallocate, fd, mode, from, size);
    errno = ENOSPC;
    return -1;
}

/* LMDB writes to lock.mdb through a map: on a full disk it must not come so far. */
static void test_first_start_on_a_full_disk(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    struct pd_log *log;
    char path[600];
    seq_case_dir(&c, "full");
    disk_full = true;
    assert_int_equal(try_open(c.dir, &log, &error), PD_EFULL);
    disk_full = false;
    assert_string_equal(error.reason, "NO_SPACE");
    assert_non_null(strstr(error.text, "/lock.mdb"));
    assert_non_null(strstr(error.text, strerror(ENOSPC)));
    path_of(c.dir, "data.mdb", path);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(try_open(c.dir, &log, &error), 0); /* nothing stays that refuses a start */
    pd_log_close(log);
}

/* All that lock.mdb will ever hold has its blocks. */
static void test_slots_reserved(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    struct pd_log *log;
    struct stat file;
    char path[600];
    seq_case_dir(&c, "slots");
    assert_int_equal(try_open(c.dir, &log, &error), 0);
    path_of(c.dir, "lock.mdb", path);
    assert_int_equal(stat(path, &file), 0);
    assert_true(file.st_size > PD_LOG_READERS_MAX * 64);
    assert_true(file.st_blocks * 512 >= file.st_size);
    pd_log_close(log);
}

static void test_lock_directory(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    struct pd_log *log;
    char path[600];
    seq_case_dir(&c, "lockdir");
    fill(c.dir);
    path_of(c.dir, "lock.mdb", path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(try_open(c.dir, &log, &error), PD_EIO);
    assert_non_null(strstr(error.text, path));
    assert_int_equal(pd_log_inspect_open(c.dir, &log, &error), PD_EIO);
    assert_non_null(strstr(error.text, path));
    assert_int_equal(rmdir(path), 0);
}

/* A reader beside a running packd whose lock.mdb was overwritten is told which file it is. */
static void look_at_garbage(const char *dir)
{
    struct pd_log *log;
    struct pd_error error = {0};
    default_signals();
    PD_CHECK(pd_log_inspect_open(dir, &log, &error) == PD_EMISMATCH);
    fprintf(stderr, "%s\n", error.text);
    _exit(3);
}

static void test_lock_garbage(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    struct pd_log *log;
    uint8_t garbage[64];
    char path[600], text[1024];
    seq_case_dir(&c, "lockgarbage");
    fill(c.dir);
    path_of(c.dir, "lock.mdb", path);
    memset(garbage, 0xa5, sizeof garbage);
    assert_int_equal(try_open(c.dir, &log, &error), 0);
    int before = open(path, O_RDWR | O_CLOEXEC);
    uint8_t whole[sizeof garbage];
    assert_int_equal(pread(before, whole, sizeof whole, 0), sizeof whole);
    assert_int_equal(pwrite(before, garbage, sizeof garbage, 0), sizeof garbage);
    assert_int_equal(seq_child_says(c.dir, look_at_garbage, text), 3);
    assert_non_null(strstr(text, "/lock.mdb'"));
    assert_int_equal(pwrite(before, whole, sizeof whole, 0), sizeof whole);
    pd_log_close(log);
    close(before);
}

/* The files stay where they are, under another name: so does what their disk can hold. */
static void test_renamed(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    struct pd_log *log;
    char moved[600];
    seq_case_dir(&c, "renamed");
    assert_int_equal(try_open(c.dir, &log, &error), 0);
    snprintf(moved, sizeof moved, "%s.moved", c.dir);
    uint64_t limit = pd_log_limit_bytes(log);
    assert_int_equal(limit, 64u << 20);
    assert_int_equal(rename(c.dir, moved), 0);
    log->looked_ns = 0; /* due */
    assert_int_equal(pd_log_look(log, 0), UINT64_MAX);
    assert_int_equal(pd_log_limit_bytes(log), limit);
    pd_log_close(log);
    assert_int_equal(rename(moved, c.dir), 0);
}

/* What packd refuses to start on, a look at it refuses, too. */
static void test_cut_off(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    struct pd_log *log;
    struct stat file;
    char path[600];
    seq_case_dir(&c, "cut");
    fill(c.dir);
    path_of(c.dir, "data.mdb", path);
    assert_int_equal(stat(path, &file), 0);
    assert_int_equal(truncate(path, file.st_size - PAGE), 0);
    assert_int_equal(pd_log_inspect_open(c.dir, &log, &error), PD_ECORRUPT);
    assert_string_equal(error.reason, "LOG_TRUNCATED");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_headers),   cmocka_unit_test(test_next_position),
        cmocka_unit_test(test_removed),        cmocka_unit_test(test_lock_removed),
        cmocka_unit_test(test_cut_off),        cmocka_unit_test(test_lock_cut_off),
        cmocka_unit_test(test_slots_reserved), cmocka_unit_test(test_first_start_on_a_full_disk),
        cmocka_unit_test(test_lock_directory), cmocka_unit_test(test_lock_garbage),
        cmocka_unit_test(test_renamed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
