/* Costs of a part's packs from the log, sorted once for its steps.
 *
 * Used by the assemble threads and by Explain, each with an order of its own. Invariant: the order
 * is a function of the plan and the configuration, so whoever works it out gets the same. */
#include "server/step_order.h"

#include "base/check.h"

#include <stdlib.h>

void pd_step_order_fini(struct pd_step_order *order)
{
    free(order->costs);
    free(order->order);
    pd_pack_fini(&order->pack);
    *order = (struct pd_step_order){0};
}

static int reserve(struct pd_step_order *order, uint32_t count)
{
    if (count <= order->capacity)
        return 0;
    uint64_t *costs = reallocarray(order->costs, count, sizeof *costs);
    if (!costs)
        return PD_ENOMEM;
    order->costs = costs;
    uint32_t *entries = reallocarray(order->order, count, sizeof *entries);
    if (!entries)
        return PD_ENOMEM;
    order->order = entries;
    order->capacity = count;
    return 0;
}

static int read_costs(struct pd_step_order *order, struct pd_log_reader *reader,
                      const struct pd_feed_config *config, const struct pd_step_place *place,
                      uint64_t *failed)
{
    for (uint32_t i = 0; i < place->part_pack_count; i++) {
        struct pd_totals totals = {0};
        *failed = place->part_first_pack + i;
        int rc = pd_log_read_pack(reader, order->feed_index, *failed, &order->pack);
        if (rc != 0)
            return rc;
        pd_totals_add(&totals, &order->pack, PD_LOSS_TOKEN, config->layout.cost);
        order->costs[i] = totals.attention_cost;
    }
    return 0;
}

static bool knows(const struct pd_step_order *order, uint32_t feed_index, uint32_t step_packs,
                  const struct pd_step_place *place)
{
    return order->pack_count == place->part_pack_count && order->feed_index == feed_index &&
           order->step_packs == step_packs && order->block == place->part.block &&
           order->first_pack == place->part_first_pack;
}

int pd_step_order_load(struct pd_step_order *order, struct pd_log_reader *reader,
                       uint32_t feed_index, const struct pd_job_steps *job,
                       const struct pd_step_place *place, uint64_t *failed)
{
    *failed = place->part_first_pack;
    if (place->part.steps == 0 || knows(order, feed_index, job->step_packs, place))
        return 0;
    order->pack_count = 0;
    order->feed_index = feed_index;
    order->step_packs = job->step_packs;
    order->first_pack = place->part_first_pack;
    order->block = place->part.block;
    int rc = reserve(order, place->part_pack_count);
    if (rc == 0)
        rc = read_costs(order, reader, job->config, place, failed);
    if (rc != 0)
        return rc;
    struct pd_balance_rules balance = pd_job_balance(job);
    pd_balance_sort(&balance, &place->part, order->costs, place->part_pack_count, order->order);
    order->pack_count = place->part_pack_count;
    return 0;
}

uint64_t pd_step_order_pack(const struct pd_step_order *order, const struct pd_step_place *place,
                            uint32_t entry)
{
    PD_CHECK(entry < place->pack_count);
    if (place->part.steps == 0)
        return place->first_pack + entry;
    PD_CHECK(knows(order, order->feed_index, order->step_packs, place));
    uint32_t at = (uint32_t)(place->first_pack - place->part_first_pack) + entry;
    return place->part_first_pack + order->order[at];
}
