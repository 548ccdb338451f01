/* What producer, job and operator share about connections: defaults, deadlines, what to do after a
 * failure, pauses between attempts. Any thread. */
#ifndef PD_CLIENT_LIB_CONN_H
#define PD_CLIENT_LIB_CONN_H

#include "client/lib_rpc.h"

#include <protobuf-c/protobuf-c.h>

#define PD_ATTEMPT_NS UINT64_C(10000000000) /* how long one attempt to open may take */

/* Whether waiting and trying again can mend the failure. */
bool pd_conn_retryable(const struct packd_error *error, const struct pd_rpc_failure *failure);

struct pd_backoff {
    unsigned attempts;
    uint32_t seed;
};

/* The next pause: 50 ms doubling to 2 s, a quarter of it at random, never below the server's wish.
 */
uint64_t pd_backoff_next_ns(struct pd_backoff *backoff, uint64_t retry_after_ms);

/* timeout_ms of a call (PACKD_TIMEOUT_DEFAULT: the object's, 0 there: `fallback_ms`) as a point in
 * pd_clock_mono_ns. */
uint64_t pd_conn_deadline_ns(int64_t timeout_ms, int64_t object_ms, int64_t fallback_ms);
/* A condition variable on that clock, and a wait on it: 0, or ETIMEDOUT. */
void pd_cond_init(pthread_cond_t *cond);
int pd_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);

/* One unary call, tried again after failures that pass, until the deadline. *reply is to be freed
 * with protobuf_c_message_free_unpacked. Any thread. */
int pd_conn_call(struct pd_channel *channel, const char *method, const ProtobufCMessage *request,
                 const ProtobufCMessageDescriptor *reply_type, uint64_t deadline_ns,
                 ProtobufCMessage **reply, struct packd_error *error);

/* "host:pid", for the server's status; into buf. */
const char *pd_conn_self(char *buf, size_t size);
/* Copy of `text`, or of `fallback` where it is NULL; NULL: out of memory. */
char *pd_conn_copy(const char *text, const char *fallback);

#endif
