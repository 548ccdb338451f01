/* The device as kernels see it: the only place with inline assembly and CUDA's own names.
 * device_simt.h gives the same names a meaning on the CPU. sm_80 and later. */
#ifndef PD_GPU_DEVICE_CUDA_CUH
#define PD_GPU_DEVICE_CUDA_CUH

#include <math.h>
#include <stdint.h>
#include <string.h>

#define DEV_KERNEL(threads) static __global__ void __launch_bounds__(threads)
#define DEV_FUNCTION static __device__ __forceinline__

#define DEV_UNROLL _Pragma("unroll")

#define dev_thread() (threadIdx.x)
#define dev_block_x() (blockIdx.x)
#define dev_block_y() (blockIdx.y)
#define dev_grid_x() (gridDim.x)
#define dev_barrier() __syncthreads()
#define dev_warp_sync() __syncwarp()
#define dev_undefined(array) ((void)0)

DEV_FUNCTION void *dev_shared(void)
{
    extern __shared__ __align__(128) unsigned char dev_shared_memory[];
    return dev_shared_memory;
}

DEV_FUNCTION float dev_shfl_xor(float value, int mask)
{
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

/* d += a * b: m16n8k16, bf16 operands, fp32 sums. */
DEV_FUNCTION void dev_mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEV_FUNCTION uint32_t dev_shared_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8. */
DEV_FUNCTION void dev_ldmatrix(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(dev_shared_address(row))
                 : "memory");
}

DEV_FUNCTION void dev_ldmatrix_transposed(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(dev_shared_address(row))
                 : "memory");
}

/* 16 bytes from global to shared memory without waiting, or 16 zero bytes (global is then not
 * read). */
DEV_FUNCTION void dev_copy16(void *shared, const void *global, bool inside)
{
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(dev_shared_address(shared)),
        "l"(__cvta_generic_to_global(global)), "r"(inside ? 16 : 0)
        : "memory");
}

/* Until all copies of the calling thread have landed. */
DEV_FUNCTION void dev_copy_wait(void)
{
    asm volatile("cp.async.wait_all;\n" ::: "memory");
}

DEV_FUNCTION float dev_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEV_FUNCTION float dev_log2(float x)
{
    return __log2f(x);
}

/* Two floats as bf16, round to nearest even; `low` in the low half. */
DEV_FUNCTION uint32_t dev_bf16x2(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

#endif
