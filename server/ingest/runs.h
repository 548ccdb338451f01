/* Loss masks as runs: reading what was pushed, writing what the log keeps. Internal to ingest.
 *
 * Both alternate off, on, off, ... starting with off. As kept: no entries = on everywhere, a last
 * off run is left out (unless it is the only one). */
#ifndef PD_SERVER_INGEST_RUNS_H
#define PD_SERVER_INGEST_RUNS_H

#include "base/bytes.h"

#include <stdbool.h>
#include <stdint.h>

/* The runs of many samples, one after the other, in host order. Zeroed memory is empty. */
struct pd_loss_runs_buf {
    struct pd_buf entries; /* uint32_t */
    size_t start_bytes;    /* where the sample that is being written begins */
    bool on;               /* the run that is open */
    uint32_t length_tokens;
};

static inline void pd_loss_runs_begin(struct pd_loss_runs_buf *runs)
{
    runs->start_bytes = runs->entries.size_bytes;
    runs->on = false;
    runs->length_tokens = 0;
}

static inline void pd_loss_runs_add(struct pd_loss_runs_buf *runs, bool on, uint32_t length)
{
    if (length > 0 && on != runs->on) {
        pd_buf_put(&runs->entries, &runs->length_tokens, sizeof(runs->length_tokens));
        runs->on = on;
        runs->length_tokens = 0;
    }
    runs->length_tokens += length;
}

/* Forgets what was added since begin. */
static inline void pd_loss_runs_undo(struct pd_loss_runs_buf *runs)
{
    if (!runs->entries.failed)
        runs->entries.size_bytes = runs->start_bytes;
}

static inline void pd_loss_runs_end(struct pd_loss_runs_buf *runs)
{
    size_t written = runs->entries.size_bytes - runs->start_bytes;
    uint32_t first = 1;

    if (runs->entries.failed)
        return;
    if (written == sizeof(first))
        memcpy(&first, runs->entries.data + runs->start_bytes, sizeof(first));
    if (runs->on && written == sizeof(first) && first == 0)
        pd_loss_runs_undo(runs); /* {0, all} */
    else if (runs->on || written == 0)
        pd_buf_put(&runs->entries, &runs->length_tokens, sizeof(runs->length_tokens));
}

static inline uint32_t pd_loss_runs_total(const struct pd_loss_runs_buf *runs)
{
    return (uint32_t)(runs->entries.size_bytes / sizeof(uint32_t));
}

static inline const uint8_t *pd_loss_runs_data(const struct pd_loss_runs_buf *runs)
{
    return runs->entries.data;
}

static inline bool pd_loss_runs_failed(const struct pd_loss_runs_buf *runs)
{
    return runs->entries.failed;
}

static inline void pd_loss_runs_fini(struct pd_loss_runs_buf *runs)
{
    pd_buf_fini(&runs->entries);
}

/* Token by token through runs as pushed; without runs every token is on. */
struct pd_mask_reader {
    const uint32_t *runs;
    uint32_t count, run, left;
};

static inline struct pd_mask_reader pd_mask_reader_of(const uint32_t *runs, uint32_t count)
{
    return (struct pd_mask_reader){.runs = runs, .count = count, .left = count > 0 ? runs[0] : 0};
}

static inline bool pd_mask_reader_next(struct pd_mask_reader *mask)
{
    if (mask->count == 0)
        return true;
    while (mask->left == 0 && mask->run + 1 < mask->count)
        mask->left = mask->runs[++mask->run];
    if (mask->left > 0)
        mask->left--;
    return mask->run % 2 == 1;
}

#endif
