/* Why an address could not be listened on: gRPC says only that it could not.
 *
 * Place in the flow: listeners.c asks after a failed bind, on the main thread, once before packd
 * ends. It tries what gRPC did with plain system calls, and leaves no trace: a TCP socket is bound
 * and closed, of a Unix path only the directory and the file are looked at. The state may have
 * changed since the failure; then it finds nothing. It does not listen. */
#include "server/rpc/bind_reason.h"

#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define HOST_BYTES_MAX 256

/* True where somebody accepts connections on the path. */
static bool is_served(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    bool served = fd >= 0 && (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 ||
                              errno == EAGAIN);
    if (fd >= 0)
        close(fd);
    return served;
}

static void unix_reason(const char *path, char *text, size_t size)
{
    char directory[sizeof((struct sockaddr_un *)0)->sun_path];
    struct stat info;
    const char *slash = strrchr(path, '/');
    if (strlen(path) >= sizeof directory) {
        snprintf(text, size, "the path has %zu bytes, the system takes %zu", strlen(path),
                 sizeof directory - 1);
        return;
    }
    snprintf(directory, sizeof directory, "%.*s",
             !slash          ? 1
             : slash == path ? 1
                             : (int)(slash - path),
             slash ? path : ".");
    if (stat(directory, &info) != 0)
        snprintf(text, size, "directory %s: %s; make it first", directory, strerror(errno));
    else if (!S_ISDIR(info.st_mode))
        snprintf(text, size, "%s is no directory", directory);
    else if (access(directory, W_OK | X_OK) != 0)
        snprintf(text, size, "directory %s: %s for user %u", directory, strerror(errno),
                 (unsigned)geteuid());
    else if (lstat(path, &info) == 0 && !S_ISSOCK(info.st_mode))
        snprintf(text, size, "%s is there and is no socket; remove it or choose another path",
                 path);
    else if (is_served(path))
        snprintf(text, size, "%s", strerror(EADDRINUSE));
}

static void bind_tcp(const struct addrinfo *at, char *text, size_t size)
{
    int on = 1, fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (fd >= 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    bool bound = fd >= 0 && bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, 1) == 0;
    if (!bound && errno == EADDRNOTAVAIL)
        snprintf(text, size, "it is not an address of this machine");
    else if (!bound && errno == EACCES)
        snprintf(text, size, "user %u may not use this port", (unsigned)geteuid());
    else if (!bound)
        snprintf(text, size, "%s", strerror(errno));
    if (fd >= 0)
        close(fd);
}

static void tcp_reason(const char *address, char *text, size_t size)
{
    const struct addrinfo wanted = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char host[HOST_BYTES_MAX];
    const char *colon = strrchr(address, ':');
    size_t bytes = colon ? (size_t)(colon - address) : 0;
    bool bracketed = bytes > 2 && address[0] == '[' && address[bytes - 1] == ']';
    if (bytes == 0 || bytes >= sizeof host)
        return;
    snprintf(host, sizeof host, "%.*s", (int)(bytes - (bracketed ? 2 : 0)), address + bracketed);
    int rc = getaddrinfo(host, colon + 1, &wanted, &list);
    if (rc != 0) {
        snprintf(text, size, "'%s' is not resolved: %s", host,
                 rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
        return;
    }
    for (const struct addrinfo *at = list; at && !text[0]; at = at->ai_next)
        bind_tcp(at, text, size);
    freeaddrinfo(list);
}

void pd_bind_reason(const char *address, char *text, size_t size)
{
    text[0] = '\0';
    if (strncmp(address, "unix:", 5) == 0)
        unix_reason(address + 5, text, size);
    else
        tcp_reason(address, text, size);
}
