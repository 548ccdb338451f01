/* The start of a daemon with a long log: it is read on a thread of its own, and the main loop
 * answers HTTP meanwhile.
 *
 * Place in the flow: the step "sequencer" of packd.c, and what HTTP asks before the collector has
 * anything to collect. Main thread, but for run(); of the log the main thread reads two atomics.
 * Invariant: pd_startup_run leaves neither thread nor handle, and signals blocked as it found them.
 * It knows no record. */
#include "server/startup.h"

#include "base/clock.h"
#include "server/process.h"
#include "server/sdnotify.h"
#include "server/version.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* How often the supervisor is told that the replay goes on, and the time that gives it: its limit
 * for starts is not meant for a log that takes its time. */
#define TELL_MS 1000
#define EXTEND "EXTEND_TIMEOUT_USEC=60000000"

/* ---- the replay ---- */

static void *run(void *ctx)
{
    struct pd_startup *startup = ctx;
    pthread_setname_np(pthread_self(), "replay");
    startup->rc = pd_sequencer_start(startup->config, startup->log, startup->serve,
                                     &startup->sequencer, &startup->error);
    if (startup->before_end)
        startup->before_end();
    atomic_store(&startup->over, true);
    uv_async_send(&startup->bell);
    return NULL;
}

static void on_over(uv_async_t *bell)
{
    uv_stop(bell->loop);
}

static void on_timer(uv_timer_t *timer)
{
    const struct pd_startup *startup = timer->data;
    char progress[80], state[200];
    snprintf(state, sizeof state, EXTEND "\nSTATUS=replaying the log: %s",
             pd_startup_progress(startup->log, progress, sizeof progress));
    pd_sdnotify(state);
}

static void on_closed(uv_handle_t *handle)
{
    struct pd_startup *startup = handle->data;
    startup->open_handles--;
}

static void close_handles(struct pd_startup *startup, uv_loop_t *loop)
{
    uv_close((uv_handle_t *)&startup->bell, on_closed);
    uv_close((uv_handle_t *)&startup->timer, on_closed);
    while (startup->open_handles > 0)
        uv_run(loop, UV_RUN_ONCE);
}

int pd_startup_run(struct pd_startup *startup, uv_loop_t *loop, struct pd_error *error)
{
    int failed = uv_async_init(loop, &startup->bell, on_over);
    if (failed != 0)
        return pd_error_set(error, PD_EIO, "LOOP", "libuv made no handle for the replay: %s",
                            uv_strerror(failed));
    uv_timer_init(loop, &startup->timer);
    startup->bell.data = startup->timer.data = startup;
    startup->open_handles = 2;
    failed = pthread_create(&startup->thread, NULL, run, startup);
    if (failed == 0) {
        uv_timer_start(&startup->timer, on_timer, 0, TELL_MS);
        pd_process_unblock_ends();
        while (!atomic_load(&startup->over))
            uv_run(loop, UV_RUN_DEFAULT);
        pd_process_block_signals();
        pthread_join(startup->thread, NULL);
    }
    close_handles(startup, loop);
    if (failed != 0)
        return pd_error_set(error, PD_EIO, "THREAD", "the replay has no thread: %s",
                            strerror(failed));
    if (startup->rc != 0)
        *error = startup->error;
    return startup->rc;
}

/* ---- what is told ---- */

const char *pd_startup_progress(const struct pd_log *log, char *text, size_t size)
{
    uint64_t position, end;
    *text = '\0';
    if (pd_log_scanned(log, &position, &end))
        (void)snprintf(text, size, "record %" PRIu64 " of %" PRIu64, position, end);
    return text;
}

static int put_piece(const char *data, size_t size, void *buf)
{
    pd_buf_put(buf, data, size);
    return 0;
}

void pd_startup_page(const struct pd_log *log, const char *readiness, struct pd_buf *json)
{
    char progress[80];
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:I, s:[]}", "version", PD_VERSION, "readiness", readiness,
                  "starting", pd_startup_progress(log, progress, sizeof progress), "now_ms",
                  (json_int_t)(pd_clock_wall_ns() / 1000000u), "feeds");
    json->failed |= !root || json_dump_callback(root, put_piece, json, JSON_COMPACT) != 0;
    json_decref(root);
}

void pd_startup_metrics(void *unused, struct pd_metrics_writer *writer)
{
    (void)unused;
    pd_metrics_collected(writer, PD_C_READY);
    pd_metrics_sample(writer, pd_metrics_collected_name(PD_C_READY), "", 0);
}
