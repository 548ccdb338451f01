/* A block of samples under construction, and on its way: the columnar form of the wire contract.
 *
 *   head:  first_seq, lengths, mask runs, weights, keys, groups, versions, spans, tensor table
 *          (protobuf, once sealed)
 *   body:  | tokens of all samples | labels of all samples | tensor 0 | tensor 1 ... |
 *          (never joined: pieces point into the columns)
 *
 * A column that no sample needs stays absent. A block holds samples that all have labels, or none.
 * Reference-counted: gRPC holds one for every slice in flight. Building: owner's thread; ref and
 * unref: any. */
#ifndef PD_CLIENT_LIB_BLOCK_H
#define PD_CLIENT_LIB_BLOCK_H

#include "base/bytes.h"
#include "client/include/packd.h"
#include "client/lib_media.h"
#include "client/lib_rpc.h"

#include <stdatomic.h>

struct pd_client_block {
    struct pd_client_block *next; /* the owner's list */
    atomic_uint refs;
    uint64_t first_seq;
    uint32_t count;
    bool has_labels, has_masks, has_weights, has_keys, has_groups, has_versions;
    struct pd_buf tokens, labels;                  /* int32 */
    struct pd_buf lengths, mask_counts, mask_runs; /* uint32 */
    struct pd_buf weights;                         /* float */
    struct pd_buf key_sizes, key_data;             /* uint32; bytes */
    struct pd_buf group_sizes, group_data;
    struct pd_buf versions;        /* uint64 */
    struct pd_client_media *media; /* NULL: no sample has spans or tensors */
    size_t head_bound;             /* the serialized head is no longer than this */
    struct pd_buf head;            /* serialized, once sealed */
    uint64_t opened_ns;            /* when the first sample came */
};

struct pd_client_limits {
    uint64_t piece_bytes, head_bytes, block_bytes, sample_bytes, block_samples;
};

/* NULL: out of memory. One reference, the caller's. */
struct pd_client_block *pd_client_block_new(uint64_t first_seq, bool has_labels);
void pd_client_block_unref(void *block);

/* What is wrong with a sample whatever the block: PACKD_EINVAL (EMPTY_SAMPLE, BAD_WEIGHT,
 * KEY_TOO_LONG), PACKD_ELIMIT (TOO_LARGE, HEAD_TOO_LARGE), and what pd_client_media_check says. */
int pd_client_sample_check(const struct packd_sample *sample, const struct pd_client_limits *limits,
                           struct packd_error *error);
/* Bytes the sample adds to body and buffers, for accounting. */
size_t pd_client_sample_bytes(const struct packd_sample *sample);
/* Whether a checked sample may join: labels agree and no limit is passed; target_bytes closes a
 * block. */
bool pd_client_block_fits(const struct pd_client_block *block, const struct packd_sample *sample,
                          const struct pd_client_limits *limits, size_t target_bytes);
/* Copies the sample in. PACKD_ENOMEM: the block is as it was. */
int pd_client_block_add(struct pd_client_block *block, const struct packd_sample *sample);
/* Writes the head. PACKD_ENOMEM. After it nothing is added. */
int pd_client_block_seal(struct pd_client_block *block);

size_t pd_client_block_body_bytes(const struct pd_client_block *block);
/* Bytes of memory it accounts for. */
size_t pd_client_block_cost(const struct pd_client_block *block);

/* The message that carries body bytes [offset, offset + piece): the first one (offset 0) with the
 * head. Fills at most PD_RPC_PARTS_MAX parts, whose memory belongs to the block (each took a
 * reference) but for prefix[64], which is copied by the write. Returns their number. */
size_t pd_client_block_message(struct pd_client_block *block, size_t offset, size_t piece,
                               uint8_t prefix[64], struct pd_rpc_part parts[PD_RPC_PARTS_MAX]);

#endif
