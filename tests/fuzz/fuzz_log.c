/* Logs with damaged values, opened, looked at, replayed and read: records, heads, plans, jobs,
 * snapshots, names. Bytes are changed through LMDB, since damage in its own pages is LMDB's to find
 * (and ends the process with the place named).
 *
 * Two logs are made once: as a killed daemon leaves it, and as a clean stop does, with a snapshot.
 * An input picks one, and up to CHANGES_MAX values to be changed, cut or grown. Half of the inputs
 * seal them anew, which no accident does: then what lies behind the digests must not trust a number
 * either. A start must succeed, or say what is wrong; what is read after it is right or refused.
 * Where no value was forged, the sequencer goes on with work, too (with forged ones it may find, as
 * it writes, that the log contradicts itself, and then ends the process by name). */
#include "server/log_inspect.h"
#include "server/log_internal.h"
#include "tests/fuzz/wire.h"
#include "tests/unit/sequencer_case.h"

#include "base/check.h"
#include "base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHANGES_MAX 3
#define GROWN_MAX 16
#define PACKS 24

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The log's way to end a process, in place of the C library's: a finding whose input is to be
 * kept. */
_Noreturn void _exit(int status)
{
    fprintf(stderr, "the log ended the process with status %d\n", status);
    abort();
}

static struct {
    uint8_t *bytes;
    size_t size;
} pristine[2];

static struct seq_case hurt; /* its directory and configuration */

/* ---- the logs, once ---- */

static void file_of(const struct seq_case *c, char path[600])
{
    snprintf(path, 600, "%s/data.mdb", c->dir);
}

static void keep(const struct seq_case *c, int which)
{
    char path[600];
    struct stat info;
    file_of(c, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    PD_CHECK(fd >= 0 && fstat(fd, &info) == 0);
    pristine[which].size = (size_t)info.st_size;
    pristine[which].bytes = malloc(pristine[which].size);
    PD_CHECK(pristine[which].bytes);
    PD_CHECK(read(fd, pristine[which].bytes, pristine[which].size) == info.st_size);
    close(fd);
}

static void set_up(void)
{
    struct seq_case c = {0};
    struct pd_request_append answer;
    struct pd_error error;
    uint32_t lengths[60];
    pd_log_setup(PD_LOG_ERROR + 1, PD_LOG_PLAIN); /* none: each input would have some */
    seq_new(&c, "fuzz-log");
    struct seq_stream a = seq_stream_of("feed0", "a"), b = seq_stream_of("feed0", "b");
    PD_CHECK(seq_open(&c, &a) == 0 && seq_open(&c, &b) == 0);
    for (uint32_t i = 0; i < PD_COUNT_OF(lengths); i++)
        lengths[i] = 3 + i * 7 % 58;
    struct seq_block_spec spec = {.count = PD_COUNT_OF(lengths), .lengths = lengths};
    struct pd_request_open_job job = seq_job_request("feed0", "j", 1, 2, 1, "w");
    PD_CHECK(seq_call(&c, &job.base) == 0);
    PD_CHECK(seq_push(&c, &a, &spec, &answer) == 0);
    spec.labels = true;
    PD_CHECK(seq_push(&c, &b, &spec, &answer) == 0);
    PD_CHECK(seq_deliver(&c, 0, job.job_id, 2) == 0);
    PD_CHECK(seq_commit(&c, "feed0", "j", job.generation, 1, 2, &error) == 0);
    PD_CHECK(seq_flush(&c, "feed0", 1) == 0 && seq_end(&c, &a, spec.count) == 0);
    keep(&c, 0);
    seq_case_stop(&c);
    keep(&c, 1);
    hurt.config = c.config; /* c keeps what it points to */
    seq_case_dir(&hurt, "fuzz-log-hurt");
}

static void write_pristine(int which)
{
    char path[600];
    file_of(&hurt, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    PD_CHECK(fd >= 0 && write(fd, pristine[which].bytes, pristine[which].size) ==
                            (ssize_t)pristine[which].size);
    close(fd);
}

/* ---- damage ---- */

/* `value` with the input's changes; the last 8 bytes of a sealed one are its seal. */
static void change(struct fuzz_source *source, struct pd_buf *value, bool sealed)
{
    size_t content = value->size_bytes - (sealed ? PD_LOG_SEAL_BYTES : 0);
    for (uint32_t left = 1 + fuzz_number(source, 4); left > 0 && content > 0; left--) {
        size_t at = (fuzz_number(source, 256) << 8 | fuzz_number(source, 256)) % content;
        value->data[at] = (uint8_t)fuzz_number(source, 256);
    }
    uint32_t how = fuzz_number(source, 8);
    if (how == 6 && content > 0)
        value->size_bytes -= 1 + fuzz_number(source, 256) % content;
    for (uint32_t more = how == 7 ? fuzz_number(source, GROWN_MAX) : 0; more > 0; more--)
        pd_buf_put_u8(value, (uint8_t)fuzz_number(source, 256));
}

static void seal_anew(enum pd_log_db table, const MDB_val *key, struct pd_buf *value)
{
    if (value->size_bytes < PD_LOG_SEAL_BYTES)
        return;
    value->size_bytes -= PD_LOG_SEAL_BYTES;
    pd_buf_put_u64(value, pd_log_seal(table, key, value->data, value->size_bytes));
}

static void damage_one(MDB_txn *txn, struct fuzz_source *source, bool reseal)
{
    enum pd_log_db table = (enum pd_log_db)fuzz_number(source, PD_DB_COUNT);
    bool sealed = table != PD_DB_BODIES;
    uint32_t skip = fuzz_number(source, 64);
    MDB_dbi dbi;
    MDB_cursor *cursor;
    MDB_val key, found;
    uint8_t key_bytes[512];
    struct pd_buf value = {0};
    if (mdb_dbi_open(txn, pd_log_db_names[table], 0, &dbi) != 0)
        return;
    PD_CHECK(mdb_cursor_open(txn, dbi, &cursor) == 0);
    int rc = mdb_cursor_get(cursor, &key, &found, MDB_FIRST);
    MDB_stat info;
    PD_CHECK(mdb_stat(txn, dbi, &info) == 0);
    for (skip = info.ms_entries ? skip % (uint32_t)info.ms_entries : 0; skip > 0; skip--)
        rc = mdb_cursor_get(cursor, &key, &found, MDB_NEXT);
    if (rc == 0) {
        memcpy(key_bytes, key.mv_data, key.mv_size);
        key.mv_data = key_bytes;
        pd_buf_put(&value, found.mv_data, found.mv_size);
        change(source, &value, sealed);
        if (sealed && reseal)
            seal_anew(table, &key, &value);
    }
    mdb_cursor_close(cursor);
    MDB_val put = {value.size_bytes, value.data};
    PD_CHECK(rc != 0 || mdb_put(txn, dbi, &key, &put, 0) == 0);
    pd_buf_fini(&value);
}

static void damage(struct fuzz_source *source, bool reseal)
{
    MDB_env *env;
    MDB_txn *txn;
    PD_CHECK(mdb_env_create(&env) == 0 && mdb_env_set_maxdbs(env, PD_DB_COUNT + 1) == 0);
    PD_CHECK(mdb_env_set_mapsize(env, 64u << 20) == 0);
    PD_CHECK(mdb_env_open(env, hurt.dir, MDB_NOSYNC, 0600) == 0);
    PD_CHECK(mdb_txn_begin(env, NULL, 0, &txn) == 0);
    for (uint32_t left = 1 + fuzz_number(source, CHANGES_MAX); left > 0; left--)
        damage_one(txn, source, reseal);
    PD_CHECK(mdb_txn_commit(txn) == 0);
    mdb_env_close(env);
}

/* ---- looking ---- */

static int count_record(void *count, const struct pd_record *record)
{
    (void)record;
    return ++*(uint64_t *)count > 100000 ? PD_ELIMIT : 0;
}

static void inspect(void)
{
    struct pd_log *log;
    struct pd_log_facts facts;
    struct pd_log_findings findings;
    struct pd_error error = {0};
    uint64_t count = 0;
    if (pd_log_inspect_open(hurt.dir, &log, &error) != 0) {
        PD_CHECK(error.text[0]);
        return;
    }
    int rc = pd_log_inspect_facts(log, &facts, &error);
    PD_CHECK(rc == 0 || error.text[0]);
    rc = pd_log_inspect_records(log, count_record, &count, &error);
    PD_CHECK(rc == 0 || error.text[0]);
    rc = pd_log_inspect_verify(log, &findings, &error);
    PD_CHECK(rc == 0 ? findings.damaged == 0 || findings.first[0] : error.text[0]);
    pd_log_inspect_close(log);
}

static void read_all(struct seq_case *c)
{
    struct pd_pack pack = {0};
    struct pd_plan_facts facts;
    const struct pd_block_head *head;
    struct pd_tensor_spec spec;
    uint64_t lowest;
    char name[PD_NAME_MAX + 1];
    PD_CHECK(pd_log_reader_begin(c->reader) == 0);
    (void)!pd_log_lowest_pack(c->reader, 0, &lowest);
    for (uint64_t k = 0; k < PACKS; k++) {
        (void)!pd_log_read_plan_facts(c->reader, 0, k, &facts);
        if (pd_log_read_pack(c->reader, 0, k, &pack) != 0)
            continue;
        for (uint32_t i = 0; i < pack.segment_count; i++)
            (void)!pd_log_read_head(c->reader, 0, pack.segments[i].block, &head);
    }
    for (uint32_t i = 0; i < 4; i++) {
        (void)!pd_log_read_stream_name(c->reader, 0, i, name);
        (void)!pd_log_read_source_name(c->reader, 0, i, name);
        (void)!pd_log_read_tensor(c->reader, 0, i, &spec);
    }
    pd_log_reader_end(c->reader);
    pd_pack_fini(&pack);
}

static void go_on(struct seq_case *c)
{
    struct pd_request_append answer;
    struct pd_error error;
    struct seq_stream b = seq_stream_of("feed0", "b");
    struct pd_request_open_job job = seq_job_request("feed0", "j", 1, 2, 1, "w");
    if (seq_open(c, &b) == 0)
        (void)!seq_push_lengths(c, &b, b.open.next_seq, 8, 20, &answer);
    if (seq_call(c, &job.base) == 0) {
        (void)!seq_commit(c, "feed0", "j", job.generation, 2, 3, &error);
        (void)!seq_deliver(c, 0, job.job_id, 4);
    }
    struct pd_request_status status = seq_status(c);
    pd_status_fini(&status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_source source = {.data = data, .size = size};
    struct pd_error error = {0};
    if (!pristine[0].bytes)
        set_up();
    bool forged = fuzz_number(&source, 2);
    write_pristine((int)fuzz_number(&source, 2));
    damage(&source, forged);
    inspect();
    int rc = seq_case_start(&hurt, &error);
    if (rc != 0) {
        PD_CHECK(error.code == rc && error.reason[0] && error.text[0]);
        return 0;
    }
    read_all(&hurt);
    if (!forged)
        go_on(&hurt);
    seq_case_stop(&hurt);
    return 0;
}
