/* The configuration: defaults, every kind of key, the texts of refusals, precedence, round trips,
 * rules across keys, the reference page. */
#include "server/config.h"

#include "base/check.h"
#include "tests/unit/reference_page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct pd_config parsed(const char *yaml)
{
    struct pd_config config;
    struct pd_error error = {0};
    assert_int_equal(pd_config_default(&config), 0);
    if (pd_config_parse(&config, yaml, strlen(yaml), "t.yaml", &error) != 0)
        fail_msg("%s", error.text);
    return config;
}

/* Parses, then checks; the configuration must be refused at one of the two with this code and these
 * words. */
static void refused(const char *yaml, int code, const char *words)
{
    struct pd_config config;
    struct pd_error error = {0};
    assert_int_equal(pd_config_default(&config), 0);
    int rc = pd_config_parse(&config, yaml, strlen(yaml), "t.yaml", &error);
    if (rc == 0)
        rc = pd_config_check(&config, &error);
    pd_config_fini(&config);
    if (rc != code || error.code != code || !strstr(error.text, words))
        fail_msg("%s\ngave %s '%s', expected %s '%s'", yaml, pd_err_name(rc), error.text,
                 pd_err_name(code), words);
    assert_true(error.reason[0] != '\0');
}

static void accepted(const char *yaml)
{
    struct pd_config config = parsed(yaml);
    struct pd_error error = {0};
    if (pd_config_check(&config, &error) != 0)
        fail_msg("%s\nrefused: %s", yaml, error.text);
    pd_config_fini(&config);
}

static void test_defaults(void **state)
{
    (void)state;
    struct pd_config config;
    struct pd_error error = {0};
    assert_int_equal(pd_config_default(&config), 0);
    assert_int_equal(pd_config_check(&config, &error), 0);
    assert_int_equal(config.listen_count, 1);
    assert_string_equal(config.listen[0], "127.0.0.1:7070");
    assert_string_equal(config.http, "127.0.0.1:7071");
    assert_string_equal(config.log_path, "./packd-data");
    assert_int_equal(config.log_max_bytes, 16ull << 30);
    assert_int_equal(config.durability, PD_DURABILITY_FSYNC);
    assert_int_equal(config.commit_ns, 5000000);
    assert_int_equal(config.drain_ns, 30000000000ull);
    assert_true(config.validate_fraction == 1.0 && config.validate_cpu_share == 0.25);
    assert_int_equal(config.feed_count, 1);
    const struct pd_feed_config *feed = &config.feeds[0];
    assert_string_equal(feed->name, "default");
    assert_int_equal(feed->rules.seq_len, 4096);
    assert_int_equal(feed->layout.seq_len, 4096);
    assert_int_equal(feed->rules.window_samples, 1024);
    assert_int_equal(feed->rules.lane_count, 1);
    assert_int_equal(feed->rules.lanes[0].weight, 1);
    assert_int_equal(feed->layout.cost.alpha, 24576);
    assert_int_equal(feed->job_count, 0);
    assert_true(feed->check_shifted_labels);
    pd_config_fini(&config);
}

static const char every_kind[] =
    "listen: [0.0.0.0:0, 'unix:/run/packd.sock']\n"
    "http: '[::1]:0'\n"
    "log: {path: /data, max_bytes: 32GiB, durability: process, commit_bytes: 1MB, commit_ms: 7}\n"
    "memory: {batches: 2GiB, ingest: 1GiB}\n"
    "limits: {max_sample_bytes: 1MiB, push_calls: 7, stall: 90s}\n"
    "drain: 2s\n"
    "threads: {rpc: 2, assemble: 3}\n"
    "validate: {backend: off, fraction: 0.125, cpu_share: 1, on_violation: stop}\n"
    "feeds:\n"
    "  - name: a\n"
    "    seq_len: 1024\n"
    "    pad_id: -1\n"
    "    seg_align: 4\n"
    "    total_align: 8\n"
    "    width: batch\n"
    "    widths: [256, 512, 1024]\n"
    "    order: shuffle\n"
    "    shuffle_samples: 5\n"
    "    seed: 18446744073709551615\n"
    "    sources: {web: {weight: 7}, code: {weight: 3, on_end: repeat, max_passes: 4}, more: "
    "{on_end: repeat}}\n"
    "    labels_look_shifted: accept\n"
    "    cost: {alpha: 1}\n"
    "    max_wait: 250ms\n"
    "    jobs:\n"
    "      - {name: train, retain: {commits: 5, bytes: 1GiB, time: 2h}}\n"
    "      - name: eval\n"
    "  - name: b\n"
    "    merge: ordered\n"
    "    streams: [one, two, -]\n"
    "    over_length: split\n"
    "    last_step: drop\n"
    "  - name: c\n"
    "    epochs: 3\n";

static void check_feed_a(const struct pd_feed_config *feed)
{
    assert_string_equal(feed->name, "a");
    assert_int_equal(feed->layout.seq_len, 1024);
    assert_int_equal(feed->layout.pad_id, -1);
    assert_int_equal(feed->layout.seg_align, 4);
    assert_int_equal(feed->layout.width, PD_WIDTH_BATCH);
    assert_int_equal(feed->layout.width_count, 3);
    assert_int_equal(feed->layout.widths[2], 1024);
    assert_int_equal(feed->rules.order, PD_ORDER_SHUFFLE);
    assert_true(feed->rules.seed == UINT64_MAX);
    assert_int_equal(feed->rules.lane_count, 3);
    assert_string_equal(feed->sources[0].name, "web");
    assert_int_equal(feed->rules.lanes[0].weight, 7);
    assert_int_equal(feed->rules.lanes[0].passes_max, 1);
    assert_int_equal(feed->rules.lanes[1].on_end, PD_ON_END_REPEAT);
    assert_int_equal(feed->rules.lanes[1].passes_max, 4);
    assert_int_equal(feed->rules.lanes[2].passes_max, UINT32_MAX);
    assert_false(feed->check_shifted_labels);
    assert_int_equal(feed->layout.cost.alpha, 1);
    assert_int_equal(feed->layout.cost.beta, 1);
    assert_int_equal(feed->max_wait_ns, 250000000);
    assert_int_equal(feed->job_count, 2);
    assert_int_equal(feed->jobs[0].retain_commits, 5);
    assert_int_equal(feed->jobs[0].retain_ns, 7200000000000ull);
    assert_string_equal(feed->jobs[1].name, "eval");
    assert_int_equal(feed->jobs[1].retain_commits, 3);
}

static void test_every_kind(void **state)
{
    (void)state;
    struct pd_config config = parsed(every_kind);
    struct pd_error error = {0};
    if (pd_config_check(&config, &error) != 0)
        fail_msg("%s", error.text);
    assert_int_equal(config.listen_count, 2);
    assert_string_equal(config.listen[1], "unix:/run/packd.sock");
    assert_int_equal(config.durability, PD_DURABILITY_PROCESS);
    assert_int_equal(config.commit_bytes, 1000000);
    assert_int_equal(config.commit_ns, 7000000);
    assert_int_equal(config.push_calls_max, 7);
    assert_int_equal(config.stall_ns, 90000000000ull);
    assert_string_equal(config.validate_backend, "off");
    assert_true(config.validate_fraction == 0.125);
    assert_int_equal(config.assemble_threads, 3);
    assert_int_equal(config.feed_count, 3);
    check_feed_a(&config.feeds[0]);
    const struct pd_feed_config *b = &config.feeds[1], *c = &config.feeds[2];
    assert_int_equal(b->stream_count, 3);
    assert_string_equal(b->streams[2], "-");
    assert_int_equal(b->rules.lane_count, 3);
    assert_int_equal(b->rules.over_length, PD_OVER_SPLIT);
    assert_int_equal(b->last_step, PD_LAST_STEP_DROP);
    assert_int_equal(c->rules.lanes[0].on_end, PD_ON_END_REPEAT);
    assert_int_equal(c->rules.lanes[0].passes_max, 3);
    uint32_t index = 9;
    assert_ptr_equal(pd_config_feed(&config, "c", &index), c);
    assert_int_equal(index, 2);
    assert_null(pd_config_feed(&config, "d", NULL));
    pd_config_fini(&config);
}

static void test_places_and_suggestions(void **state)
{
    (void)state;
    refused("feeds:\n  - name: a\n    seq_len: 4k\n", PD_EINVAL,
            "t.yaml:3: feeds[0].seq_len: '4k' is not possible here; expected a whole number from 1 "
            "to 1048576");
    refused("log: {max_byte: 1GiB}\n", PD_EINVAL,
            "t.yaml:1: unknown key 'max_byte' in log; did you mean 'max_bytes'?");
    refused("\nlgo: {}\n", PD_EINVAL, "t.yaml:2: unknown key 'lgo'; did you mean 'log'?");
    refused("seq_len: 5\n", PD_EINVAL,
            "unknown key 'seq_len'; it belongs into an entry of 'feeds'");
    refused("zzz: 5\n", PD_EINVAL, "unknown key 'zzz'");
    refused("log.path: x\n", PD_EINVAL, "unknown key 'log.path'");
    refused("feeds: [{sources: {web: {wieght: 1}}}]\n", PD_EINVAL,
            "unknown key 'wieght' in feeds[0].sources.web; did you mean 'weight'?");
    refused("drain: 1s\ndrain: 2s\n", PD_EINVAL,
            "t.yaml:2: 'drain' is there twice, first in line 1");
    refused("log: {durability: fsnc}\n", PD_EINVAL,
            "log.durability: 'fsnc' is not possible here; expected process | fsync");
    refused("log: 5\n", PD_EINVAL, "log: found one value, expected a mapping");
    refused("listen: 127.0.0.1:1\n", PD_EINVAL,
            "found one value, expected a list of 1 to 16 addresses");
    refused("listen: []\n", PD_EINVAL, "found a list of 0");
    refused("listen: [[a]]\n", PD_EINVAL, "item 0 is a list");
    refused("drain: [1s]\n", PD_EINVAL, "found a list, expected a duration");
    refused("drain: 10\n", PD_EINVAL, "drain: '10' is not a duration");
    refused("feeds: [{seq_len: 010}]\n", PD_EINVAL,
            "feeds[0].seq_len: '010' begins with a zero: octal in YAML 1.1");
    refused("feeds: [{pad_id: -010}]\n", PD_EINVAL, "begins with a zero");
    refused("log: {max_bytes: 010}\n", PD_EINVAL, "begins with a zero");
    refused("log: {commit_ms: 00}\n", PD_EINVAL, "begins with a zero");
    refused("drain: 48h\n", PD_EINVAL, "expected a duration from 0 to 24h");
    refused("memory: {batches: 1.5GiB}\n", PD_EINVAL, "is not a size");
    refused("validate: {fraction: 1.5}\n", PD_EINVAL, "expected a number from 0 to 1");
    refused("validate: {fraction: nan}\n", PD_EINVAL, "expected a number from 0 to 1");
    refused("feeds: [{pad_id: 2147483648}]\n", PD_EINVAL, "fits int32");
    refused("feeds: [{name: 'a b'}]\n", PD_EINVAL, "t.yaml:1: feeds[0].name:");
    refused("feeds: [{streams: ['']}]\n", PD_EINVAL, "stream name is empty");
    refused("feeds: [{sources: {'a b': {}}}]\n", PD_EINVAL, "source name");
    refused("feeds: []\n", PD_EINVAL, "expected a list of 1 to 64");
    refused("http: ''\n", PD_EINVAL, "expected text that is not empty");
    refused("http: [\n", PD_EINVAL, "not YAML");
    refused("drain: 1s\n---\ndrain: 1s\n", PD_EINVAL, "second document");
    refused("- a\n", PD_EINVAL, "found a list, expected a mapping of keys");
    refused("? [a]\n: b\n", PD_EINVAL, "found a list");
}

static void test_rules_across_keys(void **state)
{
    (void)state;
    refused("listen: [nonsense]\n", PD_EINVAL, "listen: 'nonsense' is not an address");
    refused("listen: ['a:1', 'a:1']\n", PD_EINVAL, "there twice");
    refused("listen: ['a:1']\nhttp: a:1\n", PD_EINVAL, "http: 'a:1' is an address of gRPC, too");
    accepted("listen: ['a:0']\nhttp: a:0\n");
    static const char *const hosts[] = {
        "vsock:1:2", "dns:///x:1", "dns:1",    "ipv4:1.2.3.4:1", "unix-abstract:1", "::1:7070",
        "[::1:7070", "[]:1",       "[::1]x:1", "[localhost]:1",  "http://a:1",      "a]:1"};
    for (size_t i = 0; i < PD_COUNT_OF(hosts); i++) {
        char yaml[100];
        snprintf(yaml, sizeof yaml, "listen: ['%s']\n", hosts[i]);
        refused(yaml, PD_EINVAL, "expected host:port, [v6]:port or unix:/path");
        snprintf(yaml, sizeof yaml, "http: '%s'\n", hosts[i]);
        refused(yaml, PD_EINVAL, "http: ");
    }
    accepted("listen: ['[::1]:7070', '[fe80::1%eth0]:1', 'a-b_c.example:1', '0.0.0.0:1', "
             "'unix:/tmp/s']\nhttp: '[::]:7071'\n");
    refused("listen: "
            "['unix:/"
            "12345678901234567890123456789012345678901234567890123456789012345678901234567890123456"
            "7890123456789012"
            "34567890']\n",
            PD_EINVAL, "has a path of 111 bytes; the system takes 107");
    refused("listen: ['unix:']\n", PD_EINVAL, "not an address");
    refused("listen: ['a:65536']\n", PD_EINVAL, "not an address");
    refused("http: 'unix:/x'\n", PD_EINVAL, "http: 'unix:/x' is not an address");
    refused("feeds: [{name: a}, {name: a}]\n", PD_EINVAL,
            "feeds[0] and feeds[1] are both called 'a'");
    refused("feeds: [{seq_len: 100, total_align: 8}]\n", PD_EINVAL, "feeds[0] (default): ");
    refused("feeds: [{seg_align: 4, total_align: 6, seq_len: 12}]\n", PD_EINVAL, "total_align");
    refused("feeds: [{seq_len: 100, seg_align: 64}]\n", PD_EINVAL, "seg_align");
    refused("feeds: [{seg_align: 4, total_align: 1}]\n", PD_EINVAL, "total_align");
    accepted("feeds: [{seg_align: 4}]\n");
    refused("feeds: [{width: step, widths: [512, 256]}]\n", PD_EINVAL, "widths");
    refused("feeds: [{widths: [512]}]\n", PD_EINVAL, "widths has 1 entries but width is fixed");
    refused("feeds: [{streams: [a, b, a]}]\n", PD_EINVAL, "streams: 'a' is there twice");
    refused("feeds: [{streams: [a], stream_count: 2}]\n", PD_EINVAL, "stream_count is 2");
    refused("feeds: [{merge: ordered}]\n", PD_EINVAL, "streams is empty");
    refused("feeds: [{merge: ordered, streams: [a], sources: {b: {}}}]\n", PD_EINVAL,
            "exclude each other");
    refused("feeds: [{sources: {a: {}, a: {}}}]\n", PD_EINVAL, "'a' is there twice");
    refused("feeds: [{sources: {a: {max_passes: 2}}}]\n", PD_EINVAL,
            "max_passes is 2 but on_end is not repeat");
    refused("feeds: [{epochs: 2, sources: {a: {on_end: stop}}}]\n", PD_EINVAL, "epochs is 2");
    refused("feeds: [{jobs: [{name: a}, {name: a}]}]\n", PD_EINVAL, "jobs: 'a' is there twice");
    refused("feeds: [{fixed_segments: 4, max_segments: 5}]\n", PD_EINVAL,
            "more than fixed_segments 4");
    refused("feeds: [{seq_len: 64, fixed_segments: 1}]\n", PD_EINVAL, "to at least 2 for each row");
    refused("feeds: [{seq_len: 64, max_segments: 3, pad_segment: 16, fixed_segments: 6}]\n",
            PD_EINVAL, "can have 7 segments (3 of samples");
    accepted("feeds: [{seq_len: 64, max_segments: 3, pad_segment: 16, fixed_segments: 7}]\n");
    accepted("feeds: [{seq_len: 64, pad_segment: 16, fixed_segments: 7}]\n");
    refused("feeds: [{cost: {alpha: 0, beta: 0}}]\n", PD_EINVAL, "both 0");
    static char deep[100001]; /* quadratic time where depth is not bounded */
    memset(deep, '{', sizeof deep - 1);
    refused(deep, PD_EINVAL, "nested deeper than 32");
    memset(deep, '[', sizeof deep - 1);
    refused(deep, PD_EINVAL, "nested deeper than 32");
    refused("feeds: [{vocab_size: 10, pad_id: 10}]\n", PD_EINVAL,
            "pad_id is 10, outside vocab_size 10");
    refused("memory: {ingest: 1MiB}\nlimits: {max_sample_bytes: 1MiB}\n", PD_EINVAL,
            "memory.ingest is 1.0MiB, less than twice limits.max_sample_bytes 1.0MiB");
    refused("limits: {max_sample_bytes: 4MiB, peer_bytes: 7MiB}\n", PD_EINVAL,
            "limits.peer_bytes is 7.0MiB, less than twice limits.max_sample_bytes 4.0MiB");
    refused("memory: {batches: 1MiB}\nfeeds: [{seq_len: 1048576}]\n", PD_EINVAL,
            "more than half of memory.batches 1.0MiB");
    refused("log: {max_bytes: 64MiB}\nlimits: {max_sample_bytes: 64MiB}\n", PD_EINVAL,
            "each of its 1 lanes may hold 32.0MiB of log.max_bytes unplanned, but needs 66.0MiB");
    refused("log: {max_bytes: 16MiB}\nfeeds: [{name: a}, {name: b}, {name: c}, {name: d}]\n",
            PD_EINVAL, "may hold 2.0MiB of log.max_bytes unplanned, but needs 2.1MiB");
    accepted("log: {max_bytes: 64MiB}\nlimits: {max_sample_bytes: 1MiB}\n");
    accepted(
        "feeds: [{name: a}, {name: b, sources: {x: {}, y: {on_end: stop}}, seq_len: 131072}]\n");
    accepted("");
    accepted("feeds: &f\n  - {name: one}\n");
}

/* Unless it is set, the largest sample follows what memory and log can carry. */
static void test_sample_limit(void **state)
{
    (void)state;
    static const struct {
        const char *yaml;
        uint64_t bytes;
    } cases[] = {
        {"", 64ull << 20},
        {"memory: {ingest: 8MiB}\n", 4ull << 20},
        {"log: {max_bytes: 64MiB}\n", 30ull << 20},
        {"log: {max_bytes: 64MiB}\nfeeds: [{sources: {a: {}, b: {}}}]\n", 14ull << 20},
        {"limits: {max_sample_bytes: 1MiB}\n", 1ull << 20},
        {"limits: {peer_bytes: 8MiB}\n", 4ull << 20},
    };
    for (size_t i = 0; i < PD_COUNT_OF(cases); i++) {
        struct pd_config config = parsed(cases[i].yaml);
        struct pd_error error = {0};
        assert_int_equal(pd_config_check(&config, &error), 0);
        assert_int_equal(config.max_sample_bytes, cases[i].bytes);
        pd_config_fini(&config);
    }
}

static void test_keys_of_feeds(void **state)
{
    (void)state;
    accepted("feeds: [{balance: cost}]\n");
    refused("feeds: [{drop_views: {libero: right_wrist}}]\n", PD_EINVAL, "drop_views");
    refused("feeds: [{keep_frames: {libero: 1}}]\n", PD_EINVAL, "keep_frames");
    refused("feeds: [{sources: {web: {weight: 1}}, drop_views: {libero: [top]}}]\n", PD_EINVAL,
            "libero");
    accepted("validate: {backend: cuda}\n");
    refused("feeds: [{merge: ordered, streams: [a], epochs: 2}]\n", PD_EINVAL, "epochs: 1");
}

static void test_failure_changes_nothing(void **state)
{
    (void)state;
    struct pd_config config = parsed("drain: 7s\n");
    struct pd_error error = {0};
    const char *bad = "drain: 9s\nfeeds: [{name: x, jobs: [{name: y}], streams: [a], sources: {b: "
                      "{}}}, {nme: z}]\n";
    assert_int_equal(pd_config_parse(&config, bad, strlen(bad), "bad", &error), PD_EINVAL);
    assert_int_equal(config.drain_ns, 7000000000ull);
    assert_string_equal(config.feeds[0].name, "default");
    assert_int_equal(pd_config_load(&config, "/nonexistent/x.yaml", &error), PD_EIO);
    assert_non_null(strstr(error.text, "/nonexistent/x.yaml: No such file"));
    pd_config_fini(&config);
}

static char *printed(const struct pd_config *config)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    assert_int_equal(pd_config_print(config, out), 0);
    fclose(out);
    return text;
}

/* Printing, parsing and printing again gives the same text, and the same digests. */
static void round_trip(const char *yaml)
{
    struct pd_config first = parsed(yaml);
    char *once = printed(&first);
    struct pd_config second = parsed(once);
    char *twice = printed(&second);
    assert_string_equal(once, twice);
    assert_int_equal(first.feed_count, second.feed_count);
    for (uint32_t i = 0; i < first.feed_count; i++)
        assert_true(pd_feed_config_digest(&first.feeds[i]) ==
                    pd_feed_config_digest(&second.feeds[i]));
    free(once);
    free(twice);
    pd_config_fini(&first);
    pd_config_fini(&second);
}

static void test_round_trip(void **state)
{
    (void)state;
    round_trip("");
    round_trip(every_kind);
    round_trip("http: \"a\\\"b\\\\c:\\t1\"\nlog: {path: 'null'}\nfeeds: [{name: 'no'}, {name: "
               "'12'}, {name: '-'}]\n");
}

static void test_digest(void **state)
{
    (void)state;
    static const char *const shaping[] = {
        "seq_len: 8192",
        "window: 7",
        "strategy: none",
        "order: shuffle",
        "seed: 1",
        "pad_id: 1",
        "epochs: 2",
        "streams: [a]",
        "streams: [b]",
        "sources: {a: {}}",
        "sources: {a: {weight: 2}}",
        "width: step, widths: [64]",
        "labels: shifted",
        "last_step: drop",
        "cost: {beta: 2}",
    };
    static const char *const others[] = {"name: x", "log_share: 2", "max_wait: 1s",
                                         "jobs: [{name: j}]", "vocab_size: 9"};
    uint64_t seen[PD_COUNT_OF(shaping) + 1];
    for (size_t i = 0; i <= PD_COUNT_OF(shaping); i++) {
        char yaml[120];
        snprintf(yaml, sizeof yaml, "feeds: [{%s}]\n", i ? shaping[i - 1] : "");
        struct pd_config config = parsed(yaml);
        seen[i] = pd_feed_config_digest(&config.feeds[0]);
        pd_config_fini(&config);
        for (size_t j = 0; j < i; j++)
            assert_true(seen[i] != seen[j]);
    }
    for (size_t i = 0; i < PD_COUNT_OF(others); i++) {
        char yaml[120];
        snprintf(yaml, sizeof yaml, "feeds: [{%s}]\n", others[i]);
        struct pd_config config = parsed(yaml);
        assert_true(pd_feed_config_digest(&config.feeds[0]) == seen[0]);
        pd_config_fini(&config);
    }
}

static int with_variable(const char *name, const char *value, struct pd_config *config,
                         struct pd_error *error)
{
    setenv(name, value, 1);
    int rc = pd_config_environment(config, error);
    unsetenv(name);
    return rc;
}

static void test_environment(void **state)
{
    (void)state;
    struct pd_config config = parsed("http: a:1\nlog: {path: /file}\n");
    struct pd_error error = {0};
    assert_int_equal(with_variable("PACKD_HTTP", "b:2", &config, &error), 0);
    assert_string_equal(config.http, "b:2");
    assert_int_equal(with_variable("PACKD_DATA_DIR", "/env", &config, &error), 0);
    assert_string_equal(config.log_path, "/env");
    assert_int_equal(with_variable("PACKD_LISTEN", "a:1,unix:/b", &config, &error), 0);
    assert_int_equal(config.listen_count, 2);
    assert_string_equal(config.listen[1], "unix:/b");
    assert_int_equal(with_variable("PACKD_LOG_MAX_BYTES", "32GiB", &config, &error), 0);
    assert_int_equal(config.log_max_bytes, 32ull << 30);
    assert_int_equal(with_variable("PACKD_PORT", "tcp://10.0.0.1:7070", &config, &error), 0);
    assert_int_equal(with_variable("PACKD_DRAIN", "5", &config, &error), PD_EINVAL);
    assert_non_null(strstr(error.text, "environment variable PACKD_DRAIN: '5' is not a duration"));
    assert_int_equal(with_variable("PACKD_LISTN", "a:1", &config, &error), PD_EINVAL);
    assert_non_null(strstr(error.text, "did you mean PACKD_LISTEN?"));
    assert_int_equal(with_variable("PACKD_LISTEN", "", &config, &error), PD_EINVAL);
    pd_config_fini(&config);
}

static void test_sample_is_the_defaults(void **state)
{
    (void)state;
    char *sample = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&sample, &size);
    assert_non_null(out);
    assert_int_equal(pd_config_sample(out), 0);
    fclose(out);
    struct pd_config from_sample = parsed(sample), plain = parsed("");
    char *a = printed(&from_sample), *b = printed(&plain);
    assert_string_equal(a, b);
    free(a);
    free(b);
    free(sample);
    pd_config_fini(&from_sample);
    pd_config_fini(&plain);
}

static void test_reference_page_is_current(void **state)
{
    (void)state;
    expect_current("docs/CONFIGURATION.md", "config", pd_config_reference);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_every_kind),
        cmocka_unit_test(test_places_and_suggestions),
        cmocka_unit_test(test_rules_across_keys),
        cmocka_unit_test(test_sample_limit),
        cmocka_unit_test(test_keys_of_feeds),
        cmocka_unit_test(test_failure_changes_nothing),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_sample_is_the_defaults),
        cmocka_unit_test(test_reference_page_is_current),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
