/* Errors of the whole house: a negative code for the program, a reason for machines, a text for
 * people.
 *
 * Functions return 0 (or a count) or one of the codes below. Where a caller will show the failure
 * to somebody, the function also fills a struct pd_error. Any thread; nothing is shared. */
#ifndef PD_BASE_ERR_H
#define PD_BASE_ERR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, value, what it means, the gRPC status it becomes on the wire */
#define PD_ERRORS(X)                                                              \
    X(PD_EINVAL, -1, "invalid argument", INVALID_ARGUMENT)                        \
    X(PD_ENOMEM, -2, "out of memory", RESOURCE_EXHAUSTED)                         \
    X(PD_ELIMIT, -3, "over a limit", RESOURCE_EXHAUSTED)                          \
    X(PD_EFULL, -4, "full", UNAVAILABLE)                                          \
    X(PD_EAGAIN, -5, "not yet", UNAVAILABLE)                                      \
    X(PD_EEND, -6, "past the end", OUT_OF_RANGE)                                  \
    X(PD_ENOTFOUND, -7, "not found", NOT_FOUND)                                   \
    X(PD_EEXIST, -8, "exists with another content", ALREADY_EXISTS)               \
    X(PD_EMISMATCH, -9, "does not agree with what is there", FAILED_PRECONDITION) \
    X(PD_EFENCED, -10, "superseded by a newer owner", ABORTED)                    \
    X(PD_ERANGE, -11, "out of range", OUT_OF_RANGE)                               \
    X(PD_ECORRUPT, -12, "damaged data", DATA_LOSS)                                \
    X(PD_EIO, -13, "input/output error", INTERNAL)                                \
    X(PD_EUNAVAIL, -14, "unavailable", UNAVAILABLE)                               \
    X(PD_ETIMEDOUT, -15, "deadline passed", DEADLINE_EXCEEDED)                    \
    X(PD_ECANCELED, -16, "cancelled", CANCELLED)                                  \
    X(PD_ECLOSED, -17, "closed", UNAVAILABLE)                                     \
    X(PD_EUNSUPPORTED, -18, "not supported", UNIMPLEMENTED)                       \
    X(PD_EDENIED, -19, "not allowed", PERMISSION_DENIED)                          \
    X(PD_EUNAUTH, -20, "not authenticated", UNAUTHENTICATED)                      \
    X(PD_EDEVICE, -21, "device error", INTERNAL)                                  \
    X(PD_EINTERNAL, -22, "internal error", INTERNAL)

enum pd_err {
#define X(name, value, text, status) name = value,
    PD_ERRORS(X)
#undef X
};

#define PD_MUST_CHECK __attribute__((warn_unused_result))

#define PD_REASON_MAX 40
#define PD_TEXT_MAX 480

/* What went wrong. `reason` is UPPER_SNAKE and stable (SEQ_GAP); `text` says what, where, what was
 * expected, what to do. */
struct pd_error {
    int code; /* PD_E*, 0 = none */
    char reason[PD_REASON_MAX];
    char text[PD_TEXT_MAX];
};

/* "PD_EINVAL" and "invalid argument"; an unknown code gives "PD_E?" and "unknown error". Never
 * NULL. */
const char *pd_err_name(int code);
const char *pd_err_text(int code);

/* Makes `text` valid UTF-8 in place: a last character that was cut goes, any other byte that is no
 * part of a character becomes '?'. What is on the wire in a protobuf string has to be UTF-8. */
void pd_text_make_utf8(char *text);

/* Fills *error (which may be NULL) and returns `code`, so that a failing path is one line: return
 * pd_error_set(...). Texts longer than the buffer are cut, and the text is UTF-8 whatever was put
 * into it. */
int pd_error_set(struct pd_error *error, int code, const char *reason, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#ifndef __cplusplus
/* What it returns, said where compilers and analysers see it: a path that fails is not one that
 * goes on. */
#define pd_error_set(error, code, ...)                        \
    ({                                                        \
        const int pd_code_ = (code);                          \
        (void)(pd_error_set)((error), pd_code_, __VA_ARGS__); \
        pd_code_;                                             \
    })
#endif

/* Puts "prefix: " before the text, once the code and reason are set below; returns error->code.
 * NULL is allowed (returns code). */
int pd_error_prefix(struct pd_error *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif

#endif
