/* Which batches have been delivered: ranges of complete steps and bitmaps of open ones in one
 * ordered tree.
 *
 * Place in the flow: serve.c marks a batch when a reader has received it whole; the answer decides
 * what the padding metrics count and when the sequencer is told that a step is delivered. Under
 * serve's lock.
 *
 * Invariant: nodes do not overlap and lie at or above `floor`; neighbouring complete nodes are
 * merged; memory is bounded by nodes and by bitmap bytes.
 *
 * It does not know generations (a new one clears it) and survives no restart: the padding metrics
 * begin anew with the process. */
#include "server/delivered.h"

#include "base/check.h"

#include <stdlib.h>

struct pd_delivered_node {
    RB_ENTRY(pd_delivered_node) tree;
    uint64_t first, last; /* the same for an open step */
    uint32_t missing;     /* batches of an open step; 0 = complete */
    size_t bitmap_bytes;
    uint64_t bits[];
};

static int compare(const struct pd_delivered_node *a, const struct pd_delivered_node *b)
{
    return a->first < b->first ? -1 : a->first > b->first;
}

RB_GENERATE_STATIC(pd_delivered_nodes, pd_delivered_node, tree, compare)

/* The node that holds `step`, or NULL. */
static struct pd_delivered_node *node_of(const struct pd_delivered *d, uint64_t step)
{
    struct pd_delivered_node *node = RB_ROOT(&d->nodes);
    while (node && (step < node->first || step > node->last))
        node = step < node->first ? RB_LEFT(node, tree) : RB_RIGHT(node, tree);
    return node;
}

static void node_drop(struct pd_delivered *d, struct pd_delivered_node *node)
{
    RB_REMOVE(pd_delivered_nodes, &d->nodes, node);
    d->node_count--;
    d->bitmap_bytes -= node->bitmap_bytes;
    free(node);
}

static struct pd_delivered_node *node_add(struct pd_delivered *d, uint64_t step,
                                          size_t bitmap_bytes)
{
    struct pd_delivered_node *node = calloc(1, sizeof *node + bitmap_bytes);
    if (!node)
        return NULL;
    node->first = node->last = step;
    node->bitmap_bytes = bitmap_bytes;
    RB_INSERT(pd_delivered_nodes, &d->nodes, node);
    d->node_count++;
    d->bitmap_bytes += bitmap_bytes;
    return node;
}

static void give_up_lowest(struct pd_delivered *d)
{
    struct pd_delivered_node *lowest = RB_MIN(pd_delivered_nodes, &d->nodes);
    d->floor = lowest->last + 1;
    d->given_up += lowest->missing > 0;
    node_drop(d, lowest);
}

/* A node for a step nothing of which has arrived; NULL: no memory, or the step is below the new
 * floor. */
static struct pd_delivered_node *open_step(struct pd_delivered *d, uint64_t step, uint32_t count)
{
    size_t bitmap_bytes = ((size_t)count + 63) / 64 * sizeof(uint64_t);
    while (d->node_count > 0 && (d->node_count >= PD_DELIVERED_NODES_MAX ||
                                 d->bitmap_bytes + bitmap_bytes > PD_DELIVERED_BYTES_MAX))
        give_up_lowest(d);
    if (step < d->floor)
        return NULL;
    struct pd_delivered_node *node = node_add(d, step, bitmap_bytes);
    if (node)
        node->missing = count;
    return node;
}

/* Turns an open node whose last batch has arrived into a complete range, merged with its
 * neighbours. */
static void close_node(struct pd_delivered *d, struct pd_delivered_node *node)
{
    uint64_t step = node->first;
    if (step + 1 > d->next_complete)
        d->next_complete = step + 1;
    struct pd_delivered_node *before = RB_PREV(pd_delivered_nodes, &d->nodes, node);
    struct pd_delivered_node *after = RB_NEXT(pd_delivered_nodes, &d->nodes, node);
    if (after && after->missing == 0 && after->first == step + 1) {
        node->last = after->last;
        node_drop(d, after);
    }
    if (before && before->missing == 0 && before->last + 1 == step) {
        before->last = node->last;
        node_drop(d, node);
    }
}

int pd_delivered_mark(struct pd_delivered *d, uint64_t step, uint32_t index, uint32_t count,
                      bool *first, bool *complete)
{
    PD_CHECK(index < count);
    *first = *complete = false;
    if (step < d->floor)
        return 0;
    struct pd_delivered_node *node = node_of(d, step);
    if (!node)
        node = open_step(d, step, count);
    if (!node)
        return step < d->floor ? 0 : PD_ENOMEM;
    uint64_t bit = UINT64_C(1) << (index % 64);
    if (node->missing == 0 || node->bits[index / 64] & bit)
        return 0;
    node->bits[index / 64] |= bit;
    *first = true;
    *complete = --node->missing == 0;
    if (*complete)
        close_node(d, node);
    return 0;
}

bool pd_delivered_some(const struct pd_delivered *d, uint64_t step, uint32_t index, uint32_t stride,
                       uint32_t count)
{
    PD_CHECK(stride > 0);
    if (step < d->floor)
        return true;
    const struct pd_delivered_node *node = node_of(d, step);
    if (!node || node->missing == 0)
        return node != NULL;
    for (uint64_t i = index; i < count; i += stride)
        if (!(node->bits[i / 64] & UINT64_C(1) << (i % 64)))
            return false;
    return true;
}

bool pd_delivered_complete(const struct pd_delivered *d, uint64_t step)
{
    if (step < d->floor)
        return true;
    const struct pd_delivered_node *node = node_of(d, step);
    return node && node->missing == 0;
}

void pd_delivered_clear(struct pd_delivered *d)
{
    while (!RB_EMPTY(&d->nodes))
        node_drop(d, RB_ROOT(&d->nodes));
    *d = (struct pd_delivered){0};
}
