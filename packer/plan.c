/* Packs as values: grow, sum up, encode, decode.
 *
 * The planner fills packs, the log keeps their encoding, the layout reads them. Pure; a pack
 * belongs to one thread. Invariant: used_slots is the sum of the segments' slots. It does not know
 * seq_len: the planner's caps and the structural check do.
 *
 *   pack    = version u8 | number | count | segment ...             (numbers are LEB128)
 *   segment = flags u8 | block | index | stream | seq | source | length | slot - length
 *             [pass] [part, part_count, offset, overlap, sample_tokens] [loss, sample_loss]
 *             [patches] [weight f32] [drop_views, keep_frames] */
#include "packer/plan.h"

#include <stdlib.h>
#include <string.h>

#define PLAN_ENCODING 1
#define SEGMENT_BYTES_MIN 8
#define SEGMENT_BYTES_MAX (1 + 18 * PD_VARINT_BYTES_MAX + 4) /* every number, and the weight */

enum {
    HAS_PASS = 1,
    HAS_PART = 2, /* only a slice of the sample, or one of several parts */
    HAS_LOSS = 4, /* other than "all but the first token" */
    HAS_PATCHES = 8,
    HAS_WEIGHT = 16,
    HAS_PRUNE = 32,
    HAS_ALL = 63,
};

float pd_segment_loss_weight(const struct pd_segment *segment, enum pd_loss_policy policy)
{
    if (policy == PD_LOSS_TOKEN)
        return segment->weight;
    if (segment->sample_loss_tokens == 0)
        return 0;
    return (float)((double)segment->weight / (double)segment->sample_loss_tokens);
}

static void totals_add_segment(struct pd_totals *totals, const struct pd_segment *segment,
                               enum pd_loss_policy policy, struct pd_cost cost)
{
    totals->real_tokens += segment->length_tokens;
    totals->gap_tokens += segment->slot_tokens - segment->length_tokens;
    totals->overlap_tokens += segment->overlap_tokens;
    totals->loss_tokens += segment->loss_tokens;
    totals->loss_weight +=
        (double)pd_segment_loss_weight(segment, policy) * (double)segment->loss_tokens;
    totals->segments++;
    totals->samples += segment->part == 0;
    totals->patches += segment->patches;
    totals->attention_cost =
        pd_add_saturating(totals->attention_cost, pd_cost_segment(cost, segment->length_tokens));
    if (segment->length_tokens > totals->longest_tokens)
        totals->longest_tokens = segment->length_tokens;
}

void pd_totals_add(struct pd_totals *totals, const struct pd_pack *pack, enum pd_loss_policy policy,
                   struct pd_cost cost)
{
    for (uint32_t i = 0; i < pack->segment_count; i++)
        totals_add_segment(totals, &pack->segments[i], policy, cost);
    if (pack->used_slots > totals->widest_slots)
        totals->widest_slots = pack->used_slots;
}

int pd_pack_push(struct pd_pack *pack, const struct pd_segment *segment)
{
    if (pack->segment_count == pack->segment_capacity) {
        uint32_t capacity = pack->segment_capacity ? 2 * pack->segment_capacity : 16;
        struct pd_segment *segments = realloc(pack->segments, capacity * sizeof *segments);
        if (!segments)
            return PD_ENOMEM;
        pack->segments = segments;
        pack->segment_capacity = capacity;
    }
    pack->segments[pack->segment_count++] = *segment;
    pack->used_slots += segment->slot_tokens;
    return 0;
}

void pd_pack_clear(struct pd_pack *pack)
{
    pack->number = 0;
    pack->segment_count = 0;
    pack->used_slots = 0;
}

void pd_pack_fini(struct pd_pack *pack)
{
    free(pack->segments);
    *pack = (struct pd_pack){0};
}

static uint8_t segment_flags(const struct pd_segment *segment)
{
    uint8_t flags = 0;
    bool whole = segment->part == 0 && segment->part_count == 1 && segment->offset_tokens == 0 &&
                 segment->overlap_tokens == 0 && segment->sample_tokens == segment->length_tokens;
    bool all_targets = segment->loss_tokens == segment->length_tokens - 1 &&
                       segment->sample_loss_tokens == segment->loss_tokens;
    flags |= segment->pass ? HAS_PASS : 0;
    flags |= whole ? 0 : HAS_PART;
    flags |= all_targets ? 0 : HAS_LOSS;
    flags |= segment->patches ? HAS_PATCHES : 0;
    flags |= segment->weight != 1.0f ? HAS_WEIGHT : 0;
    flags |= segment->prune.drop_views || segment->prune.keep_frames ? HAS_PRUNE : 0;
    return flags;
}

static uint8_t *write_all(uint8_t *at, const uint64_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        at = pd_varint_write(at, values[i]);
    return at;
}

void pd_segment_encode(const struct pd_segment *s, struct pd_buf *buf)
{
    uint8_t flags = segment_flags(s), bytes[SEGMENT_BYTES_MAX], *at = bytes;
    *at++ = flags;
    at = write_all(at,
                   (uint64_t[]){s->block, s->index, s->stream, s->seq, s->source, s->length_tokens,
                                s->slot_tokens - s->length_tokens},
                   7);
    if (flags & HAS_PASS)
        at = pd_varint_write(at, s->pass);
    if (flags & HAS_PART)
        at = write_all(at,
                       (uint64_t[]){s->part, s->part_count, s->offset_tokens, s->overlap_tokens,
                                    s->sample_tokens},
                       5);
    if (flags & HAS_LOSS)
        at = write_all(at, (uint64_t[]){s->loss_tokens, s->sample_loss_tokens}, 2);
    if (flags & HAS_PATCHES)
        at = pd_varint_write(at, s->patches);
    if (flags & HAS_WEIGHT) {
        memcpy(at, &s->weight, sizeof s->weight);
        at += sizeof s->weight;
    }
    if (flags & HAS_PRUNE)
        at = write_all(at, (uint64_t[]){s->prune.drop_views, s->prune.keep_frames}, 2);
    pd_buf_put(buf, bytes, (size_t)(at - bytes));
}

static void read_part(struct pd_segment *s, struct pd_reader *reader)
{
    s->part = pd_reader_varint32(reader);
    s->part_count = pd_reader_varint32(reader);
    s->offset_tokens = pd_reader_varint32(reader);
    s->overlap_tokens = pd_reader_varint32(reader);
    s->sample_tokens = pd_reader_varint32(reader);
}

static bool segment_sound(const struct pd_segment *s)
{
    return s->length_tokens > 0 && s->slot_tokens >= s->length_tokens && s->part < s->part_count &&
           s->overlap_tokens <= (s->part > 0) &&
           (uint64_t)s->offset_tokens + s->length_tokens <= s->sample_tokens &&
           s->loss_tokens < s->length_tokens && s->loss_tokens <= s->sample_loss_tokens &&
           s->weight >= 0 && s->weight <= 3.4028235e38f;
}

bool pd_segment_decode(struct pd_segment *s, struct pd_reader *reader)
{
    *s = (struct pd_segment){.part_count = 1, .weight = 1.0f};
    uint8_t flags = pd_reader_u8(reader);
    s->block = pd_reader_varint(reader);
    s->index = pd_reader_varint32(reader);
    s->stream = pd_reader_varint32(reader);
    s->seq = pd_reader_varint(reader);
    s->source = pd_reader_varint32(reader);
    s->length_tokens = pd_reader_varint32(reader);
    uint64_t slot = (uint64_t)s->length_tokens + pd_reader_varint32(reader);
    s->slot_tokens = (uint32_t)slot;
    s->sample_tokens = s->length_tokens;
    s->loss_tokens = s->sample_loss_tokens = s->length_tokens - 1;
    if (flags & HAS_PASS)
        s->pass = pd_reader_varint32(reader);
    if (flags & HAS_PART)
        read_part(s, reader);
    if (flags & HAS_LOSS) {
        s->loss_tokens = pd_reader_varint32(reader);
        s->sample_loss_tokens = pd_reader_varint32(reader);
    }
    if (flags & HAS_PATCHES)
        s->patches = pd_reader_varint32(reader);
    if (flags & HAS_WEIGHT)
        s->weight = pd_reader_f32(reader);
    if (flags & HAS_PRUNE) {
        s->prune.drop_views = pd_reader_varint(reader);
        s->prune.keep_frames = pd_reader_varint32(reader);
    }
    return !reader->failed && flags <= HAS_ALL && slot <= UINT32_MAX && segment_sound(s);
}

void pd_pack_encode(const struct pd_pack *pack, struct pd_buf *buf)
{
    pd_buf_put_u8(buf, PLAN_ENCODING);
    pd_buf_put_varint(buf, pack->number);
    pd_buf_put_varint(buf, pack->segment_count);
    for (uint32_t i = 0; i < pack->segment_count; i++)
        pd_segment_encode(&pack->segments[i], buf);
}

int pd_pack_decode(struct pd_pack *pack, const void *data, size_t size)
{
    struct pd_reader reader = pd_reader_of(data, size);
    pd_pack_clear(pack);
    if (pd_reader_u8(&reader) != PLAN_ENCODING)
        return PD_ECORRUPT;
    pack->number = pd_reader_varint(&reader);
    uint64_t count = pd_reader_varint(&reader);
    if (reader.failed || count > pd_reader_left(&reader) / SEGMENT_BYTES_MIN)
        return PD_ECORRUPT;
    for (uint64_t i = 0; i < count; i++) {
        struct pd_segment segment;
        if (!pd_segment_decode(&segment, &reader) ||
            segment.slot_tokens > UINT32_MAX - pack->used_slots)
            return PD_ECORRUPT;
        int rc = pd_pack_push(pack, &segment);
        if (rc != 0)
            return rc;
    }
    return pd_reader_done(&reader) ? 0 : PD_ECORRUPT;
}
