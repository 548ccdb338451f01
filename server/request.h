/* What the sequencer is asked: the head of every request, and what producers ask. */
#ifndef PD_SERVER_REQUEST_H
#define PD_SERVER_REQUEST_H

#include "base/list.h"
#include "base/name.h"
#include "server/block.h"

enum pd_request_kind {
    PD_REQUEST_OPEN_STREAM,
    PD_REQUEST_APPEND,
    PD_REQUEST_END_STREAM,
    PD_REQUEST_CLOSE_STREAM,
    PD_REQUEST_END_FEED,
    PD_REQUEST_OPEN_JOB,
    PD_REQUEST_COMMIT,
    PD_REQUEST_DELIVERED,
    PD_REQUEST_FLUSH,
    PD_REQUEST_DELETE_JOB,
    PD_REQUEST_SKIP_STEPS,
    PD_REQUEST_SET_MIXTURE,
    PD_REQUEST_SKIP_SAMPLES,
    PD_REQUEST_DELETE_STREAM,
    PD_REQUEST_DELETE_FEED,
    PD_REQUEST_RELOAD,
    PD_REQUEST_STATUS,
};

/* The common head of every request: embed it first, fill `kind` and `done`, keep the memory
 * until done has run. */
struct pd_request {
    struct pd_link link;
    enum pd_request_kind kind;
    void (*done)(struct pd_request *request); /* sequencer thread, after the commit */
    int result;                               /* 0 or PD_E* */
    uint64_t record;         /* position of the record that a control call wrote; 0 = none */
    uint64_t effective_pack; /* the first pack it can act on, where it changes plans */
    struct pd_error error;   /* filled where result != 0 */
};

/* What a producer says its tokens were made with; size 0: not stated. The first one stated is the
 * feed's. */
#define PD_TOKENIZER_MAX 64
struct pd_tokenizer {
    uint8_t bytes[PD_TOKENIZER_MAX];
    uint8_t size;
};

/* Why samples of a stream were refused, each reason once, with ", " between; a reason that does not
 * fit is left out. */
#define PD_REJECTED_FOR_MAX 128

/* Hello. PD_ENOTFOUND UNKNOWN_FEED; PD_EEXIST CONTENT_CHANGED (another content_id, both named),
 * SOURCE_CHANGED, STREAM_IN_OTHER_FEED; PD_EMISMATCH UNKNOWN_SOURCE, STREAM_NOT_DECLARED,
 * FEED_ENDED, TOKENIZER_MISMATCH; PD_EINVAL BAD_NAME; PD_ELIMIT TOO_MANY_STREAMS, TOO_MANY_SOURCES.
 * A newer call on a stream fences the older: its appends get PD_EFENCED. */
struct pd_request_open_stream {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1], stream[PD_NAME_MAX + 1], source[PD_NAME_MAX + 1];
    char producer[256], content_id[256];
    struct pd_tokenizer tokenizer;
    /* out */
    uint32_t feed_index, stream_id, lane, source_id;
    uint64_t epoch;    /* of this call on the stream; carried by its appends */
    uint64_t next_seq; /* first seq not in the log */
    uint64_t rejected; /* samples below it that were refused */
    char rejected_for[PD_REJECTED_FOR_MAX];
    bool ended;
};

/* `count` samples of a block from `index` on were refused for one reason. */
struct pd_refusal {
    uint32_t index, count;
    const char *reason; /* static, at most PD_REASON_MAX - 1 bytes */
};

/* One block; takes block (released after the commit, or on failure). Leading duplicates are
 * dropped and counted. PD_EINVAL SEQ_GAP (the expected seq is named); PD_EFENCED; PD_EMISMATCH
 * STREAM_ENDED, FEED_ENDED; PD_EFULL LOG_FULL; PD_ELIMIT HEAD_TOO_LARGE, TOO_MANY_VIEWS,
 * TOO_MANY_TENSORS; PD_EINVAL BAD_TENSOR, BAD_BLOCK. */
struct pd_request_append {
    struct pd_request base;
    struct pd_block *block; /* taken */
    uint64_t epoch;
    /* Why samples of the block were refused, ascending by index; borrowed until done. */
    const struct pd_refusal *refusals;
    uint32_t refusal_count;
    /* out */
    uint64_t durable_seq; /* every seq below it is in the log */
    uint32_t duplicates;
};

struct pd_request_end_stream {
    struct pd_request base;
    uint32_t feed_index, stream_id;
    uint64_t epoch;
    uint64_t next_seq; /* must be the stream's, else PD_EINVAL SEQ_GAP */
};

/* The call that opened the stream is gone: it counts as connected no longer, unless a newer one
 * has it. Never fails. */
struct pd_request_close_stream {
    struct pd_request base;
    uint32_t stream_id;
    uint64_t epoch;
};

#endif
