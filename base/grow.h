/* Arrays on the heap that grow. */
#ifndef PD_BASE_GROW_H
#define PD_BASE_GROW_H

#include <stdbool.h>
#include <stddef.h>

/* Makes *(T **)array hold `capacity` items of item_bytes each, with what it held; the caller frees
 * it. False: no memory, or more bytes than there are; the array is as before. */
bool pd_grow(void *array, size_t capacity, size_t item_bytes);

#endif
