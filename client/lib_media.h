/* Media spans and named tensors of a block under construction.
 *
 *   head:  spans (one column per field), the table of tensors with their counts
 *   body:  | tensor 0, all samples | tensor 1 ... |   behind tokens and labels, never joined
 *
 * The first sample that has spans or tensors makes it; samples before have none of either. Token
 * and sample tensors are the same for all samples of a block, those per span or patch for all that
 * have spans; other ragged ones may be lacking. Owner's thread, with its block. */
#ifndef PD_CLIENT_LIB_MEDIA_H
#define PD_CLIENT_LIB_MEDIA_H

#include "base/bytes.h"
#include "client/include/packd.h"
#include "proto/packd.pb-c.h"

#define PD_CLIENT_TENSORS_MAX 64
#define PD_CLIENT_VIEWS_MAX 64

struct pd_client_media;

/* What is wrong with a sample's spans and tensors whatever the block and the feed: PACKD_EINVAL
 * BAD_SPAN, BAD_TENSOR, BAD_NAME; PACKD_ELIMIT TOO_MANY_TENSORS. The server checks the rest. */
int pd_client_media_check(const struct packd_sample *sample, struct packd_error *error);
/* Body bytes of the sample's tensors, of a checked sample. */
size_t pd_client_media_bytes(const struct packd_sample *sample);
/* What the head grows by at most; `media` NULL: the sample is the block's first. */
size_t pd_client_media_head_bytes(const struct pd_client_media *media,
                                  const struct packd_sample *sample);
/* Whether a checked sample may join a block of `count` samples with this media (NULL: none yet). */
bool pd_client_media_joins(const struct pd_client_media *media, uint32_t count,
                           const struct packd_sample *sample);
/* Copies spans and tensors of the sample that becomes number `count` of its block; makes *media
 * where that is needed. PACKD_ENOMEM: *media is as it was, or empty. */
int pd_client_media_add(struct pd_client_media **media, uint32_t count,
                        const struct packd_sample *sample);
/* Takes back the last add, for a block that could not take the sample otherwise. */
void pd_client_media_undo(struct pd_client_media *media);
/* Points the head's fields into *media (NULL: leaves them), which must live until the head is
 * packed; `count` samples. */
void pd_client_media_head(struct pd_client_media *media, uint32_t count,
                          Packd__V1__BlockHead *head);
/* The body's columns: how many, and each of them. NULL has none. */
size_t pd_client_media_columns(const struct pd_client_media *media);
const struct pd_buf *pd_client_media_column(const struct pd_client_media *media, size_t column);
size_t pd_client_media_body_bytes(const struct pd_client_media *media);
void pd_client_media_free(struct pd_client_media *media); /* NULL is allowed */

#endif
