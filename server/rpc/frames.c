/* The frames of one HTTP/2 connection, of whichever way its bytes came.
 *
 * Place in the flow: read_plain.c and read_tls.c hand on what gRPC has just read, on gRPC's
 * threads; each holds a struct pd_frames per connection and sees to it that one thread at a time is
 * there. Invariant: however the bytes are cut, the answer is the same. It reads frame headers
 * alone: it decodes no header block and answers no frame. */
#include "server/rpc/frames.h"

#include "base/log.h"
#include "server/metrics.h"

#include <stdatomic.h>

#define PREFACE_BYTES 24u
#define SECOND_NS 1000000000u
enum { FRAME_HEADERS = 1, FRAME_RST_STREAM = 3, FRAME_PING = 6, FRAME_CONTINUATION = 9 };
enum { FLAG_END_HEADERS = 4 };

static _Atomic uint64_t crowded_ns[PD_DOORS]; /* 0: never */

void pd_frames_crowd(enum pd_door door, uint64_t now_ns)
{
    atomic_store_explicit(&crowded_ns[door], now_ns, memory_order_relaxed);
}

static bool is_crowded(int door, uint64_t now_ns)
{
    uint64_t since_ns = 0;
    for (int d = 0; d < PD_DOORS; d++) {
        uint64_t one_ns = atomic_load_explicit(&crowded_ns[d], memory_order_relaxed);
        if ((door == PD_DOORS || door == d) && one_ns > since_ns)
            since_ns = one_ns;
    }
    return since_ns > 0 && now_ns < since_ns + SECOND_NS;
}

/* One more within the second; whether that passes the most there may be. */
static bool is_above(struct pd_frames *frames, uint32_t *count, uint32_t max, uint64_t now_ns)
{
    if (now_ns - frames->second_ns >= SECOND_NS) {
        frames->second_ns = now_ns;
        frames->resets = frames->pings = frames->opened = 0;
    }
    return ++*count > max;
}

static const char *take_block(struct pd_frames *frames, uint8_t kind, uint8_t flags, uint32_t size,
                              uint64_t now_ns)
{
    frames->block_bytes = size + (kind == FRAME_CONTINUATION ? frames->block_bytes : 0);
    if (frames->block_bytes > PD_FRAMES_BLOCK_BYTES_MAX)
        return "header_block";
    if (flags & FLAG_END_HEADERS)
        frames->block_bytes = 0;
    if (kind == FRAME_CONTINUATION)
        return NULL;
    bool above = is_above(frames, &frames->opened, PD_FRAMES_CROWDED_MAX, now_ns);
    return above && is_crowded(frames->door, now_ns) ? "streams" : NULL;
}

static const char *take_header(struct pd_frames *frames, uint64_t now_ns)
{
    const uint8_t *h = frames->header;
    uint32_t size = (uint32_t)h[0] << 16 | (uint32_t)h[1] << 8 | h[2];
    uint8_t kind = h[3], flags = h[4];
    frames->skip_bytes = size;
    if (kind == FRAME_RST_STREAM && is_above(frames, &frames->resets, PD_FRAMES_RESETS_MAX, now_ns))
        return "resets";
    if (kind == FRAME_PING && is_above(frames, &frames->pings, PD_FRAMES_PINGS_MAX, now_ns))
        return "pings";
    if (kind == FRAME_HEADERS || kind == FRAME_CONTINUATION)
        return take_block(frames, kind, flags, size, now_ns);
    return NULL;
}

const char *pd_frames_take(struct pd_frames *frames, const uint8_t *bytes, size_t size,
                           uint64_t now_ns)
{
    if (!frames->begun && size > 0) {
        frames->begun = true;
        frames->foreign = bytes[0] != 'P'; /* of the preface "PRI * HTTP/2.0" */
        frames->skip_bytes = PREFACE_BYTES;
    }
    while (size > 0 && !frames->foreign) {
        size_t some = frames->skip_bytes < size ? frames->skip_bytes : size;
        if (some == 0) {
            frames->header[frames->header_bytes++] = *bytes;
            some = 1;
        } else {
            frames->skip_bytes -= (uint32_t)some;
        }
        bytes += some;
        size -= some;
        if (frames->header_bytes < sizeof(frames->header))
            continue;
        frames->header_bytes = 0;
        const char *wrong = take_header(frames, now_ns);
        if (wrong)
            return wrong;
    }
    return NULL;
}

void pd_frames_tell(const char *wrong, const char *over)
{
    pd_metric_add_labelled(PD_M_CONNECTIONS_REFUSED, wrong, 1);
    pd_log(PD_LOG_WARN, "connection_cut", "reason=%s over=%s", wrong, over);
}
