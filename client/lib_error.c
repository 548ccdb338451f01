/* Filling struct packd_error, and the table from gRPC's status codes to ours.
 *
 * The public header repeats the codes of base/err.h, so that it stands alone; the assertions below
 * keep the two equal. */
#include "client/lib_error.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

/* A list, not statements, as the formatter would have it. */
/* clang-format off */
#define CODES(X)                                                                            \
    X(EINVAL) X(ENOMEM) X(ELIMIT) X(EEND) X(ENOTFOUND) X(EEXIST) X(EMISMATCH) X(EFENCED)    \
    X(ERANGE) X(ECORRUPT) X(EIO) X(EUNAVAIL) X(ETIMEDOUT) X(ECANCELED) X(EUNSUPPORTED)      \
    X(EDENIED) X(EUNAUTH) X(EINTERNAL)
/* clang-format on */

#define X(name) _Static_assert((int)PACKD_##name == (int)PD_##name, "packd.h and base/err.h agree");
CODES(X)
#undef X

const char *packd_error_name(int code)
{
    switch (code) {
#define X(name)        \
    case PACKD_##name: \
        return "PACKD_" #name;
        CODES(X)
#undef X
    default:
        return "PACKD_E?";
    }
}

const char *packd_version(void)
{
    return PACKD_VERSION_STRING;
}

int(pd_client_error)(struct packd_error *error, int code, const char *reason, const char *format,
                     ...)
{
    if (!error)
        return code;
    struct packd_error filled = {.code = code};
    snprintf(filled.reason, sizeof filled.reason, "%s", reason);
    va_list args;
    va_start(args, format);
    vsnprintf(filled.text, sizeof filled.text, format, args);
    va_end(args);
    *error = filled;
    return code;
}

void pd_client_error_prefix(struct packd_error *error, const char *format, ...)
{
    if (!error)
        return;
    char prefix[200];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix - 2, format, args);
    va_end(args);
    strcat(prefix, ": ");
    size_t length = strlen(prefix), kept = strlen(error->text);
    if (kept > sizeof error->text - 1 - length)
        kept = sizeof error->text - 1 - length;
    memmove(error->text + length, error->text, kept);
    memcpy(error->text, prefix, length);
    error->text[length + kept] = 0;
}

int pd_client_error_from(struct packd_error *error, const struct pd_error *from)
{
    return pd_client_error(error, from->code, from->reason, "%s", from->text);
}

int pd_client_code_of_grpc(int grpc_code)
{
    static const int codes[] = {0,
                                PACKD_ECANCELED,
                                PACKD_EINTERNAL,
                                PACKD_EINVAL,
                                PACKD_ETIMEDOUT,
                                PACKD_ENOTFOUND,
                                PACKD_EEXIST,
                                PACKD_EDENIED,
                                PACKD_ELIMIT,
                                PACKD_EMISMATCH,
                                PACKD_EFENCED,
                                PACKD_ERANGE,
                                PACKD_EUNSUPPORTED,
                                PACKD_EINTERNAL,
                                PACKD_EUNAVAIL,
                                PACKD_ECORRUPT,
                                PACKD_EUNAUTH};
    if (grpc_code < 0 || (size_t)grpc_code >= PD_COUNT_OF(codes))
        return PACKD_EINTERNAL;
    return codes[grpc_code];
}
