/* packd's command line. Main thread. */
#ifndef PD_SERVER_OPTIONS_H
#define PD_SERVER_OPTIONS_H

#include "server/config.h"

/* Borrowed from argv. */
struct pd_options {
    const char *config_path; /* NULL = none */
    char *listen[PD_LISTEN_MAX];
    uint32_t listen_count; /* 0 = as configured */
    const char *http, *data_dir, *ports_path;
    bool check_config, version, help;
};

/* 0, or PD_EINVAL (reason USAGE) with the option named. */
int pd_options_parse(struct pd_options *options, int argc, char **argv,
                     struct pd_error *error) PD_MUST_CHECK;
int pd_options_help(FILE *out);
/* Defaults, then the file, the environment, the options; checked. Errors as pd_config_*. On failure
 * *config needs no fini. */
int pd_options_config(const struct pd_options *options, struct pd_config *config,
                      struct pd_error *error) PD_MUST_CHECK;

#endif
