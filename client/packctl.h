/* packctl: the command line over libpackd. What its commands share.
 *
 * A command is one `struct ctl_command`, defined in the file of its family and listed in the table
 * in packctl.c. Data goes to stdout, everything else to stderr. */
#ifndef PD_CLIENT_PACKCTL_H
#define PD_CLIENT_PACKCTL_H

#include "client/include/packd.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>

/* Exit codes, also in `packctl --help`. */
enum ctl_exit {
    CTL_OK = 0,
    CTL_FAILED = 1,      /* the server refused, or the command found something wrong */
    CTL_USAGE = 2,       /* the command line */
    CTL_INPUT = 3,       /* a file that cannot be read or written, a bad record */
    CTL_UNREACHABLE = 4, /* no answer, or none in time */
    CTL_DAMAGED = 5,     /* bytes that fail a digest or a check */
    CTL_REFUSED = 6,     /* all was pushed, and the server refused some of the samples */
    CTL_INTERRUPTED = 130
};

struct ctl {
    const char *server; /* --server, PACKD_SERVER, or the default */
    const char *token;  /* PACKD_TOKEN, NULL: none */
    bool json;          /* --json */
    bool quiet;         /* -q: no progress, no notes */
    bool color;         /* stdout is a terminal and NO_COLOR is not set */
    bool progress;      /* stderr is a terminal, not --json, not -q */
    int64_t timeout_ms; /* --timeout; -1: the command's default */
    const struct ctl_command *command;
};

struct ctl_command {
    const char *name;
    const char *arguments;                              /* "--job J --step N" */
    const char *summary;                                /* one line */
    const char *help;                                   /* examples first, then options */
    int (*run)(struct ctl *ctl, int argc, char **argv); /* argv[0] is the name; an enum ctl_exit */
};

/* The next option as getopt_long does it, with --server, --json, --timeout, -q and -h taken care
 * of; -1 at the end. A wrong option prints a message and leaves with CTL_USAGE; -h leaves with
 * 0. */
int ctl_getopt(struct ctl *ctl, int argc, char **argv, const struct option *options);
/* Values of options; a wrong one prints a message and leaves with CTL_USAGE. */
uint64_t ctl_number(const char *option, const char *text, uint64_t lowest, uint64_t highest);
int64_t ctl_duration_ms(const char *option, const char *text);
/* Prints "packctl COMMAND: ..." and a hint at --help; returns CTL_USAGE. */
int ctl_usage(const struct ctl *ctl, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* No argument may be left, else CTL_USAGE. */
int ctl_no_arguments(const struct ctl *ctl, int argc, char **argv);

/* "packctl: ..." on stderr. ctl_note not with -q. */
void ctl_message(const char *format, ...) __attribute__((format(printf, 1, 2)));
void ctl_note(const struct ctl *ctl, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The error on stderr (with --json as an object on stdout, too); returns the exit code for it. */
int ctl_error(const struct ctl *ctl, const struct packd_error *error);
/* A line on stderr that replaces itself; "" clears it. Only with ctl->progress. */
void ctl_progress(const struct ctl *ctl, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Set by SIGINT and SIGTERM once ctl_catch_signals has been called. */
extern volatile sig_atomic_t ctl_stop;
void ctl_catch_signals(void);
/* A call in slices of this length stays interruptible. */
#define CTL_SLICE_MS 200

/* Text attributes, "" without colour. */
const char *ctl_bold(const struct ctl *ctl);
const char *ctl_dim(const struct ctl *ctl);
const char *ctl_red(const struct ctl *ctl);
const char *ctl_plain(const struct ctl *ctl);
/* What makes a noun of so many a plural: "" for 1, else "s". */
const char *ctl_s(uint64_t count);

/* Text as a quoted JSON string. */
void ctl_json_string(FILE *out, const char *text);

/* The address in use is host:port or unix:/path: CTL_OK, else a message and CTL_USAGE. Before any
 * connection. */
int ctl_server_check(const struct ctl *ctl);
/* Checks the address, too. */
int ctl_admin_open(const struct ctl *ctl, struct packd_admin **admin);

#endif
