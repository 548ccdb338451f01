/* When the log is full, a group cannot be written, or bytes in the log are damaged. */
#include "tests/unit/sequencer_case.h"

#include "base/check.h"
#include "server/log_internal.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

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
    seq_start(&c);
    struct seq_stream a = seq_stream_of("feed0", "a");
    const char *why = NULL;
    assert_int_equal(seq_open(&c, &a), 0);
    struct pd_request_open_job open = seq_job_request("feed0", "j", 1, 1, 1, "w1");
    assert_int_equal(seq_call(&c, &open.base), 0);
    assert_int_equal(pd_sequencer_accepts(c.seq, 0, 0, &why), PD_SEQ_ACCEPTS);
    uint64_t seq = 0, refused_at = 0;
    int rc = 0;
    for (; rc == 0 && seq < 100000; seq += rc ? 0 : 400) {
        rc = seq_push_lengths(&c, &a, seq, 400, 60, &answer);
        if (refused_at == 0 && pd_sequencer_accepts(c.seq, 0, 0, &why) != PD_SEQ_ACCEPTS)
            refused_at = seq + 400;
        assert_int_equal(seq_progress(&c, 0).log_full, refused_at > 0); /* ranks are told why */
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
    seq_finish(&c);
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

/* Credit is asked for inside the answer: a second later a full disk would be tried again. */
static struct pd_sequencer *asked;
static bool accepted;

static void ask_credit(struct pd_request *request)
{
    const char *why;
    (void)request;
    accepted = pd_sequencer_accepts(asked, 0, 0, &why) == PD_SEQ_ACCEPTS;
}

/* A write that fails inside a group: the group is undone, memory is as the log says, and work
 * goes on. The map's end stands for the disk's. */
static void test_undo(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    seq_case_config(&c, 1);
    seq_case_dir(&c, "undo");
    c.config.log_max_bytes = 64u << 20; /* the map: 256 MiB */
    c.config.commit_ns = 60000000000;   /* however slow the machine: one group */
    c.config.commit_bytes = 1u << 30;
    seq_start(&c);
    struct seq_stream a = seq_stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_push_lengths(&c, &a, 0, 100, 60, &answer), 0);
    uint64_t planned = c.serve.progress[0].packs_planned;
    c.log->max_bytes = 1ull << 40; /* packd's own count lets this pass; LMDB's map does not */
    atomic_store(&c.log->limit_bytes, c.log->max_bytes);
    /* in one group: an append that fits, a new job, a new stream, and an append that does not
     * fit */
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
    asked = c.seq;
    accepted = true;
    answer = (struct pd_request_append){.base = {.kind = PD_REQUEST_APPEND, .done = ask_credit},
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
    assert_false(accepted);
    /* the call's epoch is still good, and nothing has been lost */
    assert_int_equal(seq_push_lengths(&c, &a, 100, 100, 60, &answer), 0);
    assert_int_equal(answer.durable_seq, 200);
    assert_int_equal(answer.duplicates, 0);
    assert_int_equal(c.serve.progress[0].packs_planned, planned + 100);
    seq_finish(&c);
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
    seq_new(&c, "body");
    struct seq_stream a = seq_stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_push_lengths(&c, &a, 0, 40, 60, &answer), 0);
    assert_int_equal(seq_end_feed(&c, "feed0"), 0);
    seq_case_stop(&c);
    int32_t needle[4];
    for (uint32_t i = 0; i < 4; i++)
        needle[i] = seq_token("a", 7, 20 + i);
    assert_true(damage(&c, needle, sizeof needle, 5) > 0);
    seq_start(&c);
    struct pd_bodies bodies, later;
    struct pd_error error = {0};
    struct pd_pack pack = {0};
    int32_t tokens[64];
    int bad = 0;
    assert_int_equal(pd_log_reader_begin(c.reader), 0);
    pd_log_bodies(c.reader, 0, PD_VERIFY_COPIES, &bodies, &error);
    for (uint64_t k = 0; k < 40; k++) {
        assert_int_equal(pd_log_read_pack(c.reader, 0, k, &pack), 0);
        int rc = bodies.tokens(bodies.ctx, &pack.segments[0], tokens);
        if (pack.segments[0].seq != 7) {
            assert_int_equal(rc, 0);
            continue;
        }
        assert_int_equal(rc, PD_ECORRUPT);
        assert_non_null(strstr(error.text, "sample 7 of stream 'a'"));
        /* Who says that it will look itself is given the bytes as they are. */
        pd_log_bodies(c.reader, 0, PD_VERIFY_LATER, &later, &error);
        assert_int_equal(later.tokens(later.ctx, &pack.segments[0], tokens), 0);
        assert_memory_not_equal(tokens + 20, needle, sizeof needle);
        pack.segments[0].offset_tokens =
            30; /* a part that does not hold the damage is refused too */
        pack.segments[0].length_tokens = 10;
        assert_int_equal(bodies.tokens(bodies.ctx, &pack.segments[0], tokens), PD_ECORRUPT);
        assert_int_equal(later.tokens(later.ctx, &pack.segments[0], tokens), PD_ECORRUPT);
        bad++;
    }
    pd_log_reader_end(c.reader);
    pd_pack_fini(&pack);
    assert_int_equal(bad, 1);
    seq_finish(&c);
}

static void test_damaged_head(void **unused)
{
    (void)unused;
    struct seq_case c;
    struct pd_request_append answer;
    seq_case_config(&c, 2);
    c.config.feeds[0].plan_ahead_bytes = c.config.feeds[1].plan_ahead_bytes = 10 * 64 * 20;
    seq_case_dir(&c, "head");
    seq_start(&c);
    struct seq_stream a = seq_stream_of("feed0", "a"), b = seq_stream_of("feed1", "b");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_open(&c, &b), 0);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(seq_push_lengths(&c, &a, 20 * i, 20, 50 + i, &answer), 0);
        assert_int_equal(seq_push_lengths(&c, &b, 20 * i, 20, 50, &answer), 0);
    }
    seq_case_stop(&c);
    uint32_t needle[4] = {54, 54, 54, 54}; /* lengths of feed0's last block */
    assert_true(damage(&c, needle, sizeof needle, 1) > 0);
    seq_start(&c);
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
    assert_int_not_equal(pd_sequencer_accepts(c.seq, 0, 0, &why), PD_SEQ_ACCEPTS);
    assert_non_null(strstr(why, "stopped"));
    assert_int_equal(pd_sequencer_accepts(c.seq, 1, 0, &why), PD_SEQ_ACCEPTS);
    assert_int_equal(seq_flush(&c, "feed0", 1), PD_ECORRUPT);
    /* the other feed goes on */
    assert_int_equal(seq_open(&c, &b), 0);
    assert_int_equal(seq_push_lengths(&c, &b, 100, 20, 50, &answer), 0);
    assert_int_equal(seq_end_feed(&c, "feed1"), 0);
    seq_finish(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_undo),
        cmocka_unit_test(test_damaged_body),
        cmocka_unit_test(test_damaged_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
