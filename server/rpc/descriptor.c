/* Walks serialised descriptors. descriptor.proto itself is not compiled in: its few fields that
 * matter here are read by number.
 *
 * Place in the flow: under reflection. The bytes come from our own build, and are read as carefully
 * as any others. Pure. */
#include "server/rpc/descriptor.h"

#include <stdio.h>
#include <string.h>

#define NAME_MAX_BYTES 256

/* Field numbers of descriptor.proto. */
enum {
    SET_FILE = 1,
    FILE_NAME = 1,
    FILE_PACKAGE = 2,
    FILE_IMPORT = 3,
    FILE_MESSAGE = 4,
    FILE_ENUM = 5,
    FILE_SERVICE = 6,
    ANY_NAME = 1,
    MESSAGE_FIELD = 2,
    MESSAGE_NESTED = 3,
    MESSAGE_ENUM = 4,
    ENUM_VALUE = 2,
    SERVICE_METHOD = 2,
};

/* The next length-delimited field; others are passed over. False at the end. */
static bool next_field(struct pd_reader *reader, uint32_t *field, struct pd_descriptor *content)
{
    while (pd_reader_left(reader) > 0 && !reader->failed) {
        uint64_t tag = pd_reader_varint(reader);
        if (tag % 8 == 2) {
            content->size_bytes = (size_t)pd_reader_varint(reader);
            content->data = pd_reader_bytes(reader, content->size_bytes);
            *field = (uint32_t)(tag >> 3);
            return content->data != NULL;
        }
        if (tag % 8 == 0)
            (void)pd_reader_varint(reader);
        else
            (void)pd_reader_bytes(reader, tag % 8 == 1 ? 8 : 4);
    }
    return false;
}

/* The first field with this number. */
static struct pd_descriptor find(struct pd_descriptor in, uint32_t wanted)
{
    struct pd_reader reader = pd_reader_of(in.data, in.size_bytes);
    struct pd_descriptor content;
    uint32_t field;

    while (next_field(&reader, &field, &content))
        if (field == wanted)
            return content;
    return (struct pd_descriptor){.data = (const uint8_t *)""};
}

size_t pd_descriptor_files(struct pd_descriptor *files)
{
    struct pd_reader reader = pd_reader_of(pd_descriptor_set, pd_descriptor_set_bytes);
    size_t count = 0;
    uint32_t field;

    while (count < PD_DESCRIPTOR_FILES_MAX && next_field(&reader, &field, &files[count]))
        if (field == SET_FILE)
            count++;
    return count;
}

static bool equals(struct pd_descriptor text, const char *name)
{
    return strlen(name) == text.size_bytes && memcmp(text.data, name, text.size_bytes) == 0;
}

bool pd_descriptor_file_is(struct pd_descriptor file, const char *name)
{
    return equals(find(file, FILE_NAME), name);
}

/* What of `symbol` follows "prefix.", "" where it is the prefix itself, NULL where it does not
 * begin with it. */
static const char *behind(const char *symbol, struct pd_descriptor prefix)
{
    if (prefix.size_bytes == 0)
        return symbol;
    if (strncmp(symbol, (const char *)prefix.data, prefix.size_bytes) != 0)
        return NULL;
    symbol += prefix.size_bytes;
    return *symbol == '.' ? symbol + 1 : *symbol == '\0' ? symbol : NULL;
}

/* Whether one of the fields numbered `wanted` has the name. */
static bool has_named(struct pd_descriptor in, uint32_t wanted, const char *name)
{
    struct pd_reader reader = pd_reader_of(in.data, in.size_bytes);
    struct pd_descriptor content;
    uint32_t field;

    while (next_field(&reader, &field, &content))
        if (field == wanted && equals(find(content, ANY_NAME), name))
            return true;
    return false;
}

/* Numbers of the fields that hold messages, enums and services, in a file or in a message
 * (services: 0). */
struct scope {
    uint32_t message, enumeration, service;
};

static bool scope_defines(struct pd_descriptor in, struct scope scope, const char *name)
{
    struct pd_reader reader = pd_reader_of(in.data, in.size_bytes);
    struct pd_descriptor content;
    uint32_t field;

    while (next_field(&reader, &field, &content)) {
        if (field != scope.message && field != scope.enumeration &&
            (field != scope.service || field == 0))
            continue;
        if (field == scope.enumeration && has_named(content, ENUM_VALUE, name))
            return true; /* values live in the scope around their enum */
        const char *rest = behind(name, find(content, ANY_NAME));
        if (!rest)
            continue;
        if (*rest == '\0' || (field == scope.service && has_named(content, SERVICE_METHOD, rest)))
            return true;
        if (field == scope.message &&
            (has_named(content, MESSAGE_FIELD, rest) ||
             scope_defines(content, (struct scope){MESSAGE_NESTED, MESSAGE_ENUM, 0}, rest)))
            return true;
    }
    return false;
}

bool pd_descriptor_defines(struct pd_descriptor file, const char *symbol)
{
    const char *name = behind(symbol, find(file, FILE_PACKAGE));

    return name && *name != '\0' &&
           scope_defines(file, (struct scope){FILE_MESSAGE, FILE_ENUM, FILE_SERVICE}, name);
}

/* A service's name has the package before it, an import is a name already. */
static void each_name(struct pd_descriptor file, uint32_t wanted,
                      void (*found)(void *ctx, const char *name), void *ctx)
{
    struct pd_reader reader = pd_reader_of(file.data, file.size_bytes);
    struct pd_descriptor content, package = find(file, FILE_PACKAGE);
    char name[NAME_MAX_BYTES];
    uint32_t field;

    while (next_field(&reader, &field, &content)) {
        if (field != wanted)
            continue;
        if (wanted == FILE_SERVICE) {
            content = find(content, ANY_NAME);
            (void)snprintf(name, sizeof(name), "%.*s.%.*s", (int)package.size_bytes, package.data,
                           (int)content.size_bytes, content.data);
        } else {
            (void)snprintf(name, sizeof(name), "%.*s", (int)content.size_bytes, content.data);
        }
        found(ctx, name);
    }
}

void pd_descriptor_imports(struct pd_descriptor file, void (*found)(void *ctx, const char *name),
                           void *ctx)
{
    each_name(file, FILE_IMPORT, found, ctx);
}

void pd_descriptor_services(struct pd_descriptor file, void (*found)(void *ctx, const char *name),
                            void *ctx)
{
    each_name(file, FILE_SERVICE, found, ctx);
}
