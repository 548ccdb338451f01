// The CUDA backend: pinned staging, one stream for copies, one for kernels, two batches in flight.
//
//   submit:  host arrays -> pinned slot -> device slot -> event          on the stream `copies`
//            event -> probe -> kinds -> pinned -> event                  on the stream `kernels`
//   collect: wait for the slot's last event, or the kinds into the caller's
//
// While the kernels of one batch run, the copies of the next one do. The values and sums of a
// probe are shared by the slots, since the kernels of two batches follow one another on one
// stream. The thread that makes a backend owns the CUDA context; no CUDA call happens before.
// cudart is linked statically, so the binary starts where there is no driver: then the first call
// says so and the CPU is used. Never exits, never asserts on what the device returns; an error is
// returned and the validator retires the backend.
#include "gpu/backend.h"
#include "gpu/launch.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// One batch on its way: pinned and device copies of the same block,
//   | segment_ids [T] | positions [T] | cu_seqlens [S+1] | used [S] |   all int32
struct cuda_slot {
    int32_t *pinned, *device;
    uint8_t *pinned_kinds, *device_kinds;
    uint32_t tokens;
    cudaEvent_t copied, done;
};

struct cuda_backend {
    struct pd_backend base; // first: the table is the backend
    cudaStream_t copies, kernels;
    struct cuda_slot slots[PD_VALIDATOR_DEPTH];
    void *workspace;
};

static int check(cudaError_t status, const char *what, struct pd_error *error)
{
    if (status == cudaSuccess)
        return 0;
    cudaGetLastError(); // not to be met again by the next call
    return pd_error_set(error, PD_EDEVICE, "CUDA_FAILED", "cuda: %s: %s (%d)", what,
                        cudaGetErrorString(status), (int)status);
}

static uint64_t block_ints(const struct pd_validator_limits *limits)
{
    return 2 * (uint64_t)limits->tokens_max + 2 * (uint64_t)limits->segments_max + 1;
}

static void cuda_free(struct pd_backend *base)
{
    struct cuda_backend *self = (struct cuda_backend *)base;
    if (self->copies)
        cudaStreamSynchronize(self->copies);
    if (self->kernels)
        cudaStreamSynchronize(self->kernels);
    for (int i = 0; i < PD_VALIDATOR_DEPTH; i++) {
        struct cuda_slot *slot = &self->slots[i];
        cudaFreeHost(slot->pinned);
        cudaFreeHost(slot->pinned_kinds);
        cudaFree(slot->device);
        cudaFree(slot->device_kinds);
        if (slot->copied)
            cudaEventDestroy(slot->copied);
        if (slot->done)
            cudaEventDestroy(slot->done);
    }
    cudaFree(self->workspace);
    if (self->copies)
        cudaStreamDestroy(self->copies);
    if (self->kernels)
        cudaStreamDestroy(self->kernels);
    cudaGetLastError();
    free(self);
}

// Copies the batch into the slot's pinned block and from there to the device, on the copy stream.
static cudaError_t upload(struct cuda_backend *self, struct cuda_slot *slot,
                          const struct pd_probe_batch *batch, const int32_t *positions)
{
    size_t tokens = slot->tokens, segments = batch->segment_count;
    int32_t *at = slot->pinned;
    memcpy(at, batch->segment_ids, tokens * 4);
    memcpy(at + tokens, positions, tokens * 4);
    memcpy(at + 2 * tokens, batch->cu_seqlens, (segments + 1) * 4);
    for (uint32_t i = 0; i < segments; i++)
        at[2 * tokens + segments + 1 + i] = pd_probe_used_of(batch, i);
    cudaError_t status = cudaMemcpyAsync(slot->device, at, (2 * tokens + 2 * segments + 1) * 4,
                                         cudaMemcpyHostToDevice, self->copies);
    return status != cudaSuccess ? status : cudaEventRecord(slot->copied, self->copies);
}

static cudaError_t download(struct cuda_backend *self, struct cuda_slot *slot)
{
    cudaError_t status = cudaMemcpyAsync(slot->pinned_kinds, slot->device_kinds, slot->tokens,
                                         cudaMemcpyDeviceToHost, self->kernels);
    return status != cudaSuccess ? status : cudaEventRecord(slot->done, self->kernels);
}

static int cuda_submit(struct pd_backend *base, uint32_t index, const struct pd_probe_batch *batch,
                       const int32_t *positions, struct pd_error *error)
{
    struct cuda_backend *self = (struct cuda_backend *)base;
    struct cuda_slot *slot = &self->slots[index];
    slot->tokens = batch->rows * batch->width;
    int rc = check(upload(self, slot, batch, positions), "copy to the device", error);
    if (rc == 0)
        rc = check(cudaStreamWaitEvent(self->kernels, slot->copied, 0), "wait for the copy", error);
    if (rc != 0)
        return rc;
    struct pd_probe_launch probe = {};
    probe.segment_ids = slot->device;
    probe.positions = slot->device + slot->tokens;
    probe.cu_seqlens = slot->device + 2 * (size_t)slot->tokens;
    probe.used = probe.cu_seqlens + batch->segment_count + 1;
    probe.rows = batch->rows;
    probe.width = batch->width;
    probe.segment_count = batch->segment_count;
    probe.causal = batch->causal;
    probe.workspace = self->workspace;
    probe.kinds = slot->device_kinds;
    rc = pd_probe_launch(&probe, self->kernels, error);
    return rc ? rc : check(download(self, slot), "copy from the device", error);
}

static int cuda_collect(struct pd_backend *base, uint32_t index, uint8_t *kinds,
                        struct pd_error *error)
{
    struct cuda_slot *slot = &((struct cuda_backend *)base)->slots[index];
    int rc = check(cudaEventSynchronize(slot->done), "probe", error);
    for (uint32_t t = 0; rc == 0 && t < slot->tokens; t++)
        kinds[t] |= slot->pinned_kinds[t];
    return rc;
}

// ---- one attention over host arrays, for the self-test ----

struct staged {
    void *device;
    size_t bytes;
};

static int stage(struct staged *to, const void *host, size_t bytes, struct pd_error *error)
{
    to->bytes = bytes;
    int rc = host ? check(cudaMalloc(&to->device, bytes), "allocate", error) : 0;
    return rc || !host ? rc
                       : check(cudaMemcpy(to->device, host, bytes, cudaMemcpyHostToDevice),
                               "copy to "
                               "the device",
                               error);
}

static int fetch(const struct staged *from, void *host, struct pd_error *error)
{
    return host ? check(cudaMemcpy(host, from->device, from->bytes, cudaMemcpyDeviceToHost),
                        "attention", error)
                : 0;
}

static size_t array_bytes(const struct pd_attention *a, int64_t stride, uint32_t heads)
{
    size_t elements = (size_t)(a->tokens - 1) * (size_t)stride + (size_t)heads * a->head_dim;
    return elements * (a->dtype == PD_ATTENTION_F32 ? 4 : 2);
}

enum { Q, K, V, OUT, LSE, SUMS, ROW_SUM, CU, USED, ARRAYS };

static int stage_all(const struct pd_attention *a, struct staged *s, struct pd_error *error)
{
    size_t rows = (size_t)a->tokens * a->heads;
    const struct {
        const void *host;
        size_t bytes;
    } arrays[ARRAYS] = {
        {a->q, array_bytes(a, a->q_stride, a->heads)},
        {a->k, array_bytes(a, a->k_stride, a->heads_kv)},
        {a->v, array_bytes(a, a->v_stride, a->heads_kv)},
        {a->out, array_bytes(a, a->out_stride, a->heads)},
        {a->lse, rows * 4},
        {a->sums, rows * a->head_dim * 4},
        {a->row_sum, rows * 4},
        {a->cu_seqlens, ((size_t)a->segment_count + 1) * 4},
        {a->seq_used, (size_t)a->segment_count * 4},
    };
    int rc = 0;
    for (int i = 0; rc == 0 && i < ARRAYS; i++)
        rc = stage(&s[i], arrays[i].host, arrays[i].bytes, error);
    return rc;
}

static int cuda_attention(struct pd_backend *base, const struct pd_attention *a,
                          struct pd_error *error)
{
    struct cuda_backend *self = (struct cuda_backend *)base;
    struct staged s[ARRAYS] = {};
    struct pd_attention on_device = *a;
    int rc = stage_all(a, s, error);
    on_device.q = s[Q].device;
    on_device.k = s[K].device;
    on_device.v = s[V].device;
    on_device.out = s[OUT].device;
    on_device.lse = (float *)s[LSE].device;
    on_device.sums = (int32_t *)s[SUMS].device;
    on_device.row_sum = (int32_t *)s[ROW_SUM].device;
    on_device.cu_seqlens = (const int32_t *)s[CU].device;
    on_device.seq_used = (const int32_t *)s[USED].device;
    if (rc == 0)
        rc = pd_attention_launch(&on_device, self->kernels, error);
    if (rc == 0)
        rc = check(cudaStreamSynchronize(self->kernels), "attention", error);
    void *const hosts[] = {a->out, a->lse, a->sums, a->row_sum};
    for (int i = 0; rc == 0 && i < 4; i++)
        rc = fetch(&s[OUT + i], hosts[i], error);
    for (int i = 0; i < ARRAYS; i++)
        cudaFree(s[i].device);
    return rc;
}

// ---- life ----

// Is there a device these kernels run on? PD_EUNAVAIL says why not.
static int find_device(struct cuda_backend *self, struct pd_error *error)
{
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess || count == 0) {
        cudaGetLastError();
        return pd_error_set(
            error, PD_EUNAVAIL, "CUDA_ABSENT",
            "cuda: no usable device: %s (%d); the driver is absent or older than this "
            "build's CUDA %d.%d, or no GPU is visible",
            cudaGetErrorString(status), (int)status, CUDART_VERSION / 1000,
            CUDART_VERSION % 1000 / 10);
    }
    cudaDeviceProp device;
    int rc = check(cudaGetDeviceProperties(&device, 0), "device properties", error);
    if (rc != 0)
        return rc;
    if (device.major < 8)
        return pd_error_set(error, PD_EUNAVAIL, "CUDA_ABSENT",
                            "cuda: %s is sm_%d%d; the kernels need sm_80 or later", device.name,
                            device.major, device.minor);
    snprintf(self->base.device, sizeof(self->base.device), "%.60s (sm_%d%d)", device.name,
             device.major, device.minor);
    cudaSetDeviceFlags(
        cudaDeviceScheduleBlockingSync); // else waiting spins; a context that exists keeps its way
    cudaGetLastError();
    return check(cudaSetDevice(0), "select the device", error);
}

static int make_slot(struct cuda_backend *self, struct cuda_slot *slot,
                     const struct pd_validator_limits *limits, struct pd_error *error)
{
    uint64_t bytes = block_ints(limits) * 4, kinds = limits->tokens_max;
    unsigned flags = cudaEventDisableTiming | cudaEventBlockingSync;
    int rc = check(cudaHostAlloc((void **)&slot->pinned, bytes, 0), "pinned memory", error);
    if (rc == 0)
        rc = check(cudaHostAlloc((void **)&slot->pinned_kinds, kinds, 0), "pinned memory", error);
    if (rc == 0)
        rc = check(cudaMalloc((void **)&slot->device, bytes), "device memory", error);
    if (rc == 0)
        rc = check(cudaMalloc((void **)&slot->device_kinds, kinds), "device memory", error);
    if (rc == 0)
        rc = check(cudaEventCreateWithFlags(&slot->copied, flags), "event", error);
    if (rc == 0)
        rc = check(cudaEventCreateWithFlags(&slot->done, flags), "event", error);
    self->base.memory.host_bytes += bytes + kinds;
    self->base.memory.device_bytes += bytes + kinds;
    return rc;
}

static int make_all(struct cuda_backend *self, const struct pd_validator_limits *limits,
                    struct pd_error *error)
{
    uint64_t workspace = pd_probe_workspace_bytes(limits->tokens_max);
    int rc = find_device(self, error);
    if (rc == 0)
        rc =
            check(cudaStreamCreateWithFlags(&self->copies, cudaStreamNonBlocking), "stream", error);
    if (rc == 0)
        rc = check(cudaStreamCreateWithFlags(&self->kernels, cudaStreamNonBlocking), "stream",
                   error);
    for (int i = 0; rc == 0 && i < PD_VALIDATOR_DEPTH; i++)
        rc = make_slot(self, &self->slots[i], limits, error);
    if (rc == 0)
        rc = check(cudaMalloc(&self->workspace, workspace), "device memory for the sums", error);
    self->base.memory.device_bytes += workspace;
    return rc;
}

extern "C" int pd_backend_cuda_new(const struct pd_validator_limits *limits,
                                   struct pd_backend **backend, struct pd_error *error)
{
    struct cuda_backend *self = (struct cuda_backend *)calloc(1, sizeof(*self));
    *backend = NULL;
    if (!self)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "cuda: no memory for the backend");
    self->base.name = "cuda";
    self->base.is_device = true;
    self->base.attention = cuda_attention;
    self->base.submit = cuda_submit;
    self->base.collect = cuda_collect;
    self->base.free = cuda_free;
    int rc = make_all(self, limits, error);
    if (rc != 0) {
        cuda_free(&self->base);
        return rc;
    }
    *backend = &self->base;
    return 0;
}
