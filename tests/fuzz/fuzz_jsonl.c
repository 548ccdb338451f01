/* The record reader on anything: a sample that keeps its promises, nothing, or an error with a text.
 *
 * Byte 0 chooses the field option; each further line is one record of the same reader. */
#include "client/reader_record.h"

#include "base/check.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_sample(const struct packd_sample *sample)
{
    PD_CHECK(sample->count > 0 && sample->key.size <= 255 && sample->group.size <= 255);
    for (size_t i = 0; i < sample->count; i++) {
        PD_CHECK(sample->tokens[i] >= 0);
        PD_CHECK(!sample->labels || sample->labels[i] >= 0 || sample->labels[i] == -100);
        PD_CHECK(!sample->loss_mask || sample->loss_mask[i] <= 1);
    }
    PD_CHECK(!sample->has_weight || (isfinite(sample->weight) && sample->weight >= 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const fields[] = {NULL, "text", "a,b", "tokens"};
    struct pd_record record;
    struct packd_error error = {0};
    if (size == 0)
        return 0;
    PD_CHECK(pd_record_init(&record, fields[data[0] % 4], &error) == 0);
    for (size_t at = 1; at < size;) {
        const uint8_t *end = memchr(data + at, '\n', size - at);
        size_t bytes = end ? (size_t)(end - (data + at)) : size - at;
        struct packd_sample sample;
        int rc = pd_record_parse(&record, (const char *)data + at, bytes, &sample, &error);
        if (rc == 1)
            check_sample(&sample);
        else
            PD_CHECK(rc == 0 || (rc < 0 && error.code == rc && error.text[0]));
        at += bytes + 1;
    }
    pd_record_fini(&record);
    return 0;
}
