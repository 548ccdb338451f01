/* What a trainer or an operator is told about a wait: pd_wait_info as a Waiting message. */
#ifndef PD_SERVER_RPC_WAITING_H
#define PD_SERVER_RPC_WAITING_H

#include "proto/packd.pb-c.h"
#include "server/sequencer.h"
#include "server/serve.h"

#define PD_WAITING_NAMES_MAX 32

/* The message and the memory its fields point into. */
struct pd_waiting {
    Packd__V1__Waiting message;
    char names[256];
    char *streams[PD_WAITING_NAMES_MAX];
    char source[PD_NAME_MAX + 1];
    char *sources[1];
    char text[480];
    Packd__V1__Stall stall;
};

void pd_waiting_make(struct pd_waiting *waiting, const struct pd_wait_info *info, uint32_t micro,
                     uint64_t incarnation);
/* What a feed's planning waits for: of no step. */
void pd_waiting_make_feed(struct pd_waiting *waiting, const struct pd_wait_info *info,
                          uint64_t incarnation);
/* Turns what make made into: the log is full, a commit is waited for. *stall must stay. */
void pd_waiting_make_commit(struct pd_waiting *waiting, const struct pd_stall *stall);
/* The reason in one word, as metrics have it ("samples", "build"); "" for none. */
const char *pd_waiting_label(enum pd_wait_reason reason);
/* The message borrows the names. */
void pd_waiting_stall(Packd__V1__Stall *message, const struct pd_stall *stall);
/* This client has granted no credit since `since_ns` (wall clock). */
void pd_waiting_make_credit(struct pd_waiting *waiting, uint64_t step, uint32_t micro,
                            uint64_t since_ns, uint64_t incarnation);

#endif
