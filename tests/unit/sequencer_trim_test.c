/* Trimming: what jobs hold stays whole, the rest goes and its space is used again; through
 * restarts, kills, lanes of unequal pace and jobs that come, go, or never come. */
#include "server/metrics.h"
#include "tests/unit/sequencer_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define SEED 20240611ull
#define LOG_BYTES (16u << 20)
#define SEQ_LEN 1024u
#define STEP_PACKS 8u
#define BLOCK_SAMPLES 100u

static void trim_config(struct seq_case *c)
{
    seq_case_config(c, 1);
    c->config.log_max_bytes = LOG_BYTES;
    c->config.memory_ingest_bytes = 1u << 20;
    c->config.feeds[0].rules.seq_len = c->config.feeds[0].layout.seq_len = SEQ_LEN;
}

/* A trainer, and what it has reached. */
struct trainer {
    struct pd_request_open_job open;
    uint64_t next; /* step */
};

static void trainer_open(struct seq_case *c, struct trainer *trainer, const char *name,
                         enum pd_job_kind kind)
{
    trainer->open = seq_job_request("feed0", name, 4, 2, 1, "w");
    trainer->open.spec.kind = kind;
    assert_int_equal(seq_call(c, &trainer->open.base), 0);
    trainer->next = trainer->open.first_step;
}

/* A new log, as configured, with stream "a". */
static struct seq_stream begin_configured(struct seq_case *c, const char *name)
{
    struct seq_stream a = seq_stream_of("feed0", "a");
    seq_case_dir(c, name);
    seq_start(c);
    assert_int_equal(seq_open(c, &a), 0);
    return a;
}

/* A new log with stream "a" and job "train". */
static struct seq_stream begin(struct seq_case *c, const char *name, struct trainer *trainer)
{
    trim_config(c);
    struct seq_stream a = begin_configured(c, name);
    trainer_open(c, trainer, "train", PD_JOB_TRAINER);
    return a;
}

static uint64_t packs_planned(struct seq_case *c)
{
    struct pd_request_status status = seq_status(c);
    uint64_t packs = status.feeds[0].packs_planned;
    pd_status_fini(&status);
    return packs;
}

/* Takes every whole step there is, and commits the last where `commit`. */
static void train(struct seq_case *c, struct trainer *trainer, bool commit)
{
    uint64_t steps =
        (packs_planned(c) - c->serve.jobs[trainer->open.job_id].first_pack) / STEP_PACKS;
    if (steps <= trainer->next)
        return;
    trainer->next = steps;
    assert_int_equal(seq_deliver(c, 0, trainer->open.job_id, steps - 1), 0);
    if (commit)
        assert_int_equal(seq_commit(c, "feed0", trainer->open.spec.name, trainer->open.generation,
                                    steps - 1, steps - 1, NULL),
                         0);
}

static struct pd_feed_status feed_status(struct seq_case *c)
{
    struct pd_request_status status = seq_status(c);
    struct pd_feed_status feed = status.feeds[0];
    pd_status_fini(&status);
    feed.jobs = NULL;
    feed.streams = NULL;
    return feed;
}

/* Trimming is done in groups of its own, which come by themselves; each call waits for one. */
static void settle(struct seq_case *c)
{
    for (int i = 0; i < 20; i++)
        (void)packs_planned(c);
}

/* Packs below the lowest are gone, and every block of the others can be read. */
static void check_held(struct seq_case *c)
{
    struct pd_feed_status feed = feed_status(c);
    struct pd_pack pack = {0};
    assert_int_equal(pd_log_reader_begin(c->reader), 0);
    for (uint64_t k = 0; k < feed.lowest_pack; k += 97)
        assert_int_equal(pd_log_read_pack(c->reader, 0, k, &pack), PD_ENOTFOUND);
    for (uint64_t k = feed.lowest_pack; k < feed.packs_planned; k++) {
        assert_int_equal(pd_log_read_pack(c->reader, 0, k, &pack), 0);
        for (uint32_t i = 0; i < pack.segment_count; i++) {
            const struct pd_block_head *head;
            int32_t token;
            uint32_t index = pack.segments[i].index;
            assert_int_equal(pd_log_read_head(c->reader, 0, pack.segments[i].block, &head), 0);
            assert_int_equal(pd_log_read_body(c->reader, pack.segments[i].block,
                                              head->token_offsets[index] * 4, 4, &token),
                             0);
            assert_true(head->first_seq + index == pack.segments[i].seq);
        }
    }
    pd_log_reader_end(c->reader);
    pd_pack_fini(&pack);
}

static void push_block(struct seq_case *c, struct seq_stream *stream, uint64_t *seq,
                       uint64_t *random)
{
    struct pd_request_append answer;
    uint32_t lengths[BLOCK_SAMPLES];
    const char *why;
    for (uint32_t i = 0; i < BLOCK_SAMPLES; i++)
        lengths[i] = 1 + test_below(random, 700);
    struct seq_block_spec spec = {.first_seq = *seq, .count = BLOCK_SAMPLES, .lengths = lengths};
    assert_int_equal(pd_sequencer_accepts(c->seq, 0, 0, &why), PD_SEQ_ACCEPTS);
    assert_int_equal(seq_push(c, stream, &spec, &answer), 0);
    *seq += BLOCK_SAMPLES;
}

/* Ten times the log's size goes through it; a crash now and then changes nothing. */
static void test_steady(void **unused)
{
    (void)unused;
    struct seq_case c, crash;
    struct trainer trainer;
    uint64_t random = SEED, seq = 0, most = 0;
    print_message("seed %llu\n", SEED);
    struct seq_stream a = begin(&c, "steady", &trainer);
    for (int i = 0; i < 1200; i++) {
        push_block(&c, &a, &seq, &random);
        train(&c, &trainer, i % 4 == 0);
        if (pd_log_used_bytes(c.log) > most)
            most = pd_log_used_bytes(c.log);
        if (i % 300 != 299)
            continue;
        uint64_t digest = feed_status(&c).plan_digest;
        seq_case_copy(&c, &crash, "crash");
        check_held(&c);
        if (i % 600 == 299) {
            seq_case_stop(&c);
            seq_start(&c);
            assert_int_equal(seq_open(&c, &a), 0);
        }
        assert_true(feed_status(&c).plan_digest == digest);
        seq_start(&crash);
        settle(&crash);
        assert_true(feed_status(&crash).plan_digest == digest);
        assert_false(crash.serve.progress[0].stopped);
        check_held(&crash);
        seq_case_stop(&crash);
    }
    assert_true(seq * 350 * 4 > 9ull * LOG_BYTES);
    assert_true(most < LOG_BYTES / 2);
    assert_true(feed_status(&c).lowest_pack > 30000);
    assert_true(c.serve.jobs[0].lowest_step ==
                (feed_status(&c).lowest_pack + STEP_PACKS - 1) / STEP_PACKS);
    seq_finish(&c);
}

/* Pushes until the door closes or a commit is due; whether it is. */
static bool push_until(struct seq_case *c, struct seq_stream *a, struct trainer *trainer,
                       uint64_t commit_step, uint64_t *seq, uint64_t *random)
{
    const char *why;
    while (trainer->next <= commit_step &&
           pd_sequencer_accepts(c->seq, 0, 0, &why) == PD_SEQ_ACCEPTS) {
        push_block(c, a, seq, random);
        train(c, trainer, false);
    }
    return trainer->next > commit_step;
}

static void commit_at_end(struct seq_case *c, struct trainer *trainer)
{
    uint64_t last = trainer->next - 1;
    assert_int_equal(seq_commit(c, "feed0", trainer->open.spec.name, 1, last, last, NULL), 0);
    settle(c);
}

/* Commits stop: producers stop, with the job named; they come: everything goes on. */
static void test_stall(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct trainer trainer;
    struct pd_stall stall;
    const char *why;
    uint64_t random = SEED, seq = 0;
    struct seq_stream a = begin(&c, "stall", &trainer);
    assert_false(pd_sequencer_stall(c.seq, 0, &stall));
    for (int round = 0; round < 4; round++) {
        while (pd_sequencer_accepts(c.seq, 0, 0, &why) == PD_SEQ_ACCEPTS) {
            push_block(&c, &a, &seq, &random);
            train(&c, &trainer, false);
        }
        assert_string_equal(why, "the log is full");
        assert_true(pd_sequencer_stall(c.seq, 0, &stall));
        assert_string_equal(stall.job, "train");
        assert_string_equal(stall.feed, "feed0");
        assert_true(stall.first_step < trainer.next);
        assert_true(stall.bytes_held > LOG_BYTES / 2 && stall.bytes_held <= stall.bytes_max);
        assert_true(stall.bytes_per_step > STEP_PACKS * SEQ_LEN * 4);
        commit_at_end(&c, &trainer);
        assert_int_equal(pd_sequencer_accepts(c.seq, 0, 0, &why), PD_SEQ_ACCEPTS);
        assert_false(pd_sequencer_stall(c.seq, 0, &stall));
    }
    check_held(&c);
    seq_finish(&c);
}

static void push_some(struct seq_case *c, struct seq_stream *a, uint64_t *seq, uint64_t *random)
{
    for (int i = 0; i < 30; i++)
        push_block(c, a, seq, random);
    settle(c);
}

static void commit_at(struct seq_case *c, const char *job, uint64_t step)
{
    assert_int_equal(seq_commit(c, "feed0", job, 1, step, step, NULL), 0);
    settle(c);
}

/* Retained commits that fill the log give way once the job has nothing left to commit. */
static void test_retained_too_much(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct trainer trainer;
    const char *why;
    uint64_t random = SEED, seq = 0;
    struct seq_stream a = begin(&c, "retained", &trainer);
    for (int round = 0; round < 5; round++) {
        assert_false(push_until(&c, &a, &trainer, UINT64_MAX, &seq, &random));
        commit_at_end(&c, &trainer);
        assert_int_equal(pd_sequencer_accepts(c.seq, 0, 0, &why), PD_SEQ_ACCEPTS);
        check_held(&c);
    }
    seq_finish(&c);
}

/* A trainer that commits by its own clock, whatever it is told, and three commits of which the log
 * has room for two: it never waits, the oldest gives way, the others can be gone back to. */
static void test_retained_give_way(void **unused)
{
    (void)unused;
    enum { EVERY = 150 };
    struct seq_case c;
    struct trainer trainer;
    uint64_t random = SEED, seq = 0, commits[3] = {0}, next_commit = EVERY;
    uint64_t before = pd_metric_feed_value(PD_F_COMMITS_GIVEN_UP, 0);
    struct seq_stream a = begin(&c, "giveway", &trainer);
    while (trainer.next < 12 * EVERY) {
        if (push_until(&c, &a, &trainer, next_commit, &seq, &random)) {
            memmove(commits, commits + 1, 2 * sizeof *commits);
            commits[2] = next_commit;
            next_commit += EVERY;
            commit_at(&c, "train", commits[2]);
            continue;
        }
        const char *why;
        settle(&c);
        assert_int_equal(pd_sequencer_accepts(c.seq, 0, 0, &why), PD_SEQ_ACCEPTS);
        assert_true(c.serve.jobs[0].lowest_step > commits[0]);
        assert_true(c.serve.jobs[0].lowest_step <= commits[1] + 1);
        check_held(&c);
    }
    /* Whether the door was seen closed in between is a matter of threads. */
    assert_true(pd_metric_feed_value(PD_F_COMMITS_GIVEN_UP, 0) - before > 4);
    assert_true(seq * 350 * 4 > 3ull * LOG_BYTES);
    seq_finish(&c);
}

/* packd is started again with the log full of retained commits and of steps that its trainer has
 * received: it has seen none of that, and believes the trainer that asks for the step behind. */
static void test_retained_give_way_after_restart(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct trainer trainer;
    const char *why;
    uint64_t random = SEED, seq = 0;
    struct seq_stream a = begin(&c, "restarted", &trainer);
    for (uint64_t commit = 100; commit <= 200; commit += 100) {
        assert_true(push_until(&c, &a, &trainer, commit, &seq, &random));
        commit_at(&c, "train", commit);
    }
    while (pd_sequencer_accepts(c.seq, 0, 0, &why) == PD_SEQ_ACCEPTS)
        push_block(&c, &a, &seq, &random);
    uint64_t steps = packs_planned(&c) / STEP_PACKS;
    assert_true(steps > trainer.next);
    seq_case_stop(&c);
    seq_start(&c);
    assert_int_equal(seq_open(&c, &a), 0);
    settle(&c);
    assert_int_equal(pd_sequencer_accepts(c.seq, 0, 0, &why), PD_SEQ_LOG_FULL);
    assert_int_equal(seq_say_delivered(&c, 0, 0, steps + 1), 0); /* nobody can have that one */
    assert_int_equal(seq_say_delivered(&c, 0, 0, steps - 2), 0);
    settle(&c);
    assert_int_equal(pd_sequencer_accepts(c.seq, 0, 0, &why), PD_SEQ_LOG_FULL);
    assert_int_equal(seq_say_delivered(&c, 0, 0, steps - 1), 0);
    settle(&c);
    assert_int_equal(pd_sequencer_accepts(c.seq, 0, 0, &why), PD_SEQ_ACCEPTS);
    assert_true(c.serve.jobs[0].lowest_step > 101 && c.serve.jobs[0].lowest_step <= 201);
    seq_finish(&c);
}

/* A world that has gone back to a retained commit holds it until it has received what follows. */
static void test_gone_back(void **unused)
{
    (void)unused;
    enum { FIRST = 100, SECOND = 250 };
    struct seq_case c;
    struct trainer trainer;
    const char *why;
    uint64_t random = SEED, seq = 0;
    struct seq_stream a = begin(&c, "goneback", &trainer);
    assert_true(push_until(&c, &a, &trainer, FIRST, &seq, &random));
    commit_at(&c, "train", FIRST);
    assert_true(push_until(&c, &a, &trainer, SECOND, &seq, &random));
    commit_at(&c, "train", SECOND);
    trainer.open = seq_job_request("feed0", "train", 4, 2, 1, "w2");
    trainer.open.has_resume_step = true;
    trainer.open.resume_step = FIRST;
    assert_int_equal(seq_call(&c, &trainer.open.base), 0);
    while (pd_sequencer_accepts(c.seq, 0, 0, &why) == PD_SEQ_ACCEPTS)
        push_block(&c, &a, &seq, &random);
    settle(&c);
    assert_true(c.serve.jobs[0].lowest_step <= FIRST + 1);
    assert_int_equal(pd_sequencer_accepts(c.seq, 0, 0, &why), PD_SEQ_LOG_FULL);
    train(&c, &trainer, false);
    assert_false(push_until(&c, &a, &trainer, UINT64_MAX, &seq, &random));
    settle(&c);
    assert_true(c.serve.jobs[0].lowest_step > FIRST + 1);
    assert_true(c.serve.jobs[0].lowest_step <= SECOND + 1);
    check_held(&c);
    seq_finish(&c);
}

/* After a restart nobody knows what a job has received: its commit is asked for all the same. */
static void test_stall_restart(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct trainer trainer;
    struct pd_stall stall;
    const char *why;
    uint64_t random = SEED, seq = 0;
    struct seq_stream a = begin(&c, "stallrestart", &trainer);
    assert_false(push_until(&c, &a, &trainer, UINT64_MAX, &seq, &random));
    seq_case_stop(&c);
    seq_start(&c);
    struct pd_request_open_job open = seq_job_request("feed0", "train", 4, 2, 1, "w");
    assert_int_equal(seq_call(&c, &open.base), 0);
    settle(&c);
    assert_int_equal(pd_sequencer_accepts(c.seq, 0, 0, &why), PD_SEQ_LOG_FULL);
    assert_true(pd_sequencer_stall(c.seq, 0, &stall));
    assert_string_equal(stall.job, "train");
    commit_at_end(&c, &trainer);
    assert_int_equal(pd_sequencer_accepts(c.seq, 0, 0, &why), PD_SEQ_ACCEPTS);
    seq_finish(&c);
}

/* Who holds what. */
static void test_holders(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct trainer early, late, reader;
    uint64_t random = SEED, seq = 0;
    trim_config(&c);
    struct pd_feed_config *feed = &c.config.feeds[0];
    struct pd_job_config *jobs = calloc(2, sizeof *jobs);
    assert_non_null(jobs);
    jobs[0] = (struct pd_job_config){.name = "early", .retain_commits = 2};
    jobs[1] = (struct pd_job_config){.name = "late", .retain_commits = 1};
    feed->jobs = jobs;
    feed->job_count = 2;
    struct seq_stream a = begin_configured(&c, "holders");
    push_some(&c, &a, &seq, &random);
    trainer_open(&c, &early, "early", PD_JOB_TRAINER);
    trainer_open(&c, &reader, "look", PD_JOB_READER);
    assert_true(feed_status(&c).packs_planned > 900);
    for (uint64_t step = 10; step <= 100; step += 10)
        commit_at(&c, "early", step);
    assert_int_equal(feed_status(&c).lowest_pack, 0); /* late has not come */
    trainer_open(&c, &late, "late", PD_JOB_TRAINER);
    assert_int_equal(c.serve.jobs[late.open.job_id].first_pack, 0);
    assert_int_equal(late.open.first_step, 0);
    commit_at(&c, "late", 40);
    uint64_t lowest = feed_status(&c).lowest_pack;
    assert_true(lowest > 41 * STEP_PACKS - 200 && lowest <= 41 * STEP_PACKS);
    commit_at(&c, "late", 100); /* now early holds, by its last but one commit */
    lowest = feed_status(&c).lowest_pack;
    assert_true(lowest > 91 * STEP_PACKS - 200 && lowest <= 91 * STEP_PACKS);
    assert_true(c.serve.jobs[reader.open.job_id].lowest_step == (lowest + 7) / 8);
    /* a reader begins at what is there; a world that would resume below is told */
    struct pd_request_open_job open = seq_job_request("feed0", "look", 4, 2, 1, "w2");
    open.spec.kind = PD_JOB_READER;
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(open.first_step, (lowest + 7) / 8);
    open = seq_job_request("feed0", "late", 2, 4, 1, "w2");
    open.has_resume_step = true;
    open.resume_step = (lowest + 7) / 8 - 2;
    assert_int_equal(seq_call(&c, &open.base), PD_ERANGE);
    assert_string_equal(open.base.error.reason, "STEP_TRIMMED");
    assert_int_equal(open.lowest_step, (lowest + 7) / 8);
    open.resume_step++;
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(open.first_step, (lowest + 7) / 8);
    /* a new job begins at the lowest pack held */
    open = seq_job_request("feed0", "new", 4, 2, 1, "w");
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(open.first_step, 0);
    assert_true(c.serve.jobs[open.job_id].first_pack == lowest);
    check_held(&c);
    seq_finish(&c);
}

/* With nobody there, or readers only, everything stays; a deleted job lets go. */
static void test_nobody(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct trainer trainer, other, reader;
    uint64_t random = SEED, seq = 0;
    trim_config(&c);
    struct seq_stream a = begin_configured(&c, "nobody");
    push_some(&c, &a, &seq, &random);
    trainer_open(&c, &reader, "look", PD_JOB_READER);
    assert_int_equal(seq_deliver(&c, 0, reader.open.job_id, 100), 0);
    settle(&c);
    assert_int_equal(feed_status(&c).lowest_pack, 0);
    trainer_open(&c, &trainer, "train", PD_JOB_TRAINER);
    trainer_open(&c, &other, "other", PD_JOB_TRAINER);
    for (uint64_t step = 90; step <= 100; step += 5)
        commit_at(&c, "train", step);
    assert_int_equal(feed_status(&c).lowest_pack, 0);
    struct pd_request_delete_job deletion = {
        .base.kind = PD_REQUEST_DELETE_JOB, .feed = "feed0", .job = "other"};
    assert_int_equal(seq_call(&c, &deletion.base), 0);
    settle(&c);
    assert_true(feed_status(&c).lowest_pack > 500);
    check_held(&c);
    seq_finish(&c);
}

/* Old samples in the shuffle buffer and parts of split ones hold their blocks. */
static void test_shuffled(void **unused)
{
    (void)unused;
    struct seq_case c, crash;
    struct trainer trainer;
    uint64_t random = SEED, seq = 0;
    trim_config(&c);
    struct pd_rules *rules = &c.config.feeds[0].rules;
    rules->order = PD_ORDER_SHUFFLE;
    rules->shuffle_samples = 200; /* its oldest sample is that times ln of it behind */
    rules->over_length = PD_OVER_SPLIT;
    rules->seq_len = c.config.feeds[0].layout.seq_len = SEQ_LEN / 2;
    rules->seed = 9;
    struct seq_stream a = begin_configured(&c, "shuffled");
    trainer_open(&c, &trainer, "train", PD_JOB_TRAINER);
    for (int i = 0; i < 400; i++) {
        push_block(&c, &a, &seq, &random);
        train(&c, &trainer, i % 4 == 0);
        if (i % 100 == 99)
            check_held(&c);
    }
    assert_true(feed_status(&c).lowest_pack > 15000);
    uint64_t digest = feed_status(&c).plan_digest;
    seq_case_copy(&c, &crash, "shuffledcrash");
    seq_start(&crash);
    assert_true(feed_status(&crash).plan_digest == digest);
    assert_false(crash.serve.progress[0].stopped);
    check_held(&crash);
    seq_case_stop(&crash);
    seq_finish(&c);
}

/* A lane that is drawn from rarely keeps its old blocks; those of the others go. */
static void test_lanes(void **unused)
{
    (void)unused;
    struct seq_case c, crash;
    struct trainer trainer;
    uint64_t random = SEED, seqs[2] = {0};
    trim_config(&c);
    struct pd_feed_config *feed = &c.config.feeds[0];
    feed->source_count = feed->rules.lane_count = 2;
    feed->sources = calloc(2, sizeof *feed->sources);
    assert_non_null(feed->sources);
    for (int i = 0; i < 2; i++) {
        snprintf(feed->sources[i].name, PD_NAME_MAX + 1, "s%d", i);
        feed->sources[i].lane = (struct pd_lane_rules){.weight = i ? 1 : 200, .passes_max = 1};
        feed->rules.lanes[i] = feed->sources[i].lane;
    }
    seq_case_dir(&c, "lanes");
    seq_start(&c);
    struct seq_stream streams[2];
    for (int i = 0; i < 2; i++) {
        streams[i] = seq_stream_of("feed0", i ? "rare" : "often");
        snprintf(streams[i].source, PD_NAME_MAX + 1, "s%d", i);
        assert_int_equal(seq_open(&c, &streams[i]), 0);
    }
    trainer_open(&c, &trainer, "train", PD_JOB_TRAINER);
    for (int i = 0; i < 10; i++) /* enough of the rare one for all that follows */
        push_block(&c, &streams[1], &seqs[1], &random);
    for (int i = 0; i < 500; i++) {
        push_block(&c, &streams[0], &seqs[0], &random);
        train(&c, &trainer, i % 4 == 0);
    }
    settle(&c);
    assert_true(feed_status(&c).lowest_pack > 10000);
    assert_true(pd_log_used_bytes(c.log) < LOG_BYTES / 2);
    check_held(&c);
    uint64_t digest = feed_status(&c).plan_digest;
    seq_case_copy(&c, &crash, "lanescrash");
    seq_start(&crash);
    assert_true(feed_status(&crash).plan_digest == digest);
    check_held(&crash);
    seq_case_stop(&crash);
    seq_finish(&c);
}

static struct pd_request_open_job reopen(struct seq_case *c, uint32_t dp_size, const char *token,
                                         bool regroup, int expected)
{
    struct pd_request_open_job open = seq_job_request("feed0", "train", dp_size, 1, 1, token);
    open.regroup = regroup;
    assert_int_equal(seq_call(c, &open.base), expected);
    return open;
}

/* Another P, at the last commit and asked for: steps keep their numbers, packs go on where they
 * were, and nothing before that can be gone back to; through a restart. */
static void test_regroup(void **unused)
{
    (void)unused;
    struct seq_case c;
    uint64_t random = SEED, seq = 0;
    trim_config(&c);
    struct seq_stream a = begin_configured(&c, "regroup");
    push_some(&c, &a, &seq, &random);
    (void)reopen(&c, 8, "w1", false, 0);
    commit_at(&c, "train", 9);
    struct pd_request_open_job open = reopen(&c, 5, "w2", false, PD_EMISMATCH);
    assert_string_equal(open.base.error.reason, "REGROUP");
    open = seq_job_request("feed0", "train", 5, 1, 1, "w2");
    open.regroup = true;
    open.has_resume_step = true;
    open.resume_step = 7; /* not the last commit */
    assert_int_equal(seq_call(&c, &open.base), PD_EMISMATCH);
    assert_string_equal(open.base.error.reason, "REGROUP");
    open.resume_step = 9;
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(open.first_step, 10);
    for (int restart = 0; restart < 2; restart++) {
        const struct pd_job_info *info = &c.serve.jobs[0];
        assert_int_equal(info->first_step, 10);
        assert_int_equal(info->first_pack, 80);
        assert_int_equal(info->lowest_step, 10);
        assert_int_equal(info->spec.step_packs, 5);
        seq_case_stop(&c);
        seq_start(&c);
    }
    open = seq_job_request("feed0", "train", 5, 1, 1, "w3");
    open.has_resume_step = true;
    open.resume_step = 5;
    assert_int_equal(seq_call(&c, &open.base), PD_ERANGE);
    assert_string_equal(open.base.error.reason, "STEP_TRIMMED");
    assert_non_null(strstr(open.base.error.text, "regrouped"));
    assert_int_equal(open.lowest_step, 10);
    /* commits go on in the new numbers, and another regroup from there */
    assert_int_equal(seq_commit(&c, "feed0", "train", 2, 13, 13, NULL), 0);
    open = reopen(&c, 16, "w4", true, 0);
    assert_int_equal(open.first_step, 14);
    assert_int_equal(c.serve.jobs[0].first_pack, 80 + 4 * 5);
    assert_int_equal(seq_commit(&c, "feed0", "train", 3, UINT32_MAX, UINT32_MAX, NULL), PD_EINVAL);
    for (uint64_t step = 14; step < 40; step++)
        assert_int_equal(seq_commit(&c, "feed0", "train", 3, step, step, NULL), 0);
    settle(&c);
    uint64_t lowest = feed_status(&c).lowest_pack;
    assert_true(lowest > 100 + 16 * 15);
    assert_int_equal(c.serve.jobs[0].lowest_step, 14 + (lowest - 100 + 15) / 16);
    check_held(&c);
    seq_finish(&c);
}

/* With balance a regroup waits for the end of a part. */
static void test_regroup_balanced(void **unused)
{
    (void)unused;
    struct seq_case c;
    uint64_t random = SEED, seq = 0;
    trim_config(&c);
    c.config.feeds[0].balance = PD_BALANCE_COST;
    c.config.feeds[0].balance_bytes = 1u << 30;
    struct seq_stream a = begin_configured(&c, "regroup");
    push_some(&c, &a, &seq, &random);
    (void)reopen(&c, 8, "w1", false, 0);
    commit_at(&c, "train", 5); /* inside steps 4 .. 7 */
    struct pd_request_open_job open = reopen(&c, 5, "w2", true, PD_EMISMATCH);
    assert_string_equal(open.base.error.reason, "REGROUP");
    assert_non_null(strstr(open.base.error.text, "until step 7 is committed"));
    commit_at(&c, "train", 7);
    open = reopen(&c, 5, "w2", true, 0);
    assert_int_equal(open.first_step, 8);
    assert_int_equal(c.serve.jobs[0].first_pack, 64);
    /* the parts begin anew: 8 | 9 | 10, 11 | 12 .. 15 */
    assert_int_equal(seq_commit(&c, "feed0", "train", 2, 10, 10, NULL), 0);
    open = reopen(&c, 3, "w3", true, PD_EMISMATCH);
    assert_non_null(strstr(open.base.error.text, "until step 11 is committed"));
    assert_int_equal(seq_commit(&c, "feed0", "train", 2, 11, 11, NULL), 0);
    open = reopen(&c, 3, "w3", true, 0);
    assert_int_equal(c.serve.jobs[0].first_pack, 64 + 4 * 5);
    seq_finish(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steady),
        cmocka_unit_test(test_stall),
        cmocka_unit_test(test_holders),
        cmocka_unit_test(test_nobody),
        cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_shuffled),
        cmocka_unit_test(test_retained_too_much),
        cmocka_unit_test(test_retained_give_way),
        cmocka_unit_test(test_retained_give_way_after_restart),
        cmocka_unit_test(test_gone_back),
        cmocka_unit_test(test_stall_restart),
        cmocka_unit_test(test_regroup),
        cmocka_unit_test(test_regroup_balanced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
