/* The report's figures.
 *
 *   measure the input ─> every strategy (parts come from `none`) ─> bounds ─> ranks ─> views
 *   ─> suggestions ─> verdict
 *
 * Called by `packctl plan`; pure, one thread. Invariant: each strategy places the same parts, so
 * rows differ in packs alone. It knows lengths only: loss, media and sources do not change padding.
 * It prints nothing. */
#include "packer/report.h"

#include "base/check.h"
#include "packer/offline.h"

#include <stdlib.h>
#include <string.h>

#define HEADS 256
#define TOKEN_BYTES 4 /* payload of a token without tensors */
#define PROGRESS_PARTS 65536
#define SUGGEST_SAMPLES 200000 /* suggestions look at so many, evenly picked */
#define SUGGEST_SEQ_LEN_LEAST 128
#define SUGGEST_SEQ_LENS 6
#define SUGGEST_PADDING_PPM 1000 /* a shorter seq_len may cost so much */
#define SUGGEST_WINDOW_PPM 500   /* a smaller window may cost so much */
#define SUGGEST_WINDOW_LEAST 64u
#define SUGGEST_WINDOWS 8
#define BINS_EVEN 12

/* One part of a sample: what every strategy places. */
struct part {
    uint32_t sample, number, offset_tokens, length_tokens, slot_tokens;
};

struct parts {
    struct part *items;
    size_t count, capacity;
};

struct costs {
    uint64_t *packs;
    uint32_t count, capacity;
};

struct making {
    const struct pd_report_options *options;
    const uint32_t *lengths;
    size_t count;
    struct pd_report *report;
    struct pd_error *error;
    struct parts parts;
    struct costs costs;     /* of exact's packs */
    uint32_t usual_longest; /* 99 of 100 samples are not longer */
};

/* ---- the planner over a list of lengths ------------------------------------------------------ */

/* Sample i lies alone in block i + 1. */
struct list {
    const uint32_t *lengths;
    size_t count, stride; /* every stride-th length */
    struct pd_head heads[HEADS];
};

static int list_read(void *ctx, uint32_t lane, struct pd_cursor at, const struct pd_head **heads)
{
    struct list *list = ctx;
    uint64_t from = at.block + (at.index > 0);
    int got = 0;
    (void)lane;
    for (uint64_t i = from > 0 ? from - 1 : 0; i < list->count && got < HEADS; i++, got++)
        list->heads[got] = (struct pd_head){.block = i + 1,
                                            .seq = i,
                                            .length_tokens = list->lengths[i * list->stride],
                                            .weight = 1};
    *heads = list->heads;
    return got;
}

struct run {
    struct pd_rules rules;
    struct list list;
    struct pd_planner *planner;
    struct pd_pack pack;
    struct pd_planner_stats stats; /* once it has ended */
};

static struct pd_rules rules_of(const struct pd_report_options *options)
{
    return (struct pd_rules){.seq_len = options->seq_len,
                             .window_samples = options->window_samples,
                             .window_bytes = UINT64_MAX,
                             .over_length = options->over_length,
                             .seg_align = options->seg_align,
                             .lane_count = 1,
                             .lanes = {{.weight = 1, .passes_max = 1}}};
}

static int run_start(struct run *run, struct pd_error *error)
{
    struct pd_control end = {.kind = PD_CONTROL_END_FEED, .at = run->list.count + 1};
    int rc = pd_planner_new(&run->rules, &run->planner, error);
    return rc != 0 ? rc : pd_planner_control(run->planner, &end);
}

/* 1 with the next pack in run->pack, 0 at the end, or an error. */
static int run_next(struct run *run)
{
    struct pd_supply supply = {&run->list, list_read};
    struct pd_want want;
    int rc = pd_planner_next(run->planner, &supply, &run->pack, &want);
    PD_CHECK(rc != PD_EAGAIN); /* the end has been told */
    if (rc == PD_EEND)
        pd_planner_stats(run->planner, &run->stats);
    return rc == 0 ? 1 : rc == PD_EEND ? 0 : rc;
}

static void run_fini(struct run *run)
{
    pd_planner_free(run->planner);
    pd_pack_fini(&run->pack);
}

static int no_memory(struct making *m)
{
    return pd_error_set(m->error, PD_ENOMEM, "NO_MEMORY", "no memory for %zu lengths", m->count);
}

static int told(struct making *m, const char *doing, uint64_t done, uint64_t all)
{
    const struct pd_report_options *o = m->options;
    if (o->progress && o->progress(o->ctx, doing, done, all))
        return pd_error_set(m->error, PD_ECANCELED, "CANCELED", "stopped while working on %s",
                            doing);
    return 0;
}

/* ---- the input ------------------------------------------------------------------------------- */

static int by_length(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void sum_up(struct making *m)
{
    struct pd_report *r = m->report;
    r->samples = m->count;
    r->shortest = m->count ? UINT32_MAX : 0;
    for (size_t i = 0; i < m->count; i++) {
        uint32_t length = m->lengths[i];
        r->tokens += length;
        r->shortest = length < r->shortest ? length : r->shortest;
        r->longest = length > r->longest ? length : r->longest;
    }
    r->mean_tokens = m->count ? (uint32_t)((r->tokens + m->count / 2) / m->count) : 0;
}

/* Bins of equal width, or doubling ones where lengths span more than a factor of 64. */
static void set_bins(struct pd_report *r)
{
    bool doubling = r->longest / 64 > r->shortest;
    uint64_t low = r->shortest;
    uint64_t width = ((uint64_t)r->longest - r->shortest) / BINS_EVEN + 1;
    while (doubling && low & (low - 1))
        low &= low - 1; /* down to a power of two */
    /* Where doubling would take too many bins, the first one takes what is below. */
    while (doubling && r->longest >> (PD_REPORT_BINS_MAX - 1) > low)
        low *= 2;
    while (low <= r->longest && r->bin_count < PD_REPORT_BINS_MAX) {
        uint64_t next = doubling ? 2 * low : low + width;
        uint64_t last = next - 1 < r->longest ? next - 1 : r->longest;
        r->bins[r->bin_count++] = (struct pd_report_bin){(uint32_t)low, (uint32_t)last, 0, 0};
        low = next;
    }
    r->bins[0].lowest = r->shortest;
}

static int measure(struct making *m)
{
    struct pd_report *r = m->report;
    sum_up(m);
    if (m->count == 0)
        return 0;
    uint32_t *sorted = malloc(m->count * sizeof *sorted);
    if (!sorted)
        return no_memory(m);
    memcpy(sorted, m->lengths, m->count * sizeof *sorted);
    qsort(sorted, m->count, sizeof *sorted, by_length);
    r->median_tokens = sorted[m->count / 2];
    m->usual_longest = sorted[(m->count - 1) - (m->count - 1) / 100];
    set_bins(r);
    for (size_t i = 0, bin = 0; i < m->count; i++) {
        while (sorted[i] > r->bins[bin].highest)
            bin++;
        r->bins[bin].samples++;
        r->bins[bin].tokens += sorted[i];
    }
    free(sorted);
    return 0;
}

/* ---- strategies ------------------------------------------------------------------------------ */

static const char *const strategy_names[PD_REPORT_STRATEGIES] = {
    "none", "sequential", "best_fit", "ffd", "bfd", "exact",
};

const char *pd_report_strategy_name(enum pd_report_strategy strategy)
{
    PD_CHECK((unsigned)strategy < PD_REPORT_STRATEGIES);
    return strategy_names[strategy];
}

static int parts_add(struct making *m, const struct part *part)
{
    struct parts *parts = &m->parts;
    if (parts->count == parts->capacity) {
        size_t capacity = parts->capacity ? 2 * parts->capacity : m->count + 16;
        struct part *items = realloc(parts->items, capacity * sizeof *items);
        if (!items)
            return no_memory(m);
        parts->items = items;
        parts->capacity = capacity;
    }
    parts->items[parts->count++] = *part;
    return 0;
}

static int costs_add(struct making *m, uint64_t cost)
{
    struct costs *costs = &m->costs;
    if (costs->count == costs->capacity) {
        uint32_t capacity = costs->capacity ? 2 * costs->capacity : 1024;
        uint64_t *packs = realloc(costs->packs, capacity * sizeof *packs);
        if (!packs)
            return no_memory(m);
        costs->packs = packs;
        costs->capacity = capacity;
    }
    costs->packs[costs->count++] = cost;
    return 0;
}

static int place(struct making *m, enum pd_report_strategy strategy, uint64_t pack,
                 const struct part *part)
{
    const struct pd_report_options *o = m->options;
    if (!o->place || o->assign != strategy)
        return 0;
    return o->place(o->ctx, &(struct pd_report_place){.pack = pack,
                                                      .sample = part->sample,
                                                      .part = part->number,
                                                      .offset_tokens = part->offset_tokens,
                                                      .length_tokens = part->length_tokens});
}

static struct part part_of(const struct pd_segment *segment)
{
    return (struct part){.sample = (uint32_t)segment->seq,
                         .number = segment->part,
                         .offset_tokens = segment->offset_tokens,
                         .length_tokens = segment->length_tokens,
                         .slot_tokens = segment->slot_tokens};
}

/* One pack of the planner: its parts into the work (kept with `none`, which is first), its cost
 * with exact. */
static int take_pack(struct making *m, enum pd_report_strategy strategy, const struct pd_pack *pack,
                     struct pd_work *work)
{
    uint64_t cost = 0;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < pack->segment_count; i++) {
        struct part part = part_of(&pack->segments[i]);
        pd_work_add(work, part.slot_tokens, 1);
        cost = pd_add_saturating(cost, pd_cost_segment(m->options->cost, part.length_tokens));
        if (strategy == PD_REPORT_NONE)
            rc = parts_add(m, &part);
        if (rc == 0)
            rc = place(m, strategy, pack->number, &part);
    }
    pd_work_add_padding(work, m->options->seq_len - pack->used_slots, m->options->pad_segment);
    if (rc == 0 && strategy == PD_REPORT_EXACT)
        rc = costs_add(m, cost);
    return rc;
}

static int run_planned(struct making *m, enum pd_report_strategy strategy, struct run *run,
                       struct pd_work *work)
{
    uint64_t parts = 0, shown = 0;
    int rc = run_start(run, m->error);
    while (rc == 0 && (rc = run_next(run)) == 1) {
        rc = take_pack(m, strategy, &run->pack, work);
        parts += run->pack.segment_count;
        if (rc == 0 && parts - shown >= PROGRESS_PARTS) {
            shown = parts;
            rc = told(m, strategy_names[strategy], parts, m->count);
        }
    }
    return rc;
}

static int planned(struct making *m, enum pd_report_strategy strategy, struct pd_work *work)
{
    static const enum pd_strategy of[PD_REPORT_STRATEGIES] = {
        [PD_REPORT_NONE] = PD_STRATEGY_NONE,
        [PD_REPORT_SEQUENTIAL] = PD_STRATEGY_SEQUENTIAL,
        [PD_REPORT_BEST_FIT] = PD_STRATEGY_BEST_FIT,
        [PD_REPORT_EXACT] = PD_STRATEGY_EXACT,
    };
    struct run run = {.rules = rules_of(m->options),
                      .list = {.lengths = m->lengths, .count = m->count, .stride = 1}};
    run.rules.strategy = of[strategy];
    int rc = run_planned(m, strategy, &run, work);
    m->report->rows[strategy].packs = run.stats.packs;
    m->report->rows[strategy].age_max_samples = run.stats.age_max_samples;
    if (strategy == PD_REPORT_NONE) {
        m->report->rejected_samples = run.stats.rejected_samples;
        m->report->truncated_samples = run.stats.truncated_samples;
        m->report->truncated_tokens = run.stats.truncated_tokens;
        m->report->split_samples = run.stats.split_samples;
    }
    run_fini(&run);
    return rc;
}

/* Arrays of an offline run, one entry a part. */
struct offline {
    uint32_t *slots, *pack_of, *used;
};

static int offline_work(struct making *m, enum pd_report_strategy strategy,
                        const struct offline *offline, size_t packs, struct pd_work *work)
{
    int rc = 0;
    memset(offline->used, 0, (packs + 1) * sizeof *offline->used);
    for (size_t i = 0; rc == 0 && i < m->parts.count; i++) {
        offline->used[offline->pack_of[i]] += offline->slots[i];
        pd_work_add(work, offline->slots[i], 1);
        rc = place(m, strategy, offline->pack_of[i], &m->parts.items[i]);
    }
    for (size_t p = 0; p < packs; p++)
        pd_work_add_padding(work, m->options->seq_len - offline->used[p], m->options->pad_segment);
    return rc;
}

static int run_offline(struct making *m, enum pd_report_strategy strategy, struct pd_work *work)
{
    size_t count = m->parts.count, packs = 0;
    enum pd_offline how = strategy == PD_REPORT_FFD ? PD_OFFLINE_FFD : PD_OFFLINE_BFD;
    uint32_t *memory = malloc(3 * (count + 1) * sizeof *memory);
    if (!memory)
        return no_memory(m);
    struct offline offline = {memory, memory + count + 1, memory + 2 * (count + 1)};
    for (size_t i = 0; i < count; i++)
        offline.slots[i] = m->parts.items[i].slot_tokens;
    int rc =
        pd_offline_pack(how, offline.slots, count, m->options->seq_len, offline.pack_of, &packs);
    if (rc == 0)
        rc = offline_work(m, strategy, &offline, packs, work);
    if (rc == 0 && strategy == PD_REPORT_FFD) {
        m->report->lower_bound = pd_offline_lower_bound(offline.slots, count, m->options->seq_len);
        m->report->ceiling_ppm = pd_offline_ceiling_ppm(offline.slots, count, m->options->seq_len);
    }
    m->report->rows[strategy].packs = packs;
    free(memory);
    return rc;
}

static uint32_t padding_ppm(uint64_t packs, uint32_t seq_len, uint64_t tokens)
{
    return (uint32_t)pd_saving_ppm((unsigned __int128)packs * seq_len, tokens);
}

static void fill_row(struct making *m, enum pd_report_strategy strategy, const struct pd_work *work)
{
    struct pd_report *r = m->report;
    struct pd_report_row *row = &r->rows[strategy];
    uint32_t seq_len = m->options->seq_len;
    row->padding_before_ppm = padding_ppm(r->parts, seq_len, r->served_tokens);
    row->padding_after_ppm = padding_ppm(row->packs, seq_len, r->served_tokens);
    if (strategy == PD_REPORT_NONE) /* rows padded to seq_len are the measure itself */
        return;
    row->saving_linear_ppm = pd_saving_ppm(r->padded.positions, work->positions);
    row->saving_quadratic_ppm = pd_saving_ppm(r->padded.pairs, work->pairs);
    row->saving_ppm = pd_saving_ppm(pd_work_cost(&r->padded, m->options->cost),
                                    pd_work_cost(work, m->options->cost));
}

/* Rows padded to seq_len, and what is left of their work when only real tokens count. */
static void compare_padded(struct making *m)
{
    struct pd_report *r = m->report;
    struct pd_work real = {0};
    r->parts = m->parts.count;
    for (size_t i = 0; i < m->parts.count; i++) {
        r->served_tokens += m->parts.items[i].length_tokens;
        pd_work_add(&real, m->parts.items[i].length_tokens, 1);
    }
    pd_work_add(&r->padded, m->options->seq_len, r->parts);
    r->varlen_linear_ppm = pd_saving_ppm(r->padded.positions, real.positions);
    r->varlen_quadratic_ppm = pd_saving_ppm(r->padded.pairs, real.pairs);
    r->varlen_ppm = pd_saving_ppm(pd_work_cost(&r->padded, m->options->cost),
                                  pd_work_cost(&real, m->options->cost));
}

static int run_strategies(struct making *m)
{
    for (enum pd_report_strategy s = 0; s < PD_REPORT_STRATEGIES; s++) {
        struct pd_work work = {0};
        int rc = told(m, strategy_names[s], 0, m->count);
        if (rc == 0)
            rc = s == PD_REPORT_FFD || s == PD_REPORT_BFD ? run_offline(m, s, &work)
                                                          : planned(m, s, &work);
        if (rc != 0)
            return rc;
        if (s == PD_REPORT_NONE)
            compare_padded(m);
        if (s == PD_REPORT_EXACT)
            m->report->packed = work;
        fill_row(m, s, &work);
    }
    return 0;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static int compare_ranks(struct making *m)
{
    const struct pd_world *world = &m->options->world;
    const struct costs *costs = &m->costs;
    uint32_t step_packs = world->dp_size * world->rows * world->accum;
    uint64_t pack_bytes = TOKEN_BYTES * (uint64_t)m->options->seq_len;
    struct pd_balance_rules balance = {
        .seed = m->options->seed,
        .steps_max = pd_balance_steps_max(m->options->balance_bytes, pack_bytes, step_packs),
        .step_packs = step_packs};
    uint32_t *order = malloc(((size_t)costs->count + 1) * sizeof *order);
    uint64_t *served = malloc(((size_t)costs->count + 1) * sizeof *served);
    if (order && served) {
        m->report->off = pd_imbalance_of(costs->packs, costs->count, *world);
        uint32_t put = pd_balance_order(&balance, costs->packs, costs->count, true, order);
        PD_CHECK(put == costs->count);
        for (uint32_t i = 0; i < put; i++)
            served[i] = costs->packs[order[i]];
        m->report->balanced = pd_imbalance_of(served, put, *world);
    }
    bool ok = order && served;
    free(order);
    free(served);
    return ok ? 0 : no_memory(m);
}

/* ---- views ----------------------------------------------------------------------------------- */

static int exact_packs(struct making *m, const uint32_t *lengths, uint64_t *packs)
{
    struct run run = {.rules = rules_of(m->options),
                      .list = {.lengths = lengths, .count = m->count, .stride = 1}};
    int rc = run_start(&run, m->error);
    while (rc == 0 && (rc = run_next(&run)) == 1)
        rc = 0;
    *packs = run.stats.packs;
    run_fini(&run);
    return rc;
}

/* What sample i keeps without view v; at least one token. */
static uint32_t kept_tokens(const struct making *m, uint32_t v, size_t i)
{
    struct pd_view_drop drop = m->options->views[v];
    if (m->options->view_tokens[v]) {
        drop = (struct pd_view_drop){.tokens = m->options->view_tokens[v][i]};
        if (drop.tokens == 0)
            return m->lengths[i];
    }
    return pd_view_kept_tokens(drop, m->lengths[i]);
}

static int drop_view(struct making *m, uint32_t v, struct pd_report_view *view)
{
    struct pd_work before = {0}, after = {0};
    uint32_t *kept = malloc((m->count + 1) * sizeof *kept);
    if (!kept)
        return no_memory(m);
    for (size_t i = 0; i < m->count; i++) {
        kept[i] = kept_tokens(m, v, i);
        pd_work_add(&before, m->lengths[i], 1);
        pd_work_add(&after, kept[i], 1);
    }
    int rc = exact_packs(m, kept, &view->packs);
    free(kept);
    view->tokens = after.positions;
    view->linear_cut_ppm = pd_saving_ppm(before.positions, after.positions);
    view->quadratic_cut_ppm = pd_saving_ppm(before.pairs, after.pairs);
    view->cut_ppm = pd_saving_ppm(pd_work_cost(&before, m->options->cost),
                                  pd_work_cost(&after, m->options->cost));
    return rc;
}

static int drop_views(struct making *m)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < m->options->view_count; i++) {
        rc = told(m, "views", i, m->options->view_count);
        if (rc == 0)
            rc = drop_view(m, i, &m->report->views[i]);
    }
    return rc;
}

/* ---- suggestions ----------------------------------------------------------------------------- */

/* Padding of exact's packs but the last, which an end leaves half empty. */
static int steady_padding(struct making *m, uint32_t seq_len, uint32_t window, uint32_t *ppm)
{
    size_t stride = m->count / SUGGEST_SAMPLES + 1;
    struct run run = {.rules = rules_of(m->options),
                      .list = {m->lengths, m->count / stride, stride, {{0}}}};
    uint64_t packs = 0, tokens = 0, last = 0;
    run.rules.seq_len = seq_len;
    run.rules.window_samples = window;
    int rc = run_start(&run, m->error);
    while (rc == 0 && (rc = run_next(&run)) == 1) {
        rc = 0;
        last = 0;
        for (uint32_t i = 0; i < run.pack.segment_count; i++)
            last += run.pack.segments[i].length_tokens;
        tokens += last;
        packs++;
    }
    run_fini(&run);
    *ppm = packs > 1 ? padding_ppm(packs - 1, seq_len, tokens - last)
                     : padding_ppm(packs, seq_len, tokens);
    return rc;
}

/* Where suggestions of seq_len begin: nothing is refused, and where over-length samples are cut,
 * few are. */
static uint32_t seq_len_least(const struct making *m)
{
    uint32_t seq_len = m->options->seg_align;
    uint32_t hold =
        m->options->over_length == PD_OVER_REJECT ? m->report->longest : m->usual_longest;
    if (hold < SUGGEST_SEQ_LEN_LEAST)
        hold = SUGGEST_SEQ_LEN_LEAST;
    while (seq_len < hold && seq_len <= PD_SEQ_LEN_MAX / 2)
        seq_len *= 2;
    return seq_len;
}

/* The first of `count` values that is at most `slack` above the least. */
static uint32_t first_near_least(const uint32_t *ppm, uint32_t count, uint32_t slack)
{
    uint32_t least = UINT32_MAX, at = 0;
    for (uint32_t i = 0; i < count; i++)
        least = ppm[i] < least ? ppm[i] : least;
    while (ppm[at] > least + slack)
        at++;
    return at;
}

/* The smallest doubling of seg_align (a power of two, unless that is none) that packs almost as
 * well as the best. */
static int suggest_seq_len(struct making *m)
{
    uint32_t ppm[SUGGEST_SEQ_LENS], tried = 0, least = seq_len_least(m);
    for (; tried < SUGGEST_SEQ_LENS && least <= PD_SEQ_LEN_MAX >> tried; tried++) {
        int rc = told(m, "suggestions", tried, SUGGEST_SEQ_LENS);
        if (rc == 0)
            rc = steady_padding(m, least << tried, m->options->window_samples, &ppm[tried]);
        if (rc != 0)
            return rc;
    }
    uint32_t chosen = first_near_least(ppm, tried, SUGGEST_PADDING_PPM);
    m->report->suggested_seq_len = least << chosen;
    m->report->suggested_padding_ppm = ppm[chosen];
    return 0;
}

/* The smallest window that is almost as good as the best, at the given seq_len. */
static int suggest_window(struct making *m)
{
    uint32_t ppm[SUGGEST_WINDOWS];
    for (uint32_t i = 0; i < SUGGEST_WINDOWS; i++) {
        int rc = told(m, "suggestions", i, SUGGEST_WINDOWS);
        if (rc == 0)
            rc = steady_padding(m, m->options->seq_len, SUGGEST_WINDOW_LEAST << i, &ppm[i]);
        if (rc != 0)
            return rc;
    }
    m->report->suggested_window = SUGGEST_WINDOW_LEAST
                                  << first_near_least(ppm, SUGGEST_WINDOWS, SUGGEST_WINDOW_PPM);
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int check(const struct pd_report_options *o, const uint32_t *lengths, size_t count,
                 struct pd_error *error)
{
    const struct pd_world *world = &o->world;
    struct pd_rules rules = rules_of(o);
    if (!world->dp_size || !world->rows || !world->accum || !o->pad_segment)
        return pd_error_set(error, PD_EINVAL, "RULES",
                            "dp_size %u, rows %u, accum %u, pad_segment %u: each is at least 1",
                            world->dp_size, world->rows, world->accum, o->pad_segment);
    if ((unsigned __int128)world->dp_size * world->rows * world->accum > PD_BALANCE_STEP_PACKS_MAX)
        return pd_error_set(error, PD_EINVAL, "RULES",
                            "dp_size %u * rows %u * accum %u is above %u packs a step",
                            world->dp_size, world->rows, world->accum, PD_BALANCE_STEP_PACKS_MAX);
    PD_CHECK(o->view_count <= PD_REPORT_VIEWS_MAX && count < INT32_MAX);
    for (size_t i = 0; i < count; i++)
        if (lengths[i] == 0)
            return pd_error_set(error, PD_EINVAL, "BAD_LENGTH",
                                "length %zu is 0, expected at least 1", i);
    return pd_rules_check(&rules, error);
}

static void judge(struct making *m)
{
    struct pd_report *r = m->report;
    r->regime = pd_cost_regime(m->options->cost, m->options->seq_len);
    r->quadratic_ppm = pd_cost_quadratic_ppm(m->options->cost, m->options->seq_len);
    r->crossover_tokens = pd_cost_crossover_tokens(m->options->cost);
    r->gain_ppm = r->rows[PD_REPORT_EXACT].saving_ppm;
    r->pack = r->gain_ppm >= PD_REPORT_GAIN_LEAST_PPM;
}

int pd_report_make(const struct pd_report_options *options, const uint32_t *lengths, size_t count,
                   struct pd_report *report, struct pd_error *error)
{
    struct making m = {
        .options = options, .lengths = lengths, .count = count, .report = report, .error = error};
    *report = (struct pd_report){0};
    int rc = check(options, lengths, count, error);
    if (rc == 0)
        rc = measure(&m);
    if (rc == 0)
        rc = run_strategies(&m);
    if (rc == 0)
        rc = compare_ranks(&m);
    if (rc == 0)
        rc = drop_views(&m);
    if (rc == 0 && count > 0)
        rc = suggest_seq_len(&m);
    if (rc == 0 && count > 0)
        rc = suggest_window(&m);
    judge(&m);
    free(m.parts.items);
    free(m.costs.packs);
    return rc;
}
