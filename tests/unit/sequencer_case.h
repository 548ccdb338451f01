/* A daemon's core without its wire: log, sequencer and a stand-in for serve that records what it
 * is told, driven by calls that wait for their answer.
 *
 * One case is one data directory in scratch_dir(). Test thread only, but for what serve's
 * stand-in records (sequencer thread, under a lock). */
#ifndef PD_TESTS_UNIT_SEQUENCER_CASE_H
#define PD_TESTS_UNIT_SEQUENCER_CASE_H

#include "server/log_writer.h"
#include "server/sequencer.h"
#include "tests/unit/random.h"

#include <pthread.h>

#define CASE_JOBS_MAX 8

struct pd_serve {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct pd_feed_progress progress[4];
    uint32_t told[4];
    struct pd_job_info jobs[CASE_JOBS_MAX]; /* as opened, by job_id, of any feed */
    uint32_t opened, deleted;
    uint32_t calls; /* open fetches, of every job */
};

struct seq_case {
    struct pd_config config;
    char dir[512];
    struct pd_log *log;
    struct pd_serve serve;
    struct pd_sequencer *seq;
    struct pd_log_reader *reader;
};

/* A configuration of `feeds` feeds "feed0", ...: seq_len 64, window 16, process durability. */
void seq_case_config(struct seq_case *c, uint32_t feeds);
void seq_case_fini(struct seq_case *c);
/* A new empty directory. */
void seq_case_dir(struct seq_case *c, const char *name);
/* Opens log, sequencer and reader; PD_E* of the first that fails. */
int seq_case_start(struct seq_case *c, struct pd_error *error);
void seq_case_stop(struct seq_case *c);
/* What kill -9 would leave: a copy of the log file as of the last commit, in to->dir; the same
 * configuration. */
void seq_case_copy(const struct seq_case *from, struct seq_case *to, const char *name);

/* Submits and waits; returns the result. */
int seq_call(struct seq_case *c, struct pd_request *request);

/* One producer's stream. */
struct seq_stream {
    char feed[PD_NAME_MAX + 1], name[PD_NAME_MAX + 1], source[PD_NAME_MAX + 1], content_id[64];
    struct pd_request_open_stream open;
};
int seq_open(struct seq_case *c, struct seq_stream *stream);

/* A block of `count` samples from `first_seq` on. Token t of sample s is seq_token(stream name,
 * s, t). */
struct seq_block_spec {
    uint64_t first_seq;
    uint32_t count;
    const uint32_t *lengths;
    bool labels;
    const uint8_t *rejected;
    uint32_t cuts; /* the body comes in pieces of at most so many bytes; 0 = one piece */
};
int32_t seq_token(const char *stream, uint64_t seq, uint32_t index);
struct pd_block *seq_block(const struct seq_stream *stream, const struct seq_block_spec *spec);
/* Blocks that were made and not released. */
int seq_blocks_alive(void);
int seq_push(struct seq_case *c, struct seq_stream *stream, const struct seq_block_spec *spec,
             struct pd_request_append *answer);
int seq_end(struct seq_case *c, struct seq_stream *stream, uint64_t next_seq);
int seq_end_feed(struct seq_case *c, const char *feed);
int seq_flush(struct seq_case *c, const char *feed, uint64_t packs);
struct pd_request_open_job seq_job_request(const char *feed, const char *job, uint32_t dp_size,
                                           uint32_t rows, uint32_t accum, const char *token);
int seq_commit(struct seq_case *c, const char *feed, const char *job, uint64_t generation,
               uint64_t step, uint64_t fetched, struct pd_error *error);
int seq_deliver(struct seq_case *c, uint32_t feed, uint32_t job, uint64_t step);
/* A rank says that it has this step. */
int seq_say_delivered(struct seq_case *c, uint32_t feed, uint32_t job, uint64_t step);
/* seq_case_start that fails the test; one feed in a new directory, started. */
void seq_start(struct seq_case *c);
void seq_new(struct seq_case *c, const char *name);
/* Stop and fini; every block must have been released. */
void seq_finish(struct seq_case *c);
struct seq_stream seq_stream_of(const char *feed, const char *name);
/* `count` (at most 512) samples of one length. */
int seq_push_lengths(struct seq_case *c, struct seq_stream *stream, uint64_t first_seq,
                     uint32_t count, uint32_t length, struct pd_request_append *answer);
/* Fini with pd_status_fini. */
struct pd_request_status seq_status(struct seq_case *c);

/* What serve was told last of a feed; safe while the sequencer runs. */
struct pd_feed_progress seq_progress(struct seq_case *c, uint32_t feed_index);

#endif
