/* The door: a block as a whole, its tokens, labels and masks, and the head that the log keeps.
 *
 * Place in the flow: between the tag scanner (wire.c) and the sequencer; runs on the rpc thread of
 * the call; spans and tensors are in door_spans.c and door_tensors.c. Invariant: a sample that is
 * not flagged `rejected` in the head obeys every rule the planner and the layout rely on. It
 * changes nothing in the body: what was refused stays there as pushed, so that offsets remain sums
 * of lengths.
 *
 * LABELS_LOOK_SHIFTED: labels describe token i as a target, so labels[i] == tokens[i] is what an
 * unmasked sample looks like; labels that were shifted before the push have labels[i] ==
 * tokens[i+1]. A sample is refused when every label that is not -100 (the last token's left out: it
 * has no next token) equals the next token, there are at least PD_DOOR_SHIFTED_MIN of them, and at
 * least one of them differs from its own token. The last condition lets runs of one token pass,
 * where both readings agree. */
#include "server/ingest/door_parts.h"

#include "base/check.h"
#include "base/cpu.h"
#include "base/digest.h"
#include "packer/batch.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void pd_door_rejects_fini(struct pd_door_rejects *rejects)
{
    free(rejects->items);
    free(rejects->tensors);
    *rejects = (struct pd_door_rejects){0};
}

/* ---- the block as a whole ---- */

int door_check_column(const char *name, size_t entries, size_t expected, const char *per,
                      struct pd_error *error)
{
    if (entries == 0 || entries == expected)
        return 0;
    return pd_error_set(error, PD_EINVAL, "COLUMN_SIZE",
                        "head.%s has %zu entries; expected none or one per %s, %zu", name, entries,
                        per, expected);
}

static int check_columns(const Packd__V1__BlockHead *wire, struct pd_error *error)
{
    size_t n = wire->n_lengths;
    uint64_t runs = 0;
    int rc;

    if ((rc = door_check_column("mask_run_counts", wire->n_mask_run_counts, n, "sample", error)) !=
            0 ||
        (rc = door_check_column("weights", wire->n_weights, n, "sample", error)) != 0 ||
        (rc = door_check_column("keys", wire->n_keys, n, "sample", error)) != 0 ||
        (rc = door_check_column("groups", wire->n_groups, n, "sample", error)) != 0 ||
        (rc = door_check_column("versions", wire->n_versions, n, "sample", error)) != 0)
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

static int check_sizes(const Packd__V1__BlockHead *wire, const struct pd_door_rules *rules,
                       struct pd_error *error)
{
    uint64_t tokens = 0, tensors;

    for (size_t i = 0; i < wire->n_lengths; i++)
        tokens += wire->lengths[i];
    uint64_t expected = tokens * 4 * (wire->has_labels ? 2 : 1);
    if (!door_tensors_bytes(wire, tokens, &tensors) ||
        __builtin_add_overflow(expected, tensors, &expected))
        return pd_error_set(error, PD_ELIMIT, "BLOCK_TOO_LARGE",
                            "head.tensors: more bytes or elements than a block can have");
    if (wire->body_bytes != expected)
        return pd_error_set(error, PD_EINVAL, "LENGTH_MISMATCH",
                            "head.body_bytes is %" PRIu64 "; %zu lengths with %" PRIu64
                            " tokens%s and %zu tensors take %" PRIu64 " bytes",
                            wire->body_bytes, wire->n_lengths, tokens,
                            wire->has_labels ? " and labels" : "", wire->n_tensors, expected);
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
    if ((rc = check_columns(wire, error)) != 0 || (rc = door_check_spans(wire, error)) != 0 ||
        (rc = door_check_tensors(wire, error)) != 0)
        return rc;
    return check_sizes(wire, rules, error);
}

/* ---- one sample after the other ---- */

void door_refuse(struct making *making, uint32_t index, struct pd_door_reject reject)
{
    if (door_refused(making, index))
        return;
    making->found[index] = reject;
    making->found[index].index = index;
    making->found[index].count = 1;
}

static void refuse(struct making *making, uint32_t index, enum pd_door_reason reason, uint32_t at,
                   int64_t found)
{
    door_refuse(making, index, (struct pd_door_reject){.reason = reason, .at = at, .found = found});
}

/* Before the sample's spans are taken. */
static uint64_t sample_bytes(const struct making *making, uint32_t index)
{
    const Packd__V1__BlockHead *wire = making->wire;

    return (uint64_t)wire->lengths[index] * 4 * (wire->has_labels ? 2 : 1) +
           door_sample_tensor_bytes(making, index);
}

static void check_sample_head(struct making *making, uint32_t index)
{
    const Packd__V1__BlockHead *wire = making->wire;
    uint32_t length = wire->lengths[index];
    uint64_t bytes = sample_bytes(making, index);

    if (length == 0)
        refuse(making, index, PD_DOOR_EMPTY_SAMPLE, 0, 0);
    if (bytes > making->rules->sample_bytes_max)
        refuse(making, index, PD_DOOR_TOO_LARGE, 0, (int64_t)bytes);
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

/* Largest token of `count` at `data`, as unsigned, so that negative ones are the largest. */
PD_CPU_LEVELS static uint32_t largest(const uint8_t *data, size_t count)
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
    struct pd_digest_stream stream;
    size_t run;
    uint8_t part[4];
    size_t part_bytes = 0;
    const uint8_t *data = size > 0 ? pd_body_run(body, (size_t)size, &run) : NULL;

    if (!data)
        return pd_digest(NULL, 0);
    if (run == size) {
        *most = largest(data, run / 4);
        return pd_digest(data, run);
    }
    pd_digest_begin(&stream);
    *most = 0;
    while (data) {
        pd_digest_add(&stream, data, run);
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
    return pd_digest_end(&stream);
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

/* Tokens [from, from + length) are on or off, but media spans are off: nothing is predicted there.
 * `at` is the first span that may still matter. */
static uint32_t add_around_spans(struct making *making, const struct pd_span *spans, uint32_t count,
                                 uint32_t at, bool on, uint32_t from, uint32_t length)
{
    uint32_t to = from + length;

    while (at < count && spans[at].offset_tokens < to && from < to) {
        uint32_t start = spans[at].offset_tokens > from ? spans[at].offset_tokens : from;
        uint32_t span_end = spans[at].offset_tokens + spans[at].length_tokens;
        uint32_t end = span_end < to ? span_end : to;
        pd_loss_runs_add(&making->runs, on, start - from);
        if (end > start)
            pd_loss_runs_add(&making->runs, false, end - start);
        from = end > start ? end : start;
        if (span_end > to)
            return at;
        at++;
    }
    pd_loss_runs_add(&making->runs, on, to - from);
    return at;
}

/* Without pushed labels: the mask, and -100 on media spans. */
static void take_mask(struct making *making, uint32_t index, const uint32_t *runs, uint32_t count)
{
    uint32_t span_count, at = 0, from = 0;
    const struct pd_span *spans = door_spans_of(making, index, &span_count);

    for (uint32_t i = 0; i < count; i++) {
        at = add_around_spans(making, spans, span_count, at, i % 2 == 1, from, runs[i]);
        from += runs[i];
    }
    if (count == 0)
        (void)add_around_spans(making, spans, span_count, 0, true, 0, making->wire->lengths[index]);
}

static void take_sample(struct making *making, uint32_t index)
{
    const Packd__V1__BlockHead *wire = making->wire;
    const uint32_t *runs = wire->mask_runs ? wire->mask_runs + making->mask_at : NULL;
    uint32_t count = wire->n_mask_run_counts > 0 ? wire->mask_run_counts[index] : 0;
    struct pd_body labels_start = making->labels, tokens_start = making->tokens;
    uint64_t size = (uint64_t)wire->lengths[index] * 4;
    uint32_t most = 0;

    making->mask_at += count;
    check_sample_head(making, index);
    check_sample_mask(making, index, runs, count);
    door_take_spans(making, index);
    take_tokens(making, index);
    door_check_media_tokens(making, index, tokens_start);
    door_take_tensors(making, index);
    pd_loss_runs_begin(&making->runs);
    if (wire->has_labels) {
        making->label_digests[index] = scan_column(&labels_start, size, &most);
        bool masked = !door_refused(making, index);
        struct pd_mask_reader mask = pd_mask_reader_of(runs, masked ? count : 0);
        take_labels(making, index, &mask);
    } else if (!door_refused(making, index)) {
        take_mask(making, index, runs, count);
    }
    if (!door_refused(making, index))
        pd_loss_runs_end(&making->runs);
    else
        pd_loss_runs_undo(&making->runs);
    making->run_ends[index] = pd_loss_runs_total(&making->runs);
    door_end_spans(making, index);
}

/* ---- the head ---- */

/* The next part of the arena; parts are taken widest elements first, so that all are aligned. */
static void *carve(uint8_t **at, size_t size)
{
    void *part = size > 0 ? *at : NULL;

    *at = (uint8_t *)((uintptr_t)*at + size);
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

/* The columns of spans and tensors: from entries of 8 bytes down to 4. */
static void carve_media(struct making *making, struct pd_block_head *head, uint8_t **at)
{
    size_t n = making->count, spans = making->span_count, tensors = making->tensor_count;

    head->tensor_digests = carve(at, tensors * n * 8);
    head->tensor_offsets = carve(at, tensors ? (tensors + 1) * 8 : 0);
    head->tensors = carve(at, tensors * sizeof(*head->tensors));
    head->spans = carve(at, spans * sizeof(*head->spans));
    head->span_ends = carve(at, spans ? n * 4 : 0);
    head->ragged_ends = carve(at, making->ragged_count * n * 4);
    head->span_counts = carve(at, making->run_count * spans * 4);
    head->tensor_count = making->tensor_count;
}

static void carve_head(struct making *making, uint32_t refused, struct pd_block *block,
                       uint8_t **at)
{
    const Packd__V1__BlockHead *wire = making->wire;
    struct pd_block_head *head = &block->head;
    size_t n64 = (size_t)making->count * 8, n32 = (size_t)making->count * 4;
    uint32_t runs_total = pd_loss_runs_total(&making->runs);
    size_t keys_bytes = column_bytes(wire->keys, wire->n_keys, making->found);
    size_t groups_bytes = column_bytes(wire->groups, wire->n_groups, making->found);

    head->token_digests = carve(at, n64);
    head->label_digests = carve(at, wire->has_labels ? n64 : 0);
    head->versions = carve(at, wire->n_versions ? n64 : 0);
    head->token_offsets = carve(at, n64 + 8);
    carve_media(making, head, at);
    head->lengths = carve(at, n32);
    head->weights = carve(at, wire->n_weights ? n32 : 0);
    head->loss_run_ends = carve(at, runs_total ? n32 : 0);
    head->loss_runs = carve(at, (size_t)runs_total * 4);
    head->key_ends = carve(at, keys_bytes ? n32 : 0);
    head->group_ends = carve(at, groups_bytes ? n32 : 0);
    head->keys = carve(at, keys_bytes);
    head->groups = carve(at, groups_bytes);
    head->rejected = carve(at, refused ? making->count : 0);
    block->views = carve(at, making->views.count * sizeof(*block->views));
    block->view_count = making->views.count;
}

/* Makes the head's arena and its columns, nothing in them yet; `refused` samples will be
 * flagged. */
static int build_head(struct making *making, uint32_t refused, struct pd_block *block)
{
    uint8_t *none = NULL;
    struct pd_block_head *head = &block->head;

    *head = (struct pd_block_head){0};
    carve_head(making, refused, block, &none); /* the first time only to count */
    size_t size = (size_t)(uintptr_t)none;
    uint8_t *arena = malloc(size), *at = arena;
    if (!arena)
        return PD_ENOMEM;
    *head = (struct pd_block_head){.first_seq = making->wire->first_seq,
                                   .count = making->count,
                                   .has_labels = making->wire->has_labels,
                                   .body_bytes = making->wire->body_bytes,
                                   .arena = arena};
    carve_head(making, refused, block, &at);
    PD_CHECK(at == arena + size);
    return 0;
}

static void fill_media(struct making *making, struct pd_block *block)
{
    struct pd_block_head *head = &block->head;
    size_t n = making->count;

    if (head->spans) {
        memcpy(head->spans, making->spans, making->span_count * sizeof(*head->spans));
        memcpy(head->span_ends, making->span_ends, n * 4);
    }
    if (head->tensors) {
        memcpy(head->tensors, making->tensors, making->tensor_count * sizeof(*head->tensors));
        memcpy(head->tensor_digests, making->tensor_digests, making->tensor_count * n * 8);
    }
    if (head->ragged_ends)
        memcpy(head->ragged_ends, making->ragged_ends, making->ragged_count * n * 4);
    if (head->span_counts)
        door_fill_span_counts(making, head->span_counts);
    for (uint32_t i = 0; i < making->views.count; i++)
        (void)snprintf(block->views[i], sizeof(block->views[i]), "%s", making->views.names[i]);
}

static void fill_head(struct making *making, struct pd_block *block)
{
    const Packd__V1__BlockHead *wire = making->wire;
    struct pd_block_head *head = &block->head;
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
    for (uint32_t i = 0; i < n; i++) {
        if (head->weights)
            head->weights[i] = door_refused(making, i) ? 1.0f : wire->weights[i];
        if (head->rejected)
            head->rejected[i] = door_refused(making, i);
    }
    fill_media(making, block);
    PD_CHECK(pd_block_head_derive(head)); /* pd_door_check has added up the same */
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

/* The texts of refusals name tensors. */
static int keep_tensors(const struct making *making, struct pd_door_rejects *rejects)
{
    size_t size = making->tensor_count * sizeof(*rejects->tensors);

    if (rejects->count == 0 || size == 0)
        return 0;
    rejects->tensors = malloc(size);
    if (!rejects->tensors)
        return PD_ENOMEM;
    memcpy(rejects->tensors, making->tensors, size);
    return 0;
}

static int make(struct making *making, struct pd_block *block, struct pd_door_rejects *rejects)
{
    for (uint32_t i = 0; i < making->count; i++)
        take_sample(making, i);
    if (pd_loss_runs_failed(&making->runs))
        return PD_ENOMEM;
    int rc = collect_rejects(making, rejects);
    if (rc == 0)
        rc = keep_tensors(making, rejects);
    if (rc == 0)
        rc = build_head(making, rejects->samples, block);
    if (rc == 0)
        fill_head(making, block);
    else
        pd_door_rejects_fini(rejects);
    return rc;
}

/* Room for what is found in the block, in one allocation, which is returned; NULL: no memory. */
static void *find_room(struct making *making)
{
    size_t n = making->count, spans = door_wire_spans(making->wire);
    size_t n64 = n * 8;
    size_t size = n64 * (2 + making->tensor_count) + n * sizeof(*making->found) +
                  spans * sizeof(*making->spans) + n * 4 * (2 + (size_t)making->ragged_count) +
                  spans * 4;
    uint8_t *room = calloc(1, size), *at = room;

    if (!room)
        return NULL;
    making->token_digests = carve(&at, n64);
    making->label_digests = carve(&at, n64);
    making->tensor_digests = carve(&at, n64 * making->tensor_count);
    making->found = carve(&at, n * sizeof(*making->found));
    making->spans = carve(&at, spans * sizeof(*making->spans));
    making->run_ends = carve(&at, n * 4);
    making->span_ends = carve(&at, n * 4);
    making->ragged_ends = carve(&at, n * 4 * making->ragged_count);
    making->span_places = carve(&at, spans * 4);
    PD_CHECK(at == room + size);
    return room;
}

int pd_door_make(const Packd__V1__BlockHead *wire, const struct pd_door_rules *rules,
                 struct pd_block *block, struct pd_door_rejects *rejects, struct pd_error *error)
{
    struct pd_body body = {.pieces = block->pieces, .piece_count = block->piece_count};
    struct making making = {.wire = wire,
                            .rules = rules,
                            .count = (uint32_t)wire->n_lengths,
                            .limit =
                                rules->vocab_size ? rules->vocab_size : (uint32_t)INT32_MAX + 1,
                            .tokens = body,
                            .tokens_again = body,
                            .labels = body};
    uint64_t token_bytes = 0;

    for (size_t i = 0; i < wire->n_lengths; i++)
        token_bytes += (uint64_t)wire->lengths[i] * 4;
    pd_body_skip(&making.labels, token_bytes);
    door_start_tensors(&making, token_bytes * (wire->has_labels ? 2 : 1));
    void *room = find_room(&making);
    int rc = room ? make(&making, block, rejects) : PD_ENOMEM;
    if (rc != 0)
        (void)pd_error_set(error, rc, "NO_MEMORY",
                           "no memory for the head of a block of %zu samples", wire->n_lengths);
    free(room);
    pd_loss_runs_fini(&making.runs);
    return rc;
}
