/* What the parts of the log share: log.c (life), log_fault.c, log_space.c, log_writer.c and
 * log_reader.c.
 * Nobody else includes this.
 *
 * Keys (big-endian): records (position), heads (feed, lane, position), bodies (position, piece),
 * plans (feed, pack), rows (a, b), snapshots (feed, position, piece), meta (text). Every value
 * but a body piece is sealed: an XXH3-64 over table, key and content stands behind it. */
#ifndef PD_SERVER_LOG_INTERNAL_H
#define PD_SERVER_LOG_INTERNAL_H

#include "packer/slice.h"
#include "server/log_writer.h"

#include <lmdb.h>
#include <stdatomic.h>

#define PD_LOG_MAGIC 0x70644c4fu
#define PD_LOG_FORMAT 1u
/* With LMDB's page header a piece fills its pages exactly. */
#define PD_LOG_PIECE_BYTES (PD_PIECE_BYTES_MAX - 16u)
#define PD_LOG_SEAL_BYTES 8u
#define PD_LOG_BLOCK_RECORD_BYTES 32u /* the body of a block's record */
#define PD_LOG_KEY_MAX 16
#define PD_LOG_EXIT_FAILED 74 /* EX_IOERR: status of a process that the log ends */

enum pd_log_db {
    PD_DB_RECORDS,
    PD_DB_HEADS,
    PD_DB_BODIES,
    PD_DB_PLANS,
    PD_DB_STREAMS,
    PD_DB_SOURCES,
    PD_DB_FEEDS,
    PD_DB_JOBS,
    PD_DB_SNAPSHOTS,
    PD_DB_META,
    PD_DB_VIEWS,
    PD_DB_TENSORS,
    PD_DB_COUNT
};
extern const char *const pd_log_db_names[PD_DB_COUNT];

#define PD_LOG_READERS_MAX 256

struct pd_log {
    uint32_t magic;
    char *path;
    uint64_t max_bytes;
    enum pd_durability durability;
    int lock_fd, slots_fd;
    MDB_env *env;
    MDB_dbi dbs[PD_DB_COUNT];
    unsigned page_bytes;
    char id[33];
    uint64_t incarnation;
    _Atomic uint64_t used_bytes;
    /* log_space.c: the limit in force; what of the file has blocks on the disk; whether the disk
     * refused more; whether it promises none; when it was asked, and an operator told. */
    _Atomic uint64_t limit_bytes;
    uint64_t backed_bytes;
    bool refused, unreserved;
    uint64_t looked_ns, said_ns;
    _Atomic uint64_t scan_position, scan_end;        /* pd_log_scanned; end 0: none yet */
    atomic_bool scan_stopped;                        /* pd_log_stop_scans */
    _Atomic uint32_t feed_numbers[PD_LOG_FEEDS_MAX]; /* number + 1; 0 = the index itself */
    /* the writer's transaction */
    MDB_txn *txn;
    uint64_t next_position, committed_position;
    uint64_t written_bytes;
    struct pd_buf scratch;
};

/* What log_bodies.c keeps in a reader: the segment asked for last, and what it carries. */
struct pd_log_segment {
    uint32_t feed;
    struct pd_error *error;
    bool known; /* the rest is about `of`, within the reader's transaction */
    struct pd_segment of;
    const struct pd_block_head *head;
    struct pd_head pushed;
    struct pd_slice slice;
    uint32_t *of_spans; /* of the tensor asked for last */
    uint32_t of_spans_capacity;
};
struct pd_log_segment *pd_log_reader_segment(struct pd_log_reader *reader);
void pd_log_segment_fini(struct pd_log_segment *segment);
/* XXH3-64 of `size` bytes of a body. Errors as pd_log_read_body. */
int pd_log_digest_body(struct pd_log_reader *reader, uint64_t block, uint64_t offset, uint64_t size,
                       uint64_t *digest);

struct pd_log_key {
    uint8_t bytes[PD_LOG_KEY_MAX];
    size_t size_bytes;
};

struct pd_log_key pd_log_key_position(uint64_t position);
struct pd_log_key pd_log_key_head(uint32_t feed, uint32_t lane, uint64_t position);
struct pd_log_key pd_log_key_piece(uint64_t position, uint32_t piece);
struct pd_log_key pd_log_key_plan(uint32_t feed, uint64_t pack);
struct pd_log_key pd_log_key_row(uint32_t a, uint32_t b);
struct pd_log_key pd_log_key_snapshot(uint32_t feed, uint64_t position, uint32_t piece);
struct pd_log_key pd_log_key_text(const char *text);
struct pd_log_key pd_log_key_lowest(uint32_t feed);
uint32_t pd_log_key_u32(const MDB_val *key, size_t offset);
uint64_t pd_log_key_u64(const MDB_val *key, size_t offset);

uint64_t pd_log_seal(enum pd_log_db db, const MDB_val *key, const void *data, size_t size);
/* Checks the seal of a stored value and sets *content to what it covers. PD_ECORRUPT names table
 * and key. */
int pd_log_unseal(enum pd_log_db db, const MDB_val *key, const MDB_val *value,
                  struct pd_reader *content, struct pd_error *error) PD_MUST_CHECK;
/* mdb_get and unseal. PD_ENOTFOUND (no text), PD_ECORRUPT; what LMDB itself finds broken ends the
 * process. */
int pd_log_get_sealed(struct pd_log *log, MDB_txn *txn, enum pd_log_db db, struct pd_log_key key,
                      struct pd_reader *content, struct pd_error *error) PD_MUST_CHECK;
/* Reads what stands before the encoding of a pack in a plan; false: it is cut short. */
bool pd_log_plan_facts(struct pd_reader *content, struct pd_plan_facts *facts) PD_MUST_CHECK;
int pd_log_put_sealed(struct pd_log *log, enum pd_log_db db, struct pd_log_key key,
                      const void *data, size_t size, unsigned flags,
                      struct pd_error *error) PD_MUST_CHECK;

/* PD_EFULL or PD_ENOMEM for what an LMDB call returned; anything else ends the process. */
int pd_log_failed(struct pd_log *log, int rc, const char *what, struct pd_error *error);
/* PD_EFULL (NO_SPACE) or PD_EIO (LOG_IO) for an errno: "what 'path': why". */
int pd_log_system_error(struct pd_error *error, const char *what, const char *path, int err);
/* The file of `dir` that LMDB's `rc` at opening is about: "/data.mdb", "/lock.mdb"; "": unknown. */
const char *pd_log_culprit(const char *dir, int rc);
/* Makes lock.mdb and takes its blocks, before LMDB opens it. PD_EFULL, PD_EIO. */
int pd_log_space_slots(struct pd_log *log, struct pd_error *error) PD_MUST_CHECK;
/* Whether data.mdb's disk, or `ulimit -f`, is known to have less room for it (log_space.c). */
bool pd_log_space_lacks(const struct pd_log *log, uint64_t room_bytes);
/* Takes the first reserve and sets the limit in force (log_space.c); at open. */
void pd_log_space_open(struct pd_log *log);
/* LMDB's own checks: ends the process as pd_log_die does. */
void pd_log_assert_failed(MDB_env *env, const char *text);
/* A page that the map promises and the file lacks would be a SIGBUS later. PD_ECORRUPT,
 * LOG_TRUNCATED. Sets page_bytes. */
int pd_log_check_file(struct pd_log *log, struct pd_error *error) PD_MUST_CHECK;
/* Faults inside a log's map, or behind it by a size that a damaged page gives, end the process with
 * file and offset (log_fault.c). */
void pd_log_watch_faults(void);
uint64_t pd_log_count_bytes(struct pd_log *log, MDB_txn *txn);

#endif
