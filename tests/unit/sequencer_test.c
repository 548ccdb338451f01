/* The sequencer over a real log: streams, ends, jobs and worlds, the horizon, settings, many
 * threads. */
#include "tests/unit/sequencer_case.h"

#include "base/check.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- streams ---- */

static void test_streams(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    seq_new(&c, "streams");
    struct seq_stream a = seq_stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(a.open.next_seq, 0);
    assert_int_equal(seq_push_lengths(&c, &a, 0, 10, 5, &answer), 0);
    assert_int_equal(answer.durable_seq, 10);
    assert_int_equal(answer.duplicates, 0);
    /* again: all duplicates */
    assert_int_equal(seq_push_lengths(&c, &a, 0, 10, 5, &answer), 0);
    assert_int_equal(answer.durable_seq, 10);
    assert_int_equal(answer.duplicates, 10);
    /* overlap: only the new ones are taken */
    assert_int_equal(seq_push_lengths(&c, &a, 6, 10, 5, &answer), 0);
    assert_int_equal(answer.durable_seq, 16);
    assert_int_equal(answer.duplicates, 4);
    /* a gap names the expected seq */
    assert_int_equal(seq_push_lengths(&c, &a, 17, 1, 5, &answer), PD_EINVAL);
    assert_string_equal(answer.base.error.reason, "SEQ_GAP");
    assert_non_null(strstr(answer.base.error.text, "16 is expected"));
    /* a newer Hello fences the older call */
    struct seq_stream again = a;
    assert_int_equal(seq_open(&c, &again), 0);
    assert_int_equal(again.open.next_seq, 16);
    assert_int_equal(again.open.stream_id, a.open.stream_id);
    assert_int_equal(seq_push_lengths(&c, &a, 16, 1, 5, &answer), PD_EFENCED);
    assert_int_equal(seq_push_lengths(&c, &again, 16, 1, 5, &answer), 0);
    assert_int_equal(seq_end(&c, &a, 17), PD_EFENCED);
    /* another content, source, feed, name */
    struct seq_stream other = a;
    snprintf(other.content_id, sizeof other.content_id, "v2");
    assert_int_equal(seq_open(&c, &other), PD_EEXIST);
    assert_string_equal(other.open.base.error.reason, "CONTENT_CHANGED");
    assert_non_null(strstr(other.open.base.error.text, "'v1'"));
    assert_non_null(strstr(other.open.base.error.text, "'v2'"));
    other = a;
    snprintf(other.source, sizeof other.source, "web");
    assert_int_equal(seq_open(&c, &other), PD_EEXIST);
    assert_string_equal(other.open.base.error.reason, "SOURCE_CHANGED");
    other = seq_stream_of("nofeed", "a");
    assert_int_equal(seq_open(&c, &other), PD_ENOTFOUND);
    assert_string_equal(other.open.base.error.reason, "UNKNOWN_FEED");
    other = seq_stream_of("feed0", "a b");
    assert_int_equal(seq_open(&c, &other), PD_EINVAL);
    assert_string_equal(other.open.base.error.reason, "BAD_NAME");
    /* ends */
    assert_int_equal(seq_end(&c, &again, 16), PD_EINVAL);
    assert_int_equal(seq_end(&c, &again, 17), 0);
    assert_int_equal(seq_end(&c, &again, 17), 0);
    assert_int_equal(seq_push_lengths(&c, &again, 17, 1, 5, &answer), PD_EMISMATCH);
    assert_string_equal(answer.base.error.reason, "STREAM_ENDED");
    assert_int_equal(seq_push_lengths(&c, &again, 10, 7, 5, &answer), 0);
    assert_int_equal(answer.duplicates, 7);
    assert_int_equal(seq_end_feed(&c, "feed0"), 0);
    struct pd_request_status status = seq_status(&c);
    assert_int_equal(status.feeds[0].planner.samples, 17); /* no duplicate is planned */
    assert_int_equal(status.feed_count, 1);
    assert_int_equal(status.feeds[0].stream_count, 1);
    assert_int_equal(status.feeds[0].streams[0].samples, 17);
    assert_int_equal(status.feeds[0].streams[0].tokens, 85);
    assert_int_equal(status.feeds[0].streams[0].duplicates, 21);
    assert_true(status.feeds[0].streams[0].ended);
    pd_status_fini(&status);
    seq_finish(&c);
}

/* Refused samples are counted apart, by reason, and survive a restart; a call that is gone is no
 * longer connected, unless a newer one has the stream. */
static void test_refusals_and_close(void **unused)
{
    (void)unused;
    struct seq_case c;
    seq_new(&c, "refusals");
    struct seq_stream a = seq_stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    const uint32_t lengths[] = {10, 20, 30, 40, 50};
    const uint8_t rejected[] = {0, 1, 1, 0, 1};
    const struct pd_refusal refusals[] = {{.index = 1, .count = 2, .reason = "BAD_MASK"},
                                          {.index = 4, .count = 1, .reason = "BAD_WEIGHT"}};
    for (uint64_t first = 0; first < 4; first += 2) { /* the second block overlaps by three */
        struct seq_block_spec spec = {.first_seq = first,
                                      .count = 5,
                                      .lengths = lengths,
                                      .rejected = rejected,
                                      .labels = true};
        struct pd_request_append push = {.base.kind = PD_REQUEST_APPEND,
                                         .block = seq_block(&a, &spec),
                                         .epoch = a.open.epoch,
                                         .refusals = refusals,
                                         .refusal_count = 2};
        assert_int_equal(seq_call(&c, &push.base), 0);
        assert_int_equal(push.durable_seq, first + 5);
    }
    struct seq_stream newer = a;
    assert_int_equal(seq_open(&c, &newer), 0);
    struct pd_request_close_stream close = {
        .base.kind = PD_REQUEST_CLOSE_STREAM, .stream_id = a.open.stream_id, .epoch = a.open.epoch};
    for (int restart = 0; restart < 2; restart++) {
        assert_int_equal(seq_call(&c, &close.base), 0); /* the older call goes */
        struct pd_request_status status = seq_status(&c);
        const struct pd_feed_status *feed = &status.feeds[0];
        assert_true(status.records >= 4);
        assert_int_equal(feed->streams[0].samples, 2 + 1);
        assert_int_equal(feed->streams[0].rejected, 3 + 1);
        assert_string_equal(feed->streams[0].rejected_for, "BAD_MASK, BAD_WEIGHT");
        assert_int_equal(feed->streams[0].bytes, (10 + 40 + 40) * 8);
        assert_int_equal(feed->streams[0].blocks, 2);
        assert_true(feed->streams[0].log_bytes >= 2 * (10 + 20 + 30 + 40 + 50) * 8);
        assert_true(feed->streams[0].last_wall_ns > 0);
        assert_int_equal(feed->streams[0].connected, restart == 0);
        assert_int_equal(feed->refusal_count, 2);
        assert_string_equal(feed->refusals[0].reason, "BAD_MASK");
        assert_int_equal(feed->refusals[0].count, 2);
        assert_string_equal(feed->refusals[1].reason, "BAD_WEIGHT");
        assert_int_equal(feed->refusals[1].count, 2);
        pd_status_fini(&status);
        if (restart == 0) {
            seq_case_stop(&c);
            seq_start(&c);
        }
    }
    assert_int_equal(seq_open(&c, &newer), 0);
    assert_int_equal(newer.open.rejected, 3 + 1);
    assert_string_equal(newer.open.rejected_for, "BAD_MASK, BAD_WEIGHT");
    close.epoch = newer.open.epoch;
    assert_int_equal(seq_call(&c, &close.base), 0);
    struct pd_request_status status = seq_status(&c);
    assert_false(status.feeds[0].streams[0].connected);
    pd_status_fini(&status);
    seq_finish(&c);
}

/* Many streams: each is found again, and the list of those waited for is cut. */
static void test_many_streams(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    seq_new(&c, "many");
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 300; i++) {
            char name[32];
            snprintf(name, sizeof name, "stream-%u", i * 7919 % 300);
            struct seq_stream stream = seq_stream_of("feed0", name);
            assert_int_equal(seq_open(&c, &stream), 0);
            assert_int_equal(stream.open.stream_id, i);
            assert_int_equal(stream.open.next_seq, round);
            assert_int_equal(seq_push_lengths(&c, &stream, (uint64_t)round, 1, 60, &answer), 0);
        }
        seq_case_stop(&c);
        seq_start(&c);
    }
    struct pd_request_status status = seq_status(&c);
    assert_int_equal(status.feeds[0].stream_count, 300);
    for (uint32_t i = 1; i < 300; i++)
        assert_true(strcmp(status.feeds[0].streams[i - 1].name, status.feeds[0].streams[i].name) <
                    0);
    pd_status_fini(&status);
    size_t size = strlen(c.serve.progress[0].want_streams);
    assert_true(size > 200 && size < sizeof c.serve.progress[0].want_streams);
    assert_string_equal(c.serve.progress[0].want_streams + size - 3, "...");
    assert_int_equal(c.serve.progress[0].want_streams_total, 300);
    seq_finish(&c);
}

static void test_two_feeds(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    seq_case_config(&c, 2);
    seq_case_dir(&c, "feeds");
    seq_start(&c);
    struct seq_stream a = seq_stream_of("feed0", "a"), b = seq_stream_of("feed1", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_open(&c, &b), PD_EEXIST);
    assert_string_equal(b.open.base.error.reason, "STREAM_IN_OTHER_FEED");
    b = seq_stream_of("feed1", "b");
    assert_int_equal(seq_open(&c, &b), 0);
    assert_int_equal(seq_push_lengths(&c, &b, 0, 64, 32, &answer), 0);
    assert_int_equal(seq_end_feed(&c, "feed1"), 0);
    seq_case_stop(&c);
    /* the other order in the configuration: the log's numbers stay */
    struct pd_feed_config swap = c.config.feeds[0];
    c.config.feeds[0] = c.config.feeds[1];
    c.config.feeds[1] = swap;
    seq_start(&c);
    struct pd_pack pack = {0};
    assert_int_equal(pd_log_reader_begin(c.reader), 0);
    assert_int_equal(pd_log_read_pack(c.reader, 0, 31, &pack), 0);
    assert_int_equal(pack.segment_count, 2);
    assert_int_equal(pd_log_read_pack(c.reader, 1, 0, &pack), PD_ENOTFOUND);
    pd_log_reader_end(c.reader);
    pd_pack_fini(&pack);
    struct pd_request_status status = seq_status(&c); /* the first group has planned */
    assert_string_equal(status.feeds[0].name, "feed1");
    pd_status_fini(&status);
    assert_true(c.serve.progress[0].ended);
    assert_false(c.serve.progress[1].ended);
    seq_finish(&c);
}

/* ---- ends of feeds ---- */

static void test_declared_end(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    seq_case_config(&c, 1);
    c.config.feeds[0].streams_to_end = 2;
    seq_case_dir(&c, "count");
    seq_start(&c);
    struct seq_stream a = seq_stream_of("feed0", "a"), b = seq_stream_of("feed0", "b"),
                      d = seq_stream_of("feed0", "d");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_push_lengths(&c, &a, 0, 4, 60, &answer), 0);
    assert_int_equal(seq_end(&c, &a, 4), 0);
    assert_false(c.serve.progress[0].ended);
    assert_int_equal(seq_open(&c, &b), 0);
    assert_int_equal(seq_end(&c, &b, 0), 0);
    assert_true(c.serve.progress[0].ended);
    assert_int_equal(c.serve.progress[0].packs_planned, 4);
    assert_int_equal(seq_open(&c, &d), PD_EMISMATCH);
    assert_string_equal(d.open.base.error.reason, "FEED_ENDED");
    assert_int_equal(seq_flush(&c, "feed0", 1), PD_EMISMATCH);
    assert_int_equal(seq_end_feed(&c, "feed0"), 0);
    /* a producer that comes again is told that all is there */
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(a.open.next_seq, 4);
    assert_true(a.open.ended);
    seq_finish(&c);
}

static void set_ordered(struct seq_case *c)
{
    struct pd_feed_config *feed = &c->config.feeds[0];
    feed->rules.merge = PD_MERGE_ORDERED;
    feed->rules.lane_count = feed->stream_count = 2;
    feed->streams = calloc(2, sizeof *feed->streams);
    assert_non_null(feed->streams);
    memcpy(feed->streams[0], "a", 2);
    memcpy(feed->streams[1], "b", 2);
}

static void test_ordered(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    seq_case_config(&c, 1);
    set_ordered(&c);
    seq_case_dir(&c, "ordered");
    seq_start(&c);
    struct seq_stream a = seq_stream_of("feed0", "a"), b = seq_stream_of("feed0", "b"),
                      d = seq_stream_of("feed0", "d");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_open(&c, &d), PD_EMISMATCH);
    assert_string_equal(d.open.base.error.reason, "STREAM_NOT_DECLARED");
    assert_int_equal(seq_push_lengths(&c, &a, 0, 40, 32, &answer), 0);
    assert_true(c.serve.progress[0].waiting);
    assert_string_equal(c.serve.progress[0].want_streams, "b");
    assert_int_equal(c.serve.progress[0].want_streams_total, 1);
    assert_true(c.serve.progress[0].want_unseen);
    seq_case_stop(&c);
    seq_start(&c); /* between the two */
    struct pd_request_status status = seq_status(&c);
    assert_true(status.feeds[0].waiting);
    assert_int_equal(status.feeds[0].want.lane, 1);
    pd_status_fini(&status);
    assert_int_equal(seq_open(&c, &b), 0);
    assert_int_equal(seq_push_lengths(&c, &b, 0, 4, 32, &answer), 0);
    assert_int_equal(seq_end(&c, &b, 4), 0);
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_end(&c, &a, 40), 0);
    assert_true(c.serve.progress[0].ended);
    assert_int_equal(c.serve.progress[0].packs_planned, 22);
    seq_finish(&c);
}

static void test_sources(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    seq_case_config(&c, 1);
    struct pd_feed_config *feed = &c.config.feeds[0];
    feed->sources = calloc(2, sizeof *feed->sources);
    assert_non_null(feed->sources);
    feed->source_count = feed->rules.lane_count = 2;
    for (uint32_t i = 0; i < 2; i++) {
        snprintf(feed->sources[i].name, PD_NAME_MAX + 1, "s%u", i);
        feed->rules.lanes[i] = feed->sources[i].lane =
            (struct pd_lane_rules){.weight = 1, .passes_max = 1};
    }
    feed->streams_to_end = 2;
    seq_case_dir(&c, "sources");
    seq_start(&c);
    struct seq_stream a = seq_stream_of("feed0", "a"), b = seq_stream_of("feed0", "b");
    assert_int_equal(seq_open(&c, &a), PD_EMISMATCH);
    assert_string_equal(a.open.base.error.reason, "UNKNOWN_SOURCE");
    snprintf(a.source, sizeof a.source, "s0");
    snprintf(b.source, sizeof b.source, "s1");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_push_lengths(&c, &a, 0, 60, 32, &answer), 0);
    assert_true(c.serve.progress[0].waiting);
    assert_string_equal(c.serve.progress[0].want_streams, "");
    assert_string_equal(c.serve.progress[0].want_source, "s1");
    assert_int_equal(seq_open(&c, &b), 0);
    assert_int_equal(b.open.lane, 1);
    assert_int_equal(b.open.source_id, 2);
    char name[PD_NAME_MAX + 1];
    assert_int_equal(pd_log_reader_begin(c.reader), 0);
    assert_int_equal(pd_log_read_source_name(c.reader, 0, 2, name), 0);
    assert_string_equal(name, "s1");
    assert_int_equal(pd_log_read_stream_name(c.reader, 0, b.open.stream_id, name), 0);
    assert_string_equal(name, "b");
    assert_int_equal(pd_log_read_source_name(c.reader, 0, 3, name), PD_ENOTFOUND);
    pd_log_reader_end(c.reader);
    /* s1's only stream ends: its lane is over, and s0 alone goes on */
    assert_int_equal(seq_push_lengths(&c, &b, 0, 2, 32, &answer), 0);
    assert_int_equal(seq_end(&c, &b, 2), 0);
    assert_true(c.serve.progress[0].packs_planned > 8);
    assert_int_equal(seq_end(&c, &a, 60), 0);
    assert_true(c.serve.progress[0].ended);
    assert_int_equal(c.serve.progress[0].packs_planned, 31);
    seq_finish(&c);
}

/* ---- jobs ---- */

static int open_job(struct seq_case *c, struct pd_request_open_job *open, uint32_t dp_size,
                    uint32_t rows, const char *token)
{
    *open = seq_job_request("feed0", "j", dp_size, rows, 1, token);
    return seq_call(c, &open->base);
}

static void test_job_specs(void **unused)
{
    (void)unused;
    struct seq_case c;
    seq_new(&c, "specs");
    struct pd_request_open_job open = seq_job_request("feed0", "j", 2, 2, 1, "w1");
    open.spec.step_packs = 6;
    assert_int_equal(seq_call(&c, &open.base), PD_EMISMATCH);
    assert_string_equal(open.base.error.reason, "STEP_PACKS");
    assert_non_null(strstr(open.base.error.text, "2*3*1"));
    open = seq_job_request("feed0", "j", 2, 2, 1, "w1");
    open.spec.segment_multiple = 8;
    assert_int_equal(seq_call(&c, &open.base), PD_EMISMATCH);
    assert_string_equal(open.base.error.reason, "SEGMENT_MULTIPLE");
    assert_int_equal(open_job(&c, &open, 1, 1u << 26, "w1"), PD_ELIMIT);
    assert_string_equal(open.base.error.reason, "BATCH_TOO_LARGE");
    open = seq_job_request("feed0", "j", 2, 2, 1, "w1");
    snprintf(open.log_id, sizeof open.log_id, "00000000000000000000000000000000");
    assert_int_equal(seq_call(&c, &open.base), PD_EMISMATCH);
    assert_string_equal(open.base.error.reason, "LOG_ID");
    snprintf(open.log_id, sizeof open.log_id, "%s", pd_log_id(c.log));
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(open.generation, 1);
    assert_int_equal(open.first_step, 0);
    assert_true(open.created);
    assert_int_equal(c.serve.opened, 1);
    /* the second rank joins; with another spec it is refused and told both values */
    assert_int_equal(open_job(&c, &open, 2, 2, "w1"), 0);
    assert_int_equal(open.generation, 1);
    assert_false(open.created);
    assert_int_equal(open_job(&c, &open, 4, 1, "w1"), PD_EMISMATCH);
    assert_string_equal(open.base.error.reason, "SPEC_MISMATCH");
    assert_non_null(strstr(open.base.error.text, "dp_size 2"));
    assert_non_null(strstr(open.base.error.text, "asks for 4"));
    assert_int_equal(open_job(&c, &open, 2, 1, "w1"), PD_EMISMATCH); /* every way out is named */
    assert_string_equal(open.base.error.reason, "SPEC_MISMATCH");
    assert_non_null(strstr(open.base.error.text, "step_packs 4"));
    assert_non_null(strstr(open.base.error.text, "another job name"));
    assert_non_null(strstr(open.base.error.text, "packctl delete-job --job j"));
    assert_non_null(strstr(open.base.error.text, "`regroup`"));
    open = seq_job_request("feed0", "j", 2, 2, 1, "w1");
    open.spec.kind = PD_JOB_READER;
    assert_int_equal(seq_call(&c, &open.base), PD_EMISMATCH);
    assert_non_null(strstr(open.base.error.text, "is a training job, not a reader"));
    assert_int_equal(open_job(&c, &open, 1, 3, "w3"), PD_EMISMATCH);
    assert_string_equal(open.base.error.reason, "REGROUP");
    seq_finish(&c);
}

/* A job "j" of 2 x 2 x 1 in world "w1" that has committed steps 0 to 2. */
static void new_committed(struct seq_case *c, const char *name)
{
    struct pd_request_append answer;
    struct pd_request_open_job open;
    struct pd_error error;
    seq_new(c, name);
    assert_int_equal(open_job(c, &open, 2, 2, "w1"), 0);
    assert_int_equal(seq_commit(c, "feed0", "j", 1, 0, 0, &error),
                     PD_EINVAL); /* nothing is planned */
    assert_string_equal(error.reason, "COMMIT_BEYOND_FETCHED");
    struct seq_stream a = seq_stream_of("feed0", "a");
    assert_int_equal(seq_open(c, &a), 0);
    assert_int_equal(seq_push_lengths(c, &a, 0, 100, 60, &answer), 0);
    assert_int_equal(seq_commit(c, "feed0", "j", 1, 3, 2, &error), PD_EINVAL);
    assert_int_equal(seq_commit(c, "feed0", "j", 1, 2, 2, &error), 0);
}

/* from_start begins at the lowest step, whatever has been committed, with and without a world. */
static void test_from_start(void **unused)
{
    (void)unused;
    struct seq_case c;
    new_committed(&c, "start");
    struct pd_request_open_job open = seq_job_request("feed0", "j", 2, 2, 1, "");
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(open.first_step, 3);
    open = seq_job_request("feed0", "j", 2, 2, 1, "");
    open.from_start = true;
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(open.first_step, 0);
    assert_int_equal(open.lowest_step, 0);
    assert_int_equal(open.committed, 3);
    open = seq_job_request("feed0", "j", 2, 2, 1, "w2");
    open.from_start = true;
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(open.generation, 2);
    assert_int_equal(open.first_step, 0);
    /* the world's other ranks begin there too */
    assert_int_equal(open_job(&c, &open, 2, 2, "w2"), 0);
    assert_int_equal(open.first_step, 0);
    seq_finish(&c);
}

static void test_job_commits(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_open_job open;
    struct pd_error error;
    new_committed(&c, "commits");
    assert_int_equal(seq_commit(&c, "feed0", "j", 1, 2, 2, &error), 0);
    assert_int_equal(seq_commit(&c, "feed0", "j", 1, 1, 2, &error), 0);
    assert_int_equal(seq_commit(&c, "feed0", "nojob", 1, 1, 2, &error), PD_ENOTFOUND);
    assert_string_equal(error.reason, "UNKNOWN_JOB");
    /* a late rank of the same world begins where the world did; a caller without token behind
     * the commit */
    assert_int_equal(open_job(&c, &open, 2, 2, "w1"), 0);
    assert_int_equal(open.first_step, 0);
    assert_int_equal(open.committed, 3);
    assert_int_equal(open_job(&c, &open, 2, 2, ""), 0);
    assert_int_equal(open.generation, 1);
    assert_int_equal(open.first_step, 3);
    /* a deleted job is gone; its name may be used again, its number is not */
    struct pd_request_delete_job delete = {
        .base.kind = PD_REQUEST_DELETE_JOB, .feed = "feed0", .job = "j"};
    pthread_mutex_lock(&c.serve.mutex);
    c.serve.calls = 2;
    pthread_mutex_unlock(&c.serve.mutex);
    assert_int_equal(seq_call(&c, &delete.base), PD_EMISMATCH);
    assert_string_equal(delete.base.error.reason, "IN_USE");
    assert_int_equal(c.serve.deleted, 0);
    delete.force = true;
    assert_int_equal(seq_call(&c, &delete.base), 0);
    assert_int_equal(c.serve.deleted, 1);
    assert_int_equal(seq_call(&c, &delete.base), PD_ENOTFOUND);
    assert_int_equal(open_job(&c, &open, 1, 3, ""), 0);
    assert_int_equal(open.job_id, 1);
    assert_int_equal(open.first_step, 0);
    seq_finish(&c);
}

/* A new world takes another factorisation of the same P; the one before is fenced for good, over
 * restarts. */
static void test_worlds(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_error error;
    new_committed(&c, "worlds");
    struct pd_request_open_job open = seq_job_request("feed0", "j", 1, 4, 1, "w2");
    open.has_resume_step = true;
    open.resume_step = 5000000; /* no checkpoint holds it: nothing moves */
    assert_int_equal(seq_call(&c, &open.base), PD_ERANGE);
    assert_string_equal(open.base.error.reason, "STEP_NOT_PLANNED");
    assert_non_null(strstr(open.base.error.text, "5000000"));
    assert_int_equal(c.serve.jobs[0].generation, 1);
    open.resume_step = UINT64_MAX;
    assert_int_equal(seq_call(&c, &open.base), PD_ERANGE);
    open.resume_step = 1;
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(open.generation, 2);
    assert_int_equal(open.first_step, 2);
    assert_int_equal(c.serve.jobs[0].generation, 2);
    assert_int_equal(c.serve.jobs[0].spec.rows, 4);
    assert_int_equal(seq_commit(&c, "feed0", "j", 1, 3, 3, &error), PD_EFENCED);
    assert_int_equal(open_job(&c, &open, 2, 2, "w1"), PD_EFENCED);
    assert_string_equal(open.base.error.reason, "STALE_WORLD");
    seq_case_stop(&c);
    seq_start(&c);
    assert_int_equal(c.serve.opened, 1);
    assert_int_equal(c.serve.jobs[0].generation, 2);
    assert_int_equal(open_job(&c, &open, 2, 2, "w1"), PD_EFENCED);
    assert_int_equal(open_job(&c, &open, 1, 4, "w2"), 0);
    assert_int_equal(open.generation, 2);
    assert_int_equal(open.first_step, 2);
    assert_int_equal(open.committed, 3);
    for (int i = 0; i < 70; i++) { /* 64 tokens are kept */
        char token[16];
        snprintf(token, sizeof token, "x%d", i);
        assert_int_equal(open_job(&c, &open, 1, 4, token), 0);
        assert_int_equal(open.generation, 3 + i);
    }
    assert_int_equal(open_job(&c, &open, 1, 4, "x10"), PD_EFENCED);
    seq_finish(&c);
}

/* ---- the horizon ---- */

static void test_horizon(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    seq_case_config(&c, 1);
    c.config.feeds[0].plan_ahead_bytes = 10 * 64 * 20;
    seq_case_dir(&c, "horizon");
    seq_start(&c);
    struct seq_stream a = seq_stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_push_lengths(&c, &a, 0, 200, 60, &answer), 0);
    assert_int_equal(c.serve.progress[0].packs_planned, 10);
    assert_false(c.serve.progress[0].waiting);
    assert_true(c.serve.progress[0].at_horizon);
    struct pd_request_open_job open = seq_job_request("feed0", "j", 4, 2, 1, "w1");
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(c.serve.progress[0].packs_planned, 16); /* two steps */
    assert_int_equal(seq_deliver(&c, 0, 0, 0), 0);
    assert_int_equal(c.serve.progress[0].packs_planned, 24);
    assert_int_equal(seq_deliver(&c, 0, 0, 0), 0);
    assert_int_equal(c.serve.progress[0].packs_planned, 24);
    struct pd_request_open_job reader = seq_job_request("feed0", "r", 1, 1, 1, "");
    reader.spec.kind = PD_JOB_READER;
    assert_int_equal(seq_call(&c, &reader.base), 0);
    assert_int_equal(seq_deliver(&c, 0, reader.job_id, 90), 0);
    assert_int_equal(c.serve.progress[0].packs_planned, 24); /* readers move nothing */
    assert_int_equal(seq_deliver(&c, 0, 0, 21), 0);
    assert_int_equal(c.serve.progress[0].packs_planned, 185); /* the window holds the last 15 */
    assert_true(c.serve.progress[0].waiting);
    assert_false(c.serve.progress[0].at_horizon);
    assert_string_equal(c.serve.progress[0].want_streams, "a");
    seq_finish(&c);
}

/* After a restart nobody knows what was delivered: the step that the trainer may wait for is
 * planned all the same, and not much more. */
static void test_horizon_restart(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    seq_case_config(&c, 1);
    c.config.feeds[0].plan_ahead_bytes = 10 * 64 * 20;
    seq_case_dir(&c, "horizon2");
    seq_start(&c);
    struct seq_stream a = seq_stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_push_lengths(&c, &a, 0, 44, 60, &answer), 0);
    struct pd_request_open_job open = seq_job_request("feed0", "j", 1, 4, 1, "w1");
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(seq_deliver(&c, 0, 0, 6), 0);
    assert_int_equal(c.serve.progress[0].packs_planned, 29); /* all there is */
    for (int restart = 0; restart < 2; restart++) {
        seq_case_stop(&c);
        seq_start(&c);
        assert_int_equal(seq_open(&c, &a), 0);
        assert_int_equal(seq_push_lengths(&c, &a, 44 + 100 * (uint64_t)restart, 100, 60, &answer),
                         0);
        /* step 7 (packs 28 .. 31) and the next; then two more */
        assert_int_equal(c.serve.progress[0].packs_planned, restart ? 44 : 36);
    }
    assert_int_equal(seq_deliver(&c, 0, 0, 10), 0);
    assert_int_equal(c.serve.progress[0].packs_planned, 54);
    seq_finish(&c);
}

/* max_wait: the step a trainer waits for is completed from a short window, and no more than it. */
static void test_max_wait(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    seq_case_config(&c, 1);
    c.config.feeds[0].max_wait_ns = 20000000;
    seq_case_dir(&c, "wait");
    seq_start(&c);
    struct seq_stream a = seq_stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    struct pd_request_open_job open = seq_job_request("feed0", "j", 1, 4, 1, "w1");
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(seq_push_lengths(&c, &a, 0, 10, 60, &answer), 0);
    assert_int_equal(answer.durable_seq, 10);
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 10;
    pthread_mutex_lock(&c.serve.mutex);
    while (c.serve.progress[0].packs_planned < 4)
        assert_int_equal(pthread_cond_timedwait(&c.serve.changed, &c.serve.mutex, &limit), 0);
    pthread_mutex_unlock(&c.serve.mutex);
    struct pd_request_status status = seq_status(&c);
    assert_int_equal(status.feeds[0].packs_planned, 4);
    assert_int_equal(status.feeds[0].planner.window_samples, 6);
    pd_status_fini(&status);
    seq_finish(&c);
}

/* ---- settings ---- */

static void test_fixed_keys(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    struct pd_error error = {0};
    seq_new(&c, "fixed");
    seq_case_stop(&c);
    c.config.feeds[0].rules.seq_len = c.config.feeds[0].layout.seq_len = 128;
    seq_start(&c); /* no data yet: the file is right */
    struct seq_stream a = seq_stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_push_lengths(&c, &a, 0, 1, 60, &answer), 0);
    seq_case_stop(&c);
    c.config.feeds[0].rules.seq_len = c.config.feeds[0].layout.seq_len = 64;
    assert_int_equal(seq_case_start(&c, &error), PD_EMISMATCH);
    assert_string_equal(error.reason, "FIXED_KEY");
    assert_non_null(strstr(error.text, "seq_len is '128' in the log and '64'"));
    c.config.feeds[0].rules.seq_len = c.config.feeds[0].layout.seq_len = 128;
    c.config.feeds[0].layout.labels = PD_LABELS_SHIFTED;
    assert_int_equal(seq_case_start(&c, &error), PD_EMISMATCH);
    assert_non_null(strstr(error.text, "is 'unshifted' in the log and 'shifted'"));
    c.config.feeds[0].layout.labels = PD_LABELS_UNSHIFTED;
    c.config.feeds[0].layout.fixed_segments = 4; /* which caps the segments of a pack too */
    c.config.feeds[0].rules.segments_max = c.config.feeds[0].layout.segments_max = 3;
    assert_int_equal(seq_case_start(&c, &error), PD_EMISMATCH);
    assert_non_null(strstr(error.text, "fixed_segments is '0' in the log and '4'"));
    c.config.feeds[0].layout.fixed_segments = 0;
    c.config.feeds[0].rules.segments_max = c.config.feeds[0].layout.segments_max = 0;
    c.config.feeds[0].rules.seq_len = c.config.feeds[0].layout.seq_len = 64;
    assert_int_equal(seq_case_start(&c, &error), PD_EMISMATCH);
    c.config.feeds[0].rules.seq_len = c.config.feeds[0].layout.seq_len = 128;
    c.config.feeds[0].streams_to_end = 1; /* how a feed ends may be said later */
    seq_start(&c);
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_end(&c, &a, 1), 0);
    assert_true(c.serve.progress[0].ended);
    seq_finish(&c);
}

/* ---- many threads ---- */

struct pusher {
    struct seq_case *c;
    struct seq_stream stream;
    pthread_mutex_t mutex;
    pthread_cond_t done;
    bool answered;
    int failures;
};

static struct pusher *pusher_of; /* by stream number: set before the threads start */

static void push_done(struct pd_request *request)
{
    struct pusher *p = &pusher_of[((struct pd_request_append *)request)->epoch - 1];
    pthread_mutex_lock(&p->mutex);
    p->answered = true;
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->mutex);
}

static void *push_thread(void *arg)
{
    struct pusher *p = arg;
    uint32_t lengths[10];
    for (uint32_t i = 0; i < 10; i++)
        lengths[i] = 3 * i + 1;
    for (uint64_t seq = 0; seq < 1000; seq += 10) {
        struct seq_block_spec spec = {.first_seq = seq, .count = 10, .lengths = lengths};
        struct pd_request_append request = {.base = {.kind = PD_REQUEST_APPEND, .done = push_done},
                                            .block = seq_block(&p->stream, &spec),
                                            .epoch = p->stream.open.epoch};
        const char *why;
        pthread_mutex_lock(&p->mutex);
        p->answered = false;
        p->failures += pd_sequencer_submit(p->c->seq, &request.base) != 0;
        while (!p->answered)
            pthread_cond_wait(&p->done, &p->mutex);
        pthread_mutex_unlock(&p->mutex);
        p->failures += request.base.result != 0 || request.durable_seq != seq + 10;
        p->failures += pd_sequencer_accepts(p->c->seq, 0, 0, &why) != PD_SEQ_ACCEPTS;
    }
    return NULL;
}

static void test_threads(void **unused)
{
    (void)unused;
    struct seq_case c;
    pthread_t threads[8];
    static struct pusher pushers[8];
    seq_new(&c, "threads");
    memset(pushers, 0, sizeof pushers);
    pusher_of = pushers;
    for (int i = 0; i < 8; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%d", i);
        pushers[i].c = &c;
        pushers[i].stream = seq_stream_of("feed0", name);
        pthread_mutex_init(&pushers[i].mutex, NULL);
        pthread_cond_init(&pushers[i].done, NULL);
        assert_int_equal(seq_open(&c, &pushers[i].stream), 0);
        assert_int_equal(pushers[i].stream.open.epoch, i + 1);
    }
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, push_thread, &pushers[i]), 0);
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 8; i++)
        assert_int_equal(pushers[i].failures, 0);
    assert_int_equal(seq_end_feed(&c, "feed0"), 0);
    struct pd_request_status status = seq_status(&c);
    assert_int_equal(status.feeds[0].planner.samples, 8000);
    pd_status_fini(&status);
    pd_sequencer_stop(c.seq);
    struct pd_request late = {.kind = PD_REQUEST_STATUS, .done = push_done};
    assert_int_equal(pd_sequencer_submit(c.seq, &late), PD_ECLOSED);
    seq_finish(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams),         cmocka_unit_test(test_refusals_and_close),
        cmocka_unit_test(test_from_start),      cmocka_unit_test(test_many_streams),
        cmocka_unit_test(test_two_feeds),       cmocka_unit_test(test_declared_end),
        cmocka_unit_test(test_ordered),         cmocka_unit_test(test_sources),
        cmocka_unit_test(test_job_specs),       cmocka_unit_test(test_job_commits),
        cmocka_unit_test(test_worlds),          cmocka_unit_test(test_horizon),
        cmocka_unit_test(test_horizon_restart), cmocka_unit_test(test_max_wait),
        cmocka_unit_test(test_fixed_keys),      cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
