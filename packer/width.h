/* What the width of a batch spares against a global bound, and which attention path suits it.
 *
 *   bound   the width that every batch would have had (`width_bound`, or seq_len): a padded job's
 *   varlen  attention over the batch's segments, as cu_seqlens says
 *   fixed   attention over whole rows, as wide as the bound
 *
 * Varlen pays where its predicted cost is less by more than the kernel's own overhead; a hint,
 * never a condition. Integers, so that every build of a batch says the same. Pure. */
#ifndef PD_PACKER_WIDTH_H
#define PD_PACKER_WIDTH_H

#include "packer/batch.h"
#include "packer/cost.h"

/* Varlen must spare more than this of the fixed path's cost. */
#define PD_VARLEN_LEAST_PPM 50000

struct pd_width_report {
    uint32_t bound_tokens;
    uint64_t saved_positions; /* of all rows; 0 where the width is not below the bound */
    int64_t varlen_saving_ppm;
    bool varlen;
    char reason[128];
};

/* `bound_tokens` 0 stands for seq_len; `cost` is the feed's model. */
void pd_width_report_make(const struct pd_layout_rules *rules, uint32_t bound_tokens,
                          struct pd_cost cost, const struct pd_batch *batch,
                          const struct pd_pack *const *rows, struct pd_width_report *report);

#endif
