/* The validator: owns a backend, keeps its verdicts honest, and outlives a device that fails.
 *
 *   submit: limits -> pd_probe_admit -> positions -> backend.submit      (slot in flight)
 *   collect: backend.collect -> lengths -> confirm guilt on the CPU -> pd_probe_report
 *
 * A device is retired when a call fails, and when the CPU finds other violations than the device
 * reported: it is freed once, `notice` hears of it once, and every batch in flight is answered by
 * the CPU, whose arrays are still borrowed. Acquittals by the device are not repeated on the CPU
 * (that would make the device pointless); the self-test at start shows that it can find what it
 * must.
 *
 * One owner thread, asserted nowhere because nothing is shared. Buffers are made in
 * pd_validator_adopt; no call after that allocates but the self-test. */
#include "gpu/backend.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

enum { MAGIC = 0x70644756 };

struct slot {
    struct pd_probe_batch batch;
    const int32_t *positions;
    int32_t *derived; /* [tokens_max] for batches without positions */
    uint8_t *kinds;   /* [tokens_max] */
    bool admitted;
    bool on_device; /* the backend it was given to is still there */
};

struct pd_validator {
    uint32_t magic;
    struct pd_validator_limits limits;
    struct pd_validator_notice notice;
    struct pd_backend *backend; /* NULL: off */
    uint8_t *confirmed;         /* [tokens_max] */
    struct slot slots[PD_VALIDATOR_DEPTH];
    uint32_t first, in_flight; /* slots in use, a ring */
};

/* ---- life ---- */

static int check_limits(const struct pd_validator_limits *limits, struct pd_error *error)
{
    if (limits->tokens_max > 0 && limits->tokens_max <= PD_PROBE_TOKENS_MAX &&
        limits->segments_max > 0 && limits->segments_max <= limits->tokens_max)
        return 0;
    return pd_error_set(
        error, PD_EINVAL, "LIMITS",
        "validator: limits of %u tokens and %u segments; both must be positive, tokens at "
        "most %u, segments at most as many as tokens",
        limits->tokens_max, limits->segments_max, PD_PROBE_TOKENS_MAX);
}

static bool make_buffers(struct pd_validator *v)
{
    bool made = true;
    v->confirmed = malloc(v->limits.tokens_max);
    for (int i = 0; i < PD_VALIDATOR_DEPTH; i++) {
        v->slots[i].derived = malloc((size_t)v->limits.tokens_max * sizeof(int32_t));
        v->slots[i].kinds = malloc(v->limits.tokens_max);
        made = made && v->slots[i].derived && v->slots[i].kinds;
    }
    return made && v->confirmed;
}

void pd_validator_free(struct pd_validator *v)
{
    if (!v)
        return;
    PD_MAGIC_CHECK(v, MAGIC);
    if (v->backend)
        v->backend->free(v->backend);
    for (int i = 0; i < PD_VALIDATOR_DEPTH; i++) {
        free(v->slots[i].derived);
        free(v->slots[i].kinds);
    }
    free(v->confirmed);
    v->magic = 0;
    free(v);
}

int pd_validator_adopt(struct pd_backend **backend, const struct pd_validator_limits *limits,
                       const struct pd_validator_notice *notice, struct pd_validator **validator,
                       struct pd_error *error)
{
    struct pd_validator *v = calloc(1, sizeof(*v));
    int rc = v ? check_limits(limits, error) : PD_ENOMEM;
    if (v) {
        v->magic = MAGIC;
        v->limits = *limits;
        v->notice = notice ? *notice : (struct pd_validator_notice){0};
        v->backend = *backend;
    } else if (*backend) {
        (*backend)->free(*backend);
    }
    *backend = NULL;
    if (rc == 0 && v->backend && !make_buffers(v))
        rc = PD_ENOMEM;
    if (rc == 0) {
        *validator = v;
        return 0;
    }
    pd_validator_free(v);
    return rc == PD_ENOMEM
               ? pd_error_set(error, rc, "NO_MEMORY",
                              "validator: no memory for batches of %u tokens", limits->tokens_max)
               : rc;
}

/* The backend of that name; NULL for "off". */
static int make_backend(const char *name, const struct pd_validator_limits *limits,
                        struct pd_backend **backend, struct pd_error *fallback,
                        struct pd_error *error)
{
    bool automatic = strcmp(name, "auto") == 0;
    *backend = NULL;
    if (strcmp(name, "off") == 0)
        return 0;
    if (strcmp(name, "cpu") == 0)
        return pd_backend_cpu_new(backend, error);
    if (!automatic && strcmp(name, "cuda") != 0)
        return pd_error_set(error, PD_EINVAL, "BACKEND_UNKNOWN",
                            "validator: backend '%.32s'; known are auto, cuda, cpu and off", name);
    int rc = pd_backend_cuda_new(limits, backend, automatic ? fallback : error);
    return rc != 0 && automatic ? pd_backend_cpu_new(backend, error) : rc;
}

int pd_validator_new(const char *name, const struct pd_validator_limits *limits,
                     const struct pd_validator_notice *notice, struct pd_validator **validator,
                     struct pd_error *fallback, struct pd_error *error)
{
    struct pd_backend *backend;
    if (fallback)
        fallback->code = 0;
    int rc = check_limits(limits, error);
    if (rc == 0)
        rc = make_backend(name, limits, &backend, fallback, error);
    return rc ? rc : pd_validator_adopt(&backend, limits, notice, validator, error);
}

const char *pd_validator_cuda(void)
{
    return PD_HAVE_CUDA ? "static" : "none";
}

const char *pd_validator_backend(const struct pd_validator *v)
{
    PD_MAGIC_CHECK(v, MAGIC);
    return v->backend ? v->backend->name : "off";
}

const char *pd_validator_device(const struct pd_validator *v)
{
    PD_MAGIC_CHECK(v, MAGIC);
    return v->backend ? v->backend->device : "";
}

struct pd_validator_memory pd_validator_memory(const struct pd_validator *v)
{
    PD_MAGIC_CHECK(v, MAGIC);
    struct pd_validator_memory memory = {0};
    if (v->backend) {
        memory = v->backend->memory;
        memory.host_bytes += (uint64_t)v->limits.tokens_max * (1 + PD_VALIDATOR_DEPTH * 5);
    }
    return memory;
}

/* ---- retiring a device ---- */

static void retire(struct pd_validator *v, const char *what, const char *text)
{
    struct pd_backend *device = v->backend, *cpu = NULL;
    if (pd_backend_cpu_new(&cpu, NULL) != 0)
        return; /* no memory for a few words: the device stays and will be tried again */
    v->backend = cpu;
    for (int i = 0; i < PD_VALIDATOR_DEPTH; i++)
        v->slots[i].on_device = false;
    device->free(device);
    if (v->notice.retired)
        v->notice.retired(v->notice.ctx, what, text);
}

/* ---- probing ---- */

static int check_batch(const struct pd_validator *v, const struct pd_probe_batch *batch,
                       struct pd_error *error)
{
    if (!v->backend)
        return pd_error_set(error, PD_EUNSUPPORTED, "PROBE_OFF",
                            "validator: the probe is switched off");
    if ((uint64_t)batch->rows * batch->width <= v->limits.tokens_max &&
        batch->segment_count <= v->limits.segments_max)
        return 0;
    return pd_error_set(
        error, PD_ELIMIT, "PROBE_LIMIT",
        "validator: a batch of %u x %u tokens and %u segments; made for %u tokens and %u "
        "segments",
        batch->rows, batch->width, batch->segment_count, v->limits.tokens_max,
        v->limits.segments_max);
}

int pd_validator_submit(struct pd_validator *v, const struct pd_probe_batch *batch,
                        struct pd_error *error)
{
    PD_MAGIC_CHECK(v, MAGIC);
    int rc = check_batch(v, batch, error);
    if (rc != 0)
        return rc;
    if (v->in_flight == PD_VALIDATOR_DEPTH)
        return pd_error_set(error, PD_EFULL, "PROBE_FULL", "validator: %d batches are in flight",
                            PD_VALIDATOR_DEPTH);
    uint32_t index = (v->first + v->in_flight) % PD_VALIDATOR_DEPTH;
    struct slot *slot = &v->slots[index];
    rc = pd_probe_admit(batch, slot->kinds, &slot->admitted, error);
    if (rc != 0)
        return rc;
    slot->batch = *batch;
    if (slot->admitted && !batch->positions) {
        pd_probe_derive_positions(batch, slot->derived);
        slot->batch.positions = slot->derived;
    }
    slot->positions = slot->batch.positions;
    slot->on_device = false;
    v->in_flight++;
    if (!slot->admitted)
        return 0;
    struct pd_error device;
    rc = v->backend->submit(v->backend, index, &slot->batch, slot->positions, &device);
    slot->on_device = rc == 0;
    if (rc != 0)
        retire(v, "DEVICE_ERROR", device.text);
    return 0;
}

/* The backend's kinds in slot->kinds; false: the CPU must find them. */
static bool collect_backend(struct pd_validator *v, uint32_t index)
{
    struct slot *slot = &v->slots[index];
    struct pd_error device;
    if (!slot->on_device)
        return false;
    if (v->backend->collect(v->backend, index, slot->kinds, &device) == 0)
        return true;
    retire(v, "DEVICE_ERROR", device.text);
    return false;
}

static bool any_kind(const uint8_t *kinds, size_t tokens)
{
    for (size_t t = 0; t < tokens; t++)
        if (kinds[t] != 0)
            return true;
    return false;
}

/* A device that accuses is checked: the CPU's kinds are what counts. */
static void confirm(struct pd_validator *v, struct slot *slot, size_t tokens)
{
    memset(v->confirmed, 0, tokens);
    pd_probe_cpu(&slot->batch, slot->positions, v->confirmed);
    if (memcmp(v->confirmed, slot->kinds, tokens) != 0)
        retire(v, "DEVICE_DISAGREES",
               "the device reported other violations than the CPU finds in the same batch");
    memcpy(slot->kinds, v->confirmed, tokens);
}

int pd_validator_collect(struct pd_validator *v, struct pd_probe_result *result,
                         struct pd_error *error)
{
    PD_MAGIC_CHECK(v, MAGIC);
    if (v->in_flight == 0)
        return pd_error_set(error, PD_EEND, "PROBE_EMPTY", "validator: no batch is in flight");
    uint32_t index = v->first;
    struct slot *slot = &v->slots[index];
    size_t tokens = (size_t)slot->batch.rows * slot->batch.width;
    v->first = (v->first + 1) % PD_VALIDATOR_DEPTH;
    v->in_flight--;
    if (slot->admitted && !collect_backend(v, index)) {
        memset(slot->kinds, 0, tokens);
        pd_probe_cpu(&slot->batch, slot->positions, slot->kinds);
    } else if (slot->admitted && v->backend->is_device && any_kind(slot->kinds, tokens)) {
        confirm(v, slot, tokens);
    }
    if (slot->admitted)
        pd_probe_check_lengths(&slot->batch, slot->kinds);
    pd_probe_report(&slot->batch, slot->kinds, result);
    return 0;
}

int pd_validator_probe(struct pd_validator *v, const struct pd_probe_batch *batch,
                       struct pd_probe_result *result, struct pd_error *error)
{
    PD_MAGIC_CHECK(v, MAGIC);
    if (v->in_flight > 0)
        return pd_error_set(error, PD_EAGAIN, "PROBE_BUSY",
                            "validator: collect the %u batches in flight first", v->in_flight);
    int rc = pd_validator_submit(v, batch, error);
    return rc ? rc : pd_validator_collect(v, result, error);
}

int pd_validator_selftest(struct pd_validator *v, struct pd_selftest_report *report,
                          struct pd_error *error)
{
    PD_MAGIC_CHECK(v, MAGIC);
    if (!v->backend)
        return pd_error_set(error, PD_EUNSUPPORTED, "PROBE_OFF",
                            "validator: the probe is switched off");
    if (v->in_flight > 0)
        return pd_error_set(error, PD_EAGAIN, "PROBE_BUSY",
                            "validator: collect the %u batches in flight first", v->in_flight);
    struct pd_error device;
    int rc = pd_selftest_run(v->backend, report, &device);
    if (rc == 0)
        return 0;
    if (rc != PD_ENOMEM && v->backend->is_device) {
        retire(v, "DEVICE_ERROR", device.text);
        return pd_selftest_run(v->backend, report, error);
    }
    return pd_error_set(error, rc, device.reason, "%s", device.text);
}
