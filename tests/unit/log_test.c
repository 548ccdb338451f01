/* The log itself: identity, lock, formats, transactions, bodies across pieces, readers,
 * snapshots, damage. */
#include "tests/unit/sequencer_case.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct pd_log *open_log(const char *dir, enum pd_durability durability)
{
    struct pd_log_options options = {.path = dir, .max_bytes = 64u << 20, .durability = durability};
    struct pd_log *log = NULL;
    struct pd_error error = {0};
    if (pd_log_open(&options, &log, &error) != 0)
        fail_msg("open: %s: %s", error.reason, error.text);
    return log;
}

static int try_open(const char *dir, struct pd_error *error)
{
    struct pd_log_options options = {
        .path = dir, .max_bytes = 64u << 20, .durability = PD_DURABILITY_FSYNC};
    struct pd_log *log = NULL;
    int rc = pd_log_open(&options, &log, error);
    if (rc == 0)
        pd_log_close(log);
    return rc;
}

static void begin(struct pd_log *log)
{
    struct pd_error error;
    assert_int_equal(pd_log_begin(log, &error), 0);
}

static void commit(struct pd_log *log)
{
    struct pd_error error;
    assert_int_equal(pd_log_commit(log, &error), 0);
}

static void test_reopen(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    char id[33];
    struct pd_error error = {0};
    for (int durability = 0; durability < 2; durability++) {
        seq_case_dir(&c, "reopen");
        struct pd_log *log = open_log(c.dir, (enum pd_durability)durability);
        snprintf(id, sizeof id, "%s", pd_log_id(log));
        assert_int_equal(strlen(id), 32);
        assert_int_equal(strspn(id, "0123456789abcdef"), 32);
        assert_int_equal(pd_log_incarnation(log), 1);
        uint64_t next = pd_log_next_position(log);
        struct pd_buf body = {0};
        pd_buf_put_u32(&body, 42);
        begin(log);
        assert_int_equal(pd_log_append_record(log, PD_RECORD_FLUSH, 3, &body, &error), 0);
        assert_int_equal(pd_log_next_position(log), next + 1);
        assert_true(pd_log_written_bytes(log) > 0);
        pd_log_abort(log);
        assert_int_equal(pd_log_next_position(log),
                         next); /* positions of an undone group are used again */
        begin(log);
        assert_int_equal(pd_log_append_record(log, PD_RECORD_FLUSH, 3, &body, &error), 0);
        commit(log);
        pd_log_close(log);
        log = open_log(c.dir, (enum pd_durability)durability);
        assert_string_equal(pd_log_id(log), id);
        assert_int_equal(pd_log_incarnation(log), 2);
        assert_int_equal(pd_log_next_position(log), next + 1);
        pd_log_close(log);
        pd_buf_fini(&body);
    }
    char other[33];
    seq_case_dir(&c, "other");
    struct pd_log *log = open_log(c.dir, PD_DURABILITY_PROCESS);
    snprintf(other, sizeof other, "%s", pd_log_id(log));
    assert_string_not_equal(other, id);
    pd_log_close(log);
}

static void test_two_opens(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    seq_case_dir(&c, "two");
    struct pd_log *log = open_log(c.dir, PD_DURABILITY_PROCESS);
    char pid[32];
    snprintf(pid, sizeof pid, "process %ld", (long)getpid());
    assert_int_equal(try_open(c.dir, &error), PD_EEXIST);
    assert_string_equal(error.reason, "LOG_IN_USE");
    assert_non_null(strstr(error.text, pid));
    assert_non_null(strstr(error.text, c.dir));
    pd_log_close(log);
    assert_int_equal(try_open(c.dir, &error), 0);
}

static void test_bad_places(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    char path[600];
    seq_case_dir(&c, "bad");
    snprintf(path, sizeof path, "%s/no/such", c.dir);
    assert_int_equal(try_open(path, &error), PD_EIO);
    assert_non_null(strstr(error.text, path));
    /* a file that is no log */
    snprintf(path, sizeof path, "%s/data.mdb", c.dir);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    for (int i = 0; i < 4096; i++)
        assert_int_equal(write(fd, "no log", 6), 6);
    close(fd);
    assert_int_equal(try_open(c.dir, &error), PD_EMISMATCH);
    assert_string_equal(error.reason, "LOG_FORMAT");
}

/* A value in the table of meta data, sealed or not, through LMDB itself. */
static void put_meta(const char *dir, const char *name, void *data, size_t size)
{
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    MDB_val key = {strlen(name), (void *)(uintptr_t)name}, value = {size, data};
    assert_int_equal(mdb_env_create(&env), 0);
    assert_int_equal(mdb_env_set_maxdbs(env, 16), 0);
    assert_int_equal(mdb_env_open(env, dir, 0, 0600), 0);
    assert_int_equal(mdb_txn_begin(env, NULL, 0, &txn), 0);
    assert_int_equal(mdb_dbi_open(txn, "meta", 0, &dbi), 0);
    assert_int_equal(mdb_put(txn, dbi, &key, &value, 0), 0);
    assert_int_equal(mdb_txn_commit(txn), 0);
    mdb_env_close(env);
}

static void test_damaged_identity(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    seq_case_dir(&c, "identity");
    pd_log_close(open_log(c.dir, PD_DURABILITY_PROCESS));
    uint8_t garbage[36] = {9};
    put_meta(c.dir, "log", garbage, sizeof garbage);
    assert_int_equal(try_open(c.dir, &error), PD_ECORRUPT);
    assert_non_null(strstr(error.text, "'meta'"));
}

static void test_truncated(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    char path[600];
    seq_case_dir(&c, "cut");
    struct pd_log *log = open_log(c.dir, PD_DURABILITY_PROCESS);
    struct pd_buf row = {0};
    for (int i = 0; i < 100000; i++)
        pd_buf_put_u32(&row, (uint32_t)i);
    begin(log);
    assert_int_equal(pd_log_put_row(log, PD_TABLE_STREAMS, 1, 0, &row, &error), 0);
    commit(log);
    pd_log_close(log);
    pd_buf_fini(&row);
    snprintf(path, sizeof path, "%s/data.mdb", c.dir);
    assert_int_equal(truncate(path, 8 * 4096), 0);
    assert_int_equal(try_open(c.dir, &error), PD_ECORRUPT);
    assert_string_equal(error.reason, "LOG_TRUNCATED");
}

static void test_missing(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    char path[600];
    seq_case_dir(&c, "missing");
    pd_log_close(open_log(c.dir, PD_DURABILITY_FSYNC));
    snprintf(path, sizeof path, "%s/data.mdb", c.dir);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(try_open(c.dir, &error), PD_ECORRUPT);
    assert_int_equal(unlink(path), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(try_open(c.dir, &error), PD_ECORRUPT);
        assert_string_equal(error.reason, "LOG_MISSING");
        assert_non_null(strstr(error.text, "remove lock.mdb"));
    }
    snprintf(path, sizeof path, "%s/lock.mdb", c.dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(try_open(c.dir, &error), 0);
}

/* A flipped bit in the counts of both meta pages: used pages far beyond the file. */
static void test_counts_damaged(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    char path[600];
    seq_case_dir(&c, "counts");
    pd_log_close(open_log(c.dir, PD_DURABILITY_FSYNC));
    snprintf(path, sizeof path, "%s/data.mdb", c.dir);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    for (off_t at = 67; at < 8192; at += 4096) {
        uint8_t byte;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
    assert_int_equal(try_open(c.dir, &error), PD_ECORRUPT);
    assert_string_equal(error.reason, "LOG_DAMAGED");
    assert_non_null(strstr(error.text, "count more pages"));
}

/* The child of a fork: cuts the file off under the open log, and reads. */
static void read_cut_off(const char *dir)
{
    char path[600];
    char name[PD_NAME_MAX + 1];
    struct pd_error error;
    signal(SIGBUS, SIG_DFL); /* the test library's handlers are in place */
    signal(SIGSEGV, SIG_DFL);
    struct pd_log *log = open_log(dir, PD_DURABILITY_PROCESS);
    struct pd_log_reader *reader;
    snprintf(path, sizeof path, "%s/data.mdb", dir);
    PD_CHECK(pd_log_reader_new(log, &reader, &error) == 0 && pd_log_reader_begin(reader) == 0);
    PD_CHECK(truncate(path, 3 * 4096) == 0);
    for (uint32_t i = 0; i < 50; i++)
        if (pd_log_read_stream_name(reader, 0, i, name) != 0)
            return;
}

/* LMDB's calls land here; the flag makes the disk fail. */
static bool sync_fails;

int fdatasync(int fd)
{
    if (!sync_fails)
        return (int)syscall(SYS_fdatasync, fd);
    errno = EIO;
    return -1;
}

static void commit_unsynced(const char *dir)
{
    struct pd_error error;
    struct pd_buf row = {0};
    struct pd_log *log = open_log(dir, PD_DURABILITY_FSYNC);
    pd_buf_put_u64(&row, 1);
    PD_CHECK(pd_log_begin(log, &error) == 0);
    PD_CHECK(pd_log_put_row(log, PD_TABLE_STREAMS, 0, 0, &row, &error) == 0);
    sync_fails = true;
    if (pd_log_commit(log, &error) != 0)
        _exit(1);
}

/* A failed fsync is never taken for a full disk, nor tried again: the process ends. */
static void test_failed_sync(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    char text[1024];
    seq_case_dir(&c, "sync");
    assert_int_equal(seq_child_says(c.dir, commit_unsynced, text), 74);
    assert_non_null(strstr(text, "log_failed"));
    assert_non_null(strstr(text, c.dir));
    assert_non_null(strstr(text, "commit"));
    struct pd_log *log = open_log(c.dir, PD_DURABILITY_FSYNC); /* and the log is as before */
    assert_int_equal(pd_log_incarnation(log), 2);
    pd_log_close(log);
}

static void test_fault(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error;
    char text[1024];
    seq_case_dir(&c, "fault");
    struct pd_log *log = open_log(c.dir, PD_DURABILITY_PROCESS);
    begin(log);
    for (uint32_t i = 0; i < 50; i++) {
        struct pd_buf row = {0};
        pd_buf_put_string(&row, "name", 4);
        for (int k = 0; k < 5000; k++)
            pd_buf_put_u8(&row, (uint8_t)k);
        assert_int_equal(pd_log_put_row(log, PD_TABLE_STREAMS, i, 0, &row, &error), 0);
        pd_buf_fini(&row);
    }
    commit(log);
    pd_log_close(log);
    int status = seq_child_says(c.dir, read_cut_off, text);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    assert_int_not_equal(status, 0); /* the sanitizer reports it in its own way */
#else
    assert_int_equal(status, 74);
    assert_non_null(strstr(text, "log_fault"));
    assert_non_null(strstr(text, c.dir));
    assert_non_null(strstr(text, "offset="));
#endif
}

/* ---- blocks ---- */

static struct pd_block *big_block(const struct seq_stream *stream, uint32_t cuts)
{
    static const uint32_t lengths[] = {3, 300000, 1, 500000, 262140, 262140, 7};
    struct seq_block_spec spec = {
        .count = PD_COUNT_OF(lengths), .lengths = lengths, .labels = true, .cuts = cuts};
    return seq_block(stream, &spec);
}

static void append(struct pd_log *log, struct pd_block *block)
{
    struct pd_error error = {0};
    uint64_t used = pd_log_used_now_bytes(log), most = pd_log_block_bytes(block);
    if (pd_log_append_block(log, block, &error) != 0)
        fail_msg("append: %s", error.text);
    assert_true(pd_log_used_now_bytes(log) - used <= most);
}

/* Bodies of several pieces, cut anywhere on the way in, read back at any place. */
static void test_bodies(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    struct seq_stream stream = {.name = "big"};
    static const uint32_t cuts[] = {0, 999983, 1u << 20, 4096, 77777};
    struct pd_block *blocks[PD_COUNT_OF(cuts)];
    seq_case_dir(&c, "bodies");
    struct pd_log *log = open_log(c.dir, PD_DURABILITY_PROCESS);
    struct pd_log_reader *reader;
    assert_int_equal(pd_log_reader_new(log, &reader, &error), 0);
    begin(log);
    for (size_t i = 0; i < PD_COUNT_OF(cuts); i++) {
        blocks[i] = big_block(&stream, cuts[i]);
        append(log, blocks[i]);
    }
    const struct pd_block_head *head;
    uint64_t position = blocks[0]->head.position;
    assert_int_equal(pd_log_reader_begin(reader), 0);
    assert_int_equal(pd_log_read_head(reader, 0, position, &head),
                     PD_ENOTFOUND); /* not committed */
    pd_log_reader_end(reader);
    commit(log);
    assert_int_equal(pd_log_reader_begin(reader), 0);
    for (size_t i = 0; i < PD_COUNT_OF(cuts); i++) {
        const struct pd_block_head *wanted = &blocks[i]->head;
        const struct pd_block_head *again;
        assert_int_equal(pd_log_read_head(reader, 0, wanted->position, &head), 0);
        assert_int_equal(pd_log_read_head(reader, 0, wanted->position, &again), 0);
        assert_ptr_equal(head, again);
        assert_int_equal(head->count, wanted->count);
        assert_int_equal(head->position, wanted->position);
        assert_int_equal(pd_log_read_head(reader, 1, wanted->position, &head), PD_ENOTFOUND);
        head = again;
        struct pd_bodies bodies;
        pd_log_bodies(reader, 0, PD_VERIFY_COPIES, &bodies, &error);
        for (uint32_t s = 0; s < head->count; s++) {
            uint32_t length = head->lengths[s], part = length > 2 ? length / 3 : 0;
            struct pd_segment segment = {.block = wanted->position,
                                         .index = s,
                                         .seq = s,
                                         .sample_tokens = length,
                                         .offset_tokens = part,
                                         .length_tokens = length - part};
            struct pd_head sample;
            pd_block_head_sample(head, s, &sample);
            segment.loss_tokens = pd_loss_runs_count(sample.loss, part + 1, length);
            int32_t *tokens = malloc(length * 4ull);
            bool has = false;
            assert_non_null(tokens);
            assert_int_equal(bodies.labels(bodies.ctx, &segment, tokens, &has), 0);
            assert_true(has);
            assert_int_equal(tokens[0], seq_token("big", s, part) + 1);
            assert_int_equal(bodies.tokens(bodies.ctx, &segment, tokens), 0);
            for (uint32_t t = part; t < length; t += 1 + length / 100)
                assert_int_equal(tokens[t - part], seq_token("big", s, t));
            assert_int_equal(tokens[length - part - 1], seq_token("big", s, length - 1));
            segment.offset_tokens = 0;
            segment.length_tokens = length;
            segment.loss_tokens = pd_loss_runs_count(sample.loss, 1, length);
            assert_int_equal(bodies.tokens(bodies.ctx, &segment, tokens), 0);
            assert_int_equal(tokens[length - 1], seq_token("big", s, length - 1));
            segment.sample_tokens++; /* a plan that does not belong to this block */
            assert_int_equal(bodies.tokens(bodies.ctx, &segment, tokens), PD_ECORRUPT);
            free(tokens);
        }
        uint8_t byte;
        assert_int_equal(
            pd_log_read_body(reader, wanted->position, wanted->body_bytes - 1, 1, &byte), 0);
        assert_int_equal(pd_log_read_body(reader, wanted->position, wanted->body_bytes, 1, &byte),
                         PD_ECORRUPT);
        blocks[i]->release(blocks[i]);
    }
    assert_int_equal(pd_log_read_head(reader, 0, 999999, &head), PD_ENOTFOUND);
    pd_log_reader_end(reader);
    pd_log_reader_free(reader);
    pd_log_close(log);
    assert_int_equal(seq_blocks_alive(), 0);
}

/* ---- snapshots, rows, records ---- */

static void put_snapshot(struct pd_log *log, uint32_t feed, uint64_t position, size_t size)
{
    struct pd_error error;
    struct pd_buf data = {0};
    for (size_t i = 0; i < size; i++)
        pd_buf_put_u8(&data, (uint8_t)(i * 7 + position));
    assert_int_equal(pd_log_put_snapshot(log, feed, position, &data, &error), 0);
    pd_buf_fini(&data);
}

static void get_snapshot(struct pd_log *log, uint32_t feed, uint64_t before, uint64_t position,
                         size_t size)
{
    struct pd_error error;
    struct pd_buf data = {0};
    uint64_t found = 0;
    int rc = pd_log_get_snapshot(log, feed, before, &found, &data, &error);
    assert_int_equal(rc, position ? 0 : PD_ENOTFOUND);
    assert_int_equal(found, position);
    assert_int_equal(data.size_bytes, size);
    for (size_t i = 0; i < size; i++)
        assert_int_equal(data.data[i], (uint8_t)(i * 7 + position));
    pd_buf_fini(&data);
}

static void test_snapshots(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error;
    seq_case_dir(&c, "snapshots");
    struct pd_log *log = open_log(c.dir, PD_DURABILITY_PROCESS);
    begin(log);
    get_snapshot(log, 1, UINT64_MAX, 0, 0);
    put_snapshot(log, 1, 10, 3u << 20);
    put_snapshot(log, 0, 50, 10);
    put_snapshot(log, 2, 50, 10);
    put_snapshot(log, 1, 20, 100);
    put_snapshot(log, 1, 30, (1u << 20) + 5);
    commit(log);
    begin(log);
    get_snapshot(log, 1, UINT64_MAX, 30, (1u << 20) + 5);
    get_snapshot(log, 1, 30, 20, 100);
    get_snapshot(log, 1, 20, 10, 3u << 20);
    get_snapshot(log, 1, 10, 0, 0);
    get_snapshot(log, 2, UINT64_MAX, 50, 10);
    put_snapshot(log, 1, 30, 5); /* fewer pieces at the same place */
    get_snapshot(log, 1, UINT64_MAX, 30, 5);
    uint64_t used = pd_log_used_now_bytes(log);
    assert_int_equal(pd_log_delete_snapshot(log, 1, 10, &error), 0);
    assert_int_equal(pd_log_delete_snapshot(log, 1, 15, &error), 0); /* there is none */
    assert_true(pd_log_used_now_bytes(log) + (2u << 20) < used);
    get_snapshot(log, 1, UINT64_MAX, 30, 5);
    get_snapshot(log, 1, 30, 20, 100);
    get_snapshot(log, 1, 20, 0, 0);
    get_snapshot(log, 0, UINT64_MAX, 50, 10);
    commit(log);
    pd_log_close(log);
}

static int count_record(void *ctx, const struct pd_record *record)
{
    uint64_t *seen = ctx;
    assert_int_equal(record->position, seen[0]++);
    assert_int_equal(record->type, PD_RECORD_FLUSH);
    assert_int_equal(record->size_bytes, 8);
    return record->position == seen[1] ? PD_EEND : 0;
}

static void test_records(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error;
    seq_case_dir(&c, "records");
    struct pd_log *log = open_log(c.dir, PD_DURABILITY_PROCESS);
    struct pd_buf body = {0};
    pd_buf_put_u64(&body, 1);
    uint64_t first = pd_log_next_position(log);
    begin(log);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(pd_log_append_record(log, PD_RECORD_FLUSH, 0, &body, &error), 0);
    uint64_t seen[2] = {first, 0};
    assert_int_equal(pd_log_scan_records(log, 0, count_record, seen, &error), 0);
    assert_int_equal(seen[0], first + 1000);
    seen[0] = first + 500;
    seen[1] = first + 600;
    assert_int_equal(pd_log_scan_records(log, first + 500, count_record, seen, &error), PD_EEND);
    assert_int_equal(seen[0], first + 601);
    commit(log);
    pd_buf_fini(&body);
    pd_log_close(log);
}

/* A start on a full disk leaves nothing that a later start would take for a log that is lost. */
/* Plans say what closed the pack; those of a packd that did not keep it, and those of a later one
 * that knows another way, are read all the same. */
static void test_plan_says_why(void **unused)
{
    (void)unused;
    static const int ways[] = {PD_PACK_UNKNOWN, PD_PACK_EXACT, PD_PACK_SEQUENTIAL, PD_PACK_WAYS};
    struct seq_case c = {0};
    struct pd_error error;
    struct pd_log_reader *reader;
    struct pd_pack pack = {0};
    struct pd_plan_facts found;
    uint64_t digest = 0;
    seq_case_dir(&c, "why");
    struct pd_log *log = open_log(c.dir, PD_DURABILITY_PROCESS);
    begin(log);
    for (uint64_t k = 0; k < PD_COUNT_OF(ways); k++) {
        struct pd_buf body = {0};
        pack.number = k;
        pd_pack_encode(&pack, &body);
        digest = pd_plan_digest_next(digest, body.data, body.size_bytes);
        struct pd_plan_facts facts = {digest, 77, 5, {(enum pd_pack_way)ways[k], 900 + k}};
        assert_int_equal(pd_log_put_pack(log, 0, k, &facts, &body, &error), 0);
        pd_buf_fini(&body);
    }
    commit(log);
    assert_int_equal(pd_log_reader_new(log, &reader, &error), 0);
    assert_int_equal(pd_log_reader_begin(reader), 0);
    for (uint64_t k = 0; k < PD_COUNT_OF(ways); k++) {
        bool known = ways[k] > PD_PACK_UNKNOWN && ways[k] < PD_PACK_WAYS;
        assert_int_equal(pd_log_read_pack(reader, 0, k, &pack), 0);
        assert_int_equal(pd_log_read_plan_facts(reader, 0, k, &found), 0);
        assert_int_equal(found.config_digest, 77);
        assert_int_equal(found.planner_version, 5);
        assert_int_equal(found.why.way, known ? ways[k] : PD_PACK_UNKNOWN);
        assert_int_equal(found.why.filled_to, known ? 900 + k : 0);
    }
    pd_log_reader_end(reader);
    pd_log_reader_free(reader);
    pd_pack_fini(&pack);
    pd_log_close(log);
}

static void test_begun_in_vain(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    struct rlimit limit, old;
    seq_case_dir(&c, "vain");
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = (struct rlimit){.rlim_cur = 4096, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int rc = try_open(c.dir, &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_true(rc < 0);
    assert_string_not_equal(error.reason, "LOG_MISSING");
    pd_log_close(open_log(c.dir, PD_DURABILITY_PROCESS));
}

static int stop_at_tenth(void *ctx, const struct pd_record *record)
{
    struct pd_log *log = ctx;
    pd_log_stop_scans(log, record->position % 10 == 9);
    return 0;
}

/* A start that is to end early reads no record more; afterwards the log is as before. */
static void test_stopped_scan(void **unused)
{
    (void)unused;
    struct seq_case c = {0};
    struct pd_error error = {0};
    uint64_t position, end;
    seq_case_dir(&c, "stopped");
    struct pd_log *log = open_log(c.dir, PD_DURABILITY_PROCESS);
    struct pd_buf body = {0};
    pd_buf_put_u64(&body, 1);
    begin(log);
    for (int i = 0; i < 100; i++)
        assert_int_equal(pd_log_append_record(log, PD_RECORD_FLUSH, 0, &body, &error), 0);
    assert_int_equal(pd_log_scan_records(log, 0, stop_at_tenth, log, &error), PD_ECANCELED);
    assert_string_equal(error.reason, "SCAN_STOPPED");
    assert_true(pd_log_scanned(log, &position, &end));
    assert_int_equal(position, 10);
    pd_log_stop_scans(log, false);
    uint64_t seen[2] = {pd_log_next_position(log) - 100, 0};
    assert_int_equal(pd_log_scan_records(log, 0, count_record, seen, &error), 0);
    commit(log);
    pd_buf_fini(&body);
    pd_log_close(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reopen),        cmocka_unit_test(test_two_opens),
        cmocka_unit_test(test_bad_places),    cmocka_unit_test(test_damaged_identity),
        cmocka_unit_test(test_missing),       cmocka_unit_test(test_counts_damaged),
        cmocka_unit_test(test_truncated),     cmocka_unit_test(test_fault),
        cmocka_unit_test(test_failed_sync),   cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_snapshots),     cmocka_unit_test(test_records),
        cmocka_unit_test(test_stopped_scan),  cmocka_unit_test(test_plan_says_why),
        cmocka_unit_test(test_begun_in_vain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
