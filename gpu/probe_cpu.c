/* The probe on the CPU: attention with zero logits, evaluated as running sums.
 *
 * With every logit 0 each allowed key weighs exp(0) = 1, so the unnormalised output of token t is
 * the plain sum of the values over the set of keys cu_seqlens allows it: keys [cu[i], t] of its
 * segment i under a causal mask, [cu[i], cu[i] + used[i]) under a full one. The sets of a causal
 * segment are nested, each one key larger than the one before; adding that key's value to the
 * running sum is therefore the same masked sum a kernel computes key by key, in exact integers,
 * at O(T) instead of O(sum n^2). Nothing is assumed about what is verified: the sets come from
 * cu_seqlens alone, the values from segment_ids and positions alone, and each token's sums are
 * then judged against the closed form its own id and position demand. The self-test compares
 * these sums with the tiled attention of attention_cpu.c and the kernel's, bit for bit.
 *
 * Runs on the validate thread; no state, no allocation. Relies on pd_probe_admit: cu_seqlens
 * ascending within [0, T]. Does not look at seq_lens under a causal mask (pd_probe_check_lengths
 * does). */
#include "gpu/cpu_levels.h"
#include "gpu/probe_code.h"

struct walk {
    const int32_t *segment_ids, *positions;
    uint32_t width;
    uint8_t *kinds;
};

/* Adds one key's value to the sums: the innermost step of both masks. */
PD_CPU_BODY void add_key(const struct walk *walk, uint32_t key, uint32_t row, uint32_t *sums)
{
    uint32_t segment = (uint32_t)walk->segment_ids[key], position = (uint32_t)walk->positions[key];
    for (uint32_t i = 0; i < PD_CODE_SIGNS; i++)
        sums[PD_CODE_SEGMENT + i] += pd_code_sign(segment, i);
    for (uint32_t i = 0; i < PD_CODE_SIGNS; i++)
        sums[PD_CODE_ROW + i] += pd_code_sign(row, i);
    for (uint32_t i = 0; i < PD_CODE_BYTES; i++)
        sums[PD_CODE_POSITION + i] += (position >> (8 * i)) & 255u;
    sums[PD_CODE_REAL] += (int32_t)segment > 0;
}

PD_CPU_BODY void judge_token(const struct walk *walk, uint32_t t, bool causal, const uint32_t *sums,
                             uint32_t count)
{
    struct pd_code_token token;
    bool sound =
        pd_code_token_read(walk->segment_ids, walk->positions, walk->width, t, causal, &token);
    walk->kinds[t] |= (uint8_t)(sound ? pd_code_judge(&token, sums, count) : PD_PROBE_RANGE);
}

/* Every token of [first, end) sees the keys from `first` to itself. */
PD_CPU_BODY void causal_segment(const struct walk *walk, uint32_t first, uint32_t end)
{
    uint32_t sums[PD_CODE_WIDTH] = {0};
    uint32_t row = first / walk->width, row_end = (row + 1) * walk->width;
    for (uint32_t t = first; t < end; t++) {
        if (t == row_end) {
            row++;
            row_end += walk->width;
        }
        add_key(walk, t, row, sums);
        judge_token(walk, t, true, sums, t - first + 1);
    }
}

/* Every token of [first, end) sees the keys [first, first + used). */
PD_CPU_BODY void full_segment(const struct walk *walk, uint32_t first, uint32_t end, uint32_t used)
{
    uint32_t sums[PD_CODE_WIDTH] = {0};
    for (uint32_t key = first; key < first + used; key++)
        add_key(walk, key, key / walk->width, sums);
    for (uint32_t t = first; t < end; t++)
        judge_token(walk, t, false, sums, used);
}

PD_CPU_BODY void probe_segments(const struct walk *walk, const struct pd_probe_batch *batch)
{
    for (uint32_t i = 0; i < batch->segment_count; i++) {
        uint32_t first = (uint32_t)batch->cu_seqlens[i], end = (uint32_t)batch->cu_seqlens[i + 1];
        causal_segment(walk, first, end);
        if (!batch->causal)
            full_segment(walk, first, end, (uint32_t)pd_probe_used_of(batch, i));
    }
}

void pd_probe_cpu_segments(const struct walk *walk, const struct pd_probe_batch *batch);
PD_CPU_CLONES(pd_probe_cpu_segments, probe_segments,
              (const struct walk *walk, const struct pd_probe_batch *batch), (walk, batch))

void pd_probe_cpu(const struct pd_probe_batch *batch, const int32_t *positions, uint8_t *kinds)
{
    struct walk walk = {batch->segment_ids, positions, batch->width, kinds};
    uint32_t tokens = batch->rows * batch->width;
    for (uint32_t t = 0; t < (uint32_t)batch->cu_seqlens[0]; t++)
        kinds[t] |= PD_PROBE_UNCOVERED;
    for (uint32_t t = (uint32_t)batch->cu_seqlens[batch->segment_count]; t < tokens; t++)
        kinds[t] |= PD_PROBE_UNCOVERED;
    pd_probe_cpu_segments(&walk, batch);
}
