/* The daemon: one table of steps starts and stops everything; between them the main thread turns
 * the loop.
 *
 *   start                                    stop, in reverse
 *   loop       libuv, signals, bell          close handles, run the loop empty; free what they
 *                                            belonged to
 *   log        open, lock the directory      close
 *   http       bind                          (closed by then: nobody would answer)
 *   serve      tables                        free (every batch has come back)
 *   validate   its thread, self-test         join (nobody asks any more)
 *   assemble   M threads that build          join; waiting fetches are answered; free the sequencer
 *   collector  its handles                   close (the sequencer holds no request)
 *   sequencer  replay, thread                finish what is queued, snapshot, join
 *              (the loop turns meanwhile)
 *   rpc        bind, N threads               free (stopped by then; else, where a later step
 *                                            failed to start, stop first)
 *   stopper    its thread, parked            join (it has ended the calls, or was never needed)
 *   service    gauges, ports file, READY     not ready any more; close http
 *
 * End: TERM, INT or QUIT asks for it, or a listener that gRPC has given up. The state becomes
 * stopping (readiness and health say no), the stopper runs pd_rpc_stop, which waits for the calls,
 * while the loop goes on answering /livez and /metrics; when it has returned, the loop ends and the
 * steps are undone. While the log is still being read, the reading stops at the next record and the
 * steps so far are undone. A second signal ends the process at once: the log is whole at every
 * moment. (The same one again within a second is the first: timeout(1) and some supervisors signal
 * the process and then its group.) The main thread owns all of struct daemon but `drain_asked`,
 * `reloaded`, `rpc_stopped`, the stopper's semaphore and the bell.
 *
 * It does not know what any part does. */
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "server/collect.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/options.h"
#include "server/ports_file.h"
#include "server/process.h"
#include "server/repro.h"
#include "server/sdnotify.h"
#include "server/serve_view.h"
#include "server/skip_step.h"
#include "server/startup.h"
#include "server/steps.h"
#include "server/validate.h"
#include "server/version.h"
#include "server/watch.h"

#ifdef PD_TEST_FAULTS
#include "server/fault.h"
#endif

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEALTH_MS 100
#define TIDY_MS 3000
#define SAME_SIGNAL_NS UINT64_C(1000000000)
/* EX_TEMPFAIL: starting again helps. */
#define STATUS_DEAF 75

enum state { STARTING, REPLAYING, SERVING, DRAINING, STOPPING };

struct daemon {
    struct pd_config config;
    struct pd_options options;
    enum state state;
    uv_loop_t loop;
    uv_signal_t signals[4];
    int end_signal;
    uint64_t end_signal_ns;
    uv_async_t bell;
    uv_timer_t watchdog, health, tidy;
    struct pd_log *log;
    struct pd_serve *serve;
    struct pd_watch *watch;
    struct pd_repro repro;
    struct pd_skip_step skip_step;
    struct pd_config *file, *fresh; /* as read again and in force; being told to the sequencer */
    struct pd_request_reload reload;
    atomic_bool reloaded;
    struct pd_validation *validation;
    struct pd_collector *collector;
    struct pd_sequencer *sequencer;
    struct pd_rpc *rpc;
    struct pd_http *http;
    bool http_closed;
    pthread_t stopper;
    sem_t stopper_go;
    bool deaf;
    bool ending;            /* an end was asked for; written before stopper_go is posted */
    atomic_int drain_asked; /* from Admin.Drain: 1 drain, 2 take work again, 0 nothing new */
    atomic_bool rpc_stopped;
};

/* ---- readiness ---- */

/* Why no work is taken, or "ready". The bell may still be on its way when Drain has been answered,
 * hence the look at drain_asked. */
static const char *readiness(struct daemon *d)
{
    static const char *const words[] = {"starting", "replaying", "ready", "draining", "stopping"};
    if (d->ending)
        return words[STOPPING];
    if (d->state != SERVING)
        return words[d->state];
    if (atomic_load(&d->drain_asked) == 1)
        return words[DRAINING];
    struct pd_validation_info validator;
    pd_validation_info(d->validation, &validator);
    if (validator.tested && !validator.passed)
        return "the validator's self-test failed; see the log";
    struct pd_serve_gauges gauges;
    pd_serve_gauges(d->serve, &gauges);
    return gauges.halted_feeds > 0 ? "a feed is halted by a violation; see the log"
                                   : words[SERVING];
}

static bool on_readyz(void *ctx, struct pd_buf *text)
{
    struct daemon *d = ctx;
    const char *words = readiness(d);
    char progress[80] = "";
    pd_buf_put(text, words, strlen(words));
    if (d->state == REPLAYING && *pd_startup_progress(d->log, progress, sizeof progress)) {
        pd_buf_put(text, ": ", 2);
        pd_buf_put(text, progress, strlen(progress));
    }
    pd_buf_put(text, "\n", 1);
    return strcmp(words, "ready") == 0;
}

static const char *collected_readiness(void *ctx)
{
    return readiness(ctx);
}

static void on_status(void *ctx, struct pd_buf *json)
{
    struct daemon *d = ctx;
    if (d->state == STARTING || d->state == REPLAYING)
        pd_startup_page(d->log, readiness(d), json);
    else
        pd_collector_page(d->collector, json);
}

static void set_state(struct daemon *d, enum state state)
{
    d->state = state;
    pd_rpc_set_serving(d->rpc, state == SERVING);
}

/* ---- the end ---- */

static void *stop_rpc(void *ctx)
{
    struct daemon *d = ctx;
    pthread_setname_np(pthread_self(), "stopper");
    while (sem_wait(&d->stopper_go) != 0)
        ; /* EINTR */
    if (!d->ending)
        return NULL;
    pd_rpc_stop(d->rpc, d->config.drain_ns);
    atomic_store(&d->rpc_stopped, true);
    uv_async_send(&d->bell);
    return NULL;
}

static void begin_end(struct daemon *d, const char *why)
{
    pd_log(PD_LOG_INFO, "stopping", "why=%s grace_s=%" PRIu64, why,
           d->config.drain_ns / 1000000000u);
    pd_sdnotify("STOPPING=1\nSTATUS=waiting for calls to end");
    set_state(d, STOPPING);
    pd_rpc_drain(d->rpc);
    d->ending = true;
    sem_post(&d->stopper_go);
}

/* Before there are calls: start_sequencer sees it. */
static void end_replay(struct daemon *d, const char *why)
{
    pd_log(PD_LOG_INFO, "stopping", "why=%s text=\"the log is read no further\"", why);
    pd_sdnotify("STOPPING=1\nSTATUS=the log is read no further");
    d->ending = true;
    pd_log_stop_scans(d->log, true);
}

/* A server that nobody can reach must not look alive. */
static void end_where_deaf(struct daemon *d)
{
    if (d->ending || !pd_rpc_is_deaf())
        return;
    pd_log(
        PD_LOG_ERROR, "listener_lost",
        "text=\"gRPC has given up an address: packd ends with status %d, to be started again; the "
        "line before this one has the error of accept\"",
        STATUS_DEAF);
    d->deaf = true;
    begin_end(d, "listener_lost");
}

/* gRPC health and Status say what /readyz says. */
static void on_health(uv_timer_t *timer)
{
    struct daemon *d = timer->data;
    end_where_deaf(d);
    const char *words = readiness(d);
    pd_rpc_set_fault(d->rpc, d->state == SERVING && strcmp(words, "ready") != 0 ? words : NULL);
}

/* ---- reload ---- */

static void config_free(struct pd_config *config)
{
    if (config)
        pd_config_fini(config);
    free(config);
}

/* What feeds say is the sequencer's: it has taken what may change. */
static void tell_reload(void *ctx, const char *key, const char *from, const char *to, bool applied)
{
    unsigned *counts = ctx;
    bool feeds = strcmp(key, "feeds") == 0;
    counts[applied] += !feeds;
    if (feeds)
        pd_log(PD_LOG_INFO, "reload_feeds",
               "text=\"planning rules and weights are in force; other keys need a restart\"");
    else if (applied)
        pd_log(PD_LOG_INFO, "reload_applied", "key=%s from=%s to=%s", key, from, to);
    else
        pd_log(PD_LOG_WARN, "reload_ignored",
               "key=%s from=%.200s to=%.200s text=\"needs a restart\"", key, from, to);
}

static void on_reloaded(struct pd_request *request) /* sequencer thread */
{
    struct daemon *d = PD_CONTAINER_OF(request, struct daemon, reload.base);
    atomic_store(&d->reloaded, true);
    uv_async_send(&d->bell);
}

static void reload_failed(struct daemon *d, const struct pd_error *error)
{
    pd_log(PD_LOG_ERROR, "reload_failed", "reason=%s text=\"%s\" now=\"as before\"", error->reason,
           error->text);
    config_free(d->fresh);
    d->fresh = NULL;
    pd_sdnotify("READY=1");
}

/* SIGHUP: the file is small and local, reading it does not keep the loop. Feeds come first: where
 * the sequencer refuses theirs, nothing of the file is taken. */
static void begin_reload(struct daemon *d)
{
    struct pd_error error = {0};
    char state[80];
    if (d->fresh || !d->sequencer)
        return; /* one is under way: its file may be older, so the sender asks again */
    snprintf(state, sizeof state, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
             pd_clock_mono_ns() / 1000);
    pd_sdnotify(state);
    struct pd_config *fresh = calloc(1, sizeof *fresh);
    int rc = fresh ? pd_options_config(&d->options, fresh, &error)
                   : pd_error_set(&error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    if (rc != 0) {
        free(fresh);
        reload_failed(d, &error);
        return;
    }
    d->fresh = fresh;
    d->reload = (struct pd_request_reload){.base = {.kind = PD_REQUEST_RELOAD, .done = on_reloaded},
                                           .config = d->fresh};
    rc = pd_sequencer_submit(d->sequencer, &d->reload.base);
    if (rc != 0) {
        pd_error_set(&error, rc, "STOPPING", "the sequencer takes no request");
        reload_failed(d, &error);
    }
}

static void end_reload(struct daemon *d)
{
    unsigned counts[2] = {0};
    if (d->reload.base.result != 0) {
        reload_failed(d, &d->reload.base.error);
        return;
    }
    config_free(d->file); /* the sequencer looks at the fresh one now */
    d->file = d->fresh;
    d->fresh = NULL;
    struct pd_error error = {0};
    int rc = pd_config_reload(&d->config, d->file, tell_reload, counts);
    if (rc != 0)
        pd_error_set(&error, rc, "NO_MEMORY", "no memory to compare it");
    if (rc == 0) /* certificates: rpc/tls.c looks at them by itself */
        rc = pd_rpc_reload(d->rpc, &error);
    if (rc != 0)
        pd_log(PD_LOG_ERROR, "reload_failed", "reason=%s text=\"%s\"", error.reason, error.text);
    else
        pd_log(PD_LOG_INFO, "reloaded", "applied=%u ignored=%u feeds_changed=%u", counts[true],
               counts[false], d->reload.changed);
    pd_sdnotify("READY=1");
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct daemon *d = handle->data;
    if (number == SIGHUP) {
        begin_reload(d);
        return;
    }
    uint64_t now_ns = pd_clock_mono_ns();
    if (d->ending && number == d->end_signal && now_ns - d->end_signal_ns < SAME_SIGNAL_NS)
        return;
    const char *why = number == SIGTERM ? "SIGTERM" : number == SIGINT ? "SIGINT" : "SIGQUIT";
    if (d->ending) {
        pd_log(PD_LOG_WARN, "stopped", "text=\"second signal: ended at once; the log is whole\"");
        _exit(1);
    }
    d->end_signal = number;
    d->end_signal_ns = now_ns;
    if (d->state == REPLAYING)
        end_replay(d, why);
    else
        begin_end(d, why);
}

/* Rung by Admin.Drain, by the sequencer when a reload is done, and by the stopper. */
static void on_bell(uv_async_t *bell)
{
    struct daemon *d = bell->data;
    int drain = atomic_exchange(&d->drain_asked, 0);
    if (drain == 1 && d->state == SERVING) {
        pd_log(PD_LOG_INFO, "draining", "why=Drain");
        set_state(d, DRAINING);
    } else if (drain == 2 && d->state == DRAINING) {
        pd_log(PD_LOG_INFO, "serving", "why=\"Drain undone\"");
        set_state(d, SERVING);
    }
    if (atomic_exchange(&d->reloaded, false))
        end_reload(d);
    if (atomic_load(&d->rpc_stopped))
        uv_stop(&d->loop);
}

static void on_drain(void *ctx, bool undo)
{
    struct daemon *d = ctx;
    atomic_store(&d->drain_asked, undo ? 2 : 1);
    uv_async_send(&d->bell);
}

static void on_tidy(uv_timer_t *timer)
{
    (void)timer;
    pd_process_give_back();
}

static void on_watchdog(uv_timer_t *timer)
{
    (void)timer;
    pd_sdnotify("WATCHDOG=1");
}

/* ---- the steps ---- */

static void close_handle(uv_handle_t *handle, void *unused)
{
    (void)unused;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* With whatever handles it has. */
static void close_loop(uv_loop_t *loop)
{
    uv_walk(loop, close_handle, NULL);
    uv_run(loop, UV_RUN_DEFAULT);
    PD_CHECK(uv_loop_close(loop) == 0);
}

static int no_loop(int failed, struct pd_error *error)
{
    return pd_error_set(error, PD_EIO, "LOOP",
                        "libuv made no loop: %s; descriptors or memory are exhausted",
                        uv_strerror(failed));
}

static int start_loop(void *ctx, struct pd_error *error)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    struct daemon *d = ctx;
    int failed = uv_loop_init(&d->loop);
    if (failed != 0)
        return no_loop(failed, error);
    failed = uv_async_init(&d->loop, &d->bell, on_bell);
    d->bell.data = d;
    if (failed == 0)
        failed = uv_timer_init(&d->loop, &d->watchdog);
    if (failed == 0)
        failed = uv_timer_init(&d->loop, &d->health);
    if (failed == 0)
        failed = uv_timer_init(&d->loop, &d->tidy);
    d->health.data = d;
    for (size_t i = 0; failed == 0 && i < PD_COUNT_OF(numbers); i++) {
        failed = uv_signal_init(&d->loop, &d->signals[i]);
        d->signals[i].data = d;
        if (failed == 0)
            failed = uv_signal_start(&d->signals[i], on_signal, numbers[i]);
    }
    if (failed == 0)
        return 0;
    close_loop(&d->loop);
    return no_loop(failed, error);
}

static void stop_loop(void *ctx)
{
    struct daemon *d = ctx;
    close_loop(&d->loop);
    config_free(d->file);
    config_free(d->fresh);
    pd_http_free(d->http);
    pd_collector_free(d->collector);
}

static int start_log(void *ctx, struct pd_error *error)
{
    struct daemon *d = ctx;
    const struct pd_log_options options = {.path = d->config.log_path,
                                           .max_bytes = d->config.log_max_bytes,
                                           .durability = d->config.durability};
    int rc = pd_log_open(&options, &d->log, error);
    if (rc)
        return rc;
    rc = pd_process_check_room(d->config.memory_batches_bytes + d->config.memory_ingest_bytes,
                               error);
    if (rc)
        pd_log_close(d->log);
    return rc;
}

static void stop_log(void *ctx)
{
    pd_log_close(((struct daemon *)ctx)->log);
}

static int start_serve(void *ctx, struct pd_error *error)
{
    struct daemon *d = ctx;
    int rc = pd_watch_new(&d->config, &d->watch, error);
    if (rc == 0)
        rc = pd_serve_new(&d->config, d->log, &d->serve, error);
    if (rc != 0) {
        pd_watch_free(d->watch);
        return rc;
    }
    d->repro = (struct pd_repro){.config = &d->config, .log = d->log};
    d->skip_step = (struct pd_skip_step){.config = &d->config, .serve = d->serve};
    *pd_serve_hooks(d->serve) = (struct pd_serve_hooks){.served = pd_watch_delivered,
                                                        .served_ctx = d->watch,
                                                        .renewed = pd_watch_renewed,
                                                        .renewed_ctx = d->watch,
                                                        .repro = pd_repro_save,
                                                        .repro_ctx = &d->repro,
                                                        .skip = pd_skip_step_ask,
                                                        .skip_ctx = &d->skip_step};
#ifdef PD_TEST_FAULTS
    pd_fault_install(&d->config, d->serve);
#endif
    return 0;
}

static void stop_serve(void *ctx)
{
    struct daemon *d = ctx;
    pd_serve_free(d->serve);
    pd_watch_free(d->watch);
}

static int start_validate(void *ctx, struct pd_error *error)
{
    struct daemon *d = ctx;
    int rc = pd_validation_start(&d->config, &d->validation, error);
    if (rc != 0)
        return rc;
    struct pd_serve_hooks *hooks = pd_serve_hooks(d->serve);
    hooks->validate = pd_validation_probe;
    hooks->validate_ctx = d->validation;
    return 0;
}

static void stop_validate(void *ctx)
{
    pd_validation_stop(((struct daemon *)ctx)->validation);
}

static int start_assemble(void *ctx, struct pd_error *error)
{
    return pd_serve_start(((struct daemon *)ctx)->serve, error);
}

/* Assemble threads may ask the sequencer to their end: it refuses, but is there. */
static void stop_assemble(void *ctx)
{
    struct daemon *d = ctx;
    pd_serve_stop(d->serve);
    pd_sequencer_free(d->sequencer);
}

static int start_collector(void *ctx, struct pd_error *error)
{
    struct daemon *d = ctx;
    return pd_collector_new(&d->loop, &d->collector, error);
}

static void stop_collector(void *ctx)
{
    pd_collector_close(((struct daemon *)ctx)->collector);
}

/* Keeps the replay from ending until somebody opens the FIFO for writing; only in the build that
 * tests use. */
static void hold_replay(void)
{
#ifdef PD_TEST_STEPS
    const char *fifo = getenv("PACKD_TEST_HOLD_REPLAY");
    int fd = fifo ? open(fifo, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0)
        close(fd);
#endif
}

static int start_sequencer(void *ctx, struct pd_error *error)
{
    struct daemon *d = ctx;
    struct pd_startup startup = {
        .config = &d->config, .log = d->log, .serve = d->serve, .before_end = hold_replay};
    pd_log(PD_LOG_INFO, "replaying", "http=%s", pd_http_address(d->http));
    d->state = REPLAYING;
    int rc = pd_startup_run(&startup, &d->loop, error);
    d->state = STARTING;
    d->sequencer = d->skip_step.sequencer = startup.sequencer;
    pd_log_stop_scans(d->log, false);
    if (rc == 0 && d->ending) { /* asked for behind the last record */
        pd_sequencer_stop(d->sequencer);
        rc = PD_ECANCELED;
    }
    return rc;
}

static void stop_sequencer(void *ctx)
{
    pd_sequencer_stop(((struct daemon *)ctx)->sequencer);
}

static int start_rpc(void *ctx, struct pd_error *error)
{
    struct daemon *d = ctx;
    const struct pd_rpc_options options = {.config = &d->config,
                                           .log = d->log,
                                           .sequencer = d->sequencer,
                                           .serve = d->serve,
                                           .validation = d->validation,
                                           .version = PD_VERSION,
                                           .on_drain = on_drain,
                                           .ctx = d};
    return pd_rpc_start(&options, &d->rpc, error);
}

static void stop_rpc_step(void *ctx)
{
    struct daemon *d = ctx;
    if (!atomic_load(&d->rpc_stopped))
        pd_rpc_stop(d->rpc, 1000000000u); /* there are no calls: it takes no time */
    pd_rpc_free(d->rpc);
}

/* Made now, as an end that is asked for later must not fail for lack of a thread. */
static int start_stopper(void *ctx, struct pd_error *error)
{
    struct daemon *d = ctx;
    int failed = sem_init(&d->stopper_go, 0, 0) == 0
                     ? pthread_create(&d->stopper, NULL, stop_rpc, d)
                     : errno;
    return failed == 0 ? 0
                       : pd_error_set(error, PD_EIO, "THREAD",
                                      "the stopper thread cannot be started: %s", strerror(failed));
}

/* Where the end was never begun the thread has nothing to do. */
static void stop_stopper(void *ctx)
{
    struct daemon *d = ctx;
    if (!d->ending)
        sem_post(&d->stopper_go);
    pthread_join(d->stopper, NULL);
    sem_destroy(&d->stopper_go);
}

static int start_http(void *ctx, struct pd_error *error)
{
    struct daemon *d = ctx;
    const struct pd_http_options options = {.loop = &d->loop,
                                            .address = d->config.http,
                                            .ctx = d,
                                            .ready = on_readyz,
                                            .status = on_status};
    int rc = pd_http_start(&options, &d->http, error);
    if (rc == 0)
        pd_metrics_register(pd_startup_metrics, NULL);
    return rc;
}

static void stop_http(void *ctx)
{
    struct daemon *d = ctx;
    pd_metrics_unregister_all();
    if (!d->http_closed)
        pd_http_stop(d->http);
    d->http_closed = true;
}

static void announce(const struct daemon *d)
{
    char addresses[1024] = "";
    size_t used = 0;
    uint32_t count;
    const char *const *all = pd_rpc_addresses(d->rpc, PD_DOOR_MAIN, &count);
    for (uint32_t i = 0; i < count && used < sizeof addresses; i++)
        used += (size_t)snprintf(addresses + used, sizeof addresses - used, "%s%s", i ? "," : "",
                                 all[i]);
    pd_log(PD_LOG_INFO, "ready",
           "version=%s grpc=%s http=%s log_id=%s incarnation=%" PRIu64 " log_opens=%" PRIu64
           " feeds=%u",
           PD_VERSION, addresses, pd_http_address(d->http), pd_log_id(d->log),
           pd_rpc_incarnation(d->rpc), pd_log_incarnation(d->log), d->config.feed_count);
    pd_sdnotify("READY=1\nSTATUS=serving");
}

static int start_service(void *ctx, struct pd_error *error)
{
    struct daemon *d = ctx;
    const struct pd_collector_sources sources = {.config = &d->config,
                                                 .log = d->log,
                                                 .serve = d->serve,
                                                 .sequencer = d->sequencer,
                                                 .rpc = d->rpc,
                                                 .validation = d->validation,
                                                 .watch = d->watch,
                                                 .readiness = collected_readiness,
                                                 .ctx = d};
    const char *path = d->options.ports_path;
    int rc = path ? pd_ports_file_write(path, d->rpc, pd_http_address(d->http), error) : 0;
    if (rc != 0)
        return rc;
    pd_metrics_unregister_all();
    pd_collector_start(d->collector, &sources);
    uint64_t interval_ms = pd_sdnotify_interval_ns() / 1000000;
    if (interval_ms > 0)
        uv_timer_start(&d->watchdog, on_watchdog, interval_ms, interval_ms);
    uv_timer_start(&d->health, on_health, HEALTH_MS, HEALTH_MS);
    uv_timer_start(&d->tidy, on_tidy, TIDY_MS, TIDY_MS);
    set_state(d, SERVING);
    announce(d);
    return 0;
}

static void stop_service(void *ctx)
{
    struct daemon *d = ctx;
    uv_timer_stop(&d->health);
    uv_timer_stop(&d->tidy);
    pd_collector_stop(d->collector);
    stop_http(d);
    if (d->options.ports_path)
        unlink(d->options.ports_path);
}

static const struct pd_step steps[] = {
    {"loop", start_loop, stop_loop},
    {"log", start_log, stop_log},
    {"http", start_http, stop_http},
    {"serve", start_serve, stop_serve},
    {"validate", start_validate, stop_validate},
    {"assemble", start_assemble, stop_assemble},
    {"collector", start_collector, stop_collector},
    {"sequencer", start_sequencer, stop_sequencer},
    {"rpc", start_rpc, stop_rpc_step},
    {"stopper", start_stopper, stop_stopper},
    {"service", start_service, stop_service},
};

/* Names a step that shall fail; only in the build that tests use. */
static const char *fail_before(void)
{
#ifdef PD_TEST_STEPS
    return getenv("PACKD_TEST_FAIL_STEP");
#else
    return NULL;
#endif
}

/* The sums the daemon keeps within, in force after all layers of the configuration. */
static void say_limits(const struct pd_config *config)
{
    char batches[24], ingest[24], log[24], sample[24];
    pd_log(PD_LOG_INFO, "limits", "batches=%s ingest=%s log=%s sample=%s drain_s=%" PRIu64,
           pd_units_format_bytes(config->memory_batches_bytes, batches, sizeof batches),
           pd_units_format_bytes(config->memory_ingest_bytes, ingest, sizeof ingest),
           pd_units_format_bytes(config->log_max_bytes, log, sizeof log),
           pd_units_format_bytes(config->max_sample_bytes, sample, sizeof sample),
           config->drain_ns / 1000000000u);
}

static int serve(struct daemon *d)
{
    struct pd_error error = {0};
    pd_process_setup("packd " PD_VERSION);
    pd_metrics_build(PD_VERSION, PD_REVISION, pd_validator_cuda());
    say_limits(&d->config);
    int rc = pd_steps_start(steps, PD_COUNT_OF(steps), d, fail_before(), &error);
    if (rc == PD_ECANCELED) {
        pd_log(PD_LOG_INFO, "stopped", "text=\"as asked, while starting\"");
        return 0;
    }
    if (rc != 0) {
        fprintf(stderr, "packd: %s\n", error.text);
        return 1;
    }
    pd_process_unblock_signals();
    uv_run(&d->loop, UV_RUN_DEFAULT);
    pd_steps_stop(steps, PD_COUNT_OF(steps), d);
    pd_log(PD_LOG_INFO, "stopped", "text=\"%s\"", d->deaf ? "nobody could connect" : "as asked");
    return d->deaf ? STATUS_DEAF : 0;
}

/* Prints the configuration even where a file it names is not fit: that shows which one is meant. */
static int check_config(const struct pd_config *config)
{
    struct pd_error error = {0};
    if (pd_config_print(config, stdout) != 0)
        return 1;
    if (pd_rpc_check_files(config, &error) == 0)
        return 0;
    fprintf(stderr, "packd: %s\n", error.text);
    return 1;
}

int main(int argc, char **argv)
{
    struct daemon d = {.state = STARTING};
    struct pd_error error = {0};
    pd_process_block_signals(); /* one that comes before the loop runs ends the daemon in order */
    if (pd_process_hold_descriptors(&error) != 0)
        return 1; /* there may be nobody to tell */
    if (pd_options_parse(&d.options, argc, argv, &error) != 0) {
        fprintf(stderr, "packd: %s\n", error.text);
        return 2;
    }
    if (d.options.help)
        return pd_options_help(stdout) != 0;
    if (d.options.version)
        return printf("packd %s\n", PD_VERSION) < 0;
    if (d.options.check_config)
        pd_process_unblock_signals();
    if (pd_process_log_setup(&error) != 0 ||
        pd_options_config(&d.options, &d.config, &error) != 0) {
        fprintf(stderr, "packd: %s\n", error.text);
        return 1;
    }
    int status = d.options.check_config ? check_config(&d.config) : serve(&d);
    pd_config_fini(&d.config);
    return status;
}
