/* Writes the bound addresses as JSON.
 *
 * Place in the flow: packd.c, the last step of the start. Main thread. Invariant: the path names a
 * whole file or none of this start's. It removes nothing: packd.c does, at the end. */
#include "server/ports_file.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static json_t *addresses_of(const struct pd_rpc *rpc, enum pd_door door)
{
    uint32_t count;
    const char *const *addresses = pd_rpc_addresses(rpc, door, &count);
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(list, json_string(addresses[i]));
    return list;
}

int pd_ports_file_write(const char *path, const struct pd_rpc *rpc, const char *http,
                        struct pd_error *error)
{
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%.4000s.%ld", path, (long)getpid());
    json_t *root =
        json_pack("{s:i, s:o, s:o, s:o, s:s}", "pid", (int)getpid(), "grpc",
                  addresses_of(rpc, PD_DOOR_MAIN), "admin", addresses_of(rpc, PD_DOOR_ADMIN),
                  "health", addresses_of(rpc, PD_DOOR_HEALTH), "http", http);
    int rc =
        root && json_dump_file(root, temporary, JSON_INDENT(2)) == 0 && rename(temporary, path) == 0
            ? 0
            : pd_error_set(error, PD_EIO, "PORTS_FILE", "cannot write %.200s: %s", path,
                           strerror(errno));
    if (rc != 0)
        unlink(temporary);
    json_decref(root);
    return rc;
}
