/* The daemon's configuration: YAML by schema, then PACKD_* variables, then flags. Read once at
 * start into plain structs.
 *
 * Sizes are bytes, durations nanoseconds. Main thread at start; immutable afterwards, so any thread
 * may read it. */
#ifndef PD_SERVER_CONFIG_H
#define PD_SERVER_CONFIG_H

#include "base/err.h"
#include "base/name.h"
#include "packer/layout.h"
#include "packer/planner.h"

#include <stdbool.h>
#include <stdio.h>

#define PD_LISTEN_MAX 16
#define PD_FEEDS_MAX 64
#define PD_SOURCES_MAX 16 /* of a feed: as many lanes as pd_rules holds */
#define PD_JOBS_MAX 1024  /* of a feed */
#define PD_PRINCIPALS_MAX 64
#define PD_PRINCIPAL_FEEDS_MAX 64

enum pd_durability { PD_DURABILITY_PROCESS, PD_DURABILITY_FSYNC };
enum pd_last_step { PD_LAST_STEP_PAD, PD_LAST_STEP_DROP };
enum pd_on_violation { PD_ON_VIOLATION_STOP, PD_ON_VIOLATION_SKIP_STEP };
enum pd_balance { PD_BALANCE_OFF, PD_BALANCE_COST };

/* What a principal may do; admin includes observe. */
enum pd_role {
    PD_ROLE_PRODUCE = 1, /* Push */
    PD_ROLE_READ = 2,    /* OpenJob, Fetch, Commit */
    PD_ROLE_OBSERVE = 4, /* Status, Explain */
    PD_ROLE_ADMIN = 8,   /* the rest of Admin */
};

/* One entry of `auth`: who (by token, certificate or Unix socket) may do what on which feeds. */
struct pd_principal_config {
    char name[PD_NAME_MAX + 1];
    char *token_file;               /* "": no token */
    char *certificate;              /* common or alternative name; "": none */
    bool local;                     /* whoever may open a Unix socket of ours */
    uint32_t roles;                 /* enum pd_role, ored */
    char (*feeds)[PD_NAME_MAX + 1]; /* owned */
    uint32_t feed_count;            /* 0: all */
};

struct pd_job_config {
    char name[PD_NAME_MAX + 1];
    uint32_t retain_commits;
    uint64_t retain_bytes;
    uint64_t retain_ns;
};

struct pd_source_config {
    char name[PD_NAME_MAX + 1];
    struct pd_lane_rules lane; /* as configured: passes_max 0 = no limit */
};

/* Samples of the source lose the view. */
struct pd_drop_view {
    char source[PD_NAME_MAX + 1], view[PD_NAME_MAX + 1];
};
/* Of videos of the source every n-th frame stays, n > 1. */
struct pd_keep_frames {
    char source[PD_NAME_MAX + 1];
    uint32_t every;
};

struct pd_feed_config {
    char name[PD_NAME_MAX + 1];
    struct pd_rules rules;         /* what the planner obeys; lanes come from sources or streams */
    struct pd_layout_rules layout; /* what the layout and the check obey */
    enum pd_last_step last_step;
    char (*streams)[PD_NAME_MAX + 1]; /* declared streams, owned by the config */
    uint32_t stream_count;            /* of `streams` */
    uint32_t streams_to_end; /* the feed ends when so many have; 0 = only EndFeed or `streams` */
    struct pd_source_config *sources; /* owned by the config */
    uint32_t source_count;
    struct pd_job_config *jobs; /* owned by the config */
    uint32_t job_count;
    uint64_t max_wait_ns;     /* 0 = never flush on idleness */
    uint64_t idle_release_ns; /* a job silent for so long holds nothing; 0 = never */
    uint64_t plan_ahead_bytes;
    uint32_t log_share;
    uint32_t vocab_size; /* 0 = not checked */
    uint32_t epochs;
    bool check_shifted_labels;  /* refuse labels that look shifted */
    uint32_t media_tokens[16];  /* what stands in media spans and nowhere else */
    uint32_t media_token_count; /* 0 = not checked */
    enum pd_balance balance;
    uint64_t balance_bytes;
    struct pd_drop_view *drop_views; /* owned by the config */
    uint32_t drop_views_count;
    struct pd_keep_frames *keep_frames; /* owned by the config */
    uint32_t keep_frames_count;
};

struct pd_config {
    /* Addresses: "host:port" or "unix:/path"; port 0 = any free one. Each list has its count behind
     * it. */
    char **listen;
    uint32_t listen_count;
    char **listen_admin; /* Admin is served here, and then nowhere else */
    uint32_t listen_admin_count;
    char **listen_health; /* health and reflection only, never TLS */
    uint32_t listen_health_count;
    char listen_mode[5];                      /* of Unix sockets, octal */
    char *tls_cert, *tls_key, *tls_client_ca; /* PEM files; "": none */
    bool tls_client_optional;                 /* a client without a certificate gets in */
    uint64_t tls_reload_ns;
    struct pd_principal_config *auth; /* owned */
    uint32_t auth_count;              /* 0: everybody may do everything */
    char *http;                       /* "host:port" */
    char *log_path;
    uint64_t log_max_bytes;
    enum pd_durability durability;
    uint64_t commit_bytes;
    uint64_t commit_ns;
    uint64_t memory_batches_bytes;
    uint64_t memory_ingest_bytes;
    uint64_t max_sample_bytes;        /* in force, from the next field */
    uint64_t max_sample_wanted_bytes; /* 0 = 64 MiB, or less where ingest or log carry less */
    uint32_t push_calls_max;
    uint32_t connections_max;      /* of `listen`; 0 = what the process's descriptors carry */
    uint32_t peer_connections_max; /* of one client host; 0 = half of those */
    uint64_t handshake_ns;         /* a connection that is not ready by then is closed */
    uint32_t peer_calls_max;       /* open at a time, of one client host; 0 = no limit */
    uint32_t peer_rate_max;        /* begun in a second, likewise */
    uint64_t peer_bytes;           /* unlogged, of one client host's Push calls; 0 = no limit */
    _Atomic uint64_t stall_ns;     /* the _Atomic ones change at run time: pd_config_reload */
    _Atomic uint64_t drain_ns;     /* grace period of a shutdown, default 30 s */
    char validate_backend[8];      /* "auto", "cuda", "cpu", "off" */
    _Atomic double validate_fraction;
    _Atomic double validate_cpu_share;
    enum pd_on_violation on_violation;
    uint32_t rpc_threads;         /* 0 = one per core, at most 4 */
    uint32_t assemble_threads;    /* 0 = one per core, at most 4 */
    struct pd_feed_config *feeds; /* owned */
    uint32_t feed_count;          /* >= 1 */
};

/* The defaults: one feed "default", seq_len 4096, window 1024. PD_ENOMEM; *config then needs no
 * fini. */
int pd_config_default(struct pd_config *config) PD_MUST_CHECK;
/* Replaces *config by the file's content over the defaults; on failure *config stays as it was.
 * PD_EINVAL: the text names file, line, key path, what was found and what was expected (an unknown
 * key, a wrong unit, a list where one value belongs); PD_EIO: the file cannot be read; PD_ENOMEM.
 */
int pd_config_load(struct pd_config *config, const char *path,
                   struct pd_error *error) PD_MUST_CHECK;
/* The same from memory; `name` is what error texts call it. */
int pd_config_parse(struct pd_config *config, const char *yaml, size_t size, const char *name,
                    struct pd_error *error) PD_MUST_CHECK;
/* Applies PACKD_DATA_DIR and PACKD_<KEY PATH> (PACKD_LISTEN, PACKD_LOG_MAX_BYTES, ...) from the
 * environment to the keys outside `feeds`. PD_EINVAL names the variable: a value that cannot be, or
 * a name that nearly is one of them. Other PACKD_* variables are left alone. PD_ENOMEM. */
int pd_config_environment(struct pd_config *config, struct pd_error *error) PD_MUST_CHECK;
/* Replaces all addresses. PD_ENOMEM; PD_EINVAL: none, or more than PD_LISTEN_MAX. */
int pd_config_set_listen(struct pd_config *config, char *const *addresses,
                         uint32_t count) PD_MUST_CHECK;
int pd_config_set_string(char **field, const char *value) PD_MUST_CHECK;
/* Every rule across keys, and the fields derived from several (lanes, streams_to_end, the layout's
 * copies of the planner's keys); called last, may be repeated. PD_EINVAL names the keys and both
 * values. */
int pd_config_check(struct pd_config *config, struct pd_error *error) PD_MUST_CHECK;
/* Takes over into *live, which other threads read, what may change while packd runs; tells of each
 * key whose value is another one in *fresh: `applied`, or that it needs a restart (`from` and `to`
 * are "" for keys of many values, "feeds" among them). PD_ENOMEM. */
typedef void pd_reload_fn(void *ctx, const char *key, const char *from, const char *to,
                          bool applied);
int pd_config_reload(struct pd_config *live, const struct pd_config *fresh, pd_reload_fn *tell,
                     void *ctx) PD_MUST_CHECK;
/* Whether pd_config_reload takes over a change of this key. */
bool pd_config_reloads(const char *path);
/* The effective configuration as YAML that pd_config_load accepts. PD_EIO: the stream failed. */
int pd_config_print(const struct pd_config *config, FILE *out) PD_MUST_CHECK;
/* Made from the key table: docs/CONFIGURATION.md; the defaults as a file with a comment to each
 * key; the variables for --help. PD_EIO, PD_ENOMEM. */
int pd_config_reference(FILE *out) PD_MUST_CHECK;
int pd_config_sample(FILE *out) PD_MUST_CHECK;
int pd_config_variables(FILE *out) PD_MUST_CHECK;
/* XXH3-64 over the fields of a feed that shape its batches: in headers and in the log. */
uint64_t pd_feed_config_digest(const struct pd_feed_config *feed);
/* The feed of this name and its index (index may be NULL), or NULL. */
const struct pd_feed_config *pd_config_feed(const struct pd_config *config, const char *name,
                                            uint32_t *index);
/* The feed's share of a log of log_bytes: log.max_bytes, or the limit in force. */
uint64_t pd_config_feed_bytes(const struct pd_config *config, const struct pd_feed_config *feed,
                              uint64_t log_bytes);
/* What a lane of the feed may hold unplanned: its part of half the feed's share of the log. */
uint64_t pd_config_lane_bytes(const struct pd_config *config, const struct pd_feed_config *feed,
                              uint64_t log_bytes);
/* A lane must be able to hold two blocks (of a piece each, 1 MiB) and one sample, whatever else
 * fills the log. */
#define PD_LANE_BLOCKS_BYTES (2ull << 20)
/* True where TCP addresses speak TLS. */
bool pd_config_has_tls(const struct pd_config *config);
void pd_config_fini(struct pd_config *config);

/* The word for a feed's key whose value is one of several (strategy, 0: "exact"); NULL where the
 * key is none of those or the number no value of it. Any thread. */
const char *pd_feed_choice_name(const char *path, size_t size, uint32_t number);

#endif
