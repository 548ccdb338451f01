/* The collector's copy: asking for it, taking it, its life.
 *
 * Place in the flow: beside everything; the data path does not know of it. Owning thread: main.
 * Invariant: `asked` is true exactly while the request belongs to the sequencer; only then may its
 * thread touch it, and `done` hands it back under the mutex. It decides nothing. */
#include "server/collect_state.h"

#include "base/check.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

#define PERIOD_MS 1000

/* ---- asking ---- */

/* Sequencer thread. */
static void on_status(struct pd_request *request)
{
    struct pd_collector *collector = PD_CONTAINER_OF(request, struct pd_collector, request.base);
    pthread_mutex_lock(&collector->lock);
    collector->arrived = true;
    pthread_mutex_unlock(&collector->lock);
    uv_async_send(&collector->bell);
}

static void ask(struct pd_collector *collector)
{
    if (collector->asked)
        return;
    collector->request =
        (struct pd_request_status){.base = {.kind = PD_REQUEST_STATUS, .done = on_status}};
    collector->asked = true;
    if (pd_sequencer_submit(collector->sources.sequencer, &collector->request.base) != 0)
        collector->asked = false; /* full or stopping: the copy stays as old as its time says */
}

/* ---- the copy ---- */

static void drop_jobs(struct pd_collected_feed *feed)
{
    for (uint32_t i = 0; i < feed->job_count; i++)
        free(feed->jobs[i].ranks);
    free(feed->jobs);
    feed->jobs = NULL;
    feed->job_count = 0;
}

static void take_jobs(struct pd_collector *collector, uint32_t feed_index)
{
    struct pd_collected_feed *feed = &collector->feeds[feed_index];
    const struct pd_feed_status *status = pd_collected_status(collector, feed_index);
    drop_jobs(feed);
    if (!status || status->job_count == 0)
        return;
    feed->jobs = calloc(status->job_count, sizeof *feed->jobs);
    for (uint32_t i = 0; feed->jobs && i < status->job_count; i++, feed->job_count++)
        if (pd_serve_job_view(collector->sources.serve, feed_index, status->jobs[i].job_id,
                              &feed->jobs[i]) != 0)
            feed->jobs[i] = (struct pd_job_view){0};
}

static void take_history(struct pd_collector *collector, uint32_t feed_index)
{
    struct pd_collected_feed *feed = &collector->feeds[feed_index];
    struct pd_watch_sums sums;
    pd_watch_sums(collector->sources.watch, feed_index, &sums);
    if (sums.renewed != feed->renewed)
        feed->history = (struct pd_history){0};
    feed->renewed = sums.renewed;
    const struct pd_history_mark mark = {
        .at_ns = pd_clock_mono_ns(),
        .real = sums.real,
        .positions = sums.real + sums.gap + sums.tail + sums.row_padding,
        .pushed = pd_metric_feed_value(PD_F_INGEST_TOKENS, feed_index)};
    pd_history_note(&feed->history, &mark);
}

static void take_feed(struct pd_collector *collector, uint32_t feed_index)
{
    const struct pd_collector_sources *sources = &collector->sources;
    struct pd_collected_feed *feed = &collector->feeds[feed_index];
    struct pd_error error;
    pd_serve_feed_wait(sources->serve, feed_index, &feed->wait);
    feed->halted = pd_serve_halted(sources->serve, feed_index, &error);
    if (feed->halted)
        memcpy(feed->halt_text, error.text, sizeof feed->halt_text);
    feed->full = pd_sequencer_feed_full(sources->sequencer, feed_index);
    feed->stalled = feed->full && pd_sequencer_stall(sources->sequencer, feed_index, &feed->stall);
    take_history(collector, feed_index);
}

/* All but what the sequencer says: each read takes its owner's lock for a copy. */
static void take_gauges(struct pd_collector *collector)
{
    const struct pd_collector_sources *sources = &collector->sources;
    pd_serve_gauges(sources->serve, &collector->serve);
    pd_rpc_gauges(sources->rpc, &collector->rpc);
    pd_validation_info(sources->validation, &collector->validator);
    collector->log_bytes = pd_log_used_bytes(sources->log);
    collector->log_full = pd_sequencer_log_full(sources->sequencer);
    collector->readiness = sources->readiness(sources->ctx);
    for (uint32_t i = 0; i < sources->config->feed_count; i++)
        take_feed(collector, i);
    pd_buf_clear(&collector->page);
}

static void take_answer(struct pd_collector *collector)
{
    pthread_mutex_lock(&collector->lock);
    bool arrived = collector->arrived;
    collector->arrived = false;
    pthread_mutex_unlock(&collector->lock);
    if (!arrived)
        return;
    collector->asked = false;
    if (collector->request.base.result != 0) {
        pd_status_fini(&collector->request);
        return;
    }
    pd_status_fini(&collector->status);
    collector->status = collector->request;
    collector->status_wall_ns = pd_clock_wall_ns();
    for (uint32_t i = 0; collector->running && i < collector->sources.config->feed_count; i++)
        take_jobs(collector, i);
    pd_buf_clear(&collector->page);
    pd_metric_heartbeat("sequencer");
}

static void on_bell(uv_async_t *bell)
{
    take_answer(bell->data);
}

static void on_timer(uv_timer_t *timer)
{
    pd_metric_heartbeat("main");
    take_gauges(timer->data);
    ask(timer->data);
}

/* ---- looking ---- */

const struct pd_feed_status *pd_collected_status(const struct pd_collector *collector,
                                                 uint32_t feed_index)
{
    const char *name = collector->sources.config->feeds[feed_index].name;
    for (uint32_t i = 0; i < collector->status.feed_count; i++)
        if (strcmp(collector->status.feeds[i].name, name) == 0)
            return &collector->status.feeds[i];
    return NULL;
}

uint64_t pd_collected_planned(const struct pd_collector *collector, uint32_t feed_index,
                              const struct pd_feed_status *feed, const struct pd_job_status *job)
{
    const struct pd_job_steps steps = {.config = &collector->sources.config->feeds[feed_index],
                                       .first_pack = job->first_pack,
                                       .step_packs = job->spec.step_packs};
    return steps.step_packs ? pd_job_steps_planned(&steps, feed->packs_planned, feed->ended) : 0;
}

void pd_collector_page(struct pd_collector *collector, struct pd_buf *json)
{
    if (collector->page.size_bytes == 0)
        pd_collect_page(collector, &collector->page);
    pd_buf_put(json, collector->page.data, collector->page.size_bytes);
    json->failed |= collector->page.failed;
}

/* ---- life ---- */

static int no_handle(int failed, struct pd_collector *collector, struct pd_error *error)
{
    pthread_mutex_destroy(&collector->lock);
    free(collector);
    return pd_error_set(error, PD_EIO, "LOOP", "libuv made no handle for the collector: %s",
                        uv_strerror(failed));
}

int pd_collector_new(uv_loop_t *loop, struct pd_collector **result, struct pd_error *error)
{
    struct pd_collector *collector = calloc(1, sizeof *collector);
    if (!collector || pthread_mutex_init(&collector->lock, NULL) != 0) {
        free(collector);
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for the collector");
    }
    int failed = uv_async_init(loop, &collector->bell, on_bell);
    if (failed != 0) /* the only call here that can fail: it may need a descriptor */
        return no_handle(failed, collector, error);
    uv_timer_init(loop, &collector->timer);
    collector->timer.data = collector->bell.data = collector;
    collector->readiness = "starting";
    *result = collector;
    return 0;
}

void pd_collector_start(struct pd_collector *collector, const struct pd_collector_sources *sources)
{
    collector->sources = *sources;
    collector->started_wall_ns = pd_clock_wall_ns();
    collector->running = true;
    pd_collect_known_labels(sources->config);
    take_gauges(collector);
    pd_metrics_register(pd_collect_metrics, collector);
    uv_timer_start(&collector->timer, on_timer, 0, PERIOD_MS);
}

void pd_collector_stop(struct pd_collector *collector)
{
    uv_timer_stop(&collector->timer);
    pd_metrics_unregister_all();
    collector->running = false;
}

void pd_collector_close(struct pd_collector *collector)
{
    PD_CHECK(!collector->running);
    take_answer(collector);
    PD_CHECK(!collector->asked); /* the sequencer has stopped: it keeps no request */
    uv_close((uv_handle_t *)&collector->timer, NULL);
    uv_close((uv_handle_t *)&collector->bell, NULL);
}

void pd_collector_free(struct pd_collector *collector)
{
    if (!collector)
        return;
    pd_status_fini(&collector->status);
    for (uint32_t i = 0; i < PD_FEEDS_MAX; i++)
        drop_jobs(&collector->feeds[i]);
    pd_buf_fini(&collector->page);
    pthread_mutex_destroy(&collector->lock);
    free(collector);
}
