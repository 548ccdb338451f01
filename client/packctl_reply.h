/* Reading a reply of the server as JSON: an absent or mistyped field is 0 or "". Pure; what text
 * returns is the object's. */
#ifndef PD_CLIENT_PACKCTL_REPLY_H
#define PD_CLIENT_PACKCTL_REPLY_H

#include <jansson.h>
#include <stdint.h>

static inline uint64_t number(const json_t *object, const char *name)
{
    return (uint64_t)json_number_value(json_object_get(object, name));
}

static inline int64_t integer(const json_t *object, const char *name)
{
    return (int64_t)json_number_value(json_object_get(object, name));
}

static inline const char *text(const json_t *object, const char *name)
{
    const char *value = json_string_value(json_object_get(object, name));
    return value ? value : "";
}

#endif
