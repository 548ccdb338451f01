/* Random numbers for tests: the same from the same seed, on every machine. */
#ifndef PD_TESTS_UNIT_RANDOM_H
#define PD_TESTS_UNIT_RANDOM_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* splitmix64: any state will do. */
static inline uint64_t test_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* 0 .. bound - 1 */
static inline uint32_t test_below(uint64_t *state, uint32_t bound)
{
    return (uint32_t)((test_random(state) >> 32) * bound >> 32);
}

/* PACKD_TEST_SEED where that is set, else `otherwise`, 0 for another one each time; printed. */
static inline uint64_t test_seed(uint64_t otherwise)
{
    const char *given = getenv("PACKD_TEST_SEED");
    uint64_t seed = given       ? strtoull(given, NULL, 10)
                    : otherwise ? otherwise
                                : (uint64_t)time(NULL);
    printf("seed %" PRIu64 " (PACKD_TEST_SEED sets it)\n", seed);
    return seed;
}

#endif
