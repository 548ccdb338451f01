/* The configuration in words, all from the key tables: the effective configuration as YAML, the
 * commented sample, docs/CONFIGURATION.md.
 *
 * What is printed parses back to the same configuration. Text that YAML could read otherwise is
 * quoted. Main thread. */
#include "server/config.h"

#include "base/check.h"
#include "server/config_keys.h"

#include <ctype.h>
#include <string.h>

#define TEXT_MAX 4200

/* Where lines go and how: `comments` adds each key's help. */
struct printer {
    FILE *out;
    bool comments;
};

static bool is_plain(const char *text)
{
    static const char *const words[] = {"null", "true", "false", "yes", "no",
                                        "on",   "off",  "y",     "n"};
    if (!isalpha((unsigned char)text[0]) && text[0] != '.' && text[0] != '/')
        return false;
    for (size_t i = 0; i < PD_COUNT_OF(words); i++) {
        if (strcasecmp(text, words[i]) == 0)
            return false;
    }
    return text[strspn(
               text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-")] == '\0';
}

static void put_text(FILE *out, const char *text)
{
    if (is_plain(text)) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            fprintf(out, "\\x%02x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static void put_scalar(FILE *out, const struct pd_key *key, const void *base)
{
    char text[TEXT_MAX];
    pd_key_text(key, base, text, sizeof text);
    if (key->kind == PD_KEY_NAME || key->kind == PD_KEY_STRING || key->kind == PD_KEY_FILE)
        put_text(out, text);
    else
        fputs(text, out); /* choices stay words: "off" is one here */
}

/* ---- keys made of several values, on one line ---- */

static void put_listen(FILE *out, const struct pd_key *key, const void *base)
{
    uint32_t count;
    char *const *addresses = pd_key_addresses(key, base, &count);
    fputc('[', out);
    for (uint32_t i = 0; i < count; i++) {
        fputs(i ? ", " : "", out);
        put_text(out, addresses[i]);
    }
    fputc(']', out);
}

static void put_names(FILE *out, const struct pd_key *key, const void *base)
{
    uint32_t count;
    const char(*names)[PD_NAME_MAX + 1] = pd_key_names(key, base, &count);
    fputc('[', out);
    for (uint32_t i = 0; i < count; i++) {
        fputs(i ? ", " : "", out);
        put_text(out, names[i]);
    }
    fputc(']', out);
}

static void put_roles(FILE *out, const struct pd_key *key, const void *base)
{
    uint32_t roles;
    const char *lead = "";
    memcpy(&roles, (const char *)base + key->offset_bytes, sizeof roles);
    fputc('[', out);
    for (uint32_t bit = 0; pd_role_words[bit]; bit++) {
        if (!(roles & 1u << bit))
            continue;
        fprintf(out, "%s%s", lead, pd_role_words[bit]);
        lead = ", ";
    }
    fputc(']', out);
}

static void put_numbers(FILE *out, const struct pd_key *key, const void *base)
{
    uint32_t count;
    const uint32_t *numbers = pd_key_numbers(key, base, &count);
    fputc('[', out);
    for (uint32_t i = 0; i < count; i++)
        fprintf(out, "%s%u", i ? ", " : "", numbers[i]);
    fputc(']', out);
}

static void put_sources(FILE *out, const struct pd_feed_config *feed)
{
    fputc('{', out);
    for (uint32_t i = 0; i < feed->source_count; i++) {
        fputs(i ? ", " : "", out);
        put_text(out, feed->sources[i].name);
        for (size_t k = 0; k < pd_source_keys.count; k++) {
            fprintf(out, "%s%s: ", k ? ", " : ": {", pd_source_keys.keys[k].path);
            put_scalar(out, &pd_source_keys.keys[k], &feed->sources[i]);
        }
        fputc('}', out);
    }
    fputc('}', out);
}

/* Views of one source stand together. */
static void put_views(FILE *out, const struct pd_feed_config *feed)
{
    fputc('{', out);
    for (uint32_t i = 0; i < feed->drop_views_count; i++) {
        const struct pd_drop_view *drop = &feed->drop_views[i];
        bool first = i == 0 || strcmp(drop[-1].source, drop->source) != 0;
        if (first) {
            fputs(i ? "], " : "", out);
            put_text(out, drop->source);
        }
        fputs(first ? ": [" : ", ", out);
        put_text(out, drop->view);
    }
    fputs(feed->drop_views_count ? "]}" : "}", out);
}

static void put_frames(FILE *out, const struct pd_feed_config *feed)
{
    fputc('{', out);
    for (uint32_t i = 0; i < feed->keep_frames_count; i++) {
        fputs(i ? ", " : "", out);
        put_text(out, feed->keep_frames[i].source);
        fprintf(out, ": %u", feed->keep_frames[i].every);
    }
    fputc('}', out);
}

static void put_keys(const struct printer *printer, const struct pd_key_table *table,
                     const void *base, int indent, const char *first_lead);

static void put_jobs(const struct printer *printer, const struct pd_feed_config *feed, int indent)
{
    if (feed->job_count == 0)
        fputs(" []", printer->out);
    for (uint32_t i = 0; i < feed->job_count; i++) {
        fputc('\n', printer->out);
        put_keys(&(struct printer){.out = printer->out}, &pd_job_keys, &feed->jobs[i], indent + 4,
                 "- ");
    }
}

static void put_auth(const struct printer *printer, const struct pd_config *config)
{
    if (config->auth_count == 0)
        fputs(" []", printer->out);
    for (uint32_t i = 0; i < config->auth_count; i++) {
        fputc('\n', printer->out);
        put_keys(&(struct printer){.out = printer->out}, &pd_principal_keys, &config->auth[i], 4,
                 "- ");
    }
}

static void put_feeds(const struct printer *printer, const struct pd_config *config)
{
    for (uint32_t i = 0; i < config->feed_count; i++) {
        fputc('\n', printer->out);
        put_keys(printer, &pd_feed_keys, &config->feeds[i], 4, "- ");
    }
}

static void put_value(const struct printer *printer, const struct pd_key *key, const void *base,
                      int indent)
{
    FILE *out = printer->out;
    if (key->kind == PD_KEY_FEEDS) {
        put_feeds(printer, base);
        return;
    }
    if (key->kind == PD_KEY_AUTH) {
        put_auth(printer, base);
        return;
    }
    if (key->kind == PD_KEY_JOBS) {
        put_jobs(printer, base, indent);
        return;
    }
    fputc(' ', out);
    switch (key->kind) {
    case PD_KEY_LISTEN:
        put_listen(out, key, base);
        break;
    case PD_KEY_NAMES:
        put_names(out, key, base);
        break;
    case PD_KEY_ROLES:
        put_roles(out, key, base);
        break;
    case PD_KEY_SOURCES:
        put_sources(out, base);
        break;
    case PD_KEY_NUMBERS:
        put_numbers(out, key, base);
        break;
    case PD_KEY_VIEWS:
        put_views(out, base);
        break;
    case PD_KEY_FRAMES:
        put_frames(out, base);
        break;
    default:
        put_scalar(out, key, base);
    }
}

/* The part of the path before its dot, or "". */
static void section_of(const struct pd_key *key, char *section, size_t size)
{
    const char *dot = strchr(key->path, '.');
    snprintf(section, size, "%.*s", dot ? (int)(dot - key->path) : 0, key->path);
}

/* One "key: value" line a row, sections opened where they change. `first_lead` stands in the last
 * columns of the first line's indent; lines are ended by the next one's beginning, the last by
 * nothing. */
static void put_keys(const struct printer *printer, const struct pd_key_table *table,
                     const void *base, int indent, const char *first_lead)
{
    char open[64] = "";
    for (size_t i = 0; i < table->count; i++) {
        const struct pd_key *key = &table->keys[i];
        char section[64];
        section_of(key, section, sizeof section);
        const char *lead = i == 0 ? first_lead : "";
        int width = indent - (int)strlen(lead);
        if (i > 0)
            fputc('\n', printer->out);
        if (*section && strcmp(section, open) != 0)
            fprintf(printer->out, "%*s%s%s:\n", width, "", lead, section);
        snprintf(open, sizeof open, "%s", section);
        int extra = *section ? 2 : 0;
        if (printer->comments && i > 0)
            fprintf(printer->out, "%*s# %s\n", indent + extra, "", key->help);
        fprintf(printer->out, "%*s%s%s:", *section ? indent + 2 : width, "", *section ? "" : lead,
                *section ? key->path + strlen(section) + 1 : key->path);
        put_value(printer, key, base, indent + extra);
    }
}

static int put_config(const struct pd_config *config, FILE *out, bool comments)
{
    struct printer printer = {.out = out, .comments = comments};
    put_keys(&printer, &pd_top_keys, config, 0, "");
    fputc('\n', out);
    return fflush(out) != 0 || ferror(out) ? PD_EIO : 0;
}

int pd_config_print(const struct pd_config *config, FILE *out)
{
    return put_config(config, out, false);
}

int pd_config_sample(FILE *out)
{
    struct pd_config config;
    int rc = pd_config_default(&config);
    if (rc != 0)
        return rc;
    fputs("# packd's configuration with every key at its default. Sizes take KiB, MiB, GiB, TiB "
          "(or KB, MB, GB, TB), "
          "durations\n# ns, us, ms, s, m, h. A key that is not listed here is an error.\n",
          out);
    rc = put_config(&config, out, true);
    pd_config_fini(&config);
    return rc;
}

static void put_reference_table(FILE *out, const struct pd_key_table *table)
{
    fputs("| key | value | default | meaning |\n| --- | --- | --- | --- |\n", out);
    for (size_t i = 0; i < table->count; i++) {
        const struct pd_key *key = &table->keys[i];
        char expected[200];
        pd_key_expectation(key, expected, sizeof expected);
        fprintf(out, "| `%s` | ", key->path);
        for (const char *c = expected; *c; c++)
            fprintf(out, *c == '|' ? "\\%c" : "%c", *c);
        fprintf(out, " | `%s` | %s%s |\n", *key->fallback ? key->fallback : "\"\"", key->help,
                table == &pd_top_keys && pd_config_reloads(key->path) ? " SIGHUP applies a change."
                                                                      : "");
    }
    fputc('\n', out);
}

int pd_config_reference(FILE *out)
{
    fputs(
        "# Configuration\n\nMade from the key table in `server/config_keys.c` by `bazel run "
        "//server:reference -- "
        "config`; a test compares the two.\n\n"
        "One YAML file (`packd --config FILE`). Flags override `PACKD_*` variables, these "
        "override the file, the file "
        "overrides the\ndefaults. A key that is not in a table below is an error. Sizes take B, "
        "KiB, MiB, GiB, TiB (1024) "
        "and KB, MB, GB, TB (1000);\ndurations ns, us, ms, s, m, h. `packd --check-config` "
        "prints the configuration in force and "
        "ends.\n\nSIGHUP reads file and environment again. Keys marked so take effect at once, "
        "and so do the tokens in their files; planning\nrules and weights of a feed act from the "
        "first pack that is not planned yet, which `plan_ahead` may put far ahead. For any "
        "other\nkey that differs a log line (`reload_ignored`, `reload_feeds`) says that it needs "
        "a restart. A configuration with an error,\nor with another value for a fixed key of a "
        "feed (below), changes nothing (`reload_failed`).\n\n## The daemon\n\n",
        out);
    put_reference_table(out, &pd_top_keys);
    fputs("## A principal: an entry of `auth`\n\n", out);
    put_reference_table(out, &pd_principal_keys);
    fputs("## A feed: an entry of `feeds`\n\n"
          "On a feed with data the keys that shape planned batches are fixed: a start with another "
          "value "
          "is refused, both\nvalues named. These may change: `window`, `window_bytes`, `strategy`, "
          "`order`, `shuffle_samples`, `shuffle_bytes`,\n`over_length`, `drop_views`, "
          "`keep_frames`, and with merge: arrival the sources' weights (each acts from the first "
          "pack not\nplanned yet); `streams` and `stream_count` with merge: arrival; and what "
          "shapes no batch: `max_wait`, `idle_release`,\n`plan_ahead`, `log_share`, `vocab_size`, "
          "`media_tokens`, `labels_look_shifted`, `jobs`.\n\n",
          out);
    put_reference_table(out, &pd_feed_keys);
    fputs("## A source: a value of `sources`\n\n", out);
    put_reference_table(out, &pd_source_keys);
    fputs("## A job: an entry of `jobs`\n\n", out);
    put_reference_table(out, &pd_job_keys);
    fputs("## Environment\n\nThe variable, and the key it sets. `PACKD_LISTEN` takes several "
          "addresses with commas between them.\n\n"
          "```\n",
          out);
    int rc = pd_config_variables(out);
    fputs("```\n\n`PACKD_LOG_LEVEL` (debug, info, warn, error) and `PACKD_LOG_FORMAT` (plain, "
          "json) set the lines on stderr.\n\n"
          "## A file with every default\n\n```yaml\n",
          out);
    if (rc == 0)
        rc = pd_config_sample(out);
    fputs("```\n", out);
    return rc != 0 ? rc : ferror(out) ? PD_EIO : 0;
}
