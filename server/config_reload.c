/* What of a changed configuration takes effect while packd runs.
 *
 * Place in the flow: SIGHUP, on the main thread, with a fresh configuration that has been checked
 * as at start. Only keys that each reader looks up anew whenever it needs them are taken over;
 * their members are atomic. All others are compared, and named where they differ, so that nobody
 * believes in a change that has no effect. What feeds say is compared as one; the sequencer takes
 * of it what acts on plans to come. */
#include "server/config_keys.h"

#include "base/check.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 4096

static const char *const reloaded[] = {"drain", "limits.stall", "validate.fraction",
                                       "validate.cpu_share"};

bool pd_config_reloads(const char *path)
{
    for (size_t i = 0; i < PD_COUNT_OF(reloaded); i++)
        if (strcmp(reloaded[i], path) == 0)
            return true;
    return false;
}

static void compare_scalar(const struct pd_key *key, const struct pd_config *live,
                           const struct pd_config *fresh, pd_reload_fn *tell, void *ctx)
{
    char from[TEXT_MAX], to[TEXT_MAX];
    pd_key_text(key, live, from, sizeof from);
    pd_key_text(key, fresh, to, sizeof to);
    if (strcmp(from, to) != 0)
        tell(ctx, key->path, from, to, pd_config_reloads(key->path));
}

static bool addresses_alike(const struct pd_key *key, const struct pd_config *live,
                            const struct pd_config *fresh)
{
    uint32_t from_count, to_count;
    char *const *from = pd_key_addresses(key, live, &from_count);
    char *const *to = pd_key_addresses(key, fresh, &to_count);
    bool alike = from_count == to_count;
    for (uint32_t i = 0; alike && i < from_count; i++)
        alike = strcmp(from[i], to[i]) == 0;
    return alike;
}

/* What is printed of one key at the top, up to the next one; owned by the caller. NULL: no
 * memory. */
static char *section_text(const struct pd_config *config, const char *key)
{
    char *text = NULL, start[64];
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    int rc = out ? pd_config_print(config, out) : PD_ENOMEM;
    if (out && fclose(out) != 0)
        rc = PD_ENOMEM;
    snprintf(start, sizeof start, "\n%s:", key);
    char *section = rc == 0 ? strstr(text, start) : NULL;
    char *end = section ? section + 1 : NULL;
    while (end && (end = strchr(end, '\n')) && !islower((unsigned char)end[1]))
        end++;
    if (end)
        *end = '\0';
    char *copy = section ? strdup(section) : NULL;
    free(text);
    return copy;
}

static int compare_section(const char *key, const struct pd_config *live,
                           const struct pd_config *fresh, pd_reload_fn *tell, void *ctx)
{
    char *from = section_text(live, key), *to = section_text(fresh, key);
    int rc = from && to ? 0 : PD_ENOMEM;
    if (rc == 0 && strcmp(from, to) != 0)
        tell(ctx, key, "", "", false);
    free(from);
    free(to);
    return rc;
}

int pd_config_reload(struct pd_config *live, const struct pd_config *fresh, pd_reload_fn *tell,
                     void *ctx)
{
    int rc = compare_section("feeds", live, fresh, tell, ctx);
    if (rc == 0)
        rc = compare_section("auth", live, fresh, tell, ctx);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < pd_top_keys.count; i++) {
        const struct pd_key *key = &pd_top_keys.keys[i];
        if (pd_key_is_scalar(key))
            compare_scalar(key, live, fresh, tell, ctx);
        else if (key->kind == PD_KEY_LISTEN && !addresses_alike(key, live, fresh))
            tell(ctx, key->path, "", "", false);
    }
    live->drain_ns = fresh->drain_ns;
    live->stall_ns = fresh->stall_ns;
    live->validate_fraction = fresh->validate_fraction;
    live->validate_cpu_share = fresh->validate_cpu_share;
    return 0;
}
