/* Reading a reply of the server as JSON: an absent or mistyped field is 0 or "". Pure; what text
 * returns is the object's. */
#ifndef PD_CLIENT_PACKCTL_REPLY_H
#define PD_CLIENT_PACKCTL_REPLY_H

#include "client/packctl.h"

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

/* "WHO waits: reason for 3 s; streams ...: text" as a line; nothing where `waiting` is no object.
 * now_ms: the server's clock; 0: without a duration. packctl_status.c. */
void ctl_print_waiting(const struct ctl *ctl, const char *who, const json_t *waiting,
                       uint64_t now_ms);

#endif
