/* Servers, channels and addresses of the stand-in for gRPC: who calls finds an accept that was
 * posted, waits for one, or is refused where nobody listens.
 *
 * A server that shuts down refuses what waits, gives its accepts back, and says that it is down
 * when its last call is gone. Any thread. */
#include "tests/seam/calls.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADDRESSES_MAX 16

struct posted {
    struct posted *next;
    grpc_call **call;
    grpc_call_details *details;
    grpc_metadata_array *metadata;
    grpc_completion_queue *call_queue, *queue;
    void *tag;
};

struct grpc_server {
    pthread_mutex_t lock; /* guards all below */
    struct posted *posted;
    struct seam_pair *waiting, *live; /* a reference each */
    bool shutting;
    grpc_completion_queue *down_queue; /* NULL once it has been told */
    void *down_tag;
};

struct grpc_channel {
    char *target;
};

static struct {
    pthread_mutex_t lock;
    struct {
        char *name;
        grpc_server *server;
    } at[ADDRESSES_MAX];
    int next_port;
} addresses = {.lock = PTHREAD_MUTEX_INITIALIZER, .next_port = 20001};

/* ---- server (locked where it says so) ---- */

grpc_server *grpc_server_create(const grpc_channel_args *args, void *reserved)
{
    (void)args;
    struct grpc_server *server = calloc(1, sizeof *server);
    PD_CHECK(server && !reserved && pthread_mutex_init(&server->lock, NULL) == 0);
    return server;
}

void grpc_server_register_completion_queue(grpc_server *server, grpc_completion_queue *queue,
                                           void *reserved)
{
    PD_CHECK(server && queue && !reserved);
}

void grpc_server_start(grpc_server *server)
{
    PD_CHECK(server);
}

static void pair_ref(struct seam_pair *pair)
{
    pthread_mutex_lock(&pair->lock);
    pair->refs++;
    pthread_mutex_unlock(&pair->lock);
}

/* Locked. The accept is given the call. */
static void match(grpc_server *server, struct posted *posted, struct seam_pair *pair)
{
    struct grpc_call *end = &pair->ends[SEAM_SERVER];
    pair_ref(pair); /* of the server's end */
    pair->server = server;
    end->queue = posted->call_queue;
    pair->next = server->live;
    server->live = pair;
    *posted->call = end;
    posted->details->method = grpc_slice_ref(pair->method);
    seam_metadata_lend(&pair->initial, posted->metadata);
    seam_queue_end(posted->queue, posted->tag, true);
    free(posted);
}

static void *first_of(struct seam_pair **list)
{
    struct seam_pair **at = list;
    while (*at && (*at)->next)
        at = &(*at)->next;
    struct seam_pair *oldest = *at;
    *at = NULL;
    return oldest;
}

grpc_call_error grpc_server_request_call(grpc_server *server, grpc_call **call,
                                         grpc_call_details *details, grpc_metadata_array *metadata,
                                         grpc_completion_queue *call_queue,
                                         grpc_completion_queue *queue, void *tag)
{
    struct posted *posted = calloc(1, sizeof *posted);
    PD_CHECK(posted);
    *posted = (struct posted){NULL, call, details, metadata, call_queue, queue, tag};
    seam_queue_begin(queue);
    pthread_mutex_lock(&server->lock);
    struct seam_pair *waits = server->shutting ? NULL : first_of(&server->waiting);
    if (server->shutting) {
        seam_queue_end(queue, tag, false);
        free(posted);
    } else if (waits) {
        match(server, posted, waits);
    } else {
        posted->next = server->posted;
        server->posted = posted;
    }
    pthread_mutex_unlock(&server->lock);
    return GRPC_CALL_OK;
}

/* Locked. */
static void tell_down(grpc_server *server)
{
    if (!server->down_queue || server->live)
        return;
    seam_queue_end(server->down_queue, server->down_tag, true);
    server->down_queue = NULL;
}

void grpc_server_shutdown_and_notify(grpc_server *server, grpc_completion_queue *queue, void *tag)
{
    struct seam_pair *refused;
    seam_queue_begin(queue);
    pthread_mutex_lock(&server->lock);
    server->shutting = true;
    server->down_queue = queue;
    server->down_tag = tag;
    while (server->posted) {
        struct posted *posted = server->posted;
        server->posted = posted->next;
        seam_queue_end(posted->queue, posted->tag, false);
        free(posted);
    }
    while ((refused = first_of(&server->waiting))) {
        seam_pair_cancel(refused, SEAM_SERVER, GRPC_STATUS_UNAVAILABLE, "the server shuts down");
        seam_pair_unref(refused);
    }
    tell_down(server);
    pthread_mutex_unlock(&server->lock);
}

void grpc_server_cancel_all_calls(grpc_server *server)
{
    pthread_mutex_lock(&server->lock);
    for (struct seam_pair *pair = server->live; pair; pair = pair->next)
        seam_pair_cancel(pair, SEAM_SERVER, GRPC_STATUS_UNAVAILABLE, "cancelled by the server");
    pthread_mutex_unlock(&server->lock);
}

void seam_call_left(struct seam_pair *pair)
{
    grpc_server *server = pair->server;
    pthread_mutex_lock(&server->lock);
    struct seam_pair **at = &server->live;
    while (*at != pair)
        at = &(*at)->next;
    *at = pair->next;
    tell_down(server);
    pthread_mutex_unlock(&server->lock);
    seam_pair_unref(pair); /* the list's */
}

void grpc_server_destroy(grpc_server *server)
{
    pthread_mutex_lock(&addresses.lock);
    for (int i = 0; i < ADDRESSES_MAX; i++)
        if (addresses.at[i].server == server) {
            free(addresses.at[i].name);
            addresses.at[i].name = NULL;
            addresses.at[i].server = NULL;
        }
    pthread_mutex_unlock(&addresses.lock);
    pthread_mutex_lock(&server->lock); /* who told that it is down may not have let go yet */
    PD_CHECK(!server->live && !server->waiting && !server->posted);
    pthread_mutex_unlock(&server->lock);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

/* ---- addresses ---- */

int grpc_server_add_http2_port(grpc_server *server, const char *address,
                               grpc_server_credentials *credentials)
{
    const char *colon = strrchr(address, ':');
    int port = colon ? atoi(colon + 1) : 0;
    PD_CHECK(credentials && colon);
    pthread_mutex_lock(&addresses.lock);
    if (port == 0)
        port = addresses.next_port++;
    int free_at = 0;
    while (free_at < ADDRESSES_MAX && addresses.at[free_at].server)
        free_at++;
    PD_CHECK(free_at < ADDRESSES_MAX);
    PD_CHECK(asprintf(&addresses.at[free_at].name, "%.*s:%d", (int)(colon - address), address,
                      port) > 0);
    addresses.at[free_at].server = server;
    pthread_mutex_unlock(&addresses.lock);
    return port;
}

/* Addresses locked. */
static void offer_to(grpc_server *server, struct seam_pair *pair)
{
    pthread_mutex_lock(&server->lock);
    bool shutting = server->shutting;
    struct posted *posted = server->posted;
    if (!shutting) {
        pair_ref(pair); /* of its list */
        if (posted) {
            server->posted = posted->next;
            match(server, posted, pair);
        } else {
            pair->next = server->waiting;
            server->waiting = pair;
        }
    }
    pthread_mutex_unlock(&server->lock);
    if (shutting)
        seam_pair_cancel(pair, SEAM_SERVER, GRPC_STATUS_UNAVAILABLE, "the server shuts down");
}

void seam_offer(struct seam_pair *pair)
{
    grpc_server *server = NULL;
    pthread_mutex_lock(&addresses.lock);
    for (int i = 0; i < ADDRESSES_MAX && !server; i++)
        if (addresses.at[i].server && strcmp(addresses.at[i].name, pair->target) == 0)
            server = addresses.at[i].server;
    if (server)
        offer_to(server, pair);
    else
        seam_pair_cancel(pair, SEAM_SERVER, GRPC_STATUS_UNAVAILABLE, "nobody listens there");
    pthread_mutex_unlock(&addresses.lock);
}

/* ---- channels ---- */

grpc_channel *grpc_channel_create(const char *target, grpc_channel_credentials *credentials,
                                  const grpc_channel_args *args)
{
    (void)args;
    struct grpc_channel *channel = calloc(1, sizeof *channel);
    PD_CHECK(channel && credentials);
    channel->target = strdup(target);
    return channel;
}

void grpc_channel_destroy(grpc_channel *channel)
{
    free(channel->target);
    free(channel);
}

grpc_call *grpc_channel_create_call(grpc_channel *channel, grpc_call *parent, uint32_t mask,
                                    grpc_completion_queue *queue, grpc_slice method,
                                    const grpc_slice *host, gpr_timespec deadline, void *reserved)
{
    (void)mask;
    PD_CHECK(!parent && !host && !reserved);
    struct seam_pair *pair = seam_pair_new(queue, channel->target, method);
    if (deadline.tv_sec != INT64_MAX)
        seam_queue_time(queue, &pair->ends[SEAM_CLIENT], deadline);
    return &pair->ends[SEAM_CLIENT];
}

/* ---- credentials: plain, and nobody is known ---- */

static char plain;

grpc_channel_credentials *grpc_insecure_credentials_create(void)
{
    return (grpc_channel_credentials *)&plain;
}

void grpc_channel_credentials_release(grpc_channel_credentials *credentials)
{
    PD_CHECK(credentials == (grpc_channel_credentials *)&plain);
}

grpc_server_credentials *grpc_insecure_server_credentials_create(void)
{
    return (grpc_server_credentials *)&plain;
}

void grpc_server_credentials_release(grpc_server_credentials *credentials)
{
    PD_CHECK(credentials == (grpc_server_credentials *)&plain);
}

grpc_auth_context *grpc_call_auth_context(grpc_call *call)
{
    (void)call;
    return NULL;
}

int grpc_auth_context_peer_is_authenticated(const grpc_auth_context *context)
{
    (void)context;
    return 0;
}

grpc_auth_property_iterator grpc_auth_context_find_properties_by_name(const grpc_auth_context *at,
                                                                      const char *name)
{
    (void)at;
    (void)name;
    return (grpc_auth_property_iterator){0};
}

const grpc_auth_property *grpc_auth_property_iterator_next(grpc_auth_property_iterator *at)
{
    (void)at;
    return NULL;
}

void grpc_auth_context_release(grpc_auth_context *context)
{
    (void)context;
}

#define NO_TLS pd_panic(__FILE__, __LINE__, "there is no TLS in a process of one")

grpc_channel_credentials *grpc_ssl_credentials_create(const char *roots,
                                                      grpc_ssl_pem_key_cert_pair *pair,
                                                      const verify_peer_options *options,
                                                      void *reserved)
{
    (void)roots, (void)pair, (void)options, (void)reserved;
    NO_TLS;
}

grpc_ssl_server_certificate_config *
grpc_ssl_server_certificate_config_create(const char *roots,
                                          const grpc_ssl_pem_key_cert_pair *pairs, size_t count)
{
    (void)roots, (void)pairs, (void)count;
    NO_TLS;
}

grpc_ssl_server_credentials_options *
grpc_ssl_server_credentials_create_options_using_config_fetcher(
    grpc_ssl_client_certificate_request_type type,
    grpc_ssl_server_certificate_config_callback callback, void *user)
{
    (void)type, (void)callback, (void)user;
    NO_TLS;
}

grpc_server_credentials *
grpc_ssl_server_credentials_create_with_options(grpc_ssl_server_credentials_options *options)
{
    (void)options;
    NO_TLS;
}
