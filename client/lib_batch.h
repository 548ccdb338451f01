/* A batch on its way in: header bytes, then payload bytes straight to their place, then the arrays
 * that did not travel, then the digest of every array.
 *
 *   begin -> header bytes ... -> (header complete: parsed, checked, memory taken)
 *         -> payload bytes ... -> finish: derive, verify -> struct packd_batch
 *
 * Trusts nothing that comes: every size, offset, index and name is checked before it is used. One
 * thread until finish; then immutable but for the payload, which is the user's. */
#ifndef PD_CLIENT_LIB_BATCH_H
#define PD_CLIENT_LIB_BATCH_H

#include "base/bytes.h"
#include "client/include/packd.h"
#include "client/lib_pool.h"
#include "proto/packd.pb-c.h"

#define PD_HEADER_MAX_BYTES (64u << 20)

struct pd_client_batch {
    uint32_t magic;
    struct packd_batch view;
    struct pd_client_batch *next; /* the job's list */
    struct pd_pool *pool;         /* borrowed: the payload holds a reference */
    size_t payload_capacity;
    struct pd_buf header;    /* owned */
    uint64_t header_bytes;   /* expected */
    uint64_t expected_bytes; /* of the payload, on the wire */
    uint64_t received_bytes;
    uint64_t payload_max_bytes;      /* refuse more */
    Packd__V1__BatchHeader *parsed;  /* owned; NULL until the header is complete */
    Packd__V1__Delivery *delivery;   /* owned */
    struct packd_array *arrays;      /* owned */
    struct packd_loss_total *losses; /* owned: of the batch, then of the step */
};

/* Takes what BatchBegin says; *begin keeps its memory but for `delivery`, which is taken out of it.
 * Errors of all three: PACKD_ENOMEM; PACKD_ECORRUPT with reason BATCH_HEADER, BATCH_PAYLOAD, DERIVE
 * or DIGEST. */
int pd_client_batch_begin(struct pd_pool *pool, Packd__V1__BatchBegin *begin,
                          uint64_t payload_max_bytes, struct pd_client_batch **out,
                          struct packd_error *error);
bool pd_client_batch_header_complete(const struct pd_client_batch *batch);
int pd_client_batch_header(struct pd_client_batch *batch, const void *data, size_t bytes,
                           struct packd_error *error);
/* Room for the next `bytes` of the payload, or NULL (with error) where that is too much. */
uint8_t *pd_client_batch_room(struct pd_client_batch *batch, size_t bytes,
                              struct packd_error *error);
/* All bytes are here. */
bool pd_client_batch_complete(const struct pd_client_batch *batch);
int pd_client_batch_finish(struct pd_client_batch *batch, struct packd_error *error);
void pd_client_batch_free(struct pd_client_batch *batch);

/* Rebuilds the arrays marked derivable, in place (lib_derive.c). PACKD_ECORRUPT, PACKD_ENOMEM. */
int pd_client_derive(const struct packd_batch *batch, struct packd_error *error);

#endif
