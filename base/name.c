/* One rule for every name in packd. */
#include "base/name.h"

#include <string.h>

int pd_name_check(const char *what, const char *name, struct pd_error *error)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    size_t length = strlen(name);
    if (length == 0)
        return pd_error_set(error, PD_EINVAL, "BAD_NAME",
                            "the %s name is empty; expected 1 to %d of [A-Za-z0-9_-]", what,
                            PD_NAME_MAX);
    if (length > PD_NAME_MAX)
        return pd_error_set(error, PD_EINVAL, "BAD_NAME",
                            "the %s name '%.64s...' has %zu bytes; expected at most %d", what, name,
                            length, PD_NAME_MAX);
    size_t good = strspn(name, allowed);
    if (good < length)
        return pd_error_set(error, PD_EINVAL, "BAD_NAME",
                            "byte %zu of the %s name is 0x%02x; expected only [A-Za-z0-9_-]", good,
                            what, (unsigned char)name[good]);
    return 0;
}
