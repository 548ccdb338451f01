/* packd's own recvmsg.
 *
 * Place in the flow: gRPC's threads call it when a connection has something to read; accept.c says
 * which descriptors are connections. One read of a connection is in flight at a time, and gRPC
 * hands it from thread to thread under its own locks, so a connection's place needs none.
 * Invariant: it gives what the kernel gave, byte for byte, or the end of the connection. A
 * descriptor may have been closed and given to somebody else since it was accepted: before a
 * connection is ended its inode is compared. What is wrong with a frame frames.c decides; what TLS
 * hides is read_tls.c's. */
#include "server/rpc/read_plain.h"

#include "base/check.h"
#include "base/clock.h"
#include "server/rpc/frames.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct place {
    atomic_bool watched;
    ino_t inode;
    struct pd_frames frames;
};

static struct {
    struct place *places;
    uint32_t count;
} own;

int pd_read_plain_open(uint32_t descriptors_max, struct pd_error *error)
{
    PD_CHECK(!own.places);
    own.places = calloc(descriptors_max, sizeof(*own.places));
    if (!own.places)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for %u connections",
                            descriptors_max);
    own.count = descriptors_max;
    return 0;
}

void pd_read_plain_close(void)
{
    own.count = 0;
    free(own.places);
    own.places = NULL;
}

void pd_read_plain_begin(int fd, enum pd_door door)
{
    struct stat file;
    if ((uint32_t)fd >= own.count || fstat(fd, &file) != 0)
        return;
    struct place *place = &own.places[fd];
    place->frames = (struct pd_frames){.door = door};
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
    pd_frames_tell(wrong, "plain");
    (void)shutdown(fd, SHUT_RDWR);
    errno = ECONNRESET;
    return -1;
}
