/* What packing would do to a set of lengths: `packctl plan` before anybody runs a server.
 *
 * lengths ──> packs of each strategy ──> padding, compute, imbalance of ranks ──> pack or not,
 *                                                                                 suggestions
 *
 * The served strategies run through the planner itself, so the figures are those a feed would
 * reach, its end included. Ratios are in parts per million. Pure; memory O(lengths); one thread, no
 * state between calls. */
#ifndef PD_PACKER_REPORT_H
#define PD_PACKER_REPORT_H

#include "packer/balance.h"
#include "packer/cost.h"
#include "packer/planner.h"

#include <stddef.h>

#define PD_REPORT_VIEWS_MAX 8
#define PD_REPORT_BINS_MAX 24
/* A predicted gain below this is not worth the trouble. */
#define PD_REPORT_GAIN_LEAST_PPM 20000

/* In the order in which they are shown. */
enum pd_report_strategy {
    PD_REPORT_NONE, /* one sample a pack, a row padded to seq_len: the measure of the others */
    PD_REPORT_SEQUENTIAL,
    PD_REPORT_BEST_FIT,
    PD_REPORT_FFD, /* first- and best-fit-decreasing need the whole set */
    PD_REPORT_BFD,
    PD_REPORT_EXACT,
    PD_REPORT_STRATEGIES
};
/* "none", "sequential", ... */
const char *pd_report_strategy_name(enum pd_report_strategy strategy);

/* Where one part of a sample went. */
struct pd_report_place {
    uint64_t pack, sample; /* from 0; sample is its place in the input */
    uint32_t part, offset_tokens, length_tokens;
};

struct pd_report_options {
    uint32_t seq_len, window_samples, seg_align, pad_segment;
    enum pd_over_length over_length;
    struct pd_cost cost;
    struct pd_world world;
    uint64_t seed, balance_bytes; /* of balance: cost */
    struct pd_view_drop views[PD_REPORT_VIEWS_MAX];
    /* NULL, or the view's tokens in each sample of the input, in the place of `views`. */
    const uint32_t *view_tokens[PD_REPORT_VIEWS_MAX];
    uint32_t view_count;
    void *ctx;
    /* NULL, or told every part's place under `assign`; what it returns, if not 0, ends the report.
     */
    enum pd_report_strategy assign;
    int (*place)(void *ctx, const struct pd_report_place *place);
    /* NULL, or called now and then; true ends the report with PD_ECANCELED. */
    bool (*progress)(void *ctx, const char *doing, uint64_t done, uint64_t all);
};

struct pd_report_row {
    uint64_t packs;
    uint32_t padding_before_ppm; /* of rows that hold one part each, padded to seq_len */
    uint32_t padding_after_ppm;  /* positions of the packs without a token, gaps included */
    /* Compute of the packs as served, over padded rows; the last for the given cost. */
    int64_t saving_linear_ppm, saving_quadratic_ppm, saving_ppm;
    uint64_t age_max_samples; /* 0 where the whole set is seen */
};

struct pd_report_bin {
    uint32_t lowest, highest; /* lengths, both inclusive */
    uint64_t samples, tokens;
};

struct pd_report_view {
    uint64_t tokens; /* left */
    uint64_t packs;  /* exact */
    /* Of real tokens' work: the linear part, attention, the given cost. */
    int64_t linear_cut_ppm, quadratic_cut_ppm, cut_ppm;
};

struct pd_report {
    uint64_t samples, tokens; /* of the input */
    uint32_t shortest, longest, mean_tokens, median_tokens;
    uint64_t parts, served_tokens; /* after over_length */
    uint64_t rejected_samples, truncated_samples, truncated_tokens, split_samples;
    uint64_t lower_bound; /* packs */
    uint32_t ceiling_ppm; /* of a pack's positions that can be filled */
    struct pd_report_row rows[PD_REPORT_STRATEGIES];
    /* Varlen over padded rows, by real lengths alone: what is left when no padding is computed. */
    int64_t varlen_linear_ppm, varlen_quadratic_ppm, varlen_ppm;
    enum pd_regime regime;  /* of a row of seq_len */
    uint32_t quadratic_ppm; /* attention's share there */
    uint64_t crossover_tokens;
    struct pd_work padded, packed;     /* rows of seq_len; packs of exact as served */
    struct pd_imbalance off, balanced; /* ranks of `world`, exact's packs, balance: off and cost */
    uint32_t suggested_seq_len, suggested_padding_ppm; /* without the last pack */
    uint32_t suggested_window;
    int64_t gain_ppm; /* exact's saving_ppm */
    bool pack;        /* gain_ppm reaches PD_REPORT_GAIN_LEAST_PPM */
    struct pd_report_view views[PD_REPORT_VIEWS_MAX];
    struct pd_report_bin bins[PD_REPORT_BINS_MAX];
    uint32_t bin_count;
};

/* Lengths of at least 1, fewer than 2^31 of them. PD_EINVAL with reason RULES (the planner's rules,
 * a world or pad_segment of 0, more steps' packs than 2^26) or BAD_LENGTH; PD_ENOMEM; PD_ECANCELED;
 * what place() returned. */
int pd_report_make(const struct pd_report_options *options, const uint32_t *lengths, size_t count,
                   struct pd_report *report, struct pd_error *error) PD_MUST_CHECK;

#endif
