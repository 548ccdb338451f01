/* Memory of batch payloads: large ones are mappings of their own, and some of those given back are
 * kept for the next ones.
 *
 * Large payloads bypass the heap because threads free what others allocated, and a heap keeps the
 * holes: the process would take several times what memory.batches allows. A fresh mapping costs the
 * clearing of its pages, a fifth of all the time that goes into a batch; so mappings are used
 * again. Their content is whatever was there: the layout writes every byte.
 *
 * When full: at most PD_PAYLOAD_SPARE_BYTES are kept, in the process; what is given back beyond
 * them goes to the system. Any thread. */
#ifndef PD_SERVER_PAYLOAD_H
#define PD_SERVER_PAYLOAD_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

#define PD_PAYLOAD_SPARE_BYTES (16u << 20)

/* `bytes` is a multiple of PD_ARRAY_ALIGN, and so is the address; NULL: no memory. */
uint8_t *pd_payload_new(size_t bytes) PD_MUST_CHECK;
/* The same number of bytes. NULL is allowed. */
void pd_payload_free(uint8_t *payload, size_t bytes);

#endif
