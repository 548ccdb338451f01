/* The record reader on anything: a sample that keeps its promises, nothing, or an error with a
 * text.
 *
 * Byte 0 chooses the field option; each further line is one record of the same reader. Bytes from
 * 128 on stand for fragments of records, so that random input gets past the JSON parser. */
#include "client/reader_record.h"

#include "base/check.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
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

#define TEXT_MAX 65536

static size_t expand(const uint8_t *data, size_t size, char text[TEXT_MAX])
{
    static const char *const fragments[] = {"{",
                                            "}",
                                            "[",
                                            "]",
                                            ",",
                                            ":",
                                            "\n",
                                            "\"",
                                            "1",
                                            "-100",
                                            "0",
                                            "2147483648",
                                            "1.5",
                                            "true",
                                            "null",
                                            "\"x\"",
                                            "{\"tokens\": [1, 2]",
                                            "{\"text\": \"ab\"",
                                            ", \"labels\": [",
                                            ", \"loss_mask\": [",
                                            ", \"weight\": ",
                                            ", \"key\": ",
                                            ", \"group\": \"g\"",
                                            ", \"version\": ",
                                            "[1, 0]",
                                            "{\"a\": \"b\"",
                                            "}\n",
                                            "\"input_ids\": [",
                                            "\\u0000",
                                            "\xc3\xa4",
                                            "1, 2]",
                                            "]}\n"};
    size_t at = 0;
    for (size_t i = 0; i < size && at < TEXT_MAX - 64; i++) {
        const char *fragment = fragments[data[i] % PD_COUNT_OF(fragments)];
        if (data[i] < 128)
            text[at++] = (char)data[i];
        else
            at += (size_t)sprintf(text + at, "%s", fragment);
    }
    return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[TEXT_MAX];
    static const char *const fields[] = {NULL, "text", "a,b", "tokens"};
    struct pd_record record;
    struct packd_error error = {0};
    if (size == 0)
        return 0;
    PD_CHECK(pd_record_init(&record, fields[data[0] % 4], &error) == 0);
    size = expand(data + 1, size - 1, text);
    for (size_t at = 0; at < size;) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t bytes = end ? (size_t)(end - (text + at)) : size - at;
        struct packd_sample sample;
        int rc = pd_record_parse(&record, text + at, bytes, &sample, &error);
        if (rc == 1)
            check_sample(&sample);
        else
            PD_CHECK(rc == 0 || (rc < 0 && error.code == rc && error.text[0]));
        at += bytes + 1;
    }
    pd_record_fini(&record);
    return 0;
}
