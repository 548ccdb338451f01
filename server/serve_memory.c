/* Batch memory: who may build, what is evicted, and the life of a batch.
 *
 * Place in the flow: an assemble thread asks for admission with the exact size of a batch before it
 * builds it; readers take and drop references. Under serve's lock, except the counting of
 * references above the first.
 *
 * The budget counts every batch alive, held or not, and every reservation. It is never exceeded.
 * From it each job that has anything in the tables has one slot of its largest batch set aside:
 *
 *   | general room: budget - sum of free slots of active jobs      | slot job A | slot job B |
 *
 * Any build may use general room; the lowest asked-for batch of a job may use the job's slot while
 * no other batch fills it. So a rank that holds high steps cannot keep the lowest from being built.
 * Slots that together pass the budget are not honoured against each other.
 *
 * Batches that have been received stay for late peers (ranks of a tensor-parallel group read the
 * same ones) until a build comes while the ready batches together take more than
 * received_keep_bytes, those of complete steps first: a small set of memory that is used again and
 * again is in the cache, and costs no page faults. The set grows once such a batch is asked for.
 *
 * What is evicted where a build does not fit, in this order, always without readers and not kept
 * for a woken waiter:
 *   1. batches of steps that every rank has received, lowest step first: only a late peer or a
 *      re-read could want them;
 *   2. batches delivered at least once, lowest step first;
 *   3. batches nobody has read, highest step first.
 * Between 2 and 3 the slot is taken, so that what was prefetched is not thrown away while it is
 * free. A hint (prefetch) evicts only 1. An evicted batch can be built again at any time, byte for
 * byte. As a batch is kept until the waiters woken for it have come back (or 5 s have passed),
 * builds cannot evict each other for ever.
 *
 * When full: the task stays queued (reason MEMORY) and is tried again when a reader lets go, a step
 * is delivered, or after a second at most. */
#include "server/serve_state.h"

#include "base/check.h"
#include "base/clock.h"
#include "server/assemble.h"
#include "server/metrics.h"

#include <stdlib.h>

/* ---- boxes ---- */

static struct pd_box *box_of(struct pd_ready_batch *batch)
{
    struct pd_box *box = PD_CONTAINER_OF(batch, struct pd_box, ready);
    PD_MAGIC_CHECK(box, PD_BOX_MAGIC);
    return box;
}

void pd_box_free(struct pd_box *box)
{
    PD_MAGIC_CHECK(box, PD_BOX_MAGIC);
    box->magic = 0;
    pd_ready_batch_clear(&box->ready);
    free(box);
}

static void ring_starved(struct pd_serve *serve)
{
    if (serve->starved)
        pthread_cond_broadcast(&serve->work);
}

/* The box is out of the table and nobody reads it. */
static void box_dies(struct pd_serve *serve, struct pd_box *box)
{
    serve->used_bytes -= box->bytes;
    serve->boxes--;
    if (box->slot_job) {
        box->slot_job->slot_busy = false;
        pd_job_unref(box->slot_job);
        box->slot_job = NULL;
    }
    ring_starved(serve);
}

void pd_box_detach(struct pd_serve *serve, struct pd_box *box, struct pd_after *after)
{
    serve->gauges.ready_batches--;
    serve->gauges.ready_bytes -= box->bytes;
    box->entry->job->ready_bytes -= box->bytes;
    box->entry->job->ready_batches--;
    box->entry->box = NULL;
    box->entry = NULL;
    if (atomic_load_explicit(&box->holds, memory_order_acquire) > 0)
        return;
    box_dies(serve, box);
    pd_list_push(&after->dead, &box->dead);
}

void pd_ready_batch_ref(struct pd_ready_batch *batch)
{
    unsigned before = atomic_fetch_add_explicit(&box_of(batch)->holds, 1, memory_order_relaxed);
    PD_CHECK(before > 0);
}

void pd_ready_batch_unref(struct pd_ready_batch *batch)
{
    struct pd_box *box = box_of(batch);
    unsigned holds = atomic_load_explicit(&box->holds, memory_order_relaxed);
    PD_CHECK(holds > 0);
    while (holds > 1)
        if (atomic_compare_exchange_weak_explicit(&box->holds, &holds, holds - 1,
                                                  memory_order_release, memory_order_relaxed))
            return;
    struct pd_serve *serve = box->serve;
    pthread_mutex_lock(&serve->lock);
    bool last = atomic_fetch_sub_explicit(&box->holds, 1, memory_order_acq_rel) == 1;
    bool dead = last && !box->entry;
    if (dead)
        box_dies(serve, box);
    else if (last)
        ring_starved(serve);
    pthread_mutex_unlock(&serve->lock);
    if (dead)
        pd_box_free(box);
}

/* ---- eviction ---- */

static bool evictable(const struct pd_entry *entry, uint64_t now_ns)
{
    return entry->state == PD_ENTRY_READY &&
           atomic_load_explicit(&entry->box->holds, memory_order_acquire) == 0 &&
           (entry->claims == 0 || now_ns >= entry->claims_until_ns);
}

/* The lowest evictable batch of the job that has been delivered; with `complete`, of a step all of
 * which has. */
static struct pd_entry *lowest_delivered(struct pd_serve_job *job, bool complete, uint64_t now_ns)
{
    for (struct pd_entry *e = pd_entry_first(job); e; e = pd_entry_next(e)) {
        if (complete && e->key.step >= job->delivered.next_complete)
            return NULL;
        if (e->delivered && evictable(e, now_ns) &&
            (!complete || pd_delivered_complete(&job->delivered, e->key.step)))
            return e;
    }
    return NULL;
}

static struct pd_entry *highest(struct pd_serve_job *job, uint64_t now_ns)
{
    struct pd_entry *entry = pd_entry_last(job);
    while (entry && !evictable(entry, now_ns))
        entry = pd_entry_prev(entry);
    return entry;
}

enum rank { RANK_COMPLETE, RANK_DELIVERED, RANK_UNREAD, RANK_COUNT };

/* A batch of this rank, of the job with most memory in ready batches among those that have one. */
static struct pd_entry *victim(struct pd_serve *serve, enum rank rank, uint64_t now_ns)
{
    struct pd_entry *best = NULL;
    PD_LIST_EACH(link, &serve->turns) {
        struct pd_serve_job *job = PD_CONTAINER_OF(link, struct pd_serve_job, turn);
        if (best && job->ready_bytes <= best->job->ready_bytes)
            continue;
        struct pd_entry *found = rank == RANK_UNREAD
                                     ? highest(job, now_ns)
                                     : lowest_delivered(job, rank == RANK_COMPLETE, now_ns);
        if (found)
            best = found;
    }
    return best;
}

static void evict(struct pd_serve *serve, struct pd_entry *entry, struct pd_after *after)
{
    serve->gauges.evicted_total++;
    pd_metric_add(PD_M_BATCHES_EVICTED, 1);
    pd_entry_drop(serve, entry, after);
}

static void evict_received(struct pd_serve *serve, uint64_t now_ns, struct pd_after *after)
{
    struct pd_entry *entry;
    while (serve->gauges.ready_bytes > serve->received_keep_bytes &&
           ((entry = victim(serve, RANK_COMPLETE, now_ns)) ||
            (entry = victim(serve, RANK_DELIVERED, now_ns))))
        evict(serve, entry, after);
}

/* ---- admission ---- */

/* Slots of the jobs that have something in the tables: all of them, and those not filled, but for
 * `but`'s. */
struct slots {
    uint64_t all_bytes, free_bytes;
};

static struct slots slots_of(const struct pd_serve *serve, const struct pd_serve_job *but)
{
    struct slots slots = {0};
    PD_LIST_EACH(link, &serve->turns) {
        const struct pd_serve_job *job = PD_CONTAINER_OF(link, struct pd_serve_job, turn);
        if (RB_EMPTY(&job->entries))
            continue;
        slots.all_bytes += job->slot_bytes;
        if (job != but && !job->slot_busy)
            slots.free_bytes += job->slot_bytes;
    }
    return slots;
}

static bool below(const struct pd_serve *serve, uint64_t reserved, uint64_t bytes)
{
    uint64_t room = serve->budget_bytes > reserved ? serve->budget_bytes - reserved : 0;
    return serve->used_bytes <= room && bytes <= room - serve->used_bytes;
}

static bool fits(const struct pd_serve *serve, const struct pd_entry *entry)
{
    return below(serve, slots_of(serve, NULL).free_bytes, entry->bytes);
}

/* Nobody waits for a lower batch of the job that has no memory yet: queued, or just being
 * measured. */
static bool is_lowest(const struct pd_entry *entry)
{
    for (struct pd_entry *e = pd_entry_first(entry->job); e != entry; e = pd_entry_next(e)) {
        bool without =
            e->state == PD_ENTRY_QUEUED || (e->state == PD_ENTRY_BUILDING && !e->reserved);
        if (without && !pd_list_empty(&e->waiters))
            return false;
    }
    return true;
}

/* The lowest asked-for batch of its job, and the job's slot is free and large enough. */
static bool fits_slot(const struct pd_serve *serve, const struct pd_entry *entry)
{
    struct pd_serve_job *job = entry->job;
    if (pd_list_empty(&entry->waiters) || job->slot_busy || !is_lowest(entry))
        return false;
    struct slots others = slots_of(serve, job);
    return below(serve, others.all_bytes <= serve->budget_bytes ? others.free_bytes : 0,
                 entry->bytes);
}

static bool reserve(struct pd_serve *serve, struct pd_entry *entry, bool in_slot)
{
    entry->reserved = true;
    entry->in_slot = in_slot;
    if (in_slot)
        entry->job->slot_busy = true;
    entry->no_memory = false;
    serve->used_bytes += entry->bytes;
    if (serve->used_bytes > serve->used_peak_bytes)
        serve->used_peak_bytes = serve->used_bytes;
    return true;
}

bool pd_memory_admit(struct pd_serve *serve, struct pd_entry *entry, struct pd_after *after)
{
    bool asked = !pd_list_empty(&entry->waiters);
    uint64_t now_ns = pd_clock_mono_ns();
    evict_received(serve, now_ns, after);
    for (int rank = RANK_COMPLETE; rank < RANK_COUNT;) {
        if (fits(serve, entry))
            return reserve(serve, entry, false);
        if (rank > RANK_COMPLETE && !asked)
            break;
        if (rank == RANK_UNREAD && fits_slot(serve, entry))
            return reserve(serve, entry, true);
        struct pd_entry *out = victim(serve, rank, now_ns);
        if (out)
            evict(serve, out, after);
        else
            rank++;
    }
    if (fits_slot(serve, entry))
        return reserve(serve, entry, true);
    entry->no_memory = true;
    serve->starved = true;
    return false;
}

void pd_memory_release(struct pd_serve *serve, struct pd_entry *entry)
{
    serve->used_bytes -= entry->bytes;
    if (entry->in_slot)
        entry->job->slot_busy = false;
    entry->reserved = entry->in_slot = false;
    ring_starved(serve);
}
