/* Fetches every batch of a feed as the only rank of a job: train [SERVER]. The README shows the
 * lines between the marks. */
#include <packd.h>

#include <inttypes.h>
#include <stdio.h>

static int train(const char *server)
{
    /* README: train */
    struct packd_error error = {0};
    struct packd_job *job;
    struct packd_job_options options = {.server = server, .job = "c", .dp_size = 1, .rows = 2};
    if (packd_job_open(&options, &job, &error))
        return fprintf(stderr, "%s\n", error.text), 1;
    const struct packd_batch *batch;
    int rc;
    while ((rc = packd_job_next(job, PACKD_TIMEOUT_DEFAULT, &batch, &error)) == 0) {
        const int32_t *tokens = packd_batch_array(batch, "tokens")->data; /* [rows, width] */
        printf("step %" PRIu64 ": %" PRIu64 " tokens, the first is %" PRId32 "\n", batch->step,
               batch->batch_totals.real_tokens, tokens[0]);
        packd_batch_release(batch);
    }
    packd_job_close(job); /* rc is PACKD_EEND: the feed ended, for every rank at the same step */
    /* README: end */
    if (rc != PACKD_EEND)
        fprintf(stderr, "%s\n", error.text);
    return rc != PACKD_EEND;
}

int main(int argc, char **argv)
{
    return train(argc > 1 ? argv[1] : PACKD_DEFAULT_SERVER);
}
