/* Assertions that stay on in every build, for programmer errors only: never for bytes from wire,
 * disk or device.
 *
 * PD_CHECK(ok) panics with the place and the text of the condition. pd_panic() writes one line to
 * stderr, calls the hook (which prints version, thread and current objects) and aborts. Any thread.
 */
#ifndef PD_BASE_CHECK_H
#define PD_BASE_CHECK_H

#include <stddef.h>
#include <stdint.h>

_Noreturn void pd_panic(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Called once before abort(); set at start-up, before threads exist. */
void pd_panic_set_hook(void (*hook)(void));

#define PD_CHECK(ok)                                               \
    do {                                                           \
        if (__builtin_expect(!(ok), 0))                            \
            pd_panic(__FILE__, __LINE__, "check failed: %s", #ok); \
    } while (0)

/* The struct that holds `member` at `pointer`. */
#define PD_CONTAINER_OF(pointer, type, member) \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

#define PD_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* A magic number as the first field turns a stale pointer into a named crash. */
#define PD_MAGIC_CHECK(object, magic_value) PD_CHECK((object) && (object)->magic == (magic_value))

#endif
