/* What was served, for those who watch: positions by source, compute, and the latest rows as a
 * drawing needs them.
 *
 *   serve ──first complete delivery──> pd_watch_delivered ──> counters (atomics) ──> /metrics
 *                                                         └─> the latest rows (a ring) ──> the page
 *
 * Everything is read from the delivered batch itself: its boundaries and its sample table. A scrape
 * reads atomics alone; the ring has a lock of its own, a leaf, held for a copy.
 *
 * When full: sources beyond PD_WATCH_SOURCES_MAX of a feed count as "other"; the oldest row goes;
 * of a row PD_WATCH_SEGMENTS_MAX segments are kept, the rest as one. */
#ifndef PD_SERVER_WATCH_H
#define PD_SERVER_WATCH_H

#include "server/config.h"
#include "server/metrics.h"
#include "server/serve.h"

#define PD_WATCH_SOURCES_MAX 16
/* Slot 0 is "no source" (the wire calls it default), the last one "other". */
#define PD_WATCH_SLOTS (PD_WATCH_SOURCES_MAX + 2)
#define PD_WATCH_ROWS_MAX 24
#define PD_WATCH_SEGMENTS_MAX 64

struct pd_watch;

/* The config is borrowed. PD_ENOMEM. */
int pd_watch_new(const struct pd_config *config, struct pd_watch **watch,
                 struct pd_error *error) PD_MUST_CHECK;
void pd_watch_free(struct pd_watch *watch); /* NULL is allowed */

/* A pd_served_fn with the watch as ctx. Any thread. */
void pd_watch_delivered(void *watch, const struct pd_ready_batch *batch, bool full_step);

/* A pd_renewed_fn with the watch as ctx: sums and rows are those of the new feed. The counters of
 * the metrics, which go by the name, go on. Any thread. */
void pd_watch_renewed(void *watch, uint32_t feed_index);

/* The family packd_pack_tokens_total; takes no lock. */
void pd_watch_put_tokens(struct pd_watch *watch, struct pd_metrics_writer *writer);
/* Of the feed that there is now; `renewed`: how often it has begun anew. */
struct pd_watch_sums {
    uint64_t real, gap, tail, row_padding;
    uint64_t renewed;
};
void pd_watch_sums(struct pd_watch *watch, uint32_t feed_index, struct pd_watch_sums *sums);
/* The slot's name, "" for slot 0; NULL: nothing has it. Takes no lock. */
const char *pd_watch_source(struct pd_watch *watch, uint32_t feed_index, uint32_t slot);

struct pd_watch_segment {
    uint32_t length, slot_tokens; /* real tokens, positions taken */
    uint32_t source;              /* slot */
    uint32_t merged;              /* further segments drawn as this one */
};
struct pd_watch_row {
    int64_t pack; /* -1: a row of padding alone */
    uint64_t step;
    uint32_t micro, dp_rank, width, segment_count, shown;
    struct pd_watch_segment segments[PD_WATCH_SEGMENTS_MAX]; /* in the row's order */
};
/* Copies the latest rows, oldest first; their number. */
uint32_t pd_watch_rows(struct pd_watch *watch, uint32_t feed_index,
                       struct pd_watch_row rows[PD_WATCH_ROWS_MAX]);

#endif
