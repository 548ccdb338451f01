/* The SIMT machine: it runs what CUDA defines and reports what it does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gpu/simt/simt.h"

#include <math.h>
#include <string.h>

static struct simt *machine;
static const enum simt_order orders[] = {SIMT_ASCENDING, SIMT_DESCENDING, SIMT_RANDOM};

static int make_machine(void **state)
{
    (void)state;
    machine = simt_new();
    return machine == NULL;
}

static int free_machine(void **state)
{
    (void)state;
    simt_free(machine);
    return 0;
}

static int run(void (*entry)(const void *), const void *argument, struct pd_error *error)
{
    static const struct simt_launch launch = {
        .grid_x = 2, .grid_y = 2, .threads = 128, .shared_bytes = 1024};
    return simt_run(machine, &launch, entry, argument, error);
}

/* Each thread hands a number to the next one through shared memory; the barrier is line 1. */
struct relay {
    int *got; /* [blocks][threads] */
    bool barrier;
};

static void relay_kernel(const void *argument)
{
    const struct relay *relay = argument;
    uint32_t thread = simt_thread(), block = simt_block_y() * simt_grid_x() + simt_block_x();
    int *shared = simt_shared();
    shared[thread] = (int)(1000 * block + thread);
    if (relay->barrier)
        simt_barrier(1);
    relay->got[block * 128 + thread] = shared[(thread + 1) % 128];
}

static bool relayed(const int *got)
{
    for (int block = 0; block < 4; block++)
        for (int thread = 0; thread < 128; thread++)
            if (got[block * 128 + thread] != 1000 * block + (thread + 1) % 128)
                return false;
    return true;
}

static void test_barrier_in_every_order(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        int got[4 * 128] = {0};
        simt_set_order(machine, orders[i], 5);
        assert_int_equal(run(relay_kernel, &(struct relay){got, true}, NULL), 0);
        assert_true(relayed(got));
        assert_int_equal(run(relay_kernel, &(struct relay){got, false}, NULL), 0);
        assert_false(relayed(got)); /* a missing barrier shows */
    }
}

static void divergent_barrier(const void *argument)
{
    (void)argument;
    if (simt_thread() < 64)
        simt_barrier(10);
    else
        simt_barrier(20);
}

static void early_exit(const void *argument)
{
    (void)argument;
    if (simt_thread() == 5)
        return;
    simt_barrier(30);
}

static void half_a_warp(const void *argument)
{
    (void)argument;
    if (simt_thread() % 32 < 16)
        simt_warp_sync(40);
}

static void two_shuffles(const void *argument)
{
    (void)argument;
    if (simt_thread() % 2)
        simt_shfl_xor(1, 1, 50);
    else
        simt_shfl_xor(1, 1, 60);
}

static void test_divergence_is_reported(void **state)
{
    (void)state;
    void (*const kernels[])(const void *) = {divergent_barrier, early_exit, half_a_warp,
                                             two_shuffles};
    for (int i = 0; i < 4; i++)
        for (int order = 0; order < 3; order++) {
            struct pd_error error;
            simt_set_order(machine, orders[order], 9);
            assert_int_equal(run(kernels[i], NULL, &error), PD_EDEVICE);
            assert_string_equal(error.reason, "SIMT_DIVERGED");
        }
    int got[4 * 128]; /* and the machine can go on */
    assert_int_equal(run(relay_kernel, &(struct relay){got, true}, NULL), 0);
    assert_true(relayed(got));
}

static void butterfly(const void *argument)
{
    float *sums = (float *)(uintptr_t)argument, sum = (float)simt_thread();
    for (uint32_t mask = 1; mask < 32; mask *= 2)
        sum += simt_shfl_xor(sum, mask, 70);
    sums[simt_thread()] = sum;
}

static void test_shuffle(void **state)
{
    (void)state;
    float sums[128];
    for (int i = 0; i < 3; i++) {
        simt_set_order(machine, orders[i], 2);
        assert_int_equal(run(butterfly, sums, NULL), 0);
        for (int t = 0; t < 128; t++)
            assert_true(sums[t] == (float)(t / 32 * 32 * 32 + 496));
    }
}

/* a[i][k] = i + 1 where k == i, b[k][j] = j + 16 k: the product is (i + 1) (j + 16 i); small
 * whole numbers. */
static uint32_t bf16_pair(int low, int high)
{
    float values[2] = {(float)low, (float)high};
    uint32_t bits[2];
    memcpy(bits, values, 8);
    return (bits[1] & 0xffff0000u) | bits[0] >> 16;
}

static int a_value(uint32_t row, uint32_t k)
{
    return row == k ? (int)row + 1 : 0;
}

static int b_value(uint32_t k, uint32_t column)
{
    return (int)(column + 16 * k) % 128;
}

static void product(const void *argument)
{
    float(*out)[8] = (float(*)[8])(uintptr_t)argument;
    uint32_t lane = simt_thread() % 32, group = lane / 4, pair = lane % 4 * 2, a[4], b[2];
    float d[4] = {0.5f, 0.5f, 0.5f, 0.5f};
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t row = group + i % 2 * 8, k = pair + i / 2 * 8;
        a[i] = bf16_pair(a_value(row, k), a_value(row, k + 1));
    }
    for (uint32_t i = 0; i < 2; i++)
        b[i] = bf16_pair(b_value(pair + i * 8, group), b_value(pair + i * 8 + 1, group));
    simt_mma(d, a, b, 80);
    for (uint32_t i = 0; i < 4; i++)
        out[group + i / 2 * 8][pair + i % 2] = d[i];
}

static void test_mma(void **state)
{
    (void)state;
    float out[16][8] = {{0}};
    assert_int_equal(run(product, out, NULL), 0);
    for (uint32_t i = 0; i < 16; i++)
        for (uint32_t j = 0; j < 8; j++)
            assert_true(out[i][j] == (float)(((int)i + 1) * b_value(i, j)) + 0.5f);
}

static void matrices(const void *argument)
{
    uint32_t(*out)[2][4] = (uint32_t(*)[2][4])(uintptr_t)argument;
    uint16_t *shared = simt_shared();
    uint32_t lane = simt_thread() % 32;
    if (simt_thread() < 32)
        for (uint32_t i = 0; i < 8; i++)
            shared[lane * 8 + i] =
                (uint16_t)(lane * 8 + i); /* matrix m, row r, column i: 64 m + 8 r + i */
    simt_barrier(90);
    simt_ldmatrix(out[lane][0], shared + lane * 8, 0, 91);
    simt_ldmatrix(out[lane][1], shared + lane * 8, 1, 92);
}

static void test_ldmatrix(void **state)
{
    (void)state;
    uint32_t out[32][2][4] = {{{0}}};
    assert_int_equal(run(matrices, out, NULL), 0);
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t m = 0; m < 4; m++) {
            uint32_t row = 64 * m + 8 * (lane / 4) + lane % 4 * 2;
            uint32_t column = 64 * m + 8 * (lane % 4 * 2) + lane / 4;
            assert_int_equal(out[lane][0][m], (row + 1) << 16 | row);
            assert_int_equal(out[lane][1][m], (column + 8) << 16 | column);
        }
}

static void poison(const void *argument)
{
    int *stale = (int *)(uintptr_t)argument;
    float *shared = simt_shared();
    *stale += !isnan(shared[simt_thread()]);
    shared[simt_thread()] = 1;
}

static void test_shared_memory_is_poisoned(void **state)
{
    (void)state;
    int stale = 0;
    assert_int_equal(run(poison, &stale, NULL), 0);
    assert_int_equal(stale, 0);
}

static void misaligned_copy(const void *argument)
{
    simt_copy16((char *)simt_shared() + 8, argument, 1);
}

static void copy_outside(const void *argument)
{
    simt_copy16((char *)simt_shared() + 1024, argument, 1);
}

static void test_bad_copies_are_reported(void **state)
{
    (void)state;
    static _Alignas(16) char from[16];
    struct pd_error error;
    assert_int_equal(run(misaligned_copy, from, &error), PD_EDEVICE);
    assert_string_equal(error.reason, "SIMT_MISALIGNED");
    assert_int_equal(run(copy_outside, from, &error), PD_EDEVICE);
    assert_string_equal(error.reason, "SIMT_OUTSIDE");
}

/* A copy that nobody waited for is not there when copies are late. */
static void unawaited(const void *argument)
{
    int *seen = (int *)(uintptr_t)argument;
    static const _Alignas(16) float ones[4] = {1, 1, 1, 1};
    float *shared = simt_shared();
    if (simt_thread() > 0)
        return;
    simt_copy16(shared, ones, 1);
    seen[0] = shared[0] == 1.0f;
    simt_copy_wait();
    seen[1] = shared[0] == 1.0f;
    simt_copy16(shared, ones, 0);
    simt_copy_wait();
    seen[2] = shared[0] == 0.0f;
}

static void test_copies_are_late_or_early(void **state)
{
    (void)state;
    int seen[3];
    simt_set_order(machine, SIMT_ASCENDING, 0);
    assert_int_equal(run(unawaited, seen, NULL), 0);
    assert_true(!seen[0] && seen[1] && seen[2]);
    simt_set_order(machine, SIMT_DESCENDING, 0);
    assert_int_equal(run(unawaited, seen, NULL), 0);
    assert_true(seen[0] && seen[1] && seen[2]);
}

static void test_bad_launches(void **state)
{
    (void)state;
    struct simt_launch launch = {.grid_x = 1, .grid_y = 1, .threads = 33};
    assert_int_equal(simt_run(machine, &launch, poison, NULL, NULL), PD_EINVAL);
    launch = (struct simt_launch){.grid_x = 1, .grid_y = 1, .threads = 32, .shared_bytes = 1 << 20};
    assert_int_equal(simt_run(machine, &launch, poison, NULL, NULL), PD_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_barrier_in_every_order),
        cmocka_unit_test(test_divergence_is_reported),
        cmocka_unit_test(test_shuffle),
        cmocka_unit_test(test_mma),
        cmocka_unit_test(test_ldmatrix),
        cmocka_unit_test(test_shared_memory_is_poisoned),
        cmocka_unit_test(test_bad_copies_are_reported),
        cmocka_unit_test(test_copies_are_late_or_early),
        cmocka_unit_test(test_bad_launches),
    };
    return cmocka_run_group_tests(tests, make_machine, free_machine);
}
