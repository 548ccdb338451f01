/* The kernels' own source as a backend, run by the SIMT machine. For tests: slow. */
#ifndef PD_TESTS_GPU_BACKEND_SIMT_H
#define PD_TESTS_GPU_BACKEND_SIMT_H

#include "gpu/backend.h"
#include "gpu/simt/simt.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pd_backend *pd_backend_simt_new(void); /* NULL: out of memory */
/* Order of threads from now on. */
void pd_backend_simt_set_order(struct pd_backend *backend, enum simt_order order, uint64_t seed);
/* Runs only some of an attention's blocks: [first, first + count) of grid_x; count 0: all. */
void pd_backend_simt_set_blocks(struct pd_backend *backend, uint32_t first, uint32_t count);

/* Which tagged statement of the kernels is left out; 0 = none. Only where the source was
 * instrumented. */
extern uint32_t simt_mutant;

#ifdef __cplusplus
}
#endif

#endif
