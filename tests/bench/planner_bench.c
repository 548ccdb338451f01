/* The packing table: fill of the planner beside whole-set best-fit-decreasing and the arithmetic
 * ceiling, and what a decision costs.
 *
 *   planner_bench [--json] [--samples N] [--window W] [--rate-only] [--fill-only] [--data DIR]
 *
 * Laws and lists: see laws[] and the length lists in DIR. Fill counts packs made before the end of
 * the feed (steady state): used slots over slots. Rates are decisions only, no token is touched,
 * the best of several runs. Exits 1 where a row misses its budget: the smaller of 99.9 % and the
 * ceiling less 0.05 points where the mean is below a quarter of a pack, else whole-set BFD less 0.3
 * points; and 20 million samples a second on the log-normal law. One thread, floating point only
 * for making lengths. */
#include "base/check.h"
#include "packer/offline.h"
#include "packer/planner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RUNS 3
#define RATE_RUNS 200
#define RATE_SAMPLES \
    200000 /* heads that stay in the last-level cache: a server hands them out fresh */
#define LINE_MAX_BYTES 64
#define RATE_BUDGET_M 20.0

struct options {
    bool json, rate_only, fill_only;
    uint32_t samples, window;
    const char *data_dir;
};

struct random {
    uint64_t state;
};

static uint64_t random_next(struct random *random)
{
    uint64_t x = random->state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return random->state = x;
}

static double uniform(struct random *random)
{
    return ((double)(random_next(random) >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(struct random *random)
{
    return sqrt(-2 * log(uniform(random))) * cos(2 * M_PI * uniform(random));
}

/* The laws: a length as a share of the pack. */
static double log_normal(struct random *r)
{
    return exp(normal(r)) / 16;
}
static double exponential(struct random *r)
{
    return -log(uniform(r)) / 8;
}
static double heavy_tail(struct random *r)
{
    return exp(1.5 * normal(r)) / 64;
}
static double image_sizes(struct random *r)
{
    static const double size[] = {.03, .062, .124, .19, .25, .5};
    return size[random_next(r) % 6] + .01 * (2 * uniform(r) - 1);
}
static double bimodal(struct random *r)
{
    return uniform(r) < .7 ? .08 + .02 * normal(r) : .45 + .05 * normal(r);
}
static double near_075(struct random *r)
{
    return .075 + .004 * normal(r);
}
static double near_30(struct random *r)
{
    return .30 + .03 * normal(r);
}

static const struct law {
    const char *name;
    double (*share)(struct random *);
} laws[] = {
    {"log-normal", log_normal},   {"exponential", exponential}, {"heavy tail", heavy_tail},
    {"image sizes", image_sizes}, {"bimodal", bimodal},         {"uniform", uniform},
    {"near .075", near_075},      {"near .30", near_30},
};

struct lengths {
    uint32_t *value;
    size_t count;
};

static struct lengths lengths_of_law(const struct law *law, uint32_t count, uint32_t seq_len)
{
    struct random random = {.state = 0x9e3779b97f4a7c15ull ^ (uint64_t)(law - laws + 1) << 32};
    struct lengths lengths = {malloc(count * sizeof(uint32_t)), count};
    PD_CHECK(lengths.value);
    for (int i = 0; i < 100; i++)
        random_next(&random);
    for (uint32_t i = 0; i < count; i++) {
        double tokens = floor(law->share(&random) * seq_len + 0.5);
        lengths.value[i] = tokens < 1 ? 1 : tokens > seq_len ? seq_len : (uint32_t)tokens;
    }
    return lengths;
}

/* A list from DIR/name.lengths.txt; count 0 when it is not there. */
static struct lengths lengths_of_file(const char *dir, const char *name)
{
    char path[512], line[LINE_MAX_BYTES];
    struct lengths lengths = {0};
    size_t capacity = 0;
    snprintf(path, sizeof path, "%s/%s.lengths.txt", dir, name);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (lengths.count == capacity) {
            capacity = capacity ? 2 * capacity : 1024;
            lengths.value = realloc(lengths.value, capacity * sizeof(uint32_t));
            PD_CHECK(lengths.value);
        }
        lengths.value[lengths.count++] = (uint32_t)strtoul(line, NULL, 10);
    }
    if (file)
        fclose(file);
    return lengths;
}

/* As the planner splits plain text: parts of seq_len that overlap by a token. */
static struct lengths split_lengths(struct lengths whole, uint32_t seq_len)
{
    size_t count = 0;
    for (size_t i = 0; i < whole.count; i++)
        count += whole.value[i] / (seq_len - 1) + 2;
    struct lengths parts = {malloc((count + 1) * sizeof(uint32_t)), 0};
    PD_CHECK(parts.value);
    for (size_t i = 0; i < whole.count; i++) {
        uint32_t left = whole.value[i];
        for (; left > seq_len; left -= seq_len - 1)
            parts.value[parts.count++] = seq_len;
        parts.value[parts.count++] = left;
    }
    return parts;
}

/* One lane over an array of heads; block n holds samples [1024 n, 1024 n + 1024). */
struct array_supply {
    struct pd_head *heads;
    size_t count;
};

static int read_array(void *ctx, uint32_t lane, struct pd_cursor at, const struct pd_head **heads)
{
    const struct array_supply *supply = ctx;
    size_t from = (size_t)at.block * 1024 + at.index;
    (void)lane;
    *heads = supply->heads + from;
    return from >= supply->count ? 0 : (int)(supply->count - from);
}

static struct array_supply heads_of(struct lengths lengths)
{
    struct array_supply supply = {calloc(lengths.count + 1, sizeof(struct pd_head)), lengths.count};
    PD_CHECK(supply.heads);
    for (size_t i = 0; i < lengths.count; i++)
        supply.heads[i] = (struct pd_head){.block = i / 1024,
                                           .index = (uint32_t)(i % 1024),
                                           .seq = i,
                                           .length_tokens = lengths.value[i],
                                           .weight = 1};
    return supply;
}

struct outcome {
    double fill, fill_all, seconds;
    uint64_t packs, samples, age_max;
};

/* CPU time of this process: what others do on the machine is not counted. */
static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static struct pd_planner *planner_for(uint32_t seq_len, uint32_t window, enum pd_strategy strategy)
{
    struct pd_rules rules = {.seq_len = seq_len,
                             .window_samples = window,
                             .window_bytes = UINT64_MAX,
                             .strategy = strategy,
                             .over_length = PD_OVER_SPLIT,
                             .seg_align = 1,
                             .lane_count = 1,
                             .lanes = {{.weight = 1}}};
    struct pd_planner *planner;
    struct pd_error error;
    if (pd_planner_new(&rules, &planner, &error) != 0)
        pd_panic(__FILE__, __LINE__, "%s", error.text);
    return planner;
}

static double fill_of(const struct pd_planner_stats *stats, uint32_t seq_len)
{
    return stats->packs ? 100.0 * (double)stats->used_slots / (double)stats->packs / seq_len : 0;
}

static struct outcome plan(const struct array_supply *heads, uint32_t seq_len, uint32_t window,
                           enum pd_strategy strategy)
{
    struct pd_planner *planner = planner_for(seq_len, window, strategy);
    struct pd_supply supply = {(void *)heads, read_array};
    struct pd_planner_stats stats;
    struct pd_pack pack = {0};
    struct pd_want want;
    double start = seconds_now();
    int rc;
    while ((rc = pd_planner_next(planner, &supply, &pack, &want)) == 0)
        ;
    struct outcome outcome = {.seconds = seconds_now() - start};
    PD_CHECK(rc == PD_EAGAIN);
    pd_planner_stats(planner, &stats);
    outcome.fill = fill_of(&stats, seq_len);
    outcome.samples = stats.samples;
    PD_CHECK(pd_planner_control(planner, &(struct pd_control){.kind = PD_CONTROL_END_FEED,
                                                              .at = UINT64_MAX - 1}) == 0);
    while ((rc = pd_planner_next(planner, &supply, &pack, &want)) == 0)
        ;
    PD_CHECK(rc == PD_EEND);
    pd_planner_stats(planner, &stats);
    outcome.fill_all = fill_of(&stats, seq_len);
    outcome.packs = stats.packs;
    outcome.age_max = stats.age_max_samples;
    pd_pack_fini(&pack);
    pd_planner_free(planner);
    return outcome;
}

struct row {
    char name[48];
    uint32_t seq_len;
    double mean, bfd, ceiling, budget;
    struct outcome exact, sequential;
    double rate_m;
    bool ok;
};

/* Million samples a second, the best of `runs`. */
static double rate_of(const struct array_supply *heads, uint32_t seq_len, uint32_t window, int runs)
{
    struct array_supply few = *heads;
    double best = 0;
    few.count = few.count < RATE_SAMPLES ? few.count : RATE_SAMPLES;
    for (int i = 0; i < runs; i++) {
        struct outcome outcome = plan(&few, seq_len, window, PD_STRATEGY_EXACT);
        double rate = (double)outcome.samples / outcome.seconds / 1e6;
        best = rate > best ? rate : best;
    }
    return best;
}

/* `packed` are the lengths as they stand in packs (split), `whole` as pushed. */
static struct row measure(const char *name, struct lengths whole, uint32_t seq_len, uint32_t window,
                          int runs)
{
    struct row row = {.seq_len = seq_len};
    snprintf(row.name, sizeof row.name, "%s", name);
    struct lengths packed = split_lengths(whole, seq_len);
    struct array_supply heads = heads_of(whole);
    double sum = 0;
    for (size_t i = 0; i < packed.count; i++)
        sum += packed.value[i];
    size_t packs;
    PD_CHECK(pd_offline_pack(PD_OFFLINE_BFD, packed.value, packed.count, seq_len, NULL, &packs) ==
             0);
    row.mean = sum / (double)packed.count;
    row.bfd = 100 * sum / (double)packs / seq_len;
    row.ceiling = pd_offline_ceiling_ppm(packed.value, packed.count, seq_len) / 1e4;
    row.exact = plan(&heads, seq_len, window, PD_STRATEGY_EXACT);
    row.rate_m = rate_of(&heads, seq_len, window, runs);
    row.sequential = plan(&heads, seq_len, window, PD_STRATEGY_SEQUENTIAL);
    row.budget = row.mean < seq_len / 4.0 ? fmin(99.9, row.ceiling - 0.05) : row.bfd - 0.3;
    row.ok = row.exact.fill >= row.budget;
    free(packed.value);
    free(heads.heads);
    return row;
}

static void print_row(const struct row *row, bool json, bool first)
{
    if (json) {
        printf("%s{\"law\": \"%s\", \"seq_len\": %u, \"mean\": %.1f, \"exact\": %.4f, "
               "\"exact_with_end\": %.4f, \"sequential\": %.4f, \"bfd\": %.4f, \"ceiling\": %.4f, "
               "\"budget\": %.4f, \"age_max_samples\": %llu, \"million_samples_per_s\": %.1f, "
               "\"ok\": %s}",
               first ? "" : ",\n  ", row->name, row->seq_len, row->mean, row->exact.fill,
               row->exact.fill_all, row->sequential.fill, row->bfd, row->ceiling, row->budget,
               (unsigned long long)row->exact.age_max, row->rate_m, row->ok ? "true" : "false");
        return;
    }
    if (first)
        printf("| lengths | L | mean | exact | sequential | BFD, whole set | ceiling | budget | "
               "age, samples | "
               "M samples/s | |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    printf("| %s | %u | %.0f | %.4f | %.2f | %.4f | %.3f | %.3f | %llu | %.1f | %s |\n", row->name,
           row->seq_len, row->mean, row->exact.fill, row->sequential.fill, row->bfd, row->ceiling,
           row->budget, (unsigned long long)row->exact.age_max, row->rate_m,
           row->ok ? "ok" : "MISSED");
    fflush(stdout);
}

struct table {
    const struct options *options;
    int rows, missed;
};

static void add_row(struct table *table, const struct row *row)
{
    print_row(row, table->options->json, table->rows == 0);
    table->rows++;
    table->missed += !row->ok;
}

static void add_laws(struct table *table)
{
    const struct options *options = table->options;
    for (size_t i = 0; i < PD_COUNT_OF(laws) && !(options->rate_only && i > 0); i++) {
        struct lengths lengths = lengths_of_law(&laws[i], options->samples, 8192);
        bool rate = i == 0 && !options->fill_only;
        struct row row =
            measure(laws[i].name, lengths, 8192, options->window, rate ? RATE_RUNS : 1);
        if (rate)
            row.ok = row.ok && row.rate_m >= RATE_BUDGET_M;
        add_row(table, &row);
        free(lengths.value);
    }
}

static void add_lists(struct table *table)
{
    static const struct {
        const char *name;
        uint32_t seq_len;
    } lists[] = {{"gsm8k_train_bytes", 2048},
                 {"gsm8k_train_bytes", 4096},
                 {"gsm8k_train_bytes", 8192},
                 {"debian_docs", 8192},
                 {"debian_docs", 32768}};
    for (size_t i = 0; i < PD_COUNT_OF(lists) && !table->options->rate_only; i++) {
        struct lengths lengths = lengths_of_file(table->options->data_dir, lists[i].name);
        if (lengths.count == 0) {
            fprintf(stderr, "planner_bench: no %s.lengths.txt in %s, its rows are left out\n",
                    lists[i].name, table->options->data_dir);
            continue;
        }
        struct row row = measure(lists[i].name, lengths, lists[i].seq_len, table->options->window,
                                 table->options->fill_only ? 1 : RUNS);
        add_row(table, &row);
        free(lengths.value);
    }
}

static struct options parse(int argc, char **argv)
{
    struct options options = {.samples = 2000000, .window = 1024, .data_dir = "tests/data"};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--json") == 0)
            options.json = true;
        else if (strcmp(argv[i], "--rate-only") == 0)
            options.rate_only = true;
        else if (strcmp(argv[i], "--fill-only") == 0)
            options.fill_only = true;
        else if (strcmp(argv[i], "--samples") == 0 && ++i)
            options.samples = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--window") == 0 && ++i)
            options.window = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--data") == 0 && ++i)
            options.data_dir = value;
        else
            exit((fprintf(stderr, "planner_bench: unknown argument %s\n", argv[i]), 2));
    }
    return options;
}

int main(int argc, char **argv)
{
    struct options options = parse(argc, argv);
    struct table table = {.options = &options};
    if (options.json)
        printf("{\"window\": %u, \"samples\": %u, \"rows\": [\n  ", options.window,
               options.samples);
    add_laws(&table);
    add_lists(&table);
    if (options.json)
        printf("\n]}\n");
    return table.missed > 0;
}
