/* Serving's tables: jobs, the entries of their batches, the totals of their steps.
 *
 * Place in the flow: serve.c and serve_build.c look entries up and move them from state to state;
 * here are the moves. All under serve's lock, none of it blocks.
 *
 * Invariant: an entry is in job->entries unless abandoned, in job->tasks exactly while QUEUED, has
 * a box exactly while READY, and keeps its step alive. A waiter is in at most one list. What is to
 * happen outside the lock goes into the after-list.
 *
 * When full: entries that nobody waits for are bounded by batch memory (ready), PD_PREFETCH_MAX
 * (hints) and PD_FAILED_MAX; the others by the calls that wait. */
#include "server/serve_state.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "packer/layout.h"

#include <stdlib.h>
#include <string.h>

static int compare_entries(const struct pd_entry *a, const struct pd_entry *b)
{
    if (a->key.step != b->key.step)
        return a->key.step < b->key.step ? -1 : 1;
    if (a->key.micro != b->key.micro)
        return a->key.micro < b->key.micro ? -1 : 1;
    if (a->key.dp_rank != b->key.dp_rank)
        return a->key.dp_rank < b->key.dp_rank ? -1 : 1;
    return 0;
}

/* What is asked for comes before hints, then the lowest step. */
static int task_compare(const struct pd_entry *a, const struct pd_entry *b)
{
    return a->asked != b->asked ? (a->asked ? -1 : 1) : compare_entries(a, b);
}

static int step_compare(const struct pd_step *a, const struct pd_step *b)
{
    return a->number < b->number ? -1 : a->number > b->number;
}

RB_GENERATE_STATIC(pd_entries, pd_entry, tree, compare_entries)
RB_GENERATE_STATIC(pd_tasks, pd_entry, task, task_compare)
RB_GENERATE_STATIC(pd_steps, pd_step, tree, step_compare)

void pd_after_init(struct pd_after *after)
{
    pd_list_init(&after->wake);
    pd_list_init(&after->dead);
    after->halted = NULL;
}

void pd_after_run(struct pd_after *after)
{
    struct pd_link *link;
    if (after->halted)
        pd_log(PD_LOG_ERROR, "feed_halted", "feed=%s text=\"%s\" repro=\"%s\"", after->halted,
               after->halt_text, after->halt_repro);
    while ((link = pd_list_pop(&after->dead)))
        pd_box_free(PD_CONTAINER_OF(link, struct pd_box, dead));
    while ((link = pd_list_pop(&after->wake))) {
        struct pd_waiter *waiter = PD_CONTAINER_OF(link, struct pd_waiter, link);
        waiter->ready(waiter);
    }
}

/* ---- jobs ---- */

struct pd_serve_job *pd_job_find(struct pd_serve *serve, uint32_t feed_index, uint32_t job_id)
{
    if (feed_index >= serve->feed_count)
        return NULL;
    PD_LIST_EACH(link, &serve->feeds[feed_index].jobs) {
        struct pd_serve_job *job = PD_CONTAINER_OF(link, struct pd_serve_job, in_feed);
        if (job->info.job_id == job_id)
            return job;
    }
    return NULL;
}

struct pd_serve_job *pd_job_add(struct pd_serve *serve, const struct pd_job_info *info)
{
    struct pd_serve_job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    job->refs = 1;
    job->info = *info;
    job->handed_end = info->loaded_steps;
    RB_INIT(&job->entries);
    RB_INIT(&job->tasks);
    RB_INIT(&job->steps);
    pd_list_init(&job->idle_steps);
    pd_list_push(&serve->feeds[info->feed_index].jobs, &job->in_feed);
    pd_list_push(&serve->turns, &job->turn);
    return job;
}

void pd_job_unref(struct pd_serve_job *job)
{
    if (--job->refs > 0)
        return;
    pd_delivered_clear(&job->delivered);
    pd_step_ranges_fini(&job->skipped);
    free(job->ranks);
    free(job);
}

static void step_free(struct pd_serve_job *job, struct pd_step *step)
{
    RB_REMOVE(pd_steps, &job->steps, step);
    free(step);
}

void pd_job_reset(struct pd_serve *serve, struct pd_serve_job *job, struct pd_after *after)
{
    struct pd_entry *entry;
    while ((entry = RB_ROOT(&job->entries)))
        pd_entry_drop(serve, entry, after);
    struct pd_link *link;
    while ((link = pd_list_pop(&job->idle_steps)))
        step_free(job, PD_CONTAINER_OF(link, struct pd_step, idle));
    job->idle_step_count = 0;
    PD_CHECK(RB_EMPTY(&job->steps) && RB_EMPTY(&job->tasks));
    pd_delivered_clear(&job->delivered);
    job->skipping = false;
    free(job->ranks);
    job->ranks = NULL;
    job->calls = 0;
}

void pd_job_hold(struct pd_serve *serve, struct pd_serve_job *job, uint64_t step,
                 struct pd_after *after)
{
    if (!job->skipping || step < job->hold_step)
        job->hold_step = step;
    job->skipping = true;
    struct pd_entry *entry = pd_entry_from(job, step);
    while (entry) {
        struct pd_entry *next = pd_entry_next(entry);
        pd_entry_drop(serve, entry, after);
        entry = next;
    }
}

void pd_job_remove(struct pd_serve *serve, struct pd_serve_job *job, struct pd_after *after)
{
    pd_job_reset(serve, job, after);
    pd_list_remove(&job->in_feed);
    pd_list_remove(&job->turn);
    pd_job_unref(job);
}

struct pd_job_steps pd_job_steps_of(const struct pd_serve *serve, const struct pd_serve_job *job)
{
    return (struct pd_job_steps){.config = serve->feeds[job->info.feed_index].config,
                                 .first_step = job->info.first_step,
                                 .first_pack = job->info.first_pack,
                                 .step_packs = job->info.spec.step_packs};
}

void pd_job_plan(struct pd_serve *serve, struct pd_serve_job *job)
{
    const struct pd_serve_feed *feed = &serve->feeds[job->info.feed_index];
    struct pd_job_steps steps = pd_job_steps_of(serve, job);
    job->steps_planned =
        pd_job_steps_planned(&steps, feed->progress.packs_planned, feed->progress.ended);
}

void pd_job_slot(const struct pd_serve *serve, struct pd_serve_job *job, uint64_t measured_bytes)
{
    uint64_t payload = pd_layout_payload_max(&serve->feeds[job->info.feed_index].config->layout,
                                             job->info.spec.rows);
    uint64_t usual = payload + payload / 16 + sizeof(struct pd_box);
    job->slot_bytes = measured_bytes > usual ? measured_bytes : usual;
}

struct pd_step_place pd_job_place(const struct pd_serve *serve, const struct pd_serve_job *job,
                                  uint64_t step)
{
    PD_CHECK(step < job->steps_planned);
    struct pd_job_steps steps = pd_job_steps_of(serve, job);
    return pd_job_step_place(&steps, serve->feeds[job->info.feed_index].progress.packs_planned,
                             step);
}

/* ---- steps ---- */

static struct pd_step *step_take(struct pd_serve_job *job, uint64_t number)
{
    struct pd_step probe = {.number = number};
    struct pd_step *step = RB_FIND(pd_steps, &job->steps, &probe);
    if (!step) {
        step = calloc(1, sizeof *step);
        if (!step)
            return NULL;
        step->number = number;
        pd_list_init(&step->idle);
        RB_INSERT(pd_steps, &job->steps, step);
    } else if (step->entry_count == 0) {
        pd_list_remove(&step->idle);
        job->idle_step_count--;
    }
    step->entry_count++;
    return step;
}

static void step_give(struct pd_serve_job *job, struct pd_step *step)
{
    if (--step->entry_count > 0)
        return;
    if (step->state != PD_FACTS_KNOWN) {
        step_free(job, step);
        return;
    }
    pd_list_push(&job->idle_steps, &step->idle);
    if (++job->idle_step_count <= PD_IDLE_STEPS_MAX)
        return;
    job->idle_step_count--;
    step_free(job, PD_CONTAINER_OF(pd_list_pop(&job->idle_steps), struct pd_step, idle));
}

/* ---- entries ---- */

struct pd_entry *pd_entry_find(struct pd_serve_job *job, const struct pd_batch_key *key)
{
    struct pd_entry probe = {.key = *key};
    return RB_FIND(pd_entries, &job->entries, &probe);
}

struct pd_entry *pd_entry_from(struct pd_serve_job *job, uint64_t step)
{
    struct pd_entry probe = {.key = {.step = step}};
    return RB_NFIND(pd_entries, &job->entries, &probe);
}

struct pd_entry *pd_entry_next(struct pd_entry *entry)
{
    return RB_NEXT(pd_entries, NULL, entry);
}

struct pd_entry *pd_entry_prev(struct pd_entry *entry)
{
    return RB_PREV(pd_entries, NULL, entry);
}

struct pd_entry *pd_entry_first(struct pd_serve_job *job)
{
    return RB_MIN(pd_entries, &job->entries);
}

struct pd_entry *pd_entry_last(struct pd_serve_job *job)
{
    return RB_MAX(pd_entries, &job->entries);
}

struct pd_entry *pd_task_first(struct pd_serve_job *job)
{
    return RB_MIN(pd_tasks, &job->tasks);
}

struct pd_entry *pd_task_next(struct pd_entry *entry)
{
    return RB_NEXT(pd_tasks, NULL, entry);
}

struct pd_entry *pd_entry_add(struct pd_serve_job *job, const struct pd_batch_key *key)
{
    struct pd_entry *entry = calloc(1, sizeof *entry);
    if (!entry)
        return NULL;
    entry->step = step_take(job, key->step);
    if (!entry->step) {
        free(entry);
        return NULL;
    }
    entry->job = job;
    entry->key = *key;
    pd_list_init(&entry->waiters);
    RB_INSERT(pd_entries, &job->entries, entry);
    return entry;
}

void pd_entry_free(struct pd_entry *entry)
{
    free(entry->failure);
    free(entry);
}

void pd_entry_wake(struct pd_serve *serve, struct pd_entry *entry, bool claims,
                   struct pd_after *after)
{
    struct pd_link *link;
    while ((link = pd_list_pop(&entry->waiters))) {
        struct pd_waiter *waiter = PD_CONTAINER_OF(link, struct pd_waiter, link);
        waiter->registered = false;
        waiter->claims = claims;
        entry->claims += claims;
        serve->gauges.waiters--;
        pd_list_push(&after->wake, link);
    }
    if (claims)
        entry->claims_until_ns = pd_clock_mono_ns() + PD_CLAIM_NS;
}

/* Leaves what its state had it in. */
static void entry_leave_state(struct pd_serve *serve, struct pd_entry *entry,
                              struct pd_after *after)
{
    if (entry->state == PD_ENTRY_QUEUED)
        pd_entry_unqueue(entry);
    if (entry->state == PD_ENTRY_FAILED)
        entry->job->failed_count--;
    if (entry->state == PD_ENTRY_READY)
        pd_box_detach(serve, entry->box, after);
}

void pd_entry_drop(struct pd_serve *serve, struct pd_entry *entry, struct pd_after *after)
{
    struct pd_serve_job *job = entry->job;
    pd_entry_wake(serve, entry, false, after);
    entry_leave_state(serve, entry, after);
    if (entry->prefetch)
        job->prefetch_count--;
    RB_REMOVE(pd_entries, &job->entries, entry);
    /* A step whose totals are being computed may go: its thread finds the entry abandoned. */
    if (entry->step->state == PD_FACTS_COMPUTING && entry->state == PD_ENTRY_BUILDING)
        entry->step->state = PD_FACTS_UNKNOWN;
    step_give(job, entry->step);
    entry->step = NULL;
    if (entry->state != PD_ENTRY_BUILDING) {
        pd_entry_free(entry);
        return;
    }
    entry->abandoned = true;
    job->refs++;
}

void pd_entry_queue(struct pd_serve *serve, struct pd_entry *entry)
{
    PD_CHECK(entry->state != PD_ENTRY_READY);
    if (entry->state == PD_ENTRY_QUEUED)
        pd_entry_unqueue(entry);
    if (entry->state == PD_ENTRY_FAILED)
        entry->job->failed_count--;
    if (entry->state != PD_ENTRY_BUILDING && entry->state != PD_ENTRY_QUEUED)
        entry->since_unix_ns = pd_clock_wall_ns();
    entry->state = PD_ENTRY_QUEUED;
    entry->asked = !pd_list_empty(&entry->waiters);
    RB_INSERT(pd_tasks, &entry->job->tasks, entry);
    pthread_cond_signal(&serve->work);
}

void pd_entry_unqueue(struct pd_entry *entry)
{
    PD_CHECK(entry->state == PD_ENTRY_QUEUED);
    RB_REMOVE(pd_tasks, &entry->job->tasks, entry);
}

/* Room for one more failure: the lowest failed entry that nobody waits for goes. */
static void failures_trim(struct pd_serve *serve, struct pd_serve_job *job, struct pd_after *after)
{
    struct pd_entry *entry = pd_entry_first(job);
    while (entry && job->failed_count >= PD_FAILED_MAX) {
        struct pd_entry *next = pd_entry_next(entry);
        if (entry->state == PD_ENTRY_FAILED)
            pd_entry_drop(serve, entry, after);
        entry = next;
    }
}

void pd_entry_fail(struct pd_serve *serve, struct pd_entry *entry, const struct pd_error *error,
                   struct pd_after *after)
{
    PD_CHECK(entry->state == PD_ENTRY_BUILDING);
    failures_trim(serve, entry->job, after);
    if (!entry->failure)
        entry->failure = malloc(sizeof *entry->failure);
    entry->state = PD_ENTRY_FAILED;
    entry->job->failed_count++;
    entry->failed_ns = pd_clock_mono_ns();
    if (entry->failure)
        *entry->failure = *error;
    if (!entry->failure || pd_list_empty(&entry->waiters))
        pd_entry_drop(serve, entry, after); /* nobody to tell: the next one who asks tries again */
    else
        pd_entry_wake(serve, entry, false, after);
}
