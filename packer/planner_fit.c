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

#include "packer/planner_window_lists.h"

#define PAIR_TRIES 64
#define PAIR_TRIES_FEW \
    256 /* with less than four samples a pack: chances are fewer, and there is time */
#define PATCH_TRIES 64
#define SEEDS 64   /* oldest entries among which the one with the tightest partner starts a pack */
#define SEED_AGE 2 /* windows of arrivals after which the oldest goes first */

struct fit {
    const struct pd_rules *rules;
    struct pd_window *window;
    uint32_t keys;              /* room left */
    uint64_t segments, patches; /* room left; more than there can be where there is no cap */
    uint32_t count;             /* of window->chosen */
    bool patched;               /* of what was looked for last, some had too many patches */
};

/* Into the pack and out of its fifo; it leaves the window with the others. Never a dormant one: the
 * part before it is older and not chosen. */
static void choose(struct fit *fit, uint32_t slot)
{
    struct pd_window *window = fit->window;
    const struct pd_segment *segment = &window->entries[slot].segment;
    uint32_t key = window->nodes[slot].key;
    fit->keys -= key;
    fit->segments--;
    fit->patches -= segment->patches;
    window->chosen[fit->count++] = slot;
    pd_window_dequeue(window, slot, key);
    if (segment->part_count > 1)
        pd_window_wake(window, slot, window->nodes[slot].newer);
}

/* The chosen ones from the window into the pack. */
static int move_chosen(const struct fit *fit, struct pd_pack *pack, struct pd_planner_stats *stats)
{
    struct pd_window window = *fit->window;
    uint64_t samples = 0, tokens = 0, age_max = stats->age_max_samples;
    uint32_t used_slots = 0;
    int rc = pd_pack_reserve(pack, fit->count);
    if (rc != 0)
        return rc;
    struct pd_segment *segments = pack->segments;
    for (uint32_t i = 0; i < fit->count; i++) {
        uint32_t slot = window.chosen[i], age = pd_window_age(&window, slot);
        const struct pd_segment *segment = &window.entries[slot].segment;
        segments[i] = *segment;
        samples += segment->part == 0;
        tokens += segment->length_tokens;
        used_slots += segment->slot_tokens;
        age_max = age > age_max ? age : age_max;
        pd_window_leave(&window, slot);
    }
    *fit->window = window;
    pack->segment_count = fit->count;
    pack->used_slots = used_slots;
    stats->parts += fit->count;
    stats->samples += samples;
    stats->used_slots += used_slots;
    stats->real_tokens += tokens;
    stats->age_max_samples = age_max;
    return 0;
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
static uint32_t largest_at_most(struct fit *fit, uint32_t key)
{
    fit->patched = false;
    for (uint32_t tries = 0; tries < PATCH_TRIES && key > 0; tries++) {
        key = pd_bits_at_most(&fit->window->sizes, key);
        if (key == PD_BITS_NONE)
            return PD_SLOT_NONE;
        uint32_t slot = pd_window_first(fit->window, key);
        if (patches_fit(fit, slot))
            return slot;
        fit->patched = true;
        key--;
    }
    return PD_SLOT_NONE;
}

/* Two different entries of sizes a and b that fit together. */
static bool take_pair(struct fit *fit, uint32_t a, uint32_t b)
{
    uint32_t first = pd_window_first(fit->window, a);
    uint32_t second =
        a == b ? pd_window_next_of_size(fit->window, first) : pd_window_first(fit->window, b);
    if (second == PD_SLOT_NONE)
        return false;
    uint64_t patches = (uint64_t)fit->window->entries[first].segment.patches +
                       fit->window->entries[second].segment.patches;
    if (patches > fit->patches)
        return false;
    choose(fit, first);
    choose(fit, second);
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
    const struct pd_node *nodes = fit->window->nodes;
    uint32_t slot = pd_window_oldest(fit->window);
    choose(fit, slot);
    while ((slot = nodes[slot].newer) != PD_SLOT_NONE && fits(fit, slot)) {
        bool ends = fit->keys - nodes[slot].key < rest || fit->segments <= 2;
        if (ends && nodes[slot].key != fit->keys)
            return;
        choose(fit, slot);
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
        choose(fit, slot);
    }
}

/* What stays empty when an entry of this size shares a pack with the largest other that fits. */
static uint32_t gap_beside(const struct pd_window *window, uint32_t slot)
{
    uint32_t key = window->nodes[slot].key, room = window->key_max - key;
    uint32_t partner = pd_bits_at_most(&window->sizes, room);
    bool itself = partner == key && window->links[key].older == window->links[key].newer;
    if (itself)
        partner = pd_bits_at_most(&window->sizes, key - 1);
    return partner == PD_BITS_NONE ? room : room - partner;
}

static uint32_t tightest_seed(const struct fit *fit)
{
    const struct pd_window *window = fit->window;
    uint32_t slot = pd_window_oldest(window), best = slot, best_gap = UINT32_MAX;
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
    choose(fit, seed);
    while (fit->keys > 0 && fit->segments > 0) {
        uint32_t slot = largest_at_most(fit, fit->keys);
        if (slot == PD_SLOT_NONE)
            return;
        choose(fit, slot);
    }
}

static void fit_solver(struct fit *fit, struct pd_solver *solver)
{
    uint32_t bin = pd_solver_choose(solver, fit->window, fit->rules->segments_max);
    uint32_t slot = solver->bins[bin].first;
    while (slot != PD_SLOT_NONE) {
        choose(fit, slot);
        slot = fit->window->places[slot].bin_next;
    }
    pd_solver_took(solver, bin);
}

static void fit_sequential(struct fit *fit)
{
    uint32_t slot = pd_window_oldest(fit->window);
    do
        choose(fit, slot);
    while ((slot = fit->window->nodes[slot].newer) != PD_SLOT_NONE && fits(fit, slot));
    fit->patched = slot != PD_SLOT_NONE && fit->window->nodes[slot].key <= fit->keys &&
                   !patches_fit(fit, slot);
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
                struct pd_pack *pack, struct pd_planner_stats *stats, bool *capped)
{
    struct fit fit = {.rules = rules,
                      .window = window,
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
        choose(&fit, pd_window_oldest(window));
        break;
    case PD_STRATEGY_BEST_FIT:
        fit_best(&fit, pd_window_oldest(window));
        break;
    }
    *capped = fit.segments == 0 || fit.patched;
    return move_chosen(&fit, pack, stats);
}
