/* validate.on_violation: skip_step, between serve and the sequencer: what serve wants left out
 * becomes a SkipSteps record. */
#ifndef PD_SERVER_SKIP_STEP_H
#define PD_SERVER_SKIP_STEP_H

#include "server/sequencer.h"

/* Borrowed as long as serve's threads run; `sequencer` is set before the first batch is built. */
struct pd_skip_step {
    const struct pd_config *config;
    struct pd_serve *serve;
    struct pd_sequencer *sequencer;
};

/* A pd_skip_fn with a struct pd_skip_step as ctx. PD_ENOMEM, or what pd_sequencer_submit says. */
int pd_skip_step_ask(void *skip_step, const struct pd_skip_order *order);

#endif
