/* Text of the wire that C would cut. Pure; any thread. */
#ifndef PD_INGEST_STRINGS_H
#define PD_INGEST_STRINGS_H

#include "base/err.h"

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

/* A string may hold zero bytes on the wire, and protobuf-c hands it out as a C string, which ends
 * at the first. `data` are `size` bytes that were unpacked as a `type` without failing.
 * PD_EINVAL MALFORMED: a string field, of the message or of one in it, has a zero byte; the text
 * names field and place. */
int pd_strings_check(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t size,
                     struct pd_error *error) PD_MUST_CHECK;

#endif
