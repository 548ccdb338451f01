/* The listeners: a gRPC server for each door (main, Admin, health), their addresses, TLS.
 *
 * Place in the flow: rpc.c makes and binds them at start. Main thread. With a certificate every TCP
 * address but those of the health door speaks TLS; gRPC reads the files again by itself, so that
 * new connections meet a new certificate while open ones go on. Unix sockets get the configured
 * mode. It accepts no call. */
#include "server/rpc/call.h"

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
static grpc_server *make_server(const struct pd_config *config)
{
    grpc_arg args[] = {
        int_arg(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        int_arg(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 512 << 10),
        int_arg(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20),
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, PD_RPC_RECEIVE_BYTES_MAX),
        int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, PD_RPC_RECEIVE_BYTES_MAX),
        int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, int_of((uint64_t)config->push_calls_max + 4096)),
        int_arg(GRPC_ARG_ALLOW_REUSEPORT, 0),
        int_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1),
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, 60000),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000),
        int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
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
        rpc->servers[door] = make_server(config);
        if (!rpc->servers[door])
            return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "gRPC made no server");
    }
    return 0;
}

/* ---- TLS ---- */

/* gRPC says nothing of a file that is not there: it would refuse every client. */
static int check_pem(const char *key, const char *path, const char *what, struct pd_error *error)
{
    char text[64 << 10];
    FILE *file = fopen(path, "rbe");
    if (!file)
        return pd_error_set(error, PD_EIO, "TLS", "%s: cannot open %s: %s", key, path,
                            strerror(errno));
    size_t size = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[size] = '\0';
    if (!strstr(text, "-----BEGIN ") || !strstr(text, what))
        return pd_error_set(error, PD_EINVAL, "TLS", "%s: %s holds no PEM block of a %s", key, path,
                            what);
    return 0;
}

static int check_files(const struct pd_config *config, struct pd_error *error)
{
    int rc = check_pem("tls.cert", config->tls_cert, "CERTIFICATE", error);
    if (rc == 0)
        rc = check_pem("tls.key", config->tls_key, "PRIVATE KEY", error);
    if (rc == 0 && *config->tls_client_ca)
        rc = check_pem("tls.client_ca", config->tls_client_ca, "CERTIFICATE", error);
    return rc;
}

static grpc_ssl_client_certificate_request_type request_type(const struct pd_config *config)
{
    if (!*config->tls_client_ca)
        return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    return config->tls_client_optional ? GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY
                                       : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
}

static grpc_server_credentials *tls_credentials(const struct pd_config *config)
{
    uint64_t seconds = config->tls_reload_ns / 1000000000u;
    grpc_tls_certificate_provider *provider = grpc_tls_certificate_provider_file_watcher_create(
        config->tls_key, config->tls_cert, *config->tls_client_ca ? config->tls_client_ca : NULL,
        (unsigned)seconds);
    grpc_tls_credentials_options *options = grpc_tls_credentials_options_create();
    grpc_tls_credentials_options_set_certificate_provider(options, provider);
    grpc_tls_credentials_options_watch_identity_key_cert_pairs(options);
    if (*config->tls_client_ca)
        grpc_tls_credentials_options_watch_root_certs(options);
    grpc_tls_credentials_options_set_cert_request_type(options, request_type(config));
    grpc_tls_certificate_provider_release(provider);
    return grpc_tls_server_credentials_create(options); /* takes the options */
}

/* ---- binding ---- */

/* "host:0" with the port that was bound; other addresses as they are. */
static char *bound_address(const char *address, int port)
{
    const char *colon = strrchr(address, ':');
    char *text;

    if (strncmp(address, "unix:", 5) == 0 || !colon)
        return strdup(address);
    return asprintf(&text, "%.*s:%d", (int)(colon - address), address, port) < 0 ? NULL : text;
}

static bool is_unix(const char *address)
{
    return strncmp(address, "unix:", 5) == 0;
}

static int set_mode(const struct pd_config *config, const char *address, struct pd_error *error)
{
    const char *path = address + strlen("unix:");
    if (chmod(path, (mode_t)strtoul(config->listen_mode, NULL, 8)) == 0)
        return 0;
    return pd_error_set(error, PD_EUNAVAIL, "BIND", "cannot give %s the mode %s (listen_mode): %s",
                        path, config->listen_mode, strerror(errno));
}

static int bind_one(struct pd_rpc *rpc, enum pd_door door, const char *address,
                    grpc_server_credentials *tls, struct pd_error *error)
{
    grpc_server_credentials *plain = grpc_insecure_server_credentials_create();
    bool use_tls = tls && door != PD_DOOR_HEALTH && !is_unix(address);
    int port = grpc_server_add_http2_port(rpc->servers[door], address, use_tls ? tls : plain);
    grpc_server_credentials_release(plain);
    if (port == 0)
        return pd_error_set(error, PD_EUNAVAIL, "BIND",
                            "cannot listen on %s: the address is in use, or not one of this "
                            "machine",
                            address);
    char *bound = bound_address(address, port);
    if (!bound)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for an address");
    rpc->addresses[door][rpc->address_counts[door]++] = bound;
    return is_unix(address) ? set_mode(rpc->options.config, address, error) : 0;
}

static int bind_door(struct pd_rpc *rpc, enum pd_door door, char *const *addresses, uint32_t count,
                     grpc_server_credentials *tls, struct pd_error *error)
{
    int rc = 0;
    for (uint32_t i = 0; i < count && rc == 0; i++)
        rc = bind_one(rpc, door, addresses[i], tls, error);
    return rc;
}

/* Tokens over plain TCP can be read by whoever sees the wire. */
static void warn_plain_tokens(const struct pd_config *config)
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
}

int pd_listeners_bind(struct pd_rpc *rpc, struct pd_error *error)
{
    const struct pd_config *config = rpc->options.config;
    grpc_server_credentials *tls = NULL;
    int rc = pd_config_has_tls(config) ? check_files(config, error) : 0;
    if (rc == 0 && pd_config_has_tls(config))
        tls = tls_credentials(config);
    if (rc == 0)
        rc = bind_door(rpc, PD_DOOR_MAIN, config->listen, config->listen_count, tls, error);
    if (rc == 0)
        rc = bind_door(rpc, PD_DOOR_ADMIN, config->listen_admin, config->listen_admin_count, tls,
                       error);
    if (rc == 0)
        rc = bind_door(rpc, PD_DOOR_HEALTH, config->listen_health, config->listen_health_count, tls,
                       error);
    grpc_server_credentials_release(tls);
    if (rc == 0)
        warn_plain_tokens(config);
    return rc;
}
