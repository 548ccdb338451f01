/* A finished batch, as serve publishes it: immutable, reference-counted, dead when the last reader
 * (a waiter, a gRPC slice) lets go. */
#ifndef PD_SERVER_READY_BATCH_H
#define PD_SERVER_READY_BATCH_H

#include "packer/batch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pd_batch_key {
    uint32_t feed_index, job_id;
    uint64_t generation;
    uint64_t step;
    uint32_t micro, dp_rank;
};

/* A finished batch. Immutable after publish. */
struct pd_ready_batch {
    struct pd_batch_key key;
    struct pd_batch batch;
    uint8_t *payload; /* 64-byte aligned, batch.payload_bytes */
    uint8_t *header;  /* the serialised deterministic BatchHeader: byte-identical for every build */
    size_t header_bytes;
    uint64_t saved_positions; /* against width_bound */
    uint64_t built_ns;        /* monotonic: time it took to build and check */
    uint64_t checked_ns;      /* of it: the structural check */
    /* delivery part */
    /* backend of the attention probe: "cpu", "cuda", or "" where it did not run */
    char validator[8];
    bool probed;
    uint32_t builds;        /* 1; 2 where the first build failed a check */
    uint64_t built_unix_ns; /* wall clock, when it was published */
};

void pd_ready_batch_ref(struct pd_ready_batch *batch);
/* Any thread, also inside gRPC's slice destroy. */
void pd_ready_batch_unref(struct pd_ready_batch *batch);

#endif
