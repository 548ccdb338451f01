/* A log looked at from outside: by packctl, beside a running daemon or without one. Nothing here
 * writes to the log, takes the daemon's lock, or replays.
 *
 * Any one thread. Each call reads one consistent state. Damage that LMDB itself finds ends the
 * process with the place named, as in the daemon. */
#ifndef PD_SERVER_LOG_INSPECT_H
#define PD_SERVER_LOG_INSPECT_H

#include "server/log_writer.h"

#define PD_LOG_TABLES 12

/* PD_EIO, PD_EMISMATCH (another format), PD_ECORRUPT, PD_ENOMEM; the text names the directory. */
int pd_log_inspect_open(const char *path, struct pd_log **log,
                        struct pd_error *error) PD_MUST_CHECK;
void pd_log_inspect_close(struct pd_log *log);

struct pd_log_table {
    const char *name;
    uint64_t entries, bytes; /* in whole pages */
};
struct pd_log_facts {
    char log_id[33];
    uint64_t incarnation, next_position;
    uint64_t used_bytes, file_bytes; /* pages in use; the file, with pages to be used again */
    struct pd_log_table tables[PD_LOG_TABLES];
};
int pd_log_inspect_facts(struct pd_log *log, struct pd_log_facts *facts,
                         struct pd_error *error) PD_MUST_CHECK;
/* Calls `each` for every record, in order. PD_ECORRUPT at the first damaged one. */
int pd_log_inspect_records(struct pd_log *log,
                           int (*each)(void *ctx, const struct pd_record *record), void *ctx,
                           struct pd_error *error) PD_MUST_CHECK;

/* What verify has looked at. `damaged` values have a digest that is not their own, blocks a sample
 * whose bytes do not match it, plans a break in their chain; the first of them in words. */
struct pd_log_findings {
    uint64_t values, blocks, samples, sample_bytes, packs, damaged;
    char first[PD_TEXT_MAX];
};
/* Every value of every table against its digest, every sample's bytes against the digest taken at
 * the door, every plan against the chain. 0 also where damage was found. */
int pd_log_inspect_verify(struct pd_log *log, struct pd_log_findings *findings,
                          struct pd_error *error) PD_MUST_CHECK;
/* A consistent copy, without unused pages, into a new or empty directory; the daemon may go on
 * meanwhile. PD_EIO, PD_EFULL. */
int pd_log_inspect_copy(struct pd_log *log, const char *to, struct pd_error *error) PD_MUST_CHECK;

/* "BLOCK", "COMMIT", ...; "?" for an unknown one. */
const char *pd_record_type_name(enum pd_record_type type);

#endif
