/* packctl selftest: proves the attention probe on this machine, without a server.
 *
 * Place in the flow: before a run, or on a node that is suspected: the same self-test that packd
 * makes before it serves, by the same code, on the GPU where there is one. One thread. It looks at
 * no data of the user's. */
#include "base/check.h"
#include "client/packctl.h"
#include "gpu/validator.h"

#include <string.h>

/* The self-test's batches are small; this much is never reached. */
#define TOKENS_MAX (1u << 16)

enum { OPT_BACKEND = 'b' };

static const struct option selftest_options[] = {{"backend", required_argument, NULL, OPT_BACKEND},
                                                 {0}};

struct outcome {
    struct pd_selftest_report report;
    const char *device;
    const char *fallback; /* why the device was not taken; "" */
    bool passed;
    char retired[240]; /* what made the validator give its device up; "" */
};

static void on_retired(void *ctx, const char *what, const char *text)
{
    struct outcome *outcome = ctx;
    snprintf(outcome->retired, sizeof outcome->retired, "%s: %s", what, text);
}

/* The self-test stops at its first failure, whose text begins with the name of its part. */
static uint32_t ends_in(const struct pd_selftest_report *report, const char *part)
{
    return strncmp(report->failure, part, strlen(part)) == 0;
}

/* The cases as both outputs show them. */
struct row {
    const char *name, *text;
    uint32_t done, good;
};

static void rows_of(const struct pd_selftest_report *r, struct row rows[4])
{
    rows[0] = (struct row){"dense", "attention against an fp64 reference with a block mask",
                           r->dense_cases, r->dense_cases - ends_in(r, "dense")};
    rows[1] =
        (struct row){"interference", "other segments keep every bit when one changes",
                     r->interference_cases, r->interference_cases - ends_in(r, "interference")};
    rows[2] = (struct row){"faults", "planted faults found by the probe alone", r->faults_planted,
                           r->faults_found};
    rows[3] = (struct row){"clean", "valid batches without an alarm", r->clean_batches,
                           r->clean_batches - r->false_alarms};
}

static void print_json(const struct outcome *outcome)
{
    const struct pd_selftest_report *r = &outcome->report;
    struct row rows[4];
    rows_of(r, rows);
    printf("{\"passed\": %s, \"backend\": ", outcome->passed ? "true" : "false");
    ctl_json_string(stdout, r->backend);
    printf(", \"device\": ");
    ctl_json_string(stdout, outcome->device);
    printf(", \"seconds\": %.6f, \"dense_error\": %.9g, \"dense_bound\": %.9g, \"cases\": [",
           r->seconds, r->dense_error, r->dense_bound);
    for (size_t i = 0; i < PD_COUNT_OF(rows); i++)
        printf("%s{\"name\": \"%s\", \"text\": \"%s\", \"done\": %u, \"good\": %u}", i ? ", " : "",
               rows[i].name, rows[i].text, rows[i].done, rows[i].good);
    printf("], \"failure\": ");
    ctl_json_string(stdout, r->failure);
    printf(", \"fallback\": ");
    ctl_json_string(stdout, outcome->fallback);
    printf(", \"retired\": ");
    ctl_json_string(stdout, outcome->retired);
    printf("}\n");
}

static void print_text(const struct ctl *ctl, const struct outcome *outcome)
{
    const struct pd_selftest_report *r = &outcome->report;
    struct row rows[4];
    rows_of(r, rows);
    printf("%sbackend %s%s (%s)\n", ctl_bold(ctl), r->backend, ctl_plain(ctl), outcome->device);
    if (outcome->fallback[0])
        printf("no GPU: %s\n", outcome->fallback);
    if (outcome->retired[0])
        printf("%sdevice given up: %s%s\n", ctl_red(ctl), outcome->retired, ctl_plain(ctl));
    for (size_t i = 0; i < PD_COUNT_OF(rows); i++)
        printf("  %-13s %4u of %-4u  %s\n", rows[i].name, rows[i].good, rows[i].done, rows[i].text);
    printf("  largest error %.3g, allowed %.3g\n", r->dense_error, r->dense_bound);
    if (outcome->passed)
        printf("passed in %.0f ms\n", r->seconds * 1e3);
    else
        printf("%sfailed: %s%s\n", ctl_red(ctl), r->failure, ctl_plain(ctl));
}

static int refused(const struct ctl *ctl, const struct pd_error *error)
{
    ctl_message("%s", error->text);
    if (ctl->json) {
        printf("{\"passed\": false, \"reason\": ");
        ctl_json_string(stdout, error->reason);
        printf(", \"text\": ");
        ctl_json_string(stdout, error->text);
        printf("}\n");
    }
    return CTL_FAILED;
}

static int run_on(const struct ctl *ctl, const char *backend)
{
    const struct pd_validator_limits limits = {.tokens_max = TOKENS_MAX,
                                               .segments_max = TOKENS_MAX};
    struct outcome outcome = {0};
    const struct pd_validator_notice notice = {.retired = on_retired, .ctx = &outcome};
    struct pd_error error = {0}, fallback = {0};
    struct pd_validator *validator = NULL;
    if (pd_validator_new(backend, &limits, &notice, &validator, &fallback, &error) != 0)
        return refused(ctl, &error);
    /* A device that was given up has failed, whatever the CPU says then. */
    outcome.passed =
        pd_validator_selftest(validator, &outcome.report, &error) == 0 && outcome.retired[0] == 0;
    outcome.device = pd_validator_device(validator);
    outcome.fallback = fallback.code != 0 ? fallback.text : "";
    if (!outcome.passed && !outcome.report.failure[0])
        snprintf(outcome.report.failure, sizeof outcome.report.failure, "%.230s",
                 outcome.retired[0] ? outcome.retired : error.text);
    if (ctl->json)
        print_json(&outcome);
    else
        print_text(ctl, &outcome);
    pd_validator_free(validator);
    return outcome.passed ? CTL_OK : CTL_FAILED;
}

static int run_selftest(struct ctl *ctl, int argc, char **argv)
{
    const char *backend = "auto";
    for (int option; (option = ctl_getopt(ctl, argc, argv, selftest_options)) != -1;)
        backend = optarg;
    if (ctl_no_arguments(ctl, argc, argv) != 0)
        return CTL_USAGE;
    if (strcmp(backend, "auto") != 0 && strcmp(backend, "cuda") != 0 && strcmp(backend, "cpu") != 0)
        return ctl_usage(ctl, "--backend %s: expected auto, cuda or cpu", backend);
    return run_on(ctl, backend);
}

const struct ctl_command ctl_selftest_command = {
    .name = "selftest",
    .arguments = "[--backend auto|cuda|cpu]",
    .summary = "prove the attention probe on this machine; needs no server",
    .help =
        "  packctl selftest\n"
        "  packctl selftest --backend cuda --json\n\n"
        "  --backend B    auto (the GPU where there is one), cuda or cpu\n\n"
        "Attention against a dense reference, segments that must not disturb each other, faults\n"
        "that the probe must find, valid batches on which it must be silent. Exit code 1 where\n"
        "one of them fails, or where a GPU is demanded and there is none.\n",
    .run = run_selftest,
};
