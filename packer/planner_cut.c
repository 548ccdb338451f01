/* The over-length policies.
 *
 * Called when a sample is drawn from its lane, and for each part as it enters the window. Pure,
 * planner's thread. Invariant: a piece is never empty, never longer than the room, never ends or
 * starts inside a span, and the pieces of a split cover the sample. It does not count or drop
 * anything: the caller does. */
#include "packer/planner_cut.h"

static uint64_t span_end(const struct pd_span *span)
{
    return (uint64_t)span->offset_tokens + span->length_tokens;
}

/* The furthest end reachable from a start, and the spans on the way. */
struct reach {
    uint64_t end;
    uint32_t span; /* first span not taken */
    uint32_t patches;
};

static struct reach reach_from(const struct pd_head *head, struct pd_cut_room room, uint32_t start,
                               uint32_t span)
{
    struct reach reach = {.end = (uint64_t)start + room.tokens, .span = span};
    if (reach.end > head->length_tokens)
        reach.end = head->length_tokens;
    for (; reach.span < head->span_count; reach.span++) {
        const struct pd_span *next = &head->spans[reach.span];
        if (next->offset_tokens >= reach.end)
            break;
        bool over = room.patches > 0 && next->patches > room.patches - reach.patches;
        if (over || span_end(next) > reach.end) {
            reach.end = next->offset_tokens;
            break;
        }
        reach.patches += next->patches;
    }
    return reach;
}

static struct pd_cut cut_of(const struct pd_head *head, uint32_t offset, uint32_t length,
                            uint32_t patches)
{
    return (struct pd_cut){
        .offset_tokens = offset,
        .length_tokens = length,
        .patches = patches,
        .loss_tokens = pd_loss_runs_count(head->loss, offset + 1, offset + length),
    };
}

bool pd_cut_keep_head(const struct pd_head *head, struct pd_cut_room room, struct pd_cut *cut)
{
    struct reach reach = reach_from(head, room, 0, 0);
    if (reach.end == 0)
        return false;
    *cut = cut_of(head, 0, (uint32_t)reach.end, reach.patches);
    return true;
}

bool pd_cut_keep_tail(const struct pd_head *head, struct pd_cut_room room, struct pd_cut *cut)
{
    uint64_t start = head->length_tokens > room.tokens ? head->length_tokens - room.tokens : 0;
    uint32_t patches = 0;
    for (uint32_t i = head->span_count; i-- > 0;) {
        const struct pd_span *span = &head->spans[i];
        if (span_end(span) <= start)
            break;
        bool over = room.patches > 0 && span->patches > room.patches - patches;
        if (over || span->offset_tokens < start) {
            start = span_end(span);
            break;
        }
        patches += span->patches;
    }
    if (start >= head->length_tokens)
        return false;
    *cut = cut_of(head, (uint32_t)start, head->length_tokens - (uint32_t)start, patches);
    return true;
}

/* Moves an end that has media just before it back to text, so that the next part has a token to
 * repeat. Leaves it where that would give a part of less than two tokens. True: the token before
 * the end may be repeated. */
static bool back_to_text(const struct pd_head *head, uint32_t start, uint32_t first_span,
                         struct reach *reach)
{
    struct reach back = *reach;
    while (back.span > first_span && span_end(&head->spans[back.span - 1]) == back.end) {
        back.span--;
        back.end = head->spans[back.span].offset_tokens;
        back.patches -= head->spans[back.span].patches;
    }
    if (back.end < (uint64_t)start + 2)
        return false;
    *reach = back;
    return true;
}

bool pd_split_next(struct pd_split *split, const struct pd_head *head, struct pd_cut_room room,
                   struct pd_cut *cut)
{
    uint32_t start = split->offset_tokens, repeated = split->overlap_tokens;
    struct reach reach = reach_from(head, room, start, split->span);
    if (repeated && reach.end <= (uint64_t)start + 1) { /* a span that leaves no room for it */
        start++;
        repeated = 0;
        reach = reach_from(head, room, start, split->span);
    }
    if (reach.end <= start)
        return false;
    bool last = reach.end == head->length_tokens;
    bool overlap = !last && back_to_text(head, start, split->span, &reach);
    uint32_t end = (uint32_t)reach.end;
    *cut = (struct pd_cut){
        .offset_tokens = start,
        .length_tokens = end - start,
        .overlap_tokens = repeated,
        .patches = reach.patches,
        .loss_tokens = pd_loss_runs_count_on(head->loss, &split->loss, start + 1, end),
    };
    split->span = reach.span;
    split->offset_tokens = overlap ? end - 1 : end;
    split->overlap_tokens = overlap;
    split->part++;
    return true;
}

bool pd_split_measure(const struct pd_head *head, struct pd_cut_room room, uint32_t align,
                      struct pd_split_sums *sums)
{
    struct pd_split split = {0};
    struct pd_cut cut;
    *sums = (struct pd_split_sums){0};
    while (!pd_split_done(&split, head)) {
        if (!pd_split_next(&split, head, room, &cut))
            return false;
        sums->parts++;
        sums->loss_tokens += cut.loss_tokens;
        sums->slot_tokens += (cut.length_tokens + align - 1) / align * align;
    }
    return true;
}
