/* Streams: who may push what, and which samples of a block are new.
 *
 * A stream's next_seq is durable with its blocks (same transaction), so a producer that
 * reconnects learns exactly what it need not send again. The newest Hello on a stream owns it:
 * its epoch is handed out here and every append carries it. Sequencer thread. Invariant: seqs of
 * a stream are dense; a sample is in the log once. It does not look into bodies. */
#include "server/sequencer_streams.h"

#include "base/check.h"
#include "base/clock.h"
#include "server/sequencer_feeds.h"
#include "server/sequencer_space.h"
#include "server/sequencer_tables.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- the table by name ---- */

/* The place of `name` in streams_by_name, or where it would go. */
static uint32_t name_place(const struct pd_seq_state *state, const char *name, bool *found)
{
    uint32_t low = 0, high = state->name_count;
    *found = false;
    while (low < high && !*found) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(state->streams[state->streams_by_name[middle]]->name, name);
        if (order == 0) {
            low = middle;
            *found = true;
        } else if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct pd_seq_stream *pd_seq_stream_find(const struct pd_seq_state *state, const char *name)
{
    bool found;
    uint32_t place = name_place(state, name, &found);
    return found ? state->streams[state->streams_by_name[place]] : NULL;
}

static int streams_grow(struct pd_seq_state *state)
{
    if (state->stream_count < state->stream_capacity)
        return 0;
    uint32_t capacity = state->stream_capacity ? state->stream_capacity * 2 : 16;
    struct pd_seq_stream **streams = realloc(state->streams, capacity * sizeof *streams);
    if (!streams)
        return PD_ENOMEM;
    state->streams = streams;
    uint32_t *by_name = realloc(state->streams_by_name, capacity * sizeof *by_name);
    if (!by_name)
        return PD_ENOMEM;
    state->streams_by_name = by_name;
    uint32_t *dirty = realloc(state->dirty_streams, capacity * sizeof *dirty);
    if (!dirty)
        return PD_ENOMEM;
    state->dirty_streams = dirty;
    state->stream_capacity = capacity;
    return 0;
}

void pd_seq_stream_touch(struct pd_seq_state *state, struct pd_seq_stream *stream)
{
    if (!stream->dirty)
        state->dirty_streams[state->dirty_count++] = stream->id;
    stream->dirty = true;
}

int pd_seq_stream_add(struct pd_seq_state *state, struct pd_seq_stream *stream)
{
    PD_CHECK(stream->id == state->stream_count);
    int rc = streams_grow(state);
    if (rc)
        return rc;
    if (!stream->deleted) {
        bool found;
        uint32_t place = name_place(state, stream->name, &found);
        memmove(state->streams_by_name + place + 1, state->streams_by_name + place,
                (state->name_count++ - place) * sizeof *state->streams_by_name);
        state->streams_by_name[place] = stream->id;
    }
    state->streams[state->stream_count++] = stream;
    if (stream->feed == PD_SEQ_NO_FEED)
        return 0;
    struct pd_seq_feed *feed = state->feeds[stream->feed];
    feed->stream_count++;
    feed->streams_ended += stream->ended;
    return 0;
}

static void forget(struct pd_seq_state *state, struct pd_seq_stream *stream)
{
    stream->deleted = true;
    stream->connected = false;
    stream->epoch = 0;
    pd_seq_stream_touch(state, stream);
}

void pd_seq_stream_forget(struct pd_seq_state *state, struct pd_seq_stream *stream)
{
    bool found;
    uint32_t place = name_place(state, stream->name, &found);
    PD_CHECK(found && state->streams_by_name[place] == stream->id);
    memmove(state->streams_by_name + place, state->streams_by_name + place + 1,
            (--state->name_count - place) * sizeof *state->streams_by_name);
    forget(state, stream);
}

void pd_seq_streams_forget(struct pd_seq_state *state, uint32_t feed)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < state->name_count; i++) {
        struct pd_seq_stream *stream = state->streams[state->streams_by_name[i]];
        if (stream->feed == feed)
            forget(state, stream);
        else
            state->streams_by_name[kept++] = stream->id;
    }
    state->name_count = kept;
    for (uint32_t i = 0; i < state->stream_count; i++) {
        struct pd_seq_stream *stream = state->streams[i];
        if (stream->feed != feed)
            continue;
        stream->feed = PD_SEQ_NO_FEED;
        pd_seq_stream_touch(state, stream);
    }
}

/* ---- Hello ---- */

static int check_names(const struct pd_request_open_stream *request, struct pd_error *error)
{
    int rc = pd_name_check("stream", request->stream, error);
    if (!rc && request->source[0])
        rc = pd_name_check("source", request->source, error);
    return rc;
}

static int check_existing(const struct pd_seq_stream *stream, const struct pd_seq_feed *feed,
                          const struct pd_request_open_stream *request, struct pd_error *error)
{
    if (stream->feed != feed->number)
        return pd_error_set(error, PD_EEXIST, "STREAM_IN_OTHER_FEED",
                            "stream '%s' exists in another feed than '%s'; choose another stream "
                            "name (packctl push --stream)",
                            stream->name, feed->name);
    if (strcmp(stream->content_id, request->content_id) != 0)
        return pd_error_set(
            error, PD_EEXIST, "CONTENT_CHANGED",
            "stream '%s' was opened with content_id '%.80s', this call has '%.80s': changed data "
            "needs a stream name of its own (packctl push --stream NAME), or delete the stream "
            "first (packctl delete-stream --feed %s --stream %s)",
            stream->name, stream->content_id, request->content_id, feed->name, stream->name);
    if (strcmp(stream->source, request->source) != 0)
        return pd_error_set(error, PD_EEXIST, "SOURCE_CHANGED",
                            "stream '%s' has source '%s', this call says '%s': push with that "
                            "source, under another stream name (packctl push --stream NAME), or "
                            "delete the stream first (packctl delete-stream --feed %s --stream %s)",
                            stream->name, stream->source, request->source, feed->name,
                            stream->name);
    return 0;
}

static bool names_contain(char (*names)[PD_NAME_MAX + 1], uint32_t count, const char *name,
                          uint32_t *index)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) {
            *index = i;
            return true;
        }
    }
    return false;
}

int pd_seq_unknown_source(const struct pd_seq_feed *feed, const char *source,
                          struct pd_error *error)
{
    const struct pd_feed_config *config = feed->config;
    char known[160];
    int at = 0;
    for (uint32_t i = 0; i < config->source_count && at < (int)sizeof known - 1; i++)
        at += snprintf(known + at, sizeof known - (size_t)at, "%s%s", i ? ", " : "",
                       config->sources[i].name);
    if (at >= (int)sizeof known)
        snprintf(known + sizeof known - 4, 4, "...");
    return pd_error_set(error, PD_EMISMATCH, "UNKNOWN_SOURCE",
                        "feed '%s' has no source '%.64s' in its configuration; it has: %s (packctl "
                        "push --source NAME)",
                        feed->name, source, known);
}

int pd_seq_source_number(struct pd_sequencer *seq, struct pd_seq_feed *feed, const char *source,
                         uint32_t *number, struct pd_error *error)
{
    uint32_t index;
    *number = 0;
    if (!source[0] && feed->config->source_count == 0)
        return 0;
    if (names_contain(feed->sources, feed->source_count, source, &index)) {
        *number = index + 1;
        return 0;
    }
    if (feed->config->source_count > 0)
        return pd_seq_unknown_source(feed, source, error);
    if (feed->source_count >= PD_SEQ_SOURCES_MAX)
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY_SOURCES",
                            "feed '%s' has %u source labels already", feed->name,
                            feed->source_count);
    void *sources = realloc(feed->sources, (feed->source_count + 1) * sizeof *feed->sources);
    if (!sources)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    feed->sources = sources;
    snprintf(feed->sources[feed->source_count++], PD_NAME_MAX + 1, "%s", source);
    *number = feed->source_count;
    pd_buf_clear(&seq->row);
    pd_buf_put_string(&seq->row, source, strlen(source));
    int rc = pd_log_put_row(seq->log, PD_TABLE_SOURCES, feed->number, *number, &seq->row, error);
    return rc ? pd_seq_write_failed(seq, rc, error) : 0;
}

static int check_declared(const struct pd_seq_feed *feed, const char *stream, uint32_t *place,
                          struct pd_error *error)
{
    const struct pd_feed_config *config = feed->config;
    *place = 0;
    if (config->stream_count == 0 ||
        names_contain(config->streams, config->stream_count, stream, place))
        return 0;
    return pd_error_set(
        error, PD_EMISMATCH, "STREAM_NOT_DECLARED",
        "feed '%s' takes the streams in its configuration only, and '%s' is none of them",
        feed->name, stream);
}

static int find_lane(const struct pd_seq_feed *feed, uint32_t declared, uint32_t source,
                     uint32_t *lane, struct pd_error *error)
{
    *lane = 0;
    if (feed->config->rules.merge == PD_MERGE_ORDERED)
        *lane = declared;
    else if (feed->config->source_count > 0)
        *lane = source - 1;
    if (*lane < feed->lane_count && !feed->lane_ended[*lane])
        return 0;
    return pd_error_set(error, PD_EMISMATCH, "FEED_ENDED",
                        "feed '%s': everything this stream could add to has ended; push to another "
                        "feed, or begin this one anew: `packctl delete-feed --feed %s`",
                        feed->name, feed->name);
}

static int check_new(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                     const char *stream, struct pd_error *error)
{
    if (feed->end_declared)
        return pd_error_set(
            error, PD_EMISMATCH, "FEED_ENDED",
            "feed '%s' has ended: it takes no new stream '%s'; push to another feed, or begin this "
            "one anew: `packctl delete-feed --feed %s`",
            feed->name, stream, feed->name);
    if (seq->state.stream_count >= PD_SEQ_STREAMS_MAX)
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY_STREAMS", "the log has %u streams already",
                            seq->state.stream_count);
    return 0;
}

static struct pd_seq_stream *stream_of(const struct pd_request_open_stream *request, uint32_t id,
                                       uint32_t feed)
{
    struct pd_seq_stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    stream->id = id;
    stream->feed = feed;
    memcpy(stream->name, request->stream, sizeof stream->name);
    memcpy(stream->source, request->source, sizeof stream->source);
    memcpy(stream->content_id, request->content_id, sizeof stream->content_id);
    return stream;
}

static int stream_new(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                      struct pd_request_open_stream *request, struct pd_seq_stream **out)
{
    struct pd_error *error = &request->base.error;
    uint32_t source = 0, lane = 0, declared = 0;
    int rc = check_new(seq, feed, request->stream, error);
    if (!rc)
        rc = check_declared(feed, request->stream, &declared, error);
    if (!rc)
        rc = pd_seq_source_number(seq, feed, request->source, &source, error);
    if (!rc)
        rc = find_lane(feed, declared, source, &lane, error);
    if (rc)
        return rc;
    struct pd_seq_stream *stream = stream_of(request, seq->state.stream_count, feed->number);
    if (!stream || pd_seq_stream_add(&seq->state, stream) != 0) {
        free(stream);
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    }
    stream->source_id = source;
    stream->lane = lane;
    pd_seq_stream_touch(&seq->state, stream);
    pd_buf_clear(&seq->body);
    pd_buf_put_u32(&seq->body, stream->id);
    pd_seq_stream_encode(stream, &seq->body);
    feed->announce = true;
    *out = stream;
    return pd_seq_record(seq, PD_RECORD_STREAM, feed->number);
}

/* "a1b2..." for texts. */
static const char *in_hex(const struct pd_tokenizer *tokenizer, char text[2 * PD_TOKENIZER_MAX + 1])
{
    text[0] = 0;
    for (uint32_t i = 0; i < tokenizer->size; i++)
        snprintf(text + 2 * i, 3, "%02x", tokenizer->bytes[i]);
    return text;
}

static int check_tokenizer(const struct pd_seq_feed *feed,
                           const struct pd_request_open_stream *request, struct pd_error *error)
{
    const struct pd_tokenizer *has = &feed->tokenizer, *says = &request->tokenizer;
    char text[2][2 * PD_TOKENIZER_MAX + 1];
    if (says->size == 0 || has->size == 0 ||
        (says->size == has->size && memcmp(says->bytes, has->bytes, has->size) == 0))
        return 0;
    return pd_error_set(error, PD_EMISMATCH, "TOKENIZER_MISMATCH",
                        "feed '%s' holds tokens of tokenizer %s, stream '%s' brings those of %s",
                        feed->name, in_hex(has, text[0]), request->stream, in_hex(says, text[1]));
}

/* The first one that is stated is the feed's from then on. */
static int keep_tokenizer(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                          const struct pd_request_open_stream *request)
{
    if (request->tokenizer.size == 0 || feed->tokenizer.size > 0)
        return 0;
    feed->tokenizer = request->tokenizer;
    feed->dirty = true;
    pd_buf_clear(&seq->body);
    pd_buf_put_string(&seq->body, (const char *)feed->tokenizer.bytes, feed->tokenizer.size);
    return pd_seq_record(seq, PD_RECORD_TOKENIZER, feed->number);
}

/* ---- whose a stream is ---- */

int pd_seq_epochs_init(struct pd_sequencer *seq)
{
    seq->stream_epochs = calloc(PD_SEQ_STREAMS_MAX, sizeof *seq->stream_epochs);
    return seq->stream_epochs ? 0 : PD_ENOMEM;
}

void pd_seq_epochs_tell(struct pd_sequencer *seq)
{
    for (uint32_t i = 0; i < seq->state.stream_count; i++)
        atomic_store(&seq->stream_epochs[i], seq->state.streams[i]->epoch);
}

bool pd_sequencer_owns(const struct pd_sequencer *seq, uint32_t stream_id, uint64_t epoch)
{
    return stream_id < PD_SEQ_STREAMS_MAX && atomic_load(&seq->stream_epochs[stream_id]) == epoch;
}

int pd_seq_open_stream(struct pd_sequencer *seq, struct pd_request_open_stream *request)
{
    struct pd_error *error = &request->base.error;
    struct pd_seq_feed *feed = NULL;
    int rc = pd_seq_feed_named(seq, request->feed, &feed, error);
    if (!rc)
        rc = check_names(request, error);
    if (!rc)
        rc = check_tokenizer(feed, request, error);
    if (rc)
        return rc;
    struct pd_seq_stream *stream = pd_seq_stream_find(&seq->state, request->stream);
    rc = stream ? check_existing(stream, feed, request, error)
                : stream_new(seq, feed, request, &stream);
    if (!rc)
        rc = keep_tokenizer(seq, feed, request);
    if (rc)
        return rc;
    stream->epoch = ++seq->next_epoch;
    atomic_store(&seq->stream_epochs[stream->id], stream->epoch);
    stream->connected = true;
    memcpy(stream->producer, request->producer, sizeof stream->producer);
    request->feed_index = feed->index;
    request->stream_id = stream->id;
    request->lane = stream->lane;
    request->source_id = stream->source_id;
    request->epoch = stream->epoch;
    request->next_seq = stream->next_seq;
    request->rejected = stream->rejected;
    memcpy(request->rejected_for, stream->rejected_for, sizeof request->rejected_for);
    request->ended = stream->ended;
    return 0;
}

/* ---- Append ---- */

static int stream_owned(struct pd_sequencer *seq, uint32_t id, uint64_t epoch,
                        struct pd_seq_stream **out, struct pd_error *error)
{
    if (id >= seq->state.stream_count)
        return pd_error_set(error, PD_ENOTFOUND, "UNKNOWN_STREAM", "there is no stream number %u",
                            id);
    struct pd_seq_stream *stream = seq->state.streams[id];
    if (stream->epoch != epoch)
        return pd_error_set(error, PD_EFENCED, "FENCED",
                            "another call has opened stream '%s' since, or it was deleted",
                            stream->name);
    *out = stream;
    return 0;
}

static int check_block(const struct pd_block *block, const struct pd_seq_stream *stream,
                       struct pd_error *error)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < block->piece_count; i++)
        bytes += block->pieces[i].size_bytes;
    int rc = pd_block_head_check(&block->head, error);
    if (!rc && bytes != block->head.body_bytes)
        rc =
            pd_error_set(error, PD_EINVAL, "BAD_BLOCK",
                         "stream '%s': a body of %llu bytes where its head says %llu", stream->name,
                         (unsigned long long)bytes, (unsigned long long)block->head.body_bytes);
    if (!rc && pd_block_head_size(&block->head) + 8 > PD_BLOCK_HEAD_BYTES_MAX)
        rc = pd_error_set(
            error, PD_ELIMIT, "HEAD_TOO_LARGE",
            "stream '%s': a block head of %zu bytes is more than %u; send fewer samples a block",
            stream->name, pd_block_head_size(&block->head), PD_BLOCK_HEAD_BYTES_MAX);
    return rc;
}

static int check_order(const struct pd_seq_stream *stream, const struct pd_seq_feed *feed,
                       const struct pd_block_head *head, struct pd_error *error)
{
    if (head->first_seq > stream->next_seq)
        return pd_error_set(error, PD_EINVAL, "SEQ_GAP",
                            "stream '%s': seq %llu came where %llu is expected", stream->name,
                            (unsigned long long)head->first_seq,
                            (unsigned long long)stream->next_seq);
    if (head->first_seq + head->count <= stream->next_seq)
        return 0;
    if (stream->ended)
        return pd_error_set(error, PD_EMISMATCH, "STREAM_ENDED", "stream '%s' ended at seq %llu",
                            stream->name, (unsigned long long)stream->next_seq);
    if (feed->end_declared)
        return pd_error_set(error, PD_EMISMATCH, "FEED_ENDED",
                            "feed '%s' has ended: it takes no more samples; push to another feed, "
                            "or begin this one anew: `packctl delete-feed --feed %s`",
                            feed->name, feed->name);
    return 0;
}

/* The feed's count for this reason; the last place is for all that came when the others were
 * taken. */
static uint64_t *refusal_place(struct pd_seq_feed *feed, const char *reason)
{
    for (uint32_t i = 0; i < feed->refusal_count; i++)
        if (strcmp(feed->refusals[i].reason, reason) == 0)
            return &feed->refusals[i].count;
    if (feed->refusal_count == PD_REFUSAL_REASONS_MAX)
        return &feed->refusals[PD_REFUSAL_REASONS_MAX - 1].count;
    struct pd_refusal_count *place = &feed->refusals[feed->refusal_count++];
    bool last = feed->refusal_count == PD_REFUSAL_REASONS_MAX;
    snprintf(place->reason, sizeof place->reason, "%s", last ? "other" : reason);
    return &place->count;
}

/* Adds the reason to the stream's, unless it is there or has no room. */
static void note_reason(struct pd_seq_stream *stream, const char *reason)
{
    size_t used = strlen(stream->rejected_for), size = strlen(reason);
    for (const char *at = stream->rejected_for; *at; at += strspn(at, ", ")) {
        size_t word = strcspn(at, ",");
        if (word == size && memcmp(at, reason, size) == 0)
            return;
        at += word;
    }
    if (used + size + 3 <= sizeof stream->rejected_for)
        snprintf(stream->rejected_for + used, sizeof stream->rejected_for - used, "%s%s",
                 used ? ", " : "", reason);
}

/* Those of duplicates were counted when they came first. */
static void count_refusals(struct pd_seq_stream *stream, struct pd_seq_feed *feed,
                           const struct pd_request_append *request, uint32_t first_index)
{
    for (uint32_t i = 0; i < request->refusal_count; i++) {
        const struct pd_refusal *refusal = &request->refusals[i];
        uint32_t end = refusal->index + refusal->count;
        uint32_t from = refusal->index > first_index ? refusal->index : first_index;
        if (end <= from)
            continue;
        *refusal_place(feed, refusal->reason) += end - from;
        note_reason(stream, refusal->reason);
        feed->dirty = true;
    }
}

/* Samples of the block that are new: counted in the stream. */
static void count_samples(struct pd_sequencer *seq, struct pd_seq_stream *stream,
                          struct pd_seq_feed *feed, const struct pd_block_head *head)
{
    struct pd_seq_counts *counts = &seq->counts[feed->index];
    uint64_t samples = 0, tokens = 0, rejected = 0, tensor_bytes = 0;
    for (uint32_t i = head->first_index; i < head->count; i++) {
        if (head->rejected && head->rejected[i]) {
            rejected++;
            continue;
        }
        samples++;
        tokens += head->lengths[i];
        for (uint32_t k = 0; k < head->tensor_count; k++)
            tensor_bytes += pd_block_head_extent(head, k, i).size_bytes;
    }
    stream->next_seq = head->first_seq + head->count;
    stream->samples += samples;
    stream->tokens += tokens;
    stream->rejected += rejected;
    uint64_t bytes = tokens * sizeof(int32_t) * (head->has_labels ? 2 : 1) + tensor_bytes;
    stream->bytes += bytes;
    stream->blocks++;
    stream->last_wall_ns = pd_clock_wall_ns();
    pd_seq_stream_touch(&seq->state, stream);
    pd_arrivals_note(&feed->arrivals, head->position, stream->last_wall_ns);
    counts->blocks++;
    counts->samples += samples;
    counts->tokens += tokens;
    counts->bytes += bytes;
}

static void count_duplicates(struct pd_sequencer *seq, struct pd_seq_stream *stream,
                             struct pd_request_append *request, uint32_t count)
{
    request->duplicates = count;
    stream->duplicates += count;
    seq->counts[seq->state.feeds[stream->feed]->index].duplicates += count;
}

static int append_new(struct pd_sequencer *seq, struct pd_seq_stream *stream,
                      struct pd_seq_feed *feed, struct pd_request_append *request)
{
    struct pd_error *error = &request->base.error;
    struct pd_block_head *head = &request->block->head;
    head->feed = feed->number;
    head->lane = stream->lane;
    head->stream = stream->id;
    head->source = stream->source_id;
    head->first_index = (uint32_t)(stream->next_seq - head->first_seq);
    int rc = check_block(request->block, stream, error);
    if (!rc)
        rc = pd_seq_space_check(seq, feed, request->block, error);
    if (!rc)
        rc = pd_seq_names_number(seq, feed, request->block, error);
    if (rc)
        return rc;
    rc = pd_log_append_block(seq->log, request->block, error);
    if (rc)
        return pd_seq_write_failed(seq, rc, error);
    count_duplicates(seq, stream, request, head->first_index);
    count_refusals(stream, feed, request, head->first_index);
    count_samples(seq, stream, feed, head);
    struct pd_log_block_facts facts = {.position = head->position,
                                       .held_bytes = pd_log_block_held_bytes(request->block),
                                       .lane = stream->lane,
                                       .count = head->count,
                                       .first_index = head->first_index};
    rc = pd_seq_space_add(seq, feed, &facts);
    if (rc) {
        pd_error_set(error, rc, "NO_MEMORY", "out of memory");
        return pd_seq_write_failed(seq, rc, error);
    }
    stream->log_bytes += facts.held_bytes;
    feed->dirty = feed->dirty || !feed->has_data;
    feed->has_data = true;
    feed->plan_wanted = true;
    feed->appended_since_flush = true;
    return 0;
}

int pd_seq_append(struct pd_sequencer *seq, struct pd_request_append *request)
{
    struct pd_error *error = &request->base.error;
    struct pd_block_head *head = &request->block->head;
    struct pd_seq_stream *stream = NULL;
    int rc = stream_owned(seq, head->stream, request->epoch, &stream, error);
    if (rc)
        return rc;
    struct pd_seq_feed *feed = seq->state.feeds[stream->feed];
    request->durable_seq = stream->next_seq;
    if (head->count == 0 || head->first_seq > UINT64_MAX - head->count)
        return pd_error_set(error, PD_EINVAL, "BAD_BLOCK",
                            "stream '%s': an empty block, or seqs past the last number",
                            stream->name);
    rc = check_order(stream, feed, head, error);
    if (rc)
        return rc;
    if (head->first_seq + head->count <= stream->next_seq) {
        count_duplicates(seq, stream, request, head->count);
        return 0;
    }
    rc = append_new(seq, stream, feed, request);
    request->durable_seq = stream->next_seq;
    return rc;
}

/* ---- EndOfStream ---- */

int pd_seq_end_stream(struct pd_sequencer *seq, struct pd_request_end_stream *request)
{
    struct pd_error *error = &request->base.error;
    struct pd_seq_stream *stream = NULL;
    int rc = stream_owned(seq, request->stream_id, request->epoch, &stream, error);
    if (rc)
        return rc;
    if (request->next_seq != stream->next_seq)
        return pd_error_set(error, PD_EINVAL, "SEQ_GAP",
                            "stream '%s' cannot end at seq %llu: %llu is expected", stream->name,
                            (unsigned long long)request->next_seq,
                            (unsigned long long)stream->next_seq);
    if (stream->ended)
        return 0;
    struct pd_seq_feed *feed = seq->state.feeds[stream->feed];
    pd_buf_clear(&seq->body);
    pd_buf_put_u32(&seq->body, stream->id);
    pd_buf_put_u64(&seq->body, stream->next_seq);
    rc = pd_seq_record(seq, PD_RECORD_END_STREAM, feed->number);
    if (rc)
        return rc;
    stream->ended = true;
    pd_seq_stream_touch(&seq->state, stream);
    feed->streams_ended++;
    feed->announce = true;
    return pd_seq_feed_check_end(seq, feed, stream->lane, error);
}

/* ---- the call is gone ---- */

int pd_seq_close_stream(struct pd_sequencer *seq, struct pd_request_close_stream *request)
{
    PD_CHECK(request->stream_id < seq->state.stream_count);
    struct pd_seq_stream *stream = seq->state.streams[request->stream_id];
    if (stream->epoch == request->epoch)
        stream->connected = false;
    return 0;
}
