/* The gRPC server: binding, threads, start and stop.
 *
 * Place in the flow: packd.c starts it once everything it asks has started, and ends all
 * calls before anything is stopped. N threads, each with one completion
 * queue; every queue keeps accepts posted, and a call stays where it was accepted. Invariant:
 * `live` counts every posted accept and every call; queues are shut down only when it is 0, so no
 * event can be posted to a queue that is going away. It knows no method.
 *
 * Timers: a thread waits for its queue at most until its next tick, and at each tick looks at every
 * call it owns (writes that make no progress, Waiting messages, credit). So time-outs are 100 ms
 * coarse and need no alarms.
 *
 * Stop: NOT_SERVING; server shutdown (posted accepts come back, connections get GOAWAY); each long
 * call is told and ends itself; after the grace period all calls are cancelled; queues are shut
 * down, threads joined, everything destroyed, at last gRPC itself, which lets go of the last
 * slices. */
#include "server/rpc/accept.h"
#include "server/rpc/call.h"
#include "server/rpc/frames.h"
#include "server/rpc/grpc_log.h"
#include "server/rpc/interposed.h"
#include "server/rpc/read_plain.h"
#include "server/rpc/read_tls.h"
#include "server/rpc/tls.h"

#include "base/check.h"
#include "base/log.h"

#include <errno.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* Posted for each queue and door. */
static const uint32_t accepts_per_thread[PD_DOORS] = {64, 8, 8};
#define THREADS_MAX 64
/* After all calls were cancelled, gRPC needs only its own threads' time to give everything back. */
#define CANCEL_WAIT_NS 10000000000u
/* An idle client may not even read the GOAWAY (stock Python polls only inside calls), and gRPC
 * would wait 20 s for its answer. */
#define GOAWAY_WAIT_NS 300000000u

struct accept {
    struct pd_tag tag;
    struct pd_rpc_thread *thread;
    enum pd_door door;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
};

void pd_rpc_live_add(struct pd_rpc *rpc, int amount)
{
    pthread_mutex_lock(&rpc->lock);
    PD_CHECK(amount > 0 || rpc->live >= (uint32_t)-amount);
    rpc->live += (uint32_t)amount;
    if (rpc->live == 0)
        pthread_cond_broadcast(&rpc->changed);
    pthread_mutex_unlock(&rpc->lock);
}

/* ---- accepting ---- */

static void accept_free(struct accept *accept)
{
    struct pd_rpc *rpc = accept->thread->rpc;

    grpc_call_details_destroy(&accept->details);
    grpc_metadata_array_destroy(&accept->metadata);
    free(accept);
    pd_rpc_live_add(rpc, -1);
}

static void accept_post(struct pd_rpc_thread *thread, enum pd_door door);

/* What is open at a door, on however many connections. Each door counts for itself, so that those
 * get in at Admin's and the probes' who can do something about a flood at `listen`. Threads that
 * ask at once may pass it by one call each. */
static int check_calls(struct pd_rpc *rpc, enum pd_door door, const struct pd_method *method,
                       struct pd_error *error)
{
    uint32_t open = atomic_load(&rpc->calls_open[door]), max = pd_rpc_calls_max(rpc, door);

    if (open >= max) {
        pd_frames_crowd(door, pd_clock_mono_ns());
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY_CALLS",
                            "%u calls are open at this address, as many as it serves (%s%u)", open,
                            door == PD_DOOR_MAIN ? "limits.push_calls and " : "",
                            door == PD_DOOR_MAIN ? PD_RPC_OTHER_CALLS_MAX : max);
    }
    open = atomic_load(&rpc->anyone_open[door]);
    if (method->anyone && open >= PD_RPC_ANYONE_CALLS_MAX)
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY_CALLS",
                            "%u calls of health and reflection are open at this address, as many "
                            "as it serves",
                            open);
    return 0;
}

static int count_peer(struct pd_rpc *rpc, grpc_call *call, uint32_t *slot, struct pd_error *error)
{
    const struct pd_config *config = rpc->options.config;
    if (config->peer_calls_max == 0 && config->peer_rate_max == 0 && config->peer_bytes == 0)
        return 0;
    char *peer = grpc_call_get_peer(call);
    int rc = pd_peers_enter(rpc->peers, peer ? peer : "", pd_clock_mono_ns(), slot, error);
    if (rc != 0)
        pd_log(PD_LOG_WARN, "peer_limited", "peer=%s text=\"%s\"", peer ? peer : "?", error->text);
    gpr_free(peer);
    return rc;
}

/* Hands the call to its method, or ends it where its maker may not call that. */
static void begin_call(const struct accept *accept)
{
    struct pd_rpc *rpc = accept->thread->rpc;
    const grpc_slice slice = accept->details.method;
    const char *path = (const char *)GRPC_SLICE_START_PTR(slice);
    const struct pd_method *method = pd_method_find(path, GRPC_SLICE_LENGTH(slice));
    const struct pd_principal_config *who;
    struct pd_error error;
    uint32_t slot = PD_NO_PEER;
    int rc = check_calls(rpc, accept->door, method, &error);
    if (rc == 0 && accept->door != PD_DOOR_HEALTH)
        rc = count_peer(rpc, accept->call, &slot, &error);
    if (rc == 0)
        rc = pd_access_admit(rpc->access, accept->door, path, GRPC_SLICE_LENGTH(slice),
                             accept->call, &accept->metadata, &who, &error);
    if (rc == 0) {
        pd_call_accept(accept->thread, accept->door, accept->call, method, who, slot);
        return;
    }
    pd_peers_leave(rpc->peers, slot);
    pd_call_refuse(accept->thread, accept->door, accept->call, &error);
}

static void on_accept(struct pd_tag *tag, bool ok)
{
    struct accept *accept = PD_CONTAINER_OF(tag, struct accept, tag);

    if (ok) {
        accept_post(accept->thread, accept->door);
        begin_call(accept);
    }
    accept_free(accept);
}

static void accept_post(struct pd_rpc_thread *thread, enum pd_door door)
{
    if (atomic_load(&thread->rpc->stopping))
        return;
    struct accept *accept = calloc(1, sizeof(*accept));
    if (!accept)
        return; /* the other accepts of the queue go on */
    accept->tag.done = on_accept;
    accept->thread = thread;
    accept->door = door;
    grpc_call_details_init(&accept->details);
    grpc_metadata_array_init(&accept->metadata);
    pd_rpc_live_add(thread->rpc, 1);
    grpc_call_error rc =
        grpc_server_request_call(thread->rpc->servers[door], &accept->call, &accept->details,
                                 &accept->metadata, thread->cq, thread->cq, &accept->tag);
    if (rc != GRPC_CALL_OK)
        accept_free(accept);
}

/* ---- the threads ---- */

uint64_t pd_rpc_patience_ns(const struct pd_rpc_thread *thread)
{
    return pd_clock_mono_ns() - thread->lost_ns;
}

/* What was lost may be known only since then: `since_ns` then lies ahead. */
bool pd_rpc_is_stalled(const struct pd_rpc_thread *thread, uint64_t since_ns)
{
    uint64_t now_ns = pd_rpc_patience_ns(thread);

    return now_ns > since_ns && now_ns - since_ns > thread->rpc->options.config->stall_ns;
}

static void tick_call(struct pd_call *call)
{
    struct pd_rpc *rpc = call->thread->rpc;

    if (call->writing && !call->closed && pd_rpc_is_stalled(call->thread, call->write_since_ns)) {
        pd_log(PD_LOG_WARN, "call_stalled", "method=%s", call->method->path);
        (void)grpc_call_cancel_with_status(call->call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                                           "STALL: the peer takes nothing", NULL);
        return;
    }
    if (pd_call_is_over(call))
        return;
    if (atomic_load(&rpc->stopping) && !call->stop_told) {
        call->stop_told = true;
        if (call->method->stop)
            call->method->stop(call);
    }
    if (!pd_call_is_over(call) && !call->heard &&
        pd_rpc_is_stalled(call->thread, call->open_since_ns))
        (void)pd_call_fail_with(call, PD_ELIMIT, "STALL",
                                "no message came within limits.stall of the call's beginning");
    if (!pd_call_is_over(call) && call->method->tick)
        call->method->tick(call);
}

static void tick(struct pd_rpc_thread *thread)
{
    uint64_t now_ns = pd_clock_mono_ns();

    if (now_ns < thread->tick_at_ns)
        return;
    if (thread->tick_at_ns > 0 && now_ns - thread->tick_at_ns > PD_RPC_TICK_NS)
        thread->lost_ns += now_ns - thread->tick_at_ns;
    thread->tick_at_ns = now_ns + PD_RPC_TICK_NS;
    if (thread->index == 0) {
        pd_connections_look(thread->rpc->connections);
        pd_accept_unstick();
    }
    for (struct pd_link *at = thread->calls.next; at != &thread->calls;) {
        struct pd_call *call = PD_CONTAINER_OF(at, struct pd_call, link);
        at = at->next;
        pd_call_ref(call);
        tick_call(call);
        pd_call_unref(call);
    }
}

static gpr_timespec next_tick(const struct pd_rpc_thread *thread)
{
    uint64_t now_ns = pd_clock_mono_ns();
    uint64_t wait_ns = thread->tick_at_ns > now_ns ? thread->tick_at_ns - now_ns : 0;

    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                        gpr_time_from_nanos((int64_t)wait_ns, GPR_TIMESPAN));
}

static void *run(void *arg)
{
    struct pd_rpc_thread *thread = arg;
    char name[16];

    (void)snprintf(name, sizeof(name), "rpc-%u", thread->index);
    (void)pthread_setname_np(pthread_self(), name);
    for (;;) {
        grpc_event event = grpc_completion_queue_next(thread->cq, next_tick(thread), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            break;
        if (event.type == GRPC_OP_COMPLETE) {
            struct pd_tag *tag = event.tag;
            tag->done(tag, event.success != 0);
        }
        tick(thread);
    }
    PD_CHECK(pd_list_empty(&thread->calls));
    return NULL;
}

/* ---- start ---- */

bool pd_rpc_is_deaf(void)
{
    return pd_grpc_log_lost_listener();
}

static uint32_t threads_wanted(const struct pd_config *config)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t count = config->rpc_threads;

    if (count == 0)
        count = cores < 1 ? 1 : cores > 4 ? 4 : (uint32_t)cores;
    return count > THREADS_MAX ? THREADS_MAX : count;
}

static int make_threads(struct pd_rpc *rpc, struct pd_error *error)
{
    uint32_t count = threads_wanted(rpc->options.config);

    rpc->threads = calloc(count, sizeof(*rpc->threads));
    if (!rpc->threads)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for %u rpc threads", count);
    for (; rpc->thread_count < count; rpc->thread_count++) {
        struct pd_rpc_thread *thread = &rpc->threads[rpc->thread_count];
        thread->rpc = rpc;
        thread->index = rpc->thread_count;
        pd_list_init(&thread->calls);
        thread->cq = grpc_completion_queue_create_for_next(NULL);
        for (int door = 0; door < PD_DOORS; door++)
            if (rpc->servers[door])
                grpc_server_register_completion_queue(rpc->servers[door], thread->cq, NULL);
    }
    return 0;
}

static int start_threads(struct pd_rpc *rpc, struct pd_error *error)
{
    for (uint32_t i = 0; i < rpc->thread_count; i++) {
        struct pd_rpc_thread *thread = &rpc->threads[i];
        int rc = pthread_create(&thread->thread, NULL, run, thread);
        if (rc != 0)
            return pd_error_set(error, PD_ENOMEM, "THREAD", "cannot start rpc thread %u: %s", i,
                                strerror(rc));
        thread->started = true;
        for (int door = 0; door < PD_DOORS; door++)
            for (uint32_t n = 0; rpc->servers[door] && n < accepts_per_thread[door]; n++)
                accept_post(thread, (enum pd_door)door);
    }
    return 0;
}

static void on_server_down(struct pd_tag *tag, bool ok)
{
    struct pd_rpc *rpc = PD_CONTAINER_OF(tag, struct pd_shutdown_tag, tag)->rpc;

    (void)ok;
    pthread_mutex_lock(&rpc->lock);
    rpc->servers_down++;
    pthread_cond_broadcast(&rpc->changed);
    pthread_mutex_unlock(&rpc->lock);
}

/* The condition goes by the monotonic clock. Nothing is left where it fails. */
static bool init_locks(struct pd_rpc *rpc)
{
    pthread_condattr_t attributes;

    if (pthread_condattr_init(&attributes) != 0)
        return false;
    bool made = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
                pthread_cond_init(&rpc->changed, &attributes) == 0;
    (void)pthread_condattr_destroy(&attributes);
    if (!made)
        return false;
    if (pthread_mutex_init(&rpc->lock, NULL) == 0)
        return true;
    (void)pthread_cond_destroy(&rpc->changed);
    return false;
}

static bool init_rpc(struct pd_rpc *rpc, const struct pd_config *config)
{
    if (!init_locks(rpc))
        return false;
    const struct pd_credit_limits limits = {
        .max_bytes = config->memory_ingest_bytes,
        .block_bytes_max = config->max_sample_bytes,
        .host_max_bytes = config->peer_bytes,
        .host_count = PD_PEERS_MAX,
        .calls_max = config->push_calls_max > 0 ? config->push_calls_max : 1,
    };
    if (pd_credit_pool_init(&rpc->credit, &limits) == 0)
        return true;
    (void)pthread_cond_destroy(&rpc->changed);
    (void)pthread_mutex_destroy(&rpc->lock);
    return false;
}

static struct pd_rpc *make_rpc(const struct pd_rpc_options *options)
{
    struct pd_rpc *rpc = calloc(1, sizeof(*rpc));

    if (!rpc || !init_rpc(rpc, options->config)) {
        free(rpc);
        return NULL;
    }
    rpc->options = *options;
    for (int door = 0; door < PD_DOORS; door++)
        rpc->on_shutdown[door] = (struct pd_shutdown_tag){{on_server_down}, rpc};
    rpc->started_wall_ns = pd_clock_wall_ns();
    if (getrandom(&rpc->incarnation, sizeof(rpc->incarnation), 0) != sizeof(rpc->incarnation))
        rpc->incarnation = rpc->started_wall_ns;
    return rpc;
}

/* Without these nothing bounds what connections make gRPC take. */
static int check_interposed(const struct pd_config *config, struct pd_error *error)
{
    int rc = pd_interposed_check("accept4", (void (*)(void))pd_accept4, error);
    if (rc == 0)
        rc = pd_interposed_check("recvmsg", (void (*)(void))pd_recvmsg, error);
    if (rc == 0 && pd_config_has_tls(config))
        rc = pd_interposed_check("SSL_read", (void (*)(void))pd_ssl_read, error);
    return rc;
}

int pd_rpc_start(const struct pd_rpc_options *options, struct pd_rpc **out, struct pd_error *error)
{
    struct pd_rpc *rpc = make_rpc(options);

    if (!rpc)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for the gRPC server");
    pd_grpc_log_start();
    pd_methods_tell_metrics();
    grpc_init();
    int rc = check_interposed(options->config, error);
    if (rc == 0)
        rc = pd_access_new(options->config, &rpc->access, error);
    if (rc == 0)
        rc = pd_peers_new(options->config->peer_calls_max, options->config->peer_rate_max,
                          &rpc->peers, error);
    if (rc == 0)
        rc = pd_connections_new(options->config, &rpc->connections, error);
    if (rc == 0)
        rc = pd_accept_open(rpc->connections, error);
    if (rc == 0)
        rc = pd_listeners_make(rpc, error);
    if (rc == 0)
        rc = make_threads(rpc, error);
    if (rc == 0)
        rc = pd_listeners_bind(rpc, error);
    if (rc == 0) {
        for (int door = 0; door < PD_DOORS; door++)
            if (rpc->servers[door])
                grpc_server_start(rpc->servers[door]);
        rc = start_threads(rpc, error);
    }
    if (rc != 0) {
        pd_rpc_stop(rpc, 0);
        pd_rpc_free(rpc);
        return rc;
    }
    *out = rpc;
    return 0;
}

/* ---- running ---- */

const char *const *pd_rpc_addresses(const struct pd_rpc *rpc, enum pd_door door, uint32_t *count)
{
    *count = rpc->address_counts[door];
    return (const char *const *)rpc->addresses[door];
}

uint64_t pd_rpc_incarnation(const struct pd_rpc *rpc)
{
    return rpc->incarnation;
}

void pd_rpc_set_serving(struct pd_rpc *rpc, bool serving)
{
    atomic_store(&rpc->serving, serving);
}

void pd_rpc_set_fault(struct pd_rpc *rpc, const char *fault)
{
    atomic_store(&rpc->fault, fault);
}

void pd_rpc_drain(struct pd_rpc *rpc)
{
    atomic_store(&rpc->draining, true);
}

int pd_rpc_reload(struct pd_rpc *rpc, struct pd_error *error)
{
    return pd_access_reload(rpc->access, error);
}

bool pd_rpc_is_ready(struct pd_rpc *rpc)
{
    return atomic_load(&rpc->serving) && !atomic_load(&rpc->draining) &&
           !atomic_load(&rpc->stopping) && !atomic_load(&rpc->fault);
}

void pd_rpc_gauges(struct pd_rpc *rpc, struct pd_rpc_gauges *gauges)
{
    gauges->calls = 0;
    for (int door = 0; door < PD_DOORS; door++)
        gauges->calls += atomic_load(&rpc->calls_open[door]);
    gauges->push_calls = atomic_load(&rpc->push_calls);
    gauges->fetch_calls = atomic_load(&rpc->fetch_calls);
    gauges->ingest_reserved_bytes = pd_credit_reserved_bytes(&rpc->credit);
    gauges->ingest_max_bytes = rpc->credit.max_bytes;
    for (int door = 0; door < PD_DOORS; door++)
        gauges->connections[door] = pd_connections_open(rpc->connections, (enum pd_door)door);
    gauges->connections_max = pd_connections_max(rpc->connections, PD_DOOR_MAIN);
}

/* ---- stop ---- */

static uint32_t servers_made(const struct pd_rpc *rpc)
{
    uint32_t count = 0;
    for (int door = 0; door < PD_DOORS; door++)
        count += rpc->servers[door] != NULL;
    return count;
}

/* True when no call is left (and, with_server, gRPC has closed all connections); false when the
 * time has passed. */
static bool wait_down(struct pd_rpc *rpc, bool with_server, uint64_t wait_ns)
{
    uint32_t servers = with_server ? servers_made(rpc) : 0;
    uint64_t until_ns = pd_clock_mono_ns() + wait_ns;
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                             .tv_nsec = (long)(until_ns % 1000000000u)};
    int rc = 0;

    pthread_mutex_lock(&rpc->lock);
    while (rc == 0 && !(rpc->live == 0 && rpc->servers_down >= servers))
        rc = pthread_cond_timedwait(&rpc->changed, &rpc->lock, &until);
    bool down = rpc->live == 0 && rpc->servers_down >= servers;
    pthread_mutex_unlock(&rpc->lock);
    return down;
}

/* A queue without a thread (start failed half-way) is emptied here. */
static void finish_queue(struct pd_rpc_thread *thread)
{
    grpc_completion_queue_shutdown(thread->cq);
    if (thread->started)
        (void)pthread_join(thread->thread, NULL);
    else
        while (grpc_completion_queue_next(thread->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL)
                   .type != GRPC_QUEUE_SHUTDOWN)
            continue;
    grpc_completion_queue_destroy(thread->cq);
    if (thread->reader)
        pd_log_reader_free(thread->reader);
}

/* One server's end; the notice of a queue without a thread is taken here, it is all there is in
 * it. */
static void shut_server(struct pd_rpc *rpc, int door)
{
    struct pd_rpc_thread *first = &rpc->threads[0];
    struct pd_tag *tag = &rpc->on_shutdown[door].tag;

    grpc_server_shutdown_and_notify(rpc->servers[door], first->cq, tag);
    if (first->started)
        return;
    grpc_event event =
        grpc_completion_queue_next(first->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    PD_CHECK(event.type == GRPC_OP_COMPLETE && event.tag == tag);
    on_server_down(tag, true);
}

static void stop_servers(struct pd_rpc *rpc, uint64_t grace_ns)
{
    for (int door = 0; door < PD_DOORS; door++)
        if (rpc->servers[door])
            shut_server(rpc, door);
    if (!wait_down(rpc, false, grace_ns))
        pd_log(PD_LOG_WARN, "calls_cancelled",
               "text=\"some calls did not end within the grace period\"");
    else if (wait_down(rpc, true, GOAWAY_WAIT_NS))
        return;
    for (int door = 0; door < PD_DOORS; door++)
        if (rpc->servers[door])
            grpc_server_cancel_all_calls(rpc->servers[door]); /* closes all connections too */
    if (!wait_down(rpc, true, CANCEL_WAIT_NS))
        pd_panic(__FILE__, __LINE__, "%u gRPC calls did not end after they were cancelled",
                 rpc->live);
}

void pd_rpc_stop(struct pd_rpc *rpc, uint64_t grace_ns)
{
    atomic_store(&rpc->draining, true);
    atomic_store(&rpc->stopping, true);
    if (rpc->thread_count > 0)
        stop_servers(rpc, grace_ns);
    for (uint32_t i = 0; i < rpc->thread_count; i++)
        finish_queue(&rpc->threads[i]);
    for (int door = 0; door < PD_DOORS; door++)
        if (rpc->servers[door])
            grpc_server_destroy(rpc->servers[door]);
    memset(rpc->servers, 0, sizeof(rpc->servers));
    /* Blocking, so that every slice that points into a batch is gone before the batches' owner is.
     */
    grpc_shutdown_blocking();
    pd_accept_close();
}

void pd_rpc_free(struct pd_rpc *rpc)
{
    pd_credit_pool_fini(&rpc->credit);
    for (int door = 0; door < PD_DOORS; door++)
        for (uint32_t i = 0; i < PD_LISTEN_MAX; i++) {
            free(rpc->addresses[door][i]);
            pd_tls_free(rpc->tls[door][i]);
        }
    free(rpc->threads);
    pd_access_free(rpc->access);
    pd_peers_free(rpc->peers);
    pd_connections_free(rpc->connections);
    (void)pthread_cond_destroy(&rpc->changed);
    (void)pthread_mutex_destroy(&rpc->lock);
    free(rpc);
}
