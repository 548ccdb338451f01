/* Space and liveness: who may add to a log that runs full, and that nothing of it ends in a
 * silence: lanes that run ahead, sources that are missing, windows, steps and commits larger than
 * the log. */
#include "tests/unit/sequencer_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define SEED 20260701ull
#define LOG_BYTES (16u << 20)
#define ROOM_BYTES (LOG_BYTES / 16 * 15)
#define SEQ_LEN 1024u
#define STEP_PACKS 8u
#define SAMPLE_BYTES_MAX (64u << 10)

static void space_config(struct seq_case *c, uint32_t feeds)
{
    seq_case_config(c, feeds);
    c->config.log_max_bytes = LOG_BYTES;
    c->config.memory_ingest_bytes = 1u << 20;
    c->config.max_sample_bytes = SAMPLE_BYTES_MAX;
    for (uint32_t i = 0; i < feeds; i++)
        c->config.feeds[i].rules.seq_len = c->config.feeds[i].layout.seq_len = SEQ_LEN;
}

static void set_sources(struct seq_case *c, uint32_t weight0, uint32_t weight1)
{
    struct pd_feed_config *feed = &c->config.feeds[0];
    feed->source_count = feed->rules.lane_count = 2;
    feed->sources = calloc(2, sizeof *feed->sources);
    assert_non_null(feed->sources);
    for (int i = 0; i < 2; i++) {
        snprintf(feed->sources[i].name, PD_NAME_MAX + 1, "s%d", i);
        feed->sources[i].lane =
            (struct pd_lane_rules){.weight = i ? weight1 : weight0, .passes_max = 1};
        feed->rules.lanes[i] = feed->sources[i].lane;
    }
}

static void set_streams(struct seq_case *c)
{
    struct pd_feed_config *feed = &c->config.feeds[0];
    feed->stream_count = feed->rules.lane_count = 2;
    feed->rules.merge = PD_MERGE_ORDERED;
    feed->streams = calloc(2, sizeof *feed->streams);
    assert_non_null(feed->streams);
    for (int i = 0; i < 2; i++)
        snprintf(feed->streams[i], PD_NAME_MAX + 1, "t%d", i);
}

struct producer {
    struct seq_stream stream;
    uint64_t seq;
    uint32_t length;
};

static struct producer producer_open(struct seq_case *c, const char *feed, const char *name,
                                     const char *source, uint32_t length)
{
    struct producer producer = {.stream = seq_stream_of(feed, name), .length = length};
    snprintf(producer.stream.source, sizeof producer.stream.source, "%s", source);
    assert_int_equal(seq_open(c, &producer.stream), 0);
    return producer;
}

static enum pd_seq_accept accepts(struct seq_case *c, const struct producer *producer)
{
    const char *why;
    return pd_sequencer_accepts(c->seq, producer->stream.open.feed_index,
                                producer->stream.open.lane, &why);
}

/* Blocks of about 64 KiB until the door would grant no more; the reason. */
static enum pd_seq_accept push_all(struct seq_case *c, struct producer *producer, uint32_t most)
{
    struct pd_request_append answer;
    uint32_t count = producer->length < 32 ? 512 : 16384 / producer->length;
    for (uint32_t i = 0; i < most && accepts(c, producer) == PD_SEQ_ACCEPTS; i++) {
        assert_int_equal(
            seq_push_lengths(c, &producer->stream, producer->seq, count, producer->length, &answer),
            0);
        producer->seq += count;
    }
    return accepts(c, producer);
}

static struct pd_feed_status feed_status(struct seq_case *c, uint32_t feed,
                                         struct pd_lane_status *lanes)
{
    struct pd_request_status status = seq_status(c);
    struct pd_feed_status copy = status.feeds[feed];
    for (uint32_t i = 0; lanes && i < copy.lane_count; i++)
        lanes[i] = copy.lanes[i];
    assert_true(copy.log_bytes <= c->config.log_max_bytes);
    assert_true(copy.unplanned_bytes <= copy.log_bytes);
    copy.lanes = NULL;
    copy.streams = NULL;
    copy.jobs = NULL;
    pd_status_fini(&status);
    return copy;
}

/* Trims and flushes are groups of their own, which come by themselves; each call waits for one. */
static void settle(struct seq_case *c)
{
    for (int i = 0; i < 20; i++)
        (void)feed_status(c, 0, NULL);
}

struct trainer {
    struct pd_request_open_job open;
    uint64_t next;
};

static struct trainer trainer_open(struct seq_case *c, const char *feed, const char *name)
{
    struct trainer trainer = {.open = seq_job_request(feed, name, 4, 2, 1, "w")};
    assert_int_equal(seq_call(c, &trainer.open.base), 0);
    trainer.next = trainer.open.first_step;
    return trainer;
}

/* Takes and commits every whole step there is; the number of new ones. */
static uint64_t train(struct seq_case *c, struct trainer *trainer)
{
    uint32_t feed = trainer->open.feed_index;
    uint64_t steps = feed_status(c, feed, NULL).packs_planned / STEP_PACKS, before = trainer->next;
    if (steps <= before)
        return 0;
    trainer->next = steps;
    assert_int_equal(seq_deliver(c, feed, trainer->open.job_id, steps - 1), 0);
    assert_int_equal(seq_commit(c, trainer->open.feed, trainer->open.spec.name,
                                trainer->open.generation, steps - 1, steps - 1, NULL),
                     0);
    settle(c);
    return steps - before;
}

/* One source fills its part of the log and is told so; the one that is missing is named, has its
 * room, and when it comes everything goes on. */
static void missing_lane(struct seq_case *c, const char *dir, const char *const names[2],
                         const char *const sources[2])
{
    struct pd_lane_status lanes[2];
    struct pd_stall stall;
    seq_case_dir(c, dir);
    seq_start(c);
    struct producer early = producer_open(c, "feed0", names[0], sources[0], 100);
    struct trainer trainer = trainer_open(c, "feed0", "train");
    assert_int_equal(push_all(c, &early, UINT32_MAX), PD_SEQ_LANE_SHARE);
    struct pd_feed_status status = feed_status(c, 0, lanes);
    uint64_t share = LOG_BYTES / 4;
    assert_true(status.waiting && status.want.lane == 1);
    assert_true(lanes[0].unplanned_bytes <= share && lanes[0].unplanned_bytes > share / 2);
    assert_int_equal(lanes[0].samples, early.seq);
    assert_true(lanes[0].drawn > 0 && lanes[0].drawn < early.seq);
    assert_int_equal(lanes[1].samples, 0);
    assert_false(seq_progress(c, 0).log_full);
    assert_false(pd_sequencer_stall(c->seq, 0, &stall));
    struct producer late = producer_open(c, "feed0", names[1], sources[1], 100);
    uint64_t steps = 0, sent = 0;
    for (int i = 0; i < 40; i++) {
        uint64_t before = late.seq;
        (void)push_all(c, &late, 8);
        (void)push_all(c, &early, 8);
        sent += late.seq - before;
        steps += train(c, &trainer);
    }
    assert_true(sent * 400 > LOG_BYTES / 2 && steps > 200);
    seq_finish(c);
}

static void test_missing_source(void **unused)
{
    (void)unused;
    struct seq_case c;
    space_config(&c, 1);
    set_sources(&c, 1, 1);
    missing_lane(&c, "source", (const char *const[]){"a", "b"}, (const char *const[]){"s0", "s1"});
}

static void test_missing_stream(void **unused)
{
    (void)unused;
    struct seq_case c;
    space_config(&c, 1);
    set_streams(&c);
    missing_lane(&c, "ordered", (const char *const[]){"t0", "t1"},
                 (const char *const[]){"default", "default"});
}

/* The lane that is due may use what is free: W samples that take more than its share. */
static void test_due_lane(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_lane_status lanes[2];
    space_config(&c, 1);
    set_sources(&c, 3, 1);
    c.config.feeds[0].rules.window_samples = 2048;
    seq_case_dir(&c, "due");
    seq_start(&c);
    struct producer heavy = producer_open(&c, "feed0", "a", "s0", 1024);
    struct producer light = producer_open(&c, "feed0", "b", "s1", 1024);
    for (int i = 0; i < 200 && feed_status(&c, 0, NULL).packs_planned == 0; i++) {
        (void)push_all(&c, &light, 1);
        (void)push_all(&c, &heavy, 1);
    }
    (void)feed_status(&c, 0, lanes);
    assert_true(feed_status(&c, 0, NULL).packs_planned > 0);
    assert_true(lanes[0].drawn * 4096 > LOG_BYTES / 4); /* more than its share was in the window */
    seq_finish(&c);
}

/* The window alone is larger than the log: packs are made from what is there, and said so. */
static void test_window_too_large(void **unused)
{
    (void)unused;
    struct seq_case c;
    space_config(&c, 1);
    c.config.feeds[0].rules.window_samples = 8192;
    seq_case_dir(&c, "window");
    seq_start(&c);
    struct producer a = producer_open(&c, "feed0", "a", "default", 1000);
    struct trainer trainer = trainer_open(&c, "feed0", "train");
    int idle = 0;
    while (a.seq * 4000 < 3ull * LOG_BYTES && idle < 10) {
        uint64_t before = a.seq;
        enum pd_seq_accept said = push_all(&c, &a, UINT32_MAX);
        assert_int_equal(said, PD_SEQ_LOG_FULL);
        settle(&c);
        idle = train(&c, &trainer) == 0 && a.seq == before ? idle + 1 : 0;
    }
    assert_true(idle < 10);
    assert_true(trainer.next * STEP_PACKS >= a.seq - 8192);
    uint64_t digest = feed_status(&c, 0, NULL).plan_digest;
    seq_case_stop(&c); /* the flushes are in the log */
    seq_start(&c);
    assert_true(feed_status(&c, 0, NULL).plan_digest == digest);
    seq_finish(&c);
}

/* Steps, balanced parts and commits that the log cannot hold are refused with the numbers. */
static void test_too_large(void **unused)
{
    (void)unused;
    struct seq_case c;
    space_config(&c, 1);
    c.config.feeds[0].balance = PD_BALANCE_COST;
    c.config.feeds[0].balance_bytes = 1u << 30;
    seq_case_dir(&c, "balance");
    seq_start(&c);
    struct pd_request_open_job open = seq_job_request("feed0", "train", 64, 2, 1, "w");
    assert_int_equal(seq_call(&c, &open.base), PD_ELIMIT); /* 16 * 128 * 4 KiB are 8 MiB */
    assert_string_equal(open.base.error.reason, "STEP_TOO_LARGE");
    assert_non_null(strstr(open.base.error.text, "8388608"));
    assert_non_null(strstr(open.base.error.text, "7864320"));
    assert_non_null(strstr(open.base.error.text, "balance_bytes"));
    open = seq_job_request("feed0", "train", 56, 2, 1, "w");
    assert_int_equal(seq_call(&c, &open.base), 0);
    open = seq_job_request("feed0", "train", 56, 2, 1, "w2");
    open.spec.commit_every = 18;
    assert_int_equal(seq_call(&c, &open.base), PD_ELIMIT);
    assert_string_equal(open.base.error.reason, "COMMIT_TOO_RARE");
    assert_non_null(strstr(open.base.error.text, "at least every 17 steps"));
    open.spec.commit_every = 17;
    assert_int_equal(seq_call(&c, &open.base), 0);
    seq_case_stop(&c);
    c.config.feeds[0].balance = PD_BALANCE_OFF;
    seq_case_fini(&c);
    space_config(&c, 1);
    seq_case_dir(&c, "step");
    seq_start(&c);
    open = seq_job_request("feed0", "train", 1000, 2, 1, "w");
    assert_int_equal(seq_call(&c, &open.base), PD_ELIMIT);
    assert_string_equal(open.base.error.reason, "STEP_TOO_LARGE");
    seq_finish(&c);
}

/* A balanced part that just fits: trained through several logs. */
static void test_balanced(void **unused)
{
    (void)unused;
    struct seq_case c;
    uint64_t done = 0;
    space_config(&c, 1);
    c.config.feeds[0].balance = PD_BALANCE_COST;
    c.config.feeds[0].balance_bytes = 1u << 30;
    seq_case_dir(&c, "balanced");
    seq_start(&c);
    struct producer a = producer_open(&c, "feed0", "a", "default", 500);
    struct pd_request_open_job open = seq_job_request("feed0", "train", 50, 2, 1, "w");
    assert_int_equal(seq_call(&c, &open.base), 0);
    for (int i = 0; i < 200 && a.seq * 2000 < 4ull * LOG_BYTES; i++) {
        (void)push_all(&c, &a, 16);
        struct pd_job_steps steps = {.config = &c.config.feeds[0], .step_packs = 100};
        uint64_t planned =
            pd_job_steps_planned(&steps, feed_status(&c, 0, NULL).packs_planned, false);
        if (planned == done)
            continue;
        done = planned;
        assert_int_equal(seq_deliver(&c, 0, open.job_id, done - 1), 0);
        assert_int_equal(seq_commit(&c, "feed0", "train", 1, done - 1, done - 1, NULL), 0);
        settle(&c);
    }
    assert_true(a.seq * 2000 >= 4ull * LOG_BYTES);
    seq_finish(&c);
}

/* A feed that is full leaves the other one its share. */
static void test_feeds_apart(void **unused)
{
    (void)unused;
    struct seq_case c;
    space_config(&c, 2);
    c.config.feeds[1].log_share = 3;
    seq_case_dir(&c, "feeds");
    seq_start(&c);
    struct producer a = producer_open(&c, "feed0", "a", "default", 100);
    struct producer b = producer_open(&c, "feed1", "b", "default", 100);
    assert_int_equal(push_all(&c, &a, UINT32_MAX), PD_SEQ_LOG_FULL);
    struct pd_feed_status full = feed_status(&c, 0, NULL);
    assert_true(full.log_bytes <= LOG_BYTES / 4 && full.log_bytes > LOG_BYTES / 4 * 3 / 4);
    assert_true(pd_sequencer_feed_full(c.seq, 0) && !pd_sequencer_feed_full(c.seq, 1));
    assert_true(pd_sequencer_log_full(c.seq));
    assert_int_equal(push_all(&c, &b, UINT32_MAX), PD_SEQ_LOG_FULL);
    uint64_t bytes = feed_status(&c, 1, NULL).log_bytes;
    assert_true(bytes <= LOG_BYTES / 4 * 3 && bytes > LOG_BYTES / 4 * 9 / 4);
    /* what is beyond credit is refused, not taken from the other's share */
    struct pd_request_append answer;
    int rc = 0;
    for (int i = 0; i < 100 && rc == 0; i++) {
        rc = seq_push_lengths(&c, &a.stream, a.seq, 160, 100, &answer);
        a.seq += 160;
    }
    assert_int_equal(rc, PD_EFULL);
    assert_string_equal(answer.base.error.reason, "LOG_FULL");
    assert_true(feed_status(&c, 0, NULL).log_bytes <= LOG_BYTES / 4);
    seq_finish(&c);
}

/* The counts follow the log's pages, and a restart finds them again. */
static void test_counts(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_lane_status lanes[2], again[2];
    uint64_t random = SEED;
    print_message("seed %llu\n", SEED);
    space_config(&c, 1);
    set_sources(&c, 5, 1);
    c.config.log_max_bytes = 64u << 20;
    seq_case_dir(&c, "counts");
    seq_start(&c);
    struct producer a = producer_open(&c, "feed0", "a", "s0", 10);
    struct producer b = producer_open(&c, "feed0", "b", "s1", 10);
    struct trainer trainer = trainer_open(&c, "feed0", "train");
    for (int i = 0; i < 300; i++) {
        a.length = 1 + test_below(&random, 900);
        b.length = 1 + test_below(&random, 900);
        (void)push_all(&c, &a, 1 + test_below(&random, 4));
        (void)push_all(&c, &b, 1);
        if (i % 10 == 9)
            (void)train(&c, &trainer);
    }
    struct pd_feed_status before = feed_status(&c, 0, lanes);
    uint64_t used = pd_log_used_bytes(c.log);
    print_message("counted %llu, pages %llu\n", (unsigned long long)before.log_bytes,
                  (unsigned long long)used);
    assert_true(before.lowest_pack > 1000);
    assert_true(before.log_bytes < used + used / 8 && before.log_bytes > used - used / 4);
    seq_case_stop(&c);
    seq_start(&c);
    struct pd_feed_status after = feed_status(&c, 0, again);
    assert_int_equal(after.unplanned_bytes, before.unplanned_bytes);
    assert_true(after.log_bytes > before.log_bytes - before.log_bytes / 50);
    assert_true(after.log_bytes < before.log_bytes + before.log_bytes / 50);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(again[i].samples, lanes[i].samples);
        assert_int_equal(again[i].unplanned_bytes, lanes[i].unplanned_bytes);
        assert_int_equal(again[i].deficit, lanes[i].deficit);
    }
    seq_finish(&c);
}

static struct pd_job_status job_status(struct seq_case *c, const char *name)
{
    struct pd_request_status status = seq_status(c);
    struct pd_job_status copy = {0};
    for (uint32_t i = 0; i < status.feeds[0].job_count; i++)
        if (strcmp(status.feeds[0].jobs[i].name, name) == 0)
            copy = status.feeds[0].jobs[i];
    pd_status_fini(&status);
    assert_string_equal(copy.name, name);
    return copy;
}

/* A job that nobody uses any more lets the log go, by a record; one that fetches does not; and it
 * holds again when it comes back. */
static void test_idle_release(void **unused)
{
    (void)unused;
    struct seq_case c;
    space_config(&c, 1);
    c.config.feeds[0].idle_release_ns = 20000000; /* 20 ms */
    seq_case_dir(&c, "idle");
    seq_start(&c);
    struct producer a = producer_open(&c, "feed0", "a", "default", 500);
    c.serve.calls = 1; /* all of them are on the line */
    struct trainer dead = trainer_open(&c, "feed0", "dead");
    struct trainer live = trainer_open(&c, "feed0", "live");
    for (int i = 0; i < 30; i++) {
        (void)push_all(&c, &a, 4);
        (void)train(&c, &live);
    }
    assert_false(job_status(&c, "dead").released);
    assert_int_equal(feed_status(&c, 0, NULL).lowest_pack, 0);
    c.serve.calls = 0;
    bool released = false;
    for (int i = 0; i < 100000 && !released; i++)
        released = job_status(&c, "dead").released;
    assert_true(released);
    assert_int_equal(job_status(&c, "dead").bytes_held, 0);
    (void)push_all(&c, &a, 4);
    (void)train(&c, &live); /* brings it back where it was released itself */
    settle(&c);
    uint64_t lowest = feed_status(&c, 0, NULL).lowest_pack;
    assert_true(lowest > 100);
    seq_case_stop(&c);
    seq_start(&c);
    assert_true(job_status(&c, "dead").released);
    c.serve.calls = 1;
    dead = trainer_open(&c, "feed0", "dead");
    assert_false(job_status(&c, "dead").released);
    assert_true(dead.open.first_step == (lowest + STEP_PACKS - 1) / STEP_PACKS);
    live = trainer_open(&c, "feed0", "live");
    assert_int_equal(seq_open(&c, &a.stream), 0);
    for (int i = 0; i < 10; i++) {
        (void)push_all(&c, &a, 4);
        (void)train(&c, &live);
    }
    assert_int_equal(feed_status(&c, 0, NULL).lowest_pack, lowest);
    seq_finish(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_source), cmocka_unit_test(test_missing_stream),
        cmocka_unit_test(test_due_lane),       cmocka_unit_test(test_window_too_large),
        cmocka_unit_test(test_too_large),      cmocka_unit_test(test_balanced),
        cmocka_unit_test(test_feeds_apart),    cmocka_unit_test(test_counts),
        cmocka_unit_test(test_idle_release),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
