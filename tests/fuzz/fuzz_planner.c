/* Fuzz target: the planner's inputs. The first byte chooses one of two doors.
 *
 *   even   bytes make rules, heads, records and a rhythm of calls (with restarts); the packs must
 *          keep every property, whatever the rhythm, and the plain model must agree where the
 *          case is small
 *   odd    bytes are a snapshot to restore: refused, or a planner that can go on and be saved
 *          again */
#include "base/check.h"
#include "tests/model/planner_case.h"

#include <stdint.h>
#include <stdlib.h>

#define MODEL_HEADS_MAX 200
#define PACKS_MAX 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void plan_case(const uint8_t *data, size_t size)
{
    struct chance chance = chance_of_bytes(data, size), other = chance_of_seed(size);
    struct planner_case c;
    case_init(&c, &chance);
    struct packs live = case_run(&c, &other, RUN_LIVE, false);
    struct packs again = case_run(&c, &other, RUN_AT_ONCE, true);
    const char *why = packs_unsound(&c, &live);
    if (!why)
        why = packs_differ(&live, &again, true);
    if (!why && c.head_count <= MODEL_HEADS_MAX) {
        struct model_counts counts;
        struct packs model = case_model(&c, &counts);
        why = packs_differ(&live, &model, true);
        packs_fini(&model);
    }
    if (why)
        pd_panic(__FILE__, __LINE__, "%s", why);
    packs_fini(&live);
    packs_fini(&again);
    case_fini(&c);
}

/* A lane whose every head is 3 tokens and on whose end nobody has decided. */
static int read_threes(void *ctx, uint32_t lane, struct pd_cursor at, const struct pd_head **heads)
{
    struct pd_head *head = ctx;
    (void)lane;
    if (at.block > UINT64_MAX - 2 || at.index > 1000)
        return 0;
    *head = (struct pd_head){.block = at.block, .index = at.index, .length_tokens = 3, .weight = 1};
    *heads = head;
    return 1;
}

static void restore_bytes(const uint8_t *data, size_t size)
{
    struct pd_planner *planner;
    struct pd_error error;
    struct pd_head head;
    struct pd_supply supply = {&head, read_threes};
    struct pd_pack pack = {0};
    struct pd_want want;
    struct pd_buf buf = {0};
    if (pd_planner_restore(data, size, &planner, &error) != 0)
        return;
    for (int i = 0; i < PACKS_MAX; i++)
        if (pd_planner_next(planner, &supply, &pack, &want) != 0)
            break;
    PD_CHECK(pd_planner_save(planner, &buf) == 0);
    pd_buf_fini(&buf);
    pd_pack_fini(&pack);
    pd_planner_free(planner);
}

/* A real snapshot with a few bytes changed: it gets past the first checks far more often than
 * random bytes do. */
static void restore_damaged(const uint8_t *data, size_t size)
{
    struct chance chance = chance_of_bytes(data, size);
    struct pd_rules rules = {.seq_len = 16,
                             .window_samples = 8,
                             .window_bytes = 4096,
                             .order = (enum pd_order)chance_below(&chance, 2),
                             .shuffle_samples = 9,
                             .shuffle_bytes = 4096,
                             .over_length = PD_OVER_SPLIT,
                             .seg_align = 1,
                             .merge = (enum pd_merge)chance_below(&chance, 2),
                             .lane_count = 2,
                             .lanes = {{.weight = 1}, {.weight = 2}}};
    struct pd_planner *planner;
    struct pd_head head;
    struct pd_supply supply = {&head, read_threes};
    struct pd_pack pack = {0};
    struct pd_want want;
    struct pd_buf buf = {0};
    PD_CHECK(pd_planner_new(&rules, &planner, NULL) == 0);
    for (uint32_t i = chance_below(&chance, 8); i > 0; i--)
        PD_CHECK(pd_planner_next(planner, &supply, &pack, &want) == 0);
    PD_CHECK(pd_planner_save(planner, &buf) == 0);
    for (uint32_t i = chance_below(&chance, 8); i > 0; i--)
        buf.data[chance_below(&chance, (uint32_t)buf.size_bytes)] =
            (uint8_t)chance_below(&chance, 256);
    restore_bytes(buf.data, buf.size_bytes);
    pd_buf_fini(&buf);
    pd_pack_fini(&pack);
    pd_planner_free(planner);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] % 2 == 0)
        plan_case(data + 1, size - 1);
    else if (data[0] % 4 == 1)
        restore_damaged(data + 1, size - 1);
    else
        restore_bytes(data + 1, size - 1);
    return 0;
}
