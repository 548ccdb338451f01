/* Reading bytes, packed or not.
 *
 * read(2) and not stdio: of a pipe it gives what is there instead of waiting for a full buffer, so
 * records are pushed as they come. zlib does the same for .gz files, and checks their sums. */
#include "client/reader_source.h"

#include "client/lib_error.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define GZ_BUFFER_BYTES (128 * 1024)

static int failed(const struct pd_source *source, const char *why, struct packd_error *error)
{
    return pd_client_error(error, PACKD_EIO, "INPUT", "%s: %s", source->path, why);
}

static bool is_gz(const char *path)
{
    size_t length = strlen(path);
    return length > 3 && strcmp(path + length - 3, ".gz") == 0;
}

int pd_source_open(struct pd_source *source, const char *path, struct packd_error *error)
{
    source->path = path;
    source->gz = NULL;
    source->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (source->fd >= 0 && is_gz(path)) {
        source->gz = gzdopen(source->fd, "rb");
        if (source->gz)
            gzbuffer(source->gz, GZ_BUFFER_BYTES);
        else
            close(source->fd);
        source->fd = source->gz ? source->fd : -1;
        errno = ENOMEM;
    }
    if (source->fd >= 0)
        return 0;
    failed(source, strerror(errno), error);
    source->path = NULL;
    return PACKD_EIO;
}

void pd_source_open_stdin(struct pd_source *source, const char *name)
{
    source->path = name;
    source->fd = STDIN_FILENO;
    source->gz = NULL;
}

static ssize_t read_gz(struct pd_source *source, void *data, size_t size, struct packd_error *error)
{
    int got = gzread(source->gz, data, (unsigned)size), code = Z_OK;
    gzerror(source->gz, &code);
    if (code == Z_ERRNO)
        return failed(source, strerror(errno), error);
    if (code == Z_BUF_ERROR)
        return failed(source, "the compressed data end too early", error);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END))
        return failed(source, "the compressed data are damaged", error);
    return got;
}

ssize_t pd_source_read(struct pd_source *source, void *data, size_t size, struct packd_error *error)
{
    ssize_t got;
    if (source->gz)
        return read_gz(source, data, size, error);
    do
        got = read(source->fd, data, size);
    while (got < 0 && errno == EINTR && !(source->stop && *source->stop));
    if (got < 0 && errno == EINTR)
        return pd_client_error(error, PACKD_ECANCELED, "INTERRUPTED", "%s: interrupted",
                               source->path);
    return got < 0 ? failed(source, strerror(errno), error) : got;
}

void pd_source_close(struct pd_source *source)
{
    if (!source->path)
        return;
    if (source->gz)
        gzclose_r(source->gz);
    else if (source->fd > STDIN_FILENO)
        close(source->fd);
    source->path = NULL;
    source->gz = NULL;
    source->fd = -1;
}
