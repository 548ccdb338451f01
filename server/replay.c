/* packd_replay: builds the batch of a saved repro again, with the code that the daemon serves from,
 * and says what its checks find.
 *
 *   repro/ ──replay_log──> assemble ──> structural check ──> attention probe ──> exit 0: clean
 *                                                                                1: a violation
 *                                                                                2: no such repro
 *
 * No server, no log. What fails here is wrong in the plan, the data or this code; what passes here
 * and failed there was the machine's memory or its device. */
#include "base/check.h"
#include "gpu/validator.h"
#include "server/assemble.h"
#include "server/replay_log.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLEAN = 0, VIOLATION = 1, UNUSABLE = 2 };

struct replay {
    struct pd_config config;
    struct pd_log *log;
    json_t *finding;
    struct pd_job_spec spec;
    struct pd_feed_config feed; /* a copy: entries are taken in the order they were saved in */
    struct pd_assemble_order order;
};

static uint32_t number(const json_t *object, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(object, key));
}

static int load(struct replay *r, const char *directory, struct pd_error *error)
{
    char path[4096];
    json_error_t why;
    snprintf(path, sizeof path, "%.4000s/packd.yaml", directory);
    int rc = pd_config_default(&r->config);
    if (!rc)
        rc = pd_config_load(&r->config, path, error);
    if (!rc)
        rc = pd_config_check(&r->config, error);
    snprintf(path, sizeof path, "%.4000s/finding.json", directory);
    r->finding = json_load_file(path, 0, &why);
    if (!rc && !r->finding)
        rc = pd_error_set(error, PD_EIO, "REPRO", "cannot read %.300s: %s", path, why.text);
    return rc ? rc : pd_replay_log_open(directory, &r->log, error);
}

static int make_order(struct replay *r, struct pd_error *error)
{
    const json_t *world = json_object_get(r->finding, "world");
    const char *name = json_string_value(json_object_get(r->finding, "feed"));
    const struct pd_feed_config *feed = name ? pd_config_feed(&r->config, name, NULL) : NULL;
    if (!feed)
        return pd_error_set(error, PD_EINVAL, "REPRO", "finding.json names no feed of packd.yaml");
    r->feed = *feed;
    r->feed.balance = PD_BALANCE_OFF;
    r->spec = (struct pd_job_spec){.dp_size = number(world, "dp_size"),
                                   .rows = number(world, "rows"),
                                   .accum = number(world, "accum")};
    r->spec.step_packs = r->spec.dp_size * r->spec.rows * r->spec.accum;
    snprintf(r->spec.name, sizeof r->spec.name, "%s",
             json_string_value(json_object_get(r->finding, "job")));
    if (r->spec.step_packs == 0 || pd_replay_log_packs(r->log) == 0)
        return pd_error_set(error, PD_EINVAL, "REPRO", "the repro holds no pack of the step");
    uint32_t packs = pd_replay_log_packs(r->log);
    r->order = (struct pd_assemble_order){
        .feed = &r->feed,
        .spec = &r->spec,
        .key = {.step = (uint64_t)json_integer_value(json_object_get(r->finding, "step")),
                .micro = number(r->finding, "micro"),
                .dp_rank = number(r->finding, "dp_rank")},
        .steps = {.config = &r->feed, .step_packs = r->spec.step_packs},
        .place = {.pack_count = packs, .part_pack_count = packs}};
    return 0;
}

static const int32_t *array_of(const struct pd_ready_batch *batch, const char *name)
{
    const struct pd_array *array = pd_batch_find(&batch->batch, name);
    return array ? (const int32_t *)(const void *)(batch->payload + array->offset_bytes) : NULL;
}

/* Every row that is not M-RoPE's can be probed. */
static int probe(const struct pd_ready_batch *batch, struct pd_error *error)
{
    const struct pd_batch *b = &batch->batch;
    const struct pd_probe_batch wanted = {.rows = b->rows,
                                          .width = b->width,
                                          .segment_count = b->segment_count,
                                          .segment_ids = array_of(batch, "segment_ids"),
                                          .positions = array_of(batch, "positions"),
                                          .cu_seqlens = array_of(batch, "cu_seqlens"),
                                          .seq_lens = array_of(batch, "seq_lens"),
                                          .causal = true};
    const struct pd_validator_limits limits = {b->rows * b->width, b->segment_count + 1};
    struct pd_probe_result result = {0};
    struct pd_validator *validator = NULL;
    int rc = pd_validator_new("cpu", &limits, NULL, &validator, NULL, error);
    if (!rc)
        rc = pd_validator_probe(validator, &wanted, &result, error);
    pd_validator_free(validator);
    if (rc) {
        printf("attention probe: gave no verdict (%s)\n", error->text);
        return UNUSABLE;
    }
    printf("attention probe: %s, %llu positions\n", result.violation_count ? "FAILED" : "passed",
           (unsigned long long)result.violation_count);
    return result.violation_count ? VIOLATION : CLEAN;
}

static int judge(struct replay *r, struct pd_assembler *assembler)
{
    struct pd_step_facts facts;
    struct pd_ready_batch ready = {.key = r->order.key};
    struct pd_check_finding finding = {0};
    struct pd_error error = {0};
    uint64_t bytes;
    int rc = pd_assembler_step(assembler, &r->order, &facts, &error);
    if (!rc)
        rc = pd_assembler_measure(assembler, &r->order, &facts, &bytes, &error);
    if (!rc)
        rc = pd_assembler_build(assembler, &ready, &finding, &error);
    if (rc) {
        printf("structural check: FAILED %s: %s\n",
               finding.text[0] ? pd_check_finding_name(&finding) : error.reason, error.text);
        return VIOLATION;
    }
    printf("structural check: passed, %llu payload bytes\n",
           (unsigned long long)ready.batch.payload_bytes);
    int result = probe(&ready, &error);
    pd_ready_batch_clear(&ready);
    return result;
}

static int replay(struct replay *r, const char *directory, struct pd_error *error)
{
    struct pd_assembler *assembler = NULL;
    int rc = load(r, directory, error);
    if (!rc)
        rc = make_order(r, error);
    if (!rc)
        rc = pd_assembler_new(r->log, &assembler, error);
    if (!rc)
        rc = pd_assembler_begin(assembler, error);
    if (rc) {
        pd_assembler_free(assembler);
        return UNUSABLE;
    }
    printf("feed %s, job %s: step %llu micro %u dp_rank %u failed with: %s\n", r->feed.name,
           r->spec.name, (unsigned long long)r->order.key.step, r->order.key.micro,
           r->order.key.dp_rank, json_string_value(json_object_get(r->finding, "text")));
    int result = judge(r, assembler);
    pd_assembler_end(assembler);
    pd_assembler_free(assembler);
    return result;
}

int main(int argc, char **argv)
{
    struct replay r = {0};
    struct pd_error error = {0};
    bool help = argc == 2 && strcmp(argv[1], "--help") == 0;
    if (argc != 2 || argv[1][0] == '-') {
        fputs("usage: packd_replay DIR\n\nDIR is a saved repro: LOG/repros/FEED-JOB-stepN-... The "
              "batch is built and checked again.\nExit 0: it passes now; 1: it fails; 2: the repro "
              "cannot be used.\n",
              help ? stdout : stderr);
        return help ? CLEAN : UNUSABLE;
    }
    int result = replay(&r, argv[1], &error);
    if (result == UNUSABLE && error.text[0])
        fprintf(stderr, "packd_replay: %s\n", error.text);
    pd_replay_log_close(r.log);
    json_decref(r.finding);
    pd_config_fini(&r.config);
    return result;
}
