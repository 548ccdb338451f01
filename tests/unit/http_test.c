/* The HTTP server over real sockets on a free port, the loop turned by the test: answers, methods,
 * negotiation, limits, stop with clients connected. */
#include "server/http.h"

#include "base/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

struct server {
    uv_loop_t loop;
    struct pd_http *http;
    bool ready;
};

static bool on_ready(void *ctx, struct pd_buf *text)
{
    const struct server *server = ctx;
    pd_buf_put(text, server->ready ? "ready\n" : "starting\n", server->ready ? 6 : 9);
    return server->ready;
}

static void on_status(void *ctx, struct pd_buf *json)
{
    (void)ctx;
    pd_buf_put(json, "{\"hello\":1}", 11);
}

static int start(void **state)
{
    struct server *server = calloc(1, sizeof *server);
    assert_non_null(server);
    assert_int_equal(uv_loop_init(&server->loop), 0);
    struct pd_error error = {0};
    const struct pd_http_options options = {.loop = &server->loop,
                                            .address = "127.0.0.1:0",
                                            .ctx = server,
                                            .ready = on_ready,
                                            .status = on_status};
    if (pd_http_start(&options, &server->http, &error) != 0)
        fail_msg("%s", error.text);
    *state = server;
    return 0;
}

static int stop(void **state)
{
    struct server *server = *state;
    pd_http_stop(server->http);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    pd_http_free(server->http);
    assert_int_equal(uv_loop_close(&server->loop), 0);
    free(server);
    return 0;
}

static int connected(const struct server *server)
{
    const char *address = pd_http_address(server->http);
    assert_int_equal(strncmp(address, "127.0.0.1:", 10), 0);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(address + 10))};
    assert_true(to.sin_port != 0);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

/* Turns the loop until the peer has closed `fd` or `until` has come in; returns what came. */
static char *received(struct server *server, int fd, const char *until)
{
    static char text[1 << 20];
    size_t size = 0;
    text[0] = '\0';
    for (int turn = 0; turn < 100000; turn++) {
        uv_run(&server->loop, UV_RUN_NOWAIT);
        ssize_t got = recv(fd, text + size, sizeof text - 1 - size, 0);
        if (got == 0 || (got < 0 && errno == ECONNRESET))
            return text;
        if (got > 0)
            size += (size_t)got;
        text[size] = '\0';
        if (until && strstr(text, until))
            return text;
    }
    fail_msg("no end after: %s", text);
    return text;
}

/* The whole answer to one request with Connection: close. */
static char *asked(struct server *server, const char *method, const char *path, const char *headers)
{
    char request[20000];
    int fd = connected(server);
    int size =
        snprintf(request, sizeof request,
                 "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n", method, path, headers);
    assert_int_equal(send(fd, request, (size_t)size, MSG_NOSIGNAL), size);
    char *text = received(server, fd, NULL);
    close(fd);
    return text;
}

static void has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is missing in: %.600s", part, text);
}

static void test_answers(void **state)
{
    struct server *server = *state;
    char *text = asked(server, "GET", "/livez", "");
    has(text, "HTTP/1.1 200 ");
    has(text, "\r\n\r\nok\n");
    has(asked(server, "GET", "/healthz", ""), "\r\n\r\nok\n");
    has(asked(server, "GET", "/status.json", ""), "\r\n\r\n{\"hello\":1}");
    const char *page = asked(server, "GET", "/", "");
    has(page, "\r\n\r\n<!doctype html>");
    has(page, "Content-Security-Policy: default-src 'none'; style-src 'sha256-");
    has(page, "Content-Type: text/html");
    assert_null(strstr(page, "unsafe-inline"));
    has(asked(server, "GET", "/nothing", ""), "HTTP/1.1 404 ");
    has(asked(server, "GET", "/metrics/", ""), "HTTP/1.1 404 ");
    has(asked(server, "GET", "/livez?verbose=1", ""), "HTTP/1.1 200 ");
    text = asked(server, "HEAD", "/livez", "");
    has(text, "HTTP/1.1 200 ");
    assert_null(strstr(text, "ok\n"));
}

static void test_methods(void **state)
{
    static const char *const methods[] = {"POST", "PUT", "DELETE", "OPTIONS", "PATCH"};
    struct server *server = *state;
    for (size_t i = 0; i < PD_COUNT_OF(methods); i++) {
        char *text = asked(server, methods[i], "/metrics", "Content-Length: 0\r\n");
        has(text, "HTTP/1.1 405 ");
        has(text, "Allow: GET, HEAD\r\n");
    }
}

/* What a proxy could read in another way ends its connection. */
static void test_ambiguous(void **state)
{
    static const char *const requests[] = {
        "GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "GET /livez HTTP/1.1\r\nHost: x\r\ncontent-length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
        "0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /livez%00 HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /livez%00/more HTTP/1.1\r\nHost: x\r\n\r\n",
    };
    struct server *server = *state;
    for (size_t i = 0; i < PD_COUNT_OF(requests); i++) {
        int fd = connected(server);
        ssize_t size = (ssize_t)strlen(requests[i]);
        assert_int_equal(send(fd, requests[i], (size_t)size, MSG_NOSIGNAL), size);
        char *text = received(server, fd, NULL);
        has(text, "HTTP/1.1 400 ");
        has(text, "bad request: ");
        assert_null(strstr(text + 1, "HTTP/1.1 ")); /* one answer */
        close(fd);
    }
    has(asked(server, "GET", "/%6civez", "Content-Length: 0\r\n"), "HTTP/1.1 200 ");
    has(asked(server, "GET", "/livez?a=%00", ""), "HTTP/1.1 200 ");
}

static void test_readiness(void **state)
{
    struct server *server = *state;
    char *text = asked(server, "GET", "/readyz", "");
    has(text, "HTTP/1.1 503 ");
    has(text, "starting\n");
    has(asked(server, "GET", "/livez", ""), "HTTP/1.1 200 ");
    server->ready = true;
    text = asked(server, "GET", "/readyz", "");
    has(text, "HTTP/1.1 200 ");
    has(text, "ready\n");
}

static void test_metrics_formats(void **state)
{
    struct server *server = *state;
    char *text = asked(server, "GET", "/metrics", "");
    has(text, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n");
    has(text, "# TYPE packd_ingest_samples_total counter\n");
    text = asked(server, "GET", "/metrics",
                 "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4\r\n");
    has(text, "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n");
    has(text, "# TYPE packd_ingest_samples counter\n");
    has(text, "# EOF\n");
}

static void test_negotiation(void **state)
{
    (void)state;
    assert_false(pd_http_prefers_openmetrics(NULL));
    assert_false(pd_http_prefers_openmetrics(""));
    assert_false(pd_http_prefers_openmetrics("*/*"));
    assert_false(pd_http_prefers_openmetrics("text/plain"));
    assert_true(pd_http_prefers_openmetrics("application/openmetrics-text"));
    assert_true(pd_http_prefers_openmetrics("Application/OpenMetrics-Text; Version=1.0.0"));
    assert_false(pd_http_prefers_openmetrics("application/openmetrics-text;version=0.0.1"));
    assert_false(pd_http_prefers_openmetrics("application/openmetrics-text;q=0"));
    assert_false(
        pd_http_prefers_openmetrics("application/openmetrics-text;q=0.3, text/plain;q=0.9"));
    assert_false(pd_http_prefers_openmetrics("application/openmetrics-text;q=nan"));
    assert_false(pd_http_prefers_openmetrics(";;;,,,;q=,"));
    assert_true(pd_http_prefers_openmetrics(
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/"
        "openmetrics-text;version=0.0.1;q=0.5,"
        "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/"
        "*;q=0.2"));
}

static void test_two_requests_on_one_connection(void **state)
{
    struct server *server = *state;
    int fd = connected(server);
    static const char request[] = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";
    for (int i = 0; i < 2; i++) {
        assert_int_equal(send(fd, request, sizeof request - 1, MSG_NOSIGNAL), sizeof request - 1);
        has(received(server, fd, "ok\n"), "HTTP/1.1 200 ");
    }
    close(fd);
}

static void test_large_requests_end(void **state)
{
    struct server *server = *state;
    static char header[17000];
    memset(header, 'a', sizeof header - 3);
    memcpy(header, "X-Long: ", 8);
    memcpy(header + sizeof header - 3, "\r\n", 3);
    char *text = asked(server, "GET", "/livez", header);
    if (*text)
        has(text, "HTTP/1.1 4");
    has(asked(server, "GET", "/livez", ""), "HTTP/1.1 200 ");
    int fd = connected(server);
    assert_int_equal(send(fd, "\x16\x03\x01\x02\x00\r\n\r\n", 9, MSG_NOSIGNAL), 9);
    text = received(server, fd, NULL);
    if (*text)
        has(text, " 400 ");
    close(fd);
}

/* More connections than one address may have: the later ones are closed, and closing some makes
 * room. */
static void test_connection_limit(void **state)
{
    struct server *server = *state;
    int fds[PD_HTTP_CONNECTIONS_PER_IP_MAX];
    for (size_t i = 0; i < PD_COUNT_OF(fds); i++) {
        fds[i] = connected(server);
        uv_run(&server->loop, UV_RUN_NOWAIT);
    }
    int late = connected(server);
    assert_string_equal(received(server, late, NULL), "");
    close(late);
    for (size_t i = 0; i < PD_COUNT_OF(fds); i++)
        close(fds[i]);
    for (int turn = 0; turn < 100; turn++)
        uv_run(&server->loop, UV_RUN_NOWAIT);
    has(asked(server, "GET", "/livez", ""), "HTTP/1.1 200 ");
}

/* The teardown must manage with a client in the middle of a request. */
static void test_stop_with_a_client(void **state)
{
    struct server *server = *state;
    int fd = connected(server);
    assert_int_equal(send(fd, "GET /liv", 8, MSG_NOSIGNAL), 8);
    uv_run(&server->loop, UV_RUN_NOWAIT);
    close(fd);
}

static void refused(const struct server *server, const char *address, const char *words)
{
    uv_loop_t loop;
    struct pd_http *http = NULL;
    struct pd_error error = {0};
    assert_int_equal(uv_loop_init(&loop), 0);
    const struct pd_http_options options = {.loop = &loop,
                                            .address = address,
                                            .ctx = (void *)server,
                                            .ready = on_ready,
                                            .status = on_status};
    assert_int_equal(pd_http_start(&options, &http, &error), PD_EUNAVAIL);
    assert_string_equal(error.reason, "BIND");
    has(error.text, words);
    has(error.text, address);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void test_bind_refusals(void **state)
{
    struct server *server = *state;
    refused(server, pd_http_address(server->http),
            "Address already in use; choose another with --http");
    refused(server, "192.0.2.1:0", "Cannot assign requested address");
    refused(server, "no-colon", "expected host:port");
    refused(server, "127.0.0.1:http-or-so", "cannot listen");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_answers, start, stop),
        cmocka_unit_test_setup_teardown(test_methods, start, stop),
        cmocka_unit_test_setup_teardown(test_ambiguous, start, stop),
        cmocka_unit_test_setup_teardown(test_readiness, start, stop),
        cmocka_unit_test_setup_teardown(test_metrics_formats, start, stop),
        cmocka_unit_test(test_negotiation),
        cmocka_unit_test_setup_teardown(test_two_requests_on_one_connection, start, stop),
        cmocka_unit_test_setup_teardown(test_large_requests_end, start, stop),
        cmocka_unit_test_setup_teardown(test_connection_limit, start, stop),
        cmocka_unit_test_setup_teardown(test_stop_with_a_client, start, stop),
        cmocka_unit_test_setup_teardown(test_bind_refusals, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
