/* The two loops over a table of steps, so that starting, failing half-way and stopping are one
 * order. */
#include "server/steps.h"

#include <string.h>

int pd_steps_start(const struct pd_step *steps, size_t count, void *ctx, const char *fail_before,
                   struct pd_error *error)
{
    for (size_t i = 0; i < count; i++) {
        int rc = fail_before && strcmp(fail_before, steps[i].name) == 0
                     ? pd_error_set(error, PD_EINTERNAL, "FAULT", "step %s was made to fail",
                                    steps[i].name)
                     : steps[i].start(ctx, error);
        if (rc == 0)
            continue;
        pd_steps_stop(steps, i, ctx);
        return rc;
    }
    return 0;
}

void pd_steps_stop(const struct pd_step *steps, size_t count, void *ctx)
{
    while (count-- > 0) {
        if (steps[count].stop)
            steps[count].stop(ctx);
    }
}
