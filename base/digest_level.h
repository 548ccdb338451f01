/* One body of pd_digest, compiled once for each level of instructions (digest.c, digest_avx2.c). */
#ifndef PD_BASE_DIGEST_LEVEL_H
#define PD_BASE_DIGEST_LEVEL_H

#include <stddef.h>
#include <stdint.h>

uint64_t pd_digest_avx2(const void *data, size_t size);

#endif
