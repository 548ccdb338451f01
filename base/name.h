/* Names of feeds, streams, sources, jobs and views: [A-Za-z0-9_-]{1,64}. Pure, any thread. */
#ifndef PD_BASE_NAME_H
#define PD_BASE_NAME_H

#include "base/err.h"

#include <stddef.h>

#define PD_NAME_MAX 64

/* 0, or PD_EINVAL with reason BAD_NAME naming `what` ("stream"), the name and the first byte that
 * is not allowed. */
int pd_name_check(const char *what, const char *name, struct pd_error *error) PD_MUST_CHECK;

#endif
