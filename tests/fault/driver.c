/* Log and sequencer without a wire, as a process that may fail or be cut off at any point, and the
 * look at what it has left.
 *
 *   driver run DIR ACKS     pushes, delivers, commits and trims; every answer is appended to ACKS
 *                           before the next request. What is refused for lack of space or memory is
 *                           asked again.
 *   driver check DIR ACKS   opens the log: every acked sample is there with its bytes, unless no
 *                           job can need it any more; plans lead to samples; work goes on
 *
 * Exit status: 0; 2 where the log could not be opened, with the reason; 74 is packd's own where the
 * log can no longer be trusted; anything else is a failure. One thread beside the sequencer's. Its
 * own allocations are not the ones to fail. */
#include "tests/unit/sequencer_case.h"

#include "base/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ROUNDS 10u
#define BLOCK_SAMPLES 120u
#define STREAMS 2u
#define TRIES_MAX 100
#define EXIT_OPEN 2

void packd_fault_exempt(int on) __attribute__((weak));

static const char *const names[STREAMS] = {"a", "b"};

struct acked {
    uint64_t next_seq[STREAMS];
    uint64_t steps; /* committed */
};

_Noreturn static void fail(const char *what, const struct pd_error *error)
{
    fprintf(stderr, "driver: %s: %s: %s\n", what, error ? error->reason : "FAILED",
            error ? error->text : "");
    exit(1);
}

static void exempt(int on)
{
    if (packd_fault_exempt)
        packd_fault_exempt(on);
}

/* ---- the case ---- */

static void configure(struct seq_case *c, const char *dir)
{
    seq_case_config(c, 1);
    c->config.log_max_bytes = 4u << 20;
    c->config.memory_ingest_bytes = 256u << 10;
    c->config.durability = PD_DURABILITY_FSYNC;
    snprintf(c->dir, sizeof c->dir, "%s", dir);
}

static void start(struct seq_case *c)
{
    struct pd_error error = {0};
    exempt(0);
    int rc = seq_case_start(c, &error);
    exempt(1);
    if (rc == 0)
        return;
    if (!error.reason[0] || !error.text[0])
        fail("the log cannot be opened, and no reason is given", NULL);
    fprintf(stderr, "driver: not opened: %s: %s\n", error.reason, error.text);
    exit(EXIT_OPEN);
}

static void stop(struct seq_case *c)
{
    exempt(0);
    seq_case_stop(c);
    exempt(1);
    seq_case_fini(c);
    if (seq_blocks_alive() != 0)
        fail("a block was never released", NULL);
}

static bool again(int rc, int *tries)
{
    return (rc == PD_EFULL || rc == PD_ENOMEM) && ++*tries < TRIES_MAX;
}

static void open_stream(struct seq_case *c, struct seq_stream *stream, uint32_t which)
{
    int tries = 0, rc;
    *stream = seq_stream_of("feed0", names[which]);
    while ((rc = seq_open(c, stream)) != 0)
        if (!again(rc, &tries))
            fail("open stream", &stream->open.base.error);
}

static struct pd_request_open_job open_job(struct seq_case *c)
{
    int tries = 0;
    for (;;) {
        struct pd_request_open_job open = seq_job_request("feed0", "j", 2, 2, 1, "w");
        int rc = seq_call(c, &open.base);
        if (rc == 0)
            return open;
        if (!again(rc, &tries))
            fail("open job", &open.base.error);
    }
}

static void ack(int fd, const char *what, uint64_t number)
{
    char line[64];
    int size = snprintf(line, sizeof line, "%s %llu\n", what, (unsigned long long)number);
    if (write(fd, line, (size_t)size) != size)
        fail("cannot write the acks", NULL);
}

/* ---- run ---- */

static void push(struct seq_case *c, struct seq_stream *stream, uint32_t which, int acks)
{
    uint32_t lengths[BLOCK_SAMPLES];
    uint64_t first = stream->open.next_seq, random = first * 2 + which + 1;
    for (uint32_t i = 0; i < BLOCK_SAMPLES; i++)
        lengths[i] = 20 + test_below(&random, 45);
    struct seq_block_spec spec = {.first_seq = first,
                                  .count = BLOCK_SAMPLES,
                                  .lengths = lengths,
                                  .labels = which == 1,
                                  .cuts = 5000};
    struct pd_request_append answer;
    int tries = 0, rc;
    while ((rc = seq_push(c, stream, &spec, &answer)) != 0)
        if (!again(rc, &tries))
            fail("append", &answer.base.error);
    stream->open.next_seq = answer.durable_seq;
    ack(acks, names[which], answer.durable_seq);
}

static uint64_t packs_planned(struct seq_case *c)
{
    int tries = 0, rc;
    struct pd_request_status status = {.base.kind = PD_REQUEST_STATUS};
    while ((rc = seq_call(c, &status.base)) != 0)
        if (!again(rc, &tries))
            fail("status", &status.base.error);
    uint64_t packs = status.feeds[0].packs_planned;
    pd_status_fini(&status);
    return packs;
}

static void train(struct seq_case *c, const struct pd_request_open_job *job, int acks)
{
    uint64_t steps = (packs_planned(c) - c->serve.jobs[job->job_id].first_pack) / 4;
    struct pd_error error = {0};
    int tries = 0, rc;
    if (steps == 0)
        return;
    while ((rc = seq_deliver(c, 0, job->job_id, steps - 1)) != 0)
        if (!again(rc, &tries))
            fail("deliver", NULL);
    while ((rc = seq_commit(c, "feed0", "j", job->generation, steps - 1, steps - 1, &error)) != 0)
        if (!again(rc, &tries))
            fail("commit", &error);
    ack(acks, "commit", steps);
}

static int run(const char *dir, const char *acks_path)
{
    struct seq_case c;
    struct seq_stream streams[STREAMS];
    int acks = open(acks_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (acks < 0)
        fail("cannot open the acks", NULL);
    configure(&c, dir);
    start(&c);
    struct pd_request_open_job job = open_job(&c);
    for (uint32_t i = 0; i < STREAMS; i++)
        open_stream(&c, &streams[i], i);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < STREAMS; i++)
            push(&c, &streams[i], i, acks);
        train(&c, &job, acks);
    }
    stop(&c);
    close(acks);
    return 0;
}

/* ---- check ---- */

/* The last of each; a line that was cut off is no ack. */
static struct acked read_acks(const char *path)
{
    struct acked acked = {0};
    char line[64], what[16];
    unsigned long long number;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (!strchr(line, '\n') || sscanf(line, "%15s %llu", what, &number) != 2)
            continue;
        for (uint32_t i = 0; i < STREAMS; i++)
            if (strcmp(what, names[i]) == 0)
                acked.next_seq[i] = number;
        if (strcmp(what, "commit") == 0)
            acked.steps = number;
    }
    if (file)
        fclose(file);
    return acked;
}

/* The samples found, by stream: a run without a hole. */
struct found {
    uint64_t first_seq[STREAMS], next_seq[STREAMS];
    uint64_t blocks[4096];
    uint32_t block_count;
};

static void check_tokens(struct pd_log_reader *reader, const struct pd_block_head *head,
                         uint32_t index, const char *name)
{
    int32_t tokens[128];
    uint32_t length = head->lengths[index];
    PD_CHECK(length <= PD_COUNT_OF(tokens));
    for (int column = 0; column <= head->has_labels; column++) {
        uint64_t at = head->token_offsets[index] + (column ? head->token_offsets[head->count] : 0);
        if (pd_log_read_body(reader, head->position, at * 4, length * 4ull, tokens) != 0)
            fail("a body is not there", NULL);
        for (uint32_t t = 0; t < length; t++)
            if (tokens[t] != seq_token(name, head->first_seq + index, t) + column)
                fail("a sample has other tokens", NULL);
    }
}

static void check_block(struct pd_log_reader *reader, const struct pd_block_head *head,
                        struct found *found)
{
    uint32_t which = head->stream;
    if (which >= STREAMS)
        fail("a block of a stream nobody opened", NULL);
    if (found->next_seq[which] == 0)
        found->first_seq[which] = found->next_seq[which] = head->first_seq;
    if (head->first_seq + head->first_index != found->next_seq[which])
        fail("samples are missing between two blocks", NULL);
    for (uint32_t i = head->first_index; i < head->count; i++)
        check_tokens(reader, head, i, names[which]);
    found->next_seq[which] = head->first_seq + head->count;
    PD_CHECK(found->block_count < PD_COUNT_OF(found->blocks));
    found->blocks[found->block_count++] = head->position;
}

static void check_blocks(const char *dir, struct found *found)
{
    struct pd_log_options options = {
        .path = dir, .max_bytes = 4u << 20, .durability = PD_DURABILITY_PROCESS};
    struct pd_error error = {0};
    struct pd_log *log;
    struct pd_log_reader *reader;
    uint64_t from = 0;
    int rc;
    if (pd_log_open(&options, &log, &error) != 0 || pd_log_reader_new(log, &reader, &error) != 0 ||
        pd_log_begin(log, &error) != 0 || pd_log_reader_begin(reader) != 0)
        fail("the log does not open", &error);
    for (;;) {
        struct pd_block_head head = {0};
        rc = pd_log_next_head(log, 0, 0, from, UINT64_MAX, &head, &error);
        if (rc)
            break;
        check_block(reader, &head, found);
        from = head.position + 1;
        pd_block_head_fini(&head);
    }
    if (rc != PD_ENOTFOUND)
        fail("a head cannot be read", &error);
    pd_log_reader_end(reader);
    pd_log_reader_free(reader);
    pd_log_abort(log);
    pd_log_close(log);
}

static void check_segment(const struct pd_segment *segment, const struct found *found)
{
    for (uint32_t i = 0; i < found->block_count; i++)
        if (found->blocks[i] == segment->block)
            return;
    fail("a plan names a block that is gone", NULL);
}

static void check_plans(struct seq_case *c, const struct found *found)
{
    struct pd_pack pack = {0};
    uint64_t lowest = 0, planned = seq_progress(c, 0).packs_planned;
    if (planned == 0)
        return;
    if (pd_log_reader_begin(c->reader) != 0 || pd_log_lowest_pack(c->reader, 0, &lowest) != 0)
        fail("no plan is left", NULL);
    for (uint64_t number = lowest; number < planned; number++) {
        if (pd_log_read_pack(c->reader, 0, number, &pack) != 0)
            fail("a plan cannot be read", NULL);
        for (uint32_t i = 0; i < pack.segment_count; i++)
            check_segment(&pack.segments[i], found);
    }
    pd_log_reader_end(c->reader);
    pd_pack_fini(&pack);
}

static void check_job(struct seq_case *c, const struct acked *acked)
{
    struct pd_request_open_job job = open_job(c);
    if (job.committed < acked->steps)
        fail("a commit is missing", NULL);
    if (job.lowest_step > job.committed)
        fail("the step behind the last commit is gone", NULL);
}

static int check(const char *dir, const char *acks_path)
{
    static struct found found;
    struct seq_case c;
    struct acked acked = read_acks(acks_path);
    check_blocks(dir, &found);
    configure(&c, dir);
    c.config.durability = PD_DURABILITY_PROCESS; /* the copy need not outlive anything */
    start(&c);
    check_plans(&c, &found);
    for (uint32_t i = 0; i < STREAMS; i++) {
        struct seq_stream stream;
        open_stream(&c, &stream, i);
        if (stream.open.next_seq < acked.next_seq[i])
            fail("an acked sample is missing", NULL);
        if (found.block_count && stream.open.stream_id < STREAMS &&
            stream.open.next_seq != found.next_seq[i])
            fail("a stream's next seq is not that behind its last block", NULL);
        int nowhere = open("/dev/null", O_WRONLY);
        push(&c, &stream, i, nowhere);
        close(nowhere);
    }
    if (acked.steps > 0)
        check_job(&c, &acked);
    stop(&c);
    return 0;
}

int main(int argc, char **argv)
{
#if defined(PD_ASAN) || defined(PD_TSAN)
    fprintf(stderr, "driver: a sanitizer has replaced what is to fail\n");
    return 77;
#endif
    exempt(1);
    if (argc == 4 && strcmp(argv[1], "run") == 0)
        return run(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "check") == 0)
        return check(argv[2], argv[3]);
    fprintf(stderr, "usage: driver run|check DIR ACKS\n");
    return 1;
}
