/* Pruning by prior knowledge: what is left of a sample when views are dropped and videos thinned.
 *
 *   pushed   text [view 0: 4 tokens] text [view 1: 4 tokens] text
 *   drop 1   text [view 0: 4 tokens] text text                       <- kept runs of tokens: 2
 *
 * The log holds samples as pushed; the planner and whoever builds a batch apply the same rule to
 * the same head, so everything behind them is arithmetic on the pruned sample, in its own
 * coordinates. Only a span's own tokens go: markers around it are text and stay.
 *
 * Thinning keeps frames 0, n, 2n, ... of a span with grid_t > 1, with their tokens and patches; the
 * seconds between frames grow by n. A span whose tokens or patches do not divide into its frames is
 * left as it is. Pure; one owner at a time. */
#ifndef PD_PACKER_PRUNE_H
#define PD_PACKER_PRUNE_H

#include "base/err.h"
#include "packer/head.h"
#include "packer/plan.h"

#include <stdbool.h>
#include <stdint.h>

/* Consecutive tokens of the sample as pushed. */
struct pd_token_run {
    uint32_t from, count;
};

/* Where a span of a pruned sample comes from. */
struct pd_span_origin {
    uint32_t span;       /* its number in the sample as pushed */
    uint32_t frame_step; /* frame j was frame j * frame_step; 1 where nothing was thinned */
};

/* A pruned sample. Zeroed memory is an empty one; its memory is kept from call to call. */
struct pd_pruned {
    struct pd_head head;            /* as the planner sees it; spans and loss runs point below */
    struct pd_prune applied;        /* of the rule, what changed something; all 0: nothing did */
    struct pd_span *spans;          /* head.span_count of them */
    struct pd_span_origin *origins; /* likewise */
    struct pd_token_run *kept;      /* ascending, not touching; together head.length_tokens */
    uint32_t kept_count;
    uint32_t *loss;
    uint32_t span_capacity, kept_capacity, loss_capacity;
};
void pd_pruned_fini(struct pd_pruned *pruned);

/* Whether the rule would change the sample. */
bool pd_prune_touches(const struct pd_head *head, struct pd_prune rule);

/* Applies the rule to a head as pushed. head.length_tokens may come out as 0: nothing is left.
 * head.payload_bytes is an estimate for budgets: tokens as they are, the rest in proportion to
 * patches (to tokens where there are none). `pushed` must outlive *pruned. PD_ENOMEM. */
int pd_prune_head(const struct pd_head *pushed, struct pd_prune rule,
                  struct pd_pruned *pruned) PD_MUST_CHECK;

/* What one view loses by the rule. */
struct pd_view_loss {
    uint32_t view;
    uint32_t spans; /* dropped whole */
    uint32_t tokens, patches;
};
/* Per view that loses something, ascending by view; up to 64 entries, returns how many. `pruned`
 * was made from `pushed`. */
uint32_t pd_prune_losses(const struct pd_head *pushed, const struct pd_pruned *pruned,
                         struct pd_view_loss *losses);

#endif
