/* The backend-free half of the probe: what may run at all, the lengths, and the verdict in words.
 *
 * Sits between the validator and its backends: a batch is admitted here before any kernel sees
 * it, since a kernel indexes memory with cu_seqlens, and the kinds per token that come back are
 * turned into places here, so that every backend reports alike. Pure functions; any thread. Does
 * not compute a single sum. */
#include "gpu/probe_code.h"

#include <string.h>

static const char *const kind_names[PD_PROBE_KIND_COUNT] = {
#define X(name, bit, label) label,
    PD_PROBE_KINDS(X)
#undef X
};

const char *pd_probe_kind_name(enum pd_probe_kind kind)
{
    for (uint32_t i = 0; i < PD_PROBE_KIND_COUNT; i++)
        if ((uint32_t)kind == 1u << i)
            return kind_names[i];
    return "probe_unknown";
}

static int check_shape(const struct pd_probe_batch *batch, struct pd_error *error)
{
    if (!batch->segment_ids || !batch->cu_seqlens || !batch->seq_lens)
        return pd_error_set(error, PD_EINVAL, "PROBE_ARRAYS",
                            "probe: segment_ids, cu_seqlens and seq_lens are needed");
    if (batch->rows == 0 || batch->width == 0 || batch->segment_count == 0)
        return pd_error_set(error, PD_EINVAL, "PROBE_SHAPE",
                            "probe: rows %u, width %u, segments %u: none may be 0", batch->rows,
                            batch->width, batch->segment_count);
    if (batch->width > PD_PROBE_WIDTH_MAX || batch->rows > PD_PROBE_ROWS_MAX ||
        (uint64_t)batch->rows * batch->width > PD_PROBE_TOKENS_MAX)
        return pd_error_set(error, PD_ELIMIT, "PROBE_SHAPE",
                            "probe: %u rows of %u positions; sums are exact up to %u rows, %u "
                            "positions and %u tokens",
                            batch->rows, batch->width, PD_PROBE_ROWS_MAX, PD_PROBE_WIDTH_MAX,
                            PD_PROBE_TOKENS_MAX);
    return 0;
}

int pd_probe_admit(const struct pd_probe_batch *batch, uint8_t *kinds, bool *admitted,
                   struct pd_error *error)
{
    int rc = check_shape(batch, error);
    if (rc != 0)
        return rc;
    int64_t tokens = (int64_t)batch->rows * batch->width, last = 0;
    memset(kinds, 0, (size_t)tokens);
    *admitted = true;
    for (uint32_t i = 0; i <= batch->segment_count; i++) {
        int64_t at = batch->cu_seqlens[i];
        if (at < last || at > tokens) {
            kinds[last < tokens ? last : tokens - 1] |= PD_PROBE_BOUNDS;
            *admitted = false;
        } else {
            last = at;
        }
    }
    return 0;
}

static int32_t slot_of(const struct pd_probe_batch *batch, uint32_t i)
{
    return batch->cu_seqlens[i + 1] - batch->cu_seqlens[i];
}

/* Real tokens first, `length` of them, then the gap: two looks suffice, since the probe itself
 * finds a real token behind a gap. */
static bool length_right(const struct pd_probe_batch *batch, uint32_t i)
{
    const int32_t *ids = batch->segment_ids + batch->cu_seqlens[i];
    int32_t length = batch->seq_lens[i], slot = slot_of(batch, i);
    if (length < 0 || length > slot)
        return false;
    return (length == 0 || ids[length - 1] > 0) && (length == slot || ids[length] == 0);
}

void pd_probe_check_lengths(const struct pd_probe_batch *batch, uint8_t *kinds)
{
    uint32_t tokens = batch->rows * batch->width;
    for (uint32_t i = 0; i < batch->segment_count; i++) {
        uint32_t first = (uint32_t)batch->cu_seqlens[i];
        uint32_t place = first < tokens ? first : tokens - 1;
        if (!length_right(batch, i))
            kinds[place] |= PD_PROBE_LENGTH;
        if (batch->logged_lens && batch->logged_lens[i] != batch->seq_lens[i])
            kinds[place] |= PD_PROBE_LOGGED;
    }
}

int32_t pd_probe_used_of(const struct pd_probe_batch *batch, uint32_t i)
{
    int32_t length = batch->seq_lens[i], slot = slot_of(batch, i);
    return length > 0 && length < slot ? length : slot;
}

/* Is t the first token of a segment of cu_seqlens? *next walks along with t. */
static bool starts_segment(const struct pd_probe_batch *batch, uint32_t t, uint32_t *next)
{
    while (*next < batch->segment_count && (uint32_t)batch->cu_seqlens[*next] < t)
        ++*next;
    return *next < batch->segment_count && (uint32_t)batch->cu_seqlens[*next] == t;
}

void pd_probe_derive_positions(const struct pd_probe_batch *batch, int32_t *positions)
{
    uint32_t tokens = batch->rows * batch->width, next = 0;
    int32_t position = 0;
    for (uint32_t t = 0; t < tokens; t++) {
        bool changed = t > 0 && batch->segment_ids[t] != batch->segment_ids[t - 1];
        bool restart = batch->segment_ids[t] == 0 ? starts_segment(batch, t, &next) : changed;
        position = t % batch->width == 0 || restart ? 0 : position + 1;
        positions[t] = position;
    }
}

/* The segment whose slot holds token t, or segment_count. */
static uint32_t segment_at(const struct pd_probe_batch *batch, uint32_t t)
{
    uint32_t low = 0, high = batch->segment_count;
    if ((uint32_t)batch->cu_seqlens[0] > t || (uint32_t)batch->cu_seqlens[high] <= t)
        return high;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if ((uint32_t)batch->cu_seqlens[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The first key that token t sees though it belongs to another segment or row. */
static void name_foreign(const struct pd_probe_batch *batch, uint32_t t, struct pd_violation *found)
{
    uint32_t i = segment_at(batch, t), width = batch->width;
    if (i == batch->segment_count)
        return;
    uint32_t first = (uint32_t)batch->cu_seqlens[i], end = t + 1;
    if (!batch->causal && first + (uint32_t)pd_probe_used_of(batch, i) > end)
        end = first + (uint32_t)pd_probe_used_of(batch, i);
    int32_t own = batch->segment_ids[t], owner = own;
    struct pd_code_token token; /* a gap may see its owner's tokens */
    if (batch->positions &&
        pd_code_token_read(batch->segment_ids, batch->positions, width, t, true, &token))
        owner = token.owner;
    for (uint32_t key = first; key < end; key++) {
        int32_t id = batch->segment_ids[key];
        if (key / width == t / width && (id == own || id == owner))
            continue;
        found->foreign_row = (int32_t)(key / width);
        found->foreign_segment = id;
        return;
    }
}

static void list_violation(const struct pd_probe_batch *batch, uint32_t t, uint32_t kinds,
                           struct pd_violation *found)
{
    *found = (struct pd_violation){
        .row = t / batch->width,
        .position = t % batch->width,
        .kind = (enum pd_probe_kind)(kinds & -kinds),
        .kinds = kinds,
        .segment = batch->segment_ids[t],
        .foreign_row = -1,
        .foreign_segment = -1,
    };
    if (kinds & PD_PROBE_FOREIGN)
        name_foreign(batch, t, found);
}

/* First t' >= t with kinds[t'] != 0, or tokens; eight at a time, since nearly all are 0. */
static size_t next_found(const uint8_t *kinds, size_t t, size_t tokens)
{
    uint64_t eight = 0;
    while (t + 8 <= tokens) {
        memcpy(&eight, kinds + t, 8);
        if (eight != 0)
            break;
        t += 8;
    }
    while (t < tokens && kinds[t] == 0)
        t++;
    return t;
}

void pd_probe_report(const struct pd_probe_batch *batch, const uint8_t *kinds,
                     struct pd_probe_result *result)
{
    size_t tokens = (size_t)batch->rows * batch->width;
    memset(result, 0, sizeof(*result));
    for (size_t t = next_found(kinds, 0, tokens); t < tokens;
         t = next_found(kinds, t + 1, tokens)) {
        result->violation_count++;
        for (uint32_t i = 0; i < PD_PROBE_KIND_COUNT; i++)
            result->kind_counts[i] += (kinds[t] >> i) & 1u;
        if (result->listed < PD_PROBE_VIOLATIONS_MAX)
            list_violation(batch, (uint32_t)t, kinds[t], &result->violations[result->listed++]);
    }
}
