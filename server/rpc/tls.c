/* TLS files: read at start, looked at again when a client connects, taken only where they serve.
 *
 * Place in the flow: listeners.c makes one for each TLS address; gRPC asks it at each handshake, on
 * whichever thread drives that connection, so a mutex guards it. Invariant: a file that is missing,
 * empty or half written, as files are while they are replaced, changes nothing: the former
 * certificate goes on serving, a log line says why, and the next look tries again. Whether key and
 * certificate belong together gRPC finds out; it too keeps the former pair. Memory: the three
 * files, each up to FILE_BYTES_MAX. It knows no address and no client. */
#include "server/rpc/tls.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX (4u << 20) /* a bundle of all public authorities has 0.2 MiB */

struct pem_files {
    char *cert, *key, *client_ca; /* client_ca: NULL where none is configured */
};

struct pd_tls {
    const struct pd_config *config;
    pthread_mutex_t lock;
    uint64_t looked_ns; /* 0: never */
    uint64_t digest;    /* of the files that gRPC was given last */
};

/* ---- files ---- */

static void free_text(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
}

static void free_files(struct pem_files *files)
{
    free_text(files->cert);
    free_text(files->key);
    free_text(files->client_ca);
    *files = (struct pem_files){0};
}

static int check_text(const char *key, const char *path, const char *what, const char *text,
                      size_t size, struct pd_error *error)
{
    if (size == FILE_BYTES_MAX)
        return pd_error_set(error, PD_EINVAL, "TLS", "%s: %s has %u bytes or more", key, path,
                            FILE_BYTES_MAX);
    const char *end = strstr(text, "-----BEGIN ");
    end = end && strstr(end, what) ? strstr(end, "-----END ") : NULL;
    if (!end || strlen(text) != size)
        return pd_error_set(error, PD_EINVAL, "TLS", "%s: %s holds no whole PEM block of a %s", key,
                            path, what);
    return 0;
}

static int read_pem(const char *key, const char *path, const char *what, char **out,
                    struct pd_error *error)
{
    FILE *file = fopen(path, "rbe");
    if (!file)
        return pd_error_set(error, PD_EIO, "TLS", "%s: cannot open %s: %s", key, path,
                            strerror(errno));
    char *text = calloc(1, FILE_BYTES_MAX + 1);
    size_t size = text ? fread(text, 1, FILE_BYTES_MAX, file) : 0;
    int rc = 0;
    if (!text)
        rc = pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for %s", path);
    else if (ferror(file))
        rc = pd_error_set(error, PD_EIO, "TLS", "%s: cannot read %s: %s", key, path,
                          strerror(errno));
    fclose(file);
    if (rc == 0)
        rc = check_text(key, path, what, text, size, error);
    if (rc == 0)
        *out = text;
    else
        free_text(text);
    return rc;
}

static int read_files(const struct pd_config *config, struct pem_files *files,
                      struct pd_error *error)
{
    int rc = read_pem("tls.cert", config->tls_cert, "CERTIFICATE", &files->cert, error);
    if (rc == 0)
        rc = read_pem("tls.key", config->tls_key, "PRIVATE KEY", &files->key, error);
    if (rc == 0 && *config->tls_client_ca)
        rc = read_pem("tls.client_ca", config->tls_client_ca, "CERTIFICATE", &files->client_ca,
                      error);
    if (rc != 0)
        free_files(files);
    return rc;
}

static uint64_t digest_of(const struct pem_files *files)
{
    uint64_t parts[3] = {
        pd_digest(files->cert, strlen(files->cert)),
        pd_digest(files->key, strlen(files->key)),
        files->client_ca ? pd_digest(files->client_ca, strlen(files->client_ca)) : 0,
    };
    return pd_digest(parts, sizeof(parts));
}

/* ---- what gRPC asks ---- */

static grpc_ssl_certificate_config_reload_status look(struct pd_tls *tls,
                                                      grpc_ssl_server_certificate_config **out)
{
    struct pem_files files = {0};
    struct pd_error error = {0};
    bool first = tls->looked_ns == 0;

    tls->looked_ns = pd_clock_mono_ns();
    if (read_files(tls->config, &files, &error) != 0) {
        pd_log(PD_LOG_ERROR, "tls_reload_failed", "text=\"%s\" now=\"as before\"", error.text);
        return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    uint64_t digest = digest_of(&files);
    if (!first && digest == tls->digest) {
        free_files(&files);
        return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    const grpc_ssl_pem_key_cert_pair pair = {.private_key = files.key, .cert_chain = files.cert};
    /* gRPC insists on authorities; where clients are asked for no certificate none is held against
     * them, and the server's own stands in. */
    *out = grpc_ssl_server_certificate_config_create(files.client_ca ? files.client_ca : files.cert,
                                                     &pair, 1);
    tls->digest = digest;
    free_files(&files);
    if (!first)
        pd_log(PD_LOG_INFO, "tls_files_changed", "cert=\"%s\"", tls->config->tls_cert);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

static grpc_ssl_certificate_config_reload_status
on_handshake(void *user_data, grpc_ssl_server_certificate_config **out)
{
    struct pd_tls *tls = user_data;
    grpc_ssl_certificate_config_reload_status status = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;

    pthread_mutex_lock(&tls->lock);
    if (tls->looked_ns == 0 || pd_clock_mono_ns() - tls->looked_ns >= tls->config->tls_reload_ns)
        status = look(tls, out);
    pthread_mutex_unlock(&tls->lock);
    return status;
}

static grpc_ssl_client_certificate_request_type request_type(const struct pd_config *config)
{
    if (!*config->tls_client_ca)
        return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    return config->tls_client_optional ? GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY
                                       : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
}

grpc_server_credentials *pd_tls_credentials(struct pd_tls *tls)
{
    return grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(request_type(tls->config),
                                                                        on_handshake, tls));
}

int pd_tls_new(const struct pd_config *config, struct pd_tls **out, struct pd_error *error)
{
    struct pem_files files = {0};
    int rc = read_files(config, &files, error);
    free_files(&files);
    if (rc != 0)
        return rc;
    struct pd_tls *tls = calloc(1, sizeof(*tls));
    if (!tls)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for TLS");
    tls->config = config;
    PD_CHECK(pthread_mutex_init(&tls->lock, NULL) == 0);
    *out = tls;
    return 0;
}

void pd_tls_free(struct pd_tls *tls)
{
    if (!tls)
        return;
    (void)pthread_mutex_destroy(&tls->lock);
    free(tls);
}
