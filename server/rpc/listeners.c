/* The listeners: a gRPC server for each door (main, Admin, health), their addresses, TLS.
 *
 * Place in the flow: rpc.c makes and binds them at start. Main thread. With a certificate every TCP
 * address but those of the health door speaks TLS (tls.c). Unix sockets get the configured mode.
 * What a listener accepts is asked of accept.c, which learns here which sockets are whose. It
 * accepts no call. */
#include "server/rpc/accept.h"
#include "server/rpc/access.h"
#include "server/rpc/bind_reason.h"
#include "server/rpc/call.h"
#include "server/rpc/grpc_log.h"
#include "server/rpc/tls.h"

#include "base/check.h"
#include "base/log.h"

#include <errno.h>
#include <grpc/grpc_security.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static grpc_arg int_arg(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

static int int_of(uint64_t value)
{
    return value > INT32_MAX ? INT32_MAX : (int)value;
}

/* Flow control without bandwidth probing and with a fixed look-ahead: what a call that is not read
 * may buffer stays near the look-ahead. Frames of up to 1 MiB: fewer slices for a piece, a third
 * less time in the rpc and sequencer threads than with 16 KiB. */
static grpc_server *make_server(const struct pd_rpc *rpc, enum pd_door door)
{
    const struct pd_config *config = rpc->options.config;
    grpc_arg args[] = {
        int_arg(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        int_arg(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 512 << 10),
        int_arg(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20),
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, PD_RPC_RECEIVE_BYTES_MAX),
        int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, PD_RPC_SEND_BYTES_MAX),
        int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, int_of(pd_rpc_calls_max(rpc, door))),
        int_arg(GRPC_ARG_ALLOW_REUSEPORT, 0),
        int_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1),
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, 60000),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000),
        int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        int_arg(GRPC_ARG_MAX_CONNECTION_IDLE_MS, int_of(config->stall_ns / 1000000u)),
        int_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, int_of(config->handshake_ns / 1000000u)),
    };
    grpc_channel_args list = {.num_args = PD_COUNT_OF(args), .args = args};

    return grpc_server_create(&list, NULL);
}

int pd_listeners_make(struct pd_rpc *rpc, struct pd_error *error)
{
    const struct pd_config *config = rpc->options.config;
    const uint32_t counts[PD_DOORS] = {[PD_DOOR_MAIN] = config->listen_count,
                                       [PD_DOOR_ADMIN] = config->listen_admin_count,
                                       [PD_DOOR_HEALTH] = config->listen_health_count};
    for (int door = 0; door < PD_DOORS; door++) {
        if (counts[door] == 0)
            continue;
        rpc->servers[door] = make_server(rpc, (enum pd_door)door);
        if (!rpc->servers[door])
            return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "gRPC made no server");
    }
    return 0;
}

/* ---- binding ---- */

static bool is_unix(const char *address)
{
    return strncmp(address, "unix:", 5) == 0;
}

/* "host:0" with the port that was bound; other addresses as they are. */
static char *bound_address(const char *address, int port)
{
    const char *colon = strrchr(address, ':');
    char *text;

    if (is_unix(address) || !colon)
        return strdup(address);
    return asprintf(&text, "%.*s:%d", (int)(colon - address), address, port) < 0 ? NULL : text;
}

static int set_mode(const struct pd_config *config, const char *address, struct pd_error *error)
{
    const char *path = address + strlen("unix:");
    if (chmod(path, (mode_t)strtoul(config->listen_mode, NULL, 8)) == 0)
        return 0;
    return pd_error_set(error, PD_EUNAVAIL, "BIND", "cannot give %s the mode %s (listen_mode): %s",
                        path, config->listen_mode, strerror(errno));
}

/* `cause`: the system's words, or "", for where no better ones are found. With TLS gRPC's own are
 * in the log. */
static int bind_failed(const char *address, const char *cause, bool tls, struct pd_error *error)
{
    char reason[256];
    pd_bind_reason(address, reason, sizeof reason);
    if (!reason[0] && tls)
        return pd_error_set(error, PD_EUNAVAIL, "BIND",
                            "cannot listen on %s: the address is in use, or not one of this "
                            "machine, or tls.cert, tls.key and tls.client_ca cannot be used "
                            "together (the log lines before this one tell)",
                            address);
    if (!reason[0])
        snprintf(reason, sizeof reason, "%s", *cause ? cause : "it is no address of this machine");
    return pd_error_set(error, PD_EUNAVAIL, "BIND",
                        "cannot listen on %s: %s; choose another with --listen, or in `listen`",
                        address, reason);
}

static int tls_credentials(struct pd_rpc *rpc, enum pd_door door, grpc_server_credentials **out,
                           struct pd_error *error)
{
    struct pd_tls **tls = &rpc->tls[door][rpc->address_counts[door]];
    int rc = pd_tls_new(rpc->options.config, tls, error);
    if (rc == 0)
        *out = pd_tls_credentials(*tls);
    return rc;
}

static int bind_one(struct pd_rpc *rpc, enum pd_door door, const char *address,
                    struct pd_error *error)
{
    bool tls =
        pd_config_has_tls(rpc->options.config) && door != PD_DOOR_HEALTH && !is_unix(address);
    grpc_server_credentials *credentials = NULL;
    int rc = tls ? tls_credentials(rpc, door, &credentials, error) : 0;
    if (rc != 0)
        return rc;
    if (!tls)
        credentials = grpc_insecure_server_credentials_create();
    struct pd_grpc_held held = {""};
    pd_grpc_log_hold(tls ? NULL : &held);
    int port = grpc_server_add_http2_port(rpc->servers[door], address, credentials);
    pd_grpc_log_hold(NULL);
    grpc_server_credentials_release(credentials);
    if (port == 0)
        return bind_failed(address, held.cause, tls, error);
    char *bound = bound_address(address, port);
    if (!bound)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for an address");
    rpc->addresses[door][rpc->address_counts[door]++] = bound;
    rc = pd_accept_learn(door, error);
    return rc == 0 && is_unix(address) ? set_mode(rpc->options.config, address, error) : rc;
}

static int bind_door(struct pd_rpc *rpc, enum pd_door door, char *const *addresses, uint32_t count,
                     struct pd_error *error)
{
    int rc = 0;
    for (uint32_t i = 0; i < count && rc == 0; i++)
        rc = bind_one(rpc, door, addresses[i], error);
    return rc;
}

/* Tokens over plain TCP can be read by whoever sees the wire; without any, whoever reaches it may
 * do everything. */
static void warn_open(const struct pd_config *config)
{
    bool tokens = false, tcp = false;
    for (uint32_t i = 0; i < config->auth_count; i++)
        tokens |= *config->auth[i].token_file != '\0';
    for (uint32_t i = 0; i < config->listen_count; i++)
        tcp |= !is_unix(config->listen[i]) && strncmp(config->listen[i], "127.", 4) != 0;
    if (tokens && tcp && !pd_config_has_tls(config))
        pd_log(PD_LOG_WARN, "plain_tokens",
               "text=\"bearer tokens travel unencrypted on the TCP addresses of `listen`; set "
               "tls.cert and tls.key\"");
    if (tcp && config->auth_count == 0)
        pd_log(PD_LOG_WARN, "open_to_network",
               "text=\"whoever reaches the TCP addresses of `listen` may do everything; set "
               "`auth`, or listen on 127.0.0.1 and Unix sockets only\"");
}

int pd_listeners_bind(struct pd_rpc *rpc, struct pd_error *error)
{
    const struct pd_config *config = rpc->options.config;
    int rc = bind_door(rpc, PD_DOOR_MAIN, config->listen, config->listen_count, error);
    if (rc == 0)
        rc = bind_door(rpc, PD_DOOR_ADMIN, config->listen_admin, config->listen_admin_count, error);
    if (rc == 0)
        rc = bind_door(rpc, PD_DOOR_HEALTH, config->listen_health, config->listen_health_count,
                       error);
    if (rc == 0)
        warn_open(config);
    return rc;
}

int pd_rpc_check_files(const struct pd_config *config, struct pd_error *error)
{
    struct pd_access *access = NULL;
    struct pd_tls *tls = NULL;
    int rc = pd_access_new(config, &access, error);
    if (rc == 0 && pd_config_has_tls(config))
        rc = pd_tls_new(config, &tls, error);
    pd_tls_free(tls);
    pd_access_free(access);
    return rc;
}
