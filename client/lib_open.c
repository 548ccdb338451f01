/* OpenJob: joins the job and copies what it has agreed on, at open and again after every break.
 *
 * Called from the caller's thread (open, commit) and from the job's own; `opening` lets one of them
 * at a time. The request is the same every time, so the server recognises the world by its
 * token. */
#include "client/lib_job.h"

#include "base/check.h"
#include "client/lib_error.h"

#include <stdio.h>

static void copy_text(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%.*s", (int)size - 1, from);
}

static void fill_request(struct packd_job *job, Packd__V1__OpenJobRequest *request)
{
    const struct packd_job_options *o = &job->options;
    request->feed = (char *)(uintptr_t)o->feed;
    request->job = (char *)(uintptr_t)o->job;
    request->step_packs = o->step_packs;
    request->dp_size = o->dp_size;
    request->rows = o->rows;
    request->accum = o->accum;
    request->arrays = o->arrays == PACKD_ARRAYS_CORE ? PACKD__V1__ARRAYS__ARRAYS_CORE
                                                     : PACKD__V1__ARRAYS__ARRAYS_ALL;
    request->kind = o->kind == PACKD_KIND_READER ? PACKD__V1__JOB_KIND__JOB_READER
                                                 : PACKD__V1__JOB_KIND__JOB_TRAINER;
    request->dp_rank = o->dp_rank;
    request->world_token = (char *)(uintptr_t)o->world_token;
    request->segment_multiple = o->segment_multiple;
    request->log_id = job->info.log_id;
    request->commit_every = o->commit_every;
    request->regroup = o->regroup;
    request->labels = (Packd__V1__LabelConvention)o->labels;
    request->client = (char *)(uintptr_t)o->client;
    if (o->start == PACKD_START_RESUME) {
        request->start_case = PACKD__V1__OPEN_JOB_REQUEST__START_RESUME_STEP;
        request->resume_step = o->resume_step;
    } else if (o->start == PACKD_START_FIRST) {
        request->start_case = PACKD__V1__OPEN_JOB_REQUEST__START_FROM_START;
        request->from_start = true;
    }
}

static void take_spec(struct packd_spec *spec, const Packd__V1__JobSpec *s)
{
    *spec = (struct packd_spec){
        .step_packs = s->step_packs,
        .dp_size = s->dp_size,
        .rows = s->rows,
        .accum = s->accum ? s->accum : 1,
        .seq_len = s->seq_len,
        .pad_id = s->pad_id,
        .labels = (enum packd_labels)s->labels,
        .loss_weight = (enum packd_loss)s->loss_weight,
        .seg_align = s->seg_align,
        .total_align = s->total_align,
        .pad_segment = s->pad_segment,
        .max_segments = s->max_segments,
        .fixed_segments = s->fixed_segments,
        .segment_multiple = s->segment_multiple,
        .vocab_size = s->vocab_size,
        .mrope = s->mrope,
        .max_batch_bytes = s->max_batch_bytes,
    };
    copy_text(spec->width, sizeof spec->width, s->width);
    copy_text(spec->last_step, sizeof spec->last_step, s->last_step);
    for (size_t i = 0; i < s->n_widths && i < PD_COUNT_OF(spec->widths); i++)
        spec->widths[spec->width_count++] = s->widths[i];
}

void pd_job_expect(struct packd_job *job, uint64_t batch_bytes)
{
    if (batch_bytes <= job->largest_bytes)
        return;
    job->largest_bytes = batch_bytes;
    uint64_t by_bytes = job->options.prefetch_bytes / batch_bytes;
    uint64_t capacity =
        job->options.prefetch_batches < by_bytes ? job->options.prefetch_batches : by_bytes;
    job->capacity = job->info.capacity_batches = capacity ? (uint32_t)capacity : 1;
}

static void take_first(struct packd_job *job, const Packd__V1__OpenJobResponse *r)
{
    job->info.first_step = job->info.next_step = job->cursor.step = r->first_step;
    job->info.returned_step = -1;
    job->info.created = r->created;
    job->until_step = UINT64_MAX;
    if (job->options.steps_max > 0 && job->options.steps_max - 1 < UINT64_MAX - r->first_step)
        job->until_step = r->first_step + job->options.steps_max - 1;
    take_spec(&job->info.spec, r->spec);
    job->capacity = job->info.capacity_batches = 1; /* until a batch has shown how large they are */
}

static void take_response(struct packd_job *job, const Packd__V1__OpenJobResponse *r, bool again)
{
    if (!again)
        take_first(job, r);
    copy_text(job->info.log_id, sizeof job->info.log_id, r->log_id);
    copy_text(job->info.server_version, sizeof job->info.server_version, r->server_version);
    job->info.incarnation = r->incarnation;
    job->info.generation = r->generation;
    job->info.lowest_step = r->lowest_step;
    job->info.committed_step = r->committed_step;
    job->info.reopens += again;
    job->skipped_count = 0;
    for (size_t i = 0; i < r->n_skipped && i < PD_SKIPPED_MAX; i++) {
        job->skipped[i].first = r->skipped[i]->first;
        job->skipped[i].last = r->skipped[i]->last;
        job->skipped_count++;
    }
}

int pd_job_reopen(struct packd_job *job, bool again, uint64_t deadline_ns,
                  struct packd_error *error)
{
    Packd__V1__OpenJobRequest request = PACKD__V1__OPEN_JOB_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    pthread_mutex_lock(&job->opening);
    fill_request(job, &request);
    int rc = pd_conn_call(job->channel, "/packd.v1.Feed/OpenJob", &request.base,
                          &packd__v1__open_job_response__descriptor, deadline_ns, &reply, error);
    const Packd__V1__OpenJobResponse *response = (const void *)reply;
    if (rc == 0 && !response->spec)
        rc = pd_client_error(error, PACKD_ECORRUPT, "REPLY",
                             "packd at %s: OpenJob: the reply lacks the job's spec",
                             pd_channel_server(job->channel));
    if (rc == 0) {
        pthread_mutex_lock(&job->lock);
        take_response(job, response, again);
        pthread_mutex_unlock(&job->lock);
    }
    pthread_mutex_unlock(&job->opening);
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
    if (rc != 0)
        pd_client_error_prefix(error, "job %s of feed %s, dp_rank %u", job->options.job,
                               job->options.feed, job->options.dp_rank);
    return rc;
}
