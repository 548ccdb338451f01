/* packctl: finds the command, reads the options that all of them share, says what went wrong.
 *
 * To add a command: define its struct ctl_command in a file of its family, declare it below, put it
 * into the table. Nothing here knows what a command does. */
#include "client/packctl.h"

#include "base/check.h"
#include "base/units.h"
#include "client/lib_json.h"
#include "client/lib_tls.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const struct ctl_command ctl_push_command, ctl_fetch_command;
extern const struct ctl_command ctl_status_command, ctl_top_command, ctl_explain_command;
extern const struct ctl_command ctl_commit_command, ctl_flush_command, ctl_end_feed_command;
extern const struct ctl_command ctl_skip_steps_command, ctl_delete_job_command, ctl_drain_command;
extern const struct ctl_command ctl_set_mixture_command, ctl_skip_samples_command;
extern const struct ctl_command ctl_delete_stream_command, ctl_delete_feed_command;
extern const struct ctl_command ctl_plan_command, ctl_selftest_command, ctl_log_command;
extern const struct ctl_command ctl_version_command;

static const struct ctl_command *const commands[] = {
    &ctl_push_command,          &ctl_fetch_command,       &ctl_status_command,
    &ctl_top_command,           &ctl_explain_command,     &ctl_commit_command,
    &ctl_flush_command,         &ctl_end_feed_command,    &ctl_skip_steps_command,
    &ctl_skip_samples_command,  &ctl_set_mixture_command, &ctl_delete_job_command,
    &ctl_delete_stream_command, &ctl_delete_feed_command, &ctl_drain_command,
    &ctl_plan_command,          &ctl_selftest_command,    &ctl_log_command,
    &ctl_version_command,
};

volatile sig_atomic_t ctl_stop;

static void on_signal(int number)
{
    ctl_stop = number;
}

void ctl_catch_signals(void)
{
    /* The second one ends the process the plain way. */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* ---- messages -------------------------------------------------------------------------------- */

static bool progress_shown;

static void clear_progress(void)
{
    if (progress_shown)
        fputs("\r\033[K", stderr);
    progress_shown = false;
}

static void say(const char *format, va_list args)
{
    clear_progress();
    fputs("packctl: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

void ctl_message(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
}

void ctl_note(const struct ctl *ctl, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!ctl->quiet)
        say(format, args);
    va_end(args);
}

void ctl_progress(const struct ctl *ctl, const char *format, ...)
{
    va_list args;
    if (!ctl->progress)
        return;
    clear_progress();
    va_start(args, format);
    progress_shown = vfprintf(stderr, format, args) > 0;
    va_end(args);
    fflush(stderr);
}

int ctl_usage(const struct ctl *ctl, const char *format, ...)
{
    va_list args;
    fprintf(stderr, "packctl %s: ", ctl->command->name);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nusage: packctl %s %s\n`packctl %s --help` shows examples.\n",
            ctl->command->name, ctl->command->arguments, ctl->command->name);
    return CTL_USAGE;
}

void ctl_json_string(FILE *out, const char *text)
{
    struct pd_buf buf = {0};
    pd_json_string(text, strlen(text), &buf);
    if (!buf.failed)
        fwrite(buf.data, 1, buf.size_bytes, out);
    pd_buf_fini(&buf);
}

static int exit_of(int code)
{
    switch (code) {
    case PACKD_ETIMEDOUT:
    case PACKD_EUNAVAIL:
        return CTL_UNREACHABLE;
    case PACKD_ECORRUPT:
        return CTL_DAMAGED;
    case PACKD_EIO:
        return CTL_INPUT;
    case PACKD_ECANCELED:
        return CTL_INTERRUPTED;
    default:
        return CTL_FAILED;
    }
}

static bool ends_with(const char *text, const char *end)
{
    size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

/* What gRPC says where one side speaks TLS and the other does not tells nobody so. */
static void hint_at_tls(const struct ctl *ctl, const struct packd_error *error)
{
    const struct packd_tls none = {0}, tls = pd_tls_resolve(&none);
    bool on = pd_tls_is_on(&tls, ctl->server);
    if (on && (strstr(error->text, "WRONG_VERSION_NUMBER") ||
               strstr(error->text, "wrong version number")))
        ctl_message("that address does not speak TLS: unset PACKD_TLS, PACKD_CA and PACKD_CERT, or "
                    "name the port that does");
    else if (!on && strncmp(ctl->server, "unix:", 5) != 0 && strstr(error->text, "Socket closed"))
        ctl_message(
            "the server may speak TLS: set PACKD_CA to its authority's file, or PACKD_TLS=1 "
            "for one the system knows");
}

int ctl_error(const struct ctl *ctl, const struct packd_error *error)
{
    ctl_message("%s", error->text);
    if (exit_of(error->code) == CTL_UNREACHABLE)
        hint_at_tls(ctl, error);
    if (exit_of(error->code) == CTL_UNREACHABLE && ends_with(ctl->server, ":7071"))
        ctl_message(
            "7071 is by default packd's HTTP port (status page, metrics); packctl speaks to "
            "the gRPC port, 7070");
    if (ctl->json) {
        printf("{\"error\": {\"code\": \"%s\", \"grpc_code\": %d, \"reason\": ",
               packd_error_name(error->code), error->grpc_code);
        ctl_json_string(stdout, error->reason);
        printf(", \"text\": ");
        ctl_json_string(stdout, error->text);
        printf("}}\n");
    }
    return strcmp(error->reason, "BAD_RECORD") == 0 ? CTL_INPUT : exit_of(error->code);
}

/* `rc`, or CTL_INPUT where all went well but what was printed did not arrive. */
static int flush_stdout(int rc)
{
    errno = 0;
    int failed = fflush(stdout);
    if (failed == 0 && !ferror(stdout))
        return rc;
    ctl_message("stdout: not all of the output could be written%s%s", errno ? ": " : "",
                errno ? strerror(errno) : "");
    return rc == CTL_OK ? CTL_INPUT : rc;
}

static const char *attribute(const struct ctl *ctl, const char *code)
{
    return ctl->color ? code : "";
}

const char *ctl_bold(const struct ctl *ctl)
{
    return attribute(ctl, "\033[1m");
}

const char *ctl_dim(const struct ctl *ctl)
{
    return attribute(ctl, "\033[2m");
}

const char *ctl_red(const struct ctl *ctl)
{
    return attribute(ctl, "\033[31m");
}

const char *ctl_plain(const struct ctl *ctl)
{
    return attribute(ctl, "\033[0m");
}

const char *ctl_s(uint64_t count)
{
    return count == 1 ? "" : "s";
}

/* ---- suggestions ----------------------------------------------------------------------------- */

#define WORD_MAX 32

/* Edits between two short words. */
static unsigned distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    unsigned row[WORD_MAX + 1];
    if (n > WORD_MAX || m > WORD_MAX)
        return WORD_MAX;
    for (size_t j = 0; j <= m; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            unsigned best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[m];
}

struct nearest {
    const char *word; /* as typed */
    const char *best; /* NULL: nothing near */
    unsigned edits;
};

static void consider(struct nearest *nearest, const char *name)
{
    unsigned edits = distance(nearest->word, name);
    if (edits <= 2 && edits < strlen(name) && (!nearest->best || edits < nearest->edits)) {
        nearest->best = name;
        nearest->edits = edits;
    }
}

/* ---- options --------------------------------------------------------------------------------- */

enum { OPTION_SERVER = 256, OPTION_JSON, OPTION_TIMEOUT, OPTION_VERSION };
#define OPTIONS_MAX 48

static const struct option shared_options[] = {
    {"server", required_argument, NULL, OPTION_SERVER},
    {"json", no_argument, NULL, OPTION_JSON},
    {"timeout", required_argument, NULL, OPTION_TIMEOUT},
    {"quiet", no_argument, NULL, 'q'},
    {"help", no_argument, NULL, 'h'},
};

static void print_help(const struct ctl *ctl)
{
    const struct ctl_command *command = ctl->command;
    printf(
        "packctl %s: %s\n\n%s\nusage: packctl [--server ADDR] %s %s\n\n"
        "For every command:\n"
        "  --server ADDR   host:port or unix:/path; else PACKD_SERVER, else " PACKD_DEFAULT_SERVER
        "\n"
        "  --json          one JSON object on stdout (one per line where it streams)\n"
        "  --timeout TIME  give up after this time without progress (500ms, 30s, 10m)\n"
        "  -q, --quiet     no progress, no notes\n"
        "  -h, --help      this text\n",
        command->name, command->summary, command->help, command->name, command->arguments);
}

static _Noreturn void wrong_option(struct ctl *ctl, int argc, char **argv,
                                   const struct option *options)
{
    const char *typed = optind > 0 && optind <= argc ? argv[optind - 1] : "?";
    if (optopt > 0 && optopt < 256 && isprint(optopt) && strncmp(typed, "--", 2) != 0)
        exit(ctl_usage(ctl, "unknown option -%c", optopt));
    char word[WORD_MAX + 1];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(typed, "="), typed);
    const char *bare = word + strspn(word, "-");
    struct nearest nearest = {.word = bare};
    for (; options->name; options++) {
        if (strcmp(options->name, bare) == 0)
            exit(ctl_usage(ctl, "option --%s %s", bare,
                           options->has_arg ? "needs a value" : "takes no value"));
        consider(&nearest, options->name);
    }
    if (nearest.best)
        exit(ctl_usage(ctl, "unknown option %s; did you mean --%s?", word, nearest.best));
    exit(ctl_usage(ctl, "unknown option %s", word));
}

/* True where the option was one of the shared ones. */
static bool shared_option(struct ctl *ctl, int option)
{
    switch (option) {
    case OPTION_SERVER:
        ctl->server = optarg;
        return true;
    case OPTION_JSON:
        ctl->json = true;
        ctl->progress = false;
        return true;
    case OPTION_TIMEOUT:
        ctl->timeout_ms = ctl_duration_ms("timeout", optarg);
        return true;
    case 'q':
        ctl->quiet = true;
        ctl->progress = false;
        return true;
    case 'h':
        print_help(ctl);
        exit(flush_stdout(CTL_OK));
    default:
        return false;
    }
}

int ctl_getopt(struct ctl *ctl, int argc, char **argv, const struct option *options)
{
    struct option all[OPTIONS_MAX + 1] = {0};
    size_t count = 0;
    for (size_t i = 0; i < PD_COUNT_OF(shared_options); i++)
        all[count++] = shared_options[i];
    for (; options && options->name; options++) {
        PD_CHECK(count < OPTIONS_MAX);
        all[count++] = *options;
    }
    opterr = 0;
    for (;;) {
        int option = getopt_long(argc, argv, ":qh", all, NULL);
        if (option == '?' || option == ':')
            wrong_option(ctl, argc, argv, all);
        if (!shared_option(ctl, option))
            return option;
    }
}

uint64_t ctl_number(const char *option, const char *text, uint64_t lowest, uint64_t highest)
{
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end || errno || value < lowest || value > highest) {
        ctl_message("--%s %s: expected a whole number from %" PRIu64 " to %" PRIu64, option, text,
                    lowest, highest);
        exit(CTL_USAGE);
    }
    return value;
}

int64_t ctl_duration_ms(const char *option, const char *text)
{
    uint64_t ns = 0;
    struct pd_error error = {0};
    if (pd_units_parse_duration(text, &ns, &error) != 0) {
        ctl_message("--%s: %s", option, error.text);
        exit(CTL_USAGE);
    }
    return (int64_t)(ns / 1000000);
}

int ctl_no_arguments(const struct ctl *ctl, int argc, char **argv)
{
    if (optind == argc)
        return 0;
    return ctl_usage(ctl, "unexpected argument \"%s\"", argv[optind]);
}

int ctl_server_check(const struct ctl *ctl)
{
    struct packd_error error = {0};
    return pd_server_check(ctl->server, &error) == 0 ? CTL_OK : ctl_usage(ctl, "%s", error.text);
}

int ctl_admin_open(const struct ctl *ctl, struct packd_admin **admin)
{
    struct packd_error error = {0};
    if (ctl_server_check(ctl) != CTL_OK)
        return CTL_USAGE;
    struct packd_admin_options options = {.server = ctl->server,
                                          .token = ctl->token,
                                          .timeout_ms = ctl->timeout_ms > 0 ? ctl->timeout_ms : 0};
    return packd_admin_open(&options, admin, &error) == 0 ? CTL_OK : ctl_error(ctl, &error);
}

/* ---- version and main ------------------------------------------------------------------------ */

static int run_version(struct ctl *ctl, int argc, char **argv)
{
    if (ctl_getopt(ctl, argc, argv, NULL) != -1 || ctl_no_arguments(ctl, argc, argv) != 0)
        return CTL_USAGE;
    printf(ctl->json ? "{\"version\": \"%s\"}\n" : "packctl %s\n", packd_version());
    return CTL_OK;
}

const struct ctl_command ctl_version_command = {
    .name = "version",
    .arguments = "",
    .summary = "print the version",
    .help = "  packctl version\n",
    .run = run_version,
};

static void print_overview(FILE *out)
{
    fprintf(out, "packctl: push samples to a packd server, fetch packed batches, look and steer\n\n"
                 "  packctl push notes.jsonl --end-feed\n"
                 "  packctl fetch --job train --dp-size 4 --rank 0 --out batches/\n"
                 "  packctl status\n\n"
                 "usage: packctl [--server ADDR] COMMAND ...\n\n");
    for (size_t i = 0; i < PD_COUNT_OF(commands); i++)
        fprintf(out, "  %-12s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out,
            "\n`packctl COMMAND --help` shows examples and options.\n"
            "Environment: PACKD_SERVER (address), PACKD_TOKEN (bearer token), PACKD_TLS=1,\n"
            "PACKD_CA, PACKD_CERT, PACKD_KEY (PEM files), PACKD_TLS_NAME, NO_COLOR.\n"
            "Exit codes: 0 success, 1 refused or found wrong, 2 usage, 3 input or output file,\n"
            "4 no answer in time, 5 damaged data, 6 samples refused (push), 130 interrupted.\n");
}

static const struct ctl_command *find_command(const char *name)
{
    struct nearest nearest = {.word = name};
    for (size_t i = 0; i < PD_COUNT_OF(commands); i++) {
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
        consider(&nearest, commands[i]->name);
    }
    if (nearest.best)
        ctl_message("unknown command \"%s\"; did you mean \"%s\"?", name, nearest.best);
    else
        ctl_message("unknown command \"%s\"; `packctl --help` lists them", name);
    return NULL;
}

/* Options in front of the command. Returns -1 to go on, else the exit code. */
static int global_options(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {{"server", required_argument, NULL, OPTION_SERVER},
                                            {"json", no_argument, NULL, OPTION_JSON},
                                            {"timeout", required_argument, NULL, OPTION_TIMEOUT},
                                            {"quiet", no_argument, NULL, 'q'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"version", no_argument, NULL, OPTION_VERSION},
                                            {0}};
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, "+:qh", options, NULL)) != -1) {
        if (option == 'h') {
            print_overview(stdout);
            return CTL_OK;
        }
        if (option == OPTION_VERSION) {
            printf("packctl %s\n", packd_version());
            return CTL_OK;
        }
        if (option == '?' || option == ':') {
            ctl_message("option %s: unknown, or without its value; `packctl --help`",
                        argv[optind - 1]);
            return CTL_USAGE;
        }
        shared_option(ctl, option);
    }
    return -1;
}

static int run(int argc, char **argv)
{
    const char *server = getenv("PACKD_SERVER"), *token = getenv("PACKD_TOKEN");
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    bool plain = (no_color && no_color[0]) || (term && strcmp(term, "dumb") == 0);
    struct ctl ctl = {.server = server && server[0] ? server : PACKD_DEFAULT_SERVER,
                      .token = token && token[0] ? token : NULL,
                      .timeout_ms = -1,
                      .color = isatty(STDOUT_FILENO) && !plain,
                      .progress = isatty(STDERR_FILENO) && !(term && strcmp(term, "dumb") == 0)};
    int rc = global_options(&ctl, argc, argv);
    if (rc >= 0)
        return rc;
    if (optind == argc) {
        print_overview(stderr);
        return CTL_USAGE;
    }
    ctl.command = find_command(argv[optind]);
    if (!ctl.command)
        return CTL_USAGE;
    argc -= optind;
    argv += optind;
    optind = 0; /* glibc: start anew, and look at what the command's string says */
    rc = ctl.command->run(&ctl, argc, argv);
    clear_progress();
    return rc;
}

int main(int argc, char **argv)
{
    /* Errors are told here, with what to do; gRPC's own lines would only stand between them. */
    setenv("GRPC_VERBOSITY", "NONE", 0);
    return flush_stdout(run(argc, argv));
}

#ifdef PD_ASAN
/* Read by LeakSanitizer: Debian 12's c-ares keeps ten bytes of a resolved local name for good. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libcares";
}
#endif
