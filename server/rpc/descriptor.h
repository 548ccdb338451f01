/* The descriptors of everything in proto/, embedded at build time, and how to find things in them.
 * Immutable; any thread. */
#ifndef PD_SERVER_RPC_DESCRIPTOR_H
#define PD_SERVER_RPC_DESCRIPTOR_H

#include "base/bytes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A serialised FileDescriptorSet; made by the build. */
extern const unsigned char pd_descriptor_set[];
extern const size_t pd_descriptor_set_bytes;

#define PD_DESCRIPTOR_FILES_MAX 32

/* A serialised FileDescriptorProto inside the set. */
struct pd_descriptor {
    const uint8_t *data;
    size_t size_bytes;
};

/* All files, at most PD_DESCRIPTOR_FILES_MAX; returns how many. */
size_t pd_descriptor_files(struct pd_descriptor *files);
bool pd_descriptor_file_is(struct pd_descriptor file, const char *name);
/* Whether the file defines a service, method, message, field, enum or enum value with this full
 * name. */
bool pd_descriptor_defines(struct pd_descriptor file, const char *symbol);
/* Calls found for each import and each service (full name) of the file. */
void pd_descriptor_imports(struct pd_descriptor file, void (*found)(void *ctx, const char *name),
                           void *ctx);
void pd_descriptor_services(struct pd_descriptor file, void (*found)(void *ctx, const char *name),
                            void *ctx);

#endif
