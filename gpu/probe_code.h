/* What the probe lets the kernel add up, and what the sums must be: one text for C, CUDA and the
 * CPU run of the kernel.
 *
 * A key k (batch row r, served segment id g, served position p) gives PD_CODE_WIDTH small
 * integers, all exact in bf16:
 *
 *   channel  0..23  +1 / -1   bit 0..23 of g
 *           24..47  +1 / -1   bit 0..23 of r
 *           48..51  0..255    byte 0..3 of p
 *              52   1 / 0     g > 0, a real token
 *           53..63  0         fill the head dimension
 *
 * Over n keys that all have g, a sign channel sums to n * (its sign); a key with another g
 * differs from it in at least one bit, and every differing key moves that bit's sum the same way,
 * so leaks cannot cancel. Under a causal mask the sums of two neighbouring tokens differ by
 * exactly one key, so that all prefixes together pin down every key and its position. Arithmetic
 * is modulo 2^32: |sum| <= 255 * n, and n itself is checked, so nothing that is judged has
 * wrapped for n <= 2^20. */
#ifndef PD_GPU_PROBE_CODE_H
#define PD_GPU_PROBE_CODE_H

#include "gpu/probe.h"

#ifdef __CUDACC__
#define PD_HOST_DEVICE __host__ __device__
#else
#define PD_HOST_DEVICE
#endif

enum {
    PD_CODE_SEGMENT = 0,
    PD_CODE_ROW = 24,
    PD_CODE_SIGNS = 24, /* sign channels of each of the two above */
    PD_CODE_POSITION = 48,
    PD_CODE_BYTES = 4,
    PD_CODE_REAL = 52,
    PD_CODE_CHANNELS = 53,
    PD_CODE_WIDTH = 64
};

/* +1 where the bit is 0, -1 where it is 1 (modulo 2^32). */
static inline PD_HOST_DEVICE uint32_t pd_code_sign(uint32_t value, uint32_t bit)
{
    return 1u - 2u * ((value >> bit) & 1u);
}

/* The value a key gives to a channel, as a signed integer in [-1, 255]. */
static inline PD_HOST_DEVICE int32_t pd_code_value(int32_t segment, uint32_t row, int32_t position,
                                                   uint32_t channel)
{
    if (channel < PD_CODE_ROW)
        return (int32_t)pd_code_sign((uint32_t)segment, channel);
    if (channel < PD_CODE_POSITION)
        return (int32_t)pd_code_sign(row, channel - PD_CODE_ROW);
    if (channel < PD_CODE_REAL)
        return (int32_t)(((uint32_t)position >> (8 * (channel - PD_CODE_POSITION))) & 255u);
    return channel == PD_CODE_REAL && segment > 0;
}

/* Sum of byte `byte` of 0, 1, ..., count - 1 (modulo 2^32): whole cycles of 256 values, then whole
 * values, then the rest. */
static inline PD_HOST_DEVICE uint32_t pd_code_position_sum(uint32_t count, uint32_t byte)
{
    uint64_t step = (uint64_t)1 << (8 * byte); /* how long one value of the byte lasts */
    uint64_t cycles = count / (step * 256), rest = count % (step * 256);
    uint64_t values = rest / step, last = rest % step;
    return (uint32_t)(cycles * step * (255 * 256 / 2) +
                      step * (values * (values - (values != 0)) / 2) + values * last);
}

/* A token that is judged. */
struct pd_code_token {
    int32_t segment, position; /* as served */
    int32_t owner; /* whose slot it lies in: its segment; for a gap the id at the slot's first
                                  token (`position` tokens back); 0 for padding */
    uint32_t row;
    bool causal;
};

/* The token at index t of a batch of this width. False: its id or position is one no batch can
 * hold. */
static inline PD_HOST_DEVICE bool pd_code_token_read(const int32_t *segment_ids,
                                                     const int32_t *positions, uint32_t width,
                                                     uint32_t t, bool causal,
                                                     struct pd_code_token *token)
{
    uint32_t column = t % width;
    int32_t segment = segment_ids[t], position = positions[t];
    if (segment < 0 || (uint32_t)segment > width || position < 0 || (uint32_t)position > column)
        return false;
    token->segment = segment;
    token->position = position;
    token->owner = segment > 0 ? segment : segment_ids[t - (uint32_t)position];
    token->row = t / width;
    token->causal = causal;
    return true;
}

/* Whether the keys counted in `count`, `real` of them real tokens, are the ones this token may see.
 *   causal: its position says how many; a gap sees its segment's real tokens, then gap positions;
 *   full:   at least its own prefix (the segment's last token then demands all); a gap sees exactly
 *           the real tokens of its slot. */
static inline PD_HOST_DEVICE bool pd_code_count_right(const struct pd_code_token *token,
                                                      uint32_t count, uint32_t real)
{
    uint32_t prefix = (uint32_t)token->position + 1;
    bool gap = token->segment == 0 && token->owner > 0;
    if (token->causal)
        return count == prefix && (!gap || (real > 0 && real < prefix));
    return gap ? real > 0 && real < prefix && count == real : count >= prefix;
}

/* Kinds of violation in the sums a token got. sums[PD_CODE_WIDTH], count keys. Written as plain
 * loops over channels, which a compiler turns into vector code. */
static inline PD_HOST_DEVICE uint32_t pd_code_judge(const struct pd_code_token *token,
                                                    const uint32_t *sums, uint32_t count)
{
    if (count == 0)
        return PD_PROBE_UNCOVERED;
    uint32_t real = sums[PD_CODE_REAL];
    bool gap = token->segment == 0 && token->owner > 0;
    uint32_t own =
        gap ? real : (token->owner > 0 ? count : 0); /* keys that must carry owner's id */
    uint32_t foreign = real ^ own, misplaced = 0;
    for (uint32_t i = 0; i < PD_CODE_SIGNS; i++)
        foreign |= sums[PD_CODE_SEGMENT + i] ^
                   (own * pd_code_sign((uint32_t)token->owner, i) + (count - own));
    for (uint32_t i = 0; i < PD_CODE_SIGNS; i++)
        foreign |= sums[PD_CODE_ROW + i] ^ (count * pd_code_sign(token->row, i));
    for (uint32_t i = 0; i < PD_CODE_BYTES; i++)
        misplaced |= sums[PD_CODE_POSITION + i] ^ pd_code_position_sum(count, i);
    uint32_t kinds = 0;
    if (foreign)
        kinds |= PD_PROBE_FOREIGN;
    if (!pd_code_count_right(token, count, real))
        kinds |= PD_PROBE_COUNT;
    if (misplaced)
        kinds |= PD_PROBE_POSITION;
    return kinds;
}

#endif
