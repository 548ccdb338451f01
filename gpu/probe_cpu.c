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
 * The keys a segment begins with are mostly what they should be: of one id, of one row, at
 * positions 0, 1, 2, ... Of n such keys every sum is n times one value, or the sum of 0 to n - 1,
 * which are the closed forms themselves: each of these tokens would be judged right, and the walk
 * starts behind them with the sums they add up to. From the first key that differs, every key is
 * added and every token judged.
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

/* Keys that are looked at together: each has a lane of its own. */
enum { BLOCK = 64 };

/* Of `count` keys from `first` on, how many in front have the id of the first and the positions 0,
 * 1, 2, ... None where the id is one that no batch can hold. */
PD_CPU_BODY uint32_t run_of(const struct walk *walk, uint32_t first, uint32_t count)
{
    const int32_t *ids = walk->segment_ids + first, *positions = walk->positions + first;
    int32_t id = ids[0];
    uint32_t at = 0;
    if (id < 0 || (uint32_t)id > walk->width)
        return 0;
    for (; at + BLOCK <= count; at += BLOCK) {
        int32_t differs = 0;
        for (uint32_t i = 0; i < BLOCK; i++)
            differs |= (ids[at + i] ^ id) | (positions[at + i] ^ (int32_t)(at + i));
        if (differs)
            break;
    }
    while (at < count && ids[at] == id && positions[at] == (int32_t)at)
        at++;
    return at;
}

/* The sums of a run of `count` keys. */
PD_CPU_BODY void add_run(const struct walk *walk, uint32_t first, uint32_t count, uint32_t *sums)
{
    uint32_t segment = (uint32_t)walk->segment_ids[first], row = first / walk->width;
    for (uint32_t i = 0; i < PD_CODE_SIGNS; i++)
        sums[PD_CODE_SEGMENT + i] = count * pd_code_sign(segment, i);
    for (uint32_t i = 0; i < PD_CODE_SIGNS; i++)
        sums[PD_CODE_ROW + i] = count * pd_code_sign(row, i);
    for (uint32_t i = 0; i < PD_CODE_BYTES; i++)
        sums[PD_CODE_POSITION + i] = pd_code_position_sum(count, i);
    sums[PD_CODE_REAL] = segment > 0 ? count : 0;
}

/* The keys of [first, end) before its row ends. */
PD_CPU_BODY uint32_t in_row(const struct walk *walk, uint32_t first, uint32_t end)
{
    uint32_t row_end = (first / walk->width + 1) * walk->width;
    return (end < row_end ? end : row_end) - first;
}

/* Every token of [first, end), one or more, sees the keys from `first` to itself. */
PD_CPU_BODY void causal_segment(const struct walk *walk, uint32_t first, uint32_t end)
{
    uint32_t sums[PD_CODE_WIDTH] = {0}, run = run_of(walk, first, in_row(walk, first, end));
    if (first + run == end)
        return;
    add_run(walk, first, run, sums);
    for (uint32_t t = first + run; t < end; t++) {
        add_key(walk, t, t / walk->width, sums);
        judge_token(walk, t, true, sums, t - first + 1);
    }
}

/* Every token of [first, end), one or more, sees the keys [first, first + used). */
PD_CPU_BODY void full_segment(const struct walk *walk, uint32_t first, uint32_t end, uint32_t used)
{
    uint32_t sums[PD_CODE_WIDTH] = {0},
             run = run_of(walk, first, in_row(walk, first, first + used));
    add_run(walk, first, run, sums);
    for (uint32_t key = first + run; key < first + used; key++)
        add_key(walk, key, key / walk->width, sums);
    for (uint32_t t = run == used ? first + run : first; t < end; t++)
        judge_token(walk, t, false, sums, used);
}

PD_CPU_BODY void probe_segments(const struct walk *walk, const struct pd_probe_batch *batch)
{
    for (uint32_t i = 0; i < batch->segment_count; i++) {
        uint32_t first = (uint32_t)batch->cu_seqlens[i], end = (uint32_t)batch->cu_seqlens[i + 1];
        if (first == end)
            continue;
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
