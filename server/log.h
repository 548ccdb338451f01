/* The ordered log: one LMDB environment, one writer, many short readers.
 *
 *   records   position -> type, body       the truth, in order; each record means something alone
 *   heads     (feed, lane, position)       a block's head, where the planner reads lanes from
 *   bodies    (position, piece)            <= 1 MiB each
 *   plans     (feed, pack)                 an encoded pd_pack
 *   streams, sources, feeds, jobs, views, tensors, snapshots   caches of the fold over the records
 *   meta      the random log_id, format, incarnation, next position
 *
 * Writing functions: sequencer thread only, inside begin .. commit. Reading functions with a
 * pd_log_reader: any one thread at a time per reader; a reader's transaction must be short (it
 * keeps pages from being reused). Keys are big-endian, values little-endian with a digest where
 * damage could otherwise pass unseen. */
#ifndef PD_SERVER_LOG_H
#define PD_SERVER_LOG_H

#include "packer/check.h"
#include "packer/layout.h"
#include "packer/planner.h"
#include "server/block.h"
#include "server/config.h"

struct pd_log;
struct pd_log_reader;

struct pd_log_options {
    const char *path;   /* directory, made when missing */
    uint64_t max_bytes; /* packd's own limit; the map is address space and larger */
    enum pd_durability durability;
};

/* Opens or creates the log and takes the directory's lock. PD_EEXIST: another daemon holds it
 * (the text names its pid); PD_EIO, PD_EFULL NO_SPACE: the path and the system's reason;
 * PD_EMISMATCH: made by another format version; PD_ECORRUPT: damaged, with the place,
 * or LOG_MISSING: a directory that held a log has no data.mdb. */
int pd_log_open(const struct pd_log_options *options, struct pd_log **log,
                struct pd_error *error) PD_MUST_CHECK;
void pd_log_close(struct pd_log *log);
/* 32 hex digits, kept for the log's life; the number of times it has been opened for writing. */
const char *pd_log_id(const struct pd_log *log);
uint64_t pd_log_incarnation(const struct pd_log *log);
/* Bytes in used pages, as counted after the last commit. Any thread. */
uint64_t pd_log_used_bytes(const struct pd_log *log);

/* Most bytes the log may use now: max_bytes, or less where the disk of the log cannot hold that
 * (log_space.c). Any thread. */
uint64_t pd_log_limit_bytes(const struct pd_log *log);
/* Whether it is the disk that limits the log. Any thread. */
bool pd_log_limited(const struct pd_log *log);
/* What an operator does for more room, as the end of a text: "raise log.max_bytes" or more disk. */
const char *pd_log_advice(const struct pd_log *log);

/* How far the pass over the records that runs, or ran last, has come: the number of the record it
 * is at, and of the last one. False: there was none yet. Any thread. */
bool pd_log_scanned(const struct pd_log *log, uint64_t *position, uint64_t *end);
/* While `stop` holds, every pass over the records ends at its next one with PD_ECANCELED: for a
 * start that is to end early. Any thread. */
void pd_log_stop_scans(struct pd_log *log, bool stop);

/* ---- reading: assemble, explain, status ---- */

/* The number that reading functions translate `feed`, a feed's index in the configuration, to. With
 * DeleteFeed it becomes another one before that is committed; what was read meanwhile may be of
 * either. Any thread. */
uint32_t pd_log_feed_number(struct pd_log *log, uint32_t feed);

int pd_log_reader_new(struct pd_log *log, struct pd_log_reader **reader,
                      struct pd_error *error) PD_MUST_CHECK;
void pd_log_reader_free(struct pd_log_reader *reader);
/* Starts a short read transaction over the newest commit / ends it. What the functions below
 * return is borrowed until end. */
int pd_log_reader_begin(struct pd_log_reader *reader) PD_MUST_CHECK;
void pd_log_reader_end(struct pd_log_reader *reader);
/* A planned pack, decoded into *pack (cleared first). PD_ENOTFOUND: not planned yet, or trimmed.
 * PD_ECORRUPT: damaged, or not what the chain of plan digests says. PD_ENOMEM. */
int pd_log_read_pack(struct pd_log_reader *reader, uint32_t feed, uint64_t number,
                     struct pd_pack *pack) PD_MUST_CHECK;
/* The lowest pack of the feed that has not been trimmed: the log's own word, whatever packs can be
 * read. PD_ECORRUPT. */
int pd_log_lowest_pack(struct pd_log_reader *reader, uint32_t feed, uint64_t *number) PD_MUST_CHECK;
/* The head of a block, decoded and kept by the reader until end (a small cache; repeated calls
 * for one block are cheap). */
int pd_log_read_head(struct pd_log_reader *reader, uint32_t feed, uint64_t block,
                     const struct pd_block_head **head) PD_MUST_CHECK;
/* Copies `size` bytes at `offset` of a block's body to dst: across pieces, each byte once.
 * PD_ECORRUPT where a piece is missing or short. */
int pd_log_read_body(struct pd_log_reader *reader, uint64_t block, uint64_t offset, size_t size,
                     void *dst) PD_MUST_CHECK;
/* What held when pack `number` was planned, for the header of batches: the chain over the plans
 * 0 .. number, the digest of the feed's configuration and the planner's version in force. For
 * people: what closed the pack. Errors as pd_log_read_pack. */
struct pd_plan_facts {
    uint64_t plan_digest, config_digest;
    uint32_t planner_version; /* below 2^31 */
    struct pd_pack_why why;
};
int pd_log_read_plan_facts(struct pd_log_reader *reader, uint32_t feed, uint64_t number,
                           struct pd_plan_facts *facts) PD_MUST_CHECK;
/* The names behind the numbers in plans and heads, for the sample table; source 0 is "".
 * PD_ENOTFOUND, PD_ECORRUPT. */
int pd_log_read_stream_name(struct pd_log_reader *reader, uint32_t feed, uint32_t stream,
                            char name[PD_NAME_MAX + 1]) PD_MUST_CHECK;
int pd_log_read_source_name(struct pd_log_reader *reader, uint32_t feed, uint32_t source,
                            char name[PD_NAME_MAX + 1]) PD_MUST_CHECK;
/* The declaration of a feed's tensor as it was at its first use, for ever. PD_ENOTFOUND: the feed
 * has no such number; PD_ECORRUPT. */
int pd_log_read_tensor(struct pd_log_reader *reader, uint32_t feed, uint32_t number,
                       struct pd_tensor_spec *spec) PD_MUST_CHECK;
/* Who finds the digest of the door again in tokens and tensors of which a whole column is copied:
 * the call that copies it, or, later, whoever called, over the bytes where they then lie. */
enum pd_verify { PD_VERIFY_COPIES, PD_VERIFY_LATER };
/* Fills *bodies so that the layout reads this feed's samples, each column of a sample verified
 * against the digest taken at the door (whole ones as `verify` says, labels always over the bytes
 * just copied; parts and pruned samples by re-reading the whole sample). PD_ECORRUPT with the
 * sample named in *error when one does not match. */
void pd_log_bodies(struct pd_log_reader *reader, uint32_t feed, enum pd_verify verify,
                   struct pd_bodies *bodies, struct pd_error *error);
/* The same for the check: spans and numbers of elements of whole samples, as pushed. */
void pd_log_check_heads(struct pd_log_reader *reader, uint32_t feed, struct pd_check_heads *heads,
                        struct pd_error *error);

#endif
