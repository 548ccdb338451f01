/* Memory that ends at an unmapped page (and begins near one): an access out of bounds is a crash. */
#ifndef PD_TESTS_GPU_GUARDED_H
#define PD_TESTS_GPU_GUARDED_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

struct guarded {
    unsigned char *data; /* aligned to 16 bytes where the size is a multiple of 16 */
    unsigned char *map;
    size_t map_bytes;
};

static inline struct guarded guarded_new(size_t size)
{
    enum { PAGE = 64 * 1024 }; /* a multiple of every page size in use */
    size_t body = (size + PAGE - 1) / PAGE * PAGE;
    struct guarded made = {NULL, NULL, body + 2 * PAGE};
    void *map = mmap(NULL, made.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        abort();
    made.map = (unsigned char *)map;
    if (mprotect(made.map + PAGE, body, PROT_READ | PROT_WRITE) != 0)
        abort();
    made.data = made.map + PAGE + body - size;
    return made;
}

static inline void guarded_free(struct guarded *guarded)
{
    munmap(guarded->map, guarded->map_bytes);
    guarded->data = guarded->map = NULL;
}

#endif
