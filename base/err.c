/* The error table made into names and texts, and the one way to fill a struct pd_error. Pure, any
 * thread. */
#include "base/err.h"

#include <stdio.h>
#include <string.h>

const char *pd_err_name(int code)
{
    switch (code) {
#define X(name, value, text, status) \
    case name:                       \
        return #name;
        PD_ERRORS(X)
#undef X
    default:
        return code == 0 ? "PD_OK" : "PD_E?";
    }
}

const char *pd_err_text(int code)
{
    switch (code) {
#define X(name, value, text, status) \
    case name:                       \
        return text;
        PD_ERRORS(X)
#undef X
    default:
        return code == 0 ? "no error" : "unknown error";
    }
}

int pd_error_set(struct pd_error *error, int code, const char *reason, const char *format, ...)
{
    if (!error)
        return code;
    error->code = code;
    snprintf(error->reason, sizeof error->reason, "%s", reason);
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    return code;
}

int pd_error_prefix(struct pd_error *error, int code, const char *format, ...)
{
    if (!error)
        return code;
    char prefix[PD_TEXT_MAX / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    char text[PD_TEXT_MAX];
    memcpy(text, error->text, sizeof text);
    error->text[0] = '\0';
    strncat(error->text, prefix, sizeof error->text - 1);
    strncat(error->text, ": ", sizeof error->text - 1 - strlen(error->text));
    strncat(error->text, text, sizeof error->text - 1 - strlen(error->text));
    return code;
}
