/* The safetensors reader on anything; what it accepts is sound, and written again gives a file that
 * reads the same.
 *
 * Byte 0 chooses: the rest is a whole file, or (even) a JSON header to which the length is put and
 * a kilobyte of data. */
#include "client/safetensors.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define DATA_BYTES 1024

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_sound(const struct pd_safetensors_content *content, const uint8_t *image,
                        size_t size)
{
    for (size_t i = 0; i < content->tensor_count; i++) {
        const struct pd_tensor *tensor = &content->tensors[i];
        const uint8_t *bytes = tensor->data;
        PD_CHECK(bytes >= image && tensor->size_bytes <= (size_t)(image + size - bytes));
        PD_CHECK(tensor->rank <= PD_SAFETENSORS_RANK_MAX);
    }
}

static void check_written_again(const struct pd_safetensors_content *content)
{
    char *image = NULL;
    size_t size;
    FILE *file = open_memstream(&image, &size);
    PD_CHECK(file);
    int rc = pd_safetensors_write(file, content, NULL);
    PD_CHECK(fclose(file) == 0);
    struct pd_safetensors *again = NULL;
    if (rc == 0) { /* names that are empty or too long to write can still be read */
        PD_CHECK(pd_safetensors_parse(image, size, &again, NULL) == 0);
        PD_CHECK(pd_safetensors_content(again)->tensor_count == content->tensor_count);
        for (size_t i = 0; i < content->tensor_count; i++) {
            const struct pd_tensor *one = &content->tensors[i],
                                   *two = pd_safetensors_find(again, one->name);
            PD_CHECK(two && two->size_bytes == one->size_bytes);
            PD_CHECK(one->size_bytes == 0 || memcmp(one->data, two->data, one->size_bytes) == 0);
        }
    }
    pd_safetensors_free(again);
    free(image);
}

static void parse(const uint8_t *image, size_t size)
{
    struct pd_safetensors *file;
    struct pd_error error = {0};
    int rc = pd_safetensors_parse(image, size, &file, &error);
    PD_CHECK(rc == 0 ? file != NULL : file == NULL && error.code == rc && error.reason[0] != 0);
    if (rc != 0)
        return;
    check_sound(pd_safetensors_content(file), image, size);
    check_written_again(pd_safetensors_content(file));
    pd_safetensors_free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] % 2 == 1) {
        parse(data + 1, size - 1);
        return 0;
    }
    uint64_t header_bytes = size - 1;
    uint8_t *image = calloc(1, 8 + header_bytes + DATA_BYTES);
    PD_CHECK(image);
    memcpy(image, &header_bytes, 8);
    memcpy(image + 8, data + 1, header_bytes);
    parse(image, 8 + header_bytes + DATA_BYTES);
    free(image);
    return 0;
}
