/* XXH3-64, the digest of everything in packd, over large blocks: with AVX2 where the machine has
 * it, at twice the rate of the system's library. The values are the library's. Pure. */
#ifndef PD_BASE_DIGEST_H
#define PD_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

uint64_t pd_digest(const void *data, size_t size);

/* The same of data that comes in parts: begin, add ..., end. Parts of some KiB cost no more than
 * one block. Memory is the caller's; there is nothing to let go of. */
struct pd_digest_stream {
    _Alignas(64) unsigned char state[576]; /* an XXH3_state_t */
};

void pd_digest_begin(struct pd_digest_stream *stream);
void pd_digest_add(struct pd_digest_stream *stream, const void *data, size_t size);
/* Of all that was added; more may follow. */
uint64_t pd_digest_end(const struct pd_digest_stream *stream);

#endif
