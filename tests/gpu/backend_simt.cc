/* The kernels' own source as a backend: what the CUDA backend does with launches, with calls of
 * the SIMT machine.
 *
 * KERNEL_ATTENTION and KERNEL_PROBE name the sources, so that the mutation test can put an
 * instrumented copy in their place. The probe's device arrays are allocated for each batch and
 * end at an unmapped page each, so that an index out of bounds is a crash and not luck. Test
 * code, owner's thread. */
#include "tests/gpu/backend_simt.h"
#include "tests/gpu/guarded.h"

#include "gpu/device_simt.h"

#ifndef KERNEL_ATTENTION
#define KERNEL_ATTENTION "gpu/attention_kernel.cuh"
#define KERNEL_PROBE "gpu/probe_kernel.cuh"
#endif
#include KERNEL_ATTENTION
#include KERNEL_PROBE

#include <stdlib.h>

uint32_t simt_mutant;

struct simt_backend {
    struct pd_backend base; /* first: the table is the backend */
    struct simt *machine;
    uint32_t block_first, block_count;
    struct {
        struct pd_probe_batch batch;
        const int32_t *positions;
    } slots[PD_VALIDATOR_DEPTH];
};

template <class Arguments, void (*KERNEL)(Arguments)>
static int launch(struct simt_backend *self, const struct simt_launch &shape,
                  const Arguments &arguments, struct pd_error *error)
{
    return simt_run(self->machine, &shape, dev_entry<Arguments, KERNEL>, &arguments, error);
}

static int run_attention(struct simt_backend *self, const struct pd_attention *a,
                         struct pd_error *error)
{
    struct dev_plan plan = {};
    int rc = dev_plan_attention(a, &plan, error);
    if (rc != 0)
        return rc;
    struct simt_launch shape = {plan.grid_x,       plan.grid_y,       DEV_THREADS,
                                plan.shared_bytes, self->block_first, self->block_count};
#define SIMT_LAUNCH(kernel) (launch<const struct pd_attention, kernel>(self, shape, *a, error))
#define SIMT_BARE(...) __VA_ARGS__
#define SIMT_KERNEL(kernel) SIMT_LAUNCH(SIMT_BARE kernel)
    return DEV_ATTENTION_KERNEL(a, SIMT_KERNEL);
}

static int simt_attention(struct pd_backend *base, const struct pd_attention *a,
                          struct pd_error *error)
{
    return run_attention((struct simt_backend *)base, a, error);
}

static int simt_submit(struct pd_backend *base, uint32_t slot, const struct pd_probe_batch *batch,
                       const int32_t *positions, struct pd_error *)
{
    struct simt_backend *self = (struct simt_backend *)base;
    self->slots[slot].batch = *batch;
    self->slots[slot].positions = positions;
    return 0;
}

/* One mask: the attention's sums, then the verdicts on them. */
static int probe_mask(struct simt_backend *self, struct pd_attention *a, struct dev_probe *p,
                      bool causal, struct pd_error *error)
{
    memset(a->sums, 0, (size_t)p->tokens * PD_CODE_WIDTH * 4);
    memset(a->row_sum, 0, (size_t)p->tokens * 4);
    a->causal = p->causal = causal;
    struct simt_launch judge = {dev_probe_blocks(p->tokens), 1, DEV_PROBE_THREADS, 0, 0, 0};
    int rc = run_attention(self, a, error);
    return rc ? rc : launch<const struct dev_probe, probe_judge>(self, judge, *p, error);
}

static int probe_batch(struct simt_backend *self, const struct pd_probe_batch *b,
                       const int32_t *positions, int32_t *used, uint8_t *kinds,
                       struct pd_error *error)
{
    uint32_t tokens = b->rows * b->width;
    size_t cells = (size_t)tokens * PD_CODE_WIDTH;
    struct guarded values = guarded_new(cells * 2), sums = guarded_new(cells * 4),
                   counts = guarded_new(tokens * 4u), verdicts = guarded_new(tokens),
                   zeros = guarded_new(PD_CODE_WIDTH * 2);
    struct dev_probe p = {b->segment_ids,
                          positions,
                          (uint16_t *)values.data,
                          (const uint32_t *)sums.data,
                          (const uint32_t *)counts.data,
                          verdicts.data,
                          tokens,
                          b->width,
                          true};
    struct pd_attention a = {};
    a.q = a.k = zeros.data;
    a.v = values.data;
    a.v_stride = a.out_stride = PD_CODE_WIDTH;
    a.sums = (int32_t *)sums.data;
    a.row_sum = (int32_t *)counts.data;
    a.cu_seqlens = b->cu_seqlens;
    a.segment_count = b->segment_count;
    a.tokens = tokens;
    a.heads = a.heads_kv = 1;
    a.head_dim = PD_CODE_WIDTH;
    a.dtype = PD_ATTENTION_BF16;
    a.scale = 1;
    memset(zeros.data, 0, PD_CODE_WIDTH * 2);
    memset(verdicts.data, 0, tokens);
    struct simt_launch encode = {
        dev_probe_blocks((uint64_t)tokens * PD_CODE_WIDTH / DEV_ENCODE_CHANNELS),
        1,
        DEV_PROBE_THREADS,
        0,
        0,
        0};
    int rc = launch<const struct dev_probe, probe_encode>(self, encode, p, error);
    if (rc == 0)
        rc = probe_mask(self, &a, &p, true, error);
    a.seq_used = used;
    if (rc == 0 && !b->causal)
        rc = probe_mask(self, &a, &p, false, error);
    for (uint32_t t = 0; t < tokens; t++)
        kinds[t] |= verdicts.data[t];
    guarded_free(&values);
    guarded_free(&sums);
    guarded_free(&counts);
    guarded_free(&verdicts);
    guarded_free(&zeros);
    return rc;
}

static int simt_collect(struct pd_backend *base, uint32_t slot, uint8_t *kinds,
                        struct pd_error *error)
{
    struct simt_backend *self = (struct simt_backend *)base;
    const struct pd_probe_batch *b = &self->slots[slot].batch;
    int32_t *used = (int32_t *)malloc(b->segment_count * sizeof(*used));
    if (!used)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "simt: no memory");
    for (uint32_t i = 0; i < b->segment_count; i++)
        used[i] = pd_probe_used_of(b, i);
    int rc = probe_batch(self, b, self->slots[slot].positions, used, kinds, error);
    free(used);
    return rc;
}

static void simt_backend_free(struct pd_backend *base)
{
    struct simt_backend *self = (struct simt_backend *)base;
    simt_free(self->machine);
    free(self);
}

struct pd_backend *pd_backend_simt_new(void)
{
    struct simt_backend *self = (struct simt_backend *)calloc(1, sizeof(*self));
    struct simt *machine = simt_new();
    if (!self || !machine) {
        simt_free(machine);
        free(self);
        return NULL;
    }
    self->base.name = "simt";
    self->base.is_device = true;
    self->base.attention = simt_attention;
    self->base.submit = simt_submit;
    self->base.collect = simt_collect;
    self->base.free = simt_backend_free;
    self->machine = machine;
    return &self->base;
}

void pd_backend_simt_set_order(struct pd_backend *base, enum simt_order order, uint64_t seed)
{
    simt_set_order(((struct simt_backend *)base)->machine, order, seed);
}

void pd_backend_simt_set_blocks(struct pd_backend *base, uint32_t first, uint32_t count)
{
    struct simt_backend *self = (struct simt_backend *)base;
    self->block_first = first;
    self->block_count = count;
}
