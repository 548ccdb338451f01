/* Jobs: OpenJob, Commit, Delivered, DeleteJob, SkipSteps; those that fall silent; another P.
 * Private to server/sequencer*.c, on its thread; see sequencer_state.h. */
#ifndef PD_SERVER_SEQUENCER_JOBS_H
#define PD_SERVER_SEQUENCER_JOBS_H

#include "server/sequencer_state.h"

/* ---- sequencer_jobs.c ---- */

struct pd_job_steps pd_seq_job_steps(const struct pd_seq_feed *feed, const struct pd_seq_job *job);

int pd_seq_open_job(struct pd_sequencer *seq, struct pd_request_open_job *request);
int pd_seq_commit_job(struct pd_sequencer *seq, struct pd_request_commit *request);
int pd_seq_delivered(struct pd_sequencer *seq, struct pd_request_delivered *request);
int pd_seq_delete_job(struct pd_sequencer *seq, struct pd_request_delete_job *request);
/* The job of a request by names; PD_ENOTFOUND UNKNOWN_FEED, UNKNOWN_JOB. */
int pd_seq_job_named(struct pd_sequencer *seq, const char *feed_name, const char *name,
                     struct pd_seq_feed **feed, struct pd_seq_job **job,
                     struct pd_error *error) PD_MUST_CHECK;
/* Its ranks have what is below `step`, and whatever behind it is left out. */
void pd_seq_job_advance(struct pd_seq_job *job, uint64_t step);
void pd_seq_job_free(struct pd_seq_job *job);

/* ---- sequencer_skip.c ---- */

int pd_seq_skip_steps(struct pd_sequencer *seq, struct pd_request_skip_steps *request);

/* Writes the job as it is now as a record, and its row. */
int pd_seq_job_record(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_seq_job *job);

/* ---- sequencer_idle.c ---- */

/* Releases the jobs that have been silent for their feed's idle_release; lowers
 * seq->next_timer_ns. */
int pd_seq_jobs_idle(struct pd_sequencer *seq, uint64_t now_ns);
/* A sign of life: a job that was released holds again. */
int pd_seq_job_alive(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_seq_job *job);

/* ---- sequencer_regroup.c ---- */

/* Gives the job steps of request->spec.step_packs from its last commit on. PD_EMISMATCH REGROUP:
 * not asked for, or not there. */
int pd_seq_regroup(const struct pd_seq_feed *feed, struct pd_seq_job *job,
                   const struct pd_request_open_job *request, struct pd_error *error) PD_MUST_CHECK;

#endif
