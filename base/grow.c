/* Arrays on the heap that grow. Pure but for the heap; any thread, one array at a time. */
#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

bool pd_grow(void *array, size_t capacity, size_t item_bytes)
{
    /* By memcpy: a T * need not look like a void * to the compiler. */
    void *old, *bigger;
    memcpy(&old, array, sizeof old);
    bigger = reallocarray(old, capacity, item_bytes);
    if (bigger)
        memcpy(array, &bigger, sizeof bigger);
    return bigger != NULL;
}
