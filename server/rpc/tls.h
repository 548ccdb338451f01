/* The server's side of TLS: certificate, key and authorities from files that may change. */
#ifndef PD_SERVER_RPC_TLS_H
#define PD_SERVER_RPC_TLS_H

#include "base/err.h"
#include "server/config.h"

#include <grpc/grpc_security.h>

struct pd_tls;

/* For one address: gRPC keeps per address what it has been given. Reads the files of `config`,
 * which must live as long. Fails with PD_EIO or PD_EINVAL and reason TLS where one of them cannot
 * serve. Free it after its gRPC server. */
int pd_tls_new(const struct pd_config *config, struct pd_tls **out,
               struct pd_error *error) PD_MUST_CHECK;
void pd_tls_free(struct pd_tls *tls); /* NULL is allowed */

/* Credentials to bind with, which the caller releases. */
grpc_server_credentials *pd_tls_credentials(struct pd_tls *tls) PD_MUST_CHECK;

#endif
