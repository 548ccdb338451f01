/* The table of open connections.
 *
 * Place in the flow: accept.c asks here for each connection before gRPC gets it; rpc.c looks once a
 * tick, so that sockets that have ended do not linger for want of a newcomer. Any thread, one lock.
 * Invariant: a place in use has a second descriptor of its socket, and counts at one door and, at
 * the main one, for one host. First it is in the epoll set `shut`: EPOLLHUP comes when both
 * directions of the socket are shut, by gRPC or by a reset. Then it is in the queue of those that
 * end, until gRPC has closed its own descriptor, which may take as long as calls of the connection
 * are about: it no longer stands for the same socket. So descriptors never number more than places
 * account for. The places are as many as the doors may have: there is one where the counts allow
 * it. It accepts and closes no connection. */
#include "server/rpc/connections.h"

#include "base/check.h"
#include "base/clock.h"
#include "server/rpc/peers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* limits.connections where it is not set and descriptors abound. */
#define CONNECTIONS_DEFAULT_MAX 8192u
/* HTTP connections (64), the log, certificates, gRPC's and libuv's own, a device's driver. */
#define OWN_DESCRIPTORS 192u
/* A start without clients takes two dozen: with fewer than these nobody could come in. */
#define DESCRIPTORS_LEAST 40u
#define DESCRIPTORS_EACH 2u
#define DESCRIPTORS_SPARE 4096u
/* Of those that end, looked at in one look: for a newcomer where all is full, and at a tick. */
#define ENDING_FOR_ONE 16u
#define ENDING_AT_TICK 1024u
#define EVENTS 64
#define NO_PLACE UINT32_MAX

struct place {
    int fd;       /* gRPC's */
    int second;   /* ours; -1: the place is free */
    dev_t device; /* of the socket, with the next */
    ino_t inode;
    uint32_t host; /* pd_peers_leave */
    enum pd_door door;
    uint32_t next; /* of the free, of those that end */
};

struct pd_connections {
    pthread_mutex_t lock;
    int shut; /* epoll; its data are places */
    struct pd_peers *hosts;
    uint32_t open[PD_DOORS], max[PD_DOORS];
    struct place *places;
    uint32_t first_free;
    uint32_t first_ending, last_ending, ending_count;
};

/* ---- how many there may be ---- */

static uint32_t door_max(const struct pd_config *config, enum pd_door door)
{
    uint32_t addresses =
        door == PD_DOOR_ADMIN ? config->listen_admin_count : config->listen_health_count;
    return addresses > 0 ? PD_DOOR_CONNECTIONS : 0;
}

/* What the main door may have by the process's descriptors: those that are not its own, or half of
 * them where they are few. */
static uint32_t carried_by(uint64_t descriptors, uint32_t apart)
{
    uint64_t own = OWN_DESCRIPTORS + DESCRIPTORS_EACH * apart;
    uint64_t left = descriptors / 2 > own ? descriptors - own : descriptors / 2;
    return left / DESCRIPTORS_EACH < UINT32_MAX ? (uint32_t)(left / DESCRIPTORS_EACH) : UINT32_MAX;
}

static int set_limits(struct pd_connections *c, const struct pd_config *config,
                      struct pd_error *error)
{
    struct rlimit limit;
    uint64_t descriptors = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 1024;
    if (descriptors < DESCRIPTORS_LEAST)
        return pd_error_set(error, PD_EINVAL, "DESCRIPTORS",
                            "with %llu descriptors (RLIMIT_NOFILE) there is room for no connection "
                            "beside packd's own files; raise LimitNOFILE (ulimit -n) to at least "
                            "%u, better 1024",
                            (unsigned long long)descriptors, DESCRIPTORS_LEAST);
    c->max[PD_DOOR_ADMIN] = door_max(config, PD_DOOR_ADMIN);
    c->max[PD_DOOR_HEALTH] = door_max(config, PD_DOOR_HEALTH);
    uint32_t carried = carried_by(descriptors, c->max[PD_DOOR_ADMIN] + c->max[PD_DOOR_HEALTH]);
    if (config->connections_max > carried)
        return pd_error_set(error, PD_EINVAL, "DESCRIPTORS",
                            "limits.connections is %u; with %llu descriptors (RLIMIT_NOFILE) there "
                            "is room for %u: raise LimitNOFILE (ulimit -n), or lower it",
                            config->connections_max, (unsigned long long)descriptors, carried);
    uint32_t most = carried < CONNECTIONS_DEFAULT_MAX ? carried : CONNECTIONS_DEFAULT_MAX;
    c->max[PD_DOOR_MAIN] = config->connections_max > 0 ? config->connections_max : most;
    return 0;
}

/* ---- life ---- */

static int make_places(struct pd_connections *c, struct pd_error *error)
{
    uint32_t count = 0;
    for (int door = 0; door < PD_DOORS; door++)
        count += c->max[door];
    c->places = calloc(count > 0 ? count : 1, sizeof(*c->places));
    if (!c->places)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for %u connections", count);
    for (uint32_t i = 0; i < count; i++)
        c->places[i] = (struct place){.second = -1, .next = i + 1 < count ? i + 1 : NO_PLACE};
    c->first_free = count > 0 ? 0 : NO_PLACE;
    c->first_ending = c->last_ending = NO_PLACE;
    return 0;
}

static int make_parts(struct pd_connections *c, const struct pd_config *config,
                      struct pd_error *error)
{
    int rc = set_limits(c, config, error);
    uint32_t half = c->max[PD_DOOR_MAIN] / 2;
    uint32_t of_one = config->peer_connections_max > 0 ? config->peer_connections_max : half;
    if (rc == 0)
        rc = pd_peers_new(of_one > 0 ? of_one : 1, 0, &c->hosts, error);
    if (rc == 0)
        rc = make_places(c, error);
    if (rc == 0 && (c->shut = epoll_create1(EPOLL_CLOEXEC)) < 0)
        rc = pd_error_set(error, PD_EIO, "DESCRIPTORS", "cannot watch connections: %s",
                          strerror(errno));
    return rc;
}

int pd_connections_new(const struct pd_config *config, struct pd_connections **out,
                       struct pd_error *error)
{
    struct pd_connections *c = calloc(1, sizeof(*c));
    if (!c || pthread_mutex_init(&c->lock, NULL) != 0) {
        free(c);
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for the connections");
    }
    c->shut = -1;
    int rc = make_parts(c, config, error);
    if (rc != 0) {
        pd_connections_free(c);
        return rc;
    }
    *out = c;
    return 0;
}

static void release(struct pd_connections *c, uint32_t at)
{
    struct place *place = &c->places[at];
    PD_CHECK(place->second >= 0 && c->open[place->door] > 0);
    (void)close(place->second);
    c->open[place->door]--;
    pd_peers_leave(c->hosts, place->host);
    *place = (struct place){.second = -1, .next = c->first_free};
    c->first_free = at;
}

void pd_connections_free(struct pd_connections *c)
{
    if (!c)
        return;
    uint32_t count = 0;
    for (int door = 0; door < PD_DOORS; door++)
        count += c->max[door];
    for (uint32_t i = 0; c->places && i < count; i++)
        if (c->places[i].second >= 0)
            release(c, i);
    if (c->shut >= 0)
        (void)close(c->shut);
    pd_peers_free(c->hosts);
    free(c->places);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- hosts ---- */

/* The four bytes of an IPv4 address of either family, or NULL. */
static const uint8_t *v4_bytes(const struct sockaddr *peer)
{
    const struct sockaddr_in *v4 = (const void *)peer;
    const struct sockaddr_in6 *v6 = (const void *)peer;
    if (peer->sa_family == AF_INET)
        return (const uint8_t *)&v4->sin_addr;
    return peer->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)
               ? v6->sin6_addr.s6_addr + 12
               : NULL;
}

const char *pd_connections_name(const struct sockaddr *peer, char *text, size_t size)
{
    const struct sockaddr_in6 *v6 = (const void *)peer;
    const uint8_t *v4 = v4_bytes(peer);
    char host[INET6_ADDRSTRLEN] = "?";
    if (!v4 && peer->sa_family != AF_INET6) {
        (void)snprintf(text, size, "unix");
        return text;
    }
    /* The ports of both families lie at the same place. */
    (void)inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? v4 : v6->sin6_addr.s6_addr, host, sizeof(host));
    (void)snprintf(text, size, v4 ? "%s:%u" : "[%s]:%u", host, ntohs(v6->sin6_port));
    return text;
}

/* As peers.h names hosts. An IPv6 host is its network of 64 bits, of which it may have every
 * address. */
static void host_name(const struct sockaddr *peer, char *text, size_t size)
{
    const uint8_t *v4 = v4_bytes(peer);
    const uint8_t *v6 = ((const struct sockaddr_in6 *)(const void *)peer)->sin6_addr.s6_addr;
    if (v4)
        (void)snprintf(text, size, "ipv4:%u.%u.%u.%u:0", v4[0], v4[1], v4[2], v4[3]);
    else if (peer->sa_family == AF_INET6)
        (void)snprintf(text, size, "ipv6:%02x%02x%02x%02x%02x%02x%02x%02x:0", v6[0], v6[1], v6[2],
                       v6[3], v6[4], v6[5], v6[6], v6[7]);
    else
        (void)snprintf(text, size, "unix:");
}

/* ---- coming and going ---- */

static void queue_ending(struct pd_connections *c, uint32_t at)
{
    c->places[at].next = NO_PLACE;
    if (c->ending_count++ == 0)
        c->first_ending = at;
    else
        c->places[c->last_ending].next = at;
    c->last_ending = at;
}

/* Whether gRPC's descriptor is still the socket. */
static bool is_open(const struct place *place)
{
    struct stat now;
    return fstat(place->fd, &now) == 0 && now.st_dev == place->device && now.st_ino == place->inode;
}

/* Under the lock. The watch is ended by hand: closing a descriptor would not while gRPC has another
 * one of the socket. */
static void look(struct pd_connections *c, uint32_t most)
{
    struct epoll_event events[EVENTS];
    int count;
    do {
        count = epoll_wait(c->shut, events, EVENTS, 0);
        for (int i = 0; i < count; i++) {
            uint32_t at = events[i].data.u32;
            (void)epoll_ctl(c->shut, EPOLL_CTL_DEL, c->places[at].second, NULL);
            queue_ending(c, at);
        }
    } while (count == EVENTS);
    uint32_t some = c->ending_count < most ? c->ending_count : most;
    for (uint32_t i = 0; i < some; i++) {
        uint32_t at = c->first_ending;
        c->first_ending = c->places[at].next;
        c->ending_count--;
        if (is_open(&c->places[at]))
            queue_ending(c, at);
        else
            release(c, at);
    }
}

/* Under the lock; the host has been counted. */
static bool watch(struct pd_connections *c, enum pd_door door, int fd, uint32_t host)
{
    uint32_t at = c->first_free;
    PD_CHECK(at != NO_PLACE);
    struct place *place = &c->places[at];
    struct epoll_event event = {.events = 0 /* EPOLLHUP comes unasked */, .data.u32 = at};
    struct stat socket;
    int second = fstat(fd, &socket) == 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (second < 0)
        return false;
    if (epoll_ctl(c->shut, EPOLL_CTL_ADD, second, &event) != 0) {
        (void)close(second);
        return false;
    }
    c->first_free = place->next;
    *place = (struct place){.fd = fd,
                            .second = second,
                            .device = socket.st_dev,
                            .inode = socket.st_ino,
                            .host = host,
                            .door = door,
                            .next = NO_PLACE};
    c->open[door]++;
    return true;
}

/* Under the lock. */
static const char *try_admit(struct pd_connections *c, enum pd_door door, int fd, const char *name)
{
    struct pd_error error;
    uint32_t host = PD_NO_PEER;
    if (c->open[door] >= c->max[door])
        return "limit";
    if (door == PD_DOOR_MAIN &&
        pd_peers_enter(c->hosts, name, pd_clock_mono_ns(), &host, &error) != 0)
        return "peer";
    if (watch(c, door, fd, host))
        return NULL;
    pd_peers_leave(c->hosts, host);
    return "descriptors";
}

/* Those that have ended are looked for where there seems to be no room, and at each tick. */
const char *pd_connections_admit(struct pd_connections *c, enum pd_door door, int fd,
                                 const struct sockaddr *peer)
{
    char name[64];
    host_name(peer, name, sizeof(name));
    pthread_mutex_lock(&c->lock);
    const char *why = try_admit(c, door, fd, name);
    if (why) {
        look(c, ENDING_FOR_ONE);
        why = try_admit(c, door, fd, name);
    }
    pthread_mutex_unlock(&c->lock);
    return why;
}

void pd_connections_look(struct pd_connections *c)
{
    pthread_mutex_lock(&c->lock);
    look(c, ENDING_AT_TICK);
    pthread_mutex_unlock(&c->lock);
}

uint32_t pd_connections_open(struct pd_connections *c, enum pd_door door)
{
    pthread_mutex_lock(&c->lock);
    uint32_t open = c->open[door];
    pthread_mutex_unlock(&c->lock);
    return open;
}

uint32_t pd_connections_max(const struct pd_connections *c, enum pd_door door)
{
    return c->max[door];
}

uint32_t pd_connections_descriptors(const struct pd_connections *c)
{
    uint32_t count = OWN_DESCRIPTORS + DESCRIPTORS_SPARE;
    for (int door = 0; door < PD_DOORS; door++)
        count += DESCRIPTORS_EACH * c->max[door];
    return count;
}
