/* What a connection is made with: the PEM files of TLS, and the environment where an option is not
 * set.
 *
 * Place in the flow: asked when an object of the library is opened. Files are read once; a client
 * that shall use a new certificate opens anew. Any thread. */
#include "client/lib_tls.h"

#include "client/lib_error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PEM_BYTES_MAX (1u << 20)

const char *pd_option_or_env(const char *explicit, const char *variable, const char *fallback)
{
    if (explicit)
        return explicit;
    const char *value = getenv(variable);
    return value && *value ? value : fallback;
}

struct packd_tls pd_tls_resolve(const struct packd_tls *tls)
{
    const char *on = getenv("PACKD_TLS");
    return (struct packd_tls){
        .on = tls->on || (on && strcmp(on, "1") == 0),
        .ca = pd_option_or_env(tls->ca, "PACKD_CA", NULL),
        .cert = pd_option_or_env(tls->cert, "PACKD_CERT", NULL),
        .key = pd_option_or_env(tls->key, "PACKD_KEY", NULL),
        .server_name = pd_option_or_env(tls->server_name, "PACKD_TLS_NAME", NULL),
    };
}

bool pd_tls_is_on(const struct packd_tls *resolved, const char *server)
{
    return strncmp(server, "unix:", 5) != 0 && (resolved->on || resolved->ca || resolved->cert);
}

char *pd_tls_read(const char *path)
{
    FILE *file = fopen(path, "rbe");
    char *text = file ? malloc(PEM_BYTES_MAX) : NULL;
    size_t size = text ? fread(text, 1, PEM_BYTES_MAX, file) : 0;
    if (file)
        fclose(file);
    if (size == 0 || size == PEM_BYTES_MAX) {
        free(text);
        return NULL;
    }
    text[size] = '\0';
    return text;
}

static int check_file(const char *what, const char *path, struct packd_error *error)
{
    if (!path)
        return 0;
    char *text = pd_tls_read(path);
    bool pem = text && strstr(text, "-----BEGIN ");
    free(text);
    if (pem)
        return 0;
    return pd_client_error(error, PACKD_EINVAL, "TLS", "%s: %s is not a readable PEM file", what,
                           path);
}

int pd_tls_check(const struct packd_tls *tls, const char *server, struct packd_error *error)
{
    struct packd_tls resolved = pd_tls_resolve(tls);
    if (!pd_tls_is_on(&resolved, server))
        return 0;
    if (!resolved.cert != !resolved.key)
        return pd_client_error(error, PACKD_EINVAL, "TLS",
                               "a client certificate needs both files: the %s is not set (%s)",
                               resolved.cert ? "key" : "certificate",
                               resolved.cert ? "PACKD_KEY" : "PACKD_CERT");
    int rc = check_file("the server's authority (PACKD_CA)", resolved.ca, error);
    if (rc == 0)
        rc = check_file("the client certificate (PACKD_CERT)", resolved.cert, error);
    if (rc == 0)
        rc = check_file("the client's key (PACKD_KEY)", resolved.key, error);
    return rc;
}
