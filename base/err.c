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

/* Bytes of the character at `at`; 0: none begins here; -1: one begins and the text ends in it. */
static int character_bytes(const unsigned char *at)
{
    int more = at[0] < 0x80 ? 0 : at[0] >= 0xf0 ? 3 : at[0] >= 0xe0 ? 2 : 1;
    if (more == 0)
        return 1;
    if (at[0] < 0xc2 || at[0] > 0xf4)
        return 0;
    for (int i = 1; i <= more; i++) {
        if (at[i] == 0)
            return -1;
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    }
    bool overlong = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
    bool outside = (at[0] == 0xed && at[1] > 0x9f) || (at[0] == 0xf4 && at[1] > 0x8f);
    return overlong || outside ? 0 : more + 1;
}

void pd_text_make_utf8(char *text)
{
    for (unsigned char *at = (unsigned char *)text; *at;) {
        int size = character_bytes(at);
        if (size < 0) {
            *at = 0;
        } else if (size == 0) {
            *at++ = '?';
        } else {
            at += size;
        }
    }
}

int(pd_error_set)(struct pd_error *error, int code, const char *reason, const char *format, ...)
{
    if (!error)
        return code;
    error->code = code;
    snprintf(error->reason, sizeof error->reason, "%s", reason);
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    pd_text_make_utf8(error->text);
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
    pd_text_make_utf8(error->text);
    return code;
}
