/* The fit of the plain planner: linear scans over the window, one item after the other. */
#include "base/check.h"
#include "tests/model/planner_model_state.h"

#include <stdlib.h>

#define TRIES 64
#define TRIES_FEW 256

struct room {
    uint64_t slots, segments, patches;
};

/* A part waits while the part before it is in the window. */
static bool waits(const struct model *m, size_t at)
{
    const struct pd_segment *s = &m->window.item[at].s;
    for (size_t i = 0; i < at; i++) {
        const struct pd_segment *b = &m->window.item[i].s;
        if (s->part > 0 && b->part + 1 == s->part && b->block == s->block && b->index == s->index &&
            b->pass == s->pass)
            return true;
    }
    return false;
}

static void take(struct model *m, size_t at, struct room *room, struct pd_pack *pack)
{
    const struct pd_segment *s = &m->window.item[at].s;
    PD_CHECK(pd_pack_push(pack, s) == 0);
    room->slots -= s->slot_tokens;
    room->segments--;
    room->patches -= s->patches;
    model_bag_remove(&m->window, at);
}

/* Oldest of the awake items with the largest slot <= most. */
static long largest(const struct model *m, uint64_t most)
{
    long best = -1;
    for (size_t i = 0; i < m->window.count; i++) {
        uint64_t slot = m->window.item[i].s.slot_tokens;
        if (slot <= most && !waits(m, i) && (best < 0 || slot > m->window.item[best].s.slot_tokens))
            best = (long)i;
    }
    return best;
}

static long largest_that_fits(const struct model *m, const struct room *room)
{
    uint64_t most = room->slots;
    for (int tries = 0; tries < TRIES; tries++) {
        long at = largest(m, most);
        if (at < 0 || m->window.item[at].s.patches <= room->patches)
            return at;
        most = m->window.item[at].s.slot_tokens - 1;
    }
    return -1;
}

/* The nth (0 or 1) oldest awake item of exactly this slot. */
static long of_size(const struct model *m, uint64_t slot, int nth)
{
    for (size_t i = 0; i < m->window.count; i++)
        if (m->window.item[i].s.slot_tokens == slot && !waits(m, i) && nth-- == 0)
            return (long)i;
    return -1;
}

static bool exact_pair(struct model *m, struct room *room, struct pd_pack *pack, int most_tries)
{
    uint64_t smallest = UINT64_MAX;
    for (size_t i = 0; i < m->window.count; i++)
        if (!waits(m, i) && m->window.item[i].s.slot_tokens < smallest)
            smallest = m->window.item[i].s.slot_tokens;
    if (room->segments < 2 || smallest >= room->slots)
        return false;
    uint64_t most = room->slots - smallest;
    for (int tries = 0; tries < most_tries; tries++) {
        long a = largest(m, most);
        if (a < 0 || 2 * (uint64_t)m->window.item[a].s.slot_tokens < room->slots)
            return false;
        uint64_t slot = m->window.item[a].s.slot_tokens;
        long b = of_size(m, room->slots - slot, 2 * slot == room->slots);
        if (b >= 0 &&
            (uint64_t)m->window.item[a].s.patches + m->window.item[b].s.patches <= room->patches) {
            take(m, (size_t)a, room, pack);
            take(m, (size_t)(b > a ? b - 1 : b), room, pack);
            return true;
        }
        most = slot - 1;
    }
    return false;
}

static bool first_fits(const struct model *m, const struct room *room)
{
    return m->window.count > 0 && m->window.item[0].s.slot_tokens <= room->slots &&
           room->segments > 0 && m->window.item[0].s.patches <= room->patches;
}

static void pairs(struct model *m, struct room *room, struct pd_pack *pack, int tries)
{
    uint64_t keys = m->rules.seq_len / m->rules.seg_align, mean = m->mean_fixed >> 16;
    uint64_t rest = 3 * mean < keys / 2 ? 3 * mean : keys / 2;
    if (mean > keys / 2 / 3)
        rest = keys / 2;
    take(m, 0, room, pack);
    while (first_fits(m, room)) {
        uint64_t after = room->slots - m->window.item[0].s.slot_tokens;
        if (after != 0 && (after < rest * m->rules.seg_align || room->segments <= 2))
            break;
        take(m, 0, room, pack);
    }
    while (room->slots > 0 && room->segments > 0) {
        long at = largest_that_fits(m, room);
        if (at < 0)
            return;
        if (m->window.item[at].s.slot_tokens != room->slots && exact_pair(m, room, pack, tries))
            return;
        take(m, (size_t)at, room, pack);
    }
}

/* Among the 64 oldest, the one that leaves least beside its largest partner. */
static size_t tightest(const struct model *m, const struct room *room)
{
    size_t best = 0;
    uint64_t least = UINT64_MAX;
    if (m->entered - m->window.item[0].entered - 1 >= 2ull * m->rules.window_samples ||
        room->segments < 2)
        return 0;
    for (size_t i = 0; i < 64 && i < m->window.count; i++) {
        uint64_t left = room->slots - m->window.item[i].s.slot_tokens, partner = 0;
        for (size_t k = 0; k < m->window.count; k++) {
            uint64_t slot = m->window.item[k].s.slot_tokens;
            if (k != i && !waits(m, k) && slot <= left && slot > partner)
                partner = slot;
        }
        if (!waits(m, i) && left - partner < least) {
            least = left - partner;
            best = i;
        }
    }
    return best;
}

static void best_fit(struct model *m, size_t seed, struct room *room, struct pd_pack *pack)
{
    take(m, seed, room, pack);
    while (room->slots > 0 && room->segments > 0) {
        long at = largest_that_fits(m, room);
        if (at < 0)
            return;
        take(m, (size_t)at, room, pack);
    }
}

struct paper_bin {
    uint64_t used, count, changed;
};

/* Best-fit-decreasing on paper. */
static void paper(struct model *m)
{
    struct paper_bin *bins = calloc(1 + m->window.count, sizeof *bins);
    uint64_t clock = 0;
    long made = 0;
    PD_CHECK(bins);
    bool *done = calloc(1 + m->window.count, sizeof *done);
    PD_CHECK(done);
    for (size_t i = 0; i < m->window.count; i++) {
        m->window.item[i].bin = -1;
        done[i] = waits(m, i);
    }
    for (;;) {
        long next = -1, best = -1;
        for (size_t i = 0; i < m->window.count; i++)
            if (!done[i] &&
                (next < 0 || m->window.item[i].s.slot_tokens > m->window.item[next].s.slot_tokens))
                next = (long)i;
        if (next < 0)
            break;
        uint64_t slot = m->window.item[next].s.slot_tokens;
        for (long b = 0; b < made; b++) {
            bool room = bins[b].used + slot <= m->rules.seq_len &&
                        (m->rules.segments_max == 0 || bins[b].count < m->rules.segments_max);
            if (room && (best < 0 || bins[b].used > bins[best].used ||
                         (bins[b].used == bins[best].used && bins[b].changed > bins[best].changed)))
                best = b;
        }
        best = best < 0 ? made++ : best;
        bins[best].used += slot;
        bins[best].count++;
        bins[best].changed = ++clock;
        m->window.item[next].bin = best;
        done[next] = true;
    }
    free(bins);
    free(done);
    m->paper_left = 4;
}

static long fullest_bin(const struct model *m)
{
    long best = m->window.item[0].bin, most = -1;
    uint64_t used = 0;
    for (size_t i = 0; i < m->window.count; i++)
        most = m->window.item[i].bin > most ? m->window.item[i].bin : most;
    for (size_t i = 0; best >= 0 && i < m->window.count; i++)
        used += m->window.item[i].bin == best ? m->window.item[i].s.slot_tokens : 0;
    for (long b = 0; b <= most; b++) {
        uint64_t sum = 0;
        for (size_t i = 0; i < m->window.count; i++)
            sum += m->window.item[i].bin == b ? m->window.item[i].s.slot_tokens : 0;
        if (sum > used) {
            used = sum;
            best = b;
        }
    }
    return best;
}

static void take_bin(struct model *m, long bin, struct room *room, struct pd_pack *pack)
{
    for (;;) {
        long next = -1;
        for (size_t i = 0; i < m->window.count; i++)
            if (m->window.item[i].bin == bin &&
                (next < 0 || m->window.item[i].s.slot_tokens > m->window.item[next].s.slot_tokens))
                next = (long)i;
        if (next < 0)
            return;
        take(m, (size_t)next, room, pack);
    }
}

static void solved(struct model *m, struct room *room, struct pd_pack *pack)
{
    bool old = m->entered - m->window.item[0].entered - 1 >= 4ull * m->rules.window_samples;
    long bin = -1;
    if (m->paper_left > 0)
        bin = old ? m->window.item[0].bin : fullest_bin(m);
    if (bin < 0) {
        paper(m);
        bin = old ? m->window.item[0].bin : fullest_bin(m);
    }
    take_bin(m, bin, room, pack);
    m->paper_left--;
}

void model_fit(struct model *m, struct pd_pack *pack)
{
    struct room room = {.slots = m->rules.seq_len, .segments = UINT32_MAX, .patches = UINT64_MAX};
    uint64_t keys = m->rules.seq_len / m->rules.seg_align;
    bool small = 4 * m->mean_fixed <= keys << 16, halves = 32 * m->mean_fixed >= 15 * keys << 16;
    bool even =
        m->square_fixed * (__int128)16 < ((__int128)m->mean_fixed * m->mean_fixed >> 16) * 17 &&
        8 * m->mean_fixed > keys << 16;
    if (m->rules.segments_max)
        room.segments = m->rules.segments_max;
    if (m->rules.patches_max)
        room.patches = m->rules.patches_max;
    switch (m->rules.strategy) {
    case PD_STRATEGY_NONE:
        take(m, 0, &room, pack);
        return;
    case PD_STRATEGY_SEQUENTIAL:
        do
            take(m, 0, &room, pack);
        while (first_fits(m, &room));
        return;
    case PD_STRATEGY_BEST_FIT:
        best_fit(m, 0, &room, pack);
        return;
    case PD_STRATEGY_EXACT:
        break;
    }
    if (even && !m->rules.patches_max) {
        solved(m, &room, pack);
        return;
    }
    m->paper_left = 0;
    if (halves)
        best_fit(m, tightest(m, &room), &room, pack);
    else
        pairs(m, &room, pack, small ? TRIES : TRIES_FEW);
}
