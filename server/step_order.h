/* Which pack is which entry of a step, from the log where balance asks for the packs' costs.
 *
 * Zeroed memory is an order that knows nothing. It keeps what it has worked out for one part of a
 * job: the steps of a part ask for the same. Bytes: 12 a pack, at most PD_BALANCE_STEPS_MAX steps.
 * Owner's thread, inside a read transaction of the reader it is given. */
#ifndef PD_SERVER_STEP_ORDER_H
#define PD_SERVER_STEP_ORDER_H

#include "server/job_steps.h"
#include "server/log.h"

struct pd_step_order {
    uint32_t feed_index, step_packs, pack_count, capacity;
    uint64_t first_pack; /* of the part whose order this is; pack_count 0: of none */
    uint64_t block;
    uint64_t *costs; /* owned, as order: `capacity` of each */
    uint32_t *order;
    struct pd_pack pack; /* scratch */
};

void pd_step_order_fini(struct pd_step_order *order);
/* Makes the order know `place`, a place of `job`; with balance: off there is nothing to know.
 * PD_ENOMEM; what pd_log_read_pack says, *failed is then the pack. */
int pd_step_order_load(struct pd_step_order *order, struct pd_log_reader *reader,
                       uint32_t feed_index, const struct pd_job_steps *job,
                       const struct pd_step_place *place, uint64_t *failed) PD_MUST_CHECK;
/* The pack that is entry `entry` (below place->pack_count) of the place loaded last. */
uint64_t pd_step_order_pack(const struct pd_step_order *order, const struct pd_step_place *place,
                            uint32_t entry);

#endif
