/* packctl push: a file, a directory or a pipe becomes a stream.
 *
 * The stream's name holds the digest of the input, and so does its content_id: pushing the same
 * input again finds all samples there and does nothing, pushing a broken push again goes on where
 * it stopped. A mended file is another stream, so a file is read to its end before anything is
 * sent: one with a bad record leaves no samples behind that its mended form would repeat. A pipe
 * with a name cannot be read twice; there what is stored is told. Reads, skips what the server has,
 * puts; libpackd does the rest. */
#include "client/lib_block.h"
#include "client/lib_error.h"
#include "client/packctl.h"
#include "client/reader.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/units.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REASONS_MAX 32
#define REJECTS_SHOWN 5
#define TIMEOUT_MS INT64_C(60000)
#define GRPC_PERMISSION_DENIED 7

struct push {
    struct ctl *ctl;
    const char *path;
    bool pipe; /* JSON lines from file descriptor 0, whatever `path` names */
    const char *feed, *source, *field;
    char stream[65];
    char content_id[256];
    bool skip_bad, end, end_feed, appends, allow_refused;
    struct packd_producer *producer;
    struct pd_input *input;
    uint64_t already, sent, tokens, too_large;
    uint64_t refused_before; /* of `already`: refused by an earlier push, and not stored */
    uint64_t max_sample_bytes, largest_bytes, largest; /* the largest sample's size and number */
    bool feed_ended, feed_already_ended, fields_told;
    bool all_stored; /* and the stream ended, where that was asked for */
    struct {
        char reason[40];
        uint64_t count;
    } reasons[REASONS_MAX];
    unsigned reason_count, rejects_shown;
    uint64_t started_ns, shown_ns;
    char told[40]; /* the reason of the wait last told */
    FILE *spool;   /* stdin, kept for its digest */
};

/* ---- the name -------------------------------------------------------------------------------- */

static void name_stream(struct push *push, const char *base, uint64_t digest)
{
    char safe[48];
    size_t at = 0;
    for (; *base && at < 47; base++)
        safe[at++] = isalnum((unsigned char)*base) || *base == '-' || *base == '_' ? *base : '-';
    safe[at] = 0;
    if (!push->stream[0])
        snprintf(push->stream, sizeof push->stream, "%s-%016" PRIx64, safe, digest);
    /* Other fields make other samples of the same file: that is another content. */
    snprintf(push->content_id, sizeof push->content_id, "%016" PRIx64 "%s%.200s", digest,
             push->field ? " field=" : "", push->field ? push->field : "");
}

/* Without a name, stdin is kept in an unnamed file first, as the name needs the digest of all of
 * it. */
static int spool_stdin(struct push *push, char *path, size_t size)
{
    char chunk[65536];
    size_t got;
    push->spool = tmpfile();
    while (push->spool && (got = fread(chunk, 1, sizeof chunk, stdin)) > 0) {
        if (memchr(chunk, 0, got)) { /* a device might never end */
            ctl_message("%s: binary data; expected JSON lines", push->path);
            return CTL_INPUT;
        }
        if (fwrite(chunk, 1, got, push->spool) != got)
            break;
    }
    if (!push->spool || ferror(stdin) || ferror(push->spool) || fflush(push->spool) != 0) {
        ctl_message("%s: %s; with --stream NAME it is not kept", push->path, strerror(errno));
        return CTL_INPUT;
    }
    rewind(push->spool);
    snprintf(path, size, "/proc/self/fd/%d", fileno(push->spool));
    return CTL_OK;
}

static const char *base_name(const char *path, char *buf, size_t size)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t from = end;
    while (from > 0 && path[from - 1] != '/')
        from--;
    snprintf(buf, size, "%.*s", (int)(end - from), path + from);
    return buf;
}

/* A pipe or a device by name (a FIFO, <(command), /dev/stdin) is read like `-`: it takes the place
 * of file descriptor 0. */
static int open_pipe(struct push *push)
{
    struct stat info;
    push->pipe = strcmp(push->path, "-") == 0 || strcmp(push->path, "/dev/stdin") == 0;
    if (push->pipe || stat(push->path, &info) != 0 ||
        (!S_ISFIFO(info.st_mode) && !S_ISCHR(info.st_mode)))
        return CTL_OK;
    int fd = open(push->path, O_RDONLY | O_CLOEXEC);
    push->pipe = fd >= 0 && dup2(fd, STDIN_FILENO) >= 0;
    if (!push->pipe)
        ctl_message("%s: %s", push->path, strerror(errno));
    if (fd > STDIN_FILENO)
        close(fd);
    return push->pipe ? CTL_OK : CTL_INPUT;
}

static int choose_name(struct push *push)
{
    struct packd_error error = {0};
    char base[256], spooled[64];
    uint64_t digest = 0;
    if (open_pipe(push) != CTL_OK)
        return CTL_INPUT;
    bool pipe = push->pipe;
    if (pipe && push->stream[0]) { /* a pipe with a name goes on at the stream's end */
        push->appends = true;
        return CTL_OK;
    }
    if (pipe) {
        int rc = spool_stdin(push, spooled, sizeof spooled);
        if (rc != CTL_OK)
            return rc;
    }
    if (pd_input_digest(pipe ? spooled : push->path, &digest, &error) != 0)
        return ctl_error(push->ctl, &error);
    name_stream(push, pipe ? "stdin" : base_name(push->path, base, sizeof base), digest);
    if (pipe && dup2(fileno(push->spool), STDIN_FILENO) < 0)
        return CTL_INPUT;
    return CTL_OK;
}

/* ---- pushing --------------------------------------------------------------------------------- */

static void on_reject(void *ctx, const struct packd_reject *reject)
{
    struct push *push = ctx;
    unsigned at = 0;
    while (at < push->reason_count && strcmp(push->reasons[at].reason, reject->reason) != 0)
        at++;
    if (at == push->reason_count && at < REASONS_MAX) {
        snprintf(push->reasons[at].reason, sizeof push->reasons[at].reason, "%s", reject->reason);
        push->reason_count++;
    }
    if (at < REASONS_MAX)
        push->reasons[at].count += reject->count;
    if (push->rejects_shown++ < REJECTS_SHOWN)
        ctl_note(push->ctl, "refused: seq %" PRIu64 "%s: %s: %s", reject->seq,
                 reject->count > 1 ? " and later ones" : "", reject->reason, reject->text);
}

static void show_progress(struct push *push)
{
    uint64_t now = pd_clock_mono_ns();
    if (!push->ctl->progress || now - push->shown_ns < 200000000)
        return;
    push->shown_ns = now;
    char samples[32], tokens[32];
    struct packd_producer_stats stats;
    packd_producer_stats(push->producer, &stats);
    ctl_progress(push->ctl, "%s samples, %s tokens%s%s",
                 pd_units_format_count(push->already + push->sent, samples, sizeof samples),
                 pd_units_format_count(push->tokens, tokens, sizeof tokens),
                 stats.waiting[0] ? "; the server says " : "", stats.waiting);
}

/* What people call the log states of the protocol; the state's own name where it has no other. */
static const char *state_words(const char *state)
{
    static const struct {
        const char *state, *words;
    } known[] = {{"LOG_INGEST_MEMORY", "the server's memory for samples is shared out"},
                 {"LOG_LANE_SHARE", "the stream is far enough ahead of the planner"},
                 {"LOG_FULL", "the log is full"},
                 {"LOG_STALLED", "the log is full, and only a job's commit can free space"},
                 {"LOG_DRAINING", "the server is going down"},
                 {"LOG_HALTED", "the feed is halted"}};
    for (size_t i = 0; i < PD_COUNT_OF(known); i++)
        if (strcmp(known[i].state, state) == 0)
            return known[i].words;
    return state;
}

/* Once per reason: "STATE" or "REASON: text" as the producer has it, or no answer for a second. The
 * figures in a text change all the time, so the reason alone counts. */
static void tell_waiting(struct push *push, const struct packd_producer_stats *stats,
                         uint64_t moved_ns)
{
    char reason[sizeof push->told];
    size_t bytes = strcspn(stats->waiting, ":");
    bool silent = bytes == 0;
    if (silent && pd_clock_mono_ns() - moved_ns < UINT64_C(1000000000))
        return;
    snprintf(reason, sizeof reason, "%.*s", silent ? 9 : (int)bytes,
             silent ? "NO_ANSWER" : stats->waiting);
    if (strcmp(reason, push->told) == 0)
        return;
    memcpy(push->told, reason, sizeof reason);
    if (silent)
        ctl_note(push->ctl,
                 "waiting: packd at %s has not acknowledged %" PRIu64 " samples for a second",
                 push->ctl->server, stats->next_seq - stats->durable_seq);
    else
        ctl_note(push->ctl, "waiting: %s%s", state_words(reason), stats->waiting + bytes);
}

/* A blocking call in slices, until it ends, the user stops, or nothing moved for the timeout. */
static int in_slices(struct push *push, int (*call)(struct push *, void *, struct packd_error *),
                     void *arg)
{
    int64_t limit_ms = push->ctl->timeout_ms >= 0 ? push->ctl->timeout_ms : TIMEOUT_MS;
    uint64_t durable = 0, moved_ns = pd_clock_mono_ns();
    struct packd_error error = {0};
    int rc;
    while ((rc = call(push, arg, &error)) == PACKD_ETIMEDOUT) {
        struct packd_producer_stats stats;
        packd_producer_stats(push->producer, &stats);
        if (stats.durable_seq != durable)
            moved_ns = pd_clock_mono_ns();
        durable = stats.durable_seq;
        show_progress(push);
        tell_waiting(push, &stats, moved_ns);
        if (ctl_stop)
            return CTL_INTERRUPTED;
        if (pd_clock_mono_ns() - moved_ns > (uint64_t)limit_ms * 1000000)
            return ctl_error(push->ctl, &error);
    }
    return rc == 0 ? CTL_OK : ctl_error(push->ctl, &error);
}

static int call_put(struct push *push, void *sample, struct packd_error *error)
{
    return packd_producer_put(push->producer, sample, CTL_SLICE_MS, error);
}

static int call_flush(struct push *push, void *unused, struct packd_error *error)
{
    (void)unused;
    return packd_producer_flush(push->producer, CTL_SLICE_MS, error);
}

static int call_end(struct push *push, void *unused, struct packd_error *error)
{
    (void)unused;
    return packd_producer_end_stream(push->producer, CTL_SLICE_MS, error);
}

/* As the server's limit counts. */
static uint64_t sample_bytes(const struct packd_sample *sample)
{
    uint64_t bytes = (uint64_t)sample->count * 4 * (sample->labels ? 2 : 1);
    for (size_t i = 0; i < sample->tensor_count; i++) {
        const struct packd_tensor *tensor = &sample->tensors[i];
        uint64_t element = packd_dtype_bytes(tensor->dtype);
        for (uint32_t d = 0; d < tensor->ndim; d++)
            element *= tensor->dims[d];
        bytes += element * tensor->elements;
    }
    return bytes;
}

static int put_sample(struct push *push, struct packd_sample *sample, uint64_t first_seq)
{
    /* It takes no seq, so it is left out before any is counted. */
    if (push->skip_bad && sample_bytes(sample) > push->max_sample_bytes) {
        push->too_large++;
        return CTL_OK;
    }
    if (!push->appends && push->already < first_seq) {
        push->already++;
        return CTL_OK;
    }
    int rc = in_slices(push, call_put, sample);
    if (rc != CTL_OK)
        return rc;
    push->sent++;
    push->tokens += sample->count;
    show_progress(push);
    return CTL_OK;
}

/* A file whose name does not say so may hold JSON lines all the same; `sample` is all of it. */
static bool is_json_as_text(const struct push *push, const struct packd_sample *sample)
{
    struct stat file;
    return strcmp(pd_input_fields(push->input), "whole files") == 0 && sample->tokens[0] == '{' &&
           stat(push->path, &file) == 0 && S_ISREG(file.st_mode);
}

static void tell_fields(struct push *push, const struct packd_sample *sample)
{
    if (push->fields_told)
        return;
    push->fields_told = true;
    if (is_json_as_text(push, sample))
        ctl_note(push->ctl, "%s: taken as text, one sample; name it .jsonl for JSON lines",
                 push->path);
    else if (!push->field && strcmp(pd_input_fields(push->input), "whole files") != 0)
        ctl_note(push->ctl, "samples from %s (choose with --field)", pd_input_fields(push->input));
}

static int open_input(struct push *push)
{
    struct packd_error error = {0};
    struct pd_reader_options reading = {
        .field = push->field, .skip_bad = push->skip_bad, .stop = &ctl_stop};
    if (push->pipe && strcmp(push->path, "-") != 0)
        reading.stdin_name = push->path;
    if (push->pipe && push->spool && lseek(STDIN_FILENO, 0, SEEK_SET) != 0) {
        ctl_message("%s: %s", push->path, strerror(errno));
        return CTL_INPUT;
    }
    if (pd_input_open(push->pipe ? "-" : push->path, &reading, &push->input, &error) != 0)
        return ctl_error(push->ctl, &error);
    return CTL_OK;
}

/* All of the input, before any of it is sent. What only the server knows (its limits) is not
 * checked. */
static int check_input(struct push *push, uint64_t *samples)
{
    const struct pd_client_limits any = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
                                         UINT64_MAX};
    struct packd_error error = {0};
    struct packd_sample sample;
    int rc = open_input(push);
    if (rc != CTL_OK)
        return rc;
    while ((rc = pd_input_next(push->input, &sample, &error)) == 1) {
        tell_fields(push, &sample);
        rc = pd_client_sample_check(&sample, &any, &error);
        if (rc != 0)
            pd_client_error_prefix(&error, "%s: sample %" PRIu64, push->path, *samples);
        if (rc != 0)
            break;
        if (sample_bytes(&sample) > push->largest_bytes) {
            push->largest_bytes = sample_bytes(&sample);
            push->largest = *samples;
        }
        ++*samples;
    }
    if (rc < 0) {
        rc = ctl_error(push->ctl, &error);
        ctl_message(
            "nothing was sent: the whole input is read first; --skip-bad leaves bad records "
            "out");
        return rc;
    }
    return CTL_OK;
}

/* A failed push of a pipe with a name: all that was read in front of the fault is kept, so that
 * what is left to push is known. */
static void tell_kept(struct push *push)
{
    struct packd_producer_stats stats;
    struct packd_error error = {0};
    packd_producer_stats(push->producer, &stats);
    if (!push->appends) {
        ctl_message("%" PRIu64 " samples of it are stored in stream %s; push the same input again "
                    "to go on",
                    stats.durable_seq, push->stream);
        return;
    }
    bool sure = packd_producer_flush(push->producer, CTL_SLICE_MS * 10, &error) == 0;
    packd_producer_stats(push->producer, &stats);
    ctl_message("%s first %" PRIu64 " samples of this input are stored in stream %s of feed %s, so "
                "the same input again would store them twice: push only what follows them "
                "(--skip-bad leaves bad records out), or `packctl delete-stream --stream %s --feed "
                "%s` first",
                sure ? "the" : "at least the", stats.durable_seq - stats.first_seq, push->stream,
                push->feed, push->stream, push->feed);
}

static int push_samples(struct push *push, uint64_t first_seq)
{
    struct packd_error error = {0};
    struct packd_sample sample;
    int rc;
    while ((rc = pd_input_next(push->input, &sample, &error)) == 1) {
        tell_fields(push, &sample);
        rc = put_sample(push, &sample, first_seq);
        if (rc == CTL_OK && ctl_stop)
            rc = CTL_INTERRUPTED;
        if (rc != CTL_OK)
            return rc;
    }
    if (rc < 0)
        return ctl_error(push->ctl, &error);
    if (!push->appends && push->already < first_seq) {
        ctl_message("stream %s holds %" PRIu64 " samples already, the input has only %" PRIu64
                    ": it was pushed with other options; choose another --stream",
                    push->stream, first_seq, push->already);
        return CTL_FAILED;
    }
    return CTL_OK;
}

static void print_left_out(const struct push *push)
{
    const struct pd_reader_counts *c = pd_input_counts(push->input);
    if (c->empty_lines + c->empty_samples > 0)
        ctl_note(push->ctl, "left out: %" PRIu64 " empty lines, %" PRIu64 " empty samples",
                 c->empty_lines, c->empty_samples);
    if (c->skipped_files > 0)
        ctl_note(push->ctl,
                 "left out: %" PRIu64 " files that are binary, links, or packed otherwise than .gz",
                 c->skipped_files);
    if (c->bad > 0)
        ctl_note(push->ctl, "left out: %" PRIu64 " bad records; the last: %s", c->bad,
                 pd_input_last_bad(push->input));
    if (push->too_large > 0)
        ctl_note(push->ctl, "left out: %" PRIu64 " samples too large for the server",
                 push->too_large);
}

/* Ending a feed cannot be undone, so an input of which nothing was stored ends none. */
static int check_stored(struct push *push, const struct packd_producer_stats *stats)
{
    const struct pd_reader_counts *c = pd_input_counts(push->input);
    struct packd_error error = {0};
    if (push->already > push->refused_before || push->sent > stats->rejected)
        return CTL_OK;
    print_left_out(push);
    pd_client_error(&error, PACKD_EINVAL, "NO_SAMPLES",
                    "feed %s is not ended: no sample of %s was stored (%" PRIu64
                    " bytes read, %" PRIu64 " records, %" PRIu64
                    " samples refused); to end it all the same: packctl end-feed --feed %s",
                    push->feed, push->path, c->bytes, c->records,
                    push->refused_before + stats->rejected, push->feed);
    return ctl_error(push->ctl, &error);
}

static int end_feed(struct push *push)
{
    struct packd_error error = {0};
    int64_t limit_ms = push->ctl->timeout_ms >= 0 ? push->ctl->timeout_ms : TIMEOUT_MS;
    int rc = packd_producer_end_feed(push->producer, limit_ms, &push->feed_already_ended, &error);
    push->feed_ended = rc == 0;
    if (rc == 0)
        return CTL_OK;
    rc = ctl_error(push->ctl, &error);
    ctl_message("all samples of it are stored in stream %s, only the feed is not ended: %s"
                "`packctl end-feed --feed %s`",
                push->stream,
                error.grpc_code == GRPC_PERMISSION_DENIED ? "that takes the role admin, as does "
                                                          : "",
                push->feed);
    return rc;
}

static int finish(struct push *push)
{
    struct packd_producer_stats stats;
    int rc = in_slices(push, call_flush, NULL);
    packd_producer_stats(push->producer, &stats);
    if (rc == CTL_OK && push->end_feed)
        rc = check_stored(push, &stats);
    if (rc == CTL_OK && push->end && !stats.stream_ended)
        rc = in_slices(push, call_end, NULL);
    bool complete = push->refused_before + stats.rejected == 0 || push->allow_refused;
    if (rc == CTL_OK && push->end_feed && !complete)
        ctl_message(
            "feed %s is not ended, as samples were refused; to end it all the same: packctl "
            "end-feed --feed %s",
            push->feed, push->feed);
    push->all_stored = rc == CTL_OK;
    return rc == CTL_OK && push->end_feed && complete ? end_feed(push) : rc;
}

/* ---- the summary ----------------------------------------------------------------------------- */

static void print_json(const struct push *push, const struct packd_producer_stats *stats,
                       double seconds)
{
    const struct pd_reader_counts *c = pd_input_counts(push->input);
    const struct {
        const char *name, *value;
    } texts[] = {{"input", push->path},
                 {"server", push->ctl->server},
                 {"feed", push->feed},
                 {"stream", push->stream},
                 {"content_id", push->content_id},
                 {"fields", pd_input_fields(push->input)},
                 {"log_id", stats->log_id}};
    for (size_t i = 0; i < PD_COUNT_OF(texts); i++) {
        printf("%s\"%s\": ", i ? ", " : "{", texts[i].name);
        ctl_json_string(stdout, texts[i].value);
    }
    printf(", \"samples\": %" PRIu64 ", \"already\": %" PRIu64 ", \"pushed\": %" PRIu64
           ", \"tokens\": %" PRIu64 ", \"rejected_before\": %" PRIu64 ", \"rejected_for\": ",
           push->already + push->sent, push->already, push->sent - stats->rejected, push->tokens,
           push->refused_before);
    ctl_json_string(stdout, push->refused_before ? stats->rejected_for : "");
    printf(", \"rejected\": %" PRIu64 ", \"rejects\": {", stats->rejected);
    for (unsigned i = 0; i < push->reason_count; i++) {
        printf("%s", i ? ", " : "");
        ctl_json_string(stdout, push->reasons[i].reason);
        printf(": %" PRIu64, push->reasons[i].count);
    }
    printf("}, \"records\": %" PRIu64 ", \"bad\": %" PRIu64 ", \"empty_lines\": %" PRIu64
           ", \"empty_samples\": %" PRIu64 ", \"files\": %" PRIu64 ", \"skipped_files\": %" PRIu64
           ", \"bytes_read\": %" PRIu64 ", \"next_seq\": %" PRIu64 ", \"durable_seq\": %" PRIu64
           ", \"stream_ended\": %s, \"feed_ended\": %s, \"seconds\": %.3f"
           ", \"tokens_per_second\": %.0f}\n",
           c->records, c->bad + push->too_large, c->empty_lines, c->empty_samples, c->files,
           c->skipped_files, c->bytes, stats->next_seq, stats->durable_seq,
           stats->stream_ended ? "true" : "false", push->feed_ended ? "true" : "false", seconds,
           seconds > 0 ? (double)push->tokens / seconds : 0.0);
}

static const char *reasons_before(const struct packd_producer_stats *stats)
{
    return stats->rejected_for[0] ? stats->rejected_for : "the reason is not known";
}

/* Some samples are not stored: what is, what is not, and which part of either an earlier push did.
 */
static void print_refused(const struct push *push, const struct packd_producer_stats *stats,
                          double seconds)
{
    uint64_t stored_before = push->already - push->refused_before;
    char stored[64] = "", refused[64] = "", tokens[32];
    if (push->sent == 0) {
        printf("stream %s: %" PRIu64 " stored, %" PRIu64 " refused earlier (%s)\n", push->stream,
               stored_before, push->refused_before, reasons_before(stats));
        return;
    }
    if (stored_before > 0)
        snprintf(stored, sizeof stored, " (%" PRIu64 " of them earlier)", stored_before);
    if (push->refused_before > 0)
        snprintf(refused, sizeof refused, " (%" PRIu64 " earlier)", push->refused_before);
    printf("stream %s: %" PRIu64 " samples stored%s, %" PRIu64 " refused%s; %s tokens sent in %.1f "
           "s\n",
           push->stream, stored_before + push->sent - stats->rejected, stored,
           push->refused_before + stats->rejected, refused,
           pd_units_format_count(push->tokens, tokens, sizeof tokens), seconds);
    if (push->refused_before > 0)
        printf("  refused earlier: %" PRIu64 " samples, %s\n", push->refused_before,
               reasons_before(stats));
}

static void print_summary(const struct push *push, const struct packd_producer_stats *stats,
                          double seconds)
{
    char samples[32], tokens[32], rate[32];
    print_left_out(push);
    if (push->ctl->json) {
        print_json(push, stats, seconds);
        return;
    }
    bool refused = push->refused_before + stats->rejected > 0;
    if (refused)
        print_refused(push, stats, seconds);
    else if (push->sent == 0 && push->already == 0)
        printf("stream %s: no sample was found to push\n", push->stream);
    else if (push->sent == 0)
        printf("stream %s: all %s samples were there already; nothing to do\n", push->stream,
               pd_units_format_count(push->already, samples, sizeof samples));
    else
        printf("stream %s: %s samples, %s tokens pushed in %.1f s (%s tokens/s)\n", push->stream,
               pd_units_format_count(push->sent, samples, sizeof samples),
               pd_units_format_count(push->tokens, tokens, sizeof tokens), seconds,
               pd_units_format_count(seconds > 0 ? (uint64_t)((double)push->tokens / seconds) : 0,
                                     rate, sizeof rate));
    if (!refused && push->sent > 0 && push->already > 0)
        printf("  %" PRIu64 " samples were there already\n", push->already);
    for (unsigned i = 0; i < push->reason_count; i++)
        printf("  refused: %" PRIu64 " samples, %s\n", push->reasons[i].count,
               push->reasons[i].reason);
    if (push->feed_ended)
        printf("  feed %s %s\n", push->feed,
               push->feed_already_ended ? "had ended already" : "ended");
}

/* ---- the command ----------------------------------------------------------------------------- */

static int open_producer(struct push *push)
{
    struct packd_error error = {0};
    struct packd_producer_options options = {
        .server = push->ctl->server,
        .token = push->ctl->token,
        .feed = push->feed,
        .stream = push->stream,
        .source = push->source,
        .content_id = push->content_id,
        .timeout_ms = push->ctl->timeout_ms >= 0 ? push->ctl->timeout_ms : TIMEOUT_MS / 4,
        .on_reject = on_reject,
        .ctx = push};
    if (packd_producer_open(&options, &push->producer, &error) != 0)
        return ctl_error(push->ctl, &error);
    return CTL_OK;
}

/* Pushing the same input again sends none of them, whatever the rules have become. */
static int tell_refused(const struct push *push, uint64_t refused)
{
    if (refused == 0 || push->allow_refused)
        return CTL_OK;
    ctl_message("%" PRIu64 " samples were refused and are not stored (--allow-refused: not an "
                "error)",
                refused);
    ctl_message("with other rules, `packctl delete-stream --stream %s --feed %s` and push again; "
                "or push those samples alone to another --stream",
                push->stream, push->feed);
    return CTL_REFUSED;
}

/* Opens the stream, which exists from then on, and pushes. */
static int push_to_server(struct push *push)
{
    struct packd_producer_stats stats;
    int rc = open_input(push);
    if (rc == CTL_OK)
        rc = open_producer(push);
    if (rc != CTL_OK)
        return rc;
    ctl_catch_signals(); /* from here on there is something to end in order */
    packd_producer_stats(push->producer, &stats);
    push->max_sample_bytes = stats.max_sample_bytes;
    /* What a pipe goes on behind is no part of its input. */
    push->refused_before = push->appends ? 0 : stats.rejected_before;
    if (!push->skip_bad && push->largest_bytes > push->max_sample_bytes) {
        ctl_message("%s: sample %" PRIu64 " has %" PRIu64
                    " bytes: the server takes at most %" PRIu64
                    "; nothing was sent; --skip-bad leaves such samples out",
                    push->path, push->largest, push->largest_bytes, push->max_sample_bytes);
        return CTL_FAILED;
    }
    rc = push_samples(push, stats.first_seq);
    if (rc == CTL_OK)
        rc = finish(push);
    packd_producer_stats(push->producer, &stats);
    if (rc == CTL_OK) {
        print_summary(push, &stats, (double)(pd_clock_mono_ns() - push->started_ns) / 1e9);
        rc = tell_refused(push, push->refused_before + stats.rejected);
    } else if (stats.next_seq > stats.first_seq && !push->all_stored) {
        tell_kept(push);
    }
    return rc;
}

/* Without a sample there is nothing to open a stream for. */
static int push_nothing(struct push *push)
{
    const struct packd_producer_stats none = {0};
    int rc = push->end_feed ? check_stored(push, &none) : CTL_OK;
    if (rc == CTL_OK)
        print_summary(push, &none, 0);
    return rc;
}

static int push_all(struct push *push)
{
    uint64_t samples = 0;
    push->started_ns = pd_clock_mono_ns();
    int rc = choose_name(push);
    if (rc == CTL_OK && !push->appends)
        rc = check_input(push, &samples);
    if (rc == CTL_OK && !push->appends && samples == 0 && !push->end) {
        rc = push_nothing(push);
    } else if (rc == CTL_OK) {
        pd_input_close(push->input);
        push->input = NULL;
        rc = push_to_server(push);
    }
    struct packd_error error = {0};
    bool done = rc == CTL_OK || rc == CTL_REFUSED;
    if (packd_producer_close(push->producer, done ? TIMEOUT_MS : 0, &error) != 0 && done)
        rc = ctl_error(push->ctl, &error);
    if (rc == CTL_INTERRUPTED)
        ctl_message("interrupted");
    pd_input_close(push->input);
    if (push->spool)
        fclose(push->spool);
    return rc;
}

static const struct option push_options[] = {{"feed", required_argument, NULL, 'f'},
                                             {"stream", required_argument, NULL, 's'},
                                             {"source", required_argument, NULL, 'S'},
                                             {"field", required_argument, NULL, 'F'},
                                             {"skip-bad", no_argument, NULL, 'b'},
                                             {"end", no_argument, NULL, 'e'},
                                             {"end-feed", no_argument, NULL, 'E'},
                                             {"allow-refused", no_argument, NULL, 'a'},
                                             {0}};

static int run_push(struct ctl *ctl, int argc, char **argv)
{
    struct push push = {.ctl = ctl, .feed = "default"};
    int option;
    while ((option = ctl_getopt(ctl, argc, argv, push_options)) != -1) {
        if (option == 'f')
            push.feed = optarg;
        else if (option == 's' && strlen(optarg) >= sizeof push.stream)
            return ctl_usage(ctl, "--stream: at most 64 bytes");
        else if (option == 's')
            snprintf(push.stream, sizeof push.stream, "%s", optarg);
        else if (option == 'S')
            push.source = optarg;
        else if (option == 'F')
            push.field = optarg;
        push.skip_bad |= option == 'b';
        push.end |= option == 'e';
        push.end_feed |= option == 'E';
        push.allow_refused |= option == 'a';
    }
    if (optind + 1 != argc)
        return ctl_usage(ctl, optind == argc ? "which file, directory, or - for stdin?"
                                             : "one FILE, DIR or - at a time");
    push.path = argv[optind];
    if (ctl_server_check(ctl) != CTL_OK)
        return CTL_USAGE;
    return push_all(&push);
}

const struct ctl_command ctl_push_command = {
    .name = "push",
    .arguments = "[--feed F] [--stream S] [--source X] [--field NAMES] [--skip-bad] "
                 "[--allow-refused] [--end] [--end-feed] FILE|DIR|-",
    .summary = "push a file, a directory or JSON lines from stdin",
    .help =
        "  packctl push train.jsonl                          token ids, or the text found in it\n"
        "  packctl push --field question,answer train.jsonl  these two, joined with a newline\n"
        "  packctl push --source code --end-feed src/        every text file is a sample\n"
        "  generate | packctl push --stream live -           JSON lines, as they come\n\n"
        "  --feed F        feed, else `default`\n"
        "  --stream S      stream; else the input's name and digest, so that pushing it twice is "
        "a\n"
        "                  no-op and pushing it again after a failure goes on where that stopped\n"
        "  --source X      label for mixture weights\n"
        "  --field NAMES   text fields, with commas; else tokens, input_ids, text, content, or "
        "else\n"
        "                  all strings of the first record in their order\n"
        "  --skip-bad      count bad records and samples too large for the server instead of "
        "stopping\n"
        "  --allow-refused exit with 0 though the server refused samples, now or when an earlier "
        "push\n"
        "                  of the same input brought them (else with 6)\n"
        "  --end           end the stream afterwards\n"
        "  --end-feed      end the feed afterwards, whoever else pushes to it; not where the "
        "input\n"
        "                  held no sample, or samples were refused without --allow-refused\n\n"
        "Everything is read once and checked before the first sample is sent; only with - and "
        "--stream\n"
        "samples go out as they come.\n\n"
        "  .jsonl: an object a line; .json: an array of objects; a pipe or device: like -;\n"
        "  each of these, and text, also packed as .gz;\n"
        "  .safetensors: a sample with tokens, media spans and named tensors (docs/MEDIA.md); "
        "other\n"
        "  files: one sample each. Text becomes its UTF-8 bytes. A record may also hold labels, "
        "loss_mask, weight, key, group,\n"
        "  version.\n",
    .run = run_push,
};
