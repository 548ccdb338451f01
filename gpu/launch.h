/* Launchers: kernels on a device, for the CUDA backend and the device check. Plain C, no CUDA
 * types.
 *
 * Pointers are device memory, `stream` is a cudaStream_t. Nothing is allocated, nothing waits.
 * PD_EINVAL ATTENTION_SHAPE: a shape the kernels do not have (attention_kernel.cuh lists the
 * rules). PD_EDEVICE CUDA_FAILED: the launch was refused; errors of the kernels themselves show
 * at the next wait. */
#ifndef PD_GPU_LAUNCH_H
#define PD_GPU_LAUNCH_H

#include "gpu/attention.h"
#include "gpu/probe.h"

#ifdef __cplusplus
extern "C" {
#endif

int pd_attention_launch(const struct pd_attention *attention, void *stream,
                        struct pd_error *error) PD_MUST_CHECK;

/* The probe of an admitted batch: encode, attention, judge; with a full mask the last two twice. */
struct pd_probe_launch {
    const int32_t *segment_ids, *positions; /* [rows, width] */
    const int32_t *cu_seqlens;              /* [segment_count + 1] */
    const int32_t *used; /* [segment_count] pd_probe_used_of; read with a full mask only */
    uint32_t rows, width, segment_count;
    bool causal;
    void *workspace; /* pd_probe_workspace_bytes(rows * width), 256-byte aligned */
    uint8_t *kinds;  /* [rows * width], written */
};

/*   | 256 zero bytes: q and k | values [T, 64] bf16 | sums [T, 64] int32 | counts [T] int32 |   */
uint64_t pd_probe_workspace_bytes(uint32_t tokens);
int pd_probe_launch(const struct pd_probe_launch *probe, void *stream,
                    struct pd_error *error) PD_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
