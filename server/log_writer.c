/* The log's writing side: transactions, records, blocks, plans, rows, snapshots, and the reads that
 * the sequencer makes inside them.
 *
 * Place: called by the sequencer only, on its thread. A body is copied once, from the pieces in the
 * transport's memory into the pages that LMDB reserves. Invariants: positions rise by one with
 * every record and are reused only after an abort; no value but a plan is larger than 1 MiB. It
 * does not decide what is written, nor when a transaction ends. */
#include "server/log_internal.h"

#include "base/check.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <xxhash.h>

#define NODE_OVERHEAD_BYTES 32u /* LMDB's node, the longest key, a place in the page's list */
#define LEAF_BYTES 4080u        /* of a page, for nodes */
#define LEAF_NODES_MIN 2u       /* LMDB keeps values out of the leaf of which not so many fit */
#define BLOCK_RECORD_BYTES 48u
#define PLAN_FACTS_BYTES 29u
/* In the planner's version of a plan: what closed the pack follows. Plans of old lack it. */
#define PLAN_HAS_WHY 0x80000000u
#define BLOCK_TREE_PAGES 12u /* leaves and branches touched by one block, at most */
#define DISK_SLACK_BYTES (1u << 20)

/* ---- transactions ---- */

int pd_log_begin(struct pd_log *log, struct pd_error *error)
{
    PD_CHECK(!log->txn);
    int rc = mdb_txn_begin(log->env, NULL, 0, &log->txn);
    if (rc) {
        log->txn = NULL;
        return pd_log_failed(log, rc, "begin", error);
    }
    return 0;
}

void pd_log_abort(struct pd_log *log)
{
    if (log->txn)
        mdb_txn_abort(log->txn);
    log->txn = NULL;
    log->written_bytes = 0;
    if (log->committed_position)
        log->next_position = log->committed_position;
}

/* A write that disk or `ulimit -f` took in part is EIO from LMDB. */
static bool disk_is_full(const struct pd_log *log)
{
    return pd_log_space_lacks(log, 2 * log->written_bytes + DISK_SLACK_BYTES);
}

static int commit_failed(struct pd_log *log, int rc, struct pd_error *error)
{
    bool full = rc == ENOSPC || rc == EDQUOT || rc == EFBIG || (rc == EIO && disk_is_full(log));
    log->txn = NULL; /* LMDB has aborted it */
    pd_log_abort(log);
    if (full)
        return pd_error_set(error, PD_EFULL, "LOG_FULL", "no space left on the disk of '%s'",
                            log->path);
    return pd_log_failed(log, rc, "commit", error);
}

/* Nothing written to a file that was removed, or renamed over, is there at the next start: no ack
 * may say so. */
static void check_named(const struct pd_log *log)
{
    struct stat file;
    int fd;
    if (mdb_env_get_fd(log->env, &fd) == 0 && fstat(fd, &file) == 0 && file.st_nlink == 0)
        pd_log_die(log, "commit", "data.mdb was removed, or another file took its name");
}

int pd_log_commit(struct pd_log *log, struct pd_error *error)
{
    PD_CHECK(log->txn);
    if (log->next_position != log->committed_position) {
        uint64_t next = log->next_position;
        int rc = pd_log_put_sealed(log, PD_DB_META, pd_log_key_text("next"), &next, sizeof next, 0,
                                   error);
        if (rc) {
            pd_log_abort(log);
            return rc;
        }
    }
    uint64_t used = pd_log_count_bytes(log, log->txn);
    (void)pd_log_look(log, log->written_bytes);
    int rc = mdb_txn_commit(log->txn);
    if (rc)
        return commit_failed(log, rc, error);
    check_named(log);
    log->txn = NULL;
    log->written_bytes = 0;
    log->committed_position = log->next_position;
    atomic_store_explicit(&log->used_bytes, used, memory_order_relaxed);
    return 0;
}

uint64_t pd_log_written_bytes(const struct pd_log *log)
{
    return log->written_bytes;
}

uint64_t pd_log_used_now_bytes(struct pd_log *log)
{
    PD_CHECK(log->txn);
    return pd_log_count_bytes(log, log->txn);
}

uint64_t pd_log_next_position(const struct pd_log *log)
{
    return log->next_position;
}

int pd_log_put_sealed(struct pd_log *log, enum pd_log_db db, struct pd_log_key key,
                      const void *data, size_t size, unsigned flags, struct pd_error *error)
{
    MDB_val k = {key.size_bytes, key.bytes};
    MDB_val value = {size + PD_LOG_SEAL_BYTES, NULL};
    uint64_t seal = pd_log_seal(db, &k, data, size);
    int rc = mdb_put(log->txn, log->dbs[db], &k, &value, flags | MDB_RESERVE);
    if (rc)
        return pd_log_failed(log, rc, pd_log_db_names[db], error);
    if (size > 0) /* data may be NULL then */
        memcpy(value.mv_data, data, size);
    memcpy((uint8_t *)value.mv_data + size, &seal, sizeof seal);
    log->written_bytes += value.mv_size;
    return 0;
}

/* ---- records ---- */

int pd_log_append_record(struct pd_log *log, enum pd_record_type type, uint32_t feed,
                         const struct pd_buf *body, struct pd_error *error)
{
    struct pd_buf *buf = &log->scratch;
    pd_buf_clear(buf);
    pd_buf_put_u32(buf, type);
    pd_buf_put_u32(buf, feed);
    if (body)
        pd_buf_put(buf, body->data, body->size_bytes);
    if (buf->failed || (body && body->failed))
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory writing a record");
    int rc = pd_log_put_sealed(log, PD_DB_RECORDS, pd_log_key_position(log->next_position),
                               buf->data, buf->size_bytes, MDB_APPEND, error);
    if (!rc)
        log->next_position++;
    return rc;
}

static int open_cursor(struct pd_log *log, enum pd_log_db db, MDB_cursor **cursor,
                       struct pd_error *error)
{
    int rc = mdb_cursor_open(log->txn, log->dbs[db], cursor);
    return rc ? pd_log_failed(log, rc, "cursor", error) : 0;
}

/* Moves a cursor; PD_ENOTFOUND at the end. */
static int step(struct pd_log *log, MDB_cursor *cursor, MDB_val *key, MDB_val *value,
                MDB_cursor_op op, struct pd_error *error)
{
    int rc = mdb_cursor_get(cursor, key, value, op);
    if (rc == MDB_NOTFOUND)
        return PD_ENOTFOUND;
    return rc ? pd_log_failed(log, rc, "scan", error) : 0;
}

static int read_record(const MDB_val *key, const MDB_val *value, struct pd_record *record,
                       struct pd_error *error)
{
    struct pd_reader reader;
    int rc = pd_log_unseal(PD_DB_RECORDS, key, value, &reader, error);
    if (rc)
        return rc;
    record->position = pd_log_key_u64(key, 0);
    record->type = pd_reader_u32(&reader);
    record->feed = pd_reader_u32(&reader);
    record->body = reader.at;
    record->size_bytes = pd_reader_left(&reader);
    if (reader.failed)
        return pd_error_set(error, PD_ECORRUPT, "LOG_DAMAGED",
                            "the record at position %llu is too short",
                            (unsigned long long)record->position);
    return 0;
}

int pd_log_scan_records(struct pd_log *log, uint64_t from,
                        int (*each)(void *ctx, const struct pd_record *record), void *ctx,
                        struct pd_error *error)
{
    MDB_cursor *cursor;
    int rc = open_cursor(log, PD_DB_RECORDS, &cursor, error);
    if (rc)
        return rc;
    struct pd_log_key start = pd_log_key_position(from);
    MDB_val key = {start.size_bytes, start.bytes}, value;
    atomic_store(&log->scan_position, from);
    atomic_store(&log->scan_end, log->next_position);
    rc = step(log, cursor, &key, &value, MDB_SET_RANGE, error);
    while (rc == 0) {
        struct pd_record record;
        rc = atomic_load_explicit(&log->scan_stopped, memory_order_relaxed)
                 ? pd_error_set(error, PD_ECANCELED, "SCAN_STOPPED",
                                "reading the log was ended before its last record")
                 : read_record(&key, &value, &record, error);
        if (!rc) {
            rc = each(ctx, &record);
            atomic_store_explicit(&log->scan_position, record.position + 1, memory_order_relaxed);
        }
        if (!rc)
            rc = step(log, cursor, &key, &value, MDB_NEXT, error);
    }
    mdb_cursor_close(cursor);
    return rc == PD_ENOTFOUND ? 0 : rc;
}

bool pd_log_scanned(const struct pd_log *log, uint64_t *position, uint64_t *end)
{
    *position = atomic_load(&log->scan_position);
    *end = atomic_load(&log->scan_end);
    return *end > 0;
}

void pd_log_stop_scans(struct pd_log *log, bool stop)
{
    atomic_store(&log->scan_stopped, stop);
}

/* ---- blocks ---- */

uint64_t pd_log_value_bytes(uint64_t size)
{
    uint64_t fit = LEAF_BYTES / (size + NODE_OVERHEAD_BYTES);
    return fit >= LEAF_NODES_MIN ? 4096 / fit : (size + 16 + 4095) / 4096 * 4096;
}

uint64_t pd_log_plan_bytes(const struct pd_buf *encoded_pack)
{
    return pd_log_value_bytes(encoded_pack->size_bytes + PLAN_FACTS_BYTES + PD_LOG_SEAL_BYTES);
}

uint64_t pd_log_block_held_bytes(const struct pd_block *block)
{
    uint64_t whole = block->head.body_bytes / PD_LOG_PIECE_BYTES;
    uint64_t rest = block->head.body_bytes % PD_LOG_PIECE_BYTES;
    return whole * PD_PIECE_BYTES_MAX + (rest ? pd_log_value_bytes(rest) : 0) +
           pd_log_value_bytes(pd_block_head_size(&block->head) + PD_LOG_SEAL_BYTES) +
           pd_log_value_bytes(BLOCK_RECORD_BYTES);
}

uint64_t pd_log_block_bytes(const struct pd_block *block)
{
    return pd_log_block_held_bytes(block) + BLOCK_TREE_PAGES * 4096ull;
}

/* Where the next byte of a block's body comes from. */
struct body_source {
    const struct pd_block *block;
    uint32_t piece;
    size_t offset;
};

static void body_take(struct body_source *source, uint8_t *dst, size_t size)
{
    while (size > 0) {
        PD_CHECK(source->piece < source->block->piece_count);
        const struct pd_piece *piece = &source->block->pieces[source->piece];
        size_t part = piece->size_bytes - source->offset;
        if (part > size)
            part = size;
        if (part > 0)
            memcpy(dst, piece->data + source->offset, part);
        dst += part;
        size -= part;
        source->offset += part;
        if (source->offset == piece->size_bytes) {
            source->piece++;
            source->offset = 0;
        }
    }
}

static int put_body(struct pd_log *log, const struct pd_block *block, struct pd_error *error)
{
    struct body_source source = {.block = block};
    uint64_t left = block->head.body_bytes;
    for (uint32_t piece = 0; left > 0; piece++) {
        size_t size = left < PD_LOG_PIECE_BYTES ? (size_t)left : PD_LOG_PIECE_BYTES;
        struct pd_log_key key = pd_log_key_piece(log->next_position, piece);
        MDB_val k = {key.size_bytes, key.bytes}, value = {size, NULL};
        int rc = mdb_put(log->txn, log->dbs[PD_DB_BODIES], &k, &value, MDB_RESERVE | MDB_APPEND);
        if (rc)
            return pd_log_failed(log, rc, "body", error);
        body_take(&source, value.mv_data, size);
        log->written_bytes += size;
        left -= size;
    }
    return 0;
}

static int put_head(struct pd_log *log, const struct pd_block_head *head, struct pd_error *error)
{
    struct pd_buf *buf = &log->scratch;
    pd_buf_clear(buf);
    pd_block_head_encode(head, buf);
    if (buf->failed)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory encoding a block head");
    return pd_log_put_sealed(log, PD_DB_HEADS,
                             pd_log_key_head(head->feed, head->lane, log->next_position), buf->data,
                             buf->size_bytes, 0, error);
}

int pd_log_append_block(struct pd_log *log, struct pd_block *block, struct pd_error *error)
{
    struct pd_block_head *head = &block->head;
    uint8_t bytes[PD_LOG_BLOCK_RECORD_BYTES];
    struct pd_buf body = {.data = bytes, .capacity_bytes = sizeof bytes};
    int rc = put_body(log, block, error);
    if (!rc)
        rc = put_head(log, head, error);
    if (rc)
        return rc;
    head->position = log->next_position;
    pd_buf_put_u32(&body, head->lane);
    pd_buf_put_u32(&body, head->stream);
    pd_buf_put_u64(&body, head->first_seq);
    pd_buf_put_u32(&body, head->count);
    pd_buf_put_u32(&body, head->first_index);
    pd_buf_put_u64(&body, pd_log_block_held_bytes(block));
    return pd_log_append_record(log, PD_RECORD_BLOCK, head->feed, &body, error);
}

int pd_log_next_head(struct pd_log *log, uint32_t feed, uint32_t lane, uint64_t from,
                     uint64_t limit, struct pd_block_head *head, struct pd_error *error)
{
    MDB_cursor *cursor;
    int rc = open_cursor(log, PD_DB_HEADS, &cursor, error);
    if (rc)
        return rc;
    struct pd_log_key start = pd_log_key_head(feed, lane, from);
    MDB_val key = {start.size_bytes, start.bytes}, value;
    rc = step(log, cursor, &key, &value, MDB_SET_RANGE, error);
    uint64_t position = pd_log_key_u64(&key, 8);
    if (!rc &&
        (pd_log_key_u32(&key, 0) != feed || pd_log_key_u32(&key, 4) != lane || position >= limit))
        rc = PD_ENOTFOUND;
    struct pd_reader content = {0};
    if (!rc)
        rc = pd_log_unseal(PD_DB_HEADS, &key, &value, &content, error);
    if (!rc) {
        rc = pd_block_head_decode(head, content.at, pd_reader_left(&content));
        if (rc)
            pd_error_set(error, rc, rc == PD_ECORRUPT ? "LOG_DAMAGED" : "NO_MEMORY",
                         "the head of block %llu cannot be read", (unsigned long long)position);
    }
    if (!rc && (head->feed != feed || head->lane != lane)) {
        pd_block_head_fini(head);
        rc = pd_error_set(error, PD_ECORRUPT, "LOG_DAMAGED",
                          "the head of block %llu belongs to another lane",
                          (unsigned long long)position);
    }
    if (!rc)
        head->position = position;
    mdb_cursor_close(cursor);
    return rc;
}

/* ---- plans ---- */

uint64_t pd_plan_digest_next(uint64_t digest, const void *encoded_pack, size_t size)
{
    return XXH3_64bits_withSeed(encoded_pack, size, digest);
}

bool pd_log_plan_facts(struct pd_reader *content, struct pd_plan_facts *facts)
{
    *facts = (struct pd_plan_facts){.plan_digest = pd_reader_u64(content)};
    facts->config_digest = pd_reader_u64(content);
    uint32_t version = pd_reader_u32(content);
    facts->planner_version = version & ~PLAN_HAS_WHY;
    if (version & PLAN_HAS_WHY) {
        uint8_t way = pd_reader_u8(content);
        uint64_t filled_to = pd_reader_u64(content);
        if (way < PD_PACK_WAYS) /* else a later packd's */
            facts->why = (struct pd_pack_why){(enum pd_pack_way)way, filled_to};
    }
    return !content->failed;
}

static void put_why(struct pd_buf *buf, const struct pd_plan_facts *facts)
{
    bool known = facts->why.way != PD_PACK_UNKNOWN;
    pd_buf_put_u32(buf, facts->planner_version | (known ? PLAN_HAS_WHY : 0));
    if (!known)
        return;
    pd_buf_put_u8(buf, (uint8_t)facts->why.way);
    pd_buf_put_u64(buf, facts->why.filled_to);
}

int pd_log_put_pack(struct pd_log *log, uint32_t feed, uint64_t number,
                    const struct pd_plan_facts *facts, const struct pd_buf *encoded_pack,
                    struct pd_error *error)
{
    struct pd_buf *buf = &log->scratch;
    pd_buf_clear(buf);
    pd_buf_put_u64(buf, facts->plan_digest);
    pd_buf_put_u64(buf, facts->config_digest);
    put_why(buf, facts);
    pd_buf_put(buf, encoded_pack->data, encoded_pack->size_bytes);
    if (buf->failed)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory writing a plan");
    return pd_log_put_sealed(log, PD_DB_PLANS, pd_log_key_plan(feed, number), buf->data,
                             buf->size_bytes, 0, error);
}

/* ---- rows ---- */

static enum pd_log_db db_of(enum pd_table table)
{
    switch (table) {
    case PD_TABLE_STREAMS:
        return PD_DB_STREAMS;
    case PD_TABLE_SOURCES:
        return PD_DB_SOURCES;
    case PD_TABLE_FEEDS:
        return PD_DB_FEEDS;
    case PD_TABLE_JOBS:
        return PD_DB_JOBS;
    case PD_TABLE_VIEWS:
        return PD_DB_VIEWS;
    case PD_TABLE_TENSORS:
        break;
    }
    return PD_DB_TENSORS;
}

int pd_log_put_row(struct pd_log *log, enum pd_table table, uint32_t a, uint32_t b,
                   const struct pd_buf *row, struct pd_error *error)
{
    if (row->failed)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory writing a table row");
    return pd_log_put_sealed(log, db_of(table), pd_log_key_row(a, b), row->data, row->size_bytes, 0,
                             error);
}

int pd_log_delete_row(struct pd_log *log, enum pd_table table, uint32_t a, uint32_t b,
                      struct pd_error *error)
{
    struct pd_log_key key = pd_log_key_row(a, b);
    MDB_val k = {key.size_bytes, key.bytes};
    int rc = mdb_del(log->txn, log->dbs[db_of(table)], &k, NULL);
    if (rc && rc != MDB_NOTFOUND)
        return pd_log_failed(log, rc, "delete", error);
    log->written_bytes += key.size_bytes;
    return 0;
}

int pd_log_scan_rows(struct pd_log *log, enum pd_table table,
                     int (*each)(void *ctx, uint32_t a, uint32_t b, struct pd_reader row),
                     void *ctx, struct pd_error *error)
{
    MDB_cursor *cursor;
    enum pd_log_db db = db_of(table);
    int rc = open_cursor(log, db, &cursor, error);
    if (rc)
        return rc;
    MDB_val key, value;
    rc = step(log, cursor, &key, &value, MDB_FIRST, error);
    while (rc == 0) {
        struct pd_reader row;
        rc = pd_log_unseal(db, &key, &value, &row, error);
        if (!rc)
            rc = each(ctx, pd_log_key_u32(&key, 0), pd_log_key_u32(&key, 4), row);
        if (!rc)
            rc = step(log, cursor, &key, &value, MDB_NEXT, error);
    }
    mdb_cursor_close(cursor);
    return rc == PD_ENOTFOUND ? 0 : rc;
}

/* ---- snapshots ---- */

#define SNAPSHOT_PIECE_BYTES (PD_LOG_PIECE_BYTES - PD_LOG_SEAL_BYTES)

/* An earlier snapshot at this position may have had more pieces. */
static int drop_pieces(struct pd_log *log, uint32_t feed, uint64_t position, uint32_t piece,
                       struct pd_error *error)
{
    for (;; piece++) {
        struct pd_log_key key = pd_log_key_snapshot(feed, position, piece);
        MDB_val k = {key.size_bytes, key.bytes};
        int rc = mdb_del(log->txn, log->dbs[PD_DB_SNAPSHOTS], &k, NULL);
        if (rc)
            return rc == MDB_NOTFOUND ? 0 : pd_log_failed(log, rc, "snapshot", error);
    }
}

int pd_log_put_snapshot(struct pd_log *log, uint32_t feed, uint64_t position,
                        const struct pd_buf *data, struct pd_error *error)
{
    if (data->failed)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory writing a snapshot");
    size_t offset = 0;
    uint32_t piece = 0;
    do {
        size_t size = data->size_bytes - offset;
        if (size > SNAPSHOT_PIECE_BYTES)
            size = SNAPSHOT_PIECE_BYTES;
        int rc =
            pd_log_put_sealed(log, PD_DB_SNAPSHOTS, pd_log_key_snapshot(feed, position, piece++),
                              data->data + offset, size, 0, error);
        if (rc)
            return rc;
        offset += size;
    } while (offset < data->size_bytes);
    return drop_pieces(log, feed, position, piece, error);
}

/* The cursor on the last piece of the newest snapshot of `feed` below `before`. */
static int find_snapshot(struct pd_log *log, MDB_cursor *cursor, uint32_t feed, uint64_t before,
                         MDB_val *key, MDB_val *value, struct pd_error *error)
{
    struct pd_log_key end = pd_log_key_snapshot(feed, before, 0);
    *key = (MDB_val){end.size_bytes, end.bytes};
    int rc = step(log, cursor, key, value, MDB_SET_RANGE, error);
    if (rc && rc != PD_ENOTFOUND)
        return rc;
    rc = step(log, cursor, key, value, rc ? MDB_LAST : MDB_PREV, error);
    if (!rc && (pd_log_key_u32(key, 0) != feed || pd_log_key_u64(key, 4) >= before))
        rc = PD_ENOTFOUND;
    return rc;
}

static int read_pieces(struct pd_log *log, uint32_t feed, uint64_t position, uint32_t count,
                       struct pd_buf *data, struct pd_error *error)
{
    for (uint32_t piece = 0; piece < count; piece++) {
        struct pd_reader content;
        int rc = pd_log_get_sealed(log, log->txn, PD_DB_SNAPSHOTS,
                                   pd_log_key_snapshot(feed, position, piece), &content, error);
        if (rc == PD_ENOTFOUND)
            rc = pd_error_set(error, PD_ECORRUPT, "LOG_DAMAGED",
                              "the snapshot at position %llu lacks piece %u",
                              (unsigned long long)position, piece);
        if (rc)
            return rc;
        pd_buf_put(data, content.at, pd_reader_left(&content));
    }
    return data->failed
               ? pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory reading a snapshot")
               : 0;
}

int pd_log_get_snapshot(struct pd_log *log, uint32_t feed, uint64_t before, uint64_t *position,
                        struct pd_buf *data, struct pd_error *error)
{
    MDB_cursor *cursor;
    int rc = open_cursor(log, PD_DB_SNAPSHOTS, &cursor, error);
    if (rc)
        return rc;
    MDB_val key, value;
    rc = find_snapshot(log, cursor, feed, before, &key, &value, error);
    if (!rc) {
        *position = pd_log_key_u64(&key, 4);
        uint32_t count = pd_log_key_u32(&key, 12) + 1;
        rc = read_pieces(log, feed, *position, count, data, error);
    }
    mdb_cursor_close(cursor);
    return rc;
}
