/* Stored plans and heads that are wrong, but consistently so: every seal and every count is right
 * again. What was taken at the door and what was planned tell: no such batch is ever built, and
 * planning again says DIVERGED. */
#include "server/assemble.h"
#include "server/log_internal.h"
#include "tests/unit/sequencer_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SAMPLES 40
#define HURT 7 /* the pack that is forged */

/* The log of a daemon that was killed: 40 samples of 28 to 33 tokens in one block, two a pack. */
struct forged {
    struct seq_case live, c;
    struct pd_feed_config feed;
    struct pd_pack pack; /* HURT, as planned */
};

static void forged_init(struct forged *f)
{
    uint32_t lengths[SAMPLES];
    struct pd_request_append answer;
    for (uint32_t i = 0; i < SAMPLES; i++)
        lengths[i] = 28 + i % 6;
    memset(f, 0, sizeof *f);
    seq_new(&f->live, "forged");
    struct seq_stream a = seq_stream_of("feed0", "a");
    assert_int_equal(seq_open(&f->live, &a), 0);
    struct seq_block_spec spec = {.count = SAMPLES, .lengths = lengths};
    assert_int_equal(seq_push(&f->live, &a, &spec, &answer), 0);
    assert_true(f->live.serve.progress[0].packs_planned > HURT + 2);
    assert_int_equal(pd_log_reader_begin(f->live.reader), 0);
    assert_int_equal(pd_log_read_pack(f->live.reader, 0, HURT, &f->pack), 0);
    pd_log_reader_end(f->live.reader);
    assert_int_equal(f->pack.segment_count, 2);
    seq_case_copy(&f->live, &f->c, "copy");
    f->feed = f->c.config.feeds[0];
    f->feed.layout = (struct pd_layout_rules){
        .seq_len = 64, .seg_align = 1, .total_align = 1, .pad_segment = 64};
    seq_case_stop(&f->live);
}

static void open_log(struct forged *f)
{
    struct pd_error error;
    struct pd_log_options options = {
        .path = f->c.dir, .max_bytes = 64u << 20, .durability = PD_DURABILITY_PROCESS};
    assert_int_equal(pd_log_open(&options, &f->c.log, &error), 0);
}

/* Stores f->pack as pack HURT, sealed, with the facts it had; with `chain` the digests of all packs
 * from there on are those of a log that always had it. */
static void forge_plan(struct forged *f, bool chain)
{
    struct pd_error error;
    struct pd_log_reader *reader;
    struct pd_plan_facts facts;
    struct pd_pack later = {0};
    struct pd_buf body = {0};
    open_log(f);
    assert_int_equal(pd_log_reader_new(f->c.log, &reader, &error), 0);
    assert_int_equal(pd_log_reader_begin(reader), 0);
    assert_int_equal(pd_log_read_plan_facts(reader, 0, HURT - 1, &facts), 0);
    uint64_t digest = facts.plan_digest;
    assert_int_equal(pd_log_begin(f->c.log, &error), 0);
    for (uint64_t k = HURT; pd_log_read_plan_facts(reader, 0, k, &facts) == 0; k++) {
        assert_int_equal(pd_log_read_pack(reader, 0, k, &later), 0);
        pd_buf_clear(&body);
        pd_pack_encode(k == HURT ? &f->pack : &later, &body);
        digest = pd_plan_digest_next(digest, body.data, body.size_bytes);
        if (chain)
            facts.plan_digest = digest;
        if (chain || k == HURT)
            assert_int_equal(pd_log_put_pack(f->c.log, 0, k, &facts, &body, &error), 0);
    }
    assert_int_equal(pd_log_commit(f->c.log, &error), 0);
    pd_log_reader_end(reader);
    pd_log_reader_free(reader);
    pd_log_close(f->c.log);
    pd_pack_fini(&later);
    pd_buf_fini(&body);
}

/* The stored head with `change` made, its own digest and the seal taken anew. */
static void rewrite(MDB_txn *txn, MDB_dbi dbi, MDB_val *key, const MDB_val *value,
                    const struct forged *f,
                    void (*change)(const struct forged *f, uint32_t *lengths))
{
    struct pd_block_head head;
    struct pd_buf buf = {0};
    size_t size = value->mv_size - PD_LOG_SEAL_BYTES;
    assert_int_equal(pd_block_head_decode(&head, value->mv_data, size), 0);
    change(f, head.lengths);
    pd_block_head_encode(&head, &buf);
    pd_buf_put_u64(&buf, pd_log_seal(PD_DB_HEADS, key, buf.data, buf.size_bytes));
    assert_false(buf.failed);
    MDB_val forged = {buf.size_bytes, buf.data};
    assert_int_equal(mdb_put(txn, dbi, key, &forged, 0), 0);
    pd_buf_fini(&buf);
    pd_block_head_fini(&head);
}

static void forge_head(struct forged *f, void (*change)(const struct forged *f, uint32_t *lengths))
{
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    MDB_cursor *cursor;
    MDB_val key, value;
    assert_int_equal(mdb_env_create(&env), 0);
    assert_int_equal(mdb_env_set_maxdbs(env, 16), 0);
    assert_int_equal(mdb_env_open(env, f->c.dir, 0, 0600), 0);
    assert_int_equal(mdb_txn_begin(env, NULL, 0, &txn), 0);
    assert_int_equal(mdb_dbi_open(txn, pd_log_db_names[PD_DB_HEADS], 0, &dbi), 0);
    assert_int_equal(mdb_cursor_open(txn, dbi, &cursor), 0);
    assert_int_equal(mdb_cursor_get(cursor, &key, &value, MDB_FIRST), 0);
    uint8_t bytes[PD_LOG_KEY_MAX];
    memcpy(bytes, key.mv_data, key.mv_size);
    MDB_val kept = {key.mv_size, bytes};
    rewrite(txn, dbi, &kept, &value, f, change);
    mdb_cursor_close(cursor);
    assert_int_equal(mdb_txn_commit(txn), 0);
    mdb_env_close(env);
}

/* ---- what then happens ---- */

/* Builds pack `number` as a batch of one row; PD_E*. */
static int assemble(struct pd_assembler *assembler, const struct forged *f, uint64_t number,
                    struct pd_error *error)
{
    static const struct pd_job_spec spec = {
        .name = "train", .step_packs = 1, .dp_size = 1, .rows = 1, .accum = 1};
    const struct pd_assemble_order order = {
        .feed = &f->feed,
        .spec = &spec,
        .key = {.generation = 1, .step = number},
        .steps = {.config = &f->feed, .step_packs = 1},
        .place = {.first_pack = number,
                  .pack_count = 1,
                  .part_first_pack = number,
                  .part_pack_count = 1},
    };
    struct pd_ready_batch ready = {0};
    struct pd_step_facts facts;
    struct pd_check_finding finding;
    uint64_t bytes;
    *error = (struct pd_error){0};
    assert_int_equal(pd_assembler_begin(assembler, error), 0);
    int rc = pd_assembler_step(assembler, &order, &facts, error);
    if (rc == 0)
        rc = pd_assembler_measure(assembler, &order, &facts, &bytes, error);
    if (rc == 0)
        rc = pd_assembler_build(assembler, &ready, &finding, error);
    pd_assembler_end(assembler);
    pd_ready_batch_clear(&ready);
    return rc;
}

/* The forged pack is refused with this reason; others, of the same block, are not. */
static void check_refused(struct forged *f, const char *reason)
{
    struct pd_assembler *assembler;
    struct pd_error error;
    open_log(f);
    assert_int_equal(pd_assembler_new(f->c.log, &assembler, &error), 0);
    assert_int_equal(assemble(assembler, f, HURT, &error), PD_ECORRUPT);
    if (strcmp(error.reason, reason) != 0)
        fail_msg("reason %s, expected %s: %s", error.reason, reason, error.text);
    if (assemble(assembler, f, 0, &error) != 0 || assemble(assembler, f, HURT + 2, &error) != 0)
        fail_msg("%s: %s", error.reason, error.text);
    pd_assembler_free(assembler);
    pd_log_close(f->c.log);
}

static void check_diverged(struct forged *f)
{
    seq_start(&f->c);
    assert_true(f->c.serve.progress[0].stopped);
    assert_string_equal(f->c.serve.progress[0].stop_reason, "DIVERGED");
    seq_case_stop(&f->c);
}

static void forged_fini(struct forged *f)
{
    pd_pack_fini(&f->pack);
    seq_case_fini(&f->live); /* the configuration is the copy's, too */
}

/* One token moves from the first sample of the pack to the second, in the plan. */
static void move_planned(struct forged *f)
{
    struct pd_segment *s = f->pack.segments;
    for (int i = 0; i < 2; i++) {
        int by = i == 0 ? -1 : 1;
        s[i].length_tokens += (uint32_t)by;
        s[i].slot_tokens += (uint32_t)by;
        s[i].sample_tokens += (uint32_t)by;
        s[i].loss_tokens += (uint32_t)by;
        s[i].sample_loss_tokens += (uint32_t)by;
    }
}

/* The same in the head. */
static void move_stored(const struct forged *f, uint32_t *lengths)
{
    lengths[f->pack.segments[0].index]--;
    lengths[f->pack.segments[1].index]++;
}

static void test_plan_moves_a_token(void **unused)
{
    (void)unused;
    struct forged f;
    forged_init(&f);
    move_planned(&f);
    forge_plan(&f, false);
    check_refused(&f, "CHECKSUM");
    forged_fini(&f);
}

/* A sample that was never cut, cut in the plan alone: nothing but the chain of plans can know. */
static void test_plan_cuts_a_sample(void **unused)
{
    (void)unused;
    struct forged f;
    forged_init(&f);
    struct pd_segment *last = &f.pack.segments[1];
    last->length_tokens--;
    last->slot_tokens--;
    last->loss_tokens--;
    f.pack.used_slots--;
    forge_plan(&f, false);
    check_refused(&f, "CHECKSUM");
    forged_fini(&f);
}

/* The first plans of a log are gone, as with a damaged page: only what was trimmed reads so. */
static void test_first_plans_lost(void **unused)
{
    (void)unused;
    struct forged f;
    struct pd_assembler *assembler;
    struct pd_error error;
    uint64_t budget = UINT64_MAX, freed = 0;
    forged_init(&f);
    open_log(&f);
    assert_int_equal(pd_log_begin(f.c.log, &error), 0);
    assert_int_equal(pd_log_trim_plans(f.c.log, 0, 2, &budget, &freed, &error), 0);
    assert_int_equal(pd_log_commit(f.c.log, &error), 0);
    assert_int_equal(pd_assembler_new(f.c.log, &assembler, &error), 0);
    for (uint64_t pack = 0; pack < 2; pack++) {
        assert_int_equal(assemble(assembler, &f, pack, &error), PD_ECORRUPT);
        assert_string_equal(error.reason, "CHECKSUM");
    }
    assert_int_equal(pd_log_begin(f.c.log, &error), 0);
    assert_int_equal(pd_log_put_lowest_pack(f.c.log, 0, 1, &error), 0);
    assert_int_equal(pd_log_commit(f.c.log, &error), 0);
    assert_int_equal(assemble(assembler, &f, 0, &error), PD_ERANGE);
    assert_string_equal(error.reason, "STEP_TRIMMED");
    assert_int_equal(assemble(assembler, &f, 1, &error), PD_ECORRUPT);
    assert_int_equal(assemble(assembler, &f, 2, &error), 0);
    pd_assembler_free(assembler);
    pd_log_close(f.c.log);
    forged_fini(&f);
}

static void test_head_moves_a_token(void **unused)
{
    (void)unused;
    struct forged f;
    forged_init(&f);
    forge_head(&f, move_stored);
    check_refused(&f, "SAMPLE_DAMAGED");
    check_diverged(&f);
    forged_fini(&f);
}

/* Head, plan and chain agree about a wrong length: the bytes no longer have the digest of the
 * door. */
static void test_everything_moves_a_token(void **unused)
{
    (void)unused;
    struct forged f;
    forged_init(&f);
    move_planned(&f);
    forge_plan(&f, true);
    check_refused(&f, "SAMPLE_DAMAGED"); /* the head does not agree */
    forge_head(&f, move_stored);
    check_refused(&f, "SAMPLE_DAMAGED");
    check_diverged(&f);
    forged_fini(&f);
}

/* A plan that is missing between others: lost, not trimmed. */
static void test_plan_is_lost(void **unused)
{
    (void)unused;
    struct forged f;
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    forged_init(&f);
    assert_int_equal(mdb_env_create(&env), 0);
    assert_int_equal(mdb_env_set_maxdbs(env, 16), 0);
    assert_int_equal(mdb_env_open(env, f.c.dir, 0, 0600), 0);
    assert_int_equal(mdb_txn_begin(env, NULL, 0, &txn), 0);
    assert_int_equal(mdb_dbi_open(txn, pd_log_db_names[PD_DB_PLANS], 0, &dbi), 0);
    struct pd_log_key at = pd_log_key_plan(0, HURT);
    MDB_val key = {at.size_bytes, at.bytes};
    assert_int_equal(mdb_del(txn, dbi, &key, NULL), 0);
    assert_int_equal(mdb_txn_commit(txn), 0);
    mdb_env_close(env);
    check_refused(&f, "CHECKSUM");
    forged_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_moves_a_token),       cmocka_unit_test(test_plan_cuts_a_sample),
        cmocka_unit_test(test_first_plans_lost),         cmocka_unit_test(test_head_moves_a_token),
        cmocka_unit_test(test_everything_moves_a_token), cmocka_unit_test(test_plan_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
