/* The log's trimming: deletes what nothing needs any more, in slices that fit a transaction.
 *
 * Place: called by the sequencer only, on its thread, inside begin .. commit; which packs, blocks
 * and records are no longer needed is the sequencer's word. LMDB gives the pages to later
 * transactions once no reader looks at them. Invariant: each call goes on where the one before it
 * stopped, also after a restart, because it looks for the lowest key that is there. It moves
 * nothing and reads no body. */
#include "server/log_internal.h"

#include "base/check.h"

/* A deleted key costs about so much writing: leaves and branches are copied. */
#define KEY_COST_BYTES 128u

static void spend(struct pd_log *log, uint64_t *budget, uint64_t bytes)
{
    *budget -= bytes < *budget ? bytes : *budget;
    log->written_bytes += KEY_COST_BYTES;
}

static int open_cursor(struct pd_log *log, enum pd_log_db db, MDB_cursor **cursor,
                       struct pd_error *error)
{
    int rc = mdb_cursor_open(log->txn, log->dbs[db], cursor);
    return rc ? pd_log_failed(log, rc, "trim", error) : 0;
}

/* The first key at or behind `start`. PD_ENOTFOUND: none. */
static int seek(struct pd_log *log, MDB_cursor *cursor, struct pd_log_key start, MDB_val *key,
                MDB_val *value, struct pd_error *error)
{
    *key = (MDB_val){start.size_bytes, start.bytes};
    int rc = mdb_cursor_get(cursor, key, value, MDB_SET_RANGE);
    if (rc == MDB_NOTFOUND)
        return PD_ENOTFOUND;
    return rc ? pd_log_failed(log, rc, "trim", error) : 0;
}

int pd_log_put_lowest_pack(struct pd_log *log, uint32_t feed, uint64_t pack, struct pd_error *error)
{
    return pd_log_put_sealed(log, PD_DB_META, pd_log_key_lowest(feed), &pack, sizeof pack, 0,
                             error);
}

static int cursor_del(struct pd_log *log, MDB_cursor *cursor, struct pd_error *error)
{
    int rc = mdb_cursor_del(cursor, 0);
    return rc ? pd_log_failed(log, rc, "trim", error) : 0;
}

/* Ends a call: "none left" is success. */
static int finish(MDB_cursor *cursor, int rc)
{
    mdb_cursor_close(cursor);
    return rc == PD_ENOTFOUND ? 0 : rc;
}

int pd_log_plans_bytes(struct pd_log *log, uint32_t feed, uint64_t *bytes, struct pd_error *error)
{
    MDB_cursor *cursor;
    MDB_val key, value;
    *bytes = 0;
    int rc = open_cursor(log, PD_DB_PLANS, &cursor, error);
    if (rc)
        return rc;
    rc = seek(log, cursor, pd_log_key_plan(feed, 0), &key, &value, error);
    while (rc == 0 && pd_log_key_u32(&key, 0) == feed) {
        *bytes += pd_log_value_bytes(value.mv_size);
        rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
        rc = rc == MDB_NOTFOUND ? PD_ENOTFOUND : (rc ? pd_log_failed(log, rc, "plans", error) : 0);
    }
    return finish(cursor, rc);
}

int pd_log_trim_plans(struct pd_log *log, uint32_t feed, uint64_t below, uint64_t *budget,
                      uint64_t *freed, struct pd_error *error)
{
    MDB_cursor *cursor;
    int rc = open_cursor(log, PD_DB_PLANS, &cursor, error);
    if (rc)
        return rc;
    while (rc == 0) {
        MDB_val key, value;
        rc = *budget > 0 ? seek(log, cursor, pd_log_key_plan(feed, 0), &key, &value, error)
                         : PD_EAGAIN;
        if (!rc && (pd_log_key_u32(&key, 0) != feed || pd_log_key_u64(&key, 4) >= below))
            rc = PD_ENOTFOUND;
        if (rc)
            break;
        spend(log, budget, value.mv_size + KEY_COST_BYTES);
        *freed += pd_log_value_bytes(value.mv_size);
        rc = cursor_del(log, cursor, error);
    }
    return finish(cursor, rc);
}

static int delete_body(struct pd_log *log, uint64_t position, uint64_t *budget,
                       struct pd_error *error)
{
    MDB_cursor *cursor;
    int rc = open_cursor(log, PD_DB_BODIES, &cursor, error);
    if (rc)
        return rc;
    while (rc == 0) {
        MDB_val key, value;
        rc = seek(log, cursor, pd_log_key_piece(position, 0), &key, &value, error);
        if (!rc && pd_log_key_u64(&key, 0) != position)
            rc = PD_ENOTFOUND;
        if (rc)
            break;
        spend(log, budget, value.mv_size + KEY_COST_BYTES);
        rc = cursor_del(log, cursor, error);
    }
    return finish(cursor, rc);
}

int pd_log_block_facts(const struct pd_record *record, struct pd_log_block_facts *facts)
{
    struct pd_reader body = pd_reader_of(record->body, record->size_bytes);
    *facts = (struct pd_log_block_facts){.position = record->position, .feed = record->feed};
    facts->lane = pd_reader_u32(&body);
    facts->stream = pd_reader_u32(&body);
    (void)pd_reader_u64(&body); /* first seq */
    facts->count = pd_reader_u32(&body);
    facts->first_index = pd_reader_u32(&body);
    facts->held_bytes = pd_reader_u64(&body);
    return record->type == PD_RECORD_BLOCK && pd_reader_done(&body) ? 0 : PD_ECORRUPT;
}

/* Of the block at `position`; PD_ENOTFOUND, PD_ECORRUPT. */
static int read_facts(struct pd_log *log, uint64_t position, struct pd_log_block_facts *facts)
{
    struct pd_reader content;
    int rc = pd_log_get_sealed(log, log->txn, PD_DB_RECORDS, pd_log_key_position(position),
                               &content, NULL);
    if (rc)
        return rc;
    struct pd_record record = {.position = position};
    record.type = pd_reader_u32(&content);
    record.feed = pd_reader_u32(&content);
    record.body = content.at;
    record.size_bytes = pd_reader_left(&content);
    return pd_log_block_facts(&record, facts);
}

static int delete_record(struct pd_log *log, uint64_t position, struct pd_error *error)
{
    struct pd_log_key key = pd_log_key_position(position);
    MDB_val k = {key.size_bytes, key.bytes};
    int rc = mdb_del(log->txn, log->dbs[PD_DB_RECORDS], &k, NULL);
    return rc && rc != MDB_NOTFOUND ? pd_log_failed(log, rc, "trim", error) : 0;
}

int pd_log_trim_lane(struct pd_log *log, uint32_t feed, uint32_t lane, uint64_t below,
                     uint64_t *budget,
                     void (*freed)(void *ctx, const struct pd_log_block_facts *facts), void *ctx,
                     struct pd_error *error)
{
    MDB_cursor *cursor;
    struct pd_log_block_facts facts;
    int rc = open_cursor(log, PD_DB_HEADS, &cursor, error);
    if (rc)
        return rc;
    while (rc == 0) {
        MDB_val key, value;
        rc = *budget > 0 ? seek(log, cursor, pd_log_key_head(feed, lane, 0), &key, &value, error)
                         : PD_EAGAIN;
        uint64_t position = rc ? 0 : pd_log_key_u64(&key, 8);
        if (!rc && (pd_log_key_u32(&key, 0) != feed || pd_log_key_u32(&key, 4) != lane ||
                    position >= below))
            rc = PD_ENOTFOUND;
        if (rc)
            break;
        spend(log, budget, value.mv_size + KEY_COST_BYTES);
        rc = cursor_del(log, cursor, error);
        if (!rc)
            rc = delete_body(log, position, budget, error);
        if (!rc && read_facts(log, position, &facts) == 0)
            freed(ctx, &facts);
        if (!rc)
            rc = delete_record(log, position, error);
    }
    return finish(cursor, rc);
}

/* Whether a record may go by itself: blocks go with their heads. */
static int is_loose(const MDB_val *key, const MDB_val *value, uint32_t feed, bool *loose,
                    struct pd_error *error)
{
    struct pd_reader reader;
    int rc = pd_log_unseal(PD_DB_RECORDS, key, value, &reader, error);
    if (rc)
        return rc;
    uint32_t type = pd_reader_u32(&reader), of = pd_reader_u32(&reader);
    *loose = !reader.failed && type != PD_RECORD_BLOCK && of == feed;
    return 0;
}

int pd_log_trim_records(struct pd_log *log, uint32_t feed, uint64_t *from, uint64_t below,
                        uint64_t *budget, struct pd_error *error)
{
    MDB_cursor *cursor;
    int rc = open_cursor(log, PD_DB_RECORDS, &cursor, error);
    if (rc)
        return rc;
    while (rc == 0) {
        MDB_val key, value;
        bool loose = false;
        rc = *budget > 0 ? seek(log, cursor, pd_log_key_position(*from), &key, &value, error)
                         : PD_EAGAIN;
        if (!rc && pd_log_key_u64(&key, 0) >= below)
            rc = PD_ENOTFOUND;
        if (!rc)
            rc = is_loose(&key, &value, feed, &loose, error);
        if (rc)
            break;
        *from = pd_log_key_u64(&key, 0) + 1;
        *budget -= KEY_COST_BYTES < *budget ? KEY_COST_BYTES : *budget;
        if (loose) {
            log->written_bytes += KEY_COST_BYTES;
            rc = cursor_del(log, cursor, error);
        }
    }
    return finish(cursor, rc);
}

int pd_log_delete_snapshot(struct pd_log *log, uint32_t feed, uint64_t position,
                           struct pd_error *error)
{
    MDB_cursor *cursor;
    int rc = open_cursor(log, PD_DB_SNAPSHOTS, &cursor, error);
    if (rc)
        return rc;
    while (rc == 0) {
        MDB_val key, value;
        rc = seek(log, cursor, pd_log_key_snapshot(feed, position, 0), &key, &value, error);
        if (!rc && (pd_log_key_u32(&key, 0) != feed || pd_log_key_u64(&key, 4) != position))
            rc = PD_ENOTFOUND;
        if (rc)
            break;
        log->written_bytes += KEY_COST_BYTES;
        rc = cursor_del(log, cursor, error);
    }
    return finish(cursor, rc);
}

int pd_log_scan_snapshots(struct pd_log *log, uint32_t feed,
                          int (*each)(void *ctx, uint64_t position, struct pd_reader start),
                          void *ctx, struct pd_error *error)
{
    MDB_cursor *cursor;
    int rc = open_cursor(log, PD_DB_SNAPSHOTS, &cursor, error);
    if (rc)
        return rc;
    uint64_t position = 0;
    while (rc == 0) {
        MDB_val key, value;
        struct pd_reader start = {0};
        rc = seek(log, cursor, pd_log_key_snapshot(feed, position, 0), &key, &value, error);
        if (!rc && pd_log_key_u32(&key, 0) != feed)
            rc = PD_ENOTFOUND;
        if (rc)
            break;
        position = pd_log_key_u64(&key, 4);
        if (pd_log_unseal(PD_DB_SNAPSHOTS, &key, &value, &start, NULL) != 0)
            start = (struct pd_reader){0};
        rc = each(ctx, position++, start);
    }
    return finish(cursor, rc);
}
