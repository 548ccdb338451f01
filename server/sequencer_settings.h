/* A feed's settings in the log, and what changes them while it runs: Reload, SetMixture,
 * SkipSamples. Private to server/sequencer*.c, on its thread; see sequencer_state.h. */
#ifndef PD_SERVER_SEQUENCER_SETTINGS_H
#define PD_SERVER_SEQUENCER_SETTINGS_H

#include "server/sequencer_state.h"

/* ---- sequencer_settings.c ---- */

/* Settings that shape batches, as key and value texts: recorded, compared at the next start. */
void pd_seq_settings_encode(const struct pd_feed_config *config, struct pd_buf *buf);
/* Those of a feed with data against those of the file: PD_EMISMATCH FIXED_KEY names a key that must
 * not change; what changed and may is noted in the feed. */
int pd_seq_settings_compare(struct pd_seq_feed *feed, const struct pd_buf *wanted,
                            struct pd_error *error) PD_MUST_CHECK;
/* Once the planner is there: writes the records of what was noted. */
int pd_seq_settings_act(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                        struct pd_error *error) PD_MUST_CHECK;
/* Sets the rules that settings name; the weights of their sources, returns how many there are. */
void pd_seq_settings_rules(const struct pd_seq_feed *feed, const struct pd_buf *settings,
                           struct pd_live_rules *live);
/* Gives the sources and views that pruning rules name their numbers, before a sample may bring
 * them. PD_ELIMIT TOO_MANY_VIEWS, TOO_MANY_SOURCES; what writing to the log says. */
int pd_seq_settings_names(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                          const struct pd_buf *settings, struct pd_error *error) PD_MUST_CHECK;
uint32_t pd_seq_settings_weights(const struct pd_buf *settings,
                                 uint32_t weights[PD_LANES_WEIGHTED_MAX]);
/* The feed as the file that was read last says it. */
const struct pd_feed_config *pd_seq_file_feed(const struct pd_sequencer *seq,
                                              const struct pd_feed_config *config);
/* Takes `settings` for the feed's, as a record. */
int pd_seq_settings_record(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                           struct pd_buf *settings, struct pd_error *error) PD_MUST_CHECK;
int pd_seq_reload(struct pd_sequencer *seq, struct pd_request_reload *request);
/* The control of a RULES record. */
void pd_seq_settings_replay(const struct pd_seq_feed *feed, struct pd_control *control,
                            struct pd_reader *body);

/* ---- sequencer_controls.c ---- */

int pd_seq_set_mixture(struct pd_sequencer *seq, struct pd_request_set_mixture *request);
int pd_seq_skip_samples(struct pd_sequencer *seq, struct pd_request_skip_samples *request);
/* Records weights, one a lane, and tells the planner; *pack is the first they act on. */
int pd_seq_mixture_write(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                         const uint32_t weights[PD_LANES_WEIGHTED_MAX], uint64_t *pack,
                         struct pd_error *error) PD_MUST_CHECK;
/* Appends a rule to a record's body, reads it back. */
void pd_seq_rule_encode(const struct pd_control *control, struct pd_buf *body);
void pd_seq_rule_decode(struct pd_control *control, struct pd_reader *body);

#endif
