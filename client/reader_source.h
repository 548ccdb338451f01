/* Bytes of one input: a file, a .gz file, or stdin. One thread. */
#ifndef PD_CLIENT_READER_SOURCE_H
#define PD_CLIENT_READER_SOURCE_H

#include "client/include/packd.h"

#include <signal.h>
#include <sys/types.h>
#include <zlib.h>

struct pd_source {
    const char *path; /* borrowed, for texts; NULL: closed */
    int fd;           /* of a plain file or stdin */
    gzFile gz;        /* NULL: not compressed */
    /* set: a read that a signal broke off is not repeated; may be NULL */
    const volatile sig_atomic_t *stop;
};

/* PACKD_EIO. `path` must live until close. */
int pd_source_open(struct pd_source *source, const char *path, struct packd_error *error);
/* `name` stands in texts and must live until close. */
void pd_source_open_stdin(struct pd_source *source, const char *name);
/* What is there, at most `size` bytes; 0 at the end; PACKD_EIO (a damaged .gz, too),
 * PACKD_ECANCELED. */
ssize_t pd_source_read(struct pd_source *source, void *data, size_t size,
                       struct packd_error *error);
/* A closed source is left alone; stdin stays open. Keeps `stop`. */
void pd_source_close(struct pd_source *source);

#endif
