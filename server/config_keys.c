/* The key table itself, and the reading and writing of one value.
 *
 * Everything that is true of a key alone (type, bounds, choices, default, help) is said here and
 * nowhere else; what holds between keys is in config_check.c. Defaults are kept as text and go
 * through the same parser as the file. Main thread at start; knows no YAML. */
#include "server/config_keys.h"

#include "base/check.h"
#include "base/units.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define KIB (1ull << 10)
#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define TIB (1ull << 40)
#define MS 1000000ull
#define SECOND 1000000000ull
#define HOUR (3600 * SECOND)

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define ROW(scope, path, kind, shapes, member, min, max, choices, fallback, help)  \
    {                                                                              \
        path, PD_KEY_##kind, shapes, offsetof(struct scope, member),               \
            sizeof(((struct scope *)0)->member), min, max, choices, fallback, help \
    }

#define TOP(path, kind, member, min, max, choices, fallback, help) \
    ROW(pd_config, path, kind, false, member, min, max, choices, fallback, help)
static const struct pd_key top_keys[] = {
    TOP("listen", LISTEN, listen, 1, 0, NULL, "[\"127.0.0.1:7070\"]",
        "Addresses of the gRPC server: \"host:port\" or \"unix:/path\"; port 0 takes any free "
        "one."),
    TOP("listen_admin", LISTEN, listen_admin, 0, 0, NULL, "[]",
        "Addresses where Admin is served; with any here, `listen` serves no Admin."),
    TOP("listen_health", LISTEN, listen_health, 0, 0, NULL, "[]",
        "Addresses for probes: health and reflection only, never TLS, nobody is asked who he is."),
    TOP("listen_mode", WORD, listen_mode, 0, 0, WORDS("0600", "0660", "0666"), "0660",
        "Mode of Unix sockets: who may open one."),
    TOP("tls.cert", FILE, tls_cert, 0, 0, NULL, "",
        "PEM file of the server's certificate and its chain; with it TCP addresses of `listen` and "
        "`listen_admin` speak TLS."),
    TOP("tls.key", FILE, tls_key, 0, 0, NULL, "", "PEM file of its private key."),
    TOP("tls.client_ca", FILE, tls_client_ca, 0, 0, NULL, "",
        "PEM file of the authorities whose client certificates are accepted (mutual TLS)."),
    TOP("tls.client_certificate", CHOICE, tls_client_optional, 0, 0, WORDS("required", "optional"),
        "required", "Whether a client without a certificate gets in, to show a token."),
    TOP("tls.reload", DURATION, tls_reload_ns, SECOND, 24 * HOUR, NULL, "60s",
        "How often the files are looked at; new connections use new ones, open ones go on."),
    TOP("auth", AUTH, auth, 0, 0, NULL, "[]",
        "Who may do what; with any entry, all else is refused. Each has the keys below."),
    TOP("http", STRING, http, 0, 0, NULL, "127.0.0.1:7071",
        "Address of the HTTP server: /metrics, /livez, /readyz."),
    TOP("log.path", STRING, log_path, 0, 0, NULL, "./packd-data",
        "Directory of the log; made when missing, its parent is not. Not on a network file "
        "system."),
    TOP("log.max_bytes", BYTES, log_max_bytes, 16 * MIB, 1024 * TIB, NULL, "16GiB",
        "Most bytes the log may use; a full log grants no credit until commits let it be trimmed."),
    TOP("log.durability", CHOICE, durability, 0, 0, WORDS("process", "fsync"), "fsync",
        "What an ack means: on disk (fsync), or safe against kill -9 but not a power cut "
        "(process)."),
    TOP("log.commit_bytes", BYTES, commit_bytes, 4 * KIB, GIB, NULL, "4MiB",
        "A group of requests is committed when it holds this much."),
    TOP("log.commit_ms", DURATION, commit_ns, 0, 1000 * MS, NULL, "5",
        "A group of requests is committed after this time, in milliseconds."),
    TOP("memory.batches", BYTES, memory_batches_bytes, MIB, 1024 * TIB, NULL, "1GiB",
        "Memory for finished batches."),
    TOP("memory.ingest", BYTES, memory_ingest_bytes, MIB, 1024 * TIB, NULL, "256MiB",
        "Sum of the credits granted to producers."),
    TOP("limits.max_sample_bytes", BYTES, max_sample_wanted_bytes, 0, GIB, NULL, "0",
        "A larger sample is refused; 0 = 64MiB, or less where half of memory.ingest, half of "
        "limits.peer_bytes or a lane's share of the log is less."),
    TOP("limits.push_calls", NUMBER, push_calls_max, 1, 65536, NULL, "4096",
        "Push calls open at a time."),
    TOP("limits.connections", NUMBER, connections_max, 0, 1u << 20, NULL, "0",
        "Connections to `listen` at a time; a further one is closed at once. 0 = what the "
        "descriptors of the process carry, two each, at most 8192."),
    TOP("limits.peer_connections", NUMBER, peer_connections_max, 0, 1u << 20, NULL, "0",
        "Of those, what one client host (all Unix sockets count as one, and an IPv6 network of 64 "
        "bits) may have; 0 = half."),
    TOP("limits.handshake", DURATION, handshake_ns, SECOND, 10 * 60 * SECOND, NULL, "10s",
        "A connection on which TLS and HTTP/2 have not begun within this time is closed."),
    TOP("limits.peer_calls", NUMBER, peer_calls_max, 0, 65536, NULL, "0",
        "Calls that one client host (all Unix sockets count as one) may have open; 0 = no limit."),
    TOP("limits.peer_rate", NUMBER, peer_rate_max, 0, 1u << 20, NULL, "0",
        "Calls that one client host may begin within a second; 0 = no limit."),
    TOP("limits.peer_bytes", BYTES, peer_bytes, 0, 1024 * TIB, NULL, "0",
        "Credit that the Push calls of one client host may have together, above each call's floor "
        "(memory.ingest / 4 / limits.push_calls): bytes granted, or received and not yet in the "
        "log; at the limit they wait. At least twice limits.max_sample_bytes; 0 = no limit."),
    TOP("limits.stall", DURATION, stall_ns, SECOND, 24 * HOUR, NULL, "60s",
        "A call ends where for this long a write to its client makes no progress, its first "
        "message does not come, or a block stands open without progress although there is credit. "
        "Time in which packd itself stood still does not count. A connection on which no call is "
        "open for as long (as set at the start) is closed; clients make another for their next "
        "call."),
    TOP("drain", DURATION, drain_ns, 0, 24 * HOUR, NULL, "30s",
        "Grace period of a shutdown: calls that have not ended by then are cancelled."),
    TOP("threads.rpc", NUMBER, rpc_threads, 0, 64, NULL, "0",
        "gRPC threads; 0 = one per core, at most 4."),
    TOP("threads.assemble", NUMBER, assemble_threads, 0, 64, NULL, "0",
        "Threads that build batches; 0 = one per core, at most 4."),
    TOP("validate.backend", WORD, validate_backend, 0, 0, WORDS("auto", "cuda", "cpu", "off"),
        "auto",
        "Where the attention probe runs; auto takes a device where one works, cuda demands one."),
    TOP("validate.fraction", RATIO, validate_fraction, 0, 0, NULL, "1",
        "Share of batches that are probed; the structural check covers all of them in any case."),
    TOP("validate.cpu_share", RATIO, validate_cpu_share, 0, 0, NULL, "0.25",
        "Share of one core that the probe may take when it runs on the CPU."),
    TOP("validate.on_violation", CHOICE, on_violation, 0, 0, WORDS("stop", "skip_step"), "stop",
        "When a batch fails its checks twice: halt the feed; or leave its step out where nobody "
        "has "
        "been handed anything of it, and halt else."),
    TOP("feeds", FEEDS, feeds, 0, 0, NULL, "[{name: default}]",
        "The feeds; each has the keys below."),
};

#define FEED(path, kind, shapes, member, min, max, choices, fallback, help) \
    ROW(pd_feed_config, path, kind, shapes, member, min, max, choices, fallback, help)
#define COUNT_BEHIND(array, count)                                      \
    _Static_assert(offsetof(struct pd_feed_config, count) ==            \
                       offsetof(struct pd_feed_config, array) +         \
                           sizeof(((struct pd_feed_config *)0)->array), \
                   "the count stands behind the array")
COUNT_BEHIND(layout.widths, layout.width_count);
COUNT_BEHIND(streams, stream_count);
COUNT_BEHIND(media_tokens, media_token_count);

static const struct pd_key feed_keys[] = {
    FEED("name", NAME, false, name, 0, 0, NULL, "default", "Name of the feed."),
    FEED("seq_len", NUMBER, true, rules.seq_len, 1, PD_SEQ_LEN_MAX, NULL, "4096",
         "Positions of a pack."),
    FEED("window", NUMBER, true, rules.window_samples, 1, 1u << 20, NULL, "1024",
         "Samples the planner chooses from."),
    FEED("window_bytes", BYTES, true, rules.window_bytes, KIB, 1024 * TIB, NULL, "1GiB",
         "Payload bytes the window may stand for; one sample always fits."),
    FEED("strategy", CHOICE, true, rules.strategy, 0, 0, WORDS("exact", "sequential", "none"),
         "exact",
         "How packs are filled: exact (least padding), sequential (keeps the order), none (one "
         "sample a pack)."),
    FEED("order", CHOICE, true, rules.order, 0, 0, WORDS("arrival", "shuffle"), "arrival",
         "Order in which samples reach the window."),
    FEED("shuffle_samples", NUMBER, true, rules.shuffle_samples, 1, 1u << 26, NULL, "262144",
         "Samples in the shuffle buffer, with order: shuffle."),
    FEED("shuffle_bytes", BYTES, true, rules.shuffle_bytes, KIB, 1024 * TIB, NULL, "1GiB",
         "Payload bytes the shuffle buffer may stand for."),
    FEED("merge", CHOICE, true, rules.merge, 0, 0, WORDS("arrival", "ordered"), "arrival",
         "How streams join: in log order, or one sample of each declared stream in turn."),
    FEED("streams", NAMES, true, streams, 0, PD_LANES_MAX, NULL, "[]",
         "Declared streams: the feed ends when all of them have ended; the order of merge: "
         "ordered."),
    FEED("stream_count", NUMBER, false, streams_to_end, 0, 1u << 20, NULL, "0",
         "The feed ends when this many streams have ended; 0 = only EndFeed or `streams` end it."),
    FEED("sources", SOURCES, true, sources, 0, 0, NULL, "{}",
         "Sources that are mixed by weight; each has the keys below."),
    FEED("seed", NUMBER, true, rules.seed, 0, UINT64_MAX, NULL, "0", "Seed of the shuffle."),
    FEED("over_length", CHOICE, true, rules.over_length, 0, 0,
         WORDS("reject", "keep_head", "keep_tail", "split"), "reject",
         "What happens to a sample longer than seq_len."),
    FEED("seg_align", NUMBER, true, rules.seg_align, 1, 65536, NULL, "1",
         "Each segment's slot is a multiple of this."),
    FEED("total_align", NUMBER, true, layout.total_align, 0, 65536, NULL, "0",
         "Widths are a multiple of this; itself a multiple of seg_align; 0 = seg_align."),
    FEED("width", CHOICE, true, layout.width, 0, 0, WORDS("fixed", "step", "batch"), "fixed",
         "Width of a batch: seq_len, or what the longest pack of the step or batch needs."),
    FEED("widths", NUMBERS, true, layout.widths, 1, PD_SEQ_LEN_MAX, NULL, "[]",
         "Widths to round up to, ascending, with width: step or batch."),
    FEED("width_bound", NUMBER, true, layout.width_bound, 0, PD_SEQ_LEN_MAX, NULL, "0",
         "A padded job's width, which dynamic widths are compared with in headers and metrics; 0 = "
         "seq_len."),
    FEED(
        "fixed_segments", NUMBER, true, layout.fixed_segments, 0, PD_SEQ_LEN_MAX, NULL, "0",
        "Entries of cu_seqlens in every batch, for compiled models; caps max_segments; 0 = as many "
        "as there are."),
    FEED("max_segments", NUMBER, true, rules.segments_max, 0, PD_SEQ_LEN_MAX, NULL, "0",
         "Real segments per pack; 0 = no cap."),
    FEED(
        "max_patches", NUMBER, true, rules.patches_max, 0, UINT32_MAX, NULL, "0",
        "Vision patches per pack, a second budget beside seq_len; a sample with more is refused; "
        "0 = no cap, but a token of a span stands for at most 4,096 patches and 64 frames unless a "
        "tensor of unit patch carries them."),
    FEED("vision_window", NUMBER, true, layout.vision_window, 0, 1u << 16, NULL, "0",
         "Side of a window of the vision tower in merged tokens (Qwen2.5-VL: 4); 0 = no window "
         "arrays."),
    FEED("positions", CHOICE, true, layout.positions, 0, 0, WORDS("1d", "mrope"), "1d",
         "1d: positions [R,W]; mrope: [3,R,W] from the grids of media spans, which every span must "
         "then have."),
    FEED("media_tokens", NUMBERS, false, media_tokens, 0, INT32_MAX, NULL, "[]",
         "Placeholder tokens: inside media spans these and no others, outside none of them; [] = "
         "not checked."),
    FEED("pad_segment", NUMBER, true, layout.pad_segment, 1, PD_SEQ_LEN_MAX, NULL, "1024",
         "Longest padding segment."),
    FEED("max_wait", DURATION, false, max_wait_ns, 0, 24 * HOUR, NULL, "0",
         "A step that waits longer is completed from a short window; 0 = never flush on idleness."),
    FEED("idle_release", DURATION, false, idle_release_ns, 0, 8760 * HOUR, NULL, "0",
         "A job without a call, a delivery or a commit for so long stops holding the log, loudly, "
         "until it is opened again; 0 = never: a job that was only tried holds it until it is "
         "deleted."),
    FEED("plan_ahead", BYTES, false, plan_ahead_bytes, KIB, 1024 * TIB, NULL, "1GiB",
         "Payload bytes planned past the highest step delivered."),
    FEED("log_share", NUMBER, false, log_share, 1, 1000000, NULL, "1",
         "Share of log.max_bytes, relative to the other feeds."),
    FEED("labels", CHOICE, true, layout.labels, 0, 0, WORDS("unshifted", "shifted"), "unshifted",
         "Where a token's label stands: at the token, or one position before it."),
    FEED("labels_look_shifted", CHOICE, false, check_shifted_labels, 0, 0,
         WORDS("accept", "refuse"), "refuse",
         "What happens to pushed labels that look shifted already."),
    FEED("loss_weight", CHOICE, true, layout.loss, 0, 0, WORDS("token", "sample"), "token",
         "A target's weight: its sample's weight, or that divided by the sample's loss tokens."),
    FEED("pad_id", SIGNED, true, layout.pad_id, 0, 0, NULL, "0", "Token at padding and gaps."),
    FEED("vocab_size", NUMBER, false, vocab_size, 0, INT32_MAX, NULL, "0",
         "A sample with a token outside 0 .. vocab_size - 1 is refused; 0 = not checked."),
    FEED("balance", CHOICE, true, balance, 0, 0, WORDS("off", "cost"), "off",
         "cost: a step gets packs of about equal attention cost, so that ranks wait less."),
    FEED("balance_bytes", BYTES, true, balance_bytes, KIB, 1024 * TIB, NULL, "1GiB",
         "Payload bytes, four a position, of the steps that are balanced together: 16 or fewer."),
    FEED("cost.alpha", NUMBER, true, layout.cost.alpha, 0, 1u << 24, NULL, "24576",
         "Cost of a token, in the attention cost of headers."),
    FEED("cost.beta", NUMBER, true, layout.cost.beta, 0, 1u << 24, NULL, "1",
         "Cost of a pair of tokens."),
    FEED("last_step", CHOICE, true, last_step, 0, 0, WORDS("pad", "drop"), "pad",
         "The last, partly filled step: completed with padding rows, or dropped."),
    FEED("epochs", NUMBER, true, epochs, 1, 1u << 20, NULL, "1",
         "Passes over every lane: short for on_end: repeat and max_passes on each."),
    FEED("drop_views", VIEWS, true, drop_views_count, 0, 0, NULL, "{}",
         "Views left out of samples as they enter the window, per source: {libero: [right_wrist]}; "
         "may be changed."),
    FEED("keep_frames", FRAMES, true, keep_frames_count, 2, 1u << 20, NULL, "{}",
         "Every n-th frame of videos stays, per source: {libero: 2}; may be changed."),
    FEED("jobs", JOBS, false, jobs, 0, 0, NULL, "[]",
         "Jobs that hold the log from pack 0 before they first connect; each has the keys below."),
};

#define SOURCE(path, kind, member, min, max, choices, fallback, help) \
    ROW(pd_source_config, path, kind, true, member, min, max, choices, fallback, help)
static const struct pd_key source_keys[] = {
    SOURCE("weight", NUMBER, lane.weight, 1, 1000000, NULL, "1",
           "Share of tokens, relative to the other sources."),
    SOURCE("on_end", CHOICE, lane.on_end, 0, 0, WORDS("continue", "stop", "repeat"), "continue",
           "When the source has ended: go on without it, end the feed, or read it again."),
    SOURCE("max_passes", NUMBER, lane.passes_max, 0, 1u << 20, NULL, "0",
           "Passes in all, with on_end: repeat; 0 = as many as the other sources last."),
};

#define JOB(path, kind, member, min, max, choices, fallback, help) \
    ROW(pd_job_config, path, kind, false, member, min, max, choices, fallback, help)
static const struct pd_key job_keys[] = {
    JOB("name", NAME, name, 0, 0, NULL, "train", "Name of the job."),
    JOB("retain.commits", NUMBER, retain_commits, 1, 64, NULL, "3",
        "Commits a run can go back by."),
    JOB("retain.bytes", BYTES, retain_bytes, 0, 1024 * TIB, NULL, "0",
        "Bytes kept below the last commit; 0 = by commits alone."),
    JOB("retain.time", DURATION, retain_ns, 0, 8760 * HOUR, NULL, "0",
        "Time kept below the last commit; 0 = by commits alone."),
};

#define PRINCIPAL(path, kind, member, min, max, choices, fallback, help) \
    ROW(pd_principal_config, path, kind, false, member, min, max, choices, fallback, help)
static const struct pd_key principal_keys[] = {
    PRINCIPAL("name", NAME, name, 0, 0, NULL, "somebody", "Name in log lines."),
    PRINCIPAL("token_file", FILE, token_file, 0, 0, NULL, "",
              "File with the bearer token that is his, 16 to 512 bytes; read again when the "
              "configuration is."),
    PRINCIPAL("certificate", FILE, certificate, 0, 0, NULL, "",
              "Common name or alternative name in the client certificate that is his."),
    PRINCIPAL("unix", CHOICE, local, 0, 0, WORDS("false", "true"), "false",
              "Whoever may open a Unix socket of packd is he."),
    PRINCIPAL("roles", ROLES, roles, 0, 0, NULL, "[]",
              "What he may do: produce (Push), read (OpenJob, Fetch, Commit), observe (Status, "
              "Explain), admin (all of Admin)."),
    PRINCIPAL("feeds", NAMES, feeds, 0, PD_PRINCIPAL_FEEDS_MAX, NULL, "[]",
              "The feeds he may do it on; none = all."),
};

const char *const pd_role_words[] = {"produce", "read", "observe", "admin", NULL};

#define TABLE(keys)             \
    {                           \
        keys, PD_COUNT_OF(keys) \
    }
const struct pd_key_table pd_top_keys = TABLE(top_keys), pd_feed_keys = TABLE(feed_keys),
                          pd_source_keys = TABLE(source_keys), pd_job_keys = TABLE(job_keys),
                          pd_principal_keys = TABLE(principal_keys);

bool pd_key_is_scalar(const struct pd_key *key)
{
    return key->kind < PD_KEY_LISTEN;
}

/* ---- one value out of text ---- */

static void store(const struct pd_key *key, void *base, uint64_t value)
{
    char *at = (char *)base + key->offset_bytes;
    memcpy(at, &value, key->size_bytes); /* little-endian, as base/bytes.c asserts */
}

static uint64_t load(const struct pd_key *key, const void *base)
{
    uint64_t value = 0;
    memcpy(&value, (const char *)base + key->offset_bytes, key->size_bytes);
    return value;
}

static int refuse(const struct pd_key *key, const char *text, struct pd_error *error)
{
    char expected[200];
    pd_key_expectation(key, expected, sizeof expected);
    return pd_error_set(error, PD_EINVAL, "BAD_VALUE", "'%.60s' is not possible here; expected %s",
                        text, expected);
}

/* Other readers of YAML would take another number for it. */
static int check_leading_zero(const char *text, struct pd_error *error)
{
    const char *digits = *text == '-' ? text + 1 : text;
    size_t count = strspn(digits, "0123456789");
    if (digits[0] != '0' || count < 2 || digits[count] != '\0')
        return 0;
    return pd_error_set(error, PD_EINVAL, "BAD_VALUE",
                        "'%.60s' begins with a zero: octal in YAML 1.1, decimal in YAML 1.2; write "
                        "the number without it",
                        text);
}

static bool parse_whole(const char *text, uint64_t *value)
{
    if (*text < '0' || *text > '9')
        return false;
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static int set_signed(const struct pd_key *key, void *base, const char *text,
                      struct pd_error *error)
{
    const char *digits = *text == '-' ? text + 1 : text;
    uint64_t value;
    int rc = check_leading_zero(text, error);
    if (rc != 0)
        return rc;
    if (!parse_whole(digits, &value) || value > (uint64_t)INT32_MAX + (digits != text))
        return refuse(key, text, error);
    store(key, base, (uint64_t)(digits != text ? -(int64_t)value : (int64_t)value));
    return 0;
}

static int set_ratio(const struct pd_key *key, void *base, const char *text, struct pd_error *error)
{
    char *end;
    double value = strspn(text, "0123456789.") > 0 ? strtod(text, &end) : -1;
    if (!(value >= 0 && value <= 1) || *end != '\0')
        return refuse(key, text, error);
    memcpy((char *)base + key->offset_bytes, &value, sizeof value);
    return 0;
}

/* Numbers, sizes and durations. log.commit_ms alone carries its unit in its name. */
static int set_amount(const struct pd_key *key, void *base, const char *text,
                      struct pd_error *error)
{
    uint64_t value = 0;
    int rc = check_leading_zero(text, error);
    if (rc != 0)
        return rc;
    if (key->kind == PD_KEY_BYTES)
        rc = pd_units_parse_bytes(text, &value, error);
    else if (key->kind == PD_KEY_DURATION && !parse_whole(text, &value))
        rc = pd_units_parse_duration(text, &value, error);
    else if (key->kind == PD_KEY_DURATION && strcmp(key->path, "log.commit_ms") == 0)
        rc = __builtin_mul_overflow(value, MS, &value) ? refuse(key, text, error) : 0;
    else if (key->kind == PD_KEY_DURATION)
        rc = pd_units_parse_duration(text, &value, error);
    else if (!parse_whole(text, &value))
        rc = refuse(key, text, error);
    if (rc != 0)
        return rc;
    if (value < key->min || value > key->max)
        return refuse(key, text, error);
    store(key, base, value);
    return 0;
}

static int set_choice(const struct pd_key *key, void *base, const char *text,
                      struct pd_error *error)
{
    size_t i = 0;
    while (key->choices[i] && strcmp(key->choices[i], text) != 0)
        i++;
    if (!key->choices[i])
        return refuse(key, text, error);
    if (key->kind == PD_KEY_CHOICE)
        store(key, base, i);
    else
        snprintf((char *)base + key->offset_bytes, key->size_bytes, "%s", text);
    return 0;
}

static int set_text(const struct pd_key *key, void *base, const char *text, struct pd_error *error)
{
    char *at = (char *)base + key->offset_bytes;
    if (key->kind == PD_KEY_NAME) {
        int rc = pd_name_check(key->path, text, error);
        if (rc == 0)
            snprintf(at, key->size_bytes, "%s", text);
        return rc;
    }
    if (*text == '\0' && key->kind != PD_KEY_FILE)
        return refuse(key, text, error);
    if (pd_config_set_string((char **)(void *)at, text) != 0)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for %zu bytes", strlen(text));
    return 0;
}

int pd_key_set(const struct pd_key *key, void *base, const char *text, struct pd_error *error)
{
    switch (key->kind) {
    case PD_KEY_NUMBER:
    case PD_KEY_BYTES:
    case PD_KEY_DURATION:
        return set_amount(key, base, text, error);
    case PD_KEY_SIGNED:
        return set_signed(key, base, text, error);
    case PD_KEY_RATIO:
        return set_ratio(key, base, text, error);
    case PD_KEY_CHOICE:
    case PD_KEY_WORD:
        return set_choice(key, base, text, error);
    case PD_KEY_NAME:
    case PD_KEY_STRING:
    case PD_KEY_FILE:
        return set_text(key, base, text, error);
    default:
        pd_panic(__FILE__, __LINE__, "key %s is not one value", key->path);
    }
}

const char *pd_feed_choice_name(const char *path, size_t size, uint32_t number)
{
    for (size_t i = 0; i < pd_feed_keys.count; i++) {
        const struct pd_key *key = &pd_feed_keys.keys[i];
        if (key->kind != PD_KEY_CHOICE || strlen(key->path) != size ||
            memcmp(key->path, path, size) != 0)
            continue;
        for (uint32_t at = 0; key->choices[at]; at++)
            if (at == number)
                return key->choices[at];
    }
    return NULL;
}

int pd_keys_default(const struct pd_key_table *table, void *base)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct pd_key *key = &table->keys[i];
        struct pd_error error = {0};
        int rc = pd_key_is_scalar(key) ? pd_key_set(key, base, key->fallback, &error) : 0;
        if (rc == PD_ENOMEM)
            return rc;
        if (rc != 0)
            pd_panic(__FILE__, __LINE__, "default of %s: %s", key->path, error.text);
    }
    return 0;
}

/* ---- and back ---- */

/* The largest unit that divides the value. */
static void put_units(char *text, size_t size, uint64_t value, const char *const *names,
                      const uint64_t *factors, size_t count)
{
    size_t unit = 0;
    for (size_t i = 0; i < count && value > 0; i++) {
        if (value % factors[i] == 0)
            unit = i;
    }
    snprintf(text, size, "%" PRIu64 "%s", value / factors[unit], value > 0 ? names[unit] : "");
}

static void put_bytes(char *text, size_t size, uint64_t value)
{
    static const char *const names[] = {"", "KiB", "MiB", "GiB", "TiB"};
    static const uint64_t factors[] = {1, KIB, MIB, GIB, TIB};
    put_units(text, size, value, names, factors, PD_COUNT_OF(names));
}

static void put_duration(char *text, size_t size, uint64_t value)
{
    static const char *const names[] = {"ns", "us", "ms", "s", "m", "h"};
    static const uint64_t factors[] = {1, 1000, MS, SECOND, 60 * SECOND, HOUR};
    put_units(text, size, value, names, factors, PD_COUNT_OF(names));
}

void pd_key_text(const struct pd_key *key, const void *base, char *text, size_t size)
{
    const char *at = (const char *)base + key->offset_bytes;
    double ratio;
    switch (key->kind) {
    case PD_KEY_NUMBER:
        snprintf(text, size, "%" PRIu64, load(key, base));
        break;
    case PD_KEY_SIGNED:
        snprintf(text, size, "%" PRId32, (int32_t)load(key, base));
        break;
    case PD_KEY_BYTES:
        put_bytes(text, size, load(key, base));
        break;
    case PD_KEY_DURATION:
        put_duration(text, size, load(key, base));
        break;
    case PD_KEY_RATIO:
        memcpy(&ratio, at, sizeof ratio);
        snprintf(text, size, "%.17g", ratio);
        break;
    case PD_KEY_CHOICE:
        snprintf(text, size, "%s", key->choices[load(key, base)]);
        break;
    case PD_KEY_WORD:
    case PD_KEY_NAME:
        snprintf(text, size, "%s", at);
        break;
    case PD_KEY_STRING:
    case PD_KEY_FILE:
        snprintf(text, size, "%s", *(char *const *)(const void *)at);
        break;
    default:
        pd_panic(__FILE__, __LINE__, "key %s is not one value", key->path);
    }
}

char *const *pd_key_addresses(const struct pd_key *key, const void *base, uint32_t *count)
{
    const char *at = (const char *)base + key->offset_bytes;
    memcpy(count, at + key->size_bytes, sizeof *count);
    return *(char *const *const *)(const void *)at;
}

const char (*pd_key_names(const struct pd_key *key, const void *base,
                          uint32_t *count))[PD_NAME_MAX + 1]
{
    const char *at = (const char *)base + key->offset_bytes;
    memcpy(count, at + key->size_bytes, sizeof *count);
    return *(const char(*const *)[PD_NAME_MAX + 1])(const void *)at;
}

int pd_key_set_addresses(const struct pd_key *key, void *base, char *const *addresses,
                         uint32_t count)
{
    char **copies = calloc(count + 1, sizeof *copies);
    uint32_t before;
    char *const *old = pd_key_addresses(key, base, &before);
    for (uint32_t i = 0; copies && i < count; i++) {
        if (pd_config_set_string(&copies[i], addresses[i]) == 0)
            continue;
        while (i-- > 0)
            free(copies[i]);
        free(copies);
        copies = NULL;
    }
    if (!copies)
        return PD_ENOMEM;
    for (uint32_t i = 0; i < before; i++)
        free(old[i]);
    char *at = (char *)base + key->offset_bytes;
    free(*(char ***)(void *)at);
    memcpy(at, &copies, sizeof copies);
    memcpy(at + sizeof copies, &count, sizeof count);
    return 0;
}

const uint32_t *pd_key_numbers(const struct pd_key *key, const void *base, uint32_t *count)
{
    const char *at = (const char *)base + key->offset_bytes;
    memcpy(count, at + key->size_bytes, sizeof *count);
    return (const uint32_t *)(const void *)at;
}

static void expect_choices(const struct pd_key *key, char *text, size_t size)
{
    size_t used = 0;
    *text = '\0';
    for (size_t i = 0; key->choices[i] && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? " | " : "", key->choices[i]);
}

void pd_key_expectation(const struct pd_key *key, char *text, size_t size)
{
    char low[32], high[32];
    switch (key->kind) {
    case PD_KEY_NUMBER:
        snprintf(text, size, "a whole number from %" PRIu64 " to %" PRIu64, key->min, key->max);
        break;
    case PD_KEY_SIGNED:
        snprintf(text, size, "a whole number that fits int32");
        break;
    case PD_KEY_BYTES:
        put_bytes(low, sizeof low, key->min);
        put_bytes(high, sizeof high, key->max);
        snprintf(text, size, "a size from %s to %s", low, high);
        break;
    case PD_KEY_DURATION:
        put_duration(low, sizeof low, key->min);
        put_duration(high, sizeof high, key->max);
        snprintf(text, size, "a duration from %s to %s", low, high);
        break;
    case PD_KEY_RATIO:
        snprintf(text, size, "a number from 0 to 1");
        break;
    case PD_KEY_CHOICE:
    case PD_KEY_WORD:
        expect_choices(key, text, size);
        break;
    case PD_KEY_NAME:
        snprintf(text, size, "a name: 1 to %d of [A-Za-z0-9_-]", PD_NAME_MAX);
        break;
    case PD_KEY_STRING:
        snprintf(text, size, "text that is not empty");
        break;
    case PD_KEY_FILE:
        snprintf(text, size, "text");
        break;
    case PD_KEY_LISTEN:
        snprintf(text, size, "a list of %" PRIu64 " to %d addresses", key->min, PD_LISTEN_MAX);
        break;
    case PD_KEY_NAMES:
        snprintf(text, size, "a list of at most %" PRIu64 " names", key->max);
        break;
    case PD_KEY_ROLES:
        snprintf(text, size, "a list of produce | read | observe | admin");
        break;
    case PD_KEY_AUTH:
        snprintf(text, size, "a list of at most %d mappings", PD_PRINCIPALS_MAX);
        break;
    case PD_KEY_SOURCES:
        snprintf(text, size, "a mapping of at most %d names", PD_SOURCES_MAX);
        break;
    case PD_KEY_NUMBERS:
        snprintf(text, size, "a list of at most %zu whole numbers",
                 key->size_bytes / sizeof(uint32_t));
        break;
    case PD_KEY_VIEWS:
        snprintf(text, size, "a mapping of at most %d source names to lists of view names",
                 PD_PRUNE_RULES_MAX);
        break;
    case PD_KEY_FRAMES:
        snprintf(text, size, "a mapping of at most %d source names to whole numbers",
                 PD_PRUNE_RULES_MAX);
        break;
    case PD_KEY_JOBS:
        snprintf(text, size, "a list of at most %d mappings", PD_JOBS_MAX);
        break;
    case PD_KEY_FEEDS:
        snprintf(text, size, "a list of 1 to %d mappings", PD_FEEDS_MAX);
        break;
    }
}

/* ---- suggestions ---- */

/* Edits (insert, delete, replace, swap of neighbours) from a to b, or `limit` when there are more;
 * words of up to 63 letters. */
static unsigned edit_distance(const char *a, const char *b, unsigned limit)
{
    size_t m = strlen(a), n = strlen(b);
    if (m > 63 || n > 63)
        return limit;
    unsigned rows[3][64];
    for (size_t j = 0; j <= n; j++)
        rows[0][j] = (unsigned)j;
    for (size_t i = 1; i <= m; i++) {
        unsigned *now = rows[i % 3], *before = rows[(i + 2) % 3], *older = rows[(i + 1) % 3];
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= n; j++) {
            unsigned best = before[j - 1] + (a[i - 1] != b[j - 1]);
            best = before[j] + 1 < best ? before[j] + 1 : best;
            best = now[j - 1] + 1 < best ? now[j - 1] + 1 : best;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            now[j] = swapped && older[j - 2] + 1 < best ? older[j - 2] + 1 : best;
        }
    }
    return rows[m % 3][n] < limit ? rows[m % 3][n] : limit;
}

const char *pd_nearest(const char *word, const char *const *candidates, size_t count)
{
    const char *found = NULL;
    unsigned best = 3;
    for (size_t i = 0; i < count; i++) {
        unsigned distance = edit_distance(word, candidates[i], 3);
        if (distance < best && 2 * distance < strlen(candidates[i])) {
            best = distance;
            found = candidates[i];
        }
    }
    return found;
}
