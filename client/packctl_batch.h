/* What packctl fetch does with one batch. No thread of its own. */
#ifndef PD_CLIENT_PACKCTL_BATCH_H
#define PD_CLIENT_PACKCTL_BATCH_H

#include "client/include/packd.h"

struct ctl_fetch_totals {
    uint64_t batches, samples, segments;
    uint64_t real, tail, gap, row_padding, overlap;
    int64_t loss_tokens;
    uint64_t payload_bytes, received_bytes;
};

void ctl_fetch_totals_add(struct ctl_fetch_totals *totals, const struct packd_batch *batch);
/* The structural check of packer/check.h on the arrays alone. 0, or PACKD_ECORRUPT with the finding
 * in `text`. */
int ctl_batch_check(const struct packd_spec *spec, const struct packd_batch *batch, char *text,
                    size_t size);
/* Writes the batch as safetensors, the deterministic header as JSON under "packd" in its metadata;
 * a partial file never has the name. PACKD_EIO, PACKD_ENOMEM. */
int ctl_batch_write(const struct packd_batch *batch, const char *path, struct packd_error *error);
/* One line of JSON on stdout. */
void ctl_batch_print_json(const struct packd_batch *batch, const char *path, bool checked);

#endif
