/* Comparisons of whole runs of positions, for check.c: no branch inside, so that they are vector
 * code. Pure. */
#ifndef PD_PACKER_CHECK_RUNS_H
#define PD_PACKER_CHECK_RUNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Every entry is `value`. */
bool pd_run_equals(const int32_t *at, size_t count, int32_t value);
/* 0, 1, ... count - 1. */
bool pd_run_counts_up(const int32_t *at, size_t count);
/* Every bit is 0: -0.0 is not. */
bool pd_run_is_zero(const float *at, size_t count);
/* `weight` where there is a label, 0 elsewhere, bit for bit; *targets gets the number of labels. */
bool pd_run_is_weighted(const float *at, const int32_t *labels, size_t count, float weight,
                        uint32_t *targets);

#endif
