/* The attention probe over the vision tower's boundaries: clean batches pass, a boundary that moved
 * by one patch or a token in another window is found, with no structural check to help. */
#include "server/validate_vision.h"

#include "gpu/validator.h"
#include "tests/unit/media_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct pd_validator *validator;

/* Violations of one tower; -1 where there is nothing to probe. */
static int64_t probe(const struct media_case *c, enum pd_vision_tower tower)
{
    struct pd_ready_batch ready = {.batch = c->batch, .payload = c->payload};
    struct pd_vision_probe vision;
    struct pd_probe_result result;
    struct pd_error error = {0};
    int rc = pd_vision_probe_make(&ready, tower, c->layout.vision_window, &vision);
    assert_in_range(rc, 0, 1);
    if (rc == 0)
        return -1;
    if (pd_validator_probe(validator, &vision.batch, &result, &error) != 0)
        fail_msg("%s", error.text);
    pd_vision_probe_fini(&vision);
    return (int64_t)result.violation_count;
}

static int32_t *array_of(struct media_case *c, const char *name, uint64_t *count)
{
    const struct pd_array *array = pd_batch_find(&c->batch, name);
    assert_non_null(array);
    *count = array->shape[0];
    return (int32_t *)(void *)(c->payload + array->offset_bytes);
}

/* Moves one inner boundary, where there is one with room. */
static bool move_boundary(struct media_case *c, const char *name)
{
    uint64_t count;
    int32_t *cu = array_of(c, name, &count);
    for (uint64_t i = 1; i + 1 < count; i++) {
        if (cu[i + 1] - cu[i] < 2)
            continue;
        cu[i]++;
        return true;
    }
    return false;
}

static void test_towers(void **state)
{
    (void)state;
    uint32_t clean[PD_VISION_TOWERS] = {0}, moved[PD_VISION_TOWERS] = {0};
    for (uint64_t seed = 1; seed <= 500; seed++) {
        struct media_case *c = media_case_new(seed);
        struct pd_error error = {0};
        assert_int_equal(media_build(c, 0, 2, &error), 0);
        for (int tower = 0; tower < PD_VISION_TOWERS; tower++) {
            int64_t found = probe(c, (enum pd_vision_tower)tower);
            if (found < 0)
                continue;
            assert_int_equal(found, 0);
            clean[tower]++;
            if (!move_boundary(c, tower == PD_VISION_FRAMES ? "vision_cu_seqlens"
                                                            : "vision_window_cu_seqlens"))
                continue;
            assert_true(probe(c, (enum pd_vision_tower)tower) > 0);
            moved[tower]++;
        }
        media_case_free(c);
    }
    print_message("frames %u, windows %u batches; moved %u, %u\n", clean[0], clean[1], moved[0],
                  moved[1]);
    assert_true(moved[PD_VISION_FRAMES] > 20 && moved[PD_VISION_WINDOWS] > 5);
}

/* Two tokens of different windows change places. */
static void test_token_in_another_window(void **state)
{
    (void)state;
    uint32_t found = 0;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        struct media_case *c = media_case_new(seed);
        struct pd_error error = {0};
        assert_int_equal(media_build(c, 0, 2, &error), 0);
        uint64_t count = 0, windows = 0;
        if (c->layout.vision_window > 0 && probe(c, PD_VISION_WINDOWS) == 0) {
            int32_t *index = array_of(c, "vision_window_index", &count);
            const int32_t *cu = array_of(c, "vision_window_cu_seqlens", &windows);
            uint64_t merge = c->batch.totals.patches / count;
            if (windows > 2 && (uint64_t)cu[1] > merge) { /* else only names change */
                int32_t first = index[0];
                index[0] = index[count - 1];
                index[count - 1] = first;
                assert_true(probe(c, PD_VISION_WINDOWS) > 0);
                found++;
            }
        }
        media_case_free(c);
    }
    assert_true(found > 5);
}

int main(void)
{
    const struct pd_validator_limits limits = {.tokens_max = 1 << 20, .segments_max = 1 << 16};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_towers),
        cmocka_unit_test(test_token_in_another_window),
    };
    struct pd_error error = {0};
    if (pd_validator_new("cpu", &limits, NULL, &validator, NULL, &error) != 0)
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    pd_validator_free(validator);
    return rc;
}
