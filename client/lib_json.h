/* Any protobuf-c message as JSON text, by its descriptor. Pure, any thread.
 *
 * Names as in the .proto. Every scalar is there, also at its default; an unset message is null, an
 * unset oneof member is left out. Enums by name, fixed64 as 16 hex digits in quotes, other integers
 * as digits however large, bytes as text where they are UTF-8 without control characters and else
 * {"hex": "..."}; a number that is not finite is null. */
#ifndef PD_CLIENT_LIB_JSON_H
#define PD_CLIENT_LIB_JSON_H

#include "base/bytes.h"

#include <protobuf-c/protobuf-c.h>

/* Appends; out->failed tells of a failed allocation. */
void pd_json_message(const ProtobufCMessage *message, struct pd_buf *out);
/* A quoted string; bytes that are no UTF-8 become U+FFFD. */
void pd_json_string(const char *text, size_t bytes, struct pd_buf *out);
/* Length of the valid UTF-8 sequence at `data`, 0 where there is none. */
size_t pd_utf8_length(const uint8_t *data, size_t bytes);

#endif
