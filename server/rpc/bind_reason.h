/* Why an address could not be listened on. Main thread; touches nothing of what it looks at. */
#ifndef PD_SERVER_RPC_BIND_REASON_H
#define PD_SERVER_RPC_BIND_REASON_H

#include <stddef.h>

/* Writes the reason, as it stands now, for `address` ("host:port" or "unix:/path"), on which
 * listening has failed: a text for people without the address. "": none can be found. */
void pd_bind_reason(const char *address, char *text, size_t size);

#endif
