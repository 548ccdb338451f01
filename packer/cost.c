/* Arithmetic of the cost model.
 *
 * Balance sorts packs by it, `packctl plan` predicts with it. Pure, any thread. Invariant: sums
 * saturate, they never wrap, so more work never reads as less. Measures nothing: which alpha and
 * beta a machine has is for its user to say. */
#include "packer/cost.h"

#include "base/check.h"

#define U128_MAX (~(unsigned __int128)0)
#define SAVING_LOWEST (-(int64_t)PD_PPM * 1000)

static unsigned __int128 add128(unsigned __int128 a, unsigned __int128 b)
{
    return a > U128_MAX - b ? U128_MAX : a + b;
}

static unsigned __int128 mul128(unsigned __int128 a, unsigned __int128 b)
{
    unsigned __int128 product;
    return __builtin_mul_overflow(a, b, &product) ? U128_MAX : product;
}

static uint64_t cut64(unsigned __int128 value)
{
    return value > UINT64_MAX ? UINT64_MAX : (uint64_t)value;
}

uint64_t pd_add_saturating(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

uint64_t pd_cost_segment(struct pd_cost cost, uint64_t tokens)
{
    struct pd_work work = {0};
    pd_work_add(&work, tokens, 1);
    return cut64(pd_work_cost(&work, cost));
}

void pd_work_add(struct pd_work *work, uint64_t tokens, uint64_t times)
{
    unsigned __int128 square = (unsigned __int128)tokens * tokens;
    work->positions = pd_add_saturating(work->positions, cut64((unsigned __int128)tokens * times));
    work->pairs = add128(work->pairs, mul128(square, times));
}

void pd_work_add_padding(struct pd_work *work, uint64_t tokens, uint64_t pad_segment)
{
    PD_CHECK(pad_segment > 0);
    pd_work_add(work, pad_segment, tokens / pad_segment);
    pd_work_add(work, tokens % pad_segment, 1);
}

unsigned __int128 pd_work_cost(const struct pd_work *work, struct pd_cost cost)
{
    return add128((unsigned __int128)work->positions * cost.alpha, mul128(work->pairs, cost.beta));
}

int64_t pd_saving_ppm(unsigned __int128 before, unsigned __int128 after)
{
    /* Both are scaled down together until a million times either fits. */
    while (before > U128_MAX / PD_PPM || after > U128_MAX / PD_PPM) {
        before >>= 1;
        after >>= 1;
    }
    if (before == 0)
        return 0;
    if (after <= before)
        return (int64_t)((before - after) * PD_PPM / before);
    unsigned __int128 loss = (after - before) * PD_PPM / before;
    return loss > (unsigned __int128)-SAVING_LOWEST ? SAVING_LOWEST : -(int64_t)loss;
}

struct pd_cost pd_cost_of_model(uint32_t hidden)
{
    PD_CHECK(hidden > 0 && hidden <= 1u << 29);
    return (struct pd_cost){.alpha = 6 * hidden, .beta = 1};
}

unsigned __int128 pd_work_operations(const struct pd_work *work, uint32_t hidden, uint32_t layers)
{
    unsigned __int128 unit = (unsigned __int128)4 * hidden * layers;
    return mul128(unit, pd_work_cost(work, pd_cost_of_model(hidden)));
}

uint32_t pd_cost_quadratic_ppm(struct pd_cost cost, uint64_t tokens)
{
    struct pd_work work = {0};
    pd_work_add(&work, tokens, 1);
    unsigned __int128 all = pd_work_cost(&work, cost);
    unsigned __int128 linear = pd_work_cost(&work, (struct pd_cost){.alpha = cost.alpha});
    return (uint32_t)pd_saving_ppm(all, linear);
}

enum pd_regime pd_cost_regime(struct pd_cost cost, uint64_t tokens)
{
    return (unsigned __int128)cost.beta * tokens > cost.alpha ? PD_REGIME_QUADRATIC
                                                              : PD_REGIME_LINEAR;
}

uint64_t pd_cost_crossover_tokens(struct pd_cost cost)
{
    return cost.beta == 0 ? UINT64_MAX : (uint64_t)cost.alpha / cost.beta + 1;
}

uint64_t pd_speedup_milli(int64_t time_cut_ppm)
{
    if (time_cut_ppm >= PD_PPM)
        return UINT64_MAX;
    uint64_t left = (uint64_t)((int64_t)PD_PPM - time_cut_ppm);
    return ((uint64_t)PD_PPM * 1000 + left / 2) / left;
}

uint32_t pd_view_kept_tokens(struct pd_view_drop drop, uint32_t tokens)
{
    uint64_t dropped = drop.tokens ? drop.tokens : (uint64_t)tokens * drop.share_ppm / PD_PPM;
    return dropped < tokens ? tokens - (uint32_t)dropped : 1;
}
