/* Records that change what is planned: new weights, samples to leave out.
 *
 *   request ──check──> planner hears of it ──> record{first pack, what} ──> acts from that pack on
 *
 * The first pack is the one behind the horizon: everything planned so far stays. Sequencer thread.
 * Invariant: the record holds all that replay needs, in numbers of the log. It does not plan. */
#include "server/sequencer_settings.h"

#include "base/log.h"
#include "server/sequencer_planning.h"
#include "server/sequencer_streams.h"

#include <inttypes.h>
#include <stdio.h>

/* Where the planner has stopped, planner_control will say so. */
static uint64_t change_pack(const struct pd_seq_feed *feed)
{
    return feed->planner ? pd_planner_change_pack(feed->planner) : feed->packs;
}

static int check_open(const struct pd_seq_feed *feed, struct pd_error *error)
{
    if (!feed->ended)
        return 0;
    return pd_error_set(error, PD_EMISMATCH, "FEED_ENDED",
                        "feed '%s' has ended: all its packs are made", feed->name);
}

/* ---- SetMixture ---- */

int pd_seq_mixture_write(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                         const uint32_t weights[PD_LANES_WEIGHTED_MAX], uint64_t *pack,
                         struct pd_error *error)
{
    struct pd_control control = {.kind = PD_CONTROL_WEIGHTS, .from_pack = change_pack(feed)};
    memcpy(control.weights, weights, sizeof control.weights);
    int rc = pd_seq_planner_control(seq, feed, &control, error);
    if (rc)
        return rc;
    *pack = control.from_pack;
    memcpy(feed->weights, weights, sizeof feed->weights);
    feed->dirty = feed->plan_wanted = true;
    pd_buf_clear(&seq->body);
    pd_buf_put_u64(&seq->body, control.from_pack);
    for (uint32_t i = 0; i < PD_LANES_WEIGHTED_MAX; i++)
        pd_buf_put_u32(&seq->body, weights[i]);
    return pd_seq_record(seq, PD_RECORD_MIXTURE, feed->number);
}

/* The lane of a source, one weight of the request each. */
static int take_weight(const struct pd_seq_feed *feed, const struct pd_source_weight *from,
                       uint32_t *weights, bool *named, struct pd_error *error)
{
    const struct pd_feed_config *config = feed->config;
    uint32_t lane = 0;
    while (lane < config->source_count && strcmp(config->sources[lane].name, from->source) != 0)
        lane++;
    if (lane == config->source_count)
        return pd_error_set(error, PD_EMISMATCH, "UNKNOWN_SOURCE",
                            "feed '%s' has no source '%.64s' in its configuration", feed->name,
                            from->source);
    if (named[lane])
        return pd_error_set(error, PD_EINVAL, "BAD_MIXTURE", "source '%s' is named twice",
                            config->sources[lane].name);
    if (from->weight > PD_LANE_WEIGHT_MAX)
        return pd_error_set(
            error, PD_EINVAL, "BAD_RANGE", "weight %llu of source '%s': at most %u is possible",
            (unsigned long long)from->weight, config->sources[lane].name, PD_LANE_WEIGHT_MAX);
    named[lane] = true;
    weights[lane] = (uint32_t)from->weight;
    return 0;
}

static int take_weights(const struct pd_seq_feed *feed,
                        const struct pd_request_set_mixture *request, uint32_t *weights,
                        struct pd_error *error)
{
    const struct pd_feed_config *config = feed->config;
    bool named[PD_LANES_WEIGHTED_MAX] = {0};
    uint64_t sum = 0;
    if (config->source_count == 0 || config->rules.merge == PD_MERGE_ORDERED)
        return pd_error_set(error, PD_EINVAL, "BAD_MIXTURE",
                            "feed '%s' has no `sources` in its configuration: there is nothing to "
                            "mix",
                            feed->name);
    for (size_t i = 0; i < request->weight_count; i++) {
        int rc = take_weight(feed, &request->weights[i], weights, named, error);
        if (rc)
            return rc;
    }
    for (uint32_t lane = 0; lane < config->source_count; lane++) {
        sum += weights[lane];
        if (!named[lane])
            return pd_error_set(error, PD_EINVAL, "BAD_MIXTURE",
                                "source '%s' is left out: name every source of feed '%s' once",
                                config->sources[lane].name, feed->name);
    }
    return sum > 0 ? 0
                   : pd_error_set(error, PD_EINVAL, "BAD_MIXTURE",
                                  "feed '%s': all weights are 0; one must be above", feed->name);
}

int pd_seq_set_mixture(struct pd_sequencer *seq, struct pd_request_set_mixture *request)
{
    struct pd_error *error = &request->base.error;
    struct pd_seq_feed *feed = NULL;
    uint32_t weights[PD_LANES_WEIGHTED_MAX] = {0};
    int rc = pd_seq_feed_named(seq, request->feed, &feed, error);
    if (!rc)
        rc = take_weights(feed, request, weights, error);
    if (!rc)
        rc = check_open(feed, error);
    if (rc)
        return rc;
    request->base.effective_pack = change_pack(feed);
    if (memcmp(weights, feed->weights, sizeof weights) == 0)
        return 0;
    request->base.record = pd_log_next_position(seq->log);
    return pd_seq_mixture_write(seq, feed, weights, &request->base.effective_pack, error);
}

/* ---- SkipSamples ---- */

enum { BY_STREAM = 1, BY_SOURCE = 2, BY_GROUP = 4, BY_KEY = 8, ONE_SAMPLE = 16 };

void pd_seq_rule_encode(const struct pd_control *control, struct pd_buf *body)
{
    const struct pd_skip_rule *rule = &control->rule;
    bool one = control->kind == PD_CONTROL_SKIP;
    pd_buf_put_u64(body, control->from_pack);
    pd_buf_put_u8(body,
                  (uint8_t)((rule->by_stream ? BY_STREAM : 0) | (rule->by_source ? BY_SOURCE : 0) |
                            (rule->by_group ? BY_GROUP : 0) | (rule->by_key ? BY_KEY : 0) |
                            (one ? ONE_SAMPLE : 0)));
    pd_buf_put_u32(body, one ? control->stream : rule->stream);
    pd_buf_put_u32(body, rule->source);
    pd_buf_put_u64(body, one ? control->seq : rule->first_seq);
    pd_buf_put_u64(body, rule->last_seq);
    pd_buf_put_u64(body, rule->group);
    pd_buf_put_u64(body, rule->key);
    pd_buf_put_u64(body, rule->version_below);
}

void pd_seq_rule_decode(struct pd_control *control, struct pd_reader *body)
{
    struct pd_skip_rule *rule = &control->rule;
    control->from_pack = pd_reader_u64(body);
    uint8_t flags = pd_reader_u8(body);
    control->kind = flags & ONE_SAMPLE ? PD_CONTROL_SKIP : PD_CONTROL_SKIP_RULE;
    rule->by_stream = flags & BY_STREAM;
    rule->by_source = flags & BY_SOURCE;
    rule->by_group = flags & BY_GROUP;
    rule->by_key = flags & BY_KEY;
    control->stream = rule->stream = pd_reader_u32(body);
    rule->source = pd_reader_u32(body);
    control->seq = rule->first_seq = pd_reader_u64(body);
    rule->last_seq = pd_reader_u64(body);
    rule->group = pd_reader_u64(body);
    rule->key = pd_reader_u64(body);
    rule->version_below = pd_reader_u64(body);
}

/* Names of the request as numbers of the log. */
static int resolve(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                   struct pd_request_skip_samples *request)
{
    struct pd_error *error = &request->base.error;
    struct pd_skip_rule *rule = &request->rule;
    if (request->stream[0]) {
        const struct pd_seq_stream *stream = pd_seq_stream_find(&seq->state, request->stream);
        if (!stream || stream->feed != feed->number)
            return pd_error_set(error, PD_ENOTFOUND, "UNKNOWN_STREAM",
                                "feed '%s' has no stream '%s'", feed->name, request->stream);
        rule->by_stream = true;
        rule->stream = stream->id;
    }
    if (!request->source[0])
        return 0;
    uint32_t source = 0;
    while (source < feed->source_count && strcmp(feed->sources[source], request->source) != 0)
        source++;
    if (source == feed->source_count)
        return pd_error_set(error, PD_EMISMATCH, "UNKNOWN_SOURCE",
                            "no stream of feed '%s' has the source '%s'", feed->name,
                            request->source);
    rule->by_source = true;
    rule->source = source + 1;
    return 0;
}

static int check_rule(const struct pd_skip_rule *rule, struct pd_error *error)
{
    bool any = rule->by_stream || rule->by_source || rule->by_group || rule->by_key ||
               rule->version_below > 0;
    if (!any)
        return pd_error_set(error, PD_EINVAL, "BAD_RANGE",
                            "set at least one of stream, source, group, version_below and key");
    if (rule->first_seq > rule->last_seq)
        return pd_error_set(error, PD_EINVAL, "BAD_RANGE", "first_seq %llu is above last_seq %llu",
                            (unsigned long long)rule->first_seq,
                            (unsigned long long)rule->last_seq);
    return 0;
}

/* One sample that is there already needs no rule of its own: there may be many of these. */
static bool names_one(const struct pd_sequencer *seq, const struct pd_skip_rule *rule)
{
    return rule->by_stream && rule->first_seq == rule->last_seq && !rule->by_source &&
           !rule->by_group && !rule->by_key && rule->version_below == 0 &&
           rule->first_seq < seq->state.streams[rule->stream]->next_seq;
}

/* The log line says all that was selected by: it is what remains when somebody asks where samples
 * went. Keys and groups are known by their digest. */
static void tell_skip(const struct pd_seq_feed *feed, const struct pd_request_skip_samples *request,
                      uint64_t from_pack)
{
    const struct pd_skip_rule *rule = &request->rule;
    char last[24] = "any", group[24] = "any", key[24] = "any";
    if (rule->last_seq != UINT64_MAX)
        snprintf(last, sizeof last, "%" PRIu64, rule->last_seq);
    if (rule->by_group)
        snprintf(group, sizeof group, "%016" PRIx64, rule->group);
    if (rule->by_key)
        snprintf(key, sizeof key, "%016" PRIx64, rule->key);
    pd_log(PD_LOG_WARN, "samples_skipped",
           "feed=%s stream=%s source=%s first_seq=%" PRIu64 " last_seq=%s group_xxh3=%s "
           "key_xxh3=%s version_below=%" PRIu64 " from_pack=%" PRIu64 " why=\"%s\"",
           feed->name, request->stream[0] ? request->stream : "any",
           request->source[0] ? request->source : "any", rule->first_seq, last, group, key,
           rule->version_below, from_pack, request->why);
}

int pd_seq_skip_samples(struct pd_sequencer *seq, struct pd_request_skip_samples *request)
{
    struct pd_error *error = &request->base.error;
    struct pd_seq_feed *feed = NULL;
    int rc = pd_seq_feed_named(seq, request->feed, &feed, error);
    if (!rc)
        rc = resolve(seq, feed, request);
    if (!rc)
        rc = check_rule(&request->rule, error);
    if (!rc)
        rc = check_open(feed, error);
    if (rc)
        return rc;
    struct pd_control control = {.kind = PD_CONTROL_SKIP_RULE,
                                 .from_pack = change_pack(feed),
                                 .stream = request->rule.stream,
                                 .seq = request->rule.first_seq,
                                 .rule = request->rule};
    if (names_one(seq, &request->rule))
        control.kind = PD_CONTROL_SKIP;
    rc = pd_seq_planner_control(seq, feed, &control, error);
    if (rc)
        return rc;
    tell_skip(feed, request, control.from_pack);
    feed->plan_wanted = true;
    request->base.effective_pack = control.from_pack;
    request->base.record = pd_log_next_position(seq->log);
    pd_buf_clear(&seq->body);
    pd_seq_rule_encode(&control, &seq->body);
    pd_buf_put_string(&seq->body, request->why, strlen(request->why));
    return pd_seq_record(seq, PD_RECORD_SKIP_SAMPLES, feed->number);
}
