/* packctl explain, commit, flush, end-feed, skip-steps, delete-job, drain: one call each.
 *
 * All share one loop over options and one way to print: the reply as JSON, or a sentence made of
 * it. */
#include "client/packctl.h"
#include "client/packctl_reply.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <time.h>

/* Everything one of these commands may be told. */
struct request {
    struct ctl *ctl;
    struct packd_admin *admin;
    const char *feed, *job, *why;
    bool have_step, have_first, have_last, force, undo;
    uint64_t step, first, last, packs;
    int64_t wait_ms;
};

enum {
    OPT_FEED = 1000,
    OPT_JOB,
    OPT_STEP,
    OPT_FIRST,
    OPT_LAST,
    OPT_WHY,
    OPT_FORCE,
    OPT_UNDO,
    OPT_PACKS,
    OPT_WAIT
};

static void set_option(struct request *r, int option)
{
    switch (option) {
    case OPT_FEED:
        r->feed = optarg;
        return;
    case OPT_JOB:
        r->job = optarg;
        return;
    case OPT_STEP:
        r->step = ctl_number("step", optarg, 0, INT64_MAX);
        r->have_step = true;
        return;
    case OPT_FIRST:
        r->first = ctl_number("first", optarg, 0, INT64_MAX);
        r->have_first = true;
        return;
    case OPT_LAST:
        r->last = ctl_number("last", optarg, 0, INT64_MAX);
        r->have_last = true;
        return;
    case OPT_WHY:
        r->why = optarg;
        return;
    case OPT_PACKS:
        r->packs = ctl_number("packs", optarg, 1, UINT64_MAX);
        return;
    case OPT_WAIT:
        r->wait_ms = ctl_duration_ms("wait", optarg);
        return;
    case OPT_FORCE:
        r->force = true;
        return;
    default:
        r->undo = true;
    }
}

/* Reads the options, connects; 0, or the exit code. */
static int begin(struct request *r, struct ctl *ctl, int argc, char **argv,
                 const struct option *options)
{
    int option;
    *r = (struct request){.ctl = ctl, .feed = "default"};
    while ((option = ctl_getopt(ctl, argc, argv, options)) != -1)
        set_option(r, option);
    return ctl_no_arguments(ctl, argc, argv);
}

/* The same for a command that needs no option: open at once. */
static int begin_open(struct request *r, struct ctl *ctl, int argc, char **argv,
                      const struct option *options)
{
    int rc = begin(r, ctl, argc, argv, options);
    return rc == 0 ? ctl_admin_open(ctl, &r->admin) : rc;
}

/* Prints the reply: as JSON, or through `print`. Takes both. */
static int finish(struct request *r, int rc, const struct packd_error *error, char *json,
                  void (*print)(const struct request *, const json_t *))
{
    json_error_t why;
    packd_admin_close(r->admin);
    if (rc != 0)
        return ctl_error(r->ctl, error);
    json_t *reply = r->ctl->json ? NULL : json_loads(json, 0, &why);
    if (!reply && !r->ctl->json)
        reply = json_loads(json, JSON_DECODE_INT_AS_REAL, &why);
    if (r->ctl->json)
        printf("%s\n", json);
    else
        print(r, reply);
    json_decref(reply);
    packd_free(json);
    return CTL_OK;
}

/* ---- explain --------------------------------------------------------------------------------- */

static const char *entry_name(const json_t *names, const json_t *column, size_t row)
{
    size_t at = (size_t)json_number_value(json_array_get(column, row));
    const char *name = json_string_value(json_array_get(names, at));
    return name ? name : "?";
}

/* In words; a value that this packctl does not know as it is. */
static const char *way_words(const json_t *pack, char *words, size_t size)
{
    static const struct {
        const char *way, *words;
    } ways[] = {
        {"PACK_UNSPECIFIED", "short: why was not kept"},
        {"PACK_EXACT", "full"},
        {"PACK_BEST", "best fit of the window"},
        {"PACK_FLUSH", "short: flush"},
        {"PACK_END", "short: the feed ended"},
        {"PACK_ROW_PADDING", "padding: the step has no more packs"},
        {"PACK_SEQUENTIAL", "closed by order"},
    };
    const json_t *samples = json_object_get(pack, "samples");
    const char *way = text(pack, "way");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (strcmp(way, ways[i].way) == 0)
            way = ways[i].words;
    if (strcmp(way, "PACK_CAPPED") != 0)
        return way;
    (void)snprintf(words, size, "most segments or patches (%zu segments)",
                   json_array_size(json_object_get(samples, "length")));
    return words;
}

static void print_pack(const json_t *pack)
{
    char words[80];
    const json_t *samples = json_object_get(pack, "samples");
    const json_t *lengths = json_object_get(samples, "length");
    printf("  pack %" PRId64 "  micro %" PRIu64 " rank %" PRIu64 " row %" PRIu64 "  %s  %" PRIu64
           " tokens, gap %" PRIu64 ", tail %" PRIu64 "\n",
           integer(pack, "pack"), number(pack, "micro"), number(pack, "dp_rank"),
           number(pack, "row"), way_words(pack, words, sizeof words), number(pack, "tokens"),
           number(pack, "gap"), number(pack, "tail"));
    for (size_t i = 0; i < json_array_size(lengths); i++) {
        uint64_t seq =
            (uint64_t)json_number_value(json_array_get(json_object_get(samples, "seq"), i));
        uint64_t part =
            (uint64_t)json_number_value(json_array_get(json_object_get(samples, "part"), i));
        printf(
            "    %s/%" PRIu64,
            entry_name(json_object_get(samples, "streams"), json_object_get(samples, "stream"), i),
            seq);
        if (part > 0)
            printf(" part %" PRIu64, part);
        printf(": %" PRIu64 " tokens\n", (uint64_t)json_number_value(json_array_get(lengths, i)));
    }
}

static void print_explain(const struct request *r, const json_t *reply)
{
    size_t i;
    json_t *pack;
    printf("step %" PRIu64 " of job %s: %s\n", r->step, r->job, text(reply, "state"));
    if (text(reply, "text")[0])
        printf("  %s\n", text(reply, "text"));
    ctl_print_waiting(r->ctl, "it", json_object_get(reply, "waiting"), 0);
    json_array_foreach(json_object_get(reply, "packs"), i, pack) print_pack(pack);
}

/* The whole step: pages of packs put together into the first reply. */
static int explain_all(struct request *r, char **json, struct packd_error *error)
{
    json_t *whole = NULL;
    int rc = 0;
    for (size_t have = 0, total = 1; rc == 0 && have < total;) {
        json_error_t why;
        char *page_json = NULL;
        rc = packd_admin_explain(r->admin, r->feed, r->job, r->step, (uint32_t)have,
                                 PACKD_TIMEOUT_DEFAULT, &page_json, error);
        json_t *page = rc == 0 ? json_loads(page_json, 0, &why) : NULL;
        if (rc == 0 && !page) { /* numbers beyond jansson's: hand out the first page as it is */
            *json = page_json;
            return 0;
        }
        packd_free(page_json);
        size_t got = json_array_size(json_object_get(page, "packs"));
        total = number(page, "packs_total");
        if (whole)
            json_array_extend(json_object_get(whole, "packs"), json_object_get(page, "packs"));
        else
            whole = json_incref(page);
        json_decref(page);
        have += got;
        if (got == 0)
            break;
    }
    *json = rc == 0 ? json_dumps(whole, 0) : NULL;
    json_decref(whole);
    return rc;
}

static const struct option step_options[] = {{"feed", required_argument, NULL, OPT_FEED},
                                             {"job", required_argument, NULL, OPT_JOB},
                                             {"step", required_argument, NULL, OPT_STEP},
                                             {0}};

/* Options and connection of a command that needs a job and a step. */
static int begin_step(struct request *r, struct ctl *ctl, int argc, char **argv)
{
    int rc = begin(r, ctl, argc, argv, step_options);
    if (rc != 0)
        return rc;
    if (!r->job || !r->have_step)
        return ctl_usage(ctl, "--job and --step are required");
    return ctl_admin_open(ctl, &r->admin);
}

static int run_explain(struct ctl *ctl, int argc, char **argv)
{
    struct request r;
    struct packd_error error = {0};
    char *json = NULL;
    int rc = begin_step(&r, ctl, argc, argv);
    if (rc != 0)
        return rc;
    rc = explain_all(&r, &json, &error);
    return finish(&r, rc, &error, json, print_explain);
}

const struct ctl_command ctl_explain_command = {
    .name = "explain",
    .arguments = "--job J --step N [--feed F]",
    .summary = "why a step holds what it holds, or why it is not there yet",
    .help = "  packctl explain --job train --step 12\n\n"
            "  --job J, --step N   which step; --feed F: of another feed than `default`\n",
    .run = run_explain,
};

/* ---- commit ---------------------------------------------------------------------------------- */

static void print_commit(const struct request *r, const json_t *reply)
{
    printf("job %s has committed step %" PRIu64 "; the log holds steps from %" PRIu64 " on\n",
           r->job, number(reply, "committed_step"), number(reply, "lowest_step"));
}

static int run_commit(struct ctl *ctl, int argc, char **argv)
{
    struct request r;
    struct packd_error error = {0};
    char *json = NULL;
    int rc = begin_step(&r, ctl, argc, argv);
    if (rc != 0)
        return rc;
    rc = packd_admin_commit(r.admin, r.feed, r.job, r.step, PACKD_TIMEOUT_DEFAULT, &json, &error);
    return finish(&r, rc, &error, json, print_commit);
}

const struct ctl_command ctl_commit_command = {
    .name = "commit",
    .arguments = "--job J --step N [--feed F]",
    .summary = "state that steps up to N are in a saved checkpoint",
    .help = "  packctl commit --job train --step 2000\n\n"
            "  In place of the trainer: the log may be trimmed behind it, so be sure.\n"
            "  --job J, --step N   which step; --feed F: of another feed than `default`\n",
    .run = run_commit,
};

/* ---- flush ----------------------------------------------------------------------------------- */

static const struct option flush_options[] = {{"feed", required_argument, NULL, OPT_FEED},
                                              {"packs", required_argument, NULL, OPT_PACKS},
                                              {0}};

static void print_flush(const struct request *r, const json_t *reply)
{
    printf("feed %s is flushed from pack %" PRIu64 " on (record %" PRIu64 ")\n", r->feed,
           number(reply, "effective_pack"), number(reply, "record"));
}

static int run_flush(struct ctl *ctl, int argc, char **argv)
{
    struct request r;
    struct packd_error error = {0};
    char *json = NULL;
    int rc = begin_open(&r, ctl, argc, argv, flush_options);
    if (rc != 0)
        return rc;
    rc = packd_admin_flush(r.admin, r.feed, r.packs, PACKD_TIMEOUT_DEFAULT, &json, &error);
    return finish(&r, rc, &error, json, print_flush);
}

const struct ctl_command ctl_flush_command = {
    .name = "flush",
    .arguments = "[--feed F] [--packs N]",
    .summary = "pack what is there, although the window is short",
    .help = "  packctl flush\n"
            "  packctl flush --feed web --packs 32\n\n"
            "  --feed F    feed, else `default`; --packs N: so many packs at most, else all\n",
    .run = run_flush,
};

/* ---- end-feed -------------------------------------------------------------------------------- */

static const struct option feed_options[] = {{"feed", required_argument, NULL, OPT_FEED}, {0}};

static void print_end_feed(const struct request *r, const json_t *reply)
{
    printf("feed %s %s with %" PRIu64 " sample%s\n", r->feed,
           json_is_true(json_object_get(reply, "already")) ? "had ended already" : "has ended",
           number(reply, "samples"), ctl_s(number(reply, "samples")));
}

static int run_end_feed(struct ctl *ctl, int argc, char **argv)
{
    struct request r;
    struct packd_error error = {0};
    char *json = NULL;
    int rc = begin_open(&r, ctl, argc, argv, feed_options);
    if (rc != 0)
        return rc;
    rc = packd_admin_end_feed(r.admin, r.feed, PACKD_TIMEOUT_DEFAULT, &json, &error);
    return finish(&r, rc, &error, json, print_end_feed);
}

const struct ctl_command ctl_end_feed_command = {
    .name = "end-feed",
    .arguments = "[--feed F]",
    .summary = "end a feed: no further sample, everything is packed",
    .help = "  packctl end-feed\n\n"
            "  --feed F    feed, else `default`\n",
    .run = run_end_feed,
};

/* ---- skip-steps ------------------------------------------------------------------------------ */

static const struct option skip_options[] = {{"feed", required_argument, NULL, OPT_FEED},
                                             {"job", required_argument, NULL, OPT_JOB},
                                             {"first", required_argument, NULL, OPT_FIRST},
                                             {"last", required_argument, NULL, OPT_LAST},
                                             {"step", required_argument, NULL, OPT_STEP},
                                             {"why", required_argument, NULL, OPT_WHY},
                                             {0}};

static void print_skip(const struct request *r, const json_t *reply)
{
    printf("job %s skips steps %" PRIu64 " to %" PRIu64 "; generation %" PRIu64
           ", the next step is %" PRIu64 "\n",
           r->job, r->first, r->last, number(reply, "generation"), number(reply, "next_step"));
}

static int run_skip_steps(struct ctl *ctl, int argc, char **argv)
{
    struct request r;
    struct packd_error error = {0};
    char *json = NULL;
    int rc = begin(&r, ctl, argc, argv, skip_options);
    if (rc != 0)
        return rc;
    if (r.have_step && !r.have_first && !r.have_last) {
        r.first = r.last = r.step;
        r.have_first = r.have_last = true;
    }
    if (r.have_first && r.have_last && r.first > r.last)
        return ctl_usage(ctl, "--first %" PRIu64 " is above --last %" PRIu64, r.first, r.last);
    if (!r.job || !r.have_first || !r.have_last)
        return ctl_usage(ctl, "--job, and --first and --last (or --step) are required");
    rc = ctl_admin_open(ctl, &r.admin);
    if (rc != 0)
        return rc;
    rc = packd_admin_skip_steps(r.admin, r.feed, r.job, r.first, r.last, r.why,
                                PACKD_TIMEOUT_DEFAULT, &json, &error);
    return finish(&r, rc, &error, json, print_skip);
}

const struct ctl_command ctl_skip_steps_command = {
    .name = "skip-steps",
    .arguments = "--job J --first N --last N [--why TEXT] [--feed F]",
    .summary = "leave planned steps out",
    .help = "  packctl skip-steps --job train --first 120 --last 124 --why 'loss spike'\n"
            "  packctl skip-steps --job train --step 7\n\n"
            "  --job J            job; --feed F: of another feed than `default`\n"
            "  --first N, --last N  both are left out; --step N is one step\n"
            "  --why TEXT         kept in the log\n\n"
            "Later steps keep their numbers; ranks open the job again and pass over.\n",
    .run = run_skip_steps,
};

/* ---- delete-job ------------------------------------------------------------------------------ */

static const struct option delete_options[] = {{"feed", required_argument, NULL, OPT_FEED},
                                               {"job", required_argument, NULL, OPT_JOB},
                                               {"force", no_argument, NULL, OPT_FORCE},
                                               {0}};

static void print_delete(const struct request *r, const json_t *reply)
{
    (void)reply;
    printf("job %s of feed %s is gone\n", r->job, r->feed);
}

static int run_delete_job(struct ctl *ctl, int argc, char **argv)
{
    struct request r;
    struct packd_error error = {0};
    char *json = NULL;
    int rc = begin(&r, ctl, argc, argv, delete_options);
    if (rc != 0)
        return rc;
    if (!r.job)
        return ctl_usage(ctl, "--job is required");
    rc = ctl_admin_open(ctl, &r.admin);
    if (rc != 0)
        return rc;
    rc = packd_admin_delete_job(r.admin, r.feed, r.job, r.force, PACKD_TIMEOUT_DEFAULT, &json,
                                &error);
    return finish(&r, rc, &error, json, print_delete);
}

const struct ctl_command ctl_delete_job_command = {
    .name = "delete-job",
    .arguments = "--job J [--force] [--feed F]",
    .summary = "forget a job and let go of the log it holds",
    .help = "  packctl delete-job --job old-run\n\n"
            "  --job J    job; --feed F: of another feed than `default`\n"
            "  --force    also while ranks fetch: their calls end\n",
    .run = run_delete_job,
};

/* ---- drain ----------------------------------------------------------------------------------- */

static const struct option drain_options[] = {
    {"undo", no_argument, NULL, OPT_UNDO}, {"wait", required_argument, NULL, OPT_WAIT}, {0}};

/* Time between two looks at the calls still open. */
static const struct timespec drain_pause = {.tv_nsec = 200 * 1000 * 1000};

static void print_drain(const struct request *r, const json_t *reply)
{
    printf("packd at %s: %s; %" PRIu64 " push and %" PRIu64 " fetch calls are open\n",
           r->ctl->server, text(reply, "state"), number(reply, "push_calls"),
           number(reply, "fetch_calls"));
}

static bool calls_open(const char *json)
{
    json_error_t why;
    json_t *reply = json_loads(json, 0, &why);
    bool open = number(reply, "push_calls") + number(reply, "fetch_calls") > 0;
    json_decref(reply);
    return open;
}

static int64_t monotonic_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Asks until no call is open or the time is over: the call is idempotent. */
static int drain_until(struct request *r, char **json, struct packd_error *error)
{
    int64_t end = monotonic_ms() + r->wait_ms;
    for (;;) {
        int rc = packd_admin_drain(r->admin, r->undo, PACKD_TIMEOUT_DEFAULT, json, error);
        if (rc != 0 || monotonic_ms() >= end || !calls_open(*json))
            return rc;
        packd_free(*json);
        *json = NULL;
        nanosleep(&drain_pause, NULL);
    }
}

static int run_drain(struct ctl *ctl, int argc, char **argv)
{
    struct request r;
    struct packd_error error = {0};
    char *json = NULL;
    int rc = begin_open(&r, ctl, argc, argv, drain_options);
    if (rc != 0)
        return rc;
    rc = drain_until(&r, &json, &error);
    return finish(&r, rc, &error, json, print_drain);
}

const struct ctl_command ctl_drain_command = {
    .name = "drain",
    .arguments = "[--wait TIME] [--undo]",
    .summary = "take no new work; running fetches go on",
    .help = "  packctl drain\n"
            "  packctl drain --wait 20s\n"
            "  packctl drain --undo\n\n"
            "  --wait TIME  return when no call is open, at the latest after this time\n"
            "  --undo       take work again\n",
    .run = run_drain,
};
