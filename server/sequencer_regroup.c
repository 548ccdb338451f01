/* Regrouping: a job goes on with steps of another size.
 *
 * Steps keep their numbers: the first of the new size is the one behind the last commit, and begins
 * at the pack behind the last one committed, so every pack is in one step of the old size or one of
 * the new. Where packs of committed steps and of later ones are mixed (balance: cost, inside a
 * part) that place does not exist, and the next one is named. Sequencer thread. Invariant: what has
 * been committed stays as it was. It does not raise the generation: OpenJob does. */
#include "server/sequencer_jobs.h"

#include "base/log.h"
#include "server/sequencer_space.h"

/* Where the world would begin; there is a job. */
static uint64_t begins_at(const struct pd_seq_feed *feed, const struct pd_seq_job *job,
                          const struct pd_request_open_job *request)
{
    if (request->has_resume_step)
        return request->resume_step + 1;
    return request->from_start ? pd_seq_lowest_step(feed, job) : job->committed;
}

static int check_regroup(const struct pd_seq_feed *feed, const struct pd_seq_job *job,
                         const struct pd_request_open_job *request, struct pd_error *error)
{
    struct pd_job_steps steps = pd_seq_job_steps(feed, job);
    uint64_t begin = begins_at(feed, job, request), next;
    uint64_t at = job->committed > job->first_step ? job->committed : job->first_step;
    if (!request->regroup)
        return pd_error_set(
            error, PD_EMISMATCH, "REGROUP",
            "job '%s' has step_packs %u and this world asks for %u: its steps would be others; set "
            "`regroup` (packctl fetch --regroup) to go on so from its last commit, use another job "
            "name, or delete this job (packctl delete-job --job %s)",
            job->spec.name, job->spec.step_packs, request->spec.step_packs, job->spec.name);
    if (begin != at)
        return pd_error_set(
            error, PD_EMISMATCH, "REGROUP",
            "job '%s' can be regrouped at its last commit only: step %llu comes next, "
            "this world would begin at step %llu",
            job->spec.name, (unsigned long long)at, (unsigned long long)begin);
    const struct pd_step_ranges *skipped = &job->skipped;
    if (skipped->count > 0 && skipped->ranges[skipped->count - 1].last >= at)
        return pd_error_set(
            error, PD_EMISMATCH, "REGROUP",
            "job '%s': steps up to %llu are left out (SkipSteps), and another size "
            "would move them; go on with %u packs a step until a step behind them is "
            "committed, then regroup",
            job->spec.name, (unsigned long long)skipped->ranges[skipped->count - 1].last,
            job->spec.step_packs);
    if (!pd_job_step_splits(&steps, at, &next))
        return pd_error_set(
            error, PD_EMISMATCH, "REGROUP",
            "job '%s': step %llu shares its packs with steps that are committed "
            "(balance: cost); go on with %u packs a step until step %llu is committed, "
            "then regroup",
            job->spec.name, (unsigned long long)at, job->spec.step_packs,
            (unsigned long long)next - 1);
    return 0;
}

int pd_seq_regroup(const struct pd_seq_feed *feed, struct pd_seq_job *job,
                   const struct pd_request_open_job *request, struct pd_error *error)
{
    int rc = check_regroup(feed, job, request, error);
    if (rc)
        return rc;
    struct pd_job_steps steps = pd_seq_job_steps(feed, job);
    uint64_t at = job->committed > job->first_step ? job->committed : job->first_step;
    job->first_pack = pd_job_step_needs(&steps, at);
    job->first_step = at;
    pd_log(PD_LOG_INFO, "job_regrouped", "feed=%s job=%s step=%llu step_packs=%u before=%u",
           feed->name, job->spec.name, (unsigned long long)at, request->spec.step_packs,
           job->spec.step_packs);
    return 0;
}
