/* Operator calls: one request, one reply, the reply as JSON.
 *
 * No thread and no state but the channel; every call may come from any thread. */
#include "client/lib_conn.h"
#include "client/lib_error.h"
#include "client/lib_json.h"
#include "client/lib_tls.h"

#include "base/check.h"
#include "proto/packd.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS 10000
#define STATUS_PAGES_MAX 128 /* of up to 4 MiB */
#define MAGIC 0x70616d6eu

struct packd_admin {
    uint32_t magic;
    int64_t timeout_ms;
    struct pd_channel *channel;
};

int packd_admin_open(const struct packd_admin_options *options, struct packd_admin **out,
                     struct packd_error *error)
{
    int rc = pd_connection_check(options->server, options->token, &options->tls, error);
    if (rc != 0)
        return rc;
    struct packd_admin *admin = calloc(1, sizeof *admin);
    if (admin)
        admin->channel = pd_channel_new(options->server, options->token, &options->tls);
    if (!admin || !admin->channel) {
        free(admin);
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory for a connection");
    }
    admin->magic = MAGIC;
    admin->timeout_ms = options->timeout_ms;
    *out = admin;
    return 0;
}

void packd_admin_close(struct packd_admin *admin)
{
    if (!admin)
        return;
    PD_MAGIC_CHECK(admin, MAGIC);
    pd_channel_free(admin->channel);
    admin->magic = 0;
    free(admin);
}

static char *text(const char *value, const char *fallback)
{
    return (char *)(uintptr_t)(value ? value : fallback);
}

struct call {
    const char *method;
    const ProtobufCMessage *request;
    const ProtobufCMessageDescriptor *reply_type;
    int64_t timeout_ms;
};

static int reply_json(const ProtobufCMessage *reply, char **json, struct packd_error *error)
{
    struct pd_buf out = {0};
    pd_json_message(reply, &out);
    pd_buf_put_u8(&out, 0);
    if (out.failed) {
        pd_buf_fini(&out);
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory for a reply");
    }
    *json = (char *)out.data;
    return 0;
}

static int run(struct packd_admin *admin, const struct call *call, char **json,
               struct packd_error *error)
{
    PD_MAGIC_CHECK(admin, MAGIC);
    ProtobufCMessage *reply = NULL;
    uint64_t deadline = pd_conn_deadline_ns(call->timeout_ms, admin->timeout_ms, TIMEOUT_MS);
    int rc = pd_conn_call(admin->channel, call->method, call->request, call->reply_type, deadline,
                          &reply, error);
    if (rc == 0 && json)
        rc = reply_json(reply, json, error);
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
    return rc;
}

/* ---- status, all pages of it ----------------------------------------------------------------- */

/* A list of pointers, grown by `more`; NULL: no memory, and the list is as it was. */
static void *joined(void *list, size_t n, const void *more, size_t n_more)
{
    void **grown = realloc(list, (n + n_more + 1) * sizeof *grown);
    if (grown && n_more > 0)
        memcpy(grown + n, more, n_more * sizeof *grown);
    return grown;
}

/* Moves the jobs of a feed that goes on. */
static int add_jobs(Packd__V1__FeedStatus *feed, Packd__V1__FeedStatus *more)
{
    Packd__V1__JobStatus **jobs = joined(feed->jobs, feed->n_jobs, more->jobs, more->n_jobs);
    if (!jobs)
        return PACKD_ENOMEM;
    feed->jobs = jobs;
    feed->n_jobs += more->n_jobs;
    more->n_jobs = 0;
    return 0;
}

/* Moves a page's feeds and jobs into the answer so far; its first feed may be the last there. */
static int add_page(Packd__V1__StatusResponse *all, Packd__V1__StatusResponse *page)
{
    bool goes_on = all->n_feeds > 0 && page->n_feeds > 0 &&
                   strcmp(all->feeds[all->n_feeds - 1]->name, page->feeds[0]->name) == 0;
    int rc = goes_on ? add_jobs(all->feeds[all->n_feeds - 1], page->feeds[0]) : 0;
    if (rc != 0)
        return rc;
    Packd__V1__FeedStatus **feeds =
        joined(all->feeds, all->n_feeds, page->feeds + goes_on, page->n_feeds - goes_on);
    if (!feeds)
        return PACKD_ENOMEM;
    all->feeds = feeds;
    all->n_feeds += page->n_feeds - goes_on;
    page->n_feeds = goes_on; /* which is freed with the page */
    char *next = all->next_page;
    all->next_page = page->next_page;
    page->next_page = next;
    return 0;
}

/* One more page of *all. */
static int next_page(struct packd_admin *admin, Packd__V1__StatusRequest *request,
                     uint64_t deadline, Packd__V1__StatusResponse *all, struct packd_error *error)
{
    ProtobufCMessage *page = NULL;
    request->page = all->next_page;
    int rc = pd_conn_call(admin->channel, "/packd.v1.Admin/Status", &request->base,
                          &packd__v1__status_response__descriptor, deadline, &page, error);
    if (rc != 0)
        return rc;
    rc = add_page(all, (Packd__V1__StatusResponse *)page);
    protobuf_c_message_free_unpacked(page, NULL);
    return rc == 0 ? 0 : pd_client_error(error, rc, "MEMORY", "no memory for a reply");
}

int packd_admin_status(struct packd_admin *admin, const char *feed, const char *job, bool streams,
                       const char *streams_after, int64_t timeout_ms, char **json,
                       struct packd_error *error)
{
    Packd__V1__StatusRequest request = PACKD__V1__STATUS_REQUEST__INIT;
    request.feed = text(feed, "");
    request.job = text(job, "");
    request.streams = streams;
    request.streams_after = text(streams_after, "");
    PD_MAGIC_CHECK(admin, MAGIC);
    ProtobufCMessage *reply = NULL;
    uint64_t deadline = pd_conn_deadline_ns(timeout_ms, admin->timeout_ms, TIMEOUT_MS);
    int rc = pd_conn_call(admin->channel, "/packd.v1.Admin/Status", &request.base,
                          &packd__v1__status_response__descriptor, deadline, &reply, error);
    Packd__V1__StatusResponse *all = (Packd__V1__StatusResponse *)reply;
    for (uint32_t pages = 1; rc == 0 && all->next_page[0]; pages++)
        rc = pages < STATUS_PAGES_MAX
                 ? next_page(admin, &request, deadline, all, error)
                 : pd_client_error(error, PACKD_ELIMIT, "TOO_MANY_PAGES",
                                   "packd at %s: the status has more than %d pages; ask for one "
                                   "feed or job",
                                   pd_channel_server(admin->channel), STATUS_PAGES_MAX);
    if (rc == 0 && json)
        rc = reply_json(reply, json, error);
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
    return rc;
}

int packd_admin_explain(struct packd_admin *admin, const char *feed, const char *job, uint64_t step,
                        uint32_t first_entry, int64_t timeout_ms, char **json,
                        struct packd_error *error)
{
    Packd__V1__ExplainRequest request = PACKD__V1__EXPLAIN_REQUEST__INIT;
    request.feed = text(feed, "default");
    request.job = text(job, "");
    request.step = step;
    request.first_entry = first_entry;
    struct call call = {"/packd.v1.Admin/Explain", &request.base,
                        &packd__v1__explain_response__descriptor, timeout_ms};
    return run(admin, &call, json, error);
}

int packd_admin_flush(struct packd_admin *admin, const char *feed, uint64_t packs,
                      int64_t timeout_ms, char **json, struct packd_error *error)
{
    Packd__V1__FlushRequest request = PACKD__V1__FLUSH_REQUEST__INIT;
    request.feed = text(feed, "default");
    request.what_case =
        packs ? PACKD__V1__FLUSH_REQUEST__WHAT_PACKS : PACKD__V1__FLUSH_REQUEST__WHAT_ALL;
    if (packs)
        request.packs = packs;
    else
        request.all = true;
    struct call call = {"/packd.v1.Admin/Flush", &request.base,
                        &packd__v1__flush_response__descriptor, timeout_ms};
    return run(admin, &call, json, error);
}

int packd_admin_end_feed(struct packd_admin *admin, const char *feed, int64_t timeout_ms,
                         char **json, struct packd_error *error)
{
    Packd__V1__EndFeedRequest request = PACKD__V1__END_FEED_REQUEST__INIT;
    request.feed = text(feed, "default");
    struct call call = {"/packd.v1.Admin/EndFeed", &request.base,
                        &packd__v1__end_feed_response__descriptor, timeout_ms};
    return run(admin, &call, json, error);
}

int packd_admin_skip_steps(struct packd_admin *admin, const char *feed, const char *job,
                           uint64_t first, uint64_t last, const char *why, int64_t timeout_ms,
                           char **json, struct packd_error *error)
{
    Packd__V1__SkipStepsRequest request = PACKD__V1__SKIP_STEPS_REQUEST__INIT;
    request.feed = text(feed, "default");
    request.job = text(job, "");
    request.first = first;
    request.last = last;
    request.why = text(why, "");
    struct call call = {"/packd.v1.Admin/SkipSteps", &request.base,
                        &packd__v1__skip_steps_response__descriptor, timeout_ms};
    return run(admin, &call, json, error);
}

int packd_admin_set_mixture(struct packd_admin *admin, const char *feed,
                            const struct packd_source_weight *weights, size_t count,
                            int64_t timeout_ms, char **json, struct packd_error *error)
{
    Packd__V1__SetMixtureRequest request = PACKD__V1__SET_MIXTURE_REQUEST__INIT;
    Packd__V1__SourceWeight *messages = calloc(count + 1, sizeof *messages);
    Packd__V1__SourceWeight **list = calloc(count + 1, sizeof *list);
    int rc = messages && list ? 0 : PACKD_ENOMEM;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        packd__v1__source_weight__init(&messages[i]);
        messages[i].source = text(weights[i].source, "");
        messages[i].weight = weights[i].weight;
        list[i] = &messages[i];
    }
    request.feed = text(feed, "default");
    request.weights = list;
    request.n_weights = count;
    struct call call = {"/packd.v1.Admin/SetMixture", &request.base,
                        &packd__v1__set_mixture_response__descriptor, timeout_ms};
    rc = rc == 0 ? run(admin, &call, json, error)
                 : pd_client_error(error, rc, "NO_MEMORY", "no memory for a request");
    free(messages);
    free(list);
    return rc;
}

static ProtobufCBinaryData bytes(const void *data, size_t size)
{
    return (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)data, .len = size};
}

int packd_admin_skip_samples(struct packd_admin *admin, const char *feed,
                             const struct packd_sample_filter *filter, const char *why,
                             int64_t timeout_ms, char **json, struct packd_error *error)
{
    Packd__V1__SkipSamplesRequest request = PACKD__V1__SKIP_SAMPLES_REQUEST__INIT;
    request.feed = text(feed, "default");
    request.stream = text(filter->stream, "");
    request.source = text(filter->source, "");
    if (filter->has_first_seq)
        request.lower_case = PACKD__V1__SKIP_SAMPLES_REQUEST__LOWER_FIRST_SEQ;
    if (filter->has_last_seq)
        request.upper_case = PACKD__V1__SKIP_SAMPLES_REQUEST__UPPER_LAST_SEQ;
    request.first_seq = filter->has_first_seq ? filter->first_seq : 0;
    request.last_seq = filter->has_last_seq ? filter->last_seq : 0;
    request.group = bytes(filter->group, filter->group_bytes);
    request.key = bytes(filter->key, filter->key_bytes);
    request.version_below = filter->version_below;
    request.why = text(why, "");
    struct call call = {"/packd.v1.Admin/SkipSamples", &request.base,
                        &packd__v1__skip_samples_response__descriptor, timeout_ms};
    return run(admin, &call, json, error);
}

int packd_admin_delete_stream(struct packd_admin *admin, const char *feed, const char *stream,
                              bool force, int64_t timeout_ms, char **json,
                              struct packd_error *error)
{
    Packd__V1__DeleteStreamRequest request = PACKD__V1__DELETE_STREAM_REQUEST__INIT;
    request.feed = text(feed, "default");
    request.stream = text(stream, "");
    request.force = force;
    struct call call = {"/packd.v1.Admin/DeleteStream", &request.base,
                        &packd__v1__delete_response__descriptor, timeout_ms};
    return run(admin, &call, json, error);
}

int packd_admin_delete_feed(struct packd_admin *admin, const char *feed, bool force,
                            int64_t timeout_ms, char **json, struct packd_error *error)
{
    Packd__V1__DeleteFeedRequest request = PACKD__V1__DELETE_FEED_REQUEST__INIT;
    request.feed = text(feed, "default");
    request.force = force;
    struct call call = {"/packd.v1.Admin/DeleteFeed", &request.base,
                        &packd__v1__delete_response__descriptor, timeout_ms};
    return run(admin, &call, json, error);
}

int packd_admin_delete_job(struct packd_admin *admin, const char *feed, const char *job, bool force,
                           int64_t timeout_ms, char **json, struct packd_error *error)
{
    Packd__V1__DeleteJobRequest request = PACKD__V1__DELETE_JOB_REQUEST__INIT;
    request.feed = text(feed, "default");
    request.job = text(job, "");
    request.force = force;
    struct call call = {"/packd.v1.Admin/DeleteJob", &request.base,
                        &packd__v1__delete_response__descriptor, timeout_ms};
    return run(admin, &call, json, error);
}

int packd_admin_drain(struct packd_admin *admin, bool undo, int64_t timeout_ms, char **json,
                      struct packd_error *error)
{
    Packd__V1__DrainRequest request = PACKD__V1__DRAIN_REQUEST__INIT;
    request.undo = undo;
    struct call call = {"/packd.v1.Admin/Drain", &request.base,
                        &packd__v1__drain_response__descriptor, timeout_ms};
    return run(admin, &call, json, error);
}

/* ---- commit by an operator ------------------------------------------------------------------- */

static const Packd__V1__JobStatus *find_job(const Packd__V1__StatusResponse *status,
                                            const char *feed, const char *job)
{
    for (size_t f = 0; f < status->n_feeds; f++)
        for (size_t j = 0; j < status->feeds[f]->n_jobs; j++)
            if (strcmp(status->feeds[f]->name, feed) == 0 &&
                strcmp(status->feeds[f]->jobs[j]->name, job) == 0)
                return status->feeds[f]->jobs[j];
    return NULL;
}

/* The server judges by what the request says was received, and an operator received nothing: what
 * the ranks got is in the job's status. */
static void tell_delivered(struct packd_admin *admin, const Packd__V1__CommitRequest *request,
                           const Packd__V1__JobStatus *job, struct packd_error *error)
{
    char upto[80] = "has delivered no step yet";
    if (job->delivered_step >= 0)
        snprintf(upto, sizeof upto, "has delivered steps up to %" PRId64, job->delivered_step);
    pd_client_error(error, PACKD_EINVAL, "COMMIT_BEYOND_FETCHED",
                    "packd at %s: step %" PRIu64
                    " cannot be committed: job %s of feed %s %s (planned: %" PRId64 " steps)",
                    pd_channel_server(admin->channel), request->step, request->job, request->feed,
                    upto, job->planned_step + 1);
}

int packd_admin_commit(struct packd_admin *admin, const char *feed, const char *job, uint64_t step,
                       int64_t timeout_ms, char **json, struct packd_error *error)
{
    PD_MAGIC_CHECK(admin, MAGIC);
    Packd__V1__StatusRequest ask = PACKD__V1__STATUS_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    ask.feed = text(feed, "default");
    ask.job = text(job, "");
    uint64_t deadline = pd_conn_deadline_ns(timeout_ms, admin->timeout_ms, TIMEOUT_MS);
    int rc = pd_conn_call(admin->channel, "/packd.v1.Admin/Status", &ask.base,
                          &packd__v1__status_response__descriptor, deadline, &reply, error);
    if (rc != 0)
        return rc;
    const Packd__V1__StatusResponse *status = (const void *)reply;
    const Packd__V1__JobStatus *found = find_job(status, ask.feed, ask.job);
    Packd__V1__CommitRequest request = PACKD__V1__COMMIT_REQUEST__INIT;
    request.feed = ask.feed;
    request.job = ask.job;
    request.step = step;
    request.fetched = (int64_t)step;
    request.log_id = status->log_id;
    request.generation = found ? found->generation : 0;
    struct call call = {"/packd.v1.Feed/Commit", &request.base,
                        &packd__v1__commit_response__descriptor, timeout_ms};
    if (found)
        rc = run(admin, &call, json, error);
    else
        rc = pd_client_error(error, PACKD_ENOTFOUND, "UNKNOWN_JOB",
                             "packd at %s: feed %s has no job %s",
                             pd_channel_server(admin->channel), ask.feed, ask.job);
    if (rc != 0 && found && error && strcmp(error->reason, "COMMIT_BEYOND_FETCHED") == 0) {
        int grpc_code = error->grpc_code;
        tell_delivered(admin, &request, found, error);
        error->grpc_code = grpc_code;
    }
    protobuf_c_message_free_unpacked(reply, NULL);
    return rc;
}
