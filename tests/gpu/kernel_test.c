/* The kernels' own source, run by the SIMT machine, against the oracle: every tile edge, both
 * masks, both head dims, both dtypes, grouped heads, three thread orders; and 64 k keys.
 * PACKD_FULL=1 runs every combination. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gpu/probe_code.h"
#include "tests/gpu/attention_cases.h"
#include "tests/gpu/backend_simt.h"
#include "tests/gpu/guarded.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct pd_backend *simt;

static int make_simt(void **state)
{
    (void)state;
    simt = pd_backend_simt_new();
    return simt == NULL;
}

static int free_simt(void **state)
{
    (void)state;
    simt->free(simt);
    return 0;
}

static void expect_good(const struct attention_shape *shape, enum simt_order order, uint64_t seed,
                        double *worst)
{
    pd_backend_simt_set_order(simt, order, seed);
    struct attention_error e = attention_case(simt, shape, seed);
    if (e.rc != 0 || e.strayed || !(e.error <= e.bound) || !(e.lse_error < 2e-6))
        fail_msg("first length %d, dim %u, dtype %d, causal %d, order %d: rc %d, error %g of %g, "
                 "lse %g, "
                 "strayed %d, %s",
                 shape->lengths[0], shape->head_dim, shape->dtype, shape->causal, order, e.rc,
                 e.error, e.bound, e.lse_error, e.strayed, e.rc ? e.text.text : "");
    *worst = fmax(*worst, e.error / e.bound);
}

static void test_sweep(void **state)
{
    (void)state;
    static const int32_t edges[] = {1,  2,  15, 16,  17,  31,  32,  33, 63,
                                    64, 65, 96, 127, 128, 129, 192, 193};
    bool full = getenv("PACKD_FULL") != NULL;
    double worst[2] = {0};
    int cases = 0;
    for (int i = 0; i < (int)(sizeof(edges) / sizeof(*edges)); i++)
        for (int variant = 0; variant < 48; variant++) {
            if (!full && ((variant + i) % 4 != 0 || variant / 16 != (i + variant / 4) % 3))
                continue; /* a quarter of the shapes, each in one order */
            int32_t lengths[] = {edges[i], 0, 3, 1}, used[] = {edges[i] - 1, 0, 9, 1};
            struct attention_shape shape = {.lengths = lengths,
                                            .segments = 4,
                                            .used = variant & 8 ? used : NULL,
                                            .lead = i % 2 ? 66 : 0,
                                            .tail = (uint32_t)i % 2,
                                            .heads = 2,
                                            .heads_kv = 1 + (uint32_t)i % 2,
                                            .head_dim = variant & 4 ? 128 : 64,
                                            .dtype =
                                                variant & 1 ? PD_ATTENTION_BF16 : PD_ATTENTION_F32,
                                            .causal = variant & 2};
            expect_good(&shape, (enum simt_order)(variant / 16), 500 + (uint64_t)i,
                        &worst[variant & 1]);
            cases++;
        }
    printf("%d cases: worst error / bound: fp32 %.2f, bf16 %.2f\n", cases, worst[0], worst[1]);
}

/* More segments than a grid dimension would hold, most of them tiny. */
static void test_many_segments(void **state)
{
    (void)state;
    static int32_t lengths[3000];
    for (int i = 0; i < 3000; i++)
        lengths[i] = i % 701 == 700 ? 70 : i % 3 == 0;
    struct attention_shape shape = {.lengths = lengths,
                                    .segments = 3000,
                                    .heads = 1,
                                    .heads_kv = 1,
                                    .head_dim = 64,
                                    .dtype = PD_ATTENTION_BF16,
                                    .causal = true};
    double worst = 0;
    expect_good(&shape, SIMT_DESCENDING, 1, &worst);
}

enum { LONG = 1024 * 64 + 8, DIM = 64 };

/* The last tile of one segment of 65,544 keys. */
static void test_64k_keys(void **state)
{
    (void)state;
    static const int32_t cu[] = {0, LONG};
    size_t cells = (size_t)LONG * DIM;
    uint16_t *q = malloc(cells * 2), *out = malloc(cells * 2);
    double exact[8 * DIM], plain = 0, error = 0;
    for (size_t i = 0; i < cells; i++)
        q[i] = pd_bf16_of(sinf((float)i * 0.37f) * 2);
    struct pd_attention a = {.q = q,
                             .k = q,
                             .v = q,
                             .out = out,
                             .cu_seqlens = cu,
                             .segment_count = 1,
                             .tokens = LONG,
                             .heads = 1,
                             .heads_kv = 1,
                             .head_dim = DIM,
                             .dtype = PD_ATTENTION_BF16,
                             .causal = true,
                             .scale = 0.125f};
    pd_attention_pack(&a);
    pd_backend_simt_set_order(simt, SIMT_RANDOM, 64);
    pd_backend_simt_set_blocks(simt, 0, 1);
    assert_int_equal(simt->attention(simt, &a, NULL), 0);
    pd_backend_simt_set_blocks(simt, 0, 0);
    pd_attention_ref_rows(&a, 0, LONG - 8, LONG, exact);
    for (size_t i = 0; i < 8 * DIM; i++) {
        plain = fmax(plain, fabs((double)pd_bf16_to(pd_bf16_of((float)exact[i])) - exact[i]));
        error = fmax(error, fabs((double)pd_bf16_to(out[cells - 8 * DIM + i]) - exact[i]));
    }
    printf("%d keys: error %.2g, one rounding of the output %.2g\n", LONG, error, plain);
    assert_true(error <= 2 * plain + 1e-4);
    free(q);
    free(out);
}

/* Sums of 65,544 keys leave fp32 in time: exact at every row of the last tile. */
static void test_64k_sums(void **state)
{
    (void)state;
    static const int32_t cu[] = {0, LONG};
    static uint16_t zeros[DIM];
    uint16_t *values = malloc((size_t)LONG * DIM * 2);
    int32_t *sums = calloc((size_t)LONG * DIM, 4), *counts = calloc(LONG, 4);
    for (uint32_t t = 0; t < LONG; t++)
        for (uint32_t i = 0; i < DIM; i++)
            values[(size_t)t * DIM + i] = pd_bf16_of((float)pd_code_value(7, 3, (int32_t)t, i));
    struct pd_attention a = {.q = zeros,
                             .k = zeros,
                             .v = values,
                             .sums = sums,
                             .row_sum = counts,
                             .cu_seqlens = cu,
                             .segment_count = 1,
                             .tokens = LONG,
                             .heads = 1,
                             .heads_kv = 1,
                             .head_dim = DIM,
                             .v_stride = DIM,
                             .dtype = PD_ATTENTION_BF16,
                             .causal = true,
                             .scale = 1};
    pd_backend_simt_set_blocks(simt, 0, 1);
    assert_int_equal(simt->attention(simt, &a, NULL), 0);
    pd_backend_simt_set_blocks(simt, 0, 0);
    for (uint32_t t = LONG - 8; t < LONG; t++) {
        assert_int_equal(counts[t], t + 1);
        for (uint32_t i = 0; i < PD_CODE_BYTES; i++)
            assert_int_equal(sums[(size_t)t * DIM + PD_CODE_POSITION + i],
                             pd_code_position_sum(t + 1, i));
        for (uint32_t i = 0; i < PD_CODE_SIGNS; i++)
            assert_int_equal(sums[(size_t)t * DIM + i], (int32_t)((t + 1) * pd_code_sign(7, i)));
    }
    free(values);
    free(sums);
    free(counts);
}

/* q, k and v as slices of one wider array, as models have them. */
static void test_strides(void **state)
{
    (void)state;
    enum { N = 70, HEADS = 2, WIDTH = 3 * HEADS * DIM };
    static const int32_t cu[] = {0, 33, N};
    static float qkv[N * WIDTH], out[N * HEADS * DIM];
    static double exact[N * HEADS * DIM];
    for (int i = 0; i < N * WIDTH; i++)
        qkv[i] = sinf((float)i * 0.11f);
    struct pd_attention a = {.q = qkv,
                             .k = qkv + HEADS * DIM,
                             .v = qkv + 2 * HEADS * DIM,
                             .out = out,
                             .cu_seqlens = cu,
                             .segment_count = 2,
                             .tokens = N,
                             .heads = HEADS,
                             .heads_kv = HEADS,
                             .head_dim = DIM,
                             .q_stride = WIDTH,
                             .k_stride = WIDTH,
                             .v_stride = WIDTH,
                             .out_stride = HEADS * DIM,
                             .causal = true,
                             .scale = 0.125f};
    assert_int_equal(simt->attention(simt, &a, NULL), 0);
    pd_attention_ref(&a, false, exact, NULL);
    for (int i = 0; i < N * HEADS * DIM; i++)
        assert_true(fabs((double)out[i] - exact[i]) < 2e-6);
}

static void test_refusals(void **state)
{
    (void)state;
    static const int32_t cu[] = {0, 8};
    const struct pd_attention good = {.cu_seqlens = cu,
                                      .segment_count = 1,
                                      .tokens = 8,
                                      .heads = 4,
                                      .heads_kv = 2,
                                      .head_dim = 64,
                                      .scale = 1};
    struct pd_attention bad[8] = {good, good, good, good, good, good, good, good};
    bad[0].heads_kv = 3;
    bad[1].head_dim = 96;
    bad[2].q_stride = 60;
    bad[3].scale = 0;
    bad[4].heads = 65536;
    bad[5].segment_count = 0;
    bad[6].sums = (int32_t *)(uintptr_t)cu; /* sums in fp32 */
    bad[7].v = (const void *)(uintptr_t)8;
    for (int i = 0; i < 8; i++) {
        struct pd_error error;
        assert_int_equal(simt->attention(simt, &bad[i], &error), PD_EINVAL);
        assert_string_equal(error.reason, "ATTENTION_SHAPE");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sweep),    cmocka_unit_test(test_many_segments),
        cmocka_unit_test(test_64k_keys), cmocka_unit_test(test_64k_sums),
        cmocka_unit_test(test_strides),  cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, make_simt, free_simt);
}
