/* The command line, and the order in which the configuration's layers are applied. Main thread. */
#include "server/options.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const char help_text[] =
    "packd: packs training samples into sequences and serves them as batches.\n"
    "\n"
    "  packd                                    serve one feed 'default' from ./packd-data\n"
    "  packd --config packd.yaml                serve what the file says\n"
    "  packd --config packd.yaml --check-config print the configuration in force and end\n"
    "  packd --listen 127.0.0.1:0 --http 127.0.0.1:0 --data-dir /tmp/d --ports-file /tmp/d.json\n"
    "\n"
    "  --config FILE      YAML; docs/CONFIGURATION.md lists the keys (PACKD_CONFIG)\n"
    "  --listen ADDR      gRPC address, host:port or unix:/path; may be repeated; replaces "
    "`listen`\n"
    "  --http ADDR        host:port of /metrics, /livez, /readyz and the status page; replaces "
    "`http`\n"
    "  --data-dir DIR     directory of the log; replaces `log.path`\n"
    "  --ports-file FILE  write the addresses that were bound, as JSON, once packd is ready\n"
    "  --check-config     read and check the configuration, print it, end\n"
    "  --version          print the version and end\n"
    "  --help             print this and end\n"
    "\n"
    "Signals: TERM and INT end after calls have been told, within `drain`; a second one ends at "
    "once.\n"
    "HUP reads the configuration again.\n"
    "Exit status: 0 stopped as asked, 1 could not start or failed, 2 wrong usage, 74 the log is\n"
    "damaged or its disk failed, 75 gRPC gave up an address.\n"
    "\n"
    "Environment: PACKD_LOG_LEVEL (debug, info, warn, error), PACKD_LOG_FORMAT (plain, json), and "
    "for these keys:\n";

enum {
    OPT_CONFIG = 1,
    OPT_LISTEN,
    OPT_HTTP,
    OPT_DATA_DIR,
    OPT_PORTS,
    OPT_CHECK,
    OPT_VERSION,
    OPT_HELP
};

static const struct option long_options[] = {
    {"config", required_argument, NULL, OPT_CONFIG},
    {"listen", required_argument, NULL, OPT_LISTEN},
    {"http", required_argument, NULL, OPT_HTTP},
    {"data-dir", required_argument, NULL, OPT_DATA_DIR},
    {"ports-file", required_argument, NULL, OPT_PORTS},
    {"check-config", no_argument, NULL, OPT_CHECK},
    {"version", no_argument, NULL, OPT_VERSION},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static int usage(struct pd_error *error, const char *what, const char *which)
{
    return pd_error_set(error, PD_EINVAL, "USAGE", "%s '%.80s'; see packd --help", what, which);
}

static int take(struct pd_options *options, int option, struct pd_error *error)
{
    switch (option) {
    case OPT_CONFIG:
        options->config_path = optarg;
        return 0;
    case OPT_LISTEN:
        if (options->listen_count == PD_LISTEN_MAX)
            return usage(error, "one address too many:", optarg);
        options->listen[options->listen_count++] = optarg;
        return 0;
    case OPT_HTTP:
        options->http = optarg;
        return 0;
    case OPT_DATA_DIR:
        options->data_dir = optarg;
        return 0;
    case OPT_PORTS:
        options->ports_path = optarg;
        return 0;
    case OPT_CHECK:
        options->check_config = true;
        return 0;
    case OPT_VERSION:
        options->version = true;
        return 0;
    default:
        options->help = true;
        return 0;
    }
}

int pd_options_parse(struct pd_options *options, int argc, char **argv, struct pd_error *error)
{
    *options = (struct pd_options){.config_path = getenv("PACKD_CONFIG")};
    opterr = 0;
    optind = 0; /* as glibc wants it for a fresh scan */
    for (int option; (option = getopt_long(argc, argv, ":h", long_options, NULL)) != -1;) {
        if (option == ':')
            return usage(error, "a value is missing behind", argv[optind - 1]);
        if (option == '?')
            return usage(error, "unknown option", argv[optind - 1]);
        int rc = take(options, option, error);
        if (rc != 0)
            return rc;
    }
    return optind < argc ? usage(error, "unexpected argument", argv[optind]) : 0;
}

int pd_options_help(FILE *out)
{
    fputs(help_text, out);
    return pd_config_variables(out);
}

static int apply_options(const struct pd_options *options, struct pd_config *config)
{
    int rc = 0;
    if (options->listen_count > 0)
        rc = pd_config_set_listen(config, options->listen, options->listen_count);
    if (rc == 0 && options->http)
        rc = pd_config_set_string(&config->http, options->http);
    if (rc == 0 && options->data_dir)
        rc = pd_config_set_string(&config->log_path, options->data_dir);
    return rc;
}

int pd_options_config(const struct pd_options *options, struct pd_config *config,
                      struct pd_error *error)
{
    int rc = pd_config_default(config);
    if (rc != 0)
        return pd_error_set(error, rc, "NO_MEMORY", "no memory for the configuration");
    if (options->config_path)
        rc = pd_config_load(config, options->config_path, error);
    if (rc == 0)
        rc = pd_config_environment(config, error);
    if (rc == 0) {
        rc = apply_options(options, config);
        if (rc != 0)
            pd_error_set(error, rc, "NO_MEMORY", "no memory for the configuration");
    }
    if (rc == 0)
        rc = pd_config_check(config, error);
    if (rc != 0)
        pd_config_fini(config);
    return rc;
}
