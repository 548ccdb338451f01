/* Feeds of the configuration and of the log: EndFeed, Flush, DeleteStream, DeleteFeed, feeds
 * that end alone. Private to server/sequencer*.c, on its thread; see sequencer_state.h. */
#ifndef PD_SERVER_SEQUENCER_FEEDS_H
#define PD_SERVER_SEQUENCER_FEEDS_H

#include "server/sequencer_state.h"

/* ---- sequencer_feeds.c ---- */

/* Joins configuration and log: new feeds are added, changed ones recorded or refused
 * (PD_EMISMATCH). */
int pd_seq_feeds_configure(struct pd_sequencer *seq, struct pd_error *error) PD_MUST_CHECK;
/* Whether there is no free number. */
bool pd_seq_feeds_full(const struct pd_seq_state *state);
/* A feed without data for seq->config->feeds[index], under a free number. PD_ELIMIT
 * TOO_MANY_FEEDS. */
int pd_seq_feed_make(struct pd_sequencer *seq, uint32_t index, struct pd_seq_feed **feed,
                     struct pd_error *error) PD_MUST_CHECK;
int pd_seq_end_feed(struct pd_sequencer *seq, struct pd_request_end_feed *request);
int pd_seq_flush(struct pd_sequencer *seq, struct pd_request_flush *request);
/* Writes a Flush and tells the planner. */
int pd_seq_flush_write(struct pd_sequencer *seq, struct pd_seq_feed *feed, uint64_t packs,
                       struct pd_error *error);
/* The end of the earliest step that a trainer waits for and that is not planned whole; 0 = none. */
uint64_t pd_seq_waited_pack(const struct pd_seq_feed *feed);
/* After a stream has ended: ends its lane, and the feed where all expected streams have. */
int pd_seq_feed_check_end(struct pd_sequencer *seq, struct pd_seq_feed *feed, uint32_t lane,
                          struct pd_error *error);
/* max_wait: flushes what trainers have waited for too long; sets seq->next_timer_ns. */
int pd_seq_feeds_idle(struct pd_sequencer *seq, uint64_t now_ns);

/* ---- sequencer_delete.c ---- */

int pd_seq_delete_stream(struct pd_sequencer *seq, struct pd_request_delete_stream *request);
int pd_seq_delete_feed(struct pd_sequencer *seq, struct pd_request_delete_feed *request);
/* Deletes some of what is left of a deleted feed. */
int pd_seq_purge(struct pd_sequencer *seq, struct pd_seq_feed *feed);

#endif
