/* Ceilings of the machine: how fast memory is copied, and how fast bytes pass a socket, in messages
 * of the size that the bare pipe and packd are driven with.
 *
 *   wire_bench [MIB]     one JSON object, MB/s: memcpy, and for TCP over loopback and a Unix socket
 *                        one hop (a writer and a reader) and two (a thread between that reads and
 *                        writes on, as a server does with what it receives and sends)
 *
 * Plain blocking sockets, a thread an end, no framing: nothing that speaks a protocol gets there.
 */
#include "base/check.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MESSAGE_BYTES (512u << 10)
#define ARENA_BYTES (256u << 20) /* more than any cache holds */

static uint64_t total_bytes;

struct end {
    int in, out; /* -1: none */
};

static void *run_end(void *arg)
{
    const struct end *end = arg;
    uint8_t *message = calloc(1, MESSAGE_BYTES);
    PD_CHECK(message);
    for (uint64_t done = 0; done < total_bytes; done += MESSAGE_BYTES) {
        if (end->in >= 0)
            PD_CHECK(recv(end->in, message, MESSAGE_BYTES, MSG_WAITALL) == MESSAGE_BYTES);
        if (end->out >= 0)
            PD_CHECK(send(end->out, message, MESSAGE_BYTES, 0) == MESSAGE_BYTES);
    }
    free(message);
    return NULL;
}

/* Both ends of a connection: [0] is written to, [1] read from. */
static void connect_pair(bool tcp, int ends[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (!tcp) {
        PD_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        return;
    }
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    PD_CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&address, length) == 0);
    PD_CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    PD_CHECK(listen(listener, 1) == 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    PD_CHECK(ends[0] >= 0 && connect(ends[0], (struct sockaddr *)&address, length) == 0);
    ends[1] = accept(listener, NULL, NULL);
    PD_CHECK(ends[1] >= 0);
    close(listener);
}

static double socket_mb_s(bool tcp, int hops)
{
    int pairs[2][2];
    struct end ends[3];
    pthread_t threads[3];
    for (int i = 0; i < hops; i++)
        connect_pair(tcp, pairs[i]);
    for (int i = 0; i <= hops; i++)
        ends[i] =
            (struct end){.in = i > 0 ? pairs[i - 1][1] : -1, .out = i < hops ? pairs[i][0] : -1};
    uint64_t started_ns = pd_clock_mono_ns();
    for (int i = 0; i <= hops; i++)
        PD_CHECK(pthread_create(&threads[i], NULL, run_end, &ends[i]) == 0);
    for (int i = 0; i <= hops; i++)
        pthread_join(threads[i], NULL);
    double seconds = (double)(pd_clock_mono_ns() - started_ns) / 1e9;
    for (int i = 0; i < hops; i++) {
        close(pairs[i][0]);
        close(pairs[i][1]);
    }
    return (double)total_bytes / seconds / 1e6;
}

static double memcpy_mb_s(void)
{
    uint8_t *from = malloc(ARENA_BYTES), *to = malloc(ARENA_BYTES);
    PD_CHECK(from && to);
    memset(from, 1, ARENA_BYTES);
    memset(to, 2, ARENA_BYTES);
    uint64_t started_ns = pd_clock_mono_ns();
    for (uint64_t done = 0; done < total_bytes; done += MESSAGE_BYTES)
        memcpy(to + done % ARENA_BYTES, from + done % ARENA_BYTES, MESSAGE_BYTES);
    double seconds = (double)(pd_clock_mono_ns() - started_ns) / 1e9;
    PD_CHECK(to[total_bytes / 2 % ARENA_BYTES] == 1);
    free(from);
    free(to);
    return (double)total_bytes / seconds / 1e6;
}

int main(int argc, char **argv)
{
    uint64_t mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 1024;
    total_bytes = mib * (1u << 20);
    PD_CHECK(mib > 0 && argc < 3);
    printf("{\"message_bytes\": %u, \"memcpy\": %.0f, \"tcp_one_hop\": %.0f, \"unix_one_hop\": "
           "%.0f, \"tcp_two_hops\": %.0f, \"unix_two_hops\": %.0f}\n",
           MESSAGE_BYTES, memcpy_mb_s(), socket_mb_s(true, 1), socket_mb_s(false, 1),
           socket_mb_s(true, 2), socket_mb_s(false, 2));
    return 0;
}
