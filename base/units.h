/* Sizes and durations as people write them: "16GiB", "4MiB", "512", "60s", "5ms". Pure, any thread.
 */
#ifndef PD_BASE_UNITS_H
#define PD_BASE_UNITS_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* B KiB MiB GiB TiB (1024) and KB MB GB TB (1000); a bare number is bytes; whole numbers only.
 * PD_EINVAL, reason BAD_SIZE. */
int pd_units_parse_bytes(const char *text, uint64_t *bytes, struct pd_error *error) PD_MUST_CHECK;
/* ns us ms s m h; a bare number other than 0 is refused. PD_EINVAL, reason BAD_DURATION. */
int pd_units_parse_duration(const char *text, uint64_t *ns, struct pd_error *error) PD_MUST_CHECK;
/* "1.5GiB" into buf (at least 24 bytes); returns buf. */
const char *pd_units_format_bytes(uint64_t bytes, char *buf, size_t size);
/* "1,234,567" into buf (at least 32 bytes); returns buf. */
const char *pd_units_format_count(uint64_t count, char *buf, size_t size);

#endif
