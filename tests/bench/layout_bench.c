/* How fast batches are laid out and checked, beside memcpy of the same payload on the same machine.
 *
 * Prints one line a shape: payload bytes written (or read) per second by each step. Rates are of
 * payload, of which a fifth is tokens. */
#include "tests/unit/layout_case.h"

#include "packer/check.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RUN_SECONDS 0.3

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct bench {
    struct layout_case *c;
    void *copy;
    struct pd_bodies bodies;
};

static void run_copy(struct bench *b)
{
    memcpy(b->copy, b->c->payload, b->c->batch.payload_bytes);
    __asm__ volatile("" ::"r"(b->copy) : "memory");
}

static void run_measure(struct bench *b)
{
    struct pd_batch batch;
    struct pd_layout_input input = case_input(b->c, &b->bodies);
    PD_CHECK(pd_layout_measure(&input, &batch, NULL) == 0);
}

static void run_fill(struct bench *b)
{
    struct pd_layout_input input = case_input(b->c, &b->bodies);
    PD_CHECK(pd_layout_fill(&input, &b->c->batch, b->c->payload) == 0);
}

static void run_digest(struct bench *b)
{
    pd_batch_digest(&b->c->batch, b->c->payload);
}

static void run_check(struct bench *b)
{
    struct pd_check_finding finding;
    struct pd_check_input input = case_check_input(b->c, true);
    PD_CHECK(pd_check_batch(&input, &finding) == 0);
}

/* Payload bytes a second. */
static double rate(void (*step)(struct bench *), struct bench *b)
{
    double start = now(), end;
    uint64_t count = 0;
    do {
        step(b);
        count++;
        end = now();
    } while (end - start < RUN_SECONDS);
    return (double)count * (double)b->c->batch.payload_bytes / (end - start);
}

static void bench_shape(uint32_t rows, uint32_t seq_len, uint32_t mean, uint32_t seg_align)
{
    struct bench b = {.c = case_new()};
    uint64_t random = 7;
    b.c->rules.seq_len = seq_len;
    b.c->rules.seg_align = b.c->rules.total_align = seg_align;
    for (uint32_t row = 0; row < rows; row++) {
        for (;;) {
            uint32_t length = 1 + test_below(&random, 2 * mean - 1);
            uint32_t slot = (length + seg_align - 1) / seg_align * seg_align;
            if (b.c->packs[row].used_slots + slot > seq_len)
                break;
            case_put(b.c, row, case_sample(b.c, length, 100, 1, NULL, NULL, 0), 0, length, 0, 1);
        }
    }
    PD_CHECK(case_build(b.c, NULL) == 0);
    b.bodies = case_bodies(b.c);
    b.copy = malloc(b.c->batch.payload_bytes);
    PD_CHECK(b.copy);
    printf("%u x %u, mean length %u, seg_align %u, %.2f MiB: memcpy %.2f  measure %.2f  "
           "fill %.2f  "
           "digest %.2f  check %.2f  GB/s\n",
           rows, seq_len, mean, seg_align, (double)b.c->batch.payload_bytes / 1048576,
           rate(run_copy, &b) / 1e9, rate(run_measure, &b) / 1e9, rate(run_fill, &b) / 1e9,
           rate(run_digest, &b) / 1e9, rate(run_check, &b) / 1e9);
    free(b.copy);
    case_free(b.c);
}

int main(void)
{
    bench_shape(8, 4096, 512, 1);
    bench_shape(8, 4096, 512, 8);
    bench_shape(8, 4096, 40, 1);
    bench_shape(8, 4096, 4096, 1);
    bench_shape(8, 131072, 4096, 1);
    return 0;
}
