/* packctl set-mixture, skip-samples, delete-stream, delete-feed: records that change what is
 * planned.
 *
 * One call each; the reply as JSON, or a sentence made of it. */
#include "client/packctl.h"
#include "client/packctl_reply.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SOURCES_MAX 64

/* Everything one of these commands may be told. */
struct order {
    struct ctl *ctl;
    struct packd_admin *admin;
    const char *feed, *why;
    struct packd_sample_filter filter;
    bool force, has_feed;
};

enum {
    OPT_FEED = 1000,
    OPT_STREAM,
    OPT_SOURCE,
    OPT_FIRST,
    OPT_LAST,
    OPT_GROUP,
    OPT_KEY,
    OPT_VERSION_BELOW,
    OPT_WHY,
    OPT_FORCE
};

static void set_filter(struct packd_sample_filter *filter, int option)
{
    switch (option) {
    case OPT_STREAM:
        filter->stream = optarg;
        return;
    case OPT_SOURCE:
        filter->source = optarg;
        return;
    case OPT_FIRST:
        filter->first_seq = ctl_number("first", optarg, 0, INT64_MAX);
        filter->has_first_seq = true;
        return;
    case OPT_LAST:
        filter->last_seq = ctl_number("last", optarg, 0, INT64_MAX);
        filter->has_last_seq = true;
        return;
    case OPT_GROUP:
        filter->group = optarg;
        filter->group_bytes = strlen(optarg);
        return;
    case OPT_KEY:
        filter->key = optarg;
        filter->key_bytes = strlen(optarg);
        return;
    default:
        filter->version_below = ctl_number("version-below", optarg, 1, UINT64_MAX);
    }
}

static void begin(struct order *o, struct ctl *ctl, int argc, char **argv,
                  const struct option *options)
{
    int option;
    *o = (struct order){.ctl = ctl, .feed = "default"};
    while ((option = ctl_getopt(ctl, argc, argv, options)) != -1) {
        if (option == OPT_FEED) {
            o->feed = optarg;
            o->has_feed = true;
        } else if (option == OPT_WHY) {
            o->why = optarg;
        } else if (option == OPT_FORCE) {
            o->force = true;
        } else {
            set_filter(&o->filter, option);
        }
    }
}

/* Prints the reply: as JSON, or through `print`. Takes both. */
static int finish(struct order *o, int rc, const struct packd_error *error, char *json,
                  void (*print)(const struct order *, const json_t *))
{
    json_error_t why;
    packd_admin_close(o->admin);
    if (rc != 0)
        return ctl_error(o->ctl, error);
    json_t *reply = json_loads(json, JSON_DECODE_INT_AS_REAL, &why);
    if (o->ctl->json)
        printf("%s\n", json);
    else
        print(o, reply);
    json_decref(reply);
    packd_free(json);
    return CTL_OK;
}

/* ---- set-mixture ----------------------------------------------------------------------------- */

static const struct option mixture_options[] = {{"feed", required_argument, NULL, OPT_FEED}, {0}};

static void print_mixture(const struct order *o, const json_t *reply)
{
    if (number(reply, "record") == 0)
        printf("feed %s is mixed so already\n", o->feed);
    else
        printf("feed %s is mixed so from pack %" PRIu64 " on\n", o->feed,
               number(reply, "effective_pack"));
}

/* "web=7"; the name is cut off in place. */
static bool take_weight(char *argument, struct packd_source_weight *weight)
{
    char *sign = strchr(argument, '=');
    if (!sign || sign == argument)
        return false;
    *sign = 0;
    weight->source = argument;
    weight->weight = ctl_number(argument, sign + 1, 0, INT64_MAX);
    return true;
}

static int run_set_mixture(struct ctl *ctl, int argc, char **argv)
{
    struct order o;
    struct packd_source_weight weights[SOURCES_MAX];
    struct packd_error error = {0};
    char *json = NULL;
    size_t count = 0;
    begin(&o, ctl, argc, argv, mixture_options);
    for (; optind < argc && count < SOURCES_MAX; optind++)
        if (!take_weight(argv[optind], &weights[count++]))
            return ctl_usage(ctl, "'%s' is not SOURCE=WEIGHT", argv[optind]);
    if (count == 0 || optind < argc)
        return ctl_usage(ctl, "every source of the feed is needed, as SOURCE=WEIGHT");
    int rc = ctl_admin_open(ctl, &o.admin);
    if (rc != 0)
        return rc;
    rc = packd_admin_set_mixture(o.admin, o.feed, weights, count, PACKD_TIMEOUT_DEFAULT, &json,
                                 &error);
    return finish(&o, rc, &error, json, print_mixture);
}

const struct ctl_command ctl_set_mixture_command = {
    .name = "set-mixture",
    .arguments = "SOURCE=WEIGHT... [--feed F]",
    .summary = "change how a feed mixes its sources",
    .help = "  packctl set-mixture web=7 code=3\n"
            "  packctl set-mixture --feed robots libero=1 bridge=0\n\n"
            "  SOURCE=WEIGHT   every source of the feed, once; weights are relative, in tokens\n"
            "  --feed F        feed, else `default`\n\n"
            "It acts from the first pack that is not planned yet, and outlives a restart.\n",
    .run = run_set_mixture,
};

/* ---- skip-samples ---------------------------------------------------------------------------- */

static const struct option skip_options[] = {
    {"feed", required_argument, NULL, OPT_FEED},
    {"stream", required_argument, NULL, OPT_STREAM},
    {"source", required_argument, NULL, OPT_SOURCE},
    {"first", required_argument, NULL, OPT_FIRST},
    {"last", required_argument, NULL, OPT_LAST},
    {"group", required_argument, NULL, OPT_GROUP},
    {"key", required_argument, NULL, OPT_KEY},
    {"version-below", required_argument, NULL, OPT_VERSION_BELOW},
    {"why", required_argument, NULL, OPT_WHY},
    {0}};

static void print_skip(const struct order *o, const json_t *reply)
{
    printf("these samples of feed %s are left out from pack %" PRIu64 " on\n", o->feed,
           number(reply, "effective_pack"));
}

static int run_skip_samples(struct ctl *ctl, int argc, char **argv)
{
    struct order o;
    struct packd_error error = {0};
    char *json = NULL;
    begin(&o, ctl, argc, argv, skip_options);
    int rc = ctl_no_arguments(ctl, argc, argv);
    if (rc != 0)
        return rc;
    const struct packd_sample_filter *filter = &o.filter;
    if (!filter->stream && !filter->source && !filter->group && !filter->key &&
        filter->version_below == 0)
        return ctl_usage(ctl, "one of --stream, --source, --group, --key and --version-below is "
                              "required");
    if ((filter->has_first_seq || filter->has_last_seq) && !filter->stream)
        return ctl_usage(ctl, "--first and --last need --stream: numbers count per stream");
    rc = ctl_admin_open(ctl, &o.admin);
    if (rc != 0)
        return rc;
    rc = packd_admin_skip_samples(o.admin, o.feed, filter, o.why, PACKD_TIMEOUT_DEFAULT, &json,
                                  &error);
    return finish(&o, rc, &error, json, print_skip);
}

const struct ctl_command ctl_skip_samples_command = {
    .name = "skip-samples",
    .arguments = "[--stream S [--first N] [--last N]] [--source X] [--group G] [--key K] "
                 "[--version-below V] [--why TEXT] [--feed F]",
    .summary = "leave out samples that are in no pack yet",
    .help = "  packctl skip-samples --stream crawl-7 --first 1000 --last 1999 --why 'bad dump'\n"
            "  packctl skip-samples --source rollouts --version-below 40\n\n"
            "  Samples for which all of these hold:\n"
            "  --stream S         of this stream; --first N, --last N: with these numbers\n"
            "  --source X         of streams with this source\n"
            "  --group G, --key K with this group, this key\n"
            "  --version-below V  with a lower version\n"
            "  --why TEXT         kept in the log\n"
            "  --feed F           feed, else `default`\n\n"
            "Samples that are pushed later, and samples in planned packs, are not touched.\n",
    .run = run_skip_samples,
};

/* ---- delete-stream, delete-feed -------------------------------------------------------------- */

static const struct option delete_options[] = {{"feed", required_argument, NULL, OPT_FEED},
                                               {"stream", required_argument, NULL, OPT_STREAM},
                                               {"force", no_argument, NULL, OPT_FORCE},
                                               {0}};

static void print_stream(const struct order *o, const json_t *reply)
{
    (void)reply;
    printf("stream %s of feed %s is gone; its name may be used again\n", o->filter.stream, o->feed);
}

static int run_delete_stream(struct ctl *ctl, int argc, char **argv)
{
    struct order o;
    struct packd_error error = {0};
    char *json = NULL;
    begin(&o, ctl, argc, argv, delete_options);
    int rc = ctl_no_arguments(ctl, argc, argv);
    if (rc != 0)
        return rc;
    if (!o.filter.stream)
        return ctl_usage(ctl, "--stream is required");
    rc = ctl_admin_open(ctl, &o.admin);
    if (rc != 0)
        return rc;
    rc = packd_admin_delete_stream(o.admin, o.feed, o.filter.stream, o.force, PACKD_TIMEOUT_DEFAULT,
                                   &json, &error);
    return finish(&o, rc, &error, json, print_stream);
}

const struct ctl_command ctl_delete_stream_command = {
    .name = "delete-stream",
    .arguments = "--stream S [--force] [--feed F]",
    .summary = "end a stream, leave out what is not packed of it, free its name",
    .help = "  packctl delete-stream --stream crawl-7\n\n"
            "  --stream S   stream; --feed F: of another feed than `default`\n"
            "  --force      also while a producer is connected: its call ends\n",
    .run = run_delete_stream,
};

static const struct option feed_options[] = {
    {"feed", required_argument, NULL, OPT_FEED}, {"force", no_argument, NULL, OPT_FORCE}, {0}};

static void print_feed(const struct order *o, const json_t *reply)
{
    (void)reply;
    printf("feed %s is empty; what it held is being removed from the log\n", o->feed);
}

static int run_delete_feed(struct ctl *ctl, int argc, char **argv)
{
    struct order o;
    struct packd_error error = {0};
    char *json = NULL;
    begin(&o, ctl, argc, argv, feed_options);
    int rc = ctl_no_arguments(ctl, argc, argv);
    if (rc != 0)
        return rc;
    if (!o.has_feed)
        return ctl_usage(ctl, "--feed is required");
    rc = ctl_admin_open(ctl, &o.admin);
    if (rc != 0)
        return rc;
    rc = packd_admin_delete_feed(o.admin, o.feed, o.force, PACKD_TIMEOUT_DEFAULT, &json, &error);
    return finish(&o, rc, &error, json, print_feed);
}

const struct ctl_command ctl_delete_feed_command = {
    .name = "delete-feed",
    .arguments = "--feed F [--force]",
    .summary = "remove all data, jobs and streams of a feed; it starts anew",
    .help = "  packctl delete-feed --feed old\n\n"
            "  --feed F   feed; required, whatever it is called; configured or only in the log\n"
            "  --force    also with producers or ranks connected: their calls end\n",
    .run = run_delete_feed,
};
