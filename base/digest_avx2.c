/* XXH3-64 compiled for AVX2: called only where the machine has it. Pure. */
#include "base/digest_level.h"

#if defined(__x86_64__)
#pragma GCC target("avx2")
#define XXH_VECTOR 2 /* XXH_AVX2, by its number: the name is not known yet */
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t pd_digest_avx2(const void *data, size_t size)
{
    return XXH3_64bits(data, size);
}
