/* packctl plan: its figures as a page for people, or as one JSON object.
 *
 * The report comes whole; nothing is worked out here but layout. Ratios arrive in parts per million
 * and are printed from integers: shares of 1 in JSON, percent for people. One thread. */
#include "client/packctl_plan.h"

#include "base/units.h"

#include <inttypes.h>
#include <string.h>

#define BAR_WIDTH 48
#define SHOWN 40

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_number(const char *name, uint64_t value)
{
    printf("\"%s\": %" PRIu64, name, value);
}

/* Parts per million as a share of 1. */
static void json_share(const char *name, int64_t ppm)
{
    uint64_t size = ppm < 0 ? (uint64_t)-ppm : (uint64_t)ppm;
    printf("\"%s\": %s%" PRIu64 ".%06" PRIu64, name, ppm < 0 ? "-" : "", size / PD_PPM,
           size % PD_PPM);
}

static void json_three(int64_t linear, int64_t quadratic, int64_t model)
{
    json_share("linear", linear);
    printf(", ");
    json_share("quadratic", quadratic);
    printf(", ");
    json_share("model", model);
}

static void json_strategies(const struct pd_report *r)
{
    printf("\"strategies\": {");
    for (unsigned i = 0; i < PD_REPORT_STRATEGIES; i++) {
        const struct pd_report_row *row = &r->rows[i];
        printf("%s\"%s\": {", i ? ", " : "", pd_report_strategy_name((enum pd_report_strategy)i));
        json_number("packs", row->packs);
        printf(", ");
        json_share("padding_before", row->padding_before_ppm);
        printf(", ");
        json_share("padding_after", row->padding_after_ppm);
        printf(", \"saving\": {");
        json_three(row->saving_linear_ppm, row->saving_quadratic_ppm, row->saving_ppm);
        printf("}, ");
        json_number("age_max_samples", row->age_max_samples);
        printf("}");
    }
    printf("}");
}

static void json_input(const struct ctl_plan *plan)
{
    const struct pd_report *r = &plan->report;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"samples", r->samples},
        {"tokens", r->tokens},
        {"empty_samples", plan->empty},
        {"shortest", r->shortest},
        {"longest", r->longest},
        {"mean", r->mean_tokens},
        {"median", r->median_tokens},
        {"rejected_samples", r->rejected_samples},
        {"truncated_samples", r->truncated_samples},
        {"truncated_tokens", r->truncated_tokens},
        {"split_samples", r->split_samples},
        {"parts", r->parts},
        {"served_tokens", r->served_tokens},
        {"seq_len", plan->options.seq_len},
        {"window", plan->options.window_samples},
        {"align", plan->options.seg_align},
    };
    printf(", \"input\": ");
    ctl_json_string(stdout, plan->path);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        printf(", ");
        json_number(numbers[i].name, numbers[i].value);
    }
}

/* A count of operations is beyond 64 bits for large sets. */
static const char *decimal(unsigned __int128 value, char *buf, size_t size)
{
    size_t at = size - 1;
    buf[at] = 0;
    do {
        buf[--at] = (char)('0' + (int)(value % 10));
        value /= 10;
    } while (value > 0 && at > 0);
    return buf + at;
}

static void json_model(const struct ctl_plan *plan)
{
    const struct pd_report *r = &plan->report;
    char padded[SHOWN], packed[SHOWN];
    printf(", \"model\": {");
    json_number("alpha", plan->options.cost.alpha);
    printf(", ");
    json_number("beta", plan->options.cost.beta);
    printf(", \"regime\": \"%s\", ", r->regime == PD_REGIME_LINEAR ? "linear" : "quadratic");
    json_share("attention_share", r->quadratic_ppm);
    if (r->crossover_tokens != UINT64_MAX)
        printf(", \"crossover_tokens\": %" PRIu64, r->crossover_tokens);
    if (plan->layers)
        printf(", \"operations_padded\": %s, \"operations_packed\": %s",
               decimal(pd_work_operations(&r->padded, plan->hidden, plan->layers), padded,
                       sizeof padded),
               decimal(pd_work_operations(&r->packed, plan->hidden, plan->layers), packed,
                       sizeof packed));
    printf("}");
}

static void json_imbalance(const char *name, const struct pd_imbalance *imbalance)
{
    if (imbalance->steps == 0) { /* not one whole step */
        printf("\"%s\": null", name);
        return;
    }
    printf("\"%s\": {", name);
    json_share("step", (int64_t)imbalance->step_ppm);
    printf(", ");
    json_share("micro_step", (int64_t)imbalance->micro_ppm);
    printf("}");
}

static void json_ranks(const struct ctl_plan *plan)
{
    const struct pd_world *world = &plan->options.world;
    printf(", \"imbalance\": {\"dp_size\": %u, \"rows\": %u, \"accum\": %u, ", world->dp_size,
           world->rows, world->accum);
    json_number("steps", plan->report.off.steps);
    printf(", ");
    json_imbalance("off", &plan->report.off);
    printf(", ");
    json_imbalance("cost", &plan->report.balanced);
    printf("}");
}

static void json_views(const struct ctl_plan *plan)
{
    printf(", \"views\": [");
    for (uint32_t i = 0; i < plan->options.view_count; i++) {
        const struct pd_report_view *view = &plan->report.views[i];
        printf("%s{\"name\": ", i ? ", " : "");
        ctl_json_string(stdout, plan->view_names[i]);
        printf(", ");
        json_number("tokens", view->tokens);
        printf(", ");
        json_number("packs", view->packs);
        printf(", \"cut\": {");
        json_three(view->linear_cut_ppm, view->quadratic_cut_ppm, view->cut_ppm);
        printf("}}");
    }
    printf("]");
}

static void json_histogram(const struct pd_report *r)
{
    printf(", \"histogram\": [");
    for (uint32_t i = 0; i < r->bin_count; i++)
        printf("%s{\"lowest\": %u, \"highest\": %u, \"samples\": %" PRIu64 ", \"tokens\": %" PRIu64
               "}",
               i ? ", " : "", r->bins[i].lowest, r->bins[i].highest, r->bins[i].samples,
               r->bins[i].tokens);
    printf("]");
}

void ctl_plan_json(const struct ctl_plan *plan)
{
    const struct pd_report *r = &plan->report;
    printf("{");
    json_strategies(r);
    printf(", ");
    json_number("lower_bound", r->lower_bound);
    printf(", ");
    json_share("ceiling", r->ceiling_ppm);
    json_input(plan);
    printf(", \"varlen_over_padded\": {");
    json_three(r->varlen_linear_ppm, r->varlen_quadratic_ppm, r->varlen_ppm);
    printf("}");
    json_model(plan);
    json_ranks(plan);
    printf(", \"suggested\": {\"seq_len\": %u, \"window\": %u, ", r->suggested_seq_len,
           r->suggested_window);
    json_share("padding", r->suggested_padding_ppm);
    printf("}, ");
    json_share("gain", r->gain_ppm);
    printf(", \"speedup\": %" PRIu64 ".%03" PRIu64, pd_speedup_milli(r->gain_ppm) / 1000,
           pd_speedup_milli(r->gain_ppm) % 1000);
    printf(", \"recommendation\": \"%s\"", r->pack ? "pack" : "do not pack");
    json_views(plan);
    json_histogram(r);
    printf("}\n");
}

/* ---- people ---------------------------------------------------------------------------------- */

static const char *count_text(uint64_t count, char *buf)
{
    return pd_units_format_count(count, buf, SHOWN);
}

/* Parts per million as percent with `decimals` (0 to 4), rounded: "89.50 %". */
static const char *percent(int64_t ppm, unsigned decimals, char *buf)
{
    static const uint64_t units[] = {10000, 1000, 100, 10, 1};
    uint64_t size = ppm < 0 ? (uint64_t)-ppm : (uint64_t)ppm, unit = units[decimals];
    uint64_t scaled = (size + unit / 2) / unit, whole = 10000 / unit;
    const char *sign = ppm < 0 && scaled > 0 ? "-" : "";
    if (decimals == 0)
        snprintf(buf, SHOWN, "%s%" PRIu64 " %%", sign, scaled);
    else
        snprintf(buf, SHOWN, "%s%" PRIu64 ".%0*" PRIu64 " %%", sign, scaled / whole, (int)decimals,
                 scaled % whole);
    return buf;
}

static void show_input(const struct ctl_plan *plan)
{
    const struct pd_report *r = &plan->report;
    char samples[SHOWN], tokens[SHOWN], longest[SHOWN];
    printf("%s%s samples, %s tokens%s; lengths %u to %s, mean %u, median %u\n\n",
           ctl_bold(plan->ctl), count_text(r->samples, samples), count_text(r->tokens, tokens),
           ctl_plain(plan->ctl), r->shortest, count_text(r->longest, longest), r->mean_tokens,
           r->median_tokens);
}

static void show_histogram(const struct ctl_plan *plan)
{
    const struct pd_report *r = &plan->report;
    static const char bar[BAR_WIDTH + 1] = "################################################";
    uint64_t most = 1;
    for (uint32_t i = 0; i < r->bin_count; i++)
        most = r->bins[i].samples > most ? r->bins[i].samples : most;
    for (uint32_t i = 0; i < r->bin_count; i++) {
        const struct pd_report_bin *bin = &r->bins[i];
        char samples[SHOWN];
        int width = (int)((bin->samples * BAR_WIDTH + most - 1) / most);
        printf("  %8u - %-8u %12s  %s%.*s%s\n", bin->lowest, bin->highest,
               count_text(bin->samples, samples), ctl_dim(plan->ctl), width, bar,
               ctl_plain(plan->ctl));
    }
}

static void show_strategies(const struct ctl_plan *plan)
{
    const struct pd_report *r = &plan->report;
    char a[SHOWN], b[SHOWN], c[SHOWN], d[SHOWN], e[SHOWN];
    printf("\n%s%-12s %12s %10s %10s %10s %12s%s\n", ctl_dim(plan->ctl), "strategy", "packs",
           "padding", "linear", "quadratic", "this model", ctl_plain(plan->ctl));
    for (unsigned i = 0; i < PD_REPORT_STRATEGIES; i++) {
        const struct pd_report_row *row = &r->rows[i];
        bool own = i == PD_REPORT_EXACT;
        printf("%s%-12s %12s %10s %10s %10s %12s%s\n", own ? ctl_bold(plan->ctl) : "",
               pd_report_strategy_name((enum pd_report_strategy)i), count_text(row->packs, a),
               percent(row->padding_after_ppm, 3, b), percent(row->saving_linear_ppm, 2, c),
               percent(row->saving_quadratic_ppm, 2, d), percent(row->saving_ppm, 2, e),
               own ? ctl_plain(plan->ctl) : "");
    }
    printf("%slinear, quadratic, this model: compute saved over rows padded to %u, where compute "
           "grows with\ntokens, with pairs of tokens, and as below. ffd and bfd see the whole "
           "set at once.%s\n",
           ctl_dim(plan->ctl), plan->options.seq_len, ctl_plain(plan->ctl));
    printf("\nno packing takes fewer than %s packs; at most %s of their positions can be filled\n",
           count_text(r->lower_bound, a), percent(r->ceiling_ppm, 3, b));
    printf("without any padding computed: %s saved (linear), %s (quadratic)\n",
           percent(r->varlen_linear_ppm, 2, a), percent(r->varlen_quadratic_ppm, 2, b));
}

static void show_model(const struct ctl_plan *plan)
{
    const struct pd_report *r = &plan->report;
    char share[SHOWN], at[SHOWN], padded[SHOWN], packed[SHOWN];
    printf("model: alpha %u, beta %u: %s regime at %u tokens (attention takes %s)",
           plan->options.cost.alpha, plan->options.cost.beta,
           r->regime == PD_REGIME_LINEAR ? "linear" : "quadratic", plan->options.seq_len,
           percent(r->quadratic_ppm, 1, share));
    if (r->crossover_tokens != UINT64_MAX)
        printf("; quadratic from %s on", count_text(r->crossover_tokens, at));
    printf("\n");
    if (plan->layers)
        printf("       operations of a forward pass over the set: padded %s, packed %s\n",
               decimal(pd_work_operations(&r->padded, plan->hidden, plan->layers), padded,
                       sizeof padded),
               decimal(pd_work_operations(&r->packed, plan->hidden, plan->layers), packed,
                       sizeof packed));
}

static void show_imbalance(const char *name, const struct pd_imbalance *imbalance)
{
    printf("%s %" PRIu64 ".%03" PRIu64, name, imbalance->micro_ppm / PD_PPM,
           imbalance->micro_ppm % PD_PPM / 1000);
}

static void show_ranks(const struct ctl_plan *plan)
{
    const struct pd_world *world = &plan->options.world;
    const struct pd_report *r = &plan->report;
    char steps[SHOWN];
    printf("ranks: %u ranks x %u rows x %u micro-steps: ", world->dp_size, world->rows,
           world->accum);
    if (r->off.steps == 0) {
        printf("the set does not fill one step\n");
        return;
    }
    printf("slowest over mean rank");
    show_imbalance("", &r->off);
    show_imbalance("; with balance: cost", &r->balanced);
    printf(" (%s steps)\n", count_text(r->off.steps, steps));
}

static void show_views(const struct ctl_plan *plan)
{
    for (uint32_t i = 0; i < plan->options.view_count; i++) {
        const struct pd_report_view *view = &plan->report.views[i];
        char packs[SHOWN], linear[SHOWN], quadratic[SHOWN], model[SHOWN];
        printf("without view %s: %s packs; tokens cut by %s, attention by %s, this model by %s\n",
               plan->view_names[i], count_text(view->packs, packs),
               percent(view->linear_cut_ppm, 2, linear),
               percent(view->quadratic_cut_ppm, 2, quadratic), percent(view->cut_ppm, 2, model));
    }
}

static void show_verdict(const struct ctl_plan *plan)
{
    const struct pd_report *r = &plan->report;
    char padding[SHOWN], gain[SHOWN];
    uint64_t speedup = pd_speedup_milli(r->gain_ppm);
    printf("suggested: seq_len %u (padding %s), window %u\n\n", r->suggested_seq_len,
           percent(r->suggested_padding_ppm, 2, padding), r->suggested_window);
    if (!r->pack) {
        printf("%sdo not pack%s: the predicted gain is %s, under 2 %%\n", ctl_red(plan->ctl),
               ctl_plain(plan->ctl), percent(r->gain_ppm, 2, gain));
        return;
    }
    printf("%spack%s: %s less compute predicted than with rows padded to %u: %" PRIu64 ".%02" PRIu64
           " times the throughput\n",
           ctl_bold(plan->ctl), ctl_plain(plan->ctl), percent(r->gain_ppm, 1, gain),
           plan->options.seq_len, speedup / 1000, speedup % 1000 / 10);
}

void ctl_plan_text(const struct ctl_plan *plan)
{
    show_input(plan);
    show_histogram(plan);
    show_strategies(plan);
    show_model(plan);
    show_ranks(plan);
    show_views(plan);
    show_verdict(plan);
}
