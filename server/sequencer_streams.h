/* Streams and sources: OpenStream, Append, EndStream, CloseStream. Private to
 * server/sequencer*.c, on its thread; see sequencer_state.h. */
#ifndef PD_SERVER_SEQUENCER_STREAMS_H
#define PD_SERVER_SEQUENCER_STREAMS_H

#include "server/sequencer_state.h"

/* The number of a source label, made when it is new and the feed has no fixed list. PD_EMISMATCH
 * UNKNOWN_SOURCE, PD_ELIMIT TOO_MANY_SOURCES; what writing to the log says. */
int pd_seq_source_number(struct pd_sequencer *seq, struct pd_seq_feed *feed, const char *source,
                         uint32_t *number, struct pd_error *error) PD_MUST_CHECK;

/* The table of epochs that any thread may read. PD_ENOMEM. */
int pd_seq_epochs_init(struct pd_sequencer *seq) PD_MUST_CHECK;
/* After streams were forgotten. */
void pd_seq_epochs_tell(struct pd_sequencer *seq);
int pd_seq_open_stream(struct pd_sequencer *seq, struct pd_request_open_stream *request);
int pd_seq_append(struct pd_sequencer *seq, struct pd_request_append *request);
int pd_seq_end_stream(struct pd_sequencer *seq, struct pd_request_end_stream *request);
int pd_seq_close_stream(struct pd_sequencer *seq, struct pd_request_close_stream *request);
/* The stream's row is written with the group. */
void pd_seq_stream_touch(struct pd_seq_state *state, struct pd_seq_stream *stream);
/* Takes stream; PD_ENOMEM. */
int pd_seq_stream_add(struct pd_seq_state *state, struct pd_seq_stream *stream) PD_MUST_CHECK;
/* The stream of this name, not a deleted one; NULL: none. */
struct pd_seq_stream *pd_seq_stream_find(const struct pd_seq_state *state, const char *name);
/* Nobody finds it by its name any more, and its call is fenced. */
void pd_seq_stream_forget(struct pd_seq_state *state, struct pd_seq_stream *stream);
/* The same for all streams of the feed of this number, which they leave. */
void pd_seq_streams_forget(struct pd_seq_state *state, uint32_t feed);

#endif
