/* The inside of a producer, shared by the caller's side (lib_producer.c) and the thread
 * (lib_push.c).
 *
 *   put -> open block -> sealed list (by seq) -> sent, unacknowledged -> acknowledged: freed
 *                        first ........ unsent ........ last
 *
 * `lock` guards everything marked G; T belongs to the thread; the rest is fixed after open. */
#ifndef PD_CLIENT_LIB_PRODUCER_H
#define PD_CLIENT_LIB_PRODUCER_H

#include "client/lib_block.h"
#include "client/lib_conn.h"

#define PD_REJECTS_MAX 256

struct pd_producer_reject {
    uint64_t seq, count;
    char reason[40];
    char text[320];
};

struct packd_producer {
    uint32_t magic;
    /* options, copied */
    char *feed, *stream, *source, *producer, *content_id;
    uint8_t *tokenizer_digest;
    size_t tokenizer_digest_bytes;
    uint32_t vocab_size;
    bool allow_shifted_looking_labels;
    size_t buffer_bytes, block_bytes;
    uint64_t linger_ns;
    int64_t timeout_ms;
    void (*on_reject)(void *ctx, const struct packd_reject *reject);
    void *ctx;

    struct pd_channel *channel;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* for callers */
    pthread_cond_t wake;    /* for the thread, while it has no stream */

    struct pd_stream *live;                          /* G: to ring; NULL between connections */
    struct pd_client_block *open;                    /* G: being filled, NULL: none */
    struct pd_client_block *first, *last, *unsent;   /* G: sealed */
    size_t unsent_offset;                            /* G: body bytes of `unsent` already sent */
    struct pd_client_limits limits;                  /* G: from the Welcome */
    struct packd_producer_stats stats;               /* G */
    bool welcomed_once;                              /* G */
    bool end_wanted, closing, half_closed, end_sent; /* G */
    uint64_t close_deadline_ns;                      /* G */
    bool interrupted, stopped;                       /* G */
    struct packd_error final;                        /* G: code 0 while all is well */
    struct packd_error down;                         /* G: the last failure while not connected */
    uint64_t down_since_ns;                          /* G: 0 while connected */
    uint64_t reject_head, reject_tail;               /* G: taken, put */
    struct pd_producer_reject *rejects;              /* G: ring of PD_REJECTS_MAX */

    uint64_t call_sent_bytes, call_credit_bytes; /* G: of the current call */
    uint64_t call_duplicates;                    /* G: counted by the current call's last Ack */
    bool call_welcomed;                          /* T */
    struct pd_backoff backoff;                   /* T */
};

#define PD_PRODUCER_MAGIC 0x70726f64u

/* The thread. */
void *pd_push_run(void *producer);
/* Puts the open block on the list; lock held. PACKD_ENOMEM: it stays open. */
int pd_push_seal(struct packd_producer *producer);
/* Wakes the thread, whatever it waits for; lock held. */
void pd_push_wake(struct packd_producer *producer);

#endif
