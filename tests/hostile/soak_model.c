/* The plain planner as a program: the lines of a soak on standard input (its samples, and what was
 * asked for meanwhile), the packs that must come of them on standard output.
 *
 *   rules SEQ_LEN WINDOW STRATEGY ORDER SHUFFLE_SAMPLES SEED MERGE OVER_LENGTH SEG_ALIGN LANES
 *   lane NUMBER WEIGHT ON_END PASSES
 *   head LANE STREAM SEQ LENGTH             in the lane's order
 *   weights FROM_PACK WEIGHT...             one for each lane
 *   skip FROM_PACK STREAM FIRST LAST
 *   live FROM_PACK WINDOW STRATEGY ORDER SHUFFLE_SAMPLES OVER_LENGTH
 *   go                                      every lane ends, and with them the feed
 *
 * Numbers all; enumerations as in packer/planner.h. A pack is a line of
 * STREAM:SEQ:PART:PASS:OFFSET:LENGTH, with blanks between its segments. One thread; no code in
 * common with the planner beyond the public types. A line that it cannot read ends it. */
#include "base/check.h"
#include "tests/model/planner_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTROLS_MAX 4096
#define LINE_MAX_BYTES 4096
/* Behind every head: what a rule names has all been pushed when the rule is made. */
#define BEHIND (UINT64_MAX / 2)

static struct pd_rules rules = {.window_bytes = UINT64_MAX, .shuffle_bytes = UINT64_MAX};
static struct model_record lanes[PD_LANES_WEIGHTED_MAX];
static size_t capacities[PD_LANES_WEIGHTED_MAX];
static struct pd_control controls[CONTROLS_MAX];
static size_t control_count;
static uint64_t heads;

/* The numbers of a line, 0 for those that are not there. */
struct numbers {
    uint64_t at[PD_LANES_WEIGHTED_MAX + 2];
};

static struct numbers numbers_of(char *text)
{
    struct numbers numbers = {0};
    for (size_t i = 0; i < PD_COUNT_OF(numbers.at); i++)
        numbers.at[i] = strtoull(text, &text, 10);
    return numbers;
}

static void take_rules(const uint64_t *n)
{
    rules.seq_len = (uint32_t)n[0];
    rules.window_samples = (uint32_t)n[1];
    rules.strategy = (enum pd_strategy)n[2];
    rules.order = (enum pd_order)n[3];
    rules.shuffle_samples = (uint32_t)n[4];
    rules.seed = n[5];
    rules.merge = (enum pd_merge)n[6];
    rules.over_length = (enum pd_over_length)n[7];
    rules.seg_align = (uint32_t)n[8];
    rules.lane_count = (uint32_t)n[9];
    PD_CHECK(rules.lane_count <= PD_LANES_WEIGHTED_MAX);
}

static void take_lane(const uint64_t *n)
{
    PD_CHECK(n[0] < rules.lane_count);
    rules.lanes[n[0]] = (struct pd_lane_rules){
        .weight = (uint32_t)n[1], .on_end = (enum pd_on_end)n[2], .passes_max = (uint32_t)n[3]};
}

static void take_head(const uint64_t *n)
{
    PD_CHECK(n[0] < rules.lane_count);
    struct model_record *lane = &lanes[n[0]];
    if (lane->head_count == capacities[n[0]]) {
        capacities[n[0]] = capacities[n[0]] ? 2 * capacities[n[0]] : 1024;
        lane->heads = realloc(lane->heads, capacities[n[0]] * sizeof *lane->heads);
        PD_CHECK(lane->heads);
    }
    lane->lane = (uint32_t)n[0];
    lane->heads[lane->head_count++] = (struct pd_head){.block = ++heads,
                                                       .stream = (uint32_t)n[1],
                                                       .seq = n[2],
                                                       .length_tokens = (uint32_t)n[3],
                                                       .weight = 1};
}

static struct pd_control *new_control(enum pd_control_kind kind, uint64_t from_pack)
{
    PD_CHECK(control_count < CONTROLS_MAX);
    struct pd_control *control = &controls[control_count++];
    *control = (struct pd_control){.kind = kind, .at = BEHIND, .from_pack = from_pack};
    return control;
}

static void take_weights(const uint64_t *n)
{
    struct pd_control *control = new_control(PD_CONTROL_WEIGHTS, n[0]);
    for (uint32_t i = 0; i < rules.lane_count; i++)
        control->weights[i] = (uint32_t)n[1 + i];
}

static void take_skip(const uint64_t *n)
{
    struct pd_control *control = new_control(PD_CONTROL_SKIP_RULE, n[0]);
    control->rule = (struct pd_skip_rule){
        .by_stream = true, .stream = (uint32_t)n[1], .first_seq = n[2], .last_seq = n[3]};
}

static void take_live(const uint64_t *n)
{
    struct pd_control *control = new_control(PD_CONTROL_RULES, n[0]);
    control->rules = pd_live_rules_of(&rules);
    control->rules.window_samples = (uint32_t)n[1];
    control->rules.strategy = (enum pd_strategy)n[2];
    control->rules.order = (enum pd_order)n[3];
    control->rules.shuffle_samples = (uint32_t)n[4];
    control->rules.over_length = (enum pd_over_length)n[5];
}

static const struct {
    const char *word;
    void (*take)(const uint64_t *numbers);
} commands[] = {
    {"rules", take_rules},     {"lane", take_lane}, {"head", take_head},
    {"weights", take_weights}, {"skip", take_skip}, {"live", take_live},
};

/* False at "go". */
static bool take_line(char *line)
{
    char *blank = strchr(line, ' ');
    size_t size = blank ? (size_t)(blank - line) : strcspn(line, "\n");
    for (size_t i = 0; blank && i < PD_COUNT_OF(commands); i++)
        if (strlen(commands[i].word) == size && memcmp(commands[i].word, line, size) == 0) {
            commands[i].take(numbers_of(blank).at);
            return true;
        }
    if (size == 2 && memcmp(line, "go", 2) == 0)
        return false;
    fprintf(stderr, "soak_model: cannot read '%.80s'\n", line);
    exit(2);
}

static struct model_log log_of_lines(void)
{
    struct model_log log = {0};
    log.records = calloc(rules.lane_count + control_count + 1, sizeof *log.records);
    PD_CHECK(log.records);
    for (uint32_t i = 0; i < rules.lane_count; i++) {
        lanes[i].lane = i;
        log.records[log.count++] = lanes[i];
    }
    for (size_t i = 0; i < control_count; i++)
        log.records[log.count++] =
            (struct model_record){.is_control = true, .control = controls[i]};
    log.records[log.count++] = (struct model_record){
        .is_control = true, .control = {.kind = PD_CONTROL_END_FEED, .at = heads + 1}};
    return log;
}

static void print_pack(const struct pd_pack *pack)
{
    for (size_t i = 0; i < pack->segment_count; i++) {
        const struct pd_segment *s = &pack->segments[i];
        printf("%s%u:%" PRIu64 ":%u:%u:%u:%u", i ? " " : "", s->stream, s->seq, s->part, s->pass,
               s->offset_tokens, s->length_tokens);
    }
    putchar('\n');
}

int main(void)
{
    char line[LINE_MAX_BYTES];
    while (fgets(line, sizeof line, stdin) && take_line(line))
        continue;
    struct model_log log = log_of_lines();
    struct model *model = model_new(&rules, &log);
    struct pd_pack pack = {0};
    uint32_t lane;
    int rc;
    while ((rc = model_next(model, &pack, &lane)) == 0)
        print_pack(&pack);
    model_free(model);
    free(log.records);
    pd_pack_fini(&pack);
    return rc == PD_EEND ? 0 : 1;
}
