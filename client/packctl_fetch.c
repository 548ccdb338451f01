/* packctl fetch: reads one rank's batches, checks them, writes them to files.
 *
 * Every batch passes the structural check of packer/check.h on this side too, on the arrays as they
 * were received or rebuilt. A file appears under its name only when it is complete. A fetch that is
 * started again with --from goes on wherever it is told to. */
#include "client/lib_error.h"
#include "client/packctl.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/packctl_batch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TIMEOUT_MS INT64_C(600000)
#define OPEN_TIMEOUT_MS INT64_C(30000)

struct fetch {
    struct ctl *ctl;
    struct packd_job_options options;
    const char *out;
    uint64_t commit_every;
    bool check;
    struct packd_job *job;
    struct packd_spec spec;
    struct ctl_fetch_totals totals;
    uint64_t steps, committed; /* steps returned whole; commits made */
    int64_t last_step;         /* returned whole; -1: none */
    uint64_t uncommitted;      /* steps since the last commit */
    uint64_t started_ns, first_ns;
    char end_reason[40];
    struct packd_waiting told; /* the wait last shown */
};

/* Too few samples for a full window: the wait that people meet first, and can end. */
static void note_samples(const struct fetch *fetch, const struct packd_waiting *w)
{
    char more[48] = "more samples";
    if (w->samples_needed > 0)
        snprintf(more, sizeof more, "%" PRIu64 " more sample%s", w->samples_needed,
                 ctl_s(w->samples_needed));
    ctl_note(fetch->ctl,
             "waiting for step %" PRIu64 ": the window needs %s%s%s%s; `packctl flush` or "
             "`packctl end-feed` lets out what is there",
             w->step, more, w->streams[0] ? " (streams " : "", w->streams,
             w->streams[0] ? ")" : "");
}

/* The server's text names step, streams and sources by itself. */
static void note_waiting(const struct fetch *fetch, const struct packd_waiting *w)
{
    char step[40];
    size_t size = (size_t)snprintf(step, sizeof step, "step %" PRIu64 ": ", w->step);
    const char *text = w->text[0] ? w->text : w->reason_name;
    if (strncmp(text, step, size) == 0)
        text += size;
    ctl_note(fetch->ctl, "waiting for step %" PRIu64 ": %s", w->step, text);
}

/* A wait worth telling: longer than a second, and not told yet. */
static void show_waiting(struct fetch *fetch, uint64_t since_ns)
{
    struct packd_waiting w;
    if (pd_clock_mono_ns() - since_ns < UINT64_C(1000000000))
        return;
    packd_job_waiting(fetch->job, &w);
    if (!w.waiting || (w.reason == fetch->told.reason && w.step == fetch->told.step &&
                       strcmp(w.streams, fetch->told.streams) == 0))
        return;
    fetch->told = w;
    if (strcmp(w.reason_name, "WAIT_SAMPLES") == 0)
        note_samples(fetch, &w);
    else
        note_waiting(fetch, &w);
}

static void on_commit_needed(void *ctx, const struct packd_commit_needed *needed)
{
    struct fetch *fetch = ctx;
    ctl_note(fetch->ctl, "the log fills up: commit within %" PRIu64 " steps", needed->steps_left);
}

static int commit(struct fetch *fetch)
{
    struct packd_error error = {0};
    if (packd_job_commit(fetch->job, (uint64_t)fetch->last_step, PACKD_TIMEOUT_DEFAULT, &error) !=
        0)
        return ctl_error(fetch->ctl, &error);
    fetch->committed++;
    fetch->uncommitted = 0;
    return CTL_OK;
}

static void print_batch(const struct fetch *fetch, const struct packd_batch *b, const char *path)
{
    if (fetch->ctl->json) {
        ctl_batch_print_json(b, path, fetch->check);
        return;
    }
    if (fetch->ctl->quiet)
        return;
    char tokens[32];
    const struct packd_totals *t = &b->batch_totals;
    uint64_t pad = t->tail_padding + t->gap + t->row_padding, all = pad + t->real_tokens;
    printf("step %" PRIu64
           " micro %u rank %u: %ux%u, %zu sample%s, %s tokens, %.3f %% padding%s%s\n",
           b->step, b->micro, b->dp_rank, b->rows, b->width, b->samples.count,
           ctl_s(b->samples.count), pd_units_format_count(t->real_tokens, tokens, sizeof tokens),
           all ? 100.0 * (double)pad / (double)all : 0.0, path[0] ? ", " : "", path);
}

/* One batch: check, write, count, print. */
static int take(struct fetch *fetch, const struct packd_batch *b)
{
    char path[4096] = "", text[400];
    if (fetch->check && ctl_batch_check(&fetch->spec, b, text, sizeof text) != 0) {
        ctl_message("step %" PRIu64 " micro %u rank %u breaks the batch contract: %s", b->step,
                    b->micro, b->dp_rank, text);
        return CTL_DAMAGED;
    }
    if (fetch->out) {
        struct packd_error error = {0};
        snprintf(path, sizeof path, "%s/step-%08" PRIu64 "-micro-%02u-rank-%04u.safetensors",
                 fetch->out, b->step, b->micro, b->dp_rank);
        if (ctl_batch_write(b, path, &error) != 0)
            return ctl_error(fetch->ctl, &error);
    }
    ctl_fetch_totals_add(&fetch->totals, b);
    print_batch(fetch, b, path);
    if (b->micro + 1 == fetch->spec.accum) {
        fetch->steps++;
        fetch->uncommitted++;
        fetch->last_step = (int64_t)b->step;
    }
    return CTL_OK;
}

/* The next batch in slices, so that a signal ends the wait. 1: there is one, 0: the end, or an exit
 * code below 0. */
static int next(struct fetch *fetch, const struct packd_batch **batch)
{
    int64_t limit_ms = fetch->ctl->timeout_ms >= 0 ? fetch->ctl->timeout_ms : TIMEOUT_MS;
    uint64_t from = pd_clock_mono_ns(), deadline = from + (uint64_t)limit_ms * 1000000;
    struct packd_error error = {0};
    int rc;
    while ((rc = packd_job_next(fetch->job, CTL_SLICE_MS, batch, &error)) == PACKD_ETIMEDOUT) {
        if (ctl_stop)
            return -CTL_INTERRUPTED;
        if (pd_clock_mono_ns() >= deadline)
            break;
        show_waiting(fetch, from);
    }
    if (rc == PACKD_EEND) {
        snprintf(fetch->end_reason, sizeof fetch->end_reason, "%s", error.reason);
        return 0;
    }
    if (rc == 0)
        return 1;
    int status = ctl_error(fetch->ctl, &error);
    if (rc == PACKD_ETIMEDOUT)
        ctl_message("gave up after %.1f s without a batch (%s)", (double)limit_ms / 1e3,
                    fetch->ctl->timeout_ms >= 0 ? "--timeout" : "--timeout TIME changes that");
    return -status;
}

/* A feed that ended before the step asked for has nothing that could be called finished. */
static int check_begun(const struct fetch *fetch)
{
    struct packd_end end;
    struct packd_error error = {0};
    packd_job_end(fetch->job, &end);
    const struct packd_job_options *o = &fetch->options;
    if (!end.ended || o->start != PACKD_START_RESUME || (int64_t)o->resume_step < end.last_step)
        return CTL_OK;
    char last[64] = "without any step";
    if (end.last_step >= 0)
        snprintf(last, sizeof last, "with step %" PRId64, end.last_step);
    pd_client_error(&error, PACKD_ERANGE, "BEYOND_END",
                    "packd at %s: feed %s has ended %s of job %s: there is no step %" PRIu64
                    " to begin --from",
                    fetch->ctl->server, o->feed, last, o->job, o->resume_step + 1);
    return ctl_error(fetch->ctl, &error);
}

static int fetch_all(struct fetch *fetch)
{
    const struct packd_batch *batch;
    int rc;
    while ((rc = next(fetch, &batch)) == 1) {
        if (fetch->first_ns == 0)
            fetch->first_ns = pd_clock_mono_ns();
        rc = take(fetch, batch);
        packd_batch_release(batch);
        if (rc == CTL_OK && fetch->commit_every > 0 && fetch->uncommitted == fetch->commit_every)
            rc = commit(fetch);
        if (rc == CTL_OK && (ferror(stdout) || ctl_stop))
            rc = ctl_stop ? CTL_INTERRUPTED : CTL_INPUT;
        if (rc != CTL_OK)
            return rc;
    }
    if (rc < 0)
        return -rc;
    rc = check_begun(fetch);
    if (rc != CTL_OK)
        return rc;
    if (fetch->commit_every > 0 && fetch->uncommitted > 0)
        return commit(fetch);
    return CTL_OK;
}

/* ---- the summary ----------------------------------------------------------------------------- */

static void print_summary(const struct fetch *fetch)
{
    struct packd_job_info info;
    packd_job_info(fetch->job, &info);
    const struct ctl_fetch_totals *t = &fetch->totals;
    uint64_t pad = t->tail + t->gap + t->row_padding, all = t->real + pad;
    double seconds = fetch->first_ns ? (double)(pd_clock_mono_ns() - fetch->started_ns) / 1e9 : 0;
    double rate = seconds > 0 ? (double)t->real / seconds : 0;
    double padding = all ? (double)pad / (double)all : 0;
    if (fetch->ctl->json) {
        printf("{\"type\": \"summary\", \"job\": \"%s\", \"feed\": \"%s\", \"dp_rank\": %u, "
               "\"batches\": %" PRIu64 ", \"steps\": %" PRIu64 ", \"first_step\": %" PRIu64
               ", \"last_step\": %" PRId64 ", \"committed_step\": %" PRId64
               ", \"samples\": %" PRIu64 ", \"segments\": %" PRIu64 ", \"real_tokens\": %" PRIu64
               ", \"tail_padding\": %" PRIu64 ", \"gap\": %" PRIu64 ", \"row_padding\": %" PRIu64
               ", \"overlap_tokens\": %" PRIu64 ", \"loss_tokens\": %" PRId64
               ", \"padding_rate\": %.9g, \"payload_bytes\": %" PRIu64
               ", \"received_bytes\": %" PRIu64 ", \"checked\": %s, \"reopens\": %" PRIu64
               ", \"generation\": %" PRIu64 ", \"log_id\": \"%s\", \"end\": \"%s\""
               ", \"seconds\": %.3f, \"tokens_per_second\": %.0f}\n",
               fetch->options.job, fetch->options.feed, fetch->options.dp_rank, t->batches,
               fetch->steps, info.first_step, fetch->last_step, info.committed_step, t->samples,
               t->segments, t->real, t->tail, t->gap, t->row_padding, t->overlap, t->loss_tokens,
               padding, t->payload_bytes, t->received_bytes, fetch->check ? "true" : "false",
               info.reopens, info.generation, info.log_id, fetch->end_reason, seconds, rate);
        return;
    }
    char samples[32], tokens[32], speed[32];
    printf("%s%" PRIu64 " batch%s, %" PRIu64 " step%s, %s sample%s, %s tokens, %.3f %% padding, "
           "%s tokens/s%s; %s\n",
           ctl_bold(fetch->ctl), t->batches, t->batches == 1 ? "" : "es", fetch->steps,
           ctl_s(fetch->steps), pd_units_format_count(t->samples, samples, sizeof samples),
           ctl_s(t->samples), pd_units_format_count(t->real, tokens, sizeof tokens), 100 * padding,
           pd_units_format_count((uint64_t)rate, speed, sizeof speed), ctl_plain(fetch->ctl),
           strcmp(fetch->end_reason, "END_OF_FEED") == 0 ? "the feed has ended" : "as asked for");
}

/* ---- the command ----------------------------------------------------------------------------- */

static int make_directory(const char *path)
{
    if (mkdir(path, 0777) == 0 || errno == EEXIST)
        return CTL_OK;
    ctl_message("--out %s: %s", path, strerror(errno));
    return CTL_INPUT;
}

static int run_all(struct fetch *fetch)
{
    struct packd_error error = {0};
    struct packd_job_info info;
    if (ctl_server_check(fetch->ctl) != CTL_OK)
        return CTL_USAGE;
    if (fetch->out && make_directory(fetch->out) != CTL_OK)
        return CTL_INPUT;
    fetch->started_ns = pd_clock_mono_ns();
    if (packd_job_open(&fetch->options, &fetch->job, &error) != 0)
        return ctl_error(fetch->ctl, &error);
    ctl_catch_signals(); /* from here on there is something to end in order */
    packd_job_info(fetch->job, &info);
    fetch->spec = info.spec;
    ctl_note(fetch->ctl, "job %s of feed %s: %u packs a step, from step %" PRIu64 "%s",
             fetch->options.job, fetch->options.feed, info.spec.step_packs, info.first_step,
             info.created ? " (created)" : "");
    int rc = fetch_all(fetch);
    if (rc == CTL_OK)
        print_summary(fetch);
    if (rc == CTL_INTERRUPTED && fetch->last_step < 0)
        ctl_message("interrupted before a step was complete");
    else if (rc == CTL_INTERRUPTED)
        ctl_message("interrupted behind step %" PRId64, fetch->last_step);
    packd_job_close(fetch->job);
    return rc;
}

enum {
    OPT_JOB = 1000,
    OPT_DP_SIZE,
    OPT_RANK,
    OPT_ROWS,
    OPT_ACCUM,
    OPT_STEP_PACKS,
    OPT_WORLD,
    OPT_FROM,
    OPT_STEPS,
    OPT_OUT,
    OPT_COMMIT_EVERY,
    OPT_AUTO_COMMIT,
    OPT_REGROUP,
    OPT_FEED,
    OPT_READER,
    OPT_ARRAYS,
    OPT_NO_CHECK,
    OPT_PREFETCH
};

static const struct option fetch_options[] = {
    {"job", required_argument, NULL, OPT_JOB},
    {"dp-size", required_argument, NULL, OPT_DP_SIZE},
    {"rank", required_argument, NULL, OPT_RANK},
    {"rows", required_argument, NULL, OPT_ROWS},
    {"accum", required_argument, NULL, OPT_ACCUM},
    {"step-packs", required_argument, NULL, OPT_STEP_PACKS},
    {"world", required_argument, NULL, OPT_WORLD},
    {"from", required_argument, NULL, OPT_FROM},
    {"steps", required_argument, NULL, OPT_STEPS},
    {"out", required_argument, NULL, OPT_OUT},
    {"commit-every", required_argument, NULL, OPT_COMMIT_EVERY},
    {"auto-commit", required_argument, NULL, OPT_AUTO_COMMIT},
    {"regroup", no_argument, NULL, OPT_REGROUP},
    {"feed", required_argument, NULL, OPT_FEED},
    {"reader", no_argument, NULL, OPT_READER},
    {"arrays", required_argument, NULL, OPT_ARRAYS},
    {"no-check", no_argument, NULL, OPT_NO_CHECK},
    {"prefetch", required_argument, NULL, OPT_PREFETCH},
    {0}};

static void set_from(struct packd_job_options *o, const char *text)
{
    uint64_t step = ctl_number("from", text, 0, INT64_MAX);
    o->start = step == 0 ? PACKD_START_FIRST : PACKD_START_RESUME;
    o->resume_step = step == 0 ? 0 : step - 1;
}

/* One option; false where its value is wrong. */
static bool set_option(struct fetch *fetch, int option)
{
    struct packd_job_options *o = &fetch->options;
    switch (option) {
    case OPT_JOB:
        o->job = optarg;
        return true;
    case OPT_DP_SIZE:
        o->dp_size = (uint32_t)ctl_number("dp-size", optarg, 1, 1 << 20);
        return true;
    case OPT_RANK:
        o->dp_rank = (uint32_t)ctl_number("rank", optarg, 0, 1 << 20);
        return true;
    case OPT_ROWS:
        o->rows = (uint32_t)ctl_number("rows", optarg, 1, 1 << 20);
        return true;
    case OPT_ACCUM:
        o->accum = (uint32_t)ctl_number("accum", optarg, 1, 1 << 20);
        return true;
    case OPT_STEP_PACKS:
        o->step_packs = (uint32_t)ctl_number("step-packs", optarg, 1, UINT32_MAX);
        return true;
    case OPT_WORLD:
        o->world_token = optarg;
        return true;
    case OPT_FROM:
        set_from(o, optarg);
        return true;
    case OPT_STEPS:
        o->steps_max = ctl_number("steps", optarg, 1, INT64_MAX);
        return true;
    case OPT_OUT:
        fetch->out = optarg;
        return true;
    case OPT_COMMIT_EVERY:
        fetch->commit_every = ctl_number("commit-every", optarg, 1, UINT32_MAX);
        o->commit_every = (uint32_t)fetch->commit_every;
        return true;
    case OPT_AUTO_COMMIT:
        o->auto_commit = (uint32_t)ctl_number("auto-commit", optarg, 1, 1 << 20);
        return true;
    case OPT_REGROUP:
        o->regroup = true;
        return true;
    case OPT_FEED:
        o->feed = optarg;
        return true;
    case OPT_READER:
        o->kind = PACKD_KIND_READER;
        return true;
    case OPT_ARRAYS:
        o->arrays = strcmp(optarg, "all") == 0 ? PACKD_ARRAYS_ALL : PACKD_ARRAYS_CORE;
        return strcmp(optarg, "all") == 0 || strcmp(optarg, "core") == 0;
    case OPT_NO_CHECK:
        fetch->check = false;
        return true;
    default:
        o->prefetch_batches = (uint32_t)ctl_number("prefetch", optarg, 1, 1024);
        return true;
    }
}

static int run_fetch(struct ctl *ctl, int argc, char **argv)
{
    struct fetch fetch = {.ctl = ctl, .check = true, .last_step = -1};
    int option;
    bool have_rank = false;
    fetch.options = (struct packd_job_options){.token = ctl->token,
                                               .feed = "default",
                                               .on_commit_needed = on_commit_needed,
                                               .ctx = &fetch,
                                               .timeout_ms = OPEN_TIMEOUT_MS};
    while ((option = ctl_getopt(ctl, argc, argv, fetch_options)) != -1) {
        have_rank |= option == OPT_RANK;
        if (!set_option(&fetch, option))
            return ctl_usage(ctl, "--arrays %s: expected core or all", optarg);
    }
    if (ctl_no_arguments(ctl, argc, argv) != 0)
        return CTL_USAGE;
    if (!fetch.options.job || fetch.options.dp_size == 0 || !have_rank)
        return ctl_usage(ctl, "--job, --dp-size and --rank are required");
    bool commits = fetch.commit_every > 0 || fetch.options.auto_commit > 0;
    if (commits && fetch.options.kind == PACKD_KIND_READER)
        return ctl_usage(ctl, "a --reader does not commit");
    fetch.options.server = ctl->server; /* --server may stand behind the command too */
    if (ctl->timeout_ms > 0)
        fetch.options.timeout_ms = ctl->timeout_ms;
    if (fetch.options.dp_rank >= fetch.options.dp_size)
        return ctl_usage(ctl, "--rank %u: expected 0 to %u, for --dp-size %u",
                         fetch.options.dp_rank, fetch.options.dp_size - 1, fetch.options.dp_size);
    return run_all(&fetch);
}

const struct ctl_command ctl_fetch_command = {
    .name = "fetch",
    .arguments = "--job J --dp-size N --rank R [--rows K] [--accum M] [--world TOKEN] "
                 "[--from STEP] [--steps N] [--out DIR] [--commit-every N]",
    .summary = "fetch one rank's batches, check them, write them to files",
    .help = "  packctl fetch --job train --dp-size 4 --rank 0 --rows 8 --out batches/\n"
            "  packctl fetch --job train --dp-size 1 --rank 0 --from 100 --steps 10 --json\n"
            "  packctl fetch --job look --reader --dp-size 1 --rank 0 --steps 1\n\n"
            "  --job J            job; created by its first fetch\n"
            "  --dp-size N        data-parallel size; --rank R: which of its ranks\n"
            "  --rows K           packs per batch (1); --accum M: micro-steps per step (1)\n"
            "  --step-packs P     packs per step, else N*K*M\n"
            "  --world TOKEN      one per launch, the same for all ranks\n"
            "  --from STEP        begin there, else behind the job's last commit\n"
            "  --steps N          stop after N steps, else at the end of the feed\n"
            "  --out DIR          write step-%08d-micro-%02d-rank-%04d.safetensors there\n"
            "  --commit-every N   commit after every N steps and at the end\n"
            "  --auto-commit N    rank 0 commits what lies N steps behind, as it goes\n"
            "  --regroup          accept another number of packs a step, at the last commit\n"
            "  --feed F           feed, else `default`\n"
            "  --reader           look only: hold nothing in the log, move nothing\n"
            "  --arrays core|all  what travels; core (the default) rebuilds the rest here\n"
            "  --prefetch N       batches received ahead (2)\n"
            "  --no-check         leave the structural check out\n\n"
            "  With -q only the last line, the sum, is printed.\n"
            "  Without --timeout it gives up after 10 minutes without a batch.\n",
    .run = run_fetch,
};
