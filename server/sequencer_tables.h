/* What the log keeps of the sequencer's state as rows: streams, jobs, feeds, numbers of views
 * and tensors. Private to server/sequencer*.c, on its thread; see sequencer_state.h. */
#ifndef PD_SERVER_SEQUENCER_TABLES_H
#define PD_SERVER_SEQUENCER_TABLES_H

#include "server/sequencer_state.h"

/* ---- sequencer_rows.c ---- */

void pd_seq_stream_encode(const struct pd_seq_stream *stream, struct pd_buf *row);
int pd_seq_stream_decode(struct pd_seq_stream *stream, struct pd_reader row) PD_MUST_CHECK;
void pd_seq_job_encode(const struct pd_seq_job *job, struct pd_buf *row);
int pd_seq_job_decode(struct pd_seq_job *job, struct pd_reader row) PD_MUST_CHECK;
void pd_seq_feed_encode(const struct pd_seq_feed *feed, struct pd_buf *row);
int pd_seq_feed_decode(struct pd_seq_feed *feed, struct pd_reader row) PD_MUST_CHECK;
/* Writes every dirty row. */
int pd_seq_rows_write(struct pd_sequencer *seq) PD_MUST_CHECK;

/* ---- sequencer_names.c ---- */

/* Gives the block's views and tensors the feed's numbers; new ones are written. PD_EINVAL
 * BAD_TENSOR (another declaration than at its first use), PD_ELIMIT TOO_MANY_VIEWS,
 * TOO_MANY_TENSORS; what writing to the log says. */
int pd_seq_names_number(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_block *block,
                        struct pd_error *error) PD_MUST_CHECK;
/* The same for one view that a rule names. */
int pd_seq_view_number(struct pd_sequencer *seq, struct pd_seq_feed *feed, const char *name,
                       struct pd_error *error) PD_MUST_CHECK;
/* Rows of the tables, in order, for pd_log_scan_rows; ctx is the state. */
int pd_seq_view_load(void *ctx, uint32_t number, uint32_t view, struct pd_reader row);
int pd_seq_tensor_load(void *ctx, uint32_t number, uint32_t tensor, struct pd_reader row);

#endif
