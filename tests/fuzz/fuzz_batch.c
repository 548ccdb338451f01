/* The client's receiver of batches on anything: header bytes, then payload bytes, from the input.
 *
 * Bytes 0 and 1: length of the header; the rest of the input is the payload, as often as it
 * takes. */
#include "client/lib_batch.h"

#include "base/check.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void feed(struct pd_client_batch *batch, const uint8_t *data, size_t size)
{
    struct packd_error error = {0};
    while (!pd_client_batch_complete(batch)) {
        uint64_t left = batch->expected_bytes - batch->received_bytes;
        size_t bytes = left < 4096 ? (size_t)left : 4096;
        uint8_t *to = pd_client_batch_room(batch, bytes, &error);
        PD_CHECK(to);
        for (size_t i = 0; i < bytes; i++)
            to[i] = size ? data[i % size] : 0;
    }
    int rc = pd_client_batch_finish(batch, &error);
    PD_CHECK(rc == 0 || error.text[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    size_t header = ((size_t)data[0] | (size_t)data[1] << 8) % (size - 1);
    struct pd_pool_memory memory = {0};
    struct pd_pool *pool = pd_pool_new(&memory, 0);
    Packd__V1__BatchBegin begin = PACKD__V1__BATCH_BEGIN__INIT;
    Packd__V1__BatchHeader *parsed = packd__v1__batch_header__unpack(NULL, header, data + 2);
    begin.deterministic = (ProtobufCBinaryData){header, (uint8_t *)(uintptr_t)data + 2};
    begin.header_bytes = header;
    if (parsed) {
        begin.payload_bytes = data[0] & 1 ? parsed->core_bytes : parsed->payload_bytes;
        packd__v1__batch_header__free_unpacked(parsed, NULL);
    }
    struct pd_client_batch *batch = NULL;
    struct packd_error error = {0};
    if (pool && pd_client_batch_begin(pool, &begin, 1 << 20, &batch, &error) == 0) {
        if (pd_client_batch_header_complete(batch))
            feed(batch, data + 2 + header, size - 2 - header);
        pd_client_batch_free(batch);
    }
    pd_pool_unref(pool);
    return 0;
}
