/* M-RoPE positions against values written out by hand, and against a construction that follows the
 * definition literally: lists of positions per stretch of text and per grid, each offset by the
 * largest position before it. */
#include "packer/mrope.h"
#include "tests/unit/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TOKENS_MAX 4096

struct rows {
    int32_t p[3][TOKENS_MAX];
};

static void fill(const struct pd_span *spans, uint32_t count, uint32_t length, uint32_t gap,
                 struct rows *rows)
{
    memset(rows, 0x5A, sizeof *rows);
    pd_mrope_fill(spans, count, length, gap,
                  (struct pd_mrope_rows){rows->p[0], rows->p[1], rows->p[2]});
}

static void expect(const struct rows *rows, uint32_t length, const int32_t *t, const int32_t *h,
                   const int32_t *w)
{
    assert_memory_equal(rows->p[0], t, length * sizeof *t);
    assert_memory_equal(rows->p[1], h, length * sizeof *h);
    assert_memory_equal(rows->p[2], w, length * sizeof *w);
}

static struct pd_span image(uint32_t offset, uint32_t t, uint32_t h, uint32_t w, uint32_t merge)
{
    return (struct pd_span){.offset_tokens = offset,
                            .length_tokens = t * h * w / merge,
                            .patches = t * h * w,
                            .grid_t = t,
                            .grid_h = h,
                            .grid_w = w,
                            .merge = merge,
                            .t_scale = 1};
}

static void test_text_only(void **state)
{
    (void)state;
    struct rows rows;
    const int32_t up[] = {0, 1, 2, 3, 4, 5};
    fill(NULL, 0, 4, 2, &rows);
    expect(&rows, 6, up, up, up);
}

static void test_one_image(void **state)
{
    (void)state;
    struct rows rows;
    struct pd_span span = image(2, 1, 4, 6, 4); /* 2 x 3 tokens */
    const int32_t t[] = {0, 1, 2, 2, 2, 2, 2, 2, 5, 6};
    const int32_t h[] = {0, 1, 2, 2, 2, 3, 3, 3, 5, 6};
    const int32_t w[] = {0, 1, 2, 3, 4, 2, 3, 4, 5, 6};
    fill(&span, 1, 10, 0, &rows);
    expect(&rows, 10, t, h, w);
}

static void test_image_first_and_last(void **state)
{
    (void)state;
    struct rows rows;
    const struct pd_span spans[] = {image(0, 1, 2, 2, 1), image(5, 1, 4, 2, 4)};
    const int32_t t[] = {0, 0, 0, 0, 2, 3, 3, 5};
    const int32_t h[] = {0, 0, 1, 1, 2, 3, 4, 5};
    const int32_t w[] = {0, 1, 0, 1, 2, 3, 3, 5};
    fill(spans, 2, 7, 1, &rows); /* the last position is a gap */
    expect(&rows, 8, t, h, w);
}

/* Two images without a token between them. */
static void test_several_images(void **state)
{
    (void)state;
    struct rows rows;
    const struct pd_span spans[] = {image(1, 1, 1, 3, 1), image(4, 1, 2, 1, 1)};
    const int32_t t[] = {0, 1, 1, 1, 4, 4, 6};
    const int32_t h[] = {0, 1, 1, 1, 4, 5, 6};
    const int32_t w[] = {0, 1, 2, 3, 4, 4, 6};
    fill(spans, 2, 7, 0, &rows);
    expect(&rows, 7, t, h, w);
}

/* Two frames a second, two positions a second, four and a half positions between grid steps. */
static void test_video(void **state)
{
    (void)state;
    struct rows rows;
    struct pd_span span = image(1, 3, 2, 2, 4);
    span.t_scale = 4.5;
    const int32_t t[] = {0, 1, 5, 10, 11};
    const int32_t h[] = {0, 1, 1, 1, 11};
    const int32_t w[] = {0, 1, 1, 1, 11};
    fill(&span, 1, 5, 0, &rows);
    expect(&rows, 5, t, h, w);
}

/* A span whose grid says nothing is text; positions never pass the largest int32. */
static void test_odd_spans(void **state)
{
    (void)state;
    struct rows rows;
    struct pd_span span = {.offset_tokens = 1, .length_tokens = 2, .t_scale = 1};
    const int32_t up[] = {0, 1, 2, 3};
    fill(&span, 1, 4, 0, &rows);
    expect(&rows, 4, up, up, up);
    span = image(0, 2, 1, 1, 1);
    span.t_scale = 1e300;
    fill(&span, 1, 4, 0, &rows);
    assert_int_equal(rows.p[0][1], INT32_MAX);
    assert_int_equal(rows.p[1][3], INT32_MAX);
}

static void test_grids(void **state)
{
    (void)state;
    struct pd_span span = image(0, 2, 4, 6, 4);
    assert_true(pd_span_has_grid(&span));
    span.length_tokens++;
    assert_false(pd_span_has_grid(&span));
    span = image(0, 1, 3, 4, 4);
    assert_false(pd_span_has_grid(&span));
    span = image(0, 1, 2, 3, 3);
    assert_false(pd_span_has_grid(&span));
    assert_int_equal(pd_merge_side(0), 1);
    assert_int_equal(pd_merge_side(1), 1);
    assert_int_equal(pd_merge_side(9), 3);
    assert_int_equal(pd_merge_side(8), 0);
}

/* ---- the literal construction ---- */

static uint64_t random_state;

static uint32_t below(uint32_t bound)
{
    return test_below(&random_state, bound);
}

struct lists {
    int32_t p[3][TOKENS_MAX];
    uint32_t count;
};

static int32_t largest(const struct lists *lists)
{
    int32_t max = -1;
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t i = 0; i < lists->count; i++)
            max = lists->p[k][i] > max ? lists->p[k][i] : max;
    return max;
}

static void add_text(struct lists *lists, uint32_t count)
{
    int32_t start = largest(lists) + 1;
    for (uint32_t i = 0; i < count; i++, lists->count++)
        for (uint32_t k = 0; k < 3; k++)
            lists->p[k][lists->count] = start + (int32_t)i;
}

static void add_grid(struct lists *lists, uint32_t t, uint32_t h, uint32_t w, double scale)
{
    int32_t start = largest(lists) + 1;
    uint32_t count = t * h * w;
    for (uint32_t i = 0; i < count; i++) {
        lists->p[0][lists->count + i] = start + (int32_t)((double)(i / (h * w)) * scale);
        lists->p[1][lists->count + i] = start + (int32_t)((i / w) % h);
        lists->p[2][lists->count + i] = start + (int32_t)(i % w);
    }
    lists->count += count;
}

static void test_random_spans(void **state)
{
    (void)state;
    static struct lists lists;
    static struct rows rows;
    uint64_t from = test_seed(1);
    for (uint64_t seed = from; seed < from + 400; seed++) {
        struct pd_span spans[8];
        random_state = seed;
        uint32_t count = below(8), gap = below(4);
        lists.count = 0;
        for (uint32_t i = 0; i < count; i++) {
            static const double scales[] = {1, 2, 0.5, 1.0 / 3, 4.25, 25};
            uint32_t side = 1 + below(3), t = 1 + below(4), h = 1 + below(5), w = 1 + below(5);
            add_text(&lists, below(3) ? below(9) : 0);
            spans[i] = image(lists.count, t, h * side, w * side, side * side);
            spans[i].t_scale = scales[below(6)];
            add_grid(&lists, t, h, w, spans[i].t_scale);
        }
        add_text(&lists, 1 + below(9));
        uint32_t length = lists.count;
        add_text(&lists, gap);
        fill(spans, count, length, gap, &rows);
        for (uint32_t k = 0; k < 3; k++)
            if (memcmp(rows.p[k], lists.p[k], lists.count * sizeof(int32_t)) != 0)
                fail_msg("seed %llu: row %u differs", (unsigned long long)seed, k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_only),      cmocka_unit_test(test_one_image),
        cmocka_unit_test(test_several_images), cmocka_unit_test(test_image_first_and_last),
        cmocka_unit_test(test_video),          cmocka_unit_test(test_odd_spans),
        cmocka_unit_test(test_grids),          cmocka_unit_test(test_random_spans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
