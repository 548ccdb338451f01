/* grpc.reflection v1 and v1alpha: the two packages have the same messages under other names, so one
 * decoder serves both.
 *
 * Place in the flow: generic tools ask here what the server offers. Owning thread: the call's. One
 * request, one response, in order: the next request is read when the response is written. */
#include "proto/reflection.pb-c.h"
#include "server/rpc/arena.h"
#include "server/rpc/call.h"
#include "server/rpc/descriptor.h"

#include <stdio.h>
#include <string.h>

typedef Grpc__Reflection__V1__ServerReflectionRequest request_t;
typedef Grpc__Reflection__V1__ServerReflectionResponse response_t;

#define NAMES_MAX 64
#define ASKED(what) GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##what
#define ANSWER(what) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##what

/* One response in the making. */
struct reflection {
    struct pd_arena arena;
    struct pd_descriptor files[PD_DESCRIPTOR_FILES_MAX];
    size_t file_count;
    bool taken[PD_DESCRIPTOR_FILES_MAX];
    ProtobufCBinaryData list[PD_DESCRIPTOR_FILES_MAX];
    size_t list_count;
    Grpc__Reflection__V1__ServiceResponse *services[NAMES_MAX];
    size_t service_count;
    Grpc__Reflection__V1__FileDescriptorResponse file_response;
    Grpc__Reflection__V1__ListServiceResponse services_response;
    Grpc__Reflection__V1__ErrorResponse error;
    char text[300];
    response_t response;
};

static void take_import(void *ctx, const char *name);

/* The file, then what it imports, each once. */
static void take_file(struct reflection *reflection, size_t index)
{
    if (reflection->taken[index])
        return;
    reflection->taken[index] = true;
    reflection->list[reflection->list_count++] =
        (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)reflection->files[index].data,
                              .len = reflection->files[index].size_bytes};
    pd_descriptor_imports(reflection->files[index], take_import, reflection);
}

static void take_import(void *ctx, const char *name)
{
    struct reflection *reflection = ctx;

    for (size_t i = 0; i < reflection->file_count; i++)
        if (pd_descriptor_file_is(reflection->files[i], name))
            take_file(reflection, i);
}

static void answer_error(struct reflection *reflection, grpc_status_code code, const char *what,
                         const char *name)
{
    (void)snprintf(reflection->text, sizeof(reflection->text), "%s: %.200s", what, name);
    grpc__reflection__v1__error_response__init(&reflection->error);
    reflection->error.error_code = (int32_t)code;
    reflection->error.error_message = reflection->text;
    reflection->response.message_response_case = ANSWER(ERROR_RESPONSE);
    reflection->response.error_response = &reflection->error;
}

/* The file that has the name, or defines the symbol. */
static void answer_file(struct reflection *reflection, const char *name, bool is_symbol)
{
    for (size_t i = 0; i < reflection->file_count && reflection->list_count == 0; i++)
        if (is_symbol ? pd_descriptor_defines(reflection->files[i], name)
                      : pd_descriptor_file_is(reflection->files[i], name))
            take_file(reflection, i);
    if (reflection->list_count == 0) {
        answer_error(reflection, GRPC_STATUS_NOT_FOUND,
                     is_symbol ? "no such symbol" : "no such file", name);
        return;
    }
    grpc__reflection__v1__file_descriptor_response__init(&reflection->file_response);
    reflection->file_response.file_descriptor_proto = reflection->list;
    reflection->file_response.n_file_descriptor_proto = reflection->list_count;
    reflection->response.message_response_case = ANSWER(FILE_DESCRIPTOR_RESPONSE);
    reflection->response.file_descriptor_response = &reflection->file_response;
}

static void take_service(void *ctx, const char *name)
{
    struct reflection *reflection = ctx;

    if (reflection->service_count == NAMES_MAX)
        return;
    Grpc__Reflection__V1__ServiceResponse *service =
        pd_arena_take(&reflection->arena, sizeof(*service));
    grpc__reflection__v1__service_response__init(service);
    service->name = pd_arena_take(&reflection->arena, strlen(name) + 1);
    memcpy(service->name, name, strlen(name) + 1);
    reflection->services[reflection->service_count++] = service;
}

static void answer_services(struct reflection *reflection)
{
    for (size_t i = 0; i < reflection->file_count; i++)
        pd_descriptor_services(reflection->files[i], take_service, reflection);
    grpc__reflection__v1__list_service_response__init(&reflection->services_response);
    reflection->services_response.service = reflection->services;
    reflection->services_response.n_service = reflection->service_count;
    reflection->response.message_response_case = ANSWER(LIST_SERVICES_RESPONSE);
    reflection->response.list_services_response = &reflection->services_response;
}

static void answer(struct reflection *reflection, request_t *request)
{
    grpc__reflection__v1__server_reflection_response__init(&reflection->response);
    reflection->response.valid_host = request->host;
    reflection->response.original_request = request;
    reflection->file_count = pd_descriptor_files(reflection->files);
    switch (request->message_request_case) {
    case ASKED(FILE_BY_FILENAME):
        answer_file(reflection, request->file_by_filename, false);
        return;
    case ASKED(FILE_CONTAINING_SYMBOL):
        answer_file(reflection, request->file_containing_symbol, true);
        return;
    case ASKED(LIST_SERVICES):
        answer_services(reflection);
        return;
    case ASKED(FILE_CONTAINING_EXTENSION):
        answer_error(reflection, GRPC_STATUS_NOT_FOUND, "no extensions of",
                     request->file_containing_extension->containing_type);
        return;
    case ASKED(ALL_EXTENSION_NUMBERS_OF_TYPE):
        answer_error(reflection, GRPC_STATUS_NOT_FOUND, "no extensions of",
                     request->all_extension_numbers_of_type);
        return;
    default:
        answer_error(reflection, GRPC_STATUS_INVALID_ARGUMENT, "a request without a question", "");
        return;
    }
}

static void message(struct pd_call *call, grpc_byte_buffer *buffer)
{
    request_t *request = (void *)pd_message_unpack(
        call, &grpc__reflection__v1__server_reflection_request__descriptor, buffer);
    struct reflection reflection = {0};

    if (!request)
        return;
    answer(&reflection, request);
    call->hold_reads = true;
    (void)pd_call_send(call, &reflection.response.base);
    pd_arena_fini(&reflection.arena);
    grpc__reflection__v1__server_reflection_request__free_unpacked(request, NULL);
}

static void written(struct pd_call *call)
{
    call->hold_reads = false;
    pd_call_read(call);
}

/* No read is in flight while a response is written, so none is lost. */
static void half_close(struct pd_call *call)
{
    pd_call_finish(call);
}

static void stop(struct pd_call *call)
{
    pd_call_fail_draining(call);
}

#define REFLECTION(method_path)                                                        \
    {                                                                                  \
        .path = method_path, .call_bytes = sizeof(struct pd_call), .anyone = true,     \
        .message = message, .written = written, .half_close = half_close, .stop = stop \
    }

const struct pd_method pd_methods_reflection[] = {
    REFLECTION("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
    REFLECTION("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"),
    {0},
};
