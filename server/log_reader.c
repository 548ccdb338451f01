/* The log's reading side: plans, heads and bodies for those who build batches or explain them.
 *
 * Place: assemble and rpc threads, each with a reader of its own; a reader's transaction lasts as
 * long as one batch. Heads are read in place from the map (LMDB keeps a transaction's pages as they
 * are), so a reader holds little memory. Bytes of samples leave through log_bodies.c. It
 * never writes. */
#include "server/log_internal.h"

#include "base/check.h"
#include "base/digest.h"

#include <stdio.h>
#include <stdlib.h>

struct cached_head {
    uint64_t block;
    struct pd_block_head *head; /* NULL: the place is free */
    MDB_val piece;              /* of the body, the one found last; size 0: none */
    uint64_t piece_number;
};

struct pd_log_reader {
    struct pd_log *log;
    MDB_txn *txn;
    bool active;
    struct cached_head *heads; /* open addressing, capacity a power of two */
    uint32_t head_count, head_capacity;
    struct pd_log_segment segment;
};

int pd_log_reader_new(struct pd_log *log, struct pd_log_reader **out, struct pd_error *error)
{
    struct pd_log_reader *reader = calloc(1, sizeof *reader);
    if (!reader)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory making a reader");
    reader->log = log;
    int rc = mdb_txn_begin(log->env, NULL, MDB_RDONLY, &reader->txn);
    if (rc) {
        free(reader);
        return pd_log_failed(log, rc, "reader", error);
    }
    mdb_txn_reset(reader->txn);
    *out = reader;
    return 0;
}

void pd_log_reader_free(struct pd_log_reader *reader)
{
    if (!reader)
        return;
    pd_log_reader_end(reader);
    mdb_txn_abort(reader->txn);
    pd_log_segment_fini(&reader->segment);
    free(reader->heads);
    free(reader);
}

int pd_log_reader_begin(struct pd_log_reader *reader)
{
    PD_CHECK(!reader->active);
    int rc = mdb_txn_renew(reader->txn);
    if (rc)
        return pd_log_failed(reader->log, rc, "renew", NULL);
    reader->active = true;
    return 0;
}

void pd_log_reader_end(struct pd_log_reader *reader)
{
    if (!reader->active)
        return;
    for (uint32_t i = 0; i < reader->head_capacity; i++) {
        if (!reader->heads[i].head)
            continue;
        pd_block_head_fini(reader->heads[i].head);
        free(reader->heads[i].head);
        reader->heads[i].head = NULL;
    }
    reader->head_count = 0;
    reader->segment.known = false;
    mdb_txn_reset(reader->txn);
    reader->active = false;
}

/* ---- plans and names ---- */

static int read_plan(struct pd_log_reader *reader, uint32_t feed, uint64_t number,
                     struct pd_plan_facts *facts, struct pd_reader *content)
{
    PD_CHECK(reader->active);
    struct pd_log_key key = pd_log_key_plan(pd_log_feed_number(reader->log, feed), number);
    int rc = pd_log_get_sealed(reader->log, reader->txn, PD_DB_PLANS, key, content, NULL);
    if (rc)
        return rc;
    return pd_log_plan_facts(content, facts) ? 0 : PD_ECORRUPT;
}

/* Whether the pack continues the digest chain of the one before. A pack before it that is trimmed,
 * or damaged itself, cannot tell. */
static bool continues(struct pd_log_reader *reader, uint32_t feed, uint64_t number,
                      uint64_t plan_digest, const void *encoded, size_t size)
{
    struct pd_plan_facts before = {0};
    struct pd_reader content;
    if (number > 0 && read_plan(reader, feed, number - 1, &before, &content) != 0)
        return true;
    return pd_plan_digest_next(before.plan_digest, encoded, size) == plan_digest;
}

int pd_log_read_pack(struct pd_log_reader *reader, uint32_t feed, uint64_t number,
                     struct pd_pack *pack)
{
    struct pd_plan_facts facts;
    struct pd_reader content;
    pd_pack_clear(pack);
    int rc = read_plan(reader, feed, number, &facts, &content);
    if (rc)
        return rc;
    const void *encoded = content.at;
    size_t size = pd_reader_left(&content);
    rc = pd_pack_decode(pack, encoded, size);
    if (!rc && (pack->number != number ||
                !continues(reader, feed, number, facts.plan_digest, encoded, size)))
        rc = PD_ECORRUPT;
    return rc;
}

int pd_log_lowest_pack(struct pd_log_reader *reader, uint32_t feed, uint64_t *number)
{
    PD_CHECK(reader->active);
    struct pd_reader content;
    struct pd_log_key key = pd_log_key_lowest(pd_log_feed_number(reader->log, feed));
    *number = 0;
    int rc = pd_log_get_sealed(reader->log, reader->txn, PD_DB_META, key, &content, NULL);
    if (rc)
        return rc == PD_ENOTFOUND ? 0 : rc; /* nothing has been trimmed */
    *number = pd_reader_u64(&content);
    return content.failed ? PD_ECORRUPT : 0;
}

int pd_log_read_plan_facts(struct pd_log_reader *reader, uint32_t feed, uint64_t number,
                           struct pd_plan_facts *facts)
{
    struct pd_reader content;
    return read_plan(reader, feed, number, facts, &content);
}

/* Rows of streams and sources begin with the name. */
static int read_name(struct pd_log_reader *reader, enum pd_log_db db, struct pd_log_key key,
                     char name[PD_NAME_MAX + 1])
{
    PD_CHECK(reader->active);
    struct pd_reader content;
    int rc = pd_log_get_sealed(reader->log, reader->txn, db, key, &content, NULL);
    if (rc)
        return rc;
    size_t size;
    const char *text = pd_reader_string(&content, &size);
    if (!text || size > PD_NAME_MAX)
        return PD_ECORRUPT;
    memcpy(name, text, size);
    name[size] = 0;
    return 0;
}

int pd_log_read_stream_name(struct pd_log_reader *reader, uint32_t feed, uint32_t stream,
                            char name[PD_NAME_MAX + 1])
{
    (void)feed; /* stream numbers are the log's */
    return read_name(reader, PD_DB_STREAMS, pd_log_key_row(stream, 0), name);
}

int pd_log_read_source_name(struct pd_log_reader *reader, uint32_t feed, uint32_t source,
                            char name[PD_NAME_MAX + 1])
{
    name[0] = 0;
    if (source == 0)
        return 0;
    return read_name(reader, PD_DB_SOURCES,
                     pd_log_key_row(pd_log_feed_number(reader->log, feed), source), name);
}

int pd_log_read_tensor(struct pd_log_reader *reader, uint32_t feed, uint32_t number,
                       struct pd_tensor_spec *spec)
{
    PD_CHECK(reader->active);
    struct pd_reader content;
    int rc = pd_log_get_sealed(reader->log, reader->txn, PD_DB_TENSORS,
                               pd_log_key_row(pd_log_feed_number(reader->log, feed), number),
                               &content, NULL);
    if (rc)
        return rc;
    const uint8_t *bytes = pd_reader_bytes(&content, sizeof *spec);
    if (!bytes || !pd_reader_done(&content))
        return PD_ECORRUPT;
    memcpy(spec, bytes, sizeof *spec);
    return pd_tensor_spec_fault(spec) || spec->number != number ? PD_ECORRUPT : 0;
}

/* ---- heads ---- */

static uint32_t slot_of(uint64_t block, uint32_t capacity)
{
    return (uint32_t)(block * 0x9e3779b97f4a7c15ull >> 32) & (capacity - 1);
}

static struct cached_head *find_slot(struct cached_head *heads, uint32_t capacity, uint64_t block)
{
    uint32_t at = slot_of(block, capacity);
    while (heads[at].head && heads[at].block != block)
        at = (at + 1) & (capacity - 1);
    return &heads[at];
}

static int grow_cache(struct pd_log_reader *reader)
{
    if (reader->head_count * 2 < reader->head_capacity)
        return 0;
    uint32_t capacity = reader->head_capacity ? reader->head_capacity * 2 : 64;
    struct cached_head *heads = calloc(capacity, sizeof *heads);
    if (!heads)
        return PD_ENOMEM;
    for (uint32_t i = 0; i < reader->head_capacity; i++)
        if (reader->heads[i].head)
            *find_slot(heads, capacity, reader->heads[i].block) = reader->heads[i];
    free(reader->heads);
    reader->heads = heads;
    reader->head_capacity = capacity;
    return 0;
}

/* The record of a block says in which lane its head lies. */
static int read_lane(struct pd_log_reader *reader, uint32_t number, uint64_t block, uint32_t *lane)
{
    struct pd_reader content;
    int rc = pd_log_get_sealed(reader->log, reader->txn, PD_DB_RECORDS, pd_log_key_position(block),
                               &content, NULL);
    if (rc)
        return rc;
    uint32_t type = pd_reader_u32(&content), feed = pd_reader_u32(&content);
    *lane = pd_reader_u32(&content);
    if (content.failed || type != PD_RECORD_BLOCK)
        return PD_ECORRUPT;
    return feed == number ? 0 : PD_ENOTFOUND;
}

static int map_head(struct pd_log_reader *reader, uint32_t feed, uint64_t block,
                    struct pd_block_head *head)
{
    uint32_t number = pd_log_feed_number(reader->log, feed), lane;
    int rc = read_lane(reader, number, block, &lane);
    struct pd_reader content;
    if (!rc)
        rc = pd_log_get_sealed(reader->log, reader->txn, PD_DB_HEADS,
                               pd_log_key_head(number, lane, block), &content, NULL);
    if (!rc)
        rc = pd_block_head_map(head, content.at, pd_reader_left(&content));
    if (!rc && (head->feed != number || head->lane != lane)) {
        pd_block_head_fini(head);
        rc = PD_ECORRUPT;
    }
    if (!rc)
        head->position = block;
    return rc;
}

int pd_log_read_head(struct pd_log_reader *reader, uint32_t feed, uint64_t block,
                     const struct pd_block_head **out)
{
    PD_CHECK(reader->active);
    int rc = grow_cache(reader);
    if (rc)
        return rc;
    struct cached_head *slot = find_slot(reader->heads, reader->head_capacity, block);
    if (!slot->head) {
        struct pd_block_head *head = calloc(1, sizeof *head);
        if (!head)
            return PD_ENOMEM;
        rc = map_head(reader, feed, block, head);
        if (rc) {
            free(head);
            return rc;
        }
        *slot = (struct cached_head){.block = block, .head = head};
        reader->head_count++;
    }
    *out = slot->head;
    return slot->head->feed == pd_log_feed_number(reader->log, feed) ? 0 : PD_ENOTFOUND;
}

/* ---- bodies ---- */

/* A piece of a body in place; remembered beside the block's head, where that was read. */
static int find_piece(struct pd_log_reader *reader, uint64_t block, uint64_t number, MDB_val *piece)
{
    struct cached_head *slot =
        reader->head_count > 0 ? find_slot(reader->heads, reader->head_capacity, block) : NULL;
    if (slot && slot->head && slot->piece.mv_size > 0 && slot->piece_number == number) {
        *piece = slot->piece;
        return 0;
    }
    struct pd_log_key key = pd_log_key_piece(block, (uint32_t)number);
    MDB_val k = {key.size_bytes, key.bytes};
    int rc = mdb_get(reader->txn, reader->log->dbs[PD_DB_BODIES], &k, piece);
    if (rc == 0 && slot && slot->head) {
        slot->piece = *piece;
        slot->piece_number = number;
    }
    return rc;
}

/* The stored bytes at `offset` in place, as far as one piece goes. */
static int body_at(struct pd_log_reader *reader, uint64_t block, uint64_t offset,
                   const uint8_t **data, size_t *size)
{
    uint64_t piece = offset / PD_LOG_PIECE_BYTES;
    size_t within = (size_t)(offset % PD_LOG_PIECE_BYTES);
    if (piece > UINT32_MAX)
        return PD_ECORRUPT;
    MDB_val value;
    int rc = find_piece(reader, block, piece, &value);
    if (rc == MDB_NOTFOUND ||
        (rc == 0 && (value.mv_size <= within || value.mv_size > PD_LOG_PIECE_BYTES)))
        return PD_ECORRUPT;
    if (rc)
        return pd_log_failed(reader->log, rc, "body", NULL);
    *data = (const uint8_t *)value.mv_data + within;
    *size = value.mv_size - within;
    return 0;
}

/* Walks `size` body bytes: copies them to dst where that is given, adds them to the digest where
 * that is. */
static int walk_body(struct pd_log_reader *reader, uint64_t block, uint64_t offset, uint64_t size,
                     uint8_t *dst, struct pd_digest_stream *digest)
{
    while (size > 0) {
        const uint8_t *data = NULL;
        size_t part = 0;
        int rc = body_at(reader, block, offset, &data, &part);
        if (rc)
            return rc;
        if (part > size)
            part = (size_t)size;
        if (dst) {
            memcpy(dst, data, part);
            dst += part;
        }
        if (digest)
            pd_digest_add(digest, data, part);
        offset += part;
        size -= part;
    }
    return 0;
}

int pd_log_read_body(struct pd_log_reader *reader, uint64_t block, uint64_t offset, size_t size,
                     void *dst)
{
    PD_CHECK(reader->active);
    return walk_body(reader, block, offset, size, dst, NULL);
}

int pd_log_digest_body(struct pd_log_reader *reader, uint64_t block, uint64_t offset, uint64_t size,
                       uint64_t *digest)
{
    struct pd_digest_stream stream;
    pd_digest_begin(&stream);
    int rc = walk_body(reader, block, offset, size, NULL, &stream);
    *digest = pd_digest_end(&stream);
    return rc;
}

struct pd_log_segment *pd_log_reader_segment(struct pd_log_reader *reader)
{
    return &reader->segment;
}
