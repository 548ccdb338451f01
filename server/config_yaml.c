/* YAML into struct pd_config: libyaml reads the whole document, then the key tables are walked
 * beside it.
 *
 * Every refusal names file, line and key path. The new configuration is built aside and moved into
 * place only when all of it was good. Anchors and aliases work (a node may be met twice), depth is
 * bounded by the tables, size by FILE_BYTES_MAX. Main thread; trusts no byte. */
#include "server/config.h"

#include "base/bytes.h"
#include "base/check.h"
#include "server/config_keys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define FILE_BYTES_MAX (4u << 20)
#define PATH_MAX_BYTES 256
#define DEPTH_MAX 32 /* the tables go no deeper than 6 */
#define TABLE_KEYS_MAX 64

/* The document and where in it we are. */
struct walk {
    yaml_document_t *document;
    const char *file;
    struct pd_error *error;
};

static yaml_node_t *node_at(struct walk *walk, int index)
{
    yaml_node_t *node = yaml_document_get_node(walk->document, index);
    PD_CHECK(node);
    return node;
}

static const char *node_kind(const yaml_node_t *node)
{
    return node->type == YAML_SCALAR_NODE     ? "one value"
           : node->type == YAML_SEQUENCE_NODE ? "a list"
                                              : "a mapping";
}

/* Puts "file:line: path: " before the error's text. */
static int placed(struct walk *walk, const yaml_node_t *node, const char *path, int rc)
{
    if (*path)
        pd_error_prefix(walk->error, rc, "%s", path);
    return pd_error_prefix(walk->error, rc, "%s:%zu", walk->file, node->start_mark.line + 1);
}

static int no_memory(struct walk *walk)
{
    return pd_error_set(walk->error, PD_ENOMEM, "NO_MEMORY", "no memory for the configuration");
}

static int wrong_kind(struct walk *walk, const yaml_node_t *node, const char *path,
                      const struct pd_key *key)
{
    char expected[200] = "a mapping of keys";
    if (key)
        pd_key_expectation(key, expected, sizeof expected);
    return placed(walk, node, path,
                  pd_error_set(walk->error, PD_EINVAL, "BAD_VALUE", "found %s, expected %s",
                               node_kind(node), expected));
}

static bool scalar_text(const yaml_node_t *node, const char **text)
{
    *text = (const char *)node->data.scalar.value;
    return node->type == YAML_SCALAR_NODE && strlen(*text) == node->data.scalar.length;
}

static size_t list_size(const yaml_node_t *node)
{
    return (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
}

static size_t mapping_size(const yaml_node_t *node)
{
    return (size_t)(node->data.mapping.pairs.top - node->data.mapping.pairs.start);
}

/* The list behind `node` with min to max items, or the refusal. */
static int expect_list(struct walk *walk, const yaml_node_t *node, const char *path,
                       const struct pd_key *key, size_t min, size_t max)
{
    if (node->type != YAML_SEQUENCE_NODE)
        return wrong_kind(walk, node, path, key);
    size_t count = list_size(node);
    char expected[200];
    pd_key_expectation(key, expected, sizeof expected);
    if (count < min || count > max)
        return placed(walk, node, path,
                      pd_error_set(walk->error, PD_EINVAL, "BAD_VALUE",
                                   "found a list of %zu, expected %s", count, expected));
    return 0;
}

static int list_item_text(struct walk *walk, const yaml_node_t *list, size_t index,
                          const char *path, const char **text)
{
    yaml_node_t *item = node_at(walk, list->data.sequence.items.start[index]);
    if (scalar_text(item, text))
        return 0;
    return placed(walk, item, path,
                  pd_error_set(walk->error, PD_EINVAL, "BAD_VALUE",
                               "item %zu is %s, expected one value", index, node_kind(item)));
}

static int walk_mapping(struct walk *walk, yaml_node_t *node, const char *path, const char *prefix,
                        const struct pd_key_table *table, void *base);

/* ---- keys made of several values ---- */

static int set_listen(struct walk *walk, const struct pd_key *key, yaml_node_t *node,
                      const char *path, struct pd_config *config)
{
    const char *texts[PD_LISTEN_MAX];
    int rc = expect_list(walk, node, path, key, key->min, PD_LISTEN_MAX);
    for (size_t i = 0; rc == 0 && i < list_size(node); i++)
        rc = list_item_text(walk, node, i, path, &texts[i]);
    if (rc != 0)
        return rc;
    rc = pd_key_set_addresses(key, config, (char *const *)texts, (uint32_t)list_size(node));
    return rc == 0 ? 0 : no_memory(walk);
}

static int set_names(struct walk *walk, const struct pd_key *key, yaml_node_t *node,
                     const char *path, void *base)
{
    int rc = expect_list(walk, node, path, key, 0, key->max);
    if (rc != 0 || list_size(node) == 0)
        return rc;
    char *at = (char *)base + key->offset_bytes;
    char what[32]; /* "streams" lists streams */
    snprintf(what, sizeof what, "%.*s", (int)strlen(key->path) - 1, key->path);
    uint32_t count = (uint32_t)list_size(node);
    char(*names)[PD_NAME_MAX + 1] = calloc(count, sizeof *names);
    if (!names)
        return no_memory(walk);
    free(*(void **)(void *)at);
    memcpy(at, &names, sizeof names);
    memcpy(at + sizeof names, &count, sizeof count);
    for (uint32_t i = 0; i < count; i++) {
        const char *text;
        rc = list_item_text(walk, node, i, path, &text);
        if (rc != 0)
            return rc;
        rc = pd_name_check(what, text, walk->error);
        if (rc != 0)
            return placed(walk, node, path, rc);
        snprintf(names[i], sizeof names[i], "%s", text);
    }
    return 0;
}

static int set_roles(struct walk *walk, const struct pd_key *key, yaml_node_t *node,
                     const char *path, void *base)
{
    uint32_t roles = 0;
    int rc = expect_list(walk, node, path, key, 1, 4);
    for (size_t i = 0; rc == 0 && i < list_size(node); i++) {
        const char *text;
        rc = list_item_text(walk, node, i, path, &text);
        uint32_t bit = 0;
        while (rc == 0 && pd_role_words[bit] && strcmp(pd_role_words[bit], text) != 0)
            bit++;
        if (rc == 0 && !pd_role_words[bit])
            return placed(walk, node, path,
                          pd_error_set(walk->error, PD_EINVAL, "BAD_VALUE",
                                       "'%.60s' is no role; expected produce, read, observe or "
                                       "admin",
                                       text));
        roles |= 1u << bit;
    }
    memcpy((char *)base + key->offset_bytes, &roles, sizeof roles);
    return rc;
}

static int set_auth(struct walk *walk, const struct pd_key *key, yaml_node_t *node,
                    const char *path, struct pd_config *config)
{
    int rc = expect_list(walk, node, path, key, 0, PD_PRINCIPALS_MAX);
    if (rc != 0 || list_size(node) == 0)
        return rc;
    config->auth = calloc(list_size(node), sizeof *config->auth);
    if (!config->auth)
        return no_memory(walk);
    for (size_t i = 0; i < list_size(node); i++) {
        struct pd_principal_config *principal = &config->auth[config->auth_count++];
        char place[PATH_MAX_BYTES];
        snprintf(place, sizeof place, "%.150s[%zu]", path, i);
        if (pd_keys_default(&pd_principal_keys, principal) != 0)
            return no_memory(walk);
        rc = walk_mapping(walk, node_at(walk, node->data.sequence.items.start[i]), place, "",
                          &pd_principal_keys, principal);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int set_numbers(struct walk *walk, const struct pd_key *key, yaml_node_t *node,
                       const char *path, void *base)
{
    uint32_t *numbers = (uint32_t *)(void *)((char *)base + key->offset_bytes);
    size_t max = key->size_bytes / sizeof *numbers;
    int rc = expect_list(walk, node, path, key, 0, max);
    struct pd_key one = {.path = key->path,
                         .kind = PD_KEY_NUMBER,
                         .size_bytes = sizeof *numbers,
                         .min = key->min,
                         .max = key->max};
    for (size_t i = 0; rc == 0 && i < list_size(node); i++) {
        const char *text;
        rc = list_item_text(walk, node, i, path, &text);
        if (rc != 0)
            return rc;
        rc = pd_key_set(&one, &numbers[i], text, walk->error);
        if (rc != 0)
            return placed(walk, node, path, rc);
        numbers[max] = (uint32_t)i + 1; /* the count */
    }
    return rc;
}

/* The name and the node of a mapping's pair whose keys are free names. */
static int named_pair(struct walk *walk, yaml_node_t *node, size_t index, const char *what,
                      const char *path, const char **name, yaml_node_t **value)
{
    yaml_node_t *key = node_at(walk, node->data.mapping.pairs.start[index].key);
    *value = node_at(walk, node->data.mapping.pairs.start[index].value);
    if (!scalar_text(key, name))
        return wrong_kind(walk, key, path, NULL);
    int rc = pd_name_check(what, *name, walk->error);
    return rc == 0 ? 0 : placed(walk, key, path, rc);
}

static int set_sources(struct walk *walk, const struct pd_key *key, yaml_node_t *node,
                       const char *path, struct pd_feed_config *feed)
{
    if (node->type != YAML_MAPPING_NODE || mapping_size(node) > PD_SOURCES_MAX)
        return wrong_kind(walk, node, path, key);
    if (mapping_size(node) == 0)
        return 0;
    feed->sources = calloc(mapping_size(node), sizeof *feed->sources);
    if (!feed->sources)
        return no_memory(walk);
    for (size_t i = 0; i < mapping_size(node); i++) {
        const char *name;
        yaml_node_t *value;
        int rc = named_pair(walk, node, i, "source", path, &name, &value);
        if (rc != 0)
            return rc;
        struct pd_source_config *source = &feed->sources[feed->source_count++];
        snprintf(source->name, sizeof source->name, "%s", name);
        char place[PATH_MAX_BYTES];
        snprintf(place, sizeof place, "%.150s.%s", path, name);
        if (pd_keys_default(&pd_source_keys, source) != 0)
            return no_memory(walk);
        rc = walk_mapping(walk, value, place, "", &pd_source_keys, source);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* Room for `more` views behind those that are there. */
static struct pd_drop_view *grow_views(struct pd_feed_config *feed, size_t more)
{
    size_t count = feed->drop_views_count + more;
    struct pd_drop_view *views = reallocarray(feed->drop_views, count ? count : 1, sizeof *views);
    if (views)
        feed->drop_views = views;
    return views;
}

/* The list behind one source. */
static int set_source_views(struct walk *walk, const char *source, yaml_node_t *list,
                            const char *path, struct pd_feed_config *feed)
{
    if (!grow_views(feed, list_size(list)))
        return no_memory(walk);
    for (size_t i = 0; i < list_size(list); i++) {
        const char *text;
        int rc = list_item_text(walk, list, i, path, &text);
        if (rc == 0 && (rc = pd_name_check("view", text, walk->error)) != 0)
            return placed(walk, list, path, rc);
        if (rc != 0)
            return rc;
        struct pd_drop_view *drop = &feed->drop_views[feed->drop_views_count++];
        snprintf(drop->source, sizeof drop->source, "%s", source);
        snprintf(drop->view, sizeof drop->view, "%s", text);
    }
    return 0;
}

static int set_views(struct walk *walk, const struct pd_key *key, yaml_node_t *node,
                     const char *path, struct pd_feed_config *feed)
{
    if (node->type != YAML_MAPPING_NODE || mapping_size(node) > PD_PRUNE_RULES_MAX)
        return wrong_kind(walk, node, path, key);
    for (size_t i = 0; i < mapping_size(node); i++) {
        const char *name;
        yaml_node_t *value;
        int rc = named_pair(walk, node, i, "source", path, &name, &value);
        if (rc == 0)
            rc = expect_list(walk, value, path, key, 0, PD_VIEWS_MAX);
        if (rc == 0)
            rc = set_source_views(walk, name, value, path, feed);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int set_frames(struct walk *walk, const struct pd_key *key, yaml_node_t *node,
                      const char *path, struct pd_feed_config *feed)
{
    if (node->type != YAML_MAPPING_NODE || mapping_size(node) > PD_PRUNE_RULES_MAX)
        return wrong_kind(walk, node, path, key);
    feed->keep_frames = calloc(PD_PRUNE_RULES_MAX, sizeof *feed->keep_frames);
    if (!feed->keep_frames)
        return no_memory(walk);
    struct pd_key one = {.path = key->path,
                         .kind = PD_KEY_NUMBER,
                         .size_bytes = sizeof(uint32_t),
                         .min = key->min,
                         .max = key->max};
    for (size_t i = 0; i < mapping_size(node); i++) {
        const char *name, *text;
        yaml_node_t *value;
        struct pd_keep_frames *keep = &feed->keep_frames[feed->keep_frames_count];
        int rc = named_pair(walk, node, i, "source", path, &name, &value);
        if (rc == 0 && !scalar_text(value, &text))
            rc = wrong_kind(walk, value, path, key);
        if (rc != 0)
            return rc;
        rc = pd_key_set(&one, &keep->every, text, walk->error);
        if (rc != 0)
            return placed(walk, value, path, rc);
        snprintf(keep->source, sizeof keep->source, "%s", name);
        feed->keep_frames_count++;
    }
    return 0;
}

static int set_jobs(struct walk *walk, const struct pd_key *key, yaml_node_t *node,
                    const char *path, struct pd_feed_config *feed)
{
    int rc = expect_list(walk, node, path, key, 0, PD_JOBS_MAX);
    if (rc != 0 || list_size(node) == 0)
        return rc;
    feed->jobs = calloc(list_size(node), sizeof *feed->jobs);
    if (!feed->jobs)
        return no_memory(walk);
    for (size_t i = 0; i < list_size(node); i++) {
        struct pd_job_config *job = &feed->jobs[feed->job_count++];
        char place[PATH_MAX_BYTES];
        snprintf(place, sizeof place, "%.150s[%zu]", path, i);
        if (pd_keys_default(&pd_job_keys, job) != 0)
            return no_memory(walk);
        rc = walk_mapping(walk, node_at(walk, node->data.sequence.items.start[i]), place, "",
                          &pd_job_keys, job);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int set_feeds(struct walk *walk, const struct pd_key *key, yaml_node_t *node,
                     const char *path, struct pd_config *config)
{
    int rc = expect_list(walk, node, path, key, 1, PD_FEEDS_MAX);
    if (rc != 0)
        return rc;
    for (uint32_t i = 0; i < config->feed_count; i++)
        pd_feed_fini(&config->feeds[i]);
    free(config->feeds);
    config->feed_count = 0;
    config->feeds = calloc(list_size(node), sizeof *config->feeds);
    if (!config->feeds)
        return no_memory(walk);
    for (size_t i = 0; i < list_size(node); i++) {
        struct pd_feed_config *feed = &config->feeds[config->feed_count++];
        char place[PATH_MAX_BYTES];
        snprintf(place, sizeof place, "%.150s[%zu]", path, i);
        rc = pd_feed_default(feed);
        if (rc == 0)
            rc = walk_mapping(walk, node_at(walk, node->data.sequence.items.start[i]), place, "",
                              &pd_feed_keys, feed);
        if (rc != 0)
            return rc;
        pd_feed_derive(feed);
    }
    return 0;
}

/* ---- the walk ---- */

static int set_key(struct walk *walk, const struct pd_key *key, yaml_node_t *node, const char *path,
                   void *base)
{
    const char *text;
    switch (key->kind) {
    case PD_KEY_LISTEN:
        return set_listen(walk, key, node, path, base);
    case PD_KEY_NAMES:
        return set_names(walk, key, node, path, base);
    case PD_KEY_ROLES:
        return set_roles(walk, key, node, path, base);
    case PD_KEY_AUTH:
        return set_auth(walk, key, node, path, base);
    case PD_KEY_SOURCES:
        return set_sources(walk, key, node, path, base);
    case PD_KEY_NUMBERS:
        return set_numbers(walk, key, node, path, base);
    case PD_KEY_VIEWS:
        return set_views(walk, key, node, path, base);
    case PD_KEY_FRAMES:
        return set_frames(walk, key, node, path, base);
    case PD_KEY_JOBS:
        return set_jobs(walk, key, node, path, base);
    case PD_KEY_FEEDS:
        return set_feeds(walk, key, node, path, base);
    default:
        break;
    }
    if (!scalar_text(node, &text))
        return wrong_kind(walk, node, path, key);
    int rc = pd_key_set(key, base, text, walk->error);
    return rc == 0 ? 0 : placed(walk, node, path, rc);
}

/* Refuses `name`; suggests a key of this mapping, or says where a key of that name belongs. */
static int unknown_key(struct walk *walk, const yaml_node_t *node, const char *path,
                       const char *prefix, const char *name, const struct pd_key_table *table)
{
    char near[TABLE_KEYS_MAX][64], hint[120] = "";
    const char *candidates[TABLE_KEYS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < table->count && count < TABLE_KEYS_MAX; i++) {
        if (strncmp(table->keys[i].path, prefix, strlen(prefix)) != 0)
            continue;
        const char *rest = table->keys[i].path + strlen(prefix);
        snprintf(near[count], sizeof near[0], "%.*s", (int)strcspn(rest, "."), rest);
        candidates[count] = near[count];
        count++;
    }
    const char *found = pd_nearest(name, candidates, count);
    if (found)
        snprintf(hint, sizeof hint, "; did you mean '%s'?", found);
    for (size_t i = 0; !found && i < pd_feed_keys.count && table == &pd_top_keys; i++) {
        if (strcmp(pd_feed_keys.keys[i].path, name) == 0)
            snprintf(hint, sizeof hint, "; it belongs into an entry of 'feeds'");
    }
    pd_error_set(walk->error, PD_EINVAL, "UNKNOWN_KEY", "unknown key '%.60s'%s%s%s", name,
                 *path ? " in " : "", path, hint);
    return placed(walk, node, "", PD_EINVAL);
}

/* The row whose path is `full`; *section tells whether rows lie below it instead. */
static const struct pd_key *find_key(const struct pd_key_table *table, const char *full,
                                     bool *section)
{
    size_t length = strlen(full);
    *section = false;
    for (size_t i = 0; i < table->count; i++) {
        const char *path = table->keys[i].path;
        if (strcmp(path, full) == 0)
            return &table->keys[i];
        *section |= strncmp(path, full, length) == 0 && path[length] == '.';
    }
    return NULL;
}

static int check_repeated(struct walk *walk, yaml_node_t *node, size_t index, const char *path,
                          const char *name)
{
    for (size_t i = 0; i < index; i++) {
        yaml_node_t *key = node_at(walk, node->data.mapping.pairs.start[i].key);
        const char *other;
        if (scalar_text(key, &other) && strcmp(other, name) == 0)
            return placed(walk, node_at(walk, node->data.mapping.pairs.start[index].key), path,
                          pd_error_set(walk->error, PD_EINVAL, "REPEATED_KEY",
                                       "'%.60s' is there twice, first in line %zu", name,
                                       key->start_mark.line + 1));
    }
    return 0;
}

static int walk_pair(struct walk *walk, yaml_node_t *node, size_t index, const char *path,
                     const char *prefix, const struct pd_key_table *table, void *base)
{
    yaml_node_t *key_node = node_at(walk, node->data.mapping.pairs.start[index].key);
    yaml_node_t *value = node_at(walk, node->data.mapping.pairs.start[index].value);
    const char *name;
    if (!scalar_text(key_node, &name))
        return wrong_kind(walk, key_node, path, NULL);
    int rc = check_repeated(walk, node, index, path, name);
    if (rc != 0)
        return rc;
    char full[PATH_MAX_BYTES], place[PATH_MAX_BYTES], below[PATH_MAX_BYTES];
    snprintf(full, sizeof full, "%.60s%.60s", prefix, name);
    snprintf(place, sizeof place, "%.150s%s%.60s", path, *path ? "." : "", name);
    bool section;
    const struct pd_key *key = find_key(table, full, &section);
    if (key && !strchr(name, '.'))
        return set_key(walk, key, value, place, base);
    if (!section || strchr(name, '.'))
        return unknown_key(walk, key_node, path, prefix, name, table);
    snprintf(below, sizeof below, "%.120s.", full);
    return walk_mapping(walk, value, place, below, table, base);
}

/* Applies the pairs of `node` to *base by the rows of `table` whose path starts with `prefix`. */
static int walk_mapping(struct walk *walk, yaml_node_t *node, const char *path, const char *prefix,
                        const struct pd_key_table *table, void *base)
{
    if (node->type != YAML_MAPPING_NODE)
        return wrong_kind(walk, node, path, NULL);
    for (size_t i = 0; i < mapping_size(node); i++) {
        int rc = walk_pair(walk, node, i, path, prefix, table, base);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int syntax_error(const yaml_parser_t *parser, const char *name, struct pd_error *error)
{
    if (parser->error == YAML_MEMORY_ERROR)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for the configuration");
    return pd_error_set(error, PD_EINVAL, "BAD_YAML", "%s:%zu: not YAML: %s", name,
                        parser->problem_mark.line + 1,
                        parser->problem ? parser->problem : "unreadable");
}

/* Loads the next document and hands its root to the walk; an empty file leaves the defaults. */
static int walk_document(yaml_parser_t *parser, struct pd_config *config, const char *name,
                         struct pd_error *error)
{
    yaml_document_t document;
    if (!yaml_parser_load(parser, &document))
        return syntax_error(parser, name, error);
    struct walk walk = {.document = &document, .file = name, .error = error};
    yaml_node_t *root = yaml_document_get_root_node(&document);
    int rc = root ? walk_mapping(&walk, root, "", "", &pd_top_keys, config) : 0;
    bool last = !root;
    yaml_document_delete(&document);
    if (rc != 0 || last)
        return rc;
    if (!yaml_parser_load(parser, &document))
        return syntax_error(parser, name, error);
    if (yaml_document_get_root_node(&document))
        rc = pd_error_set(error, PD_EINVAL, "BAD_YAML",
                          "%s: a second document begins; expected one", name);
    yaml_document_delete(&document);
    return rc;
}

static int depth_step(yaml_event_type_t type)
{
    switch (type) {
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        return 1;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return -1;
    default:
        return 0;
    }
}

/* libyaml's time and memory grow with the square of the depth, so depth is bounded before the text
 * is loaded. What is not YAML is left to the loader's words. */
static int check_depth(const char *yaml, size_t size, const char *name, struct pd_error *error)
{
    yaml_parser_t parser;
    yaml_event_t event;
    int depth = 0, rc = 0;
    bool more = true;
    if (!yaml_parser_initialize(&parser))
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for the configuration");
    yaml_parser_set_input_string(&parser, (const unsigned char *)yaml, size);
    while (more && rc == 0 && yaml_parser_parse(&parser, &event)) {
        depth += depth_step(event.type);
        more = event.type != YAML_STREAM_END_EVENT;
        if (depth > DEPTH_MAX)
            rc = pd_error_set(error, PD_EINVAL, "BAD_YAML", "%s:%zu: nested deeper than %d", name,
                              event.start_mark.line + 1, DEPTH_MAX);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return rc;
}

int pd_config_parse(struct pd_config *config, const char *yaml, size_t size, const char *name,
                    struct pd_error *error)
{
    struct pd_config made;
    if (size > FILE_BYTES_MAX)
        return pd_error_set(error, PD_EINVAL, "TOO_LARGE", "%s: %zu bytes, expected at most %u",
                            name, size, FILE_BYTES_MAX);
    int rc = pd_config_default(&made);
    if (rc != 0)
        return pd_error_set(error, rc, "NO_MEMORY", "no memory for the configuration");
    rc = check_depth(yaml, size, name, error);
    if (rc != 0) {
        pd_config_fini(&made);
        return rc;
    }
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) {
        pd_config_fini(&made);
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for the configuration");
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)yaml, size);
    rc = walk_document(&parser, &made, name, error);
    yaml_parser_delete(&parser);
    if (rc != 0) {
        pd_config_fini(&made);
        return rc;
    }
    pd_config_derive(&made);
    pd_config_fini(config);
    *config = made;
    return 0;
}

static int read_file(const char *path, struct pd_buf *buf, struct pd_error *error)
{
    FILE *file = fopen(path, "rbe");
    if (!file)
        return pd_error_set(error, PD_EIO, "CONFIG_UNREADABLE", "cannot open %s: %s", path,
                            strerror(errno));
    char chunk[4096];
    size_t got;
    while ((got = fread(chunk, 1, sizeof chunk, file)) > 0 && buf->size_bytes <= FILE_BYTES_MAX)
        pd_buf_put(buf, chunk, got);
    int rc = ferror(file)  ? pd_error_set(error, PD_EIO, "CONFIG_UNREADABLE", "cannot read %s: %s",
                                          path, strerror(errno))
             : buf->failed ? pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for %s", path)
                           : 0;
    fclose(file);
    return rc;
}

int pd_config_load(struct pd_config *config, const char *path, struct pd_error *error)
{
    struct pd_buf buf = {0};
    int rc = read_file(path, &buf, error);
    if (rc == 0)
        rc = pd_config_parse(config, buf.data ? (const char *)buf.data : "", buf.size_bytes, path,
                             error);
    pd_buf_fini(&buf);
    return rc;
}
