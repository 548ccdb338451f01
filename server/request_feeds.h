/* What operators ask of the sequencer about whole feeds and streams; see request.h. */
#ifndef PD_SERVER_REQUEST_FEEDS_H
#define PD_SERVER_REQUEST_FEEDS_H

#include "server/config.h"
#include "server/request.h"

struct pd_request_end_feed {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1];
};

struct pd_request_flush {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1];
    uint64_t packs; /* 0 = all */
};

/* New weights for all sources of a feed; nothing is written where they are in force already.
 * PD_ENOTFOUND; PD_EINVAL BAD_MIXTURE (a source left out or named twice, no sources, all weights
 * 0), BAD_RANGE; PD_EMISMATCH UNKNOWN_SOURCE, FEED_ENDED; PD_ELIMIT TOO_MANY_CHANGES. */
struct pd_source_weight {
    const char *source;
    uint64_t weight;
};
struct pd_request_set_mixture {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1];
    const struct pd_source_weight *weights; /* borrowed until done */
    size_t weight_count;
};

/* Leaves out samples that are in the log and in no pack yet: those for which everything that is set
 * holds. PD_ENOTFOUND UNKNOWN_FEED, UNKNOWN_STREAM; PD_EMISMATCH UNKNOWN_SOURCE, FEED_ENDED;
 * PD_EINVAL BAD_RANGE; PD_ELIMIT TOO_MANY_SKIPS. */
struct pd_request_skip_samples {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1], stream[PD_NAME_MAX + 1], source[PD_NAME_MAX + 1]; /* "" = any */
    struct pd_skip_rule rule; /* stream and source are filled in from the names */
    char why[256];
};

/* Ends the stream where it is and forgets its name; its samples that are in no pack yet are left
 * out. PD_ENOTFOUND UNKNOWN_FEED, UNKNOWN_STREAM; PD_EMISMATCH IN_USE: a producer is connected, and
 * not `force`; PD_ELIMIT TOO_MANY_SKIPS. */
struct pd_request_delete_stream {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1], stream[PD_NAME_MAX + 1];
    bool force;
};

/* Forgets everything of the feed; the configured one starts anew, one that the log alone knows is
 * gone. PD_ENOTFOUND; PD_EMISMATCH IN_USE; PD_ELIMIT TOO_MANY_FEEDS (others are still being
 * deleted). */
struct pd_request_delete_feed {
    struct pd_request base;
    char feed[PD_NAME_MAX + 1];
    bool force;
};

/* The configuration read again: planning rules and weights of its feeds, as at a start; other keys
 * act at the next start. All or nothing. PD_EMISMATCH FIXED_KEY; PD_ELIMIT TOO_MANY_CHANGES. */
struct pd_request_reload {
    struct pd_request base;
    /* Where the request succeeds, borrowed until another one does or the sequencer is freed. */
    const struct pd_config *config;
    uint32_t changed; /* out: feeds that plan otherwise from now on */
};

#endif
