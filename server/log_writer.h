/* The log's writing side: one transaction at a time, for the sequencer's thread alone (and the
 * start-up code, which runs before it).
 *
 *   begin ── append_block, append_record, put_pack, put_row, put_snapshot ... ──> commit | abort
 *
 * Every function returns 0 or: PD_EFULL LOG_FULL (no space: abort the transaction), PD_ENOMEM
 * (likewise), PD_ECORRUPT (a value's digest is not its own; the text names table and key). Damaged
 * LMDB pages and failing system calls do not come back: they end the process with one line that
 * names the log and the reason. Feeds are numbers of the log here, not indexes of the
 * configuration. */
#ifndef PD_SERVER_LOG_WRITER_H
#define PD_SERVER_LOG_WRITER_H

#include "base/bytes.h"
#include "server/log.h"
#include "server/log_records.h"

int pd_log_begin(struct pd_log *log, struct pd_error *error) PD_MUST_CHECK;
/* Durable (or, with PD_DURABILITY_PROCESS, in the system's hands) when it returns 0; else the
 * transaction is undone. */
int pd_log_commit(struct pd_log *log, struct pd_error *error) PD_MUST_CHECK;
void pd_log_abort(struct pd_log *log);
/* Takes what a growth by so much, and the commits after it, need from the disk, and sets the limit
 * in force (pd_log_limit_bytes); asks a disk that limits the log again after a second. When to call
 * next, on pd_clock_mono_ns; UINT64_MAX: the disk does not limit. Does not fail. */
uint64_t pd_log_look(struct pd_log *log, uint64_t growth_bytes);
/* Payload bytes written since begin; 0 = nothing was written. */
uint64_t pd_log_written_bytes(const struct pd_log *log);
/* Bytes in used pages with what this transaction has written. */
uint64_t pd_log_used_now_bytes(struct pd_log *log);
/* The position the next record or block gets. */
uint64_t pd_log_next_position(const struct pd_log *log);
/* Frees reader slots of processes that died. */
void pd_log_check_readers(struct pd_log *log);

/* Pages, in bytes, that append_block would use at most. */
uint64_t pd_log_block_bytes(const struct pd_block *block);
/* Its part of them for as long as it is kept, and that of other values: what counts against the
 * space of a feed. Estimates, a few percent off; the log as a whole is counted in pages. */
uint64_t pd_log_block_held_bytes(const struct pd_block *block);
uint64_t pd_log_plan_bytes(const struct pd_buf *encoded_pack);
uint64_t pd_log_value_bytes(uint64_t size);
/* Writes body, head and record; sets head.position. head.feed must be the log's number. */
int pd_log_append_block(struct pd_log *log, struct pd_block *block,
                        struct pd_error *error) PD_MUST_CHECK;
int pd_log_append_record(struct pd_log *log, enum pd_record_type type, uint32_t feed,
                         const struct pd_buf *body, struct pd_error *error) PD_MUST_CHECK;
/* Calls `each` for the records at `from` and behind it, in order, until it returns other than 0,
 * which is passed on. It must not write. PD_ECANCELED SCAN_STOPPED: pd_log_stop_scans. */
int pd_log_scan_records(struct pd_log *log, uint64_t from,
                        int (*each)(void *ctx, const struct pd_record *record), void *ctx,
                        struct pd_error *error) PD_MUST_CHECK;

/* The chain over plans: digest of packs 0 .. k from that of 0 .. k-1 (0 before the first) and pack
 * k's encoding. */
uint64_t pd_plan_digest_next(uint64_t digest, const void *encoded_pack, size_t size);
int pd_log_put_pack(struct pd_log *log, uint32_t feed, uint64_t number,
                    const struct pd_plan_facts *facts, const struct pd_buf *encoded_pack,
                    struct pd_error *error) PD_MUST_CHECK;

int pd_log_put_row(struct pd_log *log, enum pd_table table, uint32_t a, uint32_t b,
                   const struct pd_buf *row, struct pd_error *error) PD_MUST_CHECK;
int pd_log_delete_row(struct pd_log *log, enum pd_table table, uint32_t a, uint32_t b,
                      struct pd_error *error) PD_MUST_CHECK;
int pd_log_scan_rows(struct pd_log *log, enum pd_table table,
                     int (*each)(void *ctx, uint32_t a, uint32_t b, struct pd_reader row),
                     void *ctx, struct pd_error *error) PD_MUST_CHECK;

/* A snapshot of a feed's planner: every record below `position` is in it. */
int pd_log_put_snapshot(struct pd_log *log, uint32_t feed, uint64_t position,
                        const struct pd_buf *data, struct pd_error *error) PD_MUST_CHECK;
/* The newest snapshot below `before`, appended to *data. PD_ENOTFOUND: none. PD_ECORRUPT: it is
 * damaged, *position is set (an older one may do). */
int pd_log_get_snapshot(struct pd_log *log, uint32_t feed, uint64_t before, uint64_t *position,
                        struct pd_buf *data, struct pd_error *error) PD_MUST_CHECK;
int pd_log_delete_snapshot(struct pd_log *log, uint32_t feed, uint64_t position,
                           struct pd_error *error) PD_MUST_CHECK;
/* Calls `each` for the feed's snapshots, oldest first, with the first piece of each (empty where it
 * is damaged), until it returns other than 0, which is passed on. It must not write. */
int pd_log_scan_snapshots(struct pd_log *log, uint32_t feed,
                          int (*each)(void *ctx, uint64_t position, struct pd_reader start),
                          void *ctx, struct pd_error *error) PD_MUST_CHECK;

/* ---- trimming (log_trim.c) ----
 *
 * Each deletes until nothing is left of what it was told (0), or until *budget, in bytes, is used
 * up (PD_EAGAIN: call again in another transaction). */

/* Plans of packs below `below`; *freed grows by what they held. */
int pd_log_trim_plans(struct pd_log *log, uint32_t feed, uint64_t below, uint64_t *budget,
                      uint64_t *freed, struct pd_error *error) PD_MUST_CHECK;
/* What a block's record says, and of a block that is deleted. */
struct pd_log_block_facts {
    uint64_t position, held_bytes;
    uint32_t feed, lane, stream, count, first_index;
};
/* PD_ECORRUPT: it is no record of a block. */
int pd_log_block_facts(const struct pd_record *record,
                       struct pd_log_block_facts *facts) PD_MUST_CHECK;
/* Blocks of a lane at positions below `below`: heads, bodies and their records; `freed` is told of
 * each whose record can be read. */
int pd_log_trim_lane(struct pd_log *log, uint32_t feed, uint32_t lane, uint64_t below,
                     uint64_t *budget,
                     void (*freed)(void *ctx, const struct pd_log_block_facts *facts), void *ctx,
                     struct pd_error *error) PD_MUST_CHECK;
/* The feed's other records at *from and behind it, below `below`; *from moves on. */
int pd_log_trim_records(struct pd_log *log, uint32_t feed, uint64_t *from, uint64_t below,
                        uint64_t *budget, struct pd_error *error) PD_MUST_CHECK;

/* What the feed's plans, and one snapshot of it, hold; 0 where there is none. */
int pd_log_plans_bytes(struct pd_log *log, uint32_t feed, uint64_t *bytes,
                       struct pd_error *error) PD_MUST_CHECK;
/* Makes `pack` the lowest of the feed that readers may ask for: see pd_log_lowest_pack. */
int pd_log_put_lowest_pack(struct pd_log *log, uint32_t feed, uint64_t pack,
                           struct pd_error *error) PD_MUST_CHECK;

/* The first block of a lane at or behind `from` and below `limit`, decoded (fini it). PD_ENOTFOUND:
 * none. PD_ECORRUPT names it. */
int pd_log_next_head(struct pd_log *log, uint32_t feed, uint32_t lane, uint64_t from,
                     uint64_t limit, struct pd_block_head *head,
                     struct pd_error *error) PD_MUST_CHECK;

/* Ends the process with one line: the log, what was being done, why it failed. */
_Noreturn void pd_log_die(const struct pd_log *log, const char *what, const char *why);

/* Which number the configuration's feed `index` has in the log: reading functions translate, from
 * then on (pd_log_feed_number). */
#define PD_LOG_FEEDS_MAX 256
void pd_log_set_feed_number(struct pd_log *log, uint32_t index, uint32_t number);

#endif
