/* What a connection is made with: address, token, the PEM files of TLS, and the environment where
 * an option is not set.
 *
 * All of it is checked before gRPC sees it: gRPC dials an address without a port at 443, takes port
 * numbers modulo 65536, and ends the process over metadata that HTTP/2 cannot carry, printing it.
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
#define TOKEN_BYTES_MIN 16 /* as server/rpc/access.c */
#define TOKEN_BYTES_MAX 512
#define UNIX_PATH_BYTES_MAX 107 /* of sockaddr_un, without its end */

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

static bool is_host_and_port(const char *server)
{
    const char *colon = strrchr(server, ':');
    if (!colon || colon == server || strpbrk(server, " \t\r\n"))
        return false;
    size_t host = (size_t)(colon - server), digits = strspn(colon + 1, "0123456789");
    bool plain = strcspn(server, ":[]") == host;
    bool bracketed = server[0] == '[' && host > 2 && strcspn(server, "]") == host - 1;
    unsigned long port = digits > 0 && digits <= 5 ? strtoul(colon + 1, NULL, 10) : 0;
    return (plain || bracketed || strstr(server, "://")) && colon[1 + digits] == 0 && port >= 1 &&
           port <= 65535;
}

int pd_server_check(const char *server, struct packd_error *error)
{
    const char *path = strncmp(server, "unix:", 5) == 0 ? server + 5 : NULL;
    if (path && strlen(path) > UNIX_PATH_BYTES_MAX)
        return pd_client_error(error, PACKD_EINVAL, "SERVER",
                               "server \"%.200s\": the path has %zu bytes; the system takes %d",
                               server, strlen(path), UNIX_PATH_BYTES_MAX);
    if (path ? path[0] == '/' && path[1] : is_host_and_port(server))
        return 0;
    return pd_client_error(
        error, PACKD_EINVAL, "SERVER",
        "server \"%.200s\": expected host:port with a port from 1 to 65535, or unix:/path", server);
}

static int check_token(const char *token, struct packd_error *error)
{
    size_t bytes = strlen(token);
    for (size_t i = 0; i < bytes; i++)
        if (token[i] < 0x20 || token[i] > 0x7e)
            return pd_client_error(error, PACKD_EINVAL, "TOKEN",
                                   "byte %zu of the token is 0x%02x: expected %d to %d characters "
                                   "of printable ASCII%s",
                                   i, (unsigned char)token[i], TOKEN_BYTES_MIN, TOKEN_BYTES_MAX,
                                   token[i] == '\n' || token[i] == '\r'
                                       ? "; the line end of a token file is not part of the token"
                                       : "");
    if (bytes >= TOKEN_BYTES_MIN && bytes <= TOKEN_BYTES_MAX)
        return 0;
    return pd_client_error(error, PACKD_EINVAL, "TOKEN",
                           "the token has %zu bytes: expected %d to %d characters of printable "
                           "ASCII, as in the server's token files",
                           bytes, TOKEN_BYTES_MIN, TOKEN_BYTES_MAX);
}

static int check_tls(const struct packd_tls *tls, const char *server, struct packd_error *error)
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

int pd_connection_check(const char *server, const char *token, const struct packd_tls *tls,
                        struct packd_error *error)
{
    server = pd_option_or_env(server, "PACKD_SERVER", PACKD_DEFAULT_SERVER);
    token = pd_option_or_env(token, "PACKD_TOKEN", NULL);
    int rc = pd_server_check(server, error);
    if (rc == 0 && token)
        rc = check_token(token, error);
    return rc == 0 ? check_tls(tls, server, error) : rc;
}
