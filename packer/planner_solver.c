/* The paper: bins over the window's entries.
 *
 * The fit asks for a bin and takes its entries out. Owner: the planner's thread. Invariant: while
 * packs_left > 0, each entry with a bin is in that bin's list, by size downwards, then by arrival;
 * entries that came later have none. It removes nothing from the window itself. */
#include "packer/planner_solver.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

int pd_solver_init(struct pd_solver *solver, const struct pd_window *window)
{
    *solver = (struct pd_solver){0};
    size_t levels = (size_t)window->key_max + 1;
    solver->bucket = malloc(levels * sizeof *solver->bucket);
    solver->bin_capacity = window->capacity;
    solver->bins = calloc(window->capacity, sizeof *solver->bins);
    bool bits = pd_bits_init(&solver->levels, window->key_max);
    if (!solver->bucket || !solver->bins || !bits) {
        pd_solver_fini(solver);
        return PD_ENOMEM;
    }
    for (size_t i = 0; i < levels; i++)
        solver->bucket[i] = PD_BIN_NONE;
    return 0;
}

int pd_solver_grow(struct pd_solver *solver, uint32_t bin_capacity)
{
    if (bin_capacity <= solver->bin_capacity)
        return 0;
    struct pd_bin *bins = realloc(solver->bins, bin_capacity * sizeof *bins);
    if (!bins)
        return PD_ENOMEM;
    memset(&bins[solver->bin_capacity], 0, (bin_capacity - solver->bin_capacity) * sizeof *bins);
    solver->bins = bins;
    solver->bin_capacity = bin_capacity;
    return 0;
}

void pd_solver_fini(struct pd_solver *solver)
{
    free(solver->bucket);
    free(solver->bins);
    pd_bits_fini(&solver->levels);
    *solver = (struct pd_solver){0};
}

static uint32_t level_pop(struct pd_solver *solver, uint32_t used)
{
    uint32_t bin = solver->bucket[used];
    solver->bucket[used] = solver->bins[bin].next;
    if (solver->bucket[used] == PD_BIN_NONE)
        pd_bits_clear(&solver->levels, used);
    return bin;
}

static void level_push(struct pd_solver *solver, uint32_t bin)
{
    uint32_t used = solver->bins[bin].used_keys;
    if (solver->bucket[used] == PD_BIN_NONE)
        pd_bits_set(&solver->levels, used);
    solver->bins[bin].next = solver->bucket[used];
    solver->bucket[used] = bin;
}

static void bin_append(struct pd_solver *solver, struct pd_window *window, uint32_t bin,
                       uint32_t slot)
{
    struct pd_bin *at = &solver->bins[bin];
    window->places[slot] = (struct pd_place){bin, PD_SLOT_NONE};
    *(at->count == 0 ? &at->first : &window->places[at->last].bin_next) = slot;
    at->last = slot;
    at->count++;
    at->used_keys += window->nodes[slot].key;
}

static uint32_t bin_open(struct pd_solver *solver)
{
    solver->bins[solver->bin_count] =
        (struct pd_bin){.first = PD_SLOT_NONE, .last = PD_SLOT_NONE, .next = PD_BIN_NONE};
    return solver->bin_count++;
}

/* Into the fullest bin that has room, or a new one. */
static void place(struct pd_solver *solver, struct pd_window *window, uint32_t slot,
                  uint32_t segments_max)
{
    uint32_t key = window->nodes[slot].key;
    uint32_t used = pd_bits_at_most(&solver->levels, window->key_max - key);
    uint32_t bin = used == PD_BITS_NONE ? bin_open(solver) : level_pop(solver, used);
    bin_append(solver, window, bin, slot);
    if (segments_max == 0 || solver->bins[bin].count < segments_max)
        level_push(solver, bin);
}

/* Calls place for every awake entry, larger ones first, then in order of arrival. */
static void solve(struct pd_solver *solver, struct pd_window *window, uint32_t segments_max)
{
    solver->bin_count = 0;
    uint32_t key = pd_bits_at_most(&window->sizes, window->key_max);
    while (key != PD_BITS_NONE) {
        for (uint32_t slot = pd_window_first(window, key); slot != PD_SLOT_NONE;
             slot = pd_window_next_of_size(window, slot))
            place(solver, window, slot, segments_max);
        key = key > 1 ? pd_bits_at_most(&window->sizes, key - 1) : PD_BITS_NONE;
    }
    for (uint32_t i = 0; i < solver->bin_count; i++) {
        uint32_t used = solver->bins[i].used_keys;
        if (solver->bucket[used] == PD_BIN_NONE)
            continue;
        solver->bucket[used] = PD_BIN_NONE;
        pd_bits_clear(&solver->levels, used);
    }
    solver->packs_left = PD_SOLVER_PACKS;
}

/* The fullest bin still there, the oldest entry's own on a tie with it, else the first. */
static uint32_t fullest(const struct pd_solver *solver, uint32_t favourite)
{
    uint32_t best = PD_BIN_NONE, used = 0;
    if (favourite != PD_BIN_NONE) {
        best = favourite;
        used = solver->bins[favourite].used_keys;
    }
    for (uint32_t i = 0; i < solver->bin_count; i++)
        if (solver->bins[i].used_keys > used) {
            best = i;
            used = solver->bins[i].used_keys;
        }
    return best;
}

uint32_t pd_solver_choose(struct pd_solver *solver, struct pd_window *window, uint32_t segments_max)
{
    PD_CHECK(window->count > 0);
    uint32_t oldest = pd_window_oldest(window);
    bool too_old = pd_window_age(window, oldest) >= (uint64_t)PD_SOLVER_AGE * window->limit;
    if (solver->packs_left > 0) {
        uint32_t bin = window->places[oldest].bin;
        if (too_old && bin != PD_BIN_NONE)
            return bin;
        bin = fullest(solver, bin);
        if (!too_old && bin != PD_BIN_NONE)
            return bin;
    }
    solve(solver, window, segments_max);
    uint32_t bin = window->places[oldest].bin;
    return too_old ? bin : fullest(solver, bin);
}

void pd_solver_took(struct pd_solver *solver, uint32_t bin)
{
    solver->bins[bin].used_keys = 0;
    solver->packs_left--;
}

void pd_solver_rebuild(struct pd_solver *solver, struct pd_window *window, uint32_t bin_count,
                       uint32_t packs_left)
{
    solver->bin_count = 0;
    while (solver->bin_count < bin_count)
        bin_open(solver);
    solver->packs_left = packs_left;
    uint32_t key = pd_bits_at_most(&window->sizes, window->key_max);
    while (key != PD_BITS_NONE) {
        for (uint32_t slot = pd_window_first(window, key); slot != PD_SLOT_NONE;
             slot = pd_window_next_of_size(window, slot))
            if (window->places[slot].bin != PD_BIN_NONE)
                bin_append(solver, window, window->places[slot].bin, slot);
        key = key > 1 ? pd_bits_at_most(&window->sizes, key - 1) : PD_BITS_NONE;
    }
}
