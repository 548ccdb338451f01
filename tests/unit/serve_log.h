/* A log in memory for tests of serving: the reading functions of server/log.h over arrays, with
 * damage on demand.
 *
 * Samples are made from a seed and packed next-fit, in order, into rows of seq_len; tokens of a
 * sample follow from its stream, seq and place. Link this instead of the log. */
#ifndef PD_TESTS_SERVE_LOG_H
#define PD_TESTS_SERVE_LOG_H

#include "server/log.h"

#include <stdatomic.h>

struct serve_log_options {
    uint64_t seed;
    uint32_t packs;
    uint32_t seq_len, seg_align;
    uint32_t shortest, longest; /* sample lengths */
    uint32_t streams;
    bool labels; /* every third block has pushed labels */
    bool masks;  /* every second block has loss runs */
    bool keys;
    bool weights;
};

struct pd_log {
    struct serve_log_options options;
    struct pd_pack *packs;
    uint32_t pack_count;
    struct pd_block_head *heads;
    uint32_t block_count;
    atomic_uint_fast64_t pack_reads;
    atomic_uint feed_number; /* but 0: another feed's, of which there are no packs */
    /* the sample (stream, seq) whose bytes do not match their digest in the next `damaged_reads`
     * reads */
    uint32_t damaged_stream;
    uint64_t damaged_seq;
    atomic_int damaged_reads;
    atomic_uint_fast64_t trimmed_packs; /* packs below are gone */
    uint64_t lost_pack;                 /* is gone too; 0: none */
};

struct pd_log *serve_log_new(const struct serve_log_options *options);
void serve_log_free(struct pd_log *log);

#endif
