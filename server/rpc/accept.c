/* packd's own accept4.
 *
 * Place in the flow: gRPC's threads call it when a client connects to an address of listeners.c.
 * Invariant: gRPC never sees an error that would end its listener, and no connection that has no
 * place. One that has none is accepted and reset at once, rather than left in the kernel's queue:
 * so its maker knows, tries again later or elsewhere, and those behind it get their turn. A reset
 * leaves nothing behind (no TIME_WAIT).
 *
 * Without a descriptor accept cannot even refuse: the spare one is given up for that long. Where
 * that does not help either, the listener is marked and the queue looked at again each tick, since
 * gRPC would wait for the next newcomer.
 *
 * The table of listeners is written by the main thread before gRPC accepts and after it has ended,
 * so it is read without a lock; `spare_lock` is held over that of the connections and while a line
 * is logged. The table is the process's, as accept4 is. */
#include "server/rpc/accept.h"

#include "base/check.h"
#include "base/log.h"
#include "server/metrics.h"
#include "server/rpc/read_plain.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LISTENERS_MAX 256u /* a name such as localhost is more than one */
/* Refused in one call: then the thread's calls have their turn. */
#define REFUSED_AT_ONCE 1024
#define FOREIGN PD_DOORS /* HTTP's */

static struct {
    struct pd_connections *connections;
    struct listener {
        int fd;
        int door;
        /* Why gRPC was told EAGAIN although somebody may be in the queue; NULL: it was not. */
        _Atomic(const char *) stuck;
    } listeners[LISTENERS_MAX];
    uint32_t count;
    pthread_mutex_t spare_lock;
    int spare;
} own = {.spare_lock = PTHREAD_MUTEX_INITIALIZER, .spare = -1};

/* ---- the listeners ---- */

static struct listener *find(int fd)
{
    for (uint32_t i = 0; i < own.count; i++)
        if (own.listeners[i].fd == fd)
            return &own.listeners[i];
    return NULL;
}

static bool is_listening(int fd)
{
    int value = 0;
    socklen_t size = sizeof(value);
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &size) == 0 && value != 0;
}

static int learn(int door, struct pd_error *error)
{
    DIR *directory = opendir("/proc/self/fd");
    if (!directory)
        return pd_error_set(error, PD_EIO, "BIND", "cannot read /proc/self/fd: %s",
                            strerror(errno));
    const struct dirent *entry;
    int rc = 0;
    while (rc == 0 && (entry = readdir(directory))) {
        int fd = (int)strtol(entry->d_name, NULL, 10);
        if (*entry->d_name == '.' || !is_listening(fd) || find(fd))
            continue;
        if (own.count == LISTENERS_MAX)
            rc = pd_error_set(error, PD_ELIMIT, "BIND", "more than %u listening sockets",
                              LISTENERS_MAX);
        else
            own.listeners[own.count++] = (struct listener){.fd = fd, .door = door};
    }
    closedir(directory);
    return rc;
}

static int open_spare(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

int pd_accept_open(struct pd_connections *connections, struct pd_error *error)
{
    PD_CHECK(!own.connections);
    int rc = learn(FOREIGN, error);
    if (rc != 0)
        return rc;
    own.spare = open_spare();
    if (own.spare < 0)
        return pd_error_set(error, PD_EIO, "DESCRIPTORS", "no spare descriptor: %s",
                            strerror(errno));
    own.connections = connections;
    return pd_read_plain_open(pd_connections_descriptors(connections), error);
}

int pd_accept_learn(enum pd_door door, struct pd_error *error)
{
    return learn((int)door, error);
}

void pd_accept_close(void)
{
    if (own.spare >= 0)
        (void)close(own.spare);
    own.spare = -1;
    own.count = 0;
    own.connections = NULL;
    pd_read_plain_close();
}

/* ---- refusing ---- */

static int kernel_accept(int listener, struct sockaddr *peer, socklen_t *peer_bytes, int flags)
{
    return (int)syscall(SYS_accept4, listener, peer, peer_bytes, flags);
}

static void refuse(const struct listener *listener, int fd, const struct sockaddr *peer,
                   const char *why)
{
    static const char *const doors[PD_DOORS] = {"main", "admin", "health"};
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    char name[80];

    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    (void)close(fd);
    pd_metric_add_labelled(PD_M_CONNECTIONS_REFUSED, why, 1);
    pd_log(PD_LOG_WARN, "connection_refused", "door=%s peer=%s reason=%s open=%u max=%u",
           doors[listener->door], pd_connections_name(peer, name, sizeof(name)), why,
           pd_connections_open(own.connections, (enum pd_door)listener->door),
           pd_connections_max(own.connections, (enum pd_door)listener->door));
}

/* Accepts one with the spare descriptor and refuses it. False: nobody is there, or it did not
 * help. */
static bool refuse_with_spare(const struct listener *listener, const char *why)
{
    struct sockaddr_storage peer = {0};
    socklen_t size = sizeof(peer);

    pthread_mutex_lock(&own.spare_lock);
    if (own.spare >= 0)
        (void)close(own.spare);
    int fd = kernel_accept(listener->fd, (struct sockaddr *)&peer, &size, SOCK_CLOEXEC);
    if (fd >= 0)
        refuse(listener, fd, (const struct sockaddr *)&peer, why);
    own.spare = open_spare();
    pthread_mutex_unlock(&own.spare_lock);
    return fd >= 0;
}

static bool is_waiting(int listener)
{
    struct pollfd events = {.fd = listener, .events = POLLIN};
    return poll(&events, 1, 0) == 1;
}

void pd_accept_unstick(void)
{
    for (uint32_t i = 0; i < own.count; i++) {
        struct listener *listener = &own.listeners[i];
        const char *why = atomic_load(&listener->stuck);
        if (!why)
            continue;
        for (int n = 0; n < REFUSED_AT_ONCE && is_waiting(listener->fd); n++)
            if (!refuse_with_spare(listener, why))
                break;
        if (!is_waiting(listener->fd))
            atomic_store(&listener->stuck, NULL);
    }
}

/* ---- accepting ---- */

static const char *admit(const struct listener *listener, int fd, const struct sockaddr *peer)
{
    if ((uint32_t)fd >= pd_connections_descriptors(own.connections))
        return "descriptors";
    return pd_connections_admit(own.connections, (enum pd_door)listener->door, fd, peer);
}

/* What gRPC is told when accept failed. True: nothing, try the next one. */
static bool failed(struct listener *listener)
{
    const char *why = "descriptors";
    switch (errno) {
    case EAGAIN:
    case EINTR:
    case EBADF: /* this and the next: the listener is being closed */
    case EINVAL:
        return false;
    case EMFILE:
    case ENFILE:
        if (refuse_with_spare(listener, why))
            return true;
        break;
    case ENOMEM:
    case ENOBUFS:
        why = "memory";
        break;
    default: /* of a connection that ended before it was accepted */
        return true;
    }
    atomic_store(&listener->stuck, why);
    errno = EAGAIN;
    return false;
}

int pd_accept4(int listener_fd, struct sockaddr *peer, socklen_t *peer_bytes, int flags)
{
    struct listener *listener = find(listener_fd);
    struct sockaddr_storage from;
    const char *last = "descriptors"; /* whose want failed() has met, where admit refused nobody */

    if (!listener || listener->door == FOREIGN)
        return kernel_accept(listener_fd, peer, peer_bytes, flags);
    for (int refused = 0; refused < REFUSED_AT_ONCE; refused++) {
        socklen_t size = sizeof(from);
        memset(&from, 0, sizeof(from));
        int fd = kernel_accept(listener_fd, (struct sockaddr *)&from, &size, flags);
        if (fd < 0 && failed(listener))
            continue;
        const char *why = fd < 0 ? NULL : admit(listener, fd, (const struct sockaddr *)&from);
        if (why) {
            refuse(listener, fd, (const struct sockaddr *)&from, why);
            last = why;
            continue;
        }
        if (fd >= 0)
            pd_read_plain_begin(fd, (enum pd_door)listener->door);
        if (fd >= 0 && peer && peer_bytes) {
            memcpy(peer, &from, size < *peer_bytes ? size : *peer_bytes);
            *peer_bytes = size;
        }
        return fd;
    }
    atomic_store(&listener->stuck, last);
    errno = EAGAIN;
    return -1;
}
