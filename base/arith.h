/* Arithmetic that C has no name for. Pure, any thread. */
#ifndef PD_BASE_ARITH_H
#define PD_BASE_ARITH_H

#include <stdint.h>
#include <string.h>

static inline uint64_t pd_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The 32 bits that are `value`: they tell -0.0 from 0.0, and one NaN from another. */
static inline uint32_t pd_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

#endif
