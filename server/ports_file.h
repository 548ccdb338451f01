/* The file that tells which addresses were bound (--ports-file), for whoever started packd on ports
 * that the system chose. */
#ifndef PD_SERVER_PORTS_FILE_H
#define PD_SERVER_PORTS_FILE_H

#include "base/err.h"
#include "server/rpc/rpc.h"

/* {"pid", "grpc": [...], "admin": [...], "health": [...], "http"}, by rename, so that a reader sees
 * all of it or nothing. `http`: the address of the HTTP listener. PD_EIO, reason PORTS_FILE. Main
 * thread. */
int pd_ports_file_write(const char *path, const struct pd_rpc *rpc, const char *http,
                        struct pd_error *error) PD_MUST_CHECK;

#endif
