/* Every allocation of the planner fails once: the call says PD_ENOMEM, nothing leaks, and without a
 * failure the run succeeds.
 *
 * malloc and its kin are replaced in this binary; under a sanitizer, which replaces them too, the
 * test says so and passes. */
#include "packer/planner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#if defined(PD_ASAN) || defined(PD_TSAN)
#define REPLACED 0
#else
#define REPLACED 1
#endif

static long allocations, fail_at = -1, living;

#if REPLACED
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void __libc_free(void *memory);

static bool fails(void)
{
    return allocations++ == fail_at;
}

void *malloc(size_t size)
{
    void *memory = fails() ? NULL : __libc_malloc(size);
    living += memory != NULL;
    return memory;
}

void *calloc(size_t count, size_t size)
{
    void *memory = fails() ? NULL : __libc_calloc(count, size);
    living += memory != NULL;
    return memory;
}

void *realloc(void *old, size_t size)
{
    void *memory = fails() ? NULL : __libc_realloc(old, size);
    living += memory != NULL && old == NULL;
    return memory;
}

void free(void *memory)
{
    living -= memory != NULL;
    __libc_free(memory);
}
#endif

static int read_lane(void *ctx, uint32_t lane, struct pd_cursor at, const struct pd_head **heads)
{
    struct pd_head *head = ctx;
    *head = (struct pd_head){.block = at.block + 1,
                             .stream = lane,
                             .seq = at.block,
                             .length_tokens = 1 + (uint32_t)(at.block * 7 % 50),
                             .weight = 1};
    *heads = head;
    return 1;
}

static int tell(struct pd_planner *planner)
{
    int rc = 0;
    for (uint64_t i = 0; i < 40 && rc == 0; i++) {
        rc = pd_planner_control(
            planner, &(struct pd_control){.kind = PD_CONTROL_FLUSH, .at = 1000000 + i, .packs = 1});
        if (rc == 0)
            rc = pd_planner_control(
                planner,
                &(struct pd_control){.kind = PD_CONTROL_SKIP, .at = 1000000 + i, .seq = 3 * i});
    }
    return rc;
}

static int plan(struct pd_planner *planner)
{
    struct pd_head head;
    struct pd_supply supply = {&head, read_lane};
    struct pd_pack pack = {0};
    struct pd_want want;
    int rc = 0;
    for (int i = 0; i < 60 && rc == 0; i++)
        rc = pd_planner_next(planner, &supply, &pack, &want);
    pd_pack_fini(&pack);
    return rc;
}

/* Make, tell, plan, save, restore, plan on. */
static int scenario(void)
{
    struct pd_rules rules = {.seq_len = 100,
                             .window_samples = 64,
                             .window_bytes = UINT64_MAX,
                             .order = PD_ORDER_SHUFFLE,
                             .shuffle_samples = 700,
                             .shuffle_bytes = UINT64_MAX,
                             .seg_align = 1,
                             .lane_count = 2,
                             .lanes = {{.weight = 1}, {.weight = 1}}};
    struct pd_planner *planner = NULL, *restored = NULL;
    struct pd_buf buf = {0};
    struct pd_error error;
    int rc = pd_planner_new(&rules, &planner, &error);
    if (rc == 0)
        rc = tell(planner);
    if (rc == 0)
        rc = plan(planner);
    if (rc == 0)
        rc = pd_planner_save(planner, &buf);
    if (rc == 0)
        rc = pd_planner_restore(buf.data, buf.size_bytes, &restored, &error);
    if (rc == 0)
        rc = plan(restored);
    pd_planner_free(restored);
    pd_planner_free(planner);
    pd_buf_fini(&buf);
    return rc;
}

static void test_each_allocation_fails_once(void **state)
{
    (void)state;
    if (!REPLACED) {
        print_message("SKIPPED: the sanitizer owns malloc\n");
        return;
    }
    int rc = PD_ENOMEM, runs = 0;
    for (; rc != 0; runs++) {
        long before = living;
        allocations = 0;
        fail_at = runs;
        rc = scenario();
        fail_at = -1;
        assert_true(rc == 0 || rc == PD_ENOMEM);
        assert_int_equal(living, before);
    }
    print_message("%d allocations failed one by one\n", runs - 1);
    assert_in_range(runs, 20, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_allocation_fails_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
