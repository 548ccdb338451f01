/* Dynamic padding in figures: positions spared, and the attention path.
 *
 * Called once a batch, when it has been measured; goes into its header. Pure, any thread. It does
 * not choose the width: the layout does, from the rules. */
#include "packer/width.h"

#include <stdio.h>

/* The batch's segments as a varlen kernel sees them, padding included. */
static struct pd_work varlen_work(const struct pd_layout_rules *rules, const struct pd_batch *batch,
                                  const struct pd_pack *const *rows)
{
    struct pd_work work = {0};
    for (uint32_t r = 0; r < batch->rows; r++) {
        const struct pd_pack *pack = rows[r];
        uint32_t used = pack ? pack->used_slots : 0;
        for (uint32_t i = 0; pack && i < pack->segment_count; i++)
            pd_work_add(&work, pack->segments[i].slot_tokens, 1);
        pd_work_add_padding(&work, batch->width - used, rules->pad_segment);
    }
    return work;
}

void pd_width_report_make(const struct pd_layout_rules *rules, uint32_t bound_tokens,
                          struct pd_cost cost, const struct pd_batch *batch,
                          const struct pd_pack *const *rows, struct pd_width_report *report)
{
    uint32_t bound = bound_tokens > 0 ? bound_tokens : rules->seq_len;
    uint32_t fixed = bound > batch->width ? bound : batch->width;
    struct pd_work varlen = varlen_work(rules, batch, rows), padded = {0};
    pd_work_add(&padded, fixed, batch->rows);
    *report = (struct pd_width_report){.bound_tokens = bound};
    report->saved_positions = (uint64_t)batch->rows * (fixed - batch->width);
    report->varlen_saving_ppm =
        pd_saving_ppm(pd_work_cost(&padded, cost), pd_work_cost(&varlen, cost));
    report->varlen = report->varlen_saving_ppm > PD_VARLEN_LEAST_PPM;
    long long tenths = (long long)report->varlen_saving_ppm / 1000;
    snprintf(report->reason, sizeof report->reason,
             "%u segments of up to %u cost %lld.%lld %% less than %u rows of %u",
             batch->real_segment_count, batch->max_seqlen, tenths / 10,
             tenths < 0 ? -tenths % 10 : tenths % 10, batch->rows, fixed);
}
