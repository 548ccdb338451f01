/* The sequencer over a real log: streams, ends, jobs, plans against a direct planner run, restarts at every point, a full log, damage. */
#include "tests/unit/sequencer_case.h"

#include "base/check.h"
#include "base/clock.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SEED 20240607ull

static void start(struct seq_case *c)
{
    struct pd_error error = {0};
    if (seq_case_start(c, &error) != 0)
        fail_msg("start: %s: %s", error.reason, error.text);
}

static void new_case(struct seq_case *c, const char *name)
{
    seq_case_config(c, 1);
    seq_case_dir(c, name);
    start(c);
}

static void end_case(struct seq_case *c)
{
    seq_case_stop(c);
    seq_case_fini(c);
    assert_int_equal(seq_blocks_alive(), 0);
}

static struct seq_stream stream_of(const char *feed, const char *name)
{
    struct seq_stream stream = {.content_id = "v1"};
    snprintf(stream.feed, sizeof stream.feed, "%s", feed);
    snprintf(stream.name, sizeof stream.name, "%s", name);
    return stream;
}

static int push_lengths(struct seq_case *c, struct seq_stream *stream, uint64_t first_seq,
                        uint32_t count, uint32_t length, struct pd_request_append *answer)
{
    uint32_t lengths[512];
    assert_true(count <= 512);
    for (uint32_t i = 0; i < count; i++)
        lengths[i] = length;
    struct seq_block_spec spec = {
        .first_seq = first_seq, .count = count, .lengths = lengths, .cuts = 100};
    return seq_push(c, stream, &spec, answer);
}

/* ---- streams ---- */

static void test_streams(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    new_case(&c, "streams");
    struct seq_stream a = stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(a.open.next_seq, 0);
    assert_int_equal(push_lengths(&c, &a, 0, 10, 5, &answer), 0);
    assert_int_equal(answer.durable_seq, 10);
    assert_int_equal(answer.duplicates, 0);
    /* again: all duplicates */
    assert_int_equal(push_lengths(&c, &a, 0, 10, 5, &answer), 0);
    assert_int_equal(answer.durable_seq, 10);
    assert_int_equal(answer.duplicates, 10);
    /* overlap: only the new ones are taken */
    assert_int_equal(push_lengths(&c, &a, 6, 10, 5, &answer), 0);
    assert_int_equal(answer.durable_seq, 16);
    assert_int_equal(answer.duplicates, 4);
    /* a gap names the expected seq */
    assert_int_equal(push_lengths(&c, &a, 17, 1, 5, &answer), PD_EINVAL);
    assert_string_equal(answer.base.error.reason, "SEQ_GAP");
    assert_non_null(strstr(answer.base.error.text, "16 is expected"));
    /* a newer Hello fences the older call */
    struct seq_stream again = a;
    assert_int_equal(seq_open(&c, &again), 0);
    assert_int_equal(again.open.next_seq, 16);
    assert_int_equal(again.open.stream_id, a.open.stream_id);
    assert_int_equal(push_lengths(&c, &a, 16, 1, 5, &answer), PD_EFENCED);
    assert_int_equal(push_lengths(&c, &again, 16, 1, 5, &answer), 0);
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
    other = stream_of("nofeed", "a");
    assert_int_equal(seq_open(&c, &other), PD_ENOTFOUND);
    assert_string_equal(other.open.base.error.reason, "UNKNOWN_FEED");
    other = stream_of("feed0", "a b");
    assert_int_equal(seq_open(&c, &other), PD_EINVAL);
    assert_string_equal(other.open.base.error.reason, "BAD_NAME");
    /* ends */
    assert_int_equal(seq_end(&c, &again, 16), PD_EINVAL);
    assert_int_equal(seq_end(&c, &again, 17), 0);
    assert_int_equal(seq_end(&c, &again, 17), 0);
    assert_int_equal(push_lengths(&c, &again, 17, 1, 5, &answer), PD_EMISMATCH);
    assert_string_equal(answer.base.error.reason, "STREAM_ENDED");
    assert_int_equal(push_lengths(&c, &again, 10, 7, 5, &answer), 0);
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
    end_case(&c);
}

/* Many streams: each is found again, and the list of those waited for is cut. */
static void test_many_streams(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    new_case(&c, "many");
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 300; i++) {
            char name[32];
            snprintf(name, sizeof name, "stream-%u", i * 7919 % 300);
            struct seq_stream stream = stream_of("feed0", name);
            assert_int_equal(seq_open(&c, &stream), 0);
            assert_int_equal(stream.open.stream_id, i);
            assert_int_equal(stream.open.next_seq, round);
            assert_int_equal(push_lengths(&c, &stream, (uint64_t)round, 1, 60, &answer), 0);
        }
        seq_case_stop(&c);
        start(&c);
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
    end_case(&c);
}

static void test_two_feeds(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    seq_case_config(&c, 2);
    seq_case_dir(&c, "feeds");
    start(&c);
    struct seq_stream a = stream_of("feed0", "a"), b = stream_of("feed1", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_open(&c, &b), PD_EEXIST);
    assert_string_equal(b.open.base.error.reason, "STREAM_IN_OTHER_FEED");
    b = stream_of("feed1", "b");
    assert_int_equal(seq_open(&c, &b), 0);
    assert_int_equal(push_lengths(&c, &b, 0, 64, 32, &answer), 0);
    assert_int_equal(seq_end_feed(&c, "feed1"), 0);
    seq_case_stop(&c);
    /* the other order in the configuration: the log's numbers stay */
    struct pd_feed_config swap = c.config.feeds[0];
    c.config.feeds[0] = c.config.feeds[1];
    c.config.feeds[1] = swap;
    start(&c);
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
    end_case(&c);
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
    start(&c);
    struct seq_stream a = stream_of("feed0", "a"), b = stream_of("feed0", "b"),
                      d = stream_of("feed0", "d");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(push_lengths(&c, &a, 0, 4, 60, &answer), 0);
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
    end_case(&c);
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
    start(&c);
    struct seq_stream a = stream_of("feed0", "a"), b = stream_of("feed0", "b"),
                      d = stream_of("feed0", "d");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_open(&c, &d), PD_EMISMATCH);
    assert_string_equal(d.open.base.error.reason, "STREAM_NOT_DECLARED");
    assert_int_equal(push_lengths(&c, &a, 0, 40, 32, &answer), 0);
    assert_true(c.serve.progress[0].waiting);
    assert_string_equal(c.serve.progress[0].want_streams, "b");
    seq_case_stop(&c);
    start(&c); /* between the two */
    struct pd_request_status status = seq_status(&c);
    assert_true(status.feeds[0].waiting);
    assert_int_equal(status.feeds[0].want.lane, 1);
    pd_status_fini(&status);
    assert_int_equal(seq_open(&c, &b), 0);
    assert_int_equal(push_lengths(&c, &b, 0, 4, 32, &answer), 0);
    assert_int_equal(seq_end(&c, &b, 4), 0);
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_end(&c, &a, 40), 0);
    assert_true(c.serve.progress[0].ended);
    assert_int_equal(c.serve.progress[0].packs_planned, 22);
    end_case(&c);
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
    start(&c);
    struct seq_stream a = stream_of("feed0", "a"), b = stream_of("feed0", "b");
    assert_int_equal(seq_open(&c, &a), PD_EMISMATCH);
    assert_string_equal(a.open.base.error.reason, "UNKNOWN_SOURCE");
    snprintf(a.source, sizeof a.source, "s0");
    snprintf(b.source, sizeof b.source, "s1");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(push_lengths(&c, &a, 0, 60, 32, &answer), 0);
    assert_true(c.serve.progress[0].waiting);
    assert_string_equal(c.serve.progress[0].want_streams, "(source s1)");
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
    assert_int_equal(push_lengths(&c, &b, 0, 2, 32, &answer), 0);
    assert_int_equal(seq_end(&c, &b, 2), 0);
    assert_true(c.serve.progress[0].packs_planned > 8);
    assert_int_equal(seq_end(&c, &a, 60), 0);
    assert_true(c.serve.progress[0].ended);
    assert_int_equal(c.serve.progress[0].packs_planned, 31);
    end_case(&c);
}

/* ---- jobs ---- */

static void test_jobs(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    struct pd_error error;
    new_case(&c, "jobs");
    struct pd_request_open_job open = seq_job_request("feed0", "j", 2, 2, 1, "w1");
    open.spec.step_packs = 6;
    assert_int_equal(seq_call(&c, &open.base), PD_EMISMATCH);
    assert_string_equal(open.base.error.reason, "STEP_PACKS");
    assert_non_null(strstr(open.base.error.text, "2*3*1"));
    open = seq_job_request("feed0", "j", 2, 2, 1, "w1");
    open.spec.segment_multiple = 8;
    assert_int_equal(seq_call(&c, &open.base), PD_EMISMATCH);
    assert_string_equal(open.base.error.reason, "SEGMENT_MULTIPLE");
    open = seq_job_request("feed0", "j", 1, 1u << 26, 1, "w1");
    assert_int_equal(seq_call(&c, &open.base), PD_ELIMIT);
    assert_string_equal(open.base.error.reason, "BATCH_TOO_LARGE");
    open = seq_job_request("feed0", "j", 2, 2, 1, "w1");
    snprintf(open.log_id, sizeof open.log_id, "00000000000000000000000000000000");
    assert_int_equal(seq_call(&c, &open.base), PD_EMISMATCH);
    assert_string_equal(open.base.error.reason, "LOG_ID");
    snprintf(open.log_id, sizeof open.log_id, "%s", pd_log_id(c.log));
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(open.generation, 1);
    assert_int_equal(open.first_step, 0);
    assert_int_equal(c.serve.opened, 1);
    /* the second rank joins; with another spec it is refused and told both values */
    open = seq_job_request("feed0", "j", 2, 2, 1, "w1");
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(open.generation, 1);
    open = seq_job_request("feed0", "j", 4, 1, 1, "w1");
    assert_int_equal(seq_call(&c, &open.base), PD_EMISMATCH);
    assert_string_equal(open.base.error.reason, "SPEC_MISMATCH");
    assert_non_null(strstr(open.base.error.text, "dp_size 2"));
    assert_non_null(strstr(open.base.error.text, "asks for 4"));
    /* commits */
    assert_int_equal(seq_commit(&c, "feed0", "j", 1, 0, 0, &error), PD_EINVAL);
    assert_string_equal(error.reason, "COMMIT_BEYOND_FETCHED");
    struct seq_stream a = stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(push_lengths(&c, &a, 0, 100, 60, &answer), 0);
    assert_int_equal(seq_commit(&c, "feed0", "j", 1, 3, 2, &error), PD_EINVAL);
    assert_int_equal(seq_commit(&c, "feed0", "j", 1, 2, 2, &error), 0);
    assert_int_equal(seq_commit(&c, "feed0", "j", 1, 2, 2, &error), 0);
    assert_int_equal(seq_commit(&c, "feed0", "j", 1, 1, 2, &error), 0);
    assert_int_equal(seq_commit(&c, "feed0", "nojob", 1, 1, 2, &error), PD_ENOTFOUND);
    assert_string_equal(error.reason, "UNKNOWN_JOB");
    /* a late rank of the same world begins where the world did; a caller without token behind the commit */
    open = seq_job_request("feed0", "j", 2, 2, 1, "w1");
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(open.first_step, 0);
    assert_int_equal(open.committed, 3);
    open = seq_job_request("feed0", "j", 2, 2, 1, "");
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(open.generation, 1);
    assert_int_equal(open.first_step, 3);
    /* a new world: another factorisation of the same P, the old one is fenced for good */
    open = seq_job_request("feed0", "j", 1, 4, 1, "w2");
    open.has_resume_step = true;
    open.resume_step = 1;
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(open.generation, 2);
    assert_int_equal(open.first_step, 2);
    assert_int_equal(c.serve.jobs[0].generation, 2);
    assert_int_equal(c.serve.jobs[0].spec.rows, 4);
    assert_int_equal(seq_commit(&c, "feed0", "j", 1, 3, 3, &error), PD_EFENCED);
    open = seq_job_request("feed0", "j", 2, 2, 1, "w1");
    assert_int_equal(seq_call(&c, &open.base), PD_EFENCED);
    assert_string_equal(open.base.error.reason, "STALE_WORLD");
    open = seq_job_request("feed0", "j", 1, 3, 1, "w3");
    assert_int_equal(seq_call(&c, &open.base), PD_EMISMATCH);
    assert_string_equal(open.base.error.reason, "REGROUP");
    seq_case_stop(&c);
    start(&c); /* worlds and commits are in the log */
    assert_int_equal(c.serve.opened, 1);
    assert_int_equal(c.serve.jobs[0].generation, 2);
    open = seq_job_request("feed0", "j", 2, 2, 1, "w1");
    assert_int_equal(seq_call(&c, &open.base), PD_EFENCED);
    open = seq_job_request("feed0", "j", 1, 4, 1, "w2");
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(open.generation, 2);
    assert_int_equal(open.first_step, 2);
    assert_int_equal(open.committed, 3);
    for (int i = 0; i < 70; i++) { /* 64 tokens are kept */
        char token[16];
        snprintf(token, sizeof token, "x%d", i);
        open = seq_job_request("feed0", "j", 1, 4, 1, token);
        assert_int_equal(seq_call(&c, &open.base), 0);
        assert_int_equal(open.generation, 3 + i);
    }
    open = seq_job_request("feed0", "j", 1, 4, 1, "x10");
    assert_int_equal(seq_call(&c, &open.base), PD_EFENCED);
    struct pd_request_delete_job delete = {
        .base.kind = PD_REQUEST_DELETE_JOB, .feed = "feed0", .job = "j"};
    assert_int_equal(seq_call(&c, &delete.base), 0);
    assert_int_equal(c.serve.deleted, 1);
    assert_int_equal(seq_call(&c, &delete.base), PD_ENOTFOUND);
    open = seq_job_request("feed0", "j", 1, 3, 1, "");
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(open.job_id, 1);
    assert_int_equal(open.first_step, 0);
    end_case(&c);
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
    start(&c);
    struct seq_stream a = stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(push_lengths(&c, &a, 0, 200, 60, &answer), 0);
    assert_int_equal(c.serve.progress[0].packs_planned, 10);
    assert_false(c.serve.progress[0].waiting);
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
    assert_string_equal(c.serve.progress[0].want_streams, "a");
    end_case(&c);
}

/* After a restart nobody knows what was delivered: the step that the trainer may wait for is planned all the same, and not much more. */
static void test_horizon_restart(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    seq_case_config(&c, 1);
    c.config.feeds[0].plan_ahead_bytes = 10 * 64 * 20;
    seq_case_dir(&c, "horizon2");
    start(&c);
    struct seq_stream a = stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(push_lengths(&c, &a, 0, 44, 60, &answer), 0);
    struct pd_request_open_job open = seq_job_request("feed0", "j", 1, 4, 1, "w1");
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(seq_deliver(&c, 0, 0, 6), 0);
    assert_int_equal(c.serve.progress[0].packs_planned, 29); /* all there is */
    for (int restart = 0; restart < 2; restart++) {
        seq_case_stop(&c);
        start(&c);
        assert_int_equal(seq_open(&c, &a), 0);
        assert_int_equal(push_lengths(&c, &a, 44 + 100 * (uint64_t)restart, 100, 60, &answer), 0);
        /* step 7 (packs 28 .. 31) and the next; then two more */
        assert_int_equal(c.serve.progress[0].packs_planned, restart ? 44 : 36);
    }
    assert_int_equal(seq_deliver(&c, 0, 0, 10), 0);
    assert_int_equal(c.serve.progress[0].packs_planned, 54);
    end_case(&c);
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
    start(&c);
    struct seq_stream a = stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    struct pd_request_open_job open = seq_job_request("feed0", "j", 1, 4, 1, "w1");
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(push_lengths(&c, &a, 0, 10, 60, &answer), 0);
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
    end_case(&c);
}

/* ---- plans against a direct planner run, and restarts ---- */

enum event_kind { EVENT_PUSH, EVENT_FLUSH, EVENT_DELIVER, EVENT_END_STREAM, EVENT_END_FEED };

struct event {
    enum event_kind kind;
    uint32_t stream;
    uint64_t first_seq, packs;
    uint32_t count;
    uint32_t lengths[40];
    uint8_t rejected[40];
};

struct scenario {
    bool lanes; /* one a stream, each ended by itself; else one, ended with the feed */
    struct event events[40];
    uint32_t event_count;
    uint64_t next_seq[3];
};

static struct event *add_event(struct scenario *s, enum event_kind kind, uint32_t stream)
{
    struct event *event = &s->events[s->event_count++];
    event->kind = kind;
    event->stream = stream;
    event->first_seq = s->next_seq[stream];
    return event;
}

static void add_push(struct scenario *s, uint64_t *random, uint32_t stream)
{
    struct event *event = add_event(s, EVENT_PUSH, stream);
    event->count = 1 + seq_below(random, 40);
    for (uint32_t k = 0; k < event->count; k++) {
        event->lengths[k] = 1 + seq_below(random, seq_below(random, 4) ? 20 : 64);
        event->rejected[k] = seq_below(random, 8) == 0;
    }
    s->next_seq[stream] += event->count;
}

static void make_scenario(struct scenario *s, uint64_t *random, uint32_t count, bool lanes)
{
    memset(s, 0, sizeof *s);
    s->lanes = lanes;
    uint32_t short_stream = lanes ? seq_below(random, 3) : 3; /* ends in the middle */
    for (uint32_t i = 0; i < count; i++) {
        uint32_t stream = seq_below(random, 3), dice = seq_below(random, 7);
        if (dice == 0)
            add_event(s, EVENT_FLUSH, 0)->packs = seq_below(random, 4);
        else if (dice == 1)
            add_event(s, EVENT_DELIVER, 0)->packs = i;
        else if (stream != short_stream || i < count / 2)
            add_push(s, random, stream);
        if (i == count / 2 && lanes)
            add_event(s, EVENT_END_STREAM, short_stream);
    }
    for (uint32_t i = 0; i < 3 && lanes; i++)
        if (i != short_stream)
            add_event(s, EVENT_END_STREAM, i);
    if (!lanes)
        add_event(s, EVENT_END_FEED, 0);
    add_event(s, EVENT_DELIVER, 0)->packs = 100000; /* the horizon is no limit any more */
}

static const char *const stream_names[] = {"a", "b", "c"};

/* What a run needs after each start: its streams, and a job to move the horizon. */
static void open_all(struct seq_case *c, struct seq_stream streams[3])
{
    for (int i = 0; i < 3; i++) {
        streams[i] = stream_of("feed0", stream_names[i]);
        if (c->config.feeds[0].source_count > 0)
            snprintf(streams[i].source, sizeof streams[i].source, "s%d", i);
        assert_int_equal(seq_open(c, &streams[i]), 0);
    }
    struct pd_request_open_job open = seq_job_request("feed0", "j", 1, 3, 1, "w");
    assert_int_equal(seq_call(c, &open.base), 0);
}

static void play(struct seq_case *c, struct seq_stream streams[3], const struct event *event)
{
    struct pd_request_append answer;
    struct seq_block_spec spec = {.first_seq = event->first_seq,
                                  .count = event->count,
                                  .lengths = event->lengths,
                                  .rejected = event->rejected,
                                  .labels = event->first_seq % 2,
                                  .cuts = 37};
    switch (event->kind) {
    case EVENT_PUSH:
        assert_int_equal(seq_push(c, &streams[event->stream], &spec, &answer), 0);
        break;
    case EVENT_FLUSH:
        assert_int_equal(seq_flush(c, "feed0", event->packs), 0);
        break;
    case EVENT_DELIVER:
        assert_int_equal(seq_deliver(c, 0, 0, event->packs), 0);
        break;
    case EVENT_END_STREAM:
        assert_int_equal(seq_end(c, &streams[event->stream], event->first_seq), 0);
        break;
    case EVENT_END_FEED:
        assert_int_equal(seq_end_feed(c, "feed0"), 0);
        break;
    }
}

/* The same heads and controls, straight into a planner, without horizon. Event i lies at position 2 (i + 1). */
struct direct {
    struct pd_planner *planner;
    const struct scenario *scenario;
    uint32_t known, streams_ended;
    struct pd_head heads[40];
    struct pd_pack *packs;
    uint32_t pack_count, pack_capacity;
};

static int direct_read(void *ctx, uint32_t lane, struct pd_cursor at, const struct pd_head **heads)
{
    struct direct *d = ctx;
    *heads = d->heads;
    uint32_t from = at.index;
    for (uint64_t block = at.block ? at.block : 2; block <= 2 * d->known; block += 2, from = 0) {
        const struct event *event = &d->scenario->events[block / 2 - 1];
        int count = 0;
        if (event->kind != EVENT_PUSH || (d->scenario->lanes && event->stream != lane))
            continue;
        for (uint32_t i = from; i < event->count; i++)
            if (!event->rejected[i])
                d->heads[count++] = (struct pd_head){.block = block,
                                                     .index = i,
                                                     .stream = event->stream,
                                                     .seq = event->first_seq + i,
                                                     .length_tokens = event->lengths[i],
                                                     .weight = 1};
        if (count > 0)
            return count;
    }
    return 0;
}

static void direct_control(struct direct *d, enum pd_control_kind kind, uint64_t at,
                           const struct event *event)
{
    struct pd_control control = {
        .kind = kind, .at = at, .packs = event->packs, .lane = event->stream};
    assert_int_equal(pd_planner_control(d->planner, &control), 0);
}

static void direct_tell(struct direct *d, const struct event *event)
{
    uint64_t at = 2ull * ++d->known;
    if (event->kind == EVENT_FLUSH)
        direct_control(d, PD_CONTROL_FLUSH, at, event);
    if (event->kind == EVENT_END_STREAM)
        direct_control(d, PD_CONTROL_END_LANE, at, event);
    d->streams_ended += event->kind == EVENT_END_STREAM;
    if (event->kind == EVENT_END_FEED || (event->kind == EVENT_END_STREAM && d->streams_ended == 3))
        direct_control(d, PD_CONTROL_END_FEED, at + 1, event);
}

static void direct_plan(struct direct *d)
{
    struct pd_supply supply = {.ctx = d, .read = direct_read};
    for (int rc = 0; rc == 0;) {
        struct pd_want want;
        if (d->pack_count == d->pack_capacity) {
            d->pack_capacity = d->pack_capacity ? d->pack_capacity * 2 : 64;
            d->packs = realloc(d->packs, d->pack_capacity * sizeof *d->packs);
            assert_non_null(d->packs);
        }
        d->packs[d->pack_count] = (struct pd_pack){0};
        rc = pd_planner_next(d->planner, &supply, &d->packs[d->pack_count], &want);
        assert_true(rc == 0 || rc == PD_EAGAIN || rc == PD_EEND);
        if (rc)
            pd_pack_fini(&d->packs[d->pack_count]);
        else
            d->pack_count++;
    }
}

static void direct_run(struct direct *d, const struct scenario *scenario,
                       const struct pd_rules *rules)
{
    struct pd_error error;
    *d = (struct direct){.scenario = scenario};
    assert_int_equal(pd_planner_new(rules, &d->planner, &error), 0);
    for (uint32_t i = 0; i < scenario->event_count; i++) {
        direct_tell(d, &scenario->events[i]);
        direct_plan(d);
    }
}

static void direct_fini(struct direct *d)
{
    for (uint32_t i = 0; i < d->pack_count; i++)
        pd_pack_fini(&d->packs[i]);
    free(d->packs);
    pd_planner_free(d->planner);
}

static void check_segment(struct seq_case *c, const struct pd_segment *got,
                          const struct pd_segment *want)
{
    assert_int_equal(got->stream, want->stream);
    assert_int_equal(got->seq, want->seq);
    assert_int_equal(got->index, want->index);
    assert_int_equal(got->offset_tokens, want->offset_tokens);
    assert_int_equal(got->length_tokens, want->length_tokens);
    assert_int_equal(got->loss_tokens, want->loss_tokens);
    struct pd_bodies bodies;
    struct pd_error error = {0};
    int32_t tokens[64];
    bool has = false;
    pd_log_bodies(c->reader, 0, &bodies, &error);
    assert_int_equal(bodies.tokens(bodies.ctx, got, tokens), 0);
    for (uint32_t t = 0; t < got->length_tokens; t++)
        assert_int_equal(tokens[t],
                         seq_token(stream_names[got->stream], got->seq, got->offset_tokens + t));
    assert_int_equal(bodies.labels(bodies.ctx, got, tokens, &has), 0);
    for (uint32_t t = 0; has && t < got->length_tokens; t++)
        assert_int_equal(
            tokens[t], seq_token(stream_names[got->stream], got->seq, got->offset_tokens + t) + 1);
}

/* Every plan in the log, with the samples' bytes, against the direct run. */
static void check_plans(struct seq_case *c, const struct direct *d, bool whole)
{
    struct pd_request_status status = seq_status(c);
    uint64_t packs = status.feeds[0].packs_planned, digest = 0;
    if (whole)
        assert_int_equal(packs, d->pack_count);
    assert_true(packs <= d->pack_count);
    struct pd_pack pack = {0};
    struct pd_buf buf = {0};
    assert_int_equal(pd_log_reader_begin(c->reader), 0);
    for (uint64_t k = 0; k < packs; k++) {
        struct pd_plan_facts facts;
        assert_int_equal(pd_log_read_pack(c->reader, 0, k, &pack), 0);
        assert_int_equal(pack.segment_count, d->packs[k].segment_count);
        for (uint32_t i = 0; i < pack.segment_count; i++)
            check_segment(c, &pack.segments[i], &d->packs[k].segments[i]);
        pd_buf_clear(&buf);
        pd_pack_encode(&pack, &buf);
        digest = pd_plan_digest_next(digest, buf.data, buf.size_bytes);
        assert_int_equal(pd_log_read_plan_facts(c->reader, 0, k, &facts), 0);
        assert_true(facts.plan_digest == digest);
        assert_int_equal(facts.planner_version, PD_PLANNER_VERSION);
        assert_true(facts.config_digest == pd_feed_config_digest(&c->config.feeds[0]));
    }
    pd_log_reader_end(c->reader);
    assert_true(status.feeds[0].plan_digest == digest);
    pd_status_fini(&status);
    pd_pack_fini(&pack);
    pd_buf_fini(&buf);
}

static void set_streams(struct pd_feed_config *feed)
{
    feed->stream_count = 3;
    feed->streams = calloc(3, sizeof *feed->streams);
    assert_non_null(feed->streams);
    for (int i = 0; i < 3; i++)
        snprintf(feed->streams[i], PD_NAME_MAX + 1, "%s", stream_names[i]);
}

static void set_sources(struct pd_feed_config *feed)
{
    static const uint32_t weights[] = {7, 3, 1};
    feed->source_count = 3;
    feed->sources = calloc(3, sizeof *feed->sources);
    assert_non_null(feed->sources);
    for (int i = 0; i < 3; i++) {
        snprintf(feed->sources[i].name, PD_NAME_MAX + 1, "s%d", i);
        feed->sources[i].lane = (struct pd_lane_rules){.weight = weights[i], .passes_max = 1};
        feed->rules.lanes[i] = feed->sources[i].lane;
    }
    feed->streams_to_end = 3;
}

enum variant { VARIANT_PLAIN, VARIANT_SHUFFLE, VARIANT_ORDERED, VARIANT_SOURCES, VARIANT_COUNT };

static void set_variant(struct seq_case *c, enum variant variant, bool far)
{
    struct pd_feed_config *feed = &c->config.feeds[0];
    seq_case_config(c, 1);
    feed = &c->config.feeds[0];
    feed->rules.over_length = PD_OVER_SPLIT;
    feed->rules.seq_len = feed->layout.seq_len = 48;
    feed->plan_ahead_bytes = far ? 1u << 30 : 8 * 48 * 20;
    if (variant == VARIANT_SHUFFLE) {
        feed->rules.order = PD_ORDER_SHUFFLE;
        feed->rules.shuffle_samples = 50;
        feed->rules.seed = 7;
    }
    if (variant == VARIANT_ORDERED) {
        feed->rules.merge = PD_MERGE_ORDERED;
        set_streams(feed);
    }
    if (variant == VARIANT_SOURCES)
        set_sources(feed);
    if (variant == VARIANT_ORDERED || variant == VARIANT_SOURCES)
        feed->rules.lane_count = 3;
}

/* Every copy goes on from where it was cut off, and ends the same. */
static void resume_copy(struct seq_case *copy, const struct scenario *scenario, uint32_t from,
                        const struct direct *direct)
{
    struct seq_stream streams[3];
    start(copy);
    open_all(copy, streams);
    for (uint32_t k = from; k < scenario->event_count; k++)
        play(copy, streams, &scenario->events[k]);
    check_plans(copy, direct, true);
    assert_true(copy->serve.progress[0].ended);
    assert_false(copy->serve.progress[0].stopped);
    seq_case_stop(copy);
}

static void run_variant(enum variant variant, bool far, uint64_t *random)
{
    struct seq_case c, copies[40];
    struct seq_stream streams[3];
    struct scenario scenario;
    struct direct direct;
    make_scenario(&scenario, random, 20, variant == VARIANT_ORDERED || variant == VARIANT_SOURCES);
    set_variant(&c, variant, far);
    direct_run(&direct, &scenario, &c.config.feeds[0].rules);
    assert_true(direct.pack_count > 20);
    seq_case_dir(&c, "plans");
    start(&c);
    open_all(&c, streams);
    for (uint32_t i = 0; i < scenario.event_count; i++) {
        seq_case_copy(&c, &copies[i], "crash");
        if (i % 5 == 4) { /* a clean stop, with a snapshot */
            seq_case_stop(&c);
            start(&c);
            open_all(&c, streams);
        }
        play(&c, streams, &scenario.events[i]);
        check_plans(&c, &direct, false);
    }
    check_plans(&c, &direct, true);
    for (uint32_t i = 0; i < scenario.event_count; i++)
        resume_copy(&copies[i], &scenario, i, &direct);
    direct_fini(&direct);
    end_case(&c);
}

static void test_plans_and_restarts(void **unused)
{
    (void)unused;
    uint64_t random = SEED;
    print_message("seed %llu\n", SEED);
    for (int variant = 0; variant < VARIANT_COUNT; variant++)
        for (int far = 0; far < 2; far++)
            run_variant((enum variant)variant, far, &random);
}

/* A log whose plans are not what this planner makes: the feed stops, nothing is served on. */
static void test_diverged(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    struct pd_error error;
    new_case(&c, "diverged");
    struct seq_stream a = stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(push_lengths(&c, &a, 0, 40, 60, &answer), 0);
    seq_case_stop(&c);
    struct pd_log_options options = {
        .path = c.dir, .max_bytes = 64u << 20, .durability = PD_DURABILITY_PROCESS};
    assert_int_equal(pd_log_open(&options, &c.log, &error), 0);
    struct pd_buf body = {0};
    pd_buf_put_u64(&body, 24);
    pd_buf_put_u64(&body, 12345);
    assert_int_equal(pd_log_begin(c.log, &error), 0);
    assert_int_equal(pd_log_append_record(c.log, PD_RECORD_HORIZON, 0, &body, &error), 0);
    assert_int_equal(pd_log_commit(c.log, &error), 0);
    pd_log_close(c.log);
    pd_buf_fini(&body);
    start(&c);
    assert_true(c.serve.progress[0].stopped);
    assert_string_equal(c.serve.progress[0].stop_reason, "DIVERGED");
    assert_int_equal(seq_flush(&c, "feed0", 1), PD_EMISMATCH);
    end_case(&c);
}

/* Makes the newest snapshot of feed 0 one that cannot be read; there must be an older one. */
static void damage_snapshot(struct seq_case *c)
{
    struct pd_log_options options = {
        .path = c->dir, .max_bytes = 256u << 20, .durability = PD_DURABILITY_PROCESS};
    struct pd_buf data = {0};
    struct pd_error error;
    uint64_t newest = 0, older = 0;
    assert_int_equal(pd_log_open(&options, &c->log, &error), 0);
    assert_int_equal(pd_log_begin(c->log, &error), 0);
    assert_int_equal(pd_log_get_snapshot(c->log, 0, UINT64_MAX, &newest, &data, &error), 0);
    data.size_bytes -= 1;
    assert_int_equal(pd_log_put_snapshot(c->log, 0, newest, &data, &error), 0);
    pd_buf_clear(&data);
    assert_int_equal(pd_log_get_snapshot(c->log, 0, newest, &older, &data, &error), 0);
    assert_int_equal(pd_log_commit(c->log, &error), 0);
    pd_log_close(c->log);
    pd_buf_fini(&data);
}

/* Long enough for snapshots while running; the restart must not begin at pack 0, and a damaged snapshot must not matter. */
static void test_snapshots(void **unused)
{
    (void)unused;
    struct seq_case c, crash;
    struct pd_request_append answer;
    uint64_t random = SEED;
    seq_case_config(&c, 1);
    c.config.log_max_bytes = 256u << 20;
    seq_case_dir(&c, "snap");
    start(&c);
    struct seq_stream a = stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    for (uint64_t seq = 0; seq < 30000; seq += 500) {
        uint32_t lengths[500];
        for (int i = 0; i < 500; i++)
            lengths[i] = 1 + seq_below(&random, 40);
        struct seq_block_spec spec = {.first_seq = seq, .count = 500, .lengths = lengths};
        assert_int_equal(seq_push(&c, &a, &spec, &answer), 0);
    }
    struct pd_request_status before = seq_status(&c);
    assert_true(before.feeds[0].packs_planned > 8192);
    seq_case_copy(&c, &crash, "snapcrash");
    damage_snapshot(&crash);
    start(&crash);
    struct pd_request_status after = seq_status(&crash);
    assert_true(after.feeds[0].plan_digest == before.feeds[0].plan_digest);
    assert_int_equal(after.feeds[0].packs_planned, before.feeds[0].packs_planned);
    assert_false(after.feeds[0].stopped);
    pd_status_fini(&after);
    pd_status_fini(&before);
    seq_case_stop(&crash);
    end_case(&c);
}

static void test_fixed_keys(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    struct pd_error error = {0};
    new_case(&c, "fixed");
    seq_case_stop(&c);
    c.config.feeds[0].rules.seq_len = c.config.feeds[0].layout.seq_len = 128;
    start(&c); /* no data yet: the file is right */
    struct seq_stream a = stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(push_lengths(&c, &a, 0, 1, 60, &answer), 0);
    seq_case_stop(&c);
    c.config.feeds[0].rules.seq_len = c.config.feeds[0].layout.seq_len = 64;
    assert_int_equal(seq_case_start(&c, &error), PD_EMISMATCH);
    assert_string_equal(error.reason, "FIXED_KEY");
    assert_non_null(strstr(error.text, "seq_len is '128' in the log and '64'"));
    c.config.feeds[0].rules.seq_len = c.config.feeds[0].layout.seq_len = 128;
    c.config.feeds[0].streams_to_end = 1; /* how a feed ends may be said later */
    start(&c);
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_end(&c, &a, 1), 0);
    assert_true(c.serve.progress[0].ended);
    end_case(&c);
}

/* ---- a full log ---- */

static void test_full(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    struct pd_error error;
    seq_case_config(&c, 1);
    c.config.log_max_bytes = 4u << 20;
    seq_case_dir(&c, "full");
    start(&c);
    struct seq_stream a = stream_of("feed0", "a");
    const char *why = NULL;
    assert_int_equal(seq_open(&c, &a), 0);
    struct pd_request_open_job open = seq_job_request("feed0", "j", 1, 1, 1, "w1");
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_true(pd_sequencer_accepts(c.seq, 0, &why));
    uint64_t seq = 0, refused_at = 0;
    int rc = 0;
    for (; rc == 0 && seq < 100000; seq += rc ? 0 : 400) {
        rc = push_lengths(&c, &a, seq, 400, 60, &answer);
        if (refused_at == 0 && !pd_sequencer_accepts(c.seq, 0, &why))
            refused_at = seq + 400;
    }
    assert_int_equal(rc, PD_EFULL);
    assert_string_equal(answer.base.error.reason, "LOG_FULL");
    assert_int_equal(answer.durable_seq, seq);
    assert_true(refused_at > 0 && refused_at < seq); /* credit stops first */
    assert_string_equal(why, "the log is full");
    assert_true(pd_log_used_bytes(c.log) <= c.config.log_max_bytes);
    struct stat file;
    char path[600];
    snprintf(path, sizeof path, "%s/data.mdb", c.dir);
    assert_int_equal(stat(path, &file), 0);
    assert_true((uint64_t)file.st_size <= c.config.log_max_bytes + (c.config.log_max_bytes >> 3));
    /* what is kept: commits, ends and plans still go through */
    assert_int_equal(seq_commit(&c, "feed0", "j", 1, 5, 5, &error), 0);
    assert_int_equal(seq_end(&c, &a, seq), 0);
    assert_int_equal(seq_end_feed(&c, "feed0"), 0);
    assert_true(c.serve.progress[0].ended);
    end_case(&c);
}

/* Holds the sequencer inside an answer, so that what is submitted meanwhile becomes one group. */
struct gate {
    struct pd_request_status request;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool reached, open;
};

static void gate_done(struct pd_request *request)
{
    struct gate *gate = PD_CONTAINER_OF(request, struct gate, request.base);
    pthread_mutex_lock(&gate->mutex);
    gate->reached = true;
    pthread_cond_broadcast(&gate->cond);
    while (!gate->open)
        pthread_cond_wait(&gate->cond, &gate->mutex);
    pthread_mutex_unlock(&gate->mutex);
}

static void gate_close(struct seq_case *c, struct gate *gate)
{
    *gate = (struct gate){.request.base = {.kind = PD_REQUEST_STATUS, .done = gate_done}};
    pthread_mutex_init(&gate->mutex, NULL);
    pthread_cond_init(&gate->cond, NULL);
    assert_int_equal(pd_sequencer_submit(c->seq, &gate->request.base), 0);
    pthread_mutex_lock(&gate->mutex);
    while (!gate->reached)
        pthread_cond_wait(&gate->cond, &gate->mutex);
    pthread_mutex_unlock(&gate->mutex);
}

static void gate_open(struct gate *gate)
{
    pthread_mutex_lock(&gate->mutex);
    gate->open = true;
    pthread_cond_broadcast(&gate->cond);
    pthread_mutex_unlock(&gate->mutex);
}

static void nothing(struct pd_request *request)
{
    (void)request;
}

/* A write that fails inside a group: the group is undone, memory is as the log says, and work goes on. The map's end stands for the disk's. */
static void test_undo(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    seq_case_config(&c, 1);
    seq_case_dir(&c, "undo");
    c.config.log_max_bytes = 64u << 20; /* the map: 256 MiB */
    start(&c);
    struct seq_stream a = stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(push_lengths(&c, &a, 0, 100, 60, &answer), 0);
    uint64_t planned = c.serve.progress[0].packs_planned;
    c.config.log_max_bytes = 1ull << 40; /* packd's own count lets this pass; LMDB's map does not */
    /* in one group: an append that fits, a new job, a new stream, and an append that does not fit */
    struct gate gate;
    uint32_t lengths[100], huge = 70u << 20;
    for (int i = 0; i < 100; i++)
        lengths[i] = 60;
    struct seq_block_spec fits = {.first_seq = 100, .count = 100, .lengths = lengths};
    struct seq_block_spec fails = {.first_seq = 200, .count = 1, .lengths = &huge};
    struct pd_request_append first = {.base = {.kind = PD_REQUEST_APPEND, .done = nothing},
                                      .block = seq_block(&a, &fits),
                                      .epoch = a.open.epoch};
    struct pd_request_open_job job = seq_job_request("feed0", "j", 1, 1, 1, "w");
    struct pd_request_open_stream stream = {
        .base = {.kind = PD_REQUEST_OPEN_STREAM, .done = nothing}, .feed = "feed0", .stream = "b"};
    job.base.done = nothing;
    gate_close(&c, &gate);
    assert_int_equal(pd_sequencer_submit(c.seq, &first.base), 0);
    assert_int_equal(pd_sequencer_submit(c.seq, &job.base), 0);
    assert_int_equal(pd_sequencer_submit(c.seq, &stream.base), 0);
    answer = (struct pd_request_append){.base = {.kind = PD_REQUEST_APPEND, .done = nothing},
                                        .block = seq_block(&a, &fails),
                                        .epoch = a.open.epoch};
    assert_int_equal(pd_sequencer_submit(c.seq, &answer.base), 0);
    gate_open(&gate);
    struct pd_request_status status = seq_status(&c);
    assert_int_equal(first.base.result, PD_EFULL);
    assert_int_equal(job.base.result, PD_EFULL);
    assert_int_equal(stream.base.result, PD_EFULL);
    assert_int_equal(answer.base.result, PD_EFULL);
    assert_string_equal(first.base.error.reason, "LOG_FULL");
    assert_int_equal(status.feeds[0].stream_count, 1);
    assert_int_equal(status.feeds[0].streams[0].next_seq, 100);
    assert_int_equal(status.feeds[0].job_count, 0);
    assert_int_equal(status.feeds[0].packs_planned, planned);
    assert_int_equal(c.serve.opened, 0);
    pd_status_fini(&status);
    pd_status_fini(&gate.request);
    const char *why;
    assert_false(pd_sequencer_accepts(c.seq, 0, &why));
    /* the call's epoch is still good, and nothing has been lost */
    assert_int_equal(push_lengths(&c, &a, 100, 100, 60, &answer), 0);
    assert_int_equal(answer.durable_seq, 200);
    assert_int_equal(answer.duplicates, 0);
    assert_int_equal(c.serve.progress[0].packs_planned, planned + 100);
    end_case(&c);
}

/* ---- damage ---- */

/* Flips one byte where `needle` stands in the closed log; returns how often it stood there. */
static int damage(const struct seq_case *c, const void *needle, size_t size, size_t offset)
{
    char path[600];
    snprintf(path, sizeof path, "%s/data.mdb", c->dir);
    int fd = open(path, O_RDWR);
    struct stat file;
    assert_int_equal(fstat(fd, &file), 0);
    uint8_t *data = malloc((size_t)file.st_size);
    assert_non_null(data);
    assert_int_equal(pread(fd, data, (size_t)file.st_size, 0), file.st_size);
    int found = 0;
    for (uint8_t *at = data; (at = memmem(at, (size_t)(data + file.st_size - at), needle, size));
         at++) {
        uint8_t byte = at[offset] ^ 0x40;
        assert_int_equal(pwrite(fd, &byte, 1, at - data + (off_t)offset), 1);
        found++;
    }
    free(data);
    close(fd);
    return found;
}

static void test_damaged_body(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    new_case(&c, "body");
    struct seq_stream a = stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(push_lengths(&c, &a, 0, 40, 60, &answer), 0);
    assert_int_equal(seq_end_feed(&c, "feed0"), 0);
    seq_case_stop(&c);
    int32_t needle[4];
    for (uint32_t i = 0; i < 4; i++)
        needle[i] = seq_token("a", 7, 20 + i);
    assert_true(damage(&c, needle, sizeof needle, 5) > 0);
    start(&c);
    struct pd_bodies bodies;
    struct pd_error error = {0};
    struct pd_pack pack = {0};
    int32_t tokens[64];
    int bad = 0;
    assert_int_equal(pd_log_reader_begin(c.reader), 0);
    pd_log_bodies(c.reader, 0, &bodies, &error);
    for (uint64_t k = 0; k < 40; k++) {
        assert_int_equal(pd_log_read_pack(c.reader, 0, k, &pack), 0);
        int rc = bodies.tokens(bodies.ctx, &pack.segments[0], tokens);
        if (pack.segments[0].seq != 7) {
            assert_int_equal(rc, 0);
            continue;
        }
        assert_int_equal(rc, PD_ECORRUPT);
        assert_non_null(strstr(error.text, "sample 7 of stream 'a'"));
        pack.segments[0].offset_tokens =
            30; /* a part that does not hold the damage is refused too */
        pack.segments[0].length_tokens = 10;
        assert_int_equal(bodies.tokens(bodies.ctx, &pack.segments[0], tokens), PD_ECORRUPT);
        bad++;
    }
    pd_log_reader_end(c.reader);
    pd_pack_fini(&pack);
    assert_int_equal(bad, 1);
    end_case(&c);
}

static void test_damaged_head(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    seq_case_config(&c, 2);
    c.config.feeds[0].plan_ahead_bytes = c.config.feeds[1].plan_ahead_bytes = 10 * 64 * 20;
    seq_case_dir(&c, "head");
    start(&c);
    struct seq_stream a = stream_of("feed0", "a"), b = stream_of("feed1", "b");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_open(&c, &b), 0);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(push_lengths(&c, &a, 20 * i, 20, 50 + i, &answer), 0);
        assert_int_equal(push_lengths(&c, &b, 20 * i, 20, 50, &answer), 0);
    }
    seq_case_stop(&c);
    uint32_t needle[4] = {54, 54, 54, 54}; /* lengths of feed0's last block */
    assert_true(damage(&c, needle, sizeof needle, 1) > 0);
    start(&c);
    struct pd_request_open_job open = seq_job_request("feed0", "j", 1, 1, 1, "w1");
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(seq_deliver(&c, 0, open.job_id, 79), 0);
    assert_true(c.serve.progress[0].stopped);
    assert_string_equal(c.serve.progress[0].stop_reason, "LOG_DAMAGED");
    struct pd_request_status status = seq_status(&c);
    assert_true(status.feeds[0].stopped);
    assert_non_null(strstr(status.feeds[0].stop.text, "'heads'"));
    assert_true(status.feeds[0].packs_planned > 10);
    assert_false(status.feeds[1].stopped);
    pd_status_fini(&status);
    const char *why;
    assert_false(pd_sequencer_accepts(c.seq, 0, &why));
    assert_non_null(strstr(why, "stopped"));
    assert_true(pd_sequencer_accepts(c.seq, 1, &why));
    assert_int_equal(seq_flush(&c, "feed0", 1), PD_ECORRUPT);
    /* the other feed goes on */
    assert_int_equal(seq_open(&c, &b), 0);
    assert_int_equal(push_lengths(&c, &b, 100, 20, 50, &answer), 0);
    assert_int_equal(seq_end_feed(&c, "feed1"), 0);
    end_case(&c);
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
        p->failures += !pd_sequencer_accepts(p->c->seq, 0, &why);
    }
    return NULL;
}

static void test_threads(void **unused)
{
    (void)unused;
    struct seq_case c;
    pthread_t threads[8];
    static struct pusher pushers[8];
    new_case(&c, "threads");
    memset(pushers, 0, sizeof pushers);
    pusher_of = pushers;
    for (int i = 0; i < 8; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%d", i);
        pushers[i].c = &c;
        pushers[i].stream = stream_of("feed0", name);
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
    end_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_two_feeds),
        cmocka_unit_test(test_many_streams),
        cmocka_unit_test(test_declared_end),
        cmocka_unit_test(test_ordered),
        cmocka_unit_test(test_sources),
        cmocka_unit_test(test_jobs),
        cmocka_unit_test(test_horizon),
        cmocka_unit_test(test_horizon_restart),
        cmocka_unit_test(test_max_wait),
        cmocka_unit_test(test_plans_and_restarts),
        cmocka_unit_test(test_diverged),
        cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_fixed_keys),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_undo),
        cmocka_unit_test(test_damaged_body),
        cmocka_unit_test(test_damaged_head),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
