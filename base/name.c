/* One rule for every name in packd. */
#include "base/name.h"

#include <string.h>

/* "stream" is a stream's name; "name" is one by itself. */
static const char *noun(const char *what)
{
    size_t length = strlen(what);
    return length >= 4 && strcmp(what + length - 4, "name") == 0 ? "" : " name";
}

int pd_name_check(const char *what, const char *name, struct pd_error *error)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    size_t length = strlen(name);
    if (length == 0)
        return pd_error_set(error, PD_EINVAL, "BAD_NAME",
                            "the %s%s is empty; expected 1 to %d of [A-Za-z0-9_-]", what,
                            noun(what), PD_NAME_MAX);
    if (length > PD_NAME_MAX)
        return pd_error_set(error, PD_EINVAL, "BAD_NAME",
                            "the %s%s '%.64s...' has %zu bytes; expected at most %d", what,
                            noun(what), name, length, PD_NAME_MAX);
    size_t good = strspn(name, allowed);
    if (good < length)
        return pd_error_set(error, PD_EINVAL, "BAD_NAME",
                            "byte %zu of the %s%s is 0x%02x; expected only [A-Za-z0-9_-]", good,
                            what, noun(what), (unsigned char)name[good]);
    return 0;
}
