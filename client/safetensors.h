/* safetensors files: named arrays and string metadata, as batches are written to disk and read
 * back.
 *
 *   | u64 header bytes | JSON header, padded with spaces | array bytes, one after the other |
 *
 * The writer is deterministic: the same arrays and metadata in the same order give the same file.
 * The reader believes nothing: sizes, offsets, overlaps, holes, dtypes, nesting and numbers are
 * checked before anything is handed out. One owner per object; any thread. */
#ifndef PD_CLIENT_SAFETENSORS_H
#define PD_CLIENT_SAFETENSORS_H

#include "base/err.h"
#include "packer/batch.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define PD_SAFETENSORS_RANK_MAX 8
#define PD_SAFETENSORS_HEADER_MAX (100u << 20) /* bytes of JSON, the limit of other readers */
#define PD_SAFETENSORS_TENSORS_MAX 65536
#define PD_SAFETENSORS_NAME_MAX 1024 /* bytes of a name or a metadata key */

struct pd_tensor {
    const char *name; /* UTF-8, not "__metadata__" */
    enum pd_dtype dtype;
    uint32_t rank;
    uint64_t shape[PD_SAFETENSORS_RANK_MAX];
    const void *data;    /* little-endian, row-major */
    uint64_t size_bytes; /* product of the shape times the dtype's size */
};

struct pd_metadata {
    const char *key;
    const char *value; /* UTF-8, ends at the first 0 byte */
};

/* What a file holds; in file order when read. Arrays of the caller, or of the pd_safetensors read.
 */
struct pd_safetensors_content {
    const struct pd_tensor *tensors;
    size_t tensor_count;
    const struct pd_metadata *metadata;
    size_t metadata_count;
};

/* Writes the content to `file`: arrays of larger elements first (else in the given order), so that
 * each is aligned to its element, and the first at a multiple of 64 bytes. Buffered as `file` is;
 * does not flush or close it. PD_EINVAL: BAD_NAME (empty, too long, twice, not UTF-8, reserved),
 * BAD_DTYPE, BAD_SHAPE (size_bytes is not the shape's); PD_ELIMIT: too many tensors or too large a
 * header; PD_ENOMEM; PD_EIO: WRITE_FAILED, the system's text. */
int pd_safetensors_write(FILE *file, const struct pd_safetensors_content *content,
                         struct pd_error *error) PD_MUST_CHECK;

/* The same to `path`, through a temporary name beside it and rename(2): `path` either stays as it
 * was or is the whole new file. Not synced: it survives the end of the process, not a power cut.
 * Leaves no temporary file behind on an error. */
int pd_safetensors_save(const char *path, const struct pd_safetensors_content *content,
                        struct pd_error *error) PD_MUST_CHECK;

struct pd_safetensors;

/* Reads a file image. `data` is borrowed until free, and tensors point into it, at whatever
 * alignment it gives them. PD_ECORRUPT, with the place in the text: TRUNCATED (shorter than its
 * header says), BAD_HEADER (not the JSON of the format, duplicate or unknown keys), BAD_SHAPE
 * (numbers out of range, size against shape), BAD_OFFSETS (outside the data, overlaps, holes, bytes
 * behind the last array); PD_EUNSUPPORTED: BAD_DTYPE (an element type packd has no use for);
 * PD_ELIMIT; PD_ENOMEM. */
int pd_safetensors_parse(const void *data, size_t size, struct pd_safetensors **file,
                         struct pd_error *error) PD_MUST_CHECK;

/* Reads the file at `path` into memory of its own (64-byte aligned) and parses it. Also
 * PD_ENOTFOUND; PD_EIO; PD_ELIMIT: larger than `bytes_max`. */
int pd_safetensors_load(const char *path, uint64_t bytes_max, struct pd_safetensors **file,
                        struct pd_error *error) PD_MUST_CHECK;

/* Borrowed until free. */
const struct pd_safetensors_content *pd_safetensors_content(const struct pd_safetensors *file);
/* NULL where there is none. */
const struct pd_tensor *pd_safetensors_find(const struct pd_safetensors *file, const char *name);
const char *pd_safetensors_metadata(const struct pd_safetensors *file, const char *key);
void pd_safetensors_free(struct pd_safetensors *file); /* NULL is allowed */

#endif
