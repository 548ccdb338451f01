/* The structural check: every rule of the batch contract, exactly, on the bytes that will be
 * served.
 *
 * Place in the flow: an assemble thread runs it on each batch between the layout and the probe; a
 * client may run it on what it received; the fuzzer runs it on anything. Pure, any thread, no
 * allocation.
 *
 * Written from the contract alone: it shares no code with the layout, not even the array table, so
 * that a mistake in one is found by the other.
 *
 *   table > boundaries > lengths > sample index > plan > contents > pair > width > totals > media >
 *   digests
 *
 * Invariant: a stage may rely on what the stages before it have proved, on nothing else. After the
 * table, every array has its full length inside the payload; after the boundaries, every slot lies
 * inside one row. The first violation ends the check.
 *
 * Ranges are compared whole (check_runs.h); only where one differs is it searched for the place.
 * Every array is digested on the way, once (check_digest.c), so a digest is of bytes that were
 * checked. It does not look at the log itself: that a segment holds its sample's tokens is asked
 * through pd_check_tokens, and its tensors are for the server to compare. */
#include "base/arith.h"
#include "packer/check_runs.h"
#include "packer/check_scan.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *pd_check_name(enum pd_check check)
{
    static const char *const names[] = {
#define X(name, label) [name] = label,
        PD_CHECKS(X)
#undef X
    };
    return (unsigned)check < PD_CHECK_COUNT ? names[check] : "unknown";
}

const char *pd_check_finding_name(const struct pd_check_finding *finding)
{
    return finding->kind ? finding->kind : pd_check_name(finding->check);
}

int pd_scan_report(struct pd_scan *scan, enum pd_check check, uint64_t place, int64_t expected,
                   int64_t found, const char *format, ...)
{
    struct pd_check_finding *finding = scan->finding;
    uint32_t width = scan->batch->width;
    memset(finding, 0, sizeof *finding);
    finding->check = check;
    finding->row = width > 0 ? (uint32_t)(place / width) : 0;
    finding->position = width > 0 ? (uint32_t)(place % width) : 0;
    finding->expected = expected;
    finding->found = found;
    va_list args;
    va_start(args, format);
    vsnprintf(finding->text, sizeof finding->text, format, args);
    va_end(args);
    return PD_ECORRUPT;
}

static int report_value(struct pd_scan *scan, enum pd_check check, const char *what,
                        int64_t expected, int64_t found)
{
    return pd_scan_report(scan, check, 0, expected, found, "%s is %lld, expected %lld", what,
                          (long long)found, (long long)expected);
}

/* ---- the table ---- */

struct expected_array {
    const char *name;
    enum pd_dtype dtype;
    uint32_t rank;
    uint64_t shape[3];
};

#define HEAD_ARRAYS 4
#define TAIL_ARRAYS 6

static int check_array(struct pd_scan *scan, const struct pd_array *array,
                       const struct expected_array *want)
{
    if (strncmp(array->name, want->name, sizeof array->name) != 0)
        return pd_scan_report(scan, PD_CHECK_SHAPE, 0, 0, 0,
                              "another array stands where %s belongs", want->name);
    if (array->dtype != want->dtype || array->rank != want->rank)
        return pd_scan_report(scan, PD_CHECK_SHAPE, 0, want->rank, array->rank,
                              "%s has dtype %s, rank %u, expected %s, %u", want->name,
                              pd_dtype_name(array->dtype), array->rank, pd_dtype_name(want->dtype),
                              want->rank);
    for (uint32_t i = 0; i < want->rank; i++)
        if (array->shape[i] != want->shape[i])
            return pd_scan_report(
                scan, PD_CHECK_SHAPE, 0, (int64_t)want->shape[i], (int64_t)array->shape[i],
                "%s has %llu entries in dimension %u, expected %llu", want->name,
                (unsigned long long)array->shape[i], i, (unsigned long long)want->shape[i]);
    return 0;
}

/* Bytes of what an array says it is; false for what cannot be. */
static bool array_bytes(const struct pd_array *array, uint64_t *bytes)
{
    *bytes = pd_dtype_size_bytes(array->dtype);
    if (*bytes == 0 || array->rank > sizeof array->shape / sizeof array->shape[0] ||
        array->name[0] == 0 || !memchr(array->name, 0, sizeof array->name))
        return false;
    for (uint32_t i = 0; i < array->rank; i++)
        if (__builtin_mul_overflow(*bytes, array->shape[i], bytes))
            return false;
    return *bytes < (uint64_t)INT64_MAX / 2;
}

/* One array at its place, inside the payload, with nothing but zeros behind it; moves *offset. */
static int check_place(struct pd_scan *scan, const struct pd_array *array, uint64_t *offset)
{
    uint64_t bytes, payload_bytes = scan->batch->payload_bytes;
    if (!array_bytes(array, &bytes))
        return pd_scan_report(scan, PD_CHECK_SHAPE, 0, 0, array->rank,
                              "an array's name, dtype or shape is none");
    if (array->size_bytes != bytes || array->offset_bytes != *offset)
        return pd_scan_report(
            scan, PD_CHECK_SHAPE, 0, (int64_t)*offset, (int64_t)array->offset_bytes,
            "%s has %llu bytes at %llu, expected %llu at %llu", array->name,
            (unsigned long long)array->size_bytes, (unsigned long long)array->offset_bytes,
            (unsigned long long)bytes, (unsigned long long)*offset);
    uint64_t end = *offset + bytes;
    uint64_t next = (end + PD_ARRAY_ALIGN - 1) / PD_ARRAY_ALIGN * PD_ARRAY_ALIGN;
    if (next > payload_bytes)
        return pd_scan_report(scan, PD_CHECK_SHAPE, 0, (int64_t)next, (int64_t)payload_bytes,
                              "%s ends at %llu, behind the payload's %llu bytes", array->name,
                              (unsigned long long)end, (unsigned long long)payload_bytes);
    for (uint64_t at = end; at < next; at++)
        if (scan->payload[at] != 0)
            return pd_scan_report(scan, PD_CHECK_SHAPE, 0, 0, scan->payload[at],
                                  "byte %llu behind %s is not zero", (unsigned long long)at,
                                  array->name);
    *offset = next;
    return 0;
}

static int check_places(struct pd_scan *scan)
{
    const struct pd_batch *b = scan->batch;
    uint64_t offset = 0;
    for (uint32_t i = 0; i < b->array_count; i++) {
        int rc = check_place(scan, &b->arrays[i], &offset);
        if (rc != 0)
            return rc;
    }
    if (b->payload_bytes != offset)
        return report_value(scan, PD_CHECK_SHAPE, "payload_bytes", (int64_t)offset,
                            (int64_t)b->payload_bytes);
    return 0;
}

static const void *view_of(const struct pd_scan *scan, const char *name)
{
    return scan->payload + pd_batch_find(scan->batch, name)->offset_bytes;
}

/* The built-in arrays around those of media. */
static int check_table(struct pd_scan *scan)
{
    const struct pd_batch *b = scan->batch;
    const uint64_t r = b->rows, w = b->width, s = b->segment_count, n = b->megatron_count;
    const bool mrope = scan->planes == 3;
    const struct expected_array labels = {"labels", PD_DTYPE_I32, 2, {r, w}};
    const struct expected_array flat = {"positions", PD_DTYPE_I32, 2, {r, w}};
    const struct expected_array planes = {"positions", PD_DTYPE_I32, 3, {3, r, w}};
    const struct expected_array head[HEAD_ARRAYS] = {
        {"tokens", PD_DTYPE_I32, 2, {r, w}},
        {"cu_seqlens", PD_DTYPE_I32, 1, {s + 1}},
        {"seq_lens", PD_DTYPE_I32, 1, {s}},
        {"sample_index", PD_DTYPE_I32, 1, {s}},
    };
    const struct expected_array tail[TAIL_ARRAYS] = {
        mrope ? planes : labels,
        mrope ? labels : flat,
        {"segment_ids", PD_DTYPE_I32, 2, {r, w}},
        {"loss_weight", PD_DTYPE_F32, 2, {r, w}},
        {"cu_seqlens_real", PD_DTYPE_I32, 1, {n + 1}},
        {"cu_seqlens_padded", PD_DTYPE_I32, 1, {n + 1}},
    };
    const uint32_t built_in = HEAD_ARRAYS + TAIL_ARRAYS;
    bool may_have_more = scan->media != NULL || !scan->rows;
    if (b->array_count < built_in || b->array_count > PD_ARRAYS_MAX ||
        (b->array_count > built_in && !may_have_more))
        return report_value(scan, PD_CHECK_SHAPE, "the number of arrays", built_in, b->array_count);
    scan->media_first = HEAD_ARRAYS;
    scan->media_count = b->array_count - built_in;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < HEAD_ARRAYS; i++)
        rc = check_array(scan, &b->arrays[i], &head[i]);
    for (uint32_t i = 0; rc == 0 && i < TAIL_ARRAYS; i++)
        rc = check_array(scan, &b->arrays[HEAD_ARRAYS + scan->media_count + i], &tail[i]);
    if (rc == 0)
        rc = check_places(scan);
    for (uint32_t i = 0; rc == 0 && i < b->array_count; i++)
        if (pd_batch_find(b, b->arrays[i].name) != &b->arrays[i])
            rc = pd_scan_report(scan, PD_CHECK_SHAPE, 0, 1, 2, "there are two arrays %s",
                                b->arrays[i].name);
    return rc;
}

static int open_table(struct pd_scan *scan)
{
    int rc = check_table(scan);
    if (rc != 0)
        return rc;
    scan->tokens = view_of(scan, "tokens");
    scan->cu = view_of(scan, "cu_seqlens");
    scan->seq_lens = view_of(scan, "seq_lens");
    scan->sample_index = view_of(scan, "sample_index");
    scan->labels = view_of(scan, "labels");
    scan->positions = view_of(scan, "positions");
    scan->segment_ids = view_of(scan, "segment_ids");
    scan->loss_weight = view_of(scan, "loss_weight");
    scan->cu_real = view_of(scan, "cu_seqlens_real");
    scan->cu_padded = view_of(scan, "cu_seqlens_padded");
    pd_scan_digest_begin(scan);
    return 0;
}

static int check_header(struct pd_scan *scan)
{
    const struct pd_layout_rules *rules = scan->rules;
    const struct pd_batch *b = scan->batch;
    if (rules->seq_len == 0 || rules->seg_align == 0 || rules->total_align == 0 ||
        rules->pad_segment < rules->seg_align)
        return report_value(scan, PD_CHECK_SHAPE, "a rule of the layout", 1, 0);
    if ((uintptr_t)scan->payload % sizeof(int64_t) != 0)
        return report_value(scan, PD_CHECK_SHAPE, "the payload's alignment", 8, 1);
    if (b->rows == 0 || b->width == 0 || (uint64_t)b->rows * b->width > INT32_MAX)
        return pd_scan_report(scan, PD_CHECK_SHAPE, 0, 1, b->rows, "%u rows of %u positions",
                              b->rows, b->width);
    if (rules->fixed_segments > 0 && b->segment_count != rules->fixed_segments)
        return report_value(scan, PD_CHECK_SHAPE, "S", rules->fixed_segments, b->segment_count);
    if (rules->fixed_segments > 0 && b->megatron_count != rules->fixed_segments)
        return report_value(scan, PD_CHECK_SHAPE, "N", rules->fixed_segments, b->megatron_count);
    return open_table(scan);
}

/* ---- boundaries ---- */

static int32_t total_positions(const struct pd_scan *scan)
{
    return (int32_t)(scan->batch->rows * scan->batch->width);
}

/* A violation found at segment s, placed where it starts. */
static int report_segment(struct pd_scan *scan, enum pd_check check, uint32_t s, int64_t expected,
                          int64_t found, const char *what)
{
    const int32_t last = total_positions(scan) - 1;
    int32_t place = scan->cu[s] < 0 ? 0 : scan->cu[s] > last ? last : scan->cu[s];
    return pd_scan_report(scan, check, (uint64_t)place, expected, found,
                          "segment %u: %s is %lld, expected %lld", s, what, (long long)found,
                          (long long)expected);
}

/* cu_seqlens: from 0 to T, strictly upwards, every row start included; then only the empty entries
 * of fixed_segments. */
static int check_boundaries(struct pd_scan *scan)
{
    const int32_t total = total_positions(scan), width = (int32_t)scan->batch->width;
    const int32_t align = (int32_t)scan->rules->seg_align;
    const uint32_t count = scan->batch->segment_count;
    int32_t at = 0, row_end = width;
    if (scan->cu[0] != 0)
        return report_segment(scan, PD_CHECK_CU_SEQLENS, 0, 0, scan->cu[0], "cu_seqlens");
    uint32_t s = 0;
    for (; s < count && at < total; s++) {
        int32_t next = scan->cu[s + 1];
        if (next <= at || next > row_end)
            return report_segment(scan, PD_CHECK_CU_SEQLENS, s, next <= at ? at + 1 : row_end, next,
                                  "the end (must grow, and stay in its row)");
        if ((next - at) % align != 0)
            return report_segment(scan, PD_CHECK_CU_SEQLENS, s, 0, (next - at) % align,
                                  "the slot modulo seg_align");
        if (next - at > (int32_t)scan->max_seqlen)
            scan->max_seqlen = (uint32_t)(next - at);
        at = next;
        row_end += at == row_end && at < total ? width : 0;
    }
    if (at != total)
        return report_segment(scan, PD_CHECK_CU_SEQLENS, s, total, at, "the last boundary");
    scan->used = s;
    if (s < count && scan->rules->fixed_segments == 0)
        return report_segment(scan, PD_CHECK_CU_SEQLENS, s, s, count, "the number of segments");
    for (; s < count; s++)
        if (scan->cu[s + 1] != total)
            return report_segment(scan, PD_CHECK_CU_SEQLENS, s, total, scan->cu[s + 1],
                                  "the empty entry");
    return 0;
}

static bool starts_row(const struct pd_scan *scan, uint32_t s)
{
    return (uint32_t)scan->cu[s] % scan->batch->width == 0;
}

static int check_length(struct pd_scan *scan, uint32_t s)
{
    int32_t slot = scan->cu[s + 1] - scan->cu[s], length = scan->seq_lens[s];
    int32_t align = (int32_t)scan->rules->seg_align;
    if (length == 0) {
        if (slot > (int32_t)scan->rules->pad_segment)
            return report_segment(scan, PD_CHECK_PADDING, s, scan->rules->pad_segment, slot,
                                  "the padding segment");
        return 0;
    }
    /* The slot is the length rounded up to seg_align. */
    if (length < 0 || length > slot || slot - length >= align)
        return report_segment(scan, PD_CHECK_SEQ_LENS, s, slot, length, "seq_lens (of its slot)");
    if (!starts_row(scan, s) && scan->seq_lens[s - 1] == 0)
        return report_segment(scan, PD_CHECK_SEQ_LENS, s, 0, length,
                              "seq_lens behind the padding of its row");
    return 0;
}

/* seq_lens within their slots, padding only at the end of a row; counts positions by kind. */
static int check_lengths(struct pd_scan *scan)
{
    uint32_t s = 0, in_row = 0, row_slots = 0;
    for (; s < scan->used; s++) {
        int rc = check_length(scan, s);
        if (rc != 0)
            return rc;
        uint32_t slot = (uint32_t)(scan->cu[s + 1] - scan->cu[s]),
                 length = (uint32_t)scan->seq_lens[s];
        in_row = starts_row(scan, s) ? 0 : in_row;
        row_slots = starts_row(scan, s) ? 0 : row_slots;
        if (length > 0) {
            scan->seen.real_tokens += length;
            scan->seen.gap_tokens += slot - length;
            scan->seen.segments++;
            in_row++;
            row_slots += slot;
            scan->seen.longest_tokens =
                length > scan->seen.longest_tokens ? length : scan->seen.longest_tokens;
            scan->seen.widest_slots =
                row_slots > scan->seen.widest_slots ? row_slots : scan->seen.widest_slots;
            if (scan->rules->segments_max > 0 && in_row > scan->rules->segments_max)
                return report_segment(scan, PD_CHECK_PLAN, s, scan->rules->segments_max, in_row,
                                      "the number of real segments in the row");
        } else if (in_row > 0) {
            scan->tail_tokens += slot;
        } else {
            scan->row_padding_tokens += slot;
        }
    }
    for (; s < scan->batch->segment_count; s++)
        if (scan->seq_lens[s] != 0)
            return report_segment(scan, PD_CHECK_SEQ_LENS, s, 0, scan->seq_lens[s],
                                  "seq_lens of an empty entry");
    return 0;
}

static int check_sample_index(struct pd_scan *scan)
{
    int32_t next = 0;
    for (uint32_t s = 0; s < scan->batch->segment_count; s++) {
        int32_t expected = scan->seq_lens[s] > 0 ? next++ : -1;
        if (scan->sample_index[s] != expected)
            return report_segment(scan, PD_CHECK_SAMPLE_INDEX, s, expected, scan->sample_index[s],
                                  "sample_index");
    }
    return 0;
}

/* ---- the plan ---- */

static uint32_t planned_count(const struct pd_scan *scan, uint32_t row)
{
    return scan->rows[row] ? scan->rows[row]->segment_count : 0;
}

/* Lengths and slots of one row as planned; moves *s behind the row. */
static int check_plan_row(struct pd_scan *scan, uint32_t row, uint32_t *s)
{
    const int32_t row_end = (int32_t)((row + 1) * scan->batch->width);
    const uint32_t planned = planned_count(scan, row);
    uint32_t i = 0;
    for (; *s < scan->used && scan->cu[*s] < row_end; (*s)++) {
        if (scan->seq_lens[*s] == 0)
            continue;
        if (i == planned)
            return report_segment(scan, PD_CHECK_PLAN, *s, planned, (int64_t)i + 1,
                                  "the number of segments in the row");
        const struct pd_segment *segment = &scan->rows[row]->segments[i++];
        if ((uint32_t)scan->seq_lens[*s] != segment->length_tokens)
            return report_segment(scan, PD_CHECK_PLAN, *s, segment->length_tokens,
                                  scan->seq_lens[*s], "the length");
        if ((uint32_t)(scan->cu[*s + 1] - scan->cu[*s]) != segment->slot_tokens)
            return report_segment(scan, PD_CHECK_PLAN, *s, segment->slot_tokens,
                                  scan->cu[*s + 1] - scan->cu[*s], "the slot");
        scan->seen.samples += segment->part == 0;
        scan->seen.overlap_tokens += segment->overlap_tokens;
        scan->seen.patches += segment->patches;
    }
    if (i != planned)
        return pd_scan_report(scan, PD_CHECK_PLAN, (uint64_t)row * scan->batch->width, planned, i,
                              "row %u has %u segments, %u planned", row, i, planned);
    return 0;
}

static int check_plan(struct pd_scan *scan)
{
    uint32_t s = 0;
    for (uint32_t row = 0; scan->rows && row < scan->batch->rows; row++) {
        int rc = check_plan_row(scan, row, &s);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* ---- contents ---- */

/* Names the first place of [at, at + count) of `array` that is not `value`, or counts up from it.
 */
static int check_run(struct pd_scan *scan, enum pd_check check, const char *name,
                     const int32_t *array, uint64_t at, uint32_t count, int32_t value, bool up)
{
    if (up ? pd_run_counts_up(array + at, count) : pd_run_equals(array + at, count, value))
        return 0;
    for (uint32_t i = 0;; i++) {
        int64_t expected = up ? (int64_t)i : value;
        if (array[at + i] != expected)
            return pd_scan_report(scan, check, at + i, expected, array[at + i],
                                  "%s is %d, expected %lld", name, array[at + i],
                                  (long long)expected);
    }
}

/* No weight on [at, at + count). Compares bits: -0.0 is not the 0 of the contract. */
static int check_no_weight(struct pd_scan *scan, enum pd_check check, uint64_t at, uint32_t count)
{
    if (pd_run_is_zero(scan->loss_weight + at, count))
        return 0;
    for (uint32_t i = 0;; i++) {
        uint32_t bits = pd_float_bits(scan->loss_weight[at + i]);
        if (bits != 0)
            return pd_scan_report(scan, check, at + i, 0, bits,
                                  "loss_weight is %g where there is no label",
                                  (double)scan->loss_weight[at + i]);
    }
}

/* Padding or gap: nothing to attend to, nothing to learn. */
static int check_void(struct pd_scan *scan, uint64_t at, uint32_t count)
{
    int rc = check_run(scan, PD_CHECK_PADDING, "tokens", scan->tokens, at, count,
                       scan->rules->pad_id, false);
    if (rc == 0)
        rc = check_run(scan, PD_CHECK_SEGMENT_IDS, "segment_ids", scan->segment_ids, at, count, 0,
                       false);
    if (rc == 0)
        rc = check_run(scan, PD_CHECK_PADDING, "labels", scan->labels, at, count, PD_LABEL_NONE,
                       false);
    return rc != 0 ? rc : check_no_weight(scan, PD_CHECK_PADDING, at, count);
}

/* Every plane of positions of one slot without media. */
static int check_positions(struct pd_scan *scan, uint64_t at, uint32_t slot)
{
    const uint64_t plane = (uint64_t)scan->batch->rows * scan->batch->width;
    const int32_t *positions = scan->positions;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < scan->planes; i++, positions += plane)
        rc = check_run(scan, PD_CHECK_POSITIONS, "positions", positions, at, slot, 0, true);
    return rc;
}

/* The weight every target of the segment must carry: the plan's, else that of its first target. */
static float target_weight(const struct pd_scan *scan, const struct pd_segment *planned,
                           uint64_t at, uint32_t length)
{
    if (planned)
        return pd_segment_loss_weight(planned, scan->rules->loss);
    for (uint32_t i = 0; i < length; i++)
        if (scan->labels[at + i] != PD_LABEL_NONE)
            return scan->loss_weight[at + i];
    return 0;
}

/* *targets gets the number of labels. */
static int check_weights(struct pd_scan *scan, uint64_t at, uint32_t length, float weight,
                         uint32_t *targets)
{
    const float *weights = scan->loss_weight + at;
    const int32_t *labels = scan->labels + at;
    bool weighted = pd_run_is_weighted(weights, labels, length, weight, targets);
    if (isfinite(weight) && weight >= 0 && weighted)
        return 0;
    for (uint32_t i = 0; i < length; i++) {
        float expected = labels[i] != PD_LABEL_NONE ? weight : 0;
        if (pd_float_bits(weights[i]) != pd_float_bits(expected) || !isfinite(weights[i]) ||
            weights[i] < 0)
            return pd_scan_report(scan, PD_CHECK_LOSS_WEIGHT, at + i, pd_float_bits(expected),
                                  pd_float_bits(weights[i]),
                                  "loss_weight is %g, expected %g (%s label)", (double)weights[i],
                                  (double)expected, labels[i] != PD_LABEL_NONE ? "a" : "no");
    }
    return 0;
}

/* Labels and weights of one real segment; `planned` NULL without a plan. */
static int check_loss(struct pd_scan *scan, const struct pd_segment *planned, uint64_t at,
                      uint32_t length)
{
    uint64_t edge = scan->rules->labels == PD_LABELS_SHIFTED ? at + length - 1 : at;
    if (scan->labels[edge] != PD_LABEL_NONE)
        return pd_scan_report(scan, PD_CHECK_LABELS, edge, PD_LABEL_NONE, scan->labels[edge],
                              "the label at the %s of a segment is %d, expected none",
                              edge == at ? "start" : "end", scan->labels[edge]);
    float weight = target_weight(scan, planned, at, length);
    uint32_t targets;
    int rc = check_weights(scan, at, length, weight, &targets);
    if (rc != 0)
        return rc;
    if (planned && targets != planned->loss_tokens)
        return pd_scan_report(scan, PD_CHECK_PLAN, at, planned->loss_tokens, targets,
                              "the segment has %u labels, %u planned", targets,
                              planned->loss_tokens);
    scan->seen.loss_tokens += targets;
    scan->seen.loss_weight += targets > 0 ? (double)weight * targets : 0;
    return 0;
}

static uint64_t saturating_cost(struct pd_cost cost, uint64_t length, uint64_t sum)
{
    /* length < 2^31 and both factors < 2^32: 128 bits hold the sum exactly. */
    __extension__ typedef unsigned __int128 wide;
    wide total = (wide)cost.alpha * length + (wide)cost.beta * length * length + sum;
    return total > UINT64_MAX ? UINT64_MAX : (uint64_t)total;
}

static int check_tokens(struct pd_scan *scan, const struct pd_segment *planned, uint64_t at)
{
    bool same = true;
    if (!planned || !scan->log_tokens)
        return 0;
    int rc = scan->log_tokens->compare(scan->log_tokens->ctx, planned, scan->tokens + at, &same);
    if (rc != 0 || same)
        return rc;
    return pd_scan_report(scan, PD_CHECK_DIGEST, at, 0, 0,
                          "the tokens of the %u positions from here are not those of sample seq "
                          "%llu of stream number %u",
                          planned->length_tokens, (unsigned long long)planned->seq,
                          planned->stream);
}

static int check_real(struct pd_scan *scan, const struct pd_segment *planned, uint32_t s,
                      int32_t id)
{
    uint64_t at = (uint64_t)scan->cu[s];
    uint32_t slot = (uint32_t)(scan->cu[s + 1] - scan->cu[s]), length = (uint32_t)scan->seq_lens[s];
    int rc = scan->planes == 3 ? pd_scan_mrope(scan, planned, at, slot, length)
                               : check_positions(scan, at, slot);
    if (rc == 0)
        rc = check_run(scan, PD_CHECK_SEGMENT_IDS, "segment_ids", scan->segment_ids, at, length, id,
                       false);
    /* Where the gap starts is settled before labels are read by it. */
    if (rc == 0)
        rc = check_run(scan, PD_CHECK_SEGMENT_IDS, "segment_ids", scan->segment_ids, at + length,
                       slot - length, 0, false);
    if (rc == 0)
        rc = check_loss(scan, planned, at, length);
    if (rc == 0)
        rc = check_tokens(scan, planned, at);
    if (rc == 0)
        rc = check_void(scan, at + length, slot - length);
    scan->seen.attention_cost =
        saturating_cost(scan->rules->cost, length, scan->seen.attention_cost);
    return rc;
}

static int check_padding(struct pd_scan *scan, uint32_t s)
{
    uint64_t at = (uint64_t)scan->cu[s];
    uint32_t slot = (uint32_t)(scan->cu[s + 1] - scan->cu[s]);
    int rc = check_positions(scan, at, slot);
    return rc != 0 ? rc : check_void(scan, at, slot);
}

static int check_contents(struct pd_scan *scan)
{
    int32_t id = 0;
    for (uint32_t s = 0; s < scan->used; s++) {
        uint32_t row = (uint32_t)scan->cu[s] / scan->batch->width;
        id = starts_row(scan, s) ? 0 : id;
        int rc;
        if (scan->seq_lens[s] == 0) {
            rc = check_padding(scan, s);
        } else {
            const struct pd_segment *planned = scan->rows ? &scan->rows[row]->segments[id] : NULL;
            rc = check_real(scan, planned, s, ++id);
        }
        if (rc != 0)
            return rc;
        pd_scan_digest_to(scan, (uint64_t)scan->cu[s + 1]);
    }
    return 0;
}

/* ---- the Megatron pair ---- */

/* Entry n of the pair ends at these offsets. */
static int check_pair_entry(struct pd_scan *scan, uint32_t n, int64_t real, int64_t padded)
{
    uint64_t place = padded > 0 ? (uint64_t)padded - 1 : 0;
    if (n > scan->batch->megatron_count)
        return pd_scan_report(scan, PD_CHECK_MEGATRON, place, n, scan->batch->megatron_count,
                              "the pair has %u entries, expected more",
                              scan->batch->megatron_count);
    if (scan->cu_real[n] != real)
        return pd_scan_report(scan, PD_CHECK_MEGATRON, place, real, scan->cu_real[n],
                              "cu_seqlens_real[%u] is %d, expected %lld", n, scan->cu_real[n],
                              (long long)real);
    if (scan->cu_padded[n] != padded)
        return pd_scan_report(scan, PD_CHECK_MEGATRON, place, padded, scan->cu_padded[n],
                              "cu_seqlens_padded[%u] is %d, expected %lld", n, scan->cu_padded[n],
                              (long long)padded);
    return 0;
}

/* A real segment counts with its length and reaches to the next real segment of its row or to the
 * row's end; an all-padding row counts whole. */
static int check_pair(struct pd_scan *scan)
{
    const int64_t width = scan->batch->width;
    int64_t real = 0;
    uint32_t n = 0;
    int rc = check_pair_entry(scan, 0, 0, 0);
    for (uint32_t s = 0; s < scan->used && rc == 0; s++) {
        bool is_real = scan->seq_lens[s] > 0;
        if (!is_real && !starts_row(scan, s))
            continue;
        int64_t row_end = (scan->cu[s] / width + 1) * width;
        bool last = s + 1 >= scan->used || scan->seq_lens[s + 1] == 0;
        real += is_real ? scan->seq_lens[s] : width;
        rc = check_pair_entry(scan, ++n, real, last ? row_end : scan->cu[s + 1]);
    }
    if (rc == 0 && scan->rules->fixed_segments == 0 && n != scan->batch->megatron_count)
        rc = report_value(scan, PD_CHECK_MEGATRON, "N", n, scan->batch->megatron_count);
    while (rc == 0 && n < scan->batch->megatron_count)
        rc = check_pair_entry(scan, ++n, real, total_positions(scan));
    return rc;
}

/* ---- totals ---- */

/* Whether the width is one the rules allow for rows whose widest uses `widest` positions. */
static bool width_allowed(const struct pd_layout_rules *rules, uint32_t width, uint32_t widest)
{
    if (width < widest || width > rules->seq_len || width % rules->total_align != 0)
        return false;
    if (rules->width == PD_WIDTH_FIXED)
        return width == rules->seq_len;
    /* With width: step the widest row may be in another batch, so the width need not be the least.
     */
    uint32_t least = rules->width == PD_WIDTH_STEP ? width : widest > 0 ? widest : 1;
    if (rules->width_count == 0)
        return width - least < rules->total_align;
    uint32_t below = 0;
    for (uint32_t i = 0;
         i < rules->width_count && i < sizeof rules->widths / sizeof rules->widths[0]; i++) {
        if (rules->widths[i] >= width)
            return rules->widths[i] == width && least > below;
        below = rules->widths[i];
    }
    return width == rules->seq_len && least > below;
}

static int check_width(struct pd_scan *scan)
{
    if (width_allowed(scan->rules, scan->batch->width, scan->seen.widest_slots))
        return 0;
    return pd_scan_report(scan, PD_CHECK_SHAPE, 0, scan->seen.widest_slots, scan->batch->width,
                          "the width is %u, not one the rules allow for rows of %u positions",
                          scan->batch->width, scan->seen.widest_slots);
}

static int check_totals(struct pd_scan *scan)
{
    const struct pd_batch *b = scan->batch;
    const struct pd_totals *told = &b->totals, *seen = &scan->seen;
    if (b->max_seqlen != scan->max_seqlen)
        return report_value(scan, PD_CHECK_MAX_SEQLEN, "max_seqlen", scan->max_seqlen,
                            b->max_seqlen);
    const struct {
        const char *name;
        uint64_t expected, found;
        bool from_plan;
    } sums[] = {
        {"n_real_segments", seen->segments, b->real_segment_count, false},
        {"segments", seen->segments, told->segments, false},
        {"real_tokens", seen->real_tokens, told->real_tokens, false},
        {"gap_tokens", seen->gap_tokens, told->gap_tokens, false},
        {"tail_tokens", scan->tail_tokens, b->tail_tokens, false},
        {"row_padding_tokens", scan->row_padding_tokens, b->row_padding_tokens, false},
        {"loss_tokens", seen->loss_tokens, told->loss_tokens, false},
        {"attention_cost", seen->attention_cost, told->attention_cost, false},
        {"longest_tokens", seen->longest_tokens, told->longest_tokens, false},
        {"widest_slots", seen->widest_slots, told->widest_slots, false},
        {"samples", seen->samples, told->samples, true},
        {"overlap_tokens", seen->overlap_tokens, told->overlap_tokens, true},
        {"patches", seen->patches, told->patches, true},
    };
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++)
        if (sums[i].expected != sums[i].found && (scan->rows || !sums[i].from_plan))
            return report_value(scan, PD_CHECK_TOTALS, sums[i].name, (int64_t)sums[i].expected,
                                (int64_t)sums[i].found);
    /* Bits again: the sum has one order, so it has one value. */
    if (memcmp(&seen->loss_weight, &told->loss_weight, sizeof told->loss_weight) != 0)
        return pd_scan_report(scan, PD_CHECK_TOTALS, 0, 0, 0,
                              "the loss weight is %.17g, expected %.17g", told->loss_weight,
                              seen->loss_weight);
    return 0;
}

int pd_check_batch(const struct pd_check_input *input, struct pd_check_finding *finding)
{
    static int (*const stages[])(struct pd_scan *) = {
        check_header, check_boundaries, check_lengths,   check_sample_index,
        check_plan,   check_contents,   check_pair,      check_width,
        check_totals, pd_scan_media,    pd_scan_digests,
    };
    struct pd_scan scan = {.rules = input->rules,
                           .batch = input->batch,
                           .rows = input->rows,
                           .media = input->media,
                           .heads = input->heads,
                           .log_tokens = input->tokens,
                           .payload = input->payload,
                           .digests = input->digests,
                           .planes = input->rules->positions == PD_POSITIONS_MROPE ? 3 : 1,
                           .finding = finding};
    int rc = 0;
    finding->text[0] = 0;
    for (size_t i = 0; i < sizeof stages / sizeof stages[0] && rc == 0; i++)
        rc = stages[i](&scan);
    return rc;
}
