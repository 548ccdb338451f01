/* First-fit- and best-fit-decreasing over a whole set, and what arithmetic allows.
 *
 * For `packctl plan` and the benchmark. Pure, any thread. Invariant: every item is in one pack and
 * no pack passes seq_len. Served feeds never come here: a whole set is what a stream does not
 * have. */
#include "packer/offline.h"

#include "packer/planner_bits.h"

#include <stdlib.h>

#define NONE UINT32_MAX
#define SEQ_LEN_MAX (1u << 20)
#define DUAL_K_MAX 20

/* Indices of the items, longest first, in input order where equal (a counting sort). NULL: no
 * memory. */
static uint32_t *sort_longest_first(const uint32_t *lengths, size_t count, uint32_t seq_len)
{
    uint32_t *order = malloc((count + 1) * sizeof *order);
    uint32_t *start = calloc((size_t)seq_len + 2, sizeof *start);
    if (order && start) {
        for (size_t i = 0; i < count; i++)
            start[seq_len - lengths[i] + 1]++;
        for (uint32_t k = 1; k <= seq_len; k++)
            start[k] += start[k - 1];
        for (size_t i = 0; i < count; i++)
            order[start[seq_len - lengths[i]]++] = (uint32_t)i;
    } else {
        free(order);
        order = NULL;
    }
    free(start);
    return order;
}

static void assign(uint32_t *pack_of, uint32_t item, uint32_t pack)
{
    if (pack_of)
        pack_of[item] = pack;
}

/* First fit: a tree over packs whose inner nodes hold the largest room below them. */
static int first_fit(const uint32_t *order, const uint32_t *lengths, size_t count, uint32_t seq_len,
                     uint32_t *pack_of, size_t *packs)
{
    size_t leaves = 1;
    while (leaves < count)
        leaves *= 2;
    uint32_t *room = malloc(2 * leaves * sizeof *room);
    if (!room)
        return PD_ENOMEM;
    for (size_t i = 0; i < 2 * leaves; i++)
        room[i] = seq_len;
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t length = lengths[order[i]];
        size_t at = 1;
        while (at < leaves)
            at = room[2 * at] >= length ? 2 * at : 2 * at + 1;
        assign(pack_of, order[i], (uint32_t)(at - leaves));
        used = at - leaves + 1 > used ? at - leaves + 1 : used;
        room[at] -= length;
        for (at /= 2; at > 0; at /= 2)
            room[at] = room[2 * at] > room[2 * at + 1] ? room[2 * at] : room[2 * at + 1];
    }
    free(room);
    *packs = used;
    return 0;
}

/* Best fit: packs by how much of them is used, each level a stack. */
struct levels {
    struct pd_bits present;
    uint32_t *top;  /* seq_len + 1 */
    uint32_t *next; /* per pack */
};

static uint32_t levels_pop(struct levels *levels, uint32_t used)
{
    uint32_t pack = levels->top[used];
    levels->top[used] = levels->next[pack];
    if (levels->top[used] == NONE)
        pd_bits_clear(&levels->present, used);
    return pack;
}

static void levels_push(struct levels *levels, uint32_t used, uint32_t pack)
{
    if (levels->top[used] == NONE)
        pd_bits_set(&levels->present, used);
    levels->next[pack] = levels->top[used];
    levels->top[used] = pack;
}

static void best_fit_all(struct levels *levels, const uint32_t *order, const uint32_t *lengths,
                         size_t count, uint32_t seq_len, uint32_t *pack_of, size_t *packs)
{
    uint32_t made = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t length = lengths[order[i]];
        uint32_t used = pd_bits_at_most(&levels->present, seq_len - length);
        uint32_t pack = used == PD_BITS_NONE ? made++ : levels_pop(levels, used);
        used = used == PD_BITS_NONE ? length : used + length;
        levels_push(levels, used, pack);
        assign(pack_of, order[i], pack);
    }
    *packs = made;
}

static int best_fit(const uint32_t *order, const uint32_t *lengths, size_t count, uint32_t seq_len,
                    uint32_t *pack_of, size_t *packs)
{
    struct levels levels = {.top = malloc(((size_t)seq_len + 1) * sizeof *levels.top),
                            .next = malloc((count + 1) * sizeof *levels.next)};
    bool ok = pd_bits_init(&levels.present, seq_len) && levels.top && levels.next;
    for (uint32_t k = 0; ok && k <= seq_len; k++)
        levels.top[k] = NONE;
    if (ok)
        best_fit_all(&levels, order, lengths, count, seq_len, pack_of, packs);
    pd_bits_fini(&levels.present);
    free(levels.top);
    free(levels.next);
    return ok ? 0 : PD_ENOMEM;
}

int pd_offline_pack(enum pd_offline how, const uint32_t *lengths, size_t count, uint32_t seq_len,
                    uint32_t *pack_of, size_t *packs)
{
    *packs = 0;
    if (seq_len == 0 || seq_len > SEQ_LEN_MAX || count >= INT32_MAX)
        return PD_EINVAL;
    for (size_t i = 0; i < count; i++)
        if (lengths[i] == 0 || lengths[i] > seq_len)
            return PD_EINVAL;
    if (count == 0)
        return 0;
    uint32_t *order = sort_longest_first(lengths, count, seq_len);
    if (!order)
        return PD_ENOMEM;
    int rc = how == PD_OFFLINE_FFD ? first_fit(order, lengths, count, seq_len, pack_of, packs)
                                   : best_fit(order, lengths, count, seq_len, pack_of, packs);
    free(order);
    return rc;
}

/* Sum over items of u_k, in units of 1 / (seq_len * k): x where (k + 1) x is a whole number of
 * packs, else floor((k + 1) x) / k. */
static uint64_t dual_sum(const uint32_t *lengths, size_t count, uint32_t seq_len, uint32_t k)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t scaled = (uint64_t)(k + 1) * lengths[i];
        sum += scaled % seq_len == 0 ? (uint64_t)lengths[i] * k : scaled / seq_len * seq_len;
    }
    return sum;
}

static uint64_t sum_of(const uint32_t *lengths, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += lengths[i];
    return sum;
}

size_t pd_offline_lower_bound(const uint32_t *lengths, size_t count, uint32_t seq_len)
{
    uint64_t best = (sum_of(lengths, count) + seq_len - 1) / seq_len;
    for (uint32_t k = 1; k <= DUAL_K_MAX; k++) {
        uint64_t unit = (uint64_t)seq_len * k;
        uint64_t bound = (dual_sum(lengths, count, seq_len, k) + unit - 1) / unit;
        best = bound > best ? bound : best;
    }
    return best;
}

/* Standard deviation below mean / 16. */
static bool hardly_vary(const uint32_t *lengths, size_t count, uint64_t sum)
{
    unsigned __int128 squares = 0;
    for (size_t i = 0; i < count; i++)
        squares += (uint64_t)lengths[i] * lengths[i];
    unsigned __int128 square = (unsigned __int128)sum * sum;
    return (squares * count - square) * 256 < square;
}

uint32_t pd_offline_ceiling_ppm(const uint32_t *lengths, size_t count, uint32_t seq_len)
{
    uint64_t sum = sum_of(lengths, count);
    if (count == 0 || sum == 0)
        return 1000000;
    uint64_t bound = pd_offline_lower_bound(lengths, count, seq_len);
    uint64_t ppm = (uint64_t)((unsigned __int128)sum * 1000000 / bound / seq_len);
    if (hardly_vary(lengths, count, sum)) {
        uint64_t fit = (unsigned __int128)seq_len * count / sum;
        uint64_t even = (uint64_t)((unsigned __int128)fit * sum * 1000000 / count / seq_len);
        ppm = even < ppm ? even : ppm;
    }
    return ppm > 1000000 ? 1000000 : (uint32_t)ppm;
}
