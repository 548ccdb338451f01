/* Memory that ends at an unmapped page: an access out of bounds is a crash. It begins at one too
 * where its size is a multiple of the page's. */
#ifndef PD_TESTS_GPU_GUARDED_H
#define PD_TESTS_GPU_GUARDED_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct guarded {
    unsigned char *data; /* aligned to 16 bytes where the size is a multiple of 16 */
    unsigned char *map;
    size_t map_bytes;
};

static inline struct guarded guarded_new(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (size + page - 1) / page * page;
    struct guarded made = {NULL, NULL, body + 2 * page};
    void *map = mmap(NULL, made.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        abort();
    made.map = (unsigned char *)map;
    if (mprotect(made.map + page, body, PROT_READ | PROT_WRITE) != 0)
        abort();
    made.data = made.map + page + body - size;
    return made;
}

static inline void guarded_free(struct guarded *guarded)
{
    munmap(guarded->map, guarded->map_bytes);
    guarded->data = guarded->map = NULL;
}

#endif
