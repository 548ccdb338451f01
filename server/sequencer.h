/* The sequencer: the only writer of durable state. One thread, one mailbox, one LMDB transaction
 * per group of requests.
 *
 *   rpc, serve, main ──pd_request──> mailbox ──> [begin; apply each; plan; commit]
 *                                                 └──> serve hears of it, then done() of each
 *
 * Nothing leaves before the commit: acks, plans and job records are told only once they are in
 * the log. A request's `done` runs on the sequencer's thread and must only post somewhere else.
 * A group is closed at log.commit_bytes or log.commit_ms, or when the mailbox is empty. If a
 * commit fails for lack of space, the whole group is undone, memory is rebuilt from the log as
 * at start-up, and the requests answer PD_EFULL.
 *
 * When full: the mailbox holds at most PD_SEQUENCER_REQUESTS_MAX requests (each call has one in
 * flight; the bytes of blocks are bounded by ingest credit), more are refused with PD_EFULL. */
#ifndef PD_SERVER_SEQUENCER_H
#define PD_SERVER_SEQUENCER_H

#include "server/request_feeds.h"
#include "server/request_jobs.h"
#include "server/request_status.h"
#include "server/serve.h"

#define PD_SEQUENCER_REQUESTS_MAX 65536

/* A job whose uncommitted steps fill the log. */
struct pd_stall {
    char feed[PD_NAME_MAX + 1], job[PD_NAME_MAX + 1];
    uint64_t first_step; /* the lowest it holds */
    uint64_t bytes_held, bytes_per_step, bytes_max;
    uint64_t bytes_left; /* until the log is full */
};

struct pd_sequencer;

/* Opens the state from the log (replays what the snapshot does not hold) and starts the thread.
 * Feeds of the configuration that are not in the log are added; a fixed key changed on a feed
 * with data is PD_EMISMATCH naming the key and both values. */
int pd_sequencer_start(const struct pd_config *config, struct pd_log *log, struct pd_serve *serve,
                       struct pd_sequencer **sequencer, struct pd_error *error) PD_MUST_CHECK;
/* Any thread. PD_ECLOSED once stopping, PD_EFULL; then done is not called and the request (and
 * its block) still belong to the caller. */
int pd_sequencer_submit(struct pd_sequencer *sequencer, struct pd_request *request) PD_MUST_CHECK;
/* Finishes what is queued, writes a snapshot, joins the thread. Requests submitted later get
 * PD_ECLOSED. */
void pd_sequencer_stop(struct pd_sequencer *sequencer);
/* Whether credit may be granted for a lane of a feed; the door asks before each grant. */
enum pd_seq_accept {
    PD_SEQ_ACCEPTS,
    PD_SEQ_LANE_SHARE,   /* the lane has its part of the log in samples that are not planned */
    PD_SEQ_LOG_FULL,     /* no space, in the log or in the feed's share of it */
    PD_SEQ_STOPPED_FEED, /* planning has stopped for good */
};
/* Any thread; *why says it in words (static). */
enum pd_seq_accept pd_sequencer_accepts(const struct pd_sequencer *sequencer, uint32_t feed_index,
                                        uint32_t lane, const char **why);
/* Some feed, or this one, takes no further samples for lack of space. Any thread. */
bool pd_sequencer_log_full(const struct pd_sequencer *sequencer);
bool pd_sequencer_feed_full(const struct pd_sequencer *sequencer, uint32_t feed_index);
/* True where the log is nearly full and a commit of stall->job would free space; once the feed is
 * full, nothing else can. Any thread. */
bool pd_sequencer_stall(struct pd_sequencer *sequencer, uint32_t feed_index,
                        struct pd_stall *stall);
/* False once a newer Hello has the stream, or it was deleted. Any thread. */
bool pd_sequencer_owns(const struct pd_sequencer *sequencer, uint32_t stream_id, uint64_t epoch);
void pd_sequencer_free(struct pd_sequencer *sequencer);

#endif
