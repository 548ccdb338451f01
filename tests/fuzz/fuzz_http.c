/* HTTP from anybody: the server of the status page and metrics, on a real socket, driven by the
 * loop of this thread. An input is what a client sends, in up to PIECES_MAX pieces; half of the
 * inputs are put together from parts of requests, since random bytes rarely are one. Then the
 * client goes away, with a reset, in the middle of whatever it was.
 *
 * Whatever comes back begins as an HTTP answer with a status the server has. The header that it
 * parses by itself, Accept, is tried apart, too. */
#include "server/http.h"

#include "base/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECES_MAX 4
#define TURNS \
    6 /* of the loop, after each piece: what has come in is read, what is due is written */
#define MADE_MAX 40000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
    uv_loop_t loop;
    struct pd_http *http;
    struct sockaddr_in address;
} server;

static const char *const parts[] = {
    "GET ",
    "HEAD ",
    "POST ",
    "/metrics",
    "/status.json",
    "/readyz",
    "/livez",
    "/",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    "\r\n",
    "\n",
    "Host: x\r\n",
    "Connection: close\r\n",
    "Connection: keep-alive\r\n",
    "Accept: ",
    "application/openmetrics-text; version=1.0.0",
    "text/plain;q=",
    ";version=0.0.4,",
    "Content-Length: 5\r\n",
    "Content-Length: 18446744073709551616\r\n",
    "Transfer-Encoding: chunked\r\n",
    "5\r\nabcde\r\n",
    "0\r\n\r\n",
    "Expect: 100-continue\r\n",
    "Cookie: a=b; c\r\n",
    "?a=b&%00=%zz",
    "Authorization: Basic x\r\n",
    "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "X-Long: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\x16\x03\x01\x02",
};

static bool on_ready(void *ctx, struct pd_buf *text)
{
    (void)ctx;
    pd_buf_put(text, "ready\n", 6);
    return true;
}

static void on_status(void *ctx, struct pd_buf *json)
{
    (void)ctx;
    pd_buf_put(json, "{}", 2);
}

static void set_up(void)
{
    struct pd_error error = {0};
    PD_CHECK(uv_loop_init(&server.loop) == 0);
    const struct pd_http_options options = {
        .loop = &server.loop, .address = "127.0.0.1:0", .ready = on_ready, .status = on_status};
    if (pd_http_start(&options, &server.http, &error) != 0)
        pd_panic(__FILE__, __LINE__, "%s", error.text);
    server.address = (struct sockaddr_in){
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)atoi(strchr(pd_http_address(server.http), ':') + 1))};
    inet_pton(AF_INET, "127.0.0.1", &server.address.sin_addr);
}

static void turn(void)
{
    for (int i = 0; i < TURNS; i++)
        uv_run(&server.loop, UV_RUN_NOWAIT);
}

/* Statuses of ours and of libmicrohttpd's. */
static void check_answer(const char *text, size_t size)
{
    static const char *const statuses[] = {"100", "200", "400", "404", "405", "411", "413",
                                           "414", "417", "431", "500", "501", "505"};
    bool known = false;
    if (size < 12)
        return;
    PD_CHECK(strncmp(text, "HTTP/1.", 7) == 0);
    for (size_t i = 0; i < PD_COUNT_OF(statuses); i++)
        known |= strncmp(text + 9, statuses[i], 3) == 0;
    if (!known)
        pd_panic(__FILE__, __LINE__, "an answer begins with %.20s", text);
}

static void converse(const uint8_t *data, size_t size, size_t piece)
{
    static char answer[1 << 16];
    const struct linger reset = {.l_onoff = 1}; /* no TIME_WAIT: ports would run out */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    PD_CHECK(fd >= 0);
    PD_CHECK(connect(fd, (struct sockaddr *)&server.address, sizeof server.address) == 0);
    PD_CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0);
    PD_CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    while (size > 0) {
        size_t now = size < piece ? size : piece;
        ssize_t sent = send(fd, data, now, MSG_NOSIGNAL);
        if (sent <= 0) /* closed by then, or it takes no more */
            break;
        data += sent;
        size -= (size_t)sent;
        turn();
    }
    ssize_t got = recv(fd, answer, sizeof answer - 1, 0);
    if (got > 0) {
        answer[got] = 0;
        check_answer(answer, (size_t)got);
    }
    close(fd);
    turn();
}

static size_t make(const uint8_t *data, size_t size, char *to)
{
    size_t used = 0;
    for (size_t i = 0; i < size; i++) {
        const char *part = parts[data[i] % PD_COUNT_OF(parts)];
        uint32_t times = data[i] == 255 ? 300 : 1; /* past what one request may have */
        for (; times > 0 && used + strlen(part) < MADE_MAX; times--) {
            memcpy(to + used, part, strlen(part));
            used += strlen(part);
        }
    }
    return used;
}

static void try_accept(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    PD_CHECK(text);
    memcpy(text, data, size);
    text[size] = 0;
    (void)pd_http_prefers_openmetrics(text);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char made[MADE_MAX];
    if (!server.http)
        set_up();
    if (size < 2)
        return 0;
    const uint8_t *bytes = data + 2;
    size_t count = size - 2;
    try_accept(bytes, count);
    if (data[0] & 1) {
        count = make(bytes, count, made);
        bytes = (const uint8_t *)made;
    }
    converse(bytes, count, 1 + count / (1 + data[1] % PIECES_MAX));
    return 0;
}
