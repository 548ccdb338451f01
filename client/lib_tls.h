/* Where a client connects to and how it shows who it is: options first, then the environment. */
#ifndef PD_CLIENT_LIB_TLS_H
#define PD_CLIENT_LIB_TLS_H

#include "client/include/packd.h"

#include <stdbool.h>

/* `explicit` where it is set; else the variable where it is set and not empty; else `fallback`. */
const char *pd_option_or_env(const char *explicit, const char *variable, const char *fallback);
/* The options with the environment behind them. */
struct packd_tls pd_tls_resolve(const struct packd_tls *tls);
bool pd_tls_is_on(const struct packd_tls *resolved, const char *server);
/* "host:port" with a port from 1 to 65535 (a host with colons of its own stands in brackets or
 * behind a scheme: dns:///...), or "unix:/path". PACKD_EINVAL, reason SERVER. */
int pd_server_check(const char *server, struct packd_error *error);
/* What an object is opened with, the environment behind what is NULL: pd_server_check of the
 * address; reason TOKEN: a token that is not 16 to 512 characters of printable ASCII, the server's
 * rule for token files (the text never shows it); reason TLS: a file cannot be read or holds no
 * PEM, or a certificate comes without its key. 0 or PACKD_EINVAL. */
int pd_connection_check(const char *server, const char *token, const struct packd_tls *tls,
                        struct packd_error *error);
/* The whole file as a string, at most 1 MiB; NULL: unreadable, or no memory. free(). */
char *pd_tls_read(const char *path);

#endif
