/* The oracle's own proof, and the CPU backend against the oracle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gpu/cpu_levels.h"
#include "tests/gpu/attention_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct pd_backend *cpu;

static int make_cpu(void **state)
{
    (void)state;
    return pd_backend_cpu_new(&cpu, NULL);
}

static int free_cpu(void **state)
{
    (void)state;
    cpu->free(cpu);
    return 0;
}

/* Weight that row t gives to tokens of other samples. */
static double foreign_mass(uint32_t n, const int32_t *ids, const double *weights, uint32_t t)
{
    double mass = 0;
    for (uint32_t s = 0; s < n; s++)
        if (ids[s] != ids[t])
            mass += weights[t * n + s];
    return mass;
}

/* What packing must guarantee, in nine tokens: three samples of 3, 2 and 4. With the block mask
 * not the smallest weight crosses a boundary and every row sums to one; without it, weight does
 * cross. */
static void test_three_packed_samples(void **state)
{
    (void)state;
    enum { N = 9, DIM = 16 };
    static const int32_t ids[N] = {1, 1, 1, 2, 2, 3, 3, 3, 3},
                         positions[N] = {0, 1, 2, 0, 1, 0, 1, 2, 3};
    float q[N * DIM], k[N * DIM];
    uint8_t allowed[N * N];
    double weights[N * N];
    for (int i = 0; i < N * DIM; i++) {
        q[i] = sinf((float)i * 1.7f);
        k[i] = cosf((float)i * 2.3f);
    }
    for (int causal = 0; causal < 2; causal++) {
        pd_attention_block_mask(N, N, ids, positions, causal, allowed);
        pd_attention_weights(N, DIM, q, k, 0.25f, allowed, weights);
        for (uint32_t t = 0; t < N; t++) {
            double sum = 0;
            for (uint32_t s = 0; s < N; s++)
                sum += weights[t * N + s];
            assert_true(foreign_mass(N, ids, weights, t) == 0.0);
            assert_true(fabs(sum - 1) < 1e-12);
            for (uint32_t s = t + 1; s < N && causal; s++)
                assert_true(weights[t * N + s] == 0.0);
        }
    }
    pd_attention_weights(N, DIM, q, k, 0.25f, NULL, weights);
    for (uint32_t t = 0; t < N; t++)
        assert_true(foreign_mass(N, ids, weights, t) > 1e-3);
}

/* Two descriptions of one batch: cu_seqlens, and the block mask from ids and positions. */
static void test_oracle_equals_dense_mask(void **state)
{
    (void)state;
    enum { N = 40, DIM = 16 };
    static const int32_t cu[] = {0, 7, 8, 24, 40};
    int32_t ids[N], positions[N];
    float q[N * DIM], k[N * DIM], v[N * DIM];
    uint8_t allowed[N * N];
    double weights[N * N], out[N * DIM];
    for (int s = 0; s < 4; s++)
        for (int32_t t = cu[s]; t < cu[s + 1]; t++) {
            ids[t] = s + 1;
            positions[t] = t - cu[s];
        }
    for (int i = 0; i < N * DIM; i++) {
        q[i] = sinf((float)i * 0.7f);
        k[i] = cosf((float)i * 1.3f);
        v[i] = sinf((float)i * 0.31f);
    }
    for (int causal = 0; causal < 2; causal++) {
        struct pd_attention a = {.q = q,
                                 .k = k,
                                 .v = v,
                                 .cu_seqlens = cu,
                                 .segment_count = 4,
                                 .tokens = N,
                                 .heads = 1,
                                 .heads_kv = 1,
                                 .head_dim = DIM,
                                 .causal = causal,
                                 .scale = 0.3f};
        pd_attention_pack(&a);
        pd_attention_ref(&a, false, out, NULL);
        pd_attention_block_mask(N, N, ids, positions, causal, allowed);
        pd_attention_weights(N, DIM, q, k, 0.3f, allowed, weights);
        for (uint32_t t = 0; t < N; t++)
            for (uint32_t i = 0; i < DIM; i++) {
                double want = 0;
                for (uint32_t s = 0; s < N; s++)
                    want += weights[t * N + s] * (double)v[s * DIM + i];
                assert_true(fabs(out[t * DIM + i] - want) < 1e-12);
            }
    }
}

static void test_bf16(void **state)
{
    (void)state;
    assert_int_equal(pd_bf16_of(1.0f), 0x3f80);
    assert_int_equal(pd_bf16_of(1.00390625f), 0x3f80); /* a tie goes to even */
    assert_int_equal(pd_bf16_of(1.01171875f), 0x3f82);
    assert_true(isnan(pd_bf16_to(pd_bf16_of(NAN))));
    for (uint32_t bits = 0; bits < 65536; bits++)
        if (!isnan(pd_bf16_to((uint16_t)bits)))
            assert_int_equal(pd_bf16_of(pd_bf16_to((uint16_t)bits)), bits);
}

static void expect_good(const struct attention_shape *shape, uint64_t seed, double *worst)
{
    struct attention_error e = attention_case(cpu, shape, seed);
    if (e.rc != 0 || e.strayed || !(e.error <= e.bound) || !(e.lse_error < 2e-6))
        fail_msg("segments %u, first length %d, dim %u, dtype %d, causal %d: rc %d, error %g of "
                 "%g, lse %g, "
                 "strayed %d",
                 shape->segments, shape->lengths[0], shape->head_dim, shape->dtype, shape->causal,
                 e.rc, e.error, e.bound, e.lse_error, e.strayed);
    *worst = fmax(*worst, e.error / e.bound);
}

/* Lengths around every tile edge, alone and among others. */
static void sweep(void)
{
    static const int32_t edges[] = {1, 2, 15, 16, 17, 31, 63, 64, 65, 100, 127, 128, 129, 200};
    double worst[2] = {0};
    for (uint32_t i = 0; i < sizeof(edges) / sizeof(*edges); i++)
        for (int variant = 0; variant < 8; variant++) {
            int32_t lengths[] = {edges[i], 0, 3, edges[i], 1},
                    used[] = {edges[i] - 1, 0, 2, edges[i] + 9, 1};
            struct attention_shape shape = {.lengths = lengths,
                                            .segments = 5,
                                            .used = variant & 4 ? used : NULL,
                                            .lead = 3,
                                            .tail = 2,
                                            .heads = 2,
                                            .heads_kv = 1 + i % 2,
                                            .head_dim = i % 2 ? 64 : 128,
                                            .dtype =
                                                variant & 1 ? PD_ATTENTION_BF16 : PD_ATTENTION_F32,
                                            .causal = variant & 2};
            expect_good(&shape, 100 + i, &worst[variant & 1]);
        }
    printf("%s: worst error / bound: fp32 %.2f, bf16 %.2f\n", pd_cpu_level_name(pd_cpu_level()),
           worst[0], worst[1]);
}

/* With every instruction set that this machine has. */
static void test_cpu_sweep(void **state)
{
    (void)state;
    enum pd_cpu_level machine = pd_cpu_level();
    for (int level = PD_CPU_BASE; level <= (int)machine; level++) {
        pd_cpu_level_limit((enum pd_cpu_level)level);
        sweep();
    }
}

static void test_cpu_repeats(void **state)
{
    (void)state;
    enum { N = 150, DIM = 64 };
    static float q[N * DIM], out[2][N * DIM];
    static const int32_t cu[] = {0, 70, N};
    for (int i = 0; i < N * DIM; i++)
        q[i] = sinf((float)i);
    for (int run = 0; run < 2; run++) {
        struct pd_attention a = {.q = q,
                                 .k = q,
                                 .v = q,
                                 .out = out[run],
                                 .cu_seqlens = cu,
                                 .segment_count = 2,
                                 .tokens = N,
                                 .heads = 1,
                                 .heads_kv = 1,
                                 .head_dim = DIM,
                                 .scale = 0.125f};
        pd_attention_pack(&a);
        assert_int_equal(pd_attention_cpu(&a, NULL), 0);
    }
    assert_memory_equal(out[0], out[1], sizeof(out[0]));
}

static void test_cpu_refuses(void **state)
{
    (void)state;
    struct pd_error error;
    struct pd_attention a = {.heads = 4, .heads_kv = 3, .head_dim = 64};
    assert_int_equal(pd_attention_cpu(&a, &error), PD_EINVAL);
    assert_string_equal(error.reason, "ATTENTION_SHAPE");
    a.heads_kv = 4;
    a.head_dim = 512;
    assert_int_equal(pd_attention_cpu(&a, &error), PD_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_three_packed_samples),
        cmocka_unit_test(test_oracle_equals_dense_mask),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_cpu_sweep),
        cmocka_unit_test(test_cpu_repeats),
        cmocka_unit_test(test_cpu_refuses),
    };
    return cmocka_run_group_tests(tests, make_cpu, free_cpu);
}
