/* The gRPC side of the daemon, for packd.c: all that includes <grpc/...> lies behind this header.
 *
 *   pd_rpc_start   N threads, one completion queue each; a call stays on the queue that accepted it
 *   pd_rpc_drain   NOT_SERVING, no new Push or OpenJob, no further credit; running fetches go on
 *   pd_rpc_stop    every call ends by itself within the grace period, then the rest is cancelled;
 *                  threads are joined
 *
 * Start after sequencer and serve, stop before them: a call in flight waits for what it has
 * submitted. */
#ifndef PD_SERVER_RPC_RPC_H
#define PD_SERVER_RPC_RPC_H

#include "base/err.h"
#include "server/config.h"
#include "server/log.h"
#include "server/sequencer.h"
#include "server/serve.h"
#include "server/validate.h"

#include <stdbool.h>
#include <stdint.h>

struct pd_rpc;

/* Which listener a call came through: `listen`, `listen_admin`, `listen_health`. */
enum pd_door { PD_DOOR_MAIN, PD_DOOR_ADMIN, PD_DOOR_HEALTH };
#define PD_DOORS 3

/* Whether the files that the configuration names for TLS and tokens can be read and hold what they
 * should, as pd_rpc_start would find; without a server. PD_EIO, PD_EINVAL with reason TLS or
 * TOKEN_FILE, PD_ENOMEM. */
int pd_rpc_check_files(const struct pd_config *config, struct pd_error *error) PD_MUST_CHECK;

/* All borrowed until pd_rpc_free. */
struct pd_rpc_options {
    const struct pd_config *config;
    struct pd_log *log;
    struct pd_sequencer *sequencer;
    struct pd_serve *serve;
    struct pd_validation *validation; /* for Status and Waiting */
    const char *version;              /* of the program, for Welcome, OpenJob and Status */
    /* Admin.Drain was called (undo: take work again). Any rpc thread; must only post. The rpc side
     * has switched already. May be NULL. */
    void (*on_drain)(void *ctx, bool undo);
    void *ctx;
};

/* Binds every address of config->listen and starts the threads; serving is off until
 * pd_rpc_set_serving. PD_EUNAVAIL, reason BIND, names the address that could not be bound;
 * PD_ENOMEM. */
int pd_rpc_start(const struct pd_rpc_options *options, struct pd_rpc **rpc,
                 struct pd_error *error) PD_MUST_CHECK;
/* What is listened on at a door, "host:port" with the port that was bound, or "unix:/path"; as many
 * as the configuration lists, owned by rpc. */
const char *const *pd_rpc_addresses(const struct pd_rpc *rpc, enum pd_door door, uint32_t *count);
/* Random per start: on the wire, so that clients see a restart. */
uint64_t pd_rpc_incarnation(const struct pd_rpc *rpc);
/* Reads the token files of `auth` again (certificates are read again by themselves); on failure
 * those in force stay. Main thread. */
int pd_rpc_reload(struct pd_rpc *rpc, struct pd_error *error) PD_MUST_CHECK;
/* gRPC has given up an address for good, since accept failed there in a way that accept.c cannot
 * mend: nobody can connect there again. Any thread. */
bool pd_rpc_is_deaf(void);
/* What health Check and Watch answer. Any thread. */
void pd_rpc_set_serving(struct pd_rpc *rpc, bool serving);
/* Why packd is not ready although it serves (static text: a feed is halted, the validator has
 * failed); NULL: nothing is wrong. Any thread. */
void pd_rpc_set_fault(struct pd_rpc *rpc, const char *fault);
/* Stops taking new work, as Admin.Drain. Any thread; at once. */
void pd_rpc_drain(struct pd_rpc *rpc);
/* Ends everything: returns when no call is left and the threads are joined, at the latest a moment
 * after grace_ns. Main thread, once. */
void pd_rpc_stop(struct pd_rpc *rpc, uint64_t grace_ns);
/* After pd_rpc_stop. */
void pd_rpc_free(struct pd_rpc *rpc);

struct pd_rpc_gauges {
    uint64_t push_calls, fetch_calls, calls;
    uint64_t ingest_reserved_bytes, ingest_max_bytes; /* credit granted and not yet returned */
    uint32_t connections[PD_DOORS], connections_max;  /* open; of the main door */
};
/* Any thread. */
void pd_rpc_gauges(struct pd_rpc *rpc, struct pd_rpc_gauges *gauges);

#endif
