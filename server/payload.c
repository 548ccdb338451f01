/* A shelf of mappings, each of a size class: what was given back last is taken first, while it is
 * still in a cache.
 *
 * Place: below assemble, which takes; whoever drops the last reference to a batch gives back.
 * Invariant: spare_bytes is the sum of the shelf and at most PD_PAYLOAD_SPARE_BYTES. The lock is a
 * leaf, and no system call is made under it. It knows nothing of budgets: serve counts the exact
 * bytes of the batches that live. */
#include "server/payload.h"

#include "base/check.h"
#include "packer/layout.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define MAPPED_BYTES (1u << 20) /* smaller ones come from the heap */
#define SPARES_MAX 16
#define CLASS_STEPS 16 /* between a size and its double: at most 1/16 more than was asked for */

struct spare {
    uint8_t *at;
    size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct spare spares[SPARES_MAX]; /* oldest first */
static uint32_t spare_count;
static size_t spare_bytes;

/* Sizes that differ by little share a mapping's size. */
static size_t class_bytes(size_t bytes)
{
    size_t step = (size_t)1 << (63 - __builtin_clzll(bytes));
    step /= CLASS_STEPS;
    return (bytes + step - 1) / step * step;
}

static uint8_t *take_spare(size_t bytes)
{
    uint8_t *at = NULL;
    pthread_mutex_lock(&lock);
    for (uint32_t i = spare_count; i-- > 0 && !at;) {
        if (spares[i].bytes != bytes)
            continue;
        at = spares[i].at;
        spare_bytes -= bytes;
        spare_count--;
        for (uint32_t k = i; k < spare_count; k++)
            spares[k] = spares[k + 1];
    }
    pthread_mutex_unlock(&lock);
    return at;
}

/* The oldest goes where there is no room: what is asked for now is what was given back lately. */
static struct spare pop_oldest(size_t room)
{
    struct spare oldest = {0};
    if (spare_count == 0 ||
        (spare_count < SPARES_MAX && spare_bytes + room <= PD_PAYLOAD_SPARE_BYTES))
        return oldest;
    oldest = spares[0];
    spare_bytes -= oldest.bytes;
    spare_count--;
    for (uint32_t k = 0; k < spare_count; k++)
        spares[k] = spares[k + 1];
    return oldest;
}

static void unmap(struct spare spare)
{
    if (spare.at)
        PD_CHECK(munmap(spare.at, spare.bytes) == 0);
}

static void keep(struct spare spare)
{
    struct spare dropped[SPARES_MAX + 1];
    uint32_t count = 0;
    pthread_mutex_lock(&lock);
    while ((dropped[count] = pop_oldest(spare.bytes)).at)
        count++;
    spares[spare_count++] = spare;
    spare_bytes += spare.bytes;
    pthread_mutex_unlock(&lock);
    for (uint32_t i = 0; i < count; i++)
        unmap(dropped[i]);
}

uint8_t *pd_payload_new(size_t bytes)
{
    if (bytes < MAPPED_BYTES)
        return aligned_alloc(PD_ARRAY_ALIGN, bytes);
    bytes = class_bytes(bytes);
    uint8_t *spare = take_spare(bytes);
    if (spare)
        return spare;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
                    -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

void pd_payload_free(uint8_t *payload, size_t bytes)
{
    if (bytes < MAPPED_BYTES) {
        free(payload);
        return;
    }
    struct spare spare = {.at = payload, .bytes = class_bytes(bytes)};
    if (payload && spare.bytes <= PD_PAYLOAD_SPARE_BYTES)
        keep(spare);
    else
        unmap(spare);
}
