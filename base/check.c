/* Panic: one line, the hook, abort. Uses only write-like calls so that it works on a damaged heap.
 */
#include "base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static void (*panic_hook)(void);

void pd_panic_set_hook(void (*hook)(void))
{
    panic_hook = hook;
}

void pd_panic(const char *file, int line, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "packd panic %s:%d: %s\n", file, line, text);
    void (*hook)(void) = panic_hook;
    panic_hook = NULL;
    if (hook)
        hook();
    abort();
}
