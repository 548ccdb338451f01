/* One .safetensors file becomes one sample, with its media spans and named tensors.
 *
 *   tokens       int32 or int64 [n]; likewise, optional, labels [n] and loss_mask (U8 or BOOL) [n]
 *   any other    a named tensor: one element per sample, unless the metadata says otherwise
 *   metadata     `packd`, optional, a JSON object:
 *                  weight, key, group, version, merge
 *                  spans: [{view, offset, length, patches, grid: [t, h, w], t_scale}]
 *                  tensors: {NAME: {axis: token | ragged | sample,
 *                                   unit: sample | span | patch | run, run_counts: [...],
 *                                   views: [...], align: target | input,
 *                                   loss: true, pad_mask: NAME}}
 *
 * A unit makes a tensor ragged. The first dimension of token and ragged tensors counts elements;
 * all of a sample tensor's are one element. Pure but for the file; one thread. */
#ifndef PD_CLIENT_READER_MEDIA_H
#define PD_CLIENT_READER_MEDIA_H

#include "client/include/packd.h"

struct pd_media_file;

/* Loads `path`; *sample points into *file and is valid until pd_media_file_free. PACKD_EINVAL
 * BAD_RECORD: the text says which field, what was found and expected; PACKD_EIO, PACKD_ELIMIT,
 * PACKD_ENOMEM. Nothing to free after a failure. */
int pd_media_file_load(const char *path, struct pd_media_file **file, struct packd_sample *sample,
                       struct packd_error *error);
uint64_t pd_media_file_bytes(const struct pd_media_file *file); /* of its arrays */
void pd_media_file_free(struct pd_media_file *file);            /* NULL is allowed */

#endif
