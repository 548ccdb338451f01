/* Planning: heads for the planner, horizon, plans, snapshots, stops. Private to
 * server/sequencer*.c, on its thread; see sequencer_state.h. */
#ifndef PD_SERVER_SEQUENCER_PLANNING_H
#define PD_SERVER_SEQUENCER_PLANNING_H

#include "server/sequencer_state.h"

/* Restores the planner from the newest usable snapshot (or makes a new one) and sets
 * replay_from. A feed that cannot be restored is stopped. */
int pd_seq_planner_load(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                        struct pd_error *error) PD_MUST_CHECK;
/* Replays one record of the feed. */
int pd_seq_planner_replay(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                          const struct pd_record *record);
/* Tells the planner a control record that is about to be written at the log's next position. */
int pd_seq_planner_control(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                           struct pd_control *control, struct pd_error *error);
/* Plans up to the horizon and writes plans, Horizon, and a snapshot when one is due. */
int pd_seq_plan(struct pd_sequencer *seq, struct pd_seq_feed *feed);
int pd_seq_snapshot(struct pd_sequencer *seq, struct pd_seq_feed *feed);
uint64_t pd_seq_horizon(const struct pd_seq_feed *feed);
/* Plans nothing more of this feed, loudly. */
void pd_seq_feed_stop(struct pd_seq_feed *feed, int code, const char *reason, const char *text);
void pd_seq_supply_fini(struct pd_seq_supply *supply);

/* How a snapshot begins; `floors` is at lane_count numbers, `planner` behind them. PD_ECORRUPT. */
struct pd_seq_snapshot_start {
    uint64_t packs, plan_digest;
    uint32_t lane_count;
    struct pd_reader floors;
};
int pd_seq_snapshot_start(struct pd_reader *reader,
                          struct pd_seq_snapshot_start *start) PD_MUST_CHECK;

#endif
