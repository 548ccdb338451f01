/* What packd asks of its process before anything else runs: allocator, signals, descriptors, panic
 * text. Main thread, before other threads. */
#ifndef PD_SERVER_PROCESS_H
#define PD_SERVER_PROCESS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Allocator settings, SIGPIPE, SIGXFSZ, SIGUSR1 and SIGUSR2 ignored, RLIMIT_NOFILE raised to its
 * hard limit, the main thread named, the panic hook set. `build` (static) is printed by a panic. */
void pd_process_setup(const char *build);
/* Opens /dev/null where a standard descriptor is closed: a file or socket of packd's that got its
 * number would be written to by whatever prints, and libuv aborts when it closes one. What a
 * library opened before main keeps its number. The first thing that a process does. PD_EIO. */
int pd_process_hold_descriptors(struct pd_error *error) PD_MUST_CHECK;
/* Keeps SIGTERM, SIGINT, SIGQUIT and SIGHUP for later; threads made afterwards inherit that. */
void pd_process_block_signals(void);
/* Lets the main thread take signals again, once all other threads exist. */
void pd_process_unblock_signals(void);
/* The same but for SIGHUP, for as long as the main thread waits for another one's work. */
void pd_process_unblock_ends(void);
/* Gives the kernel back what the allocator holds free, where that is much and new: what a flood of
 * calls took would stay with the process for good. Some milliseconds then, and true. To be called
 * from time to time; main thread. */
bool pd_process_give_back(void);
/* PD_ENOMEM NO_ADDRESS_SPACE: `ulimit -v` does not leave room for `bytes` and for threads' stacks.
 * gRPC waits for ever for a thread that it could not make, so this is asked before it begins. */
int pd_process_check_room(uint64_t bytes, struct pd_error *error) PD_MUST_CHECK;
/* Reads PACKD_LOG_LEVEL and PACKD_LOG_FORMAT. PD_EINVAL names the variable. */
int pd_process_log_setup(struct pd_error *error) PD_MUST_CHECK;

#endif
