/* Filling whole runs of positions.
 *
 * Place in the flow: below the layout, for the arrays of one value a position. Pure, any thread.
 * Compiled with -O3 and for AVX2 beside the base (base/cpu.h). It knows neither rows nor
 * segments. */
#include "packer/layout_runs.h"

#include "base/cpu.h"
#include "packer/batch.h"

PD_CPU_LEVELS void pd_fill_value(int32_t *at, size_t count, int32_t value)
{
    for (size_t i = 0; i < count; i++)
        at[i] = value;
}

PD_CPU_LEVELS void pd_fill_count_up(int32_t *at, size_t count)
{
    for (uint32_t i = 0; i < (uint32_t)count; i++)
        at[i] = (int32_t)i;
}

PD_CPU_LEVELS void pd_fill_weights(float *weights, const int32_t *labels, size_t count,
                                   float weight)
{
    for (size_t i = 0; i < count; i++)
        weights[i] = labels[i] != PD_LABEL_NONE ? weight : 0.0f;
}
