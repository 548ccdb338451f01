/* The HTTP server for people and machines that watch: /metrics, /livez (and /healthz, the same),
 * /readyz, and the status page at / with its data at /status.json.
 *
 * libmicrohttpd without threads of its own: its epoll descriptor is watched by the libuv loop, so
 * every answer is made on the main thread and must be quick. GET and HEAD only; bodies are not
 * read.
 *
 * When full: 64 connections at a time, 32 of one address; further ones are closed at once. A
 * connection idle for 10 s is closed. */
#ifndef PD_SERVER_HTTP_H
#define PD_SERVER_HTTP_H

#include "base/bytes.h"
#include "base/err.h"

#include <stdbool.h>
#include <uv.h>

#define PD_HTTP_CONNECTIONS_MAX 64
#define PD_HTTP_CONNECTIONS_PER_IP_MAX 32
#define PD_HTTP_IDLE_S 10

struct pd_http_options {
    uv_loop_t *loop;     /* borrowed until pd_http_free */
    const char *address; /* "host:port"; port 0 = any free one */
    void *ctx;
    /* True while work is taken; writes one line of reason or "ready" to *text. Main thread. */
    bool (*ready)(void *ctx, struct pd_buf *text);
    /* /status.json. Main thread. */
    void (*status)(void *ctx, struct pd_buf *json);
};

struct pd_http;

/* Binds and listens. PD_EUNAVAIL, reason BIND: the address cannot be resolved or bound; PD_ENOMEM;
 * PD_EIO: libmicrohttpd did not start, or libuv cannot watch it. */
int pd_http_start(const struct pd_http_options *options, struct pd_http **http,
                  struct pd_error *error) PD_MUST_CHECK;
/* "127.0.0.1:7071", with the port that was bound. */
const char *pd_http_address(const struct pd_http *http);
/* Closes the listener and every connection and its libuv handles; run the loop once more before
 * pd_http_free. */
void pd_http_stop(struct pd_http *http);
void pd_http_free(struct pd_http *http);

/* True where an Accept header (NULL: none was sent) prefers OpenMetrics 1.0 to the text format
 * 0.0.4. Pure. */
bool pd_http_prefers_openmetrics(const char *accept);

#endif
