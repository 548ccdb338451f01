/* Jobs: named readers of a feed, their worlds and their commits.
 *
 * All ranks of one launch bring the same world token. A token never seen raises the generation
 * and fences the world before it; the current one joins; a superseded one is refused for good,
 * so that a world that wakes up late cannot fence the living one. Sequencer thread. Invariant:
 * generation and last committed step never fall. It does not know which batches exist. */
#include "server/sequencer_jobs.h"

#include "base/check.h"
#include "base/clock.h"
#include "packer/layout.h"
#include "server/sequencer_space.h"
#include "server/sequencer_tables.h"
#include "server/serve_view.h"

#include <stdio.h>
#include <stdlib.h>

struct pd_job_steps pd_seq_job_steps(const struct pd_seq_feed *feed, const struct pd_seq_job *job)
{
    return (struct pd_job_steps){.config = feed->config,
                                 .first_step = job->first_step,
                                 .first_pack = job->first_pack,
                                 .step_packs = job->spec.step_packs};
}

static struct pd_seq_job *job_find(const struct pd_seq_feed *feed, const char *name)
{
    for (uint32_t i = 0; i < feed->job_count; i++)
        if (!feed->jobs[i]->deleted && strcmp(feed->jobs[i]->spec.name, name) == 0)
            return feed->jobs[i];
    return NULL;
}

int pd_seq_job_named(struct pd_sequencer *seq, const char *feed_name, const char *name,
                     struct pd_seq_feed **feed, struct pd_seq_job **job, struct pd_error *error)
{
    int rc = pd_seq_feed_named(seq, feed_name, feed, error);
    if (rc)
        return rc;
    *job = job_find(*feed, name);
    if (!*job)
        return pd_error_set(error, PD_ENOTFOUND, "UNKNOWN_JOB", "feed '%s' has no job '%s'",
                            feed_name, name);
    return 0;
}

void pd_seq_job_advance(struct pd_seq_job *job, uint64_t step)
{
    if (job->delivered < step)
        job->delivered = step;
    job->delivered = pd_step_ranges_pass(&job->skipped, job->delivered);
}

void pd_seq_job_free(struct pd_seq_job *job)
{
    pd_step_ranges_fini(&job->skipped);
    free(job);
}

/* ---- what a job may ask for ---- */

/* dp_size*rows*accum choices that make step_packs, as text. */
static void list_options(const struct pd_job_spec *spec, char *text, size_t size)
{
    size_t at = 0;
    uint32_t per_rank = spec->dp_size && spec->step_packs % spec->dp_size == 0
                            ? spec->step_packs / spec->dp_size
                            : 0;
    text[0] = 0;
    if (per_rank == 0) {
        at = (size_t)snprintf(text, size, "dp_size must divide %u", spec->step_packs);
        return;
    }
    uint32_t listed = 0;
    for (uint32_t rows = 1; rows <= per_rank && rows <= 4096 && listed < 8 && at + 32 < size;
         rows++) {
        if (per_rank % rows)
            continue;
        at += (size_t)snprintf(text + at, size - at, "%s%u*%u*%u", listed ? ", " : "",
                               spec->dp_size, rows, per_rank / rows);
        listed++;
    }
}

static int check_shape(const struct pd_job_spec *spec, struct pd_error *error)
{
    bool zero = !spec->step_packs || !spec->dp_size || !spec->rows || !spec->accum;
    uint64_t row_packs = (uint64_t)spec->dp_size * spec->rows;
    bool fits = !zero && row_packs <= UINT32_MAX && row_packs * spec->accum == spec->step_packs;
    if (fits)
        return 0;
    char options[160];
    list_options(spec, options, sizeof options);
    return pd_error_set(
        error, PD_EMISMATCH, "STEP_PACKS",
        "job '%s': dp_size %u * rows %u * accum %u is not step_packs %u; what fits: %s", spec->name,
        spec->dp_size, spec->rows, spec->accum, spec->step_packs, options);
}

static int check_feed_allows(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                             const struct pd_job_spec *spec, struct pd_error *error)
{
    uint32_t align = feed->config->rules.seg_align;
    if (spec->segment_multiple > 0 && align % spec->segment_multiple != 0)
        return pd_error_set(error, PD_EMISMATCH, "SEGMENT_MULTIPLE",
                            "job '%s' needs segments at multiples of %u, but feed '%s' has "
                            "seg_align %u; set seg_align "
                            "to a multiple of it",
                            spec->name, spec->segment_multiple, feed->name, align);
    if (feed->config->balance == PD_BALANCE_COST && spec->step_packs > PD_BALANCED_STEP_PACKS_MAX)
        return pd_error_set(error, PD_ELIMIT, "STEP_TOO_LARGE",
                            "job '%s': a step of %u packs, feed '%s' balances steps of up to %u; "
                            "use fewer packs a step or balance: off",
                            spec->name, spec->step_packs, feed->name, PD_BALANCED_STEP_PACKS_MAX);
    const struct pd_layout_rules *layout = &feed->config->layout;
    uint64_t segments = spec->rows * pd_layout_row_segments_max(layout, layout->segments_max);
    if (layout->fixed_segments > 0 && segments > layout->fixed_segments)
        return pd_error_set(
            error, PD_ELIMIT, "TOO_MANY_SEGMENTS",
            "job '%s': a batch of %u rows can have %llu segments, padding included, "
            "and feed '%s' has fixed_segments %u; use fewer rows and more accum, or "
            "lower max_segments (%u)",
            spec->name, spec->rows, (unsigned long long)segments, feed->name,
            layout->fixed_segments, layout->segments_max);
    uint64_t bytes = pd_layout_payload_max(&feed->config->layout, spec->rows);
    if (bytes > seq->config->memory_batches_bytes / 2)
        return pd_error_set(
            error, PD_ELIMIT, "BATCH_TOO_LARGE",
            "job '%s': a batch of %u rows may take %llu bytes, more than half of memory.batches "
            "(%llu); use fewer rows and more accum",
            spec->name, spec->rows, (unsigned long long)bytes,
            (unsigned long long)seq->config->memory_batches_bytes);
    return pd_seq_job_fits(seq, feed, spec, error);
}

static int check_open(const struct pd_sequencer *seq, const struct pd_seq_feed *feed,
                      const struct pd_request_open_job *request, struct pd_error *error)
{
    const char *log_id = pd_log_id(seq->log);
    int rc = pd_name_check("job", request->spec.name, error);
    if (rc)
        return rc;
    if (request->log_id[0] && strcmp(request->log_id, log_id) != 0)
        return pd_error_set(
            error, PD_EMISMATCH, "LOG_ID",
            "job '%s' carries the state of log %s, this server has log %s: its steps are others",
            request->spec.name, request->log_id, log_id);
    rc = check_shape(&request->spec, error);
    return rc ? rc : check_feed_allows(seq, feed, &request->spec, error);
}

/* ---- worlds ---- */

static int spec_field(const char *job, const char *field, uint32_t has, uint32_t wanted,
                      struct pd_error *error)
{
    if (has == wanted)
        return 0;
    bool regroups = strcmp(field, "step_packs") == 0;
    return pd_error_set(error, PD_EMISMATCH, "SPEC_MISMATCH",
                        "job '%s' runs with %s %u and this rank asks for %u; all ranks of a world "
                        "must agree. Ask for the same, use another job name, delete this job "
                        "(packctl delete-job --job %s), or let it go on so from its last commit: a "
                        "new world, with a world_token of its own (packctl fetch --world)%s",
                        job, field, has, wanted, job, regroups ? " and `regroup` (--regroup)" : "");
}

static int check_kind(const struct pd_job_spec *has, const struct pd_job_spec *wanted,
                      struct pd_error *error)
{
    static const char *const names[] = {
        [PD_JOB_TRAINER] = "a training job", [PD_JOB_READER] = "a reader"};
    if (has->kind == wanted->kind)
        return 0;
    return pd_error_set(error, PD_EMISMATCH, "SPEC_MISMATCH",
                        "job '%s' is %s, not %s; use another job name, or delete this job (packctl "
                        "delete-job --job %s)",
                        has->name, names[has->kind], names[wanted->kind], has->name);
}

static int check_same_spec(const struct pd_job_spec *has, const struct pd_job_spec *wanted,
                           struct pd_error *error)
{
    int rc = check_kind(has, wanted, error);
    if (!rc)
        rc = spec_field(has->name, "step_packs", has->step_packs, wanted->step_packs, error);
    if (!rc)
        rc = spec_field(has->name, "dp_size", has->dp_size, wanted->dp_size, error);
    if (!rc)
        rc = spec_field(has->name, "rows", has->rows, wanted->rows, error);
    if (!rc)
        rc = spec_field(has->name, "accum", has->accum, wanted->accum, error);
    if (!rc)
        rc = spec_field(has->name, "segment_multiple", has->segment_multiple,
                        wanted->segment_multiple, error);
    return rc;
}

static void remember_token(struct pd_seq_job *job, const char *token)
{
    if (job->token_count == PD_SEQ_TOKENS_MAX) {
        memmove(job->tokens[0], job->tokens[1], sizeof job->tokens[0] * (PD_SEQ_TOKENS_MAX - 1));
        job->token_count--;
    }
    snprintf(job->tokens[job->token_count++], PD_NAME_MAX + 1, "%s", token);
}

enum world { WORLD_NEW, WORLD_CURRENT, WORLD_SUPERSEDED };

static enum world world_of(const struct pd_seq_job *job, const char *token)
{
    if (!token[0])
        return WORLD_CURRENT;
    for (uint32_t i = 0; i < job->token_count; i++)
        if (strcmp(job->tokens[i], token) == 0)
            return i + 1 == job->token_count ? WORLD_CURRENT : WORLD_SUPERSEDED;
    return WORLD_NEW;
}

int pd_seq_job_record(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_seq_job *job)
{
    job->dirty = true;
    job->announce = true;
    feed->plan_wanted = true;
    pd_buf_clear(&seq->body);
    pd_buf_put_u32(&seq->body, job->id);
    pd_seq_job_encode(job, &seq->body);
    return pd_seq_record(seq, PD_RECORD_OPEN_JOB, feed->number);
}

/* Where the caller begins: behind its checkpoint, at the lowest step, or behind the last commit (a
 * job that never commits may find that trimmed: then at the lowest). */
static uint64_t first_step(const struct pd_seq_feed *feed, const struct pd_seq_job *job,
                           const struct pd_request_open_job *request)
{
    if (request->has_resume_step)
        return request->resume_step + 1;
    uint64_t lowest = pd_seq_lowest_step(feed, job);
    return request->from_start || job->committed < lowest ? lowest : job->committed;
}

/* A world begins where its checkpoint ends; that must still be there. */
static int check_resume_held(const struct pd_seq_feed *feed, const struct pd_seq_job *job,
                             struct pd_request_open_job *request)
{
    request->lowest_step = pd_seq_lowest_step(feed, job);
    if (!request->has_resume_step || request->resume_step + 1 >= request->lowest_step)
        return 0;
    if (request->resume_step + 1 < job->first_step)
        return pd_error_set(&request->base.error, PD_ERANGE, "STEP_TRIMMED",
                            "job '%s' would resume at step %llu, but was regrouped to %u packs a "
                            "step at step %llu: "
                            "nothing before that can be gone back to",
                            job->spec.name, (unsigned long long)request->resume_step + 1,
                            job->spec.step_packs, (unsigned long long)job->first_step);
    return pd_error_set(&request->base.error, PD_ERANGE, "STEP_TRIMMED",
                        "job '%s' would resume at step %llu, which is no longer in the log; the "
                        "lowest that is is %llu (see jobs.retain)",
                        job->spec.name, (unsigned long long)request->resume_step + 1,
                        (unsigned long long)request->lowest_step);
}

static int raise_generation(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                            struct pd_seq_job *job, struct pd_request_open_job *request,
                            struct pd_error *error)
{
    int rc = check_kind(&job->spec, &request->spec, error);
    if (!rc)
        rc = check_resume_held(feed, job, request);
    if (!rc && job->spec.step_packs != request->spec.step_packs)
        rc = pd_seq_regroup(feed, job, request, error);
    if (rc)
        return rc;
    job->spec = request->spec;
    job->world = ++job->generation;
    job->loaded_steps = 0;
    job->world_first_step = first_step(feed, job, request);
    job->delivered = 0; /* to this world */
    pd_seq_job_advance(job, job->world_first_step);
    remember_token(job, request->world_token);
    return pd_seq_job_record(seq, feed, job);
}

static int add_job(struct pd_sequencer *seq, struct pd_seq_feed *feed,
                   const struct pd_request_open_job *request, struct pd_seq_job **out,
                   struct pd_error *error)
{
    if (feed->job_count >= PD_SEQ_JOBS_MAX)
        return pd_error_set(error, PD_ELIMIT, "TOO_MANY_JOBS", "feed '%s' has %u jobs already",
                            feed->name, feed->job_count);
    struct pd_seq_job **jobs = realloc(feed->jobs, (feed->job_count + 1) * sizeof *jobs);
    if (!jobs)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    feed->jobs = jobs;
    struct pd_seq_job *job = calloc(1, sizeof *job);
    if (!job)
        return pd_error_set(error, PD_ENOMEM, "NO_MEMORY", "out of memory");
    job->id = feed->next_job_id++;
    job->spec = request->spec;
    job->generation = job->world = 1;
    job->delivered_known = true;
    job->first_pack = feed->lowest_pack;
    job->world_first_step = first_step(feed, job, request);
    if (request->world_token[0])
        remember_token(job, request->world_token);
    feed->jobs[feed->job_count++] = job;
    feed->dirty = true;
    *out = job;
    return pd_seq_job_record(seq, feed, job);
}

static int enter_world(struct pd_sequencer *seq, struct pd_seq_feed *feed, struct pd_seq_job *job,
                       struct pd_request_open_job *request, struct pd_error *error)
{
    switch (world_of(job, request->world_token)) {
    case WORLD_NEW:
        return raise_generation(seq, feed, job, request, error);
    case WORLD_SUPERSEDED:
        return pd_error_set(error, PD_EFENCED, "STALE_WORLD",
                            "job '%s': world '%s' was superseded by '%s'; it is over",
                            job->spec.name, request->world_token,
                            job->tokens[job->token_count - 1]);
    case WORLD_CURRENT:
        break;
    }
    int rc = check_same_spec(&job->spec, &request->spec, error);
    /* With a token it may be a rank that is far ahead and opens the job again. */
    return rc || request->world_token[0] ? rc : check_resume_held(feed, job, request);
}

/* Ranks of one world begin at one step, also those that come after its first commit. Without a
 * token a caller begins behind the last commit. */
static void answer_open(const struct pd_seq_feed *feed, struct pd_seq_job *job,
                        struct pd_request_open_job *request)
{
    request->feed_index = feed->index;
    request->job_id = job->id;
    request->tokenizer = feed->tokenizer;
    request->generation = job->generation;
    request->committed = job->committed;
    request->lowest_step = pd_seq_lowest_step(feed, job);
    bool says = request->has_resume_step || request->from_start;
    request->first_step =
        says || !request->world_token[0] ? first_step(feed, job, request) : job->world_first_step;
    if (!request->has_resume_step && request->first_step < request->lowest_step)
        request->first_step = request->lowest_step;
    request->first_step = pd_step_ranges_pass(&job->skipped, request->first_step);
    pd_seq_job_advance(job, request->first_step);
}

static bool step_exists(const struct pd_seq_feed *feed, const struct pd_job_steps *steps,
                        uint64_t step)
{
    if (step < steps->first_step)
        return true; /* of another size, before */
    return step <= UINT32_MAX &&
           steps->first_pack + (step - steps->first_step) * steps->step_packs < feed->packs;
}

/* A checkpoint holds steps that were received, and those are planned: another step is a slip, and
 * planning up to it would use up the log. `job` is NULL for a new one. */
static int check_resume_planned(const struct pd_seq_feed *feed, const struct pd_seq_job *job,
                                const struct pd_request_open_job *request, struct pd_error *error)
{
    struct pd_job_steps steps = {.config = feed->config,
                                 .first_pack = feed->lowest_pack,
                                 .step_packs = request->spec.step_packs};
    if (job)
        steps = pd_seq_job_steps(feed, job);
    if (!request->has_resume_step || step_exists(feed, &steps, request->resume_step))
        return 0;
    uint64_t packs = feed->packs > steps.first_pack ? feed->packs - steps.first_pack : 0;
    uint64_t planned = steps.first_step + (packs + steps.step_packs - 1) / steps.step_packs;
    return pd_error_set(error, PD_ERANGE, "STEP_NOT_PLANNED",
                        "job '%s': resume_step %llu, but only %llu steps of feed '%s' are planned: "
                        "nobody can have got so far (a checkpoint of another log?)",
                        request->spec.name, (unsigned long long)request->resume_step,
                        (unsigned long long)planned, feed->name);
}

int pd_seq_open_job(struct pd_sequencer *seq, struct pd_request_open_job *request)
{
    struct pd_error *error = &request->base.error;
    struct pd_seq_feed *feed = NULL;
    int rc = pd_seq_feed_named(seq, request->feed, &feed, error);
    if (!rc)
        rc = check_open(seq, feed, request, error);
    if (rc)
        return rc;
    struct pd_seq_job *job = job_find(feed, request->spec.name);
    rc = check_resume_planned(feed, job, request, error);
    if (rc)
        return rc;
    request->created = !job;
    rc = job ? enter_world(seq, feed, job, request, error)
             : add_job(seq, feed, request, &job, error);
    if (!rc)
        rc = pd_seq_job_alive(seq, feed, job);
    if (!rc)
        answer_open(feed, job, request);
    return rc;
}

/* ---- Commit ---- */

static void remember_commit(struct pd_seq_job *job, uint64_t step, uint64_t wall_ns)
{
    if (job->commit_count == PD_SEQ_COMMITS_MAX) {
        memmove(&job->commits[0], &job->commits[1],
                sizeof job->commits[0] * (PD_SEQ_COMMITS_MAX - 1));
        job->commit_count--;
    }
    job->commits[job->commit_count++] = (struct pd_seq_commit){.step = step, .wall_ns = wall_ns};
}

int pd_seq_commit_job(struct pd_sequencer *seq, struct pd_request_commit *request)
{
    struct pd_error *error = &request->base.error;
    struct pd_seq_feed *feed = NULL;
    struct pd_seq_job *job = NULL;
    int rc = pd_seq_job_named(seq, request->feed, request->job, &feed, &job, error);
    if (rc)
        return rc;
    if (request->generation != job->generation)
        return pd_error_set(error, PD_EFENCED, "FENCED",
                            "job '%s' is at generation %llu, this commit comes from %llu",
                            request->job, (unsigned long long)job->generation,
                            (unsigned long long)request->generation);
    struct pd_job_steps steps = pd_seq_job_steps(feed, job);
    bool received = request->step <= request->fetched;
    if (received && !step_exists(feed, &steps, request->step))
        return pd_error_set(error, PD_EINVAL, "COMMIT_BEYOND_FETCHED",
                            "job '%s' commits step %llu, which has not been planned", request->job,
                            (unsigned long long)request->step);
    if (!received)
        return pd_error_set(error, PD_EINVAL, "COMMIT_BEYOND_FETCHED",
                            "job '%s' commits step %llu, but has received no more than step %llu",
                            request->job, (unsigned long long)request->step,
                            (unsigned long long)request->fetched);
    rc = pd_seq_job_alive(seq, feed, job);
    if (rc || request->step < job->committed)
        return rc;
    uint64_t wall_ns = pd_clock_wall_ns();
    pd_buf_clear(&seq->body);
    pd_buf_put_u32(&seq->body, job->id);
    pd_buf_put_u64(&seq->body, job->generation);
    pd_buf_put_u64(&seq->body, request->step);
    pd_buf_put_u64(&seq->body, wall_ns);
    rc = pd_seq_record(seq, PD_RECORD_COMMIT, feed->number);
    if (rc)
        return rc;
    job->committed = request->step + 1;
    pd_seq_job_advance(job, job->committed);
    remember_commit(job, request->step, wall_ns);
    job->dirty = true;
    feed->trim_wanted = true;
    feed->plan_wanted = true;
    return 0;
}

/* ---- the rest ---- */

static struct pd_seq_job *job_by_id(const struct pd_seq_feed *feed, uint32_t id)
{
    for (uint32_t i = 0; i < feed->job_count; i++)
        if (!feed->jobs[i]->deleted && feed->jobs[i]->id == id)
            return feed->jobs[i];
    return NULL;
}

int pd_seq_delivered(struct pd_sequencer *seq, struct pd_request_delivered *request)
{
    struct pd_seq_feed *feed = pd_seq_feed_at_index(&seq->state, request->feed_index);
    struct pd_seq_job *job = feed ? job_by_id(feed, request->job_id) : NULL;
    if (!job)
        return pd_error_set(&request->base.error, PD_ENOTFOUND, "UNKNOWN_JOB",
                            "no job %u of feed %u", request->job_id, request->feed_index);
    if (request->step >= (request->said ? job->loaded_steps : UINT32_MAX))
        return 0;
    pd_seq_job_advance(job, request->step + 1);
    job->delivered_known |= !request->said;
    feed->plan_wanted = true;
    return pd_seq_job_alive(seq, feed, job);
}

int pd_seq_delete_job(struct pd_sequencer *seq, struct pd_request_delete_job *request)
{
    struct pd_error *error = &request->base.error;
    struct pd_seq_feed *feed = NULL;
    struct pd_seq_job *job = NULL;
    int rc = pd_seq_job_named(seq, request->feed, request->job, &feed, &job, error);
    if (rc)
        return rc;
    uint32_t calls = pd_serve_job_calls(seq->serve, feed->index, job->id);
    if (calls > 0 && !request->force)
        return pd_error_set(error, PD_EMISMATCH, "IN_USE",
                            "job %s of feed %s has %u open fetch calls; end them, or delete it "
                            "with `force` (packctl delete-job --force)",
                            request->job, request->feed, calls);
    request->base.record = pd_log_next_position(seq->log);
    pd_buf_clear(&seq->body);
    pd_buf_put_u32(&seq->body, job->id);
    rc = pd_seq_record(seq, PD_RECORD_DELETE_JOB, feed->number);
    if (rc)
        return rc;
    rc = pd_log_delete_row(seq->log, PD_TABLE_JOBS, feed->number, job->id, error);
    if (rc)
        return pd_seq_write_failed(seq, rc, error);
    job->deleted = true;
    feed->trim_wanted = true;
    return 0;
}
