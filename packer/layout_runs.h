/* Filling whole runs of positions, for layout.c. Pure. */
#ifndef PD_PACKER_LAYOUT_RUNS_H
#define PD_PACKER_LAYOUT_RUNS_H

#include <stddef.h>
#include <stdint.h>

void pd_fill_value(int32_t *at, size_t count, int32_t value);
/* 0, 1, ... count - 1. */
void pd_fill_count_up(int32_t *at, size_t count);
/* `weight` where there is a label, 0 elsewhere. */
void pd_fill_weights(float *weights, const int32_t *labels, size_t count, float weight);

#endif
