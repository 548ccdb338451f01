/* Comparisons of whole runs of positions.
 *
 * Place in the flow: below the structural check, which searches a run for the place only where one
 * of these says no. Pure, any thread. Compiled with -O3 and for AVX2 beside the base (base/cpu.h).
 * They know no rule of the contract. */
#include "packer/check_runs.h"

#include "base/arith.h"
#include "base/cpu.h"
#include "packer/batch.h"

PD_CPU_LEVELS bool pd_run_equals(const int32_t *at, size_t count, int32_t value)
{
    uint32_t differ = 0;
    for (size_t i = 0; i < count; i++)
        differ |= (uint32_t)(at[i] ^ value);
    return differ == 0;
}

PD_CPU_LEVELS bool pd_run_counts_up(const int32_t *at, size_t count)
{
    uint32_t differ = 0;
    for (uint32_t i = 0; i < (uint32_t)count; i++)
        differ |= (uint32_t)at[i] ^ i;
    return differ == 0;
}

PD_CPU_LEVELS bool pd_run_is_zero(const float *at, size_t count)
{
    uint32_t differ = 0;
    for (size_t i = 0; i < count; i++)
        differ |= pd_float_bits(at[i]);
    return differ == 0;
}

PD_CPU_LEVELS bool pd_run_is_weighted(const float *at, const int32_t *labels, size_t count,
                                      float weight, uint32_t *targets)
{
    const uint32_t bits = pd_float_bits(weight);
    uint32_t differ = 0, found = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t has = labels[i] != PD_LABEL_NONE;
        differ |= pd_float_bits(at[i]) ^ (bits & -has);
        found += has;
    }
    *targets = found;
    return differ == 0;
}
