/* Serialised protobuf messages made from a fuzz input: field by field after the type's descriptor,
 * since random bytes seldom name a feed, a job and a rank that are there. */
#ifndef PD_TESTS_FUZZ_WIRE_H
#define PD_TESTS_FUZZ_WIRE_H

#include "base/bytes.h"

#include <protobuf-c/protobuf-c.h>

/* The input, taken byte by byte; 0 behind its end. */
struct fuzz_source {
    const uint8_t *data;
    size_t size, at;
};

uint32_t fuzz_number(struct fuzz_source *source, uint32_t bound); /* below bound, at most 256 */
/* A message of the type, appended to *to: near enough to a good one to get past the first checks,
 * with ends of ranges, wrong names, unknown enum values and, now and then, a byte changed. Or the
 * input's next bytes as they are. */
void fuzz_message(struct pd_buf *to, const ProtobufCMessageDescriptor *type,
                  struct fuzz_source *source);

#endif
