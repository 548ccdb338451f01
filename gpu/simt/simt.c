/* The machine that runs a CUDA block on one CPU thread: fibers, barriers, warp collectives.
 *
 *   simt_run -> for each block: poison shared memory, run_block
 *   run_block: rounds over the threads in the chosen order; each runnable one runs and comes back
 *   when it waits or ends; a round in which nobody could run is a divergence.
 *
 * A warp collective is a deposit, a warp barrier and a gather. Deposits alternate between two
 * buffers per warp: a lane can be at most one collective ahead of another, so nothing is
 * overwritten before all have read it. The switch is written by hand because swapcontext makes a
 * system call each time (some hundred times slower).
 *
 * Test code, one machine per OS thread; `current` is the machine whose fiber is running. */
#include "gpu/simt/simt.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define SIMT_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define SIMT_TSAN 1
#endif

enum { STACK_BYTES = 64 * 1024, GUARD_BYTES = 64 * 1024, COPIES_MAX = 64, WARPS_MAX = 8 };
#if defined(SIMT_ASAN) || defined(SIMT_TSAN)
enum { STACK_USED = 4 * STACK_BYTES }; /* the sanitizers make frames larger */
#else
enum { STACK_USED = STACK_BYTES };
#endif

enum state { RUNNABLE, AT_BARRIER, AT_COLLECTIVE, ENDED };

struct copy {
    void *shared;
    const void *global;
    int inside;
};

struct fiber {
    void *stack_pointer;
    unsigned char *stack; /* STACK_USED bytes above a guard */
    enum state state;
    int line;       /* where it waits */
    uint32_t phase; /* collectives so far */
    struct copy copies[COPIES_MAX];
    uint32_t copy_count;
    void *tsan; /* what the thread sanitizer calls it */
};

/* What the lanes of a warp hand each other in one collective. */
struct exchange {
    float value[SIMT_WARP];
    float a[16][16], b[16][8], d[16][8]; /* mma: operands and product */
    uint32_t deposits;                   /* of the operands */
    uint16_t rows[SIMT_WARP][8];
};

struct simt {
    struct fiber fibers[SIMT_THREADS_MAX];
    struct exchange exchange[WARPS_MAX][2];
    uint32_t order[SIMT_THREADS_MAX];
    enum simt_order kind;
    uint64_t random;
    struct simt_launch launch;
    uint32_t block_x, block_y, running;
    uint32_t ended, at_barrier, at_collective[WARPS_MAX];
    void (*entry)(const void *);
    const void *argument;
    void *scheduler;             /* its stack pointer while a fiber runs */
    const void *scheduler_stack; /* the same for the address sanitizer */
    size_t scheduler_stack_bytes;
    void *scheduler_tsan;
    unsigned char *stacks, *arena, *shared;
    struct pd_error failed; /* code 0: fine */
};

static _Thread_local struct simt *current;

/* Saves what a function call must preserve on the stack, swaps stacks, restores. */
void simt_switch(void **save, void *load);
#if defined(__x86_64__)
__asm__(".text\n.globl simt_switch\n.type simt_switch, @function\nsimt_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size simt_switch, .-simt_switch\n");
enum { FRAME_WORDS = 8, FRAME_RETURN = 6 };
#elif defined(__aarch64__)
__asm__(".text\n.globl simt_switch\n.type simt_switch, %function\nsimt_switch:\n"
        "sub sp, sp, #160\n"
        "stp x19, x20, [sp, #0]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\n"
        "stp x25, x26, [sp, #48]\nstp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\n"
        "stp d14, d15, [sp, #144]\n"
        "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
        "ldp x19, x20, [sp, #0]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\n"
        "ldp x25, x26, [sp, #48]\nldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
        "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\n"
        "ldp d14, d15, [sp, #144]\nadd sp, sp, #160\nret\n"
        ".size simt_switch, .-simt_switch\n");
enum { FRAME_WORDS = 20, FRAME_RETURN = 11 };
#else
#error "simt_switch is written for x86-64 and aarch64"
#endif

/* ---- switching ---- */

/* Both sanitizers must be told before the stack changes; the address sanitizer also after. */
static void enter_fiber(struct simt *m, uint32_t thread)
{
    struct fiber *fiber = &m->fibers[thread];
    m->running = thread;
#if defined(SIMT_TSAN)
    m->scheduler_tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber->tsan, 0);
#endif
#if defined(SIMT_ASAN)
    void *fake = NULL;
    __sanitizer_start_switch_fiber(&fake, fiber->stack, STACK_USED);
#endif
    simt_switch(&m->scheduler, fiber->stack_pointer);
#if defined(SIMT_ASAN)
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
}

static void leave_fiber(struct simt *m)
{
    struct fiber *fiber = &m->fibers[m->running];
#if defined(SIMT_TSAN)
    __tsan_switch_to_fiber(m->scheduler_tsan, 0);
#endif
#if defined(SIMT_ASAN)
    void *fake = NULL;
    __sanitizer_start_switch_fiber(&fake, m->scheduler_stack, m->scheduler_stack_bytes);
#endif
    simt_switch(&fiber->stack_pointer, m->scheduler);
#if defined(SIMT_ASAN)
    __sanitizer_finish_switch_fiber(fake, &m->scheduler_stack, &m->scheduler_stack_bytes);
#endif
}

static void fiber_main(void)
{
#if defined(SIMT_ASAN)
    __sanitizer_finish_switch_fiber(NULL, &current->scheduler_stack,
                                    &current->scheduler_stack_bytes);
#endif
    for (;;) {
        struct simt *m = current;
        m->entry(m->argument);
        m->fibers[m->running].state = ENDED;
        m->ended++;
        leave_fiber(m);
    }
}

/* A fresh stack whose first switch enters fiber_main, aligned as after a call. */
static void reset_fiber(struct fiber *fiber)
{
    uintptr_t top = (uintptr_t)(fiber->stack + STACK_USED) & ~(uintptr_t)15;
    void **frame = (void **)top - FRAME_WORDS;
#if defined(SIMT_ASAN)
    __asan_unpoison_memory_region(fiber->stack, STACK_USED);
#endif
#if defined(SIMT_TSAN)
    if (fiber->tsan)
        __tsan_destroy_fiber(fiber->tsan);
    fiber->tsan = __tsan_create_fiber(0);
#endif
    memset(frame, 0, FRAME_WORDS * sizeof(*frame));
    frame[FRAME_RETURN] = (void *)(uintptr_t)fiber_main;
    fiber->stack_pointer = frame;
    fiber->phase = 0;
}

/* ---- life ---- */

struct simt *simt_new(void)
{
    size_t each = STACK_USED + GUARD_BYTES;
    struct simt *m = calloc(1, sizeof(*m));
    if (!m)
        return NULL;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    m->stacks = mmap(NULL, SIMT_THREADS_MAX * each, PROT_NONE, flags, -1, 0);
    m->arena = mmap(NULL, SIMT_SHARED_MAX + GUARD_BYTES, PROT_NONE, flags, -1, 0);
    bool made = m->stacks != MAP_FAILED && m->arena != MAP_FAILED &&
                mprotect(m->arena, SIMT_SHARED_MAX, PROT_READ | PROT_WRITE) == 0;
    for (uint32_t i = 0; made && i < SIMT_THREADS_MAX; i++) {
        m->fibers[i].stack = m->stacks + i * each + GUARD_BYTES;
        made = mprotect(m->fibers[i].stack, STACK_USED, PROT_READ | PROT_WRITE) == 0;
    }
    if (made)
        return m;
    simt_free(m);
    return NULL;
}

void simt_free(struct simt *m)
{
    if (!m)
        return;
#if defined(SIMT_TSAN)
    for (uint32_t i = 0; i < SIMT_THREADS_MAX; i++)
        if (m->fibers[i].tsan)
            __tsan_destroy_fiber(m->fibers[i].tsan);
#endif
    if (m->stacks != MAP_FAILED)
        munmap(m->stacks, SIMT_THREADS_MAX * (size_t)(STACK_USED + GUARD_BYTES));
    if (m->arena != MAP_FAILED)
        munmap(m->arena, SIMT_SHARED_MAX + GUARD_BYTES);
    free(m);
}

void simt_set_order(struct simt *m, enum simt_order order, uint64_t seed)
{
    m->kind = order;
    m->random = seed * 2 + 1;
}

/* ---- the scheduler ---- */

static uint32_t random_below(struct simt *m, uint32_t bound)
{
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((m->random >> 33) % bound);
}

static void make_order(struct simt *m)
{
    uint32_t n = m->launch.threads;
    for (uint32_t i = 0; i < n; i++)
        m->order[i] = m->kind == SIMT_DESCENDING ? n - 1 - i : i;
    for (uint32_t i = n; m->kind == SIMT_RANDOM && i > 1; i--) {
        uint32_t j = random_below(m, i), kept = m->order[j];
        m->order[j] = m->order[i - 1];
        m->order[i - 1] = kept;
    }
}

static void report_stuck(struct simt *m)
{
    static const char *const names[] = {"runs", "waits at the barrier", "waits at the collective",
                                        "has ended"};
    const struct fiber *one = &m->fibers[0], *other = one;
    uint32_t thread = 0;
    for (uint32_t i = 1; i < m->launch.threads && other == one; i++)
        if (m->fibers[i].state != one->state || m->fibers[i].line != one->line) {
            other = &m->fibers[i];
            thread = i;
        }
    pd_error_set(&m->failed, PD_EDEVICE, "SIMT_DIVERGED",
                 "block (%u, %u): thread 0 %s of line %d while thread %u %s of line %d", m->block_x,
                 m->block_y, names[one->state], one->line, thread, names[other->state],
                 other->line);
}

static void run_block(struct simt *m)
{
    uint32_t n = m->launch.threads;
    m->ended = m->at_barrier = 0;
    memset(m->at_collective, 0, sizeof(m->at_collective));
    for (uint32_t i = 0; i < n; i++) {
        m->fibers[i].state = RUNNABLE;
        m->fibers[i].copy_count = 0;
    }
    while (m->ended < n && m->failed.code == 0) {
        bool moved = false;
        make_order(m);
        for (uint32_t i = 0; i < n && m->failed.code == 0; i++)
            if (m->fibers[m->order[i]].state == RUNNABLE) {
                enter_fiber(m, m->order[i]);
                moved = true;
            }
        if (!moved && m->failed.code == 0)
            report_stuck(m);
    }
}

static int check_launch(const struct simt_launch *l, struct pd_error *error)
{
    if (l->threads > 0 && l->threads <= SIMT_THREADS_MAX && l->threads % SIMT_WARP == 0 &&
        l->shared_bytes <= SIMT_SHARED_MAX && l->shared_bytes % 16 == 0)
        return 0;
    return pd_error_set(
        error, PD_EINVAL, "SIMT_LAUNCH",
        "simt: %u threads and %u bytes of shared memory; at most %d, a multiple of %d, "
        "and %u",
        l->threads, l->shared_bytes, SIMT_THREADS_MAX, SIMT_WARP, SIMT_SHARED_MAX);
}

int simt_run(struct simt *m, const struct simt_launch *launch, void (*entry)(const void *),
             const void *argument, struct pd_error *error)
{
    int rc = check_launch(launch, error);
    if (rc != 0)
        return rc;
    m->launch = *launch;
    m->entry = entry;
    m->argument = argument;
    m->failed.code = 0;
    m->shared = m->arena + SIMT_SHARED_MAX - launch->shared_bytes; /* ends where memory ends */
    memset(m->exchange, 0, sizeof(m->exchange));
    for (uint32_t i = 0; i < launch->threads; i++)
        reset_fiber(&m->fibers[i]);
    current = m;
    uint32_t count = launch->block_count ? launch->block_count : launch->grid_x;
    for (m->block_y = 0; m->block_y < launch->grid_y; m->block_y++)
        for (uint32_t i = 0; i < count && m->failed.code == 0; i++) {
            m->block_x = launch->block_first + i;
            memset(m->arena, 0xff, SIMT_SHARED_MAX); /* NaN as fp32 and as bf16 */
            run_block(m);
        }
    current = NULL;
    if (m->failed.code != 0 && error)
        *error = m->failed;
    return m->failed.code;
}

/* Ends the run from inside a fiber; the fiber never goes on. */
static void fail(struct simt *m, const char *reason, const char *what)
{
    pd_error_set(&m->failed, PD_EDEVICE, reason, "block (%u, %u), thread %u: %s", m->block_x,
                 m->block_y, m->running, what);
    for (;;)
        leave_fiber(m);
}

/* ---- what kernels call ---- */

uint32_t simt_thread(void)
{
    return current->running;
}

uint32_t simt_block_x(void)
{
    return current->block_x;
}

uint32_t simt_block_y(void)
{
    return current->block_y;
}

uint32_t simt_grid_x(void)
{
    return current->launch.grid_x;
}

void *simt_shared(void)
{
    return current->shared;
}

/* Waits until `count` threads from `first` on wait in this state at this line; the last one wakes
 * them. */
static void wait_for(struct simt *m, enum state state, int line, uint32_t first, uint32_t count,
                     uint32_t *waiting)
{
    struct fiber *self = &m->fibers[m->running];
    self->state = state;
    self->line = line;
    if (++*waiting == count) {
        for (uint32_t i = first; i < first + count; i++)
            if (m->fibers[i].line != line)
                report_stuck(m);
        for (uint32_t i = first; i < first + count; i++)
            m->fibers[i].state = RUNNABLE;
        *waiting = 0;
    }
    leave_fiber(m);
}

void simt_barrier(int line)
{
    struct simt *m = current;
    wait_for(m, AT_BARRIER, line, 0, m->launch.threads, &m->at_barrier);
}

void simt_warp_sync(int line)
{
    struct simt *m = current;
    uint32_t warp = m->running / SIMT_WARP;
    wait_for(m, AT_COLLECTIVE, line, warp * SIMT_WARP, SIMT_WARP, &m->at_collective[warp]);
}

/* The buffer of this lane's next collective. */
static struct exchange *deposit(struct simt *m)
{
    return &m->exchange[m->running / SIMT_WARP][m->fibers[m->running].phase++ & 1];
}

float simt_shfl_xor(float value, uint32_t mask, int line)
{
    struct simt *m = current;
    uint32_t lane = m->running % SIMT_WARP;
    struct exchange *x = deposit(m);
    x->value[lane] = value;
    simt_warp_sync(line);
    return x->value[lane ^ mask];
}

static float low_half(uint32_t pair)
{
    uint32_t bits = pair << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static float high_half(uint32_t pair)
{
    uint32_t bits = pair & 0xffff0000u;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Whole rows at a time, which the compiler turns into vector code; by the lane that deposits
 * last. */
static void multiply(struct exchange *x)
{
    memset(x->d, 0, sizeof(x->d));
    for (uint32_t i = 0; i < 16; i++)
        for (uint32_t k = 0; k < 16; k++)
            for (uint32_t j = 0; j < 8; j++)
                x->d[i][j] += x->a[i][k] * x->b[k][j];
}

void simt_mma(float d[4], const uint32_t a[4], const uint32_t b[2], int line)
{
    struct simt *m = current;
    uint32_t lane = m->running % SIMT_WARP, group = lane / 4, pair = lane % 4 * 2;
    struct exchange *x = deposit(m);
    for (uint32_t i = 0; i < 4; i++) {
        float *row = x->a[group + i % 2 * 8] + pair + i / 2 * 8;
        row[0] = low_half(a[i]);
        row[1] = high_half(a[i]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        x->b[pair + i * 8][group] = low_half(b[i]);
        x->b[pair + i * 8 + 1][group] = high_half(b[i]);
    }
    if (++x->deposits == SIMT_WARP) {
        x->deposits = 0;
        multiply(x);
    }
    simt_warp_sync(line);
    for (uint32_t i = 0; i < 4; i++)
        d[i] += x->d[group + i / 2 * 8][pair + i % 2];
}

static bool in_shared(const struct simt *m, const void *at)
{
    uintptr_t first = (uintptr_t)m->shared, place = (uintptr_t)at;
    return place >= first && place + 16 <= first + m->launch.shared_bytes;
}

static void check_shared(struct simt *m, const void *at)
{
    if ((uintptr_t)at % 16 != 0)
        fail(m, "SIMT_MISALIGNED", "a 16-byte access to shared memory is not 16-byte aligned");
    if (!in_shared(m, at))
        fail(m, "SIMT_OUTSIDE", "an access leaves the block's shared memory");
}

void simt_ldmatrix(uint32_t r[4], const void *row, int transposed, int line)
{
    struct simt *m = current;
    uint32_t lane = m->running % SIMT_WARP, group = lane / 4, pair = lane % 4 * 2;
    struct exchange *x = deposit(m);
    check_shared(m, row);
    memcpy(x->rows[lane], row, 16);
    simt_warp_sync(line);
    for (uint32_t i = 0; i < 4; i++) {
        uint16_t(*matrix)[8] = x->rows + i * 8;
        uint16_t low = transposed ? matrix[pair][group] : matrix[group][pair];
        uint16_t high = transposed ? matrix[pair + 1][group] : matrix[group][pair + 1];
        r[i] = (uint32_t)high << 16 | low;
    }
}

static void copy_now(const struct copy *copy)
{
    if (copy->inside)
        memcpy(copy->shared, copy->global, 16);
    else
        memset(copy->shared, 0, 16);
}

void simt_copy16(void *shared, const void *global, int inside)
{
    struct simt *m = current;
    struct fiber *self = &m->fibers[m->running];
    struct copy copy = {shared, global, inside};
    check_shared(m, shared);
    if (inside && (uintptr_t)global % 16 != 0)
        fail(m, "SIMT_MISALIGNED", "an asynchronous copy from an address not 16-byte aligned");
    bool late = m->kind == SIMT_ASCENDING || (m->kind == SIMT_RANDOM && random_below(m, 2));
    if (!late)
        copy_now(&copy);
    else if (self->copy_count == COPIES_MAX)
        fail(m, "SIMT_OUTSIDE", "more asynchronous copies in flight than the machine holds");
    else
        self->copies[self->copy_count++] = copy;
}

void simt_copy_wait(void)
{
    struct fiber *self = &current->fibers[current->running];
    for (uint32_t i = 0; i < self->copy_count; i++)
        copy_now(&self->copies[i]);
    self->copy_count = 0;
}
