/* XXH3-64 compiled for AVX2: called only where the machine has it. Pure. */
#include "base/digest_level.h"

#if defined(__x86_64__)
#if defined(__clang__) /* which has no pragma for the instruction set of a file */
#include <immintrin.h>
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#define XXH_VECTOR 2 /* XXH_AVX2, by its number: the name is not known yet */
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t pd_digest_avx2(const void *data, size_t size)
{
    return XXH3_64bits(data, size);
}

void pd_digest_add_avx2(struct pd_digest_stream *stream, const void *data, size_t size)
{
    (void)XXH3_64bits_update((void *)stream->state, data, size);
}

#if defined(__x86_64__) && defined(__clang__)
#pragma clang attribute pop
#endif
