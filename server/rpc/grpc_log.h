/* What gRPC has to say, in packd's log or in packd's own words. */
#ifndef PD_RPC_GRPC_LOG_H
#define PD_RPC_GRPC_LOG_H

#include <stdbool.h>

/* From now on gRPC's errors are log lines `grpc`, for the life of the process. */
void pd_grpc_log_start(void);
/* Whether gRPC has said that it gave a listener up. Any thread. */
bool pd_grpc_log_lost_listener(void);

/* Keeps the errors that gRPC says on this thread out of the log: whoever holds them says what
 * failed. */
struct pd_grpc_held {
    char cause[96]; /* the system's words in the last of them, such as "Address already in use" */
};
void pd_grpc_log_hold(struct pd_grpc_held *held); /* NULL: no longer */

#endif
