/* Would the tests notice? Every tagged statement of the kernels is left out in turn; a test must
 * fail for each.
 *
 * The sources are instrumented by mutate.awk and compiled once; a mutant is a number. Each runs
 * in a child process, which may fail, crash or hang without harm: only a child that finds nothing
 * wrong is a survivor. The battery is a small choice of the kernel tests' cases, with sums
 * flushed every second tile. It stops at the first finding, so that survivors alone cost the
 * whole battery. Without PACKD_FULL=1 each case runs in one thread order instead of three. */
#include "gpu/probe_cases.h"
#include "tests/gpu/attention_cases.h"
#include "tests/gpu/backend_simt.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct {
    uint32_t number;
    const char *place, *text;
} mutants[] = {
#define MUTANT(number, place, text) {number, place, text},
#include "tests/gpu/mutants_attention.inc"
#include "tests/gpu/mutants_probe.inc"
#undef MUTANT
};
enum { MUTANTS = sizeof(mutants) / sizeof(*mutants), SECONDS_EACH = 100 };

static struct pd_backend *simt;
static struct pd_case made;
static uint8_t kinds[PD_CASE_TOKENS_MAX], expected[PD_CASE_TOKENS_MAX];

/* Segments short, empty and longer than the tiles: with tokens before and behind them, or
 * (`tight`) with nothing: then the arrays of 144 tokens begin and end at unmapped pages. */
static bool attention_is_right(int variant, bool tight, enum simt_order order)
{
    static const int32_t lengths[] = {0, 65, 3, 0, 76}, used[] = {0, 64, 9, 0, 1};
    static const int32_t none[] = {0, 0, 0, 0, 0};
    struct attention_shape shape = {.lengths = lengths,
                                    .segments = 5,
                                    .used = variant & 4 ? (tight ? none : used) : NULL,
                                    .lead = tight ? 0 : 70,
                                    .tail = tight ? 0 : 40,
                                    .heads = 2,
                                    .heads_kv = 1,
                                    .head_dim = 64,
                                    .dtype = variant & 1 ? PD_ATTENTION_BF16 : PD_ATTENTION_F32,
                                    .causal = variant & 2};
    pd_backend_simt_set_order(simt, order, 3);
    struct attention_error e = attention_case(simt, &shape, 11);
    return e.rc == 0 && !e.strayed && e.error <= e.bound && e.lse_error < 2e-6;
}

/* The probe, on a batch whose segments take several flushes of the sums. */
static bool probe_is_right(bool causal, enum simt_order order)
{
    struct pd_case_rules rules = {
        .rows = 1, .width = 301, .seg_align = 1, .pad_segment = 64, .length_max = 290};
    uint64_t random = 8;
    rules.causal = causal;
    pd_case_make(&made, &rules, &random);
    memset(kinds, 0, sizeof(kinds));
    memset(expected, 0, sizeof(expected));
    pd_backend_simt_set_order(simt, order, 3);
    if (simt->submit(simt, 0, &made.batch, made.positions, NULL) != 0 ||
        simt->collect(simt, 0, kinds, NULL) != 0)
        return false;
    pd_probe_cpu(&made.batch, made.positions, expected);
    return memcmp(kinds, expected, sizeof(kinds)) == 0;
}

static bool battery_passes(bool full)
{
    bool right = true;
    for (int i = 0; right && i < (full ? 3 : 1); i++) {
        for (int variant = 0; right && variant < 16; variant++)
            right =
                attention_is_right(variant, variant & 8, (enum simt_order)((variant / 2 + i) % 3));
        for (int causal = 0; right && causal < 2; causal++)
            right = probe_is_right(causal, (enum simt_order)((causal + i) % 3));
    }
    return right;
}

/* True when the battery finds nothing wrong with this mutant. */
static bool survives(uint32_t number, bool full)
{
    pid_t child = fork();
    if (child < 0)
        abort();
    if (child == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL)
            _exit(2);
        alarm(SECONDS_EACH);
        simt_mutant = number;
        _exit(battery_passes(full) ? 0 : 1);
    }
    int status;
    if (waitpid(child, &status, 0) != child)
        abort();
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(void)
{
    bool full = getenv("PACKD_FULL") != NULL;
    int survivors = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    simt = pd_backend_simt_new();
    if (!simt || !survives(0, full)) {
        printf("the battery fails on the unchanged kernels\n");
        return 1;
    }
    for (int i = 0; i < MUTANTS; i++)
        if (survives(mutants[i].number, full)) {
            printf("SURVIVOR %s: %s\n", mutants[i].place, mutants[i].text);
            survivors++;
        }
    printf("%d statements left out in turn, %d found, %d survivors%s\n", (int)MUTANTS,
           MUTANTS - survivors, survivors, full ? "" : " (one thread order each)");
    simt->free(simt);
    return survivors > 0;
}
