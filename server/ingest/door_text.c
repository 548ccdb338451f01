/* Refusals in words: the field, what was found, what was expected.
 *
 * Place in the flow: called when a Reject is written; any thread. It decides nothing. */
#include "server/ingest/door.h"

#include <inttypes.h>
#include <stdio.h>

const char *pd_door_reason_name(enum pd_door_reason reason)
{
    switch (reason) {
#define X(name)          \
    case PD_DOOR_##name: \
        return #name;
        PD_DOOR_REASONS(X)
#undef X
    case PD_DOOR_OK:
        break;
    }
    return "";
}

static void span_text(const struct pd_door_reject *reject, char *text, size_t size)
{
    uint32_t at = reject->at;
    int64_t found = reject->found, expected = reject->expected;

    switch ((enum pd_door_detail)reject->detail) {
    case PD_DOOR_SPAN_VIEW:
        snprintf(text, size,
                 "spans.view of span %u is %" PRId64 "; spans.views has %" PRId64 " names", at,
                 found, expected);
        return;
    case PD_DOOR_SPAN_EMPTY:
        snprintf(text, size, "spans.lengths of span %u is 0; a span has at least one token", at);
        return;
    case PD_DOOR_SPAN_ORDER:
        snprintf(text, size,
                 "spans.offsets of span %u is %" PRId64 "; the span before it ends at %" PRId64
                 ": spans ascend and do not overlap",
                 at, found, expected);
        return;
    case PD_DOOR_SPAN_END:
        snprintf(text, size, "span %u ends at token %" PRId64 "; the sample has %" PRId64, at,
                 found, expected);
        return;
    case PD_DOOR_SPAN_STRAY:
        snprintf(text, size,
                 "token %u is the placeholder %" PRId64 ", outside every span; expected "
                 "none of media_tokens there",
                 at, found);
        return;
    default:
        snprintf(text, size,
                 "token %u in span %" PRId64 " is %" PRId64 "; expected one of "
                 "media_tokens",
                 at, expected, found);
    }
}

static void grid_text(const struct pd_door_reject *reject, char *text, size_t size)
{
    uint32_t at = reject->at;
    int64_t found = reject->found, expected = reject->expected;

    switch ((enum pd_door_detail)reject->detail) {
    case PD_DOOR_GRID_MISSING:
        snprintf(text, size,
                 "span %u has no spans.grid_t, grid_h, grid_w above 0; the feed's "
                 "positions are mrope, which needs them",
                 at);
        return;
    case PD_DOOR_GRID_PRODUCT:
        snprintf(text, size,
                 "spans.patches of span %u is %" PRId64 "; its grid has %" PRId64 " cells", at,
                 found, expected);
        return;
    case PD_DOOR_GRID_MERGE:
        snprintf(text, size,
                 "spans.patches of span %u is %" PRId64 "; its length times spans.merge "
                 "is %" PRId64,
                 at, found, expected);
        return;
    case PD_DOOR_GRID_SIDE:
        snprintf(text, size,
                 "spans.grid_h or grid_w of span %u is %" PRId64 "; expected a multiple "
                 "of %" PRId64 ", the square root of spans.merge",
                 at, found, expected);
        return;
    case PD_DOOR_GRID_TOKENS:
        snprintf(text, size,
                 "spans.lengths of span %u is %" PRId64 " tokens; its grid gives %" PRId64, at,
                 found, expected);
        return;
    case PD_DOOR_GRID_T_SCALE:
        snprintf(text, size, "spans.t_scale of span %u is negative or not finite", at);
        return;
    default:
        snprintf(text, size, "the grids and spans.t_scale move positions past %" PRId64, expected);
    }
}

static void too_large_text(const struct pd_door_reject *reject, const struct pd_door_rules *rules,
                           char *text, size_t size)
{
    if (reject->detail == PD_DOOR_SAMPLE_PATCHES)
        snprintf(text, size,
                 "%" PRId64 " patches in spans.patches of the sample; a pack holds %" PRId64
                 " (max_patches)",
                 reject->found, reject->expected);
    else if (reject->detail == PD_DOOR_SPAN_PATCHES)
        snprintf(text, size,
                 "spans.patches of span %u is %" PRId64 "; a pack holds %" PRId64
                 " (max_patches), and a span is never split",
                 reject->at, reject->found, reject->expected);
    else if (reject->detail == PD_DOOR_CLAIM_PATCHES || reject->detail == PD_DOOR_CLAIM_FRAMES)
        snprintf(text, size,
                 "spans.%s of span %u is %" PRId64 " and no tensor of unit patch carries it; its "
                 "tokens stand for at most %" PRId64 ": push the tensor, or set the feed's "
                 "max_patches",
                 reject->detail == PD_DOOR_CLAIM_FRAMES ? "grid_t" : "patches", reject->at,
                 reject->found, reject->expected);
    else
        snprintf(text, size, "%" PRId64 " bytes; max_sample_bytes is %" PRIu64, reject->found,
                 rules->sample_bytes_max);
}

static void over_length_text(const struct pd_door_reject *reject, const struct pd_door_rules *rules,
                             char *text, size_t size)
{
    if (reject->detail == PD_DOOR_SPAN_TOO_LONG)
        snprintf(text, size,
                 "span %u has %" PRId64 " tokens; a pack holds %u (seq_len), and a span "
                 "is never split",
                 reject->at, reject->found, rules->seq_len);
    else
        snprintf(text, size,
                 "%" PRId64 " tokens; the feed takes at most %u (seq_len) and rejects longer ones",
                 reject->found, rules->seq_len);
}

static void ragged_text(const struct pd_door_reject *reject, const char *tensor, char *text,
                        size_t size)
{
    if (reject->detail == PD_DOOR_RAGGED_VIEW)
        snprintf(text, size,
                 "counts of tensor '%s' is %" PRId64 " for span %u, whose view is not "
                 "among its span_views; expected 0",
                 tensor, reject->found, reject->at);
    else
        snprintf(text, size,
                 "counts of tensor '%s' is %" PRId64 "; the sample's spans call for %" PRId64,
                 tensor, reject->found, reject->expected);
}

static void range_text(const struct pd_door_reject *reject, const struct pd_door_rules *rules,
                       char *text, size_t size)
{
    bool token = reject->reason == PD_DOOR_TOKEN_OUT_OF_VOCAB;

    snprintf(text, size, "%s %u is %" PRId64 "; expected %s0 to %" PRId64,
             token ? "token" : "label", reject->at, reject->found, token ? "" : "-100 or ",
             rules->vocab_size ? (int64_t)rules->vocab_size - 1 : (int64_t)INT32_MAX);
}

const char *pd_door_reject_text(const struct pd_door_rejects *rejects,
                                const struct pd_door_reject *reject,
                                const struct pd_door_rules *rules, char *text, size_t size)
{
    const char *tensor = rejects->tensors ? rejects->tensors[reject->tensor].name : "";

    text[0] = '\0';
    switch ((enum pd_door_reason)reject->reason) {
    case PD_DOOR_OK:
        break;
    case PD_DOOR_EMPTY_SAMPLE:
        snprintf(text, size, "a sample has at least one token");
        break;
    case PD_DOOR_OVER_LENGTH:
        over_length_text(reject, rules, text, size);
        break;
    case PD_DOOR_TOO_LARGE:
        too_large_text(reject, rules, text, size);
        break;
    case PD_DOOR_TOKEN_OUT_OF_VOCAB:
    case PD_DOOR_LABEL_OUT_OF_RANGE:
        range_text(reject, rules, text, size);
        break;
    case PD_DOOR_LABELS_LOOK_SHIFTED:
        snprintf(text, size,
                 "all %" PRId64 " labels equal the next token: push labels unshifted (the server "
                 "shifts), or set allow_shifted_looking_labels",
                 reject->found);
        break;
    case PD_DOOR_BAD_MASK:
        snprintf(text, size,
                 "the mask's runs add up to %" PRId64
                 " or run %u is 0; they must add up to the sample's length",
                 reject->found, reject->at);
        break;
    case PD_DOOR_BAD_WEIGHT:
        snprintf(text, size, "a weight is finite and at least 0");
        break;
    case PD_DOOR_BAD_SPAN:
        span_text(reject, text, size);
        break;
    case PD_DOOR_SPAN_GRID:
        grid_text(reject, text, size);
        break;
    case PD_DOOR_BAD_RAGGED:
        ragged_text(reject, tensor, text, size);
        break;
    case PD_DOOR_BAD_VALUE:
        snprintf(text, size, "element %u of BOOL tensor '%s' is %" PRId64 "; expected 0 or 1",
                 reject->at, tensor, reject->found);
        break;
    case PD_DOOR_KEY_TOO_LONG:
        snprintf(text, size, "%" PRId64 " bytes in key or group; at most %d are taken",
                 reject->found, PD_DOOR_KEY_MAX);
        break;
    }
    return text;
}
