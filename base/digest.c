/* Chooses how a digest is computed, once, when the program is loaded. Pure; any thread.
 *
 * A stream's state is XXH3's own, which is the same at every level, so parts of one stream may take
 * either way. */
#include "base/digest.h"

#include "base/digest_level.h"

#define XXH_STATIC_LINKING_ONLY /* the size of the streaming state */
#include <xxhash.h>

#define SMALL_BYTES 1024 /* below, the library is as fast */

_Static_assert(sizeof(struct pd_digest_stream) == sizeof(XXH3_state_t), "room for the state");

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

void pd_digest_begin(struct pd_digest_stream *stream)
{
    (void)XXH3_64bits_reset((void *)stream->state);
}

void pd_digest_add(struct pd_digest_stream *stream, const void *data, size_t size)
{
    if (has_avx2 && size >= SMALL_BYTES)
        pd_digest_add_avx2(stream, data, size);
    else
        (void)XXH3_64bits_update((void *)stream->state, data, size);
}

uint64_t pd_digest_end(const struct pd_digest_stream *stream)
{
    return XXH3_64bits_digest((const void *)stream->state);
}
