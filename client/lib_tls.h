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
/* Every file can be read and holds PEM; cert and key come together. PACKD_EINVAL, reason TLS. */
int pd_tls_check(const struct packd_tls *tls, const char *server, struct packd_error *error);
/* The whole file as a string, at most 1 MiB; NULL: unreadable, or no memory. free(). */
char *pd_tls_read(const char *path);

#endif
