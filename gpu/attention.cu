// Launchers of the kernels: picks the instance, sets the grid, checks the launch.
//
// Compiled by nvcc alone (tools/cuda.bzl, device_check.sh); the kernels are in
// attention_kernel.cuh and probe_kernel.cuh. Any thread that owns the stream's context. Allocates
// nothing, never waits.
#include "gpu/launch.h"

#include "gpu/device_cuda.cuh"

#include "gpu/attention_kernel.cuh"
#include "gpu/probe_kernel.cuh"

#include <cuda_runtime.h>

static int check(cudaError_t status, const char *what, struct pd_error *error)
{
    if (status == cudaSuccess)
        return 0;
    return pd_error_set(error, PD_EDEVICE, "CUDA_FAILED", "%s: %s (%d)", what,
                        cudaGetErrorString(status), (int)status);
}

template <class Arguments>
static int launch(void (*kernel)(Arguments), dim3 grid, uint32_t threads, uint32_t shared_bytes,
                  void *stream, Arguments arguments, struct pd_error *error)
{
    void *parameters[] = {&arguments};
    int rc = 0;
    if (shared_bytes > 48 * 1024) // more than every kernel gets unasked
        rc = check(cudaFuncSetAttribute((const void *)kernel,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        (int)shared_bytes),
                   "shared memory", error);
    return rc ? rc
              : check(cudaLaunchKernel((const void *)kernel, grid, dim3(threads), parameters,
                                       shared_bytes, (cudaStream_t)stream),
                      "launch", error);
}

extern "C" int pd_attention_launch(const struct pd_attention *a, void *stream,
                                   struct pd_error *error)
{
    struct dev_plan plan = {};
    int rc = dev_plan_attention(a, &plan, error);
    if (rc != 0)
        return rc;
    dim3 grid(plan.grid_x, plan.grid_y);
#define CUDA_LAUNCH(kernel) \
    launch<struct pd_attention>(kernel, grid, DEV_THREADS, plan.shared_bytes, stream, *a, error)
    return DEV_ATTENTION_KERNEL(a, CUDA_LAUNCH);
}

enum { ZERO_BYTES = 256 };

extern "C" uint64_t pd_probe_workspace_bytes(uint32_t tokens)
{
    return ZERO_BYTES + (uint64_t)tokens * (PD_CODE_WIDTH * 2 + PD_CODE_WIDTH * 4 + 4);
}

// One mask: sums from zero, then the verdicts on them.
static int probe_mask(struct pd_attention *a, struct dev_probe *p, bool causal, void *stream,
                      struct pd_error *error)
{
    size_t bytes = (size_t)p->tokens * (PD_CODE_WIDTH + 1) * 4; // sums and counts are neighbours
    int rc = check(cudaMemsetAsync(a->sums, 0, bytes, (cudaStream_t)stream), "clear sums", error);
    a->causal = p->causal = causal;
    if (rc == 0)
        rc = pd_attention_launch(a, stream, error);
    return rc ? rc
              : launch<struct dev_probe>(probe_judge, dim3(dev_probe_blocks(p->tokens)),
                                         DEV_PROBE_THREADS, 0, stream, *p, error);
}

extern "C" int pd_probe_launch(const struct pd_probe_launch *probe, void *stream,
                               struct pd_error *error)
{
    uint32_t tokens = probe->rows * probe->width;
    unsigned char *at = (unsigned char *)probe->workspace;
    uint16_t *values = (uint16_t *)(at + ZERO_BYTES);
    int32_t *sums = (int32_t *)(values + (size_t)tokens * PD_CODE_WIDTH);
    int32_t *counts = sums + (size_t)tokens * PD_CODE_WIDTH;
    struct dev_probe p = {probe->segment_ids,
                          probe->positions,
                          values,
                          (const uint32_t *)sums,
                          (const uint32_t *)counts,
                          probe->kinds,
                          tokens,
                          probe->width,
                          true};
    struct pd_attention a = {};
    a.q = a.k = at; // one row of zeros for every token: stride 0
    a.v = values;
    a.v_stride = PD_CODE_WIDTH;
    a.sums = sums;
    a.row_sum = counts;
    a.cu_seqlens = probe->cu_seqlens;
    a.segment_count = probe->segment_count;
    a.tokens = tokens;
    a.heads = a.heads_kv = 1;
    a.head_dim = PD_CODE_WIDTH;
    a.dtype = PD_ATTENTION_BF16;
    a.scale = 1;
    uint64_t items = (uint64_t)tokens * (PD_CODE_WIDTH / DEV_ENCODE_CHANNELS);
    int rc = check(cudaMemsetAsync(at, 0, ZERO_BYTES, (cudaStream_t)stream), "clear", error);
    if (rc == 0)
        rc = check(cudaMemsetAsync(probe->kinds, 0, tokens, (cudaStream_t)stream), "clear", error);
    if (rc == 0)
        rc = launch<struct dev_probe>(probe_encode, dim3(dev_probe_blocks(items)),
                                      DEV_PROBE_THREADS, 0, stream, p, error);
    if (rc == 0)
        rc = probe_mask(&a, &p, true, stream, error);
    a.seq_used = probe->used;
    return rc || probe->causal ? rc : probe_mask(&a, &p, false, stream, error);
}
