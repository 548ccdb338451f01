/* Chooses how a digest is computed, once, when the program is loaded. Pure; any thread. */
#include "base/digest.h"

#include "base/digest_level.h"

#include <xxhash.h>

#define SMALL_BYTES 1024 /* below, the library is as fast */

static int has_avx2;

__attribute__((constructor)) static void look(void)
{
#if defined(__x86_64__)
    has_avx2 = __builtin_cpu_supports("avx2") != 0;
#endif
}

uint64_t pd_digest(const void *data, size_t size)
{
    return has_avx2 && size >= SMALL_BYTES ? pd_digest_avx2(data, size) : XXH3_64bits(data, size);
}
