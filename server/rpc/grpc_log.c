/* gRPC's log function.
 *
 * Place: gRPC calls it on whatever thread has something to say, its own ones too. Invariant: what
 * is said while nobody holds it is in packd's log. Of the texts two are understood: one that means
 * the end of a listener, and the system's reason within an error. */
#include "server/rpc/grpc_log.h"

#include "base/log.h"

#include <grpc/support/log.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static atomic_bool listener_lost;
static _Thread_local struct pd_grpc_held *holder;

static void keep_cause(struct pd_grpc_held *held, const char *message)
{
    static const char mark[] = "os_error:\"";
    const char *at = strstr(message, mark);
    if (!at)
        return;
    at += sizeof mark - 1;
    (void)snprintf(held->cause, sizeof held->cause, "%.*s", (int)strcspn(at, "\""), at);
}

static void on_line(gpr_log_func_args *args)
{
    if (strstr(args->message, "Failed accept"))
        atomic_store(&listener_lost, true);
    if (args->severity != GPR_LOG_SEVERITY_ERROR)
        return;
    if (holder)
        keep_cause(holder, args->message);
    else
        pd_log(PD_LOG_WARN, "grpc", "file=%s line=%d text=\"%s\"", args->file, args->line,
               args->message);
}

void pd_grpc_log_start(void)
{
    gpr_set_log_function(on_line);
}

bool pd_grpc_log_lost_listener(void)
{
    return atomic_load(&listener_lost);
}

void pd_grpc_log_hold(struct pd_grpc_held *held)
{
    holder = held;
}
