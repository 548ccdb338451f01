/* One body of pd_digest and pd_digest_add, compiled once for each level of instructions (digest.c,
 * digest_avx2.c). */
#ifndef PD_BASE_DIGEST_LEVEL_H
#define PD_BASE_DIGEST_LEVEL_H

#include "base/digest.h"

uint64_t pd_digest_avx2(const void *data, size_t size);
void pd_digest_add_avx2(struct pd_digest_stream *stream, const void *data, size_t size);

#endif
