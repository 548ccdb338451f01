/* packctl status and top: the daemon's Status reply as tables, or as it is with --json.
 *
 * Works on the JSON that libpackd makes of the reply, so a field of a newer server is in --json by
 * itself. Absent fields read as 0 and "". */
#include "client/packctl.h"
#include "client/packctl_reply.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/units.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool truth(const json_t *object, const char *name)
{
    return json_is_true(json_object_get(object, name));
}

/* An enum's name without its prefix, in lower case. */
static const char *word(const char *name, const char *prefix, char *buf, size_t size)
{
    size_t skip = strlen(prefix);
    if (strncmp(name, prefix, skip) == 0)
        name += skip;
    snprintf(buf, size, "%s", name);
    for (char *at = buf; *at; at++)
        if (*at >= 'A' && *at <= 'Z')
            *at = (char)(*at - 'A' + 'a');
    return buf;
}

struct shown {
    char buf[16][40];
    unsigned at;
};

/* Numbers for one line, each in a buffer of its own. */
static const char *bytes(struct shown *shown, uint64_t value)
{
    char *buf = shown->buf[shown->at++ % 16];
    return pd_units_format_bytes(value, buf, 40);
}

static const char *count(struct shown *shown, uint64_t value)
{
    char *buf = shown->buf[shown->at++ % 16];
    return pd_units_format_count(value, buf, 40);
}

/* Numbers of steps for people, where the reply has the highest step, -1 for none. */
static const char *steps_up_to(struct shown *shown, int64_t step)
{
    return step < 0 ? "never" : count(shown, (uint64_t)step + 1);
}

/* In percent; "-" where nothing was served. */
static const char *padding(struct shown *shown, const json_t *served)
{
    char *buf = shown->buf[shown->at++ % 16];
    uint64_t pad = number(served, "tail_padding") + number(served, "tail") + number(served, "gap") +
                   number(served, "row_padding");
    uint64_t all = pad + number(served, "real");
    if (all == 0)
        return "-";
    (void)snprintf(buf, sizeof shown->buf[0], "%.3f %%", 100.0 * (double)pad / (double)all);
    return buf;
}

/* "12 s", "3 min", "2 h", "5 d". */
static const char *span(struct shown *shown, uint64_t ms)
{
    static const struct {
        uint64_t ms;
        const char *unit;
    } units[] = {{86400000, "d"}, {3600000, "h"}, {60000, "min"}, {1000, "s"}};
    char *buf = shown->buf[shown->at++ % 16];
    for (size_t i = 0; i < PD_COUNT_OF(units); i++)
        if (ms >= units[i].ms * (i < 3 ? 2 : 1) || i == 3) {
            snprintf(buf, 40, "%" PRIu64 " %s", ms / units[i].ms, units[i].unit);
            break;
        }
    return buf;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void print_names(const char *title, const json_t *list)
{
    size_t i;
    json_t *name;
    json_array_foreach(list, i, name)
        printf("%s%s", i ? ", " : title, json_string_value(name) ? json_string_value(name) : "?");
}

void ctl_print_waiting(const struct ctl *ctl, const char *who, const json_t *waiting,
                       uint64_t now_ms)
{
    struct shown shown = {0};
    char reason[40];
    if (!json_is_object(waiting))
        return;
    uint64_t since = number(waiting, "since_unix_ms");
    printf("    %s%s waits: %s", ctl_bold(ctl), who,
           word(text(waiting, "reason"), "WAIT_", reason, sizeof reason));
    if (since > 0 && since < now_ms)
        printf(" for %s", span(&shown, now_ms - since));
    print_names("; streams ", json_object_get(waiting, "streams"));
    print_names("; sources ", json_object_get(waiting, "sources"));
    printf("%s", ctl_plain(ctl));
    if (text(waiting, "text")[0])
        printf(": %s", text(waiting, "text"));
    printf("\n");
}

static void print_job(const struct ctl *ctl, const json_t *job, uint64_t now_ms)
{
    struct shown s = {0};
    const json_t *spec = json_object_get(job, "spec");
    size_t i;
    json_t *rank;
    printf("    %-20.64s %6" PRIu64 " %9s %9s %9s %8s %10s  %s\n", text(job, "name"),
           number(spec, "step_packs"), steps_up_to(&s, integer(job, "planned_step")),
           steps_up_to(&s, integer(job, "delivered_step")),
           steps_up_to(&s, integer(job, "committed_step")), bytes(&s, number(job, "bytes_held")),
           padding(&s, json_object_get(job, "served")),
           !truth(job, "started")                          ? "not opened yet"
           : truth(job, "released")                        ? "released (idle)"
           : strcmp(text(spec, "kind"), "JOB_READER") == 0 ? "reader"
           : integer(job, "end_step") >= 0 &&
                   integer(job, "delivered_step") >= integer(job, "end_step")
               ? "finished"
               : "");
    json_array_foreach(json_object_get(job, "ranks"), i, rank)
    {
        char who[100];
        snprintf(who, sizeof who, "%.60s rank %" PRIu64, text(job, "name"),
                 number(rank, "dp_rank"));
        ctl_print_waiting(ctl, who, json_object_get(rank, "waiting"), now_ms);
    }
}

static void print_stream(const json_t *stream)
{
    struct shown s = {0};
    char why[40];
    printf("    %-40.64s %-12.64s %12s %10s %10s  %s%s%s\n", text(stream, "name"),
           text(stream, "source"), count(&s, number(stream, "next_seq")),
           bytes(&s, number(stream, "held_bytes")), bytes(&s, number(stream, "credit_bytes")),
           truth(stream, "ended")       ? "ended"
           : truth(stream, "connected") ? "connected"
                                        : "idle",
           strcmp(text(stream, "why"), "LOG_OK") == 0 ? "" : " ",
           strcmp(text(stream, "why"), "LOG_OK") == 0
               ? ""
               : word(text(stream, "why"), "LOG_", why, sizeof why));
}

static void print_feed_numbers(const struct ctl *ctl, const json_t *feed)
{
    struct shown s = {0};
    const json_t *ingest = json_object_get(feed, "ingest");
    const json_t *served = json_object_get(feed, "served");
    size_t i;
    json_t *reject;
    printf("  samples   %s accepted, %s tokens, %s; %s packed, %s in the window\n",
           count(&s, number(ingest, "samples")), count(&s, number(ingest, "tokens")),
           bytes(&s, number(ingest, "bytes")), count(&s, number(feed, "packed_samples")),
           count(&s, number(feed, "window_samples")));
    printf("  left out  %s duplicates", count(&s, number(ingest, "duplicates")));
    json_array_foreach(json_object_get(ingest, "rejects"), i, reject)
        printf(", %s%s %s%s", ctl_red(ctl), count(&s, number(reject, "count")),
               text(reject, "reason"), ctl_plain(ctl));
    printf("\n  packs     %s planned (horizon %s, lowest %s)\n",
           count(&s, number(feed, "planned_packs")), count(&s, number(feed, "horizon_pack")),
           count(&s, number(feed, "lowest_pack")));
    printf("  served    %s tokens, %s%s padding%s (since the start, all jobs)\n",
           count(&s, number(served, "real")), ctl_bold(ctl), padding(&s, served), ctl_plain(ctl));
    printf("  log       %s of %s\n", bytes(&s, number(feed, "log_bytes")),
           bytes(&s, number(feed, "log_max_bytes")));
}

/* What pruning spares, and a rule's view that nobody has pushed. */
static void print_pruning(const struct ctl *ctl, const json_t *pruning)
{
    struct shown s = {0};
    size_t i;
    json_t *view;
    if (!json_is_object(pruning))
        return;
    printf("  pruned    %s samples, %s tokens, %s patches: %.2f %% less attention, %.2f %% less of "
           "cost\n",
           count(&s, number(pruning, "samples")), count(&s, number(pruning, "tokens")),
           count(&s, number(pruning, "patches")),
           (double)integer(pruning, "attention_saved_ppm") / 1e4,
           (double)integer(pruning, "cost_saved_ppm") / 1e4);
    json_array_foreach(json_object_get(pruning, "views"), i, view)
    {
        if (truth(view, "seen"))
            printf("    view %-16s %s samples, %s tokens, %s patches, %.2f %% of attention\n",
                   text(view, "name"), count(&s, number(view, "samples")),
                   count(&s, number(view, "tokens")), count(&s, number(view, "patches")),
                   (double)integer(view, "attention_saved_ppm") / 1e4);
        else
            printf("    view %-16s %snever seen: is the name right?%s\n", text(view, "name"),
                   ctl_red(ctl), ctl_plain(ctl));
    }
}

static void print_feed(const struct ctl *ctl, const json_t *feed, uint64_t now_ms)
{
    struct shown s = {0};
    size_t i;
    json_t *at;
    const json_t *jobs = json_object_get(feed, "jobs"), *streams = json_object_get(feed, "streams");
    printf("\n%sfeed %s%s  %s stream%s, %s ended%s%s\n", ctl_bold(ctl), text(feed, "name"),
           ctl_plain(ctl), count(&s, number(feed, "streams_total")),
           ctl_s(number(feed, "streams_total")), count(&s, number(feed, "streams_ended")),
           truth(feed, "ended")           ? "; the feed has ended"
           : truth(feed, "end_requested") ? "; the feed is ending"
                                          : "",
           text(feed, "halted")[0] ? "; HALTED" : "");
    if (text(feed, "halted")[0])
        printf("  %shalted: %s%s\n", ctl_red(ctl), text(feed, "halted"), ctl_plain(ctl));
    print_feed_numbers(ctl, feed);
    print_pruning(ctl, json_object_get(feed, "pruning"));
    ctl_print_waiting(ctl, "planning", json_object_get(feed, "waiting"), now_ms);
    if (json_array_size(jobs) > 0)
        printf("    %s%-20s %6s %9s %9s %9s %8s %10s%s\n", ctl_dim(ctl), "job", "packs", "planned",
               "delivered", "committed", "held", "padding", ctl_plain(ctl));
    json_array_foreach(jobs, i, at) print_job(ctl, at, now_ms);
    if (json_array_size(streams) > 0)
        printf("    %s%-40s %-12s %12s %10s %10s%s\n", ctl_dim(ctl), "stream", "source", "next seq",
               "held", "credit", ctl_plain(ctl));
    json_array_foreach(streams, i, at) print_stream(at);
    if (truth(feed, "streams_more"))
        printf("    ... more streams than one reply lists; --after NAME goes on\n");
}

/* " (what the disk can hold; log.max_bytes is 16.0GiB)" where the disk limits the log, else "". */
static const char *disk_limit(const json_t *log, char *text, size_t size)
{
    uint64_t configured = number(log, "configured_bytes");
    char max[24];
    text[0] = 0;
    if (configured > number(log, "max_bytes"))
        snprintf(text, size, " (what the disk can hold; log.max_bytes is %s)",
                 pd_units_format_bytes(configured, max, sizeof max));
    return text;
}

static void print_server(const struct ctl *ctl, const json_t *status)
{
    struct shown s = {0};
    char state[40], durability[40], limit[96];
    const json_t *log = json_object_get(status, "log"), *memory = json_object_get(status, "memory");
    const json_t *validator = json_object_get(status, "validator");
    uint64_t up = number(status, "now_unix_ms") - number(status, "started_unix_ms");
    bool ready = truth(status, "ready");
    printf("%spackd %s%s at %s: %s%s%s, up %s, log %.8s (%s)\n", ctl_bold(ctl),
           text(status, "server_version"), ctl_plain(ctl), ctl->server, ready ? "" : ctl_red(ctl),
           word(text(status, "state"), "STATE_", state, sizeof state), ctl_plain(ctl), span(&s, up),
           text(status, "log_id"),
           word(text(status, "durability"), "DURABILITY_", durability, sizeof durability));
    if (!ready)
        printf("  %snot ready: %s%s\n", ctl_red(ctl), text(status, "not_ready"), ctl_plain(ctl));
    printf("  log       %s of %s%s (%s held for jobs, %s unplanned), %s record%s\n",
           bytes(&s, number(log, "bytes")), bytes(&s, number(log, "max_bytes")),
           disk_limit(log, limit, sizeof limit), bytes(&s, number(log, "planned_held_bytes")),
           bytes(&s, number(log, "unplanned_bytes")), count(&s, number(log, "records")),
           ctl_s(number(log, "records")));
    printf("  memory    batches %s of %s, ingest %s of %s, process %s\n",
           bytes(&s, number(memory, "batches_bytes")),
           bytes(&s, number(memory, "batches_max_bytes")),
           bytes(&s, number(memory, "ingest_bytes")), bytes(&s, number(memory, "ingest_max_bytes")),
           bytes(&s, number(memory, "anonymous_bytes")));
    printf("  checks    %s batches, %s probed on %s, %s%s violations%s%s%s\n",
           count(&s, number(validator, "structural")), count(&s, number(validator, "probed")),
           text(validator, "backend")[0] ? text(validator, "backend") : "none",
           number(validator, "violations") ? ctl_red(ctl) : "",
           count(&s, number(validator, "violations")), ctl_plain(ctl),
           text(validator, "retired")[0] ? "; device given up: " : "", text(validator, "retired"));
    printf("  calls     %s push, %s fetch\n", count(&s, number(status, "push_calls")),
           count(&s, number(status, "fetch_calls")));
}

static void print_status(const struct ctl *ctl, const json_t *status)
{
    size_t i;
    json_t *feed;
    print_server(ctl, status);
    json_array_foreach(json_object_get(status, "feeds"), i, feed)
        print_feed(ctl, feed, number(status, "now_unix_ms"));
}

/* ---- asking ---------------------------------------------------------------------------------- */

struct ask {
    struct ctl *ctl;
    struct packd_admin *admin;
    const char *feed, *job, *after;
    bool streams;
};

/* Integers beyond 2^63 (a group, a version) do not fit jansson's: reals will do for tables. */
static json_t *parse(const char *json)
{
    json_error_t why;
    json_t *status = json_loads(json, 0, &why);
    return status ? status : json_loads(json, JSON_DECODE_INT_AS_REAL, &why);
}

static int ask(const struct ask *a, char **json)
{
    struct packd_error error = {0};
    if (packd_admin_status(a->admin, a->feed, a->job, a->streams, a->after, PACKD_TIMEOUT_DEFAULT,
                           json, &error) == 0)
        return CTL_OK;
    return ctl_error(a->ctl, &error);
}

/* The server names a feed that is not there; of a job it just says nothing. */
static int check_job(const struct ask *a, const json_t *status)
{
    size_t i;
    json_t *feed;
    json_array_foreach(json_object_get(status, "feeds"), i, feed)
    {
        if (json_array_size(json_object_get(feed, "jobs")) > 0)
            return CTL_OK;
    }
    if (!a->job)
        return CTL_OK;
    ctl_message("packd at %s has no job '%s'%s%s", a->ctl->server, a->job,
                a->feed ? " in feed " : "", a->feed ? a->feed : "");
    return CTL_FAILED;
}

static int ask_and_print(const struct ask *a)
{
    char *json;
    int rc = ask(a, &json);
    if (rc != CTL_OK)
        return rc;
    json_t *status = parse(json);
    if (a->ctl->json)
        printf("%s\n", json);
    else if (status)
        print_status(a->ctl, status);
    rc = status ? check_job(a, status) : CTL_DAMAGED;
    json_decref(status);
    packd_free(json);
    return rc;
}

static const struct option status_options[] = {{"feed", required_argument, NULL, 'f'},
                                               {"job", required_argument, NULL, 'j'},
                                               {"streams", no_argument, NULL, 's'},
                                               {"after", required_argument, NULL, 'a'},
                                               {0}};

static int run_status(struct ctl *ctl, int argc, char **argv)
{
    struct ask a = {.ctl = ctl};
    int option;
    while ((option = ctl_getopt(ctl, argc, argv, status_options)) != -1) {
        if (option == 'f')
            a.feed = optarg;
        else if (option == 'j')
            a.job = optarg;
        else if (option == 'a')
            a.after = optarg;
        a.streams |= option == 's' || option == 'a';
    }
    if (ctl_no_arguments(ctl, argc, argv) != 0)
        return CTL_USAGE;
    int rc = ctl_admin_open(ctl, &a.admin);
    if (rc == CTL_OK)
        rc = ask_and_print(&a);
    packd_admin_close(a.admin);
    return rc;
}

const struct ctl_command ctl_status_command = {
    .name = "status",
    .arguments = "[--feed F] [--job J] [--streams]",
    .summary = "what the daemon holds, does and waits for",
    .help = "  packctl status\n"
            "  packctl status --streams --feed default\n"
            "  packctl status --json | jq '.feeds[].jobs[].committed_step'\n\n"
            "  planned, delivered, committed: how many steps; in --json the highest step, -1 for "
            "none\n"
            "  --feed F     this feed only; --job J: this job only\n"
            "  --streams    list streams, 1,000 a feed; --after NAME: those behind it\n",
    .run = run_status,
};

/* ---- top ------------------------------------------------------------------------------------- */

#define LOOKS_MAX 60

struct totals {
    uint64_t pushed_tokens, served_tokens, positions, at_ns;
};

/* What top remembers between looks. */
struct looks {
    struct totals last;
    double
        padding[LOOKS_MAX]; /* percent between two looks, oldest first; negative: nothing served */
    size_t count;
};

static struct totals totals_of(const json_t *status)
{
    struct totals sum = {.at_ns = pd_clock_mono_ns()};
    size_t i;
    json_t *feed;
    json_array_foreach(json_object_get(status, "feeds"), i, feed)
    {
        const json_t *served = json_object_get(feed, "served");
        sum.pushed_tokens += number(json_object_get(feed, "ingest"), "tokens");
        sum.served_tokens += number(served, "real");
        sum.positions += number(served, "real") + number(served, "tail") + number(served, "gap") +
                         number(served, "row_padding");
    }
    return sum;
}

static uint64_t per_second(uint64_t now, uint64_t before, double seconds)
{
    return now > before && seconds > 0 ? (uint64_t)((double)(now - before) / seconds) : 0;
}

static void remember(struct looks *looks, const struct totals *now)
{
    uint64_t all = now->positions - looks->last.positions,
             real = now->served_tokens - looks->last.served_tokens;
    bool any = looks->last.at_ns > 0 && now->positions > looks->last.positions;
    if (looks->count == LOOKS_MAX)
        memmove(looks->padding, looks->padding + 1, (LOOKS_MAX - 1) * sizeof *looks->padding);
    else
        looks->count++;
    looks->padding[looks->count - 1] = any ? 100.0 * (double)(all - real) / (double)all : -1;
}

/* A bar for each look, from 0 to the highest (at least 1 %). */
static void print_curve(const struct looks *looks)
{
    static const char *const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double top = 1;
    for (size_t i = 0; i < looks->count; i++)
        top = looks->padding[i] > top ? looks->padding[i] : top;
    for (size_t i = 0; i < looks->count; i++) {
        size_t height = looks->padding[i] < 0 ? 0 : (size_t)(looks->padding[i] / top * 7 + 0.5);
        fputs(looks->padding[i] < 0 ? " " : bars[height], stdout);
    }
}

/* Whom the first rank that waits waits for; NULL: none waits. */
static const char *first_wait(const json_t *status, uint64_t *ranks)
{
    const char *first = NULL;
    size_t f, j, r;
    json_t *feed, *job, *rank;
    json_array_foreach(json_object_get(status, "feeds"), f, feed)
        json_array_foreach(json_object_get(feed, "jobs"), j, job)
            json_array_foreach(json_object_get(job, "ranks"), r, rank)
    {
        const json_t *waiting = json_object_get(rank, "waiting");
        *ranks += json_is_object(waiting);
        if (!first && json_is_object(waiting))
            first = text(waiting, "reason");
    }
    return first;
}

static const char *culprit(const char *reason)
{
    static const struct {
        const char *reason, *who;
    } rows[] = {
        {"WAIT_SAMPLES", "producers"},
        {"WAIT_LANE", "producers: one source has nothing"},
        {"WAIT_STREAM", "a producer that has not come"},
        {"WAIT_ALL_STREAMS_ENDED_FEED_OPEN", "whoever ends the feed"},
        {"WAIT_COMMIT", "a job's commit"},
        {"WAIT_LOG_FULL", "space in the log"},
        {"WAIT_HALTED", "an operator"},
        {"WAIT_DIVERGED", "an operator"},
        {"WAIT_CREDIT", "nobody: the trainer is busy"},
    };
    for (size_t i = 0; i < PD_COUNT_OF(rows); i++)
        if (strcmp(rows[i].reason, reason) == 0)
            return rows[i].who;
    return "packd";
}

static void print_log_bar(const struct ctl *ctl, const json_t *log)
{
    char limit[96];
    uint64_t used = number(log, "bytes"), max = number(log, "max_bytes");
    unsigned filled = max ? (unsigned)((double)used * 20 / (double)max + 0.5) : 0;
    struct shown s = {0};
    printf("  log       %s", filled > 17 ? ctl_red(ctl) : "");
    for (unsigned i = 0; i < 20; i++)
        fputs(i < filled ? "█" : "░", stdout);
    printf("%s %s of %s%s\n", ctl_plain(ctl), bytes(&s, used), bytes(&s, max),
           disk_limit(log, limit, sizeof limit));
}

/* The picture in five lines, above the tables. */
static void print_glance(const struct ctl *ctl, const json_t *status, struct looks *looks)
{
    struct totals now = totals_of(status);
    struct shown s = {0};
    uint64_t ranks = 0;
    double seconds = looks->last.at_ns ? (double)(now.at_ns - looks->last.at_ns) / 1e9 : 0;
    const char *wait = first_wait(status, &ranks);
    remember(looks, &now);
    double rate = looks->padding[looks->count - 1];
    if (rate < 0)
        printf("  padding   %s-%s         ", ctl_bold(ctl), ctl_plain(ctl));
    else
        printf("  padding   %s%.3f %%%s  ", ctl_bold(ctl), rate, ctl_plain(ctl));
    print_curve(looks);
    printf("\n  tokens    in %s/s, out %s/s\n",
           count(&s, per_second(now.pushed_tokens, looks->last.pushed_tokens, seconds)),
           count(&s, per_second(now.served_tokens, looks->last.served_tokens, seconds)));
    if (wait)
        printf("  waits     %s%" PRIu64 " %s for %s%s\n", ctl_bold(ctl), ranks,
               ranks == 1 ? "rank waits" : "ranks wait", culprit(wait), ctl_plain(ctl));
    else
        printf("  waits     no rank waits\n");
    print_log_bar(ctl, json_object_get(status, "log"));
    printf("\n");
    looks->last = now;
}

/* What rates count from. */
static int look_silently(const struct ask *a, struct looks *looks)
{
    char *json;
    int rc = ask(a, &json);
    if (rc != CTL_OK)
        return rc;
    json_t *status = parse(json);
    looks->last = totals_of(status);
    json_decref(status);
    packd_free(json);
    return CTL_OK;
}

static int top_once(const struct ask *a, struct looks *looks)
{
    char *json;
    int rc = ask(a, &json);
    if (rc != CTL_OK)
        return rc;
    json_t *status = a->ctl->json ? NULL : parse(json);
    if (a->ctl->json) {
        printf("%s\n", json);
    } else if (status) {
        if (isatty(STDOUT_FILENO))
            fputs("\033[H\033[J", stdout);
        print_glance(a->ctl, status, looks);
        print_status(a->ctl, status);
    }
    fflush(stdout);
    json_decref(status);
    packd_free(json);
    return ferror(stdout) ? CTL_INPUT : CTL_OK;
}

/* Sleeps, or until a signal. */
static void rest(int64_t ms)
{
    struct timespec time = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

static const struct option top_options[] = {{"interval", required_argument, NULL, 'i'},
                                            {"count", required_argument, NULL, 'n'},
                                            {"feed", required_argument, NULL, 'f'},
                                            {0}};

static int run_top(struct ctl *ctl, int argc, char **argv)
{
    struct ask a = {.ctl = ctl};
    struct looks looks = {0};
    int64_t interval_ms = 1000;
    uint64_t times = UINT64_MAX;
    int option;
    while ((option = ctl_getopt(ctl, argc, argv, top_options)) != -1) {
        if (option == 'i')
            interval_ms = ctl_duration_ms("interval", optarg);
        else if (option == 'n')
            times = ctl_number("count", optarg, 1, UINT64_MAX);
        else if (option == 'f')
            a.feed = optarg;
    }
    if (ctl_no_arguments(ctl, argc, argv) != 0)
        return CTL_USAGE;
    ctl_catch_signals();
    int rc = ctl_admin_open(ctl, &a.admin);
    bool primed = times == 1 && !ctl->json;
    if (rc == CTL_OK && primed)
        rc = look_silently(&a, &looks);
    for (uint64_t i = 0; rc == CTL_OK && i < times && !ctl_stop; i++) {
        if (i > 0 || primed)
            rest(interval_ms);
        if (!ctl_stop)
            rc = top_once(&a, &looks);
    }
    packd_admin_close(a.admin);
    return rc;
}

const struct ctl_command ctl_top_command = {
    .name = "top",
    .arguments = "[--interval TIME] [--count N] [--feed F]",
    .summary = "status again and again: padding, rates, who waits for whom",
    .help =
        "  packctl top\n"
        "  packctl top --interval 5s --json >> packd.jsonl\n\n"
        "  --interval TIME  between two looks (1s); --count N: so many looks, else until Ctrl-C\n"
        "  --feed F         this feed only\n",
    .run = run_top,
};
