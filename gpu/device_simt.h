/* The device as kernels see it, on the CPU: see simt/simt.h. The same names as device_cuda.cuh. */
#ifndef PD_GPU_DEVICE_SIMT_H
#define PD_GPU_DEVICE_SIMT_H

#include "gpu/simt/simt.h"

#include <math.h>
#include <string.h>

#define DEV_KERNEL(threads) static void
#define DEV_FUNCTION static inline

#define DEV_UNROLL

#define dev_thread() simt_thread()
#define dev_block_x() simt_block_x()
#define dev_block_y() simt_block_y()
#define dev_grid_x() simt_grid_x()
#define dev_shared() simt_shared()
#define dev_barrier() simt_barrier(__LINE__)
#define dev_warp_sync() simt_warp_sync(__LINE__)
#define dev_shfl_xor(value, mask) simt_shfl_xor(value, mask, __LINE__)
#define dev_mma(d, a, b) simt_mma(d, a, b, __LINE__)
#define dev_ldmatrix(r, row) simt_ldmatrix(r, row, 0, __LINE__)
#define dev_ldmatrix_transposed(r, row) simt_ldmatrix(r, row, 1, __LINE__)
#define dev_copy16(shared, global, inside) simt_copy16(shared, global, inside)
#define dev_copy_wait() simt_copy_wait()

/* What a register holds before it is set: anything, so here NaN. */
#define dev_undefined(array) memset(&(array), 0xff, sizeof(array))

DEV_FUNCTION float dev_exp2(float x)
{
    return exp2f(x);
}

DEV_FUNCTION float dev_log2(float x)
{
    return log2f(x);
}

/* Two floats as bf16, round to nearest even; `low` in the low half. */
DEV_FUNCTION uint32_t dev_bf16x2(float low, float high)
{
    uint32_t pair[2];
    memcpy(&pair[0], &low, 4);
    memcpy(&pair[1], &high, 4);
    for (int i = 0; i < 2; i++) /* NaN stays NaN: the carry would make it 0 */
        pair[i] = (pair[i] & 0x7fffffffu) > 0x7f800000u
                      ? 0x7fffu
                      : (pair[i] + 0x7fffu + (pair[i] >> 16 & 1u)) >> 16;
    return pair[1] << 16 | pair[0];
}

/* Kernels are functions of one struct; this is the entry simt_run wants. */
template <class Arguments, void (*KERNEL)(Arguments)> void dev_entry(const void *arguments)
{
    KERNEL(*(const Arguments *)arguments);
}

#endif
