/* See scratch.h. The exit handler judges by the exit status, which is the number of failed tests
 * of a cmocka group; a child that was forked leaves the directory to its parent. */
#include "tests/unit/scratch.h"

#include "base/check.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define OPEN_DIRS_MAX 8

static struct {
    char path[256];
    pid_t owner;
} scratch;

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info, (void)kind;
    return place->level > 0 ? remove(path) : 0;
}

void scratch_clear(void)
{
    PD_CHECK(nftw(scratch_dir(), remove_one, OPEN_DIRS_MAX, FTW_DEPTH | FTW_PHYS) == 0);
}

static void leave(int status, void *unused)
{
    (void)unused;
    if (scratch.owner != getpid())
        return;
    if (status != 0) {
        fprintf(stderr, "what the test wrote is left in %s\n", scratch.path);
        return;
    }
    scratch_clear();
    PD_CHECK(rmdir(scratch.path) == 0);
}

const char *scratch_dir(void)
{
    if (scratch.owner)
        return scratch.path;
    const char *base = getenv("TEST_TMPDIR");
    int length =
        snprintf(scratch.path, sizeof scratch.path, "%s/packd-XXXXXX", base ? base : "/tmp");
    PD_CHECK(length > 0 && (size_t)length < sizeof scratch.path && mkdtemp(scratch.path));
    scratch.owner = getpid();
    PD_CHECK(on_exit(leave, NULL) == 0);
    return scratch.path;
}
