/* Errors of the public interface: filling them, and what a gRPC status becomes. Pure, any thread.
 */
#ifndef PD_CLIENT_LIB_ERROR_H
#define PD_CLIENT_LIB_ERROR_H

#include "base/err.h"
#include "client/include/packd.h"

/* Fills *error (NULL is allowed) and returns `code`. */
int pd_client_error(struct packd_error *error, int code, const char *reason, const char *format,
                    ...) __attribute__((format(printf, 4, 5)));
/* As with pd_error_set: the result is the code. */
#define pd_client_error(error, code, ...)                        \
    ({                                                           \
        const int pd_code_ = (code);                             \
        (void)(pd_client_error)((error), pd_code_, __VA_ARGS__); \
        pd_code_;                                                \
    })
/* Puts "prefix: " in front of a filled text. */
void pd_client_error_prefix(struct packd_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same from an error of base/. */
int pd_client_error_from(struct packd_error *error, const struct pd_error *from);
int pd_client_code_of_grpc(int grpc_code);

#endif
