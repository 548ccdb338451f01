/* The watchers' HTTP server, driven by the main loop.
 *
 * libmicrohttpd parses and writes; its epoll descriptor tells libuv when it has work, and a timer
 * fires when its connections time out. Our handler answers at once from memory: /livez says that
 * this loop turns and nothing else, so that no disk or device can make an orchestrator kill the
 * process. Main thread only. */
#include "server/http.h"

#include "base/check.h"
#include "server/metrics.h"
#include "server/page.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define MAGIC 0x68747470
#define ADDRESS_MAX 300
#define REQUEST_BYTES_MAX (16u << 10) /* line and headers; more is answered 431 or closed */

struct pd_http {
    uint32_t magic;
    struct pd_http_options options;
    struct MHD_Daemon *daemon;
    uv_poll_t poll;
    uv_timer_t timer;
    char address[ADDRESS_MAX];
};

/* ---- answers ---- */

static const char text_plain[] = "text/plain; charset=utf-8";

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type,
                              struct pd_buf *body, const char *allow)
{
    enum MHD_Result rc = MHD_NO;
    struct MHD_Response *response =
        body->failed
            ? NULL
            : MHD_create_response_from_buffer(body->size_bytes, body->data, MHD_RESPMEM_MUST_COPY);
    if (response) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
        MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
        MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
        if (status == MHD_HTTP_BAD_REQUEST) /* nobody knows where the next request begins */
            MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
        if (allow)
            MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, allow);
        rc = MHD_queue_response(connection, status, response);
        MHD_destroy_response(response);
    }
    pd_buf_fini(body);
    return rc;
}

static enum MHD_Result answer_line(struct MHD_Connection *connection, unsigned status,
                                   const char *line, const char *allow)
{
    struct pd_buf body = {0};
    pd_buf_put(&body, line, strlen(line));
    return answer(connection, status, text_plain, &body, allow);
}

static enum MHD_Result answer_metrics(struct MHD_Connection *connection)
{
    const char *accept =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT);
    bool openmetrics = pd_http_prefers_openmetrics(accept);
    struct pd_buf body = {0};
    if (pd_metrics_render(&body, openmetrics) != 0) {
        pd_buf_fini(&body);
        return answer_line(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "no memory\n", NULL);
    }
    return answer(connection, MHD_HTTP_OK,
                  openmetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                              : "text/plain; version=0.0.4; charset=utf-8",
                  &body, NULL);
}

static enum MHD_Result answer_ready(struct pd_http *http, struct MHD_Connection *connection)
{
    struct pd_buf body = {0};
    bool ready = http->options.ready(http->options.ctx, &body);
    return answer(connection, ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, text_plain, &body,
                  NULL);
}

static enum MHD_Result answer_page(struct MHD_Connection *connection)
{
    enum MHD_Result rc = MHD_NO;
    struct MHD_Response *response = MHD_create_response_from_buffer(
        pd_page_html_bytes, (void *)(uintptr_t)pd_page_html, MHD_RESPMEM_PERSISTENT);
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/html; charset=utf-8");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(response, "Content-Security-Policy", pd_page_policy);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    rc = MHD_queue_response(connection, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    return rc;
}

static enum MHD_Result answer_status(struct pd_http *http, struct MHD_Connection *connection)
{
    struct pd_buf body = {0};
    http->options.status(http->options.ctx, &body);
    return answer(connection, MHD_HTTP_OK, "application/json", &body, NULL);
}

static enum MHD_Result answer_get(struct pd_http *http, struct MHD_Connection *connection,
                                  const char *url)
{
    if (strcmp(url, "/metrics") == 0)
        return answer_metrics(connection);
    if (strcmp(url, "/readyz") == 0)
        return answer_ready(http, connection);
    if (strcmp(url, "/status.json") == 0)
        return answer_status(http, connection);
    if (strcmp(url, "/") == 0)
        return answer_page(connection);
    return answer_line(connection, MHD_HTTP_OK, "ok\n", NULL);
}

/* A path with an escaped NUL stays as it is: behind the NUL nothing would be seen. */
static size_t unescape(void *ctx, struct MHD_Connection *connection, char *text)
{
    (void)ctx;
    (void)connection;
    return strstr(text, "%00") ? strlen(text) : MHD_http_unescape(text);
}

static enum MHD_Result count_length(void *ctx, enum MHD_ValueKind kind, const char *name,
                                    const char *value)
{
    (void)kind;
    (void)value;
    *(unsigned *)ctx += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0 ||
                        strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
    return MHD_YES;
}

/* What a proxy before packd could read in another way: where the body ends, or the path. */
static const char *ambiguity(struct MHD_Connection *connection, const char *url)
{
    unsigned lengths = 0;
    MHD_get_connection_values(connection, MHD_HEADER_KIND, count_length, &lengths);
    if (lengths > 1)
        return "bad request: more than one Content-Length or Transfer-Encoding\n";
    return strstr(url, "%00") ? "bad request: %00 in the path\n" : NULL;
}

/* Called once with the headers, then with the body's pieces, then at its end. What is refused is
 * refused at the headers, which also closes the connection unread; a good request is answered at
 * its end, so that its connection can be used again. */
static enum MHD_Result on_request(void *ctx, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload_data,
                                  size_t *upload_data_size, void **request_ctx)
{
    static const char *const paths[] = {"/metrics", "/livez",       "/healthz",
                                        "/readyz",  "/status.json", "/"};
    struct pd_http *http = ctx;
    bool known = false;
    PD_MAGIC_CHECK(http, MAGIC);
    (void)version;
    (void)upload_data;
    const char *bad = *request_ctx ? NULL : ambiguity(connection, url);
    if (bad)
        return answer_line(connection, MHD_HTTP_BAD_REQUEST, bad, NULL);
    for (size_t i = 0; i < PD_COUNT_OF(paths); i++)
        known |= strcmp(url, paths[i]) == 0;
    if (!known)
        return answer_line(connection, MHD_HTTP_NOT_FOUND,
                           "not found; there are /, /status.json, /metrics, /livez and /readyz\n",
                           NULL);
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return answer_line(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n",
                           "GET, HEAD");
    bool at_headers = !*request_ctx, has_body = *upload_data_size > 0;
    *request_ctx = http;
    *upload_data_size = 0;
    return at_headers || has_body ? MHD_YES : answer_get(http, connection, url);
}

/* ---- what the scraper wants ---- */

/* One item of an Accept header: "type/subtype;a=b;q=0.5". */
struct accept_item {
    char type[64];
    char version[16]; /* "" = none named */
    double q;
};

static void trim(char **text)
{
    *text += strspn(*text, " \t");
    size_t length = strlen(*text);
    while (length > 0 && strchr(" \t", (*text)[length - 1]))
        (*text)[--length] = '\0';
}

static struct accept_item parse_item(char *text)
{
    struct accept_item item = {.q = 1};
    char *rest = NULL;
    char *part = strtok_r(text, ";", &rest);
    if (part) {
        trim(&part);
        snprintf(item.type, sizeof item.type, "%.63s", part);
    }
    while ((part = strtok_r(NULL, ";", &rest))) {
        trim(&part);
        if (strncasecmp(part, "q=", 2) == 0)
            item.q = strtod(part + 2, NULL);
        else if (strncasecmp(part, "version=", 8) == 0)
            snprintf(item.version, sizeof item.version, "%.15s", part + 8);
    }
    if (!(item.q >= 0 && item.q <= 1))
        item.q = 0;
    return item;
}

bool pd_http_prefers_openmetrics(const char *accept)
{
    char copy[1024], *rest = NULL;
    double openmetrics = 0, plain = 0;
    if (!accept || strlen(accept) >= sizeof copy)
        return false;
    snprintf(copy, sizeof copy, "%s", accept);
    for (char *part = strtok_r(copy, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
        struct accept_item item = parse_item(part);
        bool is_open = strcasecmp(item.type, "application/openmetrics-text") == 0 &&
                       (!*item.version || strcmp(item.version, "1.0.0") == 0);
        bool is_plain = strcasecmp(item.type, "text/plain") == 0 &&
                        (!*item.version || strcmp(item.version, "0.0.4") == 0);
        if (is_open && item.q > openmetrics)
            openmetrics = item.q;
        if (is_plain && item.q > plain)
            plain = item.q;
    }
    return openmetrics > 0 && openmetrics >= plain;
}

/* ---- the loop ---- */

static void drive(struct pd_http *http);

static void on_poll(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    drive(poll->data);
}

static void on_timer(uv_timer_t *timer)
{
    drive(timer->data);
}

/* Lets libmicrohttpd do what is due, and comes back when its next connection times out. */
static void drive(struct pd_http *http)
{
    PD_MAGIC_CHECK(http, MAGIC);
    MHD_UNSIGNED_LONG_LONG wait_ms;
    MHD_run(http->daemon);
    if (MHD_get_timeout(http->daemon, &wait_ms) == MHD_YES)
        uv_timer_start(&http->timer, on_timer, wait_ms, 0);
    else
        uv_timer_stop(&http->timer);
}

/* ---- start and stop ---- */

/* Splits "host:port"; brackets around an IPv6 host are taken off. */
static bool split_address(const char *address, char *host, size_t host_size, const char **port)
{
    const char *colon = strrchr(address, ':');
    if (!colon || colon == address)
        return false;
    size_t length = (size_t)(colon - address);
    if (address[0] == '[' && colon[-1] == ']') {
        address++;
        length -= 2;
    }
    if (length == 0 || length >= host_size)
        return false;
    memcpy(host, address, length);
    host[length] = '\0';
    *port = colon + 1;
    return true;
}

static int bind_refused(struct pd_error *error, const char *address, const char *why)
{
    return pd_error_set(error, PD_EUNAVAIL, "BIND", "cannot listen on http address %.100s: %s",
                        address, why);
}

static int open_socket(const char *address, int *fd, struct pd_error *error)
{
    char host[256];
    const char *port;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *found;
    if (!split_address(address, host, sizeof host, &port))
        return bind_refused(error, address, "expected host:port");
    int rc = getaddrinfo(host, port, &hints, &found);
    if (rc != 0)
        return bind_refused(error, address, gai_strerror(rc));
    int on = 1, failed = 0;
    *fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0 || setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(*fd, found->ai_addr, found->ai_addrlen) != 0 ||
        listen(*fd, PD_HTTP_CONNECTIONS_MAX) != 0)
        failed = errno;
    freeaddrinfo(found);
    if (failed == 0)
        return 0;
    if (*fd >= 0)
        close(*fd);
    char why[160];
    snprintf(why, sizeof why, "%s; choose another with --http, or in `http`", strerror(failed));
    return bind_refused(error, address, why);
}

static void name_socket(int fd, char *name, size_t size)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    char host[64] = "?", port[16] = "0";
    if (getsockname(fd, (struct sockaddr *)&address, &length) == 0)
        getnameinfo((struct sockaddr *)&address, length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(name, size, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

/* Takes fd, also on failure. */
static int start_daemon(struct pd_http *http, int fd, struct pd_error *error)
{
    http->daemon = MHD_start_daemon(
        MHD_USE_EPOLL, 0, NULL, NULL, on_request, http, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)PD_HTTP_CONNECTIONS_MAX,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)PD_HTTP_CONNECTIONS_PER_IP_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)PD_HTTP_IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)REQUEST_BYTES_MAX, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_END);
    if (http->daemon)
        return 0;
    close(fd);
    return pd_error_set(error, PD_EIO, "HTTP", "the HTTP server on %.100s did not start",
                        http->address);
}

/* Nothing is left in the loop where it fails. */
static int watch_daemon(struct pd_http *http, struct pd_error *error)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    int failed = info ? uv_poll_init(http->options.loop, &http->poll, info->epoll_fd) : UV_ENOTSUP;
    if (failed != 0)
        return pd_error_set(error, PD_EIO, "LOOP", "libuv cannot watch the HTTP server: %s",
                            uv_strerror(failed));
    uv_timer_init(http->options.loop, &http->timer);
    http->timer.data = http->poll.data = http;
    uv_poll_start(&http->poll, UV_READABLE, on_poll);
    return 0;
}

int pd_http_start(const struct pd_http_options *options, struct pd_http **result,
                  struct pd_error *error)
{
    int fd, rc = open_socket(options->address, &fd, error);
    if (rc != 0)
        return rc;
    struct pd_http *http = calloc(1, sizeof *http);
    if (!http) {
        close(fd);
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for the HTTP server");
    }
    http->magic = MAGIC;
    http->options = *options;
    name_socket(fd, http->address, sizeof http->address);
    rc = start_daemon(http, fd, error);
    if (rc != 0) {
        free(http);
        return rc;
    }
    rc = watch_daemon(http, error);
    if (rc != 0) {
        MHD_stop_daemon(http->daemon);
        free(http);
        return rc;
    }
    *result = http;
    return 0;
}

const char *pd_http_address(const struct pd_http *http)
{
    return http->address;
}

void pd_http_stop(struct pd_http *http)
{
    PD_MAGIC_CHECK(http, MAGIC);
    uv_poll_stop(&http->poll);
    uv_close((uv_handle_t *)&http->poll, NULL);
    uv_close((uv_handle_t *)&http->timer, NULL);
    MHD_stop_daemon(http->daemon);
    http->daemon = NULL;
}

void pd_http_free(struct pd_http *http)
{
    if (!http)
        return;
    PD_MAGIC_CHECK(http, MAGIC);
    PD_CHECK(!http->daemon);
    http->magic = 0;
    free(http);
}
