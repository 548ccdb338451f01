/* The packing strategies.
 *
 * Called once a pack, after the refill. Owner: the planner's thread. Invariant: a pack never passes
 * its caps (slots, segments, patches), and holds the oldest sample of the window, or that sample is
 * younger than the solver's age: nothing starves. It never looks outside the window.
 *
 * `exact` goes by the lengths of recent samples:
 *   hardly vary, 2 to 8 a pack   the solver: which sizes share a pack decides how many fit
 *   about 2 a pack               one of the oldest, then the largest that fits, and again: a large
 *                                sample must not meet two small ones
 *   all else                     body in order of arrival, then an exact finish by the largest fit
 *                                or a pair that fills the rest to the token */
#include "packer/planner_fit.h"

#include "base/check.h"

#define PAIR_TRIES 64
#define PAIR_TRIES_FEW \
    256 /* with less than four samples a pack: chances are fewer, and there is time */
#define PATCH_TRIES 64
#define SEEDS 64   /* oldest entries among which the one with the tightest partner starts a pack */
#define SEED_AGE 2 /* windows of arrivals after which the oldest goes first */

struct fit {
    const struct pd_rules *rules;
    struct pd_window *window;
    struct pd_pack *pack;
    struct pd_planner_stats *stats;
    uint32_t keys;              /* room left */
    uint64_t segments, patches; /* room left; more than there can be where there is no cap */
    int rc;
};

static void take(struct fit *fit, uint32_t slot)
{
    const struct pd_segment *segment = &fit->window->entries[slot].segment;
    uint32_t age = pd_window_age(fit->window, slot);
    if (age > fit->stats->age_max_samples)
        fit->stats->age_max_samples = age;
    fit->keys -= fit->window->nodes[slot].key;
    fit->segments--;
    fit->patches -= segment->patches;
    struct pd_pack *pack = fit->pack;
    if (pack->segment_count < pack->segment_capacity) { /* pd_pack_push without the call */
        pack->segments[pack->segment_count++] = *segment;
        pack->used_slots += segment->slot_tokens;
    } else if (fit->rc == 0) {
        fit->rc = pd_pack_push(pack, segment);
    }
    pd_window_remove(fit->window, slot);
}

static void count_pack(const struct pd_pack *pack, struct pd_planner_stats *stats)
{
    uint64_t samples = 0, tokens = 0;
    for (uint32_t i = 0; i < pack->segment_count; i++) {
        samples += pack->segments[i].part == 0;
        tokens += pack->segments[i].length_tokens;
    }
    stats->parts += pack->segment_count;
    stats->samples += samples;
    stats->used_slots += pack->used_slots;
    stats->real_tokens += tokens;
}

static bool patches_fit(const struct fit *fit, uint32_t slot)
{
    return fit->rules->patches_max == 0 ||
           fit->window->entries[slot].segment.patches <= fit->patches;
}

static bool fits(const struct fit *fit, uint32_t slot)
{
    return fit->window->nodes[slot].key <= fit->keys && fit->segments > 0 && patches_fit(fit, slot);
}

/* The oldest entry of the largest size <= key whose patches fit too. */
static uint32_t largest_at_most(const struct fit *fit, uint32_t key)
{
    for (uint32_t tries = 0; tries < PATCH_TRIES && key > 0; tries++) {
        key = pd_bits_at_most(&fit->window->sizes, key);
        if (key == PD_BITS_NONE)
            return PD_SLOT_NONE;
        uint32_t slot = pd_window_first(fit->window, key);
        if (patches_fit(fit, slot))
            return slot;
        key--;
    }
    return PD_SLOT_NONE;
}

/* Two different entries of sizes a and b that fit together. */
static bool take_pair(struct fit *fit, uint32_t a, uint32_t b)
{
    uint32_t first = pd_window_first(fit->window, a);
    uint32_t second =
        a == b ? fit->window->nodes[first].fifo_newer : pd_window_first(fit->window, b);
    if (second == PD_SLOT_NONE)
        return false;
    uint64_t patches = (uint64_t)fit->window->entries[first].segment.patches +
                       fit->window->entries[second].segment.patches;
    if (patches > fit->patches)
        return false;
    take(fit, first);
    take(fit, second);
    return true;
}

/* Two sizes that fill the rest exactly: from the largest that leaves room for the smallest, down to
 * the half. */
static bool finish_pair(struct fit *fit, uint32_t tries)
{
    if (fit->segments < 2)
        return false;
    uint32_t smallest = pd_bits_lowest(&fit->window->sizes);
    if (smallest == PD_BITS_NONE || smallest >= fit->keys)
        return false;
    uint32_t a = pd_bits_at_most(&fit->window->sizes, fit->keys - smallest);
    for (; tries > 0 && a != PD_BITS_NONE && 2 * a >= fit->keys; tries--) {
        uint32_t b = fit->keys - a;
        if (pd_window_first(fit->window, b) != PD_SLOT_NONE && take_pair(fit, a, b))
            return true;
        a = pd_bits_at_most(&fit->window->sizes, a - 1);
    }
    return false;
}

/* In order of arrival until the next would leave less than `rest`, unless it fills the pack. Never
 * past one that does not fit. */
static void take_body(struct fit *fit, uint32_t rest)
{
    const struct pd_window *window = fit->window;
    take(fit, window->oldest);
    while (window->oldest != PD_SLOT_NONE && fits(fit, window->oldest)) {
        const struct pd_node *node = &window->nodes[window->oldest];
        bool ends = fit->keys - node->key < rest || fit->segments <= 2;
        if (ends && node->key != fit->keys)
            return;
        take(fit, window->oldest);
    }
}

static void fit_pairs(struct fit *fit, uint32_t tries)
{
    uint32_t mean = pd_window_mean(fit->window), half = fit->window->key_max / 2;
    take_body(fit, mean > half / 3 ? half : 3 * mean);
    while (fit->keys > 0 && fit->segments > 0) {
        uint32_t slot = largest_at_most(fit, fit->keys);
        if (slot == PD_SLOT_NONE)
            return;
        bool exact = fit->window->nodes[slot].key == fit->keys;
        if (!exact && finish_pair(fit, tries))
            return;
        take(fit, slot);
    }
}

/* What stays empty when an entry of this size shares a pack with the largest other that fits. */
static uint32_t gap_beside(const struct pd_window *window, uint32_t slot)
{
    uint32_t key = window->nodes[slot].key, room = window->key_max - key;
    uint32_t partner = pd_bits_at_most(&window->sizes, room);
    bool itself = partner == key && window->fifos[key].oldest == window->fifos[key].newest;
    if (itself)
        partner = pd_bits_at_most(&window->sizes, key - 1);
    return partner == PD_BITS_NONE ? room : room - partner;
}

static uint32_t tightest_seed(const struct fit *fit)
{
    const struct pd_window *window = fit->window;
    uint32_t slot = window->oldest, best = slot, best_gap = UINT32_MAX;
    if (pd_window_age(window, slot) >= (uint64_t)SEED_AGE * window->limit || fit->segments < 2)
        return slot;
    for (uint32_t i = 0; i < SEEDS && slot != PD_SLOT_NONE && best_gap > 0; i++) {
        uint32_t gap = pd_window_dormant(window, slot) ? UINT32_MAX : gap_beside(window, slot);
        if (gap < best_gap) {
            best_gap = gap;
            best = slot;
        }
        slot = window->nodes[slot].newer;
    }
    return best;
}

static void fit_best(struct fit *fit, uint32_t seed)
{
    take(fit, seed);
    while (fit->keys > 0 && fit->segments > 0) {
        uint32_t slot = largest_at_most(fit, fit->keys);
        if (slot == PD_SLOT_NONE)
            return;
        take(fit, slot);
    }
}

static void fit_solver(struct fit *fit, struct pd_solver *solver)
{
    uint32_t bin = pd_solver_choose(solver, fit->window, fit->rules->segments_max);
    uint32_t slot = solver->bins[bin].first;
    while (slot != PD_SLOT_NONE) {
        uint32_t next = fit->window->nodes[slot].bin_next;
        take(fit, slot);
        slot = next;
    }
    pd_solver_took(solver, bin);
}

static void fit_sequential(struct fit *fit)
{
    take(fit, fit->window->oldest);
    while (fit->window->oldest != PD_SLOT_NONE && fits(fit, fit->window->oldest))
        take(fit, fit->window->oldest);
}

/* Standard deviation below a quarter of the mean, and fewer than eight a pack. */
static bool sizes_matter(const struct pd_window *window)
{
    unsigned __int128 square = (unsigned __int128)window->mean_fixed * window->mean_fixed >> 16;
    return 16 * (unsigned __int128)window->square_fixed < 17 * square &&
           8 * window->mean_fixed > (uint64_t)window->key_max << 16;
}

static void fit_exact(struct fit *fit, struct pd_solver *solver)
{
    uint64_t mean = fit->window->mean_fixed, pack = (uint64_t)fit->window->key_max << 16;
    if (fit->rules->patches_max == 0 && sizes_matter(fit->window)) {
        fit_solver(fit, solver);
        return;
    }
    pd_solver_void(solver);
    if (32 * mean >= 15 * pack)
        fit_best(fit, tightest_seed(fit));
    else
        fit_pairs(fit, 4 * mean <= pack ? PAIR_TRIES : PAIR_TRIES_FEW);
}

int pd_fit_next(const struct pd_rules *rules, struct pd_window *window, struct pd_solver *solver,
                struct pd_pack *pack, struct pd_planner_stats *stats)
{
    struct fit fit = {.rules = rules,
                      .window = window,
                      .pack = pack,
                      .stats = stats,
                      .keys = window->key_max,
                      .segments = rules->segments_max ? rules->segments_max : UINT64_MAX,
                      .patches = rules->patches_max ? rules->patches_max : UINT64_MAX};
    PD_CHECK(window->count > 0);
    switch (rules->strategy) {
    case PD_STRATEGY_EXACT:
        fit_exact(&fit, solver);
        break;
    case PD_STRATEGY_SEQUENTIAL:
        fit_sequential(&fit);
        break;
    case PD_STRATEGY_NONE:
        take(&fit, window->oldest);
        break;
    case PD_STRATEGY_BEST_FIT:
        fit_best(&fit, window->oldest);
        break;
    }
    count_pack(pack, stats);
    return fit.rc;
}
