/* Plans of the sequencer against a direct planner run over the same heads, with a copy of the
 * log taken before every event and resumed from there; snapshots, and a log whose plans are not
 * this planner's. */
#include "tests/unit/sequencer_case.h"

#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define SEED 20240607ull

/* ---- plans against a direct planner run, and restarts ---- */

enum event_kind {
    EVENT_PUSH,
    EVENT_FLUSH,
    EVENT_DELIVER,
    EVENT_END_STREAM,
    EVENT_END_FEED,
    EVENT_SKIP,    /* of `stream`, from first_seq on, `packs` samples */
    EVENT_MIXTURE, /* the first three of `lengths` */
    EVENT_RULES,   /* a restart with a file that has other rules: live_of() */
};

struct event {
    enum event_kind kind;
    uint32_t stream;
    uint64_t first_seq, packs;
    uint32_t count;
    uint32_t lengths[40];
    uint8_t rejected[40];
};

struct scenario {
    struct pd_live_rules first; /* before any EVENT_RULES */
    bool rules_change;
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
    event->count = 1 + test_below(random, 40);
    for (uint32_t k = 0; k < event->count; k++) {
        event->lengths[k] = 1 + test_below(random, test_below(random, 4) ? 20 : 64);
        event->rejected[k] = test_below(random, 8) == 0;
    }
    s->next_seq[stream] += event->count;
}

/* Samples to leave out, or other weights: only where the horizon does not matter, as they act
 * behind it. */
static void add_change(struct scenario *s, uint64_t *random, bool sources)
{
    uint32_t stream = test_below(random, 3);
    uint32_t dice = test_below(random, 3);
    enum event_kind kind = dice == 0              ? EVENT_RULES
                           : sources && dice == 1 ? EVENT_MIXTURE
                                                  : EVENT_SKIP;
    struct event *event = add_event(s, kind, stream);
    event->packs = 1 + test_below(random, 20);
    event->first_seq = event->first_seq > 10 ? event->first_seq - test_below(random, 10) : 0;
    for (int i = 0; i < 3; i++)
        event->lengths[i] = 1 + test_below(random, 9);
}

static void make_scenario(struct scenario *s, uint64_t *random, uint32_t count, bool lanes,
                          bool changes, bool sources)
{
    memset(s, 0, sizeof *s);
    s->lanes = lanes;
    uint32_t short_stream = lanes ? test_below(random, 3) : 3; /* ends in the middle */
    for (uint32_t i = 0; i < count; i++) {
        uint32_t stream = test_below(random, 3), dice = test_below(random, 7);
        if (dice == 0)
            add_event(s, EVENT_FLUSH, 0)->packs = test_below(random, 4);
        else if (dice == 1)
            add_event(s, EVENT_DELIVER, 0)->packs = i;
        else if (stream != short_stream || i < count / 2)
            add_push(s, random, stream);
        if (changes && test_below(random, 3) == 0)
            add_change(s, random, sources);
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
        streams[i] = seq_stream_of("feed0", stream_names[i]);
        if (c->config.feeds[0].source_count > 0)
            snprintf(streams[i].source, sizeof streams[i].source, "s%d", i);
        assert_int_equal(seq_open(c, &streams[i]), 0);
    }
    struct pd_request_open_job open = seq_job_request("feed0", "j", 1, 3, 1, "w");
    assert_int_equal(seq_call(c, &open.base), 0);
}

static struct pd_live_rules live_of(const struct event *event)
{
    return (struct pd_live_rules){
        .window_samples = 4 * event->lengths[0],
        .window_bytes = event->lengths[1] > 6 ? 2000 : 1u << 30,
        .strategy = event->lengths[2] < 7 ? PD_STRATEGY_EXACT : PD_STRATEGY_SEQUENTIAL,
        .order = event->lengths[1] % 2 ? PD_ORDER_SHUFFLE : PD_ORDER_ARRIVAL,
        .shuffle_samples = 10 * event->lengths[2],
        .shuffle_bytes = 1u << 30,
        .over_length = (enum pd_over_length)(event->lengths[0] % 4)};
}

/* The file as it was before event `upto`. */
static void set_file(struct seq_case *c, const struct scenario *scenario, uint32_t upto)
{
    struct pd_live_rules live = scenario->first;
    for (uint32_t i = 0; i < upto; i++)
        if (scenario->events[i].kind == EVENT_RULES)
            live = live_of(&scenario->events[i]);
    pd_live_rules_set(&c->config.feeds[0].rules, &live);
}

static void play_skip(struct seq_case *c, const struct event *event)
{
    struct pd_request_skip_samples request = {.base.kind = PD_REQUEST_SKIP_SAMPLES,
                                              .feed = "feed0",
                                              .rule = {.first_seq = event->first_seq}};
    request.rule.last_seq = event->first_seq + event->packs - 1;
    snprintf(request.stream, sizeof request.stream, "%s", stream_names[event->stream]);
    assert_int_equal(seq_call(c, &request.base), 0);
    assert_true(request.base.record > 0);
}

static void play_mixture(struct seq_case *c, const struct event *event)
{
    const struct pd_source_weight weights[] = {
        {"s2", event->lengths[2]}, {"s0", event->lengths[0]}, {"s1", event->lengths[1]}};
    struct pd_request_set_mixture request = {.base.kind = PD_REQUEST_SET_MIXTURE,
                                             .feed = "feed0",
                                             .weights = weights,
                                             .weight_count = 3};
    assert_int_equal(seq_call(c, &request.base), 0);
}

static void play(struct seq_case *c, struct seq_stream streams[3], const struct event *event)
{
    struct pd_request_append answer;
    struct pd_live_rules live;
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
    case EVENT_SKIP:
        play_skip(c, event);
        break;
    case EVENT_MIXTURE:
        play_mixture(c, event);
        break;
    case EVENT_RULES:
        seq_case_stop(c);
        live = live_of(event);
        pd_live_rules_set(&c->config.feeds[0].rules, &live);
        seq_start(c);
        open_all(c, streams);
        break;
    }
}

/* The same heads and controls, straight into a planner, without horizon. Event i lies at
 * position 2 (i + 1). */
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
    control.from_pack = pd_planner_change_pack(d->planner);
    memcpy(control.weights, event->lengths, 3 * sizeof control.weights[0]);
    control.rules = live_of(event);
    control.rule = (struct pd_skip_rule){.by_stream = true,
                                         .stream = event->stream,
                                         .first_seq = event->first_seq,
                                         .last_seq = event->first_seq + event->packs - 1};
    assert_int_equal(pd_planner_control(d->planner, &control), 0);
}

static void direct_tell(struct direct *d, const struct event *event)
{
    uint64_t at = 2ull * ++d->known;
    if (event->kind == EVENT_FLUSH)
        direct_control(d, PD_CONTROL_FLUSH, at, event);
    if (event->kind == EVENT_END_STREAM)
        direct_control(d, PD_CONTROL_END_LANE, at, event);
    if (event->kind == EVENT_SKIP)
        direct_control(d, PD_CONTROL_SKIP_RULE, at, event);
    if (event->kind == EVENT_MIXTURE)
        direct_control(d, PD_CONTROL_WEIGHTS, at, event);
    if (event->kind == EVENT_RULES)
        direct_control(d, PD_CONTROL_RULES, at, event);
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
    pd_log_bodies(c->reader, 0, PD_VERIFY_COPIES, &bodies, &error);
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
        if (!d->scenario->rules_change)
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
    set_file(copy, scenario, from);
    seq_start(copy);
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
    make_scenario(&scenario, random, 20, variant == VARIANT_ORDERED || variant == VARIANT_SOURCES,
                  far, variant == VARIANT_SOURCES);
    set_variant(&c, variant, far);
    scenario.first = pd_live_rules_of(&c.config.feeds[0].rules);
    for (uint32_t i = 0; i < scenario.event_count; i++)
        scenario.rules_change |= scenario.events[i].kind == EVENT_RULES;
    direct_run(&direct, &scenario, &c.config.feeds[0].rules);
    assert_true(direct.pack_count > 20);
    seq_case_dir(&c, "plans");
    seq_start(&c);
    open_all(&c, streams);
    for (uint32_t i = 0; i < scenario.event_count; i++) {
        seq_case_copy(&c, &copies[i], "crash");
        if (i % 5 == 4) { /* a clean stop, with a snapshot */
            seq_case_stop(&c);
            seq_start(&c);
            open_all(&c, streams);
        }
        play(&c, streams, &scenario.events[i]);
        check_plans(&c, &direct, false);
    }
    check_plans(&c, &direct, true);
    for (uint32_t i = 0; i < scenario.event_count; i++)
        resume_copy(&copies[i], &scenario, i, &direct);
    direct_fini(&direct);
    seq_finish(&c);
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
    seq_new(&c, "diverged");
    struct seq_stream a = seq_stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    assert_int_equal(seq_push_lengths(&c, &a, 0, 40, 60, &answer), 0);
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
    seq_start(&c);
    assert_true(c.serve.progress[0].stopped);
    assert_string_equal(c.serve.progress[0].stop_reason, "DIVERGED");
    assert_int_equal(seq_flush(&c, "feed0", 1), PD_EMISMATCH);
    seq_finish(&c);
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

/* Long enough for snapshots while running; the restart must not begin at pack 0, and a damaged
 * snapshot must not matter. */
static void test_snapshots(void **unused)
{
    (void)unused;
    struct seq_case c, crash;
    struct pd_request_append answer;
    uint64_t random = SEED;
    seq_case_config(&c, 1);
    c.config.log_max_bytes = 256u << 20;
    seq_case_dir(&c, "snap");
    seq_start(&c);
    struct seq_stream a = seq_stream_of("feed0", "a");
    assert_int_equal(seq_open(&c, &a), 0);
    for (uint64_t seq = 0; seq < 30000; seq += 500) {
        uint32_t lengths[500];
        for (int i = 0; i < 500; i++)
            lengths[i] = 1 + test_below(&random, 40);
        struct seq_block_spec spec = {.first_seq = seq, .count = 500, .lengths = lengths};
        assert_int_equal(seq_push(&c, &a, &spec, &answer), 0);
    }
    struct pd_request_status before = seq_status(&c);
    assert_true(before.feeds[0].packs_planned > 8192);
    seq_case_copy(&c, &crash, "snapcrash");
    damage_snapshot(&crash);
    seq_start(&crash);
    struct pd_request_status after = seq_status(&crash);
    assert_true(after.feeds[0].plan_digest == before.feeds[0].plan_digest);
    assert_int_equal(after.feeds[0].packs_planned, before.feeds[0].packs_planned);
    assert_false(after.feeds[0].stopped);
    pd_status_fini(&after);
    pd_status_fini(&before);
    seq_case_stop(&crash);
    seq_finish(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans_and_restarts),
        cmocka_unit_test(test_diverged),
        cmocka_unit_test(test_snapshots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
