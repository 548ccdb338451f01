/* Bytes in the log: who may add to them, what jobs hold of them, and deleting the rest. Private
 * to server/sequencer*.c, on its thread; see sequencer_state.h. */
#ifndef PD_SERVER_SEQUENCER_SPACE_H
#define PD_SERVER_SEQUENCER_SPACE_H

#include "server/sequencer_state.h"

/* ---- sequencer_space.c ---- */

int pd_seq_space_start(struct pd_sequencer *seq) PD_MUST_CHECK;
void pd_seq_space_stop(struct pd_sequencer *seq);
int pd_seq_space_init(struct pd_seq_feed *feed) PD_MUST_CHECK;
void pd_seq_space_fini(struct pd_seq_feed *feed);
/* Counts what is in the log; the planners are where they were. */
int pd_seq_space_load(struct pd_sequencer *seq, struct pd_error *error) PD_MUST_CHECK;
/* A block has been appended; its lane has been drawn from; a block has been deleted. */
int pd_seq_space_add(const struct pd_sequencer *seq, struct pd_seq_feed *feed,
                     const struct pd_log_block_facts *block) PD_MUST_CHECK;
void pd_seq_space_drawn(struct pd_seq_feed *feed);
void pd_seq_space_freed(void *seq, const struct pd_log_block_facts *block);
/* Whether there is room for the block; PD_EFULL LOG_FULL. */
int pd_seq_space_check(struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                       const struct pd_block *block, struct pd_error *error) PD_MUST_CHECK;
uint64_t pd_seq_feed_bytes(const struct pd_seq_feed *feed);
uint64_t pd_seq_unplanned_bytes(const struct pd_seq_feed *feed);
/* What the feed may use of its share: a slice is kept for plans, ends, commits and trims. */
uint64_t pd_seq_room_bytes(const struct pd_sequencer *seq, const struct pd_seq_feed *feed);
/* Whether the job's steps fit into what may be held, half of the room: those that are there
 * together (PD_ELIMIT STEP_TOO_LARGE), and those between two commits (COMMIT_TOO_RARE). By the
 * tokens of full packs; samples with labels, tensors or long heads hold more. */
int pd_seq_job_fits(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                    const struct pd_job_spec *spec, struct pd_error *error) PD_MUST_CHECK;
/* After each commit: who may add from now on, and what to do where nobody can. */
void pd_seq_space_tell(struct pd_sequencer *seq);
/* Writes the flushes that are due for lack of space. */
int pd_seq_space_flush(struct pd_sequencer *seq);

/* ---- sequencer_trim.c ---- */

/* One step of trimming each feed: raises lowest_pack, or deletes below it. */
int pd_seq_trim(struct pd_sequencer *seq);
/* The feed's part of log.max_bytes. */
uint64_t pd_seq_share_bytes(const struct pd_sequencer *seq, const struct pd_seq_feed *feed);
/* So many packs after the last one a snapshot is due. */
uint64_t pd_seq_snapshot_packs(const struct pd_sequencer *seq, const struct pd_seq_feed *feed);
int pd_seq_mark_add(struct pd_sequencer *seq, struct pd_seq_feed *feed, uint64_t position,
                    uint64_t packs, struct pd_error *error) PD_MUST_CHECK;
/* The lowest step that the job's retained commits can lead back to. */
uint64_t pd_seq_job_floor_step(const struct pd_seq_feed *feed, const struct pd_seq_job *job);
/* The first step that a commit could still be for: behind the last one, and what is left out. */
uint64_t pd_seq_job_done(const struct pd_seq_job *job);
/* Next step after the last one its ranks may have: until one is delivered after a restart, every
 * planned one counts. */
uint64_t pd_seq_job_reached(const struct pd_seq_feed *feed, const struct pd_seq_job *job);
/* The lowest step of the job that is still in the log. */
uint64_t pd_seq_lowest_step(const struct pd_seq_feed *feed, const struct pd_seq_job *job);
/* The trainer that holds most; NULL: none. */
struct pd_seq_job *pd_seq_slowest_job(const struct pd_seq_feed *feed);
/* Log bytes that the job holds, and that a step of it takes: means. */
void pd_seq_job_held(const struct pd_seq_feed *feed, const struct pd_seq_job *job,
                     uint64_t *bytes_held, uint64_t *bytes_per_step);
/* With the log full: where the slowest job has received every step there is, and more cannot be
 * planned, its oldest retained commit gives way, loudly; the last one never does. Else its trainer
 * and its producers would wait for each other, for good where it does not commit out of turn.
 * False: there is none to give, or no need. */
bool pd_seq_give_up_commit(struct pd_seq_feed *feed);
/* Whether a commit of the feed's slowest job, or of one that is configured and has not come, would
 * free space; *stall says which. */
bool pd_seq_stall_of(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                     struct pd_stall *stall);

#endif
