/* What the parts of the door share: the work on one block. Private to server/ingest/door*.c.
 *
 *   door.c           the block as a whole, tokens, labels, masks, the head
 *   door_spans.c     media spans: columns, each sample's spans, placeholder tokens
 *   door_tensors.c   named tensors: declarations, counts, digests
 *   door_text.c      refusals in words
 *
 * The caller's thread. */
#ifndef PD_SERVER_INGEST_DOOR_PARTS_H
#define PD_SERVER_INGEST_DOOR_PARTS_H

#include "server/ingest/body.h"
#include "server/ingest/door.h"
#include "server/ingest/runs.h"

/* The block's views: those of its spans, then those that only its tensors name. */
struct door_views {
    const char *names[PD_VIEWS_MAX];
    uint32_t count;
    uint32_t of_spans; /* the first so many may stand in spans */
};

struct making {
    const Packd__V1__BlockHead *wire;
    const struct pd_door_rules *rules;
    uint32_t count;
    uint32_t limit; /* tokens are below it, taken as unsigned */
    struct pd_body tokens, tokens_again, labels;
    size_t mask_at; /* first run of the sample in wire->mask_runs */
    struct pd_loss_runs_buf runs;
    uint64_t *token_digests, *label_digests;
    uint32_t *run_ends;
    struct pd_door_reject *found; /* one per sample */
    struct door_views views;
    /* spans; NULL: the block has none */
    struct pd_span *spans; /* of the samples that are accepted, span_count so far */
    uint32_t *span_ends, span_count;
    uint32_t span_at;      /* first span of the sample in the wire's columns */
    uint32_t *span_places; /* where in the wire's columns each of `spans` stood */
    /* tensors */
    uint32_t tensor_count;
    struct pd_tensor_spec tensors[PD_TENSORS_MAX];
    struct pd_body tensor_bodies[PD_TENSORS_MAX];
    uint32_t ragged_count, run_count; /* tensors of axis ragged, of unit RUN */
    uint64_t *tensor_digests;         /* [tensor][sample] */
    uint32_t *ragged_ends;            /* [ragged tensor][sample] */
};

/* Notes why the sample is refused; only the first reason counts. reject.index and .count are filled
 * in. */
void door_refuse(struct making *making, uint32_t index, struct pd_door_reject reject);
static inline bool door_refused(const struct making *making, uint32_t index)
{
    return making->found[index].reason != PD_DOOR_OK;
}
/* PD_EINVAL COLUMN_SIZE unless entries is 0 or expected; `per` says of what: "sample". */
int door_check_column(const char *name, size_t entries, size_t expected, const char *per,
                      struct pd_error *error) PD_MUST_CHECK;
/* ---- door_spans.c ---- */

/* PD_EINVAL COLUMN_SIZE, BAD_NAME, BAD_RANGE; PD_ELIMIT TOO_MANY_VIEWS. */
int door_check_spans(const Packd__V1__BlockHead *wire, struct pd_error *error) PD_MUST_CHECK;
/* Spans of the block on the wire; of one of its samples. */
uint32_t door_wire_spans(const Packd__V1__BlockHead *wire);
uint32_t door_sample_spans(const struct making *making, uint32_t index);
/* Adds `name` unless it is there. PD_ELIMIT TOO_MANY_VIEWS. */
int door_views_add(struct door_views *views, const char *name,
                   struct pd_error *error) PD_MUST_CHECK;
uint32_t door_views_find(const struct door_views *views, const char *name);
/* Checks the sample's spans and appends them. */
void door_take_spans(struct making *making, uint32_t index);
/* The appended spans of the sample that is being made. */
static inline const struct pd_span *door_spans_of(const struct making *making, uint32_t index,
                                                  uint32_t *count)
{
    uint32_t start = index > 0 && making->spans ? making->span_ends[index - 1] : 0;
    *count = making->spans ? making->span_count - start : 0;
    return *count ? making->spans + start : NULL;
}
/* Placeholder tokens, where the feed names them; `body` stands at the sample's first token. */
void door_check_media_tokens(struct making *making, uint32_t index, struct pd_body body);
/* Closes the sample: the spans of a refused one are forgotten. */
void door_end_spans(struct making *making, uint32_t index);

/* ---- door_tensors.c ---- */

/* PD_EINVAL COLUMN_SIZE, BAD_NAME, BAD_TENSOR, RESERVED_NAME; PD_ELIMIT TOO_MANY_TENSORS,
 * TOO_MANY_VIEWS. After door_check_spans. */
int door_check_tensors(const Packd__V1__BlockHead *wire, struct pd_error *error) PD_MUST_CHECK;
/* Body bytes of all tensors for `tokens` tokens, of a table that was checked; false: they pass 64
 * bits, or a ragged tensor has more than 2^32-1 elements. */
bool door_tensors_bytes(const Packd__V1__BlockHead *wire, uint64_t tokens,
                        uint64_t *bytes) PD_MUST_CHECK;
/* Declarations, and the bodies' places, of a table that was checked. */
void door_start_tensors(struct making *making, uint64_t columns_bytes);
/* Bytes of the sample in all tensors, as the wire's counts say. */
uint64_t door_sample_tensor_bytes(const struct making *making, uint32_t index);
/* Counts against the sample's spans, values of booleans, digests. After the sample's spans. */
void door_take_tensors(struct making *making, uint32_t index);
/* The counts of the accepted samples' spans, for the head. */
void door_fill_span_counts(const struct making *making, uint32_t *counts);

#endif
