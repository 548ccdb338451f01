/* The configuration parser on anything: it must come back with a configuration or an error that has
 * a text, and what it accepts must print to something that it accepts again. Half of the inputs are
 * turned into nearly good files by choosing whole lines, since random bytes rarely are YAML. */
#include "server/config.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const lines[] = {
    "listen: [a:1, 'unix:/x']\n",
    "http: '[::1]:0'\n",
    "log: {path: /d, max_bytes: 1TiB}\n",
    "log:\n",
    "  path: &p /x\n",
    "memory: {batches: 1GiB}\n",
    "drain: 5s\n",
    "threads: {rpc: 1}\n",
    "validate: {backend: off, fraction: .5}\n",
    "feeds:\n",
    "  - name: a\n",
    "  - name: b\n",
    "    seq_len: 64\n",
    "    sources: {w: {weight: 2, on_end: repeat}}\n",
    "    streams: [x, y]\n",
    "    widths: [8, 16]\n",
    "    width: step\n",
    "    jobs: [{name: j, retain: {commits: 2}}]\n",
    "    cost:\n",
    "      alpha: 3\n",
    "    drop_views: {a: [b]}\n",
    "    pad_id: -5\n",
    "    merge: ordered\n",
    "    epochs: 2\n",
    "<<: *p\n",
    "? [a]\n",
    ": b\n",
    "--- \n",
    "x: !!int 5\n",
    "\t\n",
    "    seed: \"\\x00\"\n",
    "&a [*a]\n",
};

static void check_accepted(struct pd_config *config)
{
    struct pd_error error = {0};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    PD_CHECK(out && pd_config_print(config, out) == 0);
    fclose(out);
    struct pd_config again;
    PD_CHECK(pd_config_default(&again) == 0);
    bool views = false;
    for (uint32_t i = 0; i < config->feed_count; i++)
        views |= config->feeds[i].drop_views_count > 0;
    if (pd_config_parse(&again, text, size, "again", &error) != 0)
        pd_panic(__FILE__, __LINE__, "%s", error.text);
    for (uint32_t i = 0; i < config->feed_count && !views; i++)
        PD_CHECK(pd_feed_config_digest(&config->feeds[i]) ==
                 pd_feed_config_digest(&again.feeds[i]));
    pd_config_fini(&again);
    free(text);
    int rc = pd_config_check(config, &error);
    PD_CHECK(rc == 0 || (error.code == rc && error.text[0] && error.reason[0]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pd_config config;
    struct pd_error error = {0};
    char made[8192];
    PD_CHECK(pd_config_default(&config) == 0);
    if (size > 0 && data[0] % 2 == 0) {
        size_t used = 0;
        for (size_t i = 1; i < size && used + 100 < sizeof made; i++)
            used += (size_t)snprintf(made + used, sizeof made - used, "%s",
                                     lines[data[i] % PD_COUNT_OF(lines)]);
        data = (const uint8_t *)made;
        size = used;
    }
    int rc = pd_config_parse(&config, (const char *)data, size, "input", &error);
    PD_CHECK(rc == 0 || (error.code == rc && error.text[0]));
    if (rc == 0)
        check_accepted(&config);
    pd_config_fini(&config);
    return 0;
}
