/* The validate thread and its queue.
 *
 * Place in the flow: serve's hook between the structural check and publishing. The thread makes the
 * validator itself, since a CUDA context belongs to the thread that made it, then tests it, then
 * answers one batch at a time. Invariant: a job lies on its caller's stack from the moment it is
 * queued until `done` is set under the lock; nobody touches it afterwards. Decides nothing about
 * what a violation leads to (serve does). */
#include "server/validate.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "gpu/validator.h"
#include "server/metrics.h"
#include "server/validate_vision.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#define MAGIC 0x76616c64
/* The validator's buffers take 11 bytes a token, touched only as far as batches need them; larger
 * batches are not probed. */
#define TOKENS_MAX (4u << 20)
/* tokens, positions, segment_ids, labels and loss_weight: a batch has at least these */
#define PAYLOAD_BYTES_PER_TOKEN 20
#define MEMORY_RETRY_NS UINT64_C(1000000000)
/* The CPU may be this far ahead of its share, so that a first step does not wait. */
#define BURST_NS 250000000u

struct job {
    struct pd_link link;
    const struct pd_ready_batch *batch;
    struct pd_probe_result result;
    struct pd_error error;
    char backend[8];
    int rc;
    bool vision; /* the violations are the vision tower's: positions are patches */
    bool done;
};

enum phase { MAKING, TESTING, RUNNING, FAILED };

struct pd_validation {
    uint32_t magic;
    const struct pd_config *config;
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows, but the validator, which is the thread's */
    pthread_cond_t work, changed;
    struct pd_link jobs;
    struct pd_selftest_order *order; /* a self-test that is asked for, or NULL */
    enum phase phase;
    bool stopping;
    struct pd_error start_error;
    struct pd_validation_info info;
    struct pd_validator *validator;
    uint64_t started_ns;
    atomic_uint_fast64_t spent_ns; /* on the CPU backend */
    atomic_bool on_cpu;
    atomic_uint_fast64_t counts[PD_PROBED_BACKENDS][PD_PROBED_RESULTS];
};

const char *const pd_probed_backends[PD_PROBED_BACKENDS] = {"cpu", "cuda"};
const char *const pd_probed_results[PD_PROBED_RESULTS] = {"passed", "violation", "no_cpu_time",
                                                          "too_large", "failed"};

/* ---- the thread ---- */

/* Who answers now; under the lock. */
static void note_backend(struct pd_validation *v)
{
    snprintf(v->info.backend, sizeof v->info.backend, "%.15s", pd_validator_backend(v->validator));
    snprintf(v->info.device, sizeof v->info.device, "%.63s", pd_validator_device(v->validator));
}

static void set_phase(struct pd_validation *v, enum phase phase)
{
    pthread_mutex_lock(&v->lock);
    v->phase = phase;
    if (v->validator)
        note_backend(v);
    v->info.tested = phase == RUNNING || phase == FAILED;
    v->info.passed = phase == RUNNING;
    pthread_cond_broadcast(&v->changed);
    pthread_mutex_unlock(&v->lock);
}

/* Inside a call of the validator, which is still named after the device. */
static void on_retired(void *ctx, const char *what, const char *text)
{
    struct pd_validation *v = ctx;
    atomic_store(&v->on_cpu, true);
    pthread_mutex_lock(&v->lock);
    snprintf(v->info.retired, sizeof v->info.retired, "%.20s: %.130s", what, text);
    pthread_mutex_unlock(&v->lock);
    pd_log(PD_LOG_ERROR, "validator_retired", "reason=%s text=\"%s\" now=cpu", what, text);
}

static uint32_t tokens_max(const struct pd_config *config)
{
    uint64_t tokens = config->memory_batches_bytes / 2 / PAYLOAD_BYTES_PER_TOKEN;
    return tokens < TOKENS_MAX ? (uint32_t)tokens : TOKENS_MAX;
}

static int make_validator(struct pd_validation *v, struct pd_error *error)
{
    struct pd_error fallback = {0};
    const struct pd_validator_notice notice = {.retired = on_retired, .ctx = v};
    const struct pd_validator_limits limits = {.tokens_max = tokens_max(v->config),
                                               .segments_max = tokens_max(v->config)};
    int rc = pd_validator_new(v->config->validate_backend, &limits, &notice, &v->validator,
                              &fallback, error);
    if (rc != 0)
        return rc;
    if (fallback.code != 0)
        pd_log(PD_LOG_WARN, "validator_fallback", "backend=cpu reason=%s text=\"%s\"",
               fallback.reason, fallback.text);
    atomic_store(&v->on_cpu, strcmp(pd_validator_backend(v->validator), "cpu") == 0);
    return 0;
}

static int self_test(struct pd_validation *v, struct pd_selftest_report *report,
                     struct pd_error *error)
{
    int rc = pd_validator_selftest(v->validator, report, error);
    if (rc != 0) {
        pd_log(PD_LOG_ERROR, "selftest_failed", "backend=%s text=\"%s\" failure=\"%s\"",
               report->backend, error->text, report->failure);
        return rc;
    }
    pd_log(PD_LOG_INFO, "selftest_passed",
           "backend=%s device=\"%s\" faults_found=%u/%u seconds=%.3f", report->backend,
           pd_validator_device(v->validator), report->faults_found, report->faults_planted,
           report->seconds);
    return 0;
}

/* Memory may be there a second later. False: packd stops. */
static bool wait_for_memory(struct pd_validation *v)
{
    uint64_t until_ns = pd_clock_mono_ns() + MEMORY_RETRY_NS;
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                             .tv_nsec = (long)(until_ns % 1000000000u)};
    int rc = 0;
    pthread_mutex_lock(&v->lock);
    while (rc == 0 && !v->stopping)
        rc = pthread_cond_clockwait(&v->work, &v->lock, CLOCK_MONOTONIC, &until);
    bool stopping = v->stopping;
    pthread_mutex_unlock(&v->lock);
    return !stopping;
}

/* Makes the validator; false: there is none. A demanded device is not waited for. */
static bool make(struct pd_validation *v)
{
    bool waits = strcmp(v->config->validate_backend, "cuda") != 0;
    int rc;
    do {
        rc = make_validator(v, &v->start_error);
        if (rc != 0)
            pd_log(PD_LOG_ERROR, "validator_failed", "reason=%s text=\"%s\"", v->start_error.reason,
                   v->start_error.text);
    } while (rc == PD_ENOMEM && waits && wait_for_memory(v));
    return rc == 0;
}

static void first_test(struct pd_validation *v)
{
    struct pd_selftest_report report = {0};
    struct pd_error error = {0};
    bool off = strcmp(pd_validator_backend(v->validator), "off") == 0;
    int rc;
    set_phase(v, TESTING);
    do {
        rc = off ? 0 : self_test(v, &report, &error);
    } while (rc == PD_ENOMEM && wait_for_memory(v));
    set_phase(v, rc == 0 ? RUNNING : FAILED);
}

/* Answers a self-test that was asked for. */
static void obey(struct pd_validation *v, struct pd_selftest_order *order)
{
    order->result = self_test(v, &order->report, &order->error);
    snprintf(order->device, sizeof order->device, "%.63s", pd_validator_device(v->validator));
    set_phase(v, order->result == 0 ? RUNNING : FAILED);
    order->done(order);
}

static const int32_t *array_of(const struct pd_ready_batch *batch, const char *name, uint32_t rank)
{
    const struct pd_array *array = pd_batch_find(&batch->batch, name);
    return array && array->rank == rank
               ? (const int32_t *)(const void *)(batch->payload + array->offset_bytes)
               : NULL;
}

/* One tower of the vision model. What the probe cannot hold has the structural check alone. */
static void probe_vision(struct pd_validation *v, struct job *job, enum pd_vision_tower tower)
{
    struct pd_vision_probe vision;
    uint32_t window = v->config->feeds[job->batch->key.feed_index].layout.vision_window;
    int made = pd_vision_probe_make(job->batch, tower, window, &vision);
    if (made <= 0) {
        job->rc = made;
        return;
    }
    int rc = pd_validator_probe(v->validator, &vision.batch, &job->result, &job->error);
    job->rc = rc == PD_ELIMIT ? 0 : rc;
    job->vision = job->result.violation_count > 0;
    pd_vision_probe_fini(&vision);
}

static void probe(struct pd_validation *v, struct job *job)
{
    const struct pd_ready_batch *batch = job->batch;
    const struct pd_probe_batch wanted = {
        .rows = batch->batch.rows,
        .width = batch->batch.width,
        .segment_count = batch->batch.segment_count,
        .segment_ids = array_of(batch, "segment_ids", 2),
        .positions = array_of(batch, "positions", 2),
        .cu_seqlens = array_of(batch, "cu_seqlens", 1),
        .seq_lens = array_of(batch, "seq_lens", 1),
        .causal = true,
    };
    uint64_t before_ns = pd_clock_mono_ns();
    job->rc = pd_validator_probe(v->validator, &wanted, &job->result, &job->error);
    for (int tower = 0; tower < PD_VISION_TOWERS; tower++)
        if (job->rc == 0 && job->result.violation_count == 0)
            probe_vision(v, job, (enum pd_vision_tower)tower);
    uint64_t took_ns = pd_clock_mono_ns() - before_ns;
    pd_metric_observe(PD_M_PROBE_SECONDS, took_ns);
    pd_metric_heartbeat("validate");
    if (atomic_load(&v->on_cpu))
        atomic_fetch_add(&v->spent_ns, took_ns);
    snprintf(job->backend, sizeof job->backend, "%.7s", pd_validator_backend(v->validator));
}

/* Answers a job; nothing passes once a self-test has failed. Only this thread changes the phase. */
static void answer(struct pd_validation *v, struct job *job)
{
    if (v->phase == RUNNING)
        probe(v, job);
    else
        job->rc = pd_error_set(&job->error, PD_EDEVICE, "SELFTEST_FAILED",
                               "the validator's self-test failed");
}

/* The oldest job into *job, or the self-test that is asked for into *order; false when it is time
 * to end. */
static bool next_job(struct pd_validation *v, struct job **job, struct pd_selftest_order **order)
{
    pthread_mutex_lock(&v->lock);
    while (pd_list_empty(&v->jobs) && !v->order && !v->stopping)
        pthread_cond_wait(&v->work, &v->lock);
    *order = v->order;
    v->order = NULL;
    struct pd_link *link = *order ? NULL : pd_list_pop(&v->jobs);
    *job = link ? PD_CONTAINER_OF(link, struct job, link) : NULL;
    pthread_mutex_unlock(&v->lock);
    return *job || *order;
}

static void *run(void *ctx)
{
    struct pd_validation *v = ctx;
    pthread_setname_np(pthread_self(), "validate");
    if (!make(v)) {
        set_phase(v, FAILED);
        return NULL;
    }
    first_test(v);
    struct job *job;
    struct pd_selftest_order *order;
    while (next_job(v, &job, &order)) {
        if (order) {
            obey(v, order);
            continue;
        }
        answer(v, job);
        pthread_mutex_lock(&v->lock);
        note_backend(v); /* the device may have been retired */
        job->done = true;
        pthread_cond_broadcast(&v->changed);
        pthread_mutex_unlock(&v->lock);
    }
    pd_validator_free(v->validator);
    return NULL;
}

/* ---- the callers ---- */

/* By the batch's place in its job, the same for every build of it. */
static bool is_chosen(const struct pd_validation *v, const struct pd_batch_key *key)
{
    const uint64_t place[] = {key->feed_index, key->job_id, key->step, key->micro, key->dp_rank};
    double at = (double)(XXH3_64bits(place, sizeof place) >> 11) / 9007199254740992.0;
    return at < v->config->validate_fraction;
}

/* The probe's time on the CPU stays below its share of the time that has passed. */
static bool has_time(struct pd_validation *v)
{
    if (!atomic_load(&v->on_cpu))
        return true;
    double passed_ns = (double)(pd_clock_mono_ns() - v->started_ns);
    return (double)atomic_load(&v->spent_ns) <=
           passed_ns * v->config->validate_cpu_share + BURST_NS;
}

/* The most telling kind that was found, at the first token listed for it. */
static int violation(const struct job *job, struct pd_check_finding *finding)
{
    const struct pd_probe_result *result = &job->result;
    uint32_t worst = 0, at = 0;
    while (worst + 1 < PD_PROBE_KIND_COUNT && result->kind_counts[worst] == 0)
        worst++;
    while (at + 1 < result->listed && !(result->violations[at].kinds & 1u << worst))
        at++;
    const struct pd_violation *first = &result->violations[at];
    const char *kind = pd_probe_kind_name((enum pd_probe_kind)(1u << worst));
    *finding = (struct pd_check_finding){.check = PD_CHECK_PROBE,
                                         .kind = kind,
                                         .row = first->row,
                                         .position = first->position,
                                         .expected = first->segment,
                                         .found = first->foreign_segment};
    char foreign[64] = "";
    if (first->foreign_row >= 0)
        snprintf(foreign, sizeof foreign, " sees segment %d of row %d", first->foreign_segment,
                 first->foreign_row);
    snprintf(finding->text, sizeof finding->text,
             "attention probe: %s at row %u %s %u: segment %d%s; %llu positions in all", kind,
             first->row, job->vision ? "patch" : "position", first->position, first->segment,
             foreign, (unsigned long long)result->violation_count);
    return PD_ECORRUPT;
}

/* Whether the latest self-test passed; waits for the first. */
static bool may_serve(struct pd_validation *v)
{
    pthread_mutex_lock(&v->lock);
    while (v->phase < RUNNING)
        pthread_cond_wait(&v->changed, &v->lock);
    bool passed = v->phase == RUNNING;
    pthread_mutex_unlock(&v->lock);
    return passed;
}

/* Queues the job and waits for its verdict. */
static int ask(struct pd_validation *v, struct job *job)
{
    pthread_mutex_lock(&v->lock);
    bool failed = v->phase == FAILED; /* since the caller looked */
    if (!failed) {
        pd_list_push(&v->jobs, &job->link);
        pthread_cond_signal(&v->work);
    }
    while (!failed && !job->done)
        pthread_cond_wait(&v->changed, &v->lock);
    pthread_mutex_unlock(&v->lock);
    return failed ? PD_EDEVICE : job->rc;
}

static void count(struct pd_validation *v, enum pd_probed result)
{
    atomic_fetch_add(&v->counts[!atomic_load(&v->on_cpu)][result], 1);
}

int pd_validation_probe(void *ctx, struct pd_ready_batch *batch, struct pd_check_finding *finding)
{
    struct pd_validation *v = ctx;
    PD_MAGIC_CHECK(v, MAGIC);
    if (strcmp(v->config->validate_backend, "off") == 0)
        return 0;
    if (!may_serve(v))
        return PD_EDEVICE;
    if (!is_chosen(v, &batch->key))
        return 0;
    if (!has_time(v)) {
        count(v, PD_PROBED_NO_CPU_TIME);
        return 0;
    }
    struct job job = {.batch = batch};
    int rc = ask(v, &job);
    if (rc == PD_ELIMIT) {
        count(v, PD_PROBED_TOO_LARGE);
        return 0;
    }
    if (rc != 0) {
        count(v, PD_PROBED_FAILED);
        pd_log(PD_LOG_ERROR, "probe_failed", "code=%s text=\"%s\"", pd_err_name(rc),
               job.error.text);
        return rc;
    }
    snprintf(batch->validator, sizeof batch->validator, "%s", job.backend);
    batch->probed = true;
    bool clean = job.result.violation_count == 0;
    count(v, clean ? PD_PROBED_PASSED : PD_PROBED_VIOLATION);
    return clean ? 0 : violation(&job, finding);
}

int pd_validation_selftest(struct pd_validation *v, struct pd_selftest_order *order,
                           struct pd_error *error)
{
    PD_MAGIC_CHECK(v, MAGIC);
    int rc = 0;
    pthread_mutex_lock(&v->lock);
    if (v->phase < RUNNING)
        rc = pd_error_set(error, PD_EUNAVAIL, "STARTING", "the first self-test has not ended");
    else if (!v->validator)
        rc = pd_error_set(error, PD_EDEVICE, "NO_VALIDATOR", "there is no validator: %.200s",
                          v->start_error.text);
    else if (strcmp(v->info.backend, "off") == 0)
        rc = pd_error_set(error, PD_EUNSUPPORTED, "PROBE_OFF", "validate.backend is off");
    else if (v->order)
        rc = pd_error_set(error, PD_EFULL, "SELFTEST_RUNNING", "another self-test is asked for");
    else
        v->order = order;
    pthread_cond_signal(&v->work);
    pthread_mutex_unlock(&v->lock);
    return rc;
}

/* ---- life ---- */

static void destroy(struct pd_validation *v)
{
    pthread_mutex_destroy(&v->lock);
    pthread_cond_destroy(&v->work);
    pthread_cond_destroy(&v->changed);
    v->magic = 0;
    free(v);
}

/* Where a device is demanded, the start fails without it; else nobody waits here. */
static int wait_for_device(struct pd_validation *v, struct pd_error *error)
{
    if (strcmp(v->config->validate_backend, "cuda") != 0)
        return 0;
    pthread_mutex_lock(&v->lock);
    while (v->phase == MAKING)
        pthread_cond_wait(&v->changed, &v->lock);
    *error = v->start_error;
    pthread_mutex_unlock(&v->lock);
    return error->code;
}

/* With its locks; frees `v` where it fails. What failed, as errno has it. */
static int start_thread(struct pd_validation *v)
{
    int failed = pthread_mutex_init(&v->lock, NULL);
    if (failed != 0)
        goto out_free;
    failed = pthread_cond_init(&v->work, NULL);
    if (failed != 0)
        goto out_lock;
    failed = pthread_cond_init(&v->changed, NULL);
    if (failed != 0)
        goto out_work;
    failed = pthread_create(&v->thread, NULL, run, v);
    if (failed == 0)
        return 0;
    destroy(v);
    return failed;
out_work:
    pthread_cond_destroy(&v->work);
out_lock:
    pthread_mutex_destroy(&v->lock);
out_free:
    free(v);
    return failed;
}

int pd_validation_start(const struct pd_config *config, struct pd_validation **result,
                        struct pd_error *error)
{
    struct pd_validation *v = calloc(1, sizeof *v);
    if (!v)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "no memory for the validator");
    v->magic = MAGIC;
    v->config = config;
    v->started_ns = pd_clock_mono_ns();
    pd_list_init(&v->jobs);
    int failed = start_thread(v);
    if (failed != 0)
        return pd_error_set(error, PD_EIO, "THREAD", "the validate thread cannot be started: %s",
                            strerror(failed));
    int rc = wait_for_device(v, error);
    if (rc != 0) {
        pd_validation_stop(v);
        return rc;
    }
    *result = v;
    return 0;
}

void pd_validation_stop(struct pd_validation *v)
{
    PD_MAGIC_CHECK(v, MAGIC);
    pthread_mutex_lock(&v->lock);
    v->stopping = true;
    PD_CHECK(pd_list_empty(&v->jobs));
    pthread_cond_signal(&v->work);
    pthread_mutex_unlock(&v->lock);
    pthread_join(v->thread, NULL);
    destroy(v);
}

void pd_validation_info(struct pd_validation *v, struct pd_validation_info *info)
{
    PD_MAGIC_CHECK(v, MAGIC);
    pthread_mutex_lock(&v->lock);
    *info = v->info;
    pthread_mutex_unlock(&v->lock);
}

void pd_validation_counts(struct pd_validation *v,
                          uint64_t counts[PD_PROBED_BACKENDS][PD_PROBED_RESULTS])
{
    PD_MAGIC_CHECK(v, MAGIC);
    for (int b = 0; b < PD_PROBED_BACKENDS; b++)
        for (int r = 0; r < PD_PROBED_RESULTS; r++)
            counts[b][r] = atomic_load(&v->counts[b][r]);
}
