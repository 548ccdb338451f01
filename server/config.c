/* The configuration's life: defaults, variables of the environment, derived fields, digest, end.
 *
 * Order at start (packd.c): default, load, environment, flags, check. Each later one overrides what
 * the earlier ones set. The YAML is read in config_yaml.c, rules across keys are in config_check.c,
 * texts are made in config_print.c. Main thread; nothing here logs. */
#include "server/config.h"

#include "base/bytes.h"
#include "base/check.h"
#include "server/config_keys.h"

#include <ctype.h>
#include <endian.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* the state's size */
#include <xxhash.h>

#define SAMPLE_BYTES (64ull << 20)
#define SAMPLE_BYTES_MIN (64ull << 10)

extern char **environ;

int pd_config_set_string(char **field, const char *value)
{
    char *copy = strdup(value);
    if (!copy)
        return PD_ENOMEM;
    free(*field);
    *field = copy;
    return 0;
}

int pd_config_set_listen(struct pd_config *config, char *const *addresses, uint32_t count)
{
    return count == 0 || count > PD_LISTEN_MAX
               ? PD_EINVAL
               : pd_key_set_addresses(&pd_top_keys.keys[0], config, addresses, count);
}

int pd_feed_default(struct pd_feed_config *feed)
{
    *feed = (struct pd_feed_config){0};
    return pd_keys_default(&pd_feed_keys, feed);
}

int pd_config_default(struct pd_config *config)
{
    *config = (struct pd_config){0};
    int rc = pd_keys_default(&pd_top_keys, config);
    char *listen = "127.0.0.1:7070";
    if (rc == 0)
        rc = pd_config_set_listen(config, &listen, 1);
    if (rc == 0) {
        config->feeds = calloc(1, sizeof *config->feeds);
        config->feed_count = config->feeds ? 1 : 0;
        rc = config->feeds ? pd_feed_default(&config->feeds[0]) : PD_ENOMEM;
    }
    if (rc == 0)
        pd_feed_derive(&config->feeds[0]);
    if (rc == 0)
        pd_config_derive(config);
    if (rc != 0)
        pd_config_fini(config);
    return rc;
}

void pd_feed_fini(struct pd_feed_config *feed)
{
    free(feed->streams);
    free(feed->sources);
    free(feed->jobs);
    free(feed->drop_views);
    free(feed->keep_frames);
    *feed = (struct pd_feed_config){0};
}

void pd_config_fini(struct pd_config *config)
{
    for (size_t k = 0; k < pd_top_keys.count; k++) {
        uint32_t count;
        if (pd_top_keys.keys[k].kind != PD_KEY_LISTEN)
            continue;
        char *const *addresses = pd_key_addresses(&pd_top_keys.keys[k], config, &count);
        for (uint32_t i = 0; i < count; i++)
            free(addresses[i]);
        free((void *)addresses);
    }
    for (uint32_t i = 0; i < config->auth_count; i++) {
        free(config->auth[i].token_file);
        free(config->auth[i].certificate);
        free(config->auth[i].feeds);
    }
    free(config->auth);
    free(config->tls_cert);
    free(config->tls_key);
    free(config->tls_client_ca);
    free(config->http);
    free(config->log_path);
    for (uint32_t i = 0; i < config->feed_count; i++)
        pd_feed_fini(&config->feeds[i]);
    free(config->feeds);
    *config = (struct pd_config){0};
}

/* Lanes are sources, or declared streams with an ordered merge, or the feed as a whole. `epochs` is
 * short for `repeat` on each. */
static void derive_lanes(struct pd_feed_config *feed)
{
    struct pd_rules *rules = &feed->rules;
    struct pd_lane_rules plain = {.weight = 1, .on_end = PD_ON_END_CONTINUE, .passes_max = 1};
    rules->lane_count = 1;
    rules->lanes[0] = plain;
    if (rules->merge == PD_MERGE_ORDERED && feed->stream_count > 0)
        rules->lane_count = feed->stream_count;
    if (feed->source_count > 0) {
        rules->lane_count = feed->source_count;
        for (uint32_t i = 0; i < feed->source_count && i < PD_COUNT_OF(rules->lanes); i++)
            rules->lanes[i] = feed->sources[i].lane;
    }
    for (uint32_t i = 0; i < rules->lane_count && i < PD_COUNT_OF(rules->lanes); i++) {
        if (rules->lanes[i].passes_max == 0)
            rules->lanes[i].passes_max =
                rules->lanes[i].on_end == PD_ON_END_REPEAT ? UINT32_MAX : 1;
    }
    for (uint32_t i = 0; feed->epochs > 1 && i < rules->lane_count && i < PD_COUNT_OF(rules->lanes);
         i++) {
        rules->lanes[i].on_end = PD_ON_END_REPEAT;
        rules->lanes[i].passes_max = feed->epochs;
    }
}

/* With fixed_segments the planner caps what a row holds, so that one row of a batch always fits:
 * the most real segments that leave room for the padding's. */
static void derive_cap(struct pd_feed_config *feed)
{
    const struct pd_layout_rules *layout = &feed->layout;
    if (layout->fixed_segments == 0 || feed->rules.segments_max > 0 || layout->seg_align == 0 ||
        layout->pad_segment < layout->seg_align || layout->seq_len < layout->seg_align)
        return;
    uint32_t low = 1, high = layout->seq_len / layout->seg_align;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (pd_layout_row_segments_max(layout, middle) <= layout->fixed_segments)
            low = middle;
        else
            high = middle - 1;
    }
    feed->rules.segments_max = low;
}

void pd_feed_derive(struct pd_feed_config *feed)
{
    feed->layout.seq_len = feed->rules.seq_len;
    feed->layout.seg_align = feed->rules.seg_align;
    if (feed->layout.total_align == 0)
        feed->layout.total_align = feed->rules.seg_align;
    derive_cap(feed);
    feed->layout.segments_max = feed->rules.segments_max;
    derive_lanes(feed);
}

bool pd_config_has_tls(const struct pd_config *config)
{
    return config->tls_cert[0] != '\0';
}

uint64_t pd_config_feed_bytes(const struct pd_config *config, const struct pd_feed_config *feed,
                              uint64_t log_bytes)
{
    uint64_t shares = 0;
    for (uint32_t i = 0; i < config->feed_count; i++)
        shares += config->feeds[i].log_share;
    return log_bytes / shares * feed->log_share;
}

uint64_t pd_config_lane_bytes(const struct pd_config *config, const struct pd_feed_config *feed,
                              uint64_t log_bytes)
{
    return pd_config_feed_bytes(config, feed, log_bytes) / 2 / feed->rules.lane_count;
}

void pd_config_derive(struct pd_config *config)
{
    uint64_t bytes = SAMPLE_BYTES;
    if (config->memory_ingest_bytes / 2 < bytes)
        bytes = config->memory_ingest_bytes / 2;
    if (config->peer_bytes > 0 && config->peer_bytes / 2 < bytes)
        bytes = config->peer_bytes / 2;
    for (uint32_t i = 0; i < config->feed_count; i++) {
        uint64_t lane = pd_config_lane_bytes(config, &config->feeds[i], config->log_max_bytes);
        uint64_t room = lane > PD_LANE_BLOCKS_BYTES ? lane - PD_LANE_BLOCKS_BYTES : 0;
        if (room < bytes)
            bytes = room;
    }
    if (bytes < SAMPLE_BYTES_MIN)
        bytes = SAMPLE_BYTES_MIN;
    config->max_sample_bytes =
        config->max_sample_wanted_bytes > 0 ? config->max_sample_wanted_bytes : bytes;
}

/* ---- the environment ---- */

/* "log.max_bytes" becomes PACKD_LOG_MAX_BYTES. */
static void variable_name(const char *path, char *name, size_t size)
{
    size_t used = (size_t)snprintf(name, size, "PACKD_");
    for (; *path && used + 1 < size; path++)
        name[used++] = *path == '.' ? '_' : (char)toupper((unsigned char)*path);
    name[used] = '\0';
}

#define VARIABLES_MAX 64
struct variables {
    char names[VARIABLES_MAX][64];
    const struct pd_key *keys[VARIABLES_MAX];
    size_t count;
};

static void add_variable(struct variables *variables, const struct pd_key *key)
{
    PD_CHECK(variables->count < VARIABLES_MAX);
    variable_name(key->path, variables->names[variables->count], sizeof variables->names[0]);
    variables->keys[variables->count++] = key;
}

/* One a key outside `feeds`, and PACKD_DATA_DIR as the other name of log.path. */
static void list_variables(struct variables *variables)
{
    variables->count = 0;
    for (size_t i = 0; i < pd_top_keys.count; i++) {
        const struct pd_key *key = &pd_top_keys.keys[i];
        if (key->kind == PD_KEY_FEEDS || key->kind == PD_KEY_AUTH)
            continue;
        add_variable(variables, key);
        if (strcmp(key->path, "log.path") != 0)
            continue;
        add_variable(variables, key);
        snprintf(variables->names[variables->count - 1], sizeof variables->names[0],
                 "PACKD_DATA_DIR");
    }
}

static int set_listen_text(const struct pd_key *key, struct pd_config *config, const char *text,
                           struct pd_error *error)
{
    char *copy = strdup(text), *addresses[PD_LISTEN_MAX + 1], *rest = NULL;
    uint32_t count = 0;
    if (!copy)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory");
    for (char *at = strtok_r(copy, ",", &rest); at && count <= PD_LISTEN_MAX;
         at = strtok_r(NULL, ",", &rest))
        addresses[count++] = at;
    int rc = count < key->min || count > PD_LISTEN_MAX
                 ? PD_EINVAL
                 : pd_key_set_addresses(key, config, addresses, count);
    free(copy);
    return rc == 0 ? 0
                   : pd_error_set(error, rc, "BAD_VALUE",
                                  "'%.60s' is not possible here; expected %" PRIu64
                                  " to %d addresses with commas between them",
                                  text, key->min, PD_LISTEN_MAX);
}

static int apply_variable(struct pd_config *config, const struct variables *variables,
                          const char *name, const char *value, struct pd_error *error)
{
    const char *names[VARIABLES_MAX];
    for (size_t i = 0; i < variables->count; i++) {
        names[i] = variables->names[i];
        if (strcmp(names[i], name) != 0)
            continue;
        const struct pd_key *key = variables->keys[i];
        int rc = key->kind == PD_KEY_LISTEN ? set_listen_text(key, config, value, error)
                                            : pd_key_set(key, config, value, error);
        return rc == 0 ? 0 : pd_error_prefix(error, rc, "environment variable %s", name);
    }
    const char *near = pd_nearest(name, names, variables->count);
    if (near)
        return pd_error_set(error, PD_EINVAL, "UNKNOWN_VARIABLE",
                            "environment variable %.80s is not known; did you mean %s?", name,
                            near);
    return 0;
}

int pd_config_environment(struct pd_config *config, struct pd_error *error)
{
    struct variables variables;
    list_variables(&variables);
    for (char **entry = environ; entry && *entry; entry++) {
        const char *equals = strchr(*entry, '=');
        char name[96];
        if (strncmp(*entry, "PACKD_", 6) != 0 || !equals ||
            (size_t)(equals - *entry) >= sizeof name)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(equals - *entry), *entry);
        int rc = apply_variable(config, &variables, name, equals + 1, error);
        if (rc != 0)
            return rc;
    }
    return 0;
}

int pd_config_variables(FILE *out)
{
    struct variables variables;
    list_variables(&variables);
    for (size_t i = 0; i < variables.count; i++)
        fprintf(out, "  %-31s %s\n", variables.names[i], variables.keys[i]->path);
    return ferror(out) ? PD_EIO : 0;
}

/* ---- looking up, digest ---- */

const struct pd_feed_config *pd_config_feed(const struct pd_config *config, const char *name,
                                            uint32_t *index)
{
    for (uint32_t i = 0; i < config->feed_count; i++) {
        if (strcmp(config->feeds[i].name, name) != 0)
            continue;
        if (index)
            *index = i;
        return &config->feeds[i];
    }
    return NULL;
}

/* "path=value;" of every key that shapes batches; lists in order. A new key changes the digest of
 * every feed: that is meant, since it may change what a feed's configuration means. */
static void hash_u32(XXH3_state_t *state, uint32_t value)
{
    value = htole32(value);
    XXH3_64bits_update(state, &value, sizeof value);
}

/* varint length, then the bytes */
static void hash_string(XXH3_state_t *state, const char *text)
{
    uint8_t bytes[10];
    struct pd_buf length = {.data = bytes, .capacity_bytes = sizeof bytes};
    pd_buf_put_varint(&length, strlen(text));
    XXH3_64bits_update(state, length.data, length.size_bytes);
    XXH3_64bits_update(state, text, strlen(text));
}

static void hash_pair(XXH3_state_t *state, const struct pd_key *key, const void *base)
{
    char value[80];
    pd_key_text(key, base, value, sizeof value);
    XXH3_64bits_update(state, key->path, strlen(key->path));
    hash_string(state, value);
}

static void hash_prunes(XXH3_state_t *state, enum pd_key_kind kind,
                        const struct pd_feed_config *feed)
{
    bool views = kind == PD_KEY_VIEWS;
    uint32_t count = views ? feed->drop_views_count : feed->keep_frames_count;
    hash_u32(state, count);
    for (uint32_t i = 0; i < count; i++) {
        hash_string(state, views ? feed->drop_views[i].source : feed->keep_frames[i].source);
        if (views)
            hash_string(state, feed->drop_views[i].view);
        else
            hash_u32(state, feed->keep_frames[i].every);
    }
}

static void hash_several(XXH3_state_t *state, const struct pd_key *key,
                         const struct pd_feed_config *feed)
{
    XXH3_64bits_update(state, key->path, strlen(key->path));
    if (key->kind == PD_KEY_NAMES) {
        uint32_t count;
        const char(*names)[PD_NAME_MAX + 1] = pd_key_names(key, feed, &count);
        hash_u32(state, count);
        for (uint32_t i = 0; i < count; i++)
            hash_string(state, names[i]);
    } else if (key->kind == PD_KEY_SOURCES) {
        hash_u32(state, feed->source_count);
        for (uint32_t i = 0; i < feed->source_count; i++) {
            hash_string(state, feed->sources[i].name);
            for (size_t k = 0; k < pd_source_keys.count; k++)
                hash_pair(state, &pd_source_keys.keys[k], &feed->sources[i]);
        }
    } else if (key->kind == PD_KEY_NUMBERS) {
        uint32_t count;
        const uint32_t *numbers = pd_key_numbers(key, feed, &count);
        hash_u32(state, count);
        for (uint32_t i = 0; i < count; i++)
            hash_u32(state, numbers[i]);
    } else {
        PD_CHECK(key->kind == PD_KEY_VIEWS || key->kind == PD_KEY_FRAMES);
        hash_prunes(state, key->kind, feed);
    }
}

/* Takes no memory: a start that lacks it must be able to say so. */
uint64_t pd_feed_config_digest(const struct pd_feed_config *feed)
{
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (size_t i = 0; i < pd_feed_keys.count; i++) {
        const struct pd_key *key = &pd_feed_keys.keys[i];
        if (!key->shapes_batches)
            continue;
        if (pd_key_is_scalar(key))
            hash_pair(&state, key, feed);
        else
            hash_several(&state, key, feed);
    }
    return XXH3_64bits_digest(&state);
}
