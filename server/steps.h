/* A start order that is undone backwards: each step starts one part of the daemon and knows how to
 * stop it. Owner's thread. */
#ifndef PD_SERVER_STEPS_H
#define PD_SERVER_STEPS_H

#include "base/err.h"

#include <stddef.h>

struct pd_step {
    const char *name;
    int (*start)(void *ctx, struct pd_error *error); /* a start that fails leaves nothing to stop */
    void (*stop)(void *ctx);                         /* NULL: nothing to stop */
};

/* Starts all in order. On failure, those already started are stopped in reverse and the error is
 * returned. `fail_before` (NULL in service) names a step that is reported as failed (PD_EINTERNAL,
 * reason FAULT) instead of being started, for tests of every way out. */
int pd_steps_start(const struct pd_step *steps, size_t count, void *ctx, const char *fail_before,
                   struct pd_error *error) PD_MUST_CHECK;
/* Stops all in reverse. */
void pd_steps_stop(const struct pd_step *steps, size_t count, void *ctx);

#endif
