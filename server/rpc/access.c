/* Who may call what.
 *
 * Place in the flow: asked by rpc.c for each accepted call, and by methods once they know the feed.
 * Any rpc thread; the tokens are behind a lock that is a leaf. Invariant: what the table of methods
 * below does not name needs the role admin. Tokens are compared in constant time and never
 * shown. */
#include "server/rpc/access.h"

#include "base/check.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOKEN_BYTES_MIN 16
#define TOKEN_BYTES_MAX 512

struct token {
    size_t size; /* 0: the principal has none */
    unsigned char bytes[TOKEN_BYTES_MAX];
};

struct pd_access {
    const struct pd_config *config;
    bool admin_apart; /* there are listeners for Admin alone */
    pthread_mutex_t lock;
    struct token *tokens; /* of config->auth, guarded by lock */
};

/* ---- methods ---- */

/* The first row that the path begins with decides. Role 0: anybody. */
static const struct {
    const char *prefix;
    uint32_t roles; /* any of them */
    bool admin;     /* part of Admin */
    bool health;    /* served at the health door */
    bool whole;     /* about no feed: for principals of all feeds */
} methods[] = {
    {"/packd.v1.Ingest/", .roles = PD_ROLE_PRODUCE},
    {"/packd.v1.Feed/", .roles = PD_ROLE_READ},
    {"/packd.v1.Admin/Status", .roles = PD_ROLE_OBSERVE | PD_ROLE_ADMIN, .admin = true},
    {"/packd.v1.Admin/Explain", .roles = PD_ROLE_OBSERVE | PD_ROLE_ADMIN, .admin = true},
    {"/packd.v1.Admin/Drain", .roles = PD_ROLE_ADMIN, .admin = true, .whole = true},
    {"/packd.v1.Admin/SelfTest", .roles = PD_ROLE_ADMIN, .admin = true, .whole = true},
    {"/grpc.health.v1.Health/", .health = true},
    {"/grpc.reflection.", .health = true},
    {"/", .roles = PD_ROLE_ADMIN, .admin = true},
};

static size_t method_row(const char *method, size_t size)
{
    size_t row = 0;
    while (row + 1 < PD_COUNT_OF(methods) &&
           (size < strlen(methods[row].prefix) ||
            memcmp(method, methods[row].prefix, strlen(methods[row].prefix)) != 0))
        row++;
    return row;
}

/* ---- tokens ---- */

/* Nothing but a file: a FIFO would keep its reader waiting. */
static int open_token(const struct pd_principal_config *principal, FILE **file,
                      struct pd_error *error)
{
    struct stat stat;
    int fd = open(principal->token_file, O_RDONLY | O_CLOEXEC | O_NONBLOCK), failed = errno;
    bool regular = fd >= 0 && fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode);
    *file = regular ? fdopen(fd, "rb") : NULL;
    if (*file)
        return 0;
    if (fd >= 0)
        close(fd);
    if (fd >= 0 && !regular)
        return pd_error_set(error, PD_EINVAL, "TOKEN_FILE", "auth: %s: %s is not a regular file",
                            principal->name, principal->token_file);
    return pd_error_set(error, PD_EIO, "TOKEN_FILE", "auth: %s: cannot open %s: %s",
                        principal->name, principal->token_file, strerror(fd < 0 ? failed : errno));
}

static int read_token(const struct pd_principal_config *principal, struct token *token,
                      struct pd_error *error)
{
    token->size = 0;
    if (!*principal->token_file)
        return 0;
    FILE *file;
    int rc = open_token(principal, &file, error);
    if (rc != 0)
        return rc;
    unsigned char bytes[TOKEN_BYTES_MAX + 3];
    size_t size = fread(bytes, 1, sizeof(bytes), file);
    bool failed = ferror(file) != 0;
    fclose(file);
    if (failed)
        return pd_error_set(error, PD_EIO, "TOKEN_FILE", "auth: %s: cannot read %s",
                            principal->name, principal->token_file);
    while (size > 0 && (bytes[size - 1] == '\n' || bytes[size - 1] == '\r'))
        size--;
    if (size < TOKEN_BYTES_MIN || size > TOKEN_BYTES_MAX)
        return pd_error_set(error, PD_EINVAL, "TOKEN_FILE",
                            "auth: %s: the token in %s has %zu bytes; expected %d to %d",
                            principal->name, principal->token_file, size, TOKEN_BYTES_MIN,
                            TOKEN_BYTES_MAX);
    for (size_t i = 0; i < size; i++)
        if (bytes[i] < 0x20 || bytes[i] > 0x7e)
            return pd_error_set(error, PD_EINVAL, "TOKEN_FILE",
                                "auth: %s: byte %zu of the token in %s is 0x%02x, which metadata "
                                "cannot carry; expected printable ASCII",
                                principal->name, i, principal->token_file, bytes[i]);
    memcpy(token->bytes, bytes, size);
    token->size = size;
    return 0;
}

/* Takes as long for a wrong token as for the right one of the same length. */
static bool same_token(const struct token *token, const unsigned char *bytes, size_t size)
{
    unsigned char differs = 0;
    if (token->size != size)
        return false;
    for (size_t i = 0; i < size; i++)
        differs |= token->bytes[i] ^ bytes[i];
    return differs == 0;
}

static int read_tokens(const struct pd_config *config, struct token **out, struct pd_error *error)
{
    struct token *tokens = calloc(config->auth_count + 1, sizeof(*tokens));
    int rc = tokens ? 0 : pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for tokens");
    for (uint32_t i = 0; rc == 0 && i < config->auth_count; i++) {
        rc = read_token(&config->auth[i], &tokens[i], error);
        for (uint32_t j = 0; rc == 0 && j < i && tokens[i].size > 0; j++)
            if (same_token(&tokens[j], tokens[i].bytes, tokens[i].size))
                rc = pd_error_set(error, PD_EINVAL, "TOKEN_FILE",
                                  "auth: %s and %s have the same token; give each its own",
                                  config->auth[j].name, config->auth[i].name);
    }
    if (rc != 0) {
        free(tokens);
        return rc;
    }
    *out = tokens;
    return 0;
}

int pd_access_new(const struct pd_config *config, struct pd_access **out, struct pd_error *error)
{
    struct pd_access *access = calloc(1, sizeof(*access));
    if (!access)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for principals");
    access->config = config;
    access->admin_apart = config->listen_admin_count > 0;
    int rc = read_tokens(config, &access->tokens, error);
    if (rc == 0 && pthread_mutex_init(&access->lock, NULL) != 0)
        rc = pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no lock for principals");
    if (rc != 0) {
        free(access->tokens);
        free(access);
        return rc;
    }
    *out = access;
    return 0;
}

void pd_access_free(struct pd_access *access)
{
    if (!access)
        return;
    (void)pthread_mutex_destroy(&access->lock);
    free(access->tokens);
    free(access);
}

int pd_access_reload(struct pd_access *access, struct pd_error *error)
{
    struct token *tokens = NULL;
    int rc = read_tokens(access->config, &tokens, error);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&access->lock);
    struct token *before = access->tokens;
    access->tokens = tokens;
    pthread_mutex_unlock(&access->lock);
    free(before);
    return 0;
}

/* ---- who it is ---- */

static bool slice_is(grpc_slice slice, const char *text)
{
    return GRPC_SLICE_LENGTH(slice) == strlen(text) &&
           memcmp(GRPC_SLICE_START_PTR(slice), text, strlen(text)) == 0;
}

/* The bearer token of the call; NULL where it has none. */
static const unsigned char *bearer(const grpc_metadata_array *metadata, size_t *size)
{
    static const char lead[] = "Bearer ";
    for (size_t i = 0; i < metadata->count; i++) {
        const grpc_slice *value = &metadata->metadata[i].value;
        if (!slice_is(metadata->metadata[i].key, "authorization") ||
            GRPC_SLICE_LENGTH(*value) <= strlen(lead) ||
            strncasecmp((const char *)GRPC_SLICE_START_PTR(*value), lead, strlen(lead)) != 0)
            continue;
        *size = GRPC_SLICE_LENGTH(*value) - strlen(lead);
        return GRPC_SLICE_START_PTR(*value) + strlen(lead);
    }
    return NULL;
}

static const struct pd_principal_config *by_token(struct pd_access *access,
                                                  const unsigned char *bytes, size_t size)
{
    const struct pd_principal_config *found = NULL;
    pthread_mutex_lock(&access->lock);
    for (uint32_t i = 0; i < access->config->auth_count; i++)
        if (access->tokens[i].size > 0 && same_token(&access->tokens[i], bytes, size))
            found = &access->config->auth[i];
    pthread_mutex_unlock(&access->lock);
    return found;
}

static bool has_property(const grpc_auth_context *context, const char *name, const char *value)
{
    grpc_auth_property_iterator it = grpc_auth_context_find_properties_by_name(context, name);
    const grpc_auth_property *property;
    while ((property = grpc_auth_property_iterator_next(&it)))
        if (property->value_length == strlen(value) &&
            memcmp(property->value, value, property->value_length) == 0)
            return true;
    return false;
}

static const struct pd_principal_config *by_certificate(const struct pd_access *access,
                                                        grpc_call *call)
{
    const struct pd_principal_config *found = NULL;
    grpc_auth_context *context = grpc_call_auth_context(call);
    for (uint32_t i = 0; context && !found && i < access->config->auth_count; i++) {
        const char *name = access->config->auth[i].certificate;
        if (*name && grpc_auth_context_peer_is_authenticated(context) &&
            (has_property(context, GRPC_X509_CN_PROPERTY_NAME, name) ||
             has_property(context, GRPC_X509_SAN_PROPERTY_NAME, name)))
            found = &access->config->auth[i];
    }
    if (context)
        grpc_auth_context_release(context);
    return found;
}

static const struct pd_principal_config *by_socket(const struct pd_access *access, const char *peer)
{
    for (uint32_t i = 0; strncmp(peer, "unix:", 5) == 0 && i < access->config->auth_count; i++)
        if (access->config->auth[i].local)
            return &access->config->auth[i];
    return NULL;
}

/* A token decides alone: a wrong one is not made good by a certificate. */
static int identify(struct pd_access *access, grpc_call *call, const char *peer,
                    const grpc_metadata_array *metadata, const struct pd_principal_config **who,
                    struct pd_error *error)
{
    size_t size = 0;
    const unsigned char *token = bearer(metadata, &size);
    if (token)
        *who = by_token(access, token, size);
    else if (!(*who = by_certificate(access, call)))
        *who = by_socket(access, peer);
    if (*who)
        return 0;
    return pd_error_set(error, PD_EUNAUTH, "CREDENTIALS",
                        token ? "this bearer token is not one of the server's (packctl and "
                                "libpackd take it from PACKD_TOKEN)"
                              : "the server asks who you are: send `authorization: Bearer TOKEN` "
                                "(packctl and libpackd take TOKEN from PACKD_TOKEN), or a client "
                                "certificate that it knows");
}

/* ---- what is allowed ---- */

static int check_door(const struct pd_access *access, enum pd_door door, size_t row,
                      struct pd_error *error)
{
    if (door == PD_DOOR_HEALTH && !methods[row].health)
        return pd_error_set(error, PD_EDENIED, "NOT_ALLOWED",
                            "this address answers health checks only");
    if (door == PD_DOOR_ADMIN && !methods[row].admin && !methods[row].health)
        return pd_error_set(error, PD_EDENIED, "NOT_ALLOWED", "this address serves Admin only");
    if (door == PD_DOOR_MAIN && methods[row].admin && access->admin_apart)
        return pd_error_set(error, PD_EDENIED, "NOT_ALLOWED",
                            "Admin is served on addresses of its own (listen_admin)");
    return 0;
}

/* As the method table combines them. */
static const char *role_words(unsigned roles)
{
    return roles == PD_ROLE_PRODUCE                     ? "produce"
           : roles == PD_ROLE_READ                      ? "read"
           : roles == (PD_ROLE_OBSERVE | PD_ROLE_ADMIN) ? "observe or admin"
                                                        : "admin";
}

static int check_call(struct pd_access *access, enum pd_door door, size_t row, grpc_call *call,
                      const char *peer, const grpc_metadata_array *metadata,
                      const struct pd_principal_config **who, struct pd_error *error)
{
    int rc = check_door(access, door, row, error);
    if (rc != 0 || methods[row].roles == 0 || access->config->auth_count == 0)
        return rc;
    rc = identify(access, call, peer, metadata, who, error);
    if (rc == 0 && !((*who)->roles & methods[row].roles))
        rc = pd_error_set(error, PD_EDENIED, "NOT_ALLOWED",
                          "%s may not do this: it takes the role %s, which its entry in the "
                          "server's `auth` does not have",
                          (*who)->name, role_words(methods[row].roles));
    if (rc == 0 && methods[row].whole && (*who)->feed_count > 0)
        rc = pd_error_set(error, PD_EDENIED, "NOT_ALLOWED",
                          "%s may not do this: it is about the whole server, not about a feed",
                          (*who)->name);
    return rc;
}

/* What a client chose to write, fit for a log line. */
static void printable(char *to, size_t size, const char *from, size_t from_size)
{
    size_t n = from_size < size - 1 ? from_size : size - 1;
    for (size_t i = 0; i < n; i++)
        to[i] = from[i] > ' ' && from[i] < 0x7f && from[i] != '"' ? from[i] : '?';
    to[n] = '\0';
}

int pd_access_admit(struct pd_access *access, enum pd_door door, const char *method, size_t size,
                    grpc_call *call, const grpc_metadata_array *metadata,
                    const struct pd_principal_config **who, struct pd_error *error)
{
    *who = NULL;
    char *peer = grpc_call_get_peer(call);
    int rc = check_call(access, door, method_row(method, size), call, peer ? peer : "", metadata,
                        who, error);
    if (rc != 0) {
        char shown[100];
        printable(shown, sizeof(shown), method, size);
        pd_log(PD_LOG_WARN, "access_refused", "peer=%s method=%s principal=%s reason=%s",
               peer ? peer : "?", shown, *who ? (*who)->name : "unknown", error->reason);
    }
    gpr_free(peer);
    return rc;
}

bool pd_access_has_feed(const struct pd_principal_config *who, const char *feed)
{
    bool found = !who || who->feed_count == 0;
    for (uint32_t i = 0; !found && i < who->feed_count; i++)
        found = strcmp(who->feeds[i], feed) == 0;
    return found;
}

int pd_access_feed(const struct pd_principal_config *who, const char *feed, struct pd_error *error)
{
    if (pd_access_has_feed(who, feed))
        return 0;
    pd_log(PD_LOG_WARN, "access_refused", "principal=%s feed=%.64s reason=NOT_ALLOWED", who->name,
           feed);
    return pd_error_set(error, PD_EDENIED, "NOT_ALLOWED", "%s may not use the feed %.64s",
                        who->name, feed);
}
