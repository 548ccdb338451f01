/* The self-test of a backend: is what it computes attention, does it keep segments apart, does
 * its probe find faults?
 *
 *   dense         random logits through cu_seqlens, against fp64 with a block mask from segment_ids
 *                 and positions: the two descriptions of a batch must mean the same
 *   interference  queries, keys and values of half of the segments are re-randomised (by each bit
 *                 of the segment index: every pair is separated once); the others keep every bit
 *   faults        every planted fault is found by the probe, with no other check on
 *   clean         no alarm on valid batches
 *
 * Runs at start, by `packctl selftest` and in CI, on the validator's thread; allocates its
 * scratch and frees it. It stops at the first failure, whose text names the case. */
#include "gpu/backend.h"
#include "gpu/probe_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TOKENS = 192, DIM = 128, HEADS = 2, CELLS = TOKENS * HEADS * DIM, ROUNDS = 2 };

struct scratch {
    struct pd_case made;
    uint8_t kinds[PD_CASE_TOKENS_MAX];
    int32_t used[TOKENS];
    float q[CELLS], k[CELLS], v[CELLS];           /* what the arrays below hold, widened */
    _Alignas(64) unsigned char qkv[3][CELLS * 4]; /* in the case's dtype */
    _Alignas(64) unsigned char out[CELLS * 4], again[CELLS * 4];
    float head_q[TOKENS * DIM], head_k[TOKENS * DIM];
    uint8_t allowed[TOKENS * TOKENS];
    double weights[TOKENS * TOKENS];
};

struct run {
    struct pd_backend *backend;
    struct pd_selftest_report *report;
    struct scratch *scratch;
    struct pd_error *error;
    uint64_t random;
};

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int failed(struct run *run, const char *what)
{
    snprintf(run->report->failure, sizeof(run->report->failure), "%s", what);
    return pd_error_set(run->error, PD_EINTERNAL, "SELFTEST_FAILED",
                        "self-test of the %s backend failed: %s", run->backend->name,
                        run->report->failure);
}

static float random_value(uint64_t *state)
{
    return (float)(int32_t)(pd_case_random(state) >> 32) * (1.0f / 1073741824.0f); /* [-2, 2) */
}

/* One value into an array of the case's dtype and its widened copy. */
static void put(const struct pd_attention *a, unsigned char *array, float *wide, size_t i, float x)
{
    uint16_t bits = pd_bf16_of(x);
    wide[i] = a->dtype == PD_ATTENTION_F32 ? x : pd_bf16_to(bits);
    if (a->dtype == PD_ATTENTION_F32)
        memcpy(array + i * 4, &x, 4);
    else
        memcpy(array + i * 2, &bits, 2);
}

/* New random q, k, v for tokens [first, end). */
static void randomise(struct run *run, const struct pd_attention *a, uint32_t first, uint32_t end)
{
    struct scratch *s = run->scratch;
    size_t width = (size_t)a->heads * a->head_dim;
    float *wide[3] = {s->q, s->k, s->v};
    for (int array = 0; array < 3; array++)
        for (size_t i = first * width; i < end * width; i++)
            put(a, s->qkv[array], wide[array], i, random_value(&run->random));
}

static struct pd_attention make_attention(struct run *run, enum pd_attention_dtype dtype,
                                          uint32_t dim)
{
    struct scratch *s = run->scratch;
    const struct pd_probe_batch *b = &s->made.batch;
    struct pd_attention a = {.q = s->qkv[0],
                             .k = s->qkv[1],
                             .v = s->qkv[2],
                             .out = s->out,
                             .cu_seqlens = b->cu_seqlens,
                             .segment_count = b->segment_count,
                             .tokens = b->rows * b->width,
                             .heads = HEADS,
                             .heads_kv = HEADS,
                             .head_dim = dim,
                             .dtype = dtype,
                             .causal = b->causal,
                             .scale = 1.0f / sqrtf((float)dim)};
    pd_attention_pack(&a);
    for (uint32_t i = 0; i < b->segment_count; i++)
        s->used[i] = pd_probe_used_of(b, i);
    a.seq_used = b->causal ? NULL : s->used;
    return a;
}

static void make_batch(struct run *run, bool causal, uint32_t align)
{
    struct pd_case_rules rules = {.rows = 2,
                                  .width = TOKENS / 2,
                                  .seg_align = align,
                                  .pad_segment = 16,
                                  .length_max = 70,
                                  .causal = causal};
    pd_case_make(&run->scratch->made, &rules, &run->random);
}

/* One head's output at one token from the dense weights: exact, and with bf16 weights and output.
 * */
static void dense_row(const struct run *run, const struct pd_attention *a, uint32_t head,
                      uint32_t t, double *exact, double *rounded)
{
    const struct scratch *s = run->scratch;
    memset(exact, 0, a->head_dim * sizeof(*exact));
    memset(rounded, 0, a->head_dim * sizeof(*rounded));
    for (uint32_t key = 0; key < a->tokens; key++) {
        double weight = s->weights[(size_t)t * a->tokens + key];
        const float *v = s->v + ((size_t)key * HEADS + head) * a->head_dim;
        double low = (double)pd_bf16_to(pd_bf16_of((float)weight));
        for (uint32_t i = 0; i < a->head_dim && weight != 0; i++) {
            exact[i] += weight * (double)v[i];
            rounded[i] += low * (double)v[i];
        }
    }
}

struct errors {
    double found, plain, size;
};

static void compare_row(const struct run *run, const struct pd_attention *a, uint32_t head,
                        uint32_t t, struct errors *errors)
{
    double exact[DIM], rounded[DIM];
    size_t at = ((size_t)t * HEADS + head) * a->head_dim;
    dense_row(run, a, head, t, exact, rounded);
    for (uint32_t i = 0; i < a->head_dim; i++) {
        float wide;
        double low;
        if (a->dtype == PD_ATTENTION_F32) {
            memcpy(&wide, run->scratch->out + (at + i) * 4, 4);
            low = (double)(float)exact[i];
        } else {
            uint16_t bits;
            memcpy(&bits, run->scratch->out + (at + i) * 2, 2);
            wide = pd_bf16_to(bits);
            low = (double)pd_bf16_to(pd_bf16_of((float)rounded[i]));
        }
        double gap = fabs((double)wide - exact[i]);
        errors->found = isnan(wide) ? INFINITY : fmax(errors->found, gap);
        errors->plain = fmax(errors->plain, fabs(low - exact[i]));
        errors->size = fmax(errors->size, fabs(exact[i]));
    }
}

static void compare_head(struct run *run, const struct pd_attention *a, uint32_t head,
                         struct errors *errors)
{
    struct scratch *s = run->scratch;
    for (uint32_t t = 0; t < a->tokens; t++)
        for (uint32_t i = 0; i < a->head_dim; i++) {
            s->head_q[(size_t)t * a->head_dim + i] =
                s->q[((size_t)t * HEADS + head) * a->head_dim + i];
            s->head_k[(size_t)t * a->head_dim + i] =
                s->k[((size_t)t * HEADS + head) * a->head_dim + i];
        }
    pd_attention_weights(a->tokens, a->head_dim, s->head_q, s->head_k, a->scale, s->allowed,
                         s->weights);
    for (uint32_t t = 0; t < a->tokens; t++)
        if (s->made.segment_ids[t] > 0)
            compare_row(run, a, head, t, errors);
}

static int dense_case(struct run *run, enum pd_attention_dtype dtype, uint32_t dim)
{
    struct scratch *s = run->scratch;
    struct pd_attention a = make_attention(run, dtype, dim);
    struct errors errors = {0};
    randomise(run, &a, 0, a.tokens);
    memset(s->out, 0xff, sizeof(s->out));
    int rc = run->backend->attention(run->backend, &a, run->error);
    if (rc != 0)
        return rc;
    pd_attention_block_mask(a.tokens, s->made.batch.width, s->made.segment_ids, s->made.positions,
                            a.causal, s->allowed);
    for (uint32_t head = 0; head < HEADS; head++)
        compare_head(run, &a, head, &errors);
    double bound = 2 * errors.plain + (dtype == PD_ATTENTION_F32 ? errors.size * 4e-6 : 0);
    run->report->dense_cases++;
    if (errors.found > run->report->dense_error) {
        run->report->dense_error = errors.found;
        run->report->dense_bound = bound;
    }
    if (errors.found <= bound)
        return 0;
    char text[160];
    snprintf(text, sizeof(text),
             "dense reference, %s, head dim %u, %s mask: error %.3g, allowed %.3g",
             dtype == PD_ATTENTION_F32 ? "fp32" : "bf16", dim, a.causal ? "causal" : "full",
             errors.found, bound);
    return failed(run, text);
}

/* The segments whose index has this bit change; the others must not. */
static int interference_case(struct run *run, const struct pd_attention *a, uint32_t bit)
{
    struct scratch *s = run->scratch;
    size_t token_bytes = (size_t)HEADS * a->head_dim * (a->dtype == PD_ATTENTION_F32 ? 4 : 2);
    memset(s->out, 0xff, sizeof(s->out));
    int rc = run->backend->attention(run->backend, a, run->error);
    memcpy(s->again, s->out, sizeof(s->again));
    for (uint32_t i = 0; i < a->segment_count; i++)
        if (i >> bit & 1)
            randomise(run, a, (uint32_t)a->cu_seqlens[i], (uint32_t)a->cu_seqlens[i + 1]);
    if (rc == 0)
        rc = run->backend->attention(run->backend, a, run->error);
    if (rc != 0)
        return rc;
    run->report->interference_cases++;
    for (uint32_t i = 0; i < a->segment_count; i++) {
        size_t first = (size_t)a->cu_seqlens[i] * token_bytes;
        size_t size = (size_t)a->cu_seqlens[i + 1] * token_bytes - first;
        bool same = memcmp(s->out + first, s->again + first, size) == 0;
        if (same == (i >> bit & 1))
            return failed(run, same ? "interference: changed inputs left an output as it was"
                                    : "interference: a segment changed with another one's inputs");
    }
    return 0;
}

static int test_attention(struct run *run)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < 8; i++) {
        enum pd_attention_dtype dtype = i & 1 ? PD_ATTENTION_F32 : PD_ATTENTION_BF16;
        make_batch(run, i & 2, i & 4 ? 8 : 1);
        double start = seconds_now();
        rc = dense_case(run, dtype, i & 4 ? 128 : 64);
        double between = seconds_now();
        run->report->dense_seconds += between - start;
        struct pd_attention a = make_attention(run, dtype, 64);
        for (uint32_t bit = 0; rc == 0 && a.segment_count >> bit > 0; bit++) {
            randomise(run, &a, 0, a.tokens);
            rc = interference_case(run, &a, bit);
        }
        run->report->interference_seconds += seconds_now() - between;
    }
    return rc;
}

/* Kinds found in the scratch's batch, by the backend's probe and the length checks alone. */
static int probe(struct run *run, uint32_t *kinds, double *seconds)
{
    double start = seconds_now();
    struct scratch *s = run->scratch;
    const struct pd_probe_batch *b = &s->made.batch;
    bool admitted;
    int rc = pd_probe_admit(b, s->kinds, &admitted, run->error);
    if (rc == 0 && admitted) {
        rc = run->backend->submit(run->backend, 0, b, b->positions, run->error);
        if (rc == 0)
            rc = run->backend->collect(run->backend, 0, s->kinds, run->error);
        pd_probe_check_lengths(b, s->kinds);
    }
    *kinds = 0;
    for (uint32_t t = 0; t < b->rows * b->width; t++)
        *kinds |= s->kinds[t];
    *seconds += seconds_now() - start;
    return rc;
}

static int fault_case(struct run *run, enum pd_fault fault)
{
    struct pd_case_rules rules = pd_case_rules_random(&run->random, TOKENS);
    uint32_t kinds;
    char text[160];
    rules.logged = true;
    pd_case_make(&run->scratch->made, &rules, &run->random);
    int rc = probe(run, &kinds, &run->report->clean_seconds);
    if (rc != 0)
        return rc;
    run->report->clean_batches++;
    if (kinds != 0) {
        run->report->false_alarms++;
        return failed(run, "the probe reports a violation in a valid batch");
    }
    if (!pd_case_plant(&run->scratch->made, fault, &run->random))
        return PD_EAGAIN;
    rc = probe(run, &kinds, &run->report->faults_seconds);
    if (rc != 0)
        return rc;
    run->report->faults_planted++;
    run->report->faults_found += (kinds & pd_fault_kinds(fault)) != 0;
    if (kinds & pd_fault_kinds(fault))
        return 0;
    snprintf(text, sizeof(text), "the probe did not find: %s", pd_fault_name(fault));
    return failed(run, text);
}

/* Each fault in ROUNDS batches that have a place for it. */
static int test_probe(struct run *run)
{
    for (int fault = 0; fault < PD_FAULT_COUNT; fault++)
        for (uint32_t planted = 0, tries = 0; planted < ROUNDS; tries++) {
            int rc = fault_case(run, (enum pd_fault)fault);
            if (rc == PD_EAGAIN && tries < 1000)
                continue;
            if (rc == PD_EAGAIN)
                return failed(run, "no batch had a place for a fault");
            if (rc != 0)
                return rc;
            planted++;
        }
    return 0;
}

int pd_selftest_run(struct pd_backend *backend, struct pd_selftest_report *report,
                    struct pd_error *error)
{
    double start = seconds_now();
    memset(report, 0, sizeof(*report));
    snprintf(report->backend, sizeof(report->backend), "%s", backend->name);
    struct scratch *scratch = aligned_alloc(64, (sizeof(*scratch) + 63) / 64 * 64);
    if (!scratch)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "self-test: no memory for %zu bytes",
                            sizeof(*scratch));
    struct run run = {backend, report, scratch, error, 20240229};
    int rc = test_attention(&run);
    if (rc == 0)
        rc = test_probe(&run);
    free(scratch);
    report->seconds = seconds_now() - start;
    return rc;
}
