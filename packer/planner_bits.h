/* An ordered set of numbers 0 .. 2^20: membership in three levels of 64-bit words, so that "largest
 * member at or below x" is a few word reads and a count of leading zeros.
 *
 *   word[0][i]   bit b = member 64*i + b
 *   word[1][i]   bit b = word[0][64*i + b] is not empty
 *   word[2][i]   bit b = word[1][64*i + b] is not empty (at most 5 words, searched in turn)
 *
 * Embedded in the window and the solver; owner's thread. Header only: these run several times per
 * sample. */
#ifndef PD_PACKER_PLANNER_BITS_H
#define PD_PACKER_PLANNER_BITS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define PD_BITS_NONE UINT32_MAX

struct pd_bits {
    uint64_t *word[3]; /* one allocation, owned through word[0] */
    uint32_t top_words;
};

/* Members 0 .. max. False where memory is short; then there is nothing to free. */
static inline bool pd_bits_init(struct pd_bits *bits, uint32_t max)
{
    uint32_t words0 = (max >> 6) + 1, words1 = (max >> 12) + 1, words2 = (max >> 18) + 1;
    uint64_t *words = calloc((size_t)words0 + words1 + words2, sizeof *words);
    if (!words)
        return false;
    *bits = (struct pd_bits){.word = {words, words + words0, words + words0 + words1},
                             .top_words = words2};
    return true;
}

static inline void pd_bits_fini(struct pd_bits *bits)
{
    free(bits->word[0]);
    *bits = (struct pd_bits){0};
}

static inline void pd_bits_set(struct pd_bits *bits, uint32_t x)
{
    bits->word[0][x >> 6] |= 1ull << (x & 63);
    bits->word[1][x >> 12] |= 1ull << (x >> 6 & 63);
    bits->word[2][x >> 18] |= 1ull << (x >> 12 & 63);
}

/* Takes member x out where `out`. No branch: in the window it is as good as random. */
static inline void pd_bits_clear_if(struct pd_bits *bits, uint32_t x, bool out)
{
    uint64_t word = bits->word[0][x >> 6] &= ~((uint64_t)out << (x & 63));
    word = bits->word[1][x >> 12] &= ~((uint64_t)(word == 0) << (x >> 6 & 63));
    bits->word[2][x >> 18] &= ~((uint64_t)(word == 0) << (x >> 12 & 63));
}

static inline void pd_bits_clear(struct pd_bits *bits, uint32_t x)
{
    pd_bits_clear_if(bits, x, true);
}

static inline uint32_t pd_bits_highest(uint64_t word)
{
    return 63 - (uint32_t)__builtin_clzll(word);
}

/* Bits 0 .. bit of a word. */
static inline uint64_t pd_bits_upto(uint32_t bit)
{
    return ~0ull >> (63 - bit);
}

/* Largest member <= x, or PD_BITS_NONE. x must not pass the max given to init. */
static inline uint32_t pd_bits_at_most(const struct pd_bits *bits, uint32_t x)
{
    uint64_t word = bits->word[0][x >> 6] & pd_bits_upto(x & 63);
    if (word)
        return (x & ~63u) | pd_bits_highest(word);
    uint32_t at = x >> 6;
    word = bits->word[1][at >> 6] & (pd_bits_upto(at & 63) >> 1);
    if (!word) {
        at >>= 6;
        uint32_t top = at >> 6;
        word = bits->word[2][top] & (pd_bits_upto(at & 63) >> 1);
        while (!word) {
            if (top == 0)
                return PD_BITS_NONE;
            word = bits->word[2][--top];
        }
        at = top << 6 | pd_bits_highest(word);
        word = bits->word[1][at];
        at = at << 6;
    }
    at = (at & ~63u) | pd_bits_highest(word);
    return at << 6 | pd_bits_highest(bits->word[0][at]);
}

/* Smallest member, or PD_BITS_NONE. */
static inline uint32_t pd_bits_lowest(const struct pd_bits *bits)
{
    for (uint32_t top = 0; top < bits->top_words; top++) {
        if (!bits->word[2][top])
            continue;
        uint32_t at = top << 6 | (uint32_t)__builtin_ctzll(bits->word[2][top]);
        at = at << 6 | (uint32_t)__builtin_ctzll(bits->word[1][at]);
        return at << 6 | (uint32_t)__builtin_ctzll(bits->word[0][at]);
    }
    return PD_BITS_NONE;
}

#endif
