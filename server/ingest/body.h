/* Reads the int32 columns of a block's body where they lie: any cut of the pieces, also inside a
 * token. Pure, any thread; internal to ingest. */
#ifndef PD_SERVER_INGEST_BODY_H
#define PD_SERVER_INGEST_BODY_H

#include "server/block.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct pd_body {
    const struct pd_piece *pieces;
    uint32_t piece_count;
    uint32_t piece;
    size_t in_piece; /* bytes read of pieces[piece] */
};

/* At most `size` bytes in one run, passed over; *size_out of them, 0 only at the end of the pieces.
 */
static inline const uint8_t *pd_body_run(struct pd_body *body, size_t size, size_t *size_out)
{
    while (body->piece < body->piece_count &&
           body->in_piece == body->pieces[body->piece].size_bytes) {
        body->piece++;
        body->in_piece = 0;
    }
    if (body->piece == body->piece_count) {
        *size_out = 0;
        return NULL;
    }
    const struct pd_piece *piece = &body->pieces[body->piece];
    size_t left = piece->size_bytes - body->in_piece;
    const uint8_t *data = piece->data + body->in_piece;
    *size_out = size < left ? size : left;
    body->in_piece += *size_out;
    return data;
}

static inline void pd_body_skip(struct pd_body *body, uint64_t size)
{
    size_t run = 1;

    while (size > 0 && run > 0) {
        (void)pd_body_run(body, size < SIZE_MAX ? (size_t)size : SIZE_MAX, &run);
        size -= run;
    }
}

/* The next int32; 0 behind the end. */
static inline int32_t pd_body_i32(struct pd_body *body)
{
    uint8_t bytes[4] = {0};
    size_t run;
    const uint8_t *data = pd_body_run(body, 4, &run);
    int32_t value;

    if (run == 4) {
        memcpy(&value, data, 4);
        return value;
    }
    for (size_t have = 0; run > 0; data = pd_body_run(body, 4 - have, &run)) {
        memcpy(bytes + have, data, run);
        have += run;
        if (have == 4)
            break;
    }
    memcpy(&value, bytes, 4);
    return value;
}

#endif
