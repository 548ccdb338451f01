/* Rules that hold between keys, each refused with the keys and both values named.
 *
 * What the planner and the layout demand of their own rules is asked of them (pd_rules_check,
 * pd_layout_rules_check), so that there is one truth; here is what they cannot see: names,
 * addresses, sums of memory, features that a known value would need. Main thread, last step of
 * reading the configuration. */
#include "server/config.h"

#include "base/check.h"
#include "base/units.h"
#include "server/config_keys.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define UNIX_PATH_MAX 107u

static int contradiction(struct pd_error *error, const char *reason, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int contradiction(struct pd_error *error, const char *reason, const char *format, ...)
{
    char text[PD_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return pd_error_set(error, PD_EINVAL, reason, "%s", text);
}

/* ---- addresses ---- */

/* A name, an IPv4 address or an IPv6 address in brackets. gRPC would take schemes of its own for
 * more: "dns:1" is none of ours. */
static bool host_is_good(const char *host, size_t size)
{
    static const char *const schemes[] = {"dns",   "ipv4", "ipv6",      "unix-abstract",
                                          "vsock", "xds",  "google-c2p"};
    if (host[0] == '[')
        return size > 2 && host[size - 1] == ']' &&
               strspn(host + 1, "0123456789abcdefABCDEF:.") >= strcspn(host + 1, "]%") &&
               memchr(host, ':', size) && strcspn(host, "]") == size - 1;
    for (size_t i = 0; i < PD_COUNT_OF(schemes); i++)
        if (strlen(schemes[i]) == size && memcmp(schemes[i], host, size) == 0)
            return false;
    return size > 0 && strcspn(host, ":/[]") >= size;
}

/* "unix:/path", or "host:port" with the port a number up to 65535 and a host that is not empty. */
static bool address_is_good(const char *address, bool unix_allowed)
{
    if (strncmp(address, "unix:", 5) == 0)
        return unix_allowed && address[5] != '\0';
    const char *colon = strrchr(address, ':');
    if (!colon || strlen(address) > 255 || !host_is_good(address, (size_t)(colon - address)))
        return false;
    size_t digits = strspn(colon + 1, "0123456789");
    return digits > 0 && digits <= 5 && colon[1 + digits] == '\0' &&
           strtoul(colon + 1, NULL, 10) <= 65535;
}

static int check_address(const char *key, const char *address, struct pd_error *error)
{
    if (strncmp(address, "unix:", 5) == 0 && strlen(address + 5) > UNIX_PATH_MAX)
        return contradiction(error, "BAD_ADDRESS",
                             "%s: '%.160s' has a path of %zu bytes; the system takes %u", key,
                             address, strlen(address + 5), UNIX_PATH_MAX);
    if (!address_is_good(address, true))
        return contradiction(
            error, "BAD_ADDRESS",
            "%s: '%.80s' is not an address; expected host:port, [v6]:port or unix:/path", key,
            address);
    return 0;
}

static bool any_port(const char *address)
{
    return strlen(address) > 2 && strcmp(address + strlen(address) - 2, ":0") == 0;
}

/* Each address once over all lists. */
static int check_addresses(const struct pd_config *config, struct pd_error *error)
{
    const char *seen[3 * PD_LISTEN_MAX];
    uint32_t seen_count = 0;
    for (size_t k = 0; k < pd_top_keys.count; k++) {
        const struct pd_key *key = &pd_top_keys.keys[k];
        if (key->kind != PD_KEY_LISTEN)
            continue;
        uint32_t count;
        char *const *addresses = pd_key_addresses(key, config, &count);
        for (uint32_t i = 0; i < count; i++) {
            int rc = check_address(key->path, addresses[i], error);
            if (rc != 0)
                return rc;
            for (uint32_t j = 0; j < seen_count && !any_port(addresses[i]); j++)
                if (strcmp(seen[j], addresses[i]) == 0)
                    return contradiction(error, "BAD_ADDRESS", "%s: '%.80s' is there twice",
                                         key->path, addresses[i]);
            PD_CHECK(seen_count < PD_COUNT_OF(seen));
            seen[seen_count++] = addresses[i];
        }
    }
    if (!address_is_good(config->http, false))
        return contradiction(error, "BAD_ADDRESS",
                             "http: '%.80s' is not an address; expected host:port or [v6]:port",
                             config->http);
    for (uint32_t j = 0; j < seen_count && !any_port(config->http); j++)
        if (strcmp(seen[j], config->http) == 0)
            return contradiction(error, "BAD_ADDRESS",
                                 "http: '%.80s' is an address of gRPC, too; give it its own",
                                 config->http);
    return 0;
}

/* ---- who may do what ---- */

static int check_tls(const struct pd_config *config, struct pd_error *error)
{
    if (*config->tls_cert && !*config->tls_key)
        return contradiction(error, "TLS", "tls.cert is %.120s and tls.key is not set; set both",
                             config->tls_cert);
    if (*config->tls_key && !*config->tls_cert)
        return contradiction(error, "TLS", "tls.key is %.120s and tls.cert is not set; set both",
                             config->tls_key);
    if (*config->tls_client_ca && !*config->tls_cert)
        return contradiction(error, "TLS",
                             "tls.client_ca is %.120s and tls.cert is not set: without TLS nobody "
                             "shows a certificate",
                             config->tls_client_ca);
    return 0;
}

static int check_principal(const struct pd_config *config, uint32_t index, struct pd_error *error)
{
    const struct pd_principal_config *p = &config->auth[index];
    for (uint32_t i = 0; i < index; i++)
        if (strcmp(config->auth[i].name, p->name) == 0)
            return contradiction(error, "REPEATED_NAME", "auth: '%s' is there twice", p->name);
    if (!*p->token_file && !*p->certificate && !p->local)
        return contradiction(error, "AUTH",
                             "auth: nothing tells that somebody is %s; set token_file, certificate "
                             "or unix",
                             p->name);
    if (*p->certificate && !*config->tls_client_ca)
        return contradiction(error, "AUTH",
                             "auth: %s is known by a certificate and tls.client_ca is not set: no "
                             "certificate can be checked",
                             p->name);
    if (p->roles == 0)
        return contradiction(
            error, "AUTH", "auth: %s has no roles; expected some of produce, read, observe, admin",
            p->name);
    for (uint32_t i = 0; i < p->feed_count; i++)
        if (!pd_config_feed(config, p->feeds[i], NULL))
            return contradiction(error, "AUTH", "auth: %s names the feed %s, and there is none",
                                 p->name, p->feeds[i]);
    return 0;
}

static int check_access(const struct pd_config *config, struct pd_error *error)
{
    int rc = check_tls(config, error);
    for (uint32_t i = 0; i < config->auth_count && rc == 0; i++)
        rc = check_principal(config, i, error);
    return rc;
}

/* ---- one feed ---- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Sorts a copy, so that 4,096 streams are no quadratic matter. */
static int check_streams(const struct pd_feed_config *feed, struct pd_error *error)
{
    uint32_t count = feed->stream_count;
    if (count > 0 && feed->streams_to_end > 0)
        return contradiction(error, "STREAMS_TWICE",
                             "streams declares %u names and stream_count is %u: the feed ends by "
                             "one of the two; set "
                             "stream_count to 0 or leave streams out",
                             count, feed->streams_to_end);
    if (count < 2)
        return 0;
    char(*sorted)[PD_NAME_MAX + 1] = calloc(count, sizeof *sorted);
    if (!sorted)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for %u stream names", count);
    memcpy(sorted, feed->streams, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_names);
    int rc = 0;
    for (uint32_t i = 1; i < count && rc == 0; i++) {
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            rc = contradiction(error, "REPEATED_NAME", "streams: '%s' is there twice", sorted[i]);
    }
    free(sorted);
    return rc;
}

static int check_sources(const struct pd_feed_config *feed, struct pd_error *error)
{
    for (uint32_t i = 0; i < feed->source_count; i++) {
        const struct pd_source_config *source = &feed->sources[i];
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(feed->sources[j].name, source->name) == 0)
                return contradiction(error, "REPEATED_NAME", "sources: '%s' is there twice",
                                     source->name);
        }
        if (source->lane.passes_max > 0 && source->lane.on_end != PD_ON_END_REPEAT)
            return contradiction(error, "MAX_PASSES",
                                 "sources.%s: max_passes is %u but on_end is not repeat; set "
                                 "on_end: repeat or leave "
                                 "max_passes out",
                                 source->name, source->lane.passes_max);
        if (feed->epochs > 1 &&
            (source->lane.on_end != PD_ON_END_CONTINUE || source->lane.passes_max > 0))
            return contradiction(error, "EPOCHS",
                                 "epochs is %u, which sets on_end and max_passes of every source, "
                                 "but sources.%s sets "
                                 "its own; use one of the two",
                                 feed->epochs, source->name);
    }
    return 0;
}

static int check_lanes(const struct pd_feed_config *feed, struct pd_error *error)
{
    if (feed->rules.merge == PD_MERGE_ORDERED && feed->stream_count == 0)
        return contradiction(
            error, "MERGE_STREAMS",
            "merge is ordered but streams is empty; declare the streams that take turns");
    if (feed->rules.merge == PD_MERGE_ORDERED && feed->source_count > 0)
        return contradiction(error, "MERGE_SOURCES",
                             "merge is ordered and sources has %u entries: turns and weights "
                             "exclude each other; use "
                             "merge: arrival",
                             feed->source_count);
    if (feed->rules.merge == PD_MERGE_ORDERED && feed->epochs > 1)
        return contradiction(error, "MERGE_EPOCHS",
                             "merge is ordered and epochs is %u: turns are taken once; use "
                             "epochs: 1 or merge: arrival",
                             feed->epochs);
    return 0;
}

static int check_jobs(const struct pd_feed_config *feed, struct pd_error *error)
{
    for (uint32_t i = 0; i < feed->job_count; i++) {
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(feed->jobs[j].name, feed->jobs[i].name) == 0)
                return contradiction(error, "REPEATED_NAME", "jobs: '%s' is there twice",
                                     feed->jobs[i].name);
        }
    }
    return 0;
}

/* Padding is in segments too: what one row can need has to fit, or its batches can never be built.
 * Without max_segments the least is a row of one sample and padding. */
static int check_fixed_segments(const struct pd_feed_config *feed, struct pd_error *error)
{
    const struct pd_layout_rules *layout = &feed->layout;
    uint32_t real = feed->rules.segments_max, fixed = layout->fixed_segments;
    if (fixed == 0)
        return 0;
    if (real > fixed)
        return contradiction(error, "BAD_FIXED_SEGMENTS",
                             "max_segments is %u, more than fixed_segments %u holds", real, fixed);
    if (feed->rules.seg_align == 0 || layout->pad_segment < feed->rules.seg_align ||
        feed->rules.seq_len < feed->rules.seg_align)
        return 0; /* refused with the other rules */
    uint64_t need = pd_layout_row_segments_max(layout, real > 0 ? real : 1);
    if (need <= fixed)
        return 0;
    return contradiction(error, "BAD_FIXED_SEGMENTS",
                         "fixed_segments is %u; a row of seq_len %u can have %llu segments (%u of "
                         "samples, the others padding of up to pad_segment %u); set fixed_segments "
                         "to at least %llu for each row of a batch, or raise pad_segment",
                         fixed, feed->rules.seq_len, (unsigned long long)need, real > 0 ? real : 1,
                         layout->pad_segment, (unsigned long long)need);
}

static int check_shape(const struct pd_feed_config *feed, struct pd_error *error)
{
    const struct pd_layout_rules *layout = &feed->layout;
    if (layout->width_count > 0 && layout->width == PD_WIDTH_FIXED)
        return contradiction(error, "BAD_WIDTHS",
                             "widths has %u entries but width is fixed; use width: step or batch, "
                             "or leave widths out",
                             layout->width_count);
    return check_fixed_segments(feed, error);
}

static int check_values(const struct pd_feed_config *feed, struct pd_error *error)
{
    const struct pd_layout_rules *layout = &feed->layout;
    if (layout->cost.alpha == 0 && layout->cost.beta == 0)
        return contradiction(error, "BAD_COST", "cost.alpha and cost.beta are both 0; set one");
    if (feed->vocab_size > 0 &&
        (layout->pad_id < 0 || (uint32_t)layout->pad_id >= feed->vocab_size))
        return contradiction(error, "BAD_PAD_ID", "pad_id is %d, outside vocab_size %u",
                             layout->pad_id, feed->vocab_size);
    return 0;
}

/* A rule for a source that the feed does not have would never act. */
static int check_prunes(const struct pd_feed_config *feed, struct pd_error *error)
{
    uint32_t all = feed->drop_views_count + feed->keep_frames_count;
    for (uint32_t i = 0; i < all && feed->source_count > 0; i++) {
        bool views = i < feed->drop_views_count;
        const char *name = views ? feed->drop_views[i].source
                                 : feed->keep_frames[i - feed->drop_views_count].source;
        uint32_t s = 0;
        while (s < feed->source_count && strcmp(feed->sources[s].name, name) != 0)
            s++;
        if (s == feed->source_count)
            return contradiction(error, "UNKNOWN_SOURCE",
                                 "%s names the source '%s', which is none of `sources`",
                                 views ? "drop_views" : "keep_frames", name);
    }
    return 0;
}

static int check_feed(struct pd_feed_config *feed, struct pd_error *error)
{
    int (*const checks[])(const struct pd_feed_config *, struct pd_error *) = {
        check_streams, check_sources, check_lanes,  check_jobs,
        check_shape,   check_values,  check_prunes,
    };
    pd_feed_derive(feed);
    for (size_t i = 0; i < PD_COUNT_OF(checks); i++) {
        int rc = checks[i](feed, error);
        if (rc != 0)
            return rc;
    }
    int rc = pd_rules_check(&feed->rules, error);
    return rc != 0 ? rc : pd_layout_rules_check(&feed->layout, error);
}

/* ---- sums ---- */

static int check_twice_a_sample(const struct pd_config *config, const char *key, uint64_t bytes,
                                struct pd_error *error)
{
    char have[32], need[32];
    if (bytes / 2 >= config->max_sample_bytes)
        return 0;
    pd_units_format_bytes(bytes, have, sizeof have);
    pd_units_format_bytes(config->max_sample_bytes, need, sizeof need);
    return contradiction(
        error, "MEMORY",
        "%s is %s, less than twice limits.max_sample_bytes %s: such a sample could "
        "never be sent; raise the first or lower the second",
        key, have, need);
}

static int check_memory(const struct pd_config *config, struct pd_error *error)
{
    char have[32], need[32];
    int rc = check_twice_a_sample(config, "memory.ingest", config->memory_ingest_bytes, error);
    if (rc == 0 && config->peer_bytes > 0)
        rc = check_twice_a_sample(config, "limits.peer_bytes", config->peer_bytes, error);
    if (rc != 0)
        return rc;
    for (uint32_t i = 0; i < config->feed_count; i++) {
        uint64_t row_bytes = pd_layout_payload_max(&config->feeds[i].layout, 1);
        if (row_bytes <= config->memory_batches_bytes / 2)
            continue;
        pd_units_format_bytes(config->memory_batches_bytes, have, sizeof have);
        pd_units_format_bytes(row_bytes, need, sizeof need);
        return contradiction(
            error, "MEMORY",
            "feeds[%u] (%s): a batch of one row may take %s, more than half of memory.batches %s; "
            "raise memory.batches",
            i, config->feeds[i].name, need, have);
    }
    return 0;
}

static int check_log_share(const struct pd_config *config, struct pd_error *error)
{
    uint64_t need = PD_LANE_BLOCKS_BYTES + config->max_sample_bytes;
    for (uint32_t i = 0; i < config->feed_count; i++) {
        const struct pd_feed_config *feed = &config->feeds[i];
        uint64_t have = pd_config_lane_bytes(config, feed, config->log_max_bytes);
        if (have >= need)
            continue;
        char have_text[32], need_text[32];
        return contradiction(error, "LOG_TOO_SMALL",
                             "feeds[%u] (%s): each of its %u lanes may hold %s of log.max_bytes "
                             "unplanned, but needs %s: "
                             "two blocks and one sample of limits.max_sample_bytes; raise the "
                             "first or lower the second",
                             i, feed->name, feed->rules.lane_count,
                             pd_units_format_bytes(have, have_text, sizeof have_text),
                             pd_units_format_bytes(need, need_text, sizeof need_text));
    }
    return 0;
}

int pd_config_check(struct pd_config *config, struct pd_error *error)
{
    int rc = check_addresses(config, error);
    if (rc == 0)
        rc = check_access(config, error);
    for (uint32_t i = 0; i < config->feed_count && rc == 0; i++) {
        rc = check_feed(&config->feeds[i], error);
        if (rc != 0)
            pd_error_prefix(error, rc, "feeds[%u] (%s)", i, config->feeds[i].name);
        for (uint32_t j = 0; j < i && rc == 0; j++) {
            if (strcmp(config->feeds[j].name, config->feeds[i].name) == 0)
                rc = contradiction(error, "REPEATED_NAME",
                                   "feeds[%u] and feeds[%u] are both called '%s'", j, i,
                                   config->feeds[i].name);
        }
    }
    if (rc != 0)
        return rc;
    pd_config_derive(config);
    rc = check_memory(config, error);
    return rc == 0 ? check_log_share(config, error) : rc;
}
