/* Looking at a log from outside: facts, records, verification, a copy.
 *
 * Place: packctl log. Owner: the caller's thread. The environment is opened read-only and holds a
 * reader's slot while a call runs, so a long verification beside a busy daemon lets the file grow.
 * Invariant: nothing is written. It does not know what plans and records lead to; replaying is the
 * daemon's. */
#include "server/log_inspect.h"
#include "server/log_internal.h"

#include "base/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <xxhash.h>

_Static_assert(PD_LOG_TABLES == PD_DB_COUNT, "a table's name is missing");

const char *pd_record_type_name(enum pd_record_type type)
{
    switch (type) {
    case PD_RECORD_FEED:
        return "FEED";
    case PD_RECORD_STREAM:
        return "STREAM";
    case PD_RECORD_BLOCK:
        return "BLOCK";
    case PD_RECORD_END_STREAM:
        return "END_STREAM";
    case PD_RECORD_END_LANE:
        return "END_LANE";
    case PD_RECORD_END_FEED:
        return "END_FEED";
    case PD_RECORD_FLUSH:
        return "FLUSH";
    case PD_RECORD_HORIZON:
        return "HORIZON";
    case PD_RECORD_OPEN_JOB:
        return "OPEN_JOB";
    case PD_RECORD_COMMIT:
        return "COMMIT";
    case PD_RECORD_SKIP_STEPS:
        return "SKIP_STEPS";
    case PD_RECORD_DELETE_JOB:
        return "DELETE_JOB";
    case PD_RECORD_MIXTURE:
        return "MIXTURE";
    case PD_RECORD_SKIP_SAMPLES:
        return "SKIP_SAMPLES";
    case PD_RECORD_DELETE_STREAM:
        return "DELETE_STREAM";
    case PD_RECORD_DELETE_FEED:
        return "DELETE_FEED";
    case PD_RECORD_TOKENIZER:
        return "TOKENIZER";
    case PD_RECORD_RULES:
        return "RULES";
    case PD_RECORD_RELEASE_JOB:
        return "RELEASE_JOB";
    case PD_RECORD_VIEW:
        return "VIEW";
    case PD_RECORD_TENSOR:
        return "TENSOR";
    }
    return "?";
}

/* ---- opening ---- */

static int open_failed(const char *path, int rc, struct pd_error *error)
{
    int code = rc == MDB_INVALID || rc == MDB_VERSION_MISMATCH || rc == MDB_NOTFOUND ? PD_EMISMATCH
               : rc == MDB_CORRUPTED || rc == MDB_PAGE_NOTFOUND                      ? PD_ECORRUPT
               : rc == ENOMEM                                                        ? PD_ENOMEM
                                                                                     : PD_EIO;
    return pd_error_set(error, code, code == PD_EMISMATCH ? "LOG_FORMAT" : "LOG_IO",
                        "cannot open a log in '%s%s': %s", path, pd_log_culprit(path, rc),
                        mdb_strerror(rc));
}

static int open_tables(struct pd_log *log)
{
    MDB_txn *txn;
    int rc = mdb_txn_begin(log->env, NULL, MDB_RDONLY, &txn);
    if (rc)
        return rc;
    for (int db = 0; db < PD_DB_COUNT && !rc; db++)
        rc = mdb_dbi_open(txn, pd_log_db_names[db], 0, &log->dbs[db]);
    if (rc)
        mdb_txn_abort(txn);
    else
        rc = mdb_txn_commit(txn); /* keeps the handles */
    return rc;
}

static int open_environment(struct pd_log *log, const char *path)
{
    int rc = mdb_env_create(&log->env);
    if (rc)
        return rc;
    mdb_env_set_userctx(log->env, log);
    mdb_env_set_assert(log->env, pd_log_assert_failed);
    rc = mdb_env_set_maxdbs(log->env, PD_DB_COUNT);
    return rc ? rc : mdb_env_open(log->env, path, MDB_RDONLY | MDB_NOTLS, 0600);
}

int pd_log_inspect_open(const char *path, struct pd_log **out, struct pd_error *error)
{
    struct pd_log *log = calloc(1, sizeof *log);
    if (!log || !(log->path = strdup(path))) {
        free(log);
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    }
    log->magic = PD_LOG_MAGIC;
    log->lock_fd = -1;
    pd_log_watch_faults();
    int lmdb = open_environment(log, path);
    int rc = lmdb ? open_failed(path, lmdb, error) : pd_log_check_file(log, error);
    if (!rc) {
        lmdb = open_tables(log);
        rc = lmdb ? open_failed(path, lmdb, error) : 0;
    }
    if (rc) {
        pd_log_inspect_close(log);
        return rc;
    }
    *out = log;
    return 0;
}

void pd_log_inspect_close(struct pd_log *log)
{
    if (!log)
        return;
    if (log->env)
        mdb_env_close(log->env);
    free(log->path);
    free(log);
}

static int begin(struct pd_log *log, MDB_txn **txn, struct pd_error *error)
{
    int rc = mdb_txn_begin(log->env, NULL, MDB_RDONLY, txn);
    return rc ? pd_log_failed(log, rc, "read", error) : 0;
}

/* ---- facts ---- */

static int read_meta(struct pd_log *log, MDB_txn *txn, struct pd_log_facts *facts,
                     struct pd_error *error)
{
    struct pd_reader meta;
    int rc = pd_log_get_sealed(log, txn, PD_DB_META, pd_log_key_text("log"), &meta, error);
    if (rc == PD_ENOTFOUND)
        return pd_error_set(error, PD_EMISMATCH, "LOG_FORMAT", "'%s' holds no log of packd",
                            log->path);
    if (rc)
        return rc;
    (void)pd_reader_u32(&meta);
    const uint8_t *id = pd_reader_bytes(&meta, 16);
    facts->incarnation = pd_reader_u64(&meta);
    for (int i = 0; id && i < 16; i++)
        snprintf(facts->log_id + 2 * i, 3, "%02x", id[i]);
    rc = pd_log_get_sealed(log, txn, PD_DB_META, pd_log_key_text("next"), &meta, error);
    if (!rc)
        facts->next_position = pd_reader_u64(&meta);
    return rc == PD_ENOTFOUND ? 0 : rc;
}

int pd_log_inspect_facts(struct pd_log *log, struct pd_log_facts *facts, struct pd_error *error)
{
    MDB_txn *txn;
    MDB_envinfo info;
    *facts = (struct pd_log_facts){0};
    int rc = begin(log, &txn, error);
    if (rc)
        return rc;
    rc = read_meta(log, txn, facts, error);
    for (int db = 0; !rc && db < PD_DB_COUNT; db++) {
        MDB_stat stat;
        int lmdb = mdb_stat(txn, log->dbs[db], &stat);
        if (lmdb) {
            rc = pd_log_failed(log, lmdb, "stat", error);
            break;
        }
        facts->tables[db].name = pd_log_db_names[db];
        facts->tables[db].entries = stat.ms_entries;
        facts->tables[db].bytes =
            (stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages) *
            (uint64_t)log->page_bytes;
    }
    facts->used_bytes = pd_log_count_bytes(log, txn);
    if (mdb_env_info(log->env, &info) == 0)
        facts->file_bytes = ((uint64_t)info.me_last_pgno + 1) * log->page_bytes;
    mdb_txn_abort(txn);
    return rc;
}

int pd_log_inspect_records(struct pd_log *log,
                           int (*each)(void *ctx, const struct pd_record *record), void *ctx,
                           struct pd_error *error)
{
    int rc = begin(log, &log->txn, error);
    if (rc)
        return rc;
    rc = pd_log_scan_records(log, 0, each, ctx, error);
    mdb_txn_abort(log->txn);
    log->txn = NULL;
    return rc;
}

/* ---- verification ---- */

struct verify {
    struct pd_log *log;
    struct pd_log_reader *reader;
    struct pd_log_findings *findings;
    uint8_t *sample; /* bytes of one */
    size_t sample_capacity;
    /* the plan before */
    uint32_t feed;
    uint64_t pack, digest;
    bool chained;
};

static void damage(struct verify *verify, const char *text)
{
    if (verify->findings->damaged++ == 0)
        snprintf(verify->findings->first, sizeof verify->findings->first, "%s", text);
}

/* Whether a column of the sample has its digest. */
static int check_column(struct verify *verify, uint64_t block, uint64_t offset, size_t size,
                        uint64_t digest, bool *good)
{
    if (size > verify->sample_capacity) {
        uint8_t *larger = realloc(verify->sample, size);
        if (!larger)
            return PD_ENOMEM;
        verify->sample = larger;
        verify->sample_capacity = size;
    }
    int rc = pd_log_read_body(verify->reader, block, offset, size, verify->sample);
    *good = rc == 0 && XXH3_64bits(verify->sample, size) == digest;
    verify->findings->sample_bytes += size;
    return rc == PD_ECORRUPT ? 0 : rc;
}

/* What is wrong with the sample's tensors: the name of the first one, or NULL. */
static int check_tensors(struct verify *verify, const struct pd_block_head *head, uint32_t i,
                         const char **wrong)
{
    int rc = 0;
    *wrong = NULL;
    for (uint32_t k = 0; k < head->tensor_count && !rc && !*wrong; k++) {
        struct pd_tensor_extent extent = pd_block_head_extent(head, k, i);
        bool good = true;
        rc = check_column(verify, head->position, extent.offset_bytes, extent.size_bytes,
                          extent.digest, &good);
        *wrong = good ? NULL : head->tensors[k].name;
    }
    return rc;
}

static int check_sample(struct verify *verify, const struct pd_block_head *head, uint32_t i)
{
    char text[200];
    bool tokens = true, labels = true;
    const char *tensor = NULL;
    uint64_t offset = head->token_offsets[i] * 4;
    size_t size = head->lengths[i] * (size_t)4;
    int rc = check_column(verify, head->position, offset, size, head->token_digests[i], &tokens);
    if (!rc && head->has_labels)
        rc = check_column(verify, head->position, head->token_offsets[head->count] * 4 + offset,
                          size, head->label_digests[i], &labels);
    if (!rc)
        rc = check_tensors(verify, head, i, &tensor);
    verify->findings->samples++;
    if (rc || (tokens && labels && !tensor))
        return rc;
    snprintf(text, sizeof text,
             "sample %llu of stream number %u (block %llu): its %s%s do not have "
             "their digest",
             (unsigned long long)head->first_seq + i, head->stream,
             (unsigned long long)head->position,
             !tokens  ? "tokens"
             : labels ? "bytes of tensor "
                      : "labels",
             tokens && labels ? tensor : "");
    damage(verify, text);
    return 0;
}

static int check_block(struct verify *verify, const MDB_val *key)
{
    const struct pd_block_head *head;
    char text[120];
    uint64_t block = pd_log_key_u64(key, 8);
    int rc = pd_log_reader_begin(verify->reader);
    if (!rc)
        rc = pd_log_read_head(verify->reader, pd_log_key_u32(key, 0), block, &head);
    if (rc == PD_ECORRUPT || rc == PD_ENOTFOUND) {
        snprintf(text, sizeof text, "block %llu: its head and its record do not agree",
                 (unsigned long long)block);
        damage(verify, text);
        rc = 0;
    } else if (!rc) {
        verify->findings->blocks++;
        for (uint32_t i = head->first_index; !rc && i < head->count; i++)
            if (!head->rejected || !head->rejected[i])
                rc = check_sample(verify, head, i);
    }
    pd_log_reader_end(verify->reader);
    return rc;
}

static void check_plan(struct verify *verify, const MDB_val *key, struct pd_reader content)
{
    uint32_t feed = pd_log_key_u32(key, 0);
    uint64_t pack = pd_log_key_u64(key, 4);
    struct pd_plan_facts facts;
    char text[120];
    bool whole = pd_log_plan_facts(&content, &facts);
    uint64_t digest = facts.plan_digest;
    bool follows = verify->chained && verify->feed == feed && verify->pack + 1 == pack;
    uint64_t before = follows ? verify->digest : 0;
    verify->findings->packs++;
    if (!whole || ((follows || pack == 0) &&
                   digest != pd_plan_digest_next(before, content.at, pd_reader_left(&content)))) {
        snprintf(text, sizeof text, "pack %llu of feed number %u breaks the chain of digests",
                 (unsigned long long)pack, feed);
        damage(verify, text);
    }
    verify->feed = feed;
    verify->pack = pack;
    verify->digest = digest;
    verify->chained = true;
}

static int check_value(struct verify *verify, enum pd_log_db db, const MDB_val *key,
                       const MDB_val *value)
{
    struct pd_reader content;
    struct pd_error why = {0};
    verify->findings->values++;
    if (db == PD_DB_BODIES)
        return 0; /* by its samples */
    if (pd_log_unseal(db, key, value, &content, &why) != 0) {
        damage(verify, why.text);
        return 0;
    }
    if (db == PD_DB_PLANS)
        check_plan(verify, key, content);
    return db == PD_DB_HEADS ? check_block(verify, key) : 0;
}

static int check_table(struct verify *verify, MDB_txn *txn, enum pd_log_db db,
                       struct pd_error *error)
{
    MDB_cursor *cursor;
    MDB_val key, value;
    int rc = 0, lmdb = mdb_cursor_open(txn, verify->log->dbs[db], &cursor);
    if (lmdb)
        return pd_log_failed(verify->log, lmdb, "verify", error);
    while (!rc && (lmdb = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0)
        rc = check_value(verify, db, &key, &value);
    mdb_cursor_close(cursor);
    if (rc)
        return pd_error_set(error, rc, "VERIFY", "verifying '%s': %s", verify->log->path,
                            pd_err_text(rc));
    return lmdb == MDB_NOTFOUND ? 0 : pd_log_failed(verify->log, lmdb, "verify", error);
}

int pd_log_inspect_verify(struct pd_log *log, struct pd_log_findings *findings,
                          struct pd_error *error)
{
    struct verify verify = {.log = log, .findings = findings};
    MDB_txn *txn;
    *findings = (struct pd_log_findings){0};
    int rc = pd_log_reader_new(log, &verify.reader, error);
    if (rc)
        return rc;
    rc = begin(log, &txn, error);
    if (!rc) {
        for (int db = 0; db < PD_DB_COUNT && !rc; db++)
            rc = check_table(&verify, txn, (enum pd_log_db)db, error);
        mdb_txn_abort(txn);
    }
    pd_log_reader_free(verify.reader);
    free(verify.sample);
    return rc;
}

/* ---- the copy ---- */

int pd_log_inspect_copy(struct pd_log *log, const char *to, struct pd_error *error)
{
    if (mkdir(to, 0700) != 0 && errno != EEXIST)
        return pd_error_set(error, PD_EIO, "LOG_IO", "cannot make '%s': %s", to, strerror(errno));
    int rc = mdb_env_copy2(log->env, to, MDB_CP_COMPACT);
    if (rc == 0)
        return 0;
    return pd_error_set(error, rc == ENOSPC ? PD_EFULL : PD_EIO, "LOG_IO",
                        "cannot copy the log in '%s' to '%s': %s", log->path, to, mdb_strerror(rc));
}
