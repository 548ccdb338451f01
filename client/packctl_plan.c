/* packctl plan: would packing pay, and with which settings? No server.
 *
 * Reads lengths, or any input that push accepts and counts its tokens; packer/report works the
 * figures out; packctl_plan_show.c says them. One thread; holds four bytes a sample, and the parts
 * of the strategy at work. Sends nothing, keeps nothing but the file of --assign. */
#include "client/packctl_plan.h"
#include "client/reader.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/units.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LENGTH_MOST 2147483647u
#define LINE_SHOWN 40
#define PROGRESS_NS UINT64_C(200000000)
#define PROGRESS_SAMPLES 256

/* ---- input ----------------------------------------------------------------------------------- */

/* True a few times a second, where progress is shown at all. */
static bool progress_due(struct ctl_plan *plan)
{
    uint64_t now = pd_clock_mono_ns();
    if (!plan->ctl->progress || now - plan->shown_ns < PROGRESS_NS)
        return false;
    plan->shown_ns = now;
    return true;
}

/* Room for the tokens of each view that is told by name alone. */
static bool grow_views(struct ctl_plan *plan, size_t capacity)
{
    for (uint32_t v = 0; v < plan->options.view_count; v++) {
        if (!plan->view_by_name[v])
            continue;
        uint32_t *tokens = realloc(plan->view_tokens[v], capacity * sizeof *tokens);
        if (!tokens) {
            ctl_message("%s: too many samples for the memory, after %zu", plan->path, plan->count);
            return false;
        }
        plan->view_tokens[v] = tokens;
        memset(tokens + plan->capacity, 0, (capacity - plan->capacity) * sizeof *tokens);
    }
    return true;
}

/* The newest sample's tokens of the views by name. */
static void add_spans(struct ctl_plan *plan, const struct packd_sample *sample)
{
    for (uint32_t v = 0; v < plan->options.view_count && plan->count > 0; v++)
        for (size_t i = 0; plan->view_by_name[v] && i < sample->span_count; i++) {
            const char *view = sample->spans[i].view ? sample->spans[i].view : "default";
            if (strcmp(view, plan->view_names[v]) != 0)
                continue;
            plan->view_tokens[v][plan->count - 1] += sample->spans[i].length;
            plan->view_seen[v] = true;
        }
}

static int add_length(struct ctl_plan *plan, uint64_t length)
{
    char samples[32];
    if (plan->count % PROGRESS_SAMPLES == 0 && progress_due(plan))
        ctl_progress(plan->ctl, "reading: %s samples",
                     pd_units_format_count(plan->count, samples, sizeof samples));
    if (length == 0) {
        plan->empty++;
        return CTL_OK;
    }
    if (plan->count == plan->capacity) {
        size_t capacity = plan->capacity ? 2 * plan->capacity : 65536;
        uint32_t *lengths =
            capacity > LENGTH_MOST ? NULL : realloc(plan->lengths, capacity * sizeof *lengths);
        if (!lengths) {
            ctl_message("%s: too many samples for the memory, after %zu", plan->path, plan->count);
            return CTL_INPUT;
        }
        plan->lengths = lengths;
        if (!grow_views(plan, capacity))
            return CTL_INPUT;
        plan->capacity = capacity;
    }
    plan->lengths[plan->count++] = (uint32_t)length;
    return CTL_OK;
}

static const char *skip_blanks(const char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    return text;
}

/* True for a line with nothing but a whole number; "" and comments (#) give no number and false. */
static bool is_number(const char *line, uint64_t *number)
{
    char *end;
    line = skip_blanks(line);
    errno = 0;
    *number = strtoull(line, &end, 10);
    return isdigit((unsigned char)*line) && errno == 0 && *skip_blanks(end) == 0;
}

static bool is_blank(const char *line)
{
    line = skip_blanks(line);
    return *line == 0 || *line == '#';
}

static int read_lengths(struct ctl_plan *plan, FILE *file)
{
    char *line = NULL;
    size_t size = 0;
    uint64_t number;
    int rc = CTL_OK;
    for (uint64_t at = 1; rc == CTL_OK && !ctl_stop && getline(&line, &size, file) >= 0; at++) {
        if (is_blank(line))
            continue;
        if (is_number(line, &number) && number <= LENGTH_MOST) {
            rc = add_length(plan, number);
            continue;
        }
        line[strcspn(line, "\r\n")] = 0;
        ctl_message("%s:%" PRIu64 ": found \"%.*s\", expected a length from 0 to %u", plan->path,
                    at, LINE_SHOWN, line, LENGTH_MOST);
        rc = CTL_INPUT;
    }
    if (rc == CTL_OK && ferror(file)) {
        ctl_message("%s: %s", plan->path, strerror(errno));
        rc = CTL_INPUT;
    }
    free(line);
    return rc;
}

/* Whether the first line that says something is a number. Leaves the file at its start. */
static bool holds_lengths(FILE *file)
{
    char *line = NULL;
    size_t size = 0;
    uint64_t number;
    bool found = false;
    while (!found && getline(&line, &size, file) >= 0 && is_blank(line))
        ;
    const char *first = line ? skip_blanks(line) : "";
    found = is_number(*first == '-' ? first + 1 : first, &number); /* -5: refused as a length */
    free(line);
    rewind(file);
    return found;
}

static int read_samples(struct ctl_plan *plan)
{
    struct pd_reader_options options = {
        .field = plan->field, .skip_bad = plan->skip_bad, .stop = &ctl_stop};
    struct packd_error error = {0};
    struct packd_sample sample;
    struct pd_input *input = NULL;
    int rc = pd_input_open(plan->path, &options, &input, &error);
    if (rc != 0)
        return ctl_error(plan->ctl, &error);
    int result = CTL_OK;
    while (result == CTL_OK && (rc = pd_input_next(input, &sample, &error)) == 1)
        if ((result = add_length(plan, sample.count)) == CTL_OK && sample.count > 0)
            add_spans(plan, &sample);
    const struct pd_reader_counts *counts = pd_input_counts(input);
    plan->empty += counts->empty_samples;
    if (counts->bad > 0)
        ctl_note(plan->ctl, "left out: %" PRIu64 " bad records; the last: %s", counts->bad,
                 pd_input_last_bad(input));
    if (!plan->field && pd_input_fields(input)[0])
        ctl_note(plan->ctl, "samples from %s (choose with --field)", pd_input_fields(input));
    pd_input_close(input);
    return result == CTL_OK && rc < 0 ? ctl_error(plan->ctl, &error) : result;
}

/* A pipe is kept in an unnamed file that takes stdin's place: what it holds shows in its first
 * line. */
static int spool_stdin(void)
{
    char chunk[65536];
    ssize_t got;
    FILE *spool = tmpfile();
    while (spool && (got = read(STDIN_FILENO, chunk, sizeof chunk)) > 0)
        if (fwrite(chunk, 1, (size_t)got, spool) != (size_t)got)
            break;
    bool ok = spool && got == 0 && fflush(spool) == 0 && dup2(fileno(spool), STDIN_FILENO) >= 0 &&
              lseek(STDIN_FILENO, 0, SEEK_SET) == 0;
    if (!ok)
        ctl_message("stdin: %s", strerror(errno));
    if (spool)
        fclose(spool);
    return ok ? CTL_OK : CTL_INPUT;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static int read_input(struct ctl_plan *plan)
{
    struct stat info;
    bool pipe = strcmp(plan->path, "-") == 0;
    bool json = ends_with(plan->path, ".jsonl") || ends_with(plan->path, ".ndjson") ||
                ends_with(plan->path, ".json");
    if (pipe && spool_stdin() != CTL_OK)
        return CTL_INPUT;
    if (!plan->lengths_only && (json || plan->field))
        return read_samples(plan);
    if (!pipe && stat(plan->path, &info) == 0 && S_ISDIR(info.st_mode))
        return read_samples(plan);
    FILE *file = pipe ? fdopen(dup(STDIN_FILENO), "r") : fopen(plan->path, "r");
    if (!file) {
        ctl_message("%s: %s", plan->path, strerror(errno));
        return CTL_INPUT;
    }
    bool list = plan->lengths_only || holds_lengths(file);
    int rc = list ? read_lengths(plan, file) : CTL_OK;
    fclose(file);
    if (list)
        return rc;
    if (pipe && lseek(STDIN_FILENO, 0, SEEK_SET) != 0)
        return CTL_INPUT;
    return read_samples(plan);
}

/* ---- the work -------------------------------------------------------------------------------- */

static int write_place(void *ctx, const struct pd_report_place *place)
{
    struct ctl_plan *plan = ctx;
    if (fprintf(plan->assign, "%" PRIu64 "\t%" PRIu64 "\t%u\t%u\t%u\n", place->pack, place->sample,
                place->part, place->offset_tokens, place->length_tokens) < 0)
        return PD_EIO;
    return 0;
}

static bool show_progress(void *ctx, const char *doing, uint64_t done, uint64_t all)
{
    struct ctl_plan *plan = ctx;
    char have[32], of[32];
    if (progress_due(plan))
        ctl_progress(plan->ctl, "%s: %s of %s", doing,
                     pd_units_format_count(done, have, sizeof have),
                     pd_units_format_count(all, of, sizeof of));
    return ctl_stop != 0;
}

static int open_assignment(struct ctl_plan *plan)
{
    plan->assign = fopen(plan->assign_path, "w");
    if (plan->assign && fputs("pack\tsample\tpart\toffset\tlength\n", plan->assign) >= 0)
        return CTL_OK;
    ctl_message("%s: %s", plan->assign_path, strerror(errno));
    return CTL_INPUT;
}

/* A file that was not written whole is taken away. */
static int close_assignment(struct ctl_plan *plan, bool whole)
{
    bool ok = !ferror(plan->assign);
    ok = fclose(plan->assign) == 0 && ok;
    plan->assign = NULL;
    if (ok && whole)
        return CTL_OK;
    if (whole)
        ctl_message("%s: %s", plan->assign_path, strerror(errno));
    struct stat info;
    if (stat(plan->assign_path, &info) == 0 && S_ISREG(info.st_mode)) /* never a device */
        unlink(plan->assign_path);
    return CTL_INPUT;
}

static int say_failure(struct ctl_plan *plan, int rc, const struct pd_error *error)
{
    if (rc == PD_ECANCELED)
        return CTL_INTERRUPTED;
    if (rc != PD_EIO)
        ctl_message("%s", error->text[0] ? error->text : pd_err_text(rc));
    else
        ctl_message("%s: cannot be written", plan->assign_path);
    return rc == PD_EINVAL ? CTL_USAGE : rc == PD_EIO ? CTL_INPUT : CTL_FAILED;
}

static int work_out(struct ctl_plan *plan)
{
    struct pd_error error = {0};
    int result = CTL_OK;
    plan->options.ctx = plan;
    plan->options.progress = show_progress;
    if (plan->assign_path) {
        plan->options.place = write_place;
        result = open_assignment(plan);
    }
    if (result != CTL_OK)
        return result;
    for (uint32_t v = 0; v < plan->options.view_count; v++) {
        plan->options.view_tokens[v] = plan->view_tokens[v];
        if (plan->view_by_name[v] && !plan->view_seen[v])
            ctl_message("--drop-view %s: no sample has a span of this view", plan->view_names[v]);
    }
    int rc = pd_report_make(&plan->options, plan->lengths, plan->count, &plan->report, &error);
    ctl_progress(plan->ctl, "%s", "");
    if (plan->assign)
        result = close_assignment(plan, rc == 0);
    return rc != 0 ? say_failure(plan, rc, &error) : result;
}

static void note_left_out(const struct ctl_plan *plan)
{
    const struct pd_report *r = &plan->report;
    if (plan->empty > 0)
        ctl_note(plan->ctl, "left out: %" PRIu64 " empty samples", plan->empty);
    if (r->rejected_samples > 0)
        ctl_note(plan->ctl,
                 "refused: %" PRIu64 " samples longer than seq_len %u (the longest has %u); "
                 "--over-length keep_head, keep_tail or split would take them",
                 r->rejected_samples, plan->options.seq_len, r->longest);
}

static int plan_all(struct ctl_plan *plan)
{
    ctl_catch_signals();
    int rc = read_input(plan);
    if (rc == CTL_OK && ctl_stop)
        rc = CTL_INTERRUPTED;
    if (rc == CTL_OK && plan->count == 0) {
        ctl_message("%s: no samples in it", plan->path);
        rc = CTL_INPUT;
    }
    if (rc == CTL_OK)
        rc = work_out(plan);
    if (rc != CTL_OK)
        return rc;
    note_left_out(plan);
    bool none = plan->report.served_tokens == 0 && plan->report.rejected_samples > 0;
    if (plan->ctl->json)
        ctl_plan_json(plan);
    else if (!none)
        ctl_plan_text(plan);
    if (none)
        ctl_message("no sample fits into seq_len %u: there is nothing to plan",
                    plan->options.seq_len);
    return none ? CTL_FAILED : CTL_OK;
}

/* ---- options --------------------------------------------------------------------------------- */

static unsigned choose(const char *option, const char *text, const char *const *words,
                       unsigned count)
{
    char list[128];
    size_t at = 0;
    for (unsigned i = 0; i < count; i++)
        if (strcmp(text, words[i]) == 0)
            return i;
    for (unsigned i = 0; i < count && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", words[i]);
    ctl_message("--%s %s: expected one of %s", option, text, list);
    exit(CTL_USAGE);
}

static enum pd_report_strategy choose_strategy(const char *text)
{
    const char *names[PD_REPORT_STRATEGIES];
    for (unsigned i = 0; i < PD_REPORT_STRATEGIES; i++)
        names[i] = pd_report_strategy_name((enum pd_report_strategy)i);
    return (enum pd_report_strategy)choose("strategy", text, names, PD_REPORT_STRATEGIES);
}

static enum pd_over_length choose_over_length(const char *text)
{
    static const char *const words[] = {"reject", "keep_head", "keep_tail", "split"};
    return (enum pd_over_length)choose("over-length", text, words, PD_COUNT_OF(words));
}

/* A percentage with up to four decimals as parts per million; false where it is none, or above 100.
 */
static bool read_percent(const char *text, uint32_t *ppm)
{
    uint64_t value = 0;
    unsigned digits = 0, decimals = 0;
    bool point = false;
    for (; *text && strcmp(text, "%") != 0; text++) {
        if (*text == '.' && !point) {
            point = true;
            continue;
        }
        if (!isdigit((unsigned char)*text) || ++digits > 8)
            return false;
        value = value * 10 + (uint64_t)(*text - '0');
        decimals += point;
    }
    while (decimals < 4) {
        value *= 10;
        decimals++;
    }
    *ppm = (uint32_t)value;
    return *text == '%' && digits > 0 && decimals == 4 && value > 0 && value <= PD_PPM;
}

/* NAME (its spans in the input), NAME=25% or NAME=256 (tokens a sample). */
static void add_view(struct ctl_plan *plan, const char *text)
{
    uint32_t at = plan->options.view_count;
    const char *equals = strchr(text, '=');
    size_t name = equals ? (size_t)(equals - text) : strlen(text);
    if (at == PD_REPORT_VIEWS_MAX || name == 0 || name > CTL_VIEW_NAME_MAX) {
        ctl_message("--drop-view %s: expected NAME, NAME=25%% or NAME=TOKENS, at most %d times",
                    text, PD_REPORT_VIEWS_MAX);
        exit(CTL_USAGE);
    }
    snprintf(plan->view_names[at], sizeof plan->view_names[at], "%.*s", (int)name, text);
    struct pd_view_drop *view = &plan->options.views[at];
    plan->view_by_name[at] = !equals;
    plan->options.view_count++;
    if (!equals)
        return;
    if (ends_with(text, "%") && !read_percent(equals + 1, &view->share_ppm)) {
        ctl_message("--drop-view %s: expected a share above 0 %% and up to 100 %%", text);
        exit(CTL_USAGE);
    }
    if (!ends_with(text, "%"))
        view->tokens = (uint32_t)ctl_number("drop-view", equals + 1, 1, LENGTH_MOST);
}

enum {
    OPTION_SEQ_LEN = 1,
    OPTION_WINDOW,
    OPTION_ALIGN,
    OPTION_DP_SIZE,
    OPTION_ROWS,
    OPTION_ACCUM,
    OPTION_ASSIGN,
    OPTION_STRATEGY,
    OPTION_OVER_LENGTH,
    OPTION_HIDDEN,
    OPTION_LAYERS,
    OPTION_ALPHA,
    OPTION_BETA,
    OPTION_DROP_VIEW,
    OPTION_FIELD,
    OPTION_SKIP_BAD,
    OPTION_LENGTHS,
    OPTION_SEED,
};

static const struct option plan_options[] = {
    {"seq-len", required_argument, NULL, OPTION_SEQ_LEN},
    {"window", required_argument, NULL, OPTION_WINDOW},
    {"align", required_argument, NULL, OPTION_ALIGN},
    {"dp-size", required_argument, NULL, OPTION_DP_SIZE},
    {"rows", required_argument, NULL, OPTION_ROWS},
    {"accum", required_argument, NULL, OPTION_ACCUM},
    {"assign", required_argument, NULL, OPTION_ASSIGN},
    {"strategy", required_argument, NULL, OPTION_STRATEGY},
    {"over-length", required_argument, NULL, OPTION_OVER_LENGTH},
    {"hidden", required_argument, NULL, OPTION_HIDDEN},
    {"layers", required_argument, NULL, OPTION_LAYERS},
    {"alpha", required_argument, NULL, OPTION_ALPHA},
    {"beta", required_argument, NULL, OPTION_BETA},
    {"drop-view", required_argument, NULL, OPTION_DROP_VIEW},
    {"field", required_argument, NULL, OPTION_FIELD},
    {"skip-bad", no_argument, NULL, OPTION_SKIP_BAD},
    {"lengths", no_argument, NULL, OPTION_LENGTHS},
    {"seed", required_argument, NULL, OPTION_SEED},
    {0},
};

/* Options that are whole numbers: where they go and what they may be. */
static bool number_option(struct ctl_plan *plan, int option)
{
    struct pd_report_options *o = &plan->options;
    const struct {
        int option;
        uint32_t *value;
        uint64_t lowest, highest;
    } numbers[] = {{OPTION_SEQ_LEN, &o->seq_len, 1, PD_SEQ_LEN_MAX},
                   {OPTION_WINDOW, &o->window_samples, 1, PD_WINDOW_SAMPLES_MAX},
                   {OPTION_ALIGN, &o->seg_align, 1, PD_SEQ_LEN_MAX},
                   {OPTION_DP_SIZE, &o->world.dp_size, 1, 1u << 20},
                   {OPTION_ROWS, &o->world.rows, 1, 1u << 20},
                   {OPTION_ACCUM, &o->world.accum, 1, 1u << 20},
                   {OPTION_HIDDEN, &plan->hidden, 1, 1u << 29},
                   {OPTION_LAYERS, &plan->layers, 1, 1u << 20},
                   {OPTION_ALPHA, &o->cost.alpha, 0, UINT32_MAX},
                   {OPTION_BETA, &o->cost.beta, 0, UINT32_MAX}};
    for (size_t i = 0; i < PD_COUNT_OF(numbers); i++) {
        if (numbers[i].option != option)
            continue;
        const char *name = plan_options[option - OPTION_SEQ_LEN].name;
        *numbers[i].value =
            (uint32_t)ctl_number(name, optarg, numbers[i].lowest, numbers[i].highest);
        return true;
    }
    return false;
}

static void other_option(struct ctl_plan *plan, int option)
{
    switch (option) {
    case OPTION_ASSIGN:
        plan->assign_path = optarg;
        break;
    case OPTION_STRATEGY:
        plan->options.assign = choose_strategy(optarg);
        break;
    case OPTION_OVER_LENGTH:
        plan->options.over_length = choose_over_length(optarg);
        break;
    case OPTION_DROP_VIEW:
        add_view(plan, optarg);
        break;
    case OPTION_FIELD:
        plan->field = optarg;
        break;
    case OPTION_SKIP_BAD:
        plan->skip_bad = true;
        break;
    case OPTION_LENGTHS:
        plan->lengths_only = true;
        break;
    default:
        plan->options.seed = ctl_number("seed", optarg, 0, UINT64_MAX);
        break;
    }
}

/* Options that contradict or need each other. */
static int agree(struct ctl_plan *plan, bool cost_given)
{
    struct pd_report_options *o = &plan->options;
    if (plan->layers && !plan->hidden)
        return ctl_usage(plan->ctl, "--layers needs --hidden");
    if (plan->hidden && cost_given)
        return ctl_usage(plan->ctl, "--hidden and --alpha/--beta are two ways to say one thing");
    if (plan->lengths_only && plan->field)
        return ctl_usage(plan->ctl, "--lengths and --field contradict each other");
    if (plan->hidden)
        o->cost = pd_cost_of_model(plan->hidden);
    if (o->cost.alpha == 0 && o->cost.beta == 0)
        return ctl_usage(plan->ctl, "--alpha 0 --beta 0: a model without cost has nothing to save");
    return CTL_OK;
}

static int run_plan(struct ctl *ctl, int argc, char **argv)
{
    struct ctl_plan plan = {.ctl = ctl,
                            .options = {.seq_len = 4096,
                                        .window_samples = 1024,
                                        .seg_align = 1,
                                        .pad_segment = 1024,
                                        .cost = {.alpha = 24576, .beta = 1},
                                        .world = {8, 1, 1},
                                        .balance_bytes = UINT64_C(1) << 30,
                                        .assign = PD_REPORT_EXACT}};
    bool cost_given = false;
    int option;
    while ((option = ctl_getopt(ctl, argc, argv, plan_options)) != -1) {
        cost_given |= option == OPTION_ALPHA || option == OPTION_BETA;
        if (!number_option(&plan, option))
            other_option(&plan, option);
    }
    if (optind + 1 != argc)
        return ctl_usage(ctl, "expected one FILE, DIR or -, found %d", argc - optind);
    plan.path = argv[optind];
    int rc = agree(&plan, cost_given);
    if (rc == CTL_OK)
        rc = plan_all(&plan);
    free(plan.lengths);
    for (uint32_t v = 0; v < PD_REPORT_VIEWS_MAX; v++)
        free(plan.view_tokens[v]);
    return rc;
}

const struct ctl_command ctl_plan_command = {
    .name = "plan",
    .arguments = "[--seq-len L] [--window W] [--align A] [--dp-size N --rows K] "
                 "[--assign FILE] FILE",
    .summary = "would packing pay? what it saves, from lengths alone (no server)",
    .help =
        "  packctl plan lengths.txt                          one length a line\n"
        "  packctl plan notes.jsonl --seq-len 8192           anything that push accepts\n"
        "  packctl plan notes.jsonl --hidden 4096 --layers 32 --dp-size 64\n"
        "  packctl plan robot.txt --drop-view wrist=25%      what dropping a view would cut\n"
        "\n"
        "  --seq-len L       positions a pack (4096)\n"
        "  --window W        samples the planner chooses from (1024)\n"
        "  --align A         each segment's slot is a multiple of this (1)\n"
        "  --over-length P   reject (default), keep_head, keep_tail or split\n"
        "  --dp-size N       data-parallel ranks, for the balance of a step (8)\n"
        "  --rows K          packs of one rank in a micro-step (1)\n"
        "  --accum M         micro-steps of a step (1)\n"
        "  --seed S          of balance: cost (0)\n"
        "  --hidden H        the model's hidden size: alpha 6 H, beta 1\n"
        "  --layers N        its layers, for operations in all\n"
        "  --alpha A --beta B  cost of a token and of a pair of tokens (24576, 1)\n"
        "  --drop-view V[=X] without V: the tokens of its spans in the input; or X tokens, or X%\n"
        "                    of the tokens, of each sample; repeatable\n"
        "  --assign FILE     write who goes where: pack, sample, part, offset, length\n"
        "  --strategy S      of --assign: none, sequential, best_fit, ffd, bfd, exact\n"
        "  --lengths         FILE holds lengths, whatever its first line looks like\n"
        "  --field NAMES     of JSON records, as with push\n"
        "  --skip-bad        leave bad records out\n",
    .run = run_plan,
};
