/* A request to the sequencer on behalf of a call. It holds a reference to the call until it is
 * freed. */
#ifndef PD_SERVER_RPC_ASK_H
#define PD_SERVER_RPC_ASK_H

#include "server/rpc/call.h"

struct pd_ask {
    struct pd_call *call;
    struct pd_tag tag;
    void (*answered)(struct pd_ask *ask); /* the call's thread, also when the call is over; frees
                                             the ask, now or later */
    void *context;                        /* the method's own use */
    union {
        struct pd_request base;
        struct pd_request_open_stream open_stream;
        struct pd_request_append append;
        struct pd_request_end_stream end_stream;
        struct pd_request_close_stream close_stream;
        struct pd_request_end_feed end_feed;
        struct pd_request_open_job open_job;
        struct pd_request_commit commit;
        struct pd_request_delivered delivered;
        struct pd_request_flush flush;
        struct pd_request_delete_job delete_job;
        struct pd_request_skip_steps skip_steps;
        struct pd_request_set_mixture set_mixture;
        struct pd_request_skip_samples skip_samples;
        struct pd_request_delete_stream delete_stream;
        struct pd_request_delete_feed delete_feed;
        struct pd_request_status status;
    } of;
};

/* NULL: no memory, and the call has failed. */
struct pd_ask *pd_ask_new(struct pd_call *call, enum pd_request_kind kind,
                          void (*answered)(struct pd_ask *ask));
/* 0: answered will run. Else the call has failed (draining, or full), answered will not run and the
 * ask still belongs to the caller. */
int pd_ask_submit(struct pd_ask *ask) PD_MUST_CHECK;
/* Frees it and drops its reference to the call; a status answer is given back. */
void pd_ask_free(struct pd_ask *ask);

/* In a status answer: the feed, or NULL; the job, or NULL. */
const struct pd_feed_status *pd_status_feed(const struct pd_request_status *status,
                                            const char *name);
const struct pd_job_status *pd_status_job(const struct pd_feed_status *feed, const char *name);

#endif
