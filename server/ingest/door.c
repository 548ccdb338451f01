/* The door's checks of a block.
 *
 * Place in the flow: between the tag scanner (wire.c) and the sequencer; runs on the rpc thread of
 * the call. Invariant: a sample that is not flagged `rejected` in the head obeys every rule the
 * planner and the layout rely on. It changes nothing in the body: what was refused stays there as
 * pushed, so that offsets remain sums of lengths.
 *
 * LABELS_LOOK_SHIFTED: labels describe token i as a target, so labels[i] == tokens[i] is what an
 * unmasked sample looks like; labels that were shifted before the push have labels[i] ==
 * tokens[i+1]. A sample is refused when every label that is not -100 (the last token's left out: it
 * has no next token) equals the next token, there are at least PD_DOOR_SHIFTED_MIN of them, and at
 * least one of them differs from its own token. The last condition lets runs of one token pass,
 * where both readings agree. */
#include "server/ingest/door.h"
#include "server/ingest/body.h"
#include "server/ingest/runs.h"

#include "base/bytes.h"
#include "base/check.h"
#include "packer/batch.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#define XXH_STATIC_LINKING_ONLY /* the streaming state on the stack */
#include <xxhash.h>

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

const char *pd_door_reject_text(const struct pd_door_reject *reject,
                                const struct pd_door_rules *rules, char *text, size_t size)
{
    const char *format = "";
    int64_t found = reject->found;
    uint32_t at = reject->at;

    switch ((enum pd_door_reason)reject->reason) {
    case PD_DOOR_OK:
        break;
    case PD_DOOR_EMPTY_SAMPLE:
        format = "a sample has at least one token";
        break;
    case PD_DOOR_OVER_LENGTH:
        snprintf(text, size,
                 "%" PRId64 " tokens; the feed takes at most %u (seq_len) and rejects longer ones",
                 found, rules->seq_len);
        return text;
    case PD_DOOR_TOO_LARGE:
        snprintf(text, size, "%" PRId64 " bytes; max_sample_bytes is %" PRIu64, found,
                 rules->sample_bytes_max);
        return text;
    case PD_DOOR_TOKEN_OUT_OF_VOCAB:
    case PD_DOOR_LABEL_OUT_OF_RANGE:
        snprintf(text, size, "%s %u is %" PRId64 "; expected %s0 to %" PRId64,
                 reject->reason == PD_DOOR_TOKEN_OUT_OF_VOCAB ? "token" : "label", at, found,
                 reject->reason == PD_DOOR_TOKEN_OUT_OF_VOCAB ? "" : "-100 or ",
                 rules->vocab_size ? (int64_t)rules->vocab_size - 1 : (int64_t)INT32_MAX);
        return text;
    case PD_DOOR_LABELS_LOOK_SHIFTED:
        snprintf(text, size,
                 "all %" PRId64 " labels equal the next token: push labels unshifted (the server "
                 "shifts), or set allow_shifted_looking_labels",
                 found);
        return text;
    case PD_DOOR_BAD_MASK:
        snprintf(text, size,
                 "the mask's runs add up to %" PRId64
                 " or run %u is 0; they must add up to the sample's length",
                 found, at);
        return text;
    case PD_DOOR_BAD_WEIGHT:
        format = "a weight is finite and at least 0";
        break;
    case PD_DOOR_KEY_TOO_LONG:
        snprintf(text, size, "%" PRId64 " bytes in key or group; at most %d are taken", found,
                 PD_DOOR_KEY_MAX);
        return text;
    }
    snprintf(text, size, "%s", format);
    return text;
}

void pd_door_rejects_fini(struct pd_door_rejects *rejects)
{
    free(rejects->items);
    *rejects = (struct pd_door_rejects){0};
}

/* ---- the block as a whole ---- */

static int check_column(const char *name, size_t entries, size_t samples, struct pd_error *error)
{
    if (entries == 0 || entries == samples)
        return 0;
    return pd_error_set(error, PD_EINVAL, "COLUMN_SIZE",
                        "head.%s has %zu entries for %zu samples; expected none or one per sample",
                        name, entries, samples);
}

static int check_columns(const Packd__V1__BlockHead *wire, struct pd_error *error)
{
    size_t n = wire->n_lengths;
    uint64_t runs = 0;
    int rc;

    if ((rc = check_column("mask_run_counts", wire->n_mask_run_counts, n, error)) != 0 ||
        (rc = check_column("weights", wire->n_weights, n, error)) != 0 ||
        (rc = check_column("keys", wire->n_keys, n, error)) != 0 ||
        (rc = check_column("groups", wire->n_groups, n, error)) != 0 ||
        (rc = check_column("versions", wire->n_versions, n, error)) != 0)
        return rc;
    for (size_t i = 0; i < wire->n_mask_run_counts; i++)
        runs += wire->mask_run_counts[i];
    if (runs != wire->n_mask_runs)
        return pd_error_set(
            error, PD_EINVAL, "COLUMN_SIZE",
            "head.mask_runs has %zu entries; head.mask_run_counts adds up to %" PRIu64,
            wire->n_mask_runs, runs);
    return 0;
}

/* Places for later: spans go into head->spans, tensors behind the labels in the body. */
static int check_unsupported(const Packd__V1__BlockHead *wire, struct pd_error *error)
{
    const Packd__V1__Spans *spans = wire->spans;

    if (wire->n_tensors > 0)
        return pd_error_set(error, PD_EUNSUPPORTED, "UNSUPPORTED",
                            "head.tensors: this server does not store named tensors; push tokens, "
                            "labels, masks and weights only");
    if (spans && (spans->n_counts > 0 || spans->n_view > 0 || spans->n_offsets > 0 ||
                  spans->n_lengths > 0 || spans->n_views > 0))
        return pd_error_set(error, PD_EUNSUPPORTED, "UNSUPPORTED",
                            "head.spans: this server does not store media spans");
    return 0;
}

static int check_sizes(const Packd__V1__BlockHead *wire, const struct pd_door_rules *rules,
                       struct pd_error *error)
{
    uint64_t tokens = 0;

    for (size_t i = 0; i < wire->n_lengths; i++)
        tokens += wire->lengths[i];
    uint64_t expected = tokens * 4 * (wire->has_labels ? 2 : 1);
    if (wire->body_bytes != expected)
        return pd_error_set(error, PD_EINVAL, "LENGTH_MISMATCH",
                            "head.body_bytes is %" PRIu64 "; %zu lengths with %" PRIu64
                            " tokens%s take %" PRIu64 " bytes",
                            wire->body_bytes, wire->n_lengths, tokens,
                            wire->has_labels ? " and labels" : "", expected);
    if (expected > rules->block_bytes_max)
        return pd_error_set(error, PD_ELIMIT, "BLOCK_TOO_LARGE",
                            "a body of %" PRIu64 " bytes; max_block_bytes is %" PRIu64, expected,
                            rules->block_bytes_max);
    return 0;
}

int pd_door_check(const Packd__V1__BlockHead *wire, const struct pd_door_rules *rules,
                  struct pd_error *error)
{
    int rc;

    if (wire->n_lengths == 0)
        return pd_error_set(error, PD_EINVAL, "MALFORMED",
                            "head.lengths is empty: a block holds at least one sample");
    if (wire->n_lengths > rules->block_samples_max || wire->n_lengths > PD_BLOCK_SAMPLES_MAX)
        return pd_error_set(error, PD_ELIMIT, "BLOCK_TOO_LARGE",
                            "a block of %zu samples; max_block_samples is %u", wire->n_lengths,
                            rules->block_samples_max);
    if (wire->first_seq > INT64_MAX - wire->n_lengths)
        return pd_error_set(error, PD_EINVAL, "BAD_RANGE",
                            "head.first_seq %" PRIu64 " is out of range", wire->first_seq);
    if ((rc = check_unsupported(wire, error)) != 0 || (rc = check_columns(wire, error)) != 0)
        return rc;
    return check_sizes(wire, rules, error);
}

/* ---- one sample after the other ---- */

/* The work on one block. */
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
};

static void refuse(struct making *making, uint32_t index, enum pd_door_reason reason, uint32_t at,
                   int64_t found)
{
    if (making->found[index].reason == PD_DOOR_OK)
        making->found[index] = (struct pd_door_reject){
            .index = index, .count = 1, .reason = reason, .at = at, .found = found};
}

static uint64_t sample_bytes(const Packd__V1__BlockHead *wire, uint32_t index)
{
    return (uint64_t)wire->lengths[index] * 4 * (wire->has_labels ? 2 : 1);
}

static void check_sample_head(struct making *making, uint32_t index)
{
    const Packd__V1__BlockHead *wire = making->wire;
    uint32_t length = wire->lengths[index];

    if (length == 0)
        refuse(making, index, PD_DOOR_EMPTY_SAMPLE, 0, 0);
    if (sample_bytes(wire, index) > making->rules->sample_bytes_max)
        refuse(making, index, PD_DOOR_TOO_LARGE, 0, (int64_t)sample_bytes(wire, index));
    if (length > making->rules->seq_len && making->rules->reject_over_length)
        refuse(making, index, PD_DOOR_OVER_LENGTH, 0, length);
    if (wire->n_weights > 0 && !(isfinite(wire->weights[index]) && wire->weights[index] >= 0))
        refuse(making, index, PD_DOOR_BAD_WEIGHT, 0, 0);
    if (wire->n_keys > 0 && wire->keys[index].len > PD_DOOR_KEY_MAX)
        refuse(making, index, PD_DOOR_KEY_TOO_LONG, 0, (int64_t)wire->keys[index].len);
    if (wire->n_groups > 0 && wire->groups[index].len > PD_DOOR_KEY_MAX)
        refuse(making, index, PD_DOOR_KEY_TOO_LONG, 0, (int64_t)wire->groups[index].len);
}

/* The runs as pushed: first may be 0, others not, sum is the length. No runs is fine. */
static void check_sample_mask(struct making *making, uint32_t index, const uint32_t *runs,
                              uint32_t count)
{
    uint64_t sum = 0;
    uint32_t zero = 0;

    for (uint32_t i = 0; i < count; i++) {
        sum += runs[i];
        if (runs[i] == 0 && i > 0 && zero == 0)
            zero = i;
    }
    if (count > 0 && (zero > 0 || sum != making->wire->lengths[index]))
        refuse(making, index, PD_DOOR_BAD_MASK, zero, (int64_t)sum);
}

/* Largest token of `count` at `data`, as unsigned, so that negative ones are the largest. A loop
 * the compiler turns into vector code. */
static uint32_t largest(const uint8_t *data, size_t count)
{
    uint32_t most = 0;

    for (size_t i = 0; i < count; i++) {
        uint32_t value;
        memcpy(&value, data + 4 * i, 4);
        most = value > most ? value : most;
    }
    return most;
}

/* The slow way, for a sample that is known to hold a bad token. */
static void name_bad_token(struct making *making, uint32_t index, struct pd_body body)
{
    for (uint32_t i = 0; i < making->wire->lengths[index]; i++) {
        int32_t token = pd_body_i32(&body);
        if ((uint32_t)token >= making->limit) {
            refuse(making, index, PD_DOOR_TOKEN_OUT_OF_VOCAB, i, token);
            return;
        }
    }
}

/* Digest of the next `size` bytes; *most gets the largest int32 as unsigned. */
static uint64_t scan_column(struct pd_body *body, uint64_t size, uint32_t *most)
{
    XXH3_state_t state;
    size_t run;
    uint8_t part[4];
    size_t part_bytes = 0;
    const uint8_t *data = size > 0 ? pd_body_run(body, (size_t)size, &run) : NULL;

    if (!data)
        return XXH3_64bits(NULL, 0);
    if (run == size) {
        *most = largest(data, run / 4);
        return XXH3_64bits(data, run);
    }
    (void)XXH3_64bits_reset(&state);
    *most = 0;
    while (data) {
        (void)XXH3_64bits_update(&state, data, run);
        size -= run;
        while (part_bytes > 0 && part_bytes < 4 && run > 0) {
            part[part_bytes++] = *data++;
            run--;
        }
        uint32_t straddling = part_bytes == 4 ? largest(part, 1) : 0;
        uint32_t inside = largest(data, run / 4);
        *most = straddling > *most ? straddling : *most;
        *most = inside > *most ? inside : *most;
        if (part_bytes == 0 || part_bytes == 4) {
            part_bytes = run % 4;
            if (part_bytes > 0)
                memcpy(part, data + run - part_bytes, part_bytes);
        }
        data = size > 0 ? pd_body_run(body, (size_t)size, &run) : NULL;
    }
    return XXH3_64bits_digest(&state);
}

static void take_tokens(struct making *making, uint32_t index)
{
    struct pd_body start = making->tokens;
    uint32_t most = 0;

    making->token_digests[index] =
        scan_column(&making->tokens, (uint64_t)making->wire->lengths[index] * 4, &most);
    if (most >= making->limit)
        name_bad_token(making, index, start);
}

/* The labels of one sample beside its tokens and its mask: range, shift, and the mask and the -100s
 * together as runs. */
static void take_labels(struct making *making, uint32_t index, struct pd_mask_reader *mask)
{
    uint32_t length = making->wire->lengths[index];
    uint32_t compared = 0;
    bool next_equal = true, own_differs = false;
    int32_t label = PD_LABEL_NONE;

    for (uint32_t i = 0; i < length; i++) {
        int32_t token = pd_body_i32(&making->tokens_again);
        if (label != PD_LABEL_NONE) { /* the label before this token */
            compared++;
            next_equal = next_equal && label == token;
        }
        label = pd_body_i32(&making->labels);
        if (label != PD_LABEL_NONE && (uint32_t)label >= making->limit)
            refuse(making, index, PD_DOOR_LABEL_OUT_OF_RANGE, i, label);
        own_differs = own_differs || (label != PD_LABEL_NONE && label != token && i + 1 < length);
        bool on = pd_mask_reader_next(mask);
        pd_loss_runs_add(&making->runs, on && label != PD_LABEL_NONE, 1);
    }
    if (making->rules->check_shifted && compared >= PD_DOOR_SHIFTED_MIN && next_equal &&
        own_differs)
        refuse(making, index, PD_DOOR_LABELS_LOOK_SHIFTED, 0, compared);
}

static void take_mask(struct making *making, uint32_t length, const uint32_t *runs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        pd_loss_runs_add(&making->runs, i % 2 == 1, runs[i]);
    if (count == 0)
        pd_loss_runs_add(&making->runs, true, length);
}

static void take_sample(struct making *making, uint32_t index)
{
    const Packd__V1__BlockHead *wire = making->wire;
    const uint32_t *runs = wire->mask_runs ? wire->mask_runs + making->mask_at : NULL;
    uint32_t count = wire->n_mask_run_counts > 0 ? wire->mask_run_counts[index] : 0;
    struct pd_body labels_start = making->labels;
    uint64_t size = (uint64_t)wire->lengths[index] * 4;
    uint32_t most = 0;

    making->mask_at += count;
    check_sample_head(making, index);
    check_sample_mask(making, index, runs, count);
    take_tokens(making, index);
    pd_loss_runs_begin(&making->runs);
    if (wire->has_labels) {
        making->label_digests[index] = scan_column(&labels_start, size, &most);
        bool masked = making->found[index].reason == PD_DOOR_OK;
        struct pd_mask_reader mask = pd_mask_reader_of(runs, masked ? count : 0);
        take_labels(making, index, &mask);
    } else if (making->found[index].reason == PD_DOOR_OK) {
        take_mask(making, wire->lengths[index], runs, count);
    }
    if (making->found[index].reason == PD_DOOR_OK)
        pd_loss_runs_end(&making->runs);
    else
        pd_loss_runs_undo(&making->runs);
    making->run_ends[index] = pd_loss_runs_total(&making->runs);
}

/* ---- the head ---- */

/* The next part of the arena; parts are taken widest elements first, so that all are aligned. */
static void *carve(uint8_t **at, size_t size)
{
    void *part = size > 0 ? *at : NULL;

    *at += size;
    return part;
}

static size_t column_bytes(const ProtobufCBinaryData *column, size_t n,
                           const struct pd_door_reject *found)
{
    size_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += found[i].reason == PD_DOOR_OK ? column[i].len : 0;
    return sum;
}

/* A column of byte strings behind each other, and where each of them ends. */
static void fill_column(const ProtobufCBinaryData *column, uint32_t n,
                        const struct pd_door_reject *found, uint8_t *bytes, uint32_t *ends)
{
    uint32_t end = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (found[i].reason == PD_DOOR_OK && column[i].len > 0) {
            memcpy(bytes + end, column[i].data, column[i].len);
            end += (uint32_t)column[i].len;
        }
        ends[i] = end;
    }
}

/* Fills *head from what was found; `runs_total` entries of loss runs, `refused` samples flagged. */
static int build_head(struct making *making, uint32_t refused, struct pd_block_head *head)
{
    const Packd__V1__BlockHead *wire = making->wire;
    uint32_t n = making->count;
    uint32_t runs_total = pd_loss_runs_total(&making->runs);
    size_t keys_bytes = column_bytes(wire->keys, wire->n_keys, making->found);
    size_t groups_bytes = column_bytes(wire->groups, wire->n_groups, making->found);
    size_t n64 = (size_t)n * 8, n32 = (size_t)n * 4;
    bool has_labels = wire->has_labels;

    size_t size = n64 + (has_labels ? n64 : 0) + (wire->n_versions ? n64 : 0) + n64 + 8;
    size += n32 + (wire->n_weights ? n32 : 0) + (runs_total ? n32 + (size_t)runs_total * 4 : 0);
    size += (keys_bytes ? n32 : 0) + (groups_bytes ? n32 : 0);
    size += keys_bytes + groups_bytes + (refused ? n : 0);
    uint8_t *at = malloc(size);
    if (!at)
        return PD_ENOMEM;

    *head = (struct pd_block_head){.first_seq = wire->first_seq,
                                   .count = n,
                                   .has_labels = has_labels,
                                   .body_bytes = wire->body_bytes,
                                   .arena = at};
    head->token_digests = carve(&at, n64);
    head->label_digests = carve(&at, has_labels ? n64 : 0);
    head->versions = carve(&at, wire->n_versions ? n64 : 0);
    head->token_offsets = carve(&at, n64 + 8);
    head->lengths = carve(&at, n32);
    head->weights = carve(&at, wire->n_weights ? n32 : 0);
    head->loss_run_ends = carve(&at, runs_total ? n32 : 0);
    head->loss_runs = carve(&at, (size_t)runs_total * 4);
    head->key_ends = carve(&at, keys_bytes ? n32 : 0);
    head->group_ends = carve(&at, groups_bytes ? n32 : 0);
    head->keys = carve(&at, keys_bytes);
    head->groups = carve(&at, groups_bytes);
    head->rejected = carve(&at, refused ? n : 0);
    PD_CHECK(at == (uint8_t *)head->arena + size);
    return 0;
}

static void fill_head(struct making *making, struct pd_block_head *head)
{
    const Packd__V1__BlockHead *wire = making->wire;
    uint32_t n = making->count;

    memcpy(head->lengths, wire->lengths, (size_t)n * 4);
    memcpy(head->token_digests, making->token_digests, (size_t)n * 8);
    if (head->label_digests)
        memcpy(head->label_digests, making->label_digests, (size_t)n * 8);
    if (head->versions)
        memcpy(head->versions, wire->versions, (size_t)n * 8);
    if (head->loss_run_ends) {
        memcpy(head->loss_run_ends, making->run_ends, (size_t)n * 4);
        memcpy(head->loss_runs, pd_loss_runs_data(&making->runs),
               (size_t)pd_loss_runs_total(&making->runs) * 4);
    }
    if (head->keys)
        fill_column(wire->keys, n, making->found, head->keys, head->key_ends);
    if (head->groups)
        fill_column(wire->groups, n, making->found, head->groups, head->group_ends);
    head->token_offsets[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool refused = making->found[i].reason != PD_DOOR_OK;
        head->token_offsets[i + 1] = head->token_offsets[i] + wire->lengths[i];
        if (head->weights)
            head->weights[i] = refused ? 1.0f : wire->weights[i];
        if (head->rejected)
            head->rejected[i] = refused;
    }
}

/* The refused samples as runs of one reason. */
static int collect_rejects(const struct making *making, struct pd_door_rejects *rejects)
{
    uint32_t runs = 0;

    for (uint32_t i = 0; i < making->count; i++) {
        uint32_t reason = making->found[i].reason;
        if (reason != PD_DOOR_OK && (i == 0 || making->found[i - 1].reason != reason))
            runs++;
    }
    *rejects = (struct pd_door_rejects){0};
    if (runs == 0)
        return 0;
    rejects->items = calloc(runs, sizeof(*rejects->items));
    if (!rejects->items)
        return PD_ENOMEM;
    for (uint32_t i = 0; i < making->count; i++) {
        uint32_t reason = making->found[i].reason;
        if (reason == PD_DOOR_OK)
            continue;
        rejects->samples++;
        if (i > 0 && making->found[i - 1].reason == reason)
            rejects->items[rejects->count - 1].count++;
        else
            rejects->items[rejects->count++] = making->found[i];
    }
    return 0;
}

static int make(struct making *making, struct pd_block_head *head, struct pd_door_rejects *rejects)
{
    for (uint32_t i = 0; i < making->count; i++)
        take_sample(making, i);
    if (pd_loss_runs_failed(&making->runs))
        return PD_ENOMEM;
    int rc = collect_rejects(making, rejects);
    if (rc == 0)
        rc = build_head(making, rejects->samples, head);
    if (rc == 0)
        fill_head(making, head);
    else
        pd_door_rejects_fini(rejects);
    return rc;
}

int pd_door_make(const Packd__V1__BlockHead *wire, const struct pd_door_rules *rules,
                 const struct pd_piece *pieces, uint32_t piece_count, struct pd_block_head *head,
                 struct pd_door_rejects *rejects, struct pd_error *error)
{
    size_t n = wire->n_lengths;
    uint64_t token_bytes = wire->body_bytes / (wire->has_labels ? 2 : 1);
    struct pd_body body = {.pieces = pieces, .piece_count = piece_count};
    struct making making = {.wire = wire,
                            .rules = rules,
                            .count = (uint32_t)n,
                            .limit =
                                rules->vocab_size ? rules->vocab_size : (uint32_t)INT32_MAX + 1,
                            .tokens = body,
                            .tokens_again = body,
                            .labels = body};
    int rc = PD_ENOMEM;

    pd_body_skip(&making.labels, token_bytes);
    making.token_digests = malloc(n * 8);
    making.label_digests = malloc(n * 8);
    making.run_ends = malloc(n * 4);
    making.found = calloc(n, sizeof(*making.found));
    if (making.token_digests && making.label_digests && making.run_ends && making.found)
        rc = make(&making, head, rejects);
    if (rc != 0)
        (void)pd_error_set(error, rc, "NO_MEMORY",
                           "no memory for the head of a block of %zu samples", n);
    free(making.found);
    free(making.run_ends);
    free(making.label_digests);
    free(making.token_digests);
    pd_loss_runs_fini(&making.runs);
    return rc;
}
