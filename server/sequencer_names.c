/* The feed's views and tensors: numbered at their first use, in the log with the block that brings
 * them, the same for ever.
 *
 * Place in the flow: an append, between the check of its block and its writing; at start the tables
 * are loaded. Sequencer thread. Invariant: a name that has a number never gets another, and a
 * tensor never another declaration: batches made before and after a restart, or from another
 * replica of the log, have the same arrays. It does not look at samples. */
#include "server/sequencer_tables.h"

#include <stdlib.h>

/* A block's numbers in the feed's; the first new ones are those that the tables do not have yet. */
struct numbering {
    uint32_t views[PD_VIEWS_MAX];
    uint32_t view_count; /* of the feed, with the block's new ones */
    struct pd_tensor_spec tensors[PD_TENSORS_MAX];
    uint32_t tensor_count;
};

static uint32_t view_find(const struct pd_seq_feed *feed, const char *name)
{
    uint32_t i = 0;
    while (i < feed->view_count && strcmp(feed->views[i], name) != 0)
        i++;
    return i;
}

static int number_views(const struct pd_seq_feed *feed, const struct pd_block *block,
                        struct numbering *to, struct pd_error *error)
{
    to->view_count = feed->view_count;
    for (uint32_t i = 0; i < block->view_count; i++) {
        uint32_t number = view_find(feed, block->views[i]);
        if (number == feed->view_count)
            number = to->view_count++;
        if (number >= PD_VIEWS_MAX)
            return pd_error_set(error, PD_ELIMIT, "TOO_MANY_VIEWS",
                                "feed '%s' has %u views; '%s' would be more than %d", feed->name,
                                feed->view_count, block->views[i], PD_VIEWS_MAX);
        to->views[i] = number;
    }
    return 0;
}

static uint32_t tensor_find(const struct pd_seq_feed *feed, const char *name)
{
    uint32_t i = 0;
    while (i < feed->tensor_count && strcmp(feed->tensors[i].name, name) != 0)
        i++;
    return i;
}

/* The declaration with the feed's numbers; pad masks come when all tensors have theirs. */
static struct pd_tensor_spec renumbered(const struct pd_tensor_spec *spec,
                                        const struct numbering *to, uint32_t number)
{
    struct pd_tensor_spec out = *spec;
    out.number = number;
    out.views = 0;
    for (uint32_t v = 0; v < PD_VIEWS_MAX; v++)
        if (spec->views >> v & 1)
            out.views |= 1ull << to->views[v];
    return out;
}

static int number_tensors(const struct pd_seq_feed *feed, const struct pd_block *block,
                          struct numbering *to, struct pd_error *error)
{
    const struct pd_block_head *head = &block->head;
    to->tensor_count = feed->tensor_count;
    for (uint32_t k = 0; k < head->tensor_count; k++) {
        uint32_t number = tensor_find(feed, head->tensors[k].name);
        if (number == feed->tensor_count)
            number = to->tensor_count++;
        if (number >= PD_TENSORS_MAX)
            return pd_error_set(error, PD_ELIMIT, "TOO_MANY_TENSORS",
                                "feed '%s' has %u tensors; '%s' would be more than %d", feed->name,
                                feed->tensor_count, head->tensors[k].name, PD_TENSORS_MAX);
        to->tensors[k] = renumbered(&head->tensors[k], to, number);
    }
    for (uint32_t k = 0; k < head->tensor_count; k++)
        if (head->tensors[k].pad_mask != PD_TENSOR_NONE)
            to->tensors[k].pad_mask = (uint8_t)to->tensors[head->tensors[k].pad_mask].number;
    return 0;
}

/* What is known of a name stays as it was. */
static int compare_tensors(const struct pd_seq_feed *feed, const struct pd_block *block,
                           const struct numbering *to, struct pd_error *error)
{
    for (uint32_t k = 0; k < block->head.tensor_count; k++) {
        const struct pd_tensor_spec *found = &to->tensors[k];
        if (found->number >= feed->tensor_count)
            continue;
        const struct pd_tensor_spec *known = &feed->tensors[found->number];
        const char *field = pd_tensor_spec_differs(known, found);
        char known_text[120], found_text[120];
        if (field)
            return pd_error_set(
                error, PD_EINVAL, "BAD_TENSOR",
                "tensor '%s' of feed '%s': %s differs from its first use; expected %s, found %s",
                found->name, feed->name, field,
                pd_tensor_spec_text(known, known_text, sizeof known_text),
                pd_tensor_spec_text(found, found_text, sizeof found_text));
    }
    return 0;
}

static int write_view(struct pd_sequencer *seq, struct pd_seq_feed *feed, const char *name,
                      struct pd_error *error)
{
    uint32_t number = feed->view_count;
    pd_buf_clear(&seq->row);
    pd_buf_put_string(&seq->row, name, strlen(name));
    int rc = pd_log_put_row(seq->log, PD_TABLE_VIEWS, feed->number, number, &seq->row, error);
    if (rc)
        return pd_seq_write_failed(seq, rc, error);
    memcpy(feed->views[number], name, strlen(name) + 1);
    feed->view_count = number + 1;
    pd_buf_clear(&seq->body);
    pd_buf_put_u32(&seq->body, number);
    pd_buf_put_string(&seq->body, name, strlen(name));
    return pd_seq_record(seq, PD_RECORD_VIEW, feed->number);
}

static int write_tensor(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                        const struct pd_tensor_spec *spec, struct pd_error *error)
{
    pd_buf_clear(&seq->row);
    pd_buf_put(&seq->row, spec, sizeof *spec);
    int rc =
        pd_log_put_row(seq->log, PD_TABLE_TENSORS, feed->number, spec->number, &seq->row, error);
    if (rc)
        return pd_seq_write_failed(seq, rc, error);
    feed->tensors[spec->number] = *spec;
    feed->tensor_count = spec->number + 1;
    pd_buf_clear(&seq->body);
    pd_buf_put(&seq->body, spec, sizeof *spec);
    return pd_seq_record(seq, PD_RECORD_TENSOR, feed->number);
}

static void renumber_block(struct pd_block *block, const struct numbering *to)
{
    struct pd_block_head *head = &block->head;
    uint32_t spans = head->span_ends ? head->span_ends[head->count - 1] : 0;
    for (uint32_t s = 0; s < spans; s++)
        head->spans[s].view = to->views[head->spans[s].view];
    for (uint32_t k = 0; k < head->tensor_count; k++)
        head->tensors[k] = to->tensors[k];
}

int pd_seq_view_number(struct pd_sequencer *seq, struct pd_seq_feed *feed, const char *name,
                       struct pd_error *error)
{
    if (view_find(feed, name) < feed->view_count)
        return 0;
    if (feed->view_count >= PD_VIEWS_MAX)
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY_VIEWS",
                            "feed '%s' has %u views; '%s' of drop_views would be more than %d",
                            feed->name, feed->view_count, name, PD_VIEWS_MAX);
    return write_view(seq, feed, name, error);
}

int pd_seq_names_number(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_block *block,
                        struct pd_error *error)
{
    struct numbering to;
    int rc = number_views(feed, block, &to, error);
    if (!rc)
        rc = number_tensors(feed, block, &to, error);
    if (!rc)
        rc = compare_tensors(feed, block, &to, error);
    for (uint32_t i = 0; i < block->view_count && !rc; i++)
        if (to.views[i] == feed->view_count)
            rc = write_view(seq, feed, block->views[i], error);
    for (uint32_t k = 0; k < block->head.tensor_count && !rc; k++)
        if (to.tensors[k].number == feed->tensor_count)
            rc = write_tensor(seq, feed, &to.tensors[k], error);
    if (!rc)
        renumber_block(block, &to);
    return rc;
}

/* ---- from the log ---- */

int pd_seq_view_load(void *ctx, uint32_t number, uint32_t view, struct pd_reader row)
{
    struct pd_seq_state *state = ctx;
    size_t size;
    const char *name = pd_reader_string(&row, &size);
    if (number >= state->feed_count || !name || size > PD_NAME_MAX || view >= PD_VIEWS_MAX ||
        view != state->feeds[number]->view_count)
        return PD_ECORRUPT;
    struct pd_seq_feed *feed = state->feeds[number];
    memcpy(feed->views[view], name, size);
    feed->views[view][size] = 0;
    feed->view_count = view + 1;
    return 0;
}

int pd_seq_tensor_load(void *ctx, uint32_t number, uint32_t tensor, struct pd_reader row)
{
    struct pd_seq_state *state = ctx;
    struct pd_tensor_spec spec;
    const uint8_t *bytes = pd_reader_bytes(&row, sizeof spec);
    if (!bytes || !pd_reader_done(&row) || number >= state->feed_count ||
        tensor >= PD_TENSORS_MAX || tensor != state->feeds[number]->tensor_count)
        return PD_ECORRUPT;
    memcpy(&spec, bytes, sizeof spec);
    if (pd_tensor_spec_fault(&spec) || spec.number != tensor)
        return PD_ECORRUPT;
    state->feeds[number]->tensors[tensor] = spec;
    state->feeds[number]->tensor_count = tensor + 1;
    return 0;
}
