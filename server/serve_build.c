/* The assemble threads: take the next task, build it, publish or fail it.
 *
 *   pick ─> totals of the step ─> measure ─> admission ─> build, check ─> validator ─> publish
 *                                                        └─ no room: back into the queue
 *
 * Jobs take turns; within a job, what is asked for comes before hints and the lowest step first. A
 * step whose totals are being computed is passed over, so they are computed once. A thread never
 * waits for memory with a task in hand.
 *
 * Invariant: a batch is published only after every check passed on the very bytes that are served.
 * A batch that breaks a rule is built once more from the log; if it fails again its feed is halted.
 * Damage in the log is tried twice, too, and then is an error of that batch alone. With
 * on_violation: skip_step both lead to the step being left out instead, if nothing of it has been
 * handed out: that is decided under the lock under which batches are handed out.
 *
 * Each thread owns its assembler (log reader, scratch); everything shared is touched under serve's
 * lock. */
#include "server/serve_state.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/metrics.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BUILDS_MAX 2
#define RETRY_NS UINT64_C(1000000000)

/* A task in a thread's hands; what the tables say of it is copied, as they may change meanwhile. */
struct task {
    struct pd_entry *entry;
    struct pd_job_spec spec;
    struct pd_assemble_order order;
    struct pd_step_facts facts;
    bool facts_known;
    bool reserved;
    uint32_t builds, log_number;
    bool skips; /* its step is to be left out: skip_order */
    struct pd_skip_order skip_order;
};

/* ---- pick ---- */

static struct pd_entry *first_runnable(struct pd_serve_job *job)
{
    struct pd_entry *entry = pd_task_first(job);
    while (entry && entry->step->state == PD_FACTS_COMPUTING)
        entry = pd_task_next(entry);
    return entry;
}

static void task_take(struct pd_serve *serve, struct pd_entry *entry, struct task *task)
{
    const struct pd_serve_job *job = entry->job;
    uint64_t step = entry->key.step;
    pd_entry_unqueue(entry);
    entry->state = PD_ENTRY_BUILDING;
    serve->gauges.building++;
    *task = (struct task){
        .entry = entry,
        .spec = job->info.spec,
        .facts_known = entry->step->state == PD_FACTS_KNOWN,
        .reserved = entry->bytes > 0,
        .log_number = serve->feeds[job->info.feed_index].log_number,
    };
    task->order = (struct pd_assemble_order){
        .feed = serve->feeds[job->info.feed_index].config,
        .spec = &task->spec,
        .key = entry->key,
        .steps = pd_job_steps_of(serve, job),
        .place = pd_job_place(serve, job, step),
    };
    if (task->facts_known)
        task->facts = entry->step->facts;
    else
        entry->step->state = PD_FACTS_COMPUTING;
}

/* The feed is being deleted: what is found under its name in the log now is not what `log_number`
 * was. Its jobs are about to go (pd_serve_feed_reset), or have gone already. */
static bool is_replaced(const struct pd_serve *serve, uint32_t feed_index, uint32_t log_number)
{
    return pd_log_feed_number(serve->log, feed_index) != log_number;
}

/* The next task that may be built now, by turns of jobs. */
static bool pick(struct pd_serve *serve, struct task *task, struct pd_after *after)
{
    bool blocked = false;
    PD_LIST_EACH(link, &serve->turns) {
        struct pd_serve_job *job = PD_CONTAINER_OF(link, struct pd_serve_job, turn);
        struct pd_entry *entry = first_runnable(job);
        uint32_t feed = job->info.feed_index;
        if (!entry || is_replaced(serve, feed, serve->feeds[feed].log_number))
            continue;
        if (entry->bytes > 0 && !pd_memory_admit(serve, entry, after)) {
            blocked = true;
            continue;
        }
        pd_list_remove(&job->turn);
        pd_list_push(&serve->turns, &job->turn);
        task_take(serve, entry, task);
        return true;
    }
    serve->starved = blocked;
    return false;
}

/* ---- run: without the lock ---- */

/* Tells the step's totals to the tables, or that they could not be computed. */
static void facts_settle(struct pd_serve *serve, struct task *task, bool known)
{
    pthread_mutex_lock(&serve->lock);
    if (!task->entry->abandoned) {
        struct pd_step *step = task->entry->step;
        step->state = known ? PD_FACTS_KNOWN : PD_FACTS_UNKNOWN;
        if (known)
            step->facts = task->facts;
    }
    pthread_cond_broadcast(&serve->work);
    pthread_mutex_unlock(&serve->lock);
    task->facts_known = known;
}

static int too_large(const struct pd_serve *serve, const struct task *task, uint64_t bytes,
                     struct pd_error *error)
{
    return pd_error_set(error, PD_ELIMIT, "JOB_TOO_LARGE",
                        "batch step %llu micro %u dp_rank %u of job %s takes %llu bytes, "
                        "memory.batches is %llu; raise it or lower rows",
                        (unsigned long long)task->order.key.step, task->order.key.micro,
                        task->order.key.dp_rank, task->spec.name, (unsigned long long)bytes,
                        (unsigned long long)serve->budget_bytes);
}

/* Asks for memory of the exact size. PD_EAGAIN: none now. */
static int reserve(struct pd_serve *serve, struct task *task, uint64_t bytes,
                   struct pd_error *error)
{
    if (bytes > serve->budget_bytes)
        return too_large(serve, task, bytes, error);
    struct pd_after after;
    pd_after_init(&after);
    pthread_mutex_lock(&serve->lock);
    struct pd_entry *entry = task->entry;
    entry->bytes = bytes;
    if (!entry->abandoned && bytes > entry->job->slot_bytes)
        pd_job_slot(serve, entry->job, bytes);
    if (!entry->abandoned)
        task->reserved = pd_memory_admit(serve, entry, &after);
    pthread_mutex_unlock(&serve->lock);
    pd_after_run(&after);
    return task->reserved ? 0 : PD_EAGAIN;
}

/* From an open transaction to a measured batch with memory reserved for it. */
static int prepare(struct pd_worker *worker, struct task *task, struct pd_error *error)
{
    struct pd_serve *serve = worker->serve;
    int rc = 0;
    if (!task->facts_known) {
        rc = pd_assembler_step(worker->assembler, &task->order, &task->facts, error);
        facts_settle(serve, task, rc == 0);
    }
    uint64_t bytes = 0;
    if (rc == 0)
        rc = pd_assembler_measure(worker->assembler, &task->order, &task->facts, &bytes, error);
    if (rc != 0)
        return rc;
    bytes += sizeof(struct pd_box);
    if (!task->reserved)
        return reserve(serve, task, bytes, error);
    if (bytes != task->entry->bytes)
        return pd_error_set(error, PD_EINTERNAL, "SIZE_CHANGED",
                            "batch step %llu micro %u dp_rank %u measured %llu bytes and now %llu",
                            (unsigned long long)task->order.key.step, task->order.key.micro,
                            task->order.key.dp_rank, (unsigned long long)task->entry->bytes,
                            (unsigned long long)bytes);
    return 0;
}

/* One violation, of a structural rule, the probe, or a sample's digest: counted and said. */
static void report(const struct task *task, const struct pd_check_finding *finding,
                   const struct pd_error *error)
{
    const char *check =
        finding->text[0] ? pd_check_finding_name(finding) : pd_check_name(PD_CHECK_DIGEST);
    pd_metric_add_labelled(PD_M_VIOLATIONS, check, 1);
    pd_log(PD_LOG_ERROR, "batch_violation",
           "feed=%s job=%s step=%llu micro=%u dp_rank=%u build=%u check=%s text=\"%s\"",
           task->order.feed->name, task->spec.name, (unsigned long long)task->order.key.step,
           task->order.key.micro, task->order.key.dp_rank, task->builds, check, error->text);
}

static int validate(struct pd_serve *serve, struct pd_ready_batch *ready,
                    struct pd_check_finding *finding, struct pd_error *error)
{
    int rc = serve->hooks.validate
                 ? serve->hooks.validate(serve->hooks.validate_ctx, ready, finding)
                 : 0;
    if (rc == 0)
        return 0;
    pd_ready_batch_clear(ready);
    if (rc == PD_ECORRUPT)
        return pd_error_set(error, rc, "VIOLATION",
                            "step %llu micro %u dp_rank %u fails the rule %s: %s",
                            (unsigned long long)ready->key.step, ready->key.micro,
                            ready->key.dp_rank, pd_check_finding_name(finding), finding->text);
    return pd_error_set(error, rc, "VALIDATOR", "the validator failed: %s", pd_err_text(rc));
}

static int build_once(struct pd_worker *worker, struct task *task, struct pd_box *box,
                      struct pd_check_finding *finding, struct pd_error *error)
{
    int rc = pd_assembler_begin(worker->assembler, error);
    if (rc != 0)
        return rc;
    rc = prepare(worker, task, error);
    if (rc == 0)
        rc = pd_assembler_build(worker->assembler, &box->ready, finding, error);
    pd_assembler_end(worker->assembler);
    return rc == 0 ? validate(worker->serve, &box->ready, finding, error) : rc;
}

static bool wants_skip(const struct pd_serve *serve)
{
    return serve->hooks.skip && serve->config->on_violation == PD_ON_VIOLATION_SKIP_STEP;
}

/* The batch is kept out, and what it was made of is kept for whoever looks into it. */
static void save_repro(struct pd_serve *serve, const struct task *task,
                       const struct pd_check_finding *finding, const struct pd_error *error)
{
    char path[PD_REPRO_PATH_MAX] = "";
    struct pd_check_finding damage = {.check = PD_CHECK_DIGEST};
    snprintf(damage.text, sizeof damage.text, "%.150s", error->text);
    if (!serve->hooks.repro || (!finding->text[0] && !wants_skip(serve)))
        return;
    serve->hooks.repro(serve->hooks.repro_ctx, &task->order, finding->text[0] ? finding : &damage,
                       path, sizeof path);
    if (!path[0])
        return;
    pthread_mutex_lock(&serve->lock);
    memcpy(serve->repro_path, path, sizeof path);
    pthread_mutex_unlock(&serve->lock);
}

/* The batch into *box, twice where the first build shows damage. PD_EAGAIN: no memory now, or its
 * feed is being deleted, whatever was read of it. */
static int build(struct pd_worker *worker, struct task *task, struct pd_box *box,
                 struct pd_check_finding *finding, struct pd_error *error)
{
    int rc;
    do {
        task->builds++;
        *finding = (struct pd_check_finding){0};
        *error = (struct pd_error){0};
        rc = build_once(worker, task, box, finding, error);
        if (is_replaced(worker->serve, task->order.key.feed_index, task->log_number)) {
            pd_ready_batch_clear(&box->ready);
            return PD_EAGAIN;
        }
        if (rc == PD_ECORRUPT)
            report(task, finding, error);
    } while (rc == PD_ECORRUPT && task->builds < BUILDS_MAX);
    if (rc == PD_ECORRUPT)
        save_repro(worker->serve, task, finding, error);
    return rc;
}

/* ---- settle: under the lock again ---- */

/* Halts a feed: everything of its jobs is dropped, later gets are answered with *error. */
static void halt_feed(struct pd_serve *serve, uint32_t feed_index, const struct pd_error *error,
                      struct pd_after *after)
{
    struct pd_serve_feed *feed = &serve->feeds[feed_index];
    if (feed->halted)
        return;
    feed->halted = true;
    serve->gauges.halted_feeds++;
    pd_error_set(&feed->halt, PD_ECORRUPT, "HALTED",
                 "feed %s is halted, a batch failed its checks twice: %.300s", feed->config->name,
                 error->text);
    after->halted = feed->config->name;
    memcpy(after->halt_text, error->text, sizeof after->halt_text);
    memcpy(after->halt_repro, serve->repro_path, sizeof after->halt_repro);
    PD_LIST_EACH(link, &feed->jobs) {
        struct pd_serve_job *job = PD_CONTAINER_OF(link, struct pd_serve_job, in_feed);
        struct pd_entry *entry = pd_entry_first(job);
        while (entry) {
            struct pd_entry *next = pd_entry_next(entry);
            pd_entry_drop(serve, entry, after);
            entry = next;
        }
    }
}

static void publish(struct pd_serve *serve, struct task *task, struct pd_box *box,
                    struct pd_after *after)
{
    struct pd_entry *entry = task->entry;
    struct pd_serve_job *job = entry->job;
    box->serve = serve;
    box->entry = entry;
    box->bytes = entry->bytes;
    box->full_step = task->order.place.pack_count == task->spec.step_packs;
    box->ready.builds = task->builds;
    box->ready.built_unix_ns = pd_clock_wall_ns();
    if (entry->in_slot) {
        box->slot_job = job;
        job->refs++;
    }
    entry->reserved = entry->in_slot = false; /* the memory is the box's now */
    entry->box = box;
    entry->state = PD_ENTRY_READY;
    if (entry->prefetch) {
        entry->prefetch = false;
        job->prefetch_count--;
    }
    job->ready_bytes += box->bytes;
    job->ready_batches++;
    serve->boxes++;
    serve->gauges.ready_batches++;
    serve->gauges.ready_bytes += box->bytes;
    serve->gauges.built_total++;
    serve->gauges.probed_total += box->ready.probed;
    serve->gauges.rebuilt_total += task->builds > 1;
    pd_metric_add(PD_M_BATCHES_BUILT, 1);
    pd_metric_add(PD_M_BATCHES_REBUILT, task->builds > 1);
    pd_metric_observe(PD_M_BUILD_SECONDS, box->ready.built_ns);
    pd_metric_observe(PD_M_CHECK_SECONDS, box->ready.checked_ns);
    pd_entry_wake(serve, entry, true, after);
}

/* Back into the queue for lack of memory; or gone, where nobody wants it any more. */
static void requeue(struct pd_serve *serve, struct pd_entry *entry, struct pd_after *after)
{
    pd_entry_queue(serve, entry);
    if (pd_list_empty(&entry->waiters) && !entry->prefetch)
        pd_entry_drop(serve, entry, after);
}

/* An entry that left the tables while it was being built. */
static void bury(struct pd_entry *entry)
{
    pd_job_unref(entry->job);
    pd_entry_free(entry);
}

/* A step of which the world may have anything stays; so does one that others are told to wait
 * for. */
static bool may_skip(const struct pd_serve *serve, const struct pd_entry *entry)
{
    return wants_skip(serve) && !serve->feeds[entry->key.feed_index].halted &&
           entry->job->handed_end <= entry->key.step;
}

/* From here on nobody gets anything of the step, whatever comes of the order. Where one is under
 * way already, the step comes up again in the next generation. */
static void begin_skip(struct pd_serve *serve, struct task *task, const struct pd_error *error,
                       struct pd_after *after)
{
    struct pd_entry *entry = task->entry;
    struct pd_serve_job *job = entry->job;
    task->skips = !job->skipping;
    task->skip_order = (struct pd_skip_order){.feed_index = entry->key.feed_index,
                                              .job_id = entry->key.job_id,
                                              .generation = entry->key.generation,
                                              .step = entry->key.step};
    memcpy(task->skip_order.job, job->info.spec.name, sizeof task->skip_order.job);
    snprintf(task->skip_order.why, sizeof task->skip_order.why, "violation: %.230s", error->text);
    entry->state = PD_ENTRY_UNPLANNED; /* no longer being built: hold drops it with the others */
    pd_job_hold(serve, job, entry->key.step, after);
}

/* Returns whether *box was taken. */
static bool settle(struct pd_serve *serve, struct task *task, struct pd_box *box, int rc,
                   const struct pd_check_finding *finding, const struct pd_error *error,
                   struct pd_after *after)
{
    struct pd_entry *entry = task->entry;
    serve->gauges.building--;
    if (rc == 0 && !entry->abandoned) {
        publish(serve, task, box, after);
        return true;
    }
    if (task->reserved)
        pd_memory_release(serve, entry);
    if (entry->abandoned) {
        bury(entry);
        return false;
    }
    if (rc == PD_EAGAIN) {
        requeue(serve, entry, after);
        return false;
    }
    entry->bytes = 0;
    serve->gauges.violations_total += rc == PD_ECORRUPT;
    if (rc == PD_ECORRUPT && may_skip(serve, entry)) {
        begin_skip(serve, task, error, after);
        return false;
    }
    if (rc == PD_ECORRUPT && finding->text[0]) {
        uint32_t feed_index = entry->key.feed_index;
        pd_entry_fail(serve, entry, error, after);
        halt_feed(serve, feed_index, error, after);
        return false;
    }
    pd_entry_fail(serve, entry, error, after);
    return false;
}

void pd_serve_skip_failed(struct pd_serve *serve, const struct pd_skip_order *order,
                          const struct pd_error *error)
{
    PD_MAGIC_CHECK(serve, PD_SERVE_MAGIC);
    struct pd_after after;
    struct pd_error why;
    pd_error_set(&why, PD_ECORRUPT, "HALTED", "%.200s; the step could not be left out: %.200s",
                 order->why, error->text);
    pd_after_init(&after);
    pthread_mutex_lock(&serve->lock);
    const struct pd_serve_job *job = pd_job_find(serve, order->feed_index, order->job_id);
    if (job && job->info.generation == order->generation)
        halt_feed(serve, order->feed_index, &why, &after);
    pthread_mutex_unlock(&serve->lock);
    pd_after_run(&after);
}

/* Loudly: from here on the step is lost to the job. */
static void ask_skip(struct pd_serve *serve, const struct task *task)
{
    const struct pd_skip_order *order = &task->skip_order;
    struct pd_error error = {0};
    pd_log(PD_LOG_ERROR, "step_left_out", "feed=%s job=%s step=%llu generation=%llu text=\"%s\"",
           task->order.feed->name, order->job, (unsigned long long)order->step,
           (unsigned long long)order->generation, order->why);
    int rc = serve->hooks.skip(serve->hooks.skip_ctx, order);
    if (rc == 0)
        return;
    pd_error_set(&error, rc, "SKIP", "the sequencer takes no request (%s)", pd_err_text(rc));
    pd_serve_skip_failed(serve, order, &error);
}

static void run(struct pd_worker *worker, struct task *task)
{
    struct pd_serve *serve = worker->serve;
    struct pd_check_finding finding = {0};
    struct pd_error error = {0};
    struct pd_box *box = calloc(1, sizeof *box);
    int rc = PD_ENOMEM;
    if (box) {
        box->magic = PD_BOX_MAGIC;
        rc = build(worker, task, box, &finding, &error);
    } else {
        pd_error_set(&error, PD_ENOMEM, "NO_MEMORY", "no memory for a batch");
    }
    if (!task->facts_known)
        facts_settle(serve, task, false);
    if (rc != 0 && rc != PD_EAGAIN && rc != PD_ECORRUPT)
        pd_log(PD_LOG_WARN, "batch_failed", "job=%s step=%llu error=%s text=\"%s\"",
               task->spec.name, (unsigned long long)task->order.key.step, pd_err_name(rc),
               error.text);
    struct pd_after after;
    pd_after_init(&after);
    pthread_mutex_lock(&serve->lock);
    bool taken = settle(serve, task, box, rc, &finding, &error, &after);
    pthread_mutex_unlock(&serve->lock);
    if (!taken && box)
        pd_box_free(box);
    pd_after_run(&after);
    if (task->skips)
        ask_skip(serve, task);
}

/* ---- threads ---- */

static void wait_for_work(struct pd_serve *serve)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(RETRY_NS / 1000000000);
    pthread_cond_timedwait(&serve->work, &serve->lock, &until);
}

static void *worker_main(void *arg)
{
    struct pd_worker *worker = arg;
    struct pd_serve *serve = worker->serve;
    char name[16];
    snprintf(name, sizeof name, "assemble-%u", worker->index);
    pthread_setname_np(pthread_self(), name);
    pthread_mutex_lock(&serve->lock);
    while (!serve->stopping) {
        struct task task;
        struct pd_after after;
        pd_after_init(&after);
        bool found = pick(serve, &task, &after);
        if (!found && pd_list_empty(&after.dead) && pd_list_empty(&after.wake)) {
            wait_for_work(serve);
            continue;
        }
        pthread_mutex_unlock(&serve->lock);
        pd_after_run(&after);
        if (found)
            run(worker, &task);
        pthread_mutex_lock(&serve->lock);
    }
    pthread_mutex_unlock(&serve->lock);
    return NULL;
}

static int worker_start(struct pd_serve *serve, uint32_t index, struct pd_error *error)
{
    struct pd_worker *worker = &serve->workers[index];
    *worker = (struct pd_worker){.serve = serve, .index = index};
    int rc = pd_assembler_new(serve->log, &worker->assembler, error);
    if (rc != 0)
        return rc;
    if (serve->hooks.corrupt)
        pd_assembler_set_corruption(worker->assembler, serve->hooks.corrupt,
                                    serve->hooks.corrupt_ctx);
    int failed = pthread_create(&worker->thread, NULL, worker_main, worker);
    if (failed != 0) {
        pd_assembler_free(worker->assembler);
        return pd_error_set(error, PD_EIO, "THREAD", "cannot start thread assemble-%u: %s", index,
                            strerror(failed));
    }
    serve->worker_count++;
    return 0;
}

int pd_workers_start(struct pd_serve *serve, struct pd_error *error)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t count = serve->config->assemble_threads;
    if (count == 0)
        count = cores < 1 ? 1 : cores > 4 ? 4 : (uint32_t)cores;
    if (count > PD_ASSEMBLE_THREADS_MAX)
        count = PD_ASSEMBLE_THREADS_MAX;
    for (uint32_t i = 0; i < count; i++) {
        int rc = worker_start(serve, i, error);
        if (rc != 0)
            return rc;
    }
    return 0;
}

void pd_workers_join(struct pd_serve *serve)
{
    for (uint32_t i = 0; i < serve->worker_count; i++) {
        pthread_join(serve->workers[i].thread, NULL);
        pd_assembler_free(serve->workers[i].assembler);
    }
    serve->worker_count = 0;
}
