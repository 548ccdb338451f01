/* The opening of Ingest.Push: Hello is checked, a place among the calls taken, the stream opened.
 *
 * Place in the flow: first message of a call; the sequencer decides about names, sources and
 * fencing. Owning thread: the call's. What the feed's configuration alone decides (limits,
 * vocabulary) is checked here. */
#include "server/rpc/push.h"

#include <stdio.h>
#include <string.h>

#define BLOCK_SAMPLES_MAX 16384
#define TEXT_MAX 255
#define LANE_WINDOW_PART 4

/* Samples of the source may get shorter on their way into the window: what is too long is the
 * planner's to say. */
static bool is_pruned(const struct pd_feed_config *feed, const char *source)
{
    for (uint32_t i = 0; i < feed->drop_views_count; i++)
        if (strcmp(feed->drop_views[i].source, source) == 0)
            return true;
    for (uint32_t i = 0; i < feed->keep_frames_count; i++)
        if (strcmp(feed->keep_frames[i].source, source) == 0)
            return true;
    return false;
}

static void set_rules(struct push *push, const Packd__V1__Hello *hello)
{
    const struct pd_config *config = push_rpc(push)->options.config;
    const struct pd_feed_config *feed = push->feed;
    bool pruned = is_pruned(feed, hello->source[0] ? hello->source : "default");
    uint64_t block = pd_credit_block_bytes(&push_rpc(push)->credit);

    push->rules = (struct pd_door_rules){
        .seq_len = feed->rules.seq_len,
        .reject_over_length = feed->rules.over_length == PD_OVER_REJECT && !pruned,
        .split_over_length = feed->rules.over_length == PD_OVER_SPLIT && !pruned,
        .vocab_size = feed->vocab_size,
        .sample_bytes_max = config->max_sample_bytes < block ? config->max_sample_bytes : block,
        .block_bytes_max = block,
        .block_samples_max = BLOCK_SAMPLES_MAX,
        .patches_max = feed->rules.patches_max,
        .mrope = feed->layout.positions == PD_POSITIONS_MROPE,
        .media_tokens = feed->media_tokens,
        .media_token_count = feed->media_token_count,
        .check_shifted = feed->check_shifted_labels && !hello->allow_shifted_looking_labels,
    };
}

/* Credit that nobody can take back should not be most of what the lane may have in the log. */
static uint64_t window_bytes(const struct push *push)
{
    const struct pd_rpc_options *options = &push_rpc(push)->options;
    return pd_config_lane_bytes(options->config, push->feed, pd_log_limit_bytes(options->log)) /
           LANE_WINDOW_PART;
}

static int check_hello(struct push *push, const Packd__V1__Hello *hello, const char *feed,
                       struct pd_error *error)
{
    const char *log_id = pd_log_id(push_rpc(push)->options.log);

    push->feed = pd_config_feed(push_rpc(push)->options.config, feed, &push->feed_index);
    if (!push->feed)
        return pd_error_set(error, PD_ENOTFOUND, "UNKNOWN_FEED", "there is no feed %s", feed);
    if (hello->log_id[0] && strcmp(hello->log_id, log_id) != 0)
        return pd_error_set(error, PD_EMISMATCH, "LOG_ID",
                            "this server's log is %s, Hello expects %s", log_id, hello->log_id);
    if (hello->vocab_size && push->feed->vocab_size && hello->vocab_size != push->feed->vocab_size)
        return pd_error_set(error, PD_EMISMATCH, "VOCAB_MISMATCH",
                            "feed %s has vocab_size %u, Hello states %u", feed,
                            push->feed->vocab_size, hello->vocab_size);
    if (strlen(hello->producer) > TEXT_MAX || strlen(hello->content_id) > TEXT_MAX ||
        hello->tokenizer_digest.len > 64)
        return pd_error_set(error, PD_EINVAL, "BAD_RANGE",
                            "producer and content_id take at most %d bytes, tokenizer_digest 64",
                            TEXT_MAX);
    return 0;
}

static void on_closed(struct pd_ask *ask)
{
    pd_ask_free(ask);
}

void push_close_stream(struct push *push)
{
    struct pd_ask *ask = pd_ask_new(&push->call, PD_REQUEST_CLOSE_STREAM, on_closed);

    if (!ask)
        return;
    ask->of.close_stream.stream_id = push->stream_id;
    ask->of.close_stream.epoch = push->epoch;
    if (pd_ask_submit(ask) != 0)
        pd_ask_free(ask);
}

static void on_opened(struct pd_ask *ask)
{
    struct push *push = push_of(ask->call);
    const struct pd_request_open_stream *request = &ask->of.open_stream;

    push->stream_id = request->stream_id;
    push->epoch = request->epoch;
    if (pd_call_is_over(&push->call)) {
        if (request->base.result == 0)
            push_close_stream(push);
    } else if (request->base.result != 0) {
        push_fail_request(push, &request->base);
    } else {
        push->lane = request->lane;
        push->source_id = request->source_id;
        push->next_seq = push->durable_seq = request->next_seq;
        push->stream_was_ended = request->ended;
        push->rejected_before = request->rejected;
        memcpy(push->rejected_for, request->rejected_for, sizeof push->rejected_for);
        push->state = STREAMING;
        push->welcome_due = true;
        push_output(push);
        pd_call_read(&push->call);
    }
    pd_ask_free(ask);
}

void push_take_hello(struct push *push, const Packd__V1__Hello *hello)
{
    struct pd_ask *ask = pd_ask_new(&push->call, PD_REQUEST_OPEN_STREAM, on_opened);
    struct pd_error error;

    if (!ask)
        return;
    struct pd_request_open_stream *request = &ask->of.open_stream;
    size_t tokenizer = hello->tokenizer_digest.len;
    if (tokenizer <= sizeof(request->tokenizer.bytes)) { /* else check_hello refuses it */
        if (tokenizer > 0)
            memcpy(request->tokenizer.bytes, hello->tokenizer_digest.data, tokenizer);
        request->tokenizer.size = (uint8_t)tokenizer;
    }
    const char *source = hello->source[0] ? hello->source : "default";
    if (atomic_load(&push_rpc(push)->draining)) {
        pd_call_fail_draining(&push->call);
    } else if (pd_feed_name_copy(request->feed, hello->feed, &error) != 0 ||
               pd_name_copy(request->stream, "stream", hello->stream, &error) != 0 ||
               pd_name_copy(request->source, "source", source, &error) != 0 ||
               pd_access_feed(push->call.who, request->feed, &error) != 0 ||
               check_hello(push, hello, request->feed, &error) != 0 ||
               pd_credit_open(&push->credit, &push_rpc(push)->credit, push->call.peer_slot,
                              window_bytes(push), &error) != 0) {
        pd_call_fail(&push->call, &error);
    } else {
        set_rules(push, hello);
        (void)snprintf(request->producer, sizeof(request->producer), "%s", hello->producer);
        (void)snprintf(request->content_id, sizeof(request->content_id), "%s", hello->content_id);
        push->state = OPENING;
        if (pd_ask_submit(ask) == 0)
            return;
    }
    pd_ask_free(ask);
}
