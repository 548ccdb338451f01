/* The sender of readiness datagrams, abstract sockets ("@name") included. Opens and closes its
 * socket for each message: they are rare. Main thread. */
#include "server/sdnotify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int pd_sdnotify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!path || !*path)
        return 0;
    size_t length = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || length >= sizeof address.sun_path)
        return PD_EIO;
    memcpy(address.sun_path, path, length);
    if (path[0] == '@')
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return PD_EIO;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    ssize_t sent =
        sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&address, size);
    close(fd);
    return sent == (ssize_t)strlen(state) ? 1 : PD_EIO;
}

uint64_t pd_sdnotify_interval_ns(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!usec || (pid && strtol(pid, NULL, 10) != (long)getpid()))
        return 0;
    uint64_t value = strtoull(usec, NULL, 10);
    return value > UINT64_MAX / 1000 ? 0 : value * 1000 / 2;
}
