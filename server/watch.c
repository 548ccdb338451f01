/* Counting and remembering what was served.
 *
 * Place in the flow: serve calls it once for each batch, at its first complete delivery, on the rpc
 * thread that sent the last piece. It walks the batch's boundaries row by row, beside the columns
 * of its sample table, which are read where they lie in the serialised header. Invariant: for each
 * row real + gap + tail (or row_padding) is the width, whatever is told apart by source. It changes
 * nothing that serving depends on. */
#include "server/watch.h"

#include "base/bytes.h"
#include "base/check.h"
#include "packer/cost.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OTHER (PD_WATCH_SLOTS - 1)
#define RATIO_ONE 1000000000u

/* Field numbers of BatchHeader and SampleTable. */
enum { HEADER_PACKS = 15, HEADER_SAMPLES = 27, TABLE_SOURCES = 2, TABLE_SOURCE = 7 };

struct slot {
    _Atomic uint64_t real, gap, tail;
};

struct watched_feed {
    const struct pd_feed_config *config;
    struct slot slots[PD_WATCH_SLOTS];
    _Atomic uint64_t row_padding;
    char names[PD_WATCH_SOURCES_MAX][PD_NAME_MAX + 1]; /* of slots 1 ...; written once */
    _Atomic uint32_t name_count;
    struct pd_watch_row rows[PD_WATCH_ROWS_MAX]; /* a ring; under the lock */
    uint64_t row_total;
    struct pd_watch_sums before; /* all that was served of feeds before this one; under the lock */
};

struct pd_watch {
    pthread_mutex_t lock; /* the rings, adding names, feeds that begin anew */
    struct watched_feed *feeds;
    uint32_t feed_count;
};

/* One batch in the making. */
struct walk {
    struct watched_feed *feed;
    const struct pd_ready_batch *batch;
    const int32_t *cu_seqlens, *seq_lens, *sample_index;
    struct pd_reader sources;       /* the column, or at its end */
    struct pd_reader packs;         /* of the rows */
    uint32_t slots[PD_WATCH_SLOTS]; /* by the batch's own numbers of sources */
    uint32_t source_count;
    uint64_t packed, padded; /* compute */
    uint32_t segment;        /* the next one */
};

/* ---- the header, where it lies ---- */

/* Moves behind the next field that holds bytes and has this number; they are *inner. False: there
 * is none. */
static bool next_field(struct pd_reader *reader, uint32_t number, struct pd_reader *inner)
{
    while (pd_reader_left(reader) > 0 && !reader->failed) {
        uint64_t tag = pd_reader_varint(reader);
        uint64_t size = tag % 8 == 1   ? 8
                        : tag % 8 == 5 ? 4
                        : tag % 8 == 2 ? pd_reader_varint(reader)
                                       : 0;
        if (tag % 8 == 0)
            (void)pd_reader_varint(reader);
        const uint8_t *bytes = pd_reader_bytes(reader, size);
        if (bytes && tag % 8 == 2 && tag / 8 == number) {
            *inner = pd_reader_of(bytes, size);
            return true;
        }
    }
    return false;
}

static struct pd_reader field(const void *data, size_t size, uint32_t number)
{
    struct pd_reader reader = pd_reader_of(data, size), inner = pd_reader_of(data, 0);
    (void)next_field(&reader, number, &inner);
    return inner;
}

static int64_t next_pack(struct walk *walk)
{
    if (pd_reader_left(&walk->packs) == 0)
        return -1;
    uint64_t value = pd_reader_varint(&walk->packs);
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

/* What a producer that names no source gets. */
static bool is_unnamed(const char *name, size_t size)
{
    static const char unnamed[] = "default";
    return size == 0 || (size == sizeof unnamed - 1 && memcmp(name, unnamed, size) == 0);
}

/* The slot of a source's name; a new name takes a free one, the one that stands for none has slot 0
 * (unless the feed is configured with it). */
static uint32_t slot_of(struct pd_watch *watch, struct watched_feed *feed, const char *name,
                        size_t size)
{
    if (size > PD_NAME_MAX)
        return OTHER;
    pthread_mutex_lock(&watch->lock);
    uint32_t count = atomic_load(&feed->name_count), i = 0;
    while (i < count && (strlen(feed->names[i]) != size || memcmp(feed->names[i], name, size) != 0))
        i++;
    bool unnamed = i == count && is_unnamed(name, size);
    if (i == count && !unnamed && count < PD_WATCH_SOURCES_MAX) {
        memcpy(feed->names[i], name, size);
        atomic_store_explicit(&feed->name_count, count + 1, memory_order_release);
    }
    pthread_mutex_unlock(&watch->lock);
    return unnamed ? 0 : i < PD_WATCH_SOURCES_MAX ? i + 1 : OTHER;
}

static void read_table(struct pd_watch *watch, struct walk *walk)
{
    const struct pd_ready_batch *batch = walk->batch;
    struct pd_reader table = field(batch->header, batch->header_bytes, HEADER_SAMPLES);
    struct pd_reader names = table, name;
    walk->packs = field(batch->header, batch->header_bytes, HEADER_PACKS);
    walk->sources = field(table.at, pd_reader_left(&table), TABLE_SOURCE);
    while (walk->source_count < PD_WATCH_SLOTS && next_field(&names, TABLE_SOURCES, &name))
        walk->slots[walk->source_count++] =
            slot_of(watch, walk->feed, (const char *)name.at, pd_reader_left(&name));
}

static uint32_t next_source(struct walk *walk)
{
    uint64_t number = pd_reader_left(&walk->sources) > 0 ? pd_reader_varint(&walk->sources) : 0;
    if (walk->source_count == 0)
        return 0;
    return number < walk->source_count ? walk->slots[number] : OTHER;
}

/* ---- rows ---- */

static void draw(struct pd_watch_row *row, uint32_t length, uint32_t slot_tokens, uint32_t source)
{
    row->segment_count++;
    if (row->shown < PD_WATCH_SEGMENTS_MAX) {
        row->segments[row->shown++] = (struct pd_watch_segment){
            .length = length, .slot_tokens = slot_tokens, .source = source};
        return;
    }
    struct pd_watch_segment *last = &row->segments[row->shown - 1];
    last->length += length;
    last->slot_tokens += slot_tokens;
    last->merged++;
}

/* The row's tail goes to its sources by their real positions, without a remainder. */
static void share_tail(struct watched_feed *feed, const uint64_t reals[PD_WATCH_SLOTS],
                       uint64_t real, uint64_t tail)
{
    uint64_t before = 0, given = 0;
    for (uint32_t i = 0; i < PD_WATCH_SLOTS; i++) {
        if (reals[i] == 0)
            continue;
        before += reals[i];
        uint64_t upto = tail * before / real;
        atomic_fetch_add_explicit(&feed->slots[i].real, reals[i], memory_order_relaxed);
        atomic_fetch_add_explicit(&feed->slots[i].tail, upto - given, memory_order_relaxed);
        given = upto;
    }
}

/* Walks the segments of the row that begins at `start`, counts them and fills *row. */
static void walk_row(struct walk *walk, int64_t start, struct pd_watch_row *row)
{
    const struct pd_batch *batch = &walk->batch->batch;
    const struct pd_cost cost = walk->feed->config->layout.cost;
    uint64_t reals[PD_WATCH_SLOTS] = {0}, real = 0, used = 0;
    int64_t end = start + batch->width;
    for (; walk->segment < batch->segment_count && walk->cu_seqlens[walk->segment] < end;
         walk->segment++) {
        uint32_t s = walk->segment;
        uint32_t slot = (uint32_t)(walk->cu_seqlens[s + 1] - walk->cu_seqlens[s]);
        if (walk->sample_index[s] < 0) {
            walk->packed += pd_cost_segment(cost, slot);
            continue;
        }
        uint32_t length = (uint32_t)walk->seq_lens[s], source = next_source(walk);
        walk->packed += pd_cost_segment(cost, length);
        walk->padded += pd_cost_segment(cost, walk->feed->config->layout.seq_len);
        reals[source] += length;
        real += length;
        used += slot;
        atomic_fetch_add_explicit(&walk->feed->slots[source].gap, slot - length,
                                  memory_order_relaxed);
        draw(row, length, slot, source);
    }
    if (real > 0)
        share_tail(walk->feed, reals, real, batch->width - used);
    else
        atomic_fetch_add_explicit(&walk->feed->row_padding, batch->width, memory_order_relaxed);
    pd_metric_observe(PD_M_OCCUPANCY, real * RATIO_ONE / batch->width);
}

static void keep(struct pd_watch *watch, struct watched_feed *feed, const struct pd_watch_row *row)
{
    pthread_mutex_lock(&watch->lock);
    feed->rows[feed->row_total++ % PD_WATCH_ROWS_MAX] = *row;
    pthread_mutex_unlock(&watch->lock);
}

static void walk_rows(struct pd_watch *watch, struct walk *walk)
{
    const struct pd_batch *batch = &walk->batch->batch;
    const struct pd_batch_key *key = &walk->batch->key;
    for (uint32_t i = 0; i < batch->rows; i++) {
        struct pd_watch_row row;
        row.pack = next_pack(walk);
        row.step = key->step;
        row.micro = key->micro;
        row.dp_rank = key->dp_rank;
        row.width = batch->width;
        row.segment_count = row.shown = 0;
        walk_row(walk, (int64_t)i * batch->width, &row);
        if (i + PD_WATCH_ROWS_MAX >= batch->rows)
            keep(watch, walk->feed, &row);
    }
}

/* ---- delivered ---- */

static const int32_t *array_of(const struct pd_ready_batch *batch, const char *name)
{
    const struct pd_array *array = pd_batch_find(&batch->batch, name);
    PD_CHECK(array);
    return (const int32_t *)(const void *)(batch->payload + array->offset_bytes);
}

static void count_batch(const struct walk *walk, bool full_step)
{
    const struct pd_batch *batch = &walk->batch->batch;
    uint32_t feed = walk->batch->key.feed_index;
    pd_metric_add_feed(PD_F_BATCHES, feed, 1);
    pd_metric_add_feed(PD_F_SAMPLES, feed, batch->totals.samples);
    pd_metric_add_feed(PD_F_LOSS, feed, batch->totals.loss_tokens);
    pd_metric_add_feed(PD_F_OVERLAP, feed, batch->totals.overlap_tokens);
    pd_metric_add_feed(PD_F_SAVED, feed, walk->batch->saved_positions);
    pd_metric_add_set(PD_S_COMPUTE, feed, "packed", walk->packed);
    pd_metric_add_set(PD_S_COMPUTE, feed, "padded", walk->padded);
    if (!full_step)
        return;
    pd_metric_add_feed(PD_F_FULL_STEP_REAL, feed, batch->totals.real_tokens);
    pd_metric_add_feed(PD_F_FULL_STEP_ALL, feed, (uint64_t)batch->rows * batch->width);
}

void pd_watch_delivered(void *ctx, const struct pd_ready_batch *batch, bool full_step)
{
    struct pd_watch *watch = ctx;
    PD_CHECK(batch->key.feed_index < watch->feed_count);
    struct walk walk = {
        .feed = &watch->feeds[batch->key.feed_index],
        .batch = batch,
        .cu_seqlens = array_of(batch, "cu_seqlens"),
        .seq_lens = array_of(batch, "seq_lens"),
        .sample_index = array_of(batch, "sample_index"),
    };
    read_table(watch, &walk);
    walk_rows(watch, &walk);
    count_batch(&walk, full_step);
}

/* ---- looking ---- */

static void put_kind(struct pd_metrics_writer *writer, const struct watched_feed *feed,
                     const char *source, const char *kind, uint64_t value)
{
    char labels[300];
    int used = snprintf(labels, sizeof labels, "feed=\"%s\",kind=\"%s\"", feed->config->name, kind);
    if (*source)
        snprintf(labels + used, sizeof labels - (size_t)used, ",source=\"%s\"", source);
    pd_metrics_sample(writer, pd_metrics_collected_name(PD_C_PACK_TOKENS), labels, (double)value);
}

static void put_slot(struct pd_metrics_writer *writer, const struct watched_feed *feed,
                     const char *source, const struct slot *slot)
{
    put_kind(writer, feed, source, "real", atomic_load(&slot->real));
    put_kind(writer, feed, source, "gap", atomic_load(&slot->gap));
    put_kind(writer, feed, source, "tail", atomic_load(&slot->tail));
}

void pd_watch_put_tokens(struct pd_watch *watch, struct pd_metrics_writer *writer)
{
    pd_metrics_collected(writer, PD_C_PACK_TOKENS);
    for (uint32_t i = 0; i < watch->feed_count; i++) {
        const struct watched_feed *feed = &watch->feeds[i];
        for (uint32_t slot = 0; slot < PD_WATCH_SLOTS; slot++) {
            const char *name = pd_watch_source(watch, i, slot);
            if (name)
                put_slot(writer, feed, name, &feed->slots[slot]);
        }
        put_kind(writer, feed, "", "row_padding", atomic_load(&feed->row_padding));
    }
}

/* Of all feeds that there have been under the name. */
static struct pd_watch_sums sums_ever(const struct watched_feed *feed)
{
    struct pd_watch_sums sums = {.row_padding = atomic_load(&feed->row_padding)};
    for (uint32_t i = 0; i < PD_WATCH_SLOTS; i++) {
        sums.real += atomic_load(&feed->slots[i].real);
        sums.gap += atomic_load(&feed->slots[i].gap);
        sums.tail += atomic_load(&feed->slots[i].tail);
    }
    return sums;
}

void pd_watch_sums(struct pd_watch *watch, uint32_t feed_index, struct pd_watch_sums *sums)
{
    PD_CHECK(feed_index < watch->feed_count);
    const struct watched_feed *feed = &watch->feeds[feed_index];
    pthread_mutex_lock(&watch->lock);
    const struct pd_watch_sums before = feed->before;
    *sums = sums_ever(feed);
    pthread_mutex_unlock(&watch->lock);
    sums->real -= before.real;
    sums->gap -= before.gap;
    sums->tail -= before.tail;
    sums->row_padding -= before.row_padding;
    sums->renewed = before.renewed;
}

void pd_watch_renewed(void *ctx, uint32_t feed_index)
{
    struct pd_watch *watch = ctx;
    PD_CHECK(feed_index < watch->feed_count);
    struct watched_feed *feed = &watch->feeds[feed_index];
    pthread_mutex_lock(&watch->lock);
    uint64_t renewed = feed->before.renewed + 1;
    feed->before = sums_ever(feed);
    feed->before.renewed = renewed;
    feed->row_total = 0;
    pthread_mutex_unlock(&watch->lock);
}

const char *pd_watch_source(struct pd_watch *watch, uint32_t feed_index, uint32_t slot)
{
    PD_CHECK(feed_index < watch->feed_count && slot < PD_WATCH_SLOTS);
    const struct watched_feed *feed = &watch->feeds[feed_index];
    if (slot == 0)
        return "";
    if (slot == OTHER)
        return atomic_load(&feed->slots[OTHER].real) > 0 ? "other" : NULL;
    uint32_t count = atomic_load_explicit(&feed->name_count, memory_order_acquire);
    return slot - 1 < count ? feed->names[slot - 1] : NULL;
}

uint32_t pd_watch_rows(struct pd_watch *watch, uint32_t feed_index,
                       struct pd_watch_row rows[PD_WATCH_ROWS_MAX])
{
    PD_CHECK(feed_index < watch->feed_count);
    const struct watched_feed *feed = &watch->feeds[feed_index];
    pthread_mutex_lock(&watch->lock);
    uint64_t total = feed->row_total;
    uint32_t count = total < PD_WATCH_ROWS_MAX ? (uint32_t)total : PD_WATCH_ROWS_MAX;
    for (uint32_t i = 0; i < count; i++)
        rows[i] = feed->rows[(total - count + i) % PD_WATCH_ROWS_MAX];
    pthread_mutex_unlock(&watch->lock);
    return count;
}

/* ---- life ---- */

/* Sources of the configuration are known from the start. */
static void name_configured(struct watched_feed *feed)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < feed->config->source_count && count < PD_WATCH_SOURCES_MAX; i++)
        memcpy(feed->names[count++], feed->config->sources[i].name, sizeof feed->names[0]);
    atomic_store(&feed->name_count, count);
}

int pd_watch_new(const struct pd_config *config, struct pd_watch **result, struct pd_error *error)
{
    struct pd_watch *watch = calloc(1, sizeof *watch);
    struct watched_feed *feeds = calloc(config->feed_count, sizeof *feeds);
    if (!watch || !feeds || pthread_mutex_init(&watch->lock, NULL) != 0) {
        free(watch);
        free(feeds);
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for what the page shows");
    }
    watch->feeds = feeds;
    watch->feed_count = config->feed_count;
    for (uint32_t i = 0; i < watch->feed_count; i++) {
        feeds[i].config = &config->feeds[i];
        name_configured(&feeds[i]);
    }
    *result = watch;
    return 0;
}

void pd_watch_free(struct pd_watch *watch)
{
    if (!watch)
        return;
    pthread_mutex_destroy(&watch->lock);
    free(watch->feeds);
    free(watch);
}
