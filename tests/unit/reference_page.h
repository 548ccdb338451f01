/* A page under docs/ that the code prints, held against what it prints. */
#ifndef PD_TESTS_UNIT_REFERENCE_PAGE_H
#define PD_TESTS_UNIT_REFERENCE_PAGE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Fails the test where `path` is missing or is not what `print` writes; `name` is the page's to
 * //server:reference. */
static inline void expect_current(const char *path, const char *name, int (*print)(FILE *out))
{
    char *page = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&page, &size);
    assert_non_null(out);
    assert_int_equal(print(out), 0);
    fclose(out);
    char *kept = calloc(1, size + 2);
    assert_non_null(kept);
    FILE *file = fopen(path, "rb");
    bool there = file != NULL;
    size_t got = there ? fread(kept, 1, size + 1, file) : 0;
    if (there)
        fclose(file);
    if (got != size || memcmp(kept, page, size) != 0)
        fail_msg("%s is %s: bazel run //server:reference -- %s > %s", path,
                 there ? "stale" : "missing", name, path);
    free(kept);
    free(page);
}

#endif
