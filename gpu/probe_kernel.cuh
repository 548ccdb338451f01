/* The probe on a device: values out of the served arrays before the attention, verdicts out of
 * its sums after it.
 *
 *   encode -> attention_bf16<64, ..., SUMS> over the served cu_seqlens with zero logits -> judge
 *
 * Both kernels are one thread per item and share probe_code.h with the CPU's probe. Included like
 * attention_kernel.cuh, with the same tags. The host has admitted the batch: no index is checked
 * twice here. */
#ifndef PD_GPU_PROBE_KERNEL_CUH
#define PD_GPU_PROBE_KERNEL_CUH

#include "gpu/probe_code.h"

struct dev_probe {
    const int32_t *segment_ids, *positions; /* [tokens] */
    uint16_t *values;                       /* [tokens, PD_CODE_WIDTH] bf16 */
    const uint32_t *sums;                   /* [tokens, PD_CODE_WIDTH] */
    const uint32_t *counts;                 /* [tokens] */
    uint8_t *kinds;                         /* [tokens], or-ed into */
    uint32_t tokens, width;
    bool causal;
};

enum { DEV_PROBE_THREADS = 128, DEV_ENCODE_CHANNELS = 8 /* 16 bytes a thread */ };

/* Blocks for `items` threads. */
static inline uint32_t dev_probe_blocks(uint64_t items)
{
    return (uint32_t)((items + DEV_PROBE_THREADS - 1) / DEV_PROBE_THREADS);
}

DEV_KERNEL(DEV_PROBE_THREADS) probe_encode(const struct dev_probe p)
{
    uint64_t item = (uint64_t)dev_block_x() * DEV_PROBE_THREADS + dev_thread();
    uint64_t token = item / (PD_CODE_WIDTH / DEV_ENCODE_CHANNELS);
    if (token >= p.tokens)
        return; // [bound]
    uint32_t channel = item % (PD_CODE_WIDTH / DEV_ENCODE_CHANNELS) * DEV_ENCODE_CHANNELS;
    uint32_t row = (uint32_t)token / p.width;
    int32_t segment = p.segment_ids[token], position = p.positions[token];
    uint32_t *to = (uint32_t *)(p.values + token * PD_CODE_WIDTH + channel);
    for (uint32_t i = 0; i < DEV_ENCODE_CHANNELS; i += 2)
        to[i / 2] = dev_bf16x2((float)pd_code_value(segment, row, position, channel + i),
                               (float)pd_code_value(segment, row, position, channel + i + 1));
}

DEV_KERNEL(DEV_PROBE_THREADS) probe_judge(const struct dev_probe p)
{
    uint64_t t = (uint64_t)dev_block_x() * DEV_PROBE_THREADS + dev_thread();
    struct pd_code_token token;
    if (t >= p.tokens)
        return; // [bound]
    if (!pd_code_token_read(p.segment_ids, p.positions, p.width, (uint32_t)t, p.causal, &token))
        p.kinds[t] |= PD_PROBE_RANGE;
    else
        p.kinds[t] |= (uint8_t)pd_code_judge(&token, p.sums + t * PD_CODE_WIDTH, p.counts[t]);
}

#endif
