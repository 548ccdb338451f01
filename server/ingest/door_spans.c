/* The door's checks of media spans.
 *
 * Place in the flow: called by door.c for a block's columns, then sample by sample; the caller's
 * thread. Invariant: the spans it appends are what packer/head.h promises of pd_span. It knows
 * nothing of views beyond the block: the sequencer numbers them for the feed. */
#include "server/ingest/door_parts.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define POSITION_MAX (1u << 30) /* M-RoPE positions of a sample stay below it */

/* ---- the block's columns ---- */

uint32_t door_wire_spans(const Packd__V1__BlockHead *wire)
{
    return wire->spans ? (uint32_t)wire->spans->n_lengths : 0;
}

uint32_t door_views_find(const struct door_views *views, const char *name)
{
    uint32_t i = 0;

    while (i < views->count && strcmp(views->names[i], name) != 0)
        i++;
    return i;
}

int door_views_add(struct door_views *views, const char *name, struct pd_error *error)
{
    if (door_views_find(views, name) < views->count)
        return 0;
    if (views->count == PD_VIEWS_MAX)
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY_VIEWS",
                            "the block names more than %d views; '%.64s' is one too many",
                            PD_VIEWS_MAX, name);
    views->names[views->count++] = name;
    return 0;
}

static int check_views(const Packd__V1__Spans *spans, struct pd_error *error)
{
    if (spans->n_views > PD_VIEWS_MAX)
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY_VIEWS",
                            "head.spans.views has %zu names; at most %d views are possible",
                            spans->n_views, PD_VIEWS_MAX);
    for (size_t i = 0; i < spans->n_views; i++) {
        int rc = pd_name_check("head.spans.views", spans->views[i], error);
        if (rc != 0)
            return rc;
        for (size_t j = 0; j < i; j++)
            if (strcmp(spans->views[i], spans->views[j]) == 0)
                return pd_error_set(error, PD_EINVAL, "BAD_NAME",
                                    "head.spans.views: '%s' is there twice", spans->views[i]);
    }
    return 0;
}

static bool is_square(uint32_t number)
{
    uint32_t side = (uint32_t)lround(sqrt(number));

    return (uint64_t)side * side == number;
}

static int check_span_columns(const Packd__V1__Spans *spans, size_t samples, struct pd_error *error)
{
    size_t n = spans->n_lengths;
    int rc;

    if ((rc = door_check_column("spans.counts", spans->n_counts, samples, "sample", error)) != 0 ||
        (rc = door_check_column("spans.view", spans->n_view, n, "span", error)) != 0 ||
        (rc = door_check_column("spans.patches", spans->n_patches, n, "span", error)) != 0 ||
        (rc = door_check_column("spans.grid_t", spans->n_grid_t, n, "span", error)) != 0 ||
        (rc = door_check_column("spans.grid_h", spans->n_grid_h, spans->n_grid_t, "grid_t",
                                error)) != 0 ||
        (rc = door_check_column("spans.grid_w", spans->n_grid_w, spans->n_grid_t, "grid_t",
                                error)) != 0 ||
        (rc = door_check_column("spans.t_scale", spans->n_t_scale, n, "span", error)) != 0)
        return rc;
    if (spans->n_offsets != n || spans->n_grid_h != spans->n_grid_t ||
        spans->n_grid_w != spans->n_grid_t)
        return pd_error_set(error, PD_EINVAL, "COLUMN_SIZE",
                            "head.spans has %zu lengths, %zu offsets, grids of %zu, %zu and %zu "
                            "entries: offsets and lengths are required, the three of a grid come "
                            "together",
                            n, spans->n_offsets, spans->n_grid_t, spans->n_grid_h, spans->n_grid_w);
    return 0;
}

int door_check_spans(const Packd__V1__BlockHead *wire, struct pd_error *error)
{
    const Packd__V1__Spans *spans = wire->spans;
    uint64_t sum = 0;

    if (!spans)
        return 0;
    int rc = check_views(spans, error);
    if (rc == 0)
        rc = check_span_columns(spans, wire->n_lengths, error);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < spans->n_counts; i++)
        sum += spans->counts[i];
    if (sum != spans->n_lengths)
        return pd_error_set(error, PD_EINVAL, "COLUMN_SIZE",
                            "head.spans.lengths has %zu entries; head.spans.counts adds up to "
                            "%" PRIu64,
                            spans->n_lengths, sum);
    if (!is_square(spans->merge))
        return pd_error_set(error, PD_EINVAL, "BAD_RANGE",
                            "head.spans.merge is %u; expected the square of a whole number (4 for "
                            "a 2x2 merger), or 0",
                            spans->merge);
    return 0;
}

/* ---- one sample after the other ---- */

uint32_t door_sample_spans(const struct making *making, uint32_t index)
{
    const Packd__V1__Spans *spans = making->wire->spans;

    return spans && spans->n_counts > 0 ? spans->counts[index] : 0;
}

static struct pd_span span_of(const Packd__V1__Spans *wire, uint32_t at)
{
    struct pd_span span = {.offset_tokens = wire->offsets[at],
                           .length_tokens = wire->lengths[at],
                           .view = wire->n_view > 0 ? wire->view[at] : 0,
                           .merge = wire->merge,
                           .t_scale = 1};

    if (wire->n_grid_t > 0) {
        span.grid_t = wire->grid_t[at];
        span.grid_h = wire->grid_h[at];
        span.grid_w = wire->grid_w[at];
    }
    if (wire->n_t_scale > 0 && wire->t_scale[at] != 0)
        span.t_scale = wire->t_scale[at];
    if (wire->n_patches > 0)
        span.patches = wire->patches[at];
    return span;
}

/* t*h*w, saturating. */
static uint64_t cells_of(const struct pd_span *span)
{
    uint64_t cells = (uint64_t)span->grid_t * span->grid_h;

    return __builtin_mul_overflow(cells, span->grid_w, &cells) ? UINT64_MAX : cells;
}

/* A refusal about span `at` of the sample. */
static struct pd_door_reject about(enum pd_door_detail detail, uint32_t at, int64_t found,
                                   int64_t expected)
{
    bool grid = detail >= PD_DOOR_GRID_MISSING;

    return (struct pd_door_reject){.reason = grid ? PD_DOOR_SPAN_GRID : PD_DOOR_BAD_SPAN,
                                   .detail = detail,
                                   .at = at,
                                   .found = found,
                                   .expected = expected};
}

/* Place and view. `free_from`: first token behind the span before. */
static bool place_holds(struct making *making, uint32_t index, uint32_t at,
                        const struct pd_span *span, uint64_t free_from)
{
    uint32_t length = making->wire->lengths[index];
    uint64_t end = (uint64_t)span->offset_tokens + span->length_tokens;

    if (span->view >= making->views.of_spans)
        door_refuse(making, index,
                    about(PD_DOOR_SPAN_VIEW, at, span->view, making->views.of_spans));
    else if (span->length_tokens == 0)
        door_refuse(making, index, about(PD_DOOR_SPAN_EMPTY, at, 0, 1));
    else if (span->offset_tokens < free_from)
        door_refuse(making, index,
                    about(PD_DOOR_SPAN_ORDER, at, span->offset_tokens, (int64_t)free_from));
    else if (end > length)
        door_refuse(making, index, about(PD_DOOR_SPAN_END, at, (int64_t)end, length));
    else
        return true;
    return false;
}

/* What M-RoPE positions need: a grid that gives exactly the span's tokens. */
static bool mrope_holds(struct making *making, uint32_t index, uint32_t at,
                        const struct pd_span *span)
{
    uint32_t merge = span->merge ? span->merge : 1;
    uint32_t side = (uint32_t)lround(sqrt(merge));

    if (span->grid_t == 0 || span->grid_h == 0 || span->grid_w == 0)
        door_refuse(making, index, about(PD_DOOR_GRID_MISSING, at, 0, 1));
    else if (span->grid_h % side != 0 || span->grid_w % side != 0)
        door_refuse(
            making, index,
            about(PD_DOOR_GRID_SIDE, at, span->grid_h % side ? span->grid_h : span->grid_w, side));
    else if ((uint64_t)span->length_tokens * merge != span->patches)
        door_refuse(making, index,
                    about(PD_DOOR_GRID_TOKENS, at, span->length_tokens, span->patches / merge));
    else
        return true;
    return false;
}

/* Grid, patches, merge, time. */
static bool grid_holds(struct making *making, uint32_t index, uint32_t at, struct pd_span *span)
{
    bool given = span->grid_t || span->grid_h || span->grid_w;
    uint64_t cells = cells_of(span);

    if (given && making->wire->spans->n_patches == 0)
        span->patches = cells <= UINT32_MAX ? (uint32_t)cells : UINT32_MAX;
    if (given && (cells != span->patches || cells == 0))
        door_refuse(making, index,
                    about(PD_DOOR_GRID_PRODUCT, at, span->patches,
                          cells < INT64_MAX ? (int64_t)cells : INT64_MAX));
    else if (span->merge > 0 && (uint64_t)span->length_tokens * span->merge != span->patches)
        door_refuse(making, index,
                    about(PD_DOOR_GRID_MERGE, at, span->patches,
                          (int64_t)((uint64_t)span->length_tokens * span->merge)));
    else if (!isfinite(span->t_scale) || span->t_scale <= 0)
        door_refuse(making, index, about(PD_DOOR_GRID_T_SCALE, at, 0, 0));
    else
        return !making->rules->mrope || mrope_holds(making, index, at, span);
    return false;
}

/* How far a span moves M-RoPE positions on. */
static double reach_of(const struct pd_span *span)
{
    double time = floor((span->grid_t > 0 ? span->grid_t - 1 : 0) * span->t_scale) + 1;
    double space = span->grid_h > span->grid_w ? span->grid_h : span->grid_w;

    return time > space ? time : space;
}

/* What the sample's spans are together. */
static void check_sums(struct making *making, uint32_t index, uint64_t patches, double reach)
{
    const struct pd_door_rules *rules = making->rules;
    bool over = rules->patches_max > 0 && patches > rules->patches_max;

    if (over && rules->reject_over_length)
        door_refuse(making, index,
                    (struct pd_door_reject){.reason = PD_DOOR_TOO_LARGE,
                                            .detail = PD_DOOR_SAMPLE_PATCHES,
                                            .found = (int64_t)patches,
                                            .expected = rules->patches_max});
    if (patches > UINT32_MAX)
        door_refuse(making, index,
                    (struct pd_door_reject){.reason = PD_DOOR_TOO_LARGE,
                                            .detail = PD_DOOR_SAMPLE_PATCHES,
                                            .found = INT64_MAX,
                                            .expected = UINT32_MAX});
    if (rules->mrope && reach + making->wire->lengths[index] >= POSITION_MAX)
        door_refuse(making, index, about(PD_DOOR_GRID_FAR, 0, 0, POSITION_MAX));
}

/* A span that no pack can hold would keep a sample from being split. */
static void check_fits(struct making *making, uint32_t index, uint32_t at,
                       const struct pd_span *span)
{
    const struct pd_door_rules *rules = making->rules;

    if (!rules->split_over_length)
        return;
    if (span->length_tokens > rules->seq_len)
        door_refuse(making, index,
                    (struct pd_door_reject){.reason = PD_DOOR_OVER_LENGTH,
                                            .detail = PD_DOOR_SPAN_TOO_LONG,
                                            .at = at,
                                            .found = span->length_tokens,
                                            .expected = rules->seq_len});
    if (rules->patches_max > 0 && span->patches > rules->patches_max)
        door_refuse(making, index,
                    (struct pd_door_reject){.reason = PD_DOOR_TOO_LARGE,
                                            .detail = PD_DOOR_SPAN_PATCHES,
                                            .at = at,
                                            .found = span->patches,
                                            .expected = rules->patches_max});
}

/* Whether the span's patches are in the body, which a tensor of unit PATCH is checked for. */
static bool is_carried(const struct making *making, const struct pd_span *span)
{
    for (uint32_t k = 0; k < making->tensor_count; k++)
        if (making->tensors[k].unit == PD_UNIT_PATCH &&
            pd_tensor_has_view(&making->tensors[k], span->view))
            return true;
    return false;
}

/* Patches that are not pushed cost nothing to claim, and batches have entries for their frames: so
 * many as the span's tokens stand for are believed. */
static void check_claim(struct making *making, uint32_t index, uint32_t at,
                        const struct pd_span *span)
{
    uint64_t patches_max = (uint64_t)span->length_tokens * PD_DOOR_TOKEN_PATCHES_MAX;
    uint64_t frames_max = (uint64_t)span->length_tokens * PD_DOOR_TOKEN_FRAMES_MAX;
    bool frames = span->grid_t > frames_max;

    if (making->rules->patches_max > 0 || is_carried(making, span))
        return;
    if (frames || span->patches > patches_max)
        door_refuse(
            making, index,
            (struct pd_door_reject){.reason = PD_DOOR_TOO_LARGE,
                                    .detail = frames ? PD_DOOR_CLAIM_FRAMES : PD_DOOR_CLAIM_PATCHES,
                                    .at = at,
                                    .found = frames ? span->grid_t : span->patches,
                                    .expected = (int64_t)(frames ? frames_max : patches_max)});
}

void door_take_spans(struct making *making, uint32_t index)
{
    uint32_t count = door_sample_spans(making, index);
    uint64_t free_from = 0, patches = 0;
    double reach = 0;

    for (uint32_t s = 0; s < count; s++) {
        struct pd_span span = span_of(making->wire->spans, making->span_at + s);
        if (!place_holds(making, index, s, &span, free_from) ||
            !grid_holds(making, index, s, &span))
            break;
        check_fits(making, index, s, &span);
        check_claim(making, index, s, &span);
        free_from = (uint64_t)span.offset_tokens + span.length_tokens;
        patches += span.patches;
        reach += reach_of(&span);
        making->span_places[making->span_count] = making->span_at + s;
        making->spans[making->span_count++] = span;
    }
    making->span_at += count;
    if (count > 0 && !door_refused(making, index))
        check_sums(making, index, patches, reach);
}

/* ---- placeholder tokens ---- */

static bool is_media_token(const struct pd_door_rules *rules, int32_t token)
{
    for (uint32_t i = 0; i < rules->media_token_count; i++)
        if ((uint32_t)token == rules->media_tokens[i])
            return true;
    return false;
}

void door_check_media_tokens(struct making *making, uint32_t index, struct pd_body body)
{
    uint32_t count, s = 0;
    const struct pd_span *spans = door_spans_of(making, index, &count);

    if (making->rules->media_token_count == 0 || door_refused(making, index))
        return;
    for (uint32_t i = 0; i < making->wire->lengths[index]; i++) {
        int32_t token = pd_body_i32(&body);
        while (s < count && i >= spans[s].offset_tokens + spans[s].length_tokens)
            s++;
        bool inside = s < count && i >= spans[s].offset_tokens;
        if (inside == is_media_token(making->rules, token))
            continue;
        door_refuse(making, index,
                    about(inside ? PD_DOOR_SPAN_FOREIGN : PD_DOOR_SPAN_STRAY, i, token, s));
        return;
    }
}

void door_end_spans(struct making *making, uint32_t index)
{
    if (!making->spans)
        return;
    if (door_refused(making, index))
        making->span_count = index > 0 ? making->span_ends[index - 1] : 0;
    making->span_ends[index] = making->span_count;
}
