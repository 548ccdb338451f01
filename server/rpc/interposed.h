/* Whether gRPC really calls the functions that packd defines in a library's place. */
#ifndef PD_SERVER_RPC_INTERPOSED_H
#define PD_SERVER_RPC_INTERPOSED_H

#include "base/err.h"

/* `own` is packd's function of the public name `name`. 0: gRPC's calls come to it. PD_EUNSUPPORTED
 * LIBGRPC: libgrpc does not call it by its public name, or another library's comes before packd's;
 * the text says which. Main thread, before gRPC listens. */
int pd_interposed_check(const char *name, void (*own)(void), struct pd_error *error) PD_MUST_CHECK;

#endif
