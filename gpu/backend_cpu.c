/* The CPU backend: the probe as running sums (probe_cpu.c), the attention in fp32 tiles
 * (attention_cpu.c).
 *
 * submit only remembers the batch; the work is done by collect, on the caller's thread. Also what
 * a retired device is replaced by and what confirms a device's verdict. Holds no buffers. */
#include "gpu/backend.h"
#include "gpu/cpu_levels.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

struct cpu_backend {
    struct pd_backend base;
    struct {
        struct pd_probe_batch batch;
        const int32_t *positions;
    } slots[PD_VALIDATOR_DEPTH];
};

static int cpu_attention(struct pd_backend *self, const struct pd_attention *attention,
                         struct pd_error *error)
{
    (void)self;
    return pd_attention_cpu(attention, error);
}

static int cpu_submit(struct pd_backend *self, uint32_t slot, const struct pd_probe_batch *batch,
                      const int32_t *positions, struct pd_error *error)
{
    struct cpu_backend *cpu = PD_CONTAINER_OF(self, struct cpu_backend, base);
    (void)error;
    cpu->slots[slot].batch = *batch;
    cpu->slots[slot].positions = positions;
    return 0;
}

static int cpu_collect(struct pd_backend *self, uint32_t slot, uint8_t *kinds,
                       struct pd_error *error)
{
    struct cpu_backend *cpu = PD_CONTAINER_OF(self, struct cpu_backend, base);
    (void)error;
    pd_probe_cpu(&cpu->slots[slot].batch, cpu->slots[slot].positions, kinds);
    return 0;
}

static void cpu_free(struct pd_backend *self)
{
    free(PD_CONTAINER_OF(self, struct cpu_backend, base));
}

int pd_backend_cpu_new(struct pd_backend **backend, struct pd_error *error)
{
    struct cpu_backend *cpu = calloc(1, sizeof(*cpu));
    if (!cpu)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY",
                            "validator: no memory for the CPU backend");
    cpu->base = (struct pd_backend){
        .name = "cpu",
        .attention = cpu_attention,
        .submit = cpu_submit,
        .collect = cpu_collect,
        .free = cpu_free,
    };
    snprintf(cpu->base.device, sizeof(cpu->base.device), "%s", pd_cpu_level_name(pd_cpu_level()));
    *backend = &cpu->base;
    return 0;
}
