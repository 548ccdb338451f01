/* systemd's readiness protocol: one datagram to $NOTIFY_SOCKET. Does nothing where no supervisor
 * asked. Main thread. */
#ifndef PD_SERVER_SDNOTIFY_H
#define PD_SERVER_SDNOTIFY_H

#include "base/err.h"

/* Sends `state` ("READY=1", "STOPPING=1", "WATCHDOG=1", several with newlines between). 1: sent; 0:
 * nobody asked; PD_EIO: it could not be sent (never a reason to stop). Never waits. */
int pd_sdnotify(const char *state);
/* Half of the supervisor's watchdog time, at which WATCHDOG=1 is due, or 0 without a watchdog for
 * this process. */
uint64_t pd_sdnotify_interval_ns(void);

#endif
