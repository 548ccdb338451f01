/* Completion queues and times of the stand-in for gRPC.
 *
 * A queue hands its events out in the order in which they ended; it counts what was begun, and says
 * that it is shut down once that is 0. Who waits at a queue also keeps the deadline of the one call
 * that was named for it, since there is no thread here that could. */
#include "tests/seam/seam.h"

#include "base/check.h"

#include <grpc/support/alloc.h>
#include <grpc/support/log.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct event {
    struct event *next;
    void *tag;
    bool ok;
};

struct grpc_completion_queue {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    struct event *first, **last;
    size_t owed;
    bool shut;
    grpc_call *timed;
    gpr_timespec deadline;
};

/* ---- times: of the monotonic clock, whatever clock is named ---- */

gpr_timespec gpr_now(gpr_clock_type clock)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (gpr_timespec){
        .tv_sec = now.tv_sec, .tv_nsec = (int32_t)now.tv_nsec, .clock_type = clock};
}

gpr_timespec gpr_inf_future(gpr_clock_type clock)
{
    return (gpr_timespec){.tv_sec = INT64_MAX, .clock_type = clock};
}

gpr_timespec gpr_time_from_nanos(int64_t ns, gpr_clock_type clock)
{
    return (gpr_timespec){
        .tv_sec = ns / 1000000000, .tv_nsec = (int32_t)(ns % 1000000000), .clock_type = clock};
}

gpr_timespec gpr_time_add(gpr_timespec a, gpr_timespec b)
{
    int64_t ns = (int64_t)a.tv_nsec + b.tv_nsec;
    a.tv_sec += b.tv_sec + ns / 1000000000;
    a.tv_nsec = (int32_t)(ns % 1000000000);
    return a;
}

/* A point of the monotonic clock has passed. */
static bool time_passed(gpr_timespec when)
{
    gpr_timespec now = gpr_now(GPR_CLOCK_MONOTONIC);
    return now.tv_sec > when.tv_sec || (now.tv_sec == when.tv_sec && now.tv_nsec >= when.tv_nsec);
}

static bool earlier(gpr_timespec a, gpr_timespec b)
{
    return a.tv_sec < b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec < b.tv_nsec);
}

/* ---- queues ---- */

grpc_completion_queue *grpc_completion_queue_create_for_next(void *reserved)
{
    struct grpc_completion_queue *queue = calloc(1, sizeof *queue);
    pthread_condattr_t monotonic;
    PD_CHECK(queue && !reserved);
    PD_CHECK(pthread_mutex_init(&queue->lock, NULL) == 0 && pthread_condattr_init(&monotonic) == 0);
    PD_CHECK(pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0);
    PD_CHECK(pthread_cond_init(&queue->changed, &monotonic) == 0);
    pthread_condattr_destroy(&monotonic);
    queue->last = &queue->first;
    return queue;
}

void seam_queue_begin(grpc_completion_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->owed++;
    pthread_mutex_unlock(&queue->lock);
}

void seam_queue_end(grpc_completion_queue *queue, void *tag, bool ok)
{
    struct event *event = calloc(1, sizeof *event);
    PD_CHECK(event);
    *event = (struct event){.tag = tag, .ok = ok};
    pthread_mutex_lock(&queue->lock);
    PD_CHECK(queue->owed > 0);
    queue->owed--;
    *queue->last = event;
    queue->last = &event->next;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}

void seam_queue_time(grpc_completion_queue *queue, grpc_call *call, gpr_timespec deadline)
{
    pthread_mutex_lock(&queue->lock);
    queue->timed = call;
    queue->deadline = deadline;
    pthread_mutex_unlock(&queue->lock);
}

/* Lock held. False: the time has passed. */
static bool wait_until(grpc_completion_queue *queue, gpr_timespec until)
{
    if (until.tv_sec == INT64_MAX) {
        pthread_cond_wait(&queue->changed, &queue->lock);
        return true;
    }
    struct timespec when = {.tv_sec = (time_t)until.tv_sec, .tv_nsec = until.tv_nsec};
    return pthread_cond_timedwait(&queue->changed, &queue->lock, &when) == 0 || !time_passed(until);
}

/* Lock held, and let go of for a moment. */
static void keep_deadline(grpc_completion_queue *queue)
{
    grpc_call *late = queue->timed;
    if (!late || !time_passed(queue->deadline))
        return;
    queue->timed = NULL;
    pthread_mutex_unlock(&queue->lock);
    (void)grpc_call_cancel_with_status(late, GRPC_STATUS_DEADLINE_EXCEEDED, "Deadline Exceeded",
                                       NULL);
    pthread_mutex_lock(&queue->lock);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue *queue, gpr_timespec deadline,
                                      void *reserved)
{
    grpc_event result = {.type = GRPC_QUEUE_TIMEOUT};
    bool in_time = true;
    PD_CHECK(!reserved);
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        keep_deadline(queue);
        struct event *event = queue->first;
        if (event) {
            queue->first = event->next;
            if (!queue->first)
                queue->last = &queue->first;
            result =
                (grpc_event){.type = GRPC_OP_COMPLETE, .success = event->ok, .tag = event->tag};
            free(event);
            break;
        }
        if (queue->shut && queue->owed == 0) {
            result.type = GRPC_QUEUE_SHUTDOWN;
            break;
        }
        if (!in_time)
            break;
        bool by_call = queue->timed && earlier(queue->deadline, deadline);
        in_time = wait_until(queue, by_call ? queue->deadline : deadline) || by_call;
    }
    pthread_mutex_unlock(&queue->lock);
    return result;
}

void grpc_completion_queue_shutdown(grpc_completion_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->shut = true;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}

void grpc_completion_queue_destroy(grpc_completion_queue *queue)
{
    PD_CHECK(queue->shut && queue->owed == 0 && !queue->first);
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

/* ---- the library ---- */

void grpc_init(void)
{
}

void grpc_shutdown(void)
{
}

void grpc_shutdown_blocking(void)
{
}

void gpr_free(void *memory)
{
    free(memory);
}

void gpr_set_log_function(gpr_log_func function)
{
    (void)function;
}

static int is_real(struct dl_phdr_info *info, size_t size, void *found)
{
    (void)size;
    if (strstr(info->dlpi_name, "libgrpc"))
        *(bool *)found = true;
    return 0;
}

bool seam_has_real_grpc(void)
{
    bool found = false;
    dl_iterate_phdr(is_real, &found);
    return found;
}
