/* packd's own recvmsg, and the frames that it sees.
 *
 * Place in the flow: gRPC's threads call it when a connection has something to read; accept.c says
 * which descriptors are connections. One read of a connection is in flight at a time, and gRPC hands
 * it from thread to thread under its own locks, so a connection's place needs none. Invariant: it
 * gives what the kernel gave, byte for byte, or the end of the connection. A descriptor may have
 * been closed and given to somebody else since it was accepted: before a connection is ended its
 * inode is compared. It decodes no header and answers no frame. */
#include "server/rpc/frames.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/metrics.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PREFACE_BYTES 24u
#define SECOND_NS 1000000000u
enum { FRAME_HEADERS = 1, FRAME_RST_STREAM = 3, FRAME_CONTINUATION = 9 };
enum { FLAG_END_HEADERS = 4 };

struct place {
    atomic_bool watched;
    ino_t inode;
    struct pd_frames frames;
};

static struct {
    struct place *places;
    uint32_t count;
} own;

/* ---- frames ---- */

static const char *take_reset(struct pd_frames *frames, uint64_t now_ns)
{
    if (now_ns - frames->second_ns >= SECOND_NS) {
        frames->second_ns = now_ns;
        frames->resets = 0;
    }
    return ++frames->resets > PD_FRAMES_RESETS_MAX ? "resets" : NULL;
}

static const char *take_header(struct pd_frames *frames, uint64_t now_ns)
{
    const uint8_t *h = frames->header;
    uint32_t size = (uint32_t)h[0] << 16 | (uint32_t)h[1] << 8 | h[2];
    uint8_t kind = h[3], flags = h[4];
    frames->skip_bytes = size;
    if (kind == FRAME_RST_STREAM)
        return take_reset(frames, now_ns);
    if (kind != FRAME_HEADERS && kind != FRAME_CONTINUATION)
        return NULL;
    frames->block_bytes = size + (kind == FRAME_CONTINUATION ? frames->block_bytes : 0);
    if (frames->block_bytes > PD_FRAMES_BLOCK_BYTES_MAX)
        return "header_block";
    if (flags & FLAG_END_HEADERS)
        frames->block_bytes = 0;
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

/* ---- connections ---- */

int pd_frames_open(uint32_t descriptors_max, struct pd_error *error)
{
    PD_CHECK(!own.places);
    own.places = calloc(descriptors_max, sizeof(*own.places));
    if (!own.places)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for %u connections",
                            descriptors_max);
    own.count = descriptors_max;
    return 0;
}

void pd_frames_close(void)
{
    own.count = 0;
    free(own.places);
    own.places = NULL;
}

void pd_frames_begin(int fd)
{
    struct stat file;
    if ((uint32_t)fd >= own.count || fstat(fd, &file) != 0)
        return;
    struct place *place = &own.places[fd];
    place->frames = (struct pd_frames){0};
    place->inode = file.st_ino;
    atomic_store(&place->watched, true);
}

static const char *look_at(struct place *place, const struct msghdr *message, size_t size)
{
    uint64_t now_ns = pd_clock_mono_ns();
    const char *wrong = NULL;
    for (size_t i = 0; i < message->msg_iovlen && size > 0 && !wrong; i++) {
        const struct iovec *part = &message->msg_iov[i];
        size_t some = part->iov_len < size ? part->iov_len : size;
        wrong = pd_frames_take(&place->frames, part->iov_base, some, now_ns);
        size -= some;
    }
    return wrong;
}

static bool is_same(const struct place *place, int fd)
{
    struct stat file;
    return fstat(fd, &file) == 0 && file.st_ino == place->inode;
}

ssize_t pd_recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t got = syscall(SYS_recvmsg, fd, message, flags);
    if (got <= 0 || (uint32_t)fd >= own.count || flags != 0)
        return got;
    struct place *place = &own.places[fd];
    if (!atomic_load_explicit(&place->watched, memory_order_acquire))
        return got;
    const char *wrong = look_at(place, message, (size_t)got);
    if (!wrong && !place->frames.foreign)
        return got;
    atomic_store(&place->watched, false);
    if (!wrong || !is_same(place, fd))
        return got;
    pd_metric_add_labelled(PD_M_CONNECTIONS_REFUSED, wrong, 1);
    pd_log(PD_LOG_WARN, "connection_cut", "reason=%s", wrong);
    (void)shutdown(fd, SHUT_RDWR);
    errno = ECONNRESET;
    return -1;
}
