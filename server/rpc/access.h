/* Who may call what: the doors of the server, principals by token, certificate or Unix socket, and
 * the role each method needs.
 *
 *   pd_access_admit   one answer for each accepted call, before a method sees it
 *   pd_access_feed    once a call names its feed
 *
 * With no entry in `auth` everybody may do everything; with any, what no entry allows is refused.
 * Any rpc thread; reload from the main thread. */
#ifndef PD_SERVER_RPC_ACCESS_H
#define PD_SERVER_RPC_ACCESS_H

#include "base/err.h"
#include "server/config.h"
#include "server/rpc/rpc.h"

#include <grpc/grpc.h>
#include <stdbool.h>

struct pd_access;

/* Reads the token files. `config` is borrowed until pd_access_free. PD_EIO, PD_EINVAL: a token file
 * that cannot be read, or is too short, too long or the same as another's; PD_ENOMEM. */
int pd_access_new(const struct pd_config *config, struct pd_access **access,
                  struct pd_error *error) PD_MUST_CHECK;
void pd_access_free(struct pd_access *access);
/* Reads the token files again; on failure the tokens in force stay. Calls that are open go on. */
int pd_access_reload(struct pd_access *access, struct pd_error *error) PD_MUST_CHECK;

/* Whether the call may begin. *who is the principal it was made by, NULL where nobody is asked;
 * valid as long as access. PD_EUNAUTH, CREDENTIALS: no token, certificate or socket that `auth`
 * knows; PD_EDENIED, NOT_ALLOWED: the principal lacks the method's role, or the door does not serve
 * it. A refusal is counted, and logged with the peer. */
int pd_access_admit(struct pd_access *access, enum pd_door door, const char *method, size_t size,
                    grpc_call *call, const grpc_metadata_array *metadata,
                    const struct pd_principal_config **who, struct pd_error *error) PD_MUST_CHECK;
bool pd_access_has_feed(const struct pd_principal_config *who, const char *feed);
/* PD_EDENIED, NOT_ALLOWED: not a feed of `who`; logged. */
int pd_access_feed(const struct pd_principal_config *who, const char *feed,
                   struct pd_error *error) PD_MUST_CHECK;

#endif
