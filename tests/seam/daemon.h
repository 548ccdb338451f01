/* The whole daemon on a thread of this process: packd.c's main, with the stand-in for gRPC. One at
 * a time. What fails ends the process with a message. */
#ifndef PD_TESTS_SEAM_DAEMON_H
#define PD_TESTS_SEAM_DAEMON_H

#include <stddef.h>

/* `config` is YAML without listen, http and log.path, which are set here. Returns once it serves.
 */
void seam_daemon_start(const char *config);
/* Where it listens: "127.0.0.1:20001" among the addresses of seam.h, and of its real HTTP. */
const char *seam_daemon_address(void);
const char *seam_daemon_http(void);
/* Asks it to end as SIGTERM does, waits, and removes its log. Returns its exit status. */
int seam_daemon_stop(void);

#endif
