/* XXH3-64, the digest of everything in packd, over large blocks: with AVX2 where the machine has
 * it, at twice the rate of the system's library. The values are the library's. Pure. */
#ifndef PD_BASE_DIGEST_H
#define PD_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

uint64_t pd_digest(const void *data, size_t size);

#endif
