/* A block of CUDA threads on one CPU thread, for tests: the kernels' own source runs where there
 * is no GPU.
 *
 * Every CUDA thread is a fiber with its own stack. A fiber runs until it meets a barrier or a
 * warp collective, then the next one runs, in an order the test chooses; blocks run one after the
 * other. What the hardware would leave to chance is made to hurt: shared memory is filled with
 * NaN before each block and ends at an unmapped page, asynchronous copies happen as early or as
 * late as they may, and lanes that wait on different collectives, or for a thread that has left,
 * end the run with a report instead of a hang.
 *
 * It cannot show weak-memory races, bank conflicts, register pressure or launch limits. One
 * machine per OS thread. */
#ifndef PD_GPU_SIMT_SIMT_H
#define PD_GPU_SIMT_SIMT_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIMT_WARP 32
#define SIMT_THREADS_MAX 256
#define SIMT_SHARED_MAX (128u * 1024)

/* In which order runnable threads get their turn, and when asynchronous copies take place. */
enum simt_order {
    SIMT_ASCENDING,  /* copies at the wait: as late as allowed */
    SIMT_DESCENDING, /* copies at once: as early as allowed */
    SIMT_RANDOM,     /* both by the seed, another order in every round */
};

struct simt_launch {
    uint32_t grid_x, grid_y, threads, shared_bytes;
    uint32_t block_first, block_count; /* run only these of grid_x; block_count 0: all */
};

struct simt;
/* Stacks and shared memory. NULL: out of memory. */
struct simt *simt_new(void);
void simt_free(struct simt *simt); /* NULL is allowed */
void simt_set_order(struct simt *simt, enum simt_order order, uint64_t seed);

/* Runs entry(argument) in every thread of every block. PD_EINVAL: a shape the machine does not
 * have (threads not a multiple of 32, too much shared memory). PD_EDEVICE SIMT_DIVERGED,
 * SIMT_MISALIGNED, SIMT_OUTSIDE: the kernel did what a GPU does not define; error says which
 * threads, and at which lines. */
int simt_run(struct simt *simt, const struct simt_launch *launch, void (*entry)(const void *),
             const void *argument, struct pd_error *error) PD_MUST_CHECK;

/* ---- what kernels call (device_simt.h gives these their device names) ---- */
uint32_t simt_thread(void);
uint32_t simt_block_x(void);
uint32_t simt_block_y(void);
uint32_t simt_grid_x(void);
void *simt_shared(void);
void simt_barrier(int line);
void simt_warp_sync(int line);
float simt_shfl_xor(float value, uint32_t mask, int line);
/* d += a * b: m16n8k16, bf16 operands in the fragment layout of mma.sync, fp32 sums. */
void simt_mma(float d[4], const uint32_t a[4], const uint32_t b[2], int line);
/* Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8. */
void simt_ldmatrix(uint32_t r[4], const void *row, int transposed, int line);
/* 16 bytes from global to shared memory, or 16 zero bytes where !inside; done at the latest when
 * simt_copy_wait returns, for the calling thread alone. */
void simt_copy16(void *shared, const void *global, int inside);
void simt_copy_wait(void);

#ifdef __cplusplus
}
#endif

#endif
